"""Shared fixtures. Each test process uses one torch thread: the suite runs several at once."""

import os

import joblib
import pytest
import torch

from fu_papers.lab.store import RecordStore
from tests.quadratics import Quadratics

torch.set_num_threads(1)
os.environ["FU_CHECKPOINT_SECONDS"] = "0"  # tests are over sooner than a run would keep its first checkpoint


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Test processes of `make test`, whose JOBS sets another number: one more than cores, since some tests wait."""
    return min(joblib.cpu_count() + 1, 8)


@pytest.fixture
def quadratics():
    """Four quadratic clients in three dimensions."""
    return Quadratics()


@pytest.fixture(scope="session")
def theory_store(tmp_path_factory):
    """Records of the papers' numerical checks, at the sizes of quick: one store for all test processes."""
    root = tmp_path_factory.getbasetemp()
    return RecordStore((root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "theory")
