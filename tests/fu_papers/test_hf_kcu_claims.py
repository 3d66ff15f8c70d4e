"""The rules of HF-KCU's claims on planted numbers: each verdict on both sides of its rule.

In the world as planted, where three seeds agree to the last digit, every claim holds that can; a test changes what its
claim looks at.
"""

from types import MappingProxyType

import pandas as pd
import pytest

from fu_papers.controls import AGAIN
from fu_papers.hf_kcu import claims, claims_speed
from fu_papers.hf_kcu.grid import SAME_START
from fu_papers.lab.record import Record
from fu_papers.verdicts import NO_OTHER
from tests.hf_kcu_lab import experiment

MAIN, OTHER = "cifar10/dirichlet-0.5/simple_cnn", "mnist/dirichlet-0.5/simple_cnn"
SEEDS = (0, 1, 2)
E = experiment(
    settings=[MAIN, OTHER], client_counts=[10, 100, 200], dampings=[0.1, 0.01, 0.001], alphas=[0.1, 1.0],
    seeds=list(SEEDS), sweep_seeds=list(SEEDS),
)  # fmt: skip
LARGE = E.changed(n_train=40_000)  # as many images as the paper's
HOLDS, NOT, OPEN = "holds", "does not hold", "undetermined"
PAIRS = ((0, 1), (0, 2), (1, 2))
PRINTED, CORRECTED, NOTHING = "HF-KCU printed", "HF-KCU", "Original"
FORMS = (PRINTED, CORRECTED)
BASE = {"test": 71.0, "test_original": 71.0, "test_retrain": 70.8, "asr_original": 80.0, "asr_retrain": 10.0}
PLANTED = {
    NOTHING: {"delta_test": 2.0, "mia": 0.85, "gap": 0.1, "kl": 0.5, "asr": 80.0},
    "Retrain": {"delta_test": 0.0, "mia": 0.5, "gap": 0.0, "kl": 0.0, "asr": 10.0},
    "NaiveGA": {"delta_test": 60.0, "mia": 0.5, "gap": 9.0, "kl": 9.0, "asr": 0.0, "test": 10.0},
    SAME_START: {"delta_test": 0.5, "mia": 0.5, "gap": 0.05, "kl": None, "asr": 10.0},  # its KL: by whom it is asked
    AGAIN: {"delta_test": 0.3, "mia": 0.5, "gap": 0.09, "asr": 10.0},
    PRINTED: {"delta_test": 0.5, "mia": 0.51, "gap": 0.09, "kl": 0.1, "asr": 60.0},
    CORRECTED: {"delta_test": 0.5, "mia": 0.49, "gap": 0.05, "kl": 0.1, "asr": 60.0},
}
CLIPPED = "with adaptive scaling"
BROADCAST, UNSCALED, AS_PRINTED = "w/o causal weighting", "w/o adaptive scaling", "w/o influence decay (= Algorithm 1)"
ROWS = [
    *(("methods", MAIN, method, "", {}) for method in PLANTED if method != AGAIN),
    *(("methods", OTHER, method, "", {}) for method in (NOTHING, SAME_START, AGAIN, *FORMS)),
    *(("backdoor", MAIN, method, "", {"passes": 2.0}) for method in FORMS),
    *(("alpha", MAIN, method, label, {}) for method in (NOTHING, AGAIN, *FORMS) for label in ("0.1", "1")),
    ("ablation", MAIN, PRINTED, AS_PRINTED, {}),
    ("ablation", MAIN, PRINTED, BROADCAST, {"gap": 0.25}),
    ("ablation", MAIN, PRINTED, UNSCALED, {"test": 60.0, "residual": 0.75}),
    ("choice", MAIN, CORRECTED, CLIPPED, {}),
    ("choice", MAIN, CORRECTED, "corrected", {"test": 60.0, "residual": 0.25}),
]
GAINS = {"main": 50.0, OTHER: 50.0, "clients 10": 50.0, "clients 100": 60.0, "clients 200": 55.0}
DAMPED = {f"{method}, damping {d:g}": gain for method in FORMS for d, gain in ((0.1, 50), (0.01, 60), (0.001, 70))}
NO_CHANGE = MappingProxyType({})
RIDGE = "Algorithm 1 as printed, no clip"


def record(metrics, name="r", config=None):
    return Record("f", name, config or {}, "", "0", metrics, [], None, {})


def timed(what, passes, times):
    """Retraining takes 100, a method so many times less."""
    fewer = dict.fromkeys(FORMS, GAINS[what]) | (DAMPED if what == "main" else {}) | passes.get(what, {})
    faster = dict.fromkeys(fewer, 50.0) | times.get(what, {})
    kinds = {"passes": fewer, "seconds": faster}
    metrics = {kind: {"retrain": 100.0} | {n: 100.0 / g for n, g in gains.items()} for kind, gains in kinds.items()}
    return record(metrics | {"timed_rounds": 2}, f"time of {what}")


