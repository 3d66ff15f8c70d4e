"""First-order optimisers on flat vectors, for one client (d,) or many at once (K, d).

The same elementwise arithmetic serves both, which is what lets a whole round of clients train as
one matrix. Formulas as in `torch.optim` (tested equal), state explicit.
"""

from __future__ import annotations

import torch
from torch import Tensor

OPTIMISERS = ("sgd", "adam", "adamw")


class FlatOptimiser:
    """Steps `w` in place. Created anew for every client and round: no momentum survives a round.

    sgd:   w <- w - lr * (momentum buffer of g + weight_decay * w)
    adam:  the same decayed gradient through Adam's bias-corrected moments (0.9, 0.999, eps 1e-8)
    adamw: weight decay applied to `w` directly (decoupled)
    """

    def __init__(self, kind: str, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        self.kind, self.lr, self.momentum, self.weight_decay = kind, lr, momentum, weight_decay
        self.steps = 0
        self.moments: list[Tensor] = []  # sgd: [velocity]; adam, adamw: [mean, mean of squares]

    def step(self, w: Tensor, g: Tensor) -> None:
        """One update of `w` with gradient `g`, both (d,) or (K, d) or of a layer's shape. Leaves `g` as it is, which
        two parameters of a net may share."""
        if not self.steps and self.lr > (largest := torch.finfo(w.dtype).max):
            raise ValueError(f"lr and lr_decay must keep the rate below {largest:g}, got a rate of {self.lr:g}")
        self.steps += 1
        w = w.detach()  # the same numbers, of which nobody wants a gradient
        if self.weight_decay and self.kind == "adamw":
            w.mul_(1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            g = g.add(w, alpha=self.weight_decay)
        if self.kind == "sgd":
            w.sub_(self._velocity(g), alpha=self.lr)
        else:
            self._adam(w, g)

    def keep(self, rows: int) -> None:
        """Forget the state of all but the first `rows` clients of a (K, d) state."""
        self.moments = [m[:rows] for m in self.moments]

    def _velocity(self, g: Tensor) -> Tensor:
        if not self.momentum:
            return g
        if not self.moments:
            self.moments = [g.clone()]
        else:
            self.moments[0].mul_(self.momentum).add_(g)
        return self.moments[0]

    def _adam(self, w: Tensor, g: Tensor, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        if not self.moments:
            self.moments = [torch.zeros_like(g), torch.zeros_like(g)]
        mean, square = self.moments
        mean.lerp_(g, 1 - beta1)
        square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        scale = (square / (1 - beta2**self.steps)).sqrt_().add_(eps)
        w.addcdiv_(mean, scale, value=-self.lr / (1 - beta1**self.steps))
