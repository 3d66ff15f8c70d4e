"""Claim D10 on whole releases, data in and noisy models out, beside releases that are known to be bad.

Every release starts from what clients hold:

    world A    everybody's data -> trained -> asked -> `du_release` under the budget rule -> certificate -> noisy models
    world B    what is kept -> its minimiser x' -> the same `du_release`, which finds nothing to undo -> noisy models

Training draws its own batches for every release ("dpsgd"), or takes the minimiser, which draws nothing and is therefore
solved once ("consensus"). Whatever is wrong between data and release shows here: training, requests, steps, refused
certificates. `theory_audit` covers the noise alone, in more forms, printed ones among them, and everywhere by a
thousand draws; where both look at the same release, models and noise agree (tested).

Planted releases are wrong on purpose, and claim what an honest one may. An audit that does not find them has no power;
they count for no claim.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation, check_choice
from fu_core.evaluation.release_audit import ALPHA, ReleaseAudit, audit_release
from fu_core.federation.decentralised import dpsgd, start
from fu_core.federation.local import ClientOpt
from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.certificate import Privacy, residual_radius
from fu_core.unlearning.du import DU, Release, du, du_release, within
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon, gaussian_sigma
from fu_core.unlearning.noise import Noise, rehearsal
from fu_papers.certified_dfl.grid import Experiment
from fu_papers.certified_dfl.theory_audit import FIRST, LARGEST_CLAIM, OUTPUTS, ROUNDING, TABLES
from fu_papers.certified_dfl.theory_canaries import HONEST as CANARY_ROWS
from fu_papers.certified_dfl.theory_canaries import configs as canary_configs
from fu_papers.certified_dfl.theory_noise import noisy_accuracy
from fu_papers.certified_dfl.theory_problems import (
    CLIENTS,
    HELD,
    SPLITS,
    Problem,
    breast_cancer,
    first,
    kept_by,
    unit_problem,
)
from fu_papers.convex import optimum, pooled
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function

EPSILONS = (0.5, 1.0, 5.0)  # gross errors can be told at all of them, honest releases from nothing at the last
FEWER = 4  # times as few releases where each is trained: a thousand take three minutes
MARGIN = 1.05  # a budget is this much above the largest radius of some trainings that are not audited
ONE_MODEL, EACH = DU(noise="consensus"), DU(noise="independent")
TENTH, THIRD, TWICE = "a tenth of the noise", "a third of the sensitivity", "one noise for two releases"
SHARED = "one noise for all models"
PLANTED = (TENTH, THIRD, TWICE, SHARED)


# --- which cases -----------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Where a release is audited."""

    models: str  # "consensus", the minimiser, or "dpsgd", some rounds with batches of their own
    split: str
    request: str  # the first m "samples" of everybody, or a "client" as a whole
    l2: float


TIGHT = Case("consensus", "iid", "samples", 1.0)  # the residual radius is hardly more than the distance
UNLIKE = Case("dpsgd", "dirichlet", "client", 0.1)  # models that differ
CASES = (  # early ones differ in everything
    TIGHT,
    UNLIKE,
    *(
        case
        for case in itertools.starmap(
            Case, itertools.product(("consensus", "dpsgd"), SPLITS, ("samples", "client"), (0.01, 0.1))
        )
        if case != UNLIKE
    ),
)
FOUND_IN: dict[Case, tuple[str, ...]] = {TIGHT: (TENTH, THIRD, TWICE), UNLIKE: (SHARED,)}


def cells(e: Experiment) -> dict[Case, dict[str, Any]]:
    """As many cases as the experiment asks for, with the number of audits that share alpha."""
    cases = CASES[: e.audit_cases]
    return {
        case: {
            **case._asdict(),
            "m": 4,
            "rounds": 5,
            "lr": 1.0,
            "batch_size": 20,
            "pilots": 8,
            "epsilons": list(EPSILONS),
            "delta": float(e.delta),
            "planted": list(FOUND_IN.get(case, ())),
            "draws": _draws(e, case),
            "together": together(e),
            "seed": 0,
        }
        for case in cases
    }


