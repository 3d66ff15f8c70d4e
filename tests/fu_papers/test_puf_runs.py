"""PUF's runs on a tiny federation: what they measure, what they cost, and that no interruption leaves a trace.

Four clients with 160 digits, once dealt out evenly (40 each, softmax regression) and once skewed (34, 49, 35, 42, a
small net); six hospitals with 18 slices of the phantom.
"""

import math
import shutil
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from fu_core.data.datasets import data_dir
from fu_core.errors import ConfigError, MissingHistory
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.local import train_client
from fu_core.request import Request
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines import fed_eraser as fed_eraser_module
from fu_core.unlearning.baselines.fed_au_official import fed_au_unlearn
from fu_core.unlearning.memory import Memory, UpdateHistory
from fu_core.unlearning.method import Trained
from fu_core.unlearning.method import unlearn as serve_request
from fu_papers import problems
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_key
from fu_papers.lab.store import CommittedStore, RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.look import style
from fu_papers.problems import problem
from fu_papers.puf import figures, printed_tables, recovery_figures, results, tables, trainings
from fu_papers.puf import runs as puf
from fu_papers.puf.cost_model import AppendixA, Workload, rounds_cost, unlearning_cost
from fu_papers.puf.costs import cost_cells, mismatches
from fu_papers.puf.grid import AGAIN, CONTROLS, DESTROYED, METHODS, OFFICIAL, PUBLISHED, REFERENCES
from fu_papers.study import Cell, Study, wide
from tests.puf_lab import experiment

SKEWED = "digits/dirichlet-0.5/mlp"
EVEN = "digits/iid/softmax_regression"
SITES = "phantom/site/small_res_unet"
DIGITS = experiment(
    [SKEWED, EVEN], targets=[0, 1], seeds=[0], clients=4, n_train=160, n_val=60, n_test=120, rounds=5,
    epochs=1.0, epochs_u=2.0, batch_size=20, lr=0.1, eta_u_special=2.0, eta_u_regular=6.0, recovery_cap=3,
    natural_rounds=[1, 2], history_interval=2, pga_stop=1000.0, mode_rounds_d=1, mode_rounds_m=2, fed_au_epochs=2,
    long_settings=[SKEWED], long_epochs=4.0, long_rounds=2, sample_settings=[SKEWED], pair_settings=[SKEWED],
    sweep_settings=[SKEWED], sweep_special=[1.0, 2.0], sweep_regular=[6.0], sweep_epochs_u=[2.0],
)  # fmt: skip
TINY = DIGITS.changed(
    segmentation_settings=[SITES], segmentation_n_train=18, segmentation_n_val=6, segmentation_rounds=2,
    segmentation_batch_size=4, segmentation_lr=0.01, segmentation_special=[2.0], segmentation_regular=[],
)  # fmt: skip
RETAINED = 3  # rounds 1, 3 and 5
CANNOT = {"samples": ("FedEraser", "PGA", "MoDe"), "pairs": ("PGA", "MoDe"),
          "segmentation": ("MoDe", "FedAU", "Random labels")}  # fmt: skip
TABLED = [method for method in METHODS if method not in ("Fine-tune", "Random labels")]  # in the paper's tables
P_C = {SKEWED: 128 * 10 + 10, EVEN: 64 * 10 + 10}  # P_c, the last layer


STAGES = {
    "descriptions": "settings", "trainings": "training", "unlearnings": "unlearning and recovery",
    "patient": "with more patience", "norms": "the other divisor", "swept": "sweep over eta_u and E_u",
    "printed": "formula as printed",
    "equivalence": "Regular against Special",
}  # fmt: skip


def run_all(e, store, jobs=1):
    """Everything the notebook runs on data of ours."""
    study = Study(e, store, jobs)
    return SimpleNamespace(store=store, **{name: study.run(stage) for name, stage in STAGES.items()})


def all_records(runs):
    return [record for name in STAGES for record in getattr(runs, name).values()]


def bits(records):
    """What must be the same bits wherever and however a run was made."""
    return [(record.key, record.metrics, record.rounds, record.tensors) for record in records]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return run_all(TINY, RecordStore(tmp_path_factory.mktemp("tiny") / "records"))


def run(store, function, config):
    with single_threaded():
        return store.run(function, config)


def training(setting=SKEWED, seed=0, request="none", *, scenario="clients", e=TINY):
    return e.training(e.scenario(scenario), setting, seed, request)


def unlearning(cell, e=TINY):
    return e.unlearning(e.scenario(cell.group), *cell[1:5])


def deletion(setting, request, scenario="clients"):
    return Request.parse(request).resolve(problem(training(setting, scenario=scenario)).clients)


def cell(method, request="client-0", *, scenario="clients", setting=SKEWED):
    return Cell(scenario, setting, 0, request, method)


def test_a_method_after_which_training_leaves_the_numbers_has_diverged(tiny):
    config = unlearning(cell("PUF-Special"))
    config["options"] = config["options"] | {"eta_u": 1e38}
    record = run(tiny.store, puf.unlearn, config)
    assert list(record.metrics) == ["diverged"]
    assert "not finite" in record.metrics["diverged"]


def sizes(setting, scenario="clients"):
    return [len(y) for _, y in problem(training(setting, scenario=scenario)).clients]


def recovered(tiny, *scenarios):
    """The records of the methods that recover, from the named scenarios (default: all)."""
    return {
        c: record
        for c, record in tiny.unlearnings.items()
        if c.method in METHODS and "unsupported" not in record.metrics and (not scenarios or c.group in scenarios)
    }


# --- requests ---


def test_the_tiny_federation_is_what_these_tests_rely_on():
    assert sizes(EVEN) == [40, 40, 40, 40]
    assert sizes(SKEWED) == [34, 49, 35, 42]
    assert (sum(sizes(SITES, "segmentation")), len(sizes(SITES, "segmentation"))) == (18, 6)


@pytest.mark.parametrize(
    ("request_text", "leaving", "forgotten", "kept"),
    [
        ("client-1", [1], {1: 49}, {0: 34, 2: 35, 3: 42}),
        ("client-0-3", [0, 3], {0: 34, 3: 42}, {1: 49, 2: 35}),
        ("sample-0-0.5", [], {0: 17}, {0: 17, 1: 49, 2: 35, 3: 42}),
        ("sample-3-0.25", [], {3: 10}, {0: 34, 1: 49, 2: 35, 3: 32}),  # 10.5 rounds to even
    ],
)
def test_what_the_requests_take_from_the_tiny_federation(request_text, leaving, forgotten, kept):
    p, asked = problem(training()), deletion(SKEWED, request_text)
    assert asked.leaving == leaving
    assert {i: len(y) for i, (_, y) in asked.forgotten.items()} == forgotten
    assert {i: len(y) for i, (_, y) in asked.kept.items()} == kept
    for i, (x, _) in asked.kept.items():
        assert i in forgotten or torch.equal(x, p.clients[i][0])


