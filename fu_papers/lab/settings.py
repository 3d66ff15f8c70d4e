"""Numbers that come from the environment."""

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
