"""Unlearning in Flower, in a federation whose clients stay as they are. Extra: `pip install "fu_core[flower]"`.

    how = UnlearningStrategy("FedOSD", nodes, "client-3", 21, f, fraction_evaluate=0.0)
    how.start(grid, to_arrays(f.model, w_0), num_rounds=30)       20 rounds of training, the method, 9 of recovery

`UnlearningStrategy` is Flower's FedAvg with one server round in which a registered method does what it does in
`unlearn`: the same code, whose rounds of training are messages to Flower's clients. Methods that ask for more than
training are refused by name. `PufStrategy` is PUF alone, for models of any kind: PUF's clients do in the unlearning
round what they do in any other (Mora et al., Sec. IV-B), so that the server needs to know nothing of them.
`client_app` brings a federation of ours into Flower with the very batches of `fu_core.federation`, so that both
can be compared: the models are the same to rounding (Flower averages models in float32, we updates in float64).
"""

from __future__ import annotations

import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import (
    ConfigError,
    InvalidRequest,
    MissingHistory,
    NumericalFailure,
    UnsupportedModel,
    UnsupportedTask,
    check_choice,
    check_count,
    check_positive,
    listed,
)
from fu_core.federation.elsewhere import as_server, departure
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, train_client, visits
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.baselines.fed_osd import UnlearningLoss
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained, Unlearned, method, unlearn
from fu_core.unlearning.puf import PUF, pseudo_gradient, warn_if_far

EXTRA = 'fu_core.flower needs Flower and its simulation: run `pip install "fu_core[flower]"`'
try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.serverapp.strategy.strategy_utils import sample_nodes
    from flwr.simulation import run_simulation
except ImportError as error:
    raise ImportError(EXTRA) from error

ARRAYS, CONFIG, ROUND, SAMPLES = "arrays", "config", "server-round", "num-examples"  # the names FedAvg uses
LOCAL, LOSS = "local.", "loss"  # in the config of a round that is not an ordinary one: ClientOpt's fields, and the loss
LOSSES: dict[str, type[UnlearningLoss]] = {
    "unlearning cross-entropy": UnlearningLoss
}  # what clients can be asked to descend
PARTITION = "partition-id"  # in the node config of a simulation; of a deployment if its operator sets it
ONE_CLIENT: dict[str, dict[str, Any]] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # at a time
RAY: dict[str, Any] = {
    "address": "local",  # a ray of its own, although a cluster may be running
    "num_cpus": 1,
    "object_store_memory": 10**8,
    "include_dashboard": False,
    "logging_level": "ERROR",
    "log_to_driver": False,
}
ATTEMPTS = (
    5  # to start ray, each of which it gives up by itself: after half a minute at the earliest, two at the latest
)
T = TypeVar("T")


