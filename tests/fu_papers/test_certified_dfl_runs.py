"""Certified DFL's runs on a tiny network: who forgets what, that retraining never sees it, and what is measured."""

from dataclasses import replace

import pytest
import torch
from fu_core.unlearning.certified import DU, certified_unlearn
from fu_core.unlearning.deletion import Deletion

from fu_core.errors import ConfigError
from fu_core.evaluation.membership import half_of_each_class
from fu_core.federation.decentralised import dpsgd, metropolis, topology, without
from fu_papers.certified_dfl import runs as certified_dfl
from fu_papers.certified_dfl.grid import Experiment, Place
from fu_papers.certified_dfl.runs import Federation, forget_of
from fu_papers.lab.context import RunContext
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.problems import problem

CONVEX, NET = "digits/unit_softmax", "digits/mlp"
TINY = Experiment(
    "test", [CONVEX, NET], ["iid", "dirichlet-0.3"], ["ring"], seeds=[0], n_train=[200, 200], n_test=[100, 100],
    rounds=[6, 4], lr=[3.0, 0.05], lr_decay=[0.9, 0.9], momentum=[0.0, 0.0], batch_size=[20, 20], epochs=[1.0, 1.0],
    l2=[0.01, 0.0], curvature=["hessian", "ggn"], printed_curvature=["hessian", "diagonal_fisher"],
    damping=[0.0, 0.01], curvature_samples=[0, 20], clients=4, budget=1.0, epsilons=[1.0], pdudt_rounds=2,
    timed_rounds=2,
)  # fmt: skip
HERE = TINY.main(CONVEX)
SAMPLE, CLASS, CLIENT = TINY.requests().values()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordStore(tmp_path_factory.mktemp("certified_dfl"))


def run(store, function, config):
    with single_threaded():
        return store.run(function, config, data_hash=problem(config).data_hash)


def models(store, request, place=HERE):
    with single_threaded():
        return certified_dfl.models_of(TINY.training(place, 0), store, request)


# --- requests ---


def test_a_request_by_samples_takes_a_tenth_of_everybody():
    p = problem(TINY.training(HERE, 0))
    forget = forget_of(SAMPLE, p)
    assert sorted(forget) == [0, 1, 2, 3]
    assert [len(rows) for rows in forget.values()] == [5, 5, 5, 5]


def test_a_request_by_class_takes_all_of_it_and_nothing_else():
    p = problem(TINY.training(HERE, 0))
    for i, rows in forget_of(CLASS, p).items():
        labels = p.clients[i][1]
        gone = torch.zeros(len(labels), dtype=torch.bool)
        gone[rows] = True
        assert torch.equal(gone, labels == 0)


def test_sequential_requests_contain_each_other_and_end_at_their_share():
    p = problem(TINY.training(HERE, 0))
    first, second, third = (forget_of(TINY.sequence_request(j), p) for j in (1, 2, 3))
    for i in range(4):
        assert first[i].tolist() == second[i][: len(first[i])].tolist()
        assert second[i].tolist() == third[i][: len(second[i])].tolist()
        assert len(third[i]) == round(0.2 * 50)


def test_a_request_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match="request must begin with"):
        forget_of("everything", problem(TINY.training(HERE, 0)))


def test_a_client_that_holds_nothing_but_the_class_leaves_the_network(monkeypatch):
    """Under Dirichlet splits a class-wise request can take all that somebody has."""
    config = TINY.training(HERE, 0)
    p = problem(config)
    of_one_class = p.parts[2][p.dataset.y_train[p.parts[2]] == 0]
    parts = (*p.parts[:2], of_one_class, p.parts[3])
    clients = [(p.dataset.x_train[part], p.dataset.y_train[part]) for part in parts]
    monkeypatch.setattr(certified_dfl, "problem", lambda _: replace(p, parts=parts, clients=clients))
    f = Federation(config, CLASS)
    assert f.ids == [0, 1, 3]
    assert f.Q_after.shape == (3, 3)
    assert len(f.kept[2][1]) == 0


