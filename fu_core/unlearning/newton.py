"""Solving curvature systems A v = g, four ways: what they need, what they keep, and what they are worth.

    hessian, ggn      a dense matrix up to `dense_up_to` parameters, conjugate gradient beyond it: exact
    fisher            mean of g_i g_i' over samples, by Woodbury's identity: rank at most n, so it needs damping
    diagonal_fisher   mean of g_i^2: O(d), what "Fisher" must mean where storage is O(d)

A is a weighted sum over clients' samples, each client's part taken at the model it holds. Certified DFL,
Sec. IV-B to IV-D. Whoever repeats such steps, DU or HF-KCU, needs the gradient of what is retained again after each,
and a step that is halved until it helps: both are here, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.unlearning.curvature import curvature_product, dense_curvature, fisher_diagonal, mean_gradient
from fu_core.unlearning.krylov import solve

CURVATURES = ("hessian", "ggn", "fisher", "diagonal_fisher")
Group = tuple[Tensor, Sequence[tuple[float, Client]]]  # where the curvature is taken (d,), of what: weights, samples
Solve = Callable[[Tensor], Tensor]  # g (d,) -> A^-1 g (d,)
SHORTEST = 2**-10  # of a step: where nothing is gained by so short a one, there is nothing to be gained


@dataclass(frozen=True)
class Newton:
    """Which curvature to solve with, and how.

    The Fisher variants use the data term's gradients and add l2, as the Hessian does; `loss_fisher` uses the
    gradients of the regularised loss and adds nothing, as Eq. (7) reads. Conjugate gradient, beyond `dense_up_to`
    parameters, stops at the relative residual `tol` or after `iters` steps.
    """

    curvature: str = "hessian"
    damping: float = 0.0
    loss_fisher: bool = False
    dense_up_to: int = 5000
    iters: int = 200
    tol: float = 1e-10

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, CURVATURES)


def newton_solver(
    model: FlatModel,
    groups: Sequence[Group],
    how: Newton,
    *,
    on_product: Callable[[int], None] | None = None,
    meter: Meter | None = None,
) -> Solve:
    """A function that solves `(sum_k weight_k A_k(w_k) + damping I) v = g`, with A_k and damping as `how` says.

    `on_product(vectors)` hears how many vectors (d,) each client has to share for the others to know A: one per
    product of CG, d for a matrix, its gradients, or one diagonal. Deterministic.

    The solver raises NumericalFailure for a singular matrix, and names damping; CG, which never sees a matrix, ends at
    the residual that the numbers of g can tell from 0, with the shortest solution if there are several. Of negative
    curvature it warns: then v leads to a saddle, or CG has ended before it met more of it.
    """
    meter = meter or Meter()
    share = on_product or (lambda vectors: None)
    if how.curvature == "fisher":
        share(max(len(y) for _, parts in groups for _, (_, y) in parts))
        return _woodbury(model, groups, how.damping, how.loss_fisher, meter)
    if how.curvature == "diagonal_fisher":
        share(1)
        return _diagonal(model, groups, how.damping, how.loss_fisher, meter)
    if model.d <= how.dense_up_to:
        share(model.d)
        return _dense(model, groups, how.curvature, how.damping, meter)
    products = [
        curvature_product(model, w, parts, matrix=how.curvature, batch_size=512, count=meter.differentiate)
        for w, parts in groups
    ]

    def product(v: Tensor) -> Tensor:
        share(1)
        return torch.stack([one(v) for one in products]).sum(dim=0)

    def by_cg(g: Tensor) -> Tensor:
        least = 10 * torch.finfo(g.dtype).eps  # below it a singular system's rounding is all that is left to solve
        found = solve(product, g, iters=how.iters, damping=how.damping, tol=max(how.tol, least))
        if found.negative_steps:
            _warn_of_negative(f"after {len(found.curvatures) - 1} steps of conjugate gradient", how.damping)
        return found.v

    return by_cg


def retained_shares(
    model: FlatModel,
    w: Tensor,
    kept: Mapping[int, Client],
    weights: Mapping[int, float],
    *,
    count: Callable[[int], None] | None = None,
) -> dict[int, Tensor]:
    """Every staying client's part of -grad f_r(w) = -sum_i a_i grad f_i(w): -a_i times its gradient (d,), by client."""
    return {i: -weights[i] * mean_gradient(model, w, data, count=count) for i, data in kept.items()}


