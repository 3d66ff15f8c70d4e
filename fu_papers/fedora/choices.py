"""One choice of FedORA's changed at a time: ablations, readings of lost formulas, and what curves sweep."""

from __future__ import annotations

from typing import Any

from fu_core.unlearning.fedora import PRINTED

# Table VII: FedORA without one of its parts.
ABLATIONS: dict[str, dict[str, Any]] = {
    "FedORA": {},
    "w/o UL": {"unlearn": False},
    "w/o AB": {"ratio": 1.0, "passes": 0.0},  # as many iterations as with a part of the retained data
    "w/o AS": {"adaptive": False},
}
STEPS = {"with AS": {"adaptive": True}}  # beside it, since trials may have chosen fixed steps already
# What of a lost formula can be read otherwise, each alone, and last all as we think that it was printed.
READINGS: dict[str, dict[str, Any]] = {
    "scalar dual, as tuned": {},
    "score beta (H - KL)": {"score": "scaled"},
    "score H - beta KL(U||p)": {"score": "reverse"},
    "steps by a party's own changes alone": {"steps": "printed"},
    "beta = 20": {"weight": 20.0},
    "beta = 20, force that grows with it": {"weight": 20.0, "force": "printed"},  # at beta = 1 it is the same force
    "all of D_u in every iteration": {"forget_sample": 0},
    "gradient of the score anew in each substep": {"refresh": True},
    "proximal weight 0": {"mu": 0.0},
    "all of it as printed, full batches of D_u": {"score": "entropy", "adaptive": True, **PRINTED},
}

# Forgetting against utility: method -> what is swept, and the parameter that lists its values.
CURVES = {
    "GA": ("lr", "ga_lrs"),
    "ICO": ("scale", "ico_scales"),
    "CVFU": ("epochs", "cvfu_rounds"),
    "FedORA": ("threshold", "thresholds"),
}
# The same of FedORA's forms and the peer. The element-wise dual sees no threshold (errata F3), and of the calibrated
# form unseen samples set it, whatever the weight is: what is left to choose of both is how fast the price answers.
CURVES_OF_FORMS = {
    "FedORA": CURVES["FedORA"],
    "FedORA reverse": CURVES["FedORA"],
    "FedORA vector": ("sigma", "sigmas_vector"),
    "FedORA calibrated": ("sigma", "sigmas"),
    "Few-shot": ("lr", "few_shot_lrs"),
}
SWEPT = CURVES | CURVES_OF_FORMS
QUARTER = "E/4"  # the label of runs that may pass a quarter of what retraining for E epochs passes, and no more
