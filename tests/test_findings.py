"""The tables of docs/findings.md are those of the committed records."""

import runpy

import pandas as pd
import pytest

from fu_papers.lab.paths import ROOT

FINDINGS = runpy.run_path(str(ROOT / "docs" / "make_findings.py"))


def test_the_page_is_in_step_with_the_records():
    committed = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert committed == FINDINGS["findings_page"](), "python docs/make_findings.py"


@pytest.mark.parametrize("name", FINDINGS["TABLES"])
def test_every_table_stands_on_the_page_and_has_controls(name):
    table = FINDINGS["TABLES"][name]()
    assert f"<!-- {name}: python docs/make_findings.py -->\n{table}" in FINDINGS["PAGE"].read_text(encoding="utf-8")
    assert "othing" in table
    assert "Retrain" in table
    assert len({line.count(" | ") for line in table.splitlines()}) == 1


def runs(off, reached, rounds=3.0):
    """One run a seed of two targets, `off` points from Retrain."""
    places = [(f"client-{target}", seed) for target in range(2) for seed in range(len(off) // 2)]
    frame = pd.DataFrame(places, columns=["request", "seed"])
    return frame.assign(delta_forget=off, reached=reached, rounds=rounds, bytes_gain=10.0, method="PUF-Special")


def test_who_gave_up_is_counted_and_in_no_mean():
    cells = FINDINGS["_puf_cells"]
    some = runs([1.0, 2.0, 3.0, 2.0, 1.0, 90.0], [True] * 5 + [False])
    assert cells(some)[0].startswith("1.8 [")
    assert cells(some)[1:] == ["1 of 6", "3.0 (10 %)"]
    assert cells(runs([9.0] * 4, False)) == ["–", "4 of 4", "–"]
    assert cells(runs([1.0, 2.0, 3.0, 2.0], True, float("nan")))[1:] == ["", "–"]
    assert FINDINGS["_mean_off"](some) == 1.8
    half = runs([0.1, 0.1, 9.0, 9.0], [True, True, False, False])
    assert cells(half) == ["–", "2 of 4", "–"]
    assert FINDINGS["_mean_off"](half) == FINDINGS["_mean_off"](runs([9.0] * 4, False)) == float("inf")
    assert cells(some[:0]) == ["–", "", "–"]  # not run there
    assert FINDINGS["_mean_off"](some[:0]) == float("inf")


def test_an_interval_of_a_distance_does_not_reach_below_zero():
    assert FINDINGS["_puf_cells"](runs([0.0, 0.1, 4.0, 0.2], True))[0].startswith("1.1 [0.0, ")


def test_a_run_that_diverged_is_counted_and_in_no_mean():
    frame = pd.DataFrame({"diverged": [False, True], "forget": [30.0, 0.0], "forget_retrain": [32.5, 30.0],
                          "test": [50.0, 10.0], "test_retrain": [51.0, 50.0]})  # fmt: skip
    assert FINDINGS["_fedora_cell"](frame) == "2.5 (-1.0, 1 diverged)"
