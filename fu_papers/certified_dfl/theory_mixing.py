"""Lemma 1, and where D-PSGD with a constant step stops: the numbers beside errata D1 and D6."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fu_core.errors import NumericalFailure
from fu_core.federation.decentralised import dpsgd_round, start
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import eigenvalues, metropolis, mixing_error, rho, topology
from fu_papers.certified_dfl.theory_problems import (
    SAMPLES,
    first,
    generated,
    kept_by,
    on_a_ring,
    ridge_clients,
    ridge_model,
    ridge_optimum,
)
from fu_papers.convex import dense_hessian
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function


@run_function("certified_dfl.mixing", data=generated)
def mixing(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Lemma 1: |Q^k - 11'/N|^2 against rho^k. For a symmetric Q both are equal, so rounding needs its 1e-15."""
    graph = topology(config["topology"], config["clients"], p=config["p"], seed=config["seed"])
    Q = metropolis(graph)
    errors = [mixing_error(Q, k) for k in range(1, config["steps"] + 1)]
    bounds = [rho(Q) ** k for k in range(1, config["steps"] + 1)]
    return {
        "edges": sorted([min(edge), max(edge)] for edge in graph.edges),
        "eigenvalues": eigenvalues(Q).tolist(),
        "rho": rho(Q),
        "errors": errors,
        "bounds": bounds,
        "violations": sum(error > bound + 1e-15 for error, bound in zip(errors, bounds, strict=True)),
        "excess": max(error - bound for error, bound in zip(errors, bounds, strict=True)),
    }, None


def at_rest(f: Federation, near: Tensor) -> Tensor:
    """The models (N, d) that D-PSGD with full batches and a constant step leaves: (I - Q) X + gamma grad f_i(x_i) = 0.

    By Newton's method from `near` (d,); on quadratics one step, (I - Q (x) I + gamma A) X = gamma r (methods T6).
    Clients must hold equally many samples. Deterministic.
    """
    model, Q, gamma = f.model, f.peers.Q, f.local.lr
    x, y = (torch.stack(parts) for parts in zip(*(f.clients[i] for i in f.ids), strict=True))
    N, d = len(Q), model.d
    apart = torch.kron(torch.eye(N, dtype=Q.dtype) - Q, torch.eye(d, dtype=Q.dtype))
    X = start(near, N)
    for _ in range(50):
        own = X.detach().requires_grad_()
        (g,) = torch.autograd.grad(vmap(model.loss)(own, x, y).sum(), own)  # row i: of client i's loss at its model
        residual = X - Q @ X + gamma * g
        if float(residual.norm()) < 1e-12:
            return X
        of_each = zip(X, zip(x, y, strict=True), strict=True)
        A = torch.block_diag(*(dense_hessian(model, w_i, [(1.0, client)]) for w_i, client in of_each))
        X = X - torch.linalg.solve(apart + gamma * A, residual.flatten()).view(N, d)
    raise NumericalFailure(f"no fixed point of D-PSGD found: a residual of {float(residual.norm()):.2g} is left")


@run_function("certified_dfl.fixed_point", data=generated)
def fixed_point(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D6 and D1 on ridge regression, a ring of ten, a list entry per seed.

    farthest: max_i |x_i - x*|; mean: |x_bar - x*|; shift: |x' - x*| with a tenth deleted; difference: change of
    x_0 - x_5 by retraining, which shared noise leaves bare; rest: what another round of D-PSGD still moves.
    """
    model, gamma = ridge_model(), config["gamma"]
    found: dict[str, list[float]] = {name: [] for name in ("farthest", "mean", "shift", "difference", "rest")}
    for seed in range(config["seeds"]):
        clients = ridge_clients(config["heterogeneity"], seed)
        kept = kept_by(first(SAMPLES // 10, clients))
        x, retrained = ridge_optimum(clients), ridge_optimum(kept)
        f = on_a_ring(model, clients, gamma)
        X, X_r = at_rest(f, x), at_rest(on_a_ring(model, kept, gamma), x)
        again = dpsgd_round(f, X, 1)
        found["farthest"].append(float((X - x).norm(dim=1).max()))
        found["mean"].append(float((X.mean(dim=0) - x).norm()))
        found["shift"].append(float((retrained - x).norm()))
        found["difference"].append(float(((X[0] - X[5]) - (X_r[0] - X_r[5])).norm()))
        found["rest"].append(float((again - X).abs().max()))
    return found, None
