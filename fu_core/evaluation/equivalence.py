"""How close is the unlearned model to the retrained one? Distances in parameters and in outputs."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fu_core.errors import check_count
from fu_core.evaluation.accuracy import NO_CLASS, predicted_classes


def parameter_gap(w_unlearned: Tensor, w_retrained: Tensor) -> float:
    """`|w_u - w_r| / |w_r|`. About sqrt(2) for nets trained from unrelated starts, so share the start."""
    return float((w_unlearned - w_retrained).double().norm() / w_retrained.double().norm())


def logits_kl(unlearned: Tensor, retrained: Tensor) -> float:
    """`E_x KL(p_r || p_u)` in nats, from logits (n, C) on the same inputs; 0 iff the predictions agree."""
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
    """Share of samples on which both predict the same class, from logits (n, C). HF-KCU, Eq. (35).

    Where the largest logit of either is not finite they do not agree (`accuracy.predicted_classes`): two models that
    have both diverged agree on nothing. Raises ValueError if there are no samples.
    """
    for name, logits in (("unlearned", unlearned), ("retrained", retrained)):
        check_count(f"samples of {name}", len(logits))
    ours, theirs = predicted_classes(unlearned), predicted_classes(retrained)
    return float(((ours == theirs) & (ours != NO_CLASS)).double().mean())


def relative_step_difference(w: Tensor, w_a: Tensor, w_b: Tensor) -> float:
    """`|w_a - w_b| / |w_a - w|`: how different two unlearning steps from the same model `w` are."""
    return float((w_a - w_b).double().norm() / (w_a - w).double().norm())
