"""What a fair comparison tunes: the values that a hyper-parameter may take, declared beside each method as `ranges`.

    RANGES = {"lr": Range(1e-3, 1e-1, "log"), "batch_size": Choice((16, 32, 64))}

A range belongs to its method and says in a comment where it comes from; `tuning.trials` draws from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fu_core.errors import check_choice, check_positive

SCALES = ("log", "linear", "whole")
DIGITS = 4  # significant ones: as many as anybody would print, and the same on every machine


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, both included.

    scale: "linear"; "log", where factors count, for numbers above zero; "whole" numbers. Raises ValueError unless both
    ends are finite numbers of that kind, in order.
    """

    low: float
    high: float
    scale: str = "linear"

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, SCALES)
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"low and high must be finite numbers, low < high, got {self.low!r} and {self.high!r}")
        if self.scale == "log":
            check_positive("low", self.low)
        if self.scale == "whole" and not (isinstance(self.low, int) and isinstance(self.high, int)):
            raise ValueError(f"low and high must be whole numbers, got {self.low!r} and {self.high!r}")

    def at(self, u: float) -> float:
        """The value at the share 0 <= u < 1 of the way from `low` to `high`."""
        if self.scale == "whole":
            return math.floor(self.low + u * (self.high - self.low + 1))
        span = self.high - self.low
        value = self.low * (self.high / self.low) ** u if self.scale == "log" else self.low + u * span
        return min(max(float(f"{value:.{DIGITS}g}"), float(self.low)), float(self.high))  # rounding may not leave it

    @property
    def values(self) -> tuple[int, ...] | None:
        """All of them, where they can be counted."""
        return tuple(range(int(self.low), int(self.high) + 1)) if self.scale == "whole" else None


@dataclass(frozen=True)
class Choice:
    """One of `values`, each as likely as any other. Raises ValueError unless there are two different ones."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(set(self.values)) != len(self.values) or len(self.values) < 2:
            raise ValueError(f"values must be two or more different ones, got {self.values!r}")

    def at(self, u: float) -> Any:
        """The value at the share 0 <= u < 1 of the list."""
        return self.values[math.floor(u * len(self.values))]
