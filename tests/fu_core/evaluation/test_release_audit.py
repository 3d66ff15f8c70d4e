"""The audit of a release function: bad releases are caught, honest ones are not, tight ones are nearly exhausted."""

import math
import time

import numpy as np
import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.evaluation.audit import largest_provable
from fu_core.evaluation.release_audit import audit_release
from fu_core.streams import stream
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma, gdp_mu

CLAIMED, DELTA = 4.377, 1e-5  # mu = 1
SIGMA = gaussian_sigma(1.0, epsilon=CLAIMED, delta=DELTA)  # for worlds at distance 1


def worlds(models=3, d=5, distance=1.0, alike=True):
    """Noise-free models (K, d) of two worlds: every model moves by `distance`, all of them alike, or each elsewhere."""
    g = torch.Generator().manual_seed(0)
    a = torch.randn(models, d, generator=g, dtype=torch.float64)
    step = torch.randn(1 if alike else models, d, generator=g, dtype=torch.float64)
    return a, a + distance * step / step.norm(dim=1, keepdim=True)


def releasing(sigma, shared=True, used=1, seed=0):
    """Models with noise from k: the same for all of them or a vector each, and for so many releases in a row."""

    def release(world, k):
        draws = stream(seed, "release", k // used)
        return world + sigma * torch.randn(1 if shared else len(world), world.shape[1], generator=draws).double()

    return release


# --- bad releases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_a_tenth_of_the_noise_is_caught(shared):
    found = audit_release(releasing(SIGMA / 10, shared), worlds(), claimed=CLAIMED, delta=DELTA, draws=400)
    assert found.refuted
    assert found.proved > 5 * CLAIMED


def test_a_sensitivity_that_is_three_times_as_large_is_caught():
    found = audit_release(releasing(SIGMA), worlds(distance=3.0), claimed=CLAIMED, delta=DELTA, draws=400)
    assert found.refuted
    assert found.by == "mean model"


def test_noise_that_is_used_for_two_releases_is_caught():
    """Each release by itself is fine. Their difference is bare."""
    a, b = worlds()
    once, twice = (audit_release(releasing(SIGMA, used=used), (a, b), claimed=CLAIMED, delta=DELTA) for used in (1, 2))
    assert twice.refuted
    assert twice.by == "change since the last"
    assert twice.proved == twice.scores["change since the last"].largest
    assert not once.refuted
    assert once.scores["change since the last"].mu < 1 / math.sqrt(2)  # two noises in a difference
    assert max(audit.epsilon for name, audit in twice.scores.items() if name != twice.by) < CLAIMED


def test_noise_that_all_models_share_is_caught():
    """Each model by itself is fine, and so is their mean. Their differences are bare."""
    a, b = worlds(alike=False)
    shared, each = (audit_release(releasing(SIGMA, s), (a, b), claimed=CLAIMED, delta=DELTA, draws=400) for s in (1, 0))
    assert shared.refuted
    assert shared.by == "differences of models"
    assert shared.proved == shared.largest
    assert shared.scores["mean model"].epsilon < CLAIMED
    assert each.scores["differences of models"].epsilon < each.largest / 3  # mu = sqrt 3 in all


@pytest.mark.parametrize("used", [1, 10**6])
def test_without_noise_or_with_noise_that_never_changes_as_much_is_proved_as_can_be(used):
    found = audit_release(releasing(SIGMA * (used > 1), used=used), worlds(), claimed=CLAIMED, delta=DELTA, draws=64)
    assert found.refuted
    assert found.proved == found.largest


# --- honest releases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [1, 3])
def test_a_constant_release_gives_nothing_away(models):
    a, b = worlds(models)
    found = audit_release(lambda world, k: torch.ones(models, 4), (a, b), claimed=1.0, delta=DELTA, draws=64)
    assert found.proved == 0.0
    assert not found.refuted
    assert len(found.scores) == (2 if models == 1 else 4)


@pytest.mark.parametrize(("models", "d"), [(1, 1), (3, 2)])
def test_an_honest_tight_release_is_refuted_in_at_most_alpha_of_all_audits(models, d):
    """The true epsilon is the claimed one; 300 audits at alpha = 0.3."""
    both = worlds(models, d)
    refuted = [audit_release(releasing(SIGMA, seed=s), both, claimed=CLAIMED, delta=DELTA, draws=80, alpha=0.3, seed=s)
               .refuted for s in range(300)]  # fmt: skip
    assert np.mean(refuted) <= 0.3


@pytest.mark.parametrize(("epsilon", "share"), [(4.377, 0.55), (10.0, 0.7)])
def test_of_a_tight_claim_a_thousand_draws_prove_most_and_as_much_as_expected(epsilon, share):
    """Medians of twenty audits; none of them proves too much."""
    a, b = worlds()
    sigma = gaussian_sigma(1.0, epsilon=epsilon, delta=DELTA)
    found = [audit_release(releasing(sigma, seed=s), (a, b), claimed=epsilon, delta=DELTA, seed=s) for s in range(20)]
    proved = np.median([audit.proved for audit in found])
    assert proved > share * epsilon
    assert proved == pytest.approx(found[0].expected, rel=0.1)
    assert not any(audit.refuted for audit in found)


def test_what_changes_with_k_is_not_taken_for_the_world():
    """The worlds publish the same, a little more from release to release."""
    a, _ = worlds()
    drift = lambda world, k: world + k  # noqa: E731
    assert audit_release(drift, (a, a), claimed=1.0, delta=DELTA, draws=64).proved < 1


# --- power -----------------------------------------------------------------------------------------------------------


def test_the_power_it_reports():
    """Largest: no error in draws / 2 models at alpha / 4. Expected: falls with d, and rises with the claim."""
    expected = {}
    for d, claimed in ((5, 10.0), (5, 4.377), (500, 4.377), (5, 1.0)):
        found = audit_release(releasing(1.0), worlds(d=d), claimed=claimed, delta=DELTA, draws=400)
        expected[d, claimed] = found.expected
        assert found.largest == found.scores["mean model"].largest
        assert found.largest == largest_provable(200, delta=DELTA, alpha=0.05 / 4, bound="gdp")
        assert found.scores["mean model"].n == 200
    assert 0.6 * 10 < expected[5, 10.0] < 10
    assert expected[5, 4.377] > expected[500, 4.377] >= 0
    assert expected[5, 1.0] == 0.0
    many, one = (audit_release(releasing(SIGMA), worlds(), claimed=CLAIMED, delta=DELTA, draws=400, alpha=0.05 / n)
                 for n in (20, 1))  # fmt: skip
    assert many.largest == largest_provable(200, delta=DELTA, alpha=0.05 / 80, bound="gdp") < one.largest
    assert many.expected < one.expected
    assert many.proved < one.proved


def test_a_thousand_releases_of_ten_models_take_seconds():
    """(10, 7850), softmax regression on MNIST; nothing is kept but scores."""
    a, b = worlds(10, 7850)
    noise = torch.randn(100, 7850, generator=stream(0, "test")).double()
    began = time.perf_counter()
    audit_release(lambda world, k: world + noise[k % 100], (a, b), claimed=1.0, delta=DELTA, draws=1000)
    assert time.perf_counter() - began < 20  # 1.2 s on a laptop's core


# --- scores of one's own ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
def test_a_given_score_is_the_only_one_and_may_point_either_way(sign):
    """The true direction, where d is too large for draws to find it: here mu = 3 is proved by nothing else."""
    a, b = worlds(1, 4000, distance=3.0)
    direction = sign * (a - b)

    def along(models):
        return float((direction * models).sum())

    found = audit_release(releasing(SIGMA), (a, b), claimed=CLAIMED, delta=DELTA, draws=200, score=along)
    assert list(found.scores) == [found.by] == ["score"]
    assert found.refuted
    assert 2 < found.scores["score"].mu < 3
    assert found.expected > audit_release(releasing(SIGMA), (a, b), claimed=CLAIMED, delta=DELTA, draws=200).expected


def test_the_same_seed_gives_the_same_audit():
    first, again = (audit_release(releasing(SIGMA), worlds(), claimed=1.0, delta=DELTA, draws=64) for _ in range(2))
    assert first == again


def test_every_release_is_asked_for_once_and_of_each_world_equally_often():
    asked = []

    def release(world, k):
        asked.append((world, k))
        return torch.zeros(2, 3)

    audit_release(release, ("a", "b"), claimed=1.0, delta=DELTA, draws=64, seed=5)
    assert [k for _, k in asked] == list(range(128))
    for half in (asked[:64], asked[64:]):
        worlds_in_order = [world for world, _ in half]
        assert worlds_in_order.count("a") == 32
        assert sorted(worlds_in_order) not in (worlds_in_order, worlds_in_order[::-1])
    pairs = [first[0] + second[0] for first, second in zip(asked[64::2], asked[65::2], strict=True)]
    assert {kind: pairs.count(kind) for kind in pairs} == {"aa": 8, "ab": 8, "ba": 8, "bb": 8}
    assert pairs != sorted(pairs)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_audited_is_refused_by_name():
    a, b = worlds()
    release, mu = releasing(SIGMA), gdp_mu(CLAIMED, DELTA)
    assert mu == pytest.approx(1.0, abs=1e-4)
    for draws in (0, 8.0):
        with pytest.raises(ValueError, match="draws must be a whole number >= 8"):
            audit_release(release, (a, b), claimed=1.0, delta=DELTA, draws=draws)
    with pytest.raises(ValueError, match="draws must be a multiple of 8, got 12"):
        audit_release(release, (a, b), claimed=1.0, delta=DELTA, draws=12)
    with pytest.raises(ValueError, match="claimed must be a finite number > 0"):
        audit_release(release, (a, b), claimed=0.0, delta=DELTA)
    with pytest.raises(ValueError, match=r"delta must lie in \(0, 1\)"):
        audit_release(release, (a, b), claimed=1.0, delta=0.0)
    with pytest.raises(ValueError, match=r"alpha must lie in \(0, 1\)"):
        audit_release(release, (a, b), claimed=1.0, delta=DELTA, alpha=1.0)
    with pytest.raises(ValueError, match=r"models of one shape \(K, d\), got \(5,\)"):
        audit_release(lambda world, k: world[0], (a, b), claimed=1.0, delta=DELTA)
    with pytest.raises(ValueError, match=r"models of one shape \(K, d\), got .*\(3, 5\)"):
        audit_release(lambda world, k: world[: 3 - k % 2], (a, b), claimed=1.0, delta=DELTA)
    with pytest.raises(NumericalFailure, match="release gave a model that is not finite"):
        audit_release(lambda world, k: world / 0, (a, b), claimed=1.0, delta=DELTA)
    with pytest.raises(NumericalFailure, match="score must be finite"):
        audit_release(release, (a, b), claimed=1.0, delta=DELTA, draws=8, score=lambda models: math.nan)


@pytest.mark.parametrize("lost", [3, 20])
def test_a_score_that_is_no_number_is_named_whether_it_is_fitted_or_counted(lost):
    """In the first half it said nothing of itself, but that a threshold is not finite."""
    asked = []

    def score(models):
        asked.append(len(asked))
        return math.nan if len(asked) == lost else float(models.sum())

    with pytest.raises(NumericalFailure, match="score must be finite, but it gave NaN or infinity"):
        audit_release(releasing(SIGMA), worlds(), claimed=1.0, delta=DELTA, draws=16, score=score)
    assert len(asked) <= 32
