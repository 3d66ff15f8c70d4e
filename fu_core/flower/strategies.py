"""Strategies of Flower's that forget: FedAvg with one server round in which a registered method is served."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from torch import Tensor

from fu_core.errors import InvalidRequest, MissingHistory, UnsupportedTask, check_count, check_positive, listed
from fu_core.federation.elsewhere import as_server, departure
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, visits
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt
from fu_core.flower.messages import LOCAL, LOSS, LOSSES, ROUND, like, the_only, to_arrays, to_vector
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained, Unlearned, method, unlearn


class Departure(FedAvg):
    """FedAvg from which clients are left out from a round on: what every unlearning strategy shares.

    leaving: the index in `nodes` of every client that leaves, by its node. Raises `InvalidRequest` for nodes that are
    no numbers or there twice, for wrong targets and rounds, and if it is started for fewer rounds than it unlearns in.
    """

    def __init__(self, nodes: Sequence[int], targets: Sequence[int], unlearning_round: int, **fedavg: Any) -> None:
        super().__init__(**fedavg)
        _check_nodes(nodes)
        check_count("unlearning_round", unlearning_round, error=InvalidRequest)
        if targets:
            _check_targets(targets, len(nodes))
            self._check_enough_stay(len(nodes) - len(targets))
        self.unlearning_round = unlearning_round
        self.leaving = {nodes[j]: j for j in sorted(targets)}  # node -> client

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *others: Any, **more: Any) -> Result:
        """As Flower's; InvalidRequest for rounds that end before anybody is forgotten."""
        if self.leaving and num_rounds < self.unlearning_round:
            raise InvalidRequest(
                f"num_rounds must be >= unlearning_round = {self.unlearning_round}, or nobody is forgotten, "
                f"got {num_rounds}"
            )
        return super().start(grid, initial_arrays, num_rounds, *others, **more)

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
        if not isinstance(f, Federation):
            raise InvalidRequest(f"f must be the Federation that the server knows, got {type(f).__name__}")
        if not (parameters is None or isinstance(parameters, Mapping)):
            raise InvalidRequest(f"parameters must be the method's, by name, got {parameters!r:.60}")
        _check_nodes(nodes)
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
            return like(self._sent, self.unlearned.model, self.f.model.names), None
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
            deltas[row] = to_vector(the_only(content.array_records), f.model.names) - starts[row]  # Delta_i = w_i - w
            _, sizes = visits(len(f.clients[i][1]), f.local, seed=f.seed, round=round, client=i)
            f.meter.train(sum(sizes))
        return deltas

    def _answer_of(self, i: int, reply: Message | None, round: int) -> RecordDict:
        """What client `i` sent, who must have answered, with as many samples as the server counts on."""
        if reply is None or reply.has_error():
            reason = "no reply" if reply is None else reply.error.reason
            raise InvalidRequest(f"client {i} (node {self.node_of[i]}) sent no update in round {round}: {reason}")
        n, told = len(self.f.clients[i][1]), the_only(reply.content.metric_records)[self.weighted_by_key]
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
        sent = {client_of[r.metadata.src_node_id]: to_vector(the_only(r.content.array_records), names) for r in replies}
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


class _Without:
    """A grid some of whose nodes have left, for `sample_nodes`, which asks again until enough are connected."""

    def __init__(self, grid: Grid, gone: Container[int]) -> None:
        self.grid, self.gone = grid, gone

    def get_node_ids(self) -> list[int]:
        return [node for node in self.grid.get_node_ids() if node not in self.gone]


def _net(model: FlatModel) -> tuple[Any, ...]:
    """What two models have in common that can train the same clients."""
    return model.names, model.shapes, model.task, model.l2


def _check_nodes(nodes: Sequence[int]) -> None:
    """Two clients with one node would share its updates."""
    if not isinstance(nodes, Sequence) or not all(isinstance(node, Integral) for node in nodes):
        raise InvalidRequest(f"nodes must list the clients' Flower nodes, whole numbers, got {nodes!r:.60}")
    if twice := [node for node in nodes if nodes.count(node) > 1]:
        raise InvalidRequest(f"nodes must list every node once, got {twice[0]} twice")


def _check_targets(targets: Sequence[int], clients: int) -> None:
    if not all(isinstance(j, Integral) for j in targets):
        raise InvalidRequest(f"targets must list the clients that leave by their numbers, got {targets!r:.60}")
    if unknown := sorted(set(targets) - set(range(clients))):
        raise InvalidRequest(f"targets names client {unknown[0]}, but clients are {listed(range(clients))}")
    if len(set(targets)) < len(targets):
        raise InvalidRequest(f"targets names a client twice: {list(targets)}")
    if len(targets) == clients:
        raise InvalidRequest(f"targets names all {clients} clients: nobody would be left")
