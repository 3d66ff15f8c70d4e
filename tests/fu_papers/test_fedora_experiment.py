"""FedORA's parameters: every bad one is refused by name, and configs name exactly the runs that are needed."""

import itertools
import json
import re
from dataclasses import asdict, fields, replace

import pytest

from fu_core.data import NAMES
from fu_core.errors import ConfigError
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.fedora import FedORA
from fu_papers.fedora.grid import (
    ABLATIONS,
    BASELINES,
    FORMS,
    METHODS,
    PER_DATASET,
    READINGS,
    REFERENCES,
    Cell,
    Experiment,
    Task,
)
from fu_papers.fedora.runs import TRAINING_KEYS
from fu_papers.lab.record import config_key
from fu_papers.lab.reproduce import declared_parameters, load_profile, notebooks, plan, profiles
from fu_papers.problems import plain_fields

TABLE, DIGITS = "breast_cancer/mlp", "digits/mlp"
SEEDS = [3, 5]
E = Experiment(
    "test", [TABLE, DIGITS], SEEDS, classes=[[1], [2, 5, 2]], percents=[[50], [50, 25, 75]], n_train=[200, 210],
    n_val=[40, 50], n_test=[60, 100], epochs=[2, 3], lr=[0.05, 0.1], batch_size=[32, 25], few=[20, 1],
)  # fmt: skip
MAIN, WHOLE = Task(DIGITS, "classes-2-50"), Task(DIGITS, "classes-2-100")
CALIBRATED = "FedORA calibrated"
EVERY = (*REFERENCES, *METHODS)


def needed(config, *, retrain):
    """The config of the training that an unlearning starts from, or is compared with; as fedora.trained_parties."""
    poison = config["poison"] and not retrain
    request = config["request"] if retrain or poison else "none"
    own = {name: config[name] for name in TRAINING_KEYS}
    return config_key(own | {"exclude": retrain, "poison": poison, "request": request})


def trained(e=E):
    return {config_key(config) for config in e.trainings()}


def labels(group, task=MAIN):
    """What a group holds of a task: {label: config} of the first seed, without poison."""
    cells = E.cells().items()
    return {c.label: config for c, config in cells if c[:3] == (group, task, SEEDS[0]) and not c.poison}


