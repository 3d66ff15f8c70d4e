"""What PUF's figures and tables show, on planted records: numbers that can be redone by hand.

One seed, two targets, every scenario; what a test plants for a (scenario, setting, request, method) overrides the
defaults. tests/fu_papers/test_puf_runs.py draws all of them from real runs.
"""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from fu_core.unlearning.method import method as registered
from fu_papers.lab.record import Record
from fu_papers.look import colour, published, save_table, show_table, style
from fu_papers.puf import figures, printed_tables, recovery_figures, results, show, stages, tables
from fu_papers.puf.grid import (
    AGAIN,
    CONTROLS,
    DESTROYED,
    METHODS,
    OFFICIAL,
    PUBLISHED,
    PUFS,
    REFERENCES,
    SWEPT_AGAINST,
)
from fu_papers.puf.runs import STOP_RULES
from fu_papers.study import Cell, wide
from tests.notebook_lab import without_tags
from tests.pictures import crossed, faults
from tests.puf_lab import experiment

SKEWED, EVEN, SITES = "cifar10/dirichlet-0.3/tiny_cnn", "cifar10/iid/tiny_cnn", "phantom/site/small_res_unet"
E = experiment(
    [SKEWED, EVEN], targets=[0, 1], seeds=[0], rounds=200, sample_settings=[SKEWED], pair_settings=[SKEWED],
    pairs=[[0, 1], [2, 3]], segmentation_settings=[SITES], segmentation_targets=[0, 3], sweep_settings=[SKEWED],
    sweep_special=[1.0, 2.0], sweep_regular=[10.0], sweep_epochs_u=[1.0, 5.0],
)  # fmt: skip
TUNED = E.changed(tuning_trials=3, tuning_targets=[9], tuning_seed=100)
P = 1000  # parameters of the net
STRONGER = {"kl_forget": 0.0, "agreement_forget": 100.0, "distance": 0.0, "shadow": 50.0, "shadow_auc": 52.0,
            "threshold_auc": 51.0, "tpr": 1.0, "relearn": 8.0, "relearned": True}  # fmt: skip
RETRAIN = {"test": 80.0, "forget": 60.0, "loss": 1.0, "gap": 0.0, "song": 50.0, "yeom": 40.0, "kl": 0.0, **STRONGER}
ORIGINAL = {**RETRAIN, "test": 81.0, "forget": 90.0, "loss": 0.2, "gap": 0.5, "song": 70.0, "yeom": 65.0, "kl": 0.3,
            "kl_forget": 1.5, "agreement_forget": 65.0, "distance": 1.0, "shadow": 75.0, "relearn": 0.0}  # fmt: skip
SECOND = {**RETRAIN, "test": 79.0, "forget": 63.0}  # retraining: the noise floor is 3 points
RANDOM = {**RETRAIN, "test": 10.0, "forget": 10.0}  # weights
FINAL = {"Original": ORIGINAL, "Retrain": RETRAIN, AGAIN: SECOND, DESTROYED: RANDOM}
RETRAIN_COST = {"bytes": 100_000, "images": 20_000}
ORIGINAL_COST = {"bytes": 110_000, "images": 22_000}  # never what a gain is measured against
# forget accuracy beyond Retrain's
GAP = {"Natural": 20.0, "FedEraser": 0.5, "PGA": -12.0, "MoDe": 14.0, "FedAU": 8.0, "NoT": 10.0, "PUF-Special": 2.0,
       "PUF-Regular": -1.0, "Fine-tune": 9.0, "Random labels": 6.0, OFFICIAL: 7.0, "NaiveGA": 5.0}  # fmt: skip
ROUNDS = {"FedEraser": 199, "MoDe": 16, "FedAU": 1, "PUF-Special": 1, "PUF-Regular": 1}  # of unlearning
CANNOT = {"samples": ("FedEraser", "PGA", "MoDe"), "pairs": ("PGA", "MoDe"),
          "segmentation": ("MoDe", "FedAU", "Random labels")}  # fmt: skip
BLIND = ("Natural", "NoT")
MEASURED_ON_MASKS = ("test", "forget", "loss", "gap")  # no attacks
PATH = ((50.0, 5.0), (70.0, 40.0), (79.0, 50.0), (80.0, 58.0))


@pytest.fixture(autouse=True)
def look():
    """As in the notebook; nothing stays open."""
    with style():
        yield
    plt.close("all")


def record(key, metrics, rounds=(), config=None):
    return Record("f", key, config or {}, "", "0", metrics, list(rounds), None, {})


def plan(changes, cell):
    """What `changes` say of a cell: {(scenario, setting, request, method): values}, None in a place means any."""
    values = {}
    for place, change in (changes or {}).items():
        if all(a in (None, b) for a, b in zip(place, (*cell[:2], cell.request, cell.method), strict=True)):
            values |= change
    return values


def measured(cell, metrics):
    names = MEASURED_ON_MASKS if cell.group == "segmentation" else metrics
    return {name: metrics[name] for name in names}


def served(cell, config, *, path=PATH, unlearned=None, **values):
    """The record of a method that could serve a request: it stopped after 3 rounds under the paper's rule, for 1000
    bytes; under ours everything is perfect, at once and for nothing. path: (test, forget) per recovery round."""
    sha = cell.method if cell.method in BLIND else str(tuple(cell))
    step = {"test": 50.0, "forget": 5.0, "step": 0.5, "sha256": sha, **(unlearned or {})}
    cost = {"reached": True, "unlearning_bytes": 600, "unlearning_images": 300, "storage": 4 * P,
            "unlearning_rounds": ROUNDS.get(cell.method, 0), "handed": 4 * P}  # fmt: skip
    state = measured(cell, {**RETRAIN, "forget": RETRAIN["forget"] + GAP[cell.method], "kl": 0.1, "gap": 0.2})
    stops = {
        "test": {**state, **cost, "rounds": 3, "bytes": 1000, "images": 500, **values},
        "validation": {**measured(cell, RETRAIN), **cost, "rounds": 0, "bytes": 1, "images": 1},
    }
    rounds = [{"round": k, "test": test, "forget": forget} for k, (test, forget) in enumerate(path)]
    return record(str(tuple(cell)), {"unlearned": step, **stops}, rounds, config)


def planted(e=E, changes=None, runs="runs"):
    """Records of all methods, or of the sweep, the printed form or the other divisor."""
    found = {}
    for cell, config in getattr(e, runs)():
        values = plan(changes, cell)
        if cell.method in CONTROLS:
            final = {**measured(cell, FINAL[cell.method]), **values}
            found[cell] = record(str(tuple(cell)), {"final": final}, (), config)
        elif cell.method in CANNOT.get(cell.group, ()):
            found[cell] = record(str(tuple(cell)), {"unsupported": f"{cell.method} cannot"}, (), config)
        else:
            found[cell] = served(cell, config, **values)
    return found


def trainings(e=E):
    found = {}
    for key, config in stages.all_trainings(e).items():
        original = key[3].startswith(("none", "poisoned"))
        rounds = [{"round": t, "test": level + t} for t, level in ((1, 30.0), (5, 40.0 if original else 36.0))]
        cost = ORIGINAL_COST if original else RETRAIN_COST
        found[key] = record(f"training {key}", {**cost, "test": 80.0}, rounds, config)
    return found


def frame_of(unlearnings, references=None, e=E):
    """A row per run and stop rule."""
    return wide(results.of_runs(unlearnings, trainings(e), references))


def tidy(changes=None, e=E):
    return frame_of(planted(e, changes), e=e)


def row(frame, method, request="client-0", *, scenario="clients", setting=SKEWED, stop="test"):
    place = {"group": scenario, "setting": setting, "request": request, "method": method, "stop": stop}
    (found,) = frame[(frame[list(place)] == pd.Series(place)).all(axis=1)].to_dict("records")
    return found


# --- the frame -------------------------------------------------------------------------------------------------------


def test_tidy_has_one_row_per_run_and_stop_rule_and_none_for_unsupported_cases():
    frame = tidy()
    unlearnings = planted()
    done = {cell for cell, r in unlearnings.items() if "unsupported" not in r.metrics}
    assert len(done) == len(unlearnings) - 2 * sum(len(methods) for methods in CANNOT.values())
    assert set(frame[list(Cell._fields)].itertuples(index=False, name=None)) == {tuple(cell) for cell in done}
    assert len(frame) == 2 * len(done)
    assert not frame.duplicated([*Cell._fields, "stop"]).any()
    assert set(frame.record) == {unlearnings[cell].key for cell in done}


def test_deltas_are_absolute_differences_to_the_retrained_model_of_the_same_request_and_scenario():
    changes = {
        ("clients", SKEWED, "client-0", "Retrain"): {"test": 82.0, "forget": 55.0, "song": 49.0, "yeom": 33.0},
        ("clients", SKEWED, "client-0", "PUF-Special"): {"test": 81.5, "forget": 47.0, "song": 52.0, "yeom": 33.0},
        ("clients", SKEWED, "client-1", "PUF-Special"): {"forget": 47.0, "loss": 0.75},
        ("samples", SKEWED, "sample-0-0.5", "Retrain"): {"forget": 10.0},
        ("segmentation", SITES, "client-0", "Retrain"): {"forget": 20.0, "loss": 3.0},
    }
    frame = tidy(changes)
    special = row(frame, "PUF-Special")
    assert [special[f"delta_{name}"] for name in ("test", "forget", "song", "yeom")] == [0.5, 8.0, 3.0, 0.0]
    other = row(frame, "PUF-Special", "client-1")
    assert (other["delta_forget"], other["delta_loss"]) == (13.0, 0.25)
    assert row(frame, "Original")["delta_forget"] == 35.0
    assert row(frame, "Retrain")["delta_forget"] == 0.0
    assert row(frame, "NoT", "sample-0-0.5", scenario="samples")["delta_forget"] == 60.0
    hospital = row(frame, "NoT", scenario="segmentation", setting=SITES)
    assert (hospital["delta_forget"], hospital["delta_loss"]) == (50.0, 2.0)
    assert np.isnan(hospital["delta_song"])


def test_deltas_and_costs_are_those_of_the_stop_rule():
    frame = tidy()
    for stop, expected in (("test", (10.0, 3, 1000)), ("validation", (0.0, 0, 1))):
        found = row(frame, "NoT", stop=stop)
        assert (found["delta_forget"], found["rounds"], found["bytes"]) == expected


def test_gains_are_retrainings_cost_over_the_runs():
    frame = tidy({(None, None, None, "Natural"): {"bytes": 0, "images": 0, "rounds": 0}})
    special = row(frame, "PUF-Special")
    assert (special["bytes_gain"], special["images_gain"]) == (100.0, 40.0)
    retrain = row(frame, "Retrain")
    assert (retrain["bytes"], retrain["bytes_gain"], retrain["images_gain"]) == (100_000, 1.0, 1.0)
    assert np.isnan(row(frame, "Natural")["bytes_gain"])  # nothing was sent
    assert np.isnan(row(frame, "Original")["bytes_gain"])


def test_a_row_has_its_unlearning_step_and_the_rates_of_puf():
    frame = tidy({(None, None, None, "NoT"): {"unlearned": {"forget": 7.0, "step": 0.25}}})
    blind, special, regular = (row(frame, method) for method in ("NoT", *PUFS))
    assert (blind["unlearned_forget"], blind["unlearned_step"], blind["unlearned_test"]) == (7.0, 0.25, 50.0)
    assert np.isnan(blind["eta_u"])
    assert (special["eta_u"], special["epochs_u"], regular["eta_u"]) == (2.0, 1.0, 20.0)
    assert "unlearned_sha256" not in frame