def draws(what, passes, leaving):
    """What is paid whichever client leaves: as planted for each method, times a client's factor."""
    fewer = dict.fromkeys(FORMS, GAINS[what]) | passes.get(what, {})
    counted = {
        f"client-{i}": {"retrain": 100.0, **{m: 100.0 / g / k for m, g in fewer.items()}} for i, k in enumerate(leaving)
    }
    return record({"passes": counted}, f"prices of {what}")


def judged(
    changes=None,
    passes=None,
    times=None,
    floor=(0.24, 0.25, 0.26),
    seeds=SEEDS,
    e=E,
    again=NO_CHANGE,
    leaving=(1.0, 1.0, 1.0),
    **theory,
):
    """Every verdict by claim. changes: {(group, setting, method, label): values}, None means any; a tuple of values has
    one per seed; passes, times: {what is timed: {method: times less}}; floor: the KL of `PAIRS`; again: more of
    what two retrainings differ by; leaving: times the planted gain, a leaving client each."""
    rows = []
    for i, (*place, own) in enumerate(ROWS):
        place[0] = "nets" if place[1] in e.nets else place[0]
        place[1] = e.main if place[1] == MAIN else place[1]
        values = {**BASE, **PLANTED[place[2]], **own}
        for where, change in (changes or {}).items():
            if all(a in (None, b) for a, b in zip(where, place, strict=True)):
                values |= change
        for n, seed in enumerate(seeds):
            own_values = {name: value[n] if isinstance(value, tuple) else value for name, value in values.items()}
            where = dict(zip(("group", "setting", "method", "label"), place, strict=True))
            rows.append(where | own_values | {"seed": seed, "record": f"k{i} {seed}"})
    speeds = {what: timed(what, passes or {}, times or {}) for what in GAINS}
    counted = {e.main: "main", **{setting: setting for setting in (*e.settings[1:], *e.nets)}}
    prices = {where: draws(what, passes or {}, leaving) for where, what in counted.items()} if leaving else {}
    pairs = [record({"kl": kl}, f"pair {pair}") for kl, pair in zip(floor, PAIRS, strict=False)]
    apart = dict(zip(PAIRS, floor, strict=False))  # seeds without their pair have a second retraining, but no distance
    for seed in seeds:
        other = (seed + 1) % len(SEEDS)
        kl = apart.get((min(seed, other), max(seed, other)))
        place = {"group": "methods", "setting": e.main, "method": AGAIN, "label": "", "seed": seed, "other_seed": other}
        rows.append({**place, **BASE, "delta_test": 0.3, "kl": kl, "record": f"again {seed}", **again})
    found = claims.verdicts(e, pd.DataFrame(rows), speeds, pairs, checks(**theory), prices)
    return {result.id: result for result in found}


def both(result):
    return result.verdict, result.corrected


def checks(violations=0, power=0.5, worst=0.9, ridge=0.5):
    """The numerical checks behind H6, H12 and H14."""
    errors = {RIDGE: {"error": ridge}, "corrected": {"error": 1e-13}}
    counts = [record({"plain": 5 * k**power}, config={"kappa": k}) for k in (10.0, 100.0, 1000.0)]
    return {
        "cg_convergence": [record({"violations": violations, "checked": 50})],
        "condition_number": counts,
        "perturbation": [record({"theorem 1": [0.2, worst]})],
        "exactness": [record(errors, config={"data": "diabetes"})],
    }


def of_forms(name, printed, corrected, group="methods", setting=MAIN, label=None):
    return {
        (group, setting, PRINTED, label): {name: printed},
        (group, setting, CORRECTED, label): {name: corrected},
    }


ONE_FORM = ("H4", "H6", "H13", "H14")  # the corrected form is the same, or there is none


def test_there_is_one_verdict_per_claim_and_as_planted_every_claim_holds():
    found = judged()
    assert list(found) == [f"H{i}" for i in range(1, 16)]
    expected = dict.fromkeys(found, HOLDS)
    assert {id: result.verdict for id, result in found.items()} == expected
    assert {id: r.corrected for id, r in found.items()} == expected | dict.fromkeys(ONE_FORM, NO_OTHER)
    assert all(result.records and result.ours for result in found.values())


def test_no_clock_changes_a_verdict():
    """A machine that was busy whenever a method ran, and one that was busy while it retrained."""
    names = [*FORMS, *DAMPED]
    for factor in (0.01, 100.0):
        times = {what: dict.fromkeys(names, factor) for what in GAINS}
        assert {id: both(r) for id, r in judged(times=times).items()} == {id: both(r) for id, r in judged().items()}
        slow = {"main": dict.fromkeys(FORMS, 20.0)}
        assert both(judged(passes=slow, times=times)["H1"]) == (NOT, NOT)


