"""What a grid of thousands of short runs costs on a dask cluster beside the runs: runs that only sleep.

    python benchmarks/bench_cluster.py    # some minutes: writes benchmarks/cluster.csv

A scheduler and four workers on this machine, as docs/cluster.md starts them by hand, and a map over 1,000, 3,000 and
10,000 runs of 5 ms each into a new store. Per map: records a second; processor time per run of the scheduler, of the
workers and of the map itself; the peak memory of each; and what lies in the store afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from cluster_runs import nap

from fu_papers.lab.paths import ROOT
from fu_papers.lab.pool import map_runs
from fu_papers.lab.provenance import MIB, machine
from fu_papers.lab.store import RecordStore

OUT = Path(__file__).resolve().parent / "cluster.csv"
SIZES = (1000, 3000, 10000)
WORKERS, MILLISECONDS = 4, 5
LOOK_SECONDS = 0.25


class Watch:
    """Processor seconds since its begin, and peak resident memory, of a group of processes."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self.processes = processes
        self._before = self._seconds()
        self.mib = 0.0

    def look(self) -> None:
        """Note the memory of the largest process now."""
        self.mib = max(self.mib, *(process.memory_info().rss / MIB for process in self.processes))

    def seconds(self) -> float:
        """Of all processes together."""
        return self._seconds() - self._before

    def _seconds(self) -> float:
        return sum(times.user + times.system for times in (process.cpu_times() for process in self.processes))


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, psutil.Process, list[psutil.Process]]]:
    """The address of a scheduler, its process, and those of its workers."""
    file = folder / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}", "OMP_NUM_THREADS": "1"}
    shared = ["--scheduler-file", str(file), "--host", "127.0.0.1"]
    commands = [
        ["scheduler", "--port", "0", "--dashboard-address", "127.0.0.1:0", *shared],
        ["worker", "--nthreads", "1", "--nworkers", str(WORKERS), "--no-dashboard", "--local-directory", str(folder),
         *shared],
    ]  # fmt: skip
    processes = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.log").open("w") as log:
                whole = [sys.executable, "-m", "dask", *command]
                processes.append(
                    subprocess.Popen(whole, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
        scheduler, nanny = (psutil.Process(process.pid) for process in processes)
        _wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        _wait_until(lambda: len(_spawned(nanny)) == WORKERS)
        yield json.loads(file.read_text())["address"], scheduler, _spawned(nanny)
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _spawned(nanny: psutil.Process) -> list[psutil.Process]:
    children = nanny.children(recursive=True)
    return [child for child in children if any("spawn_main" in word for word in child.cmdline())]


def _wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("no scheduler with workers within 120 s")
        time.sleep(0.1)


def measure(runs: int, address: str, groups: dict[str, list[psutil.Process]], folder: Path) -> dict[str, Any]:
    """One map of `runs` runs into a new store in `folder`."""
    os.environ.update(FU_BACKEND="dask", FU_SCHEDULER=address)
    store = RecordStore(folder / f"records-{runs}")
    watches = {name: Watch(processes) for name, processes in groups.items()}
    stop = threading.Event()

    def watching() -> None:
        while not stop.wait(LOOK_SECONDS):
            for watch in watches.values():
                watch.look()

    watcher = threading.Thread(target=watching)
    watcher.start()
    began = time.perf_counter()
    try:
        records = map_runs(nap, [{"number": n, "milliseconds": MILLISECONDS} for n in range(runs)], store=store)
    finally:
        seconds = time.perf_counter() - began
        stop.set()
        watcher.join()
    if [record.metrics["number"] for record in records] != list(range(runs)):
        raise RuntimeError("records are missing or wrong")
    row: dict[str, Any] = {"runs": runs, "s": seconds, "records per s": runs / seconds}
    for name, watch in watches.items():
        row[f"{name}, ms per run"] = 1000 * watch.seconds() / runs
        row[f"{name}, MiB"] = watch.mib
    files = [path for path in store.root.rglob("*") if path.is_file()]
    row["lock files"] = sum(path.suffix == ".lock" for path in files)
    row["store, files"] = len(files)
    row["store, MiB"] = sum(path.stat().st_size for path in files) / MIB
    return row


def main() -> None:
    """Measure every size on one cluster and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="numbers of runs; only printed then")
    sizes = parser.parse_args().sizes
    os.environ.setdefault("FU_PROGRESS", "text")
    rows = []
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as (address, scheduler, workers):
        groups = {"scheduler": [scheduler], "workers": workers, "map": [psutil.Process()]}
        for runs in sizes:
            rows.append(measure(runs, address, groups, Path(name)))
            print(rows[-1], flush=True)
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    if tuple(sizes) == SIZES:
        note = f"# {WORKERS} workers, runs of {MILLISECONDS} ms; {machine()['cpu']}, {os.cpu_count()} cores"
        OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.4g')}", encoding="utf-8")


if __name__ == "__main__":
    main()
