"""Figures and tables of thresholds and of Theorem 1 on breast cancer, from the records of theory.PLANS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fu_papers.fedora.theory_figures import SHADES
from fu_papers.fedora.theory_theorem import STARTS
from fu_papers.fedora.theory_threshold import READINGS
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, three_digits
from fu_papers.problem_figures import axes_row

BOUNDS: dict[str, tuple[str, str, Any]] = {
    "printed": (r"printed, $\rho^T e_0 + b/(1-\rho)$", colour("DU"), "--"),
    "squared": ("the recursion before the root", colour("CVFU"), "-."),
    "direct": ("triangle inequality", colour("FedEraser"), ":"),
}
VECTOR_NAMES = {
    "times gradient, projected": r"$\lambda\odot\nabla L_u$, $\lambda\geq 0$",
    "times gradient, free": r"$\lambda\odot\nabla L_u$, any $\lambda$",
    "in its place, projected": r"$\lambda$ itself, $\lambda\geq 0$",
    "in its place, free": r"$\lambda$ itself, any $\lambda$",
}
VECTOR_LOOKS = dict(
    zip(READINGS, (("#1b6f8a", "v"), ("#1b6f8a", "^"), ("#7a8f1f", "v"), ("#7a8f1f", "^")), strict=True)
)
VECTOR_TEXT = {
    "times gradient, projected": "λ ⊙ ∇L_u, λ ≥ 0 (the package's)",
    "times gradient, free": "λ ⊙ ∇L_u, any λ",
    "in its place, projected": "λ itself, λ ≥ 0",
    "in its place, free": "λ itself, any λ",
}


def _range(values: Sequence[float], digits: int = 3) -> str:
    """Mean, and least to largest in brackets."""
    return f"{np.mean(values):.{digits}g} ({min(values):.{digits}g}–{max(values):.{digits}g})"


# --- the threshold and retraining ------------------------------------------------------------------------------------


def forbidden_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata F1, exact optima: mean over draws of the 45 deleted rows, least and largest in brackets."""
    found = [r.metrics for r in records]
    cases = [
        ("original", [m["original"] for m in found]),
        ("retrained = limit of fine-tuning", [m["retrained"] for m in found]),
    ]
    for place, row in enumerate(found[0]["thresholds"]):
        cases.append((f"best with entropy ≥ {row['threshold']:g}", [m["thresholds"][place] for m in found]))
    return pd.DataFrame(
        {
            "model": name,
            "distance to retrained": _range([row["distance"] for row in rows]),
            "entropy on the deleted (at most 0.693)": _range([row["entropy"] for row in rows]),
            "test accuracy": _range([row["accuracy"] for row in rows]),
            "dual λ*": _range([row["dual"] for row in rows]) if "dual" in rows[0] else None,
        }
        for name, rows in cases
    )


def iterated_name(record: Record) -> str:
    """What a run of `iterated` is called in tables."""
    dual = record.config["dual"]
    if dual == "none":
        return "fine-tuning"
    return "scalar dual" if dual == "scalar" else f"vector dual: {VECTOR_TEXT[dual]}"


