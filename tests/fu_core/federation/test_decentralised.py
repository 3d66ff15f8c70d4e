"""D-PSGD against closed forms (methods 4.2, T6; Wu et al., Sec. IV-A)."""

import math
from contextlib import nullcontext

import networkx as nx
import pytest
import torch

from fu_core import load, partition
from fu_core.errors import ConsensusFailure, NumericalFailure, TopologyError, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation import decentralised
from fu_core.federation.decentralised import Disagreement, consensus_distance, disagreement, dpsgd, dpsgd_round, start
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import TOPOLOGIES, Peers, complete, metropolis, ring, star, topology
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt, train_client
from fu_core.models import build
from fu_core.models.flat import FlatModel
from fu_core.models.linear import softmax_regression
from fu_core.request import Deletion
from tests.quadratics import Quadratics

EXACT = {"rtol": 1e-9, "atol": 1e-11}
W_0 = torch.zeros(3, dtype=torch.float64)

every_topology = pytest.mark.parametrize("name", TOPOLOGIES)


def peers_of(q, graph, order="cta", **changes):
    """The quadratic clients on a graph."""
    return q.federation(exchange=Peers(graph, order), **changes)


def test_consensus_distance_by_hand():
    """Rows (0, 0), (3, 4), (6, 8): mean (3, 4), squared distances 25, 0, 25."""
    W = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]])
    assert consensus_distance(W) == pytest.approx(math.sqrt(50 / 3), rel=1e-12)
    assert consensus_distance(start(torch.tensor([1.0, 2.0]), 4)) == 0.0


# D-PSGD


def fixed_point(q, Q, steps):
    """X with (I - Q (x) I + S) X = S a, S = blkdiag(steps): where D-PSGD comes to rest (T6)."""
    N, d = q.a.shape
    S = torch.block_diag(*steps)
    left = torch.eye(N * d, dtype=torch.float64) - torch.kron(Q, torch.eye(d, dtype=torch.float64)) + S
    return torch.linalg.solve(left, S @ q.a.flatten()).view(N, d)


@pytest.mark.parametrize("epochs", [1, 4])
def test_dpsgd_reaches_its_fixed_point_which_is_not_consensus(epochs):
    """T6 with gamma A for one step, M = I - (I - gamma A)^E for E of them."""
    q = Quadratics(epochs=epochs)
    f, Q = peers_of(q, ring(4)), metropolis(ring(4))
    X = fixed_point(q, Q, [q.eta * A for A in q.A] if epochs == 1 else q.M)
    torch.testing.assert_close(dpsgd(f, X, 1), X, **EXACT)
    W = dpsgd(f, W_0, 600)
    torch.testing.assert_close(W, X, **EXACT)
    optimum = torch.linalg.solve(sum(q.A), sum(A @ a for A, a in zip(q.A, q.a, strict=True)))
    assert consensus_distance(W) > 0.1
    assert float((W.mean(dim=0) - optimum).norm()) > 0.01


@pytest.mark.parametrize("order", ["cta", "atc"])
def test_the_orders_are_what_the_equations_say(quadratics, order):
    """Q X + Delta(X) and Q (X + Delta(X)), Delta_i = -M_i (x_i - a_i)."""
    q, Q = quadratics, metropolis(star(4))
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    deltas = torch.stack([-M @ (x - a) for M, x, a in zip(q.M, X, q.a, strict=True)])
    expected = Q @ X + deltas if order == "cta" else Q @ (X + deltas)
    torch.testing.assert_close(dpsgd_round(peers_of(q, star(4), order), X, 1), expected, **EXACT)


def test_a_mixing_matrix_of_ones_own_is_used(quadratics):
    """Everybody keeps .4 and gives .2 to each other, on a graph whose Metropolis weights are others."""
    Q = torch.full((4, 4), 0.2, dtype=torch.float64) + 0.2 * torch.eye(4, dtype=torch.float64)
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    deltas = torch.stack([-M @ (x - a) for M, x, a in zip(quadratics.M, X, quadratics.a, strict=True)])
    f = quadratics.federation(exchange=Peers(complete(4), mixing=Q))
    torch.testing.assert_close(dpsgd_round(f, X, 1), Q @ (X + deltas), **EXACT)


