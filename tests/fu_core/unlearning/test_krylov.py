"""Conjugate gradient, HF-KCU's Algorithm 1, lines 6-14, against dense algebra and the bounds of the paper."""

import gc
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.unlearning.hf_kcu import conjugate_gradient
from fu_core.unlearning.krylov import cg_iterates, solve

EXACT = {"rtol": 1e-9, "atol": 1e-12}
ONES = torch.ones(3, dtype=torch.float64)


def symmetric(d, lowest, highest, seed=0, dtype=torch.float64):
    """A random symmetric matrix with eigenvalues spread evenly on a log scale."""
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64))[0]
    H = (Q * torch.logspace(np.log10(lowest), np.log10(highest), d, dtype=torch.float64)) @ Q.T
    return (0.5 * (H + H.T)).to(dtype), torch.randn(d, generator=g, dtype=torch.float64).to(dtype)


def times(H):
    return lambda v: H @ v


def test_cg_on_paper():
    """H = diag(2, 1), g = (1, 1). Step 1: p'q = 3, v = 2/3 (1, 1), r = (-1, 1)/3. Step 2: beta = 1/9,
    p = (-2, 4)/9, p'q = 24/81, a = 3/4: v = (2/3 - 1/6, 2/3 + 1/3) = (1/2, 1), which solves it."""
    H, g = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64)), torch.ones(2, dtype=torch.float64)
    one, norms = conjugate_gradient(times(H), g, iters=1)
    assert one.tolist() == pytest.approx([2 / 3, 2 / 3])
    assert norms == pytest.approx([2**0.5, 2**0.5 / 3])
    two, norms = conjugate_gradient(times(H), g, iters=2)
    assert two.tolist() == pytest.approx([0.5, 1.0])
    assert norms[2] == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("damping", [0.0, 0.5])
@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_cg_equals_a_dense_solve_after_at_most_d_steps(d, damping):
    H, g = symmetric(d, 0.5, 5.0)
    v, norms = conjugate_gradient(times(H), g, iters=d, damping=damping)
    torch.testing.assert_close(v, torch.linalg.solve(H + damping * torch.eye(d, dtype=torch.float64), g), **EXACT)
    assert len(norms) <= d + 1


def test_residuals_are_the_true_residuals():
    """|r_t| = |g - (H + damping I) v_t| at every step, though CG only updates r."""
    H, g = symmetric(12, 0.1, 10.0)
    damped = H + 0.2 * torch.eye(12, dtype=torch.float64)
    _, norms = conjugate_gradient(times(H), g, iters=6, damping=0.2)
    assert norms[0] == float(g.norm())
    for t, iterate in zip(range(1, 7), cg_iterates(times(H), g, damping=0.2), strict=False):
        torch.testing.assert_close(iterate.residual, g - damped @ iterate.v, **EXACT)
        assert norms[t] == float(iterate.residual.norm())


def test_cg_stops_at_its_tolerance():
    """In the example on paper |r_1| / |g| = 1/3: a tolerance of 0.34 is met after one step, 0.33 after two."""
    H, g = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64)), torch.ones(2, dtype=torch.float64)
    assert len(conjugate_gradient(times(H), g, tol=0.34)[1]) == 2
    assert len(conjugate_gradient(times(H), g, tol=0.33)[1]) == 3


def test_cg_makes_no_product_more_than_its_steps():
    H, g = symmetric(20, 0.01, 10.0)
    products = []
    conjugate_gradient(lambda p: products.append(p) or H @ p, g, iters=7)
    assert len(products) == 7


def test_no_gradient_needs_no_product():
    def never(p):
        raise AssertionError

    v, norms = conjugate_gradient(never, torch.zeros(3))
    assert v.tolist() == [0, 0, 0]
    assert norms == [0.0]


@pytest.mark.parametrize("kappa", [2.0, 30.0, 1000.0])
def test_energy_norm_error_is_bounded(kappa):
    """HF-KCU, Eq. (6): |v_k - v*|_H <= 2 ((sqrt k - 1) / (sqrt k + 1))^k |v*|_H for every k, three matrices each."""
    rate = (kappa**0.5 - 1) / (kappa**0.5 + 1)
    for seed in range(3):
        H, g = symmetric(30, 1.0, kappa, seed)
        exact = torch.linalg.solve(H, g)

        def energy(x, H=H):
            return float(x.dot(H @ x)) ** 0.5

        for k, iterate in zip(range(1, 26), cg_iterates(times(H), g), strict=False):
            assert energy(iterate.v - exact) <= 2 * rate**k * energy(exact) + 1e-12


def test_perturbed_systems_move_no_further_than_theorem_1():
    """HF-KCU, Eq. (10): |d~ - d| <= eps / (mu (mu - eps)) |g| + rho / (mu - eps) for |E| = eps < mu, |e| = rho."""
    mu, eps, rho = 1.0, 0.3, 0.2
    for seed in range(5):
        H, g = symmetric(8, mu, 20.0, seed)
        E, e = symmetric(8, 0.1, 1.0, seed + 100)
        E, e = eps * E / torch.linalg.matrix_norm(E, 2), rho * e / e.norm()
        plain, moved = (conjugate_gradient(times(A), b, iters=30)[0] for A, b in ((H, g), (H + E, g + e)))
        assert (moved - plain).norm() <= eps / (mu * (mu - eps)) * g.norm() + rho / (mu - eps)


def test_negative_curvature_on_the_first_step_is_an_error():
    with pytest.raises(NumericalFailure, match=r"curvature -1 along the gradient .* raise damping \(now 0\.5\)"):
        conjugate_gradient(lambda p: -1.5 * p, ONES, damping=0.5)
    assert conjugate_gradient(lambda p: -1.5 * p, ONES, damping=2.0)[0].tolist() == pytest.approx([2.0] * 3)


