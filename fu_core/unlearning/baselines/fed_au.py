"""FedAU: mix the last layer with one that was taught nonsense about the data to forget (Gu et al., IJCAI 2024).

The model is a backbone phi and a linear head h_L. Each target u has an auxiliary head h_A^u on the same phi:

    forgotten samples of u     random labels for h_A^u
    samples that u keeps       true labels for h_A^u
    h = c h_L + (1 - c) 1/|U| sum_u h_A^u

As logits are linear in the head, those of the result are the same mixture of both heads' logits.

`fed_au` is PUF's variant: phi is frozen after training, h_A^u is trained for ten epochs, labels redrawn in
each, and c = 0.04. PUF's appendix calls 0.04 the weight of the auxiliary module; its code gives it to h_L, and
only that agrees with FedAU's own (1 - alpha) h_L + alpha mean h_A, alpha = 0.9.

`fed_au_train` and `fed_au_unlearn` are the official variant: both heads are trained during federated training
with the sum of their cross-entropies, so that phi learns from both; random labels are drawn once. To forget a
class, all labels of h_A^u are that class, and h = h_L - 1/|U| sum_u h_A^u.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fu_core.errors import (
    InvalidRequest,
    NumericalFailure,
    UnsupportedModel,
    UnsupportedTask,
    check_count,
    check_share,
)
from fu_core.federation.horizontal import aggregate, sizes_of
from fu_core.federation.local import Client, ClientOpt, batches
from fu_core.federation.meter import Meter
from fu_core.federation.together import train_round
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.deletion import check_targets
from fu_core.unlearning.needs import Needs

NEEDS = Needs(task=True)
Samples = tuple[Tensor, Tensor, int]  # x (n, ...), y (n,), and how many of them, the first, are kept
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
    reached: list[tuple[str, nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, args, name=name: reached.append((name, module, args[0])))
        for name, module in model.module.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        with torch.no_grad():
            logits = model.logits(w, example)
    finally:
        for hook in hooks:
            hook.remove()
    if not reached:
        raise UnsupportedModel(f"{type(model.module).__name__} reaches no layer with parameters")
    name, layer, z = reached[-1]
    if not isinstance(layer, nn.Linear):
        raise UnsupportedModel(f"the last layer must be nn.Linear, but {name!r} is {type(layer).__name__}")
    if sum(module is layer for _, module, _ in reached) > 1:
        raise UnsupportedModel(f"layer {name!r} is used more than once: it is no head of its own")
    start = sum(model.sizes[: model.names.index(f"{name}.weight".lstrip("."))])
    head = Head(name, layer, slice(start, start + sum(p.numel() for p in layer.parameters())))
    if not torch.equal(FlatModel(layer).predict(w[head.place], z), logits):
        raise UnsupportedModel(f"the outputs of the last layer, {name!r}, are not the logits: something follows it")
    return head


def features(model: FlatModel, w: Tensor, head: Head, x: Tensor) -> Tensor:
    """phi(x) (n, F): what reaches the head for raw inputs `x` (n, ...). No gradients."""
    seen: list[Tensor] = []
    hook = head.layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        model.predict(w, x)
    finally:
        hook.remove()
    return torch.cat(seen)


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
    return c * h_L + (1 - c) * _mean(h_A)


def subtract_heads(h_L: Tensor, h_A: Tensor) -> Tensor:
    """`h_L - 1/|U| sum_u h_A^u` (P_c,), for heads that were taught one class: FedAU's class unlearning."""
    return h_L - _mean(h_A)


def fed_au(
    model: FlatModel,
    w: Tensor,
    clients: Sequence[Client],
    targets: Sequence[int],
    *,
    config: FedAU | None = None,
    local: ClientOpt,
    seed: int,
    round: int,
    forget: Mapping[int, Client] | None = None,
    meter: Meter | None = None,
) -> Tensor:
    """The model (d,) with a new head, in PUF's variant; the backbone of `w` (d,) is kept bit for bit.

    Client unlearning: `clients[u]` of a target u is all that is to be forgotten. Sample unlearning:
    `clients[u]` is what the target keeps and `forget[u]` what it wants forgotten. local: optimiser, batches
    and the rate of the last training round, `round` - 1; never its augmentation.

    Random: heads, labels and batch order of every target, from streams of its own. `meter`: the head goes to
    each target and back; an image counts once, for its one way through the backbone. Table VIII calls the
    computation negligible, so the steps of the head itself, P_c of P parameters, are not counted.
    Raises as `find_head`, and `InvalidRequest` for targets that are nobody, unknown or named twice, for
    clients that leave all, and for nothing to forget.
    """
    config = config or FedAU()
    samples = _samples(clients, targets, forget)
    head = _head_on(model, w, samples)
    heads = []
    for u, (x, y, kept) in samples.items():
        z = features(model, w, head, x)  # once: the backbone is frozen
        if meter is not None:
            meter.train(len(x))
        heads.append(_train_head(model, head, z, y, kept, config, local, seed=seed, round=round, client_id=u))
    h_A = torch.stack(heads)  # (|U|, P_c)
    if meter is not None:
        meter.exchange(w[head.place], h_A)
        meter.keep("global model", w)
    return head.put(w, combine_heads(w[head.place], h_A, c=config.c))


