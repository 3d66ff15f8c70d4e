"""Data of their own for the small runs of the notebooks."""

import numpy as np
import pytest

from fu_core.data.cache import pack, write_cache


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A data folder whose `mnist` is 400 + 100 noisy stripes: a data set that exists nowhere else."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    labels = np.arange(500) % 10
    images = rng.integers(0, 160, size=(500, 28, 28), dtype=np.uint8)
    images[np.arange(500), 2 * labels] += 95  # the class is where the bright line is
    split = [(images[part], labels[part].astype(np.int64)) for part in (slice(400), slice(400, None))]
    write_cache(folder / "mnist.npz", pack(*split, "Noisy lines, generated for a test"))
    return folder
