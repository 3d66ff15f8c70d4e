"""How far to go: Krylov spaces against CG and dense algebra, the rules for damping on problems with known answers."""

import math

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.models.flat import FlatModel
from fu_core.unlearning.curvature import curvature_product
from fu_core.unlearning.krylov import krylov_space, solve
from fu_core.unlearning.trust import gain_damping, held_out_damping, matched_losses

D = 12


def spectrum(low, high=30.0, seed=0):
    """A symmetric matrix (12, 12) with eigenvalues from `low` to `high`, and a right-hand side."""
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(D, D, generator=g, dtype=torch.float64))[0]
    return Q @ torch.diag(torch.linspace(low, high, D).double()) @ Q.T, torch.randn(D, generator=g).double()


@pytest.mark.parametrize("k", [1, 2, 5, 11])
@pytest.mark.parametrize("damping", [0.0, 0.3, 40.0])
def test_one_space_holds_what_cg_finds_with_any_damping(k, damping):
    """The same v and the same residual after k steps; the promise is g'v - v'Av / 2."""
    A, g = spectrum(0.5)
    ours, cg = krylov_space(A.mv, g, iters=k).solved(damping), solve(A.mv, g, iters=k, damping=damping, tol=0.0)
    torch.testing.assert_close(ours.v, cg.v, rtol=1e-9, atol=1e-12)
    assert ours.residual == pytest.approx(cg.residual_norms[-1] / cg.residual_norms[0], rel=1e-6)
    assert ours.promised == pytest.approx(float(g.dot(cg.v) - cg.v.dot(A @ cg.v) / 2))


def test_a_space_ends_where_the_matrix_leads_nowhere_new():
    A, _ = spectrum(1.0)
    vectors = torch.linalg.eigh(A).eigenvectors
    g, products = vectors[:, 2] + vectors[:, 7], []
    space = krylov_space(lambda v: (products.append(1), A @ v)[1], g, iters=10)
    assert (len(space.basis), len(products), space.leak) == (2, 2, 0.0)
    torch.testing.assert_close(space.solved(0.5).v, torch.linalg.solve(A + 0.5 * torch.eye(D), g))
    none = krylov_space(A.mv, torch.zeros(D).double(), iters=3)
    assert (none.solved(0.1).v.norm(), none.least_damping(0.1)) == (0, 0)


@pytest.mark.parametrize("tol", [0.9, 0.4, 0.1, 0.01])
def test_the_least_damping_is_the_one_at_which_the_system_is_solved(tol):
    A, g = spectrum(1e-4)
    space = krylov_space(A.mv, g, iters=4)
    least = space.least_damping(tol)
    assert space.solved(least).residual <= tol
    assert least == 0.0 or space.solved(0.95 * least).residual > tol
    assert krylov_space(A.mv, g, iters=D).least_damping(tol) == 0.0  # all that there is: solved


def test_negative_curvature_is_damped_away_or_named():
    A, g = spectrum(-3.0)
    space = krylov_space(A.mv, g, iters=6)
    least = space.least_damping(0.2)
    assert least > -space.lowest > 0
    assert space.solved(least).residual <= 0.2
    with pytest.raises(NumericalFailure, match=r"curvature -.* is not positive; raise damping \(now 0.5\)"):
        space.solved(0.5)


@pytest.mark.parametrize("what", ["gradient", "product"])
def test_what_is_not_finite_is_named(what):
    A, g = spectrum(1.0)
    wrong = g * math.nan if what == "gradient" else g
    with pytest.raises(NumericalFailure, match=f"{what} is not finite"):
        krylov_space(lambda v: A @ v * (math.nan if what == "product" else 1), wrong, iters=3)


# --- gain ---


