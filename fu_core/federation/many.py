"""Many federations at once: same net, same local training, a training seed each, and the same clients or some of them.

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

from fu_core.errors import InvalidRequest, NumericalFailure, check_count, listed
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.server import ServerState, aggregate, server_step
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
    of: Sequence[Sequence[int]] | None = None,
) -> Tensor:
    """`rounds` rounds of FedAvg of N federations, `f` with each of `seeds`: their models (N, d).

    w_0: where they start, (N, d), or (d,) for all; default: `model.init(seed)` of each. Each is the model of
    `fedavg(f.having(seed=seed), ...)`, to rounding, and bit for bit with how="loop", where they are trained one by one.
    So they are where only a share of the clients takes part in a round. The meter counts what all cost together;
    `on_updates(seed, round, ids, deltas)` sees the updates (K, d) of each federation before they are averaged.

    of: the clients that each consists of, where they are not all of f's (as the shards of an ensemble).

    Random: batches and augmentation, from the streams of (seed, round, client). Raises `InvalidRequest` without seeds,
    and where `of` has no client, an unknown one, or one twice; ValueError for a `w_0` of another shape, and an `of` of
    another length; `UnsupportedTask` for peers; `NumericalFailure` naming seed and round on divergence.
    """
    check_count("rounds", rounds, least=0)
    _ = f.server  # raises among peers
    seeds = [int(seed) for seed in seeds]
    if not seeds:
        raise InvalidRequest("seeds must name at least one training seed, got none")
    if w_0 is None:
        w_0 = torch.stack([f.model.init(seed) for seed in seeds])
    one, each = (f.model.d,), (len(seeds), f.model.d)
    if w_0.shape not in (one, each):
        raise ValueError(f"w_0 must have shape {one}, or {each} with a row per seed, got {tuple(w_0.shape)}")
    starts, groups = w_0.expand(each), _groups(f, seeds, of)
    if f.how == "loop" or f.participation < 1:
        W = torch.empty(each, dtype=w_0.dtype, device=w_0.device)
        for w, start, seed, own in zip(W, starts, seeds, groups, strict=True):
            alone = f.having(seed=seed) if of is None else f.having(seed=seed, clients={i: f.clients[i] for i in own})
            seen = None if on_updates is None else partial(on_updates, seed)
            w.copy_(fedavg(alone, start, rounds, first_round=first_round, on_updates=seen))
        return W
    f, largest = prepared(f, w_0), max(map(len, groups))
    size = max(1, rows_at_once(w_0, len(seeds) * largest) // largest)
    blocks = [slice(k, k + size) for k in range(0, len(seeds), size)]
    return torch.cat([_train_block(f, seeds[b], groups[b], starts[b], first_round, rounds, on_updates) for b in blocks])


def _groups(f: Federation, seeds: Sequence[int], of: Sequence[Sequence[int]] | None) -> list[list[int]]:
    """The clients of each federation, sorted."""
    if of is None:
        return [f.ids] * len(seeds)
    if len(of) != len(seeds):
        raise ValueError(f"of must name the clients of each of {len(seeds)} federations, got {len(of)} groups")
    for ids in of:
        if not ids or len(set(ids)) < len(ids) or not set(ids) <= set(f.clients):
            raise InvalidRequest(f"of must be groups of different clients among {listed(f.clients)}, got {list(ids)}")
    return [sorted(ids) for ids in of]


def _train_block(
    f: Federation,
    seeds: list[int],
    groups: list[list[int]],
    W: Tensor,
    first_round: int,
    rounds: int,
    on_updates: OnUpdatesOfMany | None,
) -> Tensor:
    """All rounds of a few federations, whose clients are the rows of one matrix: federation by federation."""
    rows = [(seed, i) for seed, ids in zip(seeds, groups, strict=True) for i in ids]
    counts = [len(ids) for ids in groups]
    repeats, alike = torch.tensor(counts, device=W.device), all(ids == groups[0] for ids in groups)
    p = [sizes / sizes.sum() for sizes in map(f.sizes, groups[:1] if alike else groups)]
    state = ServerState()
    for t in range(first_round, first_round + rounds):
        starts = W.repeat_interleave(repeats, dim=0)  # a row per client of each
        rows_of_all = train_rows(f, starts, t, [i for _, i in rows], [seed for seed, _ in rows])
        deltas = rows_of_all.split(counts)
        for w, own in zip(W, deltas, strict=True):
            f.meter.exchange(w, own)
        if on_updates is not None:
            for seed, ids, own in zip(seeds, groups, deltas, strict=True):
                on_updates(seed, t, ids, own)
        if alike:
            mean = _aggregate_alike(rows_of_all.view(len(seeds), counts[0], -1), p[0])
        else:
            mean = torch.stack([aggregate(own, weights) for own, weights in zip(deltas, p, strict=True)])
        W, state = server_step(W, mean, f.server, state)  # element by element: of all at once
        finite = W.sum(dim=1).isfinite()
        if not finite.all():
            raise NumericalFailure(f"seed {seeds[int((~finite).nonzero()[0])]}, round {t}: the model is not finite")
    return W


def _aggregate_alike(deltas: Tensor, weights: Tensor) -> Tensor:
    """`aggregate` of federations of the same clients: deltas (N, K, d), weights (K,) to (N, d)."""
    total = torch.zeros((deltas.shape[0], deltas.shape[2]), dtype=torch.float64, device=deltas.device)
    for k, weight in enumerate(weights.tolist()):
        total.add_(deltas[:, k], alpha=weight)
    return total.to(deltas.dtype)
