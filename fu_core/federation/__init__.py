"""Training by many parties: what a client does (`local`), what a server makes of it (`horizontal`), how
clients do without one (`decentralised`), and how parties with different features learn together (`vertical`) once they
know which samples they have in common (`alignment`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fu_core import lazy
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.federation.server import FedOpt

if TYPE_CHECKING:
    from fu_core.federation import alignment, decentralised, graphs, horizontal, local, many, server, together, vertical
    from fu_core.federation.decentralised import dpsgd
    from fu_core.federation.graphs import Peers
    from fu_core.federation.horizontal import fedavg, recovery_path
    from fu_core.federation.many import fedavg_many
    from fu_core.federation.vertical import VerticalFederation

__all__ = [
    "Client",
    "ClientOpt",
    "FedOpt",
    "Federation",
    "Meter",
    "Peers",
    "VerticalFederation",
    "alignment",
    "decentralised",
    "dpsgd",
    "fedavg",
    "fedavg_many",
    "graphs",
    "horizontal",
    "local",
    "many",
    "recovery_path",
    "server",
    "together",
    "vertical",
]
__getattr__ = lazy.parts(  # graphs need networkx, which takes its time
    __name__,
    ("alignment", "decentralised", "graphs", "horizontal", "local", "many", "server", "together", "vertical"),
    {
        "Peers": "fu_core.federation.graphs",
        "VerticalFederation": "fu_core.federation.vertical",
        "dpsgd": "fu_core.federation.decentralised",
        "fedavg": "fu_core.federation.horizontal",
        "fedavg_many": "fu_core.federation.many",
        "recovery_path": "fu_core.federation.horizontal",
    },
)
