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
same noise to every model, whose differences stay bare (D1). `form="corrected"`, the default, is Newton's method
on what retraining minimises, f_r = sum_i a_i f_i over what is retained, from the mean of all models x_0:

    g_k = grad f_r(x_k)                                  a sum over clients
    p_k = -H_r(x_k)^-1 g_k                               conjugate gradient: a sum per product
    x_{k+1} = x_k + t_k p_k                              t_k: 1, halved until |g_{k+1}| < |g_k|
    until |g_k| / lambda <= budget                       the distance to retraining, at most (D6)
    x~ = x_k + N(0, sigma^2 I)                           one model, published by all

On quadratics the first step is retraining. At a minimiser of f = sum_c g_c, whose gradient is 0, -g_0 is what the
requesters' data alone say (gradient="forgotten"), as in the paper's step; models that are not quite there, because
clients differ or training stopped, have more to undo. The certificate is measured, not assumed: a model is released
only if |grad f_r(x^)| / lambda is within the budget sigma was chosen for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fu_core.errors import (
    InvalidRequest,
    NumericalFailure,
    check_choice,
    check_count,
    check_not_negative,
    check_positive,
)
from fu_core.federation.decentralised import check_nodes, start
from fu_core.federation.federation import Federation
from fu_core.federation.flood import flood
from fu_core.request import Deletion
from fu_core.unlearning.certificate import Certificate, Privacy, claimed, measured, residual_radius
from fu_core.unlearning.du_steps import Network, Step, newton, printed_messages
from fu_core.unlearning.method import Trained, register
from fu_core.unlearning.needs import Needs
from fu_core.unlearning.newton import CURVATURES
from fu_core.unlearning.noise import Draw
from fu_core.unlearning.sums import as_float64

FORMS = ("corrected", "printed")
OBJECTIVES = ("clients", "samples")
GRADIENTS = ("retained", "centred", "forgotten")
NOISES = ("consensus", "first", "shared", "independent")
SUMS = ("tree", "flood")
CLOSE = 0.01  # DU iterated: how far, at most, from the minimum of what is retained (in parameters, by the gradient)
NEEDS = Needs(full_participation=True)  # a message must reach everybody who stays


