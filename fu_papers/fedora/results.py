"""The tidy frame of FedORA's runs, how its rows are found, and what data sets, requests and methods are called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fu_core.request import Request
from fu_papers import problem_figures
from fu_papers.controls import AGAIN, DESTROYED, FLOOR, REFERENCES
from fu_papers.fedora.grid import CONDITIONS, Task, has_backdoor, twin
from fu_papers.lab.record import Record
from fu_papers.study import Cell, tidy

Unlearnings = Mapping[Cell, Record]
Speeds = Mapping[Task, Record]  # what was timed where

SHOWN = {
    "Original": "do nothing (Original)",
    AGAIN: FLOOR,
    "Few-shot": "Few-shot (Gu et al.; a reconstruction)",
    "FedORA": "FedORA, scalar dual",
    "FedORA reverse": "FedORA, reverse divergence",
    "FedORA vector": "FedORA, element-wise dual",
    "FedORA calibrated": "FedORA, threshold of unseen samples",
}
DISTANCES = ("gap", "kl", "agree")  # to Retrain
RUINED = 0.2  # of Retrain's test accuracy with the same backdoor: who has lost more is of no use
TOO_MUCH = f"over {100 * RUINED:g} % of Retrain's test accuracy"  # what it has lost, in words
METRICS = ("test", "test_all", "test_affected", "forget", "entropy", "mia", "mia_fraction", "asr", *DISTANCES)
NOT_COLUMNS = (
    "asr",
    "poison",
    "diverged",
    "by_class",
    "trial",
    "chosen",
    "ended",
)  # of a run's metrics: what is not as it is


def of_runs(unlearnings: Unlearnings, floor: Unlearnings) -> pd.DataFrame:
    """Every metric of every run that has no backdoor; the backdoor's success of its poisoned twin stands beside them.

    floor: the distances of the controls whose runs do not know them, by the place of the run; missing elsewhere.
    `asr`, `clean_asr`: with and without poisoned samples in training, the former missing without a twin; `diverged`:
    whether a run left the numbers, or lost the model by its method's own account: it has no metrics;
    `poisoned_diverged`: whether its twin did;
    `..._original`, `..._retrain`: the values of those two for the same task and seed; `delta_...`: absolute difference
    to Retrain.
    """
    references: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell, record in unlearnings.items():
        if cell.method in REFERENCES and not has_backdoor(cell):
            references.setdefault((cell.method, *_task(cell)), _measured(unlearnings, cell, record))

    def measure(cell: Cell, record: Record) -> Iterator[dict[str, Any]]:
        if has_backdoor(cell):
            return
        found = {name: record.config[name] for name in CONDITIONS} | _measured(unlearnings, cell, record)
        if cell.method in (AGAIN, DESTROYED):
            found |= {name: floor[cell].metrics[name] if cell in floor else math.nan for name in DISTANCES}
        for method in REFERENCES:
            of = references[(method, *_task(cell))]
            found |= {f"{name}_{method.lower()}": of[name] for name in (*METRICS, "poisoned_test")}
        yield found | {f"delta_{name}": abs(found[name] - found[f"{name}_retrain"]) for name in METRICS}

    return tidy(unlearnings, measure)


def _task(cell: Cell) -> tuple[Any, ...]:
    """What a run shares with those it is compared with."""
    return cell.setting, cell.request, cell.condition, cell.seed


def _measured(unlearnings: Unlearnings, cell: Cell, record: Record) -> dict[str, Any]:
    """A run's metrics, with those of its poisoned twin that are about the backdoor."""
    lost = "diverged" in record.metrics
    found = {name: value for name, value in record.metrics.items() if name not in NOT_COLUMNS}
    if lost:
        found |= dict.fromkeys((*METRICS, "mia_auc", "loss", "images", "up", "down", "kept"), math.nan)
    found |= {"labels": Task(cell.setting, cell.request).labels, "diverged": lost}
    found["reverse"] = record.metrics.get("chosen", {}).get("score") == "reverse"  # as its trials have chosen
    found["clean_asr"] = math.nan if lost else record.metrics["asr"]
    poisoned = unlearnings.get(twin(cell))
    twin_lost = poisoned is not None and "diverged" in poisoned.metrics
    there = {"asr": math.nan, "test": math.nan} if poisoned is None or twin_lost else poisoned.metrics
    return {**found, "asr": there["asr"], "poisoned_test": there["test"], "poisoned_diverged": twin_lost}


