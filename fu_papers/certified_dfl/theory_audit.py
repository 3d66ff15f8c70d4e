"""Claim D10: an attacker who knows both worlds against what the certificates promise (errata D1, D7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core.evaluation.audit import model_direction, tuple_direction
from fu_core.evaluation.release_audit import ALPHA, ReleaseAudit, audit_release
from fu_core.federation.decentralised import start
from fu_core.federation.local import Client
from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.certificate import Constants, Privacy, residual_radius
from fu_core.unlearning.du import DU, Release, du, du_release
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon
from fu_core.unlearning.noise import Noise, rehearsal
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

OURS = "printed, ΔF as measured"  # the printed noise with a calibration that the paper does not have: told, not judged
OUTPUTS: dict[str, Callable[[Tensor], Tensor]] = {  # which part of the published models (K, d) is seen
    "mean model": lambda models: models.mean(dim=0, keepdim=True),
    "one client's model": lambda models: models[:1],
    "all models": lambda models: models,
}
FIRST = next(iter(OUTPUTS))  # which stands for all three where all publish one model
LARGEST_CLAIM = 100.0  # a larger epsilon promises nothing, and that it is kept counts for nothing
TABLES = 2  # of audits, this one's and that of whole releases, which claim D10 counts together: they share one alpha
ROUNDING = 1.001  # budgets are this much above what is measured


class Worlds(NamedTuple):
    """A: what the mechanism publishes, without its noise (K, d); B: what retraining publishes, likewise.

    Both get noise of standard deviation `sigma` in every model, `shared` by all models or drawn for each.
    """

    a: Tensor
    b: Tensor
    sigma: float
    shared: bool

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

    @property
    def alike(self) -> bool:
        """Do all publish one model, in both worlds? Then the three outputs are one."""
        return self.shared and all(bool((models == models[:1]).all()) for models in (self.a, self.b))


def _apart(a: Tensor, b: Tensor) -> float:
    return 0.0 if model_direction(a, b) is None else float((a - b).norm())


class Twins(NamedTuple):
    """Models (N, d) trained on everything, and (K, d) by the same training of those who stay without what is deleted;
    x' exactly (d,)."""

    problem: Problem
    deletion: Deletion
    X: Tensor
    X_r: Tensor
    exact: Tensor


def twins(config: Mapping[str, Any], loss: str) -> Twins:
    """`request`: the first m "samples" of everybody, or the first "client" as a whole. `models`: "consensus", everybody
    at the minimiser, or "dpsgd", where a constant step leaves them."""
    problem = unit_problem(config["l2"], split=config["split"], loss=loss, seed=config["seed"])
    model, clients, _ = problem
    leaves = config["request"] == "client"
    deletion = first(HELD, clients, [0]) if leaves else first(config["m"], clients)
    kept, x = kept_by(deletion), optimum(model, pooled(clients))
    exact = optimum(model, pooled(kept), x)
    if config["models"] == "consensus":
        return Twins(problem, deletion, start(x, CLIENTS), start(exact, len(kept)), exact)
    gamma = config["gamma"]
    X, X_r = (at_rest(on_a_ring(model, held, gamma), near) for held, near in ((clients, x), (kept, exact)))
    return Twins(problem, deletion, X, X_r, exact)


class Claim(NamedTuple):
    """What is claimed about the difference of two worlds; reference: what world B holds.

    released: by the mechanism, in world A; options: of `du_release`, which publishes in both.
    """

    mechanism: str
    reference: str  # "same training" without what is deleted, or "x'", the minimiser
    epsilon: float
    twins: Twins
    options: DU
    released: Release
    worlds: Worlds


