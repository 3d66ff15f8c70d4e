"""Methods that make a model forget: the papers' own in modules of their names, the others in `baselines`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fu_core import lazy

if TYPE_CHECKING:
    from fu_core.unlearning import (
        baselines,
        certified,
        curvature,
        fedora,
        gaussian_mechanism,
        hf_kcu,
        krylov,
        newton,
        puf,
    )

__all__ = ["baselines", "certified", "curvature", "fedora", "gaussian_mechanism", "hf_kcu", "krylov", "newton", "puf"]

__getattr__ = lazy.parts(__name__, __all__)
