"""The reconstructed PDUDT: exact where it must be, closer to retraining than nothing elsewhere (methods 4.3, T1)."""

import math
from dataclasses import replace

import networkx as nx
import pytest
import torch

from fu_core.errors import InvalidRequest, MissingHistory, NumericalFailure, TopologyError, UnsupportedTask
from fu_core.federation.decentralised import dpsgd, dpsgd_round, start
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, erdos_renyi, metropolis, ring, star
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.request import Deletion
from fu_core.unlearning import method
from fu_core.unlearning.baselines.pdudt import PDUDT, mixing_without, pdudt
from fu_core.unlearning.memory import Memory, PeerHistory
from fu_core.unlearning.method import Trained, unlearn
from tests.quadratics import Quadratics

W_0 = torch.zeros(3, dtype=torch.float64)
EXACT = {"rtol": 1e-9, "atol": 1e-11}
SIX = (8, 12, 20, 10, 9, 15)


def peers(q, graph, mixing=None, **fields):
    """The quadratics `q` on a graph, with Metropolis' weights or `mixing`, in the paper's order."""
    return Federation(q.model, q.clients, q.local, 0, Peers(graph, "cta", mixing)).having(**fields)


def anybody(graph, **fields):
    """A federation for histories that are written by hand: what its clients hold does not matter."""
    return peers(Quadratics(sizes=(4,) * len(graph)), graph, **fields)


def trained(f, rounds=20, history=None):
    """The models after D-PSGD from zero, and the history."""
    history = history or PeerHistory(f.local.lr)
    return dpsgd(f, W_0, rounds, on_updates=history.record), history


def without(f, leaving):
    """Those who stay, mixed with W'."""
    stay = [i for i in f.ids if i not in leaving]
    mixing = mixing_without(f.peers.Q, [f.ids.index(i) for i in leaving])
    exchange = Peers(nx.complete_graph(stay), f.peers.order, mixing)
    return f.having(clients={i: f.clients[i] for i in stay}, exchange=exchange)


def replayed(f, history, leaving, seed=0, **how):
    """PDUDT without the clients `leaving`."""
    return pdudt(f.having(seed=seed), history, Deletion.of(f.clients, leaving), PDUDT(**how))


def gaps(f, leaving, *, rounds):
    """Distances to the training without `leaving` and with the same W': of doing nothing, secant and frozen."""
    W, history = trained(f, rounds)
    left = without(f, leaving)
    retrained, _ = trained(left, rounds)
    replays = [replayed(f, history, leaving, curvature=curvature) for curvature in ("secant", "frozen")]
    return [float((X - retrained).norm()) for X in (W[left.ids], *replays)]


@pytest.mark.parametrize("leaving", [[1], [0, 3]])
@pytest.mark.parametrize("rounds", [1, 2, 30])
@pytest.mark.parametrize("epochs", [1, 4])
@pytest.mark.parametrize("order", ["cta", "atc"])
def test_one_curvature_per_client_makes_the_replay_the_training_without_the_target(leaving, rounds, epochs, order):
    """T1 with A_i = I: the secant is m / gamma from the second round on, and g is affine with that slope."""
    q = Quadratics(sizes=SIX, isotropic=True, epochs=epochs)
    f = peers(q, erdos_renyi(6, 0.7, seed=2))
    nothing, secant, frozen = gaps(f.having(exchange=replace(f.peers, order=order)), leaving, rounds=rounds)
    assert secant < 1e-9
    if rounds > 2:
        assert min(nothing, frozen) > 0.1


def test_a_decaying_learning_rate_is_not_taken_for_curvature():
    q = Quadratics(sizes=SIX, isotropic=True, epochs=1)
    f = peers(q, ring(6), local=ClientOpt(lr=q.eta, lr_decay=0.9, batch_size=10**6))
    known, unknown = PeerHistory(q.eta, decay=0.9), PeerHistory(q.eta)

    def record(*what):
        known.record(*what), unknown.record(*what)

    W = dpsgd(f, W_0, 20, on_updates=record)
    left = without(f, [2])
    retrained = dpsgd(left, W_0, 20)
    right, wrong = (float((replayed(f, h, [2]) - retrained).norm()) for h in (known, unknown))
    assert right < 1e-9
    assert wrong > 0.01 * float((W[left.ids] - retrained).norm())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("epochs", [1, 4])
