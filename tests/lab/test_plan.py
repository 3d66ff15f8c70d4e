"""Plans say what a notebook would do; parts of it, done elsewhere, are what the notebook would have done."""

import json
import shutil
from dataclasses import replace

import pytest

from fu_core.errors import ConfigError, CorruptData, StorageError
from fu_papers.lab import paths, plan
from fu_papers.lab.committed import write_records
from fu_papers.lab.plan import Planned, planned
from fu_papers.lab.pool import map_runs
from fu_papers.lab.record import Record, config_key, function_name
from fu_papers.lab.reproduce import main
from fu_papers.lab.store import CommittedStore, NoRecord, RecordStore
from fu_papers.lab.task import NotHere
from fu_papers.study import experiment_of, stages_of
from tests import toy_runs
from tests.notebook_lab import PARAMETERS

PAPERS = ("puf", "hf_kcu", "fedora", "certified_dfl")
TINY = [word for name, value in PARAMETERS.items() for word in ("-p", name, json.dumps(value))]
TINY += ["-p", "settings", '["digits/iid/softmax_regression"]']


@pytest.fixture(autouse=True)
def own_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("FU_FIGURES", raising=False)  # the committed records tell how long runs take
    return tmp_path / "runs" / "records"


@pytest.mark.parametrize("paper", PAPERS)
def test_a_plan_names_exactly_the_runs_that_the_notebook_has_made(paper, own_runs):
    runs = {(function_name(s.fn), config_key(config)) for s in planned(paper, "quick", {}) for config in s.configs}
    committed = CommittedStore(paths.ROOT / "figures" / "quick" / paper).everything()
    assert runs == {(record.function, config_key(record.config)) for record in committed}
    assert not own_runs.exists()


@pytest.mark.parametrize("paper", PAPERS)
@pytest.mark.parametrize("profile", ["laptop", "paper"])
def test_every_profile_can_be_planned_without_its_data(paper, profile, monkeypatch, tmp_path):
    monkeypatch.setenv("FU_DATA", str(tmp_path / "nothing"))
    labels = [stage.label for stage in planned(paper, profile, {})]
    assert "training" in labels
    assert len(set(labels)) == len(labels)  # --stage can name each


def test_parts_are_every_run_once():
    stage = Planned("numbers", toy_runs.number, [{"value": v} for v in range(7)])
    parts = [plan.part_of(stage, (k, 3)).configs for k in (1, 2, 3)]
    assert sorted(config["value"] for part in parts for config in part) == list(range(7))
    assert plan.part_of(stage, (1, 1)).configs == stage.configs


def test_planning_computes_nothing(own_runs, monkeypatch):
    for name in ("train", "unlearn", "describe"):
        monkeypatch.setattr(f"fu_papers.puf.runs.{name}", None)
    assert sum(len(stage.configs) for stage in planned("puf", "quick", {"rounds": 7})) > 300
    assert not own_runs.exists()


