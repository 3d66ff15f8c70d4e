"""Seconds of every method against retraining (Fig. 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

from fu_core.federation.decentralised import dpsgd
from fu_core.unlearning.method import Trained
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.certified_dfl.grid import WHOLE_CLIENTS
from fu_papers.certified_dfl.runs import asked, federation, recorded_training
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function
from fu_papers.problems import data_hash

REPEATS = 3  # timings of everything but a whole training
T = TypeVar("T")


@run_function("certified_dfl.speed", data=data_hash)
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds of retraining, DU with one round of fine-tuning, and PDUDT with its rounds, one thread, in turn.

    Retraining is projected from `timed_rounds` rounds; everything else runs as it is, on the model those
    rounds made. All clients' work is added up, as it is in retraining.
    """
    f, timed = federation(config), config["timed_rounds"]
    deletion = asked(config, f)
    W, history = recorded_training(f, config, timed)
    trained = Trained(f, W, timed, memory=history)
    rest, staying = f.after(deletion), trained.staying(deletion)
    taken: dict[str, list[float]] = {"round": []}
    for t in range(timed):
        tuned, seconds = _timed(lambda t=t: dpsgd(rest, staying, 1, first_round=t + 1))
        taken["round"].append(seconds)
        for name, options in config["variants"].items():
            if len(taken.setdefault(name, [])) < REPEATS:
                taken[name].append(_timed(lambda n=name, o=options: serve_request(n, trained, deletion, **o))[1])
    assert bool(tuned.isfinite().all())
    per_round = median(taken["round"])
    found = {"Retrain": config["rounds"] * per_round, "round": per_round}
    found |= {name: median(taken[name]) + per_round for name in config["variants"]}
    if config["pdudt_rounds"]:
        replay = _timed(lambda: serve_request(WHOLE_CLIENTS, trained, deletion))[1] * config["rounds"] / timed
        found[WHOLE_CLIENTS] = replay + config["pdudt_rounds"] * per_round
        found[f"{WHOLE_CLIENTS} replay"] = replay
    return {"seconds": found, "timed_rounds": timed}, None


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a piece of work gives, and how many seconds it took."""
    began = perf_counter()
    made = work()
    return made, perf_counter() - began
