"""The travelling correction: it reaches everybody link by link, and where it takes them is known exactly."""

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection

from fu_core.errors import InvalidRequest
from fu_core.federation.graphs import TOPOLOGIES, topology
from fu_papers.certified_dfl.drawn_graphs import layout
from fu_papers.certified_dfl.travel import FORMS, WHAT, travel, travel_figure
from fu_papers.look import style
from tests.pictures import faults

SAMPLES, LEAVES = WHAT
GRAPHS = [
    ("ring", 9, 3),
    ("erdos_renyi", 12, 5),
    ("complete", 10, 0),
    ("star", 10, 0),
    ("star", 10, 4),
    ("torus", 12, 7),
]


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def test_every_topology_is_tried_here():
    assert {name for name, _, _ in GRAPHS} == set(TOPOLOGIES)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(("name", "n", "requester"), GRAPHS)
def test_a_client_hears_after_as_many_steps_as_it_is_links_away(name, n, requester, what):
    found = travel(name, n, requester, what)
    expected = nx.single_source_shortest_path_length(topology(name, n), requester)
    assert found.hops.tolist() == [expected[i] for i in range(n)]
    assert nx.utils.graphs_equal(found.graph, topology(name, n))


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize(("name", "n", "requester"), GRAPHS)
def test_the_corrected_form_takes_everybody_to_retraining(name, n, requester, what):
    distances = travel(name, n, requester, what).distances["DU"]
    assert distances.shape == (n,)
    assert np.all(distances < 1e-10)


@pytest.mark.parametrize(("name", "n", "requester"), GRAPHS)
def test_the_printed_form_goes_one_nth_of_the_way_if_the_requester_leaves(name, n, requester):
    distances = travel(name, n, requester, LEAVES).distances["DU printed"]
    np.testing.assert_allclose(distances, np.full(n, 1 - 1 / n), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "n", "requester"), GRAPHS)
def test_the_printed_form_misses_retraining_if_samples_are_deleted(name, n, requester):
    distances = travel(name, n, requester).distances["DU printed"]
    assert np.all(distances == distances[0])
    assert distances[0] > 0.05


def test_where_it_ends_does_not_depend_on_the_graph_but_on_who_asks():
    def printed(name, requester):
        return travel(name, 9, requester).distances["DU printed"][0]

    assert printed("ring", 2) == pytest.approx(printed("complete", 2), rel=1e-12)
    assert printed("ring", 2) != pytest.approx(printed("ring", 3), rel=1e-3)


def test_it_is_the_same_every_time():
    once, again = (travel("erdos_renyi", 12, 5) for _ in range(2))
    assert (once.hops == again.hops).all()
    for method in FORMS:
        assert (once.distances[method] == again.distances[method]).all()


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("hop", [0, 1, 3, 30])
def test_the_figure_has_a_node_per_client_and_a_curve_per_form(hop, what):
    n, requester = 12, 5
    found = travel("ring", n, requester, what)
    left, right = travel_figure("ring", n, requester, hop, what).axes
    dots = {c.get_label(): c.get_offsets() for c in left.collections if isinstance(c, PathCollection)}
    assert list(dots) == ["has heard", "has not", "asks to be forgotten"]
    at = layout("ring", n)

    def clients(label):
        return {min(at, key=lambda i: np.linalg.norm(at[i] - dot)) for dot in dots[label]}

    heard = {i for i in range(n) if found.hops[i] <= hop}
    assert (clients("has heard"), clients("has not")) == (heard, set(range(n)) - heard)
    assert clients("asks to be forgotten") == {requester}
    assert left.get_title() == f"{len(heard)} of {n} clients have heard after {hop} step{'' if hop == 1 else 's'}"
    assert not left.texts  # numbers on dots read as names

    curves = {line.get_label(): line for line in right.lines if line.get_label() in FORMS.values()}
    assert list(curves) == ["corrected", "printed"]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["corrected", "printed", "doing nothing"]
    for method, form in FORMS.items():
        steps, mean = curves[form].get_data()
        after = found.distances[method]
        assert list(steps) == list(range(found.hops.max() + 1))
        assert mean[0] == pytest.approx((after[0] + n - 1) / n)  # only the requester has heard
        assert mean[1] == pytest.approx((3 * after[0] + n - 3) / n)  # and its two neighbours
        assert mean[-1] == pytest.approx(after.mean())
    others = [line for line in right.lines if line not in curves.values()]
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in others]
    assert drawn == [([hop, hop], [0, 1]), ([0, 1], [1, 1])]  # the chosen step, doing nothing


@pytest.mark.parametrize("name", ["ring", "torus", "star", "erdos_renyi"])
def test_the_figure_can_be_read(name, recwarn):
    with style():
        fig = travel_figure(name, 12, 3, 1)
    assert faults(fig) == []
    assert not [one for one in recwarn if "limits" in str(one.message)]


def test_a_torus_is_drawn_as_a_grid_whose_links_around_leave_it():
    at = layout("torus", 12)
    assert len({tuple(place.round(6)) for place in at.values()}) == 12
    assert sorted({round(float(y), 6) for _, y in at.values()}) == pytest.approx([-2 / 3, 0, 2 / 3])
    graph = topology("torus", 12)
    left = travel_figure("torus", 12, 3, 1).axes[0]
    (links,) = (c for c in left.collections if isinstance(c, LineCollection))
    lengths = [np.linalg.norm(end - begin) for begin, end in links.get_segments()]
    assert len(lengths) == graph.number_of_edges() + 3 + 4  # one around per row and per column has two ends
    assert max(lengths) == pytest.approx(2 / 3)  # no link crosses the grid


def test_a_star_has_its_middle_in_the_middle_and_others_are_on_a_circle():
    star, ring = layout("star", 7), layout("ring", 7)
    assert np.linalg.norm(star[0]) == 0
    for place in [*ring.values(), *(star[i] for i in range(1, 7))]:
        assert np.linalg.norm(place) == pytest.approx(1)


def test_a_large_network_has_few_ticks():
    assert len(travel_figure("ring", 26, 0, 1).axes[1].get_xticks()) == 14  # every one of the steps 0 to 13
    assert len(travel_figure("ring", 60, 0, 1).axes[1].get_xticks()) <= 11


def test_the_sliders_positions_are_all_drawn():
    """The notebook offers every multiple of 3 from 9 on, and all graphs: each of them exists."""
    for n in (9, 21, 60):
        for name in TOPOLOGIES:
            assert len(travel(name, n, n - 1).hops) == n


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"what": "everything"}, ValueError, f"what must be one of '{SAMPLES}', '{LEAVES}', got 'everything'"),
        ({"what": None}, ValueError, "what must be one of"),
        ({"name": "rnig"}, ValueError, r"topology must be one of .* did you mean 'ring'\?"),
        ({"name": "torus", "n": 10}, ValueError, "n must be a product of two numbers >= 3"),
        ({"requester": 9}, InvalidRequest, "forget names client 9, but clients are 0 to 8"),
        ({"requester": -1, "what": LEAVES}, InvalidRequest, "forget names client -1"),
    ],
)
def test_what_cannot_be_drawn_is_an_error_that_names_it(change, error, says):
    position = {"name": "ring", "n": 9, "requester": 3, "what": SAMPLES} | change
    with pytest.raises(error, match=says):
        travel(**position)
    with pytest.raises(error, match=says):
        travel_figure(**position, hop=1)
