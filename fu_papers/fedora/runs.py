"""FedORA's experiments as runs: from a flat config to a record.

`train` makes original and retrained vertical models, clean or with a backdoor in some samples; `trial` tries one
choice of a method's hyper-parameters where nothing is judged; `unlearn` lets one method serve a request, with the best
of its trials, and evaluates; `fu_papers.fedora.speed` times all methods in one process (Tables III and VII). Everything
shown in tables and figures is read from their records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import ConfigError, NumericalFailure
from fu_core.evaluation.accuracy import predicted_classes
from fu_core.evaluation.equivalence import prediction_agreement
from fu_core.evaluation.membership import Attack, fit_attack, half_of_each_class, shadow
from fu_core.federation.meter import Meter
from fu_core.federation.vertical import Boundary, Parties, Vectors, VerticalFederation, outputs, predict, split_features
from fu_core.federation.vertical import train as train_parties
from fu_core.streams import stream
from fu_core.unlearning.fedora import Iteration, entropy_share
from fu_core.unlearning.method import Trained, Unlearned
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES
from fu_papers.fedora.grid import trials_of
from fu_papers.fedora.problem import DATA_KEYS, LOCAL, VerticalProblem, data_hash, triggered
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, Record, run_function
from fu_papers.lab.store import RecordStore

TRAINING_KEYS = (*DATA_KEYS, "bottom", "dp_std", "dp_clip", "epochs", *LOCAL, "seed", "request", "poison")
ENDING = ("outcome", "iterations", "score", "epsilon")  # of what FedORA notes about how it ended


@run_function("fedora.describe", data=data_hash)
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a data set consists of: source, who has how many features, the nets' sizes."""
    p = VerticalProblem.of(config)
    return {
        "source": p.clean.source,
        "features": [list(party.x.shape[1:]) for party in p.parties.passive],
        "parameters": [len(w_k) for w_k in p.parties.w],
        "n_train": len(p.clean.y_train),
        "n_test": len(p.clean.y_test),
    }, None


# --- training --------------------------------------------------------------------------------------------------------


@run_function("fedora.train", data=data_hash)
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Joint training from scratch on what the config's request leaves; keeps everybody's parameters.

    The samples of `poison`, itself a request, carry a backdoor. Resumes after the last finished epoch.
    """
    p = VerticalProblem.of(config)
    f, done = p.federation(config, "training"), 0
    optimisers = f.optimisers()
    if (saved := context.resume()) is not None:
        tensors, meta = saved
        done = meta["epoch"]
        boundary = Boundary(Meter(**meta["meter"]), "training", meta["exchanges"])
        f = f.having(parties=p.parties.having(_vectors(tensors)), boundary=boundary)
        moments = {name: t.to(device()) for name, t in tensors.items() if name.startswith("moment")}
        optimisers.restore(moments, meta["steps"], len(p.parties))

    def after_epoch(epoch: int, w: Vectors) -> None:
        steps, exchanges = optimisers.states[0].steps, f.boundary.exchanges
        meta = {"epoch": epoch, "meter": asdict(f.meter), "steps": steps, "exchanges": exchanges}
        context.checkpoint({**_named(w), **optimisers.tensors()}, meta)

    remaining = config["epochs"] - done
    trained = train_parties(f, p.retain, optimisers, remaining, first_epoch=done + 1, after_epoch=after_epoch)
    test = _percent(predicted_classes(predict(trained, p.test, Boundary())) == p.y_test)
    fit = _percent(predicted_classes(outputs(trained, p.retain, Boundary())) == trained.active.y[p.retain])
    return {"test": test, "train": fit, "bytes": f.meter.bytes}, _named(trained.w)


def _named(w: Vectors) -> dict[str, Tensor]:
    return {f"party {k}": w_k for k, w_k in enumerate(w)}


def _vectors(tensors: Mapping[str, Tensor]) -> Vectors:
    parties = sum(name.startswith("party ") for name in tensors)  # beside them a checkpoint has optimisers' memory
    return [tensors[f"party {k}"].to(device()) for k in range(parties)]


def references(config: Mapping[str, Any]) -> Needs:
    """The trainings that a run starts from and is compared with. Retraining has nothing poisoned left to see.

    Random weights have only the attack from the original model, whose outputs it is learnt on.
    """
    training = {key: config[key] for key in TRAINING_KEYS}
    found: dict[str, Any] = {"original": (train, {**training, "request": "none"})}
    return found if config.get("method") == DESTROYED else found | {"retrained": (train, {**training, "poison": ""})}


def trained_parties(p: VerticalProblem, context: RunContext, name: str) -> Parties:
    """The parties with the parameters of one of the trainings that `needs` names; it is run if need be."""
    return p.parties.having(_vectors(context.needed(name)))


# --- trials ----------------------------------------------------------------------------------------------------------


@run_function("fedora.trial", data=data_hash, needs=references)
def trial(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One choice of a method's hyper-parameters on a request that is not judged: how good, without the test set?

    Metrics: "objective", the forget gap to Retrain plus the shortfall of validation accuracy, in points; the two; the
    objective of doing "nothing"; the samples passed. Or "diverged", why.
    """
    p = VerticalProblem.of(config)
    original, retrained = (trained_parties(p, context, name) for name in ("original", "retrained"))
    f = p.federation(config, "trial", original)
    try:
        result, cost, notes = served(p, f, config["method"], config["options"])
    except NumericalFailure as reason:
        return {"diverged": str(reason)}, None
    if lost := diverged(notes):
        return {"diverged": lost}, None
    gap, shortfall = _gap_and_shortfall(p, result, retrained)
    found = {"objective": gap + shortfall, "forget_gap": gap, "shortfall": shortfall}
    return {**found, "nothing": sum(_gap_and_shortfall(p, original, retrained)), "images": cost.images}, None


