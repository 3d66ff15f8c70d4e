"""HF-KCU's grid: configs name exactly the runs that are needed, and what is changed is what a row says."""

import json

import pytest

from fu_core.errors import ConfigError
from fu_core.unlearning.method import method as registered
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES
from fu_papers.hf_kcu import runs, stages
from fu_papers.hf_kcu.grid import (
    ASCENT,
    BESIDE,
    FORMS,
    LAST_LAYER,
    MATCHED,
    METHODS,
    OPTIONS,
    PEERS,
    REQUEST,
    ROUND,
    SAME_START,
    STORED,
    TRUST_REGION,
    TUNED,
    shards_without_target,
)
from fu_papers.hf_kcu.variants import ABLATIONS, CHOICES, LENGTHS
from fu_papers.lab.record import config_key
from fu_papers.problems import Setting
from fu_papers.study import Cell
from tests.hf_kcu_lab import experiment

MAIN, OTHER, NET = "digits/dirichlet-0.5/mlp", "digits/iid/mlp", "digits/iid/tiny_cnn"
E = experiment(
    settings=[MAIN, OTHER], nets=[NET], seeds=[0, 1], clients=6, n_train=120, n_attacker=100, alphas=[0.5, 1.0],
    client_counts=[6, 9], curvature_samples=20, nets_n_train=60, nets_rounds=2, nets_epochs=1.0,
    nets_curvature_samples=10,
)  # fmt: skip
TRAININGS = stages.needed(E, runs.train).values()


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match="HF-KUC"):
        E.unlearning(MAIN, 0, "HF-KUC")


def test_configs_are_plain_json_and_2_and_2_point_0_name_the_same_run():
    for config in (*E.runs().values(), *TRAININGS, *E.speeds().values()):
        assert json.loads(json.dumps(config)) == config
    whole, floating = (E.changed(epochs=epochs, lr=lr).training(MAIN, 0) for epochs, lr in ((2, 1), (2.0, 1.0)))
    assert config_key(whole) == config_key(floating)


def test_updates_are_stored_only_where_fed_eraser_is_run():
    assert E.training(MAIN, 0)["history"] == 2
    assert E.training(MAIN, 0, REQUEST)["history"] == 0
    assert E.training(OTHER, 0)["history"] == 0
    assert E.training(MAIN, 0, clients=9)["history"] == 0
    assert E.training(MAIN, 0, **E.poisoned())["history"] == 0


def test_the_trainings_are_those_of_the_cells_and_none_comes_twice():
    trained = [config_key(config) for config in TRAININGS]
    assert len(set(trained)) == len(trained)
    needed = set()
    for config in E.runs().values():
        own = runs.training_of(config)
        needed.add(config_key(own | {"request": "none"}))
        needed.add(config_key(own | {"request": "client-0", "poison": 0.0, "trigger": [], "history": 0}))
    shards = set(trained) - needed
    assert needed <= set(trained)
    assert len(shards) == 3 * len(E.seeds)
    assert all(config["request"].count("-") > 1 for config in TRAININGS if config_key(config) in shards)


def test_a_shard_is_trained_without_everybody_else():
    """Six clients in three groups of two: client 0's partner alone, and two pairs without the four others."""
    config = E.unlearning(MAIN, 0, "SISA")
    shards = {name: need[1] for name, need in runs.needs(config).items() if name.startswith("shard ")}
    groups = shards_without_target(6, 3, 0)
    assert sorted(len(group) for group in groups) == [1, 2, 2]
    assert 0 not in {i for group in groups for i in group}
    for group in groups:
        gone = "-".join(str(i) for i in range(6) if i not in group)
        assert shards[f"shard {'-'.join(map(str, group))}"]["request"] == f"client-{gone}"
    assert len(shards) == 3


def test_nobody_retrains_poisoned_or_with_a_history():
    for config in TRAININGS:
        if config["request"] != "none":
            assert not config["poison"]
            assert not config["history"]


def test_the_attackers_federations_are_the_same_for_every_method_and_seed():
    assert [config["seed"] for config in stages.needed(E, runs.shadow_federation).values()] == [0, 1, 2, 3]
    attacked = [config for config in E.runs().values() if config["attack"]]
    assert {Setting(*(c[n] for n in ("dataset", "split", "alpha", "model"))) for c in attacked} == {Setting.parse(MAIN)}
    assert not any(config["poison"] for config in attacked)


