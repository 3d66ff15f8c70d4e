"""A flipped byte in any file: the numbers stay those of a clean run, or one error names the file and the way out."""

import hashlib
import json
import random
import re
import shutil
import warnings

import numpy as np
import pytest
import torch

from fu_core.data.cache import pack, read_cache, write_cache
from fu_core.errors import CorruptData
from fu_papers.lab.committed import read_records, write_records
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Record
from fu_papers.lab.store import RecordStore
from tests import toy_runs
from tests.faults.harness import Kill, compute, inside, new_lab, perform, write_tables
from tests.notebook_lab import Lab, results


class Shown:
    """Tables and numbers of a reproduction, or its error. No figures: they show the same records as the tables."""

    def __init__(self, lab, **settings):
        self.numbers, self.error = {}, ""
        with inside(lab, **settings), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found, study = compute()
                write_tables(found, study.out)
                self.numbers = results(
                    {record.key: vars(record) for kind in found.values() for record in kind.values()}
                )
            except RuntimeError as error:
                self.error = str(error)
        self.tables = tables(lab)
        self.warnings = "\n".join(str(warning.message) for warning in caught)


def tables(lab):
    return {name: digest for name, digest in lab.shown().items() if name.endswith(".csv")}


def check_as_clean(shown, clean):
    assert shown.error == ""
    assert shown.tables == tables(clean.lab)
    assert shown.numbers == results(clean.lab.records())


def copied(lab, root):
    shutil.copytree(lab.root, root)
    return Lab(root, root / "data")


def flipped(content, rng, position=None):
    """`content` with another value for one byte, a random one unless told."""
    changed = bytearray(content)
    changed[rng.randrange(len(content)) if position is None else position] ^= rng.randrange(1, 256)
    return bytes(changed)


def damaged(paths, rng, times):
    """A byte of one of the files is flipped, `times` times; yields the file and what it held."""
    for _ in range(times):
        path = rng.choice(paths)
        before = path.read_bytes()
        path.write_bytes(flipped(before, rng))
        yield path, before


# --- in the files of a reproduction ---


def test_flips_in_records_never_change_what_is_shown(clean, tmp_path):
    lab, rng = copied(clean.lab, tmp_path / "lab"), random.Random("records")
    paths = sorted((lab.runs / "records").glob("*.json"))
    for path, before in damaged(paths, rng, times=25):
        shown = Shown(lab)
        check_as_clean(shown, clean)
        if f"{path.name} was moved aside" not in shown.warnings:  # an exponent's e, a blank between two entries
            assert json.loads(path.read_bytes()) == json.loads(before)


def test_flips_in_tensors_are_found_before_they_are_used(clean, tmp_path):
    lab, rng = copied(clean.lab, tmp_path / "lab"), random.Random("tensors")
    store = lab.runs / "records"
    methods = {path: json.loads(path.read_text())["config"].get("method") for path in store.glob("*.json")}
    users = [path for path, method in methods.items() if method in ("Retrain", "Retrain again")]  # who read all
    paths = sorted(store.glob("*.safetensors"))
    for turn in range(10):
        path = paths[turn % len(paths)]
        path.write_bytes(flipped(path.read_bytes(), rng))
        for user in users:
            user.unlink()
        assert f"CorruptData: {path} is missing or damaged; call again" in Shown(lab).error
        check_as_clean(Shown(lab), clean)


@pytest.mark.parametrize("run", ["training", "unlearning"])
def test_flips_in_checkpoints_never_change_what_is_shown(clean, tmp_path, run):
    trainings = [key for key, record in clean.lab.records().items() if record["tensors"]]
    moments = [
        event.number
        for event in clean.events
        if (event.kind, event.operation) == ("checkpoint", "remove") and ".part" in event.path
        if any(key in event.path for key in trainings) == (run == "training")
    ]
    killed, rng = new_lab(tmp_path / "killed"), random.Random(run)
    perform(killed, Kill(rng.choice(moments)))
    [path] = (killed.runs / "records" / "checkpoints").glob("*.safetensors")
    for turn in range(4):
        lab = copied(killed, tmp_path / str(turn))
        damaged = lab.root / path.relative_to(killed.root)
        damaged.write_bytes(flipped(path.read_bytes(), rng))
        check_as_clean(Shown(lab), clean)


