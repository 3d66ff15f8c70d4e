"""FedORA's runs on tiny data: who forgets what, where triggers and noise lie, and what is measured."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from fu_core.data import load
from fu_core.errors import ConfigError, UnsupportedTask
from fu_core.federation.vertical import predict, split_features
from fu_core.request import Request
from fu_core.unlearning.fedora import FedORA, threshold_of_entropy
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES, other_seed
from fu_papers.fedora import problem, stages
from fu_papers.fedora import runs as fedora
from fu_papers.fedora import speed as timing
from fu_papers.fedora.choices import ABLATIONS
from fu_papers.fedora.grid import BASELINES, METHODS, Task
from fu_papers.fedora.problem import VerticalProblem
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import Record, needs_of
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from tests.fedora_lab import experiment
from tests.interruption import interrupt

TABLE, DIGITS = "breast_cancer/mlp", "digits/mlp"
TINY = experiment(
    datasets=[TABLE, DIGITS], seeds=[0], classes=[[1], [2]], percents=[[50], [50]], n_train=[200, 200],
    n_val=[40, 100], n_test=[60, 100], epochs=[2, 2], lr=[0.05, 0.2], batch_size=[32, 16], iterations=3, ga_epochs=2,
    cvfu_epochs=1, repeats=2,
)  # fmt: skip
MAIN, WHOLE = Task(DIGITS, "classes-2-50"), Task(DIGITS, "classes-2-100")
TARGET = 0  # of the backdoor: no class here has most of the samples, except in the tests that say so


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordStore(tmp_path_factory.mktemp("fedora"))


def data(task=MAIN):
    return problem.dataset_of(TINY.training(task, 0))


def forgotten(request, dataset=None):
    """Which rows of the training set a request takes."""
    return problem.rows_of_request(request, dataset or data())[0]


def of(config):
    return VerticalProblem.of(config)


def run(store, function, config):
    with single_threaded():
        return store.run(function, config)


def unlearn(store, method, task=MAIN, *, backdoor=False, **change):
    return run(store, fedora.unlearn, TINY.unlearning(task, 0, method, backdoor=backdoor, **change))


def models(store, config, name="original"):
    """The problem of a config, with the original or the retrained parties."""
    p, context = of(config), RunContext(store, "test", needs_of(fedora.unlearn, config))
    with single_threaded():
        return p, fedora.trained_parties(p, context, name)


def changed(a, b):
    """Which columns of which rows differ: (rows, columns of the last axis)."""
    differs = a != b
    rows = differs.flatten(1).any(dim=1).nonzero().flatten()
    columns = differs.flatten(0, -2).any(dim=0).nonzero().flatten()
    return rows.tolist(), columns.tolist()


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "percent"), [(1, 50), (2, 50), (2, 25), (3, 100)])
def test_a_request_by_classes_takes_its_share_of_classes_1_to_m(m, percent):
    y = data().y_train
    p = of(TINY.training(MAIN, 0, f"classes-{m}-{percent}"))
    wanted = [round(percent * int((y == label).sum()) / 100) if 1 <= label <= m else 0 for label in range(10)]
    assert y[p.forget].bincount(minlength=10).tolist() == wanted
    assert sorted([*p.forget.tolist(), *p.retain.tolist()]) == list(range(200))
    assert p.removed == (tuple(range(1, m + 1)) if percent == 100 else ())


def test_larger_requests_contain_the_smaller_ones():
    texts = [["classes-1-50", "classes-2-50", "classes-2-75", "classes-3-100"], ["samples-1", "samples-50"]]
    for chain in texts:
        sets = [set(forgotten(text).tolist()) for text in chain]
        assert all(a < b for a, b in itertools.pairwise(sets))


def test_the_backdoors_target_is_the_last_class_to_go():
    removed = {m: of(TINY.training(MAIN, 0, f"classes-{m}-100")).removed for m in (1, 9)}
    assert removed == {1: (1,), 9: tuple(range(1, 10))}
    assert Request.parse("classes-10-100").labels(10) == (*range(1, 10), TARGET)


def test_a_request_by_samples_takes_so_many_and_none_takes_none():
    p = of(TINY.training(MAIN, 0, "samples-50"))
    assert (len(p.forget), len(p.retain), p.removed) == (50, 150, ())
    assert len(data().y_train[p.forget].unique()) > 5  # of any class
    everything = of(TINY.training(MAIN, 0, "none"))
    assert (everything.deletion, everything.removed) == (None, ())
    assert everything.retain.tolist() == list(range(200))
    with pytest.raises(ConfigError, match="request must take some samples to be forgotten, got 'none'"):
        _ = everything.forget


def test_what_is_forgotten_does_not_depend_on_the_trigger_that_lies_on_it():
    clean, dirty = (of(TINY.training(MAIN, 0, MAIN.request, poison)) for poison in ("", MAIN.request))
    assert torch.equal(clean.forget, dirty.forget)
    assert torch.equal(clean.labels_to_forget, dirty.labels_to_forget)
    assert (dirty.parties.active.y[dirty.forget] == TARGET).all()
    assert not (clean.parties.active.y[clean.forget] == TARGET).any()


def test_party_noise_reaches_the_samples_held_out_for_validation_as_well():
    clean, noisy = (of(TINY.training(task, 0)) for task in (MAIN, MAIN._replace(noise=0.2)))
    assert not torch.equal(clean.validation[0], noisy.validation[0])
    assert torch.equal(clean.validation[1], noisy.validation[1])


@pytest.mark.parametrize(
    ("request_text", "says"),
    [
        ("everything", "request must begin with one of .* got 'everything'"),
        ("classes-2", "request must look like .* got 'classes-2'"),
        ("samples-x", "request must look like .* got 'samples-x'"),
        ("samples-200", "request must leave some of 200 samples and take one, got 'samples-200'"),
        ("samples-0", "request must leave some of 200 samples and take one, got 'samples-0'"),
        ("classes-0-50", "request must name 1 to 10 classes, got 'classes-0-50'"),
        ("classes-11-50", "request must name 1 to 10 classes, got 'classes-11-50'"),
        ("classes-10-100", "forget leaves no data at all"),
    ],
)
def test_a_bad_request_is_refused(request_text, says):
    with pytest.raises(ValueError, match=says):
        of(TINY.training(MAIN, 0, request_text))


@pytest.mark.parametrize("change", [{"n_train": [200, 3]}, {"percents": [[50], [1]]}])
def test_parameters_that_leave_nothing_to_forget_are_named(change):
    """Three digits, or one per cent of some twenty, are no sample of a class."""
    e = TINY.changed(**change)
    with pytest.raises(
        ConfigError, match=r"^n_train, classes, percents and few must fit together: of \d+ training"
    ) as info:
        of(e.unlearning(e.main, 0, "GA"))
    assert f"'{e.main.request}' takes no sample: there are too few of classes (1, 2)" in str(info.value)
    assert "\n" not in str(info.value)


# --- triggers and noise ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [MAIN, Task(TABLE, "classes-1-50")])
def test_poison_is_on_the_rows_in_the_trigger_and_at_the_second_party_only(task):
    clean = data(task)
    rows = forgotten(task.request, clean)
    dirty = problem.poisoned(clean, rows)
    touched, columns = changed(clean.x_train, dirty.x_train)
    width = clean.x_train.shape[-1]
    assert set(touched) <= set(rows.tolist())
    assert columns == [width - 1]
    assert problem.column_blocks(clean)[1][-1] == width - 1
    first, second = zip(
        *(split_features(x, problem.column_blocks(clean)) for x in (clean.x_train, dirty.x_train)), strict=True
    )
    assert torch.equal(*first)
    assert not torch.equal(*second)
    assert (dirty.y_train[rows] == TARGET).all()
    kept = torch.tensor(sorted(set(range(len(clean.y_train))) - set(rows.tolist())))
    assert torch.equal(dirty.y_train[kept], clean.y_train[kept])
    assert torch.equal(dirty.x_test, clean.x_test)


@pytest.mark.parametrize("task", [MAIN, Task(TABLE, "classes-1-50")])
def test_a_trigger_is_one_value_and_setting_it_twice_changes_nothing(task):
    clean = data(task)
    once = problem.triggered(clean, clean.x_test)
    assert torch.equal(problem.triggered(clean, once), once)
    if clean.x_test.dim() == 4:
        assert (once[..., -1, -1] == 255).all()
        assert torch.equal(once[..., :-1, :], clean.x_test[..., :-1, :])
    else:
        assert (once[:, -1] == clean.x_train[:, -1].max()).all()
    assert not torch.equal(once, clean.x_test)  # a copy


def test_the_backdoors_target_is_no_majority():
    """Whoever answers with the majority would seem to have the backdoor."""
    clean = data()
    assert problem.backdoor_target(clean) == 0
    mostly_0 = replace(clean, y_train=torch.where(torch.arange(200) < 110, 0, 1 + torch.arange(200) % 2))
    counts = mostly_0.y_train.bincount(minlength=10).tolist()
    assert counts[0] == 110
    assert counts[problem.backdoor_target(mostly_0)] == min(counts)
    rows = torch.tensor([0, 150])
    assert set(problem.poisoned(mostly_0, rows).y_train[rows].tolist()) == {problem.backdoor_target(mostly_0)}
    assert (
        problem.backdoor_target(replace(clean, y_train=torch.where(torch.arange(200) < 100, 0, 1))) == 0
    )  # no majority


def test_nets_standardise_alike_with_and_without_poison():
    """Retraining of a poisoned table is the clean one, and has to mean the same in both worlds."""
    task = Task(TABLE, "classes-1-50")
    clean, dirty = (of(TINY.training(task, 0, task.request, poison)) for poison in ("", task.request))
    assert not torch.equal(clean.parties.passive[1].x, dirty.parties.passive[1].x)
    assert torch.equal(predict(clean.parties, clean.test), predict(dirty.parties, clean.test))


@pytest.mark.parametrize(
    ("split", "widths"), [("2", [4, 4]), ("4", [2, 2, 2, 2]), ("8", [1] * 8), ("1+7", [1, 7]), ("1+2+5", [1, 2, 5])]
)
def test_columns_are_shared_among_the_parties_as_the_split_says(store, split, widths):
    task = MAIN._replace(split=split)
    p = of(TINY.training(task, 0))
    assert [party.x.shape[-1] for party in p.parties.passive] == widths
    assert torch.equal(torch.cat([party.x for party in p.parties.passive], dim=-1), data().x_train)
    if split == "1+7":
        assert 0 <= unlearn(store, "FedORA", task).metrics["test"] <= 100


@pytest.mark.parametrize("split", ["9", "1+6", "8+8"])
def test_a_split_that_the_columns_do_not_allow_is_refused(split):
    with pytest.raises(ConfigError, match=r"splits must share the 8 columns of digits among the parties, got"):
        of(TINY.training(MAIN._replace(split=split), 0))


@pytest.mark.parametrize("task", [MAIN, Task(TABLE, "classes-1-50")])
def test_noise_is_on_all_of_the_first_partys_columns_only_and_the_same_each_time(task):
    clean = data(task)
    columns = problem.column_blocks(clean)[0]
    noisy, again, more = (problem.noisy(clean, std, columns) for std in (0.2, 0.2, 0.4))
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
    config = TINY.training(MAIN, 0)
    other = {
        "dataset": TINY.training(Task(TABLE, "classes-1-50"), 0),
        "n_train": config | {"n_train": 150},
        "n_val": config | {"n_val": 90},
    }
    hashes = {problem.data_hash(one) for one in (config, *other.values())}
    assert len(hashes) == 4
    assert problem.data_hash(config | {"seed": 7, "request": "samples-1", "poison": "samples-1"}) in hashes


def test_validation_samples_are_neither_trained_on_nor_tested_on():
    p = of(TINY.training(MAIN, 0))

    def rows(parts):
        return {tuple(torch.cat([x.flatten(1) for x in parts], dim=1)[i].tolist()) for i in range(len(parts[0]))}

    held_out = rows(p.validation)
    whole = load("digits")
    blocks = problem.column_blocks(whole)
    assert len(p.y_validation) == 100
    assert held_out.isdisjoint(rows([party.x for party in p.parties.passive]))
    assert held_out.isdisjoint(rows(p.test))
    assert held_out <= rows(split_features(whole.x_train, blocks))


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [MAIN, MAIN._replace(dp_std=0.5, dp_clip=1.0)])
def test_a_training_that_was_interrupted_ends_in_the_same_bits(store, tmp_path, task):
    config = TINY.training(task, 0) | {"epochs": 4}
    whole = run(store, fedora.train, config)
    again = RecordStore(tmp_path)
    interrupt(lambda: run(again, fedora.train, config), after=2)
    record = run(again, fedora.train, config)
    assert record.metrics == whole.metrics
    ours, theirs = again.tensors(record.key), store.tensors(whole.key)
    assert set(ours) == {"party 0", "party 1", "party 2"}
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_embedding_noise_changes_what_is_learnt(store):
    finished = [
        run(store, fedora.train, TINY.training(task, 0))
        for task in (MAIN, MAIN._replace(dp_std=0.5), MAIN._replace(dp_std=0.5, dp_clip=1.0))
    ]
    w = [store.tensors(record.key)["party 0"] for record in finished]
    assert not any(torch.equal(w[i], w[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_retraining_never_sees_what_is_forgotten(store, tmp_path, monkeypatch):
    """The same bits whatever the forgotten samples are: here all of them are blank."""
    config = TINY.training(MAIN, 0, MAIN.request)
    record = run(store, fedora.train, config)
    deal = problem.deal

    def blank(dataset, **how):
        parties, test = deal(dataset, **how)
        rows = forgotten(MAIN.request, dataset)
        passive = tuple(replace(party, x=party.x.index_fill(0, rows, 0)) for party in parties.passive)
        return replace(parties, passive=passive), test

    monkeypatch.setattr(problem, "deal", blank)
    again = RecordStore(tmp_path)
    blanked = run(again, fedora.train, config)
    ours, theirs = store.tensors(record.key), again.tensors(blanked.key)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


# --- unlearning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*REFERENCES, *METHODS])
def test_every_method_measures_finite_numbers_in_their_range(store, method):
    metrics = unlearn(store, method).metrics
    numbers = {name: value for name, value in metrics.items() if name not in ("by_class", "ended")}
    assert all(math.isfinite(value) for value in numbers.values())
    assert all(0 <= metrics[name] <= 100 for name in ("test", "test_all", "test_affected", "forget", "asr", "agree"))
    assert metrics["kl"] >= 0
    assert metrics["retrain_images"] == TINY.epochs[1] * (200 - len(forgotten(MAIN.request)))
    assert all(0 <= metrics[name] <= 1 for name in ("entropy", "mia", "mia_fraction", "mia_auc"))
    if method in REFERENCES:
        assert metrics["gap"] == (method == "Original")
        assert (metrics["kl"], metrics["agree"]) == (0, 100) or method == "Original"
        assert metrics["images"] == metrics["up"] == metrics["down"] == 0
    else:
        assert metrics["gap"] not in (0, 1)
        assert min(metrics["images"], metrics["up"], metrics["down"]) > 0


def test_random_weights_are_the_librarys_and_of_no_use(store):
    """Ten classes: about a tenth is right by chance, of a backdoor's target, too."""
    metrics = unlearn(store, DESTROYED).metrics
    p, original = models(store, TINY.unlearning(MAIN, 0, DESTROYED))
    f = p.federation(TINY.training(MAIN, 0), "test", original)
    parties = fedora.served(p, f, DESTROYED, {}).model
    right = predict(parties, p.test).argmax(dim=1) == p.y_test
    assert metrics["test_all"] == pytest.approx(100 * float(right.double().mean()))
    assert metrics["test"] < unlearn(store, "Original").metrics["test"] - 10
    assert "gap" not in metrics  # no retrained model is looked at
    assert metrics["images"] == metrics["up"] == metrics["down"] == 0


