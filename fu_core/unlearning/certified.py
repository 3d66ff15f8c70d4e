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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from torch import Tensor, nn

from fu_core.errors import (
    CertificateViolation,
    InvalidRequest,
    NumericalFailure,
    TopologyError,
    UnsupportedModel,
    check_choice,
    check_count,
    check_positive,
)
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.curvature import mean_gradient, sampled
from fu_core.unlearning.deletion import Deletion, Forget
from fu_core.unlearning.gaussian_mechanism import gaussian_delta, gaussian_epsilon, gaussian_sigma
from fu_core.unlearning.newton import CURVATURES, Solve, newton_solver

__all__ = [
    "DU",
    "Certificate",
    "Constants",
    "Flood",
    "Release",
    "certified_unlearn",
    "compose",
    "du_release",
    "flood",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_sigma",
    "residual_radius",
    "softmax_constants",
]

FORMS = ("corrected", "printed")
OBJECTIVES = ("clients", "samples")
NOISES = ("consensus", "shared", "independent")


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


# --- the certificate -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed about the released models, against retraining and then adding the same noise (errata D7).

    sigma: standard deviation of the noise in each released model; radius: distance to the retrained model, as
    bounded by the residual (corrected) or by Lemma 3 (printed); covers: "all models" together, or each "model"
    by itself. `form="printed"` is the paper's claim, not a guarantee.
    """

    epsilon: float
    delta: float
    sigma: float
    radius: float
    covers: str
    form: str = "corrected"


def compose(certificates: Iterable[Certificate]) -> tuple[float, float]:
    """(epsilon, delta) of several releases seen together: they add up (basic composition)."""
    held = list(certificates)
    return sum(c.epsilon for c in held), sum(c.delta for c in held)


class Constants(NamedTuple):
    """Of one sample's loss: lambda-strongly convex, L-Lipschitz, with an M-Lipschitz Hessian (Assumption 2)."""

    lam: float
    L: float
    M: float

    def distance(self, m: int, n: int) -> float:
        """Lemma 2: the retrained model is at most 2 L m / (lambda n) away."""
        return 2 * self.L * m / (self.lam * n)

    def sensitivity(self, m: int, n: int) -> float:
        """Lemma 3 and line 0: Delta F = 2 M L^2 m^2 / (lambda^3 n^2)."""
        return 2 * self.M * self.L**2 * m**2 / (self.lam**3 * n**2)


def softmax_constants(radius: float, l2: float, *, norm: float = 0.0, binary: bool = False) -> Constants:
    """Constants of L2-regularised softmax (or binary logistic) regression on features of length <= radius.

    norm: of the models concerned, |x| <= norm; the regulariser adds l2 * norm to L. On all of R^d no loss is both
    strongly convex and Lipschitz (errata D11). Lemma 4 bounds the minimiser by L / l2.
    """
    check_positive("radius", radius)
    check_positive("l2", l2)
    if binary:
        return Constants(l2, radius + l2 * norm, radius**3 / (6 * math.sqrt(3)))
    return Constants(l2, math.sqrt(2) * radius + l2 * norm, radius**3 / math.sqrt(2))


def strong_convexity(model: FlatModel) -> float:
    """lambda: the model's l2, if its loss is convex. Raises UnsupportedModel where there is nothing to certify."""
    if not isinstance(model.only_layer(), nn.Linear) or model.task not in ("classification", "regression"):
        raise UnsupportedModel("a certificate needs a convex loss: one linear layer, classification or regression")
    if model.l2 <= 0:
        raise UnsupportedModel(f"a certificate needs strong convexity: l2 must be > 0, got {model.l2}")
    return model.l2


def retained_gradient(
    model: FlatModel, w: Tensor, kept: Mapping[int, Client], weights: Mapping[int, float], meter: Meter | None = None
) -> Tensor:
    """grad f_r(w) (d,), summed over the retaining clients with their weights a_i."""
    count = None if meter is None else meter.train
    parts = [weights[i] * mean_gradient(model, w, data, count=count) for i, data in kept.items()]
    return torch.stack(parts).sum(dim=0)


