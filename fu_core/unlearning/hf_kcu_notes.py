"""What an HF-KCU step tells of itself, and what makes it implausible."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fu_core.federation.federation import Federation
from fu_core.unlearning.hf_kcu_options import HFKCU, has_minimiser
from fu_core.unlearning.krylov import Solution


@dataclass(frozen=True)
class Step:
    """An unlearning step (d,) and how it came about.

    solutions: one per solve; scale: line 17's factors; dampings: of the solves; shares: how much of each of Newton's
    steps was taken; stationarity: |grad L| over the length of what is solved for at a minimiser of L, m / (n - m)
    grad l_u, measured in the corrected form; left: length of what is left to solve for, over that at first, where it
    was looked at.
    """

    step: Tensor
    solutions: list[Solution] = field(repr=False)
    scale: list[float]
    dampings: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    stationarity: float | None = None
    left: float | None = None

    @property
    def negative_steps(self) -> int:
        """CG steps that met negative curvature, over all solves."""
        return sum(solution.negative_steps for solution in self.solutions)

    @property
    def cg_steps(self) -> int:
        """CG steps, over all solves."""
        return sum(len(solution.curvatures) for solution in self.solutions)

    @property
    def relative_residual(self) -> float:
        """The largest |r_k| / |g| over the solves; 0 if there was nothing to solve."""
        return max(
            (s.residual_norms[-1] / s.residual_norms[0] for s in self.solutions if s.residual_norms[0]), default=0.0
        )

    @property
    def clipped(self) -> bool:
        """Did line 17 shorten it?"""
        return min(self.scale, default=1.0) < 1

    def told(self, w: Tensor) -> dict[str, Any]:
        """All of it as numbers; `length` is the step's beside that of `w` (d,)."""
        size = float(w.double().norm())
        found: dict[str, Any] = {
            "residual": self.relative_residual,
            "negative": self.negative_steps,
            "cg_steps": self.cg_steps,
            "scale": min(self.scale, default=1.0),
            "clipped": self.clipped,
            "length": float(self.step.double().norm()) / size if size else math.inf,
            "steps": len(self.shares),
        }
        if self.dampings:
            found["damping"] = self.dampings[-1]
        for name in ("stationarity", "left"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        return found


def warn_of(found: Step, f: Federation, w: Tensor, config: HFKCU, moved: float | None = None) -> None:
    """Warn of what makes a step from `w` (d,) implausible. moved: how far training has moved the model, if known.

    Taking back a part of the data does not take a net farther than all of the data has.
    """
    if config.form == "corrected" and config.settled(f.model).gradient == "forgotten" and _no_minimiser(found):
        warnings.warn(
            f"the gradient of the whole loss is {found.stationarity:.2f} times as long as what is solved for: the "
            "model is no minimiser, and gradient='forgotten' says little; use 'centred' or 'retained'",
            stacklevel=3,
        )
    length, longest = float(found.step.norm()), float(w.norm()) if moved is None else moved
    if length > longest > 0 and not has_minimiser(f.model):
        than = "the model itself is" if moved is None else "training has moved the model"
        warnings.warn(
            f"the HF-KCU step is {length / longest:.2f} times as long as {than}; raise damping, or give held_out",
            stacklevel=3,
        )


def _no_minimiser(found: Step) -> bool:
    return found.stationarity is not None and found.stationarity > 1
