"""FedORA's figures, drawn from run records only. Numbers as in the paper: Fig. 4 to 8.

Every function takes the experiment and records or the frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fu_papers.controls import AGAIN
from fu_papers.fedora.choices import CURVES
from fu_papers.fedora.further_tables import said_of_figure_8
from fu_papers.fedora.grid import FORMS, METHODS, NO_THRESHOLD, REFERENCES, Experiment, Task
from fu_papers.fedora.results import (
    TOO_MUCH,
    Unlearnings,
    counted_in,
    kept_model,
    request_title,
    rows_of,
    ruined,
    shown,
    with_backdoor,
)
from fu_papers.look import LINE, colour, linestyle, say_below
from fu_papers.problem_figures import axes_row, legend_entries
from fu_papers.problems import dataset_name

ACCURACY = {"forget": "unlearning acc. (%)"}
ATTACKS = {"mia": "MIA-ASR (%)", "asr": "BD-ASR (%)"}
IN_PERCENT = {"forget": 1.0, "mia": 100.0, "asr": 1.0}  # what a record's number is multiplied by
CHANCE = 50.0  # percent, of a membership attack
MOST = 102.0  # percent, with room for half a dot
LEAST_SPAN = 10.0  # points of accuracy on an axis: a chance difference is to look small
USABLE = 50.0  # percent of test accuracy; where Retrain has less, a title says so
OF_RETRAIN: dict[str, Any] = {"color": colour("Retrain"), "linestyle": "--", "linewidth": 1.2, "zorder": 1}
OF_CHANCE: dict[str, Any] = {"color": LINE, "linestyle": ":", "linewidth": 1.6, "zorder": 1.1}
CROSS: dict[str, Any] = {"markersize": 9, "markeredgewidth": 1.6, "zorder": 2.5}  # its ends are seen behind a dot


def figure_4_7(e: Experiment, runs: pd.DataFrame, *, labels: bool, attacks: bool) -> Figure:
    """Unlearning accuracy (Fig. 4: samples, 5: labels), or the two attacks (Fig. 6, 7), per setting; all in percent.

    A row per method: a small dot per seed, the mean large, a line from the lowest to the highest; where a row is empty,
    every run diverged. The dashed line is Retrain's mean, the dotted one a coin's. A cross is the backdoor's success in
    a model that is ruined, which enters neither mean nor line. Axes of the membership attack are around chance, the
    same in all panels of a data set; a title says where Retrain itself is wrong about most of the test data.
    """
    tasks = e.tasks(labels=labels)
    rows = panels(e, runs, labels=labels, attacks=attacks)
    everybody = [m for m in (*REFERENCES, *METHODS) if any(len(rows_of(runs, "main", t, m)) for t in tasks)]
    reach = _reach(runs, tasks, everybody)
    columns, tall = max(len(row) for _, row in rows), 1.6 + 0.24 * len(everybody)
    fig, grid = plt.subplots(
        len(rows), columns, figsize=(2.6 + 2.7 * columns, tall * len(rows) + 0.3), squeeze=False, sharey=True
    )
    layout = fig.get_layout_engine()
    assert isinstance(layout, ConstrainedLayoutEngine)
    layout.set(h_pad=0.12)  # inches: a row's names of axes are not the next row's titles
    any_ruined = False
    for axes, (metric, row) in zip(grid, rows, strict=True):
        for ax in axes[len(row) :]:
            ax.set_axis_off()
        for ax, task in zip(axes, row, strict=False):
            for height, method in enumerate(everybody):
                cell = rows_of(runs, "main", task, method)
                lost = ruined(cell) if metric == "asr" else pd.Series(False, index=cell.index)
                _seeds_in_percent(ax, height, cell[metric][~lost].dropna(), metric, method)
                if lost.any():
                    any_ruined = True
                    ax.plot(cell[metric][lost], [height] * lost.sum(), "x", color=colour(method), **CROSS)
            retrained = IN_PERCENT[metric] * rows_of(runs, "main", task, "Retrain")[metric].mean()
            ax.axvline(retrained, **OF_RETRAIN)
            if metric == "mia":
                ax.axvline(CHANCE, **OF_CHANCE)
            limits = reach[task.dataset] if metric == "mia" else (-5.0, 105.0)
            ax.set(xlim=limits, ylim=(len(everybody) - 0.5, -0.5), xlabel=(ATTACKS | ACCURACY)[metric])
            ax.set_yticks(range(len(everybody)), labels=[shown(method) for method in everybody])
            ax.set_title(_place(runs, task), fontsize=11)
    differ = "; MIA axes: by data set" if attacks and len({reach[task.dataset] for task in tasks}) > 1 else ""
    say_below(fig, f"{_seeds(e)} (dots), mean, range; empty: diverged{differ}")
    _legend_of_lines(fig, columns, chance=attacks, crosses=any_ruined)
    return fig


def _reach(runs: pd.DataFrame, tasks: Sequence[Task], methods: Sequence[str]) -> dict[str, tuple[float, float]]:
    """By data set, the limits of an axis of membership attacks: 0 to 100 would show nothing but that all are at 50."""
    limits = {}
    for dataset in {task.dataset for task in tasks}:
        here = [task for task in tasks if task.dataset == dataset]
        told = pd.concat([rows_of(runs, "main", task, method).mia for task in here for method in methods]).dropna()
        percent = IN_PERCENT["mia"] * told
        low, high = min([CHANCE, *percent]), max([CHANCE, *percent])
        room = max(LEAST_SPAN - (high - low), 0.2 * (high - low)) / 2
        limits[dataset] = (low - room, high + room)
    return limits


def _place(runs: pd.DataFrame, task: Task) -> str:
    """A panel's title: data, request, and Retrain's test accuracy where it is not even `USABLE`."""
    title = f"{dataset_name(task.dataset)}\n{request_title(task.request)}"
    test = rows_of(runs, "main", task, "Retrain").test.mean()
    return f"{title}\nRetrain: {test:.0f} % test acc." if round(test) < USABLE else title


def _legend_of_lines(fig: Figure, columns: int, *, chance: bool, crosses: bool) -> None:
    """What the lines and the crosses of `figure_4_7` are, above it."""
    handles = [Line2D([], [], label="Retrain, mean", **OF_RETRAIN)]
    if chance:
        handles.append(Line2D([], [], label="chance", **OF_CHANCE))
    if crosses:
        told = f"ruined: with a backdoor in it, {TOO_MUCH} lost; in no mean"
        handles.append(Line2D([], [], linestyle="", marker="x", color="black", label=told, **CROSS))
    beside = 1 if crosses and columns < 3 else len(handles)  # in one line if it is not too wide
    fig.legend(handles=handles, loc="outside upper center", ncols=beside, frameon=False, fontsize=10)


def panels(e: Experiment, runs: pd.DataFrame, *, labels: bool, attacks: bool) -> list[tuple[str, list[Task]]]:
    """The rows of `figure_4_7`: a metric, and at most four tasks where it was measured."""
    rows: list[tuple[str, list[Task]]] = []
    for metric in ATTACKS if attacks else ACCURACY:
        tasks = e.tasks(labels=labels)
        measured = [task for task in tasks if rows_of(runs, "main", task, "Retrain")[metric].notna().any()]
        wide = -(-len(measured) // -(-len(measured) // 4)) if measured else 1  # as even as they can be dealt out
        rows += [(metric, measured[i : i + wide]) for i in range(0, len(measured), wide)]
    return rows


def _seeds(e: Experiment) -> str:
    """How many there are, as the line below a figure begins."""
    return f"{len(e.seeds)} seed{'s' * (len(e.seeds) > 1)}"


def _seeds_in_percent(ax: Axes, height: float, values: pd.Series, metric: str, method: str) -> None:
    """One row of `figure_4_7`: every seed, their mean and their range."""
    percent = IN_PERCENT[metric] * values.to_numpy(dtype=float)
    if not len(percent):
        return
    hue = colour(method)
    ax.plot([percent.min(), percent.max()], [height] * 2, color=hue, linewidth=1.8, zorder=2)
    ax.plot(percent, [height] * len(percent), "o", color=hue, markersize=4, alpha=0.6, zorder=3)
    ax.plot(percent.mean(), height, "o", color=hue, markersize=8, markeredgecolor="white", zorder=4)


def curves(e: Experiment, runs: pd.DataFrame, which: Mapping[str, tuple[str, str]] = CURVES) -> Figure:
    """Forgetting against utility: each method over its main parameter, on the settings of `curve_tasks`.

    which: the methods, each with what is swept and the parameter that lists its values; on a setting that a method is
    not for, it has no curve.
    Means over seeds; the smallest dot has the first of a method's values, the largest the last. What diverged for every
    seed has none, and what diverged for some is hollow, a mean of the others. The star is Retrain, the bars around it
    how far two retrainings are apart; a method forgets if it reaches the star, not if it gets below it. Left of the
    star, test accuracy was lost.
    """
    tasks = e.curve_tasks()
    columns = min(len(tasks), 3)
    rows = -(-len(tasks) // columns)
    fig, grid = plt.subplots(rows, columns, figsize=(4.4 * columns, 4.2 * rows), squeeze=False)
    axes = list(grid.flat)
    for ax in axes[len(tasks) :]:
        ax.set_axis_off()
    any_lost = False
    for ax, task in zip(axes, tasks, strict=False):
        for method, (_, values) in which.items():
            found = [rows_of(runs, "curve", task, method, f"{v:g}") for v in getattr(e, values)]
            sizes = np.linspace(18, 90, len(found))
            points = [
                (kept.test.mean(), kept.forget.mean(), size, len(kept) < len(cell))
                for cell, size in zip(found, sizes, strict=True)
                if len(kept := kept_model(cell))
            ]
            if points:
                hue = colour(method)
                look: dict[str, Any] = {"color": hue, "linestyle": linestyle(method), "label": shown(method)}
                x, y, size, lost = zip(*points, strict=True)
                ax.plot(x, y, linewidth=1.4, alpha=0.8, **look)
                inside = ["white" if gone else hue for gone in lost]
                around = [hue if gone else "white" for gone in lost]
                ax.scatter(x, y, s=size, c=inside, edgecolors=around, zorder=3)
                any_lost |= any(lost)
        original, retrained, again = (rows_of(runs, "main", task, m) for m in (*REFERENCES, AGAIN))
        # The two references lie below, and doing nothing is hollow: whoever did not move is seen in it.
        ax.plot(original.test.mean(), original.forget.mean(), "s", color=colour("Original"), markersize=12,
                fillstyle="none", markeredgewidth=2, label=shown("Original"), zorder=2, clip_on=False)  # fmt: skip
        ax.errorbar(retrained.test.mean(), retrained.forget.mean(), xerr=again.delta_test.mean(),
                    yerr=again.delta_forget.mean(), fmt="*", color=colour("Retrain"), markersize=17, capsize=3,
                    label=shown("Retrain"), zorder=1.9, clip_on=False)  # fmt: skip
        ax.set(xlabel="test acc. (%)", title=f"{dataset_name(task.dataset)}\n{request_title(task.request)}")
        for limits, widen in ((ax.get_xlim(), ax.set_xlim), (ax.get_ylim(), ax.set_ylim)):
            missing = max(0.0, LEAST_SPAN - (limits[1] - limits[0])) / 2
            over = max(0.0, limits[1] + missing - MOST)  # rather below than where there is no accuracy
            widen(limits[0] - missing - over, limits[1] + missing - over)
        low, high = ax.get_ylim()
        ax.set_yticks([tick for tick in ax.get_yticks() if low <= tick <= min(high, 100)])  # there is no 102 %
    for ax in grid[:, 0]:
        ax.set_ylabel("acc. on what is forgotten (%)")
    dots = "dots: means, small to large: first to last of a method's values"
    hollow = "; hollow: some seeds diverged" if any_lost else ""
    say_below(fig, f"{_seeds(e)}; {dots}{hollow}; bars: how far a second Retrain is")
    told = legend_entries(axes)
    names = [name for m in (*which, *REFERENCES) if (name := shown(m)) in told]  # in this order, whichever panel has it
    fig.legend([told[name] for name in names], names, loc="outside upper center", ncols=3, frameon=False)
    return fig


def figure_8(e: Experiment, runs: pd.DataFrame) -> Figure:
    """Fig. 8: accuracies and attacks against the forgetting weight (a) and the batch selection ratio (b).

    Runs that diverged have no point, and a backdoor's success in a ruined model has none. Crosses: what the paper's
    text says of its own figure.
    """
    fig, axes = axes_row(2, height=4.0, width=5.4)
    sweeps = (
        ("weights", e.weights, "(a) forgetting weight β"),
        ("ratios", e.ratios, "(b) batch selection ratio ρ (%)"),
    )
    lines = {
        "test": ("test acc. (%)", "#0072b2", "-"), "forget": ("unlearning acc. (%)", "#e3550f", "-"),
        "mia": ("MIA-ASR (%)", "#6a6a6a", "-."), "asr": ("BD-ASR (%)", "#7a52a8", ":"),
    }  # fmt: skip
    for ax, (group, values, name) in zip(axes, sweeps, strict=True):
        scale = 100.0 if group == "ratios" else 1.0
        for metric, (label, hue, dash) in lines.items():
            cells = [counted_in(rows_of(runs, group, e.main, "FedORA", f"{v:g}"), metric)[metric] for v in values]
            factor = 100.0 if metric == "mia" else 1.0
            mean = np.array([factor * cell.mean() for cell in cells])
            least = np.array([factor * cell.min() for cell in cells])
            largest = np.array([factor * cell.max() for cell in cells])
            x = list(range(len(values)))
            ax.plot(x, mean, dash, color=hue, marker="o", markersize=4, label=label)
            ax.fill_between(x, least, largest, color=hue, alpha=0.15, linewidth=0)
        names = [f"{value:g}" for value in values]
        for where, label_there, metric, value in said_of_figure_8(e):
            if where == group:
                ax.plot(names.index(label_there), value, "x", color=lines[metric][1], markersize=8, markeredgewidth=2)
        retrained = rows_of(runs, "main", e.main, "Retrain")
        ax.axhline(
            retrained.forget.mean(),
            color=colour("Retrain"),
            linestyle="--",
            linewidth=1,
            label="Retrain: unlearning acc.",
        )
        ax.plot([], [], "x", color="black", markersize=8, markeredgewidth=2, label="what the paper says (CIFAR-10)")
        ax.set(xlabel=name, ylim=(-3, 103))
        ax.set_xticks(range(len(values)), [f"{scale * value:g}" for value in values])
    axes[0].set_ylabel("percent")
    swept = runs[runs.group.isin([group for group, _, _ in sweeps])]
    found = with_backdoor(swept)
    lost = found.lost() + (f" ({TOO_MUCH} lost)" if found.ruined else "")
    gone = f"; not in BD-ASR: {lost}" if lost else ""
    say_below(fig, f"{_seeds(e)}; lines: means; bands: lowest to highest{gone}")
    handles, names = axes[0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    return fig


def trace(e: Experiment, unlearnings: Unlearnings) -> Figure:
    """Per iteration of the main setting: forgetting score against its threshold, dual variable, step sizes.

    First seed; every form, with the score that it has chosen. A score that reaches the threshold is what
    "certified" can mean, not the dual's value.
    """
    fig, axes = axes_row(3, height=3.8, width=4.4)
    for method in FORMS:
        cell = e.main.cell("main", e.seeds[0], method)
        if cell not in unlearnings or not unlearnings[cell].rounds:
            continue
        rows = pd.DataFrame(unlearnings[cell].rounds)
        look: dict[str, Any] = {"color": colour(method), "linestyle": linestyle(method), "label": shown(method)}
        axes[0].plot(rows.t, rows.score, **look)
        if method != NO_THRESHOLD:
            axes[0].axhline((rows.score + rows.residual).iloc[0], color=colour(method), linewidth=1, linestyle=":")
        axes[1].plot(rows.t, rows.dual / max(rows.dual.abs().max(), 1e-30), **look)
        steps = np.array(rows.tau.tolist())
        axes[2].plot(rows.t, steps[:, 0], **look)
        axes[2].plot(rows.t, steps[:, -1], **(look | {"label": None, "alpha": 0.4}))
    axes[0].set(title="forgetting score $L_u$ (dotted: threshold)", xlabel="iteration")
    axes[1].set(title="dual variable / its largest value", xlabel="iteration")
    axes[2].set(title="primal step: first party (pale: active)", xlabel="iteration", yscale="log")
    for ax in axes:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    say_below(fig, f"One run of each, seed {e.seeds[0]}")
    return fig
