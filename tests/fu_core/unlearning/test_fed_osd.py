"""FedOSD: its loss, both projections in closed form, two rounds by hand, its budget."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import NumericalFailure, UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.request import Deletion
from fu_core.unlearning.baselines.fed_osd import (
    FedOSD,
    UnlearningLoss,
    fed_osd,
    kept_off,
    orthogonal_part,
    orthogonal_step,
    serve,
)
from fu_core.unlearning.method import Trained

LINEAR = FlatModel(
    nn.Linear(6, 2, bias=False)
)  # gradients have six directions: those of the second class mirror the first
LOCAL = ClientOpt(lr=0.4)
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def dealt(sizes=(6, 10, 8, 5)):
    g = torch.Generator().manual_seed(0)
    return [(torch.randn(n, 6, generator=g).double(), torch.randint(0, 2, (n,), generator=g)) for n in sizes]


def start():
    return torch.randn(LINEAR.d, generator=torch.Generator().manual_seed(1)).double()


def run(clients, config, *, w=None, forget=(1,), round=5, local=LOCAL, **about):
    f = Federation(about.pop("model", LINEAR), clients, local, **about)
    return fed_osd(f, start() if w is None else w, Deletion.of(clients, forget), config, round)[0]


def rows(k=4, d=9, seed=0):
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed)).double()


def gradient(model, w, x, y):
    leaf = w.clone().requires_grad_()
    return torch.autograd.grad(model.loss(leaf, x, y), leaf)[0]


# --- the loss --------------------------------------------------------------------------------------------------------


def test_uce_is_between_nothing_and_log_2():
    z = torch.tensor([[-40.0, 40.0], [0.0, 0.0], [40.0, -40.0]]).double()
    losses = UnlearningLoss(LINEAR).sample_losses(z, torch.tensor([0, 0, 0]))
    torch.testing.assert_close(losses, torch.tensor([0.0, -math.log(0.75), math.log(2)], dtype=torch.float64), **EXACT)


def test_its_gradient_is_that_of_cross_entropy_turned_round_and_weighed():
    """Sample by sample: grad UCE = -p_y / (2 - p_y) grad CE."""
    z = (2 * rows(6, 4)).requires_grad_()
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    (ours,) = torch.autograd.grad(UnlearningLoss(LINEAR).sample_losses(z, y).sum(), z)
    (ce,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="sum"), z)
    p = z.detach().softmax(dim=1).gather(1, y[:, None])
    torch.testing.assert_close(ours, -p / (2 - p) * ce, **EXACT)


def test_it_keeps_the_models_l2():
    model = FlatModel(nn.Linear(6, 2, bias=False), l2=0.5)
    (x, y), w = dealt()[0], start()
    ours = UnlearningLoss(model)
    torch.testing.assert_close(ours.loss(w, x, y) - UnlearningLoss(LINEAR).loss(w, x, y), 0.25 * w.dot(w), **EXACT)


# --- off those who stay ----------------------------------------------------------------------------------------------


def test_the_step_in_the_plane():
    """G = e_1, Delta_u = (3, 4): D = (0, 4), as long as Delta_u (0, 5)."""
    G, delta_u = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([3.0, 4.0]).double()
    torch.testing.assert_close(orthogonal_part(delta_u, G), torch.tensor([0.0, 4.0]).double(), **EXACT)
    torch.testing.assert_close(orthogonal_step(delta_u, G), torch.tensor([0.0, 5.0]).double(), **EXACT)


@pytest.mark.parametrize("spread", [1.0, 1e-4, 1e4])
def test_the_step_is_orthogonal_to_everybody_who_stays(spread):
    """Of whatever length they are, and however many are the same."""
    G = rows()
    G[1] *= spread
    G = torch.cat([G, 2 * G[:1], G.mean(dim=0, keepdim=True)])
    delta_u = rows(1, seed=1)[0]
    step = orthogonal_step(delta_u, G)
    assert (G @ step).abs().max() <= 1e-12 * float(G.norm() * step.norm())
    assert float((G[1] @ step).abs()) <= 1e-12 * float(G[1].norm() * step.norm())
    assert float(step.norm()) == pytest.approx(float(delta_u.norm()), rel=1e-12)
    assert float(step.dot(delta_u)) > 0


def test_it_is_what_the_printed_formula_gives():
    """Delta_u - G' (G G')^-1 G Delta_u where the inverse exists."""
    G, delta_u = rows(), rows(1, seed=1)[0]
    printed = delta_u - G.T @ torch.linalg.solve(G @ G.T, G @ delta_u)
    torch.testing.assert_close(orthogonal_part(delta_u, G), printed, **EXACT)


def test_without_a_direction_of_its_own_there_is_no_step():
    G = rows()
    assert orthogonal_step(G.T @ torch.tensor([1.0, -2.0, 0.5, 3.0]).double(), G) is None
    assert orthogonal_step(torch.zeros(9).double(), G) is None
    delta_u = rows(1, seed=1)[0]
    torch.testing.assert_close(orthogonal_step(delta_u, torch.zeros(2, 9).double()), delta_u, **EXACT)


def test_directions_of_rounding_belong_to_nobody():
    """Two clients that differ in the 12th digit take one direction away, not two."""
    G = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1e-12, 0.0]]).double()
    delta_u = torch.tensor([1.0, 1.0, 1.0]).double()
    torch.testing.assert_close(orthogonal_part(delta_u, G), torch.tensor([0.0, 1.0, 1.0]).double(), atol=1e-9, rtol=0)


def test_it_keeps_single_precision():
    step = orthogonal_step(rows(1, seed=1)[0].float(), rows().float())
    assert step.dtype == torch.float32


# --- away from where it began ----------------------------------------------------------------------------------------


def test_kept_off_in_the_plane():
    """Either sign of the part along g_a = (2, 0) goes, the length stays; a row that is nothing else becomes zero."""
    deltas = torch.tensor([[3.0, 4.0], [-3.0, -4.0], [7.0, 0.0], [0.0, 0.0]]).double()
    ours = kept_off(deltas, torch.tensor([2.0, 0.0]).double())
    expected = torch.tensor([[0.0, 5.0], [0.0, -5.0], [0.0, 0.0], [0.0, 0.0]]).double()
    torch.testing.assert_close(ours, expected, **EXACT)
    assert torch.equal(kept_off(deltas, torch.zeros(2).double()), deltas)


def test_post_training_never_comes_back():
    """|w_(t+1) - w_o|^2 = |w_t - w_o|^2 + |step|^2, round by round."""
    clients, w = dealt(), start()
    path = [run(clients, FedOSD(rounds=2, post_rounds=k, lr_post=0.3), w=w) for k in range(5)]
    assert float((path[0] - w).norm()) > 0.01
    for before, after in itertools.pairwise(path):
        apart = float((before - w).norm() ** 2 + (after - before).norm() ** 2)
        assert float((after - before).norm()) > 1e-3
        assert float((after - w).norm() ** 2) == pytest.approx(apart, rel=1e-12)


# --- rounds ----------------------------------------------------------------------------------------------------------


def test_two_rounds_by_hand():
    """Clients 1 and 3 leave. One full-batch step each: -lr grad, at lr and then at lr_post 0.999."""
    clients, w_o = dealt(), start()
    off = UnlearningLoss(LINEAR)
    G = torch.stack([gradient(LINEAR, w_o, *clients[i]) for i in (0, 2)])
    g_u = (gradient(off, w_o, *clients[1]) + gradient(off, w_o, *clients[3])) / 2
    d = g_u - G.T @ torch.linalg.solve(G @ G.T, G @ g_u)
    w = w_o - 0.4 * g_u.norm() / d.norm() * d
    one = run(clients, FedOSD(rounds=1, post_rounds=0), forget=(1, 3))
    torch.testing.assert_close(one, w, **EXACT)

    g_a = (w - w_o) / (w - w_o).norm()
    steps = []
    for i in (0, 2):
        g = gradient(LINEAR, w, *clients[i])
        across = g - g.dot(g_a) * g_a
        steps.append(g.norm() / across.norm() * across)
    w = w - 0.05 * 0.999 * (steps[0] + steps[1]) / 2
    two = run(clients, FedOSD(rounds=1, post_rounds=1, lr_post=0.05), forget=(1, 3))
    torch.testing.assert_close(two, w, **EXACT)


def test_the_second_round_of_unlearning_is_a_little_shorter():
    clients = dealt()
    one = run(clients, FedOSD(rounds=1, post_rounds=0, lr=0.2))
    both = run(clients, FedOSD(rounds=2, post_rounds=0, lr=0.2))
    again = run(clients, FedOSD(rounds=1, post_rounds=0, lr=0.2 * 0.999), w=one, round=6)
    torch.testing.assert_close(both, again, **EXACT)
    assert not torch.allclose(both, run(clients, FedOSD(rounds=1, post_rounds=0, lr=0.2), w=one, round=6), **EXACT)


def test_a_small_step_lowers_uce_and_nobody_elses_loss():
    """On a net: UCE falls in proportion to the step, the losses of those who stay with its square."""
    g = torch.Generator().manual_seed(0)
    clients = [(torch.randn(20, 4, generator=g).double(), torch.randint(0, 3, (20,), generator=g)) for _ in range(3)]
    model = FlatModel(mlp(4, 3, (8,)))
    w = fedavg(Federation(model, clients, ClientOpt(lr=0.3, epochs=5)), model.init(0).double(), 10)
    off, changes = UnlearningLoss(model), []
    for lr in (1e-3, 1e-4):
        ours = run(clients, FedOSD(rounds=1, post_rounds=0, lr=lr), w=w, model=model)
        with torch.no_grad():
            own = [float(model.loss(ours, *clients[i]) - model.loss(w, *clients[i])) for i in (0, 2)]
            changes.append([float(off.loss(ours, *clients[1]) - off.loss(w, *clients[1])), *own])
    (uce, *stay), (uce_small, *stay_small) = changes
    assert uce < 0
    assert uce / uce_small == pytest.approx(10, rel=0.05)
    for large, small in zip(stay, stay_small, strict=True):
        assert abs(large) < 1e-2 * abs(uce)
        assert large / small == pytest.approx(100, rel=0.1)


def test_without_unlearning_post_training_is_plain_averaging_of_clients():
    """g_a = 0 in its first round: no projection. Clients count alike, not by their samples."""
    clients, w = dealt(), start()
    ours = run(clients, FedOSD(rounds=0, post_rounds=1, lr_post=0.1))
    mean = sum(gradient(LINEAR, w, *clients[i]) for i in (0, 2, 3)) / 3
    torch.testing.assert_close(ours, w - 0.1 * mean, **EXACT)


def test_a_round_without_a_direction_is_told_and_skipped():
    """Six directions, and six who stay: nothing is left of what client 1 wants."""
    clients = dealt((6, 10, 8, 5, 7, 9, 8))
    f = Federation(LINEAR, clients, LOCAL)
    trained = Trained(f, start(), rounds=4)
    ours = serve(trained, Deletion.of(clients, 1), FedOSD(rounds=3, post_rounds=0))
    assert torch.equal(ours, trained.model)
    assert ours.data_ptr() != trained.model.data_ptr()
    assert trained.notes == {"rounds without a step": 3}
    trained = Trained(f.having(clients=dict(enumerate(clients[:3]))), start(), rounds=4)
    serve(trained, Deletion.of(clients[:3], 1), FedOSD(rounds=3, post_rounds=0))
    assert trained.notes == {"rounds without a step": 0}


def test_who_leaves_is_there_in_every_round_of_unlearning():
    """Half of those who stay take part, and client 1, in id order of the streams of round 5."""
    clients, w = dealt((6, 10, 8, 5, 7, 9)), start()
    f = Federation(LINEAR, clients, LOCAL, participation=0.4)
    deletion = Deletion.of(clients, 1)
    there = f.after(deletion).taking_part(5)
    assert len(there) == 2
    G = torch.stack([gradient(LINEAR, w, *clients[i]) for i in there])
    g_u = gradient(UnlearningLoss(LINEAR), w, *clients[1])
    d = g_u - G.T @ torch.linalg.solve(G @ G.T, G @ g_u)
    ours, _ = fed_osd(f, w, deletion, FedOSD(rounds=1, post_rounds=0), 5)
    torch.testing.assert_close(ours, w - 0.4 * g_u.norm() / d.norm() * d, **EXACT)


def test_what_it_costs():
    """Four clients in three rounds, then three in two: a model down and an update up each, one pass, one model."""
    clients = [(x.float(), y) for x, y in dealt()]
    f = Federation(LINEAR, clients, ClientOpt(epochs=3))
    fed_osd(f, start().float(), Deletion.of(clients, 1), FedOSD(rounds=3, post_rounds=2), 1)
    assert (f.meter.rounds, f.meter.images) == (5, 3 * 29 + 2 * 19)
    assert f.meter.bytes == 2 * 4 * LINEAR.d * (3 * 4 + 2 * 3)
    assert f.meter.storage == 4 * LINEAR.d


def test_training_is_the_clients_but_for_rate_and_batches():
    clients = ClientOpt("adam", lr=0.2, lr_decay=0.5, epochs=3, batch_size=8, weight_decay=0.1)
    config = FedOSD(rounds=2, lr_post=0.01)
    first = replace(clients, lr=0.2, lr_decay=1.0, epochs=1.0, batch_size=200)
    assert config.local(clients, 1) == first
    assert config.local(clients, 2) == replace(first, lr=0.2 * 0.999)
    assert config.local(clients, 3) == replace(first, lr=0.01 * 0.999**2)
    assert replace(config, lr=0.3).local(clients, 1) == replace(first, lr=0.3)


def test_what_cannot_be_is_named():
    clients = dealt()
    with pytest.raises(UnsupportedTask, match="so classification, got 'segmentation'"):
        run(clients, FedOSD(), model=FlatModel(nn.Conv2d(1, 2, 1), task="segmentation"))
    with pytest.raises(UnsupportedTask, match="so whole clients go"):
        run(clients, FedOSD(), forget={1: torch.tensor([0, 1])})
    with pytest.raises(NumericalFailure, match=r"client .*, round 5: its update is not finite"):
        run([(x * float("nan"), y) for x, y in clients], FedOSD())
    for options, message in [
        ({"rounds": -1}, "rounds must be"),
        ({"post_rounds": 0.5}, "post_rounds must be"),
        ({"lr": 0.0}, "lr must be"),
        ({"lr_post": -1.0}, "lr_post must be"),
        ({"lr_decay": 0.0}, "lr_decay must be"),
        ({"epochs": 0.0}, "epochs must be"),
        ({"batch_size": 0}, "batch_size must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            FedOSD(**options)
