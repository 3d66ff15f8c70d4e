"""Destroyed: untrained, each peer and party by itself, nowhere near where training began, and of no use."""

import torch

from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import outputs, train
from fu_core.streams import stream_seed
from fu_core.unlearning.method import Trained, methods, unlearn
from tests import federations, verticals


def test_it_is_drawn_as_a_new_net_is_and_not_where_training_began():
    """nn.Linear draws uniformly within 1 / sqrt(inputs): five, then six. Whoever leaves, the same."""
    trained = federations.with_server()
    ours = unlearn("Destroyed", trained, "client-1").model
    for layer, inputs in zip(ours.split([6 * 5 + 6, 3 * 6 + 3]), (5, 6), strict=True):
        assert 0.7 * inputs**-0.5 < layer.abs().max() <= inputs**-0.5
    assert abs(torch.corrcoef(torch.stack([ours, trained.w_0]))[0, 1]) < 0.4  # three standard errors
    assert torch.equal(unlearn("Destroyed", trained, "client-2").model, ours)
    other = Trained(trained.horizontal.having(seed=1), trained.w)
    assert not torch.equal(unlearn("Destroyed", other, "client-1").model, ours)


def test_a_useful_model_is_of_no_use_any_more():
    """Three classes of about a third each: about a third is right by chance."""
    f = federations.with_server().horizontal
    w, (x, y) = fedavg(f, f.model.init(0), 60), f.clients[2]
    assert accuracy(f.model, w, x, y) > 85
    assert accuracy(f.model, unlearn("Destroyed", Trained(f, w), "client-1").model, x, y) < 60
    assert not methods()["Destroyed"].recovers


def test_peers_who_stay_are_destroyed_each_by_itself():
    models = unlearn("Destroyed", federations.among_peers(), "client-1").model
    assert len({tuple(row.tolist()) for row in models}) == len(models) == 4


def test_vertical_parties_are_destroyed_each_by_itself_from_a_stream_of_its_own():
    """As fresh nets are drawn, to the bit, whatever the parties had learnt and whatever is forgotten."""
    f = verticals.federated(verticals.toy(), seed=3)
    names = {0: f.parties.passive[0].model, 1: f.parties.passive[1].model, "active": f.parties.active.model}
    expected = [model.init(stream_seed(3, "destroyed", name), torch.float64) for name, model in names.items()]
    for rows in ("samples-9", "class-2"):
        ours = unlearn("Destroyed", Trained(f), rows).model
        assert all(torch.equal(a, b) for a, b in zip(ours.w, expected, strict=True))
        assert [w.dtype for w in ours.w] == [torch.float64] * 3
    trained = f.having(parties=train(f, torch.arange(36), f.optimisers(), 2))
    assert verticals.same(unlearn("Destroyed", Trained(trained), "samples-9").model, ours)
    other = verticals.federated(verticals.toy(), seed=4)
    assert not verticals.same(unlearn("Destroyed", Trained(other), "samples-9").model, ours)


def test_useful_vertical_parties_are_of_no_use_any_more():
    f = verticals.federated(verticals.toy(), local=ClientOpt(lr=0.5, batch_size=8))
    useful = f.having(parties=train(f, torch.arange(36), f.optimisers(), 60))
    destroyed = unlearn("Destroyed", Trained(useful), "samples-9").model
    right = [outputs(p, torch.arange(36)).argmax(dim=1) == p.active.y for p in (useful.parties, destroyed)]
    assert right[0].double().mean() > 0.9
    assert right[1].double().mean() < 0.6
    assert verticals.same(destroyed, unlearn("Destroyed", Trained(useful), "samples-3").model)
