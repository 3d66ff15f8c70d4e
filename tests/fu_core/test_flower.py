"""PUF in Flower: the same model as ours, clients that cannot tell the rounds apart, and what must be refused."""

import logging
import os
import random
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

os.environ |= {  # before the imports
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # spares a warning
}
pytest.importorskip("flwr", reason='Flower is an extra: pip install "fu_core[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.user_config import UserConfig
from flwr.serverapp.strategy import FedAvg, strategy_utils
from flwr.supercore.task_identity import TaskIdentity

import fu_core
from fu_core.errors import ConfigError, InvalidRequest, NumericalFailure, SimulationUnavailable, UnsupportedModel
from fu_core.federation import ClientOpt, Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import train_client
from fu_core.flower import PufStrategy, client_app, client_nodes, simulate, simulation, to_arrays, to_vector
from fu_core.models import build
from fu_core.request import Deletion
from fu_core.unlearning.puf import PUF, puf, puf_round

NODES = [70, 40, 90, 10]  # of clients 0 to 3
MODES = [("special", 0.8, 1.0), ("regular", 3.0, 1.5)]  # mode, eta_u, eta_r
far = pytest.mark.filterwarnings("ignore:the PUF step is")  # round numbers make long steps
TARGET, ROUND = 1, 3  # two rounds of training, one of unlearning, and recovery


@pytest.fixture(autouse=True)
def on_a_server(monkeypatch, tmp_path):
    """Messages carry who sent them, which Flower's runtime sets; its home is ours."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Flower's grid without a network: a message goes straight to its node's ClientApp, and the last replies first."""

    def __init__(self, app=None, nodes=NODES, partitions=(0, 1, 2, 3)):
        self.app, self.asked = app, []
        self.partitions = dict(zip(nodes, partitions, strict=True))

    def get_node_ids(self):
        return sorted(self.partitions)

    def send_and_receive(self, messages, *, timeout=None):
        replies = [self.reply(message) for message in messages]
        if replies:
            self.asked.append(sorted((self.partitions[reply.metadata.src_node_id] for reply in replies), key=str))
        return replies[::-1]

    def reply(self, message):
        node = message.metadata.dst_node_id
        known = {"partition-id": self.partitions[node]} if self.partitions[node] is not None else {}
        try:
            return self.app(message, Context(1, node, UserConfig(known), RecordDict(), UserConfig()))
        except Exception as error:
            return Message(Error(code=3, reason=str(error)), reply_to=message)


def strategy(mode="special", *, nodes=NODES, targets=(TARGET,), unlearning_round=ROUND, **rest):
    return PufStrategy(nodes, targets, unlearning_round, mode=mode, **{"fraction_evaluate": 0.0, **rest})


def arrays_of(*values):
    """A model of two arrays, (1,) and (1, 1)."""
    return ArrayRecord({"b": Array(np.float32([values[0]])), "A": Array(np.float32([[values[1]]]))})


def values_of(arrays):
    return to_vector(arrays, ["b", "A"]).tolist()


def answers(how, updates, samples, w=(1.0, 1.0)):
    """The unlearning round of strategy `how`: what it returns if clients move from `w` by `updates`; None: failure."""
    messages = how.configure_train(how.unlearning_round, arrays_of(*w), ConfigRecord(), Grid())
    replies = []
    for message in messages:
        i = NODES.index(message.metadata.dst_node_id)
        if updates[i] is None:
            replies.append(Message(Error(code=3, reason="out of battery"), reply_to=message))
            continue
        moved = arrays_of(w[0] + updates[i][0], w[1] + updates[i][1])
        metrics = MetricRecord({"num-examples": samples[i], "loss": float(i)})
        replies.append(Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message))
    return how.aggregate_train(how.unlearning_round, replies)


