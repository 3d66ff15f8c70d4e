"""Rewind-to-Delete (Mu and Klabjan, 2024): back to a stored checkpoint, and from there on without what is deleted.

    w_{t+1} = w_t - eta grad f(w_t)      t < T, all data; w_{T-K} is kept, w_T + N(0, sigma^2 I) published
    from w_{T-K}: K steps on what is retained, then noise of the same sigma

Retraining and rewinding part for T - K steps, by 2 eta m G / n in each, and are then moved by the same map K times.
With G the steepest sample and L the smoothness of f, they end within Delta = 2 m G h / (L n):

    paper          h = [(1 + eta L n / (n - m))^(T-K) - 1] (1 + eta L)^K         any L-smooth loss
    mean           h = [(1 + eta L)^(T-K) - 1] (1 + eta L)^K                     the same for means over samples
    contraction    h = L / lambda [1 - (1 - eta lambda)^(T-K)] (1 - eta lambda)^K         f lambda-strongly convex

Proved for full gradients. With rounds of local training there is no certificate: the registered method rewinds those,
adds no noise and claims nothing. It reads its checkpoint from what was kept: the updates of every round, summed up, or
the models of peers. A lost checkpoint can be had back while eta L < 1, from the next one and all data, by

    w_t = w_{t+1} + eta grad f(w_t)          a fixed point, approached at the rate eta L
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation, MissingHistory, check_choice, check_count, check_positive, check_share
from fu_core.federation.federation import Federation
from fu_core.federation.server import ServerState, aggregate, server_step
from fu_core.request import Deletion
from fu_core.unlearning.baselines.retrain import ordinary_rounds
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_core.unlearning.memory import Memory, PeerHistory
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.noise import Noise
from fu_core.unlearning.ranges import Range
from fu_core.unlearning.released import Clock, Released, caveats, check_before, check_guarantee, draw_of
from fu_core.unlearning.sums import Bounds, Sums, as_linear, descend, loss_bounds, rounding

GROWTHS = ("paper", "mean", "contraction")


@dataclass(frozen=True)
class Rewind:
    """share: K / T, of the training that is taken back and done again. The others are for `prepare` and `release`.

    training: T full gradient steps; growth: how the distance to retraining is bounded; lr: eta, None: 1 / L.
    """

    share: float = 0.5  # 0.22 to 0.8 in the paper
    training: int = 200
    epsilon: float = 1.0
    delta: float = 1e-5
    growth: str = "paper"
    lr: float | None = None
    bounds: Bounds | None = None  # of the loss; None: as proved, or as seen in the data

    def __post_init__(self) -> None:
        check_positive("share", self.share)
        check_share("share", self.share)
        check_count("training", self.training)
        check_guarantee(self.epsilon, self.delta)
        check_choice("growth", self.growth, GROWTHS)
        if self.lr is not None:
            check_positive("lr", self.lr)

    def back(self, T: int) -> int:
        """K of T steps or rounds, at least one."""
        return math.ceil(self.share * T)


def growth(kind: str, T: int, K: int, *, step: float, convexity: float = 0.0, gone: float = 0.0) -> float:
    """h(K). step: eta L; convexity: eta lambda; gone: m / n."""
    check_choice("growth", kind, GROWTHS)
    if kind == "contraction":
        if not 0 < convexity <= step <= 1:
            raise ValueError(f"growth='contraction' needs 0 < eta lambda <= eta L <= 1, got {convexity:g} and {step:g}")
        return step / convexity * (1 - (1 - convexity) ** (T - K)) * (1 - convexity) ** K
    ahead = step / (1 - gone) if kind == "paper" else step
    try:
        return ((1 + ahead) ** (T - K) - 1) * (1 + step) ** K
    except OverflowError:
        return math.inf


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """w (d,): the model K steps before the end, which knows n samples; model (d,): at the end; gone: deleted so far."""

    config: Rewind
    bounds: Bounds
    w: Tensor
    model: Tensor
    lr: float
    n: int
    gone: int


def prepare(f: Federation, config: Rewind, noise: Noise | None = None) -> Checkpoint:
    """T full gradient steps on everybody's data, from zero. Deterministic: the noise comes with a release.

    Raises CertificateViolation where the bound is no number even for a single sample.
    """
    linear = as_linear(f)
    bounds = config.bounds or loss_bounds(linear, f.model)
    sums, T = Sums(linear), config.training
    lr = config.lr or 1 / (bounds.curvature + linear.model.l2)
    _radius(
        config, bounds, lr=lr, l2=linear.model.l2, n=sums.n, d=linear.model.d, m=1
    )  # refused before anything is computed
    start = torch.zeros(linear.model.d, dtype=torch.float64)
    w = descend(sums.gradient, start, T - config.back(T), lr=lr)
    model = descend(sums.gradient, w, config.back(T), lr=lr)
    f.meter.keep("checkpoint", w)
    return Checkpoint(config, bounds, w, model, lr, sums.n, 0)


def release(f: Federation, prepared: Checkpoint, deletion: Deletion, noise: Noise | None = None) -> Released:
    """The model after K steps from the checkpoint on what is retained, and noise. f: before the request.

    Later requests start from the same checkpoint, so that all that was ever deleted counts. Raises CertificateViolation
    where the bound is no number any more.
    """
    config, bounds, clock = prepared.config, prepared.bounds, Clock.start(f.meter)
    check_before(f, prepared.n - prepared.gone)
    K, m = config.back(config.training), prepared.gone + deletion.m
    radius = _radius(config, bounds, lr=prepared.lr, l2=f.model.l2, n=prepared.n, d=f.model.d, m=m)
    sums = Sums(as_linear(f.after(deletion)))
    w = descend(sums.gradient, prepared.w, K, lr=prepared.lr)
    sigma = gaussian_sigma(radius, epsilon=config.epsilon, delta=config.delta)
    passes, vectors = clock.spent(sums.n, w)
    return Released(
        w + sigma * draw_of(noise).normal("release", 0, w), w, sigma, config.epsilon, config.delta, radius,
        caveats(bounds.nominal, noise=noise), passes, vectors, replace(prepared, model=w, gone=m),
    )  # fmt: skip


def _radius(config: Rewind, bounds: Bounds, *, lr: float, l2: float, n: int, d: int, m: int) -> float:
    """Delta = 2 m G h / (L n), and what float64 may add to it."""
    T, L = config.training, bounds.curvature + l2
    h = growth(config.growth, T, config.back(T), step=lr * L, convexity=lr * l2, gone=m / n)
    if config.back(T) == T:
        return 0.0  # retraining, bit for bit
    radius = 2 * m * bounds.gradient * h / (L * n) + 2 * rounding(bounds, l2=l2, n=n, d=d, lr=lr)
    if not math.isfinite(radius):
        raise CertificateViolation(
            f"growth={config.growth!r}: the bound on the distance to retraining is infinite after {T} steps; lower "
            f"training or lr, raise share, or take growth='contraction'"
        )
    return radius


def step_back(sums: Sums, after: Tensor, *, lr: float, smoothness: float, tol: float = 1e-12) -> Tensor:
    """The model w (d,) from which one gradient step led to `after`: w = after + lr grad f(w), by fixed point.

    Errors shrink by lr * smoothness per iteration. Raises ValueError unless that is below 1.
    """
    if not 0 < lr * smoothness < 1:
        raise ValueError(f"lr must be < 1 / smoothness = {1 / smoothness:.3g} for a step back, got {lr:g}")
    w, moved = after, math.inf
    while moved > tol:
        before = after + lr * sums.gradient(w)
        w, moved = before, float((before - w).norm())
    return w


# --- rounds of local training ----------------------------------------------------------------------------------------


@register(
    "Rewind",
    paper="Mu and Klabjan, 2024",
    colour="#1b7f79",
    parameters=Rewind,
    needs=Needs(history=True, several_rounds=True),
    exchanges=("server", "peers"),
    recovers=False,
    ranges={"share": Range(0.2, 0.8)},  # as shown in the paper
)
def serve(trained: Trained, deletion: Deletion, config: Rewind) -> Tensor:
    """The last rounds once more, without what is deleted; no noise, no certificate. Notes: rewound, how many."""
    f, K = trained.horizontal, config.back(trained.rounds)
    trained.notes["rewound"] = K
    w = checkpoint(trained, deletion, trained.rounds - K)
    f.meter.keep("checkpoint", w)
    return ordinary_rounds(f.after(deletion), w, K, first_round=trained.rounds - K + 1)


def checkpoint(trained: Trained, deletion: Deletion, round: int) -> Tensor:
    """The model (d,) after `round`, or the models (K, d) of those peers who stay. MissingHistory if it was not kept."""
    f, memory = trained.horizontal, trained.memory
    if isinstance(memory, PeerHistory):
        mine = [row for row, i in enumerate(memory.ids) if i in deletion.kept]
        return memory.models(round + 1)[mine].clone()
    return _replayed(f, memory, round)


def _replayed(f: Federation, memory: Memory, rounds: int) -> Tensor:
    """w_0 and what the server made of the updates of so many rounds; the same bits as in training."""
    if memory.history is None:
        raise MissingHistory(
            "memory: Rewind needs a checkpoint, or the updates of all rounds before it (UpdateHistory)"
        )
    w, state = memory.history.w_0.clone(), ServerState()
    for t in range(1, rounds + 1):
        ids = f.taking_part(t)
        n = f.sizes(ids)
        deltas = torch.stack([memory.history.update(t, i) for i in ids])
        w, state = server_step(w, aggregate(deltas, n / n.sum()), f.server, state)
    return w
