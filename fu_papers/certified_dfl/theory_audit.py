"""Claim D10: an attacker who knows both worlds against what the certificates promise (errata D1, D7)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation, check_choice
from fu_core.evaluation.audit import epsilon_lower_bound, model_direction, tuple_direction
from fu_core.federation.decentralised import start
from fu_core.federation.local import Client
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.certificate import Constants, Privacy, residual_radius
from fu_core.unlearning.du import DU, Release, du, du_release
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon
from fu_papers.certified_dfl.theory_mixing import at_rest
from fu_papers.certified_dfl.theory_noise import noisy_accuracy
from fu_papers.certified_dfl.theory_problems import (
    CLIENTS,
    HELD,
    Problem,
    breast_cancer,
    first,
    kept_by,
    on_a_ring,
    standard_normal,
    unit_constants,
    unit_problem,
)
from fu_papers.convex import optimum, pooled
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function

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


class Twins(NamedTuple):
    """Models (N, d) trained on everything, and by the same training without what is deleted; x' exactly."""

    problem: Problem
    deletion: Deletion
    X: Tensor
    X_r: Tensor
    exact: Tensor


def twins(config: Mapping[str, Any], loss: str) -> Twins:
    """`models`: "consensus", everybody at the minimiser, or "dpsgd", where a constant step leaves them."""
    problem = unit_problem(config["l2"], split=config["split"], loss=loss, seed=config["seed"])
    model, clients, _ = problem
    deletion = first(config["m"], clients)
    kept, x = kept_by(deletion), optimum(model, pooled(clients))
    exact = optimum(model, pooled(kept), x)
    if config["models"] == "consensus":
        return Twins(problem, deletion, start(x, CLIENTS), start(exact, CLIENTS), exact)
    gamma = config["gamma"]
    X, X_r = (at_rest(on_a_ring(model, held, gamma), near) for held, near in ((clients, x), (kept, exact)))
    return Twins(problem, deletion, X, X_r, exact)


class Claim(NamedTuple):
    """What is claimed about the difference of two worlds; reference: what world B holds."""

    mechanism: str
    reference: str  # "same training" without what is deleted, or "x'", the minimiser
    epsilon: float
    twins: Twins
    worlds: Worlds


@run_function("certified_dfl.audit", data=breast_cancer)
def audit(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim D10: can the worlds be told apart better than the certificate allows? Methods 6.6.

    World A publishes what DU makes of the trained models, world B the retrained models, with the same noise (errata
    D7); everything but the noise is deterministic. rows: per mechanism and output the claimed epsilon, the audited
    lower bound and whether it exceeds it ("refuted"), the true epsilon (None: infinite) and whether it does ("broken"),
    test accuracy, and what world B holds (see Claim). refused: mechanisms that would not publish, with radius and
    budget. largest: more than this no audit can prove.
    """
    here, ridge = twins(config, "logistic"), twins(config, "ridge")
    noise = standard_normal(config["accuracy_draws"], here.X.shape[1], "audit accuracy")
    corrected, refused = _corrected_claims(config, here)
    rows = []
    for claim in (*_printed_claims(config, here, ridge, noise), *corrected):
        worlds = claim.worlds
        accuracy = noisy_accuracy(worlds.a, worlds.sigma, claim.twins.problem.test, noise)
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
        "trained_accuracy": noisy_accuracy(here.X, 0.0, here.problem.test, noise[:1]),
        "retrained_accuracy": noisy_accuracy(here.X_r, 0.0, here.problem.test, noise[:1]),
        "largest": audited.largest,
    }, None


def _printed_claims(config: Mapping[str, Any], here: Twins, ridge: Twins, noise: Tensor) -> list[Claim]:
    """Algorithm 1: its own calibration; the most noise that costs at most a point of test accuracy, which claims the
    epsilon that Lemma 3's bound gives it; and its own calibration on ridge regression, sigma = 0."""
    epsilon, constants = config["epsilon"], unit_constants(config["l2"])

    def release(of: Twins, constants: Constants) -> Release:
        privacy = Privacy(epsilon=epsilon, delta=config["delta"], constants=constants)
        return du_release(of.problem.federation, of.X, of.deletion, DU(form="printed"), privacy)

    printed = release(here, constants)
    worlds = Worlds(printed.noiseless, here.X_r, printed.sigma, shared=True)
    tuned = largest_harmless_sigma(printed.noiseless, here.problem.test, noise, loss=0.01)
    lemma_3 = gaussian_epsilon(constants.sensitivity(config["m"], HELD), tuned, delta=config["delta"])
    on_ridge = release(ridge, unit_constants(config["l2"], loss="ridge"))
    ridge_worlds = Worlds(on_ridge.noiseless, ridge.X_r, on_ridge.sigma, shared=True)
    same = "same training"
    return [
        Claim("printed, worst-case constants", same, epsilon, here, worlds),
        Claim("printed, noise that costs a point", same, lemma_3, here, worlds._replace(sigma=tuned)),
        Claim("printed, ridge", same, epsilon, ridge, ridge_worlds),
    ]


def _corrected_claims(config: Mapping[str, Any], here: Twins) -> tuple[list[Claim], list[dict[str, Any]]]:
    """The budget rule, for one model that all publish, and for a model and noise of its own for each, whose budget is
    that of ten models together. With D-PSGD, x' is what the certificate is about, and D-PSGD without the deleted
    samples, averaged, is not: both are compared with."""
    claims, refused, epsilon = [], [], config["epsilon"]
    for name, noise, share in (("one model", "consensus", 1.0), ("noise for each", "independent", math.sqrt(CLIENTS))):
        options, shared = DU(gradient="retained", noise=noise), noise == "consensus"
        privacy = Privacy(epsilon=epsilon, delta=config["delta"], budget=share * config["budget"])
        f, budget = here.problem.federation, privacy.budget
        try:
            found = du_release(f, here.X, here.deletion, options, privacy)
        except CertificateViolation:
            free = du(f, here.X, here.deletion, options)
            radii = [residual_radius(f.model, w, here.deletion) for w in free]
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
