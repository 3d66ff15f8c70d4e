"""Certified removal on the last layer: exact on squares, near a retrained head elsewhere, and nothing but a head."""

import math

import pytest
import torch
from torch import nn

from fu_core.errors import UnsupportedModel, UnsupportedTask
from fu_core.federation import ClientOpt, Federation
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.unlearning.baselines.last_layer import LastLayer, features, last_layer
from fu_core.unlearning.gaussian_mechanism import gdp_epsilon
from fu_core.unlearning.method import Trained, unlearn
from fu_core.unlearning.noise import Draw
from tests.certified_peers_lab import without
from tests.federations import dealt, with_server
from tests.nets import Backwards


def regression(bias=True):
    """Three clients, and a net with a hidden layer whose last one is a ridge regression; float64."""
    g = torch.Generator().manual_seed(4)
    model = FlatModel(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1, bias=bias)), task="regression")
    clients = [(torch.randn(n, 3, generator=g).double(), torch.randn(n, generator=g).double()) for n in (20, 15, 25)]
    return Trained(Federation(model, clients, ClientOpt(lr=0.1)), model.init(1, torch.float64), 3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_on_squares_the_head_is_the_one_that_ridge_regression_finds_without_the_forgotten(bias, sigma):
    """In closed form: (Phi'Phi / n + l2 I) v = Phi'y / n, on features over the longest. b, too, is that of all."""
    trained = regression(bias)
    f, deletion = trained.horizontal, without(trained.horizontal, [1])
    config = {"l2": 0.01, "tol": 1e-13, "sigma": sigma}
    model, _, notes = unlearn("Last layer", trained, "client-1", **config)
    head = last_layer(f.model, deletion.forget[0][:1])
    phi = {i: features(f.model, trained.w, head, x) for i, (x, _) in f.clients.items()}
    longest = max(float(p.norm(dim=1).max()) for p in phi.values())
    X, y = torch.cat([phi[0], phi[2]]) / longest, torch.cat([f.clients[0][1], f.clients[2][1]])
    eye = torch.eye(X.shape[1]).double()
    b = sigma * Draw(f.seed, 0).normal("objective", 0, eye[0])
    v = torch.linalg.solve(X.T @ X / len(y) + 0.01 * eye, (X.T @ y - b) / len(y)) / longest
    ours = torch.cat([p.flatten() for name, p in f.model.views(model).items() if name.startswith("2")])
    torch.testing.assert_close(ours, v, rtol=1e-6, atol=1e-9)
    assert ("epsilon" in notes) == (sigma > 0)
    assert notes["residual_bound"] < 1e-8


def test_nothing_but_the_head_changes_and_it_is_nearer_to_a_head_that_never_saw_the_client():
    trained = with_server()
    f, w = trained.horizontal, trained.w
    model, cost, notes = unlearn("Last layer", trained, "client-1", l2=1e-2)
    before, after = f.model.views(w), f.model.views(model)
    names = list(before)
    assert all(torch.equal(before[name], after[name]) for name in names[:-2])
    assert not torch.equal(before[names[-2]], after[names[-2]])
    assert not torch.equal(before[names[-1]], after[names[-1]])

    def minimum(clients):
        """A head of those clients' features, by the same method's training: nobody of them leaves but one sample."""
        phi = {i: features(f.model, w, last_layer(f.model, x[:1]), x) for i, (x, _) in f.clients.items()}
        longest = max(float(p.norm(dim=1).max()) for p in phi.values())
        x, y = torch.cat([phi[i] for i in clients]) / longest, torch.cat([f.clients[i][1] for i in clients])
        head = FlatModel(nn.Linear(x.shape[1], 3, bias=False), l2=1e-2)
        v = torch.zeros(head.d).double()
        for _ in range(20):
            v = v - torch.linalg.solve(
                torch.autograd.functional.hessian(lambda u: head.loss(u, x, y), v), head.grad(v, x, y)
            )
        return (v / longest).view(3, -1)

    everybody, without_1 = minimum([0, 1, 2, 3, 4]), minimum([0, 2, 3, 4])
    ours = torch.cat([after[names[-2]], after[names[-1]][:, None]], dim=1).double()
    assert (ours - without_1).norm() < 0.1 * (everybody - without_1).norm()
    n = sum(len(y) for _, y in f.clients.values())
    assert (cost.images, cost.products) == (n, 0)  # one look at everybody's features
    assert notes["head_passes"] > 10
    assert cost.bytes > 0


def test_the_epsilon_that_is_told_is_the_one_at_which_the_budget_is_just_enough():
    trained = with_server()
    one, two = (unlearn("Last layer", trained, "client-1", sigma=1e-3, l2=l2).notes for l2 in (1e-2, 100.0))
    assert one["epsilon"] == pytest.approx(gdp_epsilon(one["residual_bound"] / 1e-3, 1e-5), rel=1e-6)
    budget = 1e-3 / math.sqrt(2 * math.log(1.5e5))  # at epsilon 1 and delta 1e-5, and so for all that are not large
    assert two["epsilon"] == pytest.approx(two["residual_bound"] / budget, rel=1e-6)
    assert one["epsilon"] > one["residual_bound"] / budget


def test_the_last_layer_is_the_one_that_a_forward_pass_reaches_last():
    assert last_layer(FlatModel(Backwards()), torch.zeros(1, 4)).weight == "a_last.weight"
    assert last_layer(FlatModel(nn.Linear(4, 2, bias=False)), torch.zeros(1, 4)) == ("weight", None, "")
    with pytest.raises(UnsupportedModel, match=r"must end with an nn\.Linear"):
        last_layer(FlatModel(nn.Sequential(nn.Linear(4, 2), nn.Tanh())), torch.zeros(1, 4))


def test_the_last_layer_is_looked_for_where_the_samples_are():
    """On a device where the net's own parameters are not."""
    model, x = FlatModel(mlp(5, 3, (6,))), torch.zeros(4, 5, device="meta")
    head = last_layer(model, x[:1])
    assert head == last_layer(model, torch.zeros(1, 5))
    phi = features(model, model.init(0).to("meta"), head, x)
    assert (phi.device.type, phi.shape) == ("meta", (4, 7))
    assert not any(part._forward_hooks for part in model.module.modules())


def test_a_lone_layer_is_its_own_head():
    f = Federation(FlatModel(nn.Linear(5, 3)), dealt([20, 20, 20]), ClientOpt(lr=0.1))
    trained = Trained(f, f.model.init(0), 1)
    model = unlearn("Last layer", trained, "client-1").model
    assert bool(model.isfinite().all())
    assert not torch.equal(model, trained.w)


def test_what_cannot_be_meant_is_refused_by_name():
    for wrong, says in (
        ({"l2": 0.0}, "l2 must be"),
        ({"sigma": -1.0}, "sigma must be"),
        ({"delta": 1.5}, "delta must lie"),
        ({"tol": 0.0}, "tol must be"),
    ):
        with pytest.raises(ValueError, match=says):
            LastLayer(**wrong)
    masks = FlatModel(mlp(5, 3, (6,)), task="segmentation")
    trained = Trained(Federation(masks, dealt([20, 20]), ClientOpt(lr=0.1)), masks.init(0), 1)
    with pytest.raises(UnsupportedTask, match="got segmentation"):
        unlearn("Last layer", trained, "client-1")
