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

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_choice, check_count, check_positive, check_share
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import Client
from fu_core.federation.server import aggregate
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.certificate import is_convex
from fu_core.unlearning.curvature import (
    MATRICES,
    Part,
    Product,
    curvature_product,
    fisher_diagonal,
    mean_gradient,
    sampled,
)
from fu_core.unlearning.kfac import kfac_inverse, kronecker_factors, numbers
from fu_core.unlearning.krylov import Krylov, Solution, krylov_space, solve
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.newton import halved, retained_shares
from fu_core.unlearning.ranges import Range
from fu_core.unlearning.trust import gain_damping, held_out_damping

FORMS = ("corrected", "printed")
CURVATURES = ("retained", "global", "local")
INFLUENCES = ("causal", "broadcast", "uniform")
GRADIENTS = ("retained", "centred", "forgotten")
DEFAULTS: dict[str, dict[str, Any]] = {  # of fields that are None: as printed, and what a corrected step needs
    "printed": {"iters": 10, "damping": 0.01, "tol": 0.0, "matrix": "hessian", "curvature": "local",
                "gradient": "forgotten", "steps": 1, "sign": -1, "scaling": True},
    "convex": {"iters": 200, "damping": 0.0, "tol": 1e-3, "matrix": "hessian", "curvature": "retained",
               "gradient": "retained", "steps": 20, "sign": 1, "scaling": False},
    "net": {"iters": 10, "tol": 0.4, "matrix": "ggn", "curvature": "retained",
            "gradient": "centred", "steps": 1, "sign": 1, "scaling": False},
}  # fmt: skip

RANGES = {"steps": Range(1, 3, "whole"), "recovery": Range(0, 3, "whole"), "iters": Range(5, 20, "whole")}
PRINTED_RANGES = {"damping": Range(1e-3, 1.0, "log"), "beta": Range(3e-3, 0.3, "log")}  # the paper's own sweep, and on


