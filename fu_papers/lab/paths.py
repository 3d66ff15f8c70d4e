"""Where things lie. One module, so that no other file builds a path from scratch."""

from __future__ import annotations

import os
from pathlib import Path

from fu_core.errors import ConfigError
from fu_papers.parameters import Parameters, profiles

CHANGED = "changed"  # the folder, which git ignores, of what parameters that are no profile's have given


def folder_setting(name: str, default: Path) -> Path:
    """The folder in the environment variable `name`, absolute and with `~` for the user's; `default` if it is empty.

    So that all processes mean the same, wherever they work; fu_core reads FU_DATA likewise. Raises ConfigError for the
    `~` of somebody unknown.
    """
    if not (given := os.environ.get(name, "")):
        return default
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"{name} must be a folder, got {given!r}, a home that is not known here") from error


def _home() -> Path:
    """The checkout; without one the current folder, since nothing may be written where packages are installed."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").exists() else Path.cwd()


ROOT = folder_setting("FU_HOME", _home())
NOTEBOOKS = ROOT / "notebooks"


def runs_dir() -> Path:
    """Working state that git ignores: records, checkpoints, models, executed notebooks. `$FU_RUNS` moves it."""
    return folder_setting("FU_RUNS", ROOT / "runs")


def figures_dir(profile: str, paper: str = "") -> Path:
    """What `make reproduce` shows of a profile: PNG, CSV and records. `$FU_FIGURES` moves it."""
    return folder_setting("FU_FIGURES", ROOT / "figures") / profile / paper


def figures_of(experiment: Parameters) -> Path:
    """Where what these parameters show goes: `figures_dir`, unless a reader has changed one of the profile's values.

    Then it is a folder beside the profiles: nobody's trial shall take the place of committed evidence.
    """
    if is_changed(experiment):
        return figures_dir(CHANGED, experiment.profile) / experiment.paper
    return figures_dir(experiment.profile, experiment.paper)


def is_changed(experiment: Parameters) -> bool:
    """Whether a value differs from its profile's."""
    schema = type(experiment)
    return experiment.profile in profiles(experiment.paper) and experiment != schema.of(experiment.profile)


def short(path: Path) -> str:
    """As it is told: from the checkout's root, if it lies in there."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def settled() -> dict[str, str]:
    """The variables of the environment that choose folders, absolute: for processes that work in another folder."""
    given = [name for name in ("FU_HOME", "FU_RUNS", "FU_FIGURES", "FU_DATA") if os.environ.get(name)]
    return {name: str(folder_setting(name, ROOT)) for name in given}
