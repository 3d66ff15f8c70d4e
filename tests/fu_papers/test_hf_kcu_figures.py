"""HF-KCU's figures and tables, from planted records: what they show is what the records hold."""

from itertools import pairwise

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from fu_papers.controls import AGAIN, CONTROLS, DESTROYED, FLOOR
from fu_papers.hf_kcu import cells, figures, further_tables, path_figures, results, stages, sweeps, tables
from fu_papers.hf_kcu.grid import (
    ASCENT,
    BESIDE,
    FORMS,
    LAST_LAYER,
    MATCHED,
    METHODS,
    REQUEST,
    ROUND,
    SAME_START,
    STORED,
    TRUST_REGION,
    TUNED,
)
from fu_papers.hf_kcu.variants import ABLATIONS, CHOICES, LENGTHS, UNWEIGHTED
from fu_papers.lab.record import Record
from fu_papers.look import colour, published, style
from fu_papers.problem_figures import title
from fu_papers.study import Cell, wide
from tests.hf_kcu_lab import experiment
from tests.pictures import faults

MAIN, OTHER = "cifar10/dirichlet-0.5/simple_cnn", "mnist/dirichlet-0.5/simple_cnn"
NET = "cifar10/dirichlet-0.5/resnet18"
E = experiment(
    settings=[MAIN, OTHER], nets=[NET], seeds=[0, 1], tuning_trials=2, natural_rounds=[1, 300], longest_sequence=2
)
TEST = {"Original": 72.0, "Retrain": 70.0, DESTROYED: 10.0, "NaiveGA": 10.0, "FedEraser": 60.0, "SISA": 55.0}
TEST |= {"HF-KCU": 71.5}
FORGET = {"Original": 90.0, "Retrain": 50.0, DESTROYED: 10.0, "HF-KCU": 80.0}
PASSES = {"retrain": 1000.0, "NaiveGA": 10.0, "FedEraser": 0.0, "SISA": 250.0, "HF-KCU": 20.0, "HF-KCU printed": 25.0}
PASSES |= {MATCHED: 30.0, ROUND: 50.0}
SECONDS = {"retrain": 60.0, "NaiveGA": 1.0, "FedEraser": 30.0, "SISA": 20.0, "HF-KCU": 2.0, "HF-KCU printed": 3.0}
SECONDS |= {MATCHED: 2.5, ROUND: 3.0}


def record(key, config, metrics):
    return Record("f", key, config, "", "0", metrics, [], None, {})


def planted(cell, config):
    """What a run has measured: its method decides; seed 1 is a point better on test data, 3 on the others."""
    method = "Retrain" if cell.method == AGAIN else cell.method
    seed = config["seed"]  # which of a second retraining is not its cell's
    test, forget = TEST.get(method, 72.0) + seed, FORGET.get(method, 90.0) + 3.0 * seed
    found = {"n_test": 10_000, "test": test, "forget": forget, "retain": 80.0, "kl": 0.1, "logit_mse": 0.2}
    found |= {"logit_mse_centred": 0.1, "agreement": 95.0}
    if cell.method != "SISA":
        found |= {"gap": 0.5, "step": 0.01}
    if cell.method == DESTROYED:
        del found["step"]
    if config["poison"]:
        successes = {"Original": 80.0, "HF-KCU": 60.0, "Retrain": 12.0, DESTROYED: 10.0}
        found |= {"asr": successes.get(method, 72.0) + 3.0 * seed * (method == "Retrain"), "asr_included": 90.0}
    if config["attack"]:
        found |= {"mia": 0.6 if cell.method == "Original" else 0.5, "mia_fraction": 0.5, "mia_auc": 0.5}
        kl = 0.125 if cell.method == SAME_START else 0.375
        found |= {"distance": 0.9, "travelled": 1.25 if cell.method == ASCENT else 0.25, "kl_forget": kl}
    if cell.method in (*FORMS, MATCHED):
        found |= {"residual": 0.125, "negative": 0, "cg_steps": 10, "scale": 0.5, "stationarity": 1.5}
        return found | {"images": 100, "products": 500, "bytes": 3_000_000, "passes": 1100}
    return found | {"images": 1, "products": 2, "bytes": 3, "passes": 5}


CELLS = E.runs() | E.controls() | E.same_start()
RECORDS = {c: record(f"k{i}", config, planted(c, config)) for i, (c, config) in enumerate(CELLS.items())}
PAIR = {"kl": 0.3, "logit_mse": 0.4, "logit_mse_centred": 0.2, "agreement": 90.0, "gap": 1.4, "test": 1.0}
PAIR |= {"kl_forget": 0.25}
PAIRS = {pair: record("pair", config, PAIR) for pair, config in stages.noise_floor(E).items()}
RUNS = wide(results.of_runs(RECORDS, PAIRS))
DAMPED = [f"{method}, damping {damping:g}" for method in FORMS for damping in E.dampings]
TIMED = {"seconds": SECONDS | dict.fromkeys([*DAMPED, UNWEIGHTED], 2.0), "passes": PASSES, "timed_rounds": 2}
SPEEDS = {what: record(what, {}, TIMED) for what in E.speeds()}


def row(table, **where):
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


