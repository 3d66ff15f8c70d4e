"""Whole releases as an audit looks at them, data in and noisy models out, honest ones and some that are known bad.

    one model        everybody's data -> trained -> asked -> `du_release` under the budget rule -> one noisy model
    in turn          the same, and a second request after it: both releases are seen, the claim is that of both together
    noise first      the noisy start, on which every later message depends, seen by a client that knows its own part of
                     the noise; the release that those messages end in is made, too, and cannot tell more
    noise for each   everybody publishes a model of its own

World A does this with what clients hold. World B begins at the minimiser x' of what is kept, where the same release
finds nothing to undo; asked in turn, at that of each request. See `theory_whole`, which audits them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fu_core.errors import CertificateViolation, check_choice
from fu_core.federation.decentralised import dpsgd, start
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt
from fu_core.request import Deletion
from fu_core.streams import stream_seed
from fu_core.unlearning.certificate import Privacy, residual_radius
from fu_core.unlearning.du import DU, Release, du, du_release, within
from fu_core.unlearning.gaussian_mechanism import gaussian_epsilon, gaussian_sigma, gdp_epsilon, gdp_mu
from fu_core.unlearning.noise import Draw, Noise, rehearsal
from fu_papers.certified_dfl.theory_audit import FIRST, OUTPUTS, ROUNDING
from fu_papers.certified_dfl.theory_noise import noisy_accuracy
from fu_papers.certified_dfl.theory_problems import CLIENTS, HELD, Problem, first, kept_by, unit_problem
from fu_papers.convex import optimum, pooled

MARGIN = 1.05  # a budget is this much above the largest radius of some trainings that are not audited
ONE_MODEL, NOISE_FIRST, EACH = DU(noise="consensus"), DU(noise="first"), DU(noise="independent")
BOTH, MESSAGES = "both releases", "every message"
SEEN = {**OUTPUTS, BOTH: OUTPUTS["all models"], MESSAGES: OUTPUTS["all models"]}  # parts of what is published
TENTH, THIRD, TWICE = "a tenth of the noise", "a third of the sensitivity", "one noise for two releases"
TURN, BARE, SHARED = "one noise for two requests", "messages before the noise", "one noise for all models"
PLANTED = (TENTH, THIRD, TWICE, TURN, BARE, SHARED)
INSIDER = 0  # who reads the messages, and knows its own part of the noise; any client would do


class Mechanism(NamedTuple):
    """How models are released, and the epsilon that is claimed of what is seen (`outputs`).

    privacy: of each release, by the budget rule, or, of what is planted, noise that nothing checks; requests: served in
    turn; twice: two releases in a row share their noise, those of one request or those of two.
    """

    name: str
    options: DU
    outputs: tuple[str, ...]
    privacy: Privacy
    claimed: float
    planted: bool = False
    twice: bool = False
    requests: int = 1

    @property
    def sigma(self) -> float:
        """Of the noise in each model."""
        if self.privacy.epsilon is None:
            return self.privacy.sigma
        assert self.privacy.budget is not None
        return gaussian_sigma(self.privacy.budget, epsilon=self.privacy.epsilon, delta=self.privacy.delta)


class Asked(NamedTuple):
    """A request as it comes: who is there, what goes, and the minimiser of what is kept, exact (d,)."""

    f: Federation
    deletion: Deletion
    exact: Tensor


class Held(NamedTuple):
    """What all releases of a case start from: x (d,), the minimiser of everything, and two requests in turn."""

    config: Mapping[str, Any]
    problem: Problem
    x: Tensor
    asked: tuple[Asked, Asked]

    @property
    def deletion(self) -> Deletion:
        """What goes first."""
        return self.asked[0].deletion

    @property
    def exact(self) -> Tensor:
        """The minimiser of what is kept then."""
        return self.asked[0].exact


def held(config: Mapping[str, Any]) -> Held:
    """Deterministic, given the seed."""
    check_choice("models", config["models"], ("consensus", "dpsgd"))
    check_choice("request", config["request"], ("samples", "client"))
    problem = unit_problem(config["l2"], split=config["split"], seed=config["seed"])
    model, clients, _ = problem
    leaves = config["request"] == "client"
    x = optimum(model, pooled(clients))
    deletion = first(HELD, clients, [0]) if leaves else first(config["m"], clients)
    once = Asked(problem.federation, deletion, optimum(model, pooled(kept_by(deletion)), x))
    rest = once.f.after(deletion)
    # the next client, or as many more samples of everybody's
    further = first(HELD if leaves else config["m"], rest.clients, rest.ids[:1] if leaves else rest.ids)
    again = Asked(rest, further, optimum(model, pooled(kept_by(further)), once.exact))
    return Held(config, problem, x, (once, again))


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


# --- budgets ---------------------------------------------------------------------------------------------------------


class Pilot(NamedTuple):
    """The largest radius, and the largest distance from x', that trainings which are not audited left."""

    radius: float
    distance: float


