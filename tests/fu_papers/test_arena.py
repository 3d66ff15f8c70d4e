"""The arena on small federations: runs, judges, controls, the ranking, and a method from a scratch file."""

import math
import re
import sys
import types

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fu_core.errors import ConfigError
from fu_core.evaluation.accuracy import accuracy
from fu_core.evaluation.klom import klom
from fu_core.federation.horizontal import fedavg
from fu_core.request import Request
from fu_core.streams import stream
from fu_core.unlearning import method as registry
from fu_core.unlearning.baselines.sisa import SISA, in_shards
from fu_papers import problem_figures
from fu_papers.arena import figures, names, results, runs, short_map, show, tables
from fu_papers.arena.crowds import agreement, beside, crowds_figure, crowds_table
from fu_papers.arena.grid import CONTROLS, YARDSTICK, Experiment
from fu_papers.arena.pools import ENSEMBLES, LONGER, ORDINARY, Pool, Recovery, accuracies, ensembles, recovered, serve
from fu_papers.controls import AGAIN
from fu_papers.lab import paths
from fu_papers.lab.paths import ROOT
from fu_papers.lab.plan import planned
from fu_papers.lab.record import config_key, function_name
from fu_papers.lab.store import CommittedStore, RecordStore
from fu_papers.look import ROWS, save_table, style
from fu_papers.problems import initial_model, problem
from fu_papers.study import Cell, Study
from tests.arena_lab import experiment
from tests.federations import with_server
from tests.pictures import faults


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return Study(experiment(), RecordStore(tmp_path_factory.mktemp("arena")), jobs=1)


@pytest.fixture(scope="module")
def frame(study):
    return results.of_runs(study.run("unlearning"), study.run("judging"))


@pytest.fixture(scope="module")
def ranked(frame):
    return results.ranking(frame)


@pytest.fixture
def library(monkeypatch):
    """Only the library's own methods, whatever other tests have registered."""
    known = {name: m for name, m in registry.methods().items() if m.serve.__module__.startswith("fu_core.")}
    monkeypatch.setattr(registry, "_REGISTERED", known)


# --- the grid ---


def test_the_committed_records_are_exactly_the_runs_of_quick(library):
    runs_of = {(function_name(s.fn), config_key(c)) for s in planned("arena", "quick", {}) for c in s.configs}
    committed = CommittedStore(paths.ROOT / "figures" / "quick" / "arena").everything()
    assert runs_of == {(record.function, config_key(record.config)) for record in committed}


@pytest.mark.parametrize("profile", ["laptop", "workstation", "paper"])
def test_larger_profiles_are_planned_without_their_data(profile, library, monkeypatch, tmp_path):
    monkeypatch.setenv("FU_DATA", str(tmp_path / "nothing"))
    stages = {stage.label: stage for stage in planned("arena", profile, {})}
    assert list(stages) == ["settings", "pool", "unlearning", "relearning", "judging", "crowds"]
    assert max(config["models"] for config in stages["pool"].configs) <= Experiment.of(profile).chunk


def test_every_method_meets_every_request_and_the_yardstick_shares_no_seed():
    e = experiment(requests=["class-0", "client-1"])
    cells = [cell for cell, _ in e.judged()]
    assert {cell.request for cell in cells} == {"class-0", "client-1"}
    assert {cell.method for cell in cells} == {*CONTROLS, *e.methods} - {"Retrain"}
    seeds = {name: set() for name in ("Original", "Retrain", AGAIN)}
    for cell, config in e.unlearned():
        if cell.method in seeds:
            seeds[cell.method] |= set(runs.seeds_of(config))
    assert seeds["Original"] == seeds[AGAIN] == set(range(8))
    assert seeds["Retrain"] == set(range(YARDSTICK, YARDSTICK + 8))


def test_no_method_named_means_all_that_work_with_a_server():
    everybody = experiment(methods=[]).entrants
    assert {"PUF-Special", "HF-KCU", "NoT", "SISA", "FedEraser"} < set(everybody)
    assert not {"DU", "FedORA", "PDUDT"} & set(everybody)  # of peers and of vertical parties
    assert everybody[: len(CONTROLS)] == CONTROLS
    few = experiment(methods=[], absent=["NoT", *experiment().absent]).entrants
    assert set(everybody) - set(few) == {"NoT"}
    assert "Last layer" in experiment(methods=["Last layer"]).entrants  # who is named takes part


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requests": ["client-9"]}, "requests names client 9, but clients are 0 to 3"),
        ({"models": 3}, "models must be a whole number >= 4"),
        ({"slow_models": 3}, "slow_models must be a whole number >= 4"),
        ({"methods": ["PUF"]}, "methods must be one of"),
        ({"absent": ["NOT"]}, "absent must be one of .*did you mean 'NoT'"),
        ({"methods": ["DU"]}, "methods must be one of"),  # there are no peers here
        ({"slow_methods": ["Nobody"]}, "slow_methods must be one of"),
        ({"settings": ["digits/iid/mlp/ring"]}, "settings must look like"),
        (
            {"further_places": ["digits/iid/softmax_regression client-1"]},
            "further_places must not name what settings has for all its requests",
        ),
        ({"large_places": ["digits/iid/softmax_regression client-1"]}, "large_places must be .*class-0"),
        ({"large_models": 8}, "large_models must be a whole number >= 9"),
        ({"further_places": ["digits/iid/mlp/torus class-0"]}, "world of .* must be one of"),
        ({"further_places": ["digits/iid/mlp/backdoor client-1"]}, "world of .* must be one of .*backdoor-<client>"),
        ({"further_places": ["digits/iid/mlp/ring-2 client-1"]}, "world of .* must be one of"),
        ({"further_places": ["digits/iid/tiny_cnn/vertical class-0"]}, "net of .* must be one of"),
        ({"further_places": ["digits/iid/mlp/backdoor-1 class-0"]}, "must ask the client with the backdoor to leave"),
        ({"further_places": ["digits/iid/mlp/ring client-9"]}, "further_places names client 9"),
        ({"settings": ["digits/dirichlet-1/softmax_regression"]}, "skewed_requests must name a request"),
    ],
)
def test_what_does_not_fit_together_is_named(change, says):
    with pytest.raises(ConfigError, match=says):
        experiment(**change)


def test_slow_methods_and_those_with_a_memory_are_judged_on_fewer_models():
    e = experiment(memory_models=6, slow_methods=["SISA"], slow_models=5)
    sizes = {name: e.size(e.settings[0], name) for name in ("SISA", ENSEMBLES, "FedEraser", "Natural", AGAIN)}
    assert sizes == {"SISA": 5, ENSEMBLES: 5, "FedEraser": 6, "Natural": 8, AGAIN: 8}
    for cell, config in e.judged():
        models = {side: sum(chunk["models"] for chunk in config[side]) for side in runs.SIDES}
        assert models["unlearned"] == models["twins"] == sizes.get(cell.method, 8)
        assert models["retrained"] == (5 if cell.method in ("SISA", ENSEMBLES) else 8)


