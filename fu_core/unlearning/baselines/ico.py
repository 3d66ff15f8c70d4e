"""ICO: subtract the contribution of the samples to be forgotten, then repair with corrected gradients.

A reconstruction. We found neither paper nor code of ICO ("li2025inverse" in FedORA); known is one sentence: it
"computes the contribution of data to be forgotten to model parameters, then subtracts these contributions from current
parameters and performs gradient correction optimization" (FedORA, Sec. V-A4), on a share of the retained data (text to
Table II). These three stages are cited; what each of them computes is our definition:

    delta_k = theta_k^ft - theta_k^0                          theta^ft: theta^0 after T_u epochs of training on D_u
    theta_k <- theta_k^0 - kappa delta_k
    theta_k <- theta_k - eta (g_r - max(0, <g_r, g_u>) / |g_u|^2 g_u)      T_r epochs over a share gamma of D_r

with g_r and g_u party k's gradients of the mean CE of a retained batch and of the next batch of D_u: to first order,
a repairing step does not lower the loss of what is to be forgotten. Inner products are each party's own, since common
ones would have to cross the border; as no party's term is positive then, neither is the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import check_count, check_positive
from fu_core.federation.local import ClientOpt, round_half_up
from fu_core.federation.vertical import (
    Optimisers,
    Parties,
    Vectors,
    VerticalFederation,
    check_finite,
    endless_batches,
    epoch_batches,
    forward,
    train,
)
from fu_core.request import Deletion
from fu_core.streams import stream, stream_seed
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.ranges import Choice, Range

RANGES = {  # ours, as ICO's own values are unknown
    # An epoch on D_u changes the less, the better it is fitted: 4 forgets at 95 % (CIFAR-10), 300 to 1,000 where no
    # error is left to learn from (MNIST).
    "scale": Range(0.5, 2000.0, "log"),
    "share": Choice((0.1, 0.25, 0.5, 1.0)),
    "epochs": Range(1, 4, "whole"),
    "lr": Range(1e-3, 1e-1, "log"),  # around the rates of training
}


@dataclass(frozen=True)
class ICO:
    """What is subtracted and how it is repaired; all values are ours. All steps are plain SGD."""

    scale: float = 1.0  # kappa
    share: float = 0.5  # gamma, of the retained samples, drawn anew for each epoch of the repair
    contribution_epochs: int = 1  # T_u
    epochs: int = 1  # T_r
    lr: float | None = None  # as in training
    batch_size: int | None = None  # as in training

    def __post_init__(self) -> None:
        check_count("contribution_epochs", self.contribution_epochs)
        check_count("epochs", self.epochs)
        if not 0 <= self.scale < float("inf"):
            raise ValueError(f"scale must be a finite number >= 0, got {self.scale}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}")
        if self.lr is not None:
            check_positive("lr", self.lr)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)


def ico(f: VerticalFederation, deletion: Deletion, config: ICO) -> Parties:
    """The parties after unlearning, with the samples that stay at hand; the federation's own are left untouched.

    scale 0 and share 1 without a correction to make is fine-tuning.
    Random: batches and the share, from the streams of (f.seed, purpose, epoch).
    Raises NumericalFailure if parameters become NaN or infinite.
    """
    forget, retain = deletion.forget[0], deletion.retain[0]  # row numbers
    lr, batch_size = config.lr or f.local.lr, config.batch_size or f.local.batch_size
    w, sgd = f.parties.w, Optimisers([ClientOpt(lr=lr, batch_size=batch_size)])
    f.meter.keep("theta0", *w)
    contributing = f.having(seed=stream_seed(f.seed, "ico contribution"))
    learnt = train(contributing, forget, sgd, config.contribution_epochs)
    theta = [w_k - config.scale * (ft_k - w_k) for w_k, ft_k in zip(w, learnt.w, strict=True)]

    def gradients(rows: Tensor) -> Vectors:
        exchange = forward(f.parties, theta, rows, f.boundary)
        return exchange.backward(F.cross_entropy(exchange.logits, exchange.y))

    forgotten = endless_batches(forget, batch_size, seed=stream_seed(f.seed, "ico forgotten"))
    for epoch in range(1, config.epochs + 1):
        some = share_of(retain, config.share, seed=f.seed, epoch=epoch)
        for b in epoch_batches(some, batch_size, seed=stream_seed(f.seed, "ico repair"), epoch=epoch):
            for w_k, g_r, g_u in zip(theta, gradients(b), gradients(next(forgotten)), strict=True):
                w_k -= lr * corrected(g_r, g_u)
        check_finite(theta, f"in epoch {epoch} of the repair")
    return f.parties.having(theta)


@register(
    "ICO", paper="FedORA, Sec. V-A4", colour="#0b4a26", parameters=ICO, exchanges=("vertical",), recovers=False,
    ranges=RANGES,
)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: ICO) -> Parties:
    """All three stages, on the parties as they are after training."""
    return ico(trained.vertical, deletion, config)


def corrected(g_r: Tensor, g_u: Tensor) -> Tensor:
    """`g_r` (d,) without its part along `g_u` (d,), if a step against it would lower the loss of `g_u`.

    The denominator is bounded, not shifted: a shift would leave some of that part where |g_u| is small.
    """
    overlap = g_r.dot(g_u).clamp(min=0)  # max(0, <g_r, g_u>)
    return g_r - overlap / g_u.dot(g_u).clamp(min=1e-30) * g_u


def share_of(rows: Tensor, share: float, *, seed: int, epoch: int) -> Tensor:
    """A random `share` of `rows`, at least one, in their order: 1 gives all of them as they are."""
    order = torch.randperm(len(rows), generator=stream(seed, "ico share", epoch))
    return rows[order[: max(1, round_half_up(share * len(rows)))].sort().values]
