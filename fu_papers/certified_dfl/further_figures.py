"""What goes beyond the paper's experiments as figures: certified heads of nets, and DU among many clients.

Every function takes the experiment and what the stages' runs returned; nothing here trains.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from fu_papers import controls
from fu_papers.certified_dfl.further_tables import (
    PEER_TITLES,
    Heads,
    Scales,
    heads_frame,
    heads_releases,
    peers_frame,
    scale_rows,
)
from fu_papers.certified_dfl.grid import METHODS, WHOLE_CLIENTS, Experiment
from fu_papers.certified_dfl.heads import nets
from fu_papers.certified_dfl.peers import DU_ROWS, ROUNDS_ROWS, reported_epsilon
from fu_papers.certified_dfl.results import cell_runs
from fu_papers.certified_dfl.titles import REQUESTS, SHOWN, topology_title
from fu_papers.controls import REFERENCES
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, marker, say_below
from fu_papers.problem_figures import FLOOR, axes_row, counted, legend_entries, linear_up_to_a_point
from fu_papers.problems import Setting, dataset_title
from fu_papers.study import Cell

PEER_MARKERS = "osD^v<>PX*dh"
PEER_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#555555")  # Okabe and Ito's
LEAST_PASSES = 0.5  # what takes none is drawn here: the axis is logarithmic
MATCHED = (*REFERENCES, controls.AGAIN, *METHODS, WHOLE_CLIENTS)
LEAST_RANGE = 3.0  # points of accuracy on either side: a chance difference is to look small
UNTOUCHED: dict[str, Any] = {"marker": "s", "markersize": 7, "color": colour("Original"), "linestyle": "none"}
RETRAINED: dict[str, Any] = {"marker": "o", "markersize": 13, "fillstyle": "none", "markeredgewidth": 1.8,
                             "color": colour("Retrain"), "linestyle": "none"}  # fmt: skip
AGAIN: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 1.8, "color": colour("Retrain"),
                         "linestyle": "none"}  # fmt: skip
CERTIFIED: dict[str, Any] = {"marker": "o", "markersize": 7, "color": colour("DU"), "linestyle": "none"}


# --- forgetting at equal utility -------------------------------------------------------------------------------------


def utility_matched_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """What is known too much against test shortfall, right after a method's step and at its end: at equal utility.

    Means over seeds at each data set's main place; rows are kinds of requests. Both are differences to the retrained
    model of the same seed, which is the origin; both axes are linear up to one point, then logarithmic. The grey box is
    as large as the absolute differences between two retrainings, which only their seeds tell apart, are in the mean.
    """
    size = (1.0 + 3.0 * len(e.datasets), 1.2 + 2.3 * len(REQUESTS))
    fig, grid = plt.subplots(len(REQUESTS), len(e.datasets), figsize=size, squeeze=False, sharex=True, sharey=True)
    linear_up_to_a_point(list(grid.ravel()))
    for row, (kind, named) in zip(grid, REQUESTS.items(), strict=True):
        for ax, dataset in zip(row, e.datasets, strict=True):
            _at_equal_utility(ax, {m: cell_runs(runs, e.main(dataset), kind, m) for m in MATCHED})
        row[0].set_ylabel(named)
    for ax, dataset in zip(grid[0], e.datasets, strict=True):
        ax.set_title(dataset_title(dataset))
    handles = legend_entries(grid.ravel())
    fig.legend(list(handles.values()), list(handles), loc="outside upper center", ncols=3, frameon=False)
    fig.supxlabel("test shortfall: accuracy (points) below Retrain's", fontsize=11)
    fig.supylabel("accuracy on the forgotten data (points) above Retrain's", fontsize=11)
    rounds = " / ".join(map(str, dict.fromkeys(e.pdudt_rounds)))
    place = e.main(e.datasets[0])
    where = f"{Setting.parse(place.setting).split_title}, {topology_title(place.topology)}"
    told = f"A line: from right after a step (small dot) to its end, one round later (PDUDT: {rounds})"
    say_below(fig, f"{told}; means over {counted(len(e.seeds), 'seed')}; {where}")
    return fig


def _at_equal_utility(ax: Axes, cells: Mapping[str, pd.DataFrame]) -> None:
    """One panel. cells: of each of `MATCHED` its runs, none where it was not run."""

    def place(r: pd.DataFrame, when: str = "") -> tuple[float, float]:
        return (r.test_retrain - r[f"{when}test"]).mean(), (r[f"{when}forget"] - r.forget_retrain).mean()

    again = cells[controls.AGAIN]
    x, y = again.delta_test.mean(), again.delta_forget.mean()
    ax.add_patch(Rectangle((-x, -y), 2 * x, 2 * y, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor"))
    for method, r in cells.items():
        if method == controls.AGAIN or r.empty:
            continue
        end = (0.0, 0.0) if method == "Retrain" else place(r)
        look: dict[str, Any] = {"color": colour(method), "marker": marker(method), "label": SHOWN[method]}
        if method not in REFERENCES:
            before = place(r, "before_")
            ax.plot(*zip(before, end, strict=True), color=colour(method), linewidth=1.2)
            ax.plot(*before, ".", color=colour(method), markersize=4)
        ax.plot(*end, linestyle="none", markersize=7, zorder=4, **look)


# --- certified heads -------------------------------------------------------------------------------------------------


def heads_figure(e: Experiment, heads: Heads) -> Figure:
    """A row per net and kind of request, first split, means over seeds: accuracy, and distance to retraining.

    Left: the certified head beside the one that it may be told apart from, without noise, and beside the whole net
    retrained. Right: why so little noise is enough.
    """
    epsilon = reported_epsilon(e)
    runs, releases = heads_frame(heads), heads_releases(heads)
    lines = [(dataset, kind) for dataset in nets(e) for kind in REQUESTS]
    fig, (left, right) = axes_row(2, height=1.9 + 0.36 * len(lines), width=5.6, sharey=True)
    names, farthest = [], LEAST_RANGE
    for height, (dataset, kind) in enumerate(lines):
        r = runs[(runs.place == e.main(dataset)) & (runs.kind == kind)]
        here = (releases.place == e.main(dataset)) & (releases.kind == kind) & (releases.epsilon == epsilon)
        net = r.net.mean()
        best, certified = r.test_retrained.mean() - net, releases[here].test.mean() - net
        for x, look in ((best, RETRAINED), (certified, CERTIFIED)):
            left.plot(x, height, **look)
            farthest = max(farthest, 1.2 * abs(x))
        for name, look in (("radius_original", UNTOUCHED), ("radius_again", AGAIN), ("radius", CERTIFIED)):
            right.plot(r[name].mean(), height, **look)
        names.append(f"{dataset_title(dataset)}, {kind}: {net:.1f} %")
    left.axvline(0, color=LINE, linewidth=1.2)
    left.set(xlim=(-farthest, farthest), title="(a) what certified heads cost")
    left.set_xlabel("points of accuracy, against the whole net retrained")
    left.locator_params(axis="x", nbins=5)
    left.set_yticks(range(len(lines)), labels=names)
    left.set_ylim(len(lines) - 0.5, -0.5)
    right.axvline(e.close_budget, color=colour("DU"), linestyle=":")
    right.set(xscale="log", xlabel="at most (log scale); dotted: what the noise covers")
    right.set_title("(b) distance to the best head on retained data")
    for ax in (left, right):
        ax.grid(axis="y", visible=False)
    shown = {
        "best head on retained data": RETRAINED,
        "do nothing": UNTOUCHED,
        "Retrain, D-PSGD": AGAIN,
        f"certified head, ε = {epsilon:g}": CERTIFIED,
    }
    handles = [Line2D([], [], label=name, **look) for name, look in shown.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    seeds = runs.seed.nunique()
    say_below(
        fig,
        f"Means over {seeds} seed{'s' * (seeds > 1)}, the first split and last graph of the table; beside the names: "
        "accuracy of the whole net, retrained",
    )
    return fig


# --- scale -----------------------------------------------------------------------------------------------------------


def scale_figure(scales: Scales) -> Figure:
    """What a client sends, and how close the model comes to exact retraining, by the number of clients. One leaves."""
    runs = pd.DataFrame(scale_rows(scales))
    r = runs[runs.kind == "client"].sort_values("clients")
    fig, (left, right) = axes_row(2, height=4.0, width=5.2)
    du: dict[str, Any] = {"color": colour("DU"), "marker": "o"}
    flooding, retrain = {**du, "linestyle": ":"}, {"color": colour("Retrain"), "marker": "o", "linestyle": "--"}
    for ways, column, name, look, above in (
        (left, r.vectors_flooding / r.clients, "DU, flooding", flooding, True),
        (left, r.vectors_again / r.clients, "Retrain, D-PSGD", retrain, True),
        (left, r.vectors_tree / r.clients, "DU, sums over a tree", du, False),
        (right, r.gap_again, "Retrain, D-PSGD", retrain, False),
        (right, r.gap, SHOWN["DU"], du, False),
    ):
        ways.plot(r.clients, column, **look)
        ways.annotate(name, (r.clients.iloc[-1], column.iloc[-1]), xytext=(0, 7 if above else -8), ha="right",
                      va="baseline" if above else "top", textcoords="offset points", fontsize=10,
                      color=look["color"])  # fmt: skip
    right.axhline(1, color="#777777", linewidth=1)
    right.annotate("do nothing", (r.clients.iloc[0], 1), xytext=(0, 4), textcoords="offset points", fontsize=10,
                   color=LINE)  # fmt: skip
    left.set(ylabel="so many models' worth (log scale)", title="(a) what a client sends when one leaves")
    right.set(ylabel="do nothing = 1 (log scale)", title="(b) distance to exact retraining")
    for ax in (left, right):
        ax.set(xscale="log", yscale="log", xlabel="clients N (log scale)")
        ax.set_xticks(list(r.clients), labels=[f"{clients:,}" for clients in r.clients])
        ax.minorticks_off()
        ax.margins(x=0.08, y=0.15)
    say_below(fig, "One run per point, one seed")
    return fig


# --- peers at the same guarantee -------------------------------------------------------------------------------------


def peers_figure(e: Experiment, peers: Mapping[Cell, Record]) -> Figure:
    """Accuracy against price of every certified release at one epsilon; a panel per lambda and share of samples.

    A line joins one method's values; a point is the mean over seeds, and is missing where one seed was refused. Whose
    every value was is named in the panel.
    """
    frame = peers_frame(peers)
    whole = frame.groupby(["l2", "request", "method", "with"]).filter(lambda runs: (runs.refused == "").all())
    methods = list(dict.fromkeys(cell.method for cell in peers))
    columns, lines = e.peer_fractions, e.peer_l2
    fig, axes = plt.subplots(
        len(lines),
        len(columns),
        figsize=(4.2 * len(columns) + 4, 2.9 * len(lines) + 0.8),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    shown: dict[str, Any] = {}
    for (line, l2), (column, share) in itertools.product(enumerate(lines), enumerate(columns)):
        ax, here = axes[line][column], whole[(whole.l2 == l2) & (whole.request == f"sample-{share:g}")]
        for method in dict.fromkeys(here.method.astype(str)):
            runs = here[here.method == method]
            points = runs.groupby("with")[["passes", "test"]].mean().sort_values("passes")
            k, ours = methods.index(method), method in (*DU_ROWS, *ROUNDS_ROWS)
            shown[method] = ax.plot(
                points.passes.clip(lower=LEAST_PASSES),
                points.test,
                label=PEER_TITLES.get(method, method),
                marker=PEER_MARKERS[k % len(PEER_MARKERS)],
                color=_peer_colour(method, k),
                linestyle="none" if ours else "-",
                zorder=3 if ours else 2,
            )[0]
        exact = here.test_exact.mean()
        shown["exact"] = ax.axhline(
            exact, color=LINE, linestyle="--", linewidth=1.2, zorder=1, label="exact retraining, no noise"
        )
        refused = [PEER_TITLES.get(m, m) for m in methods if m not in set(here.method)]
        if refused:
            told = textwrap.fill(f"refused (any seed): {', '.join(refused)}", 44)
            ax.text(0.02, 0.62, told, transform=ax.transAxes, fontsize=7, va="top", color=LINE)
        ax.set(xscale="log", ylim=(-2, 102))
        ax.set_xticks([LEAST_PASSES, 1, 10, 100], labels=["none", "1", "10", "100"])
        ax.set_title(f"λ = {l2:g}, {100 * share:g} % of the samples go", fontsize=11)
    fig.supxlabel("passes over the retained data to serve the request (log scale)", fontsize=11)
    fig.supylabel("test accuracy (%)", fontsize=11)
    order = [shown[name] for name in (*methods, "exact") if name in shown]
    certified = f"certified, (ε, δ) = ({reported_epsilon(e):g}, {e.delta:g})"
    fig.legend(handles=order, title=certified, loc="outside right center", frameon=False)
    seeds = frame.seed.nunique()
    said = f"means over {seeds} seeds" if seeds > 1 else "one seed"
    say_below(fig, f"A dot: one method and setting, {said}; lines join a method's settings")
    return fig


def _peer_colour(method: str, k: int) -> str:
    if method in ROUNDS_ROWS:
        return colour(method)
    return colour("DU") if method in DU_ROWS else PEER_COLOURS[k % len(PEER_COLOURS)]