@pytest.mark.parametrize("order", ["cta", "atc"])
def test_a_single_client_just_trains(quadratics, order):
    q, local = quadratics, ClientOpt(lr=0.05, epochs=2, batch_size=3)
    f = peers_of(q, ring(1), order, clients=q.clients[:1], local=local, seed=5)
    ours, w = dpsgd(f, W_0, 3), W_0
    for t in (1, 2, 3):
        w = train_client(f, w, 0, t)
    torch.testing.assert_close(ours[0], w, **EXACT)


def test_averaging_with_everybody_is_fedavg():
    """Q = 11'/N and "atc" for equal clients; "cta" keeps each client's own step and is not."""
    q, local = Quadratics(sizes=(12, 12, 12, 12)), ClientOpt(lr=0.05, epochs=2, batch_size=5)
    server = fedavg(q.federation(local=local), W_0, 5)
    peers = dpsgd(peers_of(q, complete(4), "atc", local=local), W_0, 5)
    torch.testing.assert_close(peers, start(server, 4), **EXACT)
    assert consensus_distance(peers) < 1e-12
    own = dpsgd(peers_of(q, complete(4), local=local), W_0, 5)
    assert consensus_distance(own) > 0.01


def test_everybody_starts_with_a_copy():
    w = torch.tensor([1.0, 2.0])
    W = start(w, 3)
    W[0] = 7.0
    assert W.tolist() == [[7.0, 7.0], [1.0, 2.0], [1.0, 2.0]]
    assert w.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_leaving_does_not_move_anybody_elses_batches(quadratics, how):
    """From the same start the others learn in round 1, of batches of 3, what they learnt beside the one who left."""
    q, seen = quadratics, []
    f = peers_of(q, ring(4), local=ClientOpt(lr=0.05, batch_size=3), how=how)
    for who in (f, f.after(Deletion.of(q.clients, 2))):
        dpsgd(who, W_0, 1, on_updates=lambda t, ids, W, deltas: seen.append((t, ids, W.clone(), deltas.clone())))
    (t, ids, W, everybody), (_, stay, _, others) = seen
    assert (t, ids, stay) == (1, [0, 1, 2, 3], [0, 1, 3])
    assert torch.equal(W, start(W_0, 4))
    torch.testing.assert_close(others, everybody[[0, 1, 3]], rtol=1e-13, atol=1e-15)
    assert not torch.allclose(others[2], everybody[2])


def test_who_stays_mixes_on_the_closed_ring(quadratics):
    """Without client 2 of 4, clients 0, 1, 3 are a triangle: one round of Q = 11'/3 from different models."""
    q, ids = quadratics, [0, 1, 3]
    X = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    deltas = torch.stack([-q.M[i] @ (x - q.a[i]) for i, x in zip(ids, X, strict=True)])
    after = dpsgd_round(peers_of(q, ring(4)).after(Deletion.of(q.clients, 2)), X, 1)
    torch.testing.assert_close(after, X.mean(dim=0) + deltas, **EXACT)


def test_rows_follow_the_order_of_the_ids(quadratics):
    """Whatever the order in which clients or nodes are listed: row k is the client with the k-th smallest id."""
    q, graph = quadratics, nx.path_graph([3, 0, 1])  # client 0 in the middle
    X = torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    forth, back = ({i: q.clients[i] for i in ids} for ids in ([0, 1, 3], [3, 1, 0]))
    deltas = torch.stack([-q.M[i] @ (x - q.a[i]) for i, x in zip([0, 1, 3], X, strict=True)])
    Q = torch.tensor([[1, 1, 1], [1, 2, 0], [1, 0, 2]], dtype=torch.float64) / 3
    for clients in (forth, back):
        torch.testing.assert_close(dpsgd(peers_of(q, graph, clients=clients), X, 1), Q @ X + deltas, **EXACT)


@pytest.mark.parametrize("order", ["cta", "atc"])
def test_sparse_mixing_trains_the_same_models(quadratics, order):
    dense = peers_of(quadratics, ring(4), order)
    sparse = quadratics.federation(exchange=Peers(ring(4), order, metropolis(ring(4), sparse=True)))
    torch.testing.assert_close(dpsgd(sparse, W_0, 5), dpsgd(dense, W_0, 5), rtol=1e-12, atol=1e-13)
    assert dense.meter == sparse.meter
    assert dense.meter.rounds == 5