# --- the frame ---


def test_the_frame_has_a_row_per_run_with_its_differences_to_retrain():
    assert len(RUNS) == len(RECORDS)
    ours = RUNS[(RUNS.group == "methods") & (RUNS.setting == MAIN) & (RUNS.method == "HF-KCU")]
    assert list(ours.test) == [71.5, 72.5]
    assert list(ours.delta_test) == [1.5, 1.5]
    assert list(ours.delta_forget) == [30.0, 30.0]
    assert list(ours.test_original) == [72.0, 73.0]
    # 1 - |71.5 - 70| / |72 - 70|; two points are more than an accuracy on 10,000 images is off by
    assert list(ours.cf) == [0.25, 0.25]
    assert ours.cf_defined.all()
    assert set(ours.record) <= {r.key for r in RECORDS.values()}
    assert RUNS[RUNS.group == "backdoor"].poisoned.all()
    assert not RUNS[RUNS.group == "methods"].poisoned.any()
    assert RUNS[RUNS.group == "methods"].asr.isna().all()


def test_the_csv_file_has_a_label_for_every_row_and_what_is_derived_last():
    saved = results.saved(RUNS)
    assert list(saved.columns[:8]) == ["group", "label", "setting", "seed", "method", "clients", "rounds", "poisoned"]
    assert list(saved.columns[-2:]) == ["cf", "cf_defined"]
    assert not {"request", "condition", "record"} & set(saved)
    assert (saved.label[saved.group == "methods"] == saved.method[saved.group == "methods"]).all()
    assert set(saved.label[saved.group == "damping"]) == {f"{damping:g}" for damping in E.dampings}
    derived = [list(saved.columns).index(name) for name in results.DERIVED]
    assert all(a < b for a, b in pairwise(derived))
    assert max(derived) == len(saved.columns) - 1
    assert min(derived) > list(saved.columns).index("asr_included")


# --- tables ---


def test_table_1_has_every_method_beside_the_papers_and_its_cf_by_its_own_formula():
    table = tables.table_1(E, RUNS, SPEEDS)
    assert list(table.method) == [results.shown(method) for method in (*cells.WITH_FLOORS, *METHODS)]
    ours = row(table, method="HF-KCU, corrected")
    told = {name: ours[name] for name in (*cells.TRUTH, "images behind it", "passes", "MB")}
    assert told == {
        "distance (do nothing = 1)": "0.900",
        "KL on the forgotten": "0.375",
        "same prediction %": "95.0",
        "step / |Retrain - Original|": "0.25",
        "CG residual": "0.12",
        "|grad L| / right side": "1.50",
        "images behind it": "50",  # 500 in ten products
        "passes": "1.1e+03",
        "MB": "3",
    }
    assert row(table, method="ascent of equal length")["step / |Retrain - Original|"] == "1.25 (!)"
    assert ours["test acc. %"] == "72.0 ± 0.7"  # 71.5 and 72.5
    assert (ours["CF"], ours["× faster"], ours["× fewer passes"]) == ("0.25", "30", "0.909")  # 1000 of Retrain to 1100
    assert ours["Δ forget"] == "30.0 ± 0.0"
    assert pd.isna(ours["paper: acc. %"])  # the paper has the printed form
    assert row(table, method="SISA")["step / |w|"] == "–"  # an ensemble is no vector
    by_formula = table["CF by its formula"]
    assert by_formula.dropna().tolist() == pytest.approx([-61.67, -0.309, -2.082, 0.619], abs=5e-3)
    printed = published("hf_kcu", "table_1").set_index("method")
    assert row(table, method="HF-KCU, as printed")["paper: MIA"] == printed.mia["HF-KCU"]


def test_fewer_passes_are_of_all_runs_and_not_of_the_one_that_was_timed():
    runs = RUNS.copy()
    ours = (runs.group == "methods") & (runs.setting == E.main) & (runs.method == "HF-KCU")
    runs.loc[ours, "passes"] = [100.0, 300.0]
    for table in (tables.table_1(E, runs, SPEEDS), tables.table_2(E, runs, SPEEDS)):
        assert table[table.method == "HF-KCU, corrected"].iloc[0]["× fewer passes"] == "5"  # 1000 to 200
    runs.loc[runs.method == "FedEraser", "passes"] = 0.0  # one stored round, replayed as it is
    assert row(tables.table_1(E, runs, SPEEDS), method="FedEraser")["× fewer passes"] == "∞"


def test_table_2_has_nine_rows_per_setting_and_the_papers_where_it_has_the_net():
    table = tables.table_2(E, RUNS, SPEEDS)
    beside_retrain = ("Original", AGAIN, SAME_START, DESTROYED, *FORMS, *BESIDE)
    assert list(table.method) == [results.shown(m) for m in beside_retrain] * 3
    beside = table[table["paper: ×"].notna()]
    assert set(beside.method) == {"HF-KCU, as printed"}
    printed = published("hf_kcu", "table_2")
    place = printed[(printed.dataset == "MNIST") & (printed.model == "SimpleCNN")].iloc[0]
    ours = beside[beside["data / net"] == "MNIST, Dirichlet 0.5, SimpleCNN"].iloc[0]
    assert ours["paper: acc. after"] == place.acc_after_pct
    assert list(table.runs) == [2] * 18 + [1] * 9


