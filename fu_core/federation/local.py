"""What a client does in a round: ClientOpt (PUF, Algorithm 1, lines 19-26). All clients at once: together.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, check_choice, check_count, check_not_negative, check_positive
from fu_core.federation.augment import AUGMENTATIONS, augment
from fu_core.federation.optim import OPTIMISERS, FlatOptimiser
from fu_core.precision import training_precision
from fu_core.streams import stream

if TYPE_CHECKING:
    from fu_core.federation.federation import Federation

Client = tuple[Tensor, Tensor]  # x (n_i, ...), y (n_i,)


def is_pair(given: Any) -> bool:
    """Whether these are samples as a client has them: two tensors (x, y)."""
    return isinstance(given, Sequence) and len(given) == 2 and all(isinstance(part, Tensor) for part in given)


def check_pair(i: Any, client: Any) -> None:
    """Raise InvalidRequest that names the client, unless it is a pair of tensors (x, y)."""
    if not is_pair(client):
        two = isinstance(client, Sequence) and len(client) == 2
        given = " and ".join(type(part).__name__ for part in client) if two else type(client).__name__
        raise InvalidRequest(f"client {i} must be a pair of tensors (x, y), got {given}")


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
        check_not_negative("momentum", self.momentum)
        check_not_negative("weight_decay", self.weight_decay)

    def fresh(self, round: int) -> FlatOptimiser:
        """A new optimiser with the learning rate of this round."""
        try:
            lr = self.lr * self.lr_decay ** (round - 1)
        except OverflowError:
            lr = math.inf
        return FlatOptimiser(self.optimiser, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay)


def batches(n: int, opt: ClientOpt, *, seed: int, round: int, client: int) -> list[Tensor]:
    """Index tensors of a client's batches, in order: shuffled anew per epoch, last partial batch kept.

    Each epoch has its stream `(seed, "batch", round, client, epoch)`. Raises `InvalidRequest` for n = 0.
    """
    order, sizes = visits(n, opt, seed=seed, round=round, client=client)
    return list(order.split(sizes))


def visits(n: int, opt: ClientOpt, *, seed: int, round: int, client: int) -> tuple[Tensor, list[int]]:
    """`batches` in one piece: the samples in the order in which they are visited, and how many each batch has."""
    if n == 0:
        raise InvalidRequest(f"client {client} holds no samples to train on (round {round})")
    per_epoch = math.ceil(n / opt.batch_size)
    total = max(1, round_half_up(opt.epochs * per_epoch))
    epochs = range(math.ceil(total / per_epoch))
    sizes = ([opt.batch_size] * (per_epoch - 1) + [n - opt.batch_size * (per_epoch - 1)]) * len(epochs)
    orders = [torch.randperm(n, generator=stream(seed, "batch", round, client, epoch)) for epoch in epochs]
    order = torch.cat(orders) if len(orders) > 1 else orders[0]
    return order[: sum(sizes[:total])], sizes[:total]


def round_half_up(value: float) -> int:
    """Nearest whole number; halves go up (Python's round would take them to the even neighbour)."""
    return math.floor(value + 0.5)


def train_client(f: Federation, w: Tensor, client: int, round: int) -> Tensor:
    """Local training of `client` from `w` (d,), which is left untouched; returns the client's new vector (d,).

    Random: batch order and augmentation, from streams of `(f.seed, round, client)`.
    """
    x, y = f.clients[client]
    layers = {name: layer.requires_grad_() for name, layer in f.model.layers(w, x).items()}
    optimisers = {name: f.local.fresh(round) for name in layers}
    draws = stream(f.seed, "augment", round, client)
    order, sizes = visits(len(y), f.local, seed=f.seed, round=round, client=client)
    for b in order.to(x.device).split(sizes):  # to an accelerator at once, not per step
        x_b = f.model.arrange(augment(x[b], f.local.augmentation, draws))
        with training_precision(x.device):
            loss = f.model.data_loss(layers, x_b, y[b])
        gradients = torch.autograd.grad(loss, list(layers.values()), allow_unused=True, materialize_grads=True)
        for (name, layer), g in zip(layers.items(), gradients, strict=True):
            if f.model.l2:
                g = g.add(layer.detach(), alpha=f.model.l2)
            optimisers[name].step(layer, g)  # w <- w - eta * grad loss(w; b)
        f.meter.train(len(b))
    return f.model.joined(layers).detach()
