"""FedEraser's calibration: old lengths, new directions."""

import torch

from fu_papers.exercises.draws import Draws, numbers
from fu_papers.exercises.exercise import SIGN, Arguments, Exercise, Mistake

ID = "puf-5"


def trials() -> list[Arguments]:
    """w (d,), stored (K, d), fresh (K, d), sizes (K,)."""
    draws = Draws(ID)
    by_hand = (numbers(1, 1), numbers(3, 4).unsqueeze(0), numbers(0, 2).unsqueeze(0), numbers(10))
    return [by_hand, (draws.normal(4), draws.normal(3, 4), draws.normal(3, 4), draws.whole(1, 90, 3).double())]


def _replayed(w: torch.Tensor, updates: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    return w + sizes / sizes.sum() @ updates


def _lengths(updates: torch.Tensor) -> torch.Tensor:
    return updates.norm(dim=1, keepdim=True)


EXERCISE = Exercise(
    id=ID,
    title="a round of FedEraser",
    stars=2,
    minutes=15,
    statement=r"""
        FedEraser replays the training without the leaving client. In every round those who stay train a little (half of
        the epochs), which gives *fresh* updates $\hat U_k$; and it has *stored* what they sent in the first training,
        $U_k$. A calibrated update has the stored length and the fresh direction,
        $\bar U_k = \lVert U_k\rVert\, \hat U_k / \lVert \hat U_k\rVert$. Return the model after one replayed round, the
        calibrated updates averaged by `sizes` (K,). `stored` and `fresh` are (K, d).
    """,
    stub="""
        def replayed_round(w, stored, fresh, sizes):
            return ...
    """,
    answer="replayed_round",
    solution="""
        def replayed_round(w, stored, fresh, sizes):
            lengths = stored.norm(dim=1, keepdim=True) / fresh.norm(dim=1, keepdim=True)
            return w + sizes / sizes.sum() @ (lengths * fresh)
    """,
    trials=trials,
    hints=(
        "One length per row: `stored.norm(dim=1, keepdim=True)` is (K, 1) and multiplies a (K, d).",
        "Divide `fresh` by its own lengths, multiply by the stored ones, then average as FedAvg does.",
    ),
    mistakes=(
        Mistake(
            SIGN,
            lambda w, stored, fresh, sizes: _replayed(w, -_lengths(stored) * fresh / _lengths(fresh), sizes),
            "These are updates of those who *stay*, and they are added. FedEraser negates nobody, it leaves one out.",
        ),
        Mistake(
            "swapped",
            lambda w, stored, fresh, sizes: _replayed(w, _lengths(fresh) * stored / _lengths(stored), sizes),
            "Swapped: the *direction* must be fresh, since the stored one knows of the client that left.",
        ),
        Mistake(
            "fresh alone",
            lambda w, stored, fresh, sizes: _replayed(w, fresh, sizes),
            "That is retraining with few epochs. The stored lengths are what makes up for them.",
        ),
        Mistake(
            "one length for all",
            lambda w, stored, fresh, sizes: _replayed(w, stored.norm() * fresh / fresh.norm(), sizes),
            "Each client's update has a length of its own: `norm(dim=1, keepdim=True)`.",
        ),
        Mistake(
            "unweighted",
            lambda w, stored, fresh, sizes: w + (_lengths(stored) * fresh / _lengths(fresh)).mean(dim=0),
            "Right but for the weights: average by sample counts.",
        ),
    ),
    commentary="""
        With *all* epochs, from the same start and with the same batches, the fresh updates are those of retraining; the
        stored lengths would then only spoil them. Half the epochs save half the work, and
        all the rounds stay: the cost grows with the training, where PUF's does not.
    """,
)
