"""The two real data sets that come with scikit-learn: no download, no cache."""

from __future__ import annotations

import numpy as np

from fu_core.data.cache import Arrays, pack

SPLIT_SEED = 0  # part of what these data sets are: neither comes with an official split


def digits() -> Arrays:
    """1,437 + 360 grey 8x8 images of ten digits; intensities 0..16 become 0..255."""
    from sklearn.datasets import load_digits  # here: who has other data need not wait for scikit-learn

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    source = "Digits (UCI optical recognition of handwritten digits, 8x8, bundled with scikit-learn)"
    return _split(images, bunch.target, 360, source)


def breast_cancer() -> Arrays:
    """455 + 114 rows of 30 measurements; label 1 is benign."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    source = "Breast Cancer Wisconsin (diagnostic; bundled with scikit-learn)"
    return _split(bunch.data.astype(np.float32), bunch.target, 114, source)


def _split(x: np.ndarray, y: np.ndarray, n_test: int, source: str) -> Arrays:
    """A fixed random split with the same class shares on both sides."""
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(np.arange(len(y)), test_size=n_test, stratify=y, random_state=SPLIT_SEED)
    y = y.astype(np.int64)
    return pack((x[train], y[train]), (x[test], y[test]), f"{source}, fixed stratified split")
