"""A federation: who learns what, how, and how they exchange it. What stays the same from round to round.

The model itself, a vector w (d,) or one per peer (N, d), travels beside it:

    f = Federation(model, clients, ClientOpt(lr=0.1), seed=0)
    w = fedavg(f, model.init(0), rounds=20)
    w_r = fedavg(f.after(deletion), model.init(0), rounds=20)         retraining
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, UnsupportedTask, check_choice, check_positive, check_share
from fu_core.federation.local import Client, ClientOpt, check_pair, round_half_up
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.streams import stream

if TYPE_CHECKING:
    from fu_core.federation.graphs import Peers
    from fu_core.request import Deletion

Clients = Mapping[int, Client]
WAYS = ("auto", "loop", "vmap", "dense")  # of training all clients of a round, see `together`
Trainer = Callable[["Federation", Tensor, int, list[int]], Tensor]  # f, w, round, ids -> updates, see `train_round`


@dataclass(frozen=True, init=False, eq=False)
class Federation:
    """Everything a round needs beside the model's parameters.

    model: the net; clients: (x, y) each, by id, a sequence counts from 0, class labels as int64 whatever they come as;
    local: what a client does in a round; seed:
    of all random streams; exchange: a server's optimiser, or `Peers` who mix their models by themselves; meter: counts
    what is sent, computed and kept, shared by all federations derived from this one; how: the way all clients of a
    round are trained, see `together`, or a `Trainer` that asks them where they are, see `elsewhere`; participation: the
    share of the clients that takes part in a server's round, see `taking_part`; peers always do.

    Raises `InvalidRequest` that names a client that is wrong, `ValueError` for another field that is.
    """

    model: FlatModel
    clients: Clients = field(repr=False)
    local: ClientOpt
    seed: int
    exchange: FedOpt | Peers
    meter: Meter
    how: str | Trainer
    participation: float

    def __init__(
        self,
        model: FlatModel,
        clients: Clients | Sequence[Client],
        local: ClientOpt | None = None,
        seed: int = 0,
        exchange: FedOpt | Peers | None = None,
        meter: Meter | None = None,
        how: str | Trainer = "auto",
        participation: float = 1.0,
    ) -> None:
        values = {
            "model": model,
            "clients": _by_id(clients, isinstance(model, FlatModel) and model.task == "classification"),
            "local": ClientOpt() if local is None else local,
            "seed": seed,
            "exchange": FedOpt() if exchange is None else exchange,
            "meter": Meter() if meter is None else meter,
            "how": how,
            "participation": participation,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # it is frozen from here on
        self._check()

    def _check(self) -> None:
        if not isinstance(self.model, FlatModel):
            raise ValueError(f"model must be a FlatModel, FlatModel(module) say, got {type(self.model).__name__}")
        if not isinstance(self.local, ClientOpt):
            raise ValueError(f"local must be a ClientOpt, got {self.local!r}")
        if not isinstance(self.exchange, FedOpt):
            from fu_core.federation.graphs import Peers  # needs networkx, which takes its time

            if not isinstance(self.exchange, Peers):
                raise ValueError(f"exchange must be a FedOpt, or Peers(graph), got {type(self.exchange).__name__}")
            if self.participation != 1:
                raise ValueError(f"participation must be 1 among peers, who all take part, got {self.participation!r}")
        if self.model.task == "segmentation" and self.local.augmentation != "none":
            raise UnsupportedTask(
                f"augmentation must be 'none' for segmentation, whose masks would stay where they are, got "
                f"{self.local.augmentation!r}"
            )
        if not callable(self.how):
            check_choice("how", self.how, WAYS)
        check_positive("participation", self.participation)
        check_share("participation", self.participation)

    @property
    def ids(self) -> list[int]:
        """The clients, in order."""
        return sorted(self.clients)

    def sizes(self, ids: Sequence[int] | None = None) -> Tensor:
        """Samples per client (K,), float64, of `ids` in their order or of all."""
        return torch.tensor([len(self.clients[i][1]) for i in (self.ids if ids is None else ids)], dtype=torch.float64)

    def taking_part(self, round: int) -> list[int]:
        """The clients that take part in `round`, in order: all, or `participation` of them, at least one.

        Random: every client draws a number from its stream (seed, "participation", round, id), and the m smallest take
        part. Hence nobody's draw depends on who else is there: without one client, those who take part are the same but
        for one at most, who takes its place or whose place is gone with it.
        """
        if self.participation == 1:
            return self.ids
        m = max(1, round_half_up(self.participation * len(self.ids)))
        drawn = {i: float(torch.rand((), generator=stream(self.seed, "participation", round, i))) for i in self.ids}
        return sorted(sorted(self.ids, key=drawn.__getitem__)[:m])

    @property
    def server(self) -> FedOpt:
        """The server's optimiser; raises `UnsupportedTask` where peers exchange by themselves."""
        if not isinstance(self.exchange, FedOpt):
            raise UnsupportedTask("exchange must be a server's (FedOpt) for this, but these clients are peers")
        return self.exchange

    @property
    def peers(self) -> Peers:
        """The graph of peers; raises `UnsupportedTask` where there is a server."""
        if isinstance(self.exchange, FedOpt):
            raise UnsupportedTask("exchange must be Peers for this, but these clients have a server")
        return self.exchange

    def having(self, **changes: object) -> Federation:
        """The same federation with other fields: `f.having(local=replace(f.local, epochs=2.0))`."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def after(self, deletion: Deletion) -> Federation:
        """What is left once a request has been served: those who stay, with the samples they keep, linked anew.

        Raises InvalidRequest for a deletion that was resolved for other clients or samples.
        """
        deletion.check_of(self.clients)
        if isinstance(self.exchange, FedOpt):
            return replace(self, clients=deletion.kept)
        gone = [i for i in self.ids if i not in deletion.kept]  # also those who never held a sample
        return replace(self, clients=deletion.kept, exchange=self.exchange.without(gone))


def _by_id(clients: Clients | Sequence[Client], classes: bool) -> Clients:
    if isinstance(clients, Sequence):
        clients = dict(enumerate(clients))
    if not isinstance(clients, Mapping):
        raise InvalidRequest(f"clients must be (x, y) by id, or a list of them, got {type(clients).__name__}")
    if not clients:
        raise InvalidRequest("clients must name at least one client, got none")
    narrow = []  # whose labels are of another type than losses take
    kind: torch.dtype | None = None
    for i, client in clients.items():
        check_pair(i, client)
        x, y = client
        if not (x.dim() and y.dim()):
            raise InvalidRequest(
                f"client {i} must hold samples in a row, got shapes {tuple(x.shape)} and {tuple(y.shape)}"
            )
        kind = kind or (x.dtype if x.is_floating_point() else None)
        if x.is_floating_point() and x.dtype != kind:  # raw bytes may stand beside them, for a net that takes both
            raise InvalidRequest(f"client {i} must hold samples of {kind}, as those before it do, got {x.dtype}")
        if len(x) != len(y):
            raise InvalidRequest(f"client {i} must hold as many samples in x as in y, got {len(x)} and {len(y)}")
        if y.dtype is not torch.int64 and classes and _are_labels(y):
            if y.is_floating_point() and not torch.equal(y, y.round()):
                raise InvalidRequest(f"client {i} must hold whole numbers as labels, got {float(y[y != y.round()][0])}")
            narrow.append(i)
    return {**clients, **{i: (clients[i][0], clients[i][1].long()) for i in narrow}} if narrow else clients


def _are_labels(y: Tensor) -> bool:
    """Whether y is one number per sample, and at hand: what is elsewhere is the business of who has it."""
    return y.dim() == 1 and y.device.type != "meta"
