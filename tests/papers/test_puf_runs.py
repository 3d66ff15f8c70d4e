"""PUF's runs on a tiny federation: what they measure, what they cost, and that no interruption leaves a trace.

Three clients with 150 digits, once dealt out evenly (50 each) and once skewed (28, 63, 59), softmax regression.
"""

import shutil
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from fu_core.compute import single_threaded
from fu_core.evaluation.costs import Federation, total_cost
from fu_core.papers import problems, puf
from fu_core.papers.problems import problem
from fu_core.papers.puf_experiment import METHODS, REFERENCES, Experiment
from fu_core.papers.puf_figures import tidy
from fu_core.records import RecordStore, RunContext

SKEWED = "digits/dirichlet-0.3/softmax_regression"
EVEN = "digits/iid/softmax_regression"
TINY = Experiment(
    "test", [SKEWED, EVEN], targets=[0, 1], seeds=[0], clients=3, n_train=150, n_val=60, n_test=120, rounds=6,
    epochs=2.0, batch_size=20, lr=0.05, eta_u_special=2.0, eta_u_regular=6.0, recovery_cap=4,
)  # fmt: skip


def run_all(e, folder, jobs):
    """Everything the notebook runs."""
    store = RecordStore(folder)
    runs = SimpleNamespace(store=store, descriptions=puf.run_descriptions(e, store))
    runs.trainings = puf.run_training(e, store, jobs)
    runs.unlearnings = puf.run_unlearning(e, store, jobs)
    runs.printed = puf.run_printed(e, store, jobs)
    runs.equivalence = puf.run_equivalence(e, store, jobs)
    return runs


def all_records(runs):
    groups = (runs.descriptions, runs.trainings, runs.unlearnings, runs.printed, runs.equivalence)
    return [record for group in groups for record in group.values()]


def results(records):
    """What must be the same bits wherever and however a run was made."""
    return [(record.key, record.metrics, record.rounds, record.tensors) for record in records]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return run_all(TINY, tmp_path_factory.mktemp("tiny") / "records", jobs=1)


def run(store, function, config):
    with single_threaded():
        return store.run(function, config, data_hash=problem(config).data_hash)


def sizes(setting):
    return [len(y) for _, y in problem(TINY.training(setting, 0)).clients]


def recovered(tiny):
    """The records of the methods that recover, with the sizes of the federation."""
    return {key: record for key, record in tiny.unlearnings.items() if key[3] in METHODS}


# --- training and retraining ---


def test_the_tiny_federation_is_what_these_tests_rely_on():
    assert sizes(EVEN) == [50, 50, 50]
    assert len(set(sizes(SKEWED))) == 3
    assert sum(sizes(SKEWED)) == 150


def test_retraining_starts_where_the_original_started(tmp_path, monkeypatch):
    starts, fedavg = {}, problems.fedavg

    def spy(model, w, clients, **kwargs):
        starts[kwargs["seed"], tuple(kwargs["exclude"])] = w.clone()
        return fedavg(model, w, clients, **kwargs)

    monkeypatch.setattr(problems, "fedavg", spy)
    e = replace(TINY, rounds=1)
    for seed, exclude in ((0, []), (0, [1]), (3, [])):
        run(RecordStore(tmp_path), puf.train, e.training(EVEN, seed, exclude))
    assert torch.equal(starts[0, ()], starts[0, (1,)])
    assert not torch.equal(starts[0, ()], starts[3, ()])


def test_retraining_never_sees_the_target(tiny, tmp_path, monkeypatch):
    """Spoil the target's data: Original changes, Retrain is the same to the last bit."""

    def spoiled(config):
        p = problem(config)
        x, y = p.clients[0]
        return replace(p, clients=[(255 - x, (y + 1) % 10), *p.clients[1:]])

    monkeypatch.setattr(puf, "problem", spoiled)
    store = RecordStore(tmp_path)
    original, retrain = (run(store, puf.train, TINY.training(SKEWED, 0, exclude)) for exclude in ([], [0]))
    assert retrain.tensors == tiny.trainings[SKEWED, 0, 0].tensors
    assert retrain.metrics == tiny.trainings[SKEWED, 0, 0].metrics
    assert original.tensors != tiny.trainings[SKEWED, 0, None].tensors


