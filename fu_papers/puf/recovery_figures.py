"""PUF's figures of recovery, drawn from run records only: round by round, and who forgets at equal utility.

Every function takes the experiment and records; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter
from numpy.typing import NDArray

from fu_core.unlearning.method import method as registered
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, linestyle, marker, say_below
from fu_papers.problem_figures import FLOOR, POINTS, linear_up_to_a_point, title
from fu_papers.puf.figures import difference_of, measure_of, runs_in
from fu_papers.puf.grid import AGAIN, OFFICIAL, Experiment
from fu_papers.puf.results import Unlearnings, runs_of

REPLAYED = "D"
COLUMNS = 5  # of small panels, one per method
FloatArray = NDArray[np.float64]
LINEAR, ROOM = 5.0, 1.35  # the axis of recovery is linear so far; of its ends' distance, beyond that


def recovery_curves(
    e: Experiment, unlearnings: Unlearnings, setting: str, scenario: str = "clients", methods: Sequence[str] = ()
) -> Figure:
    """Fig. 4: test and forget accuracy per recovery round, less Retrain's of the same request and seed, a line per run.

    methods: only these; none given: all of the experiment's. Two small panels per method: test accuracy above, forget
    accuracy below, in points, linear up to five of them, then logarithmic. Round 0 is right after the unlearning step,
    the dashed line is Retrain. A line ends where its run ends: in a full dot where the paper's stop rule (test accuracy
    reaches Retrain's) ended recovery, in an open one where it gave up; Natural, which no rule stops, has neither. Who
    has no recovery (FedEraser) has a mark of its own: a replay ends where it ends.
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
            ax.set_yscale("symlog", linthresh=LINEAR, linscale=0.8)
            ax.yaxis.set_major_locator(FixedLocator((-50, -5, 0, 5, 50)))
            ax.yaxis.set_major_formatter(ScalarFormatter())
            ax.yaxis.set_minor_locator(NullLocator())
        limits = [ax.get_ylim() for ax, _ in zip(panels, found, strict=False)]
        for k, ax in enumerate(panels):
            ax.set_ylim(_beyond(min(low for low, _ in limits)), _beyond(max(high for _, high in limits)))
            ax.tick_params(labelleft=k % columns == 0, labelsize=9)
            if k % columns == 0:
                ax.set_ylabel(f"{metric} {measure_of(setting).partition(' ')[0]}\nless Retrain's", fontsize=9)
    _dress_panels(grid, list(found), rows_each=2)
    ink: dict[str, Any] = {"color": LINE, "linewidth": 1.2}
    looks: list[dict[str, Any]] = [{**ink, "marker": "o"}, {**ink, "marker": "o", "markerfacecolor": "white"}]
    looks += [{"color": colour(m), "linestyle": linestyle(m)} for m in ("Retrain", "Original")]
    handles = [Line2D([], [], **look) for look in looks]
    names = ["came back", "gave up", "Retrain", "Original (do nothing)"]
    if any(_end_mark(method) == REPLAYED for method in found):
        handles.append(Line2D([], [], color=LINE, marker=REPLAYED, linewidth=0, markersize=5))
        names.append("no recovery")
    head = f"{title(setting)}: {e.scenario(scenario).heading}"
    fig.legend(handles, names, loc="outside upper left", ncols=len(names), title=head, alignment="left", frameon=False)
    fig.supxlabel("recovery round (0: right after unlearning)", fontsize=11)
    beyond = f"; log scale beyond ±{LINEAR:.0f}"
    say_below(fig, f"A line: one of {runs_in(e.scenario(scenario))}, points above its own Retrain{beyond}")
    return fig


def _beyond(end: float) -> float:
    """An end of such an axis, with room for half a dot: on a logarithmic scale the usual margin is next to none."""
    return end * ROOM if abs(end) > LINEAR else end


def _run_line(ax: Axes, method: str, path: Sequence[float], stop: Mapping[str, Any], end: float) -> None:
    """One run's `path` over the rounds, and the dot where it came back (`end`, at the round of `stop`) or gave up.

    What a run went on for, once the paper's rule was met, is left out.
    """
    look: dict[str, Any] = {"color": colour(method), "markersize": 5, "zorder": 3}
    if method == "Natural":
        shown = list(path)
    elif _end_mark(method) == REPLAYED:
        shown = [end]
        ax.plot(0, end, REPLAYED, **look)
    elif stop["reached"]:
        shown = [*path[: stop["rounds"]], end]
        ax.plot(stop["rounds"], end, "o", **look)
    else:
        shown = list(path)
        ax.plot(len(path) - 1, path[-1], "o", markerfacecolor="white", **look)
    ax.plot(range(len(shown)), shown, color=colour(method), linewidth=1.0, alpha=0.8)


