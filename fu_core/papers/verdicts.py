"""How the verdicts on all papers' claims are reached from what was met."""

from __future__ import annotations

from collections.abc import Sequence

from fu_core.report import ClaimResult


def judge(id: str, met: Sequence[bool], ours: str, spread: str, keys: Sequence[str], reason: str) -> ClaimResult:
    """A claim holds if every condition of `met` is, in part if any is. `keys`: of the records behind it."""
    verdict = "holds" if all(met) else "holds in part" if any(met) else "does not hold"
    return ClaimResult(id, verdict, ours, spread, list(dict.fromkeys(keys)), reason)


def lowered(met: Sequence[bool], nothing: bool) -> list[bool]:
    """What doing nothing achieves as well is at most a half-truth about a method."""
    return [*met, False] if nothing else list(met)