def _train_head(
    model: FlatModel,
    head: Head,
    z: Tensor,
    y: Tensor,
    kept: int,
    config: FedAU,
    local: ClientOpt,
    *,
    seed: int,
    round: int,
    client_id: int,
) -> Tensor:
    """h_A^u (P_c,) from features (n, F); the labels of all but the first `kept` are redrawn in every epoch."""
    linear = FlatModel(head.layer, l2=model.l2)
    h = fresh_head(head, z, seed=seed, client_id=client_id)
    optimiser = local.fresh(max(round - 1, 1))  # eta_T, of the last round that was trained
    opt = replace(local, epochs=config.epochs)
    plan = batches(len(y), opt, seed=seed, round=round, client=client_id)
    per_epoch = math.ceil(len(y) / opt.batch_size)
    for step, b in enumerate(plan):
        epoch, first = divmod(step, per_epoch)
        if first == 0:
            y = _relabelled(y, kept, head, seed=seed, client_id=client_id, epoch=epoch)
        optimiser.step(h, linear.grad(h, z[b], y[b]))
    if not bool(h.isfinite().all()):
        raise NumericalFailure(f"client {client_id}: its auxiliary head is not finite; lower lr (now {local.lr})")
    return h


class TwoHeaded(FlatModel):
    """`model` with an auxiliary head beside its own, on the same features; the loss is the sum of both.

    Logits (n, 2 C), those of the model's own head first; labels (n, 2). In the flat vector (d + P_c,) the
    auxiliary head follows the other.
    """

    def __init__(self, model: FlatModel, head: Head) -> None:
        module, twins = copy.deepcopy(model.module), _Twins(head.layer)
        owner, _, last = head.name.rpartition(".")
        if last:
            setattr(module.get_submodule(owner), last, twins)
        super().__init__(module if last else twins, model.task, model.l2)
        self._cuts = [head.place.stop, head.d, model.d - head.place.stop]

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Sum of the two cross-entropies of each sample (n,)."""
        z_L, z_A = outputs.chunk(2, dim=-1)
        return F.cross_entropy(z_L, y[:, 0], reduction="none") + F.cross_entropy(z_A, y[:, 1], reduction="none")

    def join(self, w: Tensor, h_A: Tensor) -> Tensor:
        """(K, d + P_c) from one model `w` (d,) and K auxiliary heads (K, P_c)."""
        before, after = w.expand(len(h_A), -1).split([self._cuts[0], self._cuts[2]], dim=1)
        return torch.cat([before, h_A, after], dim=1)

    def part(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse: models (K, d) and auxiliary heads (K, P_c) from (K, d + P_c)."""
        before, h_A, after = rows.split(self._cuts, dim=1)
        return torch.cat([before, after], dim=1), h_A


