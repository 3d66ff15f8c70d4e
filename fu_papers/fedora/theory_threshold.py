"""What a threshold on the entropy of the deleted samples forbids: logistic regression on breast cancer.

The features are split between two parties, everything is in float64 with gradients in closed form; optima by Newton's
method. The iteration is `fu_core.unlearning.fedora.primal_dual`, but for the readings of the vector dual that the
package does not have. The numbers stand beside errata F1 and F3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.nn import functional as F

from fu_core.data import load
from fu_core.errors import NumericalFailure, check_choice
from fu_core.federation.local import Client
from fu_core.federation.vertical import Vectors
from fu_core.models.flat import FlatModel
from fu_core.partition import vertical
from fu_core.streams import stream
from fu_core.unlearning.fedora import AtLeast, FedORA, primal_dual
from fu_papers.convex import one_logit, optimum
from fu_papers.fedora.theory_small import PLAIN, Known, condat_vu, data_hash
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function

DELETED = 45  # of 455 rows
L2 = 0.05
CURVE = 60  # a record keeps at most so many points of a curve, beside the last


class Divided(NamedTuple):
    """Breast cancer as a request divides it: features (n, d), the last of them 1, and labels (n,) 0 / 1, in float64."""

    everything: Client  # 455 rows
    retained: Client  # 410
    forgotten: Client  # 45
    test: Client  # 114

    @property
    def sizes(self) -> list[int]:
        """Parameters per party: two passive parties share the features, the active party has the intercept."""
        columns = self.test[0].shape[1] - 1
        return [*(len(block) for block in vertical((columns,), 2)), 1]


@lru_cache(maxsize=2)
def table(rows: str) -> tuple[Client, Client]:
    """Training and test rows of breast cancer, standardised by the training rows; "unit": then of length 1."""
    check_choice("rows", rows, ("standardised", "unit"))
    data = load("breast_cancer")
    x = data.x_train.double()
    mean, std = x.mean(dim=0), x.std(dim=0, correction=0)
    parts = [((x - mean) / std, y.double()) for x, y in ((x, data.y_train), (data.x_test.double(), data.y_test))]
    if rows == "unit":
        parts = [(x / x.norm(dim=1, keepdim=True), y) for x, y in parts]
    return parts[0], parts[1]


def request(draw: int) -> Divided:
    """45 random rows of the training set are to be forgotten. Random: which, from (draw, "fedora theory")."""

    def with_ones(data: Client) -> Client:
        return torch.cat([data[0], torch.ones_like(data[0][:, :1])], dim=1), data[1]

    (x, y), test = (with_ones(data) for data in table("standardised"))
    rows = torch.randperm(len(y), generator=stream(draw, "fedora theory"))
    gone, kept = rows[:DELETED], rows[DELETED:]
    return Divided((x, y), (x[kept], y[kept]), (x[gone], y[gone]), test)


def logistic(w: Tensor, data: Client) -> tuple[Tensor, Tensor]:
    """L_r(w), the mean cross-entropy plus L2/2 |w|^2, and its gradient (d,)."""
    x, y = data
    z = x @ w
    value = (F.softplus(z) - y * z).mean() + 0.5 * L2 * w.dot(w)
    return value, x.T @ (z.sigmoid() - y) / len(y) + L2 * w


def logistic_hessian(w: Tensor, data: Client) -> Tensor:
    """(d, d)."""
    x, y = data
    p = (x @ w).sigmoid()
    return x.T @ ((p * (1 - p))[:, None] * x) / len(y) + L2 * torch.eye(len(w), dtype=w.dtype)


def mean_entropy(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """H(w), the mean entropy of sigmoid(x'w) over the rows of `x` (n, d), and its gradient (d,): dH/dz = -z p (1 - p).

    The score (28) but for a factor and a constant (errata F2).
    """
    z = x @ w
    p = z.sigmoid()
    return (F.softplus(z) - z * p).mean(), x.T @ (-z * p * (1 - p)) / len(x)


def steepest() -> float:
    """The largest |dH/dz| of the entropy of sigmoid(z): |z| p (1 - p), which is largest where z tanh(z / 2) = 1."""
    z = brentq(lambda z: z * math.tanh(z / 2) - 1, 1, 2, xtol=1e-15)
    return z / (2 + 2 * math.cosh(z))


def entropy_hessian(w: Tensor, x: Tensor) -> Tensor:
    """(d, d)."""
    z = x @ w
    p = z.sigmoid()
    slope = p * (1 - p)
    return x.T @ ((-slope - z * slope * (1 - 2 * p))[:, None] * x) / len(x)


def newton(data: Client) -> Tensor:
    """The minimiser (d,) of L_r on `data`."""
    x, y = data
    return optimum(FlatModel(one_logit(x.shape[1]), l2=L2), [(1.0, (x, y.long()))])


def accuracy(w: Tensor, data: Client) -> float:
    """Share of the rows whose sign is right."""
    x, y = data
    return float(((x @ w > 0) == (y > 0)).double().mean())


class Constrained(NamedTuple):
    """The model (d,) of least L_r, at least nearby, with entropy >= epsilon on the forgotten rows, and its price."""

    epsilon: float
    w: Tensor
    dual: float


def constrained_optima(which: Divided, entropies: Sequence[float]) -> list[Constrained]:
    """One optimum per threshold, by Newton's method on the conditions of Karush, Kuhn and Tucker.

    Thresholds must ascend; each starts where the last one ended, the first at the retrained model, which is the
    answer itself while it meets the constraint. Deterministic. Raises NumericalFailure if there is no convergence:
    steps between thresholds of up to 0.03 are small enough.
    """
    x = which.forgotten[0]
    w, dual = newton(which.retained), 0.0
    own, found = float(mean_entropy(w, x)[0]), []
    for epsilon in entropies:
        if epsilon > own:
            w, dual = _kkt(which, epsilon, w, dual)
        found.append(Constrained(epsilon, w, dual))
    return found


def _kkt(which: Divided, epsilon: float, w: Tensor, dual: float) -> tuple[Tensor, float]:
    """grad L_r = lambda grad H, H = epsilon."""
    x, d = which.forgotten[0], len(w)
    for _ in range(50):
        (H, g_u), (_, g_r) = mean_entropy(w, x), logistic(w, which.retained)
        residual = torch.cat([g_r - dual * g_u, (H - epsilon)[None]])
        if float(residual.norm()) < 1e-12:
            return w, dual
        A = torch.zeros(d + 1, d + 1, dtype=w.dtype)
        A[:d, :d] = lagrangian_hessian(which, Constrained(epsilon, w, dual))
        A[:d, d], A[d, :d] = -g_u, g_u
        step = torch.linalg.solve(A, residual)
        w, dual = w - step[:d], dual - float(step[d])
    left = float(residual.norm())
    raise NumericalFailure(f"no optimum found for a threshold of {epsilon:.3g}: a residual of {left:.2g} is left")


def lagrangian_hessian(which: Divided, at: Constrained) -> Tensor:
    """Of L_r - lambda H, (d, d)."""
    return logistic_hessian(at.w, which.retained) - at.dual * entropy_hessian(at.w, which.forgotten[0])


@run_function("fedora.forbidden", data=data_hash("breast_cancer"))
def forbidden(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F1, exactly: what a threshold on the entropy of the deleted samples costs in distance to retraining.

    original, retrained: distance, entropy on the deleted samples, test accuracy. thresholds: the same of the
    constrained optimum, its dual and the least eigenvalue of the Lagrangian's Hessian, positive if it is a saddle point
    at least nearby. frontier: the optimum for every entropy from the retrained model's own on.
    """
    which = request(config["draw"])
    w, w_r = newton(which.everything), newton(which.retained)
    own = float(mean_entropy(w_r, which.forgotten[0])[0])
    grid = np.linspace(own, config["largest"], 25)[1:].tolist()
    found = constrained_optima(which, sorted({*grid, *config["thresholds"]}))

    def look(model: Tensor) -> dict[str, float]:
        return {
            "distance": float((model - w_r).norm()),
            "entropy": float(mean_entropy(model, which.forgotten[0])[0]),
            "accuracy": accuracy(model, which.test),
        }

    def row(c: Constrained) -> dict[str, float]:
        least = float(torch.linalg.eigvalsh(lagrangian_hessian(which, c))[0])
        return {"threshold": c.epsilon, **look(c.w), "dual": c.dual, "least_eigenvalue": least}

    on_frontier = [{**look(w_r), "dual": 0.0}, *(look(c.w) | {"dual": c.dual} for c in found if c.epsilon > own)]
    return {
        "original": look(w),
        "retrained": look(w_r),
        "thresholds": [row(c) for c in found if c.epsilon in config["thresholds"]],
        "frontier": {name: [point[name] for point in on_frontier] for name in on_frontier[0]},
    }, None


# --- the iteration on it ---------------------------------------------------------------------------------------------


def thinned(n: int) -> list[int]:
    """At most CURVE + 1 of the positions 0..n - 1, evenly spread, first and last included."""
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, CURVE + 1))})


