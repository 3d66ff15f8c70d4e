"""The arena's figures, drawn from the frames of `results` only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fu_core.request import Request
from fu_papers.arena.names import Dot, place_names
from fu_papers.arena.pools import BY_HAND, CONSTANT, ENSEMBLES, LONGER, MUCH_LONGER, NOISY, ORDINARY
from fu_papers.arena.results import NOTHING, Found, about, check_controls, shown
from fu_papers.arena.worlds import NAMES, world_of
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.look import LINE, colour, say_below
from fu_papers.problems import Setting, dataset_name

MARKERS = {"none": "o", "exact": "s", "certified": "D"}  # by guarantee
GREYS = {AGAIN: "#000000", LONGER: "#000000", MUCH_LONGER: "#000000", ORDINARY: "#555555", ENSEMBLES: "#4b4e9e",
         CONSTANT: "#b0b0b0", NOISY: "#9a9a9a"}  # fmt: skip
FREE = 0.02  # percent of Retrain's passes: what costs less is drawn there
LOWEST, FARTHEST = -30.0, 200.0  # percent left: what is farther is drawn there, with an arrow
MOST_TIMES = 1e4  # the floor: what is farther is drawn there
CONTROLS = (NOTHING, AGAIN, *BY_HAND, DESTROYED)
BAND = 15.0  # percent left: below it is what the map calls as near as a retraining
FORGOTTEN, REMEMBERED = "#dcebf7", "#fdeee0"  # blue and orange: told apart by colour-blind readers, too
LEFT_COLOURS = "RdBu_r"  # blue: as Retrain; white: as doing nothing; red: farther
NARROW = 9  # letters above a single column
FAR, TOLD = 100.0, 0.8  # times the floor; AUC: where the judges disagree
KINDS_SHOWN: dict[str, dict[str, Any]] = {  # on the picture of the judges
    "methods without a guarantee": {"marker": "o", "color": "#e69f00", "markersize": 5, "alpha": 0.8},
    "methods with a guarantee": {"marker": "s", "color": "#0072b2", "markersize": 6.5},
    AGAIN: {"marker": "X", "color": "black", "markersize": 8, "markeredgecolor": "white"},
    NOTHING: {"marker": "D", "color": "black", "fillstyle": "none", "markersize": 6, "markeredgewidth": 1.4},
    "other controls": {"marker": "o", "color": "#777777", "fillstyle": "none", "markersize": 6, "markeredgewidth": 1.2},
}


def look_of(name: str) -> str:
    """The colour of a method, or of a control."""
    return GREYS[name] if name in GREYS else colour(name)


def map_figure(ranked: pd.DataFrame) -> Figure:
    """Forgetting against cost: left is cheap, down is forgotten. Marker by guarantee; hollow: a control.

    What refused some places, or diverged there, is half filled and says how many it served; its means are over those.
    What is farther than FARTHEST, or free, stands at the edge.
    """
    fig, ax = plt.subplots(figsize=(11.5, 7.6))
    there = ranked[(ranked.places > 0) & (ranked.method != ENSEMBLES)]  # which is at 100 by the scale
    ax.axhspan(LOWEST, BAND, color=FORGOTTEN, zorder=0)
    ax.axhspan(100, FARTHEST * 1.2, color=REMEMBERED, zorder=0)
    ax.axhline(0, color=look_of(AGAIN), linestyle="--", linewidth=1.2, zorder=1)
    ax.axhline(100, color=look_of(NOTHING), linestyle=":", linewidth=1.2, zorder=1)
    words: dict[str, Any] = {"color": LINE, "transform": ax.get_yaxis_transform(), "fontsize": 12, "va": "center"}
    zones = (
        (1.14 * FARTHEST, "farther from Retrain than doing nothing"),
        (60, "nearer"),
        (LOWEST / 2, "near Retrain"),
    )
    written = [ax.text(0.012, height, name, weight="bold", **words) for height, name in zones]
    ax.set(xscale="log", xlim=(FREE / 1.7, 400), ylim=(LOWEST, FARTHEST * 1.2))
    dots: list[Dot] = []
    for row in there.to_dict("records"):
        x, y = max(100 * row["price"], FREE), min(row["left"], FARTHEST)
        ax.plot(x, y, markersize=9, linestyle="none", zorder=3, **marker_of(row))
        dots.append((x, y, label_of(row)))
    ax.set_xticks([FREE, 0.1, 1, 10, 100], labels=["free", "0.1 %", "1 %", "10 %", "100 %"])
    ax.minorticks_off()
    ax.set_yticks([0, 50, 100, 150, 200], labels=["Retrain", "50 %", "do nothing", "150 %", "200 %"])
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("cost: passes over the data, as a share of retraining's (log scale)")
    ax.set_ylabel("what is left to forget\n(log KLoM on forgotten data, 0 is the noise floor)")
    ax.set_title(_summary(there), fontsize=13)
    fig.legend(handles=_map_handles(there), loc="outside upper center", ncols=5, frameon=False)
    fig.draw_without_rendering()  # the layout stands only now
    place_names(ax, dots, [text.get_window_extent() for text in written], off=(0, 100))
    say_below(fig, f"{_models(there)}means over the places served, of {there.of.max()}; ↑: more than {FARTHEST:.0f} %")
    return fig


def marker_of(row: Mapping[Any, Any]) -> dict[str, Any]:
    """How a method's marker looks, from its line of the ranking: shape, colour, and how much of it is filled."""
    hue = look_of(row["method"])
    filled = "none" if row["method"] in CONTROLS else "full" if row["places"] == row["of"] else "left"
    return {"marker": MARKERS[row["guarantee"]], "color": hue, "fillstyle": filled, "markeredgewidth": 1.6,
            "markerfacecoloralt": "white"}  # fmt: skip


