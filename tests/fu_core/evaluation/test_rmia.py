"""RMIA by its formulas, on members it must find and on unrelated models where it must find nothing."""

import math

import numpy as np
import pytest
import torch

from fu_core.errors import NumericalFailure
from fu_core.evaluation.margins import margins_of, true_class_probabilities
from fu_core.evaluation.membership import _auc
from fu_core.evaluation.rmia import rmia, tuned_a
from tests.memorising import Tables, normal


def probabilities(name, *shape, shift=0.0):
    return normal(name, *shape, shift=shift).sigmoid()


def plain(p, reference, z, reference_z, a, gamma, seen, online):
    """The definition, for one attacked model, pair by pair."""
    scores = []
    for s in range(len(p)):
        inside = [float(reference[m, s]) for m in range(len(reference)) if seen[m, s]]
        outside = [float(reference[m, s]) for m in range(len(reference)) if not seen[m, s]]
        mean = (np.mean(inside) + np.mean(outside)) / 2 if online else ((1 + a) * np.mean(outside) + 1 - a) / 2
        ratio = float(p[s]) / mean
        beaten = 0
        for k in range(len(z)):
            mean_z = ((1 + a) * float(reference_z[:, k].mean()) + 1 - a) / 2
            beaten += ratio / (float(z[k]) / mean_z) > gamma
        scores.append(beaten / len(z))
    return scores


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize(("a", "gamma"), [(0.3, 1.0), (0.0, 1.0), (1.0, 1.0), (0.7, 1.5), (0.3, 0.5)])
def test_scores_are_those_of_the_definition(a, gamma, online):
    p, reference = probabilities("p", 30, shift=1.0), probabilities("reference", 6, 30)
    z, reference_z = probabilities("z", 50), probabilities("reference z", 6, 50)
    seen = normal("seen", 6, 30) > 0
    seen[0], seen[1] = True, False  # of both kinds for every example
    found = rmia(p, reference, z, reference_z, a=a, gamma=gamma, seen=seen, online=online)
    assert found.tolist() == plain(p, reference, z, reference_z, a, gamma, seen, online)
    assert 0.2 < float(found.mean()) < 1


def test_several_attacked_models_are_scored_each_by_itself():
    p, z = probabilities("p", 5, 2, 30), probabilities("z", 5, 2, 40)
    references = probabilities("reference", 3, 30), probabilities("reference z", 3, 40)
    found = rmia(p, references[0], z, references[1])
    assert found.shape == (5, 2, 30)
    for i in range(5):
        for j in range(2):
            assert torch.equal(found[i, j], rmia(p[i, j], references[0], z[i, j], references[1]))


def test_where_all_are_equally_likely_the_score_is_the_rank_among_the_population():
    z = probabilities("z", 200)
    p = probabilities("p", 2000)
    found = rmia(p, torch.full((2, 2000), 0.4), z, torch.full((2, 200), 0.4))
    assert found.tolist() == [float((z < value).double().mean()) for value in p]
    assert float(found.mean()) == pytest.approx(0.5, abs=0.05)  # exchangeable: uniform, up to the 200 drawn
    assert float((found < 0.1).double().mean()) == pytest.approx(0.1, abs=0.05)
    assert float((found > 0.9).double().mean()) == pytest.approx(0.1, abs=0.05)


def test_a_score_grows_with_the_probability_and_falls_with_that_of_the_references():
    z, reference_z = probabilities("z", 100), probabilities("reference z", 2, 100)
    rising = torch.linspace(0.01, 0.99, 30)
    up = rmia(rising, torch.full((2, 30), 0.5), z, reference_z)
    down = rmia(torch.full((30,), 0.5), rising.expand(2, 30), z, reference_z)
    assert (up.diff() >= 0).all()
    assert (down.diff() <= 0).all()
    assert float(up[-1] - up[0]) > 0.9
    assert float(down[0] - down[-1]) > 0.1


