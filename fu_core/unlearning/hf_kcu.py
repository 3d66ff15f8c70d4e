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

For one leaving client this is errata H1's weight p / (1 - p). On quadratics it *is* retraining, from any w if
-grad L_r is taken itself (`gradient="retained"`). A net is no minimiser of L, and grad L may be longer than what is to
be solved for: what deleting changes about the gradient is grad L - grad L_r ("centred"), and its steps lead to

    grad L_r(w_u) = grad L(w)          as far from the end of its training on what is retained as w is from its own
    w <- w + (A + damping I)^-1 (grad L(w_0) - grad L_r(w))

A is the Gauss-Newton matrix there. Its damping is the radius of trust (see `trust`): the least at which CG solves the
system, and at which the loss keeps what its curvature promises; or, with `held_out` samples, the one at which the
forgotten are as badly known as those. Where the loss is strongly convex, steps without damping are repeated until the
gradient is gone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_count
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.server import aggregate
from fu_core.request import Deletion
from fu_core.unlearning.curvature import Part, Product, mean_gradient
from fu_core.unlearning.hf_kcu_notes import Step, warn_of
from fu_core.unlearning.hf_kcu_options import HFKCU, decided
from fu_core.unlearning.hf_kcu_steps import Walk, clip, everybodys, newtons_walk, solved, solved_together
from fu_core.unlearning.krylov import solve
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.ranges import Range

RANGES = {"steps": Range(1, 3, "whole"), "recovery": Range(0, 3, "whole"), "iters": Range(5, 20, "whole")}
PRINTED_RANGES = {"damping": Range(1e-3, 1.0, "log"), "beta": Range(3e-3, 0.3, "log")}  # the paper's own sweep, and on


def hf_kcu(
    f: Federation,
    w: Tensor,
    deletion: Deletion,
    config: HFKCU | None = None,
    *,
    round: int | None = None,
    **options: Any,
) -> Tensor:
    """The model `w` (d,) without the influence of what `deletion` forgets; a new vector (d,). HF-KCU, Algorithm 1.

    f: everybody, with the data of training. `options`: fields of HFKCU, in place of those of `config`. round: the
    number of the first round of recovery, which `config.recovery` needs. Random only with `curvature_samples`, from
    streams (f.seed, "curvature" or "gain", client), and in rounds of recovery. Raises NumericalFailure as `solve`,
    ValueError as `HFKCU.settled`. Warns where the step is not to be trusted; `hf_kcu_step` tells everything.
    """
    config, w = replace(config or HFKCU(), **options), w.detach()
    if config.recovery and round is None:
        raise ValueError(f"round must number the first of {config.recovery} rounds of recovery, got None")
    found = hf_kcu_step(f, w, deletion, config)
    if not any(s.residual_norms[0] for s in found.solutions):
        warnings.warn("the gradient on the forgotten data is zero: the model is returned as it was", stacklevel=2)
    if found.negative_steps:
        warnings.warn(f"CG met negative curvature in {found.negative_steps} of {found.cg_steps} steps", stacklevel=2)
    warn_of(found, f, w, config)
    return recovered(f, w + found.step, deletion, config, round or 0)


def hf_kcu_step(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU) -> Step:
    """`hf_kcu` with everything it knows, before recovery: the step itself, the CG solutions and the scaling."""
    settled, w = config.settled(f.model), w.detach()
    make = _printed_step if config.form == "printed" else _corrected_step
    found = make(f, w, deletion, settled)
    if not bool(found.step.isfinite().all()):
        damping = "chosen" if settled.damping is None else f"{settled.damping:g}"
        raise NumericalFailure(f"the HF-KCU step is not finite; raise damping (now {damping})")
    return found


