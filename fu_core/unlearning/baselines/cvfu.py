"""CVFU: training goes on from cached confidences, whoever is online (after Wang & Wang, arXiv 2502.17081).

With a linear top the logits are a sum of confidences, one share per party:

    z = sum_k z_k,    z_k = h_k W_k for a passive party k,    z_K = b for the active party

The active party computes the shares from the embeddings it receives, so only embeddings and their gradients cross the
border. W_k moves when k is online; the bias is the active party's share, which is always online. From the end of
training it has the confidence matrix Z (n, C), the sum of all shares. To unlearn D_u, with O the parties online:

    Z <- Z without the rows of D_u
    for each epoch, with step size eta / sqrt(epoch + 1), epoch = 0, 1, ...:
        for each batch b of D_r:  all in O step on CE(Z_b + z_O - sg(z_O), y_b),    z_O = sum over O of z_k
        Z <- Z + q_rem / q_O * (z_O - z_O at the last renewal)                      element by element

sg stops the gradient: the cached confidences are the value, the parties online the Jacobian. q are shares in the
contribution, q_rem = 1 that of all who remain, which is everybody, since samples leave here and no party; the parties
online are thus taken to move on behalf of the others. 0 where q_O is.

A reconstruction. Cited (paper, public code, FedORA's sentence): the matrix, the deleted rows, the cached value with the
Jacobian of the parties online, the ratio, the step sizes, one ascent, the stop rule. Ours: where a linear top puts W_k
and b (theirs is a plain sum of parties that hold features); q = |z_k| / sum_j |z_j| at the end of training, where they
average shares in the movement of z over training, a history nobody keeps here; whose gradient the stop rule measures;
random batches; `refresh`; all default values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, UnsupportedModel, check_count, check_positive
from fu_core.federation.vertical import (
    Boundary,
    Parties,
    Vectors,
    VerticalFederation,
    check_finite,
    epoch_batches,
    forward,
    outputs,
)
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.ranges import Choice, Range
from fu_core.unlearning.sums import bare_linear

RANGES = {  # ours
    "lr": Range(3e-4, 1e-1, "log"),  # up to training's, from where confidences of an epoch ago may diverge
    "epochs": Range(1, 20, "whole"),  # no more than the default: retraining takes hardly more
    "ascent": Choice((False, True)),
    "refresh": Choice((False, True)),
}


@dataclass(frozen=True)
class CVFU:
    """Who is online, and how they go on; all default values are ours.

    online: the passive parties that take part, by position; None: all. The others, and their part of the top, remain
    as they are.
    """

    online: tuple[int, ...] | None = None
    epochs: int = 20
    lr: float = 1e-3
    batch_size: int | None = None  # as in training
    ascent: bool = False
    refresh: bool = False
    patience: int = 3  # see `StopRule`

    def __post_init__(self) -> None:
        for name in ("epochs", "patience"):
            check_count(name, getattr(self, name))
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        check_positive("lr", self.lr)
        if self.online is not None and not (
            isinstance(self.online, Collection) and all(isinstance(k, Integral) for k in self.online)
        ):
            raise ValueError(f"online must be positions of passive parties, (0,) say, or None, got {self.online!r}")


def cvfu(f: VerticalFederation, deletion: Deletion, config: CVFU) -> Parties:
    """The parties after unlearning, with the samples that stay at hand; the federation's own are left untouched.

    Caching Z needs everybody's embeddings once, at the end of training; they are counted. The result are the
    parameters at the end.
    ascent: gradients of the CE of D_u, summed over its batches in order, are subtracted from the first gradient
    (the public code adds them, and so descends).
    refresh: renew a batch's confidences by the embeddings that have just arrived, instead of all of them by another
    pass after the epoch; with everybody online, that is ordinary training.
    Random: batches, from the streams of (f.seed, epoch).

    Raises InvalidRequest if nobody is online, UnsupportedModel if the top is not one linear layer, NumericalFailure if
    parameters become NaN or infinite: the ratio is large where those online contribute little.
    """
    check_top(f.parties)
    here = check_online(f.parties, config.online)
    forget, retain = deletion.forget[0], deletion.retain[0]  # row numbers
    parties, n, size = f.parties, len(retain), config.batch_size or f.local.batch_size
    z = confidence_shares(parties, torch.cat([retain, forget]), f.boundary)  # (K, n + |D_u|, C)
    Z, z_online = z.sum(dim=0), z[[*here, -1]].sum(dim=0)
    present = those_online(parties, here)
    climb = summed_gradients(present, forget.split(size), Z[n:].split(size), f.boundary) if config.ascent else None

    ratio = contribution_ratio(z[:, :n], here)
    cache = Confidences(Z[:n].clone(), z_online[:n].clone(), ratio)  # without the rows of D_u
    f.meter.keep("confidence matrix", cache.matrix)
    if len(here) < len(parties.passive):  # otherwise z_O is Z, and the ratio 1
        f.meter.keep("confidences online and their ratio", cache.online, ratio)
    theta = [w_k.clone() for w_k in present.w]
    everything, rule = torch.arange(n, device=retain.device), StopRule(config.patience)
    for epoch in range(config.epochs):
        eta = config.lr / math.sqrt(epoch + 1)
        loss_sum, g_top_sum = 0.0, torch.zeros_like(theta[-1])
        for b in epoch_batches(everything, size, seed=f.seed, epoch=-1 - epoch):  # no epoch of training
            exchange = forward(present, theta, retain[b], f.boundary)
            if config.refresh:
                cache.renew(b, exchange.logits.detach())
            loss = cached_loss(cache.matrix[b], exchange.logits, exchange.y)
            gradients = exchange.backward(loss)
            loss_sum += len(b) * float(loss.detach())
            g_top_sum += gradients[-1]
            if climb is not None:
                gradients, climb = [g_k - c_k for g_k, c_k in zip(gradients, climb, strict=True)], None
            for w_k, g_k in zip(theta, gradients, strict=True):
                w_k -= eta * g_k
        w = placed(parties, here, present, theta)
        check_finite(w, f"in epoch {epoch + 1}")
        if epoch + 1 == config.epochs or rule.stop(loss_sum / n, float(g_top_sum.norm())):
            break
        if not config.refresh:
            cache.renew(everything, outputs(present.having(theta), retain, f.boundary))
    return parties.having(w)


@register(
    "CVFU", paper="FedORA, Sec. V-A4", colour="#7a52a8", parameters=CVFU, exchanges=("vertical",), recovers=False,
    ranges=RANGES,
)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: CVFU) -> Parties:
    """Training goes on from the confidences of its end."""
    return cvfu(trained.vertical, deletion, config)


# --- confidences, at the active party --------------------------------------------------------------------------------


@dataclass
class Confidences:
    """What the active party keeps of the retained samples; one row per sample, three times (|D_r|, C)."""

    matrix: Tensor  # Z
    online: Tensor  # z_O at the last renewal
    ratio: Tensor  # q_rem / q_O

    def renew(self, rows: Tensor, online: Tensor) -> None:
        """Take in the confidences `online` (n, C) that the parties online have now for the rows `rows` (n,)."""
        self.matrix[rows] += self.ratio[rows] * (online - self.online[rows])
        self.online[rows] = online


def cached_loss(Z: Tensor, z_online: Tensor, y: Tensor) -> Tensor:
    """CE(Z + z_O - sg(z_O), y): the value of `Z` (n, C), the derivatives of `z_online` (n, C)."""
    return F.cross_entropy(Z + z_online - z_online.detach(), y)


@torch.no_grad()
def confidence_shares(parties: Parties, rows: Tensor, boundary: Boundary, size: int = 1000) -> Tensor:
    """z_k of every party for the samples `rows`, the active party's bias last: (K, n, C). They add up to the logits."""
    weight, *bias = parties.active.model.views(parties.active.w).values()  # (C, sum e_k), (C,)
    shares = []
    for part in rows.split(size):
        exchange = boundary.begin()
        h = [boundary.up(party.embed(party.w, party.x[part], exchange)) for party in parties.passive]
        blocks = weight.split([h_k.shape[1] for h_k in h], dim=1)
        z = [h_k @ W_k.T for h_k, W_k in zip(h, blocks, strict=True)]  # z_k = h_k W_k
        shares.append(torch.stack([*z, bias[0].expand_as(z[0]) if bias else torch.zeros_like(z[0])]))
    return torch.cat(shares, dim=1)


