"""FedAvg, FedOpt and recovery against closed forms (methods 2.1, 2.4, T1)."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.horizontal import fedavg, fedavg_round, recovery_path
from fu_core.federation.server import FedOpt, ServerState, aggregate, server_step
from fu_core.request import Deletion

W_0 = torch.zeros(3, dtype=torch.float64)


def test_fedavg_reaches_its_fixed_point(quadratics):
    """T1: FedAvg on quadratics rests at (sum p_i M_i)^-1 sum p_i M_i a_i."""
    w = fedavg(quadratics.federation(), W_0, 400)
    torch.testing.assert_close(w, quadratics.fixed_point(), rtol=1e-9, atol=1e-12)


def test_one_round_is_the_weighted_mean_of_closed_form_updates(quadratics):
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    after, _ = fedavg_round(quadratics.federation(), w, 1, ids=[3, 1, 0, 2])
    torch.testing.assert_close(after, w + quadratics.p @ quadratics.deltas(w), rtol=1e-10, atol=1e-12)


def test_averaging_updates_is_averaging_models():
    g = torch.Generator().manual_seed(0)
    w, models = torch.randn(5, generator=g), torch.randn(3, 5, generator=g)
    weights = torch.tensor([0.2, 0.3, 0.5])
    delta = aggregate(models - w, weights)
    after, _ = server_step(w, delta, FedOpt(), ServerState())
    torch.testing.assert_close(after, weights @ models)


def test_order_of_clients_does_not_matter(quadratics):
    q, w = quadratics, torch.ones(3, dtype=torch.float64)
    first, _ = fedavg_round(q.federation(), w, 1)
    second, _ = fedavg_round(q.federation(), w, 1, ids=[2, 0, 3, 1])
    third, _ = fedavg_round(q.federation(clients={i: q.clients[i] for i in (2, 0, 3, 1)}), w, 1)
    assert torch.equal(first, second)
    assert torch.equal(first, third)


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_fedopt_three_scalar_steps_by_hand(kind):
    """Reddi et al., Algorithm 2, with beta1 = 0.9, beta2 = 0.99, tau = 1e-3, v_0 = tau^2."""
    w, m, v = 1.0, 0.0, 1e-6
    state, ours = ServerState(), torch.tensor([1.0], dtype=torch.float64)
    for delta in (0.5, -0.25, 0.125):
        m = 0.9 * m + 0.1 * delta
        sign = 1 if v > delta**2 else -1
        v = {"adam": 0.99 * v + 0.01 * delta**2, "yogi": v - 0.01 * delta**2 * sign}[kind]
        w = w + 0.1 * m / (v**0.5 + 1e-3)
        pseudo = torch.tensor([delta], dtype=torch.float64)
        ours, state = server_step(ours, pseudo, FedOpt(kind, lr=0.1), state)
    assert float(ours) == pytest.approx(w, rel=1e-12)


def test_server_momentum_by_hand():
    """m = 0.9 m + Delta: steps 1, 1.9, 2.71."""
    w, state = torch.zeros(1), ServerState()
    for _ in range(3):
        w, state = server_step(w, torch.ones(1), FedOpt(momentum=0.9), state)
    assert float(w) == pytest.approx(1 + 1.9 + 2.71)


def test_the_servers_moments_go_on_from_round_to_round(quadratics):
    """Three rounds with momentum .9, by hand: m = .9 m + Delta, w = w + m; a state handed on continues them."""
    f = quadratics.federation(exchange=FedOpt(momentum=0.9))
    w, m, states = W_0, torch.zeros(3, dtype=torch.float64), []
    for _ in range(3):
        m = 0.9 * m + quadratics.p @ quadratics.deltas(w)
        w = w + m
    whole = fedavg(f, W_0, 3, after_round=lambda t, w, state: states.append((t, w, state)))
    torch.testing.assert_close(whole, w, rtol=1e-10, atol=1e-12)
    assert [t for t, _, _ in states] == [1, 2, 3]
    _, after_two, state = states[1]
    assert torch.equal(fedavg(f, after_two, 1, first_round=3, state=state), whole)
    assert not torch.allclose(fedavg(f, after_two, 1, first_round=3), whole)


# Who takes part


def test_a_federation_without_a_client_is_one_that_never_had_it(quadratics):
    """Batches of 5 differ from client to client: nobody's move when another has left, whatever the numbers."""
    q, local = quadratics, replace(quadratics.local, batch_size=5)
    left = q.federation(local=local).after(Deletion.of(q.clients, 1))
    never = q.federation(local=local, clients={i: q.clients[i] for i in (0, 2, 3)})
    renumbered = q.federation(local=local, clients=[q.clients[i] for i in (0, 2, 3)])
    assert left.ids == [0, 2, 3]
    assert torch.equal(fedavg(left, W_0, 3), fedavg(never, W_0, 3))
    assert not torch.allclose(fedavg(left, W_0, 3), fedavg(renumbered, W_0, 3))


