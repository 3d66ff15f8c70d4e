"""Auditing a release function whole: what can be told from what it publishes, through the front door?

    def release(world, k):                       # the k-th independent release: data in, noisy models (K, d) out
        return du_release(federation, world, deletion, config, privacy).models

    found = audit_release(release, (trained, retrained), claimed=1.0, delta=1e-5)
    found.proved, found.refuted, found.expected

Nothing but the published models is looked at. Too little noise, a sensitivity that was underestimated, noise that
models or releases share: all show in the same way, as worlds that are told apart too well. The first half of the
releases says where the worlds differ, the second is counted, with bound="gdp": the claim is that of Gaussian noise.

With D = mean of world A's releases less mean of world B's, (K, d), a release X (K, d) has these scores, all linear:

    "mean model"             <mean_i D_i, mean_i X_i>
    "all models"             sum_i <D_i, X_i>
    "differences of models"  sum_i <D_i - D_0, X_i - X_0>        noise that all models share cancels
    "change since the last"  of the first score: is release 2j + 1 of the same world as 2j, whose world is known? Noise
                             that both share cancels

For one published model, K = 1, the first and the last. The guess changes half-way between the worlds' means, or, for
the change, where half of the changes say. Several scores are as many audits of one certificate: each is at
alpha / (number of scores), so that the largest of their bounds is right with probability 1 - alpha. So do several
certificates that are judged together share alpha in equal parts; unlike with Holm's steps, what is left are bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, check_count, check_positive
from fu_core.evaluation.audit import AuditResult, epsilon_lower_bound, largest_provable, median_provable
from fu_core.streams import numpy_stream
from fu_core.unlearning.gaussian_mechanism import check_probability, gdp_mu

ALPHA = 0.05
World = TypeVar("World")


class ReleaseAudit(NamedTuple):
    """What a release function gives away.

    proved: lower bound on epsilon, right with probability 1 - alpha; by: the score that proves it; claimed; refuted:
    proved > claimed; largest: more cannot be proved with these draws; expected: what is proved in the median, by one
    score, if the noise is exactly what the claim needs: if that is far below `claimed`, only gross errors can be found;
    scores: the audit of every score.
    """

    proved: float
    by: str
    claimed: float
    refuted: bool
    largest: float
    expected: float
    scores: dict[str, AuditResult]


def audit_release(
    release: Callable[[World, int], Tensor],
    worlds: tuple[World, World],
    *,
    claimed: float,
    delta: float,
    draws: int = 1000,
    score: Callable[[Tensor], float] | None = None,
    alpha: float = ALPHA,
    seed: int = 0,
) -> ReleaseAudit:
    """Audit the claim that releases of two worlds are (claimed, delta)-indistinguishable, thanks to Gaussian noise.

    release: of a world and k = 0, 1, ..., 2 draws - 1 to what is published, (K, d), with noise of its own for every k;
    worlds: A and B, whatever it takes, e.g. models that are to forget, and models that never knew; draws: releases per
    world, a multiple of 8; score: of what is published, a number, instead of those above; alpha: of the bound to be too
    large; of several audits that are judged together each has its share. Keeps two sums (K, d), and a number per
    release and score.

    Random: what `release` draws, and which k is of which world, from (seed, "audit release"), so that nothing else that
    changes with k is taken for the world.

    Raises ValueError for a `draws` that is not a positive multiple of 8, a `claimed` not above 0, a `delta` or `alpha`
    outside (0, 1), or releases that are not all of one shape (K, d); NumericalFailure if what is published, or its
    score, is not finite.
    """
    check_count("draws", draws, least=8)
    if draws % 8:
        raise ValueError(f"draws must be a multiple of 8, got {draws}")
    check_positive("claimed", claimed)
    check_probability("delta", delta)
    check_probability("alpha", alpha)
    is_a = _worlds_in_order(draws, seed)

    shapes: set[torch.Size] = set()

    def published(k: int) -> Tensor:
        models = release(worlds[0] if is_a[k] else worlds[1], k)
        shapes.add(models.shape)
        return _checked(models, shapes)

    read = _given(score, published, is_a[:draws]) if score else _linear(published, is_a[:draws])

    level = alpha / len(read.names)
    scores = _finite([read.scores(published(k)) for k in range(draws, 2 * draws)])  # (draws, scores)
    counted = is_a[draws:]
    found = {
        name: _audit(scores[counted, j], scores[~counted, j], delta, level, read.thresholds[j])
        for j, name in enumerate(read.names)
        if name != CHANGE
    }
    if CHANGE in read.names:
        found[CHANGE] = _audit(*_changes(scores[:, 0], counted), delta, level, "half")

    by, n, mu = max(found, key=lambda name: found[name].epsilon), draws // 2, gdp_mu(claimed, delta)
    seen = mu / math.sqrt(mu**2 + 2 * read.dimensions / n)  # cosine of D and the worlds' difference: D is noisy, too
    return ReleaseAudit(
        proved=found[by].epsilon,
        by=by,
        claimed=claimed,
        refuted=found[by].epsilon > claimed,
        largest=largest_provable(n, delta=delta, alpha=level, bound="gdp"),
        expected=median_provable(mu * seen, n, delta=delta, alpha=level),
        scores=found,
    )


# --- scores ----------------------------------------------------------------------------------------------------------

MEAN, ALL, DIFFERENCES, CHANGE = "mean model", "all models", "differences of models", "change since the last"


class _Reading(NamedTuple):
    """How releases are scored: one number per name but CHANGE, world A's above the threshold.

    dimensions: of the direction that had to be found among noise; 0 if the score was given.
    """

    names: tuple[str, ...]
    scores: Callable[[Tensor], list[float]]
    thresholds: list[float]
    dimensions: int


def _linear(published: Callable[[int], Tensor], is_a: np.ndarray) -> _Reading:
    """The scores at the top, from the difference D that the first releases show."""
    sums: dict[bool, Tensor] = {}
    for k, world in enumerate(is_a.tolist()):
        models = published(k)
        sums[world] = sums[world].add_(models) if world in sums else models.clone()
    a, b = (2 * sums[world] / len(is_a) for world in (True, False))
    D = a - b
    apart = D - D[0]
    apart[0] = -apart.sum(dim=0)  # sum_i <D_i - D_0, X_i - X_0> as weights of X
    many = len(D) > 1
    weights = torch.stack([D.mean(dim=0).expand_as(D) / len(D), D, apart][: 3 if many else 1]).flatten(1)

    def scores(X: Tensor) -> list[float]:
        return (weights @ X.flatten()).tolist()

    half_way = [(of_a + of_b) / 2 for of_a, of_b in zip(scores(a), scores(b), strict=True)]
    return _Reading((MEAN, ALL, DIFFERENCES, CHANGE) if many else (MEAN, CHANGE), scores, half_way, D.shape[1])


def _given(score: Callable[[Tensor], float], published: Callable[[int], Tensor], is_a: np.ndarray) -> _Reading:
    """The score that was asked for, turned around if world B has the larger ones among the first releases."""
    seen = _finite([float(score(published(k))) for k in range(len(is_a))])
    a, b = seen[is_a].mean(), seen[~is_a].mean()
    sign = 1.0 if a >= b else -1.0
    return _Reading(("score",), lambda X: [sign * float(score(X))], [float(sign * (a + b) / 2)], 0)


def _changes(scores: np.ndarray, is_a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Second less first of every pair of releases: of one world, and of two, turned so that A to B counts."""
    (first, second), (from_a, to_a) = scores.reshape(-1, 2).T, is_a.reshape(-1, 2).T
    change = np.where(from_a, second - first, first - second)
    return change[from_a == to_a], change[from_a != to_a]


