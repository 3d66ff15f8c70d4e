"""The arena's experiments as runs: from a flat config to a record.

`train` trains many federations, a seed each; `unlearn` lets one method make the models of a pool forget and keeps their
margins; `judge` compares the margins of all of a method's models with those of retrained ones. Everything shown in
tables and figures is read from the records of `unlearn` and `judge`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import MissingHistory, NumericalFailure, UnsupportedTask
from fu_core.evaluation.relearn import Relearned, level, relearn_passes
from fu_core.models import FlatModel
from fu_core.request import Deletion
from fu_papers.arena.grid import OWN_YARDSTICK, YARDSTICK
from fu_papers.arena.judging import KEPT, judged
from fu_papers.arena.pools import (
    CONSTANT,
    ENSEMBLES,
    LONGER,
    MUCH_LONGER,
    NOISY,
    ORDINARY,
    Recovery,
    Served,
    accuracies,
    control,
    distances,
    ensembles,
    evaluated,
    outputs_of,
    per_model,
    serve,
    trained_on,
)
from fu_papers.arena.worlds import World
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Config, Needs, run_function
from fu_papers.problems import PROBLEM_KEYS, TRAINING_FIELDS, client_opt, data_hash, problem

POOL_KEYS = (*PROBLEM_KEYS, "rounds", *TRAINING_FIELDS, "request", "first_seed", "models")
FINE = 0.1  # of the clients' rate, when a model learns again
SLACK = 1.1  # times the original's loss: who is as near as that knows the data again
BEYOND = ("world", "poisoned", "l2")  # of places that are no plain server's


def seeds_of(config: Config) -> list[int]:
    """The training seeds of a run's models."""
    return list(range(config["first_seed"], config["first_seed"] + config["models"]))


@run_function("arena.describe", data=data_hash)
def describe(config: Config, context: RunContext) -> tuple[dict[str, Any], None]:
    """What a setting consists of: who holds what, where the data comes from, how large the net is."""
    return problem(config).description, None


