"""FedORA's iteration on problems with one or two parameters: the saddle point, the duality gap, step sizes.

All in float64, with gradients in closed form, from start to end through `fu_core.unlearning.fedora.primal_dual`. The
numbers stand beside errata F5 and F6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from fu_core.data import load
from fu_core.federation.vertical import Vectors
from fu_core.unlearning.fedora import AtLeast, FedORA, Iteration, primal_dual
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Config, run_function

PLAIN: dict[str, Any] = {"mu": 0.0, "adaptive": False, "patience": False}  # the iteration the proofs are about


def data_hash(dataset: str = "") -> Callable[[Config], str]:
    """For a check on a data set, or on numbers generated for it."""
    return lambda config: load(dataset).sha256 if dataset else "generated"


@dataclass
class Known:
    """An answer for `primal_dual`: a value and gradients that are known already."""

    value: float
    g: Vectors

    def gradients(self, scale: float = 1.0) -> Vectors:
        """`scale` times the gradient, one vector (d_k,) per party."""
        return [scale * g_k for g_k in self.g]


def condat_vu(tau: float, sigma: float, K: float, L: float) -> float:
    """1/tau - sigma |K|^2 - L/2, at least 0 if an explicit gradient step on an L-smooth loss is to converge (F6)."""
    return 1 / tau - sigma * K**2 - L / 2


# --- two parameters --------------------------------------------------------------------------------------------------


START = torch.tensor([0.9, -0.7], dtype=torch.float64)  # theta0, the original model
RETRAINED = torch.tensor([-0.3, 0.3], dtype=torch.float64)  # the minimiser of L_r
DIRECTION = torch.tensor([0.8, 0.6], dtype=torch.float64)  # c, of length 1


class SaddlePath(NamedTuple):
    """The iteration on the quadratic, t = 0..T, and where it should end."""

    theta: Tensor  # (T + 1, 2)
    dual: Tensor  # (T + 1,), 0 at first
    residual: Tensor  # (T + 1,), epsilon - L_u: above zero while the constraint is violated
    distance: Tensor  # (T + 1,), of theta and lambda together, to the saddle point
    optimum: Tensor  # theta*, (2,)
    price: float  # lambda*
    level: float  # the constraint is c'theta >= level
    step_rule: float  # tau sigma |K|^2
    margin: float  # of Condat and Vu's condition


def saddle_path(*, epsilon: float, weight: float, sigma: float, tau: float, mu: float, iterations: int) -> SaddlePath:
    """FedORA with a scalar dual on L_r = |theta - a|^2 / 2, one parameter per party, and a linear score.

    In the place of the entropy stands h = c'theta, largest value called 1: by (28) the score is (1 + beta) h - beta,
    so that `epsilon` = 1 demands h >= 1 whatever `weight`, and `weight` = 0 is plain c'theta. Closed form: with
    a' = (a + mu theta0) / (1 + mu), theta* = a' + (level - c'a')_+ c, lambda* = (1 + mu) (level - c'a')_+ / (1 + beta).
    Where the constraint costs something, that point is stable if and only if tau sigma |K|^2 < 4 - 2 tau (1 + mu).
    Deterministic. Raises ValueError for steps that are not positive or an `epsilon` that is not finite,
    NumericalFailure if the iteration overflows.
    """
    if not math.isfinite(epsilon):
        raise ValueError(f"epsilon must be finite, got {epsilon}")
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight must be a finite number >= 0, got {weight}")
    settings = FedORA(tau=tau, sigma=sigma, iterations=iterations, **{**PLAIN, "mu": mu})
    scale = 1 + weight
    thetas: list[Tensor] = []
    seen: list[Iteration] = []

    def forgetting(theta: Vectors) -> Known:
        return Known(float(scale * DIRECTION.dot(torch.cat(theta)) - weight), list((scale * DIRECTION).split(1)))

    def retained(theta: Vectors, t: int, j: int) -> Known:
        thetas.append(torch.cat(theta))
        away = thetas[-1] - RETRAINED
        return Known(float(0.5 * away.dot(away)), list(away.split(1)))

    last = primal_dual(list(START.split(1)), AtLeast(forgetting, epsilon), retained, settings, substeps=1,
                       on_iteration=seen.append)  # fmt: skip
    theta = torch.stack([*thetas, torch.cat(last)])
    dual = torch.tensor([0.0] + [i.dual for i in seen[:-1]], dtype=torch.float64)
    residual = torch.tensor([i.residual for i in seen], dtype=torch.float64)
    level = (epsilon + weight) / scale
    middle = (RETRAINED + mu * START) / (1 + mu)  # a'
    lacking = max(0.0, level - float(DIRECTION.dot(middle)))
    best, price = middle + lacking * DIRECTION, (1 + mu) * lacking / scale
    distance = torch.hypot((theta - best).norm(dim=1), dual - price)
    return SaddlePath(theta, dual, residual, distance, best, price, level,
                      tau * sigma * scale**2, condat_vu(tau, sigma, scale, 1 + mu))  # fmt: skip


@run_function("fedora.saddle", data=data_hash())
def saddle(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """`saddle_path` for the record: everything it returns, as numbers and lists."""
    path = saddle_path(**config)
    return {
        name: value.tolist() if isinstance(value, Tensor) else value for name, value in path._asdict().items()
    }, None


# --- duality ---------------------------------------------------------------------------------------------------------


def sigmoid_entropy(theta: np.ndarray) -> np.ndarray:
    """H(sigmoid(theta)), elementwise."""
    return np.logaddexp(0, theta) - theta / (1 + np.exp(-theta))


@run_function("fedora.duality_gap", data=data_hash())
def duality_gap(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F5: minimise (theta - a)^2 / 2 subject to H(sigmoid(theta)) >= H(sigmoid(edge)), 0 < edge < a.

    primal: its optimum; dual: the largest value of the dual function, at `price`, where the inner minimiser jumps from
    `before` to `after`. At lambda = 0 the dual is feasible, its value 0, and `unconstrained` the entropy of its
    minimiser. cycle: least and largest theta and lambda of the last tenth of the iterations. inner: the Lagrangian over
    theta for three prices; curve: the dual function; path: theta and lambda of the last iterations.
    """
    a, edge = config["a"], config["edge"]
    epsilon = float(sigmoid_entropy(np.array(edge)))
    grid = np.linspace(0, a, 200_001)  # no minimiser is elsewhere: H is even and falls with |theta|
    loss, H = 0.5 * (grid - a) ** 2, sigmoid_entropy(grid)

    def inner(price: float) -> tuple[float, float]:
        values = loss + price * (epsilon - H)
        best = int(values.argmin())
        return float(values[best]), float(grid[best])

    price = float(minimize_scalar(lambda y: -inner(y)[0], bounds=(0, 50), method="bounded",
                                  options={"xatol": 1e-10}).x)  # fmt: skip
    thetas: list[float] = []
    duals: list[float] = []

    def forgetting(theta: Vectors) -> Known:
        z = float(theta[0])
        p = 1 / (1 + math.exp(-z))
        return Known(float(sigmoid_entropy(np.array(z))), [torch.tensor([-z * p * (1 - p)], dtype=torch.float64)])

    def retained(theta: Vectors, t: int, j: int) -> Known:
        thetas.append(float(theta[0]))
        return Known(0.5 * (thetas[-1] - a) ** 2, [theta[0] - a])

    settings = FedORA(tau=config["tau"], sigma=config["sigma"], iterations=config["iterations"], **PLAIN)
    start = [torch.tensor([a], dtype=torch.float64)]
    primal_dual(start, AtLeast(forgetting, epsilon), retained, settings, substeps=1,
                on_iteration=lambda i: duals.append(i.dual))  # fmt: skip
    late = slice(-(config["iterations"] // 10), None)
    prices, shown = np.linspace(0, 30, 61), slice(0, None, 1000)
    return {
        "epsilon": epsilon,
        "primal": 0.5 * (a - edge) ** 2,
        "dual": inner(price)[0],
        "price": price,
        "before": inner(price - 1e-3)[1],
        "after": inner(price + 1e-3)[1],
        "unconstrained": float(H[-1]),
        "cycle": {
            "theta": [min(thetas[late]), max(thetas[late])],
            "dual": [min(duals[:-1][late]), max(duals[:-1][late])],
        },
        "inner": [
            {"price": y, "theta": grid[shown].tolist(), "value": (loss + y * (epsilon - H))[shown].tolist(),
             "minimiser": inner(y)[1], "least": inner(y)[0]}
            for y in (price - 7, price, price + 7)
        ],
        "curve": {"price": prices.tolist(), "value": [inner(y)[0] for y in prices]},
        "path": {"theta": thetas[-config["shown"] :], "dual": duals[:-1][-config["shown"] :]},
    }, None  # fmt: skip


# --- step sizes ------------------------------------------------------------------------------------------------------


@run_function("fedora.steps", data=data_hash())
def steps(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F6: L_r = L (theta - 1)^2 / 2, score K theta >= K / 2, from theta = 0. The saddle point is (1, 0).

    step_rule: tau sigma K^2, which the paper wants to be at most 1; margin: Condat and Vu's, at least 0;
    distances: |theta - 1| per iteration; tau: the step of the last iteration, which the adaptive rule may have changed.
    """
    L, K = config["L"], config["K"]
    distances: list[float] = []
    taus: list[float] = []

    def forgetting(theta: Vectors) -> Known:
        return Known(K * float(theta[0]), [torch.tensor([K], dtype=torch.float64)])

    def retained(theta: Vectors, t: int, j: int) -> Known:
        away = theta[0] - 1
        distances.append(abs(float(away)))
        return Known(0.5 * L * float(away) ** 2, [L * away])

    settings = FedORA(tau=config["tau"], sigma=config["sigma"], iterations=config["iterations"],
                      **{**PLAIN, "adaptive": config["adaptive"]})  # fmt: skip
    (last,) = primal_dual([torch.zeros(1, dtype=torch.float64)], AtLeast(forgetting, K / 2), retained, settings,
                          substeps=1, on_iteration=lambda i: taus.append(i.tau[0]))  # fmt: skip
    return {
        "step_rule": config["tau"] * config["sigma"] * K**2,
        "margin": condat_vu(config["tau"], config["sigma"], K, L),
        "distances": [*distances, abs(float(last) - 1)],
        "tau": taus[-2],  # the last entry is that of the report after the end
    }, None
