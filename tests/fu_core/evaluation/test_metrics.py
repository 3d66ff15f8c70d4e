"""Accuracy, Dice, distances and the cost model."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import UnsupportedTask
from fu_core.evaluation.accuracy import accuracy, hard_dice
from fu_core.evaluation.costs import (
    NOMINAL_FLOPS,
    Cost,
    Federation,
    counted_cost,
    measured_flops,
    rounds_cost,
    total_cost,
    unlearning_cost,
)
from fu_core.evaluation.equivalence import kl_divergence, parameter_gap, relative_step_difference
from fu_core.federation.horizontal import recovery_path
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.models.resnet import ResNet18
from fu_core.unlearning.baselines.fed_au import fed_au
from fu_core.unlearning.baselines.mode import MoDe, mode
from fu_core.unlearning.baselines.natural import natural
from fu_core.unlearning.baselines.pga import PGA, pga
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


PAPER = Federation(parameters=11_220_132, clients=10, leaving=1, samples=5000, classifier=51_300)


@pytest.mark.parametrize(
    ("method", "recovery", "comm", "comp", "models"),
    [
        ("Retrain", 0, 1.62e11, 1.35e15, 1),
        ("PGA", 12.1, 9.86e9, 8.54e13, 11),
        ("MoDe", 4.5, 1.75e10, 1.46e14, 2),
        ("FedAU", 3.3, 2.67e9, 2.23e13, 1),
        ("NoT", 6.5, 5.25e9, 4.39e13, 1),
        ("PUF-Special", 4.1, 3.40e9, 2.84e13, 1),
        ("PUF-Regular", 5.2, 5.10e9, 4.26e13, 1),
    ],
)
def test_formulas_give_the_papers_cells(method, recovery, comm, comp, models):
    """PUF, Table III, CIFAR-100 IID, at the recovery rounds errata P1 derives; to three digits."""
    cost = total_cost(method, PAPER, recovery_rounds=recovery, train_rounds=200)
    assert cost.comm_bytes == pytest.approx(comm, rel=5e-3)
    assert cost.comp_flops == pytest.approx(comp, rel=5e-3)
    assert cost.storage_bytes == pytest.approx(models * 4.49e7, rel=1e-3)


def test_table_viii_by_hand():
    """P = 10, P_c = 3, C = 5, C_u = 2, N = 7, E = 2, F = 1: B = 4 makes 80 bytes of one model there and back."""
    f = Federation(parameters=10, clients=5, leaving=2, samples=7, epochs=2, flops=1, classifier=3)
    assert unlearning_cost("PGA", f, epochs_asc=3) == Cost(80, 7 * 3 * 2, 6 * 40)
    guided = 3 * 4 + 5 * 6  # C_r R_d + C R_m
    assert unlearning_cost("MoDe", f, degradation_rounds=4, guidance_rounds=6) == Cost(80 * guided, 14 * guided, 80)
    assert unlearning_cost("FedAU", f) == Cost(2 * 3 * 4, 0, 40)


def test_pga_stores_a_model_more_in_table_iii_than_in_table_viii():
    """Table III: 4.94e8, of (C + 1) P B. Table VIII: C P B."""
    table_viii = unlearning_cost("PGA", PAPER, pga_counts_global=False)
    assert table_viii.storage_bytes == 10 * 11_220_132 * 4
    assert f"{unlearning_cost('PGA', PAPER).storage_bytes:.2e}" == "4.94e+08"
    assert total_cost("PGA", PAPER, recovery_rounds=1, pga_counts_global=False).storage_bytes == 10 * 11_220_132 * 4


def test_fed_au_needs_the_size_of_its_head():
    f = Federation(parameters=10, clients=5, leaving=1, samples=7)
    with pytest.raises(ValueError, match="classifier must be"):
        unlearning_cost("FedAU", f)
    assert unlearning_cost("NoT", f).comm_bytes == 0


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


@pytest.mark.parametrize("method", ["PGA", "MoDe", "FedAU"])
def test_counters_of_the_baselines_equal_the_formulas(method):
    """As above, for the three whose settings are their own. One target, so one head goes there and back.

    FedAU's computation, negligible in the table, is one way of the target's 12 images through the backbone.
    """
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 3, generator=g), torch.randint(0, 2, (12,), generator=g)) for _ in range(4)]
    model = FlatModel(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    w, meter, local = model.init(0), Meter(), ClientOpt(epochs=2, batch_size=5)
    kwargs = {"seed": 0, "meter": meter}
    if method == "PGA":
        config = PGA(epochs=3, batch_size=5, stop_distance=None)
        pga(model, w, model.init(1), clients, [1], config=config, **kwargs)
    elif method == "MoDe":
        config = MoDe(rounds_d=2, rounds_m=3, epochs_guidance=2)
        mode(model, w, clients, [1], config=config, local=local, round=4, **kwargs)
    else:
        fed_au(model, w, clients, [1], local=local, round=4, **kwargs)
    f = Federation(parameters=model.d, clients=4, leaving=1, samples=12, epochs=2, flops=7.0, classifier=5 * 2 + 2)
    expected = unlearning_cost(method, f, epochs_asc=3, degradation_rounds=2, guidance_rounds=3)
    if method == "FedAU":
        expected += Cost(0, 12 * 7.0, 0)
    assert counted_cost(meter, 7.0) == expected


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
    """Errata P5: .555e9 forward; F is .15e9. Training takes three times that, less the stem's gradient to the image."""
    stem, macs = resnet_macs()
    model, image = FlatModel(ResNet18(3, 100)), torch.zeros(1, 3, 32, 32)
    assert macs == pytest.approx(0.555e9, rel=2e-3)
    assert measured_flops(model, image, backward=False) == 2 * macs
    assert measured_flops(model, image) == 2 * (3 * macs - stem)


def test_only_with_max_pooling_is_resnet18_near_the_nominal_f():
    """Errata P5: .140e9 multiply-adds forward with a max-pool after the 3x3 stem; F is 1.07 times that."""
    module = ResNet18(3, 100)
    module.maxpool = nn.MaxPool2d(3, 2, 1)
    macs = measured_flops(FlatModel(module), torch.zeros(1, 3, 32, 32), backward=False) / 2
    assert NOMINAL_FLOPS["ResNet-18"] / macs == pytest.approx(1.07, abs=5e-3)


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
