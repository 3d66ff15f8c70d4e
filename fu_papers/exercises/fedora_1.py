"""The forgetting score."""

import math

from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "fedora-1"


def trials() -> list[Arguments]:
    """logits (n, C), beta."""
    return [(numbers(2, 0).unsqueeze(0), 1.0), (2 * Draws(ID).normal(6, 4), 5.0)]


def parts(logits: Tensor) -> tuple[Tensor, Tensor]:
    """H(p) and KL(p || U) of each sample."""
    log_p = logits.log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1)
    return entropy, math.log(logits.shape[1]) - entropy


def scored(logits: Tensor, beta: float, sign: int = -1) -> Tensor:
    """The entropies, and beta times the divergences with either sign."""
    entropy, divergence = parts(logits)
    return (entropy + sign * beta * divergence).mean()


EXERCISE = Exercise(
    id=ID,
    title="how uncertain is the model?",
    stars=1,
    minutes=15,
    statement=r"""
        FedORA wants the model to be uncertain about what it is to forget. Write its score (28), to be *maximised*: $L_u
        = \operatorname{mean}\big(H(p) - \beta\,\mathrm{KL}(p \Vert \mathcal U)\big)$ over the rows of `logits` (n, C),
        with the entropy $H(p) = -\sum_c p_c \log p_c$ and $\mathrm{KL}(p \Vert \mathcal U) = \sum_c p_c \log (C p_c)$.
    """,
    stub="""
        import math


        def score(logits, beta):
            return ...
    """,
    answer="score",
    solution="""
        import math


        def score(logits, beta):
            log_p = logits.log_softmax(dim=1)
            H = -(log_p.exp() * log_p).sum(dim=1)
            KL = math.log(logits.shape[1]) - H
            return (H - beta * KL).mean()
    """,
    trials=trials,
    hints=(
        "`log_p = logits.log_softmax(dim=1)` is safer than the logarithm of a softmax; `log_p.exp()` is p.",
        "KL(p || U) = log C - H(p): the sum over c of p_c log C is log C.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda logits, beta: scored(logits, beta, sign=1),
            "The divergence is *subtracted*: being far from uniform is what forgetting should not look like.",
        ),
        Mistake(
            "to be minimised",
            lambda logits, beta: -scored(logits, beta),
            "This is to be minimised. The paper's constraint is a score *above* a threshold (erratum F4).",
        ),
        Mistake(
            "sum", lambda logits, beta: len(logits) * scored(logits, beta), "The mean over the samples, not the sum."
        ),
        Mistake("entropy alone", lambda logits, beta: parts(logits)[0].mean(), "The divergence is missing."),
    ),
    commentary="""
        It is largest, log C, for uniform predictions. And since KL = log C - H, it is (1 + beta) H - beta log C: one
        force, not two (section 5).
    """,
)
