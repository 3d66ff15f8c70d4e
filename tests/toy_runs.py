"""Run functions for the tests of records and compute. A module of its own, because runs must be importable.

What a test wants to go wrong comes through the environment, not the config: the config is part of a run's key.
"""

import builtins
import os
import signal
import time
from pathlib import Path

import torch

from fu_core.errors import StorageError
from fu_core.streams import stream
from fu_papers.lab.record import run_function
from fu_papers.lab.task import NotHere


def walk(config, context):
    """A checkpointed random walk whose sums depend on how many threads share them."""
    position, start = torch.zeros(3), 0
    if (saved := context.resume()) is not None:
        position, start = saved[0]["position"], saved[1]["round"]
    _note("walk", config)
    for r in range(start, config["rounds"]):
        with context.phase("walk"):
            steps = torch.randn(400, 400, generator=stream(config["seed"], "walk", r))
            position = position + (steps @ steps.T).sum(0)[:3] / 1e3
            time.sleep(config.get("pause", 0))
        context.log(round=r, length=position.norm())
        context.checkpoint({"position": position}, {"round": r + 1})
        if os.environ.get("TOY_KILL_AT") == str(r):
            os.kill(os.getpid(), signal.SIGKILL)
    return {"length": position.norm(), "position": position.tolist()}, {"position": position}


def number(config, context):
    """The config's `value` as the only metric."""
    _note("number", config)
    return {"value": config["value"]}, None


def process(config, context):
    """Which process the run was in, after a while."""
    time.sleep(0.2)
    return {"pid": os.getpid()}, None


@run_function("toy.on_data", data=lambda config: f"d{config['value']}")
def on_data(config, context):
    """A run on data that depend on its config."""
    return {"value": config["value"]}, None


@run_function("toy.of_file", data=lambda config: os.environ.get("TOY_DATA", ""))
def of_file(config, context):
    """What the data hold that $TOY_DATA stands for, wherever it runs."""
    return {"data": os.environ.get("TOY_DATA", "")}, None


def says_no(config, context):
    """An error of the kind that the config names, if it names one."""
    kinds = {"torch": torch.OutOfMemoryError, "disk": StorageError, "not here": NotHere}
    if kind := kinds.get(config["kind"]) or getattr(builtins, config["kind"], None):
        raise kind("no, not here")
    return {"kind": config["kind"]}, None


def interval(config, context):
    """When it began and ended."""
    began = time.time()
    time.sleep(config["pause"])
    return {"began": began, "ended": time.time()}, None


def _walk_of(config):
    return {"walk": (walk, {"rounds": 2, "seed": config["seed"]})}


@run_function("toy.after", needs=_walk_of)
def after(config, context):
    """Where the walk ended that it needs, and how far that is."""
    _note("after", config)
    context.checkpoint({}, {"known": config["seed"]})
    end = context.needed("walk", ["position"])
    return {"end": end["position"].tolist(), "length": context.needed_record("walk").metrics["length"]}, None


def timed(config, context):
    """Measures time: seconds among its metrics, and in the second of its rows."""
    began = time.perf_counter()
    context.log(round=0, loss=0.5)
    context.log(round=1, seconds=time.perf_counter() - began, loss=0.25)
    return {"value": config["value"], "seconds": {"slow": time.perf_counter() - began, "fast": 0.0}, "loss": 0.25}, None


def two_tensors(config, context):
    """Nothing measured, two tensors kept."""
    return {}, {"first": torch.ones(1), "second": torch.full((1,), 2.0)}


def fails_on_odd(config, context):
    """ValueError for an odd `value`."""
    if config["value"] % 2:
        raise ValueError(f"{config['value']} is odd")
    return {"value": config["value"]}, None


def dies_on_two(config, context):
    """Kills its process if `value` is 2, after `pause` seconds."""
    _note("dies_on_two", config)
    time.sleep(config.get("pause", 0))
    if config["value"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"value": config["value"]}, None


def not_a_number(config, context):
    """A diverged run."""
    return {"accuracy": {"test": float("nan")}}, None


def threads(config, context):
    """How many threads torch has inside a run."""
    return {"threads": torch.get_num_threads()}, None


def _note(name, config):
    """Leave a line per computation in the file that $TOY_LOG names, so that a test can count."""
    if "TOY_LOG" in os.environ:
        with Path(os.environ["TOY_LOG"]).open("a") as log:
            log.write(f"{name} {config}\n")


def hungry(config, context):
    """A run that holds `config["mib"]` MiB for a moment, in pieces that malloc serves itself."""
    held = [torch.ones(2**16) for _ in range(4 * config["mib"])]  # 256 KiB each
    return {"value": sum(float(each[0]) for each in held)}, None
