"""FedORA's stages, in the order of its notebook."""

from __future__ import annotations

from fu_papers.controls import NOT_RUN
from fu_papers.fedora import leaks, runs, theory
from fu_papers.fedora.grid import Experiment
from fu_papers.fedora.speed import speed
from fu_papers.lab.record import config_key
from fu_papers.study import Config, Stage, theory_stages

NO_DISTANCE = "The controls' distances to Retrain have not been measured"
NO_LEAKS = "What the border leaks has not been measured"


def descriptions(e: Experiment) -> dict[str, Config]:
    """Every data set, by its text."""
    return {dataset: e.training(e.sample_tasks(dataset)[0], e.seeds[0]) for dataset in e.datasets}


def trainings(e: Experiment) -> dict[str, Config]:
    """What trials and the tables' runs need, each once."""
    needed = (
        config for run in (*e.tuning().values(), *e.cells().values()) for _, config in runs.references(run).values()
    )
    return {config_key(config): config for config in needed}


STAGES = (
    Stage("settings", runs.describe, descriptions, alone=True),
    *theory_stages(theory.PLANS),
    Stage("training", runs.train, trainings),
    Stage("tuning", runs.trial, lambda e: e.tuning(), needs=("training",)),
    Stage("unlearning", runs.unlearn, lambda e: e.cells(), needs=("training", "tuning")),
    Stage("controls", runs.unlearn, lambda e: e.controls(), needs=("training",), optional=NOT_RUN),
    Stage("noise floor", runs.distance, lambda e: e.distances(), needs=("training",), optional=NO_DISTANCE),
    Stage("leaks", leaks.leaks, lambda e: e.leaks(), needs=("training", "tuning"), optional=NO_LEAKS),
    Stage("timing", speed, lambda e: e.speeds(), needs=("training", "tuning"), alone=True),
)
