"""Certified DFL's figures, drawn from run records only. Numbers as in the paper: Fig. 1 and 2.

Every function takes the experiment and what the stages' runs returned; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fu_papers import problem_figures
from fu_papers.certified_dfl.drawn_graphs import draw_links, layout
from fu_papers.certified_dfl.grid import DU_FORMS, WHOLE_CLIENTS, Experiment, Place
from fu_papers.certified_dfl.results import (
    Certificates,
    Curves,
    Descriptions,
    Phases,
    Speeds,
    cell_runs,
    graph_of,
    paths,
    releases,
    saved_percent,
    served,
)
from fu_papers.certified_dfl.titles import IN_CURVES, REQUESTS, SERVED, SHOWN, timed_title, topology_title
from fu_papers.look import LINE, colour, linestyle, marker, say_below
from fu_papers.problem_figures import axes_row
from fu_papers.problems import Setting, dataset_title

KIND_LOOKS = {  # of kinds of requests, where no method tells lines apart
    "sample": ("#0072b2", "o"),
    "class": ("#e69f00", "s"),
    "client": ("#009e73", "^"),
    "sequence": ("#cc79a7", "D"),
}

# --- what a removed class leaves behind -------------------------------------------------------------------------------


def removed_class_figure(e: Experiment, runs: pd.DataFrame) -> Figure:
    """Accuracy on the removed class, a dot per run: what there is to forget, and who forgets it. Rows are splits."""
    size = (1.6 + 4.0 * len(e.datasets), 0.9 + 2.0 * len(e.splits))
    fig, axes = plt.subplots(len(e.splits), len(e.datasets), figsize=size, sharex=True, sharey=True, squeeze=False)
    for split, row in zip(e.splits, axes, strict=True):
        for dataset, ax in zip(e.datasets, row, strict=True):
            places = [place for place in e.places() if (place.dataset, place.split) == (dataset, split)]
            if not places:
                ax.axis("off")
                continue
            _removed_class(ax, runs, {place: place.topology == e.topologies[0] for place in places})
            ax.set_title(f"{dataset_title(dataset)}, {Setting.parse(places[0].setting).split_title}")
    for column in axes.T:
        lowest = [ax for ax in column if ax.axison][-1]
        lowest.set_xlabel("accuracy on the removed class (%)")
        lowest.tick_params(labelbottom=True)
    names = [topology_title(topology) for topology in e.topologies]
    graphs = f"hollow: {names[0]}" + "".join(f", filled: {name}" for name in names[1:])
    say_below(fig, f"A dot: one run, {problem_figures.counted(len(e.seeds), 'seed')}; {graphs}")
    return fig


def _removed_class(ax: Axes, runs: pd.DataFrame, places: Mapping[Place, bool]) -> None:
    """One panel: a line per method, the graphs' dots one below the other. places: whether their dots are hollow."""
    methods = ("Original", "Fine-tune", *DU_FORMS, "Retrain")
    for height, method in enumerate(methods):
        for k, (place, hollow) in enumerate(places.items()):
            found = cell_runs(runs, place, "class", method).removed
            at = [height + 0.3 * (k - (len(places) - 1) / 2)] * len(found)
            fill = "none" if hollow else colour(method)
            ax.plot(found, at, marker(method), color=colour(method), markerfacecolor=fill)
    ax.set(xlim=(-4, 104), ylim=(len(methods) - 0.4, -0.6))
    ax.set_yticks(range(len(methods)), labels=[SHOWN[method] for method in methods])
    ax.grid(axis="y", visible=False)


# --- Fig. 1: curves over requests ------------------------------------------------------------------------------------


