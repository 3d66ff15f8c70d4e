"""Ascent: one step uphill on the forgotten data, of a given length. What is a direction worth beside its length?

    w_u = w + length |w| g / |g|,   g = grad l(w; D_u)

The control of any method that takes one step: as far as that one goes, with nothing but the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fu_core.errors import check_positive
from fu_core.federation.federation import Federation
from fu_core.request import Deletion
from fu_core.unlearning.curvature import weighted_gradient
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.ranges import Range

RANGES = {"length": Range(1e-3, 1e-1, "log")}  # a decade around HF-KCU's clip


@dataclass(frozen=True)
class Ascent:
    """length: of the step, beside that of the model; HF-KCU's clip has 0.01."""

    length: float = 0.01

    def __post_init__(self) -> None:
        check_positive("length", self.length)


def ascent(f: Federation, w: Tensor, deletion: Deletion, config: Ascent) -> Tensor:
    """The model (d,) after one step; `w` is left untouched. Deterministic.

    Whoever forgets gets the model and sends its gradient. A model that fits what is forgotten to the last bit has no
    direction to go, and stays.
    """
    parts = [(len(y) / deletion.m, (x, y)) for x, y in deletion.forgotten.values()]
    g = weighted_gradient(f.model, w, parts, count=f.meter.train)
    f.meter.send(w, down=len(parts), up=len(parts))
    size = float(g.norm())
    return w + config.length * w.norm() / size * g if size else w.clone()


@register("Ascent", paper="baseline", colour="#00876c", dash=":", parameters=Ascent, recovers=False, ranges=RANGES)
def serve(trained: Trained, deletion: Deletion, config: Ascent) -> Tensor:
    """The step from the trained model."""
    return ascent(trained.horizontal, trained.model, deletion, config)
