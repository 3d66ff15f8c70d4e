"""U-LiRA: can somebody who knows both kinds of models tell, from one margin, that an example was unlearned?

Hayes et al. 2024, after the likelihood-ratio attack of Carlini et al. 2022. Per example, half of the models of either
side fit a normal distribution, N(m_u, s^2) of the unlearned and N(m_o, s^2) of the models that never saw it. The other
half is judged, each margin phi by its log likelihood ratio

    score = log N(phi; m_u, s^2) - log N(phi; m_o, s^2) = ((phi - m_o)^2 - (phi - m_u)^2) / (2 s^2)

which is positive where phi looks like that of an unlearned model. Chance is 0.5, what Retrain against another Retrain
gets. The attack learns the direction from the fit: an example that stands out as *forgotten*, with a margin below what
unseen ones have, is found as well as one that is still remembered; `shift` says which.

What the unseen side is decides what is asked. Retrained models ask whether the unlearned ones differ at all; models
that have unlearned *other* data, whether they differ by more than what unlearning does to any example.

`retained_exposure` asks the same for those who stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import rankdata
from scipy.stats import t as student
from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice
from fu_core.evaluation.margins import UNSQUARED, check_margins, check_pair

VARIANCES = ("pooled", "separate")


@dataclass(frozen=True)
class PerExample:
    """The numbers of `ULiRA` for each example by itself, (S,) float64 each."""

    auc: Tensor
    tpr_at_1_fpr: Tensor
    tpr_at_01_fpr: Tensor
    accuracy: Tensor
    shift: Tensor


@dataclass(frozen=True)
class ULiRA:
    """How well unlearned examples are told from unseen ones; shares, larger is more exposed.

    auc: of the scores of all examples and judged models together, 0.5 is chance; tpr_at_1_fpr, tpr_at_01_fpr: share of
    the unlearned found while at most 1 % and 0.1 % of the unseen are, not interpolated; accuracy: mean of both sides'
    hit rates, where a positive score means "unlearned"; auc_low, auc_high: 95 % interval of the auc, over models.

    per_example: the same, with `shift`, the unlearned models' mean margin less the unseen ones' in standard deviations:
    above 0 the example is still remembered, below it stands out as forgotten. With fewer than 100 models of a side to
    judge, an example's `tpr_at_1_fpr` allows no unseen model at all.
    """

    auc: float
    tpr_at_1_fpr: float
    tpr_at_01_fpr: float
    accuracy: float
    auc_low: float
    auc_high: float
    per_example: PerExample


def u_lira(unlearned: Tensor, unseen: Tensor, *, variances: str = "pooled") -> ULiRA:
    """The attack above on margins (N, S) of models that unlearned the S examples, and (M, S) of models without them.

    Both halves of the models take their turn as judges, every number is the mean of the two turns: scores of different
    fits are never ranked together, which would be biased. variances: "pooled", one per example for both sides, or
    "separate", which also sees margins that vary more or less than they should, and costs accuracy where models are
    few (0.016 at 16 a side). Deterministic: the first half of the rows and the second.

    Where the margins of a fit are all equal, the score is what the ratio tends to. If neither side varies, it is
    infinite for whatever is nearer to one side, 0 half-way; if one does not, infinite for that side where it stands
    still, and for the other one everywhere else.

    The interval takes models as the units, whatever the number of examples (DeLong et al. 1988 with clusters,
    Obuchowski 1997), and the fits as given: it covers in 90 to 99 % of simulations, least where examples rise and fall
    together and the shift is small (tested).

    Raises ValueError for shapes that do not fit, fewer than 4 models a side, unknown `variances`; NumericalFailure for
    margins that are not finite, or whose squares floats cannot tell from 0 or infinity.
    """
    check_choice("variances", variances, VARIANCES)
    p, q = (side.cpu().numpy() for side in check_pair("unlearned", unlearned, "unseen", unseen))
    half_p, half_q = len(p) // 2, len(q) // 2
    turns = [
        _turn((p[:half_p], q[:half_q]), (p[half_p:], q[half_q:]), variances),
        _turn((p[half_p:], q[half_q:]), (p[:half_p], q[:half_q]), variances),
    ]
    auc = _mean([turn.auc for turn in turns])
    # The turns are not independent, as each judges what the other fits: their errors add up in full at worst.
    reach = _mean([turn.error for turn in turns]) * float(student.ppf(0.975, 2 * min(half_p, half_q) - 2))
    each = np.mean([turn.each for turn in turns], axis=0)  # (4, S)
    return ULiRA(
        auc=auc,
        tpr_at_1_fpr=_mean([turn.rates[0] for turn in turns]),
        tpr_at_01_fpr=_mean([turn.rates[1] for turn in turns]),
        accuracy=_mean([turn.accuracy for turn in turns]),
        auc_low=max(0.0, auc - reach),
        auc_high=min(1.0, auc + reach),
        per_example=PerExample(
            auc=torch.from_numpy(each[0]),
            tpr_at_1_fpr=torch.from_numpy(each[1]),
            tpr_at_01_fpr=torch.from_numpy(each[2]),
            accuracy=torch.from_numpy(each[3]),
            shift=torch.from_numpy(_shift(p, q)),
        ),
    )


# --- those who stay --------------------------------------------------------------------------------------------------


class RetainedExposure(NamedTuple):
    """How exposed retained examples are under unlearned and under retrained models, and by how much more.

    difference: unlearned less retrained, above 0 where unlearning exposes those who stay; low, high: its 95 % interval
    over pairs of models, infinite if the judge gives one number for all models.
    """

    unlearned: float
    retrained: float
    difference: float
    low: float
    high: float


def member_auc(members: Tensor, others: Tensor) -> Tensor:
    """Per model (N,): the chance that a member's margin is above that of a sample it never saw. 0.5 says nothing.

    members: margins (N, S) of training data; others: (N, V) of held-out data under the same models. Errors as
    `check_margins`, and ValueError if the models are not equally many.
    """
    a, b = check_margins("members", members), check_margins("others", others)
    if len(a) != len(b):
        raise ValueError(f"members and others must be of the same models, got {len(a)} and {len(b)}")
    return torch.from_numpy(_placements(a.T.cpu().numpy(), b.T.cpu().numpy()).mean(axis=0))


def retained_exposure(
    unlearned: tuple[Tensor, Tensor],
    retrained: tuple[Tensor, Tensor],
    *,
    judge: Callable[[Tensor, Tensor], Tensor | float] = member_auc,
) -> RetainedExposure:
    """Does unlearning expose those who stay? A membership judge on retained examples, unlearned less retrained models.

    unlearned, retrained: each margins (N, S) of retained examples and (N, V) of what the judge compares them with; the
    default `judge` wants held-out samples, of the same classes (`class_matched`), under the same models. It gives a
    number per model (N,), row k of both sides is of training seed k, and the interval is that of the paired
    differences. `lambda seen, unseen: u_lira(seen, unseen).auc` wants the same examples under models without them, and
    gives one number.

    Raises ValueError if the judge gives two shapes, NumericalFailure if NaN or infinity, and as the judge.
    """
    one, other = (torch.as_tensor(judge(*side), dtype=torch.float64) for side in (unlearned, retrained))
    if one.shape != other.shape or one.ndim > 1:
        shapes = f"{tuple(one.shape)} and {tuple(other.shape)}"
        raise ValueError(
            f"judge must give one number, or one per model, for as many models of both sides; got {shapes}"
        )
    if not bool((one.isfinite() & other.isfinite()).all()):
        raise NumericalFailure("judge must give finite numbers, but it gave NaN or infinity")
    apart = one - other
    reach = math.inf
    if apart.ndim == 1 and len(apart) > 1:
        reach = float(apart.std()) / math.sqrt(len(apart)) * float(student.ppf(0.975, len(apart) - 1))
    middle = float(apart.mean())
    return RetainedExposure(float(one.mean()), float(other.mean()), middle, middle - reach, middle + reach)


# --- helpers ---------------------------------------------------------------------------------------------------------


class _Turn(NamedTuple):
    """One half judged: overall numbers, the auc's standard error, and (auc, tpr, tpr, accuracy) per example."""

    auc: float
    error: float
    rates: tuple[float, float]
    accuracy: float
    each: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _turn(fit: tuple[np.ndarray, np.ndarray], judged: tuple[np.ndarray, np.ndarray], variances: str) -> _Turn:
    positive, negative = (_scores(*fit, side, variances) for side in judged)  # (models, S)
    hits = ((positive > 0).mean(axis=0) + (negative <= 0).mean(axis=0)) / 2
    ours = _placements(positive.ravel(), negative.ravel()).reshape(positive.shape).mean(axis=1)  # per judged model
    theirs = _placements(negative.ravel(), positive.ravel()).reshape(negative.shape).mean(axis=1)
    return _Turn(
        auc=float(ours.mean()),
        error=math.sqrt(ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs)),
        rates=(
            float(_tpr(positive.reshape(-1, 1), negative.reshape(-1, 1), 0.01)[0]),
            float(_tpr(positive.reshape(-1, 1), negative.reshape(-1, 1), 0.001)[0]),
        ),
        accuracy=float(hits.mean()),
        each=(
            _placements(positive, negative).mean(axis=0),
            _tpr(positive, negative, 0.01),
            _tpr(positive, negative, 0.001),
            hits,
        ),
    )


