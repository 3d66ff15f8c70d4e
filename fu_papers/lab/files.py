"""Files that are either whole or not there, and errors that name the file and the way out."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from glob import escape
from pathlib import Path

import psutil
from filelock import FileLock
from safetensors import SafetensorError

from fu_core.errors import StorageError
from fu_papers.lab.paths import runs_dir


@contextmanager
def written_atomically(path: Path, *, tidy: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the same folder; it becomes `path` at the end, or vanishes if anything fails.

    Makes missing folders, and clears away what a killed process of this host left of `path`; not with `tidy=False`, for
    callers who know better when to look, since the whole folder is listed for it. Raises StorageError naming `path` if
    the disk is full or the folder cannot be written.
    """
    path = Path(path)
    # Folders are shared by hosts, whose processes may have the same number, and so may those of two containers.
    ours = re.sub(r"[^\w-]", "-", socket.gethostname())[:40]
    part = path.with_name(f".{path.name}.{ours}.{os.getpid()}.{secrets.token_hex(4)}.part")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in path.parent.glob(f".{escape(path.name)}.{escape(ours)}.*.part") if tidy else ():
            pid = left.name.split(".")[-3]
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):  # who else lives, a neighbour cannot tell
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


@contextmanager
def reading_errors(path: Path, setting: str = "FU_RUNS") -> Iterator[None]:
    """What the operating system raises inside becomes a StorageError that names `path`, but for what is not there.

    setting: the variable that chooses another folder.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}; change its permissions, or choose another folder with "
            f"{setting}"
        ) from error


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """For who reads a file, changes it and writes it: others who do so with the same file wait.

    The lock is kept with the working state, not beside the file, which may be committed.
    """
    name = hashlib.sha256(str(Path(path).resolve()).encode()).hexdigest()[:20]
    lock = FileLock(runs_dir() / "locks" / f"{Path(path).name}-{name}.lock")
    with storage_errors(Path(lock.lock_file)):
        Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


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
