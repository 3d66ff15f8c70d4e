"""FedORA's grid: configs name exactly the runs that are needed, and say what they say completely."""

import itertools
import json
from dataclasses import fields, replace

import pytest

from fu_core.errors import ConfigError
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.baselines.cvfu import CVFU
from fu_core.unlearning.baselines.ico import ICO
from fu_core.unlearning.baselines.vertical_ga import GA
from fu_core.unlearning.fedora import FedORA
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES
from fu_papers.fedora import runs, stages
from fu_papers.fedora.choices import ABLATIONS, CURVES, CURVES_OF_FORMS, READINGS, STEPS
from fu_papers.fedora.grid import (
    BASELINES,
    FORMS,
    LEAKING,
    METHODS,
    PEERS,
    PER_DATASET,
    PUBLISHED,
    Task,
    has_backdoor,
    refusal,
    trials_of,
    twin,
)
from fu_papers.fedora.runs import TRAINING_KEYS
from fu_papers.lab.record import config_key
from fu_papers.problems import plain_fields
from tests.fedora_lab import experiment

TABLE, DIGITS = "breast_cancer/mlp", "digits/mlp"
SEEDS = [3, 5]
E = experiment(
    datasets=[TABLE, DIGITS], seeds=SEEDS, classes=[[1], [2, 5, 2]], percents=[[50], [50, 25, 75]],
    n_train=[200, 210], n_val=[40, 50], n_test=[60, 100], epochs=[2, 3], lr=[0.05, 0.1], batch_size=[32, 25],
    few=[20, 1],
)  # fmt: skip
MAIN, WHOLE = Task(DIGITS, "classes-2-50"), Task(DIGITS, "classes-2-100")
CALIBRATED = "FedORA calibrated"
EVERY = (*REFERENCES, *METHODS)


def needed(config, name):
    """The key of the training that an unlearning starts from ("original"), or is compared with ("retrained")."""
    fn, training = runs.needs(config)[name]
    assert fn is runs.train
    return config_key(training)


def trained(e=E):
    return set(stages.trainings(e))


def task_of(cell):
    """The data set and the request of a cell, whatever the condition."""
    return Task(cell.setting, cell.request)


def labels(group, task=MAIN):
    """What a group holds of a task: {label, or the method: config} of the first seed, without poison."""
    return {
        cell.label or cell.method: config
        for cell, config in E.cells().items()
        if cell == task.cell(group, SEEDS[0], cell.method, cell.label)
    }


def difference(config, other):
    """{what differs: its value}, the method's options among the rest."""
    a, b = ({**c, **c["options"]} for c in (config, other))
    assert set(a) == set(b)
    return {name: a[name] for name in a if a[name] != b[name] and name != "options"}


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match=r"method must be one of .* got 'FedORAA'; did you mean 'FedORA'\?"):
        E.unlearning(MAIN, 3, "FedORAA")


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_tasks_are_the_settings_and_the_same_classes_with_all_their_samples_once():
    requests = ["classes-2-50", "classes-5-25", "classes-2-75"]
    assert E.sample_tasks(DIGITS) == [Task(DIGITS, request) for request in requests]
    assert E.label_tasks(DIGITS) == [Task(DIGITS, "classes-2-100"), Task(DIGITS, "classes-5-100")]
    assert [task.labels for task in (MAIN, WHOLE, MAIN._replace(request="samples-100"))] == [False, True, False]
    assert E.main == MAIN


def test_binary_data_sets_have_no_label_tasks():
    assert E.label_tasks(TABLE) == []
    assert not any(task_of(cell).labels for cell in E.cells() if cell.setting == TABLE)


def test_label_tasks_have_no_calibrated_row_and_sample_tasks_do():
    main = {cell for cell in E.cells() if cell.group == "main"}
    methods = {task: {cell.method for cell in main if task_of(cell) == task} for task in (MAIN, WHOLE)}
    assert methods[MAIN] == {*EVERY, AGAIN}
    assert methods[WHOLE] == {*EVERY, *PEERS, AGAIN} - {CALIBRATED}


