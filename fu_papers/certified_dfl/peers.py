"""Certified methods of others on the same federation, at the same (epsilon, delta): accuracy against price.

Every method trains in its own way, by full gradients of all clients, serves sample-wise requests at the main place, and
publishes one model. Each stands with several values of the parameter that its noise or its price hangs on most, and all
of them are shown, so that who looks for the best of a rival's values on the judged data finds it. DU starts from what
D-PSGD left, as in the tables; so do rounds of D-PSGD, which are let out under DU's own rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation, NumericalFailure
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.federation import Federation
from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines import (
    certified_removal,
    descent_to_delete,
    langevin,
    noisy_fine_tuning,
    noisy_retrain,
    rewind,
)
from fu_core.unlearning.certificate import Privacy, residual_radius
from fu_core.unlearning.du import DU, du_release
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_core.unlearning.noise import Noise, rehearsal
from fu_core.unlearning.released import Clock, Released
from fu_core.unlearning.sums import sum_cost
from fu_papers.certified_dfl import runs
from fu_papers.certified_dfl.grid import Experiment
from fu_papers.certified_dfl.runs import EXACT_KEYS, TRAINING_KEYS, asked, federation
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import data_hash, initial_model, problem
from fu_papers.study import Cell

Made = tuple[ModuleType, Any]  # where prepare and release are, and the method's parameters
DU_ROWS = ("DU", "DU, noise first", "Newton from zero")
ROUNDS_ROWS = ("Retrain", "Fine-tune")  # rounds of D-PSGD: measured as DU is, and released if they come close enough
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
    """Every `peer` run with the place of its result: the main convex place, sample-wise, one epsilon.

    With every lambda and share of samples, since the others' noise hangs on both; by its budget, a gradient has to
    be as small everywhere.
    """
    found: dict[Cell, dict[str, Any]] = {}
    for l2, share, seed in itertools.product(e.peer_l2, e.peer_fractions, e.peer_seeds):
        found |= _cells(e, float(l2), f"sample-{share:g}", seed)
    return found


def _cells(e: Experiment, l2: float, request: str, seed: int) -> dict[Cell, dict[str, Any]]:
    place = e.main(e.datasets[0])
    shared = {**e.training(place, seed, request), "l2": l2, "epsilon": reported_epsilon(e), "delta": float(e.delta)}
    same_gradient = e.of_dataset("l2", place.dataset) / l2  # a radius is |gradient| / lambda
    shared |= {"full_steps": e.full_steps, "budget": float(e.budget) * same_gradient}
    du = e.options(place.dataset, "DU", until=shared["budget"])
    from_afar = {**shared, "budget": float(e.first_budget) * same_gradient}
    rows = [
        ("DU", du, ""),
        ("DU, noise first", {**du, "noise": "first", "steps": 100}, ""),
        ("Newton from zero", du, ""),
    ]
    rows += [("Retrain", {"rounds": shared["rounds"]}, ""), ("Fine-tune", {"rounds": shared["rounds"]}, "")]
    rows += [
        (name, options, ", ".join(f"{k} {v:g}" for k, v in options.items() if k != "growth")) for name, options in PEERS
    ]
    return {
        Cell("peers", place.setting, seed, request, name, label, f"{place.topology}, λ = {l2:g}"): {
            **(from_afar if name == "DU, noise first" else shared),
            "peer": name,
            "options": options,
        }
        for name, options, label in rows
    }


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
    if config["peer"] in (*DU_ROWS, *ROUNDS_ROWS):
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
    named = [config["peer"], *map(str, config["options"].values()), config["request"]]
    with rehearsal():
        noise = Noise(rehearsed=stream_seed(config["seed"], "peer", *named, str(config["epsilon"]), str(config["l2"])))
        try:
            if config["peer"] in (*DU_ROWS, *ROUNDS_ROWS):
                W = context.needed("original", ["W"])["W"].to(device())
                serve = by_newton if config["peer"] in DU_ROWS else by_rounds
                found = serve(config, f, W, deletion, noise)
            else:
                module, parameters = made(config, deletion.m)
                found = module.release(f, module.prepare(f, parameters, noise), deletion, noise)
        except CertificateViolation as refused:
            return {"refused": str(refused), "outcome": "refused"}, None
        except NumericalFailure as gave_up:
            return {"refused": str(gave_up), "outcome": "did not converge"}, None

    def away(w: Tensor | None) -> float | None:
        return None if w is None else float((w.double() - exact.double()).norm() / exact.double().norm())

    bare = found.noiseless
    return {
        "refused": "",
        "nominal": "; ".join(part for part in found.nominal.split("; ") if not part.startswith("rehearsed")),
        "test": accuracy(f.model, found.model.to(exact), *test),
        "test_noiseless": None if bare is None else accuracy(f.model, bare.to(exact), *test),
        "test_exact": accuracy(f.model, exact, *test),
        "distance": away(found.model),
        "distance_noiseless": away(bare),
        "sigma": found.sigma,
        "radius": found.radius,
        "passes": found.passes,
        "vectors": found.vectors,
    }, None


def by_newton(config: Mapping[str, Any], f: Federation, W: Tensor, deletion: Deletion, noise: Noise) -> Released:
    """DU from the trained models W (K, d), or from zero: the same method with nothing to begin with."""
    clock, options = Clock.start(f.meter), DU(**config["options"])
    privacy = Privacy(epsilon=config["epsilon"], delta=config["delta"], budget=config["budget"], noise=noise)
    start = torch.zeros_like(W) if config["peer"] == "Newton from zero" else W
    found = du_release(f, start, deletion, options, privacy)
    assert found.certificate is not None
    bare = None if options.noise == "first" else found.noiseless[0]
    return Released(
        found.models[0], bare, found.sigma, privacy.epsilon or 0.0, privacy.delta, found.certificate.radius, "",
        *clock.spent(deletion.n - deletion.m, W[0]),
    )  # fmt: skip


def by_rounds(config: Mapping[str, Any], f: Federation, W: Tensor, deletion: Deletion, noise: Noise) -> Released:
    """Rounds of D-PSGD on retained data, from new weights ("Retrain") or from W: their mean with DU's noise.

    The certificate is about the minimiser, so that this mean, too, has to be within the budget of it. Raises
    CertificateViolation if it is not.
    """
    rest, clock = f.after(deletion), Clock.start(f.meter)
    again = config["peer"] == "Retrain"
    start = initial_model(config, f.model) if again else W
    first = 1 if again else config["rounds"] + 1
    x = dpsgd(rest, start, config["options"]["rounds"], first_round=first).mean(dim=0)
    rest.meter.send(x, up=sum_cost(rest).up)  # the mean
    radius, budget = residual_radius(f.model, x.double(), deletion, objective="samples"), config["budget"]
    if radius > budget:
        raise CertificateViolation(f"the measured radius, {radius:.3g}, is above the budget, {budget:g}")
    sigma = gaussian_sigma(budget, epsilon=config["epsilon"], delta=config["delta"])
    model = x + sigma * noise.draw().normal("release", 0, x)
    return Released(
        model, x, sigma, config["epsilon"], config["delta"], radius, "", *clock.spent(deletion.n - deletion.m, x)
    )
