"""Every registered method through Flower: the model of `unlearn`, or a refusal that names the method and says why."""

import importlib
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # before the imports
pytest.importorskip("flwr", reason='Flower is an extra: pip install "fu_core[flower]"')

from flwr.app import ArrayRecord, ConfigRecord

from fu_core.errors import ConfigError, InvalidRequest, UnsupportedTask
from fu_core.federation import FedOpt, fedavg
from fu_core.federation.elsewhere import absent, as_server
from fu_core.flower import UnlearningStrategy, client_app, client_nodes, to_arrays, to_vector
from fu_core.request import Request
from fu_core.unlearning.method import methods, register, unlearn
from tests import federations
from tests.fu_core.test_flower import Grid, on_a_server  # noqa: F401, the second is a fixture
from tests.fu_core.unlearning.test_method import METHODS, NEEDED

ROOT = Path(__file__).resolve().parents[2]
NODES = [70, 40, 90, 10, 55]  # of clients 0 to 4
T = federations.ROUNDS  # of training; the method is served in the round after, recovery follows
SAMPLES, VERTICAL, PEERS = "it computes with samples", "works in a federation of kind vertical", "of kind peers"
SERVED = {
    "Destroyed", "FedEraser", "FedOSD", "Fine-tune", "Model clipping", "Natural", "NoT", "Noisy fine-tuning",
    "Original", "PUF-Regular", "PUF-Special", "Retrain", "Rewind",
}  # fmt: skip
REFUSED = {
    **dict.fromkeys(
        ("Ascent", "Bad teacher", "FedAU", "FedORA horizontal", "FedORA horizontal reverse", "HF-KCU", "HF-KCU printed",
         "HF-KCU held-out", "Last layer", "MoDe", "NaiveGA", "PGA", "Random labels", "SCRUB", "SCRUB+R",
         "Trust-region Newton"), SAMPLES),
    **dict.fromkeys(("CVFU", "FedORA", "FedORA calibrated", "FedORA reverse", "FedORA vector", "Few-shot", "GA", "ICO"),
                    VERTICAL),
    **dict.fromkeys(("DU", "DU iterated", "DU printed", "PDUDT"), PEERS),
    "SISA": "it ends in a Ensemble, not in one model",
    "Stored vectors": "vectors: Hessian-free online unlearning needs those of `trained_with_vectors`",
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of steps that are long on such small problems


@pytest.fixture
def trained():
    return federations.with_server()


def strategy(name, f, *, request="client-1", nodes=NODES, unlearning_round=T + 1, **rest):
    return UnlearningStrategy(name, nodes, request, unlearning_round, f, **{"fraction_evaluate": 0.0, **rest})


def in_flower(how, grid, trained, rounds=T + 2):
    """The models after each round that Flower counts, by round."""
    f, seen = trained.federation, {}
    keep = {"num_rounds": rounds, "evaluate_fn": lambda t, arrays: seen.update({t: to_vector(arrays, f.model.names)})}
    how.start(grid, to_arrays(f.model, trained.w_0), **keep)
    return seen


def grid_of(f, nodes=NODES):
    return Grid(client_app(f), nodes, range(len(nodes)))


def test_every_method_is_served_or_refused():
    assert SERVED | REFUSED.keys() == METHODS.keys()
    assert not SERVED & REFUSED.keys()


@pytest.mark.parametrize("request_", ["client-1", "client-0-3"])
@pytest.mark.parametrize("name", sorted(SERVED))
def test_flower_ends_in_the_model_of_unlearn(name, request_, trained):
    """Training, the method, a round of recovery; the cost and what it tells are ours, too."""
    f = trained.federation
    how = strategy(name, f, request=request_, parameters=NEEDED.get(name))
    theirs = in_flower(how, grid_of(f), trained)
    ours = unlearn(name, trained, request_, **NEEDED.get(name, {}))
    after = fedavg(f.after(Request.parse(request_).resolve(f.clients)), ours.model, 1, first_round=T + 2)
    size = max(1.0, float(ours.model.abs().max()))  # noise makes long models, of fewer digits
    for round, model in ((T, trained.model), (T + 1, ours.model), (T + 2, after)):
        torch.testing.assert_close(theirs[round], model, rtol=0, atol=1e-6 * size)
    assert how.unlearned.notes == ours.notes
    assert replace(how.unlearned.cost, kept={}) == replace(ours.cost, kept={})


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_flower_cannot_do_is_refused_before_any_round(name, trained):
    with pytest.raises(
        UnsupportedTask, match=rf"Flower cannot serve method '{name.replace('+', '[+]')}': .*{REFUSED[name]}"
    ):
        strategy(name, trained.federation, parameters=NEEDED.get(name) if name != "Stored vectors" else None)


def test_parameters_reach_the_method(trained):
    f = trained.federation
    how = strategy("FedEraser", f, parameters={"calibration": 1.0, "norm_scope": "layer"})
    theirs = in_flower(how, grid_of(f), trained)[T + 1]
    ours = unlearn("FedEraser", trained, "client-1", calibration=1.0, norm_scope="layer").model
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-6)
    assert float((ours - unlearn("FedEraser", trained, "client-1").model).abs().max()) > 1e-3
    with pytest.raises(InvalidRequest, match="FedEraser has no such parameter"):
        strategy("FedEraser", f, parameters={"callibration": 1.0})


