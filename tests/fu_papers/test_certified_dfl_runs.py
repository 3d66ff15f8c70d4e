"""Certified DFL's runs on a tiny network: who forgets what, that retraining never sees it, and what is measured."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fu_core.errors import InvalidRequest
from fu_core.evaluation.membership import half_of_each_class
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.graphs import Peers, topology, without
from fu_core.request import Deletion, Request
from fu_core.unlearning.du import DU, du
from fu_papers.certified_dfl import certify as certify_module
from fu_papers.certified_dfl import runs, titles
from fu_papers.certified_dfl.certify import certify
from fu_papers.certified_dfl.curve import curve, newly_asked
from fu_papers.certified_dfl.exact import CLOSE
from fu_papers.certified_dfl.grid import Place
from fu_papers.certified_dfl.runs import Case, federation
from fu_papers.certified_dfl.speed import speed
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.problems import initial_model, problem
from tests.certified_dfl_lab import CONVEX, NET, experiment
from tests.interruption import interrupt

TINY = experiment(topologies=["ring"], seeds=[0], epsilons=[1.0])
HERE = TINY.main(CONVEX)
SAMPLE, CLASS, CLIENT = TINY.requests().values()
TRAINING = TINY.training(HERE, 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordStore(tmp_path_factory.mktemp("certified_dfl"))


def run(store, function, config):
    with single_threaded():
        return store.run(function, config)


def models(store, request, place=HERE):
    return store.tensors(run(store, runs.train, TINY.training(place, 0, request)).key)["W"]


def case(store, request):
    """The federation, the request and both trainings' models."""
    f = federation(TRAINING)
    deletion = Request.parse(request).resolve(f.clients)
    config = {name: TINY.training(HERE, 0, request)[name] for name in runs.EXACT_KEYS}
    minimiser = store.tensors(run(store, runs.exact, config).key)["x"]
    return Case(f, deletion, problem(TRAINING).test, models(store, "none"), models(store, request), minimiser)


# --- requests ---


def test_a_request_by_samples_takes_a_tenth_of_everybody():
    gone = Request.parse(SAMPLE).resolve(federation(TRAINING).clients).forgotten
    assert {i: len(y) for i, (_, y) in gone.items()} == dict.fromkeys(range(4), 5)


def test_a_request_by_class_takes_all_of_it_and_nothing_else():
    f = federation(TRAINING)
    deletion = Request.parse(CLASS).resolve(f.clients)
    for i, (_, y) in f.clients.items():
        assert len(deletion.forgotten[i][1]) == int((y == 0).sum())
        assert (deletion.forgotten[i][1] == 0).all()
        assert (deletion.kept[i][1] != 0).all()


def test_sequential_requests_contain_each_other_and_end_at_their_share():
    labels = {i: y for i, (_, y) in federation(TRAINING).clients.items()}
    first, second, third = (Request.parse(TINY.sequence_request(j)).rows(labels) for j in (1, 2, 3))
    for i in range(4):
        assert set(first[i].tolist()) < set(second[i].tolist()) < set(third[i].tolist())
        assert len(third[i]) == round(0.2 * 50)


def test_the_next_of_cumulative_requests_takes_what_is_new_of_what_is_left():
    f = federation(TRAINING)
    labels = {i: y for i, (_, y) in f.clients.items()}
    earlier, later = (TINY.sequence_request(j) for j in (1, 2))
    left = f.after(Request.parse(earlier).resolve(f.clients)).clients
    in_one, in_two = Request.parse(later).resolve(f.clients), Deletion.of(left, newly_asked(later, earlier, f))
    for i in labels:
        assert torch.equal(in_two.kept[i][0], in_one.kept[i][0])
        assert in_two.m == in_one.m - Request.parse(earlier).resolve(f.clients).m
    at_once = newly_asked(earlier, "none", f)
    assert {i: rows.tolist() for i, rows in at_once.items()} == {
        i: rows.tolist() for i, rows in Request.parse(earlier).rows(labels).items()
    }


def test_a_further_request_asks_nothing_of_who_has_left_or_holds_none_of_it():
    f = SimpleNamespace(clients={i: (None, torch.tensor(y)) for i, y in enumerate(([0, 0], [0, 1], [1, 2, 1]))})

    def new(request, earlier):
        return {i: rows.tolist() for i, rows in newly_asked(request, earlier, f).items()}

    assert new("classes-2-100-from-0", "class-0") == {1: [0], 2: [0, 2]}
    assert new("client-0-2", "client-0") == {2: [0, 1, 2]}


