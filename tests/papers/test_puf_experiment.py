"""PUF's parameters: what is wrong is named at once, and what a run's config says is complete and canonical."""

from dataclasses import asdict, fields, replace

import pytest

from fu_core.data import NAMES
from fu_core.errors import ConfigError
from fu_core.federation.local import ClientOpt
from fu_core.papers.problems import PROBLEM_KEYS, Setting, client_opt, problem
from fu_core.papers.puf_experiment import TRAINING_KEYS, Experiment
from fu_core.records import config_key
from fu_core.reproduce import declared_parameters, load_profile, notebooks, plan, profiles

IID = "digits/iid/softmax_regression"
SKEWED = "digits/dirichlet-0.3/mlp"


def experiment(**change):
    return replace(Experiment("test", [IID, SKEWED], targets=[0, 2], seeds=[0, 1], clients=4), **change)


# --- settings ---


@pytest.mark.parametrize(
    ("text", "expected", "title"),
    [
        (IID, Setting("digits", "iid", 0.0, "softmax_regression"), "Digits, IID"),
        (SKEWED, Setting("digits", "dirichlet", 0.3, "mlp"), "Digits, Dirichlet 0.3"),
        ("mnist/dirichlet-1e-1/tiny_cnn", Setting("mnist", "dirichlet", 0.1, "tiny_cnn"), "MNIST, Dirichlet 0.1"),
        ("adult/dirichlet-5/mlp", Setting("adult", "dirichlet", 5.0, "mlp"), "adult, Dirichlet 5"),
    ],
)
def test_a_setting_reads_as_data_set_split_and_net(text, expected, title):
    assert Setting.parse(text) == expected
    assert expected.title == title


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("digits/iid", r"must look like 'digits/dirichlet-0.3/tiny_cnn', got 'digits/iid'"),
        ("digits/iid/mlp/7", r"must look like .* got 'digits/iid/mlp/7'"),
        ("digits", r"must look like"),
        ("", r"must look like .* got ''"),
        ("digits/shards-2/mlp", r"split of .* must be one of 'iid', 'dirichlet', got 'shards'"),
        ("digits/dirichlt-0.3/mlp", r"split of .* got 'dirichlt'; did you mean 'dirichlet'\?"),
        ("digits/iid-0.3/mlp", r"split of .* must be 'iid' alone, which takes no alpha, got 'iid-0.3'"),
        ("digits/iid/mpl", r"model of .* got 'mpl'; did you mean 'mlp'\?"),
        ("digits/dirichlet-high/mlp", r"alpha of .* must be a number, got 'high'"),
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
    with pytest.raises(ConfigError, match=says):
        experiment(settings=[text])


def test_an_unknown_data_set_is_named_when_the_problem_is_built():
    config = experiment(settings=["digts/iid/mlp"]).training("digts/iid/mlp", 0)
    with pytest.raises(ValueError, match=r"name must be one of .* got 'digts'; did you mean 'digits'\?"):
        problem(config)


# --- experiments ---


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"settings": []}, "settings must list at least one value"),
        ({"settings": [IID, IID]}, "settings must list at least one value, each once"),
        ({"targets": []}, "targets must list at least one value"),
        ({"targets": [1, 1]}, r"targets must list at least one value, each once, got \[1, 1\]"),
        ({"targets": [0, 4]}, "targets names client 4, but clients are 0 to 3"),
        ({"targets": [-1]}, "targets names client -1"),
        ({"seeds": []}, "seeds must list at least one value"),
        ({"seeds": [3, 3]}, "seeds must list at least one value, each once"),
        ({"clients": 1, "targets": [0]}, "clients must be a whole number >= 2, got 1"),
        ({"clients": 4.0}, "clients must be a whole number"),
        ({"rounds": 0}, "rounds must be a whole number >= 1, got 0"),
        ({"recovery_cap": 0}, "recovery_cap must be a whole number >= 1"),
        ({"n_val": 0}, "n_val must be a whole number >= 1"),
        ({"n_train": -1}, "n_train must be a whole number >= 0"),
        ({"n_test": -5}, "n_test must be a whole number >= 0"),
        ({"eta_u_special": 0}, "eta_u_special must be a finite number > 0"),
        ({"eta_u_regular": -20.0}, "eta_u_regular must be a finite number > 0"),
        ({"epochs": 0}, "epochs must be a finite number > 0"),
        ({"lr": 0.0}, "lr must be a finite number > 0"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"momentum": -0.1}, "momentum and weight_decay must be >= 0"),
        ({"optimiser": "sgdd"}, r"optimiser must be one of .* did you mean 'sgd'\?"),
        ({"augmentation": "flip"}, "augmentation must be one of"),
    ],
)
def test_a_parameter_out_of_range_is_one_error_that_names_it(change, says):
    with pytest.raises(ValueError, match=says) as info:
        experiment(**change)
    assert "\n" not in str(info.value)


def test_an_unknown_method_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match=r"method must be one of 'Original', .* did you mean 'PUF-Special'\?"):
        experiment().unlearning(IID, 0, 0, "PUF-special")


