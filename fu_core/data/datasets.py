"""`load(name)`: a data set as tensors, from a bundled source or from its cache, which the first call makes.

`Dataset` itself is in `dataset.py`; the names are in `catalogue.py`; what a cache is, in `cache.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from fu_core.data.cache import Arrays, read_cache, storage_errors, write_cache
from fu_core.data.catalogue import BUNDLED, CACHED, NAMES
from fu_core.data.dataset import Dataset
from fu_core.errors import ConfigError, CorruptData, DataUnavailable, check_choice


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """The data set called `name`, e.g. "digits", "phantom" or "cifar10"; see `fu_core.data.NAMES`.

    Of a name that is not bundled a ready `<name>.npz` in `data_dir` (default: `$FU_DATA`, else `data/`) is used as it
    is and without a network; otherwise it is made first, see `prepare`. Data of one's own need none of this: a
    federation takes tensors. Raises `ValueError` for an unknown name, `DataUnavailable` when the data can be neither
    found nor fetched, and `CorruptData` when a cache or an archive is damaged.
    """
    check_choice("name", name, NAMES)
    arrays = BUNDLED[name]() if name in BUNDLED else read_cache(prepare(name, data_dir))
    return _to_dataset(name, arrays)


def data_dir() -> Path:
    """The folder of the data caches: `$FU_DATA`, else `data/` in the checkout, or without one in the current folder.

    Absolute, with `~` for the user's home; an empty variable is none. ConfigError for the `~` of somebody unknown.
    """
    checkout = Path(__file__).resolve().parents[2]
    home = checkout if (checkout / "pyproject.toml").exists() else Path.cwd()
    given = os.environ.get("FU_DATA", "")
    try:
        return Path(given or home / "data").expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(f"FU_DATA must be a folder, got {given!r}, a home that is not known here") from error


def cache_path(name: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Where the cache of a data set is, or would be; `~` is the user's home. ConfigError for what is no folder."""
    try:
        return Path(folder or data_dir()).expanduser() / f"{name}.npz"
    except (TypeError, RuntimeError) as error:
        raise ConfigError(f"data_dir must be a folder, got {folder!r}: {error}") from error


def prepare(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Make sure that the cache of `name` exists; returns its path.

    Archives go to `raw/` beside the cache and may be deleted afterwards. Of several processes that ask at once, one
    works and the others wait for it.
    """
    check_choice("name", name, tuple(CACHED))
    path = cache_path(name, data_dir)
    if path.exists():
        return path
    raw = path.parent / "raw"
    lock = FileLock(raw / f"{name}.lock")
    with storage_errors(path):
        raw.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        if not path.exists():
            write_cache(path, CACHED[name].build(raw))
    except DataUnavailable as error:
        raise DataUnavailable(f"{error}\n{_remedy(name, path)}") from error
    finally:
        lock.release()
    return path


def _remedy(name: str, path: Path) -> str:
    return (
        f"Data set {name!r} has no cache at {path} yet. When the above is solved, run `make data SETS={name}` "
        f"(or `python -m fu_core.data {name}`); or copy a ready {path.name} from another machine into {path.parent}."
    )


def _to_dataset(name: str, arrays: Arrays) -> Dataset:
    """The tensors of a cache: grey images get their channel axis, colour images have it moved to the front."""
    if arrays["x_train"].dtype.kind == "U":
        from fu_core.data.adult import encode  # here: it comes with what downloads the table

        if name != "adult":
            raise CorruptData(f"the cache of {name} holds texts, as that of adult does alone; put a good copy there")
        arrays = encode(arrays)
    segmentation = arrays["y_train"].ndim == 3
    labels = {split: torch.from_numpy(_labels(arrays[f"y_{split}"])) for split in ("train", "test")}
    sites = {
        split: torch.from_numpy(arrays[f"site_{split}"].astype(np.int64)) if f"site_{split}" in arrays else None
        for split in ("train", "test")
    }
    return Dataset(
        name=name,
        x_train=_features(arrays["x_train"]),
        y_train=labels["train"],
        x_test=_features(arrays["x_test"]),
        y_test=labels["test"],
        source=str(arrays["source"]),
        task="segmentation" if segmentation else "classification",
        site_train=sites["train"],
        site_test=sites["test"],
    )


def _features(x: np.ndarray) -> torch.Tensor:
    """uint8 `(n, C, H, W)` or float32 `(n, p)`, contiguous."""
    if x.dtype != np.uint8 or x.ndim == 2:
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if x.ndim == 3:
        return torch.from_numpy(np.ascontiguousarray(x)).unsqueeze(1)
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def _labels(y: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(y, dtype=np.uint8 if y.ndim == 3 else np.int64)