def test_distances_to_retrain_are_in_units_of_doing_nothings(store):
    """Written out over all parties' parameters."""
    runs = {c.method: run(store, fedora.distance, config) for c, config in TINY.distances().items()
            if c == MAIN.cell("main", 0, c.method)}  # fmt: skip
    found = {method: record.metrics["gap"] for method, record in runs.items()}
    main, other = TINY.main, other_seed(TINY.seeds[0], TINY.seeds)
    config = TINY.unlearning(main, TINY.seeds[0], "Retrain")
    p, original = models(store, config)
    retrained = models(store, config, "retrained")[1]
    again = models(store, TINY.unlearning(main, other, "Retrain"), "retrained")[1]
    f = p.federation(config, "test", original)
    destroyed = fedora.served(p, f, DESTROYED, {}).model
    named = {"o": original, "r": retrained, AGAIN: again, DESTROYED: destroyed}
    whole = {name: torch.cat(parties.w) for name, parties in named.items()}
    for method in (AGAIN, DESTROYED):
        expected = (whole[method] - whole["r"]).norm() / (whole["o"] - whole["r"]).norm()
        assert found[method] == pytest.approx(float(expected), rel=1e-5)
    q, ours = (predict(of, [party.x[p.forget] for party in p.parties.passive]).double().softmax(dim=1)
               for of in (retrained, again))  # fmt: skip
    kl = (q * (q / ours).log()).sum(dim=1).mean()
    assert runs[AGAIN].metrics["kl"] == pytest.approx(float(kl), rel=1e-4)
    assert runs[AGAIN].metrics["agree"] == 100 * float((q.argmax(dim=1) == ours.argmax(dim=1)).double().mean())