def _gap_and_shortfall(p: VerticalProblem, parties: Parties, retrained: Parties) -> tuple[float, float]:
    """How far recognition of what is forgotten is from Retrain's, and validation accuracy below it, in points."""
    gap = abs(_recognised(parties, p.forget) - _recognised(retrained, p.forget))
    return gap, max(0.0, _validated(p, retrained) - _validated(p, parties))


def _recognised(parties: Parties, rows: Tensor) -> float:
    """Percent of the training samples `rows` that get their label."""
    return _percent(predicted_classes(outputs(parties, rows, Boundary())) == parties.active.y[rows])


def _validated(p: VerticalProblem, parties: Parties) -> float:
    """Percent of the samples held out that are right, of classes of which something is left."""
    left = ~torch.isin(p.y_validation, torch.tensor(p.removed, device=p.y_validation.device))
    right = predicted_classes(predict(parties, p.validation, Boundary())) == p.y_validation
    return _percent(right[left])


def best_trial(trials: Sequence[Sequence[Record]]) -> int:
    """Which of `trials`, each a record per request, has the smallest `objective`; the first of equal ones."""
    return min(range(len(trials)), key=lambda k: objective(trials[k]))


def objective(trial: Sequence[Record]) -> float:
    """Of a trial, the mean over its requests; infinite if it diverged on one."""
    return sum(record.metrics.get("objective", math.inf) for record in trial) / len(trial)


def trial_needs(config: Mapping[str, Any], name: str = "trial") -> Needs:
    """The trials that a run chooses among, "trial 0" and so on."""
    return {f"{name} {k}": (trial, one) for k, one in enumerate(trials_of(config))}


def chosen(config: Mapping[str, Any], context: RunContext, name: str = "trial") -> dict[str, Any]:
    """What the best of the trials has chosen: its number and its options; {} for a run as published.

    config: "method", "options", "trials", "tuned_on", and "change", which stays as it is whatever has been chosen.
    """
    if not config["trials"]:
        return {}
    records = [context.needed_record(f"{name} {k}") for k in range(len(trials_of(config)))]
    n = len(config["tuned_on"])
    best = best_trial([records[i : i + n] for i in range(0, len(records), n)])
    return {"trial": best, "chosen": {**config["trials"][best], **config["change"]}}


