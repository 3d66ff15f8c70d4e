"""ICO, our reconstruction: its three stages against the composed model, and what the correction guarantees."""

import pytest
import torch
from torch.nn import functional as F

from fu_core.errors import NumericalFailure
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import endless_batches, epoch_batches, train
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines.ico import ICO, corrected, ico, share_of
from tests.verticals import FORGET, RETAIN, close, federated, forgetting, loss, same, toy


def served(parties, *, seed=0, boundary=None, **how):
    f = federated(parties, seed, ClientOpt(lr=1e-3, batch_size=32), boundary)
    return ico(f, forgetting(f, FORGET), ICO(**how))


def gradients(parties, w, rows):
    """Everybody's, from autograd through the composed model in one piece."""
    *bottoms, top = leaves = [w_k.clone().requires_grad_() for w_k in w]
    h = [p.model.logits(w_k, p.x[rows]) for p, w_k in zip(parties.passive, bottoms, strict=True)]
    logits = parties.active.model.logits(top, torch.cat(h, dim=1))
    return torch.autograd.grad(F.cross_entropy(logits, parties.active.y[rows]), leaves)


def fine_tuned(parties, *, lr, batch_size, epochs, seed=0):
    f = federated(parties, stream_seed(seed, "ico repair"), ClientOpt(lr=lr, batch_size=batch_size))
    return train(f, RETAIN, f.optimisers(), epochs)


# --- the correction ---


@pytest.mark.parametrize("size", [1.0, 1e-6, 1e6])
def test_no_corrected_gradient_lowers_the_loss_of_what_is_forgotten(size):
    """<g~, g_u> <= 0, and 0 if there was something to correct, whatever the size of g_u."""
    g = torch.Generator().manual_seed(0)
    agreeing = 0
    for _ in range(50):
        g_r, g_u = torch.randn(2, 5, generator=g, dtype=torch.float64)
        g_u = size * g_u
        ours = corrected(g_r, g_u)
        assert float(ours.dot(g_u)) <= 1e-14 * float(g_r.norm() * g_u.norm())
        if float(g_r.dot(g_u)) > 0:
            agreeing += 1
            torch.testing.assert_close(ours, g_r - g_r.dot(g_u) / g_u.dot(g_u) * g_u)
        else:
            assert torch.equal(ours, g_r)
    assert 10 < agreeing < 40


def test_a_correction_by_hand():
    """<(3, 4), (1, 0)> = 3 > 0: the first entry goes. Against (-1, 0), or nothing, there is nothing to correct."""
    g_r = torch.tensor([3.0, 4.0])
    assert corrected(g_r, torch.tensor([1.0, 0.0])).tolist() == [0.0, 4.0]
    assert corrected(g_r, torch.tensor([-1.0, 0.0])).tolist() == [3.0, 4.0]
    assert corrected(g_r, torch.zeros(2)).tolist() == [3.0, 4.0]


def test_repairing_does_not_lower_the_loss_of_what_is_forgotten_where_fine_tuning_does():
    """Small steps on all samples at once, without subtracting anything: the first-order promise is kept."""
    parties = toy()
    small = {"lr": 1e-3, "batch_size": 36, "epochs": 20}
    before, tuned = loss(parties, FORGET), loss(fine_tuned(parties, **small), FORGET)
    ours = served(parties, scale=0.0, share=1.0, **small)
    assert tuned < before - 1e-4
    assert loss(ours, FORGET) >= before - 1e-5
    assert loss(ours, RETAIN) < loss(parties, RETAIN)


# --- the three stages ---


def test_all_stages_are_those_of_the_composed_model():
    """delta from two epochs on D_u, theta_0 - 0.7 delta, then two epochs of steps, each party corrected by itself."""
    parties, lr, size = toy(), 0.2, 7
    own = [stream_seed(4, f"ico {name}") for name in ("contribution", "forgotten", "repair")]
    learnt = parties.w
    for epoch in (1, 2):
        for b in epoch_batches(FORGET, size, seed=own[0], epoch=epoch):
            learnt = [w_k - lr * g_k for w_k, g_k in zip(learnt, gradients(parties, learnt, b), strict=True)]
    theta = [1.7 * w_k - 0.7 * l_k for w_k, l_k in zip(parties.w, learnt, strict=True)]
    forgotten = iter([b for e in range(1, 5) for b in epoch_batches(FORGET, size, seed=own[1], epoch=e)])
    active = 0
    for epoch in (1, 2):
        some = share_of(RETAIN, 0.5, seed=4, epoch=epoch)
        assert len(some) == 12
        for b in epoch_batches(some, size, seed=own[2], epoch=epoch):
            g_r, g_u = gradients(parties, theta, b), gradients(parties, theta, next(forgotten))
            for k, (r, u) in enumerate(zip(g_r, g_u, strict=True)):
                overlap = max(0.0, float(r @ u))
                active += overlap > 0
                theta[k] = theta[k] - lr * (r - overlap / float(u @ u) * u)
    assert 0 < active < 12  # of 4 steps by 3 parties
    ours = served(parties, scale=0.7, share=0.5, contribution_epochs=2, epochs=2, lr=lr, batch_size=size, seed=4)
    close(ours.w, theta, rtol=1e-10, atol=1e-12)


