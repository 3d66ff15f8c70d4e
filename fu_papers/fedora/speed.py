"""Seconds, images and bytes of FedORA and its rivals against retraining, in one process (Tables III and VII)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from fu_core.errors import NumericalFailure
from fu_core.federation.meter import Meter
from fu_core.federation.vertical import train as train_parties
from fu_papers.fedora.problem import VerticalProblem, data_hash
from fu_papers.fedora.runs import chosen, references, served, trained_parties, trial_needs
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Needs, run_function
from fu_papers.lab.timing import Stopwatch

TIMED_EPOCHS = 2  # of retraining, from which all of them are projected


def speed_needs(config: Mapping[str, Any]) -> Needs:
    """The model that everything is timed on, and the trials of every method that is timed."""
    found = dict(references(config))
    for label, how in config["methods"].items():
        found |= trial_needs({**how, "tuned_on": config["tuned_on"]}, f"{label} trial")
    return found


@run_function("fedora.speed", data=data_hash, needs=speed_needs)
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds, images and bytes of every method in one process, one thread, in turn.

    Retraining is projected from two of its epochs; everything else runs as it is, on the model of the training.
    """
    p = VerticalProblem.of(config)
    original, watch = trained_parties(p, context, "original"), Stopwatch()

    def retraining() -> Meter:
        fresh = p.federation(config, "timing")
        train_parties(fresh, p.retain, fresh.optimisers(), TIMED_EPOCHS)
        return fresh.meter

    def serving(label: str) -> Meter:
        return served(
            p, p.federation(config, "timing", original), config["methods"][label]["method"], options[label]
        ).cost

    options = {
        label: chosen({**how, "tuned_on": config["tuned_on"]}, context, f"{label} trial").get("chosen", how["options"])
        for label, how in config["methods"].items()
    }
    methods = {"Retrain": retraining} | {label: partial(serving, label) for label in config["methods"]}
    meters = {}
    for _ in range(config["repeats"]):
        for label, work in methods.items():
            with suppress(NumericalFailure):  # what diverges has no time
                meters[label] = watch.time(label, work)
    times = {name: config["epochs"] / TIMED_EPOCHS if name == "Retrain" else 1.0 for name in meters}
    return {
        "seconds": {name: times[name] * seconds for name, seconds in watch.medians().items()},
        "costs": {
            name: {
                "images": times[name] * meter.images,
                "up": times[name] * meter.bytes_up,
                "down": times[name] * meter.bytes_down,
            }
            for name, meter in meters.items()
        },
        "options": options,
        "n_forget": len(p.forget),
        "n_retain": len(p.retain),
        "parameters": original.d,
        "embedding": original.active.model.sizes[0] // original.active.classes,
        "classes": original.active.classes,
    }, None
