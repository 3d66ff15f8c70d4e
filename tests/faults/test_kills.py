"""kill -9 at every kind of file operation: what has a name is whole, and called again all ends as if undisturbed."""

import random
import signal

import pytest
import torch

from fu_papers.lab.context import RunContext
from fu_papers.lab.store import RecordStore
from tests.faults.harness import Kill, check_all_is_whole, check_same_as_clean, half_written, new_lab, perform, walk

OPERATIONS = {
    "data cache": ("create", "rename", "remove"),
    "lock": ("create", "remove"),
    "checkpoint": ("flush", "rename", "remove"),
    "tensors": ("flush", "rename", "remove"),
    "record": ("create", "flush", "rename", "remove"),
    "figure": ("create", "flush", "rename", "remove"),
    "table": ("create", "flush", "rename", "remove"),
    "export": ("create", "flush", "rename", "remove"),
}
MOMENTS = [(kind, operation) for kind, operations in OPERATIONS.items() for operation in operations]


@pytest.mark.parametrize(("kind", "operation"), MOMENTS)
def test_a_reproduction_killed_at_any_moment_ends_with_the_same_files(clean, tmp_path, kind, operation):
    lab, rng = new_lab(tmp_path / "lab"), random.Random(f"{kind} {operation}")
    moment = rng.choice([event for event in clean.events if (event.kind, event.operation) == (kind, operation)])
    killed = perform(lab, Kill(moment.number, share=rng.choice([rng.random(), 1.0])))
    assert killed.exitcode == -signal.SIGKILL
    assert [(event.kind, event.operation) for event in killed.events] == [(kind, operation)]
    check_all_is_whole(lab, clean.lab)
    again = perform(lab)
    assert (again.exitcode, again.error) == (0, "")
    check_same_as_clean(lab, clean.lab)


def test_a_reproduction_killed_again_and_again_gets_to_its_end(clean, tmp_path):
    lab, rng, deaths = new_lab(tmp_path / "lab"), random.Random(0), 0
    while (ending := perform(lab, Kill(rng.randrange(30, 80), share=rng.random()))).exitcode:
        assert ending.exitcode == -signal.SIGKILL
        deaths += 1
        assert deaths < 20, "it does not get any further"
        check_all_is_whole(lab, clean.lab)
    assert deaths > 3
    assert ending.error == ""
    check_same_as_clean(lab, clean.lab)


def test_a_run_killed_at_each_of_its_file_operations_ends_with_the_same_record(tmp_path):
    undisturbed = new_lab(tmp_path / "undisturbed")
    events = perform(undisturbed, work=walk).events
    [expected] = _walks(undisturbed)
    assert len(events) > 20
    for event in events:
        lab = new_lab(tmp_path / str(event.number))
        assert perform(lab, Kill(event.number, share=0.5), walk).exitcode == -signal.SIGKILL
        assert perform(lab, work=walk).exitcode == 0
        [record] = _walks(lab)
        assert (record.metrics, record.rounds, record.tensors) == (expected.metrics, expected.rounds, expected.tensors)
        assert half_written(lab.root) == []
        assert sorted(path.suffix for path in (lab.runs / "records").iterdir() if path.is_file()) == [
            ".json", ".safetensors",
        ]  # fmt: skip


def test_a_resumed_run_names_its_metrics_in_the_order_in_which_it_began(tmp_path, monkeypatch):
    """The columns of tables follow it."""
    monkeypatch.setenv("FU_CHECKPOINT_SECONDS", "0")
    context = RunContext(RecordStore(tmp_path), "k")
    context.log(test=1.0, forget=2.0)
    context.checkpoint({"w": torch.zeros(1)}, {"round": 1, "metrics": {"test": 1.0, "forget": 2.0}})
    resumed = RunContext(RecordStore(tmp_path), "k")
    _, meta = resumed.resume()
    assert [list(names) for names in (meta, meta["metrics"], *resumed.rounds)] == [
        ["round", "metrics"], ["test", "forget"], ["test", "forget"],
    ]  # fmt: skip


def _walks(lab):
    store = RecordStore(lab.runs / "records")
    return [store.get(path.stem) for path in store.root.glob("*.json")]
