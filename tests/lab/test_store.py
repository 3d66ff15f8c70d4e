"""Run records: keys, whole files or none, resuming, and one computation per run."""

import errno
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fu_core.errors import ConfigError, CorruptData, NumericalFailure, StorageError
from fu_core.version import __version__
from fu_papers.lab import context as context_module
from fu_papers.lab import files as files_module
from fu_papers.lab import provenance
from fu_papers.lab.committed import read_records
from fu_papers.lab.context import RunContext
from fu_papers.lab.files import file_sha256, written_atomically
from fu_papers.lab.paths import ROOT
from fu_papers.lab.record import function_name, key_of, needs_of, run_key
from fu_papers.lab.store import CommittedStore, RecordStore, open_store
from fu_papers.lab.task import Task
from tests import toy_runs

WALK = {"rounds": 4, "seed": 1}


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "records")


@pytest.fixture
def computed(tmp_path, monkeypatch):
    """A function that tells how many runs have been computed in this test, in all processes."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("TOY_LOG", str(log))
    return lambda: len(log.read_text().splitlines())


def in_new_process(store, config, **environment):
    """Start `store.run(toy_runs.walk, config)` in a process of its own."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path; from tests import toy_runs; from fu_papers.lab.store import RecordStore\n"
        f"RecordStore(Path({str(store.root)!r})).run(toy_runs.walk, {config!r}, label='the walk')"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | environment, stderr=subprocess.PIPE, text=True
    )


