"""Seconds of things that are done in one process, one after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

REPEATS = 5  # measurements of one thing,
LONG_ENOUGH = 20.0  # seconds: unless it has been measured for so long already


class Stopwatch:
    """Laps by name. What is measured several times is measured in turn, so that a busy moment does not hit one alone.

    for _ in range(REPEATS):
        for name, work in methods.items():
            if watch.wants(name):
                watch.time(name, work)
    seconds = watch.medians()
    """

    def __init__(self) -> None:
        self.laps: defaultdict[str, list[float]] = defaultdict(list)
        self.start()

    def start(self) -> None:
        """A lap begins here."""
        self._began = perf_counter()

    def lap(self, name: str) -> float:
        """A lap of `name` ends here: its seconds. The next one begins."""
        self.laps[name].append(perf_counter() - self._began)
        self.start()
        return self.laps[name][-1]

    def time(self, name: str, work: Callable[[], T]) -> T:
        """One lap of `name` that is `work`, whose result is given back."""
        self.start()
        result = work()
        self.lap(name)
        return result

    def wants(self, name: str) -> bool:
        """Is one more lap of `name` worth its time?"""
        return len(self.laps[name]) < REPEATS and sum(self.laps[name]) < LONG_ENOUGH

    def medians(self) -> dict[str, float]:
        """Seconds of a lap by name, in the order in which they were first measured."""
        return {name: median(laps) for name, laps in self.laps.items() if laps}