# --- training ---


@pytest.mark.parametrize("request_text", [SAMPLE, CLASS, CLIENT])
def test_retraining_never_sees_what_is_forgotten_and_starts_where_training_started(store, request_text):
    """The same bits whatever the forgotten samples are: here all of them are blank."""
    f = Federation(TINY.training(HERE, 0), request_text)
    blank = [(x.clone(), y) for x, y in f.problem.clients]
    for i in f.deletion.forgotten:
        rows = slice(None) if isinstance(f.forget, int) else f.forget[i]
        blank[i][0][rows] = 0
    kept = Deletion.of(blank, f.forget).kept
    graph = topology("ring", 4)
    Q = metropolis(without(graph, [TINY.leaving]) if request_text == CLIENT else graph)
    with single_threaded():
        W = dpsgd(f.model, f.initial(), kept, Q, rounds=6, local=f.local, seed=0)
    assert torch.equal(W, models(store, request_text))
    assert len(W) == (3 if request_text == CLIENT else 4)
    assert not torch.equal(W.mean(dim=0), models(store, "none").mean(dim=0))


def test_a_training_that_was_interrupted_ends_in_the_same_bits(store, tmp_path, monkeypatch):
    config = TINY.training(HERE, 0)
    whole = models(store, "none")
    checkpoint, made = RunContext.checkpoint, []

    def dies(self, *args):
        checkpoint(self, *args)
        made.append(args)
        if len(made) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunContext, "checkpoint", dies)
    again = RecordStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(again, certified_dfl.train, config)
    monkeypatch.setattr(RunContext, "checkpoint", checkpoint)
    record = run(again, certified_dfl.train, config)
    assert torch.equal(again.tensors(record.key)["W"], whole)
    assert [row["round"] for row in record.rounds] == list(range(1, 7))
    assert record.metrics["bytes"] == 6 * 8 * 4 * 640


# --- unlearning ---


def test_doing_nothing_is_at_distance_one_and_retraining_at_zero(store):
    for method, gap in (("Original", 1.0), ("Retrain", 0.0)):
        metrics = run(store, certified_dfl.unlearn, TINY.unlearning(HERE, 0, SAMPLE, method)).metrics
        assert metrics["gap"] == pytest.approx(gap)
        assert metrics["before_test"] == metrics["test"]


@pytest.mark.parametrize("method", ["DU", "DU printed"])
def test_an_unlearning_run_is_the_library_call_and_one_round_on_retained_data(store, method):
    config = TINY.unlearning(HERE, 0, SAMPLE, method)
    metrics = run(store, certified_dfl.unlearn, config).metrics
    f = Federation(config, SAMPLE)
    options = {key: value for key, value in config["du"].items() if key not in ("form", "curvature")}
    du = DU(**config["du"])
    with single_threaded():
        W = certified_unlearn(
            f.model,
            models(store, "none"),
            f.problem.clients,
            f.forget,
            f.Q,
            form=du.form,
            curvature=du.curvature,
            **options,
        )
        tuned = dpsgd(f.model, W, f.kept, f.Q, rounds=1, local=f.local, seed=0, first_round=7)
        found, before = (certified_dfl.evaluate(f, V, models(store, SAMPLE), models(store, "none")) for V in (tuned, W))
    assert {name: metrics[name] for name in found} == found
    assert {name: metrics[f"before_{name}"] for name in before} == before
    assert metrics["step"] > 0


def test_class_wise_runs_tell_the_removed_class_from_the_others(store):
    metrics = run(store, certified_dfl.unlearn, TINY.unlearning(HERE, 0, CLASS, "Retrain")).metrics
    f = Federation(TINY.training(HERE, 0), CLASS)
    y = f.problem.test[1]
    share = float((y == 0).double().mean())
    assert metrics["removed"] == 0  # a class that was never seen
    assert metrics["test"] == pytest.approx(share * metrics["removed"] + (1 - share) * metrics["remaining"])
    assert "removed" not in run(store, certified_dfl.unlearn, TINY.unlearning(HERE, 0, SAMPLE, "Retrain")).metrics