def test_models_keep_their_dtype(quadratics):
    clients = [(X.float(), y.float()) for X, y in quadratics.clients]
    W = dpsgd(peers_of(quadratics, ring(4), clients=clients), W_0.float(), 2)
    assert (W.dtype, W.shape) == (torch.float32, (4, 3))


def test_rounds_can_be_cut_anywhere(quadratics):
    """Two rounds and three that continue the count are five rounds, and the start is not overwritten."""
    f, W, seen = peers_of(quadratics, ring(4), local=ClientOpt(lr=0.05, lr_decay=0.9, batch_size=3)), start(W_0, 4), []
    whole = dpsgd(f, W, 5, after_round=lambda t, W: seen.append((t, W)))
    first = dpsgd(f, W, 2)
    assert torch.equal(dpsgd(f, first, 3, first_round=3), whole)
    assert [t for t, _ in seen] == [1, 2, 3, 4, 5]
    assert torch.equal(seen[1][1], first)
    assert torch.equal(W, start(W_0, 4))


@every_topology
def test_a_round_sends_a_model_over_every_link_in_both_directions(name):
    """2 |E| P B bytes a round, here float64; images are those of the clients."""
    q, graph = Quadratics(sizes=(4,) * 9), topology(name, 9)
    f = peers_of(q, graph)
    dpsgd(f, W_0, 3)
    assert f.meter.bytes == f.meter.bytes_up == 3 * 2 * graph.number_of_edges() * 3 * 8
    assert (f.meter.rounds, f.meter.images) == (3, 3 * 9 * 4 * q.epochs)


# Drifting apart


def alike(n, m):
    """n quadratic clients who differ in their optima alone; a round takes each from x - a to m (x - a)."""
    return Quadratics(sizes=(4,) * n, eta=1 - m, epochs=1, isotropic=True)


def distances(f, W, rounds):
    seen = []
    dpsgd(f, W, rounds, after_round=lambda t, W: seen.append(consensus_distance(W)), growth=math.inf)
    return seen


@pytest.mark.parametrize(("m", "unstable"), [(0.0, True), (0.3, True), (0.32, True), (0.35, False), (0.6, False)])
def test_a_ring_drifts_apart_if_and_only_if_q_min_and_m_are_negative_together(m, unstable):
    """Ring of 4: q_min = -1/3. "cta" multiplies the disagreement by q_min + m - 1, and "atc" never by more than m."""
    q = alike(4, m)
    assert (-1 / 3 + m < 0) == unstable
    mode = abs(-1 / 3 + m - 1)
    swing = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)  # to q_min's eigenvector, of all coordinates
    W = fixed_point(q, metropolis(ring(4)), [q.eta * A for A in q.A]) + swing[:, None]
    rest = consensus_distance(W - swing[:, None])
    seen = distances(peers_of(q, ring(4)), W, 40)
    off = [mode**t * math.sqrt(3) for t in (39, 40)]  # |swing| of a client in 3 coordinates, after 39 and 40 rounds
    if unstable:
        assert all(abs(C - s) <= rest + 1e-9 for C, s in zip(seen[-2:], off, strict=True))
        assert off[1] > off[0]
    else:
        assert seen[-1] <= rest + off[1] + 1e-9
        assert off[1] < off[0]
    assert distances(peers_of(q, ring(4), "atc"), W, 40)[-1] <= 2 * rest


@pytest.mark.parametrize(("strength", "unstable"), [(0.95, False), (1.05, True)])
def test_clients_with_curvatures_of_their_own_have_the_border_of_all_eigenvalues(strength, unstable):
    """lambda_min(Q + M - I) = -1 for M = blkdiag(I - eta A_i), one step of the eta at the border, a bit less, more."""
    q, Q = Quadratics(epochs=1), torch.kron(metropolis(ring(4)), torch.eye(3, dtype=torch.float64))
    A = torch.block_diag(*q.A)
    low, high = 0.0, 4 / float(torch.linalg.eigvalsh(A)[-1])
    for _ in range(60):  # halving: lambda_min(Q - eta A) falls with eta
        eta = (low + high) / 2
        low, high = (eta, high) if float(torch.linalg.eigvalsh(Q - eta * A)[0]) > -1 else (low, eta)
    f = peers_of(q, ring(4), local=ClientOpt(lr=strength * low, batch_size=10**6))
    seen = distances(f, W_0, 400)
    assert (seen[-1] > 10 * max(seen[:5])) == unstable
    assert unstable or seen[-1] < 2 * max(seen[:5])


