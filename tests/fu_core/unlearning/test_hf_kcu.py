"""HF-KCU against closed forms: both forms of Algorithm 1 on quadratics and ridge regression.

Quadratic clients have loss (w - a_i)'A_i(w - a_i) / 2, so w* = (sum p_i A_i)^-1 sum p_i A_i a_i and every
answer below is a few lines of linear algebra (methods T1, T3; errata H1, H2, H6, H8).
"""

import numpy as np
import pytest
import torch
from torch import nn

from fu_core.models.flat import FlatModel
from tests.fu_core.unlearning.hf_kcu_calls import CLOSED_FORM, EXACT, ONE_STEP, ONES, as_request, unlearned

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


@pytest.mark.parametrize("rule", ["sizes", "fixed"])
@pytest.mark.parametrize("forget", REQUESTS.values(), ids=REQUESTS)
def test_one_step_is_exact_retraining_on_quadratics(quadratics, forget, rule):
    """Errata H1, H6: w* + H_r^-1 (-grad L_r) with the retained Hessian, damping 0: the minimiser of what stays."""
    w = minimiser(quadratics, everyone(quadratics))
    ours = unlearned(
        quadratics.model, w, quadratics.clients, as_request(forget), client_weights=rule, **ONE_STEP, **CLOSED_FORM
    )
    torch.testing.assert_close(ours, minimiser(quadratics, after(quadratics, forget), rule), **EXACT)
    assert (ours - w).norm() > 1e-3


def test_the_two_client_weights_differ_only_for_a_part(quadratics):
    w, model, clients = minimiser(quadratics, everyone(quadratics)), quadratics.model, quadratics.clients
    for forget, same in (({1: None}, True), ({1: [0, 3, 4, 11]}, False)):
        sizes, fixed = (
            unlearned(model, w, clients, as_request(forget), client_weights=rule, **ONE_STEP, **CLOSED_FORM)
            for rule in ("sizes", "fixed")
        )
        assert torch.allclose(sizes, fixed, rtol=1e-9) == same


@pytest.mark.parametrize("rule", ["sizes", "fixed"])
@pytest.mark.parametrize("forget", REQUESTS.values(), ids=REQUESTS)
def test_the_retained_gradient_is_exact_off_the_optimum_too(quadratics, forget, rule):
    """w - H_r^-1 grad L_r(w) minimises a quadratic L_r from any w; the forget gradient does so only from w*."""
    args = (quadratics.model, 3 * ONES, quadratics.clients, as_request(forget))
    truth = minimiser(quadratics, after(quadratics, forget), rule)
    ours = unlearned(*args, gradient="retained", steps=1, client_weights=rule, **CLOSED_FORM)
    torch.testing.assert_close(ours, truth, **EXACT)
    assert (unlearned(*args, client_weights=rule, **ONE_STEP, **CLOSED_FORM) - truth).norm() > 0.1


def test_the_printed_sign_is_twice_as_far_from_retraining_as_doing_nothing(quadratics):
    """w - d against w_r = w + d: the distance is 2 |d| (methods 2.13)."""
    w, w_r = minimiser(quadratics, everyone(quadratics)), minimiser(quadratics, after(quadratics, {1: None}))
    ours = unlearned(quadratics.model, w, quadratics.clients, 1, sign=-1, **CLOSED_FORM)
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
        ours = unlearned(model, w, clients, forget, iters=6, damping=0.0, tol=0.0, **ONE_STEP)
        torch.testing.assert_close(ours, ridge_solution(kept), **EXACT)


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
    ours = unlearned(quadratics.model, w, quadratics.clients, as_request(forget), form="printed", iters=k, beta=beta)
    torch.testing.assert_close(ours, numpy_printed(quadratics, w.numpy(), forget, k, beta=beta), **EXACT)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize(("influence", "alpha"), [("broadcast", 1.0), ("uniform", 1 / 4)])
def test_ablations_send_the_summed_gradient_to_everybody(quadratics, influence, alpha, k):
    """Table 4: every client solves for the sum with its own Hessian, with weight 1 or 1/N, clipped or not."""
    for beta in (0.01, 100.0):
        forget, how = {0: None, 2: [1, 5]}, {"iters": k, "beta": beta}
        ours = unlearned(
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
    ours = unlearned(quadratics.model, ONES, quadratics.clients, f, form="printed", scaling=False, **CLOSED_FORM)
    torch.testing.assert_close(ours, (1 - quadratics.p[f]) * ONES + quadratics.p[f] * quadratics.a[f], **EXACT)


def test_unaffected_clients_contribute_nothing_in_the_printed_form(quadratics):
    """Only their number of samples enters, through w_i: other data of the same size give the same bits."""
    (x, y), clients = quadratics.clients[0], list(quadratics.clients)
    clients[0] = (x + 5, 3 * y - 1)
    for scaling in (True, False):
        how = {"form": "printed", "scaling": scaling}
        ours = unlearned(quadratics.model, ONES, clients, [1, 3], **how)
        assert torch.equal(ours, unlearned(quadratics.model, ONES, quadratics.clients, [1, 3], **how))
    assert not torch.equal(
        unlearned(quadratics.model, ONES, clients, [1, 3]),
        unlearned(quadratics.model, ONES, quadratics.clients, [1, 3]),
    )


@pytest.mark.parametrize("q", [1, 2, 3])
def test_q_affected_clients_move_a_q_th_of_what_they_should(quadratics, q):
    """Errata H8: for clients alike w_i alpha_i = w_i / q each, so q of them move w_i v in sum, as one does; q w_i v
    is what sum_i w_i v_i would be."""
    clients = [quadratics.clients[2]] * 5
    ours = unlearned(quadratics.model, ONES, clients, list(range(q)), form="printed", scaling=False, **CLOSED_FORM)
    torch.testing.assert_close(ours - ONES, -(1 / 5) * (ONES - quadratics.a[2]), **EXACT)


def test_the_printed_step_is_at_most_beta_times_the_clients_weight(quadratics):
    """Errata H2: |w_u - w| <= w_f beta |w|, reached when the clip binds; for several, sum_i w_i alpha_i beta |w|."""
    w, p = 0.1 * ONES, quadratics.p
    for f in range(4):
        ours = unlearned(quadratics.model, w, quadratics.clients, f, form="printed")
        assert float((ours - w).norm()) == pytest.approx(float(p[f] * 0.01 * w.norm()))
        loose = unlearned(quadratics.model, w, quadratics.clients, f, form="printed", beta=50.0)
        assert (loose - w).norm() < p[f] * 50.0 * w.norm()
    both = unlearned(quadratics.model, w, quadratics.clients, [1, 2], form="printed")
    assert (both - w).norm() <= p[[1, 2]].max() * 0.01 * w.norm()
