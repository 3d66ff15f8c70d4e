"""What the papers compare with, one file per method."""

from fu_core.unlearning.baselines import fed_eraser, naive_ga, natural, pdudt, retrain, sisa, weight_negation

__all__ = ["fed_eraser", "naive_ga", "natural", "pdudt", "retrain", "sisa", "weight_negation"]
