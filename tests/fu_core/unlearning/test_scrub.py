"""SCRUB: the teacher's loss in closed form, an epoch by hand, what fine-tuning is of it, and going back."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedTask
from fu_core.evaluation.accuracy import accuracy
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.federation.server import FedOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.request import Deletion
from fu_core.unlearning.baselines.scrub import SCRUB, scrub
from fu_core.unlearning.distillation import Student, lesson
from fu_core.unlearning.method import Trained, unlearn
from tests.linear import EXACT, LINEAR, LOCAL, dealt, start


def run(clients, config, *, w=None, forget=(1,), round=5, local=LOCAL, notes=None, **about):
    f = Federation(about.pop("model", LINEAR), clients, local, **about)
    return scrub(f, start() if w is None else w, Deletion.of(clients, forget), config, round, notes)


def apart(w, w_o, x, T):
    """T^2 KL(p_o || p_w), the mean over the samples, with a gradient in w."""
    p_w, p_o = (F.softmax(x @ v.view(2, 3).T / T, dim=1) for v in (w, w_o))
    return T**2 * (p_o * (p_o.log() - p_w.log())).sum(dim=1).mean()


def step(w, lr, loss):
    """-lr times the gradient of `loss`, a function of w."""
    leaf = w.clone().requires_grad_()
    return -lr * torch.autograd.grad(loss(leaf), leaf)[0]


# --- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("T", [1.0, 4.0])
def test_the_gradient_in_the_logits_is_t_times_the_difference_of_probabilities(T):
    g = torch.Generator().manual_seed(0)
    z, says = (3 * torch.randn(5, 4, generator=g, dtype=torch.float64) for _ in range(2))
    labels = torch.cat([says, torch.zeros(5, 1)], dim=1)
    leaf = z.clone().requires_grad_()
    student = Student(LINEAR, divergence=1.0, temperature=T)
    (ours,) = torch.autograd.grad(student.sample_losses(leaf, labels).sum(), leaf)
    torch.testing.assert_close(ours, T * ((z / T).softmax(dim=1) - (says / T).softmax(dim=1)), **EXACT)


def test_both_losses_have_their_weights_and_l2_stays():
    model = FlatModel(nn.Linear(3, 2, bias=False), l2=0.5)
    (x, y), w, w_o = dealt()[0], start(), torch.ones(6).double()
    student = Student(model, divergence=-0.3, cross_entropy=2.0, temperature=2.0)
    x, labels = lesson(LINEAR, w_o, (x, y))
    expected = -0.3 * apart(w, w_o, x, 2.0) + 2 * F.cross_entropy(x @ w.view(2, 3).T, y) + 0.25 * w.dot(w)
    torch.testing.assert_close(student.loss(w, x, labels), expected, **EXACT)


def test_a_student_that_is_the_teacher_has_nothing_to_learn():
    x, labels = lesson(LINEAR, start(), dealt()[0])
    student = Student(LINEAR, divergence=-1.0, temperature=4.0)
    assert float(student.loss(start(), x, labels)) == pytest.approx(0, abs=1e-15)
    assert student.grad(start(), x, labels).abs().max() < 1e-15


# --- passes ----------------------------------------------------------------------------------------------------------


def test_two_epochs_by_hand():
    """MIN before MAX in the first, MAX before MIN in the second, MIN alone in the third. Client 1 leaves."""
    clients, w_o = dealt(), start()
    x_1, _ = clients[1]

    def min_pass(w):
        return w + sum(
            len(y) / 14 * step(w, 0.1, lambda v, x=x, y=y: 0.5 * apart(v, w_o, x, 2.0) + 0.9 * LINEAR.loss(v, x, y))
            for x, y in (clients[0], clients[2])
        )

    def max_pass(w):
        return w + step(w, 0.1, lambda v: -apart(v, w_o, x_1, 2.0))

    config = SCRUB(rounds=1, max_rounds=2, alpha=0.5, gamma=0.9, temperature=2.0, lr=0.1)
    w = max_pass(min_pass(w_o))
    torch.testing.assert_close(run(clients, config), w, **EXACT)
    w = min_pass(max_pass(w))
    torch.testing.assert_close(run(clients, replace(config, rounds=2)), w, **EXACT)
    torch.testing.assert_close(run(clients, replace(config, rounds=3)), min_pass(w), **EXACT)


def test_max_rounds_are_averaged_by_what_is_forgotten():
    """Two who leave, with six and ten samples: 6/16 and 10/16. With weight decay MAX comes first."""
    clients, w_o, local = dealt(), start(), replace(LOCAL, weight_decay=0.2)
    config = SCRUB(rounds=1, max_rounds=1, alpha=0.0, gamma=0.0, temperature=1.0, lr=0.1)
    w = w_o - 0.1 * 0.2 * w_o  # MAX at w_o: decay alone
    torch.testing.assert_close(run(clients, config, forget=(0, 1), local=local), w - 0.1 * 0.2 * w, **EXACT)
    both = run(clients, replace(config, rounds=2, max_rounds=2), forget=(0, 1), local=local)
    w, up = w - 0.1 * 0.2 * w, 0.0
    for n, i in ((6, 0), (10, 1)):
        x, _ = clients[i]
        up = up + n / 16 * step(w, 0.1, lambda v, x=x: -apart(v, w_o, x, 1.0))
    w = w + up - 0.1 * 0.2 * w
    torch.testing.assert_close(both, w - 0.1 * 0.2 * w, **EXACT)


def test_with_l2_the_first_pass_is_max_too():
    """The penalty moves a model that agrees with its teacher: w - lr l2 w, and again in MIN."""
    model = FlatModel(nn.Linear(3, 2, bias=False), l2=0.2)
    config = SCRUB(rounds=1, max_rounds=1, alpha=1.0, gamma=0.0, temperature=1.0, lr=0.1)
    clients, w_o = dealt(), start()
    w = w_o - 0.1 * 0.2 * w_o
    by_hand = (
        w
        - 0.1 * 0.2 * w
        + sum(len(y) / 14 * step(w, 0.1, lambda v, x=x: apart(v, w_o, x, 1.0)) for x, y in (clients[0], clients[2]))
    )
    torch.testing.assert_close(run(clients, config, model=model), by_hand, **EXACT)


def test_who_forgets_samples_takes_part_in_both():
    clients, w_o = dealt(), start()
    (x, y), gone = clients[1], torch.tensor([0, 4, 9])
    stays = torch.tensor([1, 2, 3, 5, 6, 7, 8])
    w = w_o + sum(
        len(own[1]) / 21 * step(w_o, 0.1, lambda v, own=own: LINEAR.loss(v, *own))
        for own in (clients[0], (x[stays], y[stays]), clients[2])
    )
    w = w + step(w, 0.1, lambda v: -apart(v, w_o, x[gone], 4.0))
    ours = run(clients, SCRUB(rounds=1, alpha=0.0, gamma=1.0, lr=0.1), forget={1: gone})
    torch.testing.assert_close(ours, w, **EXACT)


@pytest.mark.parametrize("exchange", [FedOpt(), FedOpt("adam", lr=0.01)])
def test_without_a_teacher_it_is_fine_tuning_to_the_bit(exchange):
    """alpha = 0, gamma = 1 and no MAX: FedAvg of those who stay, the server's moments included."""
    clients = [(x.float(), y) for x, y in dealt()]
    local = ClientOpt(lr=0.1, lr_decay=0.9, momentum=0.5, batch_size=4)
    f = Federation(LINEAR, clients, local, how="vmap", exchange=exchange)
    config = SCRUB(rounds=3, max_rounds=0, alpha=0.0, gamma=1.0, lr=None)
    ours = scrub(f, start().float(), Deletion.of(clients, 1), config, 5)
    tuned = fedavg(f.after(Deletion.of(clients, 1)), start().float(), 3, first_round=5)
    assert torch.equal(ours, tuned)