def halved(
    x: Tensor, p: Tensor, downhill: Tensor, downhill_at: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, float]:
    """x + t p with the negative gradient there, and t: 1, halved until it is shorter than at x; 0 if it never is.

    downhill (d,): the negative gradient at x. A Newton step is a direction in which |grad|^2 falls, at the rate 2,
    wherever the curvature is the function's own.
    """
    share = 1.0
    while share >= SHORTEST:
        there = x + share * p
        found = downhill_at(there)
        if bool(found.isfinite().all()) and float(found.norm()) < float(downhill.norm()):
            return there, found, share
        share /= 2
    return x, downhill, 0.0


def _dense(model: FlatModel, groups: Sequence[Group], curvature: str, damping: float, meter: Meter) -> Solve:
    total = torch.zeros((model.d, model.d), dtype=groups[0][0].dtype, device=groups[0][0].device)
    for w, parts in groups:
        total += dense_curvature(model, w, parts, matrix=curvature, count=meter.differentiate)
    total.diagonal().add_(damping)
    meter.keep("curvature", total)

    return _by_factors(total, damping)


def _woodbury(model: FlatModel, groups: Sequence[Group], damping: float, loss_fisher: bool, meter: Meter) -> Solve:
    """(kappa I + G'G)^-1 g = (g - G'(kappa I + GG')^-1 G g) / kappa, with rows of G (n, d) the weighted gradients."""
    weighted = [(w, weight, data) for w, parts in groups for weight, data in parts]
    kappa = damping + (0.0 if loss_fisher else model.l2 * sum(weight for _, weight, _ in weighted))
    rows = []
    for w, weight, (x, y) in weighted:
        gradients = model.per_sample_grads(w, model.arrange(x), y)
        rows.append((weight / len(y)) ** 0.5 * (gradients if loss_fisher else gradients - model.l2 * w))
        meter.train(len(y))
    G = torch.cat(rows).double()  # (n, d)
    meter.keep("curvature", G)
    if kappa <= 0:
        if len(G) < model.d:
            raise NumericalFailure(
                f"the Fisher matrix of {len(G)} samples has rank {len(G)} at most and {model.d} rows, so it has no "
                f"inverse: damping must be > 0, got {damping:g}"
            )
        rounded = torch.finfo(weighted[0][0].dtype).eps  # of what G is made of; of its square that is the square
        exact = _by_factors(G.T @ G, damping, noise=model.d * rounded**2)
        return lambda g: exact(g.double()).to(g.dtype)
    gram = G @ G.T
    gram.diagonal().add_(kappa)

    def by_identity(g: Tensor) -> Tensor:
        inner = torch.linalg.solve_ex(gram, G @ g.double())[0]
        return _finite((g.double() - G.T @ inner) / kappa, damping).to(g.dtype)

    return by_identity


def _diagonal(model: FlatModel, groups: Sequence[Group], damping: float, loss_fisher: bool, meter: Meter) -> Solve:
    diagonals = [fisher_diagonal(model, w, parts, of_loss=loss_fisher, count=meter.train) for w, parts in groups]
    diagonal = torch.stack(diagonals).sum(dim=0) + damping
    meter.keep("curvature", diagonal)
    if float(diagonal.min()) <= 0:
        raise NumericalFailure(
            f"a diagonal Fisher entry is 0 (no sample moves that parameter): damping must be > 0, got {damping:g}"
        )
    return lambda g: g / diagonal


def _by_factors(matrix: Tensor, damping: float, noise: float = 0.0) -> Solve:
    """A^-1 by factors of the symmetric A (d, d), which serve every g. noise: of A, relative to its largest pivot."""
    noise = max(noise, len(matrix) ** 0.5 * torch.finfo(matrix.dtype).eps)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    pivots = factor.diagonal() ** 2
    if not int(failed) and float(pivots.min()) > noise * float(pivots.max()):
        return lambda g: _finite(torch.cholesky_solve(g[:, None], factor)[:, 0], damping)
    values = torch.linalg.eigvalsh(_finite(matrix, damping))
    if float(values.abs().min()) <= noise * float(values.abs().max()):
        raise NumericalFailure(f"the curvature matrix is singular: raise damping (now {damping:g})")
    _warn_of_negative(f"along {int((values < 0).sum())} of {len(values)} eigenvectors", damping)
    return lambda g: _finite(torch.linalg.solve_ex(matrix, g)[0], damping)


def _warn_of_negative(where: str, damping: float) -> None:
    warnings.warn(
        f"the curvature is negative {where}: a Newton step then leads to a saddle, or is none; "
        f"use curvature='ggn', or raise damping (now {damping:g})",
        stacklevel=2,
    )


def _finite(v: Tensor, damping: float) -> Tensor:
    if not bool(v.isfinite().all()):
        raise NumericalFailure(f"the curvature matrix is singular: raise damping (now {damping:g})")
    return v
