"""What certified peers compute with: sums over clients, the bounds of a convex loss, and descent by full gradients.

    grad f(w) = sum_i n_i / n grad f_i(w)          H v = sum_i n_i / n H_i v

f is the mean over all samples plus (l2 / 2) |w|^2, so n is how many samples take part. Nothing but such sums leaves a
client: a server adds them up, or peers along a tree of their network, from the leaves to the root and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fu_core.errors import NumericalFailure, UnsupportedModel, check_not_negative, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.federation.server import FedOpt
from fu_core.models.calls import seen_by
from fu_core.models.flat import FlatModel, in_a_row
from fu_core.models.linear import UnitLength
from fu_core.unlearning.certificate import softmax_constants, strong_convexity
from fu_core.unlearning.curvature import Product, curvature_product, weighted_gradient


class Vectors(NamedTuple):
    """How many vectors are sent: by a server to its clients, and by clients, to it or to each other."""

    down: int
    up: int


def sum_cost(f: Federation) -> Vectors:
    """What one sum over all clients costs, if everybody is to know it.

    A server sends the point and receives a summand, per client. Peers send N - 1 partial sums up a spanning tree of
    their network, and the total down again.
    """
    n = len(f.ids)
    return Vectors(n, n) if isinstance(f.exchange, FedOpt) else Vectors(0, 2 * (n - 1))


@dataclass(frozen=True)
class Sums:
    """Gradient and curvature of f, the mean over the samples of a federation's clients; every sum is counted.

    network: who is to know the sum, if not the clients who add something to it.
    """

    f: Federation
    network: Federation | None = None

    @property
    def n(self) -> int:
        """Samples of all clients."""
        return int(self.f.sizes().sum())

    def gradient(self, w: Tensor) -> Tensor:
        """grad f(w) (d,), summed in float64, as precise as w itself. Deterministic; one sum."""
        total = weighted_gradient(self.f.model, w, self._parts, count=self.f.meter.train)
        self._sent(w)
        return total

    def product(self, w: Tensor) -> Product:
        """v -> H v (d,), H the Hessian of f at w. Deterministic; one sum per product."""
        f = self.f
        exact = curvature_product(f.model, w, self._parts, batch_size=512, count=f.meter.differentiate)

        def product(v: Tensor) -> Tensor:
            self._sent(v)
            return exact(v)

        return product

    def gram(self) -> Tensor:
        """X'X (p, p) of all samples' features X (n, p). One sum of a matrix, as of p^2 / d vectors."""
        total = torch.stack([x.T @ x for _, (x, _) in self._parts]).sum(dim=0)
        self._sent(total)
        return total

    @cached_property
    def _parts(self) -> list[tuple[float, Client]]:
        """n_i / n and the samples of everybody who holds some."""
        n = self.n
        return [(len(y) / n, (x, y)) for x, y in self.f.clients.values() if len(y)]

    def _sent(self, vector: Tensor) -> None:
        cost = sum_cost(self.network or self.f)
        self.f.meter.send(vector, down=cost.down, up=cost.up)


# --- linear models ---------------------------------------------------------------------------------------------------


class BesideZero(nn.Module):
    """A single logit z beside a constant one: (0, z), which makes softmax the logistic function of z."""

    affine = True  # in z, so that the loss stays convex

    def forward(self, z: Tensor) -> Tensor:
        """(n, 1) to (n, 2)."""
        return torch.cat([torch.zeros_like(z), z], dim=1)


def as_linear(f: Federation) -> Federation:
    """The same federation with what its only layer sees for data, features (n_i, p), and that layer for a model.

    Parameters w (d,) mean the same in both; float64. A bias becomes no feature: the layer keeps it. Deterministic.
    Raises UnsupportedModel unless the loss is strongly convex and the outputs are those of the layer, or (0, z) of its
    only one.
    """
    strong_convexity(f.model)
    layer = f.model.only_layer()
    assert isinstance(layer, nn.Linear)  # by strong_convexity
    bias = layer.bias is not None
    net: nn.Module = bare_linear(layer.in_features, layer.out_features, bias=bias)
    if f.model.task == "classification" and layer.out_features == 1:
        net = nn.Sequential(net, BesideZero())
    model = FlatModel(net, f.model.task, f.model.l2)
    clients = {i: (_layer_inputs(f.model, x), y) for i, (x, y) in f.clients.items()}
    at = torch.linspace(-1, 1, model.d, dtype=torch.float64)  # any point will do, the outputs being linear in it
    for i, (x, y) in f.clients.items():
        if len(y) and not torch.allclose(
            f.model.logits(at.to(x.device), as_float64(x)[:1]), model.logits(at.to(x.device), clients[i][0][:1])
        ):
            raise UnsupportedModel("model must return what its linear layer does, or (0, z) of its only output z")
    return f.having(model=model, clients=clients)


def _layer_inputs(model: FlatModel, x: Tensor) -> Tensor:
    """What reaches the model's only layer (n, p), in float64."""
    (layer,) = (name for name, part in model.module.named_modules() if isinstance(part, nn.Linear))
    w = torch.zeros(model.d, dtype=torch.float64, device=x.device)  # any will do: no parameter lies before it
    return seen_by(model, w, layer, as_float64(x))


