"""U-LiRA on planted shifts with known AUC, against a plain loop, on models whose memory is known; those who stay."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve

from fu_core.errors import NumericalFailure
from fu_core.evaluation.lira import member_auc, retained_exposure, u_lira
from fu_core.evaluation.margins import margins_of
from tests.memorising import Tables, normal


def sides(name, n, examples=500, shift=1.0):
    return normal(f"{name} unlearned", n, examples, shift=shift), normal(f"{name} unseen", n, examples)


# --- known answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "accuracy", "auc"), [(16, 0.682, 0.735), (64, 0.690, 0.75), (256, 0.691, 0.758)])
def test_a_shift_of_one_standard_deviation_is_seen_as_theory_has_it(n, accuracy, auc):
    """Were the laws known, accuracy would be Phi(1/2) = 0.691 and AUC Phi(1/sqrt 2) = 0.760; few models fit worse.

    With 8 to fit a side, the middle of the means is off by a quarter: that costs 0.005 of accuracy, and the direction
    comes out wrong once in 44 times.
    """
    found = u_lira(*sides("one", n))
    assert found.accuracy == pytest.approx(accuracy, abs=0.01)
    assert found.auc == pytest.approx(auc, abs=0.012)
    assert float(found.per_example.shift.mean()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_each_examples_auc_is_that_of_two_normals(shift):
    """Phi(shift / sqrt 2) whatever the fit, as long as its direction is right; at 256 models it is."""
    found = u_lira(*sides("each", 256, shift=shift)).per_example
    assert float(found.auc.mean()) == pytest.approx(ndtr(shift / math.sqrt(2)), abs=0.005)
    assert float(found.accuracy.mean()) == pytest.approx(ndtr(shift / 2), abs=0.01)
    # 128 judged a side: at most one of them above
    assert float(found.tpr_at_1_fpr.mean()) == pytest.approx(1 - ndtr(norm.isf(0.01) - shift), abs=0.03 + 0.02 * shift)


def test_what_stands_out_as_forgotten_is_found_as_well():
    unlearned, unseen = sides("mirror", 64)
    above, below = u_lira(unlearned, unseen), u_lira(-unlearned, -unseen)
    assert below.auc == pytest.approx(above.auc, abs=1e-12)
    assert below.tpr_at_1_fpr == above.tpr_at_1_fpr
    torch.testing.assert_close(below.per_example.shift, -above.per_example.shift)
    assert float(above.per_example.shift.min()) > 0


def test_retrain_against_retrain_is_chance():
    found = [u_lira(*sides(f"null {k}", 64, shift=0.0)) for k in range(4)]
    assert float(np.mean([one.auc for one in found])) == pytest.approx(0.5, abs=0.004)
    assert float(np.mean([one.accuracy for one in found])) == pytest.approx(0.5, abs=0.004)
    assert float(np.mean([one.tpr_at_1_fpr for one in found])) == pytest.approx(0.01, abs=0.002)
    assert float(np.mean([one.tpr_at_01_fpr for one in found])) == pytest.approx(0.001, abs=0.0006)


def test_tables_that_remember_are_told_from_unrelated_ones():
    tables = Tables()
    blank, unrelated = (margins_of(tables.model, tables.trained(64, k), tables.x, tables.y) for k in "ab")
    remembers = margins_of(tables.model, tables.trained(64, "c", strength=14.0), tables.x, tables.y)
    seen = u_lira(remembers, blank)
    assert min(seen.auc, seen.accuracy, seen.tpr_at_1_fpr, seen.tpr_at_01_fpr) > 0.9999
    assert float(seen.per_example.tpr_at_1_fpr.min()) == 1.0
    assert u_lira(unrelated, blank).auc == pytest.approx(0.5, abs=0.03)


# --- against a plain loop --------------------------------------------------------------------------------------------


def plain_scores(fit, judged, variances):
    """Log likelihood ratios by the densities, model by model and example by example."""
    scores = np.empty(judged.shape)
    for s in range(judged.shape[1]):
        u, o = (side[:, s] for side in fit)
        stds = u.std(ddof=1), o.std(ddof=1)
        if variances == "pooled":
            apart = np.concatenate([u - u.mean(), o - o.mean()])
            stds = (math.sqrt((apart**2).sum() / (len(apart) - 2)),) * 2
        for k, phi in enumerate(judged[:, s]):
            scores[k, s] = norm.logpdf(phi, u.mean(), stds[0]) - norm.logpdf(phi, o.mean(), stds[1])
    return scores


def plain_rates(positive, negative):
    labels = np.repeat([1, 0], [len(positive), len(negative)])
    every = np.concatenate([positive, negative])
    fpr, tpr, _ = roc_curve(labels, every, drop_intermediate=False)
    accuracy = ((positive > 0).mean() + (negative <= 0).mean()) / 2
    return roc_auc_score(labels, every), tpr[fpr <= 0.01].max(), tpr[fpr <= 0.001].max(), accuracy


@pytest.mark.parametrize("variances", ["pooled", "separate"])
def test_every_number_is_the_plain_loops(variances):
    """Unequal, odd numbers of models, and margins rounded so that some are equal."""
    unlearned = (normal("p", 33, 12, shift=0.8) * 2).round() / 2
    unseen = (normal("q", 21, 12) * 3).round() / 3
    p, q = unlearned.numpy(), unseen.numpy()
    halves = ((p[:16], q[:10]), (p[16:], q[10:]))
    overall, each = [], []
    for fit, judged in (halves, halves[::-1]):
        positive, negative = (plain_scores(fit, side, variances) for side in judged)
        overall.append(plain_rates(positive.ravel(), negative.ravel()))
        each.append([plain_rates(positive[:, s], negative[:, s]) for s in range(12)])
    found = u_lira(unlearned, unseen, variances=variances)
    assert (found.auc, found.tpr_at_1_fpr, found.tpr_at_01_fpr, found.accuracy) == pytest.approx(
        tuple(np.mean(overall, axis=0)), abs=1e-9
    )
    per_example = found.per_example
    rates = torch.stack([per_example.auc, per_example.tpr_at_1_fpr, per_example.tpr_at_01_fpr, per_example.accuracy], 1)
    torch.testing.assert_close(rates, torch.from_numpy(np.mean(each, axis=0)), rtol=0, atol=1e-9)
    pooled = np.sqrt((32 * p.var(axis=0, ddof=1) + 20 * q.var(axis=0, ddof=1)) / 52)
    torch.testing.assert_close(per_example.shift, torch.from_numpy((p.mean(axis=0) - q.mean(axis=0)) / pooled))


def test_separate_variances_see_spread_and_pooled_ones_see_the_mean_better():
    """Three times the spread at the same mean: only separate fits tell. At 16 a side they cost some accuracy."""
    wide, narrow = 3 * normal("wide", 64, 200), normal("narrow", 64, 200)
    assert u_lira(wide, narrow).auc == pytest.approx(0.5, abs=0.03)
    assert u_lira(wide, narrow, variances="separate").auc > 0.7
    pooled, separate = (u_lira(*sides("few", 16), variances=how).accuracy for how in ("pooled", "separate"))
    assert 0.005 < pooled - separate < 0.03


def test_margins_that_do_not_vary_are_told_by_where_they_are():
    still, other, moves = torch.full((8, 3), 0.1), torch.full((8, 3), 0.3), normal("moves", 8, 3)
    same, apart = u_lira(still, still.clone()), u_lira(still, other)
    assert (same.auc, same.accuracy, same.auc_low, same.auc_high) == (0.5, 0.5, 0.5, 0.5)
    assert same.per_example.shift.tolist() == [0.0] * 3
    assert (apart.auc, apart.accuracy, apart.tpr_at_1_fpr) == (1.0, 1.0, 1.0)
    assert apart.per_example.shift.tolist() == [-math.inf] * 3
    assert u_lira(moves + 50, still).auc == 1.0


@pytest.mark.parametrize("n", [6, 12, 14])
@pytest.mark.parametrize("place", [0.1, -0.7, 0.5])
@pytest.mark.parametrize("spread", [0.01, 1.0, 100.0])
def test_a_side_that_stands_still_is_told_from_one_that_moves_wherever_it_stands(n, place, spread):
    """The mean of so many times 0.1 or -0.7 is another number, and the ratio of variances may be no number at all."""
    still, moves = torch.full((n, 3), place, dtype=torch.float64), spread * normal(f"moves {n}", n, 3)
    for found in (u_lira(still, moves, variances="separate"), u_lira(moves, still, variances="separate")):
        assert (found.auc, found.accuracy, found.tpr_at_1_fpr) == (1.0, 1.0, 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("variances", ["pooled", "separate"])
def test_where_no_fit_varies_whatever_is_nearer_to_a_side_belongs_to_it_however_far_off(variances):
    """The fits stand still at 0 and at 1, what is judged at 50 and -50; then the other way round."""
    far, half_way = (torch.tensor([0.0] * 4 + [at] * 4, dtype=torch.float64)[:, None].repeat(1, 2) for at in (50, 0.5))
    astray, right = u_lira(far, 1 - far, variances=variances), u_lira(-far, 1 + far, variances=variances)
    assert (right.auc, right.accuracy, right.tpr_at_1_fpr) == (1.0, 1.0, 1.0)
    assert (astray.auc, astray.accuracy) == (0.0, 0.0)
    middle = u_lira(half_way, 1 - half_way, variances=variances)  # one turn judges what is half-way, the other fits it
    assert (middle.auc, middle.accuracy) == (0.5, 0.5)


# --- the interval ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "together"), [(0.0, 0.0), (0.0, 0.95), (1.0, 0.0), (0.3, 0.5)])
def test_the_interval_covers_whether_examples_rise_and_fall_together_or_not(shift, together):
    """Over 80 pools, between 0.85 and all of them, and not by being endless: at most 2.6 times what is needed.

    together: how correlated one model's margins are over the examples. Taking decisions as the units would give a
    tenth of the width there.
    """
    found = []
    for k in range(80):
        names = [f"{name} {k} {together}" for name in ("unlearned", "unseen")]
        p, q = (
            math.sqrt(1 - together) * normal(name, 32, 40) + math.sqrt(together) * normal(name + " all", 32, 1)
            for name in names
        )
        one = u_lira(p + shift, q)
        found.append((one.auc, one.auc_low, one.auc_high))
    auc, low, high = np.array(found).T
    covered = ((low <= auc.mean()) & (auc.mean() <= high)).mean()
    assert covered >= 0.85
    assert (high - low).mean() / 2 < 2.6 * 2 * auc.std()


# --- those who stay --------------------------------------------------------------------------------------------------


def test_a_members_auc_is_the_chance_to_have_the_larger_margin():
    members, others = normal("members", 4, 30, shift=0.5), normal("others", 4, 50)
    expected = [float((members[k][:, None] > others[k][None]).double().mean()) for k in range(4)]
    assert member_auc(members, others).tolist() == pytest.approx(expected, abs=1e-12)
    assert member_auc(others, members).tolist() == pytest.approx([1 - value for value in expected], abs=1e-12)


def test_retained_examples_that_unlearning_exposes_are_seen():
    """Members at one standard deviation under retrained models, at two under unlearned ones: Phi(2/r2) - Phi(1/r2)."""
    others = normal("held out", 32, 400)
    retrained = normal("stay", 32, 400, shift=1.0), others
    unlearned = normal("stay exposed", 32, 400, shift=2.0), normal("held out then", 32, 400)
    found = retained_exposure(unlearned, retrained)
    assert found.unlearned == pytest.approx(ndtr(math.sqrt(2)), abs=0.01)
    assert found.retrained == pytest.approx(ndtr(math.sqrt(0.5)), abs=0.01)
    assert found.difference == pytest.approx(found.unlearned - found.retrained, abs=1e-12)
    assert 0 < found.low < found.difference < found.high
    turned = retained_exposure(retrained, unlearned)
    assert turned.difference == pytest.approx(-found.difference)
    assert turned.high < 0


def test_the_interval_of_those_who_stay_is_paired_and_covers():
    """What a seed does to both sides cancels: the interval of equal methods covers 0 in about 95 of 100."""
    covered, widths = [], []
    for k in range(120):
        easy = normal(f"seed {k}", 16, 1)
        sides = [
            (normal(f"{name} in {k}", 16, 60, shift=1.0) + easy, normal(f"{name} out {k}", 16, 60)) for name in "ab"
        ]
        found = retained_exposure(*sides)
        covered.append(found.low <= 0 <= found.high)
        widths.append((found.high - found.low) / float(member_auc(*sides[0]).std()))
    assert 0.90 <= np.mean(covered) <= 0.99
    assert np.mean(widths) < 0.5  # unpaired, t_30 sqrt(2 / 16) 2 = 1.44 standard deviations between seeds


def test_another_judge_of_those_who_stay_gives_one_number():
    unseen = normal("unseen", 16, 30)
    found = retained_exposure(
        (normal("exposed", 16, 30, shift=1.5), unseen),
        (normal("as before", 16, 30, shift=0.5), unseen),
        judge=lambda seen, without: u_lira(seen, without).auc,
    )
    assert found.difference > 0.1
    assert (found.low, found.high) == (-math.inf, math.inf)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_margins_are_refused_by_name():
    good = normal("good", 8, 3)
    with pytest.raises(ValueError, match="variances must be one of 'pooled', 'separate', got 'pool'"):
        u_lira(good, good, variances="pool")
    with pytest.raises(ValueError, match="models of unseen must be a whole number >= 4, got 3"):
        u_lira(good, good[:3])
    with pytest.raises(ValueError, match="unlearned and unseen must be of the same examples, got 3 and 2"):
        u_lira(good, good[:, :2])
    with pytest.raises(ValueError, match=r"unlearned must have shape \(N, S\)"):
        u_lira(good[None], good)
    with pytest.raises(NumericalFailure, match="unseen has a margin that is NaN"):
        u_lira(good, good / 0 * 0)
    with pytest.raises(ValueError, match="members and others must be of the same models, got 8 and 7"):
        member_auc(good, good[:7])
    with pytest.raises(ValueError, match=r"judge must give one number, or one per model, .* got \(8,\) and \(7,\)"):
        retained_exposure((good, good), (good[:7], good[:7]))
    with pytest.raises(ValueError, match=r"got \(8, 3\) and \(8, 3\)"):
        retained_exposure((good, good), (good, good), judge=lambda a, b: a - b)


@pytest.mark.parametrize("variances", ["pooled", "separate"])
def test_margins_whose_squares_are_lost_are_refused(variances):
    """They made every number NaN, or half of all."""
    steps = torch.arange(1.0, 9.0, dtype=torch.float64)[:, None]
    for scale in (1e200, 1e-160, 1e-200):
        for sides in ((scale * steps, scale * steps), (scale * steps, steps), (steps, scale * steps)):
            with pytest.raises(NumericalFailure, match="margins must neither be too large nor differ by too little"):
                u_lira(*sides, variances=variances)
    far = torch.cat([steps[:4], 1e200 * steps[4:]])  # of which one half is fitted
    with pytest.raises(NumericalFailure, match="margins must neither be too large"):
        u_lira(far, steps, variances=variances)
    assert u_lira(1e70 * steps, 1e70 * steps + 1e70, variances=variances).auc == u_lira(steps, steps + 1).auc


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_judge_that_gives_no_number_is_refused(lost):
    side = (torch.zeros(8, 2), torch.zeros(8, 2))
    for given in (lost, torch.full((8,), lost)):
        with pytest.raises(NumericalFailure, match="judge must give finite numbers, but it gave NaN or infinity"):
            retained_exposure(side, side, judge=lambda a, b, given=given: given)
