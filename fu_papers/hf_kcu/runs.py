"""HF-KCU's experiments as runs: from a flat config to a record.

`train` makes original, retrained, poisoned and shard models; `shadow_federation` the attacker's own; `unlearn` lets one
method forget client 0 and evaluates, with what `fu_papers.hf_kcu.case` holds; `fu_papers.hf_kcu.speed` times methods
against retraining. Everything shown is read from their records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fu_core import partition
from fu_core.errors import NumericalFailure
from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.backdoor import attack_success
from fu_core.evaluation.equivalence import logit_mse, logits_kl, parameter_gap, prediction_agreement
from fu_core.federation import Federation
from fu_core.request import Request
from fu_core.streams import stream
from fu_core.unlearning.baselines.stored_vectors import trained_with_vectors
from fu_core.unlearning.curvature import curvature_product
from fu_core.unlearning.krylov import solve
from fu_core.unlearning.method import Trained
from fu_papers.controls import AGAIN
from fu_papers.hf_kcu.case import (
    Case,
    Outputs,
    Seen,
    attack_of,
    attacked,
    compared,
    evaluate,
    federation,
    groups_without_target,
    looked_at,
    memory_for,
    model_of,
    outputs_of,
    served,
    shard_name,
    trigger_of,
)
from fu_papers.hf_kcu.grid import SAME_START, STORED, TARGET, trials_of
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Config, Needs, Record, run_function
from fu_papers.problems import (
    PROBLEM_KEYS,
    TRAINING_FIELDS,
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
    memory = memory_for(config, w_0) if config["history"] else None
    if config["request"] != "none":
        f = f.after(Request.parse(config["request"]).resolve(f.clients))

    def scores(w: Tensor) -> dict[str, float]:
        return {"test": accuracy(p.model, w, *p.test), "forget": accuracy(p.model, w, *asked)}

    w = train_resumably(f, w_0, config["rounds"], context, scores, memory)
    kept = memory.tensors() if memory is not None else {}
    return {**context.rounds[-1], "bytes": f.meter.bytes, "images": f.meter.images}, {"w": w, **kept}


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


# --- unlearning ------------------------------------------------------------------------------------------------------


def needs(config: Config) -> Needs:
    """The trainings that an unlearning run starts from and is compared with, SISA's shards, and the attacker's own."""
    trainings = {
        "original": (train, training_of(config, request="none")),
        "retrained": (train, training_of(config, **CLEAN)),
    }
    found: dict[str, Any] = {name: trainings[name] for name in looked_at(config)}
    if "shards" in config["options"]:
        for staying in groups_without_target(config):
            gone = "-".join(str(i) for i in range(config["clients"]) if i not in staying)
            found[shard_name(staying)] = (train, training_of(config, history=0, request=f"client-{gone}"))
    if config["method"] == STORED:
        carried = {**training_of(config, request="none", history=0), "leaving": config["request"]}
        found["vectors"] = (vectors, carried)
    if config["method"] == SAME_START:
        found["other batches"] = (train, training_of(config, **CLEAN, seed=config["batches"], init=config["seed"]))
    found |= {f"trial {k}": (trial, one) for k, one in enumerate(trials_of(config))}
    for s in range(config["attack"]):
        found[f"shadow {s}"] = (shadow_federation, training_of(config, **CLEAN, request="none", seed=s))
    return found


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
            outputs_accuracy(p.model.task, outputs(asked), labels),
            outputs_accuracy(p.model.task, outputs(x), y),
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
    return {**objective(outputs_of(p, model)), "nothing": nothing}, None


def best_trial(trials: Sequence[Record]) -> int:
    """Which of `trials` has the smallest objective; the first of equal ones, and none that diverged."""
    return min(range(len(trials)), key=lambda k: trials[k].metrics.get("objective", math.inf))


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
    outputs = outputs_of(p, model)
    seen = Seen.by(outputs, case)
    metrics = evaluate(case, seen)
    if config["method"] != AGAIN:  # which is the retrained model of its own seed
        metrics |= compared(case, model, seen)
    if config["poison"]:
        for name, included in (("asr", False), ("asr_included", True)):
            metrics[name] = attack_success(outputs, *p.test, trigger_of(config), include_target_class=included)
    if config["attack"]:
        metrics |= attacked(attack_of(config, context), case, seen)
    costs = {"images": cost.images, "products": cost.products, "bytes": cost.bytes, "passes": cost.gradient_passes}
    told |= {name: value for name, value in notes.items() if math.isfinite(value)}
    return {**metrics, **told, **costs}, None


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
