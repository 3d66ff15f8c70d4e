"""The Gaussian mechanism against closed forms, many digits, a simulation, another library, and the errata's numbers."""

import math

import dp_accounting as theirs
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from fu_core.unlearning.gaussian_mechanism import (
    composed_mu,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    gaussian_sigma,
    gdp_epsilon,
    gdp_mu,
)

EPSILONS = (0.01, 0.5, 1.0, 3.0, 20.0, 100.0)
DELTAS = (1e-12, 1e-5, 1e-2, 0.3)

noise_levels = st.floats(0.05, 50.0)
epsilons = st.floats(0.01, 50.0)
deltas = st.floats(1e-12, 0.9)


# --- closed forms ----------------------------------------------------------------------------------------------------


def test_at_epsilon_zero_delta_is_the_total_variation_distance():
    """Two Gaussians at distance 3 with standard deviation 2: 2 Phi(3 / 4) - 1."""
    assert gaussian_delta(3.0, 2.0, epsilon=0.0) == pytest.approx(2 * ndtr(0.75) - 1, rel=1e-14)


def test_delta_where_its_first_term_is_one_half():
    """a = b = 1, so epsilon = 2 and delta = 1/2 - e^2 Phi(-2); a = b = sqrt(epsilon / 2) in general."""
    assert gaussian_delta(2.0, 1.0, epsilon=2.0) == pytest.approx(0.5 - math.exp(2) * ndtr(-2), rel=1e-13)


def test_without_noise_nothing_is_private_and_without_sensitivity_everything():
    assert gaussian_delta(1.0, 0.0, epsilon=1.0) == 1.0
    assert gaussian_delta(0.0, 0.0, epsilon=1.0) == 0.0
    assert gaussian_delta(0.0, 2.0, epsilon=0.0) == 0.0
    assert gaussian_epsilon(1.0, 0.0, delta=0.1) == math.inf
    assert gaussian_epsilon(0.0, 0.0, delta=0.1) == 0.0
    assert gaussian_sigma(0.0, epsilon=1.0, delta=1e-5) == 0.0


def test_so_much_noise_that_epsilon_is_zero():
    """The total variation distance 2 Phi(1 / 2 sigma) - 1 is 0.0399 at sigma = 10: below delta = 0.04, above 0.039."""
    assert gaussian_epsilon(1.0, 10.0, delta=0.04) == 0.0
    assert gaussian_epsilon(1.0, 10.0, delta=0.039) > 0.0


def test_extreme_noise_neither_overflows_nor_divides_by_zero():
    assert gaussian_delta(1.0, 1e-300, epsilon=500.0) == 1.0
    assert gaussian_delta(1.0, 1e300, epsilon=500.0) == 0.0
    assert gaussian_epsilon(1.0, 1e-200, delta=1e-5) == math.inf  # 5e399 is not a float
    assert gaussian_epsilon(1.0, 1e-100, delta=1e-5) == pytest.approx(5e199)


def test_delta_has_nine_digits_far_into_the_tail():
    """Theorem 8 with 60 digits. sigma is chosen such that b - a = t: delta runs from 1 to 1e-290."""
    smallest = 1.0
    with mp.workdps(60):
        for epsilon in (1e-3, 0.1, 1.0, 30.0, 500.0):
            for t in (*np.arange(-8, 36, 2.0), 36.5):
                sigma = float((t + math.sqrt(t * t + 2 * epsilon)) / (2 * epsilon))
                a, b = 1 / (2 * mp.mpf(sigma)), epsilon * mp.mpf(sigma)
                truth = mp.ncdf(a - b) - mp.exp(epsilon) * mp.ncdf(-a - b)
                if truth > 1e-300:
                    assert abs(gaussian_delta(1.0, sigma, epsilon=epsilon) / truth - 1) < 1e-9, (epsilon, t)
                    smallest = min(smallest, float(truth))
    assert smallest < 1e-290  # the tail was visited


