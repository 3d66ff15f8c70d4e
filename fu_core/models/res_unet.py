"""Residual U-Nets with GroupNorm(2), PUF's net for the prostate.

PUF says "a vanilla Res-UNet architecture [39]" of "approximately 7.6M parameters" and has no code for it. Ours is a
U-Net of He et al.'s basic blocks: the way down halves the image and doubles the width four times, the way up halves
the width by a 1x1 convolution, doubles the image, joins what the way down saw at that size, and merges both in a block.
With 32 to 512 channels that makes 7,600,098 parameters on grey images. The bytes of PUF's Table VI are another matter:
2.74e11 = 2 P B C_r R with B = 4, C_r = 5 and R = 500 needs P = 13.7 M (errata P4).
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from fu_core.errors import UnsupportedModel
from fu_core.models.group_norm import two_groups
from fu_core.models.resnet import initialise_residual


class ResUNet(nn.Module):
    """`side`: height and width of the square input, a multiple of 2^(len(widths) - 1); `widths`: all even."""

    def __init__(
        self, channels: int, side: int, classes: int, widths: tuple[int, ...] = (32, 64, 128, 256, 512)
    ) -> None:
        super().__init__()
        halvings = len(widths) - 1
        if side % 2**halvings:
            raise UnsupportedModel(
                f"a U-Net of {len(widths)} widths halves the image {halvings} times: "
                f"side must be a multiple of {2**halvings}, got {side}"
            )
        first = widths[0]
        self.stem = nn.Sequential(nn.Conv2d(channels, first, 3, padding=1, bias=False), two_groups(first), nn.ReLU())
        self.top = _block(first, first)
        self.down = nn.ModuleList(_halve(wide, deep) for wide, deep in pairwise(widths))
        upwards = list(pairwise(reversed(widths)))
        self.up = nn.ModuleList(_enlarge(deep, wide) for deep, wide in upwards)
        self.merge = nn.ModuleList(_block(2 * wide, wide) for _, wide in upwards)
        self.head = nn.Conv2d(first, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits per pixel (n, classes, H, W)."""
        seen = [self.top(self.stem(x))]
        for down in self.down:
            seen.append(down(seen[-1]))  # (n, widths[i], H / 2^i, W / 2^i)
        h = seen.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            h = merge(torch.cat((up(h), seen.pop()), dim=1))
        return self.head(h)

    def reset_parameters(self) -> None:
        """As PUF's other nets: He-normal convolutions, unit norms, a nearly silent head."""
        initialise_residual(self, self.head)


def _block(fan_in: int, fan_out: int) -> BasicBlock:
    """Two 3x3 convolutions and a shortcut, projected where the width changes."""
    if fan_in == fan_out:
        return BasicBlock(fan_in, fan_out, norm_layer=two_groups)
    shortcut = nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, bias=False), two_groups(fan_out))
    return BasicBlock(fan_in, fan_out, downsample=shortcut, norm_layer=two_groups)


def _halve(fan_in: int, fan_out: int) -> nn.Sequential:
    # pooled rather than strided: the gradient of a strided 1x1 shortcut writes out of bounds where fewer than 16
    # channels lie in `FlatModel.arrange`'s order (github.com/uxlfoundation/oneDNN, issue 6035)
    return nn.Sequential(nn.MaxPool2d(2), _block(fan_in, fan_out))


def _enlarge(fan_in: int, fan_out: int) -> nn.Sequential:
    # nearest: the bilinear backward pass adds in no fixed order on GPUs
    return nn.Sequential(nn.Conv2d(fan_in, fan_out, 1, bias=False), nn.Upsample(scale_factor=2))


def small_res_unet(channels: int, side: int, classes: int) -> nn.Module:
    """Four sizes of 8 to 32 channels, 58,778 parameters on grey images: for two CPU cores. `side`: a multiple of 8."""
    return ResUNet(channels, side, classes, widths=(8, 16, 24, 32))
