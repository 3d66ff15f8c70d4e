"""FedORA's constraint, duality and theorem as numbers, on problems whose retrained model is known exactly.

Small problems with one or two parameters (`theory_small`), logistic regression (`theory_threshold`) and ridge
regression (`theory_theorem`) on breast cancer, and the unlearning loss on digits (`theory_score`). `run_theory` keeps
everything as records; theory_figures and breast_cancer_figures draw it.
"""

from __future__ import annotations

import math
from typing import Any

from fu_core.data import load
from fu_papers.fedora.theory_score import one_force
from fu_papers.fedora.theory_small import duality_gap, saddle, steps
from fu_papers.fedora.theory_theorem import limits, theorem_1
from fu_papers.fedora.theory_threshold import READINGS, forbidden, iterated
from fu_papers.lab.pool import map_kinds
from fu_papers.lab.record import Record
from fu_papers.lab.store import RecordStore


def run_theory(store: RecordStore, jobs: int | None = None) -> dict[str, list[Record]]:
    """Every record, by the name of the run function; 15 to 20 seconds on one core."""
    quadratic = {"epsilon": 0.5, "weight": 1.0, "mu": 0.1, "iterations": 120}
    on_cancer = {"draw": 0, "iterations": 2000}
    gentle, hasty = {"tau": 0.2, "sigma": 0.3}, {"tau": 0.1, "sigma": 3.0}
    scalar = {"dual": "scalar", **on_cancer}
    root = math.sqrt(0.5)
    plans: dict[Any, list[dict[str, Any]]] = {
        saddle: [
            {"tau": tau, "sigma": sigma, **quadratic}
            for tau, sigma in ((0.1, 0.05), (0.1, 0.5), (0.5, 1.0), (0.6, 1.2))
        ],
        forbidden: [{"draw": draw, "thresholds": [0.3, 0.5, 0.65], "largest": 0.68} for draw in range(10)],
        iterated: [
            {"dual": "none", **gentle, **on_cancer},
            *({**scalar, **gentle, "threshold": epsilon} for epsilon in (0.3, 0.5, 0.65)),
            {**scalar, **hasty, "threshold": 0.65},
            *({"dual": name, "tau": 0.1, "sigma": 0.1, **on_cancer} for name in READINGS),
        ],
        one_force: [
            {"epochs": 10, "samples": 100, "weights": [0.5, 1.0, 5.0, 20.0], "entries": 300,
             "confidences": [0.9, 0.99, 0.999, 0.9999]}
        ],
        duality_gap: [{"a": 5.0, "edge": 3.0, "tau": 0.1, "sigma": 0.5, "iterations": 20_000, "shown": 400}],
        steps: [
            {"L": 10.0, "K": 0.1, "sigma": 0.1, "tau": tau, "adaptive": adaptive, "iterations": 300}
            for tau in (0.1, 0.19, 0.21, 0.25)
            for adaptive in (False, True)
        ],
        theorem_1: [
            *({"eta": eta, "iterations": T, "threshold": epsilon, "sigma": 1.0, "batch": 32, "l2": 0.1, "seeds": 20}
              for eta, T in ((1.0, 60), (0.3, 150), (0.1, 300)) for epsilon in (None, 0.55, 0.65)),
            {"eta": 3.8, "iterations": 100, "threshold": None, "sigma": 1.0, "batch": 0, "l2": 0.1, "seeds": 1},
        ],
        limits: [{"mu": 1.0, "noise": root, "pressure": root, "etas": [1e-1, 1e-2, 1e-3, 1e-4]}],
    }  # fmt: skip
    on: dict[Any, str] = dict.fromkeys((forbidden, iterated, theorem_1), "breast_cancer") | {one_force: "digits"}
    return map_kinds(
        plans, store=store, jobs=jobs, data_hash=lambda fn: load(on[fn]).sha256 if fn in on else "generated"
    )
