"""Certified DFL's parameters: every bad one is refused by name, and configs name exactly the runs that are needed."""

import json
import re
from dataclasses import asdict, fields, replace

import pytest
from fu_core.unlearning.certified import DU

from fu_core.data import NAMES
from fu_core.errors import ConfigError
from fu_core.federation.local import ClientOpt
from fu_papers.certified_dfl.grid import (
    CHOICES,
    DU_FORMS,
    METHODS,
    PER_DATASET,
    REFERENCES,
    WHOLE_CLIENTS,
    Cell,
    Experiment,
    Place,
)
from fu_papers.certified_dfl.runs import TRAINING_KEYS, config_place
from fu_papers.lab.record import config_key
from fu_papers.lab.reproduce import declared_parameters, load_profile, notebooks, plan, profiles
from fu_papers.problems import PROBLEM_KEYS, Setting, client_opt

CONVEX, NET = "digits/unit_softmax", "digits/mlp"
SPLITS, GRAPHS, SEEDS = ["iid", "dirichlet-0.3"], ["ring", "erdos_renyi"], [3, 5]
E = Experiment(
    "test", [CONVEX, NET], SPLITS, GRAPHS, SEEDS, n_train=[200, 210], n_test=[100, 110], rounds=[6, 4], lr=[3.0, 0.05],
    lr_decay=[0.9, 0.8], momentum=[0.0, 0.7], batch_size=[20, 25], epochs=[1.0, 2.0], l2=[0.01, 0.0],
    curvature=["hessian", "ggn"], printed_curvature=["fisher", "diagonal_fisher"], damping=[0.0, 0.02],
    curvature_samples=[40, 30], clients=4, edge_probability=0.6, forget_class=2, leaving=1, cap=0.3, pdudt_rounds=2,
    epsilons=[1, 10], budget=1, timed_rounds=5,
)  # fmt: skip
MAINS = {dataset: Place(dataset, "iid", "erdos_renyi") for dataset in (CONVEX, NET)}
OF_DU = {"curvature", "printed_curvature", "damping", "curvature_samples"}


def key_of(config):
    """The name of the training that a config is about."""
    return config_key({name: config[name] for name in TRAINING_KEYS})


def trained(e=E):
    return {config_key(config) for config in e.trainings()}


def every_config(e=E, groups=("tables", "choices")):
    cells = [config for cell, config in e.cells().items() if cell.group in groups]
    return [*e.trainings(), *cells, *e.curves().values(), *e.speeds().values(), *e.certificates()]


