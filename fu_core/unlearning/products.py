"""The curvature of one batch times a vector, in two ways that agree. Each is about as fast as two gradients.

    duals         f(w + e v) with e^2 = 0: one pass along v and one back, by torch's forward mode over its reverse mode
    transforms    the same by torch.func, which also takes several vectors at once (vmap), and norms of groups

For one vector the first way is 1.2 to 1.4 times as fast (Gauss-Newton and Fisher, which look at the batch once instead
of twice; Hessian 1.0 to 1.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import grad, jvp, vjp

from fu_core.models.flat import FlatModel


class OnBatch(Protocol):
    """A v (d,) of the mean that `share` (n,) makes of the samples x (n, ...), y (n, ...), at w (d,), without l2."""

    def __call__(self, model: FlatModel, w: Tensor, v: Tensor, x: Tensor, y: Tensor, share: Tensor, /) -> Tensor: ...


def on_batches(matrix: str, model: FlatModel, w: Tensor) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """(v, x, y, share) -> A v for one vector: by duals, where torch has a forward mode for the model's gradient, which
    is found out with the first batch. It has none for a group norm's, whose nets are a tenth faster the other way."""
    leaf, by_duals = w.detach().requires_grad_(), not has_group_norm(model)

    def product(v: Tensor, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        nonlocal by_duals
        if by_duals:
            try:
                with torch.enable_grad():
                    return DUALS[matrix](model, leaf, v, x, y, share)
            except NotImplementedError:
                by_duals = False
        return TRANSFORMS[matrix](model, w, v, x, y, share)

    return product


def has_group_norm(model: FlatModel) -> bool:
    """Whether a norm of groups is among the layers."""
    return any(isinstance(part, nn.GroupNorm) for part in model.module.modules())


# --- by dual numbers, for w that requires a gradient -----------------------------------------------------------------


def hessian_by_duals(model: FlatModel, w: Tensor, v: Tensor, x: Tensor, y: Tensor, share: Tensor, /) -> Tensor:
    """grad L(w + e v) = g + e H v."""
    with forward_ad.dual_level():
        losses = _sample_losses(model, model.logits(forward_ad.make_dual(w, v), x), y)
        (g,) = torch.autograd.grad(_weighted(share, losses), w)
        return _unpacked(g)[1]


def gauss_newton_by_duals(model: FlatModel, w: Tensor, v: Tensor, x: Tensor, y: Tensor, share: Tensor, /) -> Tensor:
    """z(w + e v) = z + e J v, and grad l there is r + e [d2 l / dz2] J v, which is pulled back by J'."""
    with forward_ad.dual_level():
        along = model.logits(forward_ad.make_dual(w, v), x)
        losses = _sample_losses(model, along, y)
        (r,) = torch.autograd.grad(_weighted(share, losses), along, retain_graph=True)
        z, moved = _unpacked(along)[0], _unpacked(r)[1]
    (product,) = torch.autograd.grad(z, w, moved)
    return product


def fisher_by_duals(model: FlatModel, w: Tensor, v: Tensor, x: Tensor, y: Tensor, share: Tensor, /) -> Tensor:
    """l_i(w + e v) = l_i + e g_i' v, and sum_i share_i (g_i' v) g_i."""
    with forward_ad.dual_level():
        losses, slopes = _unpacked(_sample_losses(model, model.logits(forward_ad.make_dual(w, v), x), y))
    (product,) = torch.autograd.grad(losses, w, share * slopes)
    return product


DUALS: dict[str, OnBatch] = {"hessian": hessian_by_duals, "ggn": gauss_newton_by_duals, "fisher": fisher_by_duals}


# --- by transforms of functions --------------------------------------------------------------------------------------


def hessian(model: FlatModel, w: Tensor, v: Tensor, x: Tensor, y: Tensor, share: Tensor, /) -> Tensor:
    """Forward over reverse."""
    gradient = grad(lambda p: _weighted(share, _sample_losses(model, model.logits(p, x), y)))
    return jvp(gradient, (w,), (v,))[1]


def gauss_newton(model: FlatModel, w: Tensor, v: Tensor, x: Tensor, y: Tensor, share: Tensor, /) -> Tensor:
    """J' [d2 l / dz2] J v."""

    def outputs_at(p: Tensor) -> Tensor:
        return model.logits(p, x)

    outputs, pull_back = vjp(outputs_at, w)[:2]
    moved = jvp(outputs_at, (w,), (v,))[1]  # J v
    by_outputs = grad(lambda z: _weighted(share, _sample_losses(model, z, y)))
    return pull_back(jvp(by_outputs, (outputs,), (moved,))[1])[0]


def fisher(model: FlatModel, w: Tensor, v: Tensor, x: Tensor, y: Tensor, share: Tensor, /) -> Tensor:
    """sum_i share_i g_i (g_i' v)."""

    def losses_at(p: Tensor) -> Tensor:
        return _sample_losses(model, model.logits(p, x), y)

    pull_back = vjp(losses_at, w)[1]
    slopes = jvp(losses_at, (w,), (v,))[1]  # g_i' v  (n,)
    return pull_back(share * slopes)[0]


TRANSFORMS: dict[str, OnBatch] = {"hessian": hessian, "ggn": gauss_newton, "fisher": fisher}


def _unpacked(dual: Tensor) -> tuple[Tensor, Tensor]:
    """a and b of a + e b; torch keeps none where b is zero."""
    primal, tangent = forward_ad.unpack_dual(dual)
    return primal, torch.zeros_like(primal) if tangent is None else tangent


def _weighted(share: Tensor, losses: Tensor) -> Tensor:
    """The sum of share_i l_i, in the type of the losses: that of a regression's targets, if theirs is the wider one."""
    return share.to(losses.dtype).dot(losses)


def _sample_losses(model: FlatModel, outputs: Tensor, y: Tensor) -> Tensor:
    """(n,), also where a regression's targets are a column; several outputs of a sample have no loss that fits."""
    losses = model.sample_losses(outputs, y)
    return losses if losses.dim() == 1 else losses.view(len(y))
