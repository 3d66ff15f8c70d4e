"""Where runs compute."""

from __future__ import annotations

import os

import torch


def device() -> torch.device:
    """`$FU_DEVICE`, else the first GPU if there is one, else the CPU."""
    return torch.device(os.environ.get("FU_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
