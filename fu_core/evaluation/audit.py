"""Auditing a certificate: how large must epsilon be, given what an attacker can tell apart?

World A publishes the unlearned model, world B the retrained one, both with the same noise. Whoever guesses the world
of fresh models with the rates FPR and FNR proves something, whatever the certificate says, about either kind of claim:

    "ratio"    epsilon >= max(log((1 - delta - FPR) / FNR), log((1 - delta - FNR) / FPR))
    "gdp"      mu      >= Phi^-1(1 - FPR) - Phi^-1(FNR)        and epsilon >= gdp_epsilon(mu, delta)

The first holds for every (epsilon, delta) (Kairouz, Oh and Viswanath 2015). The second refutes that a release is
mu-GDP (Dong, Roth and Su 2022), which is what Gaussian noise at a bounded distance claims. One point between the rates
then fixes the whole Gaussian, tails included, where an epsilon at delta = 1e-5 lies: from a thousand models it proves
three times as much (tested). Of noise that is not Gaussian it says nothing.

The rates are replaced by Clopper-Pearson upper limits, so a bound is wrong with probability at most alpha. It can
refute a certificate, never confirm one: a bound near 0 may just mean too few models (`largest_provable`,
`median_provable`). `release_audit` audits a whole release function this way, `canaries` one single run.

    u = model_direction(a, b)                                     # noise-free models (d,)
    epsilon_lower_bound(project(a + noise_a, u), project(b + noise_b, u), delta=1e-5, bound="gdp")  # noise_*: (n, d)
"""

from __future__ import annotations

import math
from functools import lru_cache
from numbers import Real
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri
from scipy.stats import binom
from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice, check_count, check_not_negative, is_finite
from fu_core.unlearning.gaussian_mechanism import check_probability, gdp_epsilon

BOUNDS = ("ratio", "gdp")


class AuditResult(NamedTuple):
    """What the guess "world A" at one threshold proves.

    epsilon: lower bound, 0 if nothing is proved; threshold: of the score; false_positive_rate: share of world B
    taken for A; false_negative_rate: share of world A taken for B; n: models counted per world; largest: the bound a
    faultless guess would have got with them; above: A is guessed above the threshold (True) or at and below it
    (False); mu: with bound="gdp" the lower bound on mu that epsilon follows from, else None.
    """

    epsilon: float
    threshold: float
    false_positive_rate: float
    false_negative_rate: float
    n: int
    largest: float
    above: bool
    mu: float | None


def epsilon_lower_bound(
    world_a: Tensor | np.ndarray,
    world_b: Tensor | np.ndarray,
    *,
    delta: float,
    alpha: float = 0.05,
    bound: str = "ratio",
    threshold: str | float = "half",
) -> AuditResult:
    """Lower bound on epsilon, right with probability at least 1 - alpha. Jagielski et al. 2020; Nasr et al. 2021.

    world_a, world_b: (n,), one score per independently published model (see `project`); bound: which kind of claim is
    to be refuted, see above; threshold: where the guess changes,

        "half"      the first half of the models picks threshold and direction, those with the largest bound there;
                    the second half is only counted
        "all"       every score is a threshold, in both directions: T = 4 n guesses, each at alpha / T. The score that
                    is the threshold counts as one error more in both worlds, as the others alone are fresh
        a number    fixed before the scores were seen: A is guessed above it, all models are counted

    Both rates of a guess get one-sided Clopper-Pearson limits at half its alpha. Deterministic.

    Raises ValueError if the worlds are not equally many scores (at least 2 each), for a `delta` outside [0, 1), or
    (0, 1) with bound="gdp", an `alpha` outside (0, 1), an unknown `bound` or `threshold`; NumericalFailure if a score
    is not finite.
    """
    _check_levels(delta, alpha, bound)
    a, b = _scores("world_a", world_a), _scores("world_b", world_b)
    if len(a) != len(b):
        raise ValueError(f"world_a and world_b must have equally many scores, got {len(a)} and {len(b)}")
    extra = 0  # errors that the threshold counts for
    if threshold == "half":
        half = len(a) // 2
        at, above = _pick(a[:half], b[:half], _midpoints(a[:half], b[:half]), delta, alpha, bound)
        a, b = a[half:], b[half:]
    elif threshold == "all":
        alpha, extra = alpha / (4 * len(a)), 1
        at, above = _pick(a, b, np.unique(np.concatenate([a, b])), delta, alpha, bound)
    elif not is_finite(threshold):
        raise ValueError(f"threshold must be 'half', 'all' or a finite number, got {threshold!r}")
    else:
        at, above = float(threshold), True
    n = len(a)
    false_positives, false_negatives = (k.item() for k in _errors(a, b, np.array([at]), above))
    found = float(_bound(min(false_positives + extra, n), min(false_negatives + extra, n), n, delta, alpha, bound))
    best = float(_bound(extra, extra, n, delta, alpha, bound))
    return AuditResult(
        epsilon=_epsilon(found, delta, bound),
        threshold=at,
        false_positive_rate=false_positives / n,
        false_negative_rate=false_negatives / n,
        n=n,
        largest=_epsilon(best, delta, bound),
        above=above,
        mu=max(0.0, found) if bound == "gdp" else None,
    )