def files(folder):
    """Everything below `folder` but locks."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and "locks" not in p.parts)


def result(record):
    return record.key, record.metrics, record.rounds, record.tensors


# --- keys ---


def test_version_equals_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert __version__ == project["version"]


def test_key_ignores_order_and_nothing_else():
    key = run_key("m.f", {"a": 1, "b": {"c": [1.5, None], "d": "x"}}, "data")
    assert re.fullmatch("[0-9a-f]{16,}", key)
    assert key == run_key("m.f", {"b": {"d": "x", "c": [1.5, None]}, "a": 1}, "data")
    others = [
        run_key("m.g", {"a": 1, "b": {"c": [1.5, None], "d": "x"}}, "data"),
        run_key("m.f", {"a": 2, "b": {"c": [1.5, None], "d": "x"}}, "data"),
        run_key("m.f", {"a": 1, "b": {"c": [None, 1.5], "d": "x"}}, "data"),
        run_key("m.f", {"a": 1, "b": {"c": [1.5, None], "d": "x"}}, "other data"),
    ]
    assert len({key, *others}) == 5


def test_key_depends_on_the_version(monkeypatch):
    key = run_key("m.f", {})
    monkeypatch.setattr("fu_papers.lab.record.__version__", "0.0.0")
    assert run_key("m.f", {}) != key


def test_committed_keys_are_what_they_were():
    """Whoever changes how a key is made makes every committed record a stranger."""
    for folder in sorted((ROOT / "figures").glob("*/*/records.jsonl")):
        for record in read_records(folder.parent).values():
            assert run_key(record.function, record.config, record.data_hash) == record.key, folder
            break  # the first of each: they are thousands, made alike
    assert run_key("m.f", {"a": 1}, "d") == "da4219084b1efb39c0c2"


def test_a_raised_revision_changes_the_keys_of_its_runs_and_of_those_that_need_them(tmp_path, monkeypatch):
    def declared(walks, afters):
        (tmp_path / "revised.py").write_text(
            "from fu_papers.lab.record import run_function\n"
            f"@run_function('toy.walk', revision={walks})\n"
            "def walk(config, context):\n    return {'revision': 1}, None\n"
            "def needs(config):\n    return {'walk': (walk, {'seed': config['seed']})}\n"
            f"@run_function('toy.end', needs=needs, revision={afters})\n"
            "def end(config, context):\n    return {}, None\n"
            "@run_function('toy.other')\n"
            "def other(config, context):\n    return {}, None\n"
        )
        (tmp_path / "__pycache__").exists() and shutil.rmtree(tmp_path / "__pycache__")
        sys.modules.pop("revised", None)
        importlib.invalidate_caches()
        revised = importlib.import_module("revised")
        return [key_of(fn, {"seed": 1}, "d") for fn in (revised.walk, revised.end, revised.other)]

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("fu_papers.lab.record._raised", set())
    first = declared(1, 1)
    assert first == [run_key(f"toy.{name}", {"seed": 1}, "d") for name in ("walk", "end", "other")]
    walk, end, other = declared(2, 1)
    assert walk != first[0]
    assert end != first[1]
    assert other == first[2]
    assert declared(1, 2) == [first[0], declared(1, 2)[1], first[2]]
    assert len({first[1], end, declared(1, 2)[1], declared(2, 2)[1], declared(3, 1)[1]}) == 5
    with pytest.raises(ConfigError, match=r"revision of toy\.walk must be a whole number >= 1, got 0"):
        declared(0, 1)


def test_a_revision_may_be_of_some_configs_alone(store, computed, monkeypatch):
    first, other = store.run(toy_runs.walk, WALK), store.run(toy_runs.walk, {**WALK, "seed": WALK["seed"] + 1})
    monkeypatch.setattr("fu_papers.lab.record._raised", {"tests.toy_runs.walk"})
    monkeypatch.setattr(toy_runs.walk, "revision", lambda c: 1 + (c["seed"] == WALK["seed"]), raising=False)
    assert store.run(toy_runs.walk, WALK).key != first.key
    assert store.run(toy_runs.walk, other.config).key == other.key


def test_a_run_of_another_revision_is_made_again(store, computed, monkeypatch):
    first = store.run(toy_runs.walk, WALK)
    monkeypatch.setattr("fu_papers.lab.record._raised", {"tests.toy_runs.walk"})
    monkeypatch.setattr(toy_runs.walk, "revision", 2, raising=False)
    assert store.run(toy_runs.walk, WALK).key != first.key
    assert Task(toy_runs.walk, WALK, "").key == store.run(toy_runs.walk, WALK).key
    assert computed() == 2


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"alpha": float("nan")}, "config.alpha"),
        ({"a": {"b": [1, float("inf")]}}, "config.a.b[1]"),
        ({"w": torch.zeros(2)}, "config.w"),
        ({"s": {1, 2}}, "config.s"),
        ({"a": {1: "x"}}, "config.a has the key 1"),
        ({"folder": "/data/mnist"}, "config.folder is an absolute path"),
    ],
)
def test_config_that_json_cannot_say_is_refused_by_name(config, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        run_key("m.f", config)


def test_functions_whose_name_does_not_stand_for_their_code_are_refused():
    def inner(config, context): ...

    for fn in (inner, lambda config, context: None):
        with pytest.raises(ConfigError, match="imported from a module"):
            function_name(fn)
    assert function_name(toy_runs.walk) == "tests.toy_runs.walk"


def test_a_declared_name_survives_a_move_and_takes_the_records_along(store, tmp_path, monkeypatch):
    declared = "from fu_papers.lab.record import run_function\n\n\n@run_function('toy.draw')\n"
    body = "def draw(config, context):\n    return {'drawn': config['value']}, None\n"
    for module, head in (("first_home", declared), ("second_home", declared), ("nameless", "")):
        (tmp_path / f"{module}.py").write_text(head + body)
    monkeypatch.syspath_prepend(tmp_path)
    import first_home
    import nameless
    import second_home

    assert [function_name(home.draw) for home in (first_home, second_home)] == ["toy.draw", "toy.draw"]
    assert function_name(nameless.draw) == "nameless.draw"
    made = store.run(first_home.draw, {"value": 1})
    assert store.run(second_home.draw, {"value": 1}) == made
    assert made.key == run_key("toy.draw", {"value": 1})
    assert store.run(nameless.draw, {"value": 1}).key != made.key


# --- records ---


def test_a_finished_run_is_read_and_not_repeated(store, computed):
    first = store.run(toy_runs.walk, WALK)
    again = RecordStore(store.root).run(toy_runs.walk, dict(reversed(WALK.items())))
    assert again == first
    assert store.get(first.key) == first
    assert computed() == 1
    assert files(store.root) == [f"{first.key}.json", f"{first.key}.safetensors"]


def test_record_keeps_bits_tensors_rows_and_costs(store):
    record = store.run(toy_runs.walk, WALK, data_hash="abc")
    position = store.tensors(record.key)["position"]
    assert record.metrics["position"] == position.tolist()
    assert [row["round"] for row in record.rounds] == [0, 1, 2, 3]
    assert record.data_hash == "abc"
    assert record.config == WALK
    for phase in ("walk", "total"):
        assert record.provenance["phases"][phase]["seconds"] >= 0
        assert 10 < record.provenance["phases"][phase]["peak_mib"] < 100_000
    assert record.seconds == record.provenance["phases"]["total"]["seconds"]


def test_only_the_tensors_asked_for_are_read(store):
    record = store.run(toy_runs.two_tensors, {"seed": 0})
    assert set(store.tensors(record.key)) == {"first", "second"}
    (only,) = store.tensors(record.key, ["second"]).items()
    assert only[0] == "second"
    assert only[1].tolist() == [2.0]


def test_record_names_no_host_and_no_path(store):
    record = store.run(toy_runs.number, {"value": 0.1 + 0.2})
    text = (store.root / f"{record.key}.json").read_text()
    assert json.loads(text)["metrics"]["value"] == 0.1 + 0.2
    assert os.uname().nodename not in record.provenance.values()
    assert str(Path.home()) not in text
    assert str(store.root) not in text


def test_metrics_accept_numpy_and_tensor_numbers(store):
    context = RunContext(store, "k")
    context.log(a=np.float32(0.5), b=torch.tensor(2), c=None, d=np.int64(3), e=True)
    assert context.rounds == [{"a": 0.5, "b": 2, "c": None, "d": 3, "e": True}]


def test_non_finite_metric_is_an_error_that_names_it(store):
    with pytest.raises(NumericalFailure, match=r"metrics\.accuracy\.test is nan"):
        store.run(toy_runs.not_a_number, {})
    with pytest.raises(NumericalFailure, match=r"rounds\.loss"):
        RunContext(store, "k").log(loss=float("inf"))
    assert files(store.root) == []


# --- runs that need others ---


def test_what_a_run_needs_is_made_once_and_before_it(store, computed):
    record = store.run(toy_runs.after, {"seed": 3})
    walk = store.run(toy_runs.walk, {"rounds": 2, "seed": 3})
    assert record.metrics == {"end": walk.metrics["position"], "length": walk.metrics["length"]}
    assert computed() == 2
    store.run(toy_runs.after, {"seed": 4})
    assert computed() == 4


def test_a_need_whose_tensors_are_lost_is_made_again(store, computed):
    walk = store.run(toy_runs.walk, {"rounds": 2, "seed": 3})
    (store.root / f"{walk.key}.safetensors").unlink()
    assert store.run(toy_runs.after, {"seed": 3}).metrics["end"] == walk.metrics["position"]
    assert computed() == 3


def test_what_a_run_does_not_declare_it_does_not_get(store):
    context = RunContext(store, "k")
    with pytest.raises(KeyError, match="walk"):
        context.needed("walk")
    assert needs_of(toy_runs.walk, WALK) == {}
    assert needs_of(toy_runs.after, {"seed": 1}) == {"walk": (toy_runs.walk, {"rounds": 2, "seed": 1})}


def test_a_finished_run_does_not_ask_for_its_needs_again(store, computed):
    store.run(toy_runs.after, {"seed": 3})
    for path in store.root.glob("*"):
        if path.suffix in (".json", ".safetensors") and path.stem == run_key(
            "tests.toy_runs.walk", {"rounds": 2, "seed": 3}
        ):
            path.unlink()
    store.run(toy_runs.after, {"seed": 3})
    assert computed() == 2


# --- damage ---


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: text.replace('"length"', '"lenght"', 1),
        lambda text: text.replace('"seed": 1', '"seed": 2'),
        lambda text: text.replace('"rounds"', '"other"', 1),
        lambda text: text.replace('"key": "', '"key": "0'),
        lambda text: "\udcff",
    ],
    ids=["cut", "empty", "other json", "metric", "config", "missing part", "key", "not text"],
)
def test_corrupt_record_is_moved_aside_and_computed_again(store, damage):
    record = store.run(toy_runs.walk, WALK)
    path = store.root / f"{record.key}.json"
    path.write_text(damage(path.read_text()), errors="surrogateescape")
    with pytest.warns(UserWarning, match="moved aside"):
        again = store.run(toy_runs.walk, WALK)
    assert result(again) == result(record)
    assert f"{record.key}.json.corrupt-1" in files(store.root)
    assert store.get(record.key) == again


def test_each_corrupt_record_is_kept(store):
    for _ in range(2):
        record = store.run(toy_runs.number, {"value": 1})
        (store.root / f"{record.key}.json").write_text("{")
        with pytest.warns(UserWarning, match="moved aside"):
            assert store.get(record.key) is None
    assert files(store.root) == [f"{record.key}.json.corrupt-1", f"{record.key}.json.corrupt-2"]


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x")])
def test_lost_tensors_are_reported_and_computed_again(store, damage):
    record = store.run(toy_runs.walk, WALK)
    damage(store.root / f"{record.key}.safetensors")
    with pytest.raises(CorruptData, match=record.key):
        store.tensors(record.key)
    assert result(store.run(toy_runs.walk, WALK)) == result(record)
    assert len(store.tensors(record.key)["position"]) == 3


def test_corrupt_checkpoint_is_moved_aside_and_the_run_starts_afresh(store, tmp_path):
    expected = RecordStore(tmp_path / "undisturbed").run(toy_runs.walk, WALK)
    checkpoint = store.root / "checkpoints" / f"{expected.key}.safetensors"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half a checkpoint")
    with pytest.warns(UserWarning, match="moved aside"):
        assert result(store.run(toy_runs.walk, WALK)) == result(expected)
    assert f"checkpoints/{checkpoint.name}.corrupt-1" in files(store.root)


@pytest.mark.parametrize("name", ["notes.json", "0123456789abcdef.json", "0123456789ABCDEF0123.json"])
def test_files_of_others_are_left_alone(store, name):
    record = store.run(toy_runs.number, {"value": 1})
    (store.root / name).write_text("{}")
    assert list(store.everything()) == [record]
    assert (store.root / name).read_text() == "{}"
    other = RecordStore(store.root.parent / "other")
    assert other.merge(store.root) == 1
    assert files(other.root) == [f"{record.key}.json"]


@pytest.mark.parametrize("there", ["nothing", "a stray file", "records inside", "papers inside"])
def test_a_folder_without_records_is_no_store_and_says_where_they_are(tmp_path, there):
    ours, folder = RecordStore(tmp_path / "ours"), tmp_path / "theirs"
    folder.mkdir()
    theirs, expected = RecordStore(folder / "records"), "give the runs/records of another machine"
    if there == "a stray file":
        (folder / "settings.json").write_text("{}")
    elif there == "records inside":
        theirs.run(toy_runs.number, {"value": 1})
        expected = f"there are some in {folder / 'records'}$"
    elif there == "papers inside":
        key = ours.run(toy_runs.number, {"value": 1}).key
        for paper in ("puf", "arena"):
            ours.export([key], folder / paper)
        expected = f"there are some in {folder / 'arena'}, {folder / 'puf'}$"
    with pytest.raises(StorageError, match=f"--merge: there are no records in {folder}, neither .*{expected}"):
        ours.merge(folder)


def denied(self, *_, **__):
    raise PermissionError(errno.EACCES, "Permission denied", str(self))


def test_a_record_that_may_not_be_read_is_named_with_the_way_out(store, tmp_path, monkeypatch):
    record = store.run(toy_runs.number, {"value": 1})
    store.export([record.key], tmp_path / "figures")
    monkeypatch.setattr(Path, "read_text", denied)
    for reading in (lambda: store.get(record.key), lambda: RecordStore(tmp_path / "other").merge(store.root)):
        with pytest.raises(StorageError, match=rf"cannot read .*{record.key}\.json: Permission denied.*FU_RUNS"):
            reading()
    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(StorageError, match=r"cannot read .*clock\.jsonl: Permission denied.*FU_FIGURES"):
        read_records(tmp_path / "figures")


def test_a_checkpoint_that_nobody_may_remove_does_not_undo_a_finished_run(store, monkeypatch):
    record = store.run(toy_runs.number, {"value": 1})
    left = store.checkpoint_path(record.key)
    left.parent.mkdir()
    left.touch()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", denied)
        assert store.get(record.key) == record
    assert left.exists()
    assert store.get(record.key) == record
    assert not left.exists()


# --- half-written files of others ---


def test_what_another_host_writes_is_left_alone(tmp_path, monkeypatch):
    """Hosts share the folder; a number of one's processes means nothing to the other."""
    path, pid = tmp_path / "records.jsonl", os.getpid()
    monkeypatch.setattr(files_module.socket, "gethostname", lambda: "host-a.cluster")
    monkeypatch.setattr(os, "getpid", lambda: 3999999)  # which does not live here
    with written_atomically(path) as theirs:
        theirs.write_text("theirs")
        monkeypatch.setattr(os, "getpid", lambda: pid)
        monkeypatch.setattr(files_module.socket, "gethostname", lambda: "host-b")
        with written_atomically(path) as ours:
            ours.write_text("ours")
        assert theirs.exists()
        assert path.read_text() == "ours"
    assert path.read_text() == "theirs"
    assert files(tmp_path) == ["records.jsonl"]


