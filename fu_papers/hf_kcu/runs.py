"""HF-KCU's experiments as runs: from a flat config to a record.

`train` makes original, retrained, poisoned and shard models; `shadow_federation` the attacker's own; `unlearn` lets one
method forget client 0 and evaluates; `fu_papers.hf_kcu.speed` times methods against retraining. Everything shown is
read from their records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core import partition
from fu_core.errors import ConfigError, NumericalFailure
from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.backdoor import Trigger, attack_success, poison
from fu_core.evaluation.equivalence import logit_mse, logits_kl, parameter_gap, prediction_agreement
from fu_core.evaluation.membership import Attack, fit_attack, shadow
from fu_core.federation import Federation, Meter
from fu_core.request import Deletion, Request
from fu_core.streams import stream
from fu_core.unlearning.baselines.sisa import Ensemble, shard_clients
from fu_core.unlearning.baselines.stored_vectors import trained_with_vectors
from fu_core.unlearning.curvature import curvature_product
from fu_core.unlearning.krylov import solve
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained, Unlearned, method
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.hf_kcu.grid import ASCENT, MATCHED, SAME_START, STORED, TARGET, shards_without_target, trials_of
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Config, Needs, Record, run_function
from fu_papers.lab.store import RecordStore
from fu_papers.problems import (
    PROBLEM_KEYS,
    TRAINING_FIELDS,
    Problem,
    client_opt,
    data_hash,
    initial_model,
    problem,
    train_resumably,
)

RESIDUAL_CLIENTS = (1, 2)  # whose CG the paper's appendix figure shows
RESIDUAL_ITERS = 30
TRAINING_KEYS = (*PROBLEM_KEYS, "rounds", *TRAINING_FIELDS, "poison", "trigger", "history", "seed", "init", "request")
CLEAN: Config = {"poison": 0.0, "trigger": [], "history": 0}  # without client 0 nothing is poisoned, or kept for it

Outputs = Callable[[Tensor], Tensor]  # x (n, ...) -> logits (n, C)


@run_function("hf_kcu.describe", data=data_hash)
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a setting consists of: who holds which classes, where the data comes from, how large the net is."""
    return problem(config).description, None


# --- training --------------------------------------------------------------------------------------------------------


@run_function("hf_kcu.train", data=data_hash)
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One training from scratch on what the config's request leaves; keeps the final model as "w".

    `poison`: client 0 has stamped that fraction of its images with the trigger. `history`: the updates of
    every so-many-th round are kept, too, for FedEraser. `init`: the seed of the initial weights, where it is not that
    of the batches.
    """
    p = problem(config)
    f, w_0 = federation(config, p), initial_model({"seed": config.get("init", config["seed"])}, p.model)
    asked = f.clients[TARGET]
    memory = _memory(config, w_0) if config["history"] else None
    if config["request"] != "none":
        f = f.after(Request.parse(config["request"]).resolve(f.clients))

    def scores(w: Tensor) -> dict[str, float]:
        return {"test": accuracy(p.model, w, *p.test), "forget": accuracy(p.model, w, *asked)}

    w = train_resumably(f, w_0, config["rounds"], context, scores, memory)
    kept = memory.tensors() if memory is not None else {}
    return {**context.rounds[-1], "bytes": f.meter.bytes, "images": f.meter.images}, {"w": w, **kept}


def federation(config: Config, p: Problem) -> Federation:
    """Everybody, with the data as it is trained on: client 0's may be poisoned."""
    f = p.federation(config)
    if not config["poison"]:
        return f
    if (target := config["trigger"][1]) >= p.dataset.classes:
        raise ConfigError(f"trigger_target must be a class, 0 to {p.dataset.classes - 1}, got {target}")
    poisoned = poison(
        f.clients[TARGET], _trigger(config), fraction=config["poison"], seed=config["seed"], client_id=TARGET
    )
    return f.having(clients={**f.clients, TARGET: poisoned})


def _trigger(config: Config) -> Trigger:
    size, target = config["trigger"]
    return Trigger(size=size, target=target)


def _memory(config: Config, w_0: Tensor) -> Memory:
    return Memory(UpdateHistory(w_0, config["history"]) if config["history"] else None)


def training_of(config: Config, **change: Any) -> Config:
    """The config of the training that a run's config belongs to."""
    return {key: value for key, value in config.items() if key in TRAINING_KEYS} | change


