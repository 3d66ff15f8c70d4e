"""Numbers and switches that come from the environment."""

from __future__ import annotations

import math
import os

from fu_core.errors import ConfigError


def seconds_setting(name: str, default: str, *, zero: bool) -> float:
    """The seconds in the environment variable `name`, `default` if it is not set; 0 is allowed with `zero` only.

    Raises ConfigError for anything that is not such a number.
    """
    given = os.environ.get(name) or default
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf or (seconds == 0 and not zero):
        raise ConfigError(f"{name} must be a number of seconds {'>=' if zero else '>'} 0, got {given!r}")
    return seconds


def switch_setting(name: str) -> bool:
    """Whether the environment variable `name` is on, "1"; "0", nothing, or no such variable: off. ConfigError else."""
    given = os.environ.get(name, "")
    if given not in ("", "0", "1"):
        raise ConfigError(f"{name} must be 1 (yes), or 0 or empty (no), got {given!r}")
    return given == "1"
