"""Nets for vertical learning: bottoms that turn one party's features into embeddings, and the top on all of them.

The paper names the families only (MLP, ResNet-18, DenseNet, ResNet-50); widths are ours. GroupNorm stands in for
BatchNorm throughout: a party's parameters are all there is to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fu_core.errors import UnsupportedModel, check_choice
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.group_norm import two_groups
from fu_core.models.residual import residual


def mlp_bottom(shape: tuple[int, ...]) -> nn.Module:
    """64-32, for tables and very small images; embeddings of 32."""
    features = int(torch.Size(shape).numel())
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def cnn_bottom(shape: tuple[int, ...]) -> nn.Module:
    """Two convolutions with GroupNorm, for two CPU cores; embeddings of 64. Of stripes under 4 wide, none is pooled."""
    channels, height, width = shape
    across, columns = (2, width // 4) if width >= 4 else (1, width)
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), two_groups(16), nn.ReLU(), nn.MaxPool2d((2, across)),
        nn.Conv2d(16, 32, 3, padding=1), two_groups(32), nn.ReLU(), nn.MaxPool2d((2, across)),
        nn.Flatten(), nn.Linear(32 * (height // 4) * columns, 64), nn.ReLU(),
    )  # fmt: skip


def pooled_cnn_bottom(shape: tuple[int, ...]) -> nn.Module:
    """`cnn_bottom` on images at half their resolution, a quarter of the work: for pictures of 64 pixels a side."""
    channels, height, width = shape
    return nn.Sequential(nn.AvgPool2d(2), *cnn_bottom((channels, height // 2, width // 2)).children())


BOTTOMS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "mlp": mlp_bottom,
    "cnn": cnn_bottom,
    "pooled_cnn": pooled_cnn_bottom,
    "resnet18": lambda shape: residual("residual_bottoms", "resnet18_bottom")(shape[0]),
    "densenet121": lambda shape: residual("residual_bottoms", "densenet_bottom")(shape[0]),
    "resnet50": lambda shape: residual("residual_bottoms", "resnet50_bottom")(shape[0]),
}

# (height, width) of the images that are just large enough to be pooled as often as the net does; others take any
SMALLEST = {"cnn": (4, 1), "pooled_cnn": (8, 2), "densenet121": (8, 8)}


def build_bottom(name: str, example: Tensor, mean: Tensor, std: Tensor) -> FlatModel:
    """The bottom net `name` for a party whose raw features look like `example` (1, ...), normalisation built in.

    mean, std: of the channels (images, in units of 0 to 1: public constants or of whole images) or of the party's own
    columns (tables). Raises UnsupportedModel for what the net cannot take.
    """
    check_choice("bottom", name, BOTTOMS)
    images = example.dim() == 4
    if not images and name != "mlp":
        raise UnsupportedModel(f"bottom {name!r} needs images; for tables use 'mlp'")
    height, width = SMALLEST.get(name, (1, 1))
    if images and (example.shape[2] < height or example.shape[3] < width):
        given = f"{example.shape[2]} x {example.shape[3]}"
        raise UnsupportedModel(
            f"bottom {name!r} needs at least {height} x {width} pixels of an image at each party, got {given}: take "
            "fewer parties or another bottom"
        )
    net = BOTTOMS[name](tuple(example.shape[1:]))
    return FlatModel(nn.Sequential(Standardize(mean, std, 255.0 if images else 1.0), net))


def build_top(width: int, classes: int) -> FlatModel:
    """The active party's net: one linear layer on the joined embeddings (n, width)."""
    return FlatModel(nn.Linear(width, classes))