def test_the_seconds_are_told_beside():
    assert "50.0x fewer passes (12.0x in time)" in judged(times={"main": {PRINTED: 12.0}})["H1"].ours


def test_one_seed_decides_no_mean():
    found = judged(seeds=SEEDS[:1])
    assert {id for id, r in found.items() if r.verdict == OPEN} == set(found) - {"H1", "H6", "H7", "H9", "H14"}
    assert "several seeds would tell (1 now)" in found["H2"].reason


def test_a_wide_interval_is_undetermined_and_says_how_many_seeds_would_tell():
    """Mean 0.4 points: the interval of three such seeds reaches to 1.1."""
    result = judged({("methods", MAIN, m, None): {"delta_test": (0.1, 0.4, 0.7)} for m in FORMS})["H2"]
    assert both(result) == (OPEN, OPEN)
    assert "about 12 seeds would tell (3 now)" in result.reason
    assert "[-0.35, 1.15] (3 seeds)" in result.spread


def test_the_corrected_form_does_not_lift_the_verdict_on_the_printed_one():
    """Whatever a claim is about: the printed form fails, the corrected one does what is claimed."""
    far = {"delta_test": 9.0, "mia": 0.9, "gap": 0.5, "kl": 0.9, "asr": 80.0}
    changes = {("methods", None, PRINTED, None): far, ("backdoor", None, PRINTED, None): far}
    changes |= {("alpha", None, PRINTED, None): far, ("ablation", None, None, UNSCALED): {"test": 71.0}}
    slow = {what: {PRINTED: 20.0} for what in ("main", OTHER)}
    slow["main"] |= {f"{PRINTED}, damping {d:g}": 40 for d in (0.1, 0.01, 0.001)}
    found = judged(changes, passes=slow)
    for id in ("H1", "H2", "H3", "H5", "H8", "H9", "H10", "H11", "H12", "H15"):
        assert both(found[id]) == (NOT, HOLDS), id


def test_what_doing_nothing_meets_as_well_does_not_hold():
    near = {"delta_test": 0.1, "kl": 0.0}
    found = judged({(group, None, NOTHING, None): near for group in ("methods", "alpha")})
    for id in ("H2", "H10", "H11", "H15"):
        assert both(found[id]) == (NOT, NOT), id
        assert "doing nothing meets it, too" in found[id].reason or id == "H15"
    unknown = judged({("methods", MAIN, NOTHING, None): {"delta_test": (0.1, 0.5, 0.9)}})["H2"]
    assert both(unknown) == (OPEN, OPEN)  # nobody knows whether doing nothing does


FORGETS = ("H2", "H3", "H8", "H10", "H11", "H12", "H15")  # which are about the model that is left


def in_the_place_of_hf_kcu(values, others=NO_CHANGE):
    """(as printed, corrected) of those claims, where both forms leave another model behind."""
    found = judged({(None, None, form, None): values for form in FORMS} | dict(others))
    return {id: both(found[id]) for id in FORGETS}


@pytest.mark.parametrize("mia", [0.5, 0.45, 0.85])
@pytest.mark.parametrize("asr", [0.0, 10.0, 100.0])  # one class for every image: never the backdoor's, or always
def test_a_useless_model_forgets_nothing(mia, asr):
    """Destroyed, or with a constant output: whatever it seems to have forgotten."""
    useless = {"test": 10.0, "delta_test": 60.8, "gap": 9.0, "kl": 2.0, "mia": mia, "asr": asr}
    assert in_the_place_of_hf_kcu(useless) == dict.fromkeys(FORGETS, (NOT, NOT))


def test_a_copy_of_original_forgets_nothing():
    assert in_the_place_of_hf_kcu({**BASE, **PLANTED[NOTHING]}) == dict.fromkeys(FORGETS, (NOT, NOT))


def test_a_copy_of_original_forgets_nothing_where_that_is_as_near_to_retrain_as_is_asked():
    near = {**BASE, **PLANTED[SAME_START], "test": BASE["test_retrain"], "kl": 0.1}
    assert in_the_place_of_hf_kcu(near) == dict.fromkeys(FORGETS, (HOLDS, HOLDS))  # it is not the rule that fails it
    found = in_the_place_of_hf_kcu(near, {(None, None, NOTHING, None): near})
    # an attack that does not find Original tells nothing, nor does a distance by which a second Retrain is no nearer
    expected = dict.fromkeys(FORGETS, (NOT, NOT)) | dict.fromkeys(("H3", "H12"), (OPEN, OPEN))
    del found["H8"], expected["H8"]  # of a backdoor that Original did not have nothing is asked
    assert found == expected


