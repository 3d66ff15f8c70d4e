"""Decentralised learning: D-PSGD, without a server.

Every client sits on a node of a connected graph (V, E) and holds a model of its own, a row of X (N, d).
One round (Wu et al., Sec. IV-A, with a local epoch for the gradient step, as in their experiments):

    Delta_i = ClientOpt(i, x_i) - x_i             every client from its own model
    X <- Q X + Delta                              order "cta", the paper's: the step is taken before mixing
    X <- Q (X + Delta)                            order "atc", the default: the step is mixed, too

Graphs and the mixing matrix Q are in `graphs`. With a constant step size D-PSGD does not reach consensus, and its
mean is not the minimiser, when clients differ.

When the models drift apart. On quadratics a client's own round takes x - a_i to M_i (x - a_i), with eigenvalues m in
[0, 1) if its rate is not too large; m is near 0 where it gets to its own optimum in one round. So the rounds are

    X <- (Q + M - I) X + const.                   "cta": unstable if and only if lambda_min(Q + M - I) < -1
    X <- Q M X + const.                           "atc": |Q M| <= max m < 1, never unstable

with M = blkdiag(M_i). Clients with the same M have the modes q + m - 1 and q m, q an eigenvalue of Q, and then

    "cta" is unstable if and only if              q_min + m_min < 0

A ring's Metropolis weights have q_min = -1/3 (an even one's): three quarters of the way to the own optimum in each
round are too much. Modes with q = 1, those of the mean, are m in either order: what grows is disagreement alone, and it
changes sign in every round. That tells it from clients who differ, whose disagreement rises to a plateau, and it is
what `dpsgd` watches. A lazy Q, (I + Q) / 2, has q_min >= 0, and "cta" is as safe as "atc".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fu_core.errors import ConsensusFailure, NumericalFailure, TopologyError, check_count, listed
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import check_mixing, smallest_eigenvalue
from fu_core.federation.together import prepared, train_round

WATCH = 5  # rounds from one look at the disagreement to the next: a look reads three rounds' models twice
GROWTH = (
    2.0  # how many times as far apart as before models may drift: nets pass through gains of -1 and calm down again
)
RESOLUTION = 100  # roundings of a model's length: whole rounds of "atc" on a complete graph leave 3 of them at most
BLOCK = 2**17  # numbers of a round's models that are looked at at once: they stay in a CPU's cache

OnPeerUpdates = Callable[[int, list[int], Tensor, Tensor], None]  # round, ids, models W (K, d), deltas (K, d)


def start(w: Tensor, n: int) -> Tensor:
    """`w` (d,) as the model of each of n clients: (n, d), sharing no storage."""
    return w.detach().repeat(n, 1)


def check_nodes(f: Federation) -> None:
    """Raise `TopologyError` unless the nodes of the peers' graph are the clients: rows of Q are matched by rank."""
    if set(f.peers.graph) != set(f.ids):
        raise TopologyError(f"graph must link clients {listed(f.ids)}, but its nodes are {listed(f.peers.graph)}")


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
    peers, ids, W = f.peers, f.ids, W.detach()
    Q = peers.Q
    if Q.shape != (len(ids), len(ids)):
        raise TopologyError(f"Q must have shape {(len(ids),) * 2}, a row per client, got {tuple(Q.shape)}")
    if W.dim() == 1:
        W = start(W, len(ids))
    deltas = train_round(f, W, round)
    if on_updates is not None:
        on_updates(round, ids, W, deltas)
    Q = Q.to(W.device, W.dtype)
    after = (Q @ W).add_(deltas) if peers.order == "cta" else Q @ (deltas + W)
    finite = after.sum(dim=1).isfinite()
    if not finite.all():
        culprit = ids[int((~finite).nonzero()[0])]
        raise NumericalFailure(f"client {culprit}, round {round}: its model is not finite; lower lr (now {f.local.lr})")
    f.meter.gossip(W, peers.links)
    return after


