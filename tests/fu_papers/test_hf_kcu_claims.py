"""The rules of HF-KCU's claims on planted numbers: each verdict on both sides of its rule."""

import pandas as pd
import pytest

from fu_papers.hf_kcu import claims as claims
from fu_papers.hf_kcu.grid import Experiment
from fu_papers.lab.record import Record

MAIN, OTHER = "cifar10/dirichlet-0.5/simple_cnn", "mnist/dirichlet-0.5/simple_cnn"
E = Experiment("test", [MAIN, OTHER], [], seeds=[0, 1], sweep_seeds=[0], client_counts=[10, 100, 200])
PRINTED, CORRECTED, NOTHING = "HF-KCU printed", "HF-KCU", "Original"
BASE = {
    "group": "methods", "setting": MAIN, "test": 70.0, "test_original": 71.0, "delta_test": 0.0, "mia": 0.5,
    "gap": 0.1, "kl": 0.01, "asr": 50.0, "asr_original": 80.0, "asr_retrain": 10.0,
}  # fmt: skip


def record(metrics, name="r", config=None):
    return Record("f", name, config or {}, "", "0", metrics, [], None, {})


def frame(rows):
    """One run per row; what a row does not say is as in BASE, its label its method."""
    full = [{**BASE, "seed": 0, "record": f"k{i}", "label": row.get("method"), **row} for i, row in enumerate(rows)]
    return pd.DataFrame(full)


def by_method(name, values, **rest):
    return frame([{"method": method, name: value, **rest} for method, value in values.items()])


def timed(seconds, passes):
    kinds = (("seconds", seconds), ("passes", passes))
    metrics = {kind: {"retrain": 100.0} | {n: 100.0 / g for n, g in gains.items()} for kind, gains in kinds}
    return record(metrics | {"timed_rounds": 2}, "t")


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [(48, 200, "holds"), (47, 200, "holds in part"), (47.75, 47.75, "holds"), (20, 30, "does not hold")],
)
def test_h1_asks_for_47_75_times_in_both_readings(printed, corrected, verdict):
    result = claims._faster(timed({PRINTED: printed, CORRECTED: corrected}, {PRINTED: 1, CORRECTED: 1}))
    assert result.verdict == verdict
    assert result.records == ["t"]


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdict"),
    [
        (2.0, 0.5, 0.6, "holds"),
        (2.0, 0.7, 0.5, "holds in part"),
        (0.3, 0.2, 0.1, "holds in part"),  # doing nothing is as near
        (2.0, 0.7, 0.9, "does not hold"),
    ],
)
def test_h2_asks_for_0_60_points_that_doing_nothing_does_not_have(nothing, printed, corrected, verdict):
    runs = by_method("delta_test", {NOTHING: nothing, PRINTED: printed, CORRECTED: corrected})
    assert claims._accurate(E, runs).verdict == verdict


@pytest.mark.parametrize(
    ("original", "printed", "corrected", "verdict"),
    [
        (0.85, 0.51, 0.49, "holds"),
        (0.85, 0.80, 0.51, "holds in part"),
        (0.59, 0.50, 0.50, "does not hold"),  # the original leaks less than 0.10 more than Retrain
        (0.85, 0.60, 0.53, "does not hold"),
    ],
)
def test_h3_asks_for_retrains_exposure_where_there_was_one(original, printed, corrected, verdict):
    runs = by_method("mia", {NOTHING: original, "Retrain": 0.5, PRINTED: printed, CORRECTED: corrected})
    assert claims._private(E, runs).verdict == verdict


@pytest.mark.parametrize(("without", "verdict"), [(0.25, "holds"), (0.15, "does not hold")])
def test_h4_asks_for_twice_the_gap(without, verdict):
    labels = {"w/o influence decay (= Algorithm 1)": 0.1, "w/o causal weighting": without}
    runs = frame([{"group": "ablation", "label": label, "gap": gap} for label, gap in labels.items()])
    assert claims._causal_weighting(runs).verdict == verdict


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [(69.0, 60.0, "holds"), (70.0, 60.0, "holds in part"), (70.0, 70.5, "does not hold")],
)
def test_h5_asks_for_a_drop_of_one_point(printed, corrected, verdict):
    runs = frame(
        [
            {"group": "ablation", "label": "w/o influence decay (= Algorithm 1)"},
            {"group": "ablation", "label": "w/o adaptive scaling", "test": printed},
            {"group": "choice", "label": "corrected"},
            {"group": "choice", "label": "w/o adaptive scaling", "test": corrected},
        ]
    )
    assert claims._adaptive_scaling(runs).verdict == verdict


@pytest.mark.parametrize(
    ("violations", "power", "verdict"),
    [(0, 0.5, "holds"), (0, 0.59, "holds"), (1, 0.5, "does not hold"), (0, 1.0, "does not hold")],
)
def test_h6_asks_for_no_violation_and_a_slope_of_one_half(violations, power, verdict):
    theory = {
        "cg_convergence": [record({"violations": violations, "checked": 50})],
        "condition_number": [record({"plain": 5 * k**power}, config={"kappa": k}) for k in (10.0, 100.0, 1000.0)],
    }
    assert claims._cg_rate(theory).verdict == verdict