def test_a_single_place_with_a_server_is_one_more_place_with_all_its_models():
    e = experiment(further_places=["digits/iid/tiny_cnn client-1"], few_models=5)
    assert list(e.places()) == [("digits/iid/softmax_regression", "class-0"), ("digits/iid/tiny_cnn", "client-1")]
    assert e.size("digits/iid/tiny_cnn", "Natural") == 5  # and not as places beyond a plain server have
    frame = pd.DataFrame({"setting": [setting for setting, _ in e.places()]})
    assert len(results.with_a_server(frame)) == 2


def test_a_larger_profile_asks_for_all_runs_of_laptop():
    """So that what has been computed for one counts for the other."""

    def keys(profile):
        return {(stage.label, config_key(c)) for stage in planned("arena", profile, {}) for c in stage.configs}

    assert keys("laptop") < keys("workstation")


# --- the scale ---


def scaled(**rows):
    """`left`, its ends and the draws of one place, from (KLoM, floor) by method; 10 % of KLoM as its interval."""
    frame = pd.DataFrame(
        [
            {"setting": "here", "request": "client-1", "method": name, "klom_forget": klom, "floor": floor,
             "low": klom / 1.1, "high": klom * 1.1, "draws": (np.log(klom) - 0.05, np.log(klom) + 0.05)}
            for name, (klom, floor) in rows.items()
        ]
    )  # fmt: skip
    return results.compared(frame).set_index("method")


def test_what_is_left_does_not_depend_on_how_many_models_looked():
    """Fewer models have a higher floor; what is as far above it is as far from Retrain."""
    found = scaled(Original=(1.03, 0.03), Few=(0.30, 0.10), Many=(0.23, 0.03))
    assert found.left["Few"] == pytest.approx(found.left["Many"])
    assert found.left["Original"] == pytest.approx(100)
    assert found.left["Many"] == pytest.approx(100 * np.log(0.23 / 0.03) / np.log(1.03 / 0.03))


def test_few_models_near_the_floor_see_less_and_their_interval_says_so():
    found = scaled(Original=(1.03, 0.03), Few=(0.12, 0.10), Many=(0.05, 0.03), Lucky=(0.01, 0.10))
    reach = found.left_high - found.left
    assert reach["Few"] == pytest.approx(0.12 / 0.05 * reach["Many"])
    assert (found.left - found.left_low).to_dict() == pytest.approx(reach.to_dict())
    spread = found.left_draws.map(np.ptp)
    assert spread["Few"] == pytest.approx(0.12 / 0.05 * spread["Many"])
    assert found.left["Lucky"] == pytest.approx(100 * np.log(results.LEAST) / np.log(1.03 / 0.03))  # and no number less


# --- large crowds ---

PLACE = ("digits/iid/softmax_regression", "class-0")
LARGE = {"large_places": [" ".join(PLACE)], "large_models": 12, "methods": ["Natural", "SISA", "FedEraser"]}


def test_everybody_of_a_large_crowd_is_of_its_size_and_the_smaller_ones_stay_as_they_are():
    plain, e = experiment(methods=LARGE["methods"], memory_models=4), experiment(**LARGE, memory_models=4)
    assert dict(e.judged()) == dict(plain.judged())
    found = dict(e.crowds())
    assert {cell.method for cell in found} == {cell.method for cell in dict(e.judged())}
    for config in found.values():
        assert [sum(chunk["models"] for chunk in config[side]) for side in runs.SIDES] == [12, 12, 12]
    trained = {config_key(config) for config in dict(e.pools()).values()}
    for cell, config in e.unlearned():
        assert {config_key(needed) for _, needed in runs.needs(config).values()} <= trained, cell
    unlearned = {config_key(config) for config in dict(e.unlearned()).values()}
    assert {config_key(c) for config in found.values() for side in runs.SIDES for c in config[side]} <= unlearned


@pytest.fixture(scope="module")
def crowds(tmp_path_factory):
    """A study with a large crowd, the frame of its smaller ones, and both beside each other."""
    made = Study(experiment(**LARGE), RecordStore(tmp_path_factory.mktemp("crowds")), jobs=1)
    small = results.of_runs(made.run("unlearning"), made.run("judging"))
    large = results.of_runs(made.run("unlearning"), made.run("crowds"))
    return made, small, large


def test_large_crowds_stand_beside_the_smaller_ones_on_a_scale_that_does_not_know_the_floor(crowds):
    _, small, large = crowds
    both = beside(small, large).set_index("method")
    assert set(both.models) == {8}
    assert set(both.models_large) == {12}
    assert "FedEraser" not in both.index  # refuses samples and classes
    assert "Constant output" not in both.index  # infinitely far
    assert both.above["Original"] == both.above_large["Original"] == pytest.approx(100)
    rows = large.set_index("method")
    excess = rows.klom_forget - rows.floor
    assert both.above_large["Natural"] == pytest.approx(100 * excess["Natural"] / excess["Original"])
    assert both.above_large["SISA"] == pytest.approx(100 * excess["SISA"] / excess[ENSEMBLES])
    assert (both.floor_large < both.floor).all()


def test_the_table_of_large_crowds_begins_with_the_nearest(crowds):
    both = beside(*crowds[1:])
    table = crowds_table(both, 12)
    order = both.sort_values("left_large", kind="stable").method
    assert list(table.method) == [results.shown(name) for name in order]
    assert set(table.N) == {"8"}
    (told,) = agreement(both)
    floors = both.set_index("method").loc["Original"]
    assert f"floor {floors.floor:.3f} and {floors.floor_large:.3f}" in told
    assert "of the 2 methods" in told


def test_a_model_that_ran_away_has_no_digits_in_the_table_of_large_crowds(crowds):
    row = beside(*crowds[1:]).iloc[0].to_dict()
    (shown,) = crowds_table(pd.DataFrame([{**row, "above": 77_405_209.0, "above_large": 9_999.6}]), 12).to_dict(
        "records"
    )
    assert shown["KLoM above the floor, % of doing nothing"] == "over 10,000"
    assert shown["the same, N = 12"] == "10000"


def test_agreement_is_the_rank_correlation_of_methods_and_not_of_controls(crowds):
    both = beside(*crowds[1:])
    row = both[both.method == "Natural"].iloc[0]
    lefts = {"Natural": (1, 2), "SISA": (2, 1), "NoT": (3, 4), "Ascent": (4, 3), "Original": (100, 5)}
    planted = pd.DataFrame([{**row, "method": m, "left": a, "left_large": b} for m, (a, b) in lefts.items()])
    (told,) = agreement(planted)
    assert told.endswith("rank correlation of the 4 methods 0.600")  # 1 - 6 * 4 / (4 * 15), Spearman by hand


