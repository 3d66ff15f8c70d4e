"""Relearn time against the closed form of a quadratic, its direction, and what every model has in common."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fu_core.errors import InvalidRequest, NumericalFailure, UnsupportedTask
from fu_core.evaluation.relearn import Level, Relearned, level, relearn_passes
from fu_core.federation.federation import Federation
from fu_core.federation.horizontal import fedavg
from fu_core.federation.local import ClientOpt, batches
from fu_core.models.flat import FlatModel
from fu_core.models.linear import mlp
from fu_core.streams import stream_seed

LINE = FlatModel(nn.Linear(1, 1, bias=False), task="regression")


def bowl(h, n=4):
    """n samples with loss h/2 (w - 3)^2."""
    x = torch.full((n, 1), math.sqrt(h), dtype=torch.float64)
    return x, 3 * x[:, 0]


def relearned(w, target, *, h=0.5, lr=0.2, cap=1000, **options):
    local = ClientOpt(lr=lr, batch_size=options.pop("batch_size", 100))
    start = torch.tensor([w], dtype=torch.float64)
    return relearn_passes(LINE, start, bowl(h), local, target=Level(target, "loss"), cap=cap, seed=0, **options)


@pytest.mark.parametrize(("h", "lr", "w"), [(0.5, 0.2, 0.0), (1.0, 0.05, -4.0), (0.1, 1.0, 10.0)])
def test_full_batches_on_a_quadratic_take_as_long_as_the_closed_form_says(h, lr, w):
    """The loss falls by (1 - eta h)^2 a pass: T = ceil(ln(l_0 / l*) / (-2 ln(1 - eta h)))."""
    for target in (1e-1, 1e-3, 1e-7):
        passes = math.ceil(math.log(h / 2 * (w - 3) ** 2 / target) / (-2 * math.log(1 - lr * h)))
        assert passes > 1
        assert relearned(w, target, h=h, lr=lr) == Relearned(passes, True)


def test_shares_of_a_pass_are_seen_after_as_many_batches():
    """Four batches of one sample, each the same step: T / 4 passes; looked at twice, or once, a pass, rounded up."""
    steps = math.ceil(math.log(0.25 * 9 / 1e-3) / (-2 * math.log(1 - 0.2 * 0.5)))
    assert steps % 4 not in (0, 2)
    assert relearned(0.0, 1e-3, batch_size=1).passes == steps / 4
    assert relearned(0.0, 1e-3, batch_size=1, per_pass=4).passes == steps / 4
    assert relearned(0.0, 1e-3, batch_size=1, per_pass=2).passes == math.ceil(steps / 2) / 2
    assert relearned(0.0, 1e-3, batch_size=1, per_pass=1).passes == math.ceil(steps / 4)


def test_the_original_needs_nothing_and_who_comes_late_is_counted_apart():
    """At the target before the first step; at the cap without it, even if a step more would do."""
    original = level(LINE, torch.tensor([2.0], dtype=torch.float64), bowl(0.5), by="loss")
    assert original.value == pytest.approx(0.25)
    assert relearned(2.0, original.value) == Relearned(0.0, True)
    passes = int(relearned(0.0, 1e-3).passes)
    assert relearned(0.0, 1e-3, cap=passes) == Relearned(passes, True)
    assert relearned(0.0, 1e-3, cap=passes - 1) == Relearned(passes - 1, False)
    assert relearned(0.0, 1e-9, batch_size=1, cap=1.5, per_pass=1) == Relearned(1.5, False)
    last = 0.25 * 9 * 0.9 ** (2 * 6) * 1.0001  # reached by the sixth of a pass and a half's six batches
    assert relearned(0.0, last, batch_size=1, cap=1.5, per_pass=1) == Relearned(1.5, True)


def problem():
    """Random labels: what is known of them has been learnt by heart."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 10, generator=g), torch.randint(0, 3, (80,), generator=g)
    return FlatModel(mlp(10, 3, (40,))), [(x[:40], y[:40]), (x[40:], y[40:])], ClientOpt(lr=0.1, batch_size=8)