def test_a_client_with_nothing_left_takes_no_part(quadratics):
    """Same model with and without an empty-handed client, bit for bit, once a request has looked at who is there."""
    q, (X, y) = quadratics, quadratics.clients[1]
    five, four = [*q.clients, (X[:0], y[:0])], q.clients
    after = [q.federation(clients=c).after(Deletion.of(c, 0)) for c in (five, four)]
    assert after[0].ids == [1, 2, 3]
    assert torch.equal(*(fedavg(f, W_0, 3) for f in after))


def test_what_is_kept_is_trained_on_and_nothing_else(quadratics):
    """A client that forgets samples stays with the others, and weighs less."""
    q, gone = quadratics, torch.tensor([0, 3, 4])
    stays = torch.tensor([i for i in range(8) if i not in gone.tolist()])
    f = q.federation().after(Deletion.of(q.clients, {0: gone}))
    X, y = q.clients[0]
    same = q.federation(clients=[(X[stays], y[stays]), *q.clients[1:]])
    assert f.sizes().tolist() == [5, 12, 20, 10]
    assert torch.equal(fedavg(f, W_0, 2), fedavg(same, W_0, 2))


def test_rounds_of_some_clients_weigh_these_alone(quadratics):
    w, (a, b) = torch.ones(3, dtype=torch.float64), quadratics.deltas(torch.ones(3, dtype=torch.float64))[[1, 3]]
    after, _ = fedavg_round(quadratics.federation(), w, 1, ids=[3, 1])
    torch.testing.assert_close(after, w + (12 * a + 10 * b) / 22, rtol=1e-10, atol=1e-12)


def test_updates_are_told_before_they_are_averaged(quadratics):
    seen = []
    fedavg(quadratics.federation(), W_0, 2, first_round=5, on_updates=lambda *told: seen.append(told))
    (t, ids, deltas), (later, _, _) = seen
    assert (t, ids, later) == (5, [0, 1, 2, 3], 6)
    torch.testing.assert_close(deltas, quadratics.deltas(W_0), rtol=1e-10, atol=1e-12)


def test_a_federation_of_nobody_is_refused(quadratics):
    for nobody in ([], {}):
        with pytest.raises(InvalidRequest, match="clients must name at least one client, got none"):
            quadratics.federation(clients=nobody)


def test_an_empty_round_is_an_error(quadratics):
    with pytest.raises(InvalidRequest, match="round 4: no client takes part"):
        fedavg_round(quadratics.federation(), W_0, 4, ids=[])