def test_the_replay_ends_nearer_to_retraining_than_doing_nothing(seed, epochs):
    """T1 with different A_i, 60 rounds: two fifths of the gap or so are left. Frozen gradients drift past it."""
    nothing, secant, frozen = gaps(peers(Quadratics(sizes=SIX, epochs=epochs, seed=seed), ring(6)), [2], rounds=60)
    assert secant < 0.5 * nothing
    assert frozen > 1.5 * nothing


def test_linear_losses_are_exact_with_frozen_gradients_and_with_the_secant():
    """Gradients that never change, b_i: x' = W'^s x_0 - gamma sum_q W'^q b, and a secant of zero."""
    f, gamma = anybody(star(5)), 0.3
    Q = f.peers.Q
    g = torch.Generator().manual_seed(0)
    X, b = torch.randn(2, 5, 3, generator=g, dtype=torch.float64)
    history, stay = PeerHistory(gamma), [0, 1, 3, 4]
    ours, W = X[stay], mixing_without(Q, [2])
    for t in range(1, 11):
        history.record(t, range(5), X, -gamma * b)
        X = Q @ X - gamma * b
        ours = W @ ours - gamma * b[stay]
    for curvature in ("frozen", "secant"):
        torch.testing.assert_close(replayed(f, history, [2], curvature=curvature), ours, **EXACT)
    assert float((ours - X[stay]).norm()) > 0.1


def test_an_isolated_client_left_nothing_behind(quadratics):
    """Client 2 is linked to nobody: the others' replay is the training they had."""
    graph = nx.Graph([(0, 1), (1, 3)])
    Q = torch.eye(4, dtype=torch.float64)
    rows = torch.tensor([0, 1, 3])
    Q[rows[:, None], rows] = metropolis(graph)
    f = peers(quadratics, graph, Q)
    history, X = PeerHistory(quadratics.eta), start(W_0, 4)
    for t in range(1, 11):
        X = dpsgd_round(f, X, t, on_updates=history.record)
    torch.testing.assert_close(replayed(f, history, [2]), X[[0, 1, 3]], **EXACT)


def test_four_rounds_by_hand(quadratics):
    """Cumulative secants, row by row, cut off at 0 and 1/gamma; the last round keeps the one before."""
    gamma, keep = quadratics.eta, [0, 2, 3]
    f = peers(quadratics, ring(4), local=ClientOpt(lr=gamma, batch_size=3), seed=5)
    _, history = trained(f, rounds=4)
    W = mixing_without(f.peers.Q, [1])
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
    torch.testing.assert_close(replayed(f, history, [1]), x, **EXACT)


@pytest.mark.parametrize(("slope", "fraction"), [(-2.0, 0.0), (0.5, 0.5), (50.0, 1.0)])
def test_the_secant_stays_between_flat_and_one_full_step(slope, fraction):
    """gamma = 1, g = slope (x - a): gamma kappa is 0, slope or 1. Two clients, the one who stays keeps to itself."""
    f, a = anybody(ring(2)), torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    X, history, models, gradients = torch.zeros(2, 1, dtype=torch.float64), PeerHistory(1.0), [], []
    for t in (1, 2, 3):
        models.append(float(X[0]))
        gradients.append(float(slope * (X - a)[0]))
        history.record(t, [0, 1], X, -slope * (X - a))
        X = f.peers.Q @ X - slope * (X - a)
    x = models[0]
    for x_s, g_s in zip(models, gradients, strict=True):
        x = x - (g_s + fraction * (x - x_s))
    assert float(replayed(f, history, [1])) == pytest.approx(x, rel=1e-12)


def test_clients_that_never_moved_have_no_curvature():
    """0 / 0 is no NaN: with zero gradients from consensus the models stay."""
    history, X = PeerHistory(0.1), torch.ones(4, 3)
    for t in (1, 2, 3):
        history.record(t, range(4), X, torch.zeros(4, 3))
    assert torch.equal(replayed(anybody(ring(4)), history, [0]), torch.ones(3, 3))


