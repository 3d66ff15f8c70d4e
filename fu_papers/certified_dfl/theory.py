"""Certified DFL's lemmas, theorems and certificate as numbers, where the retrained model is known exactly.

Ridge regression on generated clients, L2-regularised logistic regression on breast cancer, all in float64: optima by
Newton's method with the dense Hessian, D-PSGD where it comes to rest. The algorithm itself is always
`fu_core.unlearning.certified`. `run_theory` keeps everything as records; certified_dfl_theory_figures draws it.
The numbers stand beside errata D1 to D13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from fu_core.unlearning.deletion import Deletion, Forget
from torch import Tensor, nn
from torch.func import grad, hessian, vmap

from fu_core.errors import CertificateViolation, NumericalFailure, check_choice
from fu_core.evaluation.audit import epsilon_lower_bound, model_direction, tuple_direction
from fu_core.federation.decentralised import (
    dpsgd_round,
    eigenvalues,
    metropolis,
    mixing_error,
    rho,
    ring,
    start,
    topology,
)
from fu_core.federation.local import Client, ClientOpt
from fu_core.models.flat import FlatModel
from fu_core.streams import numpy_stream, stream
from fu_core.unlearning.certified import (
    DU,
    Constants,
    Release,
    certified_unlearn,
    du_release,
    residual_radius,
    softmax_constants,
)
from fu_core.unlearning.curvature import dense_curvature, mean_gradient
from fu_core.unlearning.gaussian_mechanism import gaussian_delta, gaussian_epsilon, gaussian_sigma
from fu_core.unlearning.newton import newton_solver
from fu_papers.convex import OneLogit, convex_clients, convex_model, data_hash, optimum, pooled
from fu_papers.lab.context import RunContext
from fu_papers.lab.pool import map_kinds
from fu_papers.lab.record import Record, run_function
from fu_papers.lab.store import RecordStore

CLIENTS = 10  # N
EPSILON, DELTA = 1.0, 1e-5
FEATURES, SAMPLES, L2 = 6, 100, 0.1  # ridge regression: d, n, lambda
HELD = 40  # n of a breast cancer client: ten of them leave 169 of 569 rows for testing
SPLITS = ("iid", "dirichlet")
TOPOLOGIES = {"ring": 10, "erdos_renyi": 10, "complete": 10, "star": 10, "torus": 12}
ROUNDING = 1e-10  # of the distance between the worlds: nearer than this is equal


# --- problems --------------------------------------------------------------------------------------------------------


def ridge_model() -> FlatModel:
    """Ridge regression on `ridge_clients`."""
    return FlatModel(nn.Linear(FEATURES, 1, bias=False), task="regression", l2=L2)


def ridge_clients(heterogeneity: float, seed: int) -> list[Client]:
    """Ten clients with X (100, 6), y (100,); `heterogeneity` moves their scales and their true coefficients apart."""
    draws = stream(seed, "certified dfl ridge")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    truth, clients = normal(FEATURES), []
    for _ in range(CLIENTS):
        scales, own = torch.exp(heterogeneity * normal(FEATURES)), truth + heterogeneity * normal(FEATURES)
        X = normal(SAMPLES, FEATURES) * scales
        clients.append((X, X @ own + 0.5 * normal(SAMPLES)))
    return clients


def ridge_optimum(clients: Sequence[Client]) -> Tensor:
    """The minimiser (d,) of Eq. (1), the mean of the clients' ridge losses."""
    A = torch.stack([X.T @ X / len(y) for X, y in clients]).mean(dim=0) + L2 * torch.eye(FEATURES, dtype=torch.float64)
    b = torch.stack([X.T @ y / len(y) for X, y in clients]).mean(dim=0)
    return torch.linalg.solve(A, b)


@lru_cache(maxsize=1)
def unit_rows() -> Client:
    """Breast cancer, standardised, then every row divided by its length: |z| = 1, so that R = 1 (errata D9)."""
    ((x, y),) = convex_clients("breast_cancer", 1, seed=0)
    return x / x.norm(dim=1, keepdim=True), y


class Federation(NamedTuple):
    """Ten clients of 40 rows each, as the lemmas assume, and the 169 rows that nobody holds."""

    model: FlatModel
    clients: list[Client]
    test: Client