def label_of(row: Mapping[Any, Any]) -> str:
    """A method's name on the map, with what has to be known of its dot."""
    served = "" if row["places"] == row["of"] else f" ({row['places']} of {row['of']})"
    return f"{shown(row['method'])}{served}{' ↑' if row['left'] > FARTHEST else ''}"


def _summary(there: pd.DataFrame) -> str:
    """How many methods get where, as the title of the map."""
    methods = there[~there.method.isin(CONTROLS)]
    nearer, as_good = int(methods.always_nearer.sum()), methods[methods.as_good == methods.places]
    named = f" ({', '.join(as_good.method)})" if 0 < len(as_good) < 4 else ""
    got = f"{len(as_good) or 'none'} as near as Retrain again{named}"
    apart = "left_classes" in there and there.left_classes.notna().any() and not there.left.equals(there.left_classes)
    # classes have a column of their own, and who refuses a request is asked where he serves
    where = "wherever they let clients or samples go" if apart else "wherever they serve"
    told = f"Of {len(methods)} methods, {nearer or 'none'} are told nearer to Retrain than doing nothing {where}"
    return f"{told}, {got}" if nearer else told


def _map_handles(there: pd.DataFrame) -> list[Line2D]:
    """The legend's, of what is on the map."""
    rows: list[tuple[str, str, Any]] = [
        (f"guarantee: {name}", mark, "full") for name, mark in MARKERS.items() if name in set(there.guarantee)
    ]
    if (there.places < there.of).any():
        rows.append(("refused or diverged in some places (served k of n)", MARKERS["none"], "left"))
    if there.method.isin(CONTROLS).any():
        rows.append(("control", MARKERS["none"], "none"))
    return [
        Line2D([], [], color=LINE, marker=mark, fillstyle=filled, linestyle="", markersize=9, markeredgewidth=1.6,
               markerfacecoloralt="white", label=name)
        for name, mark, filled in rows
    ]  # fmt: skip


