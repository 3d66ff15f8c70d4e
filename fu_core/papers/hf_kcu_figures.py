"""HF-KCU's figures and tables, drawn from run records only. Numbers as in the paper: Fig. 1, Tables 1-9.

Every function takes the experiment and what hf_kcu's run functions return, or the frame of `tidy`, and
returns a matplotlib figure or a DataFrame; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fu_core.evaluation.equivalence import causal_faithfulness
from fu_core.papers.hf_kcu_experiment import METHODS, REFERENCES, Cell, Experiment
from fu_core.papers.problem_figures import axes_row, spread, title
from fu_core.papers.problems import Setting
from fu_core.records import Record
from fu_core.report import colour, linestyle, published

FORMS = ("HF-KCU printed", "HF-KCU")
SHOWN = {"Original": "do nothing (Original)", "HF-KCU": "HF-KCU, corrected", "HF-KCU printed": "HF-KCU, as printed"}
PAPER_NAMES = {"Original": "FedAvg (trained)", "Retrain": "Retrained", "HF-KCU printed": "HF-KCU"}
NETS = {"simple_cnn": "SimpleCNN", "vit_lite": "ViT-Lite", "resnet18": "ResNet-18"}
SAME_TRAINING = ["setting", "clients", "rounds", "seed"]  # what a run shares with its Retrain


def shown(method: str) -> str:
    """A method's name in tables."""
    return SHOWN.get(method, method)


def tidy(unlearnings: Mapping[Cell, Record]) -> pd.DataFrame:
    """One row per cell and run, with differences to the retrained model of the same training and seed.

    `cf` is causal faithfulness, missing where undefined; `cf_defined` says so. Accuracies in percent.
    """
    rows = []
    for cell, record in unlearnings.items():
        config = record.config
        poisoned = bool(config["poison"])
        setup = {"clients": config["clients"], "rounds": config["rounds"], "poisoned": poisoned}
        tests = {"n_test": _tested(record), "record": record.key}
        rows.append({**cell._asdict(), **setup, **record.metrics, **tests})
    runs = pd.DataFrame(rows)
    references = runs[runs.method.isin(REFERENCES)].drop_duplicates([*SAME_TRAINING, "poisoned", "method"])
    keys = [*SAME_TRAINING, "poisoned"]
    for method in REFERENCES:
        columns = ["test", "forget", "retain", *(c for c in ("mia", "asr", "asr_included") if c in runs)]
        values = references[references.method == method][[*keys, *columns]]
        runs = runs.merge(values, on=keys, how="left", suffixes=("", f"_{method.lower()}"))
    for name in ("test", "forget", "mia"):
        if name in runs:
            runs[f"delta_{name}"] = (runs[name] - runs[f"{name}_retrain"]).abs()
    faithful = [
        causal_faithfulness(r.test, r.test_retrain, r.test_original, n_test=int(r.n_test)) for r in runs.itertuples()
    ]
    runs["cf"] = [f.value for f in faithful]
    runs["cf_defined"] = [f.defined for f in faithful]
    return runs


def _tested(record: Record) -> int:
    """Test images behind an accuracy: what the config asks for, or all of the data set."""
    return int(record.config["n_test"] or record.metrics["n_test"])
