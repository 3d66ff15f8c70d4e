"""Training by many parties: what a client does (`local`), what a server makes of it (`horizontal`), how
clients do without one (`decentralised`), and how parties with different features learn together (`vertical`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fu_core.federation.horizontal import FedOpt
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter

if TYPE_CHECKING:
    from fu_core.federation import decentralised, horizontal, local, vertical

__all__ = ["Client", "ClientOpt", "FedOpt", "Meter", "decentralised", "horizontal", "local", "vertical"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # the modules, when first used: graphs and torchvision take as long to import as torch itself
        return importlib.import_module(f"fu_core.federation.{name}")
    raise AttributeError(f"module 'fu_core.federation' has no attribute {name!r}")
