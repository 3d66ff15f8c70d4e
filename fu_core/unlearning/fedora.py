"""FedORA: vertical unlearning as constrained optimisation, primal-dual (Jiang et al., Sec. IV).

    min_theta  L_r(theta) + mu/2 |theta - theta0|^2      subject to  L_u(theta) >= epsilon              (7), (8)

L_r is the cross-entropy of the retained samples, L_u the *forgetting score* of those to be forgotten: how uncertain
the model is about them (28), at most log C. A scalar dual variable lambda >= 0 presses while the score is too low
and relaxes once it is not (20); the primal step uses the price it has set (21), (34). Our copy of the paper has lost
its formulas: equations follow its prose, alternatives are options, and notebook 03_fedora shows what depends on them.

The dual certifies neither closeness to retraining nor that the constraint is met (errata F1, F5): the score of the
final model does the latter, so it is measured, and reported as the last iteration; on a sample of what is forgotten,
unless all of it is asked for (`forget_sample`, `verify`).

Entropy's gradient vanishes where a model is sure (errata F2), and a price that grows meanwhile overshoots: "FedORA
reverse" reads the divergence the other way round, whose gradient does not vanish there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, check_choice, check_count, check_not_negative, check_positive, check_share
from fu_core.federation.vertical import (
    Boundary,
    Exchange,
    Parties,
    Vectors,
    VerticalFederation,
    endless_batches,
    forward,
    predict,
)
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.fedora_score import (
    SCORES,
    InfeasibleConstraint,
    entropies,
    entropy_share,
    largest_score,
    slope,
    threshold_of_entropy,
    uncertainty_loss,
)
from fu_core.unlearning.fedora_steps import Answer, AtLeast, Ending, Iteration, VectorDual, adjustment, primal_dual
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.ranges import Choice, Range

__all__ = [  # what the score's and the iteration's modules define is asked for here
    "AtLeast", "Calibrated", "Ending", "FedORA", "InfeasibleConstraint", "Iteration", "VectorDual", "adjustment",
    "entropies", "entropy_share", "fedora", "largest_score", "primal_dual", "threshold_of_entropy",
    "threshold_of_unseen", "uncertainty_loss",
]  # fmt: skip

DUALS = ("scalar", "vector")
FORCES = ("normalised", "printed")
STEPS = ("guarded", "printed")
RANGES: dict[str, Range | Choice] = {  # all ours: on small nets, from where nothing happens to where all is lost
    "threshold": Range(-0.5, 0.95),
    "score": Choice(("entropy", "reverse")),  # the second forgets what a model is sure of, too
    "tau": Range(3e-3, 1e-1, "log"),
    "sigma": Range(1e-2, 1.0, "log"),
    "iterations": Range(5, 40, "whole"),
    "adaptive": Choice((True, False)),
}
REVERSE: dict[str, Any] = {"score": "reverse", "threshold": 0.3, "sigma": 0.05}
# The form that the paper's prose has, where ours is another: all of D_u in every iteration, as many iterations as are
# asked for, a force that grows with beta, and steps that look at one's own changes alone.
PRINTED: dict[str, Any] = {
    "force": "printed",
    "steps": "printed",
    "grow": 1.05,
    "forget_sample": 0,
    "least_substeps": 0,
    "passes": 0.0,
}
VECTOR_RANGES = {**RANGES, "sigma": Range(1.0, 100.0, "log")}  # it multiplies two gradients
CALIBRATED_RANGES = {name: RANGES[name] for name in ("tau", "sigma", "iterations", "adaptive")}  # the rest is measured
REVERSE_RANGES = {name: values for name, values in RANGES.items() if name != "score"}
PART_OF_A_PASS = 5  # `least_substeps` are no more than a fifth of the batches of D_r


class Plan(NamedTuple):
    """What is passed: u samples of D_u per score, J batches of D_r, T iterations, and all samples together."""

    forget: int
    substeps: int
    iterations: int
    samples: int


@dataclass(frozen=True)
class FedORA:
    """Everything that can be chosen. The paper gives rho; all else is ours.

    Thresholds, steps, samples of D_u and room were chosen together on 2,000 images each of MNIST and CIFAR-10, two
    classes of which lose half or all of their samples: by the accuracy on validation samples and by the distance of the
    forgotten samples' accuracy to retraining's; no test sample was looked at.
    """

    dual: str = "scalar"  # or "vector", (25): one dual per parameter, which sees no threshold (errata F3)
    score: str = "entropy"
    threshold: float = 0.5  # epsilon, as a share of the largest score; see `threshold_of_entropy`
    weight: float = 1.0  # beta, forgetting weight
    force: str = "normalised"  # score and threshold over `unit`, or as "printed": steps then grow with beta squared
    tau: float = 0.05  # primal step
    sigma: float = 0.02  # dual step
    mu: float = 0.001  # proximal weight
    iterations: int = 20  # T, at most
    passes: float = 2.5  # fewer iterations where all samples would be more than so many |D_r|; 0: no limit
    ratio: float = 0.05  # rho, share of the retained data per iteration
    least_substeps: int = 0  # J, where rho gives fewer: some 70 of the paper's samples, 3 of 2,000. See `planned`
    batch_size: int = 32  # B
    forget_sample: int = 64  # samples of D_u that an iteration looks at, drawn anew; 0: all of them, as printed
    part: int = 512  # of D_u, samples whose activations a party, or client, holds at a time: memory, not numbers
    adaptive: bool = True  # (29) to (33)
    steps: str = "guarded"  # one number down per party; or "printed": by one's own changes alone. See `adjustment`
    shrink_above: float = 1.2  # kappa_hi
    grow_below: float = 0.8  # kappa_lo
    shrink: float = 0.7  # gamma_dec
    grow: float = 1.4  # gamma_inc; 1.05 against a shrink of 0.7 would never come back
    largest_steps: float = 5.0  # tau_max / tau, sigma_max / sigma
    step_rule: bool = False  # tau sigma |K|^2 <= 0.95: needs everybody's gradient norm, two numbers more per party
    unlearn: bool = True  # False: the paper's "w/o UL"
    refresh: bool = False  # gradient of the score anew in each substep, instead of cached
    clip: float = 0.0  # > 0: the norm of a party's pressure lambda * grad L_u is at most so large
    slack: float = 0.01  # stop once the score suffices and L_r is at most so much above L_r(theta^0), as a share of it,
    room: float = 0.05  # and as a share of log C: a model that fits its data has an L_r(theta^0) of nearly nothing
    patience: bool = True  # stop early at all
    verify: bool = False  # measure the score of the result on all of D_u, which is counted, and tell it as a note

    def __post_init__(self) -> None:
        for name, allowed in (("dual", DUALS), ("score", SCORES), ("force", FORCES), ("steps", STEPS)):
            check_choice(name, getattr(self, name), allowed)
        for name in ("weight", "tau", "sigma", "shrink", "grow", "largest_steps"):
            check_positive(name, getattr(self, name))
        for name in ("mu", "clip", "slack", "room", "passes"):
            check_not_negative(name, getattr(self, name))
        for name, least in (("iterations", 1), ("batch_size", 1), ("part", 1), ("least_substeps", 0),
                            ("forget_sample", 0)):  # fmt: skip
            check_count(name, getattr(self, name), least)
        check_share("ratio", self.ratio)
        if self.largest_steps < 1:
            raise ValueError(f"largest_steps must be >= 1, got {self.largest_steps}")
        if self.step_rule and self.dual == "vector":
            raise ValueError("step_rule is about one dual variable: it needs dual='scalar', got 'vector'")
        if not 0 < self.grow_below < 1 < self.shrink_above or not self.shrink < 1 < self.grow:
            raise ValueError(
                "adaptive steps need 0 < grow_below < 1 < shrink_above and shrink < 1 < grow, got "
                f"{self.grow_below}, {self.shrink_above}, {self.shrink}, {self.grow}"
            )

    @property
    def unit(self) -> float:
        """What score and threshold are divided by in steps: how much steeper the score is than for beta = 1."""
        return 1.0 if self.force == "printed" else slope(self.weight, self.score) / slope(1.0, self.score)

    @property
    def needs_reference(self) -> bool:
        """Does anything depend on L_r(theta^0)?"""
        return self.patience or (self.adaptive and self.steps == "guarded")

    def planned(self, forget: int, retain: int) -> Plan:
        """What requests of such sizes will take at most.

        J is ceil(rho |D_r| / B) (34), or `least_substeps` if that is more, but then no more than a fifth of a pass. On
        2,000 images and with at most 2.5 passes, rho's 3 substeps and 6 end alike, 12 worse: fewer iterations are left
        for the price to find its level. So rho decides.
        `refresh` asks for the score, and so for its samples, in each of the J substeps.
        With `passes`, T is lowered until all samples that pass, those for L_r(theta^0) and the last score included, are
        at most passes |D_r|, or until it is 1. Retraining for E epochs passes E |D_r|: by default E / 2.5 times as many
        or more, which is twice at E = 5; whoever wants four times sets passes to E / 4.
        """
        u = min(self.forget_sample or forget, forget)
        J = math.ceil(self.ratio * retain / self.batch_size)
        if J:
            J = max(J, min(self.least_substeps, math.ceil(retain / self.batch_size / PART_OF_A_PASS)))
        batches = min(J * self.batch_size, max(J, 1) * retain)
        each = u * (max(J, 1) if self.refresh and self.unlearn else 1) + batches
        beside = u + (batches if self.needs_reference else 0) + (forget if self.verify else 0)
        T = self.iterations
        if self.passes and retain:
            T = min(T, max(1, math.floor((self.passes * retain - beside) / each)))
        return Plan(u, J, T, beside + T * each)

    def epsilon(self, classes: int) -> float:
        """The threshold on the score. Raises InfeasibleConstraint if no prediction reaches it."""
        if not self.threshold <= 1:
            largest = largest_score(classes, weight=self.weight, score=self.score)
            raise InfeasibleConstraint(
                f"threshold must be a share of the largest score ({largest:.3f} for {classes} classes), at most 1, "
                f"got {self.threshold}: the dual would grow without end"
            )
        return self.threshold * largest_score(classes, weight=self.weight, score=self.score)


@dataclass(frozen=True)
class Calibrated(FedORA):
    """FedORA that asks for no more uncertainty than samples never trained on show already (errata F1).

    unseen: features (n, ...) of such samples, one tensor per passive party, of the classes of those to be forgotten.
    """

    unseen: Sequence[Tensor] = field(default=(), repr=False, compare=False)


def threshold_of_unseen(parties: Parties, config: Calibrated) -> float:
    """The threshold that asks for the mean entropy of the parties' predictions on `config.unseen`.

    Looking at them is evaluation, and not counted. Raises InvalidRequest if there are none.
    """
    if not len(config.unseen) or not len(config.unseen[0]):
        raise InvalidRequest("unseen must hold samples never trained on, of the classes to be forgotten, got none")
    share = entropy_share(predict(parties, config.unseen, Boundary()))  # leaves no party: noise may come again
    return threshold_of_entropy(share, weight=config.weight, score=config.score)


# --- between parties -------------------------------------------------------------------------------------------------


class _Loss:
    """A loss of an exchange's logits."""

    def __init__(self, exchange: Exchange, loss: Tensor) -> None:
        self.exchange, self.loss, self.value = exchange, loss, float(loss.detach())

    def gradients(self, scale: float = 1.0) -> Vectors:
        return self.exchange.backward(scale * self.loss)