def path(f, w, mode, eta_u, eta_r):
    """Our own: the models after rounds 2 (trained), 3 (unlearned) and 4 (recovered)."""
    config = PUF(mode, eta_u, eta_r, epochs_u=f.local.epochs, augment=True)  # clients do what they always do
    trained, deletion = fedavg(f, w, 2), Deletion.of(f.clients, TARGET)
    unlearned = puf_round(f, trained, deletion, config, ROUND)
    return trained, unlearned, fedavg(f.after(deletion), unlearned, 1, first_round=ROUND + 1)


def flower_path(how, grid, model, w):
    """Flower's: the same three models, from a start to an end of `how`."""
    seen = {}
    rounds = {"num_rounds": ROUND + 1, "evaluate_fn": lambda t, arrays: seen.update({t: arrays})}
    result = how.start(grid, to_arrays(model, w), **rounds)
    assert result.arrays is seen[ROUND + 1]
    return tuple(to_vector(seen[t], model.names) for t in (ROUND - 1, ROUND, ROUND + 1))


@pytest.fixture
def federation(quadratics):
    """The quadratic clients with batches and a rate that differ from round to round, in float64."""
    return quadratics.federation(local=replace(quadratics.local, batch_size=5, epochs=2, lr_decay=0.8))


W_0 = torch.ones(3, dtype=torch.float64)


@far
def test_a_special_round_applies_the_negated_scaled_update():
    """PUF, Eq. (9), on paper: w = (1, 1), Delta_1 = (0.5, -1), eta_u = 2: (1 - 1, 1 + 2) = (0, 3)."""
    arrays, metrics = answers(strategy(), [None, (0.5, -1.0), None, None], [10, 30, 10, 10])
    assert values_of(arrays) == [0.0, 3.0]
    assert (arrays["A"].shape, arrays["A"].dtype) == ((1, 1), "float32")
    assert dict(metrics) == {"loss": 1.0}


@far
def test_a_regular_round_weighs_by_samples():
    """PUF, Eqs. (5)-(8): n = 40; Delta+ = 10/40 (4, 0), three times; Delta- = 10/40 (0, 4); eta_u = 2, eta_r = 0.5:
    (1, 1) + (0.5 * 3, -2)."""
    how = strategy("regular", eta_u=2.0, eta_r=0.5)
    updates = [(4.0, 0.0), (0.0, 4.0), (4.0, 0.0), (4.0, 0.0)]
    assert values_of(answers(how, updates, [10, 10, 10, 10])[0]) == [2.5, -1.0]
    # a target with 70 of 100 samples: Delta+ = (30/100) (4, 0), Delta- = 70/100 (0, 4)
    after = torch.tensor(values_of(answers(how, updates, [10, 70, 10, 10])[0]))
    torch.testing.assert_close(after, torch.tensor([1.6, -4.6]))


@far
def test_two_targets_share_a_special_round():
    """n = 40: (1, 1) - 2 (30/40 (4, 0) + 10/40 (0, 4)) = (-5, -1)."""
    how = strategy(targets=[2, 1])
    assert values_of(answers(how, [None, (4.0, 0.0), (0.0, 4.0), None], [9, 30, 10, 9])[0]) == [-5.0, -1.0]


@pytest.mark.parametrize(("mode", "eta_u", "eta_r"), MODES)
def test_training_unlearning_and_recovery_end_in_our_models(federation, mode, eta_u, eta_r):
    f, grid = federation, Grid(client_app(federation))
    how = strategy(mode, nodes=client_nodes(grid, 4), eta_u=eta_u, eta_r=eta_r)
    for theirs, ours in zip(flower_path(how, grid, f.model, W_0), path(f, W_0, mode, eta_u, eta_r), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-12)
    everybody, staying = [0, 1, 2, 3], [0, 2, 3]
    unlearning = [TARGET] if mode == "special" else everybody
    assert grid.asked == [everybody, everybody, everybody, unlearning, staying]  # the first is `client_nodes`


