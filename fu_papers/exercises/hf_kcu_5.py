"""The step for a part of a client."""

import torch
from torch import Tensor

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "hf_kcu-5"


def trials() -> list[Arguments]:
    """theta (d,), gradients (n, d) that add up to zero, gone (n,) bool, H_r (d, d)."""
    draws = Draws(ID)
    by_hand = (
        numbers(2), numbers(2, -2, 0).unsqueeze(1), torch.tensor([False, True, False]), torch.eye(1).double(),
    )  # fmt: skip
    gradients = draws.normal(9, 3)
    gradients = gradients - gradients.mean(dim=0)
    return [by_hand, (draws.normal(3), gradients, torch.arange(9) < 2, draws.bowl(3))]


def stepped(theta: Tensor, H_r: Tensor, right_side: Tensor) -> Tensor:
    """One Newton step with the right side that somebody chose."""
    return theta + torch.linalg.solve(H_r, right_side)


EXERCISE = Exercise(
    id=ID,
    title="forgetting a few samples",
    stars=2,
    minutes=20,
    statement=r"""
        Not a whole client leaves, but $m$ of $n$ samples. `gradients` (n, d) are all samples' gradients at the resting
        model `theta`, where they add up to zero; `gone` (n,) says which samples leave; `H_r` (d, d) is the curvature of
        the mean loss of those that are kept. Return the corrected step's end: one Newton step on the mean loss of what
        is kept, computed from the gradients of what *leaves* alone.
    """,
    stub="""
        def without_samples(theta, gradients, gone, H_r):
            return ...
    """,
    answer="without_samples",
    solution="""
        def without_samples(theta, gradients, gone, H_r):
            kept = (~gone).sum()  # n - m
            return theta + torch.linalg.solve(H_r, gradients[gone].sum(dim=0) / kept)
    """,
    trials=trials,
    hints=(
        "All gradients add up to zero, so the sum over the kept ones is minus the sum over those that leave.",
        "Their *mean* is what Newton's step needs: divide by the number of kept samples, n - m.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda theta, gradients, gone, H_r: stepped(theta, H_r, -gradients[gone].sum(dim=0) / (~gone).sum()),
            "The wrong way, as the paper prints it: the kept samples' gradient is *minus* that of the others, and "
            "Newton goes against it.",
        ),
        Mistake(
            "divided by n",
            lambda theta, gradients, gone, H_r: stepped(theta, H_r, gradients[gone].sum(dim=0) / len(gone)),
            "Divided by all n samples. The mean is over the n - m that are kept.",
        ),
        Mistake(
            "divided by m",
            lambda theta, gradients, gone, H_r: stepped(theta, H_r, gradients[gone].mean(dim=0)),
            "This is their mean gradient, as in Eq. (3): too long by (n - m) / m (erratum H6).",
        ),
        Mistake(
            "multiplied",
            lambda theta, gradients, gone, H_r: theta + H_r @ gradients[gone].sum(dim=0) / (~gone).sum(),
            "Solve with the curvature, do not multiply by it.",
        ),
    ),
    commentary="""
        The factor is m / (n - m) on the mean gradient of what leaves. For one whole client it is w / (1 - w). Under
        objective, Eq. (2), which keeps the client's weight although it holds less, the right vector is centred as well
        (erratum H6): set `client_weights="fixed"` to see the difference.
    """,
)
