"""Train all clients of a round: as a loop over `train_client`, or together, one matrix for everybody's models.

The loop is the plain version; all ways see the same batches and agree to rounding:

    loop     one client after the other                              convolutions on a CPU
    vmap     one step of all clients at a time, layers (K, *shape)   small nets, accelerators
    dense    the same, backpropagation written out                   softmax regression and perceptrons

A federation's `how` may be a function instead, for clients that are elsewhere: see `elsewhere`.

Updates are new minus old throughout: `delta = w_client - w`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedModel, UnsupportedTask, listed
from fu_core.federation.augment import augment_many
from fu_core.federation.explained import explaining, refuse_what_depends
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client, train_client, visits
from fu_core.models.flat import FlatModel
from fu_core.precision import training_precision
from fu_core.streams import stream

TOGETHER = 100  # clients trained as one matrix on a CPU, at most: more gain nothing, and need as much memory each
MOST_PADDED = 1 << 25  # numbers, 128 MB of float32: what a matrix of clients of different size may be padded to
CACHED = 1 << 20  # and so many parameters: their models, 4 MB, stay in its cache from one batch to the next

Layers = dict[str, Tensor]  # (K, *shape) per name of `FlatModel.views`


@dataclass(frozen=True)
class Pool(Mapping[int, Client]):
    """Clients by id, with the samples of all in one tensor: a round reads its batches there, gathering nothing."""

    x: Tensor
    y: Tensor
    rows: dict[int, slice]

    @classmethod
    def of(cls, clients: Mapping[int, Client]) -> Pool:
        """Copies the samples; a pool is returned as it is."""
        if isinstance(clients, Pool):
            return clients
        rows, end = {}, 0
        for i, (_, y) in clients.items():
            rows[i] = slice(end, end := end + len(y))
        return cls(torch.cat([x for x, _ in clients.values()]), torch.cat([y for _, y in clients.values()]), rows)

    def __getitem__(self, i: int) -> Client:
        return self.x[self.rows[i]], self.y[self.rows[i]]

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def prepared(f: Federation, w: Tensor) -> Federation:
    """What many rounds from `w` train faster: of a dense model, its dense layers and the features that they see.

    Other models, and data that would take too much memory as features, come back as they are. The
    parameters are the same ones in either case.
    """
    if callable(f.how):
        return f
    with explaining(f, w, f.ids):
        refuse_what_depends(f.model, w, max((x for x, _ in f.clients.values()), key=len))
        if _way(f, f.how, w.device, f.ids) != "dense":
            return f
        if not f.model.keeps_features(sum(len(y) for _, y in f.clients.values())):
            return f
        return f.having(model=_tail(f.model), clients=_as_features(f.model, w, Pool.of(f.clients)))


def train_round(f: Federation, w: Tensor, round: int, ids: Sequence[int] | None = None) -> Tensor:
    """Train the clients `ids` (default: all) from `w`; returns their updates (K, d) in that order, new minus old.

    w: (d,), where all of them start, or (K, d), a start for each: row k belongs to `ids[k]`, and so does its
    update. The meter counts an exchange with a server for (d,) only; clients with models of their own have none.

    Raises `NumericalFailure` naming the client whose update is not finite, `ValueError` for a `w` of another shape,
    `InvalidRequest` for unknown `ids`, `UnsupportedModel` for how="dense" with a model that is not.
    """
    model, ids, w = f.model, f.ids if ids is None else list(ids), w.detach()
    if unknown := [i for i in ids if i not in f.clients]:
        raise InvalidRequest(f"ids names client {unknown[0]}, but clients are {listed(f.clients)}")
    one, each = (model.d,), (len(ids), model.d)
    if w.shape not in (one, each):
        raise ValueError(f"w must have shape {one}, or {each} with a row per client, got {tuple(w.shape)}")
    with explaining(f, w, ids):
        deltas = train_rows(f, w, round, ids)
    if not isinstance(deltas, Tensor) or deltas.shape != each:
        given = tuple(deltas.shape) if isinstance(deltas, Tensor) else type(deltas).__name__
        raise ValueError(f"how must return updates of shape {each}, a row per client, got {given}")
    finite = deltas.sum(dim=1).isfinite()  # NaN and infinity survive a sum, which is ten times cheaper to check
    if not finite.all():
        culprit = ids[int((~finite).nonzero()[0])]
        raise NumericalFailure(
            f"client {culprit}, round {round}: its update is not finite; lower lr (now {f.local.lr})"
        )
    if w.dim() == 1:
        f.meter.exchange(w, deltas)
    return deltas


def train_rows(f: Federation, w: Tensor, round: int, ids: list[int], seeds: Sequence[int] | None = None) -> Tensor:
    """Train a row per pair of `ids` and `seeds` (default: the federation's) from `w` (d,) or (R, d): updates (R, d).

    A client may have several rows, one per seed: its batches are those that it has with that seed. Nothing is
    checked, and no exchange is counted.
    """
    if callable(f.how):
        if seeds is not None:
            raise UnsupportedTask("how must be a way of training for many seeds at once: clients elsewhere have one")
        return f.how(f, w, round, ids)
    model, seeds = f.model, [f.seed] * len(ids) if seeds is None else seeds
    way = _way(f, f.how, w.device, ids)
    deltas = torch.empty((len(ids), model.d), dtype=w.dtype, device=w.device)
    for part in _blocks(f, ids, rows_at_once(w, len(ids)), way):
        start, own, of = w if w.dim() == 1 else w[part], [ids[k] for k in part], [seeds[k] for k in part]
        if way == "loop":
            deltas[part] = _train_loop(f, start, own, of, round)
            continue
        pool = f.clients if isinstance(f.clients, Pool) else Pool.of({i: f.clients[i] for i in own})
        if way == "vmap":
            deltas[part] = _train_matrix(f, model, start, pool, own, of, round, vmap_gradients)
        elif model.keeps_features(len(pool.y)):
            pool = _as_features(model, w, pool)
            deltas[part] = _train_matrix(f, _tail(model), start, pool, own, of, round, dense_gradients)
        else:
            deltas[part] = _train_matrix(f, _tail(model), start, pool, own, of, round, _of_raw_samples(model))
    return deltas


def _blocks(f: Federation, ids: list[int], together: int, way: str) -> Iterator[list[int]]:
    """Positions in `ids` of those trained as one matrix: `together` in a row, or fewer where small clients would be
    padded to a large one's size until memory ran out; then those of like size come together."""
    held = {i: len(f.clients[i][1]) for i in {*ids}}  # a client may have many rows, one per seed
    sizes = [held[i] for i in ids]
    width = f.clients[ids[0]][0][:1].numel() if ids else 0

    def split(block: list[int]) -> Iterator[list[int]]:
        batch = min(f.local.batch_size, most := max(sizes[k] for k in block))
        steps = math.ceil(f.local.epochs * math.ceil(most / batch))
        padded = len(block) * batch * (width + 2 * steps)  # what a step gathers, and the table of all steps' batches
        if way == "loop" or len(block) == 1 or padded <= MOST_PADDED:
            yield block
            return
        block = sorted(block, key=sizes.__getitem__)
        for half in (block[: len(block) // 2], block[len(block) // 2 :]):
            yield from split(half)

    for first in range(0, len(ids), together):
        yield from split(list(range(first, min(first + together, len(ids)))))


def rows_at_once(w: Tensor, rows: int) -> int:
    """How many models of the size of `w` (..., d) are trained as one matrix: all `rows`, but for a CPU's cache."""
    return max(1, min(TOGETHER, CACHED // w.shape[-1])) if w.device.type == "cpu" else rows


def _way(f: Federation, how: str, device: torch.device, ids: Sequence[int]) -> str:
    dense = f.model.dense_tail is not None and f.local.augmentation == "none"  # which changes what features are made of
    if how == "dense" and not dense:
        raise UnsupportedModel(
            "how='dense' needs classification, or regression of one number, by nn.Linear and ReLU in turn, "
            "after layers without parameters, and no augmentation"
        )
    if how == "vmap" and (why := _only_alone(f, ids)):
        raise UnsupportedModel(f"how must be 'loop' or 'auto' for this federation, got 'vmap': {why}")
    if how != "auto":
        return how
    if dense and _of_one_shape(f, ids):
        return "dense"
    convolutional = any(isinstance(part, nn.Conv2d) for part in f.model.module.modules())
    alone = len(ids) == 1 or (convolutional and device.type == "cpu") or _only_alone(f, ids)
    return "loop" if alone else "vmap"


def _only_alone(f: Federation, ids: Sequence[int]) -> str:
    """Why the models of these clients cannot be stepped together; empty where they can.

    torch has no rule for some layers (nn.GRU), refuses what depends on values, and has wrong ones: of an embedding it
    forgets for all models but the first which row is padding.
    """
    if not _of_one_shape(f, ids):
        return "its clients' samples differ in shape"
    for name, part in f.model.module.named_modules():
        if isinstance(part, nn.Embedding) and (part.padding_idx is not None or part.scale_grad_by_freq):
            return f"layer {name!r} is an nn.Embedding with padding_idx or scale_grad_by_freq"
    some = next((f.clients[i] for i in ids if len(f.clients[i][1])), None)
    return f.model.alone_for(*some) if some else ""  # who holds nothing is refused when it is to train


def _of_one_shape(f: Federation, ids: Sequence[int]) -> bool:
    if isinstance(f.clients, Pool):
        return True
    return len({(x.shape[1:], y.shape[1:]) for x, y in (f.clients[i] for i in {*ids})}) <= 1


def _tail(model: FlatModel) -> FlatModel:
    assert model.dense_tail is not None  # by _way
    return model.dense_tail


def _as_features(model: FlatModel, w: Tensor, pool: Pool) -> Pool:
    return replace(pool, x=model.features(pool.x, w))


# --- one after the other ---------------------------------------------------------------------------------------------


def _train_loop(f: Federation, w: Tensor, ids: list[int], seeds: Sequence[int], round: int) -> Tensor:
    deltas = torch.empty((len(ids), f.model.d), dtype=w.dtype, device=w.device)
    starts = w.expand(len(ids), -1)  # (K, d), whether they share one or not
    of = {seed: f if seed == f.seed else f.having(seed=seed) for seed in seeds}  # making one looks at every client
    for start, delta, i, seed in zip(starts, deltas, ids, seeds, strict=True):
        torch.sub(train_client(of[seed], start, i, round), start, out=delta)  # Delta_i = w_i - w
    return deltas


# --- as one matrix ---------------------------------------------------------------------------------------------------


Gradients = Callable[[FlatModel, Layers, Tensor, Tensor, Tensor | None], Layers]


def _train_matrix(
    f: Federation,
    model: FlatModel,
    w: Tensor,
    pool: Pool,
    ids: list[int],
    seeds: Sequence[int],
    round: int,
    gradients: Gradients,
) -> Tensor:
    """All clients step together, each layer one (K, *shape) tensor. Those with more batches come first, so
    that the clients still at work are always a prefix and finished ones simply drop off the end.
    """
    opt = f.local
    rows = [pool.rows[i] for i in ids]
    who = list(zip(ids, seeds, rows, strict=True))
    plans = [visits(r.stop - r.start, opt, seed=seed, round=round, client=i) for i, seed, r in who]
    order = sorted(range(len(ids)), key=lambda k: -len(plans[k][1]))
    schedule = _schedule([plans[k] for k in order], [rows[k].start for k in order], w)
    draws = [stream(seeds[k], "augment", round, ids[k]) for k in order] if opt.augmentation != "none" else []
    starts = w.detach().expand(len(ids), -1) if w.dim() == 1 else w.detach()[order]
    layers = {
        name: part.clone(memory_format=torch.contiguous_format).view(-1, *shape)
        for name, part, shape in zip(model.names, starts.split(model.sizes, dim=1), model.shapes, strict=True)
    }
    optimisers = {name: opt.fresh(round) for name in layers}
    deltas = torch.empty((len(ids), model.d), dtype=w.dtype, device=w.device)
    to, working = torch.tensor(order, device=w.device), len(ids)
    for lengths, index, weights in schedule:
        if (active := len(lengths)) < working:
            deltas.index_copy_(0, to[active:working], _as_rows({name: v[active:] for name, v in layers.items()}))
            layers = {name: v[:active] for name, v in layers.items()}
            for optimiser in optimisers.values():
                optimiser.keep(active)
            working = active
        x = augment_many(_rows(pool.x, index), lengths, opt.augmentation, draws[:active])
        for name, g in gradients(model, layers, x, _rows(pool.y, index), weights).items():
            if model.l2:
                g = g.add(layers[name], alpha=model.l2)
            optimisers[name].step(layers[name], g)
        f.meter.train(sum(lengths))
    deltas.index_copy_(0, to[:working], _as_rows(layers))
    return deltas.sub_(w)


def _as_rows(layers: Layers) -> Tensor:
    """Stacked layers (K, *shape) as flat vectors, one row (d,) per client."""
    return torch.cat([v.reshape(len(v), -1) for v in layers.values()], dim=1)


def _rows(held: Tensor, index: Tensor) -> Tensor:
    """`held[index]`, (K, B, ...), by the call that copies whole rows: a third of the time on a CPU."""
    return held.index_select(0, index.flatten()).view(*index.shape, *held.shape[1:])


def _schedule(
    plans: list[tuple[Tensor, list[int]]], firsts: list[int], like: Tensor
) -> Iterator[tuple[list[int], Tensor, Tensor | None]]:
    """Per step: the batch sizes of the clients still at work, their rows in the pool (K, B), and weights (K, B).

    `plans`: what `visits` gives for each client, those with the most steps first. Shorter batches are padded with
    weight 0; None if nothing is.
    """
    sizes = [own for _, own in plans]
    steps, longest = len(sizes[0]), max(n for own in sizes for n in own)
    held = torch.arange(longest) < torch.tensor([own + [0] * (steps - len(own)) for own in sizes])[..., None]
    padding = torch.tensor(firsts)[:, None, None]  # a sample of one's own, whatever others hold
    table = padding.repeat(1, *held.shape[1:])  # (K, steps, B)
    table[held] = torch.cat([order + first for (order, _), first in zip(plans, firsts, strict=True)])
    table = table.transpose(0, 1).contiguous().to(like.device)  # once a round, not per step
    held = held.transpose(0, 1).to(like.device, like.dtype)
    for step in range(steps):
        own = [n[step] for n in sizes if len(n) > step]
        width = max(own)
        index = table[step, : len(own), :width]
        yield own, index, None if min(own) == width else held[step, : len(own), :width]


def vmap_gradients(model: FlatModel, layers: Layers, x: Tensor, y: Tensor, weights: Tensor | None) -> Layers:
    """Per layer, row k: the gradient of client k's mean loss over its batch, without the l2 term.

    Samples enter with their share in their client's mean, padding with none; nothing couples the rows.
    """
    leaves = {name: v.detach().requires_grad_() for name, v in layers.items()}
    with training_precision(x.device):
        losses = model.losses_of_many(leaves, x, y)  # (K, B)
    shares = _shares(losses, weights)
    gradients = torch.autograd.grad(losses, list(leaves.values()), shares, allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True))


def dense_gradients(model: FlatModel, layers: Layers, x: Tensor, y: Tensor, weights: Tensor | None) -> Layers:
    """`vmap_gradients` of layers that alternate with ReLU, written out: autograd spends most of a step on bookkeeping.

    x: features (K, B, p). Forward `h_l = relu(h_{l-1} W_l' + b_l)`; backward, from `r = softmax(z) - onehot(y)` on,
    the gradients `r' h_{l-1}` and `sum r`, and `r <- (r W_l) * [h_{l-1} > 0]`. Of a regression `r = z - y`.
    """
    names = model.dense_layers
    inputs, z = [x], x
    for k, (weight, bias) in enumerate(names, start=1):
        product = layers[weight].mT  # (K, in, out)
        z = torch.baddbmm(layers[bias].unsqueeze(1), z, product) if bias in layers else torch.bmm(z, product)
        if k < len(names):
            inputs.append(z := z.relu_())
    if model.task == "regression":
        r = z.sub_(y.view(z.shape))
    else:
        r = z.sub_(z.amax(dim=2, keepdim=True)).exp_()  # (K, B, classes)
        r /= r.sum(dim=2, keepdim=True)  # softmax(z), which as one call takes two to four times as long for ten classes
        r.scatter_add_(2, y.long().unsqueeze(2), r.new_full((), -1.0).expand(*y.shape, 1))
    r *= _shares(z[..., 0], weights).unsqueeze(2)
    gradients: Layers = {}
    for (weight, bias), h in zip(reversed(names), reversed(inputs), strict=True):
        gradients[weight] = torch.bmm(r.mT, h)
        if bias in layers:
            gradients[bias] = r.sum(dim=1)
        if h is not x:
            r = torch.bmm(r, layers[weight]).mul_(h > 0)
    return gradients


def _of_raw_samples(whole: FlatModel) -> Gradients:
    """`dense_gradients` of the tail of `whole`, for samples that are too many to be kept as its features."""

    def gradients(model: FlatModel, layers: Layers, x: Tensor, y: Tensor, weights: Tensor | None) -> Layers:
        seen = whole.features(x.flatten(0, 1), next(iter(layers.values())))
        return dense_gradients(model, layers, seen.view(*x.shape[:2], -1), y, weights)

    return gradients


def _shares(losses: Tensor, weights: Tensor | None) -> Tensor:
    """What each sample of a padded batch (K, B) counts in its client's mean."""
    if weights is None:
        return losses.new_full((), 1 / losses.shape[1]).expand_as(losses)
    return weights / weights.sum(dim=1, keepdim=True)
