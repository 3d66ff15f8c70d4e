"""Variants of both forms on the main setting, by label: the hyper-parameters that differ."""

from __future__ import annotations

from typing import Any

UNWEIGHTED = "w/o causal weighting"  # Fig. 1 has it, too
# Table 4: the change each row makes to Algorithm 1. "Influence decay" and "uniform influence" are not defined in the
# paper; both rows are our reading, and Algorithm 1 itself has no decay (errata H5).
ABLATIONS: dict[str, dict[str, Any]] = {
    "full, with decay 0.9 (our reading)": {"decay": 0.9},
    "w/o influence decay (= Algorithm 1)": {},
    UNWEIGHTED: {"influence": "broadcast"},
    "w/o adaptive scaling": {"scaling": False},
    "uniform influence (our reading)": {"influence": "uniform"},
}
# The corrected form, one choice changed at a time. Sampled curvature and Gauss-Newton are what `corrected` says.
CHOICES: dict[str, dict[str, Any]] = {
    "corrected": {},
    "with adaptive scaling": {"scaling": True},
    "minus sign": {"sign": -1},
    "curvature from all retained samples": {"curvature_samples": None},
    "Hessian instead of Gauss-Newton": {"matrix": "hessian"},
    "empirical Fisher instead of Gauss-Newton": {"matrix": "fisher"},
    "client's own curvature": {"curvature": "local", "curvature_samples": None, "damping": 0.1},
    "everybody's curvature": {"curvature": "global"},
    "gradient of the retained loss": {"gradient": "retained"},
    "gradient of the forgotten alone": {"gradient": "forgotten"},
    "Jacobi preconditioner": {"preconditioner": "jacobi", "damping": 0.1},
    "several steps, and two rounds of recovery": {"steps": 3, "recovery": 2},
}
# The corrected form where held-out images choose its length
LENGTHS: dict[str, dict[str, Any]] = {
    "held-out length": {},
    "held-out length, several steps, and two rounds of recovery": {"steps": 3, "recovery": 2},
}