@pytest.mark.parametrize("runs", ["sweep", "printed", "norms"])
def test_runs_beside_the_tables_are_compared_with_the_tables_retrained_models(runs):
    changes = {("clients", SKEWED, "client-1", "Retrain"): {"forget": 30.0}}
    frame = frame_of(planted(runs=runs), planted(changes=changes))
    assert set(frame.method) <= set(PUFS)
    assert "" not in set(frame.label)
    assert len(frame) == 2 * len(list(getattr(E, runs)()))
    for found in frame[frame.stop == "test"].itertuples():
        retrain = 30.0 if (found.group, found.request) == ("clients", "client-1") else 60.0
        assert found.delta_forget == abs(60 + GAP[found.method] - retrain)


def test_the_csv_files_say_scenario_and_variant_and_not_where_a_row_came_from():
    saved = results.saved(tidy())
    assert list(saved)[:6] == ["scenario", "setting", "seed", "request", "method", "variant"]
    assert not {"record", "condition", "group", "label"} & set(saved)
    assert list(results.saved(tables.summary(tidy())))[:5] == ["scenario", "setting", "method", "variant", "stop"]


def test_reasons_are_listed_by_method():
    reasons = results.unsupported(planted(), "pairs")
    assert reasons == {"PGA": "PGA cannot", "MoDe": "MoDe cannot"}
    assert results.unsupported(planted(), "clients") == {}


# --- Table I ---------------------------------------------------------------------------------------------------------


NOT_HERE = ["Liu et al.", "FUKD"]


def needs(e=E):
    unlearnings = planted(e)
    table = tables.needs_table(e, frame_of(unlearnings, e=e), unlearnings)
    return table.set_index("method")


def declare(monkeypatch, method, **needs):
    """Other needs than those that the method registers."""
    about = registered(method)
    changed = replace(about, needs=replace(about.needs, **needs))
    monkeypatch.setattr(tables, "registered", lambda name: changed if name == method else registered(name))


def test_table_1_says_what_a_method_does_without_and_where_the_paper_differs():
    table = needs()
    lacks = {method: {heading for heading, _ in tables.COLUMNS.values() if table.loc[method, heading] == "–"}
             for method in METHODS}  # fmt: skip
    assert lacks == {
        "Natural": {"selective"},
        "Fine-tune": set(),
        "Random labels": {"any task"},
        "FedEraser": {"no history", "not everybody online", "a single round"},
        "PGA": {"not everybody online", "stateless clients", "several at once"},
        "MoDe": {"any task", "a single round", "several at once"},
        "FedAU": {"any task"},
        "NoT": {"selective"},
        "PUF-Special": set(),
        "PUF-Regular": set(),
    }
    says = table["paper says otherwise"].to_dict()
    assert [says.pop(name) for name in ("Natural", "Fine-tune", "Random labels")] == ["not in its table"] * 3
    assert says.pop("FedEraser") == "several at once"  # ours replays without any number of clients
    assert [says.pop(name) for name in NOT_HERE] == ["the paper's entries"] * 2
    assert set(says.values()) == {"nowhere"}


def test_table_1_ends_with_the_works_that_are_not_implemented_here():
    table = needs()
    assert list(table.index) == [*METHODS, *NOT_HERE]
    assert set(table.loc[NOT_HERE, "agrees with the runs"]) == {"not implemented here"}
    entries = table.loc[NOT_HERE, [heading for heading, _ in tables.COLUMNS.values()]]
    lacks = {name: {heading for heading, entry in row.items() if entry == "–"} for name, row in entries.iterrows()}
    replaying = {"no history", "not everybody online", "a single round", "several at once"}
    assert lacks == {
        "Liu et al.": replaying,
        "FUKD": {"no history", "any task", "no auxiliary data", "several at once"},
    }


def test_a_method_tuned_to_its_own_settings_is_not_taken_for_one_that_looks_at_nobody():
    """Both rows then have the same model for a target, which says nothing about who leaves."""
    unlearnings, frame = planted(TUNED), tidy(e=TUNED)
    table = tables.needs_table(TUNED, frame, unlearnings).set_index("method")
    assert set(table["agrees with the runs"].drop(NOT_HERE)) == {"4 of 4"}


def test_declared_needs_agree_with_planted_runs():
    assert set(needs()["agrees with the runs"].drop(NOT_HERE)) == {"4 of 4"}


@pytest.mark.parametrize("need", ["task", "one_at_a_time", "several_rounds", "blind"])
@pytest.mark.parametrize("method", METHODS)
def test_a_wrong_declaration_is_noticed(monkeypatch, method, need):
    declare(monkeypatch, method, **{need: not getattr(registered(method).needs, need)})
    agrees = needs()["agrees with the runs"].drop(NOT_HERE)
    assert agrees[method] == "3 of 4"
    assert set(agrees.drop(method)) == {"4 of 4"}


def test_what_records_cannot_tell_is_not_counted(monkeypatch):
    declare(monkeypatch, "NoT", history=True, auxiliary_data=True)
    assert needs()["agrees with the runs"]["NoT"] == "4 of 4"
    assert needs()["paper says otherwise"]["NoT"] == "no history, no auxiliary data"
    one_target = E.changed(targets=[0], pair_settings=[], segmentation_settings=[])
    assert set(needs(one_target)["agrees with the runs"].drop(NOT_HERE)) == {"1 of 1"}  # the rounds


# --- Tables III to VI ------------------------------------------------------------------------------------------------

EFFICACY = ["test acc. %", "forget acc. % (Δ)", "MIA Song % (Δ)", "MIA Yeom % (Δ)"]
EFFICIENCY = ["comm. bytes (×)", "FLOPs (×)", "storage bytes (×)"]
FLOOR = "Retrain again (noise floor)"


def about(flops=10.0):
    return record("net", {"parameters": P, "flops": flops})


def printed(setting=SKEWED, scenario="clients", stop="test", changes=None, flops=10.0, e=E):
    """The table as the paper prints it."""
    table = printed_tables.paper_table(e, tidy(changes, e), setting, about(flops), scenario, stop)
    return table.set_index("method")


def judged(setting=SKEWED, scenario="clients", stop="test", changes=None, e=E):
    return printed_tables.judges_table(e, tidy(changes, e), setting, scenario, stop).set_index("method")


def test_the_table_has_every_column_of_the_papers_table_iii_in_its_order_with_its_numbers_beside():
    """Test Acc., Forget Acc. (Δ), MIA Song (Δ), MIA Yeom (Δ), Bytes (×), FLOPs (×), Bytes (×)."""
    beside = [name for heading in (*EFFICACY, *EFFICIENCY) for name in (heading, f"paper: {heading}")]
    assert list(printed()) == ["gave up", *beside]
    masks = ["test Dice %", "forget Dice % (Δ)", "forget loss (Δ)", *EFFICIENCY[:2]]  # Table VI
    assert [c for c in printed(SITES, "segmentation") if "paper" not in c] == ["gave up", *masks]
    shown = printed(EVEN).loc["PUF-Special"]
    assert [shown[f"paper: {heading}"] for heading in (*EFFICACY, *EFFICIENCY)] == [
        "58.8 ± 0.3", "62.8 (4.9 ± 1.1)", "61.5 (5.9 ± 1.4)", "55.8 (7.0 ± 1.1)",
        "3.40e09 (47.6×)", "2.84e13 (47.5×)", "4.49e07 (1×)",
    ]  # fmt: skip


def test_every_printed_cell_of_the_papers_tables_stands_beside_its_method():
    """Cell by cell, from the published files."""
    for (scenario, split), place in printed_tables.PAPER_SETTING.items():
        rows = published("puf", f"table_{place[0]}")
        shown = printed_tables.paper_block(place).set_index("method")
        for row in rows[rows.setting == place[1]].to_dict("records"):
            cells = shown.loc[row["method"]]
            for heading, column in (("forget acc. % (Δ)", "forget_acc"), ("comm. bytes (×)", "comm")):
                if scenario == "segmentation":
                    heading = heading.replace("acc.", "Dice")
                value = row[f"{column}_mean"] if column == "forget_acc" else row["comm_bytes"]
                cell = cells[f"paper: {heading}"]
                assert (cell == "–") if pd.isna(value) else float(cell.split()[0]) == pytest.approx(value), split
            assert set(cells[[c for c in cells.index if "paper" not in c]]) == {"–"}


PRINTED_BESIDE = [
    ("clients", SKEWED, "PUF-Special", ["82.0 (0.9 ± 1.4)", "72.0 (1.4 ± 1.7)", "71.1 (2.1 ± 2.0)"], "3.30e09 (49.1×)"),
    ("clients", SKEWED, "NoT", ["84.3 (3.1 ± 3.0)", "78.0 (4.9 ± 4.5)", "75.3 (2.9 ± 3.4)"], "1.37e10 (11.9×)"),
    ("clients", SKEWED, "Retrain", ["81.1 ± 8.0", "73.1 ± 13.7", "72.5 ± 10.8"], "1.62e11 (1×)"),
    ("clients", SKEWED, "Original", ["88.6 ± 3.9", "84.4 ± 5.4", "81.4 ± 6.3"], "–"),
    ("clients", EVEN, "FedEraser", ["59.5 (1.5 ± 0.7)", "57.6 (2.0 ± 0.5)", "49.9 (1.1 ± 1.1)"], "1.62e11 (1×)"),
    ("clients", EVEN, "Natural", ["–"] * 3, "–"),
    ("clients", EVEN, DESTROYED, ["–"] * 3, "–"),
    ("pairs", SKEWED, "PUF-Regular", ["31.2 (2.9 ± 1.9)", "42.9 (3.9 ± 2.9)", "31.4 (3.8 ± 3.1)"], "7.54e09 (19.1×)"),
    ("segmentation", SITES, "PUF-Special", ["76.7 (3.4 ± 2.3)", "0.17 (0.05 ± 0.02)"], "2.30e10 (11.9×)"),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "setting", "method", "efficacy", "sent"), PRINTED_BESIDE)
def test_the_papers_numbers_stand_beside_ours_in_the_right_row(scenario, setting, method, efficacy, sent):
    """Table III: CIFAR-10 non-IID for a Dirichlet split, CIFAR-100 IID for an even one, ResNet-18 and E = 1."""
    shown = printed(setting, scenario).loc[method]
    assert [shown[column] for column in shown.index if re.match("paper: (forget|MIA)", column)] == efficacy
    assert shown["paper: comm. bytes (×)"] == sent


def test_the_same_data_set_has_the_papers_own_block_and_a_drawn_split_with_released_sizes_counts_as_drawn():
    cases = {
        ("clients", "cifar100/dirichlet-0.1/resnet18"): "CIFAR-100, Non-IID, ResNet-18, E=1",
        ("clients", "cifar10/released-0.3/resnet18"): "CIFAR-10, Non-IID, ResNet-18, E=1",
        ("clients", "digits/dirichlet-0.3/mlp"): "CIFAR-10, Non-IID, ResNet-18, E=1",
        ("long", "cifar100/dirichlet-0.1/resnet18"): "CIFAR-100, Non-IID, ResNet-18, E=10",
        ("pairs", "cifar100/dirichlet-0.1/mit_b0_224"): "Multiple Unlearning, CIFAR-100, Non-IID, MiT-B0, E=1",
        ("transformer", "cifar100/dirichlet-0.1/mit_b0_224"): "CIFAR-100, Non-IID, MiT-B0, E=1",
    }
    assert {case: printed_tables.beside(*case)[1] for case in cases} == cases
    assert printed_tables.beside("backdoor", SKEWED) is None
    assert printed_tables.nearest_note("clients", "cifar10/released-0.3/resnet18").endswith("its nearest setting.")
    assert "with other net." in printed_tables.nearest_note("clients", SKEWED)
    assert "with other data and net." in printed_tables.nearest_note("clients", "digits/iid/mlp")
    assert printed_tables.nearest_note("partial", SKEWED) == "The paper has nothing of the kind."