def curves_figure(e: Experiment, curves: Curves) -> Figure:
    """Fig. 1: test accuracy through training and the requests; top row samples, bottom row one client.

    Lines are means over seeds, bands reach from the lowest seed to the highest. After each request every method has its
    own rounds from the same place on; a thin line waits for the next one.
    """
    granularities = ("sample", "client")
    fig, axes = plt.subplots(2, len(e.datasets), figsize=(5.2 * len(e.datasets), 6.6), squeeze=False)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    for row, granularity in zip(axes, granularities, strict=True):
        for ax, dataset in zip(row, e.datasets, strict=True):
            _curves(ax, paths(curves, dataset, granularity), _training(curves, dataset))
            ax.set_title(f"({next(letters)}) {dataset_title(dataset)}")
        row[0].set_ylabel(f"{REQUESTS[granularity]}\ntest accuracy (%)")
    methods = ["Original", *dict.fromkeys(method for _, _, method, _ in curves)]
    handles = [
        Line2D([], [], label="training, the same for all", color=colour("Original")),
        *(Line2D([], [], label=IN_CURVES[method], **_look(method)) for method in methods),
        Line2D([], [], label="thin: no more rounds", color="#999999", linewidth=0.8),
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
    seeds = "one seed" if len(e.seeds) == 1 else f"mean of {len(e.seeds)} seeds, bands: all of them"
    say_below(fig, f"{seeds[0].upper()}{seeds[1:]}; rounds as many as each method asks for")
    return fig


def _look(method: str) -> dict[str, Any]:
    return {"color": colour(method), "linestyle": linestyle(method)}


def _training(curves: Curves, dataset: str) -> Sequence[Phases]:
    """Of every seed, training first: as those saw it who train again for its history, on all test images. It is the
    same for every method, but a record of it that is read may have looked at some images only."""
    found = paths(curves, dataset, "client")
    return found.get(WHOLE_CLIENTS) or next(iter(found.values()))


def _curves(ax: Axes, found: Mapping[str, Sequence[Phases]], training: Sequence[Phases]) -> None:
    """One panel of Fig. 1, from every seed's phases, method by method; training: see `_training`."""
    one = {method: of_seeds[0] for method, of_seeds in found.items()}  # rounds are the same for all seeds
    K = training[0][0][-1][0]
    requests = len(next(iter(one.values()))) - 1
    width = max(phase[-1][0] for path in one.values() for phase in path[1:])
    end = K + requests * width
    trained = _drawn(ax, training, 0, 0, color=colour("Original"))
    ax.plot([K, end], [trained[-1]] * 2, **_look("Original"))
    inside = list(trained)
    restarts = []
    # Dashes last: lines that lie on each other then show both colours.
    for method, of_seeds in sorted(found.items(), key=lambda item: linestyle(item[0]) != "-"):
        for j in range(1, requests + 1):
            start = K + (j - 1) * width
            accuracies = _drawn(ax, of_seeds, j, start, **_look(method))
            last = start + one[method][j][-1][0]
            ax.plot([last, start + width], [accuracies[-1]] * 2, color=colour(method), lw=0.8)
            # A model that nobody trained yet would press everything else to the upper edge: it leaves the frame.
            inside += list(accuracies[1 if method == "Retrain" else 0 :])
            restarts += [accuracies[0]] if method == "Retrain" else []
    low, high = min(inside), max(inside)
    ax.set(xlim=(0, end), ylim=(low - 0.06 * (high - low), high + 0.18 * (high - low)))
    for j in range(requests):
        ax.axvline(K + j * width, color=LINE, linewidth=1.2, zorder=1)
        name = f"request {j + 1}" if requests > 1 else "request"
        ax.text(K + (j + 0.02) * width, 0.985, name, transform=ax.get_xaxis_transform(), va="top", fontsize=9)
    below = bool(restarts) and max(restarts) < ax.get_ylim()[0]
    ax.set_xlabel("rounds" + (f"  (below the frame: Retrain starts at {min(restarts):.0f} %)" if below else ""))
    ax.grid(axis="x", visible=False)
    ax.set_xticks([0, *(K + j * width for j in range(requests + 1))])  # whole rounds, where something happens
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True))


def _drawn(ax: Axes, of_seeds: Sequence[Phases], phase: int, start: int, **look: Any) -> np.ndarray:
    """Draws a phase from round `start` on, the mean over seeds and a band from lowest to highest; returns the mean."""
    rounds = [start + t for t, _ in of_seeds[0][phase]]
    accuracies = np.array([[accuracy for _, accuracy in path[phase]] for path in of_seeds])
    mean: np.ndarray = accuracies.mean(axis=0)
    if len(of_seeds) > 1:
        ax.fill_between(rounds, accuracies.min(axis=0), accuracies.max(axis=0), color=look["color"], alpha=0.15, lw=0)
    ax.plot(rounds, mean, **look)
    return mean


