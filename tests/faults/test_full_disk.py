"""A full disk: one clear error that says what to do, nothing half written, and with space all as if undisturbed."""

import errno
import random

import pytest

from fu_papers.lab.execute import execute
from fu_papers.lab.notebooks import plan
from tests.faults.harness import (
    DISKS,
    Full,
    Limit,
    check_all_is_whole,
    check_same_as_clean,
    new_lab,
    perform,
    reproduce_on_a_growing_disk,
)

KINDS = ("data cache", "lock", "checkpoint", "tensors", "record", "figure", "table", "export")
WAYS_OUT = {"data cache": "FU_DATA", "figure": "FU_FIGURES", "table": "FU_FIGURES", "export": "FU_FIGURES"}
# what does not fit into so many bytes: a cache has 131 kB, a checkpoint 27, a record 1 to 3, the figure 65
LIMITS = {"data cache": 100_000, "checkpoint": 10_000, "record": 500, "figure": 40_000}


def check_says_what_to_do(error, kind, lab):
    assert error.count("cannot write") == 1
    assert f"cannot write {lab.root}" in error
    assert "free some space" in error
    assert WAYS_OUT.get(kind, "FU_RUNS") in error
    assert "Traceback" not in error


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_is_full_from_some_moment_on(clean, tmp_path, kind):
    lab = new_lab(tmp_path / "lab")
    written = [event for event in clean.events if event.kind == kind and event.operation in ("create", "flush")]
    full = perform(lab, Full(random.Random(kind).choice(written).number))
    assert full.exitcode == 0
    check_says_what_to_do(full.error, kind, lab)
    check_all_is_whole(lab, clean.lab)
    again = perform(lab)
    assert (again.exitcode, again.error) == (0, "")
    check_same_as_clean(lab, clean.lab)


@pytest.mark.parametrize("kind", LIMITS)
def test_a_write_that_the_system_stops_in_the_middle(clean, tmp_path, kind):
    lab = new_lab(tmp_path / "lab")
    if kind != "data cache":
        lab.data.mkdir()
        (lab.data / "mnist.npz").write_bytes((clean.lab.data / "mnist.npz").read_bytes())
    stopped = perform(lab, Limit(LIMITS[kind]))
    assert stopped.exitcode == 0
    check_says_what_to_do(stopped.error, kind, lab)
    assert "File too large" in stopped.error
    check_all_is_whole(lab, clean.lab)
    again = perform(lab)
    assert (again.exitcode, again.error) == (0, "")
    check_same_as_clean(lab, clean.lab)


def says_much():
    """More than a limited file could hold, as a progress bar does on a slow machine."""
    print("x" * 10 * min(LIMITS.values()), flush=True)


def test_what_a_run_says_is_not_stopped_by_a_limit_on_files(tmp_path):
    ending = perform(new_lab(tmp_path / "lab"), Limit(min(LIMITS.values())), work=says_much)
    assert (ending.exitcode, ending.error) == (0, "")


def test_a_small_disk_that_is_enlarged_until_all_fits(clean, tmp_path):
    lab = new_lab(tmp_path / "lab")
    ending = perform(lab, work=reproduce_on_a_growing_disk)
    assert (ending.exitcode, ending.error) == (0, "")
    if ending.result is None:
        pytest.skip("no file system can be mounted here")
    errors, shown, left = ending.result
    assert len(errors) == len(DISKS) - 1
    for error in errors:
        check_says_what_to_do(error, "data cache" if "mnist.npz" in error else "", lab)
        assert "No space left" in error
    assert "mnist.npz" in errors[0]
    assert shown == clean.lab.shown()
    assert left == []


def executed(lab, monkeypatch):
    """What comes of running a notebook whose executed copy belongs in `lab`."""
    monkeypatch.setenv("FU_RUNS", str(lab.runs))
    monkeypatch.setenv("FU_FIGURES", str(lab.figures))
    outcome = execute(plan("puf", "quick", {}))
    assert str(lab.runs / "executed") in outcome.failure
    assert "free some space, or choose another folder with FU_RUNS" in outcome.failure
    return outcome.failure


def test_a_folder_for_executed_notebooks_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    lab = new_lab(tmp_path / "lab")
    lab.runs.write_text("a file where the folder should be")
    assert "Not a directory" in executed(lab, monkeypatch)


def test_an_executed_notebook_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("papermill.execute_notebook", full)
    assert "No space left on device" in executed(new_lab(tmp_path / "lab"), monkeypatch)
