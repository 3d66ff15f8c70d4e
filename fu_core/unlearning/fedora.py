"""FedORA: vertical unlearning as constrained optimisation, primal-dual (Jiang et al., Sec. IV).

    min_theta  L_r(theta) + mu/2 |theta - theta0|^2      subject to  L_u(theta) >= epsilon              (7), (8)

L_r is the cross-entropy of the retained samples, L_u the *forgetting score* of those to be forgotten: how uncertain
the model is about them (28), at most log C. A scalar dual variable lambda >= 0 presses while the score is too low
and relaxes once it is not (20); the primal step uses the price it has set (21), (34). Our copy of the paper has lost
its formulas: equations follow its prose, alternatives are options, and notebook 03_fedora shows what depends on them.

The dual certifies neither closeness to retraining nor that the constraint is met (errata F1, F5): the score of the
final model does the latter, so it is measured, and reported as the last iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, check_choice, check_count, check_positive
from fu_core.federation.vertical import (
    Exchange,
    Parties,
    Vectors,
    VerticalFederation,
    check_finite,
    clipped,
    epoch_batches,
    forward,
    predict,
)
from fu_core.request import Deletion
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs

DUALS = ("scalar", "vector")
SCORES = ("entropy", "scaled", "reverse")


class InfeasibleConstraint(ValueError):
    """A forgetting score that no model can reach."""


# --- the forgetting score --------------------------------------------------------------------------------------------


def uncertainty_loss(logits: Tensor, *, weight: float = 1.0, score: str = "entropy") -> Tensor:
    """Eq. (28), the mean over samples of `logits` (n, C), to be *maximised*: a scalar, log C for uniform predictions.

    entropy   H(p) - beta KL(p || U)     as its sentence reads; equals (1 + beta) H - beta log C (errata F2)
    scaled    beta (H(p) - KL(p || U))   the other bracketing; at most beta log C
    reverse   H(p) - beta KL(U || p)     whose gradient does not vanish for confident predictions (errata F2)

    weight: beta, the paper's forgetting weight.
    """
    check_choice("score", score, SCORES)
    check_positive("weight", weight)
    log_p = logits.log_softmax(dim=1)
    log_c = math.log(logits.shape[1])
    entropy = entropies(log_p)
    if score == "reverse":
        return (entropy - weight * (-log_p.mean(dim=1) - log_c)).mean()
    divergence = log_c - entropy  # KL(p || U)
    return (weight * (entropy - divergence) if score == "scaled" else entropy - weight * divergence).mean()


def entropies(log_p: Tensor) -> Tensor:
    """H(p) of each sample (n,), from the logarithms of its probabilities (n, C)."""
    return -(log_p.exp() * log_p).sum(dim=1)


def entropy_share(logits: Tensor) -> float:
    """Mean entropy of the predictions (n, C), as a share of log C."""
    return float(entropies(logits.log_softmax(dim=1)).mean()) / math.log(logits.shape[1])


def largest_score(classes: int, *, weight: float = 1.0, score: str = "entropy") -> float:
    """The score of uniform predictions, which none exceeds."""
    return math.log(classes) * (weight if score == "scaled" else 1.0)


def threshold_of_entropy(share: float, *, weight: float = 1.0, score: str = "entropy") -> float:
    """The threshold that asks for a mean entropy of `share` * log C: what the score is then, over its largest value."""
    if score == "reverse":
        raise ValueError("score 'reverse' is no function of the entropy; choose 'entropy' or 'scaled'")
    return 2 * share - 1 if score == "scaled" else (1 + weight) * share - weight


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedORA:
    """Everything that can be chosen. The paper gives rho; all else is ours."""

    dual: str = "scalar"  # or "vector", (25): one dual per parameter, which sees no threshold (errata F3)
    score: str = "entropy"
    threshold: float = 0.95  # epsilon, as a share of the largest score; see `threshold_of_entropy`
    weight: float = 1.0  # beta, forgetting weight
    tau: float = 0.01  # primal step
    sigma: float = 0.1  # dual step
    mu: float = 0.001  # proximal weight
    iterations: int = 20  # T, at most
    ratio: float = 0.05  # rho, share of the retained data per iteration
    batch_size: int = 32  # B
    adaptive: bool = True  # (29) to (33)
    shrink_above: float = 1.2  # kappa_hi
    grow_below: float = 0.8  # kappa_lo
    shrink: float = 0.7  # gamma_dec
    grow: float = 1.05  # gamma_inc
    largest_steps: float = 5.0  # tau_max / tau, sigma_max / sigma
    step_rule: bool = False  # tau sigma |K|^2 <= 0.95: needs everybody's gradient norm, two numbers more per party
    unlearn: bool = True  # False: the paper's "w/o UL"
    refresh: bool = False  # gradient of the score anew in each substep, instead of cached
    clip: float = 0.0  # > 0: the norm of a party's pressure lambda * grad L_u is at most so large
    slack: float = 0.01  # stop once the score suffices and L_r is within this share of its first value
    patience: bool = True  # stop early at all

    def __post_init__(self) -> None:
        check_choice("dual", self.dual, DUALS)
        check_choice("score", self.score, SCORES)
        for name in ("weight", "tau", "sigma", "shrink", "grow", "largest_steps"):
            check_positive(name, getattr(self, name))
        for name in ("mu", "clip", "slack"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        check_count("iterations", self.iterations)
        check_count("batch_size", self.batch_size)
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"ratio must lie in 0..1, got {self.ratio}")
        if self.largest_steps < 1:
            raise ValueError(f"largest_steps must be >= 1, got {self.largest_steps}")
        if self.step_rule and self.dual == "vector":
            raise ValueError("step_rule is about one dual variable: it needs dual='scalar', got 'vector'")
        if not 0 < self.grow_below < 1 < self.shrink_above or not self.shrink < 1 < self.grow:
            raise ValueError(
                "adaptive steps need 0 < grow_below < 1 < shrink_above and shrink < 1 < grow, got "
                f"{self.grow_below}, {self.shrink_above}, {self.shrink}, {self.grow}"
            )

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
    share = entropy_share(predict(parties, config.unseen))
    return threshold_of_entropy(share, weight=config.weight, score=config.score)


@dataclass(frozen=True)
class Iteration:
    """What is known at iteration `t`, before its primal step; the last one, after the end, has no retained loss."""

    t: int
    score: float  # L_u
    residual: float  # epsilon - L_u: above zero while the constraint is violated
    dual: float  # lambda, or the mean over all parameters of a vector dual
    tau: tuple[float, ...]  # one per party
    sigma: float
    change: tuple[float, ...]  # |theta_k^t - theta_k^(t-1)|, one per party
    retained: float  # L_r, mean over the iteration's batches


# --- the iteration ---------------------------------------------------------------------------------------------------


class Answer(Protocol):
    """A loss at some parameters, and its gradients if asked."""

    value: float

    def gradients(self, scale: float = 1.0) -> Vectors:
        """Every party's gradient of `scale` times the loss."""


