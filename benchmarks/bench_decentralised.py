"""What a round and a request cost as a network grows: softmax regression, 10 to 10,000 clients, sparse mixing.

    python benchmarks/bench_decentralised.py    # ten minutes: writes benchmarks/decentralised.csv

Every client holds 60 images of MNIST's shape and links to two neighbours (a ring) or to about ten (a random
graph). One round is one local epoch at everybody, batch 10, and one mixing. A request deletes six samples at
one client. Each size runs in a process of its own, one thread; memory is its peak above what was resident before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fu_core.federation import ClientOpt, Federation, Meter, Peers
from fu_core.federation.decentralised import dpsgd_round, start
from fu_core.federation.graphs import metropolis, topology
from fu_core.models import FlatModel, Standardize
from fu_core.models.linear import softmax_regression
from fu_core.request import Deletion
from fu_core.unlearning.du import DU, du
from fu_papers.lab.provenance import MIB, PeakMemory, machine

OUT = Path(__file__).resolve().parent / "decentralised.csv"
SIZES = (10, 30, 100, 300, 1000, 3000, 10000)
SAMPLES, REPEATS = 60, 3
FORMS = {
    "printed": DU(form="printed", curvature="ggn", damping=0.01, iters=20),
    "corrected": DU(curvature="ggn", damping=0.01, iters=20, curvature_samples=2000),
}


def measure(clients: int, graph: str) -> dict[str, Any]:
    """Seconds and memory for one size, in this process."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * SAMPLES, 1, 28, 28), generator=g, dtype=torch.uint8)
    y = torch.randint(0, 10, (len(x),), generator=g)
    data = dict(enumerate(zip(x.split(SAMPLES), y.split(SAMPLES), strict=True)))
    scaled = torch.nn.Sequential(
        Standardize(torch.tensor([0.5]), torch.tensor([0.3]), 255.0), softmax_regression(784, 10)
    )
    links = topology(graph, clients, p=min(1.0, 10 / clients))
    peers = Peers(links, mixing=metropolis(links, sparse=True))
    f = Federation(FlatModel(scaled), data, ClientOpt(lr=0.01, batch_size=10), seed=0, exchange=peers)
    W = start(f.model.init(0), clients)
    matrix = W.numel() * W.element_size() / MIB
    with PeakMemory() as idle:
        pass
    with PeakMemory() as peak:
        rounds = _seconds(lambda: dpsgd_round(f, W, 1))
    row = {"clients": clients, "graph": graph, "round, s": rounds, "round, ms per client": 1000 * rounds / clients}
    row["memory of a round, matrices"] = (peak.mib - idle.mib) / matrix
    deletion = Deletion.of(data, {0: torch.arange(6)})
    for name, config in FORMS.items():
        row[f"request {name}, s"] = _seconds(lambda config=config: du(f, W, deletion, config))
        counted = f.having(meter=Meter())
        du(counted, W, deletion, config)
        row[f"request {name}, vectors sent"] = counted.meter.bytes // (4 * f.model.d)
    return row


def _seconds(run: Callable[[], object]) -> float:
    run()
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    """Measure every size in a fresh process and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, metavar=("CLIENTS", "GRAPH"), help="measure one size and print it as JSON")
    one = parser.parse_args().one
    if one:
        print(json.dumps(measure(int(one[0]), one[1])))
        return
    rows = []
    for graph in ("ring", "erdos_renyi"):
        for clients in SIZES:
            command = [sys.executable, __file__, "--one", str(clients), graph]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout))
            print(rows[-1], flush=True)
    note = f"# generated noise of MNIST's shape, {SAMPLES} images per client, d = 7850; {machine()['cpu']}, 1 thread"
    table = pd.DataFrame(rows)
    print(table.to_string(index=False))
    OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.4g')}", encoding="utf-8")


if __name__ == "__main__":
    main()
