"""What makes a figure unreadable, measured on the drawn figure: legends over data, dots outside, names over names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from fu_papers import look
from fu_papers.eyes import APART, distance

SLACK = 1.5  # pixels that two things may share


def faults(fig: Figure, *, saved: bool = False) -> list[str]:
    """All that is wrong with `fig`, in words; empty for a good picture. What is `saved` is laid out already."""
    if saved:
        fig.set_layout_engine("none")
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # what is laid out stays so, and is not laid out again by whoever looks
    return [*covered(fig), *outside(fig), *overprinted(fig), *alike(fig), *below(fig, fig.get_tightbbox())]


def covered(fig: Figure) -> list[str]:
    """Legends that lie on data."""
    found = []
    for legend in [*fig.legends, *(ax.get_legend() for ax in fig.axes if ax.get_legend())]:
        box = legend.get_window_extent()
        for ax in fig.axes:
            on_it = sum(_inside(points, box) for points in _drawn(ax))
            found += [f"the legend lies on {on_it} points of {ax.get_title() or 'an axes'}"] * bool(on_it)
    return found


def outside(fig: Figure) -> list[str]:
    """Dots and corners of lines that leave their frame."""
    found = []
    for ax in fig.axes:
        frame = ax.get_window_extent().padded(SLACK)
        lost = sum(len(points) - _inside(points, frame) for points in _drawn(ax))
        found += [f"{lost} points leave the frame of {ax.get_title() or 'an axes'}"] * bool(lost)
    return found


def overprinted(fig: Figure) -> list[str]:
    """Texts that lie on each other, and names of dots that lie on a dot."""
    texts = list(_texts(fig))
    boxes = [text.get_window_extent().padded(-SLACK) for text in texts]
    pairs = itertools.combinations(zip(texts, boxes, strict=True), 2)
    found = [f"{a.get_text()!r} lies on {b.get_text()!r}" for (a, one), (b, other) in pairs if one.overlaps(other)]
    for ax in fig.axes:
        dots = [dot for points in _dots(ax) for dot in points]
        for text in ax.texts:
            if text.get_text() and isinstance(text, Annotation) and text.get_bbox_patch() is None:
                box = text.get_window_extent()
                found += [f"{text.get_text()!r} lies on a dot"] * any(box.contains(*dot) for dot in dots)
    return found


def crossed(fig: Figure) -> list[str]:
    """Names of dots that a line of data passes under."""
    found = []
    for ax in fig.axes:
        lines = [line.get_transform().transform_path(line.get_path()) for line in ax.lines if _of_data(line, ax)]
        for text in ax.texts:
            if text.get_text() and isinstance(text, Annotation):
                box = text.get_window_extent().padded(-SLACK)
                under = any(line.intersects_bbox(box, filled=False) for line in lines)
                found += [f"a line passes under {text.get_text()!r}"] * under
    return found


def alike(fig: Figure) -> list[str]:
    """Entries of one legend that cannot be told apart: colours too near, with the same marker and the same dashes."""
    found = []
    for legend in [*fig.legends, *(ax.get_legend() for ax in fig.axes if ax.get_legend())]:
        names = [text.get_text() for text in legend.get_texts()]
        looks = [_look(handle) for handle in legend.legend_handles]
        for (a, one), (b, other) in itertools.combinations(zip(names, looks, strict=True), 2):
            if one[1:] == other[1:] and distance(one[0], other[0]) <= APART:
                found.append(f"{a} looks like {b}")
    return found


def below(fig: Figure, drawn: Bbox | None = None) -> list[str]:
    """Whether a line says what a dot or a band is, and is no wider than the picture with the data in short.

    drawn: the tight bounding box of `fig`, of whoever has drawn it already.
    """
    if not fig.get_label():
        return ["nothing says what a dot or a line stands for"]
    if drawn is None:
        fig.draw_without_rendering()
        drawn = fig.get_tightbbox()
    note = look._line_below(fig, drawn, "Some data; " + "and very much to be said of it. " * 30)
    told, width = note.get_text(), note.get_window_extent().width
    note.remove()
    wide = bool(width > 1.01 * drawn.width * fig.dpi)
    return [f"{told!r} is wider than its picture"] * wide + [f"{told!r} has no data"] * ("Data: S" not in told)


def _drawn(ax: Axes) -> Iterator[np.ndarray]:
    """Pixels (n, 2) of all data: along lines, of dots, of bars' corners. Spans and samples of legends are none."""
    for line in ax.lines:
        if _of_data(line, ax) and line.get_linestyle() != "None":
            yield _along(ax.transData.transform(_finite(line.get_path().vertices)))
    yield from _dots(ax)
    for bar in ax.patches:
        if isinstance(bar, Rectangle) and all(bar.get_transform().contains_branch_seperately(ax.transData)):
            yield bar.get_window_extent().corners()


