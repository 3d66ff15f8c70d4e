"""What goes beyond the paper's experiments as tables: certified heads of nets, and DU among many clients.

Every function takes the experiment and what the stages' runs returned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fu_papers.certified_dfl.grid import Experiment, Place, granularity
from fu_papers.certified_dfl.heads import nets
from fu_papers.certified_dfl.peers import DU_ROWS, reported_epsilon
from fu_papers.certified_dfl.tables import MEASURED, few
from fu_papers.certified_dfl.titles import REQUESTS, dataset_title
from fu_papers.lab.record import Record
from fu_papers.problem_figures import spread_or_dash
from fu_papers.study import Cell

Heads = Mapping[Cell, Record]
Scales = Mapping[int, Record]  # by N
PEER_TITLES = {"Newton from zero": "Newton's method from zero: exact retraining", "DU": "DU, corrected"}


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
    return (
        f"{source}; heads: softmax regression on features of length 1; {shared}; nets: {', '.join(nets(e)) or 'none'}"
    )


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


def peers_table(peers: Mapping[Cell, Record]) -> pd.DataFrame:
    """Certified methods side by side: what each released, what it took, or why nothing came out."""
    rows = []
    for cell, record in peers.items():
        m = record.metrics
        row = {"method": PEER_TITLES.get(cell.method, cell.method), "with": cell.label or "–"}
        if m["refused"]:
            rows.append({**row, "released": m["outcome"]})
            continue
        rows.append(
            {
                **row,
                "released": "yes",
                "noise σ": f"{m['sigma']:.3g}",
                "test acc. %": f"{m['test']:.1f}",
                "without noise %": "–" if m["test_noiseless"] is None else f"{m['test_noiseless']:.1f}",
                "distance / |exact retraining|": f"{m['distance']:.3g}",
                "passes over the retained data": f"{m['passes']:.3g}",
                "vectors sent": f"{m['vectors']:,.0f}",
                "guarantee": f"nominal: {m['nominal']}" if m["nominal"] else _proved(cell.method),
            }
        )
    return pd.DataFrame(rows).fillna("–")


def _proved(method: str) -> str:
    """What measures its radius may refuse, and whether it did depends on the data."""
    return "proved, given a release" if method in (*DU_ROWS, "Certified removal") else "proved"
