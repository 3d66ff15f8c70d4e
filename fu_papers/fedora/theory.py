"""FedORA's constraint, duality and theorem as numbers, on problems whose retrained model is known exactly.

A quadratic with two parameters, logistic and ridge regression on breast cancer with the features split between two
parties, all in float64 and with gradients in closed form; optima by Newton's method. The iteration is always
`fu_core.unlearning.fedora.primal_dual`, but for the readings of the vector dual that the package does not have.
`run_theory` keeps everything as records; fedora_theory_figures draws it. The numbers stand beside errata F1 to F7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from fu_core.data import load
from fu_core.errors import NumericalFailure, check_choice, check_count
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.vertical import Boundary, Optimisers, Parties, Vectors, deal, forward, train
from fu_core.models.flat import FlatModel
from fu_core.partition import vertical
from fu_core.streams import stream
from fu_core.unlearning.fedora import FedORA, Iteration, primal_dual, uncertainty_loss
from fu_papers.convex import OneLogit, optimum
from fu_papers.lab.context import RunContext
from fu_papers.lab.pool import map_kinds
from fu_papers.lab.record import Record, run_function
from fu_papers.lab.store import RecordStore

DELETED = 45  # of 455 rows
L2 = 0.05
PLAIN: dict[str, Any] = {"mu": 0.0, "adaptive": False, "patience": False}  # the iteration the proofs are about
CURVE = 60  # a record keeps at most so many points of a curve, beside the last


@dataclass
class Known:
    """An answer for `primal_dual`: a value and gradients that are known already."""

    value: float
    g: Vectors

    def gradients(self, scale: float = 1.0) -> Vectors:
        """`scale` times the gradient, one vector (d_k,) per party."""
        return [scale * g_k for g_k in self.g]


def thinned(n: int) -> list[int]:
    """At most CURVE + 1 of the positions 0..n - 1, evenly spread, first and last included."""
    return sorted({round(i) for i in np.linspace(0, n - 1, min(n, CURVE + 1))})


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

    last = primal_dual(list(START.split(1)), forgetting, retained, settings, epsilon=epsilon, substeps=1,
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


@run_function("fedora.saddle")
def saddle(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """`saddle_path` for the record: everything it returns, as numbers and lists."""
    path = saddle_path(**config)
    return {
        name: value.tolist() if isinstance(value, Tensor) else value for name, value in path._asdict().items()
    }, None


# --- logistic regression on breast cancer ----------------------------------------------------------------------------


class Request(NamedTuple):
    """Who keeps what of breast cancer: features (n, d) with a last column of ones, labels (n,) 0 / 1, in float64."""

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


def request(draw: int) -> Request:
    """45 random rows of the training set are to be forgotten. Random: which, from (draw, "fedora theory")."""

    def with_ones(data: Client) -> Client:
        return torch.cat([data[0], torch.ones_like(data[0][:, :1])], dim=1), data[1]

    (x, y), test = (with_ones(data) for data in table("standardised"))
    rows = torch.randperm(len(y), generator=stream(draw, "fedora theory"))
    gone, kept = rows[:DELETED], rows[DELETED:]
    return Request((x, y), (x[kept], y[kept]), (x[gone], y[gone]), test)


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
    return optimum(FlatModel(OneLogit(x.shape[1]), l2=L2), [(1.0, (x, y.long()))])


def accuracy(w: Tensor, data: Client) -> float:
    """Share of the rows whose sign is right."""
    x, y = data
    return float(((x @ w > 0) == (y > 0)).double().mean())


class Constrained(NamedTuple):
    """The model (d,) of least L_r, at least nearby, with entropy >= epsilon on the forgotten rows, and its price."""

    epsilon: float
    w: Tensor
    dual: float


def constrained_optima(which: Request, entropies: Sequence[float]) -> list[Constrained]:
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


def _kkt(which: Request, epsilon: float, w: Tensor, dual: float) -> tuple[Tensor, float]:
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


def lagrangian_hessian(which: Request, at: Constrained) -> Tensor:
    """Of L_r - lambda H, (d, d)."""
    return logistic_hessian(at.w, which.retained) - at.dual * entropy_hessian(at.w, which.forgotten[0])


@run_function("fedora.forbidden")
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
    *,
    tau: float,
    sigma: float,
    iterations: int,
    product: bool,
    projected: bool,
    on_iteration: Callable[[float, float], None],
) -> Vectors:
    """Eq. (25) with every reading of its primal step, no proximal term: lambda_k <- lambda_k + sigma grad_k L_u.

    product: the primal step uses lambda_k * grad_k L_u, element by element (22), or lambda_k itself. projected: to
    lambda_k >= 0. `on_iteration` gets the score and the mean of lambda, before each step and at the end.
    """
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


@run_function("fedora.iterated")
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
        product, projected = READINGS[config["dual"]]
        theta = accumulate(start, forgetting, retained, tau=tau, sigma=sigma, iterations=config["iterations"],
                           product=product, projected=projected, on_iteration=told)  # fmt: skip
    else:
        settings = FedORA(tau=tau, sigma=sigma, iterations=config["iterations"],
                          unlearn=config["dual"] == "scalar", **PLAIN)  # fmt: skip
        epsilon = config.get("threshold", math.nan)
        theta = primal_dual(start, forgetting, retained, settings, epsilon=epsilon, substeps=1,
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


def _against_the_optimum(which: Request, w: Tensor, config: Mapping[str, Any]) -> dict[str, float]:
    epsilons = np.linspace(0.1, config["threshold"], 1 + math.ceil(config["threshold"] / 0.03))[1:].tolist()
    best = constrained_optima(which, epsilons)[-1]
    K = steepest() * float(which.forgotten[0].norm(dim=1).mean())
    curvature = float(torch.linalg.eigvalsh(lagrangian_hessian(which, best))[-1])
    return {
        "missed": float((w - best.w).norm()),
        "step_rule": config["tau"] * config["sigma"] * K**2,
        "margin": condat_vu(config["tau"], config["sigma"], K, curvature),
    }


# --- the unlearning loss ---------------------------------------------------------------------------------------------


def entropy(logits: Tensor) -> Tensor:
    """H(p), mean over `logits` (n, C)."""
    log_p = logits.log_softmax(dim=1)
    return -(log_p.exp() * log_p).sum(dim=1).mean()


def kl_to_uniform(logits: Tensor) -> Tensor:
    """KL(p || U), the sum over classes of p log(p / (1/C)); mean over `logits` (n, C)."""
    log_p = logits.log_softmax(dim=1)
    return (log_p.exp() * (log_p + math.log(logits.shape[1]))).sum(dim=1).mean()


def kl_from_uniform(logits: Tensor) -> Tensor:
    """KL(U || p), the mean over classes of log((1/C) / p); mean over `logits` (n, C)."""
    return (-math.log(logits.shape[1]) - logits.log_softmax(dim=1)).mean()


def digits_parties(epochs: int) -> Parties:
    """Two parties with half an image each, trained on all digits, then in float64. Random: from the streams of 0."""
    parties, _ = deal(load("digits"), bottom="mlp", seed=0)
    optimisers = Optimisers([ClientOpt(lr=0.05, momentum=0.9)])
    trained = train(parties, torch.arange(len(parties.active.y)), optimisers, epochs=epochs, seed=0)
    return trained.having([w_k.double() for w_k in trained.w])


@run_function("fedora.one_force")
def one_force(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F2 and claim F12: the terms of the unlearning loss as gradients of a trained vertical model, digits.

    cosine, ratio: of the gradients over all parties' parameters, entropy H against -KL(p||U) and -KL(U||p); per_party:
    the cosines by party. weights: |grad of (28)| / |grad H| and its cosine with grad H, per forgetting weight.
    identity: largest |H - log C + KL(p||U)|. confident: |grad_z| of both per largest probability, the others equal.
    entries: some of the parameters' gradients; largest_probability: median over the samples.
    """
    parties = digits_parties(config["epochs"])
    rows = torch.arange(config["samples"])

    def gradient(score: Callable[[Tensor], Tensor]) -> Vectors:
        exchange = forward(parties, parties.w, rows, Boundary())
        return exchange.backward(score(exchange.logits))

    logits = forward(parties, parties.w, rows, Boundary()).logits.detach()
    classes = logits.shape[1]
    h = gradient(entropy)
    others = {"-KL(p||U)": gradient(lambda z: -kl_to_uniform(z)), "-KL(U||p)": gradient(lambda z: -kl_from_uniform(z))}
    flat, per_party = torch.cat(h), {}
    found: dict[str, dict[str, float]] = {"cosine": {}, "ratio": {}}
    for name, g in others.items():
        found["cosine"][name] = _cosine(flat, torch.cat(g))
        found["ratio"][name] = float(torch.cat(g).norm() / flat.norm())
        per_party[name] = [_cosine(h_k, g_k) for h_k, g_k in zip(h, g, strict=True)]
    weights = []
    for weight in config["weights"]:
        g_u = torch.cat(gradient(partial(uncertainty_loss, weight=weight)))
        weights.append({"weight": weight, "ratio": float(g_u.norm() / flat.norm()), "cosine": _cosine(flat, g_u)})
    some = torch.randperm(len(flat), generator=stream(0, "one force"))[: config["entries"]]
    return {
        **found,
        "per_party": per_party,
        "weights": weights,
        "identity": max(abs(float(entropy(z[None]) - math.log(classes) + kl_to_uniform(z[None]))) for z in logits),
        "confident": [_at_confidence(p, classes) for p in config["confidences"]],
        "entries": {"H": flat[some].tolist()} | {name: torch.cat(g)[some].tolist() for name, g in others.items()},
        "largest_probability": float(logits.softmax(dim=1).max(dim=1).values.median()),
    }, None


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.cosine_similarity(a, b, dim=0))


