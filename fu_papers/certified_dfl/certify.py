"""What a certificate costs: releases under the budget rule, and under the printed calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.local import Client
from fu_core.federation.meter import Meter
from fu_core.request import Deletion
from fu_core.streams import stream, stream_seed
from fu_core.unlearning.certificate import Certificate, Privacy, composed, residual_radius, softmax_constants
from fu_core.unlearning.du import DU, Release, du_release, within
from fu_core.unlearning.noise import Noise, rehearsal
from fu_papers.certified_dfl import runs
from fu_papers.certified_dfl.curve import newly_asked
from fu_papers.certified_dfl.runs import EXACT_KEYS, TRAINING_KEYS, federation
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, run_function
from fu_papers.problems import data_hash, problem


def needs(config: Mapping[str, Any]) -> Needs:
    """The original training, and what retraining aims at once each request is served."""
    training = {key: config[key] for key in TRAINING_KEYS}
    found: dict[str, Any] = {"original": (runs.train, {**training, "request": "none"})}
    for request in config["requests"]:
        found[request] = (runs.exact, {**{key: config[key] for key in EXACT_KEYS}, "request": request})
    return found


@dataclass(frozen=True)
class Asked:
    """A request as it comes: who is there, with a meter for it; everybody's model (K, d); what goes; the exact model.

    exact (d,): the minimiser of what is then retained, world B before its noise (errata D6, D7); draws: of noise in
    either world, behind every accuracy with noise; named: seed, cell and request, whose noise in world B is their own.
    """

    f: Federation
    W: Tensor
    deletion: Deletion
    exact: Tensor
    test: Client
    draws: int
    named: tuple[int | str, ...]

    def measured(self, plain: Release) -> dict[str, Any]:
        """The models without noise: what they are worth, how far they are from exact retraining, what they took."""
        x, x_o, meter = plain.noiseless.mean(dim=0), self.W.mean(dim=0), self.f.meter
        return {
            "steps": [step._asdict() for step in plain.steps],
            "sums": plain.sums,
            "images": meter.images,
            "products": meter.products,
            "bytes": meter.bytes,
            "radius": residual_radius(self.f.model, x.double(), self.deletion, objective="samples"),
            "radius_before": residual_radius(self.f.model, x_o.double(), self.deletion, objective="samples"),
            "exact_gap": float((x - self.exact).norm() / (x_o - self.exact).norm()),
            "test": accuracy(self.f.model, x, *self.test),
            "test_before": accuracy(self.f.model, x_o, *self.test),
            "test_exact": accuracy(self.f.model, self.exact, *self.test),
        }

    def release(self, config: DU, plain: Release, privacy: Privacy) -> tuple[Certificate | None, dict[str, Any]]:
        """One release, and what is to be told of it: its noise, or why it was refused; mean accuracy over draws."""
        told: dict[str, Any] = {"epsilon": privacy.epsilon, "form": config.form}
        try:
            found = du_release(self.f, self.W, self.deletion, config, privacy, plain)
        except CertificateViolation as refused:
            return None, {**told, "released": False, "reason": str(refused)}
        assert found.certificate is not None
        released = drawn_again(
            found, self.draws, privacy, lambda same: du_release(self.f, self.W, self.deletion, config, same, plain)
        )
        seed, *names = self.named
        others = [
            stream(int(seed), "noise of world B", *names, config.form, f"{privacy.epsilon:g}", k)
            for k in range(self.draws)
        ]
        retrained = [
            self.exact + found.sigma * torch.randn(len(self.exact), generator=other, dtype=torch.float64).to(self.exact)
            for other in others
        ]
        return found.certificate, {
            **told,
            "released": True,
            "sigma": found.sigma,
            "claimed_radius": found.certificate.radius,
            "mu": found.certificate.mu,
            "test": self._accuracy([one.models.mean(dim=0) for one in released]),
            "retrained": self._accuracy(retrained),
        }

    def _accuracy(self, models: Sequence[Tensor]) -> float:
        return fmean(accuracy(self.f.model, w, *self.test) for w in models)


def drawn_again(first: Release, draws: int, privacy: Privacy, release: Callable[[Privacy], Release]) -> list[Release]:
    """A release and others of the same with noise of their own, `draws` in all: for what depends on the draw."""
    same = Privacy(sigma=first.sigma, noise=privacy.noise)  # as much noise, without another certificate
    return [first, *(release(same) for _ in range(1, draws))]


@run_function("certified_dfl.certify", data=data_hash, needs=needs)
def certify(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """The budget rule on the convex problem, requests one after the other: noise and accuracy per epsilon, or refusals.

    Noise is never fed back: each request goes on from the models of before noise, and each release draws its own. Logs
    a row per request, form and epsilon. served: what each request took; printed: the same of the printed form, whose
    calibration with its own constants is shown where the config has options for it; composed: the epsilon of all
    releases together, per epsilon of each; None if one was refused.
    """
    f, test = federation(config), problem(config).test
    W, present, earlier = context.needed("original", ["W"])["W"].to(device()), f, "none"
    du, delta, budget = DU(**config["du"]), config["delta"], config["budget"]
    served, printed = [], []
    certificates: dict[float, list[Certificate | None]] = {epsilon: [] for epsilon in config["epsilons"]}
    named = [str(config[key]) for key in ("dataset", "split", "alpha", "model", "topology")]
    with rehearsal():  # another for every release of this run, and the same when it is run again
        noise = Noise(rehearsed=stream_seed(config["seed"], "certify", *named, *config["requests"]))
        for request in config["requests"]:
            deletion = Deletion.of(present.clients, newly_asked(request, earlier, f))
            exact = context.needed(request, ["x"])["x"].to(device())
            about = (config["seed"], *named, request)
            asked = Asked(present.having(meter=Meter()), W, deletion, exact, test, config["draws"], about)
            plain = du_release(asked.f, W, deletion, within(du, Privacy(epsilon=1.0, delta=delta, budget=budget)))
            served.append({"request": request, **asked.measured(plain)})
            for epsilon, found in certificates.items():
                privacy = Privacy(epsilon=epsilon, delta=delta, budget=budget, noise=noise)
                certificate, row = asked.release(du, plain, privacy)
                found.append(certificate)
                context.log(request=request, **row)
            if config["printed"]:
                printed.append({"request": request, **_as_printed(config, asked, noise, context)})
            present, W, earlier = present.after(deletion), plain.noiseless, request
    return {
        "served": served,
        "printed": printed,
        "composed": {f"{epsilon:g}": _composed(found, delta) for epsilon, found in certificates.items()},
        "length": float(W.mean(dim=0).norm()),
        "d": f.model.d,
        "budget": budget,
        "delta": delta,
    }, None


def _composed(certificates: Sequence[Certificate | None], delta: float) -> float | None:
    given = [certificate for certificate in certificates if certificate is not None]
    return composed(given, delta) if len(given) == len(certificates) else None


def _as_printed(config: Mapping[str, Any], asked: Asked, noise: Noise, context: RunContext) -> dict[str, Any]:
    """Algorithm 1 with Theorem 1's noise, whose constants are those of the loss where the models are."""
    here = replace(asked, f=asked.f.having(meter=Meter()))
    du = DU(**config["printed"])
    plain = du_release(here.f, here.W, here.deletion, du)
    constants = softmax_constants(1.0, config["l2"], norm=float(here.W.mean(dim=0).norm()))
    for epsilon in config["epsilons"]:
        privacy = Privacy(epsilon=epsilon, delta=config["delta"], constants=constants, noise=noise)
        context.log(request=config["requests"][0], **here.release(du, plain, privacy)[1])
    return {**here.measured(plain), "constants": constants._asdict()}
