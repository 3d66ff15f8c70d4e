"""What notebook 04 shows in several pieces at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from IPython.display import Markdown, display

from fu_papers.certified_dfl import (
    figures,
    further_figures,
    further_tables,
    heads,
    tables,
    theory_figures,
    theory_tables,
    titles,
)
from fu_papers.certified_dfl.grid import Experiment, Place
from fu_papers.certified_dfl.results import cell_runs
from fu_papers.controls import CONTROLS, Standing, warned, wrong_controls
from fu_papers.lab.record import Record
from fu_papers.look import keep_figure, keep_table
from fu_papers.problems import dataset_title
from fu_papers.study import Cell

BREAST_CANCER = theory_figures.SOURCE
GENERATED = theory_figures.GENERATED

NO_NET = "*This profile has no net yet, only a convex model.*"

Theory = Mapping[str, Sequence[Record]]  # records by their kind, as `Study.theory` returns them


def sources(experiment: Experiment, descriptions: Mapping[Place, Record]) -> tuple[str, str, str]:
    """The line under what is about all data sets, about the convex one, and about those with a net."""
    convex, with_nets = [experiment.datasets[0]], heads.nets(experiment)
    return titles.source(descriptions), titles.source(descriptions, convex), titles.source(descriptions, with_nets)


def setting(experiment: Experiment, descriptions: Mapping[Place, Record], out: Path) -> None:
    """The graphs, and per data set who holds what: figures."""
    of = (figures.network_figure, experiment, descriptions)
    display(keep_figure(out / "networks.png", titles.source(descriptions), *of))
    for dataset in experiment.datasets:
        path = out / f"label_distribution_{dataset.replace('/', '_')}.png"
        held = (figures.labels_figure, experiment, descriptions, dataset)
        display(keep_figure(path, titles.source(descriptions, [dataset]), *held))


def exactness(theory: Theory, out: Path) -> None:
    """Both forms on ridge regression, where a step can be retraining: table and figure."""
    caption = "Ridge regression, 10 clients, 20 data sets: distance to retraining / distance of doing nothing"
    display(keep_table(out / "exactness.csv", GENERATED, theory_tables.exactness_table(theory["exactness"]), caption))
    display(keep_figure(out / "exactness.png", GENERATED, theory_figures.exactness_figure, theory["exactness"]))


def bounds(theory: Theory, out: Path) -> None:
    """Lemmas 2 and 3 against what was measured: figure and table."""
    display(keep_figure(out / "bounds.png", BREAST_CANCER, theory_figures.bounds_figure, theory["bounds"]))
    table = theory_tables.bounds_table(theory["bounds"])
    display(keep_table(out / "bounds.csv", BREAST_CANCER, table, "How often the bounds are exceeded"))


def tables_1_to_4(experiment: Experiment, runs: pd.DataFrame, out: Path, source: str) -> None:
    """As many of Tables I to IV as the experiment has."""
    for name, request, split in tables.numbered(experiment):
        table = tables.tables_1_to_4(experiment, runs, request, split)
        spread = f"mean ± standard deviation over {len(experiment.seeds)} seeds"
        caption = f"{name}. {request}-wise, {split.replace('-', ' ')}; {spread}"
        caption = warned_of(caption, runs, request, [place for place in experiment.places() if place.split == split])
        display(keep_table(out / f"{name.lower().replace(' ', '_')}.csv", source, table, caption))


def equal_utility(experiment: Experiment, runs: pd.DataFrame, out: Path, source: str) -> None:
    """Each method's way from right after its step to its end: a figure."""
    of = (further_figures.utility_matched_figure, experiment, runs)
    display(keep_figure(out / "utility_matched.png", source, *of))


def warned_of(caption: str, runs: pd.DataFrame, request: str, places: Sequence[Place]) -> str:
    """The caption of a table of requests of one kind, with a warning for the places whose controls come out wrong."""
    told = {}
    for place in places:
        rows = {method: Standing.of(cell_runs(runs, place, request, method)) for method in CONTROLS}
        told[f"{dataset_title(place.dataset)}, {titles.topology_title(place.topology)}"] = wrong_controls(rows)
    return warned(caption, told)


def net_choices(experiment: Experiment, runs: pd.DataFrame, out: Path, source: str) -> None:
    """On nets, the choices that theory leaves open: a table for every kind of request that has them."""
    if len(experiment.datasets) == 1:
        display(Markdown(NO_NET))
        return
    for kind in experiment.net_choices:
        table = tables.net_choices_table(experiment, runs, kind)
        caption = f"On nets: which curvature, which gradient, and how long a step may be. {kind.capitalize()}-wise"
        display(keep_table(out / f"net_choices_{kind}.csv", source, table, caption))


def certified_heads(experiment: Experiment, certified: Mapping[Cell, Record], out: Path, source: str) -> None:
    """The last layer of a net, certified on a fixed body: figure and table."""
    if not certified:
        display(Markdown(NO_NET))
        return
    below = further_tables.heads_source(experiment, source)
    display(keep_figure(out / "heads.png", below, further_figures.heads_figure, experiment, certified))
    caption = "Certified heads: accuracy, of classes that somebody still holds; what is covered and what is not"
    display(keep_table(out / "heads.csv", below, further_tables.heads_table(experiment, certified), caption))


def noisy_nets(nets: Mapping[Cell, Record], out: Path, source: str) -> None:
    """Whole nets, certified by noisy fine-tuning: table."""
    caption = "Whole nets: noisy fine-tuning, then noiseless rounds, beside new weights trained as long as those"
    table = further_tables.noisy_nets_table(nets)
    display(Markdown(NO_NET) if table.empty else keep_table(out / "noisy_nets.csv", source, table, caption))


def audit(theory: Theory, out: Path) -> None:
    """What was claimed, and what a distinguisher could prove: figures and tables, of noise alone and whole releases."""
    display(keep_figure(out / "audit.png", BREAST_CANCER, theory_figures.audit_figure, theory["audit"]))
    caption = "Claimed epsilon, what an audit of the releases proves, and the true epsilon"
    display(keep_table(out / "audit.csv", BREAST_CANCER, theory_tables.audit_table(theory["audit"]), caption))
    whole = [*theory["whole"], *theory["canaries"]]
    display(keep_figure(out / "audit_whole.png", BREAST_CANCER, theory_figures.whole_figure, whole))
    caption = "The same of whole releases, data in, noisy models out; planted: wrong on purpose"
    display(keep_table(out / "audit_whole.csv", BREAST_CANCER, theory_tables.whole_table(whole), caption))
