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
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, ScalarFormatter

from fu_papers.evidence import completed
from fu_papers.look import colour, linestyle, published, seed_band
from fu_papers.problem_figures import axes_row, title
from fu_papers.problems import Setting
from fu_papers.puf.costs import implied_rounds
from fu_papers.puf.grid import AGAIN, PUBLISHED, PUFS, REFERENCES, SWEPT_AGAINST, Experiment
from fu_papers.puf.printed_tables import beside
from fu_papers.puf.results import ATTACKS, Trainings, Unlearnings, natural_at, rows_of, runs_of
from fu_papers.study import Cell

SHOWN_BELOW_RETRAIN = 40  # points of accuracy; deeper falls leave the frame, so that the end stays readable
Curve = Sequence[Mapping[str, float]]  # a row of metrics per recovery round
References = Mapping[str, Mapping[str, float]]  # method -> metrics
POINTS = (-5, -2, -1, 0, 1, 2, 5, 10, 20, 50, 100)  # ticks of an axis that is linear up to a point, then logarithmic
MARKERS = {1.0: "o", 2.0: "s", 5.0: "^", 10.0: "D"}  # per E_u
FLOOR = "#bbbbbb"  # of the noise floor: two retrainings that only their seeds tell apart


def training_curves(e: Experiment, trainings: Trainings, scenario: str = "clients") -> Figure:
    """Test accuracy per round of the original model (all seeds) and of the retrained ones (seeds and requests).

    Trainings of other seeds, for an attacker or a second retraining, are left out; originals have the backdoor, if any.
    """
    s = e.scenario(scenario)
    poisoned = [f"poisoned {request}" for request in s.requests]
    originals = poisoned if any(key[0] == scenario and key[3] in poisoned for key in trainings) else ["none"]
    fig, axes = axes_row(len(s.settings), height=3.4, width=4.4)
    for ax, text in zip(axes, s.settings, strict=True):
        for method, requests in zip(REFERENCES, (originals, s.requests), strict=True):
            runs = [
                record
                for (name, setting, seed, request), record in trainings.items()
                if (name, setting) == (scenario, text) and seed in s.seeds and request in requests
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
    """Fig. 4: test accuracy (left) and forget accuracy (right) per recovery round, mean over runs.

    methods: only these; none given: all of the experiment's. PUF has its standard deviation as a band; ten bands would
    hide one another. Round 0 is right after the unlearning step.

    A run that has stopped keeps its last value. A line ends where fewer than half of its runs still go on: beyond, it
    would show old values of the stopped ones beside those that are about to give up. The mark is where the paper's stop
    rule (test accuracy reaches Retrain's) ends recovery, mean over the runs that it ended; Natural, which no rule
    stops, has none.
    """
    fig, axes = axes_row(2, height=3.8, width=5.2)
    found = {m: runs for m in methods or e.methods if (runs := runs_of(unlearnings, scenario, setting, m))}
    measure = measure_of(setting)
    for ax, metric in zip(axes, ("test", "forget"), strict=True):
        for method, runs in found.items():
            lengths = sorted((len(run.rounds) for run in runs), reverse=True)
            last = lengths[(len(runs) - 1) // 2]  # so many rounds at least half of the runs have
            paths = np.array([_extended([row[metric] for row in run.rounds], last)[:last] for run in runs])
            drawn = lengths[0] > 1  # FedEraser has no recovery, hence no line
            if drawn and method in PUFS:
                seed_band(ax, range(last), paths, method)
            elif drawn:
                line: dict[str, Any] = {"color": colour(method), "linestyle": linestyle(method), "label": method}
                ax.plot(range(last), paths.mean(axis=0), **line)
            ends = [run.metrics["test"] for run in runs if run.metrics["test"]["reached"] or not drawn]
            if ends and method != "Natural":
                place = [float(np.mean([end[name] for end in ends])) for name in ("rounds", metric)]
                name = None if drawn else method
                ax.plot(*place, "o", color=colour(method), markersize=7, markeredgecolor="white", label=name)
        for reference in REFERENCES:
            values = [run.metrics["final"][metric] for run in runs_of(unlearnings, scenario, setting, reference)]
            ax.axhline(np.mean(values), color=colour(reference), linestyle=linestyle(reference), label=reference)
        ax.set(xlabel="recovery round (0: right after unlearning)", ylabel=f"{metric} {measure}")
        ax.set_ylim(bottom=max(-2.0, float(np.mean(values)) - SHOWN_BELOW_RETRAIN))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_title(f"{title(setting)}: {e.scenario(scenario).heading}", loc="left")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def utility_matched(
    e: Experiment, unlearnings: Unlearnings, setting: str, scenario: str = "clients", methods: Sequence[str] = ()
) -> Figure:
    """Forget gap against test shortfall, a line per method over the recovery rounds: who forgets at equal utility?

    Both are differences to the retrained model of the same request and seed (the gap absolute), means over all runs,
    those included that gave up; one that stopped stays where it stopped. Recovery moves to the left. A full dot is
    where all runs came back under the paper's stop rule, an open one where some had not when the cap was reached; the
    legend counts them. Both axes are linear up to one point, then logarithmic. Retrain is the origin, the grey box two
    retrainings that only their seeds tell apart. Nearer to the box at the same shortfall is better. methods: only
    these; none given: all of the experiment's.
    """
    fig, ax = plt.subplots(figsize=(8.0, 4.6))
    reach = [1.0]
    for method in methods or e.methods:
        paths = _gaps_and_shortfalls(unlearnings, scenario, setting, method)
        if not paths:
            continue
        last = max(len(path) for path in paths)
        mean = np.mean([_extended(path, last) for path in paths], axis=0)  # (rounds, 2)
        ended = [run.metrics["test"]["reached"] for run in runs_of(unlearnings, scenario, setting, method)]
        gave_up = 0 if last == 1 or method == "Natural" else ended.count(False)  # neither can
        name = f"{method}, gave up {gave_up} of {len(ended)}" if gave_up else method
        look: dict[str, Any] = {"color": colour(method), "linestyle": linestyle(method), "label": name}
        ax.plot(*mean.T, marker=".", markersize=3, **look)
        inside = "white" if gave_up else colour(method)
        ax.plot(*mean[-1], "o", markersize=8, color=colour(method), markerfacecolor=inside, zorder=4)
        reach.append(float(mean[:, 0].max()))
    _mark_references(ax, unlearnings, scenario, setting)
    for scale, axis in ((ax.set_xscale, ax.xaxis), (ax.set_yscale, ax.yaxis)):
        scale("symlog", linthresh=1.0, linscale=0.5)  # linear up to a point: the end matters, the beginning is far away
        axis.set_major_locator(FixedLocator(POINTS))
        axis.set_major_formatter(ScalarFormatter())
        axis.set_minor_locator(NullLocator())
    ax.set_xlim(right=max(reach) * 1.1)
    ax.set_ylim(bottom=0)
    measure = measure_of(setting)
    ax.set(xlabel=f"test shortfall: {measure} below Retrain's", ylabel=f"Δ forget {measure}")
    ax.set_title(f"{title(setting)}: {e.scenario(scenario).heading}", loc="left")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def _gaps_and_shortfalls(
    unlearnings: Unlearnings, scenario: str, setting: str, method: str
) -> list[list[tuple[float, float]]]:
    """(shortfall, forget gap) to Retrain per recovery round, for every run of a method."""
    found = []
    for cell, record in unlearnings.items():
        if (cell.group, cell.setting, cell.method, cell.label) == (scenario, setting, method, "") and record.rounds:
            goal = unlearnings[cell._replace(method="Retrain")].metrics["final"]
            found.append([(goal["test"] - row["test"], abs(row["forget"] - goal["forget"])) for row in record.rounds])
    return found


def _mark_references(ax: Axes, unlearnings: Unlearnings, scenario: str, setting: str) -> None:
    """Retrain in the origin, doing nothing, and a box as large as what tells two retrainings apart."""

    def apart(method: str) -> tuple[list[float], list[float]]:
        ends = [
            (unlearnings[cell._replace(method="Retrain")].metrics["final"], record.metrics["final"])
            for cell, record in unlearnings.items()
            if (cell.group, cell.setting, cell.method) == (scenario, setting, method)
        ]
        return [a["test"] - b["test"] for a, b in ends], [abs(a["forget"] - b["forget"]) for a, b in ends]

    shortfalls, gaps = apart(AGAIN)
    width, height = float(np.mean(np.abs(shortfalls))), float(np.mean(gaps))
    ax.add_patch(Rectangle((-width, 0), 2 * width, height, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor"))
    shortfalls, gaps = apart("Original")
    ax.plot(np.mean(shortfalls), np.mean(gaps), "X", color=colour("Original"), markersize=10, label="Original")
    ax.plot(0, 0, "*", color=colour("Retrain"), markersize=14, label="Retrain", zorder=5, clip_on=False)


def natural_curve(e: Experiment, runs: pd.DataFrame, unlearnings: Unlearnings) -> Figure:
    """Natural's forget gap per round (dots where the paper reads it), beside what PUF ends with, and after how long.

    Mean and spread over runs. PUF: a dot at its mean number of rounds, unlearning and recovery by the paper's stop
    rule, and a line at the mean forget gap of the runs that came back, if any; grey: the noise floor.
    """
    s, natural = e.scenarios()[0], natural_at(unlearnings)
    fig, axes = axes_row(len(s.settings), height=3.4, width=4.4, sharey=True)
    for ax, text in zip(axes, s.settings, strict=True):
        by_round = natural[natural.setting == text].pivot_table(
            index=["seed", "request"], columns="round", values="delta_forget"
        )
        seed_band(ax, [float(k) for k in by_round.columns], by_round.to_numpy(), "Natural")
        read = [k for k in e.natural_rounds if k in by_round]
        ax.plot(read, by_round[read].mean(), "o", color=colour("Natural"), markersize=6)
        for method in PUFS:
            done, _ = completed(rows_of(runs, s.name, text, method, "test"))
            if len(done):
                gap = done.delta_forget.mean()
                ax.axhline(gap, color=colour(method), linestyle=linestyle(method), label=method)
                ax.plot((done.rounds + done.unlearning_rounds).mean(), gap, "o", color=colour(method), markersize=8)
        floor = rows_of(runs, s.name, text, AGAIN, "test").delta_forget.mean()
        ax.axhspan(0, floor, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor")
        ax.set(title=title(text), xlabel="rounds since the request", ylim=(0, None))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel(f"Δ forget {measure_of(s.settings[0])}")
    shown = [ax.get_legend_handles_labels() for ax in axes]  # who always gave up in one setting is in another's
    named = {name: handle for handles, names in shown for handle, name in zip(handles, names, strict=True)}
    axes[-1].legend(list(named.values()), list(named), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return fig


def radar(e: Experiment, runs: pd.DataFrame, setting: str, stop: str = "test") -> Figure:
    """Fig. 1: three differences to Retrain and two costs per method; the smaller polygon is the better one.

    The outer ring is doing nothing (differences, linear) and retraining (costs, logarithmic: the centre is a
    thousandth of it). Means over the runs that came back; a method that always gave up has no polygon, but a note.
    """
    spokes = ["Δ forget acc.", "Δ Song", "bytes sent", "FLOPs", "Δ Yeom"]
    angles = np.linspace(0, 2 * np.pi, len(spokes), endpoint=False)
    fig, ax = _polar(7.2, 4.4)
    nothing = rows_of(runs, "clients", setting, "Original", stop)
    lost = []
    for method in e.methods:
        r, gave_up = completed(rows_of(runs, "clients", setting, method, stop))
        if r.empty:
            lost += [method] if gave_up else []
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
    if lost:
        ax.text(0.5, -0.12, f"always gave up: {', '.join(lost)}", transform=ax.transAxes, ha="center", fontsize=8)
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

    One panel per setting. Means over the sweep's runs that came back; near the origin is good. Open: some gave up;
    where all did, or one diverged, no dot but a note. Stars: Natural, NoT and PGA on the same requests and seeds, tuned
    where the tables are; Natural, which no rule stops, after its last round. Crosses: the paper. Its figures come
    without numbers, so these are the forget gaps of the nearest block of its tables, at the rounds that its printed
    costs imply; those beyond our cap are in the note.
    """
    settings = e.sweep_settings if scenario == "clients" else e.scenario(scenario).settings
    fig, axes = axes_row(len(settings), height=4.0, width=5.6)
    for ax, setting in zip(axes, settings, strict=True):
        swept = runs[(runs.group == scenario) & (runs.setting == setting) & (runs.stop == stop)]
        swept = swept[swept.seed.isin(list(e.few_seeds)) & (swept.label != PUBLISHED)]
        lost = []
        for key, r in swept[swept.label != ""].groupby(["method", "eta_u", "epochs_u"]):
            method, eta_u, epochs_u = cast(tuple[str, float, float], key)
            point = f"{method.removeprefix('PUF-')} {eta_u:g}, $E_u$ = {epochs_u:g}"
            done, gave_up = completed(r)
            if r.delta_forget.isna().any():  # some targets survived it: their mean would flatter it
                lost.append(f"{point} diverged")
                continue
            if done.empty:
                lost.append(f"{point} always gave up")
                continue
            x, y = done.rounds.mean(), done.delta_forget.mean()
            inside, edge = ("white", colour(method)) if gave_up else (colour(method), "white")
            ax.scatter(x, y, marker=MARKERS.get(epochs_u, "v"), s=45, facecolor=inside, edgecolor=edge, zorder=3)
            side, dx = ("right", -5) if method == PUFS[0] else ("left", 5)
            ax.annotate(f"{eta_u:g}", (x, y), xytext=(dx, 4), textcoords="offset points", ha=side, fontsize=8)
        for method in SWEPT_AGAINST:
            r = swept[(swept.method == method) & (swept.label == "")]
            done, gave_up = completed(r)
            if len(done):
                place, inside = (done.rounds.mean(), done.delta_forget.mean()), "white" if gave_up else colour(method)
                ax.scatter(*place, facecolor=inside, edgecolor=colour(method), marker="*", s=130, zorder=2)
            elif gave_up:
                lost.append(f"{method} always gave up")
        printed = _papers_points(scenario, setting)
        for method, rounds, gap in printed:
            if rounds <= e.recovery_cap:
                ax.scatter(rounds, gap, color=colour(method), marker="x", s=40, zorder=2, gid="paper")
            else:
                lost.append(f"paper's {method} at {rounds:g} rounds")
        _sweep_legend(ax, swept, bool(printed))
        if lost:
            told = textwrap.fill(f"not shown: {'; '.join(lost)}", 60)
            ax.text(0.5, -0.2, told, transform=ax.transAxes, ha="center", va="top", fontsize=8)
        ax.set(title=title(setting), xlabel="recovery rounds", ylabel=f"Δ forget {measure_of(setting)}", ylim=(0, None))
    return fig


def _papers_points(scenario: str, setting: str) -> list[tuple[str, float, float]]:
    """(method, recovery rounds, forget gap) of the nearest block of the paper's tables."""
    place = beside(scenario, setting)
    if place is None:
        return []
    printed = published("puf", f"table_{place[0]}")
    implied = implied_rounds()
    implied = implied[(implied.table == place[0].upper()) & (implied.setting == place[1])]
    rows = printed[printed.setting == place[1]].merge(implied[["method", "rounds"]], on="method")
    rows = rows[rows.method.isin([*PUFS, *SWEPT_AGAINST])]
    return list(zip(rows.method, rows.rounds, rows.forget_acc_delta, strict=True))


def _sweep_legend(ax: Axes, swept: pd.DataFrame, printed: bool) -> None:
    """Colours for methods, markers for E_u; the numbers beside the dots are eta_u."""
    for method in (*PUFS, *SWEPT_AGAINST):
        if (swept.method == method).any():
            marker = "o" if method in PUFS else "*"
            ax.scatter([], [], color=colour(method), marker=marker, label=method)
    for epochs_u in sorted(swept[swept.label != ""].epochs_u.dropna().unique()):
        marker = MARKERS.get(float(epochs_u), "v")
        ax.scatter([], [], color="#777777", marker=marker, label=f"$E_u$ = {epochs_u:g}")
    if printed:
        ax.scatter([], [], color="#777777", marker="x", label="paper")
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


def _extended(values: Sequence[Any], length: int) -> list[Any]:
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
