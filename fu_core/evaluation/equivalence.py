"""How close is the unlearned model to the retrained one? Distances in parameters and in outputs.

All raise ValueError for two shapes, which would be broadcast, and for no samples. All but `prediction_agreement` raise
NumericalFailure where the answer is no finite number, as of a model that has diverged.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import NumericalFailure, check_count, check_same_shape
from fu_core.evaluation.accuracy import NO_CLASS, predicted_classes


def parameter_gap(w_unlearned: Tensor, w_retrained: Tensor) -> float:
    """`|w_u - w_r| / |w_r|`. About sqrt(2) for nets trained from unrelated starts, so share the start."""
    check_same_shape("w_unlearned", w_unlearned, "w_retrained", w_retrained)
    return _finite("gap", (w_unlearned - w_retrained).double().norm() / w_retrained.double().norm())


def logits_kl(unlearned: Tensor, retrained: Tensor) -> float:
    """`E_x KL(p_r || p_u)` in nats, from logits (n, C) on the same inputs; 0 iff the predictions agree.

    A class that the retrained model gives no probability, by a logit of minus infinity, adds nothing. Infinite, and
    returned as such, where the unlearned model alone gives none.
    """
    _check_outputs(unlearned, retrained)
    log_p = F.log_softmax(retrained.double(), dim=1)
    log_q = F.log_softmax(unlearned.double(), dim=1)
    p = log_p.exp()
    divergence = float(torch.where(p == 0, 0.0, p * (log_p - log_q)).sum(dim=1).mean())
    return divergence if divergence == math.inf else _finite("KL", divergence)


def logit_mse(unlearned: Tensor, retrained: Tensor, *, centred: bool = False) -> float:
    """`E_x |z_r - z_u|^2`, summed over classes, from logits (n, C). HF-KCU, App. C.

    A shift of all logits of a sample changes no prediction but this number; `centred` takes it out.
    """
    _check_outputs(unlearned, retrained)
    difference = (retrained - unlearned).double()
    if centred:
        difference = difference - difference.mean(dim=1, keepdim=True)
    return _finite("logit MSE", (difference**2).sum(dim=1).mean())


def prediction_agreement(unlearned: Tensor, retrained: Tensor) -> float:
    """Share of samples on which both predict the same class, from logits (n, C). HF-KCU, Eq. (35).

    Where the largest logit of either is not finite they do not agree (`accuracy.predicted_classes`): two models that
    have both diverged agree on nothing.
    """
    _check_outputs(unlearned, retrained)
    ours, theirs = predicted_classes(unlearned), predicted_classes(retrained)
    return float(((ours == theirs) & (ours != NO_CLASS)).double().mean())


def relative_step_difference(w: Tensor, w_a: Tensor, w_b: Tensor) -> float:
    """`|w_a - w_b| / |w_a - w|`: how different two unlearning steps from the same model `w` are."""
    check_same_shape("w_a", w_a, "w_b", w_b)
    check_same_shape("w", w, "w_a", w_a)
    return _finite("difference of the steps", (w_a - w_b).double().norm() / (w_a - w).double().norm())


# --- helpers ---------------------------------------------------------------------------------------------------------


def _check_outputs(unlearned: Tensor, retrained: Tensor) -> None:
    for name, outputs in (("unlearned", unlearned), ("retrained", retrained)):
        check_count(f"samples of {name}", len(outputs))
    check_same_shape("unlearned", unlearned, "retrained", retrained)


def _finite(what: str, found: Tensor | float) -> float:
    if not math.isfinite(found):
        raise NumericalFailure(f"the {what} is {float(found)}: a model is not finite, or what is divided by is 0")
    return float(found)
