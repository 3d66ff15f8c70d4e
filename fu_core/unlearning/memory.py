"""What must be kept while a model is trained, so that some method can make it forget later.

    memory = Memory(history=UpdateHistory(w_0))
    fedavg(f, w_0, rounds, on_updates=memory.record)

What is kept survives an interruption: `tensors` names everything for a file, `restore` takes it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, MissingHistory, UnsupportedTask, check_count, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.meter import nbytes
from fu_core.federation.server import aggregate


@dataclass
class UpdateHistory:
    """What FedEraser stores during training: `w_0` (d,) and the updates (d,) of rounds 1, 1 + interval, ...

    Hand `record` to `fedavg` as `on_updates`. Everything recorded is a copy.
    """

    w_0: Tensor
    interval: int = 1  # dt; the original paper: 2
    _updates: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_count("interval", self.interval)
        self.w_0 = self.w_0.detach().clone()

    def record(self, round: int, ids: Sequence[int], deltas: Tensor) -> None:
        """Store the updates (K, d) of the clients `ids`, if `round` is one to retain."""
        if (round - 1) % self.interval == 0:
            for k, delta in zip(ids, deltas, strict=True):
                self._updates[round, k] = delta.detach().clone()

    @property
    def rounds(self) -> list[int]:
        """The rounds retained, in order."""
        return sorted({t for t, _ in self._updates})

    def update(self, round: int, client: int) -> Tensor:
        """U_k^t (d,), new minus old, not to be overwritten; raises `MissingHistory` if it was not stored."""
        if (round, client) not in self._updates:
            stored = f"rounds {self.rounds[0]} to {self.rounds[-1]}" if self._updates else "nothing"
            raise MissingHistory(
                f"no stored update of client {client} in round {round}; the history holds {stored}, "
                f"interval {self.interval}"
            )
        return self._updates[round, client]

    @property
    def stored(self) -> list[Tensor]:
        """All stored updates, by round and client."""
        return [self._updates[key] for key in sorted(self._updates)]

    def tensors(self) -> dict[str, Tensor]:
        """The stored updates under "update/<round>/<client>", to be written to a file."""
        return {f"update/{t}/{k}": update for (t, k), update in self._updates.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave, read from a file: not copied again. Other names are left alone."""
        for name, update in tensors.items():
            if name.startswith("update/"):
                _, t, k = name.split("/")
                self._updates[int(t), int(k)] = update.to(self.w_0.device)

    @property
    def nbytes(self) -> int:
        """C R_ret P B: the bytes of the updates. `w_0` comes from its seed and is not counted."""
        return sum(nbytes(update) for update in self.stored)


