"""PUF's figures, drawn from run records only. Numbers as in the paper: Figs. 1 to 6.

Every function takes the experiment and records or the frame of `results`; nothing here trains.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import NDArray

from fu_papers.evidence import completed
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, label_dots, linestyle, marker, published, say_below, seed_band
from fu_papers.problem_figures import axes_row, counted, title
from fu_papers.problems import Setting
from fu_papers.puf.costs import implied_rounds
from fu_papers.puf.grid import AGAIN, PUBLISHED, PUFS, REFERENCES, SWEPT_AGAINST, Experiment, Scenario
from fu_papers.puf.printed_tables import beside
from fu_papers.puf.results import ATTACKS, Trainings, Unlearnings, natural_at, rows_of, runs_of
from fu_papers.study import Cell

COLUMNS = 5  # of small panels, one per method
LEAST_COST = 0.1  # percent of retraining's; what costs less stands there
Curve = Sequence[Mapping[str, float]]  # a row of metrics per recovery round
References = Mapping[str, Mapping[str, float]]  # method -> metrics
FloatArray = NDArray[np.float64]
POINTS = (-10, 0, 1, 10, 100)  # ticks of an axis that is linear up to a point, then logarithmic
MARKERS = {1.0: "o", 2.0: "s", 5.0: "^", 10.0: "D"}  # per E_u
FLOOR = "#bbbbbb"  # of the noise floor: two retrainings that only their seeds tell apart


def training_curves(e: Experiment, trainings: Trainings, scenario: str = "clients") -> Figure:
    """Test accuracy per round of the original model (all seeds) and of the retrained ones (seeds and requests).

    Trainings of other seeds, for an attacker or a second retraining, are left out; originals have the backdoor, if any.
    """
    s = e.scenario(scenario)
    poisoned = [f"poisoned {request}" for request in s.requests]
    originals = poisoned if any(key[0] == scenario and key[3] in poisoned for key in trainings) else ["none"]
    fig, axes = axes_row(len(s.settings), height=3.4, width=4.4)
    for ax, text in zip(axes, s.settings, strict=True):
        for method, requests in zip(REFERENCES, (originals, s.requests), strict=True):
            runs = [
                record
                for (name, setting, seed, request), record in trainings.items()
                if (name, setting) == (scenario, text) and seed in s.seeds and request in requests
            ]
            rounds = [row["round"] for row in runs[0].rounds]
            seed_band(ax, rounds, [[row["test"] for row in run.rounds] for run in runs], method)
        ax.set(title=title(text), xlabel="federated round", ylabel=f"test {measure_of(text)}")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    told = f"{counted(len(s.seeds), 'seed')} (Retrain: × {counted(len(s.requests), 'request')})"
    say_below(fig, f"Mean of {told}; band: ± standard deviation")
    return fig


def forget_gap(e: Experiment, unlearnings: Unlearnings) -> Figure:
    """Is there something to forget? Forget accuracy of the original and the retrained model, per run."""
    s = e.scenarios()[0]
    fig, axes = axes_row(len(s.settings), height=3.4, width=3.6, sharey=True)
    for ax, text in zip(axes, s.settings, strict=True):
        for seed in s.seeds:
            for request in s.requests:
                cells = [Cell(s.name, text, seed, request, m) for m in REFERENCES]
                pair = [unlearnings[cell].metrics["final"]["forget"] for cell in cells]
                ax.plot([0, 1], pair, color="#999999", linewidth=1, zorder=1)
                for x, (method, value) in enumerate(zip(REFERENCES, pair, strict=True)):
                    ax.scatter(x, value, color=colour(method), zorder=2, s=30)
        ax.set(title=title(text), xticks=[0, 1], xlim=(-0.4, 1.4))
        ax.set_xticklabels(["Original\n(saw the data)", "Retrain\n(never saw it)"])
    axes[0].set_ylabel("forget accuracy (%)")
    say_below(fig, f"A line: one of {_runs_in(s)}")
    return fig


def recovery_curves(
    e: Experiment, unlearnings: Unlearnings, setting: str, scenario: str = "clients", methods: Sequence[str] = ()
) -> Figure:
    """Fig. 4: test and forget accuracy per recovery round, less Retrain's of the same request and seed, a line per run.

    methods: only these; none given: all of the experiment's. Two small panels per method: test accuracy above, forget
    accuracy below, in points, linear up to five of them, then logarithmic. Round 0 is right after the unlearning step,
    the dashed line is Retrain. A line ends where its run ends: in a full dot where the paper's stop rule (test accuracy
    reaches Retrain's) ended recovery, in an open one where it gave up; Natural, which no rule stops, has neither.
    FedEraser has no recovery: its replay ends where it ends.
    """
    found = {m: runs for m in methods or e.methods if (runs := _with_goals(unlearnings, scenario, setting, m))}
    blocks, columns = _panels(len(found))
    fig, grid = plt.subplots(
        2 * blocks, columns, figsize=(2.2 * columns + 0.6, 3.3 * blocks + 0.6), squeeze=False, sharex=True
    )
    for row, metric in enumerate(("test", "forget")):
        nothing = [o["final"][metric] - goal[metric] for o, goal in _ends(unlearnings, scenario, setting, "Original")]
        panels = grid[row::2].ravel()
        for ax, (method, runs) in zip(panels, found.items(), strict=False):
            for run, goal in runs:
                path = [point[metric] - goal[metric] for point in run.rounds]
                stop = run.metrics["test"]
                _run_line(ax, method, path, stop, stop[metric] - goal[metric])
            for reference, height in (("Retrain", 0.0), ("Original", float(np.mean(nothing)))):
                ax.axhline(height, color=colour(reference), linestyle=linestyle(reference), linewidth=1.2, zorder=1)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            ax.set_yscale("symlog", linthresh=5.0, linscale=0.8)
            ax.yaxis.set_major_locator(FixedLocator((-50, -5, 0, 5, 50)))
            ax.yaxis.set_major_formatter(ScalarFormatter())
            ax.yaxis.set_minor_locator(NullLocator())
        limits = [ax.get_ylim() for ax, _ in zip(panels, found, strict=False)]
        for k, ax in enumerate(panels):
            ax.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
            ax.tick_params(labelleft=k % columns == 0, labelsize=9)
            if k % columns == 0:
                ax.set_ylabel(f"{metric} {measure_of(setting).partition(' ')[0]}\nless Retrain's", fontsize=9)
    _dress_panels(grid, list(found), rows_each=2)
    ink = {"color": LINE, "linewidth": 1.2}
    looks = [{**ink, "marker": "o"}, {**ink, "marker": "o", "markerfacecolor": "white"}]
    looks += [{"color": colour(m), "linestyle": linestyle(m)} for m in ("Retrain", "Original")]
    handles = [Line2D([], [], **look) for look in looks]
    names = ["came back", "gave up", "Retrain", "Original (do nothing)"]
    head = f"{title(setting)}: {e.scenario(scenario).heading}"
    fig.legend(handles, names, loc="outside upper left", ncols=4, title=head, alignment="left", frameon=False)
    fig.supxlabel("recovery round (0: right after unlearning)", fontsize=11)
    say_below(fig, f"A line: one of {_runs_in(e.scenario(scenario))}, points above its own Retrain")
    return fig


def _run_line(ax: Axes, method: str, path: Sequence[float], stop: Mapping[str, Any], end: float) -> None:
    """One run's `path` over the rounds, and the dot where it came back (`end`, at the round of `stop`) or gave up.

    What a run went on for, once the paper's rule was met, is left out.
    """
    look: dict[str, Any] = {"color": colour(method), "markersize": 5, "zorder": 3}
    if method == "Natural":
        shown = list(path)
    elif stop["reached"] or len(path) == 1:
        shown = [*path[: stop["rounds"]], end]
        ax.plot(stop["rounds"], end, "o", **look)
    else:
        shown = list(path)
        ax.plot(len(path) - 1, path[-1], "o", markerfacecolor="white", **look)
    ax.plot(range(len(shown)), shown, color=colour(method), linewidth=1.0, alpha=0.8)


def _panels(n: int) -> tuple[int, int]:
    """Rows and columns for the small panels of `n` methods."""
    rows = -(-n // COLUMNS)
    return rows, -(-n // rows)


def _dress_panels(grid: Any, names: Sequence[str], rows_each: int = 1) -> None:
    """A name above each panel, none where no method is left, and numbers below the last of every column."""
    columns = grid.shape[1]
    for k in range(grid.size // rows_each):
        block, column = divmod(k, columns)
        own = grid[rows_each * block : rows_each * (block + 1), column]
        if k < len(names):
            own[0].set_title(names[k], fontsize=10, pad=3)
            continue
        for ax in own:
            ax.remove()
        grid[rows_each * block - 1, column].tick_params(labelbottom=True)


def _with_goals(
    unlearnings: Unlearnings, scenario: str, setting: str, method: str
) -> list[tuple[Record, Mapping[str, float]]]:
    """The runs of one block and method that have a recovery path, each with the metrics of its Retrain."""
    return [
        (record, unlearnings[cell._replace(method="Retrain")].metrics["final"])
        for cell, record in unlearnings.items()
        if (cell.group, cell.setting, cell.method, cell.label) == (scenario, setting, method, "") and record.rounds
    ]


def _ends(
    unlearnings: Unlearnings, scenario: str, setting: str, control: str
) -> list[tuple[Mapping[str, Any], Mapping[str, float]]]:
    """The metrics of a control's runs in one block, each with those of its Retrain."""
    return [
        (record.metrics, unlearnings[cell._replace(method="Retrain")].metrics["final"])
        for cell, record in unlearnings.items()
        if (cell.group, cell.setting, cell.method) == (scenario, setting, control)
    ]


