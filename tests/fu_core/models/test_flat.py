"""FlatModel: one vector, and derivatives that equal the dense truth."""

import numpy as np
import pytest
import torch
from torch import nn

from fu_core.errors import UnsupportedModel
from fu_core.models import flat
from fu_core.models.cnn import lenet, simple_cnn, strided_cnn, tiny_cnn
from fu_core.models.flat import FlatModel, Standardize, soft_dice_loss
from fu_core.models.group_norm import GroupNorm
from fu_core.models.linear import mlp, softmax_regression
from fu_core.models.resnet import ResNet18, SmallResNet


@pytest.mark.parametrize(
    ("module", "parameters"),
    [
        (softmax_regression(784, 10), 7_850),
        (mlp(64, 10, (32,)), 64 * 32 + 32 + 32 * 10 + 10),
        (simple_cnn(3, 32, 10), 188_810),  # HF-KCU, Table 8: "188K"
        (tiny_cnn(3, 32, 10), 47_818),
        (strided_cnn(3, 32, 10), 358_570),
        (strided_cnn(1, 28, 10), 356_970),
        (ResNet18(3, 100), 11_220_132),  # PUF: 4P = 4.488e7 bytes, errata P4
        (ResNet18(3, 10), 11_173_962),
        (SmallResNet(3, 10), 78_042),
    ],
)
def test_parameter_counts(module, parameters):
    assert FlatModel(module).d == parameters


@pytest.fixture
def small():
    model = FlatModel(mlp(4, 3, (5,)), l2=0.1)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(7, 4, generator=g, dtype=torch.float64)
    y = torch.randint(0, 3, (7,), generator=g)
    return model, model.init(0, torch.float64), x, y


def test_logits_equal_the_plain_module():
    module = simple_cnn(1, 8, 10)
    model = FlatModel(module)
    w = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    x = torch.rand(5, 1, 8, 8)
    torch.testing.assert_close(model.logits(w, x), module(x))


def test_evaluation_in_batches_equals_evaluation_at_once(monkeypatch):
    monkeypatch.setattr(flat, "EVALUATED_AT_ONCE", {"cpu": 3})
    model = FlatModel(simple_cnn(1, 8, 10))
    w, x, y = model.init(0), torch.rand(7, 1, 8, 8), torch.arange(7)
    logits = model.logits(w, x)
    seen: list[int] = []
    model.module[0].register_forward_pre_hook(lambda _, batch: seen.append(len(batch[0])))
    torch.testing.assert_close(model.predict(w, x), logits)
    torch.testing.assert_close(model.predict_losses(w, x, y), model.sample_losses(logits, y))
    assert seen == [3, 3, 1] * 2
    torch.testing.assert_close(model.predict(w, x, batch_size=5), logits)
    assert seen[-2:] == [5, 2]


@pytest.mark.parametrize(("net", "least"), [(simple_cnn, 8), (tiny_cnn, 8), (lenet, 12), (strided_cnn, 1)])
def test_images_that_pooling_leaves_nothing_of_are_refused(net, least):
    model = FlatModel(net(1, least, 3))
    assert model.logits(model.init(0), torch.zeros(2, 1, least, least)).shape == (2, 3)
    for side in (least - 1, 0, -8, least + 0.5):
        with pytest.raises(UnsupportedModel, match=rf"side of \w+'s images must be a whole .* >= {least}, got {side}"):
            net(1, side, 3)


@pytest.mark.parametrize("side", [7, 8])
def test_strided_cnn_halves_the_side_rounding_up_and_has_gradients_everywhere(side):
    model = FlatModel(strided_cnn(3, side, 4, widths=(4, 6), hidden=5))
    w = model.init(0)
    x, y = torch.randn(9, 3, side, side, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 4
    assert [part.stride for part in model.module if isinstance(part, nn.Conv2d)] == [(2, 2), (2, 2)]
    assert model.logits(w, x).shape == (9, 4)
    assert all(g.abs().max() > 0 for g in model.views(model.grad(w, x, y)).values())
    torch.testing.assert_close(model.grad(w, model.arrange(x), y), model.grad(w, x, y), rtol=1e-3, atol=1e-5)


def test_gradient_and_hessian_product_equal_the_dense_ones(small):
    model, w, x, y = small
    gradient = torch.func.grad(lambda p: model.loss(p, x, y))(w)
    hessian = torch.autograd.functional.hessian(lambda p: model.loss(p, x, y), w)
    v = torch.linspace(-1, 1, model.d, dtype=torch.float64)
    torch.testing.assert_close(model.grad(w, x, y), gradient)
    torch.testing.assert_close(model.hvp(w, v, x, y), hessian @ v, rtol=1e-9, atol=1e-12)


def test_per_sample_gradients_average_to_the_gradient(small):
    model, w, x, y = small
    rows = model.per_sample_grads(w, x, y)
    assert rows.shape == (7, model.d)
    torch.testing.assert_close(rows.mean(dim=0), model.grad(w, x, y))


@pytest.mark.parametrize("module", [simple_cnn(3, 8, 10), SmallResNet(3, 10)])
def test_layers_are_copies_in_the_order_of_convolutions_and_joined_is_their_way_back(module):
    model = FlatModel(module)
    w = model.init(0).requires_grad_()
    layers = model.layers(w, torch.rand(2, 3, 8, 8))
    assert torch.equal(model.joined(layers), w)
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in layers.values() if p.dim() == 4)
    for layer in layers.values():
        layer.zero_()  # leaves of nobody's graph
    assert torch.equal(w, model.init(0))