def test_whatever_the_paper_prints_a_backdoors_success_of_has_a_poisoned_twin():
    cells = E.cells()
    private = [MAIN._replace(dp_std=std) for std in E.embedding_noise] + [MAIN._replace(dp_std=0.1, dp_clip=1.0)]
    assert E.private_tasks() == private
    clean = {cell for cell in cells if not has_backdoor(cell) and cell.method not in PEERS}
    without = {cell for cell in clean if twin(cell) not in cells}
    assert {cell.group for cell in without} == {
        "curve",
        "capped",
    }  # ours; printed in Tables IV to IX, Fig. 6 to 8
    assert {cell.group for cell in clean - without} == {
        "main", "noisy", "ablation", "readings", "weights", "ratios", "small", "private",
    }  # fmt: skip
    assert {twin(cell) for cell in clean} >= {cell for cell in cells if has_backdoor(cell)}


def test_conditions_are_told_in_words():
    assert MAIN.condition == ""
    assert MAIN._replace(noise=0.2).condition == "party noise 0.2"
    assert MAIN._replace(dp_std=5.0).condition == "embedding noise 5"
    assert MAIN._replace(dp_std=0.1, dp_clip=1.0).condition == "embedding noise 0.1 clipped to 1"
    assert MAIN._replace(split="4").condition == "4 parties"
    assert MAIN._replace(split="1+7").condition == "columns 1+7"
    cells = [task.cell("main", 3, "GA") for task in (MAIN, MAIN._replace(noise=0.2))]
    assert [twin(cell).condition for cell in cells] == ["backdoor", "party noise 0.2, backdoor"]
    assert [has_backdoor(cell) for cell in (*cells, *map(twin, cells))] == [False, False, True, True]


# --- configs ---------------------------------------------------------------------------------------------------------


def all_configs(e=E):
    return [*stages.trainings(e).values(), *e.cells().values(), *e.speeds().values()]


def test_configs_are_plain_json_and_2_and_2_point_0_name_the_same_run():
    whole = {"lr": [1, 2], "sigma_vector": 10, "weights": [1, 5], "ratios": [0, 1], "few_ratios": [0], "clip": 1,
             "embedding_noise": [5, 1], "party_noise": 1, "lr_decay": 1, "threshold": 1, "mu": 0}  # fmt: skip
    floating = {k: [float(x) for x in v] if isinstance(v, list) else float(v) for k, v in whole.items()}
    found = []
    for change in (whole, floating):
        configs = all_configs(E.changed(**change))
        assert json.loads(json.dumps(configs)) == configs
        found.append([config_key(config) for config in configs])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", sorted(set(PER_DATASET) - {"classes", "percents", "tuning_requests"}))
def test_a_value_per_data_set_ends_in_the_configs_of_its_data_set(name):
    first, second = getattr(E, name)
    assert first != second
    for config in all_configs():
        value = first if config["dataset"] == "breast_cancer" else second
        assert config[name] == value
        if name == "batch_size" and config.get("method") in FORMS:
            assert config["options"]["batch_size"] == value


def test_a_training_config_holds_data_net_local_training_seed_and_request_and_nothing_else():
    config = E.training(MAIN, 5, MAIN.request)
    local = {f.name for f in fields(ClientOpt)}
    data = {"dataset", "bottom", "n_train", "n_val", "n_test", "noise", "dp_std", "dp_clip", "split"}
    assert set(config) == set(TRAINING_KEYS) == data | local | {"seed", "request", "poison"}
    assert config["epochs"] == 3
    assert ClientOpt(**{name: config[name] for name in local - {"epochs"}}) == E.local(DIGITS)


# --- trainings -------------------------------------------------------------------------------------------------------


def test_every_training_that_an_unlearning_needs_is_made_and_nothing_else_and_nothing_twice():
    wanted = {needed(config, name) for config in E.cells().values() for name in ("original", "retrained")}
    assert wanted == trained()
    assert len({config_key(config) for config in stages.trainings(E).values()}) == len(stages.trainings(E))


def test_a_clean_original_does_not_depend_on_the_request_and_a_poisoned_one_does():
    for backdoor, same in ((False, True), (True, False)):
        a, b = (E.unlearning(task, 3, "GA", backdoor=backdoor) for task in (MAIN, WHOLE))
        assert (needed(a, "original") == needed(b, "original")) is same
        assert needed(a, "retrained") != needed(b, "retrained")
    plain = [c for c in stages.trainings(E).values() if not (c["noise"] or c["dp_std"])]
    originals = [c for c in plain if (c["request"], c["poison"]) == ("none", "")]
    assert sorted((c["dataset"], c["seed"]) for c in originals) == [
        (name, seed) for name in ("breast_cancer", "digits") for seed in SEEDS
    ]


