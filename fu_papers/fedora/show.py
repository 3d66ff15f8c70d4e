"""What notebook 03 shows in several pieces at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from IPython.display import display

from fu_papers.fedora import breast_cancer_figures, figures, results, theory_figures
from fu_papers.fedora.grid import Experiment
from fu_papers.lab.record import Record
from fu_papers.look import keep_figure, keep_table, show_figure, style

CANCER = "Breast Cancer Wisconsin (bundled with scikit-learn)"
DIGITS = "Digits (bundled with scikit-learn)"
EXACT = "exact, no data"
GENERATED = theory_figures.GENERATED

Theory = Mapping[str, Sequence[Record]]  # records by their kind, as `Study.theory` returns them


def one_force(theory: Theory, out: Path) -> None:
    """Gradients of the two terms of (28), on a trained model and on logits alone: tables."""
    table = theory_figures.one_force_table(theory["one_force"])
    caption = "Gradients of the terms over all parameters of a trained vertical model"
    display(keep_table(out / "one_force.csv", DIGITS, table, caption))
    table = theory_figures.confidence_table(theory["one_force"])
    caption = "Length of the gradient on the logits, by how sure the model is"
    display(keep_table(out / "confidence.csv", EXACT, table, caption))


def saddle_point(theory: Theory, out: Path) -> None:
    """The iteration where the saddle point is known, with several steps: figure and table."""
    display(keep_figure(out / "saddle.png", GENERATED, theory_figures.saddle_figure, theory["saddle"]))
    table = theory_figures.saddle_table(theory["saddle"])
    display(keep_table(out / "saddle.csv", GENERATED, table, "How near the saddle point the iteration comes, and when"))


def duality_gap(theory: Theory, out: Path) -> None:
    """Where there is no saddle point: figure and table."""
    display(keep_figure(out / "duality_gap.png", GENERATED, theory_figures.duality_gap_figure, theory["duality_gap"]))
    table = theory_figures.duality_gap_table(theory["duality_gap"])
    display(keep_table(out / "duality_gap.csv", GENERATED, table, "One parameter, no saddle point"))


def theorem_1(theory: Theory, out: Path) -> None:
    """Theorem 1's bound against what was measured, and its limits: figure and tables."""
    of = (breast_cancer_figures.theorem_figure, theory["theorem_1"])
    display(keep_figure(out / "theorem_1.png", CANCER, *of))
    table = breast_cancer_figures.theorem_table(theory["theorem_1"])
    caption = "Distance to retraining against the bound, ridge regression"
    display(keep_table(out / "theorem_1.csv", CANCER, table, caption))
    table = breast_cancer_figures.limits_table(theory["limits"])
    caption = "What the bound tends to as the step gets smaller: the proof needs it small (erratum F7)"
    display(keep_table(out / "limits.csv", EXACT, table, caption))


def forbidden(theory: Theory, out: Path) -> None:
    """What the constraint forbids on logistic regression, by exact optima and by iteration: figure and tables."""
    optima, iterated = theory["forbidden"], theory["iterated"]
    of = (breast_cancer_figures.forbidden_figure, optima, iterated)
    display(keep_figure(out / "forbidden.png", CANCER, *of))
    table = breast_cancer_figures.forbidden_table(optima)
    caption = "Exact optima under the constraint, logistic regression, 10 requests"
    display(keep_table(out / "forbidden.csv", CANCER, table, caption))
    table = breast_cancer_figures.iterated_table(iterated)
    caption = "The same by iteration: scalar dual, and the readings of the element-wise one"
    display(keep_table(out / "iterated.csv", CANCER, table, caption))


def figure_4_7(
    experiment: Experiment,
    runs: pd.DataFrame,
    out: Path,
    descriptions: Mapping[str, Record],
    *,
    labels: bool,
    attacks: bool,
) -> None:
    """Figure 4 or 5, unlearning accuracy for samples or for labels; or with `attacks` 6 or 7.

    Of the data only what is drawn is named.
    """
    number, what = 4 + labels + 2 * attacks, "attacks" if attacks else "forgetting"
    rows = figures.panels(experiment, runs, labels=labels, attacks=attacks)
    source = results.source(descriptions, [task.dataset for _, tasks in rows for task in tasks])
    with style():
        fig = figures.figure_4_7(experiment, runs, labels=labels, attacks=attacks)
    display(show_figure(fig, out / f"fig{number}_{what}.png", source))
