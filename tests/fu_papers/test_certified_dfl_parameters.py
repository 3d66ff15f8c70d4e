"""Certified DFL's parameters: every bad one is refused by name, and every profile gives all of them."""

import pytest

from fu_core.data import NAMES
from fu_papers.certified_dfl.grid import PER_DATASET, Experiment
from fu_papers.certified_dfl.parameters import SCHEMA
from fu_papers.lab.notebooks import OTHERS, plan
from fu_papers.parameters import load_profile
from fu_papers.problems import Setting
from tests.certified_dfl_lab import CONVEX, NET, experiment
from tests.refusals import told_otherwise

E = experiment()
SCALES = ("l2", "lr", "lr_decay", "momentum", "epochs", "damping")  # per data set, any finite number in their range
COUNTS = ("rounds", "batch_size", "pdudt_rounds")  # per data set, whole numbers >= 1
NATURALS = ("n_train", "n_test", "curvature_samples", "printed_samples")  # per data set, whole numbers >= 0
REFUSED = [
    *(({name: []}, f"{name} must list at least one value") for name in ("datasets", "splits", "topologies", "seeds")),
    ({"epsilons": []}, "epsilons must list at least one value"),
    ({"datasets": [CONVEX, CONVEX]}, "datasets must list each value once"),
    ({"splits": ["iid", "iid"]}, "splits must list each value once"),
    ({"topologies": ["ring", "ring"]}, "topologies must list each value once"),
    ({"seeds": [1, 1]}, "seeds must list each value once, got [1, 1]"),
    ({"epsilons": [1.0, 1.0]}, "epsilons must list each value once"),
    ({"datasets": ["unit_softmax", NET]}, "datasets must look like 'mnist/unit_softmax', got 'unit_softmax'"),
    ({"datasets": [CONVEX, "digits/iid/mlp"]}, "must look like 'mnist/unit_softmax', got 'digits/iid/mlp'"),
    ({"datasets": [NET, CONVEX]}, "datasets must begin with a convex net, one of"),
    ({"datasets": [CONVEX, "digits/mpl"]}, "model of 'digits/iid/mpl' must be one of"),
    ({"l2": [0.0, 0.0]}, "l2 of the first data set must be a finite number > 0, got 0.0"),
    ({"splits": ["shards-2"]}, "split of 'digits/shards-2/unit_softmax' must be one of"),
    ({"splits": ["iid", "dirichlet-0"]}, "alpha of 'digits/dirichlet-0/unit_softmax' must be a finite number > 0"),
    ({"topologies": ["ring", "erdos_reyni"]}, "got 'erdos_reyni'; did you mean 'erdos_renyi'?"),
    ({"topologies": ["line"]}, "topologies must be one of 'ring'"),
    ({"order": "act"}, "order must be one of 'cta', 'atc', got 'act'"),
    *(({"epsilons": [1.0, value]}, f"epsilons must be greater than 0, got {value}") for value in (0.0, -1.0)),
    ({"epsilons": [float("inf")]}, "epsilons must be a finite number, got inf"),
    *(({name: 0.0}, f"{name} must be greater than 0, got 0.0") for name in ("budget", "delta", "fraction")),
    *(({name: 0.0}, f"{name} must be greater than 0, got 0.0") for name in ("sequence_fraction", "edge_probability")),
    *(({name: 1.0}, f"{name} must be less than 1, got 1.0") for name in ("delta", "fraction", "sequence_fraction")),
    ({"net_choices": ["client"]}, r"net_choices must be one of 'sample', 'class', got 'client'"),
    ({"net_gradient": "both"}, r"net_gradient must be one of 'retained', 'centred', 'forgotten', got 'both'"),
    ({"close_budget": 0.0}, "close_budget must be greater than 0, got 0.0"),
    ({"scale_clients": []}, "scale_clients must list at least one value"),
    ({"scale_clients": [4, 4]}, "scale_clients must list each value once"),
    ({"scale_clients": [4, 2]}, "scale_clients must be greater than or equal to 3, got 2"),
    ({"scale_clients": [10, 3], "leaving": 3}, "scale_clients must be more than leaving, client 3, got [10, 3]"),
    ({"sequence_fraction": -0.2}, "sequence_fraction must be greater than 0, got -0.2"),
    ({"clients": 2}, "clients must be greater than or equal to 3, got 2"),
    ({"clients": 4.0}, "clients must be a valid integer, got 4.0"),
    ({"leaving": 4}, "leaving must be a client, 0 to 3, got 4"),
    *(({name: -1}, f"{name} must be greater than or equal to 0, got -1") for name in ("leaving", "forget_class")),
    ({"forget_class": 1.5}, "forget_class must be a valid integer, got 1.5"),
    *(
        ({name: 0}, f"{name} must be greater than or equal to 1, got 0")
        for name in ("sequence", "timed_rounds", "head_rounds", "scale_rounds")
    ),
    ({"timed_rounds": 1.5}, "timed_rounds must be a valid integer, got 1.5"),
    *(({name: [3, -1]}, f"{name} must be greater than") for name in (*SCALES, *COUNTS, *NATURALS)),
    *(({name: [0.1, float("nan")]}, f"{name} must be a finite number, got nan") for name in SCALES),
    *(({name: [1, 1.5]}, f"{name} must be a valid integer, got 1.5") for name in (*COUNTS, *NATURALS)),
    *(({name: [3, 0]}, f"{name} must be greater than") for name in ("lr", "lr_decay", "epochs", *COUNTS)),
    ({"curvature": ["hesian", "ggn"]}, "curvature must be one of"),
    ({"printed_curvature": ["hessian", "fischer"]}, "got 'fischer'; did you mean 'fisher'?"),
    *(
        ({name: getattr(E, name)[:1]}, f"{name} must have one value per data set (2), got {getattr(E, name)[:1]}")
        for name in PER_DATASET
    ),
    *(({name: getattr(E, name) * 2}, f"{name} must have one value per data set (2), got") for name in PER_DATASET),
]