def _draws(e: Experiment, case: Case) -> int:
    """Releases per world: fewer where each is trained, more where a claim is hardly above the truth, for the power."""
    if case == TIGHT:
        return e.audit_draws * e.audit_tight
    return e.audit_draws // (FEWER if case.models == "dpsgd" else 1)


def canary_cells(e: Experiment) -> dict[int, dict[str, Any]]:
    """The canary runs, which share alpha with the audits here."""
    return dict(enumerate(canary_configs(together(e), float(e.delta))))


def together(e: Experiment) -> int:
    """Audits that share one alpha: one model at every epsilon, three outputs of models that differ, canaries, and as
    much for the other table."""
    outputs = {"consensus": len(EPSILONS), "dpsgd": len(EPSILONS) + len(OUTPUTS)}
    return TABLES * (sum(outputs[case.models] for case in CASES[: e.audit_cases]) + CANARY_ROWS)


# --- releases --------------------------------------------------------------------------------------------------------


class Mechanism(NamedTuple):
    """How models are released, and the epsilon that is claimed of it; twice: two releases in a row share their noise.

    privacy: the budget rule, or, of what is planted, noise that nothing checks.
    """

    name: str
    options: DU
    outputs: tuple[str, ...]
    privacy: Privacy
    claimed: float
    planted: bool = False
    twice: bool = False


class Held(NamedTuple):
    """What all releases of a case start from; x, exact (d,): the minimisers of everything, and of what is kept."""

    config: Mapping[str, Any]
    problem: Problem
    deletion: Deletion
    x: Tensor
    exact: Tensor


def held(config: Mapping[str, Any]) -> Held:
    """Deterministic, given the seed."""
    check_choice("models", config["models"], ("consensus", "dpsgd"))
    check_choice("request", config["request"], ("samples", "client"))
    problem = unit_problem(config["l2"], split=config["split"], seed=config["seed"])
    model, clients, _ = problem
    deletion = first(HELD, clients, [0]) if config["request"] == "client" else first(config["m"], clients)
    x = optimum(model, pooled(clients))
    return Held(config, problem, deletion, x, optimum(model, pooled(kept_by(deletion)), x))


def trained(here: Held, knew: bool, name: str, k: int) -> Tensor:
    """Everybody's model (N, d) before the request. knew: of world A, by training number k of that name; else x'."""
    config, f = here.config, here.problem.federation
    if not knew:
        return start(here.exact, CLIENTS)
    if config["models"] == "consensus":
        return start(here.x, CLIENTS)
    local = ClientOpt(lr=config["lr"], batch_size=config["batch_size"])
    f = f.having(local=local, seed=stream_seed(config["seed"], "whole", name, k))
    return dpsgd(f, torch.zeros_like(here.x), config["rounds"])


class Pilot(NamedTuple):
    """Of one step: the largest radius, and the largest distance from x', that trainings which are not audited left."""

    radius: float
    distance: float


def pilot(here: Held, options: DU) -> Pilot:
    """What an operator would try before fixing a budget; of all models together where they differ."""
    f, alike = here.problem.federation, here.config["models"] == "consensus"
    radii, distances = [], []
    for k in range(1 if alike else here.config["pilots"]):
        models = du(f, trained(here, True, "pilot", k), here.deletion, options)
        different = models if options.own_models else models[:1]
        radii.append(math.hypot(*(residual_radius(f.model, w, here.deletion) for w in different)))
        distances.append(float((different - here.exact).norm()))
    return Pilot(max(radii) * (ROUNDING if alike else MARGIN), max(distances))


