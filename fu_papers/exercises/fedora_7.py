"""The score that still presses where the model is sure."""

import math

from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake
from fu_papers.exercises.fedora_1 import parts

ID = "fedora-7"


def trials() -> list[Arguments]:
    """logits (n, C), beta."""
    return [(numbers(12, 0).unsqueeze(0), 1.0), (2 * Draws(ID).normal(6, 4), 3.0)]


def reverse(logits: Tensor) -> Tensor:
    """KL(U || p) of each sample."""
    return -logits.log_softmax(dim=1).mean(dim=1) - math.log(logits.shape[1])


EXERCISE = Exercise(
    id=ID,
    title="a force that does not vanish",
    stars=2,
    minutes=15,
    statement=r"""
        The gradient of the entropy vanishes where the model is sure, which is where it has most to forget. That of
        $\mathrm{KL}(\mathcal U \Vert p) = \frac1C \sum_c \log \frac{1}{C p_c}$ does not. Write the score (28) with it:
        $\operatorname{mean}\big(H(p) - \beta\,\mathrm{KL}(\mathcal U \Vert p)\big)$ over the rows of `logits` (n, C).
    """,
    stub="""
        import math


        def reverse_score(logits, beta):
            return ...
    """,
    answer="reverse_score",
    solution="""
        import math


        def reverse_score(logits, beta):
            log_p = logits.log_softmax(dim=1)
            H = -(log_p.exp() * log_p).sum(dim=1)
            KL = -log_p.mean(dim=1) - math.log(logits.shape[1])  # from uniform to p
            return (H - beta * KL).mean()
    """,
    trials=trials,
    hints=(
        "KL(U || p) is the mean over the classes of log(1/C) - log p_c.",
        "`-log_p.mean(dim=1) - math.log(C)`.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda logits, beta: (parts(logits)[0] + beta * reverse(logits)).mean(),
            "The divergence is subtracted: the score is to be maximised, and being far from uniform is not wanted.",
        ),
        Mistake(
            "KL(p || U)",
            lambda logits, beta: (parts(logits)[0] - beta * parts(logits)[1]).mean(),
            "This is KL(p || U), the printed one. The other way round every class counts the same, not by its "
            "probability.",
        ),
        Mistake(
            "cross-entropy",
            lambda logits, beta: (parts(logits)[0] + beta * logits.log_softmax(dim=1).mean(dim=1)).mean(),
            "The log C is missing: for uniform predictions the divergence is 0.",
        ),
    ),
    commentary="""
        In the readings table of section 10 it has a row of its own, `score H - beta KL(U||p)`. Compare it with the
        tuned one: which columns move, and which way?
    """,
)
