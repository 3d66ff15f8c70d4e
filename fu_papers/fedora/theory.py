"""FedORA's constraint, duality and theorem as numbers, on problems whose retrained model is known exactly.

Small problems with one or two parameters (`theory_small`), logistic regression (`theory_threshold`) and ridge
regression (`theory_theorem`) on breast cancer, and the unlearning loss on digits (`theory_score`). PLANS names the
runs, 15 to 20 seconds on one core; theory_figures and breast_cancer_figures draw their records.
"""

from __future__ import annotations

import math

from fu_papers.fedora.theory_score import one_force
from fu_papers.fedora.theory_small import duality_gap, saddle, steps
from fu_papers.fedora.theory_theorem import limits, theorem_1
from fu_papers.fedora.theory_threshold import READINGS, forbidden, iterated
from fu_papers.lab.record import Config, RunFunction

QUADRATIC = {"epsilon": 0.5, "weight": 1.0, "mu": 0.1, "iterations": 120}
ON_CANCER = {"draw": 0, "iterations": 2000}
GENTLE, HASTY = {"tau": 0.2, "sigma": 0.3}, {"tau": 0.1, "sigma": 3.0}
SCALAR = {"dual": "scalar", **ON_CANCER}
ROOT = math.sqrt(0.5)

PLANS: dict[RunFunction, list[Config]] = {
    saddle: [
        {"tau": tau, "sigma": sigma, **QUADRATIC}
        for tau, sigma in ((0.1, 0.05), (0.1, 0.5), (0.5, 1.0), (0.6, 1.2))
    ],
    forbidden: [{"draw": draw, "thresholds": [0.3, 0.5, 0.65], "largest": 0.68} for draw in range(10)],
    iterated: [
        {"dual": "none", **GENTLE, **ON_CANCER},
        *({**SCALAR, **GENTLE, "threshold": epsilon} for epsilon in (0.3, 0.5, 0.65)),
        {**SCALAR, **HASTY, "threshold": 0.65},
        *({"dual": name, "tau": 0.1, "sigma": 0.1, **ON_CANCER} for name in READINGS),
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
    limits: [{"mu": 1.0, "noise": ROOT, "pressure": ROOT, "etas": [1e-1, 1e-2, 1e-3, 1e-4]}],
}  # fmt: skip