def test_retraining_of_a_poisoned_task_is_the_clean_retraining():
    clean, poisoned = (E.unlearning(MAIN, 3, "Retrain", backdoor=backdoor) for backdoor in (False, True))
    assert needed(clean, "retrained") == needed(poisoned, "retrained")
    assert not any(config["poison"] for config in stages.trainings(E).values() if config["request"] != "none")


def test_what_does_not_concern_training_repeats_none():
    change = {"threshold": 0.5, "tau": 0.3, "sigma_vector": 2.0, "ga_lr": 0.5, "ico_share": 0.1, "weights": [3.0],
              "ratios": [0.2], "repeats": 9, "delta": 0.01, "iterations": 3, "few_ratios": [0.5]}  # fmt: skip
    assert trained(E.changed(**change)) == trained()
    originals = {needed(E.unlearning(task, 3, "GA"), "original") for task in (MAIN, WHOLE)}
    assert originals < trained(E.changed(classes=[[1], [3, 5, 3]])) & trained()


# --- cells -----------------------------------------------------------------------------------------------------------


def test_every_task_seed_and_method_has_its_cell():
    cells = E.cells()
    for task, seed, method in itertools.product((*E.tasks(labels=False), *E.tasks(labels=True)), SEEDS, METHODS):
        if not (task.labels and method == CALIBRATED):
            assert cells[task.cell("main", seed, method)] == E.unlearning(task, seed, method)
    assert {cell.seed for cell in cells} == set(SEEDS)
    for cell, config in cells.items():
        run = ("Retrain", 8 - cell.seed) if cell.method == AGAIN else (cell.method, cell.seed)  # the other of 3 and 5
        assert (config["method"], config["seed"], config["request"]) == (*run, cell.request)
        assert config["poison"] == (cell.request if has_backdoor(cell) else "")
        assert f"{config['dataset']}/{config['bottom']}" == cell.setting
        noise = {name: config[name] for name in ("noise", "dp_std", "dp_clip")}
        place = Task(cell.setting, cell.request, **noise).cell(cell.group, cell.seed, cell.method, cell.label)
        assert cell == (twin(place) if has_backdoor(cell) else place)


def test_a_method_has_its_own_options_and_those_that_parameters_set():
    """Every field of its hyper-parameters; 0.5 and 7 are nobody's default."""
    e = E.changed(ga_lr=0.5, ga_epochs=7, ico_scale=0.25, ico_share=0.75, cvfu_epochs=7, cvfu_lr=0.5)
    own = {
        "GA": GA(lr=0.5, epochs=7),
        "ICO": ICO(scale=0.25, share=0.75),
        "CVFU": CVFU(epochs=7, lr=0.5),
    }
    shared = {*TRAINING_KEYS, "method", "options", "trials", "tuned_on", "change"}
    for method in EVERY:
        config = e.unlearning(MAIN, 3, method)
        assert set(config) == shared
        if method in FORMS:
            assert set(config["options"]) == {f.name for f in fields(FedORA)}
        else:
            assert config["options"] == (plain_fields(own[method]) if method in own else {})


def test_the_element_wise_dual_has_a_step_of_its_own():
    forms = {method: FedORA(**E.unlearning(MAIN, 3, method)["options"]) for method in FORMS}
    set_here = ("threshold", "weight", "tau", "sigma", "mu", "iterations", "ratio")
    expected = FedORA(batch_size=25, **{name: getattr(E, name) for name in set_here})
    assert forms["FedORA"] == forms[CALIBRATED] == expected  # the threshold is measured in the run
    assert (forms["FedORA"].dual, forms["FedORA"].sigma) == ("scalar", E.sigma)
    assert forms["FedORA vector"] == replace(forms["FedORA"], dual="vector", sigma=E.sigma_vector)
    assert labels("readings")["element-wise dual"]["options"] == plain_fields(forms["FedORA vector"])


def test_ablations_and_readings_change_what_they_say_and_nothing_else():
    default = E.unlearning(MAIN, 3, "FedORA")
    vector = {"dual": "vector", "sigma": E.sigma_vector}
    for group, choices in (("ablation", ABLATIONS | STEPS), ("readings", READINGS | {"element-wise dual": vector})):
        found = labels(group)
        assert list(found) == list(choices)
        for label, change in choices.items():  # the default adapts its steps, and is uncertain by entropy
            new = {name: value for name, value in change.items() if default["options"][name] != value}
            assert difference(found[label], default) == new
            assert new or label in (*STEPS, *list(choices)[:1])
    assert {label: change for label, change in ABLATIONS.items() if change} == {
        "w/o UL": {"unlearn": False},
        "w/o AB": {"ratio": 1.0, "passes": 0.0},
        "w/o AS": {"adaptive": False},
    }
    (steps,) = STEPS
    tuned = E.changed(tuning_trials=2).cells()[MAIN.cell("ablation", SEEDS[0], "FedORA", steps)]
    assert len(tuned["trials"]) == 2
    assert tuned["change"] == STEPS[steps]  # over whatever they choose