class Departure(FedAvg):
    """FedAvg from which clients are left out from a round on: what every unlearning strategy shares.

    leaving: the index in `nodes` of every client that leaves, by its node.
    """

    def __init__(self, nodes: Sequence[int], targets: Sequence[int], unlearning_round: int, **fedavg: Any) -> None:
        super().__init__(**fedavg)
        check_count("unlearning_round", unlearning_round, error=InvalidRequest)
        if targets:
            _check_targets(targets, len(nodes))
            self._check_enough_stay(len(nodes) - len(targets))
        self.unlearning_round = unlearning_round
        self.leaving = {nodes[j]: j for j in sorted(targets)}  # node -> client

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages; who has left is not asked."""
        if self.fraction_evaluate == 0:  # Flower 1.21 would ask min_evaluate_nodes all the same
            return []
        return super().configure_evaluate(server_round, arrays, config, self._staying(grid, server_round))

    def _unlearns_in(self, server_round: int) -> bool:
        return bool(self.leaving) and server_round == self.unlearning_round

    def _staying(self, grid: Grid, server_round: int) -> Grid:
        """The grid as FedAvg's sampling sees it: without the targets from the unlearning round on."""
        if not self.leaving or server_round < self.unlearning_round:
            return grid
        return cast(Grid, _Without(grid, self.leaving))

    def _check_enough_stay(self, staying: int) -> None:
        least = {name: getattr(self, name) for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes")}
        if staying < max(least.values()):
            raise InvalidRequest(
                f"targets leave {staying} of the clients, but Flower would wait for {max(least.values())}: "
                f"{', '.join(f'{name}={count}' for name, count in least.items())}; lower them to {staying}"
            )


class UnlearningStrategy(Departure):
    """FedAvg that forgets by a registered method: `method` is served in the server round `unlearning_round`.

    nodes: the Flower node of every client, in the order of `f.ids` (`client_nodes`, or from the operator's records).
    request: whole clients that leave, as "client-3" or [3]. f: the federation as its server knows it; samples in it are
    not looked at (see `as_server`), and its `local` and `seed` must be those of the clients; its `participation` is
    that of rounds within the method. parameters: of the method. timeout: seconds that an answer may take there. fedavg:
    FedAvg's own parameters.

    Server rounds before are Flower's FedAvg with everybody, those afterwards with who stays. The round itself holds all
    that the method does, however many rounds of training that takes: it ends in the model of `unlearn`, to rounding.
    Clients are asked to train by FedAvg's own message; where a method has them train otherwise than usual (fewer
    epochs, another rate, FedOSD's loss), its config names what differs. Until then everybody's last updates are kept,
    and those of all rounds for a method that needs history. `unlearned` is what `unlearn` has returned, None before.

    Random: as in FedAvg, and as the method has it. Raises `UnsupportedTask` at once for a method that asks for more
    than training (a rehearsal with three clients and no messages tells), by name and with the reason; `InvalidRequest`
    for wrong clients, rounds or parameters, and for a client that does not answer, or has other samples than `f` says.
    """

    def __init__(
        self,
        method: str,
        nodes: Sequence[int],
        request: str | Sequence[int],
        unlearning_round: int,
        f: Federation,
        *,
        parameters: Mapping[str, Any] | None = None,
        timeout: float = 3600.0,
        **fedavg: Any,
    ) -> None:
        if len(nodes) != len(f.clients):
            raise InvalidRequest(f"nodes must name one node for each of {len(f.clients)} clients, got {len(nodes)}")
        check_positive("timeout", timeout)
        self.f = as_server(f)
        self.deletion = departure(self.f.clients, request)
        super().__init__(nodes, [f.ids.index(j) for j in self.deletion.targets], unlearning_round, **fedavg)
        self.method, self.parameters, self.timeout = method, dict(parameters or {}), timeout
        self.node_of = dict(zip(f.ids, nodes, strict=True))
        self.unlearned: Unlearned | None = None
        self._memory, self._w_0 = Memory(), torch.empty(0)
        self._sent = ArrayRecord()  # w_{t-1}, in round t
        self._check_method()
        self._rehearse()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages; in the unlearning round none are left, since the method has had its own answered."""
        w = to_vector(arrays, self.f.model.names)
        if server_round == 1:
            self._w_0, self._memory = w, self._fresh_memory(w, self.unlearning_round - 1)
        self._sent = arrays
        if not self._unlearns_in(server_round):
            return super().configure_train(server_round, arrays, config, self._staying(grid, server_round))

        def train(f: Federation, w: Tensor, round: int, ids: list[int]) -> Tensor:
            return self._train(f, w, round, ids, config, grid)

        f = self.f.having(how=train, meter=Meter())
        self.unlearned = self._serve(f, w, self._w_0, self._memory, server_round - 1)
        self._memory = Memory()  # it holds updates of those who have left
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedAvg's mean; in the unlearning round the method's model, which comes without metrics."""
        if self._unlearns_in(server_round) and self.unlearned is not None:
            return _like(self._sent, self.unlearned.model), None
        answered = list(replies)
        if server_round < self.unlearning_round:
            self._record(server_round, [reply for reply in answered if not reply.has_error()])
        return super().aggregate_train(server_round, answered)

    def _serve(self, f: Federation, w: Tensor, w_0: Tensor, memory: Memory, rounds: int) -> Unlearned:
        """What `unlearn` returns; its reasons to refuse begin with the method's name."""
        deletion = departure(f.clients, self.deletion.targets)
        try:
            served = unlearn(self.method, Trained(f, w, rounds, w_0, memory), deletion, **self.parameters)
        except (UnsupportedTask, MissingHistory) as error:
            raise UnsupportedTask(f"Flower cannot serve method {self.method!r}: {error}") from error
        if not isinstance(served.model, Tensor) or served.model.shape != w.shape:
            ends = f"a {type(served.model).__name__}, not in one model {tuple(w.shape)}"
            raise UnsupportedTask(f"Flower cannot serve method {self.method!r}: it ends in {ends}")
        return served

    def _train(self, f: Federation, w: Tensor, round: int, ids: list[int], config: ConfigRecord, grid: Grid) -> Tensor:
        """The updates (K, d) of the clients `ids`, asked of their nodes: `how` a method trains in Flower."""
        usual = ConfigRecord({**config, ROUND: round, **self._differences(f, ids)})
        starts = w.expand(len(ids), -1) if w.dim() == 1 else w
        messages = [
            Message(
                RecordDict({self.arrayrecord_key: to_arrays(f.model, start), self.configrecord_key: usual}),
                self.node_of[i],
                MessageType.TRAIN,
            )
            for i, start in zip(ids, starts, strict=True)
        ]
        replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(messages, timeout=self.timeout)}
        deltas = torch.empty((len(ids), f.model.d), dtype=w.dtype, device=w.device)
        for row, i in enumerate(ids):
            content = self._answer_of(i, replies.get(self.node_of[i]), round)
            deltas[row] = to_vector(_only(content.array_records), f.model.names) - starts[row]  # Delta_i = w_i - w
            _, sizes = visits(len(f.clients[i][1]), f.local, seed=f.seed, round=round, client=i)
            f.meter.train(sum(sizes))
        return deltas

    def _answer_of(self, i: int, reply: Message | None, round: int) -> RecordDict:
        """What client `i` sent, who must have answered, with as many samples as the server counts on."""
        if reply is None or reply.has_error():
            reason = "no reply" if reply is None else reply.error.reason
            raise InvalidRequest(f"client {i} (node {self.node_of[i]}) sent no update in round {round}: {reason}")
        n, told = len(self.f.clients[i][1]), _only(reply.content.metric_records)[self.weighted_by_key]
        if told != n:
            raise InvalidRequest(f"client {i} must hold the {n} samples that f says, but has trained on {told}")
        return reply.content

    def _differences(self, f: Federation, ids: list[int]) -> dict[str, Any]:
        """What clients do otherwise in a round of `f` than in an ordinary one, for the config of their message.

        Raises `UnsupportedTask` for what cannot be told them.
        """
        ours = self.f
        if _net(f.model) != _net(ours.model):
            raise UnsupportedTask("it has clients train another net than theirs")
        if f.seed != ours.seed or any(f.clients[i] is not ours.clients.get(i) for i in ids):
            raise UnsupportedTask("it has clients train on other samples than theirs")
        if type(f.model) is not type(ours.model) and type(f.model) not in LOSSES.values():
            raise UnsupportedTask("it has clients train with a loss of its own, which they do not know")
        told: dict[str, Any] = {
            LOCAL + field.name: getattr(f.local, field.name)
            for field in fields(ClientOpt)
            if getattr(f.local, field.name) != getattr(ours.local, field.name)
        }
        if type(f.model) is not type(ours.model):
            told[LOSS] = next(name for name, kind in LOSSES.items() if kind is type(f.model))
        return told

    def _record(self, round: int, replies: list[Message]) -> None:
        """Keep the updates of a round of training, in client order."""
        names, client_of = self.f.model.names, {node: i for i, node in self.node_of.items()}
        if strangers := [r.metadata.src_node_id for r in replies if r.metadata.src_node_id not in client_of]:
            raise InvalidRequest(f"nodes must name all that train, {sorted(client_of)}, but {strangers[0]} has, too")
        w = to_vector(self._sent, names)
        sent = {client_of[r.metadata.src_node_id]: to_vector(_only(r.content.array_records), names) for r in replies}
        ids = sorted(sent)
        if ids:
            self._memory.record(round, ids, torch.stack([sent[i] - w for i in ids]))

    def _fresh_memory(self, w_0: Tensor, rounds: int) -> Memory:
        """What is kept of so many rounds: the updates of the last one, and of all for a method that needs them."""
        history = UpdateHistory(w_0) if method(self.method).needs.history else None
        return Memory(history, last_round=rounds)

    def _check_method(self) -> None:
        method(self.method)  # raises for a name that is none
        if self.f.exchange != FedOpt():
            raise UnsupportedTask("exchange must be a server that averages, FedOpt(), as Flower's FedAvg does")
        if method(self.method).needs.history and self.fraction_train != 1:
            raise InvalidRequest(
                f"fraction_train must be 1 for {self.method}, which needs everybody's updates of every round, "
                f"got {self.fraction_train}"
            )

    def _rehearse(self) -> None:
        """Serve the method with invented updates and no more than two who stay: it is refused before any training."""
        targets = self.deletion.targets
        ids = sorted([*targets, *list(self.deletion.kept)[:2]])
        w = self.f.model.init(self.f.seed)

        def invent(f: Federation, w: Tensor, round: int, ids: list[int]) -> Tensor:
            self._differences(f, ids)
            draws = [torch.randn(f.model.d, generator=stream(0, "flower rehearsal", round, i)) for i in ids]
            return 1e-3 * torch.stack(draws).to(w.dtype)

        f = self.f.having(clients={i: self.f.clients[i] for i in ids}, how=invent, meter=Meter())
        rounds = min(2, self.unlearning_round - 1)
        memory = self._fresh_memory(w, rounds)
        for t in range(1, rounds + 1):
            memory.record(t, ids, invent(f, w, t, ids))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invented steps
            self._serve(f, w, w, memory, rounds)


