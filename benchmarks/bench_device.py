"""Local steps per second on the computing device: our ways and precisions against a plain PyTorch loop.

    python benchmarks/bench_device.py            # writes benchmarks/device.csv

`$FU_DEVICE` picks the device (default: the first GPU, else the CPU). Data lie on it from the start, a round is timed to
the end of its last kernel, and all take turns. Utilisation: the share of time in which the driver saw a kernel at work,
where it can be asked.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch
from plain_rounds import train, vector
from torch import Tensor, nn
from workloads import WORKLOADS, Workload, load_or_generate

from fu_core.federation import ClientOpt, Federation
from fu_core.federation.local import batches
from fu_core.federation.together import prepared, train_round
from fu_core.models import build
from fu_papers.lab.device import device
from fu_papers.lab.provenance import machine

OUT = Path(__file__).resolve().parent / "device.csv"
WAYS = (("loop", "float32"), ("loop", "bf16"), ("vmap", "float32"), ("vmap", "bf16"), ("auto", "float32"))
SAMPLE_SECONDS = 0.02
Round = Callable[[int], Tensor]  # its number -> the clients' updates (K, d)


def plain(f: Federation, w: Tensor, ids: list[int]) -> Round:
    """One client after the other with torch.optim, batches indexed where the data lie."""
    net = copy.deepcopy(f.model.module).to(w.device)

    def run(t: int) -> Tensor:
        deltas = []
        for i in ids:
            nn.utils.vector_to_parameters(w.clone(), net.parameters())  # which it turns into views
            x, y = f.clients[i]
            plan = [b.to(x.device) for b in batches(len(y), f.local, seed=f.seed, round=t, client=i)]
            train(net, x, y, plan, f.local.lr)
            deltas.append(vector(net) - w)
        return torch.stack(deltas)

    return run


def ours(f: Federation, w: Tensor, ids: list[int]) -> Round:
    """`train_round` in one of its ways."""
    ready = prepared(f, w)
    return lambda t: train_round(ready, w, t, ids)


def finish() -> None:
    """Wait for the device."""
    if device().type == "cuda":
        torch.cuda.synchronize()


@contextmanager
def utilisation() -> Iterator[list[float]]:
    """Samples in percent while the block runs; none where the driver cannot be asked."""
    samples: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SAMPLE_SECONDS):
            try:
                samples.append(float(torch.cuda.utilization()))
            except (RuntimeError, AssertionError, ModuleNotFoundError):  # no GPU, or no nvidia-ml-py
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


@contextmanager
def trained_in(precision: str) -> Iterator[None]:
    """Set FU_PRECISION while the block runs."""
    os.environ["FU_PRECISION"] = precision
    try:
        yield
    finally:
        del os.environ["FU_PRECISION"]


def measure(workload: Workload, repetitions: int) -> list[dict[str, object]]:
    """One row per way; the plain loop first."""
    data = load_or_generate(workload)
    model, where = build(workload.model, data), device()
    w = model.init(0).to(where)
    rows = torch.arange(workload.clients * workload.samples).split(workload.samples)
    clients = {i: (data.x_train[r].to(where), data.y_train[r].to(where)) for i, r in enumerate(rows)}
    f = Federation(model, clients, ClientOpt(lr=workload.lr, batch_size=workload.batch_size))
    ids = list(range(workload.per_round))
    ways: dict[tuple[str, str], Round] = {("plain PyTorch loop", "float32"): plain(f, w, ids)}
    ways |= {(how, precision): ours(f.having(how=how), w, ids) for how, precision in WAYS}
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in ways}
    busy: dict[tuple[str, str], list[float]] = {name: [] for name in ways}
    reference = ways["plain PyTorch loop", "float32"](0)
    difference = {}
    for repetition in range(repetitions + 1):
        for (how, precision), run in ways.items():
            with trained_in(precision), utilisation() as samples:
                began = time.perf_counter()
                deltas = [run(t) for t in range(workload.block)]
                finish()
                taken = time.perf_counter() - began
            if repetition:  # the first one warms up
                seconds[how, precision].append(taken / workload.block)
                busy[how, precision] += samples
            difference[how, precision] = float((deltas[0] - reference).norm() / reference.norm())
    plain_times = seconds["plain PyTorch loop", "float32"]
    return [
        {
            "workload": workload.name,
            "way": name[0],
            "precision": name[1],
            "steps per second": workload.steps / statistics.median(times),
            "faster than plain, x": statistics.median(a / b for a, b in zip(plain_times, times, strict=True)),
            "utilisation, %": statistics.mean(busy[name]) if busy[name] else None,
            "difference of the updates, relative": difference[name],
        }
        for name, times in seconds.items()
    ]


def main() -> None:
    """Measure, print, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="measured rounds (median); one more warms up")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="workloads")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if device().type == "cpu":
        torch.set_num_threads(1)
    frame = pd.DataFrame([row for name in options.only for row in measure(WORKLOADS[name], options.repetitions)])
    hardware = torch.cuda.get_device_name() if device().type == "cuda" else f"{machine()['cpu']}, 1 thread"
    told = f"# {hardware}, torch {torch.__version__}; median of {options.repetitions} rounds\n"
    options.out.write_text(told + frame.to_csv(index=False, float_format="%.4g", lineterminator="\n"), encoding="utf-8")
    print(told + frame.to_string(index=False, float_format="%.3g", na_rep="-"))


if __name__ == "__main__":
    main()