def forms(config):
    """Every set of DU's options in a config."""
    return [config[name] for name in ("du", "printed") if name in config] + list(config.get("variants", {}).values())


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"datasets": []}, "datasets must list at least one value, each once, got []"),
        ({"datasets": [CONVEX, CONVEX]}, "datasets must list at least one value, each once"),
        ({"datasets": ["unit_softmax", NET]}, "datasets must look like 'mnist/unit_softmax', got 'unit_softmax'"),
        ({"datasets": [CONVEX, "digits/iid/mlp"]}, "must look like 'mnist/unit_softmax', got 'digits/iid/mlp'"),
        ({"datasets": [NET, CONVEX]}, "datasets must begin with a convex net, one of"),
        ({"datasets": [CONVEX, "digits/mpl"]}, "model of 'digits/iid/mpl' must be one of"),
        ({"l2": [0.0, 0.0]}, "l2 of the first data set must be a finite number > 0, got 0.0"),
        ({"l2": [-0.1, 0.0]}, "l2 of the first data set must be a finite number > 0, got -0.1"),
        ({"l2": [float("nan"), 0.0]}, "l2 of the first data set must be a finite number > 0, got nan"),
        ({"splits": []}, "splits must list at least one value"),
        ({"splits": ["iid", "iid"]}, "splits must list at least one value, each once"),
        ({"splits": ["shards-2"]}, "split of 'digits/shards-2/unit_softmax' must be one of"),
        ({"splits": ["iid", "dirichlet-0"]}, "alpha of 'digits/dirichlet-0/unit_softmax' must be a finite number > 0"),
        ({"topologies": []}, "topologies must list at least one value"),
        ({"topologies": ["ring", "ring"]}, "topologies must list at least one value, each once"),
        ({"topologies": ["ring", "erdos_reyni"]}, "got 'erdos_reyni'; did you mean 'erdos_renyi'?"),
        ({"seeds": []}, "seeds must list at least one value"),
        ({"seeds": [1, 1]}, "seeds must list at least one value, each once, got [1, 1]"),
        ({"epsilons": []}, "epsilons must list at least one value"),
        ({"epsilons": [1.0, 1.0]}, "epsilons must list at least one value, each once"),
        ({"epsilons": [1.0, 0.0]}, "epsilons, budget, cap and delta must be a finite number > 0, got 0.0"),
        ({"budget": 0.0}, "epsilons, budget, cap and delta must be a finite number > 0, got 0.0"),
        ({"cap": -0.1}, "epsilons, budget, cap and delta must be a finite number > 0, got -0.1"),
        ({"delta": 0.0}, "epsilons, budget, cap and delta must be a finite number > 0, got 0.0"),
        ({"delta": 1.0}, "delta must be < 1, got 1.0"),
        ({"clients": 2}, "clients must be a whole number >= 3, got 2"),
        ({"clients": 4.0}, "clients must be a whole number >= 3, got 4.0"),
        ({"leaving": 4}, "leaving must be a client, 0 to 3, got 4"),
        ({"leaving": -1}, "leaving must be a client, 0 to 3, got -1"),
        ({"forget_class": -1}, "forget_class must be a whole number >= 0, got -1"),
        ({"forget_class": 1.5}, "forget_class must be a whole number >= 0, got 1.5"),
        ({"fraction": 1.0}, "fraction must be < 1, got 1.0"),
        ({"fraction": 0.0}, "fraction must be a finite number > 0, got 0.0"),
        ({"sequence_fraction": 1.0}, "sequence_fraction must be < 1, got 1.0"),
        ({"sequence_fraction": -0.2}, "sequence_fraction must be a finite number > 0, got -0.2"),
        ({"edge_probability": 0.0}, "edge_probability must be a finite number > 0, got 0.0"),
        ({"sequence": 0}, "sequence must be a whole number >= 1, got 0"),
        ({"pdudt_rounds": 0}, "pdudt_rounds must be a whole number >= 1, got 0"),
        ({"timed_rounds": 1.5}, "timed_rounds must be a whole number >= 1, got 1.5"),
        ({"lr": [3.0, 0.0]}, "lr must be a finite number > 0, got 0.0"),
        ({"lr_decay": [0.0, 1.0]}, "lr_decay must be a finite number > 0, got 0.0"),
        ({"momentum": [0.0, -0.1]}, "momentum and weight_decay must be >= 0, got -0.1"),
        ({"epochs": [1.0, 0]}, "epochs must be a finite number > 0, got 0.0"),
        ({"batch_size": [20, 0]}, "batch_size must be a whole number >= 1, got 0"),
        ({"curvature": ["hesian", "ggn"]}, "curvature must be one of"),
        ({"printed_curvature": ["hessian", "fischer"]}, "got 'fischer'; did you mean 'fisher'?"),
        ({"damping": [0.0, -0.01]}, "damping must be >= 0, got -0.01"),
        ({"curvature_samples": [0, -30]}, "curvature_samples must be a whole number >= 0, got -30"),
    ],
)
def test_a_parameter_out_of_range_is_one_error_that_names_it(change, says):
    with pytest.raises(ValueError, match=re.escape(says)) as info:
        replace(E, **change)
    assert "\n" not in str(info.value)


def test_the_topology_that_is_unknown_is_named_with_its_parameter():
    with pytest.raises(ConfigError, match=r"topologies must be one of 'ring', .* got 'line'"):
        replace(E, topologies=["line"])


@pytest.mark.parametrize("name", PER_DATASET)
def test_a_list_with_a_value_too_few_or_too_many_is_named(name):
    values = list(getattr(E, name))
    for wrong in (values[:1], [*values, values[0]]):
        says = f"{name} must have one value per data set (2), got {wrong}"
        with pytest.raises(ConfigError, match=f"^{re.escape(says)}$"):
            replace(E, **{name: wrong})


def test_the_lists_per_data_set_are_all_lists_but_five():
    lists = {f.name for f in fields(Experiment) if f.type.startswith("Sequence")}
    assert lists - set(PER_DATASET) == {"datasets", "splits", "topologies", "seeds", "epsilons"}
    assert set(PER_DATASET) < lists


@pytest.mark.parametrize(
    "change",
    [
        {"fraction": 0.99},
        {"delta": 0.99},
        {"leaving": 3},
        {"forget_class": 0},
        {"clients": 3},
        {"sequence": 1},
        {"datasets": ["digits/softmax_regression", NET]},
        {"topologies": ["star", "complete"]},
        {"damping": [0.0, 0.0]},
        {"momentum": [0.0, 0.0]},
    ],
)
def test_the_last_value_in_range_is_accepted(change):
    assert asdict(replace(E, **change)) == asdict(E) | change


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match=r"method must be one of .* got 'PDUTD'; did you mean 'PDUDT'\?"):
        E.unlearning(MAINS[NET], 3, "client-1", "PDUTD")