def test_a_second_retraining_in_the_place_of_hf_kcu_forgets():
    """But for H11: by KL the one from other weights is as far away as the floor, which it is."""
    from_other_weights = {**BASE, **PLANTED[AGAIN], "test": BASE["test_retrain"], "kl": 0.25}
    found = in_the_place_of_hf_kcu(from_other_weights)
    assert found == dict.fromkeys(FORGETS, (HOLDS, HOLDS)) | {"H11": (OPEN, OPEN)}
    from_the_same = {**BASE, **PLANTED[SAME_START], "test": BASE["test_retrain"], "kl": 0.1}
    assert in_the_place_of_hf_kcu(from_the_same) == dict.fromkeys(FORGETS, (HOLDS, HOLDS))


@pytest.mark.parametrize(
    ("printed", "corrected", "verdicts"),
    [(48, 200, (HOLDS, HOLDS)), (47, 200, (NOT, HOLDS)), (47.75, 47.74, (HOLDS, NOT)), (20, 30, (NOT, NOT))],
)
def test_h1_asks_for_47_75_times(printed, corrected, verdicts):
    result = judged(passes={"main": {PRINTED: printed, CORRECTED: corrected}})["H1"]
    assert both(result) == verdicts
    assert result.records == ["time of main", "prices of main"]


@pytest.mark.parametrize("id", ["H1", "H15"])
@pytest.mark.parametrize(
    ("leaving", "verdict"),
    # of clients that take 100 / 50 / k passes each, and 100 the retraining: 50 k times less
    [((1, 1.2, 2), HOLDS), ((1, 0.7, 2), HOLDS), ((0.7, 2, 0.1), NOT), ((0.5, 0.7, 9), NOT), ((0.7, 2), HOLDS),
     ((0.7, 0.7, 0.96, 2), HOLDS), ((), OPEN)],
)  # fmt: skip
def test_h1_and_h15_ask_half_of_the_clients_that_may_leave(id, leaving, verdict):
    """Half of an even number is enough, whatever lies between the two in the middle."""
    result = judged(leaving=leaving, e=LARGE)[id]
    assert both(result) == (verdict, verdict)
    if leaving == (1, 0.7, 2):
        beside = f"35x to 100x, 2 of them the paper's {'47.75' if id == 'H1' else '40'}x; 51.2x in all"
        assert f"50x in the median of 3 leaving clients ({beside})" in result.ours
    if not leaving:
        assert "the passes that other leaving clients take would tell" in result.reason


@pytest.mark.parametrize("split", [(10, 10, 10), (1, 9, 20)])
def test_the_printed_price_summed_over_all_clients_depends_on_no_split(split):
    """E (N - 1) / (1 + 2k): a client's own data, 1 + 2k times, against E epochs of everybody else's."""
    epochs, k = 100, 10
    counted = {f"client-{i}": {"retrain": epochs * (30 - n), PRINTED: n * (1 + 2 * k)} for i, n in enumerate(split)}
    assert claims_speed.summed(record({"passes": counted}), PRINTED) == pytest.approx(100 * 2 / 21)


def test_a_small_gain_of_the_corrected_form_is_open_on_fewer_images_than_the_papers():
    """Its curvature is from as many images whatever is retrained on: its price hardly grows with them."""
    few = {"main": {PRINTED: 20, CORRECTED: 20}}
    assert both(judged(passes=few, e=E.changed(n_train=1200))["H1"]) == (NOT, OPEN)
    assert both(judged(passes=few, e=LARGE)["H1"]) == (NOT, NOT)


def test_h1_leaves_open_what_a_shorter_schedule_than_the_papers_would_change():
    short = E.changed(rounds=10)
    result = judged(passes={"main": {PRINTED: 47, CORRECTED: 48}}, e=short)["H1"]
    assert both(result) == (OPEN, HOLDS)


@pytest.mark.parametrize(
    ("printed", "corrected", "verdicts"),
    [(0.5, 0.6, (HOLDS, HOLDS)), (0.7, 0.5, (NOT, HOLDS)), (0.5, 0.7, (HOLDS, NOT))],
)
def test_h2_asks_for_0_60_points(printed, corrected, verdicts):
    assert both(judged(of_forms("delta_test", printed, corrected))["H2"]) == verdicts


@pytest.mark.parametrize(
    ("original", "printed", "corrected", "verdicts"),
    [
        (0.85, 0.52, 0.48, (HOLDS, HOLDS)),
        (0.85, 0.80, 0.51, (NOT, HOLDS)),
        (0.85, 0.50, 0.47, (HOLDS, NOT)),  # standing out as forgotten is exposure, too
        (0.59, 0.50, 0.50, (OPEN, OPEN)),  # the attack does not find the original by 0.10
        (0.59, 0.80, 0.50, (NOT, OPEN)),  # who is found more than Retrain has not forgotten
    ],
)
def test_h3_asks_for_retrains_exposure_where_there_was_one(original, printed, corrected, verdicts):
    changes = {("methods", MAIN, NOTHING, None): {"mia": original}, **of_forms("mia", printed, corrected)}
    assert both(judged(changes)["H3"]) == verdicts


