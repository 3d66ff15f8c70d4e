"""PDUDT, a reconstruction: replay decentralised training without a client from its stored history.

The method is that of Qiao et al. (ICML 2025), which has no public code; what is known is its abstract and Wu
et al., Sec. IV-E: whole clients only, what a client left in each model is approximated from stored gradients,
Gaussian noise is added, nothing is trained meanwhile, and T (= 200) ordinary rounds follow. The replay below,
its scalar curvature and its clipping are ours. Without the clients c, s = 0, ..., t_1 - 1:

    g_i^s     = -Delta_i^s / gamma                                 stored: what client i learnt at x_i^s
    x'_i^0    = x_i^0
    x'^{s+1}  = W' x'^s - gamma [g^s + kappa^s (x'^s - x^s)]       rows of the remaining clients; with order "atc"
                                                                   the bracket is mixed by W', too
    kappa_i^s = sum_{q <= s} <dx_i^q, dg_i^q> / sum_{q <= s} |dx_i^q|^2, clipped to [0, 1/gamma]
    x~_i      = x'_i^{t_1} + nu_i,  nu_i ~ N(0, sigma^2 I)         dx^q = x^{q+1} - x^q, dg^q likewise

W' is Q without the rows and columns of c, whose weight the neighbours keep for themselves. The secant makes the
replay exact where gradients are c x + const with one c per client; frozen gradients (kappa = 0) are exact for
linear losses and drift otherwise. What comes out has no certificate. The recovery rounds are ordinary calls of
`dpsgd` among the clients that stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import (
    InvalidRequest,
    MissingHistory,
    NumericalFailure,
    TopologyError,
    UnsupportedTask,
    check_choice,
    listed,
)
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, check_mixing, links
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.memory import PeerHistory
from fu_core.unlearning.method import Trained, refuse, register
from fu_core.unlearning.needs import Needs

CURVATURES = ("secant", "frozen")
REFUSES = dict.fromkeys(
    ("samples", "classes"), "leaving: PDUDT forgets whole clients and not some of their samples or classes"
)


@dataclass(frozen=True)
class PDUDT:
    """How to replay. `curvature="frozen"` keeps the stored gradients as they are, an ablation."""

    sigma: float = 0.0  # standard deviation of the noise in each model
    curvature: str = "secant"

    def __post_init__(self) -> None:
        check_choice("curvature", self.curvature, CURVATURES)
        if not 0 <= self.sigma < float("inf"):
            raise ValueError(f"sigma must be a finite number >= 0, got {self.sigma!r}")


def mixing_without(Q: Tensor, rows: Sequence[int]) -> Tensor:
    """W': Q (K, K) without `rows` and their columns, the weight they had added to the diagonal. Same dtype, layout."""
    gone = set(rows)
    stay = [k for k in range(len(Q)) if k not in gone]
    W = Q.to_dense()[stay][:, stay]
    W.diagonal().add_(1 - W.sum(dim=1))
    return W.to_sparse_csr() if Q.layout == torch.sparse_csr else W


def pdudt(f: Federation, history: PeerHistory, deletion: Deletion, config: PDUDT | None = None) -> Tensor:
    """The models (K', d) of the clients that stay, in the order of their ids, replayed without those who leave.

    f: the federation that was trained, with the Q that its models were mixed with; history: of all its clients and
    rounds; where its `first_round` is a later one, the models keep what everybody has left in them before, those who
    leave as well. Deterministic but for the noise, from streams of (seed, id). Nothing is trained; every replayed round
    sends the models of the clients that stay, which the paper's abstract does not count.

    Raises `UnsupportedTask` for samples or classes, and for a history that does not follow from Q in f's order,
    `MissingHistory` naming the round, `InvalidRequest` for a history of other clients, `TopologyError` if those who
    stay are not connected.
    """
    config = config or PDUDT()
    refuse(deletion, REFUSES)
    rounds = list(range(history.first_round, max([history.first_round, *history.rounds]) + 1))
    for t in rounds:
        history.models(t), history.gradients(t)  # a gap is found before anything is computed
    if history.ids != f.ids:
        raise InvalidRequest(f"history is of the clients {history.ids}, but those of the federation are {f.ids}")
    W = _checked_mixing(f, deletion.leaving)
    _check_follows(history, rounds, f.peers)

    stay = [i for i in f.ids if i not in deletion.leaving]
    mine = [f.ids.index(i) for i in stay]
    x = history.models(rounds[0])[mine]  # x'^0 = x^0
    W = W.to(x.device, x.dtype)
    kappa = torch.zeros_like(x[:, :1])  # (K', 1)
    products, squares = (torch.zeros_like(kappa, dtype=torch.float64) for _ in range(2))
    for t in rounds:
        X, g, gamma = history.models(t)[mine], history.gradients(t)[mine], history.rate(t)
        if config.curvature == "secant" and t < rounds[-1]:  # the last round has no next one and keeps its kappa
            dX, dg = history.models(t + 1)[mine] - X, history.gradients(t + 1)[mine] - g
            products += (dX * dg).sum(dim=1, keepdim=True, dtype=torch.float64)
            squares += (dX * dX).sum(dim=1, keepdim=True, dtype=torch.float64)
            kappa = torch.where(squares > 0, products / squares, 0.0).clamp(0, 1 / gamma).to(x.dtype)
        x = mixed(W, x, gamma * (g + kappa * (x - X)), f.peers.order)  # x' <- W' x' - gamma [g + kappa (x' - x)]
        if not bool(x.isfinite().all()):
            raise NumericalFailure(f"round {t}: the replayed models are not finite")
        f.meter.gossip(x, links(W))
        f.meter.off_schedule += 1  # nothing is trained
    f.meter.keep("peer history", *history.stored)
    return _noised(x, stay, config.sigma, f.seed)