def test_who_has_forgotten_more_needs_longer():
    """From the original to the retrained model along a line; by accuracy and by loss."""
    model, clients, local = problem()
    f = Federation(model, clients, replace(local, epochs=5))
    w_0 = model.init(0)
    original, retrained = fedavg(f, w_0, 20), fedavg(f.having(clients={1: clients[1]}), w_0, 20)
    for by in ("accuracy", "loss"):
        target = level(model, original, clients[0], by=by)
        times = [
            relearn_passes(model, w, clients[0], local, target=target, cap=200, seed=0)
            for w in (original, original.lerp(retrained, 0.5), retrained)
        ]
        assert all(t.reached for t in times)
        assert times[0].passes == 0
        assert times[0].passes < times[1].passes < times[2].passes


def test_the_walk_is_plain_training_on_its_own_streams():
    """Momentum and decay of weights as given, no augmentation, the first round's rate; the model stays untouched."""
    model, (forget, _), local = problem()
    local = replace(local, momentum=0.9, weight_decay=1e-3, lr_decay=0.5, augmentation="none")
    w = model.init(0)
    before, v, optimiser = w.clone(), w.clone(), local.fresh(1)
    target, steps = Level(70.0), 0
    for b in batches(40, replace(local, epochs=50), seed=stream_seed(3, "relearn"), round=0, client=0):
        steps += 1
        optimiser.step(v, model.grad(v, forget[0][b], forget[1][b]))
        if level(model, v, forget).value >= target.value:
            break
    ours = relearn_passes(model, w, forget, local, target=target, cap=50, seed=3)
    assert ours == Relearned(steps / 5, True)
    assert torch.equal(w, before)
    assert relearn_passes(model, w, forget, local, target=target, cap=50, seed=3) == ours


def test_what_cannot_be_is_named():
    model, (forget, _), local = problem()
    with pytest.raises(UnsupportedTask, match="a regression has no accuracy"):
        level(LINE, torch.zeros(1), (torch.ones(2, 1), torch.ones(2)))
    with pytest.raises(NumericalFailure, match=r"relearning diverged in batch \d+; lower lr \(now 100.0\)"):
        relearned(0.0, 1e-9, lr=100.0)
    with pytest.raises(InvalidRequest, match="holds no samples"):
        relearn_passes(model, model.init(0), (forget[0][:0], forget[1][:0]), local, target=Level(1.0), cap=1, seed=0)
    for wrong, message in (
        ({"cap": 0}, "cap must be"),
        ({"per_pass": 0}, "per_pass must be"),
    ):
        with pytest.raises(ValueError, match=message):
            relearn_passes(model, model.init(0), forget, local, target=Level(101.0), seed=0, **{"cap": 1, **wrong})
    with pytest.raises(ValueError, match=r"by must be one of .*did you mean 'loss'"):
        Level(1.0, "los")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_level_that_is_no_number_is_none(value):
    """A target of NaN no model would ever reach, one of infinity all."""
    with pytest.raises(NumericalFailure, match="value must be a finite loss, got"):
        Level(value, "loss")
    diverged = torch.tensor([value], dtype=torch.float64)
    with pytest.raises(NumericalFailure, match="value must be a finite loss"):
        level(LINE, diverged, bowl(0.5), by="loss")
    with pytest.raises(NumericalFailure, match="value must be a finite loss"):
        relearned(value, 1e-3)


@pytest.mark.parametrize("cap", [0.01, 0.3, 0.6, 1.1, 1.2, 2.0])
def test_who_does_not_come_back_has_no_smaller_number_than_who_does(cap):
    """Batches are whole: two a pass, of which the cap allows the nearest number, but one at least."""
    batches_done = max(1, math.floor(2 * cap + 0.5))
    path = [0.25 * 9 * 0.9 ** (2 * k) for k in range(batches_done + 1)]  # the loss after each batch
    last = relearned(0.0, path[-1] * 1.001, batch_size=2, cap=cap)
    assert last == Relearned(batches_done / 2, True)
    never = relearned(0.0, path[-1] * 0.999, batch_size=2, cap=cap)
    assert never == Relearned(max(cap, batches_done / 2), False)