def test_sweeps_change_their_value_and_nothing_else():
    default = E.unlearning(MAIN, 3, "FedORA")
    for group, name in (("weights", "weight"), ("ratios", "ratio")):
        values = getattr(E, group)
        found = labels(group)
        assert list(found) == [f"{value:g}" for value in values]
        for value, config in zip(values, found.values(), strict=True):
            own = {} if value == getattr(E, name) else {name: value}
            assert difference(config, default) == own | ({"passes": 0.0} if group == "ratios" else {})


def test_few_samples_noise_and_privacy_have_references_of_their_own():
    for count in E.few:
        found = labels("small", MAIN._replace(request=f"samples-{count}"))
        assert set(found) == {*REFERENCES, AGAIN, *(f"{ratio:g}" for ratio in E.few_ratios)}
        assert found["0.01"]["options"]["ratio"] == 0.01
    assert set(labels("noisy", MAIN._replace(noise=0.2))) == {*EVERY, AGAIN}
    levels = [(std, 0.0) for std in E.embedding_noise] + [(min(E.embedding_noise), E.clip)]
    private = [config for cell, config in E.cells().items() if cell.group == "private"]
    assert list(dict.fromkeys((config["dp_std"], config["dp_clip"]) for config in private)) == levels
    for std, clip in levels:
        assert set(labels("private", MAIN._replace(dp_std=std, dp_clip=clip))) == {*REFERENCES, AGAIN, "FedORA"}


def test_the_second_retraining_of_a_seed_is_the_retrain_run_of_the_next_one():
    cells = E.cells()
    again = [cell for cell in cells if cell.method == AGAIN]
    assert {cell._replace(method="Retrain") for cell in again} == {c for c in cells if c.method == "Retrain"}
    for cell in again:
        assert cells[cell] == cells[cell._replace(method="Retrain", seed=8 - cell.seed)]
    alone = E.changed(seeds=[3])
    assert {config["seed"] for cell, config in alone.cells().items() if cell.method == AGAIN} == {4}


def test_random_weights_stand_wherever_there_is_a_retrain_and_need_what_the_attack_is_learnt_on():
    """Neither a backdoor nor what is forgotten changes them."""
    cells, controls, made = E.cells(), E.controls(), trained()
    assert {cell._replace(method="Retrain") for cell in controls} == {c for c in cells if c.method == "Retrain"}
    for cell, config in controls.items():
        assert cell.method == config["method"] == DESTROYED
        assert (config["poison"], config["request"], config["seed"]) == ("", cell.request, cell.seed)
        assert {n: config[n] for n in ("noise", "dp_std", "dp_clip")} == {
            n: cells[cell._replace(method="Retrain")][n] for n in ("noise", "dp_std", "dp_clip")
        }
        training = {key: config[key] for key in TRAINING_KEYS} | {"request": "none"}
        assert runs.needs(config) == {"original": (runs.train, training)}
        assert needed(config, "original") in made


def test_distances_of_the_controls_are_measured_wherever_there_is_a_retrain():
    found, made = E.distances(), trained()
    retrains = [c for c in E.cells() if c.method == "Retrain" and not has_backdoor(c)]
    assert set(found) == {c._replace(method=method) for c in retrains for method in (AGAIN, DESTROYED)}
    for cell, config in found.items():
        trainings = runs.compared_with(config)
        assert {config_key(training) for _, training in trainings.values()} <= made
        assert ("again" in trainings) == (cell.method == AGAIN)
        assert config["dp_std"] == (float(cell.condition.split()[2]) if cell.condition.startswith("emb") else 0)
    again = runs.compared_with(found[MAIN.cell("main", 3, AGAIN)])
    assert [again[name][1]["seed"] for name in ("original", "retrained", "again")] == [3, 3, 5]
    assert [again[name][1]["request"] for name in ("original", "retrained", "again")] == ["none", *[MAIN.request] * 2]


