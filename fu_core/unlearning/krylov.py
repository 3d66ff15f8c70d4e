"""Conjugate gradient: solve (H + damping I) v = g with nothing but products H p (Hestenes and Stiefel).

    q_t = (H + damping I) p_t          alpha_t = r_t'r_t / p_t'q_t
    v_{t+1} = v_t + alpha_t p_t        r_{t+1} = r_t - alpha_t q_t
    beta_t = r_{t+1}'r_{t+1} / r_t'r_t     p_{t+1} = r_{t+1} + beta_t p_t

As HF-KCU's Algorithm 1 prints it (lines 6-14), with what it leaves out: a tolerance, the residuals, an end
at negative curvature, a preconditioner. `cg_iterates` is the algorithm; `solve` decides when to stop.

The space that k steps span, of g, H g, ..., H^(k-1) g, is the same for every damping. `krylov_space` keeps it, and
what CG would find after k steps with any damping costs no further product (Lanczos; Gould et al. 1999):

    H Q' = Q' T + beta_k q_{k+1} e_k'          Q (k, d) orthonormal rows, q_1 = g / |g|; T (k, k) tridiagonal
    v(damping) = |g| Q' (T + damping I)^-1 e_1

Several right sides of one matrix are solved together (`solve_together`): each looks for its solution in all of their
spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice, check_count
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


def solve_together(product: Product, G: Tensor, *, iters: int, damping: float, tol: float) -> list[Solution]:
    """(H + damping I) v = g for every row g of G (k, d): block CG (O'Leary 1980), as Dubrulle (2001) keeps it stable.

    `product` takes rows, (k, d) -> (k, d), once per step. At most `iters` steps, or until |r| <= tol |g| for all rows.
    After t steps no solution is farther from the true one, in the matrix's own norm, than CG's by itself after t.
    A step's curvature is the lowest among its k directions. Deterministic. Raises NumericalFailure as `solve`.
    """
    check_count("iters", iters)
    if G.dim() != 2:
        raise ValueError(f"G must be right sides as rows (k, d), got {tuple(G.shape)}")
    if not bool(G.isfinite().all()):
        raise NumericalFailure("a right side is not finite")
    X, norms = torch.zeros_like(G), [G.norm(dim=1)]
    Q, C = _orthonormal(G)  # R = C Q: residuals (k, d), as k orthonormal rows and what each residual has of them
    S = Q  # directions (k, d)
    curvatures: list[float] = []
    enough = max(tol, torch.finfo(G.dtype).eps) * norms[0]
    while len(curvatures) < iters and not bool((norms[-1] <= enough).all()):
        AS = product(S) + damping * S
        M = (S @ AS.T).double()  # S A S' (k, k)
        if not bool(M.isfinite().all()):
            raise NumericalFailure(f"CG step {len(curvatures) + 1}: the curvature product is not finite")
        curvatures.append(_lowest((M + M.T) / 2, S))
        if curvatures[-1] <= 0:
            if len(curvatures) == 1:
                raise NumericalFailure(
                    f"CG step 1: curvature {curvatures[0]:.3g} among the gradients is not positive; "
                    f"raise damping (now {damping:g}) or use matrix='ggn'"
                )
            break
        theta = torch.linalg.inv(M).to(G.dtype)
        X = X + C @ theta @ S
        Q, Z = _orthonormal(Q - theta @ AS)
        S, C = Q + Z.T @ S, C @ Z
        norms.append(C.norm(dim=1))
    each = torch.stack(norms, dim=1).tolist()  # (k, t + 1)
    return [Solution(v, row, list(curvatures)) for v, row in zip(X, each, strict=True)]


def _lowest(M: Tensor, S: Tensor) -> float:
    """The smallest p'Ap / p'p of all p that the rows of S span, with M = S A S'."""
    root = torch.linalg.inv(torch.linalg.cholesky((S @ S.T).double()))
    return float(torch.linalg.eigvalsh(root @ M @ root.T)[0])


def _orthonormal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows Q (k, d) and C (k, k) with C Q = rows."""
    Q, upper = torch.linalg.qr(rows.T)
    return Q.T.contiguous(), upper.T


class Damped(NamedTuple):
    """A damped solution v (d,) from a Krylov space, and how good it is.

    residual: |g - (A + damping I) v| / |g|; promised: g'v - v'Av / 2, by which the quadratic model falls, undamped.
    """

    v: Tensor
    damping: float
    residual: float
    promised: float


class Krylov(NamedTuple):
    """The space of k products with A from g: `basis` Q (k, d), `tridiagonal` T (k, k) in float64, |g|, and beta_k.

    leak: beta_k, how far A leads out of the space; 0 where the space is all that there is.
    """

    basis: Tensor
    tridiagonal: Tensor
    length: float
    leak: float

    @property
    def lowest(self) -> float:
        """The smallest curvature that the space has seen; negative where A is indefinite."""
        return float(torch.linalg.eigvalsh(self.tridiagonal)[0]) if len(self.basis) else 0.0

    @property
    def highest(self) -> float:
        """The largest one."""
        return float(torch.linalg.eigvalsh(self.tridiagonal)[-1]) if len(self.basis) else 0.0

    def solved(self, damping: float) -> Damped:
        """What k steps of CG find for (A + damping I) v = g. Raises NumericalFailure where that is not positive."""
        if not len(self.basis):  # g is zero
            return Damped(self.basis.new_zeros(self.basis.shape[1]), damping, 0.0, 0.0)
        if self.lowest + damping <= 0:
            raise NumericalFailure(
                f"curvature {self.lowest:.3g} along the gradient's Krylov space is not positive; "
                f"raise damping (now {damping:g}) or use matrix='ggn'"
            )
        T, start = self.tridiagonal, torch.zeros(len(self.basis), dtype=torch.float64)
        start[0] = self.length
        y = torch.linalg.solve(T + damping * torch.eye(len(T), dtype=torch.float64), start)
        v = y.to(self.basis.device, self.basis.dtype) @ self.basis
        promised = float(start.dot(y) - y.dot(T @ y) / 2)
        return Damped(v, damping, self.leak * abs(float(y[-1])) / self.length, promised)

    def least_damping(self, tol: float) -> float:
        """The smallest damping, to a few percent, at which the residual is at most `tol`; 0 if that is enough.

        The residual falls as damping grows: |y_k| = |g| beta_1 ... beta_{k-1} / det(T + damping I).
        """
        floor = max(0.0, -1.01 * self.lowest)
        if not len(self.basis) or (not floor and self.lowest > 0 and self.solved(0.0).residual <= tol):
            return 0.0
        enough = max(self.highest, -self.lowest, torch.finfo(torch.float64).tiny)
        while self.solved(floor + enough).residual > tol:
            enough *= 2
        too_little = 0.0
        while enough - too_little > 0.02 * enough:
            middle = (too_little + enough) / 2
            solved = self.lowest + floor + middle > 0 and self.solved(floor + middle).residual <= tol
            too_little, enough = (too_little, middle) if solved else (middle, enough)
        return floor + enough


def krylov_space(product: Product, g: Tensor, *, iters: int) -> Krylov:
    """At most `iters` products with A from g (d,): the space in which CG looks for its solutions. Deterministic.

    Every new direction is made orthogonal to all before it, twice: with k directions of (d,) kept there is no reason to
    trust the three-term recurrence, which forgets them. Ends early where A leads nowhere new. Raises NumericalFailure
    for a gradient or a product that is not finite.
    """
    check_count("iters", iters)
    length = float(g.norm())
    if not math.isfinite(length):
        raise NumericalFailure("the gradient is not finite")
    directions: list[Tensor] = [g / length] if length else []
    alphas: list[float] = []
    betas: list[float] = []
    while directions and len(alphas) < iters:
        q = directions[-1]
        after = product(q)
        if not bool(after.isfinite().all()):
            raise NumericalFailure(f"product {len(alphas) + 1}: the curvature product is not finite")
        alphas.append(float(after.dot(q)))
        size = float(after.norm())
        for _ in range(2):
            Q = torch.stack(directions)
            after = after - (Q @ after) @ Q
        betas.append(float(after.norm()))
        if betas[-1] <= 100 * torch.finfo(g.dtype).eps * size:
            betas[-1] = 0.0
            break
        directions.append(after / betas[-1])
    k = len(alphas)
    beside = torch.tensor(betas[: max(k - 1, 0)], dtype=torch.float64)
    T = torch.diag(torch.tensor(alphas, dtype=torch.float64))
    if k > 1:
        T += torch.diag(beside, 1) + torch.diag(beside, -1)
    basis = torch.stack(directions[:k]) if k else g.new_zeros((0, len(g)))
    return Krylov(basis, T, length, betas[-1] if k else 0.0)