def test_delta_is_what_a_simulation_finds_on_the_worst_set():
    """P(x + noise in W) - e^epsilon P(x' + noise in W) on W = {density ratio > e^epsilon}, in three dimensions.

    No other set has more; within four standard errors of a million draws.
    """
    rng, n, epsilon, sigma = np.random.default_rng(0), 1_000_000, 1.0, 0.7
    x, x_prime = np.array([1.0, -0.5, 0.2]), np.array([0.3, 0.1, 0.4])

    def share(center, level):
        z = center + sigma * rng.standard_normal((n, 3))
        log_ratio = (((z - x_prime) ** 2).sum(1) - ((z - x) ** 2).sum(1)) / (2 * sigma**2)
        return (log_ratio > level).mean()

    def excess(level):
        return share(x, level) - math.exp(epsilon) * share(x_prime, level)

    delta = gaussian_delta(float(np.linalg.norm(x - x_prime)), sigma, epsilon=epsilon)
    error = math.sqrt((1 + math.exp(2 * epsilon)) / 4 / n)
    assert excess(epsilon) == pytest.approx(delta, abs=4 * error)
    assert excess(epsilon + 0.7) < delta - 4 * error
    assert excess(epsilon - 0.7) < delta - 4 * error


# --- solving for epsilon and sigma -----------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_sigma_is_enough_and_nothing_smaller_is(epsilon, delta):
    sigma = gaussian_sigma(2.5, epsilon=epsilon, delta=delta)
    assert gaussian_delta(2.5, sigma, epsilon=epsilon) <= delta
    assert gaussian_delta(2.5, sigma * (1 - 1e-9), epsilon=epsilon) > delta


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_comes_back_from_its_sigma(epsilon, delta):
    sigma = gaussian_sigma(2.5, epsilon=epsilon, delta=delta)
    assert gaussian_epsilon(2.5, sigma, delta=delta) == pytest.approx(epsilon, rel=1e-9)


@given(epsilon=epsilons, delta=deltas, scale=st.floats(1e-6, 1e6))
def test_sigma_is_proportional_to_the_sensitivity(epsilon, delta, scale):
    one = gaussian_sigma(1.0, epsilon=epsilon, delta=delta)
    assert gaussian_sigma(scale, epsilon=epsilon, delta=delta) == pytest.approx(scale * one, rel=1e-9)


@given(sigma=noise_levels, more=st.floats(1.001, 10.0), epsilon=epsilons)
def test_delta_falls_with_noise_and_epsilon_and_grows_with_sensitivity(sigma, more, epsilon):
    delta = gaussian_delta(1.0, sigma, epsilon=epsilon)
    assert 0 <= delta <= 1
    assert gaussian_delta(1.0, sigma * more, epsilon=epsilon) <= delta
    assert gaussian_delta(1.0, sigma, epsilon=epsilon * more) <= delta
    assert gaussian_delta(more, sigma, epsilon=epsilon) >= delta
    if 1e-300 < delta < 0.999:
        assert gaussian_delta(1.0, sigma * more, epsilon=epsilon) < delta
        assert gaussian_delta(1.0, sigma, epsilon=epsilon * more) < delta


@given(sigma=noise_levels, more=st.floats(1.001, 10.0), delta=deltas)
def test_epsilon_falls_with_noise_and_with_delta(sigma, more, delta):
    epsilon = gaussian_epsilon(1.0, sigma, delta=delta)
    assert gaussian_epsilon(1.0, sigma * more, delta=delta) <= epsilon
    assert gaussian_epsilon(1.0, sigma, delta=min(delta * more, 0.99)) <= epsilon
    if epsilon > 0:
        assert gaussian_epsilon(1.0, sigma * more, delta=delta) < epsilon


