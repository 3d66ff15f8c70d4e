"""The reconstructed PDUDT: exact where it must be, closer to retraining than nothing elsewhere (methods 4.3, T1)."""

import math

import networkx as nx
import pytest
import torch

from fu_core.errors import InvalidRequest, MissingHistory, NumericalFailure, TopologyError, UnsupportedTask
from fu_core.federation.decentralised import dpsgd, dpsgd_round, erdos_renyi, metropolis, ring, star, start
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.unlearning.baselines.pdudt import PeerHistory, mixing_without, pdudt
from tests.quadratics import Quadratics

W_0 = torch.zeros(3, dtype=torch.float64)
EXACT = {"rtol": 1e-9, "atol": 1e-11}
SIX = (8, 12, 20, 10, 9, 15)


def trained(q, Q, *, rounds=20, ids=None, **kwargs):
    """The models after D-PSGD on the quadratics `q` from zero, and the history."""
    history = PeerHistory(q.eta)
    kwargs = {"local": q.local, "seed": 0, **kwargs}
    W = dpsgd(q.model, W_0, q.clients, Q, rounds=rounds, ids=ids, on_updates=history.record, **kwargs)
    return W, history


def gaps(q, graph, leaving, *, rounds):
    """Distances to the training without `leaving` and with the same W': of doing nothing, secant and frozen."""
    Q = metropolis(graph)
    stay = [i for i in range(len(q.clients)) if i not in leaving]
    W, history = trained(q, Q, rounds=rounds)
    retrained, _ = trained(q, mixing_without(Q, leaving), rounds=rounds, ids=stay)
    replays = [pdudt(history, Q, leaving, seed=0, curvature=curvature) for curvature in ("secant", "frozen")]
    return [float((X - retrained).norm()) for X in (W[stay], *replays)]


@pytest.mark.parametrize("leaving", [[1], [0, 3]])
@pytest.mark.parametrize("rounds", [1, 2, 30])
@pytest.mark.parametrize("epochs", [1, 4])
def test_one_curvature_per_client_makes_the_replay_the_training_without_the_target(leaving, rounds, epochs):
    """T1 with A_i = I: the secant is m / gamma from the second round on, and g is affine with that slope."""
    q = Quadratics(sizes=SIX, isotropic=True, epochs=epochs)
    nothing, secant, frozen = gaps(q, erdos_renyi(6, 0.7, seed=2), leaving, rounds=rounds)
    assert secant < 1e-9
    if rounds > 2:
        assert min(nothing, frozen) > 0.1


def test_a_decaying_learning_rate_is_not_taken_for_curvature():
    q = Quadratics(sizes=SIX, isotropic=True, epochs=1)
    local, Q = ClientOpt(lr=q.eta, lr_decay=0.9, batch_size=10**6), metropolis(ring(6))
    known, unknown = PeerHistory(q.eta, decay=0.9), PeerHistory(q.eta)

    def record(*what):
        known.record(*what), unknown.record(*what)

    W = dpsgd(q.model, W_0, q.clients, Q, rounds=20, local=local, seed=0, on_updates=record)
    stay = [0, 1, 3, 4, 5]
    retrained = dpsgd(q.model, W_0, q.clients, mixing_without(Q, [2]), rounds=20, local=local, seed=0, ids=stay)
    right, wrong = (float((pdudt(h, Q, [2], seed=0) - retrained).norm()) for h in (known, unknown))
    assert right < 1e-9
    assert wrong > 0.01 * float((W[stay] - retrained).norm())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epochs", [1, 4])
def test_the_replay_ends_nearer_to_retraining_than_doing_nothing(seed, epochs):
    """T1 with different A_i, 60 rounds: two fifths of the gap or so are left. Frozen gradients drift past it."""
    nothing, secant, frozen = gaps(Quadratics(sizes=SIX, epochs=epochs, seed=seed), ring(6), [2], rounds=60)
    assert secant < 0.5 * nothing
    assert frozen > 1.5 * nothing


def test_linear_losses_are_exact_with_frozen_gradients_and_with_the_secant():
    """Gradients that never change, b_i: x' = W'^s x_0 - gamma sum_q W'^q b, and a secant of zero."""
    Q, gamma = metropolis(star(5)), 0.3
    g = torch.Generator().manual_seed(0)
    X, b = torch.randn(2, 5, 3, generator=g, dtype=torch.float64)
    history, stay = PeerHistory(gamma), [0, 1, 3, 4]
    ours, W = X[stay], mixing_without(Q, [2])
    for t in range(1, 11):
        history.record(t, range(5), X, -gamma * b)
        X = Q @ X - gamma * b
        ours = W @ ours - gamma * b[stay]
    for curvature in ("frozen", "secant"):
        torch.testing.assert_close(pdudt(history, Q, [2], seed=0, curvature=curvature), ours, **EXACT)
    assert float((ours - X[stay]).norm()) > 0.1


