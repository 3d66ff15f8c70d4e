"""Descent-to-delete (Neel, Roth and Sharifi-Malvajerdi, ALT 2021): a few full gradient steps per request, then noise.

    w <- w - 2 / (L + lambda) grad f_r(w)        I times, on what is retained
    publish w + N(0, sigma^2 I)

A step contracts by gamma = (L - lambda) / (L + lambda). m of n samples taken away move the minimiser by 2 G m /
(lambda n) at most, G the steepest data term of a sample. So a path that is within alpha = 2 G m gamma^I / (lambda n
(1 - gamma^I)) of its minimiser is so again after I steps; retraining is as near to the same minimiser, and the two
models are within 2 alpha. Two calibrations of sigma, two states:

    analytic    the least noise for 2 alpha                     n: the fewest samples there are before a request
    printed     n: at first, if half of them stay at least
                4 sqrt2 G gamma^I / (lambda n (1 - gamma^I) (sqrt(ln(1/delta) + eps) - sqrt ln(1/delta)))
    secret      the next request starts at w without the noise, which must stay secret
    published   it starts at the published model: nothing is secret, sigma is larger, later requests take more steps:

    sigma = 8 G gamma^I / (lambda n (1 - gamma^I) (sqrt(2 ln(2/delta) + 3 eps) - sqrt(2 ln(2/delta) + 2 eps)))
    I_i = I + ln ln(4 d i / delta) / ln(1/gamma)
    I >= ln(sqrt(2 d) / ((1 - gamma) (sqrt(2 ln(2/delta) + eps) - sqrt(2 ln(2/delta))))) / ln(1/gamma)

The paper deletes one sample per request; m of them at once is the same argument with m G in the place of G. Each
release is (epsilon, delta) by itself. The certificate is about those who see no more than what is published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation, check_choice, check_count
from fu_core.federation.federation import Federation
from fu_core.request import Deletion
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_core.unlearning.noise import Noise
from fu_core.unlearning.released import Clock, Released, caveats, check_before, check_guarantee, draw_of
from fu_core.unlearning.sums import Bounds, Sums, as_linear, descend, loss_bounds, rounding

STATES = ("secret", "published")
CALIBRATIONS = ("analytic", "printed")


@dataclass(frozen=True)
class DescentToDelete:
    """steps: I per request; samples, requests: the most that one request takes, and how many will come."""

    steps: int = 5
    epsilon: float = 1.0
    delta: float = 1e-5
    state: str = "secret"
    calibration: str = "analytic"
    samples: int = 1
    requests: int = 1
    bounds: Bounds | None = None  # of the loss; None: as proved, or as seen in the data

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_guarantee(self.epsilon, self.delta)
        check_choice("state", self.state, STATES)
        check_choice("calibration", self.calibration, CALIBRATIONS)
        check_count("samples", self.samples)
        check_count("requests", self.requests)
        if self.state == "published" and self.calibration != "printed":
            raise ValueError("state='published' is calibrated as printed: give calibration='printed'")


@dataclass(frozen=True)
class Descent:
    """What a configuration comes to for a loss. n: samples at first; d: parameters; l2: lambda.

    Distances contain what float64 may add to them: after many steps the exact ones fall below it.
    """

    config: DescentToDelete
    bounds: Bounds
    n: int
    d: int
    l2: float

    @property
    def smoothness(self) -> float:
        """L, with the regulariser."""
        return self.bounds.curvature + self.l2

    @property
    def lr(self) -> float:
        """2 / (L + lambda), the rate that contracts most."""
        return 2 / (self.smoothness + self.l2)

    @property
    def contraction(self) -> float:
        """gamma."""
        return (self.smoothness - self.l2) / (self.smoothness + self.l2)

    @property
    def apart(self) -> float:
        """2 alpha: how far apart unlearning and retraining can be, before noise."""
        config, shrunk = self.config, self.contraction**self.config.steps
        fewest = self.n - (config.requests - 1) * config.samples
        if fewest <= config.samples:
            raise CertificateViolation(
                f"requests and samples: {config.requests} requests of {config.samples} leave nothing of {self.n}"
            )
        exact = 4 * self.bounds.gradient * config.samples * shrunk / (self.l2 * fewest * (1 - shrunk))
        return exact + 2 * self.rounding

    @property
    def rounding(self) -> float:
        """Of either path, in float64."""
        return rounding(self.bounds, l2=self.l2, n=self.n, d=self.d, lr=self.lr)

    @property
    def sigma(self) -> float:
        """Of the noise in every release, enough for rounding, too.

        Raises ValueError naming steps where "published" needs more of them.
        """
        if self.config.calibration == "analytic":
            return self._covering(self.apart)
        return max(self._printed, self._covering(2 * self.rounding))

    def _covering(self, distance: float) -> float:
        return gaussian_sigma(distance, epsilon=self.config.epsilon, delta=self.config.delta)

    @property
    def _printed(self) -> float:
        config, shrunk = self.config, self.contraction**self.config.steps
        moved = self.bounds.gradient * config.samples * shrunk / (self.l2 * self.n * (1 - shrunk))
        if config.state == "secret":
            log = math.log(1 / config.delta)
            return 4 * math.sqrt(2) * moved / (math.sqrt(log + config.epsilon) - math.sqrt(log))
        if config.steps < self.fewest_steps:
            raise ValueError(f"steps must be >= {self.fewest_steps} for state='published', got {config.steps}")
        log = 2 * math.log(2 / config.delta)
        return 8 * moved / (math.sqrt(log + 3 * config.epsilon) - math.sqrt(log + 2 * config.epsilon))

    @property
    def fewest_steps(self) -> int:
        """The least I for which published models may be started from."""
        log = 2 * math.log(2 / self.config.delta)
        room = (1 - self.contraction) * (math.sqrt(log + self.config.epsilon) - math.sqrt(log))
        return max(1, math.ceil(math.log(math.sqrt(2 * self.d) / room) / math.log(1 / self.contraction)))

    def steps(self, request: int) -> int:
        """Gradient steps for the 1st, 2nd, ... request: I, or I_i where the noise of the last release is to be lost."""
        if self.config.state == "secret":
            return self.config.steps
        more = math.log(math.log(4 * self.d * request / self.config.delta)) / math.log(1 / self.contraction)
        return self.config.steps + math.ceil(more)

    @property
    def training_steps(self) -> int:
        """From zero to within alpha of the minimiser, which is G / lambda away at most."""
        reach = self.bounds.gradient / self.l2
        return max(self.config.steps, math.ceil(math.log(self.apart / 2 / reach) / math.log(self.contraction)))


@dataclass(frozen=True, eq=False)
class Start:
    """Where the next request starts. w (d,): noiseless, secret, or as published; served: requests so far; n: samples
    that they have left."""

    descent: Descent
    w: Tensor
    served: int
    reason: str
    n: int


def prepare(f: Federation, config: DescentToDelete, noise: Noise | None = None) -> Start:
    """Train on everybody's data, from zero. Random: the noise of the first model, if that is to be started from."""
    linear = as_linear(f)
    bounds = config.bounds or loss_bounds(linear, f.model)
    sums = Sums(linear)
    descent = Descent(config, bounds, sums.n, linear.model.d, linear.model.l2)
    sigma = descent.sigma  # refused before anything is computed
    w = descend(sums.gradient, _zero(f), descent.training_steps, lr=descent.lr)
    if config.state == "published":
        w = w + sigma * draw_of(noise).normal("release", 0, w)
    begun = noise if config.state == "published" else None
    return Start(descent, w, 0, caveats(bounds.nominal, noise=begun), sums.n)


