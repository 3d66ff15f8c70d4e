"""The Gaussian mechanism, exactly: which (epsilon, delta) does a given noise buy, and how much noise is needed?

Two models x and x' at most `sensitivity` apart (L2) are published as x + N(0, sigma^2 I). For every set W,
P(x + noise in W) <= e^epsilon P(x' + noise in W) + delta, with the smallest possible delta (Balle and Wang 2018,
Theorem 8)

    delta = Phi(a - b) - e^epsilon Phi(-a - b),    a = sensitivity / (2 sigma),  b = epsilon sigma / sensitivity

It falls with epsilon and with sigma, so either can be solved for. The classical sigma of certified DFL
(Theorem 1) is `mechanism="classical"`; it is proved for epsilon < 1 only (errata D8).

Only mu = sensitivity / sigma counts. Such a release is mu-GDP: its two worlds are as hard to tell apart as N(0, 1) and
N(mu, 1). That one number says more than a pair (epsilon, delta), it is every such pair, and it composes exactly: with
noise drawn anew for each, mu_total^2 = sum mu_i^2 (Dong, Roth and Su 2022, Corollaries 2.13 and 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from numbers import Real

from scipy.special import erfcx, ndtr

from fu_core.errors import check_choice, check_not_negative, check_positive

MECHANISMS = ("analytic", "classical")


def gaussian_delta(sensitivity: float, sigma: float, *, epsilon: float) -> float:
    """The smallest delta for which N(0, sigma^2 I) is (epsilon, delta)-private. Balle and Wang 2018, Theorem 8.

    Deterministic. Relative error below 1e-9 for delta down to 1e-300 and epsilon from 0.001 to 500 (tested). Without
    noise delta is 1, without sensitivity 0; epsilon = 0 gives the total variation distance.

    Raises ValueError for a negative or infinite `sensitivity`, `sigma` or `epsilon`.
    """
    check_not_negative("sensitivity", sensitivity)
    check_not_negative("sigma", sigma)
    check_not_negative("epsilon", epsilon)
    return _delta(sensitivity, sigma, epsilon)


def gaussian_epsilon(sensitivity: float, sigma: float, *, delta: float) -> float:
    """The smallest epsilon >= 0 for which N(0, sigma^2 I) is (epsilon, delta)-private; inf without noise.

    Deterministic: bisection down to neighbouring floats, and gaussian_delta there is at most `delta`.

    Raises ValueError for a negative `sensitivity` or `sigma`, or a `delta` outside (0, 1).
    """
    check_not_negative("sensitivity", sensitivity)
    check_not_negative("sigma", sigma)
    check_probability("delta", delta)
    if _delta(sensitivity, sigma, 0.0) <= delta:
        return 0.0
    if sigma == 0:
        return math.inf
    # enough, but more than needed (Bun and Steinke 2016, Propositions 1.6 and 1.3): mu^2 / 2 + mu sqrt(2 ln(1/delta))
    mu = sensitivity / sigma
    enough = mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if enough == math.inf:
        return math.inf
    return _smallest(lambda epsilon: _delta(sensitivity, sigma, epsilon) <= delta, enough)


def gaussian_sigma(sensitivity: float, *, epsilon: float, delta: float, mechanism: str = "analytic") -> float:
    """The standard deviation per coordinate that makes the noise (epsilon, delta)-private.

    analytic: the smallest there is (Balle and Wang 2018, Algorithm 1), by bisection down to neighbouring floats.
    classical: sensitivity / epsilon sqrt(2 ln(1.25 / delta)), as certified DFL prints it (Theorem 1). Proved for
    epsilon < 1 only and not checked here: at delta = 1e-5 it suffices up to epsilon = 8.4, and at 20 the real
    delta is 1.5e-3 (errata D8; tested). Deterministic.

    Raises ValueError for a negative `sensitivity`, an `epsilon` not above 0, or a `delta` outside (0, 1).
    """
    check_not_negative("sensitivity", sensitivity)
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)
    check_choice("mechanism", mechanism, MECHANISMS)
    if mechanism == "classical":
        return sensitivity / epsilon * math.sqrt(2 * math.log(1.25 / delta))
    if sensitivity == 0:
        return 0.0
    # the bound of gaussian_epsilon, solved for sigma
    log = -math.log(delta)
    enough = sensitivity * (math.sqrt(log + epsilon) + math.sqrt(log)) / (math.sqrt(2) * epsilon)
    return _smallest(lambda sigma: _delta(sensitivity, sigma, epsilon) <= delta, enough)


# --- Gaussian differential privacy -----------------------------------------------------------------------------------


def gaussian_mu(sensitivity: float, sigma: float) -> float:
    """mu of N(0, sigma^2 I) on models at most `sensitivity` apart: sensitivity / sigma; 0 and inf without the one or
    the other.

    Raises ValueError for a negative or infinite `sensitivity` or `sigma`.
    """
    check_not_negative("sensitivity", sensitivity)
    check_not_negative("sigma", sigma)
    if sensitivity == 0:
        return 0.0
    return sensitivity / sigma if sigma else math.inf


def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 such that every mu-GDP release is (epsilon, delta)-private.

    Deterministic, as exact as `gaussian_epsilon`. Raises ValueError for a negative or infinite `mu`, or a `delta`
    outside (0, 1).
    """
    check_not_negative("mu", mu)
    return gaussian_epsilon(mu, 1.0, delta=delta)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu whose releases are (epsilon, delta)-private: the inverse of `gdp_epsilon`.

    Deterministic. Raises ValueError for an `epsilon` not above 0, or a `delta` outside (0, 1).
    """
    return 1 / gaussian_sigma(1.0, epsilon=epsilon, delta=delta)


def composed_mu(each: Iterable[float]) -> float:
    """mu of several releases together, whose noises are independent: the root of the sum of their mu^2.

    Raises ValueError for a negative or infinite mu.
    """
    mus = list(each)
    for mu in mus:
        check_not_negative("mu", mu)
    return math.hypot(*mus)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _delta(sensitivity: float, sigma: float, epsilon: float) -> float:
    """Theorem 8 without overflow: e^epsilon Phi(-a - b) = exp(-(a - b)^2 / 2) erfcx((a + b) / sqrt 2) / 2.

    The factor exp(-(a - b)^2 / 2) is common to both terms; taken out, their difference keeps its digits in the tail.
    """
    if sensitivity == 0:
        return 0.0
    if sigma == 0:
        return 1.0
    a, b = sensitivity / (2 * sigma), epsilon * (sigma / sensitivity)
    t = a - b
    common, second = math.exp(-t * t / 2) / 2, erfcx((a + b) / math.sqrt(2))
    if t < 0:
        return float(common * (erfcx(-t / math.sqrt(2)) - second))
    return float(ndtr(t) - common * second)  # erfcx(-t) would overflow here


def _smallest(suffices: Callable[[float], bool], enough: float) -> float:
    """The smallest x in (0, enough] that suffices, as a float; all larger ones do, too."""
    short = 0.0
    while short < (middle := short + (enough - short) / 2) < enough:
        if suffices(middle):
            enough = middle
        else:
            short = middle
    return enough


def check_probability(parameter: str, given: float) -> None:
    """Raise ValueError unless `given` lies strictly between 0 and 1."""
    if not (isinstance(given, Real) and 0 < given < 1):
        raise ValueError(f"{parameter} must lie in (0, 1), got {given!r}")