def test_table_3_tells_relative_reductions():
    table = tables.table_3(E, RUNS, SPEEDS)
    assert list(table["paper: ASR %"].dropna()) == [84.35, 71.37, 9.64]
    assert row(table, model="HF-KCU, corrected")["ASR reduction %"] == "25.0 ± 0.0"  # from 80 to 60
    assert row(table, model="HF-KCU, corrected")["change of clean acc."] == "-0.5 ± 0.0"
    assert row(table, model="poisoned (do nothing)")["ASR reduction %"] == "–"


READ_AGAINST = [*map(results.shown, cells.WITH_FLOORS), "Natural, 1 round", "Natural, 300 rounds"]


def test_the_ablations_stand_below_the_controls_and_natural_with_the_papers_gap():
    table = tables.table_4(E, RUNS)
    assert list(table.variant) == [*READ_AGAINST, *ABLATIONS]
    printed = published("hf_kcu", "table_4").set_index("variant")
    ours = row(table, variant="w/o causal weighting")
    assert ours["paper: gap"] == printed.parameter_gap["w/o causal weighting"]
    assert ours["CG residual"] == "0.12"
    assert list(tables.choices_table(E, RUNS).variant) == [*READ_AGAINST, *CHOICES, *LENGTHS]


def test_natural_is_read_against_in_as_many_rounds_as_were_run():
    runs = RUNS.copy()
    runs.loc[(runs.group == "price") & (runs.label == "300"), "passes"] = 8000.0
    for table, name in ((tables.table_4(E, runs), "variant"), (tables.table_5(E, runs, SPEEDS), "method")):
        assert row(table, **{name: "Natural, 300 rounds"})["passes"] == "8e+03"
        assert row(table, **{name: "Natural, 1 round"})["passes"] == "5"


def test_table_5_gives_the_papers_fraction_in_percent():
    table = tables.table_5(E, RUNS, SPEEDS)
    assert len(table) == len(READ_AGAINST) + 2 * len(E.dampings)
    printed = published("hf_kcu", "table_5").set_index("lambda")
    ours = row(table, damping="0.01", method="HF-KCU, as printed")
    assert ours["paper: acc. %"] == pytest.approx(100 * printed.accuracy_fraction[0.01])
    assert ours["× faster (first seed)"] == "30"


@pytest.mark.parametrize(
    ("make", "count", "name", "column"),
    [(tables.table_6, 3, "table_6", "dirichlet_alpha"), (tables.table_7, 3, "table_7", "total_clients")],
)
def test_sweeps_have_eight_rows_per_value_and_the_papers(make, count, name, column):
    table = make(E, RUNS, SPEEDS)
    assert len(table) == 8 * count
    printed = published("hf_kcu", name)
    assert list(table["paper: acc. %"].dropna()) == list(printed.unlearned_acc_pct)
    assert len(printed[column]) == count


def test_table_8_says_what_was_projected_and_computes_the_papers_speed_up():
    table = tables.table_8(E, SPEEDS, {MAIN: 1000, NET: 2000})
    assert table["retraining timed"].tolist() == ["in full", "projected from 2 round(s)"]
    assert table.parameters.tolist() == [1000, 2000]
    assert table["corrected, ×"].tolist() == ["30", "30"]
    printed = published("hf_kcu", "table_8").set_index("model").loc["ResNet-18"]
    retrain_s = float(str(printed.retrain_s).replace(",", ""))
    assert row(table, model="ResNet-18")["paper: ×"] == f"{retrain_s / float(printed.hf_kcu_s):.3g}"


def test_table_9_has_the_noise_floor_and_random_weights_beside_everybody():
    table = tables.table_9(E, RUNS).set_index("metric")
    floor = table[FLOOR]
    assert floor["output KL (nats)"] == "0.3000 ± 0.0000"
    assert floor["parameter gap"] == "1.400 ± 0.000"
    assert floor["test accuracy gap"] == "1.00 ± 0.00"
    assert floor["privacy gap"] == "0.000 ± 0.000"
    assert table["paper's HF-KCU"]["output KL (nats)"] == "0.0023"
    assert table["HF-KCU, corrected"]["test accuracy gap"] == "1.50 ± 0.00"
    assert table[DESTROYED]["test accuracy gap"] == "60.00 ± 0.00"
    without = tables.table_9(E, wide(results.of_runs(RECORDS, {}))).set_index("metric")[FLOOR]
    assert (without["output KL (nats)"], without["test accuracy gap"]) == ("–", "1.00 ± 0.00")


# --- controls ---


