"""What goes beyond the paper's experiments as tables: certified heads of nets, and DU among many clients.

Every function takes the experiment and what the stages' runs returned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fu_papers.certified_dfl.grid import Experiment, Place, granularity
from fu_papers.certified_dfl.noisy_nets import NEW, NOISY
from fu_papers.certified_dfl.peers import DU_ROWS, ROUNDS_ROWS, reported_epsilon
from fu_papers.certified_dfl.tables import MEASURED, few
from fu_papers.certified_dfl.titles import REQUESTS, SHOWN
from fu_papers.lab.record import Record
from fu_papers.problem_figures import spread_or_dash
from fu_papers.problems import dataset_title
from fu_papers.study import Cell

Heads = Mapping[Cell, Record]
Scales = Mapping[int, Record]  # by N
PEER_TITLES = {
    "Newton from zero": "Newton's method from zero: exact retraining",
    "DU": "DU, corrected",
    "Retrain": "Retrain's rounds, the same rule",
    "Fine-tune": "as many rounds more, the same rule",
}
CLIP_OF = {"gradient": "start_clip", "model": "model_clip"}
NET_ROWS = {"Original": SHOWN["Original"], "Retrain": SHOWN["Retrain"], NEW: "new weights, trained so long"}


# --- certified heads -------------------------------------------------------------------------------------------------


def heads_frame(heads: Heads) -> pd.DataFrame:
    """A row per run: where it belongs, its metrics, the body it used."""
    return pd.DataFrame(
        [
            {
                "place": Place.of(cell),
                "kind": granularity(cell.request),
                "seed": cell.seed,
                "body_of": record.config["body"],
                **record.metrics,
            }
            for cell, record in heads.items()
        ]
    )


def heads_releases(heads: Heads) -> pd.DataFrame:
    """A row per run and epsilon: released or refused, sigma, and accuracy beside Retrain's head with the same noise."""
    unknown = dict.fromkeys(("sigma", "test", "retrained"), math.nan)
    return pd.DataFrame(
        [
            {**unknown, **entry, "place": Place.of(cell), "kind": granularity(cell.request), "seed": cell.seed}
            for cell, record in heads.items()
            for entry in record.rounds
        ]
    )


def heads_table(e: Experiment, heads: Heads) -> pd.DataFrame:
    """A row per net, split and kind of request: what a certified head costs, and what its certificate covers."""
    runs, releases, epsilon = heads_frame(heads), heads_releases(heads), reported_epsilon(e)
    rows: list[dict[str, Any]] = []
    for place in dict.fromkeys(Place.of(cell) for cell in heads):
        for kind in REQUESTS:
            r = runs[(runs.place == place) & (runs.kind == kind)]
            released = releases[(releases.place == place) & (releases.kind == kind)]
            row: dict[str, Any] = {
                "data set, net": dataset_title(place.dataset),
                "split": place.split,
                "request": REQUESTS[kind],
                "body trained by": r.body_of.iloc[0],
                "whole net, retrained %": spread_or_dash(r.net),
                "best head on retained data %": spread_or_dash(r.test_retrained),
                "released": f"{released.released.sum()} of {len(released)}",
            }
            for each in e.epsilons:
                at = released[released.epsilon == each]
                pair = f"{spread_or_dash(at.test)} / {spread_or_dash(at.retrained)}"
                row[f"ε = {each:g}: certified head / best head with this noise %"] = pair
            row |= {
                f"noise σ, ε = {epsilon:g}": few(released[released.epsilon == epsilon].sigma),
                "Newton's steps": few(r.steps),
                MEASURED: few(r.radius),
                "the same, do nothing": few(r.radius_original),
                "the same, Retrain's rounds": few(r.radius_again),
                "passes, thousands": spread_or_dash(r.passes / 1000),
                "passes of retraining the head, thousands": spread_or_dash(r.passes_again / 1000),
                "covered": r.covered.iloc[0],
                "not covered": r.not_covered.iloc[0],
            }
            rows.append(row)
    return pd.DataFrame(rows)


def heads_source(e: Experiment, source: str) -> str:
    """The line under it: where the data comes from, and what all rows share."""
    shared = f"{len(e.seeds)} seed(s), δ = {e.delta:g}, budget {e.close_budget:g}"
    return f"{source}; heads: softmax regression on features of length 1; {shared}"


# --- scale -----------------------------------------------------------------------------------------------------------


def scale_rows(scales: Scales) -> list[dict[str, Any]]:
    """A row per N and kind of request: the run's numbers beside the row's own; vectors and seconds by way."""
    rows = []
    for clients, record in scales.items():
        shared = {name: record.metrics[name] for name in ("d", "samples", "links", "depth")}
        for entry in record.rounds:
            flat = {name: value for name, value in entry.items() if name not in ("vectors", "seconds")}
            flat |= {f"vectors_{way}": count for way, count in entry["vectors"].items()}
            flat |= {f"seconds_{method}": seconds for method, seconds in entry["seconds"].items()}
            rows.append({"clients": clients, "rounds": record.config["rounds"], **shared, **flat})
    return rows