# --- training and retraining ---


def test_retraining_starts_where_the_original_started(tmp_path, monkeypatch):
    starts, fedavg = {}, problems.fedavg

    def spy(f, w, rounds, **kwargs):
        starts[f.seed, tuple(f.ids)] = w.clone()
        return fedavg(f, w, rounds, **kwargs)

    monkeypatch.setattr(problems, "fedavg", spy)
    e = TINY.changed(rounds=1)
    for seed, request in ((0, "none"), (0, "client-1"), (3, "none")):
        run(RecordStore(tmp_path), puf.train, training(EVEN, seed, request, e=e))
    everybody = (0, 1, 2, 3)
    assert torch.equal(starts[0, everybody], starts[0, (0, 2, 3)])
    assert not torch.equal(starts[0, everybody], starts[3, everybody])


def test_a_transformer_starts_from_a_checkpoint_among_the_data(tmp_path, monkeypatch):
    """So does FedEraser's replay. The head is new, by the training seed."""
    e = TINY.changed(transformer_settings=[EVEN], transformer_rounds=1, transformer_weights="mit", recovery_cap=1)
    loaded, starts, fedavg, fed_eraser = [], [], problems.fedavg, fed_eraser_module.fed_eraser

    def load(model, folder, seed):
        loaded.append((folder, seed))
        return model.init(7)

    def spy(f, w, rounds, **kwargs):
        starts.append(w)
        return fedavg(f, w, rounds, **kwargs)

    def replay(f, history, *how):
        starts.append(history.w_0)
        return fed_eraser(f, history, *how)

    monkeypatch.setattr(trainings, "load_pretrained", load)
    monkeypatch.setattr(problems, "fedavg", spy)
    monkeypatch.setattr(fed_eraser_module, "fed_eraser", replay)
    c = cell("FedEraser", scenario="transformer", setting=EVEN)
    run(RecordStore(tmp_path), puf.unlearn, unlearning(c, e))
    checkpoint = problem(training(EVEN)).model.init(7)
    assert len(starts) == 4  # the original, the retraining, the replay, the attacker's
    assert all(torch.equal(w, checkpoint) for w in starts)
    assert set(loaded) == {(data_dir() / "mit", stream_seed(seed, "init")) for seed in (0, 1)}


@pytest.mark.parametrize(
    ("scenario", "request_text"), [("clients", "client-0"), ("pairs", "client-0-1"), ("samples", "sample-0-0.5")]
)
def test_retraining_never_sees_what_is_to_be_forgotten(tiny, tmp_path, monkeypatch, scenario, request_text):
    """Spoil it: Original changes, Retrain is the same to the last bit."""
    p = problem(training())
    clients = [(x.clone(), y.clone()) for x, y in p.clients]
    for i, gone in Request.parse(request_text).rows({i: y for i, (_, y) in enumerate(clients)}).items():
        x, y = clients[i]
        x[gone], y[gone] = 255 - x[gone], (y[gone] + 1) % 10
    spoiled = replace(p, clients=clients)
    monkeypatch.setattr(trainings, "problem", lambda config: spoiled)
    store = RecordStore(tmp_path)
    original, retrain = (run(store, puf.train, training(SKEWED, 0, r, scenario=scenario))
                         for r in ("none", request_text))  # fmt: skip
    assert bits([retrain]) == bits([tiny.trainings[scenario, SKEWED, 0, request_text]])
    assert original.tensors != tiny.trainings[scenario, SKEWED, 0, "none"].tensors


def test_training_counts_what_its_participants_send_and_compute(tiny):
    """2 P B C R bytes, and every sample of theirs E times a round."""
    for (scenario, setting, _, request), record in tiny.trainings.items():
        n = sizes(setting, scenario)
        if request != "none":
            n = [len(y) for _, y in deletion(setting, request, scenario).kept.values()]
        P, config = tiny.descriptions[setting].metrics["parameters"], record.config
        assert record.metrics["bytes"] == 2 * 4 * P * len(n) * config["rounds"]
        assert record.metrics["images"] == sum(n) * config["epochs"] * config["rounds"]
    rounds = {key[0]: record.config["rounds"] for key, record in tiny.trainings.items()}
    assert rounds == {"clients": 5, "long": 2, "samples": 5, "pairs": 5, "segmentation": 2}


def test_training_is_evaluated_in_the_first_and_the_last_round(tiny):
    for record in tiny.trainings.values():
        assert [row["round"] for row in record.rounds] == [1, record.config["rounds"]]
        assert record.metrics["test"] == record.rounds[-1]["test"]
        assert record.metrics["validation"] == record.rounds[-1]["validation"]


def test_samples_and_pairs_share_the_main_scenarios_original(tiny):
    keys = {tiny.trainings[scenario, SKEWED, 0, "none"].key for scenario in ("clients", "samples", "pairs")}
    assert keys == {tiny.trainings["clients", SKEWED, 0, "none"].key}


def test_unlearning_trains_nothing_that_was_not_trained_before(tiny):
    """Neither do sweeps and all the others: they find the trainings by their configs."""
    trained = {record.key for record in tiny.store.finished(puf.train).values()}
    assert trained == {record.key for record in tiny.trainings.values()}


def test_a_description_says_who_holds_what_and_what_an_image_costs(tiny):
    for setting, record in tiny.descriptions.items():
        scenario = "segmentation" if setting == SITES else "clients"
        assert [sum(row) for row in record.metrics["label_counts"]] == sizes(setting, scenario)
    layers = {EVEN: [64 * 10], SKEWED: [64 * 128, 128 * 10]}
    for setting, weights in layers.items():
        metrics = tiny.descriptions[setting].metrics
        assert metrics["parameters"] == sum(weights) + (10 if setting == EVEN else 138)
        # two FLOPs per weight forward and for its gradient; the gradient for the input of all but the first layer
        assert metrics["flops"] == 4 * sum(weights) + 2 * sum(weights[1:])
        assert metrics["source"].startswith("Digits")
    hospitals = tiny.descriptions[SITES].metrics
    assert {len(row) for row in hospitals["label_counts"]} == {1}  # slices, no classes
    assert hospitals["source"].startswith("SYNTHETIC")


# --- what is kept for FedEraser and PGA ---


def kept(tiny, key):
    return tiny.store.tensors(tiny.trainings[key].key)


def memory_of(tiny, setting=SKEWED):
    memory = Memory(UpdateHistory(torch.zeros(1), TINY.history_interval), last_round=TINY.rounds)
    memory.restore(kept(tiny, ("clients", setting, 0, "none")))
    return memory


