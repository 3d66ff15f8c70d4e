"""What a client does in a round: ClientOpt (PUF, Algorithm 1, lines 19-26), for one client or for all.

`train_client` is the plain version. `train_round` trains every client of a round, either as a loop of
`train_client` or as one matrix with `vmap`; both see the same batches and agree to rounding.
Updates are new minus old throughout: `delta = w_client - w`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fu_core.errors import InvalidRequest, NumericalFailure, check_choice, check_count, check_positive
from fu_core.federation.augment import AUGMENTATIONS, augment
from fu_core.federation.meter import Meter
from fu_core.federation.optim import OPTIMISERS, FlatOptimiser
from fu_core.models.flat import FlatModel
from fu_core.streams import stream

Client = tuple[Tensor, Tensor]  # x (n_i, ...), y (n_i,)
TOGETHER = 100  # clients trained as one matrix on a CPU: more fall out of its cache, and need as much memory each


@dataclass(frozen=True)
class ClientOpt:
    """A client's local training. `lr_decay` multiplies the rate once per federated round (1-based)."""

    optimiser: str = "sgd"
    lr: float = 0.1  # eta
    lr_decay: float = 1.0  # per round; PUF: 0.998
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: float = 1.0  # E; 0.5 stops after the first half of the batches
    batch_size: int = 32  # B
    augmentation: str = "none"

    def __post_init__(self) -> None:
        check_choice("optimiser", self.optimiser, OPTIMISERS)
        check_choice("augmentation", self.augmentation, AUGMENTATIONS)
        check_positive("lr", self.lr)
        check_positive("lr_decay", self.lr_decay)
        check_positive("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        if self.momentum < 0 or self.weight_decay < 0:
            raise ValueError(f"momentum and weight_decay must be >= 0, got {self.momentum} and {self.weight_decay}")

    def fresh(self, round: int) -> FlatOptimiser:
        """A new optimiser with the learning rate of this round."""
        lr = self.lr * self.lr_decay ** (round - 1)
        return FlatOptimiser(self.optimiser, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)


def batches(n: int, opt: ClientOpt, *, seed: int, round: int, client: int) -> list[Tensor]:
    """Index tensors of a client's batches, in order: shuffled anew per epoch, last partial batch kept.

    Each epoch has its stream `(seed, "batch", round, client, epoch)`. Raises `InvalidRequest` for n = 0.
    """
    if n == 0:
        raise InvalidRequest(f"client {client} holds no samples to train on (round {round})")
    per_epoch = math.ceil(n / opt.batch_size)
    total = max(1, round_half_up(opt.epochs * per_epoch))
    plan: list[Tensor] = []
    for epoch in range(math.ceil(total / per_epoch)):
        order = torch.randperm(n, generator=stream(seed, "batch", round, client, epoch))
        plan.extend(order.split(opt.batch_size))
    return plan[:total]


def round_half_up(value: float) -> int:
    """Nearest whole number; halves go up (Python's round would take them to the even neighbour)."""
    return math.floor(value + 0.5)


def train_client(
    model: FlatModel,
    w: Tensor,
    client: Client,
    opt: ClientOpt,
    *,
    seed: int,
    round: int,
    client_id: int,
    meter: Meter | None = None,
) -> Tensor:
    """Local training from `w` (d,), which is left untouched; returns the client's new vector (d,).

    Random: batch order and augmentation, from streams of `(seed, round, client_id)`.
    """
    x, y = client
    w_local = w.detach().clone().requires_grad_()
    optimiser = opt.fresh(round)
    draws = stream(seed, "augment", round, client_id)
    for b in batches(len(y), opt, seed=seed, round=round, client=client_id):
        x_b = model.arrange(augment(x[b], opt.augmentation, draws))
        loss = model.loss(w_local, x_b, y[b])
        (g,) = torch.autograd.grad(loss, w_local)
        optimiser.step(w_local, g)  # w <- w - eta * grad loss(w; b)
        if meter is not None:
            meter.train(len(b))
    return w_local.detach()


def train_round(
    model: FlatModel,
    w: Tensor,
    clients: Sequence[Client] | Mapping[int, Client],
    opt: ClientOpt,
    *,
    seed: int,
    round: int,
    ids: Sequence[int],
    how: str = "auto",
    meter: Meter | None = None,
) -> Tensor:
    """Train the clients `ids` from `w`; returns their updates (K, d) in that order, new minus old.

    w: (d,), where all of them start, or (K, d), a start for each: row k belongs to `ids[k]`, and so does its
    update. `meter` counts an exchange with a server for (d,) only; clients with models of their own have none.

    how: "loop", "vmap", or "auto" (the faster one by our benchmark: `vmap` for models without
    convolutions and on accelerators, `loop` for convolutions on the CPU). Raises `NumericalFailure`
    naming the client whose update is not finite, `ValueError` for a `w` of another shape.
    """
    ids = list(ids)
    one, each = (model.d,), (len(ids), model.d)
    if w.shape not in (one, each):
        raise ValueError(f"w must have shape {one}, or {each} with a row per client, got {tuple(w.shape)}")
    train = _implementation(how, model, w, len(ids))
    together = TOGETHER if w.device.type == "cpu" else len(ids)
    deltas = torch.empty((len(ids), model.d), dtype=w.dtype, device=w.device)
    for first in range(0, len(ids), together):
        part = slice(first, first + together)
        own = [clients[i] for i in ids[part]]
        deltas[part] = train(model, w if w.dim() == 1 else w[part], own, opt, ids[part], seed, round, meter)
    finite = deltas.sum(dim=1).isfinite()  # NaN and infinity survive a sum, which is ten times cheaper to check
    if not finite.all():
        culprit = ids[int((~finite).nonzero()[0])]
        raise NumericalFailure(f"client {culprit}, round {round}: its update is not finite; lower lr (now {opt.lr})")
    if meter is not None and w.dim() == 1:
        meter.exchange(w, deltas)
    return deltas


TrainAll = Callable[[FlatModel, Tensor, list[Client], ClientOpt, list[int], int, int, Meter | None], Tensor]


def _implementation(how: str, model: FlatModel, w: Tensor, clients: int) -> TrainAll:
    check_choice("how", how, ("auto", "loop", "vmap"))
    if how == "auto":
        convolutional = any(isinstance(part, nn.Conv2d) for part in model.module.modules())
        how = "loop" if clients == 1 or (convolutional and w.device.type == "cpu") else "vmap"
    return _train_loop if how == "loop" else _train_vmap


def _train_loop(
    model: FlatModel,
    w: Tensor,
    clients: list[Client],
    opt: ClientOpt,
    ids: list[int],
    seed: int,
    round: int,
    meter: Meter | None,
) -> Tensor:
    deltas = torch.empty((len(ids), model.d), dtype=w.dtype, device=w.device)
    starts = w.expand(len(ids), -1)  # (K, d), whether they share one or not
    for start, delta, i, client in zip(starts, deltas, ids, clients, strict=True):
        w_i = train_client(model, start, client, opt, seed=seed, round=round, client_id=i, meter=meter)
        torch.sub(w_i, start, out=delta)  # Delta_i = w_i - w
    return deltas


def _train_vmap(
    model: FlatModel,
    w: Tensor,
    clients: list[Client],
    opt: ClientOpt,
    ids: list[int],
    seed: int,
    round: int,
    meter: Meter | None,
) -> Tensor:
    """All clients step together, each layer one (K, *shape) tensor. Those with more batches come first, so
    that the clients still at work are always a prefix and finished ones simply drop off the end.
    """
    plans = [batches(len(y), opt, seed=seed, round=round, client=i) for i, (_, y) in zip(ids, clients, strict=True)]
    order = sorted(range(len(ids)), key=lambda k: -len(plans[k]))
    x_all, y_all, offsets = _stack(clients)
    draws = [stream(seed, "augment", round, ids[k]) for k in order] if opt.augmentation != "none" else []
    starts = w.detach().expand(len(ids), -1).split(model.sizes, dim=1)
    layers = {n: v[order].view(-1, *s) for n, v, s in zip(model.names, starts, model.shapes, strict=True)}
    optimisers = {name: opt.fresh(round) for name in layers}
    deltas = torch.empty((len(ids), model.d), dtype=w.dtype, device=w.device)
    working = len(ids)
    for step in range(len(plans[order[0]])):
        active = [k for k in order if len(plans[k]) > step]
        if len(active) < working:
            deltas[order[len(active) : working]] = _as_rows({name: v[len(active) :] for name, v in layers.items()})
            layers = {name: v[: len(active)] for name, v in layers.items()}
            for optimiser in optimisers.values():
                optimiser.keep(len(active))
            working = len(active)
        own = [plans[k][step] + offsets[k] for k in active]
        index, weights = _pad(own, w)
        if opt.augmentation == "none":
            x = x_all[index]  # (K, B, ...)
        else:  # each client's batch by itself, from its own stream, before padding
            moved = [augment(x_all[b], opt.augmentation, draws[row]) for row, b in enumerate(own)]
            x = nn.utils.rnn.pad_sequence(moved, batch_first=True)
        for name, g in _gradients(model, layers, x, y_all[index], weights).items():
            optimisers[name].step(layers[name], g)
        if meter is not None:
            meter.train(sum(len(plans[k][step]) for k in active))
    deltas[order[:working]] = _as_rows(layers)
    return deltas.sub_(w)


def _as_rows(layers: dict[str, Tensor]) -> Tensor:
    """Stacked layers (K, *shape) as flat vectors, one row (d,) per client."""
    return torch.cat([v.flatten(1) for v in layers.values()], dim=1)


def _stack(clients: list[Client]) -> tuple[Tensor, Tensor, list[int]]:
    """All samples in one tensor, and where each client's begin."""
    offsets = [0]
    for _, y in clients[:-1]:
        offsets.append(offsets[-1] + len(y))
    return torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients]), offsets


