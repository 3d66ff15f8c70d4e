"""Certified removal on the last layer (Guo et al., ICML 2020, Sec. 4.3): the features stay, one Newton step on top.

    phi(x)      what reaches the net's last nn.Linear, and a 1 for its bias; over the longest of all: |phi| <= 1
    head        argmin_v of sum_i l(v; phi_i) + (lambda n / 2)|v|^2 + b'v, by whoever trains it, before the request
    removal     v <- v + H^-1 a on what is retained            as in `certified_removal`, in float64

The paper's features come from data that nobody asks to forget. Those of a net that its clients have trained together do
not: whatever they know of the forgotten stays. Then (epsilon, delta) is about the head alone, given the features, and
nominal; what it would be at the requested delta is told, not enforced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fu_core.errors import UnsupportedModel, UnsupportedTask, check_not_negative, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.meter import Meter
from fu_core.models.calls import calls, seen_by
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion, joined
from fu_core.unlearning.baselines.certified_removal import Perturbed, Removal, perturbed_minimum, release
from fu_core.unlearning.gaussian_mechanism import check_probability
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.noise import Draw
from fu_core.unlearning.ranges import Range
from fu_core.unlearning.sums import Bounds, bare_linear

ENOUGH = 1e24  # an epsilon that no removal exceeds: the release never refuses
RANGES = {"l2": Range(1e-5, 1e-2, "log")}  # around the paper's, 2e-4 and 1e-3


@dataclass(frozen=True)
class LastLayer:
    """l2: lambda of the head, whose features have length 1 at most; sigma: of b, per coordinate, 0 for none, and no
    certificate; delta: at which epsilon is told; tol: gradients per sample at which the head's training stops."""

    l2: float = 1e-3
    sigma: float = 0.0
    delta: float = 1e-5
    tol: float = 1e-8

    def __post_init__(self) -> None:
        check_positive("l2", self.l2)
        check_not_negative("sigma", self.sigma)
        check_probability("delta", self.delta)
        check_positive("tol", self.tol)


class Head(NamedTuple):
    """Where a net's last linear layer lies in w: names of weight and bias (None: there is none), and the module."""

    weight: str
    bias: str | None
    module: str


def last_layer(model: FlatModel, example: Tensor) -> Head:
    """The nn.Linear whose outputs are the model's on `example` (1, ...), on whatever device that is.

    Raises UnsupportedModel if there is none.
    """
    w = model.init(0).to(example.device)
    with torch.no_grad():
        x = example.to(w.dtype) if example.is_floating_point() else example
        outputs, made = calls(model, w, x, nn.Linear)
    name, returned = made[-1].name, made[-1].returned
    if not (returned is outputs or torch.equal(returned, outputs)):
        raise UnsupportedModel(f"{type(model.module).__name__} must end with an nn.Linear, whose outputs are its own")
    inside = f"{name}." if name else ""
    bias = f"{inside}bias" if f"{inside}bias" in model.names else None
    return Head(f"{inside}weight", bias, name)


def features(model: FlatModel, w: Tensor, head: Head, x: Tensor) -> Tensor:
    """phi (n, p), what reaches the head of the model `w` (d,), with a 1 at the end where it has a bias; float64."""
    phi = seen_by(model, w, head.module, x).double()
    return torch.cat([phi, torch.ones_like(phi[:, :1])], dim=1) if head.bias else phi


def removed(trained: Trained, deletion: Deletion, config: LastLayer) -> tuple[Tensor, dict[str, float]]:
    """The model (d,) with a head that one Newton step has taken the forgotten from, and what is told of it.

    Random: b, from the noise of (seed, release 0), a rehearsal. Raises UnsupportedTask for segmentation,
    UnsupportedModel as `last_layer`.
    """
    f, w = trained.horizontal, trained.model
    if f.model.task == "segmentation":
        raise UnsupportedTask("model must classify or regress, for a last layer with a convex loss, got segmentation")
    head = last_layer(f.model, deletion.forget[0][:1])
    heads, gone, longest = _on_features(f, w, head, deletion, config.l2)
    f.meter.send(w, down=len(heads.clients))
    f.meter.train(deletion.n)  # a forward pass each, counted as if with a gradient
    least_squares = Bounds(gradient=1.0, curvature=1.0) if f.model.task == "regression" else None
    removal = Removal(
        sigma=config.sigma or 1.0, epsilon=ENOUGH, delta=config.delta, tol=config.tol, bounds=least_squares
    )
    zero = torch.zeros(heads.model.d, dtype=torch.float64, device=w.device)
    b = config.sigma * Draw(f.seed, 0).normal("objective", 0, zero)
    v, left, nominal = perturbed_minimum(heads, b, removal)
    released = release(heads, Perturbed(removal, v, b, left, "; ".join(nominal), deletion.n), gone)
    f.meter.bytes_down += heads.meter.bytes_down
    f.meter.bytes_up += heads.meter.bytes_up
    told = {"head_passes": heads.meter.gradient_passes / deletion.n, "residual_bound": released.state.spent}
    if config.sigma:
        told["epsilon"] = removal.epsilon_for(released.state.spent)
    return _with_head(f.model, w, head, released.model / longest), told


@register(
    "Last layer",
    paper="Guo et al., ICML 2020, last layer",
    colour="#a0522d",
    dash="--",
    parameters=LastLayer,
    needs=Needs(full_participation=True, several_rounds=True),
    recovers=False,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: LastLayer) -> Tensor:
    """The trained model with a head of its own: trained on everybody's features, then without the forgotten.

    Training the head is part of the price, since a net comes with none that is a minimiser. Notes: passes over the
    head's data, which cost what a layer costs and are counted nowhere else, the bound on the gradient that is left,
    and the epsilon that it would take.
    """
    model, told = removed(trained, deletion, config)
    trained.notes.update(told)
    return model


def _on_features(
    f: Federation, w: Tensor, head: Head, deletion: Deletion, l2: float
) -> tuple[Federation, Deletion, float]:
    """Clients who hold features, with a layer on top for a model and a meter of its own; the request among them; and
    the length of the longest feature vector, by which all are divided."""
    gone, kept = (
        {i: (features(f.model, w, head, x), y) for i, (x, y) in of.items()}
        for of in (deletion.forgotten, deletion.kept)
    )
    longest = max(float(phi.norm(dim=1).max()) for of in (gone, kept) for phi, _ in of.values())
    gone, kept = ({i: (phi / longest, y) for i, (phi, y) in of.items()} for of in (gone, kept))
    everybody = {i: joined(dict(enumerate(of[i] for of in (gone, kept) if i in of))) for i in deletion.holders}
    outputs, p = len(f.model.views(w)[head.weight]), next(iter(kept.values()))[0].shape[1]
    model = FlatModel(bare_linear(p, outputs, bias=False), f.model.task, l2)
    return f.having(model=model, clients=everybody, meter=Meter()), Deletion(everybody, gone, kept), longest


def _with_head(model: FlatModel, w: Tensor, head: Head, v: Tensor) -> Tensor:
    """`w` (d,) with the last layer v (classes * p,), the bias in its last column."""
    after = w.clone()
    views = model.views(after)
    rows = v.view(len(views[head.weight]), -1).to(w.dtype)
    if head.bias:
        views[head.bias].copy_(rows[:, -1])
        rows = rows[:, :-1]
    views[head.weight].copy_(rows)
    return after
