"""ViT-Lite: its size, and that it can be differentiated twice and trained as a matrix."""

import pytest
import torch

from fu_core.data import load
from fu_core.errors import UnsupportedModel
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, train_client
from fu_core.federation.together import train_round
from fu_core.models import FlatModel
from fu_core.models.vit import ViTLite, vit_tiny
from fu_core.unlearning.curvature import MATRICES, curvature_product
from tests.nets import check_hessian_products


@pytest.fixture(scope="module")
def tiny():
    model = FlatModel(vit_tiny(1, 8, 10))
    g = torch.Generator().manual_seed(0)
    x = torch.rand(6, 1, 8, 8, generator=g, dtype=torch.float64)
    return model, model.init(0, torch.float64), x, torch.arange(6)


def test_it_has_the_papers_size_within_ten_percent():
    model = FlatModel(ViTLite(3, 32, 10))
    assert model.d == 3_194_634
    assert abs(model.d / 3.4e6 - 1) < 0.1


def test_images_that_patches_do_not_tile_are_refused():
    with pytest.raises(UnsupportedModel, match="side 30"):
        ViTLite(3, 30, 10)


def test_hessian_products_equal_central_differences(tiny):
    check_hessian_products(tiny, h=1e-5, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("matrix", MATRICES)
def test_every_curvature_product_runs_and_two_are_positive(tiny, matrix):
    model, w, x, y = tiny
    product = curvature_product(model, w, [(1.0, (x, y))], matrix=matrix)
    for seed in range(5):
        v = torch.randn(model.d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        along = float(v.dot(product(v)))
        assert along == along
        if matrix != "hessian":
            assert along > 0


def test_clients_train_alike_one_by_one_and_as_one_matrix(tiny):
    model, w, x, y = tiny
    clients, local = [(x[:3], y[:3]), (x[3:], y[3:])], ClientOpt(lr=0.1, batch_size=2)
    f = Federation(model, clients, local)
    loop, matrix = (train_round(f.having(how=how), w, 1) for how in ("loop", "vmap"))
    torch.testing.assert_close(loop, matrix, rtol=1e-9, atol=1e-12)


def test_a_sample_is_judged_by_itself_and_twice_alike(tiny):
    model, w, x, _ = tiny
    torch.testing.assert_close(model.logits(w, x)[[3, 1]], model.logits(w, x[[3, 1]]))
    assert torch.equal(model.logits(w, x), model.logits(w, x))  # no dropout


def test_every_weight_is_drawn_anew_with_another_seed():
    model = FlatModel(vit_tiny(1, 8, 10))
    ours, other = (model.views(model.init(seed)) for seed in (0, 1))
    same = {name for name in ours if torch.equal(ours[name], other[name])}
    assert all("norm" in name or name.endswith("bias") for name in same), same


def test_it_learns():
    digits = load("digits")
    model, client = FlatModel(vit_tiny(1, 8, 10)), (digits.x_train[:200].float() / 255, digits.y_train[:200])
    w = model.init(0)
    after = train_client(Federation(model, [client], ClientOpt(lr=0.1, epochs=5)), w, 0, 1)
    assert model.loss(after, *client) < 0.8 * model.loss(w, *client)
