"""What an unlearning run of HF-KCU is about, how a method serves it, and what is measured then.

The runs themselves, and the trainings that they need, are in `fu_papers.hf_kcu.runs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fu_core.errors import ConfigError
from fu_core.evaluation.accuracy import outputs_accuracy
from fu_core.evaluation.backdoor import Trigger, poison
from fu_core.evaluation.equivalence import logit_mse, logits_kl, parameter_gap, prediction_agreement
from fu_core.evaluation.membership import Attack, fit_attack, shadow
from fu_core.federation import Federation, Meter
from fu_core.request import Deletion, Request
from fu_core.unlearning.baselines.sisa import Ensemble, shard_clients
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained, Unlearned, method
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.hf_kcu.grid import ASCENT, MATCHED, SAME_START, STORED, TARGET, shards_without_target
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Config
from fu_papers.lab.store import RecordStore
from fu_papers.problems import Problem, initial_model, problem

Outputs = Callable[[Tensor], Tensor]  # x (n, ...) -> logits (n, C)


def federation(config: Config, p: Problem) -> Federation:
    """Everybody, with the data as it is trained on: client 0's may be poisoned."""
    f = p.federation(config)
    if not config["poison"]:
        return f
    if (target := config["trigger"][1]) >= p.dataset.classes:
        raise ConfigError(f"trigger_target must be a class, 0 to {p.dataset.classes - 1}, got {target}")
    poisoned = poison(
        f.clients[TARGET], trigger_of(config), fraction=config["poison"], seed=config["seed"], client_id=TARGET
    )
    return f.having(clients={**f.clients, TARGET: poisoned})


def trigger_of(config: Config) -> Trigger:
    """The backdoor that client 0 has stamped, by its size and target class."""
    size, target = config["trigger"]
    return Trigger(size=size, target=target)


def memory_for(config: Config, w_0: Tensor) -> Memory:
    """What training keeps beside the model (d,): nothing, or the updates of every so-many-th round."""
    return Memory(UpdateHistory(w_0, config["history"]) if config["history"] else None)


def model_of(context: RunContext, name: str) -> Tensor:
    """The final model (d,) of a training that a run needs."""
    return context.needed(name, ["w"])["w"].to(device())