def _dots(ax: Axes) -> Iterator[np.ndarray]:
    for line in ax.lines:
        if _of_data(line, ax) and line.get_marker() not in ("None", "", None):
            yield ax.transData.transform(_finite(np.column_stack([line.get_xdata(), line.get_ydata()])))
    for dots in ax.collections:
        offsets = np.asarray(dots.get_offsets(), dtype=float)
        if dots.get_offset_transform().contains_branch(ax.transData) and len(offsets) and np.any(offsets):
            yield ax.transData.transform(_finite(offsets))


def _of_data(line: Line2D, ax: Axes) -> bool:
    """Whether a line has data: no span of the axes, no sample for a legend, nothing beyond the frame on purpose."""
    both = all(line.get_transform().contains_branch_seperately(ax.transData))
    return both and line.get_clip_on() and bool(len(line.get_xdata()))


def _finite(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=float)
    return points[np.isfinite(points).all(axis=1)]


def _along(corners: np.ndarray) -> np.ndarray:
    """A line's corners, and points between them, so that a legend between two corners is seen."""
    steps = [np.linspace(a, b, 25) for a, b in itertools.pairwise(corners)]
    return np.concatenate([corners, *steps])


def _inside(points: np.ndarray, box: Bbox) -> int:
    x, y = points[:, 0], points[:, 1]
    return int(((x > box.x0) & (x < box.x1) & (y > box.y0) & (y < box.y1)).sum())


def _texts(fig: Figure) -> Iterator[Text]:
    """Everything written, but for what stands in legends."""
    every: list[Text] = list(fig.texts)
    for ax in fig.axes:
        every += [*ax.texts, ax.title, ax._left_title, ax._right_title]
        if not ax.axison:  # matplotlib keeps the names and numbers of axes that it does not draw
            continue
        frame = ax.get_window_extent().padded(0.1)  # of a pixel, for rounding: a tick at the limit is drawn
        for axis, ticks in ((0, ax.get_xticklabels()), (1, ax.get_yticklabels())):
            for tick in ticks:  # and those beyond the limits
                at = ax.transData.transform(tick.get_position())[axis]
                if frame.min[axis] <= at <= frame.max[axis]:
                    every.append(tick)
        every += [ax.xaxis.label, ax.yaxis.label]
    yield from (text for text in every if text.get_text().strip() and text.get_visible())


def _look(handle: object) -> tuple[str, str, str, bool]:
    """Colour, marker, dashes and whether it is hollow, of an entry of a legend."""
    if hasattr(handle, "get_marker"):
        inside = handle.get_markerfacecolor()
        hollow = inside == "none" or to_hex(inside) == "#ffffff"
        mark = f"{handle.get_marker()}, {handle.get_fillstyle()}" if hasattr(handle, "get_fillstyle") else ""
        return to_hex(handle.get_color()), mark, str(handle.get_linestyle()), hollow
    if hasattr(handle, "get_paths") and len(handle.get_edgecolor()):  # of dots
        path = handle.get_paths()[0]
        face = handle.get_facecolor()
        inside = to_hex(face[0]) if len(face) else "#ffffff"
        ink = to_hex(handle.get_edgecolor()[0]) if inside == "#ffffff" else inside
        return ink, str(path.vertices.round(2).tolist())[:400], "", inside == "#ffffff"
    return to_hex(handle.get_facecolor()), "patch", "", False
