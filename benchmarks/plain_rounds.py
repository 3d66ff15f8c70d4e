"""Federated averaging as one would write it without a library: one module, torch.optim, state dicts.

python benchmarks/plain_rounds.py FOLDER SEED    # takes orders, see turns.py; FU_PRECISION=bf16 as in fu_core
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from turns import Orders, Task


def train(net: nn.Module, x: Tensor, y: Tensor, batches: Sequence[Tensor], lr: float) -> None:
    """A client's local training, in place."""
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    for b in batches:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=os.environ.get("FU_PRECISION") == "bf16"):
            loss = F.cross_entropy(net(x[b]), y[b])
        loss.backward()
        optimiser.step()


def vector(net: nn.Module) -> Tensor:
    """All parameters as one tensor (d,), a copy."""
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def main(folder: str, seed: int) -> None:
    """Train when ordered."""
    orders, task = Orders(), Task.read(folder, seed)
    net = torch.load(Path(folder) / "net.pt", weights_only=False)
    for t in orders.rounds(lambda: vector(net)):
        start = copy.deepcopy(net.state_dict())
        models = []
        for i in task.participants(t):
            net.load_state_dict(start)
            train(net, task.x[i], task.y[i], task.batches(t, i), task.lr)
            models.append(vector(net))
        nn.utils.vector_to_parameters(torch.stack(models).mean(dim=0), net.parameters())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