def test_clients_with_other_numbers_live_on_nodes_in_their_order(federation):
    """Partitions 0 to 3 are clients 2, 5, 7 and 9, who train on batches of their own."""
    f = federation.having(clients=dict(zip((9, 2, 7, 5), federation.clients.values(), strict=True)))
    w = torch.ones(3, dtype=torch.float64)
    messages = FedAvg().configure_train(1, to_arrays(f.model, w), ConfigRecord({"server-round": 1}), Grid())
    app = client_app(f)
    replies = {reply.metadata.src_node_id: reply.content for reply in Grid(app).send_and_receive(list(messages))}
    for node, client in zip(NODES, (2, 5, 7, 9), strict=True):
        trained = to_vector(replies[node]["arrays"], f.model.names)
        assert torch.equal(trained, train_client(f, w, client, 1))
        assert replies[node]["metrics"]["num-examples"] == len(f.clients[client][1])


def test_without_targets_it_is_fedavg_to_the_bit(federation):
    app, parameters = client_app(federation), {"fraction_evaluate": 0.0, "fraction_train": 0.5}
    paths, asked = [], []
    for how in (FedAvg(**parameters), strategy(targets=[], **parameters)):
        random.seed(0)  # Flower samples nodes from Python's global stream
        grid = Grid(app)
        paths.append(flower_path(how, grid, federation.model, W_0))
        asked.append(grid.asked)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*paths, strict=True))
    assert asked[0] == asked[1]


@pytest.mark.parametrize("mode", ["special", "regular"])
def test_clients_cannot_tell_the_unlearning_round_from_another(mode):
    arrays, grid = arrays_of(1.0, 2.0), Grid()
    usual = FedAvg().configure_train(ROUND, arrays, ConfigRecord({"lr": 0.1}), grid)
    sent = strategy(mode).configure_train(ROUND, arrays, ConfigRecord({"lr": 0.1}), grid)
    usual = {message.metadata.dst_node_id: message for message in usual}
    assert len(sent) == (1 if mode == "special" else 4)
    for message in sent:
        twin = usual[message.metadata.dst_node_id]
        assert message.content == twin.content
        assert message.content["config"] == ConfigRecord({"lr": 0.1, "server-round": ROUND})
        assert message.metadata.message_type == twin.metadata.message_type


def test_with_sampling_the_target_trains_when_it_is_unlearned_and_never_again():
    how, grid = strategy("regular", fraction_train=0.5), Grid()

    def asked(server_round):
        messages = how.configure_train(server_round, arrays_of(1.0, 1.0), ConfigRecord(), grid)
        return [NODES.index(message.metadata.dst_node_id) for message in messages]

    unlearning, recovery = [asked(ROUND) for _ in range(20)], [asked(ROUND + k) for k in range(1, 21)]
    assert all(len(set(ids)) == 3 and TARGET in ids for ids in unlearning)
    assert all(len(set(ids)) == 2 and TARGET not in ids for ids in recovery)
    assert any(TARGET in asked(ROUND - 1) for _ in range(100))


def test_who_has_left_does_not_evaluate():
    how, grid = strategy(fraction_evaluate=1.0), Grid()
    for server_round, clients in [(ROUND - 1, [0, 1, 2, 3]), (ROUND, [0, 2, 3]), (ROUND + 1, [0, 2, 3])]:
        messages = how.configure_evaluate(server_round, arrays_of(1.0, 1.0), ConfigRecord(), grid)
        assert sorted(NODES.index(message.metadata.dst_node_id) for message in messages) == clients


def test_recovery_waits_for_nodes_that_connect_late(monkeypatch):
    grid = Grid(nodes=NODES[:2], partitions=[0, 1])
    monkeypatch.setattr(strategy_utils, "sleep", lambda _: grid.partitions.update({NODES[2]: 2}))
    messages = strategy().configure_train(ROUND + 1, arrays_of(1.0, 1.0), ConfigRecord(), grid)
    assert sorted(message.metadata.dst_node_id for message in messages) == sorted([NODES[0], NODES[2]])


