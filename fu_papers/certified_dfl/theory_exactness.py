"""How far DU ends from retraining: on quadratics, under Lemmas 2 and 3, and in risk, Theorem 2 (errata D2, D4, D11)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fu_core.errors import check_choice
from fu_core.federation.decentralised import start
from fu_core.federation.local import Client
from fu_core.request import Deletion
from fu_core.streams import stream
from fu_core.unlearning.certificate import Privacy, residual_radius
from fu_core.unlearning.du import DU, du, du_release
from fu_papers.certified_dfl.theory_problems import (
    CLIENTS,
    HELD,
    SAMPLES,
    breast_cancer,
    first,
    generated,
    kept_by,
    on_a_ring,
    ridge_clients,
    ridge_model,
    ridge_optimum,
    standard_normal,
    unit_constants,
    unit_problem,
)
from fu_papers.convex import optimum, pooled, slope
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function

ROUNDING = 1e-10  # of the distance between the worlds: nearer than this is equal

# --- exactness -------------------------------------------------------------------------------------------------------


PRINTED = {"form": "printed"}
READINGS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> who deletes, fields of DU
    "all clients delete, printed": ("all", PRINTED),
    "all clients delete, corrected (one Hessian)": ("all", {}),
    "one client deletes, printed": ("one", PRINTED),
    "one client deletes, corrected": ("one", {}),
    "a client leaves, printed (1/N twice)": ("leaves", PRINTED),
    "a client leaves, weight 1": ("leaves", {**PRINTED, "weight": 1.0}),
    "a client leaves, corrected": ("leaves", {}),
}


@run_function("certified_dfl.exactness", data=generated)
def exactness(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Errata D2 and D4 on ridge regression, where M = 0 promises the retrained model itself.

    errors: per reading and seed, |x^ - x'| / |x - x'| (1: as far as doing nothing), a tenth deleted. growth: when all
    clients delete m of 100, |x^ - x'| per seed; of the sum over m samples a part grows like m, a part like its root.
    """
    model, h = ridge_model(), config["heterogeneity"]

    def distance(clients: list[Client], deletion: Deletion, options: Mapping[str, Any]) -> tuple[float, float]:
        x, retrained = ridge_optimum(clients), ridge_optimum(kept_by(deletion))
        X = du(on_a_ring(model, clients), start(x, CLIENTS), deletion, DU(**options))
        return float((X - retrained).norm(dim=1).max()), float((x - retrained).norm())

    errors: dict[str, list[float]] = {name: [] for name in READINGS}
    growth: list[dict[str, Any]] = [{"m": m, "printed": [], "corrected": []} for m in config["growth"]]
    for seed in range(config["seeds"]):
        clients, tenth = ridge_clients(h, seed), SAMPLES // 10
        requests = {
            "all": first(tenth, clients),
            "one": first(tenth, clients, [0]),
            "leaves": Deletion.of(clients, 0),
        }
        for name, (who, options) in READINGS.items():
            error, away = distance(clients, requests[who], options)
            errors[name].append(error / away)
        for row in growth if seed < config["growth_seeds"] else []:
            for form in ("printed", "corrected"):
                row[form].append(distance(clients, first(row["m"], clients), {"form": form})[0])
    return {"errors": errors, "growth": growth}, None


# --- Lemmas 2 and 3 --------------------------------------------------------------------------------------------------


