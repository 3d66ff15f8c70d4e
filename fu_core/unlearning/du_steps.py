"""What DU's clients compute and send, in both forms, and what their sums over the network cost; see `du`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fu_core.federation.federation import Federation
from fu_core.federation.flood import flood
from fu_core.federation.local import Client
from fu_core.request import Deletion
from fu_core.unlearning.certificate import retained_gradient, retained_weights, strong_convexity
from fu_core.unlearning.curvature import Part, mean_gradient, sampled
from fu_core.unlearning.newton import Newton, Solve, halved, newton_solver, retained_shares
from fu_core.unlearning.sums import sum_cost

if TYPE_CHECKING:
    from fu_core.unlearning.du import DU


class Step(NamedTuple):
    """One of Newton's: |grad f_r| before and after it, and how much of the full step was taken."""

    before: float
    after: float
    share: float


@dataclass
class Network:
    """What sums over all clients cost: up and down a spanning tree, or by everybody flooding its part."""

    f: Federation
    how: str
    like: Tensor
    sums: int = 0

    @cached_property
    def each(self) -> int:
        """Vectors that a sum takes if everybody is to know it."""
        return sum_cost(self.f).up if self.how == "tree" else len(self.f.ids) * flood(self.f.peers.Q, [0]).messages

    def everywhere(self, vectors: int = 1) -> None:
        """So many sums, which everybody is to know."""
        self.sums += vectors
        self.f.meter.send(self.like, up=vectors * self.each)

    def to_one(self, vectors: int) -> None:
        """So many sums, which one client is to know: up the tree alone."""
        self.sums += vectors
        self.f.meter.send(self.like, up=vectors * (len(self.f.ids) - 1))


def printed_messages(
    f: Federation, points: Mapping[int, Tensor], deletion: Deletion, config: DU, network: Network
) -> dict[int, Tensor]:
    """Lines 3 and 4, or Eqs. (5) and (6) for a client of which nothing is left."""
    messages: dict[int, Tensor] = {}
    for c, gone in deletion.forgotten.items():
        g_u = mean_gradient(f.model, points[c], gone, count=f.meter.train)
        if c in deletion.kept:
            n_left = len(deletion.kept[c][1])  # n_c - m_c
            held = {c: deletion.kept[c]} if config.whose != "global" else deletion.kept  # Eq. (2)
            g = len(gone[1]) / n_left * g_u  # 1 / (n_c - m_c) sum over U_c
        else:
            held = {i: data for i, data in deletion.holders.items() if i != c}  # Eq. (5)
            g = g_u / len(held)  # Eq. (6)
        parts = [(1 / len(held), i, data) for i, data in held.items()]
        ask = None if set(held) == {c} else network.to_one
        if ask is not None and config.curvature in ("hessian", "ggn"):
            network.to_one(f.model.d)  # it "collects the Hessians" of all others, d vectors each, however it solves
            ask = None
        messages[c] = _solver(f, points, parts, config, loss_fisher=True, on_product=ask)(g)  # line 4
    return messages


def newton(
    f: Federation, x: Tensor, deletion: Deletion, config: DU, network: Network
) -> tuple[dict[int, Tensor], Tensor, tuple[Step, ...]]:
    """Everybody's part of -g_0 at the common point x; what all of Newton's steps add up to; the steps."""
    if config.starts_from == "forgotten":
        shares = {c: _share(f, x, c, deletion, config.objective) for c in deletion.forgotten}
    else:
        shares = _gradient_shares(f, x, deletion, config)
    if config.whose == "local":  # each solves by itself, with the curvature of what it keeps
        points = dict.fromkeys(deletion.holders, x)
        for c, g in shares.items():
            own = [(1.0, c, deletion.kept.get(c, deletion.clients[c]))]
            shares[c] = _solver(f, points, own, config)(g)
        return shares, torch.stack(list(shares.values())).sum(dim=0), ()
    network.everywhere()
    downhill = torch.stack(list(shares.values())).sum(dim=0)  # -g_0
    if config.starts_from != "retained":
        return shares, _newton_step(f, x, downhill, deletion, config, network), ()

    steps: list[Step] = []
    here = x
    close = config.until * strong_convexity(f.model) if config.until is not None else None
    while close is None or float(downhill.norm()) > close:
        p = _newton_step(f, here, downhill, deletion, config, network)
        here, after, share = _along(f, here, p, downhill, deletion, config, network)
        steps.append(Step(float(downhill.norm()), float(after.norm()), share))
        downhill = after
        if close is None or len(steps) == config.steps or not share:
            break
    return shares, here - x, tuple(steps)


