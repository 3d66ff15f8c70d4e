"""PUF's figures, drawn from run records only. Numbers as in the paper: Figs. 1 to 6.

Every function takes the experiment and records or the frame of `results`; nothing here trains.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from fu_papers.evidence import completed, for_means, mostly_gave_up
from fu_papers.look import LINE, colour, label_dots, linestyle, marker, published, say_below, seed_band
from fu_papers.problem_figures import FLOOR, axes_row, counted, legend_entries, title
from fu_papers.problems import Setting
from fu_papers.puf.costs import implied_rounds
from fu_papers.puf.grid import AGAIN, NOTHING, PUBLISHED, PUFS, REFERENCES, SWEPT_AGAINST, Experiment, Scenario
from fu_papers.puf.printed_tables import beside
from fu_papers.puf.results import ATTACKS, Trainings, Unlearnings, natural_at, rows_of
from fu_papers.study import Cell

BEYOND = 1.5  # of the largest number of ours: what is farther up has a note, and does not press ours together
LEAST_COST = 0.1  # percent of retraining's; what costs less stands there
Curve = Sequence[Mapping[str, float]]  # a row of metrics per recovery round
References = Mapping[str, Mapping[str, float]]  # method -> metrics
MARKERS = {1.0: "o", 2.0: "s", 5.0: "^", 10.0: "D"}  # per E_u
AT_THE_EDGE: dict[str, Any] = {"ha": "right", "va": "bottom"}  # above its line: what lies beyond the frame


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
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    told = f"{counted(len(s.seeds), 'seed')} (Retrain: × {counted(len(s.requests), 'request')})"
    say_below(fig, f"Mean of {told}; band: ± standard deviation")
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
    say_below(fig, f"A line: one of {runs_in(s)}")
    return fig


def runs_in(s: Scenario) -> str:
    """How many runs a method has in a scenario, in words."""
    seeds, requests = len(s.seeds), len(s.requests)
    return f"{counted(seeds * requests, 'run')} ({counted(seeds, 'seed')} × {counted(requests, 'request')})"


def natural_curve(e: Experiment, runs: pd.DataFrame, unlearnings: Unlearnings) -> Figure:
    """Natural's forget gap per round (dots where the paper reads it), beside what PUF ends with, and after how long.

    Mean and spread over runs. PUF: a dot at its mean number of rounds, unlearning and recovery by the paper's stop
    rule, with a bar for their spread, and a line at the mean forget gap of the runs that came back; the dot open where
    some gave up, nothing where half did; grey: the noise floor.
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
            rows = rows_of(runs, s.name, text, method, "test")
            done, gave_up = for_means(rows)
            if len(done):
                gap, filled = done.delta_forget.mean(), _filled_if_all(method, gave_up)[0]
                ax.axhline(gap, color=colour(method), linestyle=linestyle(method), label=method)
                rounds, reach = (done.rounds + done.unlearning_rounds).mean(), done.delta_forget.std()
                ends = [[min(reach, gap)], [reach]]  # a distance is not below 0
                ax.errorbar(rounds, gap, ends, fmt="o", color=colour(method), mfc=filled, ms=8, capsize=4)
        floor = rows_of(runs, s.name, text, AGAIN, "test").delta_forget.mean()
        ax.axhspan(0, floor, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor")
        ax.set(title=title(text), xlabel="rounds since the request")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylim(bottom=0)  # which all share, and whose top would stay where it is from here on
    axes[0].set_ylabel(f"Δ forget {difference_of(s.settings[0])}")
    named = legend_entries(axes)  # who always gave up in one setting is in another's
    axes[-1].legend(list(named.values()), list(named), loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    say_below(fig, f"Mean of {runs_in(s)} ± s.d.; PUF: who came back; open: some gave up, none: half did")
    return fig


def metrics(e: Experiment, runs: pd.DataFrame, setting: str, stop: str = "test") -> Figure:
    """Fig. 1, whose polygons are dots here: three differences to Retrain and two costs per method; left is better.

    Differences in points, each with what doing nothing amounts to (dotted) and what tells two retrainings apart (grey);
    costs in percent of retraining's, on a logarithmic axis that ends at a thousandth. A small dot per run that came
    back, a large one for their mean, open where some gave up, none where half did; who always gave up has a note. Axes
    of differences end a third beyond the largest mean, or what doing nothing amounts to: of a run beyond, an arrow
    tells where it is.
    """
    panels = [
        (f"delta_{name}", head) for name, head in zip(ATTACKS, ("Δ forget acc.", "Δ Song", "Δ Yeom"), strict=True)
    ]
    panels += [("bytes_gain", "bytes sent"), ("images_gain", "FLOPs")]
    rows = {method: rows_of(runs, "clients", setting, method, stop) for method in e.methods}
    shown = {method: completed(r) for method, r in rows.items() if len(r)}
    fig, axes = axes_row(len(panels), height=0.27 * len(shown) + 1.6, width=2.3, sharey=True)
    for ax, (column, head) in zip(axes, panels, strict=True):
        nothing, floor = (rows_of(runs, "clients", setting, m, stop)[column].mean() for m in ("Original", AGAIN))
        reach = 1.35 * max(nothing, floor, *(r[column].mean() for r, _ in shown.values() if len(r)))
        for place, (method, (r, gave_up)) in enumerate(shown.items()):
            if len(r):
                values = r[column] if column.startswith("delta") else _percent_of_retraining(r[column])
                look: dict[str, Any] = {"color": colour(method), "linewidth": 0}
                inside = values[values <= reach] if column.startswith("delta") else values
                ax.scatter(inside, [place] * len(inside), s=14, alpha=0.5, zorder=2, **look)
                if not _no_place(rows[method]):
                    filled, edge = _filled_if_all(method, gave_up)
                    ax.scatter(
                        values.mean(), place, s=60, marker=marker(method), facecolor=filled, edgecolor=edge, zorder=3
                    )
                if len(inside) < len(values):
                    beyond = ", ".join(f"{value:.0f}" for value in sorted(values[values > reach]))
                    ax.text(1.07 * reach, place - 0.2, f"{beyond} →", color=colour(method), fontsize=8, **AT_THE_EDGE)
        if column.startswith("delta"):
            ax.axvline(nothing, color=colour("Original"), linestyle=":", label="doing nothing")
            ax.axvspan(0, floor, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor")
            ax.set(xlabel="points", xlim=(-0.05 * reach, 1.08 * reach))
        else:
            ax.axvline(100, color=colour("Retrain"), linestyle="--", label="retraining")
            ax.set(xscale="log", xlabel="% of retraining", xlim=(0.6 * LEAST_COST, max(250.0, 1.5 * ax.dataLim.x1)))
            ax.set_xticks([0.1, 1, 10, 100], labels=["≤0.1", "1", "10", "100"])
            ax.minorticks_off()
        ax.set_title(head, fontsize=11)
        ax.tick_params(labelsize=9)
    axes[0].set_yticks(range(len(shown)), labels=[_came_back(m, r, rows[m]) for m, (r, _) in shown.items()])
    axes[0].set_ylim(len(shown) - 0.5, -0.5)
    for place, (r, _) in enumerate(shown.values()):
        if r.empty:
            at: dict[str, Any] = {
                "transform": axes[0].get_yaxis_transform(),
                "va": "center",
                "ha": "center",
                "fontsize": 9,
                "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1.5},
            }
            axes[0].text(0.5, place, "always gave up", color=LINE, **at)
    handles, labels = axes[0].get_legend_handles_labels()
    more_handles, more_labels = axes[-1].get_legend_handles_labels()
    fig.legend([*handles, *more_handles], [*labels, *more_labels], loc="outside upper left", ncols=3,
               title=title(setting), alignment="left", frameon=False)  # fmt: skip
    runs_each = runs_in(e.scenario("clients"))
    told = "a large one: their mean, open: some gave up, none: half did"
    say_below(fig, f"A small dot: one of at most {runs_each} that came back; {told}")
    return fig


def _came_back(method: str, done: pd.DataFrame, runs: pd.DataFrame) -> str:
    """A method's name, and of how many runs its mean is if some gave up."""
    return method if len(done) in (0, len(runs)) else f"{method} ({len(done)} of {len(runs)})"


def _percent_of_retraining(gain: pd.Series) -> pd.Series:
    """What runs cost, of retraining; who spent nothing stands at the axis' end."""
    return (100 / gain).fillna(0.0).clip(lower=LEAST_COST)


def operating_modes() -> Figure:
    """Fig. 2, redrawn: who sends an update in a Regular and in a Special round, and with which sign it counts.

    Everybody sends an update of the same kind; the sign is the server's.
    """
    fig, axes = axes_row(2, height=3.6, width=4.8)
    for ax, (name, active) in zip(axes, (("PUF-Regular", True), ("PUF-Special", False)), strict=True):
        ax.set(xlim=(-0.6, 3.6), ylim=(-0.5, 3.0), xticks=[], yticks=[])
        ax.axis("off")
        server = FancyBboxPatch((-0.35, 1.85), 3.7, 0.95, boxstyle="round,pad=0.1", facecolor="#eeeeee", edgecolor=LINE)
        ax.add_patch(server)
        step = r"$w_t + \eta_s(\eta_r\Delta^+ - \eta_u\Delta^-)$" if active else r"$w_t - \eta_s\eta_u\Delta^-$"
        ax.text(1.5, 2.6, f"server: {step}", ha="center", va="center")
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
                ink = colour(name) if leaves else "#333333"
                ax.annotate("", (i, 1.75), (i, 0.42), arrowprops={"arrowstyle": "-|>", "color": ink, "linewidth": 1.5})
                ax.text(i + 0.09, 1.05, rf"$\Delta_{i}$", ha="left", va="center", color=ink)
                sign = "\N{MINUS SIGN}" if leaves else "+"
                ax.text(i, 2.06, sign, ha="center", va="center", color=ink, fontsize=15, fontweight="bold")
        ax.set_title(name, loc="left")
    say_below(fig, "An arrow: an update, new model less old; the sign in the box: what the server does with it")
    return fig


def sweep_scatter(e: Experiment, runs: pd.DataFrame, scenario: str = "clients", stop: str = "test") -> Figure:
    """Fig. 5 (and 6, for segmentation): recovery rounds against what is left of the forget gap, per (eta_u, E_u).

    One panel per setting. A line joins the rates eta_u of one mode and E_u, in their order. Means over the sweep's runs
    that came back; near the origin is good. Open: some gave up; where half did, or one diverged, no dot but a note.
    Stars: Natural, NoT and PGA on the same requests and seeds, tuned where the tables are; Natural, which no rule
    stops, after its last round. Dotted: doing nothing; grey: the noise floor; of the same requests and seeds. Crosses:
    the paper. Its figures come without numbers, so these are the forget gaps of the nearest block of its tables, at the
    rounds that its printed costs imply; those beyond our cap, or far above all that is ours, are in the note.
    """
    settings, seeds = e.swept_settings(scenario), e.swept_seeds(scenario)
    fig, axes = axes_row(len(settings), height=4.2, width=7.0)
    names: list[list[tuple[float, float, str, str]]] = []
    for ax, setting in zip(axes, settings, strict=True):
        swept = runs[(runs.group == scenario) & (runs.setting == setting) & (runs.stop == stop)]
        swept = swept[swept.seed.isin(list(seeds)) & (swept.label != PUBLISHED)]
        lost = []
        labels: list[tuple[float, float, str, str]] = []
        ways: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
        for key, r in swept[swept.label != ""].groupby(["method", "eta_u", "epochs_u"]):
            method, eta_u, epochs_u = cast(tuple[str, float, float], key)
            point = f"{method.removeprefix('PUF-')} {eta_u:g}, $E_u$ = {epochs_u:g}"
            done, gave_up = completed(r)
            if r.delta_forget.isna().any():  # some targets survived it: their mean would flatter it
                lost.append(f"{point} diverged")
                continue
            if why := _no_place(r):
                lost.append(f"{point} {why}")
                continue
            x, y = done.rounds.mean(), done.delta_forget.mean()
            inside, edge = _filled_if_all(method, gave_up)
            ax.scatter(x, y, marker=MARKERS.get(epochs_u, "v"), s=45, facecolor=inside, edgecolor=edge, zorder=3)
            labels.append((x, y, f"{eta_u:g}", colour(method)))
            ways.setdefault((method, epochs_u), []).append((eta_u, x, y))
        for (method, epochs_u), way in ways.items():
            _, xs, ys = zip(*sorted(way), strict=True)
            dashes = "-" if epochs_u == min(each for _, each in ways) else "--"
            ax.plot(xs, ys, color=colour(method), linestyle=dashes, linewidth=1.0, alpha=0.7, zorder=2)
        others, stars = swept[swept.label == ""], []
        for method in SWEPT_AGAINST:
            done, gave_up = completed(r := others[others.method == method])
            if why := _no_place(r):
                lost.append(f"{method} {why}")
            elif len(done):
                stars.append(method)
                place, inside = (done.rounds.mean(), done.delta_forget.mean()), "white" if gave_up else colour(method)
                ax.scatter(*place, facecolor=inside, edgecolor=colour(method), marker="*", s=130, zorder=2)
        nothing, floor = (others[others.method == each].delta_forget.mean() for each in (NOTHING, AGAIN))
        ax.axhline(nothing, color=colour(NOTHING), linestyle=":", zorder=1, label="doing nothing")
        ax.axhspan(0, floor, color=FLOOR, alpha=0.6, linewidth=0, label="noise floor", zorder=0)
        top = BEYOND * max([nothing, floor, *(float(y) for _, y in _places(ax))])
        crosses: list[str] = []
        for method, rounds, gap in _papers_points(scenario, setting):
            if rounds > e.cap_of(scenario):
                lost.append(f"paper's {method} at {rounds:.3g} rounds")
            elif gap > top:
                lost.append(f"paper's {method} at {gap:.3g} points")
            else:
                ax.scatter(rounds, gap, color=colour(method), marker="x", s=40, zorder=2, gid="paper")
                crosses.append(method)
        _sweep_legend(ax, [*(method for method, _ in ways), *stars], swept, crosses)
        if lost:
            told = textwrap.fill(f"not shown: {'; '.join(lost)}", 85)
            ax.text(0.5, -0.2, told, transform=ax.transAxes, ha="center", va="top", fontsize=8)
        ax.set(title=title(setting), xlabel="recovery rounds", ylabel=f"Δ forget {difference_of(setting)}")
        ax.margins(0.08)
        ax.set_ylim(bottom=0)
        names.append(labels)
    _one_legend_for_equal_ones(axes)
    for ax, labels in zip(axes, names, strict=True):
        label_dots(ax, labels, off_lines=True)
    requests = counted(len(e.scenario(scenario).requests), "request")
    told = f"the mean of at most {counted(len(seeds), 'seed')} × {requests}"
    say_below(fig, f"A dot: {told}; open: some of them gave up; lines join the η_u of one E_u")
    return fig


def _no_place(runs: pd.DataFrame) -> str:
    """Why a rate's or a method's runs have no mean to be drawn, or "": half gave up, so that few survive."""
    done, gave_up = completed(runs)
    if gave_up and (done.empty or mostly_gave_up(len(runs) - len(done), len(runs))):
        return gave_up if len(done) else "always gave up"
    return ""


def _filled_if_all(method: str, gave_up: str) -> tuple[str, str]:
    """Inside and edge of a mean's dot, which is open if some runs gave up."""
    return ("white", colour(method)) if gave_up else (colour(method), "white")


def _places(ax: Axes) -> list[tuple[float, float]]:
    """Where the dots and stars of a panel are."""
    return [(x, y) for drawn in ax.collections for x, y in np.asarray(drawn.get_offsets()).tolist()]


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


def _sweep_legend(ax: Axes, shown: Sequence[str], swept: pd.DataFrame, printed: Sequence[str]) -> None:
    """Colours for the methods that are shown, markers for E_u; the numbers beside the dots are eta_u.

    printed: of whom there is a cross of the paper's; one that has no run of ours here has a name of its own.
    """
    for method in (*PUFS, *SWEPT_AGAINST):
        if method in shown:
            marker = "o" if method in PUFS else "*"
            ax.scatter([], [], color=colour(method), marker=marker, label=method)
    for epochs_u in sorted(swept[swept.label != ""].epochs_u.dropna().unique()):
        marker = MARKERS.get(float(epochs_u), "v")
        ax.scatter([], [], color="#777777", marker=marker, label=f"$E_u$ = {epochs_u:g}")
    if any(method in shown for method in printed):
        ax.scatter([], [], color="#777777", marker="x", label="paper")
    for method in printed:
        if method not in shown:
            ax.scatter([], [], color=colour(method), marker="x", label=f"paper's {method}")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, title="number: $\\eta_u$", title_fontsize=9,
              frameon=False)  # fmt: skip


def _one_legend_for_equal_ones(axes: Sequence[Axes]) -> None:
    """Of neighbours whose legends say the same the last keeps its own."""
    for ax, following in itertools.pairwise(axes):
        here, there = ax.get_legend(), following.get_legend()
        if here and there and _said(here) == _said(there):
            here.remove()


def _said(legend: Legend) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def live_figure(curve: Curve, references: References, head: str) -> Figure:
    """The recovery curve behind the notebook's sliders, for one run; `references`: method -> metrics."""
    fig, axes = axes_row(2, height=3.2, width=4.6)
    for ax, metric in zip(axes, ("test", "forget"), strict=True):
        ax.plot([row["round"] for row in curve], [row[metric] for row in curve], "o-", color=colour("PUF-Special"))
        for method, values in references.items():
            ax.axhline(values[metric], color=colour(method), linestyle=linestyle(method), label=method)
        ax.set(xlabel="recovery round", ylabel=f"{metric} accuracy (%)", ylim=(0, 102))
    axes[0].set_title(head, loc="left")
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    say_below(fig, "One run")
    return fig


def measure_of(setting: str) -> str:
    """What is measured on a setting's data: accuracy, or Dice where hospitals draw masks."""
    return "Dice (%)" if Setting.parse(setting).split == "site" else "accuracy (%)"


def difference_of(setting: str) -> str:
    """What two numbers of `measure_of` differ by: points, not percent of anything."""
    return measure_of(setting).replace("(%)", "(points)")
