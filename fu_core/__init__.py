"""fu_core: federated unlearning, four papers, one idea.

A model is a vector, a federation is a matrix, an unlearning method is a function between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fu_core import lazy
from fu_core.version import __version__

if TYPE_CHECKING:
    from fu_core import evaluation, federation, partition, unlearning
    from fu_core.data import Dataset, load
    from fu_core.models import FlatModel

__all__ = ["Dataset", "FlatModel", "__version__", "evaluation", "federation", "load", "partition", "unlearning"]

# The runner that starts notebooks need not hold torch in memory as well.
__getattr__ = lazy.parts(
    __name__,
    ("evaluation", "federation", "partition", "unlearning"),
    {"Dataset": "fu_core.data", "load": "fu_core.data", "FlatModel": "fu_core.models"},
)
