"""Fine-tune: those who stay train on, in ordinary rounds that count as unlearning. What does PUF's budget buy alone?

    w <- w + sum_{k != u} n_k / n_{-u} Delta_k(w)      with a server: PUF-Regular without its negated part
    X <- Q X + Delta                                   among peers, linked anew

No step is taken away from what is to be forgotten. With a stateless server, Fine-tune is Natural a few rounds ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fu_core.errors import check_count
from fu_core.federation.federation import Federation
from fu_core.request import Deletion
from fu_core.unlearning.baselines.retrain import ordinary_rounds
from fu_core.unlearning.method import Trained, register


@dataclass(frozen=True)
class FineTune:
    """rounds: before recovery, one as PUF has; with 0 nothing happens."""

    rounds: int = 1

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, least=0)


def fine_tune(f: Federation, w: Tensor, deletion: Deletion, config: FineTune, round: int) -> Tensor:
    """The model (d,) after rounds `round`, `round` + 1, ... of those who stay, with the samples that they keep.

    Among peers, `w` and the result are the models (K, d) of those who stay. The server's moments start afresh: the old
    ones hold the updates of those who leave. Random: batches and augmentation, from the streams of these rounds.
    """
    return ordinary_rounds(f.after(deletion), w, config.rounds, first_round=round)


@register(
    "Fine-tune",
    paper="baseline",
    colour="#3d3df0",
    dash="-.",
    parameters=FineTune,
    exchanges=("server", "peers"),
)
def serve(trained: Trained, deletion: Deletion, config: FineTune) -> Tensor:
    """The rounds that follow training."""
    return fine_tune(trained.horizontal, trained.staying(deletion), deletion, config, trained.next_round)