# --- helpers ---------------------------------------------------------------------------------------------------------


def _worlds_in_order(draws: int, seed: int) -> np.ndarray:
    """(2 draws,): is the k-th release of world A? In both halves as many as of B, in the second in pairs of all four
    kinds, equally often."""
    random = numpy_stream(seed, "audit release")
    half = random.permutation(np.repeat([True, False], draws // 2))
    pairs = np.repeat([[True, True], [True, False], [False, True], [False, False]], draws // 8, axis=0)
    return np.concatenate([half, random.permutation(pairs).flatten()])


def _checked(models: Tensor, shapes: set[torch.Size]) -> Tensor:
    if models.ndim != 2 or len(shapes) > 1:
        raise ValueError(f"release must give models of one shape (K, d), got {', '.join(map(str, map(tuple, shapes)))}")
    if not bool(models.isfinite().all()):
        raise NumericalFailure("release gave a model that is not finite")
    return models.detach().double()


def _finite(scores: list[float] | list[list[float]]) -> np.ndarray:
    found = np.array(scores)
    if not np.isfinite(found).all():
        raise NumericalFailure("score must be finite, but it gave NaN or infinity")
    return found


def _audit(a: np.ndarray, b: np.ndarray, delta: float, alpha: float, threshold: str | float) -> AuditResult:
    return epsilon_lower_bound(a, b, delta=delta, alpha=alpha, bound="gdp", threshold=threshold)