def residual_radius(
    model: FlatModel, w: Tensor, clients: Sequence[Client], forget: Forget, *, objective: str = "clients"
) -> float:
    """|grad f_r(w)| / lambda: no minimiser of the retained objective is farther away than this (errata D6).

    Deterministic. Raises UnsupportedModel unless the loss is strongly convex.
    """
    lam = strong_convexity(model)
    deletion = Deletion.of(clients, forget)
    weights = _weights(deletion.kept, objective)
    return float(retained_gradient(model, w, deletion.kept, weights).norm()) / lam


# --- flooding --------------------------------------------------------------------------------------------------------


class Flood(NamedTuple):
    """hops (S, K): after how many links client k first hears of source s; messages: vectors sent in all."""

    hops: np.ndarray
    messages: int


def flood(Q: Tensor, sources: Sequence[int], *, lost: Iterable[tuple[int, int]] = ()) -> Flood:
    """Every source's message to everybody: forwarded when first heard, to all neighbours but the sender (Alg. 1).

    Q (K, K): who is linked to whom; sources: rows of it. `lost`: directed links (from, to) that drop what they
    carry. Per source that is 2|E| - (K - 1) vectors, duplicates included. Raises TopologyError if a client never
    hears of a source.
    """
    links = _links(Q)
    carried = links.copy().tolil()
    for sender, receiver in lost:
        carried[sender, receiver] = 0
    hops = shortest_path(carried.tocsr(), unweighted=True, indices=list(sources))
    deaf = np.argwhere(np.isinf(hops))
    if len(deaf):
        source, client = deaf[0]
        raise TopologyError(f"client {client} never received the message of client {list(sources)[source]}")
    return Flood(hops.astype(np.int64), len(sources) * (links.nnz - (len(Q) - 1)))


def _links(Q: Tensor) -> csr_matrix:
    """The graph under a mixing matrix, without self-loops."""
    adjacency = Q.to_dense() if Q.layout != torch.strided else Q
    found = (adjacency != 0).fill_diagonal_(False)
    return csr_matrix(found.cpu().numpy().astype(np.int8))


# --- forgetting ------------------------------------------------------------------------------------------------------


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


def certified_unlearn(
    model: FlatModel,
    W: Tensor,
    clients: Sequence[Client],
    requests: Forget,
    Q: Tensor,
    *,
    form: str = "corrected",
    curvature: str = "hessian",
    sigma: float = 0.0,
    epsilon: float | None = None,
    delta: float = 1e-5,
    budget: float | None = None,
    constants: Constants | None = None,
    ids: Sequence[int] | None = None,
    seed: int = 0,
    meter: Meter | None = None,
    **options: Any,
) -> Tensor:
    """The staying clients' models without the influence of `requests`, (K, d). Certified DFL, Algorithm 1.

    W (N, d): everybody's model, rows in the order of `ids` (default: all clients); clients: everybody's data as at
    training; requests: a client or a list of clients that leave, or {client: indices into its samples}; Q (N, N):
    mixing matrix of the current graph. Without `epsilon`, noise of `sigma` and no certificate. With it, the
    corrected form needs `budget`, the largest distance to retraining it may have: sigma follows, and the release is
    refused with CertificateViolation if the measured radius exceeds it; the printed form needs `constants`.
    `options`: further fields of DU. Random: noise, from (seed, "certified noise", ...). One round of
    `fu_core.federation.decentralised.dpsgd_round` on retained data may follow; see `after_fine_tuning`.
    """
    config = DU(form=form, curvature=curvature, **options)
    release = du_release(
        model, W, clients, requests, Q, config,
        sigma=sigma, epsilon=epsilon, delta=delta, budget=budget, constants=constants, ids=ids, seed=seed, meter=meter,
    )  # fmt: skip
    return release.models


