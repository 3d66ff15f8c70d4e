"""Seconds of HF-KCU against retraining in the paper's CIFAR-10 setting, in one process.

    python benchmarks/bench_unlearning.py               # half an hour: writes benchmarks/unlearning.csv
    python benchmarks/bench_unlearning.py --rounds 2    # a look; retraining projected from two rounds

50,000 images, 10 clients (Dirichlet 0.5), SimpleCNN, 20 rounds of 5 local epochs, batch 64, SGD at 0.01,
one thread. Retraining leaves client 0 out. Every unlearning variant runs again after every few rounds of
retraining, so that a busy machine slows both; times are medians over these, and over rounds of retraining.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from fu_core import partition
from fu_core.data import load
from fu_core.federation import ClientOpt, Federation, Meter, fedavg
from fu_core.models import build
from fu_core.request import Request
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step
from fu_papers.lab.provenance import machine
from fu_papers.lab.task import single_threaded

OUT = Path(__file__).resolve().parent / "unlearning.csv"
ROUNDS, EPOCHS, EVERY = 20, 5, 4
VARIANTS = {
    "corrected, Gauss-Newton on 500 images": HFKCU(matrix="ggn", curvature_samples=500),
    "corrected, Gauss-Newton on 2,000 images": HFKCU(matrix="ggn", curvature_samples=2000),
    "corrected, Hessian on 500 images": HFKCU(curvature_samples=500),
    "as printed, client 0's Hessian": HFKCU(form="printed"),
}


def main() -> None:
    """Time everything and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of retraining to run and time")
    rounds = parser.parse_args().rounds
    data = load("cifar10")
    parts = partition.dirichlet(data.y_train, 10, alpha=0.5, seed=0, min_size=10)
    clients = {i: (data.x_train[part], data.y_train[part]) for i, part in enumerate(parts)}
    f = Federation(build("simple_cnn", data), clients, ClientOpt(lr=0.01, epochs=EPOCHS, batch_size=64))
    deletion = Request.parse("client-0").resolve(clients)
    rest = f.after(deletion)
    taken: dict[str, list[float]] = {name: [] for name in VARIANTS}
    passes: dict[str, int] = {}
    laps: list[float] = []

    def unlearn(w: Tensor) -> None:
        for name, config in VARIANTS.items():
            meter, start = Meter(), time.perf_counter()
            hf_kcu_step(f.having(meter=meter), w, deletion, config)
            taken[name].append(time.perf_counter() - start)
            passes[name] = max(passes.get(name, 0), meter.gradient_passes)  # CG may end early on a Hessian

    w = f.model.init(0)
    with single_threaded():
        for t in range(1, rounds + 1):
            start = time.perf_counter()
            w = fedavg(rest, w, 1, first_round=t)
            laps.append(time.perf_counter() - start)
            if t % EVERY == 1 or t == rounds:
                unlearn(w)
            print(f"round {t} of {rounds}: {laps[-1]:.0f} s", flush=True)
    retrain = ROUNDS * statistics.median(laps)  # a busy moment of the machine must not count for us
    retained = len(deletion.retain[1])
    rows = [
        {
            "what": "retraining",
            "seconds": retrain,
            "faster, x": 1.0,
            "gradient passes (images)": ROUNDS * EPOCHS * retained,
            "fewer passes, x": 1.0,
            "timed": f"{rounds} of {ROUNDS} rounds",
        }
    ]
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        rows.append(
            {
                "what": name,
                "seconds": middle,
                "faster, x": retrain / middle,
                "gradient passes (images)": passes[name],
                "fewer passes, x": ROUNDS * EPOCHS * retained / passes[name],
                "timed": f"{len(seconds)} times",
            }
        )
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    note = f"# {data.source}; {len(data.y_train)} images; {machine()['cpu']}, 1 thread; paper: 47.75x"
    OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.4g')}", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
