"""Fig. 2 of Certified DFL at the paper's sizes: what DU and one round of fine-tuning save against retraining.

    python benchmarks/bench_certified.py             # ten minutes or so: writes benchmarks/certified.csv
    python benchmarks/bench_certified.py --quick     # a look: 2,000 images of each set, nothing written

All images of MNIST, Fashion-MNIST and CIFAR-10, batches of 100, and as many rounds of one epoch as the `paper`
profile has, with the nets and the curvature of `laptop`: softmax regression, LeNet, and a tiny CNN instead of a
ResNet. Ten clients on a random graph, IID. One process, one thread. Three rounds are timed, and retraining projected
from their median; everything else runs as it is. PDUDT trains on for 200 rounds, as in the paper.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from fu_papers.certified_dfl.grid import Experiment
from fu_papers.certified_dfl.tables import time_table
from fu_papers.certified_dfl.titles import source
from fu_papers.lab.provenance import machine
from fu_papers.lab.store import RecordStore
from fu_papers.parameters import load_profile
from fu_papers.study import Study

OUT = Path(__file__).resolve().parent / "certified.csv"
OF_PAPER = ("rounds", "batch_size", "n_train", "pdudt_rounds")


def experiment(quick: bool) -> Experiment:
    """`laptop` with the paper's sizes."""
    laptop, paper = (load_profile("certified_dfl", profile) for profile in ("laptop", "paper"))
    parameters = laptop | {name: paper[name] for name in OF_PAPER}
    if quick:
        parameters["n_train"] = [2000] * len(laptop["datasets"])
    return Experiment(**parameters, profile="bench")


def main() -> None:
    """Time everything and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data, nothing written")
    quick = parser.parse_args().quick
    e = experiment(quick)
    with tempfile.TemporaryDirectory(prefix="fu-bench-") as folder:
        study = Study(e, RecordStore(Path(folder)))
        table, data = time_table(e, study.run("timing")), source(study.run("settings"))
    print(table.to_string(index=False))
    if not quick:
        lines = [f"# {data}", f"# {machine()['cpu']}, 1 thread; rounds of training: {e.rounds}"]
        OUT.write_text("\n".join([*lines, table.to_csv(index=False)]), encoding="utf-8")


if __name__ == "__main__":
    main()