def bare_linear(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """The wiring of a layer for a `FlatModel`, which brings parameters of its own: nothing is drawn for these."""
    layer: nn.Linear = skip_init(nn.Linear, inputs, outputs, bias=bias)
    return layer


def as_float64(x: Tensor) -> Tensor:
    """Inputs as models in float64 take them; whole numbers, such as pixels or indices, stay what they are."""
    return x.double() if x.is_floating_point() else x


# --- bounds ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bounds:
    """Of one sample's loss without the regulariser: how steep, how curved it is, and how fast its curvature changes.

    gradient: G >= |grad l|; curvature: >= |hess l|, so that l + (l2 / 2)|w|^2 is L-smooth with L = curvature + l2;
    third: Lipschitz constant of hess l; radius: the longest feature vector. nominal: why they are no proof, if they are
    none.
    """

    gradient: float
    curvature: float
    third: float = 0.0
    radius: float = 1.0
    nominal: str = ""

    def __post_init__(self) -> None:
        check_positive("gradient", self.gradient)
        check_positive("curvature", self.curvature)
        check_not_negative("third", self.third)
        check_positive("radius", self.radius)


def loss_bounds(linear: Federation, original: FlatModel) -> Bounds:
    """Bounds of softmax or logistic regression on the features of `linear`, which `as_linear` made of `original`.

    Proved where the net scales every sample to length 1. Otherwise they hold for the longest feature vector there is,
    and nobody knew that beforehand: the certificate is nominal. Raises UnsupportedModel for regression, whose gradients
    have no bound.
    """
    if linear.model.task == "regression":
        raise UnsupportedModel(
            "squared errors have no bounded gradient: give bounds, Bounds(gradient=..., curvature=...)"
        )
    layer = linear.model.only_layer()
    assert isinstance(layer, nn.Linear)
    if has_unit_length(original):
        radius, nominal = 1.0, ""
    else:
        longest = max(float((x * x).sum(dim=1).max()) for x, y in linear.clients.values() if len(y))
        radius = math.sqrt(longest + (layer.bias is not None))  # a bias is a feature that is always 1
        nominal = (
            f"gradients are bounded by the longest feature vector seen, {radius:.3g}, which nobody knew beforehand"
        )
    binary = layer.out_features == 1
    constants = softmax_constants(radius, linear.model.l2, binary=binary)
    return Bounds(constants.L, radius**2 / (4 if binary else 2), constants.M, radius, nominal)


def has_unit_length(model: FlatModel) -> bool:
    """Whether the features of the only layer have length 1 by construction, whatever the data.

    Of layers in a row alone: what somebody's own container does between them nobody knows.
    """
    parts = in_a_row(model.module)
    k = next((k for k, part in enumerate(parts) if isinstance(part, nn.Linear)), 0)
    return k > 0 and isinstance(parts[k - 1], UnitLength) and parts[k].bias is None


# --- descent ---------------------------------------------------------------------------------------------------------


def descend(gradient: Callable[[Tensor], Tensor], w: Tensor, steps: int, *, lr: float) -> Tensor:
    """w <- w - lr grad f(w), so many times."""
    for _ in range(steps):
        w = w - lr * gradient(w)
    if not bool(w.isfinite().all()):
        raise NumericalFailure(f"gradient descent is not finite after {steps} steps; lower lr (now {lr:g})")
    return w


def rounding(bounds: Bounds, *, l2: float, n: int, d: int, lr: float) -> float:
    """How far float64 can carry descent from exact arithmetic: contraction forgives, but noise must cover what is left.

    A sum of k terms errs by k u of their size, u half the gap between 1 and the next float: the gradient by
    u (n G + d R |w|), the step by u |w|, with |w| <= G / lambda; and 1 + (1 - lr lambda) + ... = 1 / (lr lambda) of
    them add up. lr: at most 2 / (L + lambda), which contracts by 1 - lr lambda.
    """
    unit, reach = 2.0**-53, bounds.gradient / l2
    per_step = unit * (lr * (n * bounds.gradient + d * bounds.radius * reach) + 2 * reach)
    return per_step / (lr * l2)


def minimise(
    gradient: Callable[[Tensor], Tensor], w: Tensor, *, smoothness: float, convexity: float, tol: float, most: int
) -> tuple[Tensor, float]:
    """The point where |grad f| <= tol, by Nesterov's method for strongly convex f, and |grad f| there.

        w+ = u - grad f(u) / L,   u+ = w+ + (sqrt L - sqrt lambda) / (sqrt L + sqrt lambda) (w+ - w)

    smoothness: L; convexity: lambda. Raises NumericalFailure after `most` gradients.
    """
    momentum = (math.sqrt(smoothness) - math.sqrt(convexity)) / (math.sqrt(smoothness) + math.sqrt(convexity))
    ahead, residual = w, math.inf
    for _ in range(most):
        g = gradient(ahead)
        if (residual := float(g.norm())) <= tol:
            return ahead, residual
        after = ahead - g / smoothness
        w, ahead = after, after + momentum * (after - w)
    raise NumericalFailure(f"|gradient| is {residual:.3g} after {most} steps, tol is {tol:.3g}: raise most or tol")
