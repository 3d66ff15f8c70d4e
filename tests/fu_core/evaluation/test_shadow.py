"""The shadow-model attack: it finds what was planted, nothing where nothing is, and in the right direction."""

import warnings

import numpy as np
import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.evaluation.membership import attack_features, fit_attack, shadow


def outputs(n, certainty, seed, classes=5):
    """Logits of a model that gives the true class `certainty` more than the others, on average."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    logits = torch.randn(n, classes, generator=g)
    logits[torch.arange(n), y] += certainty
    return logits, y


SURE, UNSURE = 6.0, 1.0


@pytest.fixture(scope="module")
def attack():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a classifier that has not converged says so
        return fit_attack([outputs(400, SURE, s) for s in (1, 2)], [outputs(400, UNSURE, s) for s in (3, 4)], seed=0)


def test_what_is_remembered_is_found(attack):
    found = shadow(attack, outputs(300, SURE, 5), outputs(300, UNSURE, 6))
    assert found.balanced_accuracy > 0.9
    assert found.auc > 0.95
    assert found.fraction > 0.9


def test_what_looks_alike_cannot_be_told_apart(attack):
    """Both sides unsure: 0.5 within four standard errors, sqrt(0.25 / 2000) each."""
    found = shadow(attack, outputs(2000, UNSURE, 7), outputs(2000, UNSURE, 8))
    assert abs(found.auc - 0.5) < 0.05
    assert abs(found.balanced_accuracy - 0.5) < 0.05
    assert found.fraction < 0.2  # nearly all look like strangers: the plain share is not chance


def test_the_other_way_round_scores_below_chance(attack):
    assert shadow(attack, outputs(300, UNSURE, 5), outputs(300, SURE, 6)).auc < 0.1


def test_one_forgotten_sample_is_enough(attack):
    found = shadow(attack, outputs(1, SURE, 5), outputs(300, UNSURE, 6))
    assert found.fraction in (0.0, 1.0)
    assert 0 <= found.balanced_accuracy <= 1


def test_the_same_seed_learns_the_same_attack():
    sides = [outputs(200, SURE, 1)], [outputs(200, UNSURE, 2)]
    target = outputs(100, 3.0, 3), outputs(100, UNSURE, 4)
    assert shadow(fit_attack(*sides, seed=1), *target) == shadow(fit_attack(*sides, seed=1), *target)


def test_features_are_sorted_probabilities_and_the_true_classs_log_probability():
    logits, y = outputs(20, UNSURE, 0)
    features = attack_features((logits, y))
    assert features.shape == (20, 6)
    assert (np.diff(features[:, :5], axis=1) <= 0).all()
    np.testing.assert_allclose(features[:, :5].sum(axis=1), 1)
    np.testing.assert_allclose(features[:, 5], logits.double().log_softmax(1)[torch.arange(20), y])
    # renaming the classes changes nothing
    order = torch.tensor([3, 1, 4, 0, 2])
    renamed = torch.argsort(order)[y]
    np.testing.assert_allclose(attack_features((logits[:, order], renamed)), features)


def test_bad_input_is_refused_by_name(attack):
    sure, unsure = outputs(50, SURE, 1), outputs(50, UNSURE, 2)
    with pytest.raises(ValueError, match="shadow models"):
        fit_attack([], [], seed=0)
    with pytest.raises(ValueError, match="others must match members"):
        fit_attack([sure], [unsure, unsure], seed=0)
    with pytest.raises(ValueError, match="same classes"):
        fit_attack([sure], [outputs(50, UNSURE, 2, classes=4)], seed=0)
    with pytest.raises(ValueError, match="forget must have logits of 5 classes, got 4"):
        shadow(attack, outputs(50, SURE, 1, classes=4), unsure)
    with pytest.raises(ValueError, match="samples of unseen"):
        shadow(attack, sure, (unsure[0][:0], unsure[1][:0]))


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_a_model_that_has_left_the_numbers_is_named(attack, lost):
    logits, y = outputs(50, SURE, 1)
    gone = torch.full_like(logits, lost), y
    with pytest.raises(NumericalFailure, match="logits must give every true class a finite log-probability"):
        fit_attack([gone], [(logits, y)], seed=0)
    with pytest.raises(NumericalFailure, match="logits must give every true class a finite log-probability"):
        shadow(attack, (logits, y), gone)
    with pytest.raises(ValueError, match=r"logits and y must have shapes .*, got \(50, 5\) and \(49,\)"):
        attack_features((logits, y[1:]))
