"""Methods that make a model forget: the papers' own in modules of their names, the others in `baselines`."""

from fu_core.unlearning import baselines, curvature, hf_kcu, krylov, puf

__all__ = ["baselines", "curvature", "hf_kcu", "krylov", "puf"]