def test_the_gain_of_a_mode_is_its_eigenvalue():
    """Ring of 4, m = 0.2: each round multiplies the swing by -1/3 + 0.2 - 1; what drives clients apart cancels."""
    q = alike(4, 0.2)
    swing = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)[:, None]
    models = [fixed_point(q, metropolis(ring(4)), [q.eta * A for A in q.A]) + swing]
    f = peers_of(q, ring(4))
    for t in (1, 2):
        models.append(dpsgd_round(f, models[-1], t))
    seen = disagreement(*models)
    assert seen.gain == pytest.approx(-1 / 3 + 0.2 - 1, rel=1e-9)
    assert seen.distances == pytest.approx(tuple(consensus_distance(W) for W in models[1:]), rel=1e-12)


@pytest.mark.parametrize("numbers", [1, 20, 10**6])
def test_disagreement_is_what_its_equations_say_whatever_the_blocks(numbers, monkeypatch):
    monkeypatch.setattr(decentralised, "BLOCK", numbers)
    g = torch.Generator().manual_seed(0)
    models = [torch.randn(5, 17, generator=g) + 3 for _ in range(3)]
    first, second, third = (W - W.mean(dim=0) for W in models)
    before, now = second - first, third - second
    gain, (at_second, at_third) = disagreement(*models)
    assert gain == pytest.approx(float((before * now).sum() / before.square().sum()), rel=1e-5)
    assert (at_second, at_third) == pytest.approx(tuple(map(consensus_distance, models[1:])), rel=1e-5)
    assert disagreement(*[start(torch.ones(17), 5)] * 3) == (0.0, (0.0, 0.0))


def test_models_that_drift_apart_are_an_error_that_says_what_to_do():
    """m = 0.1 on a ring of 10: q_min + m = -0.23, and every mode below -1 grows."""
    q = alike(10, 0.1)
    with pytest.raises(ConsensusFailure) as failure:
        dpsgd(peers_of(q, ring(10)), W_0, 60)
    message = str(failure.value)
    for part in ("models drift apart", "order='cta'", "lr 0.9", "smallest eigenvalue -0.33", "take order='atc'",
                 "lazy Q", "lower lr", "growth=math.inf"):  # fmt: skip
        assert part in message
    assert isinstance(failure.value, NumericalFailure)


def test_what_the_error_recommends_helps():
    q, eye = alike(10, 0.1), torch.eye(10, dtype=torch.float64)
    lazy = Peers(ring(10), "cta", (eye + metropolis(ring(10))) / 2)
    lower = alike(10, 0.35).local
    rounds = distances(peers_of(q, ring(10)), W_0, 60)
    assert rounds[-1] > 100 * rounds[5]  # and growth=math.inf has let it go on
    for f in (peers_of(q, ring(10), "atc"), q.federation(exchange=lazy), peers_of(q, ring(10), local=lower)):
        assert consensus_distance(dpsgd(f, W_0, 60)) < 3


def test_a_training_that_is_taken_up_again_is_watched_on():
    f, seen = peers_of(alike(10, 0.1), ring(10)), []
    W = dpsgd(f, W_0, 15, growth=math.inf)
    with pytest.raises(ConsensusFailure):
        dpsgd(f, W, 30, first_round=16, after_round=lambda t, W: seen.append(t))
    assert len(seen) <= 12