def du_release(
    model: FlatModel,
    W: Tensor,
    clients: Sequence[Client],
    requests: Forget,
    Q: Tensor,
    config: DU,
    *,
    sigma: float = 0.0,
    epsilon: float | None = None,
    delta: float = 1e-5,
    budget: float | None = None,
    constants: Constants | None = None,
    ids: Sequence[int] | None = None,
    seed: int = 0,
    meter: Meter | None = None,
    plain: Release | None = None,
) -> Release:
    """`certified_unlearn` with everything it knows. `plain`: the release of the same request without noise, if it is
    at hand already: other noise does not need another solve."""
    meter = meter or Meter()
    members = list(range(len(clients))) if ids is None else sorted(ids)
    if W.dim() != 2 or len(W) != len(members) or W.shape[1] != model.d or len(Q) != len(members):
        raise ValueError(
            f"W must be ({len(members)}, {model.d}) and Q square with as many rows, one per client, "
            f"got {tuple(W.shape)} and {tuple(Q.shape)}"
        )
    present = [client if i in set(members) else (client[0][:0], client[1][:0]) for i, client in enumerate(clients)]
    deletion = Deletion.of(present, requests)
    if config.capacity is not None and deletion.m > config.capacity:
        raise InvalidRequest(f"capacity: {deletion.m} samples are to be deleted, but zeta allows {config.capacity}")
    _check_certificate(model, config, epsilon, budget, constants, sigma)
    if plain is None:
        plain = _without_noise(model, W, deletion, Q, config, members, seed, meter)
    certificate = None
    if epsilon is not None:
        make = _claim if config.form == "printed" else _certify
        certificate = make(model, plain.noiseless, deletion, config, epsilon, delta, budget, constants, len(members))
        sigma = certificate.sigma
    if sigma and config.form == "corrected" and config.noise != "independent":
        asked = [members.index(c) for c in plain.messages]
        meter.send(W[0], up=flood(Q, asked).messages)  # the noise; as printed it rides on the messages
    noise = _noise(plain.noiseless, sigma, list(plain.messages), config, plain.ids, seed)
    return replace(plain, models=plain.noiseless + noise, sigma=sigma, certificate=certificate)


def _without_noise(
    model: FlatModel,
    W: Tensor,
    deletion: Deletion,
    Q: Tensor,
    config: DU,
    members: Sequence[int],
    seed: int,
    meter: Meter,
) -> Release:
    """The messages, what they add up to, and everybody's model once they have arrived."""
    rows = {i: row for row, i in enumerate(members)}
    mean = W.mean(dim=0)
    if config.own_models:
        points = {i: W[rows[i]] for i in members}
    else:
        points = dict.fromkeys(members, mean)
        meter.send(mean, up=flood(Q, range(len(Q))).messages)  # everybody tells everybody its model, once

    if config.form == "printed":
        messages = _printed_messages(model, points, deletion, config, seed, meter)
        combined = torch.stack(list(messages.values())).sum(dim=0)
    else:
        messages, combined = _corrected_messages(model, mean, deletion, config, Q, seed, meter)
    spread = flood(Q, [rows[c] for c in messages])
    meter.send(mean, up=spread.messages)

    correction = (config.weight or (1 / len(members) if config.form == "printed" else 1.0)) * combined
    scale = _shrink(correction, mean, config.cap)
    staying = [i for i in members if i in deletion.kept]
    noiseless = torch.stack([points[i] for i in staying]) + scale * correction
    if not bool(noiseless.isfinite().all()):
        raise NumericalFailure(f"the unlearned models are not finite; raise damping (now {config.damping:g})")
    return Release(noiseless, staying, noiseless, messages, 0.0, scale, spread.hops, None)


def after_fine_tuning(certificate: Certificate | None) -> Certificate | None:
    """What is left of a certificate after rounds of D-PSGD on the retained data (paper, Eq. 12; errata D10).

    The rounds are the same map in both worlds if they use nothing but retained data, fresh randomness, and a
    number of rounds and a learning rate fixed beforehand: then a guarantee for all models together survives. They
    mix the models: a guarantee about each model by itself says nothing about a mixture, and is lost.
    """
    return certificate if certificate is not None and certificate.covers == "all models" else None