def _end_mark(method: str) -> str:
    """Of where a run ends: a dot, or another mark for who has no recovery, and so no rule that could stop it."""
    return "o" if method == OFFICIAL or registered(method).recovers else REPLAYED


def mean_way(unlearnings: Unlearnings, scenario: str, setting: str, method: str) -> FloatArray | None:
    """Test shortfall and forget gap after each recovery round (rounds, 2), means over all runs; None without runs."""
    if not (paths := _gaps_and_shortfalls(unlearnings, scenario, setting, method)):
        return None
    last = max(len(path) for path in paths)
    way: FloatArray = np.mean([_extended(path, last) for path in paths], axis=0)
    return way


def utility_matched(
    e: Experiment, unlearnings: Unlearnings, setting: str, scenario: str = "clients", methods: Sequence[str] = ()
) -> Figure:
    """Forget gap against test shortfall over the recovery rounds, a panel per method: who forgets at equal utility?

    Both are differences to the retrained model of the same request and seed (the gap absolute), means over all runs,
    those included that gave up; one that stopped stays where it stopped. Recovery moves to the left. A full dot is
    where all runs came back under the paper's stop rule, an open one where some had not when the cap was reached; the
    panel's title counts them; a diamond: no recovery. Small grey dots: where the others end. Both axes are linear up to
    one point, then logarithmic. Retrain is the origin, the grey box two retrainings that only their seeds tell apart.
    Nearer to the box at the same shortfall is better. methods: only these; none given: all of the experiment's.
    """
    ways: dict[str, FloatArray] = {}
    names: dict[str, str] = {}
    for method in methods or e.methods:
        if (way := mean_way(unlearnings, scenario, setting, method)) is None:
            continue
        ways[method] = way
        ended = [run.metrics["test"]["reached"] for run in runs_of(unlearnings, scenario, setting, method)]
        gave_up = 0 if len(way) == 1 or method == "Natural" else ended.count(False)  # neither can
        names[method] = f"{method}, gave up {gave_up} of {len(ended)}" if gave_up else method
    rows, columns = _panels(len(ways))
    size = (2.2 * columns + 0.6, 2.2 * rows + 0.8)
    fig, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, sharex=True, sharey=True)
    for ax, (method, way) in zip(grid.ravel(), ways.items(), strict=False):
        others = np.array([other[-1] for name, other in ways.items() if name != method]).reshape(-1, 2)
        ax.scatter(*others.T, color="#b5b5b5", s=9, zorder=2, label="the others' ends")
        ax.plot(*way.T, color=colour(method), linewidth=1.2, marker=".", markersize=3, label=method)
        inside = colour(method) if names[method] == method else "white"
        ax.plot(*way[-1], _end_mark(method), markersize=7, color=colour(method), markerfacecolor=inside, zorder=4)
        _mark_references(ax, unlearnings, scenario, setting)
    first = grid[0, 0]
    linear_up_to_a_point(list(grid.ravel()))
    nothing = [g["test"] - o["final"]["test"] for o, g in _ends(unlearnings, scenario, setting, "Original")]
    every = np.concatenate([*ways.values(), [[-1.0, 0.0], [1.0, 0.0], [float(np.mean(nothing)), 0.0]]])
    low, high = 1.4 * every[:, 0].min(), 1.4 * every[:, 0].max()
    first.set_xticks([at for at in POINTS if low <= at <= 0.7 * high])  # one at the edge would lie on the next panel's
    first.set_xlim(low, high)
    first.set_ylim(0, 1.4 * max(first.get_ylim()[1] / 1.4, every[:, 1].max()))
    _dress_panels(grid, list(names.values()))
    handles, labels = first.get_legend_handles_labels()
    shown = [k for k, label in enumerate(labels) if label not in ways]
    head = f"{title(setting)}: {e.scenario(scenario).heading}"
    fig.legend([handles[k] for k in shown], [labels[k] for k in shown], loc="outside upper left", ncols=4, title=head,
               alignment="left", frameon=False)  # fmt: skip
    measure = difference_of(setting)
    fig.supxlabel(f"test shortfall: {measure} below Retrain's", fontsize=11)
    fig.supylabel(f"Δ forget {measure}", fontsize=11)
    say_below(fig, f"A line: the mean of {runs_in(e.scenario(scenario))}, a point per recovery round")
    return fig


def _gaps_and_shortfalls(
    unlearnings: Unlearnings, scenario: str, setting: str, method: str
) -> list[list[tuple[float, float]]]:
    """(shortfall, forget gap) to Retrain per recovery round, for every run of a method."""
    return [
        [(goal["test"] - row["test"], abs(row["forget"] - goal["forget"])) for row in record.rounds]
        for record, goal in _with_goals(unlearnings, scenario, setting, method)
    ]


def _extended(values: Sequence[Any], length: int) -> list[Any]:
    return [*values, *[values[-1]] * (length - len(values))]


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


# --- runs and panels -------------------------------------------------------------------------------------------------


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