@pytest.mark.parametrize("y", [torch.arange(60) % 6, torch.arange(60) // 10])
def test_the_attackers_half_of_the_test_set_has_half_of_every_class(y):
    """Even with labels in an order: every second sample would be every second class."""
    half = half_of_each_class(y, "test halves")
    assert y[half].bincount().tolist() == [5] * 6
    assert half.tolist() != (torch.arange(60) % 2 == 0).tolist()


def test_pdudt_counts_what_it_keeps_and_runs_its_rounds(store):
    metrics = run(store, certified_dfl.unlearn, TINY.unlearning(HERE, 0, CLIENT, "PDUDT")).metrics
    assert metrics["kept"] == 2 * 6 * 4 * 640 * 4  # models and gradients, K rounds, 4 clients
    assert metrics["published"] == 6 * 2 * 640 * 4  # k N_c d B
    assert (
        metrics["bytes"] == (6 * 4 + 2 * 6) * 640 * 4
    )  # a replay on what is left of the ring, two rounds on a closed one


# --- curves, time, certificates ---


def test_curves_begin_with_the_training_and_serve_one_request_after_the_other(store):
    curves = TINY.curves()
    training = run(store, certified_dfl.train, TINY.training(HERE, 0))
    for method in ("DU", "Retrain"):
        record = run(store, certified_dfl.curve, curves[CONVEX, "sample", method])
        begun = [row for row in record.rounds if row["phase"] == 0]
        assert [row["test"] for row in begun] == [row["test"] for row in training.rounds]
        rounds = 6 if method == "Retrain" else TINY.pdudt_rounds
        for phase in (1, 2, 3):
            assert [row["round"] for row in record.rounds if row["phase"] == phase] == list(range(rounds + 1))
    replayed = run(store, certified_dfl.curve, curves[CONVEX, "client", "PDUDT"])
    assert [row["test"] for row in replayed.rounds if row["phase"] == 0] == [row["test"] for row in training.rounds]


def test_retraining_in_a_curve_ends_where_the_retrained_model_is(store):
    record = run(store, certified_dfl.curve, TINY.curves()[CONVEX, "client", "Retrain"])
    retrained = run(store, certified_dfl.train, TINY.training(HERE, 0, CLIENT))
    assert record.rounds[-1]["test"] == retrained.rounds[-1]["test"]


def test_speed_times_every_method_and_projects_retraining_from_its_rounds(store):
    record = run(store, certified_dfl.speed, TINY.speeds()[NET, "client"])
    seconds = record.metrics["seconds"]
    assert set(seconds) == {"Retrain", "round", "DU printed", "DU", "PDUDT", "PDUDT replay"}
    assert seconds["Retrain"] == pytest.approx(4 * seconds["round"])
    assert seconds["DU"] > seconds["round"]
    assert seconds["PDUDT"] == pytest.approx(seconds["PDUDT replay"] + 2 * seconds["round"])


def test_certificates_measure_the_radius_and_refuse_what_is_beyond_budget(store):
    (config,) = TINY.certificates()
    record = run(store, certified_dfl.certify, config)
    corrected, printed = record.rounds
    assert corrected["released"]
    assert corrected["claimed_radius"] == pytest.approx(record.metrics["radius"], rel=1e-3)
    assert corrected["claimed_radius"] <= config["budget"] < record.metrics["radius_original"]
    assert printed["sigma"] > 1000 * corrected["sigma"]
    strict = run(store, certified_dfl.certify, {**config, "budget": 1e-6})
    assert not strict.rounds[0]["released"]
    assert "retrain" in strict.rounds[0]["reason"]


def test_places_are_those_of_tables_i_to_iv():
    assert TINY.places()[:2] == [Place(CONVEX, "iid", "ring"), Place(CONVEX, "dirichlet-0.3", "ring")]
    assert TINY.main(NET) == Place(NET, "iid", "ring")
