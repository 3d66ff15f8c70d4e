"""A client leaves: printed 1/N of the way, corrected all of it."""

import torch
from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "certified_dfl-3"


def trials() -> list[Arguments]:
    """x (d,), gradients (N, d), hessians (N, d, d), leaves (N,) bool."""
    draws = Draws(ID)
    by_hand = (
        numbers(2), numbers(2, -2).unsqueeze(1), torch.ones(2, 1, 1).double(), torch.tensor([False, True]),
    )  # fmt: skip
    hessians = torch.stack([draws.bowl(3) for _ in range(5)])
    return [by_hand, (draws.normal(3), draws.normal(5, 3), hessians, torch.arange(5) == 2)]


def newton(x: Tensor, gradients: Tensor, hessians: Tensor, who: Tensor) -> Tensor:
    """Newton's step on the mean loss of the clients `who`."""
    return torch.linalg.solve(hessians[who].mean(dim=0), gradients[who].mean(dim=0))


EXERCISE = Exercise(
    id=ID,
    title="a client leaves",
    stars=2,
    minutes=20,
    statement=r"""
        All clients have the model `x` (d,). `gradients` (N, d) and `hessians` (N, d, d) are those of every client's
        loss there, `leaves` (N,) says who leaves. The losses are bowls. Return the minimum of the *mean* loss of those
        who stay: one Newton step. (`x` need not be a minimum of anything.)
    """,
    stub="""
        def after_leaving(x, gradients, hessians, leaves):
            return ...
    """,
    answer="after_leaving",
    solution="""
        def after_leaving(x, gradients, hessians, leaves):
            g = gradients[~leaves].mean(dim=0)
            H = hessians[~leaves].mean(dim=0)
            return x - torch.linalg.solve(H, g)
    """,
    trials=trials,
    hints=(
        "The mean loss of those who stay has the mean of their gradients, and the mean of their Hessians.",
        "x - H^-1 g with both means over `~leaves`: `torch.linalg.solve(H, g)`.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda x, gradients, hessians, leaves: x + newton(x, gradients, hessians, ~leaves),
            "Newton's step goes *against* the gradient of those who stay. (The leaving client's has the plus.)",
        ),
        Mistake(
            "1/N of the way",
            lambda x, gradients, hessians, leaves: x - newton(x, gradients, hessians, ~leaves) / len(leaves),
            "This goes 1/N of the way, as Algorithm 1 does when a client leaves: it divides by N once too often "
            "(erratum D4). The whole step is right.",
        ),
        Mistake(
            "everybody's curvature",
            lambda x, gradients, hessians, leaves: (
                x - torch.linalg.solve(hessians.mean(dim=0), gradients[~leaves].mean(dim=0))
            ),
            "The curvature of the client that leaves is still in H.",
        ),
        Mistake(
            "the leaving client's own",
            lambda x, gradients, hessians, leaves: x - newton(x, gradients, hessians, leaves),
            "This is the minimum of the client that *leaves*.",
        ),
        Mistake(
            "everybody",
            lambda x, gradients, hessians, leaves: x - newton(x, gradients, hessians, leaves | True),
            "This is everybody's minimum, that of training. Who leaves must not be in the means.",
        ),
        Mistake(
            "mean of own steps",
            lambda x, gradients, hessians, leaves: (
                x - torch.linalg.solve(hessians[~leaves], gradients[~leaves]).mean(dim=0)
            ),
            "Everybody solves with its own curvature here, and the mean of the steps is taken, as the paper does. The "
            "mean loss has the mean Hessian (erratum D2).",
        ),
    ),
    commentary="""
        The printed correction divides by N twice, so the others get a tenth of the way among ten (erratum D4). In
        section 12, let a client leave a ring of 16, and see where the printed form takes them. Where every client
        deletes equally and all share their designs, printed and corrected agree: then the mean of the steps is the step
        of the mean.
    """,
)
