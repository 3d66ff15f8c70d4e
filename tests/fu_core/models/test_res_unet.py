"""Res-UNet: the paper's size, derivatives that equal the plain module's, and masks that it learns."""

import pytest
import torch
from torch.func import functional_call

from fu_core.data import load
from fu_core.errors import UnsupportedModel
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, train_client
from fu_core.federation.together import train_round
from fu_core.models import FlatModel, build
from fu_core.models.res_unet import ResUNet, small_res_unet
from fu_core.unlearning.baselines.weight_negation import first_layer
from fu_papers.look import published
from tests.nets import check_hessian_products


@pytest.fixture(scope="module")
def small():
    model = FlatModel(small_res_unet(1, 16, 2), task="segmentation")
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1, 16, 16, generator=g, dtype=torch.float64)
    return model, model.init(0, torch.float64), x, (x[:, 0] > 0.5).to(torch.uint8)


def test_it_has_the_papers_size():
    model = FlatModel(ResUNet(1, 384, 2), task="segmentation")
    assert model.d == 7_600_098
    assert abs(model.d / 7.6e6 - 1) < 0.02
    assert FlatModel(small_res_unet(1, 64, 2)).d == 58_778


def test_the_bytes_of_table_vi_are_not_of_that_size():
    """Errata P4: 2 P B C_r R of the retraining on five sites for 500 rounds, to the printed digits."""
    charged = 2 * FlatModel(ResUNet(1, 384, 2)).d * 4 * 5 * 500
    printed = published("puf", "table_vi").set_index("method").comm_bytes["Retrain"]
    assert f"{charged:.2e}" == "1.52e+11"
    assert printed / charged == pytest.approx(13.7 / 7.6, rel=0.01)


@pytest.mark.parametrize("side", [8, 24, 64])
def test_every_pixel_gets_two_logits(side):
    model = FlatModel(small_res_unet(3, side, 2), task="segmentation")
    assert model.logits(model.init(0), torch.zeros(2, 3, side, side)).shape == (2, 2, side, side)


@pytest.mark.parametrize(("net", "side", "multiple"), [(small_res_unet, 60, 8), (ResUNet, 24, 16)])
def test_sides_that_cannot_be_halved_so_often_are_refused(net, side, multiple):
    with pytest.raises(UnsupportedModel, match=f"side must be a multiple of {multiple}, got {side}"):
        net(1, side, 2)


def test_gradient_is_the_plain_modules(small):
    model, w, x, y = small
    free = {name: p.detach().clone().requires_grad_() for name, p in model.views(w).items()}
    loss = model.sample_losses(functional_call(model.module, free, (x,)), y).mean()
    plain = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(free.values()))])
    torch.testing.assert_close(model.grad(w, x, y), plain)
    torch.testing.assert_close(model.per_sample_grads(w, x, y).mean(dim=0), plain)


def test_hessian_products_equal_central_differences(small):
    check_hessian_products(small, h=1e-7, rtol=1e-4, atol=1e-4)


def test_the_fast_memory_order_changes_no_gradient():
    """Large enough an image that strided 1x1 shortcuts of 8 channels would write out of bounds."""
    data = load("phantom")
    model, x, y = build("small_res_unet", data), data.x_train[:16], data.y_train[:16]
    w = model.init(0).requires_grad_()
    plain, arranged = (torch.autograd.grad(model.loss(w, part, y), w)[0] for part in (x, model.arrange(x)))
    torch.testing.assert_close(arranged, plain, rtol=1e-3, atol=1e-4)


def test_clients_train_alike_one_by_one_and_as_one_matrix(small):
    model, w, x, y = small
    clients, local = [(x[:2], y[:2]), (x[2:], y[2:])], ClientOpt(lr=0.1, batch_size=2)
    f = Federation(model, clients, local)
    loop, matrix = (train_round(f.having(how=how), w, 1) for how in ("loop", "vmap"))
    torch.testing.assert_close(loop, matrix, rtol=1e-9, atol=1e-12)


def test_it_starts_like_pufs_other_nets():
    model = FlatModel(ResUNet(1, 64, 200))  # outputs enough to measure a spread
    ours, other = (model.views(model.init(seed)) for seed in (0, 1))
    assert ours["head.weight"].std() == pytest.approx(0.01, rel=0.05)
    assert ours["down.3.1.conv2.weight"].std() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)
    fixed = {name for name in ours if torch.equal(ours[name], other[name])}
    assert fixed == {name for name in ours if ours[name].dim() == 1}  # norms and the head's bias


def test_the_first_layer_is_the_stem(small):
    model, _, x, _ = small
    assert first_layer(model, model.init(0), x[:1].float()) == "stem.0"


def test_it_learns_a_handful_of_slices():
    data = load("phantom")
    model, client = build("small_res_unet", data), (data.x_train[:10], data.y_train[:10])
    w = model.init(0)
    opt = ClientOpt(optimiser="adam", lr=0.01, epochs=25, batch_size=5)
    after = train_client(Federation(model, [client], opt), w, 0, 1)
    assert accuracy(model, w, *client) < 20
    assert accuracy(model, after, *client) > 80
    assert model.loss(after, *client) < 0.5 * model.loss(w, *client)


@pytest.mark.parametrize(("name", "data"), [("small_res_unet", "digits"), ("simple_cnn", "phantom")])
def test_a_net_for_another_task_is_refused(name, data):
    with pytest.raises(UnsupportedModel, match=f"model '{name}' is not for .*, the task of {data}"):
        build(name, load(data))
