"""Relearn time: how soon does a model know again what it is said to have forgotten?

    T(w) = passes over the forgotten data, from w on, until its accuracy (or loss) on them is back at a target

The target is the original model's, for which T = 0. T of the unlearned model over T of the retrained one is 1 where
nothing is left, and smaller where knowledge has only been covered up. Every model meets the same batches in the same
order, with an optimiser of its own that starts afresh. A model that has not come back within the cap is censored: its
T is larger than the number it has, which is at least the cap, and it has to be counted apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice, check_count, check_positive
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.local import Client, ClientOpt, batches
from fu_core.models.flat import FlatModel
from fu_core.streams import stream_seed

MEASURES = ("accuracy", "loss")


@dataclass(frozen=True)
class Level:
    """How well a model knows some samples: `by` accuracy, in percent (Dice for segmentation), or by its mean loss.

    Raises NumericalFailure for NaN and infinity, which all models would reach, or none.
    """

    value: float
    by: str = "accuracy"

    def __post_init__(self) -> None:
        check_choice("by", self.by, MEASURES)
        if not math.isfinite(self.value):
            raise NumericalFailure(f"value must be a finite {self.by}, got {self.value}: the model has diverged")

    def reaches(self, target: Level) -> bool:
        """At least that accuracy, or at most that loss."""
        return self.value <= target.value if self.by == "loss" else self.value >= target.value


class Relearned(NamedTuple):
    """Passes until the target was reached, in shares of a pass. Where it was not, the cap, or the passes of the whole
    batches if these are more: never less than of anybody who reached it."""

    passes: float
    reached: bool


def level(model: FlatModel, w: Tensor, forget: Client, *, by: str = "accuracy") -> Level:
    """What is to be reached again: the accuracy or the mean loss on `forget`.

    Raises `UnsupportedTask` for the accuracy of a regression, NumericalFailure for a loss that is not finite.
    """
    check_choice("by", by, MEASURES)
    if by == "loss":
        return Level(float(model.predict_losses(w, *forget).double().mean()), by)
    return Level(accuracy(model, w, *forget), by)


def relearn_passes(
    model: FlatModel,
    w: Tensor,
    forget: Client,
    local: ClientOpt,
    *,
    target: Level,
    cap: float,
    seed: int,
    per_pass: int = 10,
) -> Relearned:
    """Train from `w` (d,), which is left untouched, on the forgotten samples until `level` is back at `target`.

    forget: x (n, ...), y (n,); local: the optimiser and batches of a client, of which rate, momentum, decay of weights
    and batch size count, never its augmentation or the rate's decay over rounds. target: the original model's `level`.
    It is looked at before the first step, so that the original needs none, then at `per_pass` places of every pass,
    evenly, or after every batch where there are fewer, and at the end.

    cap: passes, which end with the whole batch nearest to it, one at least.

    Random: the batches, from streams of (seed, "relearn"), the same for every model. Raises `InvalidRequest` for no
    samples at all, `NumericalFailure` on divergence, and as `level`.
    """
    check_positive("cap", cap)
    check_count("per_pass", per_pass)
    x, y = forget
    opt = replace(local, epochs=cap)
    plan = batches(len(y), opt, seed=stream_seed(seed, "relearn"), round=0, client=0)
    per_epoch = math.ceil(len(y) / opt.batch_size)
    looks = {math.ceil(k * per_epoch / per_pass) % per_epoch for k in range(1, per_pass + 1)}

    v, optimiser = w.detach().clone(), opt.fresh(round=1)
    if level(model, v, forget, by=target.by).reaches(target):
        return Relearned(0.0, True)
    for step, b in enumerate(plan, start=1):
        optimiser.step(v, model.grad(v, model.arrange(x[b]), y[b]))
        if step % per_epoch in looks or step == len(plan):
            try:
                here = level(model, v, forget, by=target.by)
            except NumericalFailure:  # a loss can be too large before any parameter is
                here = None
            if here is None or not bool(v.isfinite().all()):
                raise NumericalFailure(f"relearning diverged in batch {step}; lower lr (now {local.lr})")
            if here.reaches(target):
                return Relearned(step / per_epoch, True)
    return Relearned(max(float(cap), len(plan) / per_epoch), False)
