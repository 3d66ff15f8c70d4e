"""Modules that are no function of parameters and sample alone, and vectors that are no model's."""

import pytest
import torch
from torch import nn
from torchvision.ops import DropBlock2d, StochasticDepth

from fu_core.errors import UnsupportedModel
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp


@pytest.mark.parametrize(
    "part",
    [nn.RReLU(), StochasticDepth(0.5, "row"), DropBlock2d(0.5, 3), nn.FractionalMaxPool2d(2, output_size=2)],
    ids=lambda part: type(part).__name__,
)
def test_layers_that_draw_are_refused(part):
    """Two passes of the same model on the same sample differed; as torch's stream is nobody's, so did two runs."""
    with pytest.raises(UnsupportedModel, match=rf"layer '1' \({type(part).__name__}\) draws numbers from no stream"):
        FlatModel(nn.Sequential(nn.Conv2d(1, 1, 3), part))


@pytest.mark.parametrize(
    "part",
    [nn.RReLU().eval(), nn.RReLU(0.2, 0.2), StochasticDepth(0.5, "row").eval(), StochasticDepth(0.0, "row")],
    ids=["evaluation", "no range", "evaluated depth", "full depth"],
)
def test_layers_that_draw_nothing_are_taken(part):
    model = FlatModel(nn.Sequential(nn.Conv2d(1, 1, 3), part))
    w, x = model.init(0), torch.randn(2, 1, 8, 8)
    assert torch.equal(model.logits(w, x), model.logits(w, x))


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
def test_spectral_norm_is_refused(norm):
    """Its vectors move in every pass, and what they come to depends on who passed before."""
    with pytest.raises(UnsupportedModel, match="is normalised by vectors that every pass changes"):
        FlatModel(nn.Sequential(norm(nn.Linear(4, 3))))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("mlp", r"module must be a torch module, mlp\(64, 10\) say, got str"),
        (nn.Linear, "module must be a torch module, .* got type"),
        (nn.LazyLinear(3), "parameter 'weight' has no shape yet; call the module on a sample first"),
    ],
)
def test_what_is_no_net_is_named(module, message):
    with pytest.raises(UnsupportedModel, match=message):
        FlatModel(module)


@pytest.mark.parametrize("l2", [-1, float("nan"), float("inf"), "0.1", None])
def test_a_penalty_that_is_none_is_named(l2):
    with pytest.raises(ValueError, match=f"l2 must be a finite number >= 0, got {l2!r}"):
        FlatModel(nn.Linear(2, 2), l2=l2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, "float64"])
def test_parameters_are_of_floating_point(dtype):
    """As whole numbers all of them are 0."""
    with pytest.raises(ValueError, match="dtype must be one of floating point"):
        FlatModel(nn.Linear(2, 2)).init(0, dtype)


@pytest.mark.parametrize(
    "change", [lambda w: w[:-1], lambda w: w[None], lambda w: w.numpy()], ids=["short", "2d", "np"]
)
def test_a_vector_of_another_model_is_named(change):
    model = FlatModel(mlp(4, 3, (5,)))
    w, x = model.init(0), torch.ones(2, 4)
    for call in (model.views, lambda v: model.logits(v, x), lambda v: model.predict(v, x)):
        with pytest.raises(ValueError, match=r"w must be a vector of the model's 43 parameters, got (shape|ndarray)"):
            call(change(w))


def test_a_state_dict_is_joined_and_another_nets_is_not():
    """A transposed weight has as many numbers, and made a vector that is another model."""
    module = mlp(4, 3, (5,))
    model = FlatModel(module)
    x = torch.rand(6, 4)
    torch.testing.assert_close(model.logits(model.joined(module.state_dict()), x), module(x))
    layers = dict(module.state_dict())
    for change, message in (
        ({"1.weight": layers["1.weight"].T}, r"'1.weight' of shape \(5, 4\), got shape \(4, 5\)"),
        ({"1.weight": torch.zeros(5, 5)}, r"'1.weight' of shape \(5, 4\), got shape \(5, 5\)"),
    ):
        with pytest.raises(ValueError, match="layers must have " + message):
            model.joined(layers | change)
    with pytest.raises(ValueError, match=r"layers must have '1.weight' of shape \(5, 4\), got none among 2 layers"):
        model.joined(nn.Linear(2, 2).state_dict())


def test_a_label_of_minus_100_is_not_passed_over():
    """torch's cross-entropy takes it for a sample that does not count: loss and gradient 0, and no word."""
    model = FlatModel(mlp(4, 3, (5,)))
    w, x, y = model.init(0), torch.ones(2, 4), torch.tensor([0, -100])
    for call in (model.loss, model.grad, model.per_sample_grads, model.predict_losses):
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            call(w, x, y)


@pytest.mark.parametrize("y", [torch.rand(3, 5), torch.rand(5), torch.rand(4, 3)], ids=["turned", "flat", "short"])
def test_targets_of_another_shape_are_named(y):
    """Of 5 samples with 3 targets each, (3, 5) was taken for (5, 3) and gave a loss of other pairs."""
    model = FlatModel(nn.Linear(4, 3), "regression")
    with pytest.raises(ValueError, match=r"y must have the outputs' shape, \(5, 3\), got"):
        model.loss(model.init(0), torch.rand(5, 4), y)


@pytest.mark.parametrize("size", [0, -1, 2.5, "a", True])
def test_a_batch_that_is_none_is_named(size):
    model = FlatModel(mlp(4, 3, (5,)))
    w, x, y = model.init(0), torch.ones(2, 4), torch.tensor([0, 1])
    for call in (lambda: model.predict(w, x, size), lambda: model.predict_losses(w, x, y, size)):
        with pytest.raises(ValueError, match=f"batch_size must be a whole number >= 1, got {size!r}"):
            call()


def test_no_samples_tell_nothing_of_the_order_that_a_net_can_take():
    """A view of no numbers fits any order; of some it does not, and whoever came next failed."""

    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 4, 3), nn.Linear(144, 2)

        def forward(self, x):
            h = self.first(x)
            return self.last(h.view(len(h), -1))

    model, x = FlatModel(Viewing()), torch.rand(3, 3, 8, 8)
    assert model.arrange(x[:0]).shape == (0, 3, 8, 8)
    assert model.logits(model.init(0), model.arrange(x)).shape == (3, 2)
