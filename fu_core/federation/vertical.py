"""Vertical federated learning: the parties hold different features of the same samples (FedORA, Sec. III-A).

Passive party k turns its features into embeddings h_k = f_k(X_k; w_k). The active party, which has the labels, joins
them, applies its top model and sends back the gradient of the loss with respect to each h_k:

    up     h_k         (n, e_k)    embeddings
    down   dL/dh_k     (n, e_k)    their gradients

Nothing else crosses, and both pass through `Boundary`, which counts them. Everything that is one per party is a list
in party order, the active party last: the k-th entry lives at party k and is only ever combined with its like. Which
samples a batch holds is known to all: everyone draws it from the same seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.data import Dataset
from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedTask
from fu_core.federation.embedding_noise import EmbeddingNoise, check_own_noise, warn_of_shared_draws
from fu_core.federation.embeddings import AtOnce, InParts
from fu_core.federation.local import Client, ClientOpt, batches
from fu_core.federation.meter import Meter
from fu_core.federation.optim import FlatOptimiser
from fu_core.federation.vertical_inputs import check_same_samples, sample_rows, whole_epochs
from fu_core.models.bottoms import build_bottom, build_top
from fu_core.models.flat import FlatModel
from fu_core.partition import feature_blocks
from fu_core.streams import stream_seed

Vectors = list[Tensor]  # one parameter vector or gradient (d_k,) per party, the active party's last


@dataclass(frozen=True)
class PassiveParty:
    """Features `x` (n, ...) of the aligned samples and a bottom net, raw features to embeddings (n, e_k)."""

    model: FlatModel
    w: Tensor
    x: Tensor
    noise: EmbeddingNoise | None = None

    def embed(self, w: Tensor, x: Tensor, exchange: tuple[str, int] = ("", 0)) -> Tensor:
        """h_k = f_k(x; w), as it leaves the party in a numbered exchange."""
        h = self.bare(w, x)
        return h if self.noise is None else self.noise(h, exchange)

    def bare(self, w: Tensor, x: Tensor) -> Tensor:
        """f_k(x; w), as the party itself has it."""
        return self.model.logits(w, self.model.arrange(x))


@dataclass(frozen=True)
class ActiveParty:
    """The labels `y` (n,) of the aligned samples and the top net, joined embeddings (n, sum e_k) to logits (n, C)."""

    model: FlatModel
    w: Tensor
    y: Tensor
    classes: int


@dataclass(frozen=True)
class Parties:
    """All parties with their aligned data, nets and parameters. Immutable: training returns new ones."""

    passive: tuple[PassiveParty, ...]
    active: ActiveParty

    def __post_init__(self) -> None:
        if not self.passive:
            raise InvalidRequest("passive must name at least one party that holds features, got none")
        for k, party in enumerate(self.passive):
            if len(party.x) != len(self.active.y):
                counts = f"{len(party.x)} samples, the active party {len(self.active.y)}"
                raise InvalidRequest(f"passive party {k} holds {counts}: align first")
        check_own_noise(self.noise)

    @property
    def w(self) -> Vectors:
        """Everybody's parameters, the active party's last."""
        return [*(party.w for party in self.passive), self.active.w]

    @property
    def noise(self) -> list[EmbeddingNoise | None]:
        """Each passive party's."""
        return [party.noise for party in self.passive]

    def having(self, w: Vectors) -> Parties:
        """The same parties with other parameters."""
        *bottoms, top = w
        passive = tuple(replace(party, w=w_k) for party, w_k in zip(self.passive, bottoms, strict=True))
        return Parties(passive, replace(self.active, w=top))

    def __len__(self) -> int:
        return len(self.passive) + 1

    @property
    def d(self) -> int:
        """All parameters together."""
        return sum(len(w_k) for w_k in self.w)


