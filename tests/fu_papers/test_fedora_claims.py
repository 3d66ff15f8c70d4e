"""The rules of FedORA's claims on planted numbers: each verdict on both sides of its rule.

What a test plants takes the place of a block of runs; with the others every claim holds.
"""

import math
import re

import pandas as pd
import pytest

from fu_papers.controls import AGAIN
from fu_papers.fedora import claims as claims
from fu_papers.fedora.choices import ABLATIONS, STEPS
from fu_papers.fedora.grid import BASELINES, REFERENCES, Task
from fu_papers.lab.record import Record
from fu_papers.verdicts import NO_OTHER, claims_table
from fu_papers.verdicts import claims as rules
from tests.fedora_lab import experiment

TABLE, CIFAR = "adult/mlp", "cifar10/resnet18"
E = experiment(
    datasets=[TABLE, CIFAR], seeds=[0, 1], classes=[[1], [2, 5]], percents=[[50], [50, 50]], n_train=[0, 0],
    n_val=[100, 100], n_test=[0, 0], epochs=[5, 5], lr=[0.1, 0.1], batch_size=[32, 32],
    weights=[0.5, 1.0, 5.0, 10.0, 20.0], embedding_noise=[1.0, 0.1], few=[50, 1],
)  # fmt: skip
NOTHING, RETRAIN, SCALAR, VECTOR = "Original", "Retrain", "FedORA", "FedORA vector"
SAMPLES, LABELS = E.tasks(labels=False), E.tasks(labels=True)
HERE = Task(CIFAR, "classes-5-50")  # the setting that an exception is planted in
# Every test below is about these rules; whoever changes one has to change the code and the test.
USE = "test acc at most 1 point below Retrain's"
RULES = {
    "F1": (
        "95% intervals over seeds throughout; among methods that forgot comparably (accuracy on the removed data off "
        "Retrain's by at most half of what doing nothing is, or as much as a second retraining): |FedORA - Retrain| <= "
        "1 point, and above each of GA, ICO and CVFU that forgot, of which there must be one; for both duals in "
        "every setting"
    ),
    "F2": "as F1",
    "F3": (
        f"95% intervals over seeds: difference to Retrain <= 0, {USE}, where doing nothing's are not; for both "
        "duals in every setting; report the distance to Retrain too"
    ),
    "F4": (
        f"95% intervals over seeds: within 5 points of 50% and < 10%, {USE}, where doing nothing's are not; for both "
        "duals in every setting; with the backdoor in it as without: a model that diverges or is of no use then "
        "does not resist it (hyper-parameters are those tuned without one)"
    ),
    "F5": (
        "counted, in every setting, among methods that forgot comparably, by a model at most one point of test acc. "
        "below Retrain: at most half of Retrain's, and fewer than ICO and CVFU; where doing nothing is not within a "
        "point of Retrain's accuracy on what is forgotten and at most a point of test acc. below it"
    ),
    "F6": (
        "each effect has the printed direction (without asymmetric batches: more samples, test acc. within 1 point), "
        "95% intervals over seeds of the paired differences, where neither side diverged for any seed"
    ),
    "F7": (
        "95% intervals over seeds of paired differences: at most 1 point below 100%, asked only where 0% is more than "
        "1 point lower (else the sweep cannot tell), and neither side diverged for any seed"
    ),
    "F8": (
        "both fall: 95% interval of the seeds' Spearman correlations < -0.8, and so by an exact test of ranks at the "
        "same level (orders of the weights in every seed, their mean correlation -0.8), over weights at which runs did "
        "not diverge"
    ),
    "F9": (
        "as printed: recognised in at most 5% of trainings (exact binomial interval), attack within 5 points of 50%, "
        f"{USE}, 95% intervals over seeds, where doing nothing's are not"
    ),
    "F10": (
        f"95% intervals over seeds: unlearning acc below Retrain + 5 points, {USE}, at every noise level, where doing "
        "nothing's are not"
    ),
    "F11": "as F1",
    "F12": (
        "not parallel, with KL(p||U) (parallel: H = log C - KL) as with KL(U||p); undetermined where the two disagree: "
        "the formula is lost in the text"
    ),
    "F13": "never violated with steps that the theorem allows, eta <= 2 / (mu + L)",
}
HOLDS, PART, NOT, OPEN = "holds", "holds in part", "does not hold", "undetermined"
# An unlearning that meets every rule, and doing nothing that meets none.
FINE = {
    "test": 80.0, "test_retrain": 80.0, "delta_test": 0.0, "forget": 30.0, "delta_forget": 0.0, "mia": 0.5, "asr": 2.0,
    "images": 500, "retrain_images": 1000, "diverged": False, "reverse": False, "poisoned_diverged": False,
    "poisoned_test": 80.0, "poisoned_test_retrain": 80.0,
}  # fmt: skip
BY_METHOD = {
    NOTHING: {"delta_test": 9.0, "forget": 90.0, "delta_forget": 60.0, "mia": 0.9, "asr": 95.0, "images": 0},
    AGAIN: {"delta_forget": 2.0},
    **{method: {"test": 70.0, "delta_test": 10.0} for method in BASELINES},
    "ICO": {"test": 70.0, "delta_test": 10.0, "images": 501},
    "CVFU": {"test": 70.0, "delta_test": 10.0, "images": 600},
}


def record(metrics, name="r", **config):
    return Record("f", name, config, "", "0", metrics, [], None, {})


