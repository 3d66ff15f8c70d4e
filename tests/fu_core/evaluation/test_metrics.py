"""Accuracy, Dice, distances, and the FLOPs of an image."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import UnsupportedTask
from fu_core.evaluation.accuracy import NO_CLASS, accuracy, hard_dice, outputs_accuracy, predicted_classes
from fu_core.evaluation.costs import measured_flops
from fu_core.evaluation.equivalence import logits_kl, parameter_gap, relative_step_difference
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.models.resnet import ResNet18


def test_accuracy_in_percent():
    model = FlatModel(softmax_regression(2, 2))
    w = torch.tensor([1.0, 0, 0, 1.0, 0, 0])  # predicts the larger coordinate
    x = torch.tensor([[1.0, 0], [0, 1.0], [1.0, 0], [3.0, 2.0]])
    assert accuracy(model, w, x, torch.tensor([0, 1, 1, 0])) == 75.0


def test_dice_by_hand():
    """|P| = 2, |G| = 3, overlap 1: 2/5. Both empty: 1. No overlap: 0."""
    p = torch.tensor([[[1, 1, 0, 0]], [[0, 0, 0, 0]], [[1, 0, 0, 0]]])
    g = torch.tensor([[[0, 1, 1, 1]], [[0, 0, 0, 0]], [[0, 1, 0, 0]]])
    assert hard_dice(p, g).tolist() == pytest.approx([0.4, 1.0, 0.0])


def test_segmentation_accuracy_is_mean_dice():
    """A 1x1 convolution that marks bright pixels as foreground."""
    model = FlatModel(nn.Conv2d(1, 2, 1), task="segmentation")
    w = torch.tensor([0.0, 1.0, 0.5, 0.0])  # foreground logit x, background logit 0.5
    x = torch.tensor([[[[1.0, 0.0]]], [[[1.0, 1.0]]]])
    assert accuracy(model, w, x, torch.tensor([[[1, 0]], [[1, 0]]])) == pytest.approx(100 * (1 + 2 / 3) / 2)


NAN, INF = math.nan, math.inf
LOST = [[NAN, NAN, NAN], [1.0, NAN, 2.0], [INF, 0.0, 1.0], [0.0, INF, -INF], [-INF, -INF, -INF]]  # logits (n, 3)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_a_sample_whose_outputs_have_left_the_numbers_is_wrong_whatever_its_class(label):
    for logits in LOST:
        assert outputs_accuracy("classification", torch.tensor([logits]), torch.tensor([label])) == 0
    model = FlatModel(softmax_regression(2, 3))
    lost = torch.full((model.d,), NAN)
    assert accuracy(model, lost, torch.ones(4, 2), torch.full((4,), label)) == 0


def test_one_lost_sample_leaves_the_others_as_they_are():
    logits = torch.tensor([LOST[1], [0.0, 1.0, 0.5], [2.0, 1.0, 0.5], [0.0, 1.0, 0.5]])
    assert outputs_accuracy("classification", logits, torch.tensor([1, 1, 1, 1])) == 50


def test_a_class_without_any_probability_is_no_loss_of_the_others():
    """Log-probabilities of an ensemble: minus infinity where no member gives the class a chance."""
    assert predicted_classes(torch.tensor([[-INF, 0.0, -INF], [-1.0, -INF, -0.5]])).tolist() == [1, 2]
    assert predicted_classes(torch.tensor(LOST)).tolist() == [NO_CLASS] * 5


@pytest.mark.parametrize("shape", [(500, 10), (40, 2, 5, 5), (30, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_finite_outputs_are_predicted_as_argmax_has_it_ties_included(shape, dtype):
    outputs = torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(predicted_classes(outputs), outputs.argmax(dim=1))


def test_an_image_with_a_lost_pixel_has_dice_zero_though_its_mask_is_empty():
    """Of two empty masks: as NaN is of class 0, the first image would be right, with nothing found where nothing is."""
    outputs = torch.tensor([1.0, 0.0])[None, :, None, None].repeat(2, 1, 2, 2)  # background everywhere
    masks = torch.zeros(2, 2, 2, dtype=torch.long)
    assert outputs_accuracy("segmentation", outputs, masks) == 100
    outputs[0, :, 0, 0] = NAN
    assert outputs_accuracy("segmentation", outputs, masks) == 50


def test_labels_of_another_shape_are_refused_and_not_broadcast():
    outputs, masks = torch.eye(3)[[0, 1, 2, 0]], torch.ones(3, 4, 4)
    for y in (torch.tensor([[0], [1], [2], [0]]), torch.tensor([0]), torch.eye(4)):
        with pytest.raises(ValueError, match=rf"from outputs and y must have one shape, got \(4,\) and {named(y)}"):
            outputs_accuracy("classification", outputs, y)
    with pytest.raises(ValueError, match=r"must have one shape, got \(1,\) and \(4,\)"):
        outputs_accuracy("classification", outputs[:1], torch.tensor([0, 1, 2, 0]))
    with pytest.raises(ValueError, match=r"predicted and masks must have one shape, got \(3, 4, 4\) and \(1, 4, 4\)"):
        hard_dice(masks, masks[:1])
    with pytest.raises(ValueError, match=r"must have one shape, got \(3, 4, 4\) and \(1, 4, 4\)"):
        outputs_accuracy("segmentation", torch.stack([0 * masks, masks], dim=1), masks[:1])


def named(tensor):
    return re.escape(str(tuple(tensor.shape)))


def test_a_regression_has_no_accuracy():
    """The largest of one output is the first: it was 100 % right on targets of 0."""
    model = FlatModel(nn.Linear(4, 1), task="regression")
    with pytest.raises(UnsupportedTask, match="a regression has no accuracy: measure it by its loss"):
        accuracy(model, model.init(0), torch.ones(6, 4), torch.zeros(6))


def test_the_accuracy_on_no_samples_is_refused():
    for task in ("classification", "segmentation"):
        with pytest.raises(ValueError, match="samples of y must be a whole number >= 1, got 0"):
            outputs_accuracy(task, torch.zeros(0, 2, 1, 1), torch.zeros(0, 1, 1))


def test_distances_vanish_for_identical_models_and_only_then():
    model = FlatModel(softmax_regression(3, 4))
    w, x = model.init(0), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    z, other = (model.predict(each, x) for each in (w, model.init(1)))
    assert parameter_gap(w, w) == 0
    assert logits_kl(z, z) == 0
    assert logits_kl(z, other) > 0
    assert parameter_gap(2 * w, w) == pytest.approx(1.0)


def test_kl_by_hand_and_its_direction():
    """KL(retrained || unlearned) = 0.5 log(0.5/0.25) + 0.5 log(0.5/0.75), not the reverse."""
    retrained, unlearned = torch.zeros(1, 2), torch.tensor([[0.0, math.log(3.0)]])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert logits_kl(unlearned, retrained) == pytest.approx(expected, rel=1e-6)


def test_relative_step_difference_by_hand():
    w, a, b = torch.zeros(2), torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])
    assert relative_step_difference(w, a, b) == pytest.approx(0.2)


# --- FLOPs of an image ---


def test_measured_flops_by_hand():
    """A 3 x 2 layer: 6 multiply-adds, 12 FLOPs forward and 12 for the weights' gradient; images need none."""
    model = FlatModel(softmax_regression(3, 2))
    for n in (1, 5):
        assert measured_flops(model, torch.zeros(n, 3), backward=False) == 12
        assert measured_flops(model, torch.zeros(n, 3)) == 24


