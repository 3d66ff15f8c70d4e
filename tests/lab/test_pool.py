"""The process map: order, same bits on any number of cores, and what survives when something goes wrong."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from fu_core.errors import ConfigError
from fu_papers.lab.jobs import default_jobs
from fu_papers.lab.paths import ROOT
from fu_papers.lab.pool import map_runs
from fu_papers.lab.reproduce import KEPT
from fu_papers.lab.store import CommittedStore, RecordStore
from fu_papers.lab.task import single_threaded
from tests import toy_runs


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "records")


def values(count):
    return [{"value": value} for value in range(count)]


def test_results_come_in_config_order_and_have_the_same_bits_for_any_number_of_jobs(tmp_path):
    configs = [{"rounds": rounds, "seed": seed} for seed in (3, 1) for rounds in (6, 1, 3)]
    one = map_runs(toy_runs.walk, configs, store=RecordStore(tmp_path / "one"), jobs=1)
    two = map_runs(toy_runs.walk, configs, store=RecordStore(tmp_path / "two"), jobs=2)
    assert [record.config for record in two] == configs
    assert [(r.key, r.metrics, r.rounds, r.tensors) for r in one] == [
        (r.key, r.metrics, r.rounds, r.tensors) for r in two
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_run_has_one_thread_and_the_caller_keeps_its_own(store, jobs):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        records = map_runs(toy_runs.threads, values(2), store=store, jobs=jobs)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [record.metrics["threads"] for record in records] == [1, 1]
    with single_threaded():
        assert torch.get_num_threads() == 1


def test_finished_runs_are_read_without_starting_workers(store, monkeypatch):
    first = map_runs(toy_runs.number, values(3), store=store, jobs=1)
    monkeypatch.setattr("joblib.Parallel", None)
    assert map_runs(toy_runs.number, values(3), store=store, jobs=2) == first


def test_one_run_at_a_time_has_the_memory_of_idle_workers(store):
    """Flower's simulation at the end of PUF's notebook was 3.1 GiB beside two workers who had nothing to do."""
    this = psutil.Process()
    workers = {r.metrics["pid"] for r in map_runs(toy_runs.process, values(4), store=store, jobs=2)}
    assert workers <= {child.pid for child in this.children()}
    [record] = map_runs(toy_runs.process, [{"value": 4}], store=store, jobs=1)
    assert record.metrics["pid"] == this.pid
    assert not workers & {child.pid for child in this.children()}
    later = map_runs(toy_runs.process, [{"value": 5}, {"value": 6}], store=store, jobs=2)  # and others are hired
    assert this.pid not in {r.metrics["pid"] for r in later}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library decides by itself")
def test_a_long_run_gives_its_memory_back(tmp_path):
    """Two notebooks' processes kept up to 256 MiB each that nobody used, while Flower's simulation started."""
    script = (
        "import sys; from pathlib import Path; import psutil\n"
        "from fu_papers.lab import task; from fu_papers.lab.pool import map_runs\n"
        "from fu_papers.lab.store import RecordStore; from tests import toy_runs\n"
        "task.LONG = float(sys.argv[2])\n"
        "before = psutil.Process().memory_info().rss\n"
        "map_runs(toy_runs.hungry, [{'mib': 200}], store=RecordStore(Path(sys.argv[1])), jobs=1)\n"
        "print((psutil.Process().memory_info().rss - before) / 2**20)"
    )
    kept = {
        long: float(
            subprocess.run(
                [sys.executable, "-c", script, str(tmp_path / long), long],
                cwd=ROOT, env={**os.environ, **KEPT, "FU_PROGRESS": "off"}, capture_output=True, text=True, check=True,
            ).stdout
        )
        for long in ("0", "inf")
    }  # fmt: skip
    assert kept["inf"] > 150  # what is asked of malloc has a meaning
    assert kept["0"] < 60


def test_equal_configs_are_computed_once(store, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    records = map_runs(toy_runs.number, [*values(2), *values(2)], store=store, jobs=1)
    assert [record.metrics["value"] for record in records] == [0, 1, 0, 1]
    assert len((tmp_path / "log").read_text().splitlines()) == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_is_of_the_data_that_its_function_declares_or_of_those_it_is_told(store, jobs):
    records = map_runs(toy_runs.on_data, values(2), store=store, jobs=jobs)
    assert [record.data_hash for record in records] == ["d0", "d1"]
    assert [store.run(toy_runs.on_data, config) for config in values(2)] == records
    assert [r.data_hash for r in map_runs(toy_runs.on_data, values(2), store=store, data_hash="x")] == ["x", "x"]
    assert [r.data_hash for r in map_runs(toy_runs.number, values(1), store=store, jobs=jobs)] == [""]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failing_run_is_named_and_the_others_are_kept(store, jobs):
    with pytest.raises(
        RuntimeError, match=r"2 of 5 runs of parity failed.*'value': [13].*ValueError: [13] is odd"
    ) as info:
        map_runs(toy_runs.fails_on_odd, values(5), store=store, jobs=jobs, label="parity")
    assert any("in fails_on_odd" in note for note in info.value.__notes__)
    assert len(list(store.root.glob("*.json"))) == 3


def test_a_config_that_fills_pages_does_not_hide_what_is_wrong(store):
    config = {"value": 1, **{f"variant {k}": "x" * 50 for k in range(100)}}
    with pytest.raises(RuntimeError) as info:
        map_runs(toy_runs.fails_on_odd, [config], store=store, jobs=1, label="parity")
    assert len(str(info.value)) < 600
    assert str(info.value).endswith("ValueError: 1 is odd")
    assert "variant 99" in info.value.__notes__[0]


def test_a_killed_worker_is_reported_and_the_map_can_go_on(store):
    with pytest.raises(RuntimeError, match=r"worker process of deaths was killed.*call again"):
        map_runs(toy_runs.dies_on_two, values(4), store=store, jobs=2, label="deaths")
    records = map_runs(toy_runs.number, values(3), store=store, jobs=2)
    assert [record.metrics["value"] for record in records] == [0, 1, 2]


def test_ctrl_c_ends_the_workers_and_keeps_checkpoints(store, tmp_path):
    script = tmp_path / "interrupted.py"
    script.write_text(
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tests import toy_runs\n"
        "from fu_papers.lab.pool import map_runs; from fu_papers.lab.store import RecordStore\n"
        "configs = [{'rounds': 1000, 'seed': seed, 'pause': 0.05} for seed in range(2)]\n"
        f"map_runs(toy_runs.walk, configs, store=RecordStore(Path({str(store.root)!r})), jobs=2)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.DEVNULL, start_new_session=True)
    checkpoints = store.root / "checkpoints"
    deadline = time.monotonic() + 60
    while len(list(checkpoints.glob("*.safetensors"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) != 0
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert len(list(checkpoints.glob("*.safetensors"))) == 2


def test_jobs_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("FU_JOBS", "3")
    assert default_jobs() == 3
    monkeypatch.setenv("FU_JOBS", "")
    assert 1 <= default_jobs() <= os.cpu_count()
    for wrong in ("0", "two", "-1"):
        monkeypatch.setenv("FU_JOBS", wrong)
        with pytest.raises(ConfigError, match="FU_JOBS"):
            default_jobs()


def test_unknown_backend_and_impossible_jobs_are_config_errors(store, monkeypatch):
    with pytest.raises(ConfigError, match="jobs"):
        map_runs(toy_runs.number, values(1), store=store, jobs=0)
    monkeypatch.setenv("FU_BACKEND", "lokey")
    with pytest.raises(ConfigError, match="FU_BACKEND must be one of 'loky'"):
        map_runs(toy_runs.number, values(1), store=store)


def test_read_only_store_computes_nothing(store, tmp_path):
    made = map_runs(toy_runs.number, values(2), store=store, jobs=1)
    store.export([record.key for record in made], tmp_path / "figures")
    committed = CommittedStore(tmp_path / "figures")
    assert map_runs(toy_runs.number, values(2), store=committed) == made
    with pytest.raises(RuntimeError, match="make reproduce"):
        map_runs(toy_runs.number, values(3), store=committed)
