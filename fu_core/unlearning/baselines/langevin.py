"""Langevin unlearning (Chien et al., NeurIPS 2024): noisy gradient descent learns, and unlearns by going on without U.

    w <- Pi_R(w - eta grad f(w) + sqrt(2 eta sigma^2) xi),  xi ~ N(0, I)      T steps on D, then K on D without U

For a lambda-strongly convex f, eta <= 1 / L and S of n samples taken away (or replaced), the Renyi divergence from a
training on D without U falls as noise and contraction forget where they started:

    D_alpha <= e^(-K eta lambda / alpha) 4 alpha S^2 G^2 / (lambda sigma^2 n^2)
    epsilon = min over 1 < alpha <= 10^4 of D_alpha + ln(1 / delta) / (alpha - 1)

Requests in a row, each K_s steps, start from what the last one has left; with E_0 the value at K = 0 and alpha > 2

    E_s(alpha) = e^(-K_s eta lambda / alpha) (alpha - 1/2) / (alpha - 1) (E_0(2 alpha) + E_{s-1}(2 alpha))

At K = 0 this is the privacy of learning: noise that covers S samples from the start needs no steps to unlearn them. The
noise lies in every step, so the last iterate is the released model. G bounds the data term of a sample's gradient, by
the loss and not by clipping, after which several classes' losses would no longer be convex. Where peers add noise each,
N(0, 2 eta sigma^2 N I) per summand of a mean of N gives the same; here it is drawn once. Without convexity no constant
but R would carry a bound, so nothing is certified there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from fu_core.errors import CertificateViolation, NumericalFailure, check_count, check_positive
from fu_core.federation.federation import Federation
from fu_core.request import Deletion
from fu_core.unlearning.noise import Noise
from fu_core.unlearning.released import Clock, Released, caveats, check_before, check_guarantee, draw_of, least
from fu_core.unlearning.sums import Bounds, Sums, as_linear, loss_bounds

LARGEST_ALPHA = 1e4


@dataclass(frozen=True)
class Langevin:
    """samples: S, the most that one request takes; training, steps: T and the K that the first request should need.

    sigma: of the noise, sqrt(2 eta) sigma per step; None: the least for which `steps` suffice. most: steps that a
    request may take at all; ball: R, for a projection after each step.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    samples: int = 1
    training: int = 1000
    steps: int = 20
    sigma: float | None = None
    most: int = 10_000
    ball: float | None = None
    bounds: Bounds | None = None  # of the loss; None: as proved, or as seen in the data

    def __post_init__(self) -> None:
        check_guarantee(self.epsilon, self.delta)
        for name in ("samples", "training", "most"):
            check_count(name, getattr(self, name))
        check_count("steps", self.steps, least=0)
        for name in ("sigma", "ball"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))


@dataclass(frozen=True)
class Walk:
    """The constants of noisy descent. G: of one sample's gradient; L: smoothness, l2: lambda, both of f; n: samples."""

    sigma: float
    G: float
    L: float
    l2: float
    n: int

    @property
    def lr(self) -> float:
        """eta = 1 / L, the largest that is allowed."""
        return 1 / self.L

    def renyi(self, alpha: float, requests: Sequence[tuple[int, int]]) -> float:
        """D_alpha after requests (S, K) in a row: samples taken away, steps made."""
        if not requests:
            return 0.0
        *before, (S, K) = requests
        decay = math.exp(-K * self.lr * self.l2 / alpha)
        n = self.n - sum(gone for gone, _ in before)
        if not before:
            return decay * self._learning(alpha, S, n)
        factor = (alpha - 0.5) / (alpha - 1)
        return decay * factor * (self._learning(2 * alpha, S, n) + self.renyi(2 * alpha, before))

    def _learning(self, alpha: float, S: int, n: int) -> float:
        """E_0: between trainings, however long, on n samples and without S of them."""
        return 4 * alpha * S**2 * self.G**2 / (self.l2 * self.sigma**2 * n**2)

    def epsilon(self, requests: Sequence[tuple[int, int]], delta: float) -> float:
        """The epsilon that is proved at this delta, by a search over log(alpha - 1)."""
        above = 1.0 if len(requests) < 2 else 2.0

        def at(t: float) -> float:
            alpha = above + math.exp(t)
            return self.renyi(alpha, requests) + math.log(1 / delta) / (alpha - 1)

        low, high = math.log(1e-6), math.log(LARGEST_ALPHA - above)
        grid = [low + (high - low) * k / 200 for k in range(201)]
        best = min(range(201), key=lambda k: at(grid[k]))
        inside = minimize_scalar(at, bounds=(grid[max(best - 1, 0)], grid[min(best + 1, 200)]), method="bounded")
        return min(float(inside.fun), at(grid[best]))

    def steps(self, samples: int, before: Sequence[tuple[int, int]], config: Langevin) -> int:
        """The least K that proves config.epsilon for one request more; CertificateViolation beyond `most`."""

        def proved(K: int) -> bool:
            return self.epsilon([*before, (samples, K)], config.delta) <= config.epsilon

        if not proved(config.most):
            raise CertificateViolation(
                f"samples: {config.most} steps do not prove epsilon {config.epsilon:g} for {samples} samples at sigma "
                f"{self.sigma:.3g}, after {len(before)} requests: raise sigma, or train again"
            )
        low, high = -1, config.most  # falls with K
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if proved(middle) else (middle, high)
        return high


