"""Gradient ascent in vertical learning: all parties climb the loss of the samples to be forgotten (FedORA's GA).

    theta_k <- theta_k + eta grad_k CE(b)    at every party k, over the batches b of D_u

Cited: "maximizing the loss on unlearning data" (FedORA, Sec. V-A4, of Varshney et al. and Gu et al.). Step size, number
of epochs and clipping are ours. The few-shot variant follows the description and public code of Gu et al.; what we do
otherwise than the code is said at `vertical_ga`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fu_core.errors import check_count
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import (
    Boundary,
    Exchange,
    Optimisers,
    Parties,
    check_finite,
    clipped,
    epoch_batches,
    forward,
)
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.fedora import check_rows

COEFFICIENTS = (0.25, 0.5, 0.75)  # of Gu et al.'s mix-ups
GU: dict[str, Any] = {"few_shot": True, "epochs": 16, "lr": 2e-7, "momentum": 0.9, "clip": 0.0}  # as they set it


def vertical_ga(
    parties: Parties,
    forget: Tensor,
    *,
    seed: int,
    epochs: int = 5,
    lr: float = 1e-3,
    momentum: float = 0.0,
    clip: float = 5.0,
    batch_size: int = 32,
    few_shot: bool = False,
    shots: int = 40,
    retain: Tensor | None = None,
    retained_shots: int = 3,
    boundary: Boundary | None = None,
) -> Parties:
    """The parties after `epochs` passes uphill over the samples `forget` (row numbers); the given ones stay.

    clip: a party's gradient is at most so long, 0 for no limit. Everyone clips by the norm of their own gradient:
    a common norm would need all of them to cross the border.

    few_shot: Gu et al.'s variant; `**GU` are their settings. `shots` samples of each class to be forgotten are drawn
    once. An epoch takes one step per class: the embeddings of its samples go up, the active party mixes all pairs,
    lambda h_i + (1 - lambda) h_j with lambda in COEFFICIENTS, and everyone climbs the mean CE of the mix-ups with
    the class as label; a lone sample is taken as it is. If `retain` is given, one pass downhill follows, over
    `retained_shots` of its samples per class, mixed with others of their class in the batch by Beta(1, 1). Mixing
    happens in embeddings that have arrived, and what goes down is the gradient for those, so nothing else crosses.
    But the rows of a step share a label, and passive parties, who know the rows, learn that they do. The public code
    steps the top once per 32 mix-ups, on gradients that pile up, sends down means of neighbouring mix-ups' gradients
    and repeats the downhill pass every epoch; here a step is one gradient of one loss.

    Random: batches and, with `few_shot`, draws and mix-ups, from the streams of (seed, epoch or purpose).
    Raises InvalidRequest if the samples are none or also retained, ValueError for a bad setting, NumericalFailure if
    parameters become NaN or infinite; short of that, divergence is what this method does, and is returned.
    """
    check_rows(parties, forget, forget[:0] if retain is None else retain)
    for name, count in (("epochs", epochs), ("shots", shots), ("retained_shots", retained_shots)):
        check_count(name, count)
    if not clip >= 0:
        raise ValueError(f"clip must be >= 0, got {clip}")
    if retain is not None and not few_shot:
        raise ValueError("retain is for few_shot=True only: plain ascent looks at no retained sample")
    border, w = boundary or Boundary(), [w_k.clone() for w_k in parties.w]
    optimisers = Optimisers([ClientOpt(lr=lr, momentum=momentum, batch_size=batch_size)]).at(1, len(parties))

    def step(exchange: Exchange, y: Tensor, direction: float) -> None:
        gradients = exchange.backward(F.cross_entropy(exchange.logits, y))
        for optimiser, w_k, g_k in zip(optimisers, w, gradients, strict=True):
            optimiser.step(w_k, -direction * clipped(g_k, clip))  # theta_k <- theta_k + eta grad_k CE

    few = shots_of_each_class(parties.active.y, forget, shots, seed=seed) if few_shot else []
    for epoch in range(epochs):
        for rows in few:
            mixing = all_pairs(len(rows))
            mixed = forward(having_mixed(parties, mixing), w, rows, border)
            step(mixed, mixed.y[mixing.i], +1.0)
        if not few_shot:
            for b in epoch_batches(forget, batch_size, seed=seed, epoch=-1 - epoch):  # no epoch of training
                plain = forward(parties, w, b, border)
                step(plain, plain.y, +1.0)
        check_finite(w, f"in epoch {epoch + 1} of ascent")
    if retain is not None and len(retain):
        kept = torch.cat(shots_of_each_class(parties.active.y, retain, retained_shots, seed=seed))
        draws = stream(seed, "mix-up")
        for b in epoch_batches(kept, batch_size, seed=seed, epoch=-1 - epochs):
            mixing = within_classes(parties.active.y[b], draws)
            mixed = forward(having_mixed(parties, mixing), w, b, border)
            step(mixed, mixed.y, -1.0)
        check_finite(w, "in the pass over retained samples")
    return parties.having(w)


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
