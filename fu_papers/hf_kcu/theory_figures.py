"""Figures and tables of HF-KCU's formulas and theorems, drawn from the records of its checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from fu_papers.convex import CONVEX, pooled, slope, total_loss
from fu_papers.hf_kcu.plane import cg_path, two_parameters
from fu_papers.hf_kcu.theory import LEAVING
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, linestyle, say_below, three_digits
from fu_papers.problem_figures import axes_row

BUNDLED = "(bundled with scikit-learn), all rows, standardised, L2 0.01"
DIABETES, CANCER = f"Diabetes {BUNDLED}", f"Breast Cancer Wisconsin {BUNDLED}"
SOURCES = {  # by what was checked
    "exactness": f"Diabetes and Breast Cancer Wisconsin {BUNDLED}",
    "partial_deletion": DIABETES,
    "local_curvature": "generated regressions",
    "several_clients": DIABETES,
    "cg_convergence": f"generated systems; the clients: {CANCER}",
    "perturbation": "generated matrices",
    "error_terms": CANCER,
}
SPLIT_NAMES = {"iid": "IID", "dirichlet": "Dirichlet 0.5"}
GROUPS = {"corrected": "HF-KCU", "do nothing": "Original"}  # variant -> whose colour; the others are printed forms
NEUTRAL = "#8a8a8a"  # readings in between: right sign, but not all corrections
IN_THEOREM_5 = "CG error (k = 10)"  # of the terms of the error, the one that the theorem bounds
LEAST_TERM = 1e-6  # of the axis of the error's terms
AT_LEAST = 1e-3  # of the logarithmic axis; what is smaller sits at its edge, with its number beside it
STOP = 1e-4  # the relative residual at which the paper calls conjugate gradients converged


def exactness_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per problem, seed and variant."""
    return pd.DataFrame(
        {"problem": f"{CONVEX[r.config['data']]}, {SPLIT_NAMES[r.config['split']]}", "variant": variant, **metrics}
        for r in records
        for variant, metrics in r.metrics.items()
    )


def exactness_figure(records: Sequence[Record]) -> Figure:
    """Distance to exact retraining per reading of the update, four problems, a dot per seed; 1 = do nothing."""
    frame = exactness_frame(records)
    problems, variants = list(frame.problem.unique()), list(frame.variant.unique())
    fig, axes = axes_row(len(problems), height=4.6, width=3.2, sharey=True)
    farthest = max(60.0, 1.5 * float(frame.error.max()))
    for ax, problem in zip(axes, problems, strict=True):
        ax.axvspan(1, farthest, color=colour("HF-KCU printed"), alpha=0.12, linewidth=0)
        ax.axvline(1, color=colour("Original"), linestyle=linestyle("Original"))
        for place, variant in enumerate(variants):
            error = frame[(frame.problem == problem) & (frame.variant == variant)].error
            hue = _variant_colour(variant)
            ax.scatter(error.clip(lower=AT_LEAST), [place] * len(error), s=16, color=hue, alpha=0.45, linewidth=0)
            middle = float(error.median())
            edge = middle < AT_LEAST
            ax.scatter(
                max(middle, AT_LEAST), place, s=70, color=hue, marker="<" if edge else "o", edgecolor="white", zorder=3
            )
            if edge:
                note = f"{middle:.0e}: exact"
                ax.annotate(
                    note, (AT_LEAST, place), xytext=(10, 0), textcoords="offset points", va="center", fontsize=9
                )
        ax.set(xscale="log", title=problem, xlim=(6e-4, farthest), yticks=range(len(variants)))
        ax.set_xticks([0.001, 0.01, 0.1, 1, 10], labels=["≤0.001", "", "0.1", "1", "10"])
        ax.set_yticklabels(variants)
    axes[0].invert_yaxis()
    fig.supxlabel("distance to the retrained model; 1 = doing nothing, shaded = worse than that", fontsize=11)
    seeds = len({record.config["seed"] for record in records})
    say_below(fig, f"A small dot: one of {seeds} seeds; a large one: their median")
    return fig