def _runs_in(s: Scenario) -> str:
    """How many runs a method has in a scenario, in words."""
    seeds, requests = len(s.seeds), len(s.requests)
    return f"{counted(seeds * requests, 'run')} ({counted(seeds, 'seed')} × {counted(requests, 'request')})"


def utility_matched(
    e: Experiment, unlearnings: Unlearnings, setting: str, scenario: str = "clients", methods: Sequence[str] = ()
) -> Figure:
    """Forget gap against test shortfall over the recovery rounds, a panel per method: who forgets at equal utility?

    Both are differences to the retrained model of the same request and seed (the gap absolute), means over all runs,
    those included that gave up; one that stopped stays where it stopped. Recovery moves to the left. A full dot is
    where all runs came back under the paper's stop rule, an open one where some had not when the cap was reached; the
    panel's title counts them. Small grey dots: where the others end. Both axes are linear up to one point, then
    logarithmic. Retrain is the origin, the grey box two retrainings that only their seeds tell apart. Nearer to the box
    at the same shortfall is better. methods: only these; none given: all of the experiment's.
    """
    ways: dict[str, FloatArray] = {}
    names: dict[str, str] = {}
    for method in methods or e.methods:
        if not (paths := _gaps_and_shortfalls(unlearnings, scenario, setting, method)):
            continue
        last = max(len(path) for path in paths)
        ways[method] = np.mean([_extended(path, last) for path in paths], axis=0)  # (rounds, 2)
        ended = [run.metrics["test"]["reached"] for run in runs_of(unlearnings, scenario, setting, method)]
        gave_up = 0 if last == 1 or method == "Natural" else ended.count(False)  # neither can
        names[method] = f"{method}, gave up {gave_up} of {len(ended)}" if gave_up else method
    rows, columns = _panels(len(ways))
    size = (2.2 * columns + 0.6, 2.2 * rows + 0.8)
    fig, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, sharex=True, sharey=True)
    for ax, (method, way) in zip(grid.ravel(), ways.items(), strict=False):
        others = np.array([other[-1] for name, other in ways.items() if name != method]).reshape(-1, 2)
        ax.scatter(*others.T, color="#b5b5b5", s=9, zorder=2, label="the others' ends")
        ax.plot(*way.T, color=colour(method), linewidth=1.2, marker=".", markersize=3, label=method)
        inside = colour(method) if names[method] == method else "white"
        ax.plot(*way[-1], "o", markersize=7, color=colour(method), markerfacecolor=inside, zorder=4)
        _mark_references(ax, unlearnings, scenario, setting)
    first = grid[0, 0]
    for scale, axis in ((first.set_xscale, "xaxis"), (first.set_yscale, "yaxis")):
        scale("symlog", linthresh=1.0, linscale=0.5)  # linear up to a point: the end matters, the beginning is far away
        for ax in grid.ravel():
            getattr(ax, axis).set_major_locator(FixedLocator(POINTS))
            getattr(ax, axis).set_major_formatter(ScalarFormatter())
            getattr(ax, axis).set_minor_locator(NullLocator())
            ax.tick_params(labelsize=9)
    nothing = [g["test"] - o["final"]["test"] for o, g in _ends(unlearnings, scenario, setting, "Original")]
    every = np.concatenate([*ways.values(), [[-1.0, 0.0], [1.0, 0.0], [float(np.mean(nothing)), 0.0]]])
    first.set_xlim(1.4 * every[:, 0].min(), 1.4 * every[:, 0].max())
    first.set_ylim(0, 1.4 * max(first.get_ylim()[1] / 1.4, every[:, 1].max()))
    _dress_panels(grid, list(names.values()))
    handles, labels = first.get_legend_handles_labels()
    shown = [k for k, label in enumerate(labels) if label not in ways]
    head = f"{title(setting)}: {e.scenario(scenario).heading}"
    fig.legend([handles[k] for k in shown], [labels[k] for k in shown], loc="outside upper left", ncols=4, title=head,
               alignment="left", frameon=False)  # fmt: skip
    measure = measure_of(setting)
    fig.supxlabel(f"test shortfall: {measure} below Retrain's", fontsize=11)
    fig.supylabel(f"Δ forget {measure}", fontsize=11)
    say_below(fig, f"A line: the mean of {_runs_in(e.scenario(scenario))}, a point per recovery round")
    return fig


