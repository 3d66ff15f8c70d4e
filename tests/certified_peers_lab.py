"""Convex problems of random samples for the certified peers: small, float64, with known bounds and minimisers."""

import torch
from torch import Tensor, nn

from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.models.flat import FlatModel
from fu_core.models.linear import UnitLength
from fu_core.request import Deletion
from fu_core.unlearning.sums import BesideZero, Sums, as_linear, minimise


def logistic(*, l2=0.05, sizes=(30, 20, 40, 30), features=4, seed=0, peers=False) -> Federation:
    """Logistic regression with one logit, on features of length 1."""
    net = nn.Sequential(UnitLength(), nn.Linear(features, 1, bias=False), BesideZero())
    return federation(FlatModel(net, l2=l2), sizes, features, 2, seed, peers)


def softmax(*, l2=0.05, sizes=(30, 20, 40, 30), features=4, classes=3, seed=0, peers=False) -> Federation:
    """Softmax regression on features of length 1."""
    net = nn.Sequential(UnitLength(), nn.Linear(features, classes, bias=False))
    return federation(FlatModel(net, l2=l2), sizes, features, classes, seed, peers)


def federation(model, sizes, features, classes, seed, peers) -> Federation:
    """Gaussian inputs, noisy linear labels."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(features, classes, generator=g, dtype=torch.float64)
    clients = []
    for n in sizes:
        x = torch.randn(n, features, generator=g, dtype=torch.float64)
        scores = x @ truth + torch.randn(n, classes, generator=g, dtype=torch.float64)
        clients.append((x, scores.argmax(dim=1)))
    return Federation(model, clients, exchange=Peers(ring(len(sizes))) if peers else None)


def without(f: Federation, forget) -> Deletion:
    """Who forgets what."""
    return Deletion.of(f.clients, forget)


def minimum(f: Federation, w: Tensor | None = None) -> Tensor:
    """Of the mean over all samples of f, to 1e-12."""
    sums = Sums(as_linear(f))
    start = torch.zeros(f.model.d, dtype=torch.float64) if w is None else w
    return minimise(sums.gradient, start, smoothness=0.5 + f.model.l2, convexity=f.model.l2, tol=1e-12, most=20000)[0]