def test_training_counts_what_its_participants_send_and_compute(tiny):
    """2 P B C R bytes, and every sample of theirs E times a round."""
    for (setting, _, left_out), record in tiny.trainings.items():
        n = [size for i, size in enumerate(sizes(setting)) if i != left_out]
        P = tiny.descriptions[setting].metrics["parameters"]
        assert record.metrics["bytes"] == 2 * 4 * P * len(n) * TINY.rounds
        assert record.metrics["images"] == sum(n) * TINY.epochs * TINY.rounds


def test_training_is_evaluated_in_the_first_and_the_last_round(tiny):
    for record in tiny.trainings.values():
        assert [row["round"] for row in record.rounds] == [1, 5, 6]
        assert record.metrics["test"] == record.rounds[-1]["test"]
        assert record.metrics["validation"] == record.rounds[-1]["validation"]


def test_a_description_says_who_holds_what(tiny):
    for setting, record in tiny.descriptions.items():
        assert [sum(row) for row in record.metrics["label_counts"]] == sizes(setting)
        assert record.metrics["parameters"] == 10 * (8 * 8 + 1)
        assert "Digits" in record.metrics["source"]


# --- unlearning and recovery ---


def test_retrain_is_at_distance_zero_from_itself(tiny):
    runs = tidy(TINY, tiny.unlearnings, tiny.trainings)
    retrain = runs[runs.method == "Retrain"]
    assert len(retrain) == 2 * len(list(TINY.cells()))
    zero = retrain[["kl", "gap", "delta_test", "delta_forget", "delta_song", "delta_yeom"]]
    assert (zero == 0).all(axis=None)
    assert (runs[runs.method == "Original"].gap > 0).all()


def test_references_are_the_trained_models(tiny):
    for (setting, seed, target, method), record in tiny.unlearnings.items():
        if method in REFERENCES:
            training = tiny.trainings[setting, seed, None if method == "Original" else target]
            assert record.metrics["final"]["test"] == training.metrics["test"]


def test_natural_starts_recovery_at_the_original_model(tiny):
    for (setting, seed, target, method), record in tiny.unlearnings.items():
        if method == "Natural":
            original = tiny.unlearnings[setting, seed, target, "Original"].metrics["final"]
            first = record.rounds[0]
            assert record.metrics["unlearned"]["step"] == 0
            assert (first["test"], first["forget"]) == (original["test"], original["forget"])


@pytest.mark.parametrize("rule", puf.STOP_RULES)
def test_recovery_stops_in_the_first_round_that_reaches_the_retrained_models_score(tiny, rule):
    reached = []
    for (setting, seed, target, _), record in recovered(tiny).items():
        reference = tiny.trainings[setting, seed, target].metrics[rule]
        hits = [row["round"] for row in record.rounds if row[rule] >= reference]
        stop = record.metrics[rule]
        assert (stop["rounds"], stop["reached"]) == ((hits[0], True) if hits else (TINY.recovery_cap, False))
        reached.append(stop["reached"])
    assert True in reached  # the tiny experiment shows both
    assert False in reached


def test_each_rule_reports_the_state_in_which_it_stopped(tiny):
    rounds_of_rules = set()
    for record in recovered(tiny).values():
        assert [row["round"] for row in record.rounds] == list(range(len(record.rounds)))
        stops = [record.metrics[rule] for rule in puf.STOP_RULES]
        assert len(record.rounds) == 1 + max(stop["rounds"] for stop in stops)
        for stop in stops:
            row = record.rounds[stop["rounds"]]
            assert (stop["test"], stop["forget"]) == (row["test"], row["forget"])
        rounds_of_rules.add(tuple(stop["rounds"] for stop in stops))
    assert any(a != b for a, b in rounds_of_rules)


