"""The arena's figures, drawn from the frames of `results` only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fu_papers.arena.pools import BY_HAND, CONSTANT, LONGER, NOISY
from fu_papers.arena.results import NOTHING, Found, check_controls, shown
from fu_papers.controls import AGAIN, DESTROYED
from fu_papers.look import LINE, colour

MARKERS = {"none": "o", "exact": "s", "certified": "D"}  # by guarantee
GREYS = {AGAIN: "#000000", LONGER: "#000000", CONSTANT: "#b0b0b0", NOISY: "#9a9a9a"}
FREE = 0.02  # percent of Retrain's passes: what costs less is drawn there
LOWEST, FARTHEST = -30.0, 200.0  # percent left: what is farther is drawn there, with an arrow
MOST_TIMES = 1e4  # the floor: what is farther is drawn there
CONTROLS = (NOTHING, AGAIN, *BY_HAND, DESTROYED)
FORGOTTEN, REMEMBERED = "#e5f5e0", "#fdece9"


def look_of(name: str) -> str:
    """The colour of a method, or of a control."""
    return GREYS[name] if name in GREYS else colour(name)


def map_figure(ranked: pd.DataFrame) -> Figure:
    """Forgetting against cost: left is cheap, down is forgotten. Marker by guarantee; green: as good as Retrain."""
    fig, ax = plt.subplots(figsize=(10.5, 6.8))
    there = ranked[ranked.places > 0]
    ax.axhspan(LOWEST, 15, color=FORGOTTEN, zorder=0)
    ax.axhspan(100, FARTHEST * 1.2, color=REMEMBERED, zorder=0)
    ax.axhline(0, color=look_of(AGAIN), linestyle="--", linewidth=1.2)
    ax.axhline(100, color=look_of(NOTHING), linestyle=":", linewidth=1.2)
    words: dict[str, Any] = {"color": LINE, "transform": ax.get_yaxis_transform(), "ha": "right"}
    ax.text(0.99, FARTHEST * 1.17, "farther from Retrain than doing nothing", va="top", **words)
    ax.text(0.99, LOWEST + 2, "forgotten as by Retrain", va="bottom", **words)
    labels: list[tuple[float, float, str]] = []
    for row in there.to_dict("records"):
        name = row["method"]
        x, y = max(100 * row["price"], FREE), min(row["left"], FARTHEST)
        look: dict[str, Any] = {"edgecolors": look_of(name), "facecolors": look_of(name)}
        if name in CONTROLS:
            look |= {"facecolors": "none", "linewidths": 1.6}
        ax.scatter(x, y, marker=MARKERS[row["guarantee"]], s=70, zorder=3, **look)
        labels.append((x, y, f"{shown(name)}{' ↑' if row['left'] > FARTHEST else ''}"))
    ax.set(xscale="log", xlim=(FREE / 1.6, 500), ylim=(LOWEST, FARTHEST * 1.2))
    _spread_labels(ax, labels)
    ax.set_xticks([FREE, 0.1, 1, 10, 100], labels=["free", "0.1 %", "1 %", "10 %", "Retrain"])
    ax.minorticks_off()
    ax.set_yticks([0, 50, 100, 150, 200], labels=["Retrain", "50 %", "do nothing", "150 %", "200 %"])
    ax.set_xlabel("cost: passes over the data, of those that retraining takes")
    ax.set_ylabel("what is left to forget\n(log KLoM on forgotten data, 0 is the noise floor)")
    for guarantee, marker in MARKERS.items():
        ax.scatter([], [], color=LINE, marker=marker, label=f"guarantee: {guarantee}")
    ax.scatter([], [], edgecolors=LINE, facecolors="none", marker="o", label="control")
    ax.legend(loc="lower left", frameon=True)
    return fig


def _spread_labels(ax: Axes, labels: Sequence[tuple[float, float, str]]) -> None:
    """Names beside their markers, right or left, moved up or down where they would lie on another. Deterministic."""
    assert ax.figure is not None
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    height, apart = 14.0, 10.0  # pixels
    dots = [tuple(ax.transData.transform((x, y))) for x, y, _ in labels]
    taken = [(px - 7, px + 7, py) for px, py in dots]  # left, right and height of what is there
    for (x, y, text), (px, py) in sorted(zip(labels, dots, strict=True), key=lambda one: (one[1], one[0])):
        width = 7.3 * len(text)
        left, at = px + apart, py
        for k in range(80):
            at = py + (k + 1) // 2 * height / 2 * (-1 if k % 2 else 1)
            sides = [px + apart, px - apart - width]
            inside = [one for one in sides if ax.bbox.x0 < one and one + width < ax.bbox.x1 + 40]
            free = [one for one in inside if _is_free((one, one + width, at), taken, height)]
            if free and ax.bbox.y0 < at < ax.bbox.y1:
                left = free[0]
                break
        taken.append((left, left + width, at))
        rightwards = left > px
        place = ax.transData.inverted().transform((left if rightwards else px - apart, at))
        line = {"arrowstyle": "-", "color": "#aaaaaa", "linewidth": 0.7} if abs(at - py) > height / 2 else None
        ax.annotate(
            text,
            (x, y),
            xytext=tuple(place),
            fontsize=9,
            va="center",
            ha="left" if rightwards else "right",
            arrowprops=line,
        )


Strip = tuple[float, float, float]  # left, right, height


def _is_free(strip: Strip, taken: Sequence[Strip], height: float) -> bool:
    left, right, at = strip
    return all(abs(at - other) >= height or left >= end or begin >= right for begin, end, other in taken)


def places_figure(frame: pd.DataFrame, ranked: pd.DataFrame) -> Figure:
    """Every method in every place: what is left of doing nothing's distance from Retrain, as colour and number."""
    check_controls(frame)
    order = list(ranked[ranked.places > 0].method)
    places = list(dict.fromkeys(zip(frame.setting, frame.request, strict=True)))
    grid = np.full((len(order), len(places)), np.nan)
    for row in frame[frame.klom_forget.notna()].to_dict("records"):
        grid[order.index(row["method"]), places.index((row["setting"], row["request"]))] = row["left"]
    fig, ax = plt.subplots(figsize=(1.15 * len(places) + 3, 0.3 * len(order) + 1.6))
    ax.imshow(np.clip(grid, 0, 200), cmap="RdYlGn_r", vmin=-20, vmax=220, aspect="auto")
    for (i, j), value in np.ndenumerate(grid):
        text = "refuses" if np.isnan(value) else "∞" if np.isinf(value) else "> 999" if value > 999 else f"{value:.0f}"
        ax.text(j, i, text, ha="center", va="center", fontsize=8, color="#999999" if np.isnan(value) else "black")
    ax.set_yticks(range(len(order)), labels=[shown(name) for name in order])
    heads = [f"{request}\n{place_name(setting)}" for setting, request in places]
    ax.set_xticks(range(len(places)), labels=heads, fontsize=8)
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
        ax.hist(both["unlearned"], edges, color=look_of(name), alpha=0.5, label="unlearned")
        ax.hist(both["retrained"], edges, histtype="step", color="black", linewidth=1.6, label="retrained")
        ax.set(title=shown(name), xlabel="margin of one forgotten example")
        ax.legend(frameon=False, fontsize=8)
    axes[0][0].set_ylabel("models")
    return fig


def judges_figure(frame: pd.DataFrame) -> Figure:
    """KLoM against the AUC of U-LiRA, a dot per method and place: two judges that look at the same margins."""
    fig, ax = plt.subplots(figsize=(6.4, 4.2))
    there = frame[frame.klom_forget.notna() & np.isfinite(frame.klom_forget.astype(float))]
    for name, own in there.groupby("method", sort=False):
        times = np.minimum((own.klom_forget / own.floor).astype(float), MOST_TIMES)
        ax.scatter(times, own.auc, color=look_of(str(name)), s=22)
    ax.axvline(1, color=LINE, linestyle="--", linewidth=1)
    ax.axhline(0.5, color=LINE, linestyle="--", linewidth=1)
    ax.set(xscale="log", ylabel="AUC of U-LiRA (0.5: chance)")
    ax.set_xlabel(f"KLoM on forgotten data, times the noise floor (at most {MOST_TIMES:,.0f} shown)")
    return fig
