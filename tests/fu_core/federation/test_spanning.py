"""Sums over a tree against plain sums; what a link carries against what it must not tell."""

import math

import networkx as nx
import numpy as np
import pytest
import torch

from fu_core.errors import InvalidRequest, NumericalFailure, TopologyError
from fu_core.federation.flood import flood
from fu_core.federation.graphs import TOPOLOGIES, metropolis, ring, star, topology
from fu_core.federation.spanning import Traffic, _pairs, masked_tree_sum, spanning_tree, tree_sum

every_topology = pytest.mark.parametrize("name", TOPOLOGIES)


def drawn(n, d=50, scale=1.0, dtype=torch.float64):
    """A vector for each of n clients."""
    g = torch.Generator().manual_seed(n)
    return {i: scale * torch.randn(d, generator=g, dtype=dtype) for i in range(n)}


# The tree


def test_a_path_is_summed_to_its_middle():
    """0 - 1 - 2 - 3 - 4: from client 2, two links to either end."""
    tree = spanning_tree(nx.path_graph(5))
    assert tree.order == (2, 1, 3, 0, 4)
    assert dict(tree.parents) == {1: 2, 3: 2, 0: 1, 4: 3}
    assert (tree.root, tree.depth) == (2, 2)
    assert (tree.collecting, tree.sharing) == (Traffic(4, 2), Traffic(8, 4))


def test_one_client_sums_by_itself():
    tree = spanning_tree(ring(1))
    assert (tree.order, tree.sharing) == ((0,), Traffic(0, 0))
    assert tree_sum(tree, {0: torch.ones(2)}).tolist() == [1, 1]
    assert masked_tree_sum(tree, {0: torch.ones(2)}, seed=0, number=0).tolist() == [1, 1]


@pytest.mark.parametrize("n", [9, 12, 16])
@every_topology
def test_every_client_is_in_the_tree_once_by_a_link_that_exists(name, n):
    graph = topology(name, n, seed=1)
    tree = spanning_tree(graph)
    assert sorted(tree.order) == list(range(n))
    assert all(graph.has_edge(i, parent) for i, parent in tree.parents.items())
    assert all(tree.order.index(parent) < tree.order.index(i) for i, parent in tree.parents.items())
    assert tree.depth == nx.eccentricity(graph, tree.root)  # breadth first: nobody is farther than it must be
    assert tree.depth <= nx.radius(graph) + 1
    assert spanning_tree(metropolis(graph)) == spanning_tree(metropolis(graph, sparse=True)) == tree


@pytest.mark.parametrize("seed", range(5))
def test_the_centre_of_a_tree_is_exact(seed):
    graph = nx.random_labeled_tree(40, seed=seed)
    assert spanning_tree(graph).depth == nx.radius(graph)


def test_clients_keep_their_names():
    graph = nx.relabel_nodes(star(4), {0: 9, 1: 2, 2: 5, 3: 7})
    tree = spanning_tree(graph)
    assert (tree.root, dict(tree.parents)) == (9, {2: 9, 5: 9, 7: 9})


def test_who_is_not_linked_is_named():
    with pytest.raises(TopologyError, match="linked must be connected, but client 2 is not linked to client "):
        spanning_tree(nx.Graph([(0, 1), (2, 3)]))
    with pytest.raises(TopologyError, match="at least one client, got none"):
        spanning_tree(nx.Graph())


def test_a_tree_costs_far_less_than_flooding():
    """A ring of 50: 98 vectors for everybody's sum, against 50 (100 - 49) = 2550."""
    Q = metropolis(ring(50))
    assert spanning_tree(Q).sharing == Traffic(98, 50)
    assert flood(Q, range(50)).messages == 2550


def test_ten_thousand_clients_have_a_tree():
    tree = spanning_tree(metropolis(ring(10_000), sparse=True))
    assert tree.collecting == Traffic(9999, 5000)
    assert float(tree_sum(tree, {i: torch.tensor(1.0) for i in range(10_000)})) == 10_000


# The sum


