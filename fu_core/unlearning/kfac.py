"""Kronecker-factored curvature (Martens and Grosse 2015; of convolutions, Grosse and Martens 2016): layer by layer,

    G_layer ~ B x A     A = mean_i sum_t a_it a_it'             what a layer sees of sample i at place t, and a 1
                        B = mean_i mean_t sum_c b_itc b_itc'    S_c of the outputs, pulled back to what it returns

    d2 l / dz2 = sum_c S_c S_c',   S_c = sqrt(p_c) (e_c - p)       one pull-back per class: exact, nothing is drawn

so that (B x A + damping I)^-1 costs two eigendecompositions per layer, once, and no product: a preconditioner for CG.
It pays where CG is slow: on a perceptron trained on digits (`benchmarks/preconditioners.csv`) 11 products in place of
29 to a residual of 0.1 at damping 0.001, 44 % fewer passes with its own ten; at damping 0.1 3 in place of 5, dearer.
Exact for a layer of squared errors, and for one sample at one place. Blocks between layers are left out, and whatever
is neither nn.Linear nor nn.Conv2d (norms, attention's own weights) has the mean curvature of what is, times I.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fu_core.errors import UnsupportedModel, UnsupportedTask, check_count, check_positive
from fu_core.federation.local import Client
from fu_core.models.calls import calls
from fu_core.models.flat import FlatModel


class Factors(NamedTuple):
    """A (p, p) and B (q, q) of a layer with weight (q, p'), in float64; bias: is the last of the p columns one?"""

    seen: Tensor
    pulled: Tensor
    bias: bool


def kronecker_factors(
    model: FlatModel,
    w: Tensor,
    parts: Sequence[tuple[float, Client]],
    *,
    batch_size: int = 128,
    count: Callable[[int], None] | None = None,
) -> dict[str, Factors]:
    """The factors of every nn.Linear and nn.Conv2d that a forward pass of `w` (d,) meets once, by its name.

    parts: (weight, (x, y)) per client; no label is read. `count(samples)` hears of one pass per class. Deterministic.
    Raises UnsupportedTask for segmentation, UnsupportedModel if there is no such layer.
    """
    check_count("batch_size", batch_size)
    if model.task == "segmentation":
        raise UnsupportedTask("model must classify or regress, for Kronecker factors, got segmentation")
    found: dict[str, Factors] = {}
    mass = sum(weight for weight, _ in parts)
    for weight, (x, _) in parts:
        for x_b in x.split(batch_size):
            of_batch = _of_batch(model, w, x_b, count)
            for name, (seen, pulled, bias) in of_batch.items():
                share = weight / mass * len(x_b) / len(x)
                old = found.get(name, Factors(torch.zeros_like(seen), torch.zeros_like(pulled), bias))
                found[name] = Factors(old.seen + share * seen, old.pulled + share * pulled, bias)
    return {name: Factors(mass * seen, pulled, bias) for name, (seen, pulled, bias) in found.items()}


def kfac_inverse(model: FlatModel, factors: dict[str, Factors], *, damping: float) -> Callable[[Tensor], Tensor]:
    """r (d,) -> (K + damping I)^-1 r (d,), K the block-diagonal of `factors`. Symmetric and positive definite.

    damping: with the model's l2, which K does not hold. Raises ValueError unless it is above zero.
    """
    check_positive("damping", damping)
    eigen = {
        name: (*torch.linalg.eigh(of.seen), *torch.linalg.eigh(of.pulled), of.bias) for name, of in factors.items()
    }
    size = sum(len(of.seen) * len(of.pulled) for of in factors.values())
    middle = sum(float(of.seen.trace() * of.pulled.trace()) for of in factors.values()) / size

    def inverse(r: Tensor) -> Tensor:
        found = r / (damping + middle)
        given, into = model.views(r), model.views(found)
        for name, (a, U, b, V, bias) in eigen.items():
            inside = f"{name}." if name else ""
            rows = given[f"{inside}weight"].flatten(1).double()  # (q, p')
            if bias:
                rows = torch.cat([rows, given[f"{inside}bias"].double()[:, None]], dim=1)
            solved = V @ ((V.T @ rows @ U) / (b.clamp(min=0)[:, None] * a.clamp(min=0) + damping)) @ U.T
            if bias:
                into[f"{inside}bias"].copy_(solved[:, -1])
                solved = solved[:, :-1]
            into[f"{inside}weight"].copy_(solved.view(into[f"{inside}weight"].shape))
        return found

    return inverse


def _of_batch(model: FlatModel, w: Tensor, x: Tensor, count: Callable[[int], None] | None) -> dict[str, Factors]:
    """The factors of one batch's mean."""
    outputs, made = calls(model, w.detach().requires_grad_(), model.arrange(x), nn.Linear, nn.Conv2d)
    times = Counter(call.name for call in made)
    once = {call.name: call for call in made if times[call.name] == 1}
    if not once:
        raise UnsupportedModel(f"{type(model.module).__name__} must have an nn.Linear or nn.Conv2d that is used once")
    returned = [call.returned for call in once.values()]
    pulled = {name: torch.zeros(0) for name in once}
    for S in _roots(model, outputs.detach()):
        back = torch.autograd.grad(outputs, returned, S, retain_graph=True)
        if count is not None:
            count(len(x))
        for name, b in zip(once, back, strict=True):
            rows = _places(once[name].layer, b).double()  # (n, T, q)
            outer = torch.einsum("ntq,ntr->qr", rows, rows) / (len(x) * rows.shape[1])
            pulled[name] = outer if not len(pulled[name]) else pulled[name] + outer
    return {
        name: Factors(_seen(call.layer, call.given.detach()), pulled[name], _biased(call.layer))
        for name, call in once.items()
    }


def _roots(model: FlatModel, z: Tensor) -> list[Tensor]:
    """S_1, ..., S_C, each like the outputs z (n, C): of softmax, or 1 where errors are squared."""
    if model.task == "regression":
        return [torch.ones_like(z)]
    p = z.softmax(dim=1)
    return [p[:, c, None].sqrt() * (F.one_hot(torch.tensor(c), p.shape[1]).to(p) - p) for c in range(p.shape[1])]


def _seen(layer: nn.Module, x: Tensor) -> Tensor:
    """A (p, p) of a batch: mean over samples of the sum over places."""
    rows = _patches(layer, x) if isinstance(layer, nn.Conv2d) else x.reshape(len(x), -1, x.shape[-1])  # (n, T, p')
    if _biased(layer):
        rows = torch.cat([rows, torch.ones_like(rows[..., :1])], dim=2)
    rows = rows.double()
    return torch.einsum("ntp,ntq->pq", rows, rows) / len(x)


def _patches(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """What a convolution sees at each of its places (n, T, channels * height * width of the kernel)."""
    if layer.groups != 1 or isinstance(layer.padding, str):
        raise UnsupportedModel("a convolution must have one group and a padding in numbers, for Kronecker factors")
    unfolded = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    return unfolded.transpose(1, 2)


def _places(layer: nn.Module, b: Tensor) -> Tensor:
    """What was pulled back to a layer's outputs, as (n, T, q)."""
    if isinstance(layer, nn.Conv2d):
        return b.flatten(2).transpose(1, 2)
    return b.reshape(len(b), -1, b.shape[-1])


def _biased(layer: nn.Module) -> bool:
    return layer.bias is not None


def numbers(factors: dict[str, Factors]) -> int:
    """How many a client sends for others to know its factors: those are symmetric."""
    return sum(math.comb(len(one) + 1, 2) for of in factors.values() for one in (of.seen, of.pulled))
