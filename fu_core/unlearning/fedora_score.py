"""FedORA's forgetting score (28): how uncertain a model is about the samples to be forgotten, and thresholds on it."""

from __future__ import annotations

import math

from torch import Tensor

from fu_core.errors import check_choice, check_positive

SCORES = ("entropy", "scaled", "reverse")


class InfeasibleConstraint(ValueError):
    """A forgetting score that no model can reach."""


def uncertainty_loss(logits: Tensor, *, weight: float = 1.0, score: str = "entropy") -> Tensor:
    """Eq. (28), the mean over samples of `logits` (n, C), to be *maximised*: a scalar, log C for uniform predictions.

    entropy   H(p) - beta KL(p || U)     as its sentence reads; equals (1 + beta) H - beta log C (errata F2)
    scaled    beta (H(p) - KL(p || U))   the other bracketing; at most beta log C
    reverse   H(p) - beta KL(U || p)     whose gradient does not vanish for confident predictions (errata F2)

    weight: beta, the paper's forgetting weight.
    """
    check_choice("score", score, SCORES)
    check_positive("weight", weight)
    log_p = logits.log_softmax(dim=1)
    log_c = math.log(logits.shape[1])
    entropy = entropies(log_p)
    if score == "reverse":
        return (entropy - weight * (-log_p.mean(dim=1) - log_c)).mean()
    divergence = log_c - entropy  # KL(p || U)
    return (weight * (entropy - divergence) if score == "scaled" else entropy - weight * divergence).mean()


def entropies(log_p: Tensor) -> Tensor:
    """H(p) of each sample (n,), from the logarithms of its probabilities (n, C)."""
    return -(log_p.exp() * log_p).sum(dim=1)


def entropy_share(logits: Tensor) -> float:
    """Mean entropy of the predictions (n, C), as a share of log C."""
    return float(entropies(logits.log_softmax(dim=1)).mean()) / math.log(logits.shape[1])


def largest_score(classes: int, *, weight: float = 1.0, score: str = "entropy") -> float:
    """The score of uniform predictions, which none exceeds."""
    return math.log(classes) * (weight if score == "scaled" else 1.0)


def slope(weight: float, score: str) -> float:
    """How steep the score is: 1 + beta per nat of entropy, of which beta is the divergence's, 2 beta if "scaled".

    "reverse": that of its larger term, max(1, beta), as its divergence is no function of the entropy.
    """
    return {"entropy": 1 + weight, "scaled": 2 * weight, "reverse": max(1.0, weight)}[score]


def threshold_of_entropy(share: float, *, weight: float = 1.0, score: str = "entropy") -> float:
    """The threshold that asks for a mean entropy of `share` * log C: what the score is then, over its largest value."""
    if score == "reverse":
        raise ValueError("score 'reverse' is no function of the entropy; choose 'entropy' or 'scaled'")
    return 2 * share - 1 if score == "scaled" else (1 + weight) * share - weight