def test_a_sweeps_middle_names_the_runs_of_the_main_table():
    keys = {cell: config_key(config) for cell, config in E.runs().items()}
    for method in (*REFERENCES, *FORMS):
        main = Cell("methods", MAIN, 0, REQUEST, method)
        assert keys[main._replace(group="alpha", label="0.5")] == keys[main]
        assert keys[main._replace(group="clients", label="6")] == keys[main]
    for method in FORMS:
        main = Cell("methods", MAIN, 0, REQUEST, method)
        assert keys[main._replace(group="iters", label="10")] == keys[main]
        for group, label in (("damping", "0.01"), ("beta", "0.01")):  # the corrected form chooses its own, and has none
            assert (keys[main._replace(group=group, label=label)] == keys[main]) == (method == "HF-KCU printed")
    corrected, printed = (Cell("methods", MAIN, 0, REQUEST, method) for method in ("HF-KCU", "HF-KCU printed"))
    assert keys[corrected._replace(group="choice", label="corrected")] == keys[corrected]
    clipped = keys[corrected._replace(group="choice", label="with adaptive scaling")]
    assert clipped == keys[corrected._replace(group="beta", label="0.01")]
    matched = corrected._replace(method=MATCHED)
    assert keys[matched._replace(group="choice", label="held-out length")] == keys[matched]
    assert keys[printed._replace(group="ablation", label="w/o influence decay (= Algorithm 1)")] == keys[printed]


def test_retrain_and_do_nothing_are_in_every_group_with_trainings_of_its_own():
    cells = E.runs()
    for group in ("methods", "backdoor", "alpha", "clients", "nets"):
        assert {*REFERENCES, *FORMS, *BESIDE} <= {cell.method for cell in cells if cell.group == group}
    assert {cell.method for cell in cells if cell.setting == MAIN} >= {*REFERENCES, *METHODS}


def test_a_second_retraining_is_the_retrain_run_of_the_next_seed_where_there_is_one():
    cells, controls = E.runs(), E.controls()
    for group, setting in (("methods", MAIN), ("methods", OTHER), ("backdoor", MAIN)):
        condition = "poisoned" if group == "backdoor" else ""
        for seed, other in ((0, 1), (1, 0)):
            place = Cell(group, setting, seed, REQUEST, AGAIN, condition=condition)
            assert cells[place] == cells[place._replace(seed=other, method="Retrain")]
    # a sweep of one seed: its middle is the main setting, whose next seed there is
    place = Cell("alpha", MAIN, 0, REQUEST, AGAIN, "0.5")
    assert cells[place] == cells[Cell("methods", MAIN, 1, REQUEST, "Retrain")]
    # elsewhere the retraining of the next seed is made, and nothing beside it
    place = Cell("alpha", E.with_alpha(1.0), 0, REQUEST, AGAIN, "1")
    assert place not in cells
    config = controls[place]
    assert (config["method"], config["seed"], config["alpha"]) == (AGAIN, 1, 1.0)
    assert runs.needs(config) == {"retrained": (runs.train, E.training(E.with_alpha(1.0), 1, REQUEST))}
    missing = [c for c in controls if c.method == AGAIN]
    assert {(c.group, c.label, c.seed) for c in missing} == {
        ("alpha", "1", 0),
        ("clients", "9", 0),
        ("nets", "tiny_cnn", 0),
    }


def test_a_retraining_from_the_same_weights_has_the_batches_of_the_next_seed_and_nothing_else_of_it():
    found = E.same_start()
    for seed, other in ((0, 1), (1, 0)):
        config = found[Cell("methods", MAIN, seed, REQUEST, SAME_START)]
        needs = runs.needs(config)
        assert needs["retrained"][1] == E.training(MAIN, seed, REQUEST)
        assert needs["other batches"] == (runs.train, {**E.training(MAIN, other, REQUEST), "init": seed})
    assert {(c.group, c.setting) for c in found} == {("methods", MAIN), ("methods", OTHER), ("nets", NET)}
    net = found[Cell("nets", NET, 0, REQUEST, SAME_START, "tiny_cnn")]
    assert net["rounds"] == E.nets_rounds  # the schedule of what it is the floor of
    assert net["batches"] == 1  # the sweep's one seed has the next of all


def test_peers_are_run_on_the_main_setting_and_stored_vectors_where_sweeps_are():
    e = E.changed(sweep_seeds=[1])
    cells = {cell for cell in e.runs() if cell.group == "peers"}
    assert {cell.method for cell in cells} == set(PEERS)
    assert {cell.seed for cell in cells if cell.method == STORED} == {1}
    assert {cell.seed for cell in cells if cell.method == TRUST_REGION} == {0, 1}
    stored = e.runs()[Cell("peers", MAIN, 1, REQUEST, STORED)]
    fn, config = runs.needs(stored)["vectors"]
    assert fn is runs.vectors
    assert config == {**E.training(MAIN, 1), "history": 0, "leaving": REQUEST}
    assert not [cell for cell in E.changed(peers=[]).runs() if cell.method in PEERS]


