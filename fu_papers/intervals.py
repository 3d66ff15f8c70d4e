"""Means over targets and seeds, and how sure they are.

A result has two crossed factors: I targets (who leaves) and J seeds (which training). All runs of a target share the
target, all runs of a seed share the training, so I J runs say less than I J independent ones. For the cells' values

    D_ij = mean + target_i + seed_j + cell_ij,      Var(mean of D) = s_a²/I + s_b²/J + s_e²/(I J)

With at least twenty of each, targets and seeds are resampled independently (Owen, The pigeonhole bootstrap, 2007),
which covers 92 % and more for 95 %; with fewer, it covers too little (81 % at 3 x 2; 86 % at 6 x 6 where one of the two
has nearly all the spread), and a t interval takes its place. Its degrees of freedom are those of the factor that has
the spread, as far as the data tell (Satterthwaite 1946), between min(I, J) - 1 and twice as many. Where targets,
seeds and cells vary alike, that covers 95 to 98 % from three of each on; over 60 mixtures of the three spreads it is 92
to 100, with two seeds 99 and more in most. By min(I, J) - 1 alone it is 99 to 100 almost everywhere, and intervals are
up to three times as wide; without the upper bound 12 targets with two seeds cover 87 %. Where cells are missing, what
counts is how evenly the rest lies on targets and seeds: over 14 patterns and 7 mixtures 91 to 100 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from fu_core.errors import ConfigError, check_choice, check_count
from fu_core.streams import numpy_stream

BOOTSTRAP_FROM = 20  # targets and seeds; with fewer of either the percentiles cover too little
SAME = 1e-12  # numbers that differ by a smaller share are equal but for rounding

Grid = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over targets and seeds with its interval; of a ratio, the geometric mean.

    targets, seeds: how many there were; cells: pairs of both with a value (on both sides, if two were compared);
    how: "t" or "bootstrap"; p: two-sided, of no effect; se: standard error (of a ratio: of its logarithm);
    ratio: no effect is 1, not 0; spread: variances over targets, seeds and cells (of a ratio: of logarithms), None
    where a single target or seed hides them; df: the t interval's degrees of freedom; draws: the bootstrap's means.
    """

    effect: float
    low: float
    high: float
    targets: int
    seeds: int
    cells: int
    how: str
    p: float
    se: float
    level: float = 0.95
    ratio: bool = False
    spread: tuple[float, float, float] | None = None
    df: float = 1.0
    draws: Grid | None = field(default=None, repr=False, compare=False)

    def at(self, level: float) -> Estimate:
        """The same estimate with its interval at another level."""
        mean = on_scale(self.effect, self.ratio)
        low, high = _interval(mean, self.se, self.df, self.draws, level)
        return replace(self, low=_shown(low, self.ratio), high=_shown(high, self.ratio), level=level)

    def text(self, digits: int = 1) -> str:
        """`"-3.1 [-4.0, -2.2] (4 targets x 3 seeds)"`; also says a level other than 95 % and that cells are missing."""
        effect, low, high = (f"{value:z.{digits}f}" for value in (self.effect, self.low, self.high))
        level = "" if self.level == 0.95 else f" at {100 * self.level:.4g} %"
        missing = "" if self.cells == self.targets * self.seeds else f", {self.cells} cells"
        return f"{effect} [{low}, {high}]{level} ({of_each(self.targets, self.seeds)}{missing})"