def difference(config, other):
    """{what differs: its value}, FedORA's options among the rest."""
    a, b = ({**c, **c.get("fedora", {})} for c in (config, other))
    assert set(a) == set(b)
    return {name: a[name] for name in a if a[name] != b[name] and name != "fedora"}


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"datasets": []}, "datasets must list at least one value, each once, got []"),
        ({"datasets": [DIGITS, DIGITS]}, "datasets must list at least one value, each once"),
        ({"datasets": ["digits", DIGITS]}, "datasets must look like 'mnist/cnn', got 'digits'"),
        ({"datasets": [TABLE, "digits/iid/mlp"]}, "must look like 'mnist/cnn', got 'digits/iid/mlp'"),
        ({"datasets": [TABLE, "digits/mpl"]}, "bottom of 'digits/mpl' must be one of"),
        ({"seeds": []}, "seeds must list at least one value"),
        ({"seeds": [1, 1]}, "seeds must list at least one value, each once, got [1, 1]"),
        ({"weights": []}, "weights must list at least one value"),
        ({"ratios": [0.1, 0.1]}, "ratios must list at least one value, each once, got [0.1, 0.1]"),
        ({"classes": [[1], [2, 5]]}, "classes and percents of 'digits/mlp' must be equally many, got [2, 5]"),
        ({"classes": [[], [2]], "percents": [[], [50]]}, "classes and percents of 'breast_cancer/mlp' must be equally"),
        ({"classes": [[0], [2, 5, 2]]}, "classes must be a whole number >= 1, got 0"),
        ({"classes": [[1.5], [2, 5, 2]]}, "classes must be a whole number >= 1, got 1.5"),
        ({"percents": [[0], [50, 25, 75]]}, "percents must lie between 0 and 100, got 0"),
        ({"percents": [[100], [50, 25, 75]]}, "percents must lie between 0 and 100, got 100"),
        ({"lr": [0.05, 0.0]}, "lr must be a finite number > 0, got 0.0"),
        ({"lr_decay": 0.0}, "lr_decay must be a finite number > 0, got 0.0"),
        ({"momentum": -0.1}, "momentum and weight_decay must be >= 0, got -0.1"),
        ({"batch_size": [32, 0]}, "batch_size must be a whole number >= 1, got 0"),
        ({"weight": -1.0}, "weight must be a finite number > 0, got -1.0"),
        ({"weights": [1.0, 0.0]}, "weight must be a finite number > 0, got 0.0"),
        ({"tau": 0.0}, "tau must be a finite number > 0, got 0.0"),
        ({"sigma": float("nan")}, "sigma must be a finite number > 0, got nan"),
        ({"mu": -0.1}, "mu must be >= 0, got -0.1"),
        ({"iterations": 0}, "iterations must be a whole number >= 1, got 0"),
        ({"ratio": 2.0}, "ratio must lie in 0..1, got 2.0"),
        ({"ratios": [0.5, 1.5]}, "ratio must lie in 0..1, got 1.5"),
        ({"few_ratios": [-0.1]}, "ratio must lie in 0..1, got -0.1"),
        ({"ga_lr": 0.0}, "ga_lr must be a finite number > 0, got 0.0"),
        ({"ga_epochs": 0}, "ga_epochs must be a whole number >= 1, got 0"),
        ({"ico_scale": -1.0}, "ico_scale must be a finite number > 0, got -1.0"),
        ({"ico_share": 0.0}, "ico_share must lie in (0, 1], got 0.0"),
        ({"ico_share": 1.1}, "ico_share must lie in (0, 1], got 1.1"),
        ({"cvfu_epochs": 1.5}, "cvfu_epochs must be a whole number >= 1, got 1.5"),
        ({"party_noise": 0.0}, "party_noise must be a finite number > 0, got 0.0"),
        ({"clip": 0.0}, "clip must be a finite number > 0, got 0.0"),
        ({"delta": 0.0}, "delta must be a finite number > 0, got 0.0"),
        ({"repeats": 0}, "repeats must be a whole number >= 1, got 0"),
        ({"epochs": [3, 0]}, "epochs must be a whole number >= 1, got 0"),
        ({"n_val": [0, 40]}, "n_val must be a whole number >= 1, got 0"),
        ({"n_train": [-1, 0]}, "n_train must be a whole number >= 0, got -1"),
        ({"few": [0]}, "few must be a whole number >= 1, got 0"),
        ({"few": []}, "few must list at least one value"),
        ({"embedding_noise": []}, "embedding_noise must list at least one value"),
        ({"embedding_noise": [-1.0]}, "embedding_noise must be a finite number > 0, got -1.0"),
        ({"sigma_vector": 0.0}, "sigma_vector must be a finite number > 0, got 0.0"),
        ({"threshold": 1.5}, "threshold must be at most 1, got 1.5"),
        ({"delta": 2.0}, "delta must be at most 1, got 2.0"),
    ],
)
def test_a_parameter_out_of_range_is_one_error_that_names_it(change, says):
    with pytest.raises(ValueError, match=re.escape(says)) as info:
        replace(E, **change)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("name", PER_DATASET)
def test_a_list_with_a_value_too_few_or_too_many_is_named(name):
    values = list(getattr(E, name))
    for wrong in (values[:1], [*values, values[0]]):
        says = f"{name} must have one value per data set (2), got {wrong}"
        with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
            replace(E, **{name: wrong})


