"""What few seeds say about a limit, and claims that consist of parts."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp

from fu_core.errors import ConfigError
from fu_papers import over_seeds
from fu_papers.over_seeds import FAILS, HOLDS, OPEN, Part, exact, judged, unknown
from fu_papers.verdicts import NO_OTHER

VALUES = [0.2, 0.5, 0.6, 0.9]


def test_the_interval_is_the_t_interval():
    expected = ttest_1samp(VALUES, 0).confidence_interval(0.95)
    assert over_seeds.interval(VALUES) == pytest.approx((expected.low, expected.high))
    assert over_seeds.interval([0.3]) == (-np.inf, np.inf)


def test_the_interval_covers_what_it_says():
    drawn = np.random.default_rng(0).normal(1.0, 2.0, size=(2000, 3))
    ends = np.array([over_seeds.interval(row) for row in drawn])
    assert ((ends[:, 0] <= 1) & (ends[:, 1] >= 1)).mean() == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(
    ("side", "limit", "verdict"),
    [
        ("at_most", 1.02, HOLDS),  # the interval of VALUES: 0.091 to 1.009
        ("at_most", 1.00, OPEN),
        ("at_most", 0.10, OPEN),
        ("at_most", 0.08, FAILS),
        ("at_least", 0.08, HOLDS),
        ("at_least", 0.10, OPEN),
        ("at_least", 1.02, FAILS),
        ("within", 1.02, HOLDS),
        ("within", 1.00, OPEN),
        ("within", 0.08, FAILS),
    ],
)
def test_a_limit_is_kept_if_the_whole_interval_keeps_it(side, limit, verdict):
    assert getattr(over_seeds, side)(VALUES, limit).verdict == verdict


@pytest.mark.parametrize(
    ("side", "verdict"),
    [("at_most", HOLDS), ("at_least", HOLDS), ("below", FAILS), ("above", FAILS), ("within", HOLDS)],
)
def test_what_touches_the_limit_keeps_it_and_is_not_beyond_it(side, verdict):
    assert getattr(over_seeds, side)([0.1 + 0.2, 0.1 + 0.2], 0.3).verdict == verdict


def test_an_open_part_says_how_many_seeds_would_tell():
    part = over_seeds.at_most(VALUES, 0.8)
    grown = np.tile(VALUES, int(part.needed))[: int(part.needed)]  # about the same mean and spread
    assert part.verdict == OPEN
    assert part.now == 4
    assert over_seeds.at_most(grown, 0.85).verdict == HOLDS
    assert over_seeds.at_most(VALUES, 0.55 + 1e-6).needed == np.inf
    assert over_seeds.at_most([0.1], 5) == Part(OPEN, now=1, tells="several seeds would tell (1 now)")
    assert over_seeds.at_most([], 5) == Part(OPEN, now=0, tells="several seeds would tell (0 now)")


@pytest.mark.parametrize("values", [[0.1, np.nan, 0.3], [0.1, np.inf, 0.3], [np.nan]])
def test_no_number_of_seeds_tells_what_is_no_number(values):
    part = over_seeds.at_most(values, 0.5)
    assert (part.verdict, part.needed) == (OPEN, 0)
    assert "seed" in part.tells
    assert over_seeds.told([]) == "none (0 seeds)"
    assert over_seeds.told([1.0, 0.9, 1.0], 2) == "0.97 [0.82, 1.11] (3 seeds)"
    assert over_seeds.told([1.0, 0.9, 1.0], 2, (-1, 1)) == "0.97 [0.82, 1.00] (3 seeds)"


def test_of_several_places_the_one_whose_interval_ends_highest_is_told():
    places = {"here": [1.0, 1.4], "there": [2.0, 2.0], "nowhere": []}
    assert over_seeds.farthest(places) == "up to 1.2 [-1.3, 3.7] (2 seeds; here)"
    assert over_seeds.farthest(places, possible=(0, 3)) == "up to 1.2 [0.0, 3.0] (2 seeds; here)"
    assert (
        over_seeds.farthest(places, limits={"here": 5, "there": 1}) == "worst 2.0 [2.0, 2.0] (2 seeds; there, limit 1)"
    )
    assert over_seeds.farthest({**places, "once": [9.0]}) == over_seeds.farthest(places)  # one seed has no interval
    assert over_seeds.farthest({"one": [1.0], "other": [2.0]}, 2) == "up to 2.00 (1 seed; other)"
    assert over_seeds.farthest({"here": [1.0, 1.0]}) == "1.0 [1.0, 1.0] (2 seeds)"  # there is no other
    assert over_seeds.farthest({"nowhere": []}) == "none (0 seeds)"


def test_all_of_fails_with_one_and_is_open_with_one():
    assert over_seeds.all_of(exact(True), exact(True)) == exact(True)
    assert over_seeds.all_of(exact(True), unknown("this"), exact(False)) == exact(False)
    assert over_seeds.all_of(exact(True), unknown("this"), unknown("that")) == unknown("this; that")
    assert over_seeds.all_of() == exact(True)  # no rival, none to be ahead of


@pytest.mark.parametrize(
    ("nothing", "part", "verdict"),
    [
        (exact(False), exact(True), HOLDS),
        (exact(True), exact(True), FAILS),
        (exact(True), unknown("x"), FAILS),
        (unknown("x"), exact(True), OPEN),
        (unknown("x"), exact(False), FAILS),
        (exact(False), unknown("x"), OPEN),
    ],
)
def test_what_doing_nothing_meets_as_well_does_not_hold(nothing, part, verdict):
    lowered = over_seeds.lowered_by(nothing, part)
    assert lowered.verdict == verdict
    assert bool(lowered.met_by) == (nothing == exact(True))


@pytest.mark.parametrize(
    ("again", "part", "verdict"),
    [
        (exact(True), exact(True), HOLDS),
        (exact(True), exact(False), FAILS),
        (exact(True), unknown("x"), OPEN),
        (unknown("x"), exact(True), OPEN),
        (unknown("x"), exact(False), FAILS),  # it fails for sure, and a second retraining may not
        (exact(False), exact(True), OPEN),
        (exact(False), exact(False), OPEN),
    ],
)
def test_what_a_second_retraining_does_not_meet_tells_nothing(again, part, verdict):
    assert over_seeds.limited_by(again, part).verdict == verdict


def test_differences_are_paired_by_seed():
    ours = pd.DataFrame({"seed": [0, 1, 2], "test": [1.0, 2.0, 3.0]})
    other = pd.DataFrame({"seed": [2, 1, 0], "test": [30.0, 20.0, 10.0]})
    assert over_seeds.difference(ours, other, "test").to_dict() == {0: -9.0, 1: -18.0, 2: -27.0}
    with pytest.raises(ConfigError, match="other must have one row per seed, got seeds"):
        over_seeds.difference(ours, pd.concat([other, other]), "test")
    with pytest.raises(ConfigError, match="a column of ours must be one of 'seed', 'test', got 'mia'"):
        over_seeds.difference(ours, other, "mia")


def test_the_jackknife_of_pairs_keeps_their_mean_and_is_wider_than_if_they_were_independent():
    rng = np.random.default_rng(1)
    for _ in range(20):
        own = rng.normal(size=5)  # of each seed, in every pair that it is in
        pairs = {(i, j): float(own[i] + own[j]) for i in range(5) for j in range(i)}
        values = list(over_seeds.jackknife(pairs).values())
        assert np.mean(values) == pytest.approx(np.mean(list(pairs.values())))
        low, high = over_seeds.interval(values)
        naive = over_seeds.interval(pairs.values())
        assert high - low > naive[1] - naive[0]
    assert over_seeds.jackknife({(0, 1): 1.0}) == {}
    assert over_seeds.jackknife({(0, 1): 1.0, (0, 2): 2.0}) == {}  # without seed 0 there is no pair


def test_one_of_six_is_not_in_part_and_three_of_six_are():
    for holding, verdict in ((1, FAILS), (3, "holds in part"), (6, HOLDS)):
        result = judged("H2", {f"part {n}": exact(n < holding) for n in range(6)}, "ours", "", ["key"], "rule")
        assert (result.verdict, result.corrected) == (verdict, NO_OTHER)
        assert (f"{holding} of 6 hold (part 0" in result.reason) == (holding < 6)


def test_a_part_says_what_its_verdict_is_told_by():
    """Intervals of a level up to 1 - p say the same."""
    assert over_seeds.at_most(VALUES, 1.02).p == pytest.approx(ttest_1samp(VALUES, 1.02).pvalue, rel=1e-6)
    assert over_seeds.at_least(VALUES, 1.02).p == pytest.approx(ttest_1samp(VALUES, 1.02).pvalue, rel=1e-6)
    assert over_seeds.above(VALUES, 0.08).p == pytest.approx(ttest_1samp(VALUES, 0.08).pvalue, rel=1e-6)
    assert over_seeds.at_most([0.3, 0.3], 0.4).p == exact(True).p == 0  # no spread, or none to be asked about
    sure, unsure, no, hardly = Part(HOLDS, p=0.01), Part(HOLDS, p=0.04), Part(FAILS, p=0.02), Part(FAILS, p=0.03)
    assert over_seeds.all_of(sure, unsure).p == 0.04  # each is needed
    assert over_seeds.all_of(sure, no, hardly).p == 0.02  # one is enough
    assert over_seeds.lowered_by(hardly, sure).p == 0.03  # holds where doing nothing fails
    assert over_seeds.lowered_by(unsure, sure).p == 0.04  # fails because doing nothing holds
    assert over_seeds.lowered_by(sure, no).p == 0.01  # for either reason
    assert over_seeds.limited_by(unsure, sure).p == 0.04
    assert over_seeds.limited_by(unsure, no).p == 0.02  # whatever the second retraining does


def test_the_parts_of_a_claim_are_corrected_for_their_number_where_they_disagree():
    told = {k: Part(HOLDS, p=p) for k, p in zip("abcde", (0.001, 0.009, 0.012, 0.02, 0.04), strict=True)}
    assert over_seeds.as_one_claim(told | {"f": Part(HOLDS, p=0.04)}) == told | {"f": Part(HOLDS)}  # each must
    few = {name: told[name] for name in "abcd"} | {"f": unknown("more")}
    assert over_seeds.as_one_claim(few) == few
    corrected = over_seeds.as_one_claim(told | {"f": Part(FAILS, p=0.0)})
    verdicts = {name: part.verdict for name, part in corrected.items()}
    # 6 x 0.000, 5 x 0.001, 4 x 0.009, 3 x 0.012 are within 0.05, 2 x 0.02 is, 1 x 0.04 is
    assert set(verdicts.values()) == {HOLDS, FAILS}
    corrected = over_seeds.as_one_claim({**told, "c": Part(HOLDS, p=0.03), "f": Part(FAILS, p=0.0)})
    verdicts = {name: part.verdict for name, part in corrected.items()}
    assert verdicts == {"a": HOLDS, "b": HOLDS, "c": OPEN, "d": OPEN, "e": OPEN, "f": FAILS}  # 3 x 0.02
    result = judged("F1", {**told, "c": Part(HOLDS, p=0.03), "f": Part(FAILS)}, "", "", ["key"], "rule")
    assert result.verdict == "undetermined"
    assert "3 of 6 are undetermined (c, d, e)" in result.reason
    assert "told by themselves alone" in result.reason


def test_the_two_readings_are_judged_and_told_apart():
    result = judged("H2", {"a": exact(False)}, "ours", "", ["key", "key"], "rule", {"a": unknown("more would")})
    assert (result.verdict, result.corrected) == (FAILS, OPEN)
    assert result.reason == "rule; corrected: more would"
    assert result.records == ["key"]
    alike = {"a": unknown("more would")}
    assert judged("H2", alike, "ours", "", ["key"], "rule", alike).reason == "rule; more would"