def test_two_parts_merged_are_the_whole(own_runs, tmp_path, monkeypatch, capsys):
    command = ["--paper", "puf", *TINY, "--stage", "training", "--jobs", "1"]
    for k in (1, 2):
        monkeypatch.setenv("FU_RUNS", str(tmp_path / f"machine {k}"))
        assert main([*command, "--part", f"{k}/2"]) == 0
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "runs"))
    for k in (1, 2, 2):
        assert main(["--merge", str(tmp_path / f"machine {k}" / "records")]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == ["2 new records", "2 new records", "0 new records"]
    monkeypatch.setenv("FU_RUNS", str(tmp_path / "alone"))
    assert main(command) == 0
    alone, merged = (RecordStore(tmp_path / name / "records") for name in ("alone", "runs"))
    keys = {record.key: record.metrics for record in alone.everything()}
    assert len(keys) == 4
    assert {record.key: record.metrics for record in merged.everything()} == keys
    assert all(merged.tensors(key)["w"].equal(alone.tensors(key)["w"]) for key in keys)


def test_a_long_profile_goes_on_where_an_earlier_sitting_ended(own_runs, tmp_path, monkeypatch, capsys):
    """What is finished is committed, complete or not; the next sitting takes it over and makes no such run again."""
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    folder = paths.figures_dir("changed", "quick") / "puf"
    command = ["--paper", "puf", *TINY]
    assert main([*command, "--stage", "unlearning and recovery", "--part", "1/4", "--jobs", "1"]) == 0
    assert main([*command, "--export"]) == 0
    first = {record.key: record for record in CommittedStore(folder).everything()}
    unlearned = [key for key, record in first.items() if record.function == "puf.unlearn"]
    assert unlearned
    assert any(record.function == "puf.train" for record in first.values())  # which they have needed

    monkeypatch.setenv("FU_RUNS", str(tmp_path / "next sitting"))
    assert main(["--merge", str(folder)]) == 0
    taken = {record.key: record for record in RecordStore(tmp_path / "next sitting" / "records").everything()}
    assert set(unlearned) <= set(taken) < set(first)  # without the trainings, whose tensors are not committed
    assert all(taken[key] == first[key] for key in taken)
    assert main([*command, "--stage", "unlearning and recovery", "--part", "2/4", "--jobs", "1"]) == 0
    assert main([*command, "--export"]) == 0
    both = {record.key: record for record in CommittedStore(folder).everything()}
    assert set(first) < set(both)
    assert all(both[key].provenance == first[key].provenance for key in unlearned)


def test_a_part_is_run_as_the_notebook_would(own_runs, monkeypatch, capsys):
    """Timed runs one at a time; what is optional does not take the others down with it."""
    given = []
    monkeypatch.setattr(plan, "map_runs", lambda fn, configs, *, jobs, label, **_: given.append((label, jobs)))
    stages = planned("hf_kcu", "quick", {})
    plan.run_part(plan.chosen(stages, "timing") + plan.chosen(stages, "training"), (1, 2), jobs=4)
    assert given == [("timing", 1), ("training", 4)]
    [flower] = plan.chosen(planned("puf", "quick", {}), "Flower")

    def fails(fn, configs, *, label, **_):
        if label == "Flower":
            raise NotHere("no module named flwr\nlong story")

    monkeypatch.setattr(plan, "map_runs", fails)
    assert plan.run_part([flower, Planned("numbers", toy_runs.number, [{"value": 1}])], (1, 1)) == 1
    assert capsys.readouterr().out == "Flower's simulation did not run here: no module named flwr\n"
    with pytest.raises(RuntimeError, match="flwr"):
        plan.run_part([Planned("Flower", toy_runs.number, [{"value": 1}])], (1, 1))


@pytest.mark.parametrize(("kind", "named"), [("disk", "StorageError"), ("TypeError", "TypeError")])
def test_what_goes_wrong_with_an_optional_part_is_an_error(own_runs, monkeypatch, kind, named, capsys):
    configs = [{"kind": "ImportError"}, {"kind": kind}, {"kind": ""}]
    stage = Planned("perhaps", toy_runs.says_no, configs, optional="It is not here")
    with pytest.raises(RuntimeError, match=f"2 of 3 runs of perhaps failed.*{named}: no"):
        plan.run_part([stage], (1, 1), jobs=1)
    assert plan.run_part([replace(stage, configs=configs[:1])], (1, 1), jobs=1) == 0
    assert capsys.readouterr().out.startswith("It is not here: 1 of 1 runs of perhaps failed")
    monkeypatch.setattr(plan, "planned", lambda *_: [stage])
    assert main(["--paper", "puf", "--stage", "perhaps", "--jobs", "1"]) == 1


def test_equal_runs_are_planned_once_and_dealt_out_once():
    """A stage names a place for each, so that the same training was counted, and computed on two machines."""
    stages = [stage for paper in PAPERS for stage in planned(paper, "quick", {})]
    for stage in stages:
        assert len({config_key(config) for config in stage.configs}) == len(stage.configs), stage.label
    fedora = {stage.label: stage for stage in planned("fedora", "quick", {})}
    places = {stage.name: len(stage.cells(experiment_of("fedora").of("quick"))) for stage in stages_of("fedora")}
    assert any(len(fedora[label].configs) < count for label, count in places.items())


def test_a_run_of_two_stages_is_counted_in_the_first(own_runs):
    one = Planned("one", toy_runs.number, [{"value": v} for v in range(3)])
    two = Planned("two", toy_runs.number, [{"value": v} for v in range(1, 5)])
    RecordStore(own_runs).run(toy_runs.number, {"value": 2})
    assert [(row.runs, row.done) for row in plan.estimate("puf", [one, two])] == [(3, 1), (2, 0)]
    assert [(row.runs, row.done) for row in plan.estimate("puf", [two])] == [(4, 1)]


def test_the_hours_of_one_stage_are_those_of_the_whole_plan(capsys, monkeypatch, tmp_path):
    """They are told in trainings, which are another stage's, and by the checkout's records if FU_FIGURES has none."""
    monkeypatch.setattr(plan, "_measure", lambda fn, config: plan.Measured(3600.0, 2**30))
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))

    def rows(*options):
        assert main(["--paper", "puf", "--dry-run", *options]) == 0
        return {line[:32].strip(): line[32:].split() for line in capsys.readouterr().out.splitlines()}

    stage = "unlearning and recovery"
    assert rows("--stage", stage)[stage] == rows()[stage]
    assert float(rows("--stage", stage)[stage][3]) > 0