def test_every_block_of_tables_iii_to_vi_is_shown_once_beside_a_setting_or_with_dashes():
    whole = {(t, s) for t in show.TABLES for s in published("puf", f"table_{t}").setting}
    assert set(printed_tables.SCENARIO_OF) == whole
    apart = {place for s in ("clients", "long", "samples", "pairs", "transformer", "segmentation")
             for place in printed_tables.alone(E, s)}  # fmt: skip
    beside = {printed_tables.beside(s.name, setting) for s in E.scenarios() for setting in s.settings}
    assert apart | beside == whole
    assert not apart & beside
    assert ("v", "Multiple Unlearning, CIFAR-100, Non-IID, MiT-B0, E=1") in printed_tables.alone(E, "pairs")
    descriptions = dict.fromkeys((SKEWED, EVEN, SITES), about())
    table_v = printed_tables.paper_csv(E, tidy(), descriptions, "v", "test")
    assert table_v["paper: setting"].unique().tolist() == [
        f"Multiple Unlearning, CIFAR-100, Non-IID, {net}, E=1" for net in ("ResNet-18", "MiT-B0")
    ]
    ours = table_v[table_v.setting != "–"]
    assert ours.setting.unique().tolist() == [f"two clients leave at once: {SKEWED}"]
    assert (ours.set_index("method").loc["PUF-Regular", "forget acc. % (Δ)"]) == "59.0 (1.0 ± 0.0)"
    assert not table_v.isna().any(axis=None)


def test_controls_come_first_then_methods_and_dashes_where_one_cannot():
    for scenario, setting in (("clients", EVEN), ("samples", SKEWED), ("pairs", SKEWED), ("segmentation", SITES)):
        cannot = CANNOT.get(scenario, ())
        table = printed(setting, scenario)
        assert list(table.index) == [*REFERENCES, FLOOR, DESTROYED, *METHODS]
        assert list(judged(setting, scenario).index) == list(table.index)
        ours = [column for column in table if not column.startswith("paper") and column != "gave up"]
        for method in METHODS:
            assert (table.loc[method, ours] == "–").all() == (method in cannot)
        for shown in (table, judged(setting, scenario)):
            assert "nan" not in show_table(shown.reset_index(), "s").data.replace("quot;nan", "")


def test_the_table_shows_the_mean_and_the_spread_of_differences():
    """Forget accuracy 64 and 58 beside Retrain's 60: mean 61, but differences 4 and 2: mean 3."""
    changes = {("clients", None, f"client-{t}", "PUF-Special"): {"forget": f} for t, f in ((0, 64.0), (1, 58.0))}
    assert printed(changes=changes).loc["PUF-Special", "forget acc. % (Δ)"] == "61.0 (3.0 ± 1.4)"
    assert printed(stop="validation", changes=changes).loc["PUF-Special", "forget acc. % (Δ)"] == "60.0 (0.0 ± 0.0)"
    shown = printed()
    assert shown.loc[["Original", "Retrain", FLOOR, DESTROYED], "forget acc. % (Δ)"].tolist() == [
        "90.0 (30.0 ± 0.0)", "60.0 ± 0.0", "63.0 (3.0 ± 0.0)", "10.0 (50.0 ± 0.0)",
    ]  # fmt: skip
    assert shown.loc["Original", "test acc. %"] == "81.0 ± 0.0"
    assert set(shown.loc[["Original", FLOOR, DESTROYED], EFFICIENCY].to_numpy().ravel()) == {"–"}


def test_hospitals_have_dice_and_loss_instead_of_attacks():
    changes = {("segmentation", None, None, "NoT"): {"forget": 63.25, "loss": 1.125}}
    table = printed(SITES, "segmentation", changes=changes)
    assert table.loc["NoT", "forget Dice % (Δ)"] == "63.2 (3.2 ± 0.0)"
    assert table.loc["NoT", "forget loss (Δ)"] == "1.12 (0.12 ± 0.00)"
    assert not [column for column in judged(SITES, "segmentation") if "attack" in column or "KL" in column]


def test_costs_are_the_mean_cost_with_the_gain_over_retraining():
    """1000 and 7000 bytes of 100,000: 25x, not (100 + 14.3) / 2. Storage: four models are a quarter."""
    changes = {
        ("clients", None, "client-1", "PUF-Special"): {"bytes": 7000, "rounds": 5, "unlearning_bytes": 1000},
        ("clients", None, None, "NoT"): {"bytes": 0, "images": 0, "rounds": 0},
        ("clients", None, None, "MoDe"): {"storage": 16 * P},
        ("clients", None, None, "FedEraser"): {"storage": 4_000 * 4 * P},
    }
    shown = printed(changes=changes, flops=4.0)
    assert shown.loc["PUF-Special", "comm. bytes (×)"] == "4.00e03 (25.0×)"
    assert shown.loc["PUF-Special", "FLOPs (×)"] == "2.00e03 (40.0×)"  # 500 images
    assert shown.loc["NoT", "comm. bytes (×)"] == "0.00e00 (∞×)"
    assert shown.loc["Retrain", EFFICIENCY].tolist() == ["1.00e05 (1.0×)", "8.00e04 (1.0×)", "4.00e03 (1.0×)"]
    assert shown.loc[["MoDe", "FedEraser"], "storage bytes (×)"].tolist() == ["1.60e04 (0.25×)", "1.60e07 (0.00025×)"]
    beyond = judged(changes=changes)
    assert beyond.loc["PUF-Special", "recovery rounds"] == "4.0 ± 1.4"
    assert beyond.loc["PUF-Special", "bytes sent to unlearn"] == "8.00e02"
    assert beyond.loc["PUF-Special", "FLOPs, nominal F"] == "7.50e10"  # 500 images of 0.15e9
    assert beyond.loc["PUF-Special", "bytes handed to the method"] == "4.00e03"


def test_a_run_that_gave_up_enters_no_mean_and_one_that_always_did_has_dashes():
    """A perfect forget gap at the cap is no result."""
    changes = {
        ("clients", SKEWED, "client-0", "NoT"): {"forget": 64.0, "bytes": 500, "rounds": 2},
        ("clients", SKEWED, "client-1", "NoT"): {"forget": 60.0, "bytes": 9, "rounds": 30, "reached": False},
        ("clients", SKEWED, None, "MoDe"): {"forget": 60.0, "reached": False},
        (None, None, None, "FedEraser"): {"reached": False},  # it does not recover: nothing to give up
    }
    shown, beyond = printed(changes=changes), judged(changes=changes)
    assert shown["gave up"][["NoT", "MoDe", "PGA", "FedEraser", "Retrain"]].tolist() == ["1 of 2", "2 of 2", "", "", ""]
    assert shown.loc["NoT", "forget acc. % (Δ)"] == "64.0 (4.0)"
    assert shown.loc["NoT", "comm. bytes (×)"] == "5.00e02 (200.0×)"
    assert beyond.loc["NoT", "recovery rounds"] == "2.0"
    ours = [*EFFICACY, *EFFICIENCY]
    assert set(shown.loc["MoDe", ours]) == {"–"}
    assert shown.loc["MoDe", "paper: test acc. %"] == "83.5 ± 1.6"
    assert set(beyond.loc["MoDe"].drop("gave up")) == {"–"}
    assert shown.loc["FedEraser", "forget acc. % (Δ)"] == "60.5 (0.5 ± 0.0)"
    assert beyond.loc["FedEraser", "recovery rounds"] == "–"
    summary = tables.summary(tidy(changes)).set_index(["group", "setting", "method", "stop"])
    place = summary.loc[("clients", SKEWED, "NoT", "test")]
    assert (place["n"], place["gave_up"], place["delta_forget_mean"]) == (2, 1, 4.0)
    always = summary.loc[("clients", SKEWED, "MoDe", "test")]
    assert (always["n"], always["gave_up"]) == (2, 2)
    assert np.isnan(always["delta_forget_mean"])


def test_where_half_gave_up_no_table_shows_the_means_of_the_others():
    e = E.changed(targets=[0, 1, 2, 3])
    changes = {("clients", SKEWED, f"client-{k}", "NoT"): {"reached": False} for k in (0, 1)}
    shown, beyond = printed(changes=changes, e=e), judged(changes=changes, e=e)
    assert shown.loc["NoT", "gave up"] == beyond.loc["NoT", "gave up"] == "2 of 4"
    assert set(shown.loc["NoT", [*EFFICACY, *EFFICIENCY]]) == set(beyond.loc["NoT"].drop("gave up")) == {"–"}
    one_less = dict(list(changes.items())[:1])
    assert printed(changes=one_less, e=e).loc["NoT", "forget acc. % (Δ)"] != "–"


def test_a_tuned_method_has_a_second_row_as_published_and_the_papers_numbers_stand_in_the_first():
    changes = {("clients", SKEWED, None, "PGA"): {"forget": 61.0}}
    unlearnings = planted(TUNED, changes)
    for cell, found in unlearnings.items():
        if cell.label == PUBLISHED and "test" in found.metrics:
            found.metrics["test"]["forget"] = 75.0
    frame = frame_of(unlearnings, e=TUNED)
    table = printed_tables.paper_table(TUNED, frame, SKEWED, about(), stop="test").set_index("method")
    tunable = [m for m in METHODS if len(TUNED.trials(m)) > 1]
    assert {"PGA", "MoDe", "FedAU", *PUFS} <= set(tunable)
    rows = [name for m in METHODS for name in ([m, f"{m}, as published"] if m in tunable else [m])]
    assert list(table.index) == [*REFERENCES, FLOOR, DESTROYED, *rows]
    pga = table.loc[["PGA", "PGA, as published"]]
    assert pga["forget acc. % (Δ)"].tolist() == ["61.0 (1.0 ± 0.0)", "75.0 (15.0 ± 0.0)"]
    assert pga["paper: test acc. %"].tolist() == ["84.0 ± 1.0", "–"]


def test_the_official_fedau_is_a_row_where_it_was_run():
    e = E.changed(official_settings=[EVEN])
    assert printed(EVEN, e=e).index[-1] == OFFICIAL
    assert printed(EVEN, e=e).loc[OFFICIAL, "forget acc. % (Δ)"] == "67.0 (7.0 ± 0.0)"
    assert OFFICIAL not in printed(SKEWED, e=e).index


def test_a_method_of_the_paper_that_was_not_run_here_keeps_its_numbers_beside_dashes():
    e = E.changed(history_interval=0)
    table = printed(EVEN, e=e)
    assert table.index[-1] == "FedEraser"
    assert table.loc["FedEraser", "paper: storage bytes (×)"] == "8.98e10 (0.0005×)"
    assert set(table.loc["FedEraser", ["gave up", *EFFICACY, *EFFICIENCY]]) == {"–"}


# --- controls --------------------------------------------------------------------------------------------------------


def notes(changes=None):
    return printed_tables.control_notes(E, tidy(changes), SKEWED, stop="test")


def test_controls_that_come_out_as_they_must_are_not_mentioned():
    assert notes() == []


def test_a_second_retraining_no_nearer_than_doing_nothing_is_told():
    (told,) = notes({("clients", SKEWED, None, AGAIN): {"forget": 95.0}})
    assert told == "Retrain again's forget gap (35.0) is not smaller than Original's forget gap (30.0)"
    (told,) = notes({("clients", SKEWED, None, AGAIN): {"test": 45.0}})
    assert "Retrain again's test accuracy is 35.0 points off" in told


def test_random_weights_that_are_no_worse_than_somebody_are_told():
    (told,) = notes({("clients", SKEWED, None, DESTROYED): {"test": 79.0}})
    assert told == "Destroyed has no larger shortfall (1.0) than Retrain again (noise floor)"
    (told,) = notes({("clients", SKEWED, None, "NoT"): {"test": 5.0}})
    assert told == "Destroyed has no larger shortfall (70.0) than NoT"
    assert notes({("clients", SKEWED, None, "NoT"): {"test": 5.0, "reached": False}}) == []  # no result


# --- stronger judges -------------------------------------------------------------------------------------------------


