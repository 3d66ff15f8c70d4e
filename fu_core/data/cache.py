"""One `<name>.npz` per data set: the only file that later loads touch.

A cache holds `x_train, y_train, x_test, y_test` and a string `source`; where they apply also `columns` (names of raw
table columns) and `site_train, site_test` (which hospital a slice comes from). Images are uint8 `(n, H, W)` or
`(n, H, W, 3)`, labels int64 `(n,)`, masks uint8 `(n, H, W)`. A cache is complete or absent: it is written to a
temporary file beside it, flushed to the disk and renamed. Its integrity is the CRC that every array in a zip carries,
checked while the array is read, the number of arrays that the zip's end gives, and the agreement of the shapes.
"""

from __future__ import annotations

import contextlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from fu_core.errors import CorruptData, DataUnavailable

Arrays = dict[str, np.ndarray]

SPLITS = ("train", "test")
REQUIRED = ("x_train", "y_train", "x_test", "y_test", "source")
UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, SyntaxError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error),
)
END, MOST_END = b"PK\5\6", 22 + 2**16  # of a zip's end record: how it begins, and from where on it must
MOST_LABEL = 2**31 - 1  # what no set has; a net for so many classes would not fit anywhere


def pack(train: tuple[Any, Any], test: tuple[Any, Any], source: str, **more: Any) -> Arrays:
    """`(x, y)` of both splits in the layout of a cache; `more` are optional arrays such as `site_train`."""
    (x_train, y_train), (x_test, y_test) = train, test
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, "source": source, **more}
    return {key: np.asarray(value) for key, value in arrays.items()}


@contextlib.contextmanager
def storage_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a full disk or a read-only folder into one `DataUnavailable` that names the path and the bytes needed."""
    try:
        yield
    except OSError as error:
        amount = f" ({needed:,} bytes needed)" if needed else ""
        raise DataUnavailable(
            f"cannot write {path}{amount}: {error.strerror or error}; free some space, make the folder writable, "
            "or let FU_DATA point to another folder"
        ) from error


def write_cache(path: Path, arrays: Arrays) -> None:
    """Write `arrays` to `path`, completely or not at all. Raises `DataUnavailable` if the disk does not allow it.

    One process at a time: `prepare` holds the lock.
    """
    temporary = path.with_name(f".{path.name}.tmp")  # always the same: what a killed process left is overwritten
    try:
        with storage_errors(path, sum(array.nbytes for array in arrays.values())):
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())  # else a power cut could leave the new name on old bytes
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def read_cache(path: Path) -> Arrays:
    """All arrays of a cache, checked. Raises `CorruptData`, which names the file and the way out."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: _whole(archive.zip, key) for key in archive.files}
            if (promised := _promised(path)) != len(archive.files):
                raise ValueError(f"{len(archive.files)} of {promised} arrays are found")
    except PermissionError as error:
        raise DataUnavailable(f"{path} may not be read: {error.strerror}; change its permissions") from error
    except (*UNREADABLE, AttributeError, TypeError) as error:  # the last two: a bare .npy under this name
        raise _corrupt(path, f"it cannot be read ({error})") from error
    problem = _problem(arrays)
    if problem:
        raise _corrupt(path, problem)
    return arrays


def _promised(path: Path) -> int:
    """How many arrays there must be. Only the zip's end says: an entry of its directory whose length is wrong swallows
    those behind it, and nobody misses them."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_END))
        tail = file.read()
    at = tail.rfind(END)
    return int.from_bytes(tail[at + 10 : at + 12], "little")


def _whole(archive: zipfile.ZipFile, key: str) -> np.ndarray:
    """One array of a cache. Where its header asks for less than there is, plain reading would never get to the CRC;
    where it asks for more, memory for that much would be taken first."""
    with archive.open(f"{key}.npy") as member:  # not rewound for the second reading, which would forgo the CRC
        asked, there = _bytes_asked(member), archive.getinfo(f"{key}.npy").file_size
    if asked > there:
        raise ValueError(f"{key} has {there:,} bytes, and its header asks for {asked:,}")
    with archive.open(f"{key}.npy") as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{key} is longer than its header says")
    return array


def _bytes_asked(member: IO[bytes]) -> int:
    """How many bytes of numbers an array has according to its header; 0 for kinds that are refused anyway."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(member)
    return 0 if dtype.hasobject else math.prod(shape) * dtype.itemsize


