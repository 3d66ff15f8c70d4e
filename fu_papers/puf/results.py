"""The tidy frame of PUF's runs, and how its rows are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from fu_papers.lab.record import Record
from fu_papers.problem_figures import title
from fu_papers.puf.grid import PUBLISHED, PUFS, Experiment
from fu_papers.puf.runs import STOP_RULES
from fu_papers.study import Cell, tidy

Trainings = Mapping[tuple[str, str, int, str], Record]  # (scenario, setting, seed, request)
Unlearnings = Mapping[Cell, Record]

ATTACKS = ("forget", "song", "yeom")  # what tells remembered data from forgotten ones, as printed
JUDGES = (
    "shadow",
    "shadow_auc",
    "threshold_auc",
    "tpr",
    "relearn",
    "backdoor",
)  # stronger eyes, where they have looked


def is_exempt(config: Mapping[str, Any]) -> bool:
    """From the stop rule: what does not recover (controls, FedEraser) or is read at fixed rounds (Natural)."""
    return not config["cap"] or bool(config["read"])


def of_runs(unlearnings: Unlearnings, trainings: Trainings, references: Unlearnings | None = None) -> pd.DataFrame:
    """Every metric of every run, per stop rule, with differences to the retrained model of the same seed and request.

    `references` holds the Retrain runs if `unlearnings` does not. "reached": False where a method gave up, whose state
    is then no result; whoever is exempt from the stop rule (controls, Natural, FedEraser) cannot give up. "shortfall":
    how much less test accuracy than Retrain. Runs of unsupported cases have no rows, those that diverged have some
    without numbers.
    """

    def measure(cell: Cell, record: Record) -> Iterator[dict[str, Any]]:
        if "unsupported" in record.metrics:
            return
        options = record.config.get("options", {}) | record.metrics.get("chosen", {})
        swept = {name: options[name] for name in ("eta_u", "epochs_u") if name in options}
        if "diverged" in record.metrics:
            yield from ({"stop": stop, "test": None, "reached": False, **swept} for stop in STOP_RULES)
            return
        retrained = (references or unlearnings)[cell._replace(method="Retrain", label="")].metrics["final"]
        training = trainings[cell.group, cell.setting, cell.seed, cell.request].metrics
        exempt = is_exempt(record.config)
        for stop in STOP_RULES:
            m: dict[str, Any] = dict(record.metrics.get("final") or record.metrics[stop])
            if cell.method == "Retrain":
                m |= {"bytes": training["bytes"], "images": training["images"]}
            m["reached"] = exempt or m["reached"]
            spent = [cost for cost in ("bytes", "images") if m.get(cost)]  # none where nothing was sent
            gains = {f"{cost}_gain": training[cost] / m[cost] for cost in spent}
            compared = [name for name in ("test", "loss", *ATTACKS, *JUDGES) if name in m]
            if not (m.get("relearned") and retrained.get("relearned")):  # two caps would agree perfectly
                compared = [name for name in compared if name != "relearn"]
            deltas = {f"delta_{name}": abs(m[name] - retrained[name]) for name in compared}
            deltas["shortfall"] = retrained["test"] - m["test"]
            step = {f"unlearned_{k}": v for k, v in record.metrics.get("unlearned", {}).items() if k != "sha256"}
            yield {"stop": stop, **m, **deltas, **gains, **step, **swept}

    return tidy(unlearnings, measure, index=["stop"])


def natural_at(unlearnings: Unlearnings, group: str = "clients") -> pd.DataFrame:
    """Natural's state after every round: setting, seed, request, round, test, forget and delta_forget, in points."""
    rows = []
    for cell, record in unlearnings.items():
        if (cell.group, cell.method) == (group, "Natural") and record.rounds:
            retrained = unlearnings[cell._replace(method="Retrain")].metrics["final"]["forget"]
            rows += [
                {
                    "setting": cell.setting,
                    "seed": cell.seed,
                    "request": cell.request,
                    "round": row["round"],
                    "test": row["test"],
                    "forget": row["forget"],
                    "delta_forget": abs(row["forget"] - retrained),
                    "record": record.key,
                }
                for row in record.rounds
            ]
    return pd.DataFrame(rows)


def as_published(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows with methods' own settings: those so labelled, and those of methods that nothing was tuned of."""
    places = ["group", "setting", "method"]  # of some seeds only
    own = runs[runs.label == PUBLISHED]
    others = runs[runs.label == ""].merge(own[places].drop_duplicates(), on=places, how="left", indicator=True)
    return pd.concat([own, others[others.pop("_merge") == "left_only"]])


def at_printed_rates(e: Experiment, runs: pd.DataFrame, swept: pd.DataFrame) -> pd.DataFrame:
    """PUF in the main block with the paper's own eta_u and E_u: as published, of the first seed where trials chose
    something else, and further seeds from the sweep, where it has them, and from where trials chose the paper's."""
    own = as_published(runs)
    own = own[(own.group == "clients") & own.method.isin(PUFS)]
    known = [rated for rated in (swept, runs) if "eta_u" in rated]  # an empty frame has no columns
    if not known:
        return own
    rated = pd.concat(known)
    paper = rated.method.map({PUFS[0]: e.eta_u_special, PUFS[1]: e.eta_u_regular})
    further = rated[(rated.group == "clients") & (rated.eta_u == paper) & (rated.epochs_u == e.epochs_u)]
    there = [frame for frame in (own, further) if len(frame)] or [own]
    return pd.concat(there).drop_duplicates(["setting", "method", "seed", "request", "stop"])


def diverged(unlearnings: Unlearnings) -> dict[str, str]:
    """Method, and eta_u and E_u where they are swept -> in how many of its runs training left the numbers."""
    counts: dict[str, list[bool]] = {}
    for cell, record in unlearnings.items():
        name = f"{cell.method} ({cell.label})" if cell.label else cell.method
        counts.setdefault(f"{title(cell.setting)}: {name}", []).append("diverged" in record.metrics)
    return {name: f"{sum(lost)} of {len(lost)} runs" for name, lost in counts.items() if any(lost)}


def unsupported(unlearnings: Unlearnings, scenario: str) -> dict[str, str]:
    """Method -> why it cannot serve the scenario's requests, in its own words."""
    return {
        cell.method: record.metrics["unsupported"]
        for cell, record in unlearnings.items()
        if cell.group == scenario and "unsupported" in record.metrics
    }


def runs_of(unlearnings: Unlearnings, scenario: str, setting: str, method: str) -> list[Record]:
    """The runs of one block and method that have a result."""
    return [
        record
        for cell, record in unlearnings.items()
        if (cell.group, cell.setting, cell.method, cell.label) == (scenario, setting, method, "")
        and not {"unsupported", "diverged"} & set(record.metrics)
    ]


def rows_of(
    runs: pd.DataFrame, scenario: str, setting: str, method: str, stop: str, label: str | None = ""
) -> pd.DataFrame:
    """The rows of one block and method; `label`: None for whichever."""
    here = (runs.group == scenario) & (runs.setting == setting) & (runs.method == method) & (runs.stop == stop)
    return runs[here if label is None else here & (runs.label == label)]


def saved(frame: pd.DataFrame) -> pd.DataFrame:
    """A frame under the names of PUF's CSV files: scenarios and variants."""
    plain = frame.drop(columns=["condition", "record"], errors="ignore")
    return plain.rename(columns={"group": "scenario", "label": "variant"})
