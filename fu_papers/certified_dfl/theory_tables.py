"""Tables of certified DFL's lemmas, theorems and certificate, from the records of theory.PLANS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fu_papers.certified_dfl.theory_audit import FIRST
from fu_papers.lab.record import Record
from fu_papers.look import three_digits

SPLIT_NAMES = {"iid": "at random", "dirichlet": "Dirichlet 0.3"}


def audit_title(record: Record) -> str:
    """Which models and clients, and what is deleted."""
    config = record.config
    how = f"γ = {config['gamma']:g}" if "gamma" in config else f"{config.get('rounds')} rounds"
    models = "at the optimum" if config["models"] == "consensus" else f"D-PSGD, {how}"
    deleted = "a client leaves" if config["request"] == "client" else f"{config['m']} of 40 samples of each"
    return f"{models}, {SPLIT_NAMES[config['split']]}; {deleted}"


def fixed_point_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata D6 and D1: where a constant step leaves D-PSGD, against the change that forgetting is about."""
    return pd.DataFrame(
        {
            "step size γ": r.config["gamma"],
            "farthest client, max |x_i − x*|": _mean(r.metrics["farthest"]),
            "mean model, |x̄ − x*|": _mean(r.metrics["mean"]),
            "retraining moves x* by": _mean(r.metrics["shift"]),
            "and x_0 − x_5, where shared noise is nil, by": _mean(r.metrics["difference"]),
        }
        for r in records
    )


def exactness_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata D2 and D4: relative error per reading of the update, mean over seeds and, in brackets, the largest."""
    return pd.DataFrame(
        {"update": name}
        | {
            f"heterogeneity {r.config['heterogeneity']:g}": f"{np.mean(e):.3g} ({max(e):.2g})"
            for r in records
            for e in (r.metrics["errors"][name],)
        }
        for name in records[0].metrics["errors"]
    )


def bounds_table(records: Sequence[Record]) -> pd.DataFrame:
    """Lemmas 2 and 3: the largest ratio of measured to bound, and how often it is above 1."""
    rows = []
    for r in records:
        m, checked = r.metrics["rows"], len(r.metrics["rows"])
        row: dict[str, Any] = {"loss": r.config["loss"], "clients": SPLIT_NAMES[r.config["split"]], "λ": r.config["l2"]}
        row["Lemma 2: measured / bound"] = three_digits(max(q["shift"] / q["lemma_2"] for q in m))
        for form in ("corrected", "printed"):
            ratios = [q[form] / q["lemma_3"] for q in m if q["lemma_3"]]
            row[f"Lemma 3, {form}: measured / bound"] = f"{max(ratios):.3g}" if ratios else "bound is 0"
            row[f"largest |x̂ − x′| / |x − x′|, {form}"] = three_digits(max(q[form] / q["shift"] for q in m))
        for name, count in r.metrics["violations"].items():
            row[f"violated: {name}"] = f"{count} of {checked * (2 if name == 'residual radius' else 1)}"
        rows.append(row)
    return pd.DataFrame(rows)


def calibration_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata D9: what the printed calibration costs at (epsilon, delta) = (1, 1e-5), and what the measured one does."""
    return pd.DataFrame(
        {
            "λ": r.config["l2"],
            "ΔF, Lemma 3": three_digits(m["delta_f"]),
            "measured |x̂ − x′|": three_digits(m["distance"]),
            "residual radius": three_digits(m["radius"]),
            "Newton steps": m["steps"],
            "|x|": three_digits(m["norm"]),
            "σ printed": three_digits(m["sigma_message"]),
            "σ / |x|": three_digits(m["sigma_message"] / m["norm"]),
            "accuracy without noise": three_digits(m["accuracy"]),
            "with σ printed": three_digits(m["accuracy_message"]),
            "with σ/√N, as published": three_digits(m["accuracy_printed"]),
            "σ for our budget": three_digits(m["sigma_corrected"]),
            "accuracy with it": three_digits(m["accuracy_corrected"]),
        }
        for r in records
        for m in (r.metrics,)
    )


