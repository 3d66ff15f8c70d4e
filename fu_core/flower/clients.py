"""Our clients in Flower: what they do in a round, and which of Flower's nodes they live on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from fu_core.errors import ConfigError, check_choice, check_count
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt, train_client
from fu_core.flower.messages import ARRAYS, CONFIG, LOCAL, LOSS, LOSSES, ROUND, SAMPLES, the_only, to_arrays, to_vector

PARTITION = "partition-id"  # in the node config of a simulation; of a deployment if its operator sets it


def client_app(f: Federation) -> ClientApp:
    """A federation of ours as an ordinary Flower ClientApp: one `train`, the same in every round.

    A message may ask for another local training ("local.epochs", say) or another loss, as some methods do. The i-th of
    `f.ids` lives on the node with `partition-id` i. Random: batches and augmentation, from streams of (f.seed, server
    round, client), as in `fedavg`. It also answers `client_nodes`, and has nothing to evaluate: use
    `fraction_evaluate=0.0`. In a simulation the data travel with every message, and `f.meter` hears of nothing.
    Inside a call: `ConfigError` for a node without a partition of the clients.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = f.ids[_client_of(context, len(f.ids))]
        w = to_vector(message.content.array_records[ARRAYS], f.model.names)
        round = cast(int, message.content.config_records[CONFIG][ROUND])
        w_i = train_client(_as_asked(f, message.content.config_records[CONFIG]), w, client, round)
        samples = MetricRecord({SAMPLES: len(f.clients[client][1])})
        return Message(RecordDict({ARRAYS: to_arrays(f.model, w_i), "metrics": samples}), reply_to=message)

    @app.query()
    def who(message: Message, context: Context) -> Message:
        client = ConfigRecord({PARTITION: _client_of(context, len(f.ids))})
        return Message(RecordDict({"client": client}), reply_to=message)

    return app


def client_nodes(grid: Grid, clients: int) -> list[int]:
    """The node ids of clients 0 to `clients` - 1: asked of the nodes themselves, since Flower draws ids at random.

    Waits until so many nodes are connected. Their ClientApp must answer as `client_app` does. Raises `ConfigError` if
    one cannot, or unless every client lives on exactly one node.
    """
    check_count("clients", clients, error=ConfigError)
    _, nodes = sample_nodes(grid, clients, clients)
    replies = list(grid.send_and_receive([Message(RecordDict(), node, MessageType.QUERY) for node in nodes]))
    failed = [reply for reply in replies if reply.has_error()]
    if failed:
        raise ConfigError(f"node {failed[0].metadata.src_node_id} cannot say which client it is: {failed[0].error}")
    said = [cast(int, the_only(reply.content.config_records)[PARTITION]) for reply in replies]
    if sorted(said) != list(range(clients)):
        raise ConfigError(f"every {PARTITION} from 0 to {clients - 1} must have one node, got {sorted(said)}")
    node_of = {i: reply.metadata.src_node_id for i, reply in zip(said, replies, strict=True)}
    return [node_of[i] for i in range(clients)]


def _as_asked(f: Federation, config: Mapping[str, Any]) -> Federation:
    """The federation, with the local training and the loss that a message names; the usual one if it names none."""
    local = {key.removeprefix(LOCAL): value for key, value in config.items() if key.startswith(LOCAL)}
    for name in local:
        check_choice(LOCAL.rstrip("."), name, [field.name for field in fields(ClientOpt)], ConfigError)
    if LOSS not in config:
        return f.having(local=replace(f.local, **local)) if local else f
    check_choice(LOSS, config[LOSS], LOSSES, ConfigError)
    return f.having(local=replace(f.local, **local), model=LOSSES[config[LOSS]](f.model))


def _client_of(context: Context, clients: int) -> int:
    i = context.node_config.get(PARTITION)
    if not isinstance(i, int) or not 0 <= i < clients:
        raise ConfigError(f"{PARTITION} in the node config must be a client, 0 to {clients - 1}, got {i!r}")
    return i
