"""What stays the same from round to round: who is there, what is derived from it, and what it refuses."""

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, UnsupportedTask
from fu_core.federation.decentralised import dpsgd
from fu_core.federation.elsewhere import absent
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, ring
from fu_core.federation.horizontal import fedavg
from fu_core.federation.server import FedOpt
from fu_core.federation.together import Pool
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion


def test_clients_are_numbered_from_zero_or_named(quadratics):
    q = quadratics
    assert q.federation().ids == [0, 1, 2, 3]
    named = q.federation(clients={7: q.clients[1], 2: q.clients[3]})
    assert named.ids == [2, 7]
    assert named.sizes().tolist() == [10, 12]
    assert named.sizes([7, 2]).tolist() == [12, 10]
    pooled = q.federation(clients=Pool.of(named.clients))
    assert isinstance(pooled.clients, Pool)
    assert pooled.ids == [2, 7]


def test_it_is_a_server_that_averages_unless_somebody_says_otherwise(quadratics):
    f = Federation(quadratics.model, quadratics.clients)
    assert (f.server, f.seed, f.how) == (FedOpt(), 0, "auto")
    with pytest.raises(UnsupportedTask, match="exchange must be Peers for this, but these clients have a server"):
        _ = f.peers
    peers = Peers(ring(4))
    linked = f.having(exchange=peers)
    assert linked.peers is peers
    with pytest.raises(
        UnsupportedTask, match=r"exchange must be a server's \(FedOpt\) for this, but these clients are peers"
    ):
        _ = linked.server


def test_what_is_derived_shares_the_meter_and_leaves_the_original_alone(quadratics):
    f = quadratics.federation()
    other = f.having(local=replace(f.local, epochs=2.0), seed=3)
    left = other.after(Deletion.of(f.clients, 1))
    assert (f.local.epochs, f.seed, f.ids) == (4, 0, [0, 1, 2, 3])
    assert (left.local.epochs, left.seed, left.ids) == (2.0, 3, [0, 2, 3])
    assert f.meter is other.meter is left.meter
    assert Federation(f.model, f.clients).meter is not f.meter
    with pytest.raises(FrozenInstanceError):
        f.seed = 1


def test_after_a_deletion_only_what_is_kept_is_there(quadratics):
    """Client 3 leaves, client 0 keeps all but its second sample; the others have what they had."""
    q = quadratics
    f = q.federation(exchange=FedOpt("adam", lr=0.1)).after(Deletion.of(q.clients, {0: torch.tensor([1]), 3: None}))
    assert f.sizes().tolist() == [7, 12, 20]
    assert torch.equal(f.clients[0][1], q.clients[0][1][[0, 2, 3, 4, 5, 6, 7]])
    assert f.clients[1] is q.clients[1]
    assert f.server == FedOpt("adam", lr=0.1)


def test_peers_are_linked_anew_where_somebody_leaves_and_only_there(quadratics):
    q, peers = quadratics, Peers(ring(4), "atc")
    f = q.federation(exchange=peers)
    left = f.after(Deletion.of(q.clients, 2))
    assert sorted(map(sorted, left.peers.graph.edges)) == [[0, 1], [0, 3], [1, 3]]
    assert (left.peers.order, len(left.peers.Q)) == ("atc", 3)
    assert f.after(Deletion.of(q.clients, {2: torch.tensor([0])})).peers is peers


def test_peers_without_samples_are_no_longer_linked_after_a_deletion(quadratics):
    """Client 1 never held any, client 2 leaves: 0 and 3 are left, and learn."""
    q = quadratics
    x, y = q.clients[1]
    clients = [q.clients[0], (x[:0], y[:0]), *q.clients[2:]]
    left = q.federation(clients=clients, exchange=Peers(ring(4))).after(Deletion.of(clients, 2))
    assert (left.ids, sorted(left.peers.graph.edges)) == ([0, 3], [(0, 3)])
    assert dpsgd(left, q.model.init(0).double(), 1).shape == (2, q.model.d)


X, Y = torch.zeros(3, 2), torch.zeros(3)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (3, r"clients must be \(x, y\) by id, or a list of them, got int"),
        (iter([(X, Y)]), r"clients must be \(x, y\) by id, or a list of them, got list_iterator"),
        ([(X, Y), X], r"client 1 must be a pair of tensors \(x, y\), got Tensor"),
        ({7: (X, [0, 1, 2])}, r"client 7 must be a pair of tensors \(x, y\), got Tensor and list"),
        ({7: (X, Y[:2])}, "client 7 must hold as many samples in x as in y, got 3 and 2"),
    ],
)
def test_clients_that_hold_no_samples_with_labels_are_named(quadratics, clients, message):
    with pytest.raises(InvalidRequest, match=f"^{message}$"):
        Federation(quadratics.model, clients)


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("model", torch.nn.Linear(2, 1), r"model must be a FlatModel, FlatModel\(module\) say, got Linear"),
        ("local", 0.1, "local must be a ClientOpt, got 0.1"),
        ("exchange", ring(4), r"exchange must be a FedOpt, or Peers\(graph\), got Graph"),
        ("how", "lop", "how must be one of 'auto', 'loop', 'vmap', 'dense', got 'lop'; did you mean 'loop'.*"),
    ],
)
def test_other_fields_are_refused_by_name_where_the_federation_is_made(quadratics, field, given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        quadratics.federation().having(**{field: given})


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.bool])
def test_class_labels_of_any_type_are_int64_and_other_targets_what_they_were(quadratics, dtype):
    g, model = torch.Generator().manual_seed(0), FlatModel(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)))
    long = [(torch.randn(6, 4, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(3)]
    clients = {i: (x, y.to(dtype)) for i, (x, y) in enumerate(long)}
    for how in ("loop", "vmap"):
        f = Federation(model, clients, how=how)
        assert torch.equal(fedavg(f, model.init(0), 2), fedavg(f.having(clients=long), model.init(0), 2))
        assert f.having(seed=1).clients is f.clients  # converted once
    assert [y.dtype for _, y in f.clients.values()] == [torch.int64] * 3
    assert all(f.clients[i][0] is x for i, (x, _) in clients.items())
    assert clients[0][1].dtype == dtype  # a copy
    one = Federation(model, {0: clients[0], 1: long[1]})
    assert one.clients[1] is long[1]
    kept = {0: long[0], 1: long[1]}
    assert Federation(model, kept).clients is kept
    for other in (FlatModel(nn.Linear(4, 1), "regression"), FlatModel(nn.Conv2d(1, 2, 1), "segmentation")):
        assert Federation(other, clients).clients is clients
    elsewhere = {0: absent(6, (4,), labels=dtype)}
    assert Federation(model, elsewhere).clients is elsewhere


def test_federations_can_be_compared_and_shown_though_they_hold_tensors(quadratics):
    f = quadratics.federation()
    copied = f.having(clients={i: (x.clone(), y.clone()) for i, (x, y) in f.clients.items()})
    assert f != copied
    assert {f: 1}[f] == 1
    assert "tensor" not in repr(f)
