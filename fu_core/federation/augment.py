"""Augmentation of whole batches of raw uint8 images, on whatever device they lie.

Applied before the model's own standardisation; empty space is filled with the batch's mean pixel,
which is what zero padding after normalisation amounts to.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, check_choice

AUGMENTATIONS = ("none", "flip_crop", "rotate_flip_crop")
LARGEST_TURN = 0.06 * 2 * math.pi  # 21.6 degrees, as in PUF's released code


def augment(x: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Random variants of the images `x` (n, C, H, W), same shape and dtype.

    flip_crop: shift by up to 2 pixels and mirror half of them; rotate_flip_crop: turn by up to 21.6
    degrees first (PUF's training augmentation). Draws 4 numbers per image from `generator`.

    Raises ValueError for an unknown `kind`, `InvalidRequest` for what is no images, unless it is "none".
    """
    check_choice("kind", kind, AUGMENTATIONS)
    if kind == "none":
        return x
    if x.dim() != 4:
        raise InvalidRequest(
            f"augmentation={kind!r} is for images (C, H, W), got samples of shape {tuple(x.shape[1:])}"
        )
    n, _, height, width = x.shape
    if n == 0:
        return x
    pixels = x if x.dtype == torch.float64 else x.float()
    draws = torch.rand((4, n), generator=generator, device=generator.device).to(x.device)
    turn = (2 * draws[0] - 1) * (LARGEST_TURN if kind == "rotate_flip_crop" else 0.0)
    mirror = torch.where(draws[1] < 0.5, -1.0, 1.0)
    # whole-pixel shifts in {-2, ..., 2}, in the units of affine_grid, where the image spans [-1, 1]
    shift_x = ((draws[2] * 5).floor() - 2) * 2 / width
    shift_y = ((draws[3] * 5).floor() - 2) * 2 / height
    cos, sin = turn.cos(), turn.sin()
    # a turn in pixels: affine_grid's unit is half of the width in one direction, and of the height in the other
    across, down = -sin * (height / width), mirror * sin * (width / height)
    theta = torch.stack(
        [torch.stack([mirror * cos, across, shift_x], dim=1), torch.stack([down, cos, shift_y], dim=1)], dim=1
    )  # (n, 2, 3)
    grid = F.affine_grid(theta, [n, 1, height, width], align_corners=False).to(pixels)
    fill = pixels.mean(dim=(0, 2, 3), keepdim=True)
    moved = F.grid_sample(pixels - fill, grid, mode="nearest", padding_mode="zeros", align_corners=False) + fill
    return moved.to(x.dtype) if x.is_floating_point() else moved.round_().to(x.dtype)