def test_an_isolated_client_left_nothing_behind(quadratics):
    """Client 2 is linked to nobody: the others' replay is the training they had."""
    graph = nx.Graph([(0, 1), (1, 3)])
    Q = torch.eye(4, dtype=torch.float64)
    rows = torch.tensor([0, 1, 3])
    Q[rows[:, None], rows] = metropolis(graph)
    history, X = PeerHistory(quadratics.eta), start(W_0, 4)
    for t in range(1, 11):
        X = dpsgd_round(
            quadratics.model,
            X,
            quadratics.clients,
            Q,
            quadratics.local,
            seed=0,
            round=t,
            on_updates=history.record,
        )
    torch.testing.assert_close(pdudt(history, Q, [2], seed=0), X[[0, 1, 3]], **EXACT)


def test_four_rounds_by_hand(quadratics):
    """Cumulative secants, row by row, cut off at 0 and 1/gamma; the last round keeps the one before."""
    q, Q, keep = quadratics, metropolis(ring(4)), [0, 2, 3]
    _, history = trained(q, Q, rounds=4, local=ClientOpt(lr=q.eta, batch_size=3), seed=5)
    W, gamma = mixing_without(Q, [1]), q.eta
    X = [history.models(t)[keep] for t in (1, 2, 3, 4)]
    g = [history.gradients(t)[keep] for t in (1, 2, 3, 4)]
    x = X[0].clone()
    for s in range(4):
        kappa = []
        for i in range(3):
            pairs = [(X[k + 1][i] - X[k][i], g[k + 1][i] - g[k][i]) for k in range(min(s, 2) + 1)]
            secant = sum(float(dx @ dg) for dx, dg in pairs) / sum(float(dx @ dx) for dx, _ in pairs)
            kappa.append(min(max(secant, 0.0), 1 / gamma))
        x = W @ x - gamma * (g[s] + torch.tensor(kappa, dtype=torch.float64)[:, None] * (x - X[s]))
    torch.testing.assert_close(pdudt(history, Q, [1], seed=0), x, **EXACT)


@pytest.mark.parametrize(("slope", "fraction"), [(-2.0, 0.0), (0.5, 0.5), (50.0, 1.0)])
def test_the_secant_stays_between_flat_and_one_full_step(slope, fraction):
    """gamma = 1, g = slope (x - a): gamma kappa is 0, slope or 1. Two clients, the one who stays keeps to itself."""
    Q, a = metropolis(ring(2)), torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    X, history, models, gradients = torch.zeros(2, 1, dtype=torch.float64), PeerHistory(1.0), [], []
    for t in (1, 2, 3):
        models.append(float(X[0]))
        gradients.append(float(slope * (X - a)[0]))
        history.record(t, [0, 1], X, -slope * (X - a))
        X = Q @ X - slope * (X - a)
    x = models[0]
    for x_s, g_s in zip(models, gradients, strict=True):
        x = x - (g_s + fraction * (x - x_s))
    assert float(pdudt(history, Q, [1], seed=0)) == pytest.approx(x, rel=1e-12)


def test_clients_that_never_moved_have_no_curvature():
    """0 / 0 is no NaN: with zero gradients from consensus the models stay."""
    history, X = PeerHistory(0.1), torch.ones(4, 3)
    for t in (1, 2, 3):
        history.record(t, range(4), X, torch.zeros(4, 3))
    assert torch.equal(pdudt(history, metropolis(ring(4)), [0], seed=0), torch.ones(3, 3))


def test_weights_of_those_who_left_go_to_the_diagonal():
    """A ring of four, all weights 1/3, without client 1: its neighbours 0 and 2 keep 2/3 for themselves."""
    expected = torch.tensor([[2, 0, 1], [0, 2, 1], [1, 1, 1]], dtype=torch.float64) / 3
    torch.testing.assert_close(mixing_without(metropolis(ring(4)), [1]), expected, **EXACT)
    sparse = mixing_without(metropolis(ring(4), sparse=True), [1])
    assert sparse.layout == torch.sparse_csr
    torch.testing.assert_close(sparse.to_dense(), expected, **EXACT)


