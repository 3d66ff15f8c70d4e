"""Notebook 05_arena runs headless on a tiny federation: it obeys parameters, and figures need records only."""

import ast

import pandas as pd
import pytest

from fu_papers.arena.grid import CONTROLS
from fu_papers.lab.notebooks import notebooks
from tests.arena_lab import SMALL
from tests.notebook_lab import Lab, check_drawn_again, check_no_paths, closing_cell

pytestmark = pytest.mark.slow
SHOWN = {
    *("map.png", "map_short.png", "places.png", "margins.png", "judges.png", "label_distribution.png"),
    *("ranking.csv", "controls.csv", "entrants.csv", "judges.csv", "binned.csv", "which.csv", "runs.csv"),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, data):
    lab = Lab(tmp_path_factory.mktemp("tiny"), data, "arena", SMALL)
    done = lab.reproduce("--jobs", "1")
    assert done.returncode == 0, done.stderr
    return lab


def test_every_record_carries_the_overridden_parameters(tiny):
    configs = [record["config"] for record in tiny.records().values()]
    trained = [config for config in configs if "rounds" in config]
    assert len(trained) > 15
    for config in trained:
        assert (config["n_train"], config["n_test"], config["clients"], config["rounds"]) == (120, 80, 4, 4)
    served = {config["method"] for config in trained if "method" in config}
    assert served == {*SMALL["methods"], *CONTROLS} - {"Retrain again"}


def test_its_figures_and_tables_exist_and_name_their_source(tiny):
    assert {path.name for path in tiny.out.iterdir()} >= SHOWN
    assert len(list(tiny.out.glob("place_*.csv"))) == 1
    for table in tiny.out.glob("*.csv"):
        assert table.read_text(encoding="utf-8").startswith("# source: ")
    ranking = pd.read_csv(tiny.out / "ranking.csv", comment="#")
    assert {"SISA", "do nothing (Original)", "Constant output"} <= set(ranking.method)


def test_its_closing_checks_hold_at_any_size(tiny):
    closing = ast.literal_eval(closing_cell(tiny.runs / "executed" / "quick" / notebooks()["arena"].name))
    assert closing.pop("controls") == []
    assert closing.pop("binned KLoM of constant margins") == "0"
    assert set(closing.values()) == {True}


def test_nothing_shown_or_recorded_has_a_path_of_this_machine(tiny):
    check_no_paths(tiny)


def test_figures_only_draws_the_same_bytes_from_records_without_data_or_training(tiny, tmp_path):
    check_drawn_again(tiny, tmp_path)
