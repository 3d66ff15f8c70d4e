"""Has it forgotten, does it still work, what did it cost?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fu_core import lazy

if TYPE_CHECKING:
    from fu_core.evaluation import (
        accuracy,
        audit,
        backdoor,
        boundary,
        canaries,
        costs,
        equivalence,
        klom,
        lira,
        margins,
        membership,
        per_example_epsilon,
        relearn,
        release_audit,
        rmia,
    )

__all__ = [
    "accuracy",
    "audit",
    "backdoor",
    "boundary",
    "canaries",
    "costs",
    "equivalence",
    "klom",
    "lira",
    "margins",
    "membership",
    "per_example_epsilon",
    "relearn",
    "release_audit",
    "rmia",
]

__getattr__ = lazy.parts(__name__, __all__)
