"""KLoM: do unlearned models treat an example as models do that never saw it? Georgiev et al. 2024, in two forms.

Both sides are pools of models from training seeds of their own, so each example has two samples of margins: p of the
unlearned, q of the retrained models. KLoM is KL(p || q), per example, in nats; larger is farther from Retrain, in
either direction: an example that stands out as *forgotten* is exposed, too.

    "gaussian"   KL of two normal distributions with the samples' means m and variances s^2 (ddof 1)

                     1/2 (log(s_q^2 / s_p^2) + (s_p^2 + (m_p - m_q)^2) / s_q^2 - 1)

    "binned"     the literature's: histograms of 20 bins between the smallest and the largest margin of both sides,
                 margins clipped to +-100; q at least 1e-5 where p is not 0

Two samples of one law are not at distance 0. Of the Gaussian form `floor` says how far apart they are on average: 0.033
for 64 models a side, where the binned form has 0.61, and a shift of half a standard deviation adds little to that
(tested). So the Gaussian form is ours. It sees means and variances only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.special import digamma
from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice, check_count
from fu_core.evaluation.margins import LEAST_MODELS, UNSQUARED, check_pair

FORMS = ("gaussian", "binned")
CLIP, BINS, SMALLEST = 100.0, 20, 1e-5  # of the binned form


class KLoM(NamedTuple):
    """Over the examples: mean, 95th percentile, the `floor` for as many models, and how many examples are infinite.

    With infinite examples the mean is infinite: one constant margin is no average matter.
    """

    mean: float
    p95: float
    floor: float
    infinite: int


def klom(unlearned: Tensor, retrained: Tensor, *, form: str = "gaussian", source: bool = False) -> Tensor:
    """KL of the unlearned models' margins from the retrained models', per example (S,), float64. Deterministic.

    unlearned: margins (N, S); retrained: margins (M, S) of the same examples; at least 4 models each. form: see above.
    source: with form="binned", as the published code bins: its last bin is open, so the largest margin of all is in
    none. Unlearned margins that are constant and below all others' then score 11.5, above all others' NaN; against
    retrained ones that are constant and larger, a perfect 0. Ours closes the bin.

    Gaussian: infinite where the margins of one side are all equal and those of the other not, or where both are and
    differ; 0 where both are and agree. Such an example tells an unlearned from a retrained model at once.

    Raises ValueError for shapes that do not fit, too few models, an unknown `form`, `source` without form="binned";
    NumericalFailure for margins that are not finite, or whose variances or divergence floats cannot tell from 0 or
    infinity.
    """
    check_choice("form", form, FORMS)
    if source and form != "binned":
        raise ValueError(f"source must be False unless form is 'binned', got True with form={form!r}")
    p, q = check_pair("unlearned", unlearned, "retrained", retrained)
    return _binned(p, q, source) if form == "binned" else _gaussian(p, q)


def summary(unlearned: Tensor, retrained: Tensor) -> KLoM:
    """Mean, 95th percentile and floor of the Gaussian `klom`, for a table's row. Errors as there."""
    each = klom(unlearned, retrained)
    return KLoM(
        mean=float(each.mean()),
        p95=_percentile(each, 0.95),
        floor=floor(len(unlearned), len(retrained)),
        infinite=int(each.isinf().sum()),
    )


def floor(n: int, retrained: int | None = None) -> float:
    """The Gaussian KLoM to be expected of a perfect method: both sides of one normal law, n models each.

    retrained: how many models that side has, if not n as well. Exact, as mean and variance of a normal sample are
    independent and E[1 / s^2] = (M - 1) / (M - 3) / sigma^2; with n a side it is 1/2 ((n - 1) (1 + 2/n) / (n - 3) - 1).

    Raises ValueError for fewer than 4 models.
    """
    m = n if retrained is None else retrained
    check_count("n", n, least=LEAST_MODELS)
    check_count("retrained", m, least=LEAST_MODELS)
    log_ratio = _log_chi(m) - _log_chi(n)  # E log(s_q^2 / s_p^2)
    return 0.5 * (log_ratio + (1 + 1 / n + 1 / m) * (m - 1) / (m - 3) - 1)


# --- helpers ---------------------------------------------------------------------------------------------------------


def _gaussian(p: Tensor, q: Tensor) -> Tensor:
    var_p, var_q = p.var(dim=0), q.var(dim=0)
    divergence = 0.5 * (torch.log(var_q / var_p) + (var_p + (p.mean(dim=0) - q.mean(dim=0)) ** 2) / var_q - 1)
    # Asked for directly: equal margins need not have a variance of exactly 0 on every device.
    still_p, still_q = _constant(p), _constant(q)
    vary, least = ~(still_p | still_q), torch.finfo(p.dtype).tiny
    lost = vary & ((var_p < least) | (var_q < least) | ~divergence.isfinite())
    if bool(lost.any()):
        raise NumericalFailure(f"{UNSQUARED}, got those of example {int(lost.nonzero()[0])}")
    equal = still_p & still_q & (p[0] == q[0])
    return torch.where(still_p | still_q, torch.where(equal, 0.0, torch.inf), divergence)


def _binned(p: Tensor, q: Tensor, source: bool) -> Tensor:
    p, q = p.clamp(-CLIP, CLIP), q.clamp(-CLIP, CLIP)
    low, high = torch.minimum(p.amin(0), q.amin(0)), torch.maximum(p.amax(0), q.amax(0))
    edges = low + (high - low) * torch.linspace(0, 1, BINS + 1, dtype=p.dtype, device=p.device)[:, None]  # (21, S)
    edges[-1] = high  # not up to rounding

    def shares(values: Tensor) -> Tensor:
        index = torch.searchsorted(edges.T.contiguous(), values.T.contiguous(), right=True).T - 1  # (N, S)
        if not source:
            index = index.clamp(max=BINS - 1)
        counted = torch.nn.functional.one_hot(index, BINS + 1)[..., :BINS].sum(dim=0)  # (S, 20)
        return counted.double() / counted.sum(dim=1, keepdim=True)

    share_p, share_q = shares(p), shares(q).nan_to_num(0.0)  # nan: not one margin is in a bin
    share_q = torch.where(share_p > 0, share_q.clamp(min=SMALLEST), share_q)
    share_q = share_q / share_q.sum(dim=1, keepdim=True)
    terms = torch.where(share_p > 0, share_p * (share_p.log() - share_q.log()), share_p)
    return terms.sum(dim=1)


def _constant(values: Tensor) -> Tensor:
    return values.amax(dim=0) == values.amin(dim=0)


def _log_chi(n: int) -> float:
    """E log(s^2 / sigma^2) of n normal numbers: of a chi squared with n - 1 degrees of freedom, over n - 1."""
    half = (n - 1) / 2
    return float(digamma(half)) - math.log(half)


def _percentile(values: Tensor, share: float) -> float:
    """Interpolated as usual, but infinite as soon as it reaches for an infinite value: inf - inf is not a number."""
    ordered = values.sort().values
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return float(below if below == above else below + (place - math.floor(place)) * (above - below))
