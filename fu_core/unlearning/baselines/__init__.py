"""What the papers compare with, one file per method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fu_core import lazy

if TYPE_CHECKING:
    from fu_core.unlearning.baselines import (
        cvfu,
        fed_au,
        fed_eraser,
        ico,
        mode,
        naive_ga,
        natural,
        pdudt,
        pga,
        retrain,
        sisa,
        vertical_ga,
        weight_negation,
    )

__all__ = [
    "cvfu",
    "fed_au",
    "fed_eraser",
    "ico",
    "mode",
    "naive_ga",
    "natural",
    "pdudt",
    "pga",
    "retrain",
    "sisa",
    "vertical_ga",
    "weight_negation",
]

__getattr__ = lazy.parts(__name__, __all__)