@dataclass
class Boundary:
    """The only way from one party to another. Counts what passes; `meter` adds it up over a whole method.

    name: of what is going on, so that noise drawn for one method is not drawn again for another.
    """

    meter: Meter = field(default_factory=Meter)
    name: str = ""
    exchanges: int = 0

    def begin(self) -> tuple[str, int]:
        """Name and number of the next exchange."""
        self.exchanges += 1
        return self.name, self.exchanges

    def up(self, embeddings: Tensor) -> Tensor:
        """Passive to active: h_k (n, e_k)."""
        self.meter.send(embeddings, up=1)
        return embeddings.detach()

    def down(self, gradient: Tensor) -> Tensor:
        """Active to passive: dL/dh_k (n, e_k)."""
        self.meter.send(gradient, down=1)
        return gradient.detach()

    def numbers(self, count: int, *, up: bool = True) -> None:
        """`count` single numbers down, and as many `up`: of methods that ask for more than embeddings and gradients."""
        self.meter.send(torch.zeros(1), up=count if up else 0, down=count)


@dataclass(frozen=True)
class VerticalFederation:
    """Parties, what each does in training, the seed of all streams, and the border between them: `Federation`'s twin.

    f = VerticalFederation(parties, ClientOpt(lr=0.05, momentum=0.9))
    f = f.having(parties=train(f, rows, f.optimisers(), epochs=8))

    For requests it is one client, 0, that holds every sample: its inputs are the row numbers, and so a `Deletion`'s
    `forget[0]` and `retain[0]` are the rows to be forgotten and to be kept.
    """

    parties: Parties
    local: ClientOpt
    seed: int = 0
    boundary: Boundary = field(default_factory=Boundary)

    def __post_init__(self) -> None:
        if self.local.augmentation != "none":
            raise UnsupportedTask(
                f"augmentation must be 'none' among vertical parties, who hold parts of a sample, got "
                f"{self.local.augmentation!r}"
            )

    @property
    def clients(self) -> dict[int, Client]:
        """The aligned samples: row numbers (n,) and labels (n,)."""
        y = self.parties.active.y
        return {0: (torch.arange(len(y), device=y.device), y)}

    @property
    def meter(self) -> Meter:
        """What has passed the border."""
        return self.boundary.meter

    def optimisers(self) -> Optimisers:
        """Everybody's, as `local` says, fresh."""
        return Optimisers([self.local])

    def having(self, *, meter: Meter | None = None, **changes: object) -> VerticalFederation:
        """The same federation with other fields; with other counters, exchanges are numbered on from the last."""
        if meter is not None:
            changes["boundary"] = Boundary(meter, self.boundary.name, self.boundary.exchanges)
        return replace(self, **changes)  # type: ignore[arg-type]


class Exchange:
    """One forward pass over some samples: embeddings have gone up, `logits` (n, C) are at the active party.

    `backward` sends the gradients down, once.

    part: of more samples than these a passive party does not keep what its net computed on the way: it embeds them
    part by part, and once more part by part when the gradients arrive. Nothing else crosses, the numbers are the same
    but for the order of sums, and memory is a part's. None: all at once.
    """

    def __init__(
        self,
        parties: Parties,
        w: Vectors,
        x: Sequence[Tensor],
        y: Tensor,
        boundary: Boundary,
        part: int | None = None,
    ) -> None:
        *bottoms, top = (w_k.detach().requires_grad_() for w_k in w)
        self._boundary, self._bottoms, self._top = boundary, bottoms, top
        exchange = boundary.begin()
        embed = AtOnce if part is None or len(y) <= part else partial(InParts, part=part)
        self._embeddings = [
            embed(party, w_k, x_k, exchange) for party, w_k, x_k in zip(parties.passive, bottoms, x, strict=True)
        ]
        self._received = [boundary.up(at_k.h).requires_grad_() for at_k in self._embeddings]
        self.logits = parties.active.model.logits(top, torch.cat(self._received, dim=1))
        self.y = y
        boundary.meter.train(len(y))

    def backward(self, loss: Tensor) -> Vectors:
        """Every party's gradient of `loss`, a scalar of `logits`."""
        g_top, *d_embeddings = torch.autograd.grad(loss, [self._top, *self._received])
        g_bottoms = [
            at_k.gradient(self._boundary.down(dh_k)) for at_k, dh_k in zip(self._embeddings, d_embeddings, strict=True)
        ]
        return [*g_bottoms, g_top]


def forward(parties: Parties, w: Vectors, rows: Tensor, boundary: Boundary, part: int | None = None) -> Exchange:
    """A forward pass with parameters `w` over the samples `rows`, that can be followed by a backward pass.

    part: see `Exchange`.
    """
    return Exchange(parties, w, [party.x[rows] for party in parties.passive], parties.active.y[rows], boundary, part)