def primal_dual(
    theta0: Vectors,
    forgetting: Callable[[Vectors], Answer],
    retained: Callable[[Vectors, int, int], Answer],
    s: FedORA,
    *,
    epsilon: float,
    substeps: int,
    on_iteration: Callable[[Iteration], None] | None = None,
) -> Vectors:
    """Algorithms 1 and 2 for any two losses: `forgetting(theta)` is L_u, `retained(theta, t, j)` L_r on batch j.

    No substep at all (ratio 0) is one step without retained data. Lists have one entry per party and are combined
    entry by entry; the price lambda travels inside the gradients that the active party sends, so it crosses no
    border. Step sizes are each party's own, from its own changes; sigma follows the active party's.
    """
    theta = [w_k.clone() for w_k in theta0]
    dual: ScalarDual | VectorDual = ScalarDual(s) if s.dual == "scalar" else VectorDual(s, theta)
    tau, sigma = [s.tau] * len(theta), s.sigma
    change, first = [0.0] * len(theta), math.nan
    for t in range(s.iterations):
        before, score, pressure = [w_k.clone() for w_k in theta], math.nan, None
        if s.unlearn:
            L_u = forgetting(theta)
            score = L_u.value
            sigma, pressure = dual.step(L_u, sigma, max(tau), epsilon)
        losses = []
        for j in range(max(substeps, 1)):  # (34)
            if s.unlearn and s.refresh and j:
                pressure = dual.pressure(forgetting(theta))
            g_r = None
            if substeps:
                L_r = retained(theta, t, j)
                losses.append(L_r.value)
                g_r = L_r.gradients()
            for k, w_k in enumerate(theta):  # theta <- theta - tau (grad L_r - lambda grad L_u + mu (theta - theta0))
                direction = s.mu * (w_k - theta0[k])
                if g_r is not None:
                    direction += g_r[k]
                if pressure is not None:
                    direction -= pressure[k]
                w_k -= tau[k] * direction
        check_finite(theta, f"in iteration {t}")
        previous, change = change, [float((a - b).norm()) for a, b in zip(theta, before, strict=True)]  # (29)
        mean = sum(losses) / len(losses) if losses else math.nan
        first = mean if t == 0 else first
        if on_iteration is not None:
            on_iteration(Iteration(t, score, epsilon - score, dual.value, tuple(tau), sigma, tuple(change), mean))
        if s.adaptive and t > 0:  # (30) to (33)
            factors = [adjustment(now, last, s) for now, last in zip(change, previous, strict=True)]
            tau = [min(s.largest_steps * s.tau, tau_k * factor) for tau_k, factor in zip(tau, factors, strict=True)]
            sigma = min(s.largest_steps * s.sigma, sigma * factors[-1])
        if s.patience and score >= epsilon and not mean > (1 + s.slack) * first:
            break
    if on_iteration is not None:
        score = forgetting(theta).value
        still = (0.0,) * len(theta)
        on_iteration(Iteration(t + 1, score, epsilon - score, dual.value, tuple(tau), sigma, still, math.nan))
    return theta