def test_what_a_killed_process_of_this_host_left_is_cleared_away(tmp_path, monkeypatch):
    path = tmp_path / "records.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 3999999)
        with written_atomically(path) as part:
            part.write_text("half")
            left = part.with_name(part.name)
            content = left.read_text()
    left.write_text(content)
    with written_atomically(path) as one, written_atomically(path) as two:
        assert one != two  # whose processes may have the same number, in two containers
        one.write_text("one")
        two.write_text("two")
    assert files(tmp_path) == ["records.jsonl"]


# --- interruptions ---


def test_killed_run_resumes_to_the_same_record(store, tmp_path, computed):
    expected = RecordStore(tmp_path / "undisturbed").run(toy_runs.walk, WALK)
    killed = in_new_process(store, WALK, TOY_KILL_AT="1")
    assert killed.wait() == -signal.SIGKILL
    assert files(store.root) == [f"checkpoints/{expected.key}.safetensors"]
    (store.root / f".{expected.key}.json.99999.part").write_text("what a kill in the middle of a write leaves")

    context = RunContext(store, expected.key)
    tensors, meta = context.resume()
    assert meta == {"round": 2}
    assert [row["round"] for row in context.rounds] == [0, 1]
    assert tensors["position"].shape == (3,)

    resumed = store.run(toy_runs.walk, WALK)
    assert result(resumed) == result(expected)
    assert torch.equal(store.tensors(resumed.key)["position"], torch.tensor(expected.metrics["position"]))
    assert files(store.root) == [f"{expected.key}.json", f"{expected.key}.safetensors"]
    assert computed() == 3  # undisturbed, killed, resumed


