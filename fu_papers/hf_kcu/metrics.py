"""HF-KCU's own measure of faithfulness to retraining, and where it means nothing."""

from __future__ import annotations

import math
from typing import NamedTuple


class CausalFaithfulness(NamedTuple):
    """CF; the fraction it is 1 minus of; that fraction's denominator in points; whether it means anything."""

    value: float
    ratio: float
    denominator: float
    defined: bool


SMALLEST_DENOMINATOR = 0.1  # points


def causal_faithfulness(unlearned: float, retrained: float, trained: float, *, n_test: int) -> CausalFaithfulness:
    """`CF = 1 - |a_u - a_r| / |a_o - a_r|` from test accuracies in percent. HF-KCU, Sec. 5.1.

    1: as accurate as Retrain; 0: no nearer than doing nothing. NaN and not defined where the denominator
    is below the standard error of an accuracy on `n_test` samples (or 0.1 points): there it is noise over
    noise (App. A.11, errata H3).
    """
    for name, value in (("unlearned", unlearned), ("retrained", retrained), ("trained", trained)):
        if not 0 <= value <= 100:
            raise ValueError(f"{name} must be an accuracy in percent, got {value}")
    share = retrained / 100
    standard_error = 100 * math.sqrt(share * (1 - share) / n_test)
    denominator = abs(trained - retrained)
    if denominator < max(standard_error, SMALLEST_DENOMINATOR):
        return CausalFaithfulness(math.nan, math.nan, denominator, False)
    ratio = abs(unlearned - retrained) / denominator
    return CausalFaithfulness(1 - ratio, ratio, denominator, True)
