"""Notebook 01_puf run headless: it obeys its parameters, its figures need records only, and kill -9 changes no file."""

import ast
import contextlib
import re
import subprocess
import time

import pandas as pd
import psutil
import pytest

from fu_papers.lab import paths, reproduce
from fu_papers.problems import Setting
from tests.notebook_lab import (
    DIGITS,
    PARAMETERS,
    PATTERNS,
    RECORDS,
    Lab,
    check_drawn_again,
    check_no_paths,
    closing_cell,
    results,
)

ENOUGH = 8  # records at which the run is killed: all trainings are done, unlearning is under way


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, data):
    """The notebook, run from beginning to end in one process."""
    lab = Lab(tmp_path_factory.mktemp("tiny"), data)
    done = lab.reproduce("--jobs", "1")
    assert done.returncode == 0, done.stderr
    return lab


def test_a_misspelt_parameter_is_refused_and_the_nearest_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("FU_RUNS", str(tmp_path))
    assert reproduce.main(["--paper", "puf", "-p", "ronds", "2"]) == 2
    assert "-p: puf has no parameter 'ronds'; did you mean 'rounds'?" in capsys.readouterr().err
    assert reproduce.main(["--paper", "puf", "-p", "rounds", "2.5"]) == 2
    assert "rounds must be a valid integer, got 2.5" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_every_record_carries_the_overridden_parameters_and_the_profiles_for_the_rest(tiny):
    configs = [record["config"] for record in tiny.records().values()]
    assert len(configs) == RECORDS
    for config in configs:
        if "tables" in config:  # the paper's own costs: no parameter of ours is in them
            continue
        for name in ("clients", "n_train", "n_val", "n_test"):
            assert config[name] == PARAMETERS[name]
        assert Setting(*(config[name] for name in ("dataset", "split", "alpha", "model"))) in (
            Setting.parse(DIGITS),
            Setting.parse(PATTERNS),
        )
    trained = [config for config in configs if "rounds" in config]
    assert {(c["rounds"], c["epochs"], c["seed"], c["batch_size"]) for c in trained} == {
        (2, 1.0, seed, 10)
        for seed in (0, 1)  # the attacker's model and a second retraining are another seed's
    }
    unlearned = [config for config in trained if "method" in config]
    assert {(c["request"], c["seed"]) for c in unlearned} == {("client-1", 0)}
    assert {c["cap"] for c in unlearned if c["method"] in ("NoT", "PGA")} == {2}
    assert [c["request"] for c in trained if "method" not in c].count("client-1") == 4


def test_its_figures_and_tables_exist(tiny):
    pictures = [name for name in tiny.shown() if name.endswith(".png")]
    recovery = [name for name in pictures if "fig4_recovery" in name]
    assert len(recovery) == 2
    names = ("fig3_label_distribution", "training", "forget_gap")
    assert {f"changed/quick/puf/{name}.png" for name in names} <= {*pictures}
    runs = pd.read_csv(tiny.out / "runs.csv", comment="#")
    assert len(runs) == 2 * 14 * 2  # settings, methods, stop rules
    assert set(runs.setting) == {DIGITS, PATTERNS}
    for table in tiny.out.glob("*.csv"):
        first, _, rest = table.read_text(encoding="utf-8").partition("\n")
        assert re.match("# source: (Digits|PUF's Tables|declared beside)", first)
        assert rest


def test_claims_has_all_55_rows_and_verdicts_on_puf(tiny):
    claims = pd.read_csv(tiny.out.parent / "claims.csv", keep_default_na=False).set_index("id")
    assert len(claims) == 55
    assert (claims.paper == "puf").sum() == 14
    assert claims.verdict["P5"] == "holds"
    assert claims.verdict["P2"] in ("undetermined", "does not hold")  # one target and one seed
    assert claims.verdict["P4"] == "not run"  # needs two targets
    assert claims.reason["P4"] == "needs NoT and at least two targets"
    assert set(claims.records["P5"].split()) <= set(tiny.records())


def test_the_executed_copy_is_kept_and_ran_to_its_end(tiny):
    closing = closing_cell(tiny.runs / "executed" / "quick" / "01_puf.ipynb")
    assert ast.literal_eval(closing)["runs"] == RECORDS


def test_nothing_shown_or_recorded_has_a_path_of_this_machine(tiny):
    check_no_paths(tiny, "claims.csv")


def test_figures_only_draws_the_same_bytes_from_records_without_data_or_training(tiny, tmp_path):
    check_drawn_again(tiny, tmp_path)


# --- kill -9 in the middle of `make reproduce` ---


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
    """With the very files of an undisturbed run."""
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