def test_a_second_retraining_is_another_seeds_and_its_distances_are_the_pairs():
    """Its own run's are distances to itself."""
    again = RUNS[(RUNS.group == "methods") & (RUNS.setting == MAIN) & (RUNS.method == AGAIN)].set_index("seed")
    assert again.other_seed.tolist() == [1, 0]
    assert again.test.tolist() == [71.0, 70.0]
    assert again.delta_test.tolist() == [1.0, 1.0]
    assert again.delta_forget.tolist() == [3.0, 3.0]
    assert again.kl.tolist() == [0.3, 0.3]
    assert again.step.isna().all()
    assert RUNS[(RUNS.setting == NET) & (RUNS.method == AGAIN)].kl.isna().all()  # the pairs are the main setting's
    own = RECORDS[next(c for c in RECORDS if (c.group, c.setting, c.seed, c.method) == ("methods", MAIN, 1, "Retrain"))]
    assert own.config["seed"] == 1
    assert E.runs()[Cell("methods", MAIN, 0, REQUEST, AGAIN)] == own.config


def test_the_controls_have_neither_costs_nor_steps_and_the_floor_beside_every_difference():
    table = tables.table_1(E, RUNS, SPEEDS)
    floor, destroyed = (row(table, method=name) for name in (FLOOR, DESTROYED))
    for control in (floor, destroyed):
        assert {control[name] for name in ("× faster", "× fewer passes", "step / |w|")} == {"–"}
    assert (floor["Δ forget"], floor["Δ MIA"]) == ("3.0 ± 0.0", "0.000 ± 0.000")
    assert destroyed["test acc. %"] == "10.5 ± 0.7"
    assert row(tables.table_4(E, RUNS), variant=FLOOR)["KL"] == "0.300 ± 0.000"
    sweep = tables.table_6(E, RUNS, SPEEDS)
    assert row(sweep, alpha="0.1", method=FLOOR)["Δ test"] == "1.0"
    assert row(tables.table_3(E, RUNS, SPEEDS), model=FLOOR)["ASR % (other classes)"] == "13.5 ± 2.1"


BLOCKS = ("main", "settings", "backdoor", "alpha", "clients")


def notes(block, where=None, **change):
    """The warning under a table where the runs `where` ({column: value}) are changed."""
    runs = RUNS.copy()
    if where:
        here = (runs[list(where)] == pd.Series(where)).all(axis=1)
        assert here.any()
        for name, value in change.items():
            runs.loc[here, name] = value
    return tables.warned_of("T", E, runs, block).removeprefix("T")


@pytest.mark.parametrize("block", BLOCKS)
def test_where_random_weights_have_not_been_run_tables_have_dashes_and_say_so(block):
    """As in a profile whose records are older."""
    runs = wide(results.of_runs({c: RECORDS[c] for c in E.runs()}, PAIRS))
    assert "Destroyed has not been run here" in tables.warned_of("T", E, runs, block)
    made = [tables.table_1(E, runs, SPEEDS), tables.table_2(E, runs, SPEEDS), tables.table_3(E, runs, SPEEDS)]
    made += [tables.table_5(E, runs, SPEEDS), tables.table_6(E, runs, SPEEDS)]
    for table in made:
        destroyed = table[(table.iloc[:, :2] == DESTROYED).any(axis=1)]
        assert len(destroyed)
        assert set(destroyed.filter(regex="^(test|clean|forget) acc").to_numpy().ravel()) == {"–"}
    assert set(tables.table_4(E, runs).set_index("variant").loc[DESTROYED].dropna()) == {"–"}
    assert tables.table_9(E, runs)[DESTROYED].unique().tolist() == ["–"]


@pytest.mark.parametrize("block", BLOCKS)
def test_controls_that_come_out_as_they_must_are_not_mentioned(block):
    assert notes(block) == ""


def test_a_table_says_where_its_controls_come_out_wrong():
    assert "Retrain again's forget gap (45.0) is not smaller" in notes("main", {"method": AGAIN}, delta_forget=45.0)
    useful = {"method": DESTROYED, "setting": OTHER}
    assert notes("main", useful, test=90.0) == ""
    told = notes("settings", useful, test=90.0)
    assert "THE CONTROLS ARE WRONG in 1 of 3 blocks" in told
    assert "MNIST, Dirichlet 0.5, simple_cnn: Destroyed has no larger shortfall" in told
    told = notes("backdoor", {"method": AGAIN, "group": "backdoor"}, delta_asr=70.0)
    assert "Retrain again's gap in attack success (70.0)" in told
    told = notes("alpha", {"method": AGAIN, "label": "0.1"}, delta_forget=45.0)
    assert "alpha 0.1: Retrain again" in told
    assert "clients 100: Retrain again" in notes("clients", {"method": AGAIN, "label": "100"}, delta_forget=45.0)


# --- figures ---


def texts(fig):
    """Everything written in a figure's axes: titles, labels, ticks, notes."""
    found = [t.get_text() for ax in fig.axes for t in (ax.title, ax.xaxis.label, *ax.texts)]
    return [*found, *(t.get_text() for ax in fig.axes for t in ax.get_yticklabels())]