@every_topology
def test_a_tree_sums_what_there_is(name):
    tree, parts = spanning_tree(topology(name, 12)), drawn(12)
    plain = torch.stack(list(parts.values())).sum(dim=0)
    torch.testing.assert_close(tree_sum(tree, parts), plain, rtol=1e-13, atol=1e-13)


def test_a_sum_is_the_trees_whoever_asks_and_leaves_the_parts_alone():
    """The order of the mapping does not matter, to the last bit; by hand 2 + ((1 + 0)) + (3 + 4) along a path."""
    tree, parts = spanning_tree(nx.path_graph(5)), drawn(5, dtype=torch.float32)
    before = {i: part.clone() for i, part in parts.items()}
    forth, back = tree_sum(tree, parts), tree_sum(tree, dict(reversed(parts.items())))
    by_hand = (parts[2] + (parts[3] + parts[4])) + (parts[1] + parts[0])
    assert torch.equal(forth, back)
    assert torch.equal(forth, by_hand)
    assert forth.dtype == torch.float32
    assert all(torch.equal(parts[i], before[i]) for i in parts)


def test_who_has_no_part_passes_on():
    tree, part = spanning_tree(nx.path_graph(5)), torch.tensor([1.5])
    total = tree_sum(tree, {4: part, 0: part})
    assert total.tolist() == [3.0]
    alone = tree_sum(tree, {4: part})
    alone += 1  # is no view of what client 4 holds
    assert part.tolist() == [1.5]
    assert masked_tree_sum(tree, {4: part, 0: part}, seed=0, number=0).tolist() == [3.0]


@pytest.mark.parametrize("total", [tree_sum, lambda tree, parts: masked_tree_sum(tree, parts, seed=0, number=0)])
def test_parts_that_do_not_fit_are_refused(total):
    tree = spanning_tree(ring(4))
    with pytest.raises(InvalidRequest, match="parts must hold a vector of at least one client, got none"):
        total(tree, {})
    with pytest.raises(InvalidRequest, match="parts names client 7, but the tree's are 0 to 3"):
        total(tree, {7: torch.ones(1)})
    with pytest.raises(ValueError, match=r"one shape, but client 2's is \(3,\), client 0's \(2,\)"):
        total(tree, {0: torch.ones(2), 2: torch.ones(3)})


# The masked sum


@pytest.mark.parametrize("partners", [None, 2, 4])
@every_topology
def test_a_masked_sum_is_the_plain_one_to_its_resolution(name, partners):
    """Every part is rounded to 2^-20, so that 12 of them are off by 12 / 2^21 at most."""
    tree, parts = spanning_tree(topology(name, 12)), drawn(12)
    total = masked_tree_sum(tree, parts, seed=0, number=0, bits=20, partners=partners)
    plain = torch.stack(list(parts.values())).sum(dim=0)
    assert float((total - plain).abs().max()) <= 12 * 2.0**-21
    assert float((total - plain).abs().max()) > 2.0**-30  # it is rounded


def test_a_masked_sum_is_exactly_that_of_the_rounded_parts():
    tree, parts = spanning_tree(ring(7)), drawn(7, scale=1000)
    total = masked_tree_sum(tree, parts, seed=3, number=1, bits=24)
    rounded = sum((part * 2**24).round().long() for part in parts.values())
    assert torch.equal(total, rounded.double() / 2**24)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_single_numbers_have_a_sum_too(dtype):
    parts = {i: torch.tensor(1.5 * i, dtype=dtype) for i in range(5)}
    for total in (tree_sum(spanning_tree(ring(5)), parts), carried(parts, seed=0)[0]):
        assert torch.equal(total, torch.tensor(15.0, dtype=dtype))


def carried(parts, seed, number=0, partners=None, graph=None):
    """Total and, by sender and receiver, what each link carried."""
    links = {}
    tree = spanning_tree(ring(len(parts)) if graph is None else graph)
    total = masked_tree_sum(
        tree, parts, seed=seed, number=number, partners=partners, on_link=lambda i, j, y: links.update({(i, j): y})
    )
    assert set(links) == {(i, parent) for i, parent in tree.parents.items() if i in parts}
    return total, {link: y.copy() for link, y in links.items()}


