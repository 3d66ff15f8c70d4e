"""HF-KCU against closed forms: CG against dense algebra, both forms of Algorithm 1 on quadratics, ridge and small nets.

Quadratic clients have loss (w - a_i)'A_i(w - a_i) / 2, so w* = (sum p_i A_i)^-1 sum p_i A_i a_i and every
answer below is a few lines of linear algebra (methods T1, T3; errata H1, H2, H6, H8).
"""

import gc
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from fu_core.unlearning.deletion import Deletion
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.meter import Meter
from fu_core.models.cnn import simple_cnn
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.unlearning.curvature import curvature_product
from fu_core.unlearning.hf_kcu import HFKCU, conjugate_gradient, hf_kcu, hf_kcu_step
from fu_core.unlearning.krylov import cg_iterates, solve
from tests.quadratics import Quadratics

EXACT = {"rtol": 1e-9, "atol": 1e-12}
ONES = torch.ones(3, dtype=torch.float64)
CLOSED_FORM = {"iters": 3, "damping": 0.0}  # three parameters: CG is exact after three steps


def symmetric(d, lowest, highest, seed=0, dtype=torch.float64):
    """A random symmetric matrix with eigenvalues spread evenly on a log scale."""
    g = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64))[0]
    H = (Q * torch.logspace(np.log10(lowest), np.log10(highest), d, dtype=torch.float64)) @ Q.T
    return (0.5 * (H + H.T)).to(dtype), torch.randn(d, generator=g, dtype=torch.float64).to(dtype)


def times(H):
    return lambda v: H @ v


# --- conjugate gradient ----------------------------------------------------------------------------------------------


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


# --- exact retraining, corrected form --------------------------------------------------------------------------------


def minimiser(q, kept, rule="sizes"):
    """argmin sum_i p_i l_i over the samples in `kept`, {client: rows of its X}; p_i by what it keeps or what it had."""
    mass = {i: len(X) if rule == "sizes" else float(q.sizes[i]) for i, X in kept.items()}
    left = sum(mass[i] * X.T @ X / len(X) for i, X in kept.items())
    right = sum(mass[i] * X.T @ X / len(X) @ q.a[i] for i, X in kept.items())
    return torch.linalg.solve(left, right)


def everyone(q):
    return {i: X for i, (X, _) in enumerate(q.clients)}


def after(q, forget):
    """What each client keeps once `forget`, {client: rows or None}, is gone."""
    kept = everyone(q)
    for i, rows in forget.items():
        if rows is None:
            del kept[i]
        else:
            kept[i] = kept[i][[j for j in range(len(kept[i])) if j not in rows]]
    return kept


REQUESTS = {
    "a client": {1: None},
    "two clients": {0: None, 2: None},
    "a part of a client": {1: [0, 3, 4, 11]},
    "a client and a part": {0: None, 2: [5, 6]},
    "parts of two clients": {0: [0], 3: [1, 2, 3]},
}


def as_request(forget):
    if all(rows is None for rows in forget.values()):
        return list(forget)
    return {i: torch.arange(100)[:8] if rows is None else torch.tensor(rows) for i, rows in forget.items()}


@pytest.mark.parametrize("rule", ["sizes", "fixed"])
@pytest.mark.parametrize("forget", REQUESTS.values(), ids=REQUESTS)
def test_one_step_is_exact_retraining_on_quadratics(quadratics, forget, rule):
    """Errata H1, H6: w* + H_r^-1 (-grad L_r) with the retained Hessian, damping 0: the minimiser of what stays."""
    w = minimiser(quadratics, everyone(quadratics))
    ours = hf_kcu(quadratics.model, w, quadratics.clients, as_request(forget), client_weights=rule, **CLOSED_FORM)
    torch.testing.assert_close(ours, minimiser(quadratics, after(quadratics, forget), rule), **EXACT)
    assert (ours - w).norm() > 1e-3


def test_the_two_client_weights_differ_only_for_a_part(quadratics):
    w, model, clients = minimiser(quadratics, everyone(quadratics)), quadratics.model, quadratics.clients
    for forget, same in (({1: None}, True), ({1: [0, 3, 4, 11]}, False)):
        sizes, fixed = (
            hf_kcu(model, w, clients, as_request(forget), client_weights=rule, **CLOSED_FORM)
            for rule in ("sizes", "fixed")
        )
        assert torch.allclose(sizes, fixed, rtol=1e-9) == same


