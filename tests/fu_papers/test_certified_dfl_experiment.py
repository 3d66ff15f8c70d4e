"""Certified DFL's configs: they name exactly the runs that are needed, and say what their parameters say."""

import json
from dataclasses import fields

import pytest

from fu_core.errors import ConfigError
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.baselines.pdudt import PDUDT
from fu_papers.certified_dfl import certify, curve, heads, runs, stages
from fu_papers.certified_dfl.grid import (
    AS_FEW,
    CHOICES,
    CHOICES_OF,
    DU_FORMS,
    METHODS,
    PER_DATASET,
    WHOLE_CLIENTS,
    Experiment,
    Place,
    granularity,
)
from fu_papers.certified_dfl.runs import TRAINING_KEYS
from fu_papers.controls import AGAIN, CONTROLS
from fu_papers.lab.record import config_key
from fu_papers.problems import PROBLEM_KEYS, client_opt, plain_fields
from tests.certified_dfl_lab import CONVEX, NET, cell, experiment

SPLITS, GRAPHS, SEEDS = ["iid", "dirichlet-0.3"], ["ring", "erdos_renyi"], [3, 5]
E = experiment(
    seeds=SEEDS, n_train=[200, 210], n_test=[100, 110], lr_decay=[0.9, 0.8], momentum=[0.0, 0.7], batch_size=[20, 25],
    epochs=[1.0, 2.0], printed_curvature=["fisher", "diagonal_fisher"], damping=[0.0, 0.02],
    curvature_samples=[40, 30], printed_samples=[40, 29], edge_probability=0.6, forget_class=2, leaving=1,
    net_gradient="centred",
    net_choices=["sample", "class"],
    epsilons=[1, 10], budget=1, timed_rounds=5, peer_seeds=SEEDS,
)  # fmt: skip
REQUESTS = {"sample": "sample-0.1", "class": "class-2", "client": "client-1"}
MAINS = {dataset: Place(dataset, "iid", "erdos_renyi") for dataset in (CONVEX, NET)}
OWN_TESTS = {"pdudt_rounds", "curvature", "printed_curvature", "damping", "curvature_samples", "printed_samples"}


def key_of(config):
    """The name of the training that a config is about."""
    return config_key({name: config[name] for name in TRAINING_KEYS})


def trained(e=E):
    return {config_key(config) for config in stages.trainings(e).values()}


def every_config(e=E, groups=("tables",)):
    cells = [config for cell, config in e.cells().items() if cell.group in groups]
    others = (e.curves(), e.speeds(), e.certificates())
    return [*stages.trainings(e).values(), *cells, *(config for configs in others for config in configs.values())]


def forms(config):
    """Every set of DU's options in a config."""
    own = [config["options"]] if config.get("method") in DU_FORMS else []
    certified = [config[name] for name in ("du", "printed") if config.get(name)]
    return own + certified + list(config.get("variants", {}).values())


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match=r"method must be one of .* got 'PDUTD'; did you mean 'PDUDT'\?"):
        E.unlearning(MAINS[NET], 3, "client-1", "PDUTD")


# --- configs ---------------------------------------------------------------------------------------------------------


def test_configs_are_plain_json_and_2_and_2_point_0_name_the_same_run():
    for config in every_config():
        assert json.loads(json.dumps(config)) == config
    whole = {"lr": [3, 1], "epochs": [1, 2], "l2": [1, 0], "damping": [0, 1], "epsilons": [1, 2], "budget": 1}
    floating = {k: [float(x) for x in v] if isinstance(v, list) else float(v) for k, v in whole.items()}
    a, b = (every_config(E.changed(edge_probability=1, momentum=[0, 0], **values)) for values in (whole, floating))
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


def test_places_are_all_combinations_and_the_main_one_has_the_first_split_and_the_last_graph():
    assert E.places() == [Place(d, s, t) for d in (CONVEX, NET) for s in SPLITS for t in GRAPHS]
    assert {dataset: E.main(dataset) for dataset in E.datasets} == MAINS
    assert Place(NET, "dirichlet-0.3", "ring").setting == "digits/dirichlet-0.3/mlp"