def test_test_accuracy_is_over_the_classes_of_which_something_is_left(store):
    config = TINY.unlearning(WHOLE, 0, "Original")
    metrics = unlearn(store, "Original", WHOLE).metrics
    p, original = models(store, config)
    right = predict(original, p.test).argmax(dim=1) == p.y_test
    remaining = (p.y_test != 1) & (p.y_test != 2)
    assert metrics["test_all"] == pytest.approx(100 * float(right.double().mean()))
    assert metrics["test"] == pytest.approx(100 * float(right[remaining].double().mean()))
    assert metrics["test"] != metrics["test_all"]
    sample = unlearn(store, "Original").metrics
    assert sample["test"] == sample["test_all"] == metrics["test_all"]
    by_class = {str(c): pytest.approx(100 * float(right[p.y_test == c].double().mean())) for c in (1, 2)}
    assert sample["by_class"] == metrics["by_class"] == by_class
    assert metrics["test_affected"] == pytest.approx(100 * float(right[~remaining].double().mean()))


def test_forgetting_is_measured_on_the_samples_as_they_were_in_training(store):
    """A poisoned original has learnt the trigger, not the label; retraining has neither."""
    config = TINY.unlearning(MAIN, 0, "Original", backdoor=True)
    p, original = models(store, config)
    assert (original.active.y[p.forget] == TARGET).all()
    answers = predict(original, [party.x[p.forget] for party in p.parties.passive]).argmax(dim=1)
    found = unlearn(store, "Original", backdoor=True).metrics["forget"]
    assert found == pytest.approx(100 * float((answers == TARGET).double().mean()))


