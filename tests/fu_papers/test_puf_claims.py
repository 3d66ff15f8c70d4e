"""PUF's verdicts on constructed runs: every rule from both sides, on numbers whose truth is known.

Two targets, one seed; what a test plants for a (scenario, setting, request, method) overrides the defaults, with
which every claim holds.
"""

from itertools import product

import pandas as pd
import pytest

from fu_papers.lab.record import Record
from fu_papers.puf import claims as puf_claims
from fu_papers.puf.grid import METHODS, PUFS, REFERENCES
from fu_papers.study import Cell
from fu_papers.verdicts import claims, claims_table, write_claims
from tests.puf_lab import experiment

SKEWED, EVEN, SITES = "cifar10/dirichlet-0.3/tiny_cnn", "cifar10/iid/tiny_cnn", "phantom/site/small_res_unet"
MORE = "mnist/dirichlet-0.3/tiny_cnn"
PLAIN = experiment([SKEWED, EVEN], targets=[0, 1], seeds=[0], rounds=200)
E = PLAIN.changed(
    sample_settings=[SKEWED, EVEN], pair_settings=[SKEWED], pairs=[[0, 1], [2, 3]], sweep_settings=[SKEWED],
    segmentation_settings=[SITES], segmentation_targets=[0, 3],
)  # fmt: skip
P = {SKEWED: 1000, EVEN: 1200, MORE: 700, SITES: 500}  # parameters of the net
GAP = {"Original": 30.0, "Retrain": 0.0, "Natural": 20.0, "FedEraser": 0.5, "PGA": 12.0, "MoDe": 14.0, "FedAU": 8.0,
       "NoT": 10.0, "PUF-Special": 2.0, "PUF-Regular": 1.0}  # fmt: skip
CANNOT = {"samples": ("FedEraser", "PGA", "MoDe"), "pairs": ("PGA", "MoDe"), "segmentation": ("MoDe", "FedAU")}


def record(key, metrics):
    return Record("f", key, {}, "", "0", metrics, [], None, {})


def cells_of(e):
    """Of `e.runs()`."""
    return [
        Cell(s.name, *place) for s in e.scenarios() for place in product(s.settings, s.seeds, s.requests, s.methods)
    ]


def row(cell, e, **values):
    kept = 4 * P[cell.setting] * (e.clients * e.rounds if cell.method == "FedEraser" else 1)
    found = {"delta_forget": GAP[cell.method], "bytes_gain": 100.0, "rounds": 3, "storage": kept}
    return {**cell._asdict(), **found, "record": str(tuple(cell)), **values}


def planted(changes, cell):
    """What `changes` say of a cell: {(scenario, setting, request, method): values}, None in a place means any."""
    values = {}
    for place, change in (changes or {}).items():
        if all(a in (None, b) for a, b in zip(place, (*cell[:2], cell.request, cell.method), strict=True)):
            values |= change
    return values


def runs_of(e=E, changes=None):
    """As `puf.results` makes them. They count under the paper's stop rule; under ours everything is perfect."""
    rows = []
    for cell in cells_of(e):
        if cell.method not in CANNOT.get(cell.group, ()):
            perfect = {"delta_forget": 0.0, "bytes_gain": 1e9, "rounds": 0, "storage": 4 * P[cell.setting]}
            rows.append(row(cell, e, stop="test", **planted(changes, cell)))
            rows.append(row(cell, e, stop="validation", **perfect))
    return pd.DataFrame(rows)


def sweep_of(e=E, gap=lambda eta_u: 6 / eta_u, rounds=lambda eta_u: 2 * eta_u):
    """Gap and recovery rounds as functions of eta_u, in units of the smallest of its method."""
    rows = []
    for cell, config in e.sweep():
        eta_u, epochs_u = (config["options"][name] for name in ("eta_u", "epochs_u"))
        unit = eta_u / min(e.sweep_special if cell.method == "PUF-Special" else e.sweep_regular)
        values = {"delta_forget": gap(unit), "rounds": rounds(unit), "eta_u": eta_u, "epochs_u": epochs_u}
        rows.append(row(cell, e, stop="test", **values))
        rows.append(row(cell, e, stop="validation", **{**values, "delta_forget": 99.0}))
    return pd.DataFrame(rows, columns=[*Cell._fields, "stop", "delta_forget", "rounds", "eta_u", "epochs_u", "record"])