@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_classical_sigma_is_larger_than_needed_where_it_holds(epsilon, delta):
    classical = gaussian_sigma(1.0, epsilon=epsilon, delta=delta, mechanism="classical")
    assert classical == pytest.approx(math.sqrt(2 * math.log(1.25 / delta)) / epsilon, rel=1e-14)
    assert gaussian_sigma(1.0, epsilon=epsilon, delta=delta) < classical


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 100.0])
def test_another_library_agrees(epsilon, delta):
    """Google's dp-accounting, an independent implementation (log scale and Brent's method)."""
    sigma = gaussian_sigma(1.0, epsilon=epsilon, delta=delta)
    assert sigma == pytest.approx(theirs.get_sigma_gaussian(epsilon, delta), rel=1e-8)
    assert gaussian_epsilon(1.0, 1.3 * sigma, delta=delta) == pytest.approx(
        theirs.get_epsilon_gaussian(1.3 * sigma, delta), rel=1e-8
    )


# --- Gaussian differential privacy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "epsilon"), [(0.1, 0.341), (0.25, 0.926), (0.5, 1.993), (1.0, 4.377), (2.0, 9.997)])
def test_epsilon_of_mu(mu, epsilon):
    assert gdp_epsilon(mu, 1e-5) == pytest.approx(epsilon, abs=5e-4)
    assert gdp_epsilon(mu, 1e-5) == pytest.approx(theirs.get_epsilon_gaussian(1 / mu, 1e-5), rel=1e-8)
    assert gdp_mu(gdp_epsilon(mu, 1e-5), 1e-5) == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"), [(1, 1e-5, 0.26805), (1, 1e-4, 0.31390), (0.5, 1e-5, 0.14221), (5, 1e-5, 1.12124)]
)
def test_the_mu_that_a_guarantee_allows(epsilon, delta, mu):
    assert gdp_mu(epsilon, delta) == pytest.approx(mu, abs=5e-6)
    assert gdp_mu(epsilon, delta) == pytest.approx(1 / theirs.get_sigma_gaussian(epsilon, delta), rel=1e-8)


def test_mu_is_sensitivity_over_sigma():
    assert gaussian_mu(3.0, 2.0) == 1.5
    assert gaussian_delta(3.0, 3.0, epsilon=1.0) == pytest.approx(0.126937, abs=5e-7)  # mu = 1
    assert gdp_epsilon(gaussian_mu(3.0, 2.0), 1e-5) == pytest.approx(gaussian_epsilon(3.0, 2.0, delta=1e-5), rel=1e-12)
    assert (gaussian_mu(0.0, 0.0), gaussian_mu(0.0, 1.0), gaussian_mu(1.0, 0.0)) == (0.0, 0.0, math.inf)


def test_releases_compose_as_another_library_composes_them():
    """Ten at mu = 0.1 are one at 0.3162; dp-accounting convolves their privacy loss distributions instead."""
    assert composed_mu([0.1] * 10) == pytest.approx(0.3162, abs=5e-5)
    assert composed_mu([3.0, 4.0]) == 5.0
    assert composed_mu([]) == 0.0
    loss = theirs.pld.privacy_loss_distribution.from_gaussian_mechanism(1 / 0.3, value_discretization_interval=1e-4)
    together = loss.self_compose(4).get_epsilon_for_delta(1e-5)  # an upper bound, by the discretisation
    assert gdp_epsilon(composed_mu([0.3] * 4), 1e-5) == pytest.approx(together, rel=1e-3)


# --- what it says about certified DFL --------------------------------------------------------------------------------

D3 = [  # clients N, claimed epsilon, certified epsilon, delta at the claimed epsilon (None: not in the errata)
    (10, 0.5, 1.24, 0.011),
    (10, 1.0, 2.69, 0.028),
    (10, 3.0, 9.74, 0.17),
    (100, 0.5, 4.54, None),
    (100, 1.0, 10.4, None),
    (100, 3.0, 44.8, None),
]