def walked(seed):
    """A path that forgets more the longer it is, both rules' stops on it; the held-out one may not move."""
    ends = {
        "damping": [4.0, 1.0, 0.25],
        "residual": [0.0, 0.1, 0.3],
        "travelled": [0.01, 0.1, 1.0],
        "forget_loss": [0.2, 0.4, 1.5],
        "held_loss": [0.3, 0.4, 1.2],
        "more_held_loss": [0.3, 0.4, 1.2],
        "test": [80.0, 79.0, 60.0],
        "forget": [90.0, 80.0, 30.0],
        "kl_forget": [0.1, 0.04, 0.5],
    }
    held = {"held_loss": 0.3, "more_held_loss": 0.35}
    still = {**held, "forget_loss": 0.1, "kl_forget": 0.12, "travelled": 0.0, "test": 80.0, "forget": 92.0}
    point = {**held, "forget_loss": 0.4, "kl_forget": 0.04, "travelled": 0.1, "test": 79.0, "forget": 80.0}
    retrain = {**held, "forget_loss": 0.5, "kl_forget": 0.0, "travelled": 1.0, "test": 79.0, "forget": 75.0}
    stops = {"Original": still, "Retrain": retrain, "HF-KCU": point, "HF-KCU held-out": still if seed else point}
    return record("p", {"seed": seed}, {"path": ends, "stops": stops})


def drawn():
    """Every figure by its name, from planted records."""
    curve = {"residuals": [1.0, 0.5, 0.1], "negative": 3}
    curves = {f"{matrix}/{client}": curve for matrix in ("hessian", "ggn") for client in (1, 2)}
    with style():
        return {
            "forgetting": figures.forgetting_figure(E, RUNS),
            "pareto": figures.pareto_figure(E, RUNS, SPEEDS),
            "price": figures.price_figure(E, RUNS, PASSES),
            "backdoor": figures.backdoor_figure(E, RUNS),
            "sweeps": figures.sweeps_figure(E, RUNS),
            "path": path_figures.path_figure([walked(0), walked(1)], {0: 0.03}),
            "residuals": figures.residual_figure([record("r", {"damping": 0.25}, {"curves": curves})]),
        }


def test_no_figure_has_a_legend_on_data_a_dot_outside_or_a_name_on_a_name():
    found = drawn()
    assert all(isinstance(figure, Figure) for figure in found.values())
    with style():
        assert {name: wrong for name, fig in found.items() if (wrong := faults(fig))} == {}
    assert all("damped by 0.25" in ax.get_title() for ax in found["residuals"].axes)
    labels = [t.get_text() for t in found["residuals"].axes[0].get_legend().get_texts()]
    assert labels == [f"client {i}, negative curvature in 3 steps" for i in (1, 2)]


def test_several_seeds_of_a_clients_system_have_one_name():
    def of(negative):
        one = {"residuals": [1.0, 0.5, 0.1], "negative": negative}
        return record("r", {"damping": 0.25}, {"curves": {f"{m}/{i}": one for m in ("hessian", "ggn") for i in (1, 2)}})

    with style():
        fig = figures.residual_figure([of(9), of(10), of(9)])
    for ax in fig.axes:
        assert len(ax.lines) == 2 * 3 + 1
        labels = [text.get_text() for text in ax.get_legend().get_texts()]
        assert labels == [f"client {i}, negative curvature in 9 to 10 steps" for i in (1, 2)]
    assert faults(fig) == []
    plt.close(fig)


def test_the_path_has_a_column_per_seed_with_the_stops_that_moved_and_the_floor_that_was_run():
    with style():
        fig = path_figures.path_figure([walked(0), walked(1)], {0: 0.03})
    above, below = fig.axes[:2], fig.axes[2:]
    assert [ax.get_title() for ax in above] == ["seed 0", "seed 1"]
    assert [len(ax.collections) for ax in (*above, *below)] == [3, 2, 3, 2]  # seed 1's held-out rule left its model
    assert [len(ax.lines) for ax in below] == [4, 3]  # solved, unsolved, do nothing and, of seed 0, two retrainings
    plt.close(fig)


def test_where_losses_cross_is_read_off_between_two_ends_of_the_path():
    fixed = path_figures.crossing(walked(0), "held_loss", moves=False)  # from 0.2 to 0.4 the loss passes 0.3 half way
    halfway = {"travelled": 0.055, "test": 79.5, "forget": 85.0, "kl_forget": 0.07, "forget_loss": 0.3}
    assert {name: fixed[name] for name in halfway} == pytest.approx(halfway)
    moving = path_figures.crossing(walked(0), "held_loss", moves=True)  # where both losses are 0.4
    assert (moving["travelled"], moving["forget_loss"], moving["held_loss"]) == pytest.approx((0.1, 0.4, 0.4))


def test_a_level_that_is_met_at_once_or_never():
    path = walked(0)
    path.metrics["stops"]["Original"]["held_loss"] = 0.05  # the forgotten are no better known as it is
    assert path_figures.crossing(path, "held_loss", moves=False)["travelled"] == 0
    path.metrics["stops"]["Original"]["held_loss"] = 9.0  # no step of the path goes so far
    assert path_figures.crossing(path, "held_loss", moves=False) is None


