"""Attacks with planted truth: each must point the right way."""

import pytest
import torch

from fu_core.evaluation.membership import confidences, song, yeom


def draw(n, a, b, seed):
    """n confidences in [a, b]."""
    return a + (b - a) * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_song_direction_members_are_confident():
    """Members in [0.9, 1], others in [0, 0.1]: remembered data scores 100, forgotten data 0."""
    members, others = draw(300, 0.9, 1.0, 0), draw(300, 0.0, 0.1, 1)
    assert song(draw(100, 0.9, 1.0, 2), members, others, seed=0) == 100.0
    assert song(draw(100, 0.0, 0.1, 3), members, others, seed=0) == 0.0


def test_song_follows_the_data_not_a_threshold():
    """Were members *less* confident, low confidence would mean member: no direction is built in."""
    assert song(draw(100, 0.0, 0.1, 2), draw(300, 0.0, 0.1, 0), draw(300, 0.9, 1.0, 1), seed=0) == 100.0


def test_song_is_near_chance_without_signal():
    scores = [song(draw(400, 0, 1, s), draw(400, 0, 1, s + 50), draw(400, 0, 1, s + 99), seed=s) for s in range(8)]
    assert sum(scores) / 8 == pytest.approx(50, abs=12)


def test_song_fast_mode_agrees_with_the_exact_one():
    """Within half a point, on overlapping confidences where the support vectors are many."""
    members, others = draw(3000, 0, 1, 0).sqrt(), draw(3000, 0, 1, 1)
    forget = draw(2000, 0, 1, 2).pow(0.7)
    fast = song(forget, members, others, seed=0, fit=6000)
    assert fast == pytest.approx(song(forget, members, others, seed=0, exact=True), abs=0.5)


def test_song_is_balanced_when_one_side_is_small():
    """With 60 members and 5000 others the classifier must not just say 'other'."""
    assert song(draw(50, 0.9, 1, 2), draw(60, 0.9, 1, 0), draw(5000, 0, 1, 1), seed=0) > 80


def test_yeom_direction_low_loss_is_member():
    retain = torch.tensor([0.1, 0.2, 0.3])  # mean 0.2
    assert yeom(torch.tensor([0.0, 0.1, 0.19]), retain) == 100.0
    assert yeom(torch.tensor([0.3, 1.0, 5.0]), retain) == 0.0
    assert yeom(torch.tensor([0.1, 0.9]), retain) == 50.0


def test_yeom_flags_everything_when_all_losses_are_equal():
    """member iff loss <= threshold, including equality."""
    assert yeom(torch.full((5,), 0.7), torch.full((9,), 0.7)) == 100.0


def test_confidence_is_the_probability_of_the_true_class():
    c = confidences(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    expected = 1 / (1 + torch.exp(torch.tensor(-2.0, dtype=torch.float64)))
    torch.testing.assert_close(c, torch.stack([expected, 1 - expected]))
