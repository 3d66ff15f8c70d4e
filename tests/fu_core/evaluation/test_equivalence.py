"""Distances to Retrain, and what a shift of logits may not change."""

import math

import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.evaluation.equivalence import (
    logit_mse,
    logits_kl,
    parameter_gap,
    prediction_agreement,
    relative_step_difference,
)

OF_OUTPUTS = (logits_kl, logit_mse, prediction_agreement)


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


@pytest.mark.parametrize("measure", OF_OUTPUTS)
def test_no_samples_are_refused_by_name(measure):
    for k, name in enumerate(("unlearned", "retrained")):
        sides = [torch.zeros(0 if k == position else 1, 3) for position in range(2)]
        with pytest.raises(ValueError, match=f"samples of {name} must be a whole number >= 1, got 0"):
            measure(*sides)


@pytest.mark.parametrize("measure", [*OF_OUTPUTS, parameter_gap])
def test_two_shapes_are_refused_and_not_broadcast(measure):
    with pytest.raises(ValueError, match=r"must have one shape, got \(1, 3\) and \(4, 3\)"):
        measure(torch.ones(1, 3), torch.ones(4, 3))


def test_steps_of_two_shapes_are_refused_by_name():
    w = torch.ones(3)
    with pytest.raises(ValueError, match=r"w_a and w_b must have one shape, got \(3,\) and \(1,\)"):
        relative_step_difference(w, w, w[:1])
    with pytest.raises(ValueError, match=r"w and w_a must have one shape, got \(1,\) and \(3,\)"):
        relative_step_difference(w[:1], w, w)


def test_what_is_no_number_is_not_returned():
    zero, one, gone = torch.zeros(2, 3), torch.ones(2, 3), torch.full((2, 3), math.nan)
    for measure in (logits_kl, logit_mse):
        for sides in ((gone, one), (one, gone)):
            with pytest.raises(NumericalFailure, match="is nan: a model is not finite"):
                measure(*sides)
    for found, sides in (("nan", (zero, zero)), ("inf", (one, zero)), ("nan", (gone, one))):
        with pytest.raises(NumericalFailure, match=f"the gap is {found}: .* or what is divided by is 0"):
            parameter_gap(*sides)
    for found, sides in (("nan", (one, one, one)), ("inf", (one, one, zero))):
        with pytest.raises(NumericalFailure, match=f"the difference of the steps is {found}"):
            relative_step_difference(*sides)


def test_a_class_without_probability_adds_nothing_to_the_kl_unless_it_alone_is_denied():
    """Of two classes (1, 0) against (1/2, 1/2): log 2, against (1, 0) nothing, and the other way round infinity."""
    sure, even = torch.tensor([[0.0, -math.inf]]), torch.zeros(1, 2)
    assert logits_kl(sure, sure) == 0
    assert logits_kl(even, sure) == pytest.approx(math.log(2))
    assert logits_kl(sure, even) == math.inf
