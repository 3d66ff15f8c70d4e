"""Distances to Retrain: causal faithfulness with its edge cases, and what a shift of logits may not change."""

import math

import pytest
import torch

from fu_core.evaluation.equivalence import (
    causal_faithfulness,
    logit_mse,
    logits_kl,
    prediction_agreement,
    privacy_gap,
)


@pytest.fixture
def logits():
    g = torch.Generator().manual_seed(0)
    return torch.randn(50, 4, generator=g), torch.randn(50, 4, generator=g)


@pytest.mark.parametrize(
    ("method", "accuracy", "cf"),
    [("HF-KCU", 71.16, 0.619), ("FedEraser", 69.52, -0.309), ("SISA", 67.80, -2.082), ("NaiveGA", 10.00, -61.67)],
)
def test_causal_faithfulness_of_table_1_by_its_own_formula(method, accuracy, cf):
    """Errata H3: trained 71.76, retrained 70.79; the printed column says 0.38, 0.27, 0.10, -1.53."""
    found = causal_faithfulness(accuracy, 70.79, 71.76, n_test=10_000)
    assert found.value == pytest.approx(cf, abs=5e-3)
    assert found.ratio == pytest.approx(1 - cf, abs=5e-3)
    assert found.denominator == pytest.approx(0.97)
    assert found.defined


def test_it_is_undefined_where_the_denominator_is_noise():
    """71 % of 10,000: standard error 100 sqrt(0.71 * 0.29 / 10,000) = 0.454 points."""
    assert causal_faithfulness(70, 71, 71.50, n_test=10_000).defined
    below = causal_faithfulness(70, 71, 71.40, n_test=10_000)
    assert not below.defined
    assert math.isnan(below.value)
    assert not causal_faithfulness(90, 100, 99.95, n_test=10**9).defined  # 0.1 points at least
    assert not causal_faithfulness(71, 71, 71, n_test=10_000).defined


def test_retrains_own_value_is_1_and_doing_nothing_is_0():
    assert causal_faithfulness(70, 70, 75, n_test=10_000).value == 1
    assert causal_faithfulness(75, 70, 75, n_test=10_000).value == 0


def test_an_accuracy_that_is_none_is_refused_by_name():
    with pytest.raises(ValueError, match="trained must be an accuracy in percent, got 171"):
        causal_faithfulness(70, 70, 171, n_test=100)


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


def test_agreement_and_privacy_gap_by_hand():
    ours, theirs = torch.eye(3), torch.eye(3)[[0, 1, 1]]
    assert prediction_agreement(ours, theirs) == pytest.approx(2 / 3)
    assert privacy_gap(0.47, 0.51) == pytest.approx(0.04)
