"""Nets and their derivatives, for the tests of several models."""

import torch
from torch import nn


class Backwards(nn.Module):
    """The first layer in forward order is the last by name: 4 features, 2 classes."""

    def __init__(self):
        super().__init__()
        self.a_last, self.z_first = nn.Linear(3, 2), nn.Linear(4, 3)

    def forward(self, x):
        return self.a_last(self.z_first(x))


def check_hessian_products(net, h, **tolerance):
    """`hvp` along a random direction is the central difference of gradients; `net`: (model, w, x, y)."""
    model, w, x, y = net
    v = torch.randn(model.d, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    difference = (model.grad(w + h * v, x, y) - model.grad(w - h * v, x, y)) / (2 * h)
    torch.testing.assert_close(model.hvp(w, v, x, y), difference, **tolerance)
