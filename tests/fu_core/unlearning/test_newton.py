"""Newton systems that are singular or not positive: an error or a warning, never a step that rounding has made."""

import warnings

import pytest
import torch
from torch import nn

from fu_core.errors import NumericalFailure
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp, softmax_regression
from fu_core.unlearning.newton import Newton, newton_solver

FEATURES, CLASSES = 20, 5
DTYPES = (torch.float32, torch.float64)


def problem(module, dtype, l2=0.0, seed=0):
    """A model, parameters, what holds the curvature there, and a right side that it can reach."""
    model, g = FlatModel(module, l2=l2), torch.Generator().manual_seed(seed)
    x, y = torch.randn(300, FEATURES, generator=g).to(dtype), torch.randint(CLASSES, (300,), generator=g)
    w = model.init(seed, dtype)
    return model, w, [(w, [(1.0, (x, y))])], model.grad(w, x[:9], y[:9])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("curvature", ["hessian", "ggn", "fisher"])
@pytest.mark.parametrize("seed", range(3))
def test_a_matrix_that_is_singular_but_for_rounding_is_an_error(seed, curvature, dtype):
    """Softmax without l2 does not change when a constant is added to all logits: steps of 2 to 2e6 came out."""
    model, _, groups, g = problem(softmax_regression(FEATURES, CLASSES), dtype, seed=seed)
    with pytest.raises(NumericalFailure, match=r"singular: raise damping \(now 0\)"):
        newton_solver(model, groups, Newton(curvature))(g)
    assert newton_solver(model, groups, Newton(curvature, damping=1e-3))(g).isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_conjugate_gradient_ends_where_only_rounding_is_left(dtype):
    """In float32 its step was 143 long, where the shortest solution is 0.25."""
    model, w, groups, g = problem(softmax_regression(FEATURES, CLASSES), dtype)
    H = torch.func.hessian(lambda p: model.loss(p.double(), *[t.double() if t.is_floating_point() else t
                                                              for t in groups[0][1][0][1]]))(w.double())  # fmt: skip
    shortest = torch.linalg.pinv(H, rtol=1e-9) @ g.double()
    found = newton_solver(model, groups, Newton(dense_up_to=0))(g)
    torch.testing.assert_close(found.double(), shortest, rtol=1e-2, atol=1e-3 * float(shortest.norm()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_l2_is_enough_and_both_ways_agree(dtype):
    model, _, groups, g = problem(softmax_regression(FEATURES, CLASSES), dtype, l2=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dense, by_cg = (newton_solver(model, groups, Newton(dense_up_to=up_to))(g) for up_to in (5000, 0))
    torch.testing.assert_close(dense, by_cg, rtol=1e-2, atol=1e-3 * float(dense.norm()))


@pytest.mark.parametrize("up_to", [5000, 0])
def test_negative_curvature_is_told(up_to):
    model, _, groups, g = problem(mlp(FEATURES, CLASSES, (6,)), torch.float64, l2=1e-3)
    with pytest.warns(UserWarning, match="curvature is negative"):
        newton_solver(model, groups, Newton(dense_up_to=up_to))(g)


def test_a_positive_system_is_solved_for_every_right_side():
    model, w, groups, g = problem(nn.Linear(FEATURES, CLASSES), torch.float64, l2=0.1)
    H = torch.func.hessian(lambda p: model.loss(p, *groups[0][1][0][1]))(w)
    solver = newton_solver(model, groups, Newton())
    for right in (g, 2 * g, torch.ones_like(g)):
        torch.testing.assert_close(H @ solver(right), right, rtol=1e-9, atol=1e-12)
