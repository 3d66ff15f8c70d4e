"""What an image costs a net: floating-point operations, counted while torch runs.

Bytes, images and storage of a whole method are counted where they happen, by `fu_core.federation.meter.Meter`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from fu_core.models.flat import FlatModel


def measured_flops(model: FlatModel, example: Tensor, *, backward: bool = True) -> float:
    """FLOPs of one training image, counted while torch runs: forward and backward, or the forward pass alone.

    example (n, ...): raw inputs, of which only the shape matters. A multiply-add is two FLOPs; matrix products
    and convolutions count, element-wise work does not. Deterministic.
    """
    w = torch.zeros(model.d, device=example.device, requires_grad=True)
    # a fused attention kernel on the CPU is unknown to the counter; plain products are not
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        outputs = model.logits(w, example)
        if backward:
            torch.autograd.grad(outputs.sum(), w)
    return counter.get_total_flops() / len(example)
