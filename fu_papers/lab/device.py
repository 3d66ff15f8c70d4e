"""Where runs compute."""

from __future__ import annotations

import os

import torch

from fu_core.errors import ConfigError


def device() -> torch.device:
    """`$FU_DEVICE`, else the first GPU if there is one, else the CPU. ConfigError for what torch does not know."""
    given = os.environ.get("FU_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(given)
    except RuntimeError as error:
        raise ConfigError(f"FU_DEVICE must name a device of torch, cpu or cuda:1 say, got {given!r}") from error
