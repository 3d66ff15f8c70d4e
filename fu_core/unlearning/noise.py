"""Where a release's noise comes from, so that no two releases share it.

Two releases with the same noise differ by exactly what was to be hidden: their difference is free of noise, and no
epsilon holds. Hence every release draws anew, from the system's entropy unless somebody rehearses.

    Privacy(epsilon=1.0, budget=0.1)                                fresh noise, nobody can repeat it
    Privacy(epsilon=1.0, budget=0.1, noise=Noise(rehearsed=7))      the same numbers in every run of a script

Fresh noise is drawn by Philox from 256 bits of the system's entropy: torch's generators keep 32 bits of a seed, which
can be tried one by one. A rehearsal can be repeated by whoever knows its number, so what it releases is for figures and
tests, not for the world, and its certificate says so. Floating-point noise has low-order bits that tell of what it was
added to (Mironov 2012); nothing here hides those. That the noisy model is rounded to its own precision costs nothing:
it happens to what is noisy already, and radii are measured at the very numbers that the noise is added to.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import RepeatedNoise
from fu_core.streams import stream, stream_seed

_REHEARSED: set[tuple[int, int]] = set()  # (number, release) that this process has drawn


@dataclass(frozen=True)
class Draw:
    """The noise of one release: standard normal vectors, one per name. entropy: of fresh noise, else from the seed."""

    seed: int
    release: int
    entropy: int = 0

    def normal(self, name: str, i: int, like: Tensor) -> Tensor:
        """(d,) for `like` (d,), drawn in float64."""
        if self.entropy:
            named = np.random.SeedSequence(self.entropy, spawn_key=(stream_seed(0, name, i),))
            drawn = np.random.Generator(np.random.Philox(named)).standard_normal(len(like))
            return torch.from_numpy(drawn).to(like)
        generator = stream(self.seed, "certified noise", self.release, name, i)
        return torch.randn(len(like), generator=generator, dtype=torch.float64).to(like)


class Noise:
    """Noise for any number of releases, each with its own; rehearsed: a number from which it can be drawn again.

    Random: from the system's entropy, or from (rehearsed, release, ...), where `release` counts them.
    """

    def __init__(self, rehearsed: int | None = None) -> None:
        if rehearsed is not None and (not isinstance(rehearsed, Integral) or isinstance(rehearsed, bool)):
            raise ValueError(f"rehearsed must be a whole number, or None for fresh noise, got {rehearsed!r}")
        self.rehearsed = rehearsed
        self._releases = 0

    def draw(self) -> Draw:
        """The noise of the next release. Raises `RepeatedNoise` where a rehearsal in this process has had it."""
        self._releases += 1
        if self.rehearsed is None:
            return Draw(0, self._releases, entropy=secrets.randbits(256))
        key = (self.rehearsed, self._releases)
        if key in _REHEARSED:
            raise RepeatedNoise(
                f"noise {self.rehearsed} has been released before (release {self._releases}): the difference of two "
                "releases with the same noise hides nothing; use another number, the same Noise object, which counts "
                "its releases, or `rehearsal()` around what is meant to be repeated"
            )
        _REHEARSED.add(key)
        return Draw(*key)


@contextmanager
def rehearsal() -> Iterator[None]:
    """What is rehearsed in here may be drawn again afterwards: for an experiment that is a function of its seed."""
    before = _REHEARSED.copy()
    _REHEARSED.clear()
    try:
        yield
    finally:
        _REHEARSED.clear()
        _REHEARSED.update(before)
