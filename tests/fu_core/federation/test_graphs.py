"""Graphs and mixing matrices against closed forms (methods 4.1; Wu et al., Assumption 1 and Lemma 1)."""

import math

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fu_core.errors import InvalidRequest, TopologyError, UnsupportedTask
from fu_core.federation.graphs import (
    TOPOLOGIES,
    Peers,
    check_mixing,
    complete,
    eigenvalues,
    erdos_renyi,
    links,
    metropolis,
    mixing_error,
    rho,
    ring,
    smallest_eigenvalue,
    sparse_entries,
    star,
    topology,
    torus,
    without,
)
from fu_core.streams import numpy_stream

every_topology = pytest.mark.parametrize("name", TOPOLOGIES)


def edges(graph):
    return {tuple(sorted(edge)) for edge in graph.edges}


# Graphs


def test_small_graphs_by_hand():
    assert edges(ring(4)) == {(0, 1), (1, 2), (2, 3), (0, 3)}
    assert edges(ring(2)) == {(0, 1)}
    assert edges(star(4)) == {(0, 1), (0, 2), (0, 3)}
    assert edges(complete(3)) == {(0, 1), (0, 2), (1, 2)}
    assert [list(graph.nodes) for graph in (ring(1), star(1), complete(1))] == [[0]] * 3
    assert not edges(ring(1))


def test_torus_by_hand():
    """3 x 4: client 5 is in row 1, column 1, client 3 in the corner; everybody has four links."""
    graph = torus(12)
    assert sorted(graph[5]) == [1, 4, 6, 9]
    assert sorted(graph[3]) == [0, 2, 7, 11]
    assert all(degree == 4 for _, degree in graph.degree)


@pytest.mark.parametrize("n", [1, 4, 8, 10, 13])
def test_a_torus_needs_two_sides_of_three(n):
    with pytest.raises(ValueError, match=f"n must be a product of two numbers >= 3 .*, got {n}"):
        torus(n)


@pytest.mark.parametrize("n", [9, 12, 16])
@every_topology
def test_every_topology_is_a_connected_graph_on_its_clients(name, n):
    graph = topology(name, n, seed=1)
    assert sorted(graph) == list(range(n))
    assert nx.is_connected(graph)
    assert nx.number_of_selfloops(graph) == 0


def test_random_graphs_are_seeded_and_have_the_density_asked_for():
    once, again, other = (erdos_renyi(60, 0.4, seed=s) for s in (0, 0, 1))
    assert edges(once) == edges(again) != edges(other)
    links_possible = 60 * 59 / 2
    assert abs(len(edges(once)) / links_possible - 0.4) < 5 * math.sqrt(0.4 * 0.6 / links_possible)
    assert edges(erdos_renyi(5, 1.0, seed=0)) == edges(complete(5))


def test_a_random_graph_is_drawn_until_it_is_connected():
    """Few graphs on 10 clients with p = 0.15 are connected: attempt k has its own stream and starts afresh."""
    for attempt in range(1000):
        drawn = np.triu(numpy_stream(3, "erdos renyi", attempt).random((10, 10)) < 0.15, k=1)
        if nx.is_connected(nx.from_numpy_array(drawn.astype(int))):
            break
    assert attempt > 0
    assert edges(erdos_renyi(10, 0.15, seed=3)) == {(i, j) for i, j in np.argwhere(drawn).tolist()}
    with pytest.raises(TopologyError, match=r"p = 0.0001: none of 1000 random graphs on 10 clients"):
        erdos_renyi(10, 1e-4, seed=0)


def test_bad_graph_parameters_are_named():
    with pytest.raises(ValueError, match="n must be a whole number >= 1, got 0"):
        ring(0)
    with pytest.raises(ValueError, match=r"p must be in \(0, 1\], got 1.5"):
        erdos_renyi(4, 1.5, seed=0)
    with pytest.raises(ValueError, match=r"topology must be one of 'ring', .* did you mean 'ring'"):
        topology("rings", 4)


# Leaving


