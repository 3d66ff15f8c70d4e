"""Names beside the dots of the arena's pictures; where dots crowd, around the crowd, with a thin line to the dot."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

DOT, GAP = 7.0, 3.0  # pixels: half a dot, and from it to its name
NEAR_LINE = 2.0  # pixels: a name that is nearer to a line that matters counts as struck by it

Dot = tuple[float, float, str]  # x, y, name


def place_names(
    ax: Axes,
    dots: Sequence[Dot],
    taken: Sequence[Bbox] = (),
    unnamed: Sequence[tuple[float, float]] = (),
    off: Sequence[float] = (),
    size: float = 9,
    half: float = DOT,
) -> None:
    """Write every dot's name where there is room. Call it when limits, scales and layout stand. Deterministic.

    A name lies on no dot, be it of `dots` or `unnamed` (x, y), on no other name and on nothing of `taken` (boxes in
    pixels). off: heights of lines that no name should be struck by; size: in points;
    half: of a dot, in pixels.
    """
    assert isinstance(ax.figure, Figure)
    ax.figure.draw_without_rendering()
    at = [np.array(ax.transData.transform((x, y))) for x, y, _ in dots]
    others = [np.array(ax.transData.transform(place)) for place in unnamed]
    boxes = [*taken, *(Bbox.from_extents(*(place - half), *(place + half)) for place in (*at, *others))]
    aside = half + GAP
    levels = [float(ax.transData.transform((1, level))[1]) for level in off]
    # The lonely first: they take the places at their sides, and the crowded go around them.
    order = sorted(range(len(dots)), key=lambda i: (_crowd(at, i), -at[i][1], at[i][0], dots[i][2]))
    for i in order:
        x, y, text = dots[i]
        name = ax.annotate(text, (x, y), fontsize=size, va="center")
        name.set_path_effects([withStroke(linewidth=2, foreground="white", alpha=0.8)])  # lines pass behind it
        width, height = name.get_window_extent().width, name.get_window_extent().height
        box, side = _free_box(ax.bbox, (*at[i], aside), (width, height), boxes, levels)
        boxes.append(box)
        end = np.array([box.x0 if side > 0 else box.x1, (box.y0 + box.y1) / 2])
        name.set(position=ax.transData.inverted().transform(end), ha="left" if side > 0 else "right")
        if abs(end[1] - at[i][1]) > height / 2 or abs(end[0] - at[i][0]) > 2 * aside:
            line = {"arrowstyle": "-", "color": "#8a8a8a", "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4}
            ax.annotate("", (x, y), xytext=name.get_position(), arrowprops=line)


def _crowd(at: Sequence[Any], i: int) -> int:
    """How many other dots are so near that their names would meet."""
    return sum(abs(at[i][0] - x) < 90 and abs(at[i][1] - y) < 15 for j, (x, y) in enumerate(at) if j != i)


def _free_box(
    frame: Any,
    dot: tuple[float, float, float],
    size: tuple[float, float],
    taken: Sequence[Bbox],
    levels: Sequence[float],
) -> tuple[Bbox, int]:
    """The nearest free place for a name of that size, in pixels, and on which side of its dot: 1 right, -1 left.

    dot: its middle, and how far from it a name begins.
    """
    (*at, aside), (width, height) = dot, size
    x0, y0, x1, y1 = np.array([other.extents for other in taken]).T
    places = [
        (abs(up) + 0.7 * out + 3 * (side < 0), side, out, up)
        for side, out, up in itertools.product((1, -1), range(0, 120, 12), range(-150, 151, 5))
    ]
    best, found = math.inf, (Bbox.from_bounds(at[0] + aside, at[1] - height / 2, width, height), 1)
    for far, side, out, up in sorted(places, key=lambda one: one[0]):
        if far >= best:
            break  # whatever comes is farther away
        begin, middle = at[0] + side * (aside + out), at[1] + up
        left, low = begin if side > 0 else begin - width, middle - height / 2
        right, high = left + width, low + height
        inside = frame.x0 + 3 < left and right < frame.x1 - 3 and frame.y0 + 3 < low < frame.y1 - height
        if not inside or np.any((left <= x1) & (x0 <= right) & (low <= y1) & (y0 <= high)):
            continue
        x, y = np.linspace((at[0] + side * aside, at[1]), (begin, middle), 12).T[:, :, None]  # of the line to the dot
        crossed = np.any((x0 < x) & (x < x1) & (y0 < y) & (y < y1), axis=0).sum()
        struck = any(low - NEAR_LINE < level < high + NEAR_LINE for level in levels)
        if (cost := far + 60 * crossed + height * struck) < best:
            best, found = cost, (Bbox.from_extents(left, low, right, high), side)
    return found
