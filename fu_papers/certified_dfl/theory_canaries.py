"""Claim D10 in one run: canaries that were put in by coin flips, trained, forgotten, released once, and guessed.

A canary is a sample with a feature of its own, which nobody else has: z = e_j, label 1. Whether it was in shows in the
j-th parameter alone, so that hundreds can be guessed from one model. All that are in are asked to be forgotten.

    score of canary j        z_j' (x~ - x')        how far the published model leans towards it, from where it should be

The attacker knows everything but coins and noise. One run proves less than a thousand, and finds gross errors only:
here a release that forgot nothing, and has the noise of one that did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fu_core.evaluation.canaries import CanaryAudit, audit_canaries, included_canaries
from fu_core.federation.decentralised import dpsgd, start
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client, ClientOpt
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.certificate import Privacy
from fu_core.unlearning.du import DU, Release, du_release
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon, gaussian_sigma
from fu_core.unlearning.noise import Noise, rehearsal
from fu_papers.certified_dfl.theory_audit import FIRST
from fu_papers.certified_dfl.theory_noise import noisy_accuracy
from fu_papers.certified_dfl.theory_problems import CLIENTS, HELD, breast_cancer, kept_by, on_a_ring, unit_problem
from fu_papers.convex import one_logit, optimum, pooled
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function

MODELS, EPSILONS = ("consensus", "dpsgd"), (0.5, 1.0)  # so many guesses could not refute a larger claim
HONEST = len(MODELS) * len(EPSILONS)  # rows that are not planted
FORGOT_NOTHING = "forgot nothing"
OPTIONS = DU(objective="samples")  # canaries make some clients larger


class Run(NamedTuple):
    """One federation with its coins. included (m,): which canaries are in; exact (d,): x'; test: with no canary."""

    f: Federation
    deletion: Deletion
    W: Tensor
    included: np.ndarray
    exact: Tensor
    test: Client


def trained(config: Mapping[str, Any], seed: int) -> Run:
    """Data with the canaries of `seed`, and everybody's model (N, d). Random: coins, batches, from the seed."""
    m, (_, clients, (x_test, y_test)) = config["m"], unit_problem(config["l2"], split=config["split"], seed=0)
    features, included = x_test.shape[1], included_canaries(m, seed=seed)
    model = FlatModel(one_logit(features + m), l2=config["l2"])
    canaries = torch.eye(features + m, dtype=torch.float64)[features:]
    dealt = [np.flatnonzero(included & (np.arange(m) % CLIENTS == i)) for i in range(CLIENTS)]
    holding = [_with(client, canaries[torch.from_numpy(own)]) for client, own in zip(clients, dealt, strict=True)]
    f = on_a_ring(model, holding)
    deletion = Deletion.of(holding, {i: torch.arange(HELD, HELD + len(own)) for i, own in enumerate(dealt) if len(own)})
    exact = optimum(model, pooled(kept_by(deletion)))
    if config["models"] == "consensus":
        W = start(optimum(model, pooled(holding), exact), CLIENTS)
    else:
        local = ClientOpt(lr=config["lr"], batch_size=config["batch_size"])
        learning = f.having(local=local, seed=stream_seed(seed, "canaries trained"))
        W = dpsgd(learning, torch.zeros_like(exact), config["rounds"])
    return Run(f, deletion, W, included, exact, _with((x_test, y_test), canaries[:0]))


def _with(client: Client, canaries: Tensor) -> Client:
    """The client's rows, which have no canary's feature, and canaries with label 1."""
    x, y = client
    x = torch.cat([x, x.new_zeros(len(x), canaries.shape[1] - x.shape[1])], dim=1)
    return torch.cat([x, canaries]), torch.cat([y, y.new_ones(len(canaries))])


