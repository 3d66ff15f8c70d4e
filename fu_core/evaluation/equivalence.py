"""How close is the unlearned model to the retrained one? Distances in parameters and in outputs."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from fu_core.models.flat import FlatModel


def parameter_gap(w_unlearned: Tensor, w_retrained: Tensor) -> float:
    """`|w_u - w_r| / |w_r|`. About sqrt(2) for nets trained from unrelated starts, so share the start."""
    return float((w_unlearned - w_retrained).double().norm() / w_retrained.double().norm())


def kl_divergence(model: FlatModel, w_unlearned: Tensor, w_retrained: Tensor, x: Tensor) -> float:
    """`E_x KL(p_r || p_u)` in nats over the inputs `x` (n, ...); 0 iff the predictions agree."""
    return logits_kl(model.predict(w_unlearned, x), model.predict(w_retrained, x))


def logits_kl(unlearned: Tensor, retrained: Tensor) -> float:
    """`kl_divergence` from logits (n, C) already computed."""
    log_p = F.log_softmax(retrained.double(), dim=1)
    log_q = F.log_softmax(unlearned.double(), dim=1)
    return float((log_p.exp() * (log_p - log_q)).sum(dim=1).mean())


def logit_mse(unlearned: Tensor, retrained: Tensor, *, centred: bool = False) -> float:
    """`E_x |z_r - z_u|^2`, summed over classes, from logits (n, C). HF-KCU, App. C.

    A shift of all logits of a sample changes no prediction but this number; `centred` takes it out.
    """
    difference = (retrained - unlearned).double()
    if centred:
        difference = difference - difference.mean(dim=1, keepdim=True)
    return float((difference**2).sum(dim=1).mean())


def prediction_agreement(unlearned: Tensor, retrained: Tensor) -> float:
    """Share of samples on which both predict the same class, from logits (n, C). HF-KCU, Eq. (35)."""
    return float((unlearned.argmax(dim=1) == retrained.argmax(dim=1)).double().mean())


def privacy_gap(mia_unlearned: float, mia_retrained: float) -> float:
    """`|MIA(f_u) - MIA(f_r)|`: does the unlearned model leak as much as the retrained one? HF-KCU, Eq. (37)."""
    return abs(mia_unlearned - mia_retrained)


class CausalFaithfulness(NamedTuple):
    """CF; the fraction it is 1 minus of; that fraction's denominator in points; whether it means anything."""

    value: float
    ratio: float
    denominator: float
    defined: bool


SMALLEST_DENOMINATOR = 0.1  # points


def causal_faithfulness(unlearned: float, retrained: float, trained: float, *, n_test: int) -> CausalFaithfulness:
    """`CF = 1 - |a_u - a_r| / |a_o - a_r|` from test accuracies in percent. HF-KCU, Sec. 5.1.

    1: as accurate as Retrain; 0: no nearer than doing nothing. NaN and not defined where the denominator
    is below the standard error of an accuracy on `n_test` samples (or 0.1 points): there it is noise over
    noise (App. A.11, errata H3).
    """
    for name, value in (("unlearned", unlearned), ("retrained", retrained), ("trained", trained)):
        if not 0 <= value <= 100:
            raise ValueError(f"{name} must be an accuracy in percent, got {value}")
    share = retrained / 100
    standard_error = 100 * math.sqrt(share * (1 - share) / n_test)
    denominator = abs(trained - retrained)
    if denominator < max(standard_error, SMALLEST_DENOMINATOR):
        return CausalFaithfulness(math.nan, math.nan, denominator, False)
    ratio = abs(unlearned - retrained) / denominator
    return CausalFaithfulness(1 - ratio, ratio, denominator, True)


def relative_step_difference(w: Tensor, w_a: Tensor, w_b: Tensor) -> float:
    """`|w_a - w_b| / |w_a - w|`: how different two unlearning steps from the same model `w` are."""
    return float((w_a - w_b).double().norm() / (w_a - w).double().norm())