# --- records of something else ---


@pytest.fixture
def stale(own_runs, tmp_path, monkeypatch):
    """`stale(hash, ...)` makes a record of one run for each of these data: its stage, and a folder to export to."""
    monkeypatch.setenv("FU_DATA", str(tmp_path / "nothing"))

    def make(*hashes, config=None):
        stage = Planned("of file", toy_runs.of_file, [config or {"value": 1}])
        for data in hashes:
            monkeypatch.setenv("TOY_DATA", data)
            RecordStore(own_runs).run(toy_runs.of_file, stage.configs[0])
        return stage, tmp_path / "exported"

    return make


def exported(folder):
    return [record.metrics["data"] for record in CommittedStore(folder).everything()]


@pytest.mark.parametrize("turn", range(4))
def test_what_is_exported_is_of_the_data_that_are_here(stale, turn, monkeypatch):
    """Keys are in no order: half of the time the older of the two was found last."""
    stage, folder = stale(f"old {turn}", f"new {turn}")
    assert plan.export_finished([stage], folder) == (1, 1)
    assert exported(folder) == [f"new {turn}"]
    monkeypatch.setenv("TOY_DATA", f"old {turn}")
    assert plan.export_finished([stage], folder) == (1, 1)
    assert exported(folder) == [f"old {turn}"]
    monkeypatch.setenv("TOY_DATA", "none of them")
    assert plan.export_finished([stage], folder) == (0, 1)
    assert [row.done for row in plan.estimate("puf", [stage])] == [0]


def test_without_data_one_record_is_taken_and_of_two_none(stale):
    config = {"value": 1, "of": [{"dataset": "mnist"}]}  # which is nowhere here, and nobody downloads it to look
    stage, folder = stale("one", config=config)
    assert plan.export_finished([stage], folder) == (1, 1)
    stage, folder = stale("another", config=config)
    with pytest.raises(
        StorageError, match=r"2 records of one run of toy.of_file.*\(data (one|another)\).*bring the data"
    ):
        plan.export_finished([stage], folder)
    assert exported(folder) == ["one"]
    assert [row.done for row in plan.estimate("puf", [stage])] == [1]  # whichever it is


def test_another_precision_version_or_revision_is_not_what_is_planned(own_runs, tmp_path, monkeypatch):
    stage, folder = Planned("numbers", toy_runs.number, [{"value": 1}]), tmp_path / "exported"
    record = RecordStore(own_runs).run(toy_runs.number, {"value": 1})
    assert plan.export_finished([stage], folder) == (1, 1)
    committed = CommittedStore(folder)
    assert map_runs(toy_runs.number, stage.configs, store=committed) == [record]
    for change in ("precision", "version", "revision"):
        with monkeypatch.context() as patch:
            if change == "precision":
                patch.setenv("FU_PRECISION", "bf16")
            elif change == "version":
                patch.setattr("fu_papers.lab.record.__version__", "9.9.9")
            else:
                patch.setattr(toy_runs.number, "revision", 2, raising=False)
                patch.setattr("fu_papers.lab.record._raised", {"tests.toy_runs.number"})
            assert [row.done for row in plan.estimate("puf", [stage])] == [0], change
            assert plan.export_finished([stage], tmp_path / change) == (0, 1)
            with pytest.raises(NoRecord, match=r"1 of 1 runs of number have no record.*those of fu_core .* count"):
                map_runs(toy_runs.number, stage.configs, store=committed)
            with pytest.raises(NoRecord):
                committed.run(toy_runs.number, {"value": 1})
    assert [row.done for row in plan.estimate("puf", [stage])] == [1]


