"""Figures of certified DFL's lemmas, theorems and certificate, from the records of theory.PLANS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from fu_papers.certified_dfl.drawn_graphs import draw_links, layout
from fu_papers.certified_dfl.theory_audit import FIRST, OUTPUTS
from fu_papers.certified_dfl.theory_problems import SAMPLES
from fu_papers.certified_dfl.theory_tables import SPLIT_NAMES, audit_title
from fu_papers.convex import slope
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, linestyle, say_below
from fu_papers.problem_figures import axes_row

SOURCE = (
    "Breast Cancer Wisconsin (bundled with scikit-learn), standardised, rows of length 1, ten clients of 40 rows "
    "(Fisher: all rows, L2 0.01); graphs and regressions generated where said"
)
PRINTED, CORRECTED = colour("DU printed"), colour("DU")
STRONG = "#c8643c"  # the colour of printed forms, for small marks
TOPOLOGY_NAMES = {"ring": "ring", "erdos_renyi": "Erdős–Rényi 0.4", "complete": "complete", "star": "star",
                  "torus": "torus 3 × 4"}  # fmt: skip
TOPOLOGY_COLOURS = dict(zip(TOPOLOGY_NAMES, map(colour, ("DU", "PDUDT", "Retrain", "FedEraser", "Fine-tune")),
                            strict=True))  # fmt: skip
GENERATED = "graphs and ridge regressions, generated"  # of the first kinds: mixing, fixed_point, exactness
CLIENT_DASHES = ("-", "--", "-.", ":")
HETEROGENEITY_LOOKS = (("#e69f00", "o"), (STRONG, "s"), ("#6b2d0c", "^"))  # of clients, the darker the more
OUTPUT_MARKERS = dict(zip(OUTPUTS, "os^", strict=True))


# --- mixing and D-PSGD -----------------------------------------------------------------------------------------------


def mixing_figure(records: Sequence[Record]) -> Figure:
    """The graphs, the eigenvalues of their mixing matrices, and Lemma 1: error and bound per round of mixing."""
    fig = plt.figure(figsize=(11, 6.6))
    grid = fig.add_gridspec(2, 2 * len(records), height_ratios=(1, 2))
    left, right = fig.add_subplot(grid[1, : len(records)]), fig.add_subplot(grid[1, len(records) :])
    for place, record in enumerate(records):
        name = record.config["topology"]
        hue, m = TOPOLOGY_COLOURS[name], record.metrics
        _draw_graph(fig.add_subplot(grid[0, 2 * place : 2 * place + 2]), record, hue)
        left.scatter(m["eigenvalues"], [place] * len(m["eigenvalues"]), s=30, color=hue, alpha=0.6, linewidth=0)
        slowest = max(m["eigenvalues"][1:], key=abs)
        left.scatter(slowest, place, s=110, facecolors="none", edgecolors="black", linewidths=1.2)
        k = np.arange(1, len(m["errors"]) + 1)
        if m["rho"] > 1e-15:
            right.plot(k, m["bounds"], color=hue, linewidth=6, alpha=0.3)
            right.plot(k, m["errors"], color=hue, linewidth=1.4)
            lowest = max(np.flatnonzero(np.array(m["errors"]) > 1e-12))  # where the line leaves the frame
            right.annotate(TOPOLOGY_NAMES[name], (k[lowest], m["errors"][lowest]), xytext=(6, 8), fontsize=10,
                           textcoords="offset points", color=hue)  # fmt: skip
    left.set(xlim=(-0.6, 1.08), xlabel="eigenvalues of Q; circled: the one that decides", yticks=range(len(records)))
    left.set_yticklabels([f"{TOPOLOGY_NAMES[r.config['topology']]}\nρ = {r.metrics['rho']:.3f}" for r in records])
    left.invert_yaxis()
    left.grid(axis="y", visible=False)
    right.set(
        yscale="log", ylim=(1e-12, 2), xlabel="k, rounds of mixing", xlim=(0, 1.2 * len(records[0].metrics["errors"]))
    )
    right.set_ylabel(r"$\|Q^k - \mathbf{11}^\top/N\|^2$")
    right.set_title(r"thin: measured; wide, pale: the bound $\rho^k$ of Lemma 1", fontsize=10)
    exact = [TOPOLOGY_NAMES[r.config["topology"]] for r in records if r.metrics["rho"] <= 1e-15]
    say_below(fig, "Exact, one graph each" + (f"; {', '.join(exact)}: 0 at k = 1" if exact else ""))
    return fig


def _draw_graph(ax: Axes, record: Record, hue: str) -> None:
    topology = record.config["topology"]
    graph: Any = nx.Graph(map(tuple, record.metrics["edges"]))
    at = layout(topology, graph.number_of_nodes())
    draw_links(ax, topology, graph, at, linewidths=0.8)
    dots = np.array([at[i] for i in sorted(graph)])
    ax.scatter(dots[:, 0], dots[:, 1], s=45, color=hue, linewidth=0, zorder=2)
    ax.set_title(TOPOLOGY_NAMES[topology])


# --- exactness -------------------------------------------------------------------------------------------------------


def exactness_figure(records: Sequence[Record]) -> Figure:
    """Distance to retraining against the share deleted by every client: the printed error is of first order.

    Lines are means over draws, bars from the least to the largest; one line per heterogeneity of the clients.
    """
    fig, (top, bottom) = plt.subplots(2, 1, figsize=(9.0, 6.0), sharex=True, height_ratios=(3, 1))
    share = np.array([row["m"] / SAMPLES for row in records[0].metrics["growth"]])
    for record, (hue, mark), aside in zip(records, HETEROGENEITY_LOOKS, (0.97, 1.0, 1.03), strict=False):
        rows = record.metrics["growth"]
        for ax, form in ((top, "printed"), (bottom, "corrected")):
            means = [float(np.mean(row[form])) for row in rows]
            reach = [[mean - min(row[form]), max(row[form]) - mean] for mean, row in zip(means, rows, strict=True)]
            ax.errorbar(share * aside, means, yerr=np.transpose(reach), marker=mark, markersize=6, color=hue, capsize=2,
                        elinewidth=1.0)  # fmt: skip
            if ax is top:
                named = f"heterogeneity {record.config['heterogeneity']:g}:\nslope {slope(list(share), means):.2f}"
                ax.annotate(named, (share[-1] * aside, means[-1]), xytext=(12, 0), textcoords="offset points",
                            va="center", fontsize=10, color=hue)  # fmt: skip
    ends, start = share[[0, -1]], float(np.mean(records[-1].metrics["growth"][0]["printed"]))
    for power, dash, text in ((1, "--", "slope 1"), (2, ":", "slope 2, as Lemma 3 says")):
        top.plot(ends, start * (ends / ends[0]) ** power, color=LINE, linestyle=dash, linewidth=1.2)
        top.annotate(text, (ends[1], start * (ends[1] / ends[0]) ** power), xytext=(12, 4), textcoords="offset points",
                     va="center", fontsize=10, color=LINE)  # fmt: skip
    top.set(xscale="log", yscale="log", title="as printed: an error of first order")
    bottom.set(yscale="log", ylim=(1e-17, 1e-13), title="corrected: rounding")
    bottom.set_xlabel("share of every client's samples deleted, m/n")
    bottom.set_xticks(share, labels=[f"{s:g}" for s in share])
    bottom.minorticks_off()
    fig.supylabel(r"$|\hat x - x^\prime|$ on ridge regression", fontsize=11)
    draws = len(records[0].metrics["growth"][0]["printed"])
    say_below(fig, f"{draws} draws each: means, and from the least to the largest (bars)")
    return fig


# --- Lemmas 2 and 3 --------------------------------------------------------------------------------------------------


def bounds_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per run and number of deleted samples; the columns of `rows`, with loss, split and l2."""
    return pd.DataFrame(
        {**{key: r.config[key] for key in ("loss", "split", "l2")}, **row} for r in records for row in r.metrics["rows"]
    )


