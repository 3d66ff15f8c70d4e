"""What a server makes of its clients' updates: FedAvg and FedOpt (SGD, Adam, Yogi).

McMahan et al. and Reddi et al. (PUF, Eqs. 2-3, weighted by client size as in Eqs. 5-6):

    Delta   = sum_i n_i / n * Delta_i            pseudo-gradient
    w_{t+1} = w_t + ServerOpt(Delta)             SGD with eta_s = 1 is plain averaging
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from fu_core.errors import check_choice, check_not_negative, check_positive


@dataclass(frozen=True)
class FedOpt:
    """The server's optimiser (Reddi et al. 2021, Algorithm 2). `sgd` with lr 1 is FedAvg."""

    kind: str = "sgd"
    lr: float = 1.0  # eta_s
    momentum: float = 0.0  # sgd only
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3  # adaptivity; v starts at tau^2, no bias correction

    def __post_init__(self) -> None:
        check_choice("server optimiser", self.kind, ("sgd", "adam", "yogi"))
        check_positive("server lr", self.lr)
        check_not_negative("server momentum", self.momentum)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not (isinstance(beta, Real) and 0 <= beta < 1):
                raise ValueError(f"{name} must be in [0, 1), got {beta!r}")
        check_positive("tau", self.tau)

    @property
    def has_moments(self) -> bool:
        """Does a round depend on earlier ones by more than the model?"""
        return self.kind != "sgd" or self.momentum > 0

    @property
    def averages(self) -> bool:
        """Is the new model the mean of its clients' models?"""
        return not self.has_moments and self.lr == 1


class ServerState(NamedTuple):
    """First and second moments of the pseudo-gradients (d,); None until the first round."""

    m: Tensor | None = None
    v: Tensor | None = None


def aggregate(deltas: Tensor, weights: Tensor) -> Tensor:
    """`sum_i weights_i * deltas_i` (d,), summed in float64 in client order. deltas (K, d), weights (K,)."""
    total = torch.zeros(deltas.shape[1], dtype=torch.float64, device=deltas.device)
    for delta, weight in zip(deltas, weights.tolist(), strict=True):  # row by row: no (K, d) float64 copy
        total.add_(delta, alpha=weight)
    return total.to(deltas.dtype)


def server_step(w: Tensor, delta: Tensor, server: FedOpt, state: ServerState) -> tuple[Tensor, ServerState]:
    """`w_t`, `Delta_t` (d,) to `w_{t+1}` (d,) and the new state. Deterministic; nothing is overwritten."""
    if server.kind == "sgd":
        if not server.momentum:
            return w + server.lr * delta, state
        m = delta if state.m is None else server.momentum * state.m + delta
        return w + server.lr * m, ServerState(m)
    m = torch.zeros_like(w) if state.m is None else state.m
    v = torch.full_like(w, server.tau**2) if state.v is None else state.v
    m = server.beta1 * m + (1 - server.beta1) * delta
    if server.kind == "adam":
        v = server.beta2 * v + (1 - server.beta2) * delta**2
    else:  # Yogi: additive, so that v never shrinks faster than it grows
        v = v - (1 - server.beta2) * delta**2 * torch.sign(v - delta**2)
    return w + server.lr * m / (v.sqrt() + server.tau), ServerState(m, v)