@pytest.mark.parametrize(
    "change",
    [{"ico_share": 1.0}, {"ratio": 0.0}, {"ratios": [0.0, 1.0]}, {"mu": 0.0}, {"momentum": 0.0}, {"iterations": 1}],
)
def test_the_last_value_in_range_is_accepted(change):
    assert asdict(replace(E, **change)) == asdict(E) | change


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match=r"method must be one of .* got 'FedORAA'; did you mean 'FedORA'\?"):
        E.unlearning(MAIN, 3, "FedORAA", poison=False)


# --- profiles --------------------------------------------------------------------------------------------------------


def test_there_are_three_profiles():
    assert profiles("fedora") == ["laptop", "paper", "quick"]


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_gives_every_parameter_and_fits_the_notebook(profile):
    values = load_profile("fedora", profile)
    assert list(values) == [f.name for f in fields(Experiment) if f.name != "profile"]
    e = Experiment(profile=profile, **values)
    assert asdict(e) == {"profile": profile, **values}
    assert {dataset.split("/")[0] for dataset in e.datasets} <= set(NAMES)
    assert {0.05, 1.0} <= set(e.ratios)  # claim F7 compares them
    parameters = plan("fedora", profile, {}).parameters
    parameters.pop("interactive", None)  # nobody is there to move sliders
    assert {*parameters, "interactive"} == set(declared_parameters(notebooks()["fedora"]))


def test_the_quick_profile_says_what_the_notebook_says():
    declared = declared_parameters(notebooks()["fedora"])
    values = load_profile("fedora", "quick")
    assert {name: declared[name].default for name in values} == values


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_tasks_are_the_settings_and_the_same_classes_with_all_their_samples_once():
    requests = ["classes-2-50", "classes-5-25", "classes-2-75"]
    assert E.sample_tasks(DIGITS) == [Task(DIGITS, request) for request in requests]
    assert E.label_tasks(DIGITS) == [Task(DIGITS, "classes-2-100"), Task(DIGITS, "classes-5-100")]
    assert [task.labels for task in (MAIN, WHOLE, MAIN._replace(request="samples-100"))] == [False, True, False]
    assert E.main == MAIN


def test_binary_data_sets_have_no_label_tasks():
    assert E.label_tasks(TABLE) == []
    assert not any(cell.task.labels for cell in E.cells() if cell.task.dataset == TABLE)


def test_label_tasks_have_no_calibrated_row_and_sample_tasks_do():
    methods = {task: {c.method for c in E.cells() if (c.group, c.task) == ("main", task)} for task in (MAIN, WHOLE)}
    assert methods[MAIN] == set(EVERY)
    assert methods[WHOLE] == set(EVERY) - {CALIBRATED}


def test_each_data_sets_first_settings_and_all_variations_of_the_main_one_have_a_poisoned_twin():
    cells = E.cells()
    poisoned = {cell.task for cell in cells if cell.poison}
    noise = MAIN._replace(noise=0.2)
    private = [MAIN._replace(dp_std=std) for std in E.embedding_noise] + [MAIN._replace(dp_std=0.1, dp_clip=1.0)]
    assert poisoned == {Task(TABLE, "classes-1-50"), MAIN, WHOLE, noise, *private}
    for cell in cells:
        if cell.task in poisoned:
            assert cell._replace(poison=not cell.poison) in cells


# --- configs ---------------------------------------------------------------------------------------------------------


def test_configs_are_plain_json_and_2_and_2_point_0_name_the_same_run():
    whole = {"lr": [1, 2], "sigma_vector": 10, "weights": [1, 5], "ratios": [0, 1], "few_ratios": [0], "clip": 1,
             "embedding_noise": [5, 1], "party_noise": 1, "lr_decay": 1, "threshold": 1, "mu": 0}  # fmt: skip
    floating = {k: [float(x) for x in v] if isinstance(v, list) else float(v) for k, v in whole.items()}
    found = []
    for change in (whole, floating):
        e = replace(E, **change)
        configs = [*e.trainings(), *e.cells().values(), *e.speeds().values()]
        assert json.loads(json.dumps(configs)) == configs
        found.append([config_key(config) for config in configs])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", sorted(set(PER_DATASET) - {"classes", "percents"}))
