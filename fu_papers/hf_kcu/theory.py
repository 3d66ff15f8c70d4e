"""HF-KCU's formulas and theorems as numbers, on convex problems whose retrained model is known exactly.

The problems are those of `fu_papers.convex`, curvature solves are done by `torch.linalg`, so that the only thing on
trial is the formula. PLANS names the runs; theory_figures draws their records. The numbers stand beside
errata H1 and H5 to H10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion, Forget
from fu_core.streams import stream
from fu_core.unlearning.curvature import Product
from fu_core.unlearning.hf_kcu import hf_kcu
from fu_core.unlearning.krylov import Iterate, cg_iterates
from fu_papers.convex import (
    CONVEX,
    L2,
    Weighted,
    convex_clients,
    convex_model,
    data_hash,
    dense_hessian,
    optimum,
    pooled,
    share_of,
)
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Config, RunFunction, run_function

SEEDS = tuple(range(10))
SPLITS = ("iid", "dirichlet")
LEAVING = 0
ONE_STEP: dict[str, Any] = {"gradient": "forgotten", "steps": 1}  # the formula on trial, at a minimiser of L
CONVERGED: dict[str, Any] = {"iters": 500, "damping": 0.0, "tol": 1e-14, "batch_size": 1000, **ONE_STEP}


def on(table: str = "") -> Callable[[Config], str]:
    """The hash of the data behind a check: of the config's own table, else of `table`, else of none."""
    return lambda config: data_hash(config.get("data", table))


def _asked(model: FlatModel, clients: Sequence[Client], forget: Forget) -> tuple[Federation, Deletion]:
    """A federation of these clients, and what it is asked to forget."""
    f = Federation(model, dict(enumerate(clients)))
    return f, Deletion.of(f.clients, forget)


# --- the sign and the weights ----------------------------------------------------------------------------------------


