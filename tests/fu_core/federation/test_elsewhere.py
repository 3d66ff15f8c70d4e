"""A federation without samples: what its server may see, and what happens to who looks further."""

import pytest
import torch

from fu_core.errors import InvalidRequest, UnsupportedTask
from fu_core.federation import fedavg, fedavg_many
from fu_core.federation.elsewhere import Absent, absent, as_server, departure
from fu_core.federation.together import prepared, train_round
from fu_core.request import Request
from fu_core.unlearning.method import Trained, unlearn
from tests import federations


@pytest.fixture
def trained():
    return federations.with_server()


def asking(f, calls=None):
    """The server's federation; its clients are those of `f`, who answer."""

    def train(seen, w, round, ids):
        if calls is not None:
            calls.append((round, list(ids)))
        return train_round(f.having(local=seen.local), w, round, ids)

    return as_server(f).having(how=train)


def test_a_server_sees_sizes_and_shapes_as_they_are(trained):
    f = trained.federation
    seen = as_server(f)
    assert torch.equal(seen.sizes(), f.sizes())
    for i, (x, y) in seen.clients.items():
        assert (x.shape, x.dtype, y.shape, y.dtype) == tuple(
            part for samples in f.clients[i] for part in (samples.shape, samples.dtype)
        )
        assert isinstance(x, Absent)
        assert isinstance(y, Absent)
        assert str(x.device) == str(y.device) == "meta"  # where tensors have no memory
        assert repr(y) == f"Absent(({len(y)},), dtype=torch.int64)"
    assert as_server(seen) is seen


@pytest.mark.parametrize(
    "look",
    [
        lambda x, y: x[0],
        lambda x, y: y.tolist(),
        lambda x, y: x + 1,
        lambda x, y: torch.cat([x, x]),
        lambda x, y: float(x.sum()),
        lambda x, y: torch.nn.functional.linear(x, torch.ones(2, 5)),
        lambda x, y: bool((y == 1).any()),
        lambda x, y: x.clone(),
    ],
)
def test_who_looks_at_samples_is_refused(look):
    with pytest.raises(UnsupportedTask, match="computes with samples of the clients"):
        look(*absent(4, [5]))


def test_absent_samples_have_the_number_shape_and_type_that_are_said():
    x, y = absent(3, (1, 8, 8), dtype=torch.uint8, labels=torch.float32)
    assert (len(x), x.dim(), x.shape[1:], x.dtype, len(y), y.dtype) == (3, 4, (1, 8, 8), torch.uint8, 3, torch.float32)
    with pytest.raises(ValueError, match="n must be a whole number >= 0, got -1"):
        absent(-1, [5])


def test_fedavg_without_samples_is_fedavg(trained):
    f, calls = trained.federation, []
    elsewhere = asking(f, calls)
    assert torch.equal(fedavg(elsewhere, trained.w_0, 2), fedavg(f, trained.w_0, 2))
    assert calls == [(1, f.ids), (2, f.ids)]
    assert prepared(elsewhere, trained.w_0) is elsewhere


def test_an_update_that_is_not_finite_is_named_as_of_a_client_here(trained):
    elsewhere = as_server(trained.federation).having(
        how=lambda f, w, round, ids: torch.full((len(ids), len(w)), float("nan"))
    )
    with pytest.raises(RuntimeError, match="client 0, round 4: its update is not finite"):
        train_round(elsewhere, trained.model, 4)


def test_many_seeds_at_once_need_clients_here(trained):
    with pytest.raises(UnsupportedTask, match="how must be a way of training for many seeds at once"):
        fedavg_many(asking(trained.federation), [0, 1], 1)


@pytest.mark.parametrize(("request_", "leaving"), [("client-1", [1]), ("client-0-3", [0, 3]), ([3, 0], [0, 3])])
def test_a_departure_is_what_its_request_resolves_to(trained, request_, leaving):
    f = trained.federation
    ours = departure(f.clients, request_)
    theirs = Request.parse("client-" + "-".join(map(str, leaving))).resolve(f.clients)
    assert ours.leaving == theirs.leaving == leaving
    assert list(ours.kept) == list(theirs.kept)
    assert (ours.n, ours.m) == (theirs.n, theirs.m)
    assert departure(as_server(f).clients, request_).m == theirs.m


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ("client-7", InvalidRequest, "targets names client 7, but clients are 0 to 4"),
        ([1, 1], InvalidRequest, "targets names a client twice"),
        ("none", InvalidRequest, "targets names nobody"),
        ([], InvalidRequest, "targets names nobody"),
        ([0, 1, 2, 3, 4], InvalidRequest, "targets names all 5 clients"),
        ("sample-1-0.5", UnsupportedTask, "request must name clients that leave.*'sample-1-0.5'"),
        ("class-2", UnsupportedTask, "request must name clients that leave.*'class-2'"),
        ("cleint-1", InvalidRequest, "did you mean 'client'"),
    ],
)
def test_a_departure_that_cannot_be_is_refused(trained, request_, error, message):
    with pytest.raises(error, match=message):
        departure(as_server(trained.federation).clients, request_)


def test_clients_without_samples_cannot_leave_and_do_not_stay(trained):
    clients = {**as_server(trained.federation).clients, 5: absent(0, [5])}
    assert list(departure(clients, "client-1").kept) == [0, 2, 3, 4]
    with pytest.raises(InvalidRequest, match="targets names client 5, which holds no data"):
        departure(clients, "client-5")


def test_a_method_that_only_trains_needs_no_samples(trained):
    here = unlearn("Fine-tune", trained, "client-1", rounds=2)
    seen = asking(trained.federation)
    there = unlearn(
        "Fine-tune", Trained(seen, trained.model, trained.rounds), departure(seen.clients, "client-1"), rounds=2
    )
    assert torch.equal(here.model, there.model)
    assert (here.cost.bytes, here.cost.rounds) == (there.cost.bytes, there.cost.rounds)
