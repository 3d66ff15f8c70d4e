"""What a preconditioner saves CG on a small trained net: products until it is solved, and passes with its own price.

    python benchmarks/bench_preconditioners.py      # a minute: writes benchmarks/preconditioners.csv

Digits, ten clients (Dirichlet 0.5), a perceptron with 64 hidden units after 20 rounds of 5 epochs; client 0 leaves.
HF-KCU's right-hand side and Gauss-Newton matrix of what is retained, all of it, solved to a relative residual of 0.1
and 0.01 in at most 300 steps, for several dampings; one row is one damping, one preconditioner. Passes count a product
as two gradients, the Jacobi diagonal as one, Kronecker factors as one per class. Steps do not depend on the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fu_core import partition
from fu_core.data import load
from fu_core.federation import ClientOpt, Federation, Meter, fedavg
from fu_core.models import build
from fu_core.request import Deletion, Request
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step

OUT = Path(__file__).resolve().parent / "preconditioners.csv"
DAMPINGS = (0.1, 0.01, 0.001)
TOLERANCES = (0.1, 0.01)
PRECONDITIONERS = ("none", "jacobi", "kfac")
MOST = 300


def main() -> None:
    """Measure and write the table."""
    data = load("digits")
    parts = partition.dirichlet(data.y_train, 10, alpha=0.5, seed=0, min_size=10)
    clients = {i: (data.x_train[part], data.y_train[part]) for i, part in enumerate(parts)}
    f = Federation(build("mlp", data), clients, ClientOpt(lr=0.1, epochs=5, batch_size=10))
    w = fedavg(f, f.model.init(0), 20)
    table = measured(f, w, Request.parse("client-0").resolve(clients))
    print(table.to_string(index=False))
    note = f"# {data.source}; {len(data.y_train)} images; perceptron with {f.model.d} parameters"
    OUT.write_text(f"{note}\n{table.to_csv(index=False, float_format='%.4g')}", encoding="utf-8")


def measured(f: Federation, w: Tensor, deletion: Deletion) -> pd.DataFrame:
    """One row per damping and preconditioner. w (d,): the trained model."""
    rows = []
    for damping in DAMPINGS:
        for preconditioner in PRECONDITIONERS:
            row: dict[str, Any] = {"damping": damping, "preconditioner": preconditioner}
            ten = _solved(f, w, deletion, damping, preconditioner, tol=0.0, iters=10)
            row["residual after 10 products"] = ten[1]
            for tol in TOLERANCES:
                steps, residual, passes = _solved(f, w, deletion, damping, preconditioner, tol=tol, iters=MOST)
                reached = residual <= tol
                row[f"products to {tol:g}"] = steps if reached else None
                row[f"passes to {tol:g}"] = passes if reached else None
            rows.append(row)
    return pd.DataFrame(rows)


def _solved(
    f: Federation, w: Tensor, deletion: Deletion, damping: float, preconditioner: str, *, tol: float, iters: int
) -> tuple[int, float, int]:
    """CG steps of one HF-KCU step, the residual that they leave, and the gradient passes of all."""
    meter = Meter()
    how = HFKCU(damping=damping, preconditioner=preconditioner, tol=tol, iters=iters, gradient="centred", steps=1)
    found = hf_kcu_step(f.having(meter=meter), w, deletion, how)
    return found.cg_steps, found.relative_residual, meter.gradient_passes


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
