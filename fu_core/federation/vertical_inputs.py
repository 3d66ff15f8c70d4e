"""What vertical training and prediction are given, checked once at the door."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, check_count


def sample_rows(rows: Tensor | Sequence[int], n: int) -> Tensor:
    """`rows` as row numbers (m,), int64, of n samples; a mask (n,) stands for those that it marks.

    As they are where they are int64 already. Raises InvalidRequest for none, and for what is neither.
    """
    allowed = f"rows must be row numbers 0 to {n - 1}, 1-D and of integers, or a mask ({n},)"
    try:
        given = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"{allowed}, got {rows!r:.60}") from error
    if given.dtype == torch.bool:
        if given.shape != (n,):
            raise InvalidRequest(f"{allowed}, got a mask {tuple(given.shape)}")
        given = given.nonzero().flatten()
    if not given.numel():
        raise InvalidRequest("rows names no samples: there is nothing to train on")
    # uint8 may be meant as a mask, as torch takes it when it indexes
    if given.dim() != 1 or given.dtype.is_floating_point or given.dtype.is_complex or given.dtype == torch.uint8:
        raise InvalidRequest(f"{allowed}, got {given.dtype} {tuple(given.shape)}")
    low, high = int(given.min()), int(given.max())
    if low < 0 or high >= n:
        raise InvalidRequest(f"{allowed}, got {low if low < 0 else high}")
    return given.long()


def whole_epochs(epochs: float) -> int:
    """How many epochs as an int, 0 for none; `ClientOpt.epochs` is a float, and 3.0 will do. Else raises ValueError."""
    whole = isinstance(epochs, Real) and not isinstance(epochs, bool) and float(epochs).is_integer()
    given: Any = int(epochs) if whole else epochs
    check_count("epochs", given, least=0)
    return given


def check_same_samples(x: Sequence[Any]) -> None:
    """Raise InvalidRequest unless every party's features (n, ...) are of as many samples."""
    if len({len(x_k) for x_k in x}) > 1:
        raise InvalidRequest(f"x must hold the same samples for every passive party, got {[len(x_k) for x_k in x]}")
