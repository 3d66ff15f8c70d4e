"""FedAvg in one line."""

import torch

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "start_here-1"


def trials() -> list[Arguments]:
    """w (d,), deltas (K, d), sizes (K,)."""
    draws = Draws(ID)
    by_hand = (numbers(1, 1), torch.stack([numbers(4, 0), numbers(0, 4)]), numbers(30, 10))
    return [by_hand, (draws.normal(5), draws.normal(3, 5), draws.whole(1, 90, 3).double())]


EXERCISE = Exercise(
    id=ID,
    title="a round of FedAvg",
    stars=1,
    minutes=5,
    statement=r"""
        K clients send their updates $\Delta_i$, the rows of `deltas` (K, d), and how many images are behind each,
        `sizes` (K,). Return the model after the round, $w + \sum_i \frac{n_i}{n} \Delta_i$. A matrix product does it in
        one line.
    """,
    stub="""
        def fedavg_round(w, deltas, sizes):
            return ...
    """,
    answer="fedavg_round",
    solution="""
        def fedavg_round(w, deltas, sizes):
            return w + sizes / sizes.sum() @ deltas
    """,
    trials=trials,
    hints=(
        "The weights n_i / n are `sizes / sizes.sum()`; they add up to one.",
        "A row vector (K,) times a matrix (K, d) is a vector (d,): `weights @ deltas`.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda w, deltas, sizes: w - sizes / sizes.sum() @ deltas,
            "An update is new minus old, so the server *adds* it. With a minus everybody unlearns what was learned.",
        ),
        Mistake(
            "unweighted",
            lambda w, deltas, sizes: w + deltas.mean(dim=0),
            "Every client counts the same here. Who has three times as many images must count three times as much.",
        ),
        Mistake(
            "not divided",
            lambda w, deltas, sizes: w + sizes @ deltas,
            "The weights must add up to one: divide by the number of all images.",
        ),
        Mistake(
            "the update alone",
            lambda w, deltas, sizes: sizes / sizes.sum() @ deltas,
            "That is the mean update. The new model is where the old one was, and that much further.",
        ),
    ),
    commentary="""
        A federation's round is a matrix of updates, and FedAvg a row of weights times that matrix. PUF (notebook 01) is
        the same line with other weights: negative ones for who leaves.
    """,
)
