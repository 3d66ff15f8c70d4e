"""Destroyed: a control that forgets everything. A judge that lets it pass does not look at what a model is good for."""

from __future__ import annotations

import torch
from torch import Tensor

from fu_core.federation.vertical import Parties, VerticalFederation
from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.method import EXCHANGES, NoParameters, Trained, register
from fu_core.unlearning.needs import Needs


@register(
    "Destroyed",
    paper="control",
    colour="#d0d0d0",
    dash=":",
    needs=Needs(blind=True),
    exchanges=EXCHANGES,
    recovers=False,
)
def destroyed(trained: Trained, deletion: Deletion, config: NoParameters) -> Tensor | Parties:
    """Untrained parameters, as the nets' own initialisers draw them, and nothing more: (d,); (K, d), each peer's own
    who stays; or vertical parties, each with parameters of its own.

    Random: from the streams (seed, "destroyed"), or (seed, "destroyed", who), who a peer's id, a passive party's number
    or "active": no training begins with them.
    """
    if trained.exchange == "vertical":
        return _destroyed_parties(trained.vertical)
    f, w = trained.horizontal, trained.model
    if trained.exchange == "server":
        return f.model.init(stream_seed(f.seed, "destroyed"), w.dtype).to(w.device)
    own = [f.model.init(stream_seed(f.seed, "destroyed", i), w.dtype) for i in f.ids if i in deletion.kept]
    return torch.stack(own).to(w.device)


def _destroyed_parties(f: VerticalFederation) -> Parties:
    names = [*range(len(f.parties.passive)), "active"]
    models = [*(party.model for party in f.parties.passive), f.parties.active.model]
    fresh = [
        model.init(stream_seed(f.seed, "destroyed", name), w_k.dtype).to(w_k.device)
        for name, model, w_k in zip(names, models, f.parties.w, strict=True)
    ]
    return f.parties.having(fresh)
