"""HF-KCU's figures, drawn from run records only. Numbers as in the paper: Fig. 1, Table 3 as dots.

Every function takes the experiment and records or the wide frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from fu_papers.controls import AGAIN, REFERENCES
from fu_papers.hf_kcu.cells import DIVERGED
from fu_papers.hf_kcu.grid import ASCENT, FORMS, MATCHED, METHODS, ROUND, SAME_START, Experiment
from fu_papers.hf_kcu.results import Speeds, main_runs, rows_of, shown
from fu_papers.hf_kcu.sweeps import SWEPT, held_fixed
from fu_papers.hf_kcu.variants import UNWEIGHTED
from fu_papers.lab.record import Record
from fu_papers.look import colour, linestyle, marker, say_below
from fu_papers.problem_figures import axes_row, counted, title

PRICED = (*FORMS, MATCHED, ASCENT, "NaiveGA", "FedEraser", "SISA")  # against price
SHOWN_BELOW_RETRAIN = 15  # points of test accuracy; a collapsed method leaves the frame and is named instead
ASIDE = 6.0  # points between dots that would hide each other
FREE = 4.0  # doing nothing takes no time: it stands so many times farther right than the fastest


def forgetting_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """Forget accuracy against test accuracy of every method, a dot per seed: how far from Retrain, in which way."""
    fig, axes = axes_row(len(e.settings), height=4.4, width=4.2)
    r = runs[(runs.group == "methods") & runs.method.isin([*REFERENCES, *METHODS])]
    named: dict[str, Any] = {}
    for ax, setting in zip(axes, e.settings, strict=True):
        here = r[r.setting == setting]
        collapsed = here[here.test < here[here.method == "Retrain"].test.mean() - SHOWN_BELOW_RETRAIN]
        inside = here.drop(collapsed.index)
        for method, points, dots in _side_by_side(inside):
            look: dict[str, Any] = {"marker": marker(method), "s": 45, "color": colour(method)}
            if method == "Retrain":
                look |= {"s": 90}
            elif method == "Original":  # a ring, since HF-KCU as printed lands on it
                look |= {"marker": "o", "s": 150, "facecolors": "none"}
            aside = ax.transData + ScaledTranslation(points / 72, 0, fig.dpi_scale_trans)
            drawn = ax.scatter(dots.forget, dots.test, transform=aside, zorder=3, **look)
            named.setdefault(shown(method), drawn)
        ax.set(xlim=_with_margin(inside.forget), ylim=_with_margin(inside.test))
        goal = here[here.method == "Retrain"]
        ax.axvline(goal.forget.mean(), color=colour("Retrain"), linestyle="--", linewidth=1)
        ax.axhline(goal.test.mean(), color=colour("Retrain"), linestyle="--", linewidth=1)
        of = {name: len(here[here.method == name]) for name in collapsed.method.unique()}
        lost = {name: collapsed[collapsed.method == name].test for name in of}
        below = _below({name: (tests.mean(), len(tests), of[name]) for name, tests in lost.items()})
        ax.set(title=title(setting), xlabel=f"accuracy on the forgotten data (%){below}")
    axes[0].set_ylabel("test accuracy (%)")
    columns = max(2, 2 * len(axes) - 1)
    fig.legend(list(named.values()), list(named), loc="outside upper center", ncols=columns, frameon=False)
    told = f"A dot: one of {counted(len(e.seeds), 'seed')}; methods that coincide stand side by side"
    say_below(fig, f"{told}; dashed: Retrain's mean")
    return fig


def _side_by_side(runs: pd.DataFrame) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Method, points to the right, and the rows that are drawn there: methods in one place would hide each other.

    Doing nothing is a ring around whoever is in its place, and stays there.
    """
    places = list(zip(runs.method, runs.forget.round(6), runs.test.round(6), strict=True))
    crowds: dict[tuple[float, float], list[str]] = {}
    for method, *place in places:
        here = crowds.setdefault((place[0], place[1]), [])
        here += [method] * (method not in (*here, "Original"))
    aside = []
    for method, *place in places:
        here = crowds[place[0], place[1]]
        aside.append(ASIDE * (here.index(method) - (len(here) - 1) / 2) if method in here else 0.0)
    shift = pd.Series(aside, index=runs.index)
    for method in runs.method.unique():
        for points in sorted(shift[runs.method == method].unique()):
            yield method, points, runs[(runs.method == method) & (shift == points)]