def test_h3_asks_for_no_seeds_of_an_attack_that_does_not_find_the_original_model():
    changes = {("methods", MAIN, NOTHING, None): {"mia": 0.51}, **of_forms("mia", (0.48, 0.5, 0.53), 0.5)}
    reason = judged(changes)["H3"].reason
    assert reason.endswith("an attack that finds the original model would tell")
    assert "seeds would tell" not in reason


@pytest.mark.parametrize(
    ("without", "verdict"), [(0.19, HOLDS), (0.17, NOT), ((0.19, 0.19, 0.3), OPEN), ((0.09, 0.09, 0.1), NOT)]
)
def test_h4_asks_for_twice_the_gap(without, verdict):
    changes = {("ablation", None, None, BROADCAST): {"gap": without}}  # with causal weights: 0.09
    assert judged(changes)["H4"].verdict == verdict


@pytest.mark.parametrize(
    ("printed", "corrected", "verdicts"),
    [(70.0, 60.0, (HOLDS, HOLDS)), (70.1, 60.0, (NOT, HOLDS)), ((68, 70, 71), 71.5, (OPEN, NOT))],
)
def test_h5_asks_for_a_drop_of_one_point(printed, corrected, verdicts):
    changes = {("ablation", None, None, UNSCALED): {"test": printed}}
    changes |= {("choice", None, None, "corrected"): {"test": corrected}}
    result = judged(changes)["H5"]
    assert both(result) == verdicts
    assert "CG residual without the clip: HF-KCU, as printed 0.75, HF-KCU, corrected 0.25" in result.reason


def test_h5_pairs_the_seeds():
    """Seeds differ by points, the drop does not."""
    changes = {("ablation", None, None, AS_PRINTED): {"test": (60.0, 70.0, 80.0)}}
    changes |= {("ablation", None, None, UNSCALED): {"test": (58.0, 68.1, 77.9)}}
    assert judged(changes)["H5"].verdict == HOLDS


@pytest.mark.parametrize(
    ("violations", "power", "verdict"), [(0, 0.5, HOLDS), (0, 0.59, HOLDS), (1, 0.5, NOT), (0, 1.0, NOT)]
)
def test_h6_asks_for_no_violation_and_a_slope_of_one_half(violations, power, verdict):
    assert judged(violations=violations, power=power)["H6"].verdict == verdict


@pytest.mark.parametrize(("gains", "corrected"), [((20, 30), HOLDS), ((30, 20), NOT), ((20, 20), NOT)])
def test_h7_as_printed_holds_by_construction_and_corrected_as_counted(gains, corrected):
    """What one client pays as printed is what it happens to hold; all of them pay 1 + 2k passes over the data."""
    passes = {f"clients {n}": dict.fromkeys(FORMS, gain) for n, gain in zip((10, 100), gains, strict=True)}
    result = judged(passes=passes)["H7"]
    assert both(result) == (HOLDS, corrected)
    assert f"{gains[0]}x, {gains[1]}x fewer passes" in result.ours  # 200 is beyond what the claim is about
    assert "by construction" in result.reason
    assert both(judged(e=E.changed(client_counts=[10]))["H7"]) == (OPEN, OPEN)


def test_h7_asks_for_as_many_clients_as_it_speaks_of(monkeypatch):
    monkeypatch.setattr(claims_speed, "MOST_CLIENTS", 150)  # 10 and 100 are there
    result = judged()["H7"]
    assert both(result) == (HOLDS, OPEN)
    assert "150 clients would tell" in result.reason


def test_h3_a_ruined_model_is_as_private_and_does_not_hold():
    ruined = of_forms("test", 10.0, 10.0)
    assert both(judged(ruined)["H3"]) == (NOT, NOT)


def test_h3_is_open_where_two_retrainings_differ_by_more_than_it_allows():
    apart = {"delta_mia": 0.024, "delta_test": 0.3}
    assert both(judged(again=apart)["H3"]) == (OPEN, OPEN)
    far = of_forms("mia", 0.80, 0.80)
    assert both(judged(far, again=apart)["H3"]) == (NOT, NOT)


def test_h5_compares_no_model_with_itself():
    """A clip that shortens no step leaves the very same models: 0.0 [0.0, 0.0] says nothing."""
    never = {("choice", None, None, label): {"clipped": False} for label in ("corrected", "with adaptive scaling")}
    found = judged(never)["H5"]
    assert found.corrected == OPEN
    assert "steps so long that the scaling shortens them" in found.reason


def test_h8_tells_the_price_of_its_own_runs():
    assert "HF-KCU, as printed 50.0x" in judged()["H8"].ours
    passes = {("backdoor", None, PRINTED, None): {"passes": 50.0}, ("backdoor", None, CORRECTED, None): {"passes": 8.0}}
    assert "HF-KCU, as printed 2.0x, HF-KCU, corrected 12.5x" in judged(passes)["H8"].ours