def _pad(indices: list[Tensor], like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Batches of unequal length as one (K, B) index and weights (K, B), None if nothing is padded."""
    lengths = [b.numel() for b in indices]  # numel, not len: Tensor.__len__ is a slow Python function
    longest = max(lengths)
    if min(lengths) == longest:
        return torch.stack(indices), None
    index = nn.utils.rnn.pad_sequence(indices, batch_first=True)
    held = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return index, held.to(like.device, like.dtype)


def _gradients(
    model: FlatModel, layers: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor | None
) -> dict[str, Tensor]:
    """Per layer, row k: the gradient of client k's mean loss over its batch.

    Samples enter with their share in their client's mean, padding with none; nothing couples the rows.
    """
    leaves = {name: v.detach().requires_grad_() for name, v in layers.items()}
    losses = model.losses_of_many(leaves, x, y)  # (K, B)
    if weights is None:
        shares = losses.new_full((), 1 / losses.shape[1]).expand_as(losses)
    else:
        shares = weights / weights.sum(dim=1, keepdim=True)
    gradients = torch.autograd.grad(losses, list(leaves.values()), grad_outputs=shares)
    if model.l2:
        gradients = tuple(g + model.l2 * v for g, v in zip(gradients, layers.values(), strict=True))
    return dict(zip(leaves, gradients, strict=True))
