"""Which layers a forward pass calls, in which order, and what goes into and comes out of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fu_core.errors import UnsupportedModel
from fu_core.models.flat import FlatModel


@dataclass
class Call:
    """One call of a layer: its name in the net (empty for the net itself), its first input, and its output."""

    name: str
    layer: nn.Module
    given: Any
    returned: Any = None


def calls(model: FlatModel, w: Tensor, x: Tensor, *kinds: type[nn.Module]) -> tuple[Tensor, list[Call]]:
    """The outputs (n, C, ...) of the model `w` (d,) on `x` (n, ...), and its calls of layers with parameters of their
    own, of one of `kinds` if there are any, in the order in which they begin.

    Gradients flow where the caller lets them. Raises `UnsupportedModel` if there is no such call.
    """
    found: list[Call] = []

    def begin(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda layer, given: found.append(Call(name, layer, given[0] if given else None))

    def end(layer: nn.Module, given: Any, returned: Any) -> None:
        latest = next(call for call in reversed(found) if call.layer is layer and call.returned is None)
        latest.returned = returned

    hooks = []
    for name, layer in model.module.named_modules():
        if isinstance(layer, kinds or nn.Module) and any(True for _ in layer.parameters(recurse=False)):
            hooks += [layer.register_forward_pre_hook(begin(name)), layer.register_forward_hook(end)]
    try:
        outputs = model.logits(w, x)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        wanted = f"an {' or '.join(f'nn.{kind.__name__}' for kind in kinds)}" if kinds else "a layer with parameters"
        raise UnsupportedModel(f"{type(model.module).__name__} must have {wanted} that a forward pass reaches")
    return outputs, found


def seen_by(model: FlatModel, w: Tensor, layer: str, x: Tensor) -> Tensor:
    """What reaches the layer of that name (n, p) in the model `w` (d,) for raw inputs `x` (n, ...). No gradients.

    Raises `UnsupportedModel` unless a forward pass calls it once.
    """
    seen: list[Tensor] = []
    with model.module.get_submodule(layer).register_forward_pre_hook(lambda _, given: seen.append(given[0])):
        model.predict(w, x)
    if sum(map(len, seen)) != len(x):
        raise UnsupportedModel(f"layer {layer!r} must be called once in a forward pass")
    return torch.cat(seen)