class PufStrategy(Departure):
    """FedAvg that forgets: `unlearning_round` is a round of PUF, from then on the targets are left out.

    nodes: the Flower node of every client, in client order (`client_nodes`, or from the operator's records);
    targets: the clients that leave, as indices of `nodes`; nobody makes it plain FedAvg. unlearning_round: a
    server round, from 1. mode: in a "special" round only the targets train, in a "regular" one all who would
    otherwise, and the targets in any case. eta_u, eta_r: as in `PUF`, whose eta_u fits "special" (the paper
    has 20 for "regular"). fedavg: FedAvg's own parameters; its `weighted_by_key` counts samples here, too.

    Clients get nothing but the usual message, so E_u and augmentation are what their ClientApp does in any round:
    the model is that of `puf_round` with `PUF(epochs_u=local.epochs, augment=True)`, and so is the warning if the
    step is longer than the model itself. Random: as in FedAvg, who is sampled if `fraction_train` < 1.

    Raises `InvalidRequest` for wrong targets or rounds, if Flower would wait forever for more clients than stay, or
    if a target does not answer; `UnsupportedModel` for arrays of integers, which come with running statistics;
    `NumericalFailure` if the unlearned model is not finite.
    """

    def __init__(
        self,
        nodes: Sequence[int],
        targets: Sequence[int],
        unlearning_round: int,
        *,
        mode: str = "special",
        eta_u: float = PUF.eta_u,
        eta_r: float = PUF.eta_r,
        **fedavg: Any,
    ) -> None:
        super().__init__(nodes, targets, unlearning_round, **fedavg)
        self.config = PUF(mode=mode, eta_u=eta_u, eta_r=eta_r)
        self._sent = ArrayRecord()  # w_t of the unlearning round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round's messages: FedAvg's, in the unlearning round to S- and S+, afterwards to those who stay."""
        if self.leaving:
            _check_only_parameters(arrays)
        staying = self._staying(grid, server_round)
        if not self._unlearns_in(server_round):
            return super().configure_train(server_round, arrays, config, staying)
        self._sent = arrays
        config[ROUND] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        messages = [Message(content, node, MessageType.TRAIN) for node in self.leaving]
        if self.config.mode == "regular":
            messages += super().configure_train(server_round, arrays, config, staying)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedAvg's mean, but in the unlearning round the targets' updates negated and scaled (Eqs. 5-9)."""
        if not self._unlearns_in(server_round):
            return super().aggregate_train(server_round, replies)
        valid, failed = self._check_and_log_replies(replies, is_train=True)
        self._check_all_targets_replied(valid, failed)
        names = list(self._sent)
        w = to_vector(self._sent, names)
        contents = [reply.content for reply in valid]
        deltas = torch.stack([to_vector(_only(c.array_records), names) - w for c in contents])  # Delta_i = w_i - w
        sizes = torch.tensor([_only(c.metric_records)[self.weighted_by_key] for c in contents], dtype=torch.float64)
        leaves = torch.tensor([reply.metadata.src_node_id in self.leaving for reply in valid])
        how = self.config
        unlearned = w + pseudo_gradient(deltas, sizes, leaves, mode=how.mode, eta_u=how.eta_u, eta_r=how.eta_r)
        if not bool(unlearned.isfinite().all()):
            raise NumericalFailure(f"round {server_round}: the unlearned model is not finite")
        warn_if_far(w, unlearned)
        return _like(self._sent, unlearned), self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _check_all_targets_replied(self, valid: list[Message], failed: list[Message]) -> None:
        answered = {reply.metadata.src_node_id for reply in valid}
        reasons = {reply.metadata.src_node_id: reply.error.reason for reply in failed}
        for node, j in self.leaving.items():
            if node not in answered:
                raise InvalidRequest(
                    f"target {j} (node {node}) sent no update in the unlearning round {self.unlearning_round}, so that "
                    f"nothing can be negated: {reasons.get(node, 'no reply')}"
                )


def client_app(f: Federation) -> ClientApp:
    """A federation of ours as an ordinary Flower ClientApp: one `train`, the same in every round.

    A message may ask for another local training ("local.epochs", say) or another loss, as some methods do. The i-th of
    `f.ids` lives on the node with `partition-id` i. Random: batches and augmentation, from streams of (f.seed, server
    round, client), as in `fedavg`. It also answers `client_nodes`, and has nothing to evaluate: use
    `fraction_evaluate=0.0`. In a simulation the data travel with every message, and `f.meter` hears of nothing.
    Inside a call: `ConfigError` for a node without a partition of the clients.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = f.ids[_client_of(context, len(f.ids))]
        w = to_vector(message.content.array_records[ARRAYS], f.model.names)
        round = cast(int, message.content.config_records[CONFIG][ROUND])
        w_i = train_client(_as_asked(f, message.content.config_records[CONFIG]), w, client, round)
        samples = MetricRecord({SAMPLES: len(f.clients[client][1])})
        return Message(RecordDict({ARRAYS: to_arrays(f.model, w_i), "metrics": samples}), reply_to=message)

    @app.query()
    def who(message: Message, context: Context) -> Message:
        client = ConfigRecord({PARTITION: _client_of(context, len(f.ids))})
        return Message(RecordDict({"client": client}), reply_to=message)

    return app


