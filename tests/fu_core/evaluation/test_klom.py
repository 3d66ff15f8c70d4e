"""KLoM on normal distributions with known divergence, its floor, its power, and the two faults of the binned form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fu_core.errors import NumericalFailure
from fu_core.evaluation.klom import BINS, CLIP, SMALLEST, floor, klom, summary
from fu_core.evaluation.margins import margins_of
from tests.memorising import Tables, normal


def exactly(mean, std, n=8):
    """One example (n, 1) whose sample mean and standard deviation (ddof 1) are these."""
    values = torch.linspace(-1, 1, n, dtype=torch.float64)
    return (mean + std * values / values.std())[:, None]


@pytest.mark.parametrize(
    ("p", "q", "divergence"),
    [
        ((0, 1), (1, 1), 0.5),
        ((0, 1), (0, 2), 0.3181),
        ((0, 2), (0, 1), 0.8069),
        ((10, 1), (0, 1), 50.0),
        ((3, 2), (3, 2), 0.0),
    ],
)
def test_normal_distributions_of_known_divergence(p, q, divergence):
    """1/2 (log(s_q^2 / s_p^2) + (s_p^2 + (m_p - m_q)^2) / s_q^2 - 1); unlearned comes first."""
    assert float(klom(exactly(*p), exactly(*q))) == pytest.approx(divergence, abs=5e-5)
    assert float(klom(exactly(*p, n=5), exactly(*q, n=90))) == pytest.approx(divergence, abs=5e-5)


@settings(deadline=None, max_examples=20)
@given(st.floats(0.1, 100), st.floats(-100, 100), st.booleans())
def test_units_of_the_margins_do_not_matter(scale, shift, mirror):
    p, q = normal("p", 16, 5), normal("q", 16, 5, shift=0.7)
    factor = -scale if mirror else scale
    torch.testing.assert_close(klom(shift + factor * p, shift + factor * q), klom(p, q), rtol=1e-9, atol=1e-9)


def test_examples_are_judged_each_by_itself():
    p, q = normal("p", 16, 5), normal("q", 16, 5)
    order = torch.tensor([3, 1, 4, 0, 2])
    for options in ({}, {"form": "binned"}, {"form": "binned", "source": True}):
        torch.testing.assert_close(klom(p[:, order], q[:, order], **options), klom(p, q, **options)[order])
        torch.testing.assert_close(klom(p[:, 2:3], q[:, 2:3], **options), klom(p, q, **options)[2:3])


# --- floor and power -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "expected"),
    [(8, 0.375), (16, 0.149), (32, 0.068), (64, 0.0325), (100, 0.0205), (200, 0.0101), (500, 0.004)],
)
def test_the_floor_is_what_two_retrainings_are_apart(n, expected):
    """1/2 ((n - 1) (1 + 2/n) / (n - 3) - 1), and the mean of 4000 examples is within four of its standard errors."""
    assert floor(n) == pytest.approx(0.5 * ((n - 1) * (1 + 2 / n) / (n - 3) - 1), rel=1e-12)
    assert floor(n) == pytest.approx(expected, rel=0.02)
    apart = klom(normal(f"one {n}", n, 4000), normal(f"other {n}", n, 4000))
    assert float(apart.mean()) == pytest.approx(floor(n), abs=4 * float(apart.std()) / math.sqrt(4000))


@pytest.mark.parametrize(("n", "m"), [(8, 64), (64, 8)])
def test_the_floor_of_unequal_sides(n, m):
    apart = klom(normal("few", n, 4000), normal("many", m, 4000))
    assert float(apart.mean()) == pytest.approx(floor(n, m), abs=4 * float(apart.std()) / math.sqrt(4000))
    assert abs(floor(n, m) - floor(m, n)) > 0.05  # which side has few matters: the retrained variance is divided by


def test_64_models_see_half_a_standard_deviation_and_the_binned_form_hardly():
    """Gaussian: floor + 1/2 0.5^2 (n - 1) / (n - 3) = 0.162, five times its floor. Binned: a third above its own."""
    shifted, p, q = normal("shifted", 64, 500, shift=0.5), normal("p", 64, 500), normal("q", 64, 500)
    found = summary(shifted, q)
    assert found.mean == pytest.approx(floor(64) + 0.125 * 63 / 61, abs=0.02)
    assert found.mean > 4 * found.floor
    assert found.mean > summary(p, q).p95
    null, seen = (float(klom(side, q, form="binned").mean()) for side in (p, shifted))
    assert null == pytest.approx(0.62, abs=0.06)
    assert 1.2 < seen / null < 1.6


def test_a_memory_is_far_away_and_an_unrelated_model_at_the_floor():
    """Ten standard deviations of memory: 1/2 10^2 = 50, times 63/61. Binned, no overlap is log 1e5 at most."""
    tables = Tables(400)
    sides = {
        name: margins_of(tables.model, tables.trained(64, name, strength), tables.x, tables.y)
        for name, strength in (("remembers", 10 * math.sqrt(2)), ("unrelated", 0.0), ("retrained", 0.0))
    }
    remembers, unrelated = (summary(sides[name], sides["retrained"]) for name in ("remembers", "unrelated"))
    assert remembers.mean == pytest.approx(50 * 63 / 61, abs=2)
    assert unrelated.mean == pytest.approx(floor(64), abs=0.01)
    binned = klom(sides["remembers"], sides["retrained"], form="binned")
    assert 8.5 < float(binned.min()) < float(binned.max()) < 11.6  # log 1e5 less the entropy of the bins it fills


def test_standing_out_as_forgotten_is_as_far_as_being_remembered():
    q = exactly(0, 1)
    assert float(klom(exactly(-2, 1), q)) == pytest.approx(float(klom(exactly(2, 1), q)), rel=1e-9)


# --- constant margins ------------------------------------------------------------------------------------------------


def test_constant_margins_are_infinitely_far_unless_both_sides_agree():
    """Also of numbers that are no sums of powers of two, whose mean is rounded."""
    still, other, moves = torch.full((7, 1), 0.1), torch.full((7, 1), 0.3), normal("moves", 7, 1)
    assert klom(still, moves).tolist() == klom(moves, still).tolist() == klom(still, other).tolist() == [math.inf]
    assert klom(still, still.clone()).tolist() == [0.0]


def test_infinite_examples_are_counted():
    q = normal("q", 8, 40)
    one = q + 0.5
    one[:, 3] = 1.0
    found = summary(one, q)
    assert (found.mean, found.infinite) == (math.inf, 1)
    assert math.isfinite(found.p95)
    one[:, :3] = 1.0
    assert (summary(one, q).p95, summary(one, q).infinite) == (math.inf, 4)
    few = summary(q + normal("noise", 8, 40), q)
    assert few.infinite == 0
    assert few.p95 == pytest.approx(float(klom(q + normal("noise", 8, 40), q).quantile(0.95)))


# --- the binned form -------------------------------------------------------------------------------------------------


def histogram_divergence(p, q, closed):
    """The definition for one example, bin by bin."""
    p, q = (np.clip(side, -CLIP, CLIP) for side in (p, q))
    edges = np.linspace(min(p.min(), q.min()), max(p.max(), q.max()), BINS + 1)
    counts = [[((edges[k] <= v) & (v < edges[k + 1])).sum() for k in range(BINS)] for v in (p, q)]
    if closed:
        for side, values in zip(counts, (p, q), strict=True):
            side[-1] += (values == edges[-1]).sum()
    a, b = (np.array(side) / max(sum(side), 1) for side in counts)
    b = np.where(a > 0, np.maximum(b, SMALLEST), b)
    b = b / b.sum()
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


@pytest.mark.parametrize("source", [False, True])
def test_the_binned_form_is_the_divergence_of_histograms(source):
    p, q = 40 * normal("p", 30, 20), 40 * normal("q", 50, 20, shift=1.0)
    assert float(p.abs().max()) > CLIP  # some are clipped
    found = klom(p, q, form="binned", source=source)
    expected = [histogram_divergence(p[:, s].numpy(), q[:, s].numpy(), closed=not source) for s in range(20)]
    assert found.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_first_fault_of_the_published_bins_constant_margins_can_be_perfect():
    """The last bin is open: the largest margin of all is in none. Closed, all these are log(1 + 1e5) apart."""
    zero, one = torch.zeros(8, 1), torch.ones(8, 1)
    low, high, moves = torch.full((8, 1), -9.0), torch.full((8, 1), 9.0), normal("moves", 8, 1)
    worst = math.log(1 + 1 / SMALLEST)
    assert worst == pytest.approx(11.513, abs=1e-3)
    assert float(klom(zero, one, form="binned", source=True)) == pytest.approx(0, abs=1e-12)
    assert math.isnan(float(klom(high, moves, form="binned", source=True)))
    assert float(klom(low, moves, form="binned", source=True)) == pytest.approx(worst, rel=1e-9)
    for p, q in ((zero, one), (high, moves), (low, moves)):
        assert float(klom(p, q, form="binned")) == pytest.approx(worst, rel=1e-9)
    assert klom(one, one.clone(), form="binned").tolist() == [0.0]


@pytest.mark.parametrize(("n", "binned"), [(8, 6.4), (16, 3.8), (32, 1.68), (64, 0.61), (100, 0.35), (200, 0.144)])
def test_second_fault_of_the_bins_their_floor(n, binned):
    """Two pools of one law are 20 times as far apart as the Gaussian form has them."""
    p, q = normal(f"one {n}", n, 2000), normal(f"other {n}", n, 2000)
    found = float(klom(p, q, form="binned").mean())
    assert found == pytest.approx(binned, rel=0.08)
    assert found > 13 * floor(n)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_bad_margins_and_forms_are_refused_by_name():
    good = normal("good", 8, 3)
    with pytest.raises(ValueError, match="form must be one of 'gaussian', 'binned', got 'gauss'"):
        klom(good, good, form="gauss")
    with pytest.raises(ValueError, match="source must be False unless form is 'binned', got True with form='gaussian'"):
        klom(good, good, source=True)
    with pytest.raises(ValueError, match="same examples, got 3 and 2"):
        klom(good, good[:, :2])
    with pytest.raises(ValueError, match=r"retrained must have shape \(N, S\)"):
        klom(good, good[0])
    with pytest.raises(ValueError, match="models of retrained must be a whole number >= 4, got 3"):
        klom(good, good[:3])
    with pytest.raises(NumericalFailure, match="unlearned has a margin that is NaN"):
        klom(good * math.nan, good)
    steps = torch.arange(1.0, 9.0, dtype=torch.float64)[:, None].expand(8, 3)
    for scale in (1e200, 1e-200, 1e-160):
        for sides in ((scale * steps, steps), (steps, scale * steps), (scale * steps, scale * steps)):
            with pytest.raises(NumericalFailure, match=r"neither be too large nor .*, got those of example 0"):
                klom(*sides)
    assert klom(1e70 * steps, 1e70 * steps).tolist() == klom(1e-70 * steps, 1e-70 * steps).tolist() == [0.0] * 3
    for few in (3, 3.0, True):
        with pytest.raises(ValueError, match="n must be a whole number >= 4"):
            floor(few)
    with pytest.raises(ValueError, match="retrained must be a whole number >= 4, got 2"):
        floor(8, 2)
