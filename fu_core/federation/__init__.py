"""Training by many parties: what a client does (`local`), what a server makes of it (`horizontal`), how
clients do without one (`decentralised`), and how parties with different features learn together (`vertical`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fu_core import lazy
from fu_core.federation.horizontal import FedOpt
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter

if TYPE_CHECKING:
    from fu_core.federation import decentralised, horizontal, local, vertical

__all__ = ["Client", "ClientOpt", "FedOpt", "Meter", "decentralised", "horizontal", "local", "vertical"]
__getattr__ = lazy.parts(__name__, ("decentralised", "horizontal", "local", "vertical"))
