"""Many models of one federation, and one method that makes all of them forget the same.

    originals = Pool.trained(f, seeds, rounds)                    N models (N, d), a training seed each
    served = serve("PUF-Special", originals, "client-3")          N unlearned models, what one of them cost
    outputs_of(f.model, served.models, x)                         (N, n, C), for the judges

Trainings and rounds of recovery are those of all models at once; only the method itself is called model by model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.func import vmap

from fu_core.evaluation.accuracy import outputs_accuracy
from fu_core.evaluation.margins import margins
from fu_core.federation import Federation, Meter
from fu_core.federation.many import fedavg_many
from fu_core.federation.together import prepared
from fu_core.models import FlatModel
from fu_core.request import Deletion
from fu_core.streams import stream, stream_seed
from fu_core.unlearning.baselines.sisa import SISA, Ensemble, in_shards_many
from fu_core.unlearning.memory import Memory, PeerHistory, UpdateHistory
from fu_core.unlearning.method import Method, Trained, unlearn
from fu_core.unlearning.method import method as registered

CONSTANT = "Constant output"  # all parameters zero: every margin is the same, and nothing is told
NOISY = "Original with noise"  # blurred, which is not forgotten
LONGER = "Retrain, trained on"  # as long as Natural recovers: what more rounds change by themselves, to forget nothing
MUCH_LONGER = "Retrain, trained on longer"
ORDINARY = "Natural, longer"  # as many ordinary rounds as the dearest steps cost: whoever pays that much must beat it
ENSEMBLES = "SISA, nothing removed"  # what SISA would have been before the request: its own doing nothing
BY_HAND = (LONGER, MUCH_LONGER, ORDINARY, ENSEMBLES, CONSTANT, NOISY)  # controls that no registered method makes


@dataclass(frozen=True, eq=False)
class Pool:
    """N trainings of one federation. seeds: one each; w_0, w (N, d): where they began, and ended after `rounds`.

    Federations without a server have pools of their own, whose `w` is of another shape (see `worlds`).
    """

    f: Any
    seeds: Sequence[int]
    rounds: int
    w_0: Tensor
    w: Tensor

    @classmethod
    def trained(cls, f: Any, seeds: Sequence[int], rounds: int, deletion: Deletion | None = None) -> Self:
        """All at once, on what a deletion leaves. Random: initial weights from the streams (seed, "init"), batches as
        `fedavg_many`. What it costs is counted by the federation's meter."""
        w_0 = cls.starts(f, seeds)
        left = f if deletion is None else f.after(deletion)
        return cls(f, list(seeds), rounds, w_0, fedavg_many(left, seeds, rounds, w_0))

    @staticmethod
    def starts(f: Any, seeds: Sequence[int]) -> Tensor:
        """Where the trainings of these seeds start (N, d), on the device of the clients' data."""
        device = next(iter(f.clients.values()))[0].device
        return torch.stack([f.model.init(stream_seed(seed, "init")) for seed in seeds]).to(device)

    def one(self, k: int, memory: Memory | PeerHistory) -> Trained:
        """The k-th training, as a request meets it."""
        return Trained(self.f.having(seed=self.seeds[k]), self.w[k], self.rounds, self.w_0[k], memory)

    def recover(
        self, models: list[Any], deletion: Deletion, first_round: int, rule: Recovery, fixed: int | None
    ) -> tuple[list[Any], list[int], list[bool], Meter]:
        """Rounds of those who stay, until the rule stops each model: the models, how many rounds, whether it got there
        within the cap, and what they cost.

        fixed: so many for all of them, whatever the rule says.
        """
        stays = self.f.after(deletion).having(meter=Meter())
        w, rounds, reached = recovered(stays, self.seeds, torch.stack(models), first_round, rule, fixed)
        return list(w), rounds, reached, stays.meter

    @staticmethod
    def to_judge(models: Sequence[Any]) -> Tensor | list[Any]:
        """N models as judges look at them: vectors (N, d), or ensembles."""
        return torch.stack(list(models)) if isinstance(models[0], Tensor) else list(models)

    def unseen(self, held_out: tuple[Tensor, Tensor], deletion: Deletion) -> Any:
        """Of samples that nobody trained on, those of the classes that are forgotten, as this federation holds data."""
        same = torch.isin(held_out[1], deletion.forget[1])
        return held_out[0][same], held_out[1][same]

    def memories(self, history: bool) -> Sequence[Memory | PeerHistory]:
        """What a server would have kept of each training, by training again: updates of all rounds, or of the last."""
        kept = {
            seed: Memory(UpdateHistory(w) if history else None, last_round=self.rounds)
            for seed, w in zip(self.seeds, self.w_0, strict=True)
        }

        def record(seed: int, round: int, ids: list[int], deltas: Tensor) -> None:
            kept[seed].record(round, ids, deltas)

        fedavg_many(self.f.having(meter=Meter()), self.seeds, self.rounds, self.w_0, on_updates=record)
        return list(kept.values())


