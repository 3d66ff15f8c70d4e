"""FedORA's runs on tiny data: who forgets what, where triggers and noise lie, and what is measured."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from fu_core.data import load
from fu_core.errors import ConfigError
from fu_core.federation.vertical import Boundary, predict, split_features
from fu_core.unlearning.fedora import FedORA, threshold_of_entropy
from fu_papers.fedora import runs as fedora
from fu_papers.fedora.grid import BASELINES, METHODS, REFERENCES, Experiment, Task
from fu_papers.lab.context import RunContext
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded

TABLE, DIGITS = "breast_cancer/mlp", "digits/mlp"
TINY = Experiment(
    "test", [TABLE, DIGITS], seeds=[0], classes=[[1], [2]], percents=[[50], [50]], n_train=[200, 200], n_val=[40, 100],
    n_test=[60, 100], epochs=[2, 2], lr=[0.05, 0.2], batch_size=[32, 16], iterations=3, ga_epochs=2, cvfu_epochs=1,
    repeats=2,
)  # fmt: skip
MAIN, WHOLE = Task(DIGITS, "classes-2-50"), Task(DIGITS, "classes-2-100")
TARGET = fedora.BACKDOOR


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordStore(tmp_path_factory.mktemp("fedora"))


def data(task=MAIN):
    return fedora.dataset_of(TINY.training(task, 0, exclude=False, poison=False))


def run(store, function, config):
    with single_threaded():
        return store.run(function, config, data_hash=fedora.data_hash(config))


def unlearn(store, method, task=MAIN, *, poison=False, **change):
    return run(store, fedora.unlearn, TINY.unlearning(task, 0, method, poison=poison, **change))


def models(store, config, *, retrain=False):
    """The problem of a config, with the original or the retrained parties."""
    p = fedora.VerticalProblem(config)
    with single_threaded():
        return p, fedora.trained_parties(config, store, p, retrain=retrain)


def changed(a, b):
    """Which columns of which rows differ: (rows, columns of the last axis)."""
    differs = a != b
    rows = differs.flatten(1).any(dim=1).nonzero().flatten()
    columns = differs.flatten(0, -2).any(dim=0).nonzero().flatten()
    return rows.tolist(), columns.tolist()


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "percent"), [(1, 50), (2, 50), (2, 25), (3, 100)])
def test_a_request_by_classes_takes_its_share_of_classes_1_to_m(m, percent):
    dataset = data()
    y = dataset.y_train
    split = fedora.split_of(f"classes-{m}-{percent}", dataset)
    wanted = [round(percent * int((y == label).sum()) / 100) if 1 <= label <= m else 0 for label in range(10)]
    assert y[split.forget].bincount(minlength=10).tolist() == wanted
    assert sorted([*split.forget.tolist(), *split.retain.tolist()]) == list(range(200))
    assert split.removed == (tuple(range(1, m + 1)) if percent == 100 else ())


def test_larger_requests_contain_the_smaller_ones():
    texts = [["classes-1-50", "classes-2-50", "classes-2-75", "classes-3-100"], ["samples-1", "samples-50"]]
    for chain in texts:
        sets = [set(fedora.split_of(text, data()).forget.tolist()) for text in chain]
        assert all(a < b for a, b in itertools.pairwise(sets))


def test_the_backdoors_target_is_the_last_class_to_go():
    assert fedora.forgotten_classes(1, 2) == (1,)
    assert fedora.forgotten_classes(9, 10) == tuple(range(1, 10))
    assert fedora.forgotten_classes(10, 10) == (*range(1, 10), TARGET)


def test_a_request_by_samples_takes_so_many_and_none_takes_none():
    split = fedora.split_of("samples-50", data())
    assert (len(split.forget), len(split.retain), split.removed) == (50, 150, ())
    assert len(data().y_train[split.forget].unique()) > 5  # of any class
    assert len(fedora.split_of("none", data()).forget) == 0


def test_party_noise_reaches_the_samples_held_out_for_validation_as_well():
    clean, noisy = (
        fedora.VerticalProblem(TINY.training(task, 0, exclude=False, poison=False))
        for task in (MAIN, MAIN._replace(noise=0.2))
    )
    assert not torch.equal(clean.validation[0], noisy.validation[0])
    assert torch.equal(clean.validation[1], noisy.validation[1])


@pytest.mark.parametrize(
    ("request_text", "says"),
    [
        ("everything", "request must look like .* got 'everything'"),
        ("classes-2", "request must look like .* got 'classes-2'"),
        ("samples-x", "request must look like .* got 'samples-x'"),
        ("samples-200", "request must leave some of 200 samples and take one, got 'samples-200'"),
        ("samples-0", "request must leave some of 200 samples and take one, got 'samples-0'"),
        ("classes-0-50", "classes must be 1 to 10 for digits, got 0"),
        ("classes-11-50", "classes must be 1 to 10 for digits, got 11"),
    ],
)
def test_a_bad_request_is_refused(request_text, says):
    with pytest.raises(ConfigError, match=says):
        fedora.split_of(request_text, data())


# --- triggers and noise ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [MAIN, Task(TABLE, "classes-1-50")])
def test_poison_is_on_the_rows_in_the_trigger_and_at_the_second_party_only(task):
    clean = data(task)
    rows = fedora.split_of(task.request, clean).forget
    dirty = fedora.poisoned(clean, rows)
    touched, columns = changed(clean.x_train, dirty.x_train)
    width = clean.x_train.shape[-1]
    assert set(touched) <= set(rows.tolist())
    assert columns == [width - 1]
    assert fedora._blocks(clean)[1][-1] == width - 1
    first, second = zip(
        *(split_features(x, fedora._blocks(clean)) for x in (clean.x_train, dirty.x_train)), strict=True
    )
    assert torch.equal(*first)
    assert not torch.equal(*second)
    assert (dirty.y_train[rows] == TARGET).all()
    kept = fedora.split_of(task.request, clean).retain
    assert torch.equal(dirty.y_train[kept], clean.y_train[kept])
    assert torch.equal(dirty.x_test, clean.x_test)


@pytest.mark.parametrize("task", [MAIN, Task(TABLE, "classes-1-50")])
def test_a_trigger_is_one_value_and_setting_it_twice_changes_nothing(task):
    clean = data(task)
    once = fedora.triggered(clean, clean.x_test)
    assert torch.equal(fedora.triggered(clean, once), once)
    if clean.x_test.dim() == 4:
        assert (once[..., -1, -1] == 255).all()
        assert torch.equal(once[..., :-1, :], clean.x_test[..., :-1, :])
    else:
        assert (once[:, -1] == clean.x_train[:, -1].max()).all()
    assert not torch.equal(once, clean.x_test)  # a copy


@pytest.mark.parametrize("task", [MAIN, Task(TABLE, "classes-1-50")])
def test_noise_is_on_all_of_the_first_partys_columns_only_and_the_same_each_time(task):
    clean = data(task)
    columns = fedora._blocks(clean)[0]
    noisy, again, more = (fedora.noisy(clean, std, columns) for std in (0.2, 0.2, 0.4))
    for x, spoilt, same, worse in (
        (clean.x_train, noisy.x_train, again.x_train, more.x_train),
        (clean.x_test, noisy.x_test, again.x_test, more.x_test),
    ):
        assert changed(x, spoilt) == (list(range(len(x))), columns.tolist())
        assert torch.equal(spoilt, same)
        assert spoilt.dtype == x.dtype
        moved = [(y.float() - x.float())[..., columns].abs().mean() for y in (spoilt, worse)]
        assert moved[1] > 1.2 * moved[0]
    if clean.x_train.dim() == 2:  # in units of each column's own spread; digits are cut off at black and white
        spread = (noisy.x_train - clean.x_train)[:, columns].std(dim=0) / clean.std[columns]
        assert spread.mean() == pytest.approx(0.2, rel=0.1)
    assert torch.equal(noisy.y_train, clean.y_train)


def test_the_hash_of_the_data_differs_by_data_and_by_nothing_else():
    config = TINY.training(MAIN, 0, exclude=False, poison=False)
    other = {
        "dataset": TINY.training(Task(TABLE, "none"), 0, exclude=False, poison=False),
        "n_train": config | {"n_train": 150},
        "n_val": config | {"n_val": 90},
    }
    hashes = {fedora.data_hash(one) for one in (config, *other.values())}
    assert len(hashes) == 4
    assert fedora.data_hash(config | {"seed": 7, "request": "samples-1", "poison": True}) in hashes


def test_validation_samples_are_neither_trained_on_nor_tested_on():
    p = fedora.VerticalProblem(TINY.training(MAIN, 0, exclude=False, poison=False))

    def rows(parts):
        return {tuple(torch.cat([x.flatten(1) for x in parts], dim=1)[i].tolist()) for i in range(len(parts[0]))}

    held_out = rows(p.validation)
    whole = load("digits")
    blocks = fedora._blocks(whole)
    assert len(p.y_validation) == 100
    assert held_out.isdisjoint(rows([party.x for party in p.parties.passive]))
    assert held_out.isdisjoint(rows(p.test))
    assert held_out <= rows(split_features(whole.x_train, blocks))


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [MAIN, MAIN._replace(dp_std=0.5, dp_clip=1.0)])
def test_a_training_that_was_interrupted_ends_in_the_same_bits(store, tmp_path, monkeypatch, task):
    config = TINY.training(task, 0, exclude=False, poison=False) | {"epochs": 4}
    whole = run(store, fedora.train, config)
    checkpoint, made = RunContext.checkpoint, []

    def dies(self, *args):
        checkpoint(self, *args)
        made.append(args)
        if len(made) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunContext, "checkpoint", dies)
    again = RecordStore(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(again, fedora.train, config)
    monkeypatch.setattr(RunContext, "checkpoint", checkpoint)
    record = run(again, fedora.train, config)
    assert record.metrics == whole.metrics
    ours, theirs = again.tensors(record.key), store.tensors(whole.key)
    assert set(ours) == {"party 0", "party 1", "party 2"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_embedding_noise_changes_what_is_learnt(store):
    finished = [
        run(store, fedora.train, TINY.training(task, 0, exclude=False, poison=False))
        for task in (MAIN, MAIN._replace(dp_std=0.5), MAIN._replace(dp_std=0.5, dp_clip=1.0))
    ]
    w = [store.tensors(record.key)["party 0"] for record in finished]
    assert not any(torch.equal(w[i], w[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_retraining_never_sees_what_is_forgotten(store, tmp_path, monkeypatch):
    """The same bits whatever the forgotten samples are: here all of them are blank."""
    config = TINY.training(MAIN, 0, exclude=True, poison=False)
    record = run(store, fedora.train, config)
    deal = fedora.deal

    def blank(dataset, **how):
        parties, test = deal(dataset, **how)
        rows = fedora.split_of(MAIN.request, dataset).forget
        passive = tuple(replace(party, x=party.x.index_fill(0, rows, 0)) for party in parties.passive)
        return replace(parties, passive=passive), test

    monkeypatch.setattr(fedora, "deal", blank)
    again = RecordStore(tmp_path)
    blanked = run(again, fedora.train, config)
    ours, theirs = store.tensors(record.key), again.tensors(blanked.key)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# --- unlearning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*REFERENCES, *METHODS])
def test_every_method_measures_finite_numbers_in_their_range(store, method):
    metrics = unlearn(store, method).metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(0 <= metrics[name] <= 100 for name in ("test", "test_all", "forget", "asr"))
    assert all(0 <= metrics[name] <= 1 for name in ("entropy", "mia", "mia_fraction", "mia_auc"))
    if method in REFERENCES:
        assert metrics["gap"] == (method == "Original")
        assert metrics["images"] == metrics["up"] == metrics["down"] == 0
    else:
        assert metrics["gap"] not in (0, 1)
        assert min(metrics["images"], metrics["up"], metrics["down"]) > 0


def test_test_accuracy_is_over_the_classes_of_which_something_is_left(store):
    config = TINY.unlearning(WHOLE, 0, "Original", poison=False)
    metrics = unlearn(store, "Original", WHOLE).metrics
    p, original = models(store, config)
    right = predict(original, p.test).argmax(dim=1) == p.y_test
    remaining = (p.y_test != 1) & (p.y_test != 2)
    assert metrics["test_all"] == pytest.approx(100 * float(right.double().mean()))
    assert metrics["test"] == pytest.approx(100 * float(right[remaining].double().mean()))
    assert metrics["test"] != metrics["test_all"]
    sample = unlearn(store, "Original").metrics
    assert sample["test"] == sample["test_all"] == metrics["test_all"]


def test_forgetting_is_measured_on_the_samples_as_they_were_in_training(store):
    """A poisoned original has learnt the trigger, not the label; retraining has neither."""
    config = TINY.unlearning(MAIN, 0, "Original", poison=True)
    p, original = models(store, config)
    assert (original.active.y[p.forget] == TARGET).all()
    answers = predict(original, [party.x[p.forget] for party in p.parties.passive]).argmax(dim=1)
    found = unlearn(store, "Original", poison=True).metrics["forget"]
    assert found == pytest.approx(100 * float((answers == TARGET).double().mean()))


def test_backdoor_success_is_over_triggered_test_images_of_other_classes(store):
    config = TINY.unlearning(MAIN, 0, "Original", poison=True)
    p, original = models(store, config)
    others = p.clean.x_test[p.clean.y_test != TARGET].clone()
    others[..., -1, -1] = 255
    answers = predict(original, split_features(others, p.blocks)).argmax(dim=1)
    expected = 100 * float((answers == TARGET).double().mean())
    assert unlearn(store, "Original", poison=True).metrics["asr"] == pytest.approx(expected)


def test_retrain_of_a_poisoned_task_is_the_clean_retraining(store):
    w = [
        models(store, TINY.unlearning(MAIN, 0, "Retrain", poison=poison), retrain=True)[1].w for poison in (False, True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*w, strict=True))
    trainings = len(store.finished(fedora.train))
    models(store, TINY.unlearning(MAIN, 0, "GA", poison=True), retrain=True)
    assert len(store.finished(fedora.train)) == trainings  # and nothing is trained twice


@pytest.mark.parametrize("method", ["FedORA", "FedORA vector"])
def test_the_log_is_the_trace_and_its_last_row_the_score_of_the_result(store, method):
    config = TINY.unlearning(MAIN, 0, method, poison=False)
    rows = unlearn(store, method).rounds
    assert [row["t"] for row in rows] == [0, 1, 2, 3]  # three iterations, and what came of them
    assert all({"score", "residual", "dual", "tau", "sigma", "change"} <= set(row) for row in rows)
    assert ["retained" in row for row in rows] == [True, True, True, False]
    epsilon = FedORA(**config["fedora"]).epsilon(10)
    assert all(row["score"] + row["residual"] == pytest.approx(epsilon) for row in rows)
    # H - KL is a function of the entropy alone (errata F2), which is measured elsewhere
    entropy = unlearn(store, method).metrics["entropy"]
    assert rows[-1]["score"] == pytest.approx(math.log(10) * threshold_of_entropy(entropy), abs=1e-5)
    assert rows[0]["score"] != rows[-1]["score"]
    assert unlearn(store, "GA").rounds == []


def test_without_its_loss_fedora_logs_no_score_of_an_iteration(store):
    rows = unlearn(store, "FedORA", unlearn=False).rounds
    assert ["score" in row for row in rows] == [False, False, False, True]


def test_an_unknown_method_is_refused(store):
    config = TINY.unlearning(MAIN, 0, "GA", poison=False)
    p, original = models(store, config)
    for name in ("SISA", "Retrain"):
        with pytest.raises(ConfigError, match=rf"method must be one of .*'FedORA'.* got '{name}'"):
            fedora.serve(config | {"method": name}, p, original, Boundary())


def test_the_calibrated_threshold_sees_validation_samples_only(store, monkeypatch):
    config = TINY.unlearning(MAIN, 0, "FedORA calibrated", poison=False)
    p, original = models(store, config)
    settings = FedORA(**config["fedora"])
    same = (p.y_validation == 1) | (p.y_validation == 2)
    log_p = predict(original, [x[same] for x in p.validation]).log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1).mean() / math.log(10)
    threshold = fedora._threshold_of_unseen(p, original, settings)
    assert threshold == pytest.approx(2 * float(entropy) - 1)
    rows = unlearn(store, "FedORA calibrated").rounds
    assert rows[0]["score"] + rows[0]["residual"] == pytest.approx(threshold * math.log(10), rel=1e-5)
    p.test = [torch.zeros_like(x) for x in p.test]
    p.y_test = torch.zeros_like(p.y_test)
    assert fedora._threshold_of_unseen(p, original, settings) == threshold
    p.validation = [torch.zeros_like(x) for x in p.validation]
    assert fedora._threshold_of_unseen(p, original, settings) != threshold


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speed(store):
    return run(store, fedora.speed, TINY.speeds()[MAIN]).metrics


def test_speed_times_every_method_and_counts_what_a_separate_run_counts(store, speed):
    assert set(speed["seconds"]) == {"Retrain", *BASELINES, "FedORA"}
    assert all(seconds > 0 for seconds in speed["seconds"].values())
    for method in (*BASELINES, "FedORA"):
        metrics = unlearn(store, method).metrics
        assert speed["costs"][method] == {name: metrics[name] for name in ("images", "up", "down")}


def test_retraining_is_projected_from_two_epochs_to_all_of_them(store):
    config = TINY.speeds()[MAIN] | {"epochs": 4, "repeats": 1}
    costs = run(store, fedora.speed, config).metrics["costs"]["Retrain"]
    training = run(store, fedora.train, TINY.training(MAIN, 0, exclude=True, poison=False) | {"epochs": 4})
    assert costs["up"] + costs["down"] == training.metrics["bytes"]
    assert costs["images"] == 4 * (200 - len(fedora.split_of(MAIN.request, data()).forget))


def test_speed_says_how_large_everything_is(speed):
    forget = len(fedora.split_of(MAIN.request, data()).forget)
    assert (speed["n_forget"], speed["n_retain"], speed["classes"]) == (forget, 200 - forget, 10)
    assert speed["embedding"] == 2 * 32  # of both parties
    assert speed["parameters"] == 2 * ((32 + 1) * 64 + (64 + 1) * 32) + (64 + 1) * 10


def test_a_description_says_who_holds_what(store):
    found = {d: record.metrics for d, record in fedora.run_descriptions(TINY, store).items()}
    assert found[DIGITS]["features"] == [[1, 8, 4], [1, 8, 4]]
    assert found[TABLE]["features"] == [[15], [15]]
    assert (found[TABLE]["n_train"], found[TABLE]["n_test"]) == (200, 60)
    assert len(found[DIGITS]["parameters"]) == 3
