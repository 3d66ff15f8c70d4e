"""Who is linked to whom, and how neighbours mix their models.

Metropolis and Hastings' weights on a connected graph, for models X (N, d) as rows of a matrix:

    Q_ij = 1 / (1 + max(deg_i, deg_j)) on links,  Q_ii = 1 - sum_j Q_ij

Q (N, N) is symmetric and doubly stochastic, zero where there is no link. Mixing X <- Q X converges at the rate
rho = max(|rho_2|, |rho_N|)^2 < 1 (Wu et al., Assumption 1) of Q's eigenvalues: |Q^k - 11'/N|_2^2 <= rho^k (Lemma 1).

For a Q that is symmetric, >= 0 and whose rows sum to 1, rho < 1 is a matter of structure (Perron and Frobenius):

    rho_2 < 1     if and only if Q's graph is connected
    rho_N > -1    if and only if moreover some Q_ii > 0, or the graph is not bipartite

Fewer than `DENSE_BELOW` clients have all eigenvalues computed; for more, structure says whether rho < 1, and Lanczos
on the links, whose last digits may be wrong, only by how much.
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
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from fu_core.errors import InvalidRequest, TopologyError, UnsupportedTask, check_choice, check_count, listed
from fu_core.streams import numpy_stream

ORDERS = ("cta", "atc")
ATTEMPTS = 1000  # draws of a random graph before giving up
DENSE_BELOW = 200  # clients; for more, Q is read link by link: all eigenvalues cost N^3
RESTARTS = 25  # of Lanczos, 40 products each, before a factorisation is tried
FEW_LINKS = 0.1  # of all N^2 entries: a product with a fuller Q is faster if it is dense


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
    """Raise `TopologyError` unless Q (N, N) is symmetric, >= 0, its rows sum to 1 and rho < 1 (Assumption 1).

    From `DENSE_BELOW` clients on, rho < 1 is decided by Q's structure, to which a weight within rounding of 0, 1e-9 (in
    float32 1e-6), is no link.
    """
    if Q.dim() != 2 or Q.shape[0] != Q.shape[1] or not len(Q):
        raise TopologyError(f"Q must have shape (N, N), got {tuple(Q.shape)}")
    slack = 1e-9 if Q.dtype == torch.float64 else 1e-6
    entries = sparse_entries(Q)
    if not np.isfinite(entries.data).all():
        raise TopologyError("Q must be finite, but has NaN or infinity")
    if (entries.data < 0).any():
        i, j, value = _first(entries, entries.data < 0)
        raise TopologyError(f"Q must not be negative, but Q[{i}, {j}] is {value:.6g}")
    apart = abs(entries - entries.T).tocsr()
    if apart.nnz and apart.data.max() > slack:
        i, j, _ = _first(apart, apart.data == apart.data.max())
        raise TopologyError(
            f"Q must be symmetric, but Q[{i}, {j}] is {entries[i, j]:.6g} and Q[{j}, {i}] is {entries[j, i]:.6g}"
        )
    off = np.abs(entries.sum(axis=1) - 1)
    if off.max() > slack:
        i = int(off.argmax())
        raise TopologyError(f"the rows of Q must sum to 1, but row {i} sums to {entries[[i]].sum():.9g}")
    if len(Q) < DENSE_BELOW:
        rate = rho(Q)
    else:
        entries.data[entries.data <= slack] = 0
        rate = 0.0 if _mixes(entries) else 1.0
    if rate >= 1 - slack:
        raise TopologyError(
            f"rho must be < 1, but is {rate:.9g}: repeated mixing with Q does not reach everybody alike"
        )


def sparse_entries(Q: Tensor) -> csr_array:
    """The nonzero entries of Q (N, N), dense or CSR, in float64: a copy, rows and columns in order."""
    Q = Q.detach().cpu()
    if Q.layout == torch.strided:
        i, j = Q.nonzero(as_tuple=True)
        return csr_array((Q[i, j].double().numpy(), (i.numpy(), j.numpy())), shape=tuple(Q.shape))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")  # as in `metropolis`
        Q = Q.to_sparse_csr()
    parts = (Q.values().double().numpy(), Q.col_indices().numpy(), Q.crow_indices().numpy())
    entries = csr_array(parts, shape=tuple(Q.shape), copy=True)
    entries.sum_duplicates()
    entries.eliminate_zeros()
    return entries


def eigenvalues(Q: Tensor) -> Tensor:
    """The eigenvalues (N,) of a symmetric Q (N, N), in float64, largest first."""
    return torch.linalg.eigvalsh(_dense(Q)).flip(0)


def rho(Q: Tensor) -> float:
    """`max(|rho_2|, |rho_N|)^2` of a symmetric Q (N, N) whose rows sum to 1 (Assumption 1); 0 for a single client.

    From `DENSE_BELOW` clients on by Lanczos, from a fixed start: to about ten digits. Below 1 if, by its structure, it
    is.
    """
    if len(Q) == 1:
        return 0.0
    if len(Q) < DENSE_BELOW:
        return float(eigenvalues(Q)[1:].abs().max()) ** 2
    entries = sparse_entries(Q)
    if not _mixes(entries):
        return 1.0
    return min(_farthest_from_zero(entries) ** 2, math.nextafter(1.0, 0.0))


def smallest_eigenvalue(Q: Tensor) -> float:
    """rho_N of a symmetric Q (N, N); from `DENSE_BELOW` clients on by Lanczos, to about three digits."""
    if len(Q) < DENSE_BELOW:
        return float(eigenvalues(Q)[-1])
    return float(_lanczos(sparse_entries(Q), which="SA", tol=1e-3)[0])


def mixing_error(Q: Tensor, k: int) -> float:
    """`|Q^k - 11'/N|_2^2`, the left side of Lemma 1 (k >= 1): how far k rounds of mixing are from averaging.

    Taken as `|(Q - 11'/N)^k|_2^2`, the same for a doubly stochastic Q, without the cancellation at large k; from
    `DENSE_BELOW` clients on as rho^k, which it equals for a symmetric Q.
    """
    if len(Q) >= DENSE_BELOW:
        return rho(Q) ** k
    return float(torch.linalg.matrix_norm(torch.linalg.matrix_power(_dense(Q) - 1 / len(Q), k), ord=2)) ** 2


def links(Q: Tensor) -> int:
    """Nonzero entries of Q off its diagonal, 2|E| of its graph: the vectors sent in one round."""
    if Q.layout == torch.strided:
        return int((Q != 0).sum() - (Q.diagonal() != 0).sum())
    entries = sparse_entries(Q)
    return int(entries.nnz - np.count_nonzero(entries.diagonal()))


@dataclass(frozen=True)
class Peers:
    """An exchange without a server: who is linked to whom, and when models are mixed.

    graph: connected, with client ids as nodes; order: "atc" mixes what everybody has just learnt, too, "cta", Wu et
    al.'s, leaves it out of the mixture, and may drift apart (see `decentralised`); mixing: Q (N, N), dense or CSR, rows
    in the order of the sorted ids, in place of Metropolis' weights, or a rule that makes it of a graph, which is still
    one when clients have left.
    """

    graph: nx.Graph
    order: str = "atc"
    mixing: Tensor | Callable[[nx.Graph], Tensor] | None = None

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)

    @cached_property
    def Q(self) -> Tensor:
        """The mixing matrix (N, N), float64; Metropolis' weights are CSR from `DENSE_BELOW` clients with few links."""
        if self.mixing is not None:
            return self.mixing(self.graph) if callable(self.mixing) else self.mixing
        n, entries = len(self.graph), len(self.graph) + 2 * self.graph.number_of_edges()
        return metropolis(self.graph, sparse=n >= DENSE_BELOW and entries <= FEW_LINKS * n * n)

    @cached_property
    def links(self) -> int:
        """2|E| of Q's graph, see `links`; counted once for all rounds."""
        return links(self.Q)

    def without(self, gone: Collection[int]) -> Peers:
        """Those who stay once the clients `gone` have left, on a graph that is still connected; see `without`.

        Raises `UnsupportedTask` for a `mixing` that is a matrix: that of five is none of four.
        """
        if not gone:
            return self
        if isinstance(self.mixing, Tensor):
            raise UnsupportedTask(
                "mixing must be None or a rule, a function from a graph to its matrix, where clients leave, "
                f"got a matrix of shape {tuple(self.mixing.shape)}"
            )
        return Peers(without(self.graph, gone), self.order, self.mixing)