def test_an_original_keeps_every_second_round_and_everybodys_last_update_and_a_retraining_nothing(tiny):
    for (scenario, setting, seed, request), record in tiny.trainings.items():
        names = set(kept(tiny, (scenario, setting, seed, request)))
        clients, last = record.config["clients"], record.config["rounds"]
        history = {f"update/{t}/{k}" for t in range(1, last + 1, 2) for k in range(clients)}
        expected = {"w", *history, *(f"last/{k}" for k in range(clients))} if request == "none" else {"w"}
        assert names == expected


@pytest.mark.parametrize("setting", [SKEWED, EVEN])
def test_pgas_local_model_is_what_the_client_trained_in_the_last_round(tiny, tmp_path, setting):
    """The client trained again from w_{T-1}, which a training of one round less ends with."""
    config, p = training(setting), problem(training(setting))
    store = RecordStore(tmp_path)
    shorter = run(store, puf.train, training(setting, e=TINY.changed(rounds=TINY.rounds - 1)))
    before = store.tensors(shorter.key)["w"]
    w = kept(tiny, ("clients", setting, 0, "none"))["w"]
    memory = memory_of(tiny, setting)
    f = p.federation(config)
    for k in f.ids:
        own = train_client(f, before, k, TINY.rounds)
        assert (own - w).norm() > 0.01  # not the average
        assert torch.allclose(memory.local_model(w, f.sizes(), k), own, rtol=0, atol=1e-6)


def empty_memory(interval, last_round):
    return Memory(UpdateHistory(torch.zeros(7), interval) if interval else None, last_round)


@pytest.mark.parametrize("interval", [0, 1, 2])
def test_what_a_memory_keeps_comes_back_from_a_file(tmp_path, interval):
    deltas = torch.randn(5, 3, 7)  # rounds, clients, d
    memory = empty_memory(interval, last_round=5)
    for t, update in enumerate(deltas.clone(), start=1):
        memory.record(t, [0, 2, 3], update)
        update.zero_()  # the caller's buffer: what is kept is a copy
    names = {f"update/{t}/{k}" for t in range(1, 6, interval) for k in (0, 2, 3)} if interval else set()
    tensors = memory.tensors()
    assert set(tensors) == {"last/0", "last/2", "last/3"} | names
    context = RunContext(RecordStore(tmp_path), "key")
    context.checkpoint({"w": torch.zeros(7), **tensors}, {})
    back = empty_memory(interval, last_round=5)
    back.restore(context.resume()[0])
    assert back.tensors().keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in back.tensors().items())
    assert torch.equal(back.last[2], deltas[4, 1])
    if interval:
        assert torch.equal(back.history.update(1, 3), deltas[0, 2])
    assert (back.history is None) == (interval == 0)


def test_the_local_models_average_is_the_global_model():
    """w = sum_k p_k w_k, whatever the sizes."""
    n, deltas, w = torch.tensor([3.0, 5.0, 2.0]), torch.randn(3, 7), torch.randn(7)
    memory = empty_memory(0, last_round=1)
    memory.record(1, [0, 1, 2], deltas)
    own = torch.stack([memory.local_model(w, n, k) for k in range(3)])
    assert torch.allclose((n / n.sum()) @ own, w, atol=1e-6)
    assert torch.allclose(own[1] - own[0], deltas[1] - deltas[0], atol=1e-6)


def test_federaser_without_a_history_is_not_asked_and_says_what_it_would_need(tmp_path):
    e = TINY.changed(history_interval=0, rounds=1)
    with pytest.raises(ConfigError, match=r"method must be one of .*, got 'FedEraser'"):
        unlearning(cell("FedEraser"), e)
    all_the_same = {**unlearning(cell("FedEraser"), TINY.changed(rounds=1)), "history": 0}
    with pytest.raises(MissingHistory, match="memory holds no history"):
        run(RecordStore(tmp_path), puf.unlearn, all_the_same)
    record = run(RecordStore(tmp_path), puf.unlearn, unlearning(cell("PGA"), e))  # needs the last updates alone
    assert record.metrics["unlearned"]["step"] > 0


# --- unlearning and recovery ---


def test_each_method_runs_wherever_it_can_and_says_why_where_it_cannot(tiny):
    for c, record in tiny.unlearnings.items():
        assert ("unsupported" in record.metrics) == (c.method in CANNOT.get(c.group, ()))
        if "unsupported" in record.metrics:
            assert (list(record.metrics), record.rounds, record.tensors) == (["unsupported"], [], None)
    assert {c.method for c in tiny.unlearnings} == {*CONTROLS, *METHODS}


def test_the_reasons_are_the_methods_own(tiny):
    reasons = {name: results.unsupported(tiny.unlearnings, name) for name in ("clients", "long", *CANNOT)}
    assert reasons["clients"] == reasons["long"] == {}
    for name, method in (("samples", m) for m in CANNOT["samples"]):
        assert reasons[name][method].startswith(f"forget: {method} ")
        assert reasons[name][method].endswith("cannot forget single samples")
    for method, task in (("PGA", "w_ref takes out one local model"), ("MoDe", "MoDe guides one target at a time")):
        assert reasons["pairs"][method] == f"targets must name one client, got [0, 1]: {task}"
    for method in CANNOT["segmentation"]:
        assert reasons["segmentation"][method].startswith(method)
        assert reasons["segmentation"][method].endswith("got 'segmentation'")


def test_what_the_methods_declare_is_what_their_runs_show(tiny):
    runs = wide(results.of_runs(tiny.unlearnings, tiny.trainings))
    table = tables.needs_table(TINY, runs, tiny.unlearnings).set_index("method")
    assert set(METHODS) < set(table.index)  # two of Table I's rows have no code here
    assert set(table.loc[list(METHODS), "agrees with the runs"]) == {"4 of 4"}


def test_retrain_is_at_distance_zero_from_itself(tiny):
    runs = wide(results.of_runs(tiny.unlearnings, tiny.trainings))
    retrain = runs[runs.method == "Retrain"]
    assert len(retrain) == 2 * (4 + 2 + 2 + 1 + 1)
    assert (retrain[["gap", "delta_test", "delta_forget", "delta_loss"]] == 0).all(axis=None)
    digits = retrain[retrain.group != "segmentation"]
    assert (digits[["kl", "delta_song", "delta_yeom"]] == 0).all(axis=None)
    assert (runs[runs.method == "Original"].gap > 0).all()


def test_references_are_the_trained_models(tiny):
    for c, record in tiny.unlearnings.items():
        if c.method in REFERENCES:
            trained = tiny.trainings[(*c[:3], "none" if c.method == "Original" else c.request)]
            assert record.metrics["final"]["test"] == trained.metrics["test"]


def test_natural_starts_recovery_at_the_original_model(tiny):
    for c, record in recovered(tiny).items():
        if c.method == "Natural":
            original = tiny.unlearnings[c._replace(method="Original")].metrics["final"]
            first = record.rounds[0]
            assert record.metrics["unlearned"]["step"] == 0
            assert (first["test"], first["forget"]) == (original["test"], original["forget"])
        else:
            assert record.metrics["unlearned"]["step"] > 0