def messages_of(name, trained, **rest):
    """The configs of all messages that a method's own rounds have sent, by the client that got them."""
    f, seen = trained.federation, []

    class Listening(Grid):
        def reply(self, message):
            config = message.content.config_records.get("config", ConfigRecord())
            seen.append((self.partitions[message.metadata.dst_node_id], dict(config)))
            return super().reply(message)

    grid = Listening(client_app(f), NODES, range(5))
    in_flower(strategy(name, f, **rest), grid, trained, rounds=T + 1)
    return [(i, config) for i, config in seen if config["server-round"] > T or "local.epochs" in config]


def test_clients_are_told_only_what_differs_from_an_ordinary_round(trained):
    assert messages_of("PUF-Special", trained) == [(1, {"server-round": T + 1})]
    assert messages_of("Natural", trained) == []
    asked = messages_of("FedEraser", trained)
    assert [i for i, _ in asked] == 2 * [0, 2, 3, 4]
    assert {frozenset(config.items()) for _, config in asked} == {
        frozenset({"server-round": t, "local.epochs": 0.5}.items()) for t in (2, 3)
    }
    asked = messages_of("FedOSD", trained, parameters={"rounds": 1, "post_rounds": 0})
    assert [(i, "loss" in config) for i, config in asked] == [(0, False), (2, False), (3, False), (4, False), (1, True)]
    assert asked[-1][1] == {"server-round": T + 1, "local.batch_size": 200, "loss": "unlearning cross-entropy"}


def test_the_servers_samples_are_not_looked_at(trained):
    f = trained.federation
    how = strategy("FedOSD", as_server(f))
    theirs = in_flower(how, grid_of(f), trained)
    torch.testing.assert_close(theirs[T + 1], unlearn("FedOSD", trained, "client-1").model, rtol=0, atol=1e-6)


def test_clients_with_other_numbers_live_on_nodes_in_their_order(trained):
    f = trained.federation
    f = f.having(clients=dict(zip((9, 2, 7, 5, 11), f.clients.values(), strict=True)))
    trained = replace(trained, federation=f, w=fedavg(f, trained.w_0, T))
    grid = grid_of(f)
    nodes = client_nodes(grid, 5)
    theirs = in_flower(strategy("PUF-Regular", f, request="client-7", nodes=nodes), grid, trained)
    torch.testing.assert_close(theirs[T + 1], unlearn("PUF-Regular", trained, "client-7").model, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["PUF-Special", "Fine-tune"])
def test_clients_may_name_their_arrays_in_another_order(name, trained):
    """A client of somebody else's: the record that Flower averages has the order of the first reply."""

    class Reversing(Grid):
        def reply(self, message):
            reply = super().reply(message)
            for key, arrays in reply.content.array_records.items():
                reply.content[key] = ArrayRecord(dict(reversed(arrays.items())))
            return reply

    f = trained.federation
    theirs = in_flower(strategy(name, f), Reversing(client_app(f), NODES, range(5)), trained)
    torch.testing.assert_close(theirs[T], trained.model, rtol=0, atol=1e-6)
    torch.testing.assert_close(theirs[T + 1], unlearn(name, trained, "client-1").model, rtol=0, atol=1e-6)


