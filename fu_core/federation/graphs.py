"""Who is linked to whom, and how neighbours mix their models.

Metropolis and Hastings' weights on a connected graph, for models X (N, d) as rows of a matrix:

    Q_ij = 1 / (1 + max(deg_i, deg_j)) on links,  Q_ii = 1 - sum_j Q_ij

Q (N, N) is symmetric and doubly stochastic, zero where there is no link. Mixing X <- Q X converges at the rate
rho = max(|rho_2|, |rho_N|)^2 < 1 (Wu et al., Assumption 1) of Q's eigenvalues: |Q^k - 11'/N|_2^2 <= rho^k (Lemma 1).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, TopologyError, check_choice, check_count, listed
from fu_core.streams import numpy_stream

ORDERS = ("cta", "atc")
ATTEMPTS = 1000  # draws of a random graph before giving up


# Graphs, with the clients 0, ..., n - 1 as nodes


def ring(n: int) -> nx.Graph:
    """Client i is linked to i - 1 and i + 1; two clients share one link."""
    graph = complete(n) if n == 2 else _unlinked(n)
    if n > 2:
        nx.add_cycle(graph, range(n))
    return graph


def complete(n: int) -> nx.Graph:
    """Everybody is linked to everybody: Metropolis' weights are 1/n, which is a server's average."""
    graph = _unlinked(n)
    graph.add_edges_from((i, j) for i in range(n) for j in range(i))
    return graph


def star(n: int) -> nx.Graph:
    """Everybody is linked to client 0 alone."""
    graph = _unlinked(n)
    graph.add_edges_from((0, i) for i in range(1, n))
    return graph


def torus(n: int) -> nx.Graph:
    """A grid of a x b clients, as square as n = a b allows, whose opposite sides meet: four links each.

    Raises `ValueError` unless n is a product of two numbers >= 3; on shorter sides two links would coincide.
    """
    check_count("n", n)
    a = next((a for a in range(math.isqrt(n), 2, -1) if n % a == 0), 0)
    if a == 0:
        raise ValueError(f"n must be a product of two numbers >= 3 for a torus (9, 12, 15, 16, ...), got {n}")
    b = n // a
    graph = _unlinked(n)
    for i in range(n):
        row, column = divmod(i, b)
        graph.add_edges_from([(i, row * b + (column + 1) % b), (i, (row + 1) % a * b + column)])
    return graph


def erdos_renyi(n: int, p: float, *, seed: int) -> nx.Graph:
    """G(n, p): each of the n (n - 1) / 2 links exists with probability p; drawn again until connected.

    Random: links, from the streams `(seed, "erdos renyi", attempt)`. Raises `TopologyError` after 1000
    attempts, `ValueError` for p outside (0, 1].
    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be in (0, 1], got {p!r}")
    graph = _unlinked(n)
    for attempt in range(ATTEMPTS):
        draws = numpy_stream(seed, "erdos renyi", attempt).random((n, n))
        i, j = np.triu(draws < p, k=1).nonzero()
        graph.add_edges_from(zip(i.tolist(), j.tolist(), strict=True))
        if nx.is_connected(graph):
            return graph
        graph.remove_edges_from(list(graph.edges))
    raise TopologyError(
        f"p = {p}: none of {ATTEMPTS} random graphs on {n} clients was connected; most are above "
        f"p = ln(n) / n = {math.log(n) / n:.2g}"
    )


TOPOLOGIES: dict[str, Callable[..., nx.Graph]] = {
    "ring": ring,
    "erdos_renyi": erdos_renyi,
    "complete": complete,
    "star": star,
    "torus": torus,
}


def topology(name: str, n: int, *, p: float = 0.4, seed: int = 0) -> nx.Graph:
    """The graph `name` of `TOPOLOGIES` on n clients; `p` and `seed` are for "erdos_renyi" (Wu et al. give no p)."""
    check_choice("topology", name, TOPOLOGIES)
    return erdos_renyi(n, p, seed=seed) if name == "erdos_renyi" else TOPOLOGIES[name](n)


def without(graph: nx.Graph, gone: Collection[int]) -> nx.Graph:
    """The graph after the clients `gone` have left, still connected; the others keep their labels.

    A ring is closed again. In any other graph the former neighbours of those who left are linked in the
    order of their ids, with no more links than it takes to hold the graph together. Deterministic. Raises
    `InvalidRequest` for unknown clients or if fewer than two stay, `TopologyError` if `graph` is not connected.
    """
    _check_connected(graph)
    left = set(gone)
    if unknown := sorted(left - set(graph)):
        raise InvalidRequest(f"gone names client {unknown[0]}, but the clients are {listed(graph)}")
    if len(graph) - len(left) < 2:
        raise InvalidRequest(f"gone leaves {len(graph) - len(left)} of {len(graph)} clients; at least 2 must stay")
    rest = graph.subgraph(set(graph) - left).copy()
    if all(degree == 2 for _, degree in graph.degree):  # a connected graph with two links each is a ring
        nx.add_cycle(rest, [i for i in nx.dfs_preorder_nodes(graph) if i in rest])
        return rest
    for group in sorted(nx.connected_components(graph.subgraph(left)), key=min):  # neighbours who left together
        rim = sorted({j for i in group for j in graph[i]} - left)
        for i, j in pairwise(rim):
            if not nx.has_path(rest, i, j):
                rest.add_edge(i, j)
    return rest


# Mixing matrices


