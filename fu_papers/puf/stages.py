"""PUF's stages, in the order of its notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fu_papers.problems import PROBLEM_KEYS
from fu_papers.puf import flower, runs, trainings
from fu_papers.puf.grid import OFFICIAL, Experiment
from fu_papers.study import Cell, Config, Stage


def descriptions(e: Experiment) -> dict[str, Config]:
    """Every setting, by its text."""
    configs = {text: e.training(s, text, 0) for s in e.scenarios() for text in s.settings}
    return {text: {key: config[key] for key in PROBLEM_KEYS} for text, config in configs.items()}


def all_trainings(e: Experiment) -> dict[tuple[str, str, int, str], Config]:
    """What the runs need, by (scenario, setting, seed, request); "none" is the original model's.

    A training with a backdoor is kept as that of the request whose client carries it.
    """
    found: dict[tuple[str, str, int, str], Config] = {}
    for cell, config in e.runs():
        needed = runs.needs(config)
        for name, (_, training) in needed.items():
            if not name.startswith(("trial", "official")):
                what = training["request"] if training["poisoned"] < 0 else f"poisoned {cell.request}"
                found.setdefault((cell.group, cell.setting, training["seed"], what), training)
    for cell, config in e.tuning():
        for _, training in trainings.references(config).values():
            found[cell.group, cell.setting, cell.seed, training["request"]] = training
    return found


def official(e: Experiment) -> dict[Cell, Config]:
    """The trainings of the official FedAU, which has one for every request."""
    return {cell: runs.needs(config)["official"][1] for cell, config in e.runs() if cell.method == OFFICIAL}


def equivalence(e: Experiment) -> dict[Cell, Config]:
    """Claim P14, measured after training. The updates cancel only if all train E epochs: E_u = E."""
    main = e.scenarios()[0]
    return {
        cell: e.unlearning(main, *cell[1:5], epochs_u=float(e.epochs))
        for cell, _ in e.runs()
        if (cell.group, cell.method, cell.label) == (main.name, "PUF-Regular", "")
    }


def in_flower(e: Experiment) -> Mapping[str, Any]:
    """One run, where it is wanted; its record can be shown where Flower is not installed, too."""
    return {"flower": flower.CONFIG} if e.flower else {}


STAGES = (
    Stage("settings", runs.describe, descriptions, alone=True),
    Stage("training", trainings.train, all_trainings),
    Stage("tuning", runs.trial, lambda e: dict(e.tuning()), needs=("training",)),
    Stage("training with auxiliary heads", trainings.train_official, official),
    Stage(
        "unlearning and recovery",
        runs.unlearn,
        lambda e: dict(e.runs()),
        needs=("training", "tuning", "training with auxiliary heads"),
    ),
    Stage("with more patience", runs.unlearn, lambda e: dict(e.patient()), needs=("training", "tuning")),
    Stage("the other divisor", runs.unlearn, lambda e: dict(e.norms()), needs=("training",)),
    Stage("sweep over eta_u and E_u", runs.unlearn, lambda e: dict(e.sweep()), needs=("training",)),
    Stage("printed costs", runs.printed_costs, lambda e: {"costs": {"tables": "III to V"}}),
    Stage("formula as printed", runs.unlearn, lambda e: dict(e.printed()), needs=("training",)),
    Stage("Regular against Special", runs.mode_equivalence, equivalence, needs=("training",)),
    Stage("Flower", flower.flower_round, in_flower, alone=True, optional="Flower's simulation did not run here"),
)
