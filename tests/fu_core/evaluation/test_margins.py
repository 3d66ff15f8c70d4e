"""Margins by hand, many models at once against one after the other, and everything that is no matrix of margins."""

import math

import pytest
import torch
from torch import nn

from fu_core.errors import NumericalFailure, UnsupportedTask
from fu_core.evaluation.margins import WAYS, check_margins, check_pair, margins, margins_of, true_class_probabilities
from fu_core.models import FlatModel, Standardize
from fu_core.models.cnn import tiny_cnn
from fu_core.models.linear import mlp
from tests.memorising import Tables, normal


def test_a_margin_is_the_true_logit_less_the_others_log_sum():
    """z = (2, 0, 0): 2 - log 2 for the first class, 0 - log(e^2 + 1) for the second."""
    logits = torch.tensor([[2.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    found = margins(logits, torch.tensor([0, 1]))
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([2 - math.log(2), -math.log(math.exp(2) + 1)], abs=1e-12)


def test_a_margin_is_the_logit_of_the_true_class_probability():
    logits, y = 3 * normal("logits", 50, 7), torch.arange(50) % 7
    p = logits.softmax(dim=1)[torch.arange(50), y]
    torch.testing.assert_close(margins(logits, y), torch.log(p / (1 - p)))
    torch.testing.assert_close(true_class_probabilities(margins(logits, y)), p)


def test_margins_do_not_round_where_probabilities_do():
    """p is 1 in every float, its margin still 800 and 900."""
    found = margins(torch.tensor([[800.0, 0.0], [900.0, 0.0]]), torch.tensor([0, 0]))
    assert found.tolist() == [800.0, 900.0]


def test_leading_dimensions_are_models():
    logits, y = normal("many", 3, 2, 5, 4), torch.tensor([0, 1, 2, 3, 0])
    together = margins(logits, y)
    assert together.shape == (3, 2, 5)
    for i in range(3):
        for j in range(2):
            assert torch.equal(together[i, j], margins(logits[i, j], y))


def nets():
    return {
        "dense": (
            FlatModel(nn.Sequential(Standardize(torch.tensor([0.5]), torch.tensor([2.0])), mlp(64, 5, (16,)))),
            8,
        ),
        "convolutions": (FlatModel(tiny_cnn(1, 8, 5)), 8),
        "no dense tail": (FlatModel(nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 5))), 8),
    }


@pytest.mark.parametrize("net", nets())
def test_many_models_at_once_have_the_margins_of_one_after_the_other(net):
    model, side = nets()[net]
    w = torch.stack([model.init(seed) for seed in range(6)])
    x, y = normal("images", 30, 1, side, side).float(), torch.arange(30) % 5
    before = w.clone()
    each = torch.stack([margins(model.logits(one, x), y) for one in w])
    assert float(each.std(dim=0).min()) > 1e-3  # models do differ
    for how in WAYS:
        torch.testing.assert_close(margins_of(model, w, x, y, how=how), each, rtol=1e-5, atol=1e-5)
    assert torch.equal(w, before)


def test_models_are_split_where_they_are_too_many_at_once(monkeypatch):
    model, side = nets()["dense"]
    w = torch.stack([model.init(seed) for seed in range(7)])
    x, y = normal("images", 30, 1, side, side).float(), torch.arange(30) % 5
    whole = margins_of(model, w, x, y, how="batched")
    monkeypatch.setattr("fu_core.evaluation.margins.MOST_AT_ONCE", 2 * (model.d + x.numel()))
    torch.testing.assert_close(margins_of(model, w, x, y, how="batched"), whole, rtol=1e-5, atol=1e-5)


def test_a_table_shows_what_it_remembers():
    tables = Tables()
    remembered = margins_of(tables.model, tables.trained(200, "a", strength=8.0), tables.x, tables.y)
    blank = margins_of(tables.model, tables.trained(200, "b"), tables.x, tables.y)
    assert float(remembered.mean()) == pytest.approx(8, abs=0.06)  # four standard errors
    assert float(blank.mean()) == pytest.approx(0, abs=0.06)
    assert float(blank.var()) == pytest.approx(2, abs=0.13)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_logits_are_refused_by_name():
    y = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"shapes \(..., n, C\) and \(n,\), got \(3, 2\) and \(2,\)"):
        margins(torch.zeros(3, 2), y)
    with pytest.raises(ValueError, match=r"got \(2,\) and \(2,\)"):
        margins(torch.zeros(2), y)
    with pytest.raises(ValueError, match="classes must be a whole number >= 2, got 1"):
        margins(torch.zeros(2, 1), y)
    with pytest.raises(ValueError, match="y must be classes from 0 to 1, got 0 to 2"):
        margins(torch.zeros(2, 2), torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="got -1 to 0"):
        margins(torch.zeros(2, 2), torch.tensor([0, -1]))
    for bad in (math.nan, math.inf):
        with pytest.raises(NumericalFailure, match="finite margins"):
            margins(torch.tensor([[0.0, 0.0], [0.0, bad]]), y)


def test_bad_models_are_refused_by_name():
    tables = Tables()
    w = tables.trained(2, "a")
    with pytest.raises(ValueError, match=r"w must have shape \(N, 80\), one model a row, got \(80,\)"):
        margins_of(tables.model, w[0], tables.x, tables.y)
    with pytest.raises(ValueError, match=r"got \(2, 79\)"):
        margins_of(tables.model, w[:, 1:], tables.x, tables.y)
    with pytest.raises(ValueError, match="how must be one of 'auto', 'batched', 'loop', got 'vmap'"):
        margins_of(tables.model, w, tables.x, tables.y, how="vmap")
    with pytest.raises(UnsupportedTask, match="not of regression"):
        margins_of(FlatModel(nn.Linear(40, 1), "regression"), torch.zeros(2, 41), tables.x, tables.y)


def test_what_is_no_matrix_of_margins_is_refused_by_name():
    good = normal("good", 4, 3)
    assert check_margins("unlearned", good.float()).dtype == torch.float64
    with pytest.raises(ValueError, match=r"unlearned must have shape \(N, S\), .* got \(4,\)"):
        check_margins("unlearned", good[:, 0])
    with pytest.raises(ValueError, match="models of unlearned must be a whole number >= 4, got 3"):
        check_margins("unlearned", good[:3])
    with pytest.raises(ValueError, match="examples of unlearned must be a whole number >= 1, got 0"):
        check_margins("unlearned", good[:, :0])
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(NumericalFailure, match="unlearned has a margin that is NaN or infinite"):
            check_margins("unlearned", torch.where(good == good[1, 1], bad, good))
    with pytest.raises(ValueError, match="unlearned and retrained must be of the same examples, got 3 and 2"):
        check_pair("unlearned", good, "retrained", good[:, :2])
