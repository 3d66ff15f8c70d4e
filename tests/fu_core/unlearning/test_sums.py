"""Sums over clients: what they add up to, what they cost, and that the bounds of a loss bound it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import NumericalFailure, UnsupportedModel
from fu_core.federation.federation import Federation
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.linear import UnitLength, mlp, softmax_regression, unit_softmax
from fu_core.unlearning.baselines import certified_removal
from fu_core.unlearning.baselines.certified_removal import Removal
from fu_core.unlearning.certificate import residual_radius
from fu_core.unlearning.curvature import dense_curvature, mean_gradient
from fu_core.unlearning.sums import Bounds, Sums, as_linear, bare_linear, descend, loss_bounds, minimise, sum_cost
from tests.certified_peers_lab import federation, logistic, minimum, softmax, without
from tests.ridge import L2, Ridge

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def test_gradient_and_product_are_those_of_the_mean_over_all_samples():
    f = softmax()
    linear = as_linear(f)
    w, v = torch.randn(2, f.model.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x, y = (torch.cat(part) for part in zip(*f.clients.values(), strict=True))
    sums = Sums(linear)
    torch.testing.assert_close(sums.gradient(w), f.model.grad(w, x, y), **EXACT)
    torch.testing.assert_close(sums.product(w)(v), f.model.hvp(w, v, x, y), **EXACT)
    X = nn.functional.normalize(x, dim=1)
    torch.testing.assert_close(sums.gram(), X.T @ X, **EXACT)


@pytest.mark.parametrize("sizes", [(7, 0, 30), (700, 0, 900)], ids=["few samples each", "many"])
def test_clients_summed_as_one_give_the_sum_over_clients(sizes):
    f = federation(softmax().model, sizes, 4, 3, 0, False)
    linear, meter = as_linear(f), Meter()
    w, v = torch.randn(2, f.model.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sums = Sums(linear.having(meter=meter))
    shares = {i: len(y) / sum(sizes) for i, (_, y) in linear.clients.items() if len(y)}
    gradients = [share * mean_gradient(linear.model, w, linear.clients[i]) for i, share in shares.items()]
    torch.testing.assert_close(sums.gradient(w), sum(gradients), **EXACT)
    products = [share * linear.model.hvp(w, v, *linear.clients[i]) for i, share in shares.items()]
    torch.testing.assert_close(sums.product(w)(v), sum(products), **EXACT)
    torch.testing.assert_close(sums.gram(), sum(x.T @ x for x, _ in linear.clients.values()), **EXACT)
    assert (meter.images, meter.products) == (sum(sizes), sum(sizes))


def test_a_sum_costs_a_server_two_vectors_per_client_and_peers_two_per_link_of_a_tree():
    w = torch.zeros(12, dtype=torch.float64)
    for peers, cost in ((False, (4, 4)), (True, (0, 6))):
        f = softmax(peers=peers).having(meter=Meter())
        sums = Sums(as_linear(f))
        sums.product(w)(sums.gradient(w))
        assert sum_cost(f) == cost
        assert (f.meter.bytes_down, f.meter.bytes_up) == (2 * cost[0] * 96, 2 * cost[1] * 96)
        assert (f.meter.images, f.meter.products) == (120, 120)


def test_the_linear_federation_has_the_same_loss():
    """Images through flattening, standardising, scaling to length 1; with a bias; with one logit; a regression."""
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (9, 1, 2, 2), generator=g, dtype=torch.uint8)
    labels = torch.randint(0, 3, (9,), generator=g)
    standard = Standardize(torch.tensor([0.4]), torch.tensor([0.3]), 255.0)
    unit = FlatModel(nn.Sequential(standard, unit_softmax(4, 3)), l2=0.1)
    biased = FlatModel(nn.Sequential(standard, softmax_regression(4, 3)), l2=0.1)
    ridge = Ridge()
    cases = [
        Federation(unit, [(images, labels)]),
        Federation(biased, [(images, labels)]),
        logistic(),
        Federation(ridge.model, ridge.clients),
    ]
    for f in cases:
        w = torch.randn(f.model.d, generator=g, dtype=torch.float64)
        linear = as_linear(f)
        for i, (x, y) in f.clients.items():
            ours, theirs = linear.model.loss(w, *linear.clients[i]), f.model.loss(w, x, y)
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_the_linear_federation_is_on_the_device_of_its_samples(monkeypatch):
    clients = [(torch.zeros(4, 5, device="meta"), torch.zeros(4, dtype=torch.long, device="meta"))]
    f = Federation(FlatModel(nn.Linear(5, 3), l2=0.1), clients)
    compared = []
    monkeypatch.setattr(torch, "allclose", lambda a, b: compared.append((a.device.type, b.device.type)) or True)
    x, _ = as_linear(f).clients[0]
    assert (x.device.type, x.dtype) == ("meta", torch.float64)
    assert compared == [("meta", "meta")]


def test_a_layer_for_its_wiring_alone_draws_nothing():
    """Neither by itself, nor for a linear federation, nor for one against the rest."""
    f, before = softmax(), torch.random.get_rng_state()
    layer = bare_linear(4, 3, bias=True)
    assert (layer.weight.shape, layer.bias.shape) == ((3, 4), (3,))
    as_linear(f)
    certified_removal.prepare(f, Removal(heads="one-vs-rest"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_what_is_not_convex_or_not_linear_is_refused():
    data = [(torch.ones(3, 4).double(), torch.zeros(3).long())]
    with pytest.raises(UnsupportedModel, match="convex"):
        as_linear(Federation(FlatModel(mlp(4, 2), l2=0.1), data))
    with pytest.raises(UnsupportedModel, match="l2 must be > 0"):
        as_linear(Federation(FlatModel(nn.Linear(4, 2)), data))
    squashed = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    with pytest.raises(UnsupportedModel, match="convex"):
        as_linear(Federation(FlatModel(squashed, l2=0.1), data))


@pytest.mark.parametrize("make", [logistic, softmax])
def test_bounds_bound_gradients_and_curvature_and_are_proved_by_unit_length_alone(make):
    f = make()
    linear, bounds = as_linear(f), loss_bounds(as_linear(f), f.model)
    assert bounds.nominal == ""
    plain = FlatModel(linear.model.module)
    steepest, sharpest = 0.0, 0.0
    for seed in range(30):
        w = 3 * torch.randn(plain.d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        x, y = linear.clients[seed % 4]
        steepest = max(steepest, float(plain.per_sample_grads(w, x, y).norm(dim=1).max()))
        one = (x[:1], y[:1])
        sharpest = max(sharpest, float(torch.linalg.matrix_norm(dense_curvature(plain, w, [(1.0, one)]), ord=2)))
    assert 0.9 * bounds.gradient < steepest <= bounds.gradient
    assert 0.5 * bounds.curvature < sharpest <= bounds.curvature


class Scaled(nn.Module):
    """Samples of length 1, made longer again on their way to the layer."""

    def __init__(self):
        super().__init__()
        self.unit, self.linear = UnitLength(), nn.Linear(4, 3, bias=False)

    def forward(self, x):
        return self.linear(20 * self.unit(x))


def test_what_a_container_does_to_unit_lengths_is_seen_in_the_data():
    """The order in which layers were registered proved length 1, where it is 20."""
    model = FlatModel(Scaled(), l2=0.1)
    bounds = loss_bounds(as_linear(federation(model, (10, 10), 4, 3, 0, False)), model)
    assert bounds.radius == pytest.approx(20)
    assert "nobody knew beforehand" in bounds.nominal


def test_bounds_seen_in_the_data_are_nominal():
    model = FlatModel(nn.Linear(4, 3), l2=0.1)
    f = federation(model, (10, 10), 4, 3, 0, False)
    bounds = loss_bounds(as_linear(f), model)
    longest = math.sqrt(max(float((x * x).sum(dim=1).max()) for x, _ in f.clients.values()) + 1)
    assert bounds.radius == pytest.approx(longest)
    assert (bounds.gradient, bounds.curvature) == pytest.approx((math.sqrt(2) * longest, longest**2 / 2))
    assert "longest feature vector" in bounds.nominal
    ridge = Ridge()
    regression = Federation(ridge.model, ridge.clients)
    with pytest.raises(UnsupportedModel, match="no bounded gradient"):
        loss_bounds(as_linear(regression), ridge.model)
    with pytest.raises(ValueError, match="gradient must be a finite number > 0, got 0"):
        Bounds(0.0, 1.0)


def test_minimising_finds_the_minimum_and_descent_contracts_towards_it():
    ridge = Ridge()
    f = as_linear(Federation(ridge.model, ridge.clients))
    sums, zero = Sums(f), torch.zeros(ridge.model.d, dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(sums.gram() / sums.n) + L2
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    found, residual = minimise(sums.gradient, zero, smoothness=high, convexity=low, tol=1e-11, most=1000)
    optimum = ridge.optimum(ridge.clients, "samples")
    assert residual <= 1e-11
    torch.testing.assert_close(found, optimum, rtol=1e-9, atol=1e-9)
    shrunk = ((high - low) / (high + low)) ** 7
    w = descend(sums.gradient, zero, 7, lr=2 / (high + low))
    assert 0 < float((w - optimum).norm()) <= shrunk * float(optimum.norm())
    with pytest.raises(NumericalFailure, match="after 3 steps, tol is"):
        minimise(sums.gradient, zero, smoothness=high, convexity=low, tol=1e-11, most=3)
    with pytest.raises(NumericalFailure, match="lower lr"):
        descend(sums.gradient, zero, 3000, lr=1e3)


def test_the_minimum_is_one_where_the_certificate_measures_it():
    f = logistic()
    deletion = without(f, {0: torch.arange(3)})
    rest = f.after(deletion)
    w = minimum(rest)
    assert residual_radius(f.model, w, deletion, objective="samples") < 1e-9
    assert residual_radius(f.model, minimum(f), deletion, objective="samples") > 1e-4


def test_a_client_without_samples_adds_nothing():
    f = softmax()
    empty = (torch.zeros(0, 4).double(), torch.zeros(0).long())
    more = replace(f, clients={**f.clients, 9: empty})
    w = torch.ones(f.model.d, dtype=torch.float64)
    assert torch.equal(Sums(as_linear(f)).gradient(w), Sums(as_linear(more)).gradient(w))