def train_on(f, w, rounds):
    """The model after each of the rounds that follow training."""
    path = []
    with single_threaded():
        problems.fedavg(f, w, rounds, first_round=TINY.rounds + 1, after_round=lambda t, w_t, _: path.append(w_t))
    return path


def test_fine_tune_is_natural_a_round_ahead_and_its_round_counts_as_unlearning(tiny):
    record, p = tiny.unlearnings[cell("Fine-tune")], problem(training())
    f = p.federation(training()).after(deletion(SKEWED, "client-0"))
    ahead = train_on(f, kept(tiny, ("clients", SKEWED, 0, "none"))["w"], 1 + record.metrics["test"]["rounds"])
    assert record.metrics["unlearned"]["test"] == accuracy(p.model, ahead[0], *p.test)
    assert record.metrics["test"]["test"] == accuracy(p.model, ahead[-1], *p.test)
    P, rest = tiny.descriptions[SKEWED].metrics["parameters"], sum(sizes(SKEWED)[1:])
    spent = record.metrics["test"]
    assert (spent["unlearning_rounds"], spent["unlearning_images"]) == (1, rest)
    assert spent["unlearning_bytes"] == 2 * 4 * P * 3


def test_a_further_method_is_named_in_the_parameters_and_nowhere_else():
    cells = {c for c, _ in DIGITS.changed(further_methods=["NaiveGA"]).runs()}
    expected = {c._replace(method="NaiveGA") for c in cells if c.method == "NoT"}
    assert {c for c in cells if c.method == "NaiveGA"} == expected


def test_natural_goes_on_whatever_its_accuracy_as_long_as_any_other_may(tiny):
    """Its state is that of its last reading, and says whether it is there then."""
    cap = TINY.recovery_cap + 1
    for record in (r for c, r in recovered(tiny).items() if c.method == "Natural"):
        assert [row["round"] for row in record.rounds] == [*range(cap + 1)]
        for rule in puf.STOP_RULES:
            assert record.metrics[rule]["rounds"] == 2
    reference = tiny.trainings["clients", SKEWED, 0, "client-0"].metrics["test"]
    record = tiny.unlearnings[cell("Natural")]
    assert record.metrics["test"]["reached"] == (record.rounds[2]["test"] >= reference)
    at = results.natural_at(tiny.unlearnings)
    assert len(at) == 4 * (cap + 1)
    gone = tiny.unlearnings[cell("Retrain")].metrics["final"]["forget"]
    [first] = at[(at["setting"] == SKEWED) & (at.request == "client-0") & (at["round"] == 1)].to_dict("records")
    assert first["delta_forget"] == abs(record.rounds[1]["forget"] - gone)


@pytest.mark.parametrize("rule", puf.STOP_RULES)
def test_recovery_stops_in_the_first_round_that_reaches_the_retrained_models_score(tiny, rule):
    reached = []
    for c, record in recovered(tiny).items():
        reference = tiny.trainings[c[:4]].metrics[rule]
        hits = [row["round"] for row in record.rounds if row[rule] >= reference]
        stop = record.metrics[rule]
        if c.method == "Natural":
            continue
        cap = 0 if c.method == "FedEraser" else TINY.recovery_cap
        assert (stop["rounds"], stop["reached"]) == ((hits[0], True) if hits else (cap, False))
        reached.append(stop["reached"])
    assert True in reached  # the tiny experiment shows both
    assert False in reached


def test_each_rule_reports_the_state_in_which_it_stopped(tiny):
    rounds_of_rules = set()
    for c, record in recovered(tiny).items():
        assert [row["round"] for row in record.rounds] == list(range(len(record.rounds)))
        stops = [record.metrics[rule] for rule in puf.STOP_RULES]
        assert c.method == "Natural" or len(record.rounds) == 1 + max(stop["rounds"] for stop in stops)
        for stop in stops:
            row = record.rounds[stop["rounds"]]
            assert (stop["test"], stop["forget"]) == (row["test"], row["forget"])
        rounds_of_rules.add(tuple(stop["rounds"] for stop in stops))
    assert any(a != b for a, b in rounds_of_rules)


def test_the_cap_is_honoured_and_said(tiny):
    capped = [
        record
        for c, record in recovered(tiny).items()
        if c.method not in ("FedEraser", "Natural") and not record.metrics["test"]["reached"]
    ]
    assert capped
    for record in capped:
        assert record.metrics["test"]["rounds"] == TINY.recovery_cap
        assert len(record.rounds) == TINY.recovery_cap + 1
    for c, record in recovered(tiny).items():
        assert c.method != "FedEraser" or len(record.rounds) == 1


def test_a_larger_cap_is_another_run_only_of_who_gave_up(tiny):
    """Who came back by both rules is the same under any cap that it did not reach, and who did not begins alike."""
    seen = set()
    for c, record in recovered(tiny, "clients").items():
        came_back = all(record.metrics[rule]["reached"] for rule in puf.STOP_RULES)
        if c.setting != SKEWED or c.method in ("FedEraser", "Natural") or came_back in seen:
            continue
        seen.add(came_back)
        longer = run(tiny.store, puf.unlearn, unlearning(c) | {"cap": TINY.recovery_cap + 2})
        begun = longer.rounds[: len(record.rounds)]
        assert begun == record.rounds
        assert (longer.metrics == record.metrics and len(longer.rounds) == len(begun)) == came_back
    assert seen == {True, False}


@pytest.mark.parametrize(
    ("c", "spent"),
    [
        (cell("Natural"), 0),
        (cell("PGA"), 0),
        (cell("MoDe"), 2),  # its rounds of guidance, not those that degrade
        (cell("PUF-Regular", "client-0-1", scenario="pairs"), 1),
        (cell("PUF-Special", "sample-0-0.5", scenario="samples"), 1),
    ],
)
def test_recovery_goes_on_counting_rounds_without_whoever_left(tiny, tmp_path, monkeypatch, c, spent):
    """The learning-rate schedule continues; a client that forgot samples trains on with the rest."""
    seen, recovery_path = {}, puf.recovery_path

    def spy(f, w, **kwargs):
        seen.update(kwargs, sizes=dict(zip(f.ids, f.sizes().tolist(), strict=True)))
        return recovery_path(f, w, **kwargs)

    monkeypatch.setattr(puf, "recovery_path", spy)
    store = RecordStore(shutil.copytree(tiny.store.root, tmp_path / "records"))
    (store.root / f"{tiny.unlearnings[c].key}.json").unlink()
    run(store, puf.unlearn, unlearning(c))
    assert seen["first_round"] == TINY.rounds + 1 + spent
    leaving = {"client-0": [0], "client-0-1": [0, 1], "sample-0-0.5": []}[c.request]
    held = [17, 49, 35, 42] if c.group == "samples" else sizes(SKEWED)
    assert seen["sizes"] == {i: n for i, n in enumerate(held) if i not in leaving}


