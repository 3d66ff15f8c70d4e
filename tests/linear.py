"""Softmax regression of three features and two classes in double precision, at three clients: small enough by hand."""

import torch
from torch import nn

from fu_core.federation.local import ClientOpt
from fu_core.models.flat import FlatModel

LINEAR = FlatModel(nn.Linear(3, 2, bias=False))  # w is the weight matrix (2, 3), row by row
LOCAL = ClientOpt(lr=0.4, batch_size=10**6)  # one full-batch step per epoch
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def dealt(sizes=(6, 10, 8)):
    """Samples and labels of each client."""
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 3, generator=g).double(), torch.randint(0, 2, (n,), generator=g)) for n in sizes]


def start():
    """The model (6,) before anything happens."""
    return torch.randn(LINEAR.d, generator=torch.Generator().manual_seed(1)).double()
