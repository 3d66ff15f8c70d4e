"""Models without convolutions: softmax regression (convex) and multi-layer perceptrons."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def softmax_regression(features: int, classes: int) -> nn.Module:
    """One linear layer on the flattened input; its cross-entropy is convex."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mlp(features: int, classes: int, hidden: tuple[int, ...] = (64,)) -> nn.Module:
    """Fully connected ReLU layers of the given widths, then a linear head."""
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise((features, *hidden)):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear((features, *hidden)[-1], classes))