def dpsgd(
    f: Federation,
    W: Tensor,
    rounds: int,
    *,
    first_round: int = 1,
    after_round: Callable[[int, Tensor], None] | None = None,
    on_updates: OnPeerUpdates | None = None,
    growth: float = GROWTH,
) -> Tensor:
    """`rounds` rounds of D-PSGD from W, (K, d) or one start (d,) for all; returns the models (K, d).

    Retraining after a client has left is a run of `f.after(deletion)`: nobody else's batches move.
    `after_round(t, W)` is called after each round, `on_updates(t, ids, W, deltas)` before each mixing (see
    `dpsgd_round`, also for errors). After rounds 5, 10, 15, ... the models' `Disagreement` is looked at; growth: by
    which factor the consensus distance may grow while each round amplifies the last one's change, math.inf to let it.

    Raises `TopologyError` for a graph of others, or if Q breaks Assumption 1, `ConsensusFailure` when the models drift
    apart.
    """
    check_count("rounds", rounds, least=0)
    if not growth >= 1:
        raise ValueError(f"growth must be at least 1, or math.inf to watch nothing, got {growth!r}")
    check_nodes(f)
    check_mixing(f.peers.Q)
    if W.dim() == 1:
        W = start(W, len(f.ids))
    f = prepared(f, W)
    watched, earlier = Watch(f, growth), W
    for t in range(first_round, first_round + rounds):
        after = dpsgd_round(f, W, t, on_updates=on_updates)
        if t % WATCH == 0 and t > first_round and growth < math.inf:
            watched.look(t, disagreement(earlier, W, after), after)
        earlier = W if t % WATCH == WATCH - 1 else after  # kept for the next look alone
        W = after
        if after_round is not None:
            after_round(t, W)
    return W


# --- the watch -------------------------------------------------------------------------------------------------------


class Disagreement(NamedTuple):
    """How far from their mean the models of three rounds are, and how that changes. With Y the models minus their mean:

    gain = <Y_t - Y_{t-1}, Y_{t-1} - Y_{t-2}> / |Y_{t-1} - Y_{t-2}|^2      what one round makes of the last one's change
    distances: the consensus distance after rounds t - 1 and t

    On quadratics of one M the change is multiplied by Q + M - I, or Q M, from round to round, and what drives clients
    apart for good cancels: `gain` is a Rayleigh quotient, below -1 only if an eigenvalue is.
    """

    gain: float
    distances: tuple[float, float]


def disagreement(first: Tensor, second: Tensor, third: Tensor) -> Disagreement:
    """Of the models (K, d) after three rounds in a row, a few clients at a time: no (K, d) tensor is made."""
    K, d = third.shape
    three = [(W, W.mean(dim=0)) for W in (first, second, third)]
    sums = torch.zeros(4, dtype=torch.float64, device=third.device)
    for row in range(0, K, few := max(1, BLOCK // d)):
        Y = [(W[row : row + few] - mean).flatten() for W, mean in three]
        before, now = Y[0].sub_(Y[1]), Y[2] - Y[1]  # the first one the other way round, to be made in its place
        sums += torch.stack([-before @ now, before @ before, Y[1] @ Y[1], Y[2] @ Y[2]])
    product, square, at_second, at_third = sums.tolist()
    return Disagreement(product / square if square else 0.0, (math.sqrt(at_second / K), math.sqrt(at_third / K)))


def resolution(W: Tensor) -> float:
    """The consensus distance of models W (K, d) below which it may be rounding alone."""
    return (
        RESOLUTION
        * torch.finfo(W.dtype).eps
        * float(torch.linalg.vector_norm(W, dtype=torch.float64))
        / math.sqrt(len(W))
    )


class Watch:
    """Raises `ConsensusFailure` when the consensus distance has grown by the factor `growth` while gain <= -1.

    It is compared with what it was when last gain > -1. Disagreement that changes sign can be far and near in turn:
    of two rounds in a row, the geometric mean now is compared with the larger one then. Where everybody agrees, what is
    left is rounding, which doubles and changes sign as it likes: no distance counts as less than `resolution`.
    """

    def __init__(self, f: Federation, growth: float) -> None:
        self.f, self.growth = f, growth
        self.since, self.distance = 0, math.inf  # of the last look that found nothing

    def look(self, t: int, seen: Disagreement, W: Tensor) -> None:
        """After round t, which has led to the models W (K, d)."""
        if seen.gain > -1 or self.distance == math.inf:
            self.since, self.distance = t, max(seen.distances)
        elif (distance := math.sqrt(math.prod(seen.distances))) > self.growth * max(self.distance, resolution(W)):
            self._fail(t, distance, seen.gain)

    def _fail(self, t: int, distance: float, gain: float) -> None:
        f, q = self.f, smallest_eigenvalue(self.f.peers.Q)
        lr, lazy = f.local.fresh(t).lr, ", a lazy Q, (I + Q) / 2 as mixing," if q < 0 else ""
        how = f"take order='atc'{lazy} or lower lr" if f.peers.order == "cta" else "lower lr"
        raise ConsensusFailure(
            f"round {t}: the models drift apart: their consensus distance went from {self.distance:.3g} in round "
            f"{self.since} to {distance:.3g}, and each round multiplies its change by {gain:.2f}. "
            f"order={f.peers.order!r} with lr {lr:.3g} and Q's smallest eigenvalue {q:.2f}: {how}; "
            f"growth=math.inf lets it go on"
        )
