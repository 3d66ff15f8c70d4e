"""What HF-KCU's claims share: how far two retrainings differ, and what that leaves open."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fu_papers.hf_kcu.results import mean_of, shown
from fu_papers.over_seeds import Part, told, unknown, within


def floor_allows(again: pd.DataFrame, points: float) -> Part | None:
    """Undetermined where two retrainings differ by more points of test accuracy than a claim allows, or where there are
    none; None elsewhere."""
    if "delta_test" not in again or again.delta_test.isna().all():
        return unknown("a second retraining would tell how far two of them differ")
    apart = mean_of(again, "delta_test")
    if apart <= points:
        return None
    return unknown(
        f"two retrainings differ by {apart:.2f} points, more than {points:g}: trainings that end nearer to each other "
        "would tell"
    )


def within_what_the_floor_allows(off: pd.Series, radius: float, floor: float) -> Part:
    """Within `radius` of Retrain, or undetermined where two retrainings differ by more and the interval reaches it."""
    near = within(off, max(radius, floor))
    if floor <= radius or near.verdict == "does not hold":
        return near
    return unknown(f"two retrainings differ by {floor:.3f}, more than {radius:g}: a larger attacked set would tell")


def intervals(values: Mapping[str, pd.Series], digits: int) -> str:
    """The mean and interval of each method."""
    return "; ".join(f"{shown(method)} {told(found, digits)}" for method, found in values.items())
