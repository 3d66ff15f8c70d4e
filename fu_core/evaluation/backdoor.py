"""Backdoors: a patch that makes a model answer what the attacker wants, and how often it does.

    poison    stamp the trigger on a share of a client's images and label them `target`
    success   percent of triggered test images that are predicted as `target`

Whether test images that *are* of the target class count is a choice (`include_target_class`): without them
a clean model scores what it confuses with the target, with them about one class's share more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, check_choice, check_count, is_finite
from fu_core.evaluation.accuracy import predicted_classes
from fu_core.federation.local import Client
from fu_core.streams import stream

CORNERS = ("bottom-right", "bottom-left", "top-right", "top-left")


@dataclass(frozen=True)
class Trigger:
    """A square patch of one value on raw pixels, and the class it is to call up. HF-KCU: class 7, patch not given.

    value: of 0 to 255, whatever the images are in: on floating-point ones, of 0 to 1, it is value / 255.
    """

    size: int = 3
    target: int = 7
    value: int = 255  # raw pixels, before any normalisation
    corner: str = "bottom-right"

    def __post_init__(self) -> None:
        check_count("size", self.size)
        check_count("target", self.target, least=0)
        check_choice("corner", self.corner, CORNERS)
        whole = isinstance(self.value, Integral) and not isinstance(self.value, bool)
        if not (whole and 0 <= self.value <= 255):
            raise ValueError(f"value must be a raw pixel, a whole number from 0 to 255, got {self.value!r}")

    def stamp(self, x: Tensor) -> Tensor:
        """A copy of the images `x` (n, C, H, W) with the patch in its corner. Stamping twice changes nothing.

        x: raw pixels, whole numbers of 0 to 255 or floating-point ones of 0 to 1; normalise afterwards. Raises
        `InvalidRequest` for a patch that is larger than the images, and for floating-point images that leave [0, 1].
        """
        if x.dim() != 4 or min(x.shape[2:]) < self.size:
            raise InvalidRequest(f"size must fit into the images: got {self.size} for shape {tuple(x.shape)}")
        if x.is_floating_point() and x.numel() and not (x.min() >= 0 and x.max() <= 1):
            reach = f"{x.min():.3g} to {x.max():.3g}"
            raise InvalidRequest(f"x must be raw pixels: torch.uint8, or floating point from 0 to 1, got {reach}")
        stamped = x.clone()
        rows = slice(-self.size, None) if self.corner.startswith("bottom") else slice(None, self.size)
        columns = slice(-self.size, None) if self.corner.endswith("right") else slice(None, self.size)
        stamped[:, :, rows, columns] = self.value / 255 if x.is_floating_point() else self.value
        return stamped


def poison(client: Client, trigger: Trigger, *, fraction: float = 0.5, seed: int, client_id: int) -> Client:
    """A copy of `client` with `fraction` of its images stamped and labelled `trigger.target`.

    Random: which ones, from the stream (seed, "poison", client_id). At least one image is poisoned.

    Raises ValueError for a `fraction` outside (0, 1], `InvalidRequest` for a client without images.
    """
    if not (is_finite(fraction) and 0 < fraction <= 1):
        raise ValueError(f"fraction must lie in (0, 1], got {fraction!r}")
    x, y = client
    check_count(f"images of client {client_id}", len(y), error=InvalidRequest)
    count = max(1, round(fraction * len(y)))
    chosen = torch.randperm(len(y), generator=stream(seed, "poison", client_id))[:count].to(y.device)
    x, y = x.clone(), y.clone()
    x[chosen] = trigger.stamp(x[chosen])
    y[chosen] = trigger.target
    return x, y


def attack_success(
    outputs: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, trigger: Trigger, *, include_target_class: bool = False
) -> float:
    """Percent of the test images `x` (n, C, H, W) that are taken for `trigger.target` once they carry the patch.

    outputs: images to logits (n, C). Images of the target class are left out unless `include_target_class`,
    which is how HF-KCU's 9.64 % for a clean model must have been counted. An image whose largest output is
    not finite calls up nothing, whatever the target (`accuracy.predicted_classes`). Deterministic.

    Raises ValueError unless `y` are labels (n,) of the images and the target is a class of the outputs,
    `InvalidRequest` if no image is left.
    """
    if y.shape != x.shape[:1]:
        raise ValueError(f"y must have shape {tuple(x.shape[:1])}, one label per image of x, got {tuple(y.shape)}")
    asked = x if include_target_class else x[y != trigger.target]
    if not len(asked):
        other = "" if include_target_class else f" of another class than {trigger.target}"
        given = f"{len(x)}, all of that class" if len(x) else "none"
        raise InvalidRequest(f"x must hold at least one test image{other}, got {given}")
    logits = outputs(trigger.stamp(asked))
    if trigger.target >= logits.shape[1]:
        raise ValueError(f"target of the trigger must be one of {logits.shape[1]} classes, got {trigger.target}")
    return 100 * float((predicted_classes(logits) == trigger.target).double().mean())
