"""Others with a guarantee: which runs, what is let out by whose rule, and how tables and figures show them."""

from dataclasses import replace

import pytest

from fu_papers.certified_dfl import further_figures, further_tables, noisy_nets, peers, stages
from fu_papers.controls import REFERENCES
from fu_papers.lab.record import config_key
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.look import style
from tests.certified_dfl_lab import NET, experiment
from tests.pictures import below, covered, overprinted

TINY = experiment(topologies=["ring"], splits=["iid"], seeds=[0], epsilons=[0.5, 8.0], peer_l2=[0.01, 0.1])
CELLS = peers.cells(TINY)
SOME = ("DU", "DU, noise first", "Newton from zero", "Retrain", "Fine-tune", "Output perturbation")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RecordStore(tmp_path_factory.mktemp("peers"))


@pytest.fixture(scope="module")
def found(store):
    """The records of the quickest peers."""
    with single_threaded():
        return {cell: store.run(peers.peer, config) for cell, config in CELLS.items() if cell.method in SOME}


@pytest.fixture(scope="module")
def nets(store):
    with single_threaded():
        return {cell: store.run(noisy_nets.noisy_net, config) for cell, config in noisy_nets.cells(TINY).items()}


# --- certified peers -------------------------------------------------------------------------------------------------


def test_every_lambda_share_and_seed_has_all_peers_with_all_their_values():
    e = experiment(peer_l2=[0.01, 0.1, 1.0], peer_fractions=[0.1, 0.05], peer_seeds=[3, 5])
    places = [(config["l2"], config["request"], config["seed"]) for config in peers.cells(e).values()]
    rows = len(peers.PEERS) + len(peers.DU_ROWS) + len(peers.ROUNDS_ROWS)
    assert {place: places.count(place) for place in places} == {
        (l2, f"sample-{share:g}", seed): rows for l2 in e.peer_l2 for share in e.peer_fractions for seed in e.peer_seeds
    }


def test_every_budget_asks_for_the_same_gradient_and_du_stops_there():
    for cell, config in CELLS.items():
        wanted = TINY.first_budget if cell.method == "DU, noise first" else TINY.budget
        assert config["budget"] * config["l2"] == pytest.approx(wanted * TINY.l2[0])
        if cell.method in ("DU", "Newton from zero"):
            assert config["options"]["until"] == config["budget"]


def test_trainings_and_minimisers_of_another_lambda_are_declared():
    trained = {config_key(config) for config in stages.trainings(TINY).values()}
    minimised = {config_key(config) for config in stages.minimisers(TINY).values()}
    for config in CELLS.values():
        needed = {name: config_key(one) for name, (_, one) in peers.needs(config).items()}
        assert needed["exact"] in minimised
        assert needed.get("original") in {None, *trained}
    assert len(minimised) > len({config_key(c) for c in stages.minimisers(TINY.changed(peer_l2=[0.01])).values()})


def test_rounds_are_let_out_within_the_budget_and_refused_above_it(store):
    config = next(config for cell, config in CELLS.items() if cell.method == "Retrain")
    with single_threaded():
        far = store.run(peers.peer, {**config, "budget": 1e-6}).metrics
        near = store.run(peers.peer, {**config, "budget": 1e6}).metrics
    assert far["outcome"] == "refused"
    assert "above the budget" in far["refused"]
    assert 1e-6 < near["radius"] < 1e6
    assert near["refused"] == ""
    # the rounds of all who stay, over all that they keep
    assert near["passes"] == pytest.approx(config["options"]["rounds"] * config["epochs"])


def test_newton_from_zero_is_exact_retraining_and_du_takes_no_more(found):
    for l2 in TINY.peer_l2:
        du, zero = (
            record.metrics
            for name in ("DU", "Newton from zero")
            for cell, record in found.items()
            if (cell.method, record.config["l2"]) == (name, l2)
        )
        assert du["passes"] <= zero["passes"]
        for m in (du, zero):
            assert m["radius"] <= TINY.budget * TINY.l2[0] / l2
            assert m["test_noiseless"] == pytest.approx(m["test_exact"], abs=1.0)


