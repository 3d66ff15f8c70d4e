"""What a release guarantees: the noise that is asked for, and the certificate that it earns.

The certificate of DU is measured, not assumed. With f_r = sum_i a_i f_i over what is retained, lambda-strongly convex,

    |x^ - x'| <= |grad f_r(x^)| / lambda                 the residual radius of a model x^, x' the minimiser (errata D6)

and a model is released with N(0, sigma^2 I) only if its radius is within the budget sigma was chosen for. The paper's
own calibration takes Lemma 3's bound for the sensitivity; what it gives is a claim:

    Delta F = 2 M L^2 m^2 / (lambda^3 n^2)               per requester with m of n samples, in Theorem 1's sigma
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fu_core.errors import CertificateViolation, NumericalFailure, UnsupportedModel, check_positive
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.models.flat import FlatModel, in_a_row
from fu_core.request import Deletion
from fu_core.unlearning.curvature import weighted_gradient
from fu_core.unlearning.gaussian_mechanism import check_probability, composed_mu, gaussian_sigma, gdp_epsilon
from fu_core.unlearning.noise import Draw, Noise

# --- what holds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """What is guaranteed about the released models, given that there was a release.

    Compared with retraining *to the minimiser of the retained loss* and then adding the same noise (errata D7): a
    training that stops earlier can be told apart. sigma: standard deviation of the noise in each released model;
    budget: the distance that sigma covers; covers: "all models" together, or each "model" by itself; against: who may
    see them; rehearsed: can whoever knows a number draw the noise again? Then it is for figures. radius: distance to
    retraining, as bounded by the residual (corrected) or by Lemma 3 (printed); of the corrected form a diagnostic, as
    secret as the model without noise, since world B has 0 there. `form="printed"` is the paper's claim, no guarantee.

    against="outsiders": whoever sees all models that are published from now on, and nothing else. Clients are not
    covered: they compute with sums that carry no noise, and hold the model of before, which nothing can take back; nor
    is a client that leaves with its own part of the noise. against="messages": whoever sees every message after the
    noisy start, too, any one client among them, as long as it has thrown its old model away, the start was summed under
    masks (`fu_core.federation.spanning.masked_tree_sum`), and somebody trusted has checked the budget. Not covered in
    either case: whether there was a release at all, and how many steps it took, which depend on the data.
    """

    epsilon: float
    delta: float
    sigma: float
    radius: float
    covers: str
    form: str = "corrected"
    budget: float | None = None
    against: str = "outsiders"
    rehearsed: bool = False

    @property
    def mu(self) -> float:
        """Of Gaussian differential privacy: the distance that is covered, in standard deviations of the noise."""
        covered = self.radius if self.budget is None else self.budget
        return covered / self.sigma if covered else 0.0


def composed(certificates: Sequence[Certificate], delta: float) -> float:
    """The epsilon of several releases together, at `delta`, each with fresh noise: mu^2 = sum of their mu^2.

    A release per request, or several of one. It is exact for Gaussian noise, and less than the sum of their epsilons
    (Dong, Roth and Su 2022, Corollary 3.3). Raises CertificateViolation for the printed form, whose sigma is a claim,
    and where the certificates do not cover the same against the same. Whether two rehearsed releases drew the same
    noise it cannot see: within a process `Noise` refuses to, outside `rehearsal()`.
    """
    if len({(one.covers, one.against) for one in certificates}) > 1:
        raise CertificateViolation("certificates must cover the same outputs against the same observers to be composed")
    if any(one.form == "printed" for one in certificates):
        raise CertificateViolation("certificates must be measured to be composed, but one is the printed form's claim")
    return gdp_epsilon(composed_mu(one.mu for one in certificates), delta)


def after_fine_tuning(certificate: Certificate | None) -> Certificate | None:
    """What is left of a certificate after rounds of D-PSGD on the retained data (paper, Eq. 12; errata D10).

    The rounds are the same map in both worlds if they use nothing but retained data, fresh randomness, and a
    number of rounds and a learning rate fixed beforehand: then a guarantee for all models together survives. They
    mix the models: a guarantee about each model by itself says nothing about a mixture, and is lost.
    """
    return certificate if certificate is not None and certificate.covers == "all models" else None


# --- what it takes ---------------------------------------------------------------------------------------------------


class Constants(NamedTuple):
    """Of one sample's loss: lambda-strongly convex, L-Lipschitz, with an M-Lipschitz Hessian (Assumption 2)."""

    lam: float
    L: float
    M: float

    def distance(self, m: int, n: int) -> float:
        """Lemma 2: the retrained model is at most 2 L m / (lambda n) away."""
        return 2 * self.L * m / (self.lam * n)

    def sensitivity(self, m: int, n: int) -> float:
        """Lemma 3 and the input of Algorithm 1: Delta F = 2 M L^2 m^2 / (lambda^3 n^2)."""
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


