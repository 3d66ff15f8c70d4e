"""DU: forgetting without a server, with a certificate (Wu et al., Algorithm 1), as printed and as it should be.

Printed. Every client c that asks to forget U_c, m_c of its n_c samples, solves at its own model x_c:

    H_c = 1 / (n_c - m_c) sum over S_c \\ U_c of hess F_c(x_c, xi)                     (Eq. 2, line 3)
    x_c^Delta = 1 / (n_c - m_c) H_c^-1 sum over U_c of grad F_c(x_c, xi)               (Eq. 3, line 4)
    nu_c ~ N(0, sigma_c^2 I), and the message x_c^Delta + nu_c floods the network      (lines 5-7)
    x~_i = x_i + 1 / N sum_c (x_c^Delta + nu_c)         every client, each message once   (lines 11-17)

A client that leaves: H_c = mean over i != c of hess f_i(x_i), x_c^Delta = 1 / (N - 1) H_c^-1 grad f_c(x_c)
(Eqs. 5, 6), and "the same procedure", so once more times 1 / N.

That is not what the proof is about: it needs one Hessian for all (errata D2), counts a leaving client's
1 / N twice (D4), forgets a term when not everybody asks (D2), adds too little noise when all do (D3), and the
same noise to every model, whose differences stay bare (D1). `form="corrected"`, the default, derives the
step from what retraining minimises, f_r = sum_i a_i f_i over what is retained. With x = mean_i x_i:

    -grad f_r(x) at a minimiser of f = sum_c g_c        each g_c from client c's own data, flooded
    x~ = x + H_r^-1 sum_c g_c + N(0, sigma^2 I)         H_r: the Hessian of f_r; one model, published by all

On quadratics it is retraining. The certificate is measured, not assumed: |grad f_r(x^)| / lambda bounds the
distance to retraining (D6), and a model is released only if that is within the budget sigma was chosen for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import InvalidRequest, NumericalFailure, check_choice, check_count, check_positive
from fu_core.federation.federation import Federation
from fu_core.federation.flood import flood
from fu_core.federation.local import Client
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.certificate import Certificate, Privacy, claimed, measured, residual_radius, retained_weights
from fu_core.unlearning.curvature import Part, mean_gradient, sampled
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.newton import CURVATURES, Newton, Solve, newton_solver

FORMS = ("corrected", "printed")
OBJECTIVES = ("clients", "samples")
NOISES = ("consensus", "shared", "independent")
NEEDS = Needs(full_participation=True)  # a message must reach everybody who stays


@dataclass(frozen=True)
class DU:
    """How to forget. None means: what the chosen `form` does."""

    form: str = "corrected"
    curvature: str = "hessian"  # or "ggn", "fisher" (Eq. 7), "diagonal_fisher"; see fu_core.unlearning.newton
    whose: str | None = None  # curvature: "global" corrected, "local" as printed
    objective: str = "clients"  # f = mean of the f_i, Eq. (1), or of all "samples", as rounds of one epoch train
    gradient: str = "forgotten"  # corrected; "retained" takes grad f_r itself, and needs no stationarity
    noise: str | None = None  # "consensus" corrected: models averaged first; "shared" as printed; "independent"
    weight: float | None = None  # of the summed messages: 1 corrected, 1 / N as printed
    damping: float = 0.0
    cap: float | None = None  # the applied correction is at most cap |x| long
    curvature_samples: int | None = None  # curvature from a random sample of so many; None: all, exact
    dense_up_to: int = 5000  # parameters: beyond it, conjugate gradient instead of a matrix
    iters: int = 200  # of conjugate gradient, at most
    tol: float = 1e-10  # and its relative residual
    capacity: int | None = None  # zeta: how many samples may be deleted in all (Remark 2)

    def __post_init__(self) -> None:
        check_choice("form", self.form, FORMS)
        check_choice("curvature", self.curvature, CURVATURES)
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("gradient", self.gradient, ("forgotten", "retained"))
        if self.whose is not None:
            check_choice("whose", self.whose, ("global", "local"))
        if self.noise is not None:
            check_choice("noise", self.noise, NOISES)
        for name in ("weight", "cap"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if not 0 <= self.damping < math.inf:
            raise ValueError(f"damping must be >= 0, got {self.damping}")
        for name in ("curvature_samples", "capacity"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.form == "printed" and self.gradient == "retained":
            raise ValueError("gradient='retained' has no meaning in the printed form")
        if self.gradient == "retained" and self.whose == "local":
            raise ValueError("gradient='retained' needs whose='global': its parts belong to no requester")

    @property
    def own_models(self) -> bool:
        """Does every client correct a model of its own, or all the average?"""
        return (self.noise or ("shared" if self.form == "printed" else "consensus")) != "consensus"

    def factor(self, clients: int) -> float:
        """What the summed messages are multiplied with, among so many clients."""
        return self.weight or (1 / clients if self.form == "printed" else 1.0)


@dataclass(frozen=True)
class Release:
    """What every staying client publishes, and how it came about.

    models (K, d), rows in the order of `ids`; noiseless (K, d): the same before noise, never to be released;
    messages: what each requester floods (d,), x_c^Delta as printed, g_c corrected; scale: how much `cap`
    shortened the correction; hops as in `flood`; sigma: standard deviation of the noise in each model.
    """

    models: Tensor
    ids: list[int]
    noiseless: Tensor
    messages: dict[int, Tensor]
    sigma: float
    scale: float
    hops: np.ndarray
    certificate: Certificate | None


def du(
    f: Federation, W: Tensor, deletion: Deletion, config: DU | None = None, privacy: Privacy | None = None
) -> Tensor:
    """The models (K, d) of those who stay, without the influence of what is deleted; see `du_release`."""
    return du_release(f, W, deletion, config or DU(), privacy).models


def du_release(
    f: Federation,
    W: Tensor,
    deletion: Deletion,
    config: DU,
    privacy: Privacy | None = None,
    plain: Release | None = None,
) -> Release:
    """What the staying clients publish once the requests of `deletion` are served. Certified DFL, Algorithm 1.

    f: everybody with the data as at training, linked by its Peers; W (N, d): everybody's model, rows in the order of
    `f.ids`; privacy: how much noise, or which guarantee (default: none of either); plain: the release of the same
    request without noise, if it is at hand already: other noise does not need another solve. One round of
    `fu_core.federation.decentralised.dpsgd_round` on retained data may follow; see `after_fine_tuning`.

    Random: noise, from (seed, "certified noise", ...). Raises ValueError for shapes that do not fit, InvalidRequest
    beyond `config.capacity`, NumericalFailure where damping is missing, CertificateViolation where the measured radius
    exceeds the budget: nothing may be released then.
    """
    privacy, Q = privacy or Privacy(), f.peers.Q
    if W.shape != (len(f.ids), f.model.d) or len(Q) != len(f.ids):
        raise ValueError(
            f"W must be ({len(f.ids)}, {f.model.d}) and Q square with as many rows, one per client, "
            f"got {tuple(W.shape)} and {tuple(Q.shape)}"
        )
    if config.capacity is not None and deletion.m > config.capacity:
        raise InvalidRequest(f"capacity: {deletion.m} samples are to be deleted, but zeta allows {config.capacity}")
    privacy.check(f.model, config.form)
    if plain is None:
        plain = _without_noise(f, W, deletion, config)
    certificate, sigma = None, privacy.sigma
    if privacy.epsilon is not None:
        certificate = _certificate(f, plain, deletion, config, privacy)
        sigma = certificate.sigma
    if sigma and config.form == "corrected" and config.noise != "independent":
        asked = [f.ids.index(c) for c in plain.messages]
        f.meter.send(W[0], up=flood(Q, asked).messages)  # the noise; as printed it rides on the messages
    noise = _noise(plain, sigma, config, f.seed)
    return replace(plain, models=plain.noiseless + noise, sigma=sigma, certificate=certificate)


@register("DU", paper="Certified DFL", colour="#b22222", parameters=DU, needs=NEEDS,
          exchanges=("peers",), guarantee="certified", recovers=False)  # fmt: skip
@register("DU printed", paper="Certified DFL", colour="#f2a07b", dash="--", parameters=DU, preset={"form": "printed"},
          needs=NEEDS, exchanges=("peers",), guarantee="certified", recovers=False)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: DU) -> Tensor:
    """The step itself, without noise. Notes: step, its length beside the mean model's; scale and hops of `Release`."""
    f, W = trained.horizontal, trained.model
    release = du_release(f, W, deletion, config)
    before, after = W[[f.ids.index(i) for i in release.ids]].mean(dim=0), release.noiseless.mean(dim=0)
    trained.notes["step"] = float((after - before).double().norm() / before.double().norm())
    trained.notes["scale"] = release.scale
    trained.notes["hops"] = int(release.hops.max())
    return release.models


