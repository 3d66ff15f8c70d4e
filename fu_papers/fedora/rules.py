"""What the rules of FedORA's claims share: who forgot comparably, whose model is of use, and what is left of what
diverged. Everything that has seeds is judged by 95 % intervals over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from fu_papers.controls import AGAIN, USEFUL
from fu_papers.fedora.grid import Task
from fu_papers.fedora.results import kept_model, rows_of
from fu_papers.over_seeds import FAILS, HOLDS, OPEN, Part, all_of, at_most, exact, unknown

POINT = 1.0  # of accuracy


def forgot(runs: pd.DataFrame, group: str, task: Task, method: str, label: str = "") -> Part:
    """Has a method forgotten comparably to Retrain? What is not forgotten costs no accuracy, and no time.

    It has if its accuracy on the removed data is off Retrain's by at most half of what doing nothing is, seed by seed,
    or by no more than a second retraining is on average (the noise floor). Of runs that did not diverge.
    """
    mine = kept_model(rows_of(runs, group, task, method, label))
    nothing, again = (rows_of(runs, group, task, of) for of in ("Original", AGAIN))
    half, floor = nothing.delta_forget.mean() / 2, again.delta_forget.mean()
    if mine.empty:
        return exact(False)
    if floor > half:
        return at_most(mine.delta_forget, floor)
    off, idle = (of.set_index("seed").delta_forget for of in (mine, nothing))
    return at_most((off - idle / 2).dropna(), 0)


def who_forgot(runs: pd.DataFrame, group: str, tasks: Sequence[Task], methods: Sequence[str]) -> dict[str, str]:
    """In how many of `tasks` each method forgot comparably: `"3"`, or `"3 (4 undetermined)"`."""
    found = {}
    for method in methods:
        verdicts = [forgot(runs, group, task, method).verdict for task in tasks]
        open_ = verdicts.count(OPEN)
        found[method] = str(verdicts.count(HOLDS)) + f" ({open_} undetermined)" * bool(open_)
    return found


def ahead(rival_forgot: Part, better: Part) -> Part:
    """Is somebody better than a rival, if it is one? Not being better than one that may not have forgotten is open."""
    if HOLDS in (rival_forgot.verdict, better.verdict):
        return better
    return rival_forgot if better.verdict == FAILS else all_of(rival_forgot, better)


def unless_diverged(cell: pd.DataFrame, rule: Callable[[pd.DataFrame], Part]) -> Part:
    """`rule` on the runs that did not diverge; what diverged for some seed cannot hold, and for all does not."""
    kept = kept_model(cell)
    if kept.empty:
        return exact(False)
    part, lost = rule(kept), len(cell) - len(kept)
    return unknown(f"diverged for {lost} of {len(cell)} seeds") if lost and part.verdict == HOLDS else part


def compared(ours: pd.DataFrame, other: pd.DataFrame, rule: Callable[[pd.DataFrame, pd.DataFrame], Part]) -> Part:
    """`rule` on two cells' runs that did not diverge, as `unless_diverged` has it: what either of them has lost is
    missing from a difference, which would else hold by the seeds that are left."""
    return unless_diverged(ours, lambda mine: unless_diverged(other, lambda theirs: rule(mine, theirs)))


def with_losses(cell: pd.DataFrame, told: Callable[[pd.DataFrame], str]) -> str:
    """What is told of the runs that did not diverge, and how many did: `"test 31.4, diverged (2 of 3)"`."""
    kept = kept_model(cell)
    lost = f"diverged ({len(cell) - len(kept)} of {len(cell)})" * (len(kept) < len(cell))
    return ", ".join(sentence for sentence in (told(kept) if len(kept) else "", lost) if sentence)


def useful(cell: pd.DataFrame) -> Part:
    """Is the model still of use? What has lost its accuracy has forgotten everything."""
    return at_most(cell.test_retrain - cell.test, USEFUL)