@pytest.mark.parametrize("rule", ["sizes", "fixed"])
@pytest.mark.parametrize("forget", REQUESTS.values(), ids=REQUESTS)
def test_the_retained_gradient_is_exact_off_the_optimum_too(quadratics, forget, rule):
    """w - H_r^-1 grad L_r(w) minimises a quadratic L_r from any w; the forget gradient does so only from w*."""
    args = (quadratics.model, 3 * ONES, quadratics.clients, as_request(forget))
    truth = minimiser(quadratics, after(quadratics, forget), rule)
    ours = hf_kcu(*args, gradient="retained", client_weights=rule, **CLOSED_FORM)
    torch.testing.assert_close(ours, truth, **EXACT)
    assert (hf_kcu(*args, client_weights=rule, **CLOSED_FORM) - truth).norm() > 0.1


def test_the_printed_sign_is_twice_as_far_from_retraining_as_doing_nothing(quadratics):
    """w - d against w_r = w + d: the distance is 2 |d| (methods 2.13)."""
    w, w_r = minimiser(quadratics, everyone(quadratics)), minimiser(quadratics, after(quadratics, {1: None}))
    ours = hf_kcu(quadratics.model, w, quadratics.clients, 1, sign=-1, **CLOSED_FORM)
    torch.testing.assert_close(ours - w_r, 2 * (w - w_r), **EXACT)


@pytest.fixture
def ridge():
    """Four clients, five features and a bias, noisy targets, l2 = 0.1."""
    g = torch.Generator().manual_seed(4)
    model = FlatModel(nn.Linear(5, 1), task="regression", l2=0.1)
    clients = []
    for n in (6, 11, 9, 14):
        x = torch.randn(n, 5, generator=g, dtype=torch.float64)
        clients.append((x, x @ torch.arange(5.0, dtype=torch.float64) + torch.randn(n, generator=g).double()))
    return model, clients


def ridge_solution(parts, l2=0.1):
    """(X'X / n + l2 I)^-1 X'y / n with a column of ones, the parts weighing by their sizes."""
    x, y = (np.concatenate([part[side].numpy() for part in parts]) for side in (0, 1))
    X = np.column_stack([x, np.ones(len(y))])
    return torch.from_numpy(np.linalg.solve(X.T @ X / len(y) + l2 * np.eye(6), X.T @ y / len(y)))


def test_one_step_is_exact_retraining_of_ridge(ridge):
    """Methods T3, with l2 in the loss and hence in every gradient and Hessian: client, clients, samples."""
    model, clients = ridge
    w = ridge_solution(clients)
    x, y = clients[1]
    cases = [
        (1, [clients[i] for i in (0, 2, 3)]),
        ([0, 3], [clients[i] for i in (1, 2)]),
        ({1: torch.arange(4)}, [clients[0], (x[4:], y[4:]), *clients[2:]]),
    ]
    for forget, kept in cases:
        ours = hf_kcu(model, w, clients, forget, iters=6, damping=0.0)
        torch.testing.assert_close(ours, ridge_solution(kept), **EXACT)


def test_the_order_and_the_type_of_a_request_are_irrelevant(quadratics):
    """Sums run in client order; a tensor, an array or a list of ids names the same clients."""
    model, clients = quadratics.model, quadratics.clients
    assert list(Deletion.of(clients, [3, 0, 1]).forgotten) == [0, 1, 3]
    expected = hf_kcu(model, ONES, clients, [0, 2])
    for forget in ([2, 0], (0, 2), torch.tensor([0, 2]), np.array([2, 0])):
        assert torch.equal(hf_kcu(model, ONES, clients, forget), expected)
    expected = hf_kcu(model, ONES, clients, {1: torch.tensor([3, 0])})
    assert torch.equal(hf_kcu(model, ONES, clients, {1: [0, 3]}), expected)


# --- as printed ------------------------------------------------------------------------------------------------------


