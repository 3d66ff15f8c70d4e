"""Certified DFL's lemmas, theorems and certificate as numbers, where the retrained model is known exactly.

Optima by Newton's method with the dense Hessian, D-PSGD where it comes to rest; the algorithm itself is always
`fu_core.unlearning.du`. `PLANS` says what is run; theory_figures and theory_tables show the records. The numbers
stand beside errata D1 to D13.

    theory_problems     ridge and logistic regression among ten peers
    theory_mixing       Lemma 1, and where D-PSGD stops
    theory_exactness    how far DU ends from retraining: on quadratics, Lemmas 2 and 3, Theorem 2
    theory_noise        what the printed noise costs and what it certifies
    theory_audit        what an attacker finds out, where the noise is all that is random
    theory_releases     whole releases, data in, noisy models out, honest and bad ones; their number is a parameter
    theory_whole        the same of those
    theory_canaries     the same in one run
    theory_fisher       the Fisher matrix in the Hessian's place
"""

from __future__ import annotations

from typing import Any

from fu_papers.certified_dfl.theory_audit import TABLES, audit
from fu_papers.certified_dfl.theory_exactness import bounds, exactness, risk
from fu_papers.certified_dfl.theory_fisher import fisher
from fu_papers.certified_dfl.theory_mixing import fixed_point, mixing
from fu_papers.certified_dfl.theory_noise import calibration, noise_scale
from fu_papers.certified_dfl.theory_problems import SPLITS
from fu_papers.lab.record import RunFunction

EPSILON, DELTA = 1.0, 1e-5
TOPOLOGIES = {"ring": 10, "erdos_renyi": 10, "complete": 10, "star": 10, "torus": 12}
CERTIFIED = {"epsilon": EPSILON, "delta": DELTA, "seed": 0}
PLANS: dict[RunFunction, list[dict[str, Any]]] = {  # what is checked, by run function; about two minutes on one core
    mixing: [
        {"topology": name, "clients": n, "p": 0.4, "steps": 100, "seed": 0} for name, n in TOPOLOGIES.items()
    ],
    fixed_point: [{"gamma": gamma, "heterogeneity": 0.7, "seeds": 5} for gamma in (0.05, 0.01, 0.001)],
    exactness: [
        {"heterogeneity": h, "seeds": 20, "growth": [2, 4, 8, 16], "growth_seeds": 10} for h in (0.0, 0.3, 0.7)
    ],
    bounds: [
        {"loss": loss, "split": split, "l2": l2, "deleted": [1, 2, 4, 8], "seed": 0}
        for loss in ("logistic", "ridge")
        for split in SPLITS
        for l2 in (0.01, 0.1, 1.0, 10.0)
    ],
    calibration: [{"l2": l2, "m": 4, "draws": 200, "budget": 0.01, **CERTIFIED} for l2 in (0.001, 0.01, 0.1, 0.3, 1.0)],
    noise_scale: [{"clients": n, "epsilons": [0.5, 1.0, 3.0], "delta": DELTA} for n in (10, 100)],
    audit: [
        {"l2": 0.1, "m": 4, "request": request, "split": split, "models": models, "gamma": gamma, "draws": 1000,
         "together": TABLES * 100, "accuracy_draws": 200, **CERTIFIED, "epsilon": 5.0}
        for split in SPLITS
        for request in ("samples", "client")
        for models, gamma in (("consensus", 0.0), ("dpsgd", 0.1))
    ],
    risk: [
        {"l2": l2, "who": who, "subsets": subsets, "deleted": list(range(1, 9)), "draws": 100, **CERTIFIED}
        for l2 in (0.1, 1.0)
        for who, subsets in (("random", 4), ("one class", 1))
    ],
    fisher: [
        *({"problem": name, "draws": 10, "seed": 0} for name in ("well specified", "labels flipped", "breast cancer")),
        *({"problem": "least squares", "scale": s, "draws": 10, "seed": 0} for s in (0.1, 1.0, 3.0)),
    ],
}  # fmt: skip