def test_a_data_set_may_have_the_main_place_alone():
    """Nothing else changes: what it runs there is what it would run there anyway, and the others run all of theirs."""
    few = E.changed(main_only=[NET])
    assert few.places() == [place for place in E.places() if place.dataset == CONVEX] + [MAINS[NET]]
    kept = {cell: config for cell, config in E.cells().items() if Place.of(cell) in few.places()}
    assert few.cells() == kept
    assert {Place.of(cell) for cell in heads.cells(few)} == {MAINS[NET]}
    assert set(stages.trainings(few)) < set(stages.trainings(E))
    with pytest.raises(ConfigError, match="main_only"):
        E.changed(main_only=["mnist/lenet"])


@pytest.mark.parametrize("name", sorted(set(PER_DATASET) - OWN_TESTS))
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
            of_the_network = 40 if convex else 30
            assert du["curvature_samples"] == (of_the_network if corrected else 10 if convex else 8)  # 40 / 4, 29 / 4
            assert du["objective"] == "samples"
            seen.add((convex, du["form"]))
    assert len(seen) == 4


def test_each_form_sees_as_many_samples_as_it_is_given_and_zero_means_all():
    e = E.changed(curvature_samples=[15, 0], printed_samples=[0, 15])
    assert e.options(CONVEX, "DU")["curvature_samples"] == 15
    assert e.options(CONVEX, "DU printed")["curvature_samples"] is None
    assert e.options(NET, "DU")["curvature_samples"] is None
    assert e.options(NET, "DU printed")["curvature_samples"] == 4  # each of four clients, of whom 15 / 4


@pytest.mark.parametrize("few", [0, 15])
def test_where_the_forms_see_different_samples_the_ablation_has_the_printed_one_with_as_few(few):
    e = E.changed(curvature_samples=[few, 0], printed_samples=[0, 15])
    as_few = [config for cell, config in e.cells().items() if cell.label == AS_FEW]
    assert [config["options"]["curvature_samples"] for config in as_few] == [4] * (len(e.seeds) if few else 0)
    assert {config["options"]["form"] for config in as_few} <= {"printed"}


@pytest.mark.parametrize("profile", ["quick", "laptop", "workstation", "paper"])
def test_where_the_theorem_applies_the_printed_form_has_the_papers_samples_which_are_all(profile):
    e = Experiment.of(profile)
    assert e.options(e.datasets[0], "DU printed")["curvature_samples"] is None


def test_convex_losses_are_solved_until_the_budget_and_nets_take_one_step_as_long_as_it_comes():
    """One variant per row: the tables, the times and the certificates are about the same one."""
    for config in every_config():
        for du in forms(config):
            convex, corrected = config["model"] == "unit_softmax", du["form"] == "corrected"
            assert du["cap"] is None
            assert du["until"] == (1.0 if convex and corrected else None)
            assert du["gradient"] == ("centred" if corrected and not convex else None)
            assert (du["iters"], du["dense_up_to"]) == (100 if convex else 30, 0)
    assert E.convex(CONVEX)
    assert not E.convex(NET)
    # without l2 a linear model is not strongly convex
    flat = E.changed(datasets=[CONVEX, "mnist/softmax_regression"])
    assert not flat.convex("mnist/softmax_regression")
    assert flat.options("mnist/softmax_regression", "DU")["until"] is None
    assert not E.changed(l2=[0.01, 0.01]).convex(NET)


# --- tables ----------------------------------------------------------------------------------------------------------


def test_every_place_and_seed_has_every_request_and_method_but_leaving_clients_only_at_the_main_place():
    expected = [
        cell(place, seed, text, method)
        for place in E.places()
        for seed in SEEDS
        for kind, text in REQUESTS.items()
        if kind != "client" or place in MAINS.values()
        for method in (*CONTROLS, *METHODS, *([WHOLE_CLIENTS] if kind == "client" else []))
    ]
    sample = REQUESTS["sample"]
    expected += [cell(MAINS[CONVEX], seed, sample, "DU", "choices", label) for seed in SEEDS for label in CHOICES]
    expected += [
        cell(MAINS[NET]._replace(split=split), SEEDS[0], REQUESTS[kind], name, "nets", label)
        for kind in ("sample", "class")
        for split in SPLITS
        for label, (name, _) in CHOICES_OF[kind].items()
    ]
    assert list(E.cells()) == expected
    assert [granularity(text) for text in REQUESTS.values()] == list(REQUESTS)


def test_a_cell_knows_its_place():
    for place in E.places():
        assert Place.of(cell(place, 3, "sample-0.1", "DU")) == place