def test_a_ring_is_closed_again():
    assert edges(without(ring(5), [2])) == {(0, 1), (1, 3), (3, 4), (0, 4)}
    assert edges(without(ring(6), [2, 3, 5])) == {(0, 1), (1, 4), (0, 4)}
    assert edges(without(ring(4), [0, 2])) == {(1, 3)}
    shuffled = nx.cycle_graph([3, 0, 4, 1, 2])  # a ring whose order is not that of the ids
    assert edges(without(shuffled, [3])) == {(0, 4), (1, 4), (1, 2), (0, 2)}


def test_a_star_without_its_centre_is_a_path_in_id_order():
    assert edges(without(star(5), [0])) == {(1, 2), (2, 3), (3, 4)}
    assert edges(without(star(5), [3])) == {(0, 1), (0, 2), (0, 4)}


def test_a_graph_that_holds_together_gets_no_new_links():
    graph = complete(5)
    assert edges(without(graph, [1, 4])) == {(0, 2), (0, 3), (2, 3)}
    assert len(edges(graph)) == 10  # the graph asked about is left alone


def test_two_groups_who_met_through_those_who_left_get_one_link():
    """Triangles 0 1 2 and 5 6 7, joined by the chain 2 3 4 5: both of the chain leave, 2 meets 5."""
    graph = nx.Graph([(0, 1), (1, 2), (0, 2), (5, 6), (6, 7), (5, 7), (2, 3), (3, 4), (4, 5)])
    assert edges(without(graph, [4, 3])) == {(0, 1), (1, 2), (0, 2), (5, 6), (6, 7), (5, 7), (2, 5)}


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 14), st.floats(0.3, 0.9), st.integers(0, 1000), st.data())
def test_whoever_leaves_the_rest_stays_connected_with_as_few_links_as_possible(n, p, seed, data):
    graph = erdos_renyi(n, p, seed=seed)
    gone = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 2))
    rest = without(graph, gone)
    torn = graph.subgraph(set(graph) - gone)
    assert set(rest) == set(torn)
    assert nx.is_connected(rest)
    assert edges(torn) <= edges(rest)
    if not all(degree == 2 for _, degree in graph.degree):
        assert len(edges(rest)) - len(edges(torn)) == nx.number_connected_components(torn) - 1


@pytest.mark.parametrize(
    ("gone", "message"), [([7], "gone names client 7, but the clients are 0 to 3"), ([0, 1, 2], "gone leaves 1 of 4")]
)
def test_who_leaves_must_make_sense(gone, message):
    with pytest.raises(InvalidRequest, match=message):
        without(ring(4), gone)


# Mixing matrices


def test_ring_of_ten_has_the_known_eigenvalues():
    """1/3 + 2/3 cos(2 pi k / 10): the second is .8727 and rho .7616."""
    Q = metropolis(ring(10))
    expected = sorted((1 / 3 + 2 / 3 * math.cos(2 * math.pi * k / 10) for k in range(10)), reverse=True)
    torch.testing.assert_close(eigenvalues(Q), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    assert float(eigenvalues(Q)[1]) == pytest.approx(0.8727, abs=5e-5)
    assert rho(Q) == pytest.approx(0.7616, abs=5e-5)


def test_rho_is_of_the_eigenvalue_farthest_from_zero():
    """A ring of four that keeps 1/10: eigenvalues 1, .1, .1, -.8."""
    ring_of_four = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]], dtype=torch.float64)
    Q = 0.1 * torch.eye(4, dtype=torch.float64) + 0.45 * ring_of_four
    assert eigenvalues(Q).tolist() == pytest.approx([1, 0.1, 0.1, -0.8])
    assert rho(Q) == pytest.approx(0.64, rel=1e-12)
    assert rho(metropolis(complete(1))) == 0.0