def test_who_has_left_is_asked_no_more(trained):
    f = trained.federation
    grid = grid_of(f)
    in_flower(strategy("Natural", f), grid, trained)
    assert grid.asked == [[0, 1, 2, 3, 4]] * T + [[0, 2, 3, 4]]


def test_nobody_is_asked_to_evaluate_who_cannot(trained):
    """Flower 1.21 has min_evaluate_nodes = 2 although the fraction is 0, and our ClientApp nothing to evaluate."""
    f = trained.federation
    how, grid = strategy("Natural", f), grid_of(f)
    how.min_evaluate_nodes = 2
    assert how.configure_evaluate(1, to_arrays(f.model, trained.w_0), ConfigRecord(), grid) == []
    how.fraction_evaluate = 1.0
    assert len(how.configure_evaluate(1, to_arrays(f.model, trained.w_0), ConfigRecord(), grid)) == 5


def test_the_benchmark_compares_what_it_says(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    flower_methods = importlib.import_module("flower_methods")
    f = flower_methods.federation(2)
    which = {**flower_methods.FEW, "PGA": {}}
    *served, refused = flower_methods.compared(grid_of(f, NODES[:2]), NODES[:2], 2, which)
    assert [row["method"] for row in served] == ["NoT", "PUF-Special", "FedOSD"]
    for row in served:
        assert max(row["unlearned"], row["recovered"]) < 1e-6 < 1e-2 < row["moved"]
    assert [row["rounds"] for row in served] == [3, 4, 5]
    assert refused["method"] == "PGA"
    assert "computes with samples" in refused["refused"]


def test_a_strategy_can_be_started_again(trained):
    f = trained.federation
    how = strategy("Rewind", f)
    first, second = (in_flower(how, grid_of(f), trained) for _ in range(2))
    for t in range(1, T + 3):  # Flower sums in the order in which nodes happen to be drawn
        torch.testing.assert_close(first[t], second[t], rtol=0, atol=1e-6)


def test_rounds_that_end_before_anybody_is_forgotten_are_refused(trained):
    """They ran through, and `unlearned` was None."""
    f = trained.federation
    with pytest.raises(InvalidRequest, match=f"num_rounds must be >= unlearning_round = {T + 1}.*got {T}"):
        in_flower(strategy("Rewind", f), grid_of(f), trained, rounds=T)


def test_a_client_that_does_not_answer_within_the_method_is_named(trained):
    class Silent(Grid):
        def reply(self, message):
            if message.content["config"]["server-round"] > T and self.partitions[message.metadata.dst_node_id] == 2:
                message.content["config"]["local.momentun"] = 1.0
            return super().reply(message)

    f = trained.federation
    with pytest.raises(InvalidRequest, match=r"client 2 \(node 90\) sent no update in round 4: local must be one of"):
        in_flower(strategy("Fine-tune", f), Silent(client_app(f), NODES, range(5)), trained)


def test_clients_with_other_samples_than_the_server_counts_on_are_named(trained):
    f = trained.federation
    fewer = f.having(clients={i: (x[:-1], y[:-1]) if i == 3 else (x, y) for i, (x, y) in f.clients.items()})
    with pytest.raises(InvalidRequest, match="client 3 must hold the 21 samples that f says, but has trained on 20"):
        in_flower(strategy("Fine-tune", f), grid_of(fewer), trained)


def test_a_node_that_is_nobodys_is_named(trained):
    f = trained.federation
    six = f.having(clients={**f.clients, 5: f.clients[0]})
    with pytest.raises(
        InvalidRequest, match=r"nodes must name all that train, \[10, 40, 55, 70, 90\], but 60 has, too"
    ):
        in_flower(strategy("FedEraser", f), grid_of(six, [*NODES, 60]), trained)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"local.momentun": 0.5}, "local must be one of.*did you mean 'momentum'"),
        ({"loss": "hinge"}, "loss must be one of 'unlearning cross-entropy', got 'hinge'"),
    ],
)
def test_a_client_refuses_what_it_does_not_know(trained, config, message):
    from fu_core.flower.clients import _as_asked

    with pytest.raises(ConfigError, match=message):
        _as_asked(trained.federation, config)