def test_weights_of_those_who_left_go_to_the_diagonal():
    """A ring of four, all weights 1/3, without client 1: its neighbours 0 and 2 keep 2/3 for themselves."""
    expected = torch.tensor([[2, 0, 1], [0, 2, 1], [1, 1, 1]], dtype=torch.float64) / 3
    torch.testing.assert_close(mixing_without(metropolis(ring(4)), [1]), expected, **EXACT)
    sparse = mixing_without(metropolis(ring(4), sparse=True), [1])
    assert sparse.layout == torch.sparse_csr
    torch.testing.assert_close(sparse.to_dense(), expected, **EXACT)


def test_sparse_and_dense_matrix_are_the_same_to_it(quadratics):
    graph = ring(4)
    f = peers(quadratics, graph)
    _, history = trained(f)
    sparse = f.having(exchange=Peers(graph, "cta", metropolis(graph, sparse=True)))
    torch.testing.assert_close(replayed(sparse, history, [3]), replayed(f, history, [3]), **EXACT)


def test_rows_are_those_of_the_ids_of_the_federation():
    """The clients 0, 2, 4, 5 of six, around client 0: without 2 the rows are those of 0, 4, 5."""
    q = Quadratics(sizes=SIX, isotropic=True)
    ids = [0, 2, 4, 5]
    graph = nx.Graph([(0, 2), (0, 4), (0, 5)])
    f = peers(q, graph, clients={i: q.clients[i] for i in ids})
    _, history = trained(f)
    assert history.ids == ids
    retrained, _ = trained(without(f, [2]))
    torch.testing.assert_close(replayed(f, history, [2]), retrained, **EXACT)


def test_noise_has_the_standard_deviation_asked_for_and_a_stream_per_client():
    d, sigma = 4000, 0.25
    history = PeerHistory(0.1)
    history.record(1, range(5), torch.zeros(5, d), torch.zeros(5, d))
    f = anybody(ring(5))
    noise, again, other = (replayed(f, history, [0], seed=s, sigma=sigma) for s in (3, 3, 4))
    assert torch.equal(noise, again)
    assert not torch.equal(noise, other)
    bands = 5 * sigma / math.sqrt(2 * d)
    assert all(abs(float(row.std()) - sigma) < bands for row in noise)
    assert abs(float((noise[0] * noise[1]).mean())) < 5 * sigma**2 / math.sqrt(d)
    assert torch.equal(replayed(f, history, [1], seed=3, sigma=sigma)[1:], noise[1:])  # clients 2, 3, 4
    assert torch.equal(replayed(f, history, [0], seed=3), torch.zeros(4, d))


def test_history_shares_no_storage_and_the_replay_overwrites_nothing(quadratics):
    X, deltas = torch.ones(4, 3), torch.ones(4, 3)
    history = PeerHistory(0.5)
    history.record(1, [0, 1, 2, 3], X, deltas)
    X.fill_(7), deltas.fill_(7)
    assert torch.equal(history.models(1), torch.ones(4, 3))
    assert torch.equal(history.gradients(1), torch.full((4, 3), -2.0))

    f = peers(quadratics, ring(4))
    _, history = trained(f, rounds=3)
    before = {name: tensor.clone() for name, tensor in history.tensors().items()}
    replayed(f, history, [0], sigma=0.1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in history.tensors().items())


def test_recording_does_not_change_training(quadratics):
    f = peers(quadratics, ring(4))
    W, history = trained(f, rounds=3)
    plain = dpsgd(f, W_0, 3)
    assert torch.equal(plain, W)
    assert history.rounds == [1, 2, 3]
    assert torch.equal(history.models(1), start(W_0, 4))


def test_history_survives_a_checkpoint(quadratics):
    """An interrupted training goes on with the restored history as if nothing had happened."""
    f = peers(quadratics, ring(4))
    _, whole = trained(f, rounds=5)
    W, first = trained(f, rounds=2)
    second = PeerHistory(quadratics.eta)
    second.restore({"w": W, **first.tensors()})
    dpsgd(f, W, 3, first_round=3, on_updates=second.record)
    assert second.tensors().keys() == whole.tensors().keys()
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in whole.tensors().items())
    assert torch.equal(replayed(f, second, [1]), replayed(f, whole, [1]))


