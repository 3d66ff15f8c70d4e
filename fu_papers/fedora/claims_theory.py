"""The verdicts on what FedORA claims without data: F12 on its two forces, F13 on its theorem."""

from __future__ import annotations

from fu_papers.lab.record import Record
from fu_papers.over_seeds import exact, judged, unknown
from fu_papers.verdicts import ClaimResult, Theory


def two_forces(theory: Theory) -> ClaimResult:
    """F12: the gradients of the two terms are not parallel, whichever way round the divergence is.

    The text at hand has lost the formula: as its sentence is usually read, KL(p||U), the two terms are one,
    H = log C - KL(p||U); with KL(U||p) they are not. Where the readings disagree, nothing is decided.
    """
    (record,) = theory["one_force"]
    cosine = record.metrics["cosine"]
    parallel = {term: value >= 1 - 1e-6 for term, value in cosine.items()}
    ours = (
        f"cosine of grad H and -grad KL(p||U) {cosine['-KL(p||U)']:.6f}; and -grad KL(U||p) {cosine['-KL(U||p)']:.3f}"
    )
    agree = len(set(parallel.values())) == 1
    gradients = exact(not any(parallel.values())) if agree else unknown("the direction of the divergence")
    return judged(
        "F12",
        {"gradients": gradients},
        ours,
        "one trained model, exact",
        [record.key],
        "the two gradients are not parallel, in both directions of a divergence whose formula the text has lost",
    )


def over_measured(record: Record) -> list[float]:
    """How many times the measured distance the printed bound is after the last step, from each start."""
    starts = record.metrics["starts"].values()
    return [start["bounds"]["printed"][-1] / max(start["rms"][-1], 1e-12) for start in starts]


def bounded(theory: Theory) -> ClaimResult:
    """F13: the distance to retraining never exceeds the recursion's bound."""
    records = [r for r in theory["theorem_1"] if r.config["batch"]]  # without batches: a step beyond the theorem's
    exceeded = sum(start["violated"]["printed"]["rms"] for r in records for start in r.metrics["starts"].values())
    checked = sum(r.metrics["checked"]["rms"] * len(r.metrics["starts"]) for r in records)
    loose = [times for r in records for times in over_measured(r)]
    least = min(r.metrics["without"]["printed"] / r.metrics["limits"]["printed"] for r in records)
    ours = (
        f"above the bound at {exceeded} of {checked} steps; the bound is {min(loose):.1f} to {max(loose):.0f} times "
        f"the distance in the end, and down to {least:.2f} of itself without unlearning"
    )
    reason = "root mean square of |theta^t - theta_R^t| over seeds <= bound (39) at every step, constants measured"
    return judged(
        "F13", {"bound": exact(exceeded == 0)}, ours, f"{len(records)} settings", [r.key for r in records], reason
    )