def frame(planted=None, where=None, *, tasks=SAMPLES, group="main", labels=None, seeds=(0, 1)):
    """All seeds of tasks: `planted` is {method: {column: value}}, `where` the same at HERE alone.

    A value that is a pair has one per seed, in turn; else the seeds agree. labels: {label: {column: value}} of FedORA
    instead, of one task.
    """
    rows = []
    choices = [(SCALAR, label, values) for label, values in (labels or {}).items()] or [
        (method, "", {**BY_METHOD.get(method, {}), **(planted or {}).get(method, {})})
        for method in (*REFERENCES, AGAIN, *BASELINES, SCALAR, VECTOR)
    ]
    for task in tasks:
        for method, label, values in choices:
            found = {**FINE, **values, **((where or {}).get(method, {}) if task == HERE else {})}
            for seed in seeds:
                of_seed = {k: v[seed % len(v)] if isinstance(v, tuple) else v for k, v in found.items()}
                place = task.cell(group, seed, method, label)
                rows.append({**place._asdict(), **of_seed, "record": " ".join(map(str, place))})
    return pd.DataFrame(rows)


def everywhere(planted=None, where=None):
    """The runs behind Tables IV and V."""
    return frame(planted, where, tasks=[*SAMPLES, *LABELS])


def verdict_on(claim, theory=None, **blocks):
    """The result of one claim, where `blocks` take the place of those of `holding`."""
    parts = {**holding(), **blocks}
    speeds = parts.pop("speeds")
    runs = pd.concat(parts.values(), ignore_index=True)
    return claims.judges(E, runs, speeds, {**checked(), **(theory or {})})[claim]()


def keys_of(runs, methods):
    return set(runs[runs.method.isin(methods)].record)


def test_the_rules_are_those_of_claims_csv():
    table = rules()
    assert table[table.paper == "fedora"].set_index("id").holds_if.to_dict() == RULES


# --- F1, F2, F11: accuracy -------------------------------------------------------------------------------------------

ACCURACY = {"F1": SAMPLES, "F2": LABELS, "F11": [E.main._replace(noise=0.2)]}  # claim -> the tasks it is about


def of_tasks(runs, tasks):
    wanted = {(task.dataset, task.request, task.condition) for task in tasks}
    return runs[[place in wanted for place in zip(runs.setting, runs.request, runs.condition, strict=True)]]


@pytest.mark.parametrize("claim", ACCURACY)
@pytest.mark.parametrize(
    ("scalar", "vector", "verdict"),
    [
        ({"delta_test": 1.0}, {"delta_test": 1.0}, HOLDS),
        ({"delta_test": 1.01}, {"delta_test": 1.0}, PART),
        ({"delta_test": 1.0}, {"delta_test": 1.01}, PART),
        ({"delta_test": 1.01}, {"delta_test": 1.01}, NOT),
        ({"test": 70.01}, {"test": 70.01}, HOLDS),
        ({"test": 70.0}, {"test": 70.01}, PART),  # as good as the best of the three is not better
        ({"test": 70.0}, {"test": 70.0}, NOT),
        ({"delta_forget": 30.0}, {"delta_forget": 30.0}, HOLDS),  # half of what doing nothing is off
        ({"delta_forget": 30.1}, {"delta_forget": 30.0}, PART),  # what is not forgotten costs no accuracy
    ],
)
def test_accuracy_is_within_a_point_of_retrains_and_above_the_baselines_with_both_duals(claim, scalar, vector, verdict):
    about = ACCURACY[claim]
    group, tasks = ("noisy", about) if claim == "F11" else ("main", [*SAMPLES, *LABELS])
    runs = frame({SCALAR: scalar, VECTOR: vector}, tasks=tasks, group=group)
    result = verdict_on(claim, **{group: runs})
    assert (result.id, result.verdict) == (claim, verdict)
    assert f"FedORA, scalar dual {'up to ' * (len(about) > 1)}{scalar.get('delta_test', 0.0):.1f} [" in result.spread
    assert set(result.records) == keys_of(of_tasks(runs, about), (*REFERENCES, AGAIN, *BASELINES, SCALAR, VECTOR))


@pytest.mark.parametrize(
    "exception", [{SCALAR: {"delta_test": 1.01}}, {VECTOR: {"test": 69.0}}, {"CVFU": {"test": 81.0}}]
)
def test_accuracy_is_about_every_setting(exception):
    result = verdict_on("F1", main=everywhere(where=exception))
    assert result.verdict == PART
    assert "in 2 of 3 settings" in result.ours


@pytest.mark.parametrize("rival", BASELINES)
def test_who_has_not_forgotten_is_no_rival_however_accurate(rival):
    better = {"test": 85.0, "delta_test": 5.0}
    assert verdict_on("F1", main=everywhere({rival: better})).verdict == NOT
    idle = verdict_on("F1", main=everywhere({rival: better | {"delta_forget": 30.1}}))
    assert idle.verdict == HOLDS
    assert f"{rival} 0" in idle.ours


MAYBE = {"delta_forget": (10.0, 45.0)}  # within the limit of 30 on average, by two seeds that differ


def test_whoever_may_not_have_forgotten_is_open_and_so_is_being_behind_a_rival_who_may_not():
    assert verdict_on("F1", main=everywhere(dict.fromkeys((SCALAR, VECTOR), MAYBE))).verdict == OPEN
    assert verdict_on("F1", main=everywhere({m: MAYBE | {"delta_test": 2.0} for m in (SCALAR, VECTOR)})).verdict == NOT
    behind = verdict_on("F1", main=everywhere({"GA": MAYBE | {"test": 85.0, "delta_test": 5.0}}))
    assert behind.verdict == OPEN
    assert "GA 0 (3 undetermined)" in behind.ours
    assert verdict_on("F1", main=everywhere({"GA": MAYBE})).verdict == HOLDS  # ahead of it, whether it has or not
    alone = verdict_on("F1", main=everywhere(dict.fromkeys(BASELINES, MAYBE)))
    assert alone.verdict == OPEN
    assert "no rival forgot comparably, as far as can be told" in alone.reason