def test_a_gap_is_missing_history_and_names_the_round():
    X, f = torch.ones(4, 3), anybody(ring(4))
    empty = PeerHistory(0.1)
    with pytest.raises(MissingHistory, match="round 1; the history holds nothing"):
        replayed(f, empty, [0])
    gap, late = PeerHistory(0.1), PeerHistory(0.1)
    for t in (1, 2, 4):
        gap.record(t, range(4), X, 0 * X)
    with pytest.raises(MissingHistory, match="round 3; the history holds rounds 1 to 4"):
        replayed(f, gap, [0])
    for t in (2, 3):
        late.record(t, range(4), X, 0 * X)
    with pytest.raises(MissingHistory, match="round 1; the history holds rounds 2 to 3"):
        replayed(f, late, [0])
    resumed = PeerHistory(0.1, first_round=2)
    resumed.restore(late.tensors())
    assert torch.equal(replayed(f, resumed, [0]), X[1:])


def test_only_whole_clients_can_be_forgotten(quadratics, monkeypatch):
    """Refused by the function and by name, in the same words, for samples and for classes."""
    monkeypatch.setattr(method, "_import_all", lambda: None)
    labelled = [(X, (y > 0).long()) for X, y in quadratics.clients]
    f = peers(quadratics, ring(4), clients=labelled)
    W, history = trained(peers(quadratics, ring(4)), rounds=3)
    for forget in ({0: torch.arange(2)}, {i: (y == 0).nonzero().flatten() for i, (_, y) in enumerate(labelled)}):
        deletion = Deletion.of(labelled, forget)
        for serve in (
            lambda deletion=deletion: pdudt(f, history, deletion),
            lambda deletion=deletion: unlearn("PDUDT", Trained(f, W, memory=history), deletion),
        ):
            with pytest.raises(UnsupportedTask, match="leaving: PDUDT forgets whole clients and not some of their sam"):
                serve()