def test_graph_sparse_and_dense_matrix_are_the_same_to_it(quadratics):
    graph = ring(4)
    _, history = trained(quadratics, metropolis(graph))
    dense, sparse, from_graph = (
        pdudt(history, Q, [3], seed=0) for Q in (metropolis(graph), metropolis(graph, sparse=True), graph)
    )
    assert torch.equal(dense, from_graph)
    torch.testing.assert_close(sparse, dense, **EXACT)


def test_rows_are_those_of_the_ids_in_the_history():
    """A history of the clients 4, 0, 2, 5, in that order: without 0 the rows are those of 4, 2, 5."""
    q, Q = Quadratics(sizes=SIX, isotropic=True), metropolis(star(4))
    ids = [4, 0, 2, 5]
    _, history = trained(q, Q, ids=ids)
    assert history.ids == ids
    retrained, _ = trained(q, mixing_without(Q, [1]), ids=[4, 2, 5])
    torch.testing.assert_close(pdudt(history, Q, [0], seed=0), retrained, **EXACT)


def test_noise_has_the_standard_deviation_asked_for_and_a_stream_per_client():
    d, sigma = 4000, 0.25
    history = PeerHistory(0.1)
    history.record(1, range(5), torch.zeros(5, d), torch.zeros(5, d))
    Q = metropolis(ring(5))
    noise, again, other = (pdudt(history, Q, [0], seed=s, sigma=sigma) for s in (3, 3, 4))
    assert torch.equal(noise, again)
    assert not torch.equal(noise, other)
    bands = 5 * sigma / math.sqrt(2 * d)
    assert all(abs(float(row.std()) - sigma) < bands for row in noise)
    assert abs(float((noise[0] * noise[1]).mean())) < 5 * sigma**2 / math.sqrt(d)
    assert torch.equal(pdudt(history, Q, [1], seed=3, sigma=sigma)[1:], noise[1:])  # clients 2, 3, 4
    assert torch.equal(pdudt(history, Q, [0], seed=3), torch.zeros(4, d))


def test_history_shares_no_storage_and_the_replay_overwrites_nothing(quadratics):
    X, deltas = torch.ones(4, 3), torch.ones(4, 3)
    history = PeerHistory(0.5)
    history.record(1, [0, 1, 2, 3], X, deltas)
    X.fill_(7), deltas.fill_(7)
    assert torch.equal(history.models(1), torch.ones(4, 3))
    assert torch.equal(history.gradients(1), torch.full((4, 3), -2.0))

    Q = metropolis(ring(4))
    _, history = trained(quadratics, Q, rounds=3)
    before = {name: tensor.clone() for name, tensor in history.tensors().items()}
    pdudt(history, Q, [0], seed=0, sigma=0.1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in history.tensors().items())


def test_recording_does_not_change_training(quadratics):
    Q = metropolis(ring(4))
    W, history = trained(quadratics, Q, rounds=3)
    plain = dpsgd(quadratics.model, W_0, quadratics.clients, Q, rounds=3, local=quadratics.local, seed=0)
    assert torch.equal(plain, W)
    assert history.rounds == [1, 2, 3]
    assert torch.equal(history.models(1), start(W_0, 4))


def test_history_survives_a_checkpoint(quadratics):
    """An interrupted training goes on with the restored history as if nothing had happened."""
    Q, kwargs = metropolis(ring(4)), {"local": quadratics.local, "seed": 0}
    _, whole = trained(quadratics, Q, rounds=5)
    W, first = trained(quadratics, Q, rounds=2)
    second = PeerHistory(quadratics.eta)
    second.restore({"w": W, **first.tensors()})
    dpsgd(quadratics.model, W, quadratics.clients, Q, rounds=3, first_round=3, on_updates=second.record, **kwargs)
    assert second.tensors().keys() == whole.tensors().keys()
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in whole.tensors().items())
    assert torch.equal(pdudt(second, Q, [1], seed=0), pdudt(whole, Q, [1], seed=0))


def test_a_gap_is_missing_history_and_names_the_round():
    X, Q = torch.ones(4, 3), metropolis(ring(4))
    empty = PeerHistory(0.1)
    with pytest.raises(MissingHistory, match="round 1; the history holds nothing"):
        pdudt(empty, Q, [0], seed=0)
    gap, late = PeerHistory(0.1), PeerHistory(0.1)
    for t in (1, 2, 4):
        gap.record(t, range(4), X, 0 * X)
    with pytest.raises(MissingHistory, match="round 3; the history holds rounds 1 to 4"):
        pdudt(gap, Q, [0], seed=0)
    for t in (2, 3):
        late.record(t, range(4), X, 0 * X)
    with pytest.raises(MissingHistory, match="round 1; the history holds rounds 2 to 3"):
        pdudt(late, Q, [0], seed=0)
    resumed = PeerHistory(0.1, first_round=2)
    resumed.restore(late.tensors())
    assert torch.equal(pdudt(resumed, Q, [0], seed=0), X[1:])