def test_every_kind_of_request_is_certified_and_further_ones_contain_those_before():
    kinds = TINY.certified()
    assert list(kinds) == list(titles.SERVED)
    assert {place.setting for place, *_ in TINY.certificates()} == {
        p.setting for p in TINY.places() if TINY.convex(p.dataset)
    }
    labels = {i: y for i, (_, y) in federation(TRAINING).clients.items()}
    for kind in ("sequence", "classes", "leavers"):
        rows = [Request.parse(request).rows(labels) for request in kinds[kind]]
        assert len(rows) > 1
        for one, more in itertools.pairwise(rows):
            assert all(set(one[i].tolist()) <= set(more[i].tolist()) for i in one)
            assert sum(map(len, more.values())) > sum(map(len, one.values()))
    assert Request.parse(kinds["clients"][0]).clients == (TINY.leaving, (TINY.leaving + 1) % TINY.clients)
    smallest = experiment(clients=3, scale_clients=[3]).certified()  # where two have to stay
    assert smallest["leavers"] == kinds["client"]
    assert "clients" not in smallest


def test_a_request_nobody_knows_is_refused(store):
    with pytest.raises(InvalidRequest, match="request must begin with"):
        run(store, runs.train, {**TRAINING, "request": "everything"})


def test_a_client_that_holds_nothing_but_the_class_leaves_the_network(monkeypatch):
    """Under Dirichlet splits a class-wise request can take all that somebody has."""
    p = problem(TRAINING)
    of_one_class = p.parts[2][p.dataset.y_train[p.parts[2]] == 0]
    parts = (*p.parts[:2], of_one_class, p.parts[3])
    clients = [(p.dataset.x_train[part], p.dataset.y_train[part]) for part in parts]
    monkeypatch.setattr(runs, "problem", lambda _: replace(p, parts=parts, clients=clients))
    f = federation(TRAINING)
    rest = f.after(Request.parse(CLASS).resolve(f.clients))
    assert rest.ids == [0, 1, 3]
    assert rest.peers.Q.shape == (3, 3)


# --- training ---


@pytest.mark.parametrize("request_text", [SAMPLE, CLASS, CLIENT])
def test_retraining_never_sees_what_is_forgotten_and_starts_where_training_started(store, request_text):
    """The same bits whatever the forgotten samples are: here all of them are blank."""
    f = federation(TRAINING)
    rows = Request.parse(request_text).rows({i: y for i, (_, y) in f.clients.items()})
    blank = {i: (x.clone(), y) for i, (x, y) in f.clients.items()}
    for i, gone in rows.items():
        blank[i][0][gone] = 0
    kept = Deletion.of(blank, rows).kept
    graph = topology("ring", 4)
    peers = Peers(without(graph, [TINY.leaving]) if request_text == CLIENT else graph, TINY.order)
    with single_threaded():
        W = dpsgd(f.having(clients=kept, exchange=peers), initial_model(TRAINING, f.model), 6)
    assert torch.equal(W, models(store, request_text))
    assert len(W) == (3 if request_text == CLIENT else 4)
    assert not torch.equal(W.mean(dim=0), models(store, "none").mean(dim=0))


def test_a_training_that_was_interrupted_ends_in_the_same_bits(store, tmp_path):
    whole = models(store, "none")
    again = RecordStore(tmp_path)
    interrupt(lambda: run(again, runs.train, TRAINING), after=3)
    record = run(again, runs.train, TRAINING)
    assert torch.equal(again.tensors(record.key)["W"], whole)
    assert [row["round"] for row in record.rounds] == list(range(1, 7))
    assert record.metrics["bytes"] == 6 * 8 * 4 * 640


# --- unlearning ---


def test_doing_nothing_is_at_distance_one_and_retraining_at_zero(store):
    for method, gap in (("Original", 1.0), ("Retrain", 0.0)):
        metrics = run(store, runs.unlearn, TINY.unlearning(HERE, 0, SAMPLE, method)).metrics
        assert metrics["gap"] == pytest.approx(gap)
        assert metrics["before_test"] == metrics["test"]


@pytest.mark.parametrize("method", ["DU", "DU printed"])
def test_an_unlearning_run_is_the_library_call_and_one_round_on_retained_data(store, method):
    config = TINY.unlearning(HERE, 0, SAMPLE, method)
    metrics = run(store, runs.unlearn, config).metrics
    here = case(store, SAMPLE)
    with single_threaded():
        W = du(here.f, here.original, here.deletion, DU(**config["options"]))
        tuned = dpsgd(here.rest, W, 1, first_round=7)
        found, before = (runs.evaluate(here, V) for V in (tuned, W))
    assert {name: metrics[name] for name in found} == found
    assert {name: metrics[f"before_{name}"] for name in before} == before
    assert metrics["step"] > 0


