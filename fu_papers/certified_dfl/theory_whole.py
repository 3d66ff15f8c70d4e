"""Claim D10 on whole releases, data in and noisy models out, beside releases that are known to be bad.

Every release starts from what clients hold:

    world A    everybody's data -> trained -> asked -> `du_release` under the budget rule -> certificate -> noisy models
    world B    what is kept -> its minimiser x' -> the same `du_release`, which finds nothing to undo -> noisy models

Looked at are single releases, by outsiders; both releases of two requests in turn, whose claim is that of both
together; and what is sent after a noisy start, by a client that knows its own part of the noise (`theory_releases`).
Training draws its own batches for every release ("dpsgd"), or takes the minimiser, which draws nothing and is therefore
solved once ("consensus"). Whatever is wrong between data and release shows here: training, requests, steps, refused
certificates. `theory_audit` covers the noise alone, in more forms, printed ones among them, and everywhere by a
thousand draws; where both look at the same release, models and noise agree (tested).

Planted releases are wrong on purpose, and claim what an honest one may. An audit that does not find them has no power;
they count for no claim.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from fu_core.evaluation.release_audit import ALPHA, ReleaseAudit, audit_release
from fu_core.unlearning.noise import rehearsal
from fu_papers.certified_dfl.grid import Experiment
from fu_papers.certified_dfl.theory_audit import LARGEST_CLAIM, OUTPUTS, TABLES
from fu_papers.certified_dfl.theory_canaries import HONEST as CANARY_ROWS
from fu_papers.certified_dfl.theory_canaries import configs as canary_configs
from fu_papers.certified_dfl.theory_problems import SPLITS, breast_cancer
from fu_papers.certified_dfl.theory_releases import (
    BARE,
    SEEN,
    SHARED,
    TENTH,
    THIRD,
    TURN,
    TWICE,
    Mechanism,
    Releases,
    held,
    mechanisms,
    truth_about,
)
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function

EPSILONS = (0.5, 1.0, 5.0)  # gross errors can be told at all of them, honest releases from nothing at the last
FEWER = 4  # times as few releases where each is trained, or solved for: a thousand take three minutes
LEAST, ENOUGH = 8, 1024  # releases per world that an audit takes, and that find what is planted
FURTHER = 2  # ways in which one model is released at the largest epsilon: in turn, and noise first


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
FOUND_IN: dict[Case, tuple[str, ...]] = {TIGHT: (TENTH, THIRD, TWICE, TURN, BARE), UNLIKE: (SHARED,)}


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
    """Audits that share one alpha: one model at every epsilon, in turn, noise first, three outputs of models that
    differ, canaries, and as much for the other table."""
    each = len(EPSILONS) + FURTHER
    outputs = {"consensus": each, "dpsgd": each + len(OUTPUTS)}
    return TABLES * (sum(outputs[case.models] for case in CASES[: e.audit_cases]) + CANARY_ROWS)


# --- the run ---------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.audit_whole", data=breast_cancer)
def whole(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Whole releases of one case, audited, with what is planted in it.

    rows: as those of `theory_audit.audit`, and `planted`; `draws`: releases per world; `retrained`: world B's accuracy;
    truth: what `true` is, "exact", "infinite" (None), or "at most", the epsilon of the release farthest from x' where
    trainings differ. refused: how many releases were retrained instead. budgets: by mechanism.

    Random: batches of every training, noise, rehearsed (see Releases).
    """
    here, rows = held(config), []
    with rehearsal():
        releases, every = Releases(here), mechanisms(here)
        for mechanism, output in ((m, output) for m in every for output in m.outputs):
            found = audited(releases, mechanism, output)
            true, truth = truth_about(releases, mechanism, output)
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
                    "draws": draws_of(mechanism, config),
                    "true": true,
                    "truth": truth,
                    "refuted": found.refuted,
                    "broken": truth == "infinite" or (truth == "exact" and true is not None and true > found.claimed),
                    "sigma": mechanism.sigma,
                    "distance": releases.farthest(mechanism, output),
                    "accuracy": releases.accuracy(mechanism, True),
                    "retrained": releases.accuracy(mechanism, False),
                }
            )
    budgets = {m.name: m.privacy.budget for m in every if not m.planted}
    return {"rows": rows, "refused": releases.refused, "budgets": budgets}, None


def draws_of(mechanism: Mechanism, config: Mapping[str, Any]) -> int:
    """Releases per world, at least what an audit takes; fewer where each has steps of its own, noise being first, and
    of what is planted, which a few find.
    """
    draws: int = min(config["draws"], ENOUGH) if mechanism.planted else config["draws"]
    solved = mechanism.options.noise == "first" and config["models"] == "consensus"
    return max(LEAST, draws // FEWER) if solved else draws


def audited(releases: Releases, mechanism: Mechanism, output: str) -> ReleaseAudit:
    """The audit of one output; all of a case have the same order of worlds, so that they can look at one release."""
    config, seen = releases.here.config, SEEN[output]
    return audit_release(
        lambda knew, k: seen(releases.of(mechanism, knew, k)),
        (True, False),
        claimed=mechanism.claimed,
        delta=config["delta"],
        draws=draws_of(mechanism, config),
        alpha=ALPHA / config["together"],
        seed=config["seed"],
    )
