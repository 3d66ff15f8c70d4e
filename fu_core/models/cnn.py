"""SimpleCNN, the small convolutional net of HF-KCU, and a narrower one for two CPU cores."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def simple_cnn(
    channels: int, side: int, classes: int, widths: tuple[int, int, int] = (32, 64, 64), hidden: int = 128
) -> nn.Module:
    """Three 3x3 convolutions, each with ReLU and 2x2 pooling, then one hidden layer.

    The default widths have 188,810 parameters on 32x32x3 with ten classes. `side`: height and width of
    the (square) input, at least 8.
    """
    blocks: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *widths)):
        blocks += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    features = widths[-1] * (side // 8) ** 2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def tiny_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """`simple_cnn` at half width: a fourth of the arithmetic, for many trainings on two CPU cores."""
    return simple_cnn(channels, side, classes, widths=(16, 32, 32), hidden=64)
