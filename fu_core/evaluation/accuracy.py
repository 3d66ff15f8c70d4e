"""Utility and forgetting: accuracy for classification (PUF, Sec. V-C), Dice for segmentation (Table VI)."""

from __future__ import annotations

import torch
from torch import Tensor

from fu_core.errors import UnsupportedTask, check_count, check_same_shape
from fu_core.models.flat import FlatModel

NO_CLASS = -1  # what a model predicts that has left the numbers


def accuracy(model: FlatModel, w: Tensor, x: Tensor, y: Tensor) -> float:
    """Percent of `x` (n, ...) classified as `y` (n,); for segmentation the mean hard Dice, in percent.

    On test data this is test accuracy, on the forgotten training data forget accuracy. A sample whose largest output is
    not finite is wrong, whatever its class, and an image with such a pixel has Dice 0 (`predicted_classes`): a model
    that has diverged must not look as if it knew one class.

    Raises `UnsupportedTask` for a regression, ValueError if there are no samples or labels of another shape.
    """
    return outputs_accuracy(model.task, model.predict(w, x), y)


def outputs_accuracy(task: str, outputs: Tensor, y: Tensor) -> float:
    """`accuracy` from outputs (n, C, ...) already computed, for when several metrics share them."""
    if task == "regression":
        raise UnsupportedTask("a regression has no accuracy: measure it by its loss")
    check_count("samples of y", len(y))
    predicted = predicted_classes(outputs)
    check_same_shape("predictions from outputs", predicted, "y", y)
    if task == "segmentation":
        lost = (predicted == NO_CLASS).flatten(1).any(dim=1)
        return 100 * float(hard_dice(predicted, y).masked_fill(lost, 0.0).mean())
    return 100 * float((predicted == y).double().mean())


def predicted_classes(outputs: Tensor) -> Tensor:
    """The class (n, ...) of the largest of outputs (n, C, ...), `NO_CLASS` where that is not finite. Deterministic.

    Of several that are largest the first. It is not finite where one output is NaN or infinity, or all are minus
    infinity; minus infinity beside a finite output is what an ensemble says of a class without any probability.
    """
    largest, classes = outputs.detach().max(dim=1)  # NaN counts as larger than everything
    return classes.masked_fill(~largest.isfinite(), NO_CLASS)


def hard_dice(predicted: Tensor, masks: Tensor) -> Tensor:
    """`2|P and G| / (|P| + |G|)` per image (n,) of binary masks (n, H, W); 1 where both are empty.

    Raises ValueError for masks of two shapes.
    """
    check_same_shape("predicted", predicted, "masks", masks)
    p, g = predicted.bool().flatten(1), masks.bool().flatten(1)
    total = p.sum(dim=1) + g.sum(dim=1)
    overlap = 2.0 * (p & g).sum(dim=1)
    return torch.where(total > 0, overlap / total.clamp(min=1), 1.0)
