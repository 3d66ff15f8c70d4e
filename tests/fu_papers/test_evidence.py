"""Intervals cover what they promise on data with known effects; verdicts follow from intervals and floors alone."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fu_core.streams import numpy_stream
from fu_papers.evidence import (
    Comparison,
    Estimate,
    as_one_claim,
    can_win,
    compare,
    completed,
    crossed,
    decide,
    family,
    floor_of,
    for_means,
    holm,
    in_part,
    judge_all,
    paired,
    seeds_needed,
    what_would_tell,
)
from fu_papers.intervals import degrees_of_freedom
from fu_papers.verdicts import VERDICTS

SIMULATIONS = 400


def frame(grid, **columns):
    """One row per (target, seed) of `grid`, (I, J); NaN where a run is missing."""
    grid = np.asarray(grid, dtype=float)
    target, seed = np.indices(grid.shape)
    rows = pd.DataFrame({"request": [f"client-{i:02}" for i in target.ravel()], "seed": seed.ravel()})
    return rows.assign(value=grid.ravel(), **columns)


def simulated(rng, shape, variances=(1, 1, 1)):
    """Cells with mean 0 whose targets, seeds and cells have these variances."""
    a, b, e = np.sqrt(variances)
    return a * rng.normal(size=(shape[0], 1)) + b * rng.normal(size=(1, shape[1])) + e * rng.normal(size=shape)


def covered(shape, interval, variances=(1, 1, 1), missing=0.0):
    """The share of simulations whose interval contains the mean that the data were drawn with.

    missing: how probably a cell is, or of each cell whether it is.
    """
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(SIMULATIONS):
        grid = simulated(rng, shape, variances)
        low, high = interval(np.where(rng.random(shape) < missing, np.nan, grid))
        hits += low <= 0 <= high
    return hits / SIMULATIONS


def by_crossed(grid):
    found = crossed(frame(grid), resamples=1000)
    return found.low, found.high


def by_cells(grid):
    """The trap: all cells as if they were independent runs."""
    return stats.ttest_1samp(grid.ravel(), 0).confidence_interval()


def estimate(effect, low, high, **other):
    given = {"targets": 4, "seeds": 3, "cells": 12, "how": "t", "p": 0.5, "se": 1.0} | other
    return Estimate(effect, low, high, **given)


# --- coverage ---


@pytest.mark.parametrize("shape", [(4, 3), (4, 4), (6, 3), (12, 3), (6, 6), (20, 20)])
def test_the_interval_covers_the_true_effect_as_often_as_it_says(shape):
    assert 0.90 <= covered(shape, by_crossed) <= 0.98


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (6, 2), (3, 3)])
def test_of_two_seeds_it_covers_more(shape):
    assert covered(shape, by_crossed) >= 0.96


@pytest.mark.parametrize("variances", [(0.1, 1, 0), (0.3, 1, 0), (1, 0.1, 0), (0.1, 1, 0.3)])
@pytest.mark.parametrize("shape", [(3, 2), (6, 2), (12, 2), (12, 3)])
def test_it_covers_where_the_scarcer_factor_has_most_of_the_spread(shape, variances):
    """Without the bound on the degrees of freedom 12 x 2 cover 87 %."""
    assert covered(shape, by_crossed, variances) >= 0.89


@pytest.mark.parametrize("variances", [(1, 0, 1), (0, 1, 1), (0, 0, 1)])
def test_it_covers_where_only_some_factors_vary(variances):
    assert covered((4, 4), by_crossed, variances) >= 0.92


@pytest.mark.parametrize("shape", [(6, 6), (8, 8), (12, 6), (20, 20)])
@pytest.mark.parametrize("variances", [(1, 0, 0.01), (0, 1, 0.01)])
def test_it_covers_where_one_factor_has_nearly_all_the_spread(shape, variances):
    """As many independent numbers as that factor has levels, of which percentiles see too few below twenty."""
    assert covered(shape, by_crossed, variances) >= 0.91


def test_it_covers_with_cells_missing():
    assert covered((5, 4), by_crossed, missing=0.2) >= 0.92


@pytest.mark.parametrize(("shape", "most"), [((4, 4), 0.85), ((12, 10), 0.65)])
def test_cells_taken_as_independent_cover_far_too_little(shape, most):
    assert covered(shape, by_cells) < most


@pytest.mark.parametrize("variances", [(0, 1, 0.01), (0.1, 1, 0.1), (1, 1, 1)])
@pytest.mark.parametrize(
    "pattern",
    ["x. x. .x", "xx x. x. x.", "x. x. x. x. x. .x", "xxx x.. x.. x..", "xx. .xx ..x", "xxx xxx xxx xx."],
)
def test_it_covers_whichever_cells_are_missing(pattern, variances):
    """By the numbers of targets and seeds alone, five targets on one seed and a sixth on another covered 79 %."""
    there = np.array([[cell == "x" for cell in row] for row in pattern.split()])
    assert covered(there.shape, by_crossed, variances, missing=1.0 - there) >= 0.89


# --- by hand ---


def test_the_t_interval_of_two_targets_and_two_seeds_by_hand():
    # target means 2, 4; seed means 1.5, 4.5; residuals ±0.5. v_a = 1, v_b = 2.25, s_e² = 1: se² = 1 + 2.25 - 1/4 = 3.
    found = crossed(frame([[1, 3], [2, 6]]))
    assert found.df == pytest.approx(9 / (1 + 2.25**2 + 0.25**2))  # se⁴ / (v_a²/1 + v_b²/1 + (s_e²/4)²/1) = 1.469
    reach = stats.t.ppf(0.975, found.df) * np.sqrt(3)
    assert (found.effect, found.how, found.targets, found.seeds, found.cells) == (3, "t", 2, 2, 4)
    assert (found.low, found.high) == pytest.approx((3 - reach, 3 + reach))
    assert found.se == pytest.approx(np.sqrt(3))
    assert found.p == pytest.approx(2 * stats.t.sf(np.sqrt(3), found.df))
    assert found.spread == pytest.approx((2 * 0.75, 2 * 2.0, 1))


def test_the_standard_error_never_falls_below_that_of_one_factor_or_of_the_cells():
    # Target means 0, 0 and seed means 0, 0, residuals ±1: v_a + v_b - s_e²/4 = -1, s_e²/4 = 1.
    found = crossed(frame([[1, -1], [-1, 1]]))
    assert (found.effect, found.p) == (0, 1)
    assert found.se == pytest.approx(1)
    # Target means ±1, seed means 0, residuals ±2: v_a = 1, v_b = 0, v_a + v_b - s_e²/4 = -3, s_e²/4 = 4.
    assert crossed(frame([[3, -1], [-3, 1]])).se == pytest.approx(2)
    # All residuals 0: v_a = 4 and nothing else.
    assert crossed(frame([[2, 2], [-2, -2]])).se == pytest.approx(2)
    # Only seeds vary: v_b = 2² and nothing else.
    assert crossed(frame([[1, 5], [1, 5]])).se == pytest.approx(2)


@pytest.mark.parametrize("hole", [False, True])
def test_the_bootstrap_is_the_mean_of_drawn_targets_and_drawn_seeds(hole):
    grid = simulated(np.random.default_rng(1), (20, 21))
    grid[2, 3] = np.nan if hole else grid[2, 3]
    rng = numpy_stream(0, "crossed bootstrap")
    targets, seeds = (rng.multinomial(n, np.full(n, 1 / n), size=200) for n in (20, 21))
    means = [
        np.nanmean(grid[np.ix_(np.repeat(np.arange(20), i), np.repeat(np.arange(21), j))])
        for i, j in zip(targets, seeds, strict=True)
    ]
    found = crossed(frame(grid), resamples=200)
    assert found.how == "bootstrap"
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert found.se == pytest.approx(np.std(means))
    assert found.p == pytest.approx(2 * (min(np.sum(np.less(means, 0)), np.sum(np.greater(means, 0))) + 1) / 201)
    assert found.effect == pytest.approx(np.nanmean(grid))


@pytest.mark.parametrize("shape", [(3, 2), (8, 7), (21, 20)])
@pytest.mark.parametrize("c", [0.0, -2.5])
def test_where_nothing_varies_the_interval_is_a_point(shape, c):
    found = crossed(frame(np.full(shape, c)))
    assert (found.effect, found.low, found.high, found.se) == pytest.approx((c, c, c, 0))
    assert found.p == 1 if c == 0 else found.p < 0.001


@pytest.mark.parametrize("shape", [(4, 1), (1, 4), (1, 1)])
def test_one_target_or_one_seed_says_nothing_about_others(shape):
    found = crossed(frame(np.full(shape, -3.0)))
    assert (found.effect, found.low, found.high, found.p, found.spread) == (-3, -np.inf, np.inf, 1, None)
    assert decide(found) == "undetermined"
    assert seeds_needed(found) is None
    assert "from 2 targets x 2 seeds on" in what_would_tell(found)


def test_the_bootstrap_begins_at_twenty_of_each():
    grid = simulated(np.random.default_rng(0), (22, 20))
    assert crossed(frame(grid)).how == "bootstrap"
    assert crossed(frame(grid[:, :19])).how == "t"
    assert crossed(frame(grid[:19])).how == "t"


def test_what_is_missing_takes_part_in_no_mean():
    grid = np.array([[1.0, 3.0, np.nan], [2.0, 6.0, np.nan], [np.nan] * 3])
    assert crossed(frame(grid)) == crossed(frame(grid[:2, :2]))
    grid[0, 0] = np.nan
    found = crossed(frame(grid))
    assert (found.effect, found.targets, found.seeds, found.cells) == (pytest.approx(11 / 3), 2, 2, 3)
    assert found.text().endswith("(2 targets x 2 seeds, 3 cells)")


def test_text():
    assert estimate(-3.14, -4.0, -2.2).text() == "-3.1 [-4.0, -2.2] (4 targets x 3 seeds)"
    assert estimate(-0.004, -0.01, 0.0, seeds=1, cells=4).text(2) == "0.00 [-0.01, 0.00] (4 targets x 1 seed)"
    assert estimate(1, 0, 2).at(0.99).text().split("] ")[1] == "at 99 % (4 targets x 3 seeds)"


def test_degrees_of_freedom_are_those_of_the_factor_that_has_the_spread():
    assert degrees_of_freedom([1, 0], [0, 1], 0, 4, 4) == pytest.approx([3, 3])
    assert degrees_of_freedom(1, 1, 0, 4, 4) == pytest.approx(6)  # (1 + 1)² / (1/3 + 1/3)
    assert degrees_of_freedom(1, 0, 0, 12, 2) == 2  # 11, but for the bound: twice 2 - 1
    assert degrees_of_freedom(0, 0, 0, 4, 3) == 2  # nothing varies
    assert crossed(frame(np.where(np.eye(3), [[1, 2, 4]], np.nan))).df == 2  # 3 x 3, but three numbers in all
    assert degrees_of_freedom(1e200, 1e200, 0, 4, 4) == pytest.approx(6)  # whose squares are no numbers
    assert degrees_of_freedom(1, [0, 1], 0, [4, 4], 4) == pytest.approx([3, 6])


# --- what must not matter ---

SHAPES = st.sampled_from([(2, 2), (4, 3), (20, 20)])
NUMBERS = st.floats(-100, 100, allow_nan=False)
GRIDS = SHAPES.flatmap(lambda shape: arrays(float, shape, elements=NUMBERS))


def numbers(found):
    return [found.effect, found.low, found.high, found.se]


@settings(deadline=None, max_examples=25)
@given(GRIDS, st.integers(0, 99))
def test_the_order_of_rows_changes_nothing(grid, order):
    shuffled = frame(grid).sample(frac=1, random_state=order)
    assert crossed(frame(grid), resamples=200) == crossed(shuffled, resamples=200)


@settings(deadline=None, max_examples=25)
@given(GRIDS, NUMBERS)
def test_the_interval_moves_with_the_values(grid, shift):
    found, moved = crossed(frame(grid), resamples=200), crossed(frame(grid + shift), resamples=200)
    assert numbers(moved) == pytest.approx(np.add(numbers(found), [shift, shift, shift, 0]), abs=1e-5)


@settings(deadline=None, max_examples=25)
@given(GRIDS)
def test_two_methods_exchanged_mirror_the_interval(grid):
    ours, rival = frame(grid), frame(grid[::-1] / 2)
    found, mirrored = (paired(a, b, resamples=200) for a, b in [(ours, rival), (rival, ours)])
    expected = [-found.effect, -found.high, -found.low, found.se]
    assert numbers(mirrored) == pytest.approx(expected, abs=1e-9)


# --- two methods ---


def test_paired_takes_the_pairs_that_both_have():
    ours = frame([[1, 2, 3], [4, 5, 6]])
    rival = frame([[2, 4, np.nan], [6, 8, 10]]).drop(index=5)
    found = paired(ours, rival)
    assert found == crossed(frame([[-1, -2], [-2, -3]]))
    assert found.cells == 4


def test_paired_removes_what_both_share():
    rng = np.random.default_rng(3)
    hard = 50 * simulated(rng, (4, 3))  # hard targets and bad seeds, for both
    noise = 0.1 * rng.normal(size=(4, 3))
    found = paired(frame(hard - 1 + noise), frame(hard))
    assert decide(found) == "holds"
    assert found.high - found.low < 1


def test_a_ratio_is_the_mean_of_logarithms():
    rival = np.array([[10.0, 20.0], [40.0, 80.0]])
    exact = paired(frame(rival / 4), frame(rival), log=True)
    assert (exact.effect, exact.low, exact.high) == pytest.approx((0.25, 0.25, 0.25))
    halved = paired(frame(rival / [[2, 8], [2, 8]]), frame(rival), log=True)
    plain = crossed(frame(-np.log([[2, 8], [2, 8]])))
    assert (halved.effect, halved.low, halved.high) == pytest.approx(tuple(np.exp(numbers(plain)[:3])))
    assert (halved.effect, halved.se) == pytest.approx((0.25, plain.se))
    one = paired(frame([[2.0], [4.0]]), frame([[1.0], [2.0]]), log=True)
    assert (one.effect, one.low, one.high) == (pytest.approx(2), 0, np.inf)
    assert decide(one, claim="more") == "undetermined"


def test_a_geometric_mean_is_that_of_ratios_to_one():
    values = np.array([[0.05, 0.06], [0.5, 0.4]])
    alone, against_one = crossed(frame(values), log=True), paired(frame(values), frame(np.ones((2, 2))), log=True)
    assert numbers(alone) == pytest.approx(numbers(against_one))
    assert alone.effect == pytest.approx(np.exp(np.log(values).mean()))
    assert alone.low > 0
    assert decide(crossed(frame(values / 100), log=True), margin=20) == "undetermined"  # that one differs by 8 times
    assert decide(crossed(frame([[0.01, 0.01], [0.02, 0.02]]), log=True), margin=0.001) == "holds"


def test_columns_have_names_of_their_own():
    named = frame([[1, 3], [2, 6]]).rename(columns={"request": "who", "seed": "run", "value": "gap"})
    assert crossed(named, value="gap", target="who", seed="run") == crossed(frame([[1, 3], [2, 6]]))
    assert floor_of(named, value="gap", target="who", seed="run") == 3


def test_the_floor_is_the_mean_distance_of_two_retrains():
    assert floor_of(frame([[1, -3], [np.nan, 2]])) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: crossed(frame([[np.nan]])), "values must have a value for at least one pair"),
        (lambda: crossed(frame([[1, 2]]).iloc[:0]), "values must have a value for at least one pair"),
        (lambda: crossed(pd.concat([frame([[1, 2]])] * 2)), r"one row per \(request, seed\), got several for"),
        (lambda: crossed(frame([[1, np.inf]])), "value must be finite, got inf"),
        (lambda: crossed(frame([[1, 2]]), value="gap"), "must be one of .* got 'gap'"),
        (lambda: crossed(frame([[1, 2]]).assign(value=[1.0, "a"])), "value must be a number in every row, got 'a'"),
        (lambda: crossed(frame([[1, 2]]).assign(seed=[0, None])), "seed must be there in every row, got 1 without it"),
        (lambda: crossed(frame([[1, 2]]), level=95), "level must lie between 0 and 1, got 95"),
        (lambda: crossed(frame([[1, 2]]), resamples=0), "resamples must be a whole number >= 1"),
        (lambda: crossed(frame([[1, -2]]), log=True), "values: value must be > 0 for a ratio, got -2"),
        (lambda: floor_of(frame([[np.nan]])), "again must have a value"),
        (lambda: paired(frame([[1, np.nan]]), frame([[np.nan, 1]])), "ours and rival must have a value"),
        (lambda: paired(frame([[1, 2]]), frame([[1, 0]]), log=True), "rival: value must be > 0 for a ratio, got 0"),
        (lambda: decide(estimate(1, 0, 2), claim="fewer"), "claim must be one of 'less', 'more'"),
        (lambda: decide(estimate(1, 0, 2), beyond=-1), "beyond must be a finite number >= 0"),
        (lambda: decide(estimate(1, 0, 2, ratio=True), margin=0), "margin must be a finite number, > 0 for a ratio"),
        (lambda: holm([0.1, 1.2]), "p_values must be between 0 and 1"),
        (lambda: in_part({}), "parts must name at least one part"),
        (lambda: in_part({"IID": "not run"}), "verdict of part 'IID' must be one of"),
        (lambda: completed(frame([[1]])), "reached must be one of"),
        (lambda: completed(frame([[1, 2]], reached=[True, None])), "reached must be true or false in every row"),
        (lambda: completed(frame([[1]], reached="False")), "reached must be true or false in every row, got 'False'"),
        (lambda: can_win(3, 2), "gave_up must be at most n = 2, got 3"),
        (lambda: compare(frame([[1]], method="A", reached=True), "A", ["B"]), "ours and rivals must be one of 'A'"),
        (lambda: compare(runs(A=BASE, B=BASE), "A", ["B"], target="who"), "must be one of .* got 'who'"),
        (lambda: judge_all(compare(runs(A=BASE, B=BASE), "A", ["B"]), beyond={"C": 1}), "beyond .* got none for B"),
        (lambda: judge_all({}, claim="fewer"), "claim must be one of 'less', 'more'"),
    ],
)
def test_errors_name_the_parameter(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- verdicts ---


@pytest.mark.parametrize(
    ("ends", "options", "verdict"),
    [
        ((-3, -4, -2), {}, "holds"),
        ((-3, -4, -2), {"claim": "more"}, "does not hold"),
        ((3, 2, 4), {}, "does not hold"),
        ((3, 2, 4), {"claim": "more"}, "holds"),
        ((-3, -7, 1), {}, "undetermined"),
        ((-3, -6, 0), {}, "undetermined"),  # an interval that touches no effect does not exclude it
        ((0, 0, 0), {}, "undetermined"),
        ((-3, -4, -2), {"beyond": 2.9}, "holds"),
        ((-3, -4, -2), {"beyond": 3}, "undetermined"),
        ((3, 2, 4), {"beyond": 3.1}, "undetermined"),
        # at least 10 less, or more
        ((-12, -13, -11), {"margin": 10}, "holds"),
        ((-10, -10, -10), {"margin": 10}, "holds"),
        ((-12, -15, -9), {"margin": 10}, "undetermined"),
        ((-3, -4, -2), {"margin": 10}, "does not hold"),
        ((-3, -12, 6), {"margin": 10}, "undetermined"),
        ((12, 11, 13), {"margin": 10, "claim": "more"}, "holds"),
        ((9, 8.5, 9.5), {"margin": 10, "claim": "more"}, "does not hold"),
        ((9, 8.5, 9.5), {"margin": 10, "claim": "more", "beyond": 1}, "undetermined"),
        # at most 1 worse
        ((0.2, -0.5, 0.9), {"margin": -1}, "holds"),
        ((2, 1.5, 2.5), {"margin": -1}, "does not hold"),
        ((0.2, -0.5, 0.9), {"margin": -1, "beyond": 2}, "undetermined"),
    ],
)
def test_decide(ends, options, verdict):
    assert decide(estimate(*ends), **options) == verdict


@pytest.mark.parametrize(
    ("ends", "options", "verdict"),
    [
        ((0.5, 0.4, 0.6), {}, "holds"),
        ((0.5, 0.4, 0.6), {"claim": "more"}, "does not hold"),
        ((0.5, 0.2, 1.2), {}, "undetermined"),
        ((1.05, 1.01, 1.09), {"claim": "more"}, "holds"),
        ((1.05, 1.01, 1.09), {"claim": "more", "beyond": 0.1}, "undetermined"),
        ((4.5, 4.2, 4.8), {"claim": "more", "beyond": 3}, "holds"),  # beyond 300 % more
        ((3.8, 3.6, 4.0), {"claim": "more", "beyond": 3}, "undetermined"),
        ((1 / 30, 1 / 33, 1 / 27), {"margin": 25}, "holds"),  # 25 times less
        ((1 / 20, 1 / 22, 1 / 18), {"margin": 25}, "does not hold"),
        ((30, 27, 33), {"margin": 25, "claim": "more"}, "holds"),
        ((1.05, 1.01, 1.09), {"margin": 1 / 1.1}, "holds"),  # at most 10 % more
    ],
)
def test_decide_on_ratios_measures_from_one(ends, options, verdict):
    assert decide(estimate(*ends, ratio=True), **options) == verdict


@given(NUMBERS, st.floats(0, 50), st.floats(0, 50), st.floats(0, 20))
def test_a_claim_and_its_opposite_never_both_hold(effect, below, above, floor):
    found = estimate(effect, effect - below, effect + above)
    less, more = (decide(found, claim=claim, beyond=floor) for claim in ("less", "more"))
    opposite = {"holds": "does not hold", "does not hold": "holds", "undetermined": "undetermined"}
    assert more == opposite[less]
    if abs(effect) < floor:
        assert less == "undetermined"


def test_what_is_equal_but_for_rounding_is_no_difference():
    ours, rival = frame(np.full((2, 2), 0.1 + 0.2)), frame(np.full((2, 2), 0.3))
    for log in (False, True):
        found = paired(ours, rival, log=log)
        assert (found.effect, found.p) == (float(log), 1)
        assert decide(found, claim="more") == "undetermined"


def test_what_is_at_the_margin_but_for_rounding_is_there():
    assert decide(crossed(frame(np.full((2, 2), 0.4 - 0.7))), margin=0.3) == "holds"  # -0.29999999999999993
    for share in (0.1, 1 / 3, 0.7):
        assert decide(crossed(frame(np.full((3, 2), share)), log=True), margin=1 / share) == "holds"


# --- how many would tell ---


def test_seeds_needed_by_hand():
    # se² = 4 / J, t with 6 degrees of freedom (twice 4 - 1) 2.4469: 2.4469 · 2 / √J < 1 from J = 24 on.
    seeds = estimate(-1, -3, 1, spread=(0, 4, 0))
    assert seeds_needed(seeds) == 24
    assert what_would_tell(seeds) == "about 4 targets x 24 seeds would tell (4 targets x 3 seeds now)"
    assert seeds_needed(seeds, beyond=1) is None
    assert seeds_needed(seeds, margin=2.5) == 11  # 1.5 from the margin: 2.4469 · 2 / √J < 1.5
    assert "within the noise floor 1 of no effect: no number" in what_would_tell(seeds, beyond=1)


def test_the_number_that_would_tell_still_does_if_there_are_more():
    """With more seeds than tell, only targets have a spread, and its degrees of freedom are fewer."""
    found = estimate(-1.49, -3, 1, spread=(1, 1, 0), seeds=3)
    needed = seeds_needed(found)
    j = np.arange(3, 1001)
    se, df = np.sqrt(1 / 4 + 1 / j), degrees_of_freedom(1 / 4, 1 / j, 0.0, 4, j)
    enough = stats.t.ppf(0.975, df) * se < 1.49
    assert enough.any()
    assert not enough[-1]
    assert needed is None


def test_where_more_seeds_do_not_help():
    # se² = 4 / I, t with 4 degrees of freedom (twice 3 - 1) 2.7764: from I = 31 on.
    targets = estimate(-1, -3, 1, spread=(4, 0, 0))
    assert seeds_needed(targets) is None
    assert "more seeds alone would not tell; about 31 targets x 3 seeds would" in what_would_tell(targets)
    # se² = 2 / n, t with 2 (n - 1): 2.145 · 0.5 > 1 at 8, 2.120 · 0.471 < 1 at 9.
    both = estimate(-1, -3, 1, spread=(1, 1, 0))
    assert "about 9 targets x 9 seeds would" in what_would_tell(both)
    assert what_would_tell(estimate(-0.01, -3, 3, spread=(9, 9, 9))) == (
        "fewer than 1000 targets x 1000 seeds would not tell"
    )


def test_what_tells_already_needs_no_more():
    found = estimate(-3, -4, -2, spread=(1, 1, 1))
    assert seeds_needed(found) == 3
    assert what_would_tell(found) == "4 targets x 3 seeds tell"
    assert "exactly no effect" in what_would_tell(estimate(0, -1, 1, spread=(1, 1, 1)))


def test_the_seeds_that_were_said_to_tell_do():
    rng = np.random.default_rng(3)
    few = crossed(frame(0.7 + simulated(rng, (8, 3), (0, 1, 1))))
    assert decide(few, claim="more") == "undetermined"
    needed = seeds_needed(few)
    assert 3 < needed < 30
    many = [crossed(frame(few.effect + simulated(rng, (8, needed), few.spread)), resamples=500) for _ in range(60)]
    told = np.mean([decide(found, claim="more") == "holds" for found in many])
    assert 0.4 < told < 0.8  # the interval just reaches no effect: a little more than half


def test_the_number_there_is_not_the_one_that_would_tell():
    """With cells missing the interval is wider than one of whole rows, with which as many would tell."""
    rng = np.random.default_rng(36)
    grid = rng.normal(size=(4, 4)) + 0.6
    found = crossed(frame(np.where(rng.random((4, 4)) < 0.4, np.nan, grid)))
    assert decide(found, claim="more") == "undetermined"
    s_a, s_b, v_e = *found.spread[:2], found.spread[2] / (found.targets * found.seeds)
    v_a, v_b = s_a / found.targets + v_e, s_b / found.seeds + v_e
    df = degrees_of_freedom(v_a, v_b, v_e, found.targets, found.seeds)
    assert stats.t.ppf(0.975, df) * np.sqrt(v_a + v_b - v_e) < found.effect
    assert seeds_needed(found, claim="more") == found.seeds + 1


# --- many comparisons ---


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def estimates_of(effects):
    rng = np.random.default_rng(2)
    noise = simulated(rng, (4, 4), (0.1, 0.1, 0.1))
    return {f"rival {i}": crossed(frame(effect + noise - noise.mean())) for i, effect in enumerate(effects)}


def test_five_comparisons_are_as_they_are():
    five = estimates_of([1, 2, 3, 4, 5])
    assert family(five) == five


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-3, 3), min_size=6, max_size=9))
def test_in_a_family_an_interval_excludes_no_effect_where_holm_rejects(effects):
    alone = estimates_of(effects)
    together = family(alone)
    assert list(together) == list(alone)
    for name, adjusted in zip(alone, holm([found.p for found in alone.values()]), strict=True):
        found = together[name]
        assert found.p == adjusted
        assert (found.low > 0 or found.high < 0) == (adjusted < 0.05)
        assert found.low <= alone[name].low + 1e-9
        assert found.high >= alone[name].high - 1e-9


def test_the_levels_of_a_family_step_down_to_the_first_that_is_not_rejected():
    together = family(estimates_of([9, 8, 7, 0, 0.01, 0.02]))
    shares = [round(0.05 / (1 - found.level)) for found in together.values()]
    assert shares == [6, 5, 4, 3, 3, 3]


def test_against_a_margin_all_of_a_family_get_the_widest_interval():
    alone = estimates_of([9, 8, 7, 0, 0.01, 0.02])
    together = family(alone, step_down=False)
    assert together == {name: replace(alone[name].at(1 - 0.05 / 6), p=together[name].p) for name in alone}
    compared = {name: Comparison(found, 0, 16, 0, 16) for name, found in alone.items()}
    for margin, expected in [(5, together), (None, family(alone))]:
        judged = judge_all(compared, claim="more", margin=margin)
        assert {name: c.estimate for name, c in judged.items()} == expected
        assert [c.verdict for c in judged.values()][:3] == ["holds"] * 3


def test_the_parts_of_a_claim_are_a_family_only_where_they_disagree():
    alone, limit = estimates_of([9, 8, 7, 6, 5, 4]), 3.0

    def judge(found):
        return {name: decide(one, claim="more", margin=limit) for name, one in found.items()}

    assert as_one_claim(alone, judge) == (alone, dict.fromkeys(alone, "holds"))
    limit = 4.5
    for step_down in (True, False):
        widened = family(alone, step_down=step_down)
        assert as_one_claim(alone, judge, step_down=step_down) == (widened, judge(widened))


def test_a_bootstrap_widens_by_its_own_draws():
    found = crossed(frame(1 + simulated(np.random.default_rng(4), (20, 20))))
    wider = found.at(0.99)
    assert (wider.low, wider.high) == pytest.approx(tuple(np.quantile(found.draws, [0.005, 0.995])))
    assert found.at(0.95) == found


HOLDS, FAILS, OPEN = "holds", "does not hold", "undetermined"


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([HOLDS, HOLDS], "holds"),
        ([FAILS, FAILS], "does not hold"),
        ([OPEN], "undetermined"),
        ([OPEN, FAILS, FAILS], "does not hold"),  # one of three would be less than half
        ([HOLDS, HOLDS, OPEN], "undetermined"),  # nothing fails
        ([HOLDS, FAILS], "holds in part"),
        ([HOLDS, HOLDS, FAILS, OPEN], "holds in part"),
        ([HOLDS] + [FAILS] * 5, "does not hold"),
        ([HOLDS, HOLDS, FAILS, FAILS, FAILS], "does not hold"),
        ([HOLDS, FAILS, OPEN, OPEN], "undetermined"),  # one more could make it half of them
        ([HOLDS, FAILS, FAILS, FAILS, OPEN], "does not hold"),  # two of five would still be less than half
    ],
)
def test_in_part(parts, verdict):
    named = {f"part {i}": part for i, part in enumerate(parts)}
    found, sentence = in_part(named)
    assert found == verdict
    assert found in VERDICTS
    assert sentence.startswith(f"{parts.count(HOLDS)} of {len(parts)} parts hold")
    assert all(name in sentence for name in named)


def test_the_sentence_names_the_parts():
    assert in_part({"MNIST": HOLDS, "CIFAR": FAILS, "IID": OPEN, "pairs": HOLDS})[1] == (
        "2 of 4 parts hold: MNIST, pairs; does not hold: CIFAR; undetermined: IID"
    )
    assert in_part({"MNIST": FAILS}) == ("does not hold", "0 of 1 parts hold; does not hold: MNIST")


# --- runs that gave up ---


def runs(**grids):
    """One frame of methods; NaN where a run gave up: its value is the smallest of all, as in the trap."""
    return pd.concat(
        frame(np.nan_to_num(grid, nan=0.0), reached=~np.isnan(np.ravel(grid)), method=name)
        for name, grid in grids.items()
    )


BASE = np.array([[5.0, 5.1], [5.2, 5.3], [5.1, 5.2]])
GAVE_UP = np.where(np.eye(3, 2), np.nan, BASE)


def test_completed_counts_who_gave_up():
    done, text = completed(runs(ours=GAVE_UP))
    assert (len(done), text) == (4, "gave up (2 of 6)")
    assert (done.value > 0).all()
    done, text = completed(runs(ours=BASE).astype({"reached": object}))
    assert (len(done), text) == (6, "")


@pytest.mark.parametrize(("lost", "shown"), [(0, 6), (1, 5), (2, 4), (3, 0), (6, 0)])
def test_where_half_gave_up_the_survivors_have_no_mean(lost, shown):
    grid = BASE.copy()
    grid.ravel()[:lost] = np.nan
    done, text = for_means(runs(ours=grid))
    assert (len(done), bool(text)) == (shown, lost > 0)
    once = runs(ours=np.where(np.eye(1, 2), np.nan, BASE[:1]))
    assert len(for_means(once)[0]) == 1  # one of two may be bad luck


def test_only_who_never_gave_up_can_win():
    assert can_win(0, 6)
    assert not can_win(1, 6)
    assert not can_win(6, 6)


def test_rivals_are_compared_on_common_cells_and_marked():
    compared = compare(runs(ours=BASE, fair=BASE + 2, gone=GAVE_UP - 2), "ours", ["fair", "gone"])
    assert compared["fair"] == Comparison(paired(frame(BASE), frame(BASE + 2)), 0, 6, 0, 6)
    assert compared["gone"].estimate == paired(frame(BASE), frame(GAVE_UP - 2))
    assert compared["gone"].estimate.effect == pytest.approx(2)
    assert compared["gone"].text() == "2.0 [2.0, 2.0] (3 targets x 2 seeds, 4 cells); rival gave up (2 of 6)"


@pytest.mark.parametrize(
    ("ours", "rival", "verdict"),
    [
        (BASE, BASE + 2, "holds"),
        (BASE, BASE - 2, "does not hold"),
        (BASE, GAVE_UP - 2, "undetermined"),  # the rival's survivors win
        (BASE, GAVE_UP + 2, "holds"),  # not even they do
        (GAVE_UP, BASE + 2, "undetermined"),  # ours gave up
        (GAVE_UP, BASE - 2, "does not hold"),
        (BASE, np.full((3, 2), np.nan), "undetermined"),  # nothing to compare with
    ],
)
def test_who_gave_up_cannot_win(ours, rival, verdict):
    judged = judge_all(compare(runs(ours=ours, rival=rival), "ours", ["rival"]))
    assert judged["rival"].verdict == verdict
    gone = np.isnan(rival).sum()
    assert (f"rival gave up ({gone} of 6)" in judged["rival"].text()) == bool(gone)


def test_ours_is_marked_and_nothing_in_common_is_said():
    text = compare(runs(ours=GAVE_UP, rival=np.where(np.isnan(GAVE_UP), BASE, np.nan)), "ours", ["rival"])["rival"]
    assert text.text() == "no common cell; ours gave up (2 of 6); rival gave up (4 of 6)"


def test_common_cells_without_a_value_are_nothing_in_common():
    compared = compare(runs(ours=BASE, rival=BASE).assign(value=np.nan), "ours", ["rival"])
    assert compared["rival"] == Comparison(None, 0, 6, 0, 6)
    assert judge_all(compared)["rival"].verdict == "undetermined"


def test_all_comparisons_of_a_claim_are_one_family():
    effects = {f"rival {i}": BASE + 2 + 0.01 * i for i in range(6)} | {"gone": np.full((3, 2), np.nan)}
    compared = compare(runs(ours=BASE + 0.5 * np.eye(3, 2), **effects), "ours", list(effects))
    judged = judge_all(compared, beyond=0.5)
    alone = {name: c.estimate for name, c in compared.items() if c.estimate is not None}
    assert {name: judged[name].estimate for name in alone} == family(alone)
    assert judged["rival 0"].estimate.level > 0.95
    assert judged["gone"].estimate is None
    assert judge_all({"rival 0": replace(compared["rival 0"])}, beyond=9)["rival 0"].verdict == "undetermined"


def test_pure_interaction_is_no_certainty():
    cells = [(0, 0, 0.0), (0, 1, 7.0), (1, 0, 7.0), (1, 1, 0.0)]
    found = crossed(pd.DataFrame(cells, columns=["request", "seed", "value"]))
    assert found.effect == 3.5
    assert found.low < 0 < 7 < found.high


def test_metric_logarithm_and_columns_are_those_asked_for():
    frames = runs(ours=BASE / 2, rival=BASE).rename(columns={"value": "passes", "request": "who"})
    found = compare(frames, "ours", ["rival"], value="passes", target="who", log=True)["rival"].estimate
    assert found.effect == pytest.approx(0.5)
    assert found.ratio
