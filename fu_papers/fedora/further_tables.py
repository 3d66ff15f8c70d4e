"""Tables beside the paper's: how methods were tuned, forgetting against utility, classes, parties, numbers in its text.

As those of `tables`: from the experiment and records or the frame of `results`; nothing here trains.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fu_core.request import Request
from fu_core.unlearning.method import method as registered
from fu_papers.controls import CONTROLS
from fu_papers.fedora.choices import QUARTER, SWEPT
from fu_papers.fedora.grid import BASELINES, FORMS, LEAKING, METHODS, PEERS, Experiment, Task, is_for
from fu_papers.fedora.results import Unlearnings, counted_in, kept_model, request_title, rows_of, shown
from fu_papers.fedora.runs import best_trial, objective
from fu_papers.fedora.tables import PAPER_NAMES, outcome
from fu_papers.lab.record import Record
from fu_papers.look import published
from fu_papers.problem_figures import spread_or_dash
from fu_papers.problems import dataset_title

# --- tuning, and forgetting against utility --------------------------------------------------------------------------


def tuning_table(e: Experiment, tuning: Unlearnings) -> pd.DataFrame:
    """What every method was given: trials, the best and the published values of what is tuned, and how good they were.

    Objective: points of forget gap plus points of validation accuracy short of Retrain's, on requests and a seed that
    are judged nowhere, mean over the requests that the method can serve. A choice that is no better than doing nothing
    is of no use there.
    """
    rows = []
    for dataset, method in itertools.product(e.datasets, (*METHODS, *PEERS)):
        records: dict[str, list[Record]] = {}  # by trial, one per request
        for cell, record in tuning.items():
            if (cell.setting, cell.method) == (dataset, method):
                records.setdefault(cell.label, []).append(record)
        if not records:
            continue
        tried = list(records.values())
        best, published_one = tried[best_trial(tried)], tried[0]
        # by request, since a trial may have diverged on one of them and not on the other
        nothing = {
            r.config["request"]: r.metrics["nothing"] for trial in tried for r in trial if "nothing" in r.metrics
        }
        named = registered(method).ranges
        rows.append(
            {
                "data set": dataset_title(dataset),
                "method": shown(method),
                "trials": len(tried),
                "diverged": sum(math.isinf(objective(trial)) for trial in tried),
                "chosen": _values(best[0].config["options"], named),
                "objective": _objective(best),
                "as published": _values(published_one[0].config["options"], named),
                "its objective": _objective(published_one),
                "doing nothing's": f"{sum(nothing.values()) / len(nothing):.1f}" if nothing else "–",
            }
        )
    return pd.DataFrame(rows)


def _values(options: Mapping[str, Any], named: Iterable[str]) -> str:
    """What was tuned of some options, `"lr 0.003, epochs 5"`."""
    values = {name: options[name] for name in named}
    return ", ".join(f"{name} {v:g}" if isinstance(v, int | float) and not isinstance(v, bool) else f"{name} {v}"
                     for name, v in values.items())  # fmt: skip


def _objective(trial: Sequence[Record]) -> str:
    return "diverged" if math.isinf(found := objective(trial)) else f"{found:.1f}"


def curve_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The points behind the curves: each method's other values as tuned, one swept; its samples over Retrain's."""
    rows: list[dict[str, Any]] = []
    for task in e.curve_tasks():
        points = [(m, "", "main") for m in CONTROLS]
        points += [
            (m, f"{value:g}", "curve")
            for m, (_, values) in SWEPT.items()
            for value in (getattr(e, values) if is_for(m, task) else ())
        ]
        for method, label, group in points:
            cell = kept_model(found := rows_of(runs, group, task, method, label))
            rows.append(
                {
                    "data set": dataset_title(task.dataset),
                    "request": request_title(task.request),
                    "method": shown(method),
                    "swept": f"{SWEPT[method][0]} {label}" if label else "–",
                    "test acc. (%)": spread_or_dash(cell.test),
                    "unlearning acc. (%)": spread_or_dash(cell.forget),
                    "off Retrain's (points)": spread_or_dash(cell.delta_forget),
                    "samples / Retrain's": spread_or_dash(cell.images / cell.retrain_images, 2) if label else "–",
                    "diverged": f"{len(found) - len(cell)} of {len(found)}",
                }
            )
    return pd.DataFrame(rows)