# --- profiles --------------------------------------------------------------------------------------------------------


def test_there_are_three_profiles():
    assert profiles("certified_dfl") == ["laptop", "paper", "quick"]


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_gives_every_parameter_and_makes_an_experiment(profile):
    values = load_profile("certified_dfl", profile)
    assert list(values) == [f.name for f in fields(Experiment) if f.name != "profile"]
    e = Experiment(profile=profile, **values)
    assert asdict(e) == {"profile": profile, **values}
    assert all(Setting.parse(place.setting).dataset in NAMES for place in e.places())
    assert (e.splits, e.topologies) == (SPLITS, GRAPHS)  # as in the paper, and so are these:
    assert (e.clients, e.fraction, e.forget_class, e.sequence, e.sequence_fraction) == (10, 0.1, 0, 3, 0.2)
    assert e.main(e.datasets[0])[1:] == ("iid", "erdos_renyi")


@pytest.mark.parametrize("profile", ["quick", "laptop", "paper"])
def test_a_profile_fits_the_notebook(profile):
    parameters = plan("certified_dfl", profile, {}).parameters
    assert not parameters.pop("interactive", None)  # nobody is there to move sliders
    assert {*parameters, "interactive"} == set(declared_parameters(notebooks()["certified_dfl"]))
    assert asdict(Experiment(**parameters)) == parameters


def test_the_quick_profile_says_what_the_notebook_says():
    declared = declared_parameters(notebooks()["certified_dfl"])
    values = load_profile("certified_dfl", "quick")
    assert {name: declared[name].default for name in values} == values


# --- configs ---------------------------------------------------------------------------------------------------------


def test_configs_are_plain_json_and_2_and_2_point_0_name_the_same_run():
    for config in every_config():
        assert json.loads(json.dumps(config)) == config
    whole = {"lr": [3, 1], "epochs": [1, 2], "l2": [1, 0], "damping": [0, 1], "cap": 1, "epsilons": [1, 2], "budget": 1}
    floating = {k: [float(x) for x in v] if isinstance(v, list) else float(v) for k, v in whole.items()}
    a, b = (every_config(replace(E, edge_probability=1, momentum=[0, 0], **values)) for values in (whole, floating))
    assert [config_key(config) for config in a] == [config_key(config) for config in b]


def test_a_training_config_holds_problem_network_local_training_rounds_seed_and_request_and_nothing_else():
    config = E.training(Place(NET, "dirichlet-0.3", "ring"), 5, "class-2")
    local = {f.name for f in fields(ClientOpt)}
    names = {*PROBLEM_KEYS, *local, "l2", "topology", "edge_probability", "order", "rounds", "seed", "request"}
    assert set(config) == set(TRAINING_KEYS) == names
    assert [config[name] for name in ("dataset", "split", "alpha", "model")] == ["digits", "dirichlet", 0.3, "mlp"]
    assert [config[name] for name in ("topology", "seed", "request", "n_val")] == ["ring", 5, "class-2", 0]
    assert E.training(MAINS[NET], 5)["request"] == "none"
    assert client_opt(config) == E.local(NET)
    assert config_place(config) == ("digits", "mlp", "dirichlet-0.3", "ring", 5, "class-2")


def test_places_are_all_combinations_and_the_main_one_has_the_first_split_and_the_last_graph():
    assert E.places() == [Place(d, s, t) for d in (CONVEX, NET) for s in SPLITS for t in GRAPHS]
    assert {dataset: E.main(dataset) for dataset in E.datasets} == MAINS
    assert Place(NET, "dirichlet-0.3", "ring").setting == "digits/dirichlet-0.3/mlp"


@pytest.mark.parametrize("name", sorted(set(PER_DATASET) - OF_DU))
def test_a_value_per_data_set_ends_in_the_configs_of_its_data_set(name):
    first, second = getattr(E, name)
    assert first != second
    for config in every_config():
        assert config[name] == (first if config["model"] == "unit_softmax" else second)


