"""What a reproduction would do, before it does it: runs, hours, disk; and a part of it by itself.

    make plan PROFILE=paper PAPER=puf
    python -m fu_papers --profile paper --paper puf --stage training --part 2/8
    python -m fu_papers --merge /elsewhere/runs/records

The plan is the paper's own list of stages. Hours come from two measurements: how long one pass over the
training data takes on this device, by training for one round on a little of it; and how many passes' worth of time
the same method took in the committed records of `workstation`, or else of `laptop` or `quick`.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from tqdm import tqdm

from fu_core.data import load
from fu_core.errors import ConfigError, check_choice
from fu_papers.lab import paths
from fu_papers.lab.committed import read_records, write_records
from fu_papers.lab.device import device
from fu_papers.lab.lookup import Lookup
from fu_papers.lab.pool import map_runs
from fu_papers.lab.record import Record, RunFunction, config_key, function_name
from fu_papers.lab.store import CommittedStore, RecordStore
from fu_papers.lab.task import NotHere, single_threaded
from fu_papers.study import experiment_of, stages_of

UNSEEN = "no committed record tells what they take"
ENOUGH, ENOUGH_SECONDS = 5, 2.0  # a round is long enough to be timed at so many times the shortest, and so many seconds
PASS = ("dataset", "model", "clients", "batch_size", "augmentation", "optimiser")  # what a pass's time depends on


# --- what there is to do ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A stage with the configs of its runs, each once, for given parameters. alone, optional: as of the `Stage`."""

    label: str
    fn: RunFunction
    configs: list[dict[str, Any]]
    alone: bool = False
    optional: str = ""


def planned(paper: str, profile: str, changes: Mapping[str, Any]) -> list[Planned]:
    """All runs of a paper with these parameters, stage by stage. Computes nothing."""
    schema = experiment_of(paper)
    experiment = schema.of(profile, **{name: value for name, value in changes.items() if name in schema.model_fields})
    return [
        Planned(
            stage.name,
            stage.fn,
            list({config_key(config): dict(config) for config in stage.cells(experiment).values()}.values()),
            stage.alone,
            stage.optional,
        )
        for stage in stages_of(paper)
    ]


def chosen(stages: Sequence[Planned], label: str) -> list[Planned]:
    """The stage called `label`, or all for ""; ConfigError names those there are."""
    if label:
        check_choice("--stage", label, [stage.label for stage in stages], ConfigError)
    return [stage for stage in stages if label in ("", stage.label)]


def part_of(stage: Planned, part: tuple[int, int]) -> Planned:
    """Every n-th run of a stage, beginning with the k-th, for `part` (k, n), 1-based."""
    k, n = part
    return replace(stage, configs=stage.configs[k - 1 :: n])


def run_part(stages: Sequence[Planned], part: tuple[int, int], jobs: int | None = None) -> int:
    """Compute the k-th of n parts of every stage, without a notebook; returns how many runs that is.

    Stages that are timed run one at a time, and what is optional says why it cannot run, as in `Study.run`.
    """
    store = RecordStore(paths.runs_dir() / "records")
    runs = 0
    for stage in (part_of(stage, part) for stage in stages):
        try:
            map_runs(stage.fn, stage.configs, store=store, jobs=1 if stage.alone else jobs, label=stage.label)
        except NotHere as error:
            if not stage.optional:
                raise
            print(f"{stage.optional}: {str(error).splitlines()[0]}")
        else:
            runs += len(stage.configs)
    return runs


def export_finished(stages: Sequence[Planned], folder: Path) -> tuple[int, int]:
    """Commit what is finished of `stages` to `folder`, complete or not; returns how many runs, and of how many.

    So a long profile can be computed in several sittings. What an earlier one has committed stays, unless it has been
    made again since, or is no longer what would be run: of another version, of other data, no longer planned.
    StorageError if there are records of one run from different data, and nothing here to tell which are right.
    """
    here = RecordStore(paths.runs_dir() / "records").everything()
    there = read_records(folder).values()
    found = Lookup((*there, *here), of_data=True)
    wanted = {(function_name(stage.fn), config_key(c)): (stage.fn, c) for stage in stages for c in stage.configs}
    kept = [record for fn, config in wanted.values() if (record := found.get(fn, config)) is not None]
    write_records(kept, folder)
    return len(kept), len(wanted)