def blind(e=E, sha=None):
    """NoT's models. `sha`: {(setting, request): hash}."""
    return {
        cell: record(str(tuple(cell)), {"unlearned": {"sha256": (sha or {}).get((cell.setting, cell.request), "same")}})
        for cell in cells_of(e)
        if cell.method == "NoT"
    }


def equivalence_of(*differences, e=E):
    cells = [cell for cell in cells_of(e) if (cell.group, cell.method) == ("clients", "PUF-Regular")]
    return {
        cell: record(f"equivalence {cell}", {"relative_difference": d, "p_u": 0.1})
        for cell, d in zip(cells, differences, strict=False)
    }


def judge(e=E, changes=None, *, sweep=None, sha=None, differences=(0.01, 0.02, 0.03, 0.04), cells=((9, 9), (5, 5))):
    """All verdicts by claim. cells: (size, how many follow) of Tables III and IV."""
    results = puf_claims.verdicts(
        e,
        runs_of(e, changes),
        sweep_of(e) if sweep is None else sweep,
        blind(e, sha),
        equivalence_of(*differences, e=e),
        {setting: record(setting, {"parameters": parameters}) for setting, parameters in P.items()},
        record("costs", {name: {"cells": n, "follow": k} for name, (n, k) in zip(("III", "IV"), cells, strict=True)}),
    )
    assert len({result.id for result in results}) == len(results)
    return {result.id: result for result in results}


def verdict(id, changes=None, e=E, **planting):
    return judge(e, changes, **planting)[id].verdict


# --- every claim ---


def test_every_claim_of_the_paper_gets_exactly_one_result():
    table = claims()
    assert list(judge()) == list(table[table.paper == "puf"].id) == [f"P{i}" for i in range(1, 15)]


def test_with_these_numbers_every_claim_holds_and_names_its_records():
    assert cells_of(E) == [cell for cell, _ in E.runs()]
    results = judge()
    known = {*runs_of().record, *sweep_of().record, "costs", *(r.key for r in equivalence_of(0, 0, 0, 0).values())}
    assert {name: result.verdict for name, result in results.items()} == dict.fromkeys(results, "holds")
    for result in results.values():
        assert result.ours
        assert result.spread
        assert result.reason
        assert set(result.records) <= known
        assert len(set(result.records)) == len(result.records) > 0


def test_what_is_not_run_says_what_it_would_need():
    results = judge(PLAIN.changed(settings=[EVEN], targets=[0], history_interval=0))
    not_run = {name: result.reason for name, result in results.items() if result.verdict == "not run"}
    assert not_run == {
        "P1": "needs a setting with the split 'dirichlet'",
        "P4": "needs at least two targets",
        "P7": "needs sweep_settings and at least three values of eta_u",
        "P8": "needs sweep_settings",
        "P9": "needs a setting for the scenario 'pairs'",
        "P10": "needs a setting for the scenario 'samples'",
        "P11": "needs a setting for the scenario 'segmentation'",
        "P12": "needs an IID setting and history_interval of at least 1",
    }
    for name in not_run:
        assert (results[name].ours, list(results[name].records)) == ("", [])
    results = judge(PLAIN.changed(settings=[SKEWED], sample_settings=[EVEN]))
    assert results["P2"].reason == "needs a setting with the split 'iid'"
    assert {name for name in ("P2", "P10", "P12") if results[name].verdict == "not run"} == {"P2", "P10", "P12"}


