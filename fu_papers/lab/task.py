"""One run that is to be computed, and what comes of it: what processes of this machine and dask workers both do."""

from __future__ import annotations

import ctypes
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from fu_papers.lab.record import Record, RunFunction, key_of
from fu_papers.lab.store import RecordStore

LONG = 2.0  # seconds: after such a run what malloc keeps goes back; after shorter ones the next asks for as much


@dataclass(frozen=True)
class Task:
    """One run to be computed."""

    fn: RunFunction
    config: dict[str, Any]
    data_hash: str
    declared: bool = True  # whether that is the hash that the function declares; else a caller has given another

    @property
    def key(self) -> str:
        """The key of the run's record."""
        return key_of(self.fn, self.config, self.data_hash)

    def run(self, store: RecordStore, label: str) -> Record:
        """Compute it, or read it if somebody else has finished it meanwhile."""
        return store.run(self.fn, self.config, data_hash=self.data_hash, label=f"{label} {self.config}")


class NotHere(RuntimeError):
    """A run that says that it cannot run here, where something it needs is not installed or does not start."""


@dataclass(frozen=True)
class Failure:
    """An exception as text: not every exception survives the way between processes.

    not_here: whether it was one of those by which a run says that it cannot run here.
    """

    message: str
    traceback: str
    not_here: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Of the exception that is being handled."""
        not_here = isinstance(error, (NotHere, ImportError))
        return cls(f"{type(error).__name__}: {error}", traceback.format_exc(), not_here)


Outcome = tuple[Task, Record | Failure]
ShowRunning = Callable[[int], None]  # to be called with the number of workers, at first and when it changes


def attempt(task: Task, store: RecordStore, label: str) -> Outcome:
    """One run in one thread, in a worker process or here."""
    began = time.perf_counter()
    try:
        with single_threaded():
            return task, task.run(store, label)
    except Exception as error:
        return task, Failure.of(error)
    finally:
        if time.perf_counter() - began > LONG:
            give_memory_back()


def give_memory_back() -> None:
    """What malloc has kept of freed memory goes to the system, where it can (glibc).

    It keeps up to 256 MiB, since a training step asks for as much as the one before (`KEPT` in reproduce.py). After
    PUF's phantom that was 200 of a process's 690 MiB, through figures and other programs' starts.
    """
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def single_threaded() -> Iterator[None]:
    """One thread for torch and for NumPy's linear algebra: sums of floats depend on how they are split."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _controller(len(sys.modules)).limit(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


@lru_cache(maxsize=1)
def _controller(imported: int) -> ThreadpoolController:
    """Of the libraries with threads of their own. To look for them takes 5 ms, and new ones come with new modules."""
    return ThreadpoolController()