def noise_scale_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata D3: claimed against certified epsilon per number of clients and requesters."""
    return pd.DataFrame(
        {
            "clients N": r.config["clients"],
            "requesters r": row["requesters"],
            "claimed ε": row["claimed"],
            "certified ε": three_digits(row["certified"]),
            "δ at the claimed ε": three_digits(row["delta"]),
        }
        for r in records
        for row in r.metrics["rows"]
    )


def audit_table(records: Sequence[Record]) -> pd.DataFrame:
    """Every audit of noise: claimed, proved and true epsilon, with the noise and the accuracy it leaves.

    expected: what would be proved in the median if the claim were tight; what is not counted promises nothing.
    """
    return pd.DataFrame(
        {
            "models": audit_title(r),
            "mechanism": row["mechanism"],
            "published": published(record=r, row=row),
            "world B": {"x'": "exact retraining"}.get(row["reference"], row["reference"]),
            "claimed ε": three_digits(row["claimed"]),
            "proved ε ≥": three_digits(row["audited"]),
            "by": row["by"] if row["audited"] else "",
            "expected at ε": three_digits(row["expected"]),
            "true ε": "∞" if row["true"] is None else f"{row['true']:.3g}",
            "σ": three_digits(row["sigma"]),
            "distance": three_digits(row["distance"]),
            "accuracy": three_digits(row["accuracy"]),
            "claim": audit_outcome(row),
        }
        for r in records
        for row in r.metrics["rows"]
        if row["distinct"]
    )


def whole_table(records: Sequence[Record]) -> pd.DataFrame:
    """Audits of whole releases, two worlds and canaries, what is planted among them: claimed, proved and true epsilon.

    releases: per world; largest: no audit could have proved more with so many; expected: see `audit_table`; true: of
    models of D-PSGD that of the release that was farthest from exact retraining, an upper bound.
    """
    rows = []
    for r in records:
        for row in r.metrics["rows"]:
            true = {"infinite": "∞", "unknown": ""}.get(row["truth"], "")
            if row["true"] is not None:
                true = ("≤ " if row["truth"] == "at most" else "") + f"{row['true']:.3g}"
            rows.append(
                {
                    "models": whole_title(r),
                    "λ": r.config["l2"],
                    "mechanism": row["mechanism"],
                    "planted": "planted" if row["planted"] else "",
                    "published": published(record=r, row=row),
                    "audit": "canaries" if row["by"] == "canaries" else "two worlds",
                    "releases": row.get("draws", 1),
                    "claimed ε": three_digits(row["claimed"]),
                    "proved ε ≥": three_digits(row["audited"]),
                    "by": row["by"] if row["audited"] else "",
                    "expected at ε": three_digits(row["expected"]),
                    "largest": three_digits(row["largest"]),
                    "true ε": true,
                    "σ": three_digits(row["sigma"]),
                    "distance": three_digits(row["distance"]),
                    "accuracy": three_digits(row["accuracy"]),
                    "world B's": three_digits(row["retrained"]),
                    "claim": audit_outcome(row),
                }
            )
    return pd.DataFrame(rows)


def whole_title(record: Record) -> str:
    """As `audit_title`; of canaries, how many were in, all of which are deleted."""
    if "included" not in record.metrics:
        return audit_title(record)
    config = record.config
    models = "at the optimum" if config["models"] == "consensus" else f"D-PSGD, {config['rounds']} rounds"
    return f"{models}, {SPLIT_NAMES[config['split']]}; {record.metrics['included']} canaries"


def published(record: Record, row: Mapping[str, Any]) -> str:
    """The output that is looked at; "one model" where all clients publish the same."""
    outputs = [
        other["output"]
        for other in record.metrics["rows"]
        if other["distinct"] and all(other[key] == row[key] for key in ("mechanism", "claimed", "reference"))
    ]
    return "one model" if outputs == [FIRST] else str(row["output"])


def audit_outcome(row: Mapping[str, Any]) -> str:
    """refuted by the audit; false, which only the true epsilon shows; or it stands. Not counted if it is no promise.

    What is planted was found, or missed.
    """
    if row["planted"]:
        return "found" if row["refuted"] else "missed"
    if not row["counted"]:
        return "not counted"
    return "refuted" if row["refuted"] else "false" if row["broken"] else "stands"


def fisher_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata D5: the Fisher matrix for the Hessian, mean over draws of the deleted tenth."""
    rows = []
    for r in records:
        problem = r.config["problem"]
        if "scale" in r.config:
            problem += f", noise {r.config['scale']:g}"
        for name, found in r.metrics["steps"].items():
            rows.append(
                {
                    "problem": problem,
                    "|F − H| / |H|": _mean(r.metrics["matrix"]),
                    "tr F / tr H": _mean(r.metrics["trace"]),
                    "curvature": name,
                    "distance to retraining": _mean(found["retraining"]),
                    "difference to Newton's step": _mean(found["error"]),
                    "cosine with it": _mean(found["cosine"]),
                    "length relative to it": _mean(found["length"]),
                }
            )
    return pd.DataFrame(rows)


def _mean(values: Sequence[float]) -> float:
    return three_digits(float(np.mean(values)))
