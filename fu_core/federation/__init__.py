"""Training by many parties: what a client does (`local`), what a server makes of it (`horizontal`), how
clients do without one (`decentralised`), and how parties with different features learn together (`vertical`)."""

from fu_core.federation import decentralised, horizontal, local, vertical
from fu_core.federation.horizontal import FedOpt
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter

__all__ = ["Client", "ClientOpt", "FedOpt", "Meter", "decentralised", "horizontal", "local", "vertical"]
