"""How a network of clients is drawn: where its dots are, and its links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

STUB = 0.3  # of a side of the grid: as long as a link that goes around is drawn at either end
ROOM = 0.32  # around the dots, which lie within -1 and 1

Places = dict[int, Any]  # client -> (2,)


def layout(topology: str, clients: int) -> Places:
    """Where clients 0 to `clients` - 1 are drawn, within -1 and 1: a torus as the grid that it is, a star around its
    middle, all others on a circle."""
    if topology == "torus":
        sides = (a for a in range(math.isqrt(clients), 2, -1) if clients % a == 0)  # as `graphs.torus` builds it
        columns = clients // next(sides)
        rows = clients // columns
        scale = 2.0 / (columns - 1)
        return {i: scale * np.array([i % columns - (columns - 1) / 2, (rows - 1) / 2 - i // columns])
                for i in range(clients)}  # fmt: skip
    around = range(1, clients) if topology == "star" else range(clients)
    angles = [math.tau * k / len(around) for k in range(len(around))]
    middle = {0: np.zeros(2)} if topology == "star" else {}
    return middle | {i: np.array([math.cos(a), math.sin(a)]) for i, a in zip(around, angles, strict=True)}


def draw_links(ax: Axes, topology: str, graph: nx.Graph, at: Mapping[int, Any], **look: Any) -> None:
    """The links of `graph` between `at`; on a torus, one that goes around leaves the grid at both of its ends."""
    side = min((float(np.linalg.norm(at[i] - at[j])) for i, j in graph.edges), default=1.0)
    segments = []
    for i, j in graph.edges:
        way = at[j] - at[i]
        if topology == "torus" and np.linalg.norm(way) > 1.5 * side:
            out = STUB * side * way / np.linalg.norm(way)
            segments += [(at[i], at[i] - out), (at[j], at[j] + out)]
        else:
            segments.append((at[i], at[j]))
    lines: dict[str, Any] = {"colors": "#9a9a9a", "linewidths": 1.0, "zorder": 1} | look
    ax.add_collection(LineCollection(segments, **lines))
    reach = (-1 - ROOM, 1 + ROOM)  # the same square for all, so that titles side by side stay at one height
    ax.set(xlim=reach, ylim=reach, aspect="equal", xticks=[], yticks=[])
    ax.set_axis_off()
