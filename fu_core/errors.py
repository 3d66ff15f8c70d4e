"""The errors users meet. Each says which parameter, what was given, and what is allowed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


class InvalidRequest(ValueError):
    """An unlearning request that cannot be served: nobody or everybody targeted, unknown client."""


class UnsupportedModel(ValueError):
    """A module that cannot be treated as one flat vector, e.g. because it keeps running statistics."""


class UnsupportedTask(ValueError):
    """A method asked to do what it is not defined for."""


class MissingHistory(RuntimeError):
    """A stored update that a method needs and that was never recorded; the message names round and client."""


class NumericalFailure(RuntimeError):
    """NaN or infinity in a parameter vector, a loss or an update."""


class ConsensusFailure(NumericalFailure):
    """Peers whose models drift apart: mixing amplifies what it should even out."""


class TopologyError(ValueError):
    """A graph that is not connected, a mixing matrix that is not symmetric and doubly stochastic, a message that
    did not arrive."""


class CertificateViolation(RuntimeError):
    """An (epsilon, delta) guarantee that what was measured does not support; the message has the numbers."""


class RepeatedNoise(RuntimeError):
    """Noise that an earlier release has had: the difference of the two would hide nothing."""


class DataUnavailable(RuntimeError):
    """A data set that is neither cached nor obtainable now; the message says how to get it."""


class SimulationUnavailable(RuntimeError):
    """A simulation whose processes do not start on this machine: nothing of what it should run has begun."""


class CorruptData(RuntimeError):
    """A cache, archive or download whose size or checksum is not what it must be."""


class StorageError(RuntimeError):
    """A full disk, or a folder that cannot be written; the message names the path."""


class ConfigError(ValueError):
    """A parameter, profile or notebook that does not exist or has the wrong type."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or an empty string if nothing is close."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(ids: Iterable[int]) -> str:
    """Clients for a message: `"0 to 9"`, or all of them where some are missing."""
    known = list(ids)
    if not all(isinstance(i, Integral) for i in known):  # nor can they be sorted, perhaps
        return ", ".join(map(repr, known))
    known.sort()
    whole = known and known == list(range(known[0], known[-1] + 1))
    return f"{known[0]} to {known[-1]}" if whole else ", ".join(map(str, known)) or "none"


def check_choice(parameter: str, given: Any, allowed: Iterable[Any], error: type[Exception] = ValueError) -> None:
    """Raise unless `given` is one of `allowed`."""
    options = list(allowed)
    if given not in options:
        listed = ", ".join(repr(option) for option in options)
        raise error(f"{parameter} must be one of {listed}, got {given!r}{nearest(given, map(str, options))}")


def is_finite(given: Any) -> bool:
    """Whether this is a number, and one that floats have: 10**400 is none."""
    try:
        return isinstance(given, Real) and math.isfinite(given)
    except OverflowError:
        return False


def check_positive(parameter: str, given: float, error: type[Exception] = ValueError) -> None:
    """Raise unless `given` is a finite number above zero."""
    if not (is_finite(given) and given > 0):
        raise error(f"{parameter} must be a finite number > 0, got {given!r}")


def check_not_negative(parameter: str, given: float, error: type[Exception] = ValueError) -> None:
    """Raise unless `given` is a finite number of at least zero."""
    if not (is_finite(given) and given >= 0):
        raise error(f"{parameter} must be a finite number >= 0, got {given!r}")


def check_share(parameter: str, given: float, error: type[Exception] = ValueError) -> None:
    """Raise unless `given` lies between 0 and 1, both included."""
    if not (isinstance(given, Real) and 0 <= given <= 1):
        raise error(f"{parameter} must be between 0 and 1, got {given!r}")


def check_count(parameter: str, given: int, least: int = 1, error: type[Exception] = ValueError) -> None:
    """Raise unless `given` is a whole number of at least `least`."""
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise error(f"{parameter} must be a whole number >= {least}, got {given!r}")


def check_same_shape(first: str, one: Any, second: str, other: Any, error: type[Exception] = ValueError) -> None:
    """Raise unless both arrays or tensors have one shape: they would be broadcast, and nobody would notice."""
    if one.shape != other.shape:
        raise error(f"{first} and {second} must have one shape, got {tuple(one.shape)} and {tuple(other.shape)}")
