"""Federated averaging with BlazeFL's own server and trainers (`blazefl.contrib`), in any of its three modes.

    $FU_BLAZEFL benchmarks/blazefl_rounds.py FOLDER SEED single    # or threads, processes; takes orders, see turns.py

It needs Python 3.12 or later, hence an interpreter of its own. Its loaders are given a client's batches as they are, so
that they are those of everybody else and nobody waits for a loader to cut them.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import copy
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from blazefl.contrib.fedavg import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import IPCMode
from plain_rounds import vector
from torch import Tensor, nn
from turns import Orders, Task

PARALLEL = 2  # clients at a time, where there are several
FOREVER = sys.maxsize
NAME = "net"


class Net:
    """Selects the one net there is. Workers, which are forked, find it in memory."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def select_model(self, model_name: str) -> nn.Module:
        """A copy of the net as it was at the beginning."""
        return copy.deepcopy(self.net)


class Loader(list[tuple[Tensor, Tensor]]):
    """A client's batches of one round; `dataset` is what BlazeFL hands back after training."""

    dataset = None


class Clients:
    """Everybody's images in shared memory, cut into the batches of the round that `turn` says."""

    def __init__(self, task: Task) -> None:
        self.task, self.turn = task, 0
        task.x.share_memory_()
        task.y.share_memory_()

    def get_dataloader(self, type_: str, cid: int, batch_size: int, generator: object = None) -> Loader:
        """The batches of client `cid`."""
        x, y = self.task.x[cid], self.task.y[cid]
        return Loader((x[b], y[b]) for b in self.task.batches(self.turn, cid))

    def set_dataset(self, type_: str, cid: int, dataset: object) -> None:
        """Nothing has changed."""


def trainer_of(mode: str, shared: dict[str, Any], folder: Path) -> Any:
    """BlazeFL's trainer: one client at a time, or `PARALLEL` in threads or in processes with shared memory."""
    if mode == "single":
        return FedAvgBaseClientTrainer(**shared)
    if mode == "threads":
        return FedAvgThreadPoolClientTrainer(**shared, num_parallels=PARALLEL)
    places = {"share_dir": folder / "share", "state_dir": folder / "state"}
    return FedAvgProcessPoolClientTrainer(**shared, **places, num_parallels=PARALLEL, ipc_mode=IPCMode.SHARED_MEMORY)


def main(folder: str, seed: int, mode: str) -> None:
    """Train when ordered."""
    orders, task = Orders(), Task.read(folder, seed)
    net = torch.load(Path(folder) / "net.pt", weights_only=False)
    clients = Clients(task)
    shared = {
        "model_selector": Net(net), "model_name": NAME, "dataset": clients, "device": "cpu", "seed": seed,
        "num_clients": len(task.x), "batch_size": task.batch_size,
    }  # fmt: skip
    server = FedAvgBaseServerHandler(**shared, global_round=FOREVER, sample_ratio=1.0)
    server.num_clients_per_round = task.per_round
    with TemporaryDirectory() as place:
        trainer = trainer_of(mode, {**shared, "epochs": 1, "lr": task.lr}, Path(place))
        for t in orders.rounds(lambda: vector(server.model)):
            clients.turn = t
            trainer.local_process(server.downlink_package(), task.participants(t))
            for package in trainer.uplink_package():
                server.load(package)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
