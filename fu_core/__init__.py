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
    from fu_core.federation import ClientOpt, Federation, FedOpt, Peers, dpsgd, fedavg, recovery_path
    from fu_core.models import FlatModel, build
    from fu_core.request import Deletion, Request
    from fu_core.unlearning.method import Trained, methods, register, unlearn

__all__ = [
    "ClientOpt",
    "Dataset",
    "Deletion",
    "FedOpt",
    "Federation",
    "FlatModel",
    "Peers",
    "Request",
    "Trained",
    "__version__",
    "build",
    "dpsgd",
    "evaluation",
    "fedavg",
    "federation",
    "load",
    "methods",
    "partition",
    "recovery_path",
    "register",
    "unlearn",
    "unlearning",
]

# Whoever asks for a version, or imports one part, need not wait for torch and all the others.
__getattr__ = lazy.parts(
    __name__,
    ("evaluation", "federation", "partition", "unlearning"),
    {
        **dict.fromkeys(("Dataset", "load"), "fu_core.data"),
        **dict.fromkeys(
            ("ClientOpt", "FedOpt", "Federation", "Peers", "dpsgd", "fedavg", "recovery_path"), "fu_core.federation"
        ),
        **dict.fromkeys(("FlatModel", "build"), "fu_core.models"),
        **dict.fromkeys(("Deletion", "Request"), "fu_core.request"),
        **dict.fromkeys(("Trained", "methods", "register", "unlearn"), "fu_core.unlearning.method"),
    },
)
