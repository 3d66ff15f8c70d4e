"""Where things lie. One module, so that no other file builds a path from scratch."""

from __future__ import annotations

import os
from pathlib import Path


def _home() -> Path:
    """The checkout; without one the current folder, since nothing may be written where packages are installed."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").exists() else Path.cwd()


ROOT = Path(os.environ.get("FU_HOME", _home()))
NOTEBOOKS = ROOT / "notebooks"


def runs_dir() -> Path:
    """Working state that git ignores: records, checkpoints, models, executed notebooks. `$FU_RUNS` moves it."""
    return Path(os.environ.get("FU_RUNS", ROOT / "runs"))


def figures_dir(profile: str, paper: str = "") -> Path:
    """What `make reproduce` shows: PNG, CSV and records. `$FU_FIGURES` moves it."""
    return Path(os.environ.get("FU_FIGURES", ROOT / "figures")) / profile / paper