def test_doing_nothing_cannot_be_accurate_unless_there_is_nothing_to_forget():
    """Two retrainings are as far apart as doing nothing is: whoever does nothing has forgotten comparably."""
    close = {"delta_test": 0.5, "test": 80.0}
    assert verdict_on("F1", main=everywhere({NOTHING: close})).verdict == HOLDS
    nothing_to_tell = {NOTHING: close | {"delta_forget": 2.0}}
    result = verdict_on("F1", main=everywhere(nothing_to_tell))
    assert result.verdict == NOT
    assert "doing nothing meets it, too" in result.reason


def test_what_diverged_for_some_seed_cannot_hold_and_for_all_does_not():
    for claim in ("F1", "F3", "F4"):
        once = verdict_on(claim, main=everywhere({m: {"diverged": (True, False)} for m in (SCALAR, VECTOR)}))
        assert once.verdict == OPEN
        always = verdict_on(claim, main=everywhere({m: {"diverged": True} for m in (SCALAR, VECTOR)}))
        assert always.verdict == NOT


# --- what the seeds carry --------------------------------------------------------------------------------------------

BY_SEEDS = ("F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F10", "F11")


def test_one_seed_decides_no_mean_and_two_that_differ_hardly_any():
    runs, speeds, theory = everything()
    one = {r.id: r for r in claims.verdicts(E, runs[runs.seed == 0], speeds, theory)}
    assert {id for id, result in one.items() if result.verdict == OPEN} == set(BY_SEEDS)
    assert all("several seeds would tell (1 now)" in one[id].reason for id in BY_SEEDS)
    wide = verdict_on("F2", main=everywhere({SCALAR: {"test": (74.0, 90.0)}}))  # 12 points above the three, on average
    assert wide.verdict == OPEN
    assert re.search(r"about \d+ seeds would tell \(2 now\)", wide.reason)


def test_a_paired_difference_holds_however_far_apart_the_seeds_are():
    shifted = {m: {"test": (60.0, 80.0)} for m in BASELINES}
    near = {m: {"test": (62.0, 82.0)} for m in (SCALAR, VECTOR)}
    assert verdict_on("F1", main=everywhere(shifted | near)).verdict == HOLDS


def test_one_setting_of_many_is_not_in_part():
    """Both duals hold on one of three settings, and one of them in none: 1 of 6."""
    runs = everywhere({SCALAR: {"delta_test": 2.0}, VECTOR: {"delta_test": 2.0}}, where={SCALAR: {"delta_test": 0.0}})
    result = verdict_on("F1", main=runs)
    assert result.verdict == NOT
    assert "1 of 6 hold" in result.reason


def test_no_claim_has_a_corrected_form():
    """Both duals are printed."""
    assert {result.corrected for result in claims.verdicts(E, *everything())} == {NO_OTHER}


# --- F3, F4: forgetting ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scalar", "vector", "verdict"),
    [(30.0, 30.0, HOLDS), (0.0, 0.0, HOLDS), (30.01, 30.0, PART), (30.0, 30.01, PART), (30.01, 30.01, NOT)],
)
def test_f3_asks_for_at_most_retrains_accuracy_on_the_removed_data(scalar, vector, verdict):
    runs = everywhere({SCALAR: {"forget": scalar, "delta_forget": 7.0}, VECTOR: {"forget": vector}})
    result = verdict_on("F3", main=runs)
    assert result.verdict == verdict
    assert "(off by 7.0)" in result.ours
    assert "scalar dual up to 7.0 [7.0, 7.0] (2 seeds; " in result.spread
    assert set(result.records) == keys_of(runs, (*REFERENCES, AGAIN, SCALAR, VECTOR))
    elsewhere = everywhere(where={SCALAR: {"forget": 30.01}})
    assert verdict_on("F3", main=elsewhere).verdict == PART
    assert "FedORA, scalar dual in 4 of 5 settings" in verdict_on("F3", main=elsewhere).ours


@pytest.mark.parametrize("claim", ["F3", "F4"])
def test_forgetting_counts_where_the_model_is_of_use(claim):
    for test, verdict in ((79.0, HOLDS), (78.99, NOT)):
        useless = {m: {"test": test, "forget": 0.0} for m in (SCALAR, VECTOR)}
        assert verdict_on(claim, main=everywhere(useless)).verdict == verdict


@pytest.mark.parametrize(("nothing", "verdict"), [(30.01, HOLDS), (30.0, NOT), ((29.0, 32.0), OPEN)])
def test_f3_does_not_hold_if_doing_nothing_is_no_higher_than_retrain(nothing, verdict):
    assert verdict_on("F3", main=everywhere({NOTHING: {"forget": nothing}})).verdict == verdict


@pytest.mark.parametrize(
    ("scalar", "vector", "verdict"),
    [
        ({"mia": 0.549, "asr": 9.99}, {"mia": 0.451, "asr": 0.0}, HOLDS),
        ({"asr": math.nan}, {"asr": math.nan}, HOLDS),  # no poisoned twin
        ({"mia": 0.551}, {}, PART),
        ({}, {"mia": 0.449}, PART),
        ({"asr": 10.0}, {}, PART),
        ({"mia": 0.551, "asr": math.nan}, {"asr": 10.0}, NOT),
    ],
)
def test_f4_asks_for_chance_and_no_backdoor_with_both_duals(scalar, vector, verdict):
    runs = everywhere({SCALAR: scalar, VECTOR: vector})
    result = verdict_on("F4", main=runs)
    assert result.verdict == verdict
    assert f"scalar dual up to {abs(scalar.get('mia', 0.5) - 0.5):.3f} [" in result.spread
    assert set(result.records) == keys_of(runs, (*REFERENCES, SCALAR, VECTOR))
    elsewhere = everywhere(where={SCALAR: scalar, VECTOR: vector})
    assert verdict_on("F4", main=elsewhere).verdict == (HOLDS if verdict == HOLDS else PART)


