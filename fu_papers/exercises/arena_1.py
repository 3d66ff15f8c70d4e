"""KLoM of one example: the divergence of two crowds' margins."""

from __future__ import annotations

import torch
from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "arena-1"


def trials() -> list[Arguments]:
    """unlearned (N,), retrained (M,): margins of one example."""
    draws = Draws(ID)
    by_hand = (numbers(1, 2, 3, 4), numbers(-1, 0, 1, 2))
    return [by_hand, (2 * draws.normal(6) + 1, draws.normal(8)), (0.5 * draws.normal(8) - 1, draws.normal(8))]


def divergence(p: Tensor, q: Tensor, log_sign: float = 1.0, correction: int = 1, mean_sign: float = 1.0) -> Tensor:
    """KL of two normal crowds; with other values than the defaults a mistake."""
    var_p, var_q = p.var(correction=correction), q.var(correction=correction)
    apart = mean_sign * (p.mean() - q.mean()) ** 2
    return 0.5 * (log_sign * torch.log(var_q / var_p) + (var_p + apart) / var_q - 1)


EXERCISE = Exercise(
    id=ID,
    title="how far apart are two crowds?",
    stars=1,
    minutes=10,
    statement=r"""
        The margins of one example under N unlearned models and under M retrained ones. Take both crowds as normal, with
        the means $m_p$, $m_q$ and variances $s_p^2$, $s_q^2$ of the samples (as `var()` gives them), and return the
        divergence of the unlearned from the retrained,
        $\mathrm{KL}(p \Vert q) = \frac12\big(\log\frac{s_q^2}{s_p^2} + \frac{s_p^2 + (m_p - m_q)^2}{s_q^2} - 1\big)$,
        in nats: the judge KLoM, for one example.
    """,
    stub="""
        def crowds_apart(unlearned: torch.Tensor, retrained: torch.Tensor):
            return ...
    """,
    answer="crowds_apart",
    solution="""
        def crowds_apart(unlearned, retrained):
            s2_p, s2_q = unlearned.var(), retrained.var()
            apart = (unlearned.mean() - retrained.mean()) ** 2
            return 0.5 * (torch.log(s2_q / s2_p) + (s2_p + apart) / s2_q - 1)
    """,
    trials=trials,
    hints=(
        "Two numbers of each crowd are all that is needed: `unlearned.mean()`, `unlearned.var()`, and so on.",
        "Divided is always by the retrained crowd's variance: it says how unusual a distance is.",
        "0.5 * (torch.log(s2_q / s2_p) + (s2_p + apart) / s2_q - 1), where `apart` is the squared distance of the "
        "means.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda unlearned, retrained: divergence(unlearned, retrained, log_sign=-1.0),
            "The logarithm has the wrong sign: it is of the retrained variance over the unlearned one. As it stands, "
            "crowds of different spread could be nearer than 0.",
        ),
        Mistake(
            "means",
            lambda unlearned, retrained: divergence(unlearned, retrained, mean_sign=-1.0),
            "The distance of the means is subtracted: the farther apart, the larger the divergence must be.",
        ),
        Mistake(
            "direction",
            lambda unlearned, retrained: divergence(retrained, unlearned),
            "That is the divergence of the retrained from the unlearned. Measured is in units of the *retrained* "
            "crowd's spread, since that is the law to be met.",
        ),
        Mistake(
            "biased",
            lambda unlearned, retrained: divergence(unlearned, retrained, correction=0),
            "Right, but for the variances: divide by N - 1, as `var()` does by itself.",
        ),
    ),
    commentary="""
        Of two crowds of the same law this is not 0 on average, since means and variances are estimated: that is the
        noise floor, which `fu_core.evaluation.klom.floor` computes. The map shows the logarithm of the mean over all
        forgotten examples, between that floor and what doing nothing gets.
    """,
)