def test_beating_is_strict_and_a_memoriser_beats_everybody():
    """With a = 1, p_bar is the references' mean: the population has ratio 1, p_x = 1 more, p_x = p_bar_x not."""
    z = probabilities("z", 40)
    reference = torch.full((2, 3), 0.5)
    assert rmia(torch.ones(3), reference, z, z.expand(2, 40), a=1.0).tolist() == [1.0] * 3
    assert rmia(reference[0], reference, z, z.expand(2, 40), a=1.0).tolist() == [0.0] * 3


def test_tables_that_remember_are_found_and_unrelated_ones_are_not():
    """40 forgotten examples against 40 unseen ones, 2 references, 3 unlearned models of either kind."""
    tables = Tables(120)
    known, unseen, population = torch.arange(120).split(40)

    def scores(attacked):
        references = probability(tables.trained(2, "references"))
        p = probability(attacked)
        return rmia(p[:, :80], references[:, :80], p[:, population], references[:, population])

    def probability(w):
        return true_class_probabilities(margins_of(tables.model, w, tables.x, tables.y))

    blank = tables.trained(3, "attacked")
    remembers = blank.view(3, 2, 120).clone()
    remembers[:, tables.y[known], known] += 12.0
    found = scores(remembers.flatten(1)).numpy()
    assert found[:, known].min() > 0.6
    assert _auc(found[:, known].ravel(), found[:, unseen].ravel()) > 0.85
    nothing = scores(blank).numpy()
    assert _auc(nothing[:, known].ravel(), nothing[:, unseen].ravel()) == pytest.approx(0.5, abs=0.12)


# --- references that have seen some ----------------------------------------------------------------------------------


def test_references_that_saw_an_example_are_left_out_offline():
    """Whatever they answer, and however many of them there are."""
    p, z, reference_z = probabilities("p", 20), probabilities("z", 30), probabilities("reference z", 5, 30)
    reference = probabilities("reference", 5, 20)
    seen = torch.zeros(5, 20, dtype=torch.bool)
    seen[2] = seen[4, ::2] = True
    first = rmia(p, reference, z, reference_z, seen=seen)
    assert torch.equal(first, rmia(p, torch.where(seen, 0.999, reference), z, reference_z, seen=seen))
    assert not torch.equal(first, rmia(p, reference, z, reference_z))


@pytest.mark.parametrize("a", [0.2, 0.3, 0.9])
def test_one_reference_that_saw_the_example_stands_for_one_that_did_not(a):
    """p_in = a p_out + 1 - a, solved for p_out."""
    p, z, reference_z = probabilities("p", 20), probabilities("z", 30), probabilities("reference z", 1, 30)
    outside = probabilities("outside", 1, 20)
    inside = a * outside + 1 - a
    found = rmia(p, inside, z, reference_z, a=a, seen=torch.ones(1, 20, dtype=torch.bool))
    assert torch.equal(found, rmia(p, outside, z, reference_z, a=a))


def test_with_a_zero_the_line_is_that_of_three_tenths():
    """p_bar is 1/2 (mean_out + 1) then, and mean_out still has to come from p_in = 0.3 p_out + 0.7."""
    p, z, reference_z = probabilities("p", 20), probabilities("z", 30), probabilities("reference z", 1, 30)
    outside = probabilities("outside", 1, 20)
    seen = torch.ones(1, 20, dtype=torch.bool)
    found = rmia(p, 0.3 * outside + 0.7, z, reference_z, a=0.0, seen=seen)
    assert torch.equal(found, rmia(p, outside, z, reference_z, a=0.0))