def test_the_figure_of_large_crowds_has_both_sizes_of_everybody(crowds):
    both = beside(*crowds[1:])
    with style():
        fig = crowds_figure(both, 12)
    (ax,) = fig.axes
    hollow = [line.get_xdata()[0] for line in ax.lines if line.get_markerfacecolor() == "white"]
    ordered = both.sort_values("above_large", kind="stable")
    assert hollow == pytest.approx(list(ordered.above.clip(figures.LOWEST, figures.FARTHEST)))
    assert "8 models a side" in {text.get_text() for text in fig.legends[0].get_texts()}
    assert not faults(fig)
    plt.close(fig)


def test_a_wrong_control_of_a_large_crowd_refuses_it(crowds):
    _, small, large = crowds
    wrong = large.copy()
    wrong.loc[wrong.method == "Original", "low"] = 0.0
    with pytest.raises(results.ControlsFailed, match=r"do nothing \(Original\) passes"):
        beside(small, wrong)


# --- the runs ---


def test_a_pool_is_the_trainings_of_its_seeds(study):
    e = study.experiment
    config = e.pool(e.settings[0], "none", 0, 4)
    record = study.store.run(runs.train, config)
    w = study.store.tensors(record.key, ["w"])["w"]
    p = problem(config)
    one = {**config, "seed": 2}
    alone = fedavg(p.federation(one), initial_model(one, p.model), e.rounds)
    torch.testing.assert_close(w[2], alone, rtol=1e-4, atol=1e-6)


def test_retrain_again_is_what_the_method_retrain_gives(study):
    """The twin of the same seed, to rounding: the pool trains many at once."""
    e = study.experiment
    p = problem(e.pool(e.settings[0], "none", 0, 4))
    f = p.federation({**e.pool(e.settings[0], "none", 0, 4), "seed": 0})
    originals = Pool.trained(f, [0, 1], e.rounds)
    deletion = Request.parse("class-0").resolve(f.clients)
    rule = Recovery(p.validation, 0.0, 1)
    found = serve("Retrain", originals, deletion, rule)
    (config,) = e.chunks(e.settings[0], "class-0", 4)
    pool = study.store.tensors(study.store.run(runs.train, config).key, ["w"])["w"]
    torch.testing.assert_close(found.models, pool[:2], rtol=1e-4, atol=1e-6)


def test_a_retraining_that_trains_on_is_ordinary_rounds_of_those_who_stay_and_pays_for_both(study):
    e = study.experiment
    unlearned = study.run("unlearning")
    config, record = next((r.config, r) for c, r in unlearned.items() if c.method == LONGER)
    p = problem(config)
    f = p.federation({**config, "seed": 0})
    stays = f.after(Request.parse("class-0").resolve(f.clients))
    chunk = study.store.run(runs.train, e.pool(e.settings[0], "class-0", config["first_seed"], config["models"]))
    w = study.store.tensors(chunk.key, ["w"])["w"]
    first = config["first_seed"] + 1
    longer = fedavg(stays.having(seed=first), w[1], e.natural_rounds, first_round=e.rounds + 1)
    (x, y) = p.test
    assert record.metrics["test"][1] == pytest.approx(accuracy(p.model, longer, x, y), abs=2)
    assert record.metrics["recovery"] == [e.natural_rounds] * config["models"]
    per_round = chunk.metrics["passes"] / e.rounds
    assert record.metrics["passes"] == pytest.approx(chunk.metrics["passes"] + e.natural_rounds * per_round)


def test_a_judged_number_is_that_of_the_margins_kept(study):
    judged, unlearned = study.run("judging"), study.run("unlearning")
    e = study.experiment

    def margins(name, first):
        found = [r for c, r in unlearned.items() if c.method == name and (r.config["first_seed"] >= YARDSTICK) == first]
        return torch.cat([study.store.tensors(r.key, ["forget"])["forget"] for r in found])

    (record,) = [r for c, r in judged.items() if c.method == "Natural"]
    expected = klom(margins("Natural", False), margins("Retrain", True)).mean()
    assert record.metrics["klom_forget"] == pytest.approx(float(expected), rel=1e-9)
    assert record.metrics["models"] == e.models


def test_recovery_stops_each_model_by_itself():
    t = with_server()
    f = t.federation
    x, y = f.clients[0]
    learned = fedavg(f, t.w_0, 40)
    w = torch.stack([learned, torch.zeros_like(t.w)])
    good = Recovery((x, y), goal=accuracy(f.model, learned, x, y), cap=3)
    assert good.goal > accuracy(f.model, w[1], x, y)
    after, rounds, reached = recovered(f, [0, 1], w, 4, good)
    assert rounds[0] == 0
    assert reached[0]
    assert torch.equal(after[0], learned)
    assert rounds[1] > 0
    assert not torch.equal(after[1], w[1])
    assert recovered(f, [0, 1], w, 4, good, fixed=2)[1:] == ([2, 2], [True, True])


def test_who_is_not_back_when_the_cap_is_reached_has_given_up():
    t = with_server()
    f, (x, y) = t.federation, t.federation.clients[0]
    w = torch.stack([fedavg(f, t.w_0, 40), torch.zeros_like(t.w)])
    goal = accuracy(f.model, w[0], x, y)
    first_is_there = Recovery((x, y), goal=goal, cap=0)
    assert recovered(f, [0, 1], w, 4, first_is_there)[1:] == ([0, 0], [True, False])
    nobody_can = Recovery((x, y), goal=100.1, cap=2)
    assert recovered(f, [0, 1], w, 4, nobody_can)[1:] == ([2, 2], [False, False])
    fresh = t.w_0[None]
    soon = accuracy(f.model, recovered(f, [1], fresh, 4, nobody_can, fixed=10)[0][0], x, y)
    _, (rounds,), reached = recovered(f, [1], fresh, 4, Recovery((x, y), goal=soon, cap=60))
    assert 0 < rounds <= 10
    assert reached == [True]
    assert recovered(f, [1], fresh, 4, Recovery((x, y), goal=soon, cap=rounds))[1:] == ([rounds], [True])  # in the last
    assert recovered(f, [1], fresh, 4, Recovery((x, y), goal=soon, cap=rounds - 1))[2] == [False]


def test_ordinary_rounds_that_cost_as_much_as_dear_steps_are_naturals(study):
    e = study.experiment
    found = {c.method: r for c, r in study.run("unlearning").items() if c.seed == 0}
    long, short = found[ORDINARY].metrics, found["Natural"].metrics
    assert long["recovery"] == [e.longer_rounds] * e.chunk
    assert long["passes"] / e.longer_rounds == pytest.approx(short["passes"] / e.natural_rounds)
    assert set(long["reached"]) == {True}  # no rule stops it