class ScalarDual:
    """One lambda >= 0, kept by the active party: it grows while the score is too low, and relaxes."""

    def __init__(self, s: FedORA) -> None:
        self.s, self.value = s, 0.0

    def step(self, L_u: Answer, sigma: float, tau: float, epsilon: float) -> tuple[float, Vectors]:
        """Eq. (20); returns sigma, lowered if the step rule asks for it, and lambda * grad L_u."""
        if not self.s.step_rule:
            self.value = max(0.0, self.value + sigma * (epsilon - L_u.value))
            return sigma, self.pressure(L_u)
        g_u = L_u.gradients()
        sigma = min(sigma, 0.95 / max(tau * sum(float(g_k.dot(g_k)) for g_k in g_u), 1e-30))  # tau sigma |K|^2 < 1
        self.value = max(0.0, self.value + sigma * (epsilon - L_u.value))
        return sigma, _clipped([self.value * g_k for g_k in g_u], self.s)

    def pressure(self, L_u: Answer) -> Vectors:
        """lambda * grad L_u, the price already inside what is sent."""
        return _clipped(L_u.gradients(self.value), self.s)


class VectorDual:
    """One dual per parameter, kept where the parameter is. It accumulates gradients, and sees no threshold."""

    def __init__(self, s: FedORA, theta: Vectors) -> None:
        self.s, self.lam = s, [torch.zeros_like(w_k) for w_k in theta]

    def step(self, L_u: Answer, sigma: float, tau: float, epsilon: float) -> tuple[float, Vectors]:
        """Eq. (25); returns sigma as it is and lambda_k * grad L_u, element by element (27)."""
        g_u = L_u.gradients()
        for lam_k, g_k in zip(self.lam, g_u, strict=True):
            lam_k.add_(sigma * g_k).clamp_(min=0)
        return sigma, self._weighted(g_u)

    def pressure(self, L_u: Answer) -> Vectors:
        """lambda_k * grad L_u with a gradient of now."""
        return self._weighted(L_u.gradients())

    @property
    def value(self) -> float:
        """Mean over all parameters."""
        return float(torch.cat(self.lam).mean())

    def _weighted(self, g_u: Vectors) -> Vectors:
        return _clipped([lam_k * g_k for lam_k, g_k in zip(self.lam, g_u, strict=True)], self.s)


