"""A plugin for nbval: papers' notebooks draw from the committed records of the profile quick, and compute no runs.

    pytest -p tests.drawn_from_records --nbval-lax --nbval-current-env notebooks/01_puf.ipynb

What a notebook shows at its defaults is then tested in a minute, from its first cell to its closing one. That it
computes from nothing is tested on tiny federations (tests/notebooks), and at these sizes by `make reproduce`. Kernels
work in a folder of their own, which has the records and nothing else: no data, no earlier runs; and no committed figure
is drawn over.
"""

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from unittest import mock

import pytest

from fu_papers.lab import paths
from fu_papers.lab.committed import CLOCK, RECORDS

FOLDER = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    """One folder for all notebooks of a test process."""
    config.stash[FOLDER] = tempfile.TemporaryDirectory(prefix="drawn-from-records-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The folder goes."""
    config.stash[FOLDER].cleanup()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """A notebook's kernel starts when its first cell is set up, and inherits our environment."""
    if item.path.suffix != ".ipynb":
        return (yield)
    folder = Path(item.config.stash[FOLDER].name)
    settings = {"FU_RUNS": folder / "runs", "FU_FIGURES": folder / "figures", "FU_DATA": folder / "data"}
    give_records(item.path.stem.partition("_")[2], folder / "figures")
    with mock.patch.dict(os.environ, {"FU_FIGURES_ONLY": "1"} | {name: str(path) for name, path in settings.items()}):
        return (yield)


def give_records(paper: str, figures: Path) -> None:
    """Copy a paper's records, if they are not there yet."""
    ours = figures / "quick" / paper
    if not ours.exists():
        ours.mkdir(parents=True)
        for name in (RECORDS, CLOCK):
            shutil.copyfile(paths.ROOT / "figures" / "quick" / paper / name, ours / name)
