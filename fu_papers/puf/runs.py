"""PUF's experiments as runs: from a flat config to a record.

`train` is the original training, or the retraining that a request asks for. `unlearn` starts from the original model,
lets one method serve one request, and recovers; `trial` does so on a request that is not judged, for the sake of a
method's hyper-parameters. Everything shown in tables and figures is read from their records.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from fu_core.errors import NumericalFailure, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.evaluation.costs import measured_flops
from fu_core.evaluation.equivalence import parameter_gap, relative_step_difference
from fu_core.federation import Federation, Meter, recovery_path
from fu_core.request import Deletion, Request
from fu_core.unlearning.baselines.fed_au_official import fed_au_unlearn
from fu_core.unlearning.method import Trained, Unlearned, method
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.record import Needs, Record, run_function
from fu_papers.problems import Problem, data_hash, problem
from fu_papers.puf.costs import cost_cells
from fu_papers.puf.grid import AGAIN, AS_THEY_ARE, OFFICIAL, TRAINING_KEYS, Experiment, trials_of
from fu_papers.puf.judges import Judged, Shadow, evaluate
from fu_papers.puf.trainings import TRIGGER, federation, initial_weights, memory_of, references, train, train_official

STOP_RULES = ("validation", "test")  # ours, and the paper's, which looks at the test set


@run_function("puf.describe", data=data_hash)
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a setting consists of: who holds what, where the data comes from, how large and how costly the net is."""
    p = problem(config)
    return {**p.description, "flops": measured_flops(p.model, p.dataset.x_train[:1])}, None


def needs(config: Mapping[str, Any]) -> Needs:
    """Both references, the trainings of another seed (the attacker's model, a second retraining), a method's trials."""
    found = dict(references(config))
    other = {key: config[key] for key in TRAINING_KEYS} | {"seed": config["other_seed"], "poisoned": -1}
    if config["method"] == OFFICIAL:
        plain = {key: value for key, value in found["retrained"][1].items() if key != "history"}
        found["official"] = (train_official, plain)
    if config["method"] == AGAIN:
        found["again"] = (train, {**other, "history": 0})
    if config["attacked"]:
        found["attacker"] = (train, {**other, "request": "none"})
    return found | {f"trial {k}": (trial, one) for k, one in enumerate(trials_of(config))}


# --- unlearning and recovery -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What an unlearning run is about: the federation as it was trained, the request, and both reference models."""

    p: Problem
    f: Federation
    deletion: Deletion
    original: Tensor
    retrained: Tensor

    @classmethod
    def of(cls, config: Mapping[str, Any], context: RunContext) -> Case:
        """Read the trainings that the config needs; they are run if need be."""
        p = problem(config)
        f = federation(config, p)
        original, retrained = (_model_of(context, name) for name in ("original", "retrained"))
        return cls(p, f, Request.parse(config["request"]).resolve(f.clients), original, retrained)

    def trained(self, config: Mapping[str, Any], context: RunContext) -> Trained:
        """The federation as the config's method meets it: with what it needs of the past, and nothing else."""
        if config["method"] == OFFICIAL:
            return Trained(self.f, self.original, config["rounds"])
        needed = method(config["method"]).needs
        if not (needed.history or needed.stateful_clients):
            return Trained(self.f, self.original, config["rounds"])
        w_0 = initial_weights(config, self.p)
        memory = memory_of(config, w_0)
        names = None if needed.history else [f"last/{k}" for k in self.f.ids]
        memory.restore(context.needed("original", names), device())
        return Trained(self.f, self.original, config["rounds"], w_0 if needed.history else None, memory)

    def served(
        self, config: Mapping[str, Any], context: RunContext, trained: Trained | None = None, **change: Any
    ) -> Unlearned:
        """The unlearning step alone, by the config's method; `change` overrides its hyper-parameters.

        trained: what `trained` gives, if it is there already: a history is long to read.
        """
        if config["method"] == OFFICIAL:
            tensors, meter = context.needed("official", ["w", "h_A"]), Meter()
            w, h_A = tensors["w"].to(device()), tensors["h_A"].to(device())
            f = self.f.having(meter=meter)
            return Unlearned(fed_au_unlearn(f, w, h_A, self.deletion, **config["options"]), meter, {})
        trained = self.trained(config, context) if trained is None else trained
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "the PUF step is"
            )  # sweeps go too far on purpose, and their records show it
            return serve_request(config["method"], trained, self.deletion, **{**config["options"], **change})

    def judged(self, config: Mapping[str, Any], context: RunContext) -> Judged:
        """The same, as the judges want it."""
        attacker = None
        if config["attacked"]:
            key = context.needed_record("attacker").key
            attacker = Shadow(key, _model_of(context, "attacker"), self.p)
        trigger = TRIGGER if config["poisoned"] >= 0 else None
        about = (config["request"], config["seed"], trigger, config["relearn_cap"])
        return Judged(self.p, self.f, self.deletion, self.original, self.retrained, attacker, *about)


