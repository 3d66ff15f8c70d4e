"""How far to go: HF-KCU's corrected step at every damping, what Retrain would have it be, and where our rules stop.

Damping shortens the step, and turns it: from the gradient, where it is strong, to the whole solution. Both rules of
`fu_core.unlearning.trust` choose a point of this path, and neither may look at Retrain; here is the whole path, with
Retrain beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fu_core.evaluation.accuracy import accuracy
from fu_core.evaluation.equivalence import logits_kl
from fu_core.request import Request
from fu_core.unlearning.hf_kcu import HFKCU, hf_kcu_step
from fu_core.unlearning.method import Trained
from fu_core.unlearning.trust import matched_losses
from fu_papers.hf_kcu.case import federation, model_of, served
from fu_papers.hf_kcu.grid import MATCHED
from fu_papers.hf_kcu.runs import CLEAN, the_original, train, training_of
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Config, Needs, run_function
from fu_papers.problems import data_hash, initial_model, problem

DAMPINGS = tuple(2.0**k for k in range(9, -11, -1))  # from a step that hardly moves to one that is hardly damped
WHOLE = {"scaling": False, "steps": 1, "tol": 0.0}  # one step, neither clipped nor ended early


def both_trainings(config: Config) -> Needs:
    """The training that steps start from, and Retrain."""
    return {**the_original(config), "retrained": (train, training_of(config, **CLEAN))}


@run_function("hf_kcu.path", data=data_hash, needs=both_trainings)
def path(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """The corrected step by damping, and what its end knows; the same of Original, Retrain and each of `rules`.

    "path": a list by name, one entry per damping; "stops": the same names by rule. "forget_loss" and "held_loss" are
    `trust.matched_losses`, "more_held_loss" from all other images that nobody has trained on (the same, where those are
    fewer than the rule has), "travelled" is the step over |Retrain - Original|, "kl_forget" that to Retrain.
    """
    p = problem(config)
    f, w, retrained = federation(config, p), model_of(context, "original"), model_of(context, "retrained")
    deletion = Request.parse(config["request"]).resolve(f.clients)
    size = config["rules"][MATCHED]["held_out"]
    (x, y), asked = p.validation, deletion.forget
    goal, there = p.model.predict(retrained, asked[0]), float((retrained - w).norm())

    def known(model: Tensor) -> dict[str, float]:
        forget_loss, held_loss = matched_losses(p.model, model, asked, (x[:size], y[:size]))
        of_more = matched_losses(p.model, model, asked, (x[size:], y[size:]))[1] if len(y) >= 2 * size else held_loss
        return {
            "forget_loss": forget_loss,
            "held_loss": held_loss,
            "more_held_loss": of_more,
            "test": accuracy(p.model, model, *p.test),
            "forget": accuracy(p.model, model, *asked),
            "kl_forget": logits_kl(p.model.predict(model, asked[0]), goal),
            "travelled": float((model - w).norm()) / there,
        }

    ends = []
    for damping in config["dampings"]:
        options = {**config["rules"]["HF-KCU"], **WHOLE, "damping": damping}
        step = hf_kcu_step(f, w, deletion, HFKCU(**options))
        first, *_, last = step.solutions[0].residual_norms
        ends.append({"damping": damping, "residual": last / first, **known(w + step.step)})
    trained = Trained(f, w, config["rounds"], initial_model(config, f.model))
    stops = {"Original": known(w), "Retrain": known(retrained)}
    for name, options in config["rules"].items():
        found = served(name, trained, deletion, options, p.validation)
        chosen = found.notes.get("damping", math.inf)  # as where the model is left alone
        stops[name] = known(found.model) | ({"damping": chosen} if math.isfinite(chosen) else {})
    return {"path": {name: [end[name] for end in ends] for name in ends[0]}, "stops": stops}, None