def crossed(
    values: pd.DataFrame,
    *,
    value: str = "value",
    target: str = "request",
    seed: str = "seed",
    log: bool = False,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Estimate:
    """The mean of column `value` over `target` and `seed` with its interval. Random, always with the same draws.

    values: one row per pair of target and seed. A pair that is not there, or whose value is NaN, takes part in no mean;
    a target or seed without any value drops out. One target or one seed says nothing about others: the interval is
    infinite then. log: the geometric mean, of what cannot be 0, as a ratio to 1. Raises ConfigError if there is no
    value at all, one that is infinite or no number, a row without target or seed, a pair that is there twice, and for a
    value <= 0 that a logarithm is taken of.
    """
    cells = _cells(values, value, target, seed)
    return _estimate(_logs(cells, "values", value) if log else cells, "values", level, resamples, ratio=log)


def paired(
    ours: pd.DataFrame,
    rival: pd.DataFrame,
    *,
    value: str = "value",
    target: str = "request",
    seed: str = "seed",
    log: bool = False,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Estimate:
    """The mean of ours - rival over the pairs of target and seed that both have, as `crossed` takes it.

    log: the ratio ours / rival instead, from differences of logarithms. What is equal but for rounding differs by 0:
    the same remainder everywhere would have an interval without width. Raises ConfigError as `crossed`, if no pair is
    common, and for a value <= 0 that a logarithm is taken of.
    """
    sides = [_cells(frame, value, target, seed) for frame in (ours, rival)]
    if log:
        sides = [_logs(side, name, value) for name, side in zip(("ours", "rival"), sides, strict=True)]
    mine, theirs = sides[0].align(sides[1], join="inner")  # by (target, seed)
    equal = np.isclose(mine, theirs, rtol=SAME, atol=SAME if log else 0.0)
    differences = (mine - theirs).mask(equal, 0.0)
    return _estimate(differences, "ours and rival", level, resamples, ratio=log)


def floor_of(again: pd.DataFrame, *, value: str = "value", target: str = "request", seed: str = "seed") -> float:
    """The noise floor: the mean of |`value`|, the difference of two Retrains that only their seeds tell apart.

    Smaller differences between methods say nothing. Raises ConfigError as `crossed`.
    """
    distances = _cells(again, value, target, seed)
    _check_any(distances, "again")
    return float(distances.abs().mean())


def _cells(values: pd.DataFrame, value: str, target: str, seed: str) -> pd.Series:
    """The values that are there, by (target, seed)."""
    for name in (value, target, seed):
        check_choice("value, target, seed", name, values.columns, ConfigError)
    if not pd.api.types.is_numeric_dtype(numbers := values[value].infer_objects()):
        raise ConfigError(f"{value} must be a number in every row, got {_first_text(numbers)!r}")
    for name in (target, seed):
        if values[name].isna().any():
            raise ConfigError(f"{name} must be there in every row, got {values[name].isna().sum()} without it")
    cells = values.set_index([target, seed])[value].astype(float).dropna()
    if cells.index.has_duplicates:
        twice = cells.index[cells.index.duplicated()][0]
        raise ConfigError(f"values must have one row per ({target}, {seed}), got several for {twice}")
    if np.isinf(cells).any():
        raise ConfigError(f"{value} must be finite, got {cells[np.isinf(cells)].iloc[0]}")
    return cells


def _first_text(numbers: pd.Series) -> object:
    return next((number for number in numbers if isinstance(number, str)), numbers.iloc[0])


def _logs(cells: pd.Series, parameter: str, value: str) -> pd.Series:
    if (cells <= 0).any():
        raise ConfigError(f"{parameter}: {value} must be > 0 for a ratio, got {cells.min()} at {cells.idxmin()}")
    return np.log(cells)


def _check_any(cells: pd.Series, parameter: str) -> None:
    if cells.empty:
        raise ConfigError(f"{parameter} must have a value for at least one pair of target and seed, got none")


def _estimate(cells: pd.Series, parameter: str, level: float, resamples: int, *, ratio: bool) -> Estimate:
    if not 0 < level < 1:
        raise ConfigError(f"level must lie between 0 and 1, got {level}")
    check_count("resamples", resamples, error=ConfigError)
    _check_any(cells, parameter)
    grid = cells.unstack().to_numpy()  # (I, J), NaN where no value is; sorted, so that the order of rows is nothing
    mean, draws, spread, df = float(np.nanmean(grid)), None, None, 1.0
    smallest = min(grid.shape)
    if smallest < 2:
        se, p = np.inf, 1.0
    elif smallest < BOOTSTRAP_FROM:
        se, df, spread = _standard_error(grid)
        p = float(2 * t.sf(abs(mean) / se, df)) if se > 0 else float(mean == 0)
    else:
        _, df, spread = _standard_error(grid)
        draws = _resampled(grid, resamples)
        se = float(draws.std())
        beyond = min(np.count_nonzero(draws <= 0), np.count_nonzero(draws >= 0))
        p = min(1.0, 2 * (beyond + 1) / (len(draws) + 1))
    low, high = _interval(mean, se, df, draws, level)
    effect, low, high = (_shown(number, ratio) for number in (mean, low, high))
    how = "t" if draws is None else "bootstrap"
    return Estimate(effect, low, high, *grid.shape, len(cells), how, p, se, level, ratio, spread, df, draws)


def _standard_error(grid: Grid) -> tuple[float, float, tuple[float, float, float]]:
    """Of the mean of all cells, its degrees of freedom, and s_a², s_b², s_e². With missing cells: clustered sums.

    se² = max(v_a + v_b - s_e²/N, v_a, v_b, s_e²/N): v_a and v_b both contain the variance of the cells. Where targets
    and seeds only interact, as in [[0, 7], [7, 0]], all means are equal, and the cells' own variance is what is left.
    """
    there = np.isfinite(grid)
    (targets, seeds), n = grid.shape, np.count_nonzero(there)
    rest = np.where(there, grid - np.nanmean(grid), 0.0)
    v_a = (rest.sum(axis=1) ** 2).sum() / n**2 * targets / (targets - 1)  # no cell missing: var(target means) / I
    v_b = (rest.sum(axis=0) ** 2).sum() / n**2 * seeds / (seeds - 1)
    row, column = np.nonzero(there)
    factors = np.hstack([np.eye(targets)[row], np.eye(seeds)[column]])  # (n, I + J): the additive model
    fitted, _, rank, _ = np.linalg.lstsq(factors, rest[there], rcond=None)
    left = ((rest[there] - factors @ fitted) ** 2).sum()
    s_e = float(left / (n - rank)) if n > rank else 0.0
    spread = (max(float(targets * (v_a - s_e / n)), 0.0), max(float(seeds * (v_b - s_e / n)), 0.0), s_e)
    se = np.sqrt(max(v_a + v_b - s_e / n, v_a, v_b, s_e / n))
    by_factor = (_as_many_as(there.sum(axis=1)), _as_many_as(there.sum(axis=0)))
    whole = degrees_of_freedom(v_a, v_b, s_e / n, *by_factor, filled=n / grid.size)
    return float(se), min(max(float(whole), min(grid.shape) - 1.0), n - 1.0), spread  # three cells are three numbers


def _as_many_as(cells: NDArray[np.int_]) -> float:
    """How many targets (or seeds) with as many cells each say as much as these: five in one and one in another, 1.4."""
    return float(cells.sum() ** 2 / (cells**2).sum())


def degrees_of_freedom(
    v_a: ArrayLike, v_b: ArrayLike, v_e: ArrayLike, targets: ArrayLike, seeds: ArrayLike, *, filled: float = 1.0
) -> Grid:
    """Of v_a + v_b - v_e, the mean's variance from that of target means, seed means and cells: se⁴ / Σ v²/df.

    Satterthwaite (Biometrics Bulletin 2, 1946). Bounded by those of the scarcer factor and twice as many (1 + filled
    times, where cells are missing), since with two or three levels the shares are guesses themselves: where v_b is
    small by chance, se is, too. targets, seeds: more than 1.
    """
    v_a, v_b, v_e, targets, seeds = (each.astype(float) for each in np.broadcast_arrays(v_a, v_b, v_e, targets, seeds))
    se_2 = np.maximum.reduce([v_a + v_b - v_e, v_a, v_b, v_e])
    a, b, e = (np.divide(each, se_2, out=np.ones_like(each), where=se_2 > 0) for each in (v_a, v_b, v_e))
    fewest = np.minimum(targets, seeds) - 1
    found = 1 / (a**2 / (targets - 1) + b**2 / (seeds - 1) + e**2 / ((targets - 1) * (seeds - 1)))
    return np.asarray(np.clip(found, fewest, (1 + filled) * fewest))


def _resampled(grid: Grid, resamples: int) -> Grid:
    """Means of the cells of I targets and J seeds, each drawn with replacement. (resamples,), fewer if some are empty.

    Random: how often every target and seed is drawn.
    """
    rng = numpy_stream(0, "crossed bootstrap")
    targets, seeds = (rng.multinomial(n, np.full(n, 1 / n), size=resamples) for n in grid.shape)  # (resamples, I or J)
    there = np.isfinite(grid).astype(float)
    sums = ((targets @ np.where(there > 0, grid, 0.0)) * seeds).sum(axis=1)
    counts = ((targets @ there) * seeds).sum(axis=1)
    return np.asarray(sums[counts > 0] / counts[counts > 0])


def _interval(mean: float, se: float, df: float, draws: Grid | None, level: float) -> tuple[float, float]:
    tail = (1 - level) / 2
    if draws is not None:
        low, high = np.quantile(draws, [tail, 1 - tail])
        return float(low), float(high)
    reach = float(t.ppf(1 - tail, df)) * se if np.isfinite(se) else np.inf
    return mean - reach, mean + reach


def _shown(number: float, ratio: bool) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(number)) if ratio else number


def on_scale(number: float, ratio: bool) -> float:
    """A number as it is averaged: the logarithm of a ratio, anything else as it is."""
    with np.errstate(divide="ignore"):  # an infinite interval of a ratio starts at 0
        return float(np.log(number)) if ratio else number


def of_each(targets: int, seeds: int) -> str:
    """`"4 targets x 1 seed"`."""
    return f"{targets} target{'s' * (targets != 1)} x {seeds} seed{'s' * (seeds != 1)}"