@dataclass(frozen=True)
class Recovery:
    """Rounds of FedAvg after a method that asks for them: until a model's accuracy on `held_out` is `goal`, or `cap`.

    goal: in percent, of Retrain. natural: of Natural, which is nothing but such rounds, and stops after so many.
    """

    held_out: tuple[Tensor, Tensor] = field(repr=False)
    goal: float
    cap: int
    natural: int = 2


@dataclass(frozen=True, eq=False)
class Served:
    """models: the unlearned ones, (N, d), or N ensembles; cost: of one model on average, counted as `Meter` does, with
    "storage", bytes that the method must keep; recovery: rounds of each; seconds: of one model, SISA's with the
    training of its shards; reached: of each, whether it got to where recovery may stop (True where nothing recovers).
    """

    models: Tensor | list[Any]
    cost: dict[str, float]
    recovery: list[int]
    seconds: float
    reached: list[bool]

    @classmethod
    def at_once(cls, models: Tensor | list[Any], cost: Mapping[str, float] | None = None, seconds: float = 0.0) -> Self:
        """Models that nobody recovers, at no cost but this."""
        spent = dict.fromkeys(("bytes", "passes", "rounds", "storage"), 0.0) | dict(cost or {})
        return cls(models, spent, [0] * len(models), seconds, [True] * len(models))


def serve(
    name: str, pool: Pool, deletion: Deletion, recovery: Recovery, options: Mapping[str, Any] | None = None
) -> Served:
    """Let the method `name` serve the request on every model of the pool, and recover. The pool stays as it is.

    A method that needs what was kept during training gets it. Raises as `unlearn`, the library's, for a request that
    the method refuses, and `NumericalFailure` where it diverges.
    """
    about = registered(name)
    needs = about.needs
    memories: Sequence[Memory | PeerHistory] = [Memory()] * len(pool.seeds)
    if needs.history or needs.stateful_clients:
        memories = pool.memories(needs.history)
    kept = [sum(t.numel() * t.element_size() for t in memory.tensors().values()) for memory in memories]
    given = {**_further_data(about, pool, deletion, recovery), **(options or {})}
    began = time.perf_counter()
    if about.parameters is SISA and type(pool) is Pool:  # whose shards are trained all at once; it counts them itself
        memories = [Memory(shards=ensemble.shards) for ensemble in ensembles(pool, about.configured(**(options or {})))]
    models, spent = [], Meter()
    for k, memory in enumerate(memories):
        found = unlearn(name, pool.one(k, memory), deletion, **given)
        models.append(found.model)
        spent.add(found.cost)
        spent.kept["storage"] = spent.storage + found.cost.storage
    rounds, reached = [0] * len(models), [True] * len(models)
    if about.recovers and isinstance(models[0], Tensor):
        begins = pool.rounds + 1 + spent.scheduled // len(models)
        fixed = recovery.natural if name == "Natural" else None
        models, rounds, reached, more = pool.recover(models, deletion, begins, recovery, fixed)
        spent.add(more)
    seconds = (time.perf_counter() - began) / len(models)
    storage = (spent.storage + sum(kept)) / len(models)
    cost = {**per_model(spent, len(models)), "storage": storage}
    return Served(pool.to_judge(models), cost, rounds, seconds, reached)


def _further_data(about: Method, pool: Pool, deletion: Deletion, recovery: Recovery) -> dict[str, Any]:
    """What nobody trained on, for a method that asks for it by the name of one of its parameters."""
    if not about.needs.auxiliary_data or not is_dataclass(about.parameters):
        return {}
    asked = {f.name for f in fields(about.parameters)}
    if "unseen" in asked:
        return {"unseen": pool.unseen(recovery.held_out, deletion)}
    return {"held_out": recovery.held_out} if "held_out" in asked else {}


def trained_on(pool: Pool, deletion: Deletion, recovery: Recovery, cost: Mapping[str, float]) -> Served:
    """Retrained models (`pool`, at the price `cost` of one) after as many ordinary rounds as Natural has."""
    began = time.perf_counter()
    models, rounds, reached, meter = pool.recover(list(pool.w), deletion, pool.rounds + 1, recovery, recovery.natural)
    more = per_model(meter, len(rounds))
    whole = {name: cost[name] + more[name] for name in more}
    seconds = (time.perf_counter() - began) / len(rounds)
    return Served(pool.to_judge(models), {**whole, "storage": 0.0}, rounds, seconds, reached)


def per_model(meter: Meter, N: int) -> dict[str, float]:
    """What a meter of N models counted, of one on average: bytes, passes of samples ("images"), rounds."""
    return {"bytes": meter.bytes / N, "passes": meter.gradient_passes / N, "rounds": meter.rounds / N}


