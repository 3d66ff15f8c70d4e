"""U-LiRA's score: is this margin an unlearned model's?"""

from __future__ import annotations

from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "arena-2"


def trials() -> list[Arguments]:
    """unlearned (N,), unseen (N,): margins that the attacker knows; phi (K,): of models that are judged."""
    draws = Draws(ID)
    by_hand = (numbers(2, 4), numbers(0, 4), numbers(3, 2.5, 0))
    return [by_hand, (draws.normal(6) + 1, 2 * draws.normal(6), draws.normal(5))]


def ratio(unlearned: Tensor, unseen: Tensor, phi: Tensor, factor: float = 0.5) -> Tensor:
    """The log likelihood ratio with one variance for both, times 2 `factor`."""
    s2 = (unlearned.var() + unseen.var()) / 2
    return factor * ((phi - unseen.mean()) ** 2 - (phi - unlearned.mean()) ** 2) / s2


def of_one_variance(unlearned: Tensor, unseen: Tensor, phi: Tensor) -> Tensor:
    """In units of the unlearned crowd's variance alone."""
    return ((phi - unseen.mean()) ** 2 - (phi - unlearned.mean()) ** 2) / (2 * unlearned.var())


def of_distances(unlearned: Tensor, unseen: Tensor, phi: Tensor) -> Tensor:
    """Distances in place of their squares."""
    s2 = (unlearned.var() + unseen.var()) / 2
    return ((phi - unseen.mean()).abs() - (phi - unlearned.mean()).abs()) / (2 * s2)


EXERCISE = Exercise(
    id=ID,
    title="whose margin is this?",
    stars=2,
    minutes=15,
    statement=r"""
        An attacker knows the margins of one example under N models that unlearned it and under N that never saw it. He
        takes both crowds as normal, $\mathcal N(m_u, s^2)$ and $\mathcal N(m_o, s^2)$, where $s^2$ is the mean of the
        two crowds' variances. For every margin $\varphi$ of a further model return his score, the logarithm of how much
        likelier it is of the first crowd than of the second. Above 0 he says "unlearned".
    """,
    stub="""
        def score(unlearned, unseen, phi):
            return ...
    """,
    answer="score",
    solution="""
        def score(unlearned, unseen, phi):
            s2 = (unlearned.var() + unseen.var()) / 2
            return ((phi - unseen.mean()) ** 2 - (phi - unlearned.mean()) ** 2) / (2 * s2)
    """,
    trials=trials,
    hints=(
        "The logarithm of a normal density is -(phi - m)^2 / (2 s^2) and a constant, the same for both crowds.",
        "In the difference the constants go: what is left are two squares over 2 s^2.",
        "((phi - m_o)^2 - (phi - m_u)^2) / (2 s^2): large where phi is far from the unseen crowd's mean.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda unlearned, unseen, phi: -ratio(unlearned, unseen, phi),
            "The signs are the wrong way round: a margin at the unlearned models' mean must score above 0.",
        ),
        Mistake(
            "two",
            lambda unlearned, unseen, phi: ratio(unlearned, unseen, phi, factor=1.0),
            "Twice too large: a normal density has 2 s^2 below its square.",
        ),
        Mistake(
            "one variance",
            of_one_variance,
            "Divided is by the unlearned crowd's variance alone. It is the mean of both crowds'.",
        ),
        Mistake(
            "distances",
            of_distances,
            "Those are distances to the means. The logarithm of a normal density has their squares.",
        ),
    ),
    commentary="""
        With one variance for both, the score is a straight line in phi: the attacker draws a threshold half-way between
        the two means, and learns only from the crowds on which side of it the unlearned models lie. That is why he
        finds an example that stands out as *forgotten*, too, and why a crowd with the right mean and a wrong spread
        passes him and not KLoM.
    """,
)