@pytest.mark.parametrize(("clients", "claimed", "certified", "delta"), D3)
def test_when_all_clients_ask_the_printed_noise_certifies_less_than_claimed(clients, claimed, certified, delta):
    """Errata D3, r = N: sensitivity Delta F, but the mean of N noises has only 1 / sqrt(N) of the printed sigma."""
    sensitivity = 0.3
    printed = gaussian_sigma(sensitivity, epsilon=claimed, delta=1e-5, mechanism="classical")
    applied = printed / math.sqrt(clients)
    assert gaussian_epsilon(sensitivity, applied, delta=1e-5) == pytest.approx(certified, rel=5e-3)
    if delta is not None:
        assert gaussian_delta(sensitivity, applied, epsilon=claimed) == pytest.approx(delta, rel=0.03)


def classical_delta(epsilon, delta):
    """The real delta of the classical sigma."""
    return gaussian_delta(
        1.0, gaussian_sigma(1.0, epsilon=epsilon, delta=delta, mechanism="classical"), epsilon=epsilon
    )


@pytest.mark.parametrize(("delta", "last"), [(1e-5, 8.4), (1e-3, 7.4), (1e-2, 6.7)])
def test_the_classical_sigma_holds_a_little_beyond_its_proof(delta, last):
    """Errata D8: proved for epsilon < 1, true up to `last`, false from the next tenth on."""
    assert all(classical_delta(epsilon, delta) <= delta for epsilon in np.arange(0.1, last + 1e-9, 0.1).tolist())
    assert classical_delta(last + 0.1, delta) > delta


def test_at_epsilon_20_the_classical_sigma_misses_its_delta_150_times():
    """Errata D8: 1.5e-3 instead of 1e-5. The analytic sigma is larger there, and right."""
    assert classical_delta(20.0, 1e-5) == pytest.approx(1.5e-3, rel=0.03)
    sigma = gaussian_sigma(1.0, epsilon=20.0, delta=1e-5)
    assert sigma > gaussian_sigma(1.0, epsilon=20.0, delta=1e-5, mechanism="classical")
    assert gaussian_delta(1.0, sigma, epsilon=20.0) == pytest.approx(1e-5, rel=1e-9)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_delta_must_lie_strictly_between_zero_and_one(delta):
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
        gaussian_sigma(1.0, epsilon=1.0, delta=delta)
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
        gaussian_epsilon(1.0, 1.0, delta=delta)


@pytest.mark.parametrize("bad", [-1.0, math.inf, math.nan])
def test_bad_numbers_are_refused_by_name(bad):
    for name, call in {
        "sensitivity": lambda: gaussian_sigma(bad, epsilon=1.0, delta=0.1),
        "epsilon": lambda: gaussian_sigma(1.0, epsilon=bad, delta=0.1),
        "sigma": lambda: gaussian_delta(1.0, bad, epsilon=1.0),
    }.items():
        with pytest.raises(ValueError, match=f"{name} must be a finite number"):
            call()
    with pytest.raises(ValueError, match="sensitivity must be a finite number"):
        gaussian_delta(bad, 1.0, epsilon=1.0)
    with pytest.raises(ValueError, match="epsilon must be a finite number"):
        gaussian_delta(1.0, 1.0, epsilon=bad)
    with pytest.raises(ValueError, match="sigma must be a finite number"):
        gaussian_epsilon(1.0, bad, delta=0.1)
    for call in (lambda: gdp_epsilon(bad, 0.1), lambda: composed_mu([1.0, bad])):
        with pytest.raises(ValueError, match="mu must be a finite number"):
            call()
    with pytest.raises(ValueError, match="sensitivity must be a finite number"):
        gaussian_mu(bad, 1.0)
    with pytest.raises(ValueError, match="epsilon must be a finite number"):
        gdp_mu(bad, 0.1)


def test_a_sigma_for_epsilon_zero_is_refused():
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0, got 0"):
        gaussian_sigma(1.0, epsilon=0.0, delta=0.1)


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(ValueError, match="mechanism must be one of 'analytic', 'classical'"):
        gaussian_sigma(1.0, epsilon=1.0, delta=0.1, mechanism="analytical")