def guessed(run: Run, published: Tensor, config: Mapping[str, Any]) -> CanaryAudit:
    """The audit of one published model (d,)."""
    features = run.f.model.d - config["m"]
    return audit_canaries(
        (published - run.exact)[features:],  # z_j' (x~ - x')
        run.included,
        k_plus=config["guesses"],
        k_minus=config["guesses"],
        delta=config["delta"],
        alpha=0.05 / config["together"],
    )


@run_function("certified_dfl.audit_canaries", data=breast_cancer)
def canaries(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """A canary audit of one whole release per epsilon, and of a planted one that forgot nothing.

    rows: as those of `theory_whole.whole`; by: "canaries"; expected: nothing, 0, as canaries were forgotten; truth:
    "exact" for minimisers, of the two worlds all canaries or none; "unknown" where batches have a part in it. right,
    guesses: how many were right, of how many.

    Random: coins, batches, and noise, rehearsed, all from the seed.
    """
    run, budget, delta = trained(config, config["seed"]), config["budget"], config["delta"]
    rows: list[dict[str, Any]] = []
    with rehearsal():
        for name, epsilon in [("corrected, one model", e) for e in config["epsilons"]] + [
            (FORGOT_NOTHING, max(config["epsilons"]))
        ]:
            noise = Noise(rehearsed=stream_seed(config["seed"], "canaries", config["models"], name, f"{epsilon:g}"))
            released = _release(run, name, Privacy(epsilon=epsilon, delta=delta, budget=budget, noise=noise))
            found = guessed(run, released.models[0], config)
            distance = float((released.noiseless[0] - run.exact).norm())
            known = config["models"] == "consensus"
            true = gaussian_epsilon(distance, released.sigma, delta=delta) if known else None
            rows.append(
                {
                    "mechanism": name,
                    "output": FIRST,
                    "distinct": True,
                    "planted": name == FORGOT_NOTHING,
                    "reference": "x'",
                    "claimed": epsilon,
                    "counted": name != FORGOT_NOTHING,
                    "audited": found.epsilon,
                    "by": "canaries",
                    "expected": 0.0,
                    "largest": found.largest,
                    "true": true,
                    "truth": "exact" if known else "unknown",
                    "refuted": found.epsilon > epsilon,
                    "broken": true is not None and true > epsilon,
                    "sigma": released.sigma,
                    "distance": distance,
                    "accuracy": _accuracy(released.models[:1], run.test),
                    "retrained": _accuracy(released.models[:1] - released.noiseless[:1] + run.exact, run.test),
                    "right": found.right,
                    "guesses": found.guesses,
                }
            )
    return {"rows": rows, "included": int(run.included.sum())}, None


def _release(run: Run, name: str, privacy: Privacy) -> Release:
    """By the budget rule; or the trained model, with as much noise, which nothing checks."""
    if name != FORGOT_NOTHING:
        return du_release(run.f, run.W, run.deletion, OPTIONS, privacy)
    assert privacy.epsilon is not None
    assert privacy.budget is not None
    sigma = gaussian_sigma(privacy.budget, epsilon=privacy.epsilon, delta=privacy.delta)
    one = du_release(run.f, run.W, run.deletion, OPTIONS)
    forgot = replace(one, noiseless=start(run.W.mean(dim=0), len(one.ids)))
    return du_release(run.f, run.W, run.deletion, OPTIONS, Privacy(sigma=sigma, noise=privacy.noise), forgot)


def _accuracy(models: Tensor, test: Client) -> float:
    return noisy_accuracy(models, 0.0, test, torch.zeros_like(models))


def configs(together: int, delta: float) -> Sequence[dict[str, Any]]:
    """The minimiser, and some rounds of D-PSGD."""
    return [
        {
            "models": models,
            "split": "iid",
            "l2": 0.1,
            "m": 256,
            "guesses": 64,
            "rounds": 20,
            "lr": 1.0,
            "batch_size": 20,
            "budget": 1e-4,
            "epsilons": list(EPSILONS),
            "delta": delta,
            "together": together,
            "seed": 0,
        }
        for models in MODELS
    ]