def hf_kcu_steps(f: Federation, w: Tensor, deletions: Sequence[Deletion], config: HFKCU) -> Tensor:
    """The step (k, d) of each of k requests by itself, from `w` (d,): "what would we be without each of us?"

    All with the curvature of everybody's loss L, HF-KCU's Eq. (3), so that one block of conjugate gradients solves for
    all (`krylov.solve_together`). Each is `hf_kcu_step`'s with the same config, to `tol`. Raises ValueError for a
    config that has another curvature, several steps or damping to be chosen; NumericalFailure as `solve`.
    """
    settled = config.settled(f.model)
    shared = {"form": "corrected", "curvature": "global", "steps": 1, "scaling": False, "decay": 1.0,
              "preconditioner": "none"}  # fmt: skip
    for name, value in shared.items():
        if getattr(settled, name) != value:
            raise ValueError(
                f"{name} must be {value!r} where requests share their curvature, got {getattr(settled, name)!r}"
            )
    if settled.damping is None:
        raise ValueError("damping must be given where requests share their curvature, got None, which chooses it")
    if not deletions:
        raise InvalidRequest("deletions must name at least one request, got none")
    sides = []
    for deletion in deletions:
        weights = _retained_weights(deletion, settled.client_weights)
        right, _ = _right_sides(f, w, deletion, weights, settled)
        sides.append(torch.stack(list(right.values())).sum(dim=0))
        f.meter.send(w, up=len(deletion.holders))
    found = solved_together(f, w, everybodys(deletions[0]), torch.stack(sides), settled)
    return int(settled.sign or 1) * torch.stack([solution.v for solution in found])


def recovered(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU, round: int) -> Tensor:
    """`w` (d,) after `config.recovery` ordinary rounds `round`, `round` + 1, ... of those who stay."""
    return fedavg(f.after(deletion), w, config.recovery, first_round=round) if config.recovery else w


@register(
    "HF-KCU",
    paper="HF-KCU",
    colour="#c1272d",
    parameters=HFKCU,
    needs=Needs(full_participation=True, several_rounds=True),  # a product of CG asks everybody who stays
    recovers=False,
    ranges=RANGES,
)
@register(
    "HF-KCU printed",
    paper="HF-KCU",
    colour="#f2a07b",
    dash="--",
    parameters=HFKCU,
    preset={"form": "printed"},
    recovers=False,
    ranges=PRINTED_RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: HFKCU) -> Tensor:
    """The step on a trained model, and its rounds of recovery; notes what `Step.told` tells."""
    f, w = trained.horizontal, trained.model
    found = hf_kcu_step(f, w, deletion, config)
    warn_of(found, f, w, config, None if trained.w_0 is None else float((w - trained.w_0).norm()))
    trained.notes.update(found.told(w))
    return recovered(f, w + found.step, deletion, config, trained.next_round)


@register(
    "HF-KCU held-out",
    paper="HF-KCU, corrected",
    colour="#7a0c14",
    parameters=HFKCU,
    needs=Needs(full_participation=True, several_rounds=True, auxiliary_data=True),
    recovers=False,
    ranges=RANGES,
)
def serve_held_out(trained: Trained, deletion: Deletion, config: HFKCU) -> Tensor:
    """As `serve`, as far as `config.held_out` says; the same on convex models. Raises InvalidRequest without it."""
    if config.held_out is None:
        raise InvalidRequest("held_out must be samples (x, y) that nobody has trained on, got None")
    return serve(trained, deletion, config)


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


# --- Algorithm 1, line by line ---------------------------------------------------------------------------------------


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
    curvature = str(config.curvature)
    solutions, scales, steps, shares = [], [], [], []
    for i, g in right_sides.items():
        parts, exchanged = _parts(deletion, curvature, i), curvature != "local"
        found = solved(f, w, parts, g, config, exchanged=exchanged, negative="continue")
        scale = clip(w, found.v, config.beta) if config.scaling else 1.0  # line 17
        steps.append((config.sign or -1) * alpha[i] * scale * found.v)  # lines 15, 18
        shares.append(len(deletion.clients[i][1]) / deletion.n)  # w_i
        solutions.append(found)
        scales.append(scale)
    f.meter.send(w, up=len(right_sides))  # line 19
    step = aggregate(torch.stack(steps), torch.tensor(shares, dtype=torch.float64))  # line 24: sum_i w_i step_i
    return Step(step, solutions, scales, [decided(config.damping)] * len(solutions), [1.0])


def _parts(deletion: Deletion, curvature: str, i: int) -> list[Part]:
    """The data whose curvature client i solves with in the printed form."""
    if curvature == "local":
        return [(1.0, i, deletion.clients[i])]
    held = deletion.kept if curvature == "retained" else deletion.holders
    total = sum(len(y) for _, y in held.values())
    return [(len(client[1]) / total, j, client) for j, client in held.items()]


