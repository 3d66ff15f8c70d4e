"""Retraining as a certificate means it: the one minimiser of the retained loss, by Newton's method.

Training stops somewhere; the minimiser x' of f_r = mean loss over all retained samples is where it would end, and what
the distances of `fu_core.unlearning.certificate` are measured from.
"""

from __future__ import annotations

from torch import Tensor

from fu_core.errors import NumericalFailure
from fu_core.federation.decentralised import start
from fu_core.federation.federation import Federation
from fu_core.federation.graphs import Peers, complete
from fu_core.models.flat import FlatModel
from fu_core.request import Deletion
from fu_core.unlearning.certificate import residual_radius
from fu_core.unlearning.du import DU, du_release

CLOSE = 1e-5  # from the minimiser, at most


def retrained_minimiser(model: FlatModel, x: Tensor, deletion: Deletion) -> Tensor:
    """x' (d,), float64, from any x (d,), to `CLOSE`: of the mean over all retained samples, whoever holds them.

    Hence one client stands for all that is retained, and another, which leaves, for all that is forgotten.
    Deterministic. Raises UnsupportedModel unless the loss is strongly convex, NumericalFailure if Newton's steps end
    farther away.
    """
    both = Federation(model, {0: deletion.retain, 1: deletion.forget}, exchange=Peers(complete(2)))
    gone = Deletion.of(both.clients, 1)
    newton = DU(objective="samples", until=CLOSE, tol=0.01, dense_up_to=0)
    minimiser = du_release(both, start(x.double(), 2), gone, newton).noiseless[0]
    radius = residual_radius(model, minimiser, gone, objective="samples")
    if radius > CLOSE:
        raise NumericalFailure(f"Newton's method stopped at most {radius:.2g} from the retrained minimiser")
    return minimiser
