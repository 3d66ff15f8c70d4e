"""A study runs what its stages declare, once and in order; its frame says everything that the records say."""

import subprocess
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fu_core.errors import ConfigError
from fu_papers import study as study_module
from fu_papers.lab.paths import ROOT
from fu_papers.lab.record import Record
from fu_papers.lab.store import CommittedStore, NoRecord, RecordStore
from fu_papers.study import Cell, Stage, Study, experiment_of, stages_of, theory_stages, tidy, wide
from tests import toy_runs


def numbers(*values):
    return lambda e: {f"number {value}": {"value": value * e.factor} for value in values}


TOY = (
    Stage("first", toy_runs.number, numbers(1, 2)),
    Stage("second", toy_runs.number, numbers(3), needs=("first",)),
    Stage("third", toy_runs.number, numbers(4, 3), needs=("second",), alone=True),
    Stage("perhaps", toy_runs.says_no, lambda e: {"": {"kind": e.kind}}, optional="It did not run here"),
    Stage("surely", toy_runs.fails_on_odd, numbers(7)),
    *theory_stages({toy_runs.number: [{"value": 10}, {"value": 20}], toy_runs.on_data: [{"value": 30}]}),
)
EXPERIMENT = SimpleNamespace(profile="test", paper="toy", factor=1, kind="ImportError")


@pytest.fixture
def ran(monkeypatch):
    """The labels of the stages in the order in which they ran, and with how many jobs."""
    monkeypatch.setattr(study_module, "stages_of", lambda paper: TOY)
    seen, map_runs = [], study_module.map_runs

    def spy(fn, configs, *, store, jobs, label):
        seen.append((label, jobs))
        return map_runs(fn, configs, store=store, jobs=jobs, label=label)

    monkeypatch.setattr(study_module, "map_runs", spy)
    return seen


@pytest.fixture
def study(tmp_path, ran):
    return Study(EXPERIMENT, RecordStore(tmp_path / "records"), jobs=2)


# --- stages ---


def test_a_stage_gives_its_records_by_where_they_belong(study):
    found = study.run("first")
    assert {place: record.metrics["value"] for place, record in found.items()} == {"number 1": 1, "number 2": 2}
    assert list(found) == ["number 1", "number 2"]


def test_configs_come_from_the_experiments_parameters(tmp_path, ran):
    doubled = Study(SimpleNamespace(profile="test", paper="toy", factor=2), RecordStore(tmp_path), jobs=1)
    assert [record.config for record in doubled.run("first").values()] == [{"value": 2}, {"value": 4}]


def test_stages_run_what_they_need_first_and_nothing_twice(study, ran):
    study.run("third")
    study.run("first")
    study.run("third")
    assert [label for label, _ in ran] == ["first", "second", "third"]


def test_where_a_clock_is_running_there_is_one_run_at_a_time(study, ran):
    study.run("third")
    assert dict(ran) == {"first": 2, "second": 2, "third": 1}


@pytest.mark.parametrize("kind", ["ImportError", "ModuleNotFoundError", "not here"])
def test_a_stage_that_need_not_run_says_in_a_line_why_it_did_not(tmp_path, ran, capsys, kind):
    study = Study(SimpleNamespace(**vars(EXPERIMENT) | {"kind": kind}), RecordStore(tmp_path), jobs=1)
    assert study.run("perhaps") == {}
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("It did not run here: 1 of 1 runs of perhaps failed")
    assert "no, not here" in line
    with pytest.raises(RuntimeError, match="1 of 1 runs of surely failed"):
        study.run("surely")


@pytest.mark.parametrize("kind", ["disk", "torch", "RuntimeError", "TypeError", "ZeroDivisionError"])
def test_a_stage_that_need_not_run_fails_for_whatever_else_goes_wrong(tmp_path, ran, kind):
    study = Study(SimpleNamespace(**vars(EXPERIMENT) | {"kind": kind}), RecordStore(tmp_path), jobs=1)
    with pytest.raises(RuntimeError, match=r"1 of 1 runs of perhaps failed.*no, not here"):
        study.run("perhaps")