def test_f4_does_not_waive_the_backdoor_where_the_model_with_it_is_lost():
    """At workstation all poisoned twins on Adult diverged, and a part held by its membership attack alone."""
    gone = {"poisoned_diverged": True, "asr": math.nan}
    always = verdict_on("F4", main=everywhere({SCALAR: gone, VECTOR: gone}))
    assert always.verdict == NOT
    assert "diverged)" in always.ours
    useless = {"poisoned_test": 78.9}
    assert verdict_on("F4", main=everywhere({SCALAR: useless, VECTOR: useless})).verdict == NOT
    once = {"poisoned_diverged": (True, False)}
    result = verdict_on("F4", main=everywhere({SCALAR: once, VECTOR: once}))
    assert result.verdict == OPEN
    assert "diverged with a backdoor for 1 of 2 seeds" in result.reason


def test_f4_counts_ruined_models_and_leaves_them_out_of_the_means_that_it_quotes():
    """With them FedORA's backdoor seemed to succeed in 12.7 %, in models of use it did in 39.8 %."""
    half = {"poisoned_test": (80.0, 30.0), "asr": (60.0, 0.0)}
    told = verdict_on("F4", main=everywhere({SCALAR: half})).ours
    assert re.search(r"FedORA, scalar dual 0\.\d+ and 60\.0 % \(of (\d+) with a backdoor (\d+) ruined\)", told)


@pytest.mark.parametrize(
    ("nothing", "verdict"),
    [({"mia": 0.549, "asr": 9.0}, NOT), ({"mia": 0.551, "asr": 9.0}, HOLDS), ({"mia": 0.549, "asr": 10.0}, HOLDS)],
)
def test_f4_does_not_hold_if_doing_nothing_resists_both_attacks(nothing, verdict):
    assert verdict_on("F4", main=everywhere({NOTHING: nothing})).verdict == verdict


def test_who_has_no_rival_that_forgot_has_beaten_nobody():
    """At workstation F1's one part that held was above nobody, and below all rivals in accuracy."""
    lazy = {method: {"delta_forget": 50.0} for method in BASELINES}
    result = verdict_on("F1", main=everywhere(lazy))
    assert result.verdict == OPEN
    assert "no rival forgot comparably" in result.reason
    assert verdict_on("F1", main=everywhere(lazy | {"GA": {"delta_forget": 0.0, "test": 70.0}})).verdict == HOLDS


@pytest.mark.parametrize(("claim", "apart"), [("F1", "3.0"), ("F3", "2.0")])
def test_a_second_retraining_tells_how_far_two_are_apart_and_meets_no_rule(claim, apart):
    """Over all seeds it is the first again: that its mean is no higher was told as if it could have been."""
    ours = verdict_on(claim, main=everywhere({AGAIN: {"delta_test": 3.0}})).ours
    assert f"two retrainings are {apart} apart" in ours
    assert "meets" not in ours


@pytest.mark.parametrize("claim", ["F1", "F2", "F3", "F11"])
def test_a_reading_that_trials_turned_into_the_other_divergence_says_where(claim):
    assert "reverse" not in verdict_on(claim).ours
    chosen = {VECTOR: {"reverse": (False, True)}}
    blocks = {
        "main": everywhere(chosen),
        "noisy": frame(chosen, tasks=[E.main._replace(noise=E.party_noise)], group="noisy"),
    }
    ours = verdict_on(claim, **blocks).ours
    assert re.search(r"with the reverse divergence for its score: FedORA, element-wise dual on ", ours)
    assert ours.count("Adult") <= 1


def test_f5_counts_samples_over_seeds_as_it_does_accuracies():
    """A count that one seed has at 100 and another at 999 is no exact number: its interval decides."""
    assert verdict_on("F5", main=everywhere({SCALAR: {"images": (100, 499)}})).verdict == OPEN
    assert verdict_on("F5", main=everywhere({SCALAR: {"images": (400, 410)}})).verdict == HOLDS


def test_what_diverged_when_it_was_timed_has_no_time():
    speeds = {task: record({"seconds": {RETRAIN: 1.0}}, task.dataset) for task in timed()}
    assert "– in time, on 0" in verdict_on("F5", speeds=speeds).ours


# --- F5: samples passed ----------------------------------------------------------------------------------------------


def timed():
    """By the clock FedORA is the slowest of all, which decides nothing."""
    seconds = dict.fromkeys((RETRAIN, "GA", "ICO", "CVFU"), 1.0) | {SCALAR: 9.0}
    return {Task(dataset, "classes-2-50"): record({"seconds": seconds}, dataset) for dataset in (TABLE, CIFAR)}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, HOLDS),
        ({SCALAR: {"images": 501}, "ICO": {"images": 502}}, PART),  # more than half
        ({"ICO": {"images": 500}}, PART),
        ({"CVFU": {"images": 490}}, PART),
        ({SCALAR: {"images": 700}}, NOT),
        ({"GA": {"images": 3000}}, HOLDS),  # the claim leaves the first place open
        ({"ICO": {"images": 1, "delta_forget": 31.0}}, HOLDS),  # forgetting nothing is fast
        ({SCALAR: {"images": 1, "delta_forget": 31.0}}, NOT),
        ({SCALAR: {"images": 1, "test": 70.0}}, NOT),  # what is of no use is cheap
        ({"CVFU": MAYBE}, HOLDS),  # ahead of it, whether it has forgotten or not
    ],
)
def test_f5_asks_for_half_of_retrains_samples_and_for_fewer_than_ico_and_cvfu(change, verdict):
    result = verdict_on("F5", main=everywhere(change))
    assert result.verdict == verdict
    share = change.get(SCALAR, FINE)["images"] / 10
    assert f"% of Retrain's samples: FedORA, scalar dual up to {share:.1f} [{share:.1f}, " in result.spread
    assert {TABLE, CIFAR} < set(result.records)
    assert "0.1x to 0.1x in time" in result.ours
    assert verdict_on("F5", main=everywhere(where=change)).verdict == (HOLDS if verdict == HOLDS else PART)


