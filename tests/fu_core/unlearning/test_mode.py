"""MoDe: its algorithm by hand, what the target's labels may not do, and its costs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import UnsupportedTask
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.request import Deletion
from fu_core.unlearning.baselines.mode import MoDe, mode
from fu_core.unlearning.method import unlearn
from tests.federations import with_server

LINEAR = FlatModel(nn.Linear(3, 2, bias=False))  # w is the weight matrix (2, 3), row by row
LOCAL = ClientOpt(lr=0.4, batch_size=10**6)  # one full-batch step per epoch
FROZEN = 1e-300  # a learning rate that moves nothing
EXACT = {"rtol": 1e-10, "atol": 1e-12}


def dealt(sizes=(6, 10, 8), features=3, classes=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, features, generator=g, dtype=torch.float64),
            torch.randint(0, classes, (n,), generator=g),
        )
        for n in sizes
    ]


def start(seed, d=LINEAR.d):
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(clients, config, w, v_0, *, local=LOCAL, forget=(1,), model=LINEAR, how="loop"):
    f = Federation(model, clients, local, how=how)
    return mode(f, w, Deletion.of(clients, forget), config, round=5, v_0=v_0)


def softmax_step(w, x, y, lr):
    """-lr (softmax(x W') - onehot(y))' x / n: one step of softmax regression, as an update."""
    excess = torch.softmax(x @ w.view(2, 3).T, dim=1) - torch.eye(2, dtype=torch.float64)[y]
    return -lr * (excess.T @ x / len(y)).flatten()


def test_three_rounds_by_hand():
    """R_d = 2 of R_m = 3 rounds, lambda = 0.7, client 1 of three leaves; rates 0.4, 0.2 and 0.1, full batches."""
    clients, w, v = dealt(), start(1), start(2)
    config = MoDe(rounds_d=2, rounds_m=3, momentum=0.7, lr_guidance=0.2, lr_target=0.1)
    ours = run(clients, config, w, v)
    labels = set()
    for r in (1, 2, 3):
        if r <= 2:
            v = v + 6 / 14 * softmax_step(v, *clients[0], 0.4) + 8 / 14 * softmax_step(v, *clients[2], 0.4)
            w = 0.7 * w + 0.3 * v
        pseudo = (clients[1][0] @ v.view(2, 3).T).argmax(dim=1)
        labels |= set(pseudo.tolist())
        w = (
            w
            + 6 / 24 * softmax_step(w, *clients[0], 0.2)
            + 10 / 24 * softmax_step(w, clients[1][0], pseudo, 0.1)
            + 8 / 24 * softmax_step(w, *clients[2], 0.2)
        )
    assert labels == {0, 1}
    assert (ours - start(1)).norm() > 0.1
    torch.testing.assert_close(ours, w, **EXACT)


@pytest.mark.parametrize("momentum", [0.95, 1.0])
def test_without_rounds_nothing_happens(momentum):
    w = start(1)
    after = run(dealt(), MoDe(rounds_m=0, momentum=momentum), w, start(2))
    assert torch.equal(after, w)
    assert after.data_ptr() != w.data_ptr()


def test_a_frozen_degradation_model_pulls_geometrically():
    """v frozen, guidance off: w = lambda^R w_0 + (1 - lambda^R) v after R = min(R_d, R_m) rounds."""
    w, v = start(1), start(2)
    frozen = MoDe(momentum=0.9, lr_degradation=FROZEN, lr_guidance=FROZEN, lr_target=FROZEN)
    for rounds_d, rounds_m, R in [(6, 10, 6), (7, 4, 4), (0, 3, 0)]:
        ours = run(dealt(), replace(frozen, rounds_d=rounds_d, rounds_m=rounds_m), w, v)
        torch.testing.assert_close(ours, 0.9**R * w + (1 - 0.9**R) * v, **EXACT)


def test_only_the_inputs_of_the_forgotten_data_are_used():
    """Permuted, even wrong labels of D_u: the same result, bit for bit. Other labels of a client that stays: not."""
    clients, config = dealt(), MoDe(rounds_d=2, rounds_m=3, lr_guidance=0.2, lr_target=0.2)
    ours = run(clients, config, start(1), start(2))
    (x, y), others = clients[1], (clients[0], clients[2])
    for labels in (y.flip(0), 1 - y):
        assert not torch.equal(labels, y)
        assert torch.equal(run([others[0], (x, labels), others[1]], config, start(1), start(2)), ours)
    x_0, y_0 = clients[0]
    assert not torch.equal(run([(x_0, 1 - y_0), clients[1], clients[2]], config, start(1), start(2)), ours)


def test_the_degradation_model_is_a_training_without_the_target():
    """lambda = 0, guidance off, R_d = R_m: w is v, by default from the seed's initialisation; rates undecayed."""
    model, clients = FlatModel(mlp(3, 2, (4,))), dealt()
    local = ClientOpt(lr=0.3, lr_decay=0.5, batch_size=4)
    config = MoDe(rounds_d=3, rounds_m=3, momentum=0.0, lr_guidance=FROZEN, lr_target=FROZEN)
    w_0 = model.init(0, torch.float64)
    undecayed = replace(local, lr_decay=1.0)
    staying = Federation(model, {0: clients[0], 2: clients[2]}, undecayed, how="loop")
    reference = fedavg(staying, w_0, 3, first_round=5)
    after = run(clients, config, 7 * w_0, None, local=local, model=model)
    assert torch.equal(after, reference)
    assert not torch.equal(after, w_0)


def test_one_rate_decides_what_the_target_does():
    """With the others' rate at nothing, one guidance round moves w by the target's share 10/24 alone."""
    clients, w, v = dealt(), start(1), start(2)
    config = MoDe(rounds_d=0, rounds_m=1, lr_guidance=FROZEN, lr_target=0.1)
    pseudo = (clients[1][0] @ v.view(2, 3).T).argmax(dim=1)
    by_hand = w + 10 / 24 * softmax_step(w, clients[1][0], pseudo, 0.1)
    torch.testing.assert_close(run(clients, config, w, v), by_hand, **EXACT)


def test_guidance_may_have_a_momentum_of_its_own():
    """Two full-batch steps along g_1, g_2: -eta ((1 + mu) g_1 + g_2), whatever momentum the clients train with."""
    clients, w, v = dealt(), start(1), start(2)
    config = MoDe(rounds_d=0, rounds_m=1, lr_guidance=FROZEN, lr_target=0.1, epochs_guidance=2.0)
    (x, _), moving = clients[1], replace(LOCAL, momentum=0.9)
    pseudo = (x @ v.view(2, 3).T).argmax(dim=1)

    def by_hand(mu):
        first = softmax_step(w, x, pseudo, 0.1)
        return w + 10 / 24 * (first + mu * first + softmax_step(w + first, x, pseudo, 0.1))

    for mu, local in ((None, moving), (0.9, LOCAL), (0.5, moving), (0.0, moving)):
        ours = run(clients, replace(config, guidance_momentum=mu), w, v, local=local)
        torch.testing.assert_close(ours, by_hand(0.9 if mu is None else mu), **EXACT)


def test_the_momentum_of_guidance_leaves_degradation_alone():
    """lambda = 0, guidance off: w is v, which the clients train with their own momentum."""
    config = MoDe(rounds_d=2, rounds_m=2, momentum=0.0, lr_guidance=FROZEN, lr_target=FROZEN)
    local = ClientOpt(lr=0.3, batch_size=4, momentum=0.9)
    ours, other = (
        run(dealt(), replace(config, guidance_momentum=mu), start(1), start(2), local=local) for mu in (None, 0.0)
    )
    assert torch.equal(ours, other)


def test_defaults_are_the_papers():
    """PUF, appendix A: R_d = 6, R_m = 10, lambda = 0.95, guidance at 0.0005 for everybody."""
    c = MoDe()
    assert (c.rounds_d, c.rounds_m, c.momentum, c.lr_guidance, c.lr_target) == (6, 10, 0.95, 5e-4, 5e-4)


def test_inputs_are_left_untouched():
    clients, w, v = dealt(), start(1), start(2)
    run(clients, MoDe(rounds_d=1, rounds_m=2, lr_guidance=0.2), w, v)
    assert torch.equal(w, start(1))
    assert torch.equal(v, start(2))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(clients, dealt(), strict=True))


def test_all_clients_at_once_or_one_by_one():
    model, clients = FlatModel(mlp(3, 2, (4,))), dealt()
    config, local = MoDe(rounds_d=2, rounds_m=3, lr_guidance=0.1, lr_target=0.1), ClientOpt(lr=0.3, batch_size=4)
    w = model.init(1, torch.float64)
    loop, vmap = (run(clients, config, w, None, local=local, model=model, how=how) for how in ("loop", "vmap"))
    torch.testing.assert_close(loop, vmap, **EXACT)


def test_counters_equal_the_formulas():
    """Table VIII: 2 P B (C_r R_d + C R_m) bytes, N E (C_r R_d + C R_m) images, 2 P B stored; C = 4, N = 6."""
    clients = [(x.float(), y) for x, y in dealt((6, 6, 6, 6))]
    f = Federation(LINEAR, clients, ClientOpt(batch_size=4))
    mode(f, start(1).float(), Deletion.of(clients, [2]), MoDe(), round=1)
    meter = f.meter
    trained = 3 * 6 + 4 * 10  # C_r R_d + C R_m
    assert meter.bytes == 2 * LINEAR.d * 4 * trained
    assert meter.bytes_down == meter.bytes_up
    assert meter.images == 6 * trained
    assert meter.storage == 2 * LINEAR.d * 4
    assert (meter.rounds, meter.scheduled) == (6 + 10, 10)  # what follows is round 11: degradation is off the schedule


def test_clients_may_have_any_ids():
    """The same three clients as 2, 5 and 9: only their streams are others, and full batches do not look at them."""
    clients, config = dealt(), MoDe(rounds_d=2, rounds_m=3, lr_guidance=0.2, lr_target=0.1)
    renamed = dict(zip((2, 5, 9), clients, strict=True))
    ours = run(renamed, config, start(1), start(2), forget=[5])
    torch.testing.assert_close(ours, run(clients, config, start(1), start(2)), **EXACT)


def test_requests_that_cannot_be_served():
    clients, w = dealt(), start(1)

    def ask(forget, model=LINEAR):
        run(clients, MoDe(), w, start(2), forget=forget, model=model)

    with pytest.raises(UnsupportedTask, match="needs classification, got 'segmentation'"):
        ask([1], model=FlatModel(nn.Conv2d(1, 2, 1), task="segmentation"))
    with pytest.raises(UnsupportedTask, match=r"targets must name one client, got \[0, 1\]: MoDe guides one"):
        ask([0, 1])
    with pytest.raises(UnsupportedTask, match="cannot forget single samples"):
        ask({1: torch.arange(3)})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"momentum": 1.5}, "momentum must be between 0 and 1, got 1.5"),
        ({"rounds_m": -1}, "rounds_m must be a whole number >= 0, got -1"),
        ({"rounds_d": 0.5}, "rounds_d"),
        ({"lr_degradation": 0.0}, "lr_degradation"),
        ({"lr_guidance": 0.0}, "lr_guidance"),
        ({"lr_target": -1.0}, "lr_target"),
        ({"epochs_guidance": 0.0}, "epochs_guidance"),
        ({"guidance_momentum": -0.1}, "guidance_momentum must be a finite number >= 0, got -0.1"),
    ],
)
def test_bad_options_are_named(option, message):
    with pytest.raises(ValueError, match=message):
        MoDe(**option)


def test_served_it_starts_degradation_from_the_seed_wherever_training_began():
    trained = with_server()
    ours, moved = (unlearn("MoDe", one, "client-1").model for one in (trained, replace(trained, w_0=trained.w_0 + 1)))
    assert torch.equal(ours, moved)
    other = replace(trained, federation=trained.horizontal.having(seed=1))
    assert not torch.equal(ours, unlearn("MoDe", other, "client-1").model)
