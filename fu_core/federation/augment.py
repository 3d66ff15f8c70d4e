"""Augmentation of whole batches of raw uint8 images, on whatever device they lie.

Applied before the model's own standardisation; empty space is filled with the batch's mean pixel,
which is what zero padding after normalisation amounts to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    _check_images(kind, x.shape[1:])
    if len(x) == 0:
        return x
    pixels = _pixels(x)
    return _as_given(_moved(pixels, kind, _draws(len(x), generator), pixels.mean(dim=(0, 2, 3), keepdim=True)), x)


def augment_many(x: Tensor, lengths: Sequence[int], kind: str, generators: Sequence[torch.Generator]) -> Tensor:
    """`augment` of K batches at once, x (K, B, C, H, W), each with the draws of its own generator.

    lengths: of how many images each batch is; what comes after them is padding, which is moved like an image but
    draws nothing. One call's few images would leave an accelerator waiting for the next call.
    """
    check_choice("kind", kind, AUGMENTATIONS)
    if kind == "none":
        return x
    _check_images(kind, x.shape[2:])
    longest, pixels = x.shape[1], _pixels(x)
    draws = torch.full((4, len(lengths), longest), 0.5)
    for k, (n, generator) in enumerate(zip(lengths, generators, strict=True)):
        draws[:, k, :n] = _draws(n, generator)
    sums = pixels.sum(dim=(3, 4))  # (K, B, C), to the bit what one batch has, of bytes and up to 65,000 pixels
    if min(lengths) < longest:
        held = torch.arange(longest) < torch.tensor(lengths)[:, None]
        sums = sums * held[..., None].to(sums)
    counts = torch.tensor(lengths, dtype=sums.dtype)[:, None] * (x.shape[3] * x.shape[4])
    fill = (sums.sum(dim=1) / counts.to(sums.device)).repeat_interleave(longest, dim=0)[:, :, None, None]
    moved = _moved(pixels.flatten(0, 1), kind, draws.flatten(1), fill)
    return _as_given(moved.view_as(pixels), x)


def _check_images(kind: str, shape: Sequence[int]) -> None:
    if len(shape) != 3:
        raise InvalidRequest(f"augmentation={kind!r} is for images (C, H, W), got samples of shape {tuple(shape)}")


def _pixels(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _as_given(moved: Tensor, x: Tensor) -> Tensor:
    return moved.to(x.dtype) if x.is_floating_point() else moved.round_().to(x.dtype)


def _draws(n: int, generator: torch.Generator) -> Tensor:
    return torch.rand((4, n), generator=generator, device=generator.device)


def _moved(pixels: Tensor, kind: str, draws: Tensor, fill: Tensor) -> Tensor:
    """Images (n, C, H, W) turned, mirrored and shifted by `draws` (4, n), with `fill` where nothing is left of them."""
    draws, (n, _, height, width) = draws.to(pixels.device), pixels.shape
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
    return F.grid_sample(pixels - fill, grid, mode="nearest", padding_mode="zeros", align_corners=False) + fill
