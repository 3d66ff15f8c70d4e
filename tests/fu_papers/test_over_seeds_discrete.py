"""What few seeds say where there are few outcomes: yes or no, and orders of a few runs."""

from collections import Counter
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest, page_trend_test, spearmanr

from fu_core.errors import ConfigError
from fu_papers import over_seeds_discrete as discrete
from fu_papers.over_seeds import FAILS, HOLDS, OPEN


@pytest.mark.parametrize(("count", "n"), [(0, 1), (0, 3), (1, 3), (3, 3), (7, 20)])
def test_the_interval_of_a_share_is_exact(count, n):
    ends = binomtest(count, n).proportion_ci(0.95, method="exact")
    assert discrete.share_interval(count, n) == pytest.approx((ends.low, ends.high))


def test_a_share_says_what_its_verdict_is_told_by():
    """As many times as rarely, or as often, by the binomial test of that side, and twice that."""
    assert discrete.rarely([False] * 100, 0.05).p == pytest.approx(2 * 0.95**100)
    assert discrete.rarely([True] * 3, 0.05).p == pytest.approx(2 * 0.05**3)
    seldom = discrete.rarely([True] * 2 + [False] * 198, 0.05)
    assert seldom.p == pytest.approx(2 * binomtest(2, 200, 0.05, alternative="less").pvalue)


def test_an_order_says_what_its_verdict_is_told_by():
    """The larger p of the t interval's and of the orders'; here all agree, so that t has none."""
    found = discrete.ranks_below([-1.0, -1.0], [5, 5], 0.0)
    assert found.verdict == HOLDS
    assert found.p == pytest.approx(2 / 120**2)  # one pair of orders


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("seeds", [2, 3, 5, 80])
def test_what_happens_more_often_is_called_rare_by_chance_in_at_most_a_fortieth(share, seeds):
    counts = np.random.default_rng(0).binomial(seeds, share, size=4000)
    verdicts = {c: discrete.rarely([True] * c + [False] * (seeds - c), 0.05).verdict for c in set(counts.tolist())}
    assert np.mean([verdicts[c] == HOLDS for c in counts.tolist()]) <= 0.03
    if share == 0.05:
        assert np.mean([verdicts[c] == FAILS for c in counts.tolist()]) <= 0.03


@pytest.mark.parametrize(("count", "n", "verdict"), [(0, 72, HOLDS), (0, 71, OPEN), (1, 3, OPEN), (2, 2, FAILS)])
def test_a_rare_event_needs_many_trainings_and_a_frequent_one_few(count, n, verdict):
    assert discrete.rarely([True] * count + [False] * (n - count), 0.05).verdict == verdict


def test_an_open_share_says_how_many_seeds_would_tell():
    assert discrete.rarely([False] * 3, 0.05).needed == 72
    assert discrete.rarely([True, False, False], 0.05).needed == 7  # a third of them is more than 5 %
    assert discrete.share_interval(7 / 3, 7)[0] > 0.05 > discrete.share_interval(2, 6)[0]
    assert discrete.rarely([True] + [False] * 19, 0.05).needed == np.inf  # as often as the limit


def test_no_training_says_nothing_about_a_share():
    part = discrete.rarely([], 0.05)
    assert (part.verdict, part.now) == (OPEN, 0)
    assert part.tells


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: discrete.rarely([True], 5), "limit must be between 0 and 1, got 5"),
        (lambda: discrete.rarely([True, np.nan], 0.5), "happened must be true or false in every training, got nan"),
        (lambda: discrete.share_interval(4, 3), "count must be between 0 and n = 3, got 4"),
        (lambda: discrete.rank_correlation(pd.Series([1]), pd.Series([2])), "equally long, two numbers or more"),
        (lambda: discrete.ranks_below([-1.0] * 4, [4], -0.8), "sizes must be one for each of 4 correlations, got 1"),
        (lambda: discrete.ranks_below([-1.0] * 2, [1, 4], -0.8), "sizes must be a whole number >= 2, got 1"),
        (lambda: discrete.ranks_below([-1.0] * 2, [4, 4], -1), "limit must lie between -1 and 1, got -1"),
    ],
)
def test_errors_name_the_parameter(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_rank_correlations_are_spearmans_and_a_tie_is_half_of_both_orders():
    one, other = pd.Series([1.0, 2.0, 5.0, 20.0]), pd.Series([40.0, 42.0, 39.0, 30.0])
    assert discrete.rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic)
    assert discrete.rank_correlation(one, pd.Series([1.0] * 4)) == 0
    tied, broken = pd.Series([3.0, 2.0, 2.0, 1.0]), ([3, 2, 1.9, 1], [3, 1.9, 2, 1])
    mean = np.mean([discrete.rank_correlation(one, pd.Series(order)) for order in broken])
    assert discrete.rank_correlation(one, tied) == pytest.approx(mean)