def client_nodes(grid: Grid, clients: int) -> list[int]:
    """The node ids of clients 0 to `clients` - 1: asked of the nodes themselves, since Flower draws ids at random.

    Waits until so many nodes are connected. Their ClientApp must answer as `client_app` does. Raises `ConfigError` if
    one cannot, or unless every client lives on exactly one node.
    """
    _, nodes = sample_nodes(grid, clients, clients)
    replies = list(grid.send_and_receive([Message(RecordDict(), node, MessageType.QUERY) for node in nodes]))
    failed = [reply for reply in replies if reply.has_error()]
    if failed:
        raise ConfigError(f"node {failed[0].metadata.src_node_id} cannot say which client it is: {failed[0].error}")
    said = [cast(int, _only(reply.content.config_records)[PARTITION]) for reply in replies]
    if sorted(said) != list(range(clients)):
        raise ConfigError(f"every {PARTITION} from 0 to {clients - 1} must have one node, got {sorted(said)}")
    node_of = {i: reply.metadata.src_node_id for i, reply in zip(said, replies, strict=True)}
    return [node_of[i] for i in range(clients)]


def simulate(app: ClientApp, clients: int, serve: Callable[[Grid, list[int]], T]) -> T:
    """Run Flower's own simulation of `clients` nodes with `app`; returns what the server `serve(grid, nodes)` does.

    nodes: as from `client_nodes`. ray trains the clients one after the other in a process of its own, which takes
    seconds to start, or minutes on a busy machine. Of Flower's log only errors are shown. Raises what `serve` raises,
    `ImportError` without ray, `RuntimeError` if it does not start.
    """
    if find_spec("ray") is None:  # Flower would end the process
        raise ImportError(EXTRA)
    returned: list[T] = []
    server, log = ServerApp(), logging.getLogger("flwr")

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        returned.append(serve(grid, client_nodes(grid, clients)))

    _start_ray()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        run_simulation(server, app, clients, backend_config=ONE_CLIENT)
    finally:
        log.setLevel(level)
    return returned[0]