def test_bad_parameters_and_histories_are_named(quadratics):
    f = peers(quadratics, ring(4))
    _, history = trained(f, rounds=3)
    with pytest.raises(ValueError, match="curvature must be one of 'secant', 'frozen', got 'hessian'"):
        PDUDT(curvature="hessian")
    with pytest.raises(ValueError, match="sigma must be a finite number >= 0, got -1"):
        PDUDT(sigma=-1)
    with pytest.raises(ValueError, match="gamma must be a finite number > 0, got 0"):
        PeerHistory(0)
    with pytest.raises(InvalidRequest, match=r"round 4 has the clients \[0, 1\]"):
        history.record(4, [0, 1], torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(InvalidRequest, match=r"history is of the clients \[0, 1, 2, 3\], but .* are \[0, 1, 2\]"):
        replayed(peers(quadratics, ring(3), clients=quadratics.clients[:3]), history, [0])


def test_it_serves_a_request_by_name_and_tells_what_the_paper_counts(quadratics, monkeypatch):
    """Published: t_1 N_c d B, of a client with two neighbours; two that leave have four."""
    monkeypatch.setattr(method, "_import_all", lambda: None)
    f, rounds = peers(quadratics, ring(4)), 5
    W, history = trained(f, rounds=rounds)
    served = unlearn("PDUDT", Trained(f, W, rounds, memory=history), "client-1")
    assert torch.equal(served.model, replayed(f, history, [1]))
    assert served.notes == {"published": rounds * 2 * 3 * 8}
    assert served.cost.storage == history.nbytes
    both = unlearn("PDUDT", Trained(f, W, rounds, memory=history), "client-0-1", curvature="frozen")
    assert torch.equal(both.model, replayed(f, history, [0, 1], curvature="frozen"))
    assert both.notes == {"published": rounds * 4 * 3 * 8}
    with pytest.raises(MissingHistory, match="memory: PDUDT needs a PeerHistory"):
        unlearn("PDUDT", Trained(f, W, rounds, memory=Memory()), "client-1")
    with pytest.raises(InvalidRequest, match="names client 7"):
        unlearn("PDUDT", Trained(f, W, rounds, memory=history), "client-7")


def test_a_history_of_some_rounds_is_no_history_of_the_training(quadratics, monkeypatch):
    """The first 2 of 4 rounds would come back as the models of round 4, and the last 2 forget next to nothing."""
    monkeypatch.setattr(method, "_import_all", lambda: None)
    f = peers(quadratics, ring(4))
    early, late, whole = PeerHistory(f.local.lr), PeerHistory(f.local.lr, first_round=3), PeerHistory(f.local.lr)
    half = dpsgd(f, W_0, 2, on_updates=early.record)
    W = dpsgd(f, half, 2, first_round=3, on_updates=late.record)
    whole.restore({**early.tensors(), **late.tensors()})
    later = replace(whole, first_round=2)  # round 1 is there, and is not where the replay would begin
    later.restore(whole.tensors())
    told = [
        "round 1 and holds 1 to 2",
        "round 3 and holds 3 to 4",
        "round 2 and holds 1 to 4",
        "round 1 and holds none",
    ]
    for history, held in zip((early, late, later, PeerHistory(0.1)), told, strict=True):
        with pytest.raises(MissingHistory, match=f"memory: .*`rounds` counts 4, but this history begins with {held}"):
            unlearn("PDUDT", Trained(f, W, 4, memory=history), "client-1")
    with pytest.raises(MissingHistory, match=r"`rounds` counts 0, but .* holds 1 to 4"):
        unlearn("PDUDT", Trained(f, W, memory=whole), "client-1")
    served = unlearn("PDUDT", Trained(f, W, 4, memory=whole), "client-1").model
    assert torch.equal(served, replayed(f, whole, [1]))


def test_those_who_stay_must_be_connected(quadratics):
    f = peers(quadratics, star(4))
    _, history = trained(f, rounds=2)
    with pytest.raises(TopologyError, match=r"without the clients \[0\]: rho must be < 1"):
        replayed(f, history, [0])
    assert replayed(f, history, [0, 1, 2]).shape == (1, 3)  # who is alone is connected
    with pytest.raises(TopologyError, match=r"Q must have shape \(4, 4\), .*, got \(5, 5\)"):
        replayed(f.having(exchange=Peers(ring(5))), history, [1])


@pytest.mark.parametrize("lr", [0.1, 0.0005])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_history_of_another_order_or_matrix_is_refused(quadratics, dtype, lr):
    """What was recorded shows it: x^{s+1} is not what the federation's order makes of x^s and g^s, in either precision.

    At the lower rate the models, of length 1, move by a thousandth in a round.
    """
    clients = [(X.to(dtype), y.to(dtype)) for X, y in quadratics.clients]
    f = peers(quadratics, ring(4), clients=clients, local=ClientOpt(lr=lr, batch_size=100))
    histories = {}
    for order in ("cta", "atc"):
        histories[order] = PeerHistory(lr)
        other = f.having(exchange=Peers(ring(4), order))
        dpsgd(other, (W_0 + 0.6).to(dtype), 50, on_updates=histories[order].record)
    as_atc = f.having(exchange=Peers(ring(4), "atc"))
    for here, own, other in ((f, "cta", "atc"), (as_atc, "atc", "cta")):
        here = here.having(exchange=Peers(ring(4), own))
        assert replayed(here, histories[own], [0]).dtype == dtype
        with pytest.raises(UnsupportedTask, match=f"after round 1 are off what order='{own}' and this Q make"):
            replayed(here, histories[other], [0])
    with pytest.raises(UnsupportedTask, match="after round 2 are off"):  # from consensus all matrices mix alike
        replayed(f.having(exchange=Peers(star(4), "cta")), histories["cta"], [1])


def test_a_broken_history_is_a_numerical_failure():
    history = PeerHistory(0.1)
    history.record(1, range(4), torch.zeros(4, 3), torch.full((4, 3), float("inf")))
    with pytest.raises(NumericalFailure, match="round 1"):
        replayed(anybody(ring(4)), history, [0])


def test_counters_equal_the_formulas(quadratics):
    """2 |E'| t_1 P B sent among those who stay, 2 t_1 K P B kept; the paper's figure is t_1 N_c P B."""
    f, meter, rounds = peers(quadratics, ring(4)), Meter(), 7
    _, history = trained(f, rounds)
    replayed(f.having(meter=meter), history, [0])
    P, B = 3, 8
    assert meter.bytes == meter.bytes_up == 2 * 2 * rounds * P * B
    assert meter.storage == history.nbytes == 2 * rounds * 4 * P * B
    assert history.published_nbytes(neighbours=2) == rounds * 2 * P * B
    assert (meter.rounds, meter.scheduled, meter.images) == (rounds, 0, 0)
