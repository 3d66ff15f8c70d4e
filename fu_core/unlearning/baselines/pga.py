"""PGA: climb the target's loss inside a ball around a model it took no part in (Halimi et al. 2022).

The target u keeps its last local model w_u. With w = sum_i p_i w_i, the average of the last round,

    w_ref = (w - p_u w_u) / (1 - p_u)              the average of the others; p_u = 1/N: (N w - w_u) / (N - 1)
    w <- w_ref, then for every batch b of u's data, five epochs long:
    v <- mu v + clip(grad loss(w; b)),  w <- w + eta v
    w <- w_ref + r (w - w_ref) / |w - w_ref|       if |w - w_ref| > r
    stop after the first step with |w - w_u| > stop_distance

This needs every client in the last round and a server that averages. The radius comes from ten random models:

    r = sqrt(mean |w_ref - w_rand|^2 / 3)          "squared": the authors' code, consistent
    r = sqrt(mean |w_ref - w_rand| / 3)            "puf": PUF's code; its random models share one seed, and it
                                                   projects when |w - w_ref| > r^2, not r
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_choice, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, batches
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.memory import check_averages
from fu_core.unlearning.method import Trained, refuse, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.ranges import Choice, Range

SINGLE_SAMPLES = "forget: PGA takes a whole client out of the average and cannot forget single samples"
REFUSES = {
    "clients": "targets must name one client, got {targets}: w_ref takes out one local model",
    "samples": SINGLE_SAMPLES,
    "classes": SINGLE_SAMPLES,
}
RADII = ("squared", "puf")
RANDOM_MODELS = 10
RANGES = {
    "lr": Range(1e-3, 1e-1, "log"),  # a decade around the 0.01 of the authors' code
    "epochs": Range(1, 10, "whole"),  # up to twice their 5
    "batch_size": Choice((16, 32, 64, 128, 512)),  # PUF's 512, and smaller ones for clients with fewer samples
    "stop_distance": Range(0.5, 20.0, "log"),  # PUF tuned it in 2.2 to 10; a length, so it depends on the net
}


@dataclass(frozen=True)
class PGA:
    """Hyper-parameters; the defaults are those of PUF's appendix A for IID clients.

    stop_distance: on |w - w_u|, not squared; None never stops. It is a length in parameter space and has
    to be tuned for the model. PUF: 9.0 (IID), 6.5 (non-IID); the authors compare squares with 2.2 (MNIST),
    which is sqrt(2.2) here.
    """

    epochs: float = 5.0  # E_asc
    lr: float = 0.01
    momentum: float = 0.9
    batch_size: int = 512  # PUF: 512 or 1024
    clip: float = 5.0
    clipping: str = "global"  # "tensor": every parameter tensor by itself, as PUF's code does
    weighting: str = "weighted"  # p_u = n_u / n; "uniform": 1/N. As the server averages
    radius: str = "squared"
    stop_distance: float | None = 9.0

    def __post_init__(self) -> None:
        check_choice("clipping", self.clipping, ("global", "tensor"))
        check_choice("weighting", self.weighting, ("weighted", "uniform"))
        check_choice("radius", self.radius, RADII)
        check_positive("clip", self.clip)
        if self.stop_distance is not None:
            check_positive("stop_distance", self.stop_distance)
        _ = self.local  # checks the rest

    @property
    def local(self) -> ClientOpt:
        """The target's optimiser and batches."""
        return ClientOpt(lr=self.lr, momentum=self.momentum, epochs=self.epochs, batch_size=self.batch_size)


def reference_model(w: Tensor, w_u: Tensor, p_u: float) -> Tensor:
    """`w_ref` (d,): the average `w` (d,) without the local model `w_u` (d,), whose weight in it is `p_u`.

    Deterministic. Raises `InvalidRequest` unless 0 <= p_u < 1: nobody else would be in the average.
    """
    if not 0 <= p_u < 1:
        raise InvalidRequest(f"p_u must be at least 0 and less than 1, got {p_u}: others must be in the average")
    return (w - p_u * w_u) / (1 - p_u)  # w_ref = (w - p_u w_u) / (1 - p_u)


def radius(model: FlatModel, w_ref: Tensor, *, kind: str = "squared", seed: int) -> float:
    """`r`, from the distances between `w_ref` (d,) and ten random models, in float64.

    Random: the models, `model.init` with seeds of the streams (seed, "pga random model", k), one and the
    same for kind "puf".
    """
    check_choice("radius", kind, RADII)
    distances = []
    for k in range(RANDOM_MODELS):
        own = stream_seed(seed, "pga random model", k if kind == "squared" else 0)
        distances.append(_distance(w_ref, model.init(own, w_ref.dtype).to(w_ref.device)))
    power = 2 if kind == "squared" else 1
    return math.sqrt(sum(distance**power for distance in distances) / RANDOM_MODELS / 3)