@dataclass(frozen=True)
class HFKCU:
    """Hyper-parameters. None means: what the chosen `form` does on such a model, see DEFAULTS and `settled`.

    gradient: what a corrected step solves for. "retained", -grad L_r, needs nothing of how w came about, and takes a
    net past the end of its training; "centred", grad L - grad L_r, is what deleting changes about the gradient;
    "forgotten" is that at a minimiser of L, where the leaving can tell it by themselves, and wrong elsewhere.
    steps: of Newton at most; each takes the gradient anew and is halved where it would not shorten it, but for the last
    that held-out samples measure. They end once the gradient is `until` times as long as at first.
    damping: of every step. None: 0 where the loss has a minimiser, elsewhere chosen, see `gain` and `held_out`.
    held_out: samples (x, y) that nobody has trained on, of every class that is forgotten; the server has them.
    """

    iters: int | None = None  # k; the paper: 10
    damping: float | None = None  # lambda; the paper: 0.01
    beta: float = 0.01  # adaptive scaling; the paper's
    form: str = "corrected"
    curvature: str | None = None  # whose loss: "local" as printed, "retained" corrected, "global" as in Eq. (3)
    matrix: str | None = None  # "hessian" as printed, "ggn" on nets, or "fisher"
    sign: int | None = None  # -1 printed, +1 corrected
    scaling: bool | None = None  # line 17: clip to beta |w|; on as printed, off in the corrected form
    influence: str = "causal"  # printed form; the other two are the ablations of Table 4, see `_printed_step`
    decay: float = 1.0  # gamma: the t-th CG increment counts gamma^t. Not in Algorithm 1, see errata H5
    gradient: str | None = None  # corrected form, one of GRADIENTS
    client_weights: str = "sizes"  # corrected; "fixed" keeps w_f when part of a client leaves, as Eq. (2) does
    preconditioner: str = "none"  # or "jacobi": the diagonal of the empirical Fisher; "kfac": its factors
    tol: float | None = None  # stop CG at this relative residual; choose damping that reaches it
    curvature_samples: int | None = None  # products over a random sample of so many; None: all, exact
    batch_size: int = 128  # of the products; changes speed and memory, not the result
    steps: int | None = None
    until: float | None = None  # None: the root of what the numbers' format can tell apart from 1
    gain: float = 0.9  # of what the curvature promises, the least that the loss must keep where damping is chosen
    held_out: Client | None = field(default=None, compare=False, repr=False)
    recovery: int = 0  # ordinary rounds of those who stay afterwards, as PUF has them

    def __post_init__(self) -> None:
        for name in ("iters", "curvature_samples", "steps"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_count("recovery", self.recovery, least=0)
        for name in ("damping", "tol"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        check_positive("beta", self.beta)
        check_choice("form", self.form, FORMS)
        check_choice("influence", self.influence, INFLUENCES)
        check_choice("client_weights", self.client_weights, ("sizes", "fixed"))
        check_choice("preconditioner", self.preconditioner, ("none", "jacobi", "kfac"))
        for name, known in (("matrix", MATRICES), ("curvature", CURVATURES), ("gradient", GRADIENTS)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), known)
        if self.sign not in (None, 1, -1):
            raise ValueError(f"sign must be 1, -1 or None, got {self.sign}")
        for name in ("decay", "gain"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        if self.until is not None:
            check_share("until", self.until)
        check_count("batch_size", self.batch_size)
        self._fits_the_form()

    def _fits_the_form(self) -> None:
        printed_only = {"influence": self.influence != "causal"}
        corrected_only = {
            "gradient": self.gradient is not None,
            "client_weights": self.client_weights != "sizes",
            "steps": self.steps is not None,
            "until": self.until is not None,
            "held_out": self.held_out is not None,
        }
        for name, changed in (printed_only if self.form == "corrected" else corrected_only).items():
            if changed:
                given = "samples" if name == "held_out" else repr(getattr(self, name))
                raise ValueError(f"{name}={given} has no meaning in the {self.form} form")
        if self.curvature == "local" and self.form == "corrected" and self.gradient not in (None, "forgotten"):
            raise ValueError("gradient must be 'forgotten' with curvature='local': the others' parts solve nothing")
        if self.once and (self.steps or 1) > 1:
            raise ValueError(f"steps must be 1 with curvature='local' or sign=-1, got {self.steps}")
        if self.held_out is not None and self.damping is not None:
            raise ValueError(f"damping must be None with held_out, which choose it, got {self.damping}")

    @property
    def once(self) -> bool:
        """Is it a form of step that leads nowhere when it is repeated?"""
        return self.form == "corrected" and (self.curvature == "local" or self.sign == -1)

    def settled(self, model: FlatModel) -> HFKCU:
        """The same with everything decided that `model` decides; damping stays None where it is to be chosen.

        Raises ValueError for what chosen damping cannot do: a Krylov space knows no decay and no preconditioner.
        """
        kind = "printed" if self.form == "printed" else "convex" if has_minimiser(model) else "net"
        values = dict(DEFAULTS[kind])
        if self.held_out is not None:
            values["damping"] = None
        if self.once:
            values["steps"] = 1
        if self.curvature == "local":
            values["gradient"] = "forgotten"
        found = copy.copy(self)  # `replace` would refuse what only the other form may be told
        for name, value in values.items():
            if getattr(self, name) is None:
                object.__setattr__(found, name, value)
        if found.damping is None and (found.decay != 1 or found.preconditioner != "none"):
            raise ValueError("damping must be given with decay or a preconditioner, got None, which chooses it")
        return found


def has_minimiser(model: FlatModel) -> bool:
    """Whether undamped steps come to a minimiser: a convex loss with l2, or least squares, which bring their own."""
    return is_convex(model) and (model.l2 > 0 or model.task == "regression")


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
    config = replace(config or HFKCU(), **options)
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
    settled = config.settled(f.model)
    make = _printed_step if config.form == "printed" else _corrected_step
    found = make(f, w, deletion, settled)
    if not bool(found.step.isfinite().all()):
        damping = "chosen" if settled.damping is None else f"{settled.damping:g}"
        raise NumericalFailure(f"the HF-KCU step is not finite; raise damping (now {damping})")
    return found


def recovered(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU, round: int) -> Tensor:
    """`w` (d,) after `config.recovery` ordinary rounds `round`, `round` + 1, ... of those who stay."""
    return fedavg(f.after(deletion), w, config.recovery, first_round=round) if config.recovery else w


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


def _corrected_step(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU) -> Step:
    weights = _retained_weights(deletion, config.client_weights)
    right_sides, stationarity = _right_sides(f, w, deletion, weights, config)
    f.meter.send(w, up=len(deletion.holders))  # each sends its gradient, or with "local" curvature what it solves to
    if config.curvature == "local":  # each affected client solves by itself, with its own curvature
        solutions = [
            _solve(f, w, [(1.0, i, deletion.clients[i])], g, config, exchanged=False) for i, g in right_sides.items()
        ]
        raw = torch.stack([solution.v for solution in solutions]).sum(dim=0)
        walk = _Walk(raw, solutions, [_number(config.damping)] * len(solutions), [1.0], None)
    else:
        walk = _walk(f, w, torch.stack(list(right_sides.values())).sum(dim=0), deletion, weights, config)
    scale = _scale(w, walk.moved, config.beta) if config.scaling else 1.0
    f.meter.send(w, down=len(deletion.clients))  # everybody learns the new model
    step = (config.sign or 1) * scale * walk.moved
    return Step(step, walk.solutions, [scale], walk.dampings, walk.shares, stationarity, walk.left)


@dataclass
class _Walk:
    """Newton's steps together (d,), and what each was: solution, damping, share taken; |g| at the end over |g_0|."""

    moved: Tensor
    solutions: list[Solution]
    dampings: list[float]
    shares: list[float]
    left: float | None


def _walk(
    f: Federation, w: Tensor, g: Tensor, deletion: Deletion, weights: Mapping[int, float], config: HFKCU
) -> _Walk:
    """Newton's steps from `w` towards grad L_r = target, where g (d,) = target - grad L_r(w)."""
    if config.curvature == "retained":
        parts = [(weights[i], i, client) for i, client in deletion.kept.items()]
    else:
        parts = [(len(client[1]) / deletion.n, i, client) for i, client in deletion.holders.items()]
    steps, until = _number(config.steps), config.until
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
    walk, here, first = _Walk(torch.zeros_like(w), [], [], [], None), w, float(g.norm())
    for t in range(1, int(steps) + 1):
        if config.damping is not None:
            solution, damping = _solve(f, here, parts, g, config, exchanged=True), config.damping
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


def _trusted(
    f: Federation, w: Tensor, parts: Sequence[Part], g: Tensor, deletion: Deletion, config: HFKCU, *, last: bool
) -> tuple[Solution, float]:
    """A step whose damping is chosen, and that damping: see `trust`. Where there are steps to come, held-out samples
    only stop it; the last one, or the only one, goes as far as they say."""
    data = sampled(parts, config.curvature_samples, seed=f.seed)
    space = krylov_space(_product(f, w, parts, data, config, exchanged=True), g, iters=int(_number(config.iters)))
    least = space.least_damping(_number(config.tol))
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


def _number(value: float | None) -> float:
    """A field that `settled` has decided."""
    assert value is not None
    return value


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
        found = _solve(f, w, parts, g, config, exchanged=exchanged, negative="continue")
        scale = _scale(w, found.v, config.beta) if config.scaling else 1.0  # line 17
        steps.append((config.sign or -1) * alpha[i] * scale * found.v)  # lines 15, 18
        shares.append(len(deletion.clients[i][1]) / deletion.n)  # w_i
        solutions.append(found)
        scales.append(scale)
    f.meter.send(w, up=len(right_sides))  # line 19
    step = aggregate(torch.stack(steps), torch.tensor(shares, dtype=torch.float64))  # line 24: sum_i w_i step_i
    return Step(step, solutions, scales, [_number(config.damping)] * len(solutions), [1.0])


def _parts(deletion: Deletion, curvature: str, i: int) -> list[Part]:
    """The data whose curvature client i solves with in the printed form."""
    if curvature == "local":
        return [(1.0, i, deletion.clients[i])]
    held = deletion.kept if curvature == "retained" else deletion.holders
    total = sum(len(y) for _, y in held.values())
    return [(len(client[1]) / total, j, client) for j, client in held.items()]


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
    """CG with the curvature of `parts` and damping that is given."""
    data, damping = sampled(parts, config.curvature_samples, seed=f.seed), _number(config.damping)
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
        iters=int(_number(config.iters)),
        damping=damping,
        tol=_number(config.tol),
        preconditioner=precondition,
        negative=negative,
        decay=config.decay,
    )


def _scale(w: Tensor, raw: Tensor, beta: float) -> float:
    """min(1, beta |w| / |raw|): line 17, Eq. (21)."""
    length = float(raw.norm())
    return min(1.0, beta * float(w.norm()) / length) if length else 1.0
