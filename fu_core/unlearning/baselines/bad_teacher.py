"""Bad teacher: be as ignorant as an untrained net about what is forgotten (Chundawat et al., AAAI 2023).

The good teacher is the model before unlearning, w_o; the bad one, w_b, has never been trained. A round, with q what a
teacher says and p_w what the student does:

    Delta_j = update on mean KL(q_b || p_w) over what j forgets,      j in S-
    Delta_k = update on mean KL(q_o || p_w) over some of what k keeps,  k in S+
    w <- w + sum_i n_i / n Delta_i                                    n_i samples of n are shown to i

S+ are those who stay and take part in the round. Its retained samples are a share of each client's, drawn once, 30 % as
in the authors' code. No label is looked at. As the student begins as its good teacher, who stays teaches nothing in
the first round, and pulls it back from the second on. The federated form is ours, and so are rate and optimiser, the
clients' where the code has Adam at 1e-4: there the mean is over classes, too, which divides the loss by their number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, UnsupportedTask, check_count, check_positive, check_share
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client, ClientOpt, round_half_up
from fu_core.federation.server import ServerState, aggregate, server_step
from fu_core.federation.together import train_round
from fu_core.request import Deletion
from fu_core.streams import stream, stream_seed
from fu_core.unlearning.another_loss import with_loss
from fu_core.unlearning.distillation import Student, lesson
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.puf import participants
from fu_core.unlearning.ranges import Range

RANGES = {
    "lr": Range(1e-3, 1.0, "log"),  # as Random labels: a decade around the clients' 0.1, and one more below
    "rounds": Range(1, 5, "whole"),  # the code has one epoch, after which nobody has pulled back
    "share": Range(0.1, 1.0),  # around the code's 0.3
}


@dataclass(frozen=True)
class BadTeacher:
    """Hyper-parameters; with no rounds nothing happens."""

    rounds: int = 3
    lr: float | None = None  # None: the clients', with its decay
    epochs: float = 1.0
    share: float = 0.3  # of what each client keeps

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, least=0)
        check_positive("share", self.share)
        check_share("share", self.share)
        _ = self.local(ClientOpt())  # checks the rest

    def local(self, clients: ClientOpt) -> ClientOpt:
        """The student's training, where the clients have trained with `clients`."""
        local = clients if self.lr is None else replace(clients, lr=self.lr, lr_decay=1.0)
        return replace(local, epochs=self.epochs)


def bad_model(f: Federation, w: Tensor) -> Tensor:
    """`w_b` (d,), like `w`: untrained parameters from the stream (f.seed, "bad teacher"), which clients can draw."""
    return f.model.init(stream_seed(f.seed, "bad teacher"), w.dtype).to(w.device)


def some(client: Client, share: float, *, seed: int, i: int) -> Client:
    """`share` of client i's samples, at least one, from the stream (seed, "shown to the good teacher", i)."""
    x, y = client
    order = torch.randperm(len(y), generator=stream(seed, "shown to the good teacher", i))
    rows = order[: max(1, round_half_up(share * len(y)))].sort().values.to(y.device)
    return x[rows], y[rows]


def taught_rounds(f: Federation, w: Tensor, deletion: Deletion, config: BadTeacher, round: int) -> Tensor:
    """The model (d,) after rounds `round`, `round` + 1, ... with two teachers; `w` (d,) is left untouched.

    Optimiser, batches and augmentation are `f.local`'s. The server's moments start afresh. The meter counts the good
    teacher once to each client that needs it, the bad one as nothing but a seed, and each teacher's one pass. Random:
    the bad teacher, which samples are shown, and the streams of these rounds. Raises `UnsupportedTask` for other tasks
    than classification, `NumericalFailure` on divergence.
    """
    if f.model.task != "classification":
        raise UnsupportedTask(f"Bad teacher needs the probabilities of classes, got task {f.model.task!r}")
    taught = with_loss(f.having(local=config.local(f.local)), Student(f.model, divergence=1.0))
    f.meter.keep("global model and teacher", w, w)
    bad = bad_model(f, w)
    lessons: dict[int, Client] = {}
    here, state = w.clone(), ServerState()
    for t in range(round, round + config.rounds):
        everybody, forgetting, staying = participants(f, deletion, "regular", t)
        for i in [*forgetting, *staying]:
            if i in lessons:
                continue
            if i in forgetting:
                lessons[i] = lesson(f.model, bad, everybody[i])
            else:
                lessons[i] = lesson(f.model, w, some(everybody[i], config.share, seed=f.seed, i=i))
                f.meter.send(w, down=1)
            f.meter.train(len(lessons[i][1]))
        ids = [*forgetting, *staying]
        own = taught.having(clients={i: lessons[i] for i in ids})
        n = own.sizes(ids)
        delta = aggregate(train_round(own, here, t, ids), n / n.sum())  # sum_i n_i / n Delta_i
        here, state = server_step(here, delta, f.server, state)
        if not bool(here.isfinite().all()):
            raise NumericalFailure(f"round {t}: the model with two teachers is not finite; lower lr ({config.lr})")
    return here


@register(
    "Bad teacher",
    paper="Chundawat et al., AAAI 2023",
    colour="#9c8b00",
    dash="--",
    parameters=BadTeacher,
    needs=Needs(task=True, several_rounds=True),
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: BadTeacher) -> Tensor:
    """The rounds that follow training."""
    return taught_rounds(trained.horizontal, trained.model, deletion, config, trained.next_round)
