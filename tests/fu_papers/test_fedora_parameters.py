"""FedORA's parameters: what is wrong is named at once, and every profile gives all of them."""

import pytest

from fu_core.data import NAMES
from fu_papers.controls import REFERENCES
from fu_papers.fedora.grid import METHODS, PER_DATASET, Experiment
from fu_papers.fedora.parameters import SCHEMA
from fu_papers.lab.notebooks import plan
from fu_papers.lab.record import config_key
from fu_papers.parameters import load_profile
from tests.fedora_lab import experiment
from tests.refusals import told_otherwise

TABLE, DIGITS = "breast_cancer/mlp", "digits/mlp"
E = experiment(
    datasets=[TABLE, DIGITS], seeds=[3, 5], classes=[[1], [2, 5, 2]], percents=[[50], [50, 25, 75]],
    n_train=[200, 210], n_val=[40, 50], n_test=[60, 100], epochs=[2, 3], lr=[0.05, 0.1], batch_size=[32, 25],
)  # fmt: skip

AT_LEAST_ONE = ("iterations", "ga_epochs", "cvfu_epochs", "repeats")
POSITIVE = (
    "lr_decay", "weight", "tau", "sigma", "sigma_vector", "ga_lr", "ico_scale", "ico_share", "cvfu_lr", "party_noise",
    "clip", "delta",
)  # fmt: skip
NOT_NEGATIVE = ("momentum", "weight_decay", "mu", "ratio")
LISTS = (
    "ga_lrs",
    "ico_scales",
    "cvfu_rounds",
    "few_shot_lrs",
    "thresholds",
    "datasets",
    "seeds",
    "weights",
    "ratios",
    "few",
    "few_ratios",
    "embedding_noise",
)
REFUSED = [
    *(({name: 0}, f"{name} must be greater than or equal to 1, got 0") for name in AT_LEAST_ONE),
    *(({name: 1.5}, f"{name} must be a valid integer, got 1.5") for name in AT_LEAST_ONE),
    *(({name: 0.0}, f"{name} must be greater than 0, got 0.0") for name in POSITIVE),
    *(({name: -1.0}, f"{name} must be greater than 0, got -1.0") for name in POSITIVE),
    *(({name: float("nan")}, f"{name} must be ") for name in (*POSITIVE, *NOT_NEGATIVE, "threshold")),
    *(({name: -0.1}, f"{name} must be greater than or equal to 0, got -0.1") for name in NOT_NEGATIVE),
    *(({name: []}, f"{name} must list at least one value, got []") for name in LISTS),
    *(({name: [0.1, 0.1]}, f"{name} must list each value once, got [0.1, 0.1]") for name in ("weights", "ratios")),
    *(({name: [1, 1]}, f"{name} must list each value once, got [1, 1]") for name in ("seeds", "few")),
    *(({name: [1.0, 0.0]}, f"{name} must be greater than 0, got 0.0") for name in ("weights", "embedding_noise")),
    *(({name: [0.05, 1.5]}, f"{name} must be less than or equal to 1, got 1.5") for name in ("ratios", "few_ratios")),
    *(({name: [-0.1]}, f"{name} must be greater than or equal to 0, got -0.1") for name in ("ratios", "few_ratios")),
    *(({name: [40, 0]}, f"{name} must be greater than or equal to 1, got 0") for name in ("n_val", "epochs")),
    *(({name: [-1, 0]}, f"{name} must be greater than or equal to 0, got -1") for name in ("n_train", "n_test")),
    *(({name: 1.1}, f"{name} must be less than or equal to 1, got 1.1")
      for name in ("ratio", "ico_share", "threshold", "delta")),
    *(({name: getattr(E, name)[:1]}, f"{name} must have one value per data set (2), got {getattr(E, name)[:1]}")
      for name in PER_DATASET),
    *(({name: [*getattr(E, name), getattr(E, name)[0]]}, f"{name} must have one value per data set (2), got [")
      for name in PER_DATASET),
    ({"datasets": [DIGITS, DIGITS]}, "datasets must list each value once"),
    ({"datasets": ["digits", DIGITS]}, "datasets must look like 'mnist/cnn', got 'digits'"),
    ({"datasets": [TABLE, "digits/iid/mlp"]}, "must look like 'mnist/cnn', got 'digits/iid/mlp'"),
    ({"datasets": [TABLE, "digits/mpl"]}, "bottom of 'digits/mpl' must be one of"),
    ({"classes": [[1], [2, 5]]}, "classes and percents of 'digits/mlp' must be equally many, got [2, 5]"),
    ({"classes": [[], [2]], "percents": [[], [50]]}, "classes and percents of 'breast_cancer/mlp' must be equally"),
    ({"classes": [[0], [2, 5, 2]]}, "classes must be greater than or equal to 1, got 0"),
    ({"classes": [[1.5], [2, 5, 2]]}, "classes must be a valid integer, got 1.5"),
    ({"percents": [[0], [50, 25, 75]]}, "percents must be greater than 0, got 0"),
    ({"percents": [[100], [50, 25, 75]]}, "percents must be less than 100, got 100"),
    ({"lr": [0.05, 0.0]}, "lr must be greater than 0, got 0.0"),
    ({"batch_size": [32, 0]}, "batch_size must be greater than or equal to 1, got 0"),
    ({"momentum": 1.0}, "momentum must be less than 1, got 1.0"),
    ({"momentum": 2.0}, "momentum must be less than 1, got 2.0"),  # steps that grow without end
    ({"tuning_seed": 5}, "tuning_seed must be none of the seeds [3, 5], got 5"),
    ({"tuning_requests": [["classes-1-50"], ["classes-1-50-from-7"]]}, "tuning_requests must name none that is judged"),
    ({"tuning_requests": [["classes-1"], ["classes-1-50-from-7"]]}, "request must look like"),
    ({"splits": ["2+"]}, "splits String should match pattern"),
    ({"tuning_trials": 0}, "tuning_trials must be greater than or equal to 1, got 0"),
    ({"thresholds": [1.5]}, "thresholds must be less than or equal to 1, got 1.5"),
    ({"few": [0]}, "few must be greater than or equal to 1, got 0"),
]  # fmt: skip