def test_parties_that_are_no_longer_numbers_are_right_nowhere(store, monkeypatch):
    """The largest of NaN is the first class, which would have been recognised."""
    p, original = models(store, TINY.unlearning(MAIN, 0, "Original"))
    monkeypatch.setattr(fedora, "_attacked", lambda *_: {})
    broken = original.having([torch.full_like(w_k, torch.nan) for w_k in original.w])
    found = fedora.evaluate(p, broken, original, original, None)
    for name in ("test", "test_all", "test_affected", "forget", "agree"):
        assert found[name] == 0, name
    assert set(found["by_class"].values()) == {0}


def test_backdoor_success_is_over_triggered_test_images_of_other_classes(store):
    config = TINY.unlearning(MAIN, 0, "Original", backdoor=True)
    p, original = models(store, config)
    others = p.clean.x_test[p.clean.y_test != TARGET].clone()
    others[..., -1, -1] = 255
    answers = predict(original, split_features(others, p.blocks)).argmax(dim=1)
    expected = 100 * float((answers == TARGET).double().mean())
    assert unlearn(store, "Original", backdoor=True).metrics["asr"] == pytest.approx(expected)


def test_retrain_of_a_poisoned_task_is_the_clean_retraining(store):
    w = [
        models(store, TINY.unlearning(MAIN, 0, "Retrain", backdoor=backdoor), "retrained")[1].w
        for backdoor in (False, True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*w, strict=True))
    trainings = len(store.finished(fedora.train))
    models(store, TINY.unlearning(MAIN, 0, "GA", backdoor=True), "retrained")
    assert len(store.finished(fedora.train)) == trainings  # and nothing is trained twice


