"""Names beside the dots of a figure, where they lie on nothing that is drawn: on no dot, no line and no other name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.path import Path
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

NEAR = 7  # points from the middle of a dot: a name so near needs no line that leads to it
DISTANCES = (NEAR, 10, 14, 19, 25, 32, 42)
SECTOR = 22.5  # degrees between two directions in which a name can stand
DIRECTIONS = (0, 8, 2, 6, 14, 10, 4, 12, 1, 15, 7, 9, 3, 5, 13, 11)  # in sectors, the first that is free is taken


@dataclass
class _Drawn:
    """What is on an axes, in pixels: boxes around dots and names, and lines."""

    frame: Bbox
    boxes: list[Bbox] = field(default_factory=list)
    lines: list[Path] = field(default_factory=list)

    @classmethod
    def on(cls, ax: Axes, pixel: float) -> _Drawn:
        """pixel: so many are a point."""
        drawn = cls(ax.bbox)
        for line in ax.lines:
            way = ax.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]).astype(float))
            if line.get_linestyle() != "None":
                drawn.lines += [Path(way)]
            if line.get_marker() != "None":
                drawn.boxes += [_around(dot, pixel * line.get_markersize() / 2) for dot in way]
        for dots in ax.collections:
            sizes = np.atleast_1d(getattr(dots, "get_sizes", lambda: 50.0)())  # areas
            places = ax.transData.transform(np.asarray(dots.get_offsets(), dtype=float).reshape(-1, 2))
            drawn.boxes += [
                _around(dot, pixel * math.sqrt(sizes[k % len(sizes)]) / 2) for k, dot in enumerate(places) if len(sizes)
            ]
        return drawn

    def crossed(self, box: Bbox, way: Path | None) -> int:
        """How many things a name in `box` would lie on; `way` is the line that leads to it, if one does."""
        found = sum(bool(box.overlaps(other)) for other in self.boxes)
        found += sum(line.intersects_bbox(box, filled=False) for line in self.lines)
        if way is not None:
            found += sum(way.intersects_bbox(other, filled=False) for other in self.boxes)
            found += sum(way.intersects_path(line, filled=False) for line in self.lines)
        inside = self.frame.x0 <= box.x0 and box.x1 <= self.frame.x1
        return int(found) + 100 * (not (inside and self.frame.y0 <= box.y0 and box.y1 <= self.frame.y1))


def label_dots(ax: Axes, labels: Sequence[tuple[float, float, str, str]], size: float = 8) -> None:
    """Names beside their dots, on no dot, no line and no other name; a thin line leads to one that had to go.

    labels: (x, y, text, colour) each. Call it when limits, scales and legends of the figure stand. size: in points.
    Where there is no such place, a name goes where it lies on the fewest things.
    """
    fig = ax.figure
    assert isinstance(fig, Figure)
    fig.draw_without_rendering()
    pixel = fig.dpi / 72
    drawn = _Drawn.on(ax, pixel)
    for x, y, text, ink in labels:
        name = ax.annotate(text, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=size, color=ink)
        name.set_path_effects([withStroke(linewidth=2, foreground="white")])  # the grid passes behind it
        dot = ax.transData.transform((x, y))
        tried: list[tuple[int, int, tuple[float, float], Bbox, Path | None]] = []
        for number, (far, right, up) in enumerate(_places()):
            box = _put(name, right, up).padded(0.5 * pixel)
            way = None
            if far > NEAR:
                way = Path([dot + pixel * np.array([right, up]) * share for share in (0.6 * NEAR / far, 0.95)])
            tried.append((drawn.crossed(box, way), number, (right, up), box, way))
            if not tried[-1][0]:
                break
        _, _, chosen, box, way = min(tried, key=lambda one: one[:2])
        _put(name, *chosen)
        drawn.boxes.append(box)
        if way is not None:
            drawn.lines.append(way)
            look = {"arrowstyle": "-", "color": ink, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            ax.annotate("", (x, y), xytext=chosen, textcoords="offset points", arrowprops=look)


def _places() -> Iterator[tuple[float, float, float]]:
    """(distance, right, up) of where a name can stand beside its dot, in points, the nearest first."""
    for far in DISTANCES:
        for sector in DIRECTIONS:
            angle = math.radians(SECTOR * sector)
            yield far, far * math.cos(angle), far * math.sin(angle)


def _put(name: Annotation, right: float, up: float) -> Bbox:
    """Put a name there, on the side that faces its dot; its box in pixels."""
    far = math.hypot(right, up)
    across = "center" if abs(right) < 0.3 * far else "left" if right > 0 else "right"
    along = "center" if abs(up) < 0.3 * far else "bottom" if up > 0 else "top"
    name.set(position=(right, up), ha=across, va=along)
    return name.get_window_extent()


def _around(dot: np.ndarray, radius: float) -> Bbox:
    x, y = dot
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)
