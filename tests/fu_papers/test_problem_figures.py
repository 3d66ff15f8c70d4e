"""Who holds what: the picture that all horizontal experiments share."""

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from fu_papers.lab.record import Record
from fu_papers.look import style
from fu_papers.problem_figures import SHADE, counted, label_distribution
from tests.pictures import faults

COUNTS = np.array([[30, 0, 10], [0, 60, 5], [20, 20, 20]])  # (clients, classes)


def test_what_marks_a_target_lies_below_the_dots_whose_colours_are_numbers():
    described = Record("f", "k", {}, "", "0", {"label_counts": COUNTS.tolist(), "source": "s"}, [], None, {})
    with style():
        fig = label_distribution({"cifar10/iid/tiny_cnn": described}, [1])
        assert faults(fig) == []
    ax = fig.axes[0]
    (dots,), (shade,) = ax.collections, ax.patches
    assert shade.get_zorder() < min(dots.get_zorder(), *(line.get_zorder() for line in ax.get_xgridlines()))
    assert to_hex(shade.get_facecolor()) == SHADE
    assert (shade.get_alpha(), dots.get_alpha()) == (None, None)
    assert [tuple(place) for place in dots.get_offsets()] == list(zip(*np.nonzero(COUNTS), strict=True))
    fig.draw_without_rendering()
    most = colormaps["crest"](1.0)
    assert to_hex(dots.get_facecolors()[2]) == to_hex(most)  # 60 samples, the most


def test_numbers_of_things_have_their_plural():
    assert [counted(n, "seed") for n in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]