@pytest.mark.parametrize("method", ["FedORA", "FedORA vector"])
def test_the_log_is_the_trace_and_its_last_row_the_score_of_the_result(store, method):
    config = TINY.unlearning(MAIN, 0, method)
    rows = unlearn(store, method).rounds
    assert [row["t"] for row in rows] == [0, 1, 2, 3]  # three iterations, and what came of them
    assert all({"score", "residual", "dual", "tau", "sigma", "change"} <= set(row) for row in rows)
    assert ["retained" in row for row in rows] == [True, True, True, False]
    epsilon = FedORA(**config["options"]).epsilon(10)
    assert all(row["score"] + row["residual"] == pytest.approx(epsilon) for row in rows)
    # H - KL is a function of the entropy alone (errata F2), which is measured elsewhere
    entropy = unlearn(store, method).metrics["entropy"]
    assert rows[-1]["score"] == pytest.approx(math.log(10) * threshold_of_entropy(entropy), abs=1e-5)
    assert rows[0]["score"] != rows[-1]["score"]
    assert unlearn(store, "GA").rounds == []


def test_without_its_loss_fedora_logs_no_score_of_an_iteration(store):
    rows = unlearn(store, "FedORA", unlearn=False).rounds
    assert ["score" in row for row in rows] == [False, False, False, True]


