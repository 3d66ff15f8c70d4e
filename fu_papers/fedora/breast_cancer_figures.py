"""Figures and tables of thresholds and of Theorem 1 on breast cancer, from the records of theory.PLANS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fu_papers.fedora.theory_theorem import STARTS
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, say_below, three_digits

BOUNDS: dict[str, tuple[str, str, Any]] = {
    "printed": (r"printed, $\rho^t e_0 + b\,(1-\rho^t)/(1-\rho)$", colour("DU"), "--"),
    "squared": ("the recursion before the root", colour("CVFU"), "-."),
    "direct": ("triangle inequality", colour("FedEraser"), ":"),
}
VECTOR_NAMES = {
    "times gradient, projected": r"$\lambda\odot\nabla L_u$, $\lambda\geq 0$",
    "times gradient, free": r"$\lambda\odot\nabla L_u$, any $\lambda$",
    "in its place, projected": r"$\lambda$ itself, $\lambda\geq 0$",
    "in its place, free": r"$\lambda$ itself, any $\lambda$",
}
DASHES: tuple[Any, ...] = ("-", (0, (4, 3)))  # of the two ways to retrain: the second shows the first below it
VECTOR = "#1b6f8a"  # of all readings of the element-wise dual: their rows are named
SETTLED = 0.25  # the last part of an iteration, in which it should have come to rest
MODELS = {"original": "Original", "retrained": "Retrain"}  # whose colours they have
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
    """What the constraint costs at exact optima (above), and where iterations end (below).

    Above: distance to the retrained model and test accuracy against the entropy of the deleted samples, ten draws, the
    first one thick. Below: a row per iteration; its line is what it went through in the last SETTLED of its iterations,
    its dot the end; dashed lines are the retrained model. The distance is on a log scale.
    """
    fig = plt.figure(figsize=(12.5, 8.2))
    halves: Any = fig.subfigures(2, 1, height_ratios=(1, 1.05))
    above, below = halves
    _draw_frontier(above.subplots(1, 2), records)
    ends = [record for record in iterated if record.config["dual"] != "none"]
    _draw_ends(below.subplots(1, 3, sharey=True), ends, records[0].metrics["retrained"])
    last = f"last {100 * SETTLED:g} % of the iterations"
    draws = f"{len(records)} draws of the deleted rows (first: thick, and below)"
    say_below(fig, f"{draws}; below, dot: the end, line: {last}, dashed: retrained, dotted: most possible")
    return fig


def _draw_frontier(axes: Sequence[Axes], records: Sequence[Record]) -> None:
    """The best models of every entropy, from the retrained one on."""
    shown = {"distance": "distance to the retrained model", "accuracy": "test accuracy"}
    for ax, (name, label) in zip(axes, shown.items(), strict=True):
        for record in records:
            m, first = record.metrics, record is records[0]
            look: dict[str, Any] = {"linewidth": 2.4, "zorder": 3} if first else {"linewidth": 0.8, "alpha": 0.45}
            ax.plot(m["frontier"]["entropy"], m["frontier"][name], color=colour("FedORA"), **look)
            for model, mark, size in (("original", "o", 6), ("retrained", "X", 7)):
                ax.plot(
                    m[model]["entropy"], m[model][name], mark, color=colour(MODELS[model]), markersize=size, zorder=4
                )
        ax.axvline(math.log(2), color=LINE, linewidth=1, linestyle=":")
        ax.set(xlabel="mean entropy on the deleted samples (nats)", xlim=(0.1, 0.72), ylabel=label)
    axes[0].set_title("(a) the more uncertain, the farther from retraining")
    axes[1].set_title("(b) and the less accurate")
    axes[1].set_ylim(min(0.8, axes[1].get_ylim()[0]), 1.0)
    axes[0].annotate("most possible", (math.log(2), 1), xycoords=("data", "axes fraction"), xytext=(-4, -4),
                     textcoords="offset points", ha="right", va="top", fontsize=9, color=LINE)  # fmt: skip
    handles = [
        Line2D([], [], color=colour("Original"), marker="o", linestyle="", label="original"),
        Line2D([], [], color=colour("Retrain"), marker="X", linestyle="", label="retrained = fine-tuned"),
        Line2D([], [], color=colour("FedORA"), label="best model of that entropy"),
    ]
    figure = axes[0].figure
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)


def _draw_ends(axes: Sequence[Axes], ends: Sequence[Record], retrained: Mapping[str, float]) -> None:
    """Where every iteration ends: distance, entropy and accuracy."""
    distance, entropy, accuracy = axes
    for height, record in enumerate(ends):
        m, hue = record.metrics, colour("FedORA") if record.config["dual"] == "scalar" else VECTOR
        kept = int(len(m["curves"]["t"]) * (1 - SETTLED))
        went = m["curves"]["entropy"][kept:]
        entropy.plot([min(went), max(went)], [height] * 2, color=hue, linewidth=4, alpha=0.4, solid_capstyle="round")
        for ax, name in ((distance, "distance"), (entropy, "entropy"), (accuracy, "accuracy")):
            ax.plot(m[name], height, "o", color=hue, markersize=8, zorder=3)
    for ax, name in ((entropy, "entropy"), (accuracy, "accuracy")):
        ax.axvline(retrained[name], color=colour("Retrain"), linestyle="--", linewidth=1.2)
    entropy.axvline(math.log(2), color=LINE, linewidth=1, linestyle=":")
    distance.set_yticks(range(len(ends)), labels=[_end_name(record) for record in ends])
    distance.set(ylim=(len(ends) - 0.5, -0.5), xscale="log", xlabel="distance to the retrained model (log scale)")
    distance.set_title("(c) where iterations end")
    distance.set_xticks([0.5, 1, 2, 5, 10, 20], labels=["0.5", "1", "2", "5", "10", "20"])
    distance.minorticks_off()
    entropy.set(xlim=(-0.02, 0.72), xlabel="mean entropy on the deleted (nats)")
    accuracy.set(xlim=(0, 1.02), xlabel="test accuracy")


def _end_name(record: Record) -> str:
    """What an iteration is called beside its row."""
    c = record.config
    if c["dual"] != "scalar":
        return f"vector: {VECTOR_NAMES[c['dual']]}"
    astray = record.metrics["missed"] > 1e-3  # does not come to the optimum
    return rf"scalar, $\epsilon$ = {c['threshold']:g}" + (rf", step $\sigma$ = {c['sigma']:g}" if astray else "")


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
        for (name, hue), dash in zip(hues.items(), DASHES, strict=True):  # the second shows the first
            found = starts[name]
            left.plot(found["t"], found["rms"], color=hue, linestyle=dash)
            left.fill_between(found["t"], found["least"], found["largest"], color=hue, alpha=0.25, linewidth=0)
            ends = [chosen[eta].metrics["starts"][name]["rms"][-1] for eta in steps]
            hollow: dict[str, Any] = {} if dash == "-" else {"markersize": 10, "markerfacecolor": "none"}
            right.plot(steps, ends, color=hue, linestyle=dash, marker="o", **hollow)
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
    handles += [
        Line2D([], [], color=hue, linestyle=dash, label=f"measured, retraining {name}")
        for (name, hue), dash in zip(hues.items(), DASHES, strict=True)
    ]
    say_below(fig, f"{noisy[0].config['seeds']} seeds: root mean square, and from the least to the largest (bands)")
    fig.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False)
    return fig
