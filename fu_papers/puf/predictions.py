"""Answers to what notebook 01 asks before its figures, from the records that those are drawn from."""

from __future__ import annotations

import numpy as np
import pandas as pd
from IPython.display import HTML

from fu_core.errors import InvalidRequest
from fu_papers.evidence import for_means
from fu_papers.predict import all_of, letter, reveal
from fu_papers.problem_figures import title
from fu_papers.puf.grid import AGAIN, Experiment
from fu_papers.puf.recovery_figures import mean_way
from fu_papers.puf.results import Unlearnings, rows_of, runs_of

ROUNDING = 1e-6  # points: means of the same few accuracies may differ by that much, and are equal
FELL = {"a": "PUF-Special", "b": "NoT", "c": "PGA", "d": "Natural"}  # the choices of `who_falls`


def something_to_forget(runs: pd.DataFrame) -> HTML:
    """By how many points the target's images are known worse by Retrain than by Original: at most 5, at most 25, more.

    runs: the wide frame of `results.of_runs`.
    """
    original = runs[(runs.group == "clients") & (runs.method == "Original") & (runs.stop == "test")]
    known = original.assign(retrained=original.forget - original.delta_forget)
    found = known.groupby("setting", sort=False)[["forget", "delta_forget"]].mean()
    letters = [letter(gap, (5, 25)) for gap in found.delta_forget]
    told = "; ".join(
        f"{title(str(setting))}: {row.delta_forget:.1f} points of {row.forget:.1f} % ({which})"
        for (setting, row), which in zip(found.iterrows(), letters, strict=True)
    )
    because = (
        f"{told}. Reading images that it has never seen is what a model is trained for. What separates the two "
        "is memory, and what nobody else's data could teach."
    )
    return reveal(all_of(letters), because)


def who_falls(e: Experiment, unlearnings: Unlearnings) -> HTML:
    """Whose test accuracy is lowest right after the step, of FELL, on the first setting."""
    setting = e.settings[0]
    fallen = {
        choice: float(np.mean([run.rounds[0]["test"] for run in found]))
        for choice, method in FELL.items()
        if (found := runs_of(unlearnings, "clients", setting, method))
    }
    lowest = min(fallen, key=lambda choice: fallen[choice])
    told = ", ".join(
        f"{FELL[choice]} {test:.1f} %" for choice, test in sorted(fallen.items(), key=lambda pair: pair[1])
    )
    because = (
        f"Test accuracy before any recovery, {title(setting)}: {told}. How deep a method falls says nothing yet of "
        "how well it forgets: *random weights* have fallen nearly as deep, and are of no use. "
        "What counts is where it stands when it is back."
    )
    return reveal(lowest, because)


def while_recovering(e: Experiment, unlearnings: Unlearnings, runs: pd.DataFrame) -> HTML:
    """What happens to PUF-Special's forget gap while it recovers: it falls to the end, or turns, or only grows.

    Setting by setting; it turns where it ends farther off than it has been by more than the noise floor.
    """
    ways = {s: way for s in e.settings if (way := mean_way(unlearnings, "clients", s, "PUF-Special")) is not None}
    if not ways:
        raise InvalidRequest(f"unlearnings must hold runs of PUF-Special on one of {list(e.settings)}, got none")
    told, letters = [], []
    for setting, way in ways.items():
        gaps = way[:, 1]
        again = rows_of(runs, "clients", setting, AGAIN, "test")
        floor, least = float(again.delta_forget.mean()), int(gaps.argmin())
        letters.append("c" if least == 0 else "b" if gaps[-1] > gaps[least] + floor else "a")
        told.append(
            f"{title(setting)}: {gaps[0]:.1f} points right after the step, least after round {least} "
            f"({gaps[least]:.1f}), {gaps[-1]:.1f} after the last, round {len(gaps) - 1}, where two retrainings are "
            f"{floor:.1f} apart, less than which is no turn ({letters[-1]})"
        )
    because = (
        f"Means of all runs; who is back stays where it is. {'. '.join(told)}. What was pushed too far comes back with "
        "the accuracy on everything else, and what the others' data teach of the target's, too: *when* one stops "
        "decides how near to Retrain a method is."
    )
    return reveal(all_of(letters), because)