def resnet_macs():
    """Multiply-adds of a ResNet-18 with the 3x3 stem on 32x32x3: of the stem, and of everything."""
    stem, stages, before = 3 * 64 * 9 * 32**2, 0, 64
    for width, side in ((64, 32), (128, 16), (256, 8), (512, 4)):
        shortcut = before * width if before != width else 0
        stages += (before * width * 9 + 3 * width * width * 9 + shortcut) * side**2
        before = width
    return stem, stem + stages + 512 * 100


def test_resnet18_takes_over_half_a_billion_multiply_adds():
    """Errata P5: .555e9 forward. Training takes three times that, less the stem's gradient to the image."""
    stem, macs = resnet_macs()
    model, image = FlatModel(ResNet18(3, 100)), torch.zeros(1, 3, 32, 32)
    assert macs == pytest.approx(0.555e9, rel=2e-3)
    assert measured_flops(model, image, backward=False) == 2 * macs
    assert measured_flops(model, image) == 2 * (3 * macs - stem)


class Attention(nn.Module):
    """Two heads of width 4."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x):
        q = self.project(x).unflatten(2, (2, 4)).transpose(1, 2)  # (n, 2, T, 4)
        return F.scaled_dot_product_attention(q, q, q)


def test_attention_counts():
    """5 tokens of 8 numbers: 5 * 8 * 8 multiply-adds to project, 5 * 5 * 8 for scores and as many for averages.

    Backward without the gradient to the image: once the projection, twice each product of attention.
    """
    model, tokens = FlatModel(Attention()), torch.zeros(3, 5, 8)
    forward = measured_flops(model, tokens, backward=False)
    assert forward == 2 * (5 * 8 * 8 + 2 * 5 * 5 * 8)
    assert measured_flops(model, tokens) == forward + 2 * (5 * 8 * 8 + 2 * 2 * 5 * 5 * 8)