def _start_ray() -> None:
    """Start ray, unless it runs; Flower ends it.

    Its processes wait for each other for half a minute, which no setting changes. On a busy machine that is too short
    for the first ones, who read their files from the disk, and long enough for those that follow. Flower would not try
    again, and its server would wait for ever.
    """
    import ray  # takes seconds

    if ray.is_initialized():
        return
    paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}  # who trains imports what can be imported here
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(runtime_env=paths, **RAY)
            return
        except Exception as error:  # of several kinds, the plain one among them
            ray.shutdown()
            if attempt == ATTEMPTS:
                raise RuntimeError(f"ray did not start in {ATTEMPTS} attempts: {error}") from error


def to_arrays(model: FlatModel, w: Tensor) -> ArrayRecord:
    """The vector `w` (d,) as Flower sends models: one array per named parameter."""
    return ArrayRecord(model.views(w))


def to_vector(arrays: ArrayRecord, names: Sequence[str]) -> Tensor:
    """The arrays `names` as one vector (d,), in that order; for a model of ours `names` is `model.names`.

    Raises `UnsupportedModel` unless `arrays` has exactly these names.
    """
    if set(arrays) != set(names):
        raise UnsupportedModel(f"arrays must be those of the model, {sorted(names)}, got {sorted(arrays)}")
    return torch.cat([torch.from_numpy(arrays[name].numpy()).flatten() for name in names])


