"""Whether a module is a function of its parameters and of a sample alone, and how its parameters are drawn anew."""

from __future__ import annotations

import math

import torch
from torch import nn

from fu_core.errors import UnsupportedModel


def refuse_what_is_not_pure(module: nn.Module) -> None:
    """Raise `UnsupportedModel`, naming what is wrong and what to do, for what `FlatModel` cannot treat as a vector."""
    if not list(module.parameters()):
        raise UnsupportedModel(
            f"{type(module).__name__} has no parameters, so that there is nothing to learn or forget"
        )
    for name, part in module.named_modules():
        layer = f"layer {name!r} ({type(part).__name__})"
        if getattr(part, "track_running_stats", False):
            raise UnsupportedModel(
                f"{layer} keeps running statistics, which are not parameters; use GroupNorm or LayerNorm"
            )
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModel(f"{layer} makes a sample's output depend on its batch; use GroupNorm or LayerNorm")
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


def _draws(part: nn.Module) -> bool:
    """Whether this module, without those in it, drops at random: dropout, and what has its probability as a number."""
    if not part.training:
        return False
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