@pytest.mark.parametrize(
    ("printed", "corrected", "clean", "verdicts"),
    [
        (72.0, 60.0, 70.5, (HOLDS, HOLDS)),
        (73.0, 60.0, 70.6, (NOT, HOLDS)),
        (70.0, 60.0, 70.0, (NOT, NOT)),
        (70.0, (60.0, 70.0, 79.0), 70.6, (HOLDS, OPEN)),
    ],
)
def test_h8_asks_for_a_tenth_less_success_at_half_a_point(printed, corrected, clean, verdicts):
    changes = {("backdoor", None, None, None): {"test": clean}, **of_forms("asr", printed, corrected, "backdoor")}
    assert both(judged(changes)["H8"]) == verdicts


@pytest.mark.parametrize(
    ("printed", "corrected", "verdicts"),
    [
        ((40, 50, 60), (40, 50, 60), (HOLDS, HOLDS)),
        ((40, 50, 60), (40, 40, 40), (HOLDS, NOT)),  # the same work
        ((60, 50, 40), (40, 50, 60), (NOT, HOLDS)),
    ],
)
def test_h9_asks_for_less_work_and_not_for_a_lucky_clock(printed, corrected, verdicts):
    names = [f"{m}, damping {d:g}" for m in FORMS for d in (0.1, 0.01, 0.001)]
    lucky = {"main": dict(zip(names, (40, 50, 60) * 2, strict=True))}
    passes = {"main": dict(zip(names, printed + corrected, strict=True))}
    assert both(judged(passes=passes, times=lucky)["H9"]) == verdicts


@pytest.mark.parametrize(
    ("nothing", "printed", "corrected", "verdicts"),
    [
        (3, 0.5, 1.0, (HOLDS, HOLDS)),
        (0.5, 0.5, 0.9, ("holds in part", "holds in part")),  # doing nothing is as near at one of the two
        (3, 0.5, 1.1, (HOLDS, "holds in part")),
        (3, (0.1, 0.5, 1.5), 0.5, (OPEN, HOLDS)),
    ],
)
def test_h10_asks_for_one_point_at_every_alpha(nothing, printed, corrected, verdicts):
    changes = {
        ("alpha", None, PRINTED, "1"): {"delta_test": 0.1},
        ("alpha", None, CORRECTED, "1"): {"delta_test": 0.1},
        ("alpha", None, NOTHING, "0.1"): {"delta_test": nothing},
    }
    changes |= of_forms("delta_test", printed, corrected, "alpha", label="0.1")
    result = judged(changes)["H10"]
    assert both(result) == verdicts
    worst = f"HF-KCU, corrected up to {max(corrected, 0.1):.2f} [" if isinstance(corrected, float) else ""
    assert worst in result.spread
    assert "(3 seeds; alpha 0.1)" in result.spread
    if "holds in part" in verdicts:
        assert "1 of 2 hold (alpha 1); 1 of 2 do not hold (alpha 0.1)" in result.reason


@pytest.mark.parametrize(
    ("printed", "corrected", "verdicts"),
    [(0.1, 0.2, (HOLDS, HOLDS)), (0.31, 0.1, (NOT, HOLDS)), (0.22, 0.4, (OPEN, NOT))],  # the floor: 0.25 ± 0.05
)
def test_h11_asks_for_less_than_two_retrainings_differ(printed, corrected, verdicts):
    assert both(judged(of_forms("kl", printed, corrected))["H11"]) == verdicts


def test_h11_has_the_floor_of_table_9():
    """That is, of the rows of the second retraining; the records are those of the pairs that it was measured on."""
    result = judged()["H11"]
    assert "KL <= that of two retrainings from different weights: 0.2500 ± 0.0100" in result.reason
    assert {f"pair {pair}" for pair in PAIRS} <= set(result.records)
    assert not any(name.startswith("again") for name in result.records)


@pytest.mark.parametrize(("kl", "verdict"), [(0.1, HOLDS), (0.05, NOT), ((0.05, 0.12, 0.2), OPEN)])
def test_h11_has_the_floor_from_the_same_weights_where_it_was_run(kl, verdict):
    """Nearer than two retrainings from different weights are all that start from the same ones."""
    place = ("methods", MAIN, SAME_START, "")
    ROWS.append((*place, {"kl": kl}))
    try:
        result = judged(of_forms("kl", 0.1, 0.1))["H11"]
    finally:
        ROWS.pop()
    assert both(result) == (verdict, verdict)
    assert "two retrainings from the same weights, as every method starts: " in result.reason
    assert "; from different weights: 0.2500 ± 0.0100" in result.reason


