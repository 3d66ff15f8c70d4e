"""Training by many parties: what a client does (`local`) and what a server makes of it (`horizontal`)."""

from fu_core.federation import horizontal, local
from fu_core.federation.horizontal import FedOpt
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter

__all__ = ["Client", "ClientOpt", "FedOpt", "Meter", "horizontal", "local"]
