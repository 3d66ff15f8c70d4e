"""What a few seeds of one request say about a limit, and the verdict on a claim from those on its named parts.

    part = at_most(runs.delta_test, 0.60)           holds: the whole 95 % interval of the mean lies on the claim's side
    judged("H2", {"as printed": part}, ...)

These papers have one request per setting, so only seeds vary, and a verdict is about this request
(`fu_papers.evidence` is for crossed targets and seeds, and calls a single target undetermined). One seed decides
nothing, and two hardly anything, since t intervals with few degrees of freedom are wide. What is counted or computed
exactly has no interval: `exact`. What is one of a few values is in `fu_papers.over_seeds_discrete`. That all parts of a
claim hold needs no correction for their number; which of six or more do, is corrected for it (Holm).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from scipy.stats import t

from fu_core.errors import ConfigError, check_choice
from fu_papers.controls import ROUNDING
from fu_papers.evidence import FAMILY_FROM, MOST, holm, in_part
from fu_papers.verdicts import NO_OTHER, ClaimResult

HOLDS, FAILS, OPEN = "holds", "does not hold", "undetermined"
LEVEL = 0.95
LISTED = 6  # parts that a reason names; more are counted


@dataclass(frozen=True)
class Part:
    """What the data say about a part of a claim: "holds", "does not hold" or "undetermined".

    needed: how many seeds would decide an undetermined one if mean and spread stay as they are (infinite: more than
    `MOST`; 0: it is not about their number); now: how many there are; tells: what else would tell; met_by: who
    meets it, too, and should not (doing nothing), which is why it does not hold, or cannot be told; p: what a verdict
    that is decided is told by, two-sided: intervals of a level up to 1 - p say the same (0: it is exact).
    """

    verdict: str
    needed: float = 0
    now: int = 0
    tells: str = ""
    met_by: str = ""
    p: float = field(default=0.0, compare=False)


Parts = Mapping[str, Part]  # by name


# --- one part --------------------------------------------------------------------------------------------------------


def exact(met: bool) -> Part:
    """A part that is counted, proved or computed exactly."""
    return Part(HOLDS if met else FAILS)


def unknown(tells: str) -> Part:
    """A part that the data cannot decide whatever they are."""
    return Part(OPEN, tells=tells)


def interval(values: Iterable[float]) -> tuple[float, float]:
    """The 95 % t interval of the mean over seeds; infinite for one seed.

    For numbers that spread over a scale: seeds that agree to the last digit have an interval without width.
    """
    found = np.asarray(list(values), dtype=float)
    if len(found) < 2:
        return -np.inf, np.inf
    with np.errstate(invalid="ignore"):  # of what is infinite for a seed there is none
        reach = float(t.ppf((1 + LEVEL) / 2, len(found) - 1) * found.std(ddof=1) / np.sqrt(len(found)))
    return float(found.mean()) - reach, float(found.mean()) + reach


def told(values: Iterable[float], digits: int = 1, possible: tuple[float, float] = (-np.inf, np.inf)) -> str:
    """`"0.74 [-1.00, 2.48] (3 seeds)"`: the mean and its interval, which one seed does not have.

    possible: what no value can be below and above, where the interval ends, too: it covers as much with or without.
    """
    found = list(values)
    if not found:
        return "none (0 seeds)"
    ends = ", ".join(f"{end:z.{digits}f}" for end in np.clip(interval(found), *possible))
    between = f" [{ends}]" if len(found) > 1 else ""
    return f"{np.mean(found):z.{digits}f}{between} ({len(found)} seed{'s' * (len(found) != 1)})"


def farthest(
    cells: Mapping[str, Iterable[float]],
    digits: int = 1,
    possible: tuple[float, float] = (-np.inf, np.inf),
    limits: Mapping[str, float] | None = None,
) -> str:
    """`"up to 2.5 [1.0, 4.0] (3 seeds; CIFAR-10 ring)"`: of several places the one whose interval ends highest.

    limits: by place, where they are not all the same: then the one that ends farthest beyond its own, which is told. A
    single seed has no interval, and is told only where there is nothing else.
    """
    there = {place: found for place, values in cells.items() if (found := list(values))}
    if not there:
        return "none (0 seeds)"
    several = {place: found for place, found in there.items() if len(found) > 1} or there

    def beyond(place: str) -> float:
        found = several[place]
        end = interval(found)[1] if len(found) > 1 else float(np.mean(found))
        return end - (limits or {}).get(place, 0.0)

    most = max(several, key=beyond)
    if len(there) == 1:
        return told(there[most], digits, possible)
    what, limit = ("worst", f", limit {limits[most]:g}") if limits else ("up to", "")
    return f"{what} {told(several[most], digits, possible).removesuffix(')')}; {most}{limit})"


def of_each(places: int, what: str, seeds: int) -> str:
    """`"4 settings x 1 seed"`."""
    return f"{places} {what}{'s' * (places != 1)} x {seeds} seed{'s' * (seeds != 1)}"


def at_most(values: Iterable[float], limit: float) -> Part:
    """Whether the mean over seeds is at most `limit`."""
    found = list(values)
    low, high = interval(found)
    if high <= limit + ROUNDING:
        return Part(HOLDS, p=_p(found, limit + ROUNDING))
    return Part(FAILS, p=_p(found, limit + ROUNDING)) if low > limit + ROUNDING else _open(found, limit)


def at_least(values: Iterable[float], limit: float) -> Part:
    """Whether the mean over seeds is at least `limit`."""
    return at_most((-value for value in values), -limit)


def below(values: Iterable[float], limit: float) -> Part:
    """Whether the mean over seeds is less than `limit`: an interval that touches it is not below."""
    found = list(values)
    low, high = interval(found)
    if high < limit - ROUNDING:
        return Part(HOLDS, p=_p(found, limit - ROUNDING))
    return Part(FAILS, p=_p(found, limit - ROUNDING)) if low >= limit - ROUNDING else _open(found, limit)


def above(values: Iterable[float], limit: float) -> Part:
    """Whether the mean over seeds is more than `limit`."""
    return below((-value for value in values), -limit)


def within(values: Iterable[float], radius: float) -> Part:
    """Whether the mean over seeds is at most `radius` from 0, on either side."""
    found = list(values)
    return all_of(at_most(found, radius), at_least(found, -radius))


def all_of(*parts: Part) -> Part:
    """A part that consists of several conditions, none of which is a claim of its own.

    Of none it holds: "fewer than every rival that forgot" asks nothing where no rival did. Who has no data must say so
    with a part that is `unknown`.
    """
    if failing := [part.p for part in parts if part.verdict == FAILS]:
        return Part(FAILS, p=min(failing))
    open_ = [part for part in parts if part.verdict == OPEN]
    return _all_open(open_) if open_ else Part(HOLDS, p=max([part.p for part in parts], default=0.0))


def lowered_by(nothing: Part, part: Part, who: str = "doing nothing") -> Part:
    """`part`, unless doing nothing meets the same rule: that says nothing about a method, so it does not hold.

    As long as nobody knows whether doing nothing does, neither holds. who: another control that must not meet it.
    """
    if part.verdict == FAILS:
        return replace(part, p=min(part.p, nothing.p)) if nothing.verdict == HOLDS else part
    if nothing.verdict == FAILS:
        return replace(part, p=max(part.p, nothing.p))
    if nothing.verdict == HOLDS:
        return Part(FAILS, met_by=who, p=nothing.p)
    return _all_open([one for one in (part, nothing) if one.verdict == OPEN])


def limited_by(again: Part, part: Part) -> Part:
    """`part`, unless a second retraining does not meet the same rule: then two retrainings differ by as much.

    Where it is known not to, nothing can be told of a method; where it is not known to, that one meets it cannot.
    """
    if part.verdict == FAILS != again.verdict:
        return part
    if again.verdict == HOLDS:
        return replace(part, p=max(part.p, again.p))
    if again.verdict == FAILS:
        return unknown("a second retraining fails the rule, too")
    return _all_open([one for one in (part, again) if one.verdict == OPEN])


def difference(ours: pd.DataFrame, other: pd.DataFrame, column: str) -> pd.Series:
    """ours - other of a column, seed by seed. Raises ConfigError unless both have one row per seed.

    Rows that share a seed would count as so many seeds.
    """
    for name, frame in (("ours", ours), ("other", other)):
        for needed in ("seed", column):
            check_choice(f"a column of {name}", needed, frame.columns, ConfigError)
        if frame.seed.duplicated().any():
            raise ConfigError(f"{name} must have one row per seed, got seeds {frame.seed.tolist()}")
    return (ours.set_index("seed")[column] - other.set_index("seed")[column]).dropna()


def jackknife(pairs: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """One value per seed of a mean over pairs of seeds, for an interval: n mean - (n - 1) mean without that seed.

    The pairs share seeds, so that n of them are not n independent numbers. Empty with fewer than three seeds, and where
    one seed is in all pairs, without which there is no mean.
    """
    seeds = sorted({seed for pair in pairs for seed in pair})
    if len(seeds) < 3 or any(all(s in pair for pair in pairs) for s in seeds):
        return {}
    n, mean = len(seeds), float(np.mean(list(pairs.values())))
    without = {s: float(np.mean([value for pair, value in pairs.items() if s not in pair])) for s in seeds}
    return {s: n * mean - (n - 1) * without[s] for s in seeds}


def _p(values: Sequence[float], limit: float) -> float:
    """Two-sided, of a mean over seeds that is `limit`: the t interval of level 1 - p ends there."""
    distance, spread = abs(float(np.mean(values)) - limit), float(np.std(values, ddof=1))
    with np.errstate(divide="ignore"):
        return float(2 * t.sf(np.divide(distance, spread / np.sqrt(len(values))), len(values) - 1))


def _open(values: Sequence[float], limit: float) -> Part:
    """An undetermined mean, and how many seeds would decide."""
    now = len(values)
    if now < 2:
        return Part(OPEN, now=now, tells=f"several seeds would tell ({now} now)")
    distance, n = abs(float(np.mean(values)) - limit), np.arange(now + 1, MOST + 1)
    if not np.isfinite(distance):  # more seeds would not tell
        return Part(OPEN, now=now, tells="a finite number for every seed would tell")
    enough = t.ppf((1 + LEVEL) / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n) < distance
    return Part(OPEN, needed=int(n[enough][0]) if enough.any() else np.inf, now=now)


def _all_open(parts: Sequence[Part]) -> Part:
    """What decides all of some undetermined parts."""
    needed, now = max(part.needed for part in parts), max(part.now for part in parts)
    return Part(OPEN, needed=needed, now=now, tells="; ".join(dict.fromkeys(p.tells for p in parts if p.tells)))


# --- a claim ---------------------------------------------------------------------------------------------------------


def verdict_on(parts: Parts) -> str:
    """Of a claim from its parts, as `evidence.in_part` has it."""
    return in_part({name: part.verdict for name, part in parts.items()})[0]


def as_one_claim(parts: Parts) -> Parts:
    """The parts of a claim, corrected for their number (Holm) unless they are few or all agree (`evidence.family`)."""
    if len(parts) < FAMILY_FROM or len({part.verdict for part in parts.values()}) < 2:
        return parts
    adjusted = holm([1.0 if part.verdict == OPEN else part.p for part in parts.values()])
    alone = "some are told by themselves alone, which more seeds would tell among so many"
    return {
        name: part if part.verdict == OPEN or p <= 1 - LEVEL + ROUNDING else Part(OPEN, tells=alone)
        for (name, part), p in zip(parts.items(), adjusted, strict=True)
    }


def judged(
    id: str,
    printed: Parts,
    ours: str,
    spread: str,
    keys: Sequence[str],
    reason: str,
    corrected: Parts | None = None,
) -> ClaimResult:
    """The result of a claim that consists of named parts; the reason counts and names them where they disagree.

    printed: of the claim as the paper prints it; corrected: of the corrected form, where there are two.
    """
    printed, corrected = as_one_claim(printed), None if corrected is None else as_one_claim(corrected)
    told_of = {"as printed": _told(printed), "corrected": _told(printed if corrected is None else corrected)}
    if told_of["as printed"] == told_of["corrected"]:
        sentences = [reason, told_of["as printed"]]
    else:
        sentences = [reason, *(f"{form}: {sentence}" for form, sentence in told_of.items() if sentence)]
    reason = "; ".join(sentence for sentence in sentences if sentence)
    other = NO_OTHER if corrected is None else verdict_on(corrected)
    return ClaimResult(id, verdict_on(printed), ours, spread, list(dict.fromkeys(keys)), reason, other)


def _told(parts: Parts) -> str:
    """Which parts hold and which do not, where that differs; what doing nothing meets; what would tell."""
    named = {v: [name for name, part in parts.items() if part.verdict == v] for v in (HOLDS, FAILS, OPEN)}
    sentences = []
    if len(parts) > 1 and sum(map(bool, named.values())) > 1:
        say = {HOLDS: "hold", FAILS: "do not hold", OPEN: "are undetermined"}
        for verdict, names in named.items():
            listed = f" ({', '.join(name.replace(',', '') for name in names)})" if len(names) <= LISTED else ""
            sentences += [f"{len(names)} of {len(parts)} {say[verdict]}{listed}"] if names else []
    for who in dict.fromkeys(part.met_by for part in parts.values() if part.met_by):
        vain = sum(part.met_by == who for part in parts.values())
        sentences.append(f"{who} meets it, too" + (f", in {vain} of {len(parts)} parts" if len(parts) > 1 else ""))
    if verdict_on(parts) == OPEN:
        open_ = _all_open([parts[name] for name in named[OPEN]])
        if open_.needed:
            enough = f"more than {MOST}" if open_.needed > MOST else f"about {open_.needed:.0f}"
            sentences.append(f"{enough} seeds would tell ({open_.now} now)")
        sentences.append(open_.tells)
    return "; ".join(sentence for sentence in sentences if sentence)