def iterated_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata F1 and F3: where the iteration ends, and what the step conditions said."""
    rows = []
    for r in records:
        m, c = r.metrics, r.config
        scalar = c["dual"] == "scalar"
        rows.append(
            {
                "iteration": iterated_name(r),
                "threshold ε": c["threshold"] if scalar else None,
                "τ": c["tau"],
                "σ": None if c["dual"] == "none" else c["sigma"],
                "τσK²": three_digits(m["step_rule"]) if scalar else None,
                "Condat–Vu margin": three_digits(m["margin"]) if scalar else None,
                "distance to retrained": three_digits(m["distance"]),
                "to the constrained optimum": three_digits(m["missed"]) if scalar else None,
                "entropy on the deleted": three_digits(m["entropy"]),
                "test accuracy": three_digits(m["accuracy"]),
                "λ (vector: mean)": three_digits(m["dual"]),
            }
        )
    return pd.DataFrame(rows)


def forbidden_figure(records: Sequence[Record], iterated: Sequence[Record]) -> Figure:
    """Distance and test accuracy against the entropy of the deleted samples, and the entropy on the way there."""
    fig, (left, middle, right) = axes_row(3, height=4.6, width=4.7)
    for record in records:
        m, first = record.metrics, record is records[0]
        look: dict[str, Any] = {
            "color": colour("FedORA"),
            "linewidth": 2.2 if first else 0.8,
            "alpha": 1.0 if first else 0.4,
        }
        for ax, name in ((left, "distance"), (middle, "accuracy")):
            ax.plot(m["frontier"]["entropy"], m["frontier"][name], **look)
            ax.plot(m["original"]["entropy"], m["original"][name], "o", color=colour("Original"), markersize=5)
            ax.plot(m["retrained"]["entropy"], m["retrained"][name], "X", color=colour("Retrain"), markersize=6)
    for record in iterated:
        c, m = record.config, record.metrics
        astray = c["dual"] == "scalar" and m["missed"] > 1e-3
        if c["dual"] == "none":
            continue
        hue, mark = (SHADES[1], "D") if c["dual"] == "scalar" else VECTOR_LOOKS[c["dual"]]
        hue, dash = (SHADES[3], "--") if astray else (hue, "-")
        right.plot(m["curves"]["t"], m["curves"]["entropy"], color=hue, linewidth=1.3, linestyle=dash)
        right.plot(m["curves"]["t"][-1], m["entropy"], mark, color=hue, markersize=7, clip_on=False)
        for ax, name in ((left, "distance"), (middle, "accuracy")):
            high = name == "distance" and m["distance"] > 6
            ax.plot(m["entropy"], 5.9 if high else m[name], mark, color=hue, markersize=7, clip_on=False)
            if high:
                note = f"at {m['distance']:.0f},\nλ = {m['dual']:.0f}"
                ax.annotate(note, (m["entropy"], 5.9), xytext=(9, 0), textcoords="offset points", va="top", fontsize=9)
    for ax in (left, middle):
        ax.axvline(math.log(2), color=LINE, linewidth=1, linestyle=":")
        ax.set(xlabel="mean entropy on the deleted samples (nats)", xlim=(-0.02, 0.72))
    left.set(ylabel="distance to the retrained model", ylim=(-0.2, 6))
    middle.set(ylabel="test accuracy", ylim=(0.25, 1.0))
    right.axhline(math.log(2), color=LINE, linewidth=1, linestyle=":")
    right.set(xlabel="iteration", ylabel="mean entropy on the deleted (nats)", ylim=(-0.02, 0.72))
    handles = [
        Line2D([], [], color=colour("Original"), marker="o", linestyle="", label="original"),
        Line2D([], [], color=colour("Retrain"), marker="X", linestyle="", label="retrained = fine-tuned"),
        Line2D([], [], color=colour("FedORA"), label="best model of that entropy, ten draws"),
        Line2D([], [], color=SHADES[1], marker="D", linestyle="", label="scalar dual, end"),
        Line2D([], [], color=SHADES[3], marker="D", linestyle="--", label="the same, larger dual step"),
    ]
    handles += [
        Line2D([], [], color=hue, marker=mark, linestyle="", label=f"vector dual, {VECTOR_NAMES[name]}")
        for name, (hue, mark) in VECTOR_LOOKS.items()
    ]
    fig.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    return fig


# --- Theorem 1 -------------------------------------------------------------------------------------------------------


def _threshold(record: Record) -> str:
    threshold = record.config["threshold"]
    return "no unlearning" if threshold is None else f"ε = {threshold:g}"


def theorem_table(records: Sequence[Record]) -> pd.DataFrame:
    """Claim F13 and errata F7: constants, what is measured at the end, the bounds' limits, and every violation."""
    rows = []
    for r in records:
        m, k = r.metrics, r.metrics["constants"]
        scratch = m["starts"][STARTS[0]]
        row = {
            "step η": r.config["eta"],
            "2/(μ + L)": three_digits(2 / (k["mu"] + k["L"])),
            "constraint": _threshold(r),
            "ς/√B": three_digits(k["noise"]),
            "ΛG": three_digits(k["Lambda"] * k["G"]),
            "entropy reached (retrained: own)": f"{m['entropy']:.3f} ({m['own']:.3f})",
            "seeds": r.config["seeds"],
            "measured |θ − θ_R|, root mean square": three_digits(scratch["rms"][-1]),
            "limit printed, b/(1 − ρ)": three_digits(m["limits"]["printed"]),
            "with Λ = 0": three_digits(m["without"]["printed"]),
            "limit squared": three_digits(m["limits"]["squared"]),
            "limit by the triangle inequality": three_digits(m["limits"]["direct"]),
            "printed limit / measured": three_digits(m["limits"]["printed"] / scratch["rms"][-1]),
        }
        for kind in BOUNDS:
            broken = sum(m["starts"][name]["violated"][kind]["rms"] for name in STARTS)
            row[f"violated: {kind}"] = f"{broken} of {len(STARTS) * m['checked']['rms']}"
        single = sum(m["starts"][name]["violated"]["printed"]["runs"] for name in STARTS)
        row["violated: printed, single runs"] = f"{single} of {len(STARTS) * m['checked']['runs']}"
        step = sum(m["starts"][name]["recursion"] for name in STARTS)
        row["violated: one step of the recursion"] = f"{step} of {len(STARTS) * (m['checked']['rms'] - 1)}"
        rows.append(row)
    return pd.DataFrame(rows)