@pytest.mark.parametrize("partners", [None, 2])
def test_other_masks_change_all_that_is_sent_and_nothing_that_comes_out(partners):
    parts = drawn(8)
    total, links = carried(parts, seed=0, partners=partners)
    for seed, number in ((1, 0), (0, 1)):
        again, others = carried(parts, seed, number, partners)
        assert torch.equal(again, total)
        assert all((others[link] != y).all() for link, y in links.items())


def test_what_a_link_carries_is_uniform():
    """Parts of all zeros: the top byte of what is sent takes its 256 values alike (chi-squared, 255 degrees)."""
    _, links = carried({i: torch.zeros(20_000) for i in range(6)}, seed=0)
    for y in links.values():
        for shift in (0, 56):
            counts = np.bincount((y >> np.uint64(shift)).astype(np.int64) & 255, minlength=256)
            chi_squared = float(((counts - y.size / 256) ** 2 / (y.size / 256)).sum())
            assert abs(chi_squared - 255) < 5 * math.sqrt(2 * 255)


def test_a_parent_cannot_take_a_childs_mask_off():
    """Nor can all but two clients together: what remains of the masks between the two hides either part."""
    parts, graph = {i: torch.zeros(1000) for i in range(6)}, star(6)
    _, links = carried(parts, seed=0, graph=graph)
    known = np.zeros(1000, dtype=np.uint64)  # of client 1's masks, those shared with 0, 3, 4, 5
    for j in (0, 3, 4, 5):
        _, without = carried({i: parts[i] for i in (1, j)}, seed=0, graph=graph)
        known += without[(1, 0)]  # two alone share one mask, and zero parts show it
    left = links[(1, 0)] - known
    assert (left != 0).all()
    _, shared = carried({i: parts[i] for i in (1, 2)}, seed=0, graph=graph)
    assert np.array_equal(left, shared[(1, 0)])  # the mask between 1 and 2, which nobody else has


@pytest.mark.parametrize(("n", "partners"), [(9, 2), (9, 4), (10, 6), (5, 4), (6, 8)])
def test_fewer_than_partners_cannot_part_the_others(n, partners):
    pairs = list(_pairs(range(n), partners))
    assert len(pairs) == len(set(pairs)) == min(n * partners // 2, n * (n - 1) // 2)
    assert nx.node_connectivity(nx.Graph(pairs)) == min(partners, n - 1)


@pytest.mark.parametrize("value", [2.0**31 / 4, -(2.0**31), float("nan"), float("inf")])
def test_a_part_that_could_overflow_is_refused_by_name(value):
    """Four parts of 32 bits behind the point: each below 2^31 / 4."""
    tree, parts = spanning_tree(ring(4)), {i: torch.zeros(2, dtype=torch.float64) for i in range(4)}
    parts[2][1] = value
    with pytest.raises(
        NumericalFailure, match=r"client 2: its part reaches .* bits=32 .* below 5.37e\+08.* lower bits"
    ):
        masked_tree_sum(tree, parts, seed=0, number=0)


def test_the_largest_parts_that_are_allowed_do_not_overflow():
    tree, largest = spanning_tree(ring(4)), 2.0**29 - 1
    for sign in (1, -1):
        parts = {i: torch.tensor([sign * largest], dtype=torch.float64) for i in range(4)}
        assert masked_tree_sum(tree, parts, seed=0, number=0).tolist() == [4 * sign * largest]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"bits": -1}, "bits must be a whole number >= 0, got -1"),
        ({"bits": 63}, "bits must be at most 62, one is for the sign, got 63"),
        ({"partners": 0}, "partners must be a whole number >= 2, got 0"),
        ({"partners": 3}, "partners must be even, .* got 3"),
    ],
)
def test_masks_that_make_no_sense_are_refused(field, message):
    with pytest.raises(ValueError, match=message):
        masked_tree_sum(spanning_tree(ring(4)), drawn(4), seed=0, number=0, **field)
