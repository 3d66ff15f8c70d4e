"""What a certified method publishes, whichever it is, so that one loop can compare them at equal (epsilon, delta)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import check_positive
from fu_core.federation.meter import Meter
from fu_core.unlearning.gaussian_mechanism import check_probability

REHEARSAL = "noise from a generator that somebody else may hold: a rehearsal"


@dataclass(frozen=True, eq=False)
class Released:
    """A published model, what is guaranteed of it, and what it cost to unlearn.

    model (d,): for everybody; noiseless (d,): the same before the last noise, never to be released; None where there is
    no such model. sigma: standard deviation of that noise per coordinate; radius: how far apart the noise-free models
    of both worlds can be, if that is what the noise covers. nominal: why (epsilon, delta) is no guarantee, if it is none.
    passes: over the retained data, a curvature product counted as two; vectors: sent, of d numbers. state: what the
    method keeps for the next request, as secret as `noiseless`.
    """

    model: Tensor
    noiseless: Tensor | None
    sigma: float
    epsilon: float
    delta: float
    radius: float | None
    nominal: str
    passes: float
    vectors: float
    state: Any = None

    @property
    def certified(self) -> bool:
        """Whether (epsilon, delta) is proved."""
        return not self.nominal


def check_guarantee(epsilon: float, delta: float) -> None:
    """Raise ValueError unless epsilon > 0 and 0 < delta < 1."""
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)


@dataclass(frozen=True)
class Clock:
    """What a meter said before a method began."""

    meter: Meter
    passes: int
    bytes: int

    @classmethod
    def start(cls, meter: Meter) -> Clock:
        """Now."""
        return cls(meter, meter.gradient_passes, meter.bytes)

    def spent(self, n: int, w: Tensor) -> tuple[float, float]:
        """Passes over n samples since then, and vectors like w."""
        passes = (self.meter.gradient_passes - self.passes) / n
        return passes, (self.meter.bytes - self.bytes) / (w.numel() * w.element_size())


def fresh() -> torch.Generator:
    """A generator that nobody can repeat, seeded by the operating system's entropy."""
    return torch.Generator().manual_seed(secrets.randbits(63))


def gaussian(like: Tensor, noise: torch.Generator | None) -> Tensor:
    """N(0, I) like a vector (d,): of `noise`, which makes it a rehearsal, or by default of the system's entropy."""
    drawn = torch.randn(like.shape, generator=noise or fresh(), dtype=torch.float64)
    return drawn.to(like)


def caveats(*reasons: str, noise: torch.Generator | None) -> str:
    """Why a certificate is nominal: the reasons given that are not empty, and noise that can be repeated."""
    return "; ".join([reason for reason in reasons if reason] + ([REHEARSAL] if noise is not None else []))


def least(suffices: Callable[[float], bool], start: float, *, rtol: float = 1e-12) -> float:
    """The smallest number > 0 that suffices, up to rtol from above, if all larger ones do; searched from start on."""
    enough = start
    while not suffices(enough):
        enough *= 2
    short = enough / 2
    while suffices(short):
        enough, short = short, short / 2
    while enough - short > rtol * enough:
        middle = short + (enough - short) / 2
        short, enough = (short, middle) if suffices(middle) else (middle, enough)
    return enough