def scale_table(scales: Scales) -> pd.DataFrame:
    """A row per N and kind of request: what DU costs and achieves, beside Retrain by D-PSGD. One seed."""
    return pd.DataFrame(
        [
            {
                "N": f"{r['clients']:,}",
                "request": REQUESTS[r["kind"]],
                "who asks": f"{r['asking']:,}",
                "samples each": f"{r['samples'] / r['clients']:.0f}",
                "links each": f"{2 * r['links'] / r['clients']:.1f}",
                "depth of the tree": str(r["depth"]),
                "Newton's steps": str(r["steps"]),
                "sums": str(r["sums"]),
                "vectors per client, tree": f"{r['vectors_tree'] / r['clients']:,.0f}",
                "vectors per client, flooding": f"{r['vectors_flooding'] / r['clients']:,.0f}",
                "vectors per client, Retrain": f"{r['vectors_again'] / r['clients']:,.0f}",
                "network rounds, tree": f"{r['latency']:,}",
                "network rounds, Retrain": f"{r['rounds']:,}",
                MEASURED: f"{r['radius']:.2g}",
                "distance to exact retraining, do nothing = 1": f"{r['gap']:.2g}",
                "the same, Retrain's rounds": f"{r['gap_again']:.2g}",
                "test acc. %": f"{r['test']:.1f}",
                "Retrain's rounds %": f"{r['test_again']:.1f}",
                "exact retraining %": f"{r['test_retrained']:.1f}",
                "passes, Retrain = 1": f"{r['passes'] / r['passes_again']:.2g}",
                "seconds, all clients' work": f"{r['seconds_DU']:.2g}",
                "seconds, Retrain": f"{r['seconds_Retrain']:.2g}",
            }
            for r in scale_rows(scales)
        ]
    )


# --- peers at the same guarantee -------------------------------------------------------------------------------------


def peers_frame(peers: Mapping[Cell, Record]) -> pd.DataFrame:
    """A row per run: lambda, request, method, its values ("with"), seed, and its metrics."""
    return pd.DataFrame(
        [
            {
                "l2": record.config["l2"],
                "request": cell.request,
                "method": cell.method,
                "with": cell.label or "–",
                "seed": cell.seed,
                **record.metrics,
            }
            for cell, record in peers.items()
        ]
    )


def peers_table(peers: Mapping[Cell, Record]) -> pd.DataFrame:
    """Certified methods side by side: what each released, what it took, or why nothing came out. Over seeds."""
    frame, rows = peers_frame(peers), []
    for l2, request, method, values in dict.fromkeys(
        zip(frame.l2, frame.request, frame.method, frame["with"], strict=True)
    ):
        same = (frame.l2 == l2) & (frame.request == request) & (frame.method == method) & (frame["with"] == values)
        runs = frame[same]
        out = runs[runs.refused == ""]
        row = {
            "λ": f"{l2:g}",
            "of everybody's samples": request.removeprefix("sample-"),
            "method": PEER_TITLES.get(method, method),
            "with": values,
            "released": f"{len(out)} of {len(runs)}",
        }
        if len(out) < len(runs):
            row["released"] += f", {runs[runs.refused != ''].outcome.iloc[0]}"
        if out.empty:
            rows.append(row)
            continue
        bare = out.test_noiseless.dropna()
        nominal = out.nominal.iloc[0]
        rows.append(
            {
                **row,
                "noise σ": f"{out.sigma.mean():.3g}",
                "test acc. %": spread_or_dash(out.test),
                "without noise %": "–" if bare.empty else f"{bare.mean():.1f}",
                "exact retraining %": f"{out.test_exact.mean():.1f}",
                "distance / |exact retraining|": f"{out.distance.mean():.3g}",
                "passes over the retained data": f"{out.passes.mean():.3g}",
                "vectors sent": f"{out.vectors.mean():,.0f}",
                "guarantee": f"nominal: {nominal}" if nominal else _proved(method),
            }
        )
    return pd.DataFrame(rows).fillna("–")


def _proved(method: str) -> str:
    """What measures its radius may refuse, and whether it did depends on the data."""
    measures = (*DU_ROWS, *ROUNDS_ROWS, "Certified removal")
    return "proved, given a release" if method in measures else "proved"


# --- whole nets ------------------------------------------------------------------------------------------------------


def noisy_nets_table(nets: Mapping[Cell, Record]) -> pd.DataFrame:
    """Whole nets released under a certificate, beside Retrain and new weights with as many rounds. One seed."""
    rows = []
    for cell, record in nets.items():
        m, options = record.metrics, record.config["options"]
        noisy = cell.method in NOISY
        row = {
            "data set, net": dataset_title(Place.of(cell).dataset),
            "method": cell.method if noisy else NET_ROWS[cell.method],
            "ε": f"{options['epsilon']:g}" if noisy else "–",
            "clipped to": f"{options[CLIP_OF[options['clip']]]:g}" if noisy else "–",
            "noiseless rounds": str(options["tuning"]) if noisy else str(record.config["rounds_of_new"] or "–"),
        }
        if m["outcome"] == "diverged":
            rows.append({**row, "test acc. %": "diverged"})
            continue
        rows.append(
            {
                **row,
                "noise σ a step": f"{m['sigma']:.3g}" if noisy else "–",
                "test acc. %": f"{m['test']:.1f}",
                "forgotten data %": f"{m['forget']:.1f}",
                "KL to Retrain there": f"{m['kl']:.3g}",
                "|w|, before": f"{m['length']:.3g}, {m['length_before']:.3g}",
                "passes over the retained data": f"{m['passes']:.3g}",
            }
        )
    return pd.DataFrame(rows).fillna("–")