def numpy_printed(q, w, forget, k, damping=0.01, beta=0.01, alpha=None):
    """Algorithm 1, lines 1-26, on quadratic clients. alpha None: Eq. (7); a number: everybody, the summed gradient."""
    g, a = {}, q.a.numpy()
    for i, rows in forget.items():
        X = q.clients[i][0].numpy()
        X_u = X if rows is None else X[rows]
        g[i] = X_u.T @ X_u @ (w - a[i]) / len(X_u)  # line 4
    if alpha is not None:
        g = dict.fromkeys(range(len(a)), sum(g.values()))
    step = 0
    for i in g:
        H = q.A[i].numpy() + damping * np.eye(len(w))  # line 5
        v, r = np.zeros_like(w), g[i]
        p = r  # line 6
        for _ in range(k):
            a_t = r @ r / (p @ H @ p)
            v, r_next = v + a_t * p, r - a_t * H @ p
            p, r = r_next + r_next @ r_next / (r @ r) * p, r_next
        alpha_i = alpha or np.linalg.norm(g[i]) / sum(np.linalg.norm(g_j) for g_j in g.values())
        scale = min(1, beta * np.linalg.norm(w) / np.linalg.norm(v))  # line 17
        step = step + float(q.p[i]) * alpha_i * scale * -v  # lines 15, 18, 24
    return torch.from_numpy(w + step)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("beta", [0.01, 0.9, 100.0])
@pytest.mark.parametrize("forget", REQUESTS.values(), ids=REQUESTS)
def test_printed_form_is_algorithm_1_line_by_line(quadratics, forget, k, beta):
    """Local Hessian plus damping, Eq. (7)'s weights, the clip per client, and w_i at the server."""
    w = 2 * ONES
    ours = hf_kcu(quadratics.model, w, quadratics.clients, as_request(forget), form="printed", iters=k, beta=beta)
    torch.testing.assert_close(ours, numpy_printed(quadratics, w.numpy(), forget, k, beta=beta), **EXACT)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(("influence", "alpha"), [("broadcast", 1.0), ("uniform", 1 / 4)])
def test_ablations_send_the_summed_gradient_to_everybody(quadratics, influence, alpha, k):
    """Table 4: every client solves for the sum with its own Hessian, with weight 1 or 1/N, clipped or not."""
    for beta in (0.01, 100.0):
        forget, how = {0: None, 2: [1, 5]}, {"iters": k, "beta": beta}
        ours = hf_kcu(
            quadratics.model,
            ONES,
            quadratics.clients,
            as_request(forget),
            form="printed",
            influence=influence,
            **how,
        )
        by_hand = numpy_printed(quadratics, ONES.numpy(), forget, k, beta=beta, alpha=alpha)
        torch.testing.assert_close(ours, by_hand, **EXACT)


@pytest.mark.parametrize("f", [0, 1, 2, 3])
def test_printed_form_moves_towards_the_forgotten_clients_own_optimum(quadratics, f):
    """Errata H1: lambda = 0, CG converged, no clip: v = A_f^-1 A_f (w - a_f), so w_u = (1 - w_f) w + w_f a_f."""
    ours = hf_kcu(quadratics.model, ONES, quadratics.clients, f, form="printed", scaling=False, **CLOSED_FORM)
    torch.testing.assert_close(ours, (1 - quadratics.p[f]) * ONES + quadratics.p[f] * quadratics.a[f], **EXACT)


def test_unaffected_clients_contribute_nothing_in_the_printed_form(quadratics):
    """Only their number of samples enters, through w_i: other data of the same size give the same bits."""
    (x, y), clients = quadratics.clients[0], list(quadratics.clients)
    clients[0] = (x + 5, 3 * y - 1)
    for scaling in (True, False):
        how = {"form": "printed", "scaling": scaling}
        ours = hf_kcu(quadratics.model, ONES, clients, [1, 3], **how)
        assert torch.equal(ours, hf_kcu(quadratics.model, ONES, quadratics.clients, [1, 3], **how))
    assert not torch.equal(
        hf_kcu(quadratics.model, ONES, clients, [1, 3]),
        hf_kcu(quadratics.model, ONES, quadratics.clients, [1, 3]),
    )


