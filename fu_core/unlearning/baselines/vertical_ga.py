"""Gradient ascent in vertical learning: all parties climb the loss of the samples to be forgotten (FedORA's GA).

    theta_k <- theta_k + eta grad_k CE(b)    at every party k, over the batches b of D_u

Cited: "maximizing the loss on unlearning data" (FedORA, Sec. V-A4, of Varshney et al. and Gu et al.). Step size, number
of epochs and clipping are ours. The few-shot variant follows the description and public code of Gu et al.; what we do
otherwise than the code is said at `vertical_ga`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fu_core.errors import check_count, check_positive
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import (
    Exchange,
    Optimisers,
    Parties,
    VerticalFederation,
    check_finite,
    clipped,
    epoch_batches,
    forward,
)
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.method import Trained, refuse, register
from fu_core.unlearning.ranges import Choice, Range

COEFFICIENTS = (0.25, 0.5, 0.75)  # of Gu et al.'s mix-ups
GU: dict[str, Any] = {"few_shot": True, "epochs": 16, "lr": 2e-7, "momentum": 0.9, "clip": 0.0}  # as they set it
REFUSES = {"samples": "forget: few-shot label unlearning forgets whole classes, not some of their samples"}
RANGES = {
    # Where training data are fitted to 95 % (CIFAR-10), 0.001 does little, and 0.003 forgets; where they are fitted in
    # full (MNIST), gradients vanish: 0.1 does nothing, and 0.3 destroys.
    "lr": Range(1e-4, 1.0, "log"),
    "epochs": Range(1, 20, "whole"),
    "clip": Range(0.5, 10.0, "log"),
}
FEW_SHOT_RANGES = {
    "lr": Range(1e-7, 1.0, "log"),  # theirs, 2e-7 to 6e-6, are for deep nets and for sums of many mix-ups
    "epochs": Range(2, 32, "whole"),  # theirs are 4 to 16
    "shots": Choice((10, 20, 40)),  # theirs are 15 to 40
}


@dataclass(frozen=True)
class GA:
    """How far and how steeply all climb; `GA(**GU)` are Gu et al.'s settings. See `vertical_ga` for their variant."""

    epochs: int = 5
    lr: float = 1e-3
    momentum: float = 0.0
    clip: float = 5.0  # a party's gradient is at most so long; 0: no limit
    batch_size: int | None = None  # as in training
    few_shot: bool = False
    shots: int = 40  # of each class to be forgotten
    repair: bool = False  # afterwards, one pass downhill over retained samples
    retained_shots: int = 3  # of each class, in that pass

    def __post_init__(self) -> None:
        check_positive("lr", self.lr)
        for name in ("epochs", "shots", "retained_shots"):
            check_count(name, getattr(self, name))
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        for name in ("momentum", "clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.repair and not self.few_shot:
            raise ValueError("repair is for few_shot=True only: plain ascent looks at no retained sample")


def vertical_ga(f: VerticalFederation, deletion: Deletion, config: GA) -> Parties:
    """The parties after `config.epochs` passes uphill over what is to be forgotten; the federation's own stay.

    Everyone clips by the norm of their own gradient: a common norm would need all of them to cross the border.

    few_shot: Gu et al.'s variant. `shots` samples of each class to be forgotten are drawn once. An epoch takes one step
    per class: the embeddings of its samples go up, the active party mixes all pairs, lambda h_i + (1 - lambda) h_j with
    lambda in COEFFICIENTS, and everyone climbs the mean CE of the mix-ups with the class as label; a lone sample is
    taken as it is. With `repair`, one pass downhill follows, whose optimiser goes on with the momentum of the ascent,
    so that it begins uphill: momentum=0 for one that does not. It is over `retained_shots` of the retained samples per
    class, mixed with others of their class in the batch by Beta(1, 1). Mixing happens in embeddings that arrived, and
    what goes down is the gradient for those, so nothing else crosses. But the rows of a step share a label, and passive
    parties, who know the rows, learn that they do. The public code steps the top once per 32 mix-ups, on gradients that
    pile up, sends down means of neighbouring mix-ups' gradients and repeats the downhill pass every epoch; here a step
    is one gradient of one loss.

    Random: batches and, with `few_shot`, draws and mix-ups, from the streams of (f.seed, epoch or purpose).
    Raises NumericalFailure if parameters become NaN or infinite; short of that, divergence is what this method does,
    and is returned.
    """
    forget, y, batch_size = deletion.forget[0], f.parties.active.y, config.batch_size or f.local.batch_size
    w = [w_k.clone() for w_k in f.parties.w]
    sgd = ClientOpt(lr=config.lr, momentum=config.momentum, batch_size=batch_size)
    optimisers = Optimisers([sgd]).at(1, len(f.parties))

    def step(exchange: Exchange, labels: Tensor, direction: float) -> None:
        gradients = exchange.backward(F.cross_entropy(exchange.logits, labels))
        for optimiser, w_k, g_k in zip(optimisers, w, gradients, strict=True):
            optimiser.step(w_k, -direction * clipped(g_k, config.clip))  # theta_k <- theta_k + eta grad_k CE

    few = shots_of_each_class(y, forget, config.shots, seed=f.seed) if config.few_shot else []
    for epoch in range(config.epochs):
        for rows in few:
            mixing = all_pairs(len(rows))
            mixed = forward(having_mixed(f.parties, mixing), w, rows, f.boundary)
            step(mixed, mixed.y[mixing.i], +1.0)
        if not config.few_shot:
            for b in epoch_batches(forget, batch_size, seed=f.seed, epoch=-1 - epoch):  # no epoch of training
                plain = forward(f.parties, w, b, f.boundary)
                step(plain, plain.y, +1.0)
        check_finite(w, f"in epoch {epoch + 1} of ascent")
    if config.repair:
        kept = torch.cat(shots_of_each_class(y, deletion.retain[0], config.retained_shots, seed=f.seed))
        draws = stream(f.seed, "mix-up")
        for b in epoch_batches(kept, batch_size, seed=f.seed, epoch=-1 - config.epochs):
            mixing = within_classes(y[b], draws)
            mixed = forward(having_mixed(f.parties, mixing), w, b, f.boundary)
            step(mixed, mixed.y, -1.0)
        check_finite(w, "in the pass over retained samples")
    return f.parties.having(w)


@register(
    "GA", paper="FedORA, Sec. V-A4", colour="#66b8d4", dash="-.", parameters=GA, exchanges=("vertical",),
    recovers=False, ranges=RANGES,
)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: GA) -> Parties:
    """The ascent, on the parties as they are after training."""
    return vertical_ga(trained.vertical, deletion, config)