def test_a_value_per_data_set_ends_in_the_configs_of_its_data_set(name):
    first, second = getattr(E, name)
    assert first != second
    for config in (*E.trainings(), *E.cells().values(), *E.speeds().values()):
        value = first if config["dataset"] == "breast_cancer" else second
        assert config[name] == value
        if name == "batch_size" and "fedora" in config:
            assert config["fedora"]["batch_size"] == value


def test_a_training_config_holds_data_net_local_training_seed_and_request_and_nothing_else():
    config = E.training(MAIN, 5, exclude=True, poison=False)
    local = {f.name for f in fields(ClientOpt)}
    data = {"dataset", "bottom", "n_train", "n_val", "n_test", "noise", "dp_std", "dp_clip"}
    assert set(config) == set(TRAINING_KEYS) == data | local | {"seed", "request", "exclude", "poison"}
    assert config["epochs"] == 3
    assert ClientOpt(**{name: config[name] for name in local - {"epochs"}}) == E.local(DIGITS)


# --- trainings -------------------------------------------------------------------------------------------------------


def test_every_training_that_an_unlearning_needs_is_made_and_nothing_else_and_nothing_twice():
    cells = E.cells().values()
    wanted = {needed(config, retrain=retrain) for config in cells for retrain in (False, True)}
    assert wanted == trained()
    assert len(E.trainings()) == len(trained())


def test_a_clean_original_does_not_depend_on_the_request_and_a_poisoned_one_does():
    for poison, same in ((False, True), (True, False)):
        a, b = (E.unlearning(task, 3, "GA", poison=poison) for task in (MAIN, WHOLE))
        assert (needed(a, retrain=False) == needed(b, retrain=False)) is same
        assert needed(a, retrain=True) != needed(b, retrain=True)
    originals = [c for c in E.trainings() if not (c["exclude"] or c["poison"] or c["noise"] or c["dp_std"])]
    assert sorted((c["dataset"], c["seed"]) for c in originals) == [
        (name, seed) for name in ("breast_cancer", "digits") for seed in SEEDS
    ]


def test_retraining_of_a_poisoned_task_is_the_clean_retraining():
    clean, poisoned = (E.unlearning(MAIN, 3, "Retrain", poison=poison) for poison in (False, True))
    assert needed(clean, retrain=True) == needed(poisoned, retrain=True)
    assert not any(config["poison"] for config in E.trainings() if config["exclude"])


def test_what_does_not_concern_training_repeats_none():
    change = {"threshold": 0.5, "tau": 0.3, "sigma_vector": 2.0, "ga_lr": 0.5, "ico_share": 0.1, "weights": [3.0],
              "ratios": [0.2], "repeats": 9, "delta": 0.01, "iterations": 3, "few_ratios": [0.5]}  # fmt: skip
    assert trained(replace(E, **change)) == trained()
    originals = {needed(E.unlearning(task, 3, "GA", poison=False), retrain=False) for task in (MAIN, WHOLE)}
    assert originals < trained(replace(E, classes=[[1], [3, 5, 3]])) & trained()


# --- cells -----------------------------------------------------------------------------------------------------------


def test_every_task_seed_and_method_has_its_cell():
    cells = E.cells()
    for dataset in E.datasets:
        for task, seed, method in itertools.product(
            (*E.sample_tasks(dataset), *E.label_tasks(dataset)), SEEDS, METHODS
        ):
            if not (task.labels and method == CALIBRATED):
                config = cells[Cell("main", task, seed, method, method, False)]
                assert config == E.unlearning(task, seed, method, poison=False)
    assert {cell.seed for cell in cells} == set(SEEDS)
    for cell, config in cells.items():
        assert (config["method"], config["seed"], config["poison"]) == (cell.method, cell.seed, cell.poison)
        assert (config["request"], config["exclude"]) == (cell.task.request, False)
        assert tuple(config[name] for name in ("noise", "dp_std", "dp_clip")) == cell.task[2:]


