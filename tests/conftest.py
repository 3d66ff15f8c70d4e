"""Shared fixtures. Each test process uses one torch thread: the suite runs several at once."""

import os

import joblib
import pytest
import torch

from fu_papers.lab.store import RecordStore
from tests.quadratics import Quadratics

LONGEST = (  # what takes longest, in the order in which it begins: nobody works alone at the end
    "tests/fu_papers/test_certified_dfl_certificates.py",  # makes the numerical checks that a notebook needs, too
    "tests/notebooks/test_01_puf.py",
    "tests/fu_papers/test_puf_runs.py",
    "tests/notebooks/test_headless.py::TestHfKcu",
    "tests/notebooks/test_headless.py::TestFedora",
    "tests/notebooks/test_headless.py::TestCertifiedDfl",
    "tests/fu_core/test_flower.py",
    "tests/faults/test_kills.py",
    "tests/notebooks",
    "notebooks",
    "tests/faults",
    "tests/lab",
)

torch.set_num_threads(1)
os.environ["FU_CHECKPOINT_SECONDS"] = "0"  # tests are over sooner than a run would keep its first checkpoint


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Test processes of `make test`, whose JOBS sets another number: one more than cores, since some tests wait."""
    return min(joblib.cpu_count() + 1, 8)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest; all else keeps its order."""

    def place(item: pytest.Item) -> int:
        return next((n for n, first in enumerate(LONGEST) if item.nodeid.startswith(first)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture
def quadratics():
    """Four quadratic clients in three dimensions."""
    return Quadratics()


@pytest.fixture(scope="session")
def theory_store(tmp_path_factory):
    """Records of the papers' numerical checks, at the sizes of quick: one store for all test processes."""
    root = tmp_path_factory.getbasetemp()
    return RecordStore((root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "theory")