def test_a_stage_that_need_not_run_need_not_be_committed(tmp_path, ran, capsys):
    study = Study(EXPERIMENT, CommittedStore(tmp_path))
    assert study.run("perhaps") == {}
    assert capsys.readouterr().out == "It did not run here: no records\n"
    with pytest.raises(NoRecord, match="1 of 1 runs of surely have no record"):
        study.run("surely")


def test_an_unknown_stage_names_the_nearest(study):
    with pytest.raises(ConfigError, match=r"stage must be one of .* got 'frist'; did you mean 'first'\?"):
        study.run("frist")


def test_theory_is_a_stage_per_kind_of_check_whatever_the_parameters(study, ran):
    found = study.theory()
    assert {kind: [r.metrics["value"] for r in records] for kind, records in found.items()} == {
        "number": [10, 20],
        "on_data": [30],
    }
    assert [label for label, _ in ran] == ["theory: number", "theory: on_data"]


def test_puf_declares_stages_that_need_only_what_comes_before():
    before = []
    for stage in stages_of("puf"):
        assert set(stage.needs) <= set(before)
        before.append(stage.name)
    assert len(set(before)) == len(before)


# --- what is exported ---


def test_everything_asked_for_is_exported_and_nothing_else(study, tmp_path, monkeypatch):
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    study.store.run(toy_runs.number, {"value": 99})
    third = study.run("third")
    study.export()
    committed = CommittedStore(tmp_path / "figures" / "test" / "toy")
    assert study.out == committed.root
    exported = {record.key: record.metrics["value"] for record in committed.everything()}
    assert set(exported) == study.used
    assert sorted(exported.values()) == [1, 2, 3, 4]  # 3 is in two stages

    again = Study(EXPERIMENT, committed)
    assert again.run("third") == third
    before = [path.read_bytes() for path in sorted(committed.root.iterdir())]
    again.export()  # what was read from there stays as it is
    assert [path.read_bytes() for path in sorted(committed.root.iterdir())] == before


@pytest.fixture
def own_figures(tmp_path, monkeypatch):
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    return tmp_path / "figures"


def test_what_a_reader_changes_takes_no_place_of_the_profiles(own_figures, capsys):
    """Figures, claims and records go beside the profiles, wherever a notebook says `study.out`; and a line says so."""
    quick = experiment_of("hf_kcu").of("quick")
    assert Study(quick).out == own_figures / "quick" / "hf_kcu"
    assert Study(experiment_of("hf_kcu").of("quick", rounds=quick.rounds)).out == own_figures / "quick" / "hf_kcu"
    assert capsys.readouterr().out == ""
    changed = Study(quick.changed(rounds=quick.rounds + 1))
    where = own_figures / "changed" / "quick" / "hf_kcu"
    assert changed.out == where
    [line] = capsys.readouterr().out.splitlines()
    assert line == f"These are not quick's own values: what is shown goes to {where}, and what quick has stays"
    changed.export()
    assert (where / "records.jsonl").exists()
    assert not (own_figures / "quick").exists()


def test_what_a_reader_changes_is_drawn_from_either_folder(own_figures, monkeypatch):
    """A trial of fewer settings needs no run beyond the profile's; another needs the reader's own."""
    quick = experiment_of("hf_kcu").of("quick")
    changed, store = quick.changed(rounds=quick.rounds + 1), RecordStore(own_figures.parent / "records")
    one, two = (store.run(toy_runs.number, {"value": value}) for value in (1, 2))
    store.export([one.key], own_figures / "quick" / "hf_kcu")
    store.export([two.key], own_figures / "changed" / "quick" / "hf_kcu")
    monkeypatch.setenv("FU_FIGURES_ONLY", "1")
    assert {record.key for record in Study(changed).store.everything()} == {one.key, two.key}
    assert {record.key for record in Study(quick).store.everything()} == {one.key}