# --- Fig. 2: time ----------------------------------------------------------------------------------------------------


def time_figure(e: Experiment, speeds: Speeds) -> Figure:
    """Fig. 2: seconds from request to a usable model, on a log scale as in the paper; one thread, no seeds.

    Dots in place of the paper's bars, whose lengths mean nothing on a log scale.
    """
    methods = ("Retrain", *DU_FORMS, "PDUDT")
    fig, axes = axes_row(len(REQUESTS), width=4.9, height=1.5 + 1.0 * len(e.datasets))
    slot = len(methods) + 0.8  # the dots of a data set are in the same places in all three panels
    middles = [place * slot + (len(methods) - 1) / 2 for place in range(len(e.datasets))]
    for ax, letter, (granularity, name) in zip(axes, "abc", REQUESTS.items(), strict=True):
        for place, dataset in enumerate(e.datasets):
            seconds = speeds[dataset, granularity].metrics["seconds"]
            for row, method in enumerate(methods):
                if method not in seconds:
                    continue
                height = place * slot + row
                ax.plot(seconds[method], height, "o", markersize=9, color=colour(method))
                text = _seconds(seconds[method]) + ("" if method == "Retrain" else f", {_saved(seconds, method)}")
                ax.annotate(
                    text, (seconds[method], height), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9
                )
            if place:
                ax.axhline(place * slot - 0.9, color="#dddddd", linewidth=1)
        ax.set(xscale="log", xlabel="seconds (log scale)", title=f"({letter}) {name}")
        ax.set_yticks(middles, labels=[dataset_title(d).replace(", ", ",\n") for d in e.datasets])
        ax.tick_params(axis="y", labelleft=ax is axes[0])
        ax.set_ylim(len(e.datasets) * slot - 0.9, -0.9)
        ax.grid(visible=False)  # would cross the numbers
    everything = [s for record in speeds.values() for m, s in record.metrics["seconds"].items() if m in methods]
    for ax in axes:
        ax.set_xlim(min(everything) / 3, max(everything) * 12)  # room for the numbers
    timed = ", ".join(sorted({str(record.metrics["timed_rounds"]) for record in speeds.values()}))
    names = {method: timed_title(e, method) for method in methods} | {"Retrain": f"Retrain, from {timed} timed rounds"}
    handles = [
        Line2D([], [], color=colour(method), marker="o", markersize=9, linestyle="", label=name)
        for method, name in names.items()
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    say_below(fig, "A dot: one measurement, on one thread")
    return fig


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:#.2g} s"


def _saved(seconds: Mapping[str, float], method: str) -> str:
    percent = saved_percent(seconds, method)
    return f"{percent:.0f} % saved" if percent >= 0 else f"{-percent:.0f} % more"


# --- the certificate -------------------------------------------------------------------------------------------------


def certificate_figure(e: Experiment, certificates: Certificates) -> Figure:
    """What a certificate costs: accuracy and noise per epsilon at the main place; Newton's steps in every cell."""
    place = e.main(e.datasets[0])
    here = {where: record for where, record in certificates.items() if where[:2] == (place, "sample")}
    released, plain = releases(here), served(here)
    fig, (left, middle, right) = axes_row(3, height=4.2, width=4.8)
    for form, method in (("printed", "DU printed"), ("corrected", "DU")):
        by_epsilon = released[(released.form == form) & released.released.astype(bool)].groupby("epsilon")
        look = _look(method) | {"marker": "o", "capsize": 3}
        for ax, name in ((left, "test"), (middle, "ratio")):
            mean, error = by_epsilon[name].mean(), by_epsilon[name].std().fillna(0)
            ax.errorbar(mean.index, mean, yerr=error, label=f"{SHOWN[method]}, with noise", **look)
    left.axhline(plain.test_exact.mean(), label="exact retraining, no noise", **_look("Retrain"))
    left.set(ylim=(0, 102), ylabel="test accuracy (%)", title="(a) accuracy that is left")
    middle.axhline(1, color="#777777", linewidth=1)
    middle.annotate("as long as\nthe model", (1, 1), xycoords=("axes fraction", "data"), xytext=(4, 0), va="center",
                    textcoords="offset points", fontsize=9, color=LINE)  # fmt: skip
    middle.set(yscale="log", ylabel="|noise| / |model| (log scale)", title="(b) how much noise")
    for ax in (left, middle):
        ax.set(xscale="log", xlabel="ε (smaller: stricter)")
        ax.set_xticks(list(e.epsilons), labels=[f"{epsilon:g}" for epsilon in e.epsilons])
        ax.minorticks_off()
    requests = _draw_newton(e, right, certificates)
    handles, names = left.get_legend_handles_labels()
    fig.legend(handles, names, loc="outside upper center", ncols=len(handles), frameon=False)
    said = "(a), (b): mean and standard deviation over seeds; (c): geometric mean and range of requests"
    say_below(fig, f"{plain.seed.nunique()} seeds, {requests} requests; {said}")
    return fig


def _draw_newton(e: Experiment, ax: Axes, certificates: Certificates) -> int:
    """Panel (c): distance to retraining after every Newton step, by kind of request. Returns the number of requests.

    A request that has arrived keeps its distance, so that all of a kind are in every point.
    """
    every = served(certificates)
    every = every[every.steps.map(bool) & every.kind.isin(list(KIND_LOOKS))]
    for place, (kind, (hue, mark)) in enumerate(KIND_LOOKS.items()):
        here = every[every.kind == kind]
        if not len(here):
            continue
        bounds = [
            np.array([step["before"] for step in steps] + [steps[-1]["after"]]) / e.of_dataset("l2", at.dataset)
            for steps, at in zip(here.steps, here.place, strict=True)
        ]
        longest = max(map(len, bounds))
        kept = np.array([[*path, *[path[-1]] * (longest - len(path))] for path in bounds])
        mean = np.exp(np.log(kept).mean(axis=0))
        reach = [mean - kept.min(axis=0), kept.max(axis=0) - mean]
        beside = np.arange(longest) + 0.07 * (place - 1.5)  # bars side by side
        ax.errorbar(beside, mean, yerr=reach, color=hue, marker=mark, markersize=6, elinewidth=1.2, label=SERVED[kind])
    ax.axhline(e.budget, color=LINE, linestyle=":")
    ax.annotate("covered\nby noise", (1, e.budget), xycoords=("axes fraction", "data"), xytext=(4, 0), va="top",
                textcoords="offset points", fontsize=9, color=LINE)  # fmt: skip
    ax.set(yscale="log", ylabel="distance to retraining, at most (log scale)", xlabel="Newton steps")
    ax.set_title("(c) Newton's steps per kind of request")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(loc="upper right", frameon=False, fontsize=9)
    return len(every)


# --- who is linked to whom, who holds what ---------------------------------------------------------------------------


def network_figure(e: Experiment, descriptions: Descriptions) -> Figure:
    """The graphs: a dot per client, the one that leaves in the client-wise runs marked."""
    fig, axes = axes_row(len(e.topologies), height=2.9, width=3.4)
    for ax, topology in zip(axes, e.topologies, strict=True):
        graph = graph_of(next(r for place, r in descriptions.items() if place.topology == topology), e.clients)
        at = layout(topology, e.clients)
        fill = [colour("DU printed") if i == e.leaving else "white" for i in range(e.clients)]
        dots = np.array([at[i] for i in range(e.clients)])
        ax.scatter(dots[:, 0], dots[:, 1], s=330, color=fill, edgecolors="black", zorder=2)
        for i, (x, y) in enumerate(dots):
            ax.text(x, y, str(i), ha="center", va="center", fontsize=10)
        draw_links(ax, topology, graph, at)
        ax.set_title(f"{topology_title(topology)}, {graph.number_of_edges()} links")
    say_below(fig, "A dot: a client; filled: the one that leaves")
    return fig


def labels_figure(e: Experiment, descriptions: Descriptions, dataset: str) -> Figure:
    """How many samples of each class each client holds, one panel per split; the client that leaves is shaded."""
    shown = {place.setting: descriptions[place] for place in e.on_last_graph(dataset)}
    return problem_figures.label_distribution(shown, [e.leaving])
