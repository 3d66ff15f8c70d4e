"""HF-KCU's parameters: what is wrong is named at once, and every profile gives all of them."""

import pytest

from fu_core.data import NAMES
from fu_papers.hf_kcu.grid import Experiment
from fu_papers.hf_kcu.parameters import SCHEMA
from fu_papers.lab.notebooks import plan
from fu_papers.parameters import load_profile
from fu_papers.problems import Setting
from tests.hf_kcu_lab import experiment
from tests.refusals import told_otherwise

RIGHT = {"settings": ["digits/dirichlet-0.5/mlp", "digits/iid/mlp"], "seeds": [0, 1], "clients": 6}
AT_LEAST_ONE = (
    "rounds", "n_attacker", "batch_size", "iters", "shadows", "shards", "ga_epochs", "trigger_size",
    "history_interval", "nets_n_train", "nets_rounds",
)  # fmt: skip
NOT_NEGATIVE = (
    "n_train", "n_test", "nets_n_test", "trigger_target", "curvature_samples", "nets_curvature_samples", "damping",
    "momentum", "weight_decay",
)  # fmt: skip
POSITIVE = ("epochs", "lr", "lr_decay", "beta", "nets_epochs", "calibration", "poison_fraction")
LISTS = ("settings", "seeds", "sweep_seeds", "iters_sweep", "dampings", "betas", "alphas", "client_counts")
REFUSED = [
    *(({name: 0}, f"{name} must be greater than or equal to 1, got 0") for name in AT_LEAST_ONE),
    *(({name: -1}, f"{name} must be greater than or equal to 0, got -1") for name in NOT_NEGATIVE),
    *(({name: 1.5}, f"{name} must be a valid integer, got 1.5") for name in (*AT_LEAST_ONE, *NOT_NEGATIVE[:6])),
    *(({name: 0}, f"{name} must be greater than 0, got 0") for name in POSITIVE),
    *(({name: []}, f"{name} must list at least one value") for name in LISTS),
    *(({name: [1, 1]}, f"{name} must list each value once") for name in LISTS[1:]),
    ({"settings": ["digits/mlp"]}, "settings must look like"),
    ({"settings": ["digits/iid/mlp"] * 2}, "settings must list each value once"),
    ({"nets": ["digits/iid/vit"]}, "model of 'digits/iid/vit'"),
    ({"sweep_seeds": [5]}, "sweep_seeds must be among seeds [0, 1], got [5]"),
    ({"clients": 2}, "clients must be a whole number >= 3, got 2"),
    ({"shards": 7}, "shards must be at most clients (6), got 7"),
    ({"alphas": [0.0]}, "alphas must be greater than 0, got 0.0"),
    ({"client_counts": [1]}, "client_counts must be a whole number >= 2, got 1"),
    ({"calibration": 1.5}, "calibration must be less than or equal to 1, got 1.5"),
    ({"poison_fraction": 1.5}, "poison_fraction must be less than or equal to 1, got 1.5"),
    ({"damping": float("nan")}, "damping must be a finite number, got nan"),
    ({"dampings": [-1.0]}, "dampings must be greater than or equal to 0, got -1.0"),
    ({"betas": [0.0]}, "betas must be greater than 0, got 0.0"),
    ({"iters_sweep": [0]}, "iters_sweep must be greater than or equal to 1, got 0"),
    ({"matrix": "ggm"}, "matrix must be one of 'hessian', 'ggn', 'fisher', got 'ggm'; did you mean 'ggn'?"),
    ({"optimiser": "sgdd"}, "got 'sgdd'; did you mean 'sgd'?"),
    ({"augmentation": "flip"}, "augmentation must be one of"),
]


def test_a_parameter_out_of_range_is_one_error_that_names_it():
    right = experiment(**RIGHT)
    assert right.main == "digits/dirichlet-0.5/mlp"
    assert told_otherwise(lambda change: right.changed(**change), REFUSED) == []


# --- profiles ---


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_gives_every_parameter_and_makes_an_experiment(profile):
    assert {*load_profile("hf_kcu", profile), "profile"} == set(SCHEMA.model_fields)
    assert plan("hf_kcu", profile, {}).parameters == {"profile": profile}
    e = Experiment.of(profile)
    assert dict(e) == load_profile("hf_kcu", profile) | {"profile": profile}
    assert (e.rounds, e.epochs, e.iters, e.damping, e.beta) == (20, 5, 10, 0.01, 0.01)  # as in the paper
    assert all(Setting.parse(text).dataset in NAMES for text in (*e.settings, *e.nets))
