"""A federation that trains its net for another loss than its own, as SCRUB, Bad teacher and FedOSD have it do."""

from __future__ import annotations

from fu_core.federation.federation import Federation
from fu_core.models.flat import FlatModel


def with_loss(f: Federation, model: FlatModel) -> Federation:
    """`f` with `model`, the same net under another loss.

    Backpropagation that is written out, how="dense", knows the losses of `FlatModel` alone, so that such a federation
    trains by what suits the net, how="auto": the same batches, and the same updates to rounding.
    """
    return f.having(model=model, how="auto" if f.how == "dense" else f.how)
