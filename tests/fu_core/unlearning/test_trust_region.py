"""Trust-region Newton: one step on quadratics, the retained minimum of logistic losses, and never uphill."""

import math

import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.federation import Federation
from fu_core.unlearning.baselines.trust_region import TrustRegion, trust_region, within
from fu_core.unlearning.krylov import krylov_space
from fu_core.unlearning.method import Trained, resolved, unlearn
from tests.certified_peers_lab import minimum, softmax, without
from tests.federations import with_server
from tests.ridge import ONE, Ridge


def indefinite(seed=0):
    """A symmetric matrix (6, 6) with curvatures of both signs, and a right-hand side."""
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(6, 6, generator=g, dtype=torch.float64))[0]
    return Q @ torch.diag(torch.tensor([-2.0, -0.5, 0.3, 1.0, 4.0, 9.0]).double()) @ Q.T, torch.randn(
        6, generator=g
    ).double()


@pytest.mark.parametrize("radius", [0.01, 0.5, 3.0, 100.0])
def test_within_a_radius_no_other_step_of_the_space_makes_the_model_less(radius):
    """Of the whole space, on a curvature of both signs: no random vector of the ball does, nor any near the step."""
    A, g = indefinite()
    found = within(krylov_space(A.mv, g, iters=6), radius)
    assert float(found.v.norm()) == pytest.approx(radius, rel=0.011)  # always on the boundary: there is no minimum
    draws = torch.Generator().manual_seed(1)
    for spread in (1.0, 0.1, 0.01):
        for _ in range(200):
            p = found.v / radius + spread * torch.randn(6, generator=draws, dtype=torch.float64)
            p = radius * p / max(1.0, float(p.norm())) * 0.98  # |found.v| is up to a percent short of r
            assert float(g.dot(p) - p.dot(A @ p) / 2) <= found.promised + 1e-9


def test_newtons_own_step_is_taken_where_it_is_short_enough():
    A, g = indefinite()
    A = A + 3 * torch.eye(6).double()
    newton = torch.linalg.solve(A, g)
    space = krylov_space(A.mv, g, iters=6)
    torch.testing.assert_close(within(space, float(newton.norm()) * 1.01).v, newton)
    assert float(within(space, float(newton.norm()) / 2).v.norm()) == pytest.approx(float(newton.norm()) / 2, rel=0.011)


def test_on_ridge_the_model_keeps_every_promise_and_the_walk_ends_at_retraining():
    """T3: rho is 1 at every step, the radius doubles until Newton's own step fits, and that one is retraining."""
    ridge = Ridge()
    deletion = ridge.deletion(ONE)
    w, retrained = ridge.worlds(ONE, "samples")
    walk = trust_region(Federation(ridge.model, ridge.clients), w, deletion, TrustRegion(steps=20))
    torch.testing.assert_close(walk.w, retrained, rtol=1e-7, atol=1e-9)
    assert walk.agreements == pytest.approx([1.0] * len(walk.agreements), abs=1e-5)
    assert walk.radii == pytest.approx([walk.radii[0] * 2**t for t in range(len(walk.radii))])
    assert walk.left < 1e-8
    H = torch.autograd.functional.hessian(lambda v: ridge.model.loss(v, *deletion.retain), w)
    g = ridge.model.grad(w, *deletion.retain)
    assert walk.radii[0] == pytest.approx(float(g.norm() / torch.linalg.eigvalsh(H)[-1]), rel=1e-3)


def test_a_model_that_requires_a_gradient_is_taken_for_what_it_is():
    trained, request = with_server(), "client-1"
    f, deletion = trained.horizontal, resolved(trained, request)
    plain, ours = (trust_region(f, w, deletion, TrustRegion()) for w in (trained.w, trained.w.clone().requires_grad_()))
    assert torch.equal(ours.w, plain.w)
    assert not ours.w.requires_grad


def test_softmax_regression_ends_at_the_minimum_of_what_is_retained():
    f = softmax()
    w, deletion = minimum(f), without(f, [1])
    retrained = minimum(f.after(deletion))
    walk = trust_region(f, w, deletion, TrustRegion(steps=40, until=1e-9))
    assert (walk.w - retrained).norm() < 1e-6 * (w - retrained).norm()
    few = trust_region(f, w, deletion, TrustRegion(steps=1))
    assert 0.01 < (few.w - retrained).norm() / (w - retrained).norm() < 1


def test_a_net_never_goes_uphill_and_a_refused_step_costs_no_product():
    trained = with_server()
    f, deletion = trained.horizontal, without(trained.horizontal, [1])
    walk = trust_region(f, trained.w, deletion, TrustRegion(steps=12))
    assert len(walk.values) > 3
    assert all(after < before for before, after in zip(walk.values, walk.values[1:], strict=False))
    refused = len(walk.agreements) - (len(walk.values) - 1)
    found = unlearn("Trust-region Newton", trained, "client-1", steps=12)
    assert torch.equal(found.model, walk.w)
    assert found.notes["refused"] == refused
    n = len(deletion.retain[1])
    # values: at first and of every step; gradients: of every point that was left, and of the last
    points = len(walk.values)
    assert found.cost.images == n * (1 + len(walk.agreements) + points)
    assert found.cost.products == 10 * n * (points - 1 + (walk.agreements[-1] <= 0.1))


def test_refusals_shrink_the_radius_in_the_same_space(monkeypatch):
    """A loss that is not what the gradient says: every step is refused, a quarter as far as the last, for one space."""
    trained = with_server()
    f = trained.horizontal
    climb = iter(range(10_000))

    def higher_every_time(self, w, x, y):
        return torch.full((len(y),), float(next(climb)))

    monkeypatch.setattr(type(f.model), "predict_losses", higher_every_time)
    walk = trust_region(f, trained.w, without(f, [1]), TrustRegion(steps=5))
    assert torch.equal(walk.w, trained.w)
    assert walk.radii == pytest.approx([walk.radii[0] / 4**t for t in range(5)])
    assert all(rho < 0 for rho in walk.agreements)


def test_sampled_curvature_is_cheaper_and_still_goes_down():
    trained = with_server()
    whole, part = (unlearn("Trust-region Newton", trained, "client-1", curvature_samples=size) for size in (None, 20))
    assert part.cost.products < whole.cost.products / 3
    assert part.notes["steps"] > 0
    assert not torch.equal(whole.model, part.model)


def test_what_cannot_be_meant_is_refused_by_name():
    for wrong, says in (
        ({"steps": 0}, "steps must be"),
        ({"iters": 2.5}, "iters must be"),
        ({"matrix": "hesian"}, "did you mean 'hessian'"),
        ({"until": 1.0}, r"until must lie in \[0, 1\), got 1.0"),
        ({"curvature_samples": 0}, "curvature_samples must be"),
    ):
        with pytest.raises(ValueError, match=says):
            TrustRegion(**wrong)
    trained = with_server()
    with pytest.raises(NumericalFailure, match="gradient of what is retained is not finite"):
        unlearn("Trust-region Newton", Trained(trained.federation, trained.w * math.nan), "client-1")