@torch.no_grad()
def predict(parties: Parties, x: Sequence[Tensor], boundary: Boundary | None = None, size: int = 1000) -> Tensor:
    """Logits (n, C) for aligned features `x`, one tensor (n, ...) per passive party, without gradients.

    boundary: whose meter counts it, and whose next exchanges parties' noise is drawn for; by default a new one without
    a name. Among parties with noise it is to be given: two calls without one have the same noise, and warn of it.
    """
    if len(x) != len(parties.passive):
        raise InvalidRequest(f"x must have one tensor per passive party, {len(parties.passive)}, got {len(x)}")
    check_same_samples(x)
    if boundary is None:
        warn_of_shared_draws(parties.noise, frames=2)  # torch's no_grad is one
    border = boundary or Boundary()
    logits = []
    for parts in zip(*(x_k.split(size) for x_k in x), strict=True):
        exchange = border.begin()
        h = [border.up(party.embed(party.w, x_k, exchange)) for party, x_k in zip(parties.passive, parts, strict=True)]
        logits.append(parties.active.model.logits(parties.active.w, torch.cat(h, dim=1)))
    return torch.cat(logits)


def outputs(parties: Parties, rows: Tensor, boundary: Boundary | None = None) -> Tensor:
    """`predict` for samples the parties hold."""
    if boundary is None:
        warn_of_shared_draws(parties.noise)
    return predict(parties, [party.x[rows] for party in parties.passive], boundary or Boundary())


@dataclass
class Optimisers:
    """Everybody's own optimiser; momentum lives on from epoch to epoch. Learning rates decay by the epoch."""

    opts: Sequence[ClientOpt]  # one per party, or one for all
    states: list[FlatOptimiser] = field(default_factory=list)

    def at(self, epoch: int, parties: int) -> list[FlatOptimiser]:
        """The optimisers with the learning rates of `epoch` (1-based)."""
        opts = list(self.opts) * parties if len(self.opts) == 1 else list(self.opts)
        if len(opts) != parties:
            raise ValueError(f"opts must be one for all or one per party ({parties}), got {len(opts)}")
        if len({opt.batch_size for opt in opts}) > 1:
            raise ValueError(f"batch_size must be the same at every party, got {[opt.batch_size for opt in opts]}")
        self.states = self.states or [opt.fresh(1) for opt in opts]
        for state, opt in zip(self.states, opts, strict=True):
            state.lr = opt.lr * opt.lr_decay ** (epoch - 1)
        return self.states

    def tensors(self) -> dict[str, Tensor]:
        """The optimisers' memory by name, for a checkpoint."""
        return {
            f"moment {k} {i}": m.clone() for k, state in enumerate(self.states) for i, m in enumerate(state.moments)
        }

    def restore(self, tensors: dict[str, Tensor], steps: int, parties: int) -> None:
        """Continue from a checkpoint's `tensors()`."""
        for k, state in enumerate(self.at(1, parties)):
            state.steps = steps
            mine = [name for name in sorted(tensors) if name.startswith(f"moment {k} ")]
            state.moments = [tensors[name].clone() for name in mine]


def train(
    f: VerticalFederation,
    rows: Tensor,
    optimisers: Optimisers,
    epochs: float,
    *,
    first_epoch: int = 1,
    after_epoch: Callable[[int, Vectors], None] | None = None,
) -> Parties:
    """Joint training on the aligned samples `rows`; the federation's parties are left untouched.

    Each step is one exchange: embeddings up, gradients down, everybody steps with an optimiser of their own, usually
    those of `f.optimisers()`. Random: batches, from the streams of (f.seed, epoch).
    rows: numbers (m,), or a mask (n,) over all samples. epochs: a whole number, be it a float as in `ClientOpt`.
    Raises NumericalFailure if parameters become NaN or infinite, InvalidRequest and ValueError for rows and epochs.
    """
    rows, end = sample_rows(rows, len(f.parties.active.y)), first_epoch + whole_epochs(epochs)
    w = [w_k.clone() for w_k in f.parties.w]
    for epoch in range(first_epoch, end):
        states = optimisers.at(epoch, len(f.parties))
        for b in epoch_batches(rows, optimisers.opts[0].batch_size, seed=f.seed, epoch=epoch):
            exchange = forward(f.parties, w, b, f.boundary)
            gradients = exchange.backward(F.cross_entropy(exchange.logits, exchange.y))
            for state, w_k, g_k in zip(states, w, gradients, strict=True):
                state.step(w_k, g_k)
        check_finite(w, f"in epoch {epoch}")
        if after_epoch is not None:
            after_epoch(epoch, w)
    return f.parties.having(w)