def largest_provable(n: int, *, delta: float = 0.0, alpha: float = 0.05, bound: str = "ratio") -> float:
    """The bound of a guess without a single error on n counted models per world: no audit with n proves more.

    With delta = 0 and alpha = 0.05: 3.28 for n = 100, 4.93 for 512, 5.60 for 1000, 7.90 for 10,000. With bound="gdp",
    mu is at most 3.59, 4.90, 5.36 and 6.75.
    """
    check_count("n", n)
    _check_levels(delta, alpha, bound)
    return _epsilon(float(_bound(0, 0, n, delta, alpha, bound)), delta, bound)


def median_provable(mu: float, n: int, *, delta: float, alpha: float = 0.05) -> float:
    """The power of bound="gdp": what it proves in the median where mu is the truth, guessing half-way on n models.

    An audit whose claim is tight, so that mu is all there is, cannot hope for more. With alpha = 0.05 and n = 1000,
    mu = 0.5, 1 and 2 are proved up to 0.34, 0.84 and 1.81. Both error counts stand at their medians.

    Raises ValueError for a negative or infinite `mu`, a `delta` or an `alpha` outside (0, 1).
    """
    check_count("n", n)
    check_not_negative("mu", mu)
    _check_levels(delta, alpha, "gdp")
    errors = int(binom.median(n, ndtr(-mu / 2)))
    return _epsilon(float(_bound(errors, errors, n, delta, alpha, "gdp")), delta, "gdp")


def clopper_pearson_upper(k: int, n: int, *, alpha: float) -> float:
    """One-sided upper limit for a probability after k hits in n trials: too small with probability <= alpha.

    The p at which k or fewer hits have probability alpha; 1 if k = n. Clopper and Pearson 1934.
    """
    check_count("n", n)
    check_count("k", k, least=0)
    if k > n:
        raise ValueError(f"k must be at most n = {n}, got {k}")
    check_probability("alpha", alpha)
    return float(_upper_limits(n, alpha)[k])


# --- scores ----------------------------------------------------------------------------------------------------------


def project(samples: Tensor, direction: Tensor) -> Tensor:
    """Scores (n,) of n published models along `direction` (d,), in float64. samples: (n, d), tuples as (n, N d)."""
    if samples.ndim != 2 or direction.shape != samples.shape[1:]:
        shapes = f"{tuple(samples.shape)} and {tuple(direction.shape)}"
        raise ValueError(f"samples and direction must have shapes (n, d) and (d,), got {shapes}")
    return samples.double() @ direction.double()


def model_direction(a: Tensor, b: Tensor, *, rtol: float = 1e-12) -> Tensor | None:
    """(a - b) / |a - b| for noise-free models of any shape, flattened: (d,), float64. None if they are equal.

    The most telling projection if the same isotropic Gaussian noise is added to both (Neyman-Pearson). Equal means
    up to `rtol` of the larger norm: rounding is no evidence. For models trained in float32 take about 1e-6.
    """
    if a.shape != b.shape:
        raise ValueError(f"a and b must have the same shape, got {tuple(a.shape)} and {tuple(b.shape)}")
    return _unit((a.double() - b.double()).flatten(), a, b, rtol)