@run_function("certified_dfl.audit", data=breast_cancer)
def audit(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim D10: can the worlds be told apart better than the certificate allows? Methods 6.6.

    World A publishes what DU makes of the trained models, world B the retrained models, with the same noise (errata
    D7). rows: per mechanism and output the claimed epsilon, whether it counts as a promise (LARGEST_CLAIM), what an
    audit of `draws` releases per world proves, by which score, and would prove in the median if the claim were tight
    ("expected"), whether it exceeds the claim ("refuted"), the true epsilon (None: infinite) and whether it does
    ("broken"), test accuracy, and what world B holds (see Claim). distinct: False where all publish one model and the
    row repeats the first one's. `together` audits share one alpha. largest: more than this no audit can prove.

    Covered is the noise, at high resolution: releases come out of `du_release`, but training, Newton's steps and the
    certificate, which draw nothing here, are done once. `theory_whole` begins every release with the data.
    Random: the noise, from the seed.
    """
    here, ridge = twins(config, "logistic"), twins(config, "ridge")
    noise = standard_normal(config["accuracy_draws"], here.X.shape[1], "audit accuracy")
    rows: list[dict[str, Any]] = []
    for claim in (*_printed_claims(config, here, ridge, noise), *_corrected_claims(config, here)):
        worlds = claim.worlds
        accuracy = noisy_accuracy(worlds.a, worlds.sigma, claim.twins.problem.test, noise)
        for output, found in audited(claim, config).items():
            true = worlds.epsilon(output, config["delta"])
            rows.append(
                {
                    "mechanism": claim.mechanism,
                    "output": output,
                    "distinct": not (worlds.alike and output != FIRST),
                    "planted": False,
                    "reference": claim.reference,
                    "claimed": claim.epsilon,
                    "counted": claim.epsilon <= LARGEST_CLAIM,
                    "audited": found.proved,
                    "by": found.by,
                    "expected": found.expected,
                    "largest": found.largest,
                    "true": true if math.isfinite(true) else None,
                    "refuted": found.refuted,
                    "broken": true > claim.epsilon,
                    "sigma": worlds.sigma,
                    "distance": float((worlds.a.mean(dim=0) - worlds.b.mean(dim=0)).norm()),
                    "accuracy": accuracy,
                }
            )
    return {
        "rows": rows,
        "trained_accuracy": noisy_accuracy(here.X, 0.0, here.problem.test, noise[:1]),
        "retrained_accuracy": noisy_accuracy(here.X_r, 0.0, here.problem.test, noise[:1]),
        "largest": max(row["largest"] for row in rows),
    }, None


def audited(claim: Claim, config: Mapping[str, Any]) -> dict[str, ReleaseAudit]:
    """An audit of every output, all of the same releases, which are kept: thousands of ten small models.

    Where all publish one model there is one audit, of that model.
    """
    f, worlds, published = claim.twins.problem.federation, claim.worlds, dict[int, Tensor]()
    number = stream_seed(config["seed"], "audit", claim.mechanism, claim.reference)

    with rehearsal():
        privacy = Privacy(sigma=worlds.sigma, noise=Noise(rehearsed=number))

        def release(world: Tensor, k: int) -> Tensor:
            if k not in published:
                plain = replace(claim.released, noiseless=world)
                published[k] = du_release(
                    f, claim.twins.X, claim.twins.deletion, claim.options, privacy, plain=plain
                ).models
            return published[k]

        def of_output(seen: Callable[[Tensor], Tensor]) -> ReleaseAudit:
            return audit_release(
                lambda world, k: seen(release(world, k)),
                (worlds.a, worlds.b),
                claimed=claim.epsilon,
                delta=config["delta"],
                draws=config["draws"],
                alpha=ALPHA / config["together"],
                seed=config["seed"],
            )

        if worlds.alike:
            return dict.fromkeys(OUTPUTS, of_output(lambda models: models[:1]))
        return {output: of_output(seen) for output, seen in OUTPUTS.items()}


def _printed_claims(config: Mapping[str, Any], here: Twins, ridge: Twins, noise: Tensor) -> list[Claim]:
    """Algorithm 1: its own calibration; the same as tight as can be, with the distance that is there for Lemma 3's
    bound; the most noise that costs at most a point of test accuracy, which claims the epsilon that Lemma 3 gives it;
    and its own calibration on ridge regression, sigma = 0."""
    epsilon, delta, options = config["epsilon"], config["delta"], DU(form="printed")
    constants = unit_constants(config["l2"])

    def claim(name: str, of: Twins, constants: Constants) -> Claim:
        privacy = Privacy(epsilon=epsilon, delta=delta, constants=constants, noise=Noise())
        found = du_release(of.problem.federation, of.X, of.deletion, options, privacy)
        worlds = Worlds(found.noiseless, of.X_r, found.sigma, shared=True)
        return Claim(f"printed, {name}", "same training", epsilon, of, options, found, worlds)

    def sensitivity(constants: Constants) -> float:
        return max(constants.sensitivity(len(gone[1]), HELD) for gone in here.deletion.forgotten.values())

    printed = claim("worst-case constants", here, constants)
    distance = _apart(printed.worlds.a.mean(dim=0), printed.worlds.b.mean(dim=0))
    tight = constants._replace(M=constants.M * distance / sensitivity(constants))
    tuned = largest_harmless_sigma(printed.worlds.a, here.problem.test, noise, loss=0.01)
    return [
        printed,
        claim(OURS.removeprefix("printed, "), here, tight),
        printed._replace(
            mechanism="printed, noise that costs a point",
            epsilon=gaussian_epsilon(sensitivity(constants), tuned, delta=delta),
            worlds=printed.worlds._replace(sigma=tuned),
        ),
        claim("ridge", ridge, unit_constants(config["l2"], loss="ridge")),
    ]


def _corrected_claims(config: Mapping[str, Any], here: Twins) -> list[Claim]:
    """The budget rule, for one model that all publish, and for a model and noise of its own for each. Budgets are as
    small as the rule can serve: the radius after one step of Newton's. With D-PSGD, x' is what the certificate is
    about, and D-PSGD without the deleted samples, averaged, is not: both are compared with."""
    claims, epsilon, delta = [], config["epsilon"], config["delta"]
    f, exact = here.problem.federation, start(here.exact, len(here.X_r))
    for name, noise in (("one model", "consensus"), ("noise for each", "independent")):
        options, shared = DU(noise=noise), noise == "consensus"
        radii = [residual_radius(f.model, w, here.deletion) for w in du(f, here.X, here.deletion, options)]
        budget = ROUNDING * (max(radii) if shared else math.hypot(*radii))
        privacy = Privacy(epsilon=epsilon, delta=delta, budget=budget, noise=Noise())
        found = du_release(f, here.X, here.deletion, options, privacy)
        worlds = Worlds(found.noiseless, exact, found.sigma, shared)
        claims.append(Claim(f"corrected, {name}", "x'", epsilon, here, options, found, worlds))
        if shared and config["models"] == "dpsgd":
            averaged = worlds._replace(b=start(here.X_r.mean(dim=0), len(here.X_r)))
            claims.append(claims[-1]._replace(reference="same training", worlds=averaged))
    return claims


def largest_harmless_sigma(models: Tensor, test: Client, noise: Tensor, *, loss: float) -> float:
    """The most noise, of 121 values from 1e-4 to 100, that costs at most `loss` of test accuracy on average."""
    least = noisy_accuracy(models, 0.0, test, noise[:1]) - loss
    grid = torch.logspace(-4, 2, 121, dtype=torch.float64).tolist()
    return max(sigma for sigma in grid if noisy_accuracy(models, sigma, test, noise) >= least)