def test_curvature_damping_and_samples_end_in_the_options_of_their_data_set_and_form():
    seen = set()
    for config in every_config(groups=["tables"]):
        convex = config["model"] == "unit_softmax"
        for du in forms(config):
            corrected = du["form"] == "corrected"
            assert du["curvature"] == (E.curvature if corrected else E.printed_curvature)[0 if convex else 1]
            assert du["damping"] == (0.0 if convex else 0.02)
            of_the_network = 40 if convex else 30  # the printed form's are each client's share
            if corrected and "budget" in config:
                assert du["curvature_samples"] is None  # a certificate solves exactly
            else:
                assert du["curvature_samples"] == (of_the_network if corrected else 10 if convex else 8)
            assert du["objective"] == "samples"
            seen.add((convex, du["form"]))
    assert len(seen) == 4


def test_only_fishers_are_sampled_in_the_printed_form_and_zero_means_all():
    e = replace(E, curvature_samples=[15, 0], printed_curvature=["hessian", "fisher"])
    assert e.du(CONVEX, "DU").curvature_samples == 15
    assert e.du(CONVEX, "DU printed").curvature_samples is None
    assert e.du(NET, "DU").curvature_samples is None
    assert e.du(NET, "DU printed").curvature_samples is None


def test_nets_get_the_cap_and_convex_ones_do_not():
    for config in every_config():
        for du in forms(config):
            convex = config["model"] == "unit_softmax"
            assert du["cap"] == (None if convex else 0.3)
            certifies = "budget" in config and du["form"] == "corrected"
            assert du["iters"] == (200 if certifies else 100 if convex else 20)
    assert E.convex(CONVEX)
    assert not E.convex(NET)
    # without l2 a linear model is not strongly convex
    flat = replace(E, datasets=[CONVEX, "mnist/softmax_regression"])
    assert not flat.convex("mnist/softmax_regression")
    assert flat.du("mnist/softmax_regression", "DU").cap == 0.3
    assert not replace(E, l2=[0.01, 0.01]).convex(NET)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_every_place_and_seed_has_every_request_and_method_but_leaving_clients_only_at_the_main_place():
    expected = [
        Cell("tables", request, place, seed, method)
        for place in E.places()
        for seed in SEEDS
        for request in ("sample", "class", "client")
        if request != "client" or place in MAINS.values()
        for method in (*REFERENCES, *METHODS, *([WHOLE_CLIENTS] if request == "client" else []))
    ]
    expected += [Cell("choices", label, MAINS[CONVEX], seed, "DU") for seed in SEEDS for label in CHOICES]
    assert list(E.cells()) == expected


def test_a_cells_config_says_what_the_cell_says():
    texts = {"sample": "sample-0.1", "class": "class-2", "client": "client-1"}
    assert E.requests() == texts
    for cell, config in E.cells().items():
        request = "sample" if cell.group == "choices" else cell.request
        assert (config["request"], config["method"]) == (texts[request], cell.method)
        assert key_of(config) == config_key(E.training(cell.place, cell.seed, texts[request]))
        assert ("du" in config) == (cell.method in DU_FORMS)
        assert ("pdudt_rounds" in config) == (cell.method == WHOLE_CLIENTS)
        if cell.method in DU_FORMS:
            assert config["du"]["form"] == ("corrected" if cell.method == "DU" else "printed")
        assert set(config) - set(TRAINING_KEYS) <= {"method", "du", "pdudt_rounds"}


def test_only_the_same_choice_comes_twice_among_the_cells():
    cells = E.cells()
    tables = [config_key(config) for cell, config in cells.items() if cell.group == "tables"]
    assert len(set(tables)) == len(tables)
    choices = {cell: config_key(config) for cell, config in cells.items() if cell.group == "choices"}
    assert len(set(choices.values())) == len(choices)
    repeated = [cell.request for cell, key in choices.items() if key in tables]
    assert repeated == ["corrected"] * len(SEEDS)
    for seed in SEEDS:
        main = cells[Cell("tables", "sample", MAINS[CONVEX], seed, "DU")]
        assert cells[Cell("choices", "corrected", MAINS[CONVEX], seed, "DU")] == main


def test_every_choice_changes_what_it_says_and_nothing_else():
    base = asdict(E.du(CONVEX, "DU"))
    assert asdict(E.du(CONVEX, "DU", **CHOICES["corrected"])) == base
    for label, change in CHOICES.items():
        du = asdict(E.du(CONVEX, "DU", **change))
        assert du == base | change
        assert (du == base) == (label == "corrected")
        assert E.cells()[Cell("choices", label, MAINS[CONVEX], 3, "DU")]["du"] == du


# --- trainings -------------------------------------------------------------------------------------------------------


def test_nothing_is_trained_twice():
    configs = E.trainings()
    assert len(trained()) == len(configs)
    places = [config_place(config) for config in configs]
    assert len(set(places)) == len(places)  # they are the names of the trainings' records


