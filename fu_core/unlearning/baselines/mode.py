"""MoDe: pull the model towards one that never saw the target, then remind it (Zhao et al., IoT-J 2023).

Beside the global model w, the remaining clients train a degradation model v afresh. Rounds r = 1, ..., R_m:

    v <- v + sum_{k != u} n_k / n_{-u} Delta_k(v)      degradation, while r <= R_d
    w <- lambda w + (1 - lambda) v                     momentum towards v
    y_u = argmax f_v(x), x in D_u                      what v says about the target's data
    w <- w + sum_k n_k / n Delta_k(w)                  memory guidance: all clients, the target with y_u

v starts afresh, from `Federation.seed` alone: PUF's code has it start where training did, w_0, which `mode` takes as
v_0. Zhao et al. published no code. PUF's trains the target's part of the guidance at 0.1, which its appendix does
not say (`lr_target`); neither rate follows the training's decay. Its guidance has the optimiser that its clients train
with, SGD without momentum; where clients have some, it is theirs unless `guidance_momentum` says otherwise.
A round's degradation and its guidance are a round of communication each, so that MoDe's cost counts R_m + R_d. What
follows goes on with the rate of round T + R_m + 1, as in PUF's code: degradation is off the schedule
(`Meter.scheduled`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import UnsupportedTask, check_count, check_not_negative, check_positive, check_share
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg_round
from fu_core.federation.server import FedOpt, aggregate
from fu_core.federation.together import train_round
from fu_core.request import Deletion
from fu_core.unlearning.method import Trained, refuse, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.ranges import Choice, Range

REFUSES = {
    "clients": "targets must name one client, got {targets}: MoDe guides one target at a time",
    **dict.fromkeys(("samples", "classes"), "forget: MoDe lets a whole client leave and cannot forget single samples"),
}
RANGES = {
    "momentum": Range(0.8, 0.99),  # PUF tuned it in 0.9 to 0.99
    "rounds_d": Range(2, 8, "whole"),  # around PUF's 6
    "rounds_m": Range(2, 12, "whole"),  # around PUF's 10
    "lr_guidance": Range(5e-4, 5e-2, "log"),  # from PUF's upwards: where clients train at 0.1, it hardly moves a model
    "lr_target": Range(5e-4, 1e-1, "log"),  # from what PUF's appendix says to what its code does
    "guidance_momentum": Choice((None, 0.0)),  # the clients' own, or none as PUF's have
}


@dataclass(frozen=True)
class MoDe:
    """Hyper-parameters; the defaults are those of PUF's appendix A. With rounds_m = 0 nothing happens."""

    rounds_d: int = 6  # R_d
    rounds_m: int = 10  # R_m
    momentum: float = 0.95  # lambda; PUF tuned it in 0.9 to 0.99
    lr_degradation: float | None = None  # None: the training's first rate, local.lr (PUF's code: 0.1)
    lr_guidance: float = 5e-4
    lr_target: float = 5e-4  # the target's rate in memory guidance; PUF's code: 0.1
    epochs_guidance: float = 1.0
    guidance_momentum: float | None = None  # of everybody's SGD in memory guidance; None: the clients', local.momentum

    def __post_init__(self) -> None:
        check_count("rounds_d", self.rounds_d, least=0)
        check_count("rounds_m", self.rounds_m, least=0)
        check_share("momentum", self.momentum)
        if self.lr_degradation is not None:
            check_positive("lr_degradation", self.lr_degradation)
        check_positive("lr_guidance", self.lr_guidance)
        check_positive("lr_target", self.lr_target)
        check_positive("epochs_guidance", self.epochs_guidance)
        if self.guidance_momentum is not None:
            check_not_negative("guidance_momentum", self.guidance_momentum)


def mode(
    f: Federation, w: Tensor, deletion: Deletion, config: MoDe, round: int, *, v_0: Tensor | None = None
) -> Tensor:
    """The model (d,) after degradation and memory guidance; `w` (d,) is left untouched. Zhao et al. 2023.

    Of the one client that leaves, only the inputs are used. Optimiser, batches and augmentation of every step, and E
    of degradation, are `f.local`'s; its rates, and in guidance its momentum if one is given, are replaced by those of
    `config`. The server is plain averaging. Where only a share of the clients takes part in a round, both parts of it
    have that share of those who stay (PUF, Table I: not everybody is needed), and guidance the target.
    v_0 (d,): where the degradation model starts, by default `f.model.init(f.seed)`.

    Random: batches and augmentation, from the streams of rounds `round`, `round` + 1, ...; both trainings of
    a round see the same batches. The meter counts as Table VIII does, which leaves out v on its way to the
    target (P B per degradation round). Raises `UnsupportedTask` for other tasks than classification, or unless one
    whole client leaves.
    """
    if f.model.task != "classification":
        raise UnsupportedTask(f"MoDe labels by the most likely class and needs classification, got {f.model.task!r}")
    refuse(deletion, REFUSES)
    (u,) = deletion.targets
    x_u, _ = deletion.forgotten[u]
    degrading = f.having(
        clients=deletion.kept,
        local=replace(f.local, lr=config.lr_degradation or f.local.lr, lr_decay=1.0),
        exchange=FedOpt(),
    )
    v = f.model.init(f.seed, w.dtype).to(w.device) if v_0 is None else v_0.clone()
    w = w.clone()
    for r in range(1, config.rounds_m + 1):
        t = round + r - 1
        if r <= config.rounds_d:
            v, _ = fedavg_round(degrading, v, t)
            f.meter.off_schedule += 1  # the guidance of this round counts for both
            w = config.momentum * w + (1 - config.momentum) * v  # w <- lambda w + (1 - lambda) v
        y_u = f.model.predict(v, x_u).argmax(dim=1)
        staying = {k: deletion.kept[k] for k in degrading.taking_part(t)}
        w = _guidance_round(f.having(clients={**staying, u: (x_u, y_u)}), w, u, config, t)
    f.meter.keep("global model", w)
    f.meter.keep("degradation model", v)
    return w


def _guidance_round(f: Federation, w: Tensor, u: int, config: MoDe, round: int) -> Tensor:
    """One FedAvg round of everybody, the target `u` at a rate of its own."""
    target = torch.tensor([k == u for k in f.ids])
    deltas = torch.empty((len(f.ids), f.model.d), dtype=w.dtype, device=w.device)
    momentum = f.local.momentum if config.guidance_momentum is None else config.guidance_momentum
    for rows, lr in ((~target, config.lr_guidance), (target, config.lr_target)):
        opt = replace(f.local, lr=lr, lr_decay=1.0, epochs=config.epochs_guidance, momentum=momentum)
        group = [k for k, chosen in zip(f.ids, rows.tolist(), strict=True) if chosen]
        deltas[rows] = train_round(f.having(local=opt), w, round, group)
    f.meter.rounds -= 1  # both groups train in the same round
    n = f.sizes()
    return w + aggregate(deltas, n / n.sum())  # w <- w + sum_k n_k / n Delta_k(w)


@register(
    "MoDe",
    paper="Zhao et al., IoT-J 2023",
    colour="#6b3e14",
    parameters=MoDe,
    needs=Needs(task=True, several_rounds=True, one_at_a_time=True),
    refuses=REFUSES,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: MoDe) -> Tensor:
    """The rounds that follow training. v starts from the seed, also where `w_0` is at hand."""
    return mode(trained.horizontal, trained.model, deletion, config, trained.next_round)
