"""Auditing a certificate: how large must epsilon be, given what an attacker can tell apart?

World A publishes the unlearned model, world B the retrained one, both with the same noise. Whoever guesses the world
with the rates FPR and FNR on fresh models proves, whatever the certificate says (Kairouz, Oh and Viswanath 2015),

    epsilon >= max(log((1 - delta - FPR) / FNR), log((1 - delta - FNR) / FPR))

The rates are replaced by Clopper-Pearson upper limits, so the bound is wrong with probability at most alpha. It can
refute a certificate, never confirm one: a bound near 0 may just mean too few models (`largest_provable`).

    u = model_direction(a, b)                                     # noise-free models (d,)
    epsilon_lower_bound(project(a + noise_a, u), project(b + noise_b, u), delta=1e-5)      # noise_*: (n, d)
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv
from torch import Tensor

from fu_core.errors import NumericalFailure, check_count


class AuditResult(NamedTuple):
    """What the guess "world A" at one threshold proves.

    epsilon: lower bound, 0 if nothing is proved; threshold: of the score; false_positive_rate: share of world B
    taken for A; false_negative_rate: share of world A taken for B; n: models counted per world (the held-out
    half); largest: the bound a faultless guess would have got with them; above: A is guessed above the threshold
    (True) or at and below it (False).
    """

    epsilon: float
    threshold: float
    false_positive_rate: float
    false_negative_rate: float
    n: int
    largest: float
    above: bool


def epsilon_lower_bound(
    world_a: Tensor | np.ndarray, world_b: Tensor | np.ndarray, *, delta: float, alpha: float = 0.05
) -> AuditResult:
    """Lower bound on epsilon, right with probability at least 1 - alpha. Jagielski et al. 2020; Nasr et al. 2021.

    world_a, world_b: (n,), one score per independently published model (see `project`). The first half picks
    threshold and direction, those with the largest bound there; the second half is only counted, and both rates get
    one-sided Clopper-Pearson limits at alpha / 2. Deterministic.

    Raises ValueError if the worlds are not equally many scores (at least 2 each), or for a `delta` outside [0, 1) or
    an `alpha` outside (0, 1); NumericalFailure if a score is not finite.
    """
    _check_levels(delta, alpha)
    a, b = _scores("world_a", world_a), _scores("world_b", world_b)
    if len(a) != len(b):
        raise ValueError(f"world_a and world_b must have equally many scores, got {len(a)} and {len(b)}")
    half = len(a) // 2
    threshold, above = _pick(a[:half], b[:half], delta, alpha)
    n = len(a) - half
    false_positives, false_negatives = (k.item() for k in _errors(a[half:], b[half:], np.array([threshold]), above))
    return AuditResult(
        epsilon=max(0.0, float(_bound(false_positives, false_negatives, n, delta, alpha))),
        threshold=threshold,
        false_positive_rate=false_positives / n,
        false_negative_rate=false_negatives / n,
        n=n,
        largest=largest_provable(n, delta=delta, alpha=alpha),
        above=above,
    )


def largest_provable(n: int, *, delta: float = 0.0, alpha: float = 0.05) -> float:
    """The bound of a guess without a single error on n held-out models per world: no audit with n proves more.

    With delta = 0 and alpha = 0.05: 3.28 for n = 100, 4.93 for 512, 5.60 for 1000, 7.90 for 10,000.
    """
    check_count("n", n)
    _check_levels(delta, alpha)
    return max(0.0, float(_bound(0, 0, n, delta, alpha)))


def clopper_pearson_upper(k: int, n: int, *, alpha: float) -> float:
    """One-sided upper limit for a probability after k hits in n trials: too small with probability <= alpha.

    The p at which k or fewer hits have probability alpha; 1 if k = n. Clopper and Pearson 1934.
    """
    check_count("n", n)
    check_count("k", k, least=0)
    if k > n:
        raise ValueError(f"k must be at most n = {n}, got {k}")
    _check_levels(0.0, alpha)
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


def _pick(a: np.ndarray, b: np.ndarray, delta: float, alpha: float) -> tuple[float, bool]:
    """The threshold and direction with the largest bound on these scores; the first if there are several."""
    values = np.unique(np.concatenate([a, b]))
    middle = values[:-1] / 2 + values[1:] / 2  # between two scores: rounding on either side changes no guess
    middle = np.where(middle < values[1:], middle, values[:-1])  # unless they are neighbouring floats
    thresholds = middle if len(middle) else values
    bounds = [_bound(*_errors(a, b, thresholds, above), len(a), delta, alpha) for above in (True, False)]
    side, index = np.unravel_index(np.argmax(bounds), (2, len(thresholds)))
    return float(thresholds[index]), bool(side == 0)


def _errors(a: np.ndarray, b: np.ndarray, thresholds: np.ndarray, above: bool) -> tuple[np.ndarray, np.ndarray]:
    """False positives and false negatives of every threshold, as counts."""
    below_a, below_b = (np.searchsorted(np.sort(world), thresholds, side="right") for world in (a, b))
    return (len(b) - below_b, below_a) if above else (below_b, len(a) - below_a)


def _bound(
    false_positives: int | np.ndarray, false_negatives: int | np.ndarray, n: int, delta: float, alpha: float
) -> np.ndarray:
    """The formula at the top with upper limits for the rates; -inf where it says nothing."""
    fpr, fnr = (_upper_limits(n, alpha / 2)[k] for k in (false_positives, false_negatives))
    with np.errstate(divide="ignore"):
        return np.maximum(
            np.log(np.maximum(1 - delta - fpr, 0) / fnr),
            np.log(np.maximum(1 - delta - fnr, 0) / fpr),
        )


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


def _check_levels(delta: float, alpha: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta!r}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {alpha!r}")