def calibrated(config: Langevin, G: float, L: float, l2: float, n: int) -> Walk:
    """With config.sigma, or the least sigma for which config.steps suffice.

    Raises CertificateViolation for an epsilon that no sigma proves: ln(1 / delta) / (10^4 - 1) is left of any.
    """
    if config.sigma is not None:
        return Walk(config.sigma, G, L, l2, n)

    def proved(sigma: float) -> float:
        return Walk(sigma, G, L, l2, n).epsilon([(config.samples, config.steps)], config.delta)

    def suffices(sigma: float) -> bool:
        return proved(sigma) <= config.epsilon

    if not suffices(math.inf):
        raise CertificateViolation(
            f"epsilon must be at least {proved(math.inf):.3g} at delta {config.delta:g}, or no noise proves it, "
            f"got {config.epsilon:g}"
        )
    return Walk(least(suffices, G * config.samples / n), G, L, l2, n)


@dataclass(frozen=True, eq=False)
class Learnt:
    """w (d,): the last iterate; requests: (samples, steps) served so far."""

    config: Langevin
    walk: Walk
    w: Tensor
    requests: tuple[tuple[int, int], ...]
    reason: str


def prepare(f: Federation, config: Langevin, noise: Noise | None = None) -> Learnt:
    """T noisy steps on everybody's data, from zero. Random: their noise."""
    linear = as_linear(f)
    bounds = config.bounds or loss_bounds(linear, f.model)
    sums, l2 = Sums(linear), linear.model.l2
    walk = calibrated(config, bounds.gradient, bounds.curvature + l2, l2, sums.n)
    w = noisy_descent(sums, torch.zeros(linear.model.d, dtype=torch.float64), config.training, walk, config.ball, noise)
    return Learnt(config, walk, w, (), caveats(bounds.nominal, noise=noise))


def release(f: Federation, prepared: Learnt, deletion: Deletion, noise: Noise | None = None) -> Released:
    """The last of as few noisy steps on what is retained as prove epsilon. f: the federation before the request.

    Raises CertificateViolation for more samples than announced, or where `most` steps are not enough.
    """
    config, walk, clock = prepared.config, prepared.walk, Clock.start(f.meter)
    check_before(f, walk.n - sum(gone for gone, _ in prepared.requests))
    if deletion.m > config.samples:
        raise CertificateViolation(f"samples: {deletion.m} are to be deleted, sigma was chosen for {config.samples}")
    K = walk.steps(deletion.m, prepared.requests, config)
    sums = Sums(as_linear(f.after(deletion)))
    w = noisy_descent(sums, prepared.w, K, walk, config.ball, noise)
    requests = (*prepared.requests, (deletion.m, K))
    passes, vectors = clock.spent(sums.n, w)
    nominal = prepared.reason or caveats(noise=noise)
    return Released(
        w, None, walk.sigma, walk.epsilon(requests, config.delta), config.delta, None, nominal, passes, vectors,
        replace(prepared, w=w, requests=requests),
    )  # fmt: skip


def noisy_descent(sums: Sums, w: Tensor, steps: int, walk: Walk, ball: float | None, noise: Noise | None) -> Tensor:
    """w <- Pi_R(w - eta grad f(w) + sqrt(2 eta sigma^2) xi), so many times. Random: xi."""
    scale, draw = math.sqrt(2 * walk.lr) * walk.sigma, draw_of(noise)
    for t in range(steps):
        w = w - walk.lr * sums.gradient(w) + scale * draw.normal("step", t, w)
        if ball is not None:
            w = w * (ball / max(ball, float(w.norm())))
    if not bool(w.isfinite().all()):
        raise NumericalFailure(f"noisy descent is not finite after {steps} steps at sigma {walk.sigma:g}")
    return w
