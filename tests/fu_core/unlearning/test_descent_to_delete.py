"""Descent-to-delete (Neel et al. 2021): the published constants, distances within the radius, noise that falls."""

import math
from dataclasses import replace

import pytest
import torch

from fu_core.errors import CertificateViolation
from fu_core.federation.federation import Federation
from fu_core.unlearning.baselines.descent_to_delete import Descent, DescentToDelete, prepare, release
from fu_core.unlearning.gaussian_mechanism import gaussian_delta, gaussian_sigma
from fu_core.unlearning.noise import Noise, rehearsal
from fu_core.unlearning.sums import Bounds, Sums, as_linear
from tests.certified_peers_lab import logistic, minimum, softmax, without
from tests.ridge import Ridge

N_MNIST = 11982  # 3 against 8: logistic regression, |x| = 1, lambda = 1e-6 n
LOGISTIC = Bounds(1.0, 0.25)


@pytest.fixture(autouse=True)
def rehearsed():
    """Numbers of noise may be used again by the next test."""
    with rehearsal():
        yield


def mnist(**options) -> Descent:
    """As in Langevin unlearning's comparison: epsilon = 1, delta = 1 / n."""
    return Descent(DescentToDelete(epsilon=1.0, delta=1 / N_MNIST, **options), LOGISTIC, N_MNIST, 784, 1e-6 * N_MNIST)


@pytest.mark.parametrize(
    ("steps", "printed", "sharp"), [(1, 2.5847, 0.9390), (2, 1.2332, 0.4480), (5, 0.42688, 0.1551)]
)
def test_sigma_is_that_of_the_published_comparison(steps, printed, sharp):
    assert mnist(steps=steps, calibration="printed").sigma == pytest.approx(printed, rel=1e-4)
    assert mnist(steps=steps).sigma == pytest.approx(sharp, rel=1e-3)


def test_the_noise_is_just_enough_for_the_distance():
    descent = mnist(steps=3)
    assert gaussian_delta(descent.apart, descent.sigma, epsilon=1.0) == pytest.approx(1 / N_MNIST, rel=1e-6)
    assert gaussian_delta(descent.apart, 0.99 * descent.sigma, epsilon=1.0) > 1 / N_MNIST


@pytest.mark.parametrize("calibration", ["analytic", "printed"])
def test_noise_never_falls_below_what_rounding_does_to_both_paths(calibration):
    """gamma^I alone would ask for sigma = 1e-40; the paths still differ, in their last digits."""
    f = softmax(l2=0.5)
    deletion = without(f, {0: torch.arange(3)})
    config = DescentToDelete(steps=200, samples=3, calibration=calibration)
    done = release(f, prepare(f, config), deletion)
    retrained = prepare(f.after(deletion), config).w
    assert float((done.noiseless - retrained).norm()) <= 2 * prepare(f, config).descent.rounding
    assert done.sigma >= gaussian_sigma(2 * prepare(f, config).descent.rounding, epsilon=1.0, delta=1e-5)
    assert not torch.equal(done.model, done.noiseless)
    assert done.sigma < 1e-10


def test_noise_falls_with_steps_and_epsilon_and_grows_with_what_is_asked():
    base = mnist(steps=3, samples=5)
    for less in ({"steps": 4}, {"epsilon": 2.0}, {"delta": 1e-3}, {"samples": 4}):
        assert replace(base, config=replace(base.config, **less)).sigma < base.sigma
    assert mnist(steps=3, samples=5, requests=3).sigma > base.sigma
    assert mnist(steps=3, samples=10).sigma == pytest.approx(2 * base.sigma, rel=2e-3)


def ridge_bounds(ridge, f) -> Bounds:
    """Curvature of the data term, and a gradient bound that holds at the minimisers met here."""
    sums = Sums(as_linear(f))
    steepest = max(float((ridge.model.per_sample_grads(torch.zeros(4).double(), x, y)).norm(dim=1).max())
                   for x, y in f.clients.values())  # fmt: skip
    return Bounds(steepest, float(torch.linalg.eigvalsh(sums.gram() / sums.n)[-1]) * 1.5)


def test_on_ridge_the_error_contracts_by_gamma_and_twenty_deletions_stay_within_the_radius():
    ridge = Ridge()
    f = Federation(ridge.model, ridge.clients)
    config = DescentToDelete(steps=5, requests=20, bounds=ridge_bounds(ridge, f))
    state = prepare(f, config)
    for k in range(20):
        deletion = without(f, {k % 5: torch.tensor([0])})
        rest = f.after(deletion)
        optimum = ridge.optimum(list(rest.clients.values()), "samples")
        before = float((state.w - optimum).norm())
        done = release(f, state, deletion)
        after = float((done.noiseless - optimum).norm())
        assert after <= state.descent.contraction**5 * before * (1 + 1e-9)
        assert after <= done.radius / 2
        f, state = rest, done.state
    assert after > 0