def test_f5_compares_with_none_of_the_two_where_neither_has_forgotten():
    lazy = {m: {"images": 1, "delta_forget": 31.0} for m in ("ICO", "CVFU")}
    assert verdict_on("F5", main=everywhere(lazy)).verdict == HOLDS


@pytest.mark.parametrize(
    "change", [{SCALAR: MAYBE}, {"CVFU": {"images": 490, **MAYBE}}, {"ICO": {"images": 490, **MAYBE}}]
)
def test_f5_is_open_where_it_is_open_who_forgot(change):
    assert verdict_on("F5", main=everywhere(change)).verdict == OPEN


@pytest.mark.parametrize(
    ("nothing", "verdict"),
    [({"delta_forget": 1.0}, NOT), ({"delta_forget": 1.01}, HOLDS), ({"delta_forget": 1.0, "test": 70.0}, HOLDS)],
)
def test_f5_does_not_hold_where_doing_nothing_is_as_good_and_cheaper(nothing, verdict):
    assert verdict_on("F5", main=everywhere({NOTHING: nothing})).verdict == verdict


# --- F6 to F8: ablations and sweeps ----------------------------------------------------------------------------------

PARTS = {
    "FedORA": {},
    "w/o UL": {"forget": 30.01},
    "w/o AB": {"images": 501, "test": 81.0},
    "w/o AS": {"test": 79.99, "forget": 30.01},
    "with AS": {},
}


def parts(seeds=(0, 1), **change):
    named = {label if label == "with AS" else f"w/o {label}": values for label, values in change.items()}
    labels = {label: {**values, **named.get(label, {})} for label, values in PARTS.items()}
    return frame(tasks=[E.main], group="ablation", labels=labels, seeds=seeds)


def losing(runs, label, *seeds):
    """The same, where a label's runs diverged for these seeds: they have no numbers."""
    runs = runs.copy()
    lost = (runs.label == label) & runs.seed.isin(seeds)
    assert lost.sum() == len(seeds)
    runs.loc[lost, ["test", "forget", "images", "mia", "delta_test", "delta_forget"]] = math.nan
    runs.loc[lost, "diverged"] = True
    return runs


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, HOLDS),
        ({"AB": {"test": 79.0}}, HOLDS),
        ({"UL": {"forget": 30.0}}, PART),
        ({"AB": {"images": 500}}, PART),
        ({"AB": {"test": 81.01}}, PART),
        ({"AB": {"test": 78.99}}, PART),
        ({"AS": {"test": 80.0}}, PART),
        ({"AS": {"forget": 30.0}}, PART),
        ({"with AS": {"test": 79.99}}, PART),  # whatever the whole has
        ({"with AS": {"forget": 30.01}}, PART),
        ({"UL": {"forget": 29.0}, "AB": {"test": 90.0}, "AS": {"test": 81.0}}, NOT),
    ],
)
def test_f6_asks_for_the_printed_effect_of_every_part(change, verdict):
    runs = parts(**change)
    result = verdict_on("F6", ablation=runs)
    assert result.verdict == verdict
    assert set(result.records) == set(runs.record)
    assert list(PARTS) == [*ABLATIONS, *STEPS]


@pytest.mark.parametrize("label", PARTS)
def test_f6_has_no_effect_of_a_part_by_the_seeds_that_a_diverged_run_has_left(label):
    runs = parts(seeds=(0, 1, 2))
    affected = {"FedORA": 2, "with AS": 1}.get(label, 1)  # how many of the three parts are compared with it
    once = verdict_on("F6", ablation=losing(runs, label, 2))
    assert once.verdict == OPEN
    assert "diverged for 1 of 3 seeds" in once.reason
    assert f"{affected} of 3 are undetermined" in once.reason
    assert re.search(rf"(^|; ){label}: test [^;]*, diverged \(1 of 3\)", once.ours)
    assert once.ours.count("diverged") == 1
    always = verdict_on("F6", ablation=losing(runs, label, 0, 1, 2))
    assert always.verdict == (NOT if affected == 2 else PART)
    assert f"{affected} of 3 do not hold" in always.reason
    assert f"{label}: diverged (3 of 3)" in always.ours
    assert ("whole: diverged (3 of 3)" in always.spread) == (label == "FedORA")


def test_f6_fails_by_the_seeds_that_are_left_as_before():
    wrong = parts(seeds=(0, 1, 2), UL={"forget": 20.0})
    assert "1 of 3 do not hold (w/o UL)" in verdict_on("F6", ablation=losing(wrong, "w/o UL", 2)).reason


@pytest.mark.parametrize(
    ("none", "five", "verdict"),
    [
        (10.0, 79.0, HOLDS),
        (10.0, 81.0, HOLDS),
        (10.0, 78.99, NOT),
        (10.0, 81.01, HOLDS),  # more than enough is enough
        (78.0, 79.0, OPEN),  # nothing falls without retained data
        (77.99, 79.0, HOLDS),
    ],
)
def test_f7_asks_that_5_percent_are_at_most_a_point_below_100_where_it_falls_without_any(none, five, verdict):
    labels = {"0": {"test": none}, "0.05": {"test": five}, "1": {}}
    runs = frame(tasks=[E.main], group="ratios", labels=labels)
    result = verdict_on("F7", ratios=runs)
    assert result.verdict == verdict
    assert set(result.records) == set(runs.record)
    assert verdict_on("F7", ratios=runs[runs.label != "0"]).verdict == "not run"