def contribution_ratio(z: Tensor, online: Sequence[int]) -> Tensor:
    """q_rem / q_O (n, C) for the shares `z` (K, n, C), active party last, and the passive parties `online`.

    1 if those are all; 0 where they and the bias contribute nothing.
    """
    if len(online) == len(z) - 1:
        return torch.ones_like(z[0])
    everyone, present = z.abs().sum(dim=0), z[[*online, -1]].abs().sum(dim=0)
    return torch.where(present > 0, everyone / present, 0.0)  # q_rem / q_O, with q_rem = 1


def summed_gradients(
    parties: Parties, batches: Sequence[Tensor], confidences: Sequence[Tensor], boundary: Boundary
) -> Vectors:
    """Every party's gradient of the mean CE of each batch of rows, added up; a matrix of confidences per batch."""
    total = [torch.zeros_like(w_k) for w_k in parties.w]
    for b, Z in zip(batches, confidences, strict=True):
        exchange = forward(parties, parties.w, b, boundary)
        for sum_k, g_k in zip(total, exchange.backward(cached_loss(Z, exchange.logits, exchange.y)), strict=True):
            sum_k += g_k
    return total


@dataclass
class StopRule:
    """Stop after `patience` epochs in a row whose loss was no lower than the best before, or whose gradient was longer.

    Longer: at least 1.05 times the shortest. The gradient is summed over the epoch's batches and the top's own: norms
    at the passive parties, which the public code includes, would have to cross the border.
    """

    patience: int
    loss: float = math.inf
    residue: float = math.inf
    strikes: int = 0

    def stop(self, loss: float, residue: float) -> bool:
        """Whether to stop after an epoch with this mean loss and length of the summed gradient."""
        self.strikes = self.strikes + 1 if loss >= self.loss or residue >= 1.05 * self.residue else 0
        self.loss, self.residue = min(loss, self.loss), min(residue, self.residue)
        return self.strikes >= self.patience