def test_flips_in_a_data_cache_are_errors_that_say_what_to_do(clean, tmp_path):
    lab, rng = copied(clean.lab, tmp_path / "lab"), random.Random("data cache")
    path, found = lab.data / "mnist.npz", 0
    for _ in range(15):
        path.write_bytes(flipped(path.read_bytes(), rng))
        if (shown := Shown(lab)).error:
            assert f"{path} is not a usable cache" in shown.error
            assert "delete it" in shown.error
            path.unlink()
            found, shown = found + 1, Shown(lab)
        check_as_clean(shown, clean)
    assert found > 10  # the others were in a date or the like, which nobody reads


def test_flips_in_exported_records_never_change_what_is_drawn_from_them(clean, tmp_path):
    lab, rng, found = copied(clean.lab, tmp_path / "lab"), random.Random("export"), 0
    path = lab.out / "records.jsonl"
    for _, before in damaged([path], rng, times=15):
        if (shown := Shown(lab, FU_FIGURES_ONLY="1")).error:
            assert re.search(rf"{path}, line \d+ (\(run [0-9a-f]{{20}}\) )?is ignored: ", shown.warnings)
            assert f"no record in {path.parent}, which is read only here; run `make reproduce`" in shown.error
            path.write_bytes(before)
            found, shown = found + 1, Shown(lab, FU_FIGURES_ONLY="1")
        check_as_clean(shown, clean)
    assert found > 10


def test_flips_in_exported_times_take_away_no_figure_without_times(clean, tmp_path):
    lab, rng, found = copied(clean.lab, tmp_path / "lab"), random.Random("clock"), 0
    path = lab.out / "clock.jsonl"
    for _, before in damaged([path], rng, times=10):
        shown = Shown(lab, FU_FIGURES_ONLY="1")
        found += bool(re.search(rf"{path}, line \d+ (\(run [0-9a-f]{{20}}\) )?is ignored: ", shown.warnings))
        check_as_clean(shown, clean)
        path.write_bytes(before)
    assert found > 5


def test_flips_in_figures_and_tables_are_gone_when_they_are_drawn_again(clean, tmp_path):
    lab, rng = copied(clean.lab, tmp_path / "lab"), random.Random("figures")
    for path in [path for path in lab.figures.rglob("*") if path.suffix in (".png", ".csv")]:
        if path.name != "claims.csv":
            path.write_bytes(flipped(path.read_bytes(), rng))
    assert set(lab.shown().items()).isdisjoint({item for item in clean.lab.shown().items() if "claims" not in item[0]})
    assert perform(lab).error == ""
    assert lab.shown() == clean.lab.shown()


@pytest.mark.parametrize(
    ("text", "damaged"),
    [
        (b"id,", b"ie,"),
        (b"verdict", b"verdist"),
        (b"\nH1,", b"\nH2,"),  # H1 would be lost, and H2 the last that is read
        (b"\nH1,", b"'H1,"),
        (b"not run", b"not rum"),
        (b"not run", b"not r\xf5n"),
        (b"holds,", b'ho"ds,'),
    ],
)
def test_flips_in_the_verdicts_are_errors_that_say_what_to_do(clean, tmp_path, text, damaged):
    """The verdicts on the other papers' claims cannot be computed here; a list that is not whole is not continued."""
    lab = copied(clean.lab, tmp_path / "lab")
    path = lab.out.parent / "claims.csv"
    path.write_bytes(path.read_bytes().replace(text, damaged, 1))
    shown = Shown(lab)
    assert f"{path} is not the list of verdicts" in shown.error
    assert "delete it and run all papers of this profile" in shown.error
    path.unlink()
    check_as_clean(Shown(lab), clean)


# --- every byte of a single file ---


def test_a_flip_anywhere_in_a_record_is_found_or_changes_nothing(tmp_path):
    """Every bit, of times and versions, too. In JSON, 1e-05 and infinity are one byte apart."""
    store = RecordStore(tmp_path)
    record = store.run(toy_runs.number, {"value": 1e-05}, data_hash="abc")
    content = record.to_json().encode()
    found = 0
    for position in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            try:
                assert Record.from_json(changed.decode(), record.key) == record
            except (CorruptData, UnicodeDecodeError):
                found += 1
    assert found > 7 * len(content)
    with pytest.raises(CorruptData):
        Record.from_json(record.to_json().replace("1e-05", "1e905"), record.key)


