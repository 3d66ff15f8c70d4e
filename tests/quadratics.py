"""Quadratic federations (methods T1, T2): every client's loss is (w - a)' A (w - a) / 2, exactly.

A linear model without bias on x = X, y = X a has that loss with A = X'X / n, so the very code that
trains networks runs on problems whose answers are known in closed form.
"""

import torch
from torch import Tensor, nn

from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt
from fu_core.models.flat import FlatModel


class Quadratics:
    """N clients in d dimensions, float64; `isotropic` gives every A_i = c I."""

    def __init__(self, sizes=(8, 12, 20, 10), d=3, *, eta=0.1, epochs=4, isotropic=False, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.model = FlatModel(nn.Linear(d, 1, bias=False), task="regression")
        self.sizes = torch.tensor(sizes, dtype=torch.float64)
        self.a = torch.randn(len(sizes), d, generator=g, dtype=torch.float64)
        self.clients, self.A = [], []
        for n, a in zip(sizes, self.a, strict=True):
            X = torch.randn(n, d, generator=g, dtype=torch.float64)
            if isotropic:
                X = torch.linalg.qr(X)[0] * n**0.5  # X'X / n = I
            self.clients.append((X, X @ a))
            self.A.append(X.T @ X / n)
        self.eta, self.epochs = eta, epochs
        self.local = ClientOpt(lr=eta, epochs=epochs, batch_size=10**6)  # E full-batch steps
        eye = torch.eye(d, dtype=torch.float64)
        self.M = [eye - torch.linalg.matrix_power(eye - eta * A, epochs) for A in self.A]
        self.p = self.sizes / self.sizes.sum()

    def federation(self, **changes) -> Federation:
        """All clients, E full-batch steps each, seed 0, and a server that averages; other fields as given."""
        return Federation(**{"model": self.model, "clients": self.clients, "local": self.local, **changes})

    def fixed_point(self, exclude=()) -> Tensor:
        """(sum p_i M_i)^-1 sum p_i M_i a_i over the clients that take part: where FedAvg comes to rest."""
        ids = [i for i in range(len(self.A)) if i not in exclude]
        left = sum(self.p[i] * self.M[i] for i in ids)
        right = sum(self.p[i] * self.M[i] @ self.a[i] for i in ids)
        return torch.linalg.solve(left, right)

    def deltas(self, w: Tensor) -> Tensor:
        """Delta_i = -M_i (w - a_i), one row per client."""
        return torch.stack([-M @ (w - a) for M, a in zip(self.M, self.a, strict=True)])
