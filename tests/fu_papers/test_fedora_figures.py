"""What FedORA's figures and tables show: joins and formulas on planted records, all of them on tiny runs."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from PIL import Image
from scipy.stats import norm

from fu_papers.controls import AGAIN, CONTROLS, DESTROYED, FLOOR, REFERENCES
from fu_papers.fedora import controls, figures, further_tables, page, results, rules, show, tables
from fu_papers.fedora.choices import ABLATIONS, CURVES, CURVES_OF_FORMS, READINGS, STEPS
from fu_papers.fedora.grid import (
    ELEMENT_WISE,
    FORMS,
    METHODS,
    NO_THRESHOLD,
    PEERS,
    PUBLISHED,
    Task,
    has_backdoor,
    twin,
)
from fu_papers.fedora.results import SHOWN, shown
from fu_papers.lab.record import Record
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.look import colour, mean_spread, published, show_table, style
from fu_papers.problem_figures import spread_or_dash
from fu_papers.study import Cell, Study, wide
from tests.fedora_lab import experiment
from tests.pictures import faults

DIGITS, CIFAR, TABLE = "digits/mlp", "cifar10/resnet18", "breast_cancer/mlp"
TINY = experiment(
    datasets=[DIGITS], seeds=[0], classes=[[2, 1]], percents=[[50, 25]], n_train=[200], n_val=[100], n_test=[100],
    epochs=[2], lr=[0.2], batch_size=[16], iterations=2, ga_epochs=1, cvfu_epochs=1, weights=[0.5, 5.0],
    ratios=[0.05, 1.0], few=[20, 1], few_ratios=[0.0], embedding_noise=[0.5], repeats=1, tuning_trials=2,
    splits=["1+7"],
)  # fmt: skip
PAPERS = TINY.changed(datasets=[CIFAR], classes=[[2, 3]], percents=[[50, 50]])
MAIN, WHOLE = Task(DIGITS, "classes-2-50"), Task(DIGITS, "classes-2-100")
NAMES = [shown(method) for method in (*CONTROLS, *METHODS)]
PAPER = tables.PAPER


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    study = Study(TINY, RecordStore(tmp_path_factory.mktemp("fedora")), jobs=1)
    with single_threaded():
        made = SimpleNamespace(descriptions=study.run("settings"))
        made.unlearnings, made.speeds = study.run("unlearning") | study.run("controls"), study.run("timing")
        made.floor, made.tuning = study.run("noise floor"), study.run("tuning")
    made.runs = wide(results.of_runs(made.unlearnings, made.floor))
    return made


def planted(cells):
    """Hand-made records of (cell, task): what is not as in the rest."""
    base = dict.fromkeys(results.METRICS, 0.5) | {"loss": 1.0, "images": 10, "up": 1, "down": 1}
    return {
        cell: Record(
            "f", f"k{i}", {**dict.fromkeys(results.CONDITIONS, 0.0), "split": "2"}, "", "0",
            {**base, "poison": has_backdoor(cell), **metrics}, [], None, {},
        )
        for i, (cell, metrics) in enumerate(cells.items())
    }  # fmt: skip


def frame_of(cells):
    return wide(results.of_runs(planted(cells), {}))


def cell(method="GA", *, task=MAIN, seed=0, backdoor=False, group="main", label=""):
    place = task.cell(group, seed, method, label)
    return twin(place) if backdoor else place


# --- the frame -------------------------------------------------------------------------------------------------------


def test_a_backdoors_success_is_that_of_the_poisoned_twin_of_the_same_seed():
    cells = {}
    for seed in (0, 1):
        for method, asr in (("Original", 90.0), ("Retrain", 10.0), ("GA", 50.0)):
            cells[cell(method, seed=seed)] = {"asr": 1.0 + seed, "test": 80.0}
            cells[cell(method, seed=seed, backdoor=True)] = {"asr": asr + seed, "test": 70.0}
            cells[cell(method, seed=seed, task=WHOLE)] = {"asr": 5.0}
    runs = frame_of(cells).set_index(["request", "seed", "method"])
    assert len(runs) == 12  # a twin is no row of its own
    for seed in (0, 1):
        row = runs.loc[MAIN.request, seed, "GA"]
        assert (row.asr, row.clean_asr, row.asr_original, row.asr_retrain) == (
            50 + seed,
            1 + seed,
            90 + seed,
            10 + seed,
        )
        assert (row.test, row.poisoned_test, row.delta_asr) == (80, 70, 40)
        without = runs.loc[WHOLE.request, seed, "GA"]
        assert np.isnan(without.asr)
        assert without.clean_asr == 5


def test_references_are_those_of_the_same_task_and_seed_whatever_the_group():
    noisy = MAIN._replace(noise=0.2)
    cells, number = {}, {}
    for i, task in enumerate((MAIN, WHOLE, noisy)):
        number[task.request, task.condition] = i
        for seed in (0, 1):
            group = "noisy" if task.noise else "main"
            cells[cell("Original", task=task, seed=seed, group=group)] = {"test": 100.0 + 10 * i + seed}
            cells[cell("Retrain", task=task, seed=seed, group=group)] = {"test": 10.0 * i + seed}
            cells[cell("FedORA", task=task, seed=seed, group=group)] = {"test": 10.0 * i - 3}
    cells[cell("FedORA", group="ablation", label="w/o AS")] = {"test": 50.0}
    cells[cell("FedORA", backdoor=True)] = {}
    runs = frame_of(cells)
    assert len(runs) == len(cells) - 1
    for row in runs[(runs.method == "FedORA") & (runs.group != "ablation")].itertuples():
        i = number[row.request, row.condition]
        assert (row.test_retrain, row.test_original) == (10 * i + row.seed, 100 + 10 * i + row.seed)
        assert row.delta_test == 3 + row.seed
        assert row.labels == (row.request == WHOLE.request)
    (ablation,) = runs[runs.group == "ablation"].itertuples()
    assert (ablation.test_retrain, ablation.test_original, ablation.delta_test) == (0, 100, 50)


def with_references(cells):
    """The same cells, and those that every frame needs beside them."""
    both = {c._replace(group="main", method=m, label="") for c in cells for m in REFERENCES if not has_backdoor(c)}
    return {**{reference: {} for reference in both}, **cells}


def test_rows_of_a_table_are_a_tasks_all_seeds_and_no_others():
    noisy = MAIN._replace(dp_std=0.5)
    cells = {cell(seed=seed, task=task): {} for seed in (0, 1) for task in (MAIN, noisy)}
    cells[cell(group="noisy")] = cells[cell(label="other")] = cells[cell(backdoor=True)] = {}
    runs = frame_of(with_references(cells))
    found = results.rows_of(runs, "main", MAIN, "GA")
    assert found.seed.tolist() == [0, 1]
    assert set(found.condition) == {""}
    assert len(results.rows_of(runs, "main", noisy, "GA")) == 2
    assert results.rows_of(runs, "main", MAIN, "GA", "other").seed.tolist() == [0]
    assert results.rows_of(runs, "main", WHOLE, "GA").empty


def test_the_csv_says_conditions_as_numbers_and_gives_every_row_a_label(tiny):
    csv = results.saved(tiny.runs)
    assert list(csv)[:10] == [
        "dataset", "request", "noise", "dp_std", "dp_clip", "split", "group", "seed", "label", "method",
    ]  # fmt: skip
    assert not {"setting", "condition", "record"} & set(csv)
    assert len(csv) == len(tiny.runs)
    private = csv[csv.group == "private"]
    assert set(zip(private.dp_std, private.dp_clip, strict=True)) == {(0.5, 0.0), (0.5, 1.0)}
    assert set(csv[csv.group == "noisy"].noise) == {TINY.party_noise}
    main = csv[(csv.group == "main") & (csv.label != PUBLISHED)]
    assert (main.label == main.method).all()
    assert list(dict.fromkeys(csv[csv.group == "ablation"].label)) == [*ABLATIONS, *STEPS]
    assert set(csv[csv.group == "small"].label) == {*CONTROLS, "0"}


def test_a_number_that_one_seed_lacks_is_a_dash():
    assert spread_or_dash(pd.Series([1.0, 2.0])) == "1.5 ± 0.7"
    assert spread_or_dash(pd.Series([1.0, np.nan])) == spread_or_dash(pd.Series([], dtype=float)) == "–"


# --- all tables and figures ------------------------------------------------------------------------------------------


def row_cell(row):
    """The place of a run in the frame."""
    return Cell(row.group, row.setting, row.seed, row.request, row.method, row.label, row.condition)


def test_every_run_has_references_and_every_backdoored_task_a_success_rate(tiny):
    assert len(tiny.runs) == sum(not has_backdoor(c) for c in tiny.unlearnings)
    assert tiny.runs[["test_retrain", "test_original", "gap_retrain"]].notna().all().all()
    blocks = [list(tiny.runs[tiny.runs.method == m].groupby(["group", "request", "condition"]).size().index)
              for m in CONTROLS]  # fmt: skip
    assert blocks[0] == blocks[1] == blocks[2] == blocks[3]
    for row in tiny.runs.itertuples():
        task = Task(row.setting, row.request, row.noise, row.dp_std, row.dp_clip, row.split)
        assert task.condition == row.condition
        poisoned = tiny.unlearnings.get(twin(row_cell(row)))
        assert np.isnan(row.asr) == (poisoned is None or "diverged" in poisoned.metrics)
    assert set(tiny.runs[tiny.runs.method == "Retrain"].gap) == {0.0}


def test_tables_4_and_5_have_every_setting_and_method_and_its_own_numbers(tiny):
    samples, labels = (tables.table_4_5(TINY, tiny.runs, labels=labels) for labels in (False, True))
    rows = [*map(shown, CONTROLS), *(f"{shown(m)}{of}" for m in METHODS for of in ("", f", {PUBLISHED}"))]
    peers = [*map(shown, PEERS)]  # TINY has no request to try them on: one row, as published
    assert samples["method"].tolist() == [*rows, *peers] * 2
    assert labels["method"].tolist() == [*(row for row in rows if SHOWN["FedORA calibrated"] not in row), *peers] * 2
    refused = samples.set_index("method").loc[peers, "test acc. (%)"]
    assert set(refused) == {"– (few-shot label unlearning forgets whole classes, not some of their samples)"}
    assert set(samples[samples["method"].isin(peers)].iloc[0][4:]) == {"–"}
    served = labels[labels["method"] == peers[0]].iloc[0]
    few = tiny.unlearnings[cell("Few-shot", task=WHOLE)].metrics
    assert (served["test acc. (%)"], served["BD-ASR (%)"]) == (f"{few['test']:.1f}", "–")
    assert "reconstruction" in peers[0]
    assert samples["request"].unique().tolist() == ["m=2, n=50 %", "m=1, n=25 %"]
    assert "all classes (%)" in labels
    assert "all classes (%)" not in samples
    row = samples[samples["method"] == "CVFU"].iloc[0]
    clean, dirty = (tiny.unlearnings[cell("CVFU", backdoor=backdoor)].metrics for backdoor in (False, True))
    assert row["test acc. (%)"] == f"{clean['test']:.1f}"
    assert row["MIA-ASR"] == f"{clean['mia']:.3f}"
    assert row["BD-ASR (%)"] == f"{dirty['asr']:.1f}"
    assert row["of the affected classes (%)"] == f"{clean['test_affected']:.1f}"
    assert row["KL to Retrain, forgotten"] == f"{clean['kl']:.2f}"
    assert set(samples["paper's test acc. (%)"]) == set(labels["paper's test acc. (%)"]) == {"–"}
    assert "nan" not in show_table(samples, "s").data


def test_the_papers_values_stand_beside_ours_where_data_set_and_setting_are_the_same(tiny):
    """As if digits had been CIFAR-10, with the paper's first setting and one of ours."""
    runs = tiny.runs.replace({"setting": {DIGITS: CIFAR}})
    runs = runs.replace({"request": {"classes-1-25": "classes-3-50"}})
    table = tables.table_4_5(PAPERS, runs, labels=False).set_index(["request", "method"])["paper's test acc. (%)"]
    assert table["m=2, n=50 %", "Retrain"] == "81.55"
    assert table["m=2, n=50 %", SHOWN["FedORA"]] == "81.65"
    assert table["m=2, n=50 %", SHOWN["FedORA vector"]] == "–"  # theirs stands once
    assert set(table["m=3, n=50 %"]) == {"–"}
    labels = tables.table_4_5(PAPERS, runs, labels=True).set_index(["request", "method"])["paper's test acc. (%)"]
    assert labels["m=2, n=100 %", "Retrain"] == "81.35"