def _clipped(pressure: Vectors, s: FedORA) -> Vectors:
    return [clipped(p_k, s.clip) for p_k in pressure]


def adjustment(change: float, previous: float, s: FedORA) -> float:
    """phi of (32): what a step size is multiplied by after parameters moved by `change`, and `previous` before."""
    if previous <= 0:
        return 1.0
    if change > s.shrink_above * previous:
        return s.shrink
    return s.grow if change < s.grow_below * previous else 1.0


# --- between parties -------------------------------------------------------------------------------------------------


class _Loss:
    """A loss of an exchange's logits."""

    def __init__(self, exchange: Exchange, loss: Tensor) -> None:
        self.exchange, self.loss, self.value = exchange, loss, float(loss.detach())

    def gradients(self, scale: float = 1.0) -> Vectors:
        return self.exchange.backward(scale * self.loss)


def fedora(
    f: VerticalFederation, deletion: Deletion, config: FedORA, on_iteration: Callable[[Iteration], None] | None = None
) -> Parties:
    """The parties after unlearning, with the samples that stay at hand; the federation's own are left untouched.

    `on_iteration` gets the dual variable, the residual and the step sizes of each iteration, and after the end the
    score of the result. Random: batches of retained samples, from the streams of (f.seed, iteration), none of which
    training uses.

    Raises InfeasibleConstraint if no model can be so uncertain, NumericalFailure if parameters become NaN or infinite.
    """
    forget, retain = deletion.forget[0], deletion.retain[0]  # row numbers
    epsilon = config.epsilon(f.parties.active.classes)
    substeps = math.ceil(config.ratio * len(retain) / config.batch_size)  # J

    def forgetting(theta: Vectors) -> Answer:
        exchange = forward(f.parties, theta, forget, f.boundary)
        return _Loss(exchange, uncertainty_loss(exchange.logits, weight=config.weight, score=config.score))  # (24)

    batches_of: dict[int, list[Tensor]] = {}

    def retained(theta: Vectors, t: int, j: int) -> Answer:
        if t not in batches_of:
            batches_of.clear()
            batches_of[t] = epoch_batches(retain, config.batch_size, seed=f.seed, epoch=-1 - t)  # no epoch of training
        exchange = forward(f.parties, theta, batches_of[t][j], f.boundary)
        return _Loss(exchange, F.cross_entropy(exchange.logits, exchange.y))  # (26)

    def told(iteration: Iteration) -> None:
        if config.step_rule and config.unlearn and iteration.t:  # the closing report has none of its own
            f.boundary.numbers(len(f.parties.passive))  # of the iteration before: gradient norms up, lambda down
        if on_iteration is not None:
            on_iteration(iteration)

    w = f.parties.w
    f.meter.keep("theta0 and the cached gradient", *w, *w)
    theta = primal_dual(w, forgetting, retained, config, epsilon=epsilon, substeps=substeps, on_iteration=told)
    return f.parties.having(theta)


@register("FedORA", paper="FedORA", colour="#e3550f", parameters=FedORA, exchanges=("vertical",), recovers=False)
@register(
    "FedORA vector", paper="FedORA", colour="#f2b27b", dash="--", parameters=FedORA,
    preset={"dual": "vector", "sigma": 10.0}, exchanges=("vertical",), recovers=False,
)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: FedORA) -> Parties:
    """`trained.watch` hears of every `Iteration`."""
    return fedora(trained.vertical, deletion, config, trained.watch)


@register(
    "FedORA calibrated", paper="FedORA, errata F1", colour="#8c1d40", parameters=Calibrated,
    needs=Needs(auxiliary_data=True), exchanges=("vertical",), recovers=False,
)  # fmt: skip
def serve_calibrated(trained: Trained, deletion: Deletion, config: Calibrated) -> Parties:
    """As `serve`, with the threshold that `config.unseen` asks for, whatever `config.threshold` is."""
    threshold = threshold_of_unseen(trained.vertical.parties, config)
    trained.notes["threshold"] = threshold
    return fedora(trained.vertical, deletion, replace(config, threshold=threshold), trained.watch)
