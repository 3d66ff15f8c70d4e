"""Convex problems whose optima are known: ridge and L2-regularised logistic regression in float64.

Two tables that come with scikit-learn, dealt out to clients, and Newton's method with the dense Hessian. What a paper
says of exact retraining is put on trial here, where retraining is a few lines of linear algebra.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian

from fu_core import partition
from fu_core.errors import NumericalFailure, check_choice
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel

L2 = 0.01
CONVEX = {"diabetes": "ridge", "breast_cancer": "logistic"}
Weighted = Sequence[tuple[float, Client]]  # weights in the objective, samples


class BesideZero(nn.Module):
    """The other logit of two classes, which is 0: (n, 1) to (n, 2)."""

    affine = True  # which a certificate asks of what stands behind a linear layer

    def forward(self, z: Tensor) -> Tensor:
        """(0, z)."""
        return torch.cat([torch.zeros_like(z), z], dim=1)


def one_logit(features: int) -> nn.Sequential:
    """Logistic regression with one parameter per feature: logits (0, x'w)."""
    return nn.Sequential(nn.Linear(features, 1, bias=False), BesideZero())


@lru_cache(maxsize=2)
def _table(data: str) -> tuple[Tensor, Tensor]:
    """Standardised features (n, p) float64, and the target: standardised (diabetes) or 0 / 1 (breast cancer)."""
    check_choice("data", data, CONVEX)
    from sklearn.datasets import load_breast_cancer, load_diabetes  # here: it takes half as long to import as torch

    x, y = (load_diabetes if data == "diabetes" else load_breast_cancer)(return_X_y=True)
    x = torch.from_numpy((x - x.mean(axis=0)) / x.std(axis=0)).double()
    return x, torch.from_numpy((y - y.mean()) / y.std()).double() if data == "diabetes" else torch.from_numpy(y).long()


def data_hash(data: str) -> str:
    """Of the table behind a run, or of nothing for generated problems."""
    if data not in CONVEX:
        return "generated"
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in _table(data))).hexdigest()[:16]


def convex_model(data: str, l2: float = L2) -> FlatModel:
    """Ridge regression for diabetes, logistic regression for breast cancer."""
    features = _table(data)[0].shape[1]
    if data == "diabetes":
        return FlatModel(nn.Linear(features, 1, bias=False), task="regression", l2=l2)
    return FlatModel(one_logit(features), l2=l2)


def convex_clients(data: str, clients: int, *, split: str = "iid", alpha: float = 0.5, seed: int) -> list[Client]:
    """The table dealt out; Dirichlet shares are drawn per class, or per decile of a continuous target."""
    x, y = _table(data)
    if split == "iid":
        parts = partition.iid(len(y), clients, seed=seed)
    else:
        deciles = torch.quantile(y.double(), torch.linspace(0.1, 0.9, 9, dtype=torch.float64))
        labels = torch.bucketize(y, deciles) if y.is_floating_point() else y
        parts = partition.dirichlet(labels, clients, alpha=alpha, seed=seed, min_size=5)
    return [(x[p], y[p]) for p in parts]


def pooled(clients: Sequence[Client]) -> Weighted:
    """FedAvg's weights n_i / n: the mean over all samples, whoever holds them."""
    return [(1.0, (torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])))]


def share_of(clients: Sequence[Client], i: int) -> float:
    """n_i / n."""
    return len(clients[i][1]) / sum(len(y) for _, y in clients)


def total_loss(model: FlatModel, parts: Weighted) -> Any:
    """p -> sum_i weight_i l_i(p)."""
    return lambda p: sum(weight * model.loss(p, x, y) for weight, (x, y) in parts)


def dense_hessian(model: FlatModel, w: Tensor, parts: Weighted) -> Tensor:
    """(d, d), written down in full: these problems have a few dozen parameters."""
    return _hessian(total_loss(model, parts), w)


def _hessian(loss: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    # not torch.func's, whose first gradient imports a compiler: seconds for what takes milliseconds here
    found: Tensor = hessian(loss, w, vectorize=True)
    return found


def optimum(model: FlatModel, parts: Weighted, start: Tensor | None = None) -> Tensor:
    """The minimiser (d,) of the weighted loss, by Newton's method to a gradient of 1e-12."""
    loss = total_loss(model, parts)
    w = torch.zeros(model.d, dtype=torch.float64) if start is None else start
    for _ in range(50):
        leaf = w.detach().requires_grad_()
        (g,) = torch.autograd.grad(loss(leaf), leaf)
        if float(g.norm()) < 1e-12:
            return w
        w = w - torch.linalg.solve(_hessian(loss, w), g)
    raise NumericalFailure(f"Newton's method stopped at a gradient of {float(g.norm()):.2g}")


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of log y against log x, by least squares: the power by which y grows with x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
