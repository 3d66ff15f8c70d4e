"""Causal faithfulness with its edge cases."""

import math

import pytest

from fu_papers.hf_kcu.metrics import causal_faithfulness


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