# --- what retraining minimises ---------------------------------------------------------------------------------------


def _corrected_step(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU) -> Step:
    weights = _retained_weights(deletion, config.client_weights)
    right_sides, stationarity = _right_sides(f, w, deletion, weights, config)
    f.meter.send(w, up=len(deletion.holders))  # each sends its gradient, or with "local" curvature what it solves to
    if config.curvature == "local":  # each affected client solves by itself, with its own curvature
        solutions = [
            solved(f, w, [(1.0, i, deletion.clients[i])], g, config, exchanged=False) for i, g in right_sides.items()
        ]
        raw = torch.stack([solution.v for solution in solutions]).sum(dim=0)
        walk = Walk(raw, solutions, [decided(config.damping)] * len(solutions), [1.0], None)
    else:
        walk = newtons_walk(f, w, torch.stack(list(right_sides.values())).sum(dim=0), deletion, weights, config)
    scale = clip(w, walk.moved, config.beta) if config.scaling else 1.0
    f.meter.send(w, down=len(deletion.clients))  # everybody learns the new model
    step = (config.sign or 1) * scale * walk.moved
    return Step(step, walk.solutions, [scale], walk.dampings, walk.shares, stationarity, walk.left)


def _retained_weights(deletion: Deletion, rule: str) -> dict[int, float]:
    """Each staying client's share in the objective that retraining minimises; they sum to 1.

    "sizes": by what it keeps, as FedAvg weighs. "fixed": by what it had, HF-KCU's Eq. (2).
    """
    of = deletion.kept if rule == "sizes" else deletion.clients
    mass = {i: len(of[i][1]) for i in deletion.kept}
    return {i: mass[i] / sum(mass.values()) for i in mass}


def _right_sides(
    f: Federation, w: Tensor, deletion: Deletion, weights: Mapping[int, float], config: HFKCU
) -> tuple[dict[int, Tensor], float]:
    """What is to be solved for, as a sum over clients of what each can compute from its own data; and |grad L| beside
    what it would be at a minimiser of L. One pass over all samples: of each client what goes and what is kept."""
    gone = {i: mean_gradient(f.model, w, data, count=f.meter.train) for i, data in deletion.forgotten.items()}
    kept = {i: mean_gradient(f.model, w, data, count=f.meter.train) for i, data in deletion.kept.items()}
    whole = {}  # n_i / n times each client's gradient
    for i in deletion.holders:
        pieces = [
            len(of[i][1]) / deletion.n * g[i] for of, g in ((deletion.forgotten, gone), (deletion.kept, kept)) if i in g
        ]
        whole[i] = torch.stack(pieces).sum(dim=0)
    downhill = {i: -weights[i] * g for i, g in kept.items()}  # of L_r
    forgotten = _forgotten(deletion, gone, kept, config.client_weights)
    grad_L = torch.stack(list(whole.values())).sum(dim=0)
    there = float(torch.stack(list(forgotten.values())).sum(dim=0).norm())
    stationarity = float(grad_L.norm()) / there if there else 0.0
    if config.gradient == "retained":
        return downhill, stationarity
    if config.gradient == "forgotten":
        return forgotten, stationarity
    return {i: g + downhill[i] if i in downhill else g for i, g in whole.items()}, stationarity


def _forgotten(
    deletion: Deletion, gone: Mapping[int, Tensor], kept: Mapping[int, Tensor], rule: str
) -> dict[int, Tensor]:
    """-grad L_r at a minimiser of L, from the clients that forget alone."""
    parts: dict[int, Tensor] = {}
    for i, g_u in gone.items():
        m_i = len(deletion.forgotten[i][1])
        if rule == "sizes":
            parts[i] = m_i / (deletion.n - deletion.m) * g_u  # m / (n - m) grad l_u
            continue
        n_i, total = len(deletion.clients[i][1]), sum(len(deletion.clients[j][1]) for j in deletion.kept)
        if i in deletion.kept:  # w_f m_f / (n_f - m_f) (grad l_u - grad l_f)       errata H6
            g_f = (m_i * g_u + (n_i - m_i) * kept[i]) / n_i
            parts[i] = n_i / total * m_i / (n_i - m_i) * (g_u - g_f)
        else:
            parts[i] = n_i / total * g_u
    return parts
