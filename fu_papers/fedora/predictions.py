"""Answers to what notebook 03 asks before its figures, from what those are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from IPython.display import HTML

from fu_papers.fedora.claims import BACKDOORED
from fu_papers.fedora.claims_theory import over_measured
from fu_papers.fedora.grid import Experiment, Task
from fu_papers.fedora.page import OURS
from fu_papers.fedora.results import kept_model, request_title, rows_of, shown, with_backdoor
from fu_papers.lab.record import Record
from fu_papers.predict import all_of, letter, reveal
from fu_papers.problems import dataset_title

RESTS = 0.01  # who moves less has come to rest


def price_ends(prices: Sequence[float], scores: Sequence[float], epsilon: float) -> HTML:
    """Where the price is after the last iteration of the loop by hand: at its highest, between, or at zero."""
    last, highest = prices[-1], max(prices)
    right = "c" if last == 0 else "a" if last == highest else "b"
    first = next((t for t, price in enumerate(prices) if t > prices.index(highest) and price == 0), None)
    because = f"It climbs to {highest:.2f} and ends at {last:.2f}"
    because += f"; it is zero for the first time after {first} iterations" if first is not None else ""
    because += (
        f". The score, asked to be {epsilon:.2f}, goes up to {max(scores):.2f} and ends at {scores[-1]:.2f}. The "
    )
    because += "price is the *integral* of what is lacking: it goes on rising until the constraint is met, so it "
    because += "overshoots, and then only time above the threshold can bring it down."
    return reveal(right, because)


def is_it_allowed(records: Sequence[Record]) -> HTML:
    """The retrained model's uncertainty about the forgotten, of the largest possible: at most a quarter, a half, more.

    records: those of the kind "forbidden", logistic regression with exact optima.
    """
    shares = [record.metrics["retrained"]["entropy"] / math.log(2) for record in records]
    asked = [row["threshold"] for row in records[0].metrics["thresholds"]]
    mean = float(np.mean(shares))
    met = [level for level in asked if min(record.metrics["retrained"]["entropy"] for record in records) >= level]
    because = (
        f"{100 * mean:.0f} % of the largest entropy on average ({100 * min(shares):.0f} to {100 * max(shares):.0f} by "
        f"request). Of the {len(asked)} thresholds in the figure it meets {len(met)} at every request. A constraint "
        "that it does not meet *forbids retraining*, and pushes the model away from it."
    )
    return reveal(letter(mean, (0.25, 0.5)), because)


def already_known(e: Experiment, runs: pd.DataFrame) -> HTML:
    """How many percent of the forgotten samples of some classes Retrain gets right: at most 25, at most 75, or more."""
    whole = runs.request.str.endswith("-100")
    r = runs[(runs.group == "main") & (runs.method == "Retrain") & ~whole]
    means = r.groupby("setting", sort=False).forget.mean()
    letters = [letter(float(mean), (25, 75)) for mean in means]
    told = "; ".join(
        f"{dataset_title(str(setting))}: {mean:.0f} % ({which})"
        for (setting, mean), which in zip(means.items(), letters, strict=True)
    )
    because = (
        f"{told}. It has never seen them; others of their classes have taught it to read them. *Lower is not "
        "better*: the star in the figure is this number, not zero."
    )
    return reveal(all_of(letters), because)


def below_retrain(e: Experiment, runs: pd.DataFrame) -> HTML:
    """In how many settings FedORA gets fewer of the forgotten samples right than Retrain, on average over seeds: in at
    most a third, at most two thirds, or more."""
    ends = {task: _mean_of(runs, task, OURS, "forget") for task in e.tasks(labels=False)}
    ends = {task: mean for task, mean in ends.items() if not math.isnan(mean)}  # all seeds of a setting may diverge
    of = {task: _mean_of(runs, task, "Retrain", "forget") for task in ends}
    share = sum(ends[task] < of[task] for task in ends) / max(len(ends), 1)
    told = "; ".join(f"{_place(task)}: {ends[task]:.0f} %, Retrain {of[task]:.0f} %" for task in ends)
    because = (
        f"{told}. *Below* the dashed line more is forgotten than by a model that never saw the samples, which is as "
        "far off as above it, and tells whoever looks that they were here."
    )
    return reveal(letter(share, (1 / 3, 2 / 3)), because)


def never_named(e: Experiment, runs: pd.DataFrame) -> HTML:
    """How many percent of classes that it has never seen Retrain gets right: at most 1, at most 20, or more."""
    tasks = e.tasks(labels=True)
    mean = float(np.mean([_mean_of(runs, task, "Retrain", "forget") for task in tasks]))
    told = "; ".join(
        f"{_place(task)}: {_mean_of(runs, task, 'Retrain', 'forget'):.1f} %, doing nothing "
        f"{_mean_of(runs, task, 'Original', 'forget'):.0f} %"
        for task in tasks
    )
    because = (
        f"{told}. Guessing is right about one in as many as there are classes, but a model does not guess: a name that "
        "no sample had is one that training only ever pushed down. So of whole classes *lower is nearer*, unlike of "
        "samples in the figure before."
    )
    return reveal(letter(mean, (1, 20)), because)


def attack_before(e: Experiment, runs: pd.DataFrame) -> HTML:
    """How often the membership attack is right about the forgotten samples before anything is forgotten: at most 55
    percent, at most 75, or more."""
    by_data: dict[str, list[float]] = {}
    for task in e.tasks(labels=False):
        by_data.setdefault(task.dataset, []).append(100 * _mean_of(runs, task, "Original", "mia"))
    means = {dataset: float(np.mean(found)) for dataset, found in by_data.items()}
    letters = {dataset: letter(mean, (55, 75)) for dataset, mean in means.items()}
    told = "; ".join(f"{dataset_title(d)}: {mean:.0f} % ({letters[d]})" for d, mean in means.items())
    because = (
        f"{told}. A coin is right about 50 %. Where the attack hardly tells what the model was trained on, *doing "
        "nothing* passes it, and so does everybody: then it says nothing about forgetting."
    )
    return reveal(all_of(list(letters.values())), because)


def backdoor_after(e: Experiment, runs: pd.DataFrame) -> HTML:
    """What most of FedORA's models with a backdoor in whole classes have come to: still of use without it, of use with
    it, or no use."""
    rows = pd.concat([_of(runs, task, OURS) for task in e.tasks(labels=True)])
    found = with_backdoor(rows)
    rid = int((found.kept.asr < BACKDOORED).sum())
    counts = {"a": rid, "b": len(found.kept) - rid, "c": found.diverged + found.ruined}
    most = [choice for choice, count in counts.items() if count == max(counts.values())]
    because = (
        f"Of {found.n} models of {shown(OURS)}, of use (see section 9) are {counts['a']} without its backdoor, "
        f"{counts['b']} with more of it left, {counts['c']} are gone ({found.diverged} diverged, {found.ruined} "
        f"ruined); without it: it succeeds in less than {BACKDOORED:g} %. Its hyper-parameters were chosen on data "
        "without a backdoor. One that is gone *because the model is gone* has not been forgotten: "
        "such models are crosses, or missing, and no mean has them in it."
    )
    return reveal(all_of(most), because)


def _of(runs: pd.DataFrame, task: Task, method: str) -> pd.DataFrame:
    return rows_of(runs, "main", task, method)


def _mean_of(runs: pd.DataFrame, task: Task, method: str, metric: str) -> float:
    return float(kept_model(_of(runs, task, method))[metric].mean())


def _place(task: Task) -> str:
    return f"{dataset_title(task.dataset)}, {request_title(task.request)}"


def bound_over_measured(records: Sequence[Record]) -> HTML:
    """How many times the measured distance Theorem 1's printed bound is where it is tightest: at most 10, 100, or more.

    records: of the kind "theorem_1"; those that train with batches, at the last iteration, from both starts, as the
    claim has them (the table has the bound's limit, from scratch).
    """
    noisy = [record for record in records if record.config["batch"]]
    times = [each for r in noisy for each in over_measured(r)]
    none = [each for r in noisy if r.config["threshold"] is None for each in over_measured(r)]
    because = (
        f"{min(times):.0f} to {max(times):.0f} times, in {len(noisy)} settings from two starts; {min(none):.0f} to "
        f"{max(none):.0f} in the settings that unlearn nothing. No bound that is so far away tells good unlearning "
        "from none, and it grows with every unlearning term that is added: *it is smallest for plain fine-tuning*."
    )
    return reveal(letter(min(times), (10, 100)), because)


def where_it_ends(records: Sequence[Record]) -> HTML:
    """Where the iteration without a saddle point is in its last tenth: at rest at the constrained optimum, at rest
    elsewhere, or nowhere. records: of the kind "duality_gap"."""
    (r,) = records
    edge, m = r.config["edge"], r.metrics
    low, high = m["cycle"]["theta"]
    at_rest = high - low < RESTS
    right = "c" if not at_rest else "a" if abs(low - edge) < RESTS else "b"
    because = (
        f"In the last tenth of {r.config['iterations']:,} iterations θ is between {low:.2f} and {high:.2f}; the "
        f"optimum is {edge:g}. At the best price, {m['price']:.1f}, the Lagrangian has two minimisers, "
        f"{m['before']:.2f} and {m['after']:.2f}: one forgets too little, the other more than was asked for, and no "
        f"price has {edge:g} as its minimiser. So *the price is never right*: it rises at one and falls at the other. "
        f"The best that a price can promise, {m['dual']:.3f}, stays below the {m['primal']:.3f} that it costs."
    )
    return reveal(right, because)


def heavier(e: Experiment, runs: pd.DataFrame) -> HTML:
    """By how many points accuracy on the forgotten falls from the smallest forgetting weight to the largest: at most 5,
    at most 20, or more. Means of the runs that did not diverge, on the setting of Fig. 8."""
    means = {w: kept_model(rows_of(runs, "weights", e.main, "FedORA", f"{w:g}")).forget.mean() for w in e.weights}
    found = {weight: float(mean) for weight, mean in means.items() if not math.isnan(mean)}
    if len(found) < 2:
        return reveal("none of them", "Fewer than two weights have a run that did not diverge.")
    fallen = found[min(found)] - found[max(found)]
    told = ", ".join(f"{weight:g}: {mean:.1f} %" for weight, mean in found.items())
    moved = f"falls by {fallen:.1f}" if fallen > 0 else f"rises by {-fallen:.1f}"
    because = (
        f"Accuracy on the forgotten by weight: {told}; it {moved} points. A weight multiplies a force. "
        "What comes of it depends on how long the steps are and when they end, too: *a handle is what moves something "
        "when it is turned*, whatever a formula says."
    )
    return reveal(letter(fallen, (5, 20)), because)
