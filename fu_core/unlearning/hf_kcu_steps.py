"""HF-KCU's steps: how a curvature system is solved, how far a solution is trusted, and how steps follow each other.

    w <- w + (A + damping I)^-1 (target - grad L_r(w))        A: the curvature of `parts`, weighted clients' samples

The right side of the first step is `hf_kcu`'s, and so is what becomes of all steps together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.request import Deletion
from fu_core.unlearning.curvature import Part, Product, curvature_product, fisher_diagonal, sampled
from fu_core.unlearning.hf_kcu_options import HFKCU, decided
from fu_core.unlearning.kfac import kfac_inverse, kronecker_factors, numbers
from fu_core.unlearning.krylov import Krylov, Solution, krylov_space, solve, solve_together
from fu_core.unlearning.newton import halved, retained_shares
from fu_core.unlearning.trust import gain_damping, held_out_damping


@dataclass
class Walk:
    """Newton's steps together (d,), and what each was: solution, damping, share taken; |g| at the end over |g_0|."""

    moved: Tensor
    solutions: list[Solution]
    dampings: list[float]
    shares: list[float]
    left: float | None


def newtons_walk(
    f: Federation, w: Tensor, g: Tensor, deletion: Deletion, weights: Mapping[int, float], config: HFKCU
) -> Walk:
    """Newton's steps from `w` towards grad L_r = target, where g (d,) = target - grad L_r(w)."""
    if config.curvature == "retained":
        parts = [(weights[i], i, client) for i, client in deletion.kept.items()]
    else:
        parts = everybodys(deletion)
    steps, until = decided(config.steps), config.until
    if until is None:
        until = math.sqrt(torch.finfo(w.dtype).eps)

    def downhill_of(point: Tensor) -> Tensor:
        shares = retained_shares(f.model, point, deletion.kept, weights, count=f.meter.train)
        return torch.stack(list(shares.values())).sum(dim=0)

    def downhill_at(point: Tensor) -> Tensor:
        f.meter.send(w, down=len(deletion.kept), up=len(deletion.kept))
        return target + downhill_of(point)

    target = torch.zeros_like(g)
    if steps > 1 and config.gradient != "retained":
        f.meter.send(w, up=len(deletion.kept))
        target = g - downhill_of(w)
    walk, here, first = Walk(torch.zeros_like(w), [], [], [], None), w, float(g.norm())
    for t in range(1, int(steps) + 1):
        if config.damping is not None:
            solution, damping = solved(f, here, parts, g, config, exchanged=True), config.damping
        else:
            solution, damping = _trusted(f, here, parts, g, deletion, config, last=t == steps)
        walk.solutions.append(solution)
        walk.dampings.append(damping)
        if steps == 1 or (t == steps and config.held_out is not None):  # nobody looks at where it leads
            here, share = here + solution.v, 1.0
        else:
            here, g, share = halved(here, solution.v, g, downhill_at)
            walk.left = float(g.norm()) / first if first else 0.0
        walk.shares.append(share)
        if (walk.left is not None and walk.left <= until) or not share or math.isinf(damping):
            break
    walk.moved = here - w
    return walk


def everybodys(deletion: Deletion) -> list[Part]:
    """All samples, those to be forgotten with them: whose curvature is L's."""
    return [(len(client[1]) / deletion.n, i, client) for i, client in deletion.holders.items()]


def _trusted(
    f: Federation, w: Tensor, parts: Sequence[Part], g: Tensor, deletion: Deletion, config: HFKCU, *, last: bool
) -> tuple[Solution, float]:
    """A step whose damping is chosen, and that damping: see `trust`. Where there are steps to come, held-out samples
    only stop it; the last one, or the only one, goes as far as they say."""
    data = sampled(parts, config.curvature_samples, seed=f.seed)
    space = krylov_space(_product(f, w, parts, data, config, exchanged=True), g, iters=int(decided(config.iters)))
    least = space.least_damping(decided(config.tol))
    damping = least
    if config.held_out is None or not last:
        others = sampled(parts, config.curvature_samples, seed=f.seed, purpose="gain")
        damping = gain_damping(space, f.model, w, others, least=least, gain=config.gain, count=f.meter.train).damping
    if config.held_out is not None:
        f.meter.send(w, down=len(space.basis) * len(deletion.targets))  # its directions; k numbers per try do the rest
        matched = held_out_damping(
            space, f.model, w, deletion.forget, config.held_out, least=least, count=f.meter.train
        )
        damping = max(damping, matched)
    if math.isinf(damping):
        return Solution(torch.zeros_like(g), [space.length, 0.0], []), damping
    found = space.solved(damping)
    return _as_solution(space, found.v, found.residual, damping), damping


def _as_solution(space: Krylov, v: Tensor, residual: float, damping: float) -> Solution:
    curvatures = (torch.linalg.eigvalsh(space.tridiagonal) + damping).tolist() if len(space.basis) else []
    return Solution(v, [space.length, residual * space.length], curvatures)


def _product(
    f: Federation,
    w: Tensor,
    parts: Sequence[Part],
    data: Sequence[tuple[float, Client]],
    config: HFKCU,
    *,
    exchanged: bool,
) -> Product:
    """Curvature times a vector. `exchanged`: each product costs a vector to and from every part's client."""
    passes = curvature_product(
        f.model, w, data, matrix=str(config.matrix), batch_size=config.batch_size, count=f.meter.differentiate
    )

    def product(v: Tensor) -> Tensor:
        if exchanged:
            f.meter.send(v, down=len(parts), up=len(parts))
        return passes(v)

    return product


def solved(
    f: Federation,
    w: Tensor,
    parts: Sequence[Part],
    g: Tensor,
    config: HFKCU,
    *,
    exchanged: bool,
    negative: str = "stop",
) -> Solution:
    """CG with the curvature of `parts` and damping that is given."""
    data, damping = sampled(parts, config.curvature_samples, seed=f.seed), decided(config.damping)
    precondition: Callable[[Tensor], Any] | None = None
    if config.preconditioner == "jacobi":
        diagonal = fisher_diagonal(f.model, w, data, count=f.meter.train) + damping
        f.meter.send(w, up=len(parts) if exchanged else 0)
        precondition = diagonal.clamp(min=float(diagonal.max()) * 1e-6).reciprocal().mul
    if config.preconditioner == "kfac":
        factors = kronecker_factors(f.model, w, data, batch_size=config.batch_size, count=f.meter.train)
        f.meter.send(w.new_empty(numbers(factors)), up=len(parts) if exchanged else 0)
        precondition = kfac_inverse(f.model, factors, damping=damping + f.model.l2)
    return solve(
        _product(f, w, parts, data, config, exchanged=exchanged),
        g,
        iters=int(decided(config.iters)),
        damping=damping,
        tol=decided(config.tol),
        preconditioner=precondition,
        negative=negative,
        decay=config.decay,
    )


def solved_together(f: Federation, w: Tensor, parts: Sequence[Part], G: Tensor, config: HFKCU) -> list[Solution]:
    """`solved` for every row of G (k, d), with the clients' products for all rows at once."""
    data = sampled(parts, config.curvature_samples, seed=f.seed)
    return solve_together(
        _product(f, w, parts, data, config, exchanged=True),
        G,
        iters=int(decided(config.iters)),
        damping=decided(config.damping),
        tol=decided(config.tol),
    )


def clip(w: Tensor, raw: Tensor, beta: float) -> float:
    """min(1, beta |w| / |raw|): line 17, Eq. (21)."""
    length = float(raw.norm())
    return min(1.0, beta * float(w.norm()) / length) if length else 1.0
