"""How many processes there are to be. By itself, since who only waits for notebooks needs no torch."""

from __future__ import annotations

import os

import joblib

from fu_core.errors import ConfigError


def default_jobs() -> int:
    """How many processes to use: `$FU_JOBS`, else the cores this process may use."""
    given = os.environ.get("FU_JOBS", "")
    if not given:
        return int(joblib.cpu_count())
    if not given.isdecimal() or int(given) < 1:
        raise ConfigError(f"FU_JOBS must be a whole number >= 1, got {given!r}")
    return int(given)
