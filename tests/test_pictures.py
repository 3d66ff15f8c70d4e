"""The faults that tests look for in figures are found where they are planted, and nowhere else."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from fu_papers.look import say_below, style
from tests.pictures import faults, overprinted


def picture(fault=""):
    """A good figure, but for one fault."""
    with style():
        fig = Figure(figsize=(6, 4))
        ax = fig.subplots()
        ax.plot([0, 1, 2], [0, 1, 2], "o-", color="#d55e00", label="one")
        ax.plot([0, 1, 2], [2, 1.5, 1], "s--", color="#d95f00" if fault != "same" else "#d55e00", label="other")
        if fault == "same":
            ax.lines[1].set(marker="o", linestyle="-")
        beside = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        ax.legend(**({"loc": "center"} if fault == "legend" else beside))
        if fault == "outside":
            ax.set_ylim(0.5, 3)
        if fault == "names":
            ax.annotate("a name", (1, 1), xytext=(8, -20), textcoords="offset points")
            ax.annotate("another", (1, 1), xytext=(12, -22), textcoords="offset points")
        if fault == "on a dot":
            ax.annotate("a name", (1, 1), ha="center", va="center")
        if fault != "nothing below":
            say_below(fig, "A line: one run" if fault != "wide" else "A line: one run, " * 12)
        fig.draw_without_rendering()
    return fig


def test_a_good_picture_has_no_fault():
    assert faults(picture()) == []


@pytest.mark.parametrize(("off", "found"), [(False, ["'1.0' lies on '0.0'"]), (True, [])])
def test_numbers_of_axes_that_are_not_drawn_lie_on_nothing(off, found):
    fig = Figure(figsize=(6, 4))
    for ax in fig.subplots(1, 2, gridspec_kw={"wspace": 0}):
        ax.plot([0, 1], [0, 1])
        ax.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 1], yticks=[])
        ax.xaxis.set_major_formatter("{x:.1f}")
    if off:
        ax.set_axis_off()
    fig.draw_without_rendering()
    assert overprinted(fig) == found


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("legend", "the legend lies on"),
        ("outside", "leave the frame"),
        ("names", "'a name' lies on 'another'"),
        ("on a dot", "'a name' lies on a dot"),
        ("same", "one looks like other"),
        ("nothing below", "nothing says"),
        ("wide", "is wider than its picture"),
    ],
)
def test_a_planted_fault_is_found(fault, told):
    found = faults(picture(fault))
    assert len(found) >= 1
    assert all(told in each for each in found if "no data" not in each)
    plt.close("all")