def release(f: Federation, prepared: Start, deletion: Deletion, noise: Noise | None = None) -> Released:
    """The model after I steps on what is retained, and noise. f: the federation before the request.

    Raises CertificateViolation for a request that is larger, or later, than those the noise was chosen for.
    """
    descent, clock, request = prepared.descent, Clock.start(f.meter), prepared.served + 1
    config = descent.config
    check_before(f, prepared.n)
    if deletion.m > config.samples:
        raise CertificateViolation(f"samples: {deletion.m} are to be deleted, sigma was chosen for {config.samples}")
    if request > config.requests and config.calibration == "analytic":
        raise CertificateViolation(f"requests: this is number {request}, sigma was chosen for {config.requests}")
    sums = Sums(as_linear(f.after(deletion)))
    if sums.n < descent.n / 2 and config.calibration == "printed":
        raise CertificateViolation(f"{sums.n} of {descent.n} samples are left, the printed sigma needs half of them")
    w = descend(sums.gradient, prepared.w, descent.steps(request), lr=descent.lr)
    model = w + descent.sigma * draw_of(noise).normal("release", 0, w)
    passes, vectors = clock.spent(sums.n, w)
    following = replace(prepared, w=model if config.state == "published" else w, served=request, n=sums.n)
    radius = descent.apart if config.state == "secret" else None
    return Released(
        model, w, descent.sigma, config.epsilon, config.delta, radius, caveats(prepared.reason, noise=noise), passes,
        vectors, following,
    )  # fmt: skip


def _zero(f: Federation) -> Tensor:
    return torch.zeros(f.model.d, dtype=torch.float64)
