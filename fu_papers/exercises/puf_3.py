"""The effective step: which eta_u pushes equally hard in both modes."""

import torch

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "puf-3"


def trials() -> list[Arguments]:
    """sizes (N,), leaves (N,) bool, PUF-Special's eta_u."""
    draws = Draws(ID)
    one, two = torch.arange(10) < 1, torch.arange(10) < 2
    return [
        (numbers(10, 30), torch.tensor([True, False]), 2.0),
        (torch.full((10,), 5000.0).double(), two, 2.0),
        (draws.whole(100, 900, 10).double(), one, 3.0),
    ]


EXERCISE = Exercise(
    id=ID,
    title="pushing equally hard",
    stars=2,
    minutes=15,
    statement=r"""
        In both modes, by Eqs. (6) to (8), the mean update of who leaves is subtracted $\eta_u |D_u| / n$ times, where
        $|D_u|$ samples leave. But $n$ counts only those who take part: in Special the leaving clients alone, in Regular
        everybody. Given PUF-Special's `eta_u`, return the $\eta_u$ with which PUF-Regular pushes equally hard. `sizes`
        (N,) are all clients' sample counts, `leaves` (N,) says who leaves.
    """,
    stub="""
        def regular_eta(sizes, leaves, eta_u):
            return ...
    """,
    answer="regular_eta",
    solution="""
        def regular_eta(sizes, leaves, eta_u):
            p_u = sizes[leaves].sum() / sizes.sum()  # the share of the data that leaves
            return eta_u / p_u
    """,
    trials=trials,
    hints=(
        "In Special |D_u| / n is 1. In Regular it is p_u, the share of all samples that leaves.",
        "eta_u(Special) * 1 = eta_u(Regular) * p_u. Solve for the second.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda sizes, leaves, eta_u: -eta_u * sizes.sum() / sizes[leaves].sum(),
            "The minus is in Eq. (7) already: eta_u is positive in both modes.",
        ),
        Mistake(
            "upside down",
            lambda sizes, leaves, eta_u: eta_u * sizes[leaves].sum() / sizes.sum(),
            "Upside down. In Regular the leaving client's update is diluted by everybody's samples, so eta_u must be "
            "*larger* there.",
        ),
        Mistake(
            "ten times",
            lambda sizes, leaves, eta_u: torch.as_tensor(10 * eta_u),
            "The paper's defaults, 2 and 20, differ by ten because one of ten equal clients leaves. What if it is two?",
        ),
        Mistake(
            "clients counted",
            lambda sizes, leaves, eta_u: eta_u * len(sizes) / leaves.sum(),
            "This counts clients. Updates are weighted by samples.",
        ),
    ),
    commentary="""
        One of ten equal clients: 2 and 20 agree. Two of ten: Regular pushes twice as hard as Special with the same
        defaults, which the paper does not say (erratum P7). `fu_core.unlearning.puf.effective_step` tells it for any
        case.
    """,
)
