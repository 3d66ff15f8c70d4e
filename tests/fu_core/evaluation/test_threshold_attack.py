"""The threshold attack: counted by hand, in the right direction, at chance without signal, and not fooled by ties."""

import math

import pytest
import torch
from scipy.special import ndtr

from fu_core.errors import NumericalFailure
from fu_core.evaluation.membership import threshold_attack


def scores(*values):
    return torch.tensor(values, dtype=torch.float64)


def normal(n, mean, seed):
    return mean + torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_by_hand():
    """The fit takes 3 (3/4 of the members, none of the others). There: 2 of 4 forgotten, 1 of 5 unseen.

    Pairs won by the forgotten: 5 (5), 3 (4 and a tie), 2 (4), 0 (1), so auc = 14.5 / 20. No unseen sample may be
    taken at 1 %, so only the forgotten 5 is found.
    """
    found = threshold_attack(
        members=scores(5, 4, 3, 1), others=scores(2, 2, 0), forget=scores(5, 3, 2, 0), unseen=scores(3, 1, 1, -1, 0.5)
    )
    assert found.accuracy == pytest.approx(50 * (2 / 4 + 4 / 5), rel=1e-14)
    assert found.auc == pytest.approx(14.5 / 20, rel=1e-14)
    assert found.tpr_at_1_fpr == 25.0
    assert found.advantage == pytest.approx(4.5 / 20, rel=1e-13)


def test_direction_what_is_remembered_is_found():
    found = threshold_attack(normal(400, 6, 0), normal(400, 0, 1), normal(300, 6, 2), normal(300, 0, 3))
    assert found.accuracy > 98
    assert found.auc > 0.99
    assert found.tpr_at_1_fpr > 95
    assert found.advantage > 0.49


def test_what_looks_like_unseen_data_is_at_chance():
    """The threshold is fitted on a model that does remember its members. Four standard errors of 4,000 samples.

    At the threshold 1 half of both sides' 16 % are hit: accuracy 50. One percent of the forgotten lie above the
    unseen's top percent.
    """
    found = threshold_attack(normal(4000, 2, 0), normal(4000, 0, 1), normal(4000, 0, 2), normal(4000, 0, 3))
    assert found.accuracy == pytest.approx(50, abs=100 * math.sqrt(2 * 0.16 * 0.84 / 4000) / 2 * 4)
    assert found.auc == pytest.approx(0.5, abs=4 * math.sqrt(1 / (6 * 4000)))
    assert found.advantage < 4 * math.sqrt(1 / (6 * 4000))
    assert found.tpr_at_1_fpr == pytest.approx(1, abs=100 * 4 * math.sqrt(2 * 0.01 / 4000))


def test_two_normal_distributions_have_their_closed_forms():
    """Means 1 apart: threshold 1/2, accuracy Phi(1/2), auc Phi(1 / sqrt 2), TPR at 1 % FPR Phi(1 - 2.326)."""
    found = threshold_attack(*(normal(40_000, mean, seed) for seed, mean in enumerate([1, 0, 1, 0])))
    assert found.accuracy == pytest.approx(100 * ndtr(0.5), abs=0.7)
    assert found.auc == pytest.approx(ndtr(math.sqrt(0.5)), abs=0.008)
    assert found.tpr_at_1_fpr == pytest.approx(100 * ndtr(1 - 2.3263), abs=1.5)


def test_inverted_leakage_hides_from_accuracy_but_not_from_the_advantage():
    """Forgotten samples look *less* familiar than unseen ones; both are far below the fitted threshold."""
    found = threshold_attack(normal(500, 12, 0), normal(500, 0, 1), normal(500, -3, 2), normal(500, 0, 3))
    assert found.accuracy == 50.0
    assert found.auc < 0.05
    assert found.advantage > 0.45
    assert found.tpr_at_1_fpr < 1


def test_the_threshold_comes_from_retained_data_not_from_the_forgotten():
    """Forgotten and unseen are perfectly separable (auc 1), but on one side of the fitted threshold."""
    found = threshold_attack(scores(9, 8), scores(5, 4), scores(3, 2), scores(1, 0))
    assert found.auc == 1.0
    assert found.tpr_at_1_fpr == 100.0
    assert found.accuracy == 50.0


def test_with_all_scores_equal_nothing_can_be_told():
    same = scores(1, 1, 1)
    found = threshold_attack(same, same, same, same)
    assert found == (50.0, 0.5, 0.0, 0.0)


def test_ties_across_the_two_sides_count_half_and_are_never_found():
    """Scores 0 and 1 only, as of a saturated confidence: half the forgotten and a tenth of the unseen score 1.

    auc = P(1, 0) + P(tie) / 2 = 0.5 * 0.9 + (0.5 * 0.1 + 0.5 * 0.9) / 2 = 0.7; a threshold cannot cut through a tie.
    """
    forget, unseen = scores(*[1] * 10, *[0] * 10), scores(*[1] * 2, *[0] * 18)
    found = threshold_attack(forget, unseen, forget, unseen)
    assert found.accuracy == pytest.approx(70, rel=1e-14)
    assert found.auc == pytest.approx(0.7, rel=1e-14)
    assert found.tpr_at_1_fpr == 0.0


def test_exactly_one_percent_false_positives_are_allowed_and_none_below_100_samples():
    """100 unseen samples with one at the top: it may be taken. With 99 it would be 1.01 %."""
    forget = scores(5, 3)
    unseen = torch.cat([scores(4), torch.zeros(99, dtype=torch.float64)])
    assert threshold_attack(forget, unseen, forget, unseen).tpr_at_1_fpr == 100.0
    assert threshold_attack(forget, unseen[:-1], forget, unseen[:-1]).tpr_at_1_fpr == 50.0


def test_every_attainable_threshold_counts():
    """Twenty forgotten and one unseen at each of the scores 3, 2, 1: points on one line of the curve, none left out.

    At 2 of 200 unseen, exactly 1 %, 40 of 200 forgotten are found.
    """
    forget = torch.cat([torch.full((20,), float(s)) for s in (3, 2, 1)] + [torch.zeros(140)])
    unseen = torch.cat([scores(3, 2, 1), torch.full((197,), -1.0)])
    assert threshold_attack(forget, unseen, forget, unseen).tpr_at_1_fpr == 20.0


def test_sides_of_different_size_weigh_the_same():
    """9 of 10 members and 90 of 900 others above 0: fitted and evaluated accuracy is the mean of 90 and 90."""
    forget = scores(*[1] * 9, -1)
    unseen = torch.cat([torch.ones(90), -torch.ones(810)]).double()
    assert threshold_attack(forget, unseen, forget, unseen).accuracy == pytest.approx(90, rel=1e-14)


def test_only_the_order_of_the_scores_matters_and_float32_is_fine():
    sides = normal(100, 1, 0), normal(100, 0, 1), normal(50, 1, 2), normal(60, 0, 3)
    sides = tuple(side.float() for side in sides)
    assert threshold_attack(*sides) == threshold_attack(*(side.double().exp() for side in sides))


@pytest.mark.parametrize("position", range(4))
def test_bad_sides_are_refused_by_name(position):
    name = ("members", "others", "forget", "unseen")[position]
    sides = [scores(1, 2)] * 4
    with pytest.raises(ValueError, match=f"samples of {name}"):
        threshold_attack(*(scores() if k == position else side for k, side in enumerate(sides)))
    for bad in (math.nan, -math.inf):
        with pytest.raises(NumericalFailure, match=f"{name} has a score that is NaN or infinite"):
            threshold_attack(*(scores(1, bad) if k == position else side for k, side in enumerate(sides)))