def limits_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata F7: what taking the root does to the limit, unit constants."""
    (r,) = records
    return pd.DataFrame(
        {
            "step η": row["eta"],
            "limit printed, b/(1 − ρ)": three_digits(row["printed"]),
            "limit of the squared recursion": three_digits(row["squared"]),
            "limit by the triangle inequality": three_digits(row["direct"]),
        }
        for row in r.metrics["rows"]
    )


def theorem_figure(records: Sequence[Record], threshold: float = 0.65) -> Figure:
    """Distance to retraining per iteration against the bounds, and at the end by step size; without unlearning above,
    with it below."""
    noisy = [r for r in records if r.config["batch"]]
    steps = sorted({r.config["eta"] for r in noisy})
    fig, grid = plt.subplots(2, 2, figsize=(9.6, 7.2), sharey=True, sharex="col")
    hues = dict(zip(STARTS, (colour("FedORA"), colour("GA")), strict=True))
    for (left, right), wanted in zip(grid, (None, threshold), strict=True):
        chosen = {r.config["eta"]: r for r in noisy if r.config["threshold"] == wanted}
        starts = chosen[steps[-1]].metrics["starts"]
        for name, hue in hues.items():
            found = starts[name]
            left.plot(found["t"], found["rms"], color=hue)
            left.fill_between(found["t"], found["least"], found["largest"], color=hue, alpha=0.25, linewidth=0)
            ends = [chosen[eta].metrics["starts"][name]["rms"][-1] for eta in steps]
            right.plot(steps, ends, "-o", color=hue, markersize=6)
        for kind, (_, hue, dash) in BOUNDS.items():
            left.plot(starts[STARTS[0]]["t"], starts[STARTS[0]]["bounds"][kind], color=hue, linestyle=dash)
            limits = [chosen[eta].metrics["limits"][kind] for eta in steps]
            right.plot(steps, limits, color=hue, linestyle=dash, marker="s", markersize=5)
        left.set(yscale="log", ylim=(0.08, 1500), title=rf"{_threshold(chosen[steps[-1]])}, $\eta$ = {steps[-1]:g}")
        left.set_ylabel(r"$|\theta^t - \theta_R^t|$")
        right.set(xscale="log", title=f"{_threshold(chosen[steps[-1]])}, last iteration and limits")
        right.set_xticks(steps, labels=[f"{eta:g}" for eta in steps])
        right.minorticks_off()
    grid[1, 0].set_xlabel("iteration t")
    grid[1, 1].set_xlabel(r"step size $\eta$")
    handles = [Line2D([], [], color=hue, linestyle=dash, label=text) for text, hue, dash in BOUNDS.values()]
    handles += [Line2D([], [], color=hue, label=f"measured, retraining {name}") for name, hue in hues.items()]
    fig.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    return fig
