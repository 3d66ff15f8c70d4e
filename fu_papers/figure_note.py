"""The one line that stands below a figure."""

from __future__ import annotations

from matplotlib.figure import Figure


def say_below(fig: Figure, text: str) -> None:
    """Keep `text` with `fig`: how many runs it shows, and what its dots and bands are."""
    fig.set_label(text)