def _model_of(context: RunContext, name: str) -> Tensor:
    return context.needed(name, ["w"])["w"].to(device())


def _revision(config: Mapping[str, Any]) -> int:
    """MoDe's recovery went on with another round's rate in the first, the one that its cost came to."""
    return 2 if config["method"] == "MoDe" else 1


@run_function("puf.unlearn", data=data_hash, needs=needs, revision=_revision)
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method serves one request; then recovery until both stop rules are met or `cap` rounds are over.

    With `trials` the method has the hyper-parameters of the best of them ("chosen" in the metrics), else `options`.
    No rule stops a method that is `read` at certain rounds: its state is that of the last of them, and its rounds go on
    to `cap`.

    Metrics: "unlearned" (right after the unlearning step) and, per stop rule, the state in which recovery
    stopped: rounds, reached, all that `judges.evaluate` tells, and the costs counted up to there. References and
    controls are evaluated as they are. A method that cannot serve such a request, or not on such a task, leaves its own
    reason as "unsupported"; one after which training leaves the numbers, as too large a step does, leaves "diverged".
    """
    case = Case.of(config, context)
    chosen: dict[str, Any] = {}
    try:
        if config["method"] in AS_THEY_ARE:
            w = {"Original": case.original, "Retrain": case.retrained}.get(config["method"])
            if config["method"] == AGAIN:
                w = _model_of(context, "again")
            if w is None:
                w = case.served(config, context).model
            return {"final": evaluate(case.judged(config, context), w)}, None
        if config["trials"]:
            records = [context.needed_record(f"trial {k}") for k in range(len(trials_of(config)))]
            n = len(config["tuned_on"]["requests"])
            best = best_trial([records[i : i + n] for i in range(0, len(records), n)])
            chosen = {"trial": best, "chosen": config["trials"][best]}
            config = {**config, "options": {**config["options"], **config["trials"][best]}}
        judged = case.judged(config, context)
        return chosen | _recovered(config, context, case, lambda w: evaluate(judged, w)), None
    except UnsupportedTask as reason:
        return {"unsupported": str(reason)}, None
    except NumericalFailure as reason:
        return {"diverged": str(reason), **chosen}, None


@run_function("puf.trial", data=data_hash, needs=references, revision=_revision)
def trial(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One choice of a method's hyper-parameters on a request that is not judged: how good, by our stop rule?

    Metrics: "objective", the forget gap to Retrain plus the shortfall of validation accuracy, in points, where recovery
    stopped on validation data; the two; rounds, and whether Retrain's validation accuracy was reached.
    """
    case = Case.of(config, context)
    goal = accuracy(case.p.model, case.retrained, *case.p.validation)
    remembered = accuracy(case.p.model, case.retrained, *case.deletion.forget)

    def scored(w: Tensor) -> dict[str, Any]:
        gap = abs(accuracy(case.p.model, w, *case.deletion.forget) - remembered)
        shortfall = max(0.0, goal - accuracy(case.p.model, w, *case.p.validation))
        return {"objective": gap + shortfall, "forget_gap": gap, "shortfall": shortfall}

    try:
        return _recovered(config, context, case, scored, rules=STOP_RULES[:1])[STOP_RULES[0]], None
    except UnsupportedTask as reason:
        return {"unsupported": str(reason)}, None
    except NumericalFailure as reason:
        return {"diverged": str(reason)}, None


