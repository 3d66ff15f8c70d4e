"""Certified clipping (Koloskova et al., ICML 2025): fine-tune on retained data, clipped and with noise; any loss.

    clip_C(v) = v min(1, C / |v|),   x_0 = clip_C0(w)

    clip="gradient"    x <- x - gamma (clip_C1(g) + lambda x) + N(0, sigma^2 I)            T times
    clip="model"       x <- clip_C2(x - gamma (g + lambda x)) + N(0, sigma^2 I)            T times

g is any function of x, retained data and fresh randomness: the full gradient, or minus the average update of a round.
The certificate compares with the same steps from any other model, so nothing is assumed of the loss or of how w was
trained; C0, C1, C2 must be fixed beforehand, and momentum from before the request is dropped. Gradients, by Renyi
divergence, with rho = 1 - gamma lambda:

    A = 2 C0 rho^T + 2 gamma C1 (1 - rho^T) / (1 - rho),   V = (1 - rho^2T) / (1 - rho^2)
    D_alpha <= alpha r with r = A^2 / (2 sigma^2 V),   epsilon = r + 2 sqrt(r ln(1/delta))
    printed, lambda = 0:   sigma^2 = 9 ln(1/delta) / epsilon^2 (C0 / sqrt T + C1 gamma sqrt T)^2

Models, by the contraction of noise: delta_0 = 1, or theta_epsilon(2 C0 / sigma_0) after noise sigma_0 on x_0, and

    delta_{t+1} = delta_t theta_e(2 C2 / sigma),   e = ln(1 + (e^epsilon - 1) / delta_t)
    theta_e(r) = Q(e / r - r / 2) - e^e Q(e / r + r / 2)

until delta_t <= delta. Only the last iterate is certified: who computes the steps sees the earlier ones. What follows
without noise is post-processing. The released code takes r for D_alpha at every alpha, and half of V at lambda = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import (
    CertificateViolation,
    NumericalFailure,
    check_choice,
    check_count,
    check_not_negative,
    check_positive,
)
from fu_core.federation.decentralised import start
from fu_core.federation.federation import Federation
from fu_core.federation.server import FedOpt, aggregate
from fu_core.federation.together import prepared as prepared_rounds
from fu_core.federation.together import train_round
from fu_core.request import Deletion
from fu_core.unlearning.gaussian_mechanism import gaussian_delta
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.noise import Draw, Noise
from fu_core.unlearning.ranges import Range
from fu_core.unlearning.released import Clock, Released, caveats, check_guarantee, draw_of, least
from fu_core.unlearning.sums import Sums, as_linear, descend, sum_cost

CLIPS = ("gradient", "model")
CALIBRATIONS = ("renyi", "printed")
MOST_STEPS = 100_000


@dataclass(frozen=True)
class NoisyFineTuning:
    """lr: gamma; decay: lambda; start_clip, step_clip, model_clip: C0, C1 and C2.

    steps: T; None: what minimises the noise (clip="gradient"), or what sigma needs (clip="model"). sigma: None: what T
    steps need, 0 where the start's noise is enough by itself. start_sigma: sigma_0. tuning: noiseless steps or rounds
    afterwards. training: full gradient steps of `prepare`, where no model is given.
    """

    clip: str = "gradient"
    epsilon: float = 1.0
    delta: float = 1e-5
    lr: float = 1.0
    decay: float = 0.0
    start_clip: float = 1.0
    step_clip: float = 1.0
    model_clip: float = 1.0
    steps: int | None = None
    sigma: float | None = None
    start_sigma: float = 0.0
    calibration: str = "renyi"
    tuning: int = 0
    training: int = 200

    def __post_init__(self) -> None:
        check_choice("clip", self.clip, CLIPS)
        check_choice("calibration", self.calibration, CALIBRATIONS)
        check_guarantee(self.epsilon, self.delta)
        for name in ("lr", "start_clip", "step_clip", "model_clip"):
            check_positive(name, getattr(self, name))
        for name in ("decay", "start_sigma"):
            check_not_negative(name, getattr(self, name))
        check_count("tuning", self.tuning, least=0)
        check_count("training", self.training)
        if self.steps is not None:
            check_count("steps", self.steps)
        if self.sigma is not None:
            check_positive("sigma", self.sigma)
        if self.lr * self.decay > 1:
            raise ValueError(f"lr times decay must be <= 1, got {self.lr:g} times {self.decay:g}")
        if self.calibration == "printed" and (self.decay or self.clip != "gradient"):
            raise ValueError("calibration='printed' is for clip='gradient' with decay 0")
        if self.clip == "gradient" and self.sigma is not None:
            raise ValueError(f"sigma must be None for clip='gradient', where it follows from steps, got {self.sigma:g}")
        if self.clip == "model" and (self.steps is None) == (self.sigma is None):
            raise ValueError(f"clip='model' needs steps or sigma, not both, got {self.steps} and {self.sigma}")

    @property
    def rounds(self) -> int:
        """T. Raises CertificateViolation for a sigma that does not mix within MOST_STEPS."""
        if self.steps is not None:
            return self.steps
        if self.clip == "gradient":
            return least_noise_steps(self)
        assert self.sigma is not None  # one of both is given
        steps = mixed_after(self, self.sigma)
        if steps > MOST_STEPS:
            raise CertificateViolation(
                f"sigma {self.sigma:g} does not prove epsilon {self.epsilon:g} and delta {self.delta:g} within "
                f"{MOST_STEPS} steps at model_clip {self.model_clip:g}: raise sigma, or lower model_clip"
            )
        return steps

    @property
    def noise_per_step(self) -> float:
        """sigma; 0 for models whose start_sigma covers the request already: what follows is post-processing."""
        if self.clip == "gradient":
            return step_sigma(self, self.rounds)
        if self.sigma is not None:
            return self.sigma
        steps = self.rounds
        return least(lambda sigma: mixed_after(self, sigma, most=steps) <= steps, self.model_clip)


def least_noise_steps(config: NoisyFineTuning) -> int:
    """T that minimises sigma, C0 / (C1 gamma) without decay; with it, ln(2 lambda C0 / C1) / (gamma lambda) if less."""
    plain = math.ceil(config.start_clip / (config.step_clip * config.lr))
    reach = 2 * config.decay * config.start_clip / config.step_clip
    if reach <= 1:
        return plain
    return min(plain, math.ceil(math.log(reach) / (config.lr * config.decay)))


def reach_and_room(config: NoisyFineTuning, T: int) -> tuple[float, float]:
    """A: how far two noiseless runs can end apart; V: variance of the noise of T steps, in units of sigma^2."""
    rho = 1 - config.lr * config.decay
    kept = _geometric(rho, T)
    room = _geometric(rho * rho, T)
    return 2 * config.start_clip * rho**T + 2 * config.lr * config.step_clip * kept, room


def step_sigma(config: NoisyFineTuning, T: int) -> float:
    """sigma of each of T steps with clipped gradients."""
    log = math.log(1 / config.delta)
    if config.calibration == "printed":
        spread = config.start_clip / math.sqrt(T) + config.step_clip * config.lr * math.sqrt(T)
        return 3 * math.sqrt(log) / config.epsilon * spread
    A, V = reach_and_room(config, T)
    root = math.sqrt(log + config.epsilon) - math.sqrt(log)  # of r: epsilon = r + 2 sqrt(r ln(1/delta))
    return A / (root * math.sqrt(2 * V))


def theta(epsilon: float, r: float) -> float:
    """How apart two Gaussians r standard deviations from each other are: the delta of the Gaussian mechanism."""
    return gaussian_delta(r, 1.0, epsilon=epsilon)


def mixed_after(config: NoisyFineTuning, sigma: float, *, most: int = MOST_STEPS) -> int:
    """Rounds of model clipping after which delta_t <= delta; most + 1 if it takes more than `most`."""
    at = theta(config.epsilon, 2 * config.start_clip / config.start_sigma) if config.start_sigma else 1.0
    for t in range(most + 1):
        if at <= config.delta:
            return t
        at *= theta(math.log1p(math.expm1(config.epsilon) / at), 2 * config.model_clip / sigma)
    return most + 1


def clipped(v: Tensor, longest: float) -> Tensor:
    """v min(1, C / |v|)."""
    return v * (longest / max(longest, float(v.norm())))


# --- the steps -------------------------------------------------------------------------------------------------------


def noisy_steps(
    w: Tensor,
    direction: Callable[[Tensor, int], Tensor],
    config: NoisyFineTuning,
    draw: Draw,
) -> Tensor:
    """The last iterate (d,) from w (d,), then `tuning` steps without noise.

    direction(x, t): g (d,) of step t = 0, 1, ..., of retained data alone. Random: the noise of `draw`. Raises
    NumericalFailure where a model is not finite.
    """
    sigma, gamma, lam = config.noise_per_step, config.lr, config.decay
    x = clipped(w, config.start_clip)
    if config.clip == "model" and config.start_sigma:
        x = x + config.start_sigma * draw.normal("start", 0, x)
    for t in range(config.rounds):
        g = direction(x, t)
        if config.clip == "gradient":
            x = x - gamma * (clipped(g, config.step_clip) + lam * x) + sigma * draw.normal("step", t, x)
        else:
            x = clipped(x - gamma * (g + lam * x), config.model_clip) + sigma * draw.normal("step", t, x)
    for t in range(config.rounds, config.rounds + config.tuning):
        x = x - gamma * direction(x, t)
    if not bool(x.isfinite().all()):
        raise NumericalFailure(f"noisy fine-tuning is not finite; lower lr (now {gamma:g})")
    return x


@dataclass(frozen=True, eq=False)
class Ready:
    """w (d,): the model at the request; linear: whether it was trained here, on a convex loss."""

    config: NoisyFineTuning
    w: Tensor
    linear: bool


def prepare(f: Federation, config: NoisyFineTuning, noise: Noise | None = None, *, w: Tensor | None = None) -> Ready:
    """A trained model w (d,) as it is; by default `training` full gradient steps on a convex loss, from zero."""
    if w is not None:
        return Ready(config, w, False)
    linear = as_linear(f)
    zero = torch.zeros(linear.model.d, dtype=torch.float64)
    return Ready(config, descend(Sums(linear).gradient, zero, config.training, lr=config.lr), True)


def release(f: Federation, prepared: Ready, deletion: Deletion, noise: Noise | None = None) -> Released:
    """The model after noisy steps along full gradients of what is retained. f: the federation before the request."""
    config, clock = prepared.config, Clock.start(f.meter)
    rest = f.after(deletion)
    sums = Sums(as_linear(rest) if prepared.linear else rest)
    w = noisy_steps(prepared.w, lambda x, t: sums.gradient(x), config, draw_of(noise))
    passes, vectors = clock.spent(sums.n, w)
    sigma = config.noise_per_step
    nominal = caveats(_too_little(config, sigma), noise=noise)
    return Released(
        w, None, sigma, config.epsilon, config.delta, None, nominal, passes, vectors, replace(prepared, w=w)
    )  # fmt: skip


def _too_little(config: NoisyFineTuning, sigma: float) -> str:
    """Why a printed sigma is no proof, if it is none: for large epsilon it is less than what is proved."""
    if config.calibration != "printed":
        return ""
    proved = step_sigma(replace(config, calibration="renyi"), config.rounds)
    return f"the printed sigma is less than the {proved:.3g} that are proved at this epsilon" if sigma < proved else ""


# --- in rounds of a federation ---------------------------------------------------------------------------------------

ABOUT = {
    "paper": "Koloskova et al., ICML 2025",
    "parameters": NoisyFineTuning,
    "needs": Needs(several_rounds=True),
    "exchanges": ("server", "peers"),
    "guarantee": "none",  # its noise here is a function of the seed, the same for every request; see `release`
}


@register("Noisy fine-tuning", colour="#8a9a5b", preset={"clip": "gradient", "steps": 10}, **ABOUT,
          ranges={"start_clip": Range(0.1, 20.0, "log"), "step_clip": Range(0.1, 10.0, "log"),
                  "steps": Range(1, 50, "whole")})  # fmt: skip
@register("Model clipping", colour="#bcae4e", dash="--", preset={"clip": "model", "steps": 10}, **ABOUT,
          ranges={"model_clip": Range(0.1, 10.0, "log"), "steps": Range(1, 50, "whole")})  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: NoisyFineTuning) -> Tensor:
    """Rounds of local training, g minus their average update, from the model, or the mean of peers who stay.

    Random: batches, and noise of (seed, release 0): a rehearsal, since who knows the seed knows
    the noise; `release` draws it fresh. Notes: sigma and steps.
    """
    f, rest = trained.horizontal, trained.horizontal.after(deletion)
    peers = not isinstance(f.exchange, FedOpt)
    w = trained.staying(deletion).mean(dim=0) if peers else trained.staying(deletion)
    trained.notes.update(sigma=config.noise_per_step, steps=config.rounds)
    rest = prepared_rounds(rest, w)

    def direction(x: Tensor, t: int) -> Tensor:
        return -_average_update(rest, x, trained.next_round + t)

    x = noisy_steps(w, direction, config, Draw(f.seed, 0))
    return start(x, len(rest.ids)) if peers else x


def _average_update(f: Federation, x: Tensor, round: int) -> Tensor:
    """sum_i n_i / n Delta_i (d,) of a round in which all begin at x; peers sum over their network."""
    ids = f.taking_part(round)
    peers = not isinstance(f.exchange, FedOpt)
    deltas = train_round(f, start(x, len(ids)) if peers else x, round, ids)
    if peers:
        f.meter.send(x, up=sum_cost(f).up)
        f.meter.rounds += 1
    n = f.sizes(ids)
    return aggregate(deltas, n / n.sum())


def _geometric(ratio: float, T: int) -> float:
    """1 + ratio + ... + ratio^(T-1), with all digits near ratio = 1."""
    if ratio <= 0:
        return 1.0
    log = math.log(ratio)
    return float(T) if log == 0 else math.expm1(T * log) / math.expm1(log)