def test_of_two_committed_records_the_data_that_are_here_decide(stale, own_runs, tmp_path, monkeypatch):
    stage, _ = stale("old", "new")
    write_records(RecordStore(own_runs).everything(), tmp_path / "both")
    for data in ("old", "new"):
        monkeypatch.setenv("TOY_DATA", data)
        [record] = map_runs(toy_runs.of_file, stage.configs, store=CommittedStore(tmp_path / "both"))
        assert record.metrics == {"data": data}
        assert CommittedStore(tmp_path / "both").run(toy_runs.of_file, stage.configs[0]) == record


# --- what is asked for ---


def test_everything_asked_for_is_checked_before_anything_runs(own_runs, capsys):
    """Only PUF has this stage; figures-only promises to compute nothing."""
    assert main(["--paper", "puf", "hf_kcu", "--stage", "printed costs"]) == 2
    assert capsys.readouterr().err.startswith("error: hf_kcu: --stage must be one of 'settings'")
    assert main(["--paper", "puf", "--stage", "printed costs", "--figures-only"]) == 2
    assert "--figures-only computes nothing" in capsys.readouterr().err
    assert not own_runs.exists()


def test_data_and_nets_that_do_not_fit_and_an_unknown_device_are_one_line(capsys, monkeypatch):
    phantom = ["--paper", "puf", *TINY[:-1], '["phantom/iid/mlp"]', "--stage", "training"]
    assert main(phantom) == 1
    assert capsys.readouterr().err == "error: n_train must be at most 140 for 'phantom', got 200\n"
    assert main([*phantom, "-p", "n_train", "40", "-p", "n_val", "20", "-p", "n_test", "10"]) == 1
    assert capsys.readouterr().err == "error: model 'mlp' is not for segmentation, the task of phantom\n"
    monkeypatch.setenv("FU_DEVICE", "gpu")
    assert main(["--paper", "puf", *TINY, "--dry-run"]) == 2
    assert capsys.readouterr().err == "error: FU_DEVICE must name a device of torch, cpu or cuda:1 say, got 'gpu'\n"


def test_the_listing_counts_what_is_done_and_measures_the_rest(capsys):
    command = ["--paper", "puf", *TINY]
    main([*command, "--stage", "training", "--part", "1/2", "--jobs", "1"])
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    rows = {line[:32].strip(): line[32:].split() for line in capsys.readouterr().out.splitlines()}
    assert rows["training"][:2] == ["4", "2"]
    assert rows["all"][1] == "2"
    assert float(rows["training"][2]) >= 0


def test_hours_grow_with_the_rounds(monkeypatch):
    """A training of ten times the rounds is ten times the work, and so are its runs, which replay or repeat it.

    Seven curves of a net, 20 rounds each, were planned at four hours for those of a convex model with 200, and took
    twelve minutes.
    """
    others = ("sweep", "long", "segmentation", "official", "partial", "backdoor")
    alone = {"settings": ["digits/iid/mlp"], **{f"{name}_settings": [] for name in others}}
    short, long = (planned("puf", "quick", {**alone, "rounds": rounds}) for rounds in (20, 200))
    monkeypatch.setattr(plan, "_measure", lambda fn, config: plan.Measured(3600.0, 2**30))
    one, ten = ({row.stage: row for row in plan.estimate("puf", found)} for found in (short, long))
    few_rounds = [c["rounds"] * c["epochs"] for c in short[1].configs]
    assert one["training"].hours == pytest.approx(sum(few_rounds))
    assert ten["training"].hours == pytest.approx(10 * sum(few_rounds))
    assert ten["unlearning and recovery"].hours == pytest.approx(10 * one["unlearning and recovery"].hours)
    assert one["unlearning and recovery"].hours > 0
    kept = [c["rounds"] if c["history"] else 1 for c in short[1].configs]  # FedEraser's history has every round
    assert one["training"].gib == sum(kept) > len(kept)


