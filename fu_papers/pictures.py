"""A picture in a notebook, with all of its source below it where the line drawn into it ends before."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path

from IPython.display import HTML, Image, display
from matplotlib.figure import Figure
from PIL import Image as Pillow

DPI = 150  # of files
SCREEN_DPI = 90  # pictures keep their print resolution and are shown at this one
LINE = "#555555"  # the colour of what belongs to no method: bounds, marks, notes
NOTE = f"font-size: 80%; color: {LINE}"  # of lines that say where something comes from
MOST = 12  # names in a description: who listens cannot skip
SOURCE = "Description"  # what a file's text about its source is called, by the PNG standard


class Picture:
    """What a cell shows: a picture and, if it has a caption, that in small print below; alt: for who cannot see it."""

    def __init__(self, path: Path, alt: str, caption: str = "") -> None:
        png = Path(path).read_bytes()
        pixels = int.from_bytes(png[16:20], "big")  # PNG header: width
        self.image = Image(data=png, width=round(pixels * SCREEN_DPI / DPI), alt=alt)
        self.caption = caption

    def _ipython_display_(self) -> None:
        """Two outputs, so that whatever reads notebooks finds an ordinary picture."""
        display(self.image)
        if self.caption:
            display(HTML(f'<p style="{NOTE}">{html.escape(self.caption)}</p>'))


def described(fig: Figure) -> str:
    """A figure for who cannot see it: its panels, what their axes show, and who is in it, each said once."""
    panels = [title for ax in fig.axes if (title := ax.get_title() or ax.get_title("left") or ax.get_title("right"))]
    axes = [f"{ax.get_ylabel()} against {ax.get_xlabel()}" for ax in fig.axes if ax.get_xlabel() and ax.get_ylabel()]
    legends = [*fig.legends, *(legend for ax in fig.axes if (legend := ax.get_legend()) is not None)]
    names = [text.get_text() for legend in legends for text in legend.get_texts()]
    parts = {"": [fig.get_suptitle()], "Panels: ": panels, "Axes: ": axes, "Shown: ": names}
    told = [f"{what}{_listed(texts)}" for what, texts in parts.items() if any(texts)]
    return ". ".join(told)


def _listed(texts: Iterable[str]) -> str:
    """Without repetitions, and in one line each; a few, and how many more there are."""
    once = list(dict.fromkeys(" ".join(text.split()) for text in texts if text.strip()))
    more = f" and {len(once) - MOST} more" if len(once) > MOST + 1 else ""
    return "; ".join(once[:MOST] if more else once) + more


def source_in(path: Path) -> str:
    """What a PNG file says about its source, in full."""
    with Pillow.open(path) as picture:
        return str(picture.info.get(SOURCE, ""))


def in_short(source: str) -> str:
    """The data sets of a source without remarks, edition and net: "CIFAR-10, MNIST handwritten digits"."""
    names = [re.split(r" \(|[,;:] |\. ", text)[0] for text in source.split(" | ")]
    return ", ".join(dict.fromkeys(names))
