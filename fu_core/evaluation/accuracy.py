"""Utility and forgetting: accuracy for classification, Dice for segmentation (PUF, Sec. V-C)."""

from __future__ import annotations

import torch
from torch import Tensor

from fu_core.models.flat import FlatModel


def accuracy(model: FlatModel, w: Tensor, x: Tensor, y: Tensor) -> float:
    """Percent of `x` (n, ...) classified as `y` (n,); for segmentation the mean hard Dice, in percent.

    On test data this is test accuracy, on the forgotten training data forget accuracy.
    """
    return outputs_accuracy(model.task, model.predict(w, x), y)


def outputs_accuracy(task: str, outputs: Tensor, y: Tensor) -> float:
    """`accuracy` from outputs (n, C, ...) already computed, for when several metrics share them."""
    predicted = outputs.argmax(dim=1)
    if task == "segmentation":
        return 100 * float(hard_dice(predicted, y).mean())
    return 100 * float((predicted == y).double().mean())


def hard_dice(predicted: Tensor, masks: Tensor) -> Tensor:
    """`2|P and G| / (|P| + |G|)` per image (n,) of binary masks (n, H, W); 1 where both are empty."""
    p, g = predicted.bool().flatten(1), masks.bool().flatten(1)
    total = p.sum(dim=1) + g.sum(dim=1)
    overlap = 2.0 * (p & g).sum(dim=1)
    return torch.where(total > 0, overlap / total.clamp(min=1), 1.0)
