"""Horizontal federated learning: rounds of FedAvg (or FedOpt), and the recovery phase.

One round, McMahan et al. and Reddi et al. (PUF, Eqs. 1-3, weighted by client size as in Eqs. 5-6):

    Delta_i = ClientOpt(i, w_t) - w_t            every participating client (together.py)
    Delta   = sum_i n_i / n * Delta_i            pseudo-gradient
    w_{t+1} = w_t + ServerOpt(Delta)             server.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_count
from fu_core.federation.federation import Federation
from fu_core.federation.server import ServerState, aggregate, server_step
from fu_core.federation.together import prepared, train_round

OnUpdates = Callable[[int, list[int], Tensor], None]  # round, ids, deltas (K, d)
AfterRound = Callable[[int, Tensor, ServerState], None]  # round, w (d,), state


def fedavg_round(
    f: Federation,
    w: Tensor,
    round: int,
    *,
    ids: Sequence[int] | None = None,
    state: ServerState | None = None,
    on_updates: OnUpdates | None = None,
) -> tuple[Tensor, ServerState]:
    """One round over the clients `ids`, each once and in id order: the model after it, and the server's state.

    Without `ids`, those are who takes part in the federation's round: all, or its `participation`.

    `on_updates(round, ids, deltas)` sees the updates (K, d) before they are averaged; it must copy what it
    keeps and change nothing.
    """
    w, taking_part = w.detach(), f.taking_part(round) if ids is None else sorted({*ids})
    if not taking_part:
        raise InvalidRequest(f"round {round}: no client takes part")
    deltas = train_round(f, w, round, taking_part)
    if on_updates is not None:
        on_updates(round, taking_part, deltas)
    n = f.sizes(taking_part)
    delta = aggregate(deltas, n / n.sum())  # Delta_t = sum_i n_i / n * Delta_i
    return server_step(w, delta, f.server, state or ServerState())


def fedavg(
    f: Federation,
    w: Tensor,
    rounds: int,
    *,
    first_round: int = 1,
    state: ServerState | None = None,
    after_round: AfterRound | None = None,
    on_updates: OnUpdates | None = None,
) -> Tensor:
    """`rounds` rounds of FedAvg (or FedOpt) from `w` with the clients of the federation; returns w (d,).

    Retraining is a run of `f.after(deletion)`. Random: batches and augmentation, from streams of (seed, round,
    client), so a client's batches do not depend on who else takes part, and who does (`f.taking_part`).
    `after_round(t, w, state)` is called after each round, `on_updates(t, ids, deltas)` before each average (see
    `fedavg_round`). Raises `NumericalFailure` on divergence.
    """
    check_count("rounds", rounds, least=0)
    state = state or ServerState()
    f = prepared(f, w)
    for t in range(first_round, first_round + rounds):
        w, state = fedavg_round(f, w, t, state=state, on_updates=on_updates)
        if not bool(w.isfinite().all()):
            raise NumericalFailure(f"round {t}: the global model is not finite")
        if after_round is not None:
            after_round(t, w, state)
    return w


def recovery_path(
    f: Federation, w: Tensor, *, first_round: int, cap: int = 30, start: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Yield (k, w_k) for k = 0, 1, ..., cap: the unlearned model, then each recovery round's (PUF, Sec. V-D).

    With `start` > 0, `w` is the model after that many rounds, and the path goes on from there. Plain FedAvg on those
    who remain, `f.after(deletion)`, all of them or their `participation`; `first_round` continues the training's count
    and with it the learning-rate schedule. Server moments start afresh: the old ones hold the target's updates. Raises
    ValueError for a `start` where the server has moments, which nobody has kept.
    """
    state = ServerState()
    if start and f.server.has_moments:
        raise ValueError(f"start must be 0 where the server has moments, which would begin again, got {start}")
    yield start, w
    f = prepared(f, w)
    for k in range(start + 1, cap + 1):
        w, state = fedavg_round(f, w, first_round + k - 1, state=state)
        yield k, w
