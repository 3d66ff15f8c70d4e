"""`build`: a net for a data set, with the normalisation that its numbers need; and what is no net's data."""

import dataclasses

import pytest
import torch
from torch import nn

from fu_core.data import Dataset, load
from fu_core.errors import UnsupportedModel
from fu_core.models import ANY_SIDES, MODELS, SEGMENTING, Standardize, build
from fu_core.models.bottoms import build_bottom
from fu_core.models.cnn import strided_cnn
from fu_core.models.res_unet import ResUNet
from fu_core.models.vit import ViTLite


def data(x):
    y = torch.arange(len(x)) % 3
    return Dataset("made up", x, y, x, y, "made by a test")


def images(*shape, n=6):
    return torch.randint(0, 256, (n, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_images_of_any_unit_are_standardised_by_their_own():
    """As floats of 0 to 255 their mean was taken 255 times, and as a table of bytes 1/255 of it."""
    digits = load("digits")
    x = digits.x_train[:20]
    expected = build("mlp", digits).module[0](x)
    for unit in (1, 255):
        scaled = dataclasses.replace(digits, x_train=digits.x_train / unit, x_test=digits.x_test / unit)
        torch.testing.assert_close(build("mlp", scaled).module[0](x / unit), expected, rtol=1e-3, atol=1e-3)
    table = images(5, n=50)
    torch.testing.assert_close(build("mlp", data(table)).module[0](table).mean(0), torch.zeros(5), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", sorted({*MODELS} - {*SEGMENTING, *ANY_SIDES}))
@pytest.mark.parametrize("shape", [(3, 32, 64), (3, 64, 32)])
def test_nets_for_square_images_refuse_others(name, shape):
    """They were built, and failed in their first step with two numbers out of torch."""
    with pytest.raises(
        UnsupportedModel, match=f"model {name!r} needs square images; .* are {shape[1]} x {shape[2]}: use"
    ):
        build(name, data(images(*shape)))


def test_residual_nets_take_any_sides():
    x = images(3, 8, 16)
    model = build("small_resnet", data(x))
    assert model.logits(model.init(0), x).shape == (6, 3)


def test_a_net_is_built_for_a_data_set():
    with pytest.raises(ValueError, match=r"dataset must be a Dataset, load\('digits'\) say, got str"):
        build("mlp", "digits")


def test_one_channel_is_not_made_into_three():
    """A grey image went through a colour net, and a column through a net for thirty."""
    for x, other in ((images(3, 8, 8), images(1, 8, 8)), (torch.rand(6, 30), torch.rand(6, 1))):
        model = build("mlp", data(x))
        with pytest.raises(ValueError, match=rf"x must have {x.shape[1]} channels or features, got shape \(6, 1"):
            model.logits(model.init(0), other)
    bottom = build_bottom("mlp", images(3, 8, 4)[:1], torch.zeros(2), torch.ones(2))
    with pytest.raises(ValueError, match="x must have 2 channels or features"):
        bottom.logits(bottom.init(0), images(3, 8, 4))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (torch.zeros(2), torch.ones(3), r"of one shape, .* got shape \(2,\) and shape \(3,\)"),
        (0.5, 0.5, "got float and float"),
        (torch.zeros(1), torch.zeros(1), "mean must be finite, and std finite and > 0"),
        (torch.zeros(1), torch.tensor([torch.nan]), "std finite and > 0"),
    ],
)
def test_constants_that_make_no_numbers_are_refused(mean, std, message):
    with pytest.raises(ValueError, match=message):
        Standardize(mean, std)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: strided_cnn(1, 8, 3, widths=(4, 5)), "widths must be even, for two groups of channels each, got 5"),
        (lambda: ResUNet(1, 8, 2, widths=(3, 4)), "widths must be even, .* got 3"),
        (lambda: ViTLite(1, 8, 3, width=10, heads=4), "width must be a multiple of heads, 4, got 10"),
        (lambda: ViTLite(1, 0, 3), "side of a vision transformer's images must be a whole number >= 4, got 0"),
        (lambda: ViTLite(1, 8.0, 3), "side of a vision transformer's images must be a whole number"),
    ],
)
def test_widths_and_sides_that_cannot_be_are_named(make, message):
    with pytest.raises(UnsupportedModel, match=message):
        make()


def test_a_narrow_norm_is_what_it_was():
    norm = strided_cnn(1, 8, 3, widths=(4,))[1]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.num_channels) == (2, 4)


def test_a_net_can_be_traced():
    """As rivals and exporters do: a check of shapes within the layer stopped them."""
    module = build("softmax_regression", load("digits")).module
    x = load("digits").x_test[:3]
    torch.testing.assert_close(torch.fx.symbolic_trace(module)(x), module(x))