def test_stronger_judges_are_in_a_table_of_their_own_beside_retrains():
    changes = {
        ("clients", None, None, "NoT"): {"kl_forget": 0.25, "agreement_forget": 80.0, "distance": 0.5, "shadow": 65.0,
                                         "shadow_auc": 70.0, "threshold_auc": 61.0, "tpr": 4.0, "relearn": 3.0},
    }  # fmt: skip
    shown = judged(changes=changes)
    assert shown.loc["NoT"].drop(["gave up", *(c for c in shown if "bytes" in c or "FLOPs" in c)]).to_dict() == {
        "recovery rounds": "3.0 ± 0.0",
        "test shortfall": "0.0 ± 0.0",
        "KL on forget set": "0.250 ± 0.000",
        "agreement on forget set %": "80.0 ± 0.0",
        "distance / |Original − Retrain|": "0.50 ± 0.00",
        "shadow attack % (Δ)": "65.0 (15.0 ± 0.0)",
        "its AUC % (Δ)": "70.0 (18.0 ± 0.0)",
        "loss attack, AUC % (Δ)": "61.0 (10.0 ± 0.0)",
        "TPR % at 1 % FPR (Δ)": "4.0 (3.0 ± 0.0)",
        "relearning, passes (Δ)": "3.0 (5.0 ± 0.0)",
    }
    assert shown.loc["Retrain", "shadow attack % (Δ)"] == "50.0 ± 0.0"
    assert shown.loc["Original", "test shortfall"] == "-1.0 ± 0.0"
    assert shown.loc[DESTROYED, "test shortfall"] == "70.0 ± 0.0"
    assert "backdoor success % (Δ)" not in shown  # nobody carried one


def test_who_never_learned_the_data_again_took_at_least_so_long():
    changes = {("clients", None, "client-1", "NoT"): {"relearn": 10.0, "relearned": False}}
    shown = judged(changes=changes)["relearning, passes (Δ)"]
    assert shown["NoT"] == "≥ 9.0 (0.0)"  # a difference to Retrain's only where both have learned them again
    assert "≥" not in shown["PGA"]


def test_backdoors_are_shown_where_there_were_some():
    e = E.changed(backdoor_settings=[SKEWED])
    changes = {
        ("backdoor", None, None, name): {"backdoor": level} for name, level in ((None, 10.0), ("Original", 95.0))
    }
    shown = judged(scenario="backdoor", changes=changes, e=e)["backdoor success % (Δ)"]
    assert shown["Original"] == "95.0 (85.0 ± 0.0)"
    assert shown["NoT"] == "10.0 (0.0 ± 0.0)"
    assert not [c for c in printed(scenario="backdoor", changes=changes, e=e) if "paper" in c]


def test_the_summary_holds_mean_sample_deviation_and_count():
    changes = {("clients", None, f"client-{t}", "PUF-Special"): {"forget": f} for t, f in ((0, 64.0), (1, 58.0))}
    summary = tables.summary(tidy(changes))
    place = (summary.group == "clients") & (summary.setting == SKEWED) & (summary.method == "PUF-Special")
    (shown,) = summary[place & (summary.stop == "test")].to_dict("records")
    assert (shown["n"], shown["forget_mean"], shown["delta_forget_mean"]) == (2, 61.0, 3.0)
    assert shown["forget_std"] == pytest.approx(18**0.5)  # ((64 - 61)^2 + (58 - 61)^2) / (2 - 1)


def test_a_further_method_stands_last_in_every_table_and_figure():
    e, further = E.changed(further_methods=["NaiveGA"]), "NaiveGA"
    unlearnings = planted(e)
    runs = frame_of(unlearnings, e=e)
    assert list(tables.needs_table(e, runs, unlearnings).method) == [*METHODS, further, *NOT_HERE]
    for table in (printed(e=e), judged(e=e)):
        assert list(table.index) == [*REFERENCES, FLOOR, DESTROYED, *METHODS, further]
    assert printed(e=e).loc[further, "forget acc. % (Δ)"] == "65.0 (5.0 ± 0.0)"
    assert printed(e=e).loc[further, "comm. bytes (×)"] == "1.00e03 (100.0×)"
    panels = [ax for ax in recovery_figures.recovery_curves(e, unlearnings, SKEWED).axes if ax.get_title()]
    assert panels[-1].get_title() == further
    assert colour(further) in {to_hex(line.get_color()) for line in panels[-1].lines}
    dots = figures.metrics(e, runs, SKEWED).axes[0]
    assert dots.get_yticklabels()[-1].get_text() == further
    assert to_hex(dots.collections[-1].get_facecolor()[0]) == colour(further)


# --- more patience ---------------------------------------------------------------------------------------------------


def test_who_is_given_longer_is_counted_before_and_after_and_who_still_gave_up_is_no_result():
    e = E.changed(recovery_cap=30, patience={"NoT": 60}, patience_settings=[SKEWED])
    gave_up = {"reached": False, "test": 78.0, "forget": 40.0}
    runs = tidy({("clients", SKEWED, None, "NoT"): gave_up}, e)
    plans = {("clients", SKEWED, "client-0", "NoT"): {"reached": True, "rounds": 33, "forget": 58.0},
             ("clients", SKEWED, "client-1", "NoT"): gave_up}  # fmt: skip
    longer = frame_of(planted(e, plans, "patient"), planted(e), e=e)
    table = tables.patience_table(e, runs, longer)
    here = table[table.setting == "CIFAR-10, Dirichlet 0.3"].set_index("method")
    assert here.loc["NoT"].tolist()[1:] == ["0 of 2", "1 of 2 within 60", "33", "2.0", "2.0", "20.0"]
    assert here.loc["doing nothing", "Δ forget"] == "30.0"
    assert here.loc["Retrain again (noise floor)", "Δ forget"] == "3.0"
    assert "random weights" in here.index
    assert (here.iloc[1:].drop(columns=["setting", "Δ forget"]) == "–").all().all()


# --- the other tables ------------------------------------------------------------------------------------------------


def test_both_readings_of_the_formula_stand_beside_each_other_on_the_first_setting():
    printed = planted(changes={(None, None, None, "PUF-Special"): {"unlearned": {"step": 0.01}}},
                      runs="printed")  # fmt: skip
    table = tables.forms_table(E, tidy(), frame_of(printed, planted()))
    assert list(zip(table["method"], table["form"], strict=True)) == [
        *((method, form) for method in PUFS for form in ("corrected", "as printed")),
        ("doing nothing", "–"),
        ("Retrain again (noise floor)", "–"),
        ("random weights", "–"),
    ]
    assert table["step / |w|"].tolist() == ["0.5", "0.01", "0.5", "0.5", "–", "–", "–"]
    assert table["forget acc. % right after"].tolist()[:4] == ["5.0 ± 0.0 (n=2)"] * 4
    assert table["Δ forget after recovery"].tolist()[4:6] == ["30.0 ± 0.0 (n=2)", "3.0 ± 0.0 (n=2)"]


def test_both_readings_are_of_the_same_seeds_of_their_own_setting():
    """Whatever seeds other scenarios have: the phantom's brought four more runs to one of the two."""
    runs, printed = tidy(), frame_of(planted(runs="printed"), planted())
    runs = pd.concat([runs, runs[runs.group != "clients"].assign(seed=1)], ignore_index=True)
    table = tables.forms_table(E, runs, pd.concat([printed, printed.assign(seed=1)], ignore_index=True))
    assert table["forget acc. % right after"].tolist()[:4] == ["5.0 ± 0.0 (n=2)"] * 4
    assert table["Δ forget after recovery"].tolist()[4:6] == ["30.0 ± 0.0 (n=2)", "3.0 ± 0.0 (n=2)"]


def test_both_readings_have_the_methods_own_settings_where_the_tables_are_tuned():
    runs = planted(TUNED)
    for cell, found in runs.items():
        if cell.method in PUFS and cell.label == "" and "test" in found.metrics:
            found.metrics["unlearned"]["step"] = 9.0  # what the trials chose
    printed_form = frame_of(planted(TUNED, runs="printed"), runs, TUNED)
    table = tables.forms_table(TUNED, frame_of(runs, e=TUNED), printed_form)
    assert table["step / |w|"].tolist()[:4] == ["0.5"] * 4


def test_both_divisors_stand_beside_each_other_for_every_setting_with_samples():
    full = planted(changes={(None, None, None, None): {"unlearned": {"step": 0.25}}}, runs="norms")
    table = tables.norms_table(E, tidy(), frame_of(full, planted()))
    assert table["setting"].tolist() == ["CIFAR-10, Dirichlet 0.3"] * 5
    assert table["step / |w|"].tolist() == ["0.5", "0.25", "–", "–", "–"]
    assert table["n counts"].tolist()[2:] == ["doing nothing", "Retrain again (noise floor)", "random weights"]
    assert table["Δ forget after recovery"].tolist()[2:4] == ["30.0 ± 0.0 (n=2)", "3.0 ± 0.0 (n=2)"]
    again = frame_of(full, planted()).assign(seed=7, unlearned_step=9.0)  # a seed that the other one has not
    both = pd.concat([frame_of(full, planted()), again], ignore_index=True)
    assert tables.norms_table(E, tidy(), both).equals(table)


def test_the_table_of_settings_has_every_scenario_with_what_it_trains():
    descriptions = {text: record(text, {"parameters": 58_778}) for text in (SKEWED, EVEN, SITES)}
    whole = tables.settings_table(E.changed(seeds=[0, 1]), descriptions)
    table = whole[whole.whose != "paper"]
    assert len(table) == 2 + 1 + 1 + 1
    assert table["rounds"].tolist() == [200, 200, 200, 200, 500]
    assert table["P"].tolist() == ["58,778"] * 5
    assert table["optimiser"].tolist() == ["sgd, lr 0.1"] * 4 + ["adam, lr 0.0001"]
    assert table["requests x seeds"].tolist() == ["2 x 2"] * 2 + ["2 x 1"] * 3


def test_table_2_has_the_papers_columns_in_its_order_and_its_rows_below_ours():
    """Model, Dataset, Clients, Unlearning Case, Data Heterogeneity, Pre-trained, E, Task, # target clients."""
    descriptions = {text: record(text, {"parameters": 58_778}) for text in (SKEWED, EVEN, SITES)}
    whole = tables.settings_table(E, descriptions)
    assert list(whole)[1:10] == list(tables.TABLE_II)
    ours = whole[whole.whose != "paper"].iloc[:, 1:10].to_numpy().tolist()
    assert ours[0] == ["tiny_cnn", "CIFAR-10", 10, "client", "LDA (alpha=0.3)", "×", "1", "classification", "1"]
    assert [row[3] for row in ours] == ["client", "client", "sample", "client", "client"]
    assert [row[4] for row in ours[1:]] == ["IID", "LDA (alpha=0.3)", "LDA (alpha=0.3)", "Real-world feature skew"]
    assert [row[8] for row in ours] == ["1", "1", "1", "2", "1"]
    assert ours[-1][7] == "segmentation"
    theirs = whole[whole.whose == "paper"].iloc[:, 1:10].to_numpy().tolist()
    assert theirs[3] == ["MiT-B0", "CIFAR-100", 10, "client", "LDA (alpha=0.1)", "✓", "1", "classification", "up to 2"]
    assert len(theirs) == 5


def test_the_equivalence_is_in_percent_by_setting():
    cells = {Cell("clients", text, 0, f"client-{t}", "PUF-Regular"): d
             for text, t, d in ((SKEWED, 0, 0.01), (SKEWED, 1, 0.03), (EVEN, 0, 0.5))}  # fmt: skip
    table = tables.equivalence_table({c: record(str(c), {"relative_difference": d}) for c, d in cells.items()})
    assert table["setting"].tolist() == ["CIFAR-10, Dirichlet 0.3", "CIFAR-10, IID"]
    assert table["geometric mean"].tolist() == pytest.approx([3.0**0.5, 50.0])  # as the claim's
    assert table["min"].tolist() == [1.0, 50.0]
    assert (table["max"].tolist(), table["count"].tolist()) == ([3.0, 50.0], [2, 1])