def test_a_cells_config_says_what_the_cell_says():
    assert E.requests() == REQUESTS
    for found, config in E.cells().items():
        assert (config["request"], config["method"]) == (found.request, found.method)
        assert key_of(config) == config_key(E.training(Place.of(found), found.seed, found.request))
        assert ("pdudt_rounds" in config) == (found.method == WHOLE_CLIENTS)
        if found.method in DU_FORMS:
            printed = found.method == "DU printed" or found.label.startswith("as printed")
            assert config["options"]["form"] == ("printed" if printed else "corrected")
        elif found.method == "Fine-tune":
            assert config["options"] == {"rounds": 0}  # all it does is the round that follows every method
        else:
            assert config["options"] == (plain_fields(PDUDT()) if found.method == WHOLE_CLIENTS else {})
        assert config["exact"] == (found.setting == MAINS[CONVEX]._replace(split=Place.of(found).split).setting)
        assert ("other_seed" in config) == (found.method == AGAIN)
        assert set(config) - set(TRAINING_KEYS) <= {"method", "options", "pdudt_rounds", "exact", "other_seed"}


def test_only_the_same_choice_comes_twice_among_the_cells():
    cells = E.cells()
    tables = [config_key(config) for found, config in cells.items() if found.group == "tables"]
    assert len(set(tables)) == len(tables)
    choices = {found: config_key(config) for found, config in cells.items() if found.group == "choices"}
    assert len(set(choices.values())) == len(choices)
    repeated = [found.label for found, key in choices.items() if key in tables]
    assert repeated == ["corrected"] * len(SEEDS)
    for seed in SEEDS:
        main = cell(MAINS[CONVEX], seed, REQUESTS["sample"], "DU")
        assert cells[main._replace(group="choices", label="corrected")] == cells[main]


def test_every_choice_changes_what_it_says_and_nothing_else():
    base = E.options(CONVEX, "DU")
    assert E.options(CONVEX, "DU", **CHOICES["corrected"]) == base
    for label, change in CHOICES.items():
        options = E.options(CONVEX, "DU", **change)
        assert options == base | change
        assert (options == base) == (label == "corrected")
        chosen = cell(MAINS[CONVEX], 3, REQUESTS["sample"], "DU", "choices", label)
        assert E.cells()[chosen]["options"] == options
    for kind, choices in CHOICES_OF.items():
        for label, (name, change) in choices.items():
            chosen = cell(MAINS[NET], 3, REQUESTS[kind], name, "nets", label)
            assert E.cells()[chosen]["options"] == E.options(NET, name) | change
    few = E.changed(net_choices=["sample"])
    assert {granularity(c.request) for c in few.cells() if c.group == "nets"} == {"sample"}


def test_the_second_retraining_is_that_of_the_next_seed():
    for found, config in E.cells().items():
        if found.method == AGAIN:
            again = runs.needs(config)["again"][1]
            other = {3: 5, 5: 3}[found.seed]
            assert again == E.training(Place.of(found), other, found.request)
    alone = E.changed(seeds=[3]).unlearning(MAINS[NET], 3, REQUESTS["sample"], AGAIN)
    assert alone["other_seed"] == 4


# --- trainings -------------------------------------------------------------------------------------------------------


def test_nothing_is_trained_twice():
    assert len(trained()) == len(stages.trainings(E))


def test_every_run_has_its_original_and_its_retraining_among_the_trainings():
    needed = set()
    exact = set()
    for config in E.cells().values():
        found = dict(runs.needs(config))
        exact |= {config_key(found.pop("exact")[1])} if "exact" in found else set()
        assert found["original"][1] == {**found["retrained"][1], "request": "none"}
        assert config_key(found["retrained"][1]) == key_of(config)
        needed |= {config_key(training) for _, training in found.values()}
    assert needed == trained()
    for config in E.certificates().values():
        found = dict(certify.needs(config))
        assert config_key(found.pop("original")[1]) in needed
        assert list(found) == config["requests"]
        exact |= {config_key(one) for _, one in found.values()}
    assert exact == {config_key(config) for config in stages.minimisers(E).values()}
    for (_, _, method, _), config in E.curves().items():
        found = {config_key(training) for _, training in curve.needs(config).values()}
        # who replays a history has to see the training itself
        assert found == (set() if method == WHOLE_CLIENTS else {key_of(config)})
        assert found <= trained()