RATIOS = {"0": {"test": 10.0}, "0.05": {"test": 79.5}, "1": {}}


@pytest.mark.parametrize("label", RATIOS)
def test_f7_does_not_hold_by_the_seeds_that_a_diverged_run_has_left(label):
    runs = frame(tasks=[E.main], group="ratios", labels=RATIOS, seeds=(0, 1, 2))
    once = verdict_on("F7", ratios=losing(runs, label, 2))
    assert once.verdict == OPEN
    assert "diverged for 1 of 3 seeds" in once.reason
    assert once.ours.count("diverged (1 of 3)") == 1
    always = verdict_on("F7", ratios=losing(runs, label, 0, 1, 2))
    assert always.verdict == (OPEN if label == "0" else NOT)
    assert ("without retained data every run diverged" in always.reason) == (label == "0")
    assert always.ours.count("diverged (3 of 3)") == 1
    assert "nan" not in always.ours + always.spread


FALLING = (5.0, 4.0, 3.0, 2.0, 1.0)
ALMOST = (4.0, 5.0, 3.0, 2.0, 1.0)  # Spearman -0.9
TOO_FEW = (4.0, 5.0, 3.0, 1.0, 2.0)  # Spearman -0.8, which is not below
CONSTANT = (1.0,) * 5


def swept(forget, test, seeds=(0, 1, 2), weights=E.weights):
    """Fig. 8a: the same accuracies for every seed."""
    labels = {f"{w:g}": {"forget": f, "test": t} for w, f, t in zip(weights, forget, test, strict=True)}
    return frame(tasks=[E.main], group="weights", labels=labels, seeds=seeds)


@pytest.mark.parametrize(
    ("forget", "test", "seeds", "verdict"),
    [
        (FALLING, FALLING, 3, HOLDS),
        (FALLING, FALLING, 2, OPEN),  # as probable as 3 %
        (ALMOST, FALLING, 3, OPEN),
        (ALMOST, FALLING, 20, HOLDS),
        (TOO_FEW, FALLING, 3, OPEN),
        (FALLING, CONSTANT, 3, PART),
        (FALLING[::-1], FALLING, 3, PART),
        (CONSTANT, FALLING[::-1], 3, NOT),
    ],
)
def test_f8_asks_that_both_accuracies_fall_with_the_weight(forget, test, seeds, verdict):
    result = verdict_on("F8", weights=swept(forget, test, range(seeds)))
    assert result.verdict == verdict


def test_f8_is_open_where_four_weights_fall_in_perfect_order_in_three_seeds():
    """Their t interval is -1 without width, and so it is by chance in 1 of 20 such sweeps with a mean of -0.8."""
    four = E.changed(weights=E.weights[:4])
    runs = swept(FALLING[:4], FALLING[:4], weights=four.weights)
    result = claims.judges(four, runs, {}, {})["F8"]()
    assert result.verdict == OPEN
    assert "unlearning acc. -1.00 [-1.00, -1.00] (3 seeds), as low by chance at a mean of -0.8: 0.051" in result.spread
    assert re.search(r"about \d+ seeds would tell \(3 now\)", result.reason)
    longer = swept(FALLING[:4], FALLING[:4], range(4), four.weights)
    assert claims.judges(four, longer, {}, {})["F8"]().verdict == HOLDS


def test_f8_leaves_out_what_diverged():
    rising = (5.0, 4.0, 3.0, 90.0, 95.0)
    planted = {f"{w:g}": {"forget": v, "test": v, "diverged": v > 50} for w, v in zip(E.weights, rising, strict=True)}
    sweep = {"tasks": [E.main], "group": "weights", "labels": planted, "seeds": range(10)}
    result = verdict_on("F8", weights=frame(**sweep))
    assert result.verdict == HOLDS
    assert "5.0 -> 3.0" in result.ours
    assert "20 of 50 runs diverged" in result.ours
    for values in planted.values():
        values["diverged"] = values["forget"] != 5.0
    assert verdict_on("F8", weights=frame(**sweep)).verdict == OPEN


# --- F9, F10: one sample, noise --------------------------------------------------------------------------------------

ONE = E.main._replace(request="samples-1")


MANY = 72  # seeds: never in so many says that it is in at most 5 % of trainings


def one_sample(without, little, retrained=50.0, nothing=(100.0, 100.0), seeds=MANY):
    """Table VIII: (unlearning accuracy of the seeds, in turn, MIA) without and with 1 % of the retained data."""
    found = {"0": without, "0.01": little, RETRAIN: ((retrained, retrained), 0.9), NOTHING: (nothing, 0.5)}
    labels = {label: {"forget": forgets, "mia": mia} for label, (forgets, mia) in found.items()}
    runs = frame(tasks=[ONE], group="small", labels=labels, seeds=range(seeds))
    for method in REFERENCES:
        runs.loc[runs.label == method, ["method", "label"]] = method, ""
    return runs