@run_function("arena.train", data=data_hash)
def train(config: Config, context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Trainings from scratch on what the config's request leaves, one per seed; keeps the models as "w" (N, d).

    Metrics: accuracy of each in percent, on test and held-out data; what one cost; seconds of one.
    """
    world, seeds = World.of(config), seeds_of(config)
    began = time.perf_counter()
    pool = world.trained(seeds, config["rounds"], config["request"])
    seconds = (time.perf_counter() - began) / len(seeds)
    sides = {"test": world.p.test, "validation": world.p.validation}
    models = pool.to_judge(list(pool.w))
    found = {side: accuracies(outputs_of(world.model, models, x), y) for side, (x, y) in sides.items()}
    return {**found, **per_model(world.f.meter, len(seeds)), "seconds": seconds}, {"w": pool.w}


# --- unlearning ------------------------------------------------------------------------------------------------------


def needs(config: Config) -> Needs:
    """The pools that a run reads: originals, their retrained twins, and for a second retraining the yardstick."""
    own = {key: config[key] for key in POOL_KEYS} | {key: config[key] for key in BEYOND if key in config}
    found: dict[str, Any] = {"twins": (train, own)}
    if config["first_seed"] >= YARDSTICK:
        return found
    found["originals"] = (train, {**own, "request": "none"})
    if config["method"] == "Retrain":
        found["others"] = (train, {**own, "first_seed": config["first_seed"] + YARDSTICK})
    return found


@run_function("arena.unlearn", data=data_hash, needs=needs)
def unlearn(config: Config, context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor] | None]:
    """One method makes every model of a pool forget, and recovers; keeps the margins (N, S) of each kind of example.

    Metrics, lists with a number per model: accuracy in percent on test, forgotten and retained data, rounds of
    recovery and whether they were enough, distance to the retrained twin over the original's; of one model: bytes,
    passes of samples, rounds, storage, seconds. A method that cannot serve such a request leaves its own reason as
    "unsupported", one that leaves the numbers "diverged".
    """
    if config["plugin"]:
        importlib.import_module(config["plugin"])
    world, read = World.of(config), {name: context.needed(name, ["w"])["w"].to(device()) for name in needs(config)}
    deletion = world.deletion(config["request"])
    try:
        served = _served(config, context, world, deletion, read)
    except (UnsupportedTask, MissingHistory) as reason:
        return {"unsupported": str(reason)}, None
    except NumericalFailure as reason:
        return {"diverged": str(reason)}, None
    found, kept = evaluated(world.model, served, world.sides(deletion), config["examples"])
    found |= {"samples": deletion.n, "distance": _distances(served.models, world, read)}
    if (success := world.attack_success(served.models)) is not None:
        found["backdoor"] = success
    return found, kept


def _served(
    config: Config, context: RunContext, world: World, deletion: Deletion, read: Mapping[str, Tensor]
) -> Served:
    name, retrained = config["method"], context.needed_record("twins").metrics
    # who has a yardstick of its own begins again and reads no model, so that any will do
    assert "originals" in read or name in (*OWN_YARDSTICK, "Retrain")
    seeds, rounds = seeds_of(config), world.rounds(config["rounds"])
    starts = world.starts(seeds)
    originals = world.pools(world.f, seeds, rounds, starts, read.get("originals", read["twins"]))
    if name == "Retrain":
        cost = {key: retrained[key] for key in ("bytes", "passes", "rounds")}
        return Served.at_once(originals.to_judge(list(read["twins"])), cost, retrained["seconds"])
    if name in (CONSTANT, NOISY):
        return Served.at_once(control(name, originals, config["noise"]))
    if name == ENSEMBLES:
        return Served.at_once(ensembles(originals))
    goal = sum(retrained["validation"]) / len(seeds)
    natural = world.rounds(config["natural_rounds"])
    rule = Recovery(world.p.validation, goal, config["recovery_cap"], natural)
    if name in (LONGER, MUCH_LONGER):
        twins = world.pools(world.f, seeds, rounds, starts, read["twins"])
        return trained_on(twins, deletion, rule, retrained)
    with context.phase("unlearn"):
        return serve("Natural" if name == ORDINARY else name, originals, deletion, rule)


def _distances(models: Tensor | list[Any], world: World, read: Mapping[str, Tensor]) -> list[float] | None:
    """Of each model from its retrained twin, over the original's; of the twins themselves, from another seed's."""
    if "originals" not in read:
        return None
    vectors = {name: world.vectors(w) for name, w in read.items()}
    return distances(models, vectors.get("others", vectors["twins"]), (vectors["originals"], vectors["twins"]))


# --- learning again --------------------------------------------------------------------------------------------------


@run_function("arena.relearn", data=data_hash, needs=needs)
def relearn(config: Config, context: RunContext) -> tuple[dict[str, Any], None]:
    """How soon the first `relearned` unlearned models know again what they are said to have forgotten.

    A model trains on the forgotten data alone, as a client does but at FINE times its rate, so that passes can be told
    apart, until its loss on them is at most SLACK times its original's. Metrics, a number per model: "passes" over the
    forgotten data; "reached", whether it got there within `relearn_cap`. What is no vector of one net cannot be trained
    on and is "unsupported", as what a method refuses.
    """
    world, few = World.of(config), {**config, "models": config["relearned"]}
    if not isinstance(world.model, FlatModel):
        return {"unsupported": "relearn: vertical parties hold parts of a net and not one that is trained on"}, None
    read = {name: context.needed(name, ["w"])["w"].to(device())[: config["relearned"]] for name in needs(config)}
    deletion = world.deletion(config["request"])
    try:
        models = _served(few, context, world, deletion, read).models
        if not isinstance(models, Tensor):
            return {"unsupported": "relearn: an ensemble is not one net that is trained on"}, None
        found = _relearned(config, world, models, world.vectors(read["originals"]), deletion)
    except (UnsupportedTask, MissingHistory) as reason:
        return {"unsupported": str(reason)}, None
    except NumericalFailure as reason:
        return {"diverged": str(reason)}, None
    return {"passes": [r.passes for r in found], "reached": [r.reached for r in found]}, None


def _relearned(config: Config, world: World, models: Tensor, originals: Tensor, deletion: Deletion) -> list[Relearned]:
    found, local = [], client_opt({**config, "lr": FINE * config["lr"]})
    for seed, w, original in zip(seeds_of(config), models, originals, strict=False):
        before = level(world.model, original, deletion.forget, by="loss")
        target = replace(before, value=SLACK * before.value)
        found.append(
            relearn_passes(world.model, w, deletion.forget, local, target=target, cap=config["relearn_cap"], seed=seed)
        )
    return found


# --- judging ---------------------------------------------------------------------------------------------------------

SIDES = ("unlearned", "retrained", "twins")


def sides_of(config: Config) -> Needs:
    """The runs whose margins are compared, by side and chunk."""
    return {f"{side} {k}": (unlearn, one) for side in SIDES for k, one in enumerate(config[side])}


@run_function("arena.judge", data=lambda config: data_hash(config["unlearned"][0]), needs=sides_of)
def judge(config: Config, context: RunContext) -> tuple[dict[str, Any], None]:
    """All judges on one method's models, see `judging.judged`. What cannot be judged leaves the reason why."""
    lost: dict[str, Any] = {}
    for k in range(len(config["unlearned"])):
        metrics = context.needed_record(f"unlearned {k}").metrics
        lost |= {why: metrics[why] for why in ("unsupported", "diverged") if why in metrics}
    if lost:
        return lost, None
    sides = []
    for side in SIDES:
        chunks = [context.needed(f"{side} {k}", KEPT) for k in range(len(config[side]))]
        sides.append({part: torch.cat([chunk[part] for chunk in chunks]) for part in KEPT})
    return judged(*sides, resamples=config["resamples"], delta=config["delta"]), None
