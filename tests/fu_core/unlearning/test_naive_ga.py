"""Naive gradient ascent against its closed form on a quadratic, and what it must not touch."""

import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, batches
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.request import Deletion, joined
from fu_core.unlearning.baselines.naive_ga import NaiveGA, naive_ga, serve
from fu_core.unlearning.method import Trained

ONES = torch.ones(3, dtype=torch.float64)
STEEP = {"lr": 100.0, "batch_size": 64}


def climbed(q, w, forget, *, seed=0, **options):
    """The ascent on what a client, or {client: indices}, forgets."""
    f = q.federation(seed=seed)
    return naive_ga(f, w, Deletion.of(f.clients, forget), NaiveGA(**options))


@pytest.mark.parametrize("k", [1, 3, 10])
def test_k_steps_on_a_quadratic(quadratics, k):
    """Methods 2.12: theta_k - a_u = (I + eta A_u)^k (theta_0 - a_u)."""
    a, A = quadratics.a[1], quadratics.A[1]
    ours = climbed(quadratics, ONES, 1, epochs=k, lr=0.1, batch_size=100)
    growth = torch.linalg.matrix_power(torch.eye(3, dtype=torch.float64) + 0.1 * A, k)
    torch.testing.assert_close(ours - a, growth @ (ONES - a), rtol=1e-10, atol=1e-12)


def test_shuffled_batches_are_climbed_one_after_the_other(quadratics):
    """The same walk by hand, each batch b with its own gradient A_b (theta - a)."""
    (x, y), a = quadratics.clients[2], quadratics.a[2]
    plan = batches(len(y), ClientOpt(epochs=2, batch_size=6), seed=5, round=0, client=2)
    theta = ONES
    for b in plan:
        theta = theta + 0.05 * x[b].T @ x[b] / len(b) @ (theta - a)
    start = ONES.clone()
    options = {"epochs": 2, "lr": 0.05, "batch_size": 6}
    ours = climbed(quadratics, start, 2, seed=5, **options)
    torch.testing.assert_close(ours, theta, rtol=1e-10, atol=1e-12)
    assert torch.equal(ours, climbed(quadratics, start, 2, seed=5, **options))
    assert not torch.equal(ours, climbed(quadratics, start, 2, seed=6, **options))
    assert torch.equal(start, ONES)


@pytest.mark.parametrize("forget", [[1, 3], {3: torch.tensor([0, 4]), 1: torch.tensor([7])}])
def test_all_that_is_to_be_forgotten_is_climbed_at_once(quadratics, forget):
    """Two clients, or samples of two: one full-batch step along X'(X theta - y) / n of them together."""
    deletion = Deletion.of(quadratics.clients, forget)
    x, y = joined(deletion.forgotten)
    assert len(y) == (22 if isinstance(forget, list) else 3)
    ours = climbed(quadratics, ONES, forget, epochs=1, lr=0.1, batch_size=100)
    torch.testing.assert_close(ours, ONES + 0.1 * x.T @ (x @ ONES - y) / len(y), rtol=1e-10, atol=1e-12)


def test_a_model_that_requires_a_gradient_is_taken_for_what_it_is(quadratics):
    plain, ours = (climbed(quadratics, w, 1, epochs=2) for w in (ONES, ONES.clone().requires_grad_()))
    assert torch.equal(ours, plain)
    assert not ours.requires_grad


def test_rate_and_batches_are_the_clients_own_unless_told(quadratics):
    local = ClientOpt(lr=0.03, batch_size=6, epochs=7, momentum=0.9)
    f = quadratics.federation(local=local)
    deletion = Deletion.of(f.clients, 2)
    own = serve(Trained(f, ONES), deletion, NaiveGA(epochs=2))
    assert torch.equal(own, climbed(quadratics, ONES, 2, epochs=2, lr=0.03, batch_size=6))
    for told in ({"lr": 0.05}, {"batch_size": 5}):
        other = climbed(quadratics, ONES, 2, epochs=2, **{"lr": 0.03, "batch_size": 6, **told})
        assert torch.equal(naive_ga(f, ONES, deletion, NaiveGA(epochs=2, **told)), other)
        assert not torch.equal(other, own)


def test_the_loss_to_be_forgotten_grows():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 4, generator=g), torch.randint(0, 3, (30,), generator=g)
    model = FlatModel(softmax_regression(4, 3))
    f, w = Federation(model, [(x, y), (x, y)], ClientOpt(lr=0.01)), model.init(0)
    assert model.loss(naive_ga(f, w, Deletion.of(f.clients, 0), NaiveGA()), x, y) > model.loss(w, x, y)


def test_divergence_is_returned_and_only_infinity_is_an_error(quadratics):
    far = climbed(quadratics, ONES, 0, epochs=20, **STEEP)
    assert far.isfinite().all()
    assert far.norm() > 1e20
    with pytest.raises(NumericalFailure, match=r"not finite; lower lr \(100.0\) or epochs \(1000\)"):
        climbed(quadratics, ONES, 0, epochs=1000, **STEEP)


def test_an_explosion_can_end_the_ascent_at_the_last_model_with_a_finite_gradient(quadratics):
    last = climbed(quadratics, ONES, 0, epochs=1000, until_explosion=True, **STEEP)
    assert last.isfinite().all()
    assert quadratics.model.grad(last, *quadratics.clients[0]).isfinite().all()
    assert last.norm() > 1e100
    undisturbed = climbed(quadratics, ONES, 0, epochs=20, **STEEP)
    assert torch.equal(climbed(quadratics, ONES, 0, epochs=20, until_explosion=True, **STEEP), undisturbed)


def test_cost_is_ten_epochs_over_the_forget_data_and_one_model(quadratics):
    f = quadratics.federation()
    naive_ga(f, ONES, Deletion.of(f.clients, 2), NaiveGA(lr=0.01, batch_size=7))
    assert (f.meter.images, f.meter.bytes, f.meter.storage) == (10 * 20, 0, 3 * 8)


def test_bad_options_are_named(quadratics):
    for options, message in [({"lr": 0.0}, "lr must be"), ({"epochs": 0}, "epochs"), ({"batch_size": 0}, "batch_size")]:
        with pytest.raises(ValueError, match=message):
            climbed(quadratics, ONES, 2, **options)