def _gaps_and_shortfalls(
    unlearnings: Unlearnings, scenario: str, setting: str, method: str
) -> list[list[tuple[float, float]]]:
    """(shortfall, forget gap) to Retrain per recovery round, for every run of a method."""
    return [
        [(goal["test"] - row["test"], abs(row["forget"] - goal["forget"])) for row in record.rounds]
        for record, goal in _with_goals(unlearnings, scenario, setting, method)
    ]


def _mark_references(ax: Axes, unlearnings: Unlearnings, scenario: str, setting: str) -> None:
    """Retrain in the origin, doing nothing, and a box as large as what tells two retrainings apart."""

    def apart(control: str) -> tuple[list[float], list[float]]:
        pairs = [(goal, own["final"]) for own, goal in _ends(unlearnings, scenario, setting, control)]
        return [a["test"] - b["test"] for a, b in pairs], [abs(a["forget"] - b["forget"]) for a, b in pairs]

    shortfalls, gaps = apart(AGAIN)
    width, height = float(np.mean(np.abs(shortfalls))), float(np.mean(gaps))
    ax.add_patch(Rectangle((-width, 0), 2 * width, height, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor"))
    shortfalls, gaps = apart("Original")
    look: dict[str, Any] = {"linestyle": "none", "markersize": 7}
    ax.plot(np.mean(shortfalls), np.mean(gaps), color=colour("Original"), marker=marker("Original"), label="Original",
            **look)  # fmt: skip
    ax.plot(0, 0, color=colour("Retrain"), marker=marker("Retrain"), label="Retrain", zorder=5, clip_on=False, **look)


def natural_curve(e: Experiment, runs: pd.DataFrame, unlearnings: Unlearnings) -> Figure:
    """Natural's forget gap per round (dots where the paper reads it), beside what PUF ends with, and after how long.

    Mean and spread over runs. PUF: a dot at its mean number of rounds, unlearning and recovery by the paper's stop
    rule, and a line at the mean forget gap of the runs that came back, if any; grey: the noise floor.
    """
    s, natural = e.scenarios()[0], natural_at(unlearnings)
    fig, axes = axes_row(len(s.settings), height=3.4, width=4.4, sharey=True)
    for ax, text in zip(axes, s.settings, strict=True):
        by_round = natural[natural.setting == text].pivot_table(
            index=["seed", "request"], columns="round", values="delta_forget"
        )
        seed_band(ax, [float(k) for k in by_round.columns], by_round.to_numpy(), "Natural")
        read = [k for k in e.natural_rounds if k in by_round]
        ax.plot(read, by_round[read].mean(), "o", color=colour("Natural"), markersize=6)
        for method in PUFS:
            done, _ = completed(rows_of(runs, s.name, text, method, "test"))
            if len(done):
                gap = done.delta_forget.mean()
                ax.axhline(gap, color=colour(method), linestyle=linestyle(method), label=method)
                ax.plot((done.rounds + done.unlearning_rounds).mean(), gap, "o", color=colour(method), markersize=8)
        floor = rows_of(runs, s.name, text, AGAIN, "test").delta_forget.mean()
        ax.axhspan(0, floor, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor")
        ax.set(title=title(text), xlabel="rounds since the request", ylim=(0, None))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel(f"Δ forget {measure_of(s.settings[0])}")
    shown = [ax.get_legend_handles_labels() for ax in axes]  # who always gave up in one setting is in another's
    named = {name: handle for handles, names in shown for handle, name in zip(handles, names, strict=True)}
    axes[-1].legend(list(named.values()), list(named), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    say_below(fig, f"Line: the mean of {_runs_in(s)}; band: ± its standard deviation; PUF: those that came back")
    return fig


def radar(e: Experiment, runs: pd.DataFrame, setting: str, stop: str = "test") -> Figure:
    """Fig. 1, whose polygons are dots here: three differences to Retrain and two costs per method; left is better.

    Differences in points, each with what doing nothing amounts to (dotted) and what tells two retrainings apart (grey);
    costs in percent of retraining's, on a logarithmic axis that ends at a thousandth. A small dot per run that came
    back, a large one for their mean; who always gave up has a note.
    """
    panels = [
        (f"delta_{name}", head) for name, head in zip(ATTACKS, ("Δ forget acc.", "Δ Song", "Δ Yeom"), strict=True)
    ]
    panels += [("bytes_gain", "bytes sent"), ("images_gain", "FLOPs")]
    rows = {method: rows_of(runs, "clients", setting, method, stop) for method in e.methods}
    shown = {method: completed(r) for method, r in rows.items() if len(r)}
    fig, axes = axes_row(len(panels), height=0.27 * len(shown) + 1.6, width=2.3, sharey=True)
    for ax, (column, head) in zip(axes, panels, strict=True):
        for place, (method, (r, _)) in enumerate(shown.items()):
            if len(r):
                values = r[column] if column.startswith("delta") else _percent_of_retraining(r[column])
                look: dict[str, Any] = {"color": colour(method), "linewidth": 0}
                ax.scatter(values, [place] * len(values), s=14, alpha=0.5, zorder=2, **look)
                ax.scatter(values.mean(), place, s=60, marker=marker(method), edgecolor="white", zorder=3, **look)
        if column.startswith("delta"):
            nothing, floor = (rows_of(runs, "clients", setting, m, stop)[column].mean() for m in ("Original", AGAIN))
            ax.axvline(nothing, color=colour("Original"), linestyle=":", label="doing nothing")
            ax.axvspan(0, floor, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor")
            reach = max(nothing, ax.dataLim.x1)
            ax.set(xlabel="points", xlim=(-0.05 * reach, 1.08 * reach))
        else:
            ax.axvline(100, color=colour("Retrain"), linestyle="--", label="retraining")
            ax.set(xscale="log", xlabel="% of retraining", xlim=(0.6 * LEAST_COST, max(250.0, 1.5 * ax.dataLim.x1)))
            ax.set_xticks([0.1, 1, 10, 100], labels=["≤0.1", "1", "10", "100"])
            ax.minorticks_off()
        ax.set_title(head, fontsize=11)
        ax.tick_params(labelsize=9)
    axes[0].set_yticks(range(len(shown)), labels=list(shown))
    axes[0].set_ylim(len(shown) - 0.5, -0.5)
    for place, (r, _) in enumerate(shown.values()):
        if r.empty:
            at = {"transform": axes[0].get_yaxis_transform(), "va": "center", "ha": "center", "fontsize": 9}
            axes[0].text(0.5, place, "always gave up", color=LINE, **at)
    handles, labels = axes[0].get_legend_handles_labels()
    more_handles, more_labels = axes[-1].get_legend_handles_labels()
    fig.legend([*handles, *more_handles], [*labels, *more_labels], loc="outside upper left", ncols=3,
               title=title(setting), alignment="left", frameon=False)  # fmt: skip
    runs_each = _runs_in(e.scenario("clients"))
    say_below(fig, f"A small dot: one of at most {runs_each} that came back; a large one: their mean")
    return fig


def _percent_of_retraining(gain: pd.Series) -> pd.Series:
    """What runs cost, of retraining; who spent nothing stands at the axis' end."""
    return (100 / gain).fillna(0.0).clip(lower=LEAST_COST)


def operating_modes() -> Figure:
    """Fig. 2, redrawn: who sends an update in a Regular and in a Special round, and with which sign it counts.

    Everybody sends an update of the same kind; the sign is the server's.
    """
    fig, axes = axes_row(2, height=3.6, width=4.8)
    for ax, (name, active) in zip(axes, (("PUF-Regular", True), ("PUF-Special", False)), strict=True):
        ax.set(xlim=(-0.6, 3.6), ylim=(-0.5, 3.0), xticks=[], yticks=[])
        ax.axis("off")
        server = FancyBboxPatch((-0.35, 1.85), 3.7, 0.95, boxstyle="round,pad=0.1", facecolor="#eeeeee", edgecolor=LINE)
        ax.add_patch(server)
        step = r"$w_t + \eta_s(\eta_r\Delta^+ - \eta_u\Delta^-)$" if active else r"$w_t - \eta_s\eta_u\Delta^-$"
        ax.text(1.5, 2.6, f"server: {step}", ha="center", va="center")
        for i in range(4):
            leaves = i == 3
            takes_part = leaves or active
            shade = colour(name) if leaves else "#ffffff" if active else "#f4f4f4"
            edge = "#333333" if takes_part else "#bbbbbb"
            who = "leaves" if leaves else f"client {i}"
            looks = {"boxstyle": "circle,pad=0.35", "facecolor": shade, "edgecolor": edge}
            ink = "#ffffff" if leaves else edge
            ax.text(i, 0, who, ha="center", va="center", fontsize=8, bbox=looks, color=ink)
            if takes_part:
                ink = colour(name) if leaves else "#333333"
                ax.annotate("", (i, 1.75), (i, 0.42), arrowprops={"arrowstyle": "-|>", "color": ink, "linewidth": 1.5})
                ax.text(i + 0.09, 1.05, rf"$\Delta_{i}$", ha="left", va="center", color=ink)
                sign = "\N{MINUS SIGN}" if leaves else "+"
                ax.text(i, 2.06, sign, ha="center", va="center", color=ink, fontsize=15, fontweight="bold")
        ax.set_title(name, loc="left")
    say_below(fig, "An arrow: an update, new model less old; the sign in the box: what the server does with it")
    return fig


def sweep_scatter(e: Experiment, runs: pd.DataFrame, scenario: str = "clients", stop: str = "test") -> Figure:
    """Fig. 5 (and 6, for segmentation): recovery rounds against what is left of the forget gap, per (eta_u, E_u).

    One panel per setting. A line joins the rates eta_u of one mode and E_u, in their order. Means over the sweep's runs
    that came back; near the origin is good. Open: some gave up; where all did, or one diverged, no dot but a note.
    Stars: Natural, NoT and PGA on the same requests and seeds, tuned where the tables are; Natural, which no rule
    stops, after its last round. Crosses: the paper. Its figures come without numbers, so these are the forget gaps of
    the nearest block of its tables, at the rounds that its printed costs imply; those beyond our cap are in the note.
    """
    settings = e.sweep_settings if scenario == "clients" else e.scenario(scenario).settings
    fig, axes = axes_row(len(settings), height=4.2, width=7.0)
    names: list[list[tuple[float, float, str, str]]] = []
    for ax, setting in zip(axes, settings, strict=True):
        swept = runs[(runs.group == scenario) & (runs.setting == setting) & (runs.stop == stop)]
        swept = swept[swept.seed.isin(list(e.few_seeds)) & (swept.label != PUBLISHED)]
        lost = []
        labels: list[tuple[float, float, str, str]] = []
        ways: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
        for key, r in swept[swept.label != ""].groupby(["method", "eta_u", "epochs_u"]):
            method, eta_u, epochs_u = cast(tuple[str, float, float], key)
            point = f"{method.removeprefix('PUF-')} {eta_u:g}, $E_u$ = {epochs_u:g}"
            done, gave_up = completed(r)
            if r.delta_forget.isna().any():  # some targets survived it: their mean would flatter it
                lost.append(f"{point} diverged")
                continue
            if done.empty:
                lost.append(f"{point} always gave up")
                continue
            x, y = done.rounds.mean(), done.delta_forget.mean()
            inside, edge = ("white", colour(method)) if gave_up else (colour(method), "white")
            ax.scatter(x, y, marker=MARKERS.get(epochs_u, "v"), s=45, facecolor=inside, edgecolor=edge, zorder=3)
            labels.append((x, y, f"{eta_u:g}", colour(method)))
            ways.setdefault((method, epochs_u), []).append((eta_u, x, y))
        for (method, epochs_u), way in ways.items():
            _, xs, ys = zip(*sorted(way), strict=True)
            dashes = "-" if epochs_u == min(each for _, each in ways) else "--"
            ax.plot(xs, ys, color=colour(method), linestyle=dashes, linewidth=1.0, alpha=0.7, zorder=2)
        for method in SWEPT_AGAINST:
            r = swept[(swept.method == method) & (swept.label == "")]
            done, gave_up = completed(r)
            if len(done):
                place, inside = (done.rounds.mean(), done.delta_forget.mean()), "white" if gave_up else colour(method)
                ax.scatter(*place, facecolor=inside, edgecolor=colour(method), marker="*", s=130, zorder=2)
            elif gave_up:
                lost.append(f"{method} always gave up")
        printed = _papers_points(scenario, setting)
        for method, rounds, gap in printed:
            if rounds <= e.recovery_cap:
                ax.scatter(rounds, gap, color=colour(method), marker="x", s=40, zorder=2, gid="paper")
            else:
                lost.append(f"paper's {method} at {rounds:.3g} rounds")
        _sweep_legend(ax, swept, bool(printed))
        if lost:
            told = textwrap.fill(f"not shown: {'; '.join(lost)}", 85)
            ax.text(0.5, -0.2, told, transform=ax.transAxes, ha="center", va="top", fontsize=8)
        ax.set(title=title(setting), xlabel="recovery rounds", ylabel=f"Δ forget {measure_of(setting)}")
        ax.margins(0.08)
        ax.set_ylim(bottom=0)
        names.append(labels)
    for ax, labels in zip(axes, names, strict=True):
        label_dots(ax, labels)
    requests = counted(len(e.scenario(scenario).requests), "request")
    told = f"the mean of at most {counted(len(e.few_seeds), 'seed')} × {requests}"
    say_below(fig, f"A dot: {told}; open: some of them gave up; lines join the η_u of one E_u")
    return fig


def _papers_points(scenario: str, setting: str) -> list[tuple[str, float, float]]:
    """(method, recovery rounds, forget gap) of the nearest block of the paper's tables."""
    place = beside(scenario, setting)
    if place is None:
        return []
    printed = published("puf", f"table_{place[0]}")
    implied = implied_rounds()
    implied = implied[(implied.table == place[0].upper()) & (implied.setting == place[1])]
    rows = printed[printed.setting == place[1]].merge(implied[["method", "rounds"]], on="method")
    rows = rows[rows.method.isin([*PUFS, *SWEPT_AGAINST])]
    return list(zip(rows.method, rows.rounds, rows.forget_acc_delta, strict=True))


def _sweep_legend(ax: Axes, swept: pd.DataFrame, printed: bool) -> None:
    """Colours for methods, markers for E_u; the numbers beside the dots are eta_u."""
    for method in (*PUFS, *SWEPT_AGAINST):
        if (swept.method == method).any():
            marker = "o" if method in PUFS else "*"
            ax.scatter([], [], color=colour(method), marker=marker, label=method)
    for epochs_u in sorted(swept[swept.label != ""].epochs_u.dropna().unique()):
        marker = MARKERS.get(float(epochs_u), "v")
        ax.scatter([], [], color="#777777", marker=marker, label=f"$E_u$ = {epochs_u:g}")
    if printed:
        ax.scatter([], [], color="#777777", marker="x", label="paper")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, title="number: $\\eta_u$", title_fontsize=9,
              frameon=False)  # fmt: skip


def live_figure(curve: Curve, references: References, head: str) -> Figure:
    """The recovery curve behind the notebook's sliders, for one run; `references`: method -> metrics."""
    fig, axes = axes_row(2, height=3.2, width=4.6)
    for ax, metric in zip(axes, ("test", "forget"), strict=True):
        ax.plot([row["round"] for row in curve], [row[metric] for row in curve], "o-", color=colour("PUF-Special"))
        for method, values in references.items():
            ax.axhline(values[metric], color=colour(method), linestyle=linestyle(method), label=method)
        ax.set(xlabel="recovery round", ylabel=f"{metric} accuracy (%)", ylim=(0, 102))
    axes[0].set_title(head, loc="left")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    say_below(fig, "One run")
    return fig


def _extended(values: Sequence[Any], length: int) -> list[Any]:
    return [*values, *[values[-1]] * (length - len(values))]


def measure_of(setting: str) -> str:
    """What is measured on a setting's data: accuracy, or Dice where hospitals draw masks."""
    return "Dice (%)" if Setting.parse(setting).split == "site" else "accuracy (%)"
