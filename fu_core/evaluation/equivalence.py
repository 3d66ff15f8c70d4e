"""How close is the unlearned model to the retrained one? Distances in parameters and in outputs."""

from __future__ import annotations

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


def relative_step_difference(w: Tensor, w_a: Tensor, w_b: Tensor) -> float:
    """`|w_a - w_b| / |w_a - w|`: how different two unlearning steps from the same model `w` are."""
    return float((w_a - w_b).double().norm() / (w_a - w).double().norm())
