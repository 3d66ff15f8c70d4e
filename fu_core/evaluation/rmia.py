"""RMIA: membership from a few reference models. Zarifzadeh, Liu and Shokri 2024, offline and online.

An example counts as a member if it is relatively more likely under the attacked model than most of the population is:

    ratio(x) = p(x) / p_bar(x)        score(x) = share of the population z with ratio(x) / ratio(z) > gamma

p is the softmax probability of the true class (`true_class_probabilities`), p_bar its mean over models with and without
x. References without it know only half of that mean; the other half is taken to be linear in theirs, p_in = a p_out +
1 - a:

    offline    p_bar = 1/2 ((1 + a) mean_out + (1 - a))        online    p_bar = 1/2 (mean_in + mean_out)

The population's p_bar(z) is the offline one either way: no reference saw z, so that `a` completes its mean online, too.

One reference does, where `lira` wants dozens. Scores are in [0, 1], larger is more exposed; of an example that the
attacked model never saw they are about uniform, online only as far as p_in = a p_out + 1 - a holds: an `a` that is too
small makes them too large, one that is too large too small. Forgotten against unseen examples: `membership` has the
rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, check_count, check_positive, check_share

if TYPE_CHECKING:
    import numpy as np

GRID = tuple(k / 10 for k in range(11))  # of `tuned_a`


def rmia(
    p: Tensor,
    reference: Tensor,
    population: Tensor,
    population_reference: Tensor,
    *,
    a: float = 0.3,
    gamma: float = 1.0,
    seen: Tensor | None = None,
    online: bool = False,
) -> Tensor:
    """Scores (..., S) in [0, 1] of examples p (..., S) under one attacked model or several. Deterministic.

    p, population: true-class probabilities (..., S) and (..., Z) under the attacked model; reference,
    population_reference: (M, S) and (M, Z) under the M references, none of which saw the population. seen: (M, S),
    which references trained on which example; None for none. Offline they are left out, and an example that all have
    seen gets p_out from p_in = a p_out + 1 - a (with 0.3 for a = 0). online: p_bar(x) takes both kinds, and `a` is for
    p_bar(z) alone.

    The share counts strictly: an example no likelier than a population sample does not beat it.

    Raises ValueError for shapes that do not fit, `a` outside [0, 1], `gamma` that is not positive, probabilities
    outside [0, 1], or `online` where an example has not both kinds of references; NumericalFailure for NaN.
    """
    check_share("a", a)
    check_positive("gamma", gamma)
    given = {"p": p, "reference": reference, "population": population, "population_reference": population_reference}
    x, ref, z, ref_z = (_probabilities(name, values) for name, values in given.items())
    if ref.ndim != 2 or ref_z.ndim != 2 or len(ref) != len(ref_z):
        shapes = f"{tuple(ref.shape)} and {tuple(ref_z.shape)}"
        raise ValueError(f"reference and population_reference must have shapes (M, S) and (M, Z), got {shapes}")
    if x.shape[-1:] != ref.shape[1:] or z.shape[-1:] != ref_z.shape[1:] or x.shape[:-1] != z.shape[:-1]:
        shapes = f"{tuple(x.shape)} and {tuple(z.shape)}"
        raise ValueError(
            f"p and population must have shapes (..., {ref.shape[1]}) and (..., {ref_z.shape[1]}), got {shapes}"
        )
    inside = torch.zeros_like(ref, dtype=torch.bool) if seen is None else seen.to(ref.device)
    if inside.shape != ref.shape or inside.dtype != torch.bool:
        raise ValueError(f"seen must be of truth values {tuple(ref.shape)}, got {inside.dtype} {tuple(inside.shape)}")

    tiny = torch.finfo(torch.float64).tiny  # only at a = 1 or online can p_bar be 0
    ratio_x = x / _typical(ref, inside, a, online).clamp(min=tiny)  # (..., S)
    ratio_z = z / (0.5 * ((1 + a) * ref_z.mean(dim=0) + (1 - a))).clamp(min=tiny)  # (..., Z)
    below = torch.searchsorted((gamma * ratio_z).sort(dim=-1).values, ratio_x.contiguous(), right=False)
    return below.double() / z.shape[-1]


def tuned_a(
    p: Tensor,
    member: Tensor,
    reference: Tensor,
    population: Tensor,
    population_reference: Tensor,
    *,
    seen: Tensor | None = None,
) -> float:
    """The `a` of 0, 0.1, ..., 1 with the largest AUC on a reference model of the attacker's own, the smallest if tied.

    p: (S,) under that model; member: (S,), whether it trained on them; the others as in `rmia`, of further references.
    Raises as `rmia`, and ValueError if `member` is not truth values (S,) of both kinds.
    """
    from fu_core.evaluation.membership import _auc

    if member.shape != p.shape or p.ndim != 1 or member.dtype != torch.bool or bool(member.all() | ~member.any()):
        raise ValueError(f"member must be truth values {tuple(p.shape)}, some True, some False; got {member.dtype}")

    def auc(a: float) -> float:
        scores: np.ndarray = rmia(p, reference, population, population_reference, a=a, seen=seen).cpu().numpy()
        known = member.cpu().numpy()
        return _auc(scores[known], scores[~known])

    return max(GRID, key=auc)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _typical(reference: Tensor, inside: Tensor, a: float, online: bool) -> Tensor:
    """p_bar(x), (S,)."""
    mean_out, mean_in = _masked_mean(reference, ~inside), _masked_mean(reference, inside)
    if online:
        if bool((mean_in.isnan() | mean_out.isnan()).any()):
            raise ValueError("online must be False unless every example was seen by some references and not by others")
        return 0.5 * (mean_in + mean_out)
    slope = a if a > 0 else 0.3
    inferred = ((mean_in - (1 - slope)) / slope).clamp(0, 1)
    mean_out = torch.where(mean_out.isnan(), inferred, mean_out)
    return 0.5 * ((1 + a) * mean_out + (1 - a))


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the rows that count, per column; NaN if none does."""
    return (values * mask).sum(dim=0) / mask.sum(dim=0)


def _probabilities(name: str, given: Tensor) -> Tensor:
    if given.ndim < 1:
        raise ValueError(f"{name} must have examples in its last dimension, got shape {tuple(given.shape)}")
    check_count(f"examples of {name}", given.shape[-1])
    values = given.detach().double()
    if bool(values.isnan().any()):
        raise NumericalFailure(f"{name} has a probability that is NaN")
    if not bool(((values >= 0) & (values <= 1)).all()):
        low, high = float(values.min()), float(values.max())
        raise ValueError(f"{name} must be probabilities between 0 and 1, got {low} to {high}")
    return values
