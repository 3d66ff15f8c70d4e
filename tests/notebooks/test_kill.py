"""kill -9 in the middle of `make reproduce`: called again, it ends with the very files of an undisturbed run."""

import contextlib
import subprocess
import time

import psutil
import pytest

from fu_papers.lab import paths
from tests.notebook_lab import RECORDS, Lab, results

ENOUGH = 8  # records at which the run is killed: all trainings are done, unlearning is under way


def kill_everything(pid):
    """SIGKILL for a process and all that came from it: the kernel has a session of its own, workers have no name.

    Stopped first, so that nobody starts somebody we do not see.
    """
    root, stopped = psutil.Process(pid), set()
    while found := {root, *root.children(recursive=True)} - stopped:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped |= found
    for process in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return stopped


def running(processes):
    _, alive = psutil.wait_procs(processes, timeout=1)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_files_when_called_again(tiny, tmp_path):
    lab = Lab(tmp_path, tiny.data)
    store = lab.runs / "records"
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            lab.command("--jobs", "2"),
            env=lab.environment(), cwd=paths.ROOT, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 180
        while len(list(store.glob("*.json"))) < ENOUGH:
            assert process.poll() is None, f"it ended before it could be killed: {log.read_text()}"
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        killed = kill_everything(process.pid) if process.poll() is None else set()
        process.wait()
    assert len(killed) >= 4  # the runner, its kernel, two workers
    assert not running(killed)

    before = {path.name: path.read_bytes() for path in store.glob("*.json")}
    assert ENOUGH <= len(before) < RECORDS
    done = lab.reproduce("--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert lab.shown() == tiny.shown()  # one process, never interrupted
    assert results(lab.records()) == results(tiny.records())
    assert lab.determined() == tiny.determined()
    assert {name: (store / name).read_bytes() for name in before} == before  # what was finished was not done again
    assert not list(store.rglob("*.part"))
    assert not list((store / "checkpoints").glob("*"))