# --- how long and how large ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One stage of a plan: the runs that no earlier one has, too, and how many are done.

    hours: of one device, for missing runs; without those that `reason` says why not.
    """

    stage: str
    runs: int
    done: int
    hours: float
    gib: float
    reason: str


def estimate(paper: str, stages: Sequence[Planned], everything: Sequence[Planned] = ()) -> Iterator[Row]:
    """A row per stage, in order. Trains for one round on little data, once per kind of training.

    everything: all stages of the paper, if `stages` are not: what follows a training is told in trainings.
    """
    finished = RecordStore(paths.runs_dir() / "records").lookup
    reference, clock, counted = Reference(paper), Clock(everything or stages), set[tuple[str, str]]()
    for stage in tqdm(stages, desc=f"measuring {paper}", unit="stage", leave=False):
        runs = {(function_name(stage.fn), config_key(config)): config for config in stage.configs}
        own = [config for place, config in runs.items() if place not in counted]
        counted.update(runs)
        missing = [config for config in own if not finished.has(stage.fn, config)]
        seconds, gib, reason = 0.0, 0.0, ""
        for config in missing:
            taken, kept = _cost(stage, config, reference, clock)
            gib += kept / 2**30
            if isinstance(taken, str):
                reason = reason or taken
            else:
                seconds += taken
        yield Row(stage.label, len(own), len(own) - len(missing), seconds / 3600, gib, reason)


def _cost(stage: Planned, config: Mapping[str, Any], reference: Reference, clock: Clock) -> tuple[float | str, float]:
    """Seconds, or why they are unknown; and the bytes that the run keeps."""
    if "epochs" not in config:
        seconds = reference.seconds(stage)
        return (UNSEEN if seconds is None else seconds), 0.0
    passes = reference.passes(stage, config)
    if passes is None:
        return UNSEEN, 0.0
    measured = clock.measured(config)
    if isinstance(measured, str):
        return measured, 0.0
    kept = measured.nbytes * _models(config) * _kept_rounds(config) if _trains(stage) else 0.0
    return passes * measured.seconds * _models(config), kept


def _trains(stage: Planned) -> bool:
    return stage.fn.__name__ == "train"


def _passes(config: Mapping[str, Any]) -> float:
    """Of a training: rounds of so many epochs, or epochs where there are no rounds."""
    return float(config["epochs"]) * float(config.get("rounds", 1))


def _models(config: Mapping[str, Any]) -> int:
    """How many a run is about at once."""
    return int(config.get("models", 1))


def _kept_rounds(config: Mapping[str, Any]) -> float:
    """How many rounds' updates a training keeps, if it keeps a history; one final model otherwise."""
    interval = config.get("history", 0)
    return math.ceil(config["rounds"] / interval) if interval else 1


def _kind(config: Mapping[str, Any]) -> str:
    return config_key({key: config[key] for key in PASS if key in config})


class Reference:
    """What runs cost in the committed records of a paper, in trainings of their kind.

    Not in passes over the data: what follows a training replays it, evaluates it round by round or trains again, so
    that from one profile to the next it grows with the rounds of the training. Records that come without their times
    tell nothing. Where $FU_FIGURES has none of a profile that do, those of the checkout are read.
    """

    def __init__(self, paper: str) -> None:
        self._records = [
            _timed(paths.figures_dir(profile, paper)) or _timed(paths.ROOT / "figures" / profile / paper)
            for profile in ("workstation", "laptop", "quick")
        ]

    def passes(self, stage: Planned, config: Mapping[str, Any]) -> float | None:
        """How many passes such a run takes: a training's, times the same method's median share of one."""
        if _trains(stage):
            return _passes(config)
        for found in self._measured:
            for method in (config.get("method"), None):
                if (function_name(stage.fn), method) in found:
                    return found[function_name(stage.fn), method] * _passes(config)
        return None

    def seconds(self, stage: Planned) -> float | None:
        """Of runs that train on no data set: as they were measured."""
        for records in self._records:
            if taken := [r.seconds for r in records if r.function == function_name(stage.fn)]:
                return median(taken)
        return None

    @cached_property
    def _measured(self) -> list[dict[tuple[str, str | None], float]]:
        """Per profile: (function, method, or None for all) -> trainings."""
        return [_trainings_of(records) for records in self._records]


