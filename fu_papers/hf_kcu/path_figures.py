"""How far HF-KCU's corrected step should go: its whole path as a picture and a table, drawn from run records only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fu_core.unlearning.hf_kcu_options import DEFAULTS
from fu_papers.hf_kcu.figures import plain_numbers
from fu_papers.hf_kcu.grid import MATCHED, ROUND, SAME_START, Experiment
from fu_papers.hf_kcu.results import on_setting
from fu_papers.lab.record import Record
from fu_papers.look import colour, marker, say_below
from fu_papers.problem_figures import spread_or_dash, title

Paths = Mapping[tuple[str, int], Record]  # by setting and seed
RUN = {"HF-KCU": "rule of the corrected step", MATCHED: "held-out rule"}
HELD = "held-out rule, its level held"
READ_OFF = {  # from the path, where nobody has run them: which held-out loss, and whether it moves along
    "held-out rule, from all other held-out images": ("more_held_loss", True),
    HELD: ("held_loss", False),
    f"{HELD}, from all others": ("more_held_loss", False),
}
BEST = "the nearest of the path (knows Retrain)"
SOLVED = DEFAULTS["net"]["tol"]  # the residual at which the corrected form calls a net's system solved


def crossing(record: Record, loss: str, moves: bool) -> dict[str, float] | None:
    """Where the forgotten reach the `loss` that held-out images have after the step (`moves`), or had before it.

    Read off the path, between two of its dampings, a factor of two apart; None where no end of the path gets there.
    """
    ends, start = record.metrics["path"], record.metrics["stops"]["Original"]
    walked = {name: np.array([start[name], *values]) for name, values in ends.items() if name in start}
    above = walked["forget_loss"] - (walked[loss] if moves else start[loss])
    reached = np.flatnonzero(above >= 0)
    if not len(reached):
        return None
    k = int(reached[0])
    if k == 0:
        return dict(start)
    share = above[k - 1] / (above[k - 1] - above[k])
    return {name: float(values[k - 1] + share * (values[k] - values[k - 1])) for name, values in walked.items()}


def nearest(record: Record) -> dict[str, float]:
    """The end of the path that is nearest to Retrain on the forgotten; no rule may know it."""
    ends = record.metrics["path"]
    place = int(np.argmin(ends["kl_forget"]))
    return {name: values[place] for name, values in ends.items()}


def floor_by_seed(e: Experiment, runs: pd.DataFrame, setting: str) -> dict[int, float]:
    """KL on the forgotten of two retrainings from the same weights, where they were run."""
    r = on_setting(e, runs, setting, SAME_START)
    return dict(zip(r.seed, r.kl_forget, strict=True))


def by_setting(paths: Paths) -> dict[str, list[Record]]:
    """The paths of each setting in the order of seeds, the main one's first."""
    return {setting: [r for (where, _), r in paths.items() if where == setting] for setting, _ in paths}