def test_models_that_are_trained_at_once_are_measured_at_once(monkeypatch):
    """Of one by itself, times their number, the arena's pool seemed to take sixty times as long as it does."""
    stages = [stage for stage in planned("arena", "quick", {}) if stage.label in ("pool", "unlearning")]
    pool, unlearning = stages
    at_once, ran = pool.configs[0]["models"], []
    assert at_once > 1

    def in_no_time(self, fn, config):
        ran.append(config)
        return Record("f", f"{len(ran)}", {}, "", "0", {}, [], None, {})

    monkeypatch.setattr(RecordStore, "run", in_no_time)
    monkeypatch.setattr(RecordStore, "tensor_bytes", lambda self, key: 10 * at_once)
    assert plan._measure(pool.fn, pool.configs[0]).nbytes == 10
    assert {config["models"] for config in ran} == {at_once}
    sizes = [config["n_train"] for config in ran]
    assert all(sizes.count(size) >= 2 for size in sizes)  # the first of a size loads its data

    monkeypatch.setattr(plan, "_measure", lambda fn, config: plan.Measured(3600.0, 2**30))
    rows = {row.stage: row for row in plan.estimate("arena", stages)}
    assert rows["pool"].hours == sum(c["models"] * c["rounds"] * c["epochs"] for c in pool.configs)
    assert rows["pool"].gib == sum(c["models"] for c in pool.configs)
    twice = replace(unlearning, configs=[{**config, "models": 2 * config["models"]} for config in unlearning.configs])
    [_, of_twice] = plan.estimate("arena", [pool, twice])
    assert of_twice.hours == pytest.approx(2 * rows["unlearning"].hours) != 0


def test_records_without_times_tell_nothing_of_hours(tmp_path, monkeypatch):
    [stage] = [stage for stage in planned("puf", "quick", {}) if stage.label == "training"]
    folder = tmp_path / "figures" / "quick" / "puf"
    folder.mkdir(parents=True)
    shutil.copyfile(paths.ROOT / "figures" / "quick" / "puf" / "records.jsonl", folder / "records.jsonl")
    assert plan.Reference("puf").seconds(stage) > 0
    monkeypatch.setenv("FU_FIGURES", str(tmp_path / "figures"))
    assert plan.Reference("puf").seconds(stage) > 0  # of the checkout's own, where there are none of this machine
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    assert list(CommittedStore(folder).everything())
    assert plan.Reference("puf").seconds(stage) is None


def test_what_cannot_be_measured_says_why(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FU_DATA", str(tmp_path))
    monkeypatch.setattr(
        plan, "load", lambda name: (_ for _ in ()).throw(CorruptData(f"{name} is not here\nlong story"))
    )
    command = ["--paper", "puf", *TINY[:-1], '["cifar10/iid/resnet18"]', "-p", "n_train", "0", "--dry-run"]
    assert main(command) == 0
    training = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("training"))
    assert training.endswith("0.00 + ?  cifar10 is not here")


@pytest.mark.parametrize(("options", "message"), [
    (["--part", "3/2"], "must be K/N with 1 <= K <= N, like 2/8, got '3/2'"),
    (["--part", "half"], "got 'half'"),
])  # fmt: skip
def test_wrong_parts_are_refused(options, message, capsys):
    with pytest.raises(SystemExit):
        main(["--paper", "puf", *options])
    assert message in capsys.readouterr().err


def test_a_wrong_stage_and_a_wrong_folder_are_named(capsys, tmp_path):
    assert main(["--paper", "puf", "--stage", "trainin"]) == 2
    assert "--stage must be one of" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--stage"):
        plan.chosen(planned("puf", "quick", {}), "trainin")
    with pytest.raises(StorageError, match="there is no folder"):
        RecordStore(tmp_path / "here").merge(tmp_path / "nowhere")
    assert main(["--merge", str(tmp_path / "nowhere")]) == 1


@pytest.mark.parametrize("damage", ["record", "tensors", "no tensors"])
def test_damaged_records_are_not_taken_over(damage, tmp_path):
    theirs, ours = RecordStore(tmp_path / "theirs"), RecordStore(tmp_path / "ours")
    record = theirs.run(toy_runs.walk, {"rounds": 1, "seed": 0})
    text, tensors = (theirs.root / f"{record.key}.{kind}" for kind in ("json", "safetensors"))
    if damage == "record":
        text.write_text(text.read_text().replace('"length": ', '"length": 1'))
    elif damage == "tensors":
        tensors.write_bytes(tensors.read_bytes()[:-1] + b"?")
    else:
        tensors.unlink()
    with pytest.raises(CorruptData, match=r"checksum" if damage == "record" else r"safetensors is missing or damaged"):
        ours.merge(theirs.root)
    assert not list(ours.root.rglob("*.json"))