def test_the_table_of_the_path_says_where_each_rule_stops_and_what_would_have_been_nearest():
    never = walked(1)
    never.metrics["stops"]["Original"]["more_held_loss"] = 9.0
    paths = {(MAIN, 0): walked(0), (MAIN, 1): never, ("cifar10/iid/mlp", 0): walked(0)}
    tables = path_figures.path_table(paths).groupby("data", sort=False)
    assert list(tables.groups) == [title(setting) for setting in (MAIN, "cifar10/iid/mlp")]
    table = tables.get_group(title(MAIN)).set_index("stop")
    kl = table["KL on the forgotten"]
    assert kl["do nothing"] == "0.120 ± 0.000"
    assert kl[path_figures.BEST] == "0.040 ± 0.000"
    assert kl["held-out rule"] == "0.080 ± 0.057"  # 0.04 and 0.12
    assert table["KL by seed"]["held-out rule"] == "0.040, 0.120"
    last = f"{path_figures.HELD}, from all others"
    assert (table["stops"][last], table["how"][last]) == ("1 of 2", "read off")
    assert list(table["how"])[:4] == ["–", "–", "run", "run"]


def test_a_collapsed_method_leaves_the_frame_and_is_named():
    with style():
        left, right = figures.forgetting_figure(E, RUNS).axes
    assert "NaiveGA at test 10 %" in left.get_xlabel()
    assert "NaiveGA" in right.get_xlabel()
    assert min(point[1] for dots in left.collections for point in dots.get_offsets()) > 50
    kept = RUNS.assign(test=RUNS.test.mask((RUNS.method == "NaiveGA") & (RUNS.seed == 1), 71.0))
    with style():
        left, _ = figures.forgetting_figure(E, kept).axes
    assert "NaiveGA at test 10 %, 1 of 2" in left.get_xlabel()


def test_methods_in_one_place_stand_side_by_side_and_doing_nothing_is_a_ring_around_it():
    """Planted: five of them are where doing nothing is."""
    with style():
        fig = figures.forgetting_figure(E, RUNS)
        fig.draw_without_rendering()
    left, _ = fig.axes
    drawn = [(dots, dots.get_offset_transform().transform(dots.get_offsets())) for dots in left.collections]
    places = [tuple(place.round(3)) for dots, found in drawn if len(dots.get_facecolor()) for place in found]
    assert len(places) == len(set(places))
    (ring,) = (found for dots, found in drawn if not len(dots.get_facecolor()))
    assert ring.ravel().tolist() == pytest.approx(left.transData.transform([(90.0, 72.0), (93.0, 73.0)]).ravel())
    beside = [place for place in places if abs(place[0] - ring[0][0]) < 60 and abs(place[1] - ring[0][1]) < 1]
    assert sum(place[0] - ring[0][0] for place in beside) == pytest.approx(0, abs=0.1)
    assert len(beside) == 4  # the printed form and the three beside both forms


def test_what_has_collapsed_leaves_the_frame_of_fig_1_so_that_the_others_can_be_told_apart():
    with style():
        left, right = figures.pareto_figure(E, RUNS, SPEEDS).axes
    assert "NaiveGA at test 10 %" in left.get_xlabel()
    assert left.get_ylim()[0] > 50
    assert "NaiveGA" in [text.get_text() for text in right.get_yticklabels()]


def test_the_cost_figure_tells_seconds_and_speed_up_of_every_method():
    with style():
        fig = figures.pareto_figure(E, RUNS, SPEEDS)
    assert "2 s, 30×" in texts(fig)
    assert {results.shown(method) for method in ("Retrain", *METHODS) if method != ASCENT} <= set(texts(fig))


def test_fig_1_has_doing_nothing_and_the_frontier():
    """Doing nothing (72.5 %) is more accurate than Retrain and HF-KCU, and nobody is faster: it is the frontier."""
    with style():
        left, right = figures.pareto_figure(E, RUNS, SPEEDS).axes
    names = [text.get_text() for text in right.get_yticklabels()]
    assert names[-1] == results.shown("Original")
    assert left.get_xticklabels()[0].get_text() == "no time"
    places = [dots.get_offsets()[0].tolist() for dots in left.collections]
    assert places[-1] == [240.0, 72.5]  # four times farther than NaiveGA, the fastest
    (frontier,) = (line for line in left.lines if line.get_linestyle() == "--" and line.get_color() == "#999999")
    assert frontier.get_xydata().tolist() == [[240.0, 72.5]]
    better = RUNS.assign(test=RUNS.test.mask(RUNS.method == "HF-KCU", 80.0))
    with style():
        left, _ = figures.pareto_figure(E, better, SPEEDS).axes
    (frontier,) = (line for line in left.lines if line.get_linestyle() == "--" and line.get_color() == "#999999")
    assert frontier.get_xydata().tolist() == [[30.0, 80.0], [240.0, 72.5]]


def test_fig_1_has_the_printed_form_without_causal_weights_hollow():
    with style():
        left, right = figures.pareto_figure(E, RUNS, SPEEDS).axes
    names = [text.get_text() for text in right.get_yticklabels()]
    assert names[names.index(results.shown("HF-KCU printed")) + 1] == results.shown(UNWEIGHTED)
    for ax in (left, right):
        (hollow,) = (dots for dots in ax.collections if not len(dots.get_facecolor()))
        assert to_hex(hollow.get_edgecolor()[0]) == colour("HF-KCU printed")
    at = RUNS[RUNS.label == UNWEIGHTED].test.mean()
    (hollow,) = (dots for dots in left.collections if not len(dots.get_facecolor()))
    assert hollow.get_offsets()[0].tolist() == [SECONDS["retrain"] / 2.0, at]
    plt.close("all")