def _printed_messages(
    model: FlatModel, points: Mapping[int, Tensor], deletion: Deletion, config: DU, seed: int, meter: Meter
) -> dict[int, Tensor]:
    """Lines 3 and 4, or Eqs. (5) and (6) for a client of which nothing is left."""
    messages: dict[int, Tensor] = {}
    for c, gone in deletion.forgotten.items():
        g_u = mean_gradient(model, points[c], gone, count=meter.train)
        if c in deletion.kept:
            n_left = len(deletion.kept[c][1])  # n_c - m_c
            held = {c: deletion.kept[c]} if config.whose != "global" else deletion.kept  # Eq. (2)
            g = len(gone[1]) / n_left * g_u  # 1 / (n_c - m_c) sum over U_c
        else:
            held = {i: data for i, data in deletion.holders.items() if i != c}  # Eq. (5)
            g = g_u / len(held)  # Eq. (6)
        parts = [(1 / len(held), i, data) for i, data in held.items()]
        messages[c] = _solver(model, points, parts, config, seed, meter, loss_fisher=True)(g)  # line 4
    return messages


def _corrected_messages(
    model: FlatModel, x: Tensor, deletion: Deletion, config: DU, Q: Tensor, seed: int, meter: Meter
) -> tuple[dict[int, Tensor], Tensor]:
    """Every g_c at the common point x, and H_r^-1 sum_c g_c, which all solve for together."""
    weights = _weights(deletion.kept, config.objective)
    if config.gradient == "retained":
        shares = {
            i: -weights[i] * mean_gradient(model, x, data, count=meter.train) for i, data in deletion.kept.items()
        }
    else:
        shares = {c: _share(model, x, c, deletion, config.objective, meter) for c in deletion.forgotten}
    points = dict.fromkeys(deletion.holders, x)
    if config.whose == "local":  # each solves by itself, with the curvature of what it keeps
        for c, g in shares.items():
            own = [(1.0, c, deletion.kept.get(c, deletion.clients[c]))]
            shares[c] = _solver(model, points, own, config, seed, meter)(g)
        return shares, torch.stack(list(shares.values())).sum(dim=0)
    parts = [(weights[i], i, data) for i, data in deletion.kept.items()]
    everybody = len(parts) * flood(Q, [0]).messages  # what all share of the curvature is summed over the network
    solve = _solver(model, points, parts, config, seed, meter, on_product=lambda k: meter.send(x, up=k * everybody))
    return shares, solve(torch.stack(list(shares.values())).sum(dim=0))


def _share(model: FlatModel, x: Tensor, c: int, deletion: Deletion, objective: str, meter: Meter) -> Tensor:
    """g_c: what client c alone adds to -grad f_r(x), if x minimises f."""
    gone = deletion.forgotten[c]
    m, g_u = len(gone[1]), mean_gradient(model, x, gone, count=meter.train)
    if objective == "samples":
        return m / (deletion.n - deletion.m) * g_u
    staying = len(deletion.kept)
    if c not in deletion.kept:
        return g_u / staying  # grad f_c / (N - 1)
    g_c = mean_gradient(model, x, deletion.clients[c], count=meter.train)
    return m / len(deletion.kept[c][1]) * (g_u - g_c) / staying  # m / (n_c - m) (mean over U_c - mean over S_c) / N


def _solver(
    model: FlatModel,
    points: Mapping[int, Tensor],
    parts: Sequence[tuple[float, int, Client]],
    config: DU,
    seed: int,
    meter: Meter,
    *,
    loss_fisher: bool = False,
    on_product: Callable[[int], None] | None = None,
) -> Solve:
    """`newton_solver` over the parts, each at its client's point, from a sample if `curvature_samples` says so."""
    data = sampled(parts, config.curvature_samples, seed=seed)
    groups: dict[int, tuple[Tensor, list[tuple[float, Client]]]] = {}  # one per different point
    for (_, i, _), part in zip(parts, data, strict=True):
        groups.setdefault(id(points[i]), (points[i], []))[1].append(part)
    return newton_solver(
        model,
        list(groups.values()),
        curvature=config.curvature,
        damping=config.damping,
        loss_fisher=loss_fisher,
        dense_up_to=config.dense_up_to,
        iters=config.iters,
        tol=config.tol,
        on_product=on_product,
        meter=meter,
    )


def _weights(kept: Mapping[int, Client], objective: str) -> dict[int, float]:
    """a_i of the retained objective: 1 / N, or by samples."""
    sizes = {i: len(y) if objective == "samples" else 1 for i, (_, y) in kept.items()}
    return {i: size / sum(sizes.values()) for i, size in sizes.items()}


