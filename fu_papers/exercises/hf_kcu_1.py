"""The sign of HF-KCU, on two parameters."""

import torch

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "hf_kcu-1"


def trials() -> list[Arguments]:
    """theta (2,), g (2,), H_r (2, 2), w: a resting model, the leaving client's gradient, the others' curvature."""
    draws = Draws(ID)
    by_hand = (numbers(2, 2), numbers(-2, 4), torch.diag(numbers(1, 2)), 0.5)
    return [by_hand, (draws.normal(2), draws.normal(2), draws.bowl(2), 0.1)]


EXERCISE = Exercise(
    id=ID,
    title="find the sign",
    stars=1,
    minutes=15,
    statement=r"""
        The model `theta` (2,) is at the minimum of $L = (1-w) L_r + w\, \ell_u$: of those who stay, and of the client
        that leaves with its weight $w$. Known there are the leaving client's gradient `g` $= \nabla \ell_u$ and the
        others' curvature `H_r` (2, 2). All losses are bowls. Return the minimum of $L_r$, where retraining ends. Begin
        with: what is $\nabla L$ at `theta`, and hence $\nabla L_r$?
    """,
    stub="""
        def retrained(theta, g, H_r, w):
            return ...
    """,
    answer="retrained",
    solution="""
        def retrained(theta, g, H_r, w):
            gradient_r = -w / (1 - w) * g  # since (1 - w) grad L_r + w g = grad L = 0
            return theta - torch.linalg.solve(H_r, gradient_r)  # Newton's step: plus w / (1 - w) H_r^-1 g
    """,
    trials=trials,
    hints=(
        "At a minimum grad L = 0, so (1 - w) grad L_r = -w g.",
        "Newton's step on a bowl lands in its minimum: theta - H_r^-1 grad L_r. Two minus signs meet.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda theta, g, H_r, w: theta - w / (1 - w) * torch.linalg.solve(H_r, g),
            "This is the paper's sign, and the wrong one (erratum H1): -H^-1 g leads *towards* the leaving client's "
            "own minimum. The gradient of those who stay points the other way than g.",
        ),
        Mistake(
            "no weight",
            lambda theta, g, H_r, w: theta + torch.linalg.solve(H_r, g),
            "The sign is right. But the client has the weight w only, and the others' gradient is -w / (1 - w) g.",
        ),
        Mistake(
            "no weight, printed sign",
            lambda theta, g, H_r, w: theta - torch.linalg.solve(H_r, g),
            "This has Eq. (3)'s sign, which is wrong (erratum H1), and no weight, as Eq. (3) has none (erratum H6). "
            "Eq. (3) itself takes everybody's curvature, not H_r.",
        ),
        Mistake(
            "weight w",
            lambda theta, g, H_r, w: theta + w * torch.linalg.solve(H_r, g),
            "Nearly. When the client has left, the others' weights grow by 1 / (1 - w).",
        ),
        Mistake(
            "multiplied",
            lambda theta, g, H_r, w: theta + w / (1 - w) * H_r @ g,
            "The gradient is to be *divided* by the curvature: `torch.linalg.solve(H_r, ...)`.",
        ),
    ),
    commentary="""
        The printed formula is the influence of *adding* weight to a sample. Forgetting takes weight away, and there is
        the second minus that Eq. (3) lost. Section 4 shows the same on real data: the printed step is farther from
        retraining than doing nothing.
    """,
)
