"""Hessian-free online unlearning: exact where training is linear, first-order elsewhere, and free at deletion."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, MissingHistory, UnsupportedTask
from fu_core.federation import ClientOpt, Federation, Meter, fedavg
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.unlearning.baselines.stored_vectors import delete, trained_with_vectors
from fu_core.unlearning.method import Trained, unlearn
from tests.federations import dealt
from tests.quadratics import Quadratics

ROUNDS = 6


def ridge(local):
    """Four clients whose losses are quadratics, in float64, with l2."""
    q = Quadratics()
    model = FlatModel(nn.Linear(3, 1, bias=False), task="regression", l2=0.05)
    return q.federation(model=model, local=local)


@pytest.mark.parametrize(
    "local",
    [
        ClientOpt(lr=0.1, epochs=3, batch_size=4),
        ClientOpt(lr=0.05, epochs=2, batch_size=5, momentum=0.9, weight_decay=0.01, lr_decay=0.9),
        ClientOpt(lr=0.1, epochs=4, batch_size=1000),
    ],
    ids=["batches", "momentum", "whole"],
)
@pytest.mark.parametrize("u", [0, 2])
def test_on_quadratics_a_deletion_is_retraining(local, u):
    """Whatever the batches, momentum and rounds: everything is linear in w."""
    f, w_0 = ridge(local), torch.ones(3, dtype=torch.float64)
    w, vectors = trained_with_vectors(f, w_0, ROUNDS)
    assert torch.equal(w, fedavg(f, w_0, ROUNDS))  # recording changes nothing
    retrained = fedavg(f.having(clients={i: c for i, c in f.clients.items() if i != u}), w_0, ROUNDS)
    torch.testing.assert_close(delete(w, vectors, [u]), retrained, rtol=1e-9, atol=1e-11)
    assert (w - retrained).norm() > 1e-3
    trained = Trained(f, w, ROUNDS, w_0)
    found = unlearn("Stored vectors", trained, f"client-{u}", vectors=vectors)
    assert torch.equal(found.model, delete(w, vectors, [u]))
    assert (found.cost.images, found.cost.products) == (0, 0)
    assert found.cost.storage == 4 * 3 * 8


def test_a_round_that_goes_on_starts_from_no_absence():
    """Recording from round 4 on tells of a client that leaves after round 3."""
    f, w_0 = ridge(ClientOpt(lr=0.1, epochs=3, batch_size=4)), torch.ones(3, dtype=torch.float64)
    w_3 = fedavg(f, w_0, 3)
    w, vectors = trained_with_vectors(f, w_3, 3, first_round=4)
    rest = f.having(clients={i: c for i, c in f.clients.items() if i != 1})
    torch.testing.assert_close(delete(w, vectors, [1]), fedavg(rest, w_3, 3, first_round=4), rtol=1e-9, atol=1e-11)


def test_two_absences_leave_out_what_they_do_to_each_other():
    f, w_0 = ridge(ClientOpt(lr=0.1, epochs=3, batch_size=4)), torch.ones(3, dtype=torch.float64)
    w, vectors = trained_with_vectors(f, w_0, ROUNDS)
    rest = fedavg(f.having(clients={i: f.clients[i] for i in (1, 3)}), w_0, ROUNDS)
    both = delete(w, vectors, [0, 2])
    torch.testing.assert_close(both, w + vectors[0] + vectors[2])
    assert float((both - rest).norm() / (w - rest).norm()) > 1e-3


@pytest.mark.parametrize("size", [40, 4])
def test_on_a_net_only_the_second_order_is_missing(size):
    """After five rounds: a few percent of doing nothing's distance, whether a quarter of the samples leave or a few."""
    f = Federation(FlatModel(mlp(5, 3, (6,))), dealt([size, 40, 40, 40]), ClientOpt(lr=0.1, epochs=1, batch_size=40))
    w_0 = f.model.init(0)
    w, vectors = trained_with_vectors(f, w_0, 5)
    rest = fedavg(f.having(clients={i: f.clients[i] for i in (1, 2, 3)}), w_0, 5)
    assert (delete(w, vectors, [0]) - rest).norm() < 0.05 * (w - rest).norm()


def test_a_vector_of_one_client_is_the_one_that_everybodys_would_be():
    """At less work: products along one direction instead of four."""
    f, w_0 = ridge(ClientOpt(lr=0.1, epochs=3, batch_size=4)), torch.ones(3, dtype=torch.float64)
    everybody, alone = f.having(meter=Meter()), f.having(meter=Meter())
    w, vectors = trained_with_vectors(everybody, w_0, ROUNDS)
    same, only = trained_with_vectors(alone, w_0, ROUNDS, of=[2])
    assert torch.equal(w, same)
    assert list(only) == [2]
    torch.testing.assert_close(only[2], vectors[2], rtol=1e-12, atol=0)
    assert 4 * alone.meter.products == everybody.meter.products > 0
    with pytest.raises(InvalidRequest, match=r"^of must be one of 0, 1, 2, 3, got 7"):
        trained_with_vectors(f, w_0, 1, of=[7])


def test_what_is_not_linear_is_refused():
    f, w_0 = ridge(ClientOpt(lr=0.1)), torch.ones(3, dtype=torch.float64)
    for other in (
        f.having(exchange=FedOpt(kind="adam")),
        f.having(exchange=FedOpt(lr=0.5)),
        f.having(participation=0.5),
    ):
        with pytest.raises(UnsupportedTask, match=r"^exchange must be a server that averages everybody"):
            trained_with_vectors(other, w_0, 1)
    for change in ({"optimiser": "adam"}, {"augmentation": "flip_crop"}):
        with pytest.raises(UnsupportedTask, match=r"^local must be SGD without augmentation"):
            trained_with_vectors(f.having(local=replace(f.local, **change)), w_0, 1)
    with pytest.raises(InvalidRequest, match=r"^clients must be at least two"):
        trained_with_vectors(f.having(clients={0: f.clients[0]}), w_0, 1)


def test_missing_vectors_are_named():
    f, w = ridge(ClientOpt(lr=0.1)), torch.ones(3, dtype=torch.float64)
    trained = Trained(f, w, 1, w)
    with pytest.raises(MissingHistory, match="needs those of `trained_with_vectors`, got None"):
        unlearn("Stored vectors", trained, "client-0")
    with pytest.raises(MissingHistory, match=r"none was stored for client 0, only for \[1\]"):
        unlearn("Stored vectors", trained, "client-0", vectors={1: w})
