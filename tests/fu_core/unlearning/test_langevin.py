"""Langevin unlearning (Chien et al. 2024): the published epsilons, Gaussians in closed form, sequences, refusals."""

import math
from dataclasses import replace

import pytest
import torch

from fu_core.errors import CertificateViolation
from fu_core.unlearning.baselines.langevin import Langevin, Walk, calibrated, noisy_descent, prepare, release
from fu_core.unlearning.noise import Noise, rehearsal
from fu_core.unlearning.sums import Bounds, Sums, as_linear
from tests.certified_peers_lab import logistic, softmax, without
from tests.quadratics import Quadratics

N = 11982  # MNIST, 3 against 8
LAM = 1e-6 * N


@pytest.fixture(autouse=True)
def rehearsed():
    """Numbers of noise may be used again by the next test."""
    with rehearsal():
        yield


def mnist(sigma) -> Walk:
    """The paper's logistic regression: G = 1, L = 1/4 + lambda."""
    return Walk(sigma, 1.0, 0.25 + LAM, LAM, N)


@pytest.mark.parametrize(
    ("sigma", "epsilon"),
    [(0.1872, 0.0500), (0.094, 0.0997), (0.019, 0.4980), (0.0096, 0.9976), (0.0049, 1.9998), (0.0021, 4.9537)],
)
def test_epsilon_is_the_published_one_for_a_single_sample(sigma, epsilon):
    assert mnist(sigma).epsilon([(1, 1)], 1 / N) == pytest.approx(epsilon, abs=1e-4)


def test_larger_requests_need_the_published_steps():
    """The paper searches K among 1, 11, 21, ...: 1, 781 and 2001 for 1, 10 and 100 samples."""
    walk, config = mnist(0.03), Langevin(epsilon=1.0, delta=1 / N, samples=100)
    for samples, published in ((10, 781), (100, 2001)):
        least = walk.steps(samples, [], config)
        assert published - 10 < least <= published
        assert walk.epsilon([(samples, least)], 1 / N) <= 1 < walk.epsilon([(samples, least - 1)], 1 / N)
    assert walk.steps(1, [], config) == 0  # the noise of learning covers one sample already


def test_epsilon_falls_with_noise_and_steps_and_grows_with_samples_and_requests():
    base = mnist(0.03).epsilon([(10, 100)], 1e-5)
    assert mnist(0.04).epsilon([(10, 100)], 1e-5) < base
    assert mnist(0.03).epsilon([(10, 200)], 1e-5) < base
    assert mnist(0.03).epsilon([(11, 100)], 1e-5) > base
    assert mnist(0.03).epsilon([(10, 100), (10, 100)], 1e-5) > base
    assert mnist(0.03).epsilon([(10, 100)], 1e-3) < base


def test_the_bound_is_above_two_gaussians_in_closed_form():
    """Quadratic f: both worlds end in Gaussians of variance v, s apart, so D_alpha = alpha s^2 / (2 v)."""
    lam, eta, sigma, n = 1.0, 0.5, 0.05, 100
    walk = Walk(sigma, 1.0, 1 / eta, lam, n)
    v = 2 * eta * sigma**2 / (1 - (1 - eta * lam) ** 2)
    for K, truth, bound in ((0, 0.12, 0.32), (1, 0.03, 0.249)):
        s = 2 / (n * lam) * (1 - eta * lam) ** K
        assert 2 * s**2 / (2 * v) == pytest.approx(truth)
        assert walk.renyi(2.0, [(1, K)]) == pytest.approx(bound, abs=1e-3)
        assert truth <= bound


def test_a_sequence_is_the_recursion_written_out():
    """E_2(alpha) = e^(-K_2 eta lambda / alpha) (alpha - 1/2) / (alpha - 1) (E_0(2 alpha) + E_1(2 alpha))."""
    walk, alpha = Walk(0.1, 1.0, 2.0, 0.5, 1000), 3.0

    def learning(a, S, n):
        return 4 * a * S**2 / (0.5 * 0.01 * n**2)

    first = math.exp(-7 * 0.25 / 6) * learning(6.0, 2, 1000)
    second = math.exp(-9 * 0.25 / 3) * 2.5 / 2 * (learning(6.0, 5, 998) + first)
    assert walk.renyi(alpha, [(2, 7), (5, 9)]) == pytest.approx(second)
    assert walk.renyi(alpha, []) == 0


def test_calibrated_noise_is_the_least_for_the_steps():
    config = Langevin(epsilon=0.7, delta=1e-5, samples=4, steps=30)
    walk = calibrated(config, 1.0, 0.5, 0.1, 500)
    assert walk.epsilon([(4, 30)], 1e-5) == pytest.approx(0.7, rel=1e-6)
    assert replace(walk, sigma=0.99 * walk.sigma).epsilon([(4, 30)], 1e-5) > 0.7
    assert calibrated(replace(config, sigma=3.0), 1.0, 0.5, 0.1, 500).sigma == 3.0