def _timed(folder: Path) -> list[Record]:
    return [record for record in CommittedStore(folder).everything() if record.provenance]


def _trainings_of(records: Sequence[Record]) -> dict[tuple[str, str | None], float]:
    def data(r: Record) -> str:
        return _kind(r.config) + r.data_hash

    per_pass = defaultdict(list)
    for r in records:
        if r.function.endswith(".train"):
            per_pass[data(r)].append(r.seconds / _passes(r.config) / _models(r.config))
    found = defaultdict(list)
    for r in records:
        if not r.function.endswith(".train") and (own := per_pass.get(data(r))):
            for method in (r.config.get("method"), None):
                found[r.function, method].append(r.seconds / median(own) / _models(r.config) / _passes(r.config))
    return {key: median(values) for key, values in found.items()}


class Measured(NamedTuple):
    """Seconds of one pass of a model over its training data here, and the bytes of it that one round leaves on disk."""

    seconds: float
    nbytes: float


class Clock:
    """Measures every kind of training once, by one round on little data and one on more; their difference counts.

    stages: where trainings are looked up. Nothing that it trains is kept.
    """

    def __init__(self, stages: Sequence[Planned]) -> None:
        trainings = [(stage.fn, config) for stage in stages if _trains(stage) for config in stage.configs]
        self._trainings = {_kind(config): (fn, config) for fn, config in reversed(trainings)}
        self._known: dict[str, Measured | str] = {}

    def measured(self, config: Mapping[str, Any]) -> Measured | str:
        """For the config's kind of training; text says why it cannot be measured."""
        kind = _kind(config)
        if kind not in self._trainings:
            return "no training of the kind"
        if kind not in self._known:
            fn, training = self._trainings[kind]
            try:
                self._known[kind] = _measure(fn, training)
            except (ValueError, RuntimeError) as error:
                self._known[kind] = str(error).splitlines()[0]
        return self._known[kind]


def _measure(fn: RunFunction, config: Mapping[str, Any]) -> Measured:
    now = time.process_time if device().type == "cpu" else time.perf_counter  # which others' work does not stretch
    whole = config["n_train"] or len(load(config["dataset"]).y_train) - config.get("n_val", 0)
    few = min(config.get("clients", 1) * config["batch_size"], whole // 2)

    def one_round(samples: int) -> tuple[float, int]:
        change = {
            "rounds": 1,
            "epochs": type(config["epochs"])(1),
            "n_train": samples if samples < whole else config["n_train"],
            "n_test": 50,
        }
        little = {**config, **{key: value for key, value in change.items() if key in config}}
        with tempfile.TemporaryDirectory() as folder, single_threaded():
            store, began = RecordStore(Path(folder)), now()
            record = store.run(fn, little)
            return now() - began, store.tensor_bytes(record.key)

    def timed(samples: int) -> tuple[float, int]:
        one_round(samples)  # loads and warms up
        return one_round(samples)

    alone, nbytes = timed(few)
    more, taken = few, alone
    while more < whole and taken < max(ENOUGH * alone, ENOUGH_SECONDS):
        more = min(4 * more, whole)
        taken, _ = timed(more)
    at_once = _models(config)  # several are trained faster than one after the other
    return Measured(max(taken - alone, 0.0) / (more - few) * whole / at_once, nbytes // at_once)
