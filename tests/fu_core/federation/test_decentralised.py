"""D-PSGD against closed forms (methods 4.2, T6; Wu et al., Sec. IV-A)."""

import math

import networkx as nx
import pytest
import torch

from fu_core.errors import NumericalFailure, TopologyError, UnsupportedTask
from fu_core.federation.decentralised import consensus_distance, dpsgd, dpsgd_round, start
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import TOPOLOGIES, Peers, complete, metropolis, ring, star, topology
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt, train_client
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
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deltas = torch.stack([-M @ (x - a) for M, x, a in zip(q.M, X, q.a, strict=True)])
    expected = Q @ X + deltas if order == "cta" else Q @ (X + deltas)
    torch.testing.assert_close(dpsgd_round(peers_of(q, star(4), order), X, 1), expected, **EXACT)


def test_a_mixing_matrix_of_ones_own_is_used(quadratics):
    """Everybody keeps .4 and gives .2 to each other, on a graph whose Metropolis weights are others."""
    Q = torch.full((4, 4), 0.2, dtype=torch.float64) + 0.2 * torch.eye(4, dtype=torch.float64)
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deltas = torch.stack([-M @ (x - a) for M, x, a in zip(quadratics.M, X, quadratics.a, strict=True)])
    f = quadratics.federation(exchange=Peers(complete(4), mixing=Q))
    torch.testing.assert_close(dpsgd_round(f, X, 1), Q @ X + deltas, **EXACT)


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
    X = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    deltas = torch.stack([-q.M[i] @ (x - q.a[i]) for i, x in zip(ids, X, strict=True)])
    after = dpsgd_round(peers_of(q, ring(4)).after(Deletion.of(q.clients, 2)), X, 1)
    torch.testing.assert_close(after, X.mean(dim=0) + deltas, **EXACT)


def test_rows_follow_the_order_of_the_ids(quadratics):
    """Whatever the order in which clients or nodes are listed: row k is the client with the k-th smallest id."""
    q, graph = quadratics, nx.path_graph([3, 0, 1])  # client 0 in the middle
    X = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
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