def test_the_gap_is_the_mean_and_the_smallest_of_a_settings_requests():
    changes = {("clients", SKEWED, "client-1", "Original"): {"forget": 80.0, "yeom": 30.0}}
    gap = tables.gap_table(tidy(changes))
    assert gap.index.tolist() == ["CIFAR-10, Dirichlet 0.3", "CIFAR-10, IID"]
    assert gap["forget gap, mean"].tolist() == [25.0, 30.0]  # 90 and 80, or 90 twice, against 60
    assert gap["forget gap, min"].tolist() == [20.0, 30.0]
    assert gap["yeom gap, mean"].tolist() == [17.5, 25.0]  # |65 - 40| and |30 - 40|: absolute
    assert gap["yeom gap, min"].tolist() == [10.0, 25.0]


def test_gaps_stand_beside_those_of_larger_sizes_in_points_and_in_noise_floors(tmp_path, monkeypatch):
    monkeypatch.setenv("FU_FIGURES", str(tmp_path))
    e, here = E.changed(profile="quick"), tidy()
    alone = tables.gaps_by_size(e, here)
    assert alone.profile.unique().tolist() == ["quick"]
    assert alone["forget gap, mean"].tolist() == [30.0, 30.0]  # 90 against 60, the floor is 3
    assert alone["gap / floor"].tolist() == [10.0, 10.0]
    (tmp_path / "workstation" / "puf").mkdir(parents=True)
    changes = {("clients", SKEWED, None, "Original"): {"forget": 64.5}}
    save_table(results.saved(tidy(changes)), tmp_path / "workstation" / "puf" / "runs.csv", "digits # bundled")
    both = tables.gaps_by_size(e, here)
    assert both.profile.tolist() == ["quick", "quick", "workstation", "workstation"]
    assert both["gap / floor"].tolist() == [10.0, 10.0, 1.5, 10.0]
    assert both.runs.tolist() == [2, 2, 2, 2]
    told = tables.most_to_forget(both)
    assert "30 points" in told
    assert told.endswith("Less than 2 times: 1 of 4 rows")


# --- what the notebook shows of a scenario ---------------------------------------------------------------------------


def shown(monkeypatch, capsys, scenario, changes=None, stop="validation", e=E):
    """The captions and the data lines of the tables, and what was printed."""
    tables_shown = []
    monkeypatch.setattr(show, "display", lambda table: tables_shown.append(table.data))
    unlearnings = planted(e, changes)
    found = {
        "settings": {
            text: record(text, {"source": f"data of {text}", "flops": 10.0, "parameters": P})
            for text in (SKEWED, EVEN, SITES)
        },
        "unlearning and recovery": unlearnings,
    }
    show.scenario_tables(SimpleNamespace(experiment=e, run=found.get), frame_of(unlearnings, e=e), scenario, stop)
    return tables_shown, capsys.readouterr().out.splitlines()


def test_a_scenario_has_both_tables_of_every_setting_with_its_own_data_below(monkeypatch, capsys):
    tables_shown, told = shown(monkeypatch, capsys, "clients")
    assert told == []
    places = [(what, text) for text in (SKEWED, EVEN) for what in ("", "Stronger judges. ")]
    for table, (what, text) in zip(tables_shown, places, strict=False):
        where = "Dirichlet 0.3" if text == SKEWED else "IID"
        assert f">{what}CIFAR-10, {where}, one client leaves, 2 runs each, recovery stopped on validation data" in table
        assert f"Data: data of {text}; net: tiny_cnn" in table
    nearest = "Paper: Table III, CIFAR-10, Non-IID, ResNet-18, E=1, its nearest setting, with other net."
    assert nearest in without_tags(tables_shown[0])
    assert "All methods with their own settings." in tables_shown[0]
    (left,) = tables_shown[4:]  # the paper's block that is nearest to none of ours
    missing = "Paper: Table III, CIFAR-100, Non-IID, ResNet-18, E=1. Not run in this profile"
    assert missing in without_tags(left)
    assert "stopped on TEST data, as in the paper" in shown(monkeypatch, capsys, "clients", stop="test")[0][0]


def test_a_table_of_single_runs_says_what_they_are_worth(monkeypatch, capsys):
    worth = "one run each, which rounding on another processor can move by many points"
    single = E.changed(few_seeds=[0], segmentation_targets=[3])
    (table, *_), _ = shown(monkeypatch, capsys, "segmentation", e=single)
    assert f"one hospital leaves, {worth}, recovery stopped" in table
    assert worth in show._caption_of(single, tidy(e=single), "vi")
    assert worth not in show._caption_of(E, tidy(), "iii")
    assert not any(worth in table for table in shown(monkeypatch, capsys, "clients")[0])


def test_a_table_whose_controls_are_wrong_says_so(monkeypatch, capsys):
    changes = {("clients", SKEWED, None, AGAIN): {"forget": 95.0}}
    skewed, _, even, *_ = shown(monkeypatch, capsys, "clients", changes)[0]
    assert "THE CONTROLS ARE WRONG" in skewed
    assert "forget gap (35.0) is not smaller than Original" in skewed
    assert "CONTROLS" not in even


def test_a_caption_says_who_is_tuned(monkeypatch, capsys):
    first = shown(monkeypatch, capsys, "clients", e=TUNED)[0][0]
    told = "Methods by their name alone are tuned, by 3 trials each where there is a choice; "
    assert told in first.replace("&quot;", '"')
    assert "of seed" not in first
    e = TUNED.changed(seeds=[3, 1], few_seeds=[1], sweep_seeds=[1])  # what is published is run with the first
    assert "are their own settings (of seed 3 only)." in shown(monkeypatch, capsys, "clients", e=e)[0][0]


@pytest.mark.parametrize("scenario", ["partial", "backdoor"])
def test_scenarios_beyond_the_paper_have_tables_too(monkeypatch, capsys, scenario):
    e = E.changed(partial_settings=[SKEWED], backdoor_settings=[SKEWED])
    tables_shown, _ = shown(monkeypatch, capsys, scenario, e=e)
    assert len(tables_shown) == 2
    assert "The paper has nothing of the kind." in tables_shown[0]


def test_below_the_tables_stand_those_who_cannot_serve_the_scenario_or_diverged_in_it(monkeypatch, capsys):
    unlearnings = planted()
    lost = [cell for cell in unlearnings if cell.group in ("samples", "clients") and cell.method == "NoT"]
    broken = unlearnings | {cell: record(str(cell), {"diverged": "nan"}, (), unlearnings[cell].config) for cell in lost}
    monkeypatch.setitem(globals(), "planted", lambda *_: broken)
    (first, *_), told = shown(monkeypatch, capsys, "samples")
    assert told == [
        "FedEraser: not possible. FedEraser cannot",
        "PGA: not possible. PGA cannot",
        "MoDe: not possible. MoDe cannot",
        "CIFAR-10, Dirichlet 0.3: NoT: diverged in 2 of 2 runs, which count as given up",
    ]
    assert "2 of 2" in first


def test_a_scenario_that_a_profile_leaves_out_is_said_to_be_missing_and_has_the_papers_block(monkeypatch, capsys):
    (block,), told = shown(monkeypatch, capsys, "long")
    assert told == ["This profile has no setting for it."]
    missing = "Paper: Table III, CIFAR-100, Non-IID, ResNet-18, E=10. Not run in this profile"
    assert missing in without_tags(block)
    assert "Data: the paper" in block


# --- tuning ----------------------------------------------------------------------------------------------------------


def trials(e=TUNED):
    """Records of all trials: the second is the best of those that came back; one better gave up, some diverged."""
    found = {}
    for cell, config in e.tuning():
        k = int(cell.label)
        metrics = {"objective": (9.0, 4.0, 2.0)[k], "forget_gap": 1.0, "shortfall": 0.5, "rounds": 3, "reached": k != 2}
        metrics = {"diverged": "nan"} if (cell.method, k) == ("PGA", 0) else metrics
        found[cell] = record(f"trial {cell}", metrics, (), config)
    return found


def test_what_the_trials_chose_stands_beside_what_the_method_comes_with():
    unlearnings = planted(TUNED)
    for cell, found in unlearnings.items():
        if cell.method == "MoDe" and cell.label == "":
            found.metrics.update({"trial": 2, "chosen": {"momentum": 0.5, "rounds_d": 3}})
    table = tables.tuning_table(trials(), unlearnings).set_index(["setting", "method"])
    assert {method for _, method in table.index} == {m for m in METHODS if len(TUNED.trials(m)) > 1}
    mode = table.loc[("CIFAR-10, Dirichlet 0.3", "MoDe")]
    assert mode.to_dict() == {
        "trials": 3, "came back": 2, "chosen": "momentum = 0.5, rounds_d = 3", "objective": 2.0, "as published": 9.0,
    }  # fmt: skip
    pga = table.loc[("CIFAR-10, IID", "PGA")]
    assert (pga["chosen"], pga["objective"], pga["came back"]) == ("trial 1", 4.0, 1)
    assert np.isnan(pga["as published"])
    eraser = table.loc[("CIFAR-10, IID", "FedEraser")]
    assert np.isnan(eraser["came back"])  # nothing follows it: it cannot give up
    assert eraser["chosen"] == "trial 2"


def test_every_trial_is_listed_with_what_was_tried():
    table = tables.trials_table(TUNED, trials())
    assert len(table) == len(list(TUNED.tuning()))
    assert not table.duplicated(["setting", "method", "trial"]).any()
    pga = table[(table.method == "PGA") & (table.setting == SKEWED)]
    assert pga.trial.tolist() == [0, 1, 2]
    assert pga.tried.nunique() == 3
    assert "lr = 0.01" in pga.tried.iloc[0]  # as published
    assert pga.lost.tolist() == ["diverged", "", ""]
    assert pga.objective.tolist()[1:] == [4.0, 2.0]
    assert pga.reached.notna().tolist() == [False, True, True]
    assert table[table.method == "FedEraser"].reached.isna().all()  # nothing follows it: it cannot give up


def test_tuning_is_shown_and_kept_or_said_to_be_missing(monkeypatch, capsys, tmp_path):
    tables_shown = []
    monkeypatch.setattr(show, "display", lambda table: tables_shown.append(table.data))
    found = {"tuning": trials(), "unlearning and recovery": planted(TUNED)}
    show.tuning_tables(SimpleNamespace(experiment=TUNED, run=found.get), tmp_path, "here")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tuning.csv", "tuning_trials.csv"]
    assert "What was chosen" in tables_shown[0]
    show.tuning_tables(SimpleNamespace(experiment=E, run={"tuning": {}}.get), tmp_path, "here")
    assert capsys.readouterr().out.splitlines() == ["This profile takes all methods as published."]


def test_options_that_a_method_leaves_to_the_federation_say_so():
    told = tables._told({"lr": None, "epochs": None, "calibration": 0.125, "norm_scope": "layer_avg"})
    assert told == "lr = as in training, epochs = as in training, calibration = 0.125, norm_scope = layer_avg"


def test_the_printed_tables_are_kept_whole(tmp_path):
    descriptions = {text: record(text, {"flops": 10.0, "parameters": P}) for text in (SKEWED, EVEN, SITES)}
    study = SimpleNamespace(experiment=E, run={"settings": descriptions}.get)
    show.save_printed_tables(study, tidy(), tmp_path, "here")
    for name, blocks in (("iii", 5), ("iv", 2), ("v", 2), ("vi", 1)):
        kept = pd.read_csv(tmp_path / f"table_{name}.csv", comment="#")
        assert kept["paper: setting"].nunique() == blocks
        assert {"method", "gave up", "paper: comm. bytes (×)"} <= set(kept)


