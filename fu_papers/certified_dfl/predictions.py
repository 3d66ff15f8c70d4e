"""Answers to what notebook 04 asks before its figures, from what those are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import networkx as nx
import pandas as pd
import torch
from IPython.display import HTML

from fu_core.federation import graphs
from fu_papers.certified_dfl.grid import DU_FORMS, Experiment
from fu_papers.certified_dfl.results import (
    POINT,
    Certificates,
    Curves,
    Speeds,
    cell_runs,
    paths,
    releases,
    saved_percent,
    served,
)
from fu_papers.certified_dfl.theory_audit import OURS
from fu_papers.certified_dfl.theory_tables import audit_outcome
from fu_papers.certified_dfl.titles import REQUESTS, SHOWN
from fu_papers.lab.record import Record
from fu_papers.predict import letter, reveal
from fu_papers.problems import dataset_title

EXACTLY = "x'"  # how records call a world B that is the exactly retrained model


def printed_step(distances: Mapping[str, float]) -> HTML:
    """How far the printed step ends from Retrain on the ring of four, doing nothing being 1: at most 0.5, 1, or more.

    distances: of the models by hand, by their names there.
    """
    nothing = distances["do nothing"]
    printed, corrected = distances["printed"] / nothing, distances["corrected"] / nothing
    because = (
        f"{printed:.2g} times as far as doing nothing; the corrected step {corrected:.1g}. Client 3 keeps 20 of its "
        "100 rows, so its own curvature and gradients are a poor picture of the network's: *whose curvature?* is "
        "as much of the method as the step."
    )
    return reveal(letter(printed, (0.5, 1.0)), because)


def steps_to_mix(clients: int = 10, left: float = 0.01) -> HTML:
    """Steps until |Q^k - 11'/N| (Lemma 1) is down to 1 % on a ring of ten: at most 10, at most 30, or more. Exact."""
    steps = {name: _steps(graphs.topology(name, clients), left) for name in ("ring", "complete")}
    because = (
        f"{steps['ring']} steps on a ring of {clients}; {steps['complete']} where all are linked. News crosses half of "
        f"the ring in {clients // 2} steps, but to be *heard* is not to be *mixed*: every step averages three "
        "neighbours, and the second eigenvalue says how slowly what is uneven dies out."
    )
    return reveal(letter(steps["ring"], (10, 30)), because)


def _steps(graph: nx.Graph, left: float) -> int:
    """The least k with |Q^k - 11'/N|, the largest singular value, at most `left`."""
    Q = graphs.metropolis(graph)
    uneven = (torch.linalg.eigvalsh(Q)[:-1]).abs().max()
    return next(k for k in range(1, 10_000) if float(uneven) ** k <= left)


def on_ridge(records: Sequence[Record]) -> HTML:
    """How far the printed step ends from retraining on ridge regression, doing nothing being 1: at most 0.1, 1, more.

    records: of the kind "exactness"; means over data sets where clients differ most.
    """
    most = max(records, key=lambda record: float(record.config["heterogeneity"]))
    means = {name: sum(found) / len(found) for name, found in most.metrics["errors"].items()}
    printed, corrected = means["all clients delete, printed"], means["all clients delete, corrected (one Hessian)"]
    because = (
        f"{printed:.2g} times as far as doing nothing; the corrected step {corrected:.0e}, which is rounding. A "
        "quadratic is its own second-order model, so *one Newton step is the whole way*, if gradient and curvature are "
        "those of what everybody keeps. The printed ones are a client's own."
    )
    return reveal(letter(printed, (0.1, 1.0)), because)


def one_round_without(e: Experiment, runs: pd.DataFrame) -> HTML:
    """How much of a removed class the last data set's model knows after one ordinary round without it: at most 10 %,
    90 %, or more. runs: the wide frame; means over places and seeds."""
    dataset = e.datasets[-1]
    places = [place for place in e.places() if place.dataset == dataset]

    def known(method: str) -> float:
        return float(pd.concat([cell_runs(runs, place, "class", method) for place in places]).removed.mean())

    told = ", ".join(f"{SHOWN[method]} {known(method):.1f} %" for method in ("Original", "Retrain", *DU_FORMS))
    because = (
        f"{known('Fine-tune'):.1f} % on {dataset_title(dataset)}. The others (either form of DU has that round, too): "
        f"{told}. Between doing nothing and Retrain there is *something to forget*, and the round alone says how much "
        "of it is DU's doing."
    )
    return reveal(letter(known("Fine-tune"), (10, 90)), because)


