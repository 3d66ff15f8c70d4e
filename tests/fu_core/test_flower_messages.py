"""Models as named arrays and clients as nodes: in whatever order they come, and what must be refused."""

import importlib
import sys

import pytest

pytest.importorskip("flwr", reason='Flower is an extra: pip install "fu_core[flower]"')

import torch
from flwr.app import ArrayRecord

from fu_core.errors import ConfigError, UnsupportedModel
from fu_core.flower import client_app, client_nodes, to_vector
from fu_core.flower.messages import like
from tests.fu_core.test_flower import NODES, Grid, arrays_of, on_a_server  # noqa: F401, the last is a fixture


def test_a_vector_has_the_order_of_its_names_not_of_the_arrays():
    assert to_vector(arrays_of(1.0, 2.0), ["b", "A"]).tolist() == [1.0, 2.0]
    assert to_vector(arrays_of(1.0, 2.0), ["A", "b"]).tolist() == [2.0, 1.0]


def test_a_vector_goes_into_the_arrays_of_its_names_in_whatever_order_they_are():
    for arrays in (arrays_of(0.0, 0.0), ArrayRecord(dict(reversed(arrays_of(0.0, 0.0).items())))):
        filled = like(arrays, torch.tensor([1.0, 2.0]), ["A", "b"])
        assert {name: array.numpy().tolist() for name, array in filled.items()} == {"A": [[1.0]], "b": [2.0]}
        assert list(filled) == list(arrays)
        assert {str(array.dtype) for array in filled.values()} == {"float32"}


def test_arrays_of_another_model_are_refused():
    with pytest.raises(UnsupportedModel, match=r"\['w'\], got \['A', 'b'\]"):
        to_vector(arrays_of(1.0, 1.0), ["w"])


def test_no_nodes_cannot_be_asked_for(quadratics):
    with pytest.raises(ConfigError, match="clients must be a whole number >= 1, got 0"):
        client_nodes(Grid(client_app(quadratics.federation())), 0)


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ([0, 1, 2, 4], "node 10 cannot say which client it is.*must be a client, 0 to 3, got 4"),
        ([0, None, 2, 3], "node 40 cannot say which client it is.*got None"),
        ([0, 1, 2, 2], r"every partition-id from 0 to 3 must have one node, got \[0, 1, 2, 2\]"),
    ],
)
def test_a_node_that_is_no_client_of_ours_is_named(quadratics, partitions, message):
    with pytest.raises(ConfigError, match=message):
        client_nodes(Grid(client_app(quadratics.federation()), partitions=partitions), 4)


def test_nodes_are_found_by_partition_whatever_their_ids(quadratics):
    assert client_nodes(Grid(client_app(quadratics.federation())), 4) == NODES


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "fu_core.flower")
    with pytest.raises(ImportError, match=r'fu_core.flower needs Flower.*: run `pip install "fu_core\[flower\]"`'):
        importlib.import_module("fu_core.flower")