def best_trial(trials: Sequence[Sequence[Record]]) -> int:
    """Which of `trials`, each a record per request, has the smallest `objective`.

    What gave up comes after all others, the more often the later, and what diverged last. Who has no recovery cannot
    give up: its shortfall is in the objective.
    """

    def rank(k: int) -> tuple[int, int, float]:
        lost = sum("objective" not in one.metrics for one in trials[k])
        gave_up = sum(one.config["cap"] > 0 and not one.metrics.get("reached") for one in trials[k])
        return lost, gave_up, objective(trials[k])

    return min(range(len(trials)), key=rank)


def objective(trial: Sequence[Record]) -> float:
    """Of a trial, in points, the mean over its requests; infinite if it diverged on one."""
    return sum(record.metrics.get("objective", math.inf) for record in trial) / len(trial)


def _recovered(
    config: Mapping[str, Any],
    context: RunContext,
    case: Case,
    judge: Callable[[Tensor], Mapping[str, Any]],
    rules: Sequence[str] = STOP_RULES,
) -> dict[str, Any]:
    p, forgotten = case.p, case.deletion.forget
    reference = {rule: accuracy(p.model, case.retrained, *getattr(p, rule)) for rule in rules}
    cap, last_read = config["cap"], max(config["read"], default=None)
    if (saved := context.resume()) is None:
        with context.phase("unlearn"):
            state = _Recovering.begin(config, context, case)
    else:
        state = _Recovering(saved[0]["w"].to(device()), **{**saved[1], "recovery": Meter(**saved[1]["recovery"])})
    with context.phase("recover"):
        for k, w_k in state.path(config, case, cap):
            if k == len(context.rounds):  # else it was evaluated before the interruption
                scores = {rule: accuracy(p.model, w_k, *getattr(p, rule)) for rule in rules}
                context.log(round=k, **scores, forget=accuracy(p.model, w_k, *forgotten))
                judged: Mapping[str, Any] | None = None
                for rule in rules:
                    reached = scores[rule] >= reference[rule]
                    ends = k == cap or reached if last_read is None else k == last_read
                    if rule not in state.metrics and ends:
                        judged = judge(w_k) if judged is None else judged
                        state.metrics[rule] = {"rounds": k, "reached": reached, **judged, **state.costs()}
                context.checkpoint({"w": w_k}, state.meta(k))
            if all(rule in state.metrics for rule in rules) and (last_read is None or k == cap):
                break
    return state.metrics