def diverged(notes: Mapping[str, Any]) -> str:
    """What a method's notes say of a run that lost the model although its numbers stayed finite, or ""."""
    return str(notes.get("why", "diverged")) if notes.get("outcome") == "diverged" else ""


# --- unlearning ------------------------------------------------------------------------------------------------------


def needs(config: Mapping[str, Any]) -> Needs:
    """The trainings of a run, and the trials that it chooses among."""
    return {**references(config), **trial_needs(config)}


@run_function("fedora.unlearn", data=data_hash, needs=needs)
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method serves one request; logs FedORA's dual variable, residual and step sizes per iteration.

    With `trials` the method has the hyper-parameters of the best of them ("chosen" in the metrics), else `options`.
    "Original" and "Retrain" are evaluated as they are. A run that diverges says so as "diverged".
    """
    p, method = VerticalProblem.of(config), config["method"]
    original = trained_parties(p, context, "original")
    retrained = None if method == DESTROYED else trained_parties(p, context, "retrained")

    def log(iteration: Iteration) -> None:
        context.log(**{name: value for name, value in asdict(iteration).items() if not _missing(value)})

    told = {**chosen(config, context), "poison": bool(config["poison"])}
    told |= {"retrain_images": config["epochs"] * len(p.retain)}
    if method in REFERENCES and retrained is not None:
        result, cost = original if method == "Original" else retrained, Meter()
    else:
        f = p.federation(config, "unlearning", original)
        try:
            result, cost, notes = served(p, f, method, told.get("chosen", config["options"]), log)
        except NumericalFailure as reason:
            return {**told, "diverged": str(reason)}, None
        told |= {"diverged": lost} if (lost := diverged(notes)) else {}
        told |= {"ended": {name: notes[name] for name in ENDING if name in notes}} if "outcome" in notes else {}
    costs = {"images": cost.images, "up": cost.bytes_up, "down": cost.bytes_down, "kept": cost.storage}
    return {**evaluate(p, result, original, retrained, attack_of(p, context)), **costs, **told}, None


def _missing(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def served(
    p: VerticalProblem,
    f: VerticalFederation,
    method: str,
    options: Mapping[str, Any],
    watch: Callable[[Iteration], None] | None = None,
) -> Unlearned:
    """The problem's request served on trained parties; a method that asks for more data gets what was held out."""
    given = {"unseen": p.unseen} if registered(method).needs.auxiliary_data else {}
    return serve_request(method, Trained(f, watch=watch), p.asked, **options, **given)


def evaluate(
    p: VerticalProblem, parties: Parties, original: Parties, retrained: Parties | None, attack: Attack
) -> dict[str, Any]:
    """Utility, forgetting and closeness to retraining.

    test: percent over the classes of which something is left (errata F10), test_all over all, test_affected over those
    that lose samples, by_class of each of these; forget: on the forgotten samples as they were in training; entropy:
    mean over them, as a share of log C; mia: balanced accuracy of a shadow-model attack against unseen samples of the
    same classes, mia_fraction: forgotten samples taken for members; asr: triggered test images of other classes taken
    for the backdoor's target. Where the retrained parties are given, `distances` to them, too.
    """
    logits, y = predict(parties, p.test, Boundary()), p.y_test
    right = predicted_classes(logits) == y
    left = ~torch.isin(y, torch.tensor(p.removed, device=y.device))
    forgotten = outputs(parties, p.forget, Boundary())
    y_forget = parties.active.y[p.forget]
    metrics = {
        "test": _percent(right[left]),
        "test_all": _percent(right),
        "test_affected": _percent(right[torch.isin(y, p.labels_to_forget)]),
        "by_class": {str(c): _percent(right[y == c]) for c in p.labels_to_forget.unique().tolist() if (y == c).any()},
        "forget": _percent(predicted_classes(forgotten) == y_forget),
        "loss": float(F.cross_entropy(forgotten, y_forget)),
        "entropy": entropy_share(forgotten),
    }
    if retrained is not None:
        metrics |= distances(p, parties, original, retrained)
    others = y != p.target
    x = triggered(p.clean, p.clean.x_test)[others.cpu()]
    stamped = predict(parties, [x_k.to(device()) for x_k in split_features(x, p.blocks)], Boundary())
    metrics["asr"] = _percent(predicted_classes(stamped) == p.target)
    return metrics | _attacked(p, parties, attack, logits, forgotten)