def test_views_share_storage_and_cover_the_vector(small):
    model, w, *_ = small
    views = model.views(w)
    assert sum(v.numel() for v in views.values()) == model.d
    views["1.bias"].fill_(7.0)
    assert (w == 7.0).sum() == 5


def test_init_depends_on_the_seed_alone_and_leaves_the_global_generator():
    model = FlatModel(SmallResNet(3, 10))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = model.init(1), model.init(1), model.init(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


def test_residual_nets_start_with_a_quiet_head():
    """PUF's released code: head N(0, 0.01^2), He-normal convolutions."""
    views = FlatModel(ResNet18(3, 100)).views(FlatModel(ResNet18(3, 100)).init(0))
    assert views["fc.weight"].std() == pytest.approx(0.01, rel=0.02)
    assert views["layer4.1.conv2.weight"].std() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)


def test_standardize_takes_raw_pixels():
    layer = Standardize(torch.tensor([0.5, 0.25]), torch.tensor([0.5, 0.25]), scale=255)
    x = torch.tensor([[[[0]], [[255]]]], dtype=torch.uint8)
    assert layer(x).flatten().tolist() == pytest.approx([-1.0, 3.0])


def test_running_statistics_are_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"layer '1' \(BatchNorm2d\) keeps running statistics"):
        FlatModel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))


def test_parameters_without_initialiser_are_refused():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

    with pytest.raises(UnsupportedModel, match="'scale'"):
        FlatModel(Odd()).init(0)


def test_segmentation_loss_by_hand():
    """One image, two pixels, logits 0: cross-entropy log 2, Dice 1 - (2*0.5 + 1)/(1 + 1 + 1) = 1/3."""
    outputs = torch.zeros(1, 2, 1, 2, dtype=torch.float64)
    mask = torch.tensor([[[0, 1]]])
    assert float(soft_dice_loss(outputs, mask)) == pytest.approx(1 / 3)
    model = FlatModel(nn.Conv2d(1, 2, 1), task="segmentation")
    assert float(model.sample_losses(outputs, mask)) == pytest.approx(np.log(2) + 1 / 3)


def test_losses_of_many_models_equal_the_losses_of_each(small):
    model, w, x, y = small
    W = torch.stack([w, 2 * w, -w])
    stacked = {name: torch.stack([model.views(row)[name] for row in W]) for name in model.names}
    xs, ys = torch.stack([x, x.flip(0), 3 * x]), torch.stack([y, y.flip(0), y])
    each = torch.stack([model.sample_losses(model.logits(W[k], xs[k]), ys[k]) for k in range(3)])
    torch.testing.assert_close(model.losses_of_many(stacked, xs, ys), each)


def test_tied_weights_stay_tied():
    """A net whose second layer is its first: one copy in `w`, used twice."""
    first = nn.Linear(3, 3, bias=False)
    model = FlatModel(nn.Sequential(first, first))
    w, x = model.init(0), torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert model.d == 9
    torch.testing.assert_close(model.logits(w, x), x @ w.view(3, 3).T @ w.view(3, 3).T)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("cut", [slice(None), slice(3, 9)], ids=["whole images", "a party's columns"])
def test_arranged_images_keep_their_values_and_every_convolution_sees_channels_last(channels, cut):
    x = torch.arange(4 * channels * 12 * 12).view(4, channels, 12, 12)[..., cut]
    own = Standardize(torch.zeros(channels), torch.ones(channels))
    model = FlatModel(nn.Sequential(own, nn.Conv2d(channels, 5, 3)))
    arranged = model.arrange(x)
    assert torch.equal(arranged, x)
    w = model.init(0)
    strides = model.logits(w, arranged).stride()
    assert strides[1] == 1  # one channel fits both orders: without strides that say so, torch takes the slow one
    assert torch.allclose(model.logits(w, arranged), model.logits(w, x.contiguous()), atol=1e-3)