def test_an_ensembles_own_doing_nothing_is_what_sisa_has_before_the_request(study, frame):
    e = study.experiment
    config = e.pool(e.settings[0], "none", 0, 4)
    p = problem(config)
    f = p.federation({**config, "seed": 0})
    pool = Pool.trained(f, [0, 1], e.rounds)
    before = ensembles(pool)
    for found, seed, start in zip(before, pool.seeds, pool.w_0, strict=True):  # as SISA's own training has them
        alone = in_shards(f.having(seed=seed), start, e.rounds, SISA())
        assert list(found.shards) == list(alone.shards)
        assert all(torch.allclose(w, alone.shards[ids], atol=1e-5) for ids, w in found.shards.items())
    nobody, rule = Request.parse("client-0").resolve(f.clients), Recovery(p.validation, 0.0, 1)
    after = serve("SISA", pool, nobody, rule).models
    assert [len(one.shards) for one in serve("SISA", pool, nobody, rule, {"shards": 2}).models] == [2, 2]
    for old, new in zip(before, after, strict=True):
        kept = [ids for ids in old.shards if 0 not in ids]
        assert kept
        assert all(torch.equal(old.shards[ids], new.shards[ids]) for ids in kept)
    by_name = frame.set_index("method")
    assert by_name.left[ENSEMBLES] == pytest.approx(100)
    expected = np.log(by_name.klom_forget["SISA"] / by_name.floor["SISA"])
    expected /= np.log(by_name.klom_forget[ENSEMBLES] / by_name.floor[ENSEMBLES])
    assert by_name.left["SISA"] == pytest.approx(100 * expected)
    judged = {cell.method: config for cell, config in e.judged()}
    assert judged[ENSEMBLES]["retrained"] == judged["SISA"]["retrained"]
    assert ENSEMBLES not in experiment(methods=["Natural"]).entrants  # of whom it is the control


def test_who_stays_is_compared_with_unseen_data_of_the_same_classes(study):
    e = study.experiment
    config, record = next((r.config, r) for c, r in study.run("unlearning").items() if c.method == "Original")
    kept = study.store.tensors(record.key, ["test", "unseen"])
    p = problem(config)
    staying = p.test[1] != 0  # class-0 goes
    assert kept["unseen"].shape[1] == min(e.examples, int(staying.sum()))
    order = torch.randperm(len(staying), generator=stream(0, "examples", "test"))
    assert order[staying[order]][: e.examples].sort().values.tolist() != order[: e.examples].sort().values.tolist()


def test_refusals_are_rows_with_the_methods_own_words(frame):
    by_name = frame.set_index("method")
    assert "cannot forget single samples" in by_name.reason["MoDe"]
    assert "FedEraser stores updates of whole clients" in by_name.reason["FedEraser"]
    assert pd.isna(by_name.klom_forget["MoDe"])


def test_a_method_that_diverged_for_some_seeds_has_no_result_and_says_for_how_many_runs():
    why = {"diverged": "seed 5: the model is not finite"}
    row = results.row_of(why, [({"test": [80.0]}, 16), (why, 16), (why, 16)], [])
    assert row == {"reason": "seed 5: the model is not finite (in 2 of 3 runs of 16 models)", "lost": "diverged"}
    assert results.row_of(why, [(why, 16)], [])["reason"] == why["diverged"]


# --- controls ---


def test_the_controls_come_out_as_they_must(frame):
    assert results.wrong_controls(frame) == []
    by_name = frame.set_index("method")
    assert math.isinf(by_name.klom_forget["Constant output"])
    assert by_name.klom_forget[AGAIN] < results.AS_GOOD * by_name.floor[AGAIN]
    assert by_name.left["Original"] == pytest.approx(100)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("Original", {"low": 0.0}, r"do nothing \(Original\) passes"),
        ("Constant output", {"low": 0.01}, "Constant output passes"),
        ("Destroyed", {"low": 0.01}, "Destroyed passes"),
        (AGAIN, {"klom_forget": 100.0}, r"Retrain again \(noise floor\) fails"),
    ],
)
def test_a_wrong_control_refuses_every_table(frame, name, change, says):
    wrong = frame.copy()
    for column, value in change.items():
        wrong.loc[wrong.method == name, column] = value
    with pytest.raises(results.ControlsFailed, match=says):
        results.ranking(wrong)
    with pytest.raises(results.ControlsFailed, match=says):
        tables.request_table(wrong, wrong.setting.iloc[0], "class-0")


def test_a_missing_control_refuses_every_table(frame):
    with pytest.raises(results.ControlsFailed, match="has not been judged"):
        results.ranking(frame[frame.method != "Destroyed"])


# --- what is shown ---


def test_a_method_of_a_notebook_s_cell_is_asked_to_move_to_a_file(monkeypatch):
    """Runs are computed in processes of their own, which cannot import it."""
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry.methods()))

    def serve(trained, deletion, config):
        return trained.model

    serve.__module__ = "__main__"
    registry.register("Cell", paper="a notebook", colour="#123456")(serve)
    with pytest.raises(ConfigError, match="Cell must be registered in a file"):
        list(experiment(methods=["Cell"]).unlearned())


def test_the_ranking_is_by_what_is_left(frame, ranked):
    there = ranked[ranked.places > 0]
    assert there.left.is_monotonic_increasing
    assert list(ranked.method[-2:]) == ["MoDe", "FedEraser"]  # no result: last
    one = frame[frame.method == "Natural"].iloc[0]
    nothing = frame[frame.method == "Original"].klom_forget.iloc[0]
    expected = 100 * np.log(one.klom_forget / one.floor) / np.log(nothing / one.floor)
    assert ranked.set_index("method").left["Natural"] == pytest.approx(expected)
    assert set(tables.ranking_table(ranked).method) == {results.shown(name) for name in there.method}


def planted(frame, left, reach, draws=None):
    """Natural's rows are `left` ± `reach`, whose resampled crowds are as far apart."""
    mine = frame.method == "Natural"
    frame.loc[mine, ["left", "left_low", "left_high"]] = [left, left - reach, left + reach]
    draws = np.resize([1.0, -1.0], 10) if draws is None else draws
    frame.loc[mine, "left_draws"] = pd.Series([tuple(reach / 1.96 * draws)] * mine.sum(), frame.index[mine])


def test_places_whose_models_share_seeds_do_not_count_as_independent(frame):
    """Requests of one setting have the same originals: a bad draw of them is bad for all."""
    one, other = (frame.assign(request=request) for request in ("client-3", "client-4"))
    for each in (one, other):
        planted(each, 50.0, 10.0)
    together = results.ranking(pd.concat([one, other], ignore_index=True)).set_index("method").loc["Natural"]
    assert (together.low, together.high) == (pytest.approx(40), pytest.approx(60))
    planted(other, 50.0, 10.0, np.repeat([1.0, -1.0], 5))  # another pattern: 2 of 10 draws in common, rho = 0.2
    apart = results.ranking(pd.concat([one, other], ignore_index=True)).set_index("method").loc["Natural"]
    assert apart.high - apart.low == pytest.approx(20 * np.sqrt((1 + 0.2) / 2))