@far
def test_a_regular_round_goes_on_without_others_who_fail():
    """The target and clients 0 and 3 answer: the formula of `puf` with these three."""
    how = strategy("regular", eta_u=2.0)
    updates = [(4.0, 0.0), (0.0, 4.0), None, (1.0, 1.0)]
    arrays, _ = answers(how, updates, [10, 20, 30, 40])
    answered = torch.tensor([updates[i] for i in (0, 1, 3)]), torch.tensor([10.0, 20.0, 40.0])
    leaves = torch.tensor([False, True, False])
    wanted = puf(torch.ones(2), *answered, leaves, mode="regular", eta_u=2.0)
    torch.testing.assert_close(torch.tensor(values_of(arrays)), wanted)


@pytest.mark.parametrize("mode", ["special", "regular"])
def test_a_target_that_does_not_answer_is_named_with_its_reason(mode):
    updates = [(1.0, 1.0), (1.0, 1.0), None, (1.0, 1.0)]
    with pytest.raises(InvalidRequest, match=r"target 2 \(node 90\).*unlearning round 3.*out of battery"):
        answers(strategy(mode, targets=[1, 2], min_train_nodes=2), updates, [10, 10, 10, 10])
    how = strategy(mode)
    how.configure_train(ROUND, arrays_of(1.0, 1.0), ConfigRecord(), Grid())
    with pytest.raises(InvalidRequest, match=r"target 1 \(node 40\).*no reply"):
        how.aggregate_train(ROUND, [])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"targets": [4]}, "targets names client 4, but clients are 0 to 3"),
        ({"targets": [-1]}, "targets names client -1"),
        ({"targets": [1, 1]}, "targets names a client twice"),
        ({"targets": "client-0"}, "targets must list the clients that leave by their numbers, got 'client-0'"),
        ({"targets": [0, 1, 2, 3]}, "nobody would be left"),
        ({"targets": [0, 1, 2]}, r"leave 1 of the clients, but Flower would wait for 2: min_train_nodes=2"),
        ({"min_available_nodes": 4}, r"would wait for 4.*min_available_nodes=4; lower them to 3"),
        ({"unlearning_round": 0}, "unlearning_round must be a whole number >= 1, got 0"),
        ({"unlearning_round": 1.5}, "unlearning_round must be a whole number"),
        ({"eta_u": 0.0}, "eta_u must be a finite number > 0"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_at_once(wrong, message):
    with pytest.raises(InvalidRequest, match=message):
        strategy(**wrong)


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode must be one of 'special', 'regular'"):
        strategy("speciall")


def test_running_statistics_are_refused_before_the_first_round():
    statistics = ArrayRecord({"w": Array(np.zeros(2)), "bn.num_batches_tracked": Array(np.array(3))})
    with pytest.raises(UnsupportedModel, match=r"'bn.num_batches_tracked' is int64.*GroupNorm"):
        strategy().configure_train(1, statistics, ConfigRecord(), Grid())
    assert len(strategy(targets=[]).configure_train(1, statistics, ConfigRecord(), Grid())) == 4  # FedAvg may


def test_a_target_that_diverged_stops_the_round():
    with pytest.raises(NumericalFailure, match="round 3: the unlearned model is not finite"):
        answers(strategy(), [None, (float("nan"), 0.0), None, None], [10, 10, 10, 10])


def test_a_step_that_is_longer_than_the_model_warns_as_ours_does():
    """|w| = sqrt(2). With eta_u = 2 an update of (3/4, 0) moves it by 1.5, one of (1/2, 0) by 1."""
    with pytest.warns(UserWarning, match=r"PUF step is 1.06 times as long as the model; eta_u may be too large"):
        answers(strategy(), [None, (0.75, 0.0), None, None], [10, 10, 10, 10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers(strategy(), [None, (0.5, 0.0), None, None], [10, 10, 10, 10])


@pytest.mark.slow
def test_flowers_own_simulation_gives_our_models(capfd):
    """Both modes in one simulation, on digits with a net, in float32; Flower and ray keep quiet."""
    data = fu_core.load("digits")
    parts = fu_core.partition.dirichlet(data.y_train, 4, alpha=1.0, seed=0)
    clients = [(data.x_train[p], data.y_train[p]) for p in parts]
    f = Federation(build("mlp", data), clients, ClientOpt(lr=0.05, lr_decay=0.9, momentum=0.5, batch_size=20))
    w = f.model.init(0)

    def serve(grid, nodes):
        strategies = [strategy(mode, nodes=nodes, eta_u=eta_u, eta_r=eta_r) for mode, eta_u, eta_r in MODES]
        return [flower_path(how, grid, f.model, w) for how in strategies]

    paths = simulate(client_app(f), len(clients), serve)
    for theirs, how in zip(paths, MODES, strict=True):
        for after, ours in zip(theirs, path(f, w, *how), strict=True):
            torch.testing.assert_close(after, ours, rtol=0, atol=1e-6)
    assert not capfd.readouterr().err


def test_without_ray_a_simulation_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'pip install "fu_core\[flower\]"'):
        simulate(None, 4, None)


class Ray:
    """A ray that starts at the attempt `at`."""

    def __init__(self, at):
        self.at, self.attempts, self.options = at, 0, {}

    def is_initialized(self):
        return self.attempts >= self.at

    def init(self, **options):
        self.attempts, self.options = self.attempts + 1, options
        if not self.is_initialized():
            raise Exception("The current node timed out during startup.")

    def shutdown(self):
        pass


def test_ray_is_started_again_if_it_does_not_start_in_time_and_says_so(monkeypatch):
    """It waits half a minute for its own processes, which a busy machine needs to start the first time."""
    ray = Ray(at=simulation.ATTEMPTS)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.warns(UserWarning, match="ray did not start") as told:
        simulation._start_ray()
    assert ray.attempts == simulation.ATTEMPTS > 1
    assert [str(warning.message) for warning in told] == [
        f"ray did not start in attempt {k} of 5 and is tried again: The current node timed out during startup."
        for k in range(1, 5)
    ]
    assert sys.path[-1] in ray.options["runtime_env"]["env_vars"]["PYTHONPATH"].split(os.pathsep)
    simulation._start_ray()
    assert ray.attempts == simulation.ATTEMPTS  # it runs already


@pytest.mark.filterwarnings("ignore:ray did not start in attempt")
@pytest.mark.parametrize(("asked", "attempts"), [({}, 5), ({"attempts": 2}, 2)])
def test_a_ray_that_never_starts_is_one_error_before_anything_waits_for_it(monkeypatch, asked, attempts):
    ray = Ray(at=10**6)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(simulation, "find_spec", lambda name: True)
    monkeypatch.setattr(simulation, "run_simulation", lambda *args, **rest: pytest.fail("Flower was asked"))
    with pytest.raises(
        SimulationUnavailable, match=f"ray did not start in {attempts} attempts: The current node timed"
    ):
        simulate(None, 4, None, **asked)
    assert ray.attempts == attempts
    with pytest.raises(ConfigError, match="attempts must be a whole number >= 1, got 0"):
        simulate(None, 4, None, attempts=0)


def test_a_simulation_passes_on_what_the_server_raises_and_leaves_the_log_as_it_was(federation, monkeypatch):
    def diverges(grid, nodes):
        raise NumericalFailure("client 2 diverged")

    def in_this_process(server, app, clients, backend_config):
        server(Grid(app), Context(1, 0, UserConfig(), RecordDict(), UserConfig()))

    monkeypatch.setattr(simulation, "_start_ray", lambda attempts: None)
    monkeypatch.setattr(simulation, "run_simulation", in_this_process)
    app, log = client_app(federation), logging.getLogger("flwr")
    before = log.level
    assert simulate(app, 4, lambda grid, nodes: (nodes, log.level)) == (NODES, logging.ERROR)
    with pytest.raises(InvalidRequest, match="targets names client 9"):
        simulate(app, 4, lambda grid, nodes: strategy(nodes=nodes, targets=[9]))
    with pytest.raises(NumericalFailure, match="client 2 diverged"):  # a RuntimeError, as is what cannot start
        simulate(app, 4, diverges)
    assert log.level == before != logging.ERROR