def pilot(here: Held, options: DU, requests: int = 1) -> Pilot:
    """What an operator would try before fixing a budget; of all models together where they differ.

    Of one step, of each request; where noise comes first, of the models before it.
    """
    alike = here.config["models"] == "consensus"
    radii, distances = [], []
    for k in range(1 if alike else here.config["pilots"]):
        models = trained(here, True, "pilot", k)
        for f, deletion, exact in here.asked[:requests]:
            if options.noise != "first":
                models = du(f, models, deletion, options)
            different = models if options.own_models or options.noise == "first" else models[:1]
            together = math.hypot(*(residual_radius(f.model, w, deletion) for w in different))
            radii.append(together if options.noise != "first" else together / math.sqrt(len(different)))
            distances.append(float((different - exact).norm()))
    return Pilot(max(radii) * (ROUNDING if alike else MARGIN), max(distances))


def mechanisms(here: Held) -> list[Mechanism]:
    """The budget rule at every epsilon for one model, the other ways at the largest, and what is planted.

    Where models differ, the largest epsilon also stands for models and noise of everybody's own. Two requests in turn:
    each at the epsilon whose composition is the largest one.
    """
    config, delta = here.config, here.config["delta"]
    epsilon = max(config["epsilons"])

    def honest(epsilon: float, budget: float) -> Privacy:
        return Privacy(epsilon=epsilon, delta=delta, budget=budget)

    def unchecked(distance: float, share: float = 1.0) -> Privacy:
        return Privacy(sigma=share * gaussian_sigma(distance, epsilon=epsilon, delta=delta))

    one, of_one = pilot(here, ONE_MODEL), (ONE_MODEL, (FIRST,))
    both, half = pilot(here, ONE_MODEL, requests=2), gdp_epsilon(gdp_mu(epsilon, delta) / math.sqrt(2), delta)
    before = pilot(here, NOISE_FIRST)
    found = [
        *(Mechanism("corrected, one model", *of_one, honest(e, one.radius), e) for e in config["epsilons"]),
        Mechanism("corrected, in turn", ONE_MODEL, (BOTH,), honest(half, both.radius), epsilon, requests=2),
        Mechanism("corrected, noise first", NOISE_FIRST, (MESSAGES,), honest(epsilon, before.radius), epsilon),
    ]
    in_turn = Privacy(sigma=gaussian_sigma(both.radius, epsilon=half, delta=delta))
    wrong = [
        Mechanism(TENTH, *of_one, unchecked(one.radius, 0.1), epsilon, planted=True),
        Mechanism(THIRD, *of_one, unchecked(one.distance / 3), epsilon, planted=True),
        Mechanism(TWICE, *of_one, unchecked(one.radius), epsilon, planted=True, twice=True),
        Mechanism(TURN, ONE_MODEL, (BOTH,), in_turn, epsilon, planted=True, twice=True, requests=2),
        Mechanism(BARE, ONE_MODEL, (MESSAGES,), honest(epsilon, one.radius), epsilon, planted=True),
    ]
    if config["models"] == "dpsgd":
        each, shared = pilot(here, EACH), replace(EACH, noise="shared")
        found.append(
            Mechanism("corrected, noise for each", EACH, tuple(OUTPUTS), honest(epsilon, each.radius), epsilon)
        )
        wrong.append(Mechanism(SHARED, shared, ("all models",), unchecked(each.radius), epsilon, planted=True))
    return [*found, *(mechanism for mechanism in wrong if mechanism.name in config["planted"])]


