"""A federation: who learns what, how, and how they exchange it. What stays the same from round to round.

The model itself, a vector w (d,) or one per peer (N, d), travels beside it:

    f = Federation(model, clients, ClientOpt(lr=0.1), seed=0)
    w = fedavg(f, model.init(0), rounds=20)
    w_r = fedavg(f.after(deletion), model.init(0), rounds=20)         retraining
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, UnsupportedTask
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel

if TYPE_CHECKING:
    from fu_core.federation.graphs import Peers
    from fu_core.request import Deletion

Clients = Mapping[int, Client]


@dataclass(frozen=True)
class Federation:
    """Everything a round needs beside the model's parameters.

    model: the net; clients: (x, y) each, by id, a sequence counts from 0; local: what a client does in a round; seed:
    of all random streams; exchange: a server's optimiser, or `Peers` who mix their models by themselves; meter: counts
    what is sent, computed and kept, shared by all federations derived from this one; how: the way all clients of a
    round are trained, see `together`.
    """

    model: FlatModel
    clients: Clients
    local: ClientOpt = field(default_factory=ClientOpt)
    seed: int = 0
    exchange: FedOpt | Peers = field(default_factory=FedOpt)
    meter: Meter = field(default_factory=Meter)
    how: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.clients, Sequence):
            object.__setattr__(self, "clients", dict(enumerate(self.clients)))
        if not self.clients:
            raise InvalidRequest("clients must name at least one client, got none")

    @property
    def ids(self) -> list[int]:
        """The clients, in order."""
        return sorted(self.clients)

    def sizes(self, ids: Sequence[int] | None = None) -> Tensor:
        """Samples per client (K,), float64, of `ids` in their order or of all."""
        return torch.tensor([len(self.clients[i][1]) for i in (self.ids if ids is None else ids)], dtype=torch.float64)

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
        """What is left once a request has been served: those who stay, with the samples they keep, linked anew."""
        exchange = self.exchange if isinstance(self.exchange, FedOpt) else self.exchange.without(deletion.leaving)
        return replace(self, clients=deletion.kept, exchange=exchange)
