"""Bad teacher: two rounds by hand, what its teachers say, what it does not look at, and its budget."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import NumericalFailure, UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.local import ClientOpt
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.baselines.bad_teacher import BadTeacher, bad_model, some, taught_rounds
from fu_core.unlearning.distillation import Student, lesson
from tests.linear import EXACT, LINEAR, LOCAL, dealt, start


def run(clients, config, *, forget=(1,), round=5, local=LOCAL, **about):
    f = Federation(about.pop("model", LINEAR), clients, local, **about)
    return taught_rounds(f, start(), Deletion.of(clients, forget), config, round)


def step(w, teacher, x, lr):
    """-lr (p_w - q)' x / n: one step of softmax regression towards what a teacher says."""
    p, q = (torch.softmax(x @ v.view(2, 3).T, dim=1) for v in (w, teacher))
    return -lr * ((p - q).T @ x / len(x)).flatten()


def test_two_rounds_by_hand():
    """Client 1 leaves with ten samples; of six and eight, three and four are shown. Only it moves the first round."""
    clients, w_o = dealt(), start()
    bad = bad_model(Federation(LINEAR, clients), w_o)
    shown = {i: some(clients[i], 0.5, seed=0, i=i)[0] for i in (0, 2)}
    assert [len(x) for x in shown.values()] == [3, 4]
    w = w_o + 10 / 17 * step(w_o, bad, clients[1][0], 0.1)
    config = BadTeacher(rounds=1, lr=0.1, share=0.5)
    torch.testing.assert_close(run(clients, config), w, **EXACT)
    w = (
        w
        + 10 / 17 * step(w, bad, clients[1][0], 0.1)
        + 3 / 17 * step(w, w_o, shown[0], 0.1)
        + 4 / 17 * step(w, w_o, shown[2], 0.1)
    )
    torch.testing.assert_close(run(clients, replace(config, rounds=2)), w, **EXACT)


def test_a_teacher_without_weights_is_of_no_opinion():
    """Zero logits, hence uniform probabilities: a student's gradient in the logits is p - 1/C."""
    _, labels = lesson(LINEAR, torch.zeros(6).double(), dealt()[0])
    assert torch.equal(labels[:, :2], torch.zeros(6, 2).double())
    z = torch.randn(6, 2, generator=torch.Generator().manual_seed(2)).double().requires_grad_()
    (g,) = torch.autograd.grad(Student(LINEAR, divergence=1.0).sample_losses(z, labels).sum(), z)
    torch.testing.assert_close(g, z.detach().softmax(dim=1) - 0.5, **EXACT)


def test_the_bad_teacher_has_learnt_nothing_and_is_the_seeds():
    f, w = Federation(LINEAR, dealt(), seed=3), start()
    assert torch.equal(bad_model(f, w), bad_model(f, w + 1))
    assert not torch.equal(bad_model(f, w), bad_model(f.having(seed=4), w))
    assert not torch.equal(bad_model(f, w), LINEAR.init(3, torch.float64))  # where training began, perhaps


def test_what_is_shown_is_drawn_once_and_each_clients_own():
    client = dealt((40,))[0]
    x, y = some(client, 0.3, seed=0, i=2)
    assert len(y) == 12
    assert torch.equal(x, some(client, 0.3, seed=0, i=2)[0])
    assert not torch.equal(x, some(client, 0.3, seed=0, i=3)[0])
    assert not torch.equal(x, some(client, 0.3, seed=1, i=2)[0])
    assert len(some(client, 1e-3, seed=0, i=2)[1]) == 1
    assert torch.equal(some(client, 1.0, seed=0, i=2)[0], client[0])


def test_who_forgets_samples_hears_both_teachers():
    clients, w_o = dealt(), start()
    (x, _), gone = clients[1], torch.tensor([0, 4, 9])
    bad = bad_model(Federation(LINEAR, clients), w_o)
    w = w_o + 3 / 24 * step(w_o, bad, x[gone], 0.4)
    ours = run(clients, BadTeacher(rounds=1, share=1.0), forget={1: gone})
    torch.testing.assert_close(ours, w, **EXACT)


def test_no_label_is_looked_at():
    clients = dealt()
    assert torch.equal(run([(x, 1 - y) for x, y in clients], BadTeacher()), run(clients, BadTeacher()))


def test_the_servers_optimiser_is_the_federations():
    full, half = (run(dealt(), BadTeacher(rounds=1), exchange=FedOpt(lr=lr)) - start() for lr in (1.0, 0.5))
    torch.testing.assert_close(half, full / 2, **EXACT)
    assert full.norm() > 0.01


def test_what_it_costs():
    """The good teacher to two clients, three rounds of three; 10, 3 and 4 samples: once by a teacher, thrice learnt."""
    clients = [(x.float(), y) for x, y in dealt()]
    f = Federation(LINEAR, clients, ClientOpt(epochs=7))
    taught_rounds(f, start().float(), Deletion.of(clients, 1), BadTeacher(share=0.5), 1)
    assert (f.meter.rounds, f.meter.images) == (3, 4 * 17)
    assert (f.meter.bytes_down, f.meter.bytes_up) == (24 * (2 + 9), 24 * 9)
    assert f.meter.storage == 2 * 24


def test_without_rounds_nothing_happens():
    w = start()
    assert torch.equal(run(dealt(), BadTeacher(rounds=0)), w)


def test_what_cannot_be_is_named():
    clients = dealt()
    with pytest.raises(UnsupportedTask, match="probabilities of classes, got task 'regression'"):
        run(clients, BadTeacher(), model=FlatModel(nn.Linear(3, 1), task="regression"))
    with pytest.raises(NumericalFailure, match="round 5: the model with two teachers is not finite"):
        run(clients, BadTeacher(lr=100.0), exchange=FedOpt(lr=1e308))
    for options, message in [
        ({"rounds": -1}, "rounds must be"),
        ({"share": 0.0}, "share must be"),
        ({"share": 1.5}, "share must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"epochs": 0.0}, "epochs must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            BadTeacher(**options)