def time_saved(e: Experiment, speeds: Speeds) -> HTML:
    """Percent of retraining's time that the corrected form saves, its round included: at most 80, 97, or more.

    The mean over data sets and kinds of requests.
    """
    saved = {
        method: [
            saved_percent(speeds[dataset, kind].metrics["seconds"], method)
            for dataset in e.datasets
            for kind in REQUESTS
        ]
        for method in DU_FORMS
    }
    means = {method: sum(found) / len(found) for method, found in saved.items()}
    K = [e.of_dataset("rounds", dataset) for dataset in e.datasets]
    because = (
        f"{means['DU']:.1f} % on average ({min(saved['DU']):.0f} to {max(saved['DU']):.0f}); as printed "
        f"{means['DU printed']:.1f} %. Retraining takes {' or '.join(map(str, dict.fromkeys(K)))} rounds here, so that "
        f"the round alone costs {100 / max(K):.1f} % or more: *the number is as much the training's as the method's*."
    )
    return reveal(letter(means["DU"], (80, 97)), because)


def no_round_at_all(e: Experiment, curves: Curves) -> HTML:
    """Who is within a point of Retrain's end before any further round: at most one form of DU, both, or everybody.

    After one client has left, on the first data set; everybody: doing nothing, too. Means over seeds.
    """
    dataset = e.datasets[0]
    of_seeds = paths(curves, dataset, "client")
    retrained = of_seeds["Retrain"]
    nothing, end = (sum(path[k][-1][1] for path in retrained) / len(retrained) for k in (0, -1))
    at_once = {method: [path[1][0][1] for path in of_seeds[method]] for method in DU_FORMS}
    found = {SHOWN[method]: sum(values) / len(values) for method, values in at_once.items()}
    there = [name for name, accuracy in found.items() if accuracy >= end - POINT]
    right = "c" if nothing >= end - POINT else "b" if len(there) == len(found) else "a"
    told = ", ".join(f"{name} {accuracy:.1f} %" for name, accuracy in found.items())
    because = (
        f"{dataset_title(dataset)}, test accuracy before any round: {told}, do nothing {nothing:.1f} %; Retrain ends "
        f"at {end:.1f} %. How soon test accuracy is back says nothing of forgetting where nobody lost any: *ask what "
        "else passes the test*."
    )
    return reveal(right, because)


def price_of_a_promise(certificates: Certificates, epsilon: float = 1.0) -> HTML:
    """Points of test accuracy that a corrected release loses against the same model without noise: at most 2, 10, more.

    Mean over places and seeds, at the smallest epsilon of at least `epsilon` that there is.
    """
    found = releases(certificates)
    there = found[(found.form == "corrected") & found.released.astype(bool)]
    if not (there.epsilon >= epsilon).any():
        return reveal("none of them", "Nothing was released: the budget was never met.")
    asked = min(e for e in there.epsilon if e >= epsilon)
    same = ["place", "kind", "seed", "request"]
    both = there[there.epsilon == asked].merge(served(certificates)[[*same, "test_exact"]], on=same)
    lost = both.test_exact - both.test
    mean = float(lost.mean())
    because = (
        f"{mean:.1f} points on average, at most {lost.max():.1f}, in {len(lost)} releases at epsilon = {asked:g}. "
        "The noise covers a distance that Newton's steps have made small *before* anything is released; the "
        "printed noise covers what a bound allows, and buries the model."
    )
    return reveal(letter(mean, (2, 10)), because)


def refuted(records: Sequence[Record]) -> HTML:
    """How many of the printed releases' promises an audit breaks: none, some, or all. records: of the kind "audit".

    A printed promise is about either kind of retraining; a corrected one about exact retraining alone. The printed
    noise in a calibration of ours is nobody's promise.
    """
    told = [row for record in records for row in record.metrics["rows"] if row["distinct"] and row["counted"]]
    rows = [row for row in told if not row["planted"] and row["mechanism"] != OURS]
    outcomes = {
        form: [audit_outcome(row) for row in rows if row["mechanism"].startswith(form) and row["reference"] in about]
        for form, about in (("printed", ("same training", EXACTLY)), ("corrected", (EXACTLY,)))
    }
    broken = {form: sum(outcome == "refuted" for outcome in found) for form, found in outcomes.items()}
    of = {form: len(found) for form, found in outcomes.items()}
    right = "a" if broken["printed"] == 0 else "c" if broken["printed"] == of["printed"] else "b"
    because = (
        f"{broken['printed']} of {of['printed']} promises of printed releases are refuted, and "
        f"{broken['corrected']} of "
        f"{of['corrected']} of corrected ones. A printed promise stands where its noise is that of worst-case "
        "constants, which leaves little of the model's accuracy. And an audit can only *refute*: what it does not "
        "refute it has not proved."
    )
    return reveal(right, because)
