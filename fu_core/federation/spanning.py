"""Sums over a spanning tree: what all clients must know of each other's vectors, for as few vectors as it takes.

Everybody adds what its children sent to its own vector and sends the partial sum to its parent; the root's is the
total, and goes back down. With N clients, and D links from the root to the farthest:

    up       N - 1 vectors        D rounds of latency        one client knows the total
    down     N - 1 vectors        D rounds                   everybody does

against N (2|E| - (N - 1)) vectors if every client floods its own (`flood`). A partial sum tells a parent what
its subtree holds, of a leaf everything. `masked_tree_sum` hides that (Bonawitz et al., CCS 2017): each pair (i, j) of
clients, i < j, shares a vector m_ij that is uniform on the integers modulo 2^64, and what client i puts in is

    y_i = round(2^bits x_i) + sum_{j > i} m_ij - sum_{j < i} m_ji    mod 2^64
    sum_i y_i = sum_i round(2^bits x_i)                              mod 2^64: every mask is added and subtracted once

Who learns what, of clients that follow the protocol and remember all they see. A coalition knows its own parts and
masks, what crosses its own links, and the total. The y_i of the others are uniform given their sums over each connected
part of what the coalition leaves of the mask graph, in which clients with a common mask are linked. Hence it learns
those sums at most. With a mask for every pair, the default, that is one sum, the total of the others, whatever the
coalition and wherever it sits in the tree; a client that is alone against all others has no secret, and nor has one of
two. With `partners` = k masks per client a coalition of fewer than k still learns no more; k and more can cut
the circle of clients into arcs, whose sums it may learn. One mask per link of the tree would hide nothing: a parent
knows the only mask that its child's partial sum carries.

The masks are drawn from the seed of the simulation; between real clients a key agreement makes them. Nobody may drop
out: without one client's part its masks stay in the sum, and the shares that repair this are not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx
import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, TopologyError, check_count, listed
from fu_core.federation.graphs import sparse_entries
from fu_core.streams import numpy_stream

WORD = 64  # bits of the integers that are masked
OnLink = Callable[[int, int, np.ndarray], None]  # sender, receiver, the vector (d,) of uint64 between them


class Traffic(NamedTuple):
    """vectors: sent in all, each over one link; rounds: of latency, one link after the other."""

    vectors: int
    rounds: int


@dataclass(frozen=True)
class Tree:
    """Who sends to whom. order: the root, then everybody after its parent; parents: of all but the root; depth: links
    from the root to the farthest client."""

    order: tuple[int, ...]
    parents: Mapping[int, int]
    depth: int

    @property
    def root(self) -> int:
        """The client where the total is known first."""
        return self.order[0]

    @property
    def collecting(self) -> Traffic:
        """What a sum costs that the root alone shall know."""
        return Traffic(len(self.parents), self.depth)

    @property
    def sharing(self) -> Traffic:
        """What a sum costs that everybody shall know: up the tree and down again."""
        return Traffic(2 * len(self.parents), 2 * self.depth)


def spanning_tree(linked: nx.Graph | Tensor) -> Tree:
    """A breadth-first tree of a graph, or of the graph under a mixing matrix Q (N, N), from a centre.

    The centre is the middle of a long shortest path, found by two sweeps: of least eccentricity on a tree, and about so
    in general. Nodes are the graph's, or the rows of Q. Deterministic. Raises `TopologyError` if somebody is not
    linked.
    """
    if isinstance(linked, Tensor):
        names: Sequence[int] = range(len(linked))
        links = sparse_entries(linked)
    else:
        names = sorted(linked)
        links = csr_array(nx.to_scipy_sparse_array(linked, nodelist=names, weight=None)) if names else csr_array((0, 0))
        links.sort_indices()
    if not names:
        raise TopologyError("linked must have at least one client, got none")
    order, before = breadth_first_order(links, _centre(links), directed=False)
    if len(order) < len(names):
        lost = names[min(set(range(len(names))) - set(order.tolist()))]
        raise TopologyError(f"linked must be connected, but client {lost} is not linked to client {names[order[0]]}")
    parents = {names[k]: names[before[k]] for k in order[1:].tolist()}
    return Tree(tuple(names[k] for k in order.tolist()), parents, int(_hops(order, before).max()))


def tree_sum(tree: Tree, parts: Mapping[int, Tensor]) -> Tensor:
    """The sum of the clients' `parts`, all of one shape, in the order in which they meet on their way to the root.

    Whoever has no part passes on what it gets. The order is the tree's, whatever that of the mapping: the same bits for
    all. Partial sums have the dtype of the parts, as what is sent. Raises `InvalidRequest` for parts of nobody
    or of a client outside the tree, `ValueError` for shapes that differ.
    """
    _check_parts(tree, parts)
    sums = dict(parts)
    for client in reversed(tree.order[1:]):  # children before their parents
        if client in sums:
            partial, parent = sums.pop(client), tree.parents[client]
            sums[parent] = sums[parent] + partial if parent in sums else partial
    return sums[tree.root].clone()


def masked_tree_sum(
    tree: Tree,
    parts: Mapping[int, Tensor],
    *,
    seed: int,
    number: int,
    bits: int = 32,
    partners: int | None = None,
    on_link: OnLink | None = None,
) -> Tensor:
    """`tree_sum` to a resolution of 2^-bits, over links that carry nothing but masked sums, 8 bytes a number.

    Exact once rounded: the same bits whatever the masks. number: of this sum, since masks must not serve twice;
    partners: with how many others each client shares a mask, an even number, or None for all of them, N (N - 1) / 2
    masks; who learns what then: see the module. `on_link(sender, receiver, vector)` sees what goes up; it must
    change nothing.

    Random: masks, from the streams (seed, "pair mask", number, i, j). Raises as `tree_sum`, `ValueError` for bits
    or partners out of range, `NumericalFailure` naming the client whose part is not finite or could overflow the sum.
    """
    _check_parts(tree, parts)
    check_count("bits", bits, least=0)
    if bits >= WORD - 1:
        raise ValueError(f"bits must be at most {WORD - 2}, one is for the sign, got {bits}")
    if partners is not None:
        check_count("partners", partners, least=2)
        if partners % 2:
            raise ValueError(f"partners must be even, as many on either side of a client, got {partners}")
    clients = sorted(parts)
    sums = {i: _as_integers(parts[i], i, bits, len(clients)) for i in clients}
    for i, j in _pairs(clients, partners):
        mask = numpy_stream(seed, "pair mask", number, i, j).integers(2**WORD, size=sums[i].shape, dtype=np.uint64)
        sums[i] += mask
        sums[j] -= mask
    for client in reversed(tree.order[1:]):
        if client in sums:
            partial, parent = sums.pop(client), tree.parents[client]
            if on_link is not None:
                on_link(client, parent, partial)
            sums[parent] = sums[parent] + partial if parent in sums else partial
    total = sums[tree.root].view(np.int64).astype(np.float64) * 2.0**-bits
    return torch.from_numpy(total).to(parts[clients[0]]).view(parts[clients[0]].shape)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _centre(links: csr_array) -> int:
    """The middle of a shortest path from one end of the graph, the farthest from node 0, to the node farthest from it.

    Of an even number of nodes the one nearer the second end.
    """
    end = breadth_first_order(links, 0, directed=False, return_predecessors=False)[-1]
    order, before = breadth_first_order(links, end, directed=False)
    path = [int(order[-1])]
    while path[-1] != end:
        path.append(int(before[path[-1]]))
    return path[(len(path) - 1) // 2]


def _hops(order: np.ndarray, before: np.ndarray) -> np.ndarray:
    """How many links each node is from the first of `order`, in which parents, `before`, precede their children."""
    hops = np.zeros(len(before), dtype=np.int64)
    for k in order[1:]:
        hops[k] = hops[before[k]] + 1
    return hops


def _check_parts(tree: Tree, parts: Mapping[int, Tensor]) -> None:
    if not parts:
        raise InvalidRequest("parts must hold a vector of at least one client, got none")
    if unknown := sorted(set(parts) - set(tree.order)):
        raise InvalidRequest(f"parts names client {unknown[0]}, but the tree's are {listed(tree.order)}")
    first = min(parts)
    for i in sorted(parts):
        if parts[i].shape != parts[first].shape:
            shapes = f"{tuple(parts[i].shape)}, client {first}'s {tuple(parts[first].shape)}"
            raise ValueError(f"parts must have one shape, but client {i}'s is {shapes}")


def _as_integers(part: Tensor, client: int, bits: int, clients: int) -> np.ndarray:
    """round(2^bits part), modulo 2^64 as uint64; small enough for a sum of as many `clients`.

    A single number is a vector of one: NumPy computes with it as a number otherwise, which must not overflow.
    """
    scaled = np.rint(np.atleast_1d(part.detach().cpu().double().numpy()) * 2.0**bits)
    largest = float(np.abs(scaled).max(initial=0.0))
    if not largest < 2.0 ** (WORD - 1) / clients:  # also for NaN
        reach = f"{largest * 2.0**-bits:.3g}" if math.isfinite(largest) else "NaN or infinity"
        raise NumericalFailure(
            f"client {client}: its part reaches {reach}, but with bits={bits} each of {clients} parts must stay below "
            f"{2.0 ** (WORD - 1 - bits) / clients:.3g}, or the sum overflows {WORD} bits; lower bits"
        )
    return scaled.astype(np.int64).view(np.uint64)


def _pairs(clients: Sequence[int], partners: int | None) -> Iterator[tuple[int, int]]:
    """Who shares a mask, (i, j) with i < j: all, or each client with its neighbours on a circle in the clients' order.

    The circle with links to `partners` / 2 on either side falls apart only if that many clients are taken out.
    """
    n = len(clients)
    if partners is None or partners >= n - 1:
        yield from ((i, j) for k, i in enumerate(clients) for j in clients[k + 1 :])
        return
    for k in range(n):
        for step in range(1, partners // 2 + 1):
            i, j = clients[k], clients[(k + step) % n]
            yield min(i, j), max(i, j)