@pytest.mark.parametrize(
    ("without", "little", "seeds", "verdict"),
    [
        (((0.0, 0.0), 0.549), ((0.0, 0.0), 0.451), MANY, HOLDS),
        (((0.0, 0.0), 0.5), ((0.0, 0.0), 0.5), MANY - 1, OPEN),
        (((0.0, 100.0), 0.5), ((0.0, 0.0), 0.5), 2, OPEN),
        (((0.0, 100.0), 0.5), ((0.0, 0.0), 0.5), MANY, PART),
        (((0.0,) * (MANY - 1) + (100.0,), 0.5), ((0.0, 0.0), 0.5), MANY, OPEN),  # once in 72 may be in 7 %
        (((100.0, 100.0), 0.5), ((0.0, 0.0), 0.5), MANY, PART),
        (((0.0, 0.0), 0.5), ((0.0, 0.0), 0.551), MANY, PART),
        (((0.0, 0.0), 0.449), ((100.0, 100.0), 0.5), 2, NOT),
    ],
)
def test_f9_asks_that_the_sample_is_hardly_ever_recognised_and_the_attack_at_chance(without, little, seeds, verdict):
    result = verdict_on("F9", small=one_sample(without, little, seeds=seeds))
    assert result.verdict == verdict
    assert result.ours.endswith("Retrain 50, 0.90, 80.0")  # what was never seen can still be recognised
    assert len(result.records) == 4 * seeds


def test_f9_is_open_where_the_sample_was_wrong_in_all_of_three_trainings():
    """It may be recognised in 71 % of trainings."""
    result = verdict_on("F9", small=one_sample(((0.0, 0.0), 0.5), ((0.0, 0.0), 0.5), seeds=3))
    assert result.verdict == OPEN
    assert f"about {MANY} seeds would tell (3 now)" in result.reason
    assert result.spread.startswith("ratio 0 %: recognised in 0 of 3 [0 %, 71 %], MIA-ASR 0.50 [0.50, 0.50] (3 seeds)")


def test_f9_counts_the_runs_that_diverged():
    sample = losing(one_sample(((0.0, 0.0), 0.5), ((0.0, 0.0), 0.5), seeds=MANY + 1), "0.01", MANY)
    result = verdict_on("F9", small=sample)
    assert result.verdict == OPEN
    assert result.spread.endswith(f"diverged (1 of {MANY + 1})")


def test_f9_does_not_hold_if_the_sample_was_wrong_before():
    sample = one_sample(((0.0, 0.0), 0.5), ((0.0, 0.0), 0.5), nothing=(0.0, 0.0))
    assert verdict_on("F9", small=sample).verdict == NOT


def test_f9_and_f10_ask_for_a_model_of_use():
    sample = one_sample(((0.0, 0.0), 0.5), ((0.0, 0.0), 0.5))
    sample.loc[sample.method == SCALAR, "test"] = 78.9
    assert verdict_on("F9", small=sample).verdict == NOT
    noisy = private((90, 30, 30), (90, 30, 30))
    noisy.loc[noisy.method == SCALAR, "test"] = 78.9
    assert verdict_on("F10", private=noisy).verdict == NOT


def private(*levels):
    """Table IX: (doing nothing, Retrain, FedORA) at each noise level, unlearning accuracy."""
    parts = []
    for std, (nothing, retrained, ours) in zip(E.embedding_noise, levels, strict=True):
        planted = {NOTHING: {"forget": nothing}, RETRAIN: {"forget": retrained}, SCALAR: {"forget": ours}}
        parts.append(frame(planted, tasks=[E.main._replace(dp_std=std)], group="private"))
    clipped = E.main._replace(dp_std=0.1, dp_clip=1.0)
    parts.append(frame({SCALAR: {"forget": 99.0}}, tasks=[clipped], group="private"))  # not in the paper's table
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ([(90, 30, 34.99), (90, 40, 44.99)], HOLDS),
        ([(90, 30, 35.0), (90, 40, 40)], PART),
        ([(90, 30, 35.0), (90, 40, 45.0)], NOT),
        ([(34.99, 30, 30), (44.99, 40, 40)], NOT),  # doing nothing is below, too
        ([(35.0, 30, 30), (44.99, 40, 40)], PART),  # ... at one level
        ([(90, 30, (30, 37)), (90, 40, 40)], OPEN),
    ],
)
def test_f10_asks_for_less_than_retrains_plus_5_at_every_noise_level(levels, verdict):
    runs = private(*levels)
    result = verdict_on("F10", private=runs)
    assert result.verdict == verdict
    assert set(result.records) == keys_of(runs[~runs.condition.str.contains("clipped")], (*REFERENCES, SCALAR))


# --- F12, F13: theory ------------------------------------------------------------------------------------------------


def forces(said, other):
    """The cosines with the divergence as the paper's sentence is usually read, and the other way round."""
    return [record({"cosine": {"-KL(p||U)": said, "-KL(U||p)": other}}, "force")]


@pytest.mark.parametrize(
    ("said", "other", "verdict"),
    [(1.0, 1.0, NOT), (1.0, 0.1, OPEN), (1 - 9e-7, 0.1, OPEN), (0.1, 1.0, OPEN), (1 - 2e-6, 0.1, HOLDS)],
)
def test_f12_is_decided_only_where_both_readings_of_the_lost_formula_agree(said, other, verdict):
    result = verdict_on("F12", {"one_force": forces(said, other)})
    assert result.verdict == verdict
    assert result.records == ["force"]


def bounded(*violations, whole=0):
    """One setting per count of steps above the bound, and one without batches, `whole`. Single seeds do not count."""
    found = []
    for name, batch, count in [*((f"t{i}", 8, count) for i, count in enumerate(violations)), ("whole", 0, whole)]:
        start = {"bounds": {"printed": [4.0, 2.0]}, "rms": [1.0, 1.0]}
        starts = {k: start | {"violated": {"printed": {"rms": v, "runs": 7}}} for k, v in (("a", count), ("b", 0))}
        limits = {"without": {"printed": 1.0}, "limits": {"printed": 2.0}}
        found.append(record({"starts": starts, "checked": {"rms": 50}, **limits}, name, batch=batch))
    return found


