"""Random labels by hand on softmax regression, what it may not look at, and its budget."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import NumericalFailure, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.request import Deletion
from fu_core.unlearning.baselines.random_labels import RandomLabels, random_labels, relabelled_rounds, serve
from fu_core.unlearning.method import Trained
from tests.linear import EXACT, LINEAR, LOCAL, dealt, start


def run(clients, config, *, w=None, forget=(1,), round=5, local=LOCAL, **about):
    f = Federation(about.pop("model", LINEAR), clients, local, **about)
    return relabelled_rounds(f, start() if w is None else w, Deletion.of(clients, forget), config, round)


def step(w, x, y, lr):
    """-lr (softmax(x W') - onehot(y))' x / n: one step of softmax regression, as an update."""
    excess = torch.softmax(x @ w.view(2, 3).T, dim=1) - torch.eye(2, dtype=torch.float64)[y]
    return -lr * (excess.T @ x / len(y)).flatten()


def nonsense(n, client, round):
    return random_labels(n, 2, seed=0, client=client, round=round)


def test_two_rounds_by_hand():
    """Client 1 of three: the others at 0.4, its own step on new random labels each round at 0.1, n = 24."""
    clients, w = dealt(), start()
    for t in (5, 6):
        w = (
            w
            + 6 / 24 * step(w, *clients[0], 0.4)
            + 10 / 24 * step(w, clients[1][0], nonsense(10, 1, t), 0.1)
            + 8 / 24 * step(w, *clients[2], 0.4)
        )
    torch.testing.assert_close(run(clients, RandomLabels(rounds=2, lr=0.1)), w, **EXACT)
    assert not torch.equal(nonsense(10, 1, 5), nonsense(10, 1, 6))


def test_alone_nobody_else_takes_part():
    """Two leave: weights 6/16 and 10/16 of what they learn, at their own rate of round 5."""
    clients, w = dealt(), start()
    lr = 0.4 * 0.5**4
    by_hand = w + 6 / 16 * step(w, clients[0][0], nonsense(6, 0, 5), lr)
    by_hand = by_hand + 10 / 16 * step(w, clients[1][0], nonsense(10, 1, 5), lr)
    ours = run(clients, RandomLabels(alone=True), forget=[0, 1], local=replace(LOCAL, lr_decay=0.5))
    torch.testing.assert_close(ours, by_hand, **EXACT)


def test_who_forgets_samples_learns_the_others_as_ever():
    """Client 1 forgets three of ten: they are nonsense to it as client 3 + 1, and it has seven to train on."""
    clients, w = dealt(), start()
    (x, y), gone = clients[1], torch.tensor([0, 4, 9])
    stays = torch.tensor([1, 2, 3, 5, 6, 7, 8])
    by_hand = (
        w
        + 6 / 24 * step(w, *clients[0], 0.4)
        + 7 / 24 * step(w, x[stays], y[stays], 0.4)
        + 8 / 24 * step(w, *clients[2], 0.4)
        + 3 / 24 * step(w, x[gone], nonsense(3, 4, 5), 0.4)
    )
    torch.testing.assert_close(run(clients, RandomLabels(), forget={1: gone}), by_hand, **EXACT)


def test_only_the_inputs_of_the_forgotten_data_are_used():
    clients = dealt()
    (x, y), (x_0, y_0) = clients[1], clients[0]
    ours = run(clients, RandomLabels())
    assert torch.equal(run([clients[0], (x, 1 - y), clients[2]], RandomLabels()), ours)
    assert not torch.equal(run([(x_0, 1 - y_0), clients[1], clients[2]], RandomLabels()), ours)


def test_labels_are_uniform_and_each_clients_own():
    drawn = random_labels(30_000, 3, seed=0, client=1, round=2)
    assert (torch.bincount(drawn) / 30_000 - 1 / 3).abs().max() < 0.015  # five standard errors
    assert not torch.equal(drawn[:50], random_labels(50, 3, seed=0, client=2, round=2))
    assert not torch.equal(drawn[:50], random_labels(50, 3, seed=1, client=1, round=2))


def test_a_model_that_is_taught_nonsense_forgets():
    """A net that knows its data by heart is right about few of them after a long lesson alone."""
    g = torch.Generator().manual_seed(0)
    x, model = torch.randn(60, 10, generator=g), FlatModel(mlp(10, 3, (40,)))
    y = torch.randint(0, 3, (60,), generator=g)
    clients = [(x[:30], y[:30]), (x[30:], y[30:])]
    local = ClientOpt(lr=0.3, batch_size=10, epochs=20)
    w = fedavg(Federation(model, clients, local), model.init(0), 8)
    ours = run(clients, RandomLabels(alone=True, rounds=3), w=w, forget=[0], local=local, model=model)
    assert accuracy(model, w, *clients[0]) > 90
    assert accuracy(model, ours, *clients[0]) < 65


def test_the_defaults_are_pufs_budget_and_the_clients_training():
    """One round of all three: 2 P B C bytes, N E C images, and the one model kept."""
    clients = [(x.float(), y) for x, y in dealt((6, 6, 6))]
    f = Federation(LINEAR, clients, ClientOpt(batch_size=4, epochs=2))
    serve(Trained(f, start().float(), rounds=4), Deletion.of(clients, 1), RandomLabels())
    assert (f.meter.rounds, f.meter.images, f.meter.bytes) == (1, 6 * 2 * 3, 2 * LINEAR.d * 4 * 3)
    assert f.meter.storage == LINEAR.d * 4
    assert RandomLabels().local(f.local) == f.local
    assert RandomLabels(lr=0.5, epochs=3).local(replace(f.local, lr_decay=0.9)) == replace(f.local, lr=0.5, epochs=3)


def test_the_servers_optimiser_is_the_federations():
    full, half = (run(dealt(), RandomLabels(), exchange=FedOpt(lr=lr)) - start() for lr in (1.0, 0.5))
    torch.testing.assert_close(half, full / 2, **EXACT)


def test_without_rounds_nothing_happens():
    w = start()
    ours = run(dealt(), RandomLabels(rounds=0), w=w)
    assert torch.equal(ours, w)
    assert ours.data_ptr() != w.data_ptr()


def test_what_cannot_be_is_named():
    with pytest.raises(UnsupportedTask, match="need classification, got 'segmentation'"):
        run(dealt(), RandomLabels(), model=FlatModel(nn.Conv2d(1, 2, 1), task="segmentation"))
    with pytest.raises(NumericalFailure, match="round 5: the model taught random labels is not finite"):
        run(dealt(), RandomLabels(lr=100.0), exchange=FedOpt(lr=1e308))
    for options, message in [
        ({"rounds": -1}, "rounds must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"epochs": 0.0}, "epochs"),
    ]:
        with pytest.raises(ValueError, match=message):
            RandomLabels(**options)
