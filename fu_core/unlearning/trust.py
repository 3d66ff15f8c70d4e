"""How far to trust a Newton step: damping is the radius (Levenberg 1944, Marquardt 1963), and no rule knows Retrain.

    v(damping) = (A + damping I)^-1 g          from nothing, damping = infinity, to the whole step, damping = 0

    solved      the least damping with |g - (A + damping I) v| <= tol |g|
    gain        from there upwards, until the loss keeps what its quadratic model promises:

                    rho = (g'v - R(v)) / (g'v - v'Av / 2) >= gain,   R(v) = L(w + v) - L(w) - grad L(w)'v

    held out    between the two ends, where the forgotten samples are no better known than samples that nobody has
                trained on: loss(w + v; D_u) = loss(w + v; held out), class by class as often as in D_u

R is what the curvature stands for. Where that comes from a sample, R is measured on another one: along v the first
curves less than most do, or v would be shorter there. One Krylov space holds all v, so that none of the rules takes
another product; they take forward passes, counted as if they were gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel
from fu_core.unlearning.curvature import weighted_gradient
from fu_core.unlearning.krylov import Damped, Krylov

TRIES = 60  # doublings of damping: a factor of 10^18
WEAKEST = 2.0**6  # damping beside the largest curvature: the shortest step that is looked at
STRONGEST = 2.0**-20  # the longest, where the system is solved at any
HALVINGS = 9  # of the interval between, in logarithms: to a few percent

Count = Callable[[int], None]


def matched_losses(model: FlatModel, w: Tensor, forget: Client, held_out: Client) -> tuple[float, float]:
    """Mean losses at `w` of what is to be forgotten, and of held-out samples with the same frequency of each class.

    Of each class the held-out mean, weighed by how often `forget` has it; regression has one class. Without the l2
    term. Raises InvalidRequest for a class of `forget` of which nothing is held out.
    """
    of_forget = model.predict_losses(w, *forget).double()
    of_others = model.predict_losses(w, *held_out).double()
    if model.task != "classification":
        return float(of_forget.mean()), float(of_others.mean())
    matched = 0.0
    for label in forget[1].unique():
        mine, theirs = forget[1] == label, held_out[1] == label
        if not bool(theirs.any()):
            raise InvalidRequest(f"held_out must hold samples of every class that is forgotten, got none of {label}")
        matched += float(mine.double().mean()) * float(of_others[theirs].mean())
    return float(of_forget.mean()), matched


def held_out_damping(
    space: Krylov,
    model: FlatModel,
    w: Tensor,
    forget: Client,
    held_out: Client,
    *,
    least: float = 0.0,
    count: Count | None = None,
) -> float:
    """The damping at which v makes both of `matched_losses` equal at w + v; infinity where they are so at w.

    The step grows, and with it the loss of what is forgotten, as damping falls, but not below `least`. To a few
    percent. Deterministic. Raises InvalidRequest as `matched_losses`.
    """

    def forgotten(point: Tensor) -> bool:
        if count is not None:
            count(len(forget[1]) + len(held_out[1]))
        of_forget, of_others = matched_losses(model, point, forget, held_out)
        return not of_forget < of_others

    def at(damping: float) -> Tensor:
        return w + space.solved(damping).v

    if forgotten(w):
        return math.inf
    high = WEAKEST * max(space.highest, -space.lowest, torch.finfo(torch.float64).tiny)
    low = max(least, high * STRONGEST / WEAKEST)
    if not forgotten(at(low)):  # the whole step does not forget enough
        return low
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if forgotten(at(middle)) else (low, middle)
    return low


def gain_damping(
    space: Krylov,
    model: FlatModel,
    w: Tensor,
    data: Sequence[tuple[float, Client]],
    *,
    least: float,
    gain: float,
    count: Count | None = None,
) -> Damped:
    """The step v with the least of the dampings `least`, 2 `least`, 4 `least`, ... whose rho is at least `gain`.

    data: (weight, samples) to measure R on. Deterministic. Raises NumericalFailure where no step keeps its
    promise: then the product is not the curvature of this loss.
    """
    before, slope = _value(model, w, data, count), _slope(model, w, data, count)
    damping = least or 1e-6 * max(space.highest, torch.finfo(torch.float64).tiny)
    found = space.solved(least)
    for _ in range(TRIES):
        if found.promised <= 0 or _gain(model, w, data, space, found, before, slope, count) >= gain:
            return found
        damping *= 2
        found = space.solved(damping)
    raise NumericalFailure(f"no damping up to {damping:.3g} makes the loss keep {gain:g} of what its curvature says")


def _gain(
    model: FlatModel,
    w: Tensor,
    data: Sequence[tuple[float, Client]],
    space: Krylov,
    found: Damped,
    before: float,
    slope: Tensor,
    count: Count | None,
) -> float:
    """rho; minus infinity where the loss is not finite any more."""
    v = found.v
    linear = space.length * float(space.basis[0].dot(v))  # g'v
    remainder = _value(model, w + v, data, count) - before - float(slope.double().dot(v.double()))  # R(v)
    return (linear - remainder) / found.promised if math.isfinite(remainder) else -math.inf


def _value(model: FlatModel, w: Tensor, data: Sequence[tuple[float, Client]], count: Count | None) -> float:
    """sum_k weight_k mean loss over part k, with the l2 term. Without gradients, and counted as if with."""
    total = 0.0
    for weight, (x, y) in data:
        if not weight:
            continue
        total += weight * float(model.predict_losses(w, x, y).double().mean())
        if count is not None:
            count(len(y))
    wide = w.double()
    return total + sum(weight for weight, _ in data) * model.l2 / 2 * float(wide.dot(wide))


def _slope(model: FlatModel, w: Tensor, data: Sequence[tuple[float, Client]], count: Count | None) -> Tensor:
    return weighted_gradient(model, w, [(weight, part) for weight, part in data if weight], count=count)