def test_every_cell_comes_once():
    cells = list(experiment().cells())
    assert len(cells) == len(set(cells)) == 2 * 2 * 2
    assert {(s, seed, t) for s in (IID, SKEWED) for seed in (0, 1) for t in (0, 2)} == set(cells)


# --- configs ---


def test_a_training_config_holds_problem_local_training_rounds_seed_and_who_is_left_out_and_nothing_else():
    config = experiment(rounds=7, lr=0.5).training(SKEWED, seed=1, exclude=[2])
    local = {f.name for f in fields(ClientOpt)}
    assert set(config) == {*PROBLEM_KEYS, *local, "rounds", "seed", "exclude"} == set(TRAINING_KEYS)
    assert (config["dataset"], config["split"], config["alpha"], config["model"]) == ("digits", "dirichlet", 0.3, "mlp")
    assert (config["rounds"], config["lr"], config["seed"], config["exclude"]) == (7, 0.5, 1, [2])
    assert client_opt(config) == experiment(rounds=7, lr=0.5).local()


def test_an_unlearning_config_is_the_original_training_with_target_method_and_cap():
    e = experiment(recovery_cap=5)
    for method in ("Original", "Retrain", "Natural", "NoT"):
        expected = {**e.training(IID, 1), "target": 2, "method": method, "cap": 5}
        assert e.unlearning(IID, 1, 2, method) == expected
        assert expected["exclude"] == []


def test_puf_configs_carry_the_rate_of_their_mode_and_their_own_epochs():
    e = experiment(eta_u_special=3.0, eta_u_regular=30.0, epochs=2.0, epochs_u=3.0)
    special = e.unlearning(IID, 0, 0, "PUF-Special")["puf"]
    regular = e.unlearning(IID, 0, 0, "PUF-Regular")["puf"]
    assert (special["mode"], special["eta_u"], special["epochs_u"]) == ("special", 3.0, 3.0)
    assert (regular["mode"], regular["eta_u"], regular["eta_r"]) == ("regular", 30.0, 1.0)
    assert (special["form"], regular["form"]) == ("corrected", "corrected")
    assert e.unlearning(IID, 0, 0, "PUF-Special", form="printed")["puf"] == {**special, "form": "printed"}


def test_what_does_not_concern_a_run_is_not_in_its_config():
    """Another profile, more targets or another eta_u must not repeat the trainings."""
    e = experiment()
    other = experiment(profile="other", targets=[1], seeds=[5], eta_u_special=9.0, recovery_cap=3, settings=[IID])
    assert config_key(e.training(IID, 0)) == config_key(other.training(IID, 0))
    longer = replace(other, recovery_cap=e.recovery_cap)
    assert config_key(e.unlearning(IID, 0, 0, "NoT")) == config_key(longer.unlearning(IID, 0, 0, "NoT"))


def test_2_and_2_point_0_name_the_same_run():
    whole = {"epochs": 2, "lr": 1, "weight_decay": 0, "momentum": 0, "eta_u_special": 2, "eta_u_regular": 20}
    a, b = experiment(**whole), experiment(**{name: float(value) for name, value in whole.items()})
    assert config_key(a.training(IID, 0)) == config_key(b.training(IID, 0))
    for method in ("Natural", "PUF-Special", "PUF-Regular"):
        assert config_key(a.unlearning(IID, 0, 0, method)) == config_key(b.unlearning(IID, 0, 0, method))
    assert config_key(a.unlearning(IID, 0, 0, "PUF-Special", eta_u=3)) == config_key(
        a.unlearning(IID, 0, 0, "PUF-Special", eta_u=3.0)
    )
    assert config_key(a.training("digits/dirichlet-1/mlp", 0)) == config_key(a.training("digits/dirichlet-1.0/mlp", 0))


def test_the_split_does_not_depend_on_the_training_seed():
    e = experiment(n_train=200)
    assert problem(e.training(SKEWED, 0)).data_hash == problem(e.training(SKEWED, 1)).data_hash
    assert problem(e.training(SKEWED, 0)).data_hash != problem(e.training(IID, 0)).data_hash


# --- profiles ---


def test_the_quick_profile_says_what_the_notebook_says():
    """Opening the notebook and `make reproduce` must do the same; only the sliders may differ."""
    defaults = {name: parameter.default for name, parameter in declared_parameters(notebooks()["puf"]).items()}
    assert defaults["profile"] == "quick"
    besides = {"profile", "interactive"}
    assert {name: value for name, value in defaults.items() if name not in besides} == {
        name: value for name, value in load_profile("puf", "quick").items() if name not in besides
    }


def test_there_are_three_profiles():
    assert profiles("puf") == ["laptop", "paper", "quick"]


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_gives_every_parameter_and_makes_an_experiment(profile):
    parameters = plan("puf", profile, {}).parameters
    assert not parameters.pop("interactive", None)  # nobody is there to move sliders
    assert {*parameters, "interactive"} == set(declared_parameters(notebooks()["puf"]))
    e = Experiment(**parameters)
    assert asdict(e) == parameters
    assert all(Setting.parse(text).dataset in NAMES for text in e.settings)
    assert len({config_key(e.unlearning(*cell, "NoT")) for cell in e.cells()}) == len(list(e.cells()))
