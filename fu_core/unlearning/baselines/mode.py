"""MoDe: pull the model towards one that never saw the target, then remind it (Zhao et al., IoT-J 2023).

Beside the global model w, the remaining clients train a degradation model v afresh. Rounds r = 1, ..., R_m:

    v <- v + sum_{k != u} n_k / n_{-u} Delta_k(v)      degradation, while r <= R_d
    w <- lambda w + (1 - lambda) v                     momentum towards v
    y_u = argmax f_v(x), x in D_u                      what v says about the target's data
    w <- w + sum_k n_k / n Delta_k(w)                  memory guidance: all clients, the target with y_u

Zhao et al. published no code. PUF's trains the target's part of the guidance at 0.1, which its appendix does
not say (`lr_target`); neither rate follows the training's decay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, UnsupportedTask, check_count, check_positive, check_share
from fu_core.federation.horizontal import aggregate, fedavg_round, participants, sizes_of
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.federation.together import train_round
from fu_core.models.flat import FlatModel
from fu_core.unlearning.needs import Needs

NEEDS = Needs(task=True, several_rounds=True, one_at_a_time=True)


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

    def __post_init__(self) -> None:
        check_count("rounds_d", self.rounds_d, least=0)
        check_count("rounds_m", self.rounds_m, least=0)
        check_share("momentum", self.momentum)
        if self.lr_degradation is not None:
            check_positive("lr_degradation", self.lr_degradation)
        check_positive("lr_guidance", self.lr_guidance)
        check_positive("lr_target", self.lr_target)
        check_positive("epochs_guidance", self.epochs_guidance)


def mode(
    model: FlatModel,
    w: Tensor,
    clients: Sequence[Client],
    targets: Sequence[int],
    *,
    config: MoDe | None = None,
    local: ClientOpt,
    seed: int,
    round: int,
    v_0: Tensor | None = None,
    forget: Mapping[int, Client] | None = None,
    how: str = "auto",
    meter: Meter | None = None,
) -> Tensor:
    """The model (d,) after degradation and memory guidance; `w` (d,) is left untouched. Zhao et al. 2023.

    targets: the one client that leaves; `clients[u]` is its data, of which only the inputs are used.
    local: optimiser, batches and augmentation of every step, and E of degradation; its rates are replaced
    by those of `config`. v_0 (d,): where the degradation model starts, by default `model.init(seed)`.

    Random: batches and augmentation, from the streams of rounds `round`, `round` + 1, ...; both trainings of
    a round see the same batches. `meter` counts as Table VIII does, which leaves out v on its way to the
    target (P B per degradation round). Raises `UnsupportedTask` for other tasks than classification, several
    targets or a sample-level request (`forget`), `InvalidRequest` for a target that is nobody, unknown or
    empty, or if nobody would stay.
    """
    config = config or MoDe()
    u, remaining = _single_target(model, clients, targets, forget)
    degradation = replace(local, lr=config.lr_degradation or local.lr, lr_decay=1.0)
    x_u, _ = clients[u]
    v = model.init(seed, w.dtype).to(w.device) if v_0 is None else v_0.clone()
    w = w.clone()
    for r in range(1, config.rounds_m + 1):
        t = round + r - 1
        if r <= config.rounds_d:
            v, _ = fedavg_round(model, v, clients, degradation, seed=seed, round=t, ids=remaining, how=how, meter=meter)
            w = config.momentum * w + (1 - config.momentum) * v  # w <- lambda w + (1 - lambda) v
        y_u = model.predict(v, x_u).argmax(dim=1)
        guided = {k: clients[k] for k in remaining} | {u: (x_u, y_u)}
        w = _guidance_round(model, w, guided, u, config, local, seed=seed, round=t, how=how, meter=meter)
    if meter is not None:
        meter.keep("global model", w)
        meter.keep("degradation model", v)
    return w


def _guidance_round(
    model: FlatModel,
    w: Tensor,
    guided: Mapping[int, Client],
    u: int,
    config: MoDe,
    local: ClientOpt,
    *,
    seed: int,
    round: int,
    how: str,
    meter: Meter | None,
) -> Tensor:
    """One FedAvg round of everybody, the target `u` at a rate of its own."""
    remaining = [k for k in guided if k != u]
    deltas = torch.empty((len(guided), model.d), dtype=w.dtype, device=w.device)
    for ids, lr in ((remaining, config.lr_guidance), ([u], config.lr_target)):
        opt = replace(local, lr=lr, lr_decay=1.0, epochs=config.epochs_guidance)
        deltas[ids] = train_round(model, w, guided, opt, seed=seed, round=round, ids=ids, how=how, meter=meter)
    if meter is not None:
        meter.rounds -= 1  # both groups train in the same round
    n = sizes_of([guided[k] for k in range(len(guided))])
    return w + aggregate(deltas, n / n.sum())  # w <- w + sum_k n_k / n Delta_k(w)


def _single_target(
    model: FlatModel, clients: Sequence[Client], targets: Sequence[int], forget: Mapping[int, Client] | None
) -> tuple[int, list[int]]:
    """The client that leaves and those that stay."""
    if model.task != "classification":
        raise UnsupportedTask(f"MoDe labels by the most likely class and needs classification, got {model.task!r}")
    if forget is not None:
        raise UnsupportedTask("forget: MoDe lets a whole client leave and cannot forget single samples")
    if not targets:
        raise InvalidRequest("targets names nobody: one client must leave")
    if len(targets) > 1:
        raise UnsupportedTask(f"targets must name one client, got {list(targets)}: MoDe guides one target at a time")
    remaining = participants(len(clients), targets)
    if not len(clients[targets[0]][1]):
        raise InvalidRequest(f"targets names client {targets[0]}, which holds no data")
    return targets[0], remaining