def test_what_mode_recorded_when_its_cost_set_the_rate_is_not_taken_for_what_it_does_now(tiny):
    for c, record in recovered(tiny).items():
        as_then = run_key(record.function, record.config, record.data_hash)
        assert (as_then == record.key) == (c.method != "MoDe")


# --- controls, tuning, and what FedAU's authors do ---


def test_a_second_retraining_is_another_seeds_and_is_good_and_a_destroyed_model_is_of_no_use(tiny):
    for c, record in tiny.unlearnings.items():
        if c.method == AGAIN:
            assert record.metrics["final"]["test"] == tiny.trainings[c.group, c.setting, 1, c.request].metrics["test"]
            assert record.metrics["final"]["gap"] > 0
        if c.method == DESTROYED and c.group != "segmentation":
            useful = tiny.unlearnings[c._replace(method="Retrain")].metrics["final"]["test"]
            assert record.metrics["final"]["test"] < min(30, useful - 10)  # 10 classes


def test_what_a_method_is_handed_is_measured_and_pufs_is_one_model(tiny):
    for c, record in recovered(tiny).items():
        one = 4 * tiny.descriptions[c.setting].metrics["parameters"]
        models = record.metrics["test"]["handed"] / one
        if c.method in ("PGA", "FedEraser"):
            clients = len(sizes(c.setting, c.group))
            kept_rounds = -(-record.config["rounds"] // record.config["history"]) * (c.method == "FedEraser")
            assert models >= 1 + clients * max(kept_rounds, 1)
        else:
            assert models == 1
    assert {c.method for c in recovered(tiny)} == set(METHODS)


TUNED = DIGITS.changed(
    settings=[SKEWED], targets=[0], tuning_trials=2, tuning_targets=[3], tuning_seed=100, tuning_cap=2,
    long_settings=[], sample_settings=[], pair_settings=[], sweep_settings=[], official_settings=[SKEWED],
)  # fmt: skip


def by_hand(store, config):
    """The objective of a trial: gap on the forgotten data, and shortfall on validation data, where recovery ended."""
    p = problem(config)
    originals, retrained = (store.run(fn, one) for fn, one in trainings.references(config).values())
    w_0, w_r = (store.tensors(record.key)["w"] for record in (originals, retrained))
    f = p.federation(config)
    asked = Request.parse(config["request"]).resolve(f.clients)
    goal, remembered = accuracy(p.model, w_r, *p.validation), accuracy(p.model, w_r, *asked.forget)
    w = serve_request(config["method"], Trained(f, w_0, config["rounds"]), asked, **config["options"]).model
    path = [w]
    problems.fedavg(
        f.after(asked), w, config["cap"], first_round=config["rounds"] + 2, after_round=lambda t, w, _: path.append(w)
    )
    ended = next((w for w in path if accuracy(p.model, w, *p.validation) >= goal), path[-1])
    gap = abs(accuracy(p.model, ended, *asked.forget) - remembered)
    return gap, max(0.0, goal - accuracy(p.model, ended, *p.validation))


def test_a_trials_objective_by_hand(tiny, tmp_path):
    store = RecordStore(shutil.copytree(tiny.store.root, tmp_path / "records"))
    trials = {c: config for c, config in TUNED.tuning() if c.method == "PUF-Special"}
    assert len(trials) == 2
    for config in trials.values():
        record = run(store, puf.trial, config)
        with single_threaded():
            gap, shortfall = by_hand(store, config)
        found = record.metrics
        assert (found["forget_gap"], found["shortfall"]) == (gap, shortfall)
        assert found["objective"] == gap + shortfall
        assert found["reached"] == (shortfall == 0)
        assert set(record.rounds[0]) == {"round", "validation", "forget"}  # the test set is not looked at


def tried(objective, reached=True, cap=3):
    return SimpleNamespace(config={"cap": cap}, metrics={"objective": objective, "reached": reached})


LOST = SimpleNamespace(config={"cap": 3}, metrics={"diverged": "not finite"})


@pytest.mark.parametrize(
    ("trials", "best"),
    [
        ([[tried(5.0)], [tried(3.0)], [tried(4.0)]], 1),
        ([[tried(1.0, reached=False)], [tried(50.0)]], 1),  # what gave up comes after whatever came back
        ([[LOST], [tried(9.0, reached=False)]], 1),
        ([[tried(9.0, reached=False)], [tried(8.0, reached=False)], [LOST]], 1),
        ([[tried(2.0)], [tried(2.0)]], 0),  # as published, if there is no better
        ([[LOST], [LOST]], 0),
        ([[tried(4.0, reached=False, cap=0)], [tried(3.0, reached=False, cap=0)], [tried(5.0, cap=0)]], 1),  # no cap
        # of several requests the mean counts, and once is too often
        ([[tried(1.0), tried(8.0)], [tried(4.0), tried(4.0)]], 1),
        ([[tried(1.0), tried(1.0, reached=False)], [tried(9.0), tried(9.0)]], 1),
        ([[tried(1.0), LOST], [tried(9.0, reached=False), tried(9.0, reached=False)]], 1),
        ([[tried(1.0, reached=False), tried(1.0, reached=False)], [tried(9.0), tried(9.0, reached=False)]], 1),
    ],
)
def test_the_best_trial_came_back_from_every_request_with_the_smallest_objective(trials, best):
    assert puf.best_trial(trials) == best


@pytest.mark.parametrize("best", [0, 1])
def test_a_tuned_run_is_the_plain_run_with_the_chosen_options(tiny, tmp_path, monkeypatch, best):
    store = RecordStore(shutil.copytree(tiny.store.root, tmp_path / "records"))
    rows = {(c.method, c.label): config for c, config in TUNED.runs()}
    config, plain = rows["PUF-Special", ""], rows["PUF-Special", PUBLISHED]
    monkeypatch.setattr(puf, "best_trial", lambda trials: best)
    record = run(store, puf.unlearn, config)
    chosen = config["trials"][best]
    assert record.metrics.pop("trial") == best
    assert record.metrics.pop("chosen") == chosen
    expected = run(store, puf.unlearn, {**plain, "options": {**plain["options"], **chosen}})
    assert (record.metrics, record.rounds) == (expected.metrics, expected.rounds)
    published = tiny.unlearnings[cell("PUF-Special")]
    assert (record.rounds == published.rounds) == (best == 0)


def test_a_run_that_is_tuned_on_two_requests_weighs_both_of_each_choice(tiny, tmp_path, monkeypatch):
    store, seen = RecordStore(shutil.copytree(tiny.store.root, tmp_path / "records")), []
    rows = {(c.method, c.label): config for c, config in TUNED.changed(tuning_targets=[3, 2]).runs()}
    config = rows["PUF-Special", ""]
    best_trial = puf.best_trial
    monkeypatch.setattr(puf, "best_trial", lambda trials: seen.append(trials) or best_trial(trials))
    record = run(store, puf.unlearn, config)
    [trials] = seen
    asked = [[(one.config["request"], one.config["options"]["eta_u"]) for one in trial] for trial in trials]
    assert asked == [[("client-3", one["eta_u"]), ("client-2", one["eta_u"])] for one in config["trials"]]
    means = [sum(one.metrics["objective"] for one in trial) / 2 for trial in trials]
    assert [puf.objective(trial) for trial in trials] == means
    assert record.metrics["trial"] == best_trial(trials)


def test_the_official_fedau_trains_with_everybody_and_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    [config] = [config for c, config in TUNED.runs() if c.method == OFFICIAL]
    _, training_config = puf.needs(config)["official"]
    whole = run(RecordStore(tmp_path / "whole"), trainings.train_official, training_config)
    assert whole.metrics["images"] == sum(sizes(SKEWED)) * TINY.rounds
    interruption = Interruption(monkeypatch)
    for at, moment in ((1, "after"), (3, "before"), (4, "after")):
        store = RecordStore(tmp_path / f"{at}")
        record, rest = interruption.try_twice(store, trainings.train_official, training_config, at, moment)
        assert bits([record]) == bits([whole])
        assert rest == TINY.rounds - (at if moment == "after" else at - 1)


def test_the_official_fedau_recovers_from_its_own_model(tiny, tmp_path):
    store = RecordStore(shutil.copytree(tiny.store.root, tmp_path / "records"))
    [config] = [config for c, config in TUNED.runs() if c.method == OFFICIAL]
    record = run(store, puf.unlearn, config)
    [own] = store.finished(trainings.train_official).values()
    assert record.metrics["unlearned"]["step"] > 0
    assert record.metrics["test"]["unlearning_bytes"] == 2 * 4 * P_C[SKEWED]  # the head, to the target and back
    w, h_A = (store.tensors(own.key)[name] for name in ("w", "h_A"))
    f = problem(config).federation(config)
    expected = fed_au_unlearn(f, w, h_A, deletion(SKEWED, "client-0"), alpha=TUNED.fed_au_alpha)
    assert record.metrics["unlearned"]["test"] == accuracy(f.model, expected, *problem(config).test)


# --- costs ---


def tabled(tiny, *scenarios):
    """Of the methods that the paper has formulas for."""
    return {c: record for c, record in recovered(tiny, *scenarios).items() if c.method in TABLED}


def formula(tiny, c, rounds, retained):
    """Tables VII and VIII; F = 1 FLOP per image makes FLOPs images. FedEraser computes `retained` rounds."""
    config = unlearning(c)
    n = sizes(c.setting, c.group)
    f = Workload(
        tiny.descriptions[c.setting].metrics["parameters"],
        clients=len(n),
        leaving=c.request.count("-"),
        samples=sum(n) / len(n),
        epochs=config["epochs"],
        flops=1,
        classifier=P_C.get(c.setting, 0),
    )
    how = AppendixA(
        epochs_u=TINY.epochs_u, retained_rounds=retained,
        degradation_rounds=TINY.mode_rounds_d, guidance_rounds=TINY.mode_rounds_m,
    )  # fmt: skip
    return unlearning_cost(c.method, f, how) + rounds_cost(f, f.remaining, rounds)


@pytest.mark.parametrize("scenario", ["clients", "long", "pairs", "segmentation"])
def test_bytes_are_the_formulas_of_table_viii_whatever_the_client_sizes(tiny, scenario):
    """FedEraser replays the first retained round as stored, and sends one round less than the table's. FedAU sends
    a head to every target, the table one in all."""
    for c, record in tabled(tiny, scenario).items():
        replayed = RETAINED - 1 if scenario in ("clients", "pairs") else 0
        heads = (c.request.count("-") - 1) * 2 * 4 * P_C[SKEWED] if c.method == "FedAU" else 0
        for rule in puf.STOP_RULES:
            counted = record.metrics[rule]
            assert counted["bytes"] == formula(tiny, c, counted["rounds"], replayed).comm_bytes + heads


@pytest.mark.parametrize("scenario", ["clients", "long", "pairs", "segmentation"])
def test_storage_is_the_formula_of_table_viii(tiny, scenario):
    for c, record in tabled(tiny, scenario).items():
        stored = RETAINED if scenario in ("clients", "pairs") else 1
        for rule in puf.STOP_RULES:
            assert record.metrics[rule]["storage"] == formula(tiny, c, 0, stored).storage_bytes


def test_images_are_the_formulas_of_table_viii_for_equal_clients(tiny):
    """But for FedAU's one way through the backbone, which the table calls negligible."""
    even = {c: record for c, record in tabled(tiny, "clients").items() if c.setting == EVEN}
    assert {c.method for c in even} == set(TABLED)
    for c, record in even.items():
        for rule in puf.STOP_RULES:
            counted = record.metrics[rule]
            once = 40 if c.method == "FedAU" else 0
            assert counted["images"] == formula(tiny, c, counted["rounds"], RETAINED - 1).comp_flops + once


def test_images_are_the_sizes_of_those_who_trained_for_unequal_clients(tiny):
    n, B = sizes(SKEWED), TINY.batch_size
    for c, record in recovered(tiny, "clients").items():
        u = int(c.request.removeprefix("client-"))
        rest = sum(n) - n[u]
        halves = [min(k, B * math.floor(math.ceil(k / B) / 2 + 0.5)) for i, k in enumerate(n) if i != u]
        expected = {
            "Natural": 0,
            "NoT": 0,
            "Fine-tune": rest,
            "Random labels": sum(n),  # a round of everybody
            "FedEraser": 2 * sum(halves),  # half an epoch in rounds 3 and 5, in whole batches
            "PGA": 5 * n[u],
            "MoDe": rest + 2 * sum(n),
            "FedAU": n[u],
            "PUF-Special": TINY.epochs_u * n[u],
            "PUF-Regular": TINY.epochs_u * n[u] + rest,
        }[c.method]
        for rule in puf.STOP_RULES:
            counted = record.metrics[rule]
            assert c.setting != SKEWED or counted["unlearning_images"] == expected
            assert c.setting != SKEWED or counted["images"] == expected + rest * counted["rounds"]


def test_forgetting_samples_costs_the_forgotten_part_once_more_and_recovery_with_everybody(tiny):
    """In a Regular round the target takes part twice: with what it forgets and with what it keeps."""
    n, P = sizes(SKEWED), tiny.descriptions[SKEWED].metrics["parameters"]
    for c, record in recovered(tiny, "samples").items():
        u = int(c.request.split("-")[1])
        gone = round(n[u] / 2)
        stays = sum(n) - gone
        trained, sent = {
            "Natural": (0, 0),
            "NoT": (0, 0),
            "Fine-tune": (stays, 4 * P),
            "Random labels": (gone + stays, 5 * P),
            "FedAU": (n[u], P_C[SKEWED]),  # true labels for what it keeps
            "PUF-Special": (2 * gone, P),
            "PUF-Regular": (2 * gone + stays, 5 * P),
        }[c.method]
        for rule in puf.STOP_RULES:
            counted = record.metrics[rule]
            assert counted["unlearning_images"] == trained
            assert counted["unlearning_bytes"] == 2 * 4 * sent
            assert counted["images"] == trained + stays * counted["rounds"]
            assert counted["bytes"] == 2 * 4 * (sent + 4 * P * counted["rounds"])
            assert counted["storage"] == 4 * P


def test_unlearning_takes_the_rounds_of_its_method(tiny):
    rounds = {"Natural": 0, "Fine-tune": 1, "Random labels": 1, "FedEraser": 2, "PGA": 0,
              "MoDe": 3, "FedAU": 1, "NoT": 0, "PUF-Special": 1,
              "PUF-Regular": 1}  # fmt: skip
    found = {c.method: r.metrics["test"]["unlearning_rounds"] for c, r in recovered(tiny, "clients").items()}
    assert found == rounds


def test_blind_methods_give_the_same_model_whoever_leaves_and_the_others_do_not(tiny):
    for setting in TINY.settings:
        outputs = {
            method: {
                tiny.unlearnings[cell(method, request, setting=setting)].metrics["unlearned"]["sha256"]
                for request in ("client-0", "client-1")
            }
            for method in METHODS
        }
        assert {method for method, models in outputs.items() if len(models) == 1} == {"Natural", "NoT"}


def test_the_record_of_printed_costs_counts_cells_by_table(tmp_path):
    metrics = Study(TINY, RecordStore(tmp_path)).run("printed costs")["costs"].metrics
    wrong = mismatches().table.value_counts()
    cells = cost_cells().table.value_counts()
    assert metrics == {t: {"cells": cells[t], "follow": cells[t] - wrong[t]} for t in ("III", "IV", "V")}


# --- segmentation ---


def test_hospitals_are_measured_by_dice_and_loss(tiny):
    """The loss, not the attacks, as in Table VI."""
    for c, record in recovered(tiny, "segmentation").items():
        for rule in puf.STOP_RULES:
            stop = record.metrics[rule]
            assert 0 <= stop["forget"] <= 100
            assert stop["loss"] > 0
            assert not {"song", "yeom", "kl"} & stop.keys()
        assert c.method not in CANNOT["segmentation"]
    p = problem(training(SITES, scenario="segmentation"))
    assert p.dataset.site_train[p.parts[3]].unique().tolist() == [3]
    assert torch.equal(deletion(SITES, "client-3", "segmentation").forget[0], p.clients[3][0])
    original = tiny.unlearnings[cell("Original", scenario="segmentation", setting=SITES)].metrics["final"]
    w = kept(tiny, ("segmentation", SITES, 0, "none"))["w"]
    outputs = p.model.predict(w, p.clients[0][0])
    assert original["loss"] == pytest.approx(float(p.model.sample_losses(outputs, p.clients[0][1]).mean()))


# --- two readings, two modes, sweeps ---


def test_the_printed_form_takes_a_step_smaller_by_the_targets_size(tiny):
    """Special: exactly n_target. Regular also has updates of the others, hence only about."""
    n = sizes(SKEWED)
    for c, record in tiny.printed.items():
        printed = record.metrics["unlearned"]["step"]
        corrected = tiny.unlearnings[c._replace(label="")].metrics["unlearned"]["step"]
        within = 1e-3 if c.method == "PUF-Special" else 0.3
        assert corrected / printed == pytest.approx(n[int(c.request[-1])], rel=within)
    assert {c.setting for c in tiny.printed} == {SKEWED}


def test_the_released_divisor_halves_the_step_where_half_is_forgotten(tiny):
    """|D_u| instead of the forgotten samples: 34 for 17, and 49 for 24."""
    for c, record in tiny.norms.items():
        steps = [r.metrics["unlearned"]["step"] for r in (tiny.unlearnings[c._replace(label="")], record)]
        assert steps[0] / steps[1] == pytest.approx({"0": 34 / 17, "1": 49 / 24}[c.request[7]], rel=1e-3)
    assert {(c.group, c.method) for c in tiny.norms} == {("samples", "PUF-Special")}


def test_a_swept_run_with_the_tables_parameters_is_the_tables_run(tiny):
    for c, record in tiny.swept.items():
        same_run = c.label in ("eta_u=2, E_u=2", "eta_u=6, E_u=2")
        assert (record.key == tiny.unlearnings[c._replace(label="")].key) == same_run
    assert {c.label for c in tiny.swept if c.group == "clients"} == {
        "eta_u=1, E_u=2", "eta_u=2, E_u=2", "eta_u=6, E_u=2",
    }  # fmt: skip
    steps = {c.label: r.metrics["unlearned"]["step"] for c, r in tiny.swept.items() if c.request == "client-1"}
    assert steps["eta_u=2, E_u=2"] == pytest.approx(2 * steps["eta_u=1, E_u=2"], rel=1e-4)


def test_without_settings_there_is_nothing_to_sweep():
    plain = DIGITS.changed(sweep_settings=[], sample_settings=[])
    assert not list(plain.sweep())
    assert not list(plain.norms())
    assert wide(results.of_runs({}, {})).empty


def test_equivalence_knows_the_targets_share(tiny):
    for c, record in tiny.equivalence.items():
        assert record.metrics["p_u"] == sizes(c.setting)[int(c.request[-1])] / 160
    assert len(tiny.equivalence) == 4


def test_regular_is_special_with_the_combined_rate_once_training_has_converged(tmp_path):
    """Full-batch steps on a strongly convex loss: 80 rounds contract by 0.9 each, so that sum p_i Delta_i = 0."""
    converged = experiment(
        ["digits/dirichlet-0.3/softmax_regression"], targets=[0, 1], seeds=[0], clients=3, n_train=150,
        n_val=60, n_test=120, rounds=80, batch_size=1000, lr=0.1, lr_decay=1.0, weight_decay=1.0,
        eta_u_regular=6.0, epochs_u=3.0, history_interval=0,
    )  # fmt: skip
    records = Study(converged, RecordStore(tmp_path), jobs=1).run("Regular against Special")
    assert len(records) == 2
    for record in records.values():
        assert record.metrics["relative_difference"] < 1e-3


# --- the sliders ---


@pytest.mark.parametrize(("mode", "eta_u"), [("special", 2.0), ("regular", 6.0)])
def test_live_recovery_draws_the_recorded_run(tiny, mode, eta_u):
    for setting, target in product(TINY.settings, TINY.targets):
        method = f"PUF-{mode.capitalize()}"
        recorded = tiny.unlearnings[cell(method, f"client-{target}", setting=setting)].rounds
        with single_threaded():
            original = kept(tiny, ("clients", setting, 0, "none"))["w"]
            live = puf.live_recovery(TINY, original, setting, target, mode, eta_u, rounds=len(recorded) - 1)
        assert live == [{name: row[name] for name in ("round", "test", "forget")} for row in recorded]


# --- the same bits ---


def test_one_process_and_two_give_the_same_bits(tiny, tmp_path):
    """Every method once: the runs of one client's request."""
    few = DIGITS.changed(
        settings=[SKEWED], targets=[0], long_settings=[], sample_settings=[], pair_settings=[], sweep_settings=[]
    )
    two = run_all(few, RecordStore(tmp_path), jobs=2)
    one = {record.key: record for record in all_records(tiny)}
    assert len(all_records(two)) == 1 + 4 + 14 + 2 + 1
    assert bits(all_records(two)) == bits([one[record.key] for record in all_records(two)])


def test_the_same_seed_twice_gives_the_same_bits_and_another_seed_others(tiny, tmp_path):
    c = cell("PUF-Regular", "client-1")
    again = run(RecordStore(tmp_path), puf.unlearn, unlearning(c))
    assert bits([again]) == bits([tiny.unlearnings[c]])
    other = run(RecordStore(tmp_path), puf.unlearn, unlearning(c._replace(seed=1)))
    assert other.rounds != again.rounds


class Interruption:
    """Ctrl-C around the `at`-th checkpoint: just before it is written, or just after."""

    def __init__(self, monkeypatch):
        self.written, self.at, self.moment = 0, None, ""
        write = RunContext.checkpoint

        def checkpoint(context, *state):
            if self.written + 1 == self.at and self.moment == "before":
                raise KeyboardInterrupt
            write(context, *state)
            self.written += 1
            if self.written == self.at:
                raise KeyboardInterrupt

        monkeypatch.setattr(RunContext, "checkpoint", checkpoint)

    def try_twice(self, store, function, config, at, moment):
        """Interrupt, then call again; returns the record and the checkpoints written by the second attempt."""
        self.written, self.at, self.moment = 0, at, moment
        with pytest.raises(KeyboardInterrupt):
            run(store, function, config)
        self.written, self.at = 0, None
        return run(store, function, config), self.written


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    ("scenario", "request_text"), [("clients", "none"), ("clients", "client-1"), ("samples", "sample-0-0.5")]
)
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(
    tiny, tmp_path, monkeypatch, scenario, request_text, moment
):
    """Its history, too: the record's tensors are the same bytes."""
    interruption = Interruption(monkeypatch)
    config = training(SKEWED, 0, request_text, scenario=scenario)
    for at in range(1, TINY.rounds + 1):
        store = RecordStore(tmp_path / str(at))
        record, rest = interruption.try_twice(store, puf.train, config, at, moment)
        assert bits([record]) == bits([tiny.trainings[scenario, SKEWED, 0, request_text]])
        assert rest == TINY.rounds - (at if moment == "after" else at - 1)  # at most the current round is lost


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "c",
    [
        *(cell(method) for method in METHODS),
        cell("PUF-Regular", "sample-1-0.5", scenario="samples"),
        cell("FedAU", "client-0-1", scenario="pairs"),
    ],
    ids=lambda c: f"{c.method}-{c.request}",
)
def test_an_interrupted_recovery_goes_on_as_if_nothing_had_happened(tiny, tmp_path, monkeypatch, c, moment):
    """Costs included."""
    expected = tiny.unlearnings[c]
    interruption = Interruption(monkeypatch)
    store = RecordStore(shutil.copytree(tiny.store.root, tmp_path / "records"))
    for at in range(1, len(expected.rounds) + 1):
        (store.root / f"{expected.key}.json").unlink()
        record, rest = interruption.try_twice(store, puf.unlearn, unlearning(c), at, moment)
        assert bits([record]) == bits([expected])
        assert rest == len(expected.rounds) - (at if moment == "after" else at - 1)


