"""Answers to what notebook 02 asks before its figures, from the records that those are drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from IPython.display import HTML

from fu_papers.hf_kcu.further_tables import ALIKE
from fu_papers.hf_kcu.grid import METHODS, ROUND, Experiment
from fu_papers.hf_kcu.results import Speeds, main_runs, rows_of
from fu_papers.hf_kcu.theory_figures import exactness_frame
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
    return reveal(letter(printed, (0.5, 1.0)), because)


def how_far_it_moves(e: Experiment, runs: pd.DataFrame) -> HTML:
    """The printed step's length on the net, of the model's: at most 0.005, 0.05, or more. runs: the wide frame."""
    r = main_runs(e, runs, "HF-KCU printed")
    step, to_retrain = float(r.step.mean()), float(r.gap.mean())
    because = (
        f"It moves by {step:.4f} of the model's length, and Retrain is {to_retrain:.3f} away. The clip allows "
        f"beta = {e.beta:g}, and line 24 multiplies by the client's weight, about one in {e.clients}: *no data can "
        "make it longer* (exercise hf_kcu-6)."
    )
    return reveal(letter(step, (0.005, 0.05)), because)


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
    means = {method: float(main_runs(e, runs, method).test.mean()) for method in [*timed, "Original"]}
    beaten = [method for method in timed if means[method] <= means["Original"]]
    right = "a" if not beaten else "c" if len(beaten) == len(timed) else "b"
    told = ", ".join(f"{method} {means[method]:.1f}" for method in ["Original", *timed])
    because = (
        f"Test accuracy in percent: {told}; doing nothing takes no time. So {len(beaten)} of {len(timed)} are no more "
        "accurate than the model that nobody touched. Accuracy and speed are what Fig. 1 of the paper is about, and a "
        "frontier of these two says nothing of forgetting: *that* has to be asked of the forgotten data."
    )
    return reveal(right, because)