def quadratic():
    """Least squares: the curvature is the loss's own everywhere."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(30, 4, generator=g, dtype=torch.float64)
    return FlatModel(nn.Linear(4, 1, bias=False), task="regression", l2=0.1), (x, x.sum(dim=1))


def space_of(model, w, data, iters=10):
    g = -model.grad(w, *data)
    return krylov_space(curvature_product(model, w, [(1.0, data)], matrix="ggn"), g, iters=iters)


def test_a_quadratic_keeps_all_that_is_promised():
    model, data = quadratic()
    w = torch.ones(4, dtype=torch.float64)
    space, counted = space_of(model, w, data), []
    found = gain_damping(space, model, w, [(1.0, data)], least=0.0, gain=1 - 1e-9, count=counted.append)
    assert found.damping == 0.0
    torch.testing.assert_close(
        w + found.v, w - torch.linalg.solve(torch.func.hessian(lambda p: model.loss(p, *data))(w), model.grad(w, *data))
    )
    assert sum(counted) == 3 * 30  # the loss before, its gradient, the loss after


@pytest.mark.parametrize("gain", [0.5, 0.9, 0.99])
def test_gain_is_actual_over_promised_decrease(gain):
    """A logistic loss far from its minimum curves more on the way: the smallest doubled damping that keeps `gain`."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=g, dtype=torch.float64) * 4
    data = x, (x.sum(dim=1) > 0).long()
    model = FlatModel(nn.Linear(3, 2), l2=1e-3)
    w = 2 * torch.randn(model.d, generator=g, dtype=torch.float64)
    space = space_of(model, w, data)

    def kept(damping):
        found = space.solved(damping)
        return float(model.loss(w, *data) - model.loss(w + found.v, *data)) / found.promised

    found = gain_damping(space, model, w, [(1.0, data)], least=1e-4, gain=gain)
    assert kept(found.damping) >= gain
    assert kept(1e-4) < gain
    assert kept(found.damping / 2) < gain
    assert math.log2(found.damping / 1e-4) == pytest.approx(round(math.log2(found.damping / 1e-4)))


def test_a_matrix_that_is_not_the_losss_is_found_out():
    model, data = quadratic()
    w = torch.ones(4, dtype=torch.float64)
    uphill = krylov_space(lambda v: v, model.grad(w, *data), iters=3)
    with pytest.raises(NumericalFailure, match="no damping up to"):
        gain_damping(uphill, model, w, [(1.0, data)], least=0.0, gain=2.0)


# --- held out ---


def test_held_out_losses_count_each_class_as_often_as_the_forgotten_have_it():
    """Logits are w itself: class c costs -log softmax(w)_c. Forgotten: 3 of class 0, 1 of class 2; held out: 1 of
    class 0, 7 of class 1, 2 of class 2, as unlike as can be; matched, they cost the same."""
    model = FlatModel(nn.Linear(1, 3, bias=False))
    w = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)
    forget = torch.ones(4, 1, dtype=torch.float64), torch.tensor([0, 0, 2, 0])
    held_out = torch.ones(10, 1, dtype=torch.float64), torch.tensor([0] + 7 * [1] + 2 * [2])
    mine, others = matched_losses(model, w, forget, held_out)
    cost = -w.log_softmax(dim=0)
    assert mine == pytest.approx(float(3 * cost[0] + cost[2]) / 4)
    assert others == pytest.approx(mine)
    with pytest.raises(InvalidRequest, match=r"held_out must hold samples of every class .* none of 2"):
        matched_losses(model, w, forget, (held_out[0][:8], held_out[1][:8]))


def test_the_rule_stops_where_forgotten_and_held_out_cost_the_same():
    """One parameter: y = w x, forgotten y = 1, held out y = 2, both at x = 1, so their losses (w - y)^2 / 2 are equal
    at w = 3 / 2. From w = 1, where the forgotten cost nothing, towards 4 with curvature 1: v = 3 / (1 + damping), so
    damping = 5."""
    model = FlatModel(nn.Linear(1, 1, bias=False), task="regression")
    w, one = torch.ones(1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    forget, held_out = (one, torch.ones(1).double()), (one, 2 * torch.ones(1).double())
    space, counted = krylov_space(lambda v: v, torch.tensor([3.0], dtype=torch.float64), iters=3), []
    damping = held_out_damping(space, model, w, forget, held_out, count=counted.append)
    assert damping == pytest.approx(5, rel=0.04)
    assert set(counted) == {2}
    assert held_out_damping(space, model, w, forget, held_out, least=8.0) == 8.0  # solved no better than that
    far = torch.tensor([2.0], dtype=torch.float64)
    assert math.isinf(held_out_damping(space, model, far, forget, held_out))  # known less well already
    away = krylov_space(lambda v: v, torch.tensor([-3.0], dtype=torch.float64), iters=3)
    assert held_out_damping(away, model, w, forget, held_out, least=0.5) == 0.5  # no step in that direction forgets