def test_prices_are_counted_for_every_client_of_every_setting():
    prices = E.prices()
    assert set(prices) == {MAIN, OTHER}
    for setting, config in prices.items():
        assert config["requests"] == [f"client-{i}" for i in range(E.clients)]
        assert config["variants"] == {method: E.timed(method) for method in FORMS}
        assert runs.the_original(config) == {"original": (runs.train, E.training(setting, 0))}


def test_prices_of_nets_are_counted_where_nets_train_as_long_as_the_main_setting():
    whole = E.changed(nets_rounds=E.rounds, nets_epochs=E.epochs, n_train=400, nets_n_train=400)
    net = whole.prices()[NET]
    assert (net["rounds"], net["schedule_rounds"], net["schedule_epochs"]) == (20, 20, 5.0)
    assert net["variants"]["HF-KCU"]["options"]["curvature_samples"] == 10
    for less in ({"nets_rounds": 19}, {"nets_epochs": 4}, {"nets_n_train": 399}):
        assert whole.changed(**less).nets_shortened
        assert NET not in whole.changed(**less).prices()


def test_with_a_single_seed_the_second_retraining_is_one_more():
    e = E.changed(seeds=[4], sweep_seeds=[4])
    assert {config["seed"] for cell, config in e.controls().items() if cell.method == AGAIN} == {5}
    assert list(stages.noise_floor(e)) == [(4, 5)]
    assert list(stages.noise_floor(E.changed(seeds=[3, 1, 2], sweep_seeds=[1]))) == [(1, 2), (1, 3), (2, 3)]


def test_every_block_with_a_retrain_has_all_controls_and_random_weights_start_from_no_training():
    cells, controls = E.runs(), E.controls()
    blocks = {c._replace(method="") for c in cells if c.method == "Retrain"}
    both = cells | controls
    for method in (*REFERENCES, AGAIN, DESTROYED):
        assert {c._replace(method="") for c in both if c.method == method} == blocks
    assert {c.method for c in controls} == {AGAIN, DESTROYED}
    assert not set(controls) & set(cells)
    for cell, config in controls.items():
        if cell.method == DESTROYED:
            compared = {"retrained"} | {f"shadow {s}" for s in range(4)} if config["attack"] else set()
            assert set(runs.needs(config)) == compared
            assert bool(config["attack"]) == (config["alpha"] == 0.5 and config["clients"] == 6 and not config["poison"]
                                              and config["model"] == "mlp")  # fmt: skip
            assert config["options"] == {}


def test_no_training_of_a_control_is_asked_of_the_stage_of_trainings():
    """So that a profile whose records are older can still be drawn."""
    of_runs = {config_key(need) for config in E.runs().values() for _, need in runs.needs(config).values()}
    assert {config_key(config) for config in TRAININGS} <= of_runs
    assert [stage.name for stage in stages.STAGES if stage.optional] == ["controls", "same start", "prices"]


def test_every_ablation_and_choice_changes_what_it_says():
    for changes, method in ((ABLATIONS, "HF-KCU printed"), (CHOICES, "HF-KCU"), (LENGTHS, MATCHED)):
        base = E.options(method)
        for change in changes.values():
            assert E.options(method, **change) == base | change
    assert E.options("HF-KCU printed")["curvature_samples"] is None  # Algorithm 1 uses all of the client's data
    assert E.options("HF-KCU")["curvature_samples"] == 20
    assert E.changed(curvature_samples=0).options("HF-KCU")["curvature_samples"] is None


def test_options_are_whole_and_those_of_our_parameters():
    """A method without a line in OPTIONS has what it registers."""
    e = E.changed(ga_epochs=7, calibration=0.25, shards=2, iters=3, beta=0.5, matrix="fisher")
    assert e.options("NaiveGA") == {"epochs": 7.0, "lr": None, "batch_size": None, "until_explosion": True}
    assert e.options("FedEraser") == {"calibration": 0.25, "norm_scope": "layer", "released_schedule": False}
    assert e.options("SISA") == {"shards": 2}
    assert [e.options("HF-KCU")[name] for name in ("iters", "beta", "matrix", "form")] == [
        3,
        0.5,
        "fisher",
        "corrected",
    ]
    assert e.options("HF-KCU")["damping"] is None  # chosen
    assert e.options(ASCENT) == e.options("HF-KCU")  # whose length it has
    assert e.changed(held_out=33).options(MATCHED) == e.options("HF-KCU") | {"held_out": 33}
    printed = e.options("HF-KCU printed")
    assert [printed[name] for name in ("iters", "beta", "matrix", "form")] == [3, 0.5, None, "printed"]
    of = {method: "HF-KCU" if method == ASCENT else method for method in OPTIONS}
    assert all(registered(of[method]).configured(**e.options(method)) is not None for method in OPTIONS)
    assert "FedAU" not in OPTIONS
    assert e.options("FedAU") == vars(registered("FedAU").configured())


