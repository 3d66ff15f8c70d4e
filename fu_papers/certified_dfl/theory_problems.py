"""What certified DFL's lemmas are checked on: ridge and logistic regression among ten peers, whose optimum is known.

Ridge regression on generated clients, L2-regularised logistic regression on breast cancer, all in float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fu_core.errors import check_choice
from fu_core.federation.federation import Clients, Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.federation.local import Client, ClientOpt
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.streams import numpy_stream, stream
from fu_core.unlearning.certificate import Constants, softmax_constants
from fu_papers.convex import convex_clients, data_hash, one_logit

CLIENTS = 10  # N
FEATURES, SAMPLES, L2 = 6, 100, 0.1  # ridge regression: d, n, lambda
HELD = 40  # n of a breast cancer client: ten of them leave 169 of 569 rows for testing
SPLITS = ("iid", "dirichlet")


def generated(config: Mapping[str, Any]) -> str:
    """The data hash of runs on generated problems."""
    return data_hash("")


def breast_cancer(config: Mapping[str, Any]) -> str:
    """The data hash of runs on breast cancer."""
    return data_hash("breast_cancer")


def data_of(config: Mapping[str, Any]) -> str:
    """The data hash of runs on the problem that their config names."""
    return (breast_cancer if config["problem"] == "breast cancer" else generated)(config)


def on_a_ring(model: FlatModel, clients: Sequence[Client], gamma: float = 0.1) -> Federation:
    """Clients on a ring, each with one gradient step of length `gamma` per round, over all of its samples."""
    local = ClientOpt(lr=gamma, batch_size=10**6)
    return Federation(model, dict(enumerate(clients)), local, exchange=Peers(ring(len(clients)), "cta"))


def first(m: int, clients: Clients | Sequence[Client], who: Sequence[int] | None = None) -> Deletion:
    """A request: each of `who`, or everybody, deletes its first m samples, which are in random order."""
    asking = range(len(clients)) if who is None else who
    return Deletion.of(clients, {i: torch.arange(m) for i in asking})


def kept_by(deletion: Deletion) -> list[Client]:
    """What stays, of those who stay."""
    return list(deletion.kept.values())


def standard_normal(n: int, d: int, *names: int | str) -> Tensor:
    """(n, d) draws from N(0, 1), from a stream of that name."""
    return torch.randn(n, d, generator=stream(0, "certified dfl theory", *names), dtype=torch.float64)


# --- ridge regression ------------------------------------------------------------------------------------------------


def ridge_model() -> FlatModel:
    """Ridge regression on `ridge_clients`."""
    return FlatModel(nn.Linear(FEATURES, 1, bias=False), task="regression", l2=L2)


def ridge_clients(heterogeneity: float, seed: int) -> list[Client]:
    """Ten clients with X (100, 6), y (100,); `heterogeneity` moves their scales and their true coefficients apart."""
    draws = stream(seed, "certified dfl ridge")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    truth, clients = normal(FEATURES), []
    for _ in range(CLIENTS):
        scales, own = torch.exp(heterogeneity * normal(FEATURES)), truth + heterogeneity * normal(FEATURES)
        X = normal(SAMPLES, FEATURES) * scales
        clients.append((X, X @ own + 0.5 * normal(SAMPLES)))
    return clients


def ridge_optimum(clients: Sequence[Client]) -> Tensor:
    """The minimiser (d,) of Eq. (1), the mean of the clients' ridge losses."""
    A = torch.stack([X.T @ X / len(y) for X, y in clients]).mean(dim=0) + L2 * torch.eye(FEATURES, dtype=torch.float64)
    b = torch.stack([X.T @ y / len(y) for X, y in clients]).mean(dim=0)
    return torch.linalg.solve(A, b)


# --- breast cancer ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def unit_rows() -> Client:
    """Breast cancer, standardised, then every row divided by its length: |z| = 1, so that R = 1 (errata D9)."""
    ((x, y),) = convex_clients("breast_cancer", 1, seed=0)
    return x / x.norm(dim=1, keepdim=True), y


class Problem(NamedTuple):
    """Ten clients of 40 rows each, as the lemmas assume, and the 169 rows that nobody holds."""

    model: FlatModel
    clients: list[Client]
    test: Client

    @property
    def federation(self) -> Federation:
        """The clients on a ring."""
        return on_a_ring(self.model, self.clients)


def unit_problem(l2: float, *, split: str = "iid", loss: str = "logistic", seed: int = 0) -> Problem:
    """Breast cancer dealt out at random, or with each client's share of benign rows from Dirichlet(0.3, 0.3).

    loss: "logistic", or "ridge" on targets -1 and 1. Random: rows and shares, from (seed, "unit federation").
    """
    check_choice("split", split, SPLITS)
    check_choice("loss", loss, ("logistic", "ridge"))
    x, y = unit_rows()
    draws = numpy_stream(seed, "unit federation")
    order = draws.permutation(len(y))
    train, rest = order[: CLIENTS * HELD], torch.from_numpy(order[CLIENTS * HELD :])
    if split == "iid":
        parts = [torch.from_numpy(part) for part in np.split(train, CLIENTS)]
    else:
        parts = _equal_shares(train, y, draws)
    model = FlatModel(one_logit(x.shape[1]), l2=l2)
    if loss == "ridge":
        model, y = FlatModel(nn.Linear(x.shape[1], 1, bias=False), task="regression", l2=l2), 2.0 * y.double() - 1
    return Problem(model, [(x[part], y[part]) for part in parts], (x[rest], y[rest]))


def _equal_shares(train: np.ndarray, y: Tensor, draws: np.random.Generator) -> list[Tensor]:
    """Per client 40 rows, a share of them benign that is Beta(0.3, 0.3), as far as there are any left."""
    benign, malignant = (train[y[torch.from_numpy(train)].numpy() == c].tolist() for c in (1, 0))
    parts = []
    for _ in range(CLIENTS):
        wanted = round(HELD * draws.beta(0.3, 0.3))
        k = max(HELD - len(malignant), min(wanted, len(benign)))
        rows = [benign.pop() for _ in range(k)] + [malignant.pop() for _ in range(HELD - k)]
        parts.append(torch.tensor(rows)[torch.from_numpy(draws.permutation(HELD))])
    return parts


def unit_constants(l2: float, *, norm: float | None = None, loss: str = "logistic") -> Constants:
    """lambda, L, M on rows of length 1, for models of length <= norm. Default: 1 / lambda, Lemma 4, hence L = 2."""
    norm = 1 / l2 if norm is None else norm
    if loss == "logistic":
        return softmax_constants(1.0, l2, norm=norm, binary=True)
    return Constants(l2, norm + 1 + l2 * norm, 0.0)  # |z (z'x - y)| <= |x| + |y|, and a constant Hessian