def test_verdicts_fit_into_the_table_of_all_55_claims(tmp_path):
    results = judge()
    assert list(claims_table(results.values()).verdict) == [result.verdict for result in results.values()]
    written = pd.read_csv(write_claims(results.values(), "puf", tmp_path))
    assert len(written) == 55
    assert (written[written.paper != "puf"].verdict == "not run").all()


# --- P1, P2: PUF-Regular forgets better than PGA, MoDe, FedAU and NoT ---


@pytest.mark.parametrize(("id", "setting", "other"), [("P1", SKEWED, EVEN), ("P2", EVEN, SKEWED)])
@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ((0.0, 7.9), "holds"),  # the interval ends below FedAU's 8
        ((0.0, 8.0), "holds in part"),  # the lowest mean, but the interval touches 8
        ((7.0, 8.9), "holds in part"),  # mean 7.95
        ((7.0, 9.0), "does not hold"),  # a tie is not lower
        ((9.0, 9.0), "does not hold"),
    ],
)
def test_p1_and_p2_need_an_interval_below_the_best_mean(id, setting, other, gaps, expected):
    changes = {("clients", setting, f"client-{t}", "PUF-Regular"): {"delta_forget": g} for t, g in enumerate(gaps)}
    assert verdict(id, changes) == expected
    bad = {("clients", other, None, "PUF-Regular"): {"delta_forget": 50.0}}
    assert verdict(id, changes | bad) == expected  # each claim looks at its own split


def test_p1_takes_the_nearest_of_the_four_and_nobody_else():
    for method in ("PGA", "MoDe", "FedAU", "NoT"):
        assert verdict("P1", {("clients", SKEWED, None, method): {"delta_forget": 0.9}}) == "does not hold"
    for method in ("Natural", "FedEraser", "PUF-Special", "Original"):
        assert verdict("P1", {("clients", SKEWED, None, method): {"delta_forget": 0.0}}) == "holds"
    for scenario in ("samples", "pairs"):
        assert verdict("P1", {(scenario, None, None, "NoT"): {"delta_forget": 0.0}}) == "holds"


def test_p1_holds_in_part_where_one_of_two_settings_is_clear():
    two = PLAIN.changed(settings=[SKEWED, MORE])
    near = {("clients", MORE, "client-0", "PUF-Regular"): {"delta_forget": 12.0}}  # mean 6.5, interval up to 12
    far = {("clients", MORE, None, "PUF-Regular"): {"delta_forget": 12.0}}
    assert [verdict("P1", changes, two) for changes in (None, near, far)] == ["holds", "holds in part", "holds in part"]
    both = {("clients", None, None, "PUF-Regular"): {"delta_forget": 12.0}}
    assert verdict("P1", both, two) == "does not hold"


def test_p1_has_no_interval_from_a_single_run():
    assert verdict("P1", e=PLAIN.changed(targets=[0])) == "holds in part"


# --- P3: at least 25 times less communication than retraining ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "holds"),  # 100x
        ({(None, None, None, "PUF-Special"): {"bytes_gain": 25.0}}, "holds"),
        ({(None, None, None, "PUF-Special"): {"bytes_gain": 24.9}}, "holds in part"),
        ({(None, SKEWED, None, "PUF-Regular"): {"bytes_gain": 2.0}}, "holds in part"),
        ({(None, None, None, None): {"bytes_gain": 24.9}}, "does not hold"),
        ({(None, None, None, "NoT"): {"bytes_gain": 1.0}}, "holds"),  # not PUF
        ({("pairs", None, None, None): {"bytes_gain": 1.0}}, "holds"),  # Table III
    ],
)
def test_p3_needs_a_25th_of_retrainings_bytes_in_every_row(changes, expected):
    result = judge(changes=changes)["P3"]
    assert result.verdict == expected
    assert "bytes ratio >= 25" in result.reason


