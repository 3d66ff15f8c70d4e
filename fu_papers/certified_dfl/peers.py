"""Certified methods of others on the same federation, at the same (epsilon, delta): accuracy against price.

Every method trains in its own way, by full gradients of all clients, serves the main place's sample-wise request, and
publishes one model. Each stands with several values of the parameter that its noise or its price hangs on most; nothing
is chosen afterwards. DU starts from what D-PSGD left, as in the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation, NumericalFailure
from fu_core.evaluation.accuracy import accuracy
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines import (
    certified_removal,
    descent_to_delete,
    langevin,
    noisy_fine_tuning,
    noisy_retrain,
    rewind,
)
from fu_core.unlearning.certificate import Privacy
from fu_core.unlearning.du import DU, du_release
from fu_core.unlearning.noise import Noise, rehearsal
from fu_papers.certified_dfl import runs
from fu_papers.certified_dfl.grid import Experiment
from fu_papers.certified_dfl.runs import EXACT_KEYS, TRAINING_KEYS, asked, federation
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import data_hash, problem
from fu_papers.study import Cell

Made = tuple[ModuleType, Any]  # where prepare and release are, and the method's parameters
DU_ROWS = ("DU", "DU, noise first", "Newton from zero")
PEERS: tuple[tuple[str, dict[str, Any]], ...] = (  # with values of the parameter that noise or price hangs on most
    ("Certified removal", {"sigma": 3.0}),
    ("Certified removal", {"sigma": 30.0}),
    ("Descent-to-delete", {"steps": 20}),
    ("Descent-to-delete", {"steps": 100}),
    ("Descent-to-delete", {"steps": 400}),
    ("Langevin", {"steps": 20}),
    ("Langevin", {"steps": 100}),
    ("Rewind-to-delete", {"share": 0.5, "growth": "contraction"}),
    ("Rewind-to-delete", {"share": 0.8, "growth": "contraction"}),
    ("Noisy fine-tuning", {"start_clip": 1.0, "step_clip": 0.05, "steps": 20}),
    ("Noisy fine-tuning", {"start_clip": 0.1, "step_clip": 0.05, "steps": 100}),
    ("Model clipping", {"model_clip": 1.0, "steps": 20}),
    ("Output perturbation", {}),
)


def cells(e: Experiment) -> dict[Cell, dict[str, Any]]:
    """Every `peer` run with the place of its result: the main convex place, sample-wise, first seed, one epsilon."""
    place, seed, request = e.main(e.datasets[0]), e.seeds[0], e.requests()["sample"]
    shared = {**e.training(place, seed, request), "epsilon": reported_epsilon(e), "delta": float(e.delta)}
    shared |= {"full_steps": e.full_steps, "budget": float(e.budget)}
    du = e.options(place.dataset, "DU")
    of_du = {"DU": du, "DU, noise first": {**du, "noise": "first", "steps": 100}, "Newton from zero": du}
    rows = [(name, options, "") for name, options in of_du.items()]
    rows += [
        (name, options, ", ".join(f"{k} {v:g}" for k, v in options.items() if k != "growth")) for name, options in PEERS
    ]
    found = {}
    for name, options, label in rows:
        config = {**shared, "peer": name, "options": options}
        if name == "DU, noise first":
            config["budget"] = float(e.first_budget)
        found[Cell("peers", place.setting, seed, request, name, label, place.topology)] = config
    return found


def reported_epsilon(e: Experiment) -> float:
    """The epsilon that is shown where there is room for one: the one nearest 1 by its factor."""
    return min(e.epsilons, key=lambda epsilon: abs(math.log(epsilon)))


def made(config: Mapping[str, Any], samples: int) -> Made:
    """The method of a config with its parameters; samples: how many are to be deleted."""
    shared = {"epsilon": config["epsilon"], "delta": config["delta"]}
    options, training = config["options"], {"training": config["full_steps"]}
    match config["peer"]:
        case "Certified removal":
            return certified_removal, certified_removal.Removal(**shared, **options, tol=1e-8, most=5000)
        case "Descent-to-delete":
            return descent_to_delete, descent_to_delete.DescentToDelete(**shared, **options, samples=samples)
        case "Langevin":
            return langevin, langevin.Langevin(**shared, **options, **training, samples=samples)
        case "Rewind-to-delete":
            return rewind, rewind.Rewind(**shared, **options, **training)
        case "Noisy fine-tuning" | "Model clipping":
            clip = "gradient" if config["peer"] == "Noisy fine-tuning" else "model"
            return noisy_fine_tuning, noisy_fine_tuning.NoisyFineTuning(clip=clip, **shared, **options, **training)
        case "Output perturbation":
            return noisy_retrain, noisy_retrain.OutputPerturbation(**shared, **options, **training)
    raise ValueError(f"peer must be one of the methods of the grid, got {config['peer']!r}")


def needs(config: Mapping[str, Any]) -> Needs:
    """What retraining aims at; for DU the model it starts from."""
    found: dict[str, Any] = {"exact": (runs.exact, {key: config[key] for key in EXACT_KEYS})}
    if config["peer"] in DU_ROWS:
        training = {key: config[key] for key in TRAINING_KEYS}
        found["original"] = (runs.train, {**training, "request": "none"})
    return found


@run_function("certified_dfl.peer", data=data_hash, needs=needs)
def peer(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One certified release: its accuracy, with and without the noise, how far it is from exact retraining, its price.

    refused: why nothing was released, if so. nominal: why the certificate is none, if so; that the noise is rehearsed,
    so that figures can be drawn again, is said once, here. passes: over the retained data, a product counted as two;
    vectors: sent over links, a sum being 2 (N - 1).
    """
    f, test = federation(config), problem(config).test
    exact, deletion = context.needed("exact", ["x"])["x"].to(device()), asked(config, f)
    named = [config["peer"], *map(str, config["options"].values())]
    with rehearsal():
        noise = Noise(rehearsed=stream_seed(config["seed"], "peer", *named, str(config["epsilon"])))
        try:
            if config["peer"] in DU_ROWS:
                W = context.needed("original", ["W"])["W"].to(device())
                if config["peer"] == "Newton from zero":  # the same method, and nothing to begin with
                    W = torch.zeros_like(W)
                privacy = Privacy(
                    epsilon=config["epsilon"], delta=config["delta"], budget=config["budget"], noise=noise
                )
                release = du_release(f, W, deletion, DU(**config["options"]), privacy)
                assert release.certificate is not None
                model, sigma, nominal = release.models[0], release.sigma, ""
                bare: Tensor | None = None if config["peer"] == "DU, noise first" else release.noiseless[0]
                radius: float | None = release.certificate.radius
                passes = f.meter.gradient_passes / (deletion.n - deletion.m)
                vectors = f.meter.bytes / (model.numel() * model.element_size())
            else:
                module, parameters = made(config, deletion.m)
                prepared = module.prepare(f, parameters, noise)
                found = module.release(f, prepared, deletion, noise)
                model, bare, sigma, radius = found.model, found.noiseless, found.sigma, found.radius
                nominal = "; ".join(part for part in found.nominal.split("; ") if not part.startswith("rehearsed"))
                passes, vectors = found.passes, found.vectors
        except CertificateViolation as refused:
            return {"refused": str(refused), "outcome": "refused"}, None
        except NumericalFailure as gave_up:
            return {"refused": str(gave_up), "outcome": "did not converge"}, None

    def away(w: Tensor | None) -> float | None:
        return None if w is None else float((w.double() - exact.double()).norm() / exact.double().norm())

    return {
        "refused": "",
        "nominal": nominal,
        "test": accuracy(f.model, model.to(exact), *test),
        "test_noiseless": None if bare is None else accuracy(f.model, bare.to(exact), *test),
        "test_exact": accuracy(f.model, exact, *test),
        "distance": away(model),
        "distance_noiseless": away(bare),
        "sigma": sigma,
        "radius": radius,
        "passes": passes,
        "vectors": vectors,
    }, None