@run_function("hf_kcu.vectors", data=data_hash)
def vectors(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The training once more, with what each client of `leaving` would have changed by its absence carried along: a
    vector (d,) by its number. "passes": beyond those of training, before anybody asks.
    """
    p = problem(config)
    f = federation(config, p)
    leaving = Request.parse(config["leaving"]).resolve(f.clients).leaving
    _, found = trained_with_vectors(f, initial_model(config, p.model), config["rounds"], of=leaving)
    return {"passes": 2 * f.meter.products, "storage": f.meter.storage}, {str(u): a for u, a in found.items()}


# --- the attacker ----------------------------------------------------------------------------------------------------


@run_function("hf_kcu.shadow_federation", data=data_hash)
def shadow_federation(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A federation of the attacker's own, on data the target federation never sees (the held-out part).

    A random half, at most as many as the target federation trains on, is dealt out to clients and trained
    on; the other half is not. Keeps the logits and labels of both sides. `config["seed"]` numbers it.
    """
    p, seed = problem(config), config["seed"]
    x, y = p.validation
    order = torch.randperm(len(y), generator=stream(seed, "shadow split"))
    size = min(len(y) // 2, len(p.dataset.y_train))
    members, others = order[:size], order[len(y) - size :]
    parts = (
        partition.iid(size, config["clients"], seed=seed)
        if config["split"] == "iid"
        else partition.dirichlet(y[members].cpu(), config["clients"], alpha=config["alpha"], seed=seed)
    )
    own = {i: (x[members[part]], y[members[part]]) for i, part in enumerate(parts)}
    f = Federation(p.model, own, client_opt(config), seed)

    def scores(w: Tensor) -> dict[str, float]:
        return {
            "members": accuracy(p.model, w, x[members], y[members]),
            "others": accuracy(p.model, w, x[others], y[others]),
        }

    w = train_resumably(f, initial_model(config, p.model), config["rounds"], context, scores)
    kept = {"members": p.model.predict(w, x[members]), "others": p.model.predict(w, x[others])}
    return dict(context.rounds[-1]), {**kept, "members_y": y[members], "others_y": y[others]}


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


# --- unlearning ------------------------------------------------------------------------------------------------------


def needs(config: Config) -> Needs:
    """The trainings that an unlearning run starts from and is compared with, SISA's shards, and the attacker's own."""
    trainings = {
        "original": (train, training_of(config, request="none")),
        "retrained": (train, training_of(config, **CLEAN)),
    }
    found: dict[str, Any] = {name: trainings[name] for name in _looked_at(config)}
    if "shards" in config["options"]:
        for staying in _staying(config):
            gone = "-".join(str(i) for i in range(config["clients"]) if i not in staying)
            found[_shard(staying)] = (train, training_of(config, history=0, request=f"client-{gone}"))
    if config["method"] == STORED:
        carried = {**training_of(config, request="none", history=0), "leaving": config["request"]}
        found["vectors"] = (vectors, carried)
    if config["method"] == SAME_START:
        found["other batches"] = (train, training_of(config, **CLEAN, seed=config["batches"], init=config["seed"]))
    found |= {f"trial {k}": (trial, one) for k, one in enumerate(trials_of(config))}
    for s in range(config["attack"]):
        found[f"shadow {s}"] = (shadow_federation, training_of(config, **CLEAN, request="none", seed=s))
    return found


def _looked_at(config: Config) -> tuple[str, ...]:
    """Which of the two trainings a run reads. Random weights come from neither; they are compared where the attack is
    made, too, on the main setting. A second retraining is looked at by itself."""
    if config["method"] == DESTROYED:
        return ("retrained",) if config["attack"] else ()
    return ("retrained",) if config["method"] == AGAIN else ("original", "retrained")


def _staying(config: Config) -> list[list[int]]:
    return shards_without_target(config["clients"], config["options"]["shards"], config["seed"])


def _shard(staying: Sequence[int]) -> str:
    return f"shard {'-'.join(map(str, staying))}"


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
        read = {name: model_of(context, name) for name in _looked_at(config)}
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
        with context.phase("unlearn"):
            options = {**config["options"], **_carried(config, context)}
            found = serve(config["method"], trained, self.deletion, options, self.p.validation)
        found.cost.images += spent["images"]
        found.cost.bytes_up += spent["bytes"]
        if config["method"] == STORED:
            found.notes["passes_ahead"] = context.needed_record("vectors").metrics["passes"]
        return found


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


def _carried(config: Config, context: RunContext) -> dict[str, Any]:
    """The vectors that training has carried along, for the method that needs them."""
    if config["method"] != STORED:
        return {}
    return {"vectors": {int(u): a.to(device()) for u, a in context.needed("vectors").items()}}


def model_of(context: RunContext, name: str) -> Tensor:
    """The final model (d,) of a training that a run needs."""
    return context.needed(name, ["w"])["w"].to(device())


def trained_with(
    config: Config, context: RunContext, f: Federation, w: Tensor, shards: Mapping[tuple[int, ...], Tensor]
) -> Trained:
    """The federation after training to `w` (d,), with what the config's method needs of it: stored updates, shards."""
    w_0 = initial_model(config, f.model)
    memory = Memory(shards=shards)
    if method(config["method"]).needs.history:
        memory = _memory(config, w_0)
        memory.restore(context.needed("original"), device())
    return Trained(f, w, config["rounds"], w_0, memory)


def _shards(config: Config, context: RunContext) -> tuple[dict[tuple[int, ...], Tensor], dict[str, int]]:
    """SISA's shards, that of client 0 trained without it, and what that one training cost; none for other methods.

    By construction the very ensemble that `sisa_unlearn` returns: shards share no data and no random stream.
    """
    models: dict[tuple[int, ...], Tensor] = {}
    spent = {"images": 0, "bytes": 0}
    if "shards" not in config["options"]:
        return models, spent
    with_target = next(group for group in groups_of(config) if TARGET in group)
    for staying in _staying(config):
        models[tuple(staying)] = model_of(context, _shard(staying))
        if set(staying) < set(with_target):
            record = context.needed_record(_shard(staying))
            spent = {name: record.metrics[name] for name in spent}
    return models, spent


def groups_of(config: Config) -> list[list[int]]:
    """SISA's client groups."""
    return shard_clients(config["clients"], config["options"]["shards"], seed=config["seed"])


@run_function("hf_kcu.trial", data=data_hash, needs=needs)
def trial(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One choice of a method's hyper-parameters on a request that is not judged: how good?

    Metrics: "objective", the forget gap to Retrain plus the shortfall of accuracy on the half of the attacker's images
    that no method has as held-out ones, in points; the two; that of doing nothing. A choice that diverges says so.
    """
    case = Case.of(config, context)
    p, size = case.p, len(case.p.validation[1])
    x, y = (held[size // 2 :] for held in p.validation)

    def standing(outputs: Outputs) -> tuple[float, float]:
        asked, labels = case.clean.forget
        return (
            outputs_accuracy(p.model.task, outputs(asked).nan_to_num(), labels),
            outputs_accuracy(p.model.task, outputs(x).nan_to_num(), y),
        )

    assert case.original is not None  # as `needs` has it for every method with trials
    assert case.retrained is not None
    forget, useful = standing(partial(p.model.predict, case.retrained))

    def objective(outputs: Outputs) -> dict[str, float]:
        found = standing(outputs)
        gap, shortfall = abs(found[0] - forget), max(0.0, useful - found[1])
        return {"objective": gap + shortfall, "forget_gap": gap, "shortfall": shortfall}

    nothing = objective(partial(p.model.predict, case.original))["objective"]
    try:
        model, _, _ = case.served(config, context)
    except NumericalFailure as error:
        return {"diverged": str(error), "nothing": nothing}, None
    return {**objective(_outputs(p, model)), "nothing": nothing}, None


def best_trial(trials: Sequence[Record]) -> int:
    """Which of `trials` has the smallest objective; the first of equal ones, and none that diverged."""
    return min(range(len(trials)), key=lambda k: trials[k].metrics.get("objective", math.inf))


def _outputs(p: Problem, model: Any) -> Outputs:
    return model.log_probabilities if isinstance(model, Ensemble) else partial(p.model.predict, model)


@run_function("hf_kcu.unlearn", data=data_hash, needs=needs)
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method forgets; utility, forgetting, equivalence to Retrain, attack, and what it cost.

    With `trials` the method has the hyper-parameters of the best of them ("trial", its number), else `options`.
    """
    told: dict[str, Any] = {}
    if config["trials"]:
        told["trial"] = best_trial([context.needed_record(f"trial {k}") for k in range(len(config["trials"]))])
        config = {**config, "options": config["trials"][told["trial"]]}
    case = Case.of(config, context)
    p, (model, cost, notes) = case.p, case.served(config, context)
    outputs = _outputs(p, model)
    seen = Seen.by(outputs, case)
    metrics = evaluate(case, seen)
    if config["method"] != AGAIN:  # which is the retrained model of its own seed
        metrics |= compared(case, model, seen)
    if config["poison"]:
        for name, included in (("asr", False), ("asr_included", True)):
            metrics[name] = attack_success(outputs, *p.test, _trigger(config), include_target_class=included)
    if config["attack"]:
        metrics |= attacked(attack_of(config, context), case, seen)
    costs = {"images": cost.images, "products": cost.products, "bytes": cost.bytes, "passes": cost.gradient_passes}
    told |= {name: value for name, value in notes.items() if math.isfinite(value)}
    return {**metrics, **told, **costs}, None


class Seen(NamedTuple):
    """A model's logits on test images, on client 0's clean images, and on everything the others hold."""

    test: Tensor
    forget: Tensor
    retain: Tensor

    @classmethod
    def by(cls, outputs: Outputs, case: Case) -> Seen:
        """Run the model once over all. Where an exploded net has no finite output, it counts as zero."""
        images = (case.p.test[0], case.clean.forget[0], case.clean.retain[0])
        test, forget, retain = (outputs(x).nan_to_num() for x in images)
        return cls(test, forget, retain)


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
    found = shadow(attack, (seen.forget, case.clean.forget[1]), (seen.test, case.p.test[1]))
    return {"mia": found.balanced_accuracy, "mia_fraction": found.fraction, "mia_auc": found.auc}


# --- noise floor, residuals ------------------------------------------------------------------------------------------


def two_retrainings(config: Config) -> Needs:
    """Those of the seeds in `config["pair"]`."""
    return {str(seed): (train, training_of(config, **CLEAN, seed=seed)) for seed in config["pair"]}


@run_function("hf_kcu.noise_floor", data=data_hash, needs=two_retrainings)
def noise_floor(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Two retrainings that differ in nothing but the seed, `config["pair"]`: how far apart are they?"""
    p = problem(config)
    first, second = (model_of(context, str(seed)) for seed in config["pair"])
    a, b = (p.model.predict(w, p.test[0]) for w in (first, second))
    asked = Request.parse(config["request"]).resolve(p.clients).forget[0]
    forgotten = [p.model.predict(w, asked) for w in (first, second)]
    return {
        "kl_forget": (logits_kl(*forgotten) + logits_kl(*reversed(forgotten))) / 2,
        "kl": (logits_kl(a, b) + logits_kl(b, a)) / 2,
        "logit_mse": logit_mse(a, b),
        "logit_mse_centred": logit_mse(a, b, centred=True),
        "agreement": 100 * prediction_agreement(a, b),
        "gap": parameter_gap(first, second),
        "test": abs(outputs_accuracy(p.model.task, a, p.test[1]) - outputs_accuracy(p.model.task, b, p.test[1])),
    }, None


def the_original(config: Config) -> Needs:
    """The training that a run looks at or starts from."""
    return {"original": (train, training_of(config, request="none"))}


@run_function("hf_kcu.residuals", data=data_hash, needs=the_original)
def residuals(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """CG on a trained net's own damped Hessians, those of clients 1 and 2: relative residual per step."""
    p = problem(config)
    w = model_of(context, "original")
    curves = {}
    for matrix in ("hessian", "ggn"):
        for i in RESIDUAL_CLIENTS:
            product = curvature_product(p.model, w, [(1.0, p.clients[i])], matrix=matrix)
            g = p.model.grad(w, *p.clients[i])
            found = solve(product, g, iters=RESIDUAL_ITERS, damping=config["damping"], tol=0.0, negative="continue")
            norms = [norm / found.residual_norms[0] for norm in found.residual_norms]
            curves[f"{matrix}/{i}"] = {"residuals": norms, "negative": found.negative_steps}
    return {"curves": curves}, None


# --- what it costs, whoever leaves -----------------------------------------------------------------------------------


@run_function("hf_kcu.prices", data=data_hash, needs=the_original)
def prices(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Gradient passes of retraining, as long as the schedule says, and of every one of `variants`, by request of
    `requests`: counted, by no clock."""
    p = problem(config)
    f, w = federation(config, p), model_of(context, "original")
    trained = Trained(f, w, config["rounds"], initial_model(config, f.model))
    passes: dict[str, dict[str, float]] = {}
    for text in config["requests"]:
        deletion = Request.parse(text).resolve(f.clients)
        epochs = config["schedule_rounds"] * config["schedule_epochs"]
        passes[text] = {"retrain": epochs * len(deletion.retain[1])}
        for name, timed in config["variants"].items():
            cost = served(timed["method"], trained, deletion, timed["options"], p.validation).cost
            passes[text][name] = cost.gradient_passes
    return {"passes": passes}, None
