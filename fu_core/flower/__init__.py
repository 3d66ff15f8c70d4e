"""Unlearning in Flower, in a federation whose clients stay as they are. Extra: `pip install "fu_core[flower]"`.

    how = UnlearningStrategy("FedOSD", nodes, "client-3", 21, f, fraction_evaluate=0.0)
    how.start(grid, to_arrays(f.model, w_0), num_rounds=30)       20 rounds of training, the method, 9 of recovery

`UnlearningStrategy` is Flower's FedAvg with one server round in which a registered method does what it does in
`unlearn`: the same code, whose rounds of training are messages to Flower's clients. Methods that ask for more than
training are refused by name. `PufStrategy` is PUF alone, for models of any kind: PUF's clients do in the unlearning
round what they do in any other (Mora et al., Sec. IV-B), so that the server needs to know nothing of them.
`client_app` brings a federation of ours into Flower with the very batches of `fu_core.federation`, so that both
can be compared: the models are the same to rounding (Flower averages models in float32, we updates in float64).
"""

from __future__ import annotations

from fu_core.flower.extra import EXTRA

try:
    import flwr.app
    import flwr.clientapp
    import flwr.serverapp.strategy
    import flwr.simulation  # noqa: F401, all four are what its parts import
except ImportError as error:
    raise ImportError(EXTRA) from error

from fu_core.flower.clients import client_app, client_nodes
from fu_core.flower.messages import to_arrays, to_vector
from fu_core.flower.puf import PufStrategy
from fu_core.flower.simulation import simulate
from fu_core.flower.strategies import UnlearningStrategy

__all__ = [
    "PufStrategy",
    "UnlearningStrategy",
    "client_app",
    "client_nodes",
    "simulate",
    "to_arrays",
    "to_vector",
]