def metropolis(graph: nx.Graph, *, sparse: bool = False) -> Tensor:
    """Metropolis and Hastings' weights Q (N, N), float64, rows in the order of the sorted node labels.

    `sparse` gives a CSR matrix, for hundreds of clients with few links. Raises `TopologyError` if `graph`
    is not connected.
    """
    _check_connected(graph)
    n, row = len(graph), {node: k for k, node in enumerate(sorted(graph))}
    links = torch.tensor([(row[i], row[j]) for i, j in graph.edges if i != j], dtype=torch.long).view(-1, 2)
    degree = links.flatten().bincount(minlength=n)
    weight = 1 / (1 + degree[links].amax(dim=1).double()) if len(links) else torch.zeros(0, dtype=torch.float64)
    i, j = torch.cat([links, links.flip(1)]).T  # both directions
    weight = weight.repeat(2)
    kept = 1 - torch.zeros(n, dtype=torch.float64).index_add_(0, i, weight)  # Q_ii = 1 - sum_j Q_ij
    if not sparse:
        Q = torch.diag(kept)
        Q[i, j] = weight
        return Q
    diagonal = torch.arange(n)
    index = torch.stack([torch.cat([i, diagonal]), torch.cat([j, diagonal])])
    with warnings.catch_warnings():  # torch calls its CSR matrices beta; a product with one is all we ask of them
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_coo_tensor(index, torch.cat([weight, kept]), (n, n)).to_sparse_csr()


def check_mixing(Q: Tensor) -> None:
    """Raise `TopologyError` unless Q (N, N) is symmetric, >= 0, its rows sum to 1 and rho < 1 (Assumption 1)."""
    if Q.dim() != 2 or Q.shape[0] != Q.shape[1] or not len(Q):
        raise TopologyError(f"Q must have shape (N, N), got {tuple(Q.shape)}")
    slack = 1e-9 if Q.dtype == torch.float64 else 1e-6
    dense = _dense(Q)
    if not bool(dense.isfinite().all()):
        raise TopologyError("Q must be finite, but has NaN or infinity")
    if (dense < 0).any():
        i, j = (dense < 0).nonzero()[0].tolist()
        raise TopologyError(f"Q must not be negative, but Q[{i}, {j}] is {dense[i, j]:.6g}")
    apart = (dense - dense.T).abs()
    if apart.max() > slack:
        i, j = divmod(int(apart.argmax()), len(dense))
        raise TopologyError(
            f"Q must be symmetric, but Q[{i}, {j}] is {dense[i, j]:.6g} and Q[{j}, {i}] is {dense[j, i]:.6g}"
        )
    sums = dense.sum(dim=1)
    if (sums - 1).abs().max() > slack:
        i = int((sums - 1).abs().argmax())
        raise TopologyError(f"the rows of Q must sum to 1, but row {i} sums to {sums[i]:.9g}")
    rate = rho(dense)
    if rate >= 1 - slack:
        raise TopologyError(
            f"rho must be < 1, but is {rate:.9g}: repeated mixing with Q does not reach everybody alike"
        )


def eigenvalues(Q: Tensor) -> Tensor:
    """The eigenvalues (N,) of a symmetric Q (N, N), in float64, largest first."""
    return torch.linalg.eigvalsh(_dense(Q)).flip(0)


def rho(Q: Tensor) -> float:
    """`max(|rho_2|, |rho_N|)^2` of Q (N, N) (Assumption 1); 0 for a single client."""
    return float(eigenvalues(Q)[1:].abs().max()) ** 2 if len(Q) > 1 else 0.0


def mixing_error(Q: Tensor, k: int) -> float:
    """`|Q^k - 11'/N|_2^2`, the left side of Lemma 1 (k >= 1): how far k rounds of mixing are from averaging.

    Taken as `|(Q - 11'/N)^k|_2^2`, the same for a doubly stochastic Q, without the cancellation at large k.
    """
    return float(torch.linalg.matrix_norm(torch.linalg.matrix_power(_dense(Q) - 1 / len(Q), k), ord=2)) ** 2


def links(Q: Tensor) -> int:
    """Nonzero entries of Q off its diagonal, 2|E| of its graph: the vectors sent in one round."""
    entries = Q.to_sparse_coo().coalesce()
    i, j = entries.indices()
    return int(((i != j) & (entries.values() != 0)).sum())


@dataclass(frozen=True)
class Peers:
    """An exchange without a server: who is linked to whom, and when models are mixed.

    graph: connected, with client ids as nodes; order: "cta" takes the local step before mixing, which leaves it out of
    the mixture, "atc" mixes it, too; mixing: Q (N, N), dense or CSR, rows in the order of the sorted ids, in place of
    Metropolis' weights.
    """

    graph: nx.Graph
    order: str = "cta"
    mixing: Tensor | None = None

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)

    @cached_property
    def Q(self) -> Tensor:
        """The mixing matrix (N, N), float64."""
        return metropolis(self.graph) if self.mixing is None else self.mixing

    def without(self, gone: Collection[int]) -> Peers:
        """Those who stay once the clients `gone` have left, on a graph that is still connected; see `without`."""
        return Peers(without(self.graph, gone), self.order) if gone else self


# Helpers


def _unlinked(n: int) -> nx.Graph:
    check_count("n", n)
    return nx.empty_graph(n)


def _dense(Q: Tensor) -> Tensor:
    return Q.to_dense().double()


def _check_connected(graph: nx.Graph) -> None:
    if graph.is_directed() or not len(graph):
        raise TopologyError("the graph must be undirected and have at least one client")
    if not nx.is_connected(graph):
        parts = sorted(nx.connected_components(graph), key=min)
        raise TopologyError(
            f"the graph must be connected, but is in {len(parts)} parts: client {min(parts[1])} is not linked "
            f"to client {min(parts[0])}"
        )