@pytest.mark.parametrize("q", [1, 2, 3])
def test_q_affected_clients_move_a_q_th_of_what_they_should(quadratics, q):
    """Errata H8: for clients alike w_i alpha_i = w_i / q each, so q of them move w_i v in sum, as one does; q w_i v
    is what sum_i w_i v_i would be."""
    clients = [quadratics.clients[2]] * 5
    ours = hf_kcu(quadratics.model, ONES, clients, list(range(q)), form="printed", scaling=False, **CLOSED_FORM)
    torch.testing.assert_close(ours - ONES, -(1 / 5) * (ONES - quadratics.a[2]), **EXACT)


def test_the_printed_step_is_at_most_beta_times_the_clients_weight(quadratics):
    """Errata H2: |w_u - w| <= w_f beta |w|, reached when the clip binds; for several, sum_i w_i alpha_i beta |w|."""
    w, p = 0.1 * ONES, quadratics.p
    for f in range(4):
        ours = hf_kcu(quadratics.model, w, quadratics.clients, f, form="printed")
        assert float((ours - w).norm()) == pytest.approx(float(p[f] * 0.01 * w.norm()))
        loose = hf_kcu(quadratics.model, w, quadratics.clients, f, form="printed", beta=50.0)
        assert (loose - w).norm() < p[f] * 50.0 * w.norm()
    both = hf_kcu(quadratics.model, w, quadratics.clients, [1, 2], form="printed")
    assert (both - w).norm() <= p[[1, 2]].max() * 0.01 * w.norm()


# --- options ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def net():
    """A tanh net with 43 parameters, three classes and three clients of 6, 9 and 5 samples, and 0.05 l2."""
    g = torch.Generator().manual_seed(3)
    model = FlatModel(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), l2=0.05)
    clients = [
        (torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(0, 3, (n,), generator=g)) for n in (6, 9, 5)
    ]
    return model, model.init(0, torch.float64), clients


def pooled(clients, ids):
    return tuple(torch.cat([clients[i][side] for i in ids]) for side in (0, 1))


@pytest.mark.parametrize(("curvature", "whose"), [("retained", [0, 2]), ("global", [0, 1, 2]), ("local", [1])])
def test_each_curvature_solves_with_the_hessian_it_names(net, curvature, whose):
    """Client 1 of 6 + 9 + 5 leaves: (H + 3 I)^-1 9/11 grad l_1, with H of who stays, of all, or its own."""
    model, w, clients = net
    H = torch.func.hessian(lambda p: model.loss(p, *pooled(clients, whose)))(w)
    g = 9 / 11 * torch.func.grad(lambda p: model.loss(p, *clients[1]))(w)
    expected = w + torch.linalg.solve(H + 3 * torch.eye(model.d, dtype=torch.float64), g)
    ours = hf_kcu(model, w, clients, 1, curvature=curvature, iters=40, damping=3.0, scaling=False)
    torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize(("curvature", "whose"), [("retained", [0, 2]), ("global", [0, 1, 2])])
def test_the_printed_form_takes_other_curvatures_too(net, curvature, whose):
    model, w, clients = net
    H = torch.func.hessian(lambda p: model.loss(p, *pooled(clients, whose)))(w)
    g = torch.func.grad(lambda p: model.loss(p, *clients[1]))(w)
    expected = w - 9 / 20 * torch.linalg.solve(H + 3 * torch.eye(model.d, dtype=torch.float64), g)
    how = {"form": "printed", "iters": 40, "damping": 3.0, "scaling": False}
    torch.testing.assert_close(hf_kcu(model, w, clients, 1, curvature=curvature, **how), expected, **EXACT)


def test_each_affected_client_solves_alone_with_local_curvature(quadratics):
    """Two clients leave: w + sum_i n_i / (n - m) A_i^-1 A_i (w - a_i)."""
    ours = hf_kcu(quadratics.model, ONES, quadratics.clients, [0, 1], curvature="local", **CLOSED_FORM)
    by_hand = ONES + sum(quadratics.sizes[i] / 30 * (ONES - quadratics.a[i]) for i in (0, 1))
    torch.testing.assert_close(ours, by_hand, **EXACT)