def test_the_cap_is_honoured_and_said(tiny):
    capped = [record for record in recovered(tiny).values() if not record.metrics["test"]["reached"]]
    assert capped
    for record in capped:
        assert record.metrics["test"]["rounds"] == TINY.recovery_cap
        assert len(record.rounds) == TINY.recovery_cap + 1


def test_bytes_are_the_formulas_of_table_viii_whatever_the_client_sizes(tiny):
    for (setting, _, _, method), record in recovered(tiny).items():
        f = Federation(tiny.descriptions[setting].metrics["parameters"], clients=3, leaving=1, samples=50)
        for rule in puf.STOP_RULES:
            counted = record.metrics[rule]
            assert counted["bytes"] == total_cost(method, f, recovery_rounds=counted["rounds"]).comm_bytes


def test_images_are_the_formulas_of_table_viii_for_equal_clients(tiny):
    """F = 1 FLOP per image makes FLOPs images."""
    f = Federation(1, clients=3, leaving=1, samples=50, epochs=TINY.epochs, flops=1)
    for (setting, _, _, method), record in recovered(tiny).items():
        for rule in puf.STOP_RULES:
            counted = record.metrics[rule]
            formula = total_cost(method, f, recovery_rounds=counted["rounds"], epochs_u=TINY.epochs_u)
            assert setting != EVEN or counted["images"] == formula.comp_flops


def test_images_are_the_sizes_of_those_who_trained_for_unequal_clients(tiny):
    n = sizes(SKEWED)
    for (setting, _, target, method), record in recovered(tiny).items():
        at_target, at_others = TINY.epochs_u * n[target], TINY.epochs * (sum(n) - n[target])
        unlearning = {"PUF-Special": at_target, "PUF-Regular": at_target + at_others}.get(method, 0)
        for rule in puf.STOP_RULES:
            counted = record.metrics[rule]
            assert setting != SKEWED or counted["images"] == unlearning + at_others * counted["rounds"]


def test_every_method_keeps_one_model(tiny):
    for (setting, _, _, _), record in recovered(tiny).items():
        for rule in puf.STOP_RULES:
            assert record.metrics[rule]["storage"] == 4 * tiny.descriptions[setting].metrics["parameters"]


def test_not_gives_the_same_model_whoever_leaves_and_puf_does_not(tiny):
    for setting in TINY.settings:
        outputs = {
            method: {tiny.unlearnings[setting, 0, target, method].metrics["unlearned"]["sha256"] for target in (0, 1)}
            for method in METHODS
        }
        assert {method: len(models) for method, models in outputs.items()} == {
            "Natural": 1,  # nothing was done
            "NoT": 1,
            "PUF-Special": 2,
            "PUF-Regular": 2,
        }


# --- two readings, two modes ---


def test_the_printed_form_takes_a_step_smaller_by_the_targets_size(tiny):
    """Special: exactly n_target. Regular also has updates of the others, hence only about."""
    n = sizes(SKEWED)
    for (setting, seed, target, method), record in tiny.printed.items():
        printed = record.metrics["unlearned"]["step"]
        corrected = tiny.unlearnings[setting, seed, target, method].metrics["unlearned"]["step"]
        within = 1e-3 if method == "PUF-Special" else 0.3
        assert corrected / printed == pytest.approx(n[target], rel=within)
    assert {key[0] for key in tiny.printed} == {SKEWED}


def test_equivalence_knows_the_targets_share(tiny):
    for (setting, _, target), record in tiny.equivalence.items():
        assert record.metrics["p_u"] == sizes(setting)[target] / 150


def test_regular_is_special_with_the_combined_rate_once_training_has_converged(tmp_path):
    """Full-batch steps on a strongly convex loss: 150 rounds contract by 0.9 each, so that sum p_i Delta_i = 0."""
    converged = replace(
        TINY, settings=[SKEWED], rounds=150, epochs=1.0, batch_size=1000, lr=0.1, lr_decay=1.0, weight_decay=1.0
    )
    records = puf.run_equivalence(converged, RecordStore(tmp_path), jobs=1)
    assert len(records) == 2
    for record in records.values():
        assert record.metrics["relative_difference"] < 1e-3


# --- the sliders ---


