"""Committed records: two files, one of which no clock can change, read back to the same records in the same order."""

import hashlib
import json

import pandas as pd
import pytest

from fu_core.errors import CorruptData
from fu_papers.lab.committed import read_records, write_records
from fu_papers.lab.record import Record, config_key
from fu_papers.lab.store import CommittedStore, RecordStore
from tests import toy_runs

WALK = {"rounds": 4, "seed": 1}
CLOCK_FREE = Record("toy.a", "aa", {"seed": 0}, "d", "1", {"loss": 0.5}, [{"round": 0}], "t", {"cpu": "x"})
TIMED = Record(
    "toy.b", "bb", {"z": 1, "a": 2}, "", "1",
    {"loss": 1e-05, "seconds": {"slow": 2.5, "fast": 0.1}, "accuracy": 90.0},
    [{"round": 0, "seconds": 1.5, "loss": 3}, {"round": 1, "loss": 2}, {"round": 2, "seconds": 0.25, "loss": 1}],
    None, {"cpu": "x", "phases": {"total": {"seconds": 4.0, "peak_mib": 7.0}}},
)  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "records")


def made(store, count=3):
    """The keys of `count` runs that measure time."""
    return [store.run(toy_runs.timed, {"value": value}).key for value in range(count)]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def change_line(path, number, change):
    """Replace a line, counted from 1, by what `change` makes of it; without it if that is None."""
    texts = path.read_text(encoding="utf-8").splitlines()
    changed = change(texts[number - 1])
    texts[number - 1 : number] = [] if changed is None else [changed]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


# --- the two files ---


def test_what_the_files_hold(tmp_path):
    write_records([TIMED, CLOCK_FREE], tmp_path)
    assert names(tmp_path) == ["clock.jsonl", "records.jsonl"]
    content = {
        "function": "toy.b", "key": "bb", "config": {"z": 1, "a": 2}, "data_hash": "", "version": "1",
        "metrics": {"loss": 1e-05, "seconds": None, "accuracy": 90.0},
        "rounds": [
            {"round": 0, "seconds": None, "loss": 3}, {"round": 1, "loss": 2}, {"round": 2, "seconds": None, "loss": 1},
        ],
        "tensors": None,
    }  # fmt: skip
    sorted_text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    whole = {**content, "checksum": hashlib.sha256(sorted_text.encode()).hexdigest()}
    text = (tmp_path / "records.jsonl").read_bytes().decode()
    assert text.splitlines()[1] == json.dumps(whole, separators=(",", ":"))
    assert text.endswith("}\n")
    assert "\r" not in text
    assert [line["key"] for line in lines(tmp_path / "records.jsonl")] == ["aa", "bb"]
    free, timed = lines(tmp_path / "clock.jsonl")
    assert len(free["checksum"]) == len(timed["checksum"]) == 64
    assert free.pop("checksum") != timed.pop("checksum")
    assert free == {"key": "aa", "seconds": None, "rounds": [], "provenance": {"cpu": "x"}}
    assert timed == {
        "key": "bb", "seconds": {"slow": 2.5, "fast": 0.1}, "rounds": [1.5, 0.25], "provenance": TIMED.provenance,
    }  # fmt: skip


def test_times_come_back_at_their_place(tmp_path):
    write_records([TIMED, CLOCK_FREE], tmp_path)
    read = read_records(tmp_path)
    assert read == {"aa": CLOCK_FREE, "bb": TIMED}
    assert json.dumps(vars(read["bb"])) == json.dumps(vars(TIMED))  # the order of entries, too
    assert list(read["bb"].metrics) == ["loss", "seconds", "accuracy"]
    assert list(read["bb"].metrics["seconds"]) == ["slow", "fast"]
    assert list(read["bb"].rounds[0]) == ["round", "seconds", "loss"]
    assert read["bb"].seconds == 4.0


def test_exported_runs_are_read_as_they_are_in_the_store(store, tmp_path):
    keys = [*made(store), store.run(toy_runs.walk, WALK, data_hash="abc").key]
    store.export(keys, tmp_path / "figures")
    read = read_records(tmp_path / "figures")
    assert list(read) == sorted(keys)
    for key in keys:
        assert json.dumps(vars(read[key])) == json.dumps(vars(store.get(key)))


