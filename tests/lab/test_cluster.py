"""The map on a dask cluster: a scheduler and two worker processes, what they compute, and what may happen to them."""

import _thread
import gc
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from dask import config as dask_config
from distributed import Client, KilledWorker, LocalCluster

from fu_core.errors import ConfigError, CorruptData
from fu_papers.lab import cluster
from fu_papers.lab.paths import ROOT
from fu_papers.lab.pool import map_runs
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import Task
from tests import toy_runs


def wait_until(condition, seconds=60):
    """The first true value of `condition()`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def dask(*words, environment, log):
    """A process `dask <words>`, in a group of its own."""
    with log.open("w") as file:
        command = [sys.executable, "-m", "dask", *words, "--host", "127.0.0.1"]
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def end(processes):
    """Kill what `dask` has started, and see that nothing of it is left."""
    children = [child for process in processes for child in psutil.Process(process.pid).children(recursive=True)]
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not psutil.wait_procs(children, timeout=10)[1]


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """`address` of a scheduler with two workers; `log` has a line per computation. A run may lose one worker."""
    folder = tmp_path_factory.mktemp("workers")
    address, log = folder / "scheduler.json", folder / "computations"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FU_", "TOY_"))} | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "FU_CHECKPOINT_SECONDS": "0",
        "TOY_LOG": str(log),
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    }
    options = ["--scheduler-file", str(address)]
    processes = [
        dask("scheduler", "--port", "0", "--dashboard-address", "127.0.0.1:0", *options,
             environment=environment, log=folder / "scheduler.log"),
        dask("worker", "--nthreads", "1", "--nworkers", "2", "--no-dashboard", "--local-directory", str(folder),
             *options, environment=environment, log=folder / "worker.log"),
    ]  # fmt: skip
    try:
        wait_until(lambda: address.exists() and address.read_text().endswith("}"))
        yield SimpleNamespace(address=json.loads(address.read_text())["address"], log=log)
    finally:
        end(processes)


@pytest.fixture
def client(workers, monkeypatch):
    """Both workers at the service of this test's maps, and our own look at them."""
    workers.log.unlink(missing_ok=True)
    monkeypatch.setenv("FU_BACKEND", "dask")
    monkeypatch.setenv("FU_SCHEDULER", workers.address)
    with Client(workers.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)  # one that the last test has killed is being started again
        yield client


@pytest.fixture
def scheduler(monkeypatch):
    """A scheduler inside this process, to which a test adds what it wants."""
    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address=None, threads_per_worker=1
    ) as local:
        monkeypatch.setenv("FU_BACKEND", "dask")
        monkeypatch.setenv("FU_SCHEDULER", local.scheduler_address)
        yield local


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "records")


def values(count):
    return [{"value": value} for value in range(count)]


def walks(count, rounds=10, pause=0.03):
    return [{"rounds": rounds, "seed": seed, "pause": pause} for seed in range(count)]


def test_a_failing_run_is_named_and_the_others_are_kept(client, store):
    with pytest.raises(RuntimeError, match=r"2 of 5 runs of parity failed.*ValueError: [13] is odd") as info:
        map_runs(toy_runs.fails_on_odd, values(5), store=store, label="parity")
    assert any("in fails_on_odd" in note for note in info.value.__notes__)
    assert len(store.finished(toy_runs.fails_on_odd)) == 3


