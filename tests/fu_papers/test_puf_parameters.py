"""PUF's parameters: what is wrong is named at once, and every profile gives all of them."""

import pytest

from fu_core.data import NAMES
from fu_papers.lab.notebooks import plan
from fu_papers.lab.record import config_key
from fu_papers.parameters import load_profile
from fu_papers.problems import Setting
from fu_papers.puf.grid import CONTROLS, METHODS, Experiment
from fu_papers.puf.parameters import SCHEMA
from tests.puf_lab import experiment
from tests.refusals import told_otherwise

IID = "digits/iid/softmax_regression"
SKEWED = "digits/dirichlet-0.3/mlp"
SITES = "phantom/site/small_res_unet"
EVERYTHING = {  # scenarios of every kind
    "settings": [IID, SKEWED], "targets": [0, 2], "seeds": [0, 1], "clients": 4, "long_settings": [SKEWED],
    "sample_settings": [IID, SKEWED], "pair_settings": [SKEWED], "pairs": [[0, 1], [2, 3]],
    "segmentation_settings": [SITES], "segmentation_targets": [0, 5], "sweep_settings": [SKEWED],
}  # fmt: skip

AT_LEAST_ONE = (
    "rounds", "recovery_cap", "n_val", "batch_size", "fed_au_epochs", "long_rounds", "transformer_rounds",
    "segmentation_rounds", "segmentation_cap", "segmentation_n_val", "segmentation_batch_size", "tuning_trials",
    "tuning_cap", "pga_batch_size",
)  # fmt: skip
NOT_NEGATIVE = (
    "n_train", "n_test", "history_interval", "mode_rounds_d", "mode_rounds_m", "segmentation_n_train", "momentum",
    "weight_decay", "segmentation_weight_decay", "relearn_cap", "mode_guidance_momentum",
)  # fmt: skip
WHOLE = (*AT_LEAST_ONE, *(name for name in NOT_NEGATIVE if "weight" not in name and "momentum" not in name), "clients")
POSITIVE = (
    "calibration", "eta_u_special", "eta_u_regular", "epochs_u", "epochs", "lr", "lr_decay", "long_epochs",
    "transformer_lr", "segmentation_epochs", "segmentation_lr", "pga_stop", "pga_lr", "pga_epochs", "mode_lr_guidance",
    "mode_lr_target",
)  # fmt: skip
NOT_EMPTY = ("settings", "targets", "seeds", "few_seeds", "sweep_seeds", "natural_rounds", "tuning_targets")
LISTS = ("segmentation_special", "segmentation_regular", "sweep_special", "sweep_regular", "sweep_epochs_u")
REFUSED = [
    *(({name: 0}, f"{name} must be greater than or equal to 1, got 0") for name in AT_LEAST_ONE),
    *(({name: -1}, f"{name} must be greater than or equal to 0, got -1") for name in NOT_NEGATIVE),
    *(({name: 1.5}, f"{name} must be a valid integer, got 1.5") for name in WHOLE),
    *(({name: 0}, f"{name} must be greater than 0, got 0") for name in POSITIVE),
    *(({name: float("inf")}, f"{name} must be a finite number, got inf") for name in POSITIVE),
    *(({name: [2.0, 0.0]}, f"{name} must be greater than 0, got 0.0") for name in LISTS),
    *(({name: [float("nan")]}, f"{name} must be a finite number, got nan") for name in LISTS),
    *(({name: []}, f"{name} must list at least one value") for name in NOT_EMPTY),
    *(({name: [1, 1]}, f"{name} must list each value once, got [1, 1]") for name in NOT_EMPTY if name != "settings"),
    ({"settings": [IID, IID]}, "settings must list each value once"),
    ({"sample_settings": [IID, IID]}, "sample_settings must list each value once"),
    ({"targets": [0, 4]}, "targets names client 4, but clients are 0 to 3"),
    ({"targets": [-1]}, "targets must be greater than or equal to 0, got -1"),
    ({"targets": [0.0]}, "targets must be a valid integer, got 0.0"),
    ({"few_seeds": [0, 7]}, "few_seeds must be some of seeds [0, 1], got [0, 7]"),
    ({"sweep_seeds": [0, 7]}, "sweep_seeds must be some of seeds [0, 1], got [0, 7]"),
    ({"clients": 1, "targets": [0]}, "clients must be a whole number >= 2, got 1"),
    ({"optimiser": "sgdd"}, "got 'sgdd'; did you mean 'sgd'?"),
    ({"augmentation": "flip", "augmented": ["digits"]}, "augmentation must be one of"),
    ({"mode_lambda": 2.0}, "mode_lambda must be less than or equal to 1, got 2.0"),
    ({"mode_lambda": -0.5}, "mode_lambda must be greater than or equal to 0, got -0.5"),
    ({"sample_fraction": 0}, "sample_fraction must be greater than 0, got 0"),
    ({"sample_fraction": 1.0}, "sample_fraction must be less than 1, got 1.0"),
    ({"pairs": [[0, 1], [2, 4]]}, "pairs names client 4, but clients are 0 to 3"),
    ({"pairs": [[0, 1, 2]]}, "pairs must each name two different clients, got [0, 1, 2]"),
    ({"pairs": [[0, 0]]}, "pairs must list each value once, got [0, 0]"),
    ({"pairs": []}, "pairs must list at least one"),
    ({"clients": 2, "targets": [0], "pairs": [[0, 1]]}, "pairs must list at least one, of at least 3 clients"),
    ({"segmentation_optimiser": "adm"}, "did you mean 'adam'?"),
    ({"segmentation_targets": [7]}, "segmentation_targets names client 7, but clients are 0 to 5"),
    ({"segmentation_targets": []}, "segmentation_targets must name at least one hospital"),
    ({"segmentation_targets": [0, 0]}, "segmentation_targets must list each value once, got [0, 0]"),
    ({"sweep_settings": [SITES]}, "sweep_settings must be some of settings"),
    ({"further_methods": ["NaivGA"]}, "further_methods must be one of"),
    ({"further_methods": ["NaivGA"]}, "got 'NaivGA'; did you mean 'NaiveGA'?"),
    ({"further_methods": ["NaiveGA", "NaiveGA"]}, "further_methods must list each value once"),
    ({"further_methods": ["Destroyed"]}, "further_methods must be one of"),
    ({"natural_rounds": [2, 0]}, "natural_rounds must be greater than or equal to 1, got 0"),
    ({"official_settings": [SITES]}, "official_settings must be some of settings"),
    ({"fed_au_alpha": 1.5}, "fed_au_alpha must be less than or equal to 1, got 1.5"),
    ({"partial_share": 1.0}, "partial_share must be less than 1, got 1.0"),
    ({"partial_share": 0}, "partial_share must be greater than 0, got 0"),
    (
        {"tuning_trials": 2, "tuning_targets": [2]},
        "tuning_targets and tuning_seed must not be among those that are judged",
    ),
    (
        {"tuning_trials": 2, "tuning_targets": [3]},
        "targets [0, 1, 2, 3] and seeds [0, 1], got [3] and 100",
    ),  # in a pair
    ({"tuning_trials": 2, "tuning_targets": [3], "pair_settings": [], "tuning_seed": 1}, "seeds [0, 1], got [3] and 1"),
    ({"tuning_trials": 2, "tuning_targets": [4]}, "tuning_targets names client 4, but clients are 0 to 3"),
    ({"further_methods": ["PGA"]}, "further_methods must be one of"),  # is there already
    ({"further_methods": ["Retrain"]}, "further_methods must be one of"),
    ({"further_methods": ["PDUDT"]}, "further_methods must be one of"),  # not with a server
]


