"""Attacks with planted truth: each must point the right way."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fu_core.errors import NumericalFailure
from fu_core.evaluation.membership import class_matched, confidences, half_of_each_class, song, yeom


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


def test_song_decides_as_the_machine_does_at_every_point_where_it_fits_on_all():
    c = torch.rand(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    forget, members, others = c[:200], c[200:400].sqrt(), c[400:]
    quick = song(forget, members, others, seed=0)
    assert quick == song(forget, members, others, seed=0, exact=True)
    assert 0 < quick < 100


def test_song_fast_mode_agrees_with_the_exact_one():
    """Within half a point, on overlapping confidences where the support vectors are many."""
    members, others = draw(3000, 0, 1, 0).sqrt(), draw(3000, 0, 1, 1)
    forget = draw(2000, 0, 1, 2).pow(0.7)
    fast = song(forget, members, others, seed=0)
    assert fast == pytest.approx(song(forget, members, others, seed=0, exact=True), abs=0.5)


def likely(n, shift, seed):
    """n confidences as a good classifier has them, most near 1; members' by `shift` of its logit higher."""
    return torch.sigmoid(2.5 + shift + 2.5 * torch.randn(n, generator=torch.Generator().manual_seed(seed)).double())


@pytest.mark.parametrize("shift", [0.05, 0.3])
def test_song_does_not_hang_on_which_samples_are_drawn_where_little_is_remembered(shift):
    """Fitted on 4,000 of 20,000 it would move by ten points and more between seeds."""
    members, others, forget = likely(10_000, shift, 0), likely(10_000, 0.0, 1), likely(3000, shift, 2)
    found = [song(forget, members, others, seed=seed) for seed in range(4)]
    assert max(found) - min(found) <= 0.5


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


ATTACKS = {
    "song": (partial(song, seed=0), ("forget", "retain", "test")),
    "song, exact": (partial(song, seed=0, exact=True), ("forget", "retain", "test")),
    "yeom": (yeom, ("forget", "retain")),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_has_left_the_numbers_is_refused_and_not_taken_for_forgotten(attack):
    run, names = ATTACKS[attack]
    for position, name in enumerate(names):
        for lost in (math.nan, math.inf, -math.inf):
            sides = [draw(40, 0, 1, k) for k in range(len(names))]
            sides[position][7] = lost
            with pytest.raises(NumericalFailure, match=f"{name} has a score that is NaN or infinite"):
                run(*sides)


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_without_samples_on_a_side_is_refused_by_name(attack):
    run, names = ATTACKS[attack]
    for position, name in enumerate(names):
        sides = [draw(0 if k == position else 40, 0, 1, k) for k in range(len(names))]
        with pytest.raises(ValueError, match=f"samples of {name} must be a whole number >= 1, got 0"):
            run(*sides)


# --- what forgotten samples are compared with ---

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@settings(deadline=None, max_examples=100)
@given(LABELS, LABELS)
def test_class_matched_has_the_shares_of_the_other_side_as_far_as_whole_samples_can(extra, like):
    y, like = torch.tensor([*range(5), *extra]), torch.tensor(like)
    found = class_matched(y, like, "a test")
    assert found.tolist() == sorted(set(found.tolist()))
    counts, shares = torch.bincount(y[found], minlength=5), torch.bincount(like, minlength=5).double() / len(like)
    there = torch.bincount(y, minlength=5)
    total = min(float(n / share) for n, share in zip(there, shares, strict=True) if share > 0)
    assert (counts <= there).all()
    assert (counts[shares == 0] == 0).all()
    assert (counts <= shares * total + 1e-3).all()
    assert (counts > shares * total - 1).all()  # less than one sample of each class is missing
    scarce = [k for k in range(5) if shares[k] > 0 and float(there[k] / shares[k]) == total]
    assert all(counts[k] == there[k] for k in scarce)  # as many as there can be


def test_class_matched_takes_the_same_samples_again_and_others_under_another_name():
    y, like = torch.arange(400) % 4, torch.tensor([0, 0, 0, 1])
    first = class_matched(y, like, "one")
    assert torch.bincount(y[first]).tolist() == [100, 33]
    assert torch.equal(first, class_matched(y, like, "one"))
    assert not torch.equal(first, class_matched(y, like, "two"))


def test_a_class_that_matters_must_be_there_and_a_rare_one_need_not():
    like = torch.tensor([0] * 150 + [1])  # less than a hundredth
    assert class_matched(torch.zeros(7, dtype=torch.int64), like, "a test").tolist() == [*range(7)]
    with pytest.raises(ValueError, match="y must have samples of every class of `like`, got none of class 1"):
        class_matched(torch.zeros(7, dtype=torch.int64), torch.tensor([0, 1]), "a test")
    with pytest.raises(ValueError, match="samples of like must be a whole number >= 1, got 0"):
        class_matched(torch.zeros(7, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), "a test")


@settings(deadline=None, max_examples=50)
@given(LABELS)
def test_the_halves_of_an_attack_are_disjoint_and_equal_in_every_class(labels):
    y = torch.tensor(labels)
    known = half_of_each_class(y, "attack")
    for label in y.unique():
        assert 0 <= int(known[y == label].sum()) - int((~known)[y == label].sum()) <= 1
    assert torch.equal(known, half_of_each_class(y, "attack"))


def test_labels_that_are_not_those_of_the_logits_are_refused():
    """Fewer of them gave as few confidences, of the first samples."""
    logits = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"logits and y must have shapes .*, got \(4, 3\) and \(2,\)"):
        confidences(logits, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="y must be classes from 0 to 2, got 0 to 3"):
        confidences(logits, torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize("side", range(3))
def test_song_takes_confidences_and_nothing_else(side):
    """Its polynomial is one on [0, 1]: of margins it made anything."""
    sides = [torch.rand(40, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    sides[side] = 5 * sides[side]
    with pytest.raises(ValueError, match=r"must hold confidences in \[0, 1\]"):
        song(*sides, seed=0)


def test_a_score_per_sample_is_asked_for():
    with pytest.raises(ValueError, match=r"forget must have shape \(n,\)"):
        yeom(torch.rand(5, 3), torch.rand(5))