@register(
    "Few-shot", paper="Gu et al., ICLR 2026; a reconstruction", colour="#2f6f8f", dash=":", parameters=GA,
    preset={**GU, "repair": True}, refuses=REFUSES, exchanges=("vertical",), recovers=False, ranges=FEW_SHOT_RANGES,
)  # fmt: skip
def serve_few_shot(trained: Trained, deletion: Deletion, config: GA) -> Parties:
    """The same on few samples' mix-ups, of whole classes only."""
    refuse(deletion, REFUSES)
    return vertical_ga(trained.vertical, deletion, config)


def shots_of_each_class(y: Tensor, rows: Tensor, count: int, *, seed: int) -> list[Tensor]:
    """`count` of `rows` per class, or all there are: one tensor of row numbers per class that occurs, in order.

    y: labels of all samples (n,). Random: from the streams of (seed, "few shot", class).
    """
    labels, drawn = y[rows].to(rows.device), []
    for c in labels.unique().tolist():
        own = rows[labels == c]
        drawn.append(own[torch.randperm(len(own), generator=stream(seed, "few shot", c))[:count]])
    return drawn


# --- mixing embeddings, at the active party --------------------------------------------------------------------------


class MixUp(nn.Module):
    """Joined embeddings (n, e) to lambda h_i + (1 - lambda) h_j (m, e); i, j, lambda (m,)."""

    i: Tensor
    j: Tensor
    coefficient: Tensor

    def __init__(self, i: Tensor, j: Tensor, coefficient: Tensor) -> None:
        super().__init__()
        for name, tensor in (("i", i), ("j", j), ("coefficient", coefficient)):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        """Every mix-up is a row."""
        share = self.coefficient[:, None]
        return share * h[self.i] + (1 - share) * h[self.j]


def all_pairs(n: int) -> MixUp:
    """Each pair of `n` samples with each of COEFFICIENTS; of a lone sample, itself."""
    i, j = torch.triu_indices(n, n, 1 if n > 1 else 0)
    times = len(COEFFICIENTS)
    return MixUp(i.repeat(times), j.repeat(times), torch.tensor(COEFFICIENTS).repeat_interleave(len(i)))


def within_classes(y: Tensor, draws: torch.Generator) -> MixUp:
    """Each sample with a random one of its class, maybe itself, and a coefficient from Beta(1, 1), which is uniform."""
    labels, partner = y.cpu(), torch.arange(len(y))
    for c in labels.unique():
        own = (labels == c).nonzero().flatten()
        partner[own] = own[torch.randperm(len(own), generator=draws)]
    return MixUp(torch.arange(len(y)), partner, torch.rand(len(y), generator=draws))


def having_mixed(parties: Parties, mixing: MixUp) -> Parties:
    """The same parties, whose active one mixes what it has received before the top sees it; same parameters."""
    mixed = FlatModel(nn.Sequential(mixing, parties.active.model.module))
    return replace(parties, active=replace(parties.active, model=mixed))
