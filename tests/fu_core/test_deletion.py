"""What a request comes to: who loses which samples, in which order, and which requests are refused."""

import numpy as np
import pytest
import torch

from fu_core.errors import InvalidRequest
from fu_core.request import Deletion, Request

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


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        ({"1": None}, "forget must name clients by their numbers, got '1'"),
        ({True: None}, "forget must name clients by their numbers, got True"),
        ({1.0: None}, "forget must name clients by their numbers, got 1.0"),
        ({1: None, "a": None}, "forget must name clients by their numbers, got 'a'"),
        ({ROWS(1): [0]}, r"forget must name clients by their numbers, got tensor\(1\)"),
        (1j, "forget must name clients by their numbers, got 1j"),
        ({1: "ab"}, r"forget must hold indices 0\.\.11 of client 1 \(int64\), got 'ab'"),
        ({1: {0, 1}}, r"indices 0\.\.11 of client 1 \(int64\), got {0, 1}"),
        ({1: [2**70]}, r"indices 0\.\.11 of client 1 \(int64\), got \[1180591620717411303424\]"),
        ({1: np.array([0, 1], np.uint8)}, r"\(int64\), got \[0, 1\], torch.uint8 of shape \(2,\)"),
    ],
)
def test_ids_and_indices_of_another_kind_are_named(quadratics, forget, message):
    with pytest.raises(InvalidRequest, match=message):
        Deletion.of(quadratics.clients, forget)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (None, r"clients must be \(x, y\) by id, or a list of them, got NoneType"),
        (
            {"a": (ROWS([0]), ROWS([0])), "b": (ROWS([0]), ROWS([0]))},
            "clients must be numbered by whole numbers, got 'a'",
        ),
        ([1, 2], r"client 0 must be a pair of tensors \(x, y\), got int"),
        ([(ROWS([0]),)] * 2, r"client 0 must be a pair of tensors \(x, y\), got tuple"),
        ([(ROWS([0, 1]), [0, 1])] * 2, "client 0 must be a pair of tensors"),
        ([(ROWS([0, 1]), ROWS([0]))] * 2, r"as many samples in x as in y, got shapes \(2,\) and \(1,\)"),
        ([(ROWS(0), ROWS(0))] * 2, r"as many samples in x as in y, got shapes \(\) and \(\)"),
    ],
)
def test_what_are_no_clients_is_named(clients, message):
    for call in (lambda: Deletion.of(clients, 1), lambda: Request.parse("client-1").resolve(clients)):
        with pytest.raises(InvalidRequest, match=message):
            call()