def test_a_run_does_not_list_the_store(store, monkeypatch):
    """Ten thousand records lie there on a cluster, over a network; only after a death somebody looks for leftovers."""
    listed, glob = [], Path.glob
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: listed.append(folder) or glob(folder, pattern))
    record = store.run(toy_runs.walk, WALK)
    assert record.tensors
    assert store.root not in listed


def test_two_processes_compute_one_run_once(store, computed):
    config = WALK | {"pause": 0.5}
    processes = [in_new_process(store, config) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert computed() == 1
    waiting = [text for text in errors if "waiting for the walk: process" in text]
    assert len(waiting) <= 1  # none, if one process was done before the other had started
    assert not list((store.root / "locks").glob("*.owner"))


@pytest.mark.parametrize("broken", ["fsync", "safetensors"])
def test_full_disk_leaves_nothing_half_written(store, monkeypatch, broken):
    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(
        *{"fsync": ("os.fsync", no_space), "safetensors": ("fu_papers.lab.tensors.save_file", no_space)}[broken]
    )
    with pytest.raises(StorageError, match=r"cannot write .*checkpoints.*No space left on device"):
        store.run(toy_runs.walk, WALK)
    assert files(store.root) == []
    monkeypatch.undo()
    store.run(toy_runs.walk, WALK)


def test_full_disk_keeps_the_previous_checkpoint(store, monkeypatch):
    context = RunContext(store, "k")
    context.log(round=0)
    context.checkpoint({"w": torch.ones(2)}, {"round": 1})
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(StorageError):
            context.checkpoint({"w": torch.zeros(2)}, {"round": 2})
    tensors, meta = RunContext(store, "k").resume()
    assert tensors["w"].tolist() == [1, 1]
    assert meta == {"round": 1}


def test_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageError, match=r"cannot write .*file"):
        RecordStore(tmp_path / "file" / "records").run(toy_runs.number, {"value": 1})


