"""Naive gradient ascent: climb the loss of the data to be forgotten (baseline of HF-KCU, Mahdavi et al.).

    theta <- theta + eta grad loss(theta; b)    for 10 epochs over the batches b of D_u

Nothing holds the model back: no clipping, no projection, no retained data.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fu_core.errors import NumericalFailure
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, batches
from fu_core.request import Deletion
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.ranges import Range

RANGES = {
    "lr": Range(1e-4, 1e-1, "log"),  # downwards from the rates that clients train at: uphill, those diverge
    "epochs": Range(1, 10, "whole"),  # up to HF-KCU's 10
}


@dataclass(frozen=True)
class NaiveGA:
    """Hyper-parameters; without a rate or batch size of its own it has those of the clients' training."""

    epochs: float = 10
    lr: float | None = None
    batch_size: int | None = None
    until_explosion: bool = False  # end at the last model with a finite gradient, where others would raise

    def local(self, clients: ClientOpt) -> ClientOpt:
        """Rate and batches of the ascent, where the clients have trained with `clients`."""
        lr = clients.lr if self.lr is None else self.lr
        batch_size = clients.batch_size if self.batch_size is None else self.batch_size
        return ClientOpt(lr=lr, epochs=self.epochs, batch_size=batch_size)


def naive_ga(f: Federation, w: Tensor, deletion: Deletion, config: NaiveGA) -> Tensor:
    """The model (d,) after plain SGD uphill on all that is to be forgotten; `w` is left untouched.

    Divergence is what this method does: a loss that explodes or an accuracy at chance is a result and
    is returned. Only NaN or infinity raises `NumericalFailure`, or with `until_explosion` ends the ascent
    at the last model that still had a finite gradient. Random: batch order, from the streams of
    (f.seed, round 0, the first target), which no round of training uses.
    """
    (x, y), w = deletion.forget, w.detach()
    local = config.local(f.local)
    theta, before = w.clone(), w.clone()
    for b in batches(len(y), local, seed=f.seed, round=0, client=deletion.targets[0]):
        g = f.model.grad(theta, f.model.arrange(x[b]), y[b])
        if config.until_explosion and not bool(g.isfinite().all()):
            theta = before
            break
        before.copy_(theta)
        theta += local.lr * g  # theta <- theta + eta grad loss(theta; b)
        f.meter.train(len(b))
    if not bool(theta.isfinite().all()):
        raise NumericalFailure(
            f"the model after gradient ascent is not finite; lower lr ({local.lr}) or epochs ({config.epochs})"
        )
    f.meter.keep("global model", w)
    return theta


@register(
    "NaiveGA",
    paper="HF-KCU, after Mahdavi et al.",
    colour="#3fb5dd",
    dash="-.",
    parameters=NaiveGA,
    recovers=False,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: NaiveGA) -> Tensor:
    """The model as it comes out of the ascent, however far away."""
    return naive_ga(trained.horizontal, trained.model, deletion, config)
