"""fu_core: federated unlearning, four papers, one idea.

A model is a vector, a federation is a matrix, an unlearning method is a function between them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fu_core.version import __version__

if TYPE_CHECKING:
    from fu_core import evaluation, federation, partition, unlearning
    from fu_core.data import Dataset, load
    from fu_core.models import FlatModel

__all__ = ["Dataset", "FlatModel", "__version__", "evaluation", "federation", "load", "partition", "unlearning"]

# Loaded when first used: the runner that starts notebooks need not hold torch in memory as well.
_HOMES = {"Dataset": "fu_core.data", "load": "fu_core.data", "FlatModel": "fu_core.models"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"fu_core.{name}")
    raise AttributeError(f"module 'fu_core' has no attribute {name!r}")
