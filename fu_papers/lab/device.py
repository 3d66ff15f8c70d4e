"""Where runs compute."""

from __future__ import annotations

import os

import torch

from fu_core.errors import ConfigError


def device() -> torch.device:
    """`$FU_DEVICE`, else the first GPU if there is one, else the CPU. ConfigError for what torch does not know.

    On a GPU float32 stays float32: torch lets convolutions there round factors to ten bits (TF32), which no record
    would tell. `FU_PRECISION` is the way to ask for less.
    """
    given = os.environ.get("FU_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(given)
    except RuntimeError as error:
        raise ConfigError(f"FU_DEVICE must name a device of torch, cpu or cuda:1 say, got {given!r}") from error
    if found.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return found
