"""CVFU, our reconstruction: cached confidences that amount to training, and what those offline are spared."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedModel
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import Boundary, Optimisers, epoch_batches, outputs, train
from fu_core.models.linear import mlp
from fu_core.unlearning.baselines.cvfu import (
    CVFU,
    Confidences,
    StopRule,
    cached_loss,
    check_top,
    confidence_shares,
    contribution_ratio,
    cvfu,
)
from tests import verticals
from tests.verticals import FORGET, RETAIN, close, federated, forgetting, loss, same

WIDTHS = (4, 3, 5)  # of the embeddings of three passive parties
NEVER = 99  # patience


def toy(**how):
    return verticals.toy(features=(3, 2, 2), embeddings=WIDTHS, **how)


def served(parties, *, seed=0, boundary=None, retain=None, **how):
    f = federated(parties, seed, boundary=boundary)
    return cvfu(f, forgetting(f, FORGET, retain), CVFU(**how))


def trained(parties, *, epochs, lr, batch_size, seed):
    """Ordinary training on the retained samples with CVFU's batches and step sizes: one call per epoch."""
    for e in range(epochs):
        opts = Optimisers([ClientOpt(lr=lr / math.sqrt(e + 1), batch_size=batch_size)])
        parties = train(federated(parties, seed), RETAIN, opts, 1, first_epoch=-1 - e)
    return parties


def assert_close(a, b):
    close(a.w, b.w, rtol=1e-10, atol=1e-12)


# --- with everybody online it is training ---


@pytest.mark.parametrize("bias", [True, False])
def test_with_refreshed_confidences_it_is_ordinary_training(bias):
    parties, how = toy(bias=bias), {"epochs": 3, "lr": 0.3, "batch_size": 7, "seed": 4}
    ours = served(parties, refresh=True, patience=NEVER, **how)
    assert_close(ours, trained(parties, **how))
    assert not same(ours, parties)


def test_so_it_is_without_if_an_epoch_is_one_batch():
    """Then Z has been renewed after the step before; with smaller batches it lags behind."""
    parties, how = toy(), {"epochs": 4, "lr": 0.3, "batch_size": 24, "seed": 4}
    assert_close(served(parties, patience=NEVER, **how), trained(parties, **how))
    how["batch_size"] = 7
    stale, fresh = served(parties, patience=NEVER, **how), trained(parties, **how)
    assert max(float((a - b).norm()) for a, b in zip(stale.w, fresh.w, strict=True)) > 1e-3


# --- confidences ---


@pytest.mark.parametrize("bias", [True, False])
def test_shares_add_up_to_the_logits_and_the_last_is_the_bias(bias):
    """z_k = h_k W_k for a passive party; (K, n, C). Batched, in the order of the rows."""
    parties, rows = toy(bias=bias), torch.tensor([30, 2, 17, 9, 25])
    z = confidence_shares(parties, rows, Boundary(), size=2)
    assert z.shape == (4, 5, 3)
    torch.testing.assert_close(z.sum(dim=0), outputs(parties, rows))
    views = parties.active.model.views(parties.active.w)
    h_1 = parties.passive[1].embed(parties.passive[1].w, parties.passive[1].x[rows])
    torch.testing.assert_close(z[1], h_1 @ views["weight"][:, 4:7].T)
    assert torch.equal(z[3], views["bias"].expand(5, 3) if bias else torch.zeros(5, 3, dtype=torch.float64))


