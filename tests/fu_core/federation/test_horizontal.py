"""FedAvg, FedOpt and recovery against closed forms (methods 2.1, 2.4, T1)."""

from itertools import pairwise

import pytest
import torch

from fu_core.errors import InvalidRequest
from fu_core.federation.horizontal import (
    FedOpt,
    ServerState,
    aggregate,
    fedavg,
    fedavg_round,
    recover,
    recovery_path,
    server_step,
)
from fu_core.federation.meter import Meter


def test_fedavg_reaches_its_fixed_point(quadratics):
    """T1: FedAvg on quadratics rests at (sum p_i M_i)^-1 sum p_i M_i a_i."""
    w = torch.zeros(3, dtype=torch.float64)
    w = fedavg(quadratics.model, w, quadratics.clients, rounds=400, local=quadratics.local, seed=0)
    torch.testing.assert_close(w, quadratics.fixed_point(), rtol=1e-9, atol=1e-12)


def test_one_round_is_the_weighted_mean_of_closed_form_updates(quadratics):
    w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    after, _ = fedavg_round(
        quadratics.model, w, quadratics.clients, quadratics.local, seed=0, round=1, ids=[3, 1, 0, 2]
    )
    torch.testing.assert_close(after, w + quadratics.p @ quadratics.deltas(w), rtol=1e-10, atol=1e-12)


def test_averaging_updates_is_averaging_models():
    g = torch.Generator().manual_seed(0)
    w, models = torch.randn(5, generator=g), torch.randn(3, 5, generator=g)
    weights = torch.tensor([0.2, 0.3, 0.5])
    delta = aggregate(models - w, weights)
    after, _ = server_step(w, delta, FedOpt(), ServerState())
    torch.testing.assert_close(after, weights @ models)


def test_order_of_clients_does_not_matter(quadratics):
    w = torch.ones(3, dtype=torch.float64)
    kwargs = {"seed": 0, "round": 1}
    args = (quadratics.model, w, quadratics.clients, quadratics.local)
    first, _ = fedavg_round(*args, ids=[0, 1, 2, 3], **kwargs)
    second, _ = fedavg_round(*args, ids=[2, 0, 3, 1], **kwargs)
    assert torch.equal(first, second)


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


def test_excluding_a_client_does_not_shift_the_streams_of_others(quadratics):
    """An empty-handed client changes nothing: same model with and without it, bit for bit."""
    X, y = quadratics.clients[1]
    clients = [*quadratics.clients, (X[:0], y[:0])]
    w = torch.zeros(3, dtype=torch.float64)
    kwargs = {"rounds": 3, "local": quadratics.local, "seed": 0}
    with_four = fedavg(quadratics.model, w, quadratics.clients, **kwargs)
    assert torch.equal(with_four, fedavg(quadratics.model, w, clients, exclude=[4], **kwargs))


@pytest.mark.parametrize(("exclude", "message"), [([4], "client 4"), ([0, 1, 2, 3], "none of the 4 clients")])
def test_who_is_left_must_make_sense(quadratics, exclude, message):
    with pytest.raises(InvalidRequest, match=message):
        fedavg(
            quadratics.model,
            torch.zeros(3),
            quadratics.clients,
            rounds=1,
            local=quadratics.local,
            seed=0,
            exclude=exclude,
        )


def test_recovery_contracts_at_the_predicted_rate(quadratics):
    """2.3: the distance to the retrained fixed point shrinks per round by at most |I - sum p'_i M_i|."""
    target = quadratics.fixed_point(exclude=[0])
    p = quadratics.p[1:] / quadratics.p[1:].sum()
    contraction = torch.eye(3, dtype=torch.float64) - sum(a * M for a, M in zip(p, quadratics.M[1:], strict=True))
    path = recovery_path(
        quadratics.model,
        quadratics.fixed_point(),
        quadratics.clients,
        local=quadratics.local,
        seed=0,
        first_round=1,
        exclude=[0],
        cap=5,
    )
    errors = [w - target for _, w in path]
    for before, after in pairwise(errors):
        torch.testing.assert_close(after, contraction @ before, rtol=1e-8, atol=1e-12)


def recover_quadratics(quadratics, *, reference, cap=30, meter=None):
    target = quadratics.fixed_point(exclude=[0])
    return recover(
        quadratics.model,
        quadratics.fixed_point(),
        quadratics.clients,
        score=lambda w: -float((w - target).norm()),
        reference=reference,
        local=quadratics.local,
        seed=0,
        first_round=1,
        exclude=[0],
        cap=cap,
        meter=meter,
    )


def test_recovery_stops_before_the_first_round_if_the_reference_is_met(quadratics):
    result = recover_quadratics(quadratics, reference=-1e9)
    assert (result.rounds, result.reached) == (0, True)
    assert torch.equal(result.w, quadratics.fixed_point())


def test_recovery_stops_at_the_first_round_that_meets_the_reference(quadratics):
    result = recover_quadratics(quadratics, reference=-1e-3)
    assert result.reached
    assert result.scores[-1] >= -1e-3 > result.scores[-2]
    assert len(result.scores) == result.rounds + 1


def test_recovery_cap_is_honoured_and_said(quadratics):
    meter = Meter()
    result = recover_quadratics(quadratics, reference=1.0, cap=4, meter=meter)
    assert (result.rounds, result.reached, meter.rounds) == (4, False, 4)


def test_meter_counts_what_the_formula_says(quadratics):
    """2 P B C_r R bytes and N E C_r R images (float64 here, so B = 8)."""
    meter = Meter()
    recover_quadratics(quadratics, reference=1.0, cap=4, meter=meter)
    assert meter.bytes == 2 * 3 * 8 * 3 * 4
    assert meter.images == int(quadratics.sizes[1:].sum()) * quadratics.epochs * 4


def test_an_empty_round_is_an_error(quadratics):
    with pytest.raises(InvalidRequest, match="no client takes part"):
        fedavg_round(quadratics.model, torch.zeros(3), quadratics.clients, quadratics.local, seed=0, round=1, ids=[])
