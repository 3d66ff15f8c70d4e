"""Which layers a pass calls, against nets whose calls are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fu_core.errors import UnsupportedModel
from fu_core.models.calls import calls, seen_by
from fu_core.models.flat import FlatModel


class Backwards(nn.Module):
    """Names its layers in another order than it calls them, holds a parameter itself, and uses one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))
        self.reset_parameters()
        self.z_last, self.b_twice, self.unused = nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(3, 3)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.shift)

    def forward(self, x: Tensor) -> Tensor:
        return self.z_last(self.b_twice(self.b_twice(x).relu() + self.shift))


@pytest.fixture
def net() -> FlatModel:
    return FlatModel(Backwards())


def test_calls_come_in_the_order_in_which_they_begin_with_what_went_in_and_out(net):
    w, x = net.init(0), torch.randn(5, 3)
    outputs, made = calls(net, w, x)
    assert [call.name for call in made] == ["", "b_twice", "b_twice", "z_last"]
    assert made[0].returned is outputs
    assert made[3].returned is outputs
    assert made[1].given is x
    assert torch.equal(made[2].given, made[1].returned.relu())  # the shift is zero
    views = net.views(w)
    assert torch.allclose(made[1].returned, x @ views["b_twice.weight"].T + views["b_twice.bias"])


def test_only_the_kinds_asked_for_count_and_gradients_flow(net):
    leaf = net.init(0).requires_grad_()
    outputs, made = calls(net, leaf, torch.randn(5, 3), nn.Linear)
    assert [call.name for call in made] == ["b_twice", "b_twice", "z_last"]
    (back,) = torch.autograd.grad(outputs.sum(), [made[-1].returned])
    assert torch.equal(back, torch.ones(5, 2))
    with pytest.raises(UnsupportedModel, match=r"an nn\.Conv2d or nn\.Embedding that a forward pass reaches"):
        calls(net, leaf, torch.randn(5, 3), nn.Conv2d, nn.Embedding)


def test_what_reaches_a_layer_is_told_of_all_samples_and_not_of_one_that_is_called_twice(net):
    w, x = net.init(0), torch.randn(2500, 3)  # more than are looked at in one go
    seen = seen_by(net, w, "z_last", x)
    views = net.views(w)
    assert torch.allclose(seen @ views["z_last.weight"].T + views["z_last.bias"], net.predict(w, x), atol=1e-6)
    for layer in ("b_twice", "unused"):
        with pytest.raises(UnsupportedModel, match=f"'{layer}' must be called once"):
            seen_by(net, w, layer, x)


def test_no_hook_stays_behind_even_where_the_pass_fails(net):
    with pytest.raises(RuntimeError):
        calls(net, net.init(0), torch.randn(5, 4))
    with pytest.raises(RuntimeError):
        seen_by(net, net.init(0), "z_last", torch.randn(5, 4))
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in net.module.modules())
