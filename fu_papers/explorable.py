"""Pictures that follow sliders, in notebooks.

A picture is drawn once; a control then moves its lines and dots, which takes a fraction of a second. Where nobody can
move anything (a run without a person, the book), the picture stands as its controls begin.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import matplotlib.pyplot as plt
from IPython.display import Image
from matplotlib.figure import Figure

from fu_papers.look import sliders_wanted
from fu_papers.pictures import SCREEN_DPI


class Slider(NamedTuple):
    """A number between `low` and `high`, in steps. powers: low, high and step are exponents of ten."""

    label: str
    begin: float
    low: float
    high: float
    step: float
    powers: bool = False

    def ends(self) -> tuple[Any, Any]:
        """The values at both ends."""
        return (10.0**self.low, 10.0**self.high) if self.powers else (self.low, self.high)


class Choice(NamedTuple):
    """One of several names; the first is where it begins."""

    label: str
    names: tuple[str, ...]

    @property
    def begin(self) -> str:
        return self.names[0]

    def ends(self) -> tuple[Any, Any]:
        """The first and the last name."""
        return self.names[0], self.names[-1]


class Explorable(Protocol):
    """What `offer` shows: its controls by the parameters of `show`, and a picture for any values of theirs."""

    @property
    def controls(self) -> Mapping[str, Slider | Choice]:
        """Parameter of `show` -> what moves it."""
        ...

    def show(self, **values: Any) -> Image:
        """The picture for these values."""
        ...


class Drawn:
    """A figure that is drawn once and shown often: `picture` is how it looks now.

    Its first picture lays out the axes, and there they stay: a picture must not depend on where controls were before.
    """

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        plt.close(figure)  # or the inline backend would show it as it was before it was asked for

    def picture(self, alt: str) -> Image:
        """The figure as it stands, as PNG. `alt`: what it says, for who cannot see it."""
        png = io.BytesIO()
        self.figure.savefig(png, format="png", dpi=SCREEN_DPI, facecolor="white", metadata={"Software": None})
        self.figure.set_layout_engine("none")
        return Image(data=png.getvalue(), alt=alt)


def beginning(explorable: Explorable) -> dict[str, Any]:
    """The values at which the controls begin."""
    return {name: control.begin for name, control in explorable.controls.items()}


def offer(explorable: Explorable, interactive: bool | None = None) -> Image | None:
    """Show it under its controls; without a person before it, the picture as they begin, returned for the notebook.

    interactive: as told, or if None, when a notebook server with a person before it runs the kernel.
    """
    if not sliders_wanted(interactive):
        return explorable.show(**beginning(explorable))
    from ipywidgets import interact

    interact(explorable.show, **{name: _widget(control) for name, control in explorable.controls.items()})
    return None


def labelled(label: str) -> dict[str, Any]:
    """How a widget with this label looks. Labels are words, so they get the room that they need."""
    from ipywidgets import Layout

    return {"description": label, "style": {"description_width": "16em"}, "layout": Layout(width="42em")}


def _widget(control: Slider | Choice) -> Any:
    """What can be moved."""
    from ipywidgets import Dropdown, FloatLogSlider, FloatSlider, IntSlider

    look = labelled(control.label)
    if isinstance(control, Choice):
        return Dropdown(options=control.names, **look)
    limits = {"value": control.begin, "min": control.low, "max": control.high, "step": control.step}
    whole = all(isinstance(value, int) for value in limits.values())
    kind = FloatLogSlider if control.powers else IntSlider if whole else FloatSlider
    return kind(**limits, **look, continuous_update=False)
