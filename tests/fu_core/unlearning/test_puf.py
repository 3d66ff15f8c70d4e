"""PUF against its closed forms on quadratics: methods 2.5 (a)-(f), and what it must refuse."""

import math

import pytest
import torch

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.horizontal import fedavg_round
from fu_core.federation.server import FedOpt, ServerState, server_step
from fu_core.request import Deletion
from fu_core.unlearning.puf import PUF, effective_step, pseudo_gradient, puf, puf_round
from tests.quadratics import Quadratics

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def only(*targets, n=4):
    return torch.tensor([i in targets for i in range(n)])


def test_special_round_applies_the_negated_scaled_update():
    """PUF, Eq. (9), on paper: w = (1, 1), Delta_0 = (0.5, -1), eta_u = 2: (1 - 1, 1 + 2) = (0, 3)."""
    w, deltas = torch.ones(2), torch.tensor([[0.5, -1.0], [9.0, 9.0]])
    after = puf(w, deltas, torch.tensor([30.0, 10.0]), torch.tensor([True, False]), mode="special", eta_u=2.0)
    assert after.tolist() == [0.0, 3.0]


def test_regular_round_weighs_by_samples():
    """PUF, Eqs. (5)-(8), on paper: n = 40, Delta+ = 10/40 (4, 0) = (1, 0), Delta- = 30/40 (0, 4) = (0, 3);
    eta_u = 2, eta_r = 1: w + (1, -6)."""
    w, deltas = torch.zeros(2), torch.tensor([[0.0, 4.0], [4.0, 0.0]])
    after = puf(w, deltas, torch.tensor([30.0, 10.0]), torch.tensor([True, False]), mode="regular", eta_u=2.0)
    assert after.tolist() == [1.0, -6.0]


def test_printed_form_lacks_the_sample_counts():
    """Algorithm 1, lines 15-16, to the letter: Delta- = 1/n Delta, 30 times too small here (errata P6)."""
    w, deltas = torch.zeros(2), torch.tensor([[0.0, 4.0], [4.0, 0.0]])
    kwargs = {"mode": "special", "eta_u": 2.0}
    sizes, targets = torch.tensor([30.0, 10.0]), torch.tensor([True, False])
    printed = puf(w, deltas, sizes, targets, form="printed", **kwargs)
    torch.testing.assert_close(30 * printed, puf(w, deltas, sizes, targets, **kwargs))


def test_a_regular_equals_special_at_the_fixed_point(quadratics):
    """(a), claim P14: at FedAvg's fixed point sum p_i Delta_i = 0, so Regular(eta_r, eta_u) is
    Special((eta_r + eta_u) p_u)."""
    w = quadratics.fixed_point()
    deltas, p_u = quadratics.deltas(w), float(quadratics.p[1])
    regular = puf(w, deltas, quadratics.sizes, only(1), mode="regular", eta_u=7.0, eta_r=1.5)
    special = puf(w, deltas, quadratics.sizes, only(1), mode="special", eta_u=(1.5 + 7.0) * p_u)
    torch.testing.assert_close(regular, special, **EXACT)
    assert (special - w).norm() > 0.1


def test_b_one_special_round_can_be_exact_retraining():
    """(b): if all clients share the curvature c I, eta_u* = p_u / ((1 - p_u) m) retrains exactly."""
    q = Quadratics(isotropic=True)
    w, p_u = q.fixed_point(), float(q.p[2])
    m = 1 - (1 - q.eta) ** q.epochs
    config = PUF(eta_u=p_u / ((1 - p_u) * m), epochs_u=q.epochs)
    unlearned = puf_round(q.federation(), w, q.without(2), config, round=1)
    torch.testing.assert_close(unlearned, q.fixed_point(exclude=[2]), **EXACT)


def test_c_zero_eta_u_counts_the_target_in_n_but_ignores_it(quadratics):
    """(c): Delta = eta_r sum_{i not in S-} n_i / n Delta_i with n over everybody."""
    w = torch.ones(3, dtype=torch.float64)
    deltas = quadratics.deltas(w)
    ours = pseudo_gradient(deltas, quadratics.sizes, only(0), mode="regular", eta_u=0.0)
    by_hand = sum(quadratics.p[i] * deltas[i] for i in (1, 2, 3))
    torch.testing.assert_close(ours, by_hand, **EXACT)


def test_d_clients_or_server_may_negate(quadratics):
    """(d): a plain FedAvg server given the target's update times -eta_u makes the Regular step."""
    w = torch.ones(3, dtype=torch.float64)
    deltas = quadratics.deltas(w)
    sent = torch.where(only(1)[:, None], -6.0 * deltas, deltas)
    by_client, _ = server_step(w, quadratics.p @ sent, FedOpt(), ServerState())
    by_server = puf(w, deltas, quadratics.sizes, only(1), mode="regular", eta_u=6.0)
    torch.testing.assert_close(by_client, by_server, **EXACT)


