"""PUF in somebody else's federation: the round of fu_core.flower in Flower's simulation, against our own.

A run like any other, so that its record can be shown where Flower is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

import pandas as pd

from fu_core import partition
from fu_core.data import load
from fu_core.errors import SimulationUnavailable
from fu_core.federation import ClientOpt, Federation, fedavg
from fu_core.models import build
from fu_core.request import Deletion
from fu_core.unlearning.puf import PUF, puf_round
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Record, run_function
from fu_papers.lab.task import NotHere

CLIENTS, TARGET, LOCAL = 4, 1, ClientOpt(lr=0.05, batch_size=20)
CONFIG = {"eta_u": {"special": 2.0, "regular": 20.0}, "round": 2}
SOURCE = "Digits (UCI optical recognition of handwritten digits, 8x8, bundled with scikit-learn), four clients"
QUIET = ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")


@run_function("puf.flower_round")
def flower_round(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, dict[str, float]], None]:
    """Train, unlearn in round `config["round"]`: in Flower and here, for both modes.

    Metrics: the largest difference of a parameter between the two, and how far the unlearning round has moved one.
    Four clients of digits, an MLP. Raises `NotHere` where Flower is not installed or does not start.
    """
    os.environ.update(dict.fromkeys(QUIET, "0"))
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise NotHere('Flower is not installed: pip install "fu_core[flower]"')
    from fu_core import flower

    data, rounds = load("digits"), config["round"]
    parts = partition.dirichlet(data.y_train, CLIENTS, alpha=1.0, seed=0)
    clients = {i: (data.x_train[p], data.y_train[p]) for i, p in enumerate(parts)}
    f = Federation(build("mlp", data), clients, LOCAL, seed=0)
    w_0 = f.model.init(0)
    deletion = Deletion.of(f.clients, TARGET)
    modes = {mode: PUF(mode=mode, eta_u=eta_u) for mode, eta_u in config["eta_u"].items()}

    def serve(grid: Any, nodes: list[int]) -> list[Any]:
        return [
            flower.PufStrategy(nodes, [TARGET], rounds, mode=mode, eta_u=how.eta_u, fraction_evaluate=0.0)
            .start(grid, flower.to_arrays(f.model, w_0), num_rounds=rounds)
            .arrays
            for mode, how in modes.items()
        ]

    try:
        theirs = flower.simulate(flower.client_app(f), CLIENTS, serve)
    except SimulationUnavailable as error:  # what goes wrong once it has started is nobody's lack of room
        raise NotHere(str(error)) from error
    before = fedavg(f, w_0, rounds - 1)
    metrics = {}
    for (mode, how), arrays in zip(modes.items(), theirs, strict=True):
        ours = puf_round(f, before, deletion, how, rounds)
        difference = flower.to_vector(arrays, f.model.names) - ours
        metrics[mode] = {"difference": float(difference.abs().max()), "moved": float((ours - before).abs().max())}
    return metrics, None


def flower_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per mode: the largest difference of a parameter, and how far the round has moved one."""
    rows = [
        {"mode": mode, "eta_u": record.config["eta_u"][mode], **measured, "same to 1e-6": measured["difference"] < 1e-6}
        for record in records
        for mode, measured in record.metrics.items()
    ]
    return pd.DataFrame(rows, columns=["mode", "eta_u", "difference", "moved", "same to 1e-6"])
