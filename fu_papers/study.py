"""What a paper's reproduction consists of: cells, the stages that fill them, and one tidy frame of all results.

    study = Study(STAGES, Experiment.of("quick"))
    trainings = study.run("training")                  {where a result belongs: its record}
    unlearnings = study.run("unlearning")
    frame = tidy(unlearnings, measure)                 a row per metric; `wide(frame)` has a column per metric

A paper declares its stages once, in `fu_papers/<paper>/stages.py`: the notebook runs them by name, the runner a part
of one of them on another machine (`--stage`, `--part`), and `make plan` counts them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fu_core.errors import ConfigError, check_choice
from fu_papers.lab.paths import figures_dir, figures_of, is_changed, short
from fu_papers.lab.pool import map_runs
from fu_papers.lab.record import Record, RunFunction
from fu_papers.lab.store import NoRecord, RecordStore, open_store
from fu_papers.lab.task import NotHere
from fu_papers.parameters import Parameters

Config = Mapping[str, Any]
Found = Mapping[Any, Record]  # where a result belongs, mostly a Cell -> its record


class Cell(NamedTuple):
    """Where the result of an unlearning run belongs, in the words of all papers."""

    group: str  # a block of tables: "clients", "ablation", ...
    setting: str  # data set / split / net
    seed: int
    request: str
    method: str
    label: str = ""  # the choice within the group: "eta_u=5, E_u=1"
    condition: str = ""  # what else differs from the plain setting: a topology, noise, a backdoor


@dataclass(frozen=True)
class Stage:
    """Runs that belong together, and the stages whose records they read.

    name: as the progress bar and `--stage` call it; cells: from a paper's parameters to {where a result belongs:
    config}; alone: one run at a time, since a clock is running; optional: what to say, instead of failing, where its
    runs say that they cannot run here (a package that is not installed), or are not committed where nothing may be
    computed; "" if they must. Whatever else goes wrong with them is an error.
    """

    name: str
    fn: RunFunction
    cells: Callable[[Any], Mapping[Any, Config]]
    needs: tuple[str, ...] = ()
    alone: bool = False
    optional: str = ""


def theory_stages(plans: Mapping[RunFunction, Sequence[Config]]) -> tuple[Stage, ...]:
    """A stage per kind of numerical check, whose configs depend on no parameter: {run function: its configs}."""

    def cells_of(configs: Sequence[Config]) -> Callable[[Any], Mapping[Any, Config]]:
        return lambda experiment: dict(enumerate(configs))

    return tuple(Stage(f"theory: {fn.__name__}", fn, cells_of(configs)) for fn, configs in plans.items())


def stages_of(paper: str) -> tuple[Stage, ...]:
    """The stages of a paper, in the order of its notebook."""
    stages: tuple[Stage, ...] = importlib.import_module(f"fu_papers.{paper}.stages").STAGES
    return stages


def experiment_of(paper: str) -> type[Parameters]:
    """The schema of a paper's parameters."""
    schema: type[Parameters] = importlib.import_module(f"fu_papers.{paper}.grid").Experiment
    return schema


class Study:
    """A paper's stages with given parameters, and the records that have been asked for so far."""

    def __init__(self, experiment: Parameters, store: RecordStore | None = None, jobs: int | None = None) -> None:
        self.experiment, self.jobs = experiment, jobs
        if store is None and is_changed(experiment):
            profile, where = experiment.profile, short(self.out)
            print(f"These are not {profile}'s own values: what is shown goes to {where}, and what {profile} has stays")
        self.store = open_store(self.out, figures_dir(experiment.profile, experiment.paper)) if store is None else store
        self.stages = {stage.name: stage for stage in stages_of(experiment.paper)}
        self._found: dict[str, dict[Any, Record]] = {}

    @property
    def out(self) -> Path:
        """Where figures, tables and records go: figures/<profile>/<paper>, if all values are the profile's.

        Else figures/changed/<profile>/<paper>: no trial of a reader's takes the place of what is committed.
        """
        return figures_of(self.experiment)

    def run(self, name: str) -> dict[Any, Record]:
        """The records of a stage by where they belong, after those of the stages that it needs; computed if need be.

        Raises ConfigError for a stage that is not there, and as `map_runs`.
        """
        check_choice("stage", name, self.stages, ConfigError)
        if name not in self._found:
            stage = self.stages[name]
            for needed in stage.needs:
                self.run(needed)
            self._found[name] = self._records(stage)
        return self._found[name]

    def theory(self) -> dict[str, list[Record]]:
        """The records of all numerical checks, by kind."""
        names = [name for name in self.stages if name.startswith("theory: ")]
        return {name.removeprefix("theory: "): list(self.run(name).values()) for name in names}

    def _records(self, stage: Stage) -> dict[Any, Record]:
        cells = stage.cells(self.experiment)
        jobs = 1 if stage.alone else self.jobs
        try:
            records = map_runs(stage.fn, list(cells.values()), store=self.store, jobs=jobs, label=stage.name)
        except (NotHere, NoRecord) as error:
            if not stage.optional:
                raise
            # what is not committed needs no config and no folder to be named
            print(f"{stage.optional}: {'no records' if isinstance(error, NoRecord) else str(error).splitlines()[0]}")
            return {}
        return dict(zip(cells, records, strict=True))

    @property
    def used(self) -> set[str]:
        """The keys of all records that have been asked for."""
        return {record.key for found in self._found.values() for record in found.values()}

    def export(self) -> None:
        """Put the records behind everything shown where the figures are, unless they were read from there."""
        if not self.store.read_only:
            self.store.export(self.used, self.out)


# --- the tidy frame --------------------------------------------------------------------------------------------------


def tidy(
    found: Found, measure: Callable[[Any, Record], Iterable[Mapping[str, Any]]], index: Sequence[str] = ()
) -> pd.DataFrame:
    """One row per metric of every run: the cell's columns, those of `index`, metric, value, record.

    measure: from a cell and its record to its metrics, as one mapping or several that `index` tells apart (a stop rule,
    say); none for a run that has no result.
    """
    rows = [
        {**cell._asdict(), **{name: metrics[name] for name in index}, "metric": metric, "value": value, "record": r.key}
        for cell, r in found.items()
        for metrics in measure(cell, r)
        for metric, value in metrics.items()
        if metric not in index
    ]
    frame = pd.DataFrame(rows, columns=[*Cell._fields, *index, "metric", "value", "record"])
    # As objects: counts stay whole numbers beside shares, truths stay truths.
    return frame.assign(value=pd.Series([row["value"] for row in rows], dtype=object))


def wide(frame: pd.DataFrame) -> pd.DataFrame:
    """A tidy frame with a row per run and a column per metric, both in the order in which they first appear.

    The record comes last.
    """
    places = [name for name in frame.columns if name not in ("metric", "value")]
    rows: dict[Hashable, dict[str, Any]] = {}
    for row in frame.to_dict("records"):
        run = rows.setdefault(tuple(row[name] for name in places), {name: row[name] for name in places})
        run[row["metric"]] = row["value"]
    metrics = [name for name in dict.fromkeys(frame["metric"]) if name not in places]
    columns = [*(name for name in places if name != "record"), *metrics, "record"]
    return pd.DataFrame(list(rows.values()), columns=columns)
