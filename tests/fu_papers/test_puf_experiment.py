"""PUF's parameters: what is wrong is named at once, and what a run's config says is complete and canonical."""

import itertools
import json
from dataclasses import fields, replace

import pytest

from fu_core import partition
from fu_core.data import load
from fu_core.errors import ConfigError, UnsupportedModel
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.method import method as registered
from fu_papers.lab.record import config_key
from fu_papers.problems import PROBLEM_KEYS, RELEASED_SIZES, Setting, client_opt, problem
from fu_papers.puf import runs, stages, trainings
from fu_papers.puf.grid import (
    AGAIN,
    CONTROLS,
    METHODS,
    OFFICIAL,
    PUBLISHED,
    PUFS,
    TRAINING_KEYS,
    Experiment,
    trials_of,
)
from fu_papers.study import Cell
from tests import puf_lab

IID = "digits/iid/softmax_regression"
SKEWED = "digits/dirichlet-0.3/mlp"
EVEN = "digits/iid/mlp"
SITES = "phantom/site/small_res_unet"


def experiment(**change):
    return puf_lab.experiment(**{"settings": [IID, SKEWED], "targets": [0, 2], "seeds": [0, 1], "clients": 4, **change})


def everything(**change):
    """One with scenarios of every kind."""
    return experiment(**{
        "long_settings": [SKEWED], "sample_settings": [IID, SKEWED], "pair_settings": [SKEWED],
        "pairs": [[0, 1], [2, 3]], "segmentation_settings": [SITES], "segmentation_targets": [0, 5],
        "sweep_settings": [SKEWED], **change,
    })  # fmt: skip


def training(e, setting=IID, seed=0, request="none", *, scenario="clients"):
    return e.training(e.scenario(scenario), setting, seed, request)


def unlearning(e, method, setting=IID, seed=0, request="client-0", *, scenario="clients", **change):
    return e.unlearning(e.scenario(scenario), setting, seed, request, method, **change)


# --- settings ---


@pytest.mark.parametrize(
    ("text", "expected", "title"),
    [
        (IID, Setting("digits", "iid", 0.0, "softmax_regression"), "Digits, IID"),
        (SKEWED, Setting("digits", "dirichlet", 0.3, "mlp"), "Digits, Dirichlet 0.3"),
        (SITES, Setting("phantom", "site", 0.0, "small_res_unet"), "Phantom (synthetic), by site"),
        ("mnist/dirichlet-1e-1/tiny_cnn", Setting("mnist", "dirichlet", 0.1, "tiny_cnn"), "MNIST, Dirichlet 0.1"),
        ("digits/released-0.3/mlp", Setting("digits", "released", 0.3, "mlp"), "Digits, Dirichlet 0.3, released sizes"),
        (
            "digits/file-their.v2/mlp",
            Setting("digits", "file-their.v2", 0.0, "mlp"),
            "Digits, file their.v2",
        ),
        ("adult/dirichlet-5/mlp", Setting("adult", "dirichlet", 5.0, "mlp"), "Income (Adult), Dirichlet 5"),
        (
            "tiny_imagenet/iid/vit_tiny",
            Setting("tiny_imagenet", "iid", 0.0, "vit_tiny"),
            "tiny_imagenet, IID",
        ),  # no title
    ],
)
def test_a_setting_reads_as_data_set_split_and_net(text, expected, title):
    assert Setting.parse(text) == expected
    assert expected.skewed == (expected.split not in ("iid", "site"))
    assert expected.title == title


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("digits/iid", r"must look like 'digits/dirichlet-0.3/tiny_cnn', got 'digits/iid'"),
        ("digits/iid/mlp/7", r"must look like .* got 'digits/iid/mlp/7'"),
        ("digits", r"must look like"),
        ("", r"must look like .* got ''"),
        (
            "digits/shards-2/mlp",
            r"split of .* must be one of 'iid', 'dirichlet', 'released', .* got 'shards'",
        ),
        ("digits/dirichlt-0.3/mlp", r"split of .* got 'dirichlt'; did you mean 'dirichlet'\?"),
        ("digits/sites/mlp", r"split of .* got 'sites'; did you mean 'site'\?"),
        ("digits/iid-0.3/mlp", r"split of .* must be 'iid' alone, which takes no alpha, got 'iid-0.3'"),
        ("phantom/site-6/small_res_unet", r"split of .* must be 'site' alone, which takes no alpha, got 'site-6'"),
        ("digits/iid/mpl", r"model of .* got 'mpl'; did you mean 'mlp'\?"),
        ("digits/dirichlet-high/mlp", r"alpha of .* must be a number, got 'high'"),
        ("digits/released/mlp", r"alpha of .* must be a number, got ''"),
        ("digits/released-0/mlp", r"alpha of .* must be a finite number > 0, got 0.0"),
        ("digits/file/mlp", r"split of .* must name a file of the data folder, file-<name>, got 'file'"),
        ("digits/file-/mlp", r"split of .* must name a file of the data folder, file-<name>, got 'file-'"),
        ("digits/file-a b/mlp", r"split of .* must name a file of the data folder, file-<name>, got 'file-a b'"),
        ("digits/dirichlet/mlp", r"alpha of .* must be a number, got ''"),
        ("digits/dirichlet-0/mlp", r"alpha of .* must be a finite number > 0, got 0.0"),
        ("digits/dirichlet--0.3/mlp", r"alpha of .* must be a finite number > 0, got -0.3"),
        ("digits/dirichlet-nan/mlp", r"alpha of .* must be a finite number > 0, got nan"),
        ("digits/dirichlet-inf/mlp", r"alpha of .* must be a finite number > 0, got inf"),
    ],
)
def test_a_wrong_setting_is_one_error_that_names_the_part(text, says):
    with pytest.raises(ConfigError, match=says) as info:
        Setting.parse(text)
    assert "\n" not in str(info.value)
    for scenario in ("settings", "long_settings", "sample_settings", "pair_settings", "segmentation_settings"):
        with pytest.raises(ConfigError, match=says):
            experiment(**{scenario: [text]})