def test_the_servers_optimiser_is_that_of_min_rounds_alone():
    """A server that goes half the way: in MIN, not in MAX."""
    clients, w_o = dealt(), start()
    ours = run(clients, SCRUB(rounds=1, alpha=0.0, gamma=1.0, lr=0.1), exchange=FedOpt(lr=0.5))
    w = w_o + 0.5 * sum(
        len(y) / 14 * step(w_o, 0.1, lambda v, x=x, y=y: LINEAR.loss(v, x, y)) for x, y in (clients[0], clients[2])
    )
    torch.testing.assert_close(ours, w + step(w, 0.1, lambda v: -apart(v, w_o, clients[1][0], 4.0)), **EXACT)


def test_labels_of_what_is_forgotten_are_not_used():
    clients = dealt()
    (x, y), (x_0, y_0) = clients[1], clients[0]
    ours = run(clients, SCRUB())
    assert torch.equal(run([clients[0], (x, 1 - y), clients[2]], SCRUB()), ours)
    assert not torch.equal(run([(x_0, 1 - y_0), clients[1], clients[2]], SCRUB()), ours)


def trained_net():
    """Two clients whose labels are random, and a net that knows them by heart."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 10, generator=g), torch.randint(0, 3, (60,), generator=g)
    f = Federation(FlatModel(mlp(10, 3, (40,))), [(x[:30], y[:30]), (x[30:], y[30:])],
                   ClientOpt(lr=0.3, batch_size=10, epochs=20))  # fmt: skip
    return Trained(f, fedavg(f, f.model.init(0), 8), rounds=8)


def test_it_forgets_what_it_is_asked_to_and_keeps_the_rest():
    trained = trained_net()
    f = trained.horizontal
    ours = unlearn("SCRUB", trained, "client-0", lr=0.1, rounds=10).model
    assert accuracy(f.model, trained.model, *f.clients[0]) > 90
    assert accuracy(f.model, ours, *f.clients[0]) < 65
    assert accuracy(f.model, ours, *f.clients[1]) > 90


def test_what_it_costs():
    """The teacher goes to three, who look at all 24 samples. MAX: one client, twice; MIN: two clients, thrice."""
    clients = [(x.float(), y) for x, y in dealt()]
    f = Federation(LINEAR, clients, ClientOpt(epochs=7))
    scrub(f, start().float(), Deletion.of(clients, 1), SCRUB(), 1)
    assert (f.meter.rounds, f.meter.images) == (5, 24 + 2 * 10 + 3 * 14)
    assert (f.meter.bytes_down, f.meter.bytes_up) == (24 * (3 + 2 + 6), 24 * (2 + 6))
    assert f.meter.storage == 2 * 24


# --- going back ------------------------------------------------------------------------------------------------------


def test_it_goes_back_to_the_epoch_that_forgets_as_the_last_one_errs():
    """Its error on client 0 is the nearest of all epochs' to the last model's on held-out samples; later ones win."""
    trained = trained_net()
    f = trained.horizontal
    g = torch.Generator().manual_seed(1)
    held_out = torch.randn(50, 10, generator=g), torch.randint(0, 3, (50,), generator=g)
    options = {"lr": 0.05, "max_rounds": 8}
    epochs = [unlearn("SCRUB", trained, "client-0", rounds=e, **options).model for e in range(1, 9)]
    reference = accuracy(f.model, epochs[-1], *held_out)
    gaps = [abs(accuracy(f.model, w_e, *f.clients[0]) - reference) for w_e in epochs]
    best = max(e for e, gap in enumerate(gaps) if gap == min(gaps))
    assert 0 < best < 7
    ours = unlearn("SCRUB+R", trained, "client-0", rounds=8, held_out=held_out, **options)
    assert ours.notes == {"epoch": best + 1}
    assert torch.equal(ours.model, epochs[best])
    assert not torch.equal(ours.model, unlearn("SCRUB", trained, "client-0", rounds=8, **options).model)


def test_of_epochs_that_are_as_near_the_last_is_taken():
    """Steps so short that no prediction changes."""
    notes = {}
    run(dealt(), SCRUB(rounds=3, lr=1e-9, rewind=True, held_out=dealt()[0]), notes=notes)
    assert notes == {"epoch": 3}


def test_going_back_costs_a_look_at_every_epochs_model():
    """Three models down to client 1 and its ten samples thrice, four held-out samples, and three models kept."""
    clients = [(x.float(), y) for x, y in dealt()]
    meters = []
    for config in (SCRUB(), SCRUB(rewind=True, held_out=(clients[0][0][:4], clients[0][1][:4]))):
        f = Federation(LINEAR, clients, ClientOpt())
        scrub(f, start().float(), Deletion.of(clients, 1), config, 1)
        meters.append(f.meter)
    plain, back = meters
    assert back.images - plain.images == 3 * 10 + 4
    assert (back.bytes_down - plain.bytes_down, back.bytes_up - plain.bytes_up) == (3 * 24, 0)
    assert back.storage - plain.storage == 3 * 24


def test_without_rounds_nothing_happens():
    w, x = start(), dealt()[0]
    for config in (SCRUB(rounds=0), SCRUB(rounds=0, rewind=True, held_out=x)):
        ours = run(dealt(), config, w=w)
        assert torch.equal(ours, w)
        assert ours.data_ptr() != w.data_ptr()


def test_training_is_the_clients_but_for_rate_and_passes():
    clients = ClientOpt("adam", lr=0.2, lr_decay=0.5, epochs=3, batch_size=8)
    assert SCRUB(lr=0.03).local(clients) == replace(clients, lr=0.03, lr_decay=1.0, epochs=1.0)
    assert SCRUB(lr=None, epochs=2.0).local(clients) == replace(clients, epochs=2.0)


def test_what_cannot_be_is_named():
    clients = dealt()
    with pytest.raises(UnsupportedTask, match="so classification, got 'segmentation'"):
        run(clients, SCRUB(), model=FlatModel(nn.Conv2d(1, 2, 1), task="segmentation"))
    with pytest.raises(UnsupportedTask, match="are those of classes, not of task 'regression'"):
        Student(FlatModel(nn.Linear(3, 1), task="regression"), divergence=1.0)
    for held_out in (None, (clients[0][0][:0], clients[0][1][:0])):
        with pytest.raises(InvalidRequest, match=r"held_out must be samples \(x, y\) .*, for rewind, got none"):
            run(clients, SCRUB(rewind=True, held_out=held_out))
    with pytest.raises(NumericalFailure, match="round 5: the model of SCRUB is not finite"):
        run(clients, SCRUB(lr=100.0), exchange=FedOpt(lr=1e308))
    for options, message in [
        ({"rounds": -1}, "rounds must be"),
        ({"max_rounds": -1}, "max_rounds must be"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"gamma": -1.0}, "gamma must be"),
        ({"temperature": 0.0}, "temperature must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"epochs": 0.0}, "epochs must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            SCRUB(**options)