def test_e_two_identical_targets(quadratics):
    """(e): Special renormalises to the single target's step; Regular sees one target of double size."""
    w = torch.ones(3, dtype=torch.float64)
    deltas, sizes = quadratics.deltas(w), quadratics.sizes
    twins, twin_sizes = torch.cat([deltas, deltas[:1]]), torch.cat([sizes, sizes[:1]])
    doubled = torch.cat([2 * sizes[:1], sizes[1:]])
    special = puf(w, twins, twin_sizes, only(0, 4, n=5), mode="special", eta_u=2.0)
    torch.testing.assert_close(special, puf(w, deltas, sizes, only(0), mode="special", eta_u=2.0), **EXACT)
    regular = puf(w, twins, twin_sizes, only(0, 4, n=5), mode="regular", eta_u=2.0)
    torch.testing.assert_close(regular, puf(w, deltas, doubled, only(0), mode="regular", eta_u=2.0), **EXACT)


def test_f_order_of_the_others_is_irrelevant(quadratics):
    w = torch.ones(3, dtype=torch.float64)
    deltas, order = quadratics.deltas(w), torch.tensor([2, 0, 3, 1])
    first = puf(w, deltas, quadratics.sizes, only(1), mode="regular", eta_u=3.0)
    second = puf(w, deltas[order], quadratics.sizes[order], only(1)[order], mode="regular", eta_u=3.0)
    torch.testing.assert_close(first, second, **EXACT)


def test_a_trained_round_equals_the_formula(quadratics):
    """puf_round trains, then does exactly what `puf` does with the closed-form updates."""
    w = torch.ones(3, dtype=torch.float64)
    config = PUF("regular", eta_u=5.0, epochs_u=quadratics.epochs)
    ours = puf_round(quadratics.federation(), w, quadratics.without(3), config, round=1)
    by_hand = puf(w, quadratics.deltas(w), quadratics.sizes, only(3), mode="regular", eta_u=5.0)
    torch.testing.assert_close(ours, by_hand, **EXACT)