def clip_gradient(model: FlatModel, g: Tensor, limit: float, *, per_tensor: bool = False) -> Tensor:
    """`g` (d,) shortened to the length `limit` if it is longer: as a whole, or each parameter tensor in it."""
    clipped = []
    for part in g.split(model.sizes if per_tensor else [model.d]):
        length = torch.linalg.vector_norm(part, dtype=torch.float64)
        clipped.append((limit / length).clamp(max=1.0).to(g.dtype) * part)  # a zero part: limit / 0, clamped to 1
    return torch.cat(clipped)


def ascent(f: Federation, w_ref: Tensor, u: int, config: PGA, *, r: float) -> Iterator[Tensor]:
    """Yield the model (d,), a copy, after every projected step uphill on client u's data, starting at `w_ref` (d,).

    r: as `radius` gives it, infinity for no ball. The momentum knows nothing of the projection, as in the
    authors' code. Random: batch order, from the streams of (f.seed, round 0, u), which no round of training uses.
    Raises `InvalidRequest` if u holds no samples, `NumericalFailure` for a step to NaN or infinity.
    """
    x, y = f.clients[u]
    reach = r if config.radius == "squared" else r**2
    optimiser = config.local.fresh(round=1)
    w = w_ref.clone()
    for b in batches(len(y), config.local, seed=f.seed, round=0, client=u):
        g = -f.model.grad(w, f.model.arrange(x[b]), y[b])
        g = clip_gradient(f.model, g, config.clip, per_tensor=config.clipping == "tensor")
        optimiser.step(w, g)  # v <- mu v + g, w <- w - eta v: downhill on -loss
        f.meter.train(len(b))
        distance = _distance(w, w_ref)
        if not math.isfinite(distance):
            raise NumericalFailure(f"client {u}: a step of the ascent is not finite; lower lr ({config.lr})")
        if distance > reach:
            w = w_ref + r / distance * (w - w_ref)  # w_ref + r (w - w_ref) / |w - w_ref|
        yield w.clone()


def pga(f: Federation, w: Tensor, w_u: Tensor, deletion: Deletion, config: PGA) -> Tensor:
    """The model (d,) after projected gradient ascent; `w` and `w_u` are left untouched. Halimi et al. 2022.

    w (d,): the global model after training; w_u (d,): the local model that the one client that leaves sent for that
    average. The distance to w_u is looked at after a step, so that at least one is taken.

    Random: see `radius` and `ascent`. The meter counts one model down and up, and every client's last local model
    kept, as nobody knows who will leave: (C + 1) P B, which is what PUF's Table III prints; its Table VIII
    has C P B. Raises `UnsupportedTask` for several targets or single samples, and for a server that does not average,
    `NumericalFailure` for NaN or infinity.
    """
    refuse(deletion, REFUSES)
    check_averages(f, "PGA")
    (u,) = deletion.targets
    if w_u.shape != w.shape:
        raise ValueError(f"w_u must have the shape of w, {tuple(w.shape)}, got {tuple(w_u.shape)}")
    n = f.sizes()
    p_u = float(n[f.ids.index(u)] / n.sum()) if config.weighting == "weighted" else 1 / len(n)
    w_ref = reference_model(w, w_u, p_u)
    if not bool(w_ref.isfinite().all()):
        raise NumericalFailure(f"client {u}: the reference model is not finite; check w and w_u")

    unlearned = w_ref
    r = radius(f.model, w_ref, kind=config.radius, seed=f.seed)
    for unlearned in ascent(f, w_ref, u, config, r=r):
        if config.stop_distance is not None and _distance(unlearned, w_u) > config.stop_distance:
            break
    f.meter.send(w, down=1, up=1)
    f.meter.keep("global model", w)
    f.meter.keep("last local models", *[w_u] * len(n))  # all of one size
    return unlearned


@register(
    "PGA",
    paper="Halimi et al., 2022",
    colour="#0072b2",
    parameters=PGA,
    needs=Needs(full_participation=True, stateful_clients=True, one_at_a_time=True),
    refuses=REFUSES,
    ranges=RANGES,
)
def serve(trained: Trained, deletion: Deletion, config: PGA) -> Tensor:
    """The target's local model comes from what was kept of the last round; raises `MissingHistory` without it."""
    f, w = trained.horizontal, trained.model
    w_u = trained.server_memory.local_model(w, f.sizes(), deletion.targets[0])
    return pga(f, w, w_u, deletion, config)


def _distance(a: Tensor, b: Tensor) -> float:
    """|a - b|, its sum of squares in float64."""
    return float(torch.linalg.vector_norm(a - b, dtype=torch.float64))
