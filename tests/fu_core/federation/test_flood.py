"""Flooding against a simulation, message by message."""

from collections import deque

import networkx as nx
import numpy as np
import pytest

from fu_core.errors import TopologyError
from fu_core.federation.flood import flood
from fu_core.federation.graphs import metropolis, ring, topology


def simulated(graph, source):
    """Message by message: forwarded when first heard, to all neighbours but the sender."""
    heard, sent, queue = {source: 0}, 0, deque([(source, None)])
    applied = dict.fromkeys(graph, 0)
    applied[source] = 1
    while queue:
        client, sender = queue.popleft()
        for neighbour in graph[client]:
            if neighbour == sender:
                continue
            sent += 1
            if neighbour not in heard:
                heard[neighbour] = heard[client] + 1
                applied[neighbour] += 1
                queue.append((neighbour, client))
    return heard, sent, applied


@pytest.mark.parametrize("name", ["ring", "erdos_renyi", "complete", "star", "torus"])
def test_flooding_reaches_everybody_once_with_2e_minus_n_plus_1_messages(name):
    graph = topology(name, 12, seed=1)
    spread = flood(metropolis(graph), [0, 7])
    for row, source in enumerate((0, 7)):
        heard, sent, applied = simulated(graph, source)
        assert [heard[i] for i in range(12)] == spread.hops[row].tolist()
        assert set(applied.values()) == {1}
        assert sent == 2 * graph.number_of_edges() - 11
    assert spread.messages == 2 * (2 * graph.number_of_edges() - 11)


def test_a_lost_message_is_made_good_by_a_cycle_and_an_error_without_one():
    around = flood(metropolis(ring(6)), [0], lost=[(0, 1)])
    assert around.hops[0].tolist() == [0, 5, 4, 3, 2, 1]
    with pytest.raises(TopologyError, match="client 2 never received the message of client 0"):
        flood(metropolis(nx.path_graph(4)), [0], lost=[(1, 2)])


def test_sparse_mixing_matrices_flood_alike():
    graph = topology("torus", 12)
    dense, sparse = (flood(metropolis(graph, sparse=s), [3]) for s in (False, True))
    assert np.array_equal(dense.hops, sparse.hops)
    assert dense.messages == sparse.messages


def test_flooding_reads_links_alone(monkeypatch):
    """On a ring of 2000 the last to hear is 1000 links away; nothing of N x N is made."""
    monkeypatch.setattr("torch.Tensor.to_dense", None)
    spread = flood(metropolis(ring(2000), sparse=True), [5])
    assert (int(spread.hops.max()), spread.messages) == (1000, 2 * 2000 - 1999)


def test_whoever_keeps_nothing_floods_all_the_same():
    """A ring of four without a diagonal has the links of one with it."""
    Q = metropolis(ring(4))
    swapping = Q - 1 / 3 * Q.new_ones(4).diag()
    assert flood(swapping, [0]).messages == flood(Q, [0]).messages == 2 * 4 - 3