@pytest.mark.parametrize("table", ["table_iv", "table_v"])
def test_every_published_accuracy_is_found_and_nothing_else(table):
    names = {theirs: ours for ours, theirs in tables.PAPER_NAMES.items()}
    for row in published("fedora", table).itertuples():
        task = Task(f"{names[row.dataset]}/cnn", f"classes-{row.unlearning_classes_m}-{row.unlearning_pct_n}")
        assert tables.paper_accuracy(task, row.method) == f"{100 * row.test_acc:.2f}"
        for wrong in ("digits/cnn", "tiny_imagenet_100/cnn"):
            assert tables.paper_accuracy(task._replace(dataset=wrong), row.method) == "–"
        other = task._replace(request=f"classes-{row.unlearning_classes_m}-{row.unlearning_pct_n - 1}")
        assert tables.paper_accuracy(other, row.method) == "–"


def test_tables_6_to_9_have_their_rows_and_the_papers_numbers(tiny):
    six, seven, eight, nine = (
        getattr(tables, f"table_{n}")(TINY, tiny.runs, *([tiny.speeds] if n == 7 else [])).set_index(columns)
        for n, columns in ((6, ["method", "setting"]), (7, ["variant"]), (8, ["samples", "method"]), (9, ["clip"]))
    )
    names = [*NAMES, *(f"{shown(m)}, {PUBLISHED}" for m in FORMS)]
    assert six.index.tolist() == [(name, setting) for name in names for setting in ("IID", "Non-IID")]
    assert six.loc[("Retrain", "Non-IID"), PAPER] == "0.736 / 0.275 / 0.558 / 0.016"
    assert seven.index.tolist() == [*map(shown, CONTROLS), *ABLATIONS, *STEPS, PUBLISHED]
    assert seven.loc[FLOOR, "samples passed / FedORA's"] != seven.loc[FLOOR, "samples passed / FedORA's"]  # nan: none
    assert seven.loc["FedORA", "samples passed / FedORA's"] == 1
    assert seven.loc["w/o UL", "samples passed / FedORA's"] < 1 < seven.loc["w/o AB", "samples passed / FedORA's"]
    assert seven.loc["w/o AB", ["paper: seconds", "paper: time / FedORA's"]].tolist() == ["6.94", "2.80"]
    seconds = tiny.speeds[MAIN].metrics["seconds"]
    assert seven.loc["w/o AB", "seconds"] == round(seconds["w/o AB"], 3)
    assert seven.loc["w/o AB", "time / FedORA's"] == round(seconds["w/o AB"] / seconds["FedORA"], 2)
    assert eight.index.tolist() == [(n, name) for n in (20, 1) for name in (*map(shown, CONTROLS), "FedORA")]
    assert eight.loc[(1, "FedORA"), PAPER] == "0.792 / 0.000 / 0.500 / 0.000"
    assert eight.loc[(1, "Retrain"), PAPER] == "–"
    assert eight.loc[(1, "Retrain"), "unlearning acc. (%)"] in ("0.0", "100.0")  # all or nothing
    ours = [shown("FedORA"), f"{shown('FedORA')}, {PUBLISHED}"]
    assert nine["method"].tolist() == [*map(shown, CONTROLS), *ours] * 2
    assert nine.loc["off"]["ε of one embedding"].unique().tolist() == ["none: unbounded"]
    assert nine.loc["off"][PAPER].tolist() == [*"––––", "0.724 / 0.231 / 0.572 / 0.055", "–"]
    assert set(nine.loc[1.0][PAPER]) == {"–"}  # the paper does not clip
    readings = tables.readings_table(TINY, tiny.runs)
    assert readings["reading"].tolist() == [
        *map(shown, CONTROLS),
        *READINGS,
        f"{ELEMENT_WISE}, as the scalar dual was tuned",
    ]
    of_twins = [
        "BD-ASR (%)",
        "test acc. with backdoor (%)",
    ]  # which may diverge, and are ruined where weights are random
    kept = readings[~readings["test acc. (%)"].str.startswith("–")]
    assert set(readings["reading"]) - set(kept["reading"]) <= {"beta = 20, force that grows with it"}  # it diverges
    assert not kept.drop(columns=of_twins).isin(["–"]).any().any()


