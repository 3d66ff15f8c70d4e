"""One step uphill: its direction is the gradient of what is forgotten, its length what was asked for."""

import pytest
import torch

from fu_core.request import Deletion
from fu_core.unlearning.baselines.ascent import Ascent, ascent
from tests.fu_core.unlearning.hf_kcu_calls import ONES
from tests.quadratics import Quadratics


@pytest.mark.parametrize("forget", [[1], [0, 2], {1: torch.tensor([0, 3]), 2: torch.tensor([5])}])
def test_the_step_is_the_gradient_of_all_forgotten_samples_at_the_length_asked_for(forget):
    q = Quadratics()
    f = q.federation()
    deletion = Deletion.of(f.clients, forget)
    step = ascent(f, ONES, deletion, Ascent(length=0.2)) - ONES
    g = q.model.grad(ONES, *deletion.forget)
    assert float(step.norm()) == pytest.approx(0.2 * 3**0.5)
    torch.testing.assert_close(step / step.norm(), g / g.norm())
    assert f.meter.images == deletion.m
    assert f.meter.bytes_up == f.meter.bytes_down == 3 * 8 * len(deletion.targets)


def test_where_nothing_slopes_nothing_moves():
    q = Quadratics()
    w = ascent(q.federation(), q.a[1], q.without(1), Ascent())
    assert torch.equal(w, q.a[1])
    assert w.data_ptr() != q.a[1].data_ptr()


@pytest.mark.parametrize("length", [0.0, -1.0, float("inf")])
def test_a_length_is_positive(length):
    with pytest.raises(ValueError, match=r"^length must be a finite number > 0"):
        Ascent(length=length)
