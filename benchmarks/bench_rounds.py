"""Seconds per federated round: ours against a plain PyTorch loop over the same clients, batches and net.

    make bench                  # writes benchmarks/rounds.csv

Every implementation does the same arithmetic on the same batches; `difference` is the largest difference
of the averaged model from the plain loop's, the proof of equal work. Implementations take turns, a
block of rounds each, so that a busy machine slows all of them; ratios are medians over the repetitions.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from fu_core.data import load
from fu_core.errors import DataUnavailable
from fu_core.federation.horizontal import aggregate, fedavg_round, sizes_of
from fu_core.federation.local import Client, ClientOpt, batches
from fu_core.models import FlatModel, Standardize
from fu_core.models.cnn import simple_cnn
from fu_core.models.linear import softmax_regression
from fu_core.provenance import PeakMemory, machine

OUT = Path(__file__).resolve().parent / "rounds.csv"


@dataclass(frozen=True)
class Workload:
    """A federation and what one round of it does."""

    name: str
    net: nn.Module
    clients: int
    samples: int  # per client
    per_round: int  # clients in a round
    batch_size: int
    block: int  # rounds in a row that are timed together, as in a real training

    @property
    def steps(self) -> int:
        """Local steps of all clients in one round."""
        return self.per_round * -(-self.samples // self.batch_size)


WORKLOADS = (
    Workload("softmax regression", softmax_regression(784, 10), 1000, 60, 10, 10, block=20),
    Workload("small CNN", simple_cnn(1, 28, 10), 10, 600, 10, 32, block=1),
)


def mnist_or_generated() -> tuple[Tensor, Tensor, str]:
    """60,000 images (n, 1, 28, 28) with labels, and where they come from."""
    try:
        data = load("mnist")
        return data.x_train, data.y_train, "MNIST"
    except DataUnavailable:
        g = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (60_000, 1, 28, 28), generator=g, dtype=torch.uint8)
        return x, torch.randint(0, 10, (60_000,), generator=g), "generated noise of MNIST's shape"


def plain_round(
    module: nn.Module, clients: Sequence[Client], local: ClientOpt, round: int, ids: Sequence[int]
) -> Tensor:
    """One round as one would write it without a library: one module, torch.optim, state dicts. Returns w (d,)."""
    start = copy.deepcopy(module.state_dict())
    models = []
    for i in ids:
        module.load_state_dict(start)
        optimiser = torch.optim.SGD(module.parameters(), lr=local.lr)
        x, y = clients[i]
        for b in batches(len(y), local, seed=0, round=round, client=i):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(x[b]), y[b]).backward()
            optimiser.step()
        models.append(nn.utils.parameters_to_vector(module.parameters()).detach())
    module.load_state_dict(start)
    n = sizes_of([clients[i] for i in ids])
    return aggregate(torch.stack(models), n / n.sum())


def measure(workload: Workload, x: Tensor, y: Tensor, repetitions: int) -> list[dict[str, object]]:
    """One row per implementation."""
    parts = torch.arange(len(y))[: workload.clients * workload.samples].split(workload.samples)
    clients = [(x[p], y[p]) for p in parts]
    scale = Standardize(torch.tensor([0.1307]), torch.tensor([0.3081]), 255)
    module = nn.Sequential(scale, workload.net)
    model = FlatModel(module)
    w = nn.utils.parameters_to_vector(module.parameters()).detach()
    local = ClientOpt(lr=0.05, batch_size=workload.batch_size)

    def ours(how: str) -> Callable[[int, Sequence[int]], Tensor]:
        return lambda t, ids: fedavg_round(model, w, clients, local, seed=0, round=t, ids=ids, how=how)[0]

    ways: dict[str, Callable[[int, Sequence[int]], Tensor]] = {
        "plain PyTorch loop": lambda t, ids: plain_round(module, clients, local, t, ids),
        "fu_core loop": ours("loop"),
        "fu_core vmap": ours("vmap"),
        "fu_core auto": ours("auto"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peak, difference = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0.0)
    for repetition in range(repetitions + 1):
        rounds = [1 + repetition * workload.block + k for k in range(workload.block)]
        participants = [
            [(t * workload.per_round + k) % workload.clients for k in range(workload.per_round)] for t in rounds
        ]
        reference = ways["plain PyTorch loop"](rounds[-1], participants[-1])
        for name, way in ways.items():
            if repetition == 0:  # pays for warming up; memory is sampled then, which would disturb the clock
                with PeakMemory() as memory:
                    way(rounds[-1], participants[-1])
                peak[name] = memory.mib
                continue
            begin = time.perf_counter()
            for t, ids in zip(rounds, participants, strict=True):
                result = way(t, ids)
            seconds[name].append((time.perf_counter() - begin) / workload.block)
            difference[name] = max(difference[name], float((result - reference).abs().max()))
    rows = []
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds["plain PyTorch loop"], times, strict=True)]
        rows.append(
            {
                "workload": workload.name,
                "implementation": name,
                "seconds per round": statistics.median(times),
                "ms per local step": 1000 * statistics.median(times) / workload.steps,
                "faster than plain, x": statistics.median(ratios),
                "peak MiB": peak[name],
                "difference": difference[name],
                "clients": workload.clients,
                "per round": workload.per_round,
                "samples per client": workload.samples,
                "batch": workload.batch_size,
            }
        )
    return rows


def main() -> None:
    """Measure all workloads, print the table, write the CSV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7, help="measured rounds (median); one more warms up")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x, y, source = mnist_or_generated()
    rows = [row for workload in WORKLOADS for row in measure(workload, x, y, options.repetitions)]
    frame = pd.DataFrame(rows)
    told = f"# {source}; {machine()['cpu']}, {options.threads} thread(s); median of {options.repetitions} repetitions\n"
    options.out.write_text(told + frame.to_csv(index=False, float_format="%.4g", lineterminator="\n"), encoding="utf-8")
    print(told + frame.iloc[:, :7].to_string(index=False, float_format="%.3g"))


if __name__ == "__main__":
    main()