def _at_confidence(largest: float, classes: int) -> dict[str, float]:
    p = torch.full((1, classes), (1 - largest) / (classes - 1), dtype=torch.float64)
    p[0, 0] = largest
    norms = []
    for score in (entropy, kl_from_uniform):
        z = p.log().requires_grad_()
        (g,) = torch.autograd.grad(score(z), z)
        norms.append(float(g.norm()))
    return {"largest": largest, "H": norms[0], "KL(U||p)": norms[1]}


# --- duality ---------------------------------------------------------------------------------------------------------


def sigmoid_entropy(theta: np.ndarray) -> np.ndarray:
    """H(sigmoid(theta)), elementwise."""
    return np.logaddexp(0, theta) - theta / (1 + np.exp(-theta))


@run_function("fedora.duality_gap")
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
    primal_dual([torch.tensor([a], dtype=torch.float64)], forgetting, retained, settings, epsilon=epsilon, substeps=1,
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


@run_function("fedora.steps")
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
    (last,) = primal_dual([torch.zeros(1, dtype=torch.float64)], forgetting, retained, settings, epsilon=K / 2,
                          substeps=1, on_iteration=lambda i: taus.append(i.tau[0]))  # fmt: skip
    return {
        "step_rule": config["tau"] * config["sigma"] * K**2,
        "margin": condat_vu(config["tau"], config["sigma"], K, L),
        "distances": [*distances, abs(float(last) - 1)],
        "tau": taus[-2],  # the last entry is that of the report after the end
    }, None


# --- Theorem 1 -------------------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """Those of Assumptions 1 to 4, and the step."""

    eta: float
    mu: float  # strong convexity of L_r
    noise: float  # root of the largest E|minibatch gradient - gradient|^2: varsigma / sqrt(B)
    G: float  # largest |grad L_u|
    Lambda: float  # largest dual

    @property
    def c(self) -> float:
        """Of E|e_(t+1)|^2 <= (1 - eta mu) E|e_t|^2 + c eta: 2/mu (varsigma^2/B + Lambda^2 G^2).

        From (42), its gradient term bounded by (46) and half of that spent on the other two by Young's inequality,
        a quarter for each. The quadratic term that (50) drops need not be dropped: see `bounds`.
        """
        return 2 / self.mu * (self.noise**2 + (self.Lambda * self.G) ** 2)

    def limits(self) -> dict[str, float]:
        """What `bounds` tend to."""
        return {
            "printed": math.sqrt(self.c * self.eta) / (1 - math.sqrt(1 - self.eta * self.mu)),  # b / (1 - rho)
            "squared": math.sqrt(self.c / self.mu),
            "direct": (self.noise + self.Lambda * self.G) / self.mu,
        }

    def bounds(self, first: float, t: Tensor) -> dict[str, Tensor]:
        """Three bounds on the root mean square of |e_t|, shape of `t`, from |e_0| = `first`; valid to 2 / (mu + L).

        printed   rho^t |e_0| + b (1 - rho^t) / (1 - rho), rho = sqrt(1 - eta mu), b = sqrt(c eta): (52) to (54)
        squared   the recursion before the root was taken, (51), iterated as it is
        direct    |e_(t+1)| <= (1 - eta mu) |e_t| + eta (varsigma / sqrt(B) + Lambda G), by the triangle inequality: a
                  gradient step on L_r shrinks distances by 1 - eta mu for eta <= 2 / (mu + L). Its square, with
                  Young's inequality, is (51), so that (51) holds with nothing dropped
        """
        shrink = 1 - self.eta * self.mu
        limit, rho = self.limits(), math.sqrt(shrink)
        return {
            "printed": rho**t * first + (1 - rho**t) * limit["printed"],
            "squared": (shrink**t * first**2 + (1 - shrink**t) * limit["squared"] ** 2).sqrt(),
            "direct": shrink**t * first + (1 - shrink**t) * limit["direct"],
        }


STARTS = ("from scratch", "from the trained model")


class Ridge(NamedTuple):
    """Ridge regression on logits of +-3, so that L_r is a quadratic and predictions are confident; rows of length 1."""

    x: Tensor  # (410, 30), retained
    target: Tensor  # (410,)
    forgotten: Tensor  # (45, 30)
    l2: float
    hessian: Tensor  # of L_r, (30, 30)
    original: Tensor  # the minimiser on all 455, (30,)
    retrained: Tensor

    def gradient(self, w: Tensor) -> Tensor:
        """Of L_r, at one model (30,) or at several (n, 30)."""
        return (w - self.retrained) @ self.hessian


def ridge(l2: float) -> Ridge:
    """Breast cancer's request 0 as least squares."""
    (x, y), _ = table("unit")
    rows = torch.randperm(len(y), generator=stream(0, "fedora theory"))
    target = 3 * (2 * y - 1)

    def solved(some: Tensor) -> tuple[Tensor, Tensor]:
        A = x[some].T @ x[some] / len(some) + l2 * torch.eye(x.shape[1], dtype=x.dtype)
        return A, torch.linalg.solve(A, x[some].T @ target[some] / len(some))

    kept = rows[DELETED:]
    hessian, retrained = solved(kept)
    return Ridge(x[kept], target[kept], x[rows[:DELETED]], l2, hessian, solved(rows)[1], retrained)


def fedora_path(problem: Ridge, config: Mapping[str, Any], seed: int) -> tuple[Tensor, float]:
    """FedORA's models (T + 1, 30) from the original one on, and the largest dual. Batches drawn with replacement.

    Random: batches, from (seed, "theorem 1").
    """
    T, n, sizes = config["iterations"], len(problem.target), [len(b) for b in vertical((problem.x.shape[1],), 2)]
    B = config["batch"]
    draws = torch.randint(n, (T, B), generator=stream(seed, "theorem 1")) if B else torch.arange(n).expand(T, n)
    models: list[Tensor] = []
    duals: list[float] = []

    def forgetting(theta: Vectors) -> Known:
        H, g = mean_entropy(torch.cat(theta), problem.forgotten)
        return Known(float(H), list(g.split(sizes)))

    def retained(theta: Vectors, t: int, j: int) -> Known:
        w = torch.cat(theta)
        models.append(w)
        x = problem.x[draws[t]]
        away = x @ w - problem.target[draws[t]]
        value = 0.5 * float(away.dot(away)) / len(away) + 0.5 * problem.l2 * float(w.dot(w))
        return Known(value, list((x.T @ away / len(away) + problem.l2 * w).split(sizes)))

    threshold = config["threshold"]
    settings = FedORA(tau=config["eta"], sigma=config["sigma"], iterations=T, unlearn=threshold is not None, **PLAIN)
    last = primal_dual(list(problem.original.split(sizes)), forgetting, retained, settings,
                       epsilon=math.nan if threshold is None else threshold, substeps=1,
                       on_iteration=lambda i: duals.append(i.dual))  # fmt: skip
    return torch.stack([*models, torch.cat(last)]), max(duals)


def retraining_path(problem: Ridge, start: Tensor, eta: float, iterations: int) -> Tensor:
    """Gradient descent on L_r with full batches, models (T + 1, 30)."""
    models = [start]
    for _ in range(iterations):
        models.append(models[-1] - eta * problem.gradient(models[-1]))
    return torch.stack(models)


def gradient_variance(problem: Ridge, models: Tensor) -> float:
    """The largest E|grad l_i - grad L_r|^2 over `models` (n, 30), for one random sample i: varsigma^2."""
    away = models @ problem.x.T - problem.target  # (n, samples)
    squares = (away**2 * (problem.x**2).sum(dim=1)).mean(dim=1)
    means = (away @ problem.x / len(problem.target)).square().sum(dim=1)
    return float((squares - means).max())


@run_function("fedora.theorem_1")
def theorem_1(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim F13 and errata F7: FedORA and retraining side by side on ridge regression, same step, several seeds.

    batch: 0 for full batches. constants: of the assumptions, the variance and the dual as large as they were in any
    run. Per start of the retraining: rms, the root mean square of |theta^t - theta_R^t| over the seeds, and least and
    largest; the three bounds; violated: at how many t the rms, and at how many seeds and t a single run, is above a
    bound; recursion: at how many t a_(t+1) > rho a_t + b for the rms a. checked: t's and runs. without: the limits for
    a dual of 0, same noise. entropy: of the last models on the deleted samples; own: of the retrained one.
    """
    check_count("seeds", config["seeds"])
    problem, eta, T = ridge(config["l2"]), config["eta"], config["iterations"]
    runs = [fedora_path(problem, config, seed) for seed in range(config["seeds"])]
    paths = torch.stack([path for path, _ in runs])  # (seeds, T + 1, 30)
    spectrum = torch.linalg.eigvalsh(problem.hessian)
    variance = gradient_variance(problem, paths.flatten(0, 1)) / config["batch"] if config["batch"] else 0.0
    constants = Constants(
        eta=eta,
        mu=float(spectrum[0]),
        noise=math.sqrt(variance),
        G=steepest() * float(problem.forgotten.norm(dim=1).mean()),
        Lambda=max(dual for _, dual in runs),
    )
    t, shown = torch.arange(T + 1, dtype=torch.float64), thinned(T + 1)
    limits = constants.limits()
    found: dict[str, Any] = {}
    for name, start in zip(STARTS, (torch.zeros_like(problem.original), problem.original), strict=True):
        apart = (paths - retraining_path(problem, start, eta, T)).norm(dim=2)  # |e_t|, (seeds, T + 1)
        rms = apart.square().mean(dim=0).sqrt()
        bounds = constants.bounds(float(apart[0, 0]), t)
        rho = math.sqrt(1 - eta * constants.mu)
        allowed = rho * rms[:-1] + (1 - rho) * limits["printed"]
        found[name] = {
            "t": shown,
            "rms": rms[shown].tolist(),
            "least": apart.amin(dim=0)[shown].tolist(),
            "largest": apart.amax(dim=0)[shown].tolist(),
            "bounds": {kind: bound[shown].tolist() for kind, bound in bounds.items()},
            "violated": {
                kind: {"rms": int((rms > bound + 1e-12).sum()), "runs": int((apart > bound + 1e-12).sum())}
                for kind, bound in bounds.items()
            },
            "recursion": int((rms[1:] > allowed + 1e-12).sum()),
        }
    ends = [float(mean_entropy(w, problem.forgotten)[0]) for w in paths[:, -1]]
    return {
        "constants": constants._asdict() | {"L": float(spectrum[-1]), "c": constants.c},
        "starts": found,
        "checked": {"rms": T + 1, "runs": apart.numel()},
        "limits": limits,
        "without": constants._replace(Lambda=0.0).limits(),
        "entropy": float(np.mean(ends)),
        "own": float(mean_entropy(problem.retrained, problem.forgotten)[0]),
    }, None


@run_function("fedora.limits")
def limits(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F7: what the bounds tend to, per step size, for unit constants; c = 2."""
    unit = Constants(eta=1.0, mu=config["mu"], noise=config["noise"], G=1.0, Lambda=config["pressure"])
    rows = [{"eta": eta, **unit._replace(eta=eta).limits()} for eta in config["etas"]]
    return {"c": unit.c, "rows": rows}, None


# --- everything ------------------------------------------------------------------------------------------------------


def run_theory(store: RecordStore, jobs: int | None = None) -> dict[str, list[Record]]:
    """All of the above, by the name of the run function; 15 to 20 seconds on one core."""
    quadratic = {"epsilon": 0.5, "weight": 1.0, "mu": 0.1, "iterations": 120}
    on_cancer = {"draw": 0, "iterations": 2000}
    gentle, hasty = {"tau": 0.2, "sigma": 0.3}, {"tau": 0.1, "sigma": 3.0}
    scalar = {"dual": "scalar", **on_cancer}
    root = math.sqrt(0.5)
    plans: dict[Any, list[dict[str, Any]]] = {
        saddle: [
            {"tau": tau, "sigma": sigma, **quadratic}
            for tau, sigma in ((0.1, 0.05), (0.1, 0.5), (0.5, 1.0), (0.6, 1.2))
        ],
        forbidden: [{"draw": draw, "thresholds": [0.3, 0.5, 0.65], "largest": 0.68} for draw in range(10)],
        iterated: [
            {"dual": "none", **gentle, **on_cancer},
            *({**scalar, **gentle, "threshold": epsilon} for epsilon in (0.3, 0.5, 0.65)),
            {**scalar, **hasty, "threshold": 0.65},
            *({"dual": name, "tau": 0.1, "sigma": 0.1, **on_cancer} for name in READINGS),
        ],
        one_force: [
            {"epochs": 10, "samples": 100, "weights": [0.5, 1.0, 5.0, 20.0], "entries": 300,
             "confidences": [0.9, 0.99, 0.999, 0.9999]}
        ],
        duality_gap: [{"a": 5.0, "edge": 3.0, "tau": 0.1, "sigma": 0.5, "iterations": 20_000, "shown": 400}],
        steps: [
            {"L": 10.0, "K": 0.1, "sigma": 0.1, "tau": tau, "adaptive": adaptive, "iterations": 300}
            for tau in (0.1, 0.19, 0.21, 0.25)
            for adaptive in (False, True)
        ],
        theorem_1: [
            *({"eta": eta, "iterations": T, "threshold": epsilon, "sigma": 1.0, "batch": 32, "l2": 0.1, "seeds": 20}
              for eta, T in ((1.0, 60), (0.3, 150), (0.1, 300)) for epsilon in (None, 0.55, 0.65)),
            {"eta": 3.8, "iterations": 100, "threshold": None, "sigma": 1.0, "batch": 0, "l2": 0.1, "seeds": 1},
        ],
        limits: [{"mu": 1.0, "noise": root, "pressure": root, "etas": [1e-1, 1e-2, 1e-3, 1e-4]}],
    }  # fmt: skip
    on: dict[Any, str] = dict.fromkeys((forbidden, iterated, theorem_1), "breast_cancer") | {one_force: "digits"}
    return map_kinds(
        plans, store=store, jobs=jobs, data_hash=lambda fn: load(on[fn]).sha256 if fn in on else "generated"
    )
