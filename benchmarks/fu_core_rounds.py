"""Federated averaging with fu_core.

python benchmarks/fu_core_rounds.py FOLDER SEED auto    # or loop, or vmap; takes orders, see turns.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor
from turns import Orders, Task

from fu_core.federation import ClientOpt, Federation
from fu_core.federation.horizontal import fedavg_round
from fu_core.federation.together import prepared
from fu_core.models.flat import FlatModel


def main(folder: str, seed: int, how: str) -> None:
    """Train when ordered."""
    orders, task = Orders(), Task.read(folder, seed)
    model = FlatModel(torch.load(Path(folder) / "module.pt", weights_only=False))
    clients = dict(enumerate(zip(task.x, task.y, strict=True)))
    local = ClientOpt(lr=task.lr, batch_size=task.batch_size)
    w = task.w
    f = prepared(Federation(model, clients, local, seed=seed, how=how), w)

    def latest() -> Tensor:
        return w

    for t in orders.rounds(latest):
        w, _ = fedavg_round(f, w, t, ids=task.participants(t))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
