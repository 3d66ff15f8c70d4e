"""What a few seeds of one request say about a limit, and the verdict on a claim from those on its named parts.

    part = at_most(runs.delta_test, 0.60)           holds: the whole 95 % interval of the mean lies on the claim's side
    judged("H2", {"as printed": part}, ...)

These papers have one request per setting, so only seeds vary, and a verdict is about this request
(`fu_papers.evidence` is for crossed targets and seeds, and calls a single target undetermined). One seed decides
nothing, and two hardly anything, since t intervals with few degrees of freedom are wide. What is counted or computed
exactly has no interval: `exact`. What is one of a few values, yes or no or the order of a few runs, is the same for all
of a few seeds by chance, and its t interval has no width then: `rarely` and `ranks_below` have the exact distribution.
That all parts of a claim hold needs no correction for their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, norm, rankdata, t

from fu_core.errors import ConfigError, check_choice, check_count, check_share
from fu_papers.controls import ROUNDING
from fu_papers.evidence import MOST, in_part
from fu_papers.verdicts import NO_OTHER, ClaimResult

HOLDS, FAILS, OPEN = "holds", "does not hold", "undetermined"
LEVEL = 0.95
LISTED = 6  # parts that a reason names; more are counted
SAME_SUM = 1e-6  # of rank correlations, whose sums are much farther apart, or the same but for rounding


@dataclass(frozen=True)
class Part:
    """What the data say about a part of a claim: "holds", "does not hold" or "undetermined".

    needed: how many seeds would decide an undetermined one if mean and spread stay as they are (infinite: more than
    `MOST`; 0: it is not about their number); now: how many there are; tells: what else would tell; met_by: who
    meets it, too, and should not (doing nothing), which is why it does not hold, or cannot be told.
    """

    verdict: str
    needed: float = 0
    now: int = 0
    tells: str = ""
    met_by: str = ""


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


def of_each(places: int, what: str, seeds: int) -> str:
    """`"4 settings x 1 seed"`."""
    return f"{places} {what}{'s' * (places != 1)} x {seeds} seed{'s' * (seeds != 1)}"


def at_most(values: Iterable[float], limit: float) -> Part:
    """Whether the mean over seeds is at most `limit`."""
    found = list(values)
    low, high = interval(found)
    if high <= limit + ROUNDING:
        return Part(HOLDS)
    return Part(FAILS) if low > limit + ROUNDING else _open(found, limit)


def at_least(values: Iterable[float], limit: float) -> Part:
    """Whether the mean over seeds is at least `limit`."""
    return at_most((-value for value in values), -limit)


def below(values: Iterable[float], limit: float) -> Part:
    """Whether the mean over seeds is less than `limit`: an interval that touches it is not below."""
    found = list(values)
    low, high = interval(found)
    if high < limit - ROUNDING:
        return Part(HOLDS)
    return Part(FAILS) if low >= limit - ROUNDING else _open(found, limit)


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
    if any(part.verdict == FAILS for part in parts):
        return Part(FAILS)
    open_ = [part for part in parts if part.verdict == OPEN]
    return _all_open(open_) if open_ else Part(HOLDS)


def lowered_by(nothing: Part, part: Part, who: str = "doing nothing") -> Part:
    """`part`, unless doing nothing meets the same rule: that says nothing about a method, so it does not hold.

    As long as nobody knows whether doing nothing does, neither holds. who: another control that must not meet it.
    """
    if part.verdict == FAILS or nothing.verdict == FAILS:
        return part
    if nothing.verdict == HOLDS:
        return Part(FAILS, met_by=who)
    return _all_open([one for one in (part, nothing) if one.verdict == OPEN])


def limited_by(again: Part, part: Part) -> Part:
    """`part`, unless a second retraining does not meet the same rule: then two retrainings differ by as much.

    Where it is known not to, nothing can be told of a method; where it is not known to, that one meets it cannot.
    """
    if again.verdict == HOLDS or (again.verdict == OPEN and part.verdict == FAILS):
        return part
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


# --- yes or no, and ranks --------------------------------------------------------------------------------------------


def share_interval(count: float, n: float) -> tuple[float, float]:
    """The exact 95 % interval of how often something happens that happened `count` times in n (Clopper and Pearson)."""
    if not 0 <= count <= n:
        raise ConfigError(f"count must be between 0 and n = {n}, got {count}")
    tail = (1 - LEVEL) / 2
    low = float(beta.ppf(tail, count, n - count + 1)) if count > 0 else 0.0
    return low, float(beta.ppf(1 - tail, count + 1, n - count)) if count < n else 1.0


def rarely(happened: Iterable[bool], limit: float) -> Part:
    """Whether something happens in at most a share `limit` of all trainings, by the exact interval.

    happened: in each training. That it never happened in 3 says that it happens in at most 71 %; none says nothing.
    """
    check_share("limit", limit, ConfigError)
    found = list(happened)
    if len(other := [given for given in found if given not in (True, False)]):
        raise ConfigError(f"happened must be true or false in every training, got {other[0]!r}")
    count, now = sum(found), len(found)
    if not now:
        return Part(OPEN, tells="several seeds would tell (0 now)")
    low, high = share_interval(count, now)
    if high <= limit:
        return Part(HOLDS)
    if low > limit:
        return Part(FAILS)
    ends = ((n, *share_interval(n * count / now, n)) for n in range(now + 1, MOST + 1))
    return Part(OPEN, needed=next((n for n, low, high in ends if high <= limit or low > limit), np.inf), now=now)


def rank_correlation(one: pd.Series, other: pd.Series) -> float:
    """Spearman's, where a tie counts as its two orders, half each: of a constant it is 0, and ties never make a 1."""
    if not len(one) == len(other) >= 2:
        raise ConfigError(f"one and other must be equally long, two numbers or more, got {len(one)} and {len(other)}")
    n, middle = len(one), (len(one) + 1) / 2
    together = (rankdata(one) - middle) @ (rankdata(other) - middle)
    return float(12 * together / (n**3 - n))


