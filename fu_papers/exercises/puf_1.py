"""PUF-Special by hand, for one leaving client or several."""

import torch

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "puf-1"


def trials() -> list[Arguments]:
    """w (d,), the leaving clients' updates (K, d), their sizes (K,), eta_u."""
    draws = Draws(ID)
    by_hand = (numbers(1, 1), numbers(0, 4).unsqueeze(0), numbers(30), 2.0)
    return [by_hand, (draws.normal(4), draws.normal(2, 4), torch.tensor([30.0, 10.0]).double(), 3.0)]


EXERCISE = Exercise(
    id=ID,
    title="PUF-Special, Eq. (9)",
    stars=1,
    minutes=10,
    statement=r"""
        The clients that leave have trained once more: the rows of `deltas` (K, d) are their ordinary updates, `sizes`
        (K,) their sample counts. In PUF-Special nobody else takes part, so $n$ in Eq. (6) is the sum of `sizes`. Return
        the unlearned model of Eq. (9), $w_{\bar u} = w - \eta_u \Delta^-$.
    """,
    stub="""
        def special(w, deltas, sizes, eta_u):
            return ...
    """,
    answer="special",
    solution="""
        def special(w, deltas, sizes, eta_u):
            delta_minus = sizes / sizes.sum() @ deltas  # (6)
            return w - eta_u * delta_minus  # (9)
    """,
    trials=trials,
    hints=(
        "First Eq. (6): the mean of the updates, weighted by n_i / n.",
        "Then go against it: `w - eta_u * (sizes / sizes.sum() @ deltas)`.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda w, deltas, sizes, eta_u: w + eta_u * (sizes / sizes.sum() @ deltas),
            "This goes *with* the leaving clients' updates, and learns their data once more. The server negates them.",
        ),
        Mistake(
            "unweighted",
            lambda w, deltas, sizes, eta_u: w - eta_u * deltas.mean(dim=0),
            "Right where all leaving clients are equally large. Eq. (6) weighs an update by n_i / n.",
        ),
        Mistake(
            "sum",
            lambda w, deltas, sizes, eta_u: w - eta_u * deltas.sum(dim=0),
            "This adds the updates up; Eq. (6) is their weighted mean.",
        ),
    ),
    commentary="""
        One line, and the same one as FedAvg's: a row of weights times the matrix of updates. The weights are -eta_u
        n_i / n for who leaves. `fu_core.unlearning.puf.puf` does no more.
    """,
)