def test_neighbours_in_the_ranking_are_told_apart_place_by_place():
    """Places differ by far more than crowds: what counts is whether one is the nearer in place after place."""
    lefts = {"near": (10, 40, 70, 90), "as near": (12, 38, 73, 89), "farther": (31, 62, 88, 114), "lost": (np.inf,) * 4,
             "lost in some": (60, np.inf, np.inf, 99)}  # fmt: skip
    frame = pd.DataFrame(
        {"setting": "s", "request": f"client-{k}", "method": name, "left": left}
        for name, of in lefts.items()
        for k, left in enumerate(of)
    )
    assert results._tied(frame, list(lefts)) == [
        False,
        True,
        False,
        False,
        True,
    ]  # nobody is farther than infinitely far
    alone = frame[frame.request == "client-0"]
    assert results._tied(alone, ["near", "farther"]) == [False, True]  # one place tells nothing


def test_learning_again_is_told_only_where_its_controls_are_right(frame):
    def with_relearn(nothing, destroyed):
        found = frame.assign(relearn=0.7, relearn_capped=0.0)
        for name, value in (("Original", nothing), ("Destroyed", destroyed)):
            found.loc[found.method == name, "relearn"] = value
        return results._where_relearning_tells(found).relearn.notna()

    assert with_relearn(0.0, 3.0).all()
    assert not with_relearn(0.0, 0.09).any()  # random weights learn as soon: it measures the task
    assert not with_relearn(1.0, 3.0).any()  # doing nothing takes as long as Retrain: there is nothing to see


def test_requests_of_whole_classes_are_ranked_apart(frame):
    """Random weights are nearer to a model that misses a class than doing nothing is; of a client they are not."""
    client = frame.assign(request="client-3")
    planted(client, 10.0, 2.0)
    found = results.ranking(pd.concat([frame, client], ignore_index=True)).set_index("method")
    alone = frame.set_index("method").left
    assert found.left["Natural"] == pytest.approx(10)
    assert found.left_classes["Natural"] == pytest.approx(alone["Natural"])
    assert (found.low["Natural"], found.high["Natural"]) == (pytest.approx(8), pytest.approx(12))
    shown = tables.ranking_table(found.reset_index()).set_index("method")
    assert shown["left of the distance, %"]["Natural"] == "10 [8, 12]"
    assert shown["classes"]["Natural"].startswith(f"{alone['Natural']:.0f} [")
    only_clients = results.ranking(client).set_index("method")
    assert np.isnan(only_clients.left_classes["Natural"])
    assert set(tables.ranking_table(only_clients.reset_index()).classes) == {"–"}


def test_costs_are_of_the_places_that_the_distance_is_of_and_nearer_means_in_each_of_them(frame):
    """At laptop SISA's price was 48 % with the classes, which it trains again whole, and 32 % without them."""
    here, far, aside = (frame.assign(request=request) for request in ("client-3", "client-4", "class-0"))
    mine = frame.method == "Natural"
    for one, (left, price) in ((here, (50.0, 0.2)), (far, (90.0, 0.4)), (aside, (120.0, 9.0))):
        planted(one, left, 1.0)
        one.loc[mine, "price"] = price
    found = results.ranking(pd.concat([here, far, aside], ignore_index=True)).set_index("method").loc["Natural"]
    assert (found.left, found.price) == (pytest.approx(70), pytest.approx(0.3))
    assert found.always_nearer
    far.loc[mine, "left_high"] = 101.0
    found = results.ranking(pd.concat([here, far, aside], ignore_index=True)).set_index("method").loc["Natural"]
    assert not found.always_nearer


def test_sisa_is_as_good_as_its_own_retraining(ranked):
    row = ranked.set_index("method").loc["SISA"]
    assert (row.guarantee, row.as_good) == ("exact", 1)


@pytest.mark.parametrize(("wrong", "value"), [("klom_retain", 500.0), ("gave_up", 0.1), ("klom_forget", 1.0)])
def test_who_harms_those_who_stay_or_gives_up_is_not_as_good_as_retraining(frame, wrong, value):
    """Forgotten data alone said that such models could not be told from retrained ones."""
    rows = frame[frame.method == "SISA"].copy()
    assert results.as_good(rows).all()
    assert not results.as_good(rows.assign(**{wrong: value})).any()


def test_what_epsilon_shows_of_retrained_models_is_nobodys(frame):
    """How far margins are spread moves a perfect method's epsilon, too: it is a second retraining's that counts."""
    assert (frame.excess[frame.method == AGAIN] == 0).all()
    by_name = frame.set_index("method")
    raw = by_name.epsilon - by_name.epsilon_null
    assert by_name.excess["Original"] == pytest.approx(raw["Original"] - raw[AGAIN])


@pytest.mark.parametrize("arrived", [True, False])
def test_nobody_learns_again_in_units_of_a_retraining_that_was_cut_short(arrived):
    cell = Cell("places", "digits/iid/mlp", 0, "client-3", "Natural", "")

    def learnt(passes, reached):
        return types.SimpleNamespace(metrics={"passes": passes, "reached": reached})

    found = {
        cell: learnt([2, 3], [True, True]),
        cell._replace(method="Retrain"): learnt([10, 10, 4], [True, arrived, True]),
    }
    assert results._relearned(found, cell) == ({"relearn": 0.25, "relearn_capped": 0.0} if arrived else {})


def test_figures_are_drawn_of_everybody(frame, ranked, study):
    names = ["Original", AGAIN]
    drawn = [
        figures.map_figure(ranked),
        figures.places_figure(frame, ranked),
        figures.judges_figure(frame),
        figures.margins_figure(study.run("judging"), study.experiment.settings[0], "class-0", names),
    ]
    words = {text.get_text() for ax in drawn[0].axes for text in ax.texts}
    for name in set(ranked[ranked.places > 0].method) - {ENSEMBLES}:  # which is at 100 by the scale
        assert any(results.shown(name) in word for word in words)
    for figure in drawn:
        plt.close(figure)


def planted_ranking(*rows):
    """A ranking of (method, price, left) and what else is said of it."""
    base = {"guarantee": "none", "places": 10, "of": 10, "as_good": 0, "models": 32.0}
    return pd.DataFrame(
        [{**base, "method": m, "price": p, "left": y, "always_nearer": y < 98, **more} for m, p, y, more in rows]
    )


CROWD = [
    (name, 0.14 + 0.01 * i, 104.0 + i % 3, {}) for i, name in enumerate(("PGA", "SCRUB", "Natural", "NoT", "FedAU"))
]
PLANTED = planted_ranking(
    ("SISA", 0.45, -4, {"guarantee": "exact", "as_good": 10}), (AGAIN, 1, -3, {}), ("Original", 0, 100, {}),
    ("Rewind", 0.5, 60, {}), ("MoDe", 1.05, 105, {"places": 4}), ("NaiveGA", 0.04, 1200, {}),
    ("Destroyed", 0, 230, {}), *CROWD, ("HF-KCU", math.nan, math.nan, {"places": 0}),
)  # fmt: skip