def fedora(
    f: VerticalFederation,
    deletion: Deletion,
    config: FedORA,
    on_iteration: Callable[[Iteration], None] | None = None,
    notes: dict[str, Any] | None = None,
) -> Parties:
    """The parties after unlearning, with the samples that stay at hand; the federation's own are left untouched.

    `on_iteration`, `notes`, what is random and what raises: as `unlearned` has them.
    """
    forget, retain = deletion.forget[0], deletion.retain[0]  # row numbers

    def score(theta: Vectors, rows: Tensor) -> _Loss:
        exchange = forward(f.parties, theta, rows, f.boundary, config.part)
        return _Loss(exchange, uncertainty_loss(exchange.logits, weight=config.weight, score=config.score))  # (24)

    def retained(theta: Vectors, rows: Tensor) -> _Loss:
        exchange = forward(f.parties, theta, rows, f.boundary)
        return _Loss(exchange, F.cross_entropy(exchange.logits, exchange.y))  # (26)

    def counted(iteration: Iteration) -> None:
        if iteration.t:  # the closing report has none of its own, and these are of the iteration before
            if config.step_rule and config.unlearn:
                f.boundary.numbers(len(f.parties.passive))  # gradient norms up, lambda down
            if config.adaptive and config.steps == "guarded" and config.planned(len(forget), len(retain)).substeps:
                f.boundary.numbers(len(f.parties.passive), up=False)  # does the retained loss rise?
        if on_iteration is not None:
            on_iteration(iteration)

    f.meter.keep("theta0 and the cached gradient", *f.parties.w, *f.parties.w)
    objective = Objective(score, retained, forget, retain, f.parties.active.classes)
    theta = unlearned(f.parties.w, objective, config, seed=f.seed, on_iteration=counted, notes=notes)
    return f.parties.having(theta)