@dataclass(frozen=True)
class Privacy:
    """The noise of a release, or the guarantee from which it follows.

        Privacy(sigma=0.1)                                             noise, and no certificate
        Privacy(epsilon=1.0, delta=1e-5, budget=0.01)                  the corrected form's: measured
        Privacy(epsilon=1.0, delta=1e-5, constants=Constants(...))     the printed form's: claimed

    sigma: standard deviation of the noise in each model; budget: the largest distance to retraining that the noise is
    to cover; constants: of the loss, see `softmax_constants`; noise: where it comes from, fresh for every release by
    default. Noise without a guarantee, `sigma`, is drawn from the federation's seed.
    """

    sigma: float = 0.0
    epsilon: float | None = None
    delta: float = 1e-5
    budget: float | None = None
    constants: Constants | None = None
    noise: Noise | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.sigma < math.inf:
            raise ValueError(f"sigma must be >= 0, got {self.sigma}")
        if self.epsilon is None:
            if self.budget is not None or self.constants is not None:
                raise ValueError("budget and constants belong to a certificate: give epsilon, too")
            return
        if self.sigma:
            raise ValueError(
                f"give epsilon, from which sigma follows, or sigma, not both; got {self.epsilon} and {self.sigma}"
            )
        check_positive("epsilon", self.epsilon)
        check_probability("delta", self.delta)
        if (self.budget is None) == (self.constants is None):
            raise ValueError(
                "a certificate needs budget, the distance to retraining that the noise is to cover, or, for the "
                "printed form, constants: lambda, L and M (see softmax_constants); "
                f"got {'neither' if self.budget is None else 'both'}"
            )
        if self.budget is not None:
            check_positive("budget", self.budget)

    def draw(self, seed: int) -> Draw:
        """The noise of one release; without a guarantee and a source of its own that of `seed`, again and again."""
        if self.noise is not None:
            return self.noise.draw()
        return Draw(seed, 0) if self.epsilon is None else Noise().draw()

    def check(self, model: FlatModel, form: str) -> None:
        """Refuse what cannot be certified before anything is computed: a loss that is not convex, the other form."""
        if self.epsilon is None:
            return
        strong_convexity(model)
        if form == "printed" and self.constants is None:
            raise ValueError("the printed certificate needs constants: lambda, L and M (see softmax_constants)")
        if form != "printed" and self.budget is None:
            raise ValueError("a certificate needs budget: the distance to retraining that the noise is to cover")


def measured(privacy: Privacy, radius: float, covers: str, against: str = "outsiders") -> Certificate:
    """The budget rule: sigma from the budget, and a release only if the measured radius is within it."""
    epsilon, delta, budget = privacy.epsilon, privacy.delta, privacy.budget
    assert epsilon is not None
    assert budget is not None
    sigma = gaussian_sigma(budget, epsilon=epsilon, delta=delta)
    if not radius <= budget:  # nor if it is NaN
        raise CertificateViolation(
            f"the unlearned model may be {radius:.3g} from retraining, budget allows {budget:.3g}, "
            f"so ({epsilon:g}, {delta:g}) cannot be certified at sigma {sigma:.3g}: retrain, or raise budget"
        )
    rehearsed = privacy.noise is not None and privacy.noise.rehearsed is not None
    return Certificate(epsilon, delta, sigma, radius, covers, budget=budget, against=against, rehearsed=rehearsed)