@dataclass(frozen=True)
class DU:
    """How to forget. None means: what the chosen `form` does.

    gradient: what a corrected step starts from. "retained", -grad f_r, needs nothing of how the models came about, and
    can be repeated; "centred", grad f - grad f_r, is what deleting changes about the gradient; "forgotten" is that at a
    minimiser of f, where the requesters can tell it by themselves, and wrong elsewhere.
    noise: "consensus", corrected: models are averaged first and all publish one; "first": the average gets the noise
    before anything is computed with it, so that every later message is covered; "shared", as printed: the same added to
    models that differ; "independent": everybody its own.
    """

    form: str = "corrected"
    curvature: str = "hessian"  # or "ggn", "fisher" (Eq. 7), "diagonal_fisher"; see fu_core.unlearning.newton
    whose: str | None = None  # curvature: "global" corrected, "local" as printed
    objective: str = "clients"  # f = mean of the f_i, Eq. (1), or of all "samples", as rounds of one epoch train
    gradient: str | None = None  # "retained" corrected; the printed form knows nothing but the forgotten
    steps: int = 20  # of Newton at most, where there is a radius to come within; one without
    until: float | None = None  # |grad f_r| / lambda to come within; a certificate's budget
    noise: str | None = None
    weight: float | None = None  # of the summed messages: 1 corrected, 1 / N as printed
    damping: float = 0.0
    cap: float | None = None  # the applied correction is at most cap |x| long
    curvature_samples: int | None = None  # curvature from a random sample of so many; None: all, exact
    dense_up_to: int = 5000  # parameters: beyond it, conjugate gradient instead of a matrix
    iters: int = 200  # of conjugate gradient, at most
    tol: float = 1e-10  # and its relative residual
    sums: str = "tree"  # over clients: up and down a spanning tree, or everybody floods its part
    capacity: int | None = None  # zeta (Remark 2): how many samples may be deleted in one request

    def __post_init__(self) -> None:
        check_choice("form", self.form, FORMS)
        check_choice("curvature", self.curvature, CURVATURES)
        check_choice("objective", self.objective, OBJECTIVES)
        check_choice("sums", self.sums, SUMS)
        for name, known in (("whose", ("global", "local")), ("gradient", GRADIENTS), ("noise", NOISES)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), known)
        for name in ("weight", "cap", "until"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        for name in ("damping", "tol"):
            check_not_negative(name, getattr(self, name))
        for name in ("steps", "iters"):
            check_count(name, getattr(self, name))
        check_count("dense_up_to", self.dense_up_to, least=0)
        for name in ("curvature_samples", "capacity"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.form == "printed" and self.gradient not in (None, "forgotten"):
            raise ValueError(f"gradient={self.gradient!r} has no meaning in the printed form")
        if self.form == "printed" and self.until is not None:
            raise ValueError("until has no meaning in the printed form, which takes one step")
        if self.form != "printed" and self.gradient != "forgotten" and self.whose == "local":
            raise ValueError("whose='local' needs gradient='forgotten': the parts of others belong to no requester")
        if self.repeats and self.gradient in ("forgotten", "centred"):
            raise ValueError(f"until needs gradient='retained': another step from {self.gradient!r} would go nowhere")
        if self.noise == "first" and (self.form == "printed" or self.gradient in ("forgotten", "centred")):
            raise ValueError("noise='first' needs the corrected form and gradient='retained', which starts anywhere")

    @property
    def repeats(self) -> bool:
        """Is there a radius to come within?"""
        return self.until is not None

    @property
    def starts_from(self) -> str:
        """The gradient of a corrected step, one of GRADIENTS."""
        return self.gradient or "retained"

    @property
    def own_models(self) -> bool:
        """Does every client correct a model of its own, or all the average?"""
        return (self.noise or ("shared" if self.form == "printed" else "consensus")) not in ("consensus", "first")

    def factor(self, clients: int) -> float:
        """What the summed messages are multiplied with, among so many clients."""
        return self.weight or (1 / clients if self.form == "printed" else 1.0)


@dataclass(frozen=True)
class Release:
    """What every staying client publishes, and how it came about.

    models (K, d), rows in the order of `ids`; noiseless (K, d): the same before noise, never to be released (of
    noise="first", whose noise came first, the models themselves); messages: what clients flood at first (d,), as
    printed a requester's x_c^Delta, corrected what each who holds one adds to what is solved for; scale: how much `cap`
    shortened the correction; hops as in `flood`; sums: how many vectors were summed over all clients; sigma: standard
    deviation of the noise in each model; steps: of Newton, none as printed; noisy_start (d,): of noise="first", what
    everybody begins at, the first that all may see.
    """

    models: Tensor
    ids: list[int]
    noiseless: Tensor
    messages: dict[int, Tensor]
    sigma: float
    scale: float
    hops: np.ndarray
    certificate: Certificate | None
    sums: int = 0
    steps: tuple[Step, ...] = ()
    noisy_start: Tensor | None = None


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

    Random: noise, fresh for every release that has a certificate (see `Privacy`).

    Raises ValueError for shapes that do not fit, TopologyError for a graph of others, InvalidRequest beyond
    `config.capacity`, NumericalFailure where damping is missing, CertificateViolation where the measured radius exceeds
    the budget: nothing may be released then.
    """
    privacy, Q, W = privacy or Privacy(), f.peers.Q, W.detach()
    if W.shape != (len(f.ids), f.model.d) or len(Q) != len(f.ids):
        raise ValueError(
            f"W must be ({len(f.ids)}, {f.model.d}) and Q square with as many rows, one per client, "
            f"got {tuple(W.shape)} and {tuple(Q.shape)}"
        )
    check_nodes(f)
    if config.capacity is not None and deletion.m > config.capacity:
        raise InvalidRequest(f"capacity: {deletion.m} samples are to be deleted, but zeta allows {config.capacity}")
    privacy.check(f.model, config.form)
    if config.noise == "first":
        return _after_noise(f, W, deletion, config, privacy)
    if plain is None:
        plain = _without_noise(f, W, deletion, within(config, privacy))
    certificate, sigma = None, privacy.sigma
    if privacy.epsilon is not None:
        certificate = _certificate(f, plain, deletion, config, privacy)
        sigma = certificate.sigma
    if sigma and config.form == "corrected" and config.noise != "independent":
        Network(f, config.sums, W[0]).everywhere()  # the requesters' noise; as printed it rides on the messages
    noise = _noise(plain, sigma, deletion, config, privacy.draw(f.seed)) if sigma else torch.zeros_like(plain.noiseless)
    return replace(plain, models=plain.noiseless + noise, sigma=sigma, certificate=certificate)


def within(config: DU, privacy: Privacy) -> DU:
    """The same, with Newton's steps repeated until a certificate's budget is met, where they can be."""
    if privacy.budget is None or config.repeats or config.form == "printed" or config.starts_from != "retained":
        return config
    if config.own_models:  # of which the mean's radius says nothing
        return config
    return replace(config, until=privacy.budget)


@register("DU", paper="Certified DFL", colour="#b22222", parameters=DU, needs=NEEDS,
          exchanges=("peers",), recovers=False)  # fmt: skip
@register("DU printed", paper="Certified DFL", colour="#f2a07b", dash="--", parameters=DU, preset={"form": "printed"},
          needs=NEEDS, exchanges=("peers",), recovers=False)  # fmt: skip
@register("DU iterated", paper="Certified DFL", colour="#7a0f3c", dash=":", parameters=DU, preset={"until": CLOSE},
          needs=NEEDS, exchanges=("peers",), recovers=False)  # fmt: skip
def serve(trained: Trained, deletion: Deletion, config: DU) -> Tensor:
    """The step itself, without noise, so that nothing is certified (`du_release` with `Privacy` is).

    Notes: step, its length beside the mean model's; scale and hops of `Release`.
    """
    f, W = trained.horizontal, trained.model
    release = du_release(f, W, deletion, config)
    before, after = W[[f.ids.index(i) for i in release.ids]].mean(dim=0), release.noiseless.mean(dim=0)
    trained.notes["step"] = float((after - before).double().norm() / before.double().norm())
    trained.notes["scale"] = release.scale
    trained.notes["hops"] = int(release.hops.max())
    trained.notes["sums"] = release.sums
    if release.steps:
        trained.notes["steps"] = len(release.steps)
        trained.notes["gradient_left"] = release.steps[-1].after / release.steps[0].before
    return release.models


# --- the correction --------------------------------------------------------------------------------------------------


def _without_noise(f: Federation, W: Tensor, deletion: Deletion, config: DU) -> Release:
    """The messages, what they add up to, and everybody's model once they have arrived."""
    mean, network = W.mean(dim=0), Network(f, config.sums, W[0])
    if config.own_models:
        points = dict(zip(f.ids, W, strict=True))
    else:
        points = dict.fromkeys(f.ids, mean)
        network.everywhere()  # the mean of all models

    steps: tuple[Step, ...] = ()
    if config.form == "printed":
        messages = printed_messages(f, points, deletion, config, network)
        combined = torch.stack(list(messages.values())).sum(dim=0)
    else:
        messages, combined, steps = newton(f, mean, deletion, config, network)
    spread = flood(f.peers.Q, [f.ids.index(c) for c in deletion.forgotten])
    if config.form == "printed" or config.whose == "local":  # solutions, which everybody adds; gradients were summed
        f.meter.send(mean, up=spread.messages)

    correction = config.factor(len(f.ids)) * combined
    scale = _shrink(correction, mean, config.cap)
    staying = [i for i in f.ids if i in deletion.kept]
    noiseless = torch.stack([points[i] for i in staying]) + scale * correction
    if not bool(noiseless.isfinite().all()):
        raise NumericalFailure(f"the unlearned models are not finite; raise damping (now {config.damping:g})")
    return Release(noiseless, staying, noiseless, messages, 0.0, scale, spread.hops, None, network.sums, steps)


def _shrink(correction: Tensor, x: Tensor, cap: float | None) -> float:
    length = float(correction.norm())
    return 1.0 if cap is None or not length else min(1.0, cap * float(x.norm()) / length)


# --- the noise -------------------------------------------------------------------------------------------------------


def _certificate(f: Federation, plain: Release, deletion: Deletion, config: DU, privacy: Privacy) -> Certificate:
    """The printed form is taken at its word; the corrected one is measured, at every model that is different."""
    if config.form == "printed":
        return claimed(privacy, deletion, config.factor(len(f.ids)))
    same = bool((plain.noiseless == plain.noiseless[:1]).all())
    if not config.own_models and not same:
        raise ValueError("plain must be of the same config: its models differ, but everybody is to publish one")
    different = plain.noiseless if config.own_models else plain.noiseless[:1]
    radii = _radii(f, different, deletion, config)
    if config.noise == "independent":  # the tuple of models is one vector with noise in every coordinate
        return measured(privacy, math.hypot(*radii), "all models")
    return measured(privacy, max(radii), "model" if config.own_models else "all models")


def _radii(f: Federation, models: Tensor, deletion: Deletion, config: DU) -> list[float]:
    """How far each of the `models` (K, d) can be from retraining: in float64, whatever they and the samples are in."""
    wide = replace(deletion, kept={i: (as_float64(x), y) for i, (x, y) in deletion.kept.items()})
    return [residual_radius(f.model, w.double(), wide, objective=config.objective) for w in models]


def _noise(plain: Release, sigma: float, deletion: Deletion, config: DU, draw: Draw) -> Tensor:
    """(K, d): everybody the same, as flooded messages carry it, or everybody its own."""
    like = plain.noiseless[0]
    if config.noise == "independent":
        return sigma * torch.stack([draw.normal("client", i, like) for i in plain.ids])
    share = sigma / math.sqrt(len(deletion.forgotten))  # each requester adds its part, which makes sigma together
    parts = [draw.normal("message", c, like) for c in deletion.forgotten]
    return (share * torch.stack(parts).sum(dim=0)).expand_as(plain.noiseless)


def _after_noise(f: Federation, W: Tensor, deletion: Deletion, config: DU, privacy: Privacy) -> Release:
    """Noise first, x_0 + N(0, sigma^2 I), then Newton's steps: all that is sent from here on depends on nothing else.

    Every client adds its part, so large that it is still sigma where one client knows its own. In world B the retrained
    model gets the same noise, and the same steps follow: they are post-processing.
    """
    x, n = W.mean(dim=0), len(f.ids)
    certificate, sigma = None, privacy.sigma
    if privacy.epsilon is not None:
        # the mean of squares bounds the mean's own, and what the parts of its sum could tell where models differ
        radii = _radii(f, W, deletion, config)
        f.meter.images += n * (deletion.n - deletion.m)  # a retained gradient at everybody's model, each summed once
        Network(f, config.sums, x).everywhere(vectors=n)
        certificate = measured(privacy, math.hypot(*radii) / math.sqrt(n), "all models", against="messages")
        sigma = certificate.sigma
    draw, share = privacy.draw(f.seed), sigma / math.sqrt(max(n - 1, 1))
    noise = share * torch.stack([draw.normal("start", i, x) for i in f.ids]).sum(dim=0)
    released = _without_noise(f, start(x + noise, n), deletion, config)
    return replace(released, sigma=sigma, certificate=certificate, noisy_start=x + noise)