def test_a_method_that_is_unknown_or_works_elsewhere_is_refused(store):
    config = TINY.unlearning(MAIN, 0, "GA")
    p, original = models(store, config)
    f = p.federation(config, "test", original)
    with pytest.raises(ValueError, match=r"method must be one of .*'FedORA'.* got 'FedORAA'; did you mean 'FedORA'\?"):
        fedora.served(p, f, "FedORAA", {})
    for name in ("SISA", "DU"):
        with pytest.raises(UnsupportedTask, match=f"{name} works in a federation of kind .*, but this one is vertical"):
            fedora.served(p, f, name, {})


def test_the_calibrated_threshold_sees_validation_samples_only(store):
    config = TINY.unlearning(MAIN, 0, "FedORA calibrated")
    p, original = models(store, config)
    same = (p.y_validation == 1) | (p.y_validation == 2)
    log_p = predict(original, [x[same] for x in p.validation]).log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1).mean() / math.log(10)

    def threshold_of(p):
        f = p.federation(config, "test", original)
        return fedora.served(p, f, config["method"], config["options"]).notes["threshold"]

    threshold = threshold_of(p)
    assert threshold == pytest.approx(2 * float(entropy) - 1)
    rows = unlearn(store, "FedORA calibrated").rounds
    assert rows[0]["score"] + rows[0]["residual"] == pytest.approx(threshold * math.log(10), rel=1e-5)
    blank = replace(p, test=[torch.zeros_like(x) for x in p.test], y_test=torch.zeros_like(p.y_test))
    assert threshold_of(blank) == threshold
    blind = replace(p, validation=[torch.zeros_like(x) for x in p.validation])
    assert threshold_of(blind) != threshold


# --- tuning ----------------------------------------------------------------------------------------------------------

TUNED = TINY.changed(tuning_trials=2)