@run_function("certified_dfl.bounds", data=breast_cancer)
def bounds(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Lemmas 2 and 3 under their own assumptions: ten clients of 40, each deletes m, the optimum reached exactly.

    Per m: shift |x' - x| and its bound; |x^ - x'| of the corrected and of the printed step, and their bound; the
    residual radius of both (errata D6). L holds for models as long as x and x', the smallest L that is honest.
    """
    loss, l2 = config["loss"], config["l2"]
    problem = unit_problem(l2, split=config["split"], loss=loss, seed=config["seed"])
    model, clients, _ = problem
    x = optimum(model, pooled(clients))
    rows = []
    for m in config["deleted"]:
        deletion = first(m, clients)
        retrained = optimum(model, pooled(kept_by(deletion)), x)
        constants = unit_constants(l2, norm=max(float(x.norm()), float(retrained.norm())), loss=loss)
        row = {"m": m, "share": m / HELD, "shift": float((retrained - x).norm()),
               "lemma_2": constants.distance(m, HELD), "lemma_3": constants.sensitivity(m, HELD)}  # fmt: skip
        for form in ("corrected", "printed"):
            released = du(problem.federation, start(x, CLIENTS), deletion, DU(form=form))[0]
            row[form] = float((released - retrained).norm())
            row[f"radius_{form}"] = residual_radius(model, released, deletion)
        rows.append(row)

    def violated(measured: str, bound: str) -> int:
        return sum(row[measured] > row[bound] + ROUNDING * row["shift"] for row in rows)

    return {
        "rows": rows,
        "violations": {
            "Lemma 2": violated("shift", "lemma_2"),
            "Lemma 3, corrected": violated("corrected", "lemma_3"),
            "Lemma 3, printed": violated("printed", "lemma_3"),
            "residual radius": sum(violated(form, f"radius_{form}") for form in ("corrected", "printed")),
        },
    }, None


# --- Theorem 2 -------------------------------------------------------------------------------------------------------


@run_function("certified_dfl.risk", data=breast_cancer, revision=3)
def risk(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Theorem 2: f(x~) - f(x*) of the printed algorithm on all data, the deleted included, against m/n.

    who: "random" samples, averaged over subsets, or each client's malignant ones, "one class". noise_free:
    f(x^) - f(x*); noise: E f(x^ + nu) - f(x^), over +-nu; first, second: the terms of Eq. (13) as (14) and (15) have
    them, the second with sqrt(ln(1/delta)) and a factor 2, and with the paper's L, of models up to 1 / lambda long
    (Lemma 4); second_reach: with one that holds as far as the noise carries models (`reach`). slopes: log-log, of the
    first four. violations: how often noise_free + noise is above the bound, with the one and with the other.
    """
    l2, epsilon, delta = config["l2"], config["epsilon"], config["delta"]
    problem = unit_problem(l2, seed=config["seed"])
    model, clients, _ = problem
    ((_, data),) = pooled(clients)
    x, constants = optimum(model, pooled(clients)), unit_constants(l2)
    privacy = Privacy(epsilon=epsilon, delta=delta, constants=constants)
    f_all = vmap(lambda w: model.loss(w, *data))
    least, nu, reach = f_all(x[None])[0], standard_normal(config["draws"], model.d, "risk"), 0.0
    orders = [_orders(clients, config["who"], subset) for subset in range(config["subsets"])]
    found: dict[str, list[float]] = {name: [] for name in ("share", "noise_free", "noise", "first", "second")}
    for m in config["deleted"]:
        clean, noisy = [], []
        for order in orders:
            deletion = Deletion.of(clients, {i: order[i][:m] for i in range(CLIENTS)})
            release = du_release(problem.federation, start(x, CLIENTS), deletion, DU(form="printed"), privacy)
            unlearned = release.noiseless.mean(dim=0)
            clean.append(float(f_all(unlearned[None])[0] - least))
            moved = torch.cat([unlearned + release.sigma * nu, unlearned - release.sigma * nu])
            reach = max(reach, float(moved.norm(dim=1).max()))
            noisy.append(float(f_all(moved).mean() - least) - clean[-1])
        found["share"].append(m / HELD)
        found["noise_free"].append(float(np.mean(clean)))
        found["noise"].append(float(np.mean(noisy)))
        found["first"].append(m * constants.L**2 / ((HELD - m) * constants.lam))
        found["second"].append(math.sqrt(model.d * math.log(1 / delta)) * constants.sensitivity(m, HELD) / epsilon)
    distances = found["second"]
    found["second"] = [constants.L * distance for distance in distances]
    found["second_reach"] = [unit_constants(l2, norm=max(reach, 1 / l2)).L * distance for distance in distances]
    slopes = {name: slope(found["share"], found[name]) for name in ("noise_free", "noise", "first", "second")}

    def exceeded(second: str) -> int:
        sums = zip(found["noise_free"], found["noise"], found["first"], found[second], strict=True)
        return sum(clean + noisy > one + two for clean, noisy, one, two in sums)

    violations = {"paper": exceeded("second"), "reach": exceeded("second_reach")}
    return {**found, "slopes": slopes, "violations": violations, "reach": reach}, None


def _orders(clients: Sequence[Client], who: str, subset: int) -> list[Tensor]:
    """Per client the order in which its samples are deleted."""
    check_choice("who", who, ("random", "one class"))
    orders = []
    for i, (_, y) in enumerate(clients):
        order = torch.randperm(len(y), generator=stream(subset, "risk", i))
        orders.append(order if who == "random" else order[y[order] == 0])
    return orders
