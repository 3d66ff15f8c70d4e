"""Natural: do nothing and go on training without the target (PUF, Fig. 5). Does influence fade by itself?"""

from __future__ import annotations

from torch import Tensor

from fu_core.federation.meter import Meter
from fu_core.unlearning.needs import Needs

NEEDS = Needs(blind=True)


def natural(w: Tensor, *, meter: Meter | None = None) -> Tensor:
    """A copy of `w` (d,): no unlearning step at all. Everything happens in the recovery that follows."""
    if meter is not None:
        meter.keep("global model", w)
    return w.clone()
