"""Ridge regression among peers (methods T3): one Newton step is exact, so DU can be held against retraining."""

import torch
from torch import Tensor, nn

from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion

N, D, L2 = 5, 4, 0.1
EVERYBODY = {i: torch.arange(3 + i) for i in range(N)}  # unequal requests
ONE = {2: torch.tensor([0, 5, 7])}


class Ridge:
    """Heterogeneous ridge regression: every client has designs, targets and a number of samples of its own."""

    def __init__(self, *, same_design=False, sizes=(20, 25, 30, 35, 40), spread=1.0, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.model = FlatModel(nn.Linear(D, 1, bias=False), task="regression", l2=L2)
        truth = torch.randn(D, generator=g, dtype=torch.float64)
        shared = torch.randn(max(sizes), D, generator=g, dtype=torch.float64)
        self.clients = []
        for n in sizes:
            scale = 1 + spread * torch.rand(D, generator=g, dtype=torch.float64)
            X = shared[:n] if same_design else torch.randn(n, D, generator=g, dtype=torch.float64) * scale
            own = truth + spread * torch.randn(D, generator=g, dtype=torch.float64)
            self.clients.append((X, X @ own + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)))

    def federation(self, seed=0) -> Federation:
        """The clients on a ring, with a meter of their own."""
        return among_peers(self.model, self.clients, seed)

    def deletion(self, forget) -> Deletion:
        """Who forgets what."""
        return Deletion.of(self.clients, forget)

    def optimum(self, held, objective) -> Tensor:
        """Minimiser of the mean of the clients' ridge losses, or of all samples'."""
        total = sum(len(y) for _, y in held)
        weights = [1 / len(held) if objective == "clients" else len(y) / total for _, y in held]
        A = sum(a * X.T @ X / len(y) for a, (X, y) in zip(weights, held, strict=True)) + L2 * torch.eye(D).double()
        b = sum(a * X.T @ y / len(y) for a, (X, y) in zip(weights, held, strict=True))
        return torch.linalg.solve(A, b)

    def worlds(self, forget, objective="clients") -> tuple[Tensor, Tensor]:
        """The optimum with everything, and without what is forgotten."""
        kept = list(self.deletion(forget).kept.values())
        return self.optimum(self.clients, objective), self.optimum(kept, objective)

    def consensus(self, w) -> Tensor:
        """`w` as everybody's model."""
        return w.repeat(N, 1)


def among_peers(model, clients, seed=0) -> Federation:
    """Clients on a ring."""
    return Federation(model, clients, seed=seed, exchange=Peers(ring(len(clients))))


def relative(released, retrained, w) -> float:
    """1: as far from retraining as doing nothing."""
    return float((released - retrained).norm(dim=-1).max() / (w - retrained).norm())