def unit_federation(l2: float, *, split: str = "iid", loss: str = "logistic", seed: int = 0) -> Federation:
    """Breast cancer dealt out at random, or with each client's share of benign rows from Dirichlet(0.3, 0.3).

    loss: "logistic", or "ridge" on targets -1 and 1. Random: rows and shares, from (seed, "unit federation").
    """
    check_choice("split", split, SPLITS)
    check_choice("loss", loss, ("logistic", "ridge"))
    x, y = unit_rows()
    draws = numpy_stream(seed, "unit federation")
    order = draws.permutation(len(y))
    train, rest = order[: CLIENTS * HELD], torch.from_numpy(order[CLIENTS * HELD :])
    if split == "iid":
        parts = [torch.from_numpy(part) for part in np.split(train, CLIENTS)]
    else:
        parts = _equal_shares(train, y, draws)
    model = FlatModel(OneLogit(x.shape[1]), l2=l2)
    if loss == "ridge":
        model, y = FlatModel(nn.Linear(x.shape[1], 1, bias=False), task="regression", l2=l2), 2.0 * y.double() - 1
    return Federation(model, [(x[part], y[part]) for part in parts], (x[rest], y[rest]))


def _equal_shares(train: np.ndarray, y: Tensor, draws: np.random.Generator) -> list[Tensor]:
    """Per client 40 rows, a share of them benign that is Beta(0.3, 0.3), as far as there are any left."""
    benign, malignant = (train[y[torch.from_numpy(train)].numpy() == c].tolist() for c in (1, 0))
    parts = []
    for _ in range(CLIENTS):
        wanted = round(HELD * draws.beta(0.3, 0.3))
        k = max(HELD - len(malignant), min(wanted, len(benign)))
        rows = [benign.pop() for _ in range(k)] + [malignant.pop() for _ in range(HELD - k)]
        parts.append(torch.tensor(rows)[torch.from_numpy(draws.permutation(HELD))])
    return parts


def unit_constants(l2: float, *, norm: float | None = None, loss: str = "logistic") -> Constants:
    """lambda, L, M on rows of length 1, for models of length <= norm. Default: 1 / lambda, Lemma 4, hence L = 2."""
    norm = 1 / l2 if norm is None else norm
    if loss == "logistic":
        return softmax_constants(1.0, l2, norm=norm, binary=True)
    return Constants(l2, norm + 1 + l2 * norm, 0.0)  # |z (z'x - y)| <= |x| + |y|, and a constant Hessian


def first(m: int, who: Sequence[int] = range(CLIENTS)) -> dict[int, Tensor]:
    """A request: each of `who` deletes its first m samples, which are in random order."""
    return {i: torch.arange(m) for i in who}


def kept_by(clients: Sequence[Client], forget: Forget) -> list[Client]:
    """What stays, of those who stay."""
    return list(Deletion.of(clients, forget).kept.values())


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of log y against log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# --- mixing ----------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.mixing")
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


# --- where D-PSGD stops ----------------------------------------------------------------------------------------------


def at_rest(model: FlatModel, clients: Sequence[Client], Q: Tensor, gamma: float, near: Tensor) -> Tensor:
    """The models (N, d) that D-PSGD with full batches and a constant step leaves: (I - Q) X + gamma grad f_i(x_i) = 0.

    By Newton's method from `near` (d,); on quadratics one step, (I - Q (x) I + gamma A) X = gamma r (methods T6).
    Clients must hold equally many samples. Deterministic.
    """
    x, y = torch.stack([x for x, _ in clients]), torch.stack([y for _, y in clients])
    N, d = len(Q), model.d
    apart = torch.kron(torch.eye(N, dtype=Q.dtype) - Q, torch.eye(d, dtype=Q.dtype))
    X = start(near, N)
    for _ in range(50):
        residual = X - Q @ X + gamma * vmap(grad(model.loss))(X, x, y)
        if float(residual.norm()) < 1e-12:
            return X
        A = torch.block_diag(*vmap(hessian(model.loss))(X, x, y))
        X = X - torch.linalg.solve(apart + gamma * A, residual.flatten()).view(N, d)
    raise NumericalFailure(f"no fixed point of D-PSGD found: a residual of {float(residual.norm()):.2g} is left")


def full_batches(gamma: float) -> ClientOpt:
    """One gradient step per round over all of a client's samples."""
    return ClientOpt(lr=gamma, batch_size=10**6)


