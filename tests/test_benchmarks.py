"""The benchmark of rounds on the tiniest workload: the real processes, ours and the plain loop."""

import sys

import pandas as pd
import psutil
import pytest
import torch
from torch import nn

from fu_core.data import load
from fu_core.errors import DataUnavailable
from fu_core.federation import Federation
from fu_core.federation.local import ClientOpt, batches
from fu_core.models import build
from fu_core.precision import PRECISIONS
from fu_core.request import Deletion
from fu_papers.lab.paths import ROOT
from fu_papers.lab.reproduce import KEPT

sys.path.insert(0, str(ROOT / "benchmarks"))  # its files are scripts, which find each other by their folder

import bench_certified
import bench_crowds
import bench_curvature
import bench_precision
import bench_rounding
import bench_rounds
import bench_steps
import bench_unlearning
import workloads
from teams import BLAZEFL, PLAIN, Contestant, Team, blazefl_version, contestants
from turns import Task
from workloads import Workload, prepare

TINY = Workload("tiny", "digits", "softmax_regression", clients=4, samples=25, per_round=2, batch_size=10, block=2)
REPETITIONS = 2
OURS = [c for c in contestants(cores=2) if c.name in ("fu_core auto", "fu_core auto, 2 trainings (JOBS=2)")]
ABSENT = Contestant("absent", "absent", packages=("no-such-package",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    prepare(TINY, load("digits"), path)
    return path


@pytest.fixture(scope="module")
def results(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_rounds, "STARTS", 2)
        return bench_rounds.run(TINY, [PLAIN, *OURS], REPETITIONS, folder)


@pytest.fixture(scope="module")
def table(results):
    data = load("digits")
    return bench_rounds.tabulate(TINY, data, build(TINY.model, data), [PLAIN, *OURS, ABSENT], results)


def test_everybody_trains_the_same_model(table):
    plain, *ours, _ = table.to_dict("records")
    assert plain["accuracy, %"] > 30  # 10 % by chance: something was trained
    assert {row["accuracy, %"] for row in ours} == {plain["accuracy, %"]}
    assert all(0 <= row["difference"] < 1e-6 and row["at the end"] < 1e-5 for row in ours)


def test_models_that_part_after_the_first_round_show():
    start, end = [torch.zeros(650)], [torch.zeros(650).index_fill(0, torch.tensor(3), 0.25)]
    made_up = {
        PLAIN.name: bench_rounds.Result(10.0, start, 100.0, [1.0], start),
        OURS[0].name: bench_rounds.Result(10.0, start, 100.0, [1.0], end),
    }
    data = load("digits")
    table = bench_rounds.tabulate(TINY, data, build(TINY.model, data), [PLAIN, OURS[0]], made_up)
    assert table["difference"].tolist() == [0.0, 0.0]
    assert table["at the end"].tolist() == [0.0, 0.25]


def test_the_same_seed_gives_the_same_bits(results):
    assert [result.same for result in results.values()] == [2, 2, 2]


def test_other_bits_are_counted_as_such(folder, monkeypatch):
    drawn = iter(range(10))
    models = bench_rounds.first_models
    monkeypatch.setattr(
        bench_rounds, "first_models", lambda c, place: [w + (next(drawn) == 0) for w in models(c, place)]
    )
    assert bench_rounds.run(TINY, [PLAIN], 1, folder)[PLAIN.name].same == 2  # of three: the first and the last


def test_blazefl_takes_part_with_an_interpreter_of_its_own(folder, monkeypatch):
    (rival,) = (c for c in contestants(cores=1) if c.framework == "blazefl")
    blazefl_version.cache_clear()
    monkeypatch.delenv(BLAZEFL, raising=False)
    assert rival.missing == ["blazefl"]
    blazefl_version.cache_clear()
    monkeypatch.setenv(BLAZEFL, sys.executable)  # which has none
    assert rival.missing == ["blazefl"]
    blazefl_version.cache_clear()
    assert rival.command(folder, 0)[0] == sys.executable
    assert rival.environment()["PYTHONPATH"] == str(ROOT)


def test_two_trainings_at_the_same_time_are_independent(results):
    first, second = results[OURS[1].name].models
    assert (first - second).abs().max() > 1e-3


def test_every_row_has_its_numbers(table):
    measured = table[table["note"] == ""]
    assert list(measured["implementation"]) == [PLAIN.name, *(c.name for c in OURS)]
    assert (measured[["seconds per round", "start-up, s", "peak MiB"]] > 0).all(axis=None)
    per_step = measured["seconds per round"] * 1000 / 6  # 2 clients with 3 batches
    assert measured["ms per local step"].tolist() == pytest.approx(per_step.tolist())
    assert (measured["start-up, s"] > measured["seconds per round"]).all()  # importing torch takes longer
    assert list(table["rounds"].unique()) == [2 + REPETITIONS * TINY.block]


def test_ratios_are_medians_of_each_repetitions_own():
    w = [torch.zeros(650)]
    seconds = {PLAIN.name: [2.0, 4.0, 9.0], OURS[0].name: [1.0, 1.0, 3.0], OURS[1].name: [0.5, 0.5, 1.5]}
    made_up = {name: bench_rounds.Result(10.0, w, 100.0, own, w) for name, own in seconds.items()}
    data = load("digits")
    table = bench_rounds.tabulate(TINY, data, build(TINY.model, data), [PLAIN, *OURS], made_up)
    assert table["seconds per round"].tolist() == [4.0, 1.0, 0.5]
    assert table["faster than plain, x"].tolist() == [1.0, 3.0, 6.0]
    assert table["fu_core faster, x"].tolist() == [3.0, 1.0, 1.0]  # against ours on as many cores
    assert table["start-up, s"].tolist() == [6.0, 9.0, 9.0]  # two trainings at 0.5 s need 1 s for a round each


def test_memory_counts_every_process_and_what_they_share_once(table):
    _, one_training, two_trainings, _ = table["peak MiB"]
    assert 1.1 * one_training < two_trainings < 1.9 * one_training


def test_what_is_not_installed_has_a_row_that_says_so(table):
    row = table.iloc[-1]
    assert (row["implementation"], row["note"]) == ("absent", "not installed: no-such-package")
    assert pd.isna(row["seconds per round"])


def test_the_file_is_the_table_under_comments(table, tmp_path, monkeypatch, capsys):
    called = []

    def measured(*arguments):
        called.append(arguments)
        return table, "Digits, made up"

    out = tmp_path / "rounds.csv"
    monkeypatch.setattr(bench_rounds, "measure", measured)
    bench_rounds.main(["--quick", "--only", "cnn", "--without", "flower", "pfl", "blazefl", "--out", str(out)])
    [(workload, everybody, repetitions)] = called
    assert (workload.name, repetitions) == ("small CNN", bench_rounds.QUICK)
    assert {contestant.framework for contestant in everybody} == {"plain", "fu_core"}
    first, second = out.read_text(encoding="utf-8").splitlines()[:2]
    assert f"torch {torch.__version__}" in first
    assert second == "# small CNN: Digits, made up"
    read = pd.read_csv(out, comment="#")
    assert list(read.columns) == list(table.columns)
    assert read["implementation"].tolist() == table["implementation"].tolist()
    assert read["seconds per round"].tolist() == pytest.approx(table["seconds per round"].tolist(), 1e-3, nan_ok=True)
    assert PLAIN.name in capsys.readouterr().out


def test_an_unknown_workload_is_one_clear_error(capsys):
    with pytest.raises(SystemExit):
        bench_rounds.main(["--only", "resnets"])
    message = capsys.readouterr().err
    assert message.count("error:") == 1
    known = "'softmax', 'cnn', 'resnet', 'lenet', 'resnet18'"
    assert f"--only must be one of {known}, got 'resnets'; did you mean 'resnet'?" in message


def test_where_memory_is_short_some_are_measured_alone_with_the_plain_loop(table, tmp_path, monkeypatch, capsys):
    called = []
    monkeypatch.setattr(bench_rounds, "measure", lambda _, everybody, n: called.append(everybody) or (table, "Digits"))
    bench_rounds.main(["--only", "cnn", "--alone", "fu_core auto", "--out", str(tmp_path / "rounds.csv")])
    assert [[c.name for c in everybody] for everybody in called] == [[PLAIN.name, "fu_core auto"]]
    with pytest.raises(SystemExit):
        bench_rounds.main(["--alone", "fu_core autos"])
    assert "--alone must be one of" in capsys.readouterr().err


def test_everybodys_processes_keep_freed_memory():
    assert all(KEPT.items() <= c.environment().items() for c in contestants(cores=2))


def test_trainings_at_the_same_time_share_the_seconds_of_the_slower_one(tmp_path, monkeypatch):
    team = Team(OURS[1], tmp_path)
    monkeypatch.setattr(team, "_ask", lambda orders: [{"seconds": 12.0}, {"seconds": 10.0}])
    assert team.turn(3) == 2.0  # two rounds in 4 s, three times


def test_a_process_that_ends_without_an_answer_is_an_error_with_its_last_words(tmp_path):
    with (
        pytest.raises(RuntimeError, match=r"(?s)broken ended with status 2 .*--without no_such.*can't open file"),
        Team(Contestant("broken", "no_such", packages=("torch",)), tmp_path) as team,
    ):
        team.turn(1)


def test_no_process_outlives_its_team(folder):
    started = set()

    def interrupted():
        before = set(psutil.Process().children())
        with Team(PLAIN, folder):
            started.update(set(psutil.Process().children()) - before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(started) == 1
    assert not any(process.is_running() for process in started)


def test_batches_are_those_of_our_federations(folder):
    task = Task.read(str(folder), 3)
    expected = batches(TINY.samples, ClientOpt(batch_size=TINY.batch_size), seed=3, round=7, client=1)
    assert [b.tolist() for b in task.batches(7, 1)] == [b.tolist() for b in expected]


def test_missing_data_is_replaced_by_images_that_say_so(monkeypatch):
    def unavailable(name):
        raise DataUnavailable(name)

    monkeypatch.setattr(workloads, "load", unavailable)
    workload = workloads.WORKLOADS["resnet"]
    data = workloads.load_or_generate(workload)
    assert data.source.startswith("generated")
    assert data.x_train.shape == (workload.clients * workload.samples, 3, 32, 32)
    assert (data.x_train.dtype, data.classes) == (torch.uint8, 10)


def test_a_workload_larger_than_its_data_is_refused(tmp_path):
    large = Workload("large", "digits", "softmax_regression", 100, 100, 10, 10, block=1)
    with pytest.raises(ValueError, match="large needs 10000 training samples, but digits has 1437"):
        prepare(large, load("digits"), tmp_path)


def test_an_aim_is_judged_by_the_best_setting_of_a_framework():
    names = ["workload", "framework", "implementation", "precision", "fu_core faster, x", "start-up, s"]
    rows = [
        ("small CNN", "fu_core", "fu_core auto", "float32", 1.0, 4.0),
        ("small CNN", "pfl", "pfl", "float32", 1.5, 2.0),
        ("small CNN", "pfl", "pfl, 2 threads", "float32", 1.1, 2.0),
        ("small CNN", "pfl", "pfl, bf16", "bf16", 0.9, 2.0),  # in no ratio
    ]
    assert bench_rounds.verdicts(pd.DataFrame(rows, columns=names)) == [
        "small CNN: 1.10 times as fast as pfl (aim: 1.2): NOT reached",
        "small CNN: start-up in 4.0 s (aim: 3.0): NOT reached",
    ]


def test_certified_dfl_is_timed_at_the_papers_sizes_with_nets_for_a_cpu():
    e = bench_certified.experiment(quick=False)
    assert [e.of_dataset("n_train", dataset) for dataset in e.datasets] == [0, 0, 0]  # all images
    assert [e.of_dataset("rounds", dataset) for dataset in e.datasets] == [200, 100, 100]
    assert e.datasets[-1] == "cifar10/tiny_cnn"
    assert len(e.speeds()) == 9


def test_every_variant_of_unlearning_has_a_row_with_its_sample_its_price_and_what_it_buys():
    """Four clients with 30 digits each, one round: products on 90 images at most, two thousand are not there."""
    data = load("digits")
    clients = [(data.x_train[rows], data.y_train[rows]) for rows in torch.arange(120).split(30)]
    f = Federation(build("mlp", data), clients, ClientOpt(lr=0.1, epochs=1, batch_size=10))
    unseen = data.x_test[:200], data.y_test[:200]
    held_out = data.x_train[200:400], data.y_train[200:400]
    table = bench_unlearning.measured(f, Deletion.of(f.clients, 0), 1, held_out=held_out, unseen=unseen)
    assert list(table.what) == ["retraining", *bench_unlearning.VARIANTS, bench_unlearning.MATCHED]
    rows = table.set_index("what")
    printed = rows.loc["as printed, client 0's Hessian"]
    assert printed["images behind a product"] == 30
    assert printed["gradient passes (images)"] == 30 + 2 * 10 * 30
    assert printed["MB sent"] == (1 + 4) * f.model.d * 4 / 1e6
    assert rows.loc["retraining", "MB sent"] == 20 * 2 * 3 * f.model.d * 4 / 1e6
    assert (table["seconds"] > 0).all()
    assert table["forget acc. change"].notna().all()
    assert table["fewer passes, x"].iloc[1] == 20 * 5 * 90 / table["gradient passes (images)"].iloc[1]


def test_a_crowd_trained_at_once_is_the_crowd_trained_one_by_one():
    row = bench_crowds.measured("digits", 100, "softmax_regression", models=3, turns=1)
    assert row["largest difference"] < 1e-5
    rates = [row[f"{way}, trainings/s"] for way in ("all at once", "one at a time", "plain")]
    assert all(rate > 0 for rate in rates)
    assert row["at once / plain"] == pytest.approx(rates[0] / rates[2])
    assert row["at once / one at a time"] == pytest.approx(rates[0] / rates[1])


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_products_of_all_ways_are_the_same(matrix):
    row = bench_curvature.measured(load("digits"), "mlp", 100, matrix, turns=1)
    assert row["largest relative difference"] < 1e-5
    assert min(row["plain, products/s"], row["fu_core, products/s"], row["fu_core, 8 at once, products/s"]) > 0
    assert row["curvlinops, products/s"] is None  # where it is not installed


def test_requests_solved_together_take_the_same_steps_for_less():
    rough, fine = bench_curvature.asked(load("digits"), "softmax_regression")
    assert fine["largest relative difference"] < 0.01 < rough["largest relative difference"]
    for row in (rough, fine):
        assert 10 <= row["products, together"] < row["products, one by one"] / 2


def test_rivals_train_a_net_of_torchs_own_layers(tmp_path):
    work = Workload("tiny", "digits", "small_resnet", clients=2, samples=10, per_round=1, batch_size=5, block=1)
    model = prepare(work, load("digits"), tmp_path)
    net = torch.load(tmp_path / "net.pt", weights_only=False)
    assert {type(part) for part in net.modules() if isinstance(part, nn.GroupNorm)} == {nn.GroupNorm}
    x = load("digits").x_test[:4]
    assert torch.allclose(net(x), model.module(x), atol=1e-5)


def test_bf16_is_another_training_of_which_the_table_tells_what_seeds_differ_by(monkeypatch):
    monkeypatch.setenv("FU_PRECISION", "float32")
    work = Workload("tiny", "digits", "simple_cnn", clients=2, samples=200, per_round=2, batch_size=8, block=1)
    exact, rounded = ([bench_precision.trained(work, load("digits"), 8, s, p) for s in (0, 1)] for p in PRECISIONS)
    assert min(exact) > 30
    row = bench_precision.compared(work, 8, exact, rounded)
    assert row["bf16 - float32"] == pytest.approx(row["bf16"] - row["float32"])
    assert row["from"] <= row["bf16 - float32"] <= row["to"]
    assert row["two seeds' difference in float32"] == abs(exact[0] - exact[1])


def test_bf16_has_rows_of_its_own_and_is_in_nobodys_ratio():
    named = {c.name: c for c in contestants(cores=2)}
    assert named["fu_core auto, bf16"].environment()["FU_PRECISION"] == "bf16"
    assert PLAIN.environment()["FU_PRECISION"] == "float32"
    assert [c.name for c in named.values() if bench_rounds._is_auto(c)] == [
        "fu_core auto", "fu_core auto, 2 threads", "fu_core auto, 2 trainings (JOBS=2)"
    ]  # fmt: skip


def test_a_step_takes_longer_than_its_convolutions():
    work = Workload("tiny", "digits", "simple_cnn", clients=1, samples=64, per_round=1, batch_size=8, block=1)
    row = bench_steps.measured(work, load("digits"), turns=2)
    assert 0 < row["convolutions alone, ms"] < row["plain, ms"]
    assert 0 < row["convolutions / fu_core, %"] < 100
    assert row["pooling, ReLU, norms alone, ms"] > 0


def test_a_training_forgets_rounding_with_small_steps_and_carries_it_with_large_ones():
    small, large = (bench_rounding.measured("digits", 100, "alike", "softmax_regression", step) for step in (0.1, 5.0))
    assert small["largest growth"] < 1 < large["growth"]
