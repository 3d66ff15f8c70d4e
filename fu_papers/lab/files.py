"""Files that are either whole or not there, and errors that name the file and the way out."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from glob import escape
from pathlib import Path

import psutil
from safetensors import SafetensorError

from fu_core.errors import StorageError


@contextmanager
def written_atomically(path: Path, *, tidy: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it becomes `path` at the end, or vanishes if anything fails.

    Makes missing folders, and clears away what a killed process left of `path`; not with `tidy=False`, for callers who
    know better when to look, since the whole folder is listed for it. Raises StorageError naming `path` if the disk is
    full or the folder cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{escape(path.name)}.*.part") if tidy else ():
            if not psutil.pid_exists(int(left.name.split(".")[-2])):
                left.unlink(missing_ok=True)
        try:
            yield part
            with part.open("rb+") as written:
                os.fsync(written.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """What the operating system raises inside becomes a StorageError that names `path`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"cannot write {path}: {reason}; free some space, or choose another folder with FU_RUNS (records) or "
            "FU_FIGURES (figures, tables)"
        ) from error


def move_aside(path: Path, reason: str) -> None:
    """Rename a damaged file to `<name>.corrupt-<n>`, so that it can be looked at and is not read again."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    with storage_errors(aside):
        path.rename(aside)
    warnings.warn(f"{path.name} was moved aside to {aside.name} and is computed again: {reason}", stacklevel=3)


def file_sha256(path: Path) -> str:
    """Of a file's content, as hex digits. One that has not changed since is not read again, as models are often."""
    now = path.stat()
    return _sha256(path, now.st_ino, now.st_size, now.st_mtime_ns)


@lru_cache(maxsize=1024)
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
