"""Whole nets under a certificate: noisy fine-tuning with clipped gradients or models (Koloskova et al., ICML 2025).

Newton's certificate needs a convex loss; clipping needs nothing of the loss, and pays with noise on every weight. What
follows the noisy rounds uses retained data alone, so that it costs no privacy: the released net is as good as the
rounds after it make it, and the more noise there was, the more they are a training from new weights. Beside each row
stands therefore a training from new weights of as many rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fu_core.errors import NumericalFailure
from fu_core.evaluation.accuracy import accuracy
from fu_core.evaluation.equivalence import logits_kl
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.meter import Meter
from fu_papers.certified_dfl.grid import Experiment
from fu_papers.certified_dfl.heads import nets
from fu_papers.certified_dfl.peers import reported_epsilon
from fu_papers.certified_dfl.runs import Case, needs
from fu_papers.controls import REFERENCES
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function
from fu_papers.problems import data_hash, initial_model
from fu_papers.study import Cell

NOISY = ("Noisy fine-tuning", "Model clipping")
NEW = "New weights"  # a training of as many rounds as the row above takes
CLIPPED: tuple[tuple[str, dict[str, Any]], ...] = (  # with little left of the model, and with all of a small one
    ("Noisy fine-tuning", {"start_clip": 0.01, "step_clip": 0.001, "steps": 5}),
    ("Noisy fine-tuning", {"start_clip": 1.0, "step_clip": 0.1, "steps": 5}),
    ("Model clipping", {"model_clip": 0.01, "steps": 5}),
    ("Model clipping", {"model_clip": 1.0, "steps": 5}),
)


def cells(e: Experiment) -> dict[Cell, dict[str, Any]]:
    """Every `noisy_net` run with the place of its result: nets, samples of everybody, the first split and seed.

    At the usual epsilon and at the largest; noiseless rounds after the noisy ones: none, and half of the training's.
    """
    found: dict[Cell, dict[str, Any]] = {}
    request, seed = e.requests()["sample"], e.seeds[0]
    for dataset in nets(e):
        place = e.main(dataset)
        training = e.training(place, seed, request)
        here = Cell("noisy nets", place.setting, seed, request, "", "", place.topology)
        for name in REFERENCES:
            found[here._replace(method=name)] = {**training, "method": name, "options": {}, "rounds_of_new": 0}
        half = math.ceil(training["rounds"] / 2)
        for epsilon, (name, clips), tuning in itertools.product(
            (reported_epsilon(e), max(e.epsilons)), CLIPPED, (0, half)
        ):
            options = e.options(dataset, name, **clips, epsilon=epsilon, delta=float(e.delta), tuning=tuning)
            label = ", ".join([f"ε = {epsilon:g}", *(f"{k} {v:g}" for k, v in clips.items()), f"tuning {tuning}"])
            found[here._replace(method=name, label=label)] = {
                **training,
                "method": name,
                "options": options,
                "rounds_of_new": 0,
            }
        found[here._replace(method=NEW, label=f"{half} rounds")] = {
            **training,
            "method": NEW,
            "options": {},
            "rounds_of_new": half,
        }
    return found


@run_function("certified_dfl.noisy_net", data=data_hash, needs=needs)
def noisy_net(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One certified release of a whole net, or a control: accuracy on test and forgotten data, and KL to Retrain there.

    sigma: of each noisy step; length: |w| of the released model beside `length_before`. The noise is a rehearsal, so
    that figures can be drawn again. outcome: "diverged" where the rounds after the noise are not finite.
    """
    case, meter = Case.of(config, context), Meter()
    notes: dict[str, Any] = {}
    try:
        if config["method"] == "Retrain":
            W = case.retrained
        elif config["method"] == NEW:
            rest = case.rest.having(meter=meter)
            W = dpsgd(rest, initial_model(config, rest.model), config["rounds_of_new"])
        else:
            W, meter, notes = case.served(config)
    except NumericalFailure as diverged:
        return {"outcome": "diverged", "why": str(diverged)}, None

    def mean(models: Tensor) -> Tensor:
        return models.mean(dim=0)

    model, (x_gone, y_gone), w = case.f.model, case.deletion.forget, mean(W)
    retrained = model.predict(mean(case.retrained), x_gone)
    return {
        "outcome": "released",
        "test": accuracy(model, w, *case.test),
        "forget": accuracy(model, w, x_gone, y_gone),
        "kl": logits_kl(model.predict(w, x_gone), retrained),
        "length": float(w.norm()),
        "length_before": float(mean(case.original).norm()),
        "passes": meter.images / (case.deletion.n - case.deletion.m),
        **notes,
    }, None
