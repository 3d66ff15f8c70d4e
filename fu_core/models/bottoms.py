"""Nets for vertical learning: bottoms that turn one party's features into embeddings, and the top on all of them.

The paper names the families only (MLP, ResNet-18, DenseNet, ResNet-50); widths are ours. GroupNorm stands in for
BatchNorm throughout: a party's parameters are all there is to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchvision.models.densenet import DenseNet
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from fu_core.errors import UnsupportedModel, check_choice
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.resnet import initialise_body, two_groups


def mlp_bottom(shape: tuple[int, ...]) -> nn.Module:
    """64-32, for tables and very small images; embeddings of 32."""
    features = int(torch.Size(shape).numel())
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def cnn_bottom(shape: tuple[int, ...]) -> nn.Module:
    """Two convolutions with GroupNorm, for two CPU cores; embeddings of 64."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), two_groups(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), two_groups(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (height // 4) * (width // 4), 64), nn.ReLU(),
    )  # fmt: skip


class _Headless(nn.Module):
    """A net of torchvision's without its classifier. He-normal convolutions, unit norms."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to embeddings (n, e)."""
        return self.net(x)

    def reset_parameters(self) -> None:
        """Convolutions by He et al., norms at one and zero."""
        initialise_body(self)


def resnet18_bottom(shape: tuple[int, ...]) -> nn.Module:
    """ResNet-18 with a 3x3 stem; embeddings of 512."""
    return _residual(BasicBlock, [2, 2, 2, 2], shape[0])


def resnet50_bottom(shape: tuple[int, ...]) -> nn.Module:
    """ResNet-50 with a 3x3 stem; embeddings of 2048."""
    return _residual(Bottleneck, [3, 4, 6, 3], shape[0])


def _residual(block: type[BasicBlock | Bottleneck], layers: list[int], channels: int) -> nn.Module:
    net = ResNet(block, layers, norm_layer=two_groups)
    net.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
    net.maxpool, net.fc = nn.Identity(), nn.Identity()
    return _Headless(net)


def densenet_bottom(shape: tuple[int, ...]) -> nn.Module:
    """torchvision's DenseNet-121 with GroupNorm and a 3x3 stem; embeddings of 1024."""
    net = DenseNet(32, (6, 12, 24, 16), 64)
    net.features.conv0 = nn.Conv2d(shape[0], 64, 3, stride=1, padding=1, bias=False)
    net.features.pool0 = nn.Identity()
    net.classifier = nn.Identity()
    for name, part in list(net.named_modules()):
        if isinstance(part, nn.BatchNorm2d):
            owner, _, last = name.rpartition(".")
            setattr(net.get_submodule(owner), last, two_groups(part.num_features))
    return _Headless(net)


BOTTOMS: dict[str, Callable[[tuple[int, ...]], nn.Module]] = {
    "mlp": mlp_bottom,
    "cnn": cnn_bottom,
    "resnet18": resnet18_bottom,
    "densenet121": densenet_bottom,
    "resnet50": resnet50_bottom,
}


def build_bottom(name: str, example: Tensor, mean: Tensor, std: Tensor) -> FlatModel:
    """The bottom net `name` for a party whose raw features look like `example` (1, ...), normalisation built in.

    mean, std: of the channels (images, in units of 0 to 1: public constants or of whole images) or of the party's own
    columns (tables).
    """
    check_choice("bottom", name, BOTTOMS)
    images = example.dim() == 4
    if not images and name != "mlp":
        raise UnsupportedModel(f"bottom {name!r} needs images; for tables use 'mlp'")
    net = BOTTOMS[name](tuple(example.shape[1:]))
    return FlatModel(nn.Sequential(Standardize(mean, std, 255.0 if images else 1.0), net))


def build_top(width: int, classes: int) -> FlatModel:
    """The active party's net: one linear layer on the joined embeddings (n, width)."""
    return FlatModel(nn.Linear(width, classes))