@run_function("hf_kcu.exactness", data=on())
def exactness(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata H1: how far each reading of the update lands from exact retraining without client 0.

    Per variant: `error` = |w_u - w_r| / |w - w_r| (1: as far as doing nothing), `cosine` of the step with
    the true change, `step` = |w_u - w| / |w|, `forget_loss`: change of the loss on the forgotten client.
    """
    model = convex_model(config["data"])
    clients = convex_clients(config["data"], config["clients"], split=config["split"], seed=config["seed"])
    everybody = pooled(clients)
    w = optimum(model, everybody)
    w_r = optimum(model, pooled(clients[1:]), w)
    g = model.grad(w, *clients[LEAVING])
    share = share_of(clients, LEAVING)
    newton = torch.linalg.solve(dense_hessian(model, w, everybody), g)
    f, deletion = _asked(model, clients, LEAVING)

    def algorithm(**options: Any) -> Tensor:
        return hf_kcu(f, w, deletion, **options) - w

    steps = {
        "corrected": algorithm(**CONVERGED),
        "corrected, k = 10, damping 0.01": algorithm(iters=10, damping=0.01, tol=0.0, **ONE_STEP),
        "do nothing": torch.zeros_like(w),
        "Eq. (3) as printed": -newton,
        "Eq. (33) as printed": -share * newton,
        "Eq. (33), plus sign": share * newton,
        "Algorithm 1 as printed, no clip": algorithm(form="printed", scaling=False),
        "Algorithm 1 as printed": algorithm(form="printed"),
        "Algorithm 1, plus sign, no clip": algorithm(form="printed", sign=1, scaling=False),
        "Algorithm 1, plus sign": algorithm(form="printed", sign=1),
    }
    before = model.loss(w, *clients[LEAVING])
    return {
        name: {
            "error": float((w + step - w_r).norm() / (w - w_r).norm()),
            "cosine": float(torch.cosine_similarity(step, w_r - w, dim=0)) if float(step.norm()) else None,
            "step": float(step.norm() / w.norm()),
            "forget_loss": float(model.loss(w + step, *clients[LEAVING]) - before),
        }
        for name, step in steps.items()
    }, None


@run_function("hf_kcu.partial_deletion", data=on("diabetes"))
def partial_deletion(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata H6: a tenth of client 0's samples leaves. Relative error of three right-hand sides under objective (2),
    which keeps the client's weight, and of ours under FedAvg's, which weighs by what is left."""
    model = convex_model("diabetes")
    clients = convex_clients("diabetes", 10, seed=config["seed"])
    everybody = pooled(clients)
    w = optimum(model, everybody)
    n_f = len(clients[LEAVING][1])
    m = max(1, round(0.1 * n_f))
    f, deletion = _asked(model, clients, {LEAVING: torch.arange(m)})
    kept = [deletion.kept[i] for i in range(len(clients))]
    fixed = [(share_of(clients, i), data) for i, data in enumerate(kept)]
    w_f = share_of(clients, LEAVING)
    H, g_u = dense_hessian(model, w, everybody), model.grad(w, *deletion.forgotten[LEAVING])

    def error(step: Tensor, objective: Weighted) -> float:
        w_r = optimum(model, objective, w)
        return float((w + step - w_r).norm() / (w - w_r).norm())

    plain = torch.linalg.solve(H, g_u)
    return {
        "+ w_f H^-1 g_u (Eq. 33)": error(w_f * plain, fixed),
        "+ w_f m/(n-m) H^-1 g_u": error(w_f * m / (n_f - m) * plain, fixed),
        'centred gradient, retained Hessian (client_weights="fixed")': error(
            hf_kcu(f, w, deletion, client_weights="fixed", **CONVERGED) - w, fixed
        ),
        "FedAvg's objective, our default": error(hf_kcu(f, w, deletion, **CONVERGED) - w, pooled(kept)),
    }, None


@run_function("hf_kcu.local_curvature", data=on())
def local_curvature(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata H7: ridge regression, clients with features on scales of their own; whose Hessian is inverted?"""
    seed, clients = config["seed"], config["clients"]
    model = FlatModel(nn.Linear(8, 1, bias=False), task="regression", l2=L2)
    draws = stream(seed, "local curvature", clients)
    common = torch.randn(8, generator=draws, dtype=torch.float64)
    data = []
    for _ in range(clients):
        scales = torch.exp(0.7 * torch.randn(8, generator=draws, dtype=torch.float64))
        x = torch.randn(40, 8, generator=draws, dtype=torch.float64) * scales
        own = common + 0.5 * torch.randn(8, generator=draws, dtype=torch.float64)
        data.append((x, x @ own + 0.5 * torch.randn(40, generator=draws, dtype=torch.float64)))
    w, w_r = optimum(model, pooled(data)), optimum(model, pooled(data[1:]))
    f, deletion = _asked(model, data, LEAVING)
    errors = {}
    for curvature in ("local", "global", "retained"):
        w_u = hf_kcu(f, w, deletion, curvature=curvature, **CONVERGED)
        errors[curvature] = float((w_u - w_r).norm() / (w - w_r).norm())
    return errors, None


@run_function("hf_kcu.several_clients", data=on("diabetes"))
def several_clients(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata H8: q clients leave, everything exact but the causal weights alpha, which sum to 1 over them."""
    q = config["leaving"]
    model = convex_model("diabetes")
    clients = convex_clients("diabetes", 10, seed=config["seed"])
    f, deletion = _asked(model, clients, list(range(q)))
    w, w_r = optimum(model, pooled(clients)), optimum(model, pooled(clients[q:]))
    H_r = dense_hessian(model, w, pooled(clients[q:]))
    n = sum(len(y) for _, y in clients)
    gradients = [model.grad(w, *client) for client in clients[:q]]
    norms = [float(g.norm()) for g in gradients]
    step = torch.zeros_like(w)
    for (_, y), g, norm in zip(clients, gradients, norms, strict=False):
        alpha = norm / sum(norms)  # Eq. (7)
        step += alpha * len(y) / (n - sum(len(y) for _, y in clients[:q])) * torch.linalg.solve(H_r, g)
    ours = hf_kcu(f, w, deletion, **CONVERGED)
    away = float((w - w_r).norm())
    return {
        "with alpha": float((w + step - w_r).norm()) / away,
        "without": float((ours - w_r).norm()) / away,
    }, None


# --- conjugate gradient ----------------------------------------------------------------------------------------------


@run_function("hf_kcu.cg_convergence", data=on())
def cg_convergence(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Theorem 3 on a spectrum from 1 to kappa: energy-norm error per step against the bound.

    CG does not see a rotation of the matrix, so a diagonal one is as good as any. Counts violations while
    the bound is above 1e-10; beyond, rounding ends the race.
    """
    kappa, d = config["kappa"], 2_000
    draws = stream(config["seed"], "cg convergence", int(kappa))
    spectrum = _log_uniform(kappa, d, draws)
    g = torch.randn(d, generator=draws, dtype=torch.float64)
    solution = g / spectrum

    def energy(v: Tensor) -> float:
        return float(((v - solution) ** 2 * spectrum).sum().sqrt())

    start = energy(torch.zeros_like(g))
    rate = (math.sqrt(kappa) - 1) / (math.sqrt(kappa) + 1)
    errors, bounds = [1.0], [2.0]
    for t, step in enumerate(cg_iterates(lambda p: spectrum * p, g), start=1):
        errors.append(energy(step.v) / start)
        bounds.append(2 * rate**t)  # 2 ((sqrt k - 1) / (sqrt k + 1))^t
        if t == config["steps"]:
            break
    met = [(e, b) for e, b in zip(errors, bounds, strict=True) if b > 1e-10]
    return {"errors": errors, "bounds": bounds, "violations": sum(e > b for e, b in met), "checked": len(met)}, None


@run_function("hf_kcu.client_residuals", data=on("breast_cancer"))
def client_residuals(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """The appendix figure (a): CG on the damped Hessians of clients 1 and 2, logistic regression at its optimum."""
    model = convex_model("breast_cancer")
    clients = convex_clients("breast_cancer", 10, split="dirichlet", seed=config["seed"])
    w = optimum(model, pooled(clients))
    curves = {}
    for i in (1, 2):
        H = dense_hessian(model, w, [(1.0, clients[i])]) + 0.01 * torch.eye(model.d, dtype=torch.float64)
        g = model.grad(w, *clients[i])
        norms = [float(step.residual.norm() / g.norm()) for step in cg_iterates(times(H), g)]
        curves[str(i)] = {"residuals": [1.0, *norms[: config["steps"]]], "kappa": float(torch.linalg.cond(H))}
    return {"curves": curves}, None


@run_function("hf_kcu.condition_number", data=on())
def condition_number(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Corollary 4: CG steps to a relative residual of 1e-4, on kappa's spectrum, and on a badly scaled matrix with
    and without the Jacobi preconditioner. Large enough (d = 20,000) that CG does not end by exhausting it."""
    kappa, d = config["kappa"], 20_000
    draws = stream(config["seed"], "condition number", int(kappa))
    spectrum = _log_uniform(kappa, d, draws)
    g = torch.randn(d, generator=draws, dtype=torch.float64)
    root = spectrum[torch.randperm(d, generator=draws)].sqrt()

    def badly_scaled(p: Tensor) -> Tensor:  # D^1/2 M D^1/2, M tridiagonal with eigenvalues in [0.5, 1.5]
        q = root * p
        return root * (q + 0.25 * (q.roll(1) + q.roll(-1)))

    return {
        "plain": _steps_to(1e-4, lambda p: spectrum * p, g),
        "badly scaled": _steps_to(1e-4, badly_scaled, g),
        "preconditioned": _steps_to(1e-4, badly_scaled, g, preconditioner=lambda r: r / root**2),
    }, None


def _log_uniform(kappa: float, d: int, draws: torch.Generator) -> Tensor:
    """d eigenvalues from 1 to kappa, log-uniform, both ends included."""
    exponent = torch.rand(d, generator=draws, dtype=torch.float64)
    exponent[0], exponent[1] = 0.0, 1.0
    return torch.as_tensor(kappa, dtype=torch.float64) ** exponent


def _steps_to(target: float, product: Any, g: Tensor, **how: Any) -> int:
    start = float(g.norm())
    for t, step in enumerate(cg_iterates(product, g, **how), start=1):
        if float(step.residual.norm()) <= target * start:
            return t
    return t


# --- theorems 1 and 5 ------------------------------------------------------------------------------------------------


@run_function("hf_kcu.perturbation", data=on())
def perturbation(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Theorem 1 and Corollary 2: error over bound for random symmetric E with |E| = eps < mu and |e| = rho."""
    d, mu = 20, 0.5
    draws = stream(config["seed"], "perturbation")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    exact, approximate = [], []
    for _ in range(config["draws"]):
        rotation = torch.linalg.qr(normal(d, d))[0]
        eigenvalues = mu + 5 * torch.rand(d, generator=draws, dtype=torch.float64)
        eigenvalues[0] = mu
        H, g = rotation @ torch.diag(eigenvalues) @ rotation.T, normal(d)
        eps, rho = (
            float(u) for u in torch.rand(2, generator=draws, dtype=torch.float64) * torch.tensor([0.95 * mu, 2])
        )
        E = normal(d, d)
        E = (E + E.T) * (eps / float(torch.linalg.matrix_norm(E + E.T, 2)))
        e = normal(d)
        e = e * (rho / float(e.norm()))
        delta, delta_tilde = -torch.linalg.solve(H, g), -torch.linalg.solve(H + E, g + e)
        bound = eps / (mu * (mu - eps)) * float(g.norm()) + rho / (mu - eps)  # Eq. (10)
        exact.append(float((delta_tilde - delta).norm()) / bound)
        *_, last = first(5, cg_iterates(times(H + E), g + e))
        xi = float((-last - delta_tilde).norm())
        approximate.append(float((-last - delta).norm()) / (bound + xi))  # Eq. (18)
    return {
        "theorem 1": exact,
        "corollary 2": approximate,
        "violations": sum(ratio > 1 for ratio in (*exact, *approximate)),
    }, None


def times(matrix: Tensor) -> Product:
    """p -> matrix p."""
    return lambda p: matrix @ p


def first(k: int, iterates: Iterable[Iterate]) -> list[Tensor]:
    """The first k solutions of CG (d,), or as many as there are."""
    return [step.v for _, step in zip(range(k), iterates, strict=False)]


@run_function("hf_kcu.error_terms", data=on("breast_cancer"))
def error_terms(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Theorem 5's error, taken apart on logistic regression: from exact retraining to Algorithm 1 as printed.

    Each step of the chain changes one thing; the differences add up to the whole error exactly. Norms
    relative to the true change |w_r - w|.
    """
    model = convex_model("breast_cancer")
    clients = convex_clients("breast_cancer", config["clients"], seed=config["seed"])
    everybody = pooled(clients)
    w, retained = optimum(model, everybody), pooled(clients[1:])
    w_r = optimum(model, retained, w)
    share = share_of(clients, LEAVING)
    g, eye = model.grad(w, *clients[LEAVING]), torch.eye(model.d, dtype=torch.float64)
    H_r, H_f = dense_hessian(model, w, retained), dense_hessian(model, w, [(1.0, clients[LEAVING])])
    damped = 0.01 * eye
    *_, cg = first(10, cg_iterates(times(H_f + damped), g))
    scale = min(1.0, 0.01 * float(w.norm()) / float(cg.norm()))
    odds = share / (1 - share)
    chain = {
        "exact retraining": w_r - w,
        "Taylor remainder": odds * torch.linalg.solve(H_r, g),
        "damping bias": odds * torch.linalg.solve(H_r + damped, g),
        "client's own Hessian": odds * torch.linalg.solve(H_f + damped, g),
        "CG error (k = 10)": odds * cg,
        "clip (beta = 0.01)": odds * scale * cg,
        "weight w for w/(1-w)": share * scale * cg,
        "sign": -share * scale * cg,
    }
    away = float((w_r - w).norm())
    names = list(chain)
    terms = {name: float((chain[name] - chain[before]).norm()) / away for before, name in pairwise(names)}
    errors = {name: float((step - (w_r - w)).norm()) / away for name, step in chain.items()}
    f, deletion = _asked(model, clients, LEAVING)
    printed = hf_kcu(f, w, deletion, form="printed") - w
    mismatch = float((printed - chain["sign"]).norm()) / max(float(printed.norm()), 1e-300)
    return {"terms": terms, "errors": errors, "share": share, "mismatch": mismatch}, None


# --- everything ------------------------------------------------------------------------------------------------------

PLANS: dict[RunFunction, list[dict[str, Any]]] = {
    exactness: [
        {"data": data, "split": split, "clients": 10, "seed": seed}
        for data in CONVEX
        for split in SPLITS
        for seed in SEEDS
    ],
    partial_deletion: [{"seed": seed} for seed in SEEDS],
    local_curvature: [{"clients": n, "seed": seed} for n in (5, 10, 20, 50, 100, 200) for seed in SEEDS],
    several_clients: [{"leaving": q, "seed": seed} for q in (1, 2, 3, 5) for seed in SEEDS],
    cg_convergence: [{"kappa": kappa, "steps": 100, "seed": 0} for kappa in (10.0, 100.0, 1000.0)],
    client_residuals: [{"steps": 30, "seed": 0}],
    condition_number: [{"kappa": 10.0**exponent, "seed": 0} for exponent in (1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5)],
    perturbation: [{"draws": 1000, "seed": 0}],
    error_terms: [{"clients": n, "seed": seed} for n in (10, 20, 100, 569) for seed in SEEDS[:5]],
}