@pytest.mark.parametrize("matrix", ["ggn", "fisher"])
def test_the_matrix_reaches_the_solve(net, matrix):
    model, w, clients = net
    product = curvature_product(model, w, [(1.0, pooled(clients, [0, 2]))], matrix=matrix)
    ours = hf_kcu(model, w, clients, 1, matrix=matrix, iters=60, damping=0.5, scaling=False) - w
    g = 9 / 11 * torch.func.grad(lambda p: model.loss(p, *clients[1]))(w)
    torch.testing.assert_close(product(ours) + 0.5 * ours, g, rtol=1e-8, atol=1e-10)


def test_adaptive_scaling_is_off_for_linear_models_only(net, quadratics):
    """Line 17: a net moves at most beta |w|, here exactly that; the corrected step of a convex loss is kept whole."""
    model, w, clients = net
    found = hf_kcu_step(model, w, clients, 1, HFKCU(damping=3.0, beta=1e-4))
    assert found.scale[0] == pytest.approx(1e-4 * float(w.norm() / found.solutions[0].v.norm()))
    assert float(found.step.norm()) == pytest.approx(1e-4 * float(w.norm()))
    assert hf_kcu_step(model, w, clients, 1, HFKCU(damping=3.0, beta=1e-4, scaling=False)).scale == [1.0]
    linear = FlatModel(softmax_regression(4, 3))
    w_linear = linear.init(0, torch.float64)
    assert hf_kcu_step(linear, w_linear, clients, 1, HFKCU(beta=1e-4)).scale == [1.0]
    assert hf_kcu_step(linear, w_linear, clients, 1, HFKCU(beta=1e-4, scaling=True)).scale[0] < 1
    assert hf_kcu_step(linear, w_linear, clients, 1, HFKCU(beta=1e-4, form="printed")).scale[0] < 1


def test_decay_reaches_the_solve(quadratics):
    args = (quadratics.model, ONES, quadratics.clients, 1)
    assert torch.equal(hf_kcu(*args, decay=1.0), hf_kcu(*args))
    whole, decayed = (hf_kcu(*args, iters=2, decay=gamma) - ONES for gamma in (1.0, 0.9))
    first = hf_kcu(*args, iters=1) - ONES
    torch.testing.assert_close(decayed, first + 0.9 * (whole - first), **EXACT)


def test_preconditioning_changes_the_way_and_not_the_end(net):
    model, w, clients = net
    how = {"matrix": "ggn", "iters": 400, "damping": 0.01, "scaling": False, "tol": 1e-11}
    plain = hf_kcu(model, w, clients, 1, **how)
    torch.testing.assert_close(hf_kcu(model, w, clients, 1, preconditioner="jacobi", **how), plain, rtol=1e-7, atol=0)
    short = {**how, "iters": 3}
    assert not torch.allclose(
        hf_kcu(model, w, clients, 1, preconditioner="jacobi", **short), hf_kcu(model, w, clients, 1, **short)
    )


def test_float32_gives_the_step_of_float64():
    """A convolutional net with max-pooling: CG in single precision, sums over batches in double."""
    model = FlatModel(simple_cnn(1, 8, 3, (2, 3, 3), 4))
    g = torch.Generator().manual_seed(0)
    clients = [(torch.rand(6, 1, 8, 8, generator=g), torch.randint(0, 3, (6,), generator=g)) for _ in range(3)]
    double = [(x.double(), y) for x, y in clients]
    w = model.init(0)
    for how in ({"damping": 1.0}, {"form": "printed", "scaling": False, "damping": 1.0}, {"matrix": "ggn"}):
        single = hf_kcu(model, w, clients, 0, iters=5, beta=10.0, **how)
        exact = hf_kcu(model, w.double(), double, 0, iters=5, beta=10.0, **how) - w.double()
        assert single.dtype == torch.float32
        assert (single.double() - w.double() - exact).norm() < 1e-4 * exact.norm()