def places_figure(frame: pd.DataFrame, ranked: pd.DataFrame) -> Figure:
    """Every method in every place: what is left of doing nothing's distance from Retrain, as colour and number."""
    check_controls(frame)
    order = list(ranked[ranked.places > 0].method)
    places = list(dict.fromkeys(zip(frame.setting, frame.request, strict=True)))
    grid = np.full((len(order), len(places)), np.nan)
    lost = {(r.method, r.setting, r.request): str(r.lost) for r in frame[frame.klom_forget.isna()].itertuples()}
    for row in frame[frame.klom_forget.notna()].to_dict("records"):
        grid[order.index(row["method"]), places.index((row["setting"], row["request"]))] = row["left"]
    fig, ax = plt.subplots(figsize=(max(0.72 * len(places) + 2.6, 8), 0.3 * len(order) + 1.6))
    ax.imshow(np.clip(grid, 0, 200), cmap=LEFT_COLOURS, vmin=-20, vmax=220, aspect="auto")
    for (i, j), value in np.ndenumerate(grid):
        # Dark at both ends of the scale, where dark letters would not be read.
        ink = "#666666" if np.isnan(value) else "white" if value < 25 or value > 175 else "black"
        words = _left_text(value, lost.get((order[i], *places[j]), ""))
        size = 7.5 if np.isnan(value) else 10.5
        ax.text(j, i, words, ha="center", va="center", fontsize=size, color=ink)
    ax.set_yticks(range(len(order)), labels=[shown(name) for name in order], fontsize=11)
    ax.set_xticks(range(len(places)), labels=[_request_name(request) for _, request in places], fontsize=10)
    ax.xaxis.tick_top()
    ax.grid(visible=False)
    _head_blocks(ax, [setting for setting, _ in places])
    say_below(fig, f"{_models(frame)}0: Retrain's noise floor (blue), 100: as far from it as doing nothing (white)")
    return fig


def _request_name(text: str) -> str:
    """Two short lines for the head of a column: "client\\n3", "half of\\nclient 3"."""
    request = Request.parse(text)
    who = " and ".join(map(str, request.clients))
    if request.kind == "sample" and len(request.clients) == 1:
        return f"{'half' if request.share == 0.5 else f'{100 * request.share:g} %'} of\nclient {who}"
    if request.kind == "client":
        return f"clients\n{who}" if len(request.clients) > 1 else f"client\n{who}"
    return f"class\n{request.label}" if request.kind == "class" else text


def _head_blocks(ax: Axes, settings: Sequence[str]) -> None:
    """Above the columns of each setting what they have in common, and a gap to the next one's."""
    for setting in dict.fromkeys(settings):
        columns = [j for j, other in enumerate(settings) if other == setting]
        data, _, net = place_name(setting).split("\n")
        dealt = Setting.parse(setting).split_title
        wide = len(columns) > 1
        head = f"{data}\n{dealt}, {net}" if wide else "\n".join(fill(text, NARROW) for text in (data, dealt, net))
        middle = (columns[0] + columns[-1]) / 2
        ax.annotate(head, (middle, 1), (0, 38), ("data", "axes fraction"), "offset points", ha="center", fontsize=10)
        if columns[0] > 0:
            ax.axvline(columns[0] - 0.5, color="white", linewidth=5)


def _left_text(value: float, lost: str = "") -> str:
    """What is left of the distance, in percent, as a cell shows it; why there is nothing, where there is not."""
    if np.isnan(value):
        return "diverged" if lost == "diverged" else "refuses"
    return "∞" if np.isinf(value) else "> 999" if value > 999 else f"{value:.0f}".replace("-0", "0")


def _models(frame: pd.DataFrame) -> str:
    """How many models there are on either side, as the line below a figure begins."""
    if "models" not in frame:
        return ""
    least, most = frame.models.dropna().min(), frame.models.dropna().max()
    return f"{least:.0f} to {most:.0f} models a side; " if least < most else f"{most:.0f} models a side; "


def place_name(setting: str) -> str:
    """Short: the data, the split and the net of a setting, a line each."""
    dataset, split, net = setting.split("/")[:3]
    return f"{dataset_name(dataset)}\n{split}\n{net.replace('_regression', '')}"