def test_backdoor_has_a_dot_per_seed_in_its_methods_colour_and_their_mean():
    with style():
        left, _ = figures.backdoor_figure(E, RUNS).axes
    assert [line.get_ydata()[0] for line in left.lines] == [80.0, 72.0, 60.0, 13.5]
    assert [dots.get_offsets()[:, 1].tolist() for dots in left.collections][-1] == [12.0, 15.0]
    inks = [to_hex(dots.get_facecolor()[0]) for dots in left.collections]
    assert inks == [colour(method) for method in ("Original", "HF-KCU printed", "HF-KCU", "Retrain")]
    across = [dots.get_offsets()[:, 0].tolist() for dots in left.collections]
    assert [(min(x) < place < max(x), len(set(x))) for place, x in enumerate(across)] == [(True, 2)] * 4


def test_a_sweep_joins_its_means_and_has_a_dot_per_seed_beside_the_other_forms():
    with style():
        iters, *_ = figures.sweeps_figure(E, RUNS).axes
    lines = {line.get_label(): line for line in iters.lines}
    printed, corrected = (lines[results.shown(form)] for form in FORMS)
    assert corrected.get_ydata().tolist() == [81.5] * len(E.iters_sweep)
    assert (printed.get_xdata() < corrected.get_xdata()).all()
    assert len(iters.collections[0].get_offsets()) == 2 * len(E.iters_sweep)


def test_a_sweep_says_above_it_what_it_holds_fixed():
    """The forms differ: the corrected one is damped as it chooses, and not clipped, but where that is swept."""
    e = E.changed(iters=7, damping=0.02, beta=0.05)
    with style():
        axes = figures.sweeps_figure(e, RUNS).axes
    assert [ax.get_title().splitlines() for ax in axes] == [
        ["printed: λ = 0.02, β = 0.05", "corrected: λ chosen, no clip"],
        ["printed: k = 7, β = 0.05", "corrected: at most k = 7, no clip"],
        ["printed: k = 7, λ = 0.02", "corrected: at most k = 7, λ chosen"],
    ]


def test_what_a_sweep_holds_fixed_is_what_its_runs_have():
    for (group, _), form in ((item, form) for item in sweeps.SWEPT.items() for form in FORMS):
        options = [c.config["options"] for cell, c in RECORDS.items() if (cell.group, cell.method) == (group, form)]
        others = [{name: value for name, value in one.items() if name != group} for one in options]
        assert len({str(one) for one in others}) == 1
        assert ("chosen" in sweeps.held_fixed(E, group, form)) == (group != "damping" and options[0]["damping"] is None)
        assert ("no clip" in sweeps.held_fixed(E, group, form)) == (form == "HF-KCU" and group != "beta")


# --- beside the paper's ---


def trial(method, k, **metrics):
    cell = Cell("tuning", MAIN, 100, "client-1", method, str(k))
    return cell, record(f"t{k}", E.tuning()[cell], {"nothing": 12.0, **metrics})


def test_the_tuning_table_tells_the_best_of_each_method_and_what_diverged():
    tuning = dict([trial("NaiveGA", 0, diverged="nan"), trial("NaiveGA", 1, objective=3.25)])
    (found,) = further_tables.tuning_table(E, tuning).to_dict("records")
    assert (found["trials"], found["diverged"], found["objective"]) == (2, 1, "3.2")
    assert found["its objective"] == "diverged"
    assert found["doing nothing's"] == "12.0"
    lr = E.tried("NaiveGA")[1]["lr"]
    assert f"lr {lr:g}" in found["chosen"]


def test_tuned_methods_stand_below_the_controls():
    table = further_tables.tuned_table(E, RUNS)
    tuned = (*TUNED, LAST_LAYER, TRUST_REGION, STORED)  # of which the last has nothing to choose
    names = [results.shown(m) for m in (*cells.WITH_FLOORS, *tuned)]
    natural = names.index(results.shown(ROUND))
    assert list(table.method) == [*names[:natural], "Natural, rounds tuned", *names[natural + 1 :]]
    assert row(table, method=results.shown("HF-KCU"))["passes"] == "1.1e+03"


def test_a_price_is_compared_with_the_best_of_naturals_rounds_that_cost_no_more():
    """Natural's rounds cost 400 and 9000 passes and leave a KL of 0.25 and 0.1; HF-KCU's 1100, and 0.375."""
    runs = RUNS.copy()
    for label, (passes, kl) in {"1": (400.0, 0.25), "300": (9000.0, 0.1)}.items():
        here = (runs.group == "price") & (runs.label == label)
        assert here.sum() == 2
        runs.loc[here, ["passes", "kl_forget"]] = passes, kl
    table = further_tables.price_table(E, runs, PASSES)
    ours = row(table, method=results.shown("HF-KCU"))
    assert (ours["Natural, rounds"], ours["its KL"]) == ("1", "0.250 ± 0.000")
    assert ours[further_tables.COMPARED].startswith("0.125 ")
    kl = table.set_index("method")["KL on the forgotten"]
    assert kl[results.shown("Original")] == "0.375 ± 0.000"
    assert kl[FLOOR] == "0.250 ± 0.000"  # from other weights
    assert kl[results.shown(SAME_START)] == "0.125 ± 0.000"
    peers = {results.shown(LAST_LAYER), f"{results.shown(LAST_LAYER)}, tuned", results.shown(STORED)}
    assert peers < set(table.method)
    assert f"{results.shown(STORED)}, tuned" not in set(table.method)
    uphill = row(table, method=results.shown(ASCENT))  # five passes: not even one round
    assert (uphill["Natural, rounds"], uphill[further_tables.COMPARED][:6]) == ("1 (dearer)", "0.125 ")
    runs.loc[runs.method == "HF-KCU", "passes"] = 8500.0  # what 300 rounds cost, within a tenth
    dear = row(further_tables.price_table(E, runs, PASSES), method=results.shown("HF-KCU"))
    assert (dear["Natural, rounds"], dear[further_tables.COMPARED][:6]) == ("300", "0.275 ")