def test_a_flip_anywhere_in_committed_files_is_found_or_changes_nothing(tmp_path):
    """Every bit of both: a record is the one that was written, is not there, or is there without any of its times."""
    record = Record("f", "k", {"seed": 1}, "d", "0", {"seconds": 0.25, "loss": 1e-05}, [{"seconds": 2}], None, {"a": 1})
    write_records([record], tmp_path)
    untimed = Record("f", "k", {"seed": 1}, "d", "0", {"loss": 1e-05}, [{}], None, {})
    for name, otherwise in (("records.jsonl", {}), ("clock.jsonl", {"k": untimed})):
        content, found = (tmp_path / name).read_bytes(), 0
        for position in range(len(content)):
            for bit in range(8):
                changed = bytearray(content)
                changed[position] ^= 1 << bit
                (tmp_path / name).write_bytes(changed)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    read = read_records(tmp_path)
                assert read == (otherwise if caught else {"k": record})
                found += bool(caught)
        assert found > 7 * len(content)
        (tmp_path / name).write_bytes(content)


def test_a_record_made_before_all_of_it_was_covered_is_still_read(tmp_path):
    store = RecordStore(tmp_path)
    record = store.run(toy_runs.number, {"value": 2})
    path = tmp_path / f"{record.key}.json"
    covered = {"metrics": {"value": 2}, "rounds": [], "config": {"value": 2}}
    text = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    content = json.loads(path.read_text()) | {"checksum": hashlib.sha256(text.encode()).hexdigest()}
    path.write_text(json.dumps(content))
    assert store.get(record.key) == record
    path.write_text(json.dumps(content | {"metrics": {"value": 3}}))
    with pytest.warns(UserWarning, match="moved aside"):
        assert store.get(record.key) is None


def test_a_flip_anywhere_in_a_checkpoint_is_found_or_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("FU_CHECKPOINT_SECONDS", "0")
    store, rng, found = RecordStore(tmp_path), random.Random(0), 0
    tensors = {"w": torch.linspace(0, 1, 50), "counts": torch.tensor(3)}
    context = RunContext(store, "k")
    context.log(round=0, loss=0.5)
    context.checkpoint(tensors, {"round": 1})
    [path] = (tmp_path / "checkpoints").iterdir()
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(flipped(content, rng, position))
        context = RunContext(store, "k")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resumed = context.resume()
        if resumed is None:
            assert "k.safetensors was moved aside" in str(caught[0].message)
            path.with_name("k.safetensors.corrupt-1").unlink()
            found += 1
        else:
            assert resumed[1] == {"round": 1}
            assert context.rounds == [{"round": 0, "loss": 0.5}]
            assert set(resumed[0]) == set(tensors)
            assert all(torch.equal(resumed[0][name], tensors[name]) for name in tensors)
    assert found > 0.9 * len(content)


def test_a_flip_in_a_record_from_another_machine_names_its_file(tmp_path):
    theirs, ours = RecordStore(tmp_path / "theirs"), RecordStore(tmp_path / "ours")
    record = theirs.run(toy_runs.number, {"value": 1})
    path = theirs.root / f"{record.key}.json"
    content = path.read_bytes()
    for damaged in (content.replace(b'"value": 1', b'"value": 3'), content.replace(b'"value"', b'"v\xe1lue"')):
        path.write_bytes(damaged)
        with pytest.raises(CorruptData, match=rf"{path} is damaged: .*; copy it again, or remove it"):
            ours.merge(theirs.root)
    path.write_bytes(content)
    assert ours.merge(theirs.root) == 1


def test_a_flip_anywhere_in_a_cache_is_found_or_changes_nothing(tmp_path):
    rng, path, found = random.Random(0), tmp_path / "mnist.npz", 0
    x = np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3)
    arrays = pack((x, np.arange(4)), (x[:2], np.arange(2)), "made by a test")
    write_cache(path, arrays)
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(flipped(content, rng, position))
        try:
            read = read_cache(path)
        except CorruptData:
            found += 1
        else:
            assert all(np.array_equal(read[name], arrays[name]) for name in arrays)
            assert {name: array.dtype for name, array in read.items()} == {n: a.dtype for n, a in arrays.items()}
    assert found > 0.5 * len(content)


def test_an_array_that_says_it_is_shorter_than_it_is_is_refused(tmp_path):
    """Read as 4-byte numbers, labels 0 1 2 3 are 0 0 1 0, and the second half, with it the CRC, is never looked at."""
    path, x, labels = tmp_path / "mnist.npz", np.zeros((3000, 2, 2), np.uint8), np.arange(3000)
    write_cache(path, pack((x, labels), (x, labels), "made by a test"))
    path.write_bytes(path.read_bytes().replace(b"<i8", b"<i4", 1))
    with pytest.raises(CorruptData, match="y_train is longer than its header says"):
        read_cache(path)