def test_checkpoint_accepts_views_of_one_vector(store):
    w = torch.arange(6.0)
    RunContext(store, "k").checkpoint({"w": w, "head": w[:3], "rows": w.view(2, 3).T}, {})
    tensors, _ = RunContext(store, "k").resume()
    assert torch.equal(tensors["rows"], w.view(2, 3).T)


# --- whose code it was ---


def state_of(monkeypatch, core, papers):
    """`code_state()` if the two packages were imported from these folders."""
    for name, folder in (("fu_core", core), ("fu_papers", papers)):
        monkeypatch.setattr(provenance, name, SimpleNamespace(__file__=str(folder / name / "__init__.py")))
    return provenance.code_state.__wrapped__()


def test_a_commit_is_named_only_if_the_code_is_its(tmp_path, monkeypatch):
    """FU_HOME, or the folder where an installed fu_core works, may be another checkout."""
    told = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    if told.returncode:
        pytest.skip("needs git")
    installed, nothing = ROOT / "docs", {"commit": None, "dirty": None}  # as in the .venv of a checkout
    monkeypatch.setattr("fu_papers.lab.paths.ROOT", tmp_path)
    assert state_of(monkeypatch, ROOT, ROOT)["commit"] == told.stdout.strip()
    monkeypatch.setattr("fu_papers.lab.paths.ROOT", ROOT)
    assert state_of(monkeypatch, installed, installed) == nothing  # inside of the checkout, and yet not its code
    assert state_of(monkeypatch, tmp_path, tmp_path) == nothing
    assert state_of(monkeypatch, tmp_path, ROOT) == nothing
    assert state_of(monkeypatch, ROOT, tmp_path) == nothing