def test_sampled_curvature_depends_on_the_seed_alone(quadratics):
    args = (quadratics.model, ONES, quadratics.clients, 1)
    first, again, other = (hf_kcu(*args, curvature_samples=20, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for enough in (38, 1000):  # 50 - 12 samples stay
        assert torch.equal(hf_kcu(*args, curvature_samples=enough, seed=5), hf_kcu(*args))


def test_sampled_curvature_is_unbiased(quadratics):
    """The first step's g'H_S g / g'g is linear in H_S: its mean over 150 seeds is g'Hg / g'g within four standard
    errors. Ten samples of 8 + 20 + 10 are ceil(80/38) = 3, ceil(200/38) = 6 and ceil(100/38) = 3."""
    args, meter = (quadratics.model, ONES, quadratics.clients, 1), Meter()
    config = {"iters": 1, "damping": 0.0}
    sampled = HFKCU(**config, curvature_samples=10)
    exact = hf_kcu_step(*args, HFKCU(**config)).solutions[0].curvatures[0]
    drawn = np.array([hf_kcu_step(*args, sampled, seed=s).solutions[0].curvatures[0] for s in range(150)])
    assert abs(drawn.mean() - exact) < 4 * drawn.std() / 150**0.5
    assert drawn.std() > 0.01 * exact
    hf_kcu_step(*args, sampled, meter=meter)
    assert meter.products == 3 + 6 + 3


def test_a_client_without_data_changes_nothing(quadratics):
    """Dirichlet splits leave some clients empty: they have no part in any curvature."""
    x, y = quadratics.clients[0]
    more = [*quadratics.clients, (x[:0], y[:0])]
    for how in ({}, {"form": "printed"}, {"gradient": "retained"}, {"client_weights": "fixed"}):
        for curvature in ("retained", "global", "local"):
            for preconditioner in ("none", "jacobi"):
                options = {"curvature": curvature, "preconditioner": preconditioner, **how}
                ours = hf_kcu(quadratics.model, ONES, more, 1, **options)
                assert torch.equal(ours, hf_kcu(quadratics.model, ONES, quadratics.clients, 1, **options))


def test_inputs_are_left_untouched(quadratics):
    w, x_before = ONES.clone(), [x.clone() for x, _ in quadratics.clients]
    for how in ({}, {"form": "printed"}, {"gradient": "retained", "preconditioner": "jacobi"}):
        for forget in (0, {0: torch.tensor([1, 2])}):
            ours = hf_kcu(quadratics.model, w, quadratics.clients, forget, **how)
            ours.zero_()  # and the result is nobody else's memory
            assert torch.equal(w, ONES)
    assert all(torch.equal(x, before) for (x, _), before in zip(quadratics.clients, x_before, strict=True))


# --- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"form": "printed"}, {"form": "printed", "influence": "broadcast"}])
def test_a_zero_gradient_returns_the_model_and_says_so(quadratics, how):
    """At w = a_1 client 1 fits its data perfectly: there is nothing to reverse."""
    w = quadratics.a[1].clone()
    with pytest.warns(UserWarning, match="gradient on the forgotten data is zero"):
        ours = hf_kcu(quadratics.model, w, quadratics.clients, 1, **how)
    assert torch.equal(ours, w)
    assert ours.data_ptr() != w.data_ptr()


def test_relative_residual_is_the_largest_over_the_solves_that_had_something_to_solve(quadratics):
    """At w = a_1 client 1 has none; client 2 makes one step: |g - a A g| / |g| with a = g'g / g'Ag."""
    w, A = quadratics.a[1], quadratics.A[2]
    found = hf_kcu_step(quadratics.model, w, quadratics.clients, [1, 2], HFKCU(form="printed", iters=1, damping=0.0))
    g = A @ (w - quadratics.a[2])
    by_hand = (g - g.dot(g) / g.dot(A @ g) * A @ g).norm() / g.norm()
    assert found.relative_residual == pytest.approx(float(by_hand))


def test_a_model_that_is_not_finite_is_an_error(quadratics):
    for how in ({}, {"form": "printed"}):
        with pytest.raises(NumericalFailure, match="not finite"):
            hf_kcu(quadratics.model, ONES * float("nan"), quadratics.clients, 1, **how)


def test_negative_curvature_in_a_net():
    """f = w_2 w_1 x at w = (1, 1), x = 1, y = 4: residual -3, H = [[1, -2], [-2, 1]], gradient -3 (1, 1), along which
    p'Hp / p'p = -1. Printed: v = g / -1 = 3 (1, 1), w_u = w - 1/2 v. Corrected: an error, or Gauss-Newton."""
    model = FlatModel(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)), task="regression")
    w = torch.ones(2, dtype=torch.float64)
    client = (torch.ones(2, 1, dtype=torch.float64), torch.full((2,), 4.0, dtype=torch.float64))
    args, how = (model, w, [client, client], 0), {"damping": 0.0, "iters": 1, "scaling": False}
    with pytest.raises(NumericalFailure, match=r"curvature -1 along .* matrix='ggn'"):
        hf_kcu(*args, **how)
    with pytest.warns(UserWarning, match="negative curvature in 1 of 1 steps"):
        assert hf_kcu(*args, form="printed", **how).tolist() == [-0.5, -0.5]
    assert hf_kcu(*args, matrix="ggn", **how).tolist() == [-0.5, -0.5]  # g = -3 (1, 1), G = [[1, 1], [1, 1]]