def _newton_step(f: Federation, x: Tensor, g: Tensor, deletion: Deletion, config: DU, network: Network) -> Tensor:
    """H_r(x)^-1 g, with the curvature of all that is retained."""
    weights = retained_weights(deletion.kept, config.objective)
    parts = [(weights[i], i, data) for i, data in deletion.kept.items()]
    return _solver(f, dict.fromkeys(deletion.kept, x), parts, config, on_product=network.everywhere)(g)


def _along(
    f: Federation, x: Tensor, p: Tensor, downhill: Tensor, deletion: Deletion, config: DU, network: Network
) -> tuple[Tensor, Tensor, float]:
    """As `newton.halved`; every try is a sum over the network."""

    def downhill_at(there: Tensor) -> Tensor:
        network.everywhere()
        return -retained_gradient(f.model, there, deletion, objective=config.objective, meter=f.meter)

    return halved(x, p, downhill, downhill_at)


def _gradient_shares(f: Federation, x: Tensor, deletion: Deletion, config: DU) -> dict[int, Tensor]:
    """Every client's part of -grad f_r(x), "retained", or of grad f(x) - grad f_r(x), "centred"."""
    after = retained_weights(deletion.kept, config.objective)
    shares = retained_shares(f.model, x, deletion.kept, after, count=f.meter.train)
    if config.starts_from == "centred":
        before = retained_weights(deletion.holders, config.objective)
        for i, data in deletion.holders.items():
            whole = before[i] * mean_gradient(f.model, x, data, count=f.meter.train)
            shares[i] = whole + shares[i] if i in shares else whole
    return shares


def _share(f: Federation, x: Tensor, c: int, deletion: Deletion, objective: str) -> Tensor:
    """g_c: what client c alone adds to -grad f_r(x), if x minimises f."""
    gone = deletion.forgotten[c]
    m, g_u = len(gone[1]), mean_gradient(f.model, x, gone, count=f.meter.train)
    if objective == "samples":
        return m / (deletion.n - deletion.m) * g_u
    staying = len(deletion.kept)
    if c not in deletion.kept:
        return g_u / staying  # grad f_c / (N - 1)
    g_c = mean_gradient(f.model, x, deletion.clients[c], count=f.meter.train)
    return m / len(deletion.kept[c][1]) * (g_u - g_c) / staying  # m / (n_c - m) (mean over U_c - mean over S_c) / N


def _solver(
    f: Federation,
    points: Mapping[int, Tensor],
    parts: Sequence[Part],
    config: DU,
    *,
    loss_fisher: bool = False,
    on_product: Callable[[int], None] | None = None,
) -> Solve:
    """`newton_solver` over the parts, each at its client's point, from a sample if `curvature_samples` says so."""
    data = sampled(parts, config.curvature_samples, seed=f.seed)
    groups: dict[int, tuple[Tensor, list[tuple[float, Client]]]] = {}  # one per different point
    for (_, i, _), part in zip(parts, data, strict=True):
        groups.setdefault(id(points[i]), (points[i], []))[1].append(part)
    how = Newton(config.curvature, config.damping, loss_fisher, config.dense_up_to, config.iters, config.tol)
    return newton_solver(f.model, list(groups.values()), how, on_product=on_product, meter=f.meter)