def test_the_disagreement_is_looked_at_every_fifth_round(quadratics, monkeypatch):
    """Three models in a row, the last one being of round 5, 10, ...; nothing is looked at without need."""
    looked, models = [], [start(W_0, 4)]
    real = disagreement
    monkeypatch.setattr(decentralised, "disagreement", lambda *three: looked.append(three) or real(*three))
    f = peers_of(quadratics, ring(4))
    dpsgd(f, W_0, 11, after_round=lambda t, W: models.append(W))
    assert len(looked) == 2
    for three, t in zip(looked, (5, 10), strict=True):
        assert all(torch.equal(W, expected) for W, expected in zip(three, models[t - 2 : t + 1], strict=True))
    dpsgd(f, W_0, 10, growth=math.inf)
    dpsgd(f, W_0, 1, first_round=5)  # two models are too few
    assert len(looked) == 2


@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_drift_apart(seed):
    """On a complete graph "atc" leaves everybody the same model but for rounding, whose gain is anything."""
    g = torch.Generator().manual_seed(seed)
    clients = [(torch.randn(20, 6, generator=g), torch.randint(0, 3, (20,), generator=g)) for _ in range(5)]
    f = Federation(FlatModel(torch.nn.Linear(6, 3), l2=0.01), clients, ClientOpt(lr=0.1), seed, Peers(complete(5)))
    W = dpsgd(f, f.model.init(seed), 100)
    assert consensus_distance(W) < decentralised.resolution(W) / 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_farther_apart_than_rounding_is_a_drift(quadratics, dtype):
    """Four models of length 5: from no distance at all to a bit less, or more, than twice what rounding may be."""
    W = start(torch.tensor([3.0, 4.0], dtype=dtype), 4)
    assert decentralised.resolution(W) == pytest.approx(500 * torch.finfo(dtype).eps)
    for nearness, raised in [(0.9, False), (1.1, True)]:
        watch, far = decentralised.Watch(peers_of(quadratics, ring(4)), 2.0), 2 * nearness * decentralised.resolution(W)
        watch.look(5, Disagreement(0.0, (0.0, 0.0)), W)
        with pytest.raises(ConsensusFailure) if raised else nullcontext():
            watch.look(10, Disagreement(-1.5, (far, far)), W)


@pytest.mark.parametrize("growth", [0.5, 0, -1, math.nan])
def test_growth_must_be_a_factor(quadratics, growth):
    with pytest.raises(ValueError, match=r"growth must be at least 1, or math.inf to watch nothing, got"):
        dpsgd(peers_of(quadratics, ring(4)), W_0, 1, growth=growth)


def on_digits(model, n, topology_name, order, *, alpha=None, **local):
    """The bundled digits dealt out to n clients: the federation, its test set, where it starts."""
    data = load("digits")
    parts = (
        partition.iid(len(data.y_train), n, seed=0)
        if alpha is None
        else partition.dirichlet(data.y_train, n, alpha=alpha, seed=0)
    )
    model = build(model, data, l2=1e-3 if model == "unit_softmax" else 0.0)
    clients = [(data.x_train[part], data.y_train[part]) for part in parts]
    f = Federation(model, clients, ClientOpt(**local), exchange=Peers(topology(topology_name, n, p=0.4), order))
    return f, (data.x_test, data.y_test), model.init(0)


def test_a_softmax_with_whole_epochs_is_caught_before_it_loses_accuracy():
    """Ring of 10, five epochs at lr 3: "cta" swings ever farther and loses 9 points within 40 rounds, "atc" none."""
    seen = {"cta": [], "atc": []}
    for order, rounds in seen.items():
        f, test, w_0 = on_digits("unit_softmax", 10, "ring", order, lr=3.0, batch_size=20, epochs=5)

        def look(t, W, model=f.model, test=test, rounds=rounds):
            rounds.append((accuracy(model, W.mean(dim=0), *test), consensus_distance(W)))

        dpsgd(f, w_0, 40, after_round=look, growth=math.inf)
        best = max(a for a, _ in rounds)
        if order == "atc":
            assert best - rounds[-1][0] < 0.5
            assert rounds[-1][1] < 1.5 * rounds[0][1]
            dpsgd(f, w_0, 40)  # and nothing is raised
            continue
        assert best - rounds[-1][0] > 5
        assert rounds[-1][1] > 8 * rounds[0][1]
        with pytest.raises(ConsensusFailure, match="the models drift apart") as failure:
            dpsgd(f, w_0, 40)
        t = int(str(failure.value).split()[1].rstrip(":"))
        assert best - min(a for a, _ in rounds[4:t]) < 1.5  # nothing is lost yet
        assert rounds[t - 1][1] < rounds[-1][1] / 2