@pytest.mark.parametrize("notes", [[], ["planted"]])
def test_the_printed_tables_keep_their_warning(notes, tmp_path, monkeypatch):
    monkeypatch.setattr(show.printed_tables, "control_notes", lambda *of: notes)
    descriptions = {text: record(text, {"flops": 10.0, "parameters": P}) for text in (SKEWED, EVEN, SITES)}
    study = SimpleNamespace(experiment=E, run={"settings": descriptions}.get)
    show.save_printed_tables(study, tidy(), tmp_path, "here")
    caption = (tmp_path / "table_iii.csv").read_text().splitlines()[1]
    assert caption.startswith("# Table III, whole: ours beside the paper's.")
    assert ("THE CONTROLS ARE WRONG" in caption, "planted" in caption) == (bool(notes), bool(notes))


def test_a_figure_of_one_setting_is_named_by_its_data_set_and_split():
    assert show.figure_path(Path("out"), "radar", SKEWED) == Path("out/radar_cifar10_dirichlet-03.png")


# --- figures ---------------------------------------------------------------------------------------------------------


def labelled(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_training_curves_have_a_line_for_all_and_one_without_the_forgotten():
    fig = figures.training_curves(E, trainings())
    assert [ax.get_title() for ax in fig.axes] == ["CIFAR-10, Dirichlet 0.3", "CIFAR-10, IID"]
    for ax in fig.axes:
        lines = labelled(ax)
        assert {name: line.get_ydata().tolist() for name, line in lines.items()} == {
            "Original": [31.0, 45.0],
            "Retrain": [31.0, 41.0],
        }
        assert lines["Original"].get_xdata().tolist() == [1, 5]
        assert len(ax.collections) == 1  # a band of two retrainings, none of one original
    hospitals = figures.training_curves(E, trainings(), "segmentation")
    assert [ax.get_ylabel() for ax in hospitals.axes] == ["test Dice (%)"]


def test_the_forget_gap_has_a_line_per_run_from_original_to_retrain():
    changes = {("clients", SKEWED, "client-1", "Retrain"): {"forget": 42.0}}
    first, second = figures.forget_gap(E, planted(changes=changes)).axes
    assert [list(line.get_ydata()) for line in first.lines] == [[90.0, 60.0], [90.0, 42.0]]
    assert [list(line.get_ydata()) for line in second.lines] == [[90.0, 60.0]] * 2
    assert len(first.collections) == 4


def panels(fig):
    """(test, forget) panel of every method, by the name above it."""
    every = [ax for ax in fig.axes if ax.get_title()]
    rows = sorted({round(ax.get_position().y0, 6) for ax in fig.axes}, reverse=True)
    found = {}
    for ax in every:
        box = ax.get_position()
        below = rows[rows.index(round(box.y0, 6)) + 1]
        (other,) = (o for o in fig.axes if (round(o.get_position().y0, 6), o.get_position().x0) == (below, box.x0))
        found[ax.get_title()] = (ax, other)
    return found


def runs_in(ax):
    """(heights of its line, where it ends in a dot or None, whether that is open) of every run in a panel."""
    lines = [line for line in ax.lines if line.get_marker() == "None" and len(line.get_xdata()) != 2]
    lines += [line for line in ax.lines if line.get_marker() == "None" and list(line.get_xdata()) == [0, 1]
              and line.get_linewidth() == 1.0]  # fmt: skip
    return [line.get_ydata() for line in lines]


def ends_in(ax, mark="o"):
    """(round, height, inside) of every dot in a panel."""
    marks = [line for line in ax.lines if line.get_marker() == mark]
    return [(m.get_xdata()[0], m.get_ydata()[0], to_hex(m.get_markerfacecolor())) for m in marks]


def test_recovery_has_two_panels_for_everybody_who_can_serve_the_request():
    for scenario, setting in (("clients", EVEN), ("samples", SKEWED), ("pairs", SKEWED), ("segmentation", SITES)):
        fig = recovery_figures.recovery_curves(E, planted(), setting, scenario)
        able = [method for method in METHODS if method not in CANNOT.get(scenario, ())]
        assert list(panels(fig)) == able
        assert len(fig.axes) == 2 * len(able)
        told = [text.get_text() for text in fig.legends[0].get_texts()]
        replays = ["no recovery"] if "FedEraser" in able else []
        assert told == ["came back", "gave up", "Retrain", "Original (do nothing)", *replays]
    assert fig.axes[0].get_ylabel() == "test Dice\nless Retrain's"
    assert list(panels(recovery_figures.recovery_curves(E, planted(), EVEN, methods=["NoT", "PGA"]))) == ["NoT", "PGA"]


def test_a_run_is_a_line_of_differences_to_its_own_retrain_that_ends_in_a_dot_where_it_came_back():
    """Retrain has 80 and 60, for client 1 80 and 70. What a run went on for after its stop is left out."""
    changes = {
        ("clients", EVEN, "client-0", "NoT"): {"path": [(10.0, 0.0), (20.0, 4.0), (60.0, 8.0)], "rounds": 2},
        ("clients", EVEN, "client-1", "NoT"): {"path": [(30.0, 2.0), (80.0, 6.0), (99.0, 99.0)], "rounds": 1},
        ("clients", EVEN, "client-1", "Retrain"): {"forget": 70.0},
    }
    test, forget = panels(recovery_figures.recovery_curves(E, planted(changes=changes), EVEN, methods=["NoT"]))["NoT"]
    assert [list(line) for line in runs_in(test)] == [[-70.0, -60.0, 0.0], [-50.0, 0.0]]  # ends are the stops' metrics
    assert [list(line) for line in runs_in(forget)] == [[-60.0, -56.0, 10.0], [-68.0, 0.0]]
    assert ends_in(test) == [(2, 0.0, colour("NoT")), (1, 0.0, colour("NoT"))]
    assert ends_in(forget) == [(2, 10.0, colour("NoT")), (1, 0.0, colour("NoT"))]
    spans = {line.get_ydata()[0] for line in forget.lines if line.get_linestyle() != "-" and line.get_marker() != "o"}
    assert spans == {0.0, 25.0}  # Retrain, and Original: 90 against 60 and 70


def test_who_gave_up_ends_in_an_open_dot_at_the_cap_and_natural_in_none():
    changes = {
        ("clients", EVEN, "client-0", "NoT"): {"path": [(10.0, 0.0)] * 6, "reached": False, "rounds": 5},
        ("clients", EVEN, None, "Natural"): {"reached": False},
    }
    found = panels(recovery_figures.recovery_curves(E, planted(changes=changes), EVEN, methods=["NoT", "Natural"]))
    assert ends_in(found["NoT"][0]) == [(5, -70.0, "#ffffff"), (3, 0.0, colour("NoT"))]
    assert ends_in(found["Natural"][0]) == []
    assert [len(line) for line in runs_in(found["Natural"][0])] == [len(PATH)] * 2


def test_federaser_has_a_mark_of_its_own_at_its_end():
    """A full dot said that it had come back to Retrain's test accuracy, from which it was 75 points away."""
    replayed = {"path": [(77.0, 60.0)], "rounds": 0, "test": 77.0, "reached": False}
    changes = {("clients", None, None, "FedEraser"): replayed}
    fig = recovery_figures.recovery_curves(E, planted(changes=changes), EVEN, methods=["FedEraser", "NoT"])
    test, _ = panels(fig)["FedEraser"]
    assert ends_in(test) == []
    assert ends_in(test, "D") == [(0, -3.0, colour("FedEraser"))] * 2
    met = {("clients", None, None, "FedEraser"): {**replayed, "test": 85.0, "reached": True}}
    test, _ = panels(recovery_figures.recovery_curves(E, planted(changes=met), EVEN, methods=["FedEraser"]))[
        "FedEraser"
    ]
    assert ends_in(test, "D") == [(0, 5.0, colour("FedEraser"))] * 2  # there by chance: no rule looked


# --- forget gap at equal utility -------------------------------------------------------------------------------------


def test_utility_is_matched_against_retrain_of_the_same_request_round_by_round():
    """Retrain has 80 and 60, and for client 1 70 and 50. NoT: 30 and 10 points short, then 5 and 0."""
    changes = {
        ("clients", EVEN, "client-1", "Retrain"): {"test": 70.0, "forget": 50.0},
        ("clients", EVEN, "client-0", "NoT"): {"path": [(50.0, 10.0), (75.0, 64.0)]},
        ("clients", EVEN, "client-1", "NoT"): {"path": [(60.0, 40.0), (70.0, 48.0)]},
    }
    (ax,) = recovery_figures.utility_matched(E, planted(changes=changes), EVEN, methods=["NoT"]).axes
    line = labelled(ax)["NoT"]
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([20.0, 2.5], [30.0, 3.0])
    assert ends_in(ax) == [(2.5, 3.0, colour("NoT"))]
    retrain = labelled(ax)["Retrain"]
    assert (list(retrain.get_xdata()), list(retrain.get_ydata())) == ([0], [0])
    nothing = labelled(ax)["Original"]
    assert (nothing.get_xdata()[0], nothing.get_ydata()[0]) == (-6.0, 35.0)  # 81 and 90 against both


def test_no_number_at_a_panels_edge_lies_on_one_of_the_next_panel():
    """71.4 points short make an axis that ends just before 100, which fell on the next one's -1."""
    changes = {("clients", EVEN, None, "NoT"): {"path": [(80 - 71.4, 10.0), (79.0, 60.0)]}}
    fig = recovery_figures.utility_matched(E, planted(changes=changes), EVEN)
    assert fig.axes[0].get_xlim()[1] == pytest.approx(99.96)
    assert fig.axes[0].get_xticks().tolist() == [-1, 0, 1, 10]
    assert [fault for fault in faults(fig) if "lies on" in fault] == []


def test_the_noise_floor_is_a_box_as_large_as_what_tells_two_retrainings_apart():
    fig = recovery_figures.utility_matched(E, planted(), SKEWED)
    assert [ax.get_title() for ax in fig.axes] == list(METHODS)
    for ax in fig.axes:
        (box,) = ax.patches
        assert box.get_bbox().bounds == (-1.0, 0.0, 2.0, 3.0)  # 79 and 63 against 80 and 60
        assert set(labelled(ax)) == {ax.get_title(), *REFERENCES}
        (others,) = ax.collections
        assert len(others.get_offsets()) == len(METHODS) - 1


def test_runs_that_gave_up_are_drawn_to_the_cap_and_counted():
    path = [(40.0 + k, 20.0) for k in range(6)]
    changes = {
        ("clients", SKEWED, "client-0", "NoT"): {"path": path, "reached": False},
        ("clients", SKEWED, "client-1", "NoT"): {"path": path[:2]},
        ("clients", SKEWED, None, "Natural"): {"reached": False},
        ("clients", SKEWED, None, "FedEraser"): {"path": path[:1], "reached": False},
    }
    fig = recovery_figures.utility_matched(E, planted(changes=changes), SKEWED)
    found = {ax.get_title(): ax for ax in fig.axes}
    assert {"Natural", "FedEraser"} <= set(found)  # neither can give up
    ax = found["NoT, gave up 1 of 2"]
    assert labelled(ax)["NoT"].get_xdata().tolist() == [40.0, 39.0, 38.5, 38.0, 37.5, 37.0]
    assert [inside for *_, inside in ends_in(ax)] == ["#ffffff"]
    assert [inside for *_, inside in ends_in(found["PGA"])] == [colour("PGA")]


def test_naturals_rounds_stand_beside_what_puf_ends_with():
    e = E.changed(natural_rounds=[1, 3], targets=[0, 1, 2])
    changes = {
        ("clients", SKEWED, "client-0", "PUF-Regular"): {"forget": 66.0, "rounds": 4},
        ("clients", SKEWED, "client-1", "PUF-Regular"): {"forget": 60.0, "reached": False},
        ("clients", SKEWED, "client-2", "PUF-Regular"): {"forget": 66.0, "rounds": 4},
        ("clients", SKEWED, None, "PUF-Special"): {"reached": False},
    }
    unlearnings = planted(e, changes)
    ax, other = figures.natural_curve(e, frame_of(unlearnings, e=e), unlearnings).axes
    assert [text.get_text() for text in other.get_legend().get_texts()] == [
        "Natural", "PUF-Regular", "noise floor", "PUF-Special",
    ]  # fmt: skip
    lines = labelled(ax)
    assert set(lines) == {"Natural", "PUF-Regular"}
    assert lines["Natural"].get_ydata().tolist() == [55.0, 20.0, 10.0, 2.0]  # PATH against 60
    assert set(lines["PUF-Regular"].get_ydata()) == {6.0}
    natural, regular = (line for line in ax.lines if line.get_marker() == "o")
    assert (natural.get_xdata().tolist(), natural.get_ydata().tolist()) == ([1, 3], [20.0, 2.0])
    # 4 rounds of recovery and one of unlearning
    assert (regular.get_xdata().tolist(), regular.get_ydata().tolist()) == ([5.0], [6.0])
    assert regular.get_markerfacecolor() == "white"  # one of three gave up
    assert ax.patches[0].get_bbox().bounds[3] == 3.0


def test_naturals_panels_share_an_axis_that_holds_what_any_of_them_shows():
    """The first panel's top was everybody's: CIFAR-10's bars and first rounds ended beyond it."""
    unlearnings = planted(E, {("clients", EVEN, None, "PUF-Special"): {"forget": 160.0}})
    for ax in figures.natural_curve(E, frame_of(unlearnings), unlearnings).axes:
        bottom, top = ax.get_ylim()
        assert bottom == 0
        assert top > 100


def test_natural_has_no_puf_beside_it_of_whose_runs_half_gave_up():
    e = E.changed(targets=[0, 1, 2, 3])
    gave_up = {("clients", SKEWED, f"client-{k}", "PUF-Regular"): {"reached": False} for k in (0, 1)}
    unlearnings = planted(e, gave_up)
    ax, _ = figures.natural_curve(e, frame_of(unlearnings, e=e), unlearnings).axes
    assert set(labelled(ax)) == {"Natural", "PUF-Special"}


def test_training_curves_leave_out_trainings_that_only_an_attacker_has():
    e = E.changed(seeds=[0, 1], backdoor_settings=[SKEWED], tuning_trials=2, tuning_targets=[9], tuning_seed=100)
    found = trainings(e)
    assert {key[0] for key in found} == {"clients", "samples", "pairs", "segmentation", "backdoor", "tuning"}
    for (group, _, seed, request), one in found.items():
        if seed not in e.seeds or (group == "backdoor" and request == "none"):
            one.rounds[:] = [{"round": t, "test": 999.0} for t in (1, 5)]
    for scenario in ("clients", "backdoor"):
        for ax in figures.training_curves(e, found, scenario).axes:
            lines = {name: line.get_ydata().tolist() for name, line in labelled(ax).items()}
            assert lines == {"Original": [31.0, 45.0], "Retrain": [31.0, 41.0]}


def means(ax):
    """The large dots of a panel by method, as its rows are named."""
    names = [text.get_text() for text in ax.figure.axes[0].get_yticklabels()]  # all panels share the rows
    large = [dots.get_offsets()[0] for dots in ax.collections if len(dots.get_sizes()) and dots.get_sizes()[0] == 60]
    return {names[round(float(y))]: float(x) for x, y in large}


def glance(changes=None, e=E):
    """The panels of Fig. 1 by their heads."""
    fig = figures.metrics(e, tidy(changes, e), SKEWED)
    return {ax.get_title(): ax for ax in fig.axes}


def test_fig_1_has_differences_in_points_and_costs_in_percent_of_retraining():
    values = {"forget": 70.0, "song": 60.0, "yeom": 40.0, "bytes": 1000, "images": 2000}
    found = {head: means(ax)["MoDe"] for head, ax in glance({("clients", SKEWED, None, "MoDe"): values}).items()}
    expected = {"Δ forget acc.": 10.0, "Δ Song": 10.0, "Δ Yeom": 0.0, "bytes sent": 1.0, "FLOPs": 10.0}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("lost", "row", "large"),
    [(0, "NoT", "filled"), (1, "NoT (2 of 3)", "open"), (2, "NoT (1 of 3)", "none"), (3, "NoT", "none")],
)
def test_fig_1_has_an_open_mean_where_some_gave_up_and_none_where_half_did(lost, row, large):
    """The mean of two survivors of six stood beside means of all, with nothing to tell them apart."""
    gone = {("clients", SKEWED, f"client-{i}", "NoT"): {"reached": False} for i in range(lost)}
    ax = glance(gone, E.changed(targets=[0, 1, 2]))["bytes sent"]
    rows = [label.get_text() for label in ax.figure.axes[0].get_yticklabels()]
    assert row in rows
    dots = [d for d in ax.collections if len(d.get_sizes()) and d.get_sizes()[0] == 60]
    inside = [to_hex(d.get_facecolor()[0]) for d in dots if round(float(d.get_offsets()[0][1])) == rows.index(row)]
    assert inside == {"filled": [to_hex(colour("NoT"))], "open": ["#ffffff"], "none": []}[large]
    assert "PUF-Special" in means(ax)