def test_a_parameter_out_of_range_is_one_error_that_names_it():
    assert told_otherwise(lambda change: E.changed(**change), REFUSED) == []


@pytest.mark.parametrize(
    "change",
    [{"ico_share": 1.0}, {"ratio": 0.0}, {"ratios": [0.0, 1.0]}, {"mu": 0.0}, {"momentum": 0.0}, {"iterations": 1},
     {"threshold": 1.0}, {"threshold": -1.0}, {"delta": 1.0}],
)  # fmt: skip
def test_the_last_value_in_range_is_accepted(change):
    assert dict(E.changed(**change)) == dict(E) | change


# --- profiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["quick", "laptop", "workstation", "paper"])
def test_a_profile_gives_every_parameter(profile):
    values = load_profile("fedora", profile)
    assert [*values, "profile"] == [name for name in SCHEMA.model_fields if name != "profile"] + ["profile"]
    assert plan("fedora", profile, {}).parameters == {"profile": profile}
    e = Experiment.of(profile)
    assert dict(e) == {"profile": profile, **values}
    assert {dataset.split("/")[0] for dataset in e.datasets} <= set(NAMES)
    assert {0.0, 0.05, 1.0} <= set(e.ratios)  # claim F7 compares them
    assert e.tuning_trials > 1
    own = {("main", method) for method in (*REFERENCES, *METHODS)}  # a second retraining is another seed's
    keys = [config_key(config) for cell, config in e.cells().items() if (cell.group, cell.method) in own]
    assert len(set(keys)) == len(keys)