def _shrink(correction: Tensor, x: Tensor, cap: float | None) -> float:
    length = float(correction.norm())
    return 1.0 if cap is None or not length else min(1.0, cap * float(x.norm()) / length)


def _noise(noiseless: Tensor, sigma: float, requesters: list[int], config: DU, staying: list[int], seed: int) -> Tensor:
    """(K, d): everybody the same, as flooded messages carry it, or everybody its own."""
    if not sigma:
        return torch.zeros_like(noiseless)

    def draw(name: str, i: int) -> Tensor:
        generator = stream(seed, "certified noise", name, i)
        return torch.randn(noiseless.shape[1], generator=generator, dtype=torch.float64).to(noiseless)

    if config.noise == "independent":
        return sigma * torch.stack([draw("client", i) for i in staying])
    share = sigma / math.sqrt(len(requesters))  # each requester adds its part, which makes sigma together
    return (share * torch.stack([draw("message", c) for c in requesters]).sum(dim=0)).expand_as(noiseless)


def _check_certificate(
    model: FlatModel,
    config: DU,
    epsilon: float | None,
    budget: float | None,
    constants: Constants | None,
    sigma: float,
) -> None:
    """Refuse early what cannot be certified: nothing has been computed then."""
    if not 0 <= sigma < math.inf:
        raise ValueError(f"sigma must be >= 0, got {sigma}")
    if epsilon is None:
        if budget is not None or constants is not None:
            raise ValueError("budget and constants belong to a certificate: give epsilon, too")
        return
    if sigma:
        raise ValueError(f"give epsilon, from which sigma follows, or sigma, not both; got {epsilon} and {sigma}")
    strong_convexity(model)
    if config.form == "printed":
        if constants is None:
            raise ValueError("the printed certificate needs constants: lambda, L and M (see softmax_constants)")
        return
    if budget is None:
        raise ValueError("a certificate needs budget: the distance to retraining that the noise is to cover")
    check_positive("budget", budget)


def _claim(
    model: FlatModel,
    noiseless: Tensor,
    deletion: Deletion,
    config: DU,
    epsilon: float,
    delta: float,
    budget: float | None,
    constants: Constants | None,
    members: int,
) -> Certificate:
    """The paper's own calibration: sigma_c per message, so sqrt(r) / N sigma_c in each model. A claim."""
    assert constants is not None
    radii = [constants.sensitivity(len(gone[1]), len(deletion.clients[c][1])) for c, gone in deletion.forgotten.items()]
    per_message = [gaussian_sigma(radius, epsilon=epsilon, delta=delta, mechanism="classical") for radius in radii]
    weight = config.weight or 1 / members
    sigma = weight * math.hypot(*per_message)
    if not math.isfinite(sigma):
        raise NumericalFailure(f"epsilon {epsilon:g} and delta {delta:g} ask for more noise than numbers can say")
    return Certificate(epsilon, delta, sigma, max(radii), "all models", "printed")


def _certify(
    model: FlatModel,
    noiseless: Tensor,
    deletion: Deletion,
    config: DU,
    epsilon: float,
    delta: float,
    budget: float | None,
    constants: Constants | None,
    members: int,
) -> Certificate:
    """The budget rule: sigma from the budget, and a release only if the measured radius is within it."""
    assert budget is not None
    sigma = gaussian_sigma(budget, epsilon=epsilon, delta=delta)
    lam, weights = strong_convexity(model), _weights(deletion.kept, config.objective)
    different = noiseless if config.own_models else noiseless[:1]
    radii = [float(retained_gradient(model, w, deletion.kept, weights).norm()) / lam for w in different]
    together = config.noise == "independent"  # the tuple of models is one vector with noise in every coordinate
    radius = math.hypot(*radii) if together else max(radii)
    if radius > budget:
        raise CertificateViolation(
            f"the unlearned model may be {radius:.3g} from retraining, budget allows {budget:.3g}, "
            f"so ({epsilon:g}, {delta:g}) cannot be certified at sigma {sigma:.3g}: retrain, or raise budget"
        )
    covers = "model" if config.own_models and not together else "all models"
    return Certificate(epsilon, delta, sigma, radius, covers)
