"""SISA, federated: separate models for separate groups of clients (after Bourtoule et al., 2021).

    train    each of S shards (disjoint client groups) by FedAvg of its own, R rounds,
             in R_s steps of R / R_s rounds: step q sees data slices 1 to q; keep the model after each
    unlearn  only shards that held removed data, from the last model that had not seen it
    predict  p(x) = 1/S sum_s softmax(f_s(x)), or the share of shards that vote for each class

Bourtoule et al. shard one data set; HF-KCU compares with a federated form and gives no details. Ours is
exact: the ensemble after unlearning is, bit for bit, the one that never saw the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, UnsupportedTask, check_choice, check_count
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.streams import stream


@dataclass(frozen=True, eq=False)
class SISA:
    """A trained ensemble. Never overwritten: unlearning returns another one.

    shards[s]: client ids; checkpoints[s][q]: the vector (d,) after slice q, q = 0 the initial model;
    keep[j]: what is left of client j, as indices into its samples, if it has given up some.
    """

    shards: tuple[tuple[int, ...], ...]
    checkpoints: tuple[tuple[Tensor, ...], ...]
    keep: Mapping[int, Tensor]

    @property
    def slices(self) -> int:
        """R_s."""
        return len(self.checkpoints[0]) - 1

    @property
    def models(self) -> list[Tensor]:
        """The vector (d,) of each shard after its last slice: who votes."""
        return [steps[-1] for steps in self.checkpoints]


def shard_clients(clients: int, shards: int, *, seed: int) -> list[list[int]]:
    """Clients 0 to `clients` - 1 in `shards` groups whose sizes differ by at most one, each sorted.

    Random: who is where, from the stream (seed, "shards").
    """
    check_count("shards", shards)
    check_count("clients", clients, least=shards)
    order = torch.randperm(clients, generator=stream(seed, "shards"))
    return [sorted(group.tolist()) for group in order.tensor_split(shards)]


def slice_numbers(n: int, slices: int, *, seed: int, client: int) -> Tensor:
    """Which slice, 1 to `slices`, each of a client's `n` samples is in (n,): consecutive chunks of a shuffle.

    Random: the shuffle, from the stream (seed, "slices", client).
    """
    order = torch.randperm(n, generator=stream(seed, "slices", client))
    numbers = torch.empty(n, dtype=torch.long)
    for q, chunk in enumerate(order.tensor_split(slices), start=1):
        numbers[chunk] = q
    return numbers


def sisa_train(
    model: FlatModel,
    w_init: Tensor,
    clients: Sequence[Client],
    *,
    shards: Sequence[Sequence[int]],
    slices: int = 1,
    rounds: int,
    local: ClientOpt,
    seed: int,
    keep: Mapping[int, Tensor] | None = None,
    meter: Meter | None = None,
) -> SISA:
    """Every shard trained from `w_init` (d,) on its own clients; who is in no shard takes no part.

    slices: R_s, must divide `rounds`, which continue from slice to slice. keep: indices into the samples
    of client j to train on, all by default; slices are cut before, so they do not depend on it.

    Random: as `fedavg` and `slice_numbers`, by client, so that no shard depends on who is in another.
    Raises `ValueError` for shards that overlap, are empty or name an unknown client.
    """
    _check_schedule(rounds, slices)
    members = [i for ids in shards for i in ids]
    if not shards or not all(shards):
        raise ValueError(f"shards must be groups of at least one client each, got {list(map(list, shards))}")
    if len(set(members)) != len(members) or not set(members) <= set(range(len(clients))):
        raise ValueError(f"shards must be disjoint groups of clients 0 to {len(clients) - 1}, got {members}")
    keep = _checked(keep or {}, clients, members)
    start = (w_init.detach().clone(),)
    groups = tuple(tuple(sorted(ids)) for ids in shards)
    trained = tuple(
        _train_shard(
            model, start, clients, ids, keep, slices=slices, rounds=rounds, local=local, seed=seed, meter=meter
        )
        for ids in groups
    )
    if meter is not None:
        meter.rounds = rounds  # shards train side by side
        meter.keep("shard checkpoints", *(w for steps in trained for w in steps[1:]))
    return SISA(groups, trained, keep)


def sisa_unlearn(
    model: FlatModel,
    state: SISA,
    clients: Sequence[Client],
    targets: Sequence[int],
    *,
    keep: Mapping[int, Tensor] | None = None,
    rounds: int,
    local: ClientOpt,
    seed: int,
    meter: Meter | None = None,
) -> SISA:
    """The ensemble that never saw what `targets` remove, exactly; `state` is left untouched.

    A target j leaves altogether, or, if `keep` has it, stays with the samples `keep[j]` (indices into
    `clients[j]` as it was in training). A shard whose clients have all left drops out of the ensemble.
    `clients`, `rounds`, `local` and `seed` must be those of the training. Random: as `sisa_train`.

    Raises `InvalidRequest` if targets names nobody, or somebody in no shard or twice; if a target has
    nothing left to remove or wants samples back; if no shard is left.
    """
    _check_schedule(rounds, state.slices)
    shard_of = {i: s for s, ids in enumerate(state.shards) for i in ids}
    _check_targets(targets, shard_of)
    keep = _checked(keep or {}, clients, targets)

    resume: dict[int, int] = {}  # shard: first slice that held removed data
    for j in targets:
        n = len(clients[j][1])
        before = _held(n, state.keep.get(j))
        after = _held(n, keep[j]) if j in keep else torch.zeros(n, dtype=torch.bool)
        removed = before & ~after
        if (after & ~before).any():
            raise InvalidRequest(f"keep[{j}] holds samples that client {j} has removed before")
        if not removed.any():
            raise InvalidRequest(f"targets names client {j}, which removes nothing it still has")
        q = int(slice_numbers(n, state.slices, seed=seed, client=j)[removed].min())
        resume[shard_of[j]] = min(q, resume.get(shard_of[j], q))

    leaving = set(targets) - set(keep)
    keep = {i: index for i, index in {**state.keep, **keep}.items() if i not in leaving}
    shards, trained, steps_run = [], [], 0
    for s, (ids, steps) in enumerate(zip(state.shards, state.checkpoints, strict=True)):
        stay = tuple(i for i in ids if i not in leaving)
        if not stay:
            continue
        if s in resume:
            start = steps[: resume[s]]  # after slices 0 to q - 1
            steps_run = max(steps_run, len(steps) - len(start))
            steps = _train_shard(
                model,
                start,
                clients,
                stay,
                keep,
                slices=state.slices,
                rounds=rounds,
                local=local,
                seed=seed,
                meter=meter,
            )
        shards.append(stay)
        trained.append(steps)
    if not shards:
        raise InvalidRequest(f"targets empties every shard: none of the {len(shard_of)} clients would be left")
    if meter is not None:
        meter.rounds = steps_run * (rounds // state.slices)  # shards train side by side
        meter.keep("shard checkpoints", *(w for steps in trained for w in steps[1:]))
    return SISA(tuple(shards), tuple(trained), keep)


def ensemble_log_probabilities(model: FlatModel, models: Sequence[Tensor], x: Tensor, how: str = "mean") -> Tensor:
    """Log-probabilities (n, C) of an ensemble of vectors (d,), to be used wherever logits are. Deterministic.

    "mean": of the shards' softmax outputs. "vote": of the share of shards whose first choice a class is,
    at least 1e-12, so that the logarithm stays finite. Raises `UnsupportedTask` for regression.
    """
    check_choice("how", how, ("mean", "vote"))
    if model.task == "regression":
        raise UnsupportedTask("an ensemble of regressions has no class probabilities")
    outputs = torch.stack([model.predict(w, x) for w in models])  # (S, n, C)
    if how == "mean":
        return outputs.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(models))  # log 1/S sum_s softmax(f_s)
    votes = torch.zeros_like(outputs).scatter_(2, outputs.argmax(dim=2, keepdim=True), 1.0)
    return votes.mean(dim=0).clamp(min=1e-12).log()


def _train_shard(
    model: FlatModel,
    start: tuple[Tensor, ...],
    clients: Sequence[Client],
    ids: Sequence[int],
    keep: Mapping[int, Tensor],
    *,
    slices: int,
    rounds: int,
    local: ClientOpt,
    seed: int,
    meter: Meter | None,
) -> tuple[Tensor, ...]:
    """The shard's checkpoints: those in `start`, then the remaining slices trained.

    A step in which nobody in the shard has samples yet leaves the model as it is.
    """
    steps, per_slice = list(start), rounds // slices
    for q in range(len(start), slices + 1):
        data = {i: _up_to_slice(clients[i], keep.get(i), q, slices, seed, i) for i in ids}
        present = {i: client for i, client in data.items() if len(client[1])}
        w = steps[-1]
        if present:
            w = fedavg(
                model,
                w,
                [present.get(i, client) for i, client in enumerate(clients)],
                rounds=per_slice,
                local=local,
                seed=seed,
                exclude=[i for i in range(len(clients)) if i not in present],
                first_round=(q - 1) * per_slice + 1,
                meter=meter,
            )
        steps.append(w)
    return tuple(steps)


def _up_to_slice(client: Client, keep: Tensor | None, q: int, slices: int, seed: int, client_id: int) -> Client:
    """What the client still has of its slices 1 to q, in its own order."""
    x, y = client
    held = _held(len(y), keep) & (slice_numbers(len(y), slices, seed=seed, client=client_id) <= q)
    return client if held.all() else (x[held], y[held])


def _held(n: int, keep: Tensor | None) -> Tensor:
    """Which of `n` samples remain (n,) bool; all, if nothing was given up."""
    if keep is None:
        return torch.ones(n, dtype=torch.bool)
    return torch.zeros(n, dtype=torch.bool).index_fill(0, keep, True)


def _checked(keep: Mapping[int, Tensor], clients: Sequence[Client], allowed: Sequence[int]) -> dict[int, Tensor]:
    """`keep` sorted and copied; raises `InvalidRequest` for clients or samples that it cannot name."""
    checked = {}
    for j, index in keep.items():
        if j not in allowed:
            raise InvalidRequest(f"keep names client {j}, but only {sorted(allowed)} may keep a part of their data")
        n, unique = len(clients[j][1]), torch.as_tensor(index, dtype=torch.long).unique()  # sorted, a copy
        if not len(unique):
            raise InvalidRequest(f"keep[{j}] is empty: a client that keeps nothing leaves; name it in targets alone")
        if len(unique) != len(index) or unique[0] < 0 or unique[-1] >= n:
            raise InvalidRequest(f"keep[{j}] must be distinct indices from 0 to {n - 1}")
        checked[j] = unique
    return checked


def _check_targets(targets: Sequence[int], shard_of: Mapping[int, int]) -> None:
    if not targets:
        raise InvalidRequest("targets names nobody: at least one client must remove data")
    unknown = [j for j in targets if j not in shard_of]
    if unknown:
        raise InvalidRequest(f"targets names client {unknown[0]}, which is in no shard: {sorted(shard_of)} are")
    if len(set(targets)) != len(targets):
        raise InvalidRequest(f"targets names a client twice: {list(targets)}")


def _check_schedule(rounds: int, slices: int) -> None:
    check_count("slices", slices)
    check_count("rounds", rounds)
    if rounds % slices:
        raise ValueError(f"rounds must be a multiple of slices ({slices}), got {rounds}")
