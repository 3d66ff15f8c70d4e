"""FedORA's Theorem 1 as numbers, on ridge regression on breast cancer, whose retrained model is known exactly.

Everything in float64, features split between two parties. The numbers stand beside errata F7.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import check_count
from fu_core.federation.vertical import Vectors
from fu_core.partition import vertical
from fu_core.streams import stream
from fu_core.unlearning.fedora import AtLeast, FedORA, primal_dual
from fu_papers.fedora.theory_small import PLAIN, Known, data_hash
from fu_papers.fedora.theory_threshold import DELETED, mean_entropy, steepest, table, thinned
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function


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
    constraint = AtLeast(forgetting, math.nan if threshold is None else threshold)
    last = primal_dual(list(problem.original.split(sizes)), constraint, retained, settings, substeps=1,
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


@run_function("fedora.theorem_1", data=data_hash("breast_cancer"))
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


@run_function("fedora.limits", data=data_hash())
def limits(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata F7: what the bounds tend to, per step size, for unit constants; c = 2."""
    unit = Constants(eta=1.0, mu=config["mu"], noise=config["noise"], G=1.0, Lambda=config["pressure"])
    rows = [{"eta": eta, **unit._replace(eta=eta).limits()} for eta in config["etas"]]
    return {"c": unit.c, "rows": rows}, None