def test_the_order_of_keys_and_how_often_they_are_given_do_not_change_a_byte(store, tmp_path):
    keys = made(store)
    store.export(keys, tmp_path / "one")
    store.export([*keys[1:], *keys], tmp_path / "two")
    store.export(keys[::-1], tmp_path / "one")
    for name in ("records.jsonl", "clock.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_runs_that_are_made_again_change_the_clock_only(tmp_path):
    for name in ("one", "two"):
        again = RecordStore(tmp_path / f"{name} records")
        again.export([*made(again), again.run(toy_runs.walk, WALK).key], tmp_path / name)
    one, two = (tmp_path / name for name in ("one", "two"))
    assert (one / "records.jsonl").read_bytes() == (two / "records.jsonl").read_bytes()
    assert (one / "clock.jsonl").read_bytes() != (two / "clock.jsonl").read_bytes()


def test_export_replaces_what_is_there(store, tmp_path):
    keys = made(store)
    folder = tmp_path / "figures"
    store.export(keys[:2], folder)
    store.export(keys[1:], folder)
    assert set(read_records(folder)) == set(keys[1:])
    assert names(folder) == ["clock.jsonl", "records.jsonl"]
    with pytest.raises(RuntimeError, match="no such record"):
        store.export(["0" * 20], folder)
    assert set(read_records(folder)) == set(keys[1:])


def test_pandas_reads_both(store, tmp_path):
    store.export(made(store), tmp_path)
    records, clock = (pd.read_json(tmp_path / name, lines=True) for name in ("records.jsonl", "clock.jsonl"))
    assert records.key.tolist() == clock.key.tolist() == sorted(records.key)
    assert sorted(metrics["value"] for metrics in records.metrics) == [0, 1, 2]
    assert all(times["slow"] > times["fast"] for times in clock.seconds)


# --- drawing from them ---


def test_a_committed_store_reads_and_says_how_to_make_what_is_missing(store, tmp_path):
    record = store.run(toy_runs.walk, WALK)
    folder = tmp_path / "figures"
    store.export([record.key, *made(store)], folder)
    committed = CommittedStore(folder)
    assert committed.read_only
    assert committed.run(toy_runs.walk, WALK) == record  # without its tensors
    assert committed.get(record.key) == record
    assert committed.get("0" * 20) is None
    assert committed.finished(toy_runs.walk) == {config_key(WALK): record}
    assert [found.key for found in committed.everything()] == sorted(found.key for found in store.everything())
    with pytest.raises(RuntimeError, match=r"PUF, seed 9.*make reproduce"):
        committed.run(toy_runs.walk, {"rounds": 4, "seed": 9}, label="PUF, seed 9")
    with pytest.raises(CorruptData, match=f"run {record.key} has kept no tensors"):
        committed.tensors(record.key)
    assert names(folder) == ["clock.jsonl", "records.jsonl"]


def test_a_committed_store_without_files_is_empty(tmp_path):
    assert list(CommittedStore(tmp_path / "nothing").everything()) == []
    (tmp_path / "file").write_text("not a folder")
    assert list(CommittedStore(tmp_path / "file").everything()) == []


def test_the_files_are_read_once(store, tmp_path):
    keys = made(store)
    store.export(keys, tmp_path / "figures")
    committed = CommittedStore(tmp_path / "figures")
    assert committed.get(keys[0]) is not None
    for path in (tmp_path / "figures").iterdir():
        path.unlink()
    assert len(committed.finished(toy_runs.timed)) == 3


# --- damage ---


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda line: line[: len(line) // 2], "(run bb) "),
        (lambda line: line.replace('"loss":1e-05', '"loss":2e-05'), "(run bb) "),
        (lambda line: line.replace('"key":"bb"', '"key":"bc"'), "(run bc) "),
        (lambda line: line.replace('"key"', '"kez"'), ""),
        (lambda line: line.replace('"checksum"', '"other"'), "(run bb) "),
        (lambda line: "[1, 2]", ""),
        (lambda line: "", ""),
    ],
    ids=["cut", "metric", "key", "no key", "no checksum", "other json", "empty"],
)
def test_a_damaged_line_is_ignored_by_name_and_the_others_are_read(tmp_path, damage, named):
    last = Record("toy.a", "cc", {}, "", "1", {}, [], None, {"cpu": "x"})
    write_records([CLOCK_FREE, TIMED, last], tmp_path)
    path = tmp_path / "records.jsonl"
    change_line(path, 2, damage)
    with pytest.warns(UserWarning, match="is ignored") as caught:
        assert read_records(tmp_path) == {"aa": CLOCK_FREE, "cc": last}
    assert [str(warning.message).startswith(f"{path}, line 2 {named}is ignored: ") for warning in caught] == [True]


def test_a_line_that_is_not_text_is_ignored(tmp_path):
    write_records([CLOCK_FREE, TIMED], tmp_path)
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"toy.b"', b'"t\xff.b"'))
    with pytest.warns(UserWarning, match=r"records\.jsonl, line 2 \(run bb\) is ignored"):
        assert set(read_records(tmp_path)) == {"aa"}


def without_file(path):
    path.unlink()


def without_line(path):
    change_line(path, 2, lambda line: None)


def with_damaged_line(path):
    change_line(path, 2, lambda line: line.replace("2.5", "2.6"))


def of_other_rounds(path):
    """The whole line of another record of that key, as a kill between the two files may leave it."""
    folder = path.parent / "other"
    write_records([CLOCK_FREE, Record(**vars(TIMED) | {"rounds": TIMED.rounds[:2]})], folder)
    path.write_bytes((folder / "clock.jsonl").read_bytes())


@pytest.mark.filterwarnings("ignore:.*clock.jsonl, line 2 .run bb. is ignored")
@pytest.mark.parametrize("damage", [without_file, without_line, with_damaged_line, of_other_rounds])
def test_without_its_times_a_record_has_all_else_and_an_error_for_who_asks_for_them(tmp_path, damage):
    write_records([CLOCK_FREE, TIMED], tmp_path)
    damage(tmp_path / "clock.jsonl")
    record = read_records(tmp_path)["bb"]
    assert record.metrics == {"loss": 1e-05, "accuracy": 90.0}
    assert record.rounds == [{"round": 0, "loss": 3}, {"round": 1, "loss": 2}, {"round": 2, "loss": 1}]
    assert record.provenance == {}
    message = r"the times of run bb are missing: the clock.jsonl .* restore that file, or run `make reproduce`"
    for ask in (
        lambda: record.seconds,
        lambda: record.metrics["seconds"],
        lambda: record.rounds[0]["seconds"],
        lambda: write_records([record], tmp_path / "again"),
    ):
        with pytest.raises(CorruptData, match=message):
            ask()
    with pytest.raises(KeyError, match="seconds"):
        record.rounds[1]["seconds"]  # there was none
    with pytest.raises(KeyError, match="misspelt"):
        record.metrics["misspelt"]
    assert not (tmp_path / "again").exists()
