"""Destroyed: untrained, each peer by itself, nowhere near where training began, and of no use."""

import torch

from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.horizontal import fedavg
from fu_core.unlearning.method import Trained, methods, unlearn
from tests import federations


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
