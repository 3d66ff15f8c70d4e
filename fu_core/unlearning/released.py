"""What a certified method publishes, whichever it is, so that one loop can compare them at equal (epsilon, delta)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fu_core.errors import CertificateViolation, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.meter import Meter
from fu_core.unlearning.gaussian_mechanism import check_probability
from fu_core.unlearning.noise import Draw, Noise

REHEARSAL = "rehearsed noise, which whoever knows its number can draw again"


@dataclass(frozen=True, eq=False)
class Released:
    """A published model, what is guaranteed of it, and what it cost to unlearn.

    model (d,): for everybody; noiseless (d,): the same before the last noise, never to be released; None where there is
    no such model. sigma: standard deviation of that noise per coordinate; radius: how far apart the noise-free models
    of both worlds can be, if that is what the noise covers. nominal: why (epsilon, delta) is no guarantee, if so.
    passes: over the retained data, a curvature product counted as two; vectors: sent, of d numbers. state: what the
    method keeps for the next request, as secret as `noiseless`.

    The guarantee is about outsiders, who see what is published and nothing else. Clients compute with sums that carry
    no noise, and peers hold the model that those lead to.
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


def check_before(f: Federation, samples: int) -> None:
    """Raise CertificateViolation unless f holds so many samples, those that earlier requests have left.

    From a federation that still has what they deleted, the next model would learn it again.
    """
    if (there := int(f.sizes().sum())) != samples:
        raise CertificateViolation(
            f"f must be the federation before this request, {samples} samples without what earlier requests have "
            f"deleted, got {there}"
        )


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


def draw_of(noise: Noise | None) -> Draw:
    """The noise of the next release: of a rehearsal, or by default of the system's entropy."""
    return (noise or Noise()).draw()


def caveats(*reasons: str, noise: Noise | None) -> str:
    """Why a certificate is nominal: the reasons given that are not empty, and noise that can be drawn again."""
    known = [reason for reason in reasons if reason]
    if noise is not None and noise.rehearsed is not None and not any(REHEARSAL in reason for reason in known):
        known.append(REHEARSAL)
    return "; ".join(known)


def least(suffices: Callable[[float], bool], start: float, *, rtol: float = 1e-12) -> float:
    """The smallest number that suffices, up to rtol from above, if all larger ones do; searched from start on.

    0.0 where every number > 0 does, since then nothing is needed.
    """
    enough = start
    while not suffices(enough):
        enough *= 2
    short = enough / 2
    while short and suffices(short):
        enough, short = short, short / 2
    if not short:  # halved so often that no float is left below
        return 0.0
    while enough - short > rtol * enough:
        middle = short + (enough - short) / 2
        short, enough = (short, middle) if suffices(middle) else (middle, enough)
    return enough
