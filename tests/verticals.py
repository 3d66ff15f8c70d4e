"""Small vertical federations: parties with random features, in float64 unless told otherwise."""

import torch
from torch import nn
from torch.nn import functional as F

from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import (
    ActiveParty,
    Boundary,
    Parties,
    PassiveParty,
    VerticalFederation,
    outputs,
)
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion

FORGET, RETAIN = torch.arange(0, 12), torch.arange(12, 36)  # of a `toy`
COLUMNS, WIDTHS, CLASSES = (4, 2), (3, 5), 3  # of `tables`; no two alike, so that a shape names its party


def toy(features=(3, 2), embeddings=(4, 4), *, bottom=None, top=None, bias=True, n=36, classes=3):
    """Passive parties with so many features and embeddings each; labels that the features explain.

    bottom: from the number of features to a net, in place of a layer with tanh; top: a net, in place of one layer;
    bias: of the top, and of a bottom's layer.
    """
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, sum(features), generator=g, dtype=torch.float64)
    y = (x @ torch.randn(sum(features), classes, generator=g, dtype=torch.float64)).argmax(dim=1)
    passive = []
    for k, (x_k, width) in enumerate(zip(x.split(list(features), dim=1), embeddings, strict=True)):
        layers = bottom(x_k.shape[1]) if bottom else nn.Sequential(nn.Linear(x_k.shape[1], width, bias), nn.Tanh())
        model = FlatModel(layers)
        passive.append(PassiveParty(model, model.init(k, torch.float64), x_k))
    head = FlatModel(top or nn.Linear(sum(embeddings), classes, bias=bias))
    return Parties(tuple(passive), ActiveParty(head, head.init(9, torch.float64), y, classes))


def tables(dtype=torch.float32, n=24, top=None):
    """Two passive parties with tables of 4 and 2 columns and embeddings of 3 and 5, three classes, random labels."""
    g = torch.Generator().manual_seed(0)
    passive = []
    for k, (columns, width) in enumerate(zip(COLUMNS, WIDTHS, strict=True)):
        model = FlatModel(nn.Sequential(nn.Linear(columns, 6), nn.Tanh(), nn.Linear(6, width)))
        passive.append(PassiveParty(model, model.init(k, dtype), torch.randn(n, columns, generator=g).to(dtype)))
    head = FlatModel(top or nn.Linear(sum(WIDTHS), CLASSES))
    y = torch.randint(0, CLASSES, (n,), generator=g)
    return Parties(tuple(passive), ActiveParty(head, head.init(9, dtype), y, CLASSES))


def federated(parties, seed=0, local=None, boundary=None):
    """A vertical federation of `parties`, with counters of its own."""
    return VerticalFederation(parties, local or ClientOpt(), seed, boundary or Boundary())


def forgetting(f, forget, retain=None):
    """The request to forget the rows `forget`; `retain`: what is at hand of the others, by default all of them."""
    wanted = Deletion.of(f.clients, {0: forget})
    if retain is None:
        return wanted
    return Deletion(wanted.clients, wanted.forgotten, {0: (retain, f.parties.active.y[retain])})


def loss(parties, rows):
    """Mean cross-entropy of the parties' predictions for the samples `rows`."""
    return float(F.cross_entropy(outputs(parties, rows), parties.active.y[rows]))


def same(one, other):
    """Whether everybody has the same parameters, to the bit."""
    return all(torch.equal(a, b) for a, b in zip(one.w, other.w, strict=True))


def close(ours, expected, **how):
    """Assert that two lists of vectors are close, entry by entry."""
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, **how)
