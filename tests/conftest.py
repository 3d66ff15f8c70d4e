"""Shared fixtures. Each test process uses one torch thread: the suite runs several at once."""

import pytest
import torch

from tests.quadratics import Quadratics

torch.set_num_threads(1)


@pytest.fixture
def quadratics():
    """Four quadratic clients in three dimensions."""
    return Quadratics()
