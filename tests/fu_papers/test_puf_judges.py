"""PUF's judges on a problem that is learned by heart: each puts Original farther from Retrain than Retrain itself."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.evaluation.backdoor import poison
from fu_core.federation import fedavg
from fu_core.request import Request
from fu_papers.problems import initial_model, problem
from fu_papers.puf import judges
from fu_papers.puf.trainings import TRIGGER
from tests.puf_lab import experiment

SETTING = "digits/dirichlet-0.5/mlp"
E = experiment(
    [SETTING], clients=4, n_train=160, n_val=60, n_test=360, rounds=30, epochs=2.0, batch_size=10, lr=0.1,
    lr_decay=1.0, weight_decay=0.0, relearn_cap=3,
)  # fmt: skip
TARGET = 1


@pytest.fixture(scope="module")
def lab():
    """A federation that knows its 160 images by heart, with a backdoor in those of client 1; what Retrain is without
    them, and the case between the two."""
    config = E.training(E.scenario("clients"), SETTING, 0)
    p = problem(config)
    f, w_0 = p.federation(config), initial_model(config, p.model)
    carrying = poison(f.clients[TARGET], TRIGGER, fraction=0.5, seed=0, client_id=TARGET)
    f = f.having(clients={**f.clients, TARGET: carrying})
    deletion = Request.parse(f"client-{TARGET}").resolve(f.clients)
    original = fedavg(f, w_0, E.rounds)
    retrained = fedavg(f.after(deletion), w_0, E.rounds)
    attacker = judges.Shadow("attacker", fedavg(f.having(seed=1), w_0, E.rounds), p)
    about = (f"client-{TARGET}", 0, TRIGGER, 3)
    case = judges.Judged(p, f, deletion, original, retrained, attacker, *about)
    return SimpleNamespace(case=case, **{
        name: judges.evaluate(case, w) for name, w in (("original", original), ("retrained", retrained))
    })  # fmt: skip


def test_the_problem_is_learned_by_heart(lab):
    assert lab.original["forget"] > 95
    assert lab.retrained["forget"] < lab.original["forget"] - 10


def test_every_judge_tells_original_from_retrain_in_the_right_direction(lab):
    remembers, forgot = lab.original, lab.retrained
    for name in ("forget", "song", "yeom", "threshold_auc", "shadow_auc", "agreement_forget", "backdoor"):
        more, less = (forgot, remembers) if name == "agreement_forget" else (remembers, forgot)
        assert more[name] > less[name], name
    for name in ("loss", "relearn"):  # what is forgotten is a surprise, and has to be learned again
        assert remembers[name] < forgot[name], name
    for name in ("gap", "distance", "kl", "kl_forget"):
        assert remembers[name] > forgot[name] == pytest.approx(0, abs=1e-9), name
    assert remembers["tpr"] >= forgot["tpr"]
    assert remembers["shadow"] > forgot["shadow"]


def test_original_and_retrain_are_the_ends_of_the_scales(lab):
    assert (lab.original["distance"], lab.retrained["distance"]) == (pytest.approx(1), 0)
    assert (lab.original["relearn"], lab.original["relearned"]) == (0, True)
    assert lab.retrained["relearn"] > 0
    assert (lab.retrained["kl"], lab.retrained["kl_forget"]) == (pytest.approx(0), pytest.approx(0))
    assert lab.retrained["agreement_forget"] == 100


def test_a_model_that_has_left_the_numbers_is_refused_as_diverged(lab):
    with pytest.raises(NumericalFailure, match="is nan: a model is not finite"):
        judges.evaluate(lab.case, torch.full_like(lab.case.original, float("nan")))


def test_between_the_two_lies_half_the_distance(lab):
    half = judges.evaluate(replace(lab.case, relearn_cap=0), (lab.case.original + lab.case.retrained) / 2)
    assert half["distance"] == pytest.approx(0.5, rel=1e-4)
    assert not {"relearn", "relearned"} & set(half)


def test_the_attack_learns_from_one_half_of_the_test_set_and_is_asked_about_the_other(lab, monkeypatch):
    """And only about samples of the classes that were forgotten, in their shares."""
    case, seen = lab.case, {}

    def fit(members, others, **how):
        seen["known"] = others[0][1]
        seen["members"] = members[0][1]

    def asked(attack, forget, unseen):
        seen["forget"], seen["unseen"] = forget[1], unseen[1]
        return SimpleNamespace(balanced_accuracy=0.5, auc=0.5)

    monkeypatch.setattr(judges, "fit_attack", fit)
    monkeypatch.setattr(judges, "shadow", asked)
    judges._attack.cache_clear()
    judges.evaluate(replace(case, relearn_cap=0), case.retrained)
    judges._attack.cache_clear()
    y_test, y_forget = case.p.test[1], case.deletion.forget[1]
    known = judges.half_of_each_class(y_test, "attack")
    rest = judges.class_matched(y_test[~known], y_forget, "unseen")
    assert torch.equal(seen["known"], y_test[known])
    assert torch.equal(seen["unseen"], y_test[~known][rest])
    assert torch.equal(seen["forget"], y_forget)
    assert len(seen["members"]) == 160 - len(y_forget)  # its own originals, without what is to be forgotten
    shares = [torch.bincount(y, minlength=10) / len(y) for y in (seen["unseen"], y_forget)]
    assert (shares[0] - shares[1]).abs().max() < 0.1


def test_without_an_attacker_or_a_backdoor_nothing_is_said_about_them(lab):
    found = judges.evaluate(replace(lab.case, attacker=None, trigger=None, relearn_cap=0), lab.case.retrained)
    assert not {"shadow", "shadow_auc", "backdoor", "relearn"} & set(found)
    assert found["threshold_auc"] == lab.retrained["threshold_auc"]
