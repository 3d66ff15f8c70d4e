"""FedORA's iteration for any two losses: dual and primal steps, their sizes, when it stops and how it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from fu_core.federation.vertical import Vectors, check_finite, clipped

if TYPE_CHECKING:
    from fu_core.unlearning.fedora import FedORA

OUTCOMES = ("met", "costly", "unmet", "diverged")


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


class Ending(NamedTuple):
    """How a run ended, and why.

    outcome: one of OUTCOMES. "met": the last score suffices and the retained loss is within its limit; "costly": the
    score suffices, but the retained loss is above its limit; "unmet": the score is too low; "diverged": the retained
    loss is above its limit and above that of uniform predictions, so that the model is worse than one that knows
    nothing. What a run's options leave unmeasured is taken to be within its limit.
    """

    outcome: str
    why: str
    iterations: int  # steps taken, of all substeps
    score: float  # L_u of the result, on the samples that were looked at last
    epsilon: float
    first: float  # L_r(theta^0), nan if nobody asked
    retained: float  # L_r, mean over the last iteration's batches; `first` if there was none
    limit: float  # on L_r

    @property
    def notes(self) -> dict[str, float | int | str]:
        """As the method tells them, without what was not measured."""
        told = self._asdict().items()
        return {name: value for name, value in told if isinstance(value, str) or not math.isnan(value)}


class Answer(Protocol):
    """A loss at some parameters, and its gradients if asked."""

    value: float

    def gradients(self, scale: float = 1.0) -> Vectors:
        """Every party's gradient of `scale` times the loss."""


class AtLeast(NamedTuple):
    """The constraint: `loss(theta)`, L_u, is `epsilon` or more."""

    loss: Callable[[Vectors], Answer]
    epsilon: float


def primal_dual(
    theta0: Vectors,
    constraint: AtLeast,
    retained: Callable[[Vectors, int, int], Answer],
    s: FedORA,
    *,
    substeps: int,
    uniform: float = math.nan,
    on_iteration: Callable[[Iteration], None] | None = None,
    on_end: Callable[[Ending], None] | None = None,
) -> Vectors:
    """Algorithms 1 and 2 for any two losses: L_u of the constraint, and `retained(theta, t, j)`, L_r on batch j.

    No substep at all (ratio 0) is one step without retained data. Lists have one entry per party and are combined
    entry by entry; the price lambda travels inside the gradients that the active party sends, so it crosses no
    border. Step sizes are each party's own, from its own changes; sigma follows the active party's.

    uniform: L_r of uniform predictions, log C, if known: what `s.room` is a share of, and what tells divergence.
    Where the stop rule or the step sizes need it, L_r(theta^0) is asked for on the first iteration's batches before
    anything has moved. The stop rule looks at the score of what it returns: after L_u was asked for, before a step.
    """
    forgetting, epsilon = constraint
    theta = [w_k.clone() for w_k in theta0]
    dual: ScalarDual | VectorDual = ScalarDual(s) if s.dual == "scalar" else VectorDual(s, theta)
    tau, sigma = [s.tau] * len(theta), s.sigma
    change = [0.0] * len(theta)
    first = mean = math.nan
    if s.needs_reference and substeps:
        first = mean = _mean([retained(theta, 0, j).value for j in range(substeps)])  # L_r(theta^0)
    limit = (1 + s.slack) * first + (s.room * uniform if s.room and not math.isnan(uniform) else 0.0)
    score, done = math.nan, 0
    for t in range(s.iterations):
        before, pressure = [w_k.clone() for w_k in theta], None
        if s.unlearn:
            L_u = forgetting(theta)
            score = L_u.value
            if s.patience and score >= epsilon and not mean > limit:
                break
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
        done = t + 1
        previous, change = change, [float((a - b).norm()) for a, b in zip(theta, before, strict=True)]  # (29)
        last, mean = mean, _mean(losses)
        if on_iteration is not None:
            told = score if s.unlearn else math.nan
            on_iteration(Iteration(t, told, epsilon - told, dual.value, tuple(tau), sigma, tuple(change), mean))
        if s.adaptive and t > 0:  # (30) to (33)
            calm = (mean <= last or mean <= limit) if s.steps == "guarded" and losses else None
            factors = [adjustment(now, then, s, calm=calm) for now, then in zip(change, previous, strict=True)]
            tau = [min(s.largest_steps * s.tau, tau_k * factor) for tau_k, factor in zip(tau, factors, strict=True)]
            sigma = min(s.largest_steps * s.sigma, sigma * factors[-1])
    else:
        if on_iteration is not None or on_end is not None:
            score = forgetting(theta).value
    if on_iteration is not None:
        still = (0.0,) * len(theta)
        on_iteration(Iteration(done, score, epsilon - score, dual.value, tuple(tau), sigma, still, math.nan))
    if on_end is not None:
        on_end(ending(score, mean, epsilon=epsilon, first=first, limit=limit, uniform=uniform, iterations=done, s=s))
    return theta


