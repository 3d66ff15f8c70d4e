"""SimpleCNN, the small convolutional net of HF-KCU, two for two CPU cores, and LeNet-5.

ReLU comes after pooling: the same function to the bit, on a fourth of the values.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from fu_core.errors import UnsupportedModel, check_count
from fu_core.models.group_norm import two_groups


def simple_cnn(
    channels: int, side: int, classes: int, widths: tuple[int, int, int] = (32, 64, 64), hidden: int = 128
) -> nn.Module:
    """Three 3x3 convolutions, each with 2x2 pooling and ReLU, then one hidden layer.

    The default widths have 188,810 parameters on 32x32x3 with ten classes. `side`: height and width of
    the (square) input, at least 8; `UnsupportedModel` below, where pooling would leave nothing.
    """
    check_count("side of simple_cnn's images", side, least=8, error=UnsupportedModel)
    blocks: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *widths)):
        blocks += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    features = widths[-1] * (side // 8) ** 2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def tiny_cnn(channels: int, side: int, classes: int) -> nn.Module:
    """`simple_cnn` at half width: a fourth of the arithmetic, for many trainings on two CPU cores."""
    return simple_cnn(channels, side, classes, widths=(16, 32, 32), hidden=64)


def strided_cnn(
    channels: int, side: int, classes: int, widths: tuple[int, ...] = (32, 64, 128), hidden: int = 128
) -> nn.Module:
    """One 5x5 convolution, then 3x3 ones, each of stride 2 with GroupNorm(2) and ReLU, then one hidden layer.

    Strides in place of pooling leave a fourth of the arithmetic of convolutions as wide, and the norm learns in
    fewer rounds: what CPU cores can train on tens of thousands of images. The default widths have 358,570
    parameters on 32x32x3 with ten classes. `side`: height and width of the (square) input, any: halves are rounded up.
    """
    check_count("side of strided_cnn's images", side, error=UnsupportedModel)
    blocks: list[nn.Module] = []
    for fan_in, fan_out in pairwise((channels, *widths)):
        kernel = 3 if blocks else 5
        convolution = nn.Conv2d(fan_in, fan_out, kernel, stride=2, padding=kernel // 2, bias=False)
        blocks += [convolution, two_groups(fan_out), nn.ReLU()]
        side = (side + 1) // 2
    features = widths[-1] * side**2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def lenet(channels: int, side: int, classes: int) -> nn.Module:
    """LeNet-5 with ReLU and max-pooling: 61,706 parameters on 28x28x1.

    `side` of at least 12; `UnsupportedModel` below, where convolutions would leave nothing.
    """
    check_count("side of lenet's images", side, least=12, error=UnsupportedModel)
    after = ((side // 2) - 4) // 2  # 5x5 convolutions, the first padded
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * after**2, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip
