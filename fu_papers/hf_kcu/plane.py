"""HF-KCU on a federation with two parameters, small enough to be drawn: CG's way from the model to retraining."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.krylov import cg_iterates
from fu_papers.convex import dense_hessian, one_logit, optimum, pooled, share_of
from fu_papers.hf_kcu.theory import LEAVING, first, times


class Plane(NamedTuple):
    """A federation with two parameters, small enough to be drawn; client 0 leaves."""

    model: FlatModel
    clients: list[Client]
    w: Tensor
    w_retrained: Tensor


@lru_cache(maxsize=1)
def two_parameters(seed: int = 0) -> Plane:
    """Logistic regression on two features, five clients with directions of their own. Generated."""
    draws = stream(seed, "two parameters")
    clients = []
    for i in range(5):
        x = torch.randn(40, 2, generator=draws, dtype=torch.float64) * torch.tensor([1.6, 0.6], dtype=torch.float64)
        direction = torch.tensor([0.4, -2.0] if i == LEAVING else [1.2, 1.5], dtype=torch.float64)
        noise = 0.7 * torch.randn(40, generator=draws, dtype=torch.float64)
        clients.append((x, (x @ direction + noise > 0).long()))
    model = FlatModel(one_logit(2), l2=0.02)
    return Plane(model, clients, optimum(model, pooled(clients)), optimum(model, pooled(clients[1:])))


class Path(NamedTuple):
    """CG's iterates as models (k + 1, 2), the first being the start, and the model after the clip (2,)."""

    iterates: Tensor
    final: Tensor


def cg_path(plane: Plane, *, k: int, damping: float, beta: float, sign: int) -> Path:
    """HF-KCU on the plane, step by step: curvature and weight of the corrected form, `sign` 1 or -1."""
    parts = pooled(plane.clients[1:])
    share = share_of(plane.clients, LEAVING)
    g = share / (1 - share) * plane.model.grad(plane.w, *plane.clients[LEAVING])
    H = dense_hessian(plane.model, plane.w, parts)
    found = first(k, cg_iterates(times(H), g, damping=damping))
    raw = found[-1]
    scale = min(1.0, beta * float(plane.w.norm()) / float(raw.norm()))
    iterates = torch.stack([plane.w, *(plane.w + sign * v for v in found)])
    return Path(iterates, plane.w + sign * scale * raw)
