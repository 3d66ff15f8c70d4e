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

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, check_count
from fu_core.federation.local import ClientOpt, round_half_up
from fu_core.federation.vertical import (
    Boundary,
    Optimisers,
    Parties,
    Vectors,
    check_finite,
    epoch_batches,
    forward,
    train,
)
from fu_core.streams import stream, stream_seed
from fu_core.unlearning.fedora import check_rows


def ico(
    parties: Parties,
    forget: Tensor,
    retain: Tensor,
    *,
    seed: int,
    scale: float = 1.0,
    share: float = 0.5,
    contribution_epochs: int = 1,
    epochs: int = 1,
    lr: float = 1e-3,
    batch_size: int = 32,
    boundary: Boundary | None = None,
) -> Parties:
    """The parties after unlearning the samples `forget` (row numbers), with `retain` at hand; the given ones stay.

    scale: kappa; share: gamma, drawn anew for each of the `epochs`, T_r; contribution_epochs: T_u. All steps are
    plain SGD with one `lr`. scale 0 and share 1 without a correction to make is fine-tuning. All values are ours.
    Random: batches and the share, from the streams of (seed, purpose, epoch).

    Raises InvalidRequest if samples to forget or to retain are none or shared, ValueError for a bad setting,
    NumericalFailure if parameters become NaN or infinite.
    """
    check_rows(parties, forget, retain)
    if not len(retain):
        raise InvalidRequest("retain names no samples: there is nothing to repair with")
    check_count("contribution_epochs", contribution_epochs)
    check_count("epochs", epochs)
    if not 0 <= scale < float("inf"):
        raise ValueError(f"scale must be a finite number >= 0, got {scale}")
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}")
    border, sgd = boundary or Boundary(), Optimisers([ClientOpt(lr=lr, batch_size=batch_size)])
    border.meter.keep("theta0", *parties.w)
    own = stream_seed(seed, "ico contribution")
    learnt = train(parties, forget, sgd, epochs=contribution_epochs, seed=own, boundary=border)
    theta = [w_k - scale * (ft_k - w_k) for w_k, ft_k in zip(parties.w, learnt.w, strict=True)]

    def gradients(rows: Tensor) -> Vectors:
        exchange = forward(parties, theta, rows, border)
        return exchange.backward(F.cross_entropy(exchange.logits, exchange.y))

    forgotten = endless_batches(forget, batch_size, seed=stream_seed(seed, "ico forgotten"))
    for epoch in range(1, epochs + 1):
        some = share_of(retain, share, seed=seed, epoch=epoch)
        for b in epoch_batches(some, batch_size, seed=stream_seed(seed, "ico repair"), epoch=epoch):
            for w_k, g_r, g_u in zip(theta, gradients(b), gradients(next(forgotten)), strict=True):
                w_k -= lr * corrected(g_r, g_u)
        check_finite(theta, f"in epoch {epoch} of the repair")
    return parties.having(theta)


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


def endless_batches(rows: Tensor, batch_size: int, *, seed: int) -> Iterator[Tensor]:
    """Batches of `rows` without end, shuffled anew for each pass."""
    for epoch in itertools.count(1):
        yield from epoch_batches(rows, batch_size, seed=seed, epoch=epoch)
