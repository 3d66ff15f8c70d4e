"""Horizontal federated learning: FedAvg, FedOpt (SGD, Adam, Yogi), and the recovery phase.

One round, McMahan et al. and Reddi et al. (PUF, Eqs. 1-3, weighted by client size as in Algorithm 1):

    Delta_i = ClientOpt(i, w_t) - w_t            every participating client
    Delta   = sum_i n_i / n * Delta_i            pseudo-gradient
    w_{t+1} = w_t + ServerOpt(Delta)             SGD with eta_s = 1 is plain averaging
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_choice, check_count, check_positive
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.federation.together import Clients, prepared, train_round
from fu_core.models.flat import FlatModel

OnUpdates = Callable[[int, list[int], Tensor], None]  # round, ids, deltas (K, d)


@dataclass(frozen=True)
class FedOpt:
    """The server's optimiser (Reddi et al. 2021, Algorithm 2). `sgd` with lr 1 is FedAvg."""

    kind: str = "sgd"
    lr: float = 1.0  # eta_s
    momentum: float = 0.0  # sgd only
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3  # adaptivity; v starts at tau^2, no bias correction

    def __post_init__(self) -> None:
        check_choice("server optimiser", self.kind, ("sgd", "adam", "yogi"))
        check_positive("server lr", self.lr)


class ServerState(NamedTuple):
    """First and second moments of the pseudo-gradients (d,); None until the first round."""

    m: Tensor | None = None
    v: Tensor | None = None


def aggregate(deltas: Tensor, weights: Tensor) -> Tensor:
    """`sum_i weights_i * deltas_i` (d,), summed in float64 in client order. deltas (K, d), weights (K,)."""
    total = torch.zeros(deltas.shape[1], dtype=torch.float64, device=deltas.device)
    for delta, weight in zip(deltas, weights.tolist(), strict=True):  # row by row: no (K, d) float64 copy
        total.add_(delta, alpha=weight)
    return total.to(deltas.dtype)


def server_step(w: Tensor, delta: Tensor, server: FedOpt, state: ServerState) -> tuple[Tensor, ServerState]:
    """`w_t`, `Delta_t` (d,) to `w_{t+1}` (d,) and the new state. Deterministic; nothing is overwritten."""
    if server.kind == "sgd":
        if not server.momentum:
            return w + server.lr * delta, state
        m = delta if state.m is None else server.momentum * state.m + delta
        return w + server.lr * m, ServerState(m)
    m = torch.zeros_like(w) if state.m is None else state.m
    v = torch.full_like(w, server.tau**2) if state.v is None else state.v
    m = server.beta1 * m + (1 - server.beta1) * delta
    if server.kind == "adam":
        v = server.beta2 * v + (1 - server.beta2) * delta**2
    else:  # Yogi: additive, so that v never shrinks faster than it grows
        v = v - (1 - server.beta2) * delta**2 * torch.sign(v - delta**2)
    return w + server.lr * m / (v.sqrt() + server.tau), ServerState(m, v)


def sizes_of(clients: Sequence[Client]) -> Tensor:
    """Samples per client (N,), float64."""
    return torch.tensor([len(y) for _, y in clients], dtype=torch.float64)


def fedavg_round(
    model: FlatModel,
    w: Tensor,
    clients: Clients,
    local: ClientOpt,
    *,
    seed: int,
    round: int,
    ids: Sequence[int],
    server: FedOpt | None = None,
    state: ServerState | None = None,
    how: str = "auto",
    meter: Meter | None = None,
    on_updates: OnUpdates | None = None,
) -> tuple[Tensor, ServerState]:
    """One round over the clients `ids`, in id order: the model after it, and the server's state.

    `on_updates(round, ids, deltas)` sees the updates (K, d) before they are averaged; it must copy what it
    keeps and change nothing.
    """
    ids = sorted(ids)
    if not ids:
        raise InvalidRequest(f"round {round}: no client takes part")
    deltas = train_round(model, w, clients, local, seed=seed, round=round, ids=ids, how=how, meter=meter)
    if on_updates is not None:
        on_updates(round, ids, deltas)
    n = sizes_of([clients[i] for i in ids])
    delta = aggregate(deltas, n / n.sum())  # Delta_t = sum_i n_i / n * Delta_i
    return server_step(w, delta, server or FedOpt(), state or ServerState())