def _like(arrays: ArrayRecord, w: Tensor) -> ArrayRecord:
    """`w` (d,) cut into the names, shapes and types of `arrays`."""
    pieces = w.split([math.prod(array.shape) for array in arrays.values()])
    return ArrayRecord(
        {
            name: Array(piece.reshape(tuple(array.shape)).numpy().astype(array.dtype))
            for (name, array), piece in zip(arrays.items(), pieces, strict=True)
        }
    )


def _check_only_parameters(arrays: ArrayRecord) -> None:
    """Only parameters can be extrapolated; running statistics are given away by their counters."""
    for name, array in arrays.items():
        if np.dtype(array.dtype).kind != "f":
            raise UnsupportedModel(
                f"array {name!r} is {array.dtype}: PUF negates updates, which only parameters have; "
                "use GroupNorm or LayerNorm instead of running statistics"
            )


class _Without:
    """A grid some of whose nodes have left, for `sample_nodes`, which asks again until enough are connected."""

    def __init__(self, grid: Grid, gone: Container[int]) -> None:
        self.grid, self.gone = grid, gone

    def get_node_ids(self) -> list[int]:
        return [node for node in self.grid.get_node_ids() if node not in self.gone]


def _net(model: FlatModel) -> tuple[Any, ...]:
    """What two models have in common that can train the same clients."""
    return model.names, model.shapes, model.task, model.l2


def _check_targets(targets: Sequence[int], clients: int) -> None:
    if unknown := sorted(set(targets) - set(range(clients))):
        raise InvalidRequest(f"targets names client {unknown[0]}, but clients are {listed(range(clients))}")
    if len(set(targets)) < len(targets):
        raise InvalidRequest(f"targets names a client twice: {list(targets)}")
    if len(targets) == clients:
        raise InvalidRequest(f"targets names all {clients} clients: nobody would be left")


def _as_asked(f: Federation, config: Mapping[str, Any]) -> Federation:
    """The federation, with the local training and the loss that a message names; the usual one if it names none."""
    local = {key.removeprefix(LOCAL): value for key, value in config.items() if key.startswith(LOCAL)}
    for name in local:
        check_choice(LOCAL.rstrip("."), name, [field.name for field in fields(ClientOpt)], ConfigError)
    if LOSS not in config:
        return f.having(local=replace(f.local, **local)) if local else f
    check_choice(LOSS, config[LOSS], LOSSES, ConfigError)
    return f.having(local=replace(f.local, **local), model=LOSSES[config[LOSS]](f.model))


def _client_of(context: Context, clients: int) -> int:
    i = context.node_config.get(PARTITION)
    if not isinstance(i, int) or not 0 <= i < clients:
        raise ConfigError(f"{PARTITION} in the node config must be a client, 0 to {clients - 1}, got {i!r}")
    return i


def _only(records: Mapping[str, Any]) -> Any:
    """The one record of its kind in a reply."""
    return next(iter(records.values()))