@pytest.mark.parametrize("seed", range(8))
def test_unlearnt_and_retrained_models_are_within_the_radius(seed):
    """World A learns everything and forgets in two requests; world B never saw it. Samples, then a client."""
    f = (softmax if seed % 2 else logistic)(seed=seed, l2=0.1, sizes=(30, 20, 40, 8))
    config = DescentToDelete(steps=1 + seed, samples=8, requests=2)
    state = prepare(f, config)
    for forget in ({0: torch.arange(8)}, [3]):
        deletion = without(f, forget)
        done = release(f, state, deletion)
        f, state = f.after(deletion), done.state
        retrained = prepare(f, config).w
        assert 0 < float((done.noiseless - retrained).norm()) <= done.radius
        assert float((retrained - minimum(f)).norm()) <= done.radius / 2
        assert float((done.noiseless - minimum(f)).norm()) <= done.radius / 2


def test_secret_states_go_on_from_before_the_noise_published_ones_from_after_it():
    f = logistic(l2=0.5)
    deletion = without(f, {0: torch.arange(1)})
    secret = release(f, prepare(f, DescentToDelete(steps=3)), deletion)
    assert torch.equal(secret.state.w, secret.noiseless)
    assert not torch.equal(secret.model, secret.noiseless)
    config = DescentToDelete(steps=12, state="published", calibration="printed")
    published = release(f, prepare(f, config), deletion)
    assert torch.equal(published.state.w, published.model)
    assert published.radius is None
    assert published.certified
    assert secret.certified
    assert release(f, prepare(f, DescentToDelete(steps=3), Noise(1)), deletion).certified  # nothing was drawn yet
    with rehearsal():
        begun = prepare(f, config, Noise(1))
    assert "rehearsed" in release(f, begun, deletion).nominal
    assert release(f, begun, deletion, Noise(2)).nominal.count("rehearsed") == 1


def test_published_states_take_more_steps_with_every_request_and_more_noise():
    """Constants by hand: lambda = .5, L = .75, gamma = 1 / 5; d = 4; delta = 1e-5."""
    gamma, delta = 0.2, 1e-5
    descent = Descent(DescentToDelete(10, state="published", calibration="printed"), LOGISTIC, 100, 4, 0.5)
    assert descent.contraction == pytest.approx(gamma)
    log = math.log(2 / delta)
    shrunk = gamma**10
    wide = math.sqrt(2 * log + 3) - math.sqrt(2 * log + 2)
    assert descent.sigma == pytest.approx(8 * shrunk / (0.5 * 100 * (1 - shrunk) * wide))
    assert descent.steps(1) == 10 + math.ceil(math.log(math.log(16 / delta)) / math.log(5))
    assert descent.steps(1) <= descent.steps(1000) <= descent.steps(10**9)
    narrow = (1 - gamma) * (math.sqrt(2 * log + 1) - math.sqrt(2 * log))
    assert descent.fewest_steps == math.ceil(math.log(math.sqrt(8) / narrow) / math.log(5))
    assert descent.sigma > replace(descent, config=DescentToDelete(10, calibration="printed")).sigma
    short = replace(descent, config=DescentToDelete(1, state="published", calibration="printed"))
    with pytest.raises(ValueError, match=f"steps must be >= {descent.fewest_steps} for state='published', got 1"):
        _ = short.sigma


def test_passes_and_vectors_are_counted():
    for peers, per_sum in ((False, 8), (True, 6)):
        f = logistic(peers=peers)
        done = release(f, prepare(f, DescentToDelete(steps=7)), without(f, {2: torch.tensor([1])}))
        assert (done.passes, done.vectors) == (7, 7 * per_sum)


def test_more_than_the_noise_was_chosen_for_is_refused():
    f = logistic()
    state = prepare(f, DescentToDelete(samples=2), Noise(1))
    with pytest.raises(CertificateViolation, match="samples: 3 are to be deleted, sigma was chosen for 2"):
        release(f, state, without(f, {0: torch.arange(3)}))
    deletion = without(f, {0: torch.arange(2)})
    done = release(f, state, deletion)
    rest = f.after(deletion)
    with pytest.raises(CertificateViolation, match="requests: this is number 2, sigma was chosen for 1"):
        release(rest, done.state, without(rest, {1: torch.arange(2)}))
    with pytest.raises(CertificateViolation, match="leave nothing of 120"):
        prepare(f, DescentToDelete(samples=30, requests=4))
    printed = prepare(f, DescentToDelete(samples=70, calibration="printed"))
    with pytest.raises(CertificateViolation, match="50 of 120 samples are left"):
        release(f, printed, without(f, [0, 2]))


def test_what_cannot_be_meant_is_refused_by_name():
    for wrong, says in (
        ({"steps": 0}, "steps must be"),
        ({"samples": 0}, "samples must be"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"state": "open"}, "state must be one of"),
        ({"state": "published"}, "give calibration='printed'"),
    ):
        with pytest.raises(ValueError, match=says):
            DescentToDelete(**wrong)
