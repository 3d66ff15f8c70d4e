"""Seconds and gradient passes of HF-KCU and its baselines against retraining, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fu_core.federation import Federation, Meter, fedavg
from fu_core.request import Request
from fu_papers.hf_kcu.case import federation, groups_of, model_of, trained_with
from fu_papers.hf_kcu.case import served as serve
from fu_papers.hf_kcu.runs import the_original
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Config, run_function
from fu_papers.lab.timing import REPEATS, Stopwatch
from fu_papers.problems import data_hash, initial_model, problem


@run_function("hf_kcu.speed", data=data_hash, needs=the_original)
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds and gradient passes of retraining and of every method, one after the other in this process.

    `timed_rounds` rounds of retraining are run and timed; where these are fewer than `schedule_rounds` of
    `schedule_epochs` epochs, "retrain" is projected from them. `variants` are timed several times in turn, `baselines`
    once; both by name: {"method", "options"}.
    """
    p = problem(config)
    f, w = federation(config, p), model_of(context, "original")
    deletion = Request.parse(config["request"]).resolve(f.clients)
    watch = Stopwatch()
    _retrain(config, context, f.after(deletion), watch)
    per_round = sum(watch.laps["round"]) / config["timed_rounds"] * config["schedule_epochs"] / f.local.epochs
    seconds = {"retrain": per_round * config["schedule_rounds"]}

    def served(name: str, timed: Config) -> Meter:
        own = {**config, **timed, "rounds": config["schedule_rounds"]}
        # SISA trains the shard of client 0 again, whatever its model was, and leaves the others alone
        shards = {tuple(group): w for group in groups_of(own)} if "shards" in own["options"] else {}
        trained = trained_with(own, context, f, w, shards)
        return watch.time(name, partial(serve, own["method"], trained, deletion, own["options"], p.validation)).cost

    counted: dict[str, list[int]] = {name: [] for name in config["variants"]}
    for _ in range(REPEATS):
        for name, timed in config["variants"].items():
            if watch.wants(name):
                counted[name].append(served(name, timed).gradient_passes)
    passes: dict[str, float] = {name: sum(counts) / len(counts) for name, counts in counted.items()}
    passes |= {name: served(name, timed).gradient_passes for name, timed in config["baselines"].items()}
    passes["retrain"] = config["schedule_rounds"] * config["schedule_epochs"] * len(deletion.retain[1])
    medians = watch.medians()
    seconds |= {name: medians[name] for name in (*config["variants"], *config["baselines"])}
    return {"seconds": seconds, "passes": passes, "timed_rounds": config["timed_rounds"]}, None


def _retrain(config: Config, context: RunContext, rest: Federation, watch: Stopwatch) -> None:
    """`timed_rounds` rounds of retraining by those who stay, each a lap and a row of the record."""

    def after_round(t: int, *_: object) -> None:
        context.log(round=t, seconds=watch.lap("round"))
        watch.start()

    watch.start()
    fedavg(rest, initial_model(config, rest.model), config["timed_rounds"], after_round=after_round)