def test_without_subtraction_and_correction_it_is_fine_tuning():
    """kappa = 0, gamma = 1, and samples to forget without a gradient (no features, no biases): the same steps."""
    parties = toy(bias=False)
    for party in parties.passive:
        party.x[FORGET] = 0.0
    assert all(not g_k.any() for g_k in gradients(parties, parties.w, FORGET))
    how = {"lr": 0.1, "batch_size": 5, "epochs": 3}
    ours = served(parties, scale=0.0, share=1.0, seed=2, **how)
    close(ours.w, fine_tuned(parties, seed=2, **how).w, rtol=1e-12, atol=1e-14)
    assert not same(ours, parties)


def test_the_more_is_subtracted_the_less_is_left():
    losses = [loss(served(toy(), scale=k, lr=0.05, batch_size=6), FORGET) for k in (0, 1, 2, 4)]
    assert losses == sorted(losses)
    assert losses[-1] > loss(toy(), FORGET) > 0


def test_a_share_is_random_in_order_and_all_of_it_if_one():
    rows = torch.tensor([7, 3, 9, 1, 5, 2])
    assert torch.equal(share_of(rows, 1.0, seed=0, epoch=1), rows)
    assert len(share_of(rows, 0.01, seed=0, epoch=1)) == 1
    half = [share_of(rows, 0.5, seed=0, epoch=e) for e in range(1, 6)]
    for some in half:
        places = [rows.tolist().index(row) for row in some.tolist()]
        assert len(places) == 3
        assert places == sorted(set(places))
    assert len({tuple(some.tolist()) for some in half}) > 1


def test_batches_of_what_is_forgotten_come_round_again():
    batches = endless_batches(FORGET, 5, seed=0)
    first, second = ([next(batches) for _ in range(3)] for _ in range(2))
    for turn in (first, second):
        assert sorted(torch.cat(turn).tolist()) == FORGET.tolist()
    assert not torch.equal(torch.cat(first), torch.cat(second))


# --- what it needs, and what it must not touch ---


def test_bytes_are_embeddings_up_and_gradients_down():
    """64 bytes per sample: T_u |D_u| = 24, then per epoch 12 retained in batches of 6, 6 with two batches of D_u."""
    f = federated(toy())
    ico(f, forgetting(f, FORGET), ICO(contribution_epochs=2, epochs=3, batch_size=6))
    samples = 2 * 12 + 3 * (12 + 2 * 6)
    meter = f.meter
    assert (meter.bytes_up, meter.bytes_down, meter.images) == (64 * samples, 64 * samples, samples)
    assert meter.kept == {"theta0": 8 * toy().d}


def test_same_seed_same_bits_and_the_given_parties_stay():
    parties = toy()
    before = [w_k.clone() for w_k in parties.w]
    how = {"lr": 0.1, "batch_size": 5}
    ours = served(parties, seed=1, **how)
    assert same(ours, served(parties, seed=1, **how))
    assert not same(ours, served(parties, seed=2, **how))
    assert all(torch.equal(a, b) for a, b in zip(parties.w, before, strict=True))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(parties.w, ours.w, strict=True))


def test_step_and_batches_are_those_of_training_unless_given():
    f = federated(toy(), 1, ClientOpt(lr=0.1, batch_size=5))
    assert same(ico(f, forgetting(f, FORGET), ICO()), served(toy(), seed=1, lr=0.1, batch_size=5))


def test_what_cannot_be_served_is_refused():
    for share in (0.0, 1.1):
        with pytest.raises(ValueError, match=rf"share must lie in \(0, 1\], got {share}"):
            ICO(share=share)
    for scale in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="scale must be a finite number >= 0"):
            ICO(scale=scale)
    for name in ("epochs", "contribution_epochs", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1, got 0"):
            ICO(**{name: 0})
    with pytest.raises(ValueError, match="lr must be a finite number > 0, got 0"):
        ICO(lr=0.0)
    with pytest.raises(NumericalFailure, match=r"became NaN or infinite in epoch 1 of the repair"):
        served(toy(), scale=1e308, lr=10.0)
