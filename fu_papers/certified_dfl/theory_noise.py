"""What the printed noise costs and what it certifies: the numbers beside errata D3 and D9."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fu_core.federation.decentralised import start
from fu_core.federation.local import Client
from fu_core.unlearning.certificate import Privacy
from fu_core.unlearning.du import DU, Release, du_release
from fu_core.unlearning.gaussian_mechanism import gaussian_delta, gaussian_epsilon, gaussian_sigma
from fu_papers.certified_dfl.theory_problems import (
    CLIENTS,
    breast_cancer,
    first,
    generated,
    kept_by,
    standard_normal,
    unit_constants,
    unit_problem,
)
from fu_papers.convex import optimum, pooled
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function


def noisy_accuracy(models: Tensor, sigma: float, test: Client, noise: Tensor) -> float:
    """Test accuracy, averaged over `models` (K, d) and over `noise` (n, d), draws from N(0, I), times sigma."""
    x, y = test
    logits = (x @ models.T)[:, :, None] + sigma * (x @ noise.T)[:, None, :]  # (samples, K, n)
    return float(((logits > 0) == (y > 0)[:, None, None]).double().mean())


@run_function("certified_dfl.calibration", data=breast_cancer)
def calibration(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D9: what noise the printed calibration asks for when ten clients each delete a tenth, and its price.

    sigma_message: of each nu_c, which Theorem 1 takes for the noise of a model; sigma_printed: what a model really
    gets, sigma_message / sqrt(N) (D3); sigma_corrected: for the budget, fixed before anything is measured, which
    Newton's steps then meet.
    """
    l2 = config["l2"]
    problem = unit_problem(l2, seed=config["seed"])
    model, clients, test = problem
    deletion, x = first(config["m"], clients), optimum(model, pooled(clients))
    retrained = optimum(model, pooled(kept_by(deletion)), x)

    def release(form: str, **rule: Any) -> Release:
        privacy = Privacy(epsilon=config["epsilon"], delta=config["delta"], **rule)
        return du_release(problem.federation, start(x, CLIENTS), deletion, DU(form=form), privacy)

    printed = release("printed", constants=unit_constants(l2))
    corrected = release("corrected", budget=config["budget"])
    assert printed.certificate is not None
    assert corrected.certificate is not None
    noise = standard_normal(config["draws"], model.d, "calibration")
    message = gaussian_sigma(
        printed.certificate.radius, epsilon=config["epsilon"], delta=config["delta"], mechanism="classical"
    )

    def accuracy(found: Release, sigma: float) -> float:
        return noisy_accuracy(found.noiseless[:1], sigma, test, noise)

    return {
        "delta_f": printed.certificate.radius,
        "distance": float((corrected.noiseless[0] - retrained).norm()),
        "budget": config["budget"],
        "radius": corrected.certificate.radius,
        "steps": len(corrected.steps),
        "norm": float(x.norm()),
        "sigma_message": message,
        "sigma_printed": printed.sigma,
        "sigma_corrected": corrected.sigma,
        "accuracy": accuracy(corrected, 0.0),
        "accuracy_message": accuracy(printed, message),
        "accuracy_printed": accuracy(printed, printed.sigma),
        "accuracy_corrected": accuracy(corrected, corrected.sigma),
    }, None


@run_function("certified_dfl.noise_scale", data=generated)
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
