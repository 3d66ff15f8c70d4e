"""FedEraser: replay the training without the target, lengths from storage, directions fresh (Liu et al. 2021).

The server stores every client's update U_k^t of the rounds t = 1, 1 + dt, 1 + 2 dt, ... To forget u:

    w <- w_0 + sum_{k != u} p_k U_k^1                  first round: stored updates, as they are
    Uh_k = ClientOpt(k, w) - w                         later: a short training of E_cal epochs,
    Ub_k = |U_k^t| / |Uh_k| Uh_k                       given the stored update's length,
    w <- w + sum_{k != u} p_k Ub_k                     p_k = n_k / n_{-u}

What the length is taken of (`norm_scope`) differs: the whole vector (PUF's code), each parameter tensor
(the original paper), or each tensor of the clients' average (the public code of FedEraser and FedAU, here
averaged by client size).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import MissingHistory, NumericalFailure, check_choice, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.server import aggregate
from fu_core.federation.together import train_round
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.memory import Memory, UpdateHistory, check_averages
from fu_core.unlearning.method import Trained, refuse, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.ranges import Choice, Range

NORM_SCOPES = ("global", "layer", "layer_avg")
RANGES = {
    "calibration": Range(0.1, 1.0),  # up to a whole training again; PUF and the original paper have 0.5
    "norm_scope": Choice(NORM_SCOPES),  # PUF's code, the original paper, its public code
}
SHORTEST = 1e-12  # a fresh update below this has no direction
REFUSES = dict.fromkeys(
    ("samples", "classes"), "forget: FedEraser stores updates of whole clients and cannot forget single samples"
)


@dataclass(frozen=True)
class FedEraser:
    """Hyper-parameters of a replay; the defaults are those of PUF's code.

    Retained round t calibrates at the learning rate of training round t; `released_schedule` counts retained rounds
    instead, as PUF's code does: the i-th (from 1) at lr lr_decay^i.
    """

    calibration: float = 0.5  # of the clients' epochs; PUF's E_cal is in epochs, the same where clients train one
    norm_scope: str = "global"
    released_schedule: bool = False

    def __post_init__(self) -> None:
        check_choice("norm_scope", self.norm_scope, NORM_SCOPES)
        check_positive("calibration", self.calibration)


def calibrate(model: FlatModel, stored: Tensor, fresh: Tensor, *, per_layer: bool) -> tuple[Tensor, int]:
    """`fresh` (K, d) with the lengths of `stored` (K, d), row by row, and how many had no direction.

    The lengths are those of whole rows, or of each parameter tensor in them. A part of `fresh` shorter
    than 1e-12 becomes zero. Norms in float64; deterministic.
    """
    cuts = model.sizes if per_layer else [model.d]
    parts, lost = [], 0
    for U, Uh in zip(stored.split(cuts, dim=1), fresh.split(cuts, dim=1), strict=True):
        target, length = (torch.linalg.vector_norm(v, dim=1, keepdim=True, dtype=torch.float64) for v in (U, Uh))
        still = length < SHORTEST  # (K, 1)
        parts.append(torch.where(still, 0.0, target / length).to(Uh.dtype) * Uh)  # Ub_k = |U_k| / |Uh_k| Uh_k
        lost += int(still.sum())
    return torch.cat(parts, dim=1), lost


def fed_eraser(f: Federation, history: UpdateHistory, deletion: Deletion, config: FedEraser) -> Tensor:
    """The model (d,) replayed from `history` without the clients that leave. Liu et al. 2021, Algorithm 1.

    The server is plain averaging; every remaining client must be online.

    Random: batches and augmentation, from the streams of training round t, so that a full calibration
    (1.0) repeats a training in which those who leave took no part. Raises `MissingHistory` naming round and
    client, `UnsupportedTask` unless whole clients leave, since what was stored are whole clients' updates, and for
    another server: it made other steps of them. Warns once
    if fresh updates had no direction and counted as zero.
    """
    refuse(deletion, REFUSES)
    check_averages(f, "FedEraser")
    rest = f.having(clients=deletion.kept)
    ids = rest.ids
    rounds = _retained(history, ids)
    n = rest.sizes()
    p = n / n.sum()

    w, lost = history.w_0.clone(), 0
    for i, t in enumerate(rounds):
        step = torch.stack([history.update(t, k) for k in ids])  # U_k^t (K, d)
        weights = p
        if i > 0:
            opt = replace(f.local, epochs=config.calibration * f.local.epochs)
            if config.released_schedule:
                opt = replace(opt, lr=f.local.lr * f.local.lr_decay ** (i + 1), lr_decay=1.0)
            fresh = train_round(rest.having(local=opt), w, t)  # Uh_k
            if config.norm_scope == "layer_avg":
                step, fresh = aggregate(step, p)[None], aggregate(fresh, p)[None]  # (1, d)
                weights = torch.ones(1, dtype=torch.float64)
            step, still = calibrate(f.model, step, fresh, per_layer=config.norm_scope != "global")
            lost += still
        w = w + aggregate(step, weights)  # w <- w + sum_{k != u} n_k / n_{-u} Ub_k
        if not bool(w.isfinite().all()):
            raise NumericalFailure(f"retained round {t}: the calibrated model is not finite")
    f.meter.keep("stored updates", *history.stored)
    if lost:
        warnings.warn(f"{lost} fresh updates were shorter than {SHORTEST:g} and counted as zero", stacklevel=2)
    return w


@register(
    "FedEraser",
    paper="Liu et al., IWQoS 2021",
    colour="#00b080",
    parameters=FedEraser,
    needs=Needs(history=True, full_participation=True, several_rounds=True),
    refuses=REFUSES,
    recovers=False,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: FedEraser) -> Tensor:
    """The replay, which is a whole training: nothing is left to recover from."""
    history = trained.memory.history if isinstance(trained.memory, Memory) else None
    if history is None:
        raise MissingHistory("memory holds no history: nothing was stored that FedEraser could replay")
    return fed_eraser(trained.horizontal, history, deletion, config)


def _retained(history: UpdateHistory, ids: list[int]) -> list[int]:
    """Rounds 1, 1 + interval, ... up to the last one stored; fails before any training if one has a gap."""
    last = max(history.rounds, default=1)
    rounds = list(range(1, last + 1, history.interval))
    for t in rounds:
        for k in ids:
            history.update(t, k)
    return rounds
