"""Adult / Census Income: 14 columns, does a person earn more than 50,000 dollars a year?

The cache keeps the raw strings of the official split, so that the encoding stays visible here and not in a file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fu_core.data.cache import Arrays, pack
from fu_core.data.download import Archive
from fu_core.errors import CorruptData

URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ARCHIVES = {
    "train": Archive(
        "adult.data",
        (URL + "adult.data",),
        size=3_974_305,
        sha256="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    "test": Archive(
        "adult.test",
        (URL + "adult.test",),
        size=2_003_153,
        sha256="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
}
ROWS = {"train": 32_561, "test": 16_281}
COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")


def adult(raw: Path) -> Arrays:
    """Download both files and return 32,561 + 16,281 rows of raw strings; label 1 is an income above 50K."""
    splits = {split: parse(archive.fetch(raw / "adult"), ROWS[split]) for split, archive in ARCHIVES.items()}
    source = "Adult / Census Income (UCI, Kohavi and Becker, 1996), official split, '?' kept as a category of its own"
    return pack(splits["train"], splits["test"], source, columns=COLUMNS)


def parse(path: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Strings `(rows, 14)` and labels `(rows,)`. The test file has a comment line and a full stop after each label."""
    lines = path.read_text(encoding="ascii").splitlines()
    table = [line.split(", ") for line in lines if line and not line.startswith("|")]
    if len(table) != rows or any(len(row) != len(COLUMNS) + 1 for row in table):
        raise CorruptData(f"{path} should hold {rows:,} rows of {len(COLUMNS) + 1} values, found {len(table):,} rows")
    labels = [row[-1].rstrip(".") == ">50K" for row in table]
    return np.array([row[:-1] for row in table]), np.array(labels, dtype=np.int64)


def encode(arrays: Arrays) -> Arrays:
    """Raw strings to float32: numeric columns as they are, then one column per category seen in training.

    A category that only the test set has becomes a row of zeros. Raises `CorruptData` for other columns than the
    table has, and for numbers that are none.
    """
    if arrays["columns"].tolist() != list(COLUMNS):
        raise CorruptData(f"columns of the adult table must be {', '.join(COLUMNS)}, got {arrays['columns'].tolist()}")
    from sklearn.preprocessing import OneHotEncoder  # here: it takes a second to import

    numeric = np.isin(arrays["columns"], NUMERIC)
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
    encoder.fit(arrays["x_train"][:, ~numeric])

    def split(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            numbers = x[:, numeric].astype(np.float32)
        if not np.isfinite(numbers).all():  # "nan" and "1e99" are read without a word
            raise ValueError("NaN, or beyond float32")
        return np.hstack([numbers, encoder.transform(x[:, ~numeric])])

    try:
        return arrays | {"x_train": split(arrays["x_train"]), "x_test": split(arrays["x_test"])}
    except ValueError as error:
        raise CorruptData(f"a numeric column of the adult table holds something else: {error}") from error
