"""In what precision clients train: `$FU_PRECISION`, float32, or bf16 for accelerators that are faster with it.

bf16 keeps parameters, optimisers and averages in float32; only the layers' products are rounded (torch.autocast).
Curvature, evaluation and perceptrons with written-out gradients stay exact. It is part of every run's key.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from fu_core.errors import ConfigError, check_choice

PRECISIONS = ("float32", "bf16")


def precision() -> str:
    """`$FU_PRECISION`, float32 by default; ConfigError for anything that is not in PRECISIONS."""
    given = os.environ.get("FU_PRECISION") or "float32"
    check_choice("FU_PRECISION", given, PRECISIONS, ConfigError)
    return given


def training_precision(device: torch.device) -> AbstractContextManager[object]:
    """The context in which a training step computes its loss."""
    return torch.autocast(device.type, torch.bfloat16) if precision() == "bf16" else nullcontext()
