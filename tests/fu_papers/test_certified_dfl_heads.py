"""Certified heads: what the body may have seen, what is certified of the head, and what is shown of it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fu_core.data import load
from fu_core.errors import ConfigError, UnsupportedModel
from fu_core.models import FlatModel, build
from fu_core.unlearning.gaussian_mechanism import gaussian_sigma
from fu_papers.certified_dfl import further_figures, further_tables, heads, runs, show
from fu_papers.certified_dfl.exact import CLOSE, retrained_minimiser
from fu_papers.certified_dfl.theory_problems import first, kept_by
from fu_papers.convex import convex_clients, convex_model, optimum, pooled
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.look import style
from tests.certified_dfl_lab import CONVEX, NET, experiment
from tests.pictures import faults

TINY = experiment(topologies=["ring"], splits=["iid"], seeds=[0], epsilons=[0.5, 2.0])
SAMPLE, CLASS, CLIENT = TINY.requests().values()
BODY = {SAMPLE: heads.PUBLIC_HALF, CLASS: heads.PUBLIC_HALF, CLIENT: heads.STAYING}
CONFIGS = {cell.request: config for cell, config in heads.cells(TINY).items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordStore(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def found(store):
    """The records of every kind of request, by cell."""
    with single_threaded():
        return {cell: store.run(heads.certify_head, config) for cell, config in heads.cells(TINY).items()}


@pytest.fixture(scope="module")
def records(found):
    return {cell.request: record for cell, record in found.items()}


# --- which runs ---


def test_every_net_has_a_run_per_split_seed_and_request_and_the_convex_data_set_none():
    e = experiment(seeds=[3, 5])
    places = {(cell.setting, cell.seed, cell.request, cell.condition) for cell in heads.cells(e)}
    assert places == {
        (f"digits/{split}/mlp", seed, request, "erdos_renyi")
        for split in e.splits
        for seed in (3, 5)
        for request in (SAMPLE, CLASS, CLIENT)
    }
    assert heads.nets(e) == [NET]


def test_a_head_is_trained_as_the_convex_data_set_is():
    head = CONFIGS[SAMPLE]["head"]
    assert (head["lr"], head["batch_size"], head["l2"]) == (TINY.lr[0], TINY.batch_size[0], TINY.l2[0])
    assert head["rounds"] == 3


def test_an_unknown_body_is_refused():
    with pytest.raises(ConfigError, match="body must be one of 'public half', 'those who stay', got 'everybody'"):
        heads.head_config(TINY, TINY.main(NET), 0, SAMPLE, "everybody")


# --- body and head ---


@pytest.mark.parametrize("name", ["mlp", "tiny_cnn", "small_resnet"])
def test_the_last_layer_of_a_bodys_features_is_the_net(name):
    data = load("digits")
    model = build(name, data)
    w, x = model.init(0), data.x_test[:7]
    weight, bias = w[heads.body_of(model).d :].split([model.shapes[-2][0] * model.shapes[-2][1], model.shapes[-1][0]])
    z = heads.features(model, w, x)
    assert z.dtype == torch.float64
    logits = z @ weight.view(model.shapes[-2]).double().T + bias.double()
    assert torch.allclose(logits, model.predict(w, x).double(), atol=1e-5)


@pytest.mark.parametrize("module", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), nn.LayerNorm(4)])
def test_a_net_without_body_or_linear_head_is_refused(module):
    with pytest.raises(UnsupportedModel, match="is no body with a linear layer as its head"):
        heads.body_of(FlatModel(module))


def marked(client):
    """The samples of a client as a multiset."""
    x, _ = client
    return sorted(row.numpy().tobytes() for row in x)


@pytest.mark.parametrize("request_", [SAMPLE, CLASS])
def test_on_a_public_half_body_and_head_share_no_sample_and_the_request_is_about_the_other_half(request_):
    config = CONFIGS[request_]
    whole = runs.federation(config)
    _, of_body = heads.needs(config)["body"]
    body_saw = whole.after(runs.asked(of_body, whole)).clients
    head_saw = heads.head_federation(config, whole.model.init(0)).clients
    for i, (x, y) in whole.clients.items():
        assert len(body_saw[i][1]) + len(head_saw[i][1]) == len(y)
        private = runs.asked(of_body, whole).forgotten[i]
        assert sorted(marked(body_saw[i]) + marked(private)) == marked((x, y))
        assert torch.equal(head_saw[i][0], heads.features(whole.model, whole.model.init(0), private[0]))


def test_the_body_of_those_who_stay_never_sees_the_client_that_leaves():
    config = CONFIGS[CLIENT]
    _, of_body = heads.needs(config)["body"]
    whole = runs.federation(of_body)
    assert set(whole.clients) - set(whole.after(runs.asked(of_body, whole)).clients) == {TINY.leaving}
    assert TINY.leaving in heads.head_federation(config, whole.model.init(0)).clients


def test_heads_see_features_of_length_one_at_most():
    f = heads.head_federation(CONFIGS[SAMPLE], runs.federation(CONFIGS[SAMPLE]).model.init(0))
    x, _ = f.clients[0]
    v = torch.zeros(f.model.d, dtype=torch.float64)
    assert torch.allclose(f.model.features(x, v).norm(dim=1), torch.ones(len(x), dtype=torch.float64))
    assert torch.allclose(f.model.features(5 * x, v), f.model.features(x, v))


# --- what is certified ---


@pytest.mark.parametrize("request_", [SAMPLE, CLASS, CLIENT])
def test_newton_comes_within_the_budget_and_every_epsilon_is_released(records, request_):
    record = records[request_]
    m = record.metrics
    assert m["radius"] <= TINY.close_budget < m["radius_original"]
    assert m["steps"] >= 1
    assert m["gap"] < 0.02
    assert [entry["released"] for entry in record.rounds] == [True, True]
    for entry, epsilon in zip(record.rounds, TINY.epsilons, strict=True):
        assert entry["sigma"] == gaussian_sigma(TINY.close_budget, epsilon=epsilon, delta=TINY.delta)
        assert abs(entry["test"] - entry["retrained"]) <= 2  # the same noise, and models 0.02 apart
    assert (m["covered"], m["not_covered"]) == (heads.COVERED[BODY[request_]], heads.NOT_COVERED[BODY[request_]])


def test_a_class_is_gone_from_the_head_and_from_the_test_set(records):
    removed = records[CLASS].metrics
    assert removed["removed"] <= 5
    assert removed["removed_retrained"] <= 5
    assert "removed" not in records[SAMPLE].metrics
    assert removed["test"] > 60  # with the class in the test set, a tenth of it would be lost


def test_a_run_is_the_same_twice_although_noise_is_never_drawn_twice(store, records, tmp_path):
    again = RecordStore(tmp_path)
    with single_threaded():
        record = again.run(heads.certify_head, CONFIGS[SAMPLE])
    assert (record.metrics, record.rounds) == (records[SAMPLE].metrics, records[SAMPLE].rounds)


def test_noise_is_fresh_for_every_release_and_the_same_in_both_worlds(store, monkeypatch):
    """Of two releases at one epsilon: what differs is noise, and it differs as much for Retrain's head."""
    evaluated = []

    def remembered(model, v, x, y):
        evaluated.append(v)
        return 0.0

    monkeypatch.setattr(heads, "accuracy", remembered)
    with single_threaded():
        store.run(heads.certify_head, CONFIGS[SAMPLE] | {"epsilons": [1.0, 1.0], "budget": 1.0, "draws": 1})
    first_release, first_retrained, second, second_retrained = evaluated[:4]
    moved = second - first_release
    assert float(moved.norm()) > 1
    assert torch.allclose(second_retrained - first_retrained, moved, rtol=0, atol=1e-12)
    assert 0 < float((first_retrained - first_release).norm()) < 0.02  # both near the best head


