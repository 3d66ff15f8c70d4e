"""Tables beside HF-KCU's own: everybody tuned alike, what a price buys, one client after the other.

Every function takes the experiment and records or the wide frame of `results`; nothing here trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from fu_core.unlearning.method import method as registered
from fu_papers.controls import AGAIN, CONTROLS
from fu_papers.hf_kcu.cells import distances, floors_of
from fu_papers.hf_kcu.grid import ASCENT, BESIDE, FORMS, IN_TURN, ROUND, SAME_START, Experiment
from fu_papers.hf_kcu.results import Unlearnings, main_runs, rows_of, shown
from fu_papers.hf_kcu.runs import best_trial
from fu_papers.lab.record import Record
from fu_papers.over_seeds import difference, told
from fu_papers.problem_figures import spread_or_dash

COMPARED = "KL on the forgotten - Natural's"
ALIKE = 1.1  # times a price counts as that price


TUNED_NAMES = {ROUND: "Natural, rounds tuned"}  # of which there may be several then


# --- everybody tuned alike -------------------------------------------------------------------------------------------


def tuning_table(e: Experiment, tuning: Unlearnings) -> pd.DataFrame:
    """What every method was given: trials, the best and the published values of what is tuned, and how good they were.

    Objective: points of forget gap plus points of accuracy short of Retrain's on images that nobody has trained on, of
    a client and a seed that are judged nowhere. A choice that is no better than doing nothing is of no use there.
    """
    rows = []
    for method in e.all_tuned:
        tried = [record for cell, record in tuning.items() if cell.method == method]
        if not tried:
            continue
        best = tried[best_trial(tried)]
        rows.append(
            {
                "method": shown(method),
                "trials": len(tried),
                "diverged": sum("objective" not in record.metrics for record in tried),
                "chosen": _values(best, method),
                "objective": _objective(best),
                "as in the other tables": _values(tried[0], method),
                "its objective": _objective(tried[0]),
                "doing nothing's": f"{tried[0].metrics['nothing']:.1f}",
            }
        )
    return pd.DataFrame(rows)


def _values(trial: Record, method: str) -> str:
    """What was tuned, `"lr 0.003, epochs 5"`; what a method decides by itself is left out."""
    options = trial.config["options"]
    if method == ASCENT and "length" not in options:
        return "as long as the corrected step"
    named: Iterable[str] = ("rounds",) if method == ROUND else registered(method).ranges
    values = {name: options[name] for name in named if options[name] is not None}
    return ", ".join(f"{name} {v:g}" if isinstance(v, float) else f"{name} {v}" for name, v in values.items()) or "–"


def _objective(trial: Record) -> str:
    return f"{trial.metrics['objective']:.1f}" if "objective" in trial.metrics else "diverged"


def tuned_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """The main setting once more, everybody with the best of equally many trials, below the controls."""
    rows = []
    controls = floors_of(e, runs)
    untuned = [peer for peer in e.peers if peer not in e.all_tuned]
    for method in (*controls, *e.all_tuned, *untuned):
        group = "peers" if method in untuned else "tuned"  # which has nothing to choose
        r = main_runs(e, runs, method) if method in controls else rows_of(runs, group, method)
        row: dict[str, Any] = {
            "method": TUNED_NAMES.get(method, shown(method)) if group == "tuned" else shown(method),
            "test acc. %": spread_or_dash(r.test),
            "forget acc. %": spread_or_dash(r.forget),
            "Δ forget": "–" if method == "Retrain" else spread_or_dash(r.delta_forget),
            **distances(r),
        }
        rows.append(row)
    return pd.DataFrame(rows)


# --- what a price buys -----------------------------------------------------------------------------------------------


def price_table(e: Experiment, runs: pd.DataFrame, passes: Mapping[str, float]) -> pd.DataFrame:
    """Doing nothing, then every method beside Natural at no higher price: KL to Retrain on the forgotten, by seed.

    passes: of retraining, as "retrain". Natural in the best of those numbers of rounds that cost no more, within a
    tenth; where even one costs more, that one. Below zero is nearer to Retrain than Natural. Two floors: of two
    retrainings from different weights, as no method starts, and of two from the same ones with other batches.
    """
    natural = {rounds: rows_of(runs, "price", ROUND, str(rounds)) for rounds in sorted(e.natural_rounds)}
    rows: list[dict[str, Any]] = []
    for method, price in (("Original", "0"), (AGAIN, "1"), (SAME_START, "1")):
        told_of = main_runs(e, runs, method)
        if len(told_of):
            kl = spread_or_dash(told_of.kl_forget, 3)
            rows.append({"method": shown(method), "passes / Retrain's": price, "KL on the forgotten": kl})
    places = [("methods", m) for m in (*FORMS, *BESIDE) if m != ROUND]
    for place, method in [*places, *(("peers", m) for m in e.peers), *(("tuned", m) for m in e.all_tuned)]:
        r = main_runs(e, runs, method) if place == "methods" else rows_of(runs, place, method)
        if r.empty or r.kl_forget.isna().any():
            continue
        paid = [rounds for rounds, found in natural.items() if found.passes.mean() <= ALIKE * r.passes.mean()]
        rounds = min(paid or [min(natural)], key=lambda rounds: natural[rounds].kl_forget.mean())
        off = difference(r, natural[rounds], "kl_forget")
        rows.append(
            {
                "method": TUNED_NAMES.get(method, shown(method)) + ", tuned" if place == "tuned" else shown(method),
                "passes / Retrain's": f"{r.passes.mean() / passes['retrain']:.3f}",
                "KL on the forgotten": spread_or_dash(r.kl_forget, 3),
                "Natural, rounds": str(rounds) + ("" if paid else " (dearer)"),
                "its passes / Retrain's": f"{natural[rounds].passes.mean() / passes['retrain']:.3f}",
                "its KL": spread_or_dash(natural[rounds].kl_forget, 3),
                COMPARED: told(off, 3),
                "test acc. - Natural's": told(difference(r, natural[rounds], "test"), 1),
            }
        )
    return pd.DataFrame(rows).fillna("–")


# --- one after the other ---------------------------------------------------------------------------------------------


def sequence_table(e: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Several clients leave, at once or one after the other, each step from the model that the one before has left."""
    rows = []
    for count in range(2, e.longest_sequence + 1):
        blocks = [(method, "at once") for method in (*CONTROLS, *FORMS, *BESIDE)]
        blocks += [(method, "in turn") for method in IN_TURN]
        for method, condition in blocks:
            r = rows_of(runs, "sequence", method, str(count))
            r = r[r.condition == condition]
            if r.empty:
                continue
            row: dict[str, Any] = {
                "clients that leave": count,
                "method": shown(method),
                "requests": "–" if method in CONTROLS else condition,
                "test acc. %": spread_or_dash(r.test),
                "forget acc. %": spread_or_dash(r.forget),
                "Δ forget": "–" if method == "Retrain" else spread_or_dash(r.delta_forget),
                **distances(r),
            }
            rows.append(row)
    return pd.DataFrame(rows)