def test_a_parameter_out_of_range_is_one_error_that_names_it():
    right = experiment(**EVERYTHING)
    assert len(right.scenarios()) == 5
    assert told_otherwise(lambda change: right.changed(**change), REFUSED) == []


def test_a_further_method_joins_every_scenario_after_the_papers():
    for s in experiment(**EVERYTHING, further_methods=["NaiveGA", "HF-KCU"]).scenarios():
        assert tuple(s.methods) == (*CONTROLS, *METHODS, "NaiveGA", "HF-KCU")
    assert experiment(**EVERYTHING).methods == METHODS


def test_who_does_not_tune_or_has_no_pairs_need_not_care_for_the_tuning_targets():
    assert experiment(**{**EVERYTHING, "tuning_targets": [9]}).tuning_trials == 1
    alone = {**EVERYTHING, "pair_settings": [], "tuning_trials": 2, "tuning_targets": [3]}
    assert experiment(**alone).tuning_targets == [3]  # pairs name it, but nobody asks for them


# --- profiles ---


@pytest.mark.parametrize("profile", ["quick", "laptop", "workstation", "paper"])
def test_a_profile_gives_every_parameter_and_makes_an_experiment_of_every_kind(profile):
    assert {*load_profile("puf", profile), "profile"} == set(SCHEMA.model_fields)
    assert plan("puf", profile, {}).parameters == {"profile": profile}
    e = Experiment.of(profile)
    assert dict(e) == load_profile("puf", profile) | {"profile": profile}
    left_out = {"pairs"} if profile == "laptop" else set()  # so that it takes an hour
    assert {s.name for s in e.scenarios()} >= {"clients", "samples", "pairs", "segmentation"} - left_out
    assert all(Setting.parse(text).dataset in NAMES for s in e.scenarios() for text in s.settings)
    keys = [config_key(config) for _, config in e.runs()]
    assert len(set(keys)) == len(keys)
