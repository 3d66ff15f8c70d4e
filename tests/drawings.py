"""What is measured of a drawn figure: where its legends, its names and its data are, in pixels."""

import itertools

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.legend import Legend


def drawn(fig: Figure) -> Figure:
    """The same figure, laid out."""
    fig.draw_without_rendering()
    return fig


def points(ax):
    """(n, 2) Every point of the lines and dots of `ax` that is within its frame, lines in small steps."""
    found = []
    for line in ax.lines:
        x, y = (np.asarray(values, dtype=float) for values in (line.get_xdata(), line.get_ydata()))
        at = line.get_transform().transform(np.column_stack([x, y])) if len(x) else np.empty((0, 2))
        if len(at) > 1 and line.get_linestyle() != "None":
            at = np.concatenate([np.linspace(a, b, 50) for a, b in itertools.pairwise(at)])
        found.append(at)
    for dots in ax.collections:
        if isinstance(dots, PathCollection):
            found.append(dots.get_offset_transform().transform(np.asarray(dots.get_offsets(), dtype=float)))
    every = np.concatenate([np.empty((0, 2)), *found])
    return _within(every[np.isfinite(every).all(axis=1)], ax.bbox)


def _within(at, box):
    x, y = at.T
    return at[(box.x0 <= x) & (x <= box.x1) & (box.y0 <= y) & (y <= box.y1)]


def legends(fig):
    """All legends, those of the figure and those of its axes."""
    return [*fig.legends, *(one for ax in fig.axes for one in ax.get_children() if isinstance(one, Legend))]


def covered(fig):
    """How many points of data lie under a legend."""
    drawn(fig)
    boxes = [legend.get_window_extent() for legend in legends(fig)]
    return sum(len(_within(points(ax), box)) for ax in fig.axes for box in boxes)


def names(ax):
    """The texts that are written into `ax`, without empty ones."""
    return [text for text in ax.texts if text.get_text()]


def overprinted(ax):
    """Pairs of texts in `ax` that lie on each other."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in names(ax)]
    return [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if one.overlaps(other)]
