"""Many federations at once that differ in their training seed only: same clients, same net, same local training.

    W = fedavg_many(f, seeds, rounds=20)     (N, d), row k = fedavg(f.having(seed=seeds[k]), model.init(seeds[k]), 20)

Distributions of models, which judges of unlearning compare, take hundreds of trainings; one at a time, a small net
leaves a processor waiting for the next call. Here a row of the round engine (`together`) is a client of one of the
federations, with the batches of that federation's own streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_count
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.server import ServerState, server_step
from fu_core.federation.together import prepared, rows_at_once, train_rows

OnUpdatesOfMany = Callable[[int, int, list[int], Tensor], None]  # seed, round, ids, deltas (K, d)


def fedavg_many(
    f: Federation,
    seeds: Sequence[int],
    rounds: int,
    w_0: Tensor | None = None,
    *,
    first_round: int = 1,
    on_updates: OnUpdatesOfMany | None = None,
) -> Tensor:
    """`rounds` rounds of FedAvg of N federations, `f` with each of `seeds`: their models (N, d).

    w_0: where they start, (N, d), or (d,) for all; default: `model.init(seed)` of each. Each is the model of
    `fedavg(f.having(seed=seed), ...)`, to rounding, and bit for bit with how="loop", where they are trained one by one.
    So they are where only a share of the clients takes part in a round. The meter counts what all cost together;
    `on_updates(seed, round, ids, deltas)` sees the updates (K, d) of each federation before they are averaged.

    Random: batches and augmentation, from the streams of (seed, round, client). Raises `InvalidRequest` without seeds,
    ValueError for a `w_0` of another shape, `UnsupportedTask` for peers, `NumericalFailure` naming seed and round on
    divergence.
    """
    check_count("rounds", rounds, least=0)
    _ = f.server  # raises among peers
    seeds = list(seeds)
    if not seeds:
        raise InvalidRequest("seeds must name at least one training seed, got none")
    if w_0 is None:
        w_0 = torch.stack([f.model.init(seed) for seed in seeds])
    one, each = (f.model.d,), (len(seeds), f.model.d)
    if w_0.shape not in (one, each):
        raise ValueError(f"w_0 must have shape {one}, or {each} with a row per seed, got {tuple(w_0.shape)}")
    starts = w_0.expand(each)
    if f.how == "loop" or f.participation < 1:
        W = torch.empty(each, dtype=w_0.dtype, device=w_0.device)
        for w, start, seed in zip(W, starts, seeds, strict=True):
            seen = None if on_updates is None else partial(on_updates, seed)
            w.copy_(fedavg(f.having(seed=seed), start, rounds, first_round=first_round, on_updates=seen))
        return W
    f = prepared(f, w_0)
    size = max(1, rows_at_once(w_0, len(seeds) * len(f.clients)) // len(f.clients))
    blocks = [slice(k, k + size) for k in range(0, len(seeds), size)]
    return torch.cat([_train_block(f, seeds[b], starts[b], first_round, rounds, on_updates) for b in blocks])


def _train_block(
    f: Federation, seeds: list[int], W: Tensor, first_round: int, rounds: int, on_updates: OnUpdatesOfMany | None
) -> Tensor:
    """All rounds of a few federations, whose clients are the rows of one matrix: federation by federation."""
    ids = f.ids
    rows = [(seed, i) for seed in seeds for i in ids]
    sizes = f.sizes()
    p = sizes / sizes.sum()
    state = ServerState()
    for t in range(first_round, first_round + rounds):
        starts = W.repeat_interleave(len(ids), dim=0)  # (N K, d)
        deltas = train_rows(f, starts, t, [i for _, i in rows], [seed for seed, _ in rows])
        deltas = deltas.view(len(seeds), len(ids), -1)
        for w, own in zip(W, deltas, strict=True):
            f.meter.exchange(w, own)
        if on_updates is not None:
            for seed, own in zip(seeds, deltas, strict=True):
                on_updates(seed, t, ids, own)
        W, state = server_step(W, _aggregate_each(deltas, p), f.server, state)  # element by element: of all at once
        finite = W.sum(dim=1).isfinite()
        if not finite.all():
            raise NumericalFailure(f"seed {seeds[int((~finite).nonzero()[0])]}, round {t}: the model is not finite")
    return W


def _aggregate_each(deltas: Tensor, weights: Tensor) -> Tensor:
    """`aggregate` of each federation: deltas (N, K, d), weights (K,) to (N, d), in float64 in client order."""
    total = torch.zeros((deltas.shape[0], deltas.shape[2]), dtype=torch.float64, device=deltas.device)
    for k, weight in enumerate(weights.tolist()):
        total.add_(deltas[:, k], alpha=weight)
    return total.to(deltas.dtype)
