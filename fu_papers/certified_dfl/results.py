"""The tidy frame of certified DFL's runs, and how its rows and other records are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd

from fu_core.unlearning.du import DU
from fu_core.unlearning.method import method as registered
from fu_papers.certified_dfl.grid import Experiment, Place, granularity
from fu_papers.controls import AGAIN, REFERENCES
from fu_papers.lab.record import Record
from fu_papers.study import Cell, tidy

Descriptions = Mapping[Place, Record]
Unlearnings = Mapping[Cell, Record]
Curves = Mapping[tuple[str, str, str, int], Record]  # (data set, "sample" | "client", method, seed)
Phases = list[list[tuple[int, float]]]  # (round, test accuracy) in training and after each request
Speeds = Mapping[tuple[str, str], Record]  # (data set, granularity)
Certificates = Mapping[tuple[Place, str, int], Record]  # (place, kind of request, seed)

COMPARED = ("test", "before_test", "removed", "remaining", "forget", "mia", "auc", "tpr", "mia_off", "auc_off", "kl")
POINT = 1.0  # "within 1 point of Retrain"


def of_runs(unlearnings: Unlearnings) -> pd.DataFrame:
    """Every metric of every run, with differences to Retrain at the same place, for the same request and seed.

    `mia_off`, `auc_off`: how far the attack is from guessing. `delta_...`: absolute difference to Retrain;
    `..._retrain`, `..._original`: the values of those two.
    """

    def measured(record: Record) -> dict[str, Any]:
        m = record.metrics
        return {**m, "mia_off": abs(m["mia"] - 50), "auc_off": abs(m["auc"] - 0.5)}

    def measure(cell: Cell, record: Record) -> Iterator[dict[str, Any]]:
        curved = cell.method != AGAIN and registered(cell.method).parameters is DU
        m = measured(record)
        compared = [name for name in COMPARED if name in m]
        values = {"curvature": record.config["options"]["curvature"] if curved else None, **m}
        for method in REFERENCES:
            reference = measured(unlearnings[cell._replace(group="tables", method=method, label="")])
            values |= {f"{name}_{method.lower()}": reference[name] for name in compared}
        yield values | {f"delta_{name}": abs(m[name] - values[f"{name}_retrain"]) for name in compared}

    return tidy(unlearnings, measure)


def saved(runs: pd.DataFrame) -> pd.DataFrame:
    """The wide frame under the names of certified DFL's CSV file, a label for every row: the choice, or the method."""
    places = [Place.of(cell) for cell in map(Cell._make, runs[list(Cell._fields)].itertuples(index=False))]
    where = {
        "group": runs.group,
        "request": runs.request.map(granularity),
        "label": runs.label.where(runs.label != "", runs.method),
        "method": runs.method,
        **{name: [getattr(place, name) for place in places] for name in Place._fields},
        "seed": runs.seed,
    }
    compared = [name for name in COMPARED if name in runs]
    derived = ["mia_off", "auc_off"]
    derived += [f"{name}_{method.lower()}" for method in REFERENCES for name in compared]
    derived += [f"delta_{name}" for name in compared]
    measured = [name for name in runs if name not in (*Cell._fields, *derived, "record")]
    return pd.DataFrame(where).join(runs[[*measured, *derived]])


def cell_runs(runs: pd.DataFrame, place: Place, request: str, method: str) -> pd.DataFrame:
    """A method's runs at one place for one kind of request, a row per seed: one row of Tables I to IV."""
    here = (runs.setting == place.setting) & (runs.condition == place.topology) & (runs.group == "tables")
    return runs[here & (runs.request.map(granularity) == request) & (runs.method == method)]


def of_dataset(e: Experiment, runs: pd.DataFrame, dataset: str) -> pd.DataFrame:
    """All runs on a data set with its net."""
    return runs[runs.setting.isin([place.setting for place in e.places() if place.dataset == dataset])]


def phases(curve: Record) -> Phases:
    """A curve's (round, test accuracy) in training and after each request. Round 0: before anything was trained."""
    found: Phases = [[] for _ in range(1 + max(entry["phase"] for entry in curve.rounds))]
    for entry in curve.rounds:
        found[entry["phase"]].append((entry["round"], entry["test"]))
    return found


def paths(curves: Curves, dataset: str, kind: str) -> dict[str, list[Phases]]:
    """The curves of one panel of Fig. 1, method by method: one per seed, in the order of the seeds."""
    found: dict[str, list[Phases]] = {}
    for (d, k, method, _), record in curves.items():
        if (d, k) == (dataset, kind):
            found.setdefault(method, []).append(phases(record))
    return found


def rounds_to_reach(points: Sequence[tuple[int, float]], goal: float, within: float = POINT) -> int | None:
    """The first round whose accuracy is at least `goal - within`; None if there is none."""
    return next((t for t, accuracy in points if accuracy >= goal - within), None)


def needed_rounds(points: Sequence[Sequence[tuple[int, float]]], goals: Sequence[float]) -> str:
    """`"1"`, `"0 to 2"`, `"not within 5 (2 of 3)"`: rounds until each seed's accuracy is within a point of its goal."""
    reached = [rounds_to_reach(path, goal) for path, goal in zip(points, goals, strict=True)]
    there = [n for n in reached if n is not None]
    if len(there) < len(reached):
        never = f"not within {points[0][-1][0]}"
        return never if not there else f"{never} ({len(reached) - len(there)} of {len(reached)})"
    return f"{min(there)}" if min(there) == max(there) else f"{min(there)} to {max(there)}"


def saved_percent(seconds: Mapping[str, float], method: str) -> float:
    """By how many percent `method` takes less time than retraining; negative if it takes longer."""
    return 100 * (1 - seconds[method] / seconds["Retrain"])


def releases(certificates: Certificates) -> pd.DataFrame:
    """One row per place, kind of request, seed, request, epsilon and form: released or refused, sigma, accuracy, and
    |noise| / |model|."""
    unknown = dict.fromkeys(("sigma", "test", "retrained", "claimed_radius", "mu"), np.nan)
    rows = [
        {**unknown, **entry, **place._asdict(), "kind": kind, "seed": seed, "place": place}
        | {name: record.metrics[name] for name in ("length", "d")}
        for (place, kind, seed), record in certificates.items()
        for entry in record.rounds
    ]
    found = pd.DataFrame(rows)
    return found.assign(ratio=found.sigma * np.sqrt(found.d) / found.length)


def served(certificates: Certificates, form: str = "served") -> pd.DataFrame:
    """One row per place, kind of request, seed and request: what it took, and where it ended without noise.

    form: "served", the corrected one; "printed" where that was run."""
    rows = [
        {**entry, **place._asdict(), "kind": kind, "seed": seed, "place": place, "of": j}
        for (place, kind, seed), record in certificates.items()
        for j, entry in enumerate(record.metrics[form], start=1)
    ]
    return pd.DataFrame(rows)


def graph_of(description: Record, clients: int) -> nx.Graph:
    """The graph that a place was described with."""
    graph = nx.empty_graph(clients)
    graph.add_edges_from(description.metrics["edges"])
    return graph