@pytest.mark.parametrize("truth", [0.2, 0.9])
def test_a_is_tuned_on_a_model_of_ones_own(truth):
    """The choice has the largest AUC of all eleven. Members have p = truth p_out + 1 - truth, with some noise."""
    member = torch.arange(600) % 2 == 0
    level = probabilities("level", 600)
    p = torch.where(member, truth * level + 1 - truth, level) * (0.7 + 0.3 * probabilities("noise", 600))
    z_level = probabilities("z", 400)
    z = z_level * (0.7 + 0.3 * probabilities("noise z", 400))
    args = level.expand(2, 600), z, z_level.expand(2, 400)
    found = tuned_a(p, member, *args)

    def auc(a):
        scores = rmia(p, *args, a=a).numpy()
        return _auc(scores[member], scores[~member])

    aucs = {k / 10: auc(k / 10) for k in range(11)}
    assert aucs[found] == max(aucs.values())
    assert max(aucs.values()) > min(aucs.values())
    assert auc(found) > 0.5


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_probabilities_shapes_and_settings_are_refused_by_name():
    p, reference = probabilities("p", 5), probabilities("reference", 2, 5)
    z, reference_z = probabilities("z", 7), probabilities("reference z", 2, 7)
    with pytest.raises(ValueError, match=r"shapes \(M, S\) and \(M, Z\), got \(2, 5\) and \(1, 7\)"):
        rmia(p, reference, z, reference_z[:1])
    with pytest.raises(ValueError, match=r"shapes \(M, S\) and \(M, Z\), got \(5,\) and \(2, 7\)"):
        rmia(p, reference[0], z, reference_z)
    with pytest.raises(ValueError, match=r"shapes \(..., 5\) and \(..., 7\), got \(4,\) and \(7,\)"):
        rmia(p[:4], reference, z, reference_z)
    with pytest.raises(ValueError, match=r"got \(3, 5\) and \(7,\)"):
        rmia(p.expand(3, 5), reference, z, reference_z)
    with pytest.raises(ValueError, match=r"a must be between 0 and 1, got 1\.1"):
        rmia(p, reference, z, reference_z, a=1.1)
    with pytest.raises(ValueError, match="gamma must be a finite number > 0, got 0"):
        rmia(p, reference, z, reference_z, gamma=0)
    with pytest.raises(ValueError, match=r"population must be probabilities between 0 and 1, got -1\.0 to"):
        rmia(p, reference, torch.where(z == z[0], -1.0, z), reference_z)
    with pytest.raises(NumericalFailure, match="reference has a probability that is NaN"):
        rmia(p, reference * math.nan, z, reference_z)
    with pytest.raises(ValueError, match=r"seen must be of truth values \(2, 5\), got torch.bool \(5,\)"):
        rmia(p, reference, z, reference_z, seen=torch.ones(5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        rmia(p, reference, z, reference_z, seen=torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="online must be False unless every example was seen by some references"):
        rmia(p, reference, z, reference_z, online=True)
    with pytest.raises(ValueError, match=r"member must be truth values \(5,\), some True, some False"):
        tuned_a(p, torch.ones(5, dtype=torch.bool), reference, z, reference_z)
    with pytest.raises(ValueError, match="examples of p must be a whole number >= 1"):
        rmia(p[:0], reference[:, :0], z, reference_z)


def test_online_scores_of_unseen_examples_are_uniform_on_average_only_at_the_right_a():
    """p_in = 0.4 p_out + 0.6 in every reference: a = 0.4 gives the population the examples' own law."""
    means = []
    for a in (0.0, 0.4, 1.0):
        found = []
        for k in range(20):
            hard, hard_z = normal(f"hard {k}", 200), normal(f"hard z {k}", 500)

            def out(name, difficulty, models, k=k):
                return (difficulty + 0.3 * normal(f"{name} {k}", models, len(difficulty))).sigmoid()

            reference, seen = out("references", hard, 8), torch.arange(8)[:, None].expand(8, 200) % 2 == 0
            reference = torch.where(seen, 0.4 * reference + 0.6, reference)
            own, others = out("model", hard, 1)[0], out("model z", hard_z, 1)[0]
            found.append(
                rmia(own, reference, others, out("references z", hard_z, 8), a=a, seen=seen, online=True).mean()
            )
        means.append(float(torch.stack(found).mean()))
    assert means[0] > 0.55
    assert means[1] == pytest.approx(0.5, abs=0.02)
    assert means[2] < 0.45
