"""How far does rounding carry a training? What another processor changes in one model, and what step sizes do about it.

    FU_DATA=... python benchmarks/bench_rounding.py      # a minute: writes benchmarks/rounding.csv

Trainings as the arena's, 30 rounds of two epochs by ten clients, each twice: from the same initial weights, and from
those moved by 1e-6 a parameter. Growth is how far apart the two end, over how far apart they began, median and largest
of the seeds. Below 1 a training forgets rounding, so that processors agree to their last digits. Far above, single
models differ, by as many test images as in the last column (the largest, in points).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm
from workloads import as_in_the_arena

from fu_core.data import load
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.many import fedavg_many

OUT = Path(__file__).resolve().parent / "rounding.csv"
PLACES: tuple[tuple[str, int, str, str, tuple[float, ...]], ...] = (  # data, images, clients, net, steps
    ("digits", 400, "alike", "softmax_regression", (0.2,)),
    ("digits", 400, "alike", "mlp", (0.2,)),
    ("fashion_mnist", 1000, "alike", "softmax_regression", (0.1, 0.03, 0.01)),
    ("fashion_mnist", 1000, "Dirichlet 0.1", "softmax_regression", (0.1, 0.03, 0.01)),
    ("fashion_mnist", 1000, "alike", "mlp", (0.1, 0.03, 0.01)),
    ("cifar10", 1000, "alike", "softmax_regression", (0.1, 0.03, 0.01)),
)
CLIENTS = {"alike": None, "Dirichlet 0.1": 0.1}
SEEDS, ROUNDS, MOVED = range(8), 30, 1e-6


def main() -> None:
    """Measure and write the table."""
    cases = [(name, n, clients, net, step) for name, n, clients, net, steps in PLACES for step in steps]
    table = pd.DataFrame([measured(*case) for case in tqdm(cases, unit="place")])
    print(table.to_string(index=False))
    note = (
        f"# {ROUNDS} rounds x 2 epochs, 10 clients, batches of 20, weights moved by {MOVED}; torch {torch.__version__}"
    )
    OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.3g')}", encoding="utf-8")


def measured(name: str, n_train: int, clients: str, net: str, step: float) -> dict[str, Any]:
    """One place and step: growth of what was moved, and what it changes of a model's test accuracy."""
    data = load(name).subset(n_train=n_train, n_test=None if name == "digits" else 2000, seed=0)
    f = as_in_the_arena(net, data, step, alpha=CLIENTS[clients])
    w_0 = torch.stack([f.model.init(seed) for seed in SEEDS])
    moved = w_0 + MOVED * torch.randn(w_0.shape, generator=torch.Generator().manual_seed(0))
    w, w_moved = (fedavg_many(f, SEEDS, ROUNDS, start) for start in (w_0, moved))

    right, right_moved = (
        torch.tensor([accuracy(f.model, one, data.x_test, data.y_test) for one in each]) for each in (w, w_moved)
    )
    growth = (w_moved - w).norm(dim=1) / (moved - w_0).norm(dim=1)
    return {
        "place": f"{name}, {n_train} images, {net}",
        "clients": clients,
        "step": step,
        "growth": float(growth.median()),
        "largest growth": float(growth.max()),
        "test accuracy": float(right.mean()),
        "largest difference": float((right_moved - right).abs().max()),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
