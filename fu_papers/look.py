"""One look for every figure and table. Same records, same bytes.

Everything shown says which data it comes from: a table in the line below it; a figure in its alt text and in the
file, with one line below it for what a dot and a band are. Colour, dash and marker belong to a method, not to a figure.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox

from fu_core.errors import CorruptData, nearest
from fu_core.unlearning.method import Method, methods
from fu_core.unlearning.method import method as registered
from fu_papers.eyes import distance
from fu_papers.lab.files import written_atomically
from fu_papers.links import linked_claim
from fu_papers.pictures import DPI, LINE, NOTE, SOURCE, Picture, described, in_short
from fu_papers.places import linked_html

if TYPE_CHECKING:
    from fu_papers.parameters import Parameters

SOURCE_SIZE = 7.0  # points
ROWS = 15  # a longer table is folded
CLAIM = "id"  # the column of claims' names
MARKERS = ("o", "s", "^", "D", "v", "P", "<", "p", ">")
RETRAIN = "X"  # the marker of what all others are compared with, and of nobody else
AROUND = ((1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1))  # of a dot, where its name can stand
SIDES = {1: ("left", "bottom"), 0: ("center", "center"), -1: ("right", "top")}  # alignment of a name on that side


# --- figures ---------------------------------------------------------------------------------------------------------


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure: `with style(): fig, ax = plt.subplots()`."""
    look = (
        sns.axes_style("whitegrid")
        | sns.plotting_context("notebook")
        | {
            "font.family": "DejaVu Sans",  # comes with matplotlib, hence the same bytes everywhere
            "figure.constrained_layout.use": True,
            "figure.dpi": 100,
            "axes.titlesize": 12,
            "axes.labelsize": 11,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "legend.fontsize": 10,
            "lines.linewidth": 1.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    with mpl.rc_context(look):
        yield


def colour(method: str) -> str:
    """The colour of `method`, the same in every figure, as it was registered. Raises ValueError for an unknown one.

    The proposed method of each paper is a warm, strong colour. Forty colours cannot all be told apart: where two are
    near each other, for colour-blind readers too, the markers or the dashes of the methods differ (a test measures it).
    """
    return registered(method).colour


def linestyle(method: str) -> str:
    """The dash pattern of `method`: dashed for Retrain, the line that all others are compared with."""
    return registered(method).dash


def marker(method: str) -> str:
    """The marker of `method`, the same in every figure: the one whose other bearers are farthest from its colour.

    Ours choose in the order of their names, those of a notebook after them, which thus change no other's marker.
    """
    if method == "Retrain":
        return RETRAIN
    registered(method)  # raises for an unknown one
    bearers: dict[str, list[str]] = {mark: [] for mark in MARKERS}  # their colours
    for name, about in sorted(methods().items(), key=_ours_by_name):
        apart = {mark: min((distance(about.colour, other) for other in c), default=2.0) for mark, c in bearers.items()}
        chosen = max(apart, key=apart.__getitem__)  # the first of those that nobody has yet
        bearers[chosen].append(about.colour)
        if name == method:
            break
    return chosen


def _ours_by_name(registration: tuple[str, Method]) -> tuple[bool, str]:
    name, about = registration  # the sort is stable: who is not ours stays in the order of registration
    foreign = not about.serve.__module__.startswith("fu_core.")
    return foreign, "" if foreign else name


def label_dots(
    ax: Axes, labels: Sequence[tuple[float, float, str, str]], size: float = 8, *, off_lines: bool = False
) -> None:
    """Names beside their dots, where they lie on no dot and on no other name; a thin line leads to one that had to go.

    labels: (x, y, text, colour) each. Call it when limits, scales and legends of the figure stand. size: in points.
    off_lines: on no line either, where there is room.
    """
    fig = ax.figure
    assert isinstance(fig, Figure)
    fig.draw_without_rendering()
    drawn = [np.asarray(dots.get_offsets()) for dots in ax.collections]
    drawn += [np.column_stack([line.get_xdata(), line.get_ydata()]) for line in ax.lines if line.get_marker() != "None"]
    dots = np.concatenate([np.empty((0, 2)), *(found.reshape(-1, 2) for found in drawn)]).astype(float)
    radius = 4 * fig.dpi / 72
    joined = [line for line in ax.lines if off_lines and line.get_linestyle() != "None"]
    ways = [line.get_transform().transform_path(line.get_path()) for line in joined]
    taken = [Bbox.from_extents(x - radius, y - radius, x + radius, y + radius) for x, y in ax.transData.transform(dots)]
    for x, y, text, ink in labels:
        name = ax.annotate(text, (x, y), xytext=(0, 0), textcoords="offset points", fontsize=size, color=ink)
        name.set_path_effects([withStroke(linewidth=2, foreground="white")])  # lines pass behind it
        places = [(points * right, points * up) for points in (6, 12, 20, 30, 42) for right, up in AROUND]
        tries = [(place, lines) for lines in ([ways, []] if ways else [[]]) for place in places]
        for (right, up), lines in tries:
            name.set(position=(right, up), ha=SIDES[np.sign(right)][0], va=SIDES[np.sign(up)][1])
            box = name.get_window_extent()
            free = not any(box.overlaps(other) for other in taken) and _within(box, ax.bbox)
            if free and not any(line.intersects_bbox(box, filled=False) for line in lines):
                break
        if max(abs(right), abs(up)) > 6:
            way = {"arrowstyle": "-", "color": ink, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
            ax.annotate("", (x, y), xytext=(right, up), textcoords="offset points", arrowprops=way)
        taken.append(box)


def _within(box: Bbox, frame: Any) -> bool:
    return bool(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)


def seed_band(ax: Axes, x: Sequence[float], runs: Any, method: str, **line: Any) -> None:
    """Mean over seeds as a line, mean ± standard deviation as a band. `runs`: (seeds, len(x)).

    `line` goes to `Axes.plot`, e.g. `label="PUF, IID"` in place of the method's name.
    """
    values = np.asarray(runs, dtype=float)
    if values.ndim != 2 or values.shape[0] == 0 or values.shape[1] != len(x):
        raise ValueError(f"runs must have shape (seeds, {len(x)}), one row per seed, got {values.shape}")
    mean = values.mean(axis=0)
    look = {"color": colour(method), "linestyle": linestyle(method), "label": method} | line
    ax.plot(x, mean, **look)
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        ax.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=0.2, linewidth=0)


def say_below(fig: Figure, text: str) -> None:
    """The one line below `fig`: how many runs a dot or a line stands for, and what a band is."""
    if not text or "\n" in text:
        raise ValueError(f"text must be one line, got {text!r}")
    fig.set_label(text)


def save_figure(fig: Figure, path: Path, source: str) -> Path:
    """Write `fig` as PNG: one line in small print below everything else (`say_below`), the whole source in the file.

    The line ends with the data, in full where it has room. Same figure, same bytes.
    """
    path = _with_suffix(path, ".png")
    _write(fig, path, one_line(source))
    return path


def show_figure(fig: Figure, path: Path, source: str) -> Picture:
    """`save_figure`, and the saved picture itself for the notebook, so that both show the same.

    Where the line in the picture has no room for the whole source, that stands below it.
    """
    path, whole = _with_suffix(path, ".png"), one_line(source)
    below = _write(fig, path, whole)
    plt.close(fig)  # or the inline backend would show it a second time, without its source
    told = "".join(f"{text}. " for text in (described(fig) or path.stem, str(fig.get_label())) if text)
    return Picture(path, f"{told}Data: {source}", "" if below.endswith(f"Data: {whole}") else f"Data: {whole}")


def keep_figure(path: Path, source: str, draw: Callable[..., Figure], *of: Any) -> Picture:
    """Draw `draw(*of)` in our style, save it, and give the picture to the notebook."""
    with style():
        fig = draw(*of)
    return show_figure(fig, path, source)


def _write(fig: Figure, path: Path, source: str) -> str:
    """Write the PNG file; returns the line below everything else."""
    fig.draw_without_rendering()
    note = _line_below(fig, fig.get_tightbbox(), source)
    try:
        with written_atomically(path) as part:
            fig.savefig(
                part,
                format="png",
                dpi=DPI,
                bbox_inches="tight",
                pad_inches=0.1,
                facecolor="white",
                metadata={"Software": None, SOURCE: f"Data: {source}"},  # no version of matplotlib
            )
    finally:
        note.remove()
    return str(note.get_text())


def _line_below(fig: Figure, drawn: Bbox, source: str) -> Any:
    """Text just below `drawn` (inches), the drawn part of `fig`: whole words, and no wider; tight boxes include it."""
    width, height = fig.get_size_inches()
    note = fig.text(
        drawn.x0 / width,
        (drawn.y0 - 0.06) / height,
        "",
        va="top",
        ha="left",
        fontsize=SOURCE_SIZE,
        fontfamily="DejaVu Sans",
        color=LINE,
        in_layout=True,
        parse_math=False,
    )
    said = f"{fig.get_label()}. " if fig.get_label() else ""
    names = in_short(source)
    words = names.split(" ")
    shorter = [f"{' '.join(words[:kept])} …" for kept in range(len(words), 0, -1)]
    for data in (source, *shorter):
        note.set_text(f"{said}Data: {data}")
        if note.get_window_extent().width <= drawn.width * fig.dpi:
            return note
    note.set_text(said.strip())
    return note


# --- tables ----------------------------------------------------------------------------------------------------------


def mean_spread(values: Iterable[float], digits: int = 1) -> str:
    """`"12.3 ± 0.4 (n=6)"`: mean and sample standard deviation; no spread for a single value."""
    numbers = np.asarray(list(values), dtype=float)
    if numbers.size == 0 or not np.isfinite(numbers).all():
        raise ValueError(f"values must be finite numbers, at least one, got {numbers.tolist()}")
    spread = f" ± {numbers.std(ddof=1):.{digits}f}" if numbers.size > 1 else ""
    return f"{numbers.mean():.{digits}f}{spread} (n={numbers.size})"


def three_digits(value: float) -> float:
    """`value` as tables show it where neither its size nor its spread is known beforehand."""
    return float(f"{value:.3g}")


def save_table(frame: pd.DataFrame, path: Path, source: str, caption: str = "") -> Path:
    """Write `frame` as CSV (UTF-8, LF, six digits) whose first line says where the data comes from.

    The second is the caption, if any: warnings of a table's controls shall reach whoever reads the file alone.
    `read_table` reads it back; pandas' default parser can crash on a record's name that is no number (1e3754819397bf).
    A named index becomes the first columns.
    """
    path = _with_suffix(path, ".csv")
    text = csv_text(_without_index(frame))
    if "#" in text:
        text = csv_text(_without_index(frame), quoting=csv.QUOTE_NONNUMERIC)  # a bare # would start a comment
    with written_atomically(path) as part:
        above = f"# {one_line(caption)}\n" if caption else ""
        part.write_bytes(f"# source: {one_line(source)}\n{above}{text}".encode())
    return path


def read_table(path: Path) -> tuple[pd.DataFrame, str, str]:
    """A table that `save_table` has written, its source, and its caption or ""; CorruptData for any other file."""
    first, second = [*path.read_text(encoding="utf-8").splitlines(), "", ""][:2]
    if not (first.startswith("# source: ") and second):
        raise CorruptData(f"{path} must begin with '# source: ' and go on with a table, got {first[:40]!r}")
    frame = pd.read_csv(path, comment="#", keep_default_na=False, na_values=[""], float_precision="round_trip")
    caption = second.removeprefix("# ") if second.startswith("# ") else ""
    return frame, first.removeprefix("# source: "), caption


def sliders_wanted(interactive: bool | None) -> bool:
    """Whether to show widgets: as told, or if `None`, when a notebook server with a person before it runs the kernel.

    Papermill, nbval and nbconvert start kernels themselves; none of them can move a slider.
    """
    if interactive is not None:
        return interactive
    return any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID"))


def show_table(frame: pd.DataFrame, source: str, caption: str = "", paper: str = "") -> HTML:
    """`frame` for a notebook: numbers in four digits, missing ones as –, caption above, data source below.

    What texts name of `paper`, its equations and figures, becomes links, as claims do, of which a column `id` holds the
    names. More than ROWS rows are folded behind their caption.
    """
    if len(frame) <= ROWS:
        return HTML(_table(frame, source, caption, paper))
    return HTML(folded(f"{linked_html(caption, paper)} ({len(frame)} rows)", _table(frame, source, "", paper)))


def _table(frame: pd.DataFrame, source: str, caption: str, paper: str) -> str:
    columns = _without_index(frame)
    styler = columns.style.hide(axis="index").format(partial(_cell, paper=paper), na_rep="–")
    styler = styler.format_index(lambda heading: linked_html(str(heading), paper), axis="columns")
    if CLAIM in columns:
        styler = styler.format(linked_claim, subset=[CLAIM])
    text = [name for name in columns if not pd.api.types.is_numeric_dtype(columns[name])]
    styler = styler.set_properties(subset=text, **{"text-align": "left"})
    styler = styler.set_table_styles([{"selector": "th", "props": "text-align: left; vertical-align: bottom"}])
    styler = styler.set_caption(linked_html(caption, paper)) if caption else styler
    below = f'<p style="{NOTE}">Data: {html.escape(one_line(source))}</p>'
    # Cell styles hang on this id. From the content: a random one would change the notebook every time, and a common
    # one would align every table of a page like the others.
    uuid = hashlib.sha256(f"{caption}\n{csv_text(columns)}".encode()).hexdigest()[:12]
    return styler.to_html(table_uuid=uuid) + below


def keep_table(path: Path, source: str, frame: pd.DataFrame, caption: str = "") -> HTML:
    """`save_table` and `show_table`, of the paper in whose folder `path` is."""
    save_table(frame, path, source, caption)
    return show_table(frame, source, caption, path.parent.name)


def show_parameters(experiment: Parameters) -> HTML:
    """All parameters with their values, the paper's and their meaning: a table that unfolds."""
    rows, source = experiment.table(), f"profile {experiment.profile}, and what was changed above"
    return HTML(folded(f"All {len(rows)} parameters", _table(rows, source, "", experiment.paper)))


def published(paper: str, table: str) -> pd.DataFrame:
    """The numbers that a paper prints, e.g. `published("puf", "table_iii")`. Raises ValueError for an unknown table."""
    folder = resources.files("fu_papers") / paper / "published"
    files = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    known = sorted(name.removesuffix(".csv") for name in files if name.endswith(".csv"))
    if table not in known:
        raise ValueError(
            f"{paper} has no published table {table!r}{nearest(table, known)}. There are: {', '.join(known) or 'none'}"
        )
    return pd.read_csv(io.StringIO((folder / f"{table}.csv").read_text(encoding="utf-8")))


def published_row(paper: str, table: str, where: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
    """What a paper prints in the row with the values `where`, by our headings for its columns; {} if it has none."""
    rows = published(paper, table)
    for column, value in where.items():
        rows = rows[rows[column] == value]
    return {heading: rows[column].iloc[0] for heading, column in shown.items()} if len(rows) else {}


def _without_index(frame: pd.DataFrame) -> pd.DataFrame:
    return frame if isinstance(frame.index, pd.RangeIndex) else frame.reset_index()


def csv_text(frame: pd.DataFrame, **how: Any) -> str:
    """`frame` as every CSV of ours is written: no index, LF, six digits."""
    return str(frame.to_csv(index=False, lineterminator="\n", float_format="%.6g", **how))


def _cell(value: Any, paper: str) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}"
    return linked_html(str(value), paper).replace(" ± ", "&nbsp;±&nbsp;")  # a mean stays with its spread


def one_line(text: str) -> str:
    """`text` with every run of blanks and line ends as one blank."""
    return " ".join(text.split())


def _with_suffix(path: Path, suffix: str) -> Path:
    path = Path(path)
    if path.suffix != suffix:
        raise ValueError(f"path must end in {suffix}, got {path.name!r}")
    return path


def folded(summary: str, content: str) -> str:
    """HTML that unfolds when `summary` is clicked; both are HTML already."""
    return f"<details><summary>{summary}</summary>{content}</details>"
