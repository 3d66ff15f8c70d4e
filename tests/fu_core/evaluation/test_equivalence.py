"""Distances to Retrain, and what a shift of logits may not change."""

import math

import pytest
import torch

from fu_core.evaluation.equivalence import logit_mse, logits_kl, prediction_agreement


@pytest.fixture
def logits():
    g = torch.Generator().manual_seed(0)
    return torch.randn(50, 4, generator=g), torch.randn(50, 4, generator=g)


def test_identical_outputs_have_no_distance(logits):
    a, _ = logits
    assert logit_mse(a, a) == 0
    assert logits_kl(a, a) == pytest.approx(0, abs=1e-12)
    assert prediction_agreement(a, a) == 1


def test_a_shift_of_all_logits_changes_only_the_raw_mse(logits):
    """Shift by 3 in 4 classes: raw MSE 4 * 9 = 36, everything else as it was."""
    a, b = logits
    assert logit_mse(a + 3, a) == pytest.approx(36, rel=1e-5)
    assert logit_mse(a + 3, a, centred=True) == pytest.approx(0, abs=1e-9)
    assert logit_mse(a + 3, b, centred=True) == pytest.approx(logit_mse(a, b, centred=True), rel=1e-5)
    assert logits_kl(a + 3, b) == pytest.approx(logits_kl(a, b), rel=1e-5)
    assert prediction_agreement(a + 3, b) == prediction_agreement(a, b)


def test_logit_mse_sums_over_classes_and_averages_over_samples():
    assert logit_mse(torch.zeros(2, 2), torch.tensor([[1.0, 2.0], [0.0, 3.0]])) == (5 + 9) / 2


def test_kl_is_never_negative(logits):
    a, b = logits
    assert logits_kl(a, b) > 0
    assert logits_kl(b, a) > 0


def test_agreement_by_hand():
    ours, theirs = torch.eye(3), torch.eye(3)[[0, 1, 1]]
    assert prediction_agreement(ours, theirs) == pytest.approx(2 / 3)


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_models_that_have_left_the_numbers_agree_with_nobody_and_not_with_each_other(lost):
    gone, there = torch.full((4, 3), lost), torch.eye(3)[[0, 1, 2, 0]]
    assert (
        prediction_agreement(gone, gone) == prediction_agreement(gone, there) == prediction_agreement(there, gone) == 0
    )
    there[0, 1] = lost
    assert prediction_agreement(there, there) == 0.75


def test_agreement_on_no_samples_is_refused_by_name():
    for k, name in enumerate(("unlearned", "retrained")):
        sides = [torch.zeros(0 if k == position else 1, 3) for position in range(2)]
        with pytest.raises(ValueError, match=f"samples of {name} must be a whole number >= 1, got 0"):
            prediction_agreement(*sides)
