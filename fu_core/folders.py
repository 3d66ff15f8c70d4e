"""Folders that come from the environment: the same ones wherever a process works."""

from __future__ import annotations

import os
from pathlib import Path

from fu_core.errors import ConfigError


def folder_setting(name: str, default: Path) -> Path:
    """The folder in the environment variable `name`, absolute and with `~` for the user's; `default` if it is empty.

    Raises ConfigError for the `~` of a user who is not known.
    """
    if not (given := os.environ.get(name, "")):
        return default
    try:
        return Path(given).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"{name} must be a folder, got {given!r}, a home that is not known here") from error