# --- controls --------------------------------------------------------------------------------------------------------


def test_a_second_retraining_is_the_other_seeds_with_differences_to_its_own(tiny):
    """One seed here: the other is one more."""
    (row,) = tiny.runs[(tiny.runs.group == "main") & (tiny.runs.request == MAIN.request)
                       & (tiny.runs.method == AGAIN)].itertuples()  # fmt: skip
    own, other = (tiny.unlearnings[cell(method)].metrics for method in ("Retrain", AGAIN))
    assert tiny.unlearnings[cell(AGAIN)].config["seed"] == 1
    assert (row.test, row.test_retrain) == (other["test"], own["test"])
    assert row.delta_forget == abs(other["forget"] - own["forget"])
    assert row.gap == tiny.floor[cell(AGAIN)].metrics["gap"] > 0
    assert row.asr == tiny.unlearnings[cell(AGAIN, backdoor=True)].metrics["asr"]
    without = wide(results.of_runs(tiny.unlearnings, {}))
    assert without[without.method.isin([AGAIN, DESTROYED])].gap.isna().all()


GOOD = {"Original": {"forget": 90.0}, "Retrain": {"forget": 50.0}, AGAIN: {"forget": 53.0}, DESTROYED: {"forget": 10.0}}
USE = {"Original": 81.0, "Retrain": 80.0, AGAIN: 78.0, DESTROYED: 10.0}
PLACES = controls.places(TINY)


def notes(table, where=None, seeds=(0, 1), **change):
    """The caption under a table where one control of one block, ((group, task), method), is changed. A value that is a
    pair has one per seed."""
    blocks = dict.fromkeys(place for places in PLACES.values() for place in places)
    cells = {}
    for (group, task), method, seed in itertools.product(blocks, CONTROLS, seeds):
        metrics = {**GOOD[method], "test": USE[method]}
        if where == ((group, task), method):
            metrics |= {name: value[seed] if isinstance(value, tuple) else value for name, value in change.items()}
        cells[task.cell(group, seed, method)] = metrics
    return controls.warned_of("T", TINY.changed(seeds=list(seeds)), frame_of(cells), table).removeprefix("T")


@pytest.mark.parametrize("table", PLACES)
def test_controls_that_come_out_as_they_must_are_not_mentioned(table):
    assert notes(table) == ""


@pytest.mark.parametrize("table", PLACES)
def test_every_block_of_a_table_is_checked_and_named_where_it_is_wrong(table):
    for place in PLACES[table]:
        told = notes(table, (place, AGAIN), forget=95.0)
        assert "Retrain again's forget gap (45.0) is not smaller than Original's forget gap (40.0)" in told
        many = len(PLACES[table]) > 1
        assert ("in 1 of" in told) == many
        if many:
            assert f"{results.request_title(place[1].request)}" in told
            assert place[1].condition in told
        assert "Destroyed's test accuracy (81.5) is not the lowest" in notes(table, (place, DESTROYED), test=81.5)


def test_controls_are_judged_by_intervals_and_what_seeds_leave_open_is_said():
    """Means of 23 against 40 points, but 3 and 43 by seed; and one seed says nothing."""
    (place,) = PLACES["vii"]
    told = notes("vii", (place, AGAIN), forget=(53.0, 93.0))
    assert "WRONG" not in told
    assert "2 seeds do not show that the controls are right: that Retrain again's forget gap (23.0) is smaller" in told
    assert "would)." in told
    assert "1 seed does not show that the controls are right" in notes("vii", seeds=(0,))
    assert notes("vii", (place, AGAIN), forget=(53.0, 54.0)) == ""


def test_where_random_weights_have_not_been_run_tables_have_dashes_and_say_so(tiny):
    """As in a profile whose records are older."""
    older = {c: r for c, r in tiny.unlearnings.items() if c.method != DESTROYED}
    runs = wide(results.of_runs(older, {}))
    for table in PLACES:
        assert "Destroyed has not been run here" in controls.warned_of("T", TINY, runs, table)
    six = tables.table_6(TINY, runs).set_index("method")
    assert set(six.loc[DESTROYED, "test acc. (%)"]) == {"–"}
    readings = tables.readings_table(TINY, runs).set_index("reading")
    assert set(readings.loc[DESTROYED]) == {"–"}
    assert DESTROYED not in set(tables.table_4_5(TINY, runs, labels=False)["method"])


def test_an_epsilon_needs_clipping():
    assert tables.embedding_epsilon(0.5, 0.0, 1e-5) == "none: unbounded"
    text = tables.embedding_epsilon(2.0, 1.0, 1e-5)
    assert text.endswith("(δ=1e-05)")
    mu = 2 * 1.0 / 2.0  # one sample can turn an embedding around: sensitivity over standard deviation

    def delta(epsilon):
        """Balle and Wang (2018), Theorem 8."""
        shares = (norm.cdf(sign * mu / 2 - epsilon / mu) for sign in (1, -1))
        return next(shares) - math.exp(epsilon) * next(shares)

    epsilon = float(text.split()[0])
    assert delta(epsilon + 0.05) <= 1e-5 < delta(epsilon - 0.05)