def _corrupt(path: Path, problem: str) -> CorruptData:
    return CorruptData(
        f"{path} is not a usable cache: {problem}; delete it and run `python -m fu_core.data {path.stem}`, "
        "or put a good copy in its place"
    )


def _problem(arrays: Arrays) -> str:
    """What is wrong with the arrays of a cache, or an empty string."""
    missing = [key for key in REQUIRED if key not in arrays]
    if missing:
        return f"array {', '.join(missing)} missing"
    if arrays["source"].dtype.kind != "U" or arrays["source"].shape != ():
        return "source is not a single string"
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        return f"x_train is {arrays['x_train'].shape} but x_test {arrays['x_test'].shape}"
    if problem := next(filter(None, (_split_problem(split, arrays) for split in SPLITS)), ""):
        return problem
    for name in ("x", "y"):
        train, test = arrays[f"{name}_train"], arrays[f"{name}_test"]
        if train.ndim != test.ndim or (train.dtype.kind == "U") != (test.dtype.kind == "U"):
            return f"{name}_train is {train.dtype} {train.shape} but {name}_test {test.dtype} {test.shape}"
    if ("site_train" in arrays) != ("site_test" in arrays):
        return f"{'site_test' if 'site_train' in arrays else 'site_train'} missing"
    return ""


def _split_problem(split: str, arrays: Arrays) -> str:
    x, y, site = arrays[f"x_{split}"], arrays[f"y_{split}"], arrays.get(f"site_{split}")
    if x.ndim == 0 or y.ndim == 0 or x.size == 0 or len(x) != len(y):
        return f"x_{split} is {x.shape} but y_{split} {y.shape}"
    if site is not None and (site.dtype.kind not in "iu" or site.shape != (len(x),)):
        return f"site_{split} is {site.dtype} {site.shape}, not {len(x)} whole numbers"
    if not (_is_image(x) or _is_table(x) or _is_raw_table(x, arrays.get("columns"))):
        return f"x_{split} is {x.dtype} {x.shape}, neither uint8 images nor a table of numbers or named columns"
    if not (_is_label(y) or _is_mask(y, x)):
        return f"y_{split} is {y.dtype} {y.shape}, neither labels >= 0 nor uint8 masks of the images' size, of 0 and 1"
    return ""


def _is_image(x: np.ndarray) -> bool:
    return x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3)))


def _is_table(x: np.ndarray) -> bool:
    if x.dtype.kind not in "fiu" or x.ndim != 2:
        return False
    with np.errstate(over="ignore"):  # 1e300 is finite until it is what tensors hold
        return bool(np.isfinite(x.astype(np.float32, copy=False)).all())


def _is_raw_table(x: np.ndarray, columns: np.ndarray | None) -> bool:
    named = columns is not None and columns.dtype.kind == "U" and columns.shape == x.shape[1:]
    return x.dtype.kind == "U" and x.ndim == 2 and named


def _is_label(y: np.ndarray) -> bool:
    return y.dtype.kind in "iu" and y.ndim == 1 and bool((y >= 0).all()) and bool((y <= MOST_LABEL).all())


def _is_mask(y: np.ndarray, x: np.ndarray) -> bool:
    """Of 0 and 1: one of 0 and 255 would make a net for 256 classes, and Dice of 255 times the organ."""
    return y.dtype == np.uint8 and y.ndim == 3 and y.shape == x.shape[:3] and int(y.max()) <= 1