def fedavg(
    model: FlatModel,
    w: Tensor,
    clients: Clients,
    *,
    rounds: int,
    local: ClientOpt,
    seed: int,
    exclude: Sequence[int] = (),
    server: FedOpt | None = None,
    state: ServerState | None = None,
    first_round: int = 1,
    how: str = "auto",
    meter: Meter | None = None,
    after_round: Callable[[int, Tensor, ServerState], None] | None = None,
    on_updates: OnUpdates | None = None,
) -> Tensor:
    """`rounds` rounds of FedAvg (or FedOpt) from `w` with all clients but `exclude`; returns w (d,).

    clients: (x, y) each, by id. Random: batches and augmentation, from streams of (seed, round, client),
    so a client's batches do not depend on who else takes part. `after_round(t, w, state)` is called
    after each round, `on_updates(t, ids, deltas)` before each average (see `fedavg_round`). Raises
    `InvalidRequest` if nobody is left, `NumericalFailure` on divergence.
    """
    check_count("rounds", rounds, least=0)
    ids = participants(len(clients), exclude)
    state = state or ServerState()
    model, clients = prepared(model, w, clients, local, how)
    for t in range(first_round, first_round + rounds):
        w, state = fedavg_round(
            model,
            w,
            clients,
            local,
            seed=seed,
            round=t,
            ids=ids,
            server=server,
            state=state,
            how=how,
            meter=meter,
            on_updates=on_updates,
        )
        if not bool(w.isfinite().all()):
            raise NumericalFailure(f"round {t}: the global model is not finite")
        if after_round is not None:
            after_round(t, w, state)
    return w


def participants(clients: int, exclude: Sequence[int] = ()) -> list[int]:
    """Client ids without `exclude`; raises `InvalidRequest` for unknown ids or if nobody is left."""
    unknown = sorted(set(exclude) - set(range(clients)))
    if unknown:
        raise InvalidRequest(f"exclude names client {unknown[0]}, but clients are 0 to {clients - 1}")
    ids = [i for i in range(clients) if i not in set(exclude)]
    if not ids:
        raise InvalidRequest(f"exclude leaves none of the {clients} clients")
    return ids


class Recovery(NamedTuple):
    """How recovery ended: the model, rounds used, whether the reference was reached, score per round."""

    w: Tensor
    rounds: int
    reached: bool
    scores: list[float]


def recovery_path(
    model: FlatModel,
    w: Tensor,
    clients: Clients,
    *,
    local: ClientOpt,
    seed: int,
    first_round: int,
    exclude: Sequence[int] = (),
    cap: int = 30,
    start: int = 0,
    server: FedOpt | None = None,
    how: str = "auto",
    meter: Meter | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """Yield (k, w_k) for k = 0, 1, ..., cap: the unlearned model, then each recovery round's.

    With `start` > 0, `w` is the model after that many rounds, and the path goes on from there.

    Plain FedAvg on the remaining clients; `first_round` continues the training's count and with it the
    learning-rate schedule. Server moments start afresh: the old ones hold the target's updates.
    """
    ids = participants(len(clients), exclude)
    state = ServerState()
    yield start, w
    model, clients = prepared(model, w, clients, local, how)
    for k in range(start + 1, cap + 1):
        w, state = fedavg_round(
            model,
            w,
            clients,
            local,
            seed=seed,
            round=first_round + k - 1,
            ids=ids,
            server=server,
            state=state,
            how=how,
            meter=meter,
        )
        yield k, w


def recover(
    model: FlatModel,
    w: Tensor,
    clients: Clients,
    *,
    score: Callable[[Tensor], float],
    reference: float,
    local: ClientOpt,
    seed: int,
    first_round: int,
    exclude: Sequence[int] = (),
    cap: int = 30,
    server: FedOpt | None = None,
    how: str = "auto",
    meter: Meter | None = None,
) -> Recovery:
    """Recover until `score(w) >= reference` for the first time, checked before every round (PUF, Sec. V-D).

    `score` should be accuracy on held-out validation data; the paper uses the test set. Stops at `cap`
    rounds with `reached=False`.
    """
    scores: list[float] = []
    path = recovery_path(
        model,
        w,
        clients,
        local=local,
        seed=seed,
        first_round=first_round,
        exclude=exclude,
        cap=cap,
        server=server,
        how=how,
        meter=meter,
    )
    for k, w_k in path:
        scores.append(score(w_k))
        if scores[-1] >= reference:
            return Recovery(w_k, k, True, scores)
    return Recovery(w_k, cap, False, scores)
