"""DU among many clients: what is counted, against counting it again, and what is shown of it."""

import math

import networkx as nx
import pytest

from fu_core.federation.decentralised import dpsgd
from fu_core.federation.graphs import links, ring, star
from fu_core.federation.meter import Meter
from fu_core.request import Request
from fu_core.unlearning.du import DU, du_release
from fu_papers.certified_dfl import further_figures, further_tables, scaling
from fu_papers.certified_dfl.runs import federation
from fu_papers.lab.store import RecordStore
from fu_papers.lab.task import single_threaded
from fu_papers.look import style
from fu_papers.problems import initial_model
from tests.certified_dfl_lab import experiment
from tests.pictures import below, overprinted

TINY = experiment(splits=["iid"], seeds=[2], leaving=1)
CONFIGS = scaling.cells(TINY)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    store = RecordStore(tmp_path_factory.mktemp("scaling"))
    with single_threaded():
        return {N: store.run(scaling.scale, config) for N, config in CONFIGS.items()}


def row(record, kind):
    return next(entry for entry in record.rounds if entry["kind"] == kind)


# --- which runs ---


def test_a_tenth_of_the_clients_asks_and_one_leaves():
    assert scaling.requests(TINY, 30) == {"sample": "sample-0-1-2-0.1", "client": "client-1"}
    assert scaling.requests(TINY, 4)["sample"] == "sample-0-0.1"
    assert len(Request.parse(scaling.requests(TINY, 1000)["sample"]).clients) == 100


def test_links_are_twice_as_many_as_connect_most_graphs():
    large = scaling.scale_config(TINY, 1000)
    assert large["edge_probability"] == pytest.approx(2 * math.log(1000) / 1000)
    assert scaling.scale_config(TINY, 3)["edge_probability"] < 1
    assert (large["topology"], large["order"], large["clients"]) == ("erdos_renyi", "atc", 1000)


def test_a_run_is_on_the_convex_data_set_with_the_first_seed():
    assert list(CONFIGS) == [4, 6]
    assert {(config["model"], config["split"], config["seed"]) for config in CONFIGS.values()} == {
        ("unit_softmax", "iid", 2)
    }


# --- what is counted ---


@pytest.mark.parametrize(("graph", "tall"), [(ring(10), 5), (star(10), 1), (nx.path_graph(7), 3)])
def test_the_tree_is_as_deep_as_the_graphs_radius(graph, tall):
    middle = nx.center(graph)[0]
    assert scaling.depth(graph) == tall == max(nx.single_source_shortest_path_length(graph, middle).values())


@pytest.mark.parametrize("kind", ["sample", "client"])
def test_what_flooding_would_send_is_what_it_sends(kind):
    config = CONFIGS[6]
    f = federation(config)
    W = dpsgd(f, initial_model(config, f.model), 1)
    deletion = Request.parse(config["requests"][kind]).resolve(f.clients)
    sent = {}
    for sums in ("tree", "flood"):
        serving = f.having(meter=Meter())
        released = du_release(serving, W, deletion, DU(**{**config["du"], "sums": sums}))
        sent[sums] = serving.meter.bytes / (4 * f.model.d)
        if sums == "tree":
            counted = scaling.vectors_sent(serving, released, W[0])
    assert counted == {"tree": sent["tree"], "flooding": sent["flood"]}
    assert sent["flood"] > sent["tree"] == released.sums * 2 * (6 - 1)


@pytest.mark.parametrize("N", [4, 6])
@pytest.mark.parametrize("kind", ["sample", "client"])
def test_du_comes_as_close_as_it_was_told_and_retrain_does_not(records, N, kind):
    found = row(records[N], kind)
    assert found["radius"] <= TINY.close_budget < found["radius_original"]
    assert found["gap"] * found["distance_original"] <= found["radius"] + 2e-5  # the minimiser's own distance
    assert found["gap"] < 0.02 < found["gap_again"]
    assert found["latency"] == 2 * records[N].metrics["depth"] * found["sums"]
    assert found["forgotten"] == (5 if (N, kind) == (4, "sample") else found["forgotten"])


def test_retrains_vectors_are_its_rounds_times_the_links_that_are_left(records):
    config = CONFIGS[6]
    f = federation(config)
    assert records[6].metrics["links"] == links(f.peers.Q) // 2
    assert row(records[6], "sample")["vectors_again"] == 3 * links(f.peers.Q)
    assert row(records[6], "client")["vectors_again"] == 3 * links(f.peers.without([1]).Q)


def test_passes_are_counted_apart_for_du_and_retrain(records):
    found = row(records[6], "sample")
    assert found["passes_again"] == 3 * (200 - found["forgotten"])  # one epoch a round
    assert found["passes"] % (200 - found["forgotten"]) == 0  # whole passes over what is retained


# --- tables and figures ---


def test_the_table_has_a_row_per_size_and_request(records):
    table = further_tables.scale_table(records)
    assert list(zip(table.N, table.request, strict=True)) == [
        (N, kind) for N in "46" for kind in ("sample-wise", "client-wise")
    ]
    found = row(records[6], "client")
    assert table["vectors per client, tree"].iloc[-1] == f"{found['vectors']['tree'] / 6:,.0f}"
    assert table["the same, Retrain's rounds"].iloc[-1] == f"{found['gap_again']:.2g}"


def test_the_figure_is_about_the_client_that_leaves(records):
    with style():
        fig = further_figures.scale_figure(records)
    left, right = fig.axes
    fig.draw_without_rendering()
    assert [*overprinted(fig), *below(fig)] == []
    flooding, again, tree = (list(line.get_ydata()) for line in left.lines)
    clients = [row(records[N], "client") for N in (4, 6)]
    assert tree == [found["vectors"]["tree"] / N for N, found in zip((4, 6), clients, strict=True)]
    assert flooding == [found["vectors"]["flooding"] / N for N, found in zip((4, 6), clients, strict=True)]
    assert again == [found["vectors_again"] / N for N, found in zip((4, 6), clients, strict=True)]
    assert list(right.lines[1].get_ydata()) == [found["gap"] for found in clients]