class _Twins(nn.Module):
    """Two linear layers side by side: (n, F) to (n, 2 C)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.learning, self.auxiliary = copy.deepcopy(layer), copy.deepcopy(layer)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([self.learning(z), self.auxiliary(z)], dim=-1)


def fed_au_train(
    model: FlatModel,
    w: Tensor,
    clients: Sequence[Client],
    targets: Sequence[int],
    *,
    rounds: int,
    local: ClientOpt,
    seed: int,
    forget: Mapping[int, Client] | None = None,
    forget_class: int | None = None,
    first_round: int = 1,
    how: str = "auto",
    meter: Meter | None = None,
) -> tuple[Tensor, Tensor]:
    """FedAvg from `w` in which the targets train an auxiliary head as well: w (d,) and h_A (|U|, P_c).

    The heads stay with their clients from round to round, in the order of the sorted `targets`; models are
    averaged, by all clients' samples. clients, forget: as in `fed_au`, but every client trains on all it
    has. forget_class: the label of everything for the auxiliary heads; then `targets` are those who train
    one, maybe everybody.

    Random: heads and labels, the latter once, and the batches of `fedavg`, round by round. Raises as
    `fed_au`, and `NumericalFailure` on divergence.
    """
    check_count("rounds", rounds, least=0)
    if forget is not None and forget_class is not None:
        raise InvalidRequest("forget and forget_class exclude each other: forget samples or a class, not both")
    samples = _samples(clients, targets, forget, everybody=forget_class is not None)
    head = _head_on(model, w, samples)
    if forget_class is not None and forget_class not in range(head.layer.out_features):
        raise InvalidRequest(f"forget_class must be in 0 to {head.layer.out_features - 1}, got {forget_class}")
    two = TwoHeaded(model, head)
    taught: dict[int, Client] = {}  # labels (n, 2), for h_L and h_A
    for u, (x, y, kept) in samples.items():
        y_A = _relabelled(y, kept, head, seed=seed, client_id=u, epoch=0)
        if forget_class is not None:
            y_A = torch.full_like(y, forget_class)
        taught[u] = x, torch.stack([y, y_A], dim=1)
    ids, others = list(taught), [k for k in range(len(clients)) if k not in taught]
    n = sizes_of([taught.get(k, client) for k, client in enumerate(clients)])

    h_A = torch.stack([fresh_head(head, w, seed=seed, client_id=u) for u in ids])
    deltas = torch.empty((len(clients), model.d), dtype=w.dtype, device=w.device)
    w = w.clone()
    for t in range(first_round, first_round + rounds):
        moved = train_round(two, two.join(w, h_A), taught, local, seed=seed, round=t, ids=ids, how=how, meter=meter)
        deltas[ids], step_A = two.part(moved)
        h_A = h_A + step_A
        if others:  # a start each, so that the round is counted once, below
            starts = w.expand(len(others), -1)
            deltas[others] = train_round(
                model, starts, clients, local, seed=seed, round=t, ids=others, how=how, meter=meter
            )
        if meter is not None:
            meter.exchange(w, deltas)
        w = w + aggregate(deltas, n / n.sum())  # Delta_t = sum_i n_i / n * Delta_i
        if not bool(w.isfinite().all()):
            raise NumericalFailure(f"round {t}: the global model is not finite")
    return w, h_A


def fed_au_unlearn(
    model: FlatModel,
    w: Tensor,
    h_A: Tensor,
    *,
    example: Tensor,
    alpha: float = 0.9,
    class_wise: bool = False,
    meter: Meter | None = None,
) -> Tensor:
    """`w` (d,) with its head and the targets' `h_A` (|U|, P_c) of `fed_au_train` combined, the official way.

    `(1 - alpha) h_L + alpha mean h_A`, or `h_L - mean h_A` if `class_wise`. example: inputs (n, ...) to find
    the head by. Deterministic; raises as `find_head`. `meter`: the head goes to each target and back.
    """
    check_share("alpha", alpha)
    head = find_head(model, w, example)
    h_L = w[head.place]
    if meter is not None:
        meter.exchange(h_L, h_A)
        meter.keep("global model", w)
    return head.put(w, subtract_heads(h_L, h_A) if class_wise else combine_heads(h_L, h_A, c=1 - alpha))


def _mean(h_A: Tensor) -> Tensor:
    """1/|U| sum_u h_A^u: unweighted, in float64 and client order."""
    return aggregate(h_A, torch.full((len(h_A),), 1 / len(h_A), dtype=torch.float64))


def _relabelled(y: Tensor, kept: int, head: Head, *, seed: int, client_id: int, epoch: int) -> Tensor:
    """The labels `y` (n,), random after the first `kept`."""
    drawn = random_labels(len(y) - kept, head.layer.out_features, seed=seed, client_id=client_id, epoch=epoch)
    return torch.cat([y[:kept], drawn.to(y)])


def _head_on(model: FlatModel, w: Tensor, samples: Mapping[int, Samples]) -> Head:
    x, _, _ = next(iter(samples.values()))
    return find_head(model, w, x[:32])  # several: a ReLU behind the head would let one positive sample pass


def _samples(
    clients: Sequence[Client], targets: Sequence[int], forget: Mapping[int, Client] | None, everybody: bool = False
) -> dict[int, Samples]:
    """All samples of each target, in client order; `everybody` may be one."""
    check_targets(len(clients), targets, forget, duty="forget something", everybody=everybody)
    samples: dict[int, Samples] = {}
    for u in sorted(targets):
        x, y = clients[u] if forget is None else forget[u]
        if not len(y):
            raise InvalidRequest(f"targets names client {u}, which has no samples to forget")
        samples[u] = x, y, 0
        if forget is not None:
            x_k, y_k = clients[u]
            samples[u] = torch.cat([x_k, x]), torch.cat([y_k, y]), len(y_k)
    return samples
