"""Map one function over many configs, on all cores or on a cluster. Same bits whatever the number of processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from multiprocessing import active_children
from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError
from tqdm import tqdm as text_bar
from tqdm.auto import tqdm as notebook_or_text_bar

from fu_core.errors import ConfigError, check_choice, check_count
from fu_papers.lab.jobs import default_jobs
from fu_papers.lab.record import Record, RunFunction, data_hash_of, function_name
from fu_papers.lab.store import CommittedStore, NoRecord, RecordStore
from fu_papers.lab.task import Failure, NotHere, Outcome, ShowRunning, Task, attempt

LONGEST_CONFIG = 400  # characters of one that a message shows
BACKENDS = ("loky", "dask")  # processes of this machine, through joblib; workers of $FU_SCHEDULER: docs/cluster.md


def map_runs(
    fn: RunFunction,
    configs: Iterable[Mapping[str, Any]],
    *,
    store: RecordStore,
    jobs: int | None = None,
    label: str = "",
    data_hash: str | None = None,
) -> list[Record]:
    """The records of `fn` for all `configs`, in their order. Finished runs are read, the others computed.

    `fn` must be importable from a module. Every run has one thread, so that its bits do not depend on `jobs`
    (default: `$FU_JOBS`, else the number of cores). `data_hash`: of the data behind the runs, by default what `fn`
    declares.
    If a run fails, the others still finish; then RuntimeError names the failed ones, `NotHere` if each of them says
    that it cannot run here. A killed worker (RuntimeError) and Ctrl-C end the map at once. Finished runs are always
    kept, and the next call resumes the others from their last checkpoint. Of a read-only store, `NoRecord` names those
    that are missing.

    With `FU_BACKEND=dask` the workers of `$FU_SCHEDULER` compute, as many as there are; of `jobs` only 1 counts, as one
    run at a time. A run whose worker dies is then repeated on another one; only if that happens again and again, it
    counts as failed.
    """
    backend = os.environ.get("FU_BACKEND") or "loky"
    check_choice("FU_BACKEND", backend, BACKENDS, ConfigError)
    alone = jobs == 1  # asked for; that this machine has one core says nothing of a cluster
    jobs = default_jobs() if jobs is None else jobs
    check_count("jobs", jobs, error=ConfigError)
    label = label or function_name(fn).rpartition(".")[2]
    configs = list(configs)
    if isinstance(store, CommittedStore):  # before any data_hash: the data may not be here
        return _committed(fn, configs, store, label)
    declared = data_hash is None
    tasks = [
        Task(fn, dict(config), data_hash_of(fn, config) if data_hash is None else data_hash, declared)
        for config in configs
    ]

    done = {task.key: store.get(task.key) for task in tasks}
    missing = list({task.key: task for task in tasks if done[task.key] is None}.values())
    failures = []
    if missing:
        compute = partial(_backend(backend, jobs, alone), missing, store, label)
        with closing(_with_progress(compute, len(done), len(missing), label)) as outcomes:
            for task, outcome in outcomes:
                if isinstance(outcome, Record):
                    done[task.key] = outcome
                else:
                    failures.append((task, outcome))
    if failures:
        raise _failure(failures, label, len(missing))
    return [record for task in tasks if (record := done[task.key]) is not None]


def _committed(
    fn: RunFunction, configs: Sequence[Mapping[str, Any]], store: CommittedStore, label: str
) -> list[Record]:
    found = [store.lookup.get(fn, config) for config in configs]
    missing = [config for config, record in zip(configs, found, strict=True) if record is None]
    if missing:
        raise NoRecord(
            f"{len(missing)} of {len(configs)} runs of {label} have no record in {store.root}, which is read only "
            f"here; run `make reproduce` with the same profile to make them ({store.counting}). "
            f"The first: {_briefly(missing[0])}"
        )
    return [record for record in found if record is not None]


Backend = Callable[[Sequence[Task], RecordStore, str, ShowRunning], Iterator[Outcome]]


def _backend(name: str, jobs: int, alone: bool) -> Backend:
    """What yields the outcomes of tasks in the order in which they arrive; `name` is one of BACKENDS."""
    if name == "loky":
        return partial(_process_outcomes, jobs)
    try:
        from fu_papers.lab.cluster import cluster_outcomes
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'FU_BACKEND={name} needs packages that are not installed ({error}): pip install "fu_core[cluster]"'
        ) from error
    return partial(cluster_outcomes, alone=alone)


def _process_outcomes(
    jobs: int, tasks: Sequence[Task], store: RecordStore, label: str, show_running: ShowRunning
) -> Iterator[Outcome]:
    show_running(jobs)
    workers = min(jobs, len(tasks))
    if jobs == 1 and active_children():  # workers who wait for the next stage would hold memory meanwhile
        get_reusable_executor().shutdown()
    if workers <= 1:
        yield from (attempt(task, store, label) for task in tasks)
        return
    with warnings.catch_warnings(), joblib.parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1):
        # Loky replaces workers that have grown, and loses no run over it: nothing that a reader could act on.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor")
        # One run per message, so that a worker that dies takes down no run but its own.
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1, max_nbytes=None)
        try:
            yield from parallel(joblib.delayed(attempt)(task, store, label) for task in tasks)
        except TerminatedWorkerError as error:
            raise RuntimeError(
                f"a worker process of {label} was killed, perhaps for lack of memory; finished runs are kept: "
                "call again to continue, with a smaller FU_JOBS if memory is short"
            ) from error


def _with_progress(
    compute: Callable[[ShowRunning], Iterator[Outcome]], total: int, missing: int, label: str
) -> Generator[Outcome, None, None]:
    """Pass the outcomes of `compute` on behind a progress bar that starts at the runs already finished."""
    # A notebook run without a screen shows text, which the runner passes on to the terminal; widgets would stay inside.
    bar_type = text_bar if os.environ.get("FU_PROGRESS") == "text" else notebook_or_text_bar
    with bar_type(total=total, initial=total - missing, desc=label, unit="run") as bar:
        workers = 0

        def show_running(count: int) -> None:
            nonlocal workers
            workers = count
            bar.set_postfix_str(f"{min(workers, total - bar.n)} running")

        for outcome in compute(show_running):
            yield outcome
            bar.update()
            show_running(workers)


def _briefly(config: Mapping[str, Any]) -> str:
    """The beginning of a config, which says what a run is about; one of many variants can fill pages."""
    text = str(dict(config))
    return text if len(text) <= LONGEST_CONFIG else f"{text[:LONGEST_CONFIG]} ...}}"


def _failure(failures: Sequence[tuple[Task, Failure]], label: str, attempted: int) -> RuntimeError:
    task, first = next((each for each in failures if not each[1].not_here), failures[0])
    kind = NotHere if first.not_here else RuntimeError
    error = kind(
        f"{len(failures)} of {attempted} runs of {label} failed; the others are kept. "
        f"The first: config {_briefly(task.config)}: {first.message}"
    )
    for failed, failure in failures:
        error.add_note(f"\nconfig {failed.config}\n{failure.traceback}")
    return error