@pytest.mark.parametrize(("violations", "verdict"), [((0, 0), HOLDS), ((0, 1), NOT), ((3, 0), NOT)])
def test_f13_asks_that_no_step_is_above_the_bound(violations, verdict):
    result = verdict_on("F13", {"theorem_1": bounded(*violations)})
    assert result.verdict == verdict
    assert result.ours.startswith(f"above the bound at {sum(violations)} of 200 steps; the bound is 2.0 to 2 times")
    assert result.records == ["t0", "t1"]


def test_f13_leaves_out_the_setting_without_batches_whose_step_the_theorem_does_not_allow():
    assert verdict_on("F13", {"theorem_1": bounded(0, whole=9)}).verdict == HOLDS


# --- all of them -----------------------------------------------------------------------------------------------------


def holding():
    """Blocks on which every claim holds, and doing nothing meets no rule."""
    return {
        "main": everywhere(),
        "noisy": frame(tasks=[E.main._replace(noise=E.party_noise)], group="noisy"),
        "ablation": parts(),
        "ratios": frame(tasks=[E.main], group="ratios", labels={"0": {"test": 10.0}, "0.05": {}, "1": {}}),
        "weights": swept(FALLING, FALLING),
        "small": one_sample(((0.0, 0.0), 0.5), ((0.0, 0.0), 0.5)),
        "private": private((90, 30, 30), (90, 30, 30)),
        "speeds": timed(),
    }


def checked():
    return {"one_force": forces(0.5, 0.1), "theorem_1": bounded(0)}


def everything():
    blocks = holding()
    speeds = blocks.pop("speeds")
    return pd.concat(blocks.values(), ignore_index=True), speeds, checked()


def test_there_is_one_verdict_per_claim_in_the_papers_order():
    found = claims.verdicts(E, *everything())
    assert [result.id for result in found] == list(RULES) == [f"F{i}" for i in range(1, 14)]
    assert {result.id: result.verdict for result in found} == dict.fromkeys(RULES, HOLDS)
    assert claims_table(found).paper.unique().tolist() == ["fedora"]
    for result in found:
        assert result.records
        assert result.reason
        assert len(set(result.records)) == len(result.records)


@pytest.mark.parametrize(
    ("task", "lowered"),
    [(LABELS[0], {"F2"}), (SAMPLES[0], {"F1"}), (E.main._replace(noise=0.2), {"F11"})],
)
def test_sample_label_and_noisy_accuracy_are_claims_of_their_own(task, lowered):
    runs, speeds, theory = everything()
    mine = of_tasks(runs[runs.group.isin(["main", "noisy"]) & (runs.method == SCALAR)], [task]).index
    runs.loc[mine, "delta_test"] += 2
    found = {result.id for result in claims.verdicts(E, runs, speeds, theory) if result.verdict != HOLDS}
    assert found == lowered


# --- controls in the place of FedORA ---

FORGETS = ("F1", "F2", "F3", "F4", "F9", "F10", "F11")
OF_NO_USE = {"test": 10.0, "delta_test": 70.0, "poisoned_test": 10.0, "mia": 0.5, "asr": 0.0}


def in_the_place_of_fedora(values, methods=(SCALAR, VECTOR)):
    """Every verdict, where both duals are another model. Retraining does not recognise the one sample, either."""
    runs, speeds, theory = everything()
    without = one_sample(((0.0, 0.0), 0.5), ((0.0, 0.0), 0.5), retrained=0.0).assign(mia=0.5)
    runs = pd.concat([runs[runs.group != "small"], without], ignore_index=True)
    runs.loc[runs.method.isin(methods), list(values)] = list(values.values())
    return {result.id: result.verdict for result in claims.verdicts(E, runs, speeds, theory)}


@pytest.mark.parametrize("forget", [0.0, 10.0, 100.0])  # of a class: none of it, or all
@pytest.mark.parametrize("near", [0.0, 60.0])  # to Retrain on what was removed, by chance or not
def test_a_useless_model_forgets_nothing(forget, near):
    """Destroyed, or with a constant output: whatever it seems to have forgotten."""
    found = in_the_place_of_fedora({**OF_NO_USE, "forget": forget, "delta_forget": near})
    assert {id: found[id] for id in FORGETS} == dict.fromkeys(FORGETS, NOT)


def test_a_copy_of_original_forgets_nothing():
    found = in_the_place_of_fedora({**FINE, **BY_METHOD[NOTHING], "images": 1})
    assert {id: found[id] for id in FORGETS} == dict.fromkeys(FORGETS, NOT)


def test_a_copy_of_original_forgets_nothing_where_that_is_as_near_to_retrain_as_is_asked():
    near = {**FINE, **BY_METHOD[AGAIN]}
    found = in_the_place_of_fedora(near, (NOTHING, SCALAR, VECTOR))
    one = in_the_place_of_fedora({**near, "forget": 0.0}, (NOTHING, SCALAR, VECTOR))["F9"]
    assert {id: found[id] for id in FORGETS} | {"F9": one} == dict.fromkeys(FORGETS, NOT)


def test_a_second_retraining_in_the_place_of_fedora_forgets():
    again = {**FINE, **BY_METHOD[AGAIN]}
    found = in_the_place_of_fedora(again) | {"F9": in_the_place_of_fedora({**again, "forget": 0.0})["F9"]}
    assert {id: found[id] for id in FORGETS} == dict.fromkeys(FORGETS, HOLDS)


def test_another_noise_level_is_asked_for_where_the_experiment_names_one():
    runs, speeds, theory = everything()
    other = E.changed(party_noise=0.4)
    runs["condition"] = runs.condition.replace("party noise 0.2", "party noise 0.4")
    assert {r.verdict for r in claims.verdicts(other, runs, speeds, theory)} == {HOLDS}
