"""HF-KCU's claims on speed (H1, H7, H9), and how fast counts as the paper's.

Judged by gradient passes, which are counted and the same on every machine, with the seconds beside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from fu_papers.hf_kcu.grid import FORMS, Experiment
from fu_papers.hf_kcu.results import Speeds, shown
from fu_papers.lab.record import Record
from fu_papers.over_seeds import Part, exact, judged, unknown
from fu_papers.verdicts import ClaimResult

FASTER = 47.75
PAPER_EPOCHS = 20 * 5  # of retraining: with fewer, unlearning saves less
PAPER_IMAGES = 40_000  # of profile paper
CORRECTED = "HF-KCU"
Prices = Mapping[str, Record]  # setting -> what is paid whichever client leaves


def times_less(record: Record, name: str) -> tuple[float, float]:
    """How many times fewer gradient passes than retraining, and seconds."""
    passes, seconds = (record.metrics[kind]["retrain"] / record.metrics[kind][name] for kind in ("passes", "seconds"))
    return passes, seconds


def summed(price: Record, method: str) -> float:
    """How many times fewer passes than retraining, of all clients leaving one after the other: no draw decides.

    For the printed form it is E (N - 1) / (1 + 2k) of N clients, whoever holds what, after E epochs of retraining.
    """
    counted = price.metrics["passes"].values()
    return sum(one["retrain"] for one in counted) / sum(one[method] for one in counted)


def fast_enough(e: Experiment, price: Record | None, method: str) -> Part:
    """Whether the counted gain is the paper's. A smaller one leaves it open on a schedule shorter than the paper's,
    and for the corrected form on fewer images, with which its price hardly grows."""
    if price is None:
        return unknown("the passes that other leaving clients take would tell")
    if summed(price, method) >= FASTER:
        return exact(True)
    if e.rounds * e.epochs < PAPER_EPOCHS:
        return unknown(f"retraining of {PAPER_EPOCHS} epochs, as in the paper, would tell")
    if method == CORRECTED and (e.n_train or math.inf) < PAPER_IMAGES:
        return unknown("as many images as the paper's would tell, with which the corrected form's price hardly grows")
    return exact(False)


def told_of_all(price: Record | None, method: str) -> str:
    """`", 42.9x summed over all who leave, 20x to 90x over 10 leaving clients"`; nothing where none was counted."""
    if price is None:
        return ""
    gains = [counted["retrain"] / counted[method] for counted in price.metrics["passes"].values()]
    over = f"{min(gains):.3g}x to {max(gains):.3g}x over {len(gains)} leaving clients"
    return f", {summed(price, method):.3g}x summed over all who leave, {over}"


def faster(e: Experiment, record: Record, price: Record | None) -> ClaimResult:
    """H1: unlearning takes at most a 47.75th of retraining's gradient passes, summed over all who leave."""
    gains = {m: times_less(record, m) for m in FORMS}
    ours = "; ".join(
        f"{shown(m)} {gain:.1f}x fewer passes ({taken:.1f}x in time){told_of_all(price, m)}"
        for m, (gain, taken) in gains.items()
    )
    printed, corrected = ({"passes": fast_enough(e, price, m)} for m in FORMS)
    reason = (
        f"passes ratio >= {FASTER}, counted, summed over all clients leaving one after the other: the printed form's "
        f"passes grow with what its client holds, so that one of them is one draw; {e.rounds} rounds x {e.epochs:g} "
        f"epochs, the corrected form's curvature from {e.curvature_samples or 'all'} images; a price alone, what it "
        "buys is judged in H2, H3 and H11"
    )
    keys = [record.key, *([price.key] if price else [])]
    return judged("H1", printed, ours, "time: one process, median of 5", keys, reason, corrected)


def more_clients(e: Experiment, speeds: Speeds) -> ClaimResult:
    """H7: the speed-up grows from 10 to 100 clients. Undetermined: each number of clients is one draw of who leaves."""
    counts = [count for count in sorted(e.client_counts) if count <= 100]
    records = [speeds[f"clients {count}"] for count in counts]
    shown_here = []
    for method in FORMS:
        gains, times = zip(*(times_less(record, method) for record in records), strict=True)
        passes, taken = (", ".join(f"{value:.0f}x" for value in values) for values in (gains, times))
        shown_here.append(f"{shown(method)} {passes} fewer passes ({taken} in time)")
    tells = "several draws of who holds what at each of at least four numbers of clients up to 100 would tell"
    reason = (
        f"passes ratio at {', '.join(map(str, counts))} clients, one draw each: printed passes grow with what the "
        "leaving client holds, so the draw decides as much as the number of clients"
    )
    parts = {"growth": unknown(tells)}
    return judged("H7", parts, "; ".join(shown_here), "one seed", [r.key for r in records], reason, parts)


def small_damping(e: Experiment, record: Record) -> ClaimResult:
    """H9: the smaller the damping, the faster."""
    dampings = sorted(e.dampings, reverse=True)
    parts, shown_here = [], []
    for method in FORMS:
        found = [times_less(record, f"{method}, damping {damping:g}") for damping in dampings]
        gains, times = zip(*found, strict=True)
        grows = exact(all(a < b for a, b in pairwise(gains)))
        parts.append({"growth": grows if len(gains) > 1 else unknown("a second damping would tell")})
        passes, taken = (", ".join(f"{value:.1f}x" for value in values) for values in (gains, times))
        shown_here.append(f"{shown(method)} {passes} fewer passes ({taken} in time)")
    reason = f"passes ratio monotone over damping {', '.join(f'{d:g}' for d in dampings)}, counted; k is fixed"
    spread_of = "time: one process, median of 5"
    printed, corrected = parts
    return judged("H9", printed, "; ".join(shown_here), spread_of, [record.key], reason, corrected)
