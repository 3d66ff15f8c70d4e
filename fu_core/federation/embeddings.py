"""A passive party's embeddings of some samples, and their gradient with respect to its parameters: see `Exchange`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from fu_core.federation.vertical import PassiveParty


class AtOnce:
    """Embeddings h (n, e_k) of all samples, with the graph that made them."""

    def __init__(self, party: PassiveParty, w: Tensor, x: Tensor, exchange: tuple[str, int]) -> None:
        self.w, self.h = w, party.embed(w, x, exchange)  # h_k = f_k(X_k; w_k)

    def gradient(self, dh: Tensor) -> Tensor:
        """(dh_k/dw_k)^T dL/dh_k, (d_k,)."""
        return torch.autograd.grad(self.h, self.w, dh)[0]


class InParts:
    """The same without the graph: part by part, and once more part by part when the gradient is asked for."""

    def __init__(self, party: PassiveParty, w: Tensor, x: Tensor, exchange: tuple[str, int], part: int) -> None:
        self.party, self.w, self.x, self.exchange, self.part = party, w, x, exchange, part
        with torch.no_grad():
            h = torch.cat([party.bare(w, x_b) for x_b in x.split(part)])
            self.h = h if party.noise is None else party.noise(h, exchange)

    def gradient(self, dh: Tensor) -> Tensor:
        """(dh_k/dw_k)^T dL/dh_k, (d_k,), a sum over parts: noise is added, and so has no part in it."""
        g = torch.zeros_like(self.w)
        for x_b, dh_b in zip(self.x.split(self.part), dh.split(self.part), strict=True):
            h_b = self.party.embed(self.w, x_b, self.exchange)
            g += torch.autograd.grad(h_b, self.w, dh_b)[0]
        return g