def claimed(privacy: Privacy, deletion: Deletion, weight: float) -> Certificate:
    """The paper's calibration: sigma_c per message, which `weight` scales, so weight |(sigma_c)_c| in each model."""
    epsilon, delta, constants = privacy.epsilon, privacy.delta, privacy.constants
    assert epsilon is not None
    assert constants is not None
    radii = [constants.sensitivity(len(gone[1]), len(deletion.clients[c][1])) for c, gone in deletion.forgotten.items()]
    per_message = [gaussian_sigma(radius, epsilon=epsilon, delta=delta, mechanism="classical") for radius in radii]
    sigma = weight * math.hypot(*per_message)
    if not math.isfinite(sigma):
        raise NumericalFailure(f"epsilon {epsilon:g} and delta {delta:g} ask for more noise than numbers can say")
    return Certificate(epsilon, delta, sigma, max(radii), "all models", "printed")


# --- how far a model is from retraining ------------------------------------------------------------------------------


SIZES = (1.0, 1e-6, 1e-3, 10.0, 1e3, 1e6, 1e9)  # of models and features: what is cut off, or left out near zero, shows


def is_convex(model: FlatModel) -> bool:
    """Is the loss convex in w: one linear layer, called once, and nothing that does not keep its outputs affine in w?

    nn.Linear itself, without hooks or parametrisations, whatever else may be called linear. A module behind the layer
    must say so of itself (`affine = True`). What a container of somebody else's does is looked at, not proved: on
    random features of many sizes, outputs at points on a line of models must lie on a line, too.
    """
    linear, modules = model.only_layer(), list(model.module.modules())
    leaves = [one for one in modules if not list(one.children())]
    if any(one._forward_hooks or one._forward_pre_hooks for one in modules):
        return False
    if type(linear) is not nn.Linear or model.task not in ("classification", "regression"):
        return False
    if not all(getattr(one, "affine", False) is True for one in leaves[leaves.index(linear) + 1 :]):
        return False
    plain = all(type(one) is nn.Sequential for one in modules if list(one.children()))
    return sum(layer is linear for layer in in_a_row(model.module)) == 1 if plain else _is_affine(model, linear)


def _is_affine(model: FlatModel, linear: nn.Linear) -> bool:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(16, linear.in_features, generator=g, dtype=torch.float64)
    a, b = torch.randn(2, model.d, generator=g, dtype=torch.float64)
    for size, scale in itertools.product(SIZES, SIZES):
        try:
            with torch.no_grad():
                start, end, beyond = (model.logits(size * (a + t * (b - a)), scale * x) for t in (0.0, 1.0, -3.0))
        except (RuntimeError, ValueError, TypeError, IndexError):  # it does not take features
            return False
        expected = start - 3 * (end - start)
        if not float((beyond - expected).abs().max()) <= 1e-9 * float(expected.abs().max()):  # nor if it is NaN
            return False
    return True


def strong_convexity(model: FlatModel) -> float:
    """lambda: the model's l2, if its loss is convex. Raises UnsupportedModel where there is nothing to certify."""
    if not is_convex(model):
        raise UnsupportedModel(
            "a certificate needs a convex loss: classification or regression by one linear layer, called once, whose "
            "outputs nothing bends; a module behind it that keeps them affine in w must say `affine = True`"
        )
    if model.l2 <= 0:
        raise UnsupportedModel(f"a certificate needs strong convexity: l2 must be > 0, got {model.l2}")
    return model.l2


def retained_weights(kept: Mapping[int, Client], objective: str) -> dict[int, float]:
    """a_i of the retained objective: equal for all "clients", or by "samples"."""
    sizes = {i: len(y) if objective == "samples" else 1 for i, (_, y) in kept.items()}
    return {i: size / sum(sizes.values()) for i, size in sizes.items()}


def retained_gradient(
    model: FlatModel, w: Tensor, deletion: Deletion, *, objective: str = "clients", meter: Meter | None = None
) -> Tensor:
    """grad f_r(w) (d,), summed over the retaining clients with their weights a_i."""
    weights = retained_weights(deletion.kept, objective)
    parts = [(weights[i], data) for i, data in deletion.kept.items()]
    return weighted_gradient(model, w, parts, count=(meter or Meter()).train)


def residual_radius(model: FlatModel, w: Tensor, deletion: Deletion, *, objective: str = "clients") -> float:
    """|grad f_r(w)| / lambda: no minimiser of the retained objective is farther away than this (errata D6).

    Deterministic. Raises UnsupportedModel unless the loss is strongly convex.
    """
    lam = strong_convexity(model)
    return float(retained_gradient(model, w, deletion, objective=objective).norm()) / lam