def test_requests_that_cannot_be_served(quadratics):
    Q = metropolis(ring(4))
    _, history = trained(quadratics, Q, rounds=3)
    for leaving, message in [([], "names nobody"), ([7], "client 7"), ([0, 1, 2, 3], "all 4 clients")]:
        with pytest.raises(InvalidRequest, match=message):
            pdudt(history, Q, leaving, seed=0)
    with pytest.raises(UnsupportedTask, match="whole clients"):
        pdudt(history, Q, {0: quadratics.clients[0]}, seed=0)
    with pytest.raises(ValueError, match="curvature must be one of 'secant', 'frozen', got 'hessian'"):
        pdudt(history, Q, [0], seed=0, curvature="hessian")
    with pytest.raises(ValueError, match="sigma must be a finite number >= 0, got -1"):
        pdudt(history, Q, [0], seed=0, sigma=-1)
    with pytest.raises(ValueError, match="gamma must be a finite number > 0, got 0"):
        PeerHistory(0)
    with pytest.raises(InvalidRequest, match=r"round 4 has the clients \[0, 1\]"):
        history.record(4, [0, 1], torch.zeros(2, 3), torch.zeros(2, 3))


def test_those_who_stay_must_be_connected(quadratics):
    Q = metropolis(star(4))
    _, history = trained(quadratics, Q, rounds=2)
    with pytest.raises(TopologyError, match=r"without the clients \[0\]: rho must be < 1"):
        pdudt(history, Q, [0], seed=0)
    assert pdudt(history, Q, [0, 1, 2], seed=0).shape == (1, 3)  # who is alone is connected
    with pytest.raises(TopologyError, match=r"Q must have shape \(4, 4\), .*, got \(5, 5\)"):
        pdudt(history, metropolis(ring(5)), [1], seed=0)


@pytest.mark.parametrize("lr", [0.1, 0.0005])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_history_of_another_order_or_matrix_is_refused(quadratics, dtype, lr):
    """What was recorded shows it: x^{s+1} is not Q x^s - gamma g^s. In "cta" it is, in either precision.

    At the lower rate the models, of length 1, move by a thousandth in a round.
    """
    clients = [(X.to(dtype), y.to(dtype)) for X, y in quadratics.clients]
    Q, kwargs = metropolis(ring(4)), {"rounds": 50, "local": ClientOpt(lr=lr, batch_size=100), "seed": 0}
    histories = {}
    for order in ("cta", "atc"):
        histories[order] = PeerHistory(lr)
        record = histories[order].record
        dpsgd(quadratics.model, (W_0 + 0.6).to(dtype), clients, Q, order=order, on_updates=record, **kwargs)
    assert pdudt(histories["cta"], Q, [0], seed=0).dtype == dtype
    with pytest.raises(UnsupportedTask, match=r"after round 1 are off .* training with order='cta' and this Q"):
        pdudt(histories["atc"], Q, [0], seed=0)
    with pytest.raises(UnsupportedTask, match="after round 2 are off"):  # from consensus all matrices mix alike
        pdudt(histories["cta"], metropolis(star(4)), [1], seed=0)


def test_a_broken_history_is_a_numerical_failure():
    history = PeerHistory(0.1)
    history.record(1, range(4), torch.zeros(4, 3), torch.full((4, 3), float("inf")))
    with pytest.raises(NumericalFailure, match="round 1"):
        pdudt(history, metropolis(ring(4)), [0], seed=0)


def test_counters_equal_the_formulas(quadratics):
    """2 |E'| t_1 P B sent among those who stay, 2 t_1 K P B kept; the paper's figure is t_1 N_c P B."""
    Q, meter, rounds = metropolis(ring(4)), Meter(), 7
    _, history = trained(quadratics, Q, rounds=rounds)
    pdudt(history, Q, [0], seed=0, meter=meter)
    P, B = 3, 8
    assert meter.bytes == meter.bytes_up == 2 * 2 * rounds * P * B
    assert meter.storage == history.nbytes == 2 * rounds * 4 * P * B
    assert history.published_nbytes(neighbours=2) == rounds * 2 * P * B
    assert (meter.rounds, meter.images) == (rounds, 0)