@pytest.mark.parametrize("order", ["cta", "atc"])
@pytest.mark.parametrize(
    ("model", "n", "topology_name", "alpha", "rounds", "local"),
    [
        ("unit_softmax", 10, "ring", 0.3, 24, {"lr": 3.0, "lr_decay": 0.9, "batch_size": 20, "epochs": 5}),
        ("unit_softmax", 50, "ring", None, 60, {"lr": 0.5, "batch_size": 20}),
        ("mlp", 10, "ring", 0.3, 20, {"lr": 0.05, "momentum": 0.9, "batch_size": 20, "epochs": 5, "lr_decay": 0.9}),
        ("mlp", 9, "star", None, 12, {"lr": 0.1, "batch_size": 10}),
        ("mlp", 10, "erdos_renyi", 0.3, 8, {"lr": 0.003, "optimiser": "adam", "batch_size": 10, "epochs": 2}),
        ("mlp", 16, "torus", None, 12, {"lr": 0.03, "batch_size": 10}),
    ],
)
def test_healthy_trainings_pass(model, n, topology_name, alpha, rounds, local, order):
    """Clients who differ, momentum, few rounds, long rings, nets: their distance rises too, from 0 to a plateau."""
    f, _, w_0 = on_digits(model, n, topology_name, order, alpha=alpha, **local)
    dpsgd(f, w_0, rounds, growth=1.5)  # with less patience than there is by default


# What is refused


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_divergence_names_client_and_round(quadratics, how):
    X, y = quadratics.clients[2]
    broken = [*quadratics.clients[:2], (X * float("nan"), y), quadratics.clients[3]]
    with pytest.raises(NumericalFailure, match="client 2, round 7"):
        dpsgd(peers_of(quadratics, ring(4), clients=broken, how=how), W_0, 1, first_round=7)


def test_a_model_that_breaks_in_mixing_names_its_client():
    """Images of zeros keep the updates finite while weights near the largest float32 overflow at the neighbours."""
    model = FlatModel(softmax_regression(2, 2))
    clients = [(torch.zeros(3, 2), torch.tensor([0, 1, 1]))] * 5
    W = torch.zeros(5, model.d)
    W[3] = 1e38
    mixing = 12 * metropolis(ring(5))  # entries of 4: not doubly stochastic, which only `dpsgd` checks
    with pytest.raises(NumericalFailure, match="client 2, round 1: its model is not finite"):
        dpsgd_round(Federation(model, clients, exchange=Peers(ring(5), mixing=mixing)), W, 1)


def test_graphs_and_models_that_do_not_fit_the_clients_are_refused(quadratics):
    q, f = quadratics, peers_of(quadratics, ring(4))
    with pytest.raises(TopologyError, match="graph must link clients 0 to 2, but its nodes are 0 to 3"):
        dpsgd(f.having(clients=q.clients[:3]), W_0, 1)
    with pytest.raises(TopologyError, match="graph must link clients 0, 1, 3, but its nodes are 0 to 2"):
        dpsgd(peers_of(q, ring(3), clients={i: q.clients[i] for i in (0, 1, 3)}), W_0, 1)
    with pytest.raises(TopologyError, match=r"Q must have shape \(4, 4\), a row per client, got \(3, 3\)"):
        dpsgd(f.having(exchange=Peers(ring(4), mixing=metropolis(ring(3)))), W_0, 1)
    with pytest.raises(TopologyError, match="rho must be < 1"):
        dpsgd(f.having(exchange=Peers(ring(4), mixing=torch.eye(4, dtype=torch.float64))), W_0, 1)
    with pytest.raises(ValueError, match=r"w must have shape .*, got \(3, 3\)"):
        dpsgd(f, start(W_0, 3), 1)
    with pytest.raises(ValueError, match="rounds must be a whole number >= 0, got -1"):
        dpsgd(f, W_0, -1)
    with pytest.raises(UnsupportedTask, match="exchange must be Peers for this, but these clients have a server"):
        dpsgd(q.federation(), W_0, 1)
