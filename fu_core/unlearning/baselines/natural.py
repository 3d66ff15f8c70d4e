"""Natural: do nothing and go on training without the target (PUF, Fig. 5). Does influence fade by itself?"""

from __future__ import annotations

from torch import Tensor

from fu_core.request import Deletion
from fu_core.unlearning.method import NoParameters, Trained, register
from fu_core.unlearning.needs import Needs


@register("Natural", paper="PUF, Fig. 5", colour="#7cc7f2", dash="-.", needs=Needs(blind=True))
def natural(trained: Trained, deletion: Deletion, config: NoParameters) -> Tensor:
    """A copy of the model (d,): no unlearning step at all. Everything happens in the recovery that follows."""
    trained.horizontal.meter.keep("global model", trained.model)
    return trained.model.clone()