def _scores(fit_p: np.ndarray, fit_q: np.ndarray, phi: np.ndarray, variances: str) -> np.ndarray:
    """Log likelihood ratios (models, S) of margins `phi`. Raises NumericalFailure where they are no numbers."""
    m_p, m_q = _middle(fit_p), _middle(fit_q)
    var_p, var_q = _variance(fit_p), _variance(fit_q)
    if variances == "pooled":
        freedom_p, freedom_q = len(fit_p) - 1, len(fit_q) - 1
        var_p = var_q = (freedom_p * var_p + freedom_q * var_q) / (freedom_p + freedom_q)
    tiny = np.finfo(np.float64).tiny
    with np.errstate(over="ignore", invalid="ignore"):  # inf - inf where a side does not vary, which is replaced below
        near_p, near_q = (phi - m_p) ** 2, (phi - m_q) ** 2
        scores = 0.5 * (
            np.log(np.maximum(var_q, tiny) / np.maximum(var_p, tiny))
            + near_q / np.maximum(var_q, tiny)
            - near_p / np.maximum(var_p, tiny)
        )
    still_p, still_q = var_p < tiny, var_q < tiny
    if bool((np.isnan(scores) & ~(still_p | still_q)).any()):
        raise NumericalFailure(UNSQUARED)
    side = np.select(  # above 0: unlearned
        [still_p & still_q, still_p, still_q],
        [np.abs(phi - m_q) - np.abs(phi - m_p), np.where(phi == m_p, 1.0, -1.0), np.where(phi == m_q, -1.0, 1.0)],
    )
    return np.where(still_p | still_q, np.where(side == 0, 0.0, np.copysign(np.inf, side)), scores)