def test_fig_1_says_what_doing_nothing_retraining_and_noise_amount_to():
    found = glance()
    forget, costs = found["Δ forget acc."], found["bytes sent"]
    assert set(means(forget)) == set(METHODS)
    assert {name: line.get_xdata()[0] for name, line in labelled(forget).items()} == {"doing nothing": 30.0}
    assert forget.patches[0].get_bbox().bounds[2] == 3.0  # the noise floor
    assert {name: line.get_xdata()[0] for name, line in labelled(costs).items()} == {"retraining": 100}


def test_fig_1_has_a_dot_per_run_beside_their_mean():
    ax = glance({("clients", SKEWED, "client-0", "NoT"): {"forget": 66.0}})["Δ forget acc."]
    place = METHODS.index("NoT")
    small = [dots.get_offsets() for dots in ax.collections if len(dots.get_sizes()) and dots.get_sizes()[0] < 60]
    (own,) = (dots for dots in small if dots[0][1] == place)
    assert own.tolist() == [[6.0, place], [10.0, place]]
    assert means(ax)["NoT"] == 8.0


@pytest.mark.parametrize("cost", [{"bytes": 0, "images": 0}, {"bytes": 100, "images": 20}, {"bytes": 1, "images": 1}])
def test_whoever_costs_nothing_or_a_thousandth_sits_at_the_axis_end(cost):
    found = glance({("clients", SKEWED, None, "Natural"): {**RETRAIN, **cost}})
    for head in ("bytes sent", "FLOPs"):
        assert means(found[head])["Natural"] == pytest.approx(0.1)
        assert found[head].get_xticklabels()[0].get_text() == "≤0.1"


def test_fig_1_leaves_out_who_was_not_run():
    e = E.changed(history_interval=0)
    for ax in glance(e=e).values():
        assert set(means(ax)) == set(METHODS) - {"FedEraser"}


def test_fig_1_has_a_note_and_no_dot_of_whoever_always_gave_up():
    ax = glance({("clients", SKEWED, None, "MoDe"): {"reached": False}})["Δ forget acc."]
    assert set(means(ax)) == set(METHODS) - {"MoDe"}
    (note,) = ax.texts
    assert (note.get_text(), note.get_position()[1]) == ("always gave up", METHODS.index("MoDe"))


def test_the_drawing_of_both_modes_has_an_arrow_from_everybody_who_takes_part():
    axes = figures.operating_modes().axes
    assert [ax.get_title("left") for ax in axes] == ["PUF-Regular", "PUF-Special"]
    arrows = [[text for text in ax.texts if getattr(text, "arrow_patch", None) is not None] for ax in axes]
    assert [len(found) for found in arrows] == [4, 1]
    for ax, updates, signs in zip(axes, (range(4), [3]), ("+++\N{MINUS SIGN}", "\N{MINUS SIGN}"), strict=True):
        written = [text for text in ax.texts if re.search(r"\\Delta_\d", text.get_text())]
        assert [text.get_text() for text in written] == [rf"$\Delta_{i}$" for i in updates]  # nobody sends a minus
        (server,) = ax.patches
        ax.figure.draw_without_rendering()
        inside = server.get_window_extent()
        at_server = [text for text in ax.texts if text.get_text() in ("+", "\N{MINUS SIGN}")]
        assert "".join(text.get_text() for text in at_server) == signs
        assert all(inside.contains(*text.get_window_extent().min) for text in at_server)


def swept(changes=None, scenario="clients", e=E):
    runs = planted(e, changes)
    sweep = frame_of(planted(e, changes, "sweep"), runs, e)
    both = pd.concat([frame_of(runs, e=e), sweep])
    return figures.sweep_scatter(e, both, scenario).axes


def not_shown(ax):
    """Who is not shown, and why."""
    return next(text.get_text() for text in ax.texts if text.get_text().startswith("not shown"))


def dots(ax):
    """(colour, x, y) of all that is drawn; the legend's samples are empty."""
    return [(to_hex(drawn.get_facecolor()[0]), *drawn.get_offsets()[0].tolist()) for drawn in ax.collections
            if len(drawn.get_offsets()) and drawn.get_gid() != "paper"]  # fmt: skip


def test_the_sweep_has_one_dot_per_rate_and_epochs_and_one_star_per_rival():
    (ax,) = swept()
    drawn = dots(ax)
    assert len(drawn) == 2 * 2 + 1 * 2 + 3
    count = {method: sum(c == colour(method) for c, *_ in drawn) for method in (*PUFS, *SWEPT_AGAINST)}
    assert count == {"PUF-Special": 4, "PUF-Regular": 2, "Natural": 1, "NoT": 1, "PGA": 1}
    assert [text.get_text() for text in ax.texts if text.get_text()] == ["10", "10", "1", "1", "2", "2"]  # eta_u
    *ways, nothing = [line.get_xydata().tolist() for line in ax.lines]
    assert ways == [[[3.0, 1.0]]] * 2 + [[[3.0, 2.0]] * 2] * 2  # one per mode and E_u
    assert [y for _, y in nothing] == [30.0, 30.0]
    (floor,) = ax.patches
    assert (floor.get_y(), floor.get_height()) == (0, 3.0)
    shown = {text.get_text() for text in ax.get_legend().get_texts()}
    assert shown == {*PUFS, *SWEPT_AGAINST, "$E_u$ = 1", "$E_u$ = 5", "paper", "doing nothing", "noise floor"}


def test_the_transformers_sweep_is_a_panel_of_its_own():
    e = E.changed(settings=[SKEWED], transformer_settings=[EVEN], sweep_settings=[SKEWED, EVEN])
    changes = {("transformer", None, None, "PUF-Special"): {"rounds": 7}}
    (main,), (transformer,) = swept(changes, e=e), swept(changes, "transformer", e)
    assert main.get_title() != transformer.get_title()
    assert len(dots(main)) == len(dots(transformer)) == 2 * 2 + 1 * 2 + 3
    of_special = [[x for c, x, _ in dots(ax) if c == colour("PUF-Special")] for ax in (main, transformer)]
    assert of_special == [[3.0] * 4, [7.0] * 4]


def test_the_papers_points_are_its_forget_gaps_at_the_rounds_that_its_costs_imply():
    """Fig. 5 (b) comes without numbers; Table III, CIFAR-10: 0.9, 1.3, 3.1 and 3.2 points."""
    (ax,) = swept()
    crosses = [drawn for drawn in ax.collections if drawn.get_gid() == "paper"]
    assert {to_hex(c.get_facecolor()[0]): c.get_offsets()[0].tolist()[1] for c in crosses} == {
        colour("PUF-Special"): 0.9, colour("PUF-Regular"): 1.3, colour("NoT"): 3.1, colour("PGA"): 3.2,
    }  # fmt: skip
    special = next(c for c in crosses if to_hex(c.get_facecolor()[0]) == colour("PUF-Special"))
    # 3.30e9 bytes = 2 P B C_u + 2 P B C_r R, P B = 4.49e7, C_r = 9
    assert special.get_offsets()[0][0] == pytest.approx((3.30e9 / 8.98e7 - 1) / 9, abs=0.1)
    hospitals = swept(scenario="segmentation", e=E.changed(recovery_cap=20))[0]
    assert not [c for c in hospitals.collections if c.get_gid() == "paper" and c.get_offsets()[0][0] > 20]
    assert "paper's PGA at" in not_shown(hospitals)