def test_metropolis_weights_by_hand():
    """A path 0 - 1 - 2: both links touch client 1 with two links, so their weight is 1/3."""
    expected = torch.tensor([[2, 1, 0], [1, 1, 1], [0, 1, 2]], dtype=torch.float64) / 3
    torch.testing.assert_close(metropolis(nx.path_graph(3)), expected, rtol=1e-14, atol=1e-14)
    labelled = nx.relabel_nodes(star(4), {0: 9, 1: 2, 2: 5, 3: 7})  # rows follow the sorted labels 2, 5, 7, 9
    assert metropolis(labelled)[:, 3].tolist() == [0.25] * 4
    torch.testing.assert_close(metropolis(complete(5)), torch.full((5, 5), 0.2, dtype=torch.float64))
    assert metropolis(complete(1)).tolist() == [[1.0]]


@pytest.mark.parametrize("n", [9, 12, 16])
@every_topology
def test_mixing_matrices_satisfy_assumption_1(name, n):
    graph = topology(name, n)
    Q = metropolis(graph)
    ones = torch.ones(n, dtype=torch.float64)
    assert torch.equal(Q, Q.T)
    torch.testing.assert_close(Q.sum(dim=0), ones, rtol=1e-14, atol=0)
    torch.testing.assert_close(Q.sum(dim=1), ones, rtol=1e-14, atol=0)
    assert bool((Q.diagonal() > 0).all())
    support = {(i, j) for i, j in (Q > 0).nonzero().tolist() if i < j}
    assert support == edges(graph)
    assert links(Q) == 2 * graph.number_of_edges()
    check_mixing(Q)
    assert 0 <= rho(Q) < 1


@pytest.mark.parametrize("n", [9, 16])
@every_topology
def test_lemma_1_holds_and_is_tight(name, n):
    """|Q^k - 11'/N|^2 <= rho^k for k = 1, ..., 100, with equality, Q being symmetric."""
    Q = metropolis(topology(name, n))
    for k in range(1, 101):
        assert mixing_error(Q, k) <= rho(Q) ** k * (1 + 1e-10) + 1e-28
        assert mixing_error(Q, k) == pytest.approx(rho(Q) ** k, rel=1e-10, abs=1e-28)


@every_topology
def test_mixing_error_is_the_distance_of_the_power_from_averaging(name):
    """|Q^k - 11'/N|_2^2 as it is written, by singular values."""
    Q, power = metropolis(topology(name, 12)), torch.eye(12, dtype=torch.float64)
    for k in (1, 2, 3, 4):
        power = power @ Q
        expected = float(torch.linalg.svdvals(power - torch.full((12, 12), 1 / 12, dtype=torch.float64))[0]) ** 2
        assert mixing_error(Q, k) == pytest.approx(expected, rel=1e-10, abs=1e-28)


@every_topology
def test_a_sparse_mixing_matrix_is_the_dense_one(name):
    graph = topology(name, 12)
    Q, S = metropolis(graph), metropolis(graph, sparse=True)
    assert S.layout == torch.sparse_csr
    assert torch.equal(S.to_dense(), Q)
    check_mixing(S)
    assert (rho(S), links(S), mixing_error(S, 3)) == (rho(Q), links(Q), mixing_error(Q, 3))


@pytest.mark.parametrize(
    ("Q", "message"),
    [
        ([[0.5, 0.5]], r"shape \(N, N\), got \(1, 2\)"),
        ([[0.9, 0.1], [0.2, 0.8]], r"symmetric, but Q\[0, 1\] is 0.1 and Q\[1, 0\] is 0.2"),
        ([[0.5, 0.4], [0.4, 0.6]], "rows of Q must sum to 1, but row 0 sums to 0.9"),
        ([[1.5, -0.5], [-0.5, 1.5]], r"negative, but Q\[0, 1\] is -0.5"),
        ([[1.0, 0.0], [0.0, 1.0]], "rho must be < 1, but is 1"),
        ([[0.0, 1.0], [1.0, 0.0]], "rho must be < 1, but is 1"),  # swapping for ever is no mixing
        ([[float("nan"), 1.0], [1.0, 0.0]], "finite"),
    ],
)
def test_what_is_wrong_with_a_mixing_matrix_is_said(Q, message):
    with pytest.raises(TopologyError, match=message):
        check_mixing(torch.tensor(Q, dtype=torch.float64))


# Many clients: link by link


