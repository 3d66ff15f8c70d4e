"""Models without convolutions: softmax regression (convex) and multi-layer perceptrons."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


def softmax_regression(features: int, classes: int) -> nn.Module:
    """One linear layer on the flattened input; its cross-entropy is convex."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


class UnitLength(nn.Module):
    """Each sample scaled to length 1: the bound on the features that constants of a certificate depend on."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, features) to (n, features)."""
        return F.normalize(x, dim=1)


def unit_softmax(features: int, classes: int) -> nn.Module:
    """Softmax regression on features of length 1, without a bias, which would be a feature more."""
    return nn.Sequential(nn.Flatten(), UnitLength(), nn.Linear(features, classes, bias=False))


def mlp(features: int, classes: int, hidden: tuple[int, ...] = (64,)) -> nn.Module:
    """Fully connected ReLU layers of the given widths, then a linear head."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise((features, *hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((features, *hidden)[-1], classes))
