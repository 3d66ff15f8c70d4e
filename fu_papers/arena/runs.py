"""The arena's experiments as runs: from a flat config to a record.

`train` trains many federations, a seed each; `unlearn` lets one method make the models of a pool forget and keeps their
margins; `judge` compares the margins of all of a method's models with those of retrained ones. Everything shown in
tables and figures is read from the records of `unlearn` and `judge`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import MissingHistory, NumericalFailure, UnsupportedTask
from fu_core.federation.many import fedavg_many
from fu_core.request import Deletion, Request
from fu_papers.arena.grid import OWN_YARDSTICK, YARDSTICK
from fu_papers.arena.judging import PARTS, judged
from fu_papers.arena.pools import (
    CONSTANT,
    LONGER,
    NOISY,
    Pool,
    Recovery,
    Served,
    accuracies,
    control,
    distances,
    evaluated,
    initial,
    outputs_of,
    per_model,
    serve,
    trained_on,
)
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Config, Needs, run_function
from fu_papers.problems import PROBLEM_KEYS, TRAINING_FIELDS, Problem, data_hash, problem

POOL_KEYS = (*PROBLEM_KEYS, "rounds", *TRAINING_FIELDS, "request", "first_seed", "models")


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
    p, seeds = problem(config), seeds_of(config)
    f = p.federation({**config, "seed": 0})
    if config["request"] != "none":
        f = f.after(Request.parse(config["request"]).resolve(f.clients))
    began = time.perf_counter()
    w = fedavg_many(f, seeds, config["rounds"], initial(f, seeds))
    seconds = (time.perf_counter() - began) / len(seeds)
    sides = {"test": p.test, "validation": p.validation}
    found = {side: accuracies(outputs_of(p.model, w, x), y) for side, (x, y) in sides.items()}
    return {**found, **per_model(f.meter, len(seeds)), "seconds": seconds}, {"w": w}


# --- unlearning ------------------------------------------------------------------------------------------------------


def needs(config: Config) -> Needs:
    """The pools that a run reads: originals, their retrained twins, and for a second retraining the yardstick."""
    own = {key: config[key] for key in POOL_KEYS}
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
    recovery, distance to the retrained twin over the original's; of one model: bytes, passes of samples, rounds,
    storage, seconds. A method that cannot serve such a request leaves its own reason as "unsupported", one that leaves
    the numbers "diverged".
    """
    if config["plugin"]:
        importlib.import_module(config["plugin"])
    p, read = problem(config), {name: context.needed(name, ["w"])["w"].to(device()) for name in needs(config)}
    f = p.federation({**config, "seed": 0})
    deletion = Request.parse(config["request"]).resolve(f.clients)
    try:
        served = _served(config, context, p, deletion, read)
    except (UnsupportedTask, MissingHistory) as reason:
        return {"unsupported": str(reason)}, None
    except NumericalFailure as reason:
        return {"diverged": str(reason)}, None
    sides = {"forget": deletion.forget, "retain": deletion.retain, "test": p.test}
    found, kept = evaluated(p.model, served, sides, config["examples"])
    found |= {"samples": sum(len(y) for _, y in p.clients), "distance": _distances(served.models, read)}
    return found, kept


def _served(config: Config, context: RunContext, p: Problem, deletion: Deletion, read: Mapping[str, Tensor]) -> Served:
    f, seeds, name = p.federation({**config, "seed": 0}), seeds_of(config), config["method"]
    retrained = context.needed_record("twins").metrics
    if name == "Retrain":
        cost = {key: retrained[key] for key in ("bytes", "passes", "rounds")}
        return Served(read["twins"], {**cost, "storage": 0.0}, [0] * len(seeds), retrained["seconds"])
    # who has a yardstick of its own begins again and reads no model, so that any will do
    assert "originals" in read or name in OWN_YARDSTICK
    originals = Pool(f, seeds, config["rounds"], initial(f, seeds), read.get("originals", read["twins"]))
    if name in (CONSTANT, NOISY):
        nothing = dict.fromkeys(("bytes", "passes", "rounds", "storage"), 0.0)
        return Served(control(name, originals, config["noise"]), nothing, [0] * len(seeds), 0.0)
    goal = sum(retrained["validation"]) / len(seeds)
    rule = Recovery(p.validation, goal, config["recovery_cap"], config["natural_rounds"])
    if name == LONGER:
        twins = Pool(f, seeds, config["rounds"], originals.w_0, read["twins"])
        return trained_on(twins, deletion, rule, retrained)
    with context.phase("unlearn"):
        return serve(name, originals, deletion, rule)


def _distances(models: Tensor | list[Any], read: Mapping[str, Tensor]) -> list[float] | None:
    """Of each model from its retrained twin, over the original's; of the twins themselves, from another seed's."""
    if "originals" not in read:
        return None
    return distances(models, read.get("others", read["twins"]), (read["originals"], read["twins"]))


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
        chunks = [context.needed(f"{side} {k}", PARTS) for k in range(len(config[side]))]
        sides.append({part: torch.cat([chunk[part] for chunk in chunks]) for part in PARTS})
    return judged(*sides, resamples=config["resamples"], delta=config["delta"]), None
