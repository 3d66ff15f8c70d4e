"""NoT: negate the first layer's weights, then recover (Khalil et al., CVPR 2025).

    w_l <- -w_l    for l in `layers`, the weight tensor only; biases and norms stay

The same model results whoever leaves: the method does not look at the target's data.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fu_core.errors import UnsupportedModel, nearest
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.unlearning.needs import Needs

NEEDS = Needs(blind=True)


def negate_weights(
    model: FlatModel,
    w: Tensor,
    *,
    example: Tensor | None = None,
    layers: Sequence[str] | None = None,
    meter: Meter | None = None,
) -> Tensor:
    """`w` (d,) with the weights of `layers` negated. Deterministic; applying it twice gives `w` back.

    `layers`: module names; by default the first layer with parameters that a forward pass of `example`
    (1, ...) reaches. Raises `UnsupportedModel` for a layer without a weight, naming what there is.
    """
    if layers is None:
        if example is None:
            raise ValueError("example or layers must be given: the first layer is found by a forward pass")
        layers = [model.first_layer(example)]
    negated = w.clone()
    views = model.views(negated)
    for layer in layers:
        name = f"{layer}.weight" if layer else "weight"
        if name not in views:
            raise UnsupportedModel(f"layer {layer!r} has no weight to negate{nearest(name, views)}")
        views[name].neg_()  # w_l <- -w_l
    if meter is not None:
        meter.keep("global model", w)
    return negated
