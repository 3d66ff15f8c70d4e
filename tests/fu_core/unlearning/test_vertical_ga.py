"""Vertical gradient ascent: steps redone by hand, its closed-form divergence, mix-ups, and what crosses the border."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import NumericalFailure, UnsupportedTask
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import ActiveParty, Boundary, Parties, PassiveParty, clipped, epoch_batches
from fu_core.models.flat import FlatModel
from fu_core.streams import stream
from fu_core.unlearning.baselines.vertical_ga import (
    GA,
    GU,
    all_pairs,
    shots_of_each_class,
    vertical_ga,
    within_classes,
)
from fu_core.unlearning.method import Trained, unlearn
from tests.verticals import FORGET, RETAIN, close, federated, forgetting, loss, same, toy


def served(parties, *, seed=0, boundary=None, forget=FORGET, **how):
    f = federated(parties, seed, boundary=boundary)
    return vertical_ga(f, forgetting(f, forget), GA(**how))


# --- ascent ---


def test_the_loss_to_be_forgotten_rises_with_every_epoch():
    losses = [loss(served(toy(), epochs=e, lr=0.1, batch_size=5), FORGET) for e in (1, 2, 4, 8)]
    assert loss(toy(), FORGET) < losses[0] < losses[1] < losses[2] < losses[3]


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_two_epochs_are_what_numpy_makes_of_them(clip):
    """Linear nets H = X A^T, Z = H V^T, so with G = (softmax(Z) - Y) / n: dV = G^T H, dA_k = (G V_k)^T X_k.

    Everyone clips their own: at 0.05 that bites.
    """
    parties = toy(bottom=lambda p: nn.Linear(p, 4, bias=False), top=nn.Linear(8, 3, bias=False))
    A = [party.w.numpy().reshape(4, -1).copy() for party in parties.passive]
    V = parties.active.w.numpy().reshape(3, 8).copy()
    shorten = (lambda g: g * min(1.0, clip / np.linalg.norm(g))) if clip else (lambda g: g)
    for epoch in (-1, -2):
        for rows in epoch_batches(FORGET, 7, seed=3, epoch=epoch):
            X = [party.x[rows].numpy() for party in parties.passive]
            H = np.hstack([x @ a.T for x, a in zip(X, A, strict=True)])
            P = np.exp(H @ V.T)
            P /= P.sum(axis=1, keepdims=True)
            G = (P - np.eye(3)[parties.active.y[rows].numpy()]) / len(rows)
            steps = [shorten(dh.T @ x) for dh, x in zip(np.split(G @ V, 2, axis=1), X, strict=True)]
            A, V = [a + 0.2 * step for a, step in zip(A, steps, strict=True)], V + 0.2 * shorten(G.T @ H)
    ours = served(parties, epochs=2, lr=0.2, clip=clip, batch_size=7, seed=3)
    for mine, by_hand in zip(ours.w, [*A, V], strict=True):
        np.testing.assert_allclose(mine.numpy(), by_hand.ravel(), rtol=1e-12, atol=1e-14)


def saturated():
    """A sample x = 1 of class 0 with h = a x, z = v h: z_1 - z_0 = 900, so p_0 underflows and CE is z_1 - z_0. One more
    stays, and is never looked at."""
    bottom, top = FlatModel(nn.Linear(1, 1, bias=False)), FlatModel(nn.Linear(1, 2, bias=False))
    x = torch.ones(2, 1, dtype=torch.float64)
    passive = PassiveParty(bottom, torch.tensor([30.0], dtype=torch.float64), x)
    return Parties(
        (passive,), ActiveParty(top, torch.tensor([-15.0, 15.0], dtype=torch.float64), torch.zeros(2).long(), 2)
    )


@pytest.mark.parametrize("k", [1, 5, 40])
def test_divergence_has_its_closed_form(k):
    """u = v_1 - v_0: CE = u a, so (u, a) <- [[1, 2 eta], [eta, 1]] (u, a), which grows like (1 + sqrt(2) eta)^k."""
    far = served(saturated(), forget=FORGET[:1], epochs=k, lr=0.1, clip=0.0)
    u, a = np.linalg.matrix_power(np.array([[1, 0.2], [0.1, 1]]), k) @ np.array([30.0, 30.0])
    np.testing.assert_allclose([float(far.w[1][1] - far.w[1][0]), float(far.w[0])], [u, a], rtol=1e-12)


def test_divergence_is_returned_and_only_infinity_is_an_error():
    far = {"forget": FORGET[:1], "lr": 100.0, "clip": 0.0}
    assert float(served(saturated(), epochs=50, **far).w[0].abs()) > 1e50
    with pytest.raises(NumericalFailure, match=r"passive party 0 became NaN or infinite in epoch \d+ of ascent"):
        served(saturated(), epochs=500, **far)


def test_each_party_clips_by_its_own_norm():
    """One step of one batch: those whose gradient is longer than clip move by exactly eta clip, the others by less."""
    parties = toy()
    free = served(parties, epochs=1, lr=1.0, clip=0.0, batch_size=12)
    norms = [float((a - b).norm()) for a, b in zip(free.w, parties.w, strict=True)]
    clip = sorted(norms)[1]  # in between
    ours = served(parties, epochs=1, lr=1.0, clip=clip, batch_size=12)
    moved = [float((a - b).norm()) for a, b in zip(ours.w, parties.w, strict=True)]
    assert moved == pytest.approx([min(norm, clip) for norm in norms], rel=1e-12)
    assert min(norms) < clip < max(norms)
    g = torch.tensor([3.0, 4.0])
    assert clipped(g, 1.0).tolist() == pytest.approx([0.6, 0.8])
    assert torch.equal(clipped(torch.zeros(2), 1.0), torch.zeros(2))


def test_momentum_lives_from_step_to_step():
    """Two steps on one batch with gradients g_0, g_1: theta_2 = theta_0 + eta (g_0 + (g_1 + 0.5 g_0))."""
    parties = toy()
    plain = {"lr": 0.1, "clip": 0.0, "batch_size": 12}
    once = served(parties, epochs=1, **plain)
    again = served(once, epochs=1, **plain)
    ours = served(parties, epochs=2, momentum=0.5, **plain)
    for w0, w1, w2, mine in zip(parties.w, once.w, again.w, ours.w, strict=True):
        torch.testing.assert_close(mine, w2 + 0.5 * (w1 - w0), rtol=1e-10, atol=1e-12)


# --- the few-shot variant ---


def curved():
    """A top that is not linear, so that mixing embeddings is not mixing logits."""
    return toy(top=nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3)))


def composed(parties, w, rows):
    """Joined embeddings of the whole model, to be differentiated in one piece."""
    return torch.cat([p.model.logits(w_k, p.x[rows]) for p, w_k in zip(parties.passive, w, strict=False)], dim=1)


def test_a_few_shot_step_climbs_the_mix_ups_of_all_pairs():
    """One step per class on 0.25, 0.5, 0.75 h_i + the rest h_j, i < j, against autograd through the composed model."""
    parties = curved()
    w = parties.w
    for rows in shots_of_each_class(parties.active.y, FORGET, 3, seed=5):
        leaves = [w_k.clone().requires_grad_() for w_k in w]
        h = composed(parties, leaves, rows)
        pairs = [(i, j) for j in range(len(rows)) for i in range(j)] or [(0, 0)]
        mixed = torch.stack([c * h[i] + (1 - c) * h[j] for c in (0.25, 0.5, 0.75) for i, j in pairs])
        y = parties.active.y[rows[:1]].expand(len(mixed))
        gradients = torch.autograd.grad(F.cross_entropy(parties.active.model.logits(leaves[-1], mixed), y), leaves)
        w = [w_k + 0.3 * g_k for w_k, g_k in zip(w, gradients, strict=True)]
    ours = served(parties, epochs=1, lr=0.3, clip=0.0, seed=5, few_shot=True, shots=3)
    close(ours.w, w, rtol=1e-10, atol=1e-12)


def test_the_pass_over_retained_samples_descends_on_mix_ups_within_classes():
    """One batch: the same draws, autograd through the composed model, and downhill."""
    parties = curved()
    settings = {"epochs": 1, "lr": 0.3, "clip": 0.0, "batch_size": 36, "seed": 5, "few_shot": True, "shots": 3}
    climbed = served(parties, **settings)
    kept = torch.cat(shots_of_each_class(parties.active.y, RETAIN, 4, seed=5))
    (rows,) = epoch_batches(kept, 36, seed=5, epoch=-2)
    mixing = within_classes(parties.active.y[rows], stream(5, "mix-up"))
    leaves = [w_k.clone().requires_grad_() for w_k in climbed.w]
    h, share = composed(parties, leaves, rows), mixing.coefficient[:, None].double()
    logits = parties.active.model.logits(leaves[-1], share * h + (1 - share) * h[mixing.j])
    gradients = torch.autograd.grad(F.cross_entropy(logits, parties.active.y[rows]), leaves)
    ours = served(parties, repair=True, retained_shots=4, **settings)
    down = [w_k - 0.3 * g_k for w_k, g_k in zip(climbed.w, gradients, strict=True)]
    close(ours.w, down, rtol=1e-10, atol=1e-12)
    assert loss(ours, RETAIN) < loss(climbed, RETAIN)


def test_mix_ups_stay_within_their_class_and_their_coefficients_are_uniform():
    y = torch.randint(0, 5, (4000,), generator=torch.Generator().manual_seed(1))
    mixing = within_classes(y, torch.Generator().manual_seed(2))
    assert torch.equal(y[mixing.j], y)
    assert torch.equal(mixing.j.sort().values, torch.arange(4000))
    assert (mixing.j != mixing.i).float().mean() > 0.9
    for moment in (1, 2, 3):  # Beta(1, 1): E lambda^m = 1 / (m + 1); 4 standard errors of at most 0.3 / sqrt(4000)
        assert float((mixing.coefficient**moment).mean()) == pytest.approx(1 / (moment + 1), abs=0.019)


def test_all_pairs_are_each_pair_once_per_coefficient_and_a_lone_sample_is_itself():
    mixing = all_pairs(40)
    found = Counter(zip(mixing.i.tolist(), mixing.j.tolist(), mixing.coefficient.tolist(), strict=True))
    assert found == Counter((i, j, c) for j in range(40) for i in range(j) for c in (0.25, 0.5, 0.75))
    h = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(all_pairs(1)(h), h.expand(3, 4))


def test_shots_are_so_many_of_each_class_or_all_there_are():
    y = torch.tensor([0, 1, 0, 2, 0, 1, 0, 2, 2, 2])
    rows = torch.tensor([9, 8, 7, 6, 4, 2, 1, 0])
    drawn = shots_of_each_class(y, rows, 3, seed=0)
    assert [len(own) for own in drawn] == [3, 1, 3]
    for c, own in enumerate(drawn):
        assert set(own.tolist()) <= set(rows[y[rows] == c].tolist())
        assert len(set(own.tolist())) == len(own)
    assert any(
        not torch.equal(shots_of_each_class(y, rows, 3, seed=s)[0].sort().values, drawn[0].sort().values)
        for s in range(1, 9)
    )


def test_their_own_settings_move_the_model_by_little():
    parties = toy()
    ours = served(parties, repair=True, **GU)
    assert not same(ours, parties)
    assert 0 < max(float((a - b).norm()) for a, b in zip(ours.w, parties.w, strict=True)) < 1e-3


# --- what it needs, and what it must not touch ---


def test_bytes_are_embeddings_up_and_gradients_down():
    """8 embedding values of 8 bytes per sample: 3 epochs of 12 samples; few-shot, 2 of each class, then 1 of each."""
    plain, few = Boundary(), Boundary()
    served(toy(), epochs=3, batch_size=5, boundary=plain)
    assert (plain.meter.bytes_up, plain.meter.bytes_down, plain.meter.images) == (3 * 12 * 64, 3 * 12 * 64, 36)
    parties = toy()
    counts = torch.bincount(parties.active.y[FORGET], minlength=3)
    assert (counts >= 2).all()
    served(parties, epochs=3, few_shot=True, shots=2, repair=True, retained_shots=1, boundary=few)
    samples = 3 * 2 * 3 + 3
    assert (few.meter.bytes_up, few.meter.bytes_down, few.meter.images) == (samples * 64, samples * 64, samples)


@pytest.mark.parametrize("few_shot", [False, True])
def test_same_seed_same_bits_and_the_given_parties_stay(few_shot):
    parties = toy()
    before = [w_k.clone() for w_k in parties.w]
    settings = {"epochs": 2, "lr": 0.1, "batch_size": 5, "few_shot": few_shot, "shots": 2}
    ours = served(parties, seed=1, **settings)
    assert same(ours, served(parties, seed=1, **settings))
    assert not same(ours, served(parties, seed=2, **settings))
    assert all(torch.equal(a, b) for a, b in zip(parties.w, before, strict=True))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(parties.w, ours.w, strict=True))
    assert ours.active.model is parties.active.model


def test_batches_are_those_of_training_unless_given():
    f = federated(toy(), 1, ClientOpt(lr=9.0, batch_size=5))
    assert same(vertical_ga(f, forgetting(f, FORGET), GA(lr=0.1)), served(toy(), seed=1, lr=0.1, batch_size=5))


def test_what_cannot_be_served_is_refused():
    with pytest.raises(ValueError, match="repair is for few_shot=True only"):
        GA(repair=True)
    for name in ("clip", "momentum"):
        with pytest.raises(ValueError, match=f"{name} must be >= 0, got -1"):
            GA(**{name: -1})
    for name in ("epochs", "shots", "retained_shots", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1, got 0"):
            GA(**{name: 0})
    with pytest.raises(ValueError, match="lr must be a finite number > 0"):
        GA(lr=0.0)


# --- few shots, by name ---


def test_few_shot_label_unlearning_is_the_ascent_on_mix_ups_with_one_pass_of_repair():
    """Gu et al.'s settings, and labels only."""
    f = federated(toy(), 3)
    whole = (f.parties.active.y == 1).nonzero().flatten()
    request = forgetting(f, whole)
    ours, cost, _ = unlearn("Few-shot", Trained(f), request, lr=0.05, epochs=2)
    direct = federated(toy(), 3)
    assert same(ours, vertical_ga(direct, request, GA(**{**GU, "lr": 0.05, "epochs": 2}, repair=True)))
    assert cost.images == direct.meter.images < 3 * len(whole) + 3 * 3
    with pytest.raises(UnsupportedTask, match="few-shot label unlearning forgets whole classes"):
        unlearn("Few-shot", Trained(f), forgetting(f, whole[:3]))