def test_later_negative_curvature_stops_with_what_was_found():
    """H = diag(2, -1), g = (2, 1). Step 1: p'Hp = 7, a = 5/7, v = (10, 5)/7, r = (-6, 12)/7. Step 2: beta = 36/49,
    p = (30, 120)/49, p'Hp = (1800 - 14400)/49^2 < 0: stop. Going on as printed ends at H^-1 g = (1, -1)."""
    H, g = torch.diag(torch.tensor([2.0, -1.0], dtype=torch.float64)), torch.tensor([2.0, 1.0], dtype=torch.float64)
    with pytest.warns(UserWarning, match="negative curvature in 1 of 2 steps"):
        stopped, norms = conjugate_gradient(times(H), g)
    assert stopped.tolist() == pytest.approx([10 / 7, 5 / 7])
    assert norms == pytest.approx([5**0.5, 180**0.5 / 7])
    with pytest.warns(UserWarning, match="negative curvature in 1 of 2 steps"):
        printed, _ = conjugate_gradient(times(H), g, iters=2, negative="continue")
    assert printed.tolist() == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("negative", ["stop", "continue"])
def test_nothing_divides_by_zero_curvature(negative):
    """H = diag(1, 0), g = (1, 1): v_1 = (2, 2), then p = (0, 2) and p'Hp = 0. With H = 0 at once: an error."""
    H, g = torch.diag(torch.tensor([1.0, 0.0])), torch.ones(2)
    with pytest.warns(UserWarning, match="negative curvature in 1 of 2"):
        v, norms = conjugate_gradient(times(H), g, negative=negative)
    assert v.tolist() == [2, 2]
    assert len(norms) == 2  # one step made
    with pytest.raises(NumericalFailure, match="raise damping"):
        conjugate_gradient(times(0 * H), g, negative=negative)


def test_preconditioning_gives_the_same_solution_in_fewer_steps():
    """Rows and columns scaled by 10^-2 to 10^2: dividing by the diagonal undoes it."""
    core, g = symmetric(20, 0.5, 2.0)
    scales = torch.logspace(-2, 2, 20, dtype=torch.float64)
    H = scales[:, None] * core * scales
    how = {"iters": 2000, "tol": 1e-9}
    plain, slow = conjugate_gradient(times(H), g, **how)
    scaled, fast = conjugate_gradient(times(H), g, preconditioner=H.diagonal().reciprocal().mul, **how)
    torch.testing.assert_close(scaled, torch.linalg.solve(H, g), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(plain, scaled, rtol=1e-4, atol=1e-7)
    assert len(fast) < 30 < len(slow)


def test_memory_does_not_grow_with_the_steps():
    """Errata H10: plain CG keeps v, r, p and q, not the k vectors of Sec. 5.7."""
    H, g = symmetric(61, 1e-3, 10.0)
    peaks = []
    for iters in (4, 14):
        alive = []

        def product(p, alive=alive):
            q = H @ p
            alive.append(sum(type(t) is torch.Tensor and t.shape == (61,) for t in gc.get_objects()))
            return q

        conjugate_gradient(product, g, iters=iters)
        assert len(alive) == iters
        peaks.append(max(alive))
    assert peaks[0] == peaks[1] <= 10  # g, v, r, p and q; v and r once more while they are handed over


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_is_an_error(broken):
    with pytest.raises(NumericalFailure, match="CG step 1: the curvature product is not finite"):
        conjugate_gradient(lambda p: broken * p, ONES)
    with pytest.raises(NumericalFailure, match="the gradient or a product is not finite"):
        conjugate_gradient(lambda p: p, torch.tensor([1.0, broken]))
    with pytest.raises(NumericalFailure, match="preconditioner is not positive definite"):
        conjugate_gradient(lambda p: p, ONES, preconditioner=lambda r: -r)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cg_ends_at_rounding_and_does_not_mistake_it_for_negative_curvature(dtype):
    """Once |r| < eps |g| nothing improves: p'Hp is made of rounding errors, down to 0 / 0, of either sign."""
    for seed in range(20):
        H, g = symmetric(5, 1e-3, 1.0, seed, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            v, norms = conjugate_gradient(times(H), g, iters=200)
        assert (H @ v - g).norm() < 1e4 * torch.finfo(dtype).eps * g.norm()
        assert len(norms) < 30


def test_decay_counts_the_t_th_increment_gamma_to_the_t(quadratics):
    """v = sum_t gamma^t (v_t+1 - v_t) with the increments of plain CG; the first has weight 1, the residuals stay."""
    H, g = quadratics.A[0], ONES
    path = [torch.zeros(3, dtype=torch.float64), *(it.v for it in cg_iterates(times(H), g))][:4]
    plain = solve(times(H), g, iters=3, damping=0.0, tol=0.0)
    decayed = solve(times(H), g, iters=3, damping=0.0, tol=0.0, decay=0.9)
    by_hand = sum(0.9**t * (after - before) for t, (before, after) in enumerate(pairwise(path)))
    torch.testing.assert_close(decayed.v, by_hand, **EXACT)
    assert decayed.residual_norms == plain.residual_norms
    assert torch.equal(solve(times(H), g, iters=3, damping=0.0, tol=0.0, decay=1.0).v, plain.v)


def test_bad_cg_arguments_are_named():
    with pytest.raises(ValueError, match="iters must be a whole number >= 1, got 0"):
        conjugate_gradient(lambda p: p, ONES, iters=0)
    with pytest.raises(ValueError, match="negative must be one of"):
        conjugate_gradient(lambda p: p, ONES, negative="ignore")
