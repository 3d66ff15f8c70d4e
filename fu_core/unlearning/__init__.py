"""Methods that make a model forget: the papers' own in modules of their names, the others in `baselines`."""

from fu_core.unlearning import baselines, puf

__all__ = ["baselines", "puf"]