@dataclass
class _Recovering:
    """What an interrupted recovery needs in order to go on: the model, its round, and what was found so far."""

    w: Tensor
    round: int
    metrics: dict[str, Any]
    spent: dict[str, int]  # by the unlearning step: bytes … scheduled (see `Meter`); handed: bytes it was given
    recovery: Meter

    @classmethod
    def begin(cls, config: Mapping[str, Any], context: RunContext, case: Case) -> _Recovering:
        """Apply the method to the original model."""
        trained = case.trained(config, context)
        w, cost, _ = case.served(config, context, trained)
        unlearned = {
            "test": accuracy(case.p.model, w, *case.p.test),
            "forget": accuracy(case.p.model, w, *case.deletion.forget),
            "step": parameter_gap(w, case.original),
            "sha256": hashlib.sha256(w.cpu().numpy().tobytes()).hexdigest(),
        }
        spent = {name: getattr(cost, name) for name in ("bytes", "images", "storage", "rounds", "scheduled")}
        spent["handed"] = _bytes_of(trained)
        return cls(w, 0, {"unlearned": unlearned}, spent, Meter())

    def path(self, config: Mapping[str, Any], case: Case, cap: int) -> Iterator[tuple[int, Tensor]]:
        """The recovery rounds still to come, the present state first. They continue the training's schedule."""
        first_round = config["rounds"] + 1 + self.spent["scheduled"]
        remaining = case.f.after(case.deletion).having(meter=self.recovery)
        return recovery_path(remaining, self.w, first_round=first_round, cap=cap, start=self.round)

    def costs(self) -> dict[str, int]:
        """Counted so far: both phases together, the unlearning step alone, and what the method must keep."""
        return {
            "bytes": self.spent["bytes"] + self.recovery.bytes,
            "images": self.spent["images"] + self.recovery.images,
            "unlearning_bytes": self.spent["bytes"],
            "unlearning_images": self.spent["images"],
            "unlearning_rounds": self.spent["rounds"],
            "storage": self.spent["storage"],
            "handed": self.spent["handed"],
        }

    def meta(self, k: int) -> dict[str, Any]:
        """For the checkpoint after round k."""
        return {"round": k, "metrics": self.metrics, "spent": self.spent, "recovery": asdict(self.recovery)}


def _bytes_of(trained: Trained) -> int:
    """Of all tensors that a method is handed beside the clients: the model, where training began, what was kept."""
    models = [w for w in (trained.w, trained.w_0) if w is not None]
    kept = trained.server_memory.tensors().values()
    return sum(t.numel() * t.element_size() for t in (*models, *kept))


@run_function("puf.mode_equivalence", data=data_hash, needs=references)
def mode_equivalence(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim P14 on the trained net: Regular(eta_r, eta_u) against Special((eta_r + eta_u) p_u), same updates."""
    case = Case.of(config, context)
    options = config["options"]
    p_u = case.deletion.m / case.deletion.n
    regular = case.served(config, context).model
    eta_u = (options["eta_r"] + options["eta_u"]) * p_u
    special = case.served({**config, "method": "PUF-Special"}, context, mode="special", eta_u=eta_u).model
    difference = relative_step_difference(case.original, special, regular)
    return {"relative_difference": difference, "p_u": p_u}, None


@run_function("puf.printed_costs")
def printed_costs(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim P13: how many of the printed cost cells follow from the printed formulas, per table. Arithmetic only."""
    cells = cost_cells()[["table", "follows"]]
    counts = cells.groupby("table", sort=False).follows.agg(["size", "sum"])
    return {str(table): {"cells": int(n), "follow": int(k)} for table, (n, k) in counts.iterrows()}, None


# --- for the sliders -------------------------------------------------------------------------------------------------


def live_recovery(
    e: Experiment, original: Tensor, setting: str, target: int, mode: str, eta_u: float, rounds: int = 8
) -> list[dict[str, float]]:
    """PUF from the trained model `original` (d,) of the first seed, and `rounds` recovery rounds, without a record."""
    seed, request = e.seeds[0], f"client-{target}"
    config = e.unlearning(e.scenarios()[0], setting, seed, request, f"PUF-{mode.capitalize()}", eta_u=eta_u)
    p = problem(config)
    f = p.federation(config)
    deletion = Request.parse(request).resolve(f.clients)
    w = serve_request(config["method"], Trained(f, original, e.rounds), deletion, **config["options"]).model
    path = recovery_path(f.after(deletion), w, first_round=e.rounds + 2, cap=rounds)
    return [
        {"round": k, "test": accuracy(p.model, v, *p.test), "forget": accuracy(p.model, v, *deletion.forget)}
        for k, v in path
    ]