def test_input_is_left_untouched(quadratics):
    w = torch.ones(3, dtype=torch.float64)
    puf_round(quadratics.federation(), w, quadratics.without(0), PUF(), round=1)
    assert torch.equal(w, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize(("norm", "share"), [("forget", 1.0), ("full", 0.25)])
def test_sample_unlearning_special(quadratics, norm, share):
    """Client 0 forgets 2 of its 8 samples: weight 1 (paper) or n_f / n_0 = 1/4 (released code)."""
    X, _ = quadratics.clients[0]
    w = torch.ones(3, dtype=torch.float64)
    config = PUF(special_sample_norm=norm, epochs_u=quadratics.epochs)
    deletion = Deletion.of(quadratics.clients, {0: torch.arange(2)})
    ours = puf_round(quadratics.federation(), w, deletion, config, round=1)
    eye = torch.eye(3, dtype=torch.float64)
    M = eye - torch.linalg.matrix_power(eye - quadratics.eta * X[:2].T @ X[:2] / 2, quadratics.epochs)
    delta = -M @ (w - quadratics.a[0])
    torch.testing.assert_close(ours, w - 2.0 * share * delta, **EXACT)


def test_sample_unlearning_regular_keeps_the_target_on_its_other_samples(quadratics):
    """In Delta+ the target trains on what it keeps; the forgotten part has weight n_f / n."""
    X, _ = quadratics.clients[0]
    w, f = torch.ones(3, dtype=torch.float64), quadratics.federation()
    config = PUF("regular", eta_u=4.0, epochs_u=quadratics.epochs)
    ours = puf_round(f, w, Deletion.of(quadratics.clients, {0: torch.arange(2)}), config, round=1)
    eye = torch.eye(3, dtype=torch.float64)

    def delta(features, a):
        A = features.T @ features / len(features)
        return -(eye - torch.linalg.matrix_power(eye - quadratics.eta * A, quadratics.epochs)) @ (w - a)

    plus = 6 * delta(X[2:], quadratics.a[0]) + (quadratics.sizes[1:, None] * quadratics.deltas(w)[1:]).sum(dim=0)
    by_hand = w + (plus - 4.0 * 2 * delta(X[:2], quadratics.a[0])) / 50
    torch.testing.assert_close(ours, by_hand, **EXACT)
    assert f.meter.images == 50 * quadratics.epochs
    assert f.meter.rounds == 1


def test_one_may_leave_while_another_forgets_samples(quadratics):
    """Regular, client 3 leaves (10 samples) and client 0 forgets 2 of 8: each group with its weights n_i / 50."""
    X, _ = quadratics.clients[0]
    w, f = torch.ones(3, dtype=torch.float64), quadratics.federation()
    deletion = Deletion.of(quadratics.clients, {3: torch.arange(10), 0: torch.arange(2)})
    ours = puf_round(f, w, deletion, PUF("regular", eta_u=4.0, epochs_u=quadratics.epochs), round=1)
    eye, whole = torch.eye(3, dtype=torch.float64), quadratics.deltas(w)

    def delta(features):
        A = features.T @ features / len(features)
        return -(eye - torch.linalg.matrix_power(eye - quadratics.eta * A, quadratics.epochs)) @ (w - quadratics.a[0])

    plus = 6 * delta(X[2:]) + 12 * whole[1] + 20 * whole[2]
    by_hand = w + (plus - 4.0 * (2 * delta(X[:2]) + 10 * whole[3])) / 50
    torch.testing.assert_close(ours, by_hand, **EXACT)
    assert f.meter.rounds == 1


def test_effective_step_explains_the_two_defaults():
    """eta_u = 20 (Regular) and 2 (Special) push equally for p_u = 0.1, not for two targets (errata P7)."""
    ten = torch.full((10,), 5000.0)
    one, two = torch.arange(10) < 1, torch.arange(10) < 2
    assert effective_step(ten, one, mode="regular", eta_u=20) == pytest.approx(2.0)
    assert effective_step(ten, one, mode="special", eta_u=2) == pytest.approx(2.0)
    assert effective_step(ten, two, mode="regular", eta_u=20) == pytest.approx(4.0)
    assert effective_step(ten, two, mode="special", eta_u=2) == pytest.approx(2.0)


def test_adaptive_servers_would_ignore_eta_u(quadratics):
    w = torch.ones(3, dtype=torch.float64)

    def run(eta_u, **kwargs):
        f = quadratics.federation(exchange=FedOpt("adam", lr=0.1, tau=1e-9))
        return puf_round(f, w, quadratics.without(0), PUF(eta_u=eta_u, **kwargs), round=1)

    with pytest.raises(InvalidRequest, match="allow_adaptive_special"):
        run(2.0)
    small, large = run(1.0, allow_adaptive_special=True), run(10.0, allow_adaptive_special=True)
    torch.testing.assert_close(small, large, rtol=1e-3, atol=1e-3)


def test_server_learning_rate_scales_the_step(quadratics):
    w = torch.ones(3, dtype=torch.float64)
    args = (w, quadratics.without(0), PUF(epochs_u=4.0), 1)
    full = puf_round(quadratics.federation(), *args) - w
    half = puf_round(quadratics.federation(exchange=FedOpt(lr=0.5)), *args) - w
    torch.testing.assert_close(half, full / 2, **EXACT)


@pytest.mark.parametrize("mode", ["special", "regular"])
def test_a_step_to_infinity_is_no_model(quadratics, mode):
    f, w = quadratics.federation(), torch.ones(3, dtype=torch.float64)
    says = r"round 4: the unlearned model is not finite; lower eta_u \(now 1e\+308\) or eta_r \(now 1e\+308\)"
    far = PUF(mode=mode, eta_u=1e308, eta_r=1e308, epochs_u=4.0)
    with pytest.raises(NumericalFailure, match=says):
        puf_round(f, 1e3 * w, quadratics.without(0), far, round=4)


@pytest.mark.parametrize("eta_r", ["x", -1.0, math.nan, math.inf])
def test_what_those_who_stay_are_weighed_with_is_a_number(eta_r):
    with pytest.raises(InvalidRequest, match=r"eta_r must be a finite number >= 0, got "):
        PUF(mode="regular", eta_r=eta_r)
    assert PUF(mode="regular", eta_r=0.0).eta_r == 0


def test_a_step_longer_than_the_model_warns(quadratics):
    w = torch.full((3,), 1e-3, dtype=torch.float64)
    with pytest.warns(UserWarning, match="times as long as the model"):
        puf_round(quadratics.federation(), w, quadratics.without(0), PUF(eta_u=50.0), round=1)


@pytest.mark.parametrize(
    ("targets", "kwargs", "message"),
    [
        ([False] * 4, {"eta_u": 1.0}, "targets names nobody"),
        ([True] * 4, {"eta_u": 1.0, "mode": "regular"}, "targets names every participant"),
        ([True] * 3, {"eta_u": 1.0}, "one entry per participant"),
        ([True, False, False, False], {"eta_u": 0.0}, "eta_u must be a finite number > 0, got 0.0"),
        ([True, False, False, False], {"eta_u": -2.0}, "eta_u"),
        ([True, False, False, False], {"eta_u": 1.0, "eta_r": -1.0}, "eta_r must be a finite number >= 0, got -1.0"),
        ([True, False, False, False], {"eta_u": 1.0, "mode": "spezial"}, "did you mean 'special'"),
        ([True, False, False, False], {"eta_u": 1.0, "form": "print"}, "form must be one of"),
    ],
)
def test_bad_requests_are_named(quadratics, targets, kwargs, message):
    w = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=message):
        puf(w, quadratics.deltas(w), quadratics.sizes, torch.tensor(targets), **kwargs)


def test_regular_round_uses_the_same_updates_as_a_plain_round(quadratics):
    """Seamless integration: with eta_u = -eta_r the Regular step would be the FedAvg round itself."""
    w = torch.ones(3, dtype=torch.float64)
    plain, _ = fedavg_round(quadratics.federation(), w, 1)
    step = pseudo_gradient(quadratics.deltas(w), quadratics.sizes, only(1), mode="regular", eta_u=-1.0)
    torch.testing.assert_close(w + step, plain, **EXACT)
