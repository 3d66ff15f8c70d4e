"""Canaries: the literature's numbers, and Gaussian releases whose epsilon is known, honest and not."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from fu_core.errors import NumericalFailure
from fu_core.evaluation.canaries import audit_canaries, canary_epsilon, canary_p_value, included_canaries
from fu_core.unlearning.gaussian_mechanism import gdp_mu

# --- numbers ---------------------------------------------------------------------------------------------------------


def test_the_p_value_without_delta_is_a_binomial_tail():
    assert canary_p_value(100, 100, 75, epsilon=math.log(3), delta=0.0) == pytest.approx(0.55347, abs=5e-6)
    assert canary_p_value(100, 100, 0, epsilon=1.0, delta=0.1) == 1.0
    assert canary_p_value(9, 4, 4, epsilon=0.0, delta=0.0) == 1 / 16


def test_the_p_value_with_delta_by_hand():
    """m = r = 2, v = 1, epsilon = 0: F(1) = 3/4, and F(0) - F(1) = 1/4 over i = 1."""
    assert canary_p_value(2, 2, 1, epsilon=0.0, delta=0.01) == pytest.approx(0.75 + 2 * 2 * 0.01 * 0.25)
    fractions = [sum(binom.pmf(range(20 - i, 20), 25, 0.5)) / i for i in range(1, 21)]
    expected = binom.sf(19, 25, 0.5) + 2 * 50 * 1e-3 * max(fractions)
    assert canary_p_value(50, 25, 20, epsilon=0.0, delta=1e-3) == pytest.approx(expected)
    assert canary_p_value(50, 25, 20, epsilon=0.0, delta=0.9) == 1.0


@pytest.mark.parametrize(
    ("m", "r", "v", "delta", "epsilon"),
    [
        (100, 100, 75, 0.0, 0.70221),
        (100, 100, 75, 1e-4, 0.69947),
        (1000, 100, 75, 1e-4, 0.67298),
        (100_000, 1510, 1439, 1e-5, 2.67585),
    ],
)
def test_the_published_epsilons(m, r, v, delta, epsilon):
    found = canary_epsilon(m, r, v, delta=delta)
    assert found == pytest.approx(epsilon, abs=5e-6)
    assert canary_p_value(m, r, v, epsilon=found, delta=delta) < 0.05
    assert canary_p_value(m, r, v, epsilon=found + 1e-9, delta=delta) >= 0.05


@pytest.mark.parametrize(("m", "ceiling"), [(16, 1.580), (64, 3.036), (128, 3.740), (256, 4.435), (1000, 5.782)])
def test_the_most_that_so_many_canaries_can_prove(m, ceiling):
    assert canary_epsilon(m, m, m, delta=1e-5) == pytest.approx(ceiling, abs=6e-4)
    assert canary_epsilon(m, m, m, delta=0.0) == pytest.approx(-math.log(0.05 ** (-1 / m) - 1), rel=1e-9)


def test_guesses_no_better_than_a_coin_prove_nothing():
    assert canary_epsilon(1000, 1000, 500, delta=0.0) == 0.0
    assert canary_epsilon(4, 4, 4, delta=0.0, alpha=0.0625) == 0.0  # 1/16 is not below alpha
    assert canary_epsilon(4, 4, 4, delta=0.0, alpha=0.0626) > 0.0


# --- one release -----------------------------------------------------------------------------------------------------


def test_the_guesses_by_hand():
    """Two guessed in, both right; three guessed out, of which one was in; the scores between are not guessed."""
    scores = torch.tensor([9.0, 1.0, 5.0, 8.0, 2.0, 4.0, 3.0])
    included = torch.tensor([True, False, True, True, True, False, False])
    found = audit_canaries(scores, included, k_plus=2, k_minus=3, delta=0.0)
    assert (found.right, found.guesses, found.canaries) == (4, 5, 7)
    assert found.largest == canary_epsilon(7, 5, 5, delta=0.0)
    only_in = audit_canaries(scores.numpy(), included.numpy(), k_plus=3, k_minus=0, delta=0.0)
    only_out = audit_canaries(scores, included, k_plus=0, k_minus=1, delta=0.0)
    assert (only_in.right, only_in.guesses, only_out.right, only_out.guesses) == (3, 3, 1, 1)


def test_a_fair_coin_for_every_canary():
    included = included_canaries(10_000, seed=3)
    assert included.dtype == bool
    assert included.mean() == pytest.approx(0.5, abs=0.02)  # four standard errors
    assert (included == included_canaries(10_000, seed=3)).all()
    assert (included != included_canaries(10_000, seed=4)).any()


def gaussian_release(m, mu, seed):
    """Canaries as unit vectors, summed if they are in, and published with noise 1 / mu: mu-GDP, a coordinate each."""
    included = included_canaries(m, seed=seed)
    return included + np.random.default_rng(seed).standard_normal(m) / mu, included


def test_an_honest_release_is_refuted_in_at_most_alpha_of_all_runs():
    """epsilon = 1 at delta = 1e-5 and the noise that it needs; 300 runs at alpha = 0.2."""
    refuted = sum(
        audit_canaries(*gaussian_release(500, gdp_mu(1.0, 1e-5), s), k_plus=30, k_minus=30, delta=1e-5, alpha=0.2)[0]
        > 1
        for s in range(300)
    )
    assert refuted / 300 <= 0.2


@pytest.mark.parametrize(("m", "k", "factor"), [(100_000, 500, 2), (1000, 50, 10)])
def test_noise_too_small_is_caught(m, k, factor):
    """Half the noise takes a hundred thousand canaries in one run, a tenth of it a thousand."""
    mu = gdp_mu(1.0, 1e-5)
    for seed in range(3):
        honest = audit_canaries(*gaussian_release(m, mu, seed), k_plus=k, k_minus=k, delta=1e-5)
        cheated = audit_canaries(*gaussian_release(m, factor * mu, seed), k_plus=k, k_minus=k, delta=1e-5)
        assert honest.epsilon <= 1 < cheated.epsilon <= cheated.largest


def test_a_constant_release_proves_nothing_in_95_percent():
    """Which guesses are right is left to the coins."""
    proved = []
    for seed in range(200):
        included = included_canaries(400, seed=seed)
        proved.append(audit_canaries(np.zeros(400), included, k_plus=40, k_minus=40, delta=0.0).epsilon > 0)
    assert np.mean(proved) <= 0.05


# --- errors ----------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_by_name():
    scores, included = np.arange(4.0), np.array([True, False, True, False])
    for given in (included[:3], included.astype(float)):
        with pytest.raises(ValueError, match=r"scores and included must both have shape \(m,\), included bool"):
            audit_canaries(scores, given, k_plus=1, k_minus=1, delta=0.0)
    for k in ((3, 2), (0, 0)):
        with pytest.raises(ValueError, match=r"k_plus \+ k_minus must lie between 1 and m = 4"):
            audit_canaries(scores, included, k_plus=k[0], k_minus=k[1], delta=0.0)
    with pytest.raises(ValueError, match="k_minus must be a whole number >= 0"):
        audit_canaries(scores, included, k_plus=1, k_minus=-1, delta=0.0)
    with pytest.raises(NumericalFailure, match="scores has a score that is NaN or infinite"):
        audit_canaries(np.array([0, 1, 2, math.nan]), included, k_plus=1, k_minus=1, delta=0.0)
    with pytest.raises(ValueError, match="must satisfy v <= r <= m, got 3, 2 and 4"):
        canary_p_value(4, 2, 3, epsilon=1.0, delta=0.0)
    with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\)"):
        canary_epsilon(4, 2, 1, delta=1.0)
    with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\)"):
        canary_epsilon(4, 2, 1, delta=0.0, alpha=0.0)
    with pytest.raises(ValueError, match="epsilon must be a finite number >= 0"):
        canary_p_value(4, 2, 1, epsilon=-1.0, delta=0.0)
    with pytest.raises(ValueError, match="m must be a whole number >= 1"):
        included_canaries(0, seed=0)