def test_heads_of_one_seed_have_noise_of_their_own_and_an_accuracy_is_a_mean_over_several(store, monkeypatch):
    """Of two requests at one epsilon: five draws each, all different, of one length."""
    noises = []

    def remembered(model, v, x, y):
        evaluated.append(v)
        return float(len(evaluated) % 5)

    monkeypatch.setattr(heads, "accuracy", remembered)
    for request in (SAMPLE, CLASS):
        evaluated = []
        with single_threaded():
            record = store.run(heads.certify_head, CONFIGS[request] | {"epsilons": [1.0]})
        centre = torch.stack(evaluated[5:10]).mean(dim=0)
        noises += [v - centre for v in evaluated[5:10]]
        assert record.rounds[0]["test"] == 2  # of 1, 2, 3, 4, 0
    lengths = torch.stack(noises).norm(dim=1)
    assert float(lengths.max() / lengths.min()) < 1.2
    near = torch.stack(noises) @ torch.stack(noises).T / lengths.outer(lengths)
    assert float(near[:5, 5:].abs().max()) < 0.3  # another request, other noise: in 650 dimensions nearly orthogonal


def test_beyond_its_budget_no_head_is_released(store):
    with single_threaded():
        record = store.run(heads.certify_head, CONFIGS[SAMPLE] | {"budget": 1e-12})
    assert [entry["released"] for entry in record.rounds] == [False, False]
    assert all("budget allows 1e-12" in entry["reason"] for entry in record.rounds)
    assert not any("test" in entry for entry in record.rounds)