def test_h11_refutes_who_is_no_nearer_than_doing_nothing_whatever_the_floor():
    """Either doing nothing is above the floor, and so are they; or it is not, and meets the rule as well."""
    place = ("methods", MAIN, SAME_START, "")
    ROWS.append((*place, {"kl": (0.01, 0.5, 0.9)}))  # which says nothing of anybody
    try:
        farther = judged(
            of_forms("kl", (0.21, 0.41, 0.61), 0.3) | {("methods", None, NOTHING, ""): {"kl": (0.2, 0.4, 0.6)}}
        )
    finally:
        ROWS.pop()
    assert both(farther["H11"]) == (NOT, OPEN)
    assert "no nearer than doing nothing, seed by seed: HF-KCU, as printed" in farther["H11"].reason


@pytest.mark.parametrize("pairs", [(), (0.2,)])
def test_h11_without_an_interval_of_the_floor_is_undetermined(pairs):
    alone = judged(floor=pairs)["H11"]
    assert both(alone) == (OPEN, OPEN)
    assert "three seeds would give the noise floor an interval" in alone.reason


@pytest.mark.parametrize(
    ("ridge", "net", "verdict"),
    [(0.5, 0.09, HOLDS), (1.8, 0.09, NOT), (0.5, 0.11, NOT), (0.5, (0.09, 0.09, 0.101), OPEN)],
)
def test_h12_asks_for_progress_on_ridge_and_on_nets(ridge, net, verdict):
    changes = of_forms("gap", net, 0.05) | of_forms("gap", net, 0.05, setting=OTHER)
    result = judged(changes, ridge=ridge)["H12"]
    assert both(result) == (verdict, HOLDS)


def test_h12_looks_at_every_data_set():
    result = judged(of_forms("gap", 0.11, 0.05, setting=OTHER))["H12"]
    assert both(result) == ("holds in part", HOLDS)
    assert "1 of 2 do not hold (MNIST" in result.reason
    assert result.ours.count("corrected 0.5000x, away in 0 of 3") == 2
    assert result.ours.count("printed 1.1000x, away in 3 of 3") == 1


@pytest.mark.parametrize("again", [0.1, 0.2])
def test_h12_is_open_on_nets_where_a_second_retraining_is_no_nearer_than_doing_nothing(again):
    farther = {("methods", OTHER, SAME_START, ""): {"gap": again}}
    result = judged(farther)["H12"]
    assert both(result) == (OPEN, OPEN)
    assert "1 of 2 are undetermined (MNIST Dirichlet 0.5); trainings after which a second retraining" in result.reason
    assert f"a second retraining {10 * again:.3g}x" in result.ours
    assert both(judged(farther, ridge=1.8)["H12"]) == (NOT, OPEN)  # which ridge refutes all the same


@pytest.mark.parametrize(("floor", "verdict"), [(0.6, HOLDS), (0.7, OPEN)])
def test_h2_is_undetermined_where_two_retrainings_differ_by_more(floor, verdict):
    result = judged(again={"delta_test": floor})["H2"]
    assert both(result) == (verdict, verdict)
    assert ("two retrainings differ by 0.70 points" in result.reason) == (verdict == OPEN)


@pytest.mark.parametrize(("accuracy", "verdict"), [(12.0, HOLDS), (12.1, NOT), ((10, 10, 13), OPEN)])
def test_h13_asks_for_chance(accuracy, verdict):
    assert judged({("methods", MAIN, "NaiveGA", None): {"test": accuracy}})["H13"].verdict == verdict


def test_h13_tells_the_tuned_form_and_judges_the_published_one():
    """Alone, the published form is all that there is to tell."""
    assert judged()["H13"].ours == "as published 10.0 %"
    tuned = ("tuned", MAIN, "NaiveGA", "", {"test": 38.0})
    ROWS.append(tuned)
    try:
        result = judged()["H13"]
    finally:
        ROWS.remove(tuned)
    assert result.verdict == HOLDS
    assert result.ours == "as published 10.0 %; tuned 38.0 %"
    assert "not judged" in result.reason


@pytest.mark.parametrize(("worst", "verdict"), [(1.0, HOLDS), (1.01, NOT)])
def test_h14_asks_for_no_draw_above_the_bound(worst, verdict):
    assert judged(worst=worst)["H14"].verdict == verdict


@pytest.mark.parametrize(("gap", "gain", "verdict"), [(1.5, 40, HOLDS), (1.6, 50, NOT), (0.5, 39, NOT)])
def test_h15_asks_for_speed_and_accuracy_wherever_it_was_run(gap, gain, verdict):
    changes, passes = of_forms("delta_test", gap, 0.5, setting=OTHER), {OTHER: {PRINTED: gain, CORRECTED: 50}}
    result = judged(changes, passes)["H15"]
    assert both(result) == (verdict, HOLDS)
    assert result.records[:2] == [f"time of {OTHER}", f"prices of {OTHER}"]


