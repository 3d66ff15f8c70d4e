"""A round of D-PSGD."""

import torch

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "certified_dfl-2"


def trials() -> list[Arguments]:
    """X (N, d), Q (N, N), G (N, d), gamma."""
    draws = Draws(ID)
    by_hand = (
        numbers(0, 4).unsqueeze(1), torch.stack([numbers(0.75, 0.25), numbers(0.25, 0.75)]),
        numbers(1, -1).unsqueeze(1), 0.5,
    )  # fmt: skip
    ring = torch.stack([numbers(1, 1, 0, 1), numbers(1, 1, 1, 0), numbers(0, 1, 1, 1), numbers(1, 0, 1, 1)]) / 3
    return [by_hand, (draws.normal(4, 3), ring, draws.normal(4, 3), 0.1)]


EXERCISE = Exercise(
    id=ID,
    title="a round without a server",
    stars=1,
    minutes=5,
    statement=r"""
        Everybody's models are the rows of `X` (N, d), everybody's gradients, each at its own model, the rows of `G`.
        Return all models after a round: everybody takes the mean of its neighbours by the weights `Q`, and a step of
        rate $\gamma$ against its own gradient: $X \leftarrow QX - \gamma G$.
    """,
    stub="""
        def round_of_dpsgd(X, Q, G, gamma):
            return ...
    """,
    answer="round_of_dpsgd",
    solution="""
        def round_of_dpsgd(X, Q, G, gamma):
            return Q @ X - gamma * G
    """,
    trials=trials,
    hints=("Row i of `Q @ X` is the weighted mean of client i's neighbours.", "`Q @ X - gamma * G`."),
    mistakes=(
        Mistake(
            SIGN, lambda X, Q, G, gamma: Q @ X + gamma * G, "This climbs the loss. A step goes against the gradient."
        ),
        Mistake(
            "adapt, then combine",
            lambda X, Q, G, gamma: Q @ (X - gamma * G),
            "This mixes the steps, too (`order='atc'` in our code, and it is the more stable one). As the paper writes "
            "it, only the models are mixed.",
        ),
        Mistake("nobody talks", lambda X, Q, G, gamma: X - gamma * G, "Nobody listens to anybody here: Q is missing."),
        Mistake("no step", lambda X, Q, G, gamma: Q @ X, "They mix, but nobody learns."),
    ),
    commentary="""
        Again a matrix times a matrix. Compare FedAvg: there the mixing matrix has equal rows, and everybody has the
        same model after each round.
    """,
)
