"""What the border leaks before and after unlearning: a run per model, on one exchange over all that was trained on.

Passive parties infer labels from the gradients that came down, the active party reconstructs features from the
embeddings that went up (`fu_core.evaluation.boundary`). What an attacker knows beforehand is about retained samples,
the same for every model; it is asked about the other retained samples, and about those to be forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import ConfigError, NumericalFailure
from fu_core.evaluation.boundary import constant_answer, infer_clusters, infer_labels, overhear, reconstruction_r2
from fu_core.federation.vertical import Parties
from fu_core.streams import stream
from fu_papers.controls import REFERENCES
from fu_papers.fedora.problem import VerticalProblem, data_hash
from fu_papers.fedora.runs import chosen, diverged, needs, served, trained_parties
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function


@run_function("fedora.leaks", data=data_hash, needs=needs)
def leaks(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """The attacks on the model that a method leaves, served as in an `unlearn` run; with its chosen hyper-parameters.

    config: that of an `unlearn` run, and known_labels, known_features. A run that diverges says so as "diverged".
    """
    p, method = VerticalProblem.of(config), config["method"]
    told = chosen(config, context)
    if method in REFERENCES:
        return attacked(
            p, trained_parties(p, context, "original" if method == "Original" else "retrained"), config
        ), None
    f = p.federation(config, "unlearning", trained_parties(p, context, "original"))
    try:
        parties, _, notes = served(p, f, method, told.get("chosen", config["options"]))
        if lost := diverged(notes):
            return {**told, "diverged": lost}, None
        return {**attacked(p, parties, config), **told}, None
    except NumericalFailure as reason:
        return {**told, "diverged": str(reason)}, None


def attacked(p: VerticalProblem, parties: Parties, config: Mapping[str, Any]) -> dict[str, Any]:
    """Both attacks, each by or on every passive party: lists in party order, one number per party.

    labels_retained, labels_forgotten: percent inferred with `known_labels` labels of each class of which something is
    retained; clusters_retained: with none; chance_retained, chance_forgotten: of the best constant answer.
    r2_retained, r2_forgotten: R^2 of features reconstructed by whoever knows those of `known_features` retained
    samples, of half of them at most. Random: which are known, from streams of (0, "known labels" or "known features").
    """
    y = parties.active.y
    shuffled = p.retain[torch.randperm(len(p.retain), generator=stream(0, "known labels")).to(p.retain.device)]
    told = torch.cat([shuffled[y[shuffled] == c][: config["known_labels"]] for c in y[p.retain].unique()])
    asked = p.retain[~torch.isin(p.retain, told)]
    if not len(asked):
        raise ConfigError(
            f"known_labels must leave some of {len(p.retain)} retained samples to be asked about, got "
            f"{config['known_labels']} of each class"
        )
    found: dict[str, Any] = {
        "chance_retained": constant_answer(y[asked]),
        "chance_forgotten": constant_answer(y[p.forget]),
    }
    known, retained, forgotten = (overhear(parties, rows).gradients for rows in (told, asked, p.forget))
    for k, known_k in enumerate(known):
        for of, gradients, rows in (("retained", retained, asked), ("forgotten", forgotten, p.forget)):
            accuracy = infer_labels(known_k, y[told], gradients[k], y[rows]).accuracy
            found.setdefault(f"labels_{of}", []).append(accuracy)
        clusters = infer_clusters(retained[k], y[asked], parties.active.classes, seed=0)
        found.setdefault("clusters_retained", []).append(clusters.accuracy)
    return found | _reconstructed(p, parties, config)


def _reconstructed(p: VerticalProblem, parties: Parties, config: Mapping[str, Any]) -> dict[str, list[float]]:
    """R^2 of every party's features, of retained samples that are not known, and of those to be forgotten."""
    order = torch.randperm(len(p.retain), generator=stream(0, "known features")).to(p.retain.device)
    cut = min(config["known_features"], len(order) // 2)
    rows = {"known": p.retain[order[:cut]], "retained": p.retain[order[cut:]], "forgotten": p.forget}
    embeddings = {of: overhear(parties, of_these).embeddings for of, of_these in rows.items()}
    found: dict[str, list[float]] = {}
    for k in range(len(parties.passive)):
        x = {of: comparable_features(p, parties, k, of_these) for of, of_these in rows.items()}
        for of in ("retained", "forgotten"):
            r2 = reconstruction_r2(embeddings["known"][k], x["known"], embeddings[of][k], x[of])
            found.setdefault(f"r2_{of}", []).append(r2)
    return found


def comparable_features(p: VerticalProblem, parties: Parties, k: int, rows: Tensor) -> Tensor:
    """Features (n, ...) of passive party `k`, in units in which their squares can be added up.

    Pixels as they are; columns of a table in units of their spread.
    """
    x = parties.passive[k].x[rows].double()
    return x if x.dim() == 4 else x / p.clean.std[p.blocks[k]].to(x)