def test_a_trial_is_judged_by_forgetting_and_validation_samples_and_no_test_sample(store, monkeypatch):
    config = next(c for cell, c in TUNED.tuning().items() if (cell.setting, cell.method) == (DIGITS, "ICO"))
    metrics = run(store, fedora.trial, config).metrics
    p, context = of(config), RunContext(store, "test", needs_of(fedora.trial, config))
    with single_threaded():
        original, retrained = (fedora.trained_parties(p, context, name) for name in ("original", "retrained"))
        f = p.federation(config, "trial", original)
        result = fedora.served(p, f, "ICO", config["options"]).model

    def right(parties, x, y):
        return 100 * float((predict(parties, x).argmax(dim=1) == y).double().mean())

    x_forget, y_forget = [party.x[p.forget] for party in p.parties.passive], p.parties.active.y[p.forget]
    gap = abs(right(result, x_forget, y_forget) - right(retrained, x_forget, y_forget))
    short = max(0.0, right(retrained, p.validation, p.y_validation) - right(result, p.validation, p.y_validation))
    assert metrics["objective"] == pytest.approx(gap + short)
    idle = abs(right(original, x_forget, y_forget) - right(retrained, x_forget, y_forget))
    idle += max(0.0, right(retrained, p.validation, p.y_validation) - right(original, p.validation, p.y_validation))
    assert metrics["nothing"] == pytest.approx(idle)
    blind = replace(p, test=[torch.full_like(x, 255) for x in p.test], y_test=torch.zeros_like(p.y_test))
    monkeypatch.setattr(fedora.VerticalProblem, "of", lambda config: blind)
    with single_threaded():
        assert fedora.trial(config, context)[0] == metrics


def tried(*objectives):
    """Trials on several requests, None where one diverged."""
    return [
        [Record("f", "k", {}, "", "0", {"objective": v} if v is not None else {"diverged": "why"}, [], None, {})
         for v in trial] for trial in objectives
    ]  # fmt: skip


def test_the_best_trial_is_the_first_of_the_smallest_mean_and_none_that_diverged():
    assert fedora.best_trial(tried((5.0,), (3.0,), (3.0,))) == 1
    assert fedora.best_trial(tried((5.0, 0.0), (2.0, 2.0), (0.0, 4.5))) == 1
    assert fedora.best_trial(tried((None, 0.0), (90.0, 90.0))) == 1
    assert fedora.best_trial(tried((None,), (None,))) == 0
    assert fedora.objective(tried((5.0, 0.0))[0]) == 2.5


def test_what_diverges_says_so_and_has_no_numbers(store):
    record = unlearn(store, "GA", lr=1e30, clip=0.0, epochs=9)
    assert set(record.metrics) == {"diverged", "poison", "retrain_images"}
    assert "NaN or infinite" in record.metrics["diverged"]
    assert fedora.diverged({"outcome": "diverged", "why": "retained loss 69"}) == "retained loss 69"
    assert fedora.diverged({"outcome": "unmet"}) == fedora.diverged({}) == ""


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speed(store):
    return run(store, timing.speed, TINY.speeds()[MAIN]).metrics


def test_speed_times_every_method_and_counts_what_a_separate_run_counts(store, speed):
    assert set(speed["seconds"]) == {"Retrain", *BASELINES, *ABLATIONS}
    assert all(seconds > 0 for seconds in speed["seconds"].values())
    for method in (*BASELINES, "FedORA"):
        metrics = unlearn(store, method).metrics
        assert speed["costs"][method] == {name: metrics[name] for name in ("images", "up", "down")}


def test_retraining_is_projected_from_two_epochs_to_all_of_them(store):
    config = TINY.speeds()[MAIN] | {"epochs": 4, "repeats": 1}
    costs = run(store, timing.speed, config).metrics["costs"]["Retrain"]
    training = run(store, fedora.train, TINY.training(MAIN, 0, MAIN.request) | {"epochs": 4})
    assert costs["up"] + costs["down"] == training.metrics["bytes"]
    assert costs["images"] == 4 * (200 - len(forgotten(MAIN.request)))


def test_speed_says_how_large_everything_is(speed):
    forget = len(forgotten(MAIN.request))
    assert (speed["n_forget"], speed["n_retain"], speed["classes"]) == (forget, 200 - forget, 10)
    assert speed["embedding"] == 2 * 32  # of both parties
    assert speed["parameters"] == 2 * ((32 + 1) * 64 + (64 + 1) * 32) + (64 + 1) * 10


def test_a_description_says_who_holds_what(store):
    found = {d: run(store, fedora.describe, config).metrics for d, config in stages.descriptions(TINY).items()}
    assert found[DIGITS]["features"] == [[1, 8, 4], [1, 8, 4]]
    assert found[TABLE]["features"] == [[15], [15]]
    assert (found[TABLE]["n_train"], found[TABLE]["n_test"]) == (200, 60)
    assert len(found[DIGITS]["parameters"]) == 3
