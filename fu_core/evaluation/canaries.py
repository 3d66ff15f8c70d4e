"""Auditing in one run: canaries put in or left out by coin flips, and guessed. Steinke, Nasr and Jagielski 2023.

An audit of two worlds needs a thousand releases, each of a model trained and unlearned anew if that is random, too.
Here one release is enough: m canaries, each included with probability 1/2 (`included_canaries`), the model is made and
published once, every canary gets a score that is larger the more the published model looks as if it had been included.
The k_plus largest are guessed in, the k_minus smallest out, the others not at all. Of r = k_plus + k_minus guesses v
are right. If the release is (epsilon, delta)-private, a guess is right with probability q = 1 / (1 + e^-epsilon) or
little more, whatever the others were, and (their main theorem)

    P(v or more right) <= F(v) + 2 m delta max over 1 <= i <= v of (F(v - i) - F(v)) / i,     F(x) = P(Bin(r, q) >= x)

epsilon_LB is the largest epsilon for which that is below alpha. k_plus and k_minus are fixed before the scores are
seen.

A canary is what privacy is promised for: a sample, or a client. For certificates of removal every canary is asked to
be forgotten: "in" means trained and then unlearned, "out" never seen.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.stats import binom
from torch import Tensor

from fu_core.errors import NumericalFailure, check_count, check_not_negative
from fu_core.streams import numpy_stream
from fu_core.unlearning.gaussian_mechanism import check_probability


class CanaryAudit(NamedTuple):
    """What the guesses prove.

    epsilon: lower bound, 0 if nothing is proved; right: v, of `guesses`: r; canaries: m; largest: the bound if all r
    had been right, more cannot be proved with these.
    """

    epsilon: float
    right: int
    guesses: int
    canaries: int
    largest: float


def included_canaries(m: int, *, seed: int) -> np.ndarray:
    """(m,), True for every canary that is to be included. Random: a fair coin each, from (seed, "canaries")."""
    check_count("m", m)
    return numpy_stream(seed, "canaries").random(m) < 0.5


def audit_canaries(
    scores: Tensor | np.ndarray,
    included: Tensor | np.ndarray,
    *,
    k_plus: int,
    k_minus: int,
    delta: float,
    alpha: float = 0.05,
) -> CanaryAudit:
    """Lower bound on epsilon from one release, right with probability at least 1 - alpha.

    scores: (m,), larger for what looks included; included: (m,) bool, as drawn by `included_canaries` before the model
    was made; k_plus, k_minus: how many are guessed in and out. Of equal scores the earlier canary counts as smaller.
    Deterministic.

    Raises ValueError for shapes that differ, more guesses than canaries or none, a `delta` outside [0, 1), an `alpha`
    outside (0, 1); NumericalFailure if a score is not finite.
    """
    values = np.asarray(scores.detach().cpu() if isinstance(scores, Tensor) else scores, dtype=float)
    there = np.asarray(included.cpu() if isinstance(included, Tensor) else included)
    if values.ndim != 1 or there.shape != values.shape or there.dtype != bool:
        raise ValueError(
            f"scores and included must both have shape (m,), included bool, got {values.shape} and {there.shape} "
            f"of {there.dtype}"
        )
    if not np.isfinite(values).all():
        raise NumericalFailure("scores has a score that is NaN or infinite")
    m = len(values)
    check_count("k_plus", k_plus, least=0)
    check_count("k_minus", k_minus, least=0)
    guesses = k_plus + k_minus
    if not 1 <= guesses <= m:
        raise ValueError(f"k_plus + k_minus must lie between 1 and m = {m}, got {guesses}")
    order = np.argsort(values, kind="stable")
    right = int((~there[order[:k_minus]]).sum() + there[order[m - k_plus :]].sum())
    epsilon, largest = (canary_epsilon(m, guesses, v, delta=delta, alpha=alpha) for v in (right, guesses))
    return CanaryAudit(epsilon, right, guesses, m, largest)


def canary_epsilon(m: int, r: int, v: int, *, delta: float, alpha: float = 0.05) -> float:
    """The largest epsilon that v right of r guesses about m canaries refute at level alpha; 0 if they refute none.

    Deterministic: bisection down to neighbouring floats. Without an error and with delta = 0 it is
    -log(alpha^(-1/r) - 1). With delta = 1e-5 and r = m: 1.58 for m = 16, 3.04 for 64, 4.44 for 256, 5.78 for 1000.

    Raises ValueError for counts that do not fit, a `delta` outside [0, 1) or an `alpha` outside (0, 1).
    """
    check_probability("alpha", alpha)
    if canary_p_value(m, r, v, epsilon=0.0, delta=delta) >= alpha:
        return 0.0
    refuted, possible = 0.0, 1.0
    while canary_p_value(m, r, v, epsilon=possible, delta=delta) < alpha:
        refuted, possible = possible, 2 * possible
    while refuted < (middle := refuted + (possible - refuted) / 2) < possible:
        if canary_p_value(m, r, v, epsilon=middle, delta=delta) < alpha:
            refuted = middle
        else:
            possible = middle
    return refuted


def canary_p_value(m: int, r: int, v: int, *, epsilon: float, delta: float) -> float:
    """The probability that v or more of r guesses about m canaries are right, at most, under (epsilon, delta).

    Deterministic. Raises ValueError for counts that do not fit, a negative `epsilon` or a `delta` outside [0, 1).
    """
    check_count("m", m)
    check_count("r", r)
    check_count("v", v, least=0)
    if not v <= r <= m:
        raise ValueError(f"v of r guesses about m canaries must satisfy v <= r <= m, got {v}, {r} and {m}")
    check_not_negative("epsilon", epsilon)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta!r}")
    q = 1 / (1 + math.exp(-epsilon))
    at_least = binom.sf(v - 1, r, q)  # F(v)
    if delta == 0 or v == 0:
        return float(at_least)
    i = np.arange(1, v + 1)
    between = np.cumsum(binom.pmf(v - i, r, q))  # F(v - i) - F(v): small numbers, not a difference of large ones
    return min(1.0, float(at_least + 2 * m * delta * np.max(between / i)))
