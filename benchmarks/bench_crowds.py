"""Trainings per second of the crowds that judges of unlearning compare: all seeds at once, or one after another.

    FU_DATA=... python benchmarks/bench_crowds.py      # two minutes: writes benchmarks/crowds.csv

The arena's places at `quick` and `laptop`: ten clients, its nets, images, batches and learning rate, ten rounds of two
epochs. Per row one place, and as many trainings as its table says:

    all at once      fu_core.federation.many, a row of its round engine per client of every federation
    one at a time    the same engine, a federation after another: its ten clients at once
    plain            a federation and a client after another, autograd and an optimiser step, how="loop"

Each is the median of several turns, taken in turn with the others on one core; models are compared with those of
"plain", which trains the first few: the others would take as long each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm
from workloads import as_in_the_arena

from fu_core.data import load
from fu_core.federation import Federation, fedavg
from fu_core.federation.many import fedavg_many

OUT = Path(__file__).resolve().parent / "crowds.csv"
PLACES = (  # data, images, net, models
    ("digits", 400, "softmax_regression", 64),
    ("digits", 400, "mlp", 64),
    ("fashion_mnist", 1000, "softmax_regression", 64),
    ("fashion_mnist", 1000, "mlp", 16),
    ("cifar10", 1000, "softmax_regression", 16),
    ("cifar10", 1000, "tiny_cnn", 4),
)
FEW, ROUNDS, TURNS = 4, 10, 3


def main() -> None:
    """Measure and write the table."""
    table = pd.DataFrame([measured(*place) for place in tqdm(PLACES, unit="place")])
    print(table.to_string(index=False))
    note = f"# trainings of {ROUNDS} rounds x 2 epochs, 10 clients, batches of 20; one core, torch {torch.__version__}"
    OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.3g')}", encoding="utf-8")


def measured(name: str, n_train: int, net: str, models: int, turns: int = TURNS) -> dict[str, Any]:
    """One place: trainings per second of each way, their ratios, and the largest difference of a parameter."""
    data = load(name).subset(n_train=n_train, seed=0)
    f = as_in_the_arena(net, data, lr=0.1)
    seeds, few = range(models), range(min(FEW, models))

    def one_by_one(f: Federation, which: range) -> Tensor:
        return torch.stack([fedavg(f.having(seed=seed), f.model.init(seed), ROUNDS) for seed in which])

    ways: dict[str, tuple[int, Callable[[], Tensor]]] = {
        "all at once": (models, lambda: fedavg_many(f, seeds, ROUNDS)),
        "one at a time": (models, lambda: one_by_one(f, seeds)),
        "plain": (len(few), lambda: one_by_one(f.having(how="loop"), few)),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, Tensor] = {}
    for _ in range(turns):
        for way, (_, train) in ways.items():
            started = time.perf_counter()
            found[way] = train()
            seconds[way].append(time.perf_counter() - started)
    rate = {way: count / statistics.median(seconds[way]) for way, (count, _) in ways.items()}
    off = max(float((found[way][few] - found["plain"]).abs().max()) for way in ("all at once", "one at a time"))
    return {
        "place": f"{name}, {n_train} images, {net}",
        "parameters": f.model.d,
        "trainings": models,
        **{f"{way}, trainings/s": rate[way] for way in ways},
        "at once / one at a time": rate["all at once"] / rate["one at a time"],
        "at once / plain": rate["all at once"] / rate["plain"],
        "largest difference": off,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