@run_function("certified_dfl.fixed_point")
def fixed_point(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D6 and D1 on ridge regression, a ring of ten, a list entry per seed.

    farthest: max_i |x_i - x*|; mean: |x_bar - x*|; shift: |x' - x*| with a tenth deleted; difference: change of
    x_0 - x_5 by retraining, which shared noise leaves bare; rest: what another round of D-PSGD still moves.
    """
    model, Q, gamma = ridge_model(), metropolis(ring(CLIENTS)), config["gamma"]
    found: dict[str, list[float]] = {name: [] for name in ("farthest", "mean", "shift", "difference", "rest")}
    for seed in range(config["seeds"]):
        clients = ridge_clients(config["heterogeneity"], seed)
        kept = kept_by(clients, first(SAMPLES // 10))
        x, retrained = ridge_optimum(clients), ridge_optimum(kept)
        X, X_r = at_rest(model, clients, Q, gamma, x), at_rest(model, kept, Q, gamma, x)
        again = dpsgd_round(model, X, clients, Q, full_batches(gamma), seed=0, round=1)
        found["farthest"].append(float((X - x).norm(dim=1).max()))
        found["mean"].append(float((X.mean(dim=0) - x).norm()))
        found["shift"].append(float((retrained - x).norm()))
        found["difference"].append(float(((X[0] - X[5]) - (X_r[0] - X_r[5])).norm()))
        found["rest"].append(float((again - X).abs().max()))
    return found, None


# --- exactness -------------------------------------------------------------------------------------------------------


PRINTED = {"form": "printed"}
READINGS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> who deletes, options of certified_unlearn
    "all clients delete, printed": ("all", PRINTED),
    "all clients delete, corrected (one Hessian)": ("all", {}),
    "one client deletes, printed": ("one", PRINTED),
    "one client deletes, corrected": ("one", {}),
    "a client leaves, printed (1/N twice)": ("leaves", PRINTED),
    "a client leaves, weight 1": ("leaves", {**PRINTED, "weight": 1.0}),
    "a client leaves, corrected": ("leaves", {}),
}


@run_function("certified_dfl.exactness")
def exactness(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D2 and D4 on ridge regression, where M = 0 promises the retrained model itself.

    errors: per reading and seed, |x^ - x'| / |x - x'| (1: as far as doing nothing), a tenth deleted. growth: when all
    clients delete m of 100, |x^ - x'| per seed; of the sum over m samples a part grows like m, a part like its root.
    """
    Q, model, h = metropolis(ring(CLIENTS)), ridge_model(), config["heterogeneity"]

    def distance(clients: list[Client], forget: Forget, options: Mapping[str, Any]) -> tuple[float, float]:
        x, retrained = ridge_optimum(clients), ridge_optimum(kept_by(clients, forget))
        X = certified_unlearn(model, start(x, CLIENTS), clients, forget, Q, **options)
        return float((X - retrained).norm(dim=1).max()), float((x - retrained).norm())

    requests: dict[str, Forget] = {"all": first(SAMPLES // 10), "one": first(SAMPLES // 10, [0]), "leaves": 0}
    errors: dict[str, list[float]] = {name: [] for name in READINGS}
    growth: list[dict[str, Any]] = [{"m": m, "printed": [], "corrected": []} for m in config["growth"]]
    for seed in range(config["seeds"]):
        clients = ridge_clients(h, seed)
        for name, (who, options) in READINGS.items():
            error, away = distance(clients, requests[who], options)
            errors[name].append(error / away)
        for row in growth if seed < config["growth_seeds"] else []:
            for form in ("printed", "corrected"):
                row[form].append(distance(clients, first(row["m"]), {"form": form})[0])
    return {"errors": errors, "growth": growth}, None


# --- Lemmas 2 and 3 --------------------------------------------------------------------------------------------------


@run_function("certified_dfl.bounds")
def bounds(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Lemmas 2 and 3 under their own assumptions: ten clients of 40, each deletes m, the optimum reached exactly.

    Per m: shift |x' - x| and its bound; |x^ - x'| of the corrected and of the printed step, and their bound; the
    residual radius of both (errata D6). L holds for models as long as x and x', the smallest L that is honest.
    """
    loss, l2 = config["loss"], config["l2"]
    model, clients, _ = unit_federation(l2, split=config["split"], loss=loss, seed=config["seed"])
    Q, x = metropolis(ring(CLIENTS)), optimum(model, pooled(clients))
    rows = []
    for m in config["deleted"]:
        retrained = optimum(model, pooled(kept_by(clients, first(m))), x)
        constants = unit_constants(l2, norm=max(float(x.norm()), float(retrained.norm())), loss=loss)
        row = {"m": m, "share": m / HELD, "shift": float((retrained - x).norm()),
               "lemma_2": constants.distance(m, HELD), "lemma_3": constants.sensitivity(m, HELD)}  # fmt: skip
        for form in ("corrected", "printed"):
            released = certified_unlearn(model, start(x, CLIENTS), clients, first(m), Q, form=form)[0]
            row[form] = float((released - retrained).norm())
            row[f"radius_{form}"] = residual_radius(model, released, clients, first(m))
        rows.append(row)

    def violated(measured: str, bound: str) -> int:
        return sum(row[measured] > row[bound] + ROUNDING * row["shift"] for row in rows)

    return {
        "rows": rows,
        "violations": {
            "Lemma 2": violated("shift", "lemma_2"),
            "Lemma 3, corrected": violated("corrected", "lemma_3"),
            "Lemma 3, printed": violated("printed", "lemma_3"),
            "residual radius": sum(violated(form, f"radius_{form}") for form in ("corrected", "printed")),
        },
    }, None


# --- noise -----------------------------------------------------------------------------------------------------------


def noisy_accuracy(models: Tensor, sigma: float, test: Client, noise: Tensor) -> float:
    """Test accuracy, averaged over `models` (K, d) and over `noise` (n, d), draws from N(0, I), times sigma."""
    x, y = test
    logits = (x @ models.T)[:, :, None] + sigma * (x @ noise.T)[:, None, :]  # (samples, K, n)
    return float(((logits > 0) == (y > 0)[:, None, None]).double().mean())


def _normal(n: int, d: int, *names: int | str) -> Tensor:
    return torch.randn(n, d, generator=stream(0, "certified dfl theory", *names), dtype=torch.float64)


@run_function("certified_dfl.calibration")
def calibration(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D9: what noise the printed calibration asks for when ten clients each delete a tenth, and its price.

    sigma_message: of each nu_c, which Theorem 1 takes for the noise of a model; sigma_printed: what a model really
    gets, sigma_message / sqrt(N) (D3); sigma_corrected: for a budget of twice the measured residual radius.
    """
    l2 = config["l2"]
    model, clients, test = unit_federation(l2, seed=config["seed"])
    forget, Q, x = first(config["m"]), metropolis(ring(CLIENTS)), optimum(model, pooled(clients))
    retrained = optimum(model, pooled(kept_by(clients, forget)), x)

    def release(config_: DU, **how: Any) -> Release:
        return du_release(model, start(x, CLIENTS), clients, forget, Q, config_,
                          epsilon=config["epsilon"], delta=config["delta"], **how)  # fmt: skip

    radius = residual_radius(model, release(DU(), budget=1e6).noiseless[0], clients, forget)
    printed = release(DU(form="printed"), constants=unit_constants(l2))
    corrected = release(DU(), budget=2 * radius)
    assert printed.certificate is not None
    noise = _normal(config["draws"], model.d, "calibration")
    message = gaussian_sigma(
        printed.certificate.radius, epsilon=config["epsilon"], delta=config["delta"], mechanism="classical"
    )

    def accuracy(found: Release, sigma: float) -> float:
        return noisy_accuracy(found.noiseless[:1], sigma, test, noise)

    return {
        "delta_f": printed.certificate.radius,
        "distance": float((corrected.noiseless[0] - retrained).norm()),
        "radius": radius,
        "norm": float(x.norm()),
        "sigma_message": message,
        "sigma_printed": printed.sigma,
        "sigma_corrected": corrected.sigma,
        "accuracy": accuracy(corrected, 0.0),
        "accuracy_message": accuracy(printed, message),
        "accuracy_printed": accuracy(printed, printed.sigma),
        "accuracy_corrected": accuracy(corrected, corrected.sigma),
    }, None


@run_function("certified_dfl.noise_scale")
def noise_scale(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D3: what the noise that r requesters add really certifies, with Lemma 3's bound as the sensitivity.

    Each of r messages has sigma for Delta F = 1 and weight 1 / N; the bound for r requesters is (r / N)^2 Delta F.
    """
    N, delta = config["clients"], config["delta"]
    rows = []
    for claimed in config["epsilons"]:
        sigma = gaussian_sigma(1.0, epsilon=claimed, delta=delta, mechanism="classical")
        for r in (1, round(N ** (2 / 3)), N):
            sensitivity, published = (r / N) ** 2, math.sqrt(r) / N * sigma
            rows.append(
                {
                    "claimed": claimed,
                    "requesters": r,
                    "certified": gaussian_epsilon(sensitivity, published, delta=delta),
                    "delta": gaussian_delta(sensitivity, published, epsilon=claimed),
                }
            )
    return {"rows": rows}, None


# --- audit -----------------------------------------------------------------------------------------------------------


OUTPUTS = ("mean model", "one client's model", "all models")


class Worlds(NamedTuple):
    """A: what the mechanism publishes, without its noise (K, d); B: what retraining publishes, likewise.

    Both get noise of standard deviation `sigma` in every model, `shared` by all models or drawn for each.
    """

    a: Tensor
    b: Tensor
    sigma: float
    shared: bool

    def direction(self, output: str) -> Tensor:
        """The attacker's weights (K, d): the score of published models X is sum(weights * X).

        Neyman and Pearson's for Gaussian noise; of all models together, what shared noise leaves bare, if anything.
        """
        check_choice("output", output, OUTPUTS)
        weights = torch.zeros_like(self.a)
        bare = tuple_direction(self.a, self.b) if self.shared else model_direction(self.a, self.b)
        if output == "all models" and bare is not None:
            return bare.view_as(self.a)
        if output == "one client's model":
            weights[0] = self._along(self.a[0], self.b[0])
            return weights
        return weights + self._along(self.a.mean(dim=0), self.b.mean(dim=0)) / len(self.a)

    @staticmethod
    def _along(a: Tensor, b: Tensor) -> Tensor:
        found = model_direction(a, b)
        return torch.eye(len(a), dtype=a.dtype)[0] if found is None else found  # equal worlds: any direction will do

    def scores(self, output: str, draws: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`draws` scores of each world, exactly as projected releases are distributed: a Gaussian each."""
        weights = self.direction(output)
        spread = self.sigma * float(weights.sum(dim=0).norm() if self.shared else weights.norm())
        a, b = (float((weights * world).sum()) for world in (self.a, self.b))
        noise = spread * torch.randn(2, draws, generator=generator, dtype=torch.float64)
        return a + noise[0], b + noise[1]

    def epsilon(self, output: str, delta: float) -> float:
        """The true epsilon of this output: of two Gaussians, or inf if the worlds differ where there is no noise."""
        mean_a, mean_b = self.a.mean(dim=0), self.b.mean(dim=0)
        sensitivity, sigma = _apart(mean_a, mean_b), self.sigma if self.shared else self.sigma / math.sqrt(len(self.a))
        if output == "one client's model":
            sensitivity, sigma = _apart(self.a[0], self.b[0]), self.sigma
        elif output == "all models" and not self.shared:
            sensitivity, sigma = _apart(self.a, self.b), self.sigma
        elif output == "all models" and tuple_direction(self.a, self.b) is not None:
            return math.inf
        return gaussian_epsilon(sensitivity, sigma, delta=delta)


def _apart(a: Tensor, b: Tensor) -> float:
    return 0.0 if model_direction(a, b) is None else float((a - b).norm())


class Trained(NamedTuple):
    """Models (N, d) trained on everything, and by the same training without what is deleted; x' exactly."""

    federation: Federation
    X: Tensor
    X_r: Tensor
    exact: Tensor


def trained(config: Mapping[str, Any], loss: str) -> Trained:
    """`models`: "consensus", everybody at the minimiser, or "dpsgd", where a constant step leaves them."""
    federation = unit_federation(config["l2"], split=config["split"], loss=loss, seed=config["seed"])
    model, clients, _ = federation
    kept = kept_by(clients, first(config["m"]))
    x = optimum(model, pooled(clients))
    exact = optimum(model, pooled(kept), x)
    if config["models"] == "consensus":
        return Trained(federation, start(x, CLIENTS), start(exact, CLIENTS), exact)
    Q, gamma = metropolis(ring(CLIENTS)), config["gamma"]
    X, X_r = (at_rest(model, held, Q, gamma, near) for held, near in ((clients, x), (kept, exact)))
    return Trained(federation, X, X_r, exact)


class Claim(NamedTuple):
    """What is claimed about the difference of two worlds; reference: what world B holds."""

    mechanism: str
    reference: str  # "same training" without what is deleted, or "x'", the minimiser
    epsilon: float
    trained: Trained
    worlds: Worlds


@run_function("certified_dfl.audit")
def audit(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim D10: can the worlds be told apart better than the certificate allows? Methods 6.6.

    World A publishes what DU makes of the trained models, world B the retrained models, with the same noise (errata
    D7); everything but the noise is deterministic. rows: per mechanism and output the claimed epsilon, the audited
    lower bound and whether it exceeds it ("refuted"), the true epsilon (None: infinite) and whether it does ("broken"),
    test accuracy, and what world B holds (see Claim). refused: mechanisms that would not publish, with radius and
    budget. largest: more than this no audit can prove.
    """
    here, ridge = trained(config, "logistic"), trained(config, "ridge")
    noise = _normal(config["accuracy_draws"], here.X.shape[1], "audit accuracy")
    corrected, refused = _corrected_claims(config, here)
    rows = []
    for claim in (*_printed_claims(config, here, ridge, noise), *corrected):
        worlds = claim.worlds
        accuracy = noisy_accuracy(worlds.a, worlds.sigma, claim.trained.federation.test, noise)
        for output in OUTPUTS:
            true = worlds.epsilon(output, config["delta"])
            draws = stream(config["seed"], "audit", claim.mechanism, claim.reference, output)
            audited = epsilon_lower_bound(*worlds.scores(output, config["draws"], draws), delta=config["delta"])
            rows.append(
                {
                    "mechanism": claim.mechanism,
                    "output": output,
                    "reference": claim.reference,
                    "claimed": claim.epsilon,
                    "audited": audited.epsilon,
                    "true": true if math.isfinite(true) else None,
                    "refuted": audited.epsilon > claim.epsilon,
                    "broken": true > claim.epsilon,
                    "sigma": worlds.sigma,
                    "distance": float((worlds.a.mean(dim=0) - worlds.b.mean(dim=0)).norm()),
                    "accuracy": accuracy,
                }
            )
    return {
        "rows": rows,
        "refused": refused,
        "trained_accuracy": noisy_accuracy(here.X, 0.0, here.federation.test, noise[:1]),
        "retrained_accuracy": noisy_accuracy(here.X_r, 0.0, here.federation.test, noise[:1]),
        "largest": audited.largest,
    }, None


def _release(config: Mapping[str, Any], t: Trained, du: DU, **how: Any) -> Release:
    model, clients, _ = t.federation
    Q = metropolis(ring(CLIENTS))
    return du_release(model, t.X, clients, first(config["m"]), Q, du, delta=config["delta"], **how)


def _printed_claims(config: Mapping[str, Any], here: Trained, ridge: Trained, noise: Tensor) -> list[Claim]:
    """Algorithm 1: its own calibration; the most noise that costs at most a point of test accuracy, which claims the
    epsilon that Lemma 3's bound gives it; and its own calibration on ridge regression, sigma = 0."""
    epsilon, constants = config["epsilon"], unit_constants(config["l2"])
    printed = _release(config, here, DU(form="printed"), epsilon=epsilon, constants=constants)
    worlds = Worlds(printed.noiseless, here.X_r, printed.sigma, shared=True)
    tuned = largest_harmless_sigma(printed.noiseless, here.federation.test, noise, loss=0.01)
    lemma_3 = gaussian_epsilon(constants.sensitivity(config["m"], HELD), tuned, delta=config["delta"])
    flat = unit_constants(config["l2"], loss="ridge")
    on_ridge = _release(config, ridge, DU(form="printed"), epsilon=epsilon, constants=flat)
    ridge_worlds = Worlds(on_ridge.noiseless, ridge.X_r, on_ridge.sigma, shared=True)
    same = "same training"
    return [
        Claim("printed, worst-case constants", same, epsilon, here, worlds),
        Claim("printed, noise that costs a point", same, lemma_3, here, worlds._replace(sigma=tuned)),
        Claim("printed, ridge", same, epsilon, ridge, ridge_worlds),
    ]


def _corrected_claims(config: Mapping[str, Any], here: Trained) -> tuple[list[Claim], list[dict[str, Any]]]:
    """The budget rule, for one model that all publish, and for a model and noise of its own for each, whose budget is
    that of ten models together. With D-PSGD, x' is what the certificate is about, and D-PSGD without the deleted
    samples, averaged, is not: both are compared with."""
    claims, refused, epsilon = [], [], config["epsilon"]
    for name, noise, share in (("one model", "consensus", 1.0), ("noise for each", "independent", math.sqrt(CLIENTS))):
        du, budget, shared = DU(gradient="retained", noise=noise), share * config["budget"], noise == "consensus"
        try:
            found = _release(config, here, du, epsilon=epsilon, budget=budget)
        except CertificateViolation:
            model, clients, _ = here.federation
            free = _release(config, here, du).noiseless
            radii = [residual_radius(model, w, clients, first(config["m"])) for w in free]
            radius = max(radii) if shared else math.hypot(*radii)
            refused.append({"mechanism": f"corrected, {name}", "radius": radius, "budget": budget})
            continue
        worlds = Worlds(found.noiseless, start(here.exact, CLIENTS), found.sigma, shared)
        claims.append(Claim(f"corrected, {name}", "x'", epsilon, here, worlds))
        if shared and config["models"] == "dpsgd":
            averaged = start(here.X_r.mean(dim=0), CLIENTS)
            claims.append(Claim(f"corrected, {name}", "same training", epsilon, here, worlds._replace(b=averaged)))
    return claims, refused


def largest_harmless_sigma(models: Tensor, test: Client, noise: Tensor, *, loss: float) -> float:
    """The most noise, of 121 values from 1e-4 to 100, that costs at most `loss` of test accuracy on average."""
    least = noisy_accuracy(models, 0.0, test, noise[:1]) - loss
    grid = torch.logspace(-4, 2, 121, dtype=torch.float64).tolist()
    return max(sigma for sigma in grid if noisy_accuracy(models, sigma, test, noise) >= least)


# --- Theorem 2 -------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.risk")
def risk(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Theorem 2: f(x~) - f(x*) of the printed algorithm on all data, the deleted included, against m/n.

    who: "random" samples, averaged over subsets, or each client's malignant ones, "one class". noise_free:
    f(x^) - f(x*); noise: E f(x^ + nu) - f(x^), over +-nu; first, second: the terms of Eq. (13) as (14) and (15) have
    them, the second with sqrt(ln(1/delta)) and a factor 2. slopes: log-log, of all four. violations: how often
    noise_free + noise is above first + second, whose L is that of models up to 1 / lambda long; noise reaches farther.
    """
    l2, epsilon, delta = config["l2"], config["epsilon"], config["delta"]
    model, clients, _ = unit_federation(l2, seed=config["seed"])
    ((_, data),) = pooled(clients)
    Q, x, constants = metropolis(ring(CLIENTS)), optimum(model, pooled(clients)), unit_constants(l2)
    f_all = vmap(lambda w: model.loss(w, *data))
    least, nu = f_all(x[None])[0], _normal(config["draws"], model.d, "risk")
    orders = [_orders(clients, config["who"], subset) for subset in range(config["subsets"])]
    found: dict[str, list[float]] = {name: [] for name in ("share", "noise_free", "noise", "first", "second")}
    for m in config["deleted"]:
        clean, noisy = [], []
        for order in orders:
            forget = {i: order[i][:m] for i in range(CLIENTS)}
            release = du_release(model, start(x, CLIENTS), clients, forget, Q, DU(form="printed"),
                                 epsilon=epsilon, delta=delta, constants=constants)  # fmt: skip
            unlearned = release.noiseless.mean(dim=0)
            clean.append(float(f_all(unlearned[None])[0] - least))
            moved = torch.cat([unlearned + release.sigma * nu, unlearned - release.sigma * nu])
            noisy.append(float(f_all(moved).mean() - least) - clean[-1])
        found["share"].append(m / HELD)
        found["noise_free"].append(float(np.mean(clean)))
        found["noise"].append(float(np.mean(noisy)))
        lam, L, _ = constants
        found["first"].append(m * L**2 / ((HELD - m) * lam))
        found["second"].append(L * math.sqrt(model.d * math.log(1 / delta)) * constants.sensitivity(m, HELD) / epsilon)
    slopes = {name: slope(found["share"], found[name]) for name in ("noise_free", "noise", "first", "second")}
    sums = zip(found["noise_free"], found["noise"], found["first"], found["second"], strict=True)
    violations = sum(clean + noisy > one + two for clean, noisy, one, two in sums)
    return {**found, "slopes": slopes, "violations": violations}, None


def _orders(clients: Sequence[Client], who: str, subset: int) -> list[Tensor]:
    """Per client the order in which its samples are deleted."""
    check_choice("who", who, ("random", "one class"))
    orders = []
    for i, (_, y) in enumerate(clients):
        order = torch.randperm(len(y), generator=stream(subset, "risk", i))
        orders.append(order if who == "random" else order[y[order] == 0])
    return orders


# --- Fisher ----------------------------------------------------------------------------------------------------------


STEPS: dict[str, dict[str, Any]] = {
    "full Fisher, Eq. (7) as printed": {"curvature": "fisher", "loss_fisher": True},
    "full Fisher, data term plus L2": {"curvature": "fisher"},
    "diagonal Fisher, as printed": {"curvature": "diagonal_fisher", "loss_fisher": True},
    "diagonal Fisher, data term plus L2": {"curvature": "diagonal_fisher"},
}


@run_function("certified_dfl.fisher")
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
        moves |= {name: newton_solver(model, [(w, parts)], **how)(g) for name, how in STEPS.items()}
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
    return FlatModel(OneLogit(d)), (x, y)


# --- everything ------------------------------------------------------------------------------------------------------


def run_theory(store: RecordStore, jobs: int | None = None) -> dict[str, list[Record]]:
    """All of the above, by the name of the run function; about 20 seconds on one core."""
    certified = {"epsilon": EPSILON, "delta": DELTA, "seed": 0}
    plans: dict[Any, list[dict[str, Any]]] = {
        mixing: [
            {"topology": name, "clients": n, "p": 0.4, "steps": 100, "seed": 0} for name, n in TOPOLOGIES.items()
        ],
        fixed_point: [{"gamma": gamma, "heterogeneity": 0.7, "seeds": 5} for gamma in (0.05, 0.01, 0.001)],
        exactness: [
            {"heterogeneity": h, "seeds": 20, "growth": [2, 4, 8, 16], "growth_seeds": 10} for h in (0.0, 0.3, 0.7)
        ],
        bounds: [
            {"loss": loss, "split": split, "l2": l2, "deleted": [1, 2, 4, 8], "seed": 0}
            for loss in ("logistic", "ridge")
            for split in SPLITS
            for l2 in (0.01, 0.1, 1.0, 10.0)
        ],
        calibration: [{"l2": l2, "m": 4, "draws": 200, **certified} for l2 in (0.001, 0.01, 0.1, 0.3, 1.0)],
        noise_scale: [{"clients": n, "epsilons": [0.5, 1.0, 3.0], "delta": DELTA} for n in (10, 100)],
        audit: [
            {"l2": l2, "m": m, "budget": budget, "models": models, "gamma": gamma, "split": "dirichlet",
             "draws": 4000, "accuracy_draws": 200, **certified}
            for l2, m, budget in ((0.001, 8, 0.3), (0.01, 4, 0.01))
            for models, gamma in (("consensus", 0.0), ("dpsgd", 0.1), ("dpsgd", 1.0))
        ],
        risk: [
            {"l2": l2, "who": who, "subsets": subsets, "deleted": list(range(1, 9)), "draws": 100, **certified}
            for l2 in (0.1, 1.0)
            for who, subsets in (("random", 4), ("one class", 1))
        ],
        fisher: [
            *({"problem": name, "draws": 1, "seed": 0} for name in ("well specified", "labels flipped")),
            {"problem": "breast cancer", "draws": 10, "seed": 0},
            *({"problem": "least squares", "scale": s, "draws": 1, "seed": 0} for s in (0.1, 1.0, 3.0)),
        ],
    }  # fmt: skip
    return map_kinds(plans, store=store, jobs=jobs, data_hash=lambda fn: partial(_hash_of, fn.__name__))


def _hash_of(kind: str, config: Mapping[str, Any]) -> str:
    on_breast_cancer = kind in ("bounds", "calibration", "audit", "risk") or config.get("problem") == "breast cancer"
    return data_hash("breast_cancer" if on_breast_cancer else "")