@dataclass(frozen=True)
class Objective:
    """What (7) is about, whoever holds what of the samples: a low `retained` with as high a `score` as is asked for.

    score, retained: L_u and L_r at some parameters on some samples, of which `forget` (n_u,) and `retain` (n_r,) are
    the names: row numbers, say. classes: C, of what is predicted.
    """

    score: Callable[[Vectors, Tensor], Answer]
    retained: Callable[[Vectors, Tensor], Answer]
    forget: Tensor
    retain: Tensor
    classes: int


def unlearned(
    theta0: Vectors,
    objective: Objective,
    config: FedORA,
    *,
    seed: int,
    on_iteration: Callable[[Iteration], None] | None = None,
    notes: dict[str, Any] | None = None,
) -> Vectors:
    """The parameters, one vector per party, after (7) is solved from `theta0`.

    `on_iteration` gets the dual variable, the residual and the step sizes of each iteration, and after the end the
    score of the result; `notes` takes in how it ended (see `Ending`), and with `config.verify` the score of the result
    on all of D_u as "score_all". Random: batches of retained samples, from the streams of (seed, pass over them),
    none of which training uses; with `config.forget_sample` the samples of D_u, from the streams of (seed, "fedora
    forgotten", how often it was asked for).

    Raises InfeasibleConstraint if no model can be so uncertain, NumericalFailure if parameters become NaN or infinite.
    """
    told = notes if notes is not None else {}
    forget, retain = objective.forget, objective.retain
    u, substeps, iterations, _ = config.planned(len(forget), len(retain))
    asked = 0

    def forgetting(theta: Vectors) -> Answer:
        nonlocal asked
        asked += 1
        return objective.score(theta, forget if u == len(forget) else some(forget, u, seed=seed, draw=asked))

    passing = endless_batches(retain, config.batch_size, seed=seed, first=-1, step=-1)  # no epoch of training
    batches_of: dict[int, list[Tensor]] = {}

    def on_batch(theta: Vectors, t: int, j: int) -> Answer:
        if t not in batches_of:
            batches_of.clear()
            batches_of[t] = [next(passing) for _ in range(substeps)]
        return objective.retained(theta, batches_of[t][j])

    enough = AtLeast(forgetting, config.epsilon(objective.classes))
    theta = primal_dual(
        theta0, enough, on_batch, replace(config, iterations=iterations), substeps=substeps,
        uniform=math.log(objective.classes), on_iteration=on_iteration, on_end=lambda end: told.update(end.notes),
    )  # fmt: skip
    if iterations < config.iterations:
        told["why"] += f" ({config.iterations} without passes={config.passes:g})"
    if config.verify:
        told["score_all"] = objective.score(theta, forget).value
    return theta