# --- the correction --------------------------------------------------------------------------------------------------


def _without_noise(f: Federation, W: Tensor, deletion: Deletion, config: DU) -> Release:
    """The messages, what they add up to, and everybody's model once they have arrived."""
    Q, mean = f.peers.Q, W.mean(dim=0)
    if config.own_models:
        points = dict(zip(f.ids, W, strict=True))
    else:
        points = dict.fromkeys(f.ids, mean)
        f.meter.send(mean, up=flood(Q, range(len(Q))).messages)  # everybody tells everybody its model, once

    if config.form == "printed":
        messages = _printed_messages(f, points, deletion, config)
        combined = torch.stack(list(messages.values())).sum(dim=0)
    else:
        messages, combined = _corrected_messages(f, mean, deletion, config)
    spread = flood(Q, [f.ids.index(c) for c in messages])
    f.meter.send(mean, up=spread.messages)

    correction = config.factor(len(f.ids)) * combined
    scale = _shrink(correction, mean, config.cap)
    staying = [i for i in f.ids if i in deletion.kept]
    noiseless = torch.stack([points[i] for i in staying]) + scale * correction
    if not bool(noiseless.isfinite().all()):
        raise NumericalFailure(f"the unlearned models are not finite; raise damping (now {config.damping:g})")
    return Release(noiseless, staying, noiseless, messages, 0.0, scale, spread.hops, None)