def mechanisms(here: Held) -> list[Mechanism]:
    """The budget rule at every epsilon for one model, and what is planted.

    Where models differ, the largest epsilon also stands for models and noise of everybody's own.
    """
    config, delta = here.config, here.config["delta"]
    epsilon = max(config["epsilons"])

    def honest(epsilon: float, budget: float) -> Privacy:
        return Privacy(epsilon=epsilon, delta=delta, budget=budget)

    def unchecked(distance: float, share: float = 1.0) -> Privacy:
        return Privacy(sigma=share * gaussian_sigma(distance, epsilon=epsilon, delta=delta))

    one, of_one = pilot(here, ONE_MODEL), (ONE_MODEL, (FIRST,))
    found = [Mechanism("corrected, one model", *of_one, honest(e, one.radius), e) for e in config["epsilons"]]
    wrong = [
        Mechanism(TENTH, *of_one, unchecked(one.radius, 0.1), epsilon, planted=True),
        Mechanism(THIRD, *of_one, unchecked(one.distance / 3), epsilon, planted=True),
        Mechanism(TWICE, *of_one, unchecked(one.radius), epsilon, planted=True, twice=True),
    ]
    if config["models"] == "dpsgd":
        each, shared = pilot(here, EACH), replace(EACH, noise="shared")
        found.append(
            Mechanism("corrected, noise for each", EACH, tuple(OUTPUTS), honest(epsilon, each.radius), epsilon)
        )
        wrong.append(Mechanism(SHARED, shared, ("all models",), unchecked(each.radius), epsilon, planted=True))
    return [*found, *(mechanism for mechanism in wrong if mechanism.name in config["planted"])]


