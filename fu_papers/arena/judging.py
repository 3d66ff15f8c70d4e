"""What the judges say of one method: N unlearned models against as many retrained ones, example by example.

Margins (N, S) of both sides on forgotten, retained and unseen examples are all that is looked at. Half of the
retrained models serve to fit an attack and the other half to judge it, where a judge needs to fit. A number that is
infinite is None in records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fu_core.evaluation.klom import floor, klom
from fu_core.evaluation.lira import retained_exposure, u_lira
from fu_core.evaluation.margins import true_class_probabilities
from fu_core.evaluation.per_example_epsilon import null_epsilon, per_example_epsilon
from fu_core.evaluation.rmia import rmia
from fu_core.streams import stream

PARTS = ("forget", "retain", "test")  # of the examples
UNSEEN = "unseen"  # of the test examples, those of classes that stay
KEPT = (*PARTS, UNSEEN)
Margins = Mapping[str, Tensor]  # part -> (N, S)


def judged(unlearned: Margins, retrained: Margins, twins: Margins, *, resamples: int, delta: float) -> dict[str, Any]:
    """All judges' numbers. unlearned: (N, S) by part; retrained: (M, S), of other seeds; twins: (N, S), of the same.

    resamples: of the models of both sides, for KLoM's interval; delta: of epsilon. Random: the resamples, from the
    stream (0, "arena", k), the same for every method.

        klom_<part>, klom_<part>_p95    mean and 95th percentile over the examples; "floor": of a perfect method
        auc, tpr_1, tpr_01              U-LiRA on forgotten examples, with the auc's interval
        rmia                            AUC of the RMIA scores of forgotten examples, unlearned against retrained
        epsilon, epsilon_null           mean per-example epsilon, and that of a perfect method
        example                         margins of the forgotten example that is hardest without it, to be looked at
        exposure                        AUC of membership of those who stay, less that under the twins, with interval
    """
    u, r = unlearned["forget"], retrained["forget"]
    found: dict[str, Any] = {"models": len(u), "floor": floor(len(u), len(r))}
    for part in PARTS:
        each = klom(unlearned[part], retrained[part])
        found |= {f"klom_{part}": finite(each.mean()), f"klom_{part}_p95": finite(each.sort().values[_p95(each)])}
    found["klom_draws"] = _draws(lambda p, q: _short(klom(p, q).mean()), u, r, resamples)
    hardest = int(r.mean(dim=0).argmin())  # whoever has not seen it guesses it wrong
    found["example"] = {"unlearned": _digits(u[:, hardest]), "retrained": _digits(r[:, hardest])}
    lira = u_lira(u, r)
    found |= {"auc": lira.auc, "auc_low": finite(lira.auc_low), "auc_high": finite(lira.auc_high)}
    found |= {"tpr_1": lira.tpr_at_1_fpr, "tpr_01": lira.tpr_at_01_fpr, "rmia": _rmia_auc(unlearned, retrained)}
    n = min(len(u), len(r))
    found["epsilon"] = float(per_example_epsilon(u[:n], r[:n], delta=delta).mean())
    found["epsilon_null"] = _null_epsilon(n, delta)
    exposed = retained_exposure((unlearned["retain"], unlearned[UNSEEN]), (twins["retain"], twins[UNSEEN]))
    found |= {
        "exposure": exposed.difference,
        "exposure_low": finite(exposed.low),
        "exposure_high": finite(exposed.high),
    }
    return found


def _p95(each: Tensor) -> int:
    return math.ceil(0.95 * len(each)) - 1


def _rmia_auc(unlearned: Margins, retrained: Margins) -> float:
    """Half of the retrained models are the attacker's references, the other half what unlearned ones are told from."""
    half = len(retrained["forget"]) // 2
    p_u, p_r = ({part: true_class_probabilities(side[part]) for part in PARTS} for side in (unlearned, retrained))
    others, population = p_r["forget"][:half], p_r["test"][:half]
    scores = [
        rmia(side["forget"], others, side["test"], population).flatten()
        for side in (p_u, {part: p_r[part][half:] for part in PARTS})
    ]
    known = torch.cat([torch.full_like(score, label) for label, score in zip((1.0, 0.0), scores, strict=True)])
    return float(roc_auc_score(known.cpu().numpy(), torch.cat(scores).cpu().numpy()))


@cache
def _null_epsilon(n: int, delta: float) -> float:
    return float(null_epsilon(n, delta=delta).mean())


def _draws(number: Callable[[Tensor, Tensor], Any], unlearned: Tensor, retrained: Tensor, resamples: int) -> list[Any]:
    """`number` of models drawn with replacement from both sides, again and again.

    A draw has fewer different models than there are, which moves KLoM up: draws tell a spread, not a level.
    """
    drawn = []
    for k in range(resamples):
        random = stream(0, "arena", k)
        sides = [side[torch.randint(len(side), (len(side),), generator=random)] for side in (unlearned, retrained)]
        drawn.append(number(*sides))
    return drawn


def _short(number: Tensor) -> float | None:
    """For a spread, four digits do."""
    value = finite(number)
    return None if value is None else float(f"{value:.4g}")


def _digits(values: Tensor) -> list[float]:
    """As many as a picture shows."""
    return [float(f"{value:.4g}") for value in values.tolist()]


def finite(number: Tensor | float) -> float | None:
    """A number for a record: None where it is infinite, which is a legitimate outcome of a constant margin."""
    value = float(number)
    return value if math.isfinite(value) else None
