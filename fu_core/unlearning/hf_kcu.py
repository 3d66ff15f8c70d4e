"""HF-KCU: Hessian-free Krylov causal unlearning (Mahdavi et al., Algorithm 1), as printed and as it should be.

Printed, for every client i that holds some of the forgotten data D_u (the "affected" ones, A):

    g_i = grad l_i(w; D_u)                                                            (line 4)
    v_i = CG_k(H_i + damping I, g_i)                 H_i: the client's own Hessian    (lines 5-14)
    step_i = -alpha_i min(1, beta |w| / |v_i|) v_i   alpha_i = |g_i| / sum_A |g_j|    (Eq. 7, lines 15-18)
    w_u = w + sum_i n_i / n step_i                                                    (lines 24-25)

That minus moves the model *towards* the forgotten client's own optimum (errata H1), the weight n_i / n counts
the client twice or not enough (H6, H8), and the client's Hessian is not the objective's (H7). The
default, `form="corrected"`, derives the step from what retraining minimises. With m of n samples forgotten,

    n L = (n - m) L_r + m l_u,  so at a minimiser of L:  -grad L_r = m / (n - m) grad l_u
    w_u = w + (H_r + damping I)^-1 [m / (n - m) grad l_u]          one Newton step on L_r

For one leaving client this is errata H1's weight p / (1 - p). On quadratics it *is* retraining.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fu_core.errors import NumericalFailure, check_choice, check_count, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.server import aggregate
from fu_core.request import Deletion
from fu_core.unlearning.curvature import (
    MATRICES,
    Part,
    Product,
    curvature_product,
    fisher_diagonal,
    mean_gradient,
    sampled,
)
from fu_core.unlearning.krylov import Solution, solve
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs

FORMS = ("corrected", "printed")
CURVATURES = ("retained", "global", "local")
INFLUENCES = ("causal", "broadcast", "uniform")


@dataclass(frozen=True)
class HFKCU:
    """Hyper-parameters; the numbers are the paper's. None means: what the chosen `form` does."""

    iters: int = 10  # k
    damping: float = 0.01  # lambda
    beta: float = 0.01  # adaptive scaling
    form: str = "corrected"
    curvature: str | None = None  # whose loss: "local" as printed, "retained" corrected, "global" as in Eq. (3)
    matrix: str = "hessian"  # or "ggn", "fisher"
    sign: int | None = None  # -1 printed, +1 corrected
    scaling: bool | None = None  # line 17; None: on, but off in the corrected form if the loss is convex
    influence: str = "causal"  # printed form; the other two are the ablations of Table 4, see `_printed_step`
    decay: float = 1.0  # gamma: the t-th CG increment counts gamma^t. Not in Algorithm 1, see errata H5
    gradient: str = "forget"  # corrected form; "retained" takes grad L_r itself, and needs no stationarity
    client_weights: str = "sizes"  # corrected; "fixed" keeps w_f when part of a client leaves, as Eq. (2) does
    preconditioner: str = "none"  # or "jacobi": the diagonal of the empirical Fisher
    tol: float = 0.0  # stop CG at this relative residual
    curvature_samples: int | None = None  # products over a random sample of so many; None: all, exact
    batch_size: int = 128  # of the products; changes speed and memory, not the result

    def __post_init__(self) -> None:
        check_count("iters", self.iters)
        for name in ("damping", "tol"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        check_positive("beta", self.beta)
        check_choice("form", self.form, FORMS)
        check_choice("matrix", self.matrix, MATRICES)
        check_choice("influence", self.influence, INFLUENCES)
        check_choice("gradient", self.gradient, ("forget", "retained"))
        check_choice("client_weights", self.client_weights, ("sizes", "fixed"))
        check_choice("preconditioner", self.preconditioner, ("none", "jacobi"))
        if self.curvature is not None:
            check_choice("curvature", self.curvature, CURVATURES)
        if self.sign not in (None, 1, -1):
            raise ValueError(f"sign must be 1, -1 or None, got {self.sign}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must lie in (0, 1], got {self.decay}")
        if self.curvature_samples is not None:
            check_count("curvature_samples", self.curvature_samples)
        check_count("batch_size", self.batch_size)
        printed_only = {"influence": self.influence != "causal"}
        corrected_only = {"gradient": self.gradient != "forget", "client_weights": self.client_weights != "sizes"}
        for name, changed in (printed_only if self.form == "corrected" else corrected_only).items():
            if changed:
                raise ValueError(f"{name}={getattr(self, name)!r} has no meaning in the {self.form} form")


@dataclass(frozen=True)
class Step:
    """An unlearning step (d,) and how it came about. `solutions`: one per solve; `scale`: line 17's factors."""

    step: Tensor
    solutions: list[Solution] = field(repr=False)
    scale: list[float]

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


def hf_kcu(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU | None = None, **options: Any) -> Tensor:
    """The model `w` (d,) without the influence of what `deletion` forgets; a new vector (d,). HF-KCU, Algorithm 1.

    f: everybody, with the data of training. `options`: fields of HFKCU, in place of those of `config`. Random only with
    `curvature_samples`, from streams (f.seed, "curvature", client). Raises NumericalFailure as `solve`. On nets the
    step is clipped to `beta |w|` unless `scaling=False`; `hf_kcu_step` tells by how much.
    """
    found = hf_kcu_step(f, w, deletion, replace(config or HFKCU(), **options))
    if not any(s.residual_norms[0] for s in found.solutions):
        warnings.warn("the gradient on the forgotten data is zero: the model is returned as it was", stacklevel=2)
    if found.negative_steps:
        warnings.warn(f"CG met negative curvature in {found.negative_steps} of {found.cg_steps} steps", stacklevel=2)
    return w + found.step


def hf_kcu_step(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU) -> Step:
    """`hf_kcu` with everything it knows: the step itself, the CG solutions and the scaling."""
    make = _printed_step if config.form == "printed" else _corrected_step
    found = make(f, w, deletion, config)
    if not bool(found.step.isfinite().all()):
        raise NumericalFailure(f"the HF-KCU step is not finite; raise damping (now {config.damping:g})")
    return found


@register(
    "HF-KCU",
    paper="HF-KCU",
    colour="#c1272d",
    parameters=HFKCU,
    needs=Needs(full_participation=True, several_rounds=True),  # a product of CG asks everybody who stays
    recovers=False,
)
@register(
    "HF-KCU printed",
    paper="HF-KCU",
    colour="#f2a07b",
    dash="--",
    parameters=HFKCU,
    preset={"form": "printed"},
    recovers=False,
)
def serve(trained: Trained, deletion: Deletion, config: HFKCU) -> Tensor:
    """The step on a trained model; notes how well CG solved and how much was clipped."""
    found = hf_kcu_step(trained.horizontal, trained.model, deletion, config)
    trained.notes.update(
        residual=found.relative_residual,
        negative=found.negative_steps,
        cg_steps=found.cg_steps,
        scale=min(found.scale),
    )
    return trained.model + found.step


def conjugate_gradient(
    hvp: Product,
    g: Tensor,
    *,
    iters: int = 10,
    damping: float = 0.0,
    tol: float = 0.0,
    preconditioner: Callable[[Tensor], Tensor] | None = None,
    negative: str = "stop",
) -> tuple[Tensor, list[float]]:
    """Approximate (H + damping I)^-1 g: `(v, residual_norms)`. Algorithm 1, lines 6-14, by itself. Deterministic.

    hvp: v (d,) -> H v (d,); g (d,). Residual norms |r_0| = |g|, |r_1|, ...: one more than the steps made.
    Stops at `tol` (relative) or after `iters` steps, holding four vectors. Negative curvature ends it
    early with a warning (on the first step: NumericalFailure); see `krylov.cg_iterates`.
    """
    check_count("iters", iters)
    found = solve(hvp, g, iters=iters, damping=damping, tol=tol, preconditioner=preconditioner, negative=negative)
    if found.negative_steps:
        warnings.warn(
            f"CG met negative curvature in {found.negative_steps} of {len(found.curvatures)} steps; "
            "a larger damping or matrix='ggn' avoids it",
            stacklevel=2,
        )
    return found.v, found.residual_norms


def _corrected_step(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU) -> Step:
    weights = _retained_weights(deletion, config.client_weights)
    right_sides = _right_sides(f, w, deletion, weights, config)
    f.meter.send(w, up=len(right_sides))  # each sends its part, or with "local" curvature what it solves to
    curvature = config.curvature or "retained"
    solutions = []
    if curvature == "local":  # each affected client solves by itself, with its own curvature
        for i, g in right_sides.items():
            alone = [(1.0, i, deletion.clients[i])]
            solutions.append(_solve(f, w, alone, g, config, exchanged=False))
    else:
        g = torch.stack(list(right_sides.values())).sum(dim=0)
        if curvature == "retained":
            parts = [(weights[i], i, client) for i, client in deletion.kept.items()]
        else:
            parts = [(len(client[1]) / deletion.n, i, client) for i, client in deletion.holders.items()]
        solutions.append(_solve(f, w, parts, g, config, exchanged=True))
    raw = torch.stack([solution.v for solution in solutions]).sum(dim=0)
    convex = isinstance(f.model.only_layer(), nn.Linear)
    scaling = config.scaling if config.scaling is not None else not convex
    scale = _scale(w, raw, config.beta) if scaling else 1.0
    f.meter.send(w, down=len(deletion.clients))  # everybody learns the new model
    return Step((config.sign or 1) * scale * raw, solutions, [scale])


def _retained_weights(deletion: Deletion, rule: str) -> dict[int, float]:
    """Each staying client's share in the objective that retraining minimises; they sum to 1.

    "sizes": by what it keeps, as FedAvg weighs. "fixed": by what it had, HF-KCU's Eq. (2).
    """
    of = deletion.kept if rule == "sizes" else deletion.clients
    mass = {i: len(of[i][1]) for i in deletion.kept}
    return {i: mass[i] / sum(mass.values()) for i in mass}


def _right_sides(
    f: Federation, w: Tensor, deletion: Deletion, weights: Mapping[int, float], config: HFKCU
) -> dict[int, Tensor]:
    """-grad L_r at a minimiser of L, as a sum over clients of what each can compute from its own data."""
    if config.gradient == "retained":  # no assumption, but a pass over everything that is kept
        return {
            i: -weights[i] * mean_gradient(f.model, w, data, count=f.meter.train) for i, data in deletion.kept.items()
        }
    parts: dict[int, Tensor] = {}
    for i, gone in deletion.forgotten.items():
        m_i = len(gone[1])
        g_u = mean_gradient(f.model, w, gone, count=f.meter.train)
        if config.client_weights == "sizes":
            parts[i] = m_i / (deletion.n - deletion.m) * g_u  # m / (n - m) grad l_u
            continue
        n_i, total = len(deletion.clients[i][1]), sum(len(deletion.clients[j][1]) for j in deletion.kept)
        if i in deletion.kept:  # w_f m_f / (n_f - m_f) (grad l_u - grad l_f)       errata H6
            g_f = mean_gradient(f.model, w, deletion.clients[i], count=f.meter.train)
            parts[i] = n_i / total * m_i / (n_i - m_i) * (g_u - g_f)
        else:
            parts[i] = n_i / total * g_u
    return parts


def _printed_step(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU) -> Step:
    """Algorithm 1 to the letter, or with one of Table 4's ablations, two of which the paper does not define.

    influence "causal": Eq. (7). "broadcast" (w/o causal weighting): every client solves for the summed
    forget gradient with weight 1. "uniform" (our reading of "uniform influence"): the same with 1 / N.
    """
    gradients = {
        i: mean_gradient(f.model, w, gone, count=f.meter.train) for i, gone in deletion.forgotten.items()
    }  # line 4
    norms = {i: float(g.norm()) for i, g in gradients.items()}
    everybody = deletion.holders
    if config.influence == "causal":
        right_sides = gradients
        alpha = {i: norm / max(sum(norms.values()), 1e-300) for i, norm in norms.items()}  # Eq. (7)
    else:
        right_sides = dict.fromkeys(everybody, torch.stack(list(gradients.values())).sum(dim=0))
        alpha = dict.fromkeys(everybody, 1.0 if config.influence == "broadcast" else 1 / len(deletion.clients))
        f.meter.send(w, up=len(gradients), down=len(everybody))  # the forget gradient
    f.meter.send(w, down=len(deletion.clients))  # line 1: broadcast
    curvature = config.curvature or "local"
    solutions, scales, steps, shares = [], [], [], []
    for i, g in right_sides.items():
        parts, exchanged = _parts(deletion, curvature, i), curvature != "local"
        found = _solve(f, w, parts, g, config, exchanged=exchanged, negative="continue")
        scale = _scale(w, found.v, config.beta) if config.scaling is not False else 1.0  # line 17
        steps.append((config.sign or -1) * alpha[i] * scale * found.v)  # lines 15, 18
        shares.append(len(deletion.clients[i][1]) / deletion.n)  # w_i
        solutions.append(found)
        scales.append(scale)
    f.meter.send(w, up=len(right_sides))  # line 19
    step = aggregate(torch.stack(steps), torch.tensor(shares, dtype=torch.float64))  # line 24: sum_i w_i step_i
    return Step(step, solutions, scales)


def _parts(deletion: Deletion, curvature: str, i: int) -> list[Part]:
    """The data whose curvature client i solves with in the printed form."""
    if curvature == "local":
        return [(1.0, i, deletion.clients[i])]
    held = deletion.kept if curvature == "retained" else deletion.holders
    total = sum(len(y) for _, y in held.values())
    return [(len(client[1]) / total, j, client) for j, client in held.items()]


def _solve(
    f: Federation,
    w: Tensor,
    parts: Sequence[Part],
    g: Tensor,
    config: HFKCU,
    *,
    exchanged: bool,
    negative: str = "stop",
) -> Solution:
    """CG with the curvature of `parts`. `exchanged`: each product costs a vector to and from every part's client."""
    data = sampled(parts, config.curvature_samples, seed=f.seed)
    passes = curvature_product(
        f.model, w, data, matrix=config.matrix, batch_size=config.batch_size, count=f.meter.differentiate
    )

    def product(v: Tensor) -> Tensor:
        if exchanged:
            f.meter.send(v, down=len(parts), up=len(parts))
        return passes(v)

    precondition = None
    if config.preconditioner == "jacobi":
        diagonal = fisher_diagonal(f.model, w, data, count=f.meter.train) + config.damping
        f.meter.send(w, up=len(parts) if exchanged else 0)
        precondition = diagonal.clamp(min=float(diagonal.max()) * 1e-6).reciprocal().mul
    return solve(
        product,
        g,
        iters=config.iters,
        damping=config.damping,
        tol=config.tol,
        preconditioner=precondition,
        negative=negative,
        decay=config.decay,
    )


def _scale(w: Tensor, raw: Tensor, beta: float) -> float:
    """min(1, beta |w| / |raw|): line 17, Eq. (21)."""
    length = float(raw.norm())
    return min(1.0, beta * float(w.norm()) / length) if length else 1.0
