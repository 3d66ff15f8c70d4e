"""HF-KCU's parameters: every bad one is refused by name, and configs name exactly the runs that are needed."""

import json
from dataclasses import asdict, fields, replace

import pytest

from fu_core.errors import ConfigError
from fu_papers.hf_kcu.grid import ABLATIONS, CHOICES, METHODS, REFERENCES, TARGET, Experiment
from fu_papers.hf_kcu.runs import TRAINING_KEYS
from fu_papers.lab.record import config_key
from fu_papers.lab.reproduce import declared_parameters, load_profile, notebooks, profiles
from fu_papers.problems import Setting

MAIN, OTHER, NET = "digits/dirichlet-0.5/mlp", "digits/iid/mlp", "digits/iid/tiny_cnn"
E = Experiment(
    "test", [MAIN, OTHER], [NET], seeds=[0, 1], sweep_seeds=[0], clients=6, n_train=120, n_attacker=100,
    alphas=[0.5, 1.0], client_counts=[6, 9], curvature_samples=20, nets_n_train=60, nets_curvature_samples=10,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"settings": []}, "settings must list at least one value"),
        ({"settings": ["digits/mlp"]}, "settings must look like"),
        ({"nets": ["digits/iid/vit"]}, "model of 'digits/iid/vit'"),
        ({"seeds": [0, 0]}, "seeds must list at least one value, each once"),
        ({"sweep_seeds": [5]}, "sweep_seeds must be among seeds"),
        ({"clients": 2}, "clients"),
        ({"rounds": 0}, "rounds"),
        ({"n_train": -1}, "n_train"),
        ({"n_attacker": 0}, "n_attacker"),
        ({"shards": 7}, r"shards must be at most clients \(6\), got 7"),
        ({"alphas": [0.0]}, "alphas"),
        ({"client_counts": [1]}, "client_counts"),
        ({"calibration": 1.5}, "calibration must be at most 1"),
        ({"poison_fraction": 0.0}, "poison_fraction"),
        ({"damping": -0.1}, "damping must be >= 0"),
        ({"dampings": [-1.0]}, "damping must be >= 0"),
        ({"betas": [0.0]}, "beta"),
        ({"iters_sweep": [0]}, "iters"),
        ({"matrix": "ggm"}, "matrix must be one of"),
        ({"optimiser": "sgdd"}, "optimiser"),
        ({"curvature_samples": -5}, "curvature_samples"),
    ],
)
def test_a_parameter_out_of_range_is_one_error_that_names_it(change, says):
    with pytest.raises(ValueError, match=says):
        replace(E, **change)


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match="HF-KUC"):
        E.unlearning(MAIN, 0, "HF-KUC")


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_gives_every_parameter_and_makes_an_experiment(profile):
    assert profile in profiles("hf_kcu")
    values = load_profile("hf_kcu", profile)
    assert list(values) == [f.name for f in fields(Experiment) if f.name != "profile"]
    e = Experiment(profile=profile, **values)
    assert (e.rounds, e.epochs, e.iters, e.damping, e.beta) == (20, 5, 10, 0.01, 0.01)  # as in the paper


def test_the_quick_profile_says_what_the_notebook_says():
    declared = declared_parameters(notebooks()["hf_kcu"])
    values = load_profile("hf_kcu", "quick")
    assert {name: declared[name].default for name in values} == values


def test_configs_are_plain_json_and_2_and_2_point_0_name_the_same_run():
    for config in (*E.cells().values(), *E.trainings(), *E.speeds().values()):
        assert json.loads(json.dumps(config)) == config
    whole, floating = (replace(E, epochs=epochs, lr=lr).training(MAIN, 0) for epochs, lr in ((2, 1), (2.0, 1.0)))
    assert config_key(whole) == config_key(floating)


def test_updates_are_stored_only_where_fed_eraser_is_run():
    assert E.training(MAIN, 0)["history"] == 2
    assert E.training(MAIN, 0, [TARGET])["history"] == 0
    assert E.training(OTHER, 0)["history"] == 0
    assert E.training(MAIN, 0, clients=9)["history"] == 0
    assert E.training(MAIN, 0, **E.poisoned())["history"] == 0


