"""FedORA's claims on its ablations and sweeps (F6 to F8): each part missing, less retained data, other weights.

Everything is compared seed by seed on the main task, and what has diverged on either side of a difference cannot show
an effect by the seeds that are left.
"""

from __future__ import annotations

import pandas as pd

from fu_papers.fedora.choices import ABLATIONS, STEPS
from fu_papers.fedora.grid import Experiment
from fu_papers.fedora.results import kept_model, rows_of
from fu_papers.fedora.rules import POINT, compared, with_losses
from fu_papers.over_seeds import FAILS, HOLDS, above, all_of, at_least, below, difference, judged, told, unknown, within
from fu_papers.over_seeds_discrete import rank_correlation, rank_shares, ranks_below
from fu_papers.verdicts import ClaimResult

MONOTONE = -0.8
LEAST_WEIGHTS = 3  # of a sweep that have not diverged, for a rank correlation


def every_part_matters(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F6: every part missing has the printed effect. Steps without adaptation are compared with steps that have it:
    the whole has what its trials chose, which may be neither a part of the method nor missing."""
    cells = {label: rows_of(runs, "ablation", e.main, "FedORA", label) for label in (*ABLATIONS, *STEPS)}
    whole, no_loss, no_batches, no_steps, steps = cells.values()
    effects = {
        "w/o UL": compared(no_loss, whole, lambda a, b: above(difference(a, b, "forget"), 0)),
        "w/o AB": compared(
            no_batches,
            whole,
            lambda a, b: all_of(above(difference(a, b, "images"), 0), within(difference(a, b, "test"), POINT)),
        ),
        "w/o AS": compared(
            no_steps,
            steps,
            lambda a, b: all_of(below(difference(a, b, "test"), 0), above(difference(a, b, "forget"), 0)),
        ),
    }

    def told_of(kept: pd.DataFrame) -> str:
        samples = f"samples {kept.images.mean() / whole.images.mean():.1f}x"
        return f"test {kept.test.mean():.1f}, unlearning {kept.forget.mean():.1f}, {samples}"

    ours = "; ".join(f"{label}: {with_losses(cell, told_of)}" for label, cell in cells.items())
    reason = (
        "w/o UL: unlearning acc. rises; w/o AB (all retained data as often as a part, the cap on samples off): more "
        "samples pass and test acc. stays within 1 point; "
        "w/o AS: test acc. falls and unlearning acc. rises, against with AS"
    )
    keys = [key for cell in cells.values() for key in cell.record]
    return judged("F6", effects, ours, f"whole: {with_losses(whole, lambda kept: told(kept.forget))}", keys, reason)


def little_is_enough(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F7: without retained data test accuracy falls, with 5 % of them it is at most a point lower than with all.

    Where nothing falls without retained data, or every run is lost, the sweep cannot tell how much of them is enough.
    """
    none, five, whole = (rows_of(runs, "ratios", e.main, "FedORA", f"{ratio:g}") for ratio in (0.0, 0.05, 1.0))
    if none.empty or five.empty or whole.empty:
        return ClaimResult("F7", "not run", "", "", [], "ratios lacks 0.0, 0.05 or 1.0")
    ours = "; ".join(
        f"{name} %: {with_losses(cell, lambda kept: f'{kept.test.mean():.1f}')}"
        for name, cell in (("0", none), ("5", five), ("100", whole))
    )
    part = compared(five, none, lambda a, b: above(difference(a, b, "test"), POINT))
    if kept_model(five).empty or part.verdict == HOLDS:  # there is something to be had from retained data
        part = compared(five, whole, lambda a, b: at_least(difference(a, b, "test"), -POINT))
    elif part.verdict == FAILS:
        low = f"test acc. is not {POINT:g} point lower" if len(kept_model(none)) else "every run diverged"
        part = unknown(f"without retained data {low}: the sweep cannot tell")
    reason = f"test acc. at 5 % at most {POINT:g} below that at 100 %, where it is more than {POINT:g} lower at 0 %"
    apart = {name: difference(five, cell, "test") for name, cell in (("100", whole), ("0", none))}
    spread = "; ".join(f"5 % less {name} % {told(found)}" for name, found in apart.items() if len(found))
    return judged("F7", {"5 %": part}, ours, spread, [*none.record, *five.record, *whole.record], reason)


def more_weight(e: Experiment, runs: pd.DataFrame) -> ClaimResult:
    """F8: unlearning and test accuracy fall with the forgetting weight, seed by seed, where runs did not diverge.

    By rank correlations of the few weights that a sweep has: with a t interval alone three seeds whose four weights
    are in perfect order would hold without any width, so that the exact test has to agree (`ranks_below`).
    """
    cells = {each: rows_of(runs, "weights", e.main, "FedORA", f"{each:g}") for each in e.weights}
    swept = pd.concat([cell.assign(weight=each) for each, cell in cells.items()])
    kept = kept_model(swept)
    falls, shown_here, spreads = {}, [], []
    for name, what in (("forget", "unlearning acc."), ("test", "test acc.")):
        seeds = [of_seed for _, of_seed in kept.groupby("seed") if len(of_seed) >= LEAST_WEIGHTS]
        ranks, sizes = [rank_correlation(seed.weight, seed[name]) for seed in seeds], [len(seed) for seed in seeds]
        few = f"fewer than {LEAST_WEIGHTS} weights without divergence"
        falls[what] = ranks_below(ranks, sizes, MONOTONE) if ranks else unknown(few)
        means = kept.groupby("weight")[name].mean()
        shown_here.append(f"{what} {means.iloc[0]:.1f} -> {means.iloc[-1]:.1f}" if len(means) else f"{what} –")
        share = f", as low by chance at a mean of {MONOTONE}: {rank_shares(ranks, sizes, MONOTONE)[0]:.2g}"
        spreads.append(f"{what} {told(ranks, 2, (-1, 1))}{share}" if ranks else f"{what}: {few}")
    lost = f"; {len(swept) - len(kept)} of {len(swept)} runs diverged, and are left out" * (len(kept) < len(swept))
    reason = (
        f"Spearman of weight and accuracy, seed by seed, < {MONOTONE}, by the interval and by an exact test of ranks"
    )
    spread = "Spearman: " + "; ".join(spreads)
    return judged("F8", falls, "; ".join(shown_here) + lost, spread, list(swept.record), reason)