# --- the minimiser ---


def test_the_retrained_minimiser_is_newtons_optimum_whoever_holds_the_samples():
    """Breast cancer, client 0 forgets 8 samples: against the dense Newton's method of `convex`."""
    model, clients = convex_model("breast_cancer"), convex_clients("breast_cancer", 5, seed=0)
    deletion = first(8, clients, [0])
    expected = optimum(model, pooled(kept_by(deletion)))
    found = retrained_minimiser(model, torch.zeros(model.d), deletion)
    assert float((found - expected).norm()) <= CLOSE
    far = optimum(model, pooled(clients))
    assert float((far - expected).norm()) > 10 * CLOSE


# --- tables and figures ---


def test_the_table_has_a_row_per_request_and_says_what_is_not_covered(found, records):
    table = further_tables.heads_table(TINY, found)
    assert list(table.request) == ["sample-wise", "class-wise", "client-wise"]
    assert list(table["body trained by"]) == ["public half", "public half", "those who stay"]
    assert list(table["not covered"]) == [heads.NOT_COVERED[BODY[request]] for request in (SAMPLE, CLASS, CLIENT)]
    assert list(table.released) == ["2 of 2"] * 3
    entry = records[SAMPLE].rounds[0]
    pair = table["ε = 0.5: certified head / best head with this noise %"][0]
    assert pair == f"{entry['test']:.1f} / {entry['retrained']:.1f}"


def test_the_figure_shows_what_the_records_say(found, records):
    with style():
        fig = further_figures.heads_figure(TINY, found)
    left, right = fig.axes
    m, shown = records[SAMPLE].metrics, next(r for r in records[SAMPLE].rounds if r["epsilon"] == 0.5)
    beside = [line.get_xdata()[0] for line in left.lines[:2]]
    assert beside == pytest.approx([m["test_retrained"] - m["net"], shown["test"] - m["net"]])
    assert left.get_yticklabels()[0].get_text() == f"Digits, MLP, sample: {m['net']:.1f} %"
    assert [line.get_xdata()[0] for line in right.lines[:3]] == [m["radius_original"], m["radius_again"], m["radius"]]
    assert right.get_xscale() == "log"
    assert faults(fig) == []


def test_without_a_net_there_is_an_empty_table():
    assert further_tables.heads_table(TINY, {}).empty


def test_a_profile_without_a_net_says_so_and_draws_nothing(tmp_path, capsys):
    show.certified_heads(experiment(), {}, tmp_path, "digits")
    show.noisy_nets({}, tmp_path, "digits")
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out.count("Markdown") == 2


def test_what_is_shown_of_nets_names_no_data_that_only_the_convex_model_has():
    described = {TINY.main(name): SimpleNamespace(metrics={"source": name}) for name in TINY.datasets}
    everything, convex, of_nets = show.sources(TINY, described)
    assert (CONVEX in everything, CONVEX in convex, CONVEX in of_nets) == (True, True, False)
    assert (NET in everything, NET in convex, NET in of_nets) == (True, False, True)
    assert show.sources(experiment(), {experiment().main(CONVEX): described[TINY.main(CONVEX)]})[2] == ""