# --- whoever is online -----------------------------------------------------------------------------------------------


def check_top(parties: Parties) -> None:
    """Raise UnsupportedModel unless the logits are a sum over parties: a top of one linear layer."""
    if not isinstance(parties.active.model.module, nn.Linear):
        raise UnsupportedModel(
            "the top must be one linear layer, so that each party has a share of its own in the logits"
        )


def check_online(parties: Parties, online: Collection[int] | None) -> list[int]:
    """The passive parties online in order, all by default. Raises InvalidRequest for nobody or somebody unknown."""
    everyone = range(len(parties.passive))
    here = list(everyone) if online is None else sorted(online)
    if not here or len(set(here)) < len(here) or not set(here) <= set(everyone):
        allowed = f"at least one of the passive parties 0..{len(everyone) - 1}, each once"
        raise InvalidRequest(f"online must name {allowed}, got {here}")
    return here


def columns(parties: Parties, online: Sequence[int]) -> Tensor:
    """Where in the joined embeddings those of the parties `online` are."""
    examples = [party.model.logits(party.w, party.model.arrange(party.x[:1])) for party in parties.passive]
    widths = [h_k.shape[1] for h_k in examples]
    return torch.cat([torch.arange(sum(widths)).split(widths)[k] for k in online])


def those_online(parties: Parties, online: Sequence[int]) -> Parties:
    """The parties `online`, and a top with their columns and the bias: its logits are z_O."""
    weight, *bias = parties.active.model.views(parties.active.w).values()
    block = weight[:, columns(parties, online)]
    top = FlatModel(bare_linear(block.shape[1], block.shape[0], bias=bool(bias)))
    active = replace(parties.active, model=top, w=torch.cat([block.flatten(), *bias]))
    return Parties(tuple(parties.passive[k] for k in online), active)


def placed(parties: Parties, online: Sequence[int], present: Parties, theta: Vectors) -> Vectors:
    """Everybody's parameters, with `theta` for the parties `online` and their part of the top."""
    w = [w_k.clone() for w_k in parties.w]
    for k, theta_k in zip(online, theta[:-1], strict=True):
        w[k] = theta_k
    weight, *bias = parties.active.model.views(w[-1]).values()
    block, *own_bias = present.active.model.views(theta[-1]).values()
    weight[:, columns(parties, online)] = block
    for b, own in zip(bias, own_bias, strict=True):
        b.copy_(own)
    return w