def _with_margin(values: pd.Series) -> tuple[float, float]:
    """The ends of an axis on which nothing touches the frame."""
    low, high = float(values.min()), float(values.max())
    margin = 0.07 * (high - low or 1.0)
    return low - margin, high + margin


def _below(collapsed: Mapping[str, tuple[float, int, int]]) -> str:
    """A line per method that has left the frame: its mean test accuracy there, and of how many of its runs that is."""
    told = [
        f"{shown(name)} at test {mean:.0f} %" + ("" if lost == of else f", {lost} of {of}")
        for name, (mean, lost, of) in collapsed.items()
    ]
    listed = ";\n".join(told)
    return f"\n(below the frame: {listed})" if told else ""


def pareto_figure(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> Figure:
    """Fig. 1: (a) test accuracy against speed-up, with doing nothing, (b) seconds. All timed in one process.

    Hollow: the printed form without its causal weights. Grey, dashed: the frontier, those than whom nobody is both
    faster and more accurate. Doing nothing takes no time and stands at the right end: what lies below it, and to the
    left, cannot win by accuracy and speed. The names in (b) are those of the dots in (a), too; what has collapsed
    leaves the frame of (a), and is named below it.
    """
    fig, (left, right) = axes_row(2, height=4.4, width=5.6)
    seconds = speeds["main"].metrics["seconds"]
    order = ["Retrain", *(method for method in METHODS if method in seconds)]
    order.insert(order.index("HF-KCU printed") + 1, UNWEIGHTED)
    gains = {method: seconds["retrain"] / seconds["retrain" if method == "Retrain" else method] for method in order}
    gains["Original"] = FREE * max(gains.values())
    tests = {method: main_runs(e, runs, method).test for method in gains}
    tests[UNWEIGHTED] = rows_of(runs, "ablation", "HF-KCU printed", UNWEIGHTED).test
    means = {method: float(accuracy.mean()) for method, accuracy in tests.items()}
    collapsed = [method for method in gains if means[method] < means["Retrain"] - SHOWN_BELOW_RETRAIN]
    for place, (method, gain) in enumerate(gains.items()):
        form = "HF-KCU printed" if method == UNWEIGHTED else method
        ink = colour(form)
        look: dict[str, Any] = {"edgecolors": ink, "facecolors": "none" if form != method else ink}
        look |= {"marker": marker(form), "zorder": 3}
        if method not in collapsed:
            error = tests[method].std() if len(tests[method]) > 1 else 0.0
            left.plot([gain, gain], [means[method] - error, means[method] + error], color=ink, linewidth=1)
            left.scatter(gain, means[method], s=60, **look)
        taken = seconds["retrain"] / gain
        told = "" if method == "Original" else f"{_plain(taken, 2)} s, {_plain(gain, 3)}×"
        right.scatter(taken, place, s=60, **look)
        right.annotate(told, (taken, place), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9)
    best = [
        method for method in gains if not any(means[m] >= means[method] and gains[m] > gains[method] for m in gains)
    ]
    best.sort(key=lambda method: gains[method])
    left.plot(
        [gains[m] for m in best], [means[m] for m in best], color="#999999", linestyle="--", linewidth=1.2, zorder=1
    )
    left.axhline(means["Retrain"], color=colour("Retrain"), linestyle="--", linewidth=1, zorder=1)
    below = _below({method: (means[method], 1, 1) for method in collapsed})
    left.set(xscale="log", xlabel=f"times faster than retraining{below}", ylabel="test accuracy (%)")
    left.set_title("(a), names as in (b)")
    left.margins(x=0.12, y=0.12)
    right.set(xscale="log", xlabel="seconds", yticks=range(len(gains)), title="(b)")
    free = gains["Original"]
    _powers_of_ten(left, free, [1.0, free / FREE])
    _powers_of_ten(right, seconds["retrain"] / free, [seconds["retrain"] * FREE / free, seconds["retrain"]])
    right.set_yticklabels([shown(method) for method in gains])
    right.invert_yaxis()
    right.margins(x=0.4, y=0.08)
    right.grid(axis="y", visible=False)
    told = f"Accuracy: the mean of {counted(len(e.seeds), 'seed')} ± standard deviation; seconds: the first seed's"
    say_below(fig, f"{told}; grey, dashed: the frontier")
    return fig


def _plain(value: float, digits: int) -> str:
    """So many digits of a number, without a power of ten: 190 and 0.14."""
    return f"{float(f'{value:.{digits}g}'):g}"


def _powers_of_ten(ax: Axes, free: float, ends: Sequence[float]) -> None:
    """Ticks where somebody's number can be, between `ends`, and "no time" where doing nothing stands."""
    powers = [10.0**k for k in range(-6, 7) if 0.99 * ends[0] <= 10.0**k <= 1.01 * ends[1]]
    ax.set_xticks([free, *powers], labels=["no time", *(f"{power:g}" for power in powers)])
    ax.minorticks_off()


def price_figure(e: Experiment, runs: pd.DataFrame, passes: Mapping[str, float]) -> Figure:
    """What a price buys: KL to Retrain on the forgotten against passes over Retrain's, a dot per seed.

    Natural is a line over its rounds, joined at the means. Dashed: doing nothing; dotted: what two retrainings from the
    same weights differ by, as every method starts, the floor to reach; the band: below what two from other weights do.
    passes: of retraining, as "retrain". What has diverged is left out, and named below. An ascent's price is without
    the solve that tells it its length.
    """
    fig, (ax,) = axes_row(1, height=4.4, width=7.4)
    whole = passes["retrain"]
    natural = rows_of(runs, "price", ROUND).assign(rounds=lambda frame: frame.label.astype(int))
    by_rounds = natural.groupby("rounds")[["passes", "kl_forget"]].mean().sort_index()
    ax.plot(by_rounds.passes / whole, by_rounds.kl_forget, color=colour(ROUND), linewidth=1.5)
    ax.scatter(natural.passes / whole, natural.kl_forget, color=colour(ROUND), marker=marker(ROUND), s=18,
               label="Natural, by rounds")  # fmt: skip
    gone, drawn = [], []
    for method in PRICED:
        r = main_runs(e, runs, method)
        if r.empty or r.kl_forget.isna().any():
            continue
        if (r.kl > DIVERGED).any():
            gone.append(shown(method))
            continue
        drawn.append(method)
        look: dict[str, Any] = {"color": colour(method), "marker": marker(method), "s": 50}
        ax.scatter(r.passes / whole, r.kl_forget, label=shown(method), **look)
    nothing, floor, same = (main_runs(e, runs, method).kl_forget.mean() for method in ("Original", AGAIN, SAME_START))
    shown_kl = [natural.kl_forget.min(), nothing, floor, same, *(main_runs(e, runs, m).kl_forget.min() for m in drawn)]
    lowest = min(kl for kl in shown_kl if kl > 0)
    ax.axhline(nothing, color=colour("Original"), linestyle="--", linewidth=1, label="do nothing")
    if same == same:  # where it was run
        ax.axhline(same, color=colour("Retrain"), linestyle=":", linewidth=1.5, label="two retrainings, same weights")
    if floor == floor:  # two seeds at least
        ax.axhspan(0.7 * lowest, floor, color=colour("Retrain"), alpha=0.12, linewidth=0, zorder=0,
                   label="below two from other weights")  # fmt: skip
    own: dict[str, Any] = {"color": colour("Retrain"), "marker": marker("Retrain"), "label": "Retrain (at 0)"}
    at_the_edge = ax.get_xaxis_transform()  # which a logarithm has no other place for
    ax.plot([1], [0], markersize=11, linestyle="none", clip_on=False, zorder=5, transform=at_the_edge, **own)
    note = f"\n(diverged, left out: {', '.join(gone)})" if gone else ""
    ax.set(xscale="log", yscale="log", ylim=(0.7 * lowest, None), ylabel="KL to Retrain on the forgotten data (nats)",
           xlabel=f"gradient passes / Retrain's{note}")  # fmt: skip
    plain_numbers(ax)
    fig.legend(loc="outside right upper", frameon=False)
    say_below(fig, f"A dot: one of {counted(len(e.seeds), 'seed')}; line: the mean over seeds")
    return fig


def plain_numbers(ax: Axes) -> None:
    """0.02, 0.05, 0.1, ... up a logarithmic axis."""
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def backdoor_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """Table 3 as dots, one per seed: attack success before, after and retrained, target class in or out."""
    fig, axes = axes_row(2, height=3.4, width=5.0, sharey=True)
    order = ("Original", "HF-KCU printed", "HF-KCU", "Retrain")
    heads = (("asr", "images of other classes"), ("asr_included", "all images (which fits the paper's 9.64 %)"))
    for ax, (name, head) in zip(axes, heads, strict=True):
        for place, method in enumerate(order):
            values = rows_of(runs, "backdoor", method)[name]
            look: dict[str, Any] = {"color": colour(method), "linewidth": 2.5, "zorder": 2}
            ax.plot([place - 0.3, place + 0.3], [values.mean()] * 2, **look)
            beside = [place + 0.15 * (i - (len(values) - 1) / 2) for i in range(len(values))]  # a seed its own place
            ax.scatter(beside, values, color=colour(method), edgecolor="white", s=45, zorder=3)
        ax.set(xticks=range(len(order)), title=head, xlim=(-0.5, len(order) - 0.5), ylim=(-3, 103))
        ax.set_xticklabels(["poisoned", "HF-KCU\nprinted", "HF-KCU\ncorrected", "Retrain"])
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel("attack success (%)")
    say_below(fig, f"A dot: one of {counted(len(e.seeds), 'seed')}; line: their mean")
    return fig


def sweeps_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """How k, damping and the clip beta move forget accuracy, both forms: a line through the means, a dot per seed.

    Above each panel: what is held fixed there, and at which value; the forms differ in that.
    """
    fig, axes = axes_row(len(SWEPT), height=4.0, width=4.2, sharey=True)
    goal, start = (main_runs(e, runs, method).forget.mean() for method in ("Retrain", "Original"))
    for ax, (group, label) in zip(axes, SWEPT.items(), strict=True):
        r = runs[runs.group == group].assign(value=lambda frame: frame.label.astype(float))
        for method, beside in zip(FORMS, (0.96, 1.04), strict=True):  # or one form's dots would hide the other's
            own = r[r.method == method]
            mean = own.groupby("value").forget.mean()
            look: dict[str, Any] = {"color": colour(method), "marker": marker(method)}
            ax.scatter(own.value * beside, own.forget, s=16, alpha=0.55, linewidth=0, **look)
            ax.plot(mean.index * beside, mean, label=shown(method), linestyle=linestyle(method), **look)
        ax.axhline(goal, color=colour("Retrain"), linestyle=linestyle("Retrain"), label="Retrain")
        ax.axhline(start, color=colour("Original"), linestyle=linestyle("Original"), label="do nothing")
        fixed = [f"{shown(method).rpartition(' ')[2]}: {held_fixed(e, group, method)}" for method in FORMS]
        ax.set(xscale="log", xlabel=label)
        ax.set_title("\n".join(fixed), fontsize=10)
        values = sorted(r.value.unique())
        ax.set_xticks(values, labels=[f"{value:g}" for value in values])
        ax.minorticks_off()
        ax.margins(x=0.12)
    axes[0].set_ylabel("accuracy on the forgotten data (%)")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    say_below(fig, f"Above: what is held fixed; a small mark: one of {counted(len(e.seeds), 'seed')}; line: their mean")
    return fig


def residual_figure(residuals: Sequence[Record]) -> Figure:
    """Convergence of CG on the trained net's own damped curvatures, clients 1 and 2: Hessian and Gauss-Newton.

    A line per seed; how many steps met negative curvature is told of all of a client's.
    """
    fig, axes = axes_row(2, height=3.4, width=4.8, sharey=True)
    for ax, matrix, head in zip(axes, ("hessian", "ggn"), ("Hessian", "Gauss-Newton"), strict=True):
        dampings = sorted({record.config["damping"] for record in residuals})
        by = ", ".join(f"{damping:g}" for damping in dampings)
        for client, dashes in (("1", "-"), ("2", "--")):
            curves = [record.metrics["curves"][f"{matrix}/{client}"] for record in residuals]
            counts = sorted({curve["negative"] for curve in curves})
            steps = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            met = f", negative curvature in {steps} steps" if counts[-1] else ""
            for k, curve in enumerate(curves):
                label = "" if k else f"client {client}{met}"
                ax.plot(curve["residuals"], dashes, color=colour("HF-KCU"), alpha=1 / (1 + k / 2), label=label)
        ax.axhline(1, color="#999999", linewidth=1)
        ax.set(yscale="log", xlabel="CG step", title=f"{head} of the trained net, damped by {by}")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    axes[0].set_ylabel(r"relative residual $|r_t| / |r_0|$")
    seeds = "one seed" if len(residuals) == 1 else f"one of {counted(len(residuals), 'seed')}"
    say_below(fig, f"A line: one client's system, {seeds}")
    return fig
