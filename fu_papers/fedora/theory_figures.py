"""Figures and tables of FedORA's small problems and of its unlearning loss, from the records of theory.PLANS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fu_papers.fedora.theory_small import DIRECTION, RETRAINED, START, SaddlePath
from fu_papers.lab.record import Record
from fu_papers.look import LINE, colour, say_below, three_digits
from fu_papers.problem_figures import axes_row

SOURCE = (
    "Breast Cancer Wisconsin (bundled with scikit-learn), 410 rows retained, 45 deleted, 114 for testing; Digits "
    "(likewise) for the gradients of the unlearning loss; quadratics and one-dimensional examples generated"
)
GENERATED = "generated: a quadratic with two parameters, and examples with one"
SHADES = ("#8c2d04", colour("FedORA"), "#f2a25c", "#3f6fae")  # of step sizes, slow to hasty; then what runs away


# --- two parameters --------------------------------------------------------------------------------------------------

REACH = 1.6  # of the plane shown, in each direction


def path_of(record: Record) -> SaddlePath:
    """What `saddle_path` returned, from a record of `saddle`."""
    values: dict[str, Any] = {
        name: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
        for name, value in record.metrics.items()
    }
    return SaddlePath(**values)


def saddle_axes() -> tuple[Figure, dict[str, Axes]]:
    """An empty figure with the axes that `draw_saddle` draws on: "plane", "dual", "residual"."""
    fig, axes = plt.subplot_mosaic(
        [["plane", "dual"], ["plane", "residual"]], figsize=(10.4, 5.9), width_ratios=(1.1, 1)
    )
    say_below(fig, "A dot: one iteration")
    return fig, axes


def draw_saddle(
    axes: Mapping[str, Axes],
    path: SaddlePath,
    *,
    hue: str = colour("FedORA"),
    label: str = "FedORA",
    background: bool = True,
) -> None:
    """The way of `path` over both parameters, and its dual and its residual per iteration, on given axes.

    `background`: contours of L_r, the half-plane that meets the constraint, start, retrained model and saddle point;
    False for a second path on the same problem.
    """
    plane, dual, residual = (axes[name] for name in ("plane", "dual", "residual"))
    if background:
        _draw_plane(plane, path)
        for ax, level, text in ((dual, path.price, r"$\lambda^*$"), (residual, 0.0, "met")):
            ax.axhline(level, color="black", linewidth=1, linestyle="--")
            ax.annotate(text, (1.0, level), xycoords=("axes fraction", "data"), xytext=(3, 0),
                        textcoords="offset points", va="center", fontsize=10)  # fmt: skip
        dual.set_ylabel(r"dual $\lambda$")
        residual.set_ylabel(r"residual $\epsilon - L_u$")
        residual.set_xlabel("iteration")
    below = 2.5 - 0.01 * len(plane.lines)  # the first path lies on top
    plane.plot(*path.theta.T.numpy(), "-o", color=hue, markersize=2.5, linewidth=1.1, label=label, zorder=below)
    plane.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, fontsize=9, frameon=False)
    for ax, values in ((dual, path.dual), (residual, path.residual)):
        ax.plot(values.numpy(), color=hue, linewidth=1.3, zorder=below)


def _draw_plane(ax: Axes, path: SaddlePath) -> None:
    a, b = np.meshgrid(*[np.linspace(-REACH, REACH, 121)] * 2)
    height = 0.5 * ((a - float(RETRAINED[0])) ** 2 + (b - float(RETRAINED[1])) ** 2)
    along = float(DIRECTION[0]) * a + float(DIRECTION[1]) * b
    ax.contourf(a, b, along, levels=[path.level, 1e9], colors=[colour("FedEraser")], alpha=0.13)
    ax.contour(a, b, along, levels=[path.level], colors=[colour("FedEraser")], linewidths=1.2)
    ax.contour(a, b, height, levels=[0.02, 0.1, 0.25, 0.5, 0.9, 1.5, 2.3, 3.3], colors="#b8b8b8", linewidths=0.8)
    for point, look, method, size, label in (
        (START, "o", "Original", 10, r"start $\theta^0$"),
        (RETRAINED, "X", "Retrain", 11, r"minimum of $L_r$: retrained"),
    ):
        ax.plot(*point.numpy(), look, color=colour(method), markersize=size, zorder=4, label=label)
    ax.plot(*path.optimum.numpy(), "*", color="#ffd23f", markeredgecolor="black", markersize=15, zorder=5,
            label=r"saddle point $\theta^*$")  # fmt: skip
    ax.text(
        0.98, 0.98, r"$L_u \geq \epsilon$", transform=ax.transAxes, ha="right", va="top", color="#00704f", fontsize=11
    )
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal")
    ax.set(xlabel=r"$\theta_1$, party 1", ylabel=r"$\theta_2$, party 2")
    ax.grid(visible=False)


def saddle_figure(records: Sequence[Record]) -> Figure:
    """The same problem with several step sizes."""
    fig, axes = saddle_axes()
    for record, hue in zip(records, SHADES, strict=False):
        label = rf"$\tau$ = {record.config['tau']:g}, $\sigma$ = {record.config['sigma']:g}"
        draw_saddle(axes, path_of(record), hue=hue, label=label, background=record is records[0])
    axes["dual"].set(xlim=(0, 80), ylim=(-0.05, 1.4))
    axes["residual"].set(xlim=(0, 80), ylim=(-1.4, 1.1))
    return fig


def saddle_table(records: Sequence[Record]) -> pd.DataFrame:
    """Step sizes, what the two conditions say of them, and where the iteration is at its end."""
    rows = []
    for r in records:
        m, T = r.metrics, r.config["iterations"]
        near = [t for t, far in enumerate(m["distance"]) if far >= 1e-3]
        rows.append(
            {
                "primal step τ": r.config["tau"],
                "dual step σ": r.config["sigma"],
                "τσ|K|² (paper: at most 1)": three_digits(m["step_rule"]),
                "Condat–Vu margin (at least 0)": three_digits(m["margin"]),
                "iterations to within 0.001": near[-1] + 1 if near[-1] < T else "never",
                f"distance to (θ*, λ*) after {T}": three_digits(m["distance"][-1]),
                "λ then": three_digits(m["dual"][-1]),
                "λ*": three_digits(m["price"]),
                "violation then": three_digits(max(0.0, m["residual"][-1])),
            }
        )
    return pd.DataFrame(rows)


# --- duality ---------------------------------------------------------------------------------------------------------


def duality_gap_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata F5, one parameter: minimise (θ − 5)²/2 subject to H(s(θ)) ≥ H(s(3)), s being the sigmoid."""
    (r,) = records
    m = r.metrics
    late = f"iteration, last {r.config['iterations'] // 10:,} of {r.config['iterations']:,} steps"
    rows = {
        "threshold ε = H(s(3))": f"{m['epsilon']:.4f}",
        "primal optimum, at θ = 3": f"{m['primal']:.3f}",
        "dual optimum": f"{m['dual']:.3f}",
        "dual variable there": f"{m['price']:.2f}",
        "inner minimiser jumps": f"from {m['before']:.2f} to {m['after']:.2f}",
        "λ = 0 is dual feasible, value 0, entropy of its minimiser": f"{m['unconstrained']:.3f}",
        f"{late}: θ": f"between {m['cycle']['theta'][0]:.2f} and {m['cycle']['theta'][1]:.2f}",
        f"{late}: λ": f"between {m['cycle']['dual'][0]:.2f} and {m['cycle']['dual'][1]:.2f}",
    }
    return pd.DataFrame({"quantity": name, "value": value} for name, value in rows.items())


