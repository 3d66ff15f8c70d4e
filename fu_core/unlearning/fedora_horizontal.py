"""FedORA's constrained objective for clients with whole samples: a transfer of ours, of which the paper does not speak.

    min_w  L_r(w) + mu/2 |w - w_o|^2      subject to  L_u(w) >= epsilon

Score, steps, price and stop rule are `fedora`'s, and so is every hyper-parameter; what differs is who answers. There
is one "party", the server, which holds all of w and the price lambda. Where it wants a loss on some samples, it sends w
to those who hold them; each sends the mean over its own share, and the gradient where a step needs it:

    L(w) = sum_k m_k / m L_k(w),   grad L(w) = sum_k m_k / m grad L_k(w)       m_k of the m samples are client k's

L_u is asked of those who forget, a sample of what they forget in each iteration; L_r of those who stay, a batch of B
samples of all of theirs in each of J substeps. So each substep is an exchange, where FedAvg has one per pass.

Retraining without a client whose data are like the others' is as sure of them as before: there the constraint asks for
more than there is to forget (errata F1), and the whole model pays. A class that goes is what it is made for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.federation.server import aggregate
from fu_core.federation.vertical import Vectors
from fu_core.request import Deletion
from fu_core.unlearning.fedora import (
    RANGES,
    REVERSE,
    REVERSE_RANGES,
    FedORA,
    Iteration,
    Objective,
    uncertainty_loss,
    unlearned,
)
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of w (d,), x (n, ...) and y (n,): their mean, a scalar


class Holders:
    """Samples of several clients in one row, in client order: 0, ..., n - 1."""

    def __init__(self, parts: Mapping[int, Client]) -> None:
        self.parts = {i: parts[i] for i in sorted(parts)}
        sizes = [len(y) for _, y in self.parts.values()]
        self.rows = torch.arange(sum(sizes))
        self._owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self._first = dict(zip(self.parts, (torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)).tolist(), strict=True))

    def of(self, rows: Tensor) -> dict[int, Client]:
        """Those samples (n,) by client, in the order in which they are asked for, without clients that hold none."""
        found = {}
        for place, (i, (x, y)) in enumerate(self.parts.items()):
            own = rows[self._owner[rows] == place] - self._first[i]
            if len(own):
                found[i] = x[own.to(x.device)], y[own.to(y.device)]
        return found


class AtOnce:
    """A client's loss at `w` (d,), mean over its samples, with the graph that made it."""

    def __init__(self, w: Tensor, loss: Loss, x: Tensor, y: Tensor) -> None:
        self._w, self._loss = w, loss(w, x, y)
        self.value = float(self._loss.detach())

    def gradient(self) -> Tensor:
        """grad L_k(w), (d,)."""
        return torch.autograd.grad(self._loss, self._w)[0]


class InParts:
    """The same without a graph: part by part, and once more part by part where the gradient is asked for."""

    def __init__(self, w: Tensor, loss: Loss, x: Tensor, y: Tensor, part: int) -> None:
        self._w, self._loss, self._x, self._y, self._part = w, loss, x, y, part
        with torch.no_grad():
            self.value = sum(share * float(of_part) for share, of_part in self._parts())

    def gradient(self) -> Tensor:
        """grad L_k(w), (d,), a sum over parts."""
        g = torch.zeros_like(self._w)
        for share, of_part in self._parts():
            g += share * torch.autograd.grad(of_part, self._w)[0]
        return g

    def _parts(self) -> Iterator[tuple[float, Tensor]]:
        """Each part's share of the samples, and its loss."""
        for x, y in zip(self._x.split(self._part), self._y.split(self._part), strict=True):
            yield len(y) / len(self._y), self._loss(self._w, x, y)


class Asked:
    """A loss of the model `w` (d,) on samples of several clients, and its gradient if asked, once.

    part: of more samples than these no client keeps what its net computes on the way. What is sent and counted is the
    same, the numbers but for the order of sums, and memory is a part's. None: all at once.
    """

    def __init__(
        self, f: Federation, w: Tensor, loss: Loss, samples: Mapping[int, Client], part: int | None = None
    ) -> None:
        self._meter, self._w = f.meter, w.detach().requires_grad_()
        n = torch.tensor([len(y) for _, y in samples.values()], dtype=torch.float64)
        self._shares = n / n.sum()  # m_k / m

        def arranged(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return loss(w, f.model.arrange(x), y)

        asked = AtOnce if part is None or int(n.sum()) <= part else partial(InParts, part=part)
        self._answers = [asked(self._w, arranged, x, y) for x, y in samples.values()]
        told = zip(self._shares.tolist(), self._answers, strict=True)
        self.value = sum(share * own.value for share, own in told)
        f.meter.rounds += 1
        f.meter.send(w, down=len(samples))
        f.meter.train(int(n.sum()))

    def gradients(self, scale: float = 1.0) -> Vectors:
        """One vector: `scale` sum_k m_k / m grad L_k (d,), summed in client order. Each client sends one."""
        own = torch.stack([answer.gradient() for answer in self._answers])
        self._meter.send(self._w, up=len(own))
        return [aggregate(own, scale * self._shares)]


def fedora_horizontal(
    f: Federation,
    w: Tensor,
    deletion: Deletion,
    config: FedORA,
    on_iteration: Callable[[Iteration], None] | None = None,
    notes: dict[str, Any] | None = None,
) -> Tensor:
    """The model (d,) after unlearning; `w` (d,), which is w_o, is left untouched.

    `on_iteration`, `notes`, what is random and what raises: as `fedora.unlearned` has them. L_r is the clients' loss
    with its l2 term, on samples as they are, not augmented. The meter counts the model on its way to each client that
    is asked and its gradient on the way back, and every exchange as a round. The server's optimiser takes no part.
    Raises `UnsupportedTask` for other tasks than classification.
    """
    if f.model.task != "classification":
        raise UnsupportedTask(f"FedORA's score is about probabilities of classes, not about task {f.model.task!r}")
    forget, retain = Holders(deletion.forgotten), Holders(deletion.kept)
    classes = f.model.predict(w, deletion.forget[0][:1]).shape[1]

    def uncertainty(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return uncertainty_loss(f.model.logits(w, x), weight=config.weight, score=config.score)

    f.meter.keep("global model and the cached gradient", w, w)
    objective = Objective(
        lambda theta, rows: Asked(f, theta[0], uncertainty, forget.of(rows), config.part),
        lambda theta, rows: Asked(f, theta[0], f.model.loss, retain.of(rows)),
        forget.rows,
        retain.rows,
        classes,
    )
    (model,) = unlearned([w], objective, config, seed=f.seed, on_iteration=on_iteration, notes=notes)
    return model


@register(
    "FedORA horizontal",
    paper="FedORA, transferred to whole samples",
    colour="#e3550f",
    dash="--",
    parameters=FedORA,
    needs=Needs(full_participation=True, task=True, several_rounds=True),
    recovers=False,
    ranges=RANGES,
)
@register(
    "FedORA horizontal reverse",
    paper="FedORA, errata F2, transferred to whole samples",
    colour="#b8860b",
    dash=":",
    parameters=FedORA,
    preset=REVERSE,
    needs=Needs(full_participation=True, task=True, several_rounds=True),
    recovers=False,
    ranges=REVERSE_RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: FedORA) -> Tensor:
    """`trained.watch` hears of every `Iteration`, `trained.notes` of the `Ending`."""
    return fedora_horizontal(trained.horizontal, trained.model, deletion, config, trained.watch, trained.notes)
