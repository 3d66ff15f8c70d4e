"""HF-KCU called in one line: a federation and a request made of what a test has at hand."""

import torch

from fu_core.federation.federation import Federation
from fu_core.federation.meter import Meter
from fu_core.request import Deletion
from fu_core.unlearning.hf_kcu import hf_kcu, hf_kcu_step

EXACT = {"rtol": 1e-9, "atol": 1e-12}
ONES = torch.ones(3, dtype=torch.float64)
CLOSED_FORM = {"iters": 3, "damping": 0.0, "tol": 0.0}  # three parameters: CG is exact after three steps
ONE_STEP = {"gradient": "forgotten", "steps": 1}  # of the corrected form: what a minimiser needs
PLAIN = {"iters": 10, "damping": 0.01, "tol": 0.0, "matrix": "hessian", **ONE_STEP}  # the corrected twin of the printed


def unlearned(model, w, clients, forget, *, seed=0, meter=None, **options):
    f = Federation(model, clients, seed=seed, meter=meter or Meter())
    return hf_kcu(f, w, Deletion.of(f.clients, forget), **options)


def step_of(model, w, clients, forget, config, *, seed=0, meter=None):
    f = Federation(model, clients, seed=seed, meter=meter or Meter())
    return hf_kcu_step(f, w, Deletion.of(f.clients, forget), config)


def as_request(forget):
    if all(rows is None for rows in forget.values()):
        return list(forget)
    return {i: torch.arange(100)[:8] if rows is None else torch.tensor(rows) for i, rows in forget.items()}