def test_the_table_has_a_row_per_setting_method_and_value_and_counts_what_came_out(found):
    table = further_tables.peers_table(found)
    assert len(table) == len(found)  # one seed
    refused = sum(bool(record.metrics["refused"]) for record in found.values())
    assert (table["released"] != "1 of 1").sum() == refused
    assert table["λ"].tolist() == [f"{record.config['l2']:g}" for record in found.values()]
    twice = {**found, **{cell._replace(seed=7): record for cell, record in found.items()}}
    assert further_tables.peers_table(twice)["released"].str.contains("2 of 2|0 of 2").all()


def test_the_figure_has_a_panel_per_lambda_and_share_and_no_point_of_what_was_refused(found):
    with style():
        fig = further_figures.peers_figure(TINY, found)
    assert len(fig.axes) == len(TINY.peer_l2) * len(TINY.peer_fractions)
    for ax, l2 in zip(fig.axes, TINY.peer_l2, strict=True):
        here = [r.metrics for r in found.values() if r.config["l2"] == l2 and not r.metrics["refused"]]
        drawn = sorted(y for line in ax.lines if line.get_linestyle() != "--" for y in line.get_ydata())
        assert drawn == pytest.approx(sorted(m["test"] for m in here))
        kept = {c.method for c, r in found.items() if r.config["l2"] == l2 and not r.metrics["refused"]}
        gone = {further_figures.PEER_TITLES.get(c.method, c.method) for c in found if c.method not in kept}
        told = " ".join(text.get_text() for text in ax.texts).replace("\n", " ")
        assert bool(gone) == told.startswith("refused (any seed): ")
        assert all(name in told for name in gone)
    fig.draw_without_rendering()
    assert [*covered(fig), *overprinted(fig), *below(fig)] == []


# --- whole nets ------------------------------------------------------------------------------------------------------


def test_whole_nets_stand_beside_what_is_there_retrain_and_new_weights(nets):
    methods = [cell.method for cell in nets]
    assert methods[:2] == list(REFERENCES)
    assert methods[-1] == noisy_nets.NEW
    assert methods.count("Noisy fine-tuning") == methods.count("Model clipping") == 8  # 2 epsilons, 2 clips, 2 lengths
    assert {record.config["model"] for record in nets.values()} == {NET.split("/")[1]}


def test_noise_grows_with_the_clip_and_with_the_promise_and_rounds_cost_passes(nets):
    of = {(c.method, *(r.config["options"].get(k) for k in ("epsilon", "start_clip", "tuning"))): r.metrics
          for c, r in nets.items()}  # fmt: skip
    sigma = {key: m.get("sigma") for key, m in of.items()}
    assert sigma["Noisy fine-tuning", 0.5, 0.01, 0] > sigma["Noisy fine-tuning", 8.0, 0.01, 0]
    assert sigma["Noisy fine-tuning", 8.0, 1.0, 0] > sigma["Noisy fine-tuning", 8.0, 0.01, 0]
    short, long = (of["Noisy fine-tuning", 8.0, 0.01, tuning]["passes"] for tuning in (0, 2))
    assert long - short == pytest.approx(2 * TINY.epochs[1])
    new = next(m for key, m in of.items() if key[0] == noisy_nets.NEW)
    assert new["passes"] == pytest.approx(2 * TINY.epochs[1])
    assert of["Retrain", None, None, None]["kl"] == 0.0


def test_a_net_that_diverges_is_a_row_that_says_so(nets):
    table = further_tables.noisy_nets_table(nets)
    assert len(table) == len(nets)
    cell = next(cell for cell in nets if cell.method == "Model clipping")
    gone = replace(nets[cell], metrics={"outcome": "diverged", "why": "not finite"})
    assert "diverged" in further_tables.noisy_nets_table({**nets, cell: gone})["test acc. %"].tolist()