def some(rows: Tensor, count: int, *, seed: int, draw: int) -> Tensor:
    """`count` of `rows`, without putting any back. Random: from the stream (seed, "fedora forgotten", draw)."""
    return rows[torch.randperm(len(rows), generator=stream(seed, "fedora forgotten", draw))[:count].to(rows.device)]


@register(
    "FedORA",
    paper="FedORA",
    colour="#e3550f",
    parameters=FedORA,
    exchanges=("vertical",),
    recovers=False,
    ranges=RANGES,
)
@register(
    "FedORA reverse",
    paper="FedORA, errata F2",
    colour="#b8860b",
    dash="-.",
    parameters=FedORA,
    preset=REVERSE,
    exchanges=("vertical",),
    recovers=False,
    ranges=REVERSE_RANGES,
)
@register(
    "FedORA vector", paper="FedORA", colour="#f2b27b", dash="--", parameters=FedORA,
    preset={"dual": "vector", "sigma": 10.0}, exchanges=("vertical",), recovers=False, ranges=VECTOR_RANGES,
)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: FedORA) -> Parties:
    """`trained.watch` hears of every `Iteration`, `trained.notes` of the `Ending`."""
    return fedora(trained.vertical, deletion, config, trained.watch, trained.notes)


@register(
    "FedORA calibrated", paper="FedORA, errata F1", colour="#8c1d40", parameters=Calibrated,
    needs=Needs(auxiliary_data=True), exchanges=("vertical",), recovers=False, ranges=CALIBRATED_RANGES,
)  # fmt: skip
def serve_calibrated(trained: Trained, deletion: Deletion, config: Calibrated) -> Parties:
    """As `serve`, with the threshold that `config.unseen` asks for, whatever `config.threshold` is."""
    threshold = threshold_of_unseen(trained.vertical.parties, config)
    trained.notes["threshold"] = threshold
    return fedora(trained.vertical, deletion, replace(config, threshold=threshold), trained.watch, trained.notes)
