"""Certified removal (Guo et al., ICML 2020): secret noise in the objective, and one Newton step per request.

    L_b(w) = sum_i l(w; x_i) + (lambda n / 2) |w|^2 + b'w,   b ~ N(0, sigma^2 I) drawn once and kept secret
    a = m lambda w + sum_U grad l(w)                         what U adds to the gradient
    w <- w + H^-1 a                                          H: Hessian of L_b without U, at the current w; b drops out

The gradient that is left is bounded, |grad L_b(w; D')| <= sum of all beta so far, with X the retained features:

    printed    beta = gamma R |X|_2 |v| |X v|                gamma = 1/4 of the logistic loss, R = 1 >= |x|
    tight      half of it, with the true Lipschitz constant of l'': 1 / (6 sqrt 3); 1 / sqrt 2 of softmax's Hessian

(epsilon, delta) holds while sum beta <= sigma epsilon / c with c = sqrt(2 ln(1.5 / delta)), and for large epsilon,
where that is more than a mere shift of b may be, while it is at most that; beyond it a new b and a new training are
due. To beta we add what the paper takes for zero: the gradient at which training stopped, and the residual of the
linear system. Everybody who computes knows w; the certificate is about those who see no more than the model, and b must
stay with somebody who shows it to nobody. Where b'w bends the model far, beta grows with sigma, too: the budget is not
for sale. That a request is served at all depends on the data, a bit that no epsilon covers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fu_core.errors import CertificateViolation, UnsupportedModel, check_choice, check_count, check_positive
from fu_core.federation.federation import Federation
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma, gdp_epsilon
from fu_core.unlearning.krylov import solve
from fu_core.unlearning.noise import Noise
from fu_core.unlearning.released import Clock, Released, caveats, check_before, check_guarantee, draw_of
from fu_core.unlearning.sums import BesideZero, Bounds, Sums, as_linear, bare_linear, loss_bounds, minimise

BOUNDS = ("tight", "printed")
HEADS = ("softmax", "one-vs-rest")
PRINTED_GAMMA = 0.25
UNSOLVED = "what a removal leaves of its linear system depends on the secret b"
ROUNDING = 1e-4  # of sigma: a gradient that training leaves and that is taken for a part of b


@dataclass(frozen=True)
class Removal:
    """sigma: of b, per coordinate, chosen before training: it is what the residuals of all requests may use up.

    heads: "one-vs-rest" trains a logistic regression per class, each with a b of its own, and adds their residuals up;
    bound: of a removal's residual; tol, most: gradients |grad L_b| / n at which training stops, and how many at most;
    cg_tol: relative residual at which the linear system of a removal counts as solved. What is left of it spends the
    budget, and depends on b as an early stop does: a looser one saves products and pays for them there.
    What stops far from the minimum depends on b in another way than the minimum does: its certificate is nominal.
    """

    sigma: float = 10.0  # MNIST 3 against 8, SVHN
    epsilon: float = 1.0
    delta: float = 1e-5
    heads: str = "softmax"
    bound: str = "tight"
    tol: float = 1e-10
    most: int = 20_000
    cg_tol: float = 1e-12
    bounds: Bounds | None = None  # of the loss; None: as proved, or as seen in the data

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)
        check_guarantee(self.epsilon, self.delta)
        check_choice("heads", self.heads, HEADS)
        check_choice("bound", self.bound, BOUNDS)
        check_positive("tol", self.tol)
        check_positive("cg_tol", self.cg_tol)
        check_count("most", self.most)

    @property
    def budget(self) -> float:
        """What the residuals may add up to: sigma epsilon / c (Guo et al., Theorem 3).

        Beyond epsilon of about 9 at delta 1e-5 that formula, as the classical one of Gaussian noise, is not true.
        """
        printed = self.sigma * self.epsilon / math.sqrt(2 * math.log(1.5 / self.delta))
        return min(printed, self.shifted_budget)

    def epsilon_for(self, spent: float) -> float:
        """The least epsilon whose budget `spent` does not exceed, at this delta."""
        printed = spent / self.sigma * math.sqrt(2 * math.log(1.5 / self.delta))
        return max(printed, gdp_epsilon(spent / self.sigma, self.delta))

    @property
    def shifted_budget(self) -> float:
        """What they might be if a residual were nothing but a shift of b: sigma mu(epsilon, delta). Not claimed."""
        return self.sigma / gaussian_sigma(1.0, epsilon=self.epsilon, delta=self.delta)


@dataclass(frozen=True, eq=False)
class Perturbed:
    """A model trained for removals. w (d,), b (d,): head after head; spent: residuals so far, of `config.budget`;
    n: samples that it knows."""

    config: Removal
    w: Tensor
    b: Tensor
    spent: float
    nominal: str
    n: int


def prepare(f: Federation, config: Removal, noise: Noise | None = None) -> Perturbed:
    """Train on everybody's data with b in the objective, from zero. Random: b. Raises CertificateViolation for a
    training that spends the budget already."""
    b = config.sigma * draw_of(noise).normal("objective", 0, torch.zeros(f.model.d, dtype=torch.float64))
    w, residual, reasons = perturbed_minimum(f, b, config)
    _check_budget(residual, config)
    n = Sums(f).n
    if n * config.tol > ROUNDING * config.sigma:
        reasons.append(f"training stops at gradients up to {n * config.tol:.3g}, which depend on the secret b")
    return Perturbed(config, w, b, residual, caveats(*reasons, noise=noise), n)


def perturbed_minimum(f: Federation, b: Tensor, config: Removal) -> tuple[Tensor, float, list[str]]:
    """argmin L_b (d,) over the samples of f, |grad L_b| where the search stopped, and why its bounds are nominal."""
    heads, found, residual, reasons = _heads(f, config), [], 0.0, set()
    for head, b_h in zip(heads, b.split(len(b) // len(heads)), strict=True):
        bounds = _bounds(head, f.model, config)
        w, left = _trained(Sums(head), b_h, bounds, config)
        found.append(w)
        residual += left
        reasons.add(bounds.nominal)
    return torch.cat(found), residual, sorted(reasons)


def _trained(sums: Sums, b: Tensor, bounds: Bounds, config: Removal) -> tuple[Tensor, float]:
    """One head (d,), and |grad L_b| there."""
    l2, n = sums.f.model.l2, sums.n

    def gradient(w: Tensor) -> Tensor:
        return sums.gradient(w) + b / n  # grad L_b / n

    smoothness = bounds.curvature + l2
    w, left = minimise(
        gradient, torch.zeros_like(b), smoothness=smoothness, convexity=l2, tol=config.tol, most=config.most
    )
    return w, n * left


def release(f: Federation, prepared: Perturbed, deletion: Deletion, noise: Noise | None = None) -> Released:
    """The model after one Newton step per head. Deterministic: `noise` was drawn in training and is not asked for here.

    f: the federation before the request. Raises CertificateViolation once the residuals exceed the budget.
    """
    config, clock = prepared.config, Clock.start(f.meter)
    check_before(f, prepared.n)
    rest, gone = _heads(f.after(deletion), config), _heads(f.having(clients=deletion.forgotten), config)
    after, spent, unsolved = [], prepared.spent, 0.0
    for kept, lost, w in zip(rest, gone, prepared.w.split(len(prepared.w) // len(rest)), strict=True):
        v, beta, left = _newton(Sums(kept), Sums(lost, kept), w, _bounds(kept, f.model, config), config)
        after.append(w + v)
        spent, unsolved = spent + beta + left, unsolved + left
    _check_budget(spent, config)
    w, n = torch.cat(after), Sums(rest[0]).n
    passes, vectors = clock.spent(n, w)
    nominal = prepared.nominal
    if unsolved > ROUNDING * config.sigma and UNSOLVED not in nominal:
        nominal = caveats(nominal, UNSOLVED, noise=None)
    return Released(
        w, None, config.sigma, config.epsilon, config.delta, spent / (f.model.l2 * n), nominal,
        passes, vectors, replace(prepared, w=w, spent=spent, n=n, nominal=nominal),
    )  # fmt: skip


def _newton(kept: Sums, gone: Sums, w: Tensor, bounds: Bounds, config: Removal) -> tuple[Tensor, float, float]:
    """v = H^-1 a, and what this removal adds to |grad L_b(w; D')|: beta, and what is left of the system."""
    a = gone.n * gone.gradient(w)  # m lambda w + sum_U grad l(w)
    product, n = kept.product(w), kept.n
    v = solve(product, a / n, iters=len(w), damping=0.0, tol=config.cg_tol).v
    unsolved = n * float((product(v) - a / n).norm())
    return v, residual_bound(kept, v, bounds, config.bound), unsolved


def residual_bound(kept: Sums, v: Tensor, bounds: Bounds, bound: str) -> float:
    """beta: how far the gradient can be from its linearisation after a step v (d,). Guo et al., Corollary 1.

    |X|_2 by all eigenvalues of X'X: power iterations come from below, and bound nothing.
    """
    check_choice("bound", bound, BOUNDS)
    if bounds.third == 0:
        return 0.0
    f = kept.f
    rows = [f.model.logits(v, f.clients[i][0])[:, -_outputs(f) :] for i in f.ids]  # X v (n_i, outputs)
    moved = math.sqrt(sum(float(row.square().sum()) for row in rows))
    spectral = math.sqrt(float(torch.linalg.eigvalsh(kept.gram())[-1].clamp(min=0)))
    gamma = PRINTED_GAMMA if bound == "printed" else bounds.third / bounds.radius**3 / 2  # Taylor gives the half
    return gamma * bounds.radius * spectral * float(v.norm()) * moved


def worst_case(m: int, n: int, l2: float, *, bound: str = "printed") -> float:
    """Residual of removing m of n samples at once, logistic loss, |x| <= 1: 4 gamma m^2 / (lambda^2 (n - m))."""
    check_choice("bound", bound, BOUNDS)
    gamma = PRINTED_GAMMA if bound == "printed" else 1 / (6 * math.sqrt(3)) / 2
    return 4 * gamma * m**2 / (l2**2 * (n - m))


def _heads(f: Federation, config: Removal) -> list[Federation]:
    """The linear problems to be solved: one, or one against the rest per class."""
    linear = as_linear(f)
    layer = linear.model.only_layer()
    assert isinstance(layer, nn.Linear)
    if linear.model.task == "classification" and layer.bias is not None:
        raise UnsupportedModel("certified removal needs a layer without a bias: give the samples a feature that is 1")
    if config.heads == "softmax":
        return [linear]
    if linear.model.task != "classification" or layer.out_features < 2:
        raise UnsupportedModel("heads='one-vs-rest' needs classification with an output per class")
    one = FlatModel(nn.Sequential(bare_linear(layer.in_features, 1, bias=False), BesideZero()), l2=linear.model.l2)
    return [
        linear.having(model=one, clients={i: (x, (y == c).long()) for i, (x, y) in linear.clients.items()})
        for c in range(layer.out_features)
    ]


def _outputs(f: Federation) -> int:
    layer = f.model.only_layer()
    assert isinstance(layer, nn.Linear)
    return layer.out_features


def _bounds(head: Federation, original: FlatModel, config: Removal) -> Bounds:
    if config.bounds is not None:
        return config.bounds
    bounds = loss_bounds(head, original)
    if config.bound == "printed" and (_outputs(head) > 1 or bounds.radius > 1 + 1e-9):
        raise UnsupportedModel("bound='printed' is proved for logistic losses of features of length <= 1: take 'tight'")
    return bounds


def _check_budget(spent: float, config: Removal) -> None:
    if spent > config.budget:
        raise CertificateViolation(
            f"the gradient left by all removals may be {spent:.3g}, sigma {config.sigma:g} allows {config.budget:.3g} "
            f"at epsilon {config.epsilon:g} and delta {config.delta:g}: train again with a new b, "
            "with more l2, or with another sigma"
        )