ROWS = torch.tensor


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        ([], "forget names nobody"),
        ({}, "forget names nobody"),
        (4, "forget names client 4, but clients are 0 to 3"),
        (-1, "forget names client -1"),
        ({9: ROWS([0])}, "forget names client 9"),
        ([1, 2, 1], r"forget names a client twice: \[1, 2, 1\]"),
        (torch.tensor([1, 1]), r"forget names a client twice: \[1, 1\]"),
        ([0, 1, 2, 3], "forget leaves no data at all"),
        ({1: ROWS([], dtype=torch.int64)}, "forget names client 1 but none of its samples"),
        ({1: ROWS([0, 12])}, r"forget must hold indices 0\.\.11 of client 1 \(int64\), got \[0, 12\]"),
        ({1: ROWS([-1])}, r"indices 0\.\.11 of client 1"),
        ({1: ROWS([0.0])}, r"\(int64\)"),
        ({1: ROWS([True] * 12)}, r"\(int64\)"),
        ({1: ROWS([3, 3])}, "forget names a sample of client 1 twice"),
    ],
)
@pytest.mark.parametrize("form", ["corrected", "printed"])
def test_bad_requests_are_named(quadratics, forget, message, form):
    with pytest.raises(InvalidRequest, match=message):
        hf_kcu(quadratics.model, ONES, quadratics.clients, forget, form=form)


def test_requests_that_leave_or_take_nothing_are_named(quadratics):
    X, y = quadratics.clients[0]
    with pytest.raises(InvalidRequest, match="forget names client 1, which holds no data"):
        hf_kcu(quadratics.model, ONES, [(X, y), (X[:0], y[:0])], 1)
    with pytest.raises(InvalidRequest, match="forget leaves no data at all"):
        hf_kcu(quadratics.model, ONES, [(X, y), (X[:0], y[:0])], 0)
    everything = {i: torch.arange(int(n)) for i, n in enumerate(quadratics.sizes)}
    with pytest.raises(InvalidRequest, match="forget leaves no data at all"):
        hf_kcu(quadratics.model, ONES, quadratics.clients, everything)


def test_all_samples_of_a_client_are_the_client(quadratics):
    for how in ({}, {"client_weights": "fixed"}, {"form": "printed"}):
        whole = hf_kcu(quadratics.model, ONES, quadratics.clients, 2, **how)
        assert torch.equal(hf_kcu(quadratics.model, ONES, quadratics.clients, {2: torch.arange(20)}, **how), whole)


@pytest.mark.parametrize(
    ("field", "value", "rest"),
    [
        ("iters", 0, {}),
        ("iters", 2.5, {}),
        ("damping", -0.1, {}),
        ("damping", float("nan"), {}),
        ("tol", -1.0, {}),
        ("beta", 0.0, {}),
        ("form", "print", {}),
        ("curvature", "remaining", {}),
        ("matrix", "hesse", {}),
        ("sign", 0, {}),
        ("influence", "none", {"form": "printed"}),
        ("decay", 0.0, {}),
        ("decay", 1.5, {}),
        ("gradient", "kept", {}),
        ("client_weights", "equal", {}),
        ("preconditioner", "diagonal", {}),
        ("curvature_samples", 0, {}),
        ("batch_size", 0, {}),
        ("influence", "broadcast", {}),
        ("gradient", "retained", {"form": "printed"}),
        ("client_weights", "fixed", {"form": "printed"}),
    ],
)
def test_bad_hyper_parameters_are_named(field, value, rest):
    with pytest.raises(ValueError, match=rf"^{field}[ =]"):
        HFKCU(**{field: value, **rest})


