"""Seconds of every method against retraining (Fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fu_core.federation.decentralised import dpsgd
from fu_core.unlearning.method import Trained
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.certified_dfl.grid import WHOLE_CLIENTS
from fu_papers.certified_dfl.runs import asked, federation, recorded_training
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function
from fu_papers.lab.timing import Stopwatch
from fu_papers.problems import data_hash


@run_function("certified_dfl.speed", data=data_hash)
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds of retraining, DU with one round of fine-tuning, and PDUDT with its rounds, one thread, in turn.

    Retraining is projected from `timed_rounds` rounds; everything else runs as it is, on the model those
    rounds made. All clients' work is added up, as it is in retraining.
    """
    f, timed, watch = federation(config), config["timed_rounds"], Stopwatch()
    deletion = asked(config, f)
    W, history = recorded_training(f, config, timed)
    trained = Trained(f, W, timed, memory=history)
    rest, staying = f.after(deletion), trained.staying(deletion)
    for t in range(timed):
        watch.time("round", partial(dpsgd, rest, staying, 1, first_round=t + 1))
        for name, options in config["variants"].items():
            if watch.wants(name):
                watch.time(name, partial(serve_request, name, trained, deletion, **options))
    medians = watch.medians()
    per_round = medians["round"]
    seconds = {"Retrain": config["rounds"] * per_round, "round": per_round}
    seconds |= {name: medians[name] + per_round for name in config["variants"]}
    if config["pdudt_rounds"]:
        watch.time(WHOLE_CLIENTS, partial(serve_request, WHOLE_CLIENTS, trained, deletion))
        replay = watch.medians()[WHOLE_CLIENTS] * config["rounds"] / timed
        seconds[WHOLE_CLIENTS] = replay + config["pdudt_rounds"] * per_round
        seconds[f"{WHOLE_CLIENTS} replay"] = replay
    return {"seconds": seconds, "timed_rounds": timed}, None
