"""The sweeps over k, damping and clip: what each of them holds fixed, and how far it moves a form."""

from __future__ import annotations

from typing import Any

import pandas as pd

from fu_core.unlearning.hf_kcu_options import DEFAULTS
from fu_papers.hf_kcu.grid import Experiment
from fu_papers.hf_kcu.results import rows_of

SWEPT = {"iters": "CG steps k", "damping": "damping λ", "beta": "clip β"}  # block of runs -> what is turned there


def held_fixed(e: Experiment, group: str, method: str) -> str:
    """What `method` has in the runs of a sweep besides what is swept there: "at most k = 10, no clip"."""
    configs = [config["options"] for cell, config in e.runs().items() if (cell.group, cell.method) == (group, method)]
    told = {", ".join(text for name, text in _settings(options).items() if name != group) for options in configs}
    (found,) = told  # one thing at a time, or it would be no sweep
    return found


def _settings(options: dict[str, Any]) -> dict[str, str]:
    """k, damping and clip in words, as a net has them; what is None is the form's own."""
    own = DEFAULTS["printed" if options["form"] == "printed" else "net"]
    iters, damping, scaling = (
        own.get(name) if options[name] is None else options[name] for name in ("iters", "damping", "scaling")
    )
    return {
        "iters": f"k = {iters}" if options["form"] == "printed" else f"at most k = {iters}",
        "damping": "λ chosen" if damping is None else f"λ = {damping:g}",
        "beta": f"β = {options['beta']:g}" if scaling else "no clip",
    }


def mean_forget(runs: pd.DataFrame, group: str, method: str) -> pd.Series:
    """Mean accuracy on the forgotten over seeds, by the value that is swept, ascending."""
    r = rows_of(runs, group, method)
    return r.assign(value=r.label.astype(float)).groupby("value").forget.mean().sort_index()