def place_line(setting: object) -> str:
    """`place_name` on one line."""
    return place_name(str(setting)).replace("\n", ", ")


def worlds_figure(frame: pd.DataFrame) -> Figure:
    """Places beyond a plain server, a panel each: what is left of doing nothing's distance from Retrain, by method.

    Bars: 95 % over models. Shape by guarantee; hollow: a control. What is farther than FARTHEST stands at the edge.
    """
    check_controls(frame)
    places = list(dict.fromkeys(zip(frame.setting, frame.request, strict=True)))
    panels = [
        frame[(frame.setting == setting) & (frame.request == request) & frame.klom_forget.notna()].sort_values(
            "left", kind="stable"
        )
        for setting, request in places
    ]
    axes = _stacked([len(rows) for rows in panels])
    for ax, rows, (setting, request) in zip(axes, panels, places, strict=True):
        ax.axvline(0, color=look_of(AGAIN), linestyle="--", linewidth=1.2, zorder=1)
        ax.axvline(100, color=look_of(NOTHING), linestyle=":", linewidth=1.2, zorder=1)
        for y, row in enumerate(rows.to_dict("records")):
            known = about(row["method"])
            look = marker_of({**row, "guarantee": "none" if known is None else known.guarantee, "places": 1, "of": 1})
            low, high = np.clip([row["left_low"], row["left_high"]], LOWEST, FARTHEST)
            ax.plot([low, high], [y, y], color=look["color"], linewidth=1.5, zorder=2)
            ax.plot(np.clip(row["left"], LOWEST, FARTHEST), y, markersize=7, zorder=3, **look)
        names = [f"{shown(row.method)}{' →' if row.left > FARTHEST else ''}" for row in rows.itertuples()]
        ax.set_yticks(range(len(rows)), labels=names)
        ax.set_title(f"{NAMES[world_of(setting)]}: {request}\n{place_line(setting)}", fontsize=10.5)
        ax.set(xlim=(LOWEST * 1.15, FARTHEST * 1.08), ylim=(len(rows) - 0.4, -0.6))
        ax.set_xticks([0, 100, 200], labels=["Retrain", "do nothing", "200 %"])
        ax.grid(axis="y", visible=False)
    fig = axes[0].figure
    assert isinstance(fig, Figure)
    fig.supxlabel("what is left to forget (log KLoM on forgotten data)", fontsize=11)
    edge = f"→: more than {FARTHEST:.0f} %"
    say_below(fig, f"{_models(frame)}bars: 95 % over models; {edge}; each against Retrain of its own world")
    return fig


def _stacked(rows: Sequence[int]) -> list[Axes]:
    """A panel for each number of rows, as high as it needs: the first at the left, the others beside it, stacked."""
    others = rows[1:]
    height = 0.25 * max(rows[0], sum(others) + 4 * len(others)) + 1.4
    fig = plt.figure(figsize=(12 if others else 6.5, height))
    columns = fig.add_gridspec(1, 2 if others else 1)
    axes = [fig.add_subplot(columns[0, 0])]
    if others:
        below = columns[0, 1].subgridspec(len(others), 1, height_ratios=list(others))
        axes += [fig.add_subplot(below[k, 0]) for k in range(len(others))]
    return axes