def kept_model(runs: pd.DataFrame) -> pd.DataFrame:
    """Those of `runs` that did not diverge: what has left the numbers enters no mean."""
    return runs[~runs.diverged.astype(bool)]


def ruined(runs: pd.DataFrame) -> pd.Series:
    """Whose twin lost more than `RUINED` of Retrain's test accuracy to the backdoor, or to what was done about it.

    A backdoor that is gone because the model is gone says nothing: such twins are counted, and enter no mean.
    """
    return runs.poisoned_test < (1 - RUINED) * runs.poisoned_test_retrain


class Backdoored(NamedTuple):
    """What became of the models with a backdoor: the runs whose model is of use, and how many there are, diverged, and
    are ruined besides."""

    kept: pd.DataFrame
    n: int
    diverged: int
    ruined: int

    def lost(self) -> str:
        """`"9 diverged, 16 ruined"`, or "" if none did."""
        counts = {"diverged": self.diverged, "ruined": self.ruined}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def with_backdoor(runs: pd.DataFrame) -> Backdoored:
    """Of `runs`, those with a poisoned twin, and what became of it: the one place where that is counted."""
    gone = runs.poisoned_diverged.astype(bool)
    useless = ruined(runs) & ~gone
    there = runs.asr.notna() | gone
    return Backdoored(runs[there & ~gone & ~useless], int(there.sum()), int(gone.sum()), int(useless.sum()))


def counted_in(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Those of `runs` that are in the mean of a metric: of a backdoor's success, where its model is of use."""
    return with_backdoor(runs).kept if metric in ("asr", "poisoned_test") else kept_model(runs)


def rows_of(runs: pd.DataFrame, group: str, task: Task, method: str, label: str = "") -> pd.DataFrame:
    """The runs of one row of a table: a task's, all seeds."""
    place = {"method": method, "group": group, "request": task.request, "setting": task.dataset}
    for column, wanted in {**place, "label": label, "condition": task.condition}.items():
        runs = runs[runs[column] == wanted]  # one after the other: what compares texts has ever fewer of them
    return runs


def saved(runs: pd.DataFrame) -> pd.DataFrame:
    """The wide frame as FedORA's CSV file has it: a label for every row, and conditions as numbers."""
    labelled = runs.assign(label=runs.label.where(runs.label != "", runs.method), dataset=runs.setting)
    places = ["dataset", "request", *CONDITIONS, "group", "seed", "label", "method"]
    measured = [name for name in runs if name not in (*places, "setting", "condition", "record")]
    return labelled[[*places, *measured]]


# --- names -----------------------------------------------------------------------------------------------------------


def shown(method: str) -> str:
    """A method's name in tables."""
    return SHOWN.get(method, method)


def request_title(request: str) -> str:
    """A request as the paper writes it: "m=2, n=50 %"."""
    asked = Request.parse(request)
    if asked.kind == "classes":
        where = f" (classes from {asked.first})" if asked.first != 1 else ""
        return f"m={asked.count}, n={asked.percent} %{where}"
    return f"{asked.count} samples" if asked.count != 1 else "1 sample"


def source(descriptions: Mapping[str, Record], datasets: Sequence[str] | None = None) -> str:
    """The line under every table and figure: which data, which nets. `datasets`: only those (default: all)."""
    return problem_figures.source(descriptions, datasets, nets="bottoms")
