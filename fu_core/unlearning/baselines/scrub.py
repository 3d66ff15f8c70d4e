"""SCRUB: disobey a teacher about what is forgotten, obey it about the rest (Kurmanji et al., NeurIPS 2023).

The teacher is the model before unlearning, w_o. In epochs e = 1, ..., E, with probabilities at temperature T:

    MAX    w <- w + lr grad mean_forget T^2 KL(p_o || p_w)                                 while e <= E_max
    MIN    w <- w - lr grad mean_retain (alpha T^2 KL(p_o || p_w) + gamma CE)

In a federation each is a round of one pass: of those who hold what is forgotten, averaged by how much of it, and of
those who stay, as in training. The federated form is ours. Who leaves is there in MAX rounds alone.
At w = w_o the divergence is zero, and so is its gradient. The authors' first MAX pass moves by weight decay and noise;
where there is none, the first epoch here has MIN before MAX.

SCRUB+R goes back to the epoch whose error on what is forgotten is nearest to the last model's on samples that are held
out and drawn like it: a model that is wrong more often than that tells on itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fu_core.errors import (
    InvalidRequest,
    NumericalFailure,
    UnsupportedTask,
    check_count,
    check_not_negative,
    check_positive,
)
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.server import FedOpt, ServerState, aggregate, server_step
from fu_core.federation.together import train_round
from fu_core.request import Deletion
from fu_core.unlearning.another_loss import with_loss
from fu_core.unlearning.distillation import Student, lesson
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.puf import participants
from fu_core.unlearning.ranges import Choice, Range

RANGES = {
    "lr": Range(5e-4, 1e-1, "log"),  # from the code's rate to that of our clients
    "rounds": Range(2, 10, "whole"),  # the code's 3 and 10
    "max_rounds": Range(1, 5, "whole"),  # around the code's 2 and 3
    "alpha": Choice((0.001, 0.1, 0.5)),  # the first and the last are the code's, for large and small problems
    "temperature": Choice((1.0, 2.0, 4.0)),  # the code's are 2 and 4
}


@dataclass(frozen=True)
class SCRUB:
    """Hyper-parameters; all but the rate are those of the authors' code for large problems.

    lr: the code has 5e-4 with momentum 0.9, and smaller problems; ours, for SGD without momentum, is twice the reach
    of that. MAX has no lower bound, and at the 0.1 that clients train with often ends nowhere. None: the clients' rate.
    held_out: samples (x, y) nobody has trained on, drawn like those to be forgotten; what `rewind` needs.
    """

    rounds: int = 3  # E
    max_rounds: int = 2  # E_max
    alpha: float = 0.001
    gamma: float = 0.99
    temperature: float = 4.0
    lr: float | None = 0.01  # constant; None: the clients', with its decay
    epochs: float = 1.0  # passes over one's data in a round
    rewind: bool = False  # SCRUB+R
    held_out: Client | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, least=0)
        check_count("max_rounds", self.max_rounds, least=0)
        check_not_negative("alpha", self.alpha)
        check_not_negative("gamma", self.gamma)
        check_positive("temperature", self.temperature)
        _ = self.local(ClientOpt())  # checks the rest

    def local(self, clients: ClientOpt) -> ClientOpt:
        """The training of a pass, where the clients have trained with `clients`."""
        local = clients if self.lr is None else replace(clients, lr=self.lr, lr_decay=1.0)
        return replace(local, epochs=self.epochs)


def scrub(
    f: Federation, w: Tensor, deletion: Deletion, config: SCRUB, round: int, notes: dict[str, Any] | None = None
) -> Tensor:
    """The model (d,) after the passes, or with `config.rewind` after as many epochs as forget best; `w` is untouched.

    Optimiser, batches and augmentation are `f.local`'s; the server averages MAX rounds, and takes MIN rounds as those
    of training, with moments that start afresh. Who forgets some samples takes part in both. `notes` takes in which
    epoch was chosen, as "epoch". The meter counts the teacher, once to everybody who needs it, and its passes.

    Random: batches and augmentation, from the streams of rounds `round`, `round` + 1, ..., an epoch each. Raises
    `UnsupportedTask` for other tasks than classification, `InvalidRequest` for a rewind without held-out samples,
    `NumericalFailure` on divergence.
    """
    if f.model.task != "classification":
        raise UnsupportedTask(f"SCRUB needs the probabilities of classes, and so classification, got {f.model.task!r}")
    if config.rewind and (config.held_out is None or not len(config.held_out[1])):
        raise InvalidRequest("held_out must be samples (x, y) that nobody has trained on, for rewind, got none")
    f.meter.keep("global model and teacher", w, w)
    taught = f.having(local=config.local(f.local))
    minimising = with_loss(
        taught, Student(f.model, divergence=config.alpha, cross_entropy=config.gamma, temperature=config.temperature)
    )
    maximising = with_loss(
        taught.having(exchange=FedOpt()), Student(f.model, divergence=-1.0, temperature=config.temperature)
    )
    still = not f.local.weight_decay and not f.model.l2  # a first MAX pass would stay at w_o
    lessons: dict[int, Client] = {}
    here, states = w.clone(), {"max": ServerState(), "min": ServerState()}
    epochs: list[Tensor] = []
    for e in range(1, config.rounds + 1):
        t = round + e - 1
        everybody, forgetting, staying = participants(f, deletion, "regular", t)
        passes = [("max", maximising, forgetting)] if e <= config.max_rounds else []
        passes.append(("min", minimising, staying))
        for kind, at, ids in reversed(passes) if e == 1 and still else passes:
            for i in ids:
                if i not in lessons:
                    lessons[i] = lesson(f.model, w, everybody[i])
                    f.meter.send(w, down=1)
                    f.meter.train(len(everybody[i][1]))
            own = at.having(clients={i: lessons[i] for i in ids})
            n = own.sizes(ids)
            delta = aggregate(train_round(own, here, t, ids), n / n.sum())
            here, states[kind] = server_step(here, delta, own.server, states[kind])
            if not bool(here.isfinite().all()):
                raise NumericalFailure(f"round {t}: the model of SCRUB is not finite; lower lr ({own.local.lr})")
        epochs.append(here)
    return _rewound(f, epochs, deletion, config, notes) if config.rewind and epochs else here


def _rewound(
    f: Federation, epochs: list[Tensor], deletion: Deletion, config: SCRUB, notes: dict[str, Any] | None
) -> Tensor:
    """The epoch's model (d,) whose error on what is forgotten is nearest to the last one's on held-out samples.

    Of several, the last. Those who hold what is forgotten look at every epoch's model.
    """
    assert config.held_out is not None  # by scrub
    reference = 100 - accuracy(f.model, epochs[-1], *config.held_out)
    f.meter.train(len(config.held_out[1]))
    f.meter.keep("the model of every epoch", *epochs)
    apart = []
    for w_e in epochs:
        f.meter.send(w_e, down=len(deletion.targets))
        f.meter.train(deletion.m)
        apart.append(abs(100 - accuracy(f.model, w_e, *deletion.forget) - reference))
    chosen = max(e for e, gap in enumerate(apart) if gap == min(apart))
    if notes is not None:
        notes["epoch"] = chosen + 1
    return epochs[chosen].clone()


@register(
    "SCRUB",
    paper="Kurmanji et al., NeurIPS 2023",
    colour="#a3566f",
    parameters=SCRUB,
    needs=Needs(task=True, several_rounds=True),
    recovers=False,
    ranges=RANGES,
)
@register(
    "SCRUB+R",
    paper="Kurmanji et al., NeurIPS 2023",
    colour="#d9a0b3",
    dash="--",
    parameters=SCRUB,
    preset={"rewind": True},
    needs=Needs(task=True, several_rounds=True, auxiliary_data=True),
    recovers=False,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: SCRUB) -> Tensor:
    """The rounds that follow training; MIN rounds are the method's own recovery. Notes: "epoch", where it rewinds."""
    return scrub(trained.horizontal, trained.model, deletion, config, trained.next_round, trained.notes)