READINGS: dict[str, tuple[bool, bool]] = {  # of the vector dual: multiplied by the gradient (22)?, projected (25)?
    "times gradient, projected": (True, True),  # dual="vector" in the package
    "times gradient, free": (True, False),
    "in its place, projected": (False, True),
    "in its place, free": (False, False),
}
DUALS = ("none", "scalar", *READINGS)


def accumulate(
    theta0: Vectors,
    forgetting: Callable[[Vectors], Known],
    retained: Callable[[Vectors, int, int], Known],
    reading: str,
    *,
    tau: float,
    sigma: float,
    iterations: int,
    on_iteration: Callable[[float, float], None],
) -> Vectors:
    """Eq. (25) with one of READINGS of its primal step, no proximal term: lambda_k <- lambda_k + sigma grad_k L_u.

    The primal step uses lambda_k * grad_k L_u, element by element (22), or lambda_k itself; lambda_k is projected to
    lambda_k >= 0, or it is not. `on_iteration` gets the score and the mean of lambda, before each step and at the end.
    """
    product, projected = READINGS[reading]
    theta, lam = [w_k.clone() for w_k in theta0], [torch.zeros_like(w_k) for w_k in theta0]
    for t in range(iterations):
        L_u, g_r = forgetting(theta), retained(theta, t, 0).gradients()
        for lam_k, g_k in zip(lam, L_u.g, strict=True):
            lam_k += sigma * g_k
            if projected:
                lam_k.clamp_(min=0)
        on_iteration(L_u.value, float(torch.cat(lam).mean()))
        for w_k, lam_k, u_k, r_k in zip(theta, lam, L_u.g, g_r, strict=True):
            w_k -= tau * (r_k - (lam_k * u_k if product else lam_k))
    on_iteration(forgetting(theta).value, float(torch.cat(lam).mean()))
    return theta