def test_the_map_marks_who_refused_places_and_says_how_many_were_served():
    with style():
        fig = figures.map_figure(PLANTED)
    (ax,) = fig.axes
    fills = {line.get_fillstyle(): line.get_marker() for line in ax.lines if line.get_marker() != "None"}
    assert fills == {"full": "o", "left": "o", "none": "o"}
    (half,) = (line for line in ax.lines if line.get_fillstyle() == "left")
    assert half.get_xydata().tolist() == [[105, 105]]
    words = {text.get_text() for text in ax.texts}
    assert {"MoDe (4 of 10)", "SISA", "NaiveGA ↑", "Destroyed ↑"} <= words
    (legend,) = fig.legends
    told = [text.get_text() for text in legend.get_texts()]
    assert told == [
        "guarantee: none",
        "guarantee: exact",
        "refused or diverged in some places (served k of n)",
        "control",
    ]
    whole = figures.map_figure(PLANTED[PLANTED.method != "MoDe"])
    assert "refused" not in " ".join(text.get_text() for text in whole.legends[0].get_texts())
    plt.close("all")


def test_names_on_the_map_lie_on_no_dot_and_on_no_other_name():
    with style():
        fig = figures.map_figure(PLANTED)
    (ax,) = fig.axes
    assert faults(fig) == []
    for text in ax.texts:
        box = text.get_window_extent()
        assert ax.bbox.x0 <= box.x0
        assert box.x1 <= ax.bbox.x1 + 1
    plt.close(fig)


def test_the_title_of_the_map_counts_who_gets_where():
    (ax,) = figures.map_figure(PLANTED).axes
    counted = (
        "Of 9 methods, 2 are told nearer to Retrain than doing nothing wherever they serve, "
        "1 as near as Retrain again (SISA)"
    )
    assert ax.get_title() == counted
    rewound = PLANTED[PLANTED.method != "SISA"]
    assert (
        figures.map_figure(rewound).axes[0].get_title().endswith("wherever they serve, none as near as Retrain again")
    )
    nobody = PLANTED[~PLANTED.method.isin(["SISA", "Rewind"])]
    assert (
        figures.map_figure(nobody)
        .axes[0]
        .get_title()
        .endswith("none are told nearer to Retrain than doing nothing wherever they serve")
    )
    plt.close("all")


def test_every_colour_of_the_judges_is_in_the_legend_and_names_are_of_who_disagrees():
    rows = [(AGAIN, 0.06, 0.5), ("Original", 4.0, 0.9), ("SISA", 0.06, 0.5), ("NaiveGA", 1e9, 1.0), ("PGA", 10.0, 0.6)]
    frame = pd.DataFrame(rows, columns=["method", "klom_forget", "auc"]).assign(floor=0.06, models=32)
    with style():
        fig = figures.judges_figure(frame)
    (ax,) = fig.axes
    told = {text.get_text() for text in fig.legends[0].get_texts()}
    drawn_looks = {line.get_label() for line in ax.lines if line.get_marker() != "None"}
    assert told == drawn_looks
    assert told == {results.shown(AGAIN), results.shown("Original"), "methods without a guarantee",
                    "methods with a guarantee"}  # fmt: skip
    assert [text.get_text() for text in ax.texts] == ["PGA"]
    assert faults(fig) == []
    assert fig.get_label().startswith("32 models a side; a dot: one method in one place")
    plt.close(fig)


NEAR_NAMES = ("PUF-Special", "PUF-Regular", "Model clipping", "SCRUB", "Random labels", "FedORA horizontal reverse")