def test_time_is_taken_of_each_of_the_papers_settings_with_everybodys_parameters():
    speeds, made = E.speeds(), trained()
    assert list(speeds) == E.tasks(labels=False)
    for task, config in speeds.items():
        assert list(config["methods"]) == [*BASELINES, *(ABLATIONS if task == E.main else ["FedORA"])]
        for label, how in config["methods"].items():
            own = E.unlearning(task, SEEDS[0], how["method"], **ABLATIONS.get(label, {}))
            assert how["options"] == own["options"]
            assert {name: own[name] for name in TRAINING_KEYS}.items() <= config.items()
        assert config["repeats"] == E.repeats
        assert needed(E.unlearning(task, SEEDS[0], "GA"), "original") in made


# --- tuning ----------------------------------------------------------------------------------------------------------

TWO = ["classes-1-50-from-7", "classes-1-100-from-7"]
TUNED = E.changed(
    tuning_trials=3, seeds=[3], splits=["4", "1+7"], ga_lrs=[0.01, 0.02], thresholds=[0.0, 0.5],
    tuning_requests=[["classes-1-50-from-2"], TWO],
)  # fmt: skip


def test_everybody_has_equally_many_trials_the_first_as_published_on_what_is_judged_nowhere():
    tuning, made = TUNED.tuning(), trained(TUNED)
    for dataset, method in itertools.product(TUNED.datasets, METHODS):
        own = [(c, config) for c, config in tuning.items() if (c.setting, c.method) == (dataset, method)]
        requests = TUNED.value("tuning_requests", dataset)
        assert [(c.label, c.request) for c, _ in own] == list(itertools.product("012", requests))
        tried = {int(c.label): config for c, config in own}
        assert tried[0]["options"] == TUNED.options(dataset, method)
        assert len({json.dumps(config["options"], sort_keys=True) for config in tried.values()}) == 3
    judged = {(config["seed"], config["request"]) for config in TUNED.cells().values()}
    for cell, config in tuning.items():
        assert (config["seed"], config["poison"], config["noise"]) == (TUNED.tuning_seed, "", 0.0)
        assert config["seed"] not in TUNED.seeds
        assert (config["seed"], config["request"]) not in judged
        assert config["request"] == cell.request
        trainings = {config_key(training) for _, training in runs.references(config).values()}
        assert trainings <= made


def test_a_peer_is_tried_and_judged_where_it_can_serve_with_as_many_choices_as_everybody():
    """Whole classes, without a backdoor, whose labels would tear them apart; one trial request of two is left."""
    tuning = {c: config for c, config in TUNED.tuning().items() if c.method == "Few-shot"}
    assert [(c.setting, c.label, c.request) for c in tuning] == [(DIGITS, k, TWO[1]) for k in "012"]
    cells = TUNED.cells()
    judged = {c for c in cells if c.method == "Few-shot" and c.group != "curve"}
    assert {(task_of(c), c.label) for c in judged} == set(itertools.product(TUNED.label_tasks(DIGITS), ("", PUBLISHED)))
    assert {(c.group, c.condition) for c in judged} == {("main", "")}
    for cell in judged:
        config = cells[cell]
        assert len(trials_of(config)) == (0 if cell.label else 3)
        assert config["options"]["few_shot"]
    untried = TUNED.changed(tuning_requests=[["classes-1-50-from-2"], TWO[:1]])
    alone = [config for c, config in untried.cells().items() if c.method == "Few-shot"]
    assert alone
    assert not any(config["trials"] for config in alone)


def test_a_refusal_is_in_the_methods_own_words():
    assert refusal("Few-shot", MAIN) == "few-shot label unlearning forgets whole classes, not some of their samples"
    assert refusal("Few-shot", WHOLE) == refusal("GA", MAIN) == ""


def test_peers_are_no_rivals_of_any_claim():
    assert not {*PEERS} & {*BASELINES, *METHODS}


def test_what_leaks_is_asked_of_the_controls_and_of_three_methods_on_the_main_setting():
    leaks = TUNED.changed(seeds=[3, 5], known_labels=2, known_features=7).leaks()
    methods = (*REFERENCES, AGAIN, DESTROYED, *LEAKING)
    assert set(leaks) == {MAIN.cell("leaks", seed, method) for seed in (3, 5) for method in methods}
    cells = TUNED.changed(seeds=[3, 5]).cells()
    for cell, config in leaks.items():
        assert (config.pop("known_labels"), config.pop("known_features")) == (2, 7)
        if cell.method != DESTROYED:
            assert config == cells[cell._replace(group="main")]