@pytest.mark.parametrize(
    ("printed", "corrected", "verdict"),
    [((20, 30), (40, 50), "holds"), ((20, 30), (50, 40), "holds in part"), ((20, 10), (50, 40), "does not hold")],
)
def test_h7_asks_for_growth_from_10_to_100_and_leaves_200_out(printed, corrected, verdict):
    speeds = {
        f"clients {count}": timed({PRINTED: p, CORRECTED: c}, {PRINTED: 1, CORRECTED: 1})
        for count, p, c in zip((10, 100), printed, corrected, strict=True)
    }
    assert claims._more_clients(E, speeds).verdict == verdict


@pytest.mark.parametrize(
    ("printed", "corrected", "clean", "verdict"),
    [(70.0, 60.0, 70.6, "holds"), (79.0, 60.0, 70.6, "holds in part"), (70.0, 60.0, 70.0, "does not hold")],
)
def test_h8_asks_for_a_tenth_less_success_at_half_a_point(printed, corrected, clean, verdict):
    runs = by_method("asr", {PRINTED: printed, CORRECTED: corrected}, group="backdoor", test=clean)
    assert claims._backdoor(runs).verdict == verdict


@pytest.mark.parametrize(
    ("seconds", "passes", "verdict"),
    [
        ((40, 50, 60), (40, 50, 60), "holds"),
        ((40, 50, 60), (40, 40, 40), "does not hold"),  # the same work: the clock only
        ((60, 50, 40), (60, 50, 40), "does not hold"),
    ],
)
def test_h9_asks_for_less_work_and_not_for_a_lucky_clock(seconds, passes, verdict):
    names = [f"{m}, damping {d:g}" for m in (PRINTED, CORRECTED) for d in (0.1, 0.01, 0.001)]
    gains = [dict(zip(names, 2 * list(values), strict=True)) for values in (seconds, passes)]
    assert claims._small_damping(E, timed(*gains)).verdict == verdict


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdict"),
    [
        (3, 0.5, 0.9, "holds"),
        (0.5, 0.5, 0.9, "holds in part"),
        (3, 0.5, 1.1, "holds in part"),
        (3, 2, 2, "does not hold"),
    ],
)
def test_h10_asks_for_one_point_at_every_alpha(nothing, printed, corrected, verdict):
    rows = [
        {"group": "alpha", "label": label, "method": method, "delta_test": value if label == "0.1" else 0.1}
        for method, value in {NOTHING: nothing, PRINTED: printed, CORRECTED: corrected}.items()
        for label in ("0.1", "1")
    ]
    assert claims._heterogeneity(E, frame(rows)).verdict == verdict


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdict"),
    [
        (0.5, 0.1, 0.2, "holds"),
        (0.1, 0.1, 0.2, "holds in part"),
        (0.5, 0.4, 0.2, "holds in part"),
        (0.5, 0.4, 0.3, "does not hold"),
    ],
)
def test_h11_asks_for_less_than_two_retrainings_differ(nothing, printed, corrected, verdict):
    runs = by_method("kl", {NOTHING: nothing, PRINTED: printed, CORRECTED: corrected})
    floor = [record({"kl": kl}) for kl in (0.2, 0.3)]
    assert claims._equivalent(E, runs, floor).verdict == verdict
    assert claims._equivalent(E, runs, []).verdict == "not run"


@pytest.mark.parametrize(
    ("ridge", "net", "verdict"),
    [(0.5, 0.09, "holds"), (1.8, 0.09, "holds in part"), (1.8, 0.11, "does not hold")],
)
def test_h12_asks_for_progress_on_ridge_and_on_nets(ridge, net, verdict):
    metrics = {"Algorithm 1 as printed, no clip": {"error": ridge}, "corrected": {"error": 1e-13}}
    theory = {"exactness": [record(metrics, config={"data": "diabetes"})]}
    runs = by_method("gap", {NOTHING: 0.1, PRINTED: net, CORRECTED: 0.05})
    assert claims._direction(E, runs, theory).verdict == verdict


@pytest.mark.parametrize(("accuracy", "verdict"), [(12.0, "holds"), (12.1, "does not hold")])
def test_h13_asks_for_chance(accuracy, verdict):
    assert claims._naive_collapses(E, by_method("test", {"NaiveGA": accuracy})).verdict == verdict


@pytest.mark.parametrize(("worst", "verdict"), [(1.0, "holds"), (1.01, "does not hold")])
def test_h14_asks_for_no_draw_above_the_bound(worst, verdict):
    theory = {"perturbation": [record({"theorem 1": [0.2, worst]})]}
    assert claims._perturbation(theory).verdict == verdict


@pytest.mark.parametrize(
    ("gap", "gain", "verdict"), [(0.5, 50, "holds"), (0.7, 50, "does not hold"), (0.5, 40, "does not hold")]
)
def test_h15_asks_for_speed_and_accuracy_wherever_it_was_run(gap, gain, verdict):
    runs = by_method("delta_test", {PRINTED: gap, CORRECTED: gap}, setting=OTHER)
    speeds = {OTHER: timed({PRINTED: gain, CORRECTED: gain}, {PRINTED: 1, CORRECTED: 1})}
    result = claims._carries_over(E, runs, speeds)
    assert result.verdict == verdict
    assert result.records[0] == "t"