def test_the_loss_has_the_value_of_the_cache_and_the_derivative_of_who_is_online():
    """d CE / d z_O = (softmax(Z) - Y) / n: that of the cached value, not of z_O."""
    g = torch.Generator().manual_seed(0)
    Z, z_online = torch.randn(2, 6, 3, generator=g, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    z_online.requires_grad_()
    value = cached_loss(Z, z_online, y)
    torch.testing.assert_close(value, F.cross_entropy(Z, y))
    (slope,) = torch.autograd.grad(value, z_online)
    torch.testing.assert_close(slope, (Z.softmax(dim=1) - F.one_hot(y, 3)) / 6)


def test_ratios_by_hand():
    """Shares |z_k| / sum |z_j| of two passive parties and the bias: q_rem / q_O = sum_all / sum_online.

    Party 0 and the bias online: (1 + 2 + 1) / (1 + 1) = 2, (3 + 5 + 2) / 5 = 2. Party 1: 4 / 3, 10 / 7, 7 / 7. 0 where
    those online have no share, also where nobody has; 1 everywhere if all are online.
    """
    z = torch.tensor([[[1.0, -3.0, 0.0, 0.0]], [[-2.0, 5.0, 7.0, 0.0]], [[1.0, -2.0, 0.0, 0.0]]])
    assert contribution_ratio(z, [0]).tolist() == [[2.0, 2.0, 0.0, 0.0]]
    torch.testing.assert_close(contribution_ratio(z, [1]), torch.tensor([[4 / 3, 10 / 7, 1.0, 0.0]]))
    assert contribution_ratio(z, [0, 1]).tolist() == [[1.0, 1.0, 1.0, 1.0]]


def test_renewing_moves_the_matrix_by_what_those_online_moved_times_the_ratio():
    """Rows 0 and 2 of 3: Z + ratio (new - old), twice, so that the second counts from the first."""
    ratio = torch.tensor([[2.0], [3.0], [0.0]])
    cache = Confidences(torch.tensor([[10.0], [20.0], [30.0]]), torch.tensor([[1.0], [1.0], [1.0]]), ratio)
    rows = torch.tensor([0, 2])
    cache.renew(rows, torch.tensor([[4.0], [5.0]]))
    assert cache.matrix.tolist() == [[16.0], [20.0], [30.0]]
    cache.renew(rows, torch.tensor([[5.0], [9.0]]))
    assert cache.matrix.tolist() == [[18.0], [20.0], [30.0]]
    assert cache.online.tolist() == [[5.0], [1.0], [9.0]]


def test_the_matrix_has_a_row_per_retained_sample():
    everybody, two = Boundary(), Boundary()
    served(toy(), epochs=1, boundary=everybody)
    assert everybody.meter.kept == {"confidence matrix": len(RETAIN) * 3 * 8}
    served(toy(), epochs=1, online=(0, 2), boundary=two)
    assert two.meter.storage == 3 * len(RETAIN) * 3 * 8


# --- with somebody offline ---


def test_two_epochs_with_somebody_offline_against_the_composed_model():
    """Parties 0 and 2 and the bias step on CE(Z_b + z_O - sg(z_O)); Z moves by the ratio after the first epoch."""
    parties, online, lr = toy(), (0, 2), 0.2
    w = parties.w

    def z_online(w, rows):
        weight, bias = w[3][:36].view(3, 12), w[3][36:]
        h = [parties.passive[k].model.logits(w[k], parties.passive[k].x[rows]) for k in online]
        return h[0] @ weight[:, :4].T + h[1] @ weight[:, 7:].T + bias

    z = confidence_shares(parties, RETAIN, Boundary())
    ratio = z.abs().sum(dim=0) / z[[0, 2, 3]].abs().sum(dim=0)
    Z, old = z.sum(dim=0), z_online(w, RETAIN)
    for e in (0, 1):
        for b in epoch_batches(torch.arange(24), 7, seed=4, epoch=-1 - e):
            leaves = [w_k.clone().requires_grad_() for w_k in w]
            z_b = z_online(leaves, RETAIN[b])
            value = F.cross_entropy(Z[b] + z_b - z_b.detach(), parties.active.y[RETAIN[b]])
            gradients = torch.autograd.grad(value, [leaves[k] for k in (0, 2, 3)])
            for k, g_k in zip((0, 2, 3), gradients, strict=True):
                w[k] = w[k] - lr / math.sqrt(e + 1) * g_k
        new = z_online(w, RETAIN)
        Z, old = Z + ratio * (new - old), new
    ours = served(parties, online=(2, 0), epochs=2, lr=lr, batch_size=7, patience=NEVER, seed=4)
    assert_close(ours, parties.having(w))


@pytest.mark.parametrize("refresh", [False, True])
def test_who_is_offline_is_spared_and_so_is_their_part_of_the_top(refresh):
    parties = toy()
    ours = served(parties, online=(0, 2), epochs=2, lr=0.1, refresh=refresh)
    assert torch.equal(ours.w[1], parties.w[1])
    assert not torch.equal(ours.w[0], parties.w[0])
    assert not torch.equal(ours.w[2], parties.w[2])
    before, after = (p.active.model.views(p.active.w) for p in (parties, ours))
    assert torch.equal(after["weight"][:, 4:7], before["weight"][:, 4:7])
    for changed in (after["weight"] - before["weight"])[:, [*range(4), *range(7, 12)]], after["bias"] - before["bias"]:
        assert (changed != 0).all()


def test_training_goes_on_without_somebody():
    parties = toy()
    ours = served(parties, online=(0, 2), epochs=10, lr=0.3, batch_size=8)
    assert loss(ours, RETAIN) < loss(parties, RETAIN) - 0.1


# --- ascent and stopping ---


def test_the_ascent_is_part_of_the_first_step_only():
    """Five retained samples are one batch: theta - eta (g_r - g_u), g_u summed over D_u's batches of 5, 5 and 2."""
    parties, few, lr = toy(), RETAIN[:5], 0.1

    def stepped(start, rows, eta):
        return train(federated(start), rows, Optimisers([ClientOpt(lr=eta, batch_size=5)]), 1)

    first = stepped(parties, few, lr).w
    for b in FORGET.split(5):
        first = [f_k + w_k - d_k for f_k, w_k, d_k in zip(first, parties.w, stepped(parties, b, lr).w, strict=True)]
    how = {"lr": lr, "batch_size": 5, "retain": few, "patience": NEVER, "ascent": True}
    once = served(parties, epochs=1, **how)
    assert_close(once, parties.having(first))
    assert_close(served(parties, epochs=2, **how), stepped(once, few, lr / math.sqrt(2)))
    assert loss(once, FORGET) > max(loss(parties, FORGET), loss(stepped(parties, few, lr), FORGET))


def test_it_stops_after_epochs_in_a_row_without_progress():
    """Strikes: no lower loss than the best, or a gradient of 1.05 times the shortest; progress takes them back."""
    rule = StopRule(patience=2)
    told = [(1.0, 10.0), (0.9, 10.4), (0.9, 9.0), (0.8, 9.44), (0.7, 9.46), (0.75, 8.0)]
    assert [rule.stop(*epoch) for epoch in told] == [False, False, False, False, False, True]
    assert [StopRule(1).stop(1.0, math.inf), StopRule(1).stop(math.inf, 1.0)] == [True, True]


def test_the_rule_hears_the_loss_of_the_cache_and_the_summed_gradient_of_the_top(monkeypatch):
    """Epoch 1: Z is still that of the start, and the top has moved by eta times the sum of its gradients."""
    heard = []
    monkeypatch.setattr(StopRule, "stop", lambda self, *told: heard.append(told) or True)
    parties = toy()
    ours = served(parties, epochs=2, lr=0.1, batch_size=7)
    moved = float((ours.w[3] - parties.w[3]).norm())
    assert heard == [(pytest.approx(loss(parties, RETAIN)), pytest.approx(moved / 0.1))]


def test_a_step_size_that_is_too_large_is_cut_short():
    def epochs_run(**how):
        boundary = Boundary()
        served(toy(), epochs=30, batch_size=24, boundary=boundary, **how)
        return boundary.meter.images / len(RETAIN)

    short, longer, full = (epochs_run(lr=20.0, patience=p) for p in (1, 2, NEVER))
    assert 1 < short < longer < full == 30
    assert epochs_run(lr=0.01, patience=1) == 30


# --- what it needs, and what it must not touch ---


def test_bytes_are_embeddings_up_and_gradients_down():
    """e = 4 + 3 + 5. Z: 36 samples up. Two epochs of 24 samples up and down, and a renewal between them, up.

    Offline: only 4 + 5 after Z. Refreshed: no renewal. Ascent: 12 samples up and down.
    """

    def traffic(**how):
        boundary = Boundary()
        served(toy(), epochs=2, lr=0.01, batch_size=7, boundary=boundary, **how)
        return boundary.meter.bytes_up / 8, boundary.meter.bytes_down / 8, boundary.meter.images

    assert traffic() == ((36 + 3 * 24) * 12, 2 * 24 * 12, 48)
    assert traffic(online=(0, 2)) == (36 * 12 + 3 * 24 * 9, 2 * 24 * 9, 48)
    assert traffic(refresh=True) == ((36 + 2 * 24) * 12, 2 * 24 * 12, 48)
    assert traffic(ascent=True) == ((36 + 3 * 24 + 12) * 12, (2 * 24 + 12) * 12, 60)


def test_same_seed_same_bits_and_the_given_parties_stay():
    parties = toy()
    before = [w_k.clone() for w_k in parties.w]
    how = {"epochs": 2, "lr": 0.1, "batch_size": 5, "ascent": True}
    ours = served(parties, seed=1, **how)
    assert same(ours, served(parties, seed=1, **how))
    assert not same(ours, served(parties, seed=2, **how))
    served(parties, seed=1, online=(1,), **how)
    assert all(torch.equal(a, b) for a, b in zip(parties.w, before, strict=True))
    assert all(a.data_ptr() != b.data_ptr() for a, b in zip(parties.w, ours.w, strict=True))
    assert ours.active.model is parties.active.model
    assert len(ours.passive) == 3


def test_batches_are_those_of_training_unless_given():
    f = federated(toy(), 1, ClientOpt(lr=9.0, batch_size=5))
    how = {"epochs": 2, "lr": 0.1}
    assert same(cvfu(f, forgetting(f, FORGET), CVFU(**how)), served(toy(), seed=1, batch_size=5, **how))


def test_a_top_of_one_linear_layer_is_asked_for_where_logits_must_be_a_sum():
    check_top(toy())
    for top in (mlp(12, 3, (4,)), nn.Sequential(nn.Linear(12, 3), nn.Tanh())):
        with pytest.raises(UnsupportedModel, match="top must be one linear layer"):
            check_top(toy(top=top))


def test_what_cannot_be_served_is_refused():
    parties = toy()
    for online in ((), (3,), (-1, 0), (0, 0)):
        with pytest.raises(InvalidRequest, match=r"online must name at least one of the passive parties 0\.\.2"):
            served(parties, online=online)
    for online in (0, "0", (0.5,), ("first",), torch.tensor([0])):
        with pytest.raises(ValueError, match=r"online must be positions of passive parties, \(0,\) say, or None, got "):
            CVFU(online=online)
    assert same(served(parties, online=np.array([0, 2])), served(parties, online=(0, 2)))
    for name in ("epochs", "batch_size", "patience"):
        with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1, got 0"):
            CVFU(**{name: 0})
    with pytest.raises(ValueError, match="lr must be a finite number > 0"):
        CVFU(lr=0.0)
    with pytest.raises(UnsupportedModel, match="one linear layer"):
        served(toy(top=nn.Sequential(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))))
    broken = parties.having([*parties.w[:2], torch.full_like(parties.w[2], 1e308), parties.w[3]])
    with pytest.raises(NumericalFailure, match=r"passive party 2 became NaN or infinite in epoch \d+"):
        served(broken, online=(2,), lr=1e308, epochs=3)
