"""Newton's method in a trust region on what is retained (Guo and Cao 2026): how far is the quadratic model believed?

    m(p) = -g'p + p'H p / 2,  g = -grad f_r(w)          least within |p| <= r, in the Krylov space of g and H
    rho  = (f_r(w) - f_r(w + p)) / -m(p)                what the loss keeps of what the model promises
    rho > 0.1    w <- w + p                             else w stays, and the same space is searched again
    rho < 0.25   r <- r / 4;   rho > 0.75 at the boundary: r <- 2 r
    r_0 = |g| / |H|                                     |H|: the largest curvature that the first space has seen

Where the step is not shorter than r, it is (H + damping I)^-1 g with |p| = r (Gould et al. 1999), whatever the sign of
H's curvature; a smaller radius costs no further product. The paper caps its steps with local Lipschitz constants that
are a circle (r depends on L, L on r); agreement, as above, is the rule of textbooks. It goes where retraining to the
minimum would go: a net that was not trained to its minimum is taken past the end of its training, forgotten or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import NumericalFailure, check_choice, check_count
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.request import Deletion
from fu_core.unlearning.curvature import MATRICES, Product, curvature_product, sampled
from fu_core.unlearning.krylov import Damped, Krylov, krylov_space
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.newton import retained_shares
from fu_core.unlearning.ranges import Range

ACCEPTED, POOR, GOOD = 0.1, 0.25, 0.75  # agreements
SHORTEST = 2.0**-40  # of the first radius: below it there is nothing to be gained
TO_A_PERCENT = 0.01  # how near |p| comes to r
RANGES = {"steps": Range(1, 8, "whole"), "iters": Range(5, 20, "whole")}


@dataclass(frozen=True)
class TrustRegion:
    """steps: gradients at most, steps that are refused among them; iters: products of each; until: the length of the
    gradient at which it ends, beside that at first. curvature_samples: behind each product; None: all that is retained.
    """

    steps: int = 4
    iters: int = 10
    matrix: str = "hessian"
    curvature_samples: int | None = None
    until: float = 1e-8
    batch_size: int = 128  # of the products; changes speed and memory, not the result

    def __post_init__(self) -> None:
        for name in ("steps", "iters", "batch_size"):
            check_count(name, getattr(self, name))
        if self.curvature_samples is not None:
            check_count("curvature_samples", self.curvature_samples)
        check_choice("matrix", self.matrix, MATRICES)
        if not 0 <= self.until < 1:
            raise ValueError(f"until must lie in [0, 1), got {self.until}")


@dataclass(frozen=True)
class Walk:
    """Where it ended, w (d,), and how: f_r after every step that was taken, the first value before any; agreements rho
    and radii of all steps, taken or not; |grad f_r| at the end over that at first."""

    w: Tensor
    values: list[float]
    agreements: list[float]
    radii: list[float]
    left: float


def within(space: Krylov, radius: float) -> Damped:
    """The step of a Krylov space that makes the model least among those with |p| <= radius, to a percent of it.

    Either Newton's own step, where its curvature is positive and it is short enough, or one on the boundary: the length
    of (A + damping I)^-1 g falls as damping grows. Deterministic.
    """
    if space.lowest > 0:
        newton = space.solved(0.0)
        if float(newton.v.norm()) <= radius:
            return newton
    floor = max(0.0, -space.lowest)  # lengths grow without bound towards it
    low, high = 0.0, space.length / radius + max(space.highest, 0.0)  # |p| <= |g| / (lowest + damping)
    found = space.solved(floor + high)
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        tried = space.solved(floor + middle) if space.lowest + floor + middle > 0 else None
        if tried is None or float(tried.v.norm()) > radius:
            low = middle
            continue
        high, found = middle, tried
        if float(tried.v.norm()) >= (1 - TO_A_PERCENT) * radius:
            break
    return found


def trust_region(f: Federation, w: Tensor, deletion: Deletion, config: TrustRegion) -> Walk:
    """Newton's steps from `w` (d,) down f_r, the mean loss over retained samples; `w` is left untouched.

    Random only with `curvature_samples`, from the streams (f.seed, "curvature", client). Raises NumericalFailure where
    loss or gradient is not finite at `w`.
    """
    w = w.detach()
    sizes = {i: len(y) for i, (_, y) in deletion.kept.items()}
    shares = {i: size / sum(sizes.values()) for i, size in sizes.items()}
    parts = [(shares[i], i, client) for i, client in deletion.kept.items()]
    data = sampled(parts, config.curvature_samples, seed=f.seed)
    value, first = _value(f, w, deletion.kept, shares), 0.0
    values, agreements, radii = [value], list[float](), list[float]()
    space, radius, left = None, math.inf, 1.0
    for _ in range(config.steps):
        if space is None:  # w is new
            g = _downhill(f, w, deletion.kept, shares)
            first = first or float(g.norm())
            left = float(g.norm()) / first if first else 0.0
            if left <= config.until:
                break
            space = krylov_space(_product(f, w, data, config, len(parts)), g, iters=config.iters)
        if math.isinf(radius):
            radius = space.length / max(space.highest, -space.lowest, torch.finfo(torch.float64).tiny)
        step = within(space, radius)
        there = w + step.v
        after = _value(f, there, deletion.kept, shares)
        rho = (value - after) / step.promised if math.isfinite(after) and step.promised > 0 else -math.inf
        agreements.append(rho)
        radii.append(radius)
        at_the_boundary = float(step.v.norm()) >= (1 - 2 * TO_A_PERCENT) * radius
        if rho < POOR:
            radius /= 4
        elif rho > GOOD and at_the_boundary:
            radius *= 2
        if rho > ACCEPTED:
            w, value, space = there, after, None
            values.append(value)
        if radius < SHORTEST * radii[0]:
            break
    if space is None and first:  # where the last step led
        left = float(_downhill(f, w, deletion.kept, shares).norm()) / first
    return Walk(w, values, agreements, radii, left)


@register(
    "Trust-region Newton",
    paper="Guo and Cao, 2026",
    colour="#5b3a8e",
    dash="-.",
    parameters=TrustRegion,
    needs=Needs(full_participation=True, several_rounds=True),
    recovers=False,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: TrustRegion) -> Tensor:
    """The walk from the trained model. Notes: steps taken and refused, the last radius and rho, and what is left
    of the gradient."""
    f, w = trained.horizontal, trained.model
    walk = trust_region(f, w, deletion, config)
    f.meter.send(w, down=len(deletion.kept))  # everybody learns the new model
    taken = len(walk.values) - 1
    trained.notes.update(steps=taken, refused=len(walk.agreements) - taken, left=walk.left)
    if walk.radii:
        trained.notes.update(radius=walk.radii[-1], rho=walk.agreements[-1])
    return walk.w if taken else w.clone()


def _downhill(f: Federation, w: Tensor, kept: Mapping[int, Client], shares: Mapping[int, float]) -> Tensor:
    """-grad f_r (d,). Everybody who stays gets the model and sends a gradient."""
    f.meter.send(w, down=len(kept), up=len(kept))
    g = torch.stack(list(retained_shares(f.model, w, kept, shares, count=f.meter.train).values())).sum(dim=0)
    if not bool(g.isfinite().all()):
        raise NumericalFailure("the gradient of what is retained is not finite")
    return g


def _value(f: Federation, w: Tensor, kept: Mapping[int, Client], shares: Mapping[int, float]) -> float:
    """f_r(w), in float64. Forward passes, counted as if they were gradients; everybody gets the model."""
    f.meter.send(w, down=len(kept))
    total = 0.0
    for i, (x, y) in kept.items():
        total += shares[i] * float(f.model.predict_losses(w, x, y).double().mean())
        f.meter.train(len(y))
    return total + f.model.l2 / 2 * float(w.double().dot(w.double()))


def _product(f: Federation, w: Tensor, data: list[tuple[float, Client]], config: TrustRegion, clients: int) -> Product:
    """Curvature times a vector; each costs a vector to and from everybody who stays."""
    exact = curvature_product(
        f.model, w, data, matrix=config.matrix, batch_size=config.batch_size, count=f.meter.differentiate
    )

    def product(v: Tensor) -> Tensor:
        f.meter.send(v, down=clients, up=clients)
        return exact(v)

    return product
