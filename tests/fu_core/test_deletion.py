"""What a request comes to: who loses which samples, in which order, and which requests are refused."""

import numpy as np
import pytest
import torch

from fu_core.errors import InvalidRequest
from fu_core.request import Deletion

ROWS = torch.tensor
EVERYTHING = {i: torch.arange(n) for i, n in enumerate((8, 12, 20, 10))}  # of the four quadratic clients


def parts(deletion):
    """A deletion as plain values: every part's client, in order, and its samples."""
    return [(i, x.tolist(), y.tolist()) for held in (deletion.forgotten, deletion.kept) for i, (x, y) in held.items()]


def test_a_deletion_splits_each_clients_samples(quadratics):
    """Of 8, 12, 20, 10 samples client 0 leaves and client 2 forgets two: 10 of 50."""
    deletion = Deletion.of(quadratics.clients, {2: ROWS([7, 3]), 0: torch.arange(8)})
    (x, y), kept = quadratics.clients[2], [i for i in range(20) if i not in (3, 7)]
    assert torch.equal(deletion.forgotten[2][0], x[[3, 7]])
    assert torch.equal(deletion.forgotten[2][1], y[[3, 7]])
    assert torch.equal(deletion.kept[2][0], x[kept])
    assert torch.equal(deletion.forgotten[0][0], quadratics.clients[0][0])
    assert (deletion.targets, deletion.leaving, list(deletion.kept)) == ([0, 2], [0], [1, 2, 3])
    assert (deletion.n, deletion.m, len(deletion.forget[1]), len(deletion.retain[1])) == (50, 10, 10, 40)
    assert not deletion.of_clients
    assert Deletion.of(quadratics.clients, [0, 3]).of_clients


def test_the_order_and_the_type_of_a_request_are_irrelevant(quadratics):
    """Sums run in client order; a tensor, an array or a list of ids names the same clients."""
    clients = quadratics.clients
    assert list(Deletion.of(clients, [3, 0, 1]).forgotten) == [0, 1, 3]
    for forget in ([2, 0], (0, 2), torch.tensor([0, 2]), np.array([2, 0])):
        assert parts(Deletion.of(clients, forget)) == parts(Deletion.of(clients, [0, 2]))
    assert parts(Deletion.of(clients, {1: [0, 3]})) == parts(Deletion.of(clients, {1: ROWS([3, 0])}))


def test_all_samples_of_a_client_are_the_client(quadratics):
    whole = Deletion.of(quadratics.clients, 2)
    assert parts(Deletion.of(quadratics.clients, {2: torch.arange(20)})) == parts(whole)
    assert whole.leaving == [2]


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        ([], "forget names nobody"),
        ({}, "forget names nobody"),
        (4, "forget names client 4, but clients are 0 to 3"),
        (-1, "forget names client -1"),
        ({9: ROWS([0])}, "forget names client 9"),
        ([1, 2, 1], r"forget names a client twice: \[1, 2, 1\]"),
        (torch.tensor([1, 1]), r"forget names a client twice: \[1, 1\]"),
        ([0, 1, 2, 3], "forget leaves no data at all"),
        (EVERYTHING, "forget leaves no data at all"),
        ({1: ROWS([], dtype=torch.int64)}, "forget names client 1 but none of its samples"),
        ({1: ROWS([0, 12])}, r"forget must hold indices 0\.\.11 of client 1 \(int64\), got \[0, 12\]"),
        ({1: ROWS([-1])}, r"indices 0\.\.11 of client 1"),
        ({1: ROWS([0.0])}, r"\(int64\)"),
        ({1: ROWS([True] * 12)}, r"\(int64\)"),
        ({1: ROWS([3, 3])}, "forget names a sample of client 1 twice"),
    ],
)
def test_bad_requests_are_named(quadratics, forget, message):
    with pytest.raises(InvalidRequest, match=message):
        Deletion.of(quadratics.clients, forget)


def test_requests_to_clients_without_data_are_named(quadratics):
    X, y = quadratics.clients[0]
    with pytest.raises(InvalidRequest, match="forget names client 1, which holds no data"):
        Deletion.of([(X, y), (X[:0], y[:0])], 1)
    with pytest.raises(InvalidRequest, match="forget leaves no data at all"):
        Deletion.of([(X, y), (X[:0], y[:0])], 0)