def rank_shares(correlations: Sequence[float], sizes: Sequence[int], mean: float) -> tuple[float, float]:
    """How probable a sum of rank correlations as low, and one as high, would be if their expectation were `mean` each.

    sizes: of how many ranks each of them is, one per seed.

    For a mean of 0 all orders of a seed's runs are equally probable, and this is the exact permutation test for a trend
    with seeds as blocks (Page 1963). For another mean an order of correlation r is exp(theta r) times as probable, with
    theta as the mean asks for (Mallows's model with Spearman's distance): of all distributions with that mean the
    nearest to equal probabilities, and the sum over seeds is sufficient for theta, so that no test is more powerful.
    All seeds have the same mean in it; that they may not is what the t interval sees.
    """
    values: NDArray[np.float64] = np.zeros(1)
    shares: NDArray[np.float64] = np.ones(1)
    for size in sizes:
        more, theirs = _tilted(size, mean)
        sums = np.add.outer(values, more).round(9).ravel()
        values, places = np.unique(sums, return_inverse=True)
        shares = np.bincount(places, np.outer(shares, theirs).ravel()).astype(float)
    total = sum(correlations)
    return float(shares[values <= total + SAME_SUM].sum()), float(shares[values >= total - SAME_SUM].sum())


def orders_below(correlations: Sequence[float], sizes: Sequence[int], mean: float) -> str:
    """Whether the rank correlations have a mean below `mean` each, by `rank_shares` alone, at its level."""
    low, high = rank_shares(correlations, sizes, mean)
    return HOLDS if low <= (1 - LEVEL) / 2 else FAILS if high <= (1 - LEVEL) / 2 else OPEN


def ranks_below(correlations: Sequence[float], sizes: Sequence[int], limit: float) -> Part:
    """Whether the mean over seeds of rank correlations of a few runs each (`sizes`) is less than `limit`.

    The t interval has to say so, which sees how far seeds differ, and so has the exact test at its level
    (`rank_shares`), which knows how few orders there are: that four runs fall in perfect order in each of three seeds
    has probability 1 in 20 where the mean is -0.8, and the t interval is -1 then, without width. Likewise for that it
    is not less. At a mean just above -0.8 and up to three seeds of up to five runs each it is so in at most 4 % of
    simulated sweeps, also where seeds differ, noise has heavy tails or numbers tie, where the t interval alone is in up
    to 52 %. More seeds of more runs that differ in steepness by half of it: in up to 13 %, for which t is to blame.
    """
    if len(sizes) != len(correlations):
        raise ConfigError(f"sizes must be one for each of {len(correlations)} correlations, got {len(sizes)}")
    for size in sizes:
        check_count("sizes", size, least=2, error=ConfigError)
    if not -1 < limit < 1:
        raise ConfigError(f"limit must lie between -1 and 1, got {limit}")
    by_interval, now = below(correlations, limit), len(correlations)
    if now < 2 or not np.isfinite(correlations).all():
        return by_interval
    by_orders = orders_below(correlations, sizes, limit)
    if by_interval.verdict == by_orders != OPEN:
        return by_interval
    spread = np.mean([shares @ values**2 - limit**2 for values, shares in (_tilted(size, limit) for size in sizes)])
    distance, n = abs(float(np.mean(correlations)) - limit), np.arange(now + 1, MOST + 1)
    enough = norm.ppf((1 + LEVEL) / 2) * np.sqrt(spread / n) < distance
    needed = int(n[enough][0]) if enough.any() else np.inf
    return Part(OPEN, needed=max(by_interval.needed, needed if by_orders == OPEN else 0), now=now)


Orders = tuple[NDArray[np.float64], NDArray[np.float64]]  # what rank correlations there are, and the share of each


@cache
def _orders(size: int) -> Orders:
    """Of all orders of so many ranks: their correlation with the first of them."""
    middle, most = (size + 1) / 2, size * (size + 1) * (2 * size + 1) // 6
    counts = {0: np.eye(1, most + 1)[0]}  # which ranks are taken, as bits -> how many orders, by the sum of products
    for place in range(1, size + 1):
        longer: dict[int, NDArray[np.float64]] = {}
        for taken, count in counts.items():
            for rank in range(1, size + 1):
                if not taken >> rank & 1:
                    grown = longer.setdefault(taken | 1 << rank, np.zeros(most + 1))
                    grown[place * rank :] += count[: most + 1 - place * rank]
        counts = longer
    (count,) = counts.values()
    (products,) = np.nonzero(count)
    return 12 * (products - size * middle**2) / (size**3 - size), count[products] / count.sum()


@cache
def _tilted(size: int, mean: float) -> Orders:
    """The same, with orders so much more or less probable by their correlation that its expectation is `mean`."""
    values, shares = _orders(size)

    def tilted(theta: float) -> NDArray[np.float64]:
        log = theta * values
        weights = shares * np.exp(log - log.max())
        return np.asarray(weights / weights.sum())

    reach = 100.0 * size**3  # beyond which all are in one order
    return values, tilted(brentq(lambda theta: float(tilted(theta) @ values) - mean, -reach, reach))


# --- a claim ---------------------------------------------------------------------------------------------------------


def verdict_on(parts: Parts) -> str:
    """Of a claim from its parts, as `evidence.in_part` has it."""
    return in_part({name: part.verdict for name, part in parts.items()})[0]


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