def _middle(values: np.ndarray) -> np.ndarray:
    """Mean per column, exactly that value where all are equal: by a variance of 0, rounding would be infinitely far."""
    return np.where(values.max(axis=0) == values.min(axis=0), values[0], values.mean(axis=0))


def _variance(values: np.ndarray) -> np.ndarray:
    """ddof 1 per column, and exactly 0 where all are equal, which rounding of their mean would hide.

    Raises NumericalFailure where it overflows, or is 0 though they are not equal.
    """
    vary = values.max(axis=0) != values.min(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        variance = values.var(axis=0, ddof=1)
    if bool((vary & ~((variance >= np.finfo(np.float64).tiny) & np.isfinite(variance))).any()):
        raise NumericalFailure(UNSQUARED)
    return np.where(vary, variance, 0.0)


def _placements(of: np.ndarray, among: np.ndarray) -> np.ndarray:
    """For each number the share of `among` that is below it, plus half of what is equal; columns by themselves.

    Their mean is the AUC. of: (n, ...); among: (m, ...).
    """
    every = rankdata(np.concatenate([of, among]), axis=0)[: len(of)]
    return (every - rankdata(of, axis=0)) / len(among)


def _tpr(positive: np.ndarray, negative: np.ndarray, fpr: float) -> np.ndarray:
    """Per column, the share of positives above all negatives but a share `fpr` of them; not interpolated."""
    allowed = math.floor(fpr * len(negative) + 1e-9)
    threshold = np.partition(negative, len(negative) - 1 - allowed, axis=0)[len(negative) - 1 - allowed]
    return (positive > threshold).mean(axis=0)


def _shift(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Difference of means in pooled standard deviations; signed infinity where nothing varies, 0 where all agree."""
    freedom = len(p) + len(q) - 2
    variance = ((len(p) - 1) * _variance(p) + (len(q) - 1) * _variance(q)) / freedom
    apart = p.mean(axis=0) - q.mean(axis=0)
    apart = np.where((variance == 0) & (p[0] == q[0]), 0.0, apart)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(apart == 0, 0.0, apart / np.sqrt(variance))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