def test_the_trainings_are_those_of_the_cells_and_none_comes_twice():
    trained = [config_key(config) for config in E.trainings()]
    assert len(set(trained)) == len(trained)
    needed = set()
    for config in E.cells().values():
        own = {key: config[key] for key in TRAINING_KEYS}
        needed.add(config_key(own))
        needed.add(config_key(own | {"exclude": [TARGET], "poison": 0.0, "trigger": [], "history": 0}))
    shards = set(trained) - needed
    assert needed <= set(trained)
    assert len(shards) == 3 * len(E.seeds)
    assert all(len(config["exclude"]) > 1 for config in E.trainings() if config_key(config) in shards)


def test_nobody_retrains_poisoned_or_with_a_history():
    for config in E.trainings():
        if TARGET in config["exclude"]:
            assert not config["poison"]
            assert not config["history"]


def test_a_sweeps_middle_names_the_runs_of_the_main_table():
    cells = {(c.group, c.label, c.setting, c.seed, c.method): config_key(config) for c, config in E.cells().items()}
    for method in (*REFERENCES, "HF-KCU", "HF-KCU printed"):
        main = cells["methods", method, MAIN, 0, method]
        assert cells["alpha", "0.5", MAIN, 0, method] == main
        assert cells["clients", "6", MAIN, 0, method] == main
    for method in ("HF-KCU", "HF-KCU printed"):
        main = cells["methods", method, MAIN, 0, method]
        assert cells["damping", "0.01", MAIN, 0, method] == main
        assert cells["iters", "10", MAIN, 0, method] == main
        assert cells["beta", "0.01", MAIN, 0, method] == main
    assert cells["choice", "corrected", MAIN, 0, "HF-KCU"] == cells["methods", "HF-KCU", MAIN, 0, "HF-KCU"]
    printed = cells["methods", "HF-KCU printed", MAIN, 0, "HF-KCU printed"]
    assert cells["ablation", "w/o influence decay (= Algorithm 1)", MAIN, 0, "HF-KCU printed"] == printed


def test_retrain_and_do_nothing_are_in_every_group_with_trainings_of_its_own():
    for group in ("methods", "backdoor", "alpha", "clients", "nets"):
        methods = {cell.method for cell in E.cells() if cell.group == group}
        assert {*REFERENCES, "HF-KCU", "HF-KCU printed"} <= methods
    assert {cell.method for cell in E.cells() if cell.setting == MAIN} >= {*REFERENCES, *METHODS}


def test_every_ablation_and_choice_changes_what_it_says():
    for changes, form in ((ABLATIONS, "printed"), (CHOICES, "corrected")):
        base = asdict(E.hf_kcu(form))
        for change in changes.values():
            assert asdict(E.hf_kcu(form, **change)) == base | change
    assert E.hf_kcu("printed").curvature_samples is None  # Algorithm 1 uses all of the client's data
    assert E.hf_kcu().curvature_samples == 20
    assert replace(E, curvature_samples=0).hf_kcu().curvature_samples is None


def test_every_table_with_a_speed_up_has_its_timing():
    speeds = E.speeds()
    assert speeds["main"]["timed_rounds"] == E.rounds
    assert set(speeds["main"]["baselines"]) == {"NaiveGA", "FedEraser", "SISA"}
    assert {OTHER, NET, "alpha 0.5", "alpha 1", "clients 6", "clients 9"} < set(speeds)
    for damping in E.dampings:
        assert f"HF-KCU printed, damping {damping:g}" in speeds["main"]["variants"]
    net = speeds[NET]
    assert (net["timed_rounds"], net["schedule_rounds"], net["schedule_epochs"]) == (1, 20, 5.0)
    assert net["variants"]["HF-KCU"]["curvature_samples"] == 10
    assert Setting.parse(NET).model == net["model"]
