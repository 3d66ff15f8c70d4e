"""Per-example epsilon: the forgetting score of the NeurIPS 2023 unlearning competition (Triantafillou et al. 2024).

An attacker guesses from the margin of one example whether a model unlearned it or was retrained without it. With the
shares FPR and FNR of wrong guesses among N models a side, the example's

    epsilon = max over attacks of max(log((1 - delta - FPR) / FNR), log((1 - delta - FNR) / FPR)), at least 0

    "single"    one threshold, "unlearned" above it, or below it where the unlearned median is the smaller one
    "double"    two thresholds: the side with the smaller range is guessed between them

Two conventions of the competition's: an attack with exactly one rate 0 says nothing, with both 0 everything (epsilon
is then CAP). And the best of many attacks on few models flatters: a perfect method has epsilon about 1.4 by single
thresholds (`null_epsilon`), so quote what is in excess of Retrain against another Retrain. Nothing between
`resolution(N)`, about log(N - 1), and CAP can occur. `audit` has the bounds that are right with 95 %.
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


def per_example_epsilon(
    unlearned: Tensor,
    retrained: Tensor,
    *,
    delta: float = 1e-5,
    attacks: tuple[str, ...] = ATTACKS,
) -> Tensor:
    """epsilon (S,) of S examples, float64, larger is more exposed. Deterministic.

    unlearned, retrained: margins (N, S) of equally many models; delta: as the competition's code has it, its paper has
    0.01; attacks: see above. Thresholds are all that there can be, between any two margins, where the competition tries
    100 per unit. Where the range of one side is less than a hundredth of the other's, epsilon is CAP, but 0 where both
    sides are constant and agree.

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
    """epsilon of every pair of counts, false negatives in rows, false positives in columns, (n + 1, n + 1) flattened."""
    rate = np.arange(n + 1) / n
    fnr, fpr = rate[:, None], rate[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(np.maximum(1 - delta - fpr, 0) / fnr)
        second = np.log(np.maximum(1 - delta - fnr, 0) / fpr)
        table = np.maximum(np.nan_to_num(np.maximum(first, second), nan=0.0), 0.0)
    table[0, :], table[:, 0], table[0, 0] = 0.0, 0.0, CAP  # the two conventions
    return table.ravel()


def _cuts(positive: np.ndarray, negative: np.ndarray) -> np.ndarray:
    """(2N + 1, S): for a cut above k of the 2N sorted margins, negatives below it less (N + 1) times the positives.

    What two cuts enclose is then one difference, an offset into the table. Margins that are equal cannot be cut apart:
    such a cut stands for the next one that is possible.
    """
    n, every = len(positive), np.concatenate([positive, negative])
    order = np.argsort(every, axis=0, kind="stable")
    worth = np.where(order < n, -(n + 1), 1)
    below = np.concatenate([np.zeros((1, every.shape[1]), dtype=np.int64), np.cumsum(worth, axis=0)])
    ordered = np.take_along_axis(every, order, axis=0)
    possible = np.ones(below.shape, dtype=bool)
    possible[1:-1] = ordered[1:] > ordered[:-1]
    index = np.where(possible, np.arange(len(below))[:, None], len(below) - 1)
    nearest = np.minimum.accumulate(index[::-1], axis=0)[::-1]
    return np.take_along_axis(below, nearest, axis=0)


def _single(positive: np.ndarray, negative: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Best epsilon (S,) of "positive above the cut"."""
    n, cuts = len(positive), _cuts(positive, negative)
    return table[n * (n + 1) + cuts[-1] - cuts].max(axis=0)


def _double(positive: np.ndarray, negative: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Best epsilon (S,) of "positive between the cuts", over all pairs of cuts: one vectorised step per width."""
    n, cuts = len(positive), _cuts(positive, negative)
    best = np.zeros(cuts.shape[1])
    for width in range(1, len(cuts)):
        enclosed = n * (n + 1) + cuts[width:] - cuts[:-width]
        np.maximum(best, table[enclosed].max(axis=0), out=best)
    return best


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta!r}")