def test_every_run_has_its_original_and_its_retraining_among_the_trainings():
    needed = set()
    for config in (*E.cells().values(), *E.certificates()):
        needed |= {key_of(config), key_of(config | {"request": "none"})}
    assert needed == trained()
    assert {key_of(config) for config in E.curves().values()} <= trained()


def test_the_trainings_are_original_samples_and_class_everywhere_and_clients_at_the_main_place():
    expected = [
        E.training(place, seed, request)
        for place in E.places()
        for seed in SEEDS
        for request in ("none", "sample-0.1", "class-2", *(["client-1"] if place in MAINS.values() else []))
    ]
    assert len(expected) == 8 * 2 * 3 + 2 * 2
    assert trained() == {config_key(config) for config in expected}


@pytest.mark.parametrize(
    "change",
    [
        {"profile": "other"},
        {"cap": 0.9},
        {"epsilons": [3.0]},
        {"budget": 7.0},
        {"delta": 1e-3},
        {"pdudt_rounds": 9},
        {"timed_rounds": 1},
        {"sequence": 5},
        {"sequence_fraction": 0.5},
        {"damping": [0.1, 0.1]},
        {"curvature": ["ggn", "fisher"]},
        {"printed_curvature": ["ggn", "ggn"]},
        {"curvature_samples": [9, 9]},
    ],
)
def test_what_does_not_concern_training_repeats_none(change):
    assert trained(replace(E, **change)) == trained()


@pytest.mark.parametrize("change", [{"leaving": 2}, {"forget_class": 3}, {"fraction": 0.2}])
def test_another_request_repeats_no_original(change):
    kept = trained(replace(E, **change)) & trained()
    originals = {config_key(E.training(place, seed)) for place in E.places() for seed in SEEDS}
    assert originals < kept < trained()


# --- figures 1 and 2, certificates -----------------------------------------------------------------------------------


def test_curves_have_the_papers_methods_for_samples_and_clients_on_every_data_set():
    found = {(d, g): [m for dd, gg, m in E.curves() if (dd, gg) == (d, g)] for d, g, _ in E.curves()}
    methods = ["Retrain", *DU_FORMS]
    kinds = {"sample": methods, "client": [*methods, WHOLE_CLIENTS]}
    assert found == {(dataset, kind): kinds[kind] for dataset in E.datasets for kind in kinds}
    for (dataset, kind, method), config in E.curves().items():
        assert key_of(config) == config_key(E.training(MAINS[dataset], SEEDS[0]))
        assert (config["method"], config["pdudt_rounds"]) == (method, 2)
        sequence = ["sequence-1-3-0.2", "sequence-2-3-0.2", "sequence-3-3-0.2"]
        assert config["requests"] == (sequence if kind == "sample" else ["client-1"])
        assert config.get("du") == (asdict(E.du(dataset, method)) if method in DU_FORMS else None)


def test_time_is_taken_of_every_request_and_pdudts_of_clients_only():
    speeds = E.speeds()
    assert list(speeds) == [(dataset, kind) for dataset in E.datasets for kind in ("sample", "class", "client")]
    for (dataset, kind), config in speeds.items():
        assert key_of(config) == config_key(E.training(MAINS[dataset], SEEDS[0], E.requests()[kind]))
        assert config["pdudt_rounds"] == (2 if kind == "client" else 0)
        assert config["variants"] == {method: asdict(E.du(dataset, method)) for method in DU_FORMS}
    # no more rounds are timed than there are
    assert [speeds[dataset, "sample"]["timed_rounds"] for dataset in E.datasets] == [5, 4]


def test_certificates_are_of_the_convex_data_set_sample_wise_with_every_seed():
    configs = E.certificates()
    assert [config["seed"] for config in configs] == SEEDS
    for seed, config in zip(SEEDS, configs, strict=True):
        assert key_of(config) == config_key(E.training(MAINS[CONVEX], seed, "sample-0.1"))
        assert (config["epsilons"], config["budget"], config["delta"]) == ([1.0, 10.0], 1.0, 1e-5)
        # certificates are about the optimum: the whole step towards it, stationary or not, and nothing sampled
        exactly = {"gradient": "retained", "curvature_samples": None, "tol": 1e-6, "iters": 200}
        assert DU(**config["du"]) == E.du(CONVEX, "DU", **exactly)
        assert DU(**config["printed"]) == E.du(CONVEX, "DU printed")
    assert E.du(CONVEX, "DU").gradient == "forgotten"
