"""PUF-Regular with eta_u = -eta_r is an ordinary round."""

import torch

from fu_core.unlearning.puf import pseudo_gradient
from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "puf-2"


def trials() -> list[Arguments]:
    """w (d,), deltas (N, d), sizes (N,), leaves (N,) bool, eta_r."""
    draws = Draws(ID)
    by_hand = (
        numbers(0, 0), torch.stack([numbers(0, 4), numbers(4, 0)]), numbers(30, 10), torch.tensor([True, False]), 1.0,
    )  # fmt: skip
    leaves = torch.tensor([True, True, False, False, False])
    return [by_hand, (draws.normal(3), draws.normal(5, 3), draws.whole(1, 90, 5).double(), leaves, 0.7)]


def regular(w: torch.Tensor, *of: torch.Tensor, eta_r: float, eta_u: float) -> torch.Tensor:
    """PUF-Regular for any eta_u, also a negative one: w + eta_r Delta+ - eta_u Delta-."""
    return w + pseudo_gradient(*of, mode="regular", eta_r=eta_r, eta_u=eta_u)


EXERCISE = Exercise(
    id=ID,
    title="when is PUF an ordinary round?",
    stars=1,
    minutes=10,
    statement=r"""
        For one value of $\eta_u$, PUF-Regular, Eqs. (7) and (8), is nothing but a round of FedAvg with the server's
        rate $\eta_r$: $w + \eta_r \sum_i \frac{n_i}{n} \Delta_i$ over all clients, whoever leaves. Find it on paper,
        and then show it: return that FedAvg model, made by PUF's own pseudo-gradient. (`puf` refuses an $\eta_u$ that
        is not positive; `pseudo_gradient` does not.)
    """,
    stub="""
        def fedavg_by_puf(w, deltas, sizes, leaves, eta_r):
            # w + fu_core.unlearning.puf.pseudo_gradient(deltas, sizes, leaves, mode="regular", eta_r=eta_r, eta_u=?)
            return ...
    """,
    answer="fedavg_by_puf",
    solution="""
        from fu_core.unlearning.puf import pseudo_gradient


        def fedavg_by_puf(w, deltas, sizes, leaves, eta_r):
            eta_u = -eta_r
            return w + pseudo_gradient(deltas, sizes, leaves, mode="regular", eta_r=eta_r, eta_u=eta_u)
    """,
    trials=trials,
    hints=(
        "Write Eq. (7) as one sum over all clients: a client that stays has the factor eta_r, one that leaves -eta_u.",
        "For FedAvg both factors must be the same: eta_r = -eta_u.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda w, deltas, sizes, leaves, eta_r: regular(w, deltas, sizes, leaves, eta_r=eta_r, eta_u=eta_r),
            "With eta_u = eta_r who leaves is subtracted as much as others are added. FedAvg adds everybody: mind the "
            "minus before eta_u in Eq. (7).",
        ),
        Mistake(
            "none",
            lambda w, deltas, sizes, leaves, eta_r: regular(w, deltas, sizes, leaves, eta_r=eta_r, eta_u=0.0),
            "With eta_u = 0 who leaves is ignored (and still counted in n). That is not a round of everybody.",
        ),
        Mistake(
            "minus one",
            lambda w, deltas, sizes, leaves, eta_r: regular(w, deltas, sizes, leaves, eta_r=eta_r, eta_u=-1.0),
            "Right for eta_r = 1 only.",
        ),
    ),
    commentary="""
        So PUF is FedAvg with a dial. Turned from -eta_r (take part) over 0 (be ignored) to positive values, the client
        is learned, left out, unlearned; no other machinery is needed, which is why it fits into any FedAvg server.
    """,
)