# --- settings and clocks ---


@pytest.mark.parametrize(("given", "kind"), [(None, RecordStore), ("", RecordStore), ("0", RecordStore),
                                             ("1", CommittedStore)])  # fmt: skip
def test_drawing_only_is_a_switch(given, kind, tmp_path, monkeypatch):
    monkeypatch.delenv("FU_FIGURES_ONLY", raising=False)
    if given is not None:
        monkeypatch.setenv("FU_FIGURES_ONLY", given)
    assert type(open_store(tmp_path)) is kind
    monkeypatch.setenv("FU_FIGURES_ONLY", "no")
    with pytest.raises(ConfigError, match=r"FU_FIGURES_ONLY must be 1 \(yes\), or 0 or empty \(no\), got 'no'"):
        open_store(tmp_path)


def test_a_phase_entered_twice_adds_up_and_cannot_contain_itself(store):
    context = RunContext(store, "k")
    for _ in range(2):
        with context.phase("train"):
            sum(range(100_000))
    with context.phase("outer"), pytest.raises(RuntimeError, match="outer"), context.phase("outer"):
        pass
    assert set(context.clock.totals()) == {"train", "outer"}


def test_precision_is_part_of_the_key_and_a_wrong_one_is_refused(monkeypatch):
    exact = run_key("f", {"a": 1})
    monkeypatch.setenv("FU_PRECISION", "float32")
    assert run_key("f", {"a": 1}) == exact
    monkeypatch.setenv("FU_PRECISION", "bf16")
    assert run_key("f", {"a": 1}) != exact
    monkeypatch.setenv("FU_PRECISION", "half")
    with pytest.raises(ConfigError, match=r"FU_PRECISION must be one of .*bf16.*'half'"):
        run_key("f", {"a": 1})


def test_checkpoints_are_as_far_apart_as_asked_and_cost_a_tenth_of_the_time_at_most(tmp_path, monkeypatch):
    clock, written = [0.0], []
    monkeypatch.setenv("FU_CHECKPOINT_SECONDS", "2")
    monkeypatch.setattr(context_module.time, "monotonic", lambda: clock[0])

    def slow_save(path, tensors, metadata):
        written.append(clock[0])
        clock[0] += 0.5

    monkeypatch.setattr(context_module, "save_tensors", slow_save)
    context = RunContext(RecordStore(tmp_path), "k")
    while clock[0] < 15:
        clock[0] += 1.0
        context.checkpoint({}, {})
    assert written == [2.0, 7.5, 13.0]  # two seconds after the start, then ten times half a second after the last


@pytest.mark.parametrize("given", ["-1", "soon", "nan", "inf"])
def test_a_wrong_checkpoint_interval_is_refused(given, tmp_path, monkeypatch):
    monkeypatch.setenv("FU_CHECKPOINT_SECONDS", given)
    with pytest.raises(ConfigError, match=f"FU_CHECKPOINT_SECONDS must be a number of seconds >= 0, got '{given}'"):
        RunContext(RecordStore(tmp_path), "k")


def test_the_checksum_of_a_file_is_kept_until_the_file_changes(tmp_path, monkeypatch):
    path, read = tmp_path / "model", []
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: read.append(1) or hashlib.sha256(file.read()))
    for content, times in ((b"one", 1), (b"two", 2), (b"three", 3)):
        path.write_bytes(content)
        os.utime(path, ns=(0, times))  # of one length and written at once, files differ in that alone
        assert file_sha256(path) == file_sha256(path) == hashlib.sha256(content).hexdigest()
        assert len(read) == times