def test_p3_takes_the_gain_of_the_mean_cost_not_the_mean_of_the_gains():
    """Costs of 1 % and 7 % are 4 % on average: 25x. The mean of 100x and 14.3x would be 57x."""
    costly = {("clients", None, "client-1", "PUF-Special"): {"bytes_gain": 1 / 0.07}}
    result = judge(changes=costly)["P3"]
    assert "PUF-Special, CIFAR-10, IID: 25.0x, 3.0 recovery rounds" in result.ours
    too_costly = {("clients", None, "client-1", "PUF-Special"): {"bytes_gain": 1 / 0.0701}}
    assert verdict("P3", too_costly) == "holds in part"


@pytest.mark.parametrize(("rounds", "expected"), [(75, "holds"), (74, "does not hold")])
def test_p3_counts_recovery_rounds_where_training_was_shorter_than_the_papers(rounds, expected):
    """3 recovery rounds are 75/25. The bytes, 100x, do not matter then."""
    result = judge(E.changed(rounds=rounds))["P3"]
    assert result.verdict == expected
    assert f"recovery rounds <= {rounds}/25" in result.reason


# --- P4: NoT's output does not depend on the target ---


def test_p4_holds_for_identical_models_only():
    own = {(SKEWED, "client-0"): "a", (SKEWED, "client-1"): "a", (EVEN, "client-0"): "b", (EVEN, "client-1"): "b"}
    assert verdict("P4", sha=own) == "holds"
    other = judge(sha={(EVEN, "client-1"): "other"})["P4"]
    assert (other.verdict, other.ours) == ("does not hold", "1 of 2 models identical for all targets")
    assert verdict("P4", sha={(SITES, "client-3"): "other"}) == "holds"  # one training, but another scenario


def test_p4_cannot_be_judged_from_one_target():
    result = judge(E.changed(targets=[1]), differences=(0.0, 0.0))["P4"]
    assert (result.verdict, result.reason) == ("not run", "needs at least two targets")


# --- P5: no storage beyond one model ---


@pytest.mark.parametrize("bytes_kept", [4 * 1000 + 1, 8 * 1000, 4 * 999])
@pytest.mark.parametrize("method", PUFS)
def test_p5_holds_for_exactly_4_P_bytes_only_in_every_scenario(method, bytes_kept):
    for scenario in ("clients", "samples", "pairs"):
        assert verdict("P5", {(scenario, SKEWED, None, method): {"storage": bytes_kept}}) == "does not hold"
    assert verdict("P5", {("segmentation", SITES, None, method): {"storage": 4 * 500 + 1}}) == "does not hold"


def test_p5_says_nothing_of_the_others():
    assert verdict("P5", {(None, None, None, "NoT"): {"storage": 8000}}) == "holds"


# --- P6: Natural remembers more than PUF ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({("clients", EVEN, None, "PUF-Special"): {"delta_forget": 21.0}}, "holds in part"),  # 21 > 20 in one setting
        ({("clients", None, None, "PUF-Regular"): {"delta_forget": 21.0}}, "does not hold"),
        ({("clients", None, None, "PUF-Regular"): {"delta_forget": 20.0}}, "does not hold"),  # a tie is not more
        ({("clients", None, "client-0", "PUF-Special"): {"delta_forget": 37.0}}, "holds"),  # mean 19.5
        ({("clients", None, None, "NoT"): {"delta_forget": 99.0}}, "holds"),
        ({("samples", None, None, "PUF-Special"): {"delta_forget": 99.0}}, "holds"),
    ],
)
def test_p6_compares_mean_forget_gaps_when_test_accuracy_is_back(changes, expected):
    assert verdict("P6", changes) == expected


# --- P7: a larger eta_u forgets more and needs more recovery ---


def test_p7_needs_both_correlations_with_the_claimed_signs():
    def grows(eta_u):
        return 2 * eta_u

    def falls(eta_u):
        return 6 / eta_u

    assert verdict("P7", sweep=sweep_of(gap=falls, rounds=grows)) == "holds"
    assert verdict("P7", sweep=sweep_of(gap=grows, rounds=grows)) == "holds in part"
    assert verdict("P7", sweep=sweep_of(gap=falls, rounds=falls)) == "holds in part"
    assert verdict("P7", sweep=sweep_of(gap=grows, rounds=falls)) == "does not hold"


