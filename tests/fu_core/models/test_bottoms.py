"""Bottoms: embeddings of the widths they promise, from raw features, by parameters alone."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fu_core.errors import UnsupportedModel
from fu_core.models.bottoms import BOTTOMS, SMALLEST, build_bottom, build_top
from fu_core.models.flat import FlatModel, Standardize

HALVES = [(3, 32, 16), (1, 28, 14), (1, 8, 4)]  # of CIFAR-10, MNIST and digits
BIG = ["resnet18", "resnet50", "densenet121"]
WIDTHS = {"mlp": 32, "cnn": 64, "pooled_cnn": 64, "resnet18": 512, "densenet121": 1024, "resnet50": 2048}


def pixels(shape, n=2, seed=0):
    return torch.randint(0, 256, (n, *shape), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def statistics(features):
    return torch.linspace(0.3, 0.5, features), torch.linspace(0.2, 0.3, features)


def bottom(name, shape):
    """For images (C, H, W) or a table (p,)."""
    example = pixels(shape, 1) if len(shape) == 3 else torch.zeros(1, *shape)
    return build_bottom(name, example, *statistics(shape[0]))


@pytest.fixture(scope="module")
def big():
    """The big ones, run once: (model, parameters, embeddings of two raw images of 16 x 8, what follows the stem)."""
    run, x = {}, pixels((3, 16, 8))
    for name in BIG:
        model = bottom(name, (3, 16, 8))
        w, entered = model.init(0), []
        first = model.module.get_submodule("1.net.features.denseblock1" if name == "densenet121" else "1.net.layer1")
        hook = first.register_forward_pre_hook(lambda _, given, entered=entered: entered.append(given[0]))
        with torch.no_grad():
            run[name] = model, w, model.logits(w, x), entered
        hook.remove()
    return run


@pytest.mark.parametrize("shape", HALVES)
@pytest.mark.parametrize("name", ["mlp", "cnn", "pooled_cnn"])
def test_small_bottoms_embed_every_half(name, shape):
    model = bottom(name, shape)
    h = model.logits(model.init(0), pixels(shape))
    assert h.shape == (2, WIDTHS[name])
    assert h.isfinite().all()
    assert float((h[0] - h[1]).norm()) > 0.01


@pytest.mark.parametrize("columns", [1, 15, 53])
def test_tables_are_embedded_in_32(columns):
    model = bottom("mlp", (columns,))
    h = model.logits(model.init(0), torch.randn(4, columns, generator=torch.Generator().manual_seed(0)))
    assert h.shape == (4, 32)
    assert h.isfinite().all()


@pytest.mark.parametrize("name", BIG)
def test_big_bottoms_embed_in_512_1024_and_2048(big, name):
    _, _, h, _ = big[name]
    assert h.shape == (2, WIDTHS[name])
    assert h.isfinite().all()
    assert float((h[0] - h[1]).norm()) > 0.01 * float(h[0].norm())


@pytest.mark.parametrize("name", BIG)
def test_the_stem_keeps_every_pixel(big, name):
    """3x3 kernels at stride 1 and no pooling, for images this small."""
    (entered,) = big[name][-1]
    assert entered.shape == (2, 64, 16, 8)


def test_there_is_no_other_bottom():
    assert list(BOTTOMS) == list(WIDTHS)


def mlp_count(features):
    return features * 64 + 64 + 64 * 32 + 32


def cnn_count(channels, features):
    """Two convolutions and their norms, and a layer from what two poolings leave."""
    return (9 * channels * 16 + 16) + 2 * 16 + (9 * 16 * 32 + 32) + 2 * 32 + features * 64 + 64


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("mlp", (53,), mlp_count(53)),
        ("mlp", (3, 32, 16), mlp_count(1536)),
        ("mlp", (1, 8, 4), mlp_count(32)),
        ("cnn", (3, 32, 16), cnn_count(3, 32 * 8 * 4)),
        ("cnn", (1, 28, 14), cnn_count(1, 32 * 7 * 3)),
        ("cnn", (1, 8, 4), cnn_count(1, 32 * 2 * 1)),
        ("pooled_cnn", (3, 64, 32), cnn_count(3, 32 * 8 * 4)),
    ],
)
def test_parameter_counts(name, shape, parameters):
    assert bottom(name, shape).d == parameters


@pytest.mark.parametrize(
    ("name", "published", "features"),
    [("resnet18", 11_689_512, 512), ("resnet50", 25_557_032, 2048), ("densenet121", 7_978_856, 1024)],
)
def test_big_bottoms_are_torchvisions_nets_but_for_stem_and_classifier(big, name, published, features):
    """Published for ImageNet, less a classifier of 1000 classes, and 64 filters of 3x3 for 7x7 on three channels."""
    model, w, *_ = big[name]
    assert model.d == len(w) == published - 1000 * (features + 1) - 64 * 3 * (49 - 9)


def test_the_pooled_net_is_the_other_one_on_means_of_four_pixels():
    pooled, plain = bottom("pooled_cnn", (3, 16, 8)), bottom("cnn", (3, 8, 4))
    w, x = plain.init(0), pixels((3, 8, 4)).float()
    torch.testing.assert_close(
        pooled.logits(w, x.repeat_interleave(2, 2).repeat_interleave(2, 3)), plain.logits(w, x), rtol=1e-5, atol=1e-5
    )


def test_one_channel_less_costs_64_kernels_and_digits_are_large_enough(big):
    grey = bottom("resnet18", (1, 8, 4))
    assert big["resnet18"][0].d - grey.d == 2 * 64 * 9
    assert grey.logits(grey.init(0), pixels((1, 8, 4))).shape == (2, 512)


@pytest.mark.parametrize("name", WIDTHS)
def test_a_partys_parameters_are_all_there_is_to_it(big, name):
    """No running statistics: what is kept beside parameters are the two constants of normalisation."""
    model = big[name][0] if name in BIG else bottom(name, (3, 16, 8))
    assert not [part for part in model.module.modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    assert [name for name, _ in model.module.named_buffers()] == ["0.shift", "0.gain"]
    groups = [part.num_groups for part in model.module.modules() if isinstance(part, nn.GroupNorm)]
    assert set(groups) <= {2}
    norms = {"cnn": 2, "pooled_cnn": 2, "resnet18": 20, "resnet50": 53, "densenet121": 121}
    assert len(groups) == norms.get(name, 0)


@pytest.mark.parametrize("name", ["mlp", "cnn", "pooled_cnn"])
def test_first_parameters_depend_on_the_seed_alone(name):
    model, twin = (bottom(name, (1, 8, 4)) for _ in range(2))
    torch.manual_seed(7)
    state = torch.get_rng_state()
    once, again, other = model.init(1), twin.init(1), model.init(2)
    assert torch.equal(once, again)
    assert torch.equal(state, torch.get_rng_state())
    assert float((once != other).float().mean()) > 0.98  # all but the norms


def test_so_do_a_big_ones(big):
    model, w, *_ = big["resnet18"]
    assert torch.equal(w, model.init(0))
    assert float((w != model.init(1)).float().mean()) > 0.98


@pytest.mark.parametrize("name", BIG)
def test_convolutions_start_he_normal_and_norms_at_one_and_zero(big, name):
    """Deviation sqrt(2 / fan-out), by kernels of 10,000 weights and more; nothing else has parameters."""
    model, w, *_ = big[name]
    norms, checked = 0, 0
    parts = dict(model.module.named_modules())
    for layer, weight in model.views(w).items():
        owner, _, kind = layer.rpartition(".")
        if isinstance(parts[owner], nn.GroupNorm):
            assert torch.equal(weight, torch.full_like(weight, 1.0 if kind == "weight" else 0.0))
            norms += 1
        else:
            assert isinstance(parts[owner], nn.Conv2d)
            if weight.numel() > 10_000:
                fan_out = weight.shape[0] * weight.shape[2] * weight.shape[3]
                assert float(weight.std()) == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
                checked += 1
    assert norms > 0
    assert checked > 10


@pytest.mark.parametrize("shape", [(3, 8, 4), (3,)], ids=["image", "table"])
def test_normalisation_is_built_in(shape):
    """Raw in, the net sees (x / 255 - mean) / std of an image's channels, (x - mean) / std of a table's columns."""
    model, mean, std = bottom("mlp", shape), *statistics(3)
    x = pixels(shape) if len(shape) == 3 else 50 * torch.rand(2, 3, generator=torch.Generator().manual_seed(0))
    along = (3,) + (1,) * (len(shape) - 1)
    scale = 255 if len(shape) == 3 else 1
    standardised = (x.float() / scale - mean.view(along)) / std.view(along)
    front, net = model.module
    assert isinstance(front, Standardize)
    w = model.init(0)
    inner = {name.removeprefix("1."): view for name, view in model.views(w).items()}
    torch.testing.assert_close(model.logits(w, x), functional_call(net, inner, standardised), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.logits(w, x.float()), model.logits(w, x))


def test_unknown_names_and_tables_for_convolutions_are_refused():
    with pytest.raises(ValueError, match=r"bottom must be one of 'mlp', .*, got 'resnet8'; did you mean 'resnet18'"):
        bottom("resnet8", (1, 8, 4))
    for name in ("cnn", *BIG):
        with pytest.raises(UnsupportedModel, match=f"bottom '{name}' needs images; for tables use 'mlp'"):
            bottom(name, (30,))


@pytest.mark.parametrize("name", BOTTOMS)
def test_the_smallest_part_of_an_image_is_embedded_and_a_smaller_one_refused(name):
    height, width = SMALLEST.get(name, (1, 1))
    model = bottom(name, (3, height, width))
    assert model.logits(model.init(0), pixels((3, height, width))).isfinite().all()
    for smaller in ((height - 1, width + 8), (height + 8, width - 1)):
        if min(smaller):
            message = (
                f"bottom '{name}' needs at least {height} x {width} .* got {smaller[0]} x {smaller[1]}: take fewer"
            )
            with pytest.raises(UnsupportedModel, match=message):
                bottom(name, (3, *smaller))


def test_the_top_is_one_linear_layer_on_everybodys_embeddings():
    top = build_top(96, 10)
    assert isinstance(top, FlatModel)
    assert isinstance(top.only_layer(), nn.Linear)
    assert top.d == 96 * 10 + 10
    assert top.logits(top.init(0), torch.ones(4, 96)).shape == (4, 10)