def capped_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Every form of FedORA as tuned, and with a quarter of Retrain's samples at most: what that saves, and costs.

    Accuracies are means over the settings in which the tuned form passes more than that with some seed; elsewhere there
    is nothing to save.
    """
    rows: list[dict[str, Any]] = []
    for method in FORMS:
        tasks = [task for task in (*e.tasks(labels=False), *e.tasks(labels=True)) if is_for(method, task)]
        tuned = {task: kept_model(rows_of(runs, "main", task, method)) for task in tasks}
        dear = [task for task, cell in tuned.items() if (cell.images > cell.retrain_images / 4).any()]
        capped = {task: kept_model(rows_of(runs, "capped", task, method, QUARTER)) for task in tasks}
        row: dict[str, Any] = {"method": shown(method), "over a quarter in": f"{len(dear)} of {len(tasks)} settings"}
        for which, cells in (("tuned", tuned), ("a quarter at most", capped)):
            least = min((cell.retrain_images / cell.images).min() for cell in cells.values() if len(cell))
            there = pd.concat([cells[task] for task in dear]) if dear else runs.iloc[:0]
            row |= {
                f"Retrain's samples / its, least, {which}": round(least, 2),
                f"test acc. (%) there, {which}": spread_or_dash(there.test),
                f"off Retrain's (points) there, {which}": spread_or_dash(there.delta_forget),
            }
        rows.append(row)
    return pd.DataFrame(rows)


# --- who pays, and who holds what -------------------------------------------------------------------------------------


def affected_classes(e: Experiment, unlearnings: Unlearnings, task: Task) -> pd.DataFrame:
    """Test accuracy of each class that loses samples, and of all classes, mean ± standard deviation over seeds.

    The mean over all classes hides what happens to the few that a request is about.
    """
    rows = []
    for method in (*CONTROLS, *METHODS):
        found = [unlearnings[cell].metrics for s in e.seeds if (cell := task.cell("main", s, method)) in unlearnings]
        kept = [metrics for metrics in found if "by_class" in metrics and "diverged" not in metrics]
        if not kept:
            continue
        lost = f" ({len(found) - len(kept)} of {len(found)} diverged)" if len(kept) < len(found) else ""
        found = kept
        row = {
            "method": shown(method),
            "all classes (%)": spread_or_dash(pd.Series([m["test_all"] for m in found])) + lost,
        }
        for label in found[0]["by_class"]:
            row[f"class {label} (%)"] = spread_or_dash(pd.Series([m["by_class"][label] for m in found]))
        rows.append(row)
    return pd.DataFrame(rows)


def parties_results(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The main setting with other parties: how accuracy and forgetting depend on who holds what, and what it costs."""
    rows = []
    for group, task in [("main", e.main), *(("parties", task) for task in e.split_tasks())]:
        for method in (*CONTROLS, "FedORA"):
            cell = rows_of(runs, group, task, method)
            sent = (kept_model(cell).up + kept_model(cell).down) / 1e6  # of unlearning: a training's is in Table III
            rows.append(
                {
                    "parties": "2, halves" if group == "main" else task.condition,
                    "method": shown(method),
                    **outcome(cell),
                    "MB across the border": "–" if method in CONTROLS else spread_or_dash(sent, 1),
                }
            )
    return pd.DataFrame(rows)


# --- what the border leaks --------------------------------------------------------------------------------------------

CONSTANT = "always the most frequent label"


def leaks_table(e: Experiment, leaks: Unlearnings) -> pd.DataFrame:
    """Labels that a passive party infers and features that the active party reconstructs, on the main setting.

    Labels: percent right, mean over the passive parties, beside what the best constant answer has right; with a few
    known labels of retained samples ("retained", "forgotten"), and of retained samples with none at all, from clusters.
    R^2: of each party's features. "off Retrain's": mean absolute difference to the Retrain of the same seed, on what is
    forgotten, in points and in R^2, mean over parties. Methods have the best of their trials.
    """
    rows: list[dict[str, Any]] = []
    parties = max((len(record.metrics.get("r2_retained", [])) for record in leaks.values()), default=0)
    chance = [r.metrics for c, r in leaks.items() if c.method == "Original"]
    rows.append(
        {
            "method": CONSTANT,
            "labels, retained (%)": spread_or_dash(pd.Series([m["chance_retained"] for m in chance])),
            "labels, forgotten (%)": spread_or_dash(pd.Series([m["chance_forgotten"] for m in chance])),
        }
    )
    for method in (*CONTROLS, *LEAKING):
        cells = [cell for s in e.seeds if (cell := e.main.cell("leaks", s, method)) in leaks]
        kept = [cell for cell in cells if "diverged" not in leaks[cell].metrics]
        found = [leaks[cell].metrics for cell in kept]
        retrained = [leaks[cell._replace(method="Retrain")].metrics for cell in kept]
        lost = f" ({len(cells) - len(kept)} of {len(cells)} diverged)" if len(kept) < len(cells) else ""
        row = {
            "method": shown(method),
            "labels, retained (%)": _mean_over_parties(found, "labels_retained") + lost,
            "labels, forgotten (%)": _mean_over_parties(found, "labels_forgotten"),
            "off Retrain's (points)": _off(found, retrained, "labels_forgotten", 1),
            "clusters, retained (%)": _mean_over_parties(found, "clusters_retained"),
        }
        for k, of in itertools.product(range(parties), ("retained", "forgotten")):
            row[f"R² of party {k + 1}, {of}"] = spread_or_dash(pd.Series([m[f"r2_{of}"][k] for m in found]), 2)
        rows.append(row | {"off Retrain's (R²)": _off(found, retrained, "r2_forgotten", 2)})
    return pd.DataFrame(rows).fillna("–")


