"""Metropolis weights."""

import torch
from torch import Tensor

from fu_papers.exercises.draws import numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "certified_dfl-1"


def trials() -> list[Arguments]:
    """The links (N, N) of a path of three, and of a star with a tail: 1.0 where two clients are linked."""
    path = torch.stack([numbers(0, 1, 0), numbers(1, 0, 1), numbers(0, 1, 0)])
    tailed = torch.zeros(5, 5, dtype=torch.float64)
    for i, j in ((0, 1), (0, 2), (0, 3), (3, 4)):
        tailed[i, j] = tailed[j, i] = 1.0
    return [(path,), (tailed,)]


def filled(off_diagonal: Tensor) -> Tensor:
    """The matrix with a diagonal that makes every row sum to one."""
    return off_diagonal + torch.diag(1 - off_diagonal.sum(dim=1))


def larger_degree(links: Tensor) -> Tensor:
    """max(deg i, deg j) for every pair (N, N)."""
    degree = links.sum(dim=1)
    return torch.maximum(degree[:, None], degree)


EXERCISE = Exercise(
    id=ID,
    title="Metropolis weights",
    stars=1,
    minutes=15,
    statement=r"""
        `links` (N, N) is 1.0 where two clients are linked and else 0.0. Return the mixing matrix
        $Q_{ij} = \frac{1}{1 + \max(\deg i, \deg j)}$ on links, $Q_{ii} = 1 - \sum_{j \ne i} Q_{ij}$.
    """,
    stub="""
        def metropolis(links):
            return ...
    """,
    answer="metropolis",
    solution="""
        def metropolis(links):
            degree = links.sum(dim=1)
            Q = links / (1 + torch.maximum(degree[:, None], degree))
            return Q + torch.diag(1 - Q.sum(dim=1))
    """,
    trials=trials,
    hints=(
        "Degrees are row sums. `torch.maximum(degree[:, None], degree)` is max(deg i, deg j) for all pairs at once.",
        "Multiply by `links`, so that only links count; then add `torch.diag(1 - Q.sum(dim=1))`.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda links: filled(-links / (1 + larger_degree(links))),
            "Neighbours have *positive* weights: everybody takes a mean.",
        ),
        Mistake(
            "own degree",
            lambda links: filled(links / (1 + links.sum(dim=1, keepdim=True))),
            "This takes each client's own degree, and Q is not symmetric: who has many neighbours would count too much "
            "in the end. Take the larger of both degrees.",
        ),
        Mistake(
            "no diagonal",
            lambda links: links / (1 + larger_degree(links)),
            "The diagonal is missing: every row must sum to one.",
        ),
        Mistake(
            "without the 1",
            lambda links: filled(links / larger_degree(links)),
            "1 + max(...), or a client between two others would keep nothing of its own.",
        ),
    ),
    commentary="""
        Symmetric, and every row sums to one: so the mean of all models stays where it is, and mixing brings everybody
        there. Each client needs to know its neighbours' degrees, nothing else.
    """,
)
