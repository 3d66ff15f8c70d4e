"""The largest stable step on a graph."""

import torch
from torch import Tensor

from fu_papers.exercises.draws import numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "certified_dfl-4"


def ring(N: int) -> Tensor:
    """Metropolis weights of a ring: a third each."""
    one = torch.eye(N, dtype=torch.float64)
    return (one + one.roll(1, dims=0) + one.roll(-1, dims=0)) / 3


def trials() -> list[Arguments]:
    """Q (N, N), L."""
    lazy = torch.stack([numbers(0.5, 0.5), numbers(0.5, 0.5)])
    return [(lazy, 1.0), (ring(4), 1.0), (ring(10), 2.5)]


def eigenvalue(Q: Tensor, k: int) -> Tensor:
    """The k-th smallest."""
    return torch.linalg.eigvalsh(Q)[k]


EXERCISE = Exercise(
    id=ID,
    title="how long may a step be?",
    stars=3,
    minutes=30,
    statement=r"""
        All clients' losses are bowls of curvature $L$ with the same minimum 0. Then a round of D-PSGD as the paper
        writes it (`order="cta"`) is $X \leftarrow QX - \gamma L X$. Return the $\gamma$ below which this shrinks every
        $X$, and above which some $X$ grows. (For one client alone, Q = 1, it is the well known $2/L$.)
    """,
    stub="""
        def largest_rate(Q, L):
            return ...
    """,
    answer="largest_rate",
    solution="""
        def largest_rate(Q, L):
            smallest = torch.linalg.eigvalsh(Q)[0]  # ascending
            return (1 + smallest) / L
    """,
    trials=trials,
    hints=(
        "The matrix of the round is Q - gamma L. It shrinks everything if all its eigenvalues lie between -1 and 1.",
        "They are rho_i - gamma L. Which rho_i falls below -1 first as gamma grows?",
        "The smallest: rho_N - gamma L > -1, so gamma < (1 + rho_N) / L.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda Q, L: (1 - eigenvalue(Q, 0)) / L,
            "rho_N - gamma L must stay above -1: gamma L < 1 + rho_N.",
        ),
        Mistake(
            "one client alone",
            lambda Q, L: torch.as_tensor(2 / L),
            "That is the bound for one client alone, or for `order='atc'`, which mixes the steps, too; it is also what "
            "the largest eigenvalue gives, which is always 1. Here the smallest one decides.",
        ),
        Mistake(
            "second largest",
            lambda Q, L: (1 + eigenvalue(Q, -2)) / L,
            "The second largest eigenvalue says how fast models mix. Stability hangs on the smallest.",
        ),
    ),
    commentary="""
        On a ring of four the smallest eigenvalue is -1/3, and a third of the allowed 2/L is left. That is what the
        error means if you set `order` to "cta" in the parameters: take a smaller rate, another graph, or a lazier Q
        (more of one's own model), and it is stable again.
    """,
)