def test_every_table_with_a_speed_up_has_its_timing():
    speeds = E.speeds()
    assert speeds["main"]["timed_rounds"] == E.rounds
    assert set(speeds["main"]["baselines"]) == {"NaiveGA", "FedEraser", "SISA"}
    assert {OTHER, NET, "alpha 0.5", "alpha 1", "clients 6", "clients 9"} < set(speeds)
    for damping in E.dampings:
        variant = speeds["main"]["variants"][f"HF-KCU printed, damping {damping:g}"]
        assert (variant["method"], variant["options"]["damping"]) == ("HF-KCU printed", damping)
    net = speeds[NET]
    assert (net["timed_rounds"], net["schedule_rounds"], net["schedule_epochs"]) == (1, 20, 5.0)
    assert (net["rounds"], net["epochs"]) == (2, 1.0)
    assert net["variants"]["HF-KCU"]["options"]["curvature_samples"] == 10
    assert Setting.parse(NET).model == net["model"]


# --- trials, and requests in turn ---

TRIED = E.changed(tuning_trials=3, held_out=20, natural_rounds=[2, 4], longest_sequence=3)


def test_every_method_has_as_many_trials_and_the_first_is_the_method_as_it_stands():
    for method in TRIED.all_tuned:
        tried = TRIED.tried(method)
        assert len(tried) == 3
        assert tried[0] == TRIED.options(method)
        assert len({json.dumps(one, sort_keys=True) for one in tried}) == 3
        for one in tried:
            json.dumps(one)
    assert [one["rounds"] for one in TRIED.tried(ROUND)] == [1, 2, 4]
    assert all(one["form"] == "printed" for one in TRIED.tried("HF-KCU printed"))
    assert all(one["held_out"] == 20 for one in TRIED.tried(MATCHED))


def test_trials_are_of_a_client_and_a_seed_that_nobody_judges():
    trials = TRIED.tuning()
    assert set(TRIED.all_tuned) == {*TUNED, LAST_LAYER, TRUST_REGION}  # stored vectors have nothing to choose
    assert len(trials) == 3 * len(TRIED.all_tuned)
    assert {config["seed"] for config in trials.values()} == {100}
    assert {config["request"] for config in trials.values()} == {"client-1"}
    judged = {(config["seed"], config["request"]) for config in TRIED.runs().values()}
    assert (100, "client-1") not in judged
    tuned = [config for cell, config in TRIED.runs().items() if cell.group == "tuned"]
    assert len(tuned) == len(TRIED.all_tuned) * len(E.seeds)
    known = {config_key(config) for config in trials.values()}
    for config in tuned:
        needed = [need for name, (_, need) in runs.needs(config).items() if name.startswith("trial ")]
        assert len(needed) == 3
        assert {config_key(need) for need in needed} <= known


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tuning_seed": 0}, "tuning_seed"),
        ({"tuning_client": 6}, "tuning_client"),
        ({"held_out": 60}, "held_out"),
        ({"longest_sequence": 5}, "longest_sequence"),
        ({"peers": ["Last layre"]}, "peers must be one of .*did you mean 'Last layer'"),
    ],
)
def test_what_cannot_be_tuned_or_left_is_named(change, named):
    with pytest.raises(ConfigError, match=named):
        TRIED.changed(**change)


def test_a_sequence_is_run_at_once_and_in_turn_and_judged_against_one_retraining():
    found = {cell: config for cell, config in TRIED.runs().items() if cell.group == "sequence"}
    assert {config["request"] for config in found.values()} == {"client-0-1", "client-0-1-2"}
    assert all(config["in_turn"] == (cell.condition == "in turn") for cell, config in found.items())
    turned = {cell.method for cell in found if cell.condition == "in turn"}
    assert turned == {"HF-KCU printed", "HF-KCU", MATCHED, ROUND}
    for config in found.values():
        assert runs.needs(config)["retrained"][1]["request"] == config["request"]
        assert config["attack"] == 0
    again = {cell.request for cell in TRIED.controls() if (cell.group, cell.method) == ("sequence", AGAIN)}
    assert again == {"client-0-1", "client-0-1-2"}
