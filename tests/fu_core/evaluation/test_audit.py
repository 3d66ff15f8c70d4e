"""The audit: never above the truth, not trivially below it, and certain where there is no noise."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import binom, norm

from fu_core.errors import NumericalFailure
from fu_core.evaluation.audit import (
    clopper_pearson_upper,
    epsilon_lower_bound,
    largest_provable,
    median_provable,
    model_direction,
    project,
    tuple_direction,
)
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon, gaussian_sigma, gdp_epsilon


def gaussian_worlds(distance, n, seed, sigma=1.0):
    """Scores of two worlds, N(distance, sigma^2) and N(0, sigma^2)."""
    rng = np.random.default_rng(seed)
    return distance + sigma * rng.standard_normal(n), sigma * rng.standard_normal(n)


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (9, 10), (17, 400)])
def test_at_the_upper_limit_so_few_hits_have_probability_alpha(k, n):
    upper = clopper_pearson_upper(k, n, alpha=0.025)
    assert binom.cdf(k, n, upper) == pytest.approx(0.025, rel=1e-9)
    assert upper > k / n


def test_upper_limits_in_closed_form():
    """No hit: 1 - alpha^(1/n); all but one in two trials: p^2 = 1 - alpha; only hits: 1."""
    assert clopper_pearson_upper(0, 100, alpha=0.025) == pytest.approx(1 - 0.025**0.01, rel=1e-12)
    assert clopper_pearson_upper(1, 2, alpha=0.1) == pytest.approx(math.sqrt(0.9), rel=1e-12)
    assert clopper_pearson_upper(7, 7, alpha=0.1) == 1.0


@pytest.mark.parametrize(("n", "value"), [(100, 3.28), (512, 4.93), (1000, 5.60), (10_000, 7.90)])
def test_the_largest_provable_epsilon(n, value):
    assert largest_provable(n) == pytest.approx(value, abs=0.005)


def test_the_largest_provable_epsilon_falls_with_delta_down_to_zero():
    limit = 1 - 0.025 ** (1 / 100)
    assert largest_provable(100, delta=0.3) == pytest.approx(math.log((0.7 - limit) / limit), rel=1e-12)
    assert largest_provable(100, delta=0.99) == 0.0
    assert largest_provable(1) == 0.0  # one model proves nothing
    assert largest_provable(100, alpha=0.5) > largest_provable(100)


# --- the bound -------------------------------------------------------------------------------------------------------


def test_the_bound_by_hand():
    """The first half (4 of 8) asks for a threshold between 2 and 5; on the second it errs once on A, never on B."""
    a = np.array([5.0, 6, 7, 8, 6, 7, 1, 9])
    b = np.array([0.0, 1, 2, 1, 0, 2, 1, 2])
    found = epsilon_lower_bound(a, b, delta=0.01, alpha=0.4)
    fpr, fnr = clopper_pearson_upper(0, 4, alpha=0.2), clopper_pearson_upper(1, 4, alpha=0.2)
    assert found.epsilon == pytest.approx(max(math.log((0.99 - fpr) / fnr), math.log((0.99 - fnr) / fpr)), rel=1e-12)
    assert found.epsilon > 0
    assert found[1:5] == (3.5, 0.0, 0.25, 4)
    assert found.largest == largest_provable(4, delta=0.01, alpha=0.4)
    assert found.above is True  # a plain bool: results go into records


def test_errors_are_counted_on_the_second_half_only():
    """The first half separates perfectly, the second the other way round: every guess is wrong, nothing is proved."""
    a, b = np.repeat([1.0, 0.0], 100), np.repeat([0.0, 1.0], 100)
    found = epsilon_lower_bound(a, b, delta=0.0)
    assert (found.false_positive_rate, found.false_negative_rate) == (1.0, 1.0)
    assert found.epsilon == 0.0


def test_without_noise_the_bound_is_the_largest_provable():
    """Total variation 1: all scores equal within a world, different between them. Either may be the larger one."""
    ulp = np.finfo(float).eps  # neighbouring floats: their mean is one of them, once the lower, once the upper
    for low, high in ((0.0, 1.0), (0.1, 0.1 + 1e-9), (1.0, 1 + ulp), (1 + ulp, 1 + 2 * ulp), (-1e308, 1e308)):
        for a, b in ((high, low), (low, high)):
            found = epsilon_lower_bound(np.full(1024, a), np.full(1024, b), delta=1e-5)
            assert found.epsilon == found.largest == largest_provable(512, delta=1e-5)
            assert found.above == (a > b)


def test_rounding_within_a_world_does_not_hide_that_there_is_no_noise():
    rng = np.random.default_rng(0)
    a, b = (value + 1e-15 * rng.standard_normal(1000) for value in (0.3, 0.2))
    assert epsilon_lower_bound(a, b, delta=0.0).epsilon == largest_provable(500)


@pytest.mark.parametrize("scores", [np.zeros(200), gaussian_worlds(0, 200, 0)[0]], ids=["constant", "noisy"])
def test_identical_worlds_prove_nothing(scores):
    assert epsilon_lower_bound(scores, scores, delta=0.0).epsilon == 0.0


def test_worlds_of_the_same_distribution_prove_nothing_in_95_percent():
    found = [epsilon_lower_bound(*gaussian_worlds(0, 400, s), delta=0.0).epsilon for s in range(200)]
    assert np.mean(np.array(found) > 0) <= 0.05


@pytest.mark.parametrize(
    ("distance", "delta", "n", "fraction"),
    [(2.0, 0.1, 1000, 0.5), (2.0, 0.2, 1000, 0.6), (2.0, 1e-5, 1000, 0.25), (1.0, 1e-5, 100_000, 0.5)],
)
def test_two_gaussians_the_bound_is_below_the_truth_and_not_trivial(distance, delta, n, fraction):
    """In at least 95 of 100 audits below gaussian_epsilon, and in half of them above `fraction` of it.

    At delta = 1e-5 the true epsilon sits in tails that a thousand models do not reach, hence the small fraction.
    """
    truth = gaussian_epsilon(distance, 1.0, delta=delta)
    found = [epsilon_lower_bound(*gaussian_worlds(distance, n, s), delta=delta).epsilon for s in range(100)]
    assert np.mean(np.array(found) <= truth) >= 0.95
    assert np.median(found) > fraction * truth


@pytest.mark.parametrize("n", [60, 1000])
def test_randomised_response_the_bound_is_below_the_truth_and_close(n):
    """World A answers 1 with probability 3/4, B with 1/4: epsilon = log 3 at delta = 0, for every n."""
    rng = np.random.default_rng(1)
    worlds = (rng.random((300, 2, n)) < np.array([0.75, 0.25])[:, None]).astype(float)
    found = np.array([epsilon_lower_bound(a, b, delta=0.0).epsilon for a, b in worlds])
    assert np.mean(found <= math.log(3)) >= 0.95
    assert np.median(found) > (0.8 if n == 1000 else 0.2) * math.log(3)


def test_more_noise_proves_less_and_more_models_prove_more():
    def median(sigma, n):
        return np.median([epsilon_lower_bound(*gaussian_worlds(1, n, s, sigma), delta=1e-5).epsilon for s in range(20)])

    by_noise = [median(sigma, 1000) for sigma in (0.05, 0.3, 0.5, 1.0, 3.0)]
    assert by_noise[0] == largest_provable(500, delta=1e-5)
    assert all(more > less for more, less in pairwise(by_noise))
    assert median(0.5, 100) < median(0.5, 1000) < median(0.5, 10_000)


def test_a_certificate_with_too_little_noise_is_refuted_and_a_right_one_is_not():
    """Noise for epsilon = 1, and a tenth of it, at distance = sensitivity."""
    sigma = gaussian_sigma(1.0, epsilon=1.0, delta=1e-5)
    right = [epsilon_lower_bound(*gaussian_worlds(1, 1000, s, sigma), delta=1e-5).epsilon for s in range(50)]
    wrong = [epsilon_lower_bound(*gaussian_worlds(1, 1000, s, sigma / 10), delta=1e-5).epsilon for s in range(50)]
    assert np.mean(np.array(right) <= 1) >= 0.95
    assert min(wrong) > 1


def test_the_result_is_the_same_twice_and_for_tensors_and_arrays():
    a, b = gaussian_worlds(2, 300, 0)
    found = epsilon_lower_bound(a, b, delta=0.1)
    assert epsilon_lower_bound(torch.from_numpy(a), torch.from_numpy(b), delta=0.1) == found
    assert epsilon_lower_bound(a, b, delta=0.1) == found


def test_swapping_the_worlds_or_turning_the_scores_around_changes_nothing():
    a, b = gaussian_worlds(2, 300, 0)
    found = epsilon_lower_bound(a, b, delta=0.1)
    turned = epsilon_lower_bound(-a, -b, delta=0.1)
    assert turned.epsilon == found.epsilon
    assert turned.above != found.above
    assert epsilon_lower_bound(b, a, delta=0.1).epsilon == found.epsilon


# --- the bound of Gaussian differential privacy ----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "mu"), [(50, 2.94), (100, 3.59), (512, 4.90), (1000, 5.36), (10_000, 6.75)])
def test_the_largest_provable_mu(n, mu):
    found = epsilon_lower_bound(np.ones(n), np.zeros(n), delta=1e-5, bound="gdp", threshold=0.5)
    assert found.mu == pytest.approx(mu, abs=0.006)
    assert found.epsilon == found.largest == largest_provable(n, delta=1e-5, bound="gdp")
    assert found.epsilon == pytest.approx(gdp_epsilon(found.mu, 1e-5))


def test_the_gdp_bound_by_hand():
    """Two of eight in world B taken for A, one of eight in A for B: mu >= Phi^-1(1 - FPR+) - Phi^-1(FNR+)."""
    a, b = np.array([1.0, 1, 1, 1, 1, 1, 1, 0]), np.array([1.0, 1, 0, 0, 0, 0, 0, 0])
    found = epsilon_lower_bound(a, b, delta=0.01, alpha=0.5, bound="gdp", threshold=0.5)
    fpr, fnr = clopper_pearson_upper(2, 8, alpha=0.25), clopper_pearson_upper(1, 8, alpha=0.25)
    assert found.mu == pytest.approx(norm.ppf(1 - fpr) - norm.ppf(fnr), rel=1e-12)
    assert found.mu > 0
    assert found.epsilon == pytest.approx(gdp_epsilon(found.mu, 0.01), rel=1e-12)
    assert found[2:5] == (0.25, 0.125, 8)
    assert epsilon_lower_bound(a, b, delta=0.01).mu is None


def audits_of_gaussians(mu, n, audits, **options):
    """mu proved in each of so many audits of N(mu, 1) against N(0, 1), at delta = 1e-5."""
    return np.array([epsilon_lower_bound(*gaussian_worlds(mu, n, s), delta=1e-5, bound="gdp", **options).mu
                     for s in range(audits)])  # fmt: skip


@pytest.mark.parametrize(("mu", "half_way", "picked"), [(0.5, 0.34, 0.2), (1.0, 0.84, 0.7), (2.0, 1.81, 1.65)])
def test_a_thousand_models_prove_most_of_mu_and_too_much_in_one_audit_of_a_hundred(mu, half_way, picked):
    """Medians guessing half-way, and with thresholds picked by half of the models or out of all scores."""
    fixed = audits_of_gaussians(mu, 1000, 300, threshold=mu / 2)
    assert np.median(fixed) == pytest.approx(half_way, abs=0.02)
    assert gdp_epsilon(half_way, 1e-5) == pytest.approx(median_provable(mu, 1000, delta=1e-5), rel=0.02)
    for threshold in ("half", "all"):
        found = audits_of_gaussians(mu, 1000, 300, threshold=threshold)
        assert np.median(found) > 0.9 * picked
        assert np.mean(found > mu) <= 0.02
    assert np.mean(fixed > mu) <= 0.02


def test_it_proves_three_times_as_much_as_the_ratio():
    worlds = [gaussian_worlds(2.0, 1000, s) for s in range(50)]
    gdp, ratio = (np.median([epsilon_lower_bound(*w, delta=1e-5, bound=bound).epsilon for w in worlds])
                  for bound in ("gdp", "ratio"))  # fmt: skip
    assert 2.5 < gdp / ratio < 3.5
    assert gdp > 0.75 * gdp_epsilon(2.0, 1e-5)


@pytest.mark.parametrize("threshold", ["half", "all"])
def test_few_scores_and_many_thresholds_still_prove_nothing_of_nothing(threshold):
    """Sixteen models per world, alpha 0.5, no difference: the best of all guesses looks like something."""
    found = audits_of_gaussians(0.0, 16, 400, threshold=threshold, alpha=0.5)
    assert np.mean(found > 0) <= 0.5


def test_all_thresholds_by_hand():
    """Four models, sixteen guesses: the best one splits the worlds, and its own score counts against it twice."""
    a, b = np.array([5.0, 6, 7, 8]), np.array([1.0, 2, 3, 4])
    found = epsilon_lower_bound(a, b, delta=0.01, alpha=0.9, bound="gdp", threshold="all")
    assert (found.threshold, found.above, found.n) == (4.0, True, 4)
    assert (found.false_positive_rate, found.false_negative_rate) == (0.0, 0.0)
    limit = clopper_pearson_upper(1, 4, alpha=0.9 / 32)
    assert found.mu == max(0.0, -2 * norm.ppf(limit))
    ratio = epsilon_lower_bound(np.repeat(a, 100), np.repeat(b, 100), delta=0.01, alpha=0.9, threshold="all")
    limit = clopper_pearson_upper(1, 400, alpha=0.9 / 3200)
    assert ratio.epsilon == ratio.largest == pytest.approx(math.log((0.99 - limit) / limit), rel=1e-12)


def test_a_fixed_threshold_guesses_a_above_it():
    a, b = gaussian_worlds(2, 400, 0)
    right, wrong = (epsilon_lower_bound(*w, delta=1e-5, bound="gdp", threshold=1.0) for w in ((a, b), (b, a)))
    assert right.epsilon > 5
    assert wrong.epsilon == 0.0
    assert (right.threshold, right.above, right.n) == (1.0, True, 400)


# --- projections -----------------------------------------------------------------------------------------------------


def test_scores_are_inner_products():
    samples, direction = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.0, -1.0]]), torch.tensor([3.0, 0.5])
    scores = project(samples, direction)
    assert scores.tolist() == [4.0, 11.0, -0.5]
    assert scores.dtype == torch.float64


def test_the_direction_between_two_models_is_the_normalised_difference():
    direction = model_direction(torch.tensor([4.0, 1.0]), torch.tensor([1.0, 5.0]))
    torch.testing.assert_close(direction, torch.tensor([0.6, -0.8], dtype=torch.float64), rtol=0, atol=1e-15)
    a, b = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(model_direction(a, b), ((a - b) / (a - b).norm()).flatten())


def test_equal_models_have_no_direction_and_rounding_makes_none():
    model = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert model_direction(model, model.clone()) is None
    assert model_direction(model, model * (1 + 1e-14)) is None
    assert model_direction(model, model * (1 + 1e-14), rtol=1e-15) is not None
    assert model_direction(torch.zeros(3), torch.zeros(3)) is None


def test_of_all_projections_the_direction_between_the_models_proves_most():
    """d = 5, noise 1, distance 3: along a - b the scores are 3 apart, along the first axis less."""
    g = torch.Generator().manual_seed(0)
    difference = torch.tensor([1.0, 2.0, 0.0, -2.0, 0.0], dtype=torch.float64)
    a, b = (center + torch.randn(2000, 5, generator=g, dtype=torch.float64) for center in (difference, 0 * difference))
    best = model_direction(difference, torch.zeros(5))
    axis = torch.eye(5, dtype=torch.float64)[0]
    along = epsilon_lower_bound(project(a, best), project(b, best), delta=0.05)
    askew = epsilon_lower_bound(project(a, axis), project(b, axis), delta=0.05)
    assert along.epsilon > askew.epsilon + 0.5
    # four standard errors of 1000 models
    assert along.false_positive_rate == pytest.approx(ndtr(-along.threshold), abs=0.06)
    assert along.false_negative_rate == pytest.approx(ndtr(along.threshold - 3), abs=0.06)


def test_the_tuple_direction_is_what_the_mean_over_clients_leaves():
    """Differences (1, 0) and (-1, 4) have mean (0, 2): what is left is (1, -2) and (-1, 2), over sqrt 10."""
    a = torch.tensor([[1.0, 1.0], [0.0, 5.0]])
    b = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    expected = torch.tensor([1.0, -2.0, -1.0, 2.0], dtype=torch.float64) / math.sqrt(10)
    torch.testing.assert_close(tuple_direction(a, b), expected, rtol=0, atol=1e-15)


def test_clients_in_consensus_have_no_tuple_direction():
    """All rows move alike: noise shared by all clients covers the whole difference."""
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert tuple_direction(rows + torch.tensor([0.1, 0.2, 0.3]), rows) is None
    assert tuple_direction(rows, rows) is None
    assert tuple_direction(rows[:1], 2 * rows[:1]) is None  # one client
    assert tuple_direction(rows, 2 * rows) is not None


def test_shared_noise_hides_each_model_but_not_the_tuple():
    """Errata D1: every single model passes its audit, the differences between clients have total variation 1.

    Noise of its own for every client closes the gap: then even the best projection of the tuple proves little.
    """
    g = torch.Generator().manual_seed(0)
    clients, d, n, sigma = 10, 6, 400, 50.0
    a = torch.randn(clients, d, generator=g, dtype=torch.float64)
    b = a + 0.01 * torch.randn(clients, d, generator=g, dtype=torch.float64)

    def published(models, shared):
        noise = sigma * torch.randn(n, 1 if shared else clients, d, generator=g, dtype=torch.float64)
        return models + noise

    worlds = published(a, shared=True), published(b, shared=True)
    for client in range(clients):
        u = model_direction(a[client], b[client])
        one = epsilon_lower_bound(*(project(world[:, client], u) for world in worlds), delta=1e-5)
        assert one.epsilon < 0.3
    u = tuple_direction(a, b)
    joint = epsilon_lower_bound(*(project(world.flatten(1), u) for world in worlds), delta=1e-5)
    assert joint.epsilon == joint.largest == largest_provable(200, delta=1e-5)

    worlds = published(a, shared=False), published(b, shared=False)
    u = model_direction(a, b)
    assert epsilon_lower_bound(*(project(world.flatten(1), u) for world in worlds), delta=1e-5).epsilon < 0.3


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_scores_are_refused_by_name():
    good = np.arange(4.0)
    with pytest.raises(ValueError, match="equally many scores, got 4 and 3"):
        epsilon_lower_bound(good, good[:3], delta=0.0)
    with pytest.raises(ValueError, match="world_a must hold at least 2 scores"):
        epsilon_lower_bound(good[:1], good[:1], delta=0.0)
    with pytest.raises(ValueError, match=r"world_b must hold .* got shape \(2, 2\)"):
        epsilon_lower_bound(good, good.reshape(2, 2), delta=0.0)
    for bad in (math.nan, math.inf):
        with pytest.raises(NumericalFailure, match="world_b has a score that is NaN or infinite"):
            epsilon_lower_bound(good, np.array([0, 1, 2, bad]), delta=0.0)


def test_bad_levels_and_counts_are_refused_by_name():
    good = np.arange(4.0)
    for delta in (-0.1, 1.0, math.nan, "a", None):
        with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\)"):
            epsilon_lower_bound(good, good, delta=delta)
        with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\)"):
            largest_provable(10, delta=delta)
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\)"):
            epsilon_lower_bound(good, good, delta=0.0, alpha=alpha)
        with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\)"):
            clopper_pearson_upper(1, 2, alpha=alpha)
    for delta in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
            epsilon_lower_bound(good, good, delta=delta, bound="gdp")
        with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
            median_provable(1.0, 10, delta=delta)
    with pytest.raises(ValueError, match="bound must be one of 'ratio', 'gdp', got 'gpd'"):
        epsilon_lower_bound(good, good, delta=0.1, bound="gpd")
    for threshold in ("some", math.nan, math.inf, None, [0.5], 10**400):
        with pytest.raises(ValueError, match="threshold must be 'half', 'all' or a finite number"):
            epsilon_lower_bound(good, good, delta=0.1, threshold=threshold)
    with pytest.raises(ValueError, match="mu must be a finite number >= 0"):
        median_provable(-1.0, 10, delta=0.1)
    with pytest.raises(ValueError, match="n must be a whole number >= 1"):
        median_provable(1.0, 0, delta=0.1)
    with pytest.raises(ValueError, match="k must be at most n = 3, got 4"):
        clopper_pearson_upper(4, 3, alpha=0.1)
    with pytest.raises(ValueError, match="k must be a whole number >= 0"):
        clopper_pearson_upper(-1, 3, alpha=0.1)
    with pytest.raises(ValueError, match="n must be a whole number >= 1"):
        largest_provable(0)


def test_a_threshold_is_a_number_of_any_kind():
    a, b = gaussian_worlds(2.0, 50, 0)
    found = epsilon_lower_bound(a, b, delta=0.0, threshold=1.0)
    for one in (1, np.float64(1), np.float32(1), np.int64(1)):
        assert epsilon_lower_bound(a, b, delta=0.0, threshold=one) == found


def test_models_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ValueError, match="same shape"):
        model_direction(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"both have shape \(N, d\)"):
        tuple_direction(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"shapes \(n, d\) and \(d,\), got \(5, 3\) and \(4,\)"):
        project(torch.zeros(5, 3), torch.zeros(4))
    with pytest.raises(NumericalFailure, match="noise-free models must be finite"):
        model_direction(torch.zeros(2), torch.tensor([0.0, math.nan]))