def test_table_9_warns_where_two_retrainings_are_farther_in_kl_than_doing_nothing():
    again = RUNS.method == AGAIN
    for kl, warns in ((0.05, False), (5.0, True)):
        caption = tables.warned_of("Table 9", E, RUNS.assign(kl=RUNS.kl.mask(again, kl)), "equivalence")
        assert (f"{AGAIN}'s KL ({kl:.3f}) is not smaller than Original's" in caption) == warns


def test_tables_of_the_main_setting_say_which_row_is_the_floor_of_kl():
    again = RUNS.method == AGAIN
    for kl, says in ((0.001, False), (5.0, True)):
        caption = tables.warned_of("Table 1", E, RUNS.assign(kl_forget=RUNS.kl_forget.mask(again, kl)), "main")
        assert (f"its KL on the forgotten ({kl:.3f}) is no less than doing nothing's" in caption) == says


def test_both_floors_are_rows_where_they_have_been_run():
    """And none where nobody has retrained from the same weights."""
    same = results.shown(SAME_START)
    nine = tables.table_9(E, RUNS).set_index("metric")
    assert nine[same]["KL on the forgotten"] == "0.125 ± 0.000"
    assert nine[FLOOR]["KL on the forgotten"] == "0.250 ± 0.000"
    assert list(tables.table_2(E, RUNS, SPEEDS).method).count(same) == 3
    without = RUNS[RUNS.method != SAME_START]
    for table in (tables.table_1(E, without, SPEEDS), further_tables.price_table(E, without, PASSES)):
        assert same not in set(table.method)
    assert same not in tables.table_9(E, without)


def test_what_has_diverged_enters_no_mean_and_no_figure():
    here = (RUNS.group == "methods") & (RUNS.setting == MAIN) & (RUNS.method == "NaiveGA") & (RUNS.seed == 0)
    runs = RUNS.assign(kl=RUNS.kl.mask(here, 1e9))
    table = tables.table_1(E, runs, SPEEDS)
    gone, kept = (row(table, method=results.shown(m)) for m in ("NaiveGA", "HF-KCU"))
    assert gone["KL on the forgotten"] == "diverged (1 of 2)"
    assert gone["distance (do nothing = 1)"] == "–"
    assert kept["KL on the forgotten"] == "0.375"
    with style():
        fig = figures.price_figure(E, runs, PASSES)
    (ax,) = fig.axes
    assert "NaiveGA" in ax.get_xlabel()
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert results.shown("HF-KCU") in labels
    assert "NaiveGA" not in labels


def test_the_price_figure_has_a_dot_per_seed_at_its_price():
    with style():
        (ax,) = figures.price_figure(E, RUNS, PASSES).axes
    dots = {found.get_label(): found.get_offsets().tolist() for found in ax.collections}
    assert dots[results.shown("HF-KCU")] == [[1.1, 0.375]] * 2
    (band,) = (patch for patch in ax.patches if "other weights" in str(patch.get_label()))
    assert band.get_zorder() < min(found.get_zorder() for found in ax.collections)  # or it would change their colours
    (line, *_) = ax.lines
    assert list(line.get_xdata()) == [0.005, 0.005]  # one and 300 rounds, planted alike


def test_the_price_figure_has_the_floor_from_the_same_weights_where_it_was_run():
    name = "two retrainings, same weights"
    other = RUNS[RUNS.method == "Retrain"].assign(method=SAME_START, kl_forget=0.25)
    with style():
        (without,) = figures.price_figure(E, RUNS[RUNS.method != SAME_START], PASSES).axes
        (ax,) = figures.price_figure(E, pd.concat([RUNS[RUNS.method != SAME_START], other]), PASSES).axes
    assert name not in [line.get_label() for line in without.lines]
    (floor,) = (line for line in ax.lines if line.get_label() == name)
    assert list(floor.get_ydata()) == [0.25, 0.25]


def test_requests_in_turn_stand_beside_the_same_at_once():
    table = further_tables.sequence_table(E, RUNS)
    of = table[table.method == results.shown("HF-KCU")]
    assert list(of.requests) == ["at once", "in turn"]
    assert set(table["clients that leave"]) == {2}
    assert list(table.method[: len(CONTROLS)]) == [results.shown(m) for m in CONTROLS]