@register("PDUDT", paper="Qiao et al., ICML 2025", colour="#5aa9dc", dash="-.", parameters=PDUDT,
          needs=Needs(history=True, full_participation=True), refuses=REFUSES, exchanges=("peers",))  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: PDUDT) -> Tensor:
    """The replay of what `trained.memory` holds, which must be all rounds that the models were trained for. Notes:
    published, the bytes that Wu et al. count as stored."""
    f, history = trained.horizontal, trained.memory
    if not isinstance(history, PeerHistory):
        raise MissingHistory("memory: PDUDT needs a PeerHistory, recorded while the federation was trained")
    if history.first_round != 1 or history.rounds != list(range(1, trained.rounds + 1)):
        raise MissingHistory(
            f"memory: PDUDT replays all rounds of training, of which `rounds` counts {trained.rounds}, but this "
            f"history begins with round {history.first_round} and holds {listed(history.rounds)}"
        )
    neighbours = sum(f.peers.graph.degree[c] for c in deletion.leaving)
    trained.notes["published"] = history.published_nbytes(neighbours)
    return pdudt(f, history, deletion, config)


def _checked_mixing(f: Federation, leaving: Sequence[int]) -> Tensor:
    Q, ids = f.peers.Q, f.ids
    if Q.shape != (len(ids), len(ids)):
        raise TopologyError(
            f"Q must have shape {(len(ids),) * 2}, a row per client of the history, got {tuple(Q.shape)}"
        )
    W = mixing_without(Q, [ids.index(i) for i in leaving])
    try:
        check_mixing(W)
    except TopologyError as error:
        raise TopologyError(f"Q cannot be used without the clients {sorted(leaving)}: {error}") from None
    return W


def mixed(Q: Tensor, x: Tensor, step: Tensor, order: str) -> Tensor:
    """A round of peers from x (K, d), whose step is mixed ("atc") or not ("cta")."""
    return Q @ x - step if order == "cta" else Q @ (x - step)


def _check_follows(history: PeerHistory, rounds: list[int], peers: Peers) -> None:
    """The stored models tell whether they were mixed with this Q, and before their steps or with them."""
    for t in rounds[:-1]:
        X, after = history.models(t), history.models(t + 1)
        predicted = mixed(peers.Q.to(X.device, X.dtype), X, history.rate(t) * history.gradients(t), peers.order)
        off = float((predicted - after).norm())
        if off > 100 * torch.finfo(X.dtype).eps * float(X.norm() + after.norm()):
            raise UnsupportedTask(
                f"the models after round {t} are off what order={peers.order!r} and this Q make of those before by "
                f"{off / float((after - X).norm()):.1%} of the round's step; PDUDT replays what was recorded"
            )


def _noised(x: Tensor, ids: list[int], sigma: float, seed: int) -> Tensor:
    if not sigma:
        return x
    d = x.shape[1]
    nu = torch.stack([torch.randn(d, generator=stream(seed, "pdudt", i), dtype=x.dtype) for i in ids])
    return x + sigma * nu.to(x.device)
