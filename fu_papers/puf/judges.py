"""What PUF's runs look at: utility, forgetting, attacks, and distances to the retrained model.

From weak to strong: accuracy on the forgotten data; outputs on them against the retrained model's; membership (Song and
Yeom as printed, shadow models, a threshold at 1 % false positives); how fast the data are learned again; a backdoor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor

from fu_core.errors import NumericalFailure
from fu_core.evaluation.accuracy import accuracy, outputs_accuracy
from fu_core.evaluation.backdoor import Trigger, attack_success
from fu_core.evaluation.equivalence import logits_kl, parameter_gap, prediction_agreement
from fu_core.evaluation.membership import (
    Attack,
    class_matched,
    confidences,
    fit_attack,
    half_of_each_class,
    shadow,
    song,
    threshold_attack,
    yeom,
)
from fu_core.evaluation.relearn import level, relearn_passes
from fu_core.federation import Federation
from fu_core.request import Deletion, Request
from fu_papers.problems import Problem

SHADOW_SAMPLES = 2_000  # of each side: the attack's net learns nothing from more


@dataclass(frozen=True)
class Shadow:
    """The attacker's own model: another seed's original. Two of the same key are the same."""

    key: str
    w: Tensor = field(compare=False, repr=False)
    p: Problem = field(compare=False, repr=False)


@dataclass(frozen=True)
class Judged:
    """What is judged against what: the request, both reference models, and the attacker's own."""

    p: Problem
    f: Federation
    deletion: Deletion
    original: Tensor
    retrained: Tensor
    attacker: Shadow | None  # none for segmentation
    request: str
    seed: int
    trigger: Trigger | None  # of a backdoor in the data that are to be forgotten
    relearn_cap: int  # passes over the forgotten data; 0: not measured


def evaluate(case: Judged, w: Tensor) -> dict[str, Any]:
    """Every number that a model `w` (d,) is judged by.

    Segmentation: Dice for accuracy and the mean loss on the forgotten slices for the attacks, as in Table VI.
    """
    p, task = case.p, case.p.model.task
    data = {"forget": case.deletion.forget, "retain": case.deletion.retain, "test": p.test}
    logits = {side: p.model.predict(w, x) for side, (x, _) in data.items()}
    losses = {side: p.model.sample_losses(logits[side], data[side][1]) for side in ("forget", "retain", "test")}
    found: dict[str, Any] = {side: outputs_accuracy(task, logits[side], data[side][1]) for side in ("test", "forget")}
    found["validation"] = accuracy(p.model, w, *p.validation)
    apart = float((case.original - case.retrained).double().norm())
    found |= {
        "loss": float(losses["forget"].mean()),
        "gap": parameter_gap(w, case.retrained),
        "distance": float((w - case.retrained).double().norm()) / apart if apart else None,
    }
    if task == "segmentation":
        return found
    conf = {side: confidences(logits[side], y) for side, (_, y) in data.items()}
    retrained = {side: p.model.predict(case.retrained, data[side][0]) for side in ("forget", "test")}
    found |= {
        "song": song(conf["forget"], conf["retain"], conf["test"], seed=case.seed),
        "yeom": yeom(losses["forget"], losses["retain"]),
        "kl": logits_kl(logits["test"], retrained["test"]),
        "kl_forget": logits_kl(logits["forget"], retrained["forget"]),
        "agreement_forget": 100 * prediction_agreement(logits["forget"], retrained["forget"]),
    }
    found |= _membership(case, logits, losses)
    found |= _relearned(case, w)
    if case.trigger is not None:
        found["backdoor"] = attack_success(lambda x: p.model.predict(w, x), *p.test, case.trigger)
    return found


def _membership(case: Judged, logits: Mapping[str, Tensor], losses: Mapping[str, Tensor]) -> dict[str, float]:
    """Attacks whose reference are unseen samples of the forgotten ones' classes. One half is learned from."""
    y_test, y_forget = case.p.test[1], case.deletion.forget[1]
    known = half_of_each_class(y_test, "attack")
    unseen = (~known).nonzero()[:, 0]
    unseen = unseen[class_matched(y_test[unseen], y_forget, "unseen")]
    found = threshold_attack(-losses["retain"], -losses["test"][known], -losses["forget"], -losses["test"][unseen])
    told = {"threshold_auc": 100 * found.auc, "tpr": found.tpr_at_1_fpr}
    if case.attacker is not None:
        attack = _attack(case.attacker, case.request)
        by_shadow = shadow(attack, (logits["forget"], y_forget), (logits["test"][unseen], y_test[unseen]))
        told |= {"shadow": 100 * by_shadow.balanced_accuracy, "shadow_auc": 100 * by_shadow.auc}
    return told


@lru_cache(maxsize=8)
def _attack(attacker: Shadow, request: str) -> Attack:
    """Fitted on the attacker's model: what it trained on, but for what is to be forgotten, against known test data."""
    p, w = attacker.p, attacker.w
    x, y = Request.parse(request).resolve(dict(enumerate(p.clients))).retain
    x_test, y_test = p.test
    known = half_of_each_class(y_test, "attack")
    members, others = (p.model.predict(w, x), y), (p.model.predict(w, x_test[known]), y_test[known])
    return fit_attack([members], [others], seed=0, largest=SHADOW_SAMPLES)


def _relearned(case: Judged, w: Tensor) -> dict[str, Any]:
    """Passes over the forgotten data until Original's accuracy on them is back."""
    if not case.relearn_cap:
        return {}
    target = level(case.p.model, case.original, case.deletion.forget)
    try:
        found = relearn_passes(
            case.p.model,
            w,
            case.deletion.forget,
            case.f.local,
            target=target,
            cap=case.relearn_cap,
            seed=case.seed,
            per_pass=4,
        )
    except NumericalFailure:  # of this judge's own training, which says nothing about the method's
        return {"relearn": None, "relearned": False}
    return {"relearn": found.passes, "relearned": found.reached}