def tuple_direction(a: Tensor, b: Tensor, *, rtol: float = 1e-12) -> Tensor | None:
    """The direction in which all N models together give the world away if all carry the *same* noise: (N d,).

    a, b: noise-free models (N, d). Shared noise moves along (v, v, ..., v) only. What is orthogonal to that, a - b
    less its mean over the clients, is published without noise (errata D1): projections of the flattened tuples on it
    are constant within a world, up to rounding. None if it vanishes (as in `model_direction`): clients in consensus.
    """
    if a.ndim != 2 or a.shape != b.shape:
        raise ValueError(f"a and b must both have shape (N, d), got {tuple(a.shape)} and {tuple(b.shape)}")
    difference = a.double() - b.double()
    return _unit((difference - difference.mean(dim=0)).flatten(), a, b, rtol)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _midpoints(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Thresholds between any two different scores: rounding on either side changes no guess."""
    values = np.unique(np.concatenate([a, b]))
    middle = values[:-1] / 2 + values[1:] / 2
    middle = np.where(middle < values[1:], middle, values[:-1])  # unless they are neighbouring floats
    return middle if len(middle) else values


def _pick(
    a: np.ndarray, b: np.ndarray, thresholds: np.ndarray, delta: float, alpha: float, bound: str
) -> tuple[float, bool]:
    """The threshold and direction with the largest bound on these scores; the first if there are several."""
    bounds = [_bound(*_errors(a, b, thresholds, above), len(a), delta, alpha, bound) for above in (True, False)]
    side, index = np.unravel_index(np.argmax(bounds), (2, len(thresholds)))
    return float(thresholds[index]), bool(side == 0)


def _errors(a: np.ndarray, b: np.ndarray, thresholds: np.ndarray, above: bool) -> tuple[np.ndarray, np.ndarray]:
    """False positives and false negatives of every threshold, as counts."""
    below_a, below_b = (np.searchsorted(np.sort(world), thresholds, side="right") for world in (a, b))
    return (len(b) - below_b, below_a) if above else (below_b, len(a) - below_a)


def _bound(
    false_positives: int | np.ndarray,
    false_negatives: int | np.ndarray,
    n: int,
    delta: float,
    alpha: float,
    bound: str,
) -> np.ndarray:
    """The formulas at the top, of epsilon or of mu, with upper limits for the rates; -inf where they say nothing."""
    fpr, fnr = (_upper_limits(n, alpha / 2)[k] for k in (false_positives, false_negatives))
    if bound == "gdp":
        return -ndtri(fpr) - ndtri(fnr)
    with np.errstate(divide="ignore"):
        return np.maximum(
            np.log(np.maximum(1 - delta - fpr, 0) / fnr),
            np.log(np.maximum(1 - delta - fnr, 0) / fpr),
        )


def _epsilon(found: float, delta: float, bound: str) -> float:
    """What `_bound` proves about epsilon, 0 if nothing."""
    found = max(0.0, found)
    return gdp_epsilon(found, delta) if bound == "gdp" else found


@lru_cache(maxsize=8)
def _upper_limits(n: int, alpha: float) -> np.ndarray:
    """Clopper-Pearson upper limits of k = 0, ..., n hits in n trials."""
    k = np.arange(n)
    return np.append(betaincinv(k + 1, n - k, 1 - alpha), 1.0)


def _unit(vector: Tensor, a: Tensor, b: Tensor, rtol: float) -> Tensor | None:
    norm = float(vector.norm())
    if not math.isfinite(norm):
        raise NumericalFailure("the noise-free models must be finite: their difference is not")
    return vector / norm if norm > rtol * float(max(a.double().norm(), b.double().norm())) else None


def _scores(name: str, given: Tensor | np.ndarray) -> np.ndarray:
    values = given.detach().double().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given, dtype=float)
    if values.ndim != 1 or len(values) < 2:
        raise ValueError(f"{name} must hold at least 2 scores, shape (n,), got shape {values.shape}")
    if not np.isfinite(values).all():
        raise NumericalFailure(f"{name} has a score that is NaN or infinite")
    return values


def _check_levels(delta: float, alpha: float, bound: str) -> None:
    check_choice("bound", bound, BOUNDS)
    if bound == "gdp":
        check_probability("delta", delta)
    elif not (isinstance(delta, Real) and 0 <= delta < 1):
        raise ValueError(f"delta must lie in [0, 1), got {delta!r}")
    check_probability("alpha", alpha)