def test_an_unknown_data_set_is_named_when_the_problem_is_built():
    config = training(experiment(settings=["digts/iid/mlp"]), "digts/iid/mlp")
    with pytest.raises(ValueError, match=r"name must be one of .* got 'digts'; did you mean 'digits'\?"):
        problem(config)


def test_the_site_split_gives_every_hospital_to_one_client():
    p = problem(training(everything(segmentation_n_train=60), SITES, scenario="segmentation"))
    sites = [p.dataset.site_train[part].unique().tolist() for part in p.parts]
    assert sites == [[0], [1], [2], [3], [4], [5]]
    assert sum(len(part) for part in p.parts) == 60


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"clients": 5}, ConfigError, "clients must be 6, the sites of phantom, got 5"),
        ({"dataset": "digits", "model": "mlp"}, ConfigError, "'site' needs data from several hospitals; digits names"),
        ({"model": "mlp"}, UnsupportedModel, "model 'mlp' is not for segmentation, the task of phantom"),
    ],
)
def test_a_site_split_that_does_not_fit_the_data_is_an_error(change, error, says):
    config = training(everything(), SITES, scenario="segmentation")
    with pytest.raises(error, match=says):
        problem({**config, **change})


@pytest.mark.parametrize("n_train", [500, 777])
def test_released_sizes_are_met_exactly_scaled_to_the_samples_there_are(n_train):
    e = experiment(settings=["digits/released-0.3/mlp"], clients=10, n_train=n_train)
    p = problem(training(e, "digits/released-0.3/mlp"))
    assert [len(part) for part in p.parts] == [n_train * size // 49997 for size in RELEASED_SIZES]
    assert len({int(i) for part in p.parts for i in part}) == sum(len(part) for part in p.parts)
    largest = [max(row) / sum(row) for row in p.description["label_counts"]]
    assert max(largest) > 0.3  # skewed, too
    assert sum(RELEASED_SIZES) == 49997


def test_released_sizes_are_those_of_ten_clients():
    config = training(experiment(settings=["digits/released-0.3/mlp"], clients=4), "digits/released-0.3/mlp")
    with pytest.raises(ConfigError, match="clients must be 10 for a split 'released', got 4"):
        problem(config)


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FU_DATA", str(tmp_path))
    problems_cache = runs.problem.__globals__["_problem"].cache_clear
    problems_cache()
    yield tmp_path
    problems_cache()


def of_file(clients=3, **change):
    given = {"clients": clients, "targets": [0], "pairs": [], "n_train": 0, **change}
    return training(experiment(settings=["digits/file-ours/mlp"], **given), "digits/file-ours/mlp")


@pytest.mark.parametrize("n_train", [0, 700])
def test_a_split_of_others_is_of_the_whole_training_set_and_lacks_what_is_held_out(data_folder, n_train):
    """As published lists are: every client has its own samples but for those of validation and of no subset."""
    whole, shares = load("digits"), partition.iid(1437, 3, seed=5)
    (data_folder / "ours.json").write_text(json.dumps({str(k): part.tolist() for k, part in enumerate(shares)}))
    p = problem(of_file(n_train=n_train))
    assert sum(map(len, p.parts)) == len(p.dataset.y_train) == (n_train or 1437 - 300)
    known = {row.numpy().tobytes(): i for i, row in enumerate(whole.x_train.flatten(1))}
    for (x, _), share in zip(p.clients, shares, strict=True):
        assert {known[row.cpu().numpy().tobytes()] for row in x.flatten(1)} <= set(share.tolist())


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (None, "path must name a JSON file with a partition, got .*ours.json"),
        ({"0": [0], "1": [1]}, "clients must be 2, as in the file of split 'file-ours', got 3"),
        ({"0": [0], "1": [1], "2": [1437]}, r"ours.json: client 2 must have indices 0..1436, got 1437"),
        ({"0": [0], "1": [1], "2": [1]}, r"ours.json: clients 1 and 2 both have index 1"),
        (
            {str(k): [k] for k in range(3)},
            "n_train and n_val must leave every client .* a sample, got none for client 0",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_an_error_that_names_it(data_folder, held, says):
    if held is not None:
        (data_folder / "ours.json").write_text(json.dumps(held))
    with pytest.raises(ValueError, match=says):
        problem(of_file(n_train=60))


# --- experiments ---


def test_an_unknown_method_or_scenario_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match=r"method must be one of 'Original', .* did you mean 'PUF-Special'\?"):
        unlearning(experiment(), "PUF-special")
    with pytest.raises(ConfigError, match=r"scenario must be one of .*'pairs', .* did you mean 'pairs'\?"):
        everything().scenario("pair")
    with pytest.raises(ConfigError, match="scenario must be one of 'clients', got 'pairs'"):
        experiment().scenario("pairs")  # has no setting


# --- scenarios ---


def test_a_scenario_is_there_if_it_has_a_setting():
    assert [s.name for s in experiment().scenarios()] == ["clients"]
    assert [s.name for s in everything().scenarios()] == ["clients", "long", "samples", "pairs", "segmentation"]
    assert [s.name for s in everything(long_settings=[], pair_settings=[]).scenarios()] == [
        "clients",
        "samples",
        "segmentation",
    ]


def test_every_scenario_has_its_requests_and_the_main_one_all_seeds():
    e = everything(few_seeds=[1], sample_fraction=0.25)
    asked = {s.name: (s.settings, s.requests, s.seeds) for s in e.scenarios()}
    assert asked == {
        "clients": ([IID, SKEWED], ["client-0", "client-2"], [0, 1]),
        "long": ([SKEWED], ["client-0", "client-2"], [1]),
        "samples": ([IID, SKEWED], ["sample-0-0.25", "sample-2-0.25"], [1]),
        "pairs": ([SKEWED], ["client-0-1", "client-2-3"], [1]),
        "segmentation": ([SITES], ["client-0", "client-5"], [1]),
    }


def test_federaser_needs_a_history():
    everybody = [*CONTROLS, *METHODS]
    for s in everything().scenarios():
        assert list(s.methods) == everybody
    for s in everything(history_interval=0).scenarios():
        assert list(s.methods) == [m for m in everybody if m != "FedEraser"]


def test_every_run_and_every_training_it_needs_comes_once():
    e = everything(few_seeds=[1])
    cells = [cell for cell, _ in e.runs()]
    places = {(s.name, text, seed, request)
              for s in e.scenarios() for text in s.settings for seed in s.seeds for request in s.requests}  # fmt: skip
    assert set(cells) == {Cell(*place, method) for place in places for method in (*CONTROLS, *METHODS)}
    keys = list(stages.all_trainings(e))
    others = {(name, text, e.other_seed(e.scenario(name), seed), request) for name, text, seed, request in places}
    attackers = {(*place[:3], "none") for place in others if place[0] != "segmentation"}
    assert set(keys) == places | {(*place[:3], "none") for place in places} | others | attackers
    assert (len(set(cells)), len(set(keys))) == (len(cells), len(keys))


def test_samples_and_pairs_start_from_the_main_scenarios_model():
    configs = stages.all_trainings(everything())
    main = configs["clients", SKEWED, 0, "none"]
    for scenario in ("samples", "pairs"):
        assert config_key(configs[scenario, SKEWED, 0, "none"]) == config_key(main)
        attackers = (configs[name, SKEWED, 1, "none"] for name in ("clients", scenario))
        assert len({config_key(config) for config in attackers}) == 1
    assert configs["samples", SKEWED, 0, "sample-0-0.5"]["request"] == "sample-0-0.5"
    assert len({config_key(config) for config in configs.values()}) == len(configs) - 6


def test_many_local_epochs_are_the_main_training_but_for_epochs_and_rounds():
    e = everything(long_epochs=7, long_rounds=3)
    main, long = (training(e, SKEWED, scenario=name) for name in ("clients", "long"))
    assert {name for name in main if main[name] != long[name]} == {"epochs", "rounds"}
    assert (long["epochs"], long["rounds"]) == (7.0, 3)
    assert client_opt(long) == e.local(e.scenario("long"), SKEWED) == replace(client_opt(main), epochs=7.0)


def test_transformers_train_with_rounds_optimiser_rate_and_weights_of_their_own():
    own = {"rounds": 9, "optimiser": "adam", "lr": 0.002, "weights": "mit_b0"}
    e = everything(transformer_settings=[SKEWED], **{f"transformer_{name}": value for name, value in own.items()})
    main, transformer = (training(e, SKEWED, scenario=name) for name in ("clients", "transformer"))
    assert {name: transformer[name] for name in main if main[name] != transformer[name]} == own
    assert main["weights"] == ""
    assert e.scenario("transformer").requests == ["client-0", "client-2"]


def test_hospitals_train_with_parameters_of_their_own_and_a_constant_rate():
    own = {"n_train": 90, "n_val": 12, "rounds": 8, "epochs": 2.0, "batch_size": 4, "optimiser": "adamw", "lr": 0.03,
           "weight_decay": 0.2}  # fmt: skip
    e = everything(
        n_test=50, lr_decay=0.5, momentum=0.9, augmentation="flip_crop",
        **{f"segmentation_{name}": value for name, value in own.items()},
    )  # fmt: skip
    config = training(e, SITES, scenario="segmentation")
    whole = {"clients": 6, "n_test": 0, "lr_decay": 1.0, "momentum": 0.0, "augmentation": "none"}
    assert {name: config[name] for name in own | whole} == own | whole
    assert client_opt(config) == e.local(e.scenario("segmentation"), SITES)
    assert (config["dataset"], config["split"], config["model"]) == ("phantom", "site", "small_res_unet")


# --- configs ---


def test_a_training_config_holds_problem_local_training_rounds_seed_and_request_and_nothing_else():
    e = experiment(rounds=7, lr=0.5)
    config = training(e, SKEWED, 1, "client-2")
    local = {f.name for f in fields(ClientOpt)}
    rest = {"rounds", "seed", "request", "history", "weights", "participation", "poisoned"}
    assert set(config) == {*PROBLEM_KEYS, *local, *rest} == set(TRAINING_KEYS)
    assert (config["dataset"], config["split"], config["alpha"], config["model"]) == ("digits", "dirichlet", 0.3, "mlp")
    assert (config["rounds"], config["lr"], config["seed"], config["request"]) == (7, 0.5, 1, "client-2")
    assert client_opt(config) == e.local(e.scenario("clients"), SKEWED)


def test_the_original_training_keeps_a_history_and_no_retraining_does():
    dense, sparse = experiment(history_interval=1), experiment(history_interval=3)
    assert training(dense)["history"] == 1
    assert training(sparse)["history"] == 3
    assert training(sparse, request="client-0")["history"] == 0
    assert config_key(training(dense)) != config_key(training(sparse))
    assert config_key(training(dense, request="client-0")) == config_key(training(sparse, request="client-0"))


def test_a_data_set_may_have_a_history_of_its_own():
    e = everything(history_interval=3, history_interval_of={"phantom": 1})
    for scenario, setting, expected in (("clients", IID, 3), ("segmentation", SITES, 1)):
        assert training(e, setting, scenario=scenario)["history"] == expected
        assert unlearning(e, "FedEraser", setting, scenario=scenario)["history"] == expected
    one = experiment(settings=[IID, SKEWED], history_interval=3, history_interval_of={"digits": 2, IID: 1})
    assert [training(one, setting)["history"] for setting in (IID, SKEWED)] == [1, 2]  # the setting before its data set
    with pytest.raises(ConfigError, match="history_interval must be at least 1 where history_interval_of is given"):
        everything(history_interval=0, history_interval_of={"phantom": 1})


def test_an_unlearning_config_is_the_retraining_with_the_originals_history_a_method_and_a_cap():
    e = everything(recovery_cap=5, history_interval=2)
    for scenario, request in (("clients", "client-2"), ("samples", "sample-0-0.5")):
        for method in ("Natural", "NoT"):
            expected = {**training(e, IID, 1, request, scenario=scenario), "history": 2}
            options = {"layers": ()} if method == "NoT" else {}
            expected |= {
                "method": method,
                "cap": 6 if method == "Natural" else 5,
                "options": options,
                "trials": [],
                "tuned_on": {},
            }
            expected |= {"read": [1, 2] if method == "Natural" else [], "attacked": True, "relearn_cap": 2}
            expected["other_seed"] = 0 if scenario == "clients" else 2
            assert unlearning(e, method, IID, 1, request, scenario=scenario) == expected


def test_who_does_not_recover_has_no_cap():
    """Its runs need not be repeated for another one."""
    e = experiment(recovery_cap=5)
    caps = {method: unlearning(e, method)["cap"] for method in (*CONTROLS, *METHODS)}
    assert caps == dict.fromkeys(METHODS, 5) | dict.fromkeys((*CONTROLS, "FedEraser"), 0) | {"Natural": 6}


def test_everything_may_take_as_long_to_recover_but_segmentation():
    """Fig. 5 has one cap for its dots and for the stars, which are the main block's; claims read both together.

    Nor does segmentation have longer, for who makes `recovery_cap` short alone. Ordinary rounds are watched for as
    many as PUF, which has one of its own, can take there.
    """

    def caps(**changes):
        e = everything(**changes)
        found = {"clients": set(), "segmentation": set()}
        others = set()
        for cell, config in [*e.runs(), *e.sweep()]:
            if config["cap"]:
                found.get(cell.group, others).add(config["cap"] - (cell.method == "Natural"))
        return *found.values(), others

    assert caps(recovery_cap=9, segmentation_cap=6) == ({9}, {6}, {9})
    assert caps(recovery_cap=3, segmentation_cap=6) == ({3}, {3}, {3})


def test_halves_and_pairs_have_the_main_blocks_trials():
    e = everything(
        recovery_cap=9, tuning_cap=7, tuning_trials=3, tuning_targets=[3], tuning_seed=100, pairs=[[0, 1]],
    )  # fmt: skip
    tuned = [(cell.group, config) for cell, config in e.runs() if config["trials"]]
    assert {(group, config["cap"], config["tuned_on"]["cap"]) for group, config in tuned if config["cap"]} == {
        ("clients", 9, 7), ("samples", 9, 7), ("pairs", 9, 7)
    }  # fmt: skip
    known = {config_key(one) for _, one in e.tuning()}
    assert {config_key(one) for _, config in tuned for one in trials_of(config)} <= known


def test_who_is_given_longer_runs_once_more_on_the_first_seed_and_nothing_else_changes():
    """Trials end where they did, so that none is run again for it."""
    e = experiment(recovery_cap=5, tuning_trials=3, tuning_targets=[3], tuning_seed=100, tuning_cap=4)
    longer = e.changed(patience={"NoT": 9, "PGA": 7}, patience_settings=[SKEWED])
    assert dict(longer.runs()) == dict(e.runs())
    found = dict(longer.patient())
    assert {(cell.method, cell.label, config["cap"]) for cell, config in found.items()} == {
        ("NoT", "9 rounds", 9), ("PGA", "7 rounds", 7)
    }  # fmt: skip
    before = dict(e.runs())
    for cell, config in found.items():
        assert (cell.seed, cell.setting) == (0, SKEWED)
        assert {**config, "cap": 5} == before[cell._replace(label="")]


@pytest.mark.parametrize("name", ["Nobody", "FedEraser", "Natural", "Retrain"])
def test_only_who_can_give_up_can_be_given_longer(name):
    with pytest.raises(ConfigError, match="patience"):
        experiment(patience={name: 9})


def test_patience_asks_for_nothing_where_its_setting_is_not_or_everybody_has_as_long():
    """Who changes `settings` or `recovery_cap` alone is not told of a parameter that was never touched."""
    assert experiment(
        recovery_cap=9, patience={"NoT": 9, "PGA": 10}, patience_settings=[SKEWED, "digits/iid/mlp"]
    ).longer() == [(SKEWED, "PGA", 10)]


def test_natural_goes_on_as_long_as_any_other_may_and_as_it_is_read():
    """A method has a round of its own before its recovery."""
    caps = [unlearning(experiment(recovery_cap=5, natural_rounds=read), "Natural")["cap"] for read in ([1, 2], [2, 9])]
    assert caps == [6, 9]
    watched = {Setting.parse(IID).dataset: 4}
    assert unlearning(experiment(recovery_cap=5, natural_rounds=[1, 2], natural_watched=watched), "Natural")["cap"] == 4
    assert unlearning(experiment(recovery_cap=5, natural_rounds=[9], natural_watched=watched), "Natural")["cap"] == 9
    assert unlearning(experiment(recovery_cap=5, natural_watched=watched), "NoT")["cap"] == 5


def test_every_method_has_the_options_of_its_parameters():
    e = experiment(
        calibration=0.25, pga_stop=3, mode_lambda=0.9, mode_rounds_d=2, mode_rounds_m=3, fed_au_epochs=4,
        eta_u_special=3.0, eta_u_regular=30.0, epochs=2.0, epochs_u=3.0,
    )  # fmt: skip
    options = {method: unlearning(e, method)["options"] for method in (*CONTROLS, *METHODS)}
    for method in (*CONTROLS, "Natural"):
        assert options[method] == {}
    del options[AGAIN]  # a training, not a method
    for method, about in options.items():  # all there are, so that a record says everything
        assert set(about) == {f.name for f in fields(registered(method).parameters)}
    assert options["NoT"] == {"layers": ()}
    assert options["FedEraser"]["calibration"] == 0.25
    assert options["PGA"]["stop_distance"] == 3.0
    mode = options["MoDe"]
    assert (mode["momentum"], mode["rounds_d"], mode["rounds_m"]) == (0.9, 2, 3)
    assert options["FedAU"]["epochs"] == 4
    special, regular = (options[method] for method in PUFS)
    assert (special["mode"], special["eta_u"], special["epochs_u"]) == ("special", 3.0, 3.0)
    assert (regular["mode"], regular["eta_u"], regular["eta_r"]) == ("regular", 30.0, 1.0)
    assert (special["form"], regular["form"]) == ("corrected", "corrected")
    assert unlearning(e, "PUF-Special", form="printed")["options"] == {**special, "form": "printed"}


def test_what_does_not_concern_a_run_is_not_in_its_config():
    """Another profile, more targets or another method's parameter must not repeat a run."""
    e = experiment()
    other = experiment(
        profile="other", targets=[1], seeds=[5], few_seeds=[5], sweep_seeds=[5], settings=[IID], recovery_cap=3,
        eta_u_special=9.0, pga_stop=1.0, mode_lambda=0.5, fed_au_epochs=3, calibration=1.0, sample_settings=[SKEWED],
        long_rounds=3,
    )  # fmt: skip
    assert config_key(training(e)) == config_key(training(other))
    assert config_key(unlearning(e, "Retrain")) == config_key(unlearning(other, "Retrain"))
    longer = other.changed(recovery_cap=e.recovery_cap)
    for method in ("Natural", "NoT", "PUF-Regular"):
        assert config_key(unlearning(e, method)) == config_key(unlearning(longer, method))
    for method in ("FedEraser", "PGA", "MoDe", "FedAU", "PUF-Special"):
        assert config_key(unlearning(e, method)) != config_key(unlearning(longer, method))


def test_2_and_2_point_0_name_the_same_run():
    whole = {
        "epochs": 2, "lr": 1, "weight_decay": 0, "momentum": 0, "eta_u_special": 2, "eta_u_regular": 20, "epochs_u": 1,
        "calibration": 1, "pga_stop": 6, "mode_lambda": 1, "long_epochs": 7, "segmentation_epochs": 2,
        "segmentation_lr": 1, "segmentation_weight_decay": 0, "sweep_special": [2, 4], "sweep_regular": [20],
        "sweep_epochs_u": [1, 5], "segmentation_special": [2], "segmentation_regular": [20],
    }  # fmt: skip
    parts = {name: [float(v) for v in value] if isinstance(value, list) else float(value)
             for name, value in whole.items()}  # fmt: skip
    a, b = everything(**whole), everything(**parts)
    for stage in stages.STAGES:
        keys = [[(place, config_key(config)) for place, config in stage.cells(e).items()] for e in (a, b)]
        assert keys[0] == keys[1]
    assert config_key(unlearning(a, "PUF-Special", eta_u=3)) == config_key(unlearning(a, "PUF-Special", eta_u=3.0))
    assert config_key(training(a, "digits/dirichlet-1/mlp")) == config_key(training(a, "digits/dirichlet-1.0/mlp"))


def test_the_split_does_not_depend_on_the_training_seed():
    e = experiment(n_train=200)
    hashes = [problem(training(e, setting, seed)).data_hash for setting, seed in ((SKEWED, 0), (SKEWED, 1), (IID, 0))]
    assert hashes[0] == hashes[1] != hashes[2]


# --- sweeps and the printed form ---


def test_a_sweep_has_a_cell_per_rate_and_epochs_and_request_of_its_seeds():
    e = everything(
        few_seeds=[0], sweep_seeds=[1], sweep_special=[1.0, 2.0], sweep_regular=[20.0], sweep_epochs_u=[1.0, 5.0],
        segmentation_special=[0.5], segmentation_regular=[5.0, 40.0],
    )  # fmt: skip
    cells = [cell for cell, _ in e.sweep()]
    variants = {"PUF-Special": ["eta_u=1, E_u=1", "eta_u=1, E_u=5", "eta_u=2, E_u=1", "eta_u=2, E_u=5"],
                "PUF-Regular": ["eta_u=20, E_u=1", "eta_u=20, E_u=5"]}  # fmt: skip
    digits = {Cell("clients", SKEWED, 1, f"client-{t}", m, v) for m in PUFS for v in variants[m] for t in (0, 2)}
    variants = {"PUF-Special": ["eta_u=0.5, E_u=1"], "PUF-Regular": ["eta_u=5, E_u=1", "eta_u=40, E_u=1"]}
    sites = {Cell("segmentation", SITES, 0, f"client-{t}", m, v) for m in PUFS for v in variants[m] for t in (0, 5)}
    assert len(cells) == len(set(cells))
    assert set(cells) == digits | sites
    for cell, config in e.sweep():
        options = config["options"]
        assert cell.label == f"eta_u={options['eta_u']:g}, E_u={options['epochs_u']:g}"
        assert cell.method == f"PUF-{options['mode'].capitalize()}"


def test_the_sweep_repeats_no_run_of_the_tables():
    """Where eta_u and E_u are those of the tables, it is their run."""
    e = everything(sweep_special=[1.0, 2.0], sweep_regular=[20.0], epochs_u=5.0, sweep_epochs_u=[1.0, 5.0])
    tables = {cell: config_key(config) for cell, config in e.runs()}
    for cell, config in e.sweep():
        same = config_key(config) == tables[cell._replace(label="")]
        assert same == (cell.label in ("eta_u=2, E_u=5", "eta_u=20, E_u=5"))


def test_the_transformer_is_swept_where_sweep_settings_name_its_setting():
    """Fig. 5 (c): with its own training, and the seeds of its table."""
    own = {"transformer_settings": [EVEN], "transformer_rounds": 9, "transformer_lr": 0.002}
    e = everything(sweep_settings=[EVEN, SKEWED], few_seeds=[0], sweep_seeds=[1], **own)
    assert (e.swept_settings("clients"), e.swept_settings("transformer")) == ([SKEWED], [EVEN])
    found = {cell: config for cell, config in e.sweep() if cell.group == "transformer"}
    assert {(cell.setting, cell.seed) for cell in found} == {(EVEN, 0)}
    assert {(config["rounds"], config["lr"]) for config in found.values()} == {(9, 0.002)}
    in_both = everything(transformer_settings=[SKEWED])  # swept in the main block alone
    assert {cell.group for cell, _ in in_both.sweep()} == {"clients", "segmentation"}
    with pytest.raises(ConfigError, match=r"sweep_settings must be some of settings .* and transformer_settings"):
        everything(sweep_settings=[EVEN])


def test_the_papers_sweep_has_the_three_panels_of_its_figure():
    e = Experiment.of("paper")
    panels = ["cifar100/dirichlet-0.1/resnet18", "cifar10/released-0.3/resnet18", "cifar100/dirichlet-0.1/mit_b0_224"]
    assert [*e.swept_settings("clients"), *e.swept_settings("transformer")] == panels


def test_without_settings_to_sweep_there_is_nothing_to_sweep():
    assert list(experiment().sweep()) == []
    assert {cell.group for cell, _ in everything(sweep_settings=[]).sweep()} == {"segmentation"}


def test_the_printed_form_is_run_on_the_first_setting_and_differs_in_the_form_alone():
    e = everything()
    tables = dict(e.runs())
    found = dict(e.printed())
    assert set(found) == {
        Cell("clients", IID, seed, f"client-{t}", m, "printed") for seed in (0, 1) for t in (0, 2) for m in PUFS
    }
    for cell, config in found.items():
        corrected = tables[cell._replace(label="")]
        assert config == {**corrected, "options": {**corrected["options"], "form": "printed"}}


# --- controls, attackers and what FedAU's authors do ---


@pytest.mark.parametrize(("seeds", "other"), [([0, 1], {0: 1, 1: 0}), ([4, 7, 5], {4: 7, 7: 5, 5: 4}), ([3], {3: 4})])
def test_the_other_seed_is_the_next_of_the_scenario_and_never_the_same(seeds, other):
    e = experiment(seeds=seeds, few_seeds=seeds[:1], sweep_seeds=seeds[:1])
    assert {seed: unlearning(e, AGAIN, seed=seed)["other_seed"] for seed in seeds} == other


def test_a_run_reads_both_references_another_seeds_model_and_the_second_retraining_its_own():
    e = everything()
    shared = {"original", "retrained", "attacker"}
    for method, more in (("Natural", set()), (AGAIN, {"again"}), (OFFICIAL, {"official"})):
        needed = runs.needs(unlearning(e, method, SKEWED))
        assert set(needed) == shared | more
        assert needed["attacker"][1] == training(e, SKEWED, 1)
        assert needed["original"][1] == training(e, SKEWED)
        assert needed["retrained"][1] == training(e, SKEWED, request="client-0")
    assert runs.needs(unlearning(e, AGAIN, SKEWED))["again"] == (trainings.train, training(e, SKEWED, 1, "client-0"))
    official = {name: value for name, value in training(e, SKEWED, request="client-0").items() if name != "history"}
    assert runs.needs(unlearning(e, OFFICIAL, SKEWED))["official"] == (trainings.train_official, official)
    assert set(runs.needs(unlearning(e, "Natural", SITES, scenario="segmentation"))) == {"original", "retrained"}


def test_the_official_fedau_is_run_where_it_is_asked_for_and_in_the_main_block_alone():
    e = everything(official_settings=[SKEWED], fed_au_alpha=0.7)
    cells = {cell: config for cell, config in e.runs() if cell.method == OFFICIAL}
    assert set(cells) == {Cell("clients", SKEWED, seed, f"client-{t}", OFFICIAL) for seed in (0, 1) for t in (0, 2)}
    assert all((config["options"], config["cap"]) == ({"alpha": 0.7}, e.recovery_cap) for config in cells.values())
    assert set(stages.official(e)) == set(cells)
    assert not stages.official(everything())


def test_a_backdoor_is_in_the_original_training_alone():
    e = everything(backdoor_settings=[SKEWED])
    main = {config_key(config) for place, config in stages.all_trainings(everything()).items() if place[3] != "none"}
    found = {cell: config for cell, config in e.runs() if cell.group == "backdoor"}
    assert {cell.method for cell in found} == {*CONTROLS, *METHODS}
    for cell, config in found.items():
        target = int(cell.request.removeprefix("client-"))
        assert config["poisoned"] == target
        needed = {name: one for name, (_, one) in runs.needs(config).items()}
        assert needed["original"]["poisoned"] == target
        assert {one["poisoned"] for name, one in needed.items() if name != "original"} == {-1}
        assert config_key(needed["retrained"]) in main  # who leaves takes the backdoor along
        assert needed["attacker"] == training(e, SKEWED, 1)
    assert all(config["poisoned"] == -1 for cell, config in e.runs() if cell.group != "backdoor")
    poisoned = [place for place, config in stages.all_trainings(e).items() if config["poisoned"] >= 0]
    assert poisoned == [("backdoor", SKEWED, 0, f"poisoned client-{t}") for t in (0, 2)]


def test_partial_participation_reaches_the_federation():
    e = everything(partial_settings=[SKEWED], partial_share=0.5)
    config = training(e, SKEWED, scenario="partial")
    assert config == {**training(e, SKEWED), "participation": 0.5}
    f = problem(config).federation(config)
    assert f.participation == 0.5
    assert [len(f.taking_part(t)) for t in (1, 2, 3)] == [2, 2, 2]
    everybody = training(e, SKEWED)
    assert problem(everybody).federation(everybody).participation == 1


# --- tuning ---


def tuned(n=4, **change):
    """Client 3 and seed 100 are there to be tuned on."""
    return everything(**{
        "tuning_trials": n, "tuning_targets": [3], "tuning_seed": 100, "tuning_cap": 7, "pairs": [[0, 1]],
        "backdoor_settings": [SKEWED], "partial_settings": [SKEWED], "official_settings": [SKEWED], **change,
    })  # fmt: skip


def distinct(name, e):
    """How many option sets there are for a method, that of the parameters among them."""
    lists = [values.values for values in registered(name).ranges.values()]
    if any(values is None for values in lists):
        return float("inf")
    return len({*itertools.product(*lists), tuple(e.trials(name)[0].values())})


@pytest.mark.parametrize("n", [2, 4, 13])
def test_every_method_that_can_be_tuned_has_the_same_number_of_trials(n):
    e = tuned(n)
    can = [method for method in METHODS if registered(method).ranges]
    assert {*PUFS, "FedEraser", "PGA", "MoDe", "FedAU", "Random labels"} <= set(can)
    for method in can:
        tried = e.trials(method)
        assert len(tried) == min(n, distinct(method, e))
        assert len({json.dumps(one, sort_keys=True) for one in tried}) == len(tried)
    assert all(e.trials(method) == [] for method in (*CONTROLS, OFFICIAL, *METHODS) if method not in can)


def test_the_first_trial_is_the_published_one():
    e = tuned(eta_u_special=3.0, pga_lr=0.02, pga_stop=5.0, mode_lr_guidance=0.002, calibration=0.25, fed_au_epochs=3)
    for method in METHODS:
        if tried := e.trials(method):
            own = unlearning(e, method)["options"]
            assert tried[0] == {name: own[name] for name in tried[0]}
            assert any(one != tried[0] for one in tried[1:])
    assert e.trials("PUF-Special")[0]["eta_u"] == 3.0


@pytest.mark.parametrize("given", [None, 0.0, 0.5])
def test_modes_guidance_has_the_momentum_that_is_asked_for_tuned_or_not(given):
    e = tuned(mode_guidance_momentum=given)
    assert unlearning(e, "MoDe")["options"]["guidance_momentum"] == given
    one = next(config for cell, config in e.tuning() if cell.method == "MoDe")
    assert one["options"]["guidance_momentum"] == given
    assert e.table().set_index("parameter").loc["mode_guidance_momentum", "value"] == str(given).lower()


def test_one_trial_is_no_tuning():
    e = tuned(1)
    assert list(e.tuning()) == []
    assert {cell.label for cell, _ in e.runs()} == {""}
    assert all(config["trials"] == [] for _, config in e.runs())


def test_tuning_never_reads_a_judged_target_or_seed():
    e = tuned()
    judged = {
        config_key(one)
        for _, config in (*e.runs(), *e.sweep(), *e.printed(), *e.norms())
        for name, (_, one) in runs.needs(config).items()
        if not name.startswith("trial")
    }
    found = dict(e.tuning())
    assert {cell.method for cell in found} == {method for method in METHODS if len(e.trials(method)) > 1}
    for cell, config in found.items():
        assert (cell.seed, cell.request) == (config["seed"], config["request"]) == (100, "client-3")
        assert config["poisoned"] == -1
        needed = runs.trial.needs(config)
        assert set(needed) == {"original", "retrained"}
        assert {one["seed"] for _, one in needed.values()} == {100}
        assert {one["request"] for _, one in needed.values()} == {"none", "client-3"}
        assert not {config_key(one) for _, one in needed.values()} & judged


def test_trials_are_made_on_every_tuning_target():
    e = tuned(3, clients=6, tuning_targets=[3, 5])
    config = next(config for _, config in e.runs() if config["method"] == "PGA" and config["trials"])
    assert [(one["request"], one["seed"], one["cap"]) for one in trials_of(config)] == [
        ("client-3", 100, 7), ("client-5", 100, 7)
    ] * 3  # fmt: skip
    assert [one["options"] for one in trials_of(config)][::2] == [one["options"] for one in trials_of(config)][1::2]
    stage = {(cell.request, cell.label): one for cell, one in e.tuning() if one in trials_of(config)}
    assert list(stage) == [(request, str(k)) for k in range(3) for request in ("client-3", "client-5")]
    assert list(stage.values()) == trials_of(config)


def test_a_tuned_run_needs_its_trials_and_they_are_those_of_the_tuning_stage():
    e = tuned()
    stage = {cell: config_key(config) for cell, config in e.tuning()}
    for cell, config in e.runs():
        named = {name: one for name, (fn, one) in runs.needs(config).items() if fn is runs.trial}
        assert list(named) == [f"trial {k}" for k in range(len(config["trials"]))]
        for k, one in enumerate(named.values()):
            assert config_key(one) == stage[Cell("tuning", cell.setting, 100, "client-3", cell.method, str(k))]
            assert one["cap"] == min(config["cap"], 7)
            assert one["options"] == {**config["options"], **config["trials"][k]}
        assert trials_of(config) == list(named.values())


def test_what_was_published_stays_as_a_second_row():
    e, plain = tuned(), dict(tuned(1).runs())
    rows = dict(e.runs())
    for s in e.scenarios():
        for setting, method in itertools.product(s.settings, (*CONTROLS, *METHODS)):
            both = s.name in ("clients", "samples", "pairs") and len(e.trials(method)) > 1
            cell = Cell(s.name, setting, s.seeds[0], s.requests[0], method)
            assert (cell._replace(label=PUBLISHED) in rows) == both
            assert bool(rows[cell]["trials"]) == both
            assert rows[cell._replace(label=PUBLISHED) if both else cell] == plain[cell]
            if both:  # nothing else differs
                assert {**rows[cell], "trials": [], "tuned_on": {}} == plain[cell]


def test_settings_that_the_main_block_does_not_have_are_not_tuned():
    e = tuned(settings=[IID], sample_settings=[IID, SKEWED], official_settings=[], sweep_settings=[])
    assert {cell.setting for cell, config in e.runs() if config["trials"]} == {IID}
    assert {cell.setting for cell, _ in e.tuning()} == {IID}
