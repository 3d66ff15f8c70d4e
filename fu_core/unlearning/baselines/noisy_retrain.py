"""Retrain and output perturbation: what any certified method must lie between.

    Retrain                w_r + N(0, sigma^2 I)               trained on what is retained: epsilon = delta = 0
    output perturbation    w + N(0, sigma^2 I)                 trained on everything, and nothing unlearnt

Retrain takes the noise of the method that it stands beside, which nobody needs and a fair comparison has. Output
perturbation needs as much noise as two trainings can differ: T steps contract by gamma towards minimisers that are
2 m G / (lambda n) apart, and come as near as gamma^T G / lambda; or, of any loss, 2 C after clipping the model to C:

    Delta = 2 m G / (lambda n) + 2 gamma^T G / lambda          or 2 C

m counts all that was ever deleted: the model of the last request knows what earlier ones took away, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import check_count, check_not_negative, check_positive
from fu_core.federation.federation import Federation
from fu_core.request import Deletion
from fu_core.unlearning.baselines.noisy_fine_tuning import clipped
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_core.unlearning.noise import Noise
from fu_core.unlearning.released import Clock, Released, caveats, check_before, check_guarantee, draw_of
from fu_core.unlearning.sums import Bounds, Sums, as_linear, descend, loss_bounds


@dataclass(frozen=True)
class NoisyRetrain:
    """sigma: of the noise, as of the method that this is compared with; training: full gradient steps."""

    sigma: float = 0.0
    training: int = 200
    bounds: Bounds | None = None  # of the loss; None: as proved, or as seen in the data

    def __post_init__(self) -> None:
        check_not_negative("sigma", self.sigma)
        check_count("training", self.training)


@dataclass(frozen=True)
class OutputPerturbation:
    """clip: C, to which the model is clipped; None: the bound of strongly convex losses. training: T steps."""

    epsilon: float = 1.0
    delta: float = 1e-5
    clip: float | None = None
    training: int = 200
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        check_guarantee(self.epsilon, self.delta)
        check_count("training", self.training)
        if self.clip is not None:
            check_positive("clip", self.clip)


@dataclass(frozen=True, eq=False)
class Fitted:
    """w (d,): after training on n samples; gone: how many of them have been deleted so far, all of which w knows."""

    config: NoisyRetrain | OutputPerturbation
    w: Tensor
    bounds: Bounds
    n: int
    gone: int = 0


def prepare(f: Federation, config: NoisyRetrain | OutputPerturbation, noise: Noise | None = None) -> Fitted:
    """T full gradient steps on everybody's data, from zero. Deterministic: the noise comes with a release."""
    linear = as_linear(f)
    bounds = config.bounds or loss_bounds(linear, f.model)
    return Fitted(config, _trained(linear, bounds, config.training), bounds, Sums(linear).n)


def release(f: Federation, prepared: Fitted, deletion: Deletion, noise: Noise | None = None) -> Released:
    """The retrained model, or the old one, with noise. f: the federation before the request, without what earlier
    requests have deleted, which the state counts."""
    check_before(f, prepared.n - prepared.gone)
    config, clock, rest = prepared.config, Clock.start(f.meter), as_linear(f.after(deletion))
    m = prepared.gone + deletion.m
    if isinstance(config, NoisyRetrain):
        w, sigma, radius, epsilon, delta = _trained(rest, prepared.bounds, config.training), config.sigma, 0.0, 0.0, 0.0
        reason = ""
    else:
        w, radius, reason = _as_it_is(prepared, config, f.model.l2, m)
        epsilon, delta = config.epsilon, config.delta
        sigma = gaussian_sigma(radius, epsilon=epsilon, delta=delta)
    model = w + sigma * draw_of(noise).normal("release", 0, w)
    passes, vectors = clock.spent(Sums(rest).n, w)
    nominal = caveats(reason, noise=noise)
    state = replace(prepared, gone=m)
    return Released(model, w, sigma, epsilon, delta, radius, nominal, passes, vectors, state)


def _as_it_is(prepared: Fitted, config: OutputPerturbation, l2: float, m: int) -> tuple[Tensor, float, str]:
    """The old model, how far from it retraining can be, and why that is nominal."""
    if config.clip is not None:
        return clipped(prepared.w, config.clip), 2 * config.clip, ""
    return prepared.w, sensitivity(prepared, l2, m), prepared.bounds.nominal


def sensitivity(prepared: Fitted, l2: float, m: int) -> float:
    """Delta = 2 m G / (lambda n) + 2 gamma^T G / lambda: of two trainings, T steps each."""
    G, L = prepared.bounds.gradient, prepared.bounds.curvature + l2
    short = ((L - l2) / (L + l2)) ** prepared.config.training * G / l2
    return 2 * m * G / (l2 * prepared.n) + 2 * short


def _trained(linear: Federation, bounds: Bounds, steps: int) -> Tensor:
    zero = torch.zeros(linear.model.d, dtype=torch.float64)
    l2 = linear.model.l2
    return descend(Sums(linear).gradient, zero, steps, lr=2 / (bounds.curvature + 2 * l2))