def lazy_ring(n, kept, *, sparse=True):
    """Everybody keeps `kept` and gives half of the rest to either side: eigenvalues kept + (1 - kept) cos(2 pi k/n)."""
    i = torch.arange(n)
    rows, columns = torch.cat([i, i, i]), torch.cat([i, (i + 1) % n, (i - 1) % n])
    weights = torch.tensor([kept, (1 - kept) / 2, (1 - kept) / 2], dtype=torch.float64).repeat_interleave(n)
    Q = torch.sparse_coo_tensor(torch.stack([rows, columns]), weights, (n, n))
    return Q.to_sparse_csr() if sparse else Q.to_dense()


def unread(*_):
    raise AssertionError("Q was read entry by entry")


@every_topology
def test_many_clients_have_the_numbers_of_few(name):
    """225 clients: rho and the smallest eigenvalue by Lanczos are those of the dense matrix."""
    graph = topology(name, 225, p=0.05)
    Q, S = metropolis(graph), metropolis(graph, sparse=True)
    exact = torch.linalg.eigvalsh(Q)
    farthest = float(exact[:-1].abs().max())
    for mixing in (Q, S):
        check_mixing(mixing)
        assert rho(mixing) == pytest.approx(farthest**2, rel=1e-9, abs=1e-12)
        assert smallest_eigenvalue(mixing) == pytest.approx(float(exact[0]), abs=2e-3)
        assert mixing_error(mixing, 3) == pytest.approx(farthest**6, rel=1e-8, abs=1e-28)
        assert links(mixing) == 2 * graph.number_of_edges()
    assert np.array_equal(sparse_entries(Q).toarray(), Q.numpy())
    assert np.array_equal(sparse_entries(S).toarray(), Q.numpy())


@pytest.mark.parametrize("kept", [1 / 3, 0.5, 1e-6])
def test_a_long_ring_has_its_closed_form(kept):
    """2000 clients whose eigenvalues crowd at both ends; who keeps next to nothing has the farthest at -1."""
    second, last = kept + (1 - kept) * math.cos(2 * math.pi / 2000), 2 * kept - 1
    Q = lazy_ring(2000, kept)
    assert rho(Q) == pytest.approx(max(second, -last) ** 2, rel=1e-9)
    assert smallest_eigenvalue(Q) == pytest.approx(last, abs=2e-3)
    check_mixing(Q)


@pytest.mark.parametrize("name", ["ring", "erdos_renyi", "torus"])
def test_mixing_among_thousands_is_checked_on_the_links_alone(name, monkeypatch):
    """No N x N matrix, no eigenvalues of one: neither in the check nor on the way of a federation there."""
    graph = topology(name, 2000, p=0.005)
    monkeypatch.setattr(torch.linalg, "eigvalsh", unread)
    monkeypatch.setattr(torch.Tensor, "to_dense", unread)
    peers = Peers(graph)
    check_mixing(peers.Q)
    assert peers.Q.layout == torch.sparse_csr
    assert peers.links == links(peers.Q) == 2 * graph.number_of_edges()


def test_peers_with_many_links_mix_densely():
    assert Peers(complete(200)).Q.layout == torch.strided
    assert Peers(ring(199)).Q.layout == torch.strided
    assert Peers(ring(200)).Q.layout == torch.sparse_csr


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({(0, 1): 0.4}, r"symmetric, but Q\[0, 1\] is 0.4 and Q\[1, 0\] is 0.333333"),
        ({(0, 0): 0.25}, "rows of Q must sum to 1, but row 0 sums to 0.916666667"),
        ({(0, 1): -0.5, (1, 0): -0.5}, r"negative, but Q\[0, 1\] is -0.5"),
        ({(7, 7): float("nan")}, "finite"),
        ({(7, 8): float("inf")}, "finite"),
    ],
)
def test_what_is_wrong_among_many_is_said_alike(sparse, changed, message):
    Q = lazy_ring(300, 1 / 3, sparse=False)
    for (i, j), value in changed.items():
        Q[i, j] = value
    with pytest.raises(TopologyError, match=message):
        check_mixing(Q.to_sparse_csr() if sparse else Q)


