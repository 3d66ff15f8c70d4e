"""SISA, federated: separate models for separate groups of clients (after Bourtoule et al., 2021).

    train    each of S shards (disjoint client groups) by FedAvg of its own
    unlearn  only the shards that held removed data, again from the start
    predict  p(x) = 1/S sum_s softmax(f_s(x))

Bourtoule et al. shard one data set; HF-KCU compares with a federated form and gives no details. Ours is
exact: the ensemble after unlearning is, bit for bit, the one that never saw the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, UnsupportedTask, check_count
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.many import fedavg_many
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs


@dataclass(frozen=True)
class SISA:
    """shards: S, how many where none were kept from training."""

    shards: int = 3

    def __post_init__(self) -> None:
        check_count("shards", self.shards)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Models that predict together. shards: the vector (d,) of each shard by its clients, in increasing order."""

    model: FlatModel
    shards: Mapping[tuple[int, ...], Tensor]

    def __post_init__(self) -> None:
        if not self.shards:
            raise InvalidRequest("shards must hold at least one model: an ensemble of none cannot predict")

    def log_probabilities(self, x: Tensor) -> Tensor:
        """Of the mean of the shards' softmax outputs (n, C), to be used wherever logits are. Deterministic.

        Raises `UnsupportedTask` for regression.
        """
        if self.model.task == "regression":
            raise UnsupportedTask("an ensemble of regressions has no class probabilities")
        outputs = torch.stack([self.model.predict(w, x) for w in self.shards.values()])  # (S, n, C)
        return outputs.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(outputs))  # log 1/S sum_s softmax(f_s)


def shard_clients(clients: int, shards: int, *, seed: int) -> list[list[int]]:
    """Clients 0 to `clients` - 1 in `shards` groups whose sizes differ by at most one, each sorted.

    Random: who is where, from the stream (seed, "shards").
    """
    check_count("shards", shards)
    check_count("clients", clients, least=shards)
    order = torch.randperm(clients, generator=stream(seed, "shards"))
    return [sorted(group.tolist()) for group in order.tensor_split(shards)]


def sisa(f: Federation, w_0: Tensor, rounds: int, shards: Sequence[Sequence[int]]) -> Ensemble:
    """Every shard trained from `w_0` (d,) on its own clients; who is in no shard takes no part.

    Random: as `fedavg`, by client, so that no shard depends on who is in another. Raises `ValueError` for shards
    that overlap, are empty or name an unknown client.
    """
    members = [i for ids in shards for i in ids]
    if not all(shards):
        raise ValueError(f"shards must be groups of at least one client each, got {list(map(list, shards))}")
    if len(set(members)) != len(members) or not set(members) <= set(f.clients):
        raise ValueError(f"shards must be disjoint groups of the clients {f.ids}, got {members}")
    before = f.meter.rounds
    trained = {}
    for ids in shards:
        own = {i: f.clients[i] for i in sorted(ids)}
        trained[tuple(own)] = fedavg(f.having(clients=own), w_0, rounds)
        f.meter.rounds = before + rounds  # shards train side by side
    f.meter.keep("shard models", *trained.values())
    return Ensemble(f.model, trained)


def in_shards(f: Federation, w_0: Tensor, rounds: int, config: SISA) -> Ensemble:
    """The ensemble that a federation would have had, had it been trained in shards; the meter counts nothing.

    Random: who is in which shard, from the federation's seed, and as `sisa`.
    """
    return sisa(f.having(meter=Meter()), w_0, rounds, _drawn(f, f.seed, config))


def in_shards_many(f: Federation, seeds: Sequence[int], w_0: Tensor, rounds: int, config: SISA) -> list[Ensemble]:
    """`in_shards` of N federations, `f` with each of `seeds`, from `w_0` (N, d): all shards of all of them at once.

    To rounding, and bit for bit with how="loop"; the meter counts nothing. Random and raises: as `fedavg_many`.
    """
    shards = [(k, tuple(sorted(ids))) for k, seed in enumerate(seeds) for ids in _drawn(f, seed, config)]
    seed_of, starts = [seeds[k] for k, _ in shards], w_0[[k for k, _ in shards]]
    trained = fedavg_many(f.having(meter=Meter()), seed_of, rounds, starts, of=[ids for _, ids in shards])
    found: list[dict[tuple[int, ...], Tensor]] = [{} for _ in seeds]
    for (k, ids), w in zip(shards, trained, strict=True):
        found[k][ids] = w
    return [Ensemble(f.model, own) for own in found]


def _drawn(f: Federation, seed: int, config: SISA) -> list[list[int]]:
    """The clients of each shard, as a training seed draws them."""
    return [[f.ids[k] for k in group] for group in shard_clients(len(f.ids), config.shards, seed=seed)]


def sisa_unlearn(f: Federation, ensemble: Ensemble, deletion: Deletion, w_0: Tensor, rounds: int) -> Ensemble:
    """The ensemble that never saw what is removed, exactly; `ensemble` is left untouched.

    Shards of targets are trained again on what their clients keep; others keep the very same vectors. A shard whose
    clients have all left drops out. A target in no shard has taught no model, so that nothing is to be done for it.
    `f`, `w_0` and `rounds` must be those of the training. Random: as `sisa`. Raises `InvalidRequest` if no shard
    is left.
    """
    staying = {ids: tuple(sorted(set(ids).difference(deletion.leaving))) for ids in ensemble.shards}
    untouched = {ids: w for ids, w in ensemble.shards.items() if set(ids).isdisjoint(deletion.targets)}
    again = [rest for ids, rest in staying.items() if rest and ids not in untouched]
    retrained = sisa(f.after(deletion), w_0, rounds, again).shards if again else {}
    models = {rest: untouched[ids] if ids in untouched else retrained[rest] for ids, rest in staying.items() if rest}
    f.meter.keep("shard models", *models.values())
    return Ensemble(f.model, models)


@register(
    "SISA",
    paper="Bourtoule et al., 2021",
    colour="#4b4e9e",
    parameters=SISA,
    needs=Needs(several_rounds=True),
    guarantee="exact",
    recovers=False,
)
def serve(trained: Trained, deletion: Deletion, config: SISA) -> Ensemble:
    """Shards come from memory; where none were kept, they are trained first, which counts as training, not as cost."""
    f, kept = trained.horizontal, trained.server_memory.shards
    w_0, rounds = trained.began
    ensemble = Ensemble(f.model, kept) if kept else in_shards(f, w_0, rounds, config)
    return sisa_unlearn(f, ensemble, deletion, w_0, rounds)