def recovered(
    f: Federation, seeds: Sequence[int], w: Tensor, first_round: int, rule: Recovery, fixed: int | None = None
) -> tuple[Tensor, list[int], list[bool]]:
    """Rounds of FedAvg from `w` (N, d) until the rule stops each model: the models after it, how many rounds, and
    which got to the rule's goal.

    fixed: so many for all of them, whatever the rule says; all have got there then.
    """
    w, done = w.clone(), torch.zeros(len(seeds), dtype=torch.long)
    running = torch.arange(len(seeds))
    quick, (x, y) = prepared(f, w), rule.held_out

    def still_short(i: Tensor) -> Tensor:
        return i[torch.tensor(accuracies(outputs_of(f.model, w[i], x), y)) < rule.goal] if len(i) else i

    for k in range(rule.cap if fixed is None else fixed):
        if fixed is None:
            running = still_short(running)
        if len(running) == 0:
            break
        chosen = [seeds[i] for i in running.tolist()]
        w[running] = fedavg_many(quick, chosen, 1, w[running], first_round=first_round + k)
        done[running] += 1
    reached = torch.ones(len(seeds), dtype=torch.bool)
    if fixed is None:
        reached[still_short(running)] = False
    return w, done.tolist(), reached.tolist()


def control(name: str, pool: Pool, noise: float) -> Tensor:
    """What the controls that no method makes consist of (N, d). Random: the noise, from the streams (seed, "noise").

    noise: in standard deviations of a model's parameters.
    """
    w = pool.to_judge(list(pool.w))
    assert isinstance(w, Tensor)  # originals are no ensembles
    if name == CONSTANT:
        return torch.zeros_like(w)
    draws = [torch.randn(w.shape[1], generator=stream(seed, "noise")) for seed in pool.seeds]
    return w + noise * w.std(dim=1, keepdim=True) * torch.stack(draws).to(w)


def ensembles(pool: Pool, config: SISA | None = None) -> list[Ensemble]:
    """What SISA would have made of the trainings of a pool, had they been in shards: N ensembles."""
    return in_shards_many(pool.f, pool.seeds, pool.w_0, pool.rounds, config or SISA())


class Net(Protocol):
    """What vectors are parameters of: a `FlatModel`, or the nets of vertical parties."""

    @property
    def dense_tail(self) -> FlatModel | None: ...

    def predict(self, w: Tensor, x: Tensor) -> Tensor: ...


@torch.no_grad()
def outputs_of(model: Net, models: Tensor | list[Any], x: Tensor) -> Tensor:
    """Logits (N, n, C) of N models (N, d); of ensembles, log-probabilities, which margins take as well."""
    if not isinstance(models, Tensor):
        return torch.stack([ensemble.log_probabilities(x) for ensemble in models])
    if model.dense_tail is None:
        return torch.stack([model.predict(w, x) for w in models])
    assert isinstance(model, FlatModel)
    features, tail = model.features(x, models), model.dense_tail
    return torch.cat([vmap(tail.logits, (0, None))(w, features) for w in models.split(16)])


def accuracies(outputs: Tensor, y: Tensor) -> list[float]:
    """Accuracy of each of N models in percent, from outputs (N, n, C)."""
    return [outputs_accuracy("classification", of_one, y) for of_one in outputs]


Sides = Mapping[str, tuple[Tensor, Tensor]]  # "forget", "retain", "test" -> samples (x, y)


def evaluated(model: Net, served: Served, sides: Sides, most: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is kept of unlearned models: numbers, and margins (N, S) of at most so many examples of each kind.

    Numbers, lists with one per model: accuracy in percent on each side, rounds of recovery, and whether it got there;
    of one model: its cost and seconds. The kind "unseen" is of test examples of the classes that stay, with which who
    stays can be compared. Random: which examples, the same for every method, from the streams (0, "examples", side).
    """
    found: dict[str, Any] = {**served.cost, "recovery": served.recovery, "reached": served.reached,
                             "seconds": served.seconds}  # fmt: skip
    kept, classes = {}, sides["retain"][1].unique()
    for side, (x, y) in sides.items():
        outputs = outputs_of(model, served.models, x)
        found[side] = accuracies(outputs, y)
        order = torch.randperm(len(y), generator=stream(0, "examples", side)).to(y.device)
        chosen = order[:most].sort().values
        kept[side] = margins(outputs[:, chosen], y[chosen])
        if side == "test":
            alike = order[torch.isin(y[order], classes)][:most].sort().values
            kept["unseen"] = margins(outputs[:, alike], y[alike])
    return found, kept


def distances(models: Tensor | list[Any], of: Tensor, pair: tuple[Tensor, Tensor]) -> list[float] | None:
    """|models - of| over the distance of `pair`, row by row (N); None for ensembles, which are no vectors."""
    if not isinstance(models, Tensor):
        return None
    apart = (pair[0] - pair[1]).double().norm(dim=1)
    ratios: list[float] = ((models - of).double().norm(dim=1) / apart).tolist()
    return ratios