def _variant_colour(variant: str) -> str:
    for name, method in GROUPS.items():
        if variant.startswith(name):
            return colour(method)
    return colour("HF-KCU printed") if "as printed" in variant else NEUTRAL


def exactness_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata H1: median and largest relative error per problem, and whether the forgotten client's loss rose."""
    frame = exactness_frame(records)
    rows = []
    for problem in frame.problem.unique():
        for variant in frame.variant.unique():
            r = frame[(frame.problem == problem) & (frame.variant == variant)]
            rows.append(
                {
                    "problem": problem,
                    "update": variant,
                    "error, median": three_digits(r.error.median()),
                    "error, mean": three_digits(r.error.mean()),
                    "error, largest": three_digits(r.error.max()),
                    "cosine with the true change": three_digits(r.cosine.mean()),
                    "step / |w|": three_digits(r.step.mean()),
                    "forgotten client's loss rose": f"{(r.forget_loss > 0).sum()} of {len(r)}",
                }
            )
    return pd.DataFrame(rows)


def partial_deletion_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata H6: right-hand sides for a tenth of a client."""
    frame = pd.DataFrame([record.metrics for record in records])
    return _summary(frame.melt(var_name="step"), "step")


def local_curvature_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata H7: mean relative error per number of clients and whose Hessian is used."""
    frame = pd.DataFrame([{"clients": r.config["clients"], **r.metrics} for r in records])
    means = frame.groupby("clients").mean().reset_index()
    return means.rename(columns={"local": "client's own (printed)", "global": "everybody's", "retained": "retained"})


