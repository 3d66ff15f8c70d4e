"""Naive gradient ascent: climb the loss of the data to be forgotten (baseline of HF-KCU, Mahdavi et al.).

    theta <- theta + eta grad loss(theta; b)    for 10 epochs over the batches b of D_u

Nothing holds the model back: no clipping, no projection, no retained data.
"""

from __future__ import annotations

from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.local import Client, ClientOpt, batches
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel


def naive_ga(
    model: FlatModel,
    w: Tensor,
    forget: Client,
    *,
    epochs: float = 10,
    lr: float = 0.01,
    batch_size: int = 64,
    seed: int,
    client_id: int = 0,
    until_explosion: bool = False,
    meter: Meter | None = None,
) -> Tensor:
    """The model (d,) after `epochs` epochs of plain SGD uphill on `forget` (x, y); `w` is left untouched.

    Divergence is what this method does: a loss that explodes or an accuracy at chance is a result and
    is returned. Only NaN or infinity raises `NumericalFailure`, or with `until_explosion` ends the ascent
    at the last model that still had a finite gradient. An empty `forget` raises `InvalidRequest`.
    Random: batch order, from the streams of (seed, round 0, client_id), which no round of training uses.
    """
    x, y = forget
    if not len(y):
        raise InvalidRequest("forget holds no samples: there is nothing to ascend on")
    opt = ClientOpt(lr=lr, epochs=epochs, batch_size=batch_size)
    theta, before = w.clone(), w.clone()
    for b in batches(len(y), opt, seed=seed, round=0, client=client_id):
        g = model.grad(theta, model.arrange(x[b]), y[b])
        if until_explosion and not bool(g.isfinite().all()):
            theta = before
            break
        before.copy_(theta)
        theta += lr * g  # theta <- theta + eta grad loss(theta; b)
        if meter is not None:
            meter.train(len(b))
    if not bool(theta.isfinite().all()):
        raise NumericalFailure(f"the model after gradient ascent is not finite; lower lr ({lr}) or epochs ({epochs})")
    if meter is not None:
        meter.keep("global model", w)
    return theta
