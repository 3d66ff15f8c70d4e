"""Answers to what notebook 03 asks before its figures, from what those are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from IPython.display import HTML

from fu_papers.fedora.grid import Experiment
from fu_papers.fedora.results import dataset_title
from fu_papers.lab.record import Record
from fu_papers.predict import all_of, letter, reveal


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