def test_without_a_trend_the_test_of_ranks_is_pages():
    data = np.array([[1, 2, 4, 3], [1, 3, 2, 4], [2, 1, 3, 4]])
    correlations = [discrete.rank_correlation(pd.Series(range(4)), pd.Series(row)) for row in data]
    _, high = discrete.rank_shares(correlations, [4, 4, 4], 0.0)
    assert high == pytest.approx(page_trend_test(data, method="exact").pvalue)


@pytest.mark.parametrize("mean", [-0.8, 0.0, 0.3])
def test_the_test_of_ranks_is_that_of_all_orders_with_the_given_mean(mean):
    """By hand for seeds of three and of four runs: every order as probable as exp(theta r)."""
    sums = {}
    for size in (3, 4):
        first = pd.Series(range(size))
        found = np.array([discrete.rank_correlation(first, pd.Series(order)) for order in permutations(range(size))])
        thetas = np.linspace(-30, 30, 60_001)
        weights = np.exp(np.outer(thetas, found))
        weights /= weights.sum(axis=1, keepdims=True)
        sums[size] = found, weights[np.abs(weights @ found - mean).argmin()]
    total = np.add.outer(sums[3][0], sums[4][0])
    shares = np.outer(sums[3][1], sums[4][1])
    low, high = discrete.rank_shares([-0.5, -0.8], [3, 4], mean)
    assert low == pytest.approx(shares[total <= -1.3 + 1e-9].sum(), abs=1e-3)
    assert high == pytest.approx(shares[total >= -1.3 - 1e-9].sum(), abs=1e-3)


@pytest.mark.parametrize("size", [3, 6, 7, 9])
def test_a_sum_of_many_rank_correlations_is_found_among_all_sums_in_spite_of_rounding(size):
    """The two shares have exactly the sum itself in common."""
    one, other = pd.Series(range(size)), pd.Series([1, 0, *range(2, size)])
    correlations = [discrete.rank_correlation(one, other)] * 15
    low, high = discrete.rank_shares(correlations, [size] * 15, correlations[0])
    below, above = discrete.rank_shares([*correlations[1:], correlations[0] - 1e-4], [size] * 15, correlations[0])
    assert low + high == pytest.approx(1 + (low - below))
    assert low > below
    assert above == pytest.approx(high)


@pytest.mark.parametrize(
    ("correlations", "size", "verdict"),
    [
        ([-1.0] * 3, 4, OPEN),  # in 5 % by chance, though the t interval has no width
        ([-1.0] * 4, 4, HOLDS),
        ([-1.0] * 8, 3, OPEN),
        ([-1.0] * 3, 5, HOLDS),
        ([-1.0, -1.0, -0.9], 5, OPEN),
        ([-0.4, -1.0, -0.8, -0.9, -1.0, -1.0], 5, OPEN),
        ([-0.8] * 3, 4, OPEN),  # at the limit, by an interval that has no width
        ([0.0] * 2, 4, FAILS),
        ([1.0, -1.0], 4, OPEN),
        ([1.0], 5, OPEN),  # one seed decides nothing
    ],
)
def test_ranks_are_below_a_limit_where_the_interval_and_the_exact_test_say_so(correlations, size, verdict):
    part = discrete.ranks_below(correlations, [size] * len(correlations), -0.8)
    assert part.verdict == verdict
    if verdict == OPEN and len(correlations) > 1:
        assert part.needed > part.now == len(correlations)


@pytest.mark.parametrize(("size", "seeds"), [(3, 2), (3, 3), (4, 2), (4, 3), (5, 2), (5, 3)])
@pytest.mark.parametrize("unlike", [0.0, 0.5])
def test_ranks_that_are_not_below_the_limit_are_called_so_in_at_most_a_twentieth(size, seeds, unlike):
    """A straight fall with noise, so steep that the mean is about -0.785; unlike: how far seeds differ in it."""
    steepness = {(3, 0.0): 1.29, (4, 0.0): 1.0, (5, 0.0): 0.82, (3, 0.5): 1.7, (4, 0.5): 1.35, (5, 0.5): 1.11}
    rng = np.random.default_rng(1)
    slopes = steepness[size, unlike] * (1 + unlike * rng.normal(size=(1000 * seeds, 1)))
    places = np.arange(size)
    ranks = (rng.normal(size=(1000 * seeds, size)) - slopes * places).argsort(axis=1).argsort(axis=1)
    found = 12 * ((ranks - ranks.mean(axis=1, keepdims=True)) @ (places - places.mean())) / (size**3 - size)
    assert -0.8 < found.mean() < -0.76
    rows = Counter(map(tuple, np.sort(found.reshape(-1, seeds), axis=1).round(9).tolist()))
    holds = sum(n for row, n in rows.items() if discrete.ranks_below(row, [size] * seeds, -0.8).verdict == HOLDS)
    assert holds / 1000 <= 0.05