def ending(
    score: float, mean: float, *, epsilon: float, first: float, limit: float, uniform: float, iterations: int, s: FedORA
) -> Ending:
    """What to say of a run whose last score and retained loss are these."""
    enough, above = score >= epsilon, mean > limit
    hopeless = mean > uniform and not mean <= limit
    outcome = "diverged" if hopeless else "unmet" if not enough else "costly" if above else "met"
    why = f"score {score:.4g} {'>=' if enough else '<'} {epsilon:.4g}"
    if not math.isnan(mean):
        why += f", retained loss {mean:.4g}" + ("" if math.isnan(limit) else f" {'>' if above else '<='} {limit:.4g}")
    why += f", after {iterations} of {s.iterations} iterations"
    return Ending(outcome, why, iterations, score, epsilon, first, mean, limit)


def _mean(losses: list[float]) -> float:
    return sum(losses) / len(losses) if losses else math.nan


class ScalarDual:
    """One lambda >= 0, kept by the active party: it grows while the score is too low, and relaxes.

    Score and threshold are divided by `s.unit`, so that neither its price nor its pressure grows with beta.
    """

    def __init__(self, s: FedORA) -> None:
        self.s, self.value = s, 0.0

    def step(self, L_u: Answer, sigma: float, tau: float, epsilon: float) -> tuple[float, Vectors]:
        """Eq. (20); returns sigma, lowered if the step rule asks for it, and lambda * grad L_u."""
        unit = self.s.unit
        if not self.s.step_rule:
            self.value = max(0.0, self.value + sigma * (epsilon - L_u.value) / unit)
            return sigma, self.pressure(L_u)
        g_u = L_u.gradients(1 / unit)
        sigma = min(sigma, 0.95 / max(tau * sum(float(g_k.dot(g_k)) for g_k in g_u), 1e-30))  # tau sigma |K|^2 < 1
        self.value = max(0.0, self.value + sigma * (epsilon - L_u.value) / unit)
        return sigma, _clipped([self.value * g_k for g_k in g_u], self.s)

    def pressure(self, L_u: Answer) -> Vectors:
        """lambda * grad L_u, the price already inside what is sent."""
        return _clipped(L_u.gradients(self.value / self.s.unit), self.s)


class VectorDual:
    """One dual per parameter, kept where the parameter is. It accumulates gradients, and sees no threshold."""

    def __init__(self, s: FedORA, theta: Vectors) -> None:
        self.s, self.lam = s, [torch.zeros_like(w_k) for w_k in theta]

    def step(self, L_u: Answer, sigma: float, tau: float, epsilon: float) -> tuple[float, Vectors]:
        """Eq. (25); returns sigma as it is and lambda_k * grad L_u, element by element (27)."""
        g_u = L_u.gradients(1 / self.s.unit)
        for lam_k, g_k in zip(self.lam, g_u, strict=True):
            lam_k.add_(sigma * g_k).clamp_(min=0)
        return sigma, self._weighted(g_u)

    def pressure(self, L_u: Answer) -> Vectors:
        """lambda_k * grad L_u with a gradient of now."""
        return self._weighted(L_u.gradients(1 / self.s.unit))

    @property
    def value(self) -> float:
        """Mean over all parameters."""
        return float(torch.cat(self.lam).mean())

    def _weighted(self, g_u: Vectors) -> Vectors:
        return _clipped([lam_k * g_k for lam_k, g_k in zip(self.lam, g_u, strict=True)], self.s)


def _clipped(pressure: Vectors, s: FedORA) -> Vectors:
    return [clipped(p_k, s.clip) for p_k in pressure]


def adjustment(change: float, previous: float, s: FedORA, *, calm: bool | None = None) -> float:
    """phi of (32): what a step size is multiplied by after parameters moved by `change`, and `previous` before.

    calm: whether the retained loss falls or is within its limit; None: unknown, or of no account. If it is, a larger
    change is the price that rises, not the "potential instability" that the paper shrinks steps for, and they stay; if
    it is not, a smaller change is no sign that larger steps are safe.
    """
    if previous <= 0:
        return 1.0
    if change > s.shrink_above * previous:
        return 1.0 if calm else s.shrink
    return s.grow if change < s.grow_below * previous and calm is not False else 1.0