def rows_drawn(ax):
    """Of a panel of figures 4 to 7: name -> seeds, mean, and ends of the line, of every row that is not empty."""
    names = [tick.get_text() for tick in ax.figure.axes[0].get_yticklabels()]  # the same for all panels
    rows = {}
    for line in ax.lines:
        if line.get_linestyle() in ("--", ":") or line.get_marker() == "x":
            continue  # Retrain's mean, chance, and what is ruined
        rows.setdefault(names[int(line.get_ydata()[0])], []).append([float(x) for x in line.get_xdata()])
    return {name: {"line": sorted(ends), "seeds": seeds, "mean": mean[0]} for name, (ends, seeds, mean) in rows.items()}


def test_figures_4_to_7_have_a_row_per_method_with_every_seed_and_a_line_for_retrain(tiny):
    with style():
        accuracy = figures.figure_4_7(TINY, tiny.runs, labels=False, attacks=False)
        attacks = figures.figure_4_7(TINY, tiny.runs, labels=True, attacks=True)
    for ax, task in zip(accuracy.axes, TINY.sample_tasks(DIGITS), strict=True):
        found = {m: tiny.unlearnings[cell(m, task=task)].metrics for m in (*REFERENCES, *METHODS)}
        drawn = rows_drawn(ax)
        expected = {shown(m): metrics["forget"] for m, metrics in found.items() if "diverged" not in metrics}
        assert {name: row["mean"] for name, row in drawn.items()} == expected
        assert len(expected) >= len(METHODS) + 1
        (level,) = (line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "--")
        assert level == found["Retrain"]["forget"]
    for ax in attacks.axes:  # no calibrated threshold where whole classes go, and what diverged has none
        assert len(METHODS) - 1 <= len(rows_drawn(ax)) <= len(METHODS) + 1
    assert faults(accuracy) == faults(attacks) == []


def test_figures_4_to_7_show_seeds_in_percent_an_attack_around_chance_and_a_backdoor_from_0_to_100():
    cells = {}
    for seed, (mia, asr) in enumerate(((0.25, 0.0), (0.5, 0.0), (0.75, 100.0))):
        for method in (*REFERENCES, "GA"):
            of_retrain = {"mia": 0.5, "asr": 0.0} if method == "Retrain" else {"mia": mia, "asr": asr}
            cells[cell(method, seed=seed)] = of_retrain
            cells[cell(method, seed=seed, backdoor=True)] = of_retrain
    e = TINY.changed(seeds=[0, 1, 2], classes=[[2]], percents=[[50]])
    with style():
        fig = figures.figure_4_7(e, frame_of(cells), labels=False, attacks=True)
    membership, backdoor = fig.axes
    assert rows_drawn(membership)["GA"] == {"line": [25, 75], "seeds": [25, 50, 75], "mean": 50}
    assert rows_drawn(backdoor)["GA"] == {"line": [0, 100], "seeds": [0, 0, 100], "mean": pytest.approx(100 / 3)}
    assert rows_drawn(backdoor)["Retrain"] == {"line": [0, 0], "seeds": [0, 0, 0], "mean": 0}
    assert backdoor.get_xlim()[0] < 0 < 100 < backdoor.get_xlim()[1]  # a whole dot at either end
    assert 0 < membership.get_xlim()[0] < 25 < 75 < membership.get_xlim()[1] < 100
    assert fig.get_label().startswith("3 seeds ")
    assert faults(fig) == []


def test_figure_6_shows_the_backdoor_of_a_ruined_model_apart():
    """At workstation FedORA's models with a backdoor were at 10 to 20 % where Retrain was at 50."""
    cells = {}
    for seed, (test, asr) in enumerate(((80.0, 60.0), (80.0, 40.0), (20.0, 0.0))):
        for method in (*REFERENCES, "GA"):
            cells[cell(method, seed=seed)] = {"mia": 0.5, "asr": 0.0}
            of_ga = {"asr": asr, "test": test} if method == "GA" else {"asr": 5.0, "test": 80.0}
            cells[cell(method, seed=seed, backdoor=True)] = of_ga
    e = TINY.changed(seeds=[0, 1, 2], classes=[[2]], percents=[[50]])
    with style():
        fig = figures.figure_4_7(e, frame_of(cells), labels=False, attacks=True)
    backdoor = fig.axes[-1]
    (cross,) = (line for line in backdoor.lines if line.get_marker() == "x")
    names = [tick.get_text() for tick in fig.axes[0].get_yticklabels()]
    assert cross.get_xdata().tolist() == [0.0]
    assert list(cross.get_ydata()) == [names.index("GA")]  # in its method's row, not between two
    assert rows_drawn(backdoor)["GA"] == {"line": [40, 60], "seeds": [60, 40], "mean": 50}
    assert legend_of(fig)[-1] == "ruined: with a backdoor in it, over 20 % of Retrain's test accuracy lost; in no mean"
    assert faults(fig) == []


def legend_of(fig):
    (legend,) = fig.legends
    return [text.get_text() for text in legend.get_texts()]


def test_figures_4_to_7_have_attacks_around_chance_by_data_set_and_say_where_retrain_knows_little():
    """Of a table nobody tells more than a coin; of images they do, and Retrain is right about 14 % of the test data."""
    both = TINY.changed(
        datasets=[TABLE, DIGITS], classes=[[1], [2]], percents=[[50], [50]], n_train=[0, 200], n_val=[60, 100],
        n_test=[0, 100], epochs=[2, 2], lr=[0.2, 0.2], batch_size=[16, 16],
        tuning_requests=[["classes-1-50-from-2"], ["classes-1-50-from-7"]],
    )  # fmt: skip
    of_table, of_images = both.tasks(labels=False)
    cells = {}
    for task, mia, test in ((of_table, 0.51, 90.0), (of_images, 0.9, 14.2)):
        for method in (*REFERENCES, "GA"):
            metrics = {"mia": 0.5 if method == "Retrain" else mia, "test": test, "asr": 0.0}
            cells |= {cell(method, task=task, backdoor=backdoor): metrics for backdoor in (False, True)}
    runs = frame_of(cells)
    with style():
        fig = figures.figure_4_7(both, runs, labels=False, attacks=True)
        accuracy = figures.figure_4_7(both, runs, labels=False, attacks=False)
    table, images, *backdoors = fig.axes
    assert table.get_xlim() == pytest.approx((45.5, 55.5))
    assert images.get_xlim() == pytest.approx((46, 94))
    assert [len(chance_of(ax)) for ax in fig.axes] == [1, 1, 0, 0]
    assert chance_of(table) == chance_of(images) == [50]
    assert legend_of(fig) == ["Retrain, mean", "chance"]
    assert legend_of(accuracy) == ["Retrain, mean"]
    assert "MIA axes: by data set" in fig.get_label()
    assert "MIA" not in accuracy.get_label()
    for ax in (images, backdoors[1], accuracy.axes[1]):
        assert ax.get_title().endswith("\nRetrain: 14 % test acc.")
    assert not any("Retrain" in ax.get_title() for ax in (table, backdoors[0], accuracy.axes[0]))
    assert faults(fig) == faults(accuracy) == []


