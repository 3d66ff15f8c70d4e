"""Decentralised learning: D-PSGD, without a server.

Every client sits on a node of a connected graph (V, E) and holds a model of its own, a row of X (N, d).
One round (Wu et al., Sec. IV-A, with a local epoch for the gradient step, as in their experiments):

    Delta_i = ClientOpt(i, x_i) - x_i             every client from its own model
    X <- Q X + Delta                              order "cta", the paper's: the step is taken before mixing
    X <- Q (X + Delta)                            order "atc": the step is mixed, too

Graphs and the mixing matrix Q are in `graphs`. With a constant step size D-PSGD does not reach consensus, and its
mean is not the minimiser, when clients differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, TopologyError, check_count, listed
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import check_mixing, links
from fu_core.federation.together import prepared, train_round

OnPeerUpdates = Callable[[int, list[int], Tensor, Tensor], None]  # round, ids, models W (K, d), deltas (K, d)


def start(w: Tensor, n: int) -> Tensor:
    """`w` (d,) as the model of each of n clients: (n, d), sharing no storage."""
    return w.detach().repeat(n, 1)


def consensus_distance(W: Tensor) -> float:
    """`sqrt(mean_i |w_i - mean_j w_j|^2)` of the models W (K, d), in float64."""
    mean = W.mean(dim=0, dtype=torch.float64)
    return math.sqrt(sum(float((w - mean).square().sum()) for w in W) / len(W))  # by rows: no (K, d) float64 copy


def dpsgd_round(f: Federation, W: Tensor, round: int, *, on_updates: OnPeerUpdates | None = None) -> Tensor:
    """One round of all clients from W to the new models, both (K, d), rows in the order of `f.ids`.

    W (d,) lets everybody start there. The mixing matrix is used as it is: `dpsgd` checks it.
    `on_updates(round, ids, W, deltas)` sees the models before the round and what was learnt; it must copy what it
    keeps and change nothing.

    Random: batches and augmentation, from streams of (seed, round, id). Raises `NumericalFailure` naming
    client and round, `TopologyError` if Q is not (K, K).
    """
    peers, ids = f.peers, f.ids
    Q = peers.Q
    if Q.shape != (len(ids), len(ids)):
        raise TopologyError(f"Q must have shape {(len(ids),) * 2}, a row per client, got {tuple(Q.shape)}")
    if W.dim() == 1:
        W = start(W, len(ids))
    deltas = train_round(f, W, round)
    if on_updates is not None:
        on_updates(round, ids, W, deltas)
    Q = Q.to(W.device, W.dtype)
    after = (Q @ W).add_(deltas) if peers.order == "cta" else Q @ deltas.add_(W)
    finite = after.sum(dim=1).isfinite()
    if not finite.all():
        culprit = ids[int((~finite).nonzero()[0])]
        raise NumericalFailure(f"client {culprit}, round {round}: its model is not finite; lower lr (now {f.local.lr})")
    f.meter.gossip(W, links(Q))
    return after


def dpsgd(
    f: Federation,
    W: Tensor,
    rounds: int,
    *,
    first_round: int = 1,
    after_round: Callable[[int, Tensor], None] | None = None,
    on_updates: OnPeerUpdates | None = None,
) -> Tensor:
    """`rounds` rounds of D-PSGD from W, (K, d) or one start (d,) for all; returns the models (K, d).

    Retraining after a client has left is a run of `f.after(deletion)`: nobody else's batches move.
    `after_round(t, W)` is called after each round, `on_updates(t, ids, W, deltas)` before each mixing (see
    `dpsgd_round`, also for errors). Raises `TopologyError` for a graph of others, or if Q breaks
    Assumption 1.
    """
    check_count("rounds", rounds, least=0)
    if set(f.peers.graph) != set(f.ids):
        raise TopologyError(f"graph must link clients {listed(f.ids)}, but its nodes are {listed(f.peers.graph)}")
    check_mixing(f.peers.Q)
    if W.dim() == 1:
        W = start(W, len(f.ids))
    f = prepared(f, W)
    for t in range(first_round, first_round + rounds):
        W = dpsgd_round(f, W, t, on_updates=on_updates)
        if after_round is not None:
            after_round(t, W)
    return W
