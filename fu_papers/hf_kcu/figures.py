"""HF-KCU's figures, drawn from run records only. Numbers as in the paper: Fig. 1, Table 3 as bars.

Every function takes the experiment and records or the wide frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fu_papers.controls import AGAIN, REFERENCES
from fu_papers.hf_kcu.grid import ASCENT, FORMS, MATCHED, METHODS, ROUND, Experiment
from fu_papers.hf_kcu.results import Speeds, main_runs, rows_of, shown
from fu_papers.hf_kcu.tables import DIVERGED
from fu_papers.lab.record import Record
from fu_papers.look import colour, linestyle
from fu_papers.problem_figures import axes_row, title

MARKERS = {FORMS[0]: "v", FORMS[1]: "D", MATCHED: "s", ASCENT: "^", "NaiveGA": "<", "FedEraser": "P"}  # against price
SHOWN_BELOW_RETRAIN = 15  # points of test accuracy; a collapsed method leaves the frame and is named instead


def forgetting_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """Forget accuracy against test accuracy of every method, a dot per seed: how far from Retrain, in which way."""
    fig, axes = axes_row(len(e.settings), height=4.0, width=4.2)
    r = runs[(runs.group == "methods") & runs.method.isin([*REFERENCES, *METHODS])]
    for ax, setting in zip(axes, e.settings, strict=True):
        here = r[r.setting == setting]
        collapsed = here[here.test < here[here.method == "Retrain"].test.mean() - SHOWN_BELOW_RETRAIN]
        inside = here.drop(collapsed.index)
        for method in inside.method.unique():
            dots = inside[inside.method == method]
            look: dict[str, Any] = {"marker": "o", "s": 45, "color": colour(method)}
            if method == "Retrain":
                look |= {"marker": "X", "s": 90}
            elif method == "Original":  # a ring, since HF-KCU as printed lands on it
                look |= {"s": 130, "facecolors": "none"}
            ax.scatter(dots.forget, dots.test, label=shown(method), **look)
        goal = here[here.method == "Retrain"]
        ax.axvline(goal.forget.mean(), color=colour("Retrain"), linestyle="--", linewidth=1)
        ax.axhline(goal.test.mean(), color=colour("Retrain"), linestyle="--", linewidth=1)
        gone = [
            f"{shown(name)} at test {collapsed[collapsed.method == name].test.mean():.0f} %"
            for name in collapsed.method.unique()
        ]
        below = f"\n(below the frame: {', '.join(gone)})" if gone else ""
        ax.set(title=title(setting), xlabel=f"accuracy on the forgotten data (%){below}")
    axes[0].set_ylabel("test accuracy (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return fig


def pareto_figure(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> Figure:
    """Fig. 1: (a) test accuracy against speed-up, (b) seconds. All timed in one process."""
    fig, (left, right) = axes_row(2, height=4.0, width=5.4)
    seconds = speeds["main"].metrics["seconds"]
    order = ["Retrain", *(method for method in METHODS if method in seconds)]
    for place, method in enumerate(order):
        taken = seconds["retrain" if method == "Retrain" else method]
        accuracy = main_runs(e, runs, method).test
        gain = seconds["retrain"] / taken
        error = accuracy.std() if len(accuracy) > 1 else 0.0
        look: dict[str, Any] = {"color": colour(method), "markersize": 8, "capsize": 3, "label": shown(method)}
        left.errorbar(gain, accuracy.mean(), yerr=error, fmt="o", **look)
        right.barh(place, taken, color=colour(method))
        right.annotate(
            f"{taken:.2g} s, {gain:.3g}×", (taken, place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    retrained = main_runs(e, runs, "Retrain").test.mean()
    left.axhline(retrained, color=colour("Retrain"), linestyle="--", linewidth=1)
    left.set(xscale="log", xlabel="times faster than retraining", ylabel="test accuracy (%)", title="(a)")
    left.legend(loc="center right", fontsize=9)
    left.margins(x=0.1, y=0.1)
    right.set(xscale="log", xlabel="seconds", yticks=range(len(order)), title="(b)")
    right.set_yticklabels([shown(method) for method in order])
    right.invert_yaxis()
    right.margins(x=0.35)
    right.grid(axis="y", visible=False)
    return fig


def price_figure(e: Experiment, runs: pd.DataFrame, passes: Mapping[str, float]) -> Figure:
    """What a price buys: KL to Retrain on the forgotten against passes over Retrain's, a dot per seed.

    Natural is a line over its rounds, joined at the means. Dashed: doing nothing; the band: below what two retrainings
    differ by, the floor. passes: of retraining, as "retrain". What has diverged is left out, and named below.
    """
    fig, (ax,) = axes_row(1, height=4.4, width=7.4)
    whole = passes["retrain"]
    natural = rows_of(runs, "price", ROUND).assign(rounds=lambda frame: frame.label.astype(int))
    by_rounds = natural.groupby("rounds")[["passes", "kl_forget"]].mean().sort_index()
    ax.plot(by_rounds.passes / whole, by_rounds.kl_forget, color=colour(ROUND), linewidth=1.5)
    ax.scatter(natural.passes / whole, natural.kl_forget, color=colour(ROUND), s=18, label="Natural, by rounds")
    gone = []
    for method in MARKERS:
        r = main_runs(e, runs, method)
        if r.empty or r.kl_forget.isna().any():
            continue
        if (r.kl > DIVERGED).any():
            gone.append(shown(method))
            continue
        look: dict[str, Any] = {"color": colour(method), "marker": MARKERS[method], "s": 50}
        ax.scatter(r.passes / whole, r.kl_forget, label=shown(method), **look)
    nothing, floor = (main_runs(e, runs, method).kl_forget.mean() for method in ("Original", AGAIN))
    ax.axhline(nothing, color=colour("Original"), linestyle="--", linewidth=1, label="do nothing")
    if floor == floor:  # two seeds at least
        ax.axhspan(0, floor, color=colour("Retrain"), alpha=0.12, linewidth=0, label="below two retrainings' KL")
    ax.plot([1], [0], marker="X", markersize=11, linestyle="none", color=colour("Retrain"), label="Retrain",
            clip_on=False)  # fmt: skip
    note = f"\n(diverged, left out: {', '.join(gone)})" if gone else ""
    ax.set(xscale="log", ylim=(0, None), ylabel="KL to Retrain on the forgotten data (nats)",
           xlabel=f"gradient passes / Retrain's{note}")  # fmt: skip
    fig.legend(loc="outside right upper", frameon=False)
    return fig


def backdoor_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """Table 3 as bars: attack success before, after and retrained, a dot per seed, target class in or out."""
    fig, axes = axes_row(2, height=3.4, width=5.0, sharey=True)
    order = ("Original", "HF-KCU printed", "HF-KCU", "Retrain")
    heads = (("asr", "images of other classes"), ("asr_included", "all images (which fits the paper's 9.64 %)"))
    for ax, (name, head) in zip(axes, heads, strict=True):
        for place, method in enumerate(order):
            values = rows_of(runs, "backdoor", method)[name]
            ax.bar(place, values.mean(), color=colour(method), alpha=0.75)
            ax.scatter([place] * len(values), values, color="black", s=14, zorder=3)
        ax.set(xticks=range(len(order)), title=head, ylim=(0, 102))
        ax.set_xticklabels(["poisoned", "HF-KCU\nprinted", "HF-KCU\ncorrected", "Retrain"])
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel("attack success (%)")
    return fig


def sweeps_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """How k, damping and the clip beta move forget accuracy (solid) and test accuracy (thin), both forms."""
    panels = {"iters": "CG steps k", "damping": "damping", "beta": "clip beta"}
    fig, axes = axes_row(len(panels), height=3.6, width=4.2, sharey=True)
    goal, start = (main_runs(e, runs, method).forget.mean() for method in ("Retrain", "Original"))
    for ax, (group, label) in zip(axes, panels.items(), strict=True):
        r = runs[runs.group == group].assign(value=lambda frame: frame.label.astype(float))
        for method in FORMS:
            by_value = r[r.method == method].groupby("value").forget
            mean, spread_of = by_value.mean(), by_value.std().fillna(0)
            ax.errorbar(
                mean.index, mean, yerr=spread_of, color=colour(method), label=shown(method), marker="o", capsize=3
            )
        ax.axhline(goal, color=colour("Retrain"), linestyle=linestyle("Retrain"), label="Retrain")
        ax.axhline(start, color=colour("Original"), linestyle=linestyle("Original"), label="do nothing")
        ax.set(xscale="log", xlabel=label)
        values = sorted(r.value.unique())
        ax.set_xticks(values, labels=[f"{value:g}" for value in values])
        ax.minorticks_off()
    axes[0].set_ylabel("accuracy on the forgotten data (%)")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def residual_figure(residuals: Sequence[Record]) -> Figure:
    """Convergence of CG on the trained net's own damped curvatures, clients 1 and 2: Hessian and Gauss-Newton."""
    fig, axes = axes_row(2, height=3.4, width=4.8, sharey=True)
    for ax, matrix, head in zip(axes, ("hessian", "ggn"), ("Hessian", "Gauss-Newton"), strict=True):
        for record in residuals:
            for client, dashes in (("1", "-"), ("2", "--")):
                curve = record.metrics["curves"][f"{matrix}/{client}"]
                met = f", negative curvature in {curve['negative']} steps" if curve["negative"] else ""
                ax.plot(curve["residuals"], dashes, color=colour("HF-KCU"), label=f"client {client}{met}")
        ax.axhline(1, color="#999999", linewidth=1)
        ax.set(yscale="log", xlabel="CG step", title=f"{head}, damped, trained net")
        ax.legend(frameon=False)
    axes[0].set_ylabel(r"relative residual $|r_t| / |r_0|$")
    return fig