@dataclass
class Memory:
    """What a server keeps of a training: stored updates (FedEraser), every client's last update (PGA), shards (SISA).

    history: None where nothing is stored; last_round: whose updates (d,) are kept in `last`, by client; shards: the
    model (d,) of each group of clients that was trained by itself, by their ids. Most methods need nothing of it.
    """

    history: UpdateHistory | None = None
    last_round: int = 0
    last: dict[int, Tensor] = field(default_factory=dict)
    shards: Mapping[tuple[int, ...], Tensor] = field(default_factory=dict)

    def record(self, round: int, ids: Sequence[int], deltas: Tensor) -> None:
        """See `fedavg`'s `on_updates`."""
        if self.history is not None:
            self.history.record(round, ids, deltas)
        if round == self.last_round:
            self.last = {k: delta.detach().clone() for k, delta in zip(ids, deltas, strict=True)}

    def tensors(self) -> dict[str, Tensor]:
        """Everything kept, by name, for a file."""
        last = {f"last/{k}": update for k, update in self.last.items()}
        shards = {f"shard/{'-'.join(map(str, ids))}": w for ids, w in self.shards.items()}
        return {**last, **shards, **(self.history.tensors() if self.history is not None else {})}

    def restore(self, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        """Take back what `tensors` gave; other names are left alone, as are stored updates without a `history`."""
        if self.history is not None:
            self.history.restore(tensors)
        self.last = {int(k): update.to(device) for k, update in _under("last/", tensors).items()}
        self.shards = {tuple(map(int, k.split("-"))): w.to(device) for k, w in _under("shard/", tensors).items()}

    def local_model(self, w: Tensor, sizes: Tensor, client: int) -> Tensor:
        """The client's own model (d,) of the last round, before `w` (d,) was averaged from all of them.

        sizes: samples (K,) of the clients in `last`, in their order. Raises `MissingHistory` if nothing was kept, as
        of a client that took no part, or if others took none: `w` is no average of all then.
        """
        if client not in self.last:
            raise MissingHistory(f"w_u: no stored local model of client {client} from the last round of training")
        if len(self.last) != len(sizes):
            took_part = f"{len(self.last)} of {len(sizes)} clients"
            raise MissingHistory(f"w_u: {took_part} took part in the last round of training")
        deltas = torch.stack([self.last[k] for k in sorted(self.last)])
        before = w - aggregate(deltas, sizes / sizes.sum())  # w_{T-1} = w_T - sum_k n_k / n Delta_k
        return before + self.last[client]


def check_averages(f: Federation, method: str) -> None:
    """Raise UnsupportedTask unless the server is plain averaging: else `w` is no mean of the models that were sent."""
    if not f.server.averages:
        raise UnsupportedTask(f"exchange must be a server that averages, FedOpt(), for {method}, got {f.server}")


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass
class PeerHistory:
    """The models X^s and gradients g^s, both (K, d), of every round, from `first_round` on.

    Hand `record` to `dpsgd` as `on_updates`. Everything recorded is a copy; the clients are those of the first
    record. gamma: the clients' learning rate in round 1, times `decay` every round after, as ClientOpt's lr and
    lr_decay. A decay that is not known here would pass for curvature.
    """

    gamma: float
    decay: float = 1.0
    first_round: int = 1
    ids: list[int] = field(default_factory=list, init=False)
    _models: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)
    _gradients: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_positive("gamma", self.gamma)
        check_positive("decay", self.decay)
        check_count("first_round", self.first_round)

    def record(self, round: int, ids: Sequence[int], W: Tensor, deltas: Tensor) -> None:
        """Store the models `W` before `round` and what the clients learnt at them, g = -deltas / gamma."""
        self.ids = self.ids or list(ids)
        if list(ids) != self.ids:
            raise InvalidRequest(f"round {round} has the clients {list(ids)}, but this history is of {self.ids}")
        self._models[round] = W.detach().clone()
        self._gradients[round] = deltas.detach() / -self.rate(round)

    def rate(self, round: int) -> float:
        """The learning rate of `round`."""
        return self.gamma * self.decay ** (round - 1)

    @property
    def rounds(self) -> list[int]:
        """The rounds stored, in order."""
        return sorted(self._models)

    def models(self, round: int) -> Tensor:
        """X^s (K, d) before `round`, not to be overwritten; raises `MissingHistory` if it was not stored."""
        return self._of(self._models, round)

    def gradients(self, round: int) -> Tensor:
        """g^s (K, d) of `round`, not to be overwritten; raises `MissingHistory` if it was not stored."""
        return self._of(self._gradients, round)

    def _of(self, stored: dict[int, Tensor], round: int) -> Tensor:
        if round not in stored:
            held = f"rounds {self.rounds[0]} to {self.rounds[-1]}" if stored else "nothing"
            raise MissingHistory(f"no stored models and gradients of round {round}; the history holds {held}")
        return stored[round]

    def tensors(self) -> dict[str, Tensor]:
        """What is stored, under "models/<t>", "gradients/<t>" and "ids", to be written to a file."""
        models = {f"models/{t}": X for t, X in self._models.items()}
        gradients = {f"gradients/{t}": g for t, g in self._gradients.items()}
        return {**models, **gradients, "ids": torch.tensor(self.ids, dtype=torch.long)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave, read from a file: not copied again. Other names are left alone."""
        for name, tensor in tensors.items():
            kind, _, t = name.partition("/")
            if name == "ids":
                self.ids = tensor.tolist()
            elif kind == "models":
                self._models[int(t)] = tensor
            elif kind == "gradients":
                self._gradients[int(t)] = tensor

    @property
    def stored(self) -> list[Tensor]:
        """All stored models and gradients."""
        return [*self._models.values(), *self._gradients.values()]

    @property
    def nbytes(self) -> int:
        """2 t_1 K d B: what this reconstruction keeps, at all clients together."""
        return sum(nbytes(tensor) for tensor in self.stored)

    def published_nbytes(self, neighbours: int) -> int:
        """t_1 N_c d B: the storage Wu et al. (Sec. IV-E) give for PDUDT, N_c the neighbours of the client leaving."""
        return sum(neighbours * nbytes(g[0]) for g in self._gradients.values())
