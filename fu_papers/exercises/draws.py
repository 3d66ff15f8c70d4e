"""Numbers to try answers on: the same in every call, and others for every exercise."""

from __future__ import annotations

import torch
from torch import Tensor

from fu_core.streams import stream


class Draws:
    """Tensors (float64) from the stream of one exercise."""

    def __init__(self, id: str) -> None:
        self._dice = stream(0, "exercise", id)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers of that shape."""
        return torch.randn(*shape, generator=self._dice, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers between 0 and 1."""
        return torch.rand(*shape, generator=self._dice, dtype=torch.float64)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` to `high` - 1, as int64."""
        return torch.randint(low, high, shape, generator=self._dice)

    def bowl(self, d: int) -> Tensor:
        """A symmetric matrix (d, d) with eigenvalues of at least one half: the curvature of a bowl."""
        A = self.normal(d, d)
        return A @ A.T / d + 0.5 * torch.eye(d, dtype=torch.float64)


def numbers(*values: float) -> Tensor:
    """A vector of float64."""
    return torch.tensor(values, dtype=torch.float64)
