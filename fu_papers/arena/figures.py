"""The arena's figures, drawn from the frames of `results` only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from fu_papers.arena.pools import CONSTANT, NOISY
from fu_papers.arena.results import AS_GOOD, NOTHING, Found, check_controls, shown
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.look import LINE, colour

MARKERS = {"none": "o", "exact": "s", "certified": "D"}  # by guarantee
GREYS = {AGAIN: "#000000", CONSTANT: "#b0b0b0", NOISY: "#9a9a9a"}
FREE = 0.02  # percent of Retrain's passes: what costs less is drawn there
FARTHEST = 300.0  # times the floor: what is farther from Retrain is drawn there, with an arrow
FORGOTTEN, REMEMBERED = "#e5f5e0", "#fdece9"


def look_of(name: str) -> str:
    """The colour of a method, or of a control."""
    return GREYS[name] if name in GREYS else colour(name)


def map_figure(ranked: pd.DataFrame) -> Figure:
    """Forgetting against cost: left is cheap, down is forgotten. Marker by guarantee; green: as good as Retrain."""
    fig, ax = plt.subplots(figsize=(10.5, 6.4))
    there = ranked[ranked.places > 0].set_index("method")
    nothing = float(there.times[NOTHING])
    ax.axhspan(0.5, AS_GOOD, color=FORGOTTEN, zorder=0)
    ax.axhspan(nothing, 2 * FARTHEST, color=REMEMBERED, zorder=0)
    ax.axhline(nothing, color=look_of(NOTHING), linestyle=":", linewidth=1.2)
    ax.text(
        0.99,
        nothing * 1.04,
        "farther from Retrain than doing nothing",
        color=LINE,
        transform=_right(ax),
        ha="right",
        va="bottom",
    )
    ax.text(0.99, AS_GOOD * 0.96, "cannot be told from Retrain", color=LINE, transform=_right(ax), ha="right", va="top")
    labels: list[tuple[float, float, str]] = []
    for name, row in there.iterrows():
        x, y = max(100 * row.price, FREE), min(row.times, FARTHEST)
        look: dict[str, Any] = {"color": look_of(str(name)), "marker": MARKERS[row.guarantee], "s": 70, "zorder": 3}
        if name in (NOTHING, AGAIN, CONSTANT, NOISY, DESTROYED):
            look |= {"facecolors": "none", "linewidths": 1.6}
        ax.scatter(x, y, **look)
        far = row.times > FARTHEST
        labels.append((x, y, f"{shown(str(name))}{' ↑' if far else ''}"))
    ax.set(xscale="log", yscale="log", xlim=(FREE / 1.6, 400), ylim=(0.5, 1.5 * FARTHEST))
    _spread_labels(ax, labels)
    ticks = [FREE, 0.1, 1, 10, 100]
    ax.set_xticks(ticks, labels=["free", "0.1", "1", "10", "100"])
    ax.set_yticks([1, 2, 10, 100], labels=["1", "2", "10", "100"])
    ax.minorticks_off()
    ax.set(
        xlabel="cost: passes over data, % of retraining",
        ylabel="distance from retrained models\n(KLoM on forgotten data, times the noise floor)",
    )
    for guarantee, marker in MARKERS.items():
        ax.scatter([], [], color=LINE, marker=marker, label=f"guarantee: {guarantee}")
    ax.scatter([], [], color=LINE, facecolors="none", marker="o", label="control")
    ax.legend(loc="lower left", frameon=True)
    return fig


def _right(ax: Axes) -> Any:
    """x as a share of the axes, y in data."""
    return ax.get_yaxis_transform()


def _spread_labels(ax: Axes, labels: Sequence[tuple[float, float, str]]) -> None:
    """Names right of their markers, moved up where they would lie on another; deterministic."""
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    taken: list[tuple[float, float, float]] = []  # left, right, height in pixels
    for x, y, text in sorted(labels, key=lambda one: (one[1], one[0])):
        px, py = ax.transData.transform((x, y))
        width, height = 6.4 * len(text), 13.0
        left = px + 9
        if left + width > ax.bbox.x1 + 90:
            left = px - 9 - width
        at = py
        while any(abs(at - other) < height and left < end and begin < left + width for begin, end, other in taken):
            at += 2.0
        taken.append((left, left + width, at))
        place = ax.transData.inverted().transform((left, at))
        ax.annotate(
            text, (x, y), xytext=tuple(place), fontsize=9, va="center",
            arrowprops={"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.6} if abs(at - py) > 8 else None,
        )  # fmt: skip


def places_figure(frame: pd.DataFrame, ranked: pd.DataFrame) -> Figure:
    """Every method in every place: KLoM on forgotten data over the floor, as colour and number."""
    check_controls(frame)
    order = list(ranked[ranked.places > 0].method)
    places = list(dict.fromkeys(zip(frame.setting, frame.request, strict=True)))
    grid = np.full((len(order), len(places)), np.nan)
    for row in frame[frame.klom_forget.notna()].to_dict("records"):
        grid[order.index(row["method"]), places.index((row["setting"], row["request"]))] = (
            row["klom_forget"] / row["floor"]
        )
    fig, ax = plt.subplots(figsize=(1.25 * len(places) + 3, 0.3 * len(order) + 1.6))
    shown_as = np.clip(np.where(np.isfinite(grid), grid, np.where(np.isnan(grid), np.nan, 1e9)), 0.5, 1e3)
    ax.imshow(shown_as, cmap="RdYlGn_r", norm=LogNorm(1, 300), aspect="auto")
    for (i, j), value in np.ndenumerate(grid):
        text = (
            ""
            if np.isnan(value)
            else "∞"
            if np.isinf(value)
            else "≥ 1000"
            if value >= 1000
            else f"{value:.2g}"
            if value < 100
            else f"{value:.0f}"
        )
        ax.text(j, i, text or "refuses", ha="center", va="center", fontsize=8, color="black" if text else "#999999")
    ax.set_yticks(range(len(order)), labels=[shown(name) for name in order])
    ax.set_xticks(
        range(len(places)), labels=[f"{request}\n{place_name(setting)}" for setting, request in places], fontsize=8
    )
    ax.xaxis.tick_top()
    ax.grid(visible=False)
    return fig


def place_name(setting: str) -> str:
    """Short: the split and the net of a setting."""
    _, split, net = setting.split("/")
    return f"{split}\n{net.replace('_regression', '')}"


def margins_figure(judged: Found, setting: str, request: str, names: Sequence[str]) -> Figure:
    """One forgotten example: its margin under every unlearned model, and under every retrained one."""
    fig, axes = plt.subplots(1, len(names), figsize=(3.1 * len(names), 3.0), sharex=True, sharey=True, squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        (record,) = (r for c, r in judged.items() if (c.setting, c.request, c.method) == (setting, request, name))
        both = record.metrics["example"]
        edges = np.linspace(min(map(min, both.values())) - 0.1, max(map(max, both.values())) + 0.1, 18)
        ax.hist(both["retrained"], edges, color=LINE, alpha=0.45, label="retrained")
        ax.hist(both["unlearned"], edges, color=look_of(name), alpha=0.6, label="unlearned")
        ax.set(title=shown(name), xlabel="margin of one forgotten example")
        ax.legend(frameon=False, fontsize=8)
    axes[0][0].set_ylabel("models")
    return fig


def judges_figure(frame: pd.DataFrame) -> Figure:
    """KLoM against the AUC of U-LiRA, a dot per method and place: two judges that look at the same margins."""
    fig, ax = plt.subplots(figsize=(6.4, 4.2))
    there = frame[frame.klom_forget.notna() & np.isfinite(frame.klom_forget.astype(float))]
    for name, own in there.groupby("method", sort=False):
        ax.scatter(own.klom_forget / own.floor, own.auc, color=look_of(str(name)), s=22)
    ax.axvline(1, color=LINE, linestyle="--", linewidth=1)
    ax.axhline(0.5, color=LINE, linestyle="--", linewidth=1)
    ax.set(xscale="log", xlabel="KLoM on forgotten data, times the noise floor", ylabel="AUC of U-LiRA (0.5: chance)")
    return fig
