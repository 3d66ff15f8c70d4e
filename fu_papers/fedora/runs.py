"""FedORA's experiments as runs: from a flat config to a record.

`train` makes original and retrained vertical models, clean or with a backdoor in some samples; `unlearn` lets one
method serve a request and evaluates; `speed` times all methods in one process (Table III). Everything shown in tables
and figures is read from their records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import ConfigError
from fu_core.evaluation.membership import fit_attack, half_of_each_class, shadow
from fu_core.federation.meter import Meter
from fu_core.federation.vertical import Boundary, Parties, Vectors, VerticalFederation, outputs, predict, split_features
from fu_core.federation.vertical import train as train_parties
from fu_core.streams import stream
from fu_core.unlearning.fedora import Iteration, entropy_share
from fu_core.unlearning.method import Trained, Unlearned
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES
from fu_papers.fedora.problem import BACKDOOR, DATA_KEYS, LOCAL, PARTIES, VerticalProblem, data_hash, triggered
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.lab.timing import Stopwatch

TRAINING_KEYS = (*DATA_KEYS, "bottom", "dp_std", "dp_clip", "epochs", *LOCAL, "seed", "request", "poison")
TIMED_EPOCHS = 2  # of retraining, from which all of them are projected


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
    test = _percent(predict(trained, p.test).argmax(dim=1) == p.y_test)
    fit = _percent(outputs(trained, p.retain).argmax(dim=1) == trained.active.y[p.retain])
    return {"test": test, "train": fit, "bytes": f.meter.bytes}, _named(trained.w)


def _named(w: Vectors) -> dict[str, Tensor]:
    return {f"party {k}": w_k for k, w_k in enumerate(w)}


def _vectors(tensors: Mapping[str, Tensor]) -> Vectors:
    return [tensors[f"party {k}"].to(device()) for k in range(PARTIES + 1)]


def needs(config: Mapping[str, Any]) -> Needs:
    """The trainings that a run starts from and is compared with. Retraining has nothing poisoned left to see.

    Random weights have only the attack from the original model, whose outputs it is learnt on.
    """
    training = {key: config[key] for key in TRAINING_KEYS}
    found: dict[str, Any] = {"original": (train, {**training, "request": "none"})}
    return found if config.get("method") == DESTROYED else found | {"retrained": (train, {**training, "poison": ""})}


def trained_parties(p: VerticalProblem, context: RunContext, name: str) -> Parties:
    """The parties with the parameters of one of the trainings that `needs` names; it is run if need be."""
    return p.parties.having(_vectors(context.needed(name)))


# --- unlearning ------------------------------------------------------------------------------------------------------


@run_function("fedora.unlearn", data=data_hash, needs=needs)
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method serves one request; logs FedORA's dual variable, residual and step sizes per iteration.

    "Original" and "Retrain" are evaluated as they are.
    """
    p, method = VerticalProblem.of(config), config["method"]
    original = trained_parties(p, context, "original")
    retrained = None if method == DESTROYED else trained_parties(p, context, "retrained")

    def log(iteration: Iteration) -> None:
        context.log(**{name: value for name, value in asdict(iteration).items() if not _missing(value)})

    if method in REFERENCES and retrained is not None:
        result, cost = original if method == "Original" else retrained, Meter()
    else:
        f = p.federation(config, "unlearning", original)
        result, cost, _ = served(p, f, method, config["options"], log)
    costs = {"images": cost.images, "up": cost.bytes_up, "down": cost.bytes_down, "kept": cost.storage}
    return {**evaluate(p, result, original, retrained), **costs, "poison": bool(config["poison"])}, None


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