def test_p7_needs_significance():
    """Three rates of two targets each: in order they correlate by 1, with the last two exchanged by 0.5, p = 0.31."""
    assert judge()["P7"].reason == "sign as claimed and p < 0.05 in 4 of 4 correlations"
    humps = sweep_of(gap=lambda eta_u: {1: 5, 2: 2, 4: 3}[eta_u], rounds=lambda eta_u: {1: 2, 2: 9, 4: 8}[eta_u])
    assert verdict("P7", sweep=humps) == "does not hold"  # the signs are as claimed


def test_p7_needs_three_rates_and_does_not_look_at_segmentation():
    two = E.changed(sweep_special=[1.0, 2.0])
    assert verdict("P7", e=two) == "not run"
    hospitals = E.changed(sweep_settings=[], segmentation_special=[1.0, 2.0, 4.0])
    assert verdict("P7", e=hospitals) == "not run"


def test_runs_that_diverged_are_left_out_of_p7_and_count_against_p8():
    sweep = sweep_of(gap=lambda eta_u: {1: 7.0, 2: 7.0, 4: 9.0}[eta_u])
    assert verdict("P8", sweep=sweep) == "holds"  # 4 of 6 below FedAU's 8
    lost = sweep.eta_u.eq(2.0) & sweep.request.eq("client-0")
    sweep.loc[lost, ["delta_forget", "rounds"]] = None  # one target of two
    found = judge(sweep=sweep)
    assert found["P7"].reason.endswith("; 1 runs diverged and are left out")
    assert "3 of 6 below 8.0" in found["P8"].ours


# --- P8: at least half of the grid is better than the best baseline ---


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ({1: 1.0, 2: 1.0, 4: 99.0}, "holds"),  # 4 of 6 below FedAU's 8
        ({1: 7.9, 2: 7.9, 4: 8.0}, "holds"),
        ({1: 7.9, 2: 8.0, 4: 8.0}, "does not hold"),  # 2 of 6
        ({1: 99.0, 2: 98.0, 4: 97.0}, "does not hold"),
    ],
)
def test_p8_counts_the_grid_below_the_best_baseline(gaps, expected):
    assert verdict("P8", sweep=sweep_of(gap=gaps.get)) == expected


def test_p8_half_of_the_grid_is_enough_and_each_setting_counts():
    e = E.changed(settings=[SKEWED, MORE], sweep_settings=[SKEWED, MORE], sweep_special=[1.0, 2.0],
                sweep_regular=[10.0, 20.0])  # fmt: skip
    half = sweep_of(e, gap={1: 7.0, 2: 9.0}.get)
    assert verdict("P8", e=e, sweep=half) == "holds"
    assert verdict("P8", {("clients", MORE, None, "NoT"): {"delta_forget": 6.9}}, e, sweep=half) == "holds in part"
    worse = {("clients", None, None, "Natural"): {"delta_forget": 6.9}}
    assert verdict("P8", worse, e, sweep=half) == "does not hold"
    perfect = {("clients", None, None, "FedEraser"): {"delta_forget": 0.0}}  # not in Fig. 5
    assert verdict("P8", perfect, e, sweep=half) == "holds"


# --- P9 to P11: the smallest gap for pairs, samples and hospitals ---