def test_git_does_not_see_what_a_reader_changes():
    told = subprocess.run(
        ["git", "-C", ROOT, "check-ignore", "figures/changed/quick/puf/runs.csv", "figures/quick/puf/runs.csv"],
        capture_output=True, text=True,
    )  # fmt: skip
    if told.returncode > 1:
        pytest.skip("needs git")
    assert told.stdout.split() == ["figures/changed/quick/puf/runs.csv"]


# --- the frame ---


def record(key, **metrics):
    return Record("f", key, {}, "", "0", metrics, [], None, {})


A, B = (Cell("clients", "digits/iid/mlp", seed, "client-0", "PUF") for seed in (0, 1))
C = B._replace(method="NoT", label="sweep", condition="ring")
PLANTED = {
    A: record("a", test={"acc": 90.0, "rounds": 3}, validation={"acc": 91.0, "rounds": 2}),
    B: record("b", test={"acc": 80.0, "rounds": 5, "kl": 0.5}),
    C: record("c", unsupported="cannot"),
}


def per_stop(cell, r):
    return [{"stop": stop, **metrics} for stop, metrics in r.metrics.items() if stop != "unsupported"]


def test_a_tidy_frame_has_a_row_per_metric_and_none_for_runs_without_a_result():
    frame = tidy(PLANTED, per_stop, index=["stop"])
    assert list(frame) == [*Cell._fields, "stop", "metric", "value", "record"]
    assert frame[["seed", "stop", "metric", "value", "record"]].to_numpy().tolist() == [
        [0, "test", "acc", 90.0, "a"],
        [0, "test", "rounds", 3, "a"],
        [0, "validation", "acc", 91.0, "a"],
        [0, "validation", "rounds", 2, "a"],
        [1, "test", "acc", 80.0, "b"],
        [1, "test", "rounds", 5, "b"],
        [1, "test", "kl", 0.5, "b"],
    ]
    assert "stop" not in set(frame.metric)


def test_the_wide_frame_has_a_row_per_run_and_columns_in_order_of_appearance():
    frame = wide(tidy(PLANTED, per_stop, index=["stop"]))
    assert list(frame) == [*Cell._fields, "stop", "acc", "rounds", "kl", "record"]
    assert frame[["seed", "stop", "acc", "rounds", "record"]].to_numpy().tolist() == [
        [0, "test", 90.0, 3, "a"],
        [0, "validation", 91.0, 2, "a"],
        [1, "test", 80.0, 5, "b"],
    ]
    assert np.isnan(frame.kl[0])
    assert frame.kl[2] == 0.5
    assert pd.api.types.is_integer_dtype(frame["rounds"])  # metrics keep their types


def test_wide_and_back_is_the_tidy_frame():
    whole = {cell: r for cell, r in PLANTED.items() if cell != A}
    frame = tidy(whole, per_stop, index=["stop"])
    places = [*Cell._fields, "stop", "record"]
    back = wide(frame).melt(places, var_name="metric").sort_values(["record", "stop"], ignore_index=True)
    pd.testing.assert_frame_equal(back[list(frame)], frame, check_dtype=False)


def test_cells_that_differ_in_any_field_keep_rows_of_their_own():
    cells = [A, *(A._replace(**{name: "other"}) for name in Cell._fields if name != "seed"), A._replace(seed=7)]
    frame = wide(tidy({cell: record(f"r{n}", acc=n) for n, cell in enumerate(cells)}, lambda cell, r: [r.metrics]))
    assert frame.acc.tolist() == list(range(len(cells)))
    assert list(frame[list(Cell._fields)].itertuples(index=False, name=None)) == [tuple(cell) for cell in cells]


def test_of_nothing_there_is_a_frame_without_rows():
    assert tidy({}, per_stop, index=["stop"]).empty
    frame = wide(tidy({}, per_stop, index=["stop"]))
    assert frame.empty
    assert {*Cell._fields, "stop", "record"} <= set(frame)
