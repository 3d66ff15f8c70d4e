"""Accuracy, Dice, distances and the cost model."""

import math

import pytest
import torch
from torch import nn

from fu_core.errors import UnsupportedTask
from fu_core.evaluation.accuracy import accuracy, hard_dice
from fu_core.evaluation.costs import Cost, Federation, counted_cost, rounds_cost, total_cost, unlearning_cost
from fu_core.evaluation.equivalence import kl_divergence, parameter_gap, relative_step_difference
from fu_core.federation.horizontal import recovery_path
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.unlearning.baselines.natural import natural
from fu_core.unlearning.baselines.retrain import retrain
from fu_core.unlearning.baselines.weight_negation import negate_weights
from fu_core.unlearning.puf import PUF, puf_round


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


def test_distances_vanish_for_identical_models_and_only_then():
    model = FlatModel(softmax_regression(3, 4))
    w, x = model.init(0), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    other = model.init(1)
    assert parameter_gap(w, w) == 0
    assert kl_divergence(model, w, w, x) == 0
    assert kl_divergence(model, w, other, x) > 0
    assert parameter_gap(2 * w, w) == pytest.approx(1.0)


def test_kl_by_hand_and_its_direction():
    """KL(retrained || unlearned) = 0.5 log(0.5/0.25) + 0.5 log(0.5/0.75), not the reverse."""
    model = FlatModel(softmax_regression(1, 2))
    x = torch.zeros(1, 1)
    retrained, unlearned = torch.zeros(4), torch.tensor([0.0, 0.0, 0.0, math.log(3.0)])
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert kl_divergence(model, unlearned, retrained, x) == pytest.approx(expected, rel=1e-6)


def test_kl_ignores_a_shift_of_all_logits():
    model = FlatModel(softmax_regression(2, 3))
    w, x = model.init(0), torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    shifted = w.clone()
    shifted[6:] += 5.0
    assert kl_divergence(model, shifted, w, x) == pytest.approx(0.0, abs=1e-10)


def test_relative_step_difference_by_hand():
    w, a, b = torch.zeros(2), torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0])
    assert relative_step_difference(w, a, b) == pytest.approx(0.2)


PAPER = Federation(parameters=11_220_132, clients=10, leaving=1, samples=5000)


@pytest.mark.parametrize(
    ("method", "recovery", "comm", "comp"),
    [
        ("Retrain", 0, 1.62e11, 1.35e15),
        ("NoT", 6.5, 5.25e9, 4.39e13),
        ("PUF-Special", 4.1, 3.40e9, 2.84e13),
        ("PUF-Regular", 5.2, 5.10e9, 4.26e13),
    ],
)
def test_formulas_give_the_papers_cells(method, recovery, comm, comp):
    """PUF, Table III, CIFAR-100 IID, at the recovery rounds errata P1 derives; to three digits."""
    cost = total_cost(method, PAPER, recovery_rounds=recovery, train_rounds=200)
    assert cost.comm_bytes == pytest.approx(comm, rel=5e-3)
    assert cost.comp_flops == pytest.approx(comp, rel=5e-3)
    assert cost.storage_bytes == pytest.approx(4.49e7, rel=1e-3)


def test_unknown_methods_have_no_formula():
    with pytest.raises(UnsupportedTask, match="did you mean 'PUF-Special'"):
        unlearning_cost("PUF-special", PAPER)


def test_phases_add_and_storage_is_the_larger():
    assert Cost(1, 2, 3) + Cost(10, 20, 2) == Cost(11, 22, 3)


@pytest.mark.parametrize("method", ["Retrain", "Natural", "NoT", "PUF-Special", "PUF-Regular"])
def test_counters_equal_the_formulas(method):
    """Equal clients of 12 samples, E = 2, B = 5, four bytes a parameter: what ran is what Table VIII says."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 3, generator=g), torch.randint(0, 2, (12,), generator=g)) for _ in range(4)]
    model = FlatModel(softmax_regression(3, 2))
    w, meter, local = model.init(0), Meter(), ClientOpt(epochs=2, batch_size=5)
    kwargs = {"local": local, "seed": 0}
    if method == "Retrain":
        retrain(model, w, clients, [1], rounds=3, meter=meter, **kwargs)
        meter.keep("global model", w)
    elif method == "Natural":
        natural(w, meter=meter)
    elif method == "NoT":
        negate_weights(model, w, layers=["1"], meter=meter)
    else:
        mode = method.removeprefix("PUF-").lower()
        puf_round(model, w, clients, [1], PUF(mode, epochs_u=2), round=4, meter=meter, **kwargs)
    f = Federation(parameters=model.d, clients=4, leaving=1, samples=12, epochs=2, flops=7.0)
    expected = unlearning_cost(method, f, train_rounds=3, epochs_u=2)
    assert counted_cost(meter, 7.0) == expected

    recovery = Meter()
    for _ in recovery_path(model, w, clients, first_round=4, exclude=[1], cap=3, meter=recovery, **kwargs):
        pass
    recovery.keep("global model", w)
    assert counted_cost(recovery, 7.0) == rounds_cost(f, 3, 3)