def test_names_of_judges_that_disagree_lie_on_no_dot_and_on_no_other_name():
    """Six near names, and a crowd of dots to their right."""
    named = [(name, 10.0 + k / 2, 0.70 + 0.004 * k) for k, name in enumerate(NEAR_NAMES)]
    crowd = [("Natural", 14.0 + 4 * (k % 8), 0.805 - 0.012 * (k // 8)) for k in range(8)]
    crowd += [("NaiveGA", 5.5 - 0.2 * k, 0.70 + 0.01 * k) for k in range(6)]
    rows = [(AGAIN, 0.06, 0.5), ("Original", 4.0, 0.9), *named, *crowd]
    frame = pd.DataFrame(rows, columns=["method", "klom_forget", "auc"]).assign(floor=0.06, models=32)
    with style():
        fig = figures.judges_figure(frame)
    (ax,) = fig.axes
    assert {text.get_text() for text in ax.texts} - {""} == set(NEAR_NAMES)
    assert faults(fig) == []
    dots = ax.transData.transform(np.column_stack([frame.klom_forget / frame.floor, frame.auc]))
    for text in ax.texts:
        if text.get_text():
            box = text.get_window_extent().padded(names.DOT - 2)
            assert not any(box.contains(*dot) for dot in dots)
    plt.close(fig)


def test_the_short_map_has_the_ends_the_papers_own_and_the_frontier():
    rows = planted_ranking(
        ("Retrain again", 1.0, 1, {}), ("Original", 0, 100, {}), ("SISA", 0.3, 5, {"guarantee": "exact"}),
        ("Natural", 0.05, 98, {}), ("PUF-Special", 0.1, 84, {}), ("PUF-Regular", 0.11, 80, {}),
        ("HF-KCU held-out", 0.4, 78, {}), ("FedORA horizontal", 0.04, 230, {}), ("HF-KCU", 0.4, 90, {}),
        ("Rewind", 0.5, 60, {}), ("FedEraser", 0.45, 50, {"places": 7}), ("NoT", 0.7, 65, {}),
        ("Trust-region Newton", 1.5, math.inf, {}),
    )  # fmt: skip
    drawn = set(short_map.chosen(rows).method)
    assert drawn == {AGAIN, "Original", "SISA", "Natural", *short_map.OWN, "Rewind"}
    with style():
        fig = short_map.short_map_figure(rows)
    (ax,) = fig.axes
    words = {text.get_text() for text in ax.texts} - {""}
    assert words == {"retrain", "do nothing", "SISA", "Natural", "PUF-Special", "HF-KCU held-out", "Rewind",
                     "FedORA horizontal ↑"}  # fmt: skip
    assert ax.get_title() == (
        "Serving every place, without a guarantee, nearest by KLoM:\nRewind, 60 % left to forget for 50 % of the passes"
    )
    assert faults(fig) == []
    nobody = short_map.short_map_figure(rows[rows.method.isin([AGAIN, "Original", "FedORA horizontal"])])
    assert "nobody here comes nearer" in nobody.axes[0].get_title()
    alone = short_map.short_map_figure(rows[rows.method.isin([AGAIN, "Original", "SISA"])])
    assert alone.axes[0].get_title() == "Forgetting against price"
    plt.close("all")


def test_what_is_below_a_picture_names_the_data_that_it_shows(study):
    def record(source):
        return types.SimpleNamespace(metrics={"source": source})

    described = {"digits/iid/mlp": record("Digits, whole"), "cifar10/iid/mlp": record("CIFAR-10, whole")}
    told = show.source_of(described, ["cifar10/iid/mlp", "cifar10/dirichlet-0.1/mlp"])
    assert told == "CIFAR-10, whole; net: mlp"
    world = show.source_of(described, ["digits/dirichlet-0.1/softmax_regression/ring"])
    assert world == "Digits, whole; net: softmax_regression"
    assert show.source_of(described, ["mnist/iid/mlp"]).endswith("; net: mlp")
    committed = study.run("settings")
    assert show.source_of(committed, committed) == problem_figures.source(committed)


@pytest.mark.parametrize("profile", ["quick", "laptop"])
def test_the_committed_tables_of_a_place_name_one_data_set(profile):
    tables_there = list((ROOT / "figures" / profile / "arena").glob("place_*.csv"))
    assert tables_there
    for path in tables_there:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.count("; net: ") == 1
        assert ("CIFAR-10" in first) == ("cifar10" in path.name)


@pytest.mark.parametrize(
    ("picture", "shows"),
    [("margins", {"CIFAR-10"}), ("worlds", {"Fashion-MNIST"}), ("map_short", {"Fashion-MNIST", "CIFAR-10"})],
)
def test_the_committed_pictures_name_the_data_that_they_show(picture, shows):
    with Image.open(ROOT / "figures" / "laptop" / "arena" / f"{picture}.png") as opened:
        told = opened.text["Description"]
    assert {name for name in ("Fashion-MNIST", "CIFAR-10") if f"{name} (" in told} == shows


def test_counts_in_the_ranking_are_whole_and_no_zero_is_negative(ranked):
    shown = tables.ranking_table(ranked.astype({"as_good": float}))
    assert all(re.fullmatch(r"\d+ of \d+", count) for count in shown["as Retrain"])
    assert tables.interval(-0.3, -6.2, -0.1) == "0 [-6, 0]"


def test_the_table_of_a_net_has_who_is_nearer_in_most_places_and_says_why_there_is_no_number():
    rows = [
        ("client-3", "Original", 0.9, 100.0, 0.0, ""),
        ("client-3", "Rewind", 0.3, 40.0, 0.5, ""),
        ("client-3", "PUF-Special", 0.5, 65.0, 0.1, ""),
        ("client-3", "NoT", 2.0, 150.0, 0.3, ""),
        ("client-3", "Natural", 0.9, 101.0, 0.07, ""),
        ("class-0", "Original", 90.0, 100.0, 0.0, ""),
        ("class-0", "Rewind", 9.0, 80.0, 0.5, ""),
        ("class-0", "PUF-Special", np.nan, np.nan, np.nan, "diverged"),
        ("class-0", "NoT", np.nan, np.nan, np.nan, "unsupported"),
        ("class-0", "Natural", 45.0, 90.0, 0.09, ""),
    ]
    columns = ["request", "method", "klom_forget", "left", "price", "lost"]
    frame = pd.DataFrame(rows, columns=columns).assign(
        setting="digits/iid/mlp", floor=0.1, left_low=lambda f: f.left - 5, left_high=lambda f: f.left + 5
    )
    elsewhere = frame.assign(setting="digits/iid/tiny_cnn", left=1.0)
    lines = tables.net_markdown(pd.concat([frame, elsewhere], ignore_index=True), "mlp").splitlines()
    head, _, floors, *told = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert head == ["what is left, %", "client-3: Digits, IID", "class-0: Digits, IID", "passes, %"]
    assert floors == ["doing nothing, in floors", "9", "900", "0"]
    assert told == [
        ["Rewind", "40 [35, 45] (25)", "80 [75, 85] (10)", "50"],
        ["PUF-Special", "65 [60, 70] (50)", "diverged", "10"],
        ["Natural", "101 [96, 106] (100)", "90 [85, 95] (50)", "7 to 9"],
    ]


def test_cells_can_be_read_on_their_colours_and_no_zero_is_negative():
    assert [figures._left_text(value) for value in (-0.3, -3.2, 1000, np.inf, np.nan)] == [
        "0", "-3", "> 999", "∞", "refuses",
    ]  # fmt: skip
    assert figures._left_text(np.nan, "diverged") == "diverged"


def test_a_model_of_a_crowd_that_is_no_longer_numbers_is_right_nowhere():
    outputs = torch.zeros(2, 3, 4)
    outputs[:, :, 0] = 1
    outputs[1] = torch.nan
    assert accuracies(outputs, torch.zeros(3, dtype=torch.long)) == [100, 0]


def test_who_diverged_somewhere_is_not_nearer_everywhere(frame):
    """PUF-Special diverged in one place at workstation, and counted among those nearer wherever clients go."""
    near = frame.copy()
    near.loc[near.method == "SISA", ["left", "left_low", "left_high"]] = 50.0, 40.0, 60.0
    assert results.ranking(near).set_index("method").always_nearer["SISA"]
    there = near[near.method == "SISA"].assign(request="class-1", klom_forget=np.nan, lost="diverged")
    controls = near[near.method.isin([*results.MUST_FAIL, ENSEMBLES, AGAIN])].assign(request="class-1")
    both = pd.concat([near, controls, there], ignore_index=True)
    assert not results.ranking(both).set_index("method").always_nearer["SISA"]


def test_the_short_map_always_has_the_nearest(ranked):
    """At workstation the nearest was six points ahead of a cheaper one: not drawn, and the title named the other."""
    row = ranked[ranked.method == "Natural"].iloc[0]
    near = [{**row, "method": m, "left": left, "price": p} for m, left, p in
            (("Natural", 96, 0.07), ("HF-KCU held-out", 69, 0.41), ("Rewind", 63, 0.5))]  # fmt: skip
    rows = pd.concat([ranked[ranked.method.isin(["Original", AGAIN])], pd.DataFrame(near)], ignore_index=True)
    assert "Rewind" in set(short_map.chosen(rows).method)
    fig = short_map.short_map_figure(rows)
    assert fig.axes[0].get_title().endswith("nearest by KLoM:\nRewind, 63 % left to forget for 50 % of the passes")
    plt.close(fig)


def test_who_diverged_is_not_said_to_refuse(frame, ranked):
    lost = frame.copy()
    lost.loc[lost.method == "Natural", ["lost", "reason", "klom_forget"]] = "diverged", "not finite", np.nan
    with style():
        fig = figures.places_figure(lost, ranked)
    told = [text.get_text() for text in fig.axes[0].texts]
    assert told.count("diverged") == 1
    assert "refuses" not in told  # who refuses everything has no row
    plt.close(fig)


def test_the_picture_of_places_says_once_what_columns_have_in_common(frame, ranked):
    with style():
        fig = figures.places_figure(frame, ranked)
    assert [fault for fault in faults(fig) if "no data" not in fault] == []  # colours are no curves
    (ax,) = fig.axes
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        figures._request_name(request) for request in dict.fromkeys(frame.request)
    ]
    heads = [text.get_text() for text in ax.texts if "softmax" in text.get_text() or "mlp" in text.get_text()]
    assert len(heads) == frame.setting.nunique()
    plt.close(fig)


@pytest.mark.parametrize(
    ("request_", "name"),
    [("client-3", "client\n3"), ("client-3-5", "clients\n3 and 5"), ("class-0", "class\n0"),
     ("sample-3-0.5", "half of\nclient 3"), ("sample-3-0.2", "20 % of\nclient 3"), ("sample-0.1", "sample-0.1")],
)  # fmt: skip
def test_the_head_of_a_column_is_in_words(request_, name):
    assert figures._request_name(request_) == name


def test_a_margin_falls_into_the_same_bin_in_every_panel(study):
    place = (study.experiment.settings[0], "class-0")
    with style():
        fig = figures.margins_figure(study.run("judging"), *place, ["Original", AGAIN])
    assert faults(fig) == []
    edges = [sorted({round(patch.get_x(), 6) for patch in ax.patches if hasattr(patch, "get_x")}) for ax in fig.axes]
    assert edges[0] == edges[1]
    assert all(ax.get_legend() is None for ax in fig.axes)
    plt.close(fig)


def test_who_has_no_result_has_no_margins_to_be_drawn(study):
    """PUF-Special diverged with a convolutional net, in the very place whose margins a notebook draws."""
    place = (study.experiment.settings[0], "class-0")
    with style():
        fig = figures.margins_figure(study.run("judging"), *place, ["Original", "MoDe", AGAIN])  # MoDe refuses
    assert [ax.get_title() for ax in fig.axes] == [results.shown(name) for name in ("Original", AGAIN)]
    plt.close(fig)


def test_a_paragraph_says_what_the_frame_says(frame, ranked):
    told = show.paragraphs(frame, ranked)
    row = ranked.set_index("method").loc["Natural"]
    assert f"{row.auc:.2f}" in told
    assert "**MoDe**" in told
    assert "cannot forget single samples" in told
    assert "**Original" not in told


def test_a_paragraph_counts_places_beside_the_mean():
    """An interval over models takes places as given: a mean may be of one good place."""
    there = pd.DataFrame({"request": [f"client-{k}" for k in range(4)], "left": [50.0, 110.0, 105.0, 104.0]})
    row = {"left": 92.0, "low": 88.0, "high": 96.0, "as_good": 0, "places": 4}
    row |= dict.fromkeys(("left_classes", "classes_low", "classes_high"), math.nan)
    said = (
        "Nearer to Retrain than doing nothing in the mean, and in 1 of 4 places: 92 [88, 96] % of the distance is left."
    )
    assert show._distance(row, there) == said
    farther = {**row, "left": 115.0, "low": 110.0, "high": 120.0}
    assert show._distance(farther, there).startswith(
        "Farther from Retrain than doing nothing in the mean, and in 3 of 4"
    )
    between = show._distance({**row, "high": 104.0}, there)
    assert between.startswith("Not told apart from doing nothing in the mean, and nearer in 1 of 4 places")
    with_class = pd.concat([there, pd.DataFrame({"request": ["class-0"], "left": [10.0]})])
    assert "in 1 of 4 places" in show._distance(row, with_class)  # classes have a number of their own


def test_who_is_under_no_rule_cannot_give_up(ranked):
    told = tables.ranking_table(ranked).set_index("method")["gave up"]
    assert set(told[["Natural", "SISA", "Destroyed", "do nothing (Original)"]]) == {"–"}
    assert told["PUF-Special"].endswith(" %")


def test_a_place_is_ordered_by_what_is_left_whatever_the_size_of_crowds(frame):
    """Fewer models have a higher floor, and a higher KLoM at the same distance."""
    here = frame.copy()
    few = here.method == "PUF-Special"
    here.loc[few, ["klom_forget", "left"]] = [1e3, 1.0]
    shown = tables.request_table(here, here.setting.iloc[0], here.request.iloc[0])
    left = [float(text.split(" [")[0].lstrip("> ").replace("∞", "inf")) for text in shown["left, %"] if text != "–"]
    assert left == sorted(left)
    assert list(shown.method).index("PUF-Special") < list(shown.method).index("Natural")


def test_five_questions_choose(frame):
    everybody = {"exchange": "server", "labels": True, "history": True, "guarantee": "none", "kind": "classes"}
    found = show.which(frame, **everybody)
    assert {"SISA", "PUF-Special", "Natural"} <= set(found.method)
    assert "MoDe" not in set(found.method)  # refuses classes
    by_name = found.set_index("method")
    assert by_name["told nearer in"]["SISA"].endswith(" of 1")
    assert by_name["gave up"]["SISA"] == "–"
    exact = show.which(frame, **{**everybody, "guarantee": "exact"})
    assert list(exact.method) == ["SISA"]
    assert "Rewind" not in set(show.which(frame, **{**everybody, "history": False}).method)
    assert "FedAU" not in set(show.which(frame, **{**everybody, "labels": False}).method)


def test_the_questions_are_answered_from_the_file_as_from_the_runs(frame, tmp_path, monkeypatch):
    """As dropdowns would ask them."""
    asked, shown = {}, []
    monkeypatch.setattr("ipywidgets.interact", lambda answer, **controls: asked.update(controls, answer=answer))
    monkeypatch.setattr(show, "show_table", lambda *of: of)
    monkeypatch.setattr(show, "display", shown.append)
    show.questions(save_table(tables.saved(frame), tmp_path / "runs.csv", "digits, many"))
    answer = asked.pop("answer")
    assert {name: control.value for name, control in asked.items()} == show.DEFAULT
    answer(**show.DEFAULT)
    answer(**{**show.DEFAULT, "exchange": "peers", "guarantee": "exact"})
    (found, source, caption), none = shown
    fitting = show.which(frame, **show.DEFAULT)
    pd.testing.assert_frame_equal(found, fitting.head(ROWS))
    assert source == "digits, many"
    assert caption == f"server, client, guarantee: none. The nearest {len(found)} of {len(fitting)}"
    assert none.data == show.NONE_FITS


def test_the_binned_form_has_its_two_faults():
    table = tables.binned_table().set_index("unlearned models' margins")
    assert float(table["binned, as published"].iloc[0]) > 0.5
    assert table.iloc[-1].tolist()[:2] == ["∞", "0"]


# --- somebody else's method ---

SCRATCH = """
from fu_core import register

@register("Halfway", paper="a scratch file", colour="#123456")
def halfway(trained, deletion, config):
    return 0.5 * trained.model
"""


def test_a_method_from_a_scratch_file_is_in_table_and_figure(tmp_path, monkeypatch):
    (tmp_path / "scratch_method.py").write_text(SCRATCH, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry.methods()))
    import scratch_method  # noqa: F401

    e = experiment(methods=["Natural", "Halfway"])
    assert {c["plugin"] for _, c in e.unlearned()} == {"", "scratch_method"}
    study = Study(e, RecordStore(tmp_path / "records"), jobs=1)
    frame = results.of_runs(study.run("unlearning"), study.run("judging"))
    ranked = results.ranking(frame)
    assert "Halfway" in set(tables.ranking_table(ranked).method)
    figure = figures.map_figure(ranked)
    assert any("Halfway" in text.get_text() for text in figure.axes[0].texts)
    plt.close(figure)
    assert "a scratch file" in show.paragraphs(frame, ranked)
    del sys.modules["scratch_method"]
