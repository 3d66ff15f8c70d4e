"""The runs of a map on the workers of a dask scheduler, `$FU_SCHEDULER`. docs/cluster.md says how to start one.

Queueing runs, moving them and repeating them where a worker dies is dask's work. Ours is to let nobody compute who
would make another record or put it elsewhere, not to wait for ever, and to tell a run that kills its workers from those
that only waited behind it.
"""

from __future__ import annotations

import functools
import gc
import os
import pickle
import socket
import ssl
import sys
import time
import traceback
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from distributed import CancelledError, Client, Future, KilledWorker, Worker, as_completed, get_worker
from distributed.comm import CommClosedError
from tqdm.auto import tqdm

from fu_core.data.datasets import data_dir
from fu_core.errors import ConfigError
from fu_core.precision import precision
from fu_core.version import __version__
from fu_papers.lab.files import written_atomically
from fu_papers.lab.record import data_hash_of
from fu_papers.lab.settings import seconds_setting
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import Failure, Outcome, ShowRunning, Task, attempt

LOOK_SECONDS = 1.0  # between two looks at how many workers there are
POLL_SECONDS = 0.05
RESULT_SECONDS = 10
PUT_BACK = 3  # how often a run is submitted again that had not begun when dask gave it up


def cluster_outcomes(
    tasks: Sequence[Task], store: RecordStore, label: str, show_running: ShowRunning, *, alone: bool = False
) -> Iterator[Outcome]:
    """Outcomes in the order in which they arrive, from all workers of `$FU_SCHEDULER`.

    alone: one run at a time, since its seconds are measured: the next is sent when the last is there.
    When the iterator is closed, runs that have not begun are dropped; the others end where they are, and are kept.
    Raises ConfigError if FU_SCHEDULER or FU_WORKER_WAIT is missing or wrong; RuntimeError without a scheduler, after
    FU_WORKER_WAIT seconds without a worker, and if a worker could not make our records in our store.
    """
    store = RecordStore(store.root.absolute())  # workers run in folders of their own
    with _connected() as client, _probe(store) as probe:
        needs = _Needs(__version__, precision(), probe)
        crew = _Crew(client, show_running)
        while not crew.look():
            time.sleep(POLL_SECONDS)
        _check_everybody(client, needs)

        pending: dict[Future, int] = {}
        submitted = [0] * len(tasks)
        arrivals = as_completed(loop=client.loop)

        def submit(position: int) -> None:
            task = tasks[position]
            # A new key each time: dask takes no result of another map, or of an attempt given up, for this one's.
            key = f"{task.fn.__name__}-{task.key}-{uuid.uuid4().hex}"
            # As bytes: the scheduler reads all arguments, and shall not have to import what the run imports.
            order = pickle.dumps((needs, task, store, label))
            future = client.submit(_attempt_there, order, key=key, priority=-position)
            pending[future] = position
            submitted[position] += 1
            arrivals.add(future)

        waiting = iter(range(len(tasks)))
        for position in islice(waiting, 1 if alone else None):
            submit(position)
        while pending:
            crew.look()
            for future in arrivals.next_batch(block=False):
                position = pending.pop(future)
                outcome = _outcome(future, tasks[position], store, last=submitted[position] > PUT_BACK)
                if outcome is None:
                    submit(position)
                else:
                    for following in islice(waiting, 1):
                        submit(following)
                    yield outcome
            time.sleep(POLL_SECONDS)


# --- scheduler and workers -------------------------------------------------------------------------------------------


