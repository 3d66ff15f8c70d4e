"""Flooding: how one client's vector reaches everybody where nobody knows more than its neighbours (Wu et al.)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from fu_core.errors import TopologyError
from fu_core.federation.graphs import sparse_entries


class Flood(NamedTuple):
    """hops (S, K): after how many links client k first hears of source s; messages: vectors sent in all."""

    hops: np.ndarray
    messages: int


def flood(Q: Tensor, sources: Sequence[int], *, lost: Iterable[tuple[int, int]] = ()) -> Flood:
    """Every source's message to everybody: forwarded when first heard, to all neighbours but the sender (Alg. 1).

    Q (K, K): who is linked to whom; sources: rows of it. `lost`: directed links (from, to) that drop what they
    carry. Per source that is 2|E| - (K - 1) vectors, duplicates included. Deterministic. Raises TopologyError if a
    client never hears of a source.
    """
    linked = _linked(Q)
    carried = linked.copy().tolil()
    for sender, receiver in lost:
        carried[sender, receiver] = 0
    hops = shortest_path(carried.tocsr(), unweighted=True, indices=list(sources))
    deaf = np.argwhere(np.isinf(hops))
    if len(deaf):
        source, client = deaf[0]
        raise TopologyError(f"client {client} never received the message of client {list(sources)[source]}")
    return Flood(hops.astype(np.int64), len(sources) * (linked.nnz - (len(Q) - 1)))


def _linked(Q: Tensor) -> csr_array:
    """The graph under a mixing matrix, without self-loops."""
    i, j = sparse_entries(Q).nonzero()
    others = i != j
    return csr_array((np.ones(others.sum(), dtype=np.int8), (i[others], j[others])), shape=tuple(Q.shape))
