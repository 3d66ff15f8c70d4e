"""Certified DFL's stages, in the order of its notebook."""

from __future__ import annotations

from fu_papers.certified_dfl import heads, noisy_nets, peers, runs, scaling
from fu_papers.certified_dfl.certify import certify
from fu_papers.certified_dfl.certify import needs as certify_needs
from fu_papers.certified_dfl.curve import curve
from fu_papers.certified_dfl.grid import Experiment, Place
from fu_papers.certified_dfl.speed import speed
from fu_papers.certified_dfl.theory import PLANS
from fu_papers.certified_dfl.theory_canaries import canaries
from fu_papers.certified_dfl.theory_whole import canary_cells, whole
from fu_papers.certified_dfl.theory_whole import cells as whole_cells
from fu_papers.study import Config, Stage, theory_stages


def descriptions(e: Experiment) -> dict[Place, Config]:
    """Every place."""
    return {place: e.training(place, e.seeds[0]) for place in e.places()}


def trainings(e: Experiment) -> dict[tuple[str, str, int, str], Config]:
    """What the tables' runs need, by (setting, topology, seed, request); "none" is the original model's."""
    found: dict[tuple[str, str, int, str], Config] = {}
    for cell, config in e.cells().items():
        needed = runs.needs(config)
        for request, name in (("none", "original"), (cell.request, "retrained")):
            found[cell.setting, cell.condition, cell.seed, request] = needed[name][1]
        if "again" in needed:
            training = needed["again"][1]
            found[cell.setting, cell.condition, training["seed"], cell.request] = training
    for cell, config in peers.cells(e).items():
        original = peers.needs(config).get("original")
        if original and original[1] not in found.values():  # with another lambda
            found[cell.setting, cell.condition, cell.seed, "none"] = original[1]
    return found


def minimisers(e: Experiment) -> dict[tuple[str, str], Config]:
    """What retraining aims at where the loss is convex, by (setting, request)."""
    found: dict[tuple[str, str], Config] = {}
    for cell, config in e.cells().items():
        if "exact" in (needed := runs.needs(config)):
            found[cell.setting, cell.request] = needed["exact"][1]
    for cell, config in peers.cells(e).items():
        found[f"{cell.setting}, {cell.condition}", cell.request] = peers.needs(config)["exact"][1]
    for (place, _, _), config in e.certificates().items():
        found |= {(place.setting, name): one for name, (_, one) in certify_needs(config).items() if name != "original"}
    return found


STAGES = (
    Stage("settings", runs.describe, descriptions, alone=True),
    *theory_stages(PLANS),
    Stage("theory: whole", whole, whole_cells),
    Stage("theory: canaries", canaries, canary_cells),
    Stage("training", runs.train, trainings),
    Stage("exact retraining", runs.exact, minimisers),
    Stage("unlearning", runs.unlearn, lambda e: e.cells(), needs=("training", "exact retraining")),
    Stage("curves", curve, lambda e: e.curves(), needs=("training",)),
    Stage("timing", speed, lambda e: e.speeds(), alone=True),
    Stage("certificates", certify, lambda e: e.certificates(), needs=("training", "exact retraining")),
    Stage("certified heads", heads.certify_head, heads.cells, needs=("training",)),
    Stage("certified peers", peers.peer, peers.cells, needs=("training", "exact retraining")),
    Stage("noisy nets", noisy_nets.noisy_net, noisy_nets.cells, needs=("training",)),
    Stage("scale", scaling.scale, scaling.cells, alone=True),
)