def duality_gap_figure(records: Sequence[Record]) -> Figure:
    """The Lagrangian over theta with its jumping minimiser, the dual function, and the iteration that cycles.

    Curves and lines are named where they are; a larger price is a darker curve.
    """
    (r,) = records
    m = r.metrics
    fig, (left, middle, right) = axes_row(3, height=4.0, width=4.5)
    for inner, hue in zip(m["inner"], (SHADES[2], SHADES[1], SHADES[0]), strict=True):
        left.plot(inner["theta"], inner["value"], color=hue)
        left.plot(inner["minimiser"], inner["least"], "o", color=hue, markersize=7)
        named = rf"$\lambda$ = {inner['price']:.1f}"
        left.annotate(named, (inner["theta"][-1], inner["value"][-1]), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=10, color=hue)  # fmt: skip
    left.plot([m["before"], m["after"]], [m["dual"]] * 2, "o", color=SHADES[1], markersize=7)
    left.axvline(r.config["edge"], color=LINE, linestyle=":", linewidth=1.2)
    left.annotate("feasible", (r.config["edge"], 5.4), xytext=(-4, 0), textcoords="offset points", ha="right",
                  fontsize=10, color=LINE)  # fmt: skip
    left.set(xlabel=r"$\theta$", ylabel=r"Lagrangian $\mathcal{L}(\theta, \lambda)$", ylim=(-1, 6), xlim=(0, 5))
    left.set_title("(a) the minimiser (dot) jumps")
    middle.plot(m["curve"]["price"], m["curve"]["value"], color=colour("FedORA"))
    middle.axhline(m["primal"], color=colour("Retrain"), linestyle="--", linewidth=1.4)
    middle.annotate(f"primal optimum {m['primal']:.3f}", (0, m["primal"]), xytext=(5, 5), textcoords="offset points",
                    fontsize=10)  # fmt: skip
    middle.plot(m["price"], m["dual"], "*", color="#ffd23f", markeredgecolor="black", markersize=14, zorder=3)
    middle.annotate(f"dual {m['dual']:.3f}", (m["price"], m["dual"]), xytext=(9, -9), textcoords="offset points",
                    va="center", fontsize=10)  # fmt: skip
    middle.set(xlabel=r"$\lambda$", ylabel=r"$\min_\theta \mathcal{L}(\theta, \lambda)$", ylim=(-1, 2.6), xlim=(0, 25))
    middle.set_title("(b) the dual function stays below")
    last = r.config["iterations"]
    t = np.arange(last - len(m["path"]["theta"]), last)
    right.plot(t, m["path"]["theta"], color=colour("FedORA"))
    right.axhline(r.config["edge"], color=LINE, linestyle=":", linewidth=1.2)
    right.annotate(rf"optimum $\theta$ = {r.config['edge']:g}", (1, r.config["edge"]), xytext=(4, 0), va="center",
                   xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=10)  # fmt: skip
    right.set(xlabel="iteration", ylabel=r"$\theta$", title="(c) the iteration cycles around it")
    right.locator_params(axis="x", nbins=4)
    say_below(fig, f"Exact, no data; (c): the last {len(t):,} of {last:,} iterations of one run")
    return fig