def chance_of(ax):
    return [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"]


def test_figures_4_to_7_are_kept_by_their_numbers(tiny, tmp_path):
    for labels, attacks in itertools.product((False, True), repeat=2):
        show.figure_4_7(TINY, tiny.runs, tmp_path, tiny.descriptions, labels=labels, attacks=attacks)
    names = ["fig4_forgetting.png", "fig5_forgetting.png", "fig6_attacks.png", "fig7_attacks.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_figures_4_to_7_name_the_data_that_is_drawn_and_no_other(tiny, tmp_path):
    """A table of two classes has no whole class to forget, and no panel in Figures 5 and 7."""
    both = TINY.changed(
        datasets=[TABLE, DIGITS], classes=[[1], [2, 1]], percents=[[50], [50, 25]], n_train=[0, 200], n_val=[60, 100],
        n_test=[0, 100], epochs=[2, 2], lr=[0.2, 0.2], batch_size=[16, 16],
        tuning_requests=[["classes-1-50-from-2"], ["classes-1-50-from-7"]],
    )  # fmt: skip
    of_table = tiny.runs[tiny.runs.request == MAIN.request].assign(setting=TABLE, request="classes-1-50")
    runs = pd.concat([of_table, tiny.runs], ignore_index=True)
    (described,) = tiny.descriptions.values()
    told = {name: replace(described, metrics={**described.metrics, "source": name}) for name in (TABLE, DIGITS)}
    for labels, attacks in itertools.product((False, True), repeat=2):
        show.figure_4_7(both, runs, tmp_path, told, labels=labels, attacks=attacks)
    named = {path.name[:4]: Image.open(path).info["Description"] for path in tmp_path.iterdir()}
    assert {name for name, text in named.items() if TABLE in text} == {"fig4", "fig6"}
    assert all(DIGITS in text for text in named.values())


def test_figure_8_draws_no_backdoor_of_a_ruined_model_and_counts_them(tiny):
    swept = tiny.runs.group.isin(["weights", "ratios"])
    whole = tiny.runs.assign(poisoned_diverged=False, asr=30.0, poisoned_test=80.0, poisoned_test_retrain=80.0)
    lost = whole.assign(poisoned_test=whole.poisoned_test.mask(swept & (whole.label == "5"), 63.9))
    for runs, ends, said in (
        (whole, 30.0, "highest"),
        (lost, float("nan"), "not in BD-ASR: 1 ruined (over 20 % of Retrain's test accuracy lost)"),
    ):
        with style():
            fig = figures.figure_8(TINY, runs)
        (line,) = (line for line in fig.axes[0].lines if line.get_label() == "BD-ASR (%)")
        assert line.get_ydata().tolist() == pytest.approx([30.0, ends], nan_ok=True)
        assert fig.get_label().endswith(said)


def test_figure_8_draws_means_over_the_values_of_both_sweeps(tiny):
    with style():
        fig = figures.figure_8(TINY, tiny.runs)
    for ax, group, x in zip(fig.axes, ("weights", "ratios"), (["0.5", "5"], ["5", "100"]), strict=True):
        lines = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
        assert len(lines) == 6  # four measures, Retrain, and the legend's cross
        assert [tick.get_text() for tick in ax.get_xticklabels()] == x
        labels = [f"{value:g}" for value in getattr(TINY, group)]
        found = [tiny.unlearnings[cell("FedORA", group=group, label=label)].metrics for label in labels]
        assert lines["unlearning acc. (%)"].get_ydata().tolist() == [m["forget"] for m in found]
        assert lines["unlearning acc. (%)"].get_xdata().tolist() == ax.get_xticks().tolist()
        assert lines["MIA-ASR (%)"].get_ydata() == pytest.approx([100 * m["mia"] for m in found])
    assert faults(fig) == []


def test_bands_of_figure_8_end_at_the_lowest_and_the_highest_seed(tiny):
    rows = tiny.runs[tiny.runs.group.isin(["weights", "ratios"])]
    more = [rows.assign(seed=seed, forget=forget) for seed, forget in ((1, 0.0), (2, 30.0))]
    runs = pd.concat([tiny.runs[~tiny.runs.group.isin(["weights", "ratios"])], *more], ignore_index=True)
    with style():
        fig = figures.figure_8(TINY, runs)
    for ax in fig.axes:
        bands = [band.get_paths()[0].vertices[:, 1] for band in ax.collections]
        assert (bands[1].min(), bands[1].max()) == (0, 30)  # mean ± deviation would go below 0


def test_the_trace_ends_at_the_score_that_the_table_of_violations_shows(tiny):
    with style():
        fig = figures.trace(TINY, tiny.unlearnings)
    table = tables.violations_table(TINY, tiny.unlearnings)
    assert len(table) == 2 * len(FORMS) + 2 * (len(FORMS) - 1)
    for ax in fig.axes:
        ax.set_xlim(0, 2)  # there is no half iteration
        assert all(float(tick).is_integer() for tick in ax.get_xticks())
    thresholds = [line for line in fig.axes[0].lines if line.get_linestyle() == ":" and len(line.get_xdata()) == 2]
    assert len(thresholds) == len(FORMS) - 1  # the element-wise dual sees none
    curves = [line for line in fig.axes[0].lines if line.get_linestyle() != ":" and len(line.get_xdata()) > 2]
    for form, row in zip(FORMS, table.itertuples(), strict=False):
        last = tiny.unlearnings[cell(form)].rounds[-1]
        assert row.score == f"{last['score']:.3f}"
        assert row.met == ("–" if form == NO_THRESHOLD else "1 of 1" if last["residual"] <= 0 else "0 of 1")
        assert (row.threshold == "–") == (form == NO_THRESHOLD)
        assert row.ended == f"{tiny.unlearnings[cell(form)].metrics['ended']['outcome']} 1"
        assert last["score"] in [line.get_ydata()[-1] for line in curves]


def test_parties_and_sources_are_those_described(tiny):
    table = tables.parties_table(tiny.descriptions)
    assert table["party 2: features"].tolist() == ["1 × 8 × 4"]
    assert table["active party: parameters"].tolist() == ["650"]
    assert results.source(tiny.descriptions).endswith("; bottoms: mlp")
    assert results.source(tiny.descriptions, [CIFAR]) == ""
    assert [results.request_title(text) for text in ("samples-1", "samples-50")] == ["1 sample", "50 samples"]


# --- cost ------------------------------------------------------------------------------------------------------------

OPTIONS = {"GA": {"epochs": 5}, "ICO": {"epochs": 1, "share": 0.5}, "CVFU": {"epochs": 3},
           "FedORA": {"iterations": 10, "ratio": 0.05}}  # fmt: skip


def timed(dataset, seconds, images, sent=256, **metrics):
    costs = {name: {"images": images, "up": sent * images, "down": sent * images} for name in seconds}
    sizes = {"n_forget": 20, "n_retain": 100, "embedding": 64, "options": OPTIONS}
    found = {"seconds": seconds, "costs": costs, **sizes, **metrics}
    return {Task(dataset, "classes-2-50"): Record("f", "t", {"epochs": 7}, "", "0", found, [], None, {})}


SECONDS = {"Retrain": 10.0, "GA": 2.0, "ICO": 5.0, "CVFU": 4.0, "FedORA": 2.5}


def test_table_2_computes_its_formulas_in_samples_and_bytes():
    table = tables.table_2(TINY.changed(epochs=[7]), timed(DIGITS, SECONDS, 350)).set_index("method")
    expected = {
        "Retrain": 7 * 100, "GA": 5 * 20, "ICO": 20 + 0.5 * 100, "CVFU": 3 * 100, "FedORA": 10 * (20 + 0.05 * 100),
    }  # fmt: skip
    assert table["samples by formula"].to_dict() == expected
    assert table["T"].to_dict() == {"Retrain": 7, "GA": 5, "ICO": 1, "CVFU": 3, "FedORA": 10}
    assert table["counted / formula"].to_dict() == {m: round(350 / samples, 2) for m, samples in expected.items()}
    assert table.loc["Retrain", "MB by formula"] == round(700 * 2 * 64 * 4 / 1e6, 3)  # float32, up and down
    assert set(table["MB counted"]) == {round(350 * 2 * 256 / 1e6, 3)}


def test_what_diverged_when_it_was_timed_has_no_row_in_table_2():
    seconds = {name: value for name, value in SECONDS.items() if name != "GA"}
    assert tables.table_2(TINY, timed(DIGITS, seconds, 350)).method.tolist() == ["Retrain", "ICO", "CVFU", "FedORA"]


def test_what_was_counted_of_gradient_ascent_and_fedora_is_the_formulas(tiny):
    """A pass sends embeddings up and their gradients down; FedORA is counted where it is served."""
    table = tables.table_2(TINY, tiny.speeds).set_index(["request", "method"]).loc["m=2, n=50 %"]
    for method in ("Retrain", "GA"):
        assert table.loc[method, "counted / formula"] == 1
        assert table.loc[method, "MB counted"] == table.loc[method, "MB by formula"]
    images = tiny.unlearnings[cell("FedORA")].metrics["images"]
    assert table.loc["FedORA", "samples counted"] == images


def test_table_3_compares_with_retraining_and_with_the_paper_where_the_data_are_the_papers(tiny):
    theirs = tables.table_3(timed(CIFAR, SECONDS, 10)).set_index("method")
    assert theirs["Retrain / method"].to_dict() == {"Retrain": 1, "GA": 5, "ICO": 2, "CVFU": 2.5, "FedORA": 4}
    assert theirs.loc["Retrain", "paper: seconds"] == 5.35
    assert set(theirs["Retrain's epochs E"]) == {7}  # which sets the ratio
    assert theirs.loc["FedORA", "paper: Retrain / method"] == round(5.35 / 2.48, 2)
    ours = tables.table_3(timed(DIGITS, SECONDS, 10))
    assert set(ours["paper: seconds"]) == set(ours["paper: Retrain / method"]) == {"–"}
    every = tables.table_3(tiny.speeds)
    assert every["request"].unique().tolist() == ["m=2, n=50 %", "m=1, n=25 %"]
    assert "w/o AB" not in set(every["method"])  # that is Table VII


# --- tuning, curves, and what else stands beside the paper's tables --------------------------------------------------


def test_the_table_of_trials_names_what_was_chosen_and_what_was_published(tiny):
    table = further_tables.tuning_table(TINY, tiny.tuning)
    assert table["method"].tolist() == [shown(m) for m in METHODS]
    assert set(table["trials"]) == {2}
    for method, row in zip(METHODS, table.itertuples(index=False), strict=True):
        tried = [r.metrics["objective"] for c, r in tiny.tuning.items() if c.method == method]
        assert row.objective == f"{min(tried):.1f}"
        assert row[-2] == f"{tried[0]:.1f}"
    published_lr = TINY.ga_lr
    assert f"lr {published_lr:g}" in table.set_index("method").loc["GA", "as published"]


def test_a_run_has_the_options_of_its_best_trial_and_what_its_row_changes(tiny):
    for c, record in tiny.unlearnings.items():
        if not record.config["trials"]:
            assert "chosen" not in record.metrics
            continue
        tried = [r for t, r in tiny.tuning.items() if (t.setting, t.method) == (c.setting, c.method)]
        best = min(range(len(tried)), key=lambda k: tried[k].metrics["objective"])
        assert record.metrics["trial"] == best
        assert record.metrics["chosen"] == {**tried[best].config["options"], **record.config["change"]}
    assert tiny.unlearnings[cell("GA", label="0.02", group="curve")].metrics["chosen"]["lr"] == 0.02


def test_curves_go_through_the_means_of_their_runs_and_leave_out_what_diverged(tiny):
    e = TINY.changed(ga_lrs=[0.02, 0.04])
    runs = tiny.runs.copy()
    more = runs[(runs.group == "curve") & (runs.method == "GA") & (runs.request == MAIN.request)].assign(
        label="0.04", test=50.0, forget=20.0
    )
    for diverged, points in ((False, 2), (True, 1)):
        with style():
            fig = figures.curves(e, pd.concat([runs, more.assign(diverged=diverged)], ignore_index=True))
        ax = fig.axes[0]
        assert len(fig.axes) == len(TINY.curve_tasks()) == 2
        line = next(line for line in ax.lines if line.get_label() == "GA")
        metrics = tiny.unlearnings[cell("GA", label="0.02", group="curve")].metrics
        assert line.get_xdata().tolist() == [metrics["test"], 50.0][:points]
        assert line.get_ydata().tolist() == [metrics["forget"], 20.0][:points]
        for ax in fig.axes:
            assert ax.get_yticks().max() <= 100
            assert ax.get_ylim()[0] <= ax.get_yticks().min()
        assert faults(fig) == []
    table = further_tables.curve_table(TINY, tiny.runs)
    rivals, forms = (
        ["lr 0.02", "scale 2", "epochs 2", "threshold 0"],
        ["threshold 0", *(f"sigma {s:g}" for s in TINY.sigmas_vector)],
    )
    prices, steps = [f"sigma {s:g}" for s in TINY.sigmas], [f"lr {lr:g}" for lr in TINY.few_shot_lrs]
    of_samples, of_classes = [*rivals, *forms, *prices], [*rivals, *forms, *steps]
    assert table["swept"].tolist() == ["–"] * 4 + of_samples + ["–"] * 4 + of_classes
    assert list(CURVES) == ["GA", "ICO", "CVFU", "FedORA"]


def test_curves_of_forms_have_whoever_can_serve_a_setting_and_one_legend(tiny):
    with style():
        fig = figures.curves(TINY, tiny.runs, CURVES_OF_FORMS)
    everywhere = [shown(m) for m in ("FedORA", "FedORA reverse", "FedORA vector")]
    lines = [
        {str(line.get_label()) for line in ax.lines if not str(line.get_label()).startswith("_")} for ax in fig.axes
    ]
    assert [set(everywhere) <= there for there in lines] == [True, True]
    assert [shown("FedORA calibrated") in there for there in lines] == [True, False]
    assert [shown("Few-shot") in there for there in lines] == [False, True]
    (legend,) = fig.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told == [shown(m) for m in (*CURVES_OF_FORMS, *REFERENCES)]  # the peer is in one panel, and not the last
    assert faults(fig) == []


def test_a_dot_of_a_curve_is_as_large_as_its_value_is_late_and_hollow_where_seeds_are_missing():
    """The second of three values diverged for one of two seeds, the first for both."""
    e = TINY.changed(seeds=[0, 1], classes=[[2]], percents=[[50]], ga_lrs=[0.1, 0.2, 0.4])
    cells = {cell(m, seed=seed): {} for seed in e.seeds for m in (*REFERENCES, AGAIN)}
    for k, seed in itertools.product(range(3), e.seeds):
        lost = k == 0 or (k, seed) == (1, 1)
        there = {"diverged": "why"} if lost else {"test": 50.0 + k, "forget": 20.0}
        cells[cell("GA", label=f"{e.ga_lrs[k]:g}", group="curve", seed=seed)] = there
    with style():
        fig = figures.curves(e, frame_of(cells), {"GA": CURVES["GA"]})
    (dots,) = (c for c in fig.axes[0].collections if isinstance(c, PathCollection))
    assert dots.get_offsets()[:, 0].tolist() == [51.0, 52.0]
    assert dots.get_sizes().tolist() == [54.0, 90.0]  # not 18: that is the first value's, which has no dot
    inside = [to_hex(face) for face in dots.get_facecolors()]
    assert inside == ["#ffffff", to_hex(colour("GA"))]
    assert "hollow: some seeds diverged" in fig.get_label()


@pytest.mark.parametrize(("test", "ruined"), [(13.0, False), (11.9, True)])
def test_what_is_ruined_is_a_share_of_what_retraining_has(test, ruined):
    """Of a hundred classes Retrain knows 15 %: a model at 6 % is ruined, and ten points were more than it had lost."""
    cells = {cell(m): {} for m in (*REFERENCES, "GA")}
    twins = {twin(c): {"asr": 5.0, "test": test if c.method == "GA" else 15.0} for c in cells}
    (found,) = results.ruined(results.rows_of(frame_of(cells | twins), "main", MAIN, "GA"))
    assert found == ruined


def test_who_passes_more_than_a_quarter_of_retraining_is_told_with_what_a_quarter_at_most_costs(tiny):
    runs = tiny.runs.assign(retrain_images=1000.0, images=200.0, test=90.0, delta_forget=5.0)
    dear = (runs.group == "main") & (runs.method == "FedORA vector") & (runs.request == MAIN.request)
    runs.loc[dear, "images"] = 400.0
    runs.loc[runs.group == "capped", ["images", "test", "delta_forget"]] = (125.0, 80.0, 9.0)
    table = further_tables.capped_table(TINY, runs).set_index("method")
    row = table.loc[shown("FedORA vector")]
    assert row["over a quarter in"] == f"1 of {len(TINY.tasks(labels=False)) + len(TINY.tasks(labels=True))} settings"
    for which, found in (("tuned", (2.5, "90.0", "5.0")), ("a quarter at most", (8.0, "80.0", "9.0"))):
        names = ("Retrain's samples / its, least", "test acc. (%) there", "off Retrain's (points) there")
        assert tuple(row[f"{name}, {which}"] for name in names) == found
    cheap = table.loc[shown("FedORA")]
    assert cheap["over a quarter in"].startswith("0 of")
    assert cheap["test acc. (%) there, tuned"] == "–"


def test_axes_of_curves_end_where_they_did_and_have_no_tick_above_100_percent(tiny):
    near = tiny.runs.assign(forget=99.0, test=95.0, delta_forget=0.0, delta_test=0.0)
    with style():
        fig = figures.curves(TINY, near)
    for ax in fig.axes:
        assert ax.get_ylim()[1] == pytest.approx(102)
        assert max(ax.get_yticks()) == 100
        (nothing,) = (line for line in ax.lines if line.get_label() == shown("Original"))
        assert not nothing.get_clip_on()  # a whole square at the edge
        assert faults(fig) == []


def test_what_diverged_is_counted_and_enters_no_mean():
    cells = {cell("GA", seed=seed): {"test": 70.0} for seed in (0, 1)} | {cell("GA", seed=2): {"diverged": "why"}}
    row = tables.outcome(results.rows_of(frame_of(with_references(cells)), "main", MAIN, "GA"))
    assert row["test acc. (%)"] == "70.0 ± 0.0 (1 of 3 diverged)"
    assert row["unlearning acc. (%)"] == "0.5 ± 0.0"


@pytest.mark.parametrize(
    ("lost", "low", "success", "diverged", "ruined"),
    [
        ((), (), "2.0 ± 0.0", "0 of 2", "0 of 2"),
        ((1,), (), "2.0 (n=1)", "1 of 2", "0 of 2"),
        ((), (1,), "2.0 (n=1)", "0 of 2", "1 of 2"),
        ((0,), (1,), "–", "1 of 2", "1 of 2"),
    ],
)
def test_models_with_a_backdoor_that_are_lost_are_counted_and_in_no_mean(lost, low, success, diverged, ruined):
    cells = {cell(method, seed=seed): {"test": 70.0} for seed in (0, 1) for method in (*REFERENCES, "GA")}
    twins = {twin(c): {"asr": 5.0, "test": 80.0} for c in cells if c.method != "GA"}
    for seed in (0, 1):
        broken = {"asr": 90.0, "test": 63.9}  # a little less than four fifths of Retrain's
        twins[cell(seed=seed, backdoor=True)] = (
            {"diverged": "why"} if seed in lost else broken if seed in low else {"asr": 2.0, "test": 70.0}
        )
    runs = results.rows_of(frame_of(cells | twins), "main", MAIN, "GA")
    row = tables.outcome(runs)
    assert row["test acc. (%)"] == "70.0 ± 0.0"
    assert row["BD-ASR (%)"] == success
    assert row["test acc. with backdoor (%)"] == success.replace("2.0", "70.0")
    assert (row["diverged with backdoor"], row["ruined with backdoor"]) == (diverged, ruined)
    found = results.with_backdoor(runs)
    assert (found.n, found.diverged, found.ruined, len(found.kept)) == (
        2,
        len(lost),
        len(low),
        2 - len(lost) - len(low),
    )
    assert found.lost() == ", ".join([f"{len(lost)} diverged"] * bool(lost) + [f"{len(low)} ruined"] * bool(low))


def test_where_there_is_no_backdoor_its_columns_are_dashes():
    row = tables.outcome(results.rows_of(frame_of(with_references({cell(): {}})), "main", MAIN, "GA"))
    names = ("BD-ASR (%)", "test acc. with backdoor (%)", "diverged with backdoor", "ruined with backdoor")
    assert {row[name] for name in names} == {"–"}


def test_rows_that_are_the_first_row_over_again_are_named():
    values = {"FedORA": 50.0, "w/o UL": 60.0, "w/o AS": 50.0, "with AS": 51.0}
    planted = {cell("FedORA", group="ablation", label=label): {"test": value} for label, value in values.items()}
    frame = frame_of(with_references(planted))
    e = PAPERS if PAPERS.main == MAIN else TINY
    assert tables.same_runs(e, frame, "ablation", "FedORA") == "; the same runs as FedORA: w/o AS"
    assert tables.same_runs(e, frame[frame.label != "w/o AS"], "ablation", "FedORA") == ""


@pytest.mark.parametrize(
    ("off", "floor", "has"),
    [
        ((20.0, 20.0), 5.0, "holds"),
        ((20.1, 20.1), 5.0, "does not hold"),
        ((20.5, 20.5), 20.5, "holds"),
        ((0.0, 0.0), 0.0, "holds"),
        ((0.0, 39.0), 5.0, "undetermined"),  # nearer on average, by two seeds that differ
        ((1.0, 40.0), 5.0, "undetermined"),
    ],
)
def test_forgotten_comparably_is_half_way_to_retrain_or_as_near_as_a_second_one_by_intervals(off, floor, has):
    forget = {"Original": (90.0,) * 2, "Retrain": (50.0,) * 2, AGAIN: (50.0 + floor,) * 2, "GA": (50 - x for x in off)}
    cells = {cell(m, seed=seed): {"forget": value} for m, values in forget.items() for seed, value in enumerate(values)}
    runs = frame_of(cells)
    assert rules.forgot(runs, "main", MAIN, "GA").verdict == has
    counted = {"holds": "1", "does not hold": "0", "undetermined": "0 (1 undetermined)"}
    assert rules.who_forgot(runs, "main", [MAIN], ["GA"]) == {"GA": counted[has]}


def test_forgotten_comparably_is_asked_seed_by_seed():
    """Half of what doing nothing is off differs by seed more than the method does, and is above it in each."""
    forget = {"Original": (60.0, 100.0), "Retrain": (50.0, 50.0), AGAIN: (50.0, 50.0), "GA": (46.0, 26.0)}
    cells = {cell(m, seed=seed): {"forget": value} for m, values in forget.items() for seed, value in enumerate(values)}
    assert rules.forgot(frame_of(cells), "main", MAIN, "GA").verdict == "holds"
    cells[cell(seed=1)] = {"diverged": "why"}
    assert rules.forgot(frame_of(cells), "main", MAIN, "GA").verdict == "undetermined"
    cells[cell(seed=0)] = {"diverged": "why"}
    assert rules.forgot(frame_of(cells), "main", MAIN, "GA").verdict == "does not hold"


def test_affected_classes_have_their_own_test_accuracy(tiny):
    table = further_tables.affected_classes(TINY, tiny.unlearnings, MAIN).set_index("method")
    assert list(table)[1:] == ["class 1 (%)", "class 2 (%)"]
    metrics = tiny.unlearnings[cell("ICO")].metrics
    assert table.loc["ICO", "class 2 (%)"] == f"{metrics['by_class']['2']:.1f}"
    assert table.loc["ICO", "all classes (%)"] == f"{metrics['test_all']:.1f}"


def test_affected_classes_have_no_mean_of_what_diverged(tiny):
    lost, fine = (tiny.unlearnings[cell("ICO")] for _ in range(2))
    lost = replace(lost, metrics={**lost.metrics, "diverged": "why", "test_all": 1.0})
    there = {**tiny.unlearnings, cell("ICO"): fine, cell("ICO", seed=1): lost}
    row = further_tables.affected_classes(TINY.changed(seeds=[0, 1]), there, MAIN).set_index("method").loc["ICO"]
    assert row["all classes (%)"] == f"{fine.metrics['test_all']:.1f} (1 of 2 diverged)"


def test_the_five_sentences_are_those_of_the_records(tiny):
    lines = page.five_sentences(TINY, tiny.runs, tiny.unlearnings).split("\n")
    assert [line[:2] for line in lines] == ["1.", "2.", "3.", "4.", "5."]
    tasks = [*TINY.tasks(labels=False), *TINY.tasks(labels=True)]
    retrained = [tiny.unlearnings[cell("Retrain", task=task)].metrics["test"] for task in tasks]
    assert f"Retrain's {np.mean(retrained):.1f} %;" in lines[1]
    better = tiny.runs.assign(test=tiny.runs.test.where(tiny.runs.method != "FedORA", 99.0))
    assert "its test accuracy is 99.0 %" in page.five_sentences(TINY, better, tiny.unlearnings)
    assert "runs, in 0 of them before the first step" in lines[4]
    ours = tiny.runs.method == "FedORA"
    lost = (tiny.runs.request == MAIN.request) & ours  # where ours is ruined, nobody's backdoor is in the means
    success = {"asr": 90.0, "asr_retrain": 80.0, "asr_original": 70.0, "poisoned_test": 0.0}
    planted = tiny.runs.assign(
        asr=1.0, asr_retrain=2.0, asr_original=3.0, poisoned_test=80.0, poisoned_test_retrain=80.0
    )
    planted = planted.assign(poisoned_diverged=False)
    planted.loc[lost, list(success)] = list(success.values())
    said = "a backdoor succeeds in 1.0 % in the mean, 1 to 1 % by model (Retrain 2.0 %, doing nothing 3.0 %;"
    assert said in page.five_sentences(TINY, planted, tiny.unlearnings)


def test_other_parties_stand_beside_the_two_halves(tiny):
    table = further_tables.parties_results(TINY, tiny.runs)
    assert table["parties"].tolist() == ["2, halves"] * 5 + ["columns 1+7"] * 5
    mine = tiny.unlearnings[MAIN._replace(split="1+7").cell("parties", 0, "FedORA")].metrics
    assert table.iloc[-1]["test acc. (%)"] == f"{mine['test']:.1f}"
    assert table.iloc[-1]["MB across the border"] == f"{(mine['up'] + mine['down']) / 1e6:.1f}"


def test_every_number_of_the_papers_text_on_figures_4_to_8_stands_beside_ours_where_we_have_it(tiny):
    e = PAPERS.changed(weights=[0.5, 20.0], ratios=[0.0, 0.01, 0.05, 1.0])
    table = further_tables.said_table(TINY, tiny.runs)
    assert len(table) == len(published("fedora", "figure_numbers")) == 22
    eight = table[table.figure.str.startswith("Fig. 8")].set_index("setting")["ours"]
    own = {ratio: tiny.unlearnings[cell("FedORA", group="ratios", label=ratio)].metrics for ratio in ("0.05", "1")}
    assert eight["CIFAR-10 m=2 n=50% ratio 5%"].tolist() == [
        f"{round(own['0.05'][m], 1):g}" for m in ("test", "forget")
    ]
    by_ratio = [tiny.unlearnings[cell("FedORA", group="ratios", label=f"{r:g}")].metrics["mia"] for r in TINY.ratios]
    ends = dict.fromkeys(round(100 * end, 1) for end in (min(by_ratio), max(by_ratio)))
    assert eight["CIFAR-10 m=2 n=50%"] == " to ".join(f"{end:g}" for end in ends)
    points = list(further_tables.said_of_figure_8(e))
    assert ("weights", "20", "forget", 16.06) in points
    assert not [point for point in points if point[3] in (69.22, 80.74)]  # at ratios that are lost in our copy
    assert eight["CIFAR-10 m=2 n=50% second ratio (value stripped)"] == "–"
    assert ("ratios", "0.05", "forget", 26.78) in points
    assert set(table[table.setting.str.contains("CIFAR-100|Income|MedMNIST")]["ours"]) == {"–"}
    runs = tiny.runs.replace({"setting": {DIGITS: "adult/mlp"}, "request": {"classes-1-25": "classes-3-50"}})
    income = further_tables.said_table(PAPERS.changed(datasets=["adult/mlp"]), runs).set_index(["setting", "method"])
    ga = [tiny.unlearnings[cell("GA", task=t)].metrics["mia"] for t in TINY.sample_tasks(DIGITS)]
    ends = sorted({round(100 * m, 1) for m in ga})
    said = income.loc[("Income sample unlearning", "GA"), "ours"]
    assert said.tolist() == [" to ".join(f"{end:g}" for end in ends)]


def test_means_are_written_with_their_deviation_over_seeds():
    cells = {cell(method, seed=seed): {"test": 70.0 + seed} for method in ("Retrain", "GA") for seed in (0, 1, 2)}
    cells[cell(backdoor=True)] = {}
    e = TINY.changed(seeds=[0, 1, 2])
    table = tables.table_4_5(e, frame_of(with_references(cells)), labels=False).set_index("method")
    peers = [shown(peer) for peer in PEERS]  # what was not run has no row, unless it is refused, in both settings
    assert list(table.index) == [shown("Original"), "Retrain", "GA", *peers, *peers]
    for method in ("Retrain", "GA"):
        assert f"{table['test acc. (%)'][method]} (n=3)" == mean_spread([70.0, 71.0, 72.0])