def bounds_figure(records: Sequence[Record]) -> Figure:
    """Measured over bound for Lemmas 2 and 3 on logistic regression; on ridge, where the bound is 0, the distance."""
    frame = bounds_frame(records)
    frame["place"] = frame.l2.map({l2: i for i, l2 in enumerate(sorted(frame.l2.unique()))}) + 0.0
    logistic, ridge = frame[frame.loss == "logistic"], frame[frame.loss == "ridge"]
    fig, (first, second, third) = axes_row(3, height=4.2, width=4.2)
    _dots(first, logistic, logistic["shift"] / logistic.lemma_2, LINE, 0.0)
    first.set(title="Lemma 2, logistic", ylabel="measured / bound")
    for form, hue, shift in (("printed", PRINTED, -0.12), ("corrected", CORRECTED, 0.12)):
        _dots(second, logistic, logistic[form] / logistic.lemma_3, hue, shift)
        _dots(third, ridge, ridge[form] / ridge["shift"], hue, shift)
    second.set(title="Lemma 3, logistic", ylabel="measured / bound")
    third.set(title="Lemma 3, ridge: the bound is 0", ylabel="distance / that of doing nothing")
    for ax in (first, second):
        ax.set(yscale="log", ylim=(1e-9, 300))
        ax.axhspan(1, 300, color=PRINTED, alpha=0.15, linewidth=0)
        ax.text(0.02, 0.93, "bound violated", transform=ax.transAxes, va="top", fontsize=9, color=LINE)
    third.set(yscale="log", ylim=(1e-16, 300))
    third.axhline(1, color=colour("Original"), linestyle=linestyle("Original"))
    labels = [f"{l2:g}" for l2 in sorted(frame.l2.unique())]
    for ax in (first, second, third):
        ax.set_xlabel(r"$\lambda$")
        ax.set_xticks(range(len(labels)), labels=labels)
        ax.grid(axis="x", visible=False)
    handles = [
        Line2D([], [], color=hue, marker="o", linestyle="", label=f"{form} step")
        for form, hue in (("printed", PRINTED), ("corrected", CORRECTED))
    ]
    handles += [
        Line2D([], [], color=LINE, marker=mark, linestyle="", label=f"clients: {SPLIT_NAMES[split]}")
        for split, mark in (("iid", "o"), ("dirichlet", "^"))
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    say_below(fig, "A dot: one request, exact; four shares of samples deleted in every column")
    return fig


def _dots(ax: Axes, frame: pd.DataFrame, values: Any, hue: str, shift: float) -> None:
    """A dot per run and m at its lambda, splits side by side."""
    for split, mark, aside in (("iid", "o", -0.04), ("dirichlet", "^", 0.04)):
        here = frame.split == split
        ax.scatter(
            frame[here].place + shift + aside, values[here], s=28, marker=mark, color=hue, alpha=0.75, linewidth=0
        )


# --- audit -----------------------------------------------------------------------------------------------------------


def audit_figure(records: Sequence[Record]) -> Figure:
    """Claimed epsilon (bar), audited lower bound (filled) and true epsilon (hollow), per mechanism and output.

    A panel per way to train; a dot per case in it (who holds what, and who asks), so that dots on one side of the bar
    say the same of all cases. What claims more than can be audited has no bar, and what it claims beside it.
    """
    ways = list(dict.fromkeys(_trained(r) for r in records))
    names = list(dict.fromkeys(_audit_label(row) for r in records for row in r.metrics["rows"]))
    size = (3.2 + 4.6 * len(ways), 1.6 + 0.68 * len(names))
    fig, axes = plt.subplots(1, len(ways), figsize=size, squeeze=False, sharex=True, sharey=True)
    for ax, way in zip(axes[0], ways, strict=True):
        _draw_audit(ax, [r for r in records if _trained(r) == way], names)
        ax.set(title=way, xlabel="ε at δ = 1e-5")
    handles = [
        Line2D([], [], color=LINE, marker=mark, linestyle="", label=output) for output, mark in OUTPUT_MARKERS.items()
    ]
    handles += [
        Line2D([], [], color="black", marker="|", markersize=14, markeredgewidth=2.5, linestyle="", label="claimed ε"),
        Line2D([], [], color=LINE, marker="h", linestyle="", label="filled: proved by the audit"),
        Line2D([], [], color=LINE, marker="h", fillstyle="none", linestyle="", label="hollow: true ε"),
        Line2D([], [], color=LINE, linestyle=":", label="most the audit can prove"),
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    cases = max(sum(_trained(r) == way for r in records) for way in ways)
    say_below(fig, f"A dot: one of {cases} cases (who holds what, who asks)")
    return fig


def _trained(record: Record) -> str:
    """How the models of an audit were trained, as its title begins."""
    return audit_title(record).split(";")[0].rpartition(", ")[0]


def _audit_label(row: dict[str, Any]) -> str:
    beside = ",\nagainst D-PSGD" if row["mechanism"].startswith("corrected") and row["reference"] != "x'" else ""
    return row["mechanism"].replace(", ", ",\n", 1) + beside


def _draw_audit(ax: Axes, records: Sequence[Record], names: list[str]) -> None:
    seen = min(r.metrics["largest"] for r in records)
    beyond = 1.12 * max(r.metrics["largest"] for r in records)  # where true epsilons are that no audit could prove
    ax.axvline(seen, color=LINE, linestyle=":", linewidth=1.2)
    for place in range(1, len(names), 2):
        ax.axhspan(place - 0.5, place + 0.5, color="#000000", alpha=0.035, linewidth=0)
    rows = [row for r in records for row in r.metrics["rows"]]
    for row in [row for row in rows if row["distinct"]]:
        place = names.index(_audit_label(row))
        y = place + 0.26 * (list(OUTPUTS).index(row["output"]) - 1)
        hue = CORRECTED if row["mechanism"].startswith("corrected") else STRONG
        mark, true = OUTPUT_MARKERS[row["output"]], beyond if row["true"] is None else min(row["true"], beyond)
        ax.scatter(true, y, s=46, marker=mark, facecolors="none", edgecolors=hue)
        ax.scatter(row["audited"], y, s=40, marker=mark, color=hue, alpha=0.8, linewidth=0, zorder=3)
        if row["counted"]:
            ax.plot([row["claimed"]] * 2, [place - 0.42, place + 0.42], color="black", linewidth=2.5)
    for place, name in enumerate(names):
        here = [row for row in rows if _audit_label(row) == name]
        uncounted = [row["claimed"] for row in here if not row["counted"]]
        note = f"claims ε = {_short(min(uncounted))} and more: not counted" if uncounted else ""
        note = note if here else "the same: retraining is exact"
        if note:
            ax.text(seen / 4, place, note, fontsize=8.5, va="center", color=LINE)
    ax.set(xlim=(-1, beyond + 1.5), ylim=(len(names) - 0.5, -0.5))
    ticks = range(0, math.ceil(seen), 5)
    ax.set_xticks([*ticks, beyond], labels=[*map(str, ticks), "more"])
    ax.set_yticks(range(len(names)), labels=names, fontsize=9)
    ax.grid(axis="y", visible=False)


def _short(epsilon: float) -> str:
    """A large number as 4e2."""
    return f"{epsilon:.0e}".replace("e+0", "e").replace("e+", "e")


def whole_figure(records: Sequence[Record]) -> Figure:
    """Whole releases, a dot per case: claimed epsilon (bar), proved (filled), true (hollow); below, what is planted.

    A grey line is how far the audit with fewest releases could see.
    """
    rows = [row for planted in (False, True) for r in records for row in r.metrics["rows"] if row["planted"] == planted]
    names = list(dict.fromkeys(_whole_label(row) for row in rows))
    beyond = 1.12 * max(row["largest"] for row in rows)
    fig, ax = plt.subplots(figsize=(8.6, 1.4 + 0.42 * len(names)))
    for place, name in enumerate(names):
        here = [row for row in rows if _whole_label(row) == name]
        hue = STRONG if here[0]["planted"] else CORRECTED
        ax.plot([here[0]["claimed"]] * 2, [place - 0.38, place + 0.38], color="black", linewidth=2.5)
        ax.plot([0, min(row["largest"] for row in here)], [place, place], color=LINE, linewidth=0.8, zorder=0)
        for row in here:
            if row["truth"] != "unknown":
                true = beyond if row["true"] is None else min(row["true"], beyond)
                ax.scatter(true, place - 0.16, s=34, facecolors="none", edgecolors=hue)
            ax.scatter(row["audited"], place + 0.16, s=30, color=hue, alpha=0.7, linewidth=0, zorder=3)
    planted = len({_whole_label(row) for row in rows if row["planted"]})
    ax.axhspan(len(names) - planted - 0.5, len(names) - 0.5, color=PRINTED, alpha=0.15, linewidth=0)
    ax.set(xlim=(-0.5, beyond + 1), ylim=(len(names) - 0.5, -0.5), xlabel="ε at δ = 1e-5; shaded: planted")
    ticks = range(0, math.ceil(beyond / 1.12), 5)
    ax.set_xticks([*ticks, beyond], labels=[*map(str, ticks), "more"])
    ax.set_yticks(range(len(names)), labels=names, fontsize=9)
    ax.grid(axis="y", visible=False)
    handles = [
        Line2D([], [], color="black", marker="|", markersize=14, markeredgewidth=2.5, linestyle="", label="claimed ε"),
        Line2D([], [], color=LINE, marker="o", linestyle="", label="proved by the audit"),
        Line2D([], [], color=LINE, marker="o", markerfacecolor="none", linestyle="", label="true ε, or at most"),
        Line2D([], [], color=LINE, linewidth=0.8, label="as far as it could see"),
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    say_below(fig, "A dot: one case (who holds what, who asks)")
    return fig


def _whole_label(row: Mapping[str, Any]) -> str:
    way = ", canaries" if row["by"] == "canaries" else "" if row["output"] == FIRST else f", {row['output']}"
    if row["mechanism"].endswith("each") and row["output"] == FIRST:
        way = f", {FIRST}"
    return f"{row['mechanism']}{way}, ε = {row['claimed']:g}"


# --- Theorem 2 -------------------------------------------------------------------------------------------------------


def risk_figure(records: Sequence[Record]) -> Figure:
    """Excess risk of the printed algorithm, taken apart, and the two terms of Theorem 2, against the share deleted."""
    strengths = list(dict.fromkeys(r.config["l2"] for r in records))
    fig, axes = axes_row(len(strengths), height=4.8, width=6.4)
    for ax, l2 in zip(axes, strengths, strict=True):
        chosen = [r for r in records if r.config["l2"] == l2]
        for r in chosen:
            random = r.config["who"] == "random"
            m, slopes = r.metrics, r.metrics["slopes"]
            label = f"without noise, {'random samples' if random else 'one class'}: {slopes['noise_free']:.2f}"
            ax.plot(m["share"], m["noise_free"], "-o" if random else "-^", markersize=5,
                    color=STRONG if random else PRINTED, label=label)  # fmt: skip
        m, slopes = chosen[0].metrics, chosen[0].metrics["slopes"]
        ax.plot(
            m["share"], m["noise"], "-s", markersize=5, color=colour("Fine-tune"), label=f"noise: {slopes['noise']:.2f}"
        )
        for name, dash, text in (("first", "--", "bound, first term"), ("second", ":", "bound, second term")):
            ax.plot(m["share"], m[name], color=LINE, linestyle=dash, label=f"{text}: {slopes[name]:.2f}")
        if m["second_reach"] != m["second"]:
            ax.plot(m["share"], m["second_reach"], color=LINE, linestyle="-.", label="the same, with a larger L")
        ax.set(xscale="log", yscale="log", title=rf"$\lambda$ = {l2:g}", xlabel="share deleted, m/n")
        ax.set_xticks([0.025, 0.05, 0.1, 0.2], labels=["0.025", "0.05", "0.1", "0.2"])
        ax.minorticks_off()
        ax.legend(title="slope", fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    axes[0].set_ylabel(r"$f(\tilde x) - f(x^*)$ on all data")
    say_below(fig, "A dot: one request, exact; second term: with the paper's L, and with one that holds")
    return fig


# --- by hand ---------------------------------------------------------------------------------------------------------


def by_hand_figure(training: Tensor, distances: Mapping[str, float], sigma: float) -> Figure:
    """A run of D-PSGD and a request, step by step: distances to optima.

    training: (K, N), every client's distance to the optimum of all data, per round; distances: to the optimum of what
    is retained, by name of what is done about the request, "do nothing", "printed" and "corrected" among them; names
    with "noise" are marked as such; sigma: of that noise.
    """
    fig, (left, right) = axes_row(2, height=3.6, width=5.2)
    for i, away in enumerate(training.T):
        left.plot(
            away.numpy(),
            color=colour("Original"),
            alpha=1 - 0.2 * i,
            linestyle=CLIENT_DASHES[i % 4],
            label=f"client {i}",
        )
    left.set(yscale="log", xlabel="round k of D-PSGD", ylabel=r"$|x_{k,i} - x^*|$")
    left.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    hues = {"do nothing": colour("Original"), "printed": PRINTED, "corrected": CORRECTED}
    names = list(distances)
    for place, (name, distance) in enumerate(distances.items()):
        hue = hues.get(name, CORRECTED)
        right.plot(distance, place, "o" if name in hues else "X", color=hue, markersize=10, zorder=3)
        right.annotate(f"{distance:.2g}", (distance, place), xytext=(10, 0), textcoords="offset points", va="center",
                       fontsize=10)  # fmt: skip
    right.axvline(distances["do nothing"], color=LINE, linestyle=":", linewidth=1.2)
    low, high = min(distances.values()), max(distances.values())
    right.set(xscale="log", xlim=(low / 2, 5 * high), xlabel="distance to the retrained model")
    right.set_yticks(range(len(names)), [f"{name}\nσ = {sigma:.2g}" if "noise" in name else name for name in names])
    right.set(ylim=(len(names) - 0.5, -0.5))
    right.grid(axis="y", visible=False)
    say_below(fig, "One run; dotted: doing nothing")
    return fig
