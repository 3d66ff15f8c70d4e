"""What the papers compare with, one file per method."""

from fu_core.unlearning.baselines import natural, retrain, weight_negation

__all__ = ["natural", "retrain", "weight_negation"]
