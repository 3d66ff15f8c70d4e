"""As `over_seeds`, for what is one of a few values: yes or no, or the order of a few runs.

That is the same for all of a few seeds by chance, and its t interval has no width then. `rarely` and `ranks_below` have
the exact distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, binom, norm, rankdata

from fu_core.errors import ConfigError, check_count, check_share
from fu_papers.evidence import MOST
from fu_papers.over_seeds import FAILS, HOLDS, LEVEL, OPEN, Part, below

SAME_SUM = 1e-6  # of rank correlations, whose sums are much farther apart, or the same but for rounding


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
        return Part(HOLDS, p=2 * float(binom.cdf(count, now, limit)))
    if low > limit:
        return Part(FAILS, p=2 * float(binom.sf(count - 1, now, limit)))
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


def orders_below(correlations: Sequence[float], sizes: Sequence[int], mean: float, level: float = LEVEL) -> str:
    """Whether the rank correlations have a mean below `mean` each, by `rank_shares` alone."""
    low, high = rank_shares(correlations, sizes, mean)
    return HOLDS if low <= (1 - level) / 2 else FAILS if high <= (1 - level) / 2 else OPEN


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
        return replace(by_interval, p=max(by_interval.p, 2 * min(rank_shares(correlations, sizes, limit))))
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
