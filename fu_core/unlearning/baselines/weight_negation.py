"""NoT: negate the first layer's weights, then recover (Khalil et al., CVPR 2025).

    w_l <- -w_l    for l in `layers`, the weight tensor only; biases and norms stay

The same model results whoever leaves: the method does not look at the target's data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import UnsupportedModel, nearest
from fu_core.models.calls import calls
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs


@dataclass(frozen=True)
class NoT:
    """layers: module names; none: the first layer with parameters that a forward pass reaches."""

    layers: Sequence[str] = ()

    def __post_init__(self) -> None:
        several = isinstance(self.layers, Sequence) and not isinstance(self.layers, str)
        if not several or not all(isinstance(layer, str) for layer in self.layers):
            raise ValueError(f"layers must be a sequence of module names, ('fc1',) say, got {self.layers!r}")


def first_layer(model: FlatModel, w: Tensor, example: Tensor) -> str:
    """Name of the module with parameters that a forward pass of `example` (1, ...) through the model `w` (d,) reaches
    first. Raises `UnsupportedModel` if it reaches none."""
    with torch.no_grad():
        _, made = calls(model, w, example)
    return made[0].name


def negate_weights(model: FlatModel, w: Tensor, layers: Sequence[str]) -> Tensor:
    """`w` (d,) with the weights of `layers` negated. Deterministic; applying it twice gives `w` back.

    Raises `UnsupportedModel` for a layer without a weight, naming what there is.
    """
    negated = w.clone()
    views = model.views(negated)
    for layer in layers:
        name = f"{layer}.weight" if layer else "weight"
        if name not in views:
            raise UnsupportedModel(f"layer {layer!r} has no weight to negate{nearest(name, views)}")
        views[name].neg_()  # w_l <- -w_l
    return negated


@register("NoT", paper="Khalil et al., CVPR 2025", colour="#d98cc0", parameters=NoT, needs=Needs(blind=True))
def serve(trained: Trained, deletion: Deletion, config: NoT) -> Tensor:
    """The model (d,) with a layer negated; a sample of zeros, of the shape that clients hold, finds the first one."""
    f, w = trained.horizontal, trained.model
    x, _ = next(iter(deletion.kept.values()))
    sample = torch.zeros((1, *x.shape[1:]), dtype=w.dtype if x.is_floating_point() else x.dtype, device=w.device)
    layers = config.layers or [first_layer(f.model, w, sample)]
    f.meter.keep("global model", w)
    return negate_weights(f.model, w, layers)
