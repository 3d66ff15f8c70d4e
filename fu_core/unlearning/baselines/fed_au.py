"""FedAU: mix the last layer with one that was taught nonsense about the data to forget (Gu et al., IJCAI 2024).

The model is a backbone phi and a linear head h_L. Each target u has an auxiliary head h_A^u on the same phi:

    forgotten samples of u     random labels for h_A^u
    samples that u keeps       true labels for h_A^u
    h = c h_L + (1 - c) 1/|U| sum_u h_A^u

As logits are linear in the head, those of the result are the same mixture of both heads' logits.

`fed_au` is PUF's variant: phi is frozen after training, h_A^u is trained for ten epochs, labels redrawn in
each, and c = 0.04. PUF's appendix calls 0.04 the weight of the auxiliary module; its code gives it to h_L, and
only that agrees with FedAU's own (1 - alpha) h_L + alpha mean h_A, alpha = 0.9.

FedAU's own variant, which trains both heads at once, is in fed_au_official.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fu_core.errors import NumericalFailure, UnsupportedModel, UnsupportedTask, check_count, check_share
from fu_core.federation.federation import Federation
from fu_core.federation.local import batches
from fu_core.federation.server import aggregate
from fu_core.models.calls import calls, seen_by
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.ranges import Range

Samples = tuple[Tensor, Tensor, int]  # x (n, ...), y (n,), and how many of them, the first, are kept
RANGES = {
    "c": Range(0.004, 0.4, "log"),  # a decade around what PUF found in 0 to 1; FedAU's own is 0.1
    "epochs": Range(2, 20, "whole"),  # up to twice PUF's 10
}
INIT_STD = 0.01  # auxiliary heads start at N(0, 0.01^2), their biases at zero


@dataclass(frozen=True)
class FedAU:
    """Hyper-parameters of PUF's variant; the defaults are those of its appendix A."""

    c: float = 0.04  # weight of the original head; 1 changes nothing
    epochs: int = 10  # of the auxiliary head

    def __post_init__(self) -> None:
        check_share("c", self.c)
        check_count("epochs", self.epochs)


@dataclass(frozen=True)
class Head:
    """The linear layer a model ends in. In w it is the slice `place`: weight (C, F) row by row, then bias (C,)."""

    name: str
    layer: nn.Linear
    place: slice

    @property
    def d(self) -> int:
        """P_c, the parameters of the head."""
        return self.place.stop - self.place.start

    def put(self, w: Tensor, h: Tensor) -> Tensor:
        """A copy of `w` (d,) with the head `h` (P_c,)."""
        changed = w.clone()
        changed[self.place] = h
        return changed


def find_head(model: FlatModel, w: Tensor, example: Tensor) -> Head:
    """The last layer with parameters that a forward pass of `example` (n, ...) reaches, if it is a linear head.

    Raises `UnsupportedTask` for other tasks than classification, `UnsupportedModel` unless that layer is an
    nn.Linear, used once, whose outputs are the logits.
    """
    if model.task != "classification":
        raise UnsupportedTask(f"FedAU needs classes and a linear head: classification only, got {model.task!r}")
    with torch.no_grad():
        logits, made = calls(model, w, example)
    name, layer, z = made[-1].name, made[-1].layer, made[-1].given
    if not isinstance(layer, nn.Linear):
        raise UnsupportedModel(f"the last layer must be nn.Linear, but {name!r} is {type(layer).__name__}")
    if sum(call.layer is layer for call in made) > 1:
        raise UnsupportedModel(f"layer {name!r} is used more than once: it is no head of its own")
    start = sum(model.sizes[: model.names.index(f"{name}.weight".lstrip("."))])
    head = Head(name, layer, slice(start, start + sum(p.numel() for p in layer.parameters())))
    if not torch.equal(FlatModel(layer).predict(w[head.place], z), logits):
        raise UnsupportedModel(f"the outputs of the last layer, {name!r}, are not the logits: something follows it")
    return head


def features(model: FlatModel, w: Tensor, head: Head, x: Tensor) -> Tensor:
    """phi(x) (n, F): what reaches the head for raw inputs `x` (n, ...). No gradients."""
    return seen_by(model, w, head.name, x)


def fresh_head(head: Head, like: Tensor, *, seed: int, client_id: int) -> Tensor:
    """An untrained auxiliary head (P_c,), N(0, 0.01^2) with zero biases, from its stream (seed, "fedau head", u)."""
    weight = INIT_STD * torch.randn(head.layer.weight.shape, generator=stream(seed, "fedau head", client_id))
    return F.pad(weight.flatten(), (0, head.d - weight.numel())).to(like)