def several_clients_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata H8: relative error per number of leaving clients, with and without causal weights."""
    frame = pd.DataFrame([{"leaving q": r.config["leaving"], **r.metrics} for r in records])
    means = frame.groupby("leaving q").mean().reset_index()
    return means.rename(columns={"with alpha": "with causal weights (Eq. 7)", "without": "without"})


def _summary(frame: pd.DataFrame, by: str) -> pd.DataFrame:
    grouped = frame.groupby(by, sort=False).value
    return pd.DataFrame({"relative error, mean": grouped.mean(), "largest": grouped.max()}).reset_index()


# --- conjugate gradient ----------------------------------------------------------------------------------------------


def slope_of(records: Sequence[Record], name: str = "plain") -> float:
    """Log-log slope of CG steps against the condition number, least squares over all."""
    return slope([record.config["kappa"] for record in records], [record.metrics[name] for record in records])


def cg_convergence_figure(convergence: Sequence[Record], clients: Sequence[Record], counts: Sequence[Record]) -> Figure:
    """The appendix figure: (a) error per step against the bound, with two clients; (b) steps against kappa."""
    fig, (left, right) = axes_row(2, height=4.0, width=5.6)
    shades = ("#f0b4a8", "#d9655a", colour("HF-KCU"))
    for record, shade in zip(convergence, shades, strict=True):
        kappa = record.config["kappa"]
        errors, bounds = (np.array(record.metrics[name]) for name in ("errors", "bounds"))
        shown = errors > 1e-12
        left.plot(np.flatnonzero(shown), errors[shown], color=shade, label=rf"$\kappa$ = {kappa:g}")
        left.plot(np.flatnonzero(shown), bounds[shown], color=shade, linestyle=":")
    left.plot([], [], color=LINE, linestyle=":", label="bound, Eq. (6)")
    for client, curve in clients[0].metrics["curves"].items():
        residuals = np.array(curve["residuals"])
        residuals = residuals[residuals > 1e-12]
        label = rf"client {client}'s Hessian, $\kappa$ = {curve['kappa']:.0f} (residual)"
        left.plot(residuals, color=colour("SISA"), linestyle="--" if client == "2" else "-", label=label)
    left.axhline(
        STOP, color=LINE, linestyle="--", linewidth=1, label=r"$\varepsilon = 10^{-4}$, where (b) counts", zorder=1
    )
    left.set(yscale="log", xlabel="CG step", ylabel="relative error in the energy norm", title="(a)", ylim=(1e-12, 5))
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "fontsize": 9, "frameon": False}
    left.legend(ncols=2, **below)

    kappa = np.array([record.config["kappa"] for record in counts])
    for name, label, hue in (
        ("plain", f"CG, slope {slope_of(counts):.2f}", colour("HF-KCU")),
        ("badly scaled", "CG, badly scaled matrix", colour("HF-KCU printed")),
        ("preconditioned", "the same, Jacobi-preconditioned", colour("FedEraser")),
    ):
        right.plot(kappa, [record.metrics[name] for record in counts], "o-", color=hue, label=label)
    first = counts[0].metrics["plain"]
    right.plot(kappa, first * np.sqrt(kappa / kappa[0]), color=LINE, linestyle=":", label=r"$O(\sqrt{\kappa})$")
    right.set(xscale="log", yscale="log", xlabel=r"condition number $\kappa$", title="(b)")
    right.set_ylabel(r"CG steps to a residual of $10^{-4}$")
    right.legend(ncols=2, **below)
    say_below(fig, "A line in (a), a dot in (b): one system of equations")
    return fig


# --- theorems --------------------------------------------------------------------------------------------------------


def perturbation_figure(records: Sequence[Record]) -> Figure:
    """Error over bound: how many draws stay below a ratio, Theorem 1 and Corollary 2. Nothing may lie right of 1."""
    fig, (ax,) = axes_row(1, height=3.2, width=6.0)
    for name, label, hue, dashes in (
        ("theorem 1", "Theorem 1, exact solves", colour("HF-KCU"), "-"),
        ("corollary 2", "Corollary 2, five CG steps", colour("SISA"), "--"),
    ):
        ratios = np.sort(records[0].metrics[name])
        share = 100 * np.arange(1, len(ratios) + 1) / len(ratios)
        told = f"{label}: at most {ratios[-1]:.2f}"
        ax.step(ratios, share, where="post", color=hue, linestyle=dashes, label=told)
    ax.axvline(1, color="black", linestyle=":", linewidth=1.5, label="the bound")
    ax.set(xlabel="error / bound", ylabel="draws up to there (%)", xlim=(0, None), ylim=(0, 103))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
    say_below(fig, f"A line: {len(ratios)} draws")
    return fig


def _in_order(record: Record) -> dict[str, float]:
    """The terms of a record, with the sign turned before the clip and not after it.

    What is recorded turns the sign last, when the clip has left next to nothing to turn: 2 s, s being the length after
    the clip and with the weight w. Turned first, at full length, it is 2 (c + s / (1 - w)): c is what the clip takes
    off, and s / (1 - w) what it leaves, at the weight w / (1 - w) that holds there. Clip and weight are as long after
    it as before it, and so is the whole error.
    """
    terms = dict(record.metrics["terms"])
    left = terms.pop("sign") / 2 / (1 - record.metrics["share"])
    found: dict[str, float] = {}
    for name, value in terms.items():
        if name.startswith("clip"):
            found["sign"] = 2 * (value + left)
        found[name] = value
    return found


def error_terms_table(records: Sequence[Record]) -> pd.DataFrame:
    """Theorem 5's error taken apart: mean length of each term relative to the true change; the largest is named."""
    rows: list[dict[str, Any]] = []
    for (share, terms), chosen in zip(terms_by_share(records).items(), _by_clients(records), strict=True):
        errors = pd.DataFrame([record.metrics["errors"] for record in chosen]).mean()
        row: dict[str, Any] = {"removed": f"{share:.3g} %"}
        row |= {name: three_digits(value) for name, value in terms.items()}
        row |= {"largest": max(terms, key=terms.__getitem__)}
        row |= {"end of the chain: error as printed": three_digits(errors["sign"])}
        rows.append(row)
    return pd.DataFrame(rows)


def terms_by_share(records: Sequence[Record]) -> dict[float, dict[str, float]]:
    """Mean length of each term, relative to the true change, by the percentage of the data that leave."""
    found = {}
    for chosen in _by_clients(records):
        share = 100 * float(np.mean([record.metrics["share"] for record in chosen]))
        terms = pd.DataFrame([_in_order(record) for record in chosen]).mean()
        found[share] = {str(name): float(value) for name, value in terms.items()}
    return found