class Releases:
    """The releases of a case, each made once and kept: audits of several outputs look at the same.

    The k-th release of every mechanism comes from the k-th training, whose steps are taken once for all mechanisms that
    take the same; certificates are checked, and noise is drawn, for each. Noise is rehearsed, as records can be made
    again: another number for every release, and whoever repeats one is told (`RepeatedNoise`). rehearsed=False: from
    the system's entropy, as users get it. A release that is refused is retrained instead, as users are told to.
    """

    def __init__(self, here: Held, rehearsed: bool = True) -> None:
        self.here, self.rehearsed = here, rehearsed
        self.refused = 0
        self.farthest: dict[tuple[bool, str], float] = {}  # from x', by whose models and output, of world A
        self._unlearned: dict[tuple[bool, bool, int], tuple[Tensor, Release]] = {}
        self._published: dict[tuple[str, float, bool, int], Tensor] = {}

    def of(self, mechanism: Mechanism, knew: bool, k: int) -> Tensor:
        """What is published (K, d): by all one model, (1, d)."""
        key = (mechanism.name, mechanism.claimed, knew, k)
        if key not in self._published:
            models = self._release(mechanism, knew, k).models
            self._published[key] = models if mechanism.options.own_models else models[:1]
        return self._published[key]

    def accuracy(self, mechanism: Mechanism, knew: bool) -> float:
        """Mean test accuracy of what has been published, in either world."""
        about = (mechanism.name, mechanism.claimed, knew)
        models = torch.cat([models for key, models in self._published.items() if key[:3] == about])
        return noisy_accuracy(models, 0.0, self.here.problem.test, torch.zeros_like(models[:1]))

    def _release(self, mechanism: Mechanism, knew: bool, k: int) -> Release:
        f, deletion, config = self.here.problem.federation, self.here.deletion, self.here.config
        W, plain = self._unlearn(mechanism, knew, k)
        named = (mechanism.name, f"{mechanism.claimed:g}", k // 2 if mechanism.twice else k)
        noise = Noise(rehearsed=stream_seed(config["seed"], "whole release", *named) if self.rehearsed else None)
        privacy = replace(mechanism.privacy, noise=noise)
        with rehearsal() if mechanism.twice else nullcontext():  # or the second one would not be released
            try:
                return du_release(f, W, deletion, mechanism.options, privacy, plain)
            except CertificateViolation:
                self.refused += 1
                exact = start(self.here.exact, len(plain.ids))
                return du_release(f, W, deletion, mechanism.options, privacy, replace(plain, noiseless=exact))

    def _unlearn(self, mechanism: Mechanism, knew: bool, k: int) -> tuple[Tensor, Release]:
        """Models before the request, and after it, without noise."""
        own = mechanism.options.own_models
        if (own, knew, k) not in self._unlearned:
            W = trained(self.here, knew, "audited", k)
            options = within(mechanism.options, mechanism.privacy)
            plain = du_release(self.here.problem.federation, W, self.here.deletion, options)
            self._unlearned[own, knew, k] = W, plain
            if knew:
                self._measure(own, plain.noiseless - self.here.exact)
        return self._unlearned[own, knew, k]

    def _measure(self, own: bool, away: Tensor) -> None:
        for output, seen in OUTPUTS.items():
            distance = float(seen(away).norm()) if own else float(away[0].norm())
            self.farthest[own, output] = max(distance, self.farthest.get((own, output), 0.0))


# --- the run ---------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.audit_whole", data=breast_cancer)
def whole(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Whole releases of one case, audited, with what is planted in it.

    rows: as those of `theory_audit.audit`, and `planted`; `retrained`: world B's accuracy; truth: what `true` is,
    "exact", "infinite" (None), or "at most", the epsilon of the release farthest from x' where trainings differ.
    refused: how many releases were retrained instead. budgets: by where the noise comes from.

    Random: batches of every training, noise, rehearsed (see Releases).
    """
    here, rows = held(config), []
    with rehearsal():
        releases, every = Releases(here), mechanisms(here)
        for mechanism, output in ((m, output) for m in every for output in m.outputs):
            found = audited(releases, mechanism, output)
            true, truth = truth_about(releases, mechanism, output)
            sigma = mechanism_sigma(mechanism)
            rows.append(
                {
                    "mechanism": mechanism.name,
                    "output": output,
                    "distinct": True,
                    "planted": mechanism.planted,
                    "reference": "x'",
                    "claimed": mechanism.claimed,
                    "counted": not mechanism.planted and mechanism.claimed <= LARGEST_CLAIM,
                    "audited": found.proved,
                    "by": found.by,
                    "expected": found.expected,
                    "largest": found.largest,
                    "true": true,
                    "truth": truth,
                    "refuted": found.refuted,
                    "broken": truth == "infinite" or (truth == "exact" and true is not None and true > found.claimed),
                    "sigma": sigma,
                    "distance": releases.farthest[mechanism.options.own_models, output],
                    "accuracy": releases.accuracy(mechanism, True),
                    "retrained": releases.accuracy(mechanism, False),
                }
            )
    budgets = {m.options.noise: m.privacy.budget for m in every if not m.planted}
    return {"rows": rows, "refused": releases.refused, "budgets": budgets}, None


def audited(releases: Releases, mechanism: Mechanism, output: str) -> ReleaseAudit:
    """The audit of one output; all of a case have the same order of worlds, so that they can look at one release."""
    config, seen = releases.here.config, OUTPUTS[output]
    return audit_release(
        lambda knew, k: seen(releases.of(mechanism, knew, k)),
        (True, False),
        claimed=mechanism.claimed,
        delta=config["delta"],
        draws=config["draws"],
        alpha=ALPHA / config["together"],
        seed=config["seed"],
    )


def mechanism_sigma(mechanism: Mechanism) -> float:
    """Of the noise in each model."""
    privacy = mechanism.privacy
    if privacy.epsilon is None:
        return privacy.sigma
    assert privacy.budget is not None
    return gaussian_sigma(privacy.budget, epsilon=privacy.epsilon, delta=privacy.delta)


def truth_about(releases: Releases, mechanism: Mechanism, output: str) -> tuple[float | None, str]:
    """The true epsilon, as far as it is known, and what is known of it; see `whole`.

    Noise that is shared leaves bare what differs: between models, that is x' against models of D-PSGD, or between a
    release and the next, that is world A against world B.
    """
    if mechanism.name in (SHARED, TWICE):
        return None, "infinite"
    sigma, config = mechanism_sigma(mechanism), releases.here.config
    if mechanism.options.noise == "independent" and output == "mean model":
        sigma /= math.sqrt(len(releases.here.deletion.kept))
    farthest = releases.farthest[mechanism.options.own_models, output]
    epsilon = gaussian_epsilon(farthest, sigma, delta=config["delta"])
    return epsilon, "exact" if config["models"] == "consensus" else "at most"