def path_figure(paths: Sequence[Record], floor: Mapping[int, float]) -> Figure:
    """How far to go, a column per seed: along the corrected step, how well images are known and how far Retrain is.

    Above: the loss on the forgotten, and on as many held-out images of each class; the held-out rule stops where both
    meet. Below: KL to Retrain on the forgotten, lowest where the step is as long as it should be. floor: by seed, what
    a retraining from the same weights with other batches differs by. Pale: where the system is not solved.
    """
    size = (3.3 * len(paths) + 1, 6.2)
    fig, axes = plt.subplots(2, len(paths), figsize=size, sharex=True, sharey="row", squeeze=False)
    lines: dict[str, Any] = {}
    for column, record in zip(axes.T, paths, strict=True):
        (above, below), ends, stops = column, record.metrics["path"], record.metrics["stops"]
        x, solved = np.array(ends["travelled"]), np.array(ends["residual"]) <= SOLVED
        last = max(1, int(solved.sum()))  # dampings fall, so that what is solved comes first
        curves = (
            (above, "forget_loss", "loss on the forgotten", colour("HF-KCU"), "-"),
            (above, "held_loss", "on the rule's held-out images, as many of each class", colour(ROUND), "--"),
            (above, "more_held_loss", "on all other held-out images", colour(ROUND), ":"),
            (below, "kl_forget", "", colour("HF-KCU"), "-"),  # what its axis says
        )
        for ax, name, told, tint, dashes in curves:
            drawn = ax.plot(x[:last], ends[name][:last], dashes, color=tint, linewidth=1.5)[0]
            lines |= {told: drawn} if told else {}
            ax.plot(x[last - 1 :], ends[name][last - 1 :], dashes, color=tint, linewidth=1.5, alpha=0.3)
        levels = (
            (above, stops["Retrain"]["forget_loss"], "Retrain's loss on the forgotten", colour("Retrain"), "-."),
            (below, stops["Original"]["kl_forget"], "do nothing", colour("Original"), "--"),
            (below, floor.get(record.config["seed"]), "two retrainings, same weights", colour("Retrain"), ":"),
        )
        for ax, level, told, tint, dashes in levels:
            if level is not None:
                lines[told] = ax.axhline(level, color=tint, linestyle=dashes, linewidth=1)
        held = crossing(record, "held_loss", moves=False)
        marks = (
            (RUN["HF-KCU"], stops["HF-KCU"], "HF-KCU", True),
            (RUN[MATCHED], stops[MATCHED], MATCHED, True),
            (HELD, held, MATCHED, False),
        )
        for told, stop, method, filled in marks:
            edge, shape = colour(method), marker(method)
            inside = edge if filled else "none"
            lines[told] = Line2D([], [], color=edge, marker=shape, linestyle="none", markerfacecolor=inside)
            if stop is not None and stop["travelled"]:  # a logarithm has no place for what stays where it is
                for ax, name in ((above, "forget_loss"), (below, "kl_forget")):
                    look: dict[str, Any] = {"marker": shape, "color": inside, "edgecolor": edge}
                    ax.scatter(stop["travelled"], stop[name], s=60, zorder=3, **look)
        above.set(title=f"seed {record.config['seed']}", xscale="log", yscale="log")
        below.set(xlabel="step / |Retrain - Original|", yscale="log")
    axes[0, 0].set_ylabel("loss (nats)")
    axes[1, 0].set_ylabel("KL to Retrain (nats)")
    for ax in axes[:, 0]:
        plain_numbers(ax)
    fig.legend(list(lines.values()), list(lines), loc="outside upper center", ncols=2, frameon=False)
    say_below(fig, f"λ falls from left to right; pale: a CG residual above {SOLVED:g}")
    return fig


def path_table(paths: Paths) -> pd.DataFrame:
    """Where rules stop on the path of the corrected step, between doing nothing, Retrain and the nearest of its ends.

    Two rules were run, the others are read off the path. A rule that does not stop on a path is in no mean.
    """
    return pd.DataFrame([row for setting, records in by_setting(paths).items() for row in _stops(setting, records)])


def _stops(setting: str, paths: Sequence[Record]) -> list[dict[str, str]]:
    columns = {
        "step / |Retrain - Original|": ("travelled", 3),
        "test acc. %": ("test", 1),
        "forget acc. %": ("forget", 1),
        "loss on the forgotten": ("forget_loss", 2),
        "on held-out images": ("held_loss", 2),
        "on all others": ("more_held_loss", 2),
        "KL on the forgotten": ("kl_forget", 3),
    }
    found: dict[str, list[Mapping[str, float] | None]] = {
        told: [record.metrics["stops"][name] for record in paths]
        for name, told in {"Original": "do nothing", "Retrain": "Retrain", **RUN}.items()
    }
    found |= {told: [crossing(record, *how) for record in paths] for told, how in READ_OFF.items()}
    found[BEST] = [nearest(record) for record in paths]
    rows = []
    for stop, each in found.items():
        there = pd.DataFrame([one for one in each if one is not None])
        cells = {head: spread_or_dash(there[n], d) if len(there) else "–" for head, (n, d) in columns.items()}
        how = "read off" if stop in READ_OFF else "–" if stop in ("do nothing", "Retrain", BEST) else "run"
        by_seed = ", ".join("–" if one is None else f"{one['kl_forget']:.3f}" for one in each)
        told = {"data": title(setting), "stop": stop, "how": how, "stops": f"{len(there)} of {len(each)}"}
        rows.append({**told, **cells, "KL by seed": by_seed})
    return rows
