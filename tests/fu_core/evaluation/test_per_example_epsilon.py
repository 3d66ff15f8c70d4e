"""The competition's epsilon: by hand, against its own grid of thresholds, on planted shifts, and what a perfect method
gets."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

from fu_core.errors import NumericalFailure
from fu_core.evaluation.margins import margins_of
from fu_core.evaluation.per_example_epsilon import (
    ATTACKS,
    BUFFER,
    CAP,
    null_epsilon,
    per_example_epsilon,
    resolution,
    score,
)
from tests.memorising import Tables, normal

DELTA = 1e-5


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


def one(unlearned, retrained, **options):
    return float(per_example_epsilon(column(*unlearned), column(*retrained), **options))


# --- by hand ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_by_hand_one_threshold(swapped):
    """Above 2.5 FPR is 1/4 and FNR 2/4, above 1.5 both are 1/4, the best: log(3/4 / (1/4)). Above 4 FPR is 0."""
    high, low = (1.0, 2.0, 3.0, 5.0), (-1.0, 0.0, 1.5, 4.0)
    sides = (low, high) if swapped else (high, low)
    expected = math.log((1 - DELTA - 1 / 4) / (1 / 4))
    assert one(*sides, attacks=("single",)) == pytest.approx(expected, abs=1e-12)
    assert one(*sides, attacks=("single",), delta=0.01) == pytest.approx(math.log(0.74 / 0.25), abs=1e-12)


@pytest.mark.parametrize("swapped", [False, True])
def test_by_hand_two_thresholds(swapped):
    """The narrow side lies within the wide one. Between 0.05 and 0.5 FPR is 1/4 and FNR 0, which says nothing; up from
    0.15 both are 1/4. One threshold alone: above 0.22 the narrow side is there with 2/4, the wide one lacks 1/4."""
    narrow, wide = (0.1, 0.2, 0.3, 0.4), (-1.0, 0.25, 0.9, 1.0)
    sides = (wide, narrow) if swapped else (narrow, wide)
    two, one_alone = math.log((1 - DELTA - 1 / 4) / (1 / 4)), math.log((1 - DELTA - 2 / 4) / (1 / 4))
    assert one(*sides, attacks=("double",)) == pytest.approx(two, abs=1e-12)
    assert one(*sides, attacks=("single",)) == pytest.approx(one_alone, abs=1e-12)
    assert one(*sides) == pytest.approx(two, abs=1e-12)


def test_no_overlap_is_the_cap_and_one_rate_alone_says_nothing():
    assert one((5, 6, 7, 8), (1, 2, 3, 4)) == CAP
    assert one((1, 2, 3, 4), (5, 6, 7, 8)) == CAP
    # Above 3.5, or between 0.5 and 2.5, one rate is 0. What is left: above 2.5 FPR is 3/4 and FNR 2/4
    assert one((1, 2, 3.25, 3.3), (3, 3.1, 3.2, 3.4), attacks=("single",)) < 1.2


def test_a_side_that_hardly_varies_is_given_away_by_that():
    wide = (-1.0, 0.0, 1.0, 2.0)
    assert one((0.4, 0.41, 0.42, 0.429), wide) == CAP
    assert one(wide, (0.4, 0.4, 0.4, 0.4)) == CAP
    assert one((0.5,) * 4, (0.6,) * 4) == CAP
    assert one((0.5,) * 4, (0.5,) * 4) == 0.0


def test_equal_margins_are_never_cut_apart():
    """Three of four are the same number on both sides: the only cut between numbers gives both rates 1/4 or 3/4."""
    assert one((1, 1, 1, 2), (1, 1, 1, 0), attacks=("single",)) == 0.0
    assert one((2, 2, 2, 1), (1, 1, 1, 2)) == pytest.approx(math.log((1 - DELTA - 1 / 4) * 4), abs=1e-12)
    order = [3, 0, 2, 1]
    same = per_example_epsilon(column(1, 1, 2, 2), column(1, 2, 2, 2))
    assert torch.equal(same, per_example_epsilon(column(1, 1, 2, 2)[order], column(1, 2, 2, 2)[order]))


# --- against the competition's thresholds ----------------------------------------------------------------------------


def rated(positive, negative, guessed, delta=DELTA):
    """Largest epsilon of attacks `guessed`, a function from margins (n,) to guesses (attacks, n)."""
    fnr, fpr = 1 - guessed(positive).mean(axis=1), guessed(negative).mean(axis=1)
    if ((fnr < 1e-9) & (fpr < 1e-9)).any():
        return CAP
    counts = (fnr > 1e-9) & (fpr > 1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        both = np.log((1 - delta - fpr) / fnr), np.log((1 - delta - fnr) / fpr)
    return max(0.0, np.nanmax(np.where(counts, both, -np.inf)))


def on_grid(p, q, per_unit=100):
    """Thresholds 100 per unit of margin, as the competition takes them: (single, double)."""
    positive, negative = (p, q) if np.median(p) >= np.median(q) else (q, p)
    low, high = min(p.min(), q.min()), max(p.max(), q.max())
    t = np.linspace(low, high, math.ceil((high - low) * per_unit))
    single = rated(positive, negative, lambda v: v[None] >= t[:, None])
    positive, negative = (p, q) if np.ptp(p) <= np.ptp(q) else (q, p)
    width, top = np.ptp(positive), positive.max()
    upper = np.linspace(top - BUFFER, top + BUFFER, math.ceil(2 * BUFFER * per_unit))
    off = np.linspace(-BUFFER, BUFFER, math.ceil(2 * BUFFER * per_unit))
    upper, lower = upper.repeat(len(off)), (upper[:, None] - width + off).ravel()
    return single, rated(positive, negative, lambda v: (lower[:, None] <= v[None]) & (v[None] <= upper[:, None]))


@pytest.mark.parametrize(("attack", "index"), [("single", 0), ("double", 1)])
@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (1.0, 1.0), (0.3, 3.0), (0.0, 0.2)])
def test_no_threshold_of_the_competitions_grid_does_better(attack, index, shift, spread):
    """Ours lie between any two margins, so epsilon is theirs or larger, and the same for nearly all examples."""
    p, q = spread * normal("p", 12, 8, shift=shift / spread), normal("q", 12, 8)
    found = per_example_epsilon(p, q, attacks=(attack,)).numpy()
    grid = np.array([on_grid(p[:, s].numpy(), q[:, s].numpy())[index] for s in range(8)])
    assert (found >= grid - 1e-6).all()
    assert (np.abs(found - grid) < 1e-6).mean() >= 0.7


def test_both_families_together_are_the_better_of_the_two():
    p, q = normal("p", 20, 30, shift=0.7), 1.5 * normal("q", 20, 30)
    single, double = (per_example_epsilon(p, q, attacks=(name,)) for name in ATTACKS)
    assert torch.equal(per_example_epsilon(p, q), torch.maximum(single, double))
    assert (single > double).any()
    assert (double > single).any()
    order = torch.arange(29, -1, -1)
    assert torch.equal(per_example_epsilon(p[:, order], q[:, order]), per_example_epsilon(p, q)[order])


# --- size and direction ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [64, 512])
def test_a_planted_shift_is_as_large_as_theory_has_it(n):
    """One sd apart, log(Phi(1 - t) / Phi(-t)) grows with t, so the best t leaves one of the n above. Of quantiles at
    (k + 1/2) / n that is the lowest t above the last but one: the rates are Phi(1 - t) and 1/n."""
    quantiles = column(*ndtri((np.arange(n) + 0.5) / n))
    t = -ndtri(1.5 / n)
    expected = math.log(ndtr(1 - t) * n)
    assert float(per_example_epsilon(quantiles + 1, quantiles, attacks=("single",))) == pytest.approx(
        expected, abs=0.05
    )


def test_larger_shifts_and_spreads_have_larger_epsilons_in_either_direction():
    q = normal("q", 64, 200)
    means = [float(per_example_epsilon(normal("p", 64, 200, shift=shift), q).mean()) for shift in (0, 0.5, 1, 2)]
    assert all(b > a + 0.1 for a, b in pairwise(means))
    below = float(per_example_epsilon(normal("p", 64, 200, shift=-2.0), q).mean())
    assert below == pytest.approx(means[-1], abs=0.15)
    spread = float(per_example_epsilon(0.1 * normal("p", 64, 200), q).mean())
    assert spread > means[0] + 1


def test_mirrored_margins_have_the_same_epsilon_up_to_which_side_is_cut():
    p, q = normal("p", 64, 100, shift=1.0), normal("q", 64, 100)
    assert torch.equal(per_example_epsilon(p, q), per_example_epsilon(q, p))
    mirrored = float(per_example_epsilon(-p, -q).mean())
    assert mirrored == pytest.approx(float(per_example_epsilon(p, q).mean()), abs=0.05)


def test_nothing_between_the_resolution_and_the_cap():
    """One wrong guess a side is the best that is counted, log(n - 1) up to delta, and can be reached."""
    n = 16
    low, high = torch.arange(n).double(), torch.arange(n).double() + n
    low[-1], high[0] = n + 0.5, n - 1.5
    assert float(per_example_epsilon(high[:, None], low[:, None])) == pytest.approx(resolution(n), abs=1e-12)
    assert resolution(n) == pytest.approx(math.log(n - 1), abs=2e-5)
    assert resolution(n, delta=0.01) == pytest.approx(math.log(0.99 * n - 1), abs=1e-12)
    epsilon = per_example_epsilon(3 * normal("p", n, 300, shift=1.0), normal("q", n, 300))
    assert ((epsilon <= resolution(n) + 1e-12) | (epsilon == CAP)).all()


def test_tables_that_remember_are_at_the_cap_and_unrelated_ones_at_the_floor():
    tables = Tables()
    blank, unrelated = (margins_of(tables.model, tables.trained(64, k), tables.x, tables.y) for k in "ab")
    remembers = margins_of(tables.model, tables.trained(64, "c", strength=14.0), tables.x, tables.y)
    assert per_example_epsilon(remembers, blank).tolist() == [CAP] * 40
    null = null_epsilon(64)
    four_errors = 4 * float(null.std()) / math.sqrt(40)
    assert float(per_example_epsilon(unrelated, blank).mean()) == pytest.approx(float(null.mean()), abs=four_errors)


# --- the floor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [16, 64, 256])
def test_a_perfect_method_is_far_from_zero_whatever_the_number_of_models(n):
    single, both = null_epsilon(n, draws=500, attacks=("single",)), null_epsilon(n, draws=500)
    assert float(single.mean()) == pytest.approx(1.17, abs=0.1)
    assert float(single.quantile(0.95)) == pytest.approx(2.0, abs=0.15)
    assert float(both.mean()) == pytest.approx(1.58, abs=0.1)
    assert score(single, n) == pytest.approx(0.34, abs=0.05)
    assert score(both, n) == pytest.approx(0.18, abs=0.03)


def test_by_single_thresholds_the_floor_depends_on_ranks_alone():
    p, q = normal("p", 32, 200), normal("q", 32, 200)
    assert torch.equal(
        per_example_epsilon(p, q, attacks=("single",)),
        per_example_epsilon(p.exp(), q.exp(), attacks=("single",)),
    )


def test_the_same_seed_has_the_same_floor_and_another_another():
    assert torch.equal(null_epsilon(8, draws=50), null_epsilon(8, draws=50))
    assert not torch.equal(null_epsilon(8, draws=50), null_epsilon(8, draws=50, seed=1))


def test_points_halve_with_every_half():
    """512 models: 14 bins up to 7. 0 and 0.49 have a point each, 0.5 half, 1 a fourth, 6.9 2^-13, 7 and CAP none."""
    epsilon = torch.tensor([0.0, 0.49, 0.5, 1.0, 6.9, 7.0, CAP])
    assert score(epsilon, 512) == pytest.approx((1 + 1 + 0.5 + 0.25 + 2**-13) / 7, abs=1e-12)
    assert score(torch.tensor([2.9, 3.0]), 16) == pytest.approx(2**-5 / 2, abs=1e-12)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_margins_and_settings_are_refused_by_name():
    good = normal("good", 8, 3)
    with pytest.raises(ValueError, match="attacks must be one of 'single', 'double', got 'triple'"):
        per_example_epsilon(good, good, attacks=("single", "triple"))
    with pytest.raises(ValueError, match="attacks must be at least one of 'single', 'double', got none"):
        per_example_epsilon(good, good, attacks=())
    for delta in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\)"):
            per_example_epsilon(good, good, delta=delta)
        with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\)"):
            resolution(8, delta=delta)
    with pytest.raises(ValueError, match="equally many models, got 8 and 7"):
        per_example_epsilon(good, good[:7])
    with pytest.raises(ValueError, match="same examples, got 3 and 2"):
        per_example_epsilon(good, good[:, :2])
    with pytest.raises(ValueError, match="models of unlearned must be a whole number >= 4, got 3"):
        per_example_epsilon(good[:3], good[:3])
    with pytest.raises(ValueError, match=r"unlearned must have shape \(N, S\)"):
        per_example_epsilon(good[0], good[0])
    with pytest.raises(NumericalFailure, match="retrained has a margin that is NaN"):
        per_example_epsilon(good, good * math.inf)
    for function in (resolution, null_epsilon, lambda n: score(torch.zeros(2), n)):
        with pytest.raises(ValueError, match="n must be a whole number >= 4, got 3"):
            function(3)
    for bad in (torch.tensor([-1.0]), torch.tensor([math.nan]), torch.zeros(0), torch.zeros(2, 2)):
        with pytest.raises(ValueError, match="epsilon must be numbers >= 0 of shape"):
            score(bad, 16)
