"""Federated averaging with Flower's simulation: Ray, one actor per client that trains at the same time.

    python benchmarks/flower_rounds.py FOLDER SEED CORES AT_ONCE    # takes orders, see turns.py

All clients are Flower nodes and Flower samples those of a round; the message tells a node whose data to train on, so
that everybody trains the same clients. The server app waits for orders between rounds; meanwhile Flower and Ray poll,
which costs the others a twentieth of a core.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
from flower_client import app as client_app
from flower_client import parameters
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from turns import Orders, Task


class SameClients(FedAvg):
    """FedAvg that names the clients of a round."""

    def __init__(self, task: Task) -> None:
        clients = len(task.x)
        super().__init__(
            fraction_train=task.per_round / clients,
            fraction_evaluate=0.0,
            min_train_nodes=task.per_round,
            min_available_nodes=clients,
        )
        self.task = task

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Flower's messages, each with its client's number."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        ids = self.task.participants(cast(int, config["round"]))
        for message, i in zip(messages, ids, strict=True):
            message.content = RecordDict({"arrays": arrays, "config": ConfigRecord({**config, "client": i})})
        return messages


def main(folder: str, seed: int, cores: int, at_once: int) -> None:
    """Train when ordered."""
    orders, task, server = Orders(), Task.read(folder, seed), ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = SameClients(task)
        arrays = parameters(torch.load(Path(folder) / "net.pt", weights_only=False))

        def vector() -> torch.Tensor:
            return torch.cat([p.flatten() for p in arrays.to_torch_state_dict().values()])

        for t in orders.rounds(vector):
            config = ConfigRecord({"folder": folder, "seed": seed, "round": t})
            result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1, train_config=config)
            arrays = result.arrays

    run_simulation(
        server_app=server,
        client_app=client_app,
        num_supernodes=len(task.x),
        backend_config={
            "init_args": {"num_cpus": cores, "num_gpus": 0},
            "client_resources": {"num_cpus": cores / at_once, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