# --- releases --------------------------------------------------------------------------------------------------------


class Published(NamedTuple):
    """seen: by an attacker, before it looks at one output of it (K, d); models: what clients go on with (K', d);
    away (K, d): what is seen, without noise, less what world B's would be."""

    seen: Tensor
    models: Tensor
    away: Tensor


class Releases:
    """The releases of a case, each made once and kept: audits of several outputs look at the same.

    The k-th release of every mechanism comes from the k-th training, whose steps are taken once for all mechanisms that
    take the same, and where training draws nothing once for all k; certificates are checked, and noise is drawn, for
    each. Noise is rehearsed, as records can be made again: another number for every release, and whoever repeats one is
    told (`RepeatedNoise`). rehearsed=False: from the system's entropy, as users get it. A release that is refused is
    retrained instead, as users are told to.
    """

    def __init__(self, here: Held, rehearsed: bool = True) -> None:
        self.here, self.rehearsed = here, rehearsed
        self.refused = 0
        self._trained: dict[tuple[bool, int], Tensor] = {}
        self._unlearned: dict[tuple[bool, int, int, bool, int], tuple[Tensor, Release]] = {}
        self._published: dict[tuple[str, float, bool, int], Published] = {}

    def of(self, mechanism: Mechanism, knew: bool, k: int) -> Tensor:
        """What is seen (K, d): of models that are all one, (1, d)."""
        key = (mechanism.name, mechanism.claimed, knew, k)
        if key not in self._published:
            self._published[key] = self._publish(mechanism, knew, k)
        return self._published[key].seen

    def accuracy(self, mechanism: Mechanism, knew: bool) -> float:
        """Mean test accuracy of what has been published, in either world."""
        models = torch.cat([one.models for one in self._of_world(mechanism, knew)])
        return noisy_accuracy(models, 0.0, self.here.problem.test, torch.zeros_like(models[:1]))

    def farthest(self, mechanism: Mechanism, output: str) -> float:
        """The largest distance of this output from world B's, without noise, among what world A has published."""
        return max(float(SEEN[output](one.away).norm()) for one in self._of_world(mechanism, True))

    def _of_world(self, mechanism: Mechanism, knew: bool) -> list[Published]:
        about = (mechanism.name, mechanism.claimed, knew)
        return [one for key, one in self._published.items() if key[:3] == about]

    def _publish(self, mechanism: Mechanism, knew: bool, k: int) -> Published:
        repeats = k // 2 if mechanism.twice and mechanism.requests == 1 else k
        named = (mechanism.name, f"{mechanism.claimed:g}", repeats)
        number = stream_seed(self.here.config["seed"], "whole release", *named)
        privacy = replace(mechanism.privacy, noise=Noise(number if self.rehearsed else None))
        if mechanism.options.noise == "first":
            return self._start(mechanism, knew, k, privacy, number)
        seen, away = [], []
        for turn, asked in enumerate(self.here.asked[: mechanism.requests]):
            W, plain = self._unlearn(mechanism, knew, k, turn)
            if mechanism.twice:
                privacy = replace(privacy, noise=Noise(number))
            with rehearsal() if mechanism.twice else nullcontext():  # or the second one would not be released
                made = self._served(asked, W, mechanism.options, privacy, plain)
            one = slice(None) if mechanism.options.own_models else slice(1)
            seen.append(made.models[one])
            away.append(plain.noiseless[one] - asked.exact)
        if mechanism.outputs == (MESSAGES,):  # of a release for outsiders: gradients, summed before there is noise
            gradient = torch.stack(list(plain.messages.values())).sum(dim=0, keepdim=True)
            return Published(gradient, seen[-1], gradient)
        return Published(torch.cat(seen), seen[-1], torch.cat(away))

    def _start(self, mechanism: Mechanism, knew: bool, k: int, privacy: Privacy, number: int) -> Published:
        """Noise first: all that is sent depends on the noisy start, and on what is kept. An insider knows its part."""
        if not self.rehearsed:
            raise ValueError("rehearsed must be True where an insider has to know its own part of the noise")
        W = self._everybody(knew, k)
        made = self._served(self.here.asked[0], W, mechanism.options, privacy)
        assert made.noisy_start is not None
        x, share = made.noisy_start, made.sigma / math.sqrt(CLIENTS - 1)  # so that all others' parts make sigma
        others = x - share * Draw(number, 1).normal("start", INSIDER, x)
        return Published(others[None], made.models[:1], W.mean(dim=0, keepdim=True) - self.here.exact)

    def _served(self, asked: Asked, W: Tensor, options: DU, privacy: Privacy, plain: Release | None = None) -> Release:
        f, deletion, exact = asked
        try:
            return du_release(f, W, deletion, options, privacy, plain)
        except CertificateViolation:
            self.refused += 1
            if plain is None:
                return du_release(f, start(exact, len(f.ids)), deletion, options, privacy)
            retrained = replace(plain, noiseless=start(exact, len(plain.ids)))
            return du_release(f, W, deletion, options, privacy, retrained)

    def _draw(self, knew: bool, k: int) -> int:
        """The training behind the k-th release: where none draws anything all are the first."""
        return k if knew and self.here.config["models"] == "dpsgd" else 0

    def _everybody(self, knew: bool, k: int) -> Tensor:
        k = self._draw(knew, k)
        if (knew, k) not in self._trained:
            self._trained[knew, k] = trained(self.here, knew, "audited", k)
        return self._trained[knew, k]

    def _unlearn(self, mechanism: Mechanism, knew: bool, k: int, turn: int = 0) -> tuple[Tensor, Release]:
        """Models before a request, and after it, without noise; the second goes on from the models of the first."""
        own = mechanism.options.own_models
        k = self._draw(knew, k)
        if (key := (own, mechanism.requests, turn, knew, k)) not in self._unlearned:
            f, deletion, exact = self.here.asked[turn]
            W = self._everybody(knew, k)
            if turn:
                W = self._unlearn(mechanism, knew, k)[1].noiseless if knew else start(exact, len(f.ids))
            self._unlearned[key] = W, du_release(f, W, deletion, within(mechanism.options, mechanism.privacy))
        return self._unlearned[key]


def truth_about(releases: Releases, mechanism: Mechanism, output: str) -> tuple[float | None, str]:
    """The true epsilon, as far as it is known, and what is known of it; see `theory_whole.whole`.

    Noise that is shared leaves bare what differs: between models, that is x' against models of D-PSGD, or between a
    release and the next, that is world A against world B. So does a message that is sent before there is noise.
    """
    if mechanism.name in (SHARED, TWICE, TURN, BARE):
        return None, "infinite"
    sigma, config = mechanism.sigma, releases.here.config
    if mechanism.options.noise == "independent" and output == "mean model":
        sigma /= math.sqrt(len(releases.here.deletion.kept))
    epsilon = gaussian_epsilon(releases.farthest(mechanism, output), sigma, delta=config["delta"])
    return epsilon, "exact" if config["models"] == "consensus" else "at most"
