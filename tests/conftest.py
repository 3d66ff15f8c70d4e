"""Shared fixtures. Each test process uses one torch thread: the suite runs several at once."""

import os

import pytest
import torch

from tests.quadratics import Quadratics

torch.set_num_threads(1)
os.environ["FU_CHECKPOINT_SECONDS"] = "0"  # tests are over sooner than a run would keep its first checkpoint


@pytest.fixture
def quadratics():
    """Four quadratic clients in three dimensions."""
    return Quadratics()