def epoch_batches(rows: Tensor, batch_size: int, *, seed: int, epoch: int) -> list[Tensor]:
    """The batches of one epoch over the samples `rows`, in order."""
    opt = ClientOpt(batch_size=batch_size)
    return [rows[b] for b in batches(len(rows), opt, seed=seed, round=epoch, client=0)]


def endless_batches(rows: Tensor, batch_size: int, *, seed: int, first: int = 1, step: int = 1) -> Iterator[Tensor]:
    """Batches of `rows` without end, shuffled once per pass; the passes are numbered `first`, `first + step`, ...

    Who takes a few batches at a time goes on where the last ones ended, so that each sample is met once per pass.
    """
    opt = ClientOpt(batch_size=batch_size)
    for epoch in itertools.count(first, step):
        for b in batches(len(rows), opt, seed=seed, round=epoch, client=0):
            yield rows[b]  # gathered when asked for: of a large pass, few batches may be


def check_finite(w: Vectors, when: str) -> None:
    """Raise NumericalFailure naming the party whose parameters are NaN or infinite; a lone vector is a whole model."""
    for k, w_k in enumerate(w):
        if not bool(w_k.isfinite().all()):
            who = "the active party" if k == len(w) - 1 else f"passive party {k}"
            who = "the model" if len(w) == 1 else who
            raise NumericalFailure(f"the parameters of {who} became NaN or infinite {when}; lower the learning rate")


def clipped(g: Tensor, clip: float) -> Tensor:
    """`g` (d,), shortened to the norm `clip` if it is longer; 0 leaves it."""
    return g * (clip / g.norm().clamp(min=1e-30)).clamp(max=1) if clip else g


# --- dealing out a data set ------------------------------------------------------------------------------------------


def split_features(x: Tensor, blocks: Sequence[Tensor | Sequence[int]]) -> list[Tensor]:
    """Each party's features: column blocks of a table (n, p), vertical stripes of images (n, C, H, W)."""
    return [x.index_select(-1, torch.as_tensor(block).to(x.device)).contiguous() for block in blocks]


def deal(
    dataset: Dataset,
    *,
    bottom: str,
    seed: int,
    parties: int | None = None,
    blocks: Sequence[Tensor | Sequence[int]] | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Parties, list[Tensor]]:
    """A data set's features dealt out to passive parties, with fresh nets: the parties, and their test features.

    parties: how many, two by default. blocks: who gets which columns, none of which two parties have; by default
    `partition.vertical`, so two parties get the halves of an image.
    Nets standardise by the data set's mean and deviation, over all training samples unless the constants are published
    ones (CIFAR): Retrain of such parties has not seen the forgotten samples, but for their share in these numbers.
    Random: parameters, from the streams of (seed, "init", party).
    Raises UnsupportedTask for other tasks than classification, UnsupportedModel for parts too small for the net.
    """
    if dataset.task != "classification":
        raise UnsupportedTask(f"dataset must have one label per sample, got {dataset.name!r}, task {dataset.task!r}")
    shape = tuple(dataset.x_train.shape[1:])
    cut = feature_blocks(shape, parties, blocks)
    images = dataset.x_train.dim() == 4
    passive, width = [], 0
    for k, (x_k, block) in enumerate(zip(split_features(dataset.x_train, cut), cut, strict=True)):
        mean, std = (s if images else s[block] for s in (dataset.mean, dataset.std))
        model = build_bottom(bottom, x_k[:1], mean, std)
        w_k = model.init(stream_seed(seed, "init", k))
        width += model.logits(w_k, x_k[:1]).shape[1]
        passive.append(PassiveParty(model, w_k.to(device), x_k.to(device)))
    top = build_top(width, dataset.classes)
    active = ActiveParty(
        top, top.init(stream_seed(seed, "init", "active")).to(device), dataset.y_train.to(device), dataset.classes
    )
    return Parties(tuple(passive), active), [x.to(device) for x in split_features(dataset.x_test, cut)]