@contextmanager
def _connected() -> Iterator[Client]:
    address = os.environ.get("FU_SCHEDULER", "")
    if not address:
        raise ConfigError(
            "FU_BACKEND=dask needs FU_SCHEDULER, the address that `dask scheduler` prints, such as tcp://host:8786; "
            "docs/cluster.md says how to start one"
        )
    try:
        with _nothing_collected():
            client = Client(address, set_as_default=False)  # it waits as long as dask's own setting says
    except (OSError, ValueError, TypeError) as error:
        if address.startswith("tls:") and (problem := _tls_problem(error)):
            raise RuntimeError(
                f"FU_SCHEDULER={address} cannot be used: {problem}; set DASK_DISTRIBUTED__COMM__TLS__CA_FILE, "
                "..._TLS__CLIENT__CERT and ..._TLS__CLIENT__KEY to files of the authority that the scheduler has, as "
                "docs/cluster.md says"
            ) from error
        raise RuntimeError(
            f"no dask scheduler answers at FU_SCHEDULER={address} ({error}); start one with `dask scheduler` and set "
            "FU_SCHEDULER to the address that it prints; one that is there and slow has more time with "
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT=120s"
        ) from error
    with client:
        with suppress(KeyError):  # a scheduler without a dashboard
            _show_once(client.dashboard_link)
        yield client


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Garbage ends now, and none for a while.

    A client that found no scheduler is garbage. Collected while another one starts, it waits for a lock of
    distributed's that the other holds in the same thread: for ever.
    """
    gc.collect()
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()


def _tls_problem(error: Exception) -> str:
    """What is wrong with our certificates or with the scheduler's; an empty text if the error is of another kind."""
    if isinstance(error, TypeError):
        return "no certificates are given"
    if isinstance(error, FileNotFoundError):
        return "a file of our certificates is not there"
    if isinstance(error, ssl.SSLError):
        return f"our certificate cannot be used ({error.reason})"
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        return f"we do not accept the scheduler's certificate ({error.__cause__.verify_message})"
    if isinstance(error, CommClosedError):  # it has hung up, and why is in its own log
        return "the scheduler does not accept our certificate"
    return ""


@functools.cache
def _show_once(dashboard: str) -> None:
    tqdm.write(f"dask dashboard: {dashboard}", file=sys.stderr)


class _Crew:
    """The workers of a scheduler, counted now and then."""

    def __init__(self, client: Client, show_running: ShowRunning) -> None:
        self._client = client
        self._show_running = show_running
        self._patience = seconds_setting("FU_WORKER_WAIT", "60", zero=False)
        self._workers: int | None = None
        self._counted = self._changed = 0.0

    def look(self) -> int:
        """How many workers there are. RuntimeError without a scheduler, or without workers for too long."""
        if self._client.status != "running":
            raise _lost()
        now = time.monotonic()
        if self._workers is not None and now - self._counted < LOOK_SECONDS:
            return self._workers
        try:
            workers = len(self._client.nthreads())
        except OSError as error:
            raise _lost() from error
        self._counted = now
        if workers != self._workers:
            self._changed = now
            self._show_running(workers)
            if not workers:
                tqdm.write(f"no dask worker is there; waiting up to {self._patience:g} s for one", file=sys.stderr)
        self._workers = workers
        if not workers and now - self._changed > self._patience:
            raise RuntimeError(
                f"no dask worker came to {os.environ['FU_SCHEDULER']} within {self._patience:g} s; finished runs are "
                "kept: start workers, `dask worker ADDRESS --nthreads 1 --nworkers 2`, and call again, or wait longer "
                "with FU_WORKER_WAIT (seconds)"
            )
        return workers


def _lost() -> RuntimeError:
    return RuntimeError(
        f"the dask scheduler at {os.environ['FU_SCHEDULER']} went away or dropped our runs; finished runs are kept: "
        "start it again, with workers, and call again to continue"
    )


# --- who may compute -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Needs:
    """What our runs need where they are computed."""

    version: str
    precision: str
    probe: Path  # a file in our store


