"""PUF's figures, drawn from run records only. Numbers as in the paper: Figs. 1 to 6.

Every function takes the experiment and records or the frame of `results`; nothing here trains.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, cast

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fu_papers.look import colour, linestyle, seed_band
from fu_papers.problem_figures import axes_row, title
from fu_papers.problems import Setting
from fu_papers.puf.grid import PUFS, REFERENCES, SWEPT_AGAINST, Experiment
from fu_papers.puf.results import ATTACKS, Trainings, Unlearnings, rows_of, runs_of
from fu_papers.study import Cell

SHOWN_BELOW_RETRAIN = 40  # points of accuracy; deeper falls leave the frame, so that the end stays readable
Curve = Sequence[Mapping[str, float]]  # a row of metrics per recovery round
References = Mapping[str, Mapping[str, float]]  # method -> metrics
MARKERS = {1.0: "o", 2.0: "s", 5.0: "^", 10.0: "D"}  # per E_u


def training_curves(e: Experiment, trainings: Trainings, scenario: str = "clients") -> Figure:
    """Test accuracy per round of the original model (all seeds) and of the retrained ones (seeds and requests)."""
    s = e.scenario(scenario)
    fig, axes = axes_row(len(s.settings), height=3.4, width=4.4)
    for ax, text in zip(axes, s.settings, strict=True):
        for method in REFERENCES:
            runs = [
                record
                for (name, setting, _, request), record in trainings.items()
                if (name, setting) == (scenario, text) and (request == "none") == (method == "Original")
            ]
            rounds = [row["round"] for row in runs[0].rounds]
            seed_band(ax, rounds, [[row["test"] for row in run.rounds] for run in runs], method)
        ax.set(title=title(text), xlabel="federated round", ylabel=f"test {measure_of(text)}")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[-1].legend(loc="lower right")
    return fig


def forget_gap(e: Experiment, unlearnings: Unlearnings) -> Figure:
    """Is there something to forget? Forget accuracy of the original and the retrained model, per run."""
    s = e.scenarios()[0]
    fig, axes = axes_row(len(s.settings), height=3.4, width=3.6, sharey=True)
    for ax, text in zip(axes, s.settings, strict=True):
        for seed in s.seeds:
            for request in s.requests:
                cells = [Cell(s.name, text, seed, request, m) for m in REFERENCES]
                pair = [unlearnings[cell].metrics["final"]["forget"] for cell in cells]
                ax.plot([0, 1], pair, color="#999999", linewidth=1, zorder=1)
                for x, (method, value) in enumerate(zip(REFERENCES, pair, strict=True)):
                    ax.scatter(x, value, color=colour(method), zorder=2, s=30)
        ax.set(title=title(text), xticks=[0, 1], xlim=(-0.4, 1.4))
        ax.set_xticklabels(["Original\n(saw the data)", "Retrain\n(never saw it)"])
    axes[0].set_ylabel("forget accuracy (%)")
    return fig


def recovery_curves(
    e: Experiment, unlearnings: Unlearnings, setting: str, scenario: str = "clients", methods: Sequence[str] = ()
) -> Figure:
    """Fig. 4: test accuracy (left) and forget accuracy (right) per recovery round, mean and spread over runs.

    methods: only these; none given: all of the experiment's.
    Round 0 is right after the unlearning step. A run that has stopped keeps its last value; the mark is
    the mean round at which the paper's stop rule (test accuracy reaches Retrain's) would end recovery.
    """
    fig, axes = axes_row(2, height=3.8, width=5.2)
    found = {m: runs for m in methods or e.methods if (runs := runs_of(unlearnings, scenario, setting, m))}
    last = max(len(run.rounds) for runs in found.values() for run in runs)
    measure = measure_of(setting)
    for ax, metric in zip(axes, ("test", "forget"), strict=True):
        for method, runs in found.items():
            paths = np.array([_extended([row[metric] for row in run.rounds], last) for run in runs])
            if max(len(run.rounds) for run in runs) > 1:  # FedEraser has no recovery, hence no line
                seed_band(ax, range(last), paths, method)
            stop = float(np.mean([run.metrics["test"]["rounds"] for run in runs]))
            height = float(np.interp(stop, range(last), paths.mean(axis=0)))
            drawn = bool(ax.lines) and ax.lines[-1].get_label() == method
            name = None if drawn else method
            ax.plot(stop, height, "o", color=colour(method), markersize=7, markeredgecolor="white", label=name)
        for reference in REFERENCES:
            values = [run.metrics["final"][metric] for run in runs_of(unlearnings, scenario, setting, reference)]
            ax.axhline(np.mean(values), color=colour(reference), linestyle=linestyle(reference), label=reference)
        ax.set(xlabel="recovery round (0: right after unlearning)", ylabel=f"{metric} {measure}")
        ax.set_ylim(bottom=max(-2.0, float(np.mean(values)) - SHOWN_BELOW_RETRAIN))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_title(f"{title(setting)}: {e.scenario(scenario).heading}", loc="left")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def radar(e: Experiment, runs: pd.DataFrame, setting: str, stop: str = "test") -> Figure:
    """Fig. 1: three differences to Retrain and two costs per method; the smaller polygon is the better one.

    The outer ring is doing nothing (differences, linear) and retraining (costs, logarithmic: the centre is a
    thousandth of it).
    """
    spokes = ["Δ forget acc.", "Δ Song", "bytes sent", "FLOPs", "Δ Yeom"]
    angles = np.linspace(0, 2 * np.pi, len(spokes), endpoint=False)
    fig, ax = _polar(7.2, 4.4)
    nothing = rows_of(runs, "clients", setting, "Original", stop)
    for method in e.methods:
        r = rows_of(runs, "clients", setting, method, stop)
        if r.empty:
            continue
        deltas = {name: r[f"delta_{name}"].mean() / nothing[f"delta_{name}"].mean() for name in ATTACKS}
        costs = {name: _share_of_retraining(r[f"{name}_gain"]) for name in ("bytes", "images")}
        values = [deltas["forget"], deltas["song"], costs["bytes"], costs["images"], deltas["yeom"]]
        line = {"color": colour(method), "linestyle": linestyle(method), "label": method}
        ax.plot([*angles, angles[0]], [*values, values[0]], **line)
        if method in PUFS:
            ax.fill(angles, values, color=colour(method), alpha=0.15)
    ax.plot(np.linspace(0, 2 * np.pi, 200), np.ones(200), color="#888888", linewidth=1)
    ax.set_theta_offset(np.pi / 2)  # the first spoke points up
    ax.set(ylim=(0, 1.35), yticks=[0.5, 1.0])
    ax.set_xticks(angles, spokes)
    ax.set_yticklabels(["", "nothing /\nretraining"], fontsize=7)
    ax.set_title(title(setting), loc="left")
    ax.legend(loc="center left", bbox_to_anchor=(1.15, 0.5), frameon=False)
    return fig


def operating_modes() -> Figure:
    """Fig. 2, redrawn: who sends an update in a Regular and in a Special round, and with which sign it counts."""
    fig, axes = axes_row(2, height=3.4, width=4.6)
    for ax, (name, active) in zip(axes, (("PUF-Regular", True), ("PUF-Special", False)), strict=True):
        ax.set(xlim=(-0.6, 3.6), ylim=(-0.55, 2.6), xticks=[], yticks=[])
        ax.axis("off")
        box = {"boxstyle": "round,pad=0.4", "facecolor": "#eeeeee", "edgecolor": "#555555"}
        step = r"$w_t + \eta_s(\eta_r\Delta^+ - \eta_u\Delta^-)$" if active else r"$w_t - \eta_s\eta_u\Delta^-$"
        ax.text(1.5, 2.2, f"server: {step}", ha="center", va="center", bbox=box)
        for i in range(4):
            leaves = i == 3
            takes_part = leaves or active
            shade = colour(name) if leaves else "#ffffff" if active else "#f4f4f4"
            edge = "#333333" if takes_part else "#bbbbbb"
            who = "leaves" if leaves else f"client {i}"
            looks = {"boxstyle": "circle,pad=0.35", "facecolor": shade, "edgecolor": edge}
            ink = "#ffffff" if leaves else edge
            ax.text(i, 0, who, ha="center", va="center", fontsize=8, bbox=looks, color=ink)
            if takes_part:
                arrow = {"arrowstyle": "-|>", "color": colour(name) if leaves else "#333333", "linewidth": 1.5}
                ax.annotate("", (0.6 + 0.6 * i, 1.95), (i, 0.42), arrowprops=arrow)
                label = r"$-\eta_u\Delta_3$" if leaves else rf"$+\Delta_{i}$"
                ink = colour(name) if leaves else "#333333"
                ax.text(0.8 * i + 0.3, 1.18, label, ha="center", va="center", backgroundcolor="white", color=ink)
        ax.set_title(name, loc="left")
    return fig


def sweep_scatter(e: Experiment, runs: pd.DataFrame, scenario: str = "clients", stop: str = "test") -> Figure:
    """Fig. 5 (and 6, for segmentation): recovery rounds against what is left of the forget gap, per (eta_u, E_u).

    Means over the sweep's runs; near the origin is good. Natural, NoT and PGA on the same requests and seeds.
    Where a run diverged, no dot but a note.
    """
    settings = e.sweep_settings if scenario == "clients" else e.scenario(scenario).settings
    fig, axes = axes_row(len(settings), height=4.0, width=5.6)
    for ax, setting in zip(axes, settings, strict=True):
        swept = runs[(runs.group == scenario) & (runs.setting == setting) & (runs.stop == stop)]
        swept = swept[swept.seed.isin(list(e.few_seeds))]
        lost = []
        for key, r in swept[swept.label != ""].groupby(["method", "eta_u", "epochs_u"]):
            method, eta_u, epochs_u = cast(tuple[str, float, float], key)
            x, y = r.rounds.mean(), r.delta_forget.mean()
            if r.delta_forget.isna().any():  # some targets survived it: their mean would flatter it
                lost.append(f"{method.removeprefix('PUF-')} {eta_u:g}, $E_u$ = {epochs_u:g}")
                continue
            marker = MARKERS.get(epochs_u, "v")
            ax.scatter(x, y, color=colour(method), marker=marker, s=45, edgecolor="white", zorder=3)
            side, dx = ("right", -5) if method == PUFS[0] else ("left", 5)
            ax.annotate(f"{eta_u:g}", (x, y), xytext=(dx, 4), textcoords="offset points", ha=side, fontsize=8)
        for method in SWEPT_AGAINST:
            r = swept[(swept.method == method) & (swept.label == "")]
            if len(r):
                ax.scatter(r.rounds.mean(), r.delta_forget.mean(), color=colour(method), marker="*", s=130, zorder=2)
        _sweep_legend(ax, swept)
        if lost:
            told = textwrap.fill(f"diverged, not shown: {'; '.join(lost)}", 60)
            ax.text(0.5, -0.2, told, transform=ax.transAxes, ha="center", va="top", fontsize=8)
        ax.set(title=title(setting), xlabel="recovery rounds", ylabel=f"Δ forget {measure_of(setting)}", ylim=(0, None))
    return fig


def _sweep_legend(ax: Axes, swept: pd.DataFrame) -> None:
    """Colours for methods, markers for E_u; the numbers beside the dots are eta_u."""
    for method in (*PUFS, *SWEPT_AGAINST):
        if (swept.method == method).any():
            marker = "o" if method in PUFS else "*"
            ax.scatter([], [], color=colour(method), marker=marker, label=method)
    for epochs_u in sorted(swept.epochs_u.dropna().unique()):
        marker = MARKERS.get(float(epochs_u), "v")
        ax.scatter([], [], color="#777777", marker=marker, label=f"$E_u$ = {epochs_u:g}")
    ax.legend(loc="best", fontsize=8, title="number: $\\eta_u$", title_fontsize=8)


def live_figure(curve: Curve, references: References, head: str) -> Figure:
    """The recovery curve behind the notebook's sliders, for one run; `references`: method -> metrics."""
    fig, axes = axes_row(2, height=3.2, width=4.6)
    for ax, metric in zip(axes, ("test", "forget"), strict=True):
        ax.plot([row["round"] for row in curve], [row[metric] for row in curve], "o-", color=colour("PUF-Special"))
        for method, values in references.items():
            ax.axhline(values[metric], color=colour(method), linestyle=linestyle(method), label=method)
        ax.set(xlabel="recovery round", ylabel=f"{metric} accuracy (%)", ylim=(0, 102))
    axes[0].set_title(head, loc="left")
    axes[1].legend(loc="lower right")
    return fig


def _extended(values: Sequence[float], length: int) -> list[float]:
    return [*values, *[values[-1]] * (length - len(values))]


def measure_of(setting: str) -> str:
    """What is measured on a setting's data: accuracy, or Dice where hospitals draw masks."""
    return "Dice (%)" if Setting.parse(setting).split == "site" else "accuracy (%)"


def _polar(width: float, height: float) -> tuple[Figure, Any]:
    return plt.subplots(figsize=(width, height), subplot_kw={"projection": "polar"})


def _share_of_retraining(gain: pd.Series) -> float:
    """Cost relative to retraining on a logarithmic axis: 1 is retraining, 0 a thousandth of it or nothing."""
    share = (1 / gain).fillna(0.0).mean()
    return max(0.0, 1 + float(np.log10(share)) / 3) if share > 0 else 0.0
