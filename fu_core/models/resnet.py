"""Residual nets with GroupNorm(2) and a 3x3 stem, as PUF uses them on 32x32 images.

The stem (64 channels, stride 1, no max-pool) is what makes the 11,220,132 parameters behind PUF's
byte columns; torchvision's 7x7 stem has 11,227,812 (errata P4).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from fu_core.models.group_norm import he_normal_, two_groups


class ResNet18(ResNet):
    """torchvision's ResNet-18 with GroupNorm(2), a 3x3 stride-1 stem and no max-pool."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=classes, norm_layer=two_groups)
        self.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        self.maxpool = nn.Identity()

    def reset_parameters(self) -> None:
        """He-normal convolutions, unit norms, head N(0, 0.01^2)."""
        initialise_residual(self, self.fc)


class SmallResNet(nn.Module):
    """Three residual blocks of 16, 32 and 64 channels: a GroupNorm ResNet that two CPU cores can train."""

    def __init__(self, channels: int, classes: int, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        first = widths[0]
        self.stem = nn.Sequential(nn.Conv2d(channels, first, 3, padding=1, bias=False), two_groups(first), nn.ReLU())
        self.blocks = nn.Sequential(*(_block(a, b) for a, b in zip((first, *widths), widths, strict=False)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))

    def reset_parameters(self) -> None:
        """As ResNet18."""
        initialise_residual(self, self.head)


def _block(fan_in: int, fan_out: int) -> BasicBlock:
    """A basic block; where the width grows it halves the resolution and projects its shortcut."""
    if fan_in == fan_out:
        return BasicBlock(fan_in, fan_out, norm_layer=two_groups)
    # every second pixel first, then the projection: a strided 1x1 convolution is the same, but its gradient writes out
    # of bounds where fewer than 16 channels lie in `FlatModel.arrange`'s order (github.com/uxlfoundation/oneDNN, 6035)
    halve, project = nn.AvgPool2d(1, stride=2), nn.Conv2d(fan_in, fan_out, 1, bias=False)
    shortcut = nn.Sequential(halve, project, two_groups(fan_out))
    return BasicBlock(fan_in, fan_out, stride=2, downsample=shortcut, norm_layer=two_groups)


def initialise_body(module: nn.Module) -> None:
    """He-normal convolutions, GroupNorm at one and zero."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            he_normal_(part.weight)
        elif isinstance(part, nn.GroupNorm):
            part.reset_parameters()


def initialise_residual(module: nn.Module, head: nn.Linear | nn.Conv2d) -> None:
    """PUF's initialisation: the body, and a nearly silent head."""
    initialise_body(module)
    nn.init.normal_(head.weight, std=0.01)
    nn.init.zeros_(cast(Tensor, head.bias))
