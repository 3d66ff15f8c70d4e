"""The client of flower_rounds.py: the plain loop's local training behind Flower's messages.

A module of its own, because Ray's processes import it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from plain_rounds import train
from torch import nn
from turns import Task

app = ClientApp()


@functools.cache
def task_and_net(folder: str, seed: int) -> tuple[Task, nn.Module]:
    """Read once per process, as clients of a simulation should."""
    return Task.read(folder, seed), torch.load(Path(folder) / "net.pt", weights_only=False)


def parameters(net: nn.Module) -> ArrayRecord:
    """What travels: the parameters without the normalisation constants."""
    return ArrayRecord(torch_state_dict={name: p.detach() for name, p in net.named_parameters()})


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train from the model in the message, on the data of the client that it names."""
    arrays: Any = message.content["arrays"]
    config: Any = message.content["config"]
    task, net = task_and_net(config["folder"], config["seed"])
    i = config["client"]
    net.load_state_dict(arrays.to_torch_state_dict(), strict=False)
    train(net, task.x[i], task.y[i], task.batches(config["round"], i), task.lr)
    metrics = MetricRecord({"num-examples": len(task.y[i])})
    return Message(RecordDict({"arrays": parameters(net), "metrics": metrics}), reply_to=message)