def test_below_a_sweep_stand_the_controls_of_its_settings_and_seeds():
    e = E.changed(seeds=[0, 1], sweep_seeds=[1], sweep_settings=[EVEN])
    runs, swept = tidy(e=e), frame_of(planted(e, runs="sweep"), planted(e), e=e)
    table = tables.sweep_summary(e, runs, swept)
    controls = table[table.method.isin(CONTROLS)]
    of_the_sweep = controls[controls.group == "clients"]
    assert set(of_the_sweep.setting) == {EVEN}
    assert set(of_the_sweep.method) == set(CONTROLS)
    assert set(of_the_sweep.n) == {len(e.targets)}  # of one seed
    swept_alone = tables.summary(swept)
    assert len(table) == len(controls) + len(swept_alone)


def test_a_sweeps_runs_that_gave_up_enter_no_mean():
    changes = {
        ("clients", SKEWED, "client-0", "PUF-Regular"): {"forget": 64.0, "rounds": 4},
        ("clients", SKEWED, "client-1", "PUF-Regular"): {"forget": 60.0, "rounds": 30, "reached": False},
        ("clients", SKEWED, None, "PUF-Special"): {"reached": False},
        ("clients", SKEWED, "client-0", "NoT"): {"reached": False},
        ("clients", SKEWED, None, "PGA"): {"reached": False},
    }
    (ax,) = swept(changes)
    assert [place for c, *place in dots(ax)] == [[4.0, 4.0]] * 2 + [[3.0, 20.0], [3.0, 10.0]]
    open_ones = [c for c in ax.collections if len(c.get_offsets()) and to_hex(c.get_facecolor()[0]) == "#ffffff"]
    assert len(open_ones) == 3  # both of Regular's, and NoT's
    note = " ".join(not_shown(ax).split())
    assert "Special 1, $E_u$ = 1 always gave up" in note
    assert "PGA always gave up" in note
    named = {text.get_text() for text in ax.get_legend().get_texts()}
    assert {"PGA", "PUF-Special"} & named == set()
    assert {"NoT", "PUF-Regular", "paper"} <= named
    assert {"paper's PGA", "paper's PUF-Special"} <= named  # whose crosses would be nobody's
    assert not {"paper's NoT", "paper's PUF-Regular"} & named


def test_a_point_that_half_of_the_runs_gave_up_is_a_note():
    """The mean of one survivor of twelve was the point nearest to the floor, with a line to it."""
    e = E.changed(targets=[0, 1, 2, 3])
    lost = {"reached": False, "rounds": 30}
    two = {("clients", SKEWED, f"client-{k}", "PUF-Regular"): lost for k in (0, 1)}
    (ax,) = swept(two, e=e)
    assert not [c for c, *_ in dots(ax) if c == colour("PUF-Regular")]
    assert "Regular 10, $E_u$ = 1 gave up (2 of 4)" in " ".join(not_shown(ax).split())
    (ax,) = swept({("clients", SKEWED, f"client-{k}", "PGA"): lost for k in (0, 1)}, e=e)  # a rival, too
    assert not [c for c, *_ in dots(ax) if c == colour("PGA")]
    assert "PGA gave up (2 of 4)" in " ".join(not_shown(ax).split())
    (ax,) = swept({("clients", SKEWED, "client-0", "PUF-Regular"): lost}, e=e)
    inside = [to_hex(c.get_facecolor()[0]) for c in ax.collections if len(c.get_offsets())]
    assert inside.count("#ffffff") == 2


def test_crosses_far_above_all_that_is_ours_are_in_the_note():
    """The paper's 14.8 points of PGA pressed ours together below 2."""
    e = E.changed(sweep_settings=[EVEN])
    near = {("clients", EVEN, None, m): {"forget": 61.0} for m in (*PUFS, *SWEPT_AGAINST)}
    (ax,) = swept({**near, ("clients", EVEN, None, "Original"): {"forget": 61.0}}, e=e)
    crosses = [c.get_offsets()[0].tolist()[1] for c in ax.collections if c.get_gid() == "paper"]
    assert all(y <= 1.5 * 3.0 for y in crosses)  # the noise floor is 3 points
    assert "paper's PGA at 14.8 points" in " ".join(not_shown(ax).split())


def test_rivals_of_the_sweep_are_those_of_the_tables_and_not_as_published():
    runs = planted(TUNED)
    for cell, found in runs.items():
        if cell.label == PUBLISHED and "test" in found.metrics:
            found.metrics["test"]["rounds"] = 99
    both = pd.concat([frame_of(runs, e=TUNED), frame_of(planted(TUNED, runs="sweep"), runs, TUNED)])
    (ax,) = figures.sweep_scatter(TUNED, both).axes
    assert len(dots(ax)) == 2 * 2 + 1 * 2 + 3
    assert {x for _, x, _ in dots(ax)} == {3.0}


def test_a_sweeps_dot_is_the_mean_over_its_runs_and_so_is_a_rivals():
    changes = {
        ("clients", SKEWED, "client-0", "PUF-Regular"): {"forget": 50.0, "rounds": 4},
        ("clients", SKEWED, "client-1", "PUF-Regular"): {"forget": 66.0, "rounds": 9},
        ("clients", SKEWED, "client-1", "NoT"): {"forget": 64.0, "rounds": 0},
    }
    (ax,) = swept(changes)
    drawn = dots(ax)
    assert [place for c, *place in drawn if c == colour("PUF-Regular")] == [[6.5, 8.0]] * 2
    assert [place for c, *place in drawn if c == colour("NoT")] == [[1.5, 7.0]]
    assert ax.get_ylim()[0] == 0


def test_a_sweep_compares_seeds_of_the_sweep_and_requests_of_its_scenario():
    e = E.changed(
        seeds=[0, 1], few_seeds=[1], sweep_seeds=[1], segmentation_special=[2.0, 4.0], segmentation_regular=[]
    )
    unlearnings = planted(e)
    for cell, found in unlearnings.items():
        if cell.method == "Natural" and cell.seed == 0:
            found.metrics["test"]["rounds"] = 99
    runs = frame_of(unlearnings, e=e)
    both = pd.concat([runs, frame_of(planted(e, runs="sweep"), unlearnings, e)])
    (ax,) = figures.sweep_scatter(e, both).axes
    assert [x for c, x, _ in dots(ax) if c == colour("Natural")] == [3.0]
    (hospitals,) = figures.sweep_scatter(e, both, "segmentation").axes
    assert len(dots(hospitals)) == 2 + 3
    assert hospitals.get_ylabel() == "Δ forget Dice (points)"


def test_panels_of_a_sweep_share_a_legend_where_they_would_repeat_it():
    both = E.changed(sweep_settings=list(E.settings))
    first, last = swept(e=both)
    assert first.get_legend() is None
    told = {text.get_text() for text in last.get_legend().get_texts()}
    assert {"doing nothing", *PUFS, "PGA"} <= told
    first, last = swept({("clients", EVEN, None, "PGA"): {"reached": False}}, e=both)
    named = [{text.get_text() for text in ax.get_legend().get_texts()} for ax in (first, last)]
    assert named[0] - named[1] == {"PGA"}


def test_where_a_run_diverged_there_is_no_dot_but_a_note_and_a_row_without_numbers():
    runs, sweep = planted(), planted(runs="sweep")
    lost = next(c for c in sweep if c.group == "clients" and c.label == "eta_u=2, E_u=5")
    sweep[lost] = record("lost", {"diverged": "its update is not finite"}, (), sweep[lost].config)
    frame = frame_of(sweep, runs)
    alone = frame[frame.record == "lost"]
    assert alone.stop.tolist() == list(STOP_RULES)
    assert alone[["eta_u", "epochs_u"]].to_numpy().tolist() == [[2.0, 5.0]] * 2
    assert alone[["delta_forget", "rounds", "test"]].isna().all(axis=None)
    (ax,) = figures.sweep_scatter(E, pd.concat([frame_of(runs), frame])).axes
    assert sum(c == colour("PUF-Special") for c, *_ in dots(ax)) == 3
    assert "not shown: Special 2, $E_u$ = 5 diverged" in [text.get_text() for text in ax.texts]
    assert results.diverged(sweep) == {"CIFAR-10, Dirichlet 0.3: PUF-Special (eta_u=2, E_u=5)": "1 of 2 runs"}
    assert results.diverged(runs) == {}


def test_the_live_figure_has_the_curve_and_both_references():
    curve = [{"round": k, "test": 40.0 + 10 * k, "forget": 5.0 * k} for k in range(4)]
    fig = figures.live_figure(curve, {"Original": ORIGINAL, "Retrain": RETRAIN}, "head")
    for ax, metric in zip(fig.axes, ("test", "forget"), strict=True):
        assert list(ax.lines[0].get_ydata()) == [point[metric] for point in curve]
        assert {name: line.get_ydata()[0] for name, line in labelled(ax).items()} == {
            "Original": ORIGINAL[metric],
            "Retrain": RETRAIN[metric],
        }


# --- how they are drawn ----------------------------------------------------------------------------------------------


def drawn():
    """Every figure by its name, from planted records."""
    unlearnings = planted()
    runs = frame_of(unlearnings)
    both = pd.concat([runs, frame_of(planted(runs="sweep"), unlearnings)])
    curve = [{"round": k, "test": 40.0 + 10 * k, "forget": 5.0 * k} for k in range(4)]
    return {
        "training": figures.training_curves(E, trainings()),
        "forget gap": figures.forget_gap(E, unlearnings),
        "recovery": recovery_figures.recovery_curves(E, unlearnings, SKEWED),
        "recovery, hospitals": recovery_figures.recovery_curves(E, unlearnings, SITES, "segmentation"),
        "utility": recovery_figures.utility_matched(E, unlearnings, SKEWED),
        "natural": figures.natural_curve(E, runs, unlearnings),
        "metrics": figures.metrics(E, runs, SKEWED),
        "modes": figures.operating_modes(),
        "sweep": figures.sweep_scatter(E, both),
        "sweep, hospitals": figures.sweep_scatter(E, both, "segmentation"),
        "live": figures.live_figure(curve, {"Original": ORIGINAL, "Retrain": RETRAIN}, "head"),
    }


def test_no_figure_has_a_legend_on_data_a_dot_outside_or_a_name_on_a_name():
    figures_drawn = drawn()
    assert {name: found for name, fig in figures_drawn.items() if (found := faults(fig))} == {}
    assert [name for name in ("sweep", "sweep, hospitals") if crossed(figures_drawn[name])] == []


def test_no_figure_of_runs_that_fell_deep_and_gave_up_loses_them():
    """Paths to 0, deltas beyond doing nothing, notes below."""
    deep = {"path": [(0.0, 0.0), (2.0, 100.0), (60.0, 0.0)], "forget": 0.0, "song": 99.0, "rounds": 2}
    changes = {
        ("clients", None, None, "NoT"): {**deep, "reached": False},
        ("clients", None, None, "PGA"): deep,
        ("clients", None, None, "PUF-Special"): {"reached": False},
    }
    unlearnings = planted(changes=changes)
    runs = frame_of(unlearnings)
    both = pd.concat([runs, frame_of(planted(changes=changes, runs="sweep"), unlearnings)])
    for fig in (
        recovery_figures.recovery_curves(E, unlearnings, SKEWED),
        recovery_figures.utility_matched(E, unlearnings, SKEWED),
        figures.metrics(E, runs, SKEWED),
        figures.sweep_scatter(E, both),
    ):
        assert faults(fig) == []


def test_every_figure_says_in_one_line_what_its_dots_are():
    told = {name: str(fig.get_label()) for name, fig in drawn().items()}
    assert all(told.values())
    assert "2 runs (1 seed × 2 requests)" in told["recovery"]
