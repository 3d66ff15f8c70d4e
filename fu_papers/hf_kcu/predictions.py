"""Answers to what notebook 02 asks before its figures, from the records that those are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from IPython.display import HTML

from fu_papers.controls import DESTROYED
from fu_papers.hf_kcu.further_tables import ALIKE
from fu_papers.hf_kcu.grid import METHODS, ROUND, Experiment
from fu_papers.hf_kcu.results import Speeds, asr_reduction, main_runs, rows_of, shown
from fu_papers.hf_kcu.sweeps import SWEPT, mean_forget
from fu_papers.hf_kcu.theory_figures import IN_THEOREM_5, exactness_frame, terms_by_share
from fu_papers.lab.record import Record
from fu_papers.over_seeds import difference, interval, told
from fu_papers.predict import letter, reveal


def where_it_lands(records: Sequence[Record]) -> HTML:
    """How far the printed step, without its clip, ends from Retrain, doing nothing being 1: at most 0.5, 1, or more."""
    frame = exactness_frame(records)
    medians = {
        variant: float(frame[frame.variant == variant].error.median())
        for variant in ("Algorithm 1 as printed, no clip", "Eq. (3) as printed", "corrected")
    }
    printed, third, corrected = medians.values()
    because = (
        f"Medians over problems and seeds: {printed:.2g} times as far as doing nothing by Algorithm 1 without its "
        f"clip, {third:.2g} times by Eq. (3); the corrected step {corrected:.2g}. The printed step goes *away* from "
        "the retrained model: the sign comes first, though not alone, as exactness shows."
    )
    return reveal(letter(printed, (0.5, 1.0)), because, "hf_kcu")


def steps_of_a_hundredfold(counts: Sequence[Record], low: float = 100.0) -> HTML:
    """By what factor CG's steps grow while the condition number grows a hundredfold from `low`: at most 5, 20, or more.

    counts: of the kind "condition_number".
    """
    steps = {record.config["kappa"]: record.metrics for record in counts}
    few, many = (steps[kappa]["plain"] for kappa in (low, 100 * low))
    because = (
        f"{few} steps at kappa = {low:g} and {many} at {100 * low:g}: {many / few:.1f} times, about the *root* of a "
        f"hundred, as Eq. (6) lets expect. And what is only badly scaled ({steps[100 * low]['badly scaled']} steps) a "
        f"preconditioner solves in {steps[100 * low]['preconditioned']}."
    )
    return reveal(letter(many / few, (5.0, 20.0)), because, "hf_kcu")


def left_of_the_residual(residuals: Sequence[Record]) -> HTML:
    """What CG's last step leaves of the residual on a net's damped Hessian: at most 0.01, 0.1, or more.

    residuals: of the kind "residuals"; geometric means over clients.
    """
    curves = {
        matrix: [c for record in residuals for name, c in record.metrics["curves"].items() if name.startswith(matrix)]
        for matrix in ("hessian", "ggn")
    }
    left = {
        matrix: float(np.exp(np.mean([np.log(curve["residuals"][-1]) for curve in found])))
        for matrix, found in curves.items()
    }
    negative = [curve["negative"] for curve in curves["hessian"]]
    steps = [len(curve["residuals"]) - 1 for curve in curves["hessian"]]
    because = (
        f"{left['hessian']:.2g} of it after {steps[0]} steps; in {sum(negative)} of {sum(steps)} the curvature along "
        "the direction is negative, and CG goes to where the quadratic has a *saddle*, not a minimum. On the "
        f"Gauss-Newton matrix, which has no negative curvature, {left['ggn']:.2g} is left."
    )
    return reveal(letter(left["hessian"], (0.01, 0.1)), because, "hf_kcu")


def how_far_it_moves(e: Experiment, runs: pd.DataFrame) -> HTML:
    """The printed step's length on the net, of the model's: at most 0.005, 0.05, or more. runs: the wide frame."""
    r = main_runs(e, runs, "HF-KCU printed")
    step, to_retrain = float(r.step.mean()), float(r.gap.mean())
    because = (
        f"It moves by {step:.4f} of the model's length, and Retrain is {to_retrain:.3f} away. The clip allows "
        f"beta = {e.beta:g}, and line 24 multiplies by the client's weight, about one in {e.clients}: *no data can "
        "make it longer* (exercise hf_kcu-6)."
    )
    return reveal(letter(step, (0.005, 0.05)), because, "hf_kcu")


def worth_its_solve(e: Experiment, runs: pd.DataFrame) -> HTML:
    """The corrected step against the best ordinary rounds at its price, by KL on the forgotten: nearer, no telling,
    or farther."""
    r = main_runs(e, runs, "HF-KCU")
    natural = {rounds: rows_of(runs, "price", ROUND, str(rounds)) for rounds in e.natural_rounds}
    paid = [rounds for rounds, found in natural.items() if found.passes.mean() <= ALIKE * r.passes.mean()]
    best = min(paid or [min(natural)], key=lambda rounds: natural[rounds].kl_forget.mean())
    off = difference(r, natural[best], "kl_forget")
    low, high = interval(off)
    right = "a" if high < 0 else "c" if low > 0 else "b"
    because = (
        f"Corrected HF-KCU's divergence from Retrain on the forgotten is {r.kl_forget.mean():.3f}, that of {best} "
        f"ordinary round(s) of those who stay {natural[best].kl_forget.mean():.3f}; difference {told(off, 3)}. An "
        "interval that reaches to both sides of zero *ranks nobody*."
    )
    return reveal(right, because)


def who_is_beaten(e: Experiment, runs: pd.DataFrame, speeds: Speeds) -> HTML:
    """How many methods that work are beaten by doing nothing in both accuracy and time: none, some, or all."""
    seconds = speeds["main"].metrics["seconds"]
    timed = [method for method in METHODS if method in seconds]
    of = {method: main_runs(e, runs, method) for method in [*timed, "Original"]}
    beaten = [method for method in timed if not interval(difference(of[method], of["Original"], "test"))[0] > 0]
    right = "a" if not beaten else "c" if len(beaten) == len(timed) else "b"
    told = ", ".join(f"{shown(method)} {of[method].test.mean():.1f}" for method in ["Original", *timed])
    because = (
        f"Test accuracy in percent: {told}; doing nothing takes no time. So {len(beaten)} of {len(timed)} are not told "
        "(by the interval over seeds) to be more accurate than the model that nobody touched. Accuracy and speed "
        "are what Fig. 1 of the paper is about, and a frontier of these two says nothing of forgetting: *that* has to "
        "be asked of the forgotten data."
    )
    return reveal(right, because, "hf_kcu")


def loses_its_backdoor(runs: pd.DataFrame) -> HTML:
    """The relative fall of attack success by the corrected step: at most a quarter, three quarters, or more."""
    of = {method: rows_of(runs, "backdoor", method) for method in ("HF-KCU", "HF-KCU printed", "Retrain", DESTROYED)}
    r, left = of["HF-KCU"], {method: rows.asr.mean() for method, rows in of.items()}
    before, falls, clean = r.asr_original.mean(), asr_reduction(r), (r.test - r.test_original).mean()
    by_seed = f"{falls.min():z.0f} to {falls.max():z.0f} % by seed"
    because = (
        f"Attack success on images of other classes: {before:.0f} % before, {left['HF-KCU']:.0f} % after, a fall of "
        f"{falls.mean():z.0f} % of itself in the mean and {by_seed}; the printed step leaves "
        f"{left['HF-KCU printed']:.0f} %, Retrain {left['Retrain']:.0f} %. Clean accuracy changes by {clean:+.1f} "
        f"points, and has to be looked at, too: random weights have an attack success of {left[DESTROYED]:.0f} %. "
        "*A backdoor that is gone is no proof that a client is forgotten.*"
    )
    return reveal(letter(float(falls.mean()), (25, 75)), because)


def turned(runs: pd.DataFrame) -> HTML:
    """Which of k, damping and clip moves the corrected form's accuracy on the forgotten most, by means over seeds."""
    spans = {
        method: {group: float(np.ptp(mean_forget(runs, group, method))) for group in SWEPT}
        for method in ("HF-KCU", "HF-KCU printed")
    }
    ours = spans["HF-KCU"]
    damped = rows_of(runs, "damping", "HF-KCU").assign(value=lambda r: r.label.astype(float))
    means = damped.groupby("value")[["travelled", "kl_forget"]].mean().sort_index()
    ends = [
        f"{r.travelled:.2g} times as far as Retrain is away at λ = {value:g} (KL to it on the forgotten "
        f"{r.kl_forget:.3f})"
        for value, r in means.iloc[[0, -1]].iterrows()
    ]
    told = ", ".join(f"{name} {ours[group]:.1f}" for group, name in SWEPT.items())
    because = (
        f"Points between the highest and the lowest mean: {told}; the printed form's at most "
        f"{max(spans['HF-KCU printed'].values()):.1f}. *So it is here, over these ranges*; at another size another may "
        "win (look at the sweeps of the largest profile). k is what is paid for; damping says *how far the curvature "
        f"is trusted*, and where it is given, the corrected step goes {' and '.join(ends)}."
    )
    return reveal("abc"[max(range(len(ours)), key=list(ours.values()).__getitem__)], because)


def behind_the_bound(records: Sequence[Record]) -> HTML:
    """The longest of the other terms over the CG error, where most is removed: at most 1, 1000, or more."""
    share, terms = max(terms_by_share(records).items())
    bounded = terms[IN_THEOREM_5]
    others = {name: value for name, value in terms.items() if name != IN_THEOREM_5}
    longest = sorted(others, key=others.__getitem__, reverse=True)
    times = others[longest[0]] / bounded
    told = ", ".join(f"{name} {others[name]:.2g}" for name in longest[:3])
    because = (
        f"In units of the way to Retrain, where {share:.3g} % of the data leave: {IN_THEOREM_5} {bounded:.1g}; {told}. "
        f"The first of these is {float(f'{times:.1g}'):,.0f} times as long as what is bounded. *A bound on the solver "
        "says nothing of a system that is the wrong one.*"
    )
    return reveal(letter(times, (1.0, 1000.0)), because)
