"""Conjugate gradient: solve (H + damping I) v = g with nothing but products H p (Hestenes and Stiefel).

    q_t = (H + damping I) p_t          alpha_t = r_t'r_t / p_t'q_t
    v_{t+1} = v_t + alpha_t p_t        r_{t+1} = r_t - alpha_t q_t
    beta_t = r_{t+1}'r_{t+1} / r_t'r_t     p_{t+1} = r_{t+1} + beta_t p_t

As HF-KCU's Algorithm 1 prints it (lines 6-14), with what it leaves out: a tolerance, the residuals, an end
at negative curvature, a preconditioner. `cg_iterates` is the algorithm; the others decide when to stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice
from fu_core.unlearning.curvature import Product

NEGATIVE = ("stop", "continue")


class Iterate(NamedTuple):
    """CG after t steps: the solution so far (d,), the residual (d,), and p'Ap / p'p of the step just made."""

    v: Tensor
    residual: Tensor
    curvature: float


def cg_iterates(
    product: Product,
    g: Tensor,
    *,
    damping: float = 0.0,
    preconditioner: Callable[[Tensor], Tensor] | None = None,
    negative: str = "stop",
    decay: float = 1.0,
) -> Iterator[Iterate]:
    """Conjugate gradient for (H + damping I) v = g from v = 0, one yield per step. HF-KCU, Alg. 1, lines 6-14.

    Ends when the residual vanishes to rounding, or at negative curvature, p'(H + damping I)p <= 0, where
    CG has no meaning; `negative="continue"` divides all the same, as Algorithm 1 does, unless by zero.
    `preconditioner(r)` approximates H^-1 r. With decay < 1 the residual is that of the undecayed solution.
    Deterministic. Raises NumericalFailure if g or a product is not finite, or r' preconditioner(r) < 0.
    """
    check_choice("negative", negative, NEGATIVE)
    v, r = torch.zeros_like(g), g.clone()  # v_0 = 0, r_0 = g
    z = r if preconditioner is None else preconditioner(r)
    p, rz = z.clone(), float(r.dot(z))  # p_0 = r_0
    rounding = torch.finfo(g.dtype).eps ** 2 * rz  # below it p and q are noise, and so is the sign of p'q
    t = 0
    while True:
        if not 0 <= rz < math.inf:
            raise NumericalFailure(
                f"CG step {t + 1}: the squared residual is {rz:g}, so the gradient or a product is not finite"
                + (" or the preconditioner is not positive definite" if preconditioner else "")
            )
        if rz <= rounding:
            return
        q = product(p) + damping * p  # q_t = HVP(p_t)
        pq, pp = float(p.dot(q)), float(p.dot(p))
        if not math.isfinite(pq):
            raise NumericalFailure(f"CG step {t + 1}: the curvature product is not finite")
        if pq == 0 or (pq < 0 and negative == "stop"):
            yield Iterate(v, r, pq / pp)
            return
        a = rz / pq  # alpha_t = r'r / p'q
        v = v + decay**t * a * p  # v_{t+1} = v_t + alpha_t p_t
        r = r - a * q  # r_{t+1} = r_t - alpha_t q_t
        yield Iterate(v, r, pq / pp)
        z = r if preconditioner is None else preconditioner(r)
        rz, rz_before = float(r.dot(z)), rz
        p = z + (rz / rz_before) * p  # p_{t+1} = r_{t+1} + beta_t p_t,  beta_t = r'r / r'r before
        t += 1


class Solution(NamedTuple):
    """What CG found: v (d,), residual norms |r_0|, |r_1|, ..., and p'Ap / p'p of every step."""

    v: Tensor
    residual_norms: list[float]
    curvatures: list[float]

    @property
    def negative_steps(self) -> int:
        """Steps that met negative curvature."""
        return sum(c <= 0 for c in self.curvatures)


def solve(product: Product, g: Tensor, *, iters: int, damping: float, tol: float, **how: Any) -> Solution:
    """At most `iters` steps of `cg_iterates`, or until |r| <= tol |g|.

    Raises NumericalFailure if the very first direction has negative curvature: there is no solution to
    report then. Later it ends with what was found before. Zero curvature ends it even where negative
    curvature may not.
    """
    v, norms, curvatures = torch.zeros_like(g), [float(g.norm())], []
    stop_at_negative = how.get("negative", "stop") == "stop"
    for step in cg_iterates(product, g, damping=damping, **how):
        curvatures.append(step.curvature)
        if step.curvature == 0 or (step.curvature < 0 and stop_at_negative):
            if len(curvatures) == 1:
                raise NumericalFailure(
                    f"CG step 1: curvature {step.curvature:.3g} along the gradient is not positive; "
                    f"raise damping (now {damping:g}) or use matrix='ggn'"
                )
            break
        v = step.v
        norms.append(float(step.residual.norm()))
        if norms[-1] <= tol * norms[0] or len(norms) > iters:
            break
    return Solution(v, norms, curvatures)
