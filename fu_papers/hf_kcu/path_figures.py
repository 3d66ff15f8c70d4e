"""How far HF-KCU's corrected step should go: its whole path as a picture and a table, drawn from run records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fu_papers.hf_kcu.figures import plain_numbers
from fu_papers.hf_kcu.grid import MATCHED, ROUND
from fu_papers.lab.record import Record
from fu_papers.look import colour, marker, say_below
from fu_papers.problem_figures import axes_row, counted, spread_or_dash

HELD = "held-out rule, its level held"
BEST = "the best of the path (knows Retrain)"
NAMED = {
    "Original": "do nothing",
    "Retrain": "Retrain",
    "HF-KCU": "rule of the corrected step",
    MATCHED: "held-out rule",
}


def level_held(record: Record) -> dict[str, float]:
    """Where the forgotten reach the loss that held-out images have *before* the step: read off the path, between two of
    its dampings. The rule of the library compares with their loss after it, which moves along."""
    ends, start = record.metrics["path"], record.metrics["stops"]["Original"]
    level = start["held_loss"]
    if start["forget_loss"] >= level:
        return dict(start)
    losses = [start["forget_loss"], *ends["forget_loss"]]
    beyond = next((k for k, loss in enumerate(losses) if loss >= level), len(losses) - 1)
    share = min(1.0, (level - losses[beyond - 1]) / (losses[beyond] - losses[beyond - 1]))
    walked = {name: [start[name], *values] for name, values in ends.items() if name in start}
    return {name: values[beyond - 1] + share * (values[beyond] - values[beyond - 1]) for name, values in walked.items()}


def best_of(record: Record) -> dict[str, float]:
    """The end of the path that is nearest to Retrain on the forgotten; no rule may know it."""
    ends = record.metrics["path"]
    place = int(np.argmin(ends["kl_forget"]))
    return {name: values[place] for name, values in ends.items()}


def stops_of(record: Record) -> dict[str, Mapping[str, float]]:
    """Both references, where three rules stop, and the best of the path."""
    stops = record.metrics["stops"]
    known = {told: stops[name] for name, told in NAMED.items()}
    return {**known, HELD: level_held(record), BEST: best_of(record)}


def path_figure(paths: Sequence[Record]) -> Figure:
    """How far to go: along the corrected step, by its length, how well images are known and how far Retrain is.

    Left: the loss on the forgotten, and on as many held-out images of each class; the held-out rule stops where both
    meet. Right: KL to Retrain on the forgotten, lowest where the step is as long as it should be. A line per seed.
    """
    fig, (left, right) = axes_row(2, height=4.0, width=4.6)
    marks: dict[str, dict[str, Any]] = {
        NAMED["HF-KCU"]: {"color": colour("HF-KCU"), "marker": marker("HF-KCU")},
        NAMED[MATCHED]: {"color": colour(MATCHED), "marker": marker(MATCHED)},
        HELD: {"facecolor": "none", "edgecolor": colour(MATCHED), "marker": marker(MATCHED)},
    }
    for record in paths:
        ends, stops = record.metrics["path"], stops_of(record)
        look: dict[str, Any] = {"linewidth": 1.2, "alpha": 0.8}
        left.plot(ends["travelled"], ends["forget_loss"], color=colour("HF-KCU"), **look)
        left.plot(ends["travelled"], ends["held_loss"], "--", color=colour(ROUND), **look)
        left.axhline(stops["Retrain"]["forget_loss"], color=colour("Retrain"), linestyle=":", linewidth=1)
        right.plot(ends["travelled"], ends["kl_forget"], color=colour("HF-KCU"), **look)
        right.axhline(stops["do nothing"]["kl_forget"], color=colour("Original"), linestyle=":", linewidth=1)
        for rule, at in marks.items():
            stop = stops[rule]
            if stop["travelled"]:  # a logarithm has no place for what stays where it is
                left.scatter(stop["travelled"], stop["forget_loss"], s=60, zorder=3, **at)
                right.scatter(stop["travelled"], stop["kl_forget"], s=60, zorder=3, **at)
    lines: dict[str, dict[str, Any]] = {
        "loss on the forgotten": {"color": colour("HF-KCU")},
        "on held-out images, as many of each class": {"color": colour(ROUND), "linestyle": "--"},
        "Retrain's on the forgotten": {"color": colour("Retrain"), "linestyle": ":"},
        "do nothing": {"color": colour("Original"), "linestyle": ":"},
    }
    for rule, at in marks.items():
        edge = {"color": at["edgecolor"], "markerfacecolor": "none"} if rule == HELD else {"color": at["color"]}
        lines[rule] = {**edge, "marker": at["marker"], "linestyle": "none"}
    fig.legend([Line2D([], [], **look) for look in lines.values()], list(lines), loc="outside upper center", ncols=2,
               frameon=False)  # fmt: skip
    left.set(title="How well images are known", ylabel="loss (nats)")
    right.set(title="How far Retrain is, on the forgotten", ylabel="KL to Retrain (nats)")
    for ax in (left, right):
        ax.set(xscale="log", yscale="log", xlabel="step / |Retrain - Original|")
        plain_numbers(ax)
    say_below(fig, f"A line: one of {counted(len(paths), 'seed')}; its λ falls from left to right")
    return fig


def path_table(paths: Sequence[Record]) -> pd.DataFrame:
    """Where three rules stop on the path of the corrected step, between doing nothing, Retrain and the best stop."""
    columns = {
        "step / |Retrain - Original|": ("travelled", 2),
        "test acc. %": ("test", 1),
        "forget acc. %": ("forget", 1),
        "loss on the forgotten": ("forget_loss", 2),
        "on held-out images": ("held_loss", 2),
        "on more of them": ("more_held_loss", 2),
        "KL on the forgotten": ("kl_forget", 3),
    }
    found = [stops_of(record) for record in paths]
    rows = []
    for stop in found[0]:
        values = pd.DataFrame([one[stop] for one in found])
        rows.append({"stop": stop, **{head: spread_or_dash(values[name], d) for head, (name, d) in columns.items()}})
    return pd.DataFrame(rows)
