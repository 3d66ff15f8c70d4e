"""Kronecker factors: exact where they can be, a preconditioner that saves products of CG elsewhere."""

import math

import pytest
import torch
from torch import nn

from fu_core.data import load
from fu_core.errors import UnsupportedModel, UnsupportedTask
from fu_core.federation import ClientOpt, Federation, fedavg
from fu_core.models import build
from fu_core.models.flat import FlatModel
from fu_core.models.group_norm import two_groups
from fu_core.unlearning.curvature import curvature_product, dense_curvature
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step
from fu_core.unlearning.kfac import kfac_inverse, kronecker_factors, numbers
from fu_core.unlearning.krylov import solve
from fu_core.unlearning.method import unlearn
from tests.certified_peers_lab import without
from tests.federations import with_server
from tests.nets import Backwards


def drawn(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense_inverse(model, w, parts, damping):
    """(G + damping I)^-1 by dense algebra."""
    G = dense_curvature(model, w, parts, matrix="ggn") + (damping - model.l2) * torch.eye(model.d).double()
    return torch.linalg.inv(G)


@pytest.mark.parametrize("bias", [True, False])
def test_of_squared_errors_and_one_layer_it_is_the_inverse(bias):
    """G = X'X / n, whatever the weights of two clients; one step of CG is enough."""
    model = FlatModel(nn.Linear(4, 1, bias=bias), task="regression", l2=0.1)
    parts = [(0.3, (drawn((20, 4)), drawn(20))), (0.7, (drawn((30, 4), 1), drawn(30, 1)))]
    w, r = drawn(model.d, 2), drawn(model.d, 3)
    inverse = kfac_inverse(model, kronecker_factors(model, w, parts), damping=0.5 + model.l2)
    torch.testing.assert_close(inverse(r), dense_inverse(model, w, parts, 0.5 + model.l2) @ r)
    product = curvature_product(model, w, parts, matrix="ggn")
    found = solve(product, r, iters=1, damping=0.5, tol=0.0, preconditioner=inverse)
    assert found.residual_norms[-1] < 1e-10 * found.residual_norms[0]


@pytest.mark.parametrize(
    "net",
    [
        nn.Linear(4, 3),
        nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.Conv2d(4, 3, 1), nn.Flatten()),
        nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten()),
    ],
    ids=["linear", "convolution of 1", "convolution of 2"],
)
def test_of_one_sample_at_one_place_it_is_the_inverse(net):
    """Softmax: G = (diag p - pp') x aa'."""
    model = FlatModel(net)
    parts = [(1.0, (drawn((1, 4)), torch.tensor([2])))]
    w, r = drawn(model.d, 1), drawn(model.d, 2)
    inverse = kfac_inverse(model, kronecker_factors(model, w, parts), damping=0.3)
    torch.testing.assert_close(inverse(r), dense_inverse(model, w, parts, 0.3) @ r)


def test_of_two_layers_each_block_is_its_own():
    """One sample: the blocks of the dense matrix, and nothing between them."""
    model = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    parts = [(1.0, (drawn((1, 3)), torch.tensor([1])))]
    w, r = drawn(model.d, 1), drawn(model.d, 2)
    G = dense_curvature(model, w, parts, matrix="ggn")
    cut = 3 * 4 + 4
    blocks = torch.block_diag(G[:cut, :cut], G[cut:, cut:]) + 0.2 * torch.eye(model.d).double()
    inverse = kfac_inverse(model, kronecker_factors(model, w, parts), damping=0.2)
    torch.testing.assert_close(inverse(r), torch.linalg.solve(blocks, r))


