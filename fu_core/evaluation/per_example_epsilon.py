"""Per-example epsilon: the forgetting score of the NeurIPS 2023 unlearning competition (Triantafillou et al. 2024).

An attacker guesses from the margin of one example whether a model unlearned it or was retrained without it. With the
shares FPR and FNR of wrong guesses among N models a side, the example's

    epsilon = max over attacks of max(log((1 - delta - FPR) / FNR), log((1 - delta - FNR) / FPR)), at least 0

    "single"    one threshold, the side with the larger median is guessed above it
    "double"    two thresholds, the side with the smaller range is guessed between them: about as far apart as that
                range, give or take 2, and the upper one within 2 of its maximum

Two conventions of the competition's: an attack with exactly one rate 0 says nothing, with both 0 everything (epsilon
is then CAP). Nothing between `resolution(N)`, about log(N - 1), and CAP can occur. And of so many attacks the best is
never as bad as chance: a perfect method has an epsilon well above 1 for whatever N (`null_epsilon`), so quote what is
in excess of Retrain against another Retrain. `audit` has the bounds that are right with 95 %.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import check_choice, check_count
from fu_core.evaluation.margins import LEAST_MODELS, check_pair
from fu_core.streams import numpy_stream

ATTACKS = ("single", "double")
CAP = 50.0  # in place of infinity
MUCH_NARROWER = 0.01  # ratio of ranges at which no threshold needs to be tried
BIN = 0.5  # of the score
BUFFER = 2.0  # in margins: by how much the two thresholds may be off the narrower side's range


def per_example_epsilon(
    unlearned: Tensor,
    retrained: Tensor,
    *,
    delta: float = 1e-5,
    attacks: tuple[str, ...] = ATTACKS,
) -> Tensor:
    """epsilon (S,) of S examples, float64, larger is more exposed. Deterministic.

    unlearned, retrained: margins (N, S) of equally many models; delta: as the competition's code has it, its paper has
    0.01; attacks: see above. Thresholds are tried between any two margins, where the competition takes 100 per unit,
    so ours is as large as theirs or larger by what such a grid misses (tested). Where the range of one side is less
    than a hundredth of the other's, epsilon is CAP, and so where both are constant and differ; 0 where they agree.

    Raises ValueError for shapes that do not fit, fewer than 4 models a side or not equally many, a `delta` outside
    [0, 1), unknown or no `attacks`; NumericalFailure for margins that are not finite.
    """
    if not attacks:
        raise ValueError("attacks must be at least one of 'single', 'double', got none")
    for attack in attacks:
        check_choice("attacks", attack, ATTACKS)
    _check_delta(delta)
    p, q = (side.cpu().numpy() for side in check_pair("unlearned", unlearned, "retrained", retrained))
    if len(p) != len(q):
        raise ValueError(f"unlearned and retrained must have equally many models, got {len(p)} and {len(q)}")
    table = _epsilons(len(p), delta)
    found = np.zeros(p.shape[1])
    if "single" in attacks:
        larger = np.median(p, axis=0) >= np.median(q, axis=0)
        found = np.maximum(found, _single(np.where(larger, p, q), np.where(larger, q, p), table))
    ranges = np.ptp(p, axis=0), np.ptp(q, axis=0)
    if "double" in attacks:
        narrower = ranges[0] <= ranges[1]
        found = np.maximum(found, _double(np.where(narrower, p, q), np.where(narrower, q, p), table))
    much_narrower = np.minimum(*ranges) < MUCH_NARROWER * np.maximum(*ranges)
    return torch.from_numpy(np.where(much_narrower, CAP, found))


def resolution(n: int, *, delta: float = 1e-5) -> float:
    """The largest epsilon below CAP that n models a side can show: one wrong guess on either side. About log(n - 1).

    Raises ValueError for fewer than 4 models or a `delta` outside [0, 1).
    """
    check_count("n", n, least=LEAST_MODELS)
    _check_delta(delta)
    return math.log((1 - delta - 1 / n) * n)


def null_epsilon(
    n: int,
    *,
    delta: float = 1e-5,
    attacks: tuple[str, ...] = ATTACKS,
    draws: int = 2000,
    seed: int = 0,
) -> Tensor:
    """`draws` epsilons (draws,) of a perfect method, n models a side: its floor. Mean, quantiles and `score` follow.

    Simulated with normal margins; single thresholds depend on ranks alone, so on no distribution. Random: the margins,
    from stream (seed, "null epsilon"). Raises as `per_example_epsilon`.
    """
    check_count("n", n, least=LEAST_MODELS)
    check_count("draws", draws)
    sides = numpy_stream(seed, "null epsilon", n).standard_normal((2, n, draws))
    return per_example_epsilon(*torch.from_numpy(sides), delta=delta, attacks=attacks)


def score(epsilon: Tensor, n: int) -> float:
    """The competition's forgetting quality in [0, 1], larger is better: mean of 1, 1/2, 1/4, ... points per example.

    epsilon: (S,) from n models a side. Each bin is 0.5 wide and halves the points; beyond ceil(log(n - 1)), which is
    more than n models can show, there are none. The competition multiplies it with retained and test accuracy, each
    over that of the retrained models. Raises ValueError if `epsilon` is not (S,), NaN or negative, or n below 4.
    """
    check_count("n", n, least=LEAST_MODELS)
    if epsilon.ndim != 1 or len(epsilon) == 0 or not bool((epsilon >= 0).all()):
        raise ValueError(f"epsilon must be numbers >= 0 of shape (S,), got shape {tuple(epsilon.shape)}")
    bins = torch.floor(epsilon.double() / BIN)
    points = torch.where(epsilon < math.ceil(math.log(n - 1)), 0.5**bins, 0.0)
    return float(points.mean())


# --- helpers ---------------------------------------------------------------------------------------------------------


def _epsilons(n: int, delta: float) -> np.ndarray:
    """epsilon of every pair of counts: false negatives in rows, false positives in columns, (n + 1)^2 flattened."""
    rate = np.arange(n + 1) / n
    fnr, fpr = rate[:, None], rate[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(np.maximum(1 - delta - fpr, 0) / fnr)
        second = np.log(np.maximum(1 - delta - fnr, 0) / fpr)
        table = np.maximum(np.nan_to_num(np.maximum(first, second), nan=0.0), 0.0)
    table[0, :], table[:, 0], table[0, 0] = 0.0, 0.0, CAP  # the two conventions
    return table.ravel()


def _cuts(positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted margins of both sides (2N, S), and what cutting them says, (2N + 1, S).

    For a cut that leaves k margins below: the negatives among them less (N + 1) times the positives. What two cuts
    enclose is then one difference, an offset into the table. Margins that are equal cannot be cut apart: such a cut
    stands for the next one that is possible.
    """
    n, every = len(positive), np.concatenate([positive, negative])
    order = np.argsort(every, axis=0, kind="stable")
    ordered = np.take_along_axis(every, order, axis=0)
    worth = np.where(order < n, -(n + 1), 1)
    below = np.concatenate([np.zeros((1, every.shape[1]), dtype=np.int64), np.cumsum(worth, axis=0)])
    possible = np.ones(below.shape, dtype=bool)
    possible[1:-1] = ordered[1:] > ordered[:-1]
    index = np.where(possible, np.arange(len(below))[:, None], len(below) - 1)
    nearest = np.minimum.accumulate(index[::-1], axis=0)[::-1]
    return ordered, np.take_along_axis(below, nearest, axis=0)