# --- a case, and the method that serves it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What an unlearning run is about: the federation as it was trained, the request, and both reference models.

    clean: the request on images without a trigger; forgetting is measured on those. original, retrained: None where
    the run does not look at them (`needs`).
    """

    p: Problem
    f: Federation
    deletion: Deletion
    clean: Deletion
    original: Tensor | None
    retrained: Tensor | None

    @classmethod
    def of(cls, config: Config, context: RunContext) -> Case:
        """Read the trainings that the config needs; they are run if need be."""
        p = problem(config)
        f, request = federation(config, p), Request.parse(config["request"])
        read = {name: model_of(context, name) for name in looked_at(config)}
        both = read.get("original"), read.get("retrained")
        return cls(p, f, request.resolve(f.clients), request.resolve(p.clients), *both)

    def served(self, config: Config, context: RunContext) -> Unlearned:
        """The config's method on the original model; doing nothing and retraining are read from their trainings."""
        references = {"Original": self.original, "Retrain": self.retrained, AGAIN: self.retrained}
        if config["method"] == SAME_START:
            references[SAME_START] = model_of(context, "other batches")
        if config["method"] in references:
            return Unlearned(references[config["method"]], Meter(), {})
        shards, spent = _shards(config, context)
        # random weights take the place of whatever was there
        w = initial_model(config, self.f.model) if self.original is None else self.original
        trained = trained_with(config, context, self.f, w, shards)
        serve = served_in_turn if config["in_turn"] else served
        with context.phase("unlearn"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the gradient of the whole loss is")  # on purpose; the record has it
            options = {**config["options"], **_carried(config, context)}
            found = serve(config["method"], trained, self.deletion, options, self.p.validation)
        found.cost.images += spent["images"]
        found.cost.bytes_up += spent["bytes"]
        if config["method"] == STORED:
            found.notes["passes_ahead"] = context.needed_record("vectors").metrics["passes"]
        return found


def looked_at(config: Config) -> tuple[str, ...]:
    """Which of the two trainings a run reads. Random weights come from neither; they are compared where the attack is
    made, too, on the main setting. A second retraining is looked at by itself."""
    if config["method"] == DESTROYED:
        return ("retrained",) if config["attack"] else ()
    return ("retrained",) if config["method"] == AGAIN else ("original", "retrained")


def served(
    name: str, trained: Trained, deletion: Deletion, options: Mapping[str, Any], unseen: tuple[Tensor, Tensor]
) -> Unlearned:
    """The library's method of that name; held-out images are the first of `unseen`, so many as `options` say.

    ASCENT goes as far as the corrected step does with these options, of which it knows the length and pays nothing;
    with a length of its own, that far.
    """
    if name == MATCHED:
        size = options["held_out"]
        return serve_request(name, trained, deletion, **{**options, "held_out": (unseen[0][:size], unseen[1][:size])})
    if name == ASCENT and "length" not in options:
        length = serve_request("HF-KCU", trained, deletion, **options).notes["length"]
        return serve_request(name, trained, deletion, length=max(length, 1e-12))
    return serve_request(name, trained, deletion, **options)


def served_in_turn(
    name: str, trained: Trained, deletion: Deletion, options: Mapping[str, Any], unseen: tuple[Tensor, Tensor]
) -> Unlearned:
    """As `served`, one client after the other: each request meets the model that the one before has left.

    The cost is that of all, the notes are the last one's.
    """
    total, notes = Meter(), dict[str, Any]()
    for i in deletion.targets:
        alone = Deletion.of(trained.federation.clients, [i])
        model, cost, notes = served(name, trained, alone, options, unseen)
        total.add(cost)
        # ordinary rounds, of which each has batches of its own
        gone_on = options.get("rounds", 0) + options.get("recovery", 0)
        trained = replace(trained, federation=trained.horizontal.after(alone), w=model, rounds=trained.rounds + gone_on)
    return Unlearned(trained.w, total, notes)


def trained_with(
    config: Config, context: RunContext, f: Federation, w: Tensor, shards: Mapping[tuple[int, ...], Tensor]
) -> Trained:
    """The federation after training to `w` (d,), with what the config's method needs of it: stored updates, shards."""
    w_0 = initial_model(config, f.model)
    memory = Memory(shards=shards)
    if method(config["method"]).needs.history:
        memory = memory_for(config, w_0)
        memory.restore(context.needed("original"), device())
    return Trained(f, w, config["rounds"], w_0, memory)


def _carried(config: Config, context: RunContext) -> dict[str, Any]:
    """The vectors that training has carried along, for the method that needs them."""
    if config["method"] != STORED:
        return {}
    return {"vectors": {int(u): a.to(device()) for u, a in context.needed("vectors").items()}}


def groups_of(config: Config) -> list[list[int]]:
    """SISA's client groups."""
    return shard_clients(config["clients"], config["options"]["shards"], seed=config["seed"])


def groups_without_target(config: Config) -> list[list[int]]:
    """SISA's client groups, with client 0 gone from its own."""
    return shards_without_target(config["clients"], config["options"]["shards"], config["seed"])


def shard_name(staying: Sequence[int]) -> str:
    """By which name a run needs the training of a group."""
    return f"shard {'-'.join(map(str, staying))}"


def _shards(config: Config, context: RunContext) -> tuple[dict[tuple[int, ...], Tensor], dict[str, int]]:
    """SISA's shards, that of client 0 trained without it, and what that one training cost; none for other methods.

    By construction the very ensemble that `sisa_unlearn` returns: shards share no data and no random stream.
    """
    models: dict[tuple[int, ...], Tensor] = {}
    spent = {"images": 0, "bytes": 0}
    if "shards" not in config["options"]:
        return models, spent
    with_target = next(group for group in groups_of(config) if TARGET in group)
    for staying in groups_without_target(config):
        models[tuple(staying)] = model_of(context, shard_name(staying))
        if set(staying) < set(with_target):
            record = context.needed_record(shard_name(staying))
            spent = {name: record.metrics[name] for name in spent}
    return models, spent


# --- what is measured ------------------------------------------------------------------------------------------------


def outputs_of(p: Problem, model: Any) -> Outputs:
    """What an unlearned model says, be it one vector (d,) or an ensemble."""
    return model.log_probabilities if isinstance(model, Ensemble) else partial(p.model.predict, model)


class Seen(NamedTuple):
    """A model's logits on test images, on client 0's clean images, and on everything the others hold."""

    test: Tensor
    forget: Tensor
    retain: Tensor

    @classmethod
    def by(cls, outputs: Outputs, case: Case) -> Seen:
        """Run the model once over all."""
        return cls(*(outputs(x) for x in (case.p.test[0], case.clean.forget[0], case.clean.retain[0])))

    def finite(self) -> Seen:
        """With zero for NaN: by this an exploded net is compared; that it is right nowhere, `evaluate` sees."""
        return Seen(*(outputs.nan_to_num() for outputs in self))


def evaluate(case: Case, seen: Seen) -> dict[str, float]:
    """Accuracy on test, forgotten and retained data."""
    p = case.p
    return {
        "n_test": len(p.test[1]),
        "test": outputs_accuracy(p.model.task, seen.test, p.test[1]),
        "forget": outputs_accuracy(p.model.task, seen.forget, case.clean.forget[1]),
        "retain": outputs_accuracy(p.model.task, seen.retain, case.clean.retain[1]),
    }


def compared(case: Case, model: Any, seen: Seen) -> dict[str, float]:
    """How near the outputs on test and forgotten data, and the parameters, are to those of the references that the case
    has."""
    found: dict[str, float] = {}
    seen = seen.finite()
    if case.retrained is not None:
        retrained = case.p.model.predict(case.retrained, case.p.test[0])
        found = {
            "kl": logits_kl(seen.test, retrained),
            "logit_mse": logit_mse(seen.test, retrained),
            "logit_mse_centred": logit_mse(seen.test, retrained, centred=True),
            "agreement": 100 * prediction_agreement(seen.test, retrained),
            "kl_forget": logits_kl(seen.forget, case.p.model.predict(case.retrained, case.clean.forget[0])),
        }
    for name, reference in (("gap", case.retrained), ("step", case.original)):
        if isinstance(model, Tensor) and reference is not None:
            found[name] = parameter_gap(model, reference)
    if isinstance(model, Tensor) and case.retrained is not None and case.original is not None:
        there = float((case.retrained - case.original).double().norm())
        found["distance"] = float((model - case.retrained).double().norm()) / there  # 1: doing nothing
        found["travelled"] = float((model - case.original).double().norm()) / there  # beside |Retrain - Original|
    return found


def attacked(attack: Attack, case: Case, seen: Seen) -> dict[str, float]:
    """The shadow attack on client 0's data, against test images that neither side has trained on."""
    seen = seen.finite()
    found = shadow(attack, (seen.forget, case.clean.forget[1]), (seen.test, case.p.test[1]))
    return {"mia": found.balanced_accuracy, "mia_fraction": found.fraction, "mia_auc": found.auc}


def attack_of(config: Config, context: RunContext) -> Attack:
    """The attack learnt from `config["attack"]` shadow federations; the same for every method and seed."""
    keys = tuple(context.needed_record(f"shadow {s}").key for s in range(config["attack"]))
    return _fitted(str(context.store.root), keys)


@lru_cache(maxsize=2)
def _fitted(root: str, keys: tuple[str, ...]) -> Attack:
    store = RecordStore(Path(root))
    kept = [store.tensors(key) for key in keys]
    members = [(t["members"], t["members_y"]) for t in kept]
    others = [(t["others"], t["others_y"]) for t in kept]
    return fit_attack(members, others, seed=0)