@pytest.mark.parametrize(("mode", "eta_u"), [("special", 2.0), ("regular", 6.0)])
def test_live_recovery_draws_the_recorded_run(tiny, mode, eta_u):
    for setting, target in product(TINY.settings, TINY.targets):
        recorded = tiny.unlearnings[setting, 0, target, f"PUF-{mode.capitalize()}"].rounds
        with single_threaded():
            live = puf.live_recovery(TINY, tiny.store, setting, 0, target, mode, eta_u, rounds=len(recorded) - 1)
        assert live == [{name: row[name] for name in ("round", "test", "forget")} for row in recorded]


# --- the same bits ---


def test_one_process_and_two_give_the_same_bits(tiny, tmp_path):
    two = run_all(TINY, tmp_path, jobs=2)
    assert len(all_records(two)) == 2 + 6 + 24 + 4 + 4
    assert results(all_records(two)) == results(all_records(tiny))


def test_the_same_seed_twice_gives_the_same_bits_and_another_seed_others(tiny, tmp_path):
    cell = replace(TINY, settings=[SKEWED], targets=[1])
    again = puf.run_unlearning(cell, RecordStore(tmp_path), jobs=1, methods=["PUF-Regular"])
    assert results(again.values()) == results([tiny.unlearnings[SKEWED, 0, 1, "PUF-Regular"]])
    (other,) = puf.run_unlearning(replace(cell, seeds=[1]), RecordStore(tmp_path), 1, ["PUF-Regular"]).values()
    assert other.rounds != tiny.unlearnings[SKEWED, 0, 1, "PUF-Regular"].rounds


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
def test_an_interrupted_training_goes_on_as_if_nothing_had_happened(tiny, tmp_path, monkeypatch, moment):
    interruption = Interruption(monkeypatch)
    config = TINY.training(SKEWED, 0, [1])
    for at in range(1, TINY.rounds + 1):
        store = RecordStore(tmp_path / str(at))
        record, rest = interruption.try_twice(store, puf.train, config, at, moment)
        assert results([record]) == results([tiny.trainings[SKEWED, 0, 1]])
        assert rest == TINY.rounds - (at if moment == "after" else at - 1)  # at most the current round is lost


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(("target", "method"), [(0, "Natural"), (0, "PUF-Special"), (1, "PUF-Regular"), (0, "NoT")])
def test_an_interrupted_recovery_goes_on_as_if_nothing_had_happened(
    tiny, tmp_path, monkeypatch, target, method, moment
):
    expected = tiny.unlearnings[SKEWED, 0, target, method]
    interruption = Interruption(monkeypatch)
    store = RecordStore(shutil.copytree(tiny.store.root, tmp_path / "records"))
    for at in range(1, len(expected.rounds) + 1):
        (store.root / f"{expected.key}.json").unlink()
        config = TINY.unlearning(SKEWED, 0, target, method)
        record, rest = interruption.try_twice(store, puf.unlearn, config, at, moment)
        assert results([record]) == results([expected])
        assert rest == len(expected.rounds) - (at if moment == "after" else at - 1)


def test_figures_only_needs_neither_data_nor_models(tiny, tmp_path, monkeypatch):
    """Exported records in a read-only store are all that the notebook's functions read."""
    tiny.store.export({record.key for record in all_records(tiny)}, tmp_path / "records")
    monkeypatch.setattr(puf, "problem", None)  # building one would be an error
    committed = RecordStore(tmp_path / "records", read_only=True)
    assert results(puf.run_descriptions(TINY, committed).values()) == results(tiny.descriptions.values())
    assert results(puf.run_training(TINY, committed).values()) == results(tiny.trainings.values())
    assert results(puf.run_unlearning(TINY, committed).values()) == results(tiny.unlearnings.values())
    assert results(puf.run_printed(TINY, committed).values()) == results(tiny.printed.values())
    assert results(puf.run_equivalence(TINY, committed).values()) == results(tiny.equivalence.values())
    with pytest.raises(RuntimeError, match=r"no record in .* read only"):
        puf.run_training(replace(TINY, rounds=7), committed)