def test_unknown_clients_are_named(quadratics):
    with pytest.raises(InvalidRequest, match="ids names client 9, but clients are 0 to 3"):
        fedavg_round(quadratics.federation(), W_0, 1, ids=[0, 9])


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("momentum", -1.0, "server momentum must be a finite number >= 0, got -1.0"),
        ("beta1", 1.0, r"beta1 must be in \[0, 1\), got 1.0"),
        ("beta2", "0.9", r"beta2 must be in \[0, 1\), got '0.9'"),
        ("tau", 0.0, "tau must be a finite number > 0, got 0.0"),
    ],
)
def test_a_server_names_what_its_optimiser_cannot_have(field, given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        FedOpt(**{field: given})


def test_rounds_are_counted(quadratics):
    with pytest.raises(ValueError, match="rounds must be a whole number >= 0, got -1"):
        fedavg(quadratics.federation(), W_0, -1)
    assert torch.equal(fedavg(quadratics.federation(), W_0, 0), W_0)


def test_a_model_that_the_server_breaks_names_its_round(quadratics):
    """Updates are finite; a server's step of 1e308 times their mean is not."""
    f = quadratics.federation(exchange=FedOpt(lr=1e308))
    with pytest.raises(NumericalFailure, match="round 1: the global model is not finite"):
        fedavg(f, torch.full((3,), 100.0, dtype=torch.float64), 3)


# Recovery


def recovery(quadratics, **changes):
    """The path from the fixed point of all, once client 0 has left."""
    f = quadratics.federation(**changes).after(Deletion.of(quadratics.clients, 0))
    return f, lambda **options: recovery_path(f, quadratics.fixed_point(), **{"first_round": 1, **options})


def test_recovery_contracts_at_the_predicted_rate(quadratics):
    """2.3: the distance to the retrained fixed point shrinks per round by at most |I - sum p'_i M_i|."""
    target = quadratics.fixed_point(exclude=[0])
    p = quadratics.p[1:] / quadratics.p[1:].sum()
    contraction = torch.eye(3, dtype=torch.float64) - sum(a * M for a, M in zip(p, quadratics.M[1:], strict=True))
    _, path = recovery(quadratics)
    errors = [w - target for _, w in path(cap=5)]
    for before, after in pairwise(errors):
        torch.testing.assert_close(after, contraction @ before, rtol=1e-8, atol=1e-12)


def test_recovery_begins_with_the_unlearned_model_and_trains_only_when_asked(quadratics):
    f, path = recovery(quadratics)
    k, w = next(path())
    assert (k, f.meter.rounds) == (0, 0)
    assert torch.equal(w, quadratics.fixed_point())


def test_who_follows_it_may_stop_at_the_first_model_that_is_good_enough(quadratics):
    """The distance to retraining falls from round to round: the rounds beyond that one are never trained."""
    target, (f, path) = quadratics.fixed_point(exclude=[0]), recovery(quadratics)
    distances = []
    for _, w in path():
        distances.append(float((w - target).norm()))
        if distances[-1] <= 1e-3:
            break
    assert f.meter.rounds == len(distances) - 1 > 1
    assert distances[-1] <= 1e-3 < distances[-2]


def test_recovery_ends_at_its_cap_and_counts_what_the_formula_says(quadratics):
    """2 P B C_r R bytes and N E C_r R images (float64 here, so B = 8), for 3 clients and 4 rounds."""
    f, path = recovery(quadratics)
    assert [k for k, _ in path(cap=4)] == [0, 1, 2, 3, 4]
    assert f.meter.rounds == 4
    assert f.meter.bytes == 2 * 3 * 8 * 3 * 4
    assert f.meter.images == int(quadratics.sizes[1:].sum()) * quadratics.epochs * 4


def test_recovery_continues_the_count_of_rounds_with_plain_averaging(quadratics):
    """Its rounds are FedAvg's with the numbers that follow: batches and a falling rate depend on them."""
    local = replace(quadratics.local, batch_size=5, lr_decay=0.8)
    f, path = recovery(quadratics, local=local)
    *_, (k, w) = path(first_round=7, cap=3)
    assert k == 3
    assert torch.equal(w, fedavg(f, quadratics.fixed_point(), 3, first_round=7))
    assert not torch.equal(w, fedavg(f, quadratics.fixed_point(), 3, first_round=8))


def test_recovery_goes_on_where_it_was_cut(quadratics):
    local = replace(quadratics.local, batch_size=5, lr_decay=0.8)
    f, path = recovery(quadratics, local=local)
    whole = dict(path(first_round=7, cap=5))
    rest = dict(recovery_path(f, whole[2], first_round=7, cap=5, start=2))
    assert list(rest) == [2, 3, 4, 5]
    assert all(torch.equal(w, whole[k]) for k, w in rest.items())


@pytest.mark.parametrize("server", [FedOpt(momentum=0.9), FedOpt("adam", lr=0.01)])
def test_a_recovery_whose_server_has_moments_cannot_go_on_without_them(quadratics, server):
    f = quadratics.federation().having(exchange=server)
    with pytest.raises(ValueError, match="start must be 0 where the server has moments"):
        next(recovery_path(f, W_0, first_round=1, cap=4, start=2))