@pytest.mark.parametrize(("floor", "verdict"), [(1.5, HOLDS), (1.51, OPEN), (None, OPEN)])
@pytest.mark.parametrize("gap", [1.4, 1.6])
def test_h15_is_undetermined_where_two_retrainings_differ_by_more_or_there_are_none(gap, floor, verdict):
    """As H2 is: whoever is off by less than they are may be so by chance, and whoever is off by more, too."""
    changes = of_forms("delta_test", gap, gap, setting=OTHER)
    changes |= {("methods", OTHER, AGAIN, None): {"delta_test": floor}}
    result = judged(changes)["H15"]
    assert both(result) == ((NOT, NOT) if (gap, verdict) == (1.6, HOLDS) else (verdict, verdict))
    assert ("two retrainings differ by 1.51 points, more than 1.5" in result.reason) == (floor == 1.51)
    assert ("a second retraining would tell" in result.reason) == (floor is None)


@pytest.mark.parametrize(("floor", "verdict"), [(0.6, HOLDS), (0.61, OPEN), (None, OPEN)])
@pytest.mark.parametrize("gap", [0.5, 0.7])
def test_h2_is_undetermined_where_two_retrainings_differ_by_more_or_there_are_none(gap, floor, verdict):
    mine = judged({**of_forms("delta_test", gap, gap), ("methods", MAIN, None, None): {}}, again={"delta_test": floor})
    assert mine["H2"].verdict == (verdict if gap == 0.5 or verdict == OPEN else NOT)


def test_h15_is_too_slow_whatever_two_retrainings_differ_by():
    changes = {("methods", OTHER, AGAIN, None): {"delta_test": 9.0}}
    slow = {OTHER: {PRINTED: 20, CORRECTED: 20}}
    assert both(judged(changes, passes=slow, e=LARGE)["H15"]) == (NOT, NOT)


def test_h15_names_the_records_of_doing_nothing_and_of_the_second_retrainings():
    of = {(place[1], place[2]): f"k{i} " for i, place in enumerate(ROWS)}
    wanted = {of[OTHER, method] + str(seed) for method in (NOTHING, AGAIN, *FORMS) for seed in SEEDS}
    assert set(judged()["H15"].records) == wanted | {f"time of {OTHER}", f"prices of {OTHER}"}


@pytest.mark.parametrize("floor", [0.3, 9.0, None])
def test_h15_of_a_net_with_one_seed_is_undetermined(floor):
    as_a_net = E.changed(settings=[MAIN], nets=[OTHER], n_train=400, nets_n_train=400)
    result = judged({("nets", OTHER, AGAIN, None): {"delta_test": floor}}, e=as_a_net, seeds=SEEDS[:1])["H15"]
    assert both(result) == (OPEN, OPEN)


@pytest.mark.parametrize(
    ("change", "verdict"), [({}, HOLDS), ({"nets_rounds": 2}, OPEN), ({"nets_n_train": 300}, OPEN)]
)
def test_h15_judges_no_net_that_was_hardly_trained(change, verdict):
    as_a_net = E.changed(settings=[MAIN], nets=[OTHER], n_train=400, nets_n_train=400).changed(**change)
    result = judged({("methods", OTHER, None, None): {}}, e=as_a_net)["H15"]
    assert both(result) == (verdict, verdict)


def test_a_verdict_names_the_data_set_where_it_is_not_the_papers():
    """Claims are about CIFAR-10; with digits or Fashion-MNIST in its place the reason says so."""
    of_cifar = judged()
    of_others = judged(e=E.changed(settings=["fashion_mnist/dirichlet-0.5/simple_cnn", OTHER]))
    assert not any("where the paper has" in result.reason for result in of_cifar.values())
    named = {
        id
        for id, result in of_others.items()
        if "on Fashion-MNIST, Dirichlet 0.5, where the paper has" in result.reason
    }
    assert named == set(of_cifar) - {"H6", "H12", "H14", "H15"}  # exact problems, and those of every setting


def test_carrying_over_is_judged_where_there_is_something_to_carry_it_to():
    """A profile grows by a setting at a time: with the main one alone H15 is not judged, and all others are."""
    alone = judged(e=E.changed(settings=[MAIN]))
    assert set(judged()) - set(alone) == {"H15"}
    assert {id: both(result) for id, result in alone.items() if id != "H12"} == {
        id: both(result) for id, result in judged().items() if id not in ("H12", "H15")
    }


def test_carrying_over_is_judged_where_the_claim_names_the_data_whichever_setting_comes_first():
    fashion, cifar, mnist = (f"{data}/dirichlet-0.5/simple_cnn" for data in ("fashion_mnist", "cifar10", "mnist"))
    assert claims._carried_to(E.changed(settings=[cifar, mnist, fashion])) == [mnist, fashion]
    assert claims._carried_to(E.changed(settings=[fashion, cifar, mnist])) == [fashion, mnist]
    assert claims._carried_to(E.changed(settings=["digits/iid/mlp", "digits/dirichlet-0.5/mlp"])) == [
        "digits/dirichlet-0.5/mlp"
    ]