def _by_clients(records: Sequence[Record]) -> list[list[Record]]:
    counts = dict.fromkeys(record.config["clients"] for record in records)
    return [[record for record in records if record.config["clients"] == count] for count in counts]


def error_terms_figure(records: Sequence[Record]) -> Figure:
    """The same as dots on a logarithmic axis, by share of the data removed; what is in the theorem is in bold."""
    table = error_terms_table(records)
    names = [c for c in table.columns if c not in ("removed", "largest") and not c.startswith("end")]
    fig, (ax,) = axes_row(1, height=3.8, width=8.0)
    hues, shapes = ("#3b0f12", "#8c2320", colour("HF-KCU"), "#f0b4a8"), ("o", "s", "D", "^")
    for shift, (row, hue, shape) in enumerate(zip(table.to_dict("records"), hues, shapes, strict=False)):
        lengths = [max(row[name], LEAST_TERM) for name in names]
        places = np.arange(len(names)) + (shift - (len(table) - 1) / 2) * 0.19
        ax.scatter(lengths, places, color=hue, marker=shape, s=38, zorder=3, label=f"{row['removed']} removed")
    ax.axvline(1, color=LINE, linestyle=":", linewidth=1.5, label="as long as the true change")
    ax.set(xscale="log", xlabel="length relative to the true change", yticks=range(len(names)))
    powers = [10.0**k for k in range(-6, 1)]
    ax.set_xticks(powers, labels=["≤ 1e-6", *(f"{power:g}" for power in powers[1:])])
    ax.minorticks_off()
    ax.set_yticklabels(names)
    ax.get_yticklabels()[names.index(IN_THEOREM_5)].set_fontweight("bold")
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(axis="y", visible=False)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    seeds = len({record.config["seed"] for record in records})
    few, many = (pick(record.config["clients"] for record in records) for pick in (min, max))
    say_below(fig, f"Bold: in Theorem 5. A dot: the mean of {seeds} seeds, one client of {few} to {many} leaves")
    return fig


# --- two parameters --------------------------------------------------------------------------------------------------


def surface_figure(k: int, damping: float, beta: float, sign: int) -> Figure:
    """The retained loss over both parameters, its optimum, and CG's way from the original model."""
    plane = two_parameters()
    path = cg_path(plane, k=k, damping=damping, beta=beta, sign=sign)
    loss = total_loss(plane.model, pooled(plane.clients[LEAVING + 1 :]))
    points = torch.stack([plane.w, plane.w_retrained])
    centre, reach = points.mean(dim=0), 2.2 * float((plane.w - plane.w_retrained).abs().max())
    a, b = (torch.linspace(float(c) - reach, float(c) + reach, 61, dtype=torch.float64) for c in centre)
    heights = torch.stack([torch.stack([loss(torch.stack([x, y])) for x in a]) for y in b])
    fig, (ax,) = axes_row(1, height=4.4, width=6.6)
    ax.contour(a, b, heights, levels=24, colors="#b8b8b8", linewidths=0.8)
    iterates = path.iterates.numpy()
    ax.plot(iterates[:, 0], iterates[:, 1], "o-", color=colour("HF-KCU"), markersize=4, label=f"CG, {k} steps")
    ax.plot(*plane.w, "o", color=colour("Original"), markersize=11, label="original")
    ax.plot(*plane.w_retrained, "X", color=colour("Retrain"), markersize=12, label="retrained (exact)")
    ax.plot(
        *path.final, "D", color=colour("HF-KCU"), markersize=8, markeredgecolor="white", label="unlearned, after clip"
    )
    away = float((path.final - plane.w_retrained).norm() / (plane.w - plane.w_retrained).norm())
    sign_name = "+" if sign > 0 else "-"
    ax.set(
        title=f"sign {sign_name}, damping {damping:.3g}, beta {beta:.3g}: distance {away:.3f} of doing nothing",
        xlabel=r"$\theta_1$",
        ylabel=r"$\theta_2$",
        xlim=(float(a[0]), float(a[-1])),
        ylim=(float(b[0]), float(b[-1])),
    )
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    say_below(fig, "One federation of five clients; contours: the loss of those who stay")
    return fig
