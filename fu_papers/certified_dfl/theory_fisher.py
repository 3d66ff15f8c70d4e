"""The Fisher matrix in the Hessian's place: the numbers beside errata D5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fu_core.errors import check_choice
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.curvature import dense_curvature, mean_gradient
from fu_core.unlearning.newton import Newton, newton_solver
from fu_papers.certified_dfl.theory_problems import data_of
from fu_papers.convex import convex_clients, convex_model, one_logit, optimum
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function

STEPS = {
    "full Fisher, Eq. (7) as printed": Newton("fisher", loss_fisher=True),
    "full Fisher, data term plus L2": Newton("fisher"),
    "diagonal Fisher, as printed": Newton("diagonal_fisher", loss_fisher=True),
    "diagonal Fisher, data term plus L2": Newton("diagonal_fisher"),
}


@run_function("certified_dfl.fisher", data=data_of)
def fisher(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D5: a random tenth of the samples leaves, with the Fisher matrix for the Hessian, at the optimum.

    A list entry per draw of that tenth. matrix: |F - H| / |H| of the data term (Frobenius), trace: tr F / tr H. Per
    step: retraining, its distance to the retrained model (1: as doing nothing); error, cosine, length: against
    Newton's step.
    """
    model, (x, y) = _fisher_problem(config["problem"], config.get("scale", 1.0), config["seed"])
    m, w = len(y) // 10, optimum(model, [(1.0, (x, y))])
    found: dict[str, list[float]] = {"matrix": [], "trace": []}
    steps: dict[str, dict[str, list[float]]] = {}
    for draw in range(config["draws"]):
        order = torch.randperm(len(y), generator=stream(config["seed"], "fisher", draw))
        gone, kept = ((x[rows], y[rows]) for rows in (order[:m], order[m:]))
        parts = [(1.0, kept)]
        w_r = optimum(model, parts, w)
        H, F = (dense_curvature(model, w, parts, matrix=name, batch_size=len(y)) for name in ("hessian", "fisher"))
        l2 = model.l2 * torch.eye(model.d, dtype=H.dtype)
        found["matrix"].append(float((F - H).norm() / (H - l2).norm()))
        found["trace"].append(float((F - l2).trace() / (H - l2).trace()))
        g = m / len(kept[1]) * mean_gradient(model, w, gone)  # 1 / (n - m) sum over U
        newton = torch.linalg.solve(H, g)
        moves = {"Hessian (Newton)": newton, "diagonal Hessian": g / H.diagonal()}
        moves |= {name: newton_solver(model, [(w, parts)], how)(g) for name, how in STEPS.items()}
        for name, v in moves.items():
            row = steps.setdefault(name, {"retraining": [], "error": [], "cosine": [], "length": []})
            row["retraining"].append(float((w + v - w_r).norm() / (w - w_r).norm()))
            row["error"].append(float((v - newton).norm() / newton.norm()))
            row["cosine"].append(float(torch.cosine_similarity(v, newton, dim=0)))
            row["length"].append(float(v.norm() / newton.norm()))
    return {**found, "steps": steps}, None


def _fisher_problem(problem: str, scale: float, seed: int) -> tuple[FlatModel, Client]:
    """Breast cancer, standardised, L2 0.01; or generated data with correlated features and no L2."""
    check_choice("problem", problem, ("well specified", "labels flipped", "breast cancer", "least squares"))
    if problem == "breast cancer":
        return convex_model("breast_cancer"), convex_clients("breast_cancer", 1, seed=0)[0]
    draws = stream(seed, "fisher", problem)
    n, d = (2_000, 6) if problem == "least squares" else (20_000, 6)
    truth = torch.randn(d, generator=draws, dtype=torch.float64)
    x = torch.randn(n, d, generator=draws, dtype=torch.float64)
    x = x + 0.5 * x.roll(1, dims=1)
    if problem == "least squares":
        y = x @ truth + scale * torch.randn(n, generator=draws, dtype=torch.float64)
        return FlatModel(nn.Linear(d, 1, bias=False), task="regression"), (x, y)
    uniform = torch.rand(2, n, generator=draws, dtype=torch.float64)
    y = (uniform[0] < torch.sigmoid(x @ truth)).long()
    if problem == "labels flipped":
        y = torch.where(uniform[1] < 0.1, 1 - y, y)
    return FlatModel(one_logit(d)), (x, y)