def test_a_method_has_its_own_parameters_and_no_other_methods():
    shared = set(E.training(MAIN, 3, exclude=False, poison=False)) | {"method"}
    own = {"GA": {"ga_lr", "ga_epochs"}, "ICO": {"ico_scale", "ico_share"}, "CVFU": {"cvfu_epochs", "cvfu_lr"}}
    for method in EVERY:
        config = E.unlearning(MAIN, 3, method, poison=False)
        assert set(config) - shared == ({"fedora"} if method in FORMS else own.get(method, set()))


def test_the_element_wise_dual_has_a_step_of_its_own():
    forms = {method: FedORA(**E.unlearning(MAIN, 3, method, poison=False)["fedora"]) for method in FORMS}
    assert forms["FedORA"] == forms[CALIBRATED] == E.settings(DIGITS)  # the threshold is measured in the run
    assert (forms["FedORA"].dual, forms["FedORA"].sigma) == ("scalar", E.sigma)
    assert forms["FedORA vector"] == replace(forms["FedORA"], dual="vector", sigma=E.sigma_vector)
    assert labels("readings")["element-wise dual"]["fedora"] == plain_fields(forms["FedORA vector"])


def test_ablations_and_readings_change_what_they_say_and_nothing_else():
    default = E.unlearning(MAIN, 3, "FedORA", poison=False)
    vector = {"dual": "vector", "sigma": E.sigma_vector}
    for group, choices in (("ablation", ABLATIONS), ("readings", READINGS | {"element-wise dual": vector})):
        found = labels(group)
        assert list(found) == list(choices)
        for label, change in choices.items():
            assert difference(found[label], default) == change
    assert {label: change for label, change in ABLATIONS.items() if change} == {
        "w/o UL": {"unlearn": False},
        "w/o AB": {"ratio": 1.0},
        "w/o AS": {"adaptive": False},
    }


def test_sweeps_change_their_value_and_nothing_else():
    default = E.unlearning(MAIN, 3, "FedORA", poison=False)
    for group, name in (("weights", "weight"), ("ratios", "ratio")):
        values = getattr(E, group)
        found = labels(group)
        assert list(found) == [f"{value:g}" for value in values]
        for value, config in zip(values, found.values(), strict=True):
            assert difference(config, default) == ({} if value == getattr(E, name) else {name: value})


def test_few_samples_noise_and_privacy_have_references_of_their_own():
    for count in E.few:
        found = labels("small", MAIN._replace(request=f"samples-{count}"))
        assert set(found) == {*REFERENCES, *(f"{ratio:g}" for ratio in E.few_ratios)}
        assert found["0.01"]["fedora"]["ratio"] == 0.01
    assert set(labels("noisy", MAIN._replace(noise=0.2))) == set(EVERY)
    levels = [(std, 0.0) for std in E.embedding_noise] + [(min(E.embedding_noise), E.clip)]
    assert list(dict.fromkeys(c.task[3:] for c in E.cells() if c.group == "private")) == levels
    for std, clip in levels:
        assert set(labels("private", MAIN._replace(dp_std=std, dp_clip=clip))) == {*REFERENCES, "FedORA"}


def test_time_is_taken_of_each_data_sets_first_setting_with_everybodys_parameters():
    speeds = E.speeds()
    assert list(speeds) == [Task(TABLE, "classes-1-50"), MAIN]
    for task, config in speeds.items():
        for method in (*BASELINES, "FedORA"):
            own = E.unlearning(task, SEEDS[0], method, poison=False) | {"method": "all"}
            assert own.items() <= config.items()
        assert config["repeats"] == E.repeats
        assert needed(config, retrain=False) in trained()
