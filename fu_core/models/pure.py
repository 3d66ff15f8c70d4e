"""Whether a module is a function of its parameters and of a sample alone, and how its parameters are drawn anew."""

from __future__ import annotations

import math
import re

import torch
from torch import nn

from fu_core.errors import UnsupportedModel

DROPS = re.compile("StochasticDepth|DropPath|DropBlock")  # torchvision's, timm's and those of transformers
PROBABILITIES = ("p", "drop_prob")


def refuse_what_is_not_pure(module: nn.Module) -> None:
    """Raise `UnsupportedModel`, naming what is wrong and what to do, for what `FlatModel` cannot treat as a vector."""
    if not isinstance(module, nn.Module):
        raise UnsupportedModel(f"module must be a torch module, mlp(64, 10) say, got {type(module).__name__}")
    if not list(module.parameters()):
        raise UnsupportedModel(
            f"{type(module).__name__} has no parameters, so that there is nothing to learn or forget"
        )
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise UnsupportedModel(f"parameter {name!r} has no shape yet; call the module on a sample first")
    for name, part in module.named_modules():
        layer = f"layer {name!r} ({type(part).__name__})"
        if getattr(part, "track_running_stats", False):
            raise UnsupportedModel(
                f"{layer} keeps running statistics, which are not parameters; use GroupNorm or LayerNorm"
            )
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModel(f"{layer} makes a sample's output depend on its batch; use GroupNorm or LayerNorm")
        if part.training and _normalises_by_steps(part):
            raise UnsupportedModel(
                f"{layer} is normalised by vectors that every pass changes and that are no parameters; "
                "use weight decay, or call eval() on the module"
            )
        if _draws(part):
            raise UnsupportedModel(
                f"{layer} draws numbers from no stream, so that nothing could be repeated; "
                "set its probability to 0, or call eval() on the module"
            )
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            raise UnsupportedModel(
                f"parameter {name!r} must have requires_grad=True, since all of w is trained; "
                "train the other layers on its outputs as features, or hold it as a buffer"
            )


def _normalises_by_steps(part: nn.Module) -> bool:
    """Whether torch's spectral norm is at work here, as a parametrisation or as the hook that it was before."""
    hooks = [type(hook).__name__ for hook in part._forward_pre_hooks.values()]
    return type(part).__name__ == "_SpectralNorm" or "SpectralNorm" in hooks


def _draws(part: nn.Module) -> bool:
    """Whether this module, without those in it, draws numbers: dropout, and what has its probability as a number.

    Stochastic depth and its like belong to other libraries, and are known by their names.
    """
    if isinstance(part, (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)):
        return part._random_samples is None  # in evaluation, too
    if not part.training:
        return False
    if isinstance(part, nn.RReLU):
        return part.lower != part.upper
    if DROPS.search(type(part).__name__):
        return any(isinstance(p, float) and p > 0 for p in (getattr(part, name, None) for name in PROBABILITIES))
    if isinstance(part, nn.modules.dropout._DropoutNd):
        return part.p > 0
    return isinstance(part, (nn.MultiheadAttention, nn.RNNBase)) and part.dropout > 0


@torch.no_grad()
def redraw(module: nn.Module) -> None:
    """Re-draw all parameters, children before parents so that a net's own initialiser has the last word.

    What no initialiser reaches stays NaN, whatever its module had it at.
    """
    for parameter in module.parameters():
        parameter.fill_(math.nan)
    for _, part in reversed(list(module.named_modules())):
        initialise = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
        if callable(initialise):
            initialise()