# --- step sizes ------------------------------------------------------------------------------------------------------


def steps_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata F6: the printed condition says nothing about the primal step, and the adaptive rule misses slow growth."""
    return pd.DataFrame(
        {
            "primal step τ": r.config["tau"],
            "steps": "adaptive" if r.config["adaptive"] else "fixed",
            "τσK² (paper: at most 1)": r.metrics["step_rule"],
            "Condat–Vu margin (at least 0)": three_digits(r.metrics["margin"]),
            f"|θ − θ*| after {r.config['iterations']} iterations": three_digits(r.metrics["distances"][-1]),
            "outcome": "converges" if r.metrics["distances"][-1] < 1e-6 else "diverges",
            "τ at the end": three_digits(r.metrics["tau"]),
        }
        for r in records
    )


# --- the unlearning loss ---------------------------------------------------------------------------------------------


def one_force_table(records: Sequence[Record]) -> pd.DataFrame:
    """Claim F12: gradients of the two terms against that of the entropy, on a trained vertical model."""
    (m,) = (r.metrics for r in records)
    names = {"-KL(p||U)": "−KL(p‖U), as the paper's sentence reads", "-KL(U||p)": "−KL(U‖p), the reverse"}
    return pd.DataFrame(
        {
            "second term": text,
            "cosine with ∇H, all parameters": round(m["cosine"][name], 6),
            "per party (active last)": ", ".join(f"{cosine:.3f}" for cosine in m["per_party"][name]),
            "length relative to ∇H": three_digits(m["ratio"][name]),
        }
        for name, text in names.items()
    )


def confidence_table(records: Sequence[Record]) -> pd.DataFrame:
    """Errata F2: what is left of the gradient for a confident prediction, ten classes."""
    (m,) = (r.metrics for r in records)
    return pd.DataFrame(
        {
            "largest probability": row["largest"],
            "|∇_z H|": three_digits(row["H"]),
            "|∇_z KL(U‖p)|": three_digits(row["KL(U||p)"]),
        }
        for row in m["confident"]
    )


# --- by hand ---------------------------------------------------------------------------------------------------------


def by_hand_figure(
    losses: Mapping[str, Sequence[float]],
    score: Sequence[float],
    dual: Sequence[float],
    epsilon: float,
    retrained_score: float,
) -> Figure:
    """One run of the iteration, t = 0..T-1: cross-entropies by name, the score L_u with its threshold, and lambda.

    retrained_score: L_u of the model that never saw the forgotten samples, a dotted line. Where the constraint is met
    is shaded.
    """
    fig, (left, middle, right) = axes_row(3, height=3.6, width=3.9)
    for (name, values), hue in zip(losses.items(), (LINE, colour("FedORA")), strict=True):
        left.plot(values, color=hue, label=name)
    left.set(xlabel="iteration t", ylabel="cross-entropy", ylim=(0, None))
    _legend_above(left)
    middle.plot(score, color=colour("FedORA"), label=r"$L_u(\theta^t)$")
    middle.axhline(epsilon, color="black", linestyle="--", linewidth=1, label=r"threshold $\epsilon$")
    middle.axhline(retrained_score, color=colour("Retrain"), linestyle=":", label="retrained model's")
    middle.set(xlabel="iteration t", ylabel="forgetting score")
    right.plot(dual, color=colour("FedORA"))
    met = [reached >= epsilon for reached in score]
    for ax in (middle, right):
        ax.fill_between(range(len(met)), 0, 1, where=met, transform=ax.get_xaxis_transform(),
                        color=colour("FedEraser"), alpha=0.13, linewidth=0, label="constraint met")  # fmt: skip
    _legend_above(middle)
    right.set(xlabel="iteration t", ylabel=r"dual $\lambda$", ylim=(0, None))
    say_below(fig, "One run; shaded: the constraint is met")
    return fig


def _legend_above(ax: Axes) -> None:
    """The legend of `ax` over its frame, where it hides nothing."""
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, fontsize=9, columnspacing=1.0, frameon=False)