@contextmanager
def _probe(store: RecordStore) -> Iterator[Path]:
    """A file in the store, of a name that no other folder has."""
    path = store.root / f".probe-{uuid.uuid4().hex}"
    with written_atomically(path) as part:
        part.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _check_everybody(client: Client, needs: _Needs) -> None:
    """RuntimeError unless scheduler and workers have our version, and the workers all else that they need."""
    try:
        version = client.run_on_scheduler(_version)  # it looks up the function that workers are to call
    except (ImportError, AttributeError) as error:
        version = f"none that could be used ({error})"
    if version != needs.version:
        raise RuntimeError(
            f"the dask scheduler at {os.environ['FU_SCHEDULER']} needs fu_core {needs.version}, but has {version}: "
            "start it from the same installation"
        )
    answers = client.run(_unmet, needs, on_error="return")
    problems = [
        f"worker {address}, asked for fu_core {needs.version}: {answer}" if isinstance(answer, Exception) else answer
        for address, answer in answers.items()
        if answer and not isinstance(answer, OSError)  # a worker that has just died
    ]
    if problems:
        raise RuntimeError(f"{len(problems)} of {len(answers)} dask workers cannot compute. The first: {problems[0]}")


def _version() -> str:
    return __version__


def _unmet(needs: _Needs, dask_worker: Worker) -> str:
    """What is missing in this worker, or an empty text."""
    here = f"worker {dask_worker.address} on {socket.gethostname()}"
    if __version__ != needs.version:
        return f"{here} has fu_core {__version__}, not {needs.version}: install the same version there"
    if precision() != needs.precision:
        return f"{here} has FU_PRECISION={precision()}, not {needs.precision}: start workers with the same"
    if dask_worker.state.nthreads != 1:  # runs in one process would change each other's number of torch threads
        return f"{here} has {dask_worker.state.nthreads} threads: start workers with --nthreads 1"
    if not os.access(needs.probe, os.W_OK):
        return (
            f"{here} does not see the folder {needs.probe.parent}, or may not write there: FU_RUNS must be a folder "
            "that all hosts share, under the same path everywhere"
        )
    return ""


# --- one run ---------------------------------------------------------------------------------------------------------


def _attempt_there(order: bytes) -> Outcome:
    """One run, on a worker that may have come after all were asked. ImportError if its function is not there."""
    needs, task, store, label = pickle.loads(order)
    if problem := _unmet(needs, get_worker()) or _other_data(task, get_worker()):
        return task, Failure(problem, "")
    return attempt(task, store, label)


def _other_data(task: Task, dask_worker: Worker) -> str:
    """What is wrong with this worker's data, or an empty text. It reads its own, but the run's key says whose it has.

    A caller's own hash, which no function declares, is not looked at.
    """
    if not task.declared:
        return ""
    try:
        found = data_hash_of(task.fn, task.config)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if found == task.data_hash:
        return ""
    return (
        f"worker {dask_worker.address} on {socket.gethostname()} has other data in {data_dir()}: {found}, not "
        f"{task.data_hash}; start workers with an FU_DATA that has the same files"
    )


def _outcome(future: Future, task: Task, store: RecordStore, last: bool) -> Outcome | None:
    """What came of a run; None if that is unknown, and it is to be submitted again. With `last` only if nothing came.

    When a worker dies, dask suspects every run that was sent there. Only the one under way leaves its owner's name.
    """
    try:
        outcome: Outcome = future.result(timeout=RESULT_SECONDS)
        return outcome
    except TimeoutError:  # the worker died before it could pass on the result, which is in the store
        return None
    except KilledWorker as error:
        if not last and not store.under_way(task.key):
            return None
        return task, Failure(
            f"{error.allowed_failures + 1} workers were killed by it, perhaps for lack of memory; call again to "
            "continue from its last checkpoint, with a larger --memory-limit for `dask worker` if memory is short",
            "",
        )
    except CancelledError as error:
        raise _lost() from error
    except Exception as error:  # before it began, e.g. because the worker has no such function
        return task, Failure(f"{type(error).__name__}: {error}", traceback.format_exc())