def test_a_function_that_workers_cannot_import_is_named(client, store, tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("def nothing(config, context):\n    return {}, None\n")
    monkeypatch.syspath_prepend(tmp_path)
    from only_here import nothing

    with pytest.raises(RuntimeError, match=r"1 of 1 runs of nothing failed.*No module named 'only_here'"):
        map_runs(nothing, [{}], store=store)


def test_every_run_has_one_thread(client, store):
    records = map_runs(toy_runs.threads, values(3), store=store)
    assert [record.metrics["threads"] for record in records] == [1, 1, 1]


def test_what_is_timed_runs_alone(client, store):
    """Two workers are there, and would make each other slower."""
    grid = [{"value": value, "pause": 0.3} for value in range(4)]

    def overlaps(records):
        spans = sorted((r.metrics["began"], r.metrics["ended"]) for r in records)
        return sum(one[1] > other[0] for one, other in pairwise(spans))

    assert overlaps(map_runs(toy_runs.interval, grid, store=store, jobs=1)) == 0
    assert overlaps(map_runs(toy_runs.interval, [{**config, "again": 1} for config in grid], store=store)) > 0


def test_workers_find_a_store_given_by_a_relative_path(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    map_runs(toy_runs.number, values(1), store=RecordStore(Path("records")))
    assert len(list((tmp_path / "records").glob("*.json"))) == 1


def test_equal_runs_at_the_same_time_fill_the_store_of_each_map(client, tmp_path):
    stores = [RecordStore(tmp_path / name) for name in ("one", "two")]
    with ThreadPoolExecutor(2) as both:
        maps = [both.submit(map_runs, toy_runs.walk, walks(1), store=store) for store in stores]
    for store, done in zip(stores, maps, strict=True):
        [record] = done.result()
        assert store.get(record.key) == record


@pytest.fixture
def interruptible():
    """A process started in the background ignores Ctrl-C, and so do its tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_drops_what_has_not_begun_and_keeps_what_has(interruptible, client, workers, store):
    heard = threading.Event()

    def interrupt():
        wait_until(lambda: len(list(store.root.glob("*.json"))) >= 3)
        _thread.interrupt_main()
        while not heard.wait(10):  # Python drops an interrupt that comes while it collects garbage
            _thread.interrupt_main()

    with ThreadPoolExecutor(1) as beside:
        beside.submit(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                map_runs(toy_runs.walk, walks(200), store=store)  # more than finish before anybody looks
        finally:
            heard.set()
    wait_until(lambda: not client.run_on_scheduler(tasks))
    wait_until(lambda: len(list(store.root.glob("*.json"))) == len(workers.log.read_text().splitlines()))
    finished = sorted(record.config["seed"] for record in store.finished(toy_runs.walk).values())
    assert 3 <= len(finished) < 200
    assert finished[-1] < len(finished) + 4  # runs begin in the order of the configs, a few at a time
    assert not list(store.root.glob(".probe-*"))


def tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


def test_the_bar_counts_the_workers_and_the_dashboard_is_shown_once(client, store, monkeypatch, capsys):
    monkeypatch.setenv("FU_PROGRESS", "text")
    cluster._show_once.cache_clear()
    for config in values(2):
        map_runs(toy_runs.number, [config], store=store)
    map_runs(toy_runs.walk, walks(3), store=store)
    shown = capsys.readouterr().err
    assert len(re.findall(r"dask dashboard: http://127\.0\.0\.1:\d+/status", shown)) == 1
    assert "1 running" in shown
    assert "2 running" in shown


# --- workers that are refused -----------------------------------------------------------------------------------------


def test_scheduler_and_workers_of_another_version_are_refused(client, store, monkeypatch):
    monkeypatch.setattr(cluster, "__version__", "9.9.9")
    with pytest.raises(RuntimeError, match=r"dask scheduler at tcp.* needs fu_core 9\.9\.9, but has \d"):
        map_runs(toy_runs.number, values(1), store=store)
    monkeypatch.setattr(cluster, "_version", lambda: "9.9.9")
    with pytest.raises(RuntimeError, match=r"2 of 2 dask workers.* on .* has fu_core \d.*, not 9\.9\.9: install"):
        map_runs(toy_runs.number, values(1), store=store)


def test_workers_of_another_precision_are_refused(client, store, monkeypatch):
    monkeypatch.setenv("FU_PRECISION", "bf16")
    with pytest.raises(RuntimeError, match=r"2 of 2 dask workers.* has FU_PRECISION=float32, not bf16"):
        map_runs(toy_runs.number, values(1), store=store)


def test_workers_with_other_data_do_not_file_their_results_under_our_key(client, store, monkeypatch):
    """The key has the hash of our data: it would be found as a result on them."""
    monkeypatch.setenv("TOY_DATA", "ours")  # theirs is another
    with pytest.raises(
        RuntimeError, match=r"2 of 2 runs of of_file failed.*worker tcp.* has other data in .*: , not ours; .*FU_DATA"
    ):
        map_runs(toy_runs.of_file, values(2), store=store)
    assert not list(store.root.glob("*.json"))
    [told] = map_runs(toy_runs.of_file, values(1), store=store, data_hash="told")  # which nobody could look up
    assert told.data_hash == "told"
    monkeypatch.delenv("TOY_DATA")
    [same] = map_runs(toy_runs.of_file, values(1), store=store)
    assert same.metrics == {"data": ""}


def test_data_that_a_worker_cannot_read_are_named(monkeypatch):
    def damaged(config):
        raise CorruptData("mnist.npz is not a usable cache")

    monkeypatch.setattr(toy_runs.of_file, "data", damaged)
    problem = cluster._other_data(Task(toy_runs.of_file, {}, "ours"), SimpleNamespace(address="tcp://there"))
    assert re.search(r"worker tcp://there on .*: CorruptData: mnist.npz is not .*, not ours; .*FU_DATA", problem)


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs a path that each process sees differently")
def test_workers_that_do_not_see_the_store_are_refused(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"2 of 2 dask workers.* on .* does not see the folder .*records.*FU_RUNS"):
        map_runs(toy_runs.number, values(1), store=RecordStore(Path("/proc/self/cwd/records")))


def test_a_worker_that_came_later_is_asked_too(client, store):
    needs = cluster._Needs(cluster.__version__, "float32", store.root / "not there")
    order = pickle.dumps((needs, Task(toy_runs.number, {"value": 1}, ""), store, "late"))
    _, outcome = client.submit(cluster._attempt_there, order).result()
    assert re.search(r"worker tcp://.* does not see the folder", outcome.message)
    assert not store.root.exists()


# --- a death ----------------------------------------------------------------------------------------------------------


def test_a_worker_killed_in_the_middle_changes_no_record(client, workers, store, tmp_path):
    grid = walks(5)

    def kill_the_first():
        """SIGKILL for whoever keeps the first checkpoint; the key of its run, and whether that was unfinished."""
        [key, *_] = wait_until(lambda: [path.stem for path in store.root.glob("checkpoints/*.safetensors")])
        owner = json.loads((store.root / "locks" / f"{key}.owner").read_text())
        os.kill(owner["pid"], signal.SIGKILL)
        return key, not (store.root / f"{key}.json").exists()

    with ThreadPoolExecutor(1) as beside:
        killing = beside.submit(kill_the_first)
        records = map_runs(toy_runs.walk, grid, store=store)
    key, unfinished = killing.result()

    serial = RecordStore(tmp_path / "serial")
    alone = [serial.run(toy_runs.walk, config) for config in grid]
    assert [(r.key, r.config, r.metrics, r.rounds, r.tensors) for r in records] == [
        (r.key, r.config, r.metrics, r.rounds, r.tensors) for r in alone
    ]
    assert all(store.tensors(r.key)["position"].equal(serial.tensors(r.key)["position"]) for r in records)
    assert unfinished
    [victim] = [record.config for record in records if record.key == key]
    begun = workers.log.read_text().splitlines()
    assert sorted(begun) == sorted(f"walk {config}" for config in [*grid, victim])  # one of them twice, no other
    assert not list(store.root.glob("checkpoints/*"))
    assert not list(store.root.glob(".probe-*"))


# --- without the two workers, while the dead one comes back -----------------------------------------------------------


def test_finished_runs_need_no_scheduler(store, monkeypatch):
    records = map_runs(toy_runs.number, values(2), store=store, jobs=1)
    monkeypatch.setenv("FU_BACKEND", "dask")
    monkeypatch.delenv("FU_SCHEDULER", raising=False)
    assert map_runs(toy_runs.number, values(2), store=store) == records


def test_without_a_scheduler_the_error_says_how_to_start_one(store, monkeypatch):
    monkeypatch.setenv("FU_BACKEND", "dask")
    monkeypatch.delenv("FU_SCHEDULER", raising=False)
    with pytest.raises(ConfigError, match=r"FU_SCHEDULER.*dask scheduler.*docs/cluster.md"):
        map_runs(toy_runs.number, values(1), store=store)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, but nobody listens
        monkeypatch.setenv("FU_SCHEDULER", f"tcp://127.0.0.1:{nobody.getsockname()[1]}")
        said = r"no dask scheduler answers at FU_SCHEDULER=tcp.*`dask scheduler`.*more time with DASK_"
        with dask_config.set({"distributed.comm.timeouts.connect": "0.5s"}), pytest.raises(RuntimeError, match=said):
            map_runs(toy_runs.number, values(1), store=store)
    monkeypatch.setenv("FU_SCHEDULER", "nonsense://")
    with pytest.raises(RuntimeError, match="no dask scheduler answers at FU_SCHEDULER=nonsense"):
        map_runs(toy_runs.number, values(1), store=store)


def test_without_workers_it_waits_says_so_and_gives_up(scheduler, store, monkeypatch, capsys):
    monkeypatch.setenv("FU_WORKER_WAIT", "1.5")
    with pytest.raises(RuntimeError, match=r"no dask worker.*1\.5 s.*dask worker ADDRESS.*FU_WORKER_WAIT"):
        map_runs(toy_runs.number, values(1), store=store)
    assert "waiting up to 1.5 s" in capsys.readouterr().err
    monkeypatch.setenv("FU_WORKER_WAIT", "soon")
    with pytest.raises(ConfigError, match="FU_WORKER_WAIT must be a number of seconds > 0, got 'soon'"):
        map_runs(toy_runs.number, values(1), store=store)


def test_a_worker_that_comes_late_is_waited_for(scheduler, store, monkeypatch):
    with ThreadPoolExecutor(1) as beside:
        beside.submit(lambda: (time.sleep(1), scheduler.scale(1)))
        [record] = map_runs(toy_runs.number, values(1), store=store)
    assert record.metrics == {"value": 0}


def test_a_scheduler_lost_in_the_middle_is_an_error_and_finished_runs_are_kept(scheduler, store):
    scheduler.scale(1)
    with ThreadPoolExecutor(1) as beside:
        beside.submit(lambda: (wait_until(lambda: list(store.root.glob("*.json"))), scheduler.close()))
        with pytest.raises(RuntimeError, match=r"dask scheduler at tcp.* went away.*call again"):
            map_runs(toy_runs.walk, walks(20), store=store)
    assert list(store.root.glob("*.json"))


def test_workers_with_several_threads_are_refused(scheduler, store):
    scheduler.worker_spec = {}
    scheduler.new_spec["options"]["nthreads"] = 2
    scheduler.scale(1)
    with pytest.raises(RuntimeError, match=r"1 of 1 dask workers.*has 2 threads: start workers with --nthreads 1"):
        map_runs(toy_runs.number, values(1), store=store)


def test_dask_must_be_installed(store, monkeypatch):
    monkeypatch.setenv("FU_BACKEND", "dask")
    monkeypatch.setenv("FU_SCHEDULER", "tcp://127.0.0.1:1")
    monkeypatch.delitem(sys.modules, "fu_papers.lab.cluster")
    monkeypatch.delattr("fu_papers.lab.cluster")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=re.escape('pip install "fu_core[cluster]"')):
        map_runs(toy_runs.number, values(1), store=store)


def test_a_misspelt_backend_is_a_config_error(store, monkeypatch):
    monkeypatch.setenv("FU_BACKEND", "dusk")
    with pytest.raises(ConfigError, match=r"FU_BACKEND must be one of 'loky', 'dask', got 'dusk'; did you mean 'dask'"):
        map_runs(toy_runs.number, values(1), store=store)


def test_a_run_given_up_before_it_began_is_submitted_again_but_not_for_ever(store):
    task = Task(toy_runs.number, {"value": 0}, "")
    given_up, lost = FailedFuture(KilledWorker("key", None, 3)), FailedFuture(TimeoutError())
    assert cluster._outcome(given_up, task, store, last=False) is None
    _, failure = cluster._outcome(given_up, task, store, last=True)
    assert "4 workers were killed" in failure.message
    assert cluster._outcome(lost, task, store, last=True) is None  # its result is in the store


@dataclass
class FailedFuture:
    error: Exception

    def result(self, timeout):
        raise self.error


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_a_run_that_always_kills_its_worker_is_named_and_no_other_is_blamed(client, workers, store):
    grid = [{"value": value, "pause": 0.3} for value in (2, 0, 1, 3, 4, 5)]  # others wait where it dies
    with pytest.raises(
        RuntimeError, match=r"1 of 6 runs of deaths failed.*'value': 2.*2 workers were killed.*memory.*call again"
    ):
        map_runs(toy_runs.dies_on_two, grid, store=store, label="deaths")
    kept = store.finished(toy_runs.dies_on_two).values()
    assert sorted(record.metrics["value"] for record in kept) == [0, 1, 3, 4, 5]
    assert workers.log.read_text().count("'value': 2") == 2


# --- TLS --------------------------------------------------------------------------------------------------------------


def certificates(folder, name):
    """dask's settings for an authority and a certificate that it has signed, both made now, in files in `folder`."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    def certificate(subject, issuer, key, signer, ca):
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (subject, issuer)]
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key.public_key())
        builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.serial_number(x509.random_serial_number())
        return builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True).sign(
            signer, hashes.SHA256()
        )

    authority, own = generate_private_key(SECP256R1()), generate_private_key(SECP256R1())
    files = {part: folder / f"{name}-{part}.pem" for part in ("ca", "cert", "key")}
    files["ca"].write_bytes(certificate(name, name, authority, authority, ca=True).public_bytes(Encoding.PEM))
    files["cert"].write_bytes(certificate(f"{name} 1", name, own, authority, ca=False).public_bytes(Encoding.PEM))
    files["key"].write_bytes(own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {"ca-file": str(files["ca"])} | {
        f"{role}.{part}": str(files[part]) for role in ("scheduler", "worker", "client") for part in ("cert", "key")
    }


def tls_variables(settings):
    """dask's settings as environment variables."""
    names = {name: name.upper().replace(".", "__").replace("-", "_") for name in settings}
    return {f"DASK_DISTRIBUTED__COMM__TLS__{names[name]}": value for name, value in settings.items()}


def using(settings):
    """dask's settings in this process, for a while; those given are the only ones."""
    everything = dict.fromkeys(("ca-file", "client.cert", "client.key"))
    return dask_config.set({f"distributed.comm.tls.{name}": path for name, path in (everything | settings).items()})


@pytest.fixture
def with_tls(tmp_path, monkeypatch):
    """A scheduler and a worker that know `ours`, and a worker that has `other` certificates, with its `log`."""
    ours, other = certificates(tmp_path, "ours"), certificates(tmp_path, "other")
    address, log = tmp_path / "scheduler.json", tmp_path / "other.log"
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("FU_", "TOY_", "DASK_"))}
    usual |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    known, unknown = usual | tls_variables(ours), usual | tls_variables(other)
    worker = ["worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path)]
    processes = [
        dask("scheduler", "--protocol", "tls", "--port", "0", "--dashboard-address", "127.0.0.1:0",
             "--scheduler-file", str(address), environment=known, log=tmp_path / "scheduler.log"),
    ]  # fmt: skip
    try:
        wait_until(lambda: address.exists() and address.read_text().endswith("}"))
        url = json.loads(address.read_text())["address"]
        processes.append(dask(*worker, url, "--protocol", "tls", environment=known, log=tmp_path / "ours.log"))
        processes.append(dask(*worker, url, "--protocol", "tls", environment=unknown, log=log))
        monkeypatch.setenv("FU_BACKEND", "dask")
        monkeypatch.setenv("FU_SCHEDULER", url)
        yield SimpleNamespace(address=url, ours=ours, other=other, log=log)
    finally:
        end(processes)


def test_tls_with_certificates_of_another_authority_or_none_is_refused_in_our_words(with_tls, store, tmp_path):
    assert with_tls.address.startswith("tls://")
    with using(with_tls.ours):
        [record] = map_runs(toy_runs.walk, walks(1), store=store)
        wait_until(lambda: "certificate" in with_tls.log.read_text())  # the other worker has been refused by now
        with Client(with_tls.address, set_as_default=False) as client:
            assert len(client.nthreads()) == 1
    assert record.metrics == RecordStore(tmp_path / "serial").run(toy_runs.walk, walks(1)[0]).metrics

    ours, other = with_tls.ours, with_tls.other
    for settings, problem in (
        ({}, "no certificates are given"),
        (other, r"we do not accept the scheduler's certificate \(.+\)"),
        (other | {"ca-file": ours["ca-file"]}, "the scheduler does not accept our certificate"),
        (ours | {"client.key": other["client.key"]}, r"our certificate cannot be used \(\w+\)"),
        (ours | {"client.cert": str(tmp_path / "nothing.pem")}, "a file of our certificates is not there"),
    ):
        with using(settings), pytest.raises(
            RuntimeError, match=rf"FU_SCHEDULER=tls://\S+ cannot be used: {problem}; set DASK_\S+TLS__CA_FILE"
        ):  # fmt: skip
            map_runs(toy_runs.number, values(1), store=store)


def test_what_is_garbage_ends_before_a_client_starts_and_not_within(monkeypatch):
    """A client that never connected, collected while another starts, would wait for itself."""
    ended = []

    class NeverConnected:
        def __init__(self):
            self.itself = self  # only the collector finds it

        def __del__(self):
            ended.append(True)

    def starting(*_, **__):
        assert ended
        assert not gc.isenabled()
        raise OSError("nobody there")

    monkeypatch.setenv("FU_SCHEDULER", "tcp://nobody:1")
    monkeypatch.setattr(cluster, "Client", starting)
    NeverConnected()
    with pytest.raises(RuntimeError, match="no dask scheduler answers"), cluster._connected():
        pass
    assert gc.isenabled()
