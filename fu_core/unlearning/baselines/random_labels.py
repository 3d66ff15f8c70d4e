"""Random labels: whoever forgets trains on, but on nonsense. The simplest rival that has PUF's budget.

    y_j ~ uniform in 0, ..., C - 1 for every forgotten sample of j, true or not, drawn once a round
    w <- w + sum_{k in S+} n_k / n Delta_k(w) + sum_{j in S-} n_j / n Delta_j(w; random labels)

S+ are those who stay, in an ordinary round with what they keep, all or as many as take part in one; `alone` leaves them
out. n counts who takes part.
After Golatkar et al. (CVPR 2020) and Graves et al. (AAAI 2021), who relabel in central training; the federated form is
ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, UnsupportedTask, check_count, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt
from fu_core.federation.server import ServerState, aggregate, server_step
from fu_core.federation.together import train_round
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.puf import participants
from fu_core.unlearning.ranges import Range

RANGES = {
    "lr": Range(1e-3, 1.0, "log"),  # a decade around the 0.1 that clients train at, and one more below
    "epochs": Range(1, 5, "whole"),  # from PUF's one pass on
}


@dataclass(frozen=True)
class RandomLabels:
    """Hyper-parameters of the relabelled training; those who stay train as ever."""

    rounds: int = 1  # before recovery, one as PUF has; with 0 nothing happens
    lr: float | None = None  # on random labels, in every round; None: the clients', with its decay
    epochs: float | None = None  # on random labels; None: the clients'
    alone: bool = False  # only those who forget take part

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, least=0)
        for name in ("lr", "epochs"):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value)

    def local(self, clients: ClientOpt) -> ClientOpt:
        """The training on random labels, where the clients train with `clients`."""
        local = clients if self.lr is None else replace(clients, lr=self.lr, lr_decay=1.0)
        return local if self.epochs is None else replace(local, epochs=self.epochs)


def random_labels(n: int, classes: int, *, seed: int, client: int, round: int) -> Tensor:
    """Labels (n,) uniform in 0, ..., C - 1, true or not, from the stream (seed, "random labels", client, round)."""
    return torch.randint(classes, (n,), generator=stream(seed, "random labels", client, round))


def relabelled_rounds(f: Federation, w: Tensor, deletion: Deletion, config: RandomLabels, round: int) -> Tensor:
    """The model (d,) after rounds `round`, `round` + 1, ... on random labels; `w` (d,) is left untouched.

    Who forgets some samples takes part twice: with these, and as one of those who stay with what it keeps. The server's
    moments start afresh. Random: labels, batches and augmentation, from the streams of these rounds. Raises
    `UnsupportedTask` for other tasks than classification, `NumericalFailure` on divergence.
    """
    if f.model.task != "classification":
        raise UnsupportedTask(f"Random labels are classes and need classification, got {f.model.task!r}")
    x, _ = deletion.forget
    classes = f.model.predict(w, x[:1]).shape[1]
    f.meter.keep("global model", w)
    w, state = w.clone(), ServerState()
    for t in range(round, round + config.rounds):
        everybody, minus_ids, plus_ids = participants(f, deletion, "special" if config.alone else "regular", t)
        here = f.having(clients=everybody)
        nonsense = {}
        for j in minus_ids:
            x, y = everybody[j]
            nonsense[j] = x, random_labels(len(y), classes, seed=f.seed, client=j, round=t).to(y)
        at_targets = f.having(clients=nonsense, local=config.local(f.local))
        rounds_before = f.meter.rounds
        updates = [train_round(at_targets, w, t, minus_ids)]
        if plus_ids:
            updates += [train_round(here, w, t, plus_ids)]
        f.meter.rounds = rounds_before + 1  # both groups train in the same round
        sizes = here.sizes([*minus_ids, *plus_ids])
        delta = aggregate(torch.cat(updates), sizes / sizes.sum())  # sum_i n_i / n * Delta_i
        w, state = server_step(w, delta, f.server, state)
        if not bool(w.isfinite().all()):
            raise NumericalFailure(f"round {t}: the model taught random labels is not finite; lower lr ({config.lr})")
    return w


@register(
    "Random labels",
    paper="baseline",
    colour="#e6d800",
    dash="-.",
    parameters=RandomLabels,
    needs=Needs(task=True),
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: RandomLabels) -> Tensor:
    """The rounds that follow training."""
    return relabelled_rounds(trained.horizontal, trained.model, deletion, config, trained.next_round)