def test_a_parameter_out_of_range_is_one_error_that_names_it():
    assert told_otherwise(lambda change: E.changed(**change), REFUSED) == []


def test_the_lists_per_data_set_are_all_lists_but_eleven():
    lists = {name for name in SCHEMA.model_fields if isinstance(getattr(E, name), list)}
    shared = {"datasets", "splits", "topologies", "main_only", "net_choices", "seeds", "epsilons", "scale_clients"}
    assert lists - set(PER_DATASET) == {*shared, "peer_l2", "peer_fractions", "peer_seeds"}
    assert set(PER_DATASET) < lists
    starred = {name for name, field in SCHEMA.model_fields.items() if field.description.startswith("*")}
    assert starred == set(PER_DATASET)


@pytest.mark.parametrize(
    "change",
    [
        {"fraction": 0.99},
        {"delta": 0.99},
        {"leaving": 3},
        {"forget_class": 0},
        {"clients": 3, "leaving": 2},
        {"sequence": 1},
        {"datasets": ["digits/softmax_regression", NET]},
        {"topologies": ["star", "complete"]},
        {"damping": [0.0, 0.0]},
        {"momentum": [0.0, 0.0]},
        {"order": "atc"},
    ],
)
def test_the_last_value_in_range_is_accepted(change):
    assert dict(E.changed(**change)) == dict(E) | change


# --- profiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_gives_every_parameter_and_makes_an_experiment(profile):
    values = load_profile("certified_dfl", profile)
    assert list(values) == [name for name in SCHEMA.model_fields if name != "profile"]
    e = Experiment.of(profile)
    assert dict(e) == {"profile": profile, **values}
    assert all(Setting.parse(place.setting).dataset in NAMES for place in e.places())
    assert (e.splits, e.topologies) == (["iid", "dirichlet-0.3"], ["ring", "erdos_renyi"])  # as in the paper, and:
    assert (e.clients, e.fraction, e.forget_class, e.sequence, e.sequence_fraction) == (10, 0.1, 0, 3, 0.2)
    assert e.main(e.datasets[0])[1:] == ("iid", "erdos_renyi")


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_fits_the_notebook(profile):
    assert plan("certified_dfl", profile, {}).parameters == {"profile": profile}
    changed = plan("certified_dfl", profile, {"clients": 12, "delta": 1e-4}).parameters
    assert changed == {"profile": profile, "clients": 12, OTHERS: {"delta": 1e-4}}