def _mean_over_parties(found: Sequence[Mapping[str, Any]], name: str) -> str:
    return spread_or_dash(pd.Series([sum(m[name]) / len(m[name]) for m in found], dtype=float))


def _off(found: Sequence[Mapping[str, Any]], retrained: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    """Mean absolute difference to Retrain's of the same seed, over the parties of a run."""
    off = [
        sum(abs(a - b) for a, b in zip(mine[name], theirs[name], strict=True)) / len(mine[name])
        for mine, theirs in zip(found, retrained, strict=True)
    ]
    return spread_or_dash(pd.Series(off, dtype=float), digits)


# --- what the paper says in its text ---------------------------------------------------------------------------------

# Of the table of numbers that stand beside Figures 4 to 8: (figure, setting) -> data set, request, group, label.
SAID = re.compile(r"m=(?P<m>\d+)(?: n=(?P<n>\d+)%)?")
QUANTITIES = {"unlearning_acc": ("forget", 1.0), "test_acc": ("test", 1.0), "mia_asr": ("mia", 100.0),
              "bd_asr": ("asr", 1.0)}  # fmt: skip


def said_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The numbers that the paper's text gives of Figures 4 to 8, beside ours, in percent, means over seeds.

    Of Figures 4 to 7, ours are of the same data set, over all requests of the kind that the sentence is about; a dash
    where this profile does not have it. Of Figure 8, ours are of the main setting, whatever its data set.
    """
    rows = []
    for row in published("fedora", "figure_numbers").to_dict("records"):
        metric, factor = QUANTITIES[row["quantity"]]
        cells = [cell for task, group, label in _said_of(e, row) for cell in _said_by(runs, row, task, group, label)]
        found = [counted_in(cell, metric) for cell in cells]
        values = [factor * float(cell[metric].mean()) for cell in found if cell[metric].notna().any()]
        ends = sorted({round(value, 1) for value in (min(values), max(values))}) if values else []
        rows.append(
            {
                "figure": row["figure"],
                "setting": row["setting"],
                "method": row["method"],
                "quantity": row["quantity"],
                "paper": f"{row['relation']} {row['value_pct']:g}",
                "ours": " to ".join(f"{end:g}" for end in ends) or "–",
            }
        )
    return pd.DataFrame(rows)


def said_of_figure_8(e: Experiment) -> Iterator[tuple[str, str, str, float]]:
    """The numbers that the text gives of Fig. 8: group and label of our runs there, metric, value in percent."""
    for row in published("fedora", "figure_numbers").to_dict("records"):
        if row["figure"].startswith("Fig. 8") and row["relation"] == "equal":
            for _, group, label in _said_of(e, row):
                yield group, label, QUANTITIES[row["quantity"]][0], float(row["value_pct"])


def _said_of(e: Experiment, row: Mapping[Hashable, Any]) -> list[tuple[Task, str, str]]:
    """Where our numbers for a sentence of the paper's are: tasks, the group of their runs, and the label there."""
    setting, figure = row["setting"], row["figure"]
    if figure.startswith("Fig. 8"):
        values = e.weights if "(a)" in figure else e.ratios
        group, said = ("weights", re.search(r"weight (\S+)", setting)) if "(a)" in figure else (
            "ratios", re.search(r"ratio (\S+)%", setting))  # fmt: skip
        if not re.search("weight|ratio", setting):  # what is said of all of them
            return [(e.main, group, f"{value:g}") for value in values]
        value = float(said[1]) / (1 if group == "weights" else 100) if said else None
        return [(e.main, group, f"{value:g}")] if value in values else []
    named = {PAPER_NAMES.get(d.split("/")[0], ""): d for d in e.datasets}
    chosen = [d for name, d in named.items() if name and re.search(rf"{re.escape(name)}(?!0)", setting)]
    if "label unlearning" in setting and not any(name in setting for name in PAPER_NAMES.values()):
        chosen = list(named.values())
    tasks = [t for d in chosen for t in (e.label_tasks(d) if "label" in setting else e.sample_tasks(d))]
    if said := SAID.search(setting):
        tasks = [task for task in tasks if Request.parse(task.request).count == int(said["m"])]
    return [(task, "main", "") for task in tasks]


def _said_by(
    runs: pd.DataFrame, row: Mapping[Hashable, Any], task: Task, group: str, label: str
) -> Iterator[pd.DataFrame]:
    """The runs of the methods that a sentence names."""
    named = (*BASELINES, "Retrain", "FedORA") if row["method"] == "all" else row["method"].split(", ")
    for method in named:
        yield rows_of(runs, group, task, method, label)
