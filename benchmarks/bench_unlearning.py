"""Seconds, passes and bytes of HF-KCU against retraining in the paper's CIFAR-10 setting, and what they buy.

    python benchmarks/bench_unlearning.py               # half an hour: writes benchmarks/unlearning.csv
    python benchmarks/bench_unlearning.py --rounds 2    # a look; retraining projected from two rounds

50,000 images, 10 clients (Dirichlet 0.5), SimpleCNN, 20 rounds of 5 local epochs, batch 64, SGD at 0.01,
one thread. Retraining leaves client 0 out. Every unlearning variant runs again after every few rounds of
retraining, so that a busy machine slows both; times are medians over these, and over rounds of retraining. One row is
one variant: what it takes, and by how much it lowers accuracy on client 0's images and on test images, from a model
that has trained on all for as many rounds as retraining has been timed.
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
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation import ClientOpt, Federation, Meter, fedavg
from fu_core.federation.local import Client
from fu_core.models import build
from fu_core.request import Deletion, Request
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step
from fu_papers.lab.provenance import machine
from fu_papers.lab.task import single_threaded

OUT = Path(__file__).resolve().parent / "unlearning.csv"
ROUNDS, EPOCHS, EVERY = 20, 5, 4
HELD_OUT = 500  # test images that say how far to go, and are not counted in accuracy
VARIANTS = {
    "corrected, Gauss-Newton": HFKCU(curvature_samples=500),
    "corrected, Gauss-Newton, more images": HFKCU(curvature_samples=2000),
    "corrected, Hessian": HFKCU(matrix="hessian", curvature_samples=500),
    "as printed, client 0's Hessian": HFKCU(form="printed"),
}
MATCHED = "corrected, Gauss-Newton, held-out length"


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
    table = measured(
        f,
        deletion,
        rounds,
        held_out=(data.x_test[:HELD_OUT], data.y_test[:HELD_OUT]),
        unseen=(data.x_test[HELD_OUT:], data.y_test[HELD_OUT:]),
    )
    print(table.to_string(index=False))
    note = f"# {data.source}; {len(data.y_train)} images; {machine()['cpu']}, 1 thread; paper: 47.75x"
    OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.4g')}", encoding="utf-8")


def measured(f: Federation, deletion: Deletion, rounds: int, *, held_out: Client, unseen: Client) -> pd.DataFrame:
    """One row for `rounds` timed rounds of retraining, one per variant: what each takes, and what it buys."""
    rest = f.after(deletion)
    variants = VARIANTS | {MATCHED: HFKCU(curvature_samples=500, held_out=held_out)}
    taken: dict[str, list[float]] = {name: [] for name in variants}
    price: dict[str, Meter] = {}
    bought: dict[str, dict[str, float]] = {}
    laps: list[float] = []

    def unlearn(w: Tensor, full: Tensor) -> None:
        """Time every variant on the model that is being retrained; what it buys is told of the one trained on all."""
        for name, config in variants.items():
            meter, start = Meter(), time.perf_counter()
            hf_kcu_step(f.having(meter=meter), w, deletion, config)
            taken[name].append(time.perf_counter() - start)
            if (
                name not in price or meter.gradient_passes > price[name].gradient_passes
            ):  # CG may end early on a Hessian
                price[name] = meter
        bought.update({name: _bought(f, full, deletion, config, unseen) for name, config in variants.items()})

    w = full = f.model.init(0)
    with single_threaded():
        for t in range(1, rounds + 1):
            start = time.perf_counter()
            w = fedavg(rest, w, 1, first_round=t)
            laps.append(time.perf_counter() - start)
            full = fedavg(f, full, 1, first_round=t)
            if t % EVERY == 1 or t == rounds:
                unlearn(w, full)
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
            "images behind a product": None,
            "MB sent": ROUNDS * 2 * len(rest.ids) * f.model.d * w.element_size() / 1e6,
            **_change(f, full, w, deletion, unseen),
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
                "gradient passes (images)": price[name].gradient_passes,
                "fewer passes, x": ROUNDS * EPOCHS * retained / price[name].gradient_passes,
                "images behind a product": min(variants[name].curvature_samples or deletion.m, retained),
                "MB sent": price[name].bytes / 1e6,
                **bought[name],
                "timed": f"{len(seconds)} times",
            }
        )
    return pd.DataFrame(rows)


def _bought(f: Federation, w: Tensor, deletion: Deletion, config: HFKCU, unseen: Client) -> dict[str, float]:
    """Points of accuracy that a step from `w` changes."""
    return _change(f, w, w + hf_kcu_step(f.having(meter=Meter()), w, deletion, config).step, deletion, unseen)


def _change(f: Federation, before: Tensor, after: Tensor, deletion: Deletion, unseen: Client) -> dict[str, float]:
    """Points from one model to another, on what is forgotten and on test images."""
    found = {}
    for name, images in (("forget acc. change", deletion.forget), ("test acc. change", unseen)):
        found[name] = accuracy(f.model, after, *images) - accuracy(f.model, before, *images)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