def test_many_runs_have_the_mean_and_variance_of_the_linear_recursion():
    """f = |w - a|^2 / 2: mean (1 - rho^T) a, variance 2 eta sigma^2 (1 - rho^2T) / (1 - rho^2), rho = 1 - eta."""
    q = Quadratics(sizes=(6,), isotropic=True)
    sums = Sums(q.federation())
    walk, T = Walk(0.3, 1.0, 2.0, 1.0, 6), 5
    ends = torch.stack(
        [noisy_descent(sums, torch.zeros(3).double(), T, walk, None, Noise(seed)) for seed in range(1000)]
    )
    variance = 0.09 * (1 - 0.25**T) / 0.75
    assert (ends.mean(dim=0) - (1 - 0.5**T) * q.a[0]).abs().max() < 4 * math.sqrt(variance / 1000)
    torch.testing.assert_close(ends.var(dim=0), torch.full((3,), variance).double(), rtol=0.15, atol=0)


def test_the_ball_is_a_projection_not_a_sphere():
    q = Quadratics(sizes=(6,), isotropic=True)
    sums, walk = Sums(q.federation()), Walk(1e-9, 1.0, 2.0, 1.0, 6)
    far = noisy_descent(sums, torch.zeros(3).double(), 50, walk, 0.1, None)
    assert float(far.norm()) == pytest.approx(0.1)
    inside = noisy_descent(sums, torch.zeros(3).double(), 50, walk, 100.0, None)
    torch.testing.assert_close(inside, q.a[0], rtol=1e-6, atol=1e-6)


def test_a_release_goes_on_where_learning_ended_and_a_second_request_takes_more_steps():
    f = logistic(l2=0.3)
    config = Langevin(samples=2, steps=10, training=50)
    state = prepare(f, config, Noise(1))
    assert state.walk.n == 120
    steps = []
    for _ in range(2):
        deletion = without(f, {0: torch.arange(2)})
        done = release(f, state, deletion, Noise(2 + len(steps)))
        assert done.epsilon <= 1
        f, state = f.after(deletion), done.state
        steps.append(state.requests[-1][1])
        assert done.passes == steps[-1]
    assert steps[0] == 10
    assert steps[1] > 10
    assert done.noiseless is None


def test_world_b_is_noisy_retraining_and_the_same_noise_brings_both_together():
    """Synchronous coupling: K steps with the same noise bring two trainings nearer, (1 - eta lambda)^K times."""
    f = softmax(l2=0.2)
    config = Langevin(samples=10, steps=15, training=40)
    deletion = without(f, {1: torch.arange(10)})
    a, b = prepare(f, config, Noise(5)), prepare(f.after(deletion), config, Noise(6))
    sums = Sums(as_linear(f.after(deletion)))
    ours, theirs = (noisy_descent(sums, w, 15, a.walk, None, Noise(7 + k)) for k, w in enumerate((a.w, b.w)))
    assert float((ours - theirs).norm()) > 0
    with rehearsal():
        ours = noisy_descent(sums, a.w, 15, a.walk, None, Noise(9))
    with rehearsal():
        theirs = noisy_descent(sums, b.w, 15, a.walk, None, Noise(9))
    shrunk = (1 - a.walk.lr * a.walk.l2) ** 15
    assert 0 < float((ours - theirs).norm()) <= shrunk * float((a.w - b.w).norm())


def test_fresh_noise_is_certified_and_rehearsed_noise_is_not():
    f = logistic(l2=0.3)
    config, deletion = Langevin(training=5), without(f, [3])
    config = replace(config, samples=30)
    fresh = [release(f, prepare(f, config), deletion) for _ in range(2)]
    assert fresh[0].certified
    assert not torch.equal(fresh[0].model, fresh[1].model)
    assert "rehearsed" in release(f, prepare(f, config, Noise(3)), deletion).nominal
    assert "rehearsed" in release(f, prepare(f, config), deletion, Noise(4)).nominal


def test_more_than_the_noise_can_cover_is_refused():
    f = logistic(l2=0.3)
    state = prepare(f, Langevin(training=5, samples=3))
    with pytest.raises(CertificateViolation, match="samples: 4 are to be deleted, sigma was chosen for 3"):
        release(f, state, without(f, {0: torch.arange(4)}))
    weak = prepare(f, Langevin(training=5, samples=30, sigma=1e-3, most=20))
    with pytest.raises(CertificateViolation, match=r"20 steps do not prove epsilon 1 for 30 samples at sigma 0\.001"):
        release(f, weak, without(f, [3]))
    for wrong in ({"sigma": 0.0}, {"steps": -1}, {"samples": 0}, {"ball": -1.0}, {"epsilon": 0.0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            Langevin(**wrong)
    assert prepare(f, Langevin(training=1, bounds=Bounds(9.0, 1.0))).walk.G == 9.0


def test_an_epsilon_that_no_noise_proves_is_refused_with_the_least_that_can_be():
    """ln(1 / delta) / (10^4 - 1) is left of any noise."""
    assert math.log(1e5) / 9999 == pytest.approx(0.0011514, abs=1e-7)
    says = r"epsilon must be at least 0\.00115 at delta 1e-05, or no noise proves it, got 0\.001$"
    f = logistic(l2=0.3)
    with pytest.raises(CertificateViolation, match=says):
        prepare(f, Langevin(epsilon=0.001, training=5))
    walk = calibrated(Langevin(epsilon=0.00116), 1.0, 1.0, 0.1, 100)
    assert walk.epsilon([(1, 20)], 1e-5) <= 0.00116