def random_labels(n: int, classes: int, *, seed: int, client_id: int, epoch: int) -> Tensor:
    """Labels (n,) uniform in 0, ..., C - 1, true or not, from the stream (seed, "fedau", u, epoch)."""
    return torch.randint(classes, (n,), generator=stream(seed, "fedau", client_id, epoch))


def combine_heads(h_L: Tensor, h_A: Tensor, *, c: float) -> Tensor:
    """`c h_L + (1 - c) 1/|U| sum_u h_A^u` (P_c,): h_L (P_c,), h_A (|U|, P_c). c = 1 - alpha in FedAU's notation."""
    check_share("c", c)
    return c * h_L + (1 - c) * mean_head(h_A)


def mean_head(h_A: Tensor) -> Tensor:
    """`1/|U| sum_u h_A^u` (P_c,): unweighted, in float64 and client order."""
    return aggregate(h_A, torch.full((len(h_A),), 1 / len(h_A), dtype=torch.float64))


def fed_au(f: Federation, w: Tensor, deletion: Deletion, config: FedAU, round: int) -> Tensor:
    """The model (d,) with a new head, in PUF's variant; the backbone of `w` (d,) is kept bit for bit.

    Targets train their heads with the federation's optimiser and batches, at the rate of the last training round,
    `round` - 1; never with its augmentation.

    Random: heads and labels of every target, from streams of its own, and its batches, those of `round`. The meter: the
    head goes to each target and back; an image counts once, for its one way through the backbone. Table VIII calls the
    computation negligible, so the steps of the head itself, P_c of P parameters, are not counted.
    Raises as `find_head`, and `NumericalFailure` for a head that diverges.
    """
    samples = samples_of(deletion)
    head = head_on(f.model, w, samples)
    heads = []
    for u, (x, y, kept) in samples.items():
        z = features(f.model, w, head, x)  # once: the backbone is frozen
        f.meter.train(len(x))
        heads.append(_train_head(f, head, (z, y, kept), config, u, round))
    h_A = torch.stack(heads)  # (|U|, P_c)
    f.meter.exchange(w[head.place], h_A)
    f.meter.keep("global model", w)
    return head.put(w, combine_heads(w[head.place], h_A, c=config.c))


def _train_head(f: Federation, head: Head, samples: Samples, config: FedAU, u: int, round: int) -> Tensor:
    """h_A^u (P_c,) from features (n, F); the labels of all but the first `kept` are redrawn in every epoch."""
    z, y, kept = samples
    linear = FlatModel(head.layer, l2=f.model.l2)
    h = fresh_head(head, z, seed=f.seed, client_id=u)
    optimiser = f.local.fresh(max(round - 1, 1))  # eta_T, of the last round that was trained
    opt = replace(f.local, epochs=config.epochs)
    plan = batches(len(y), opt, seed=f.seed, round=round, client=u)
    per_epoch = math.ceil(len(y) / opt.batch_size)
    for step, b in enumerate(plan):
        epoch, first = divmod(step, per_epoch)
        if first == 0:
            y = relabelled(y, kept, head, seed=f.seed, client_id=u, epoch=epoch)
        optimiser.step(h, linear.grad(h, z[b], y[b]))
    if not bool(h.isfinite().all()):
        raise NumericalFailure(f"client {u}: its auxiliary head is not finite; lower lr (now {f.local.lr})")
    return h


@register(
    "FedAU",
    paper="Gu et al., IJCAI 2024",
    colour="#4b1f7a",
    parameters=FedAU,
    needs=Needs(task=True),
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: FedAU) -> Tensor:
    """PUF's variant, in the round that follows training."""
    return fed_au(trained.horizontal, trained.model, deletion, config, trained.next_round)


def samples_of(deletion: Deletion) -> dict[int, Samples]:
    """All samples of each target, those that it keeps first."""
    samples: dict[int, Samples] = {}
    for u, (x, y) in deletion.forgotten.items():
        samples[u] = x, y, 0
        if u in deletion.kept:
            x_k, y_k = deletion.kept[u]
            samples[u] = torch.cat([x_k, x]), torch.cat([y_k, y]), len(y_k)
    return samples


def head_on(model: FlatModel, w: Tensor, samples: Mapping[int, Samples]) -> Head:
    """`find_head` with the first target's samples."""
    x, _, _ = next(iter(samples.values()))
    return find_head(model, w, x[:32])  # several: a ReLU behind the head would let one positive sample pass


def relabelled(y: Tensor, kept: int, head: Head, *, seed: int, client_id: int, epoch: int) -> Tensor:
    """The labels `y` (n,), random after the first `kept`."""
    drawn = random_labels(len(y) - kept, head.layer.out_features, seed=seed, client_id=client_id, epoch=epoch)
    return torch.cat([y[:kept], drawn.to(y)])