# Helpers


def _unlinked(n: int) -> nx.Graph:
    check_count("n", n)
    return nx.empty_graph(n)


def _dense(Q: Tensor) -> Tensor:
    return Q.to_dense().double()


def _first(entries: csr_array, chosen: np.ndarray) -> tuple[int, int, float]:
    """Row, column and value of the first of the `chosen` entries."""
    found = entries.tocoo()
    k = int(chosen.argmax())
    return int(found.row[k]), int(found.col[k]), float(found.data[k])


def _mixes(entries: csr_array) -> bool:
    """Is rho < 1 by structure: connected, and with a closed walk of odd length? For entries >= 0."""
    linked = entries.copy()
    linked.eliminate_zeros()
    if connected_components(linked, directed=False, return_labels=False) > 1:
        return False
    if linked.diagonal().any():
        return True
    hops = shortest_path(linked, unweighted=True, indices=0)  # even and odd are the two sides, if there are two
    i, j = linked.nonzero()
    return bool((hops[i] % 2 == hops[j] % 2).any())


def _farthest_from_zero(entries: csr_array) -> float:
    """max(|rho_2|, |rho_N|): the largest |eigenvalue| of Q - 11'/N, for Q whose rows sum to 1.

    Lanczos is quick where that eigenvalue stands apart, as in a random graph. On a long ring hundreds crowd at the end;
    there Q -+ 1 has few entries to factorise, and the inverse sets them apart.
    """
    averaged = LinearOperator(entries.shape, matvec=lambda x: entries @ x - x.mean(), dtype=np.float64)
    try:
        return float(abs(_lanczos(averaged, which="LM", tol=1e-12, maxiter=RESTARTS)[0]))
    except ArpackNoConvergence:
        second = _lanczos(entries.tocsc(), k=2, sigma=1 + 1e-6, which="LM")[0]  # the other one is 1
        last = _lanczos(entries, which="SA", tol=1e-3)[0]  # a long ring's, crowded, are far from -1: three digits do
        if abs(last) > 0.9 * abs(second):
            last = _lanczos(entries.tocsc(), sigma=-1 - 1e-6, which="LM")[0]
        return float(max(abs(second), abs(last)))


def _lanczos(matrix: csr_array | LinearOperator, k: int = 1, **how: object) -> np.ndarray:
    """`k` eigenvalues, smallest first; random start, the same for each size: from the stream (0, "lanczos", N)."""
    n = matrix.shape[0]
    start = numpy_stream(0, "lanczos", n).standard_normal(n)
    return eigsh(matrix, k=k, v0=start, ncv=40, return_eigenvectors=False, **how)


def _check_connected(graph: nx.Graph) -> None:
    if graph.is_directed() or not len(graph):
        raise TopologyError("the graph must be undirected and have at least one client")
    if graph.is_multigraph():  # a second link between two clients would count in no weight
        raise TopologyError(
            "the graph must have one link at most between two clients, nx.Graph(graph), got a multigraph"
        )
    if not nx.is_connected(graph):
        parts = sorted(nx.connected_components(graph), key=min)
        raise TopologyError(
            f"the graph must be connected, but is in {len(parts)} parts: client {min(parts[1])} is not linked "
            f"to client {min(parts[0])}"
        )