def test_doing_nothing_but_one_round_is_that_round(store):
    metrics = run(store, runs.unlearn, TINY.unlearning(HERE, 0, SAMPLE, "Fine-tune")).metrics
    here = case(store, SAMPLE)
    with single_threaded():
        tuned = dpsgd(here.rest, here.original, 1, first_round=7)
        found, before = (runs.evaluate(here, V) for V in (tuned, here.original))
    assert {name: metrics[name] for name in found} == found
    assert {name: metrics[f"before_{name}"] for name in before} == before
    assert metrics["images"] == 180  # a round of one epoch: four clients with 45 of 50 samples left


def test_class_wise_runs_tell_the_removed_class_from_the_others(store):
    metrics = run(store, runs.unlearn, TINY.unlearning(HERE, 0, CLASS, "Retrain")).metrics
    y = problem(TRAINING).test[1]
    share = float((y == 0).double().mean())
    assert metrics["removed"] == 0  # a class that was never seen
    assert metrics["test"] == pytest.approx(share * metrics["removed"] + (1 - share) * metrics["remaining"])
    assert "removed" not in run(store, runs.unlearn, TINY.unlearning(HERE, 0, SAMPLE, "Retrain")).metrics


@pytest.mark.parametrize("y", [torch.arange(60) % 6, torch.arange(60) // 10])
def test_the_attackers_half_of_the_test_set_has_half_of_every_class(y):
    """Even with labels in an order: every second sample would be every second class."""
    half = half_of_each_class(y, "test halves")
    assert y[half].bincount().tolist() == [5] * 6
    assert half.tolist() != (torch.arange(60) % 2 == 0).tolist()


def test_pdudt_counts_what_it_keeps_and_runs_its_rounds(store):
    metrics = run(store, runs.unlearn, TINY.unlearning(HERE, 0, CLIENT, "PDUDT")).metrics
    assert metrics["kept"] == 2 * 6 * 4 * 640 * 4  # models and gradients, K rounds, 4 clients
    assert metrics["published"] == 6 * 2 * 640 * 4  # k N_c d B
    assert (
        metrics["bytes"] == (6 * 4 + 2 * 6) * 640 * 4
    )  # a replay on what is left of the ring, two rounds on a closed one


# --- curves, time, certificates ---


def test_curves_begin_with_the_training_and_serve_one_request_after_the_other(store):
    curves = TINY.curves()
    training = run(store, runs.train, TINY.training(HERE, 0))
    for method in ("DU", "Retrain"):
        record = run(store, curve, curves[CONVEX, "sample", method, 0])
        begun = [row for row in record.rounds if row["phase"] == 0]
        assert [row["test"] for row in begun] == [row["test"] for row in training.rounds]
        rounds = 6 if method == "Retrain" else TINY.pdudt_rounds[0]
        for phase in (1, 2, 3):
            assert [row["round"] for row in record.rounds if row["phase"] == phase] == list(range(rounds + 1))
    replayed = run(store, curve, curves[CONVEX, "client", "PDUDT", 0])
    assert [row["test"] for row in replayed.rounds if row["phase"] == 0] == [row["test"] for row in training.rounds]


def test_a_curve_looks_at_all_test_images_and_a_training_at_a_glance(store):
    """2,000 of 10,000 test images left half a point of Fig. 1's verdicts to chance."""
    config = TINY.curves()[CONVEX, "sample", "DU", 0]
    assert config["test_images"] == 0
    everything = run(store, curve, config)
    assert everything.rounds[-1]["test"] == everything.metrics["test"]
    training = run(store, runs.train, TINY.training(HERE, 0))
    *_, trained = (row for row in everything.rounds if row["phase"] == 0)
    assert trained["test"] == training.metrics["test"]
    few = run(store, curve, {**config, "test_images": 7})
    shares = [row["test"] / 100 * 7 for row in few.rounds if row["phase"]]
    assert shares == pytest.approx([round(share) for share in shares])


def test_training_on_in_a_curve_is_dpsgd_on_what_is_left(store):
    """The control of DU's sequence: no step, and as many rounds as follow DU's."""
    record = run(store, curve, TINY.curves()[CONVEX, "sample", "Fine-tune", 0])
    phases = [[row["test"] for row in record.rounds if row["phase"] == phase] for phase in range(4)]
    assert [len(phase) for phase in phases[1:]] == [TINY.pdudt_rounds[0] + 1] * 3
    assert phases[1][0] == phases[0][-1]
    assert phases[2][0] == phases[1][-1]
    assert phases[1] != [phases[1][0]] * len(phases[1])  # something is trained


def test_retraining_in_a_curve_ends_where_the_retrained_model_is(store):
    record = run(store, curve, TINY.curves()[CONVEX, "client", "Retrain", 0])
    retrained = run(store, runs.train, TINY.training(HERE, 0, CLIENT))
    assert record.rounds[-1]["test"] == retrained.rounds[-1]["test"]


def test_speed_times_every_method_and_projects_retraining_from_its_rounds(store):
    record = run(store, speed, TINY.speeds()[NET, "client"])
    seconds = record.metrics["seconds"]
    assert set(seconds) == {"Retrain", "round", "DU printed", "DU", "PDUDT", "PDUDT replay"}
    assert seconds["Retrain"] == pytest.approx(4 * seconds["round"])
    assert seconds["DU"] > seconds["round"]
    assert seconds["PDUDT"] == pytest.approx(seconds["PDUDT replay"] + 2 * seconds["round"])


def test_certificates_measure_the_radius_and_refuse_what_is_beyond_budget(store):
    config = TINY.certificates()[HERE, "sample", 0]
    record = run(store, certify, config)
    corrected, printed = record.rounds
    (served,) = record.metrics["served"]
    assert corrected["released"]
    assert corrected["claimed_radius"] == pytest.approx(served["radius"], rel=1e-3)
    assert corrected["claimed_radius"] <= config["budget"] < served["radius_before"]
    assert record.metrics["composed"]["1"] == pytest.approx(1)
    assert printed["sigma"] > 1000 * corrected["sigma"]
    strict = {**config, "budget": 1e-12, "du": {**config["du"], "until": 1e-12, "steps": 2}}
    refused = run(store, certify, strict)
    assert not refused.rounds[0]["released"]
    assert "retrain" in refused.rounds[0]["reason"]
    assert refused.metrics["composed"]["1"] is None


def test_world_b_has_noise_of_its_own_for_every_cell_request_and_epsilon(store, monkeypatch):
    """Five draws behind every accuracy with noise, in either world; no two of them alike."""
    noises = []
    for kind in ("sample", "class"):
        evaluated = []
        monkeypatch.setattr(certify_module, "accuracy", lambda model, w, x, y, seen=evaluated: seen.append(w) or 50.0)
        config = {**TINY.certificates()[HERE, kind, 0], "epsilons": [1.0, 2.0], "printed": {}}
        record = run(store, certify, config)
        exact = evaluated[2]
        assert len(evaluated) == 3 + 2 * 2 * 5
        sigmas = [row["sigma"] for row in record.rounds]
        for sigma, world_b in zip(sigmas, (evaluated[8:13], evaluated[18:23]), strict=True):
            noises += [(w - exact) / sigma for w in world_b]
    noises = torch.stack(noises)
    lengths = noises.norm(dim=1)
    assert lengths.tolist() == pytest.approx([noises.shape[1] ** 0.5] * 20, rel=0.2)
    near = noises @ noises.T / lengths.outer(lengths) - torch.eye(20)
    assert float(near.abs().max()) < 0.25  # nearly orthogonal


def test_requests_in_a_row_go_on_from_the_models_without_noise(store):
    """Each ends at the minimiser of what is then retained; three releases cost less than three epsilons."""
    record = run(store, certify, TINY.certificates()[HERE, "sequence", 0])
    served = record.metrics["served"]
    assert [entry["request"] for entry in served] == [TINY.sequence_request(j) for j in (1, 2, 3)]
    assert max(entry["radius"] for entry in served) <= TINY.budget
    assert served[1]["radius_before"] < served[0]["radius_before"]  # the second starts where the first one ended
    assert 1 < record.metrics["composed"]["1"] < 3


def test_the_minimiser_is_that_of_what_is_retained(store):
    """Nearer to it than D-PSGD, with the data or without; and the graph has no say in it."""
    here = case(store, CLASS)
    found = runs.evaluate(here, here.exact.expand(4, -1))
    assert found["radius"] <= 1.01 * CLOSE
    assert found["exact_gap"] == 0
    assert runs.evaluate(here, here.retrained)["exact_gap"] > 0.01
    assert runs.evaluate(here, here.original)["exact_gap"] == pytest.approx(1)


def test_the_attack_on_a_class_that_is_gone_uses_that_class_alone(store):
    """Without nearly all test samples of other classes it is the same attack, threshold and all."""
    here = case(store, CLASS)
    x, y = here.test
    few = (y == 0) | (torch.arange(len(y)) < 5)
    found, alone = (runs.evaluate(one, here.original) for one in (here, replace(here, test=(x[few], y[few]))))
    assert [found[name] for name in ("mia", "auc", "tpr")] == [alone[name] for name in ("mia", "auc", "tpr")]
    seen, tried = runs.halves(torch.arange(9.0), "halves")
    assert sorted([*seen.tolist(), *tried.tolist()]) == list(range(9))


def test_places_are_those_of_tables_i_to_iv():
    assert TINY.places()[:2] == [Place(CONVEX, "iid", "ring"), Place(CONVEX, "dirichlet-0.3", "ring")]
    assert TINY.main(NET) == Place(NET, "iid", "ring")
