"""Attacks at the border on what is known to leak all, and on what is known to leak nothing."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fu_core.errors import NumericalFailure
from fu_core.evaluation.boundary import (
    constant_answer,
    directions,
    infer_clusters,
    infer_labels,
    overhear,
    reconstruction_r2,
)
from fu_core.federation.vertical import ActiveParty, EmbeddingNoise, Parties, PassiveParty
from fu_core.models.flat import FlatModel
from fu_core.streams import stream

CLASSES, WIDTH = 4, 6
BOTTOM, TOP = FlatModel(nn.Linear(5, WIDTH)), FlatModel(nn.Linear(2 * WIDTH, CLASSES))


def randn(*shape, key="x"):
    return torch.randn(*shape, generator=stream(0, "test", str(key)), dtype=torch.float64)


def labels(n):
    return torch.arange(n) % CLASSES


def linear(n=80, noise=None):
    """Two parties with five features each and linear nets, float64."""
    w = [net.init(seed=k, dtype=torch.float64) for k, net in enumerate((BOTTOM, BOTTOM, TOP))]
    passive = tuple(PassiveParty(BOTTOM, w[k], randn(n, 5, key=k), noise and replace(noise, seed=k)) for k in (0, 1))
    return Parties(passive, ActiveParty(TOP, w[2], labels(n), CLASSES))


# --- what crosses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [1, 7, 500])
def test_what_is_overheard_is_every_samples_embedding_and_gradient_by_hand(part):
    """W_k^T (p - e_y), in the order of the rows, whatever the parts."""
    parties, rows = linear(), torch.tensor([5, 3, 70, 8, 9, 10, 11, 12, 13])
    crossed = overhear(parties, rows, part=part)
    h = [
        F.linear(party.x[rows], party.w[: 5 * WIDTH].view(WIDTH, 5), party.w[5 * WIDTH :]) for party in parties.passive
    ]
    W, b = parties.w[2][: CLASSES * 2 * WIDTH].view(CLASSES, -1), parties.w[2][CLASSES * 2 * WIDTH :]
    residual = F.linear(torch.cat(h, dim=1), W, b).softmax(dim=1) - F.one_hot(labels(80)[rows], CLASSES)
    for k in (0, 1):
        torch.testing.assert_close(crossed.embeddings[k], h[k])
        torch.testing.assert_close(crossed.gradients[k], residual @ W[:, k * WIDTH : (k + 1) * WIDTH])


def test_noise_on_embeddings_is_overheard_with_them_and_nobody_takes_a_step():
    plain, noisy = linear(), linear(noise=EmbeddingNoise(0.5))
    before = [w_k.clone() for w_k in noisy.w]
    rows = torch.arange(80)
    gap = overhear(noisy, rows).embeddings[0] - overhear(plain, rows).embeddings[0]
    assert float(gap.std()) == pytest.approx(0.5, rel=0.15)
    assert all(torch.equal(a, b) for a, b in zip(before, noisy.w, strict=True))


def test_no_samples_and_lost_parties_are_refused():
    with pytest.raises(ValueError, match=r"rows must name at least one sample, shape \(n,\), got shape \(0,\)"):
        overhear(linear(), torch.arange(0))
    parties = linear()
    lost = parties.having([parties.w[0], parties.w[1] * float("nan"), parties.w[2]])
    with pytest.raises(NumericalFailure, match="embeddings of passive party 1 has a number that is NaN or infinite"):
        overhear(lost, torch.arange(3))


# --- labels from gradients -------------------------------------------------------------------------------------------


def test_a_linear_top_gives_all_labels_away_before_any_training():
    """p is nearly uniform, so that gradients are W_k^T (p - e_y): one direction per class."""
    parties = linear(400)
    gradients = overhear(parties, torch.arange(400)).gradients
    for g in gradients:
        assert infer_labels(g[:8], labels(400)[:8], g[8:], labels(400)[8:]).accuracy > 95
        assert infer_clusters(g, labels(400), CLASSES, seed=0).accuracy > 90


def test_gradients_that_tell_nothing_are_worth_chance():
    """Random directions; a quarter is right, give or take four standard deviations."""
    n, y = 4000, labels(4000)
    g = randn(n, WIDTH)
    found = infer_labels(g[:100], y[:100], g[100:], y[100:])
    assert found.chance == 25
    assert abs(found.accuracy - 25) < 4 * 100 * (0.25 * 0.75 / n) ** 0.5
    assert 25 <= infer_clusters(g, y, CLASSES, seed=0).accuracy < 30  # the matching is the best of 24


def test_lengths_do_not_count_and_signs_do():
    """Down to lengths whose squares are zero."""
    rays = torch.eye(CLASSES)[labels(40)]
    lengths = torch.logspace(-40, 30, 40, dtype=torch.float64)[:, None]
    assert infer_labels(rays[:4], labels(4), rays * lengths, labels(40)).accuracy == 100
    assert infer_labels(rays[:4], labels(4), -rays, labels(40)).accuracy == 0
    assert infer_clusters(rays * lengths, labels(40), CLASSES, seed=0).accuracy == 100
    torch.testing.assert_close(directions(torch.tensor([[3e-30, 4e-30]])), torch.tensor([[0.6, 0.8]]).double())


def test_the_more_noise_on_gradients_the_fewer_labels():
    rays, y = torch.eye(CLASSES, dtype=torch.float64)[labels(800)], labels(800)
    found = []
    for std in (0.1, 0.5, 2.0, 50.0):
        g = rays + std * randn(800, CLASSES, key=std)
        found.append(infer_labels(g[:80], y[:80], g[80:], y[80:]).accuracy)
    assert found == sorted(found, reverse=True)
    assert found[0] == 100
    assert found[-1] < 32


def test_a_gradient_of_zero_gets_the_most_frequent_known_class():
    known, y = torch.eye(3), torch.tensor([0, 2, 2])
    assert infer_labels(known, y, torch.zeros(4, 3), torch.tensor([2, 2, 0, 2])) == (75, 75)
    assert infer_clusters(torch.zeros(4, 3), torch.tensor([2, 2, 0, 2]), 3, seed=0) == (75, 75)


def test_a_class_of_which_nothing_is_known_is_never_the_answer():
    rays = torch.eye(CLASSES)[labels(40)]
    assert infer_labels(rays[:3], labels(3), rays, labels(40)).accuracy == 75


def test_chance_is_the_best_constant_answer():
    assert constant_answer(torch.tensor([1, 1, 1, 7])) == 75


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"known": torch.ones(3)}, r"known and known_labels must be \(n, e\) and \(n,\), got \(3,\) and \(4,\)"),
        (
            {"known_labels": torch.zeros(4, dtype=torch.int64)},
            r"known_labels must name at least two classes, got \[0\]",
        ),
        ({"gradients": torch.ones(8, 3)}, r"known must be as wide as gradients \(3\), got 4"),
        ({"labels": torch.ones(7)}, r"gradients and labels must be .* got \(8, 4\) and \(7,\)"),
        ({"gradients": torch.full((8, 4), torch.inf)}, "gradients has a number that is NaN or infinite"),
    ],
)
def test_what_does_not_fit_is_refused(change, says):
    fits = {"known": torch.eye(4), "known_labels": labels(4), "gradients": torch.ones(8, 4), "labels": labels(8)}
    with pytest.raises((ValueError, NumericalFailure), match=says):
        infer_labels(**{**fits, **change})


def test_too_few_samples_for_as_many_clusters_are_refused():
    with pytest.raises(ValueError, match=r"at least as many samples as classes \(4\), got 3"):
        infer_clusters(torch.eye(3), labels(3), 4, seed=0)


# --- features from embeddings ----------------------------------------------------------------------------------------


def test_embeddings_that_are_a_linear_map_give_all_features_away():
    x, B = randn(200, 2, 3), randn(6, WIDTH, key="B")
    h = 1e3 * (x.flatten(1) @ B) + 7
    assert reconstruction_r2(h[:20], x[:20], h[20:], x[20:]) == pytest.approx(1, abs=1e-6)


def test_embeddings_that_are_noise_or_constant_give_nothing_away():
    x = randn(600, 6)
    assert -0.02 < reconstruction_r2(randn(300, 6, key="h"), x[:300], randn(300, 6, key="j"), x[300:]) < 0.005
    flat = torch.ones(300, 6)
    assert -0.02 < reconstruction_r2(flat, x[:300], flat, x[300:]) <= 0


def test_half_of_the_features_seen_is_half_of_the_variance_explained():
    x = randn(2000, 6)
    h = x[:, :3]
    assert reconstruction_r2(h[:1000], x[:1000], h[1000:], x[1000:]) == pytest.approx(0.5, abs=0.02)


def test_it_is_the_ridge_by_hand():
    """The best of the penalties by leaving each known sample out, literally."""
    x, n = randn(40, 3), 15
    h = x @ randn(3, 4, key="B") + 0.5 * randn(40, 4, key="noise")
    spread = (h[:n] - h[:n].mean(dim=0)).std(correction=0)

    def fitted(rows, at, alpha):
        a, b = h[rows] / spread, x[rows]
        centred = a - a.mean(dim=0)
        penalty = alpha * torch.eye(4, dtype=torch.float64)
        B = torch.linalg.solve(centred.T @ centred + penalty, centred.T @ (b - b.mean(dim=0)))
        return (h[at] / spread - a.mean(dim=0)) @ B + b.mean(dim=0)

    def left_out(alpha):
        return sum(
            float((x[i] - fitted([j for j in range(n) if j != i], [i], alpha)[0]).pow(2).sum()) for i in range(n)
        )

    alpha = min(torch.logspace(-6, 6, 13, dtype=torch.float64).tolist(), key=left_out)
    others = list(range(n, 40))
    error = (x[n:] - fitted(list(range(n)), others, alpha)).pow(2).sum()
    expected = 1 - error / (x[n:] - x[n:].mean(dim=0)).pow(2).sum()
    assert reconstruction_r2(h[:n], x[:n], h[n:], x[n:]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"known_features": torch.ones(3, 5)}, "known_embeddings and known_features must be .* got .4, 2. and .3, 5."),
        ({"embeddings": torch.ones(6, 3)}, "known and judged samples must have the same shapes, got .2,. and .3,."),
        ({"features": torch.ones(6, 5)}, "features must vary between the judged samples, got 6 alike"),
        ({"known_embeddings": torch.ones(1, 2), "known_features": torch.ones(1, 5)}, "at least two samples, got 1"),
        ({"embeddings": torch.full((6, 2), torch.nan)}, "embeddings has a number that is NaN or infinite"),
    ],
)
def test_a_reconstruction_that_cannot_be_judged_is_refused(change, says):
    fits = {"known_embeddings": randn(4, 2), "known_features": randn(4, 5), "embeddings": randn(6, 2),
            "features": randn(6, 5)}  # fmt: skip
    with pytest.raises((ValueError, NumericalFailure), match=says):
        reconstruction_r2(**{**fits, **change})
