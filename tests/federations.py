"""Small trained federations of every kind, as a request meets them: for what must hold whatever the method."""

import torch
from torch import nn

from fu_core.federation.decentralised import dpsgd
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import ActiveParty, Parties, PassiveParty, VerticalFederation
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp, softmax_regression
from fu_core.unlearning.memory import Memory, PeerHistory, UpdateHistory
from fu_core.unlearning.method import Trained

ROUNDS = 3


def classified(n, *, features=5, classes=3, seed=0):
    """Inputs (n, features) and labels that they explain: every class has about a third."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=g)
    return x, (x @ torch.randn(features, classes, generator=g)).argmax(dim=1)


def dealt(sizes):
    """A share of one data set for each client."""
    x, y = classified(sum(sizes))
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def with_server(how="auto"):
    """Five clients and a perceptron; the server has kept everything that it could."""
    f = Federation(FlatModel(mlp(5, 3, (6,))), dealt([18, 24, 30, 21, 27]), ClientOpt(lr=0.1, batch_size=8), how=how)
    w_0 = f.model.init(0)
    memory = Memory(UpdateHistory(w_0), last_round=ROUNDS)
    w = fedavg(f, w_0, ROUNDS, on_updates=memory.record)
    return Trained(f, w, ROUNDS, w_0, memory)


def among_peers(how="auto"):
    """Five clients on a ring with a strongly convex loss and full batches, as certificates and histories ask for."""
    model = FlatModel(softmax_regression(5, 3), l2=0.1)
    local = ClientOpt(lr=0.1, batch_size=1000)
    f = Federation(model, dealt([18, 24, 30, 21, 27]), local, exchange=Peers(ring(5), "cta"), how=how)
    w_0, memory = model.init(0), PeerHistory(gamma=local.lr)
    W = dpsgd(f, w_0, ROUNDS, on_updates=memory.record)
    return Trained(f, W, ROUNDS, w_0, memory)


def vertical():
    """Two passive parties with three and two features, and a linear top; nobody has trained yet."""
    x, y = classified(48)
    passive = []
    for k, x_k in enumerate(x.split([3, 2], dim=1)):
        model = FlatModel(nn.Sequential(nn.Linear(x_k.shape[1], 4), nn.Tanh()))
        passive.append(PassiveParty(model, model.init(k), x_k))
    top = FlatModel(nn.Linear(8, 3))
    parties = Parties(tuple(passive), ActiveParty(top, top.init(9), y, 3))
    return Trained(
        VerticalFederation(parties, ClientOpt(lr=0.05, batch_size=8)), rounds=ROUNDS, w_0=torch.cat(parties.w)
    )