def test_whether_many_mix_is_a_matter_of_structure():
    """Two halves, or two sides that swap for ever, do not; an odd ring does, and one client that keeps a little."""
    halves = torch.block_diag(lazy_ring(150, 1 / 3, sparse=False), lazy_ring(150, 1 / 3, sparse=False))
    swapping, odd = lazy_ring(300, 0.0), lazy_ring(301, 0.0)
    for Q in (halves, swapping):
        assert rho(Q) == 1.0
        with pytest.raises(TopologyError, match="rho must be < 1, but is 1: repeated mixing"):
            check_mixing(Q)
    check_mixing(odd)
    assert rho(odd) == pytest.approx(math.cos(math.pi / 301) ** 2, rel=1e-9)
    keeps = swapping.to_dense()
    keeps[:2, :2] = torch.tensor([[0.25, 0.25], [0.25, 0.25]])  # of the half that they gave each other
    check_mixing(keeps)
    assert rho(keeps) < 1


def test_a_weight_that_is_rounding_is_no_link():
    """Two halves joined by 1e-12: numbers could not tell rho from 1, and structure must not."""
    Q = torch.block_diag(lazy_ring(150, 1 / 3, sparse=False), lazy_ring(150, 1 / 3, sparse=False))
    Q[0, 150] = Q[150, 0] = 1e-12
    with pytest.raises(TopologyError, match="rho must be < 1"):
        check_mixing(Q)
    Q[0, 150] = Q[150, 0] = 1e-3
    Q[0, 0] -= 1e-3
    Q[150, 150] -= 1e-3
    check_mixing(Q)


def test_what_lanczos_finds_is_the_same_every_time():
    Q = metropolis(topology("torus", 400), sparse=True)
    assert rho(Q) == rho(Q)
    assert smallest_eigenvalue(Q) == smallest_eigenvalue(Q)


def test_graphs_that_cannot_mix_are_refused():
    for graph in (nx.Graph([(0, 1), (2, 3)]), nx.empty_graph(2)):
        with pytest.raises(TopologyError, match="must be connected, but is in 2 parts"):
            metropolis(graph)
    with pytest.raises(TopologyError, match="undirected"):
        metropolis(nx.DiGraph([(0, 1)]))
    with pytest.raises(TopologyError, match="at least one client"):
        metropolis(nx.Graph())
    for refused in (lambda graph: Peers(graph).Q, lambda graph: Peers(graph).without([0])):
        with pytest.raises(TopologyError, match=r"one link at most between two clients, .* got a multigraph"):
            refused(nx.MultiGraph(ring(4)))
    with pytest.raises(TopologyError, match="in 2 parts"):
        without(nx.Graph([(0, 1), (2, 3)]), [0])


# Peers


def test_peers_mix_with_metropolis_weights_unless_somebody_brings_others():
    Q = torch.full((4, 4), 0.25, dtype=torch.float64)
    assert torch.equal(Peers(ring(4)).Q, metropolis(ring(4)))
    assert Peers(ring(4), mixing=Q).Q is Q


def test_who_stays_is_linked_anew_in_the_same_order_and_mixes_by_the_same_rule():
    peers = Peers(ring(5), "cta")
    rest = peers.without([2])
    assert (edges(rest.graph), rest.order) == ({(0, 1), (1, 3), (3, 4), (0, 4)}, "cta")
    assert torch.equal(rest.Q, metropolis(rest.graph))
    assert peers.without([]) is peers
    lazy = Peers(ring(5), "cta", lambda graph: (torch.eye(len(graph), dtype=torch.float64) + metropolis(graph)) / 2)
    assert smallest_eigenvalue(lazy.without([2]).Q) >= 0
    with pytest.raises(UnsupportedTask, match=r"mixing must be None or a rule, .* got a matrix of shape \(5, 5\)"):
        Peers(ring(5), mixing=lazy.Q).without([2])  # the mixture of five is none of four


def test_peers_know_two_orders():
    with pytest.raises(ValueError, match="order must be one of 'cta', 'atc', got 'mix'"):
        Peers(ring(4), "mix")
