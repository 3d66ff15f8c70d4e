"""What the papers compare with, one file per method."""

from fu_core.unlearning.baselines import (
    cvfu,
    fed_eraser,
    ico,
    naive_ga,
    natural,
    pdudt,
    retrain,
    sisa,
    vertical_ga,
    weight_negation,
)

__all__ = [
    "cvfu",
    "fed_eraser",
    "ico",
    "naive_ga",
    "natural",
    "pdudt",
    "retrain",
    "sisa",
    "vertical_ga",
    "weight_negation",
]
