"""What HF-KCU's tables share: their controls, and the cells that every one of them fills in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fu_papers.controls import AGAIN, DESTROYED, REFERENCES
from fu_papers.hf_kcu.grid import SAME_START, Experiment
from fu_papers.hf_kcu.metrics import causal_faithfulness
from fu_papers.hf_kcu.results import main_runs, mean_of
from fu_papers.look import published
from fu_papers.problem_figures import spread_or_dash

NETS = {"simple_cnn": "SimpleCNN", "vit_lite": "ViT-Lite", "resnet18": "ResNet-18", "vit_tiny": "small ViT",
        "small_resnet": "small ResNet"}  # fmt: skip
WITH_FLOORS = ("Original", "Retrain", AGAIN, SAME_START, DESTROYED)  # controls of the main setting: both floors
TRUTH = {  # columns of every table: heading -> metric and digits
    "distance (do nothing = 1)": ("distance", 3),
    "KL on the forgotten": ("kl_forget", 3),
    "same prediction %": ("agreement", 1),
    "step / |Retrain - Original|": ("travelled", 2),
    "CG residual": ("residual", 2),
    "|grad L| / right side": ("stationarity", 2),
}
DIVERGED = 100.0  # nats to Retrain: a net that still knows anything is never so far away


def floors_of(e: Experiment, runs: pd.DataFrame) -> list[str]:
    """The controls of the main setting's tables; that from the same weights where it has been run."""
    return [method for method in WITH_FLOORS if method != SAME_START or len(main_runs(e, runs, method))]


def all_diverged(r: pd.DataFrame) -> bool:
    """Is every one of these runs, of which there is one, so far from Retrain that it knows nothing any more?"""
    return len(r) > 0 and bool((r.kl > DIVERGED).all())


def distances(r: pd.DataFrame) -> dict[str, Any]:
    """How near to Retrain in every respect, how well it was solved for, and the price: what accuracies do not tell.

    Means; a dash where it was not measured, and where a run has diverged, which enters no mean. A step longer than
    Retrain is away is marked: it has gone too far whatever the direction.
    """
    lost = int((r.kl > DIVERGED).sum()) if "kl" in r else 0
    found = {heading: _mean(r, name, digits) for heading, (name, digits) in TRUTH.items()}
    if lost:
        found = {**dict.fromkeys(TRUTH, "–"), "KL on the forgotten": f"diverged ({lost} of {len(r)})"}
    elif "travelled" in r and r.travelled.mean() > 1:
        found["step / |Retrain - Original|"] += " (!)"
    found = {"λ": _damping(r)} | found
    served = "passes" in r and bool((r.passes > 0).all()) and len(r) > 0
    found["images behind it"] = _behind(r) if served else "–"
    found["passes"] = f"{r.passes.mean():.3g}" if served else "–"
    found["MB"] = f"{r.bytes.mean() / 1e6:.3g}" if served else "–"
    return found


def _mean(r: pd.DataFrame, name: str, digits: int) -> str:
    if name not in r or r[name].isna().all():
        return "–"
    return f"{r[name].mean():.{digits}f}"


def _damping(r: pd.DataFrame) -> str:
    """What was added to the curvature, given or chosen: a large one solves the system and shortens the step."""
    if "damping" not in r or r.damping.isna().all():
        return "–"
    low, high = r.damping.min(), r.damping.max()
    return f"{low:.2g}" if f"{low:.2g}" == f"{high:.2g}" else f"{low:.2g} to {high:.2g}"


def _behind(r: pd.DataFrame) -> str:
    """Images in each curvature product, where there are any."""
    if "cg_steps" not in r or not (r.cg_steps > 0).all():
        return "–"
    return f"{(r.products / r.cg_steps).mean():.0f}"


def step_length(r: pd.DataFrame) -> str:
    """A dash where no vector was changed into another: of an ensemble, a second retraining, random weights."""
    return "–" if r.empty or r.step.isna().any() else f"{r.step.mean():.2g}"


def beside_retrain(r: pd.DataFrame) -> dict[str, Any]:
    """What the runs `r` keep of the test data and of what is to be forgotten, beside Retrain's."""
    return {
        "test acc. %": spread_or_dash(r.test),
        "Retrain's": spread_or_dash(r.test_retrain),
        "Δ test": spread_or_dash(r.delta_test),
        "forget acc. %": spread_or_dash(r.forget),
        "Retrain's forget": spread_or_dash(r.forget_retrain),
    }


def faithfulness(r: pd.DataFrame) -> str:
    """Mean causal faithfulness over the seeds where it is defined, and how many those are."""
    if r.empty:
        return "–"
    known = r.cf[r.cf_defined.astype(bool)]
    if not len(known):
        return "undefined"
    return f"{known.mean():.2f}" + (f" ({len(known)} of {len(r)})" if len(known) < len(r) else "")


def paper_faithfulness(accuracy: float, method: str) -> float | None:
    """CF by its own formula from the paper's accuracies: what the CF column should say (errata H3)."""
    if method in REFERENCES:
        return None
    paper = published("hf_kcu", "table_1").set_index("method").acc_pct
    found = causal_faithfulness(accuracy, paper["Retrained"], paper["FedAvg (trained)"], n_test=10_000)
    return round(found.value, 3)


def gains(measured: Mapping[str, Any], method: str, runs: pd.DataFrame) -> dict[str, str]:
    """Against retraining seconds, of the run that was timed, and gradient passes, the mean of all runs.

    Nothing for the other controls.
    """
    name = "retrain" if method == "Retrain" else method
    seconds, passes = measured["seconds"], measured["passes"]
    if name not in seconds:  # the other controls: nothing was done, or nothing that has a price of its own
        return {"× faster": "–", "× fewer passes": "–"}
    return {
        "× faster": gain(seconds["retrain"], seconds[name]),
        "× fewer passes": gain(passes["retrain"], mean_of(runs, "passes") or passes[name]),
    }


def gain(retrain: float, taken: float) -> str:
    """How many times less. FedEraser's first stored round is replayed as it is, without one gradient pass."""
    return f"{retrain / taken:.3g}" if taken else "∞"