def test_a_training_is_found_by_its_setting_topology_seed_and_request():
    for (setting, topology, seed, request), config in stages.trainings(E).items():
        (place,) = (p for p in E.places() if (p.setting, p.topology) == (setting, topology))
        assert config == E.training(place, seed, request)


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
        {"net_gradient": "forgotten"},
        {"epsilons": [3.0]},
        {"budget": 7.0},
        {"delta": 1e-3},
        {"pdudt_rounds": [9, 9]},
        {"timed_rounds": 1},
        {"sequence": 5},
        {"sequence_fraction": 0.5},
        {"damping": [0.1, 0.1]},
        {"curvature": ["ggn", "fisher"]},
        {"printed_curvature": ["ggn", "ggn"]},
        {"curvature_samples": [9, 9]},
        {"printed_samples": [9, 9]},
    ],
)
def test_what_does_not_concern_training_repeats_none(change):
    assert trained(E.changed(**change)) == trained()


@pytest.mark.parametrize("change", [{"leaving": 2}, {"forget_class": 3}, {"fraction": 0.2}])
def test_another_request_repeats_no_original(change):
    kept = trained(E.changed(**change)) & trained()
    originals = {config_key(E.training(place, seed)) for place in E.places() for seed in SEEDS}
    assert originals < kept < trained()


# --- figures 1 and 2, certificates -----------------------------------------------------------------------------------


def test_curves_have_the_papers_methods_for_samples_and_clients_on_every_data_set():
    found = {(d, g): [m for dd, gg, m, s in E.curves() if (dd, gg, s) == (d, g, SEEDS[0])] for d, g, *_ in E.curves()}
    methods = ["Retrain", "Fine-tune", *DU_FORMS]
    kinds = {"sample": methods, "client": [*methods, WHOLE_CLIENTS]}
    assert found == {(dataset, kind): kinds[kind] for dataset in E.datasets for kind in kinds}
    assert len(E.curves()) == sum(map(len, found.values())) * len(SEEDS)
    for (dataset, kind, method, seed), config in E.curves().items():
        assert key_of(config) == config_key(E.training(MAINS[dataset], seed))
        assert (config["method"], config["pdudt_rounds"]) == (method, 2)
        sequence = ["sequence-1-3-0.2", "sequence-2-3-0.2", "sequence-3-3-0.2"]
        assert config["requests"] == (sequence if kind == "sample" else ["client-1"])
        assert config["options"] == E.options(dataset, method)


def test_time_is_taken_of_every_request_and_pdudts_of_clients_only():
    speeds = E.speeds()
    assert list(speeds) == [(dataset, kind) for dataset in E.datasets for kind in ("sample", "class", "client")]
    for (dataset, kind), config in speeds.items():
        assert key_of(config) == config_key(E.training(MAINS[dataset], SEEDS[0], E.requests()[kind]))
        assert config["pdudt_rounds"] == (2 if kind == "client" else 0)
        assert config["variants"] == {method: E.options(dataset, method) for method in DU_FORMS}
    # no more rounds are timed than there are
    assert [speeds[dataset, "sample"]["timed_rounds"] for dataset in E.datasets] == [5, 4]


def test_every_convex_cell_and_kind_of_request_has_a_certificate_with_every_seed():
    places = [place for place in E.places() if place.dataset == CONVEX]
    kinds = E.certified()
    assert list(kinds)[:3] == list(REQUESTS)
    assert all(kinds[kind] == [request] for kind, request in REQUESTS.items())
    assert kinds["sequence"] == [E.sequence_request(j) for j in (1, 2, 3)]
    assert list(E.certificates()) == [(p, kind, seed) for p in places for kind in kinds for seed in SEEDS]
    for (place, kind, seed), config in E.certificates().items():
        assert config["requests"] == kinds[kind]
        assert key_of(config) == config_key(E.training(place, seed, config["requests"][-1]))
        assert (config["epsilons"], config["budget"], config["delta"]) == ([1.0, 10.0], 1.0, 1e-5)
        assert config["du"] == E.options(CONVEX, "DU")
        shown = (place, kind) == (MAINS[CONVEX], "sample")
        assert config["printed"] == (E.options(CONVEX, "DU printed") if shown else {})
