"""The tidy frame of HF-KCU's runs, and how its rows are found."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from fu_papers.controls import AGAIN, FLOOR, REFERENCES
from fu_papers.hf_kcu.grid import ASCENT, LAST_LAYER, MATCHED, ROUND, SAME_START, Experiment
from fu_papers.hf_kcu.metrics import causal_faithfulness
from fu_papers.hf_kcu.variants import UNWEIGHTED
from fu_papers.lab.record import Record
from fu_papers.problems import PROBLEM_KEYS
from fu_papers.study import Cell, tidy

Unlearnings = Mapping[Cell, Record]
Speeds = Mapping[str, Record]
Floor = Mapping[tuple[int, int], Record]  # seeds, the smaller one first -> two retrainings side by side

SHOWN = {"Original": "do nothing (Original)", AGAIN: FLOOR,
         "HF-KCU": "HF-KCU, corrected", "HF-KCU printed": "HF-KCU, as printed",
         MATCHED: "HF-KCU, held-out length", ROUND: "Natural, one round", ASCENT: "ascent of equal length",
         SAME_START: f"{SAME_START} (floor from the same weights)",
         UNWEIGHTED: f"HF-KCU, {UNWEIGHTED}",
         LAST_LAYER: "certified removal, last layer"}  # fmt: skip
COMPARED = ("test", "forget", "retain", "mia", "asr", "asr_included")  # with the same training's Retrain and Original
APART = (
    "kl",
    "kl_forget",
    "logit_mse",
    "logit_mse_centred",
    "agreement",
    "gap",
)  # of a model and Retrain's, side by side
DERIVED = [f"{name}_{reference.lower()}" for reference in REFERENCES for name in COMPARED]
DERIVED += [*(f"delta_{name}" for name in COMPARED), "cf", "cf_defined"]


def shown(method: str) -> str:
    """A method's name in tables."""
    return SHOWN.get(method, method)


def of_runs(unlearnings: Unlearnings, floor: Floor) -> pd.DataFrame:
    """Every metric of every run, with differences to the retrained model of the same training and seed.

    `cf` is causal faithfulness, missing where undefined (`cf_defined`). Accuracies in percent. The second retraining of
    a seed has the accuracies of its run, which is another seed's (`other_seed`), and the distances of `floor`, the
    pairs of retrainings, where the pair is among them.
    """
    references: dict[Hashable, dict[str, Any]] = {}
    for cell, record in unlearnings.items():
        if cell.method in REFERENCES:
            references.setdefault((cell.method, *_training(cell, record)), record.metrics)

    def measure(cell: Cell, record: Record) -> Iterator[dict[str, Any]]:
        config, m = record.config, record.metrics
        if cell.method == AGAIN:
            m = _second(cell, record, floor)
        found = {"clients": config["clients"], "rounds": config["rounds"], "poisoned": bool(config["poison"]), **m}
        of = {reference: references[(reference, *_training(cell, record))] for reference in REFERENCES}
        for reference, values in of.items():
            found |= {f"{name}_{reference.lower()}": values[name] for name in COMPARED if name in values}
        both = [name for name in COMPARED if name in m and name in of["Retrain"]]
        found |= {f"delta_{name}": abs(m[name] - of["Retrain"][name]) for name in both}
        cf = causal_faithfulness(m["test"], of["Retrain"]["test"], of["Original"]["test"], n_test=m["n_test"])
        yield found | {"cf": cf.value, "cf_defined": cf.defined}

    return tidy(unlearnings, measure)


def _second(cell: Cell, record: Record, floor: Floor) -> dict[str, Any]:
    """The metrics of a second retraining; those of its own run are next to itself, and so are left out."""
    other = record.config["seed"]
    beside_itself = (*APART, "step", "distance", "travelled")
    found = {name: value for name, value in record.metrics.items() if name not in beside_itself}
    found["other_seed"] = other
    pair = floor.get((min(cell.seed, other), max(cell.seed, other)))
    if pair is None or any(pair.config[key] != record.config[key] for key in (*PROBLEM_KEYS, "rounds", "request")):
        return found
    return found | {name: pair.metrics[name] for name in APART}


def _training(cell: Cell, record: Record) -> tuple[Any, ...]:
    """What a run shares with its Retrain."""
    return (cell.setting, cell.seed, cell.request, *(record.config[name] for name in ("clients", "rounds", "poison")))


def mean_of(runs: pd.DataFrame, column: str) -> float:
    """Of the runs that were measured; 0 where none was."""
    found = runs[column].dropna() if column in runs else pd.Series(dtype=float)
    return float(found.mean()) if len(found) else 0.0


def rows_of(runs: pd.DataFrame, group: str, method: str, label: str | None = None) -> pd.DataFrame:
    """The rows of a block and method; `label`: None for whichever."""
    here = (runs.group == group) & (runs.method == method)
    return runs[here if label is None else here & (runs.label == label)]


def on_setting(e: Experiment, runs: pd.DataFrame, setting: str, method: str) -> pd.DataFrame:
    """A method's rows on one of the settings or nets."""
    r = rows_of(runs, "nets" if setting in e.nets else "methods", method)
    return r[r.setting == setting]


def main_runs(e: Experiment, runs: pd.DataFrame, method: str) -> pd.DataFrame:
    """A method's runs on the main setting, those of Table 1."""
    return on_setting(e, runs, e.main, method)


def timed(e: Experiment, speeds: Speeds, setting: str) -> dict[str, Any]:
    """What was measured on one of the settings or nets: seconds and passes by method."""
    return speeds["main" if setting == e.main else setting].metrics


def asr_reduction(r: pd.DataFrame) -> pd.Series:
    """By how many percent attack success (other classes) fell from the poisoned model's."""
    return 100 * (1 - r.asr / r.asr_original)


def saved(runs: pd.DataFrame) -> pd.DataFrame:
    """The wide frame as HF-KCU's CSV file has it: a label for every row, what is derived after what was measured."""
    places = ["group", "label", "setting", "seed", "method"]
    labelled = runs.assign(label=runs.label.where(runs.label != "", runs.method))
    measured = [name for name in runs if name not in (*places, *DERIVED, "request", "condition", "record")]
    return labelled[[*places, *measured, *(name for name in DERIVED if name in runs)]]