def test_a_convolution_sums_what_it_sees_and_averages_what_is_pulled_back():
    """Kernel 1 on four places: A is the sum over places of x_t x_t', by hand."""
    model = FlatModel(nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    x = drawn((5, 2, 2, 2))
    (of,) = kronecker_factors(model, drawn(model.d, 1), [(1.0, (x, torch.zeros(5).long()))]).values()
    rows = x.flatten(2).transpose(1, 2)  # (n, T, 2)
    torch.testing.assert_close(of.seen, sum(a.T @ a for a in rows) / 5)
    z = model.logits(drawn(model.d, 1), x).softmax(dim=1)
    by_hand = sum(torch.diag(p) - p[:, None] * p for p in z) / 5 / 16  # every place has a quarter of the mean
    torch.testing.assert_close(of.pulled, by_hand)


def test_batches_change_nothing_and_passes_are_counted():
    trained = with_server()
    f, seen = trained.horizontal, []
    parts = [(0.5, f.clients[0]), (0.5, f.clients[1])]
    whole = kronecker_factors(f.model, trained.w, parts, count=seen.append)
    split = kronecker_factors(f.model, trained.w, parts, batch_size=7)
    for name, of in whole.items():
        torch.testing.assert_close(of.seen, split[name].seen)
        torch.testing.assert_close(of.pulled, split[name].pulled)
    assert sum(seen) == 3 * (18 + 24)  # a pass per class
    assert numbers(whole) == sum(math.comb(n + 1, 2) for n in (6, 6, 7, 3))  # with a 1 for the bias: 6, 7


def test_what_is_no_layer_has_the_mean_curvature():
    model = FlatModel(nn.Sequential(nn.Conv2d(1, 2, 1), two_groups(2), nn.Flatten(), nn.Linear(8, 3)))
    w = model.init(0, torch.float64)
    factors = kronecker_factors(model, w, [(1.0, (drawn((6, 1, 2, 2)), torch.zeros(6).long()))])
    r = drawn(model.d, 1)
    norm = [
        model.views(kfac_inverse(model, factors, damping=0.1)(r))[name] / model.views(r)[name]
        for name in ("1.weight", "1.bias")
    ]
    trace = sum(float(of.seen.trace() * of.pulled.trace()) for of in factors.values())
    torch.testing.assert_close(torch.cat(norm), torch.full((4,), 1 / (0.1 + trace / (4 + 27))).double())


def test_a_layer_that_is_used_twice_has_no_factors():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x):
            return self.outer(self.inner(self.inner(x).tanh()))

    model = FlatModel(Twice())
    data = [(1.0, (drawn((4, 3)), torch.zeros(4).long()))]
    assert list(kronecker_factors(model, drawn(model.d), data)) == ["outer"]
    assert list(
        kronecker_factors(FlatModel(Backwards()), drawn(23), [(1.0, (drawn((4, 4)), torch.zeros(4).long()))])
    ) == ["z_first", "a_last"]


def test_on_a_trained_net_it_solves_with_fewer_products():
    """Gauss-Newton of a perceptron on digits, damping 1e-3: fewer than half as many to a residual of 0.1."""
    digits = load("digits").subset(n_train=300, seed=0)
    f = Federation(build("mlp", digits), [(digits.x_train, digits.y_train)], ClientOpt(lr=0.1, epochs=5, batch_size=10))
    w = fedavg(f, f.model.init(0), 4)
    parts = [(1.0, f.clients[0])]
    product = curvature_product(f.model, w, parts, matrix="ggn")
    inverse = kfac_inverse(f.model, kronecker_factors(f.model, w, parts), damping=1e-3)
    g = f.model.grad(w, digits.x_train[:40], digits.y_train[:40])
    steps = [
        len(solve(product, g, iters=300, damping=1e-3, tol=0.1, preconditioner=how).curvatures)
        for how in (None, inverse)
    ]
    assert steps[1] < steps[0] / 2 < 50


def test_the_option_leads_where_plain_cg_does_and_its_price_is_counted():
    trained = with_server()
    f, deletion = trained.horizontal, without(trained.horizontal, [1])
    solved = {"damping": 0.1, "iters": 57, "tol": 1e-5}
    steps = [hf_kcu_step(f, trained.w, deletion, HFKCU(preconditioner=how, **solved)) for how in ("none", "kfac")]
    torch.testing.assert_close(steps[1].step, steps[0].step, rtol=1e-3, atol=1e-5)
    assert steps[1].cg_steps < steps[0].cg_steps
    costs = [unlearn("HF-KCU", trained, "client-1", preconditioner=how, **solved).cost for how in ("none", "kfac")]
    retained = len(deletion.retain[1])
    assert costs[1].images - costs[0].images == 3 * retained  # a pass per class
    assert costs[1].products == steps[1].cg_steps * retained


def test_what_it_cannot_do_is_named():
    masks = FlatModel(nn.Conv2d(1, 2, 1), task="segmentation")
    data = [(1.0, (drawn((2, 1, 4, 4)), torch.zeros(2, 4, 4).long()))]
    with pytest.raises(UnsupportedTask, match="got segmentation"):
        kronecker_factors(masks, drawn(masks.d), data)
    norm = FlatModel(nn.Sequential(two_groups(2), nn.Flatten()))
    with pytest.raises(UnsupportedModel, match=r"must have an nn\.Linear or nn\.Conv2d"):
        kronecker_factors(norm, drawn(norm.d), [(1.0, (drawn((2, 2, 1, 1)), torch.zeros(2).long()))])
    grouped = FlatModel(nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.Flatten()))
    with pytest.raises(UnsupportedModel, match="one group"):
        kronecker_factors(grouped, drawn(grouped.d), [(1.0, (drawn((2, 2, 1, 1)), torch.zeros(2).long()))])
    layer = FlatModel(nn.Linear(3, 2))
    factors = kronecker_factors(layer, drawn(8), [(1.0, (drawn((4, 3)), torch.zeros(4).long()))])
    with pytest.raises(ValueError, match="damping must be a finite number > 0, got 0"):
        kfac_inverse(layer, factors, damping=0.0)