def method_that(trains):
    """A method outside the library, which has clients train in a federation that `trains` has changed."""

    @register("Plugged in", paper="nobody", colour="#000000")
    def serve(trained, deletion, config):
        f = trained.horizontal
        return fedavg(trains(f.after(deletion)), trained.model, 1, first_round=trained.next_round)

    return serve


@pytest.fixture
def plug_in(monkeypatch):
    from fu_core.unlearning import method

    monkeypatch.setattr(method, "_REGISTERED", dict(methods()))
    return method_that


@pytest.mark.parametrize(
    ("trains", "reason"),
    [
        (lambda f: f.having(model=type("Own", (type(f.model),), {})(f.model.module)), "a loss of its own"),
        (lambda f: f.having(model=type(f.model)(f.model.module, l2=0.1)), "another net than theirs"),
        (lambda f: f.having(seed=1), "other samples than theirs"),
        (lambda f: f.having(clients={i: absent(len(y), [5]) for i, (_, y) in f.clients.items()}), "other samples"),
    ],
)
def test_a_plugged_in_method_is_refused_for_what_clients_cannot_be_told(plug_in, trained, trains, reason):
    plug_in(trains)
    with pytest.raises(UnsupportedTask, match=rf"'Plugged in': .*{reason}"):
        strategy("Plugged in", trained.federation)


def test_a_plugged_in_method_that_only_trains_is_served(plug_in, trained):
    plug_in(lambda f: f.having(local=replace(f.local, lr=0.02)))
    f = trained.federation
    theirs = in_flower(strategy("Plugged in", f), grid_of(f), trained)
    ours = unlearn("Plugged in", trained, "client-1").model
    torch.testing.assert_close(theirs[T + 1], ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"nodes": NODES[:4]}, InvalidRequest, "nodes must name one node for each of 5 clients, got 4"),
        ({"nodes": 5}, InvalidRequest, "nodes must list the clients' Flower nodes, whole numbers, got 5"),
        ({"nodes": [70, 40, 70, 10, 55]}, InvalidRequest, "nodes must list every node once, got 70 twice"),
        ({"request": 3}, InvalidRequest, "request must be 'client-3' or a list of clients' numbers, got 3"),
        ({"request": None}, InvalidRequest, "request must be 'client-3' or a list of clients' numbers, got None"),
        ({"f": None}, InvalidRequest, "f must be the Federation that the server knows, got NoneType"),
        ({"parameters": [1]}, InvalidRequest, r"parameters must be the method's, by name, got \[1\]"),
        ({"request": "client-9"}, InvalidRequest, "targets names client 9, but clients are 0 to 4"),
        ({"request": "class-2"}, UnsupportedTask, "request must name clients that leave"),
        ({"unlearning_round": 0}, InvalidRequest, "unlearning_round must be a whole number >= 1"),
        ({"timeout": 0.0}, ValueError, "timeout must be a finite number > 0"),
        ({"min_available_nodes": 5}, InvalidRequest, "would wait for 5.*lower them to 4"),
        ({"name": "FedErasr"}, ValueError, "method must be one of.*did you mean 'FedEraser'"),
        ({"name": "FedEraser", "fraction_train": 0.5}, InvalidRequest, "fraction_train must be 1 for FedEraser"),
    ],
)
def test_what_is_wrong_with_a_strategy_is_said_at_once(trained, wrong, error, message):
    with pytest.raises(error, match=message):
        strategy(**{"name": "Fine-tune", "f": trained.federation, **wrong})


def test_a_server_that_does_more_than_average_is_refused(trained):
    with pytest.raises(UnsupportedTask, match="exchange must be a server that averages"):
        strategy("Fine-tune", trained.federation.having(exchange=FedOpt(momentum=0.9)))


def test_where_only_a_share_takes_part_methods_that_need_all_are_refused_at_once(trained):
    with pytest.raises(UnsupportedTask, match="FedEraser needs every client in every round"):
        strategy("FedEraser", trained.federation.having(participation=0.5))