@run_function("fedora.iterated", data=data_hash("breast_cancer"))
def iterated(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F1 and F3: where the iteration ends on logistic regression, from the original model on, full batches.

    dual: "none" is fine-tuning, "scalar", or a reading of the vector dual. distance: to the retrained model. Of the
    scalar dual: missed, the distance to the constrained optimum; step_rule, tau sigma K^2 with K a global Lipschitz
    constant of the entropy; margin, Condat and Vu's with L the largest curvature of the Lagrangian at that optimum,
    where the entropy bends more than L_r. curves: score, dual and distance on the way.
    """
    check_choice("dual", config["dual"], DUALS)
    which = request(config["draw"])
    w_r = newton(which.retained)
    start = list(newton(which.everything).split(which.sizes))
    tau, sigma = config["tau"], config["sigma"]
    scores: list[float] = []
    duals: list[float] = []
    distances: list[float] = []

    def forgetting(theta: Vectors) -> Known:
        H, g = mean_entropy(torch.cat(theta), which.forgotten[0])
        return Known(float(H), list(g.split(which.sizes)))

    def retained(theta: Vectors, t: int, j: int) -> Known:
        w = torch.cat(theta)
        distances.append(float((w - w_r).norm()))
        value, g = logistic(w, which.retained)
        return Known(float(value), list(g.split(which.sizes)))

    def told(score: float, dual: float) -> None:
        scores.append(score)
        duals.append(dual)

    if config["dual"] in READINGS:
        theta = accumulate(start, forgetting, retained, config["dual"], tau=tau, sigma=sigma,
                           iterations=config["iterations"], on_iteration=told)  # fmt: skip
    else:
        settings = FedORA(tau=tau, sigma=sigma, iterations=config["iterations"],
                          unlearn=config["dual"] == "scalar", **PLAIN)  # fmt: skip
        epsilon = config.get("threshold", math.nan)
        theta = primal_dual(start, AtLeast(forgetting, epsilon), retained, settings, substeps=1,
                            on_iteration=lambda i: told(i.score, i.dual))  # fmt: skip
    w = torch.cat(theta)
    distances.append(float((w - w_r).norm()))
    shown = [t for t in thinned(len(scores)) if math.isfinite(scores[t])]  # without unlearning only the last is known
    return {
        "distance": distances[-1],
        "entropy": scores[-1],
        "dual": duals[-1],
        "accuracy": accuracy(w, which.test),
        **(_against_the_optimum(which, w, config) if config["dual"] == "scalar" else {}),
        "curves": {
            "t": shown,
            "entropy": [scores[t] for t in shown],
            "dual": [duals[t] for t in shown],
            "distance": [distances[t] for t in shown],
        },
    }, None


def _against_the_optimum(which: Divided, w: Tensor, config: Mapping[str, Any]) -> dict[str, float]:
    epsilons = np.linspace(0.1, config["threshold"], 1 + math.ceil(config["threshold"] / 0.03))[1:].tolist()
    best = constrained_optima(which, epsilons)[-1]
    K = steepest() * float(which.forgotten[0].norm(dim=1).mean())
    curvature = float(torch.linalg.eigvalsh(lagrangian_hessian(which, best))[-1])
    return {
        "missed": float((w - best.w).norm()),
        "step_rule": config["tau"] * config["sigma"] * K**2,
        "margin": condat_vu(config["tau"], config["sigma"], K, curvature),
    }
