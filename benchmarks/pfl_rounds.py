"""Federated averaging with Apple's pfl-research, as its tutorials simulate it in one process.

    python benchmarks/pfl_rounds.py FOLDER SEED    # takes orders, see turns.py

A user's data set is cut into batches in the order in which it lies, so it is given in the round's order: the batches
are those of everybody else. Training goes on until a callback, which waits for orders between rounds, ends it.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from plain_rounds import vector
from torch import Tensor, nn
from torch.nn import functional as F
from turns import Orders, Task

FOREVER = sys.maxsize


class Classifier(nn.Module):
    """The net with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a batch."""
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Evaluated before the first round, never afterwards."""
        return {"accuracy": Weighted(int((self.net(x).argmax(dim=1) == y).sum()), len(y))}


class InTurn(TrainingProcessCallback):
    """Holds the training until the next round is ordered."""

    def __init__(self, orders: Orders, net: nn.Module) -> None:
        self._rounds = orders.rounds(lambda: vector(net))

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Wait for the first order."""
        next(self._rounds)
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Wait for the next; the training ends with the orders."""
        return next(self._rounds, None) is None, Metrics()


def main(folder: str, seed: int) -> None:
    """Train when ordered."""
    orders, task = Orders(), Task.read(folder, seed)
    net = torch.load(Path(folder) / "net.pt", weights_only=False)
    users = ((t, i) for t in itertools.count(1) for i in task.participants(t))

    def shuffled(user: tuple[int, int]) -> PyTorchTensorDataset:
        t, i = user
        order = torch.cat(task.batches(t, i))
        return PyTorchTensorDataset((task.x[i][order], task.y[i][order]))

    data = FederatedDataset(shuffled, lambda: next(users))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=FOREVER,
            evaluation_frequency=FOREVER,
            train_cohort_size=task.per_round,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(Classifier(net), torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=task.x.shape[1]),
        callbacks=[InTurn(orders, net)],
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