def attack_of(p: VerticalProblem, context: RunContext) -> Attack:
    """The paper's attack, learnt on the original model's outputs; the same for every method (methods 5.4)."""
    return _fitted(p, str(context.store.root), context.needed_record("original").key)


@lru_cache(maxsize=4)
def _fitted(p: VerticalProblem, root: str, key: str) -> Attack:
    original = p.parties.having(_vectors(RecordStore(Path(root)).tensors(key)))
    known = _known(p)
    members = p.retain[torch.randperm(len(p.retain), generator=stream(0, "members")).to(device())[: int(known.sum())]]
    inside = outputs(original, members, Boundary()), original.active.y[members]
    return fit_attack([inside], [(predict(original, p.test, Boundary())[known], p.y_test[known])], seed=0)


def _known(p: VerticalProblem) -> Tensor:
    """Which test samples the attacker learns from; on the others it is tested."""
    return half_of_each_class(p.y_test, "attacker's half")


def _attacked(
    p: VerticalProblem, parties: Parties, attack: Attack, logits: Tensor, forgotten: Tensor
) -> dict[str, float]:
    """The attack on an unlearned model, of whose outputs it has seen none."""
    unseen = ~_known(p) & torch.isin(p.y_test, p.labels_to_forget)
    if not unseen.any():
        raise ConfigError(f"n_test must leave test samples of the classes to be forgotten, got none of {len(unseen)}")
    result = shadow(attack, (forgotten, parties.active.y[p.forget]), (logits[unseen], p.y_test[unseen]))
    return {"mia": result.balanced_accuracy, "mia_fraction": result.fraction, "mia_auc": result.auc}


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


def distances(p: VerticalProblem, parties: Parties, original: Parties, retrained: Parties) -> dict[str, float]:
    """To the retrained parties: of parameters, and of predictions on what is forgotten.

    gap: of all parameters, as a share of doing nothing's; kl: mean KL(retrained || ours) of the predictions, nats;
    agree: percent of samples on whose label both agree. Predictions tell models apart that are alike as parameters.
    """
    log_q, log_p = (outputs(of, p.forget, Boundary()).double().log_softmax(dim=1) for of in (retrained, parties))
    return {
        "gap": relative_gap(parties, original, retrained),
        "kl": float((log_q.exp() * (log_q - log_p)).sum(dim=1).mean()),
        "agree": 100 * prediction_agreement(log_p, log_q),
    }


def relative_gap(parties: Parties, original: Parties, retrained: Parties) -> float:
    """|w - w_r| / |w_o - w_r|, over the parameters of all parties."""
    return _distance(parties, retrained) / max(_distance(original, retrained), 1e-30)


def _distance(a: Parties, b: Parties) -> float:
    return math.sqrt(sum(float((a_k - b_k).double().pow(2).sum()) for a_k, b_k in zip(a.w, b.w, strict=True)))


# --- noise floor -----------------------------------------------------------------------------------------------------


def compared_with(config: Mapping[str, Any]) -> Needs:
    """Both references, and for a second retraining that of the other seed."""
    training = {key: config[key] for key in TRAINING_KEYS}
    found: dict[str, Any] = {"original": (train, {**training, "request": "none"}), "retrained": (train, training)}
    return (
        found | {"again": (train, {**training, "seed": config["other_seed"]})} if config["method"] == AGAIN else found
    )


@run_function("fedora.distance", data=data_hash, needs=compared_with)
def distance(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """How far a second retraining, or random weights, are from Retrain: `distances` as in `evaluate`."""
    p = VerticalProblem.of(config)
    original, retrained = (trained_parties(p, context, name) for name in ("original", "retrained"))
    if config["method"] == AGAIN:
        parties = trained_parties(p, context, "again")
    else:
        parties = served(p, p.federation(config, "unlearning", original), config["method"], {}).model
    return distances(p, parties, original, retrained), None
