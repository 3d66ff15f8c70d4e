"""Gradients, and curvature times a vector, over whole data sets and without ever forming a matrix.

    Hessian           H v = d/de grad L(w + e v)                        (HF-KCU, Eq. 5; Pearlmutter 1994)
    Gauss-Newton      G v = mean_i J_i' [d2 l_i / dz2] J_i v            positive semi-definite for convex losses
    empirical Fisher  F v = mean_i g_i (g_i' v)                         positive semi-definite, low rank

J_i is the Jacobian of the outputs z_i, g_i the gradient of one sample's loss. All three are exact, take
one pass over the data per product, batch by batch, and hold a few vectors (d,) besides a batch's
activations: memory does not grow with the number of products. `l2` of the model is added to each.
With several vectors at once, as rows (k, d), all have their products from one pass: what the data look like at w is
computed once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import linear, one_hot

from fu_core.errors import InvalidRequest, check_choice, check_count
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.products import TRANSFORMS, has_group_norm, on_batches

MATRICES = ("hessian", "ggn", "fisher")
Product = Callable[[Tensor], Tensor]  # v (d,) -> A v (d,), and those of this module rows V (k, d) -> V A (k, d)
Part = tuple[float, int, Client]  # weight in the objective, client, its samples
Batch = tuple[Tensor, Tensor, Tensor]  # x, y, each sample's share in the mean
ROWS_AT_ONCE = 8  # more cost memory, a batch's activations each, and save no more time
GRADIENTS = 2**20  # numbers of samples' gradients that are held at once: few calls on small models, few MB on nets
NUMBERS_AT_ONCE = 100_000  # of inputs, in a batch that several vectors share: their activations stay in the cache


def curvature_product(
    model: FlatModel,
    w: Tensor,
    parts: Sequence[tuple[float, Client]],
    *,
    matrix: str = "hessian",
    batch_size: int = 128,
    count: Callable[[int], None] | None = None,
) -> Product:
    """`v -> sum_k weight_k A_k v` (d,) at `w`, with A_k the mean curvature over the samples of part k.

    parts: (weight, (x, y)) per client. `matrix`: "hessian", "ggn" or "fisher". Rows (k, d) give rows, `ROWS_AT_ONCE`
    from one pass. `count(samples)` is called for every batch, for the cost counters: a sample counts once per vector.
    Sums in float64, in the order of the parts. Deterministic.
    """
    check_choice("matrix", matrix, MATRICES)
    check_count("batch_size", batch_size)
    w = w.detach()
    parts = [(weight, (x, model.labels(y))) for weight, (x, y) in _with_weight(parts)]
    add = (_written_out if _is_written_out(model, parts, matrix) else _by_autograd)(model, w, parts, matrix, batch_size)
    mass = sum(weight for weight, _ in parts)

    def products(V: Tensor) -> Tensor:
        total = torch.zeros(V.shape, dtype=torch.float64, device=w.device)
        for samples in add(V, total):
            if count is not None:
                count(samples * len(V))
        return total.to(w.dtype) + (mass * model.l2) * V

    def product(v: Tensor) -> Tensor:
        if v.dim() == 1:
            return products(v[None])[0]
        return torch.cat([products(V) for V in v.split(ROWS_AT_ONCE)]) if len(v) else v.clone()

    return product


def _is_written_out(model: FlatModel, parts: Sequence[tuple[float, Client]], matrix: str) -> bool:
    return matrix != "fisher" and model.keeps_features(sum(len(y) for _, (_, y) in parts))


class _Seen(NamedTuple):
    """What a batch looks like at w, the same for every product: with n samples, L layers."""

    inputs: list[Tensor]  # h_0, ..., h_{L-1} (n, in)
    p: Tensor | None  # (n, classes); None: a regression
    back: list[Tensor]  # r_1, ..., r_L (n, out), each sample with its share
    share: Tensor  # (n,)


# Adds A v of every row of V (k, d) to the rows of a total (k, d), and tells after each batch how large it was.
Adds = Callable[[Tensor, Tensor], Iterator[int]]


def _by_autograd(
    model: FlatModel, w: Tensor, parts: Sequence[tuple[float, Client]], matrix: str, batch_size: int
) -> Adds:
    of_one, of_several, arrange = on_batches(matrix, model, w), TRANSFORMS[matrix], _layout(model)
    fewer = max(1, NUMBERS_AT_ONCE // parts[0][1][0][0].numel())

    def add(V: Tensor, total: Tensor) -> Iterator[int]:
        if len(V) == 1:
            for x, y, share in _batches(parts, batch_size):
                total[0].add_(of_one(V[0], arrange(x), y, share.to(w.device, w.dtype)))
                yield len(y)
            return
        for x, y, share in _batches(parts, min(batch_size, fewer)):
            batch = (x.contiguous(), y, share.to(w.device, w.dtype))  # vmap undoes any other memory order
            total.add_(vmap(lambda v: of_several(model, w, v, *batch))(V))  # noqa: B023
            yield len(y)

    return add


def _written_out(
    model: FlatModel, w: Tensor, parts: Sequence[tuple[float, Client]], matrix: str, batch_size: int
) -> Adds:
    """The product of layers z_l = W_l h_{l-1} + b_l with h_l = relu(z_l) between them, by hand (Pearlmutter 1994).

    Backpropagation, r_L = softmax(z_L) - onehot(y) and r_{l-1} = [h_{l-1} > 0] W_l' r_l, gives the gradients
    r_l h_{l-1}'. Along v = (V_l, c_l) they change by what follows; terms with r_l belong to the Hessian alone; of a
    regression r_L = z_L - y and dr_L = dz_L:

        dz_l = V_l h_{l-1} + c_l + W_l dh_{l-1}             dh_l = [h_l > 0] dz_l
        dr_L = [diag(p) - p p'] dz_L                        dr_{l-1} = [h_{l-1} > 0] (W_l' dr_l + V_l' r_l)
        A v at W_l: dr_l h_{l-1}' + r_l dh_{l-1}'           at b_l: dr_l

    Keeps the layers' inputs and the r_l of all samples. Of k vectors at once dz, dh and dr are (n, k, width): a layer's
    V_1, ..., V_k are one matrix, which the samples' inputs are multiplied by once.
    """
    tail = model.dense_tail
    assert tail is not None
    at_w = tail.views(w)
    layers = tail.dense_layers

    def look(x: Tensor, y: Tensor, share: Tensor) -> _Seen:
        inputs = [x]
        for k, (weight, bias) in enumerate(layers, start=1):
            z = linear(inputs[-1], at_w[weight], at_w.get(bias))
            if k < len(layers):
                inputs.append(z.relu())
        p = None if model.task == "regression" else z.softmax(dim=1)
        missed = (z - y.reshape(z.shape)).to(z.dtype) if p is None else p - one_hot(y, p.shape[1])
        back = [share[:, None] * missed]
        for (weight, _), h in zip(reversed(layers[1:]), reversed(inputs[1:]), strict=True):
            back.append((back[-1] @ at_w[weight]) * (h > 0))
        return _Seen(inputs, p, back[::-1], share)

    batches = [
        look(model.features(x, w), y, share.to(w.device, w.dtype)) for x, y, share in _batches(parts, batch_size)
    ]

    def along(v: dict[str, Tensor], seen: _Seen, into: dict[str, Tensor]) -> None:
        moved: list[Tensor | None] = [None]  # dh_0, ..., dh_{L-1}: the features do not depend on w
        for layer, ((weight, bias), h) in enumerate(zip(layers, seen.inputs, strict=True), start=1):
            each = v[weight].shape[:2]  # k, out
            dz = (h @ v[weight].flatten(0, 1).T).unflatten(1, each)
            if bias in v:
                dz += v[bias]
            if (dh := moved[-1]) is not None:
                dz += dh @ at_w[weight].T
            if layer < len(layers):
                moved.append(dz * (seen.inputs[layer] > 0)[:, None])
        share = seen.share[:, None, None]
        if seen.p is None:
            dr = share * dz
        else:
            p = seen.p[:, None]
            dr = share * p * (dz - (p * dz).sum(dim=2, keepdim=True))
        for (weight, bias), h, dh, r in zip(
            reversed(layers), reversed(seen.inputs), reversed(moved), reversed(seen.back), strict=True
        ):
            into[weight].add_((dr.flatten(1).T @ h).unflatten(0, v[weight].shape[:2]))
            if bias in into:
                into[bias].add_(dr.sum(dim=0))
            if dh is None:
                return
            dr = dr @ at_w[weight]
            if matrix == "hessian":
                into[weight].add_((r.T @ dh.flatten(1)).unflatten(1, dh.shape[1:]).transpose(0, 1))
                dr += (r @ v[weight].transpose(0, 1).flatten(1)).unflatten(1, dh.shape[1:])
            dr *= (h > 0)[:, None]

    def add(V: Tensor, total: Tensor) -> Iterator[int]:
        into, directions = _layers_of(tail, total), _layers_of(tail, V)
        for seen in batches:
            along(directions, seen, into)
            yield len(seen.share)

    return add


def _layers_of(model: FlatModel, rows: Tensor) -> dict[str, Tensor]:
    """Named tensors (k, *shape) that share storage with `rows` (k, d)."""
    pieces = rows.split(model.sizes, dim=1)
    return {n: p.unflatten(1, s) for n, p, s in zip(model.names, pieces, model.shapes, strict=True)}


def sampled(
    parts: Sequence[Part], samples: int | None, *, seed: int, purpose: str = "curvature"
) -> list[tuple[float, Client]]:
    """Each part's share of `samples` of its samples, at least one; None: all. Random: (seed, purpose, client)."""
    total = sum(len(y) for _, _, (_, y) in parts)
    chosen: list[tuple[float, Client]] = []
    for weight, i, (x, y) in parts:
        size = len(y) if samples is None else math.ceil(samples * len(y) / total)
        if size < len(y):
            rows = torch.randperm(len(y), generator=stream(seed, purpose, i))[:size].to(y.device)
            x, y = x[rows], y[rows]
        chosen.append((weight, (x, y)))
    return chosen


def dense_curvature(
    model: FlatModel,
    w: Tensor,
    parts: Sequence[tuple[float, Client]],
    *,
    matrix: str = "hessian",
    batch_size: int = 1000,
    count: Callable[[int], None] | None = None,
) -> Tensor:
    """The matrix (d, d) behind `curvature_product`: its products with the unit vectors."""
    product = curvature_product(model, w, parts, matrix=matrix, batch_size=batch_size, count=count)
    return product(torch.eye(model.d, dtype=w.dtype, device=w.device))


def mean_gradient(
    model: FlatModel, w: Tensor, data: Client, *, batch_size: int = 500, count: Callable[[int], None] | None = None
) -> Tensor:
    """Gradient of the mean loss over all samples of `data` (d,), in batches, summed in float64."""
    x, y = data
    total = torch.zeros(model.d, dtype=torch.float64, device=w.device)
    for x_b, y_b in zip(x.split(batch_size), y.split(batch_size), strict=True):
        total.add_(model.grad(w, model.arrange(x_b), y_b), alpha=len(y_b) / len(y))
        if count is not None:
            count(len(y_b))
    return total.to(w.dtype)


def weighted_gradient(
    model: FlatModel,
    w: Tensor,
    parts: Sequence[tuple[float, Client]],
    *,
    batch_size: int = 500,
    count: Callable[[int], None] | None = None,
) -> Tensor:
    """`sum_k weight_k grad f_k(w)` (d,), f_k the mean loss over the samples of part k. Summed in float64.

    parts: (weight, (x, y)) per client. Where w is float64 and clients hold less than a batch each, batches span
    clients: the same sum in another order, which shows in the last digits alone, and several times faster.
    """
    w, total = w.detach(), torch.zeros(model.d, dtype=torch.float64, device=w.device)
    few = len(parts) > 1 and sum(len(y) for _, (_, y) in parts) < batch_size * len(parts)
    if few and w.dtype == torch.float64:
        leaf = w.detach().requires_grad_()
        for x, y, share in _batches(parts, batch_size):
            losses = model.sample_losses(model.logits(leaf, model.arrange(x)), model.labels(y))
            each = losses.view(len(y), -1).mean(dim=1)  # targets of a regression may be a column, or several
            total += torch.autograd.grad(each.dot(share.to(w.device)), leaf)[0]
            if count is not None:
                count(len(y))
        return total.add_(w, alpha=model.l2 * sum(weight for weight, _ in parts))
    for weight, data in parts:
        total.add_(mean_gradient(model, w, data, batch_size=batch_size, count=count), alpha=weight)
    return total.to(w.dtype)


def fisher_diagonal(
    model: FlatModel,
    w: Tensor,
    parts: Sequence[tuple[float, Client]],
    *,
    of_loss: bool = False,
    batch_size: int | None = None,
    count: Callable[[int], None] | None = None,
) -> Tensor:
    """Diagonal of the empirical Fisher plus l2, (d,): the simplest stand-in for the curvature's diagonal.

    `of_loss`: of the regularised loss's gradients, and no l2 added. `count` as above, but what it counts
    costs one gradient per sample. Holds a batch of gradients (n, d): of `batch_size` samples, else as many as make a
    million numbers, 32 to 500. Summed in float64.
    """
    batch_size = min(max(GRADIENTS // model.d, 32), 500) if batch_size is None else batch_size
    w, total = w.detach(), torch.zeros(model.d, dtype=torch.float64, device=w.device)
    parts = _with_weight(parts)
    for weight, (x, y) in parts:
        for x_b, y_b in zip(x.split(batch_size), y.split(batch_size), strict=True):
            gradients = model.per_sample_grads(w, model.arrange(x_b), y_b)  # (n, d)
            if not of_loss:
                gradients = gradients - model.l2 * w
            total.add_((gradients**2).sum(dim=0, dtype=torch.float64), alpha=weight / len(y))
            if count is not None:
                count(len(y_b))
    return total.to(w.dtype) + (0.0 if of_loss else sum(weight for weight, _ in parts) * model.l2)


def _with_weight(parts: Sequence[tuple[float, Client]]) -> list[tuple[float, Client]]:
    weighted = [(weight, client) for weight, client in parts if weight]
    if not weighted or not all(len(y) for _, (_, y) in weighted):
        raise InvalidRequest("parts must hold samples with a weight: the curvature of no data is undefined")
    return weighted


def _batches(parts: Sequence[tuple[float, Client]], batch_size: int) -> Iterator[Batch]:
    """All samples in order, with their shares weight_k / n_k (n,) in the mean; batches span clients."""
    held: list[Batch] = []
    room = batch_size
    for weight, (x, y) in parts:
        start = 0
        while start < len(y):
            rows = slice(start, start + room)
            share = torch.full((len(y[rows]),), weight / len(y), dtype=torch.float64)
            held.append((x[rows], y[rows], share))
            start, room = start + len(share), room - len(share)
            if room == 0:
                yield _joined(held)
                held, room = [], batch_size
    if held:
        yield _joined(held)


def _joined(pieces: list[Batch]) -> Batch:
    x, y, share = zip(*pieces, strict=True)
    return torch.cat(x), torch.cat(y), torch.cat(share)


def _layout(model: FlatModel) -> Callable[[Tensor], Tensor]:
    """The fastest memory order; forward mode through GroupNorm needs plain contiguous batches."""
    return torch.Tensor.contiguous if has_group_norm(model) else model.arrange
