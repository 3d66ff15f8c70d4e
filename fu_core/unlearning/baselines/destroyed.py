"""Destroyed: a control that forgets everything. A judge that lets it pass does not look at what a model is good for."""

from __future__ import annotations

import torch
from torch import Tensor

from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.method import NoParameters, Trained, register
from fu_core.unlearning.needs import Needs


@register(
    "Destroyed",
    paper="control",
    colour="#d0d0d0",
    dash=":",
    needs=Needs(blind=True),
    exchanges=("server", "peers"),
    recovers=False,
)
def destroyed(trained: Trained, deletion: Deletion, config: NoParameters) -> Tensor:
    """Untrained parameters (d,), or (K, d), each peer's own who stays: as `model.init` draws them, and nothing more.

    Random: from the streams (seed, "destroyed") or (seed, "destroyed", id), which no training begins with.
    """
    f, w = trained.horizontal, trained.model
    if trained.exchange == "server":
        return f.model.init(stream_seed(f.seed, "destroyed"), w.dtype).to(w.device)
    own = [f.model.init(stream_seed(f.seed, "destroyed", i), w.dtype) for i in f.ids if i in deletion.kept]
    return torch.stack(own).to(w.device)
