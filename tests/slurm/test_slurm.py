"""docs/cluster.md's recipe, word for word, on a Slurm cluster: `make test-slurm`. Not part of `make test`: needs root.

The cluster is that of tests/slurm/cluster.py: two nodes of two CPUs, so four of the recipe's twenty jobs run at a time
and the others wait in the queue.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest

from fu_papers.lab.paths import ROOT
from fu_papers.lab.pool import map_runs
from fu_papers.lab.store import RecordStore
from fu_papers.study import Study
from tests import toy_runs
from tests.puf_lab import experiment
from tests.slurm.cluster import CPUS, NODES, ON_CLUSTER

# A login node has a Slurm, too, but no test may ask it for jobs.
pytestmark = pytest.mark.skipif(
    ON_CLUSTER not in os.environ, reason="needs a Slurm cluster of its own: make test-slurm"
)

JOBS = 20  # that the recipe asks for
AT_A_TIME = CPUS * len(NODES)  # that the two nodes can run
PATIENCE = 300  # seconds; the processors may be busy
TINY = experiment(
    ["digits/iid/softmax_regression"], profile="quick", clients=3, n_train=90, n_val=30, n_test=60, rounds=2,
    batch_size=20, recovery_cap=2, mode_rounds_d=1, mode_rounds_m=1, fed_au_epochs=1,
)  # fmt: skip


def recipe():
    """The Python under "Slurm" in docs/cluster.md, as printed there."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Slurm\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    [code] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return code


def wait_until(condition, seconds=PATIENCE):
    """The first true value of `condition()`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def jobs(state):
    """The numbers of our jobs in a state of Slurm's, such as RUNNING, in order."""
    command = ["squeue", "--noheader", f"--states={state}", "--format=%i"]
    return sorted(
        int(word) for word in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The recipe as on a login node: its `process`, the `settings` it has printed, and a `log` of computations."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "recipe.py").write_text(recipe(), encoding="utf-8")
    log = folder / "computations"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FU_", "TOY_"))} | {
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "FU_CHECKPOINT_SECONDS": "0",
        "TOY_LOG": str(log),
    }
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "recipe.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        printed = process.stdout.readline()
        assert printed.startswith("export "), (folder / "errors").read_text()
        yield SimpleNamespace(
            process=process,
            settings=dict(word.split("=", 1) for word in shlex.split(printed)[1:]),
            log=log,
            errors=folder / "errors",
        )
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def on_slurm(cluster, monkeypatch):
    """What the recipe printed is set here, and its jobs may wait in the queue."""
    cluster.log.unlink(missing_ok=True)
    for name, value in cluster.settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FU_WORKER_WAIT", str(PATIENCE))
    return cluster


def owner_of(store, key):
    """The process that computes a run now, and the number of its job; None if nobody does."""
    try:
        pid = json.loads((store.root / "locks" / f"{key}.owner").read_text())["pid"]
        return pid, int(psutil.Process(pid).environ()["SLURM_JOB_ID"])
    except (OSError, ValueError, psutil.Error):
        return None


def under_way(store, without=()):
    """`(key, pid, job)` of a run that has kept a checkpoint and is not finished, in none of the jobs `without`."""
    for path in store.root.glob("checkpoints/[!.]*.safetensors"):
        owner = owner_of(store, path.stem)
        if owner and owner[1] not in without and not (store.root / f"{path.stem}.json").exists():
            return path.stem, *owner
    return None


def test_the_recipe_asks_for_its_jobs_and_says_what_to_set(on_slurm):
    assert on_slurm.settings["FU_BACKEND"] == "dask"
    assert re.fullmatch(r"tcp://10\.0\.0\.1:8786", on_slurm.settings["FU_SCHEDULER"])  # the address of ib0
    wait_until(lambda: len(jobs("RUNNING")) == AT_A_TIME and len(jobs("PENDING")) == JOBS - AT_A_TIME)


def test_a_job_cancelled_and_a_worker_killed_in_the_middle_change_no_record(on_slurm, tmp_path):
    store = RecordStore(tmp_path / "records")
    grid = [{"rounds": 40, "seed": seed, "pause": 0.1} for seed in range(16)]

    def disturb():
        """The runs that lose their worker: one whose job is cancelled, and one whose process is killed."""
        cancelled, _, job = wait_until(lambda: under_way(store))
        before = max(jobs("RUNNING,PENDING"))
        subprocess.run(["scancel", str(job)], check=True)
        killed, pid, _ = wait_until(lambda: under_way(store, without=[job]))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: job not in jobs("RUNNING,COMPLETING"))
        return cancelled, killed, before

    with ThreadPoolExecutor(1) as beside:
        disturbing = beside.submit(disturb)
        records = map_runs(toy_runs.walk, grid, store=store, label="walks")
    cancelled, killed, before = disturbing.result()

    serial = RecordStore(tmp_path / "serial")
    alone = [serial.run(toy_runs.walk, config) for config in grid]
    assert [(r.key, r.config, r.metrics, r.rounds, r.tensors) for r in records] == [
        (r.key, r.config, r.metrics, r.rounds, r.tensors) for r in alone
    ]
    assert {r.key for r in records} == {path.stem for path in store.root.glob("*.json")}
    assert all(store.tensors(r.key)["position"].equal(serial.tensors(r.key)["position"]) for r in records)
    victims = [record.config for record in records if record.key in (cancelled, killed)]
    begun = on_slurm.log.read_text().splitlines()
    assert len(victims) == 2
    assert sorted(begun) == sorted(f"walk {config}" for config in [*grid, *victims])  # those two twice, no other
    assert not list(store.root.glob("checkpoints/*"))
    wait_until(lambda: len(jobs("RUNNING,PENDING")) == JOBS and max(jobs("RUNNING,PENDING")) > before)  # replaced


def test_a_stage_of_a_paper_is_that_of_the_serial_run(on_slurm, tmp_path, monkeypatch):
    there = Study(TINY, RecordStore(tmp_path / "records")).run("unlearning and recovery")
    monkeypatch.delenv("FU_BACKEND")
    here = Study(TINY, RecordStore(tmp_path / "serial"), jobs=1).run("unlearning and recovery")
    assert list(there) == list(here)
    assert len(here) > 5
    for cell, record in here.items():
        found = there[cell]
        assert (found.key, found.config, found.data_hash, found.metrics, found.rounds, found.tensors) == (
            record.key, record.config, record.data_hash, record.metrics, record.rounds, record.tensors
        )  # fmt: skip


def test_ctrl_c_ends_the_jobs(cluster):
    """The last test: it ends the cluster of the others."""
    assert jobs("RUNNING,PENDING")
    cluster.process.send_signal(signal.SIGINT)
    cluster.process.wait(PATIENCE)
    wait_until(lambda: not jobs("RUNNING,PENDING,COMPLETING"))