def _printed_messages(f: Federation, points: Mapping[int, Tensor], deletion: Deletion, config: DU) -> dict[int, Tensor]:
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
        messages[c] = _solver(f, points, parts, config, loss_fisher=True)(g)  # line 4
    return messages


def _corrected_messages(f: Federation, x: Tensor, deletion: Deletion, config: DU) -> tuple[dict[int, Tensor], Tensor]:
    """Every g_c at the common point x, and H_r^-1 sum_c g_c, which all solve for together."""
    weights = retained_weights(deletion.kept, config.objective)
    if config.gradient == "retained":
        shares = {
            i: -weights[i] * mean_gradient(f.model, x, data, count=f.meter.train) for i, data in deletion.kept.items()
        }
    else:
        shares = {c: _share(f, x, c, deletion, config.objective) for c in deletion.forgotten}
    points = dict.fromkeys(deletion.holders, x)
    if config.whose == "local":  # each solves by itself, with the curvature of what it keeps
        for c, g in shares.items():
            own = [(1.0, c, deletion.kept.get(c, deletion.clients[c]))]
            shares[c] = _solver(f, points, own, config)(g)
        return shares, torch.stack(list(shares.values())).sum(dim=0)
    parts = [(weights[i], i, data) for i, data in deletion.kept.items()]
    everybody = len(parts) * flood(f.peers.Q, [0]).messages  # the curvature's shares are summed over the network
    solve = _solver(f, points, parts, config, on_product=lambda k: f.meter.send(x, up=k * everybody))
    return shares, solve(torch.stack(list(shares.values())).sum(dim=0))


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


def _shrink(correction: Tensor, x: Tensor, cap: float | None) -> float:
    length = float(correction.norm())
    return 1.0 if cap is None or not length else min(1.0, cap * float(x.norm()) / length)


# --- the noise -------------------------------------------------------------------------------------------------------


def _certificate(f: Federation, plain: Release, deletion: Deletion, config: DU, privacy: Privacy) -> Certificate:
    """The printed form is taken at its word; the corrected one is measured, at every model that is different."""
    if config.form == "printed":
        return claimed(privacy, deletion, config.factor(len(f.ids)))
    different = plain.noiseless if config.own_models else plain.noiseless[:1]
    radii = [residual_radius(f.model, w, deletion, objective=config.objective) for w in different]
    if config.noise == "independent":  # the tuple of models is one vector with noise in every coordinate
        return measured(privacy, math.hypot(*radii), "all models")
    return measured(privacy, max(radii), "model" if config.own_models else "all models")


def _noise(plain: Release, sigma: float, config: DU, seed: int) -> Tensor:
    """(K, d): everybody the same, as flooded messages carry it, or everybody its own."""
    if not sigma:
        return torch.zeros_like(plain.noiseless)

    def draw(name: str, i: int) -> Tensor:
        generator = stream(seed, "certified noise", name, i)
        return torch.randn(plain.noiseless.shape[1], generator=generator, dtype=torch.float64).to(plain.noiseless)

    if config.noise == "independent":
        return sigma * torch.stack([draw("client", i) for i in plain.ids])
    share = sigma / math.sqrt(len(plain.messages))  # each requester adds its part, which makes sigma together
    return (share * torch.stack([draw("message", c) for c in plain.messages]).sum(dim=0)).expand_as(plain.noiseless)
