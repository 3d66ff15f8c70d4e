"""What the figures and tables of every horizontal experiment share: headings, sources, who holds what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

from fu_papers.lab.record import Record
from fu_papers.look import mean_spread, say_below
from fu_papers.problems import Setting

Descriptions = Mapping[str, Record]
FLOOR = "#bbbbbb"  # of the noise floor: two retrainings that only their seeds tell apart
SHADE = "#f6dcc8"  # behind what is to be forgotten
POINTS = (-100, -10, -1, 0, 1, 10, 100)  # ticks of an axis that is linear up to a point, then logarithmic


def title(text: str) -> str:
    """The heading of a setting written as `dataset/split/model`."""
    return Setting.parse(text).title


def source(descriptions: Descriptions, settings: Sequence[str] | None = None, nets: str = "net") -> str:
    """The line under every table and figure: which data, which net. `settings`: only those (default: all).

    The net is what comes last in a setting's text; `nets` says what it is.
    """
    lines = [
        f"{record.metrics['source']}; {nets}: {text.rpartition('/')[2]}"
        for text, record in descriptions.items()
        if settings is None or text in settings
    ]
    return " | ".join(dict.fromkeys(lines))


def label_distribution(descriptions: Descriptions, targets: Sequence[int]) -> Figure:
    """How many samples of each class each client holds; the targets are marked."""
    fig, axes = axes_row(len(descriptions), height=3.6, width=4.6)
    for ax, (text, description) in zip(axes, descriptions.items(), strict=True):
        counts = np.array(description.metrics["label_counts"])  # (clients, classes)
        client, label = np.nonzero(counts)
        held = counts[client, label]
        dots = ax.scatter(client, label, s=300 * held / counts.max(), c=held, cmap="crest", vmin=0, zorder=3)
        fig.colorbar(dots, ax=ax, label="samples", pad=0.02, ticks=MaxNLocator(integer=True))
        for target in targets:  # below grid and dots, whose colours are numbers
            ax.axvspan(target - 0.45, target + 0.45, color=SHADE, linewidth=0, zorder=0)
        ax.set(title=title(text), xlabel="client (shaded: asks to be forgotten)", ylabel="class")
        ax.set(xlim=(-0.6, len(counts) - 0.4), ylim=(-0.6, counts.shape[1] - 0.4))
        ax.set(xticks=range(len(counts)), yticks=range(0, counts.shape[1], max(1, counts.shape[1] // 10)))
    say_below(fig, "A dot: a client's samples of a class, by size and colour")
    return fig


def axes_row(n: int, *, height: float, width: float, sharey: bool = False) -> tuple[Figure, list[Axes]]:
    """`n` axes side by side."""
    fig, axes = plt.subplots(1, n, figsize=(width * n, height), squeeze=False, sharey=sharey)
    return fig, list(axes[0])


def linear_up_to_a_point(axes: Sequence[Axes]) -> None:
    """Axes of differences in points that they share, linear up to one and then logarithmic: the end matters."""
    for ax in axes:
        ax.set_xscale("symlog", linthresh=1.0, linscale=0.5)
        ax.set_yscale("symlog", linthresh=1.0, linscale=0.5)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(FixedLocator(POINTS))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_locator(NullLocator())
        ax.tick_params(labelsize=9)


def legend_entries(axes: Iterable[Axes]) -> dict[str, Artist]:
    """What legends of several axes would name, each once: {label: handle}."""
    found = (ax.get_legend_handles_labels() for ax in axes)
    return {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}


def counted(n: int, what: str) -> str:
    """ "1 seed", "3 seeds"."""
    return f"{n} {what}{'s' * (n != 1)}"


def spread(values: pd.Series, digits: int = 1) -> str:
    """mean ± standard deviation; how many runs that are stands in the caption."""
    return mean_spread(values, digits).rpartition(" (n=")[0]


def spread_or_dash(values: pd.Series, digits: int = 1) -> str:
    """`spread` over seeds, or a dash unless every seed has a number."""
    return spread(values, digits) if len(values) and values.notna().all() else "–"
