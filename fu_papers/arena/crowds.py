"""Are so many models enough? The same methods in the same places, judged on larger crowds.

The noise floor falls as crowds grow, and the scale of the ranking (log KLoM, from the floor to doing nothing) begins at
the floor: who is far from both looks farther by it, the lower the floor is. So a second scale stands beside it, which
does not know the floor's height: KLoM less the floor, in percent of doing nothing's.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fu_papers.arena.figures import CONTROLS, FARTHEST, LOWEST, look_of, place_line
from fu_papers.arena.grid import Experiment
from fu_papers.arena.results import NOTHING, above_floor, check_controls, of_runs, shown
from fu_papers.arena.show import source_of
from fu_papers.arena.tables import interval
from fu_papers.controls import AGAIN
from fu_papers.larger import show_beside
from fu_papers.look import LINE, keep_figure, keep_table, say_below
from fu_papers.problem_figures import Descriptions
from fu_papers.study import Study

FILES = ("crowds.png", "crowds.csv")
LOST = 10_000  # percent of doing nothing's distance: a model that ran away


def show_crowds(study: Study, experiment: Experiment, frame: pd.DataFrame, descriptions: Descriptions) -> None:
    """The figure and the table of large crowds beside those of `frame`; of a profile without any, a larger one's.

    descriptions: of the settings, whose data stand below them.
    """
    if not experiment.large_places:
        show_beside(experiment, *FILES)
        return
    large = of_runs(study.run("unlearning"), study.run("crowds"))
    both = beside(frame, large)
    source = source_of(descriptions, both.setting.unique())
    figure, table = (study.out / name for name in FILES)
    display(keep_figure(figure, source, crowds_figure, both, experiment.large_models))
    caption = f"The same methods on crowds of {experiment.large_models}. {'; '.join(agreement(both))}"
    display(keep_table(table, source, crowds_table(both, experiment.large_models), caption))


def beside(frame: pd.DataFrame, large: pd.DataFrame) -> pd.DataFrame:
    """A row per place and method of both frames, which `results.of_runs` gives: the columns of `frame`, and those of
    `large` ending in "_large"; `above`, `above_large`: KLoM less the floor, in percent of doing nothing's.

    Without what is infinitely far and what has no result. Raises ControlsFailed where controls of either are wrong.
    """
    keys = ["setting", "request", "method"]
    here = frame.set_index(keys).loc[lambda f: f.index.isin(large.set_index(keys).index)].reset_index()
    for crowd in (here, large):
        check_controls(crowd)
    here, large = (crowd.assign(above=above_floor(crowd)) for crowd in (here, large))
    both = here.merge(large, on=keys, suffixes=("", "_large"))
    finite = both[["left", "left_large"]].astype(float).apply(np.isfinite).all(axis=1)
    return both[finite].reset_index(drop=True)


def agreement(both: pd.DataFrame) -> list[str]:
    """Place by place: both floors, and the rank correlation of methods that are no controls."""
    told = []
    for (setting, _), rows in both.groupby(["setting", "request"], sort=False):
        ours = rows[~rows.method.isin(CONTROLS)]
        same = float(ours.left.astype(float).rank().corr(ours.left_large.astype(float).rank()))
        doing_nothing = rows.set_index("method").loc[NOTHING]
        told.append(
            f"{place_line(setting)}: floor {doing_nothing.floor:.3f} and "
            f"{doing_nothing.floor_large:.3f}, rank correlation of the {len(ours)} methods {same:.3f}"
        )
    return told


def crowds_table(both: pd.DataFrame, N: int) -> pd.DataFrame:
    """Place by place, the nearest to Retrain of the large crowds first: both scales at both sizes."""
    rows = []
    for (setting, request), place in both.groupby(["setting", "request"], sort=False):
        for row in place.sort_values("left_large", kind="stable").to_dict("records"):
            rows.append(
                {
                    "place": f"{request}, {place_line(setting)}",
                    "method": shown(row["method"]),
                    "N": f"{row['models']:.0f}",
                    "left, %": interval(row["left"], row["left_low"], row["left_high"]),
                    f"left, N = {N}": interval(row["left_large"], row["left_low_large"], row["left_high_large"]),
                    "KLoM above the floor, % of doing nothing": _percent(row["above"]),
                    f"the same, N = {N}": _percent(row["above_large"]),
                }
            )
    return pd.DataFrame(rows)


def _percent(value: float) -> str:
    """Of doing nothing's; a model that ran away is that many times worse, and no digit of it says more."""
    return f"over {LOST:,}" if value > LOST else f"{value:z.0f}"


def crowds_figure(both: pd.DataFrame, N: int) -> Figure:
    """A panel per place: KLoM above the floor in percent of doing nothing's, with fewer models (hollow) and N (full).

    The nearest to Retrain first. What is farther than FARTHEST stands at the edge.
    """
    places = list(both.groupby(["setting", "request"], sort=False))
    most = max(len(rows) for _, rows in places)
    fig, axes = plt.subplots(1, len(places), figsize=(6.2 * len(places), 0.25 * most + 1.9), squeeze=False)
    for ax, ((setting, request), rows) in zip(axes[0], places, strict=True):
        ordered = rows.sort_values("above_large", kind="stable").reset_index(drop=True)
        ax.axvline(0, color=look_of(AGAIN), linestyle="--", linewidth=1.2, zorder=1)
        ax.axvline(100, color=look_of(NOTHING), linestyle=":", linewidth=1.2, zorder=1)
        for y, row in enumerate(ordered.to_dict("records")):
            ends = np.clip([row["above"], row["above_large"]], LOWEST, FARTHEST)
            hue = look_of(row["method"])
            ax.plot(ends, [y, y], color=hue, linewidth=1.3, zorder=2)
            ax.plot(ends[0], y, "o", color=hue, markersize=6, zorder=3, markerfacecolor="white", markeredgewidth=1.4)
            ax.plot(ends[1], y, "o", color=hue, markersize=6, zorder=4)
        _name_rows(ax, ordered)
        ax.set_title(f"{request}, {place_line(setting)}", fontsize=10.5)
    fig.supxlabel("KLoM on forgotten data above the noise floor, in percent of doing nothing's", fontsize=11)
    handles = [
        Line2D([], [], color=LINE, marker="o", linestyle="", markersize=7, markeredgewidth=1.4, label=label,
               markerfacecolor=inside)
        for label, inside in ((f"{_sizes(both)} models a side", "white"), (f"{N}", LINE))
    ]  # fmt: skip
    fig.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    say_below(fig, f"0: Retrain's noise floor; 100: doing nothing; →: more than {FARTHEST:.0f} %")
    return fig


def _name_rows(ax: Axes, ordered: pd.DataFrame) -> None:
    far = ordered.above_large > FARTHEST
    names = [f"{shown(name)}{' →' if beyond else ''}" for name, beyond in zip(ordered.method, far, strict=True)]
    ax.set_yticks(range(len(ordered)), labels=names, fontsize=9)
    ax.set(xlim=(LOWEST, FARTHEST * 1.05), ylim=(len(ordered) - 0.4, -0.6))
    ax.set_xticks([0, 50, 100, 150, 200], labels=["Retrain", "50 %", "do nothing", "150 %", "200 %"])
    ax.grid(axis="y", visible=False)


def _sizes(both: pd.DataFrame) -> str:
    """How many models the smaller crowds have, as `"32 to 64"`."""
    sizes: Sequence[int] = sorted({int(N) for N in both.models})
    return f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