def evaluate(p: VerticalProblem, parties: Parties, original: Parties, retrained: Parties | None) -> dict[str, Any]:
    """Utility, forgetting and closeness to retraining.

    test: percent over the classes of which something is left (errata F10), test_all over all; forget: on the
    forgotten samples as they were in training; entropy: mean over them, as a share of log C; mia: balanced accuracy
    of a shadow-model attack against unseen samples of the same classes, mia_fraction: forgotten samples taken for
    members; asr: triggered test images of other classes taken for the backdoor's target; gap: distance to the
    retrained parameters, as a share of doing nothing's, where they are given.
    """
    logits, y = predict(parties, p.test), p.y_test
    right = logits.argmax(dim=1) == y
    left = ~torch.isin(y, torch.tensor(p.removed, device=y.device))
    forgotten = outputs(parties, p.forget)
    y_forget = parties.active.y[p.forget]
    metrics = {
        "test": _percent(right[left]),
        "test_all": _percent(right),
        "forget": _percent(forgotten.argmax(dim=1) == y_forget),
        "loss": float(F.cross_entropy(forgotten, y_forget)),
        "entropy": entropy_share(forgotten),
    }
    if retrained is not None:
        metrics["gap"] = relative_gap(parties, original, retrained)
    target = y != BACKDOOR
    x = triggered(p.clean, p.clean.x_test)[target.cpu()]
    stamped = predict(parties, [x_k.to(device()) for x_k in split_features(x, p.blocks)])
    metrics["asr"] = _percent(stamped.argmax(dim=1) == BACKDOOR)
    return metrics | _membership(p, parties, original, logits, forgotten)


def _membership(
    p: VerticalProblem, parties: Parties, original: Parties, logits: Tensor, forgotten: Tensor
) -> dict[str, float]:
    """The paper's attack: learnt on the original model's outputs, applied to the unlearned model's (methods 5.4)."""
    y = p.y_test
    half = half_of_each_class(y, "attacker's half")
    members = p.retain[torch.randperm(len(p.retain), generator=stream(0, "members")).to(device())[: int(half.sum())]]
    attack = fit_attack(
        [(outputs(original, members), original.active.y[members])],
        [(predict(original, p.test)[half], y[half])],
        seed=0,
    )
    unseen = ~half & torch.isin(y, p.labels_to_forget)
    if not unseen.any():
        raise ConfigError(f"n_test must leave test samples of the classes to be forgotten, got none of {len(y)}")
    result = shadow(attack, (forgotten, parties.active.y[p.forget]), (logits[unseen], y[unseen]))
    return {"mia": result.balanced_accuracy, "mia_fraction": result.fraction, "mia_auc": result.auc}


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


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
    """How far the parameters of a second retraining, or random ones, are from Retrain's: `gap` as in `evaluate`."""
    p = VerticalProblem.of(config)
    original, retrained = (trained_parties(p, context, name) for name in ("original", "retrained"))
    if config["method"] == AGAIN:
        parties = trained_parties(p, context, "again")
    else:
        parties = served(p, p.federation(config, "unlearning", original), config["method"], {}).model
    return {"gap": relative_gap(parties, original, retrained)}, None


# --- time (Table III) ------------------------------------------------------------------------------------------------


@run_function("fedora.speed", data=data_hash, needs=needs)
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds, images and bytes of every method in one process, one thread, in turn.

    Retraining is projected from two of its epochs; everything else runs as it is, on the model of the training.
    """
    p = VerticalProblem.of(config)
    original, watch = trained_parties(p, context, "original"), Stopwatch()

    def retraining() -> Meter:
        fresh = p.federation(config, "timing")
        train_parties(fresh, p.retain, fresh.optimisers(), TIMED_EPOCHS)
        return fresh.meter

    def serving(name: str) -> Meter:
        return served(p, p.federation(config, "timing", original), name, config["methods"][name]).cost

    methods = {"Retrain": retraining} | {name: partial(serving, name) for name in config["methods"]}
    for _ in range(config["repeats"]):
        meters = {name: watch.time(name, work) for name, work in methods.items()}
    times = {name: config["epochs"] / TIMED_EPOCHS if name == "Retrain" else 1.0 for name in methods}
    return {
        "seconds": {name: times[name] * seconds for name, seconds in watch.medians().items()},
        "costs": {
            name: {
                "images": times[name] * meter.images,
                "up": times[name] * meter.bytes_up,
                "down": times[name] * meter.bytes_down,
            }
            for name, meter in meters.items()
        },
        "n_forget": len(p.forget),
        "n_retain": len(p.retain),
        "parameters": original.d,
        "embedding": original.active.model.sizes[0] // original.active.classes,
        "classes": original.active.classes,
    }, None
