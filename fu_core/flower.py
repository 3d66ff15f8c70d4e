"""PUF in Flower: unlearning in a federation whose clients stay as they are. Extra: `pip install "fu_core[flower]"`.

PUF's clients do in the unlearning round what they do in any other (Mora et al., Sec. IV-B), so all of it is the
server's business: `PufStrategy` is Flower's FedAvg with one round aggregated as in `fu_core.unlearning.puf`.
`client_app` brings a federation of ours into Flower with the very batches of `fu_core.federation`, so that both
can be compared: the models are the same to rounding (Flower averages models in float32, we updates in float64).
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import ConfigError, InvalidRequest, NumericalFailure, UnsupportedModel, check_count, listed
from fu_core.federation.federation import Federation
from fu_core.federation.local import train_client
from fu_core.models.flat import FlatModel
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


class PufStrategy(FedAvg):
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
        super().__init__(**fedavg)
        check_count("unlearning_round", unlearning_round, error=InvalidRequest)
        self.config = PUF(mode=mode, eta_u=eta_u, eta_r=eta_r)
        if targets:
            _check_targets(targets, len(nodes))
            self._check_enough_stay(len(nodes) - len(targets))
        self.unlearning_round = unlearning_round
        self.leaving = {nodes[j]: j for j in sorted(targets)}  # node -> client
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

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages; who has left is not asked."""
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

    The i-th of `f.ids` lives on the node with `partition-id` i. Random: batches and augmentation, from streams of
    (f.seed, server round, client), as in `fedavg`. It also answers `client_nodes`, and has nothing to evaluate: use
    `fraction_evaluate=0.0`. In a simulation the data travel with every message, and `f.meter` hears of nothing.
    Inside a call: `ConfigError` for a node without a partition of the clients.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = f.ids[_client_of(context, len(f.ids))]
        w = to_vector(message.content.array_records[ARRAYS], f.model.names)
        round = cast(int, message.content.config_records[CONFIG][ROUND])
        w_i = train_client(f, w, client, round)
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


def _check_targets(targets: Sequence[int], clients: int) -> None:
    if unknown := sorted(set(targets) - set(range(clients))):
        raise InvalidRequest(f"targets names client {unknown[0]}, but clients are {listed(range(clients))}")
    if len(set(targets)) < len(targets):
        raise InvalidRequest(f"targets names a client twice: {list(targets)}")
    if len(targets) == clients:
        raise InvalidRequest(f"targets names all {clients} clients: nobody would be left")


def _client_of(context: Context, clients: int) -> int:
    i = context.node_config.get(PARTITION)
    if not isinstance(i, int) or not 0 <= i < clients:
        raise ConfigError(f"{PARTITION} in the node config must be a client, 0 to {clients - 1}, got {i!r}")
    return i


def _only(records: Mapping[str, Any]) -> Any:
    """The one record of its kind in a reply."""
    return next(iter(records.values()))