def test_every_run_of_a_method_chooses_among_its_data_sets_trials_and_keeps_what_its_row_is_about():
    tuning = {config_key(config) for config in TUNED.tuning().values()}
    for cell, config in TUNED.cells().items():
        tried = trials_of(config)
        published = cell.label == PUBLISHED or cell.method in (*REFERENCES, AGAIN)
        requests = TUNED.value("tuning_requests", cell.setting)
        on = [] if published else [r for r in requests if not refusal(cell.method, Task(cell.setting, r))]
        assert len(tried) == 3 * len(on)
        assert {config_key(one) for one in tried} <= tuning
        assert all(one["dataset"] == config["dataset"] and one["method"] == config["method"] for one in tried)
        assert len([name for name in runs.needs(config) if name.startswith("trial")]) == len(tried)
    weights = [c for cell, c in TUNED.cells().items() if (cell.group, cell.label) == ("weights", "5")]
    assert all(config["change"] == {"weight": 5.0} for config in weights)
    for how in TUNED.speeds()[TUNED.main]["methods"].values():
        assert len(how["trials"]) == 3


def test_as_published_is_a_second_row_of_our_forms_with_every_seed_and_of_rivals_with_the_first():
    e = TUNED.changed(seeds=[3, 4])
    cells = e.cells()
    rows = {c for c in cells if c.label == PUBLISHED}
    clean = {c._replace(label="") for c in rows if not has_backdoor(c)}
    groups = ("main", "noisy", "private")
    main = {c for c in cells if c.group in groups and not has_backdoor(c)}
    own = {c for c in main if c.method in FORMS}
    own |= {c for c in main if c.method in (*BASELINES, *PEERS) and (c.group, c.seed) == ("main", 3)}
    assert clean == {c for c in own if c.label == ""}
    twins = {twin(c) for c in rows if not has_backdoor(c) and c.method not in PEERS}
    assert twins == {c for c in rows if has_backdoor(c)}
    assert {c.group for c in rows} == {*groups}
    for cell in rows:
        assert cells[cell]["options"] == e.options(cell.setting, cell.method)
        tuned = cells[cell._replace(label="")]
        assert difference(cells[cell], tuned).keys() <= {"options", "trials", "tuned_on", "change"}  # its noise, too
        assert cells[cell]["trials"] == []


def test_every_form_may_pass_a_quarter_of_what_retraining_passes_and_no_more():
    capped = {cell: config for cell, config in TUNED.cells().items() if cell.group == "capped"}
    assert {task_of(c) for c in capped} == {*TUNED.tasks(labels=False), *TUNED.tasks(labels=True)}
    assert {c.method for c in capped} == {*FORMS}
    assert {c.seed for c in capped} == {*TUNED.seeds}
    for config in capped.values():
        passes = config["change"] or config["options"]
        assert passes["passes"] == config["epochs"] / 4


def test_one_trial_is_no_tuning():
    assert not E.tuning()
    assert not any(config["trials"] for config in E.cells().values())
    assert not any(cell.label == PUBLISHED for cell in E.cells())


def test_curves_sweep_each_methods_main_parameter_on_each_data_sets_first_settings():
    curve = {cell: config for cell, config in TUNED.cells().items() if cell.group == "curve"}
    assert TUNED.curve_tasks() == [Task(TABLE, "classes-1-50"), MAIN, WHOLE]
    assert {task_of(cell) for cell in curve} == set(TUNED.curve_tasks())
    for method, (name, parameter) in (CURVES | CURVES_OF_FORMS).items():
        swept = {c.label: config["change"] for c, config in curve.items() if (c.method, c.setting) == (method, DIGITS)}
        assert swept == {f"{value:g}": {name: value} for value in getattr(TUNED, parameter)}
    on = {method: {task_of(c) for c in curve if c.method == method} for method in ("FedORA vector", CALIBRATED, *PEERS)}
    assert on["FedORA vector"] == set(TUNED.curve_tasks())
    assert on[CALIBRATED] == {task for task in TUNED.curve_tasks() if not task.labels}  # others are never unseen
    assert on["Few-shot"] == {WHOLE}


def test_other_parties_have_references_of_their_own():
    found = {(c.condition, c.method): config for c, config in TUNED.cells().items() if c.group == "parties"}
    assert set(found) == set(itertools.product(("4 parties", "columns 1+7"), (*REFERENCES, AGAIN, "FedORA")))
    assert {config["split"] for config in found.values()} == {"4", "1+7"}
    assert {config["split"] for cell, config in TUNED.cells().items() if cell.group != "parties"} == {"2"}
