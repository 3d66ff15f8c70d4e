"""What is measured: federations, and the files from which every process takes the same one."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from turns import Task

from fu_core import partition
from fu_core.data import Dataset, load
from fu_core.errors import DataUnavailable
from fu_core.federation import ClientOpt, Federation
from fu_core.models import FlatModel, build
from fu_core.models.group_norm import GroupNorm

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}  # of what is generated where a data set is missing


@dataclass(frozen=True)
class Workload:
    """A federation and what one round of it does: SGD, one epoch at each of the clients whose turn it is."""

    name: str
    data: str
    model: str  # of fu_core.models.MODELS
    clients: int
    samples: int  # per client
    per_round: int  # clients in a round
    batch_size: int
    block: int  # rounds in a row that are timed together, as in a real training
    lr: float = 0.05

    @property
    def steps(self) -> int:
        """Local steps of all clients in one round."""
        return self.per_round * -(-self.samples // self.batch_size)


WORKLOADS = {
    "softmax": Workload("softmax regression", "mnist", "softmax_regression", 1000, 60, 10, 10, block=20),
    "cnn": Workload("small CNN", "mnist", "simple_cnn", 10, 600, 10, 32, block=1),
    "resnet": Workload("GroupNorm ResNet", "cifar10", "small_resnet", 10, 320, 10, 32, block=1),
    # of the size of BlazeFL's own benchmark, which does five such epochs a round
    "lenet": Workload("LeNet, 100 clients", "cifar10", "lenet", 100, 500, 100, 50, block=1),
    # the other net of that benchmark; of fewer clients with fewer images, since a step takes a second and more
    "resnet18": Workload("ResNet-18, 2 clients", "cifar10", "resnet18", 10, 100, 2, 50, block=1),
}


def as_in_the_arena(net: str, data: Dataset, lr: float, alpha: float | None = None) -> Federation:
    """Ten clients, two epochs of batches of 20 a round; `data`'s classes dealt alike, or by a Dirichlet of `alpha`."""
    if alpha is None:
        parts = partition.iid(len(data.y_train), 10, seed=0)
    else:
        parts = partition.dirichlet(data.y_train, 10, alpha=alpha, seed=0)
    clients = {i: (data.x_train[part], data.y_train[part]) for i, part in enumerate(parts)}
    return Federation(build(net, data), clients, ClientOpt(lr=lr, epochs=2, batch_size=20))


def load_or_generate(workload: Workload) -> Dataset:
    """The workload's data set; images that only look like it, and say so in `source`, where it is out of reach."""
    try:
        return load(workload.data)
    except DataUnavailable:
        g = torch.Generator().manual_seed(0)
        n = workload.clients * workload.samples
        patterns = torch.randint(0, 128, (10, *SHAPES[workload.data]), generator=g, dtype=torch.uint8)
        labels = torch.randint(0, 10, (n + 1000,), generator=g)
        images = patterns[labels] + torch.randint(0, 128, (n + 1000, *patterns.shape[1:]), generator=g).byte()
        name = workload.data
        source = f"generated patterns and noise of {name}'s shape"
        return Dataset(name, images[:n], labels[:n], images[n:], labels[n:], source)


def prepare(workload: Workload, data: Dataset, folder: Path) -> FlatModel:
    """Write the workload's files into `folder`; the model, with which trained vectors can be evaluated.

    task.pt holds what a `Task` is; module.pt the net as it is; net.pt the same net of torch's own layers, traced, which
    needs nothing but torch: other frameworks are not to wait for our imports, nor to hold them in memory.
    """
    x, y = held_by_clients(workload, data)
    model = build(workload.model, data)
    w = model.init(0)
    nn.utils.vector_to_parameters(w, model.module.parameters())
    task = Task(
        x=x,
        y=y,
        w=w,
        per_round=workload.per_round,
        batch_size=workload.batch_size,
        lr=workload.lr,
    )
    task.write(folder)
    torch.save(model.module, folder / "module.pt")
    torch.save(torch.fx.symbolic_trace(_of_torch(model.module)), folder / "net.pt")
    return model


def held_by_clients(workload: Workload, data: Dataset) -> tuple[Tensor, Tensor]:
    """What every client holds: x (clients, samples, ...) and y (clients, samples). ValueError where there is less."""
    held, shape = workload.clients * workload.samples, (workload.clients, workload.samples)
    if held > len(data.y_train):
        raise ValueError(f"{workload.name} needs {held} training samples, but {data.name} has {len(data.y_train)}")
    return data.x_train[:held].unflatten(0, shape), data.y_train[:held].unflatten(0, shape)


def _of_torch(module: nn.Module) -> nn.Module:
    """A copy without our own norms, which know how torch's are fastest."""
    net = copy.deepcopy(module)
    for part in net.modules():
        if isinstance(part, GroupNorm):
            part.__class__ = nn.GroupNorm
    return net