def test_an_unknown_option_is_named(quadratics):
    with pytest.raises(TypeError, match="dampening"):
        hf_kcu(quadratics.model, ONES, quadratics.clients, 1, dampening=0.1)


# --- costs and symmetry ----------------------------------------------------------------------------------------------

VECTOR = 3 * 8  # bytes of three float64 parameters
RETAIN = {"gradient": "retained"}


@pytest.mark.parametrize(
    ("forget", "how", "images", "per_step", "up", "down"),
    [
        # corrected, clients of 8, 12, 20, 10: a gradient up, p and q per step and client, the new model to all four
        (1, {}, 12, 38, 1 + 2 * 3, 2 * 3 + 4),
        ([0, 1], {}, 20, 30, 2 + 2 * 2, 2 * 2 + 4),
        ({1: ROWS([0, 1, 2])}, {}, 3, 47, 1 + 2 * 4, 2 * 4 + 4),
        ({1: ROWS([0, 1, 2])}, {"client_weights": "fixed"}, 3 + 12, 47, 1 + 2 * 4, 2 * 4 + 4),
        (1, {"curvature": "global"}, 12, 50, 1 + 2 * 4, 2 * 4 + 4),
        (1, {"curvature": "local"}, 12, 12, 1, 4),
        (1, RETAIN, 38, 38, 3 + 2 * 3, 2 * 3 + 4),
        (1, {"preconditioner": "jacobi"}, 12 + 38, 38, 1 + 3 + 2 * 3, 2 * 3 + 4),
        ([0, 1, 2], {}, 40, 10, 3 + 2 * 1, 2 * 1 + 4),  # one client stays, and is asked over the network all the same
        # printed: everybody hears the model, the affected send their steps and nothing else
        (1, {"form": "printed"}, 12, 12, 1, 4),
        ([0, 1], {"form": "printed"}, 20, 20, 2, 4),
        ({1: ROWS([0, 1, 2])}, {"form": "printed"}, 3, 12, 1, 4),
        (1, {"form": "printed", "preconditioner": "jacobi"}, 12 + 12, 12, 1, 4),
        (1, {"form": "printed", "influence": "broadcast"}, 12, 50, 1 + 4, 4 + 4),
        (1, {"form": "printed", "curvature": "retained"}, 12, 38, 1 + 2 * 3, 2 * 3 + 4),
    ],
)
def test_costs_are_counted(quadratics, forget, how, images, per_step, up, down):
    """k = 2 steps: gradients over the forgotten (or kept) samples, k products over those of the curvature."""
    meter = Meter()
    hf_kcu(quadratics.model, ONES, quadratics.clients, forget, iters=2, meter=meter, **how)
    assert meter.images == images
    assert meter.products == 2 * per_step
    assert (meter.bytes_up, meter.bytes_down) == (up * VECTOR, down * VECTOR)
    assert meter.gradient_passes == images + 4 * per_step


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    order=st.permutations(range(4)),
    form=st.sampled_from(["corrected", "printed"]),
    forget=st.sampled_from([{0: None}, {1: None, 3: None}, {2: [1, 2, 7]}]),
)
def test_the_order_of_the_clients_is_irrelevant(order, form, forget):
    """Client order[j] becomes client j, in the data and in the request; rounding aside nothing changes."""
    q = Quadratics()
    expected = hf_kcu(q.model, ONES, q.clients, as_request(forget), form=form)
    moved = as_request({order.index(i): rows for i, rows in forget.items()})
    ours = hf_kcu(q.model, ONES, [q.clients[i] for i in order], moved, form=form)
    torch.testing.assert_close(ours, expected, **EXACT)