def _single(positive: np.ndarray, negative: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Best epsilon (S,) of "positive above the cut"."""
    n, (_, cuts) = len(positive), _cuts(positive, negative)
    return table[n * (n + 1) + cuts[-1] - cuts].max(axis=0)


def _double(positive: np.ndarray, negative: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Best epsilon (S,) of "positive between the cuts", over all pairs of cuts: one vectorised step per distance."""
    n, (ordered, cuts) = len(positive), _cuts(positive, negative)
    span, top = np.ptp(positive, axis=0), positive.max(axis=0)
    ends = np.full((1, ordered.shape[1]), np.inf)
    lowest = np.concatenate([-ends, ordered])  # a threshold at this cut lies between the margins below and above it
    highest = np.concatenate([ordered, ends])
    # Of upper thresholds only those near the largest positive margin
    low, high = np.maximum(lowest, top - BUFFER), np.minimum(highest, top + BUFFER)
    best = np.zeros(cuts.shape[1])
    for distance in range(1, len(cuts)):
        most = high[distance:] - lowest[:-distance]  # that the two thresholds can be apart, and the least
        least = low[distance:] - highest[:-distance]
        may = (low <= high)[distance:] & (most >= span - BUFFER) & (least <= span + BUFFER)
        enclosed = n * (n + 1) + cuts[distance:] - cuts[:-distance]
        np.maximum(best, np.where(may, table[enclosed], 0.0).max(axis=0), out=best)
    return best


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta!r}")