def test_figures_only_needs_neither_data_nor_models(tiny, tmp_path, monkeypatch):
    """Exported records in a read-only store are all that the notebook's functions read."""
    tiny.store.export({record.key for record in all_records(tiny)}, tmp_path / "records")
    for module in (puf, trainings, problems):  # building one would be an error
        monkeypatch.setattr(module, "problem", None)
    committed = CommittedStore(tmp_path / "records")
    found = run_all(TINY, committed)
    for name in STAGES:
        assert list(getattr(found, name)) == list(getattr(tiny, name))
        assert bits(getattr(found, name).values()) == bits(getattr(tiny, name).values())
    with pytest.raises(RuntimeError, match=r"no record in .* read only"):
        Study(TINY.changed(rounds=7), committed).run("training")


def test_all_that_the_notebook_shows_can_be_drawn_from_these_records(tiny):
    runs = wide(results.of_runs(tiny.unlearnings, tiny.trainings))
    sweep = wide(results.of_runs(tiny.swept, tiny.trainings, tiny.unlearnings))
    assert len(runs) == 2 * sum("unsupported" not in r.metrics for r in tiny.unlearnings.values())
    with style():
        for s in TINY.scenarios():
            assert len(figures.training_curves(TINY, tiny.trainings, s.name).axes) == len(s.settings)
            for setting in s.settings:
                for rule in puf.STOP_RULES:
                    for table in (
                        printed_tables.paper_table(TINY, runs, setting, tiny.descriptions[setting], s.name, rule),
                        printed_tables.judges_table(TINY, runs, setting, s.name, rule),
                    ):
                        assert not table.map(lambda entry: "nan" in str(entry)).any(axis=None)
                curves = recovery_figures.recovery_curves(TINY, tiny.unlearnings, setting, s.name)
                panels = {ax.get_title() for ax in curves.axes} - {""}  # of who serves such requests
                assert "PUF-Special" in panels
                assert panels <= set(TINY.methods) & set(s.methods)
        assert len(figures.forget_gap(TINY, tiny.unlearnings).axes) == 2
        shown = [label.get_text() for label in figures.metrics(TINY, runs, SKEWED).axes[0].get_yticklabels()]
        named = {name.partition(" (")[0] for name in shown}  # of how many runs, if not of all
        assert "PUF-Special" in named
        assert named <= set(TINY.methods)
        for scenario in ("clients", "segmentation"):
            assert figures.sweep_scatter(TINY, pd.concat([runs, sweep]), scenario).axes[0].collections
    plt.close("all")
