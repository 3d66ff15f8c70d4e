"""Retrain, Natural and NoT: exactness and what they must not touch."""

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, UnsupportedModel
from fu_core.federation.horizontal import fedavg
from fu_core.federation.meter import Meter
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.resnet import SmallResNet
from fu_core.unlearning.baselines.natural import natural
from fu_core.unlearning.baselines.retrain import retrain
from fu_core.unlearning.baselines.weight_negation import negate_weights


def test_retraining_without_targets_is_the_original_bit_for_bit(quadratics):
    w = torch.zeros(3, dtype=torch.float64)
    kwargs = {"rounds": 5, "local": quadratics.local, "seed": 0}
    original = fedavg(quadratics.model, w, quadratics.clients, **kwargs)
    assert torch.equal(original, retrain(quadratics.model, w, quadratics.clients, [], **kwargs))


def test_retraining_reaches_the_retained_fixed_point(quadratics):
    w = torch.zeros(3, dtype=torch.float64)
    ours = retrain(quadratics.model, w, quadratics.clients, [2], rounds=400, local=quadratics.local, seed=0)
    torch.testing.assert_close(ours, quadratics.fixed_point(exclude=[2]), rtol=1e-9, atol=1e-12)


def test_targets_of_sample_unlearning_keep_training(quadratics):
    w = torch.zeros(3, dtype=torch.float64)
    kwargs = {"rounds": 5, "local": quadratics.local, "seed": 0}
    kept = retrain(quadratics.model, w, quadratics.clients, [2], keeps_data=True, **kwargs)
    assert torch.equal(kept, fedavg(quadratics.model, w, quadratics.clients, **kwargs))


def test_retraining_needs_somebody(quadratics):
    with pytest.raises(InvalidRequest):
        retrain(
            quadratics.model, torch.zeros(3), quadratics.clients, [0, 1, 2, 3], rounds=1, local=quadratics.local, seed=0
        )


def test_natural_changes_nothing_and_copies():
    w, meter = torch.ones(4), Meter()
    after = natural(w, meter=meter)
    assert torch.equal(after, w)
    assert after.data_ptr() != w.data_ptr()
    assert (meter.bytes, meter.images, meter.storage) == (0, 0, 16)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.Sequential(Standardize(torch.zeros(3), torch.ones(3)), SmallResNet(3, 10)), "1.stem.0.weight"),
        (simple_cnn(3, 16, 10), "0.weight"),
    ],
)
def test_only_the_first_weight_is_negated(module, name):
    """NoT: biases, norms and every other layer stay bit for bit."""
    model = FlatModel(module)
    w = model.init(0)
    negated = negate_weights(model, w, example=torch.zeros(1, 3, 16, 16))
    before, after = model.views(w), model.views(negated)
    assert torch.equal(after[name], -before[name])
    assert all(torch.equal(after[other], before[other]) for other in before if other != name)
    assert torch.equal(negate_weights(model, negated, example=torch.zeros(1, 3, 16, 16)), w)


def test_negating_two_layers_of_an_odd_network_is_the_identity():
    """tanh(-z) = -tanh(z): without biases, two consecutive negations cancel in the function."""
    module = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))
    model = FlatModel(module)
    w, x = model.init(0), torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    both = negate_weights(model, w, layers=["0", "2"])
    torch.testing.assert_close(model.logits(both, x), model.logits(w, x))
    first = negate_weights(model, w, layers=["0"])
    torch.testing.assert_close(model.logits(first, x), -model.logits(w, x))


def test_layers_without_weights_are_named():
    model = FlatModel(simple_cnn(3, 16, 10))
    with pytest.raises(UnsupportedModel, match="layer '1' has no weight"):
        negate_weights(model, model.init(0), layers=["1"])
    with pytest.raises(ValueError, match="example or layers"):
        negate_weights(model, model.init(0))