@pytest.mark.parametrize(
    ("id", "scenario", "setting", "winners"),
    [
        ("P9", "pairs", SKEWED, {"PUF-Regular"}),
        ("P10", "samples", SKEWED, set(PUFS)),
        ("P11", "segmentation", SITES, set(PUFS)),
    ],
)
def test_the_lowest_mean_gap_of_a_scenario_decides(id, scenario, setting, winners):
    for method in METHODS:
        expected = "holds" if method in winners or method in ("FedEraser", *CANNOT[scenario]) else "does not hold"
        assert verdict(id, {(scenario, setting, None, method): {"delta_forget": 0.1}}) == expected
    for method in REFERENCES:
        assert verdict(id, {(scenario, setting, None, method): {"delta_forget": 0.0}}) == "holds"
    assert verdict(id, {("clients", None, None, "NoT"): {"delta_forget": 0.0}}) == "holds"
    request = {"pairs": "client-2-3", "samples": "sample-1-0.5", "segmentation": "client-3"}[scenario]
    once = {(scenario, setting, request, "Natural"): {"delta_forget": 0.0}}
    assert verdict(id, once) == "holds"  # in one run of two


def test_p10_looks_at_skewed_data_alone():
    assert verdict("P10", {("samples", EVEN, None, "NoT"): {"delta_forget": 0.0}}) == "holds"
    assert "IID" not in judge()["P10"].ours


def test_p9_holds_in_part_where_one_of_two_settings_does():
    two = E.changed(settings=[SKEWED, MORE], pair_settings=[SKEWED, MORE])
    result = judge(two, {("pairs", MORE, None, "NoT"): {"delta_forget": 0.0}})["P9"]
    assert (result.verdict, result.reason) == ("holds in part", "lowest mean in 1 of 2 settings")


# --- P12: FedEraser forgets best under IID and stores every update ---


def test_p12_needs_the_lowest_gap_and_the_formulas_storage():
    eraser = ("clients", EVEN, None, "FedEraser")
    models = 4 * P[EVEN] * E.clients * E.rounds
    better, worse = {"delta_forget": 0.9}, {"delta_forget": 1.1}  # PUF-Regular: 1
    right, wrong = {"storage": models}, {"storage": models - 4}
    assert verdict("P12", {eraser: better | right}) == "holds"
    assert verdict("P12", {eraser: worse | right}) == "holds in part"
    assert verdict("P12", {eraser: better | wrong}) == "holds in part"
    assert verdict("P12", {eraser: worse | wrong}) == "does not hold"
    skewed = ("clients", SKEWED, None, "FedEraser")
    assert verdict("P12", {skewed: worse | wrong}) == "holds"


def test_p12_counts_retained_rounds():
    """Of 200 rounds, an interval of 3 retains 1, 4, ..., 199: 67."""
    sparse = E.changed(history_interval=3)
    for retained, expected in ((67, "holds"), (66, "holds in part")):
        stored = {"storage": 4 * P[EVEN] * E.clients * retained}
        assert verdict("P12", {("clients", EVEN, None, "FedEraser"): stored}, sparse) == expected


# --- P13: the printed costs follow from the printed formulas ---


@pytest.mark.parametrize(
    ("cells", "expected", "ours"),
    [
        (((9, 9), (5, 5)), "holds", "14 of 14 cells follow"),
        (((9, 9), (5, 4)), "holds in part", "13 of 14 cells follow"),
        (((9, 0), (5, 0)), "does not hold", "0 of 14 cells follow"),
    ],
)
def test_p13_needs_every_cell(cells, expected, ours):
    result = judge(cells=cells)["P13"]
    assert (result.verdict, result.ours) == (expected, ours)
    assert f"III: {9 - cells[0][1]}, IV: {5 - cells[1][1]}" in result.reason


# --- P14: Regular acts like Special ---


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ((0.0, 0.01, 0.02, 0.049), "holds"),
        ((0.0, 0.01, 0.02, 0.05), "holds in part"),
        ((0.5, 0.5, 0.5, 0.5), "holds in part"),  # on quadratics it always holds
    ],
)
def test_p14_holds_if_every_trained_net_is_within_5_percent_of_the_step(differences, expected):
    result = judge(differences=differences)["P14"]
    assert result.verdict == expected
    assert f"{sum(d < 0.05 for d in differences)} of 4 nets" in result.reason
