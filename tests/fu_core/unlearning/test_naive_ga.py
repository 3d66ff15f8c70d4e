"""Naive gradient ascent against its closed form on a quadratic, and what it must not touch."""

import pytest
import torch

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.local import ClientOpt, batches
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.unlearning.baselines.naive_ga import naive_ga


@pytest.mark.parametrize("k", [1, 3, 10])
def test_k_steps_on_a_quadratic(quadratics, k):
    """Methods 2.12: theta_k - a_u = (I + eta A_u)^k (theta_0 - a_u)."""
    theta_0, a, A = torch.ones(3, dtype=torch.float64), quadratics.a[1], quadratics.A[1]
    ours = naive_ga(quadratics.model, theta_0, quadratics.clients[1], epochs=k, lr=0.1, batch_size=100, seed=0)
    growth = torch.linalg.matrix_power(torch.eye(3, dtype=torch.float64) + 0.1 * A, k)
    torch.testing.assert_close(ours - a, growth @ (theta_0 - a), rtol=1e-10, atol=1e-12)


def test_shuffled_batches_are_climbed_one_after_the_other(quadratics):
    """The same walk by hand, each batch b with its own gradient A_b (theta - a)."""
    (x, y), a = quadratics.clients[2], quadratics.a[2]
    plan = batches(len(y), ClientOpt(epochs=2, batch_size=6), seed=5, round=0, client=2)
    theta = torch.ones(3, dtype=torch.float64)
    for b in plan:
        theta = theta + 0.05 * x[b].T @ x[b] / len(b) @ (theta - a)
    start = torch.ones(3, dtype=torch.float64)
    kwargs = {"epochs": 2, "lr": 0.05, "batch_size": 6, "client_id": 2}
    ours = naive_ga(quadratics.model, start, (x, y), seed=5, **kwargs)
    torch.testing.assert_close(ours, theta, rtol=1e-10, atol=1e-12)
    assert torch.equal(ours, naive_ga(quadratics.model, start, (x, y), seed=5, **kwargs))
    assert not torch.equal(ours, naive_ga(quadratics.model, start, (x, y), seed=6, **kwargs))
    assert torch.equal(start, torch.ones(3, dtype=torch.float64))


def test_the_loss_to_be_forgotten_grows():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 4, generator=g), torch.randint(0, 3, (30,), generator=g)
    model = FlatModel(softmax_regression(4, 3))
    w = model.init(0)
    assert model.loss(naive_ga(model, w, (x, y), seed=0), x, y) > model.loss(w, x, y)


def test_divergence_is_returned_and_only_infinity_is_an_error(quadratics):
    w = torch.ones(3, dtype=torch.float64)
    far = naive_ga(quadratics.model, w, quadratics.clients[0], epochs=20, lr=100.0, seed=0)
    assert far.isfinite().all()
    assert far.norm() > 1e20
    with pytest.raises(NumericalFailure, match="not finite"):
        naive_ga(quadratics.model, w, quadratics.clients[0], epochs=1000, lr=100.0, seed=0)


def test_an_explosion_can_end_the_ascent_at_the_last_model_with_a_finite_gradient(quadratics):
    w, client = torch.ones(3, dtype=torch.float64), quadratics.clients[0]
    last = naive_ga(quadratics.model, w, client, epochs=1000, lr=100.0, seed=0, until_explosion=True)
    assert last.isfinite().all()
    assert quadratics.model.grad(last, *client).isfinite().all()
    assert last.norm() > 1e100
    short = {"epochs": 20, "lr": 100.0, "seed": 0}
    undisturbed = naive_ga(quadratics.model, w, client, **short)
    assert torch.equal(naive_ga(quadratics.model, w, client, until_explosion=True, **short), undisturbed)


def test_an_empty_request_is_refused(quadratics):
    x, y = quadratics.clients[0]
    with pytest.raises(InvalidRequest, match="no samples"):
        naive_ga(quadratics.model, torch.ones(3, dtype=torch.float64), (x[:0], y[:0]), seed=0)


def test_cost_is_ten_epochs_over_the_forget_data_and_one_model(quadratics):
    meter, w = Meter(), torch.ones(3, dtype=torch.float64)
    naive_ga(quadratics.model, w, quadratics.clients[2], batch_size=7, seed=0, meter=meter)
    assert (meter.images, meter.bytes, meter.storage) == (10 * 20, 0, 3 * 8)