@pytest.mark.parametrize("channels", [8, 16])  # narrow, and not
def test_our_group_norm_is_that_of_torch_in_any_order_and_keeps_it(channels):
    x = torch.rand(3, channels, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for order in (torch.contiguous_format, torch.channels_last):
        results = []
        for norm in (GroupNorm(2, channels), nn.GroupNorm(2, channels)):
            leaf = x.clone(memory_format=order).requires_grad_()
            y = norm.double()(leaf)
            assert y.stride() == leaf.stride()
            results.append((y, *torch.autograd.grad((y**3).sum(), [leaf, *norm.parameters()])))
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("channels", [8, 16, 32])  # 4, 8 and 16 a group: computed in three ways
def test_our_group_norm_in_bf16_is_torchs_but_for_rounding(channels):
    x = torch.rand(3, channels, 6, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    leaf = x.clone(memory_format=torch.channels_last).requires_grad_()
    exact = x.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = GroupNorm(2, channels)(leaf)
    assert y.dtype == torch.bfloat16
    assert y.stride() == leaf.stride()
    wanted = nn.GroupNorm(2, channels)(exact)
    torch.testing.assert_close(y.float(), wanted, rtol=0.01, atol=0.02)
    found, g = (torch.autograd.grad((v**2).sum() + v[0].sum(), z)[0] for v, z in ((y.float(), leaf), (wanted, exact)))
    torch.testing.assert_close(found.float(), g, rtol=0.05, atol=0.2)


def test_gradients_of_single_samples_pass_through_a_narrow_norm():
    net = FlatModel(nn.Sequential(nn.Conv2d(1, 8, 3), GroupNorm(2, 8), nn.Flatten(), nn.Linear(288, 3)))
    x, y, w = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]), net.init(0)
    each = net.per_sample_grads(w, net.arrange(x), y)
    torch.testing.assert_close(each.mean(0), net.grad(w, net.arrange(x), y))


def test_features_follow_dtype_and_do_not_share_what_another_dtype_made():
    net = FlatModel(nn.Sequential(nn.Flatten(), Standardize(torch.ones(4), torch.full((4,), 2.0)), nn.Linear(4, 2)))
    x = torch.rand(5, 1, 2, 2)
    for dtype in (torch.float64, torch.float32, torch.float64):
        w = net.init(0, dtype=dtype)
        assert net.dense_tail.logits(w, net.features(x, w)).equal(net.logits(w, x))


def test_arrange_leaves_tables_and_empty_batches_alone():
    model = FlatModel(softmax_regression(4, 3))
    assert model.arrange(torch.ones(2, 4)).stride() == (4, 1)
    assert model.arrange(torch.ones(0, 1, 8, 8)).shape == (0, 1, 8, 8)


def test_narrow_residual_nets_survive_their_gradient():
    """A strided 1x1 shortcut of few channels writes out of bounds in this order, and ends the process."""
    model = FlatModel(SmallResNet(3, 3, (8, 16)))
    w, x, y = model.init(0), torch.randn(16, 3, 64, 64), torch.zeros(16, dtype=torch.long)
    for _ in range(10):
        g = model.grad(w, model.arrange(x), y)
    torch.testing.assert_close(g, model.grad(w, x, y), rtol=1e-3, atol=1e-5)


def test_relu_after_pooling_is_the_net_with_relu_before_to_the_bit():
    """The order of the papers' nets costs four times the ReLUs, and nothing else tells the two apart."""
    module = lenet(1, 28, 10)
    layers = list(module)
    for k, layer in enumerate(module):
        if isinstance(layer, nn.MaxPool2d):
            layers[k], layers[k + 1] = layers[k + 1], layers[k]
    ours, papers = FlatModel(module), FlatModel(nn.Sequential(*layers))
    assert [type(layer) for layer in layers[:3]] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d]
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 1, 28, 28, generator=g), torch.randint(0, 10, (20,), generator=g)
    w = ours.init(0)
    assert torch.equal(ours.logits(w, x), papers.logits(w, x))
    assert torch.equal(ours.grad(w, x, y), papers.grad(w, x, y))


def test_constants_first_needed_inside_a_transform_serve_afterwards():
    model = FlatModel(nn.Sequential(Standardize(torch.tensor([0.5]), torch.tensor([0.25])), nn.Linear(1, 2)))
    w, x, y = model.init(0, torch.float64), torch.ones(3, 1, dtype=torch.float64), torch.tensor([0, 1, 1])
    product = model.hvp(w, torch.ones_like(w), x, y)
    assert model.logits(w, x).isfinite().all()
    assert torch.equal(model.hvp(w, torch.ones_like(w), x, y), product)