def margins_figure(judged: Found, setting: str, request: str, names: Sequence[str]) -> Figure:
    """One forgotten example: its margin under every unlearned model, and under every retrained one.

    names: of whom; those that have no result in this place are left out.
    """
    here = {c.method: r.metrics for c, r in judged.items() if (c.setting, c.request) == (setting, request)}
    examples: dict[str, dict[str, list[float]]] = {
        name: here[name]["example"] for name in names if "example" in here[name]
    }
    panels = len(examples)
    fig, axes = plt.subplots(1, panels, figsize=(3.1 * panels, 3.2), sharex=True, sharey=True, squeeze=False)
    margins = [margin for both in examples.values() for crowd in both.values() for margin in crowd]
    edges = np.linspace(min(margins) - 0.1, max(margins) + 0.1, 24)  # the same in every panel
    for ax, (name, both) in zip(axes[0], examples.items(), strict=True):
        shares = {side: [100 / len(crowd)] * len(crowd) for side, crowd in both.items()}  # crowds differ in size
        ax.hist(both["unlearned"], edges, weights=shares["unlearned"], color=look_of(name), alpha=0.5)
        ax.hist(both["retrained"], edges, weights=shares["retrained"], histtype="step", color="black", linewidth=1.6)
        ax.set(title=shown(name))
    axes[0][0].set_ylabel("models (%)")
    fig.supxlabel("margin of the forgotten example that retrained models know least", fontsize=11)
    handles = [
        Patch(color=LINE, alpha=0.5, label="unlearned"),
        Patch(facecolor="none", edgecolor="black", linewidth=1.6, label="retrained"),
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    least, most = (f(len(crowds["unlearned"]) for crowds in examples.values()) for f in (min, max))
    models = f"{least} to {most}" if least < most else most
    say_below(fig, f"{models} models a side, {request} on {place_line(setting)}")
    return fig


def judges_figure(frame: pd.DataFrame) -> Figure:
    """KLoM against the AUC of U-LiRA, a dot per method and place: two judges that look at the same margins.

    Marker by guarantee, hollow for controls, as on the map. Named is who is far away by KLoM (times FAR the floor)
    and not told by U-LiRA (AUC below TOLD).
    """
    fig, ax = plt.subplots(figsize=(8.4, 5.4))
    there = frame[frame.klom_forget.notna() & np.isfinite(frame.klom_forget.astype(float))]
    times = np.minimum((there.klom_forget / there.floor).astype(float), MOST_TIMES)
    there = there.assign(times=times, kind=[_kind(str(name)) for name in there.method])
    for kind, look in KINDS_SHOWN.items():
        own = there[there.kind == kind]
        if len(own):
            ax.plot(own.times, own.auc, linestyle="none", label=shown(kind), **look)
    disagree = there[(there.times >= FAR) & (there.auc < TOLD)].sort_values("auc", kind="stable")
    ax.axvline(1, color=LINE, linestyle="--", linewidth=1, zorder=1)
    ax.axhline(0.5, color=LINE, linestyle="--", linewidth=1, zorder=1)
    ax.set(xscale="log", xlabel="KLoM on forgotten data, times the noise floor", ylabel="AUC of U-LiRA")
    ticks = [10.0**k for k in range(5)]
    ax.set_xticks(ticks, labels=["1\n(floor)", "10", "100", "1,000", "10,000\nand more"])
    ax.set_yticks([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], labels=["chance 0.5", "0.6", "0.7", "0.8", "0.9", "told 1.0"])
    ax.minorticks_off()
    fig.legend(loc="outside upper center", ncols=3, frameon=False)
    fig.draw_without_rendering()  # the layout stands only now
    place_names(ax, _disagreeing(disagree), [], list(zip(there.times, there.auc, strict=True)))
    named = f"; named, at its lowest AUC: KLoM at least {FAR:g} floors, AUC below {TOLD:g}" if len(disagree) else ""
    say_below(fig, f"{_models(frame)}a dot: one method in one place{named}")
    return fig


def _disagreeing(rows: pd.DataFrame) -> list[Dot]:
    """Each method of `rows` (the lowest AUC first) at its first place, and in how many it is there."""
    firsts = [(name, len(own), own.iloc[0]) for name, own in rows.groupby("method", sort=False)]
    return [
        (float(row.times), float(row.auc), f"{shown(str(name))}{f', {places} places' if places > 1 else ''}")
        for name, places, row in firsts
    ]


def _kind(name: str) -> str:
    """Which of KINDS_SHOWN a method is."""
    if name in CONTROLS:
        return name if name in KINDS_SHOWN else "other controls"
    known = about(name)
    return (
        "methods with a guarantee" if known is not None and known.guarantee != "none" else "methods without a guarantee"
    )
