"""The map for who has five seconds: eight dots at most, chosen by a rule, on plain axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from fu_papers.arena.figures import BAND, CONTROLS, FARTHEST, FORGOTTEN, REMEMBERED, look_of, marker_of
from fu_papers.arena.names import place_names
from fu_papers.arena.results import NOTHING
from fu_papers.controls import AGAIN
from fu_papers.look import say_below

OWN = ("PUF-Special", "HF-KCU held-out", "FedORA horizontal")  # the papers' own that work with a server, as corrected
RECOVERY = "Natural"  # nothing but the rounds of recovery that most others end with
ENDS = (NOTHING, AGAIN)  # of the scale
STEP = 10.0  # points of what is left: who comes nearer by less than that is no step of the frontier
LOWEST = -18.0  # percent left: the lower end of the picture
ALIAS = {NOTHING: "do nothing", AGAIN: "retrain"}
WHO = f"Drawn: the papers' own, {RECOVERY} (recovery alone), who serves all and is"


def chosen(ranked: pd.DataFrame) -> pd.DataFrame:
    """The rows of `ranked` that are drawn: ENDS, RECOVERY, OWN, and the frontier.

    The frontier, for each guarantee by itself: whoever served every place and is nearer to Retrain than doing nothing,
    and than all of the frontier that are cheaper, by STEP points or more; and the nearest, however small its step.
    """
    there = ranked[ranked.places > 0]
    frontier: list[str] = []
    methods = there[(there.places == there.of) & ~there.method.isin(CONTROLS)]
    for _, group in methods.sort_values(["price", "left"], kind="stable").groupby("guarantee", sort=False):
        nearest = 100.0
        for row in group.to_dict("records"):
            if row["left"] <= nearest - STEP or row["left"] == group.left.min() < 100:
                frontier.append(str(row["method"]))
                nearest = row["left"]
    return there[there.method.isin([*ENDS, RECOVERY, *OWN, *frontier])]


def short_map_figure(ranked: pd.DataFrame) -> Figure:
    """What is left to forget against the price in passes, both on plain scales, for the methods of `chosen`.

    What is farther than FARTHEST stands at the edge.
    """
    rows = chosen(ranked).to_dict("records")
    dots = [(100 * row["price"], min(row["left"], FARTHEST), _name(row)) for row in rows]
    fig, ax = plt.subplots(figsize=(9, 5.4))
    top = max(115.0, *(y + 15 for _, y, _ in dots))
    ax.axhspan(LOWEST, BAND, color=FORGOTTEN, zorder=0)
    ax.axhspan(100, top, color=REMEMBERED, zorder=0)
    ax.axhline(0, color=look_of(AGAIN), linestyle="--", linewidth=1.2, zorder=1)
    ax.axhline(100, color=look_of(NOTHING), linestyle=":", linewidth=1.2, zorder=1)
    for (x, y, _), row in zip(dots, rows, strict=True):
        ax.plot(x, y, markersize=13, linestyle="none", zorder=3, **marker_of(row))
    ax.set(xlim=(-5, max(118.0, *(x + 18 for x, _, _ in dots))), ylim=(LOWEST, top))
    ax.set_xticks(
        [0, 50, 100],
        labels=["no pass\nover the data", "half as\nmany passes", "as many passes\nas retraining"],
        fontsize=13,
    )
    ax.set_yticks([0, 100], labels=["forgets as\nretraining does", "as if nothing\nhad been done"], fontsize=13)
    ax.grid(visible=False)
    ax.set_title(_summary(rows), fontsize=13)
    fig.draw_without_rendering()  # the layout stands only now
    place_names(ax, dots, off=(0, 100), size=13, half=10)
    steps = f"nearest or {STEP:.0f} points nearer than all cheaper of its guarantee"
    say_below(fig, f"{WHO} {steps}; square: exact")
    return fig


def _name(row: Mapping[Any, Any]) -> str:
    """A dot's name, with how many places it served where it refused some."""
    name, served = str(row["method"]), "" if row["places"] == row["of"] else f" ({row['places']} of {row['of']})"
    return f"{ALIAS.get(name, name)}{served}{' ↑' if row['left'] > FARTHEST else ''}"


def _summary(rows: Sequence[Mapping[Any, Any]]) -> str:
    """Who of the drawn that serve every place comes nearest without a guarantee, by the judge that ranks; its price.

    Who refuses places may be nearer where he serves, and is in no mean over the same places.
    """
    everywhere = [row for row in rows if row["places"] == row["of"] and row["method"] not in CONTROLS]
    methods = [row for row in everywhere if row["guarantee"] == "none"]
    if not methods:
        return "Forgetting against price"
    best = min(methods, key=lambda row: float(row["left"]))
    left, price = best["left"], 100 * best["price"]
    if left >= 100:
        return "Without a guarantee, nobody here comes nearer to retraining than doing nothing"
    at = f"{left:.0f} % left to forget for {price:.0f} % of the passes"
    return f"Serving every place, without a guarantee, nearest by KLoM:\n{best['method']}, {at}"
