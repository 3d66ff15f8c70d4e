"""bf16 in place of float32: does what is learned stay within what seeds differ by?

    FU_DATA=... python benchmarks/bench_precision.py      # ten minutes: writes benchmarks/precision.csv

Every net is trained from the same weights on the same batches in both precisions, once per seed, and tested on all test
images in float32. Beside the difference of a pair stands what two seeds in float32 differ by. How long a round takes in
either is measured by bench_rounds.py.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from joblib import Parallel, delayed
from scipy.stats import ttest_1samp
from tqdm import tqdm
from workloads import WORKLOADS, Workload, held_by_clients, load_or_generate

from fu_core.data import Dataset
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation import ClientOpt, Federation
from fu_core.federation.horizontal import fedavg
from fu_core.models import build
from fu_core.precision import PRECISIONS
from fu_papers.lab.jobs import default_jobs
from fu_papers.lab.provenance import machine

OUT = Path(__file__).resolve().parent / "precision.csv"
ROUNDS = {"cnn": 10, "resnet": 30}  # of WORKLOADS
SEEDS = range(4)


def main() -> None:
    """Train, print the table, write it."""
    asked = list(product(ROUNDS, SEEDS, PRECISIONS))
    calls = (delayed(_one)(*one) for one in asked)
    found = Parallel(n_jobs=default_jobs(), return_as="generator")(calls)
    reached = dict(zip(asked, tqdm(found, total=len(asked), unit="training"), strict=True))
    table = pd.DataFrame(
        compared(WORKLOADS[name], ROUNDS[name], *([reached[name, seed, p] for seed in SEEDS] for p in PRECISIONS))
        for name in ROUNDS
    )
    print(table.to_string(index=False))
    sources = "".join(f"# {WORKLOADS[name].name}: {load_or_generate(WORKLOADS[name]).source}\n" for name in ROUNDS)
    told = f"# {machine()['cpu']}; torch {torch.__version__}; accuracy on all test images, in percent\n{sources}"
    OUT.write_text(told + table.to_csv(index=False, float_format="%.4g", lineterminator="\n"), encoding="utf-8")


def _one(name: str, seed: int, precision: str) -> float:
    torch.set_num_threads(1)
    return trained(WORKLOADS[name], load_or_generate(WORKLOADS[name]), ROUNDS[name], seed, precision)


def trained(workload: Workload, data: Dataset, rounds: int, seed: int, precision: str) -> float:
    """Accuracy on the test images after so many rounds of all clients in that precision, in percent."""
    os.environ["FU_PRECISION"] = precision
    model = build(workload.model, data)
    own = list(zip(*held_by_clients(workload, data), strict=True))
    f = Federation(model, own, ClientOpt(lr=workload.lr, batch_size=workload.batch_size), seed)
    return accuracy(model, fedavg(f, model.init(seed), rounds), data.x_test, data.y_test)


def compared(workload: Workload, rounds: int, exact: Sequence[float], rounded: Sequence[float]) -> dict[str, Any]:
    """A row of the table. exact, rounded: accuracy by seed, in float32 and in bf16."""
    differences = [b - a for a, b in zip(exact, rounded, strict=True)]
    low, high = ttest_1samp(differences, 0).confidence_interval()
    return {
        "net": workload.name,
        "rounds": rounds,
        "seeds": len(differences),
        "float32": statistics.mean(exact),
        "bf16": statistics.mean(rounded),
        "bf16 - float32": statistics.mean(differences),
        "from": low,
        "to": high,
        "a pair's difference": statistics.mean(map(abs, differences)),
        "two seeds' difference in float32": statistics.mean(abs(a - b) for a, b in combinations(exact, 2)),
    }


if __name__ == "__main__":
    main()