def inside_the_floor(e: Experiment, runs: pd.DataFrame) -> HTML:
    """How many methods that mostly came back end nearer to Retrain's forget accuracy than a second retraining.

    None, at most half of them, or more. runs: the wide frame of `results.of_runs`. Of the first setting, by the paper's
    stop rule.
    """
    setting = e.settings[0]
    of = {m: rows_of(runs, "clients", setting, m, "test") for m in (*e.methods, "Original", AGAIN)}
    floor, nothing = (float(of[m].delta_forget.mean()) for m in (AGAIN, "Original"))
    back = {m: for_means(of[m])[0] for m in e.methods}
    gaps = {m: float(r.delta_forget.mean()) for m, r in back.items() if len(r)}
    if not gaps:
        return reveal("a", f"{title(setting)}: nobody came back in more than half of the runs.")
    inside = [m for m, gap in gaps.items() if gap <= floor]
    few = {m: f" ({len(back[m])} of {len(of[m])} runs)" if len(back[m]) < len(of[m]) else "" for m in gaps}
    told = ", ".join(f"{m} {gap:.1f}{few[m]}" for m, gap in sorted(gaps.items(), key=lambda pair: pair[1]))
    lost = ", ".join(m for m in e.methods if m not in gaps)
    told += f" (half of the runs or more gave up: {lost})" if lost else ""
    because = (
        f"{title(setting)}, points of forget accuracy off Retrain, means of the runs that came back: {told}; a second "
        f"retraining {floor:.1f}, doing nothing {nothing:.1f}. So {len(inside) or 'none'} of {len(gaps)} end within "
        "what another seed of Retrain amounts to, and *among those this figure cannot rank anybody*."
    )
    return reveal(letter(len(inside) / len(gaps), (0.0, 0.5)), because)


def pushing_harder(e: Experiment, sweep: pd.DataFrame, runs: pd.DataFrame) -> HTML:
    """How often a larger eta_u leaves a smaller forget gap after recovery: always, sometimes, or never.

    sweep: the wide frame of the sweep's runs, runs: of all others; PUF-Special, E_u = 1. The sweep's first setting
    decides, the others are told beside it. Of the runs that came back, and of no eta_u at which half of them did not:
    where one gave up its gap says when its patience ended.
    """
    told, answers = [], []
    for setting in e.swept_settings("clients"):
        here = (sweep.method == "PUF-Special") & (sweep.epochs_u == 1) & (sweep.setting == setting)
        swept = sweep[here & (sweep.stop == "test")].groupby("eta_u")
        means = pd.Series({eta: for_means(own)[0].delta_forget.mean() for eta, own in swept}, dtype=float)
        gaps, lost = means.dropna(), [f"{eta:g}" for eta in means[means.isna()].index]
        again = rows_of(runs, "clients", setting, AGAIN, "test")
        floor = float(again[again.seed.isin(list(e.sweep_seeds))].delta_forget.mean())
        moved = gaps.diff().dropna()
        smaller, steps = int((moved < 0).sum()), len(moved)
        answers.append("a" if smaller == steps else "c" if smaller == 0 else "b")
        listed, large = (
            ", ".join(f"{eta:g}: {gap:.1f}" for eta, gap in gaps.items()),
            int((moved.abs() > floor + ROUNDING).sum()),
        )
        told.append(
            f"{title(setting)}: {listed}; it shrinks at {smaller} of {steps} steps; {large} of all steps "
            f"{'is' if large == 1 else 'are'} larger than what tells two retrainings apart ({floor:.1f})"
            + (f"; half of the runs or more gave up at {', '.join(lost)}" if lost else "")
        )
    because = (
        f"Points of forget gap by eta_u, PUF-Special, one epoch, means of the runs that came back. {'. '.join(told)}. "
        "The gap is a distance to Retrain, and *below* Retrain is as far off as above; and recovery undoes a part."
    )
    return reveal(answers[0], because)
