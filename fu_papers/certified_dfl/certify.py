"""What a certificate costs: releases under the budget rule, and under the printed calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fu_core.errors import CertificateViolation
from fu_core.evaluation.accuracy import accuracy
from fu_core.unlearning.certificate import Privacy, residual_radius, softmax_constants
from fu_core.unlearning.du import DU, du_release
from fu_papers.certified_dfl.runs import Case, needs
from fu_papers.lab.context import RunContext
from fu_papers.lab.record import run_function
from fu_papers.problems import data_hash


@run_function("certified_dfl.certify", data=data_hash, needs=needs)
def certify(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """The budget rule on the convex problem: measured radius, noise and accuracy per epsilon, or the refusal.

    Beside it the printed calibration with its own constants, and what it does to accuracy.
    """
    case = Case.of(config, context)
    f, deletion, original, retrained = case.f, case.deletion, case.original, case.retrained
    options = {"corrected": DU(**config["du"]), "printed": DU(**config["printed"])}
    plain = {form: du_release(f, original, deletion, du) for form, du in options.items()}
    x, x_printed = (plain[form].noiseless.mean(dim=0) for form in ("corrected", "printed"))
    length = float(x.norm())

    def radius(w: Tensor) -> float:
        return residual_radius(f.model, w.double(), deletion, objective="samples")

    def test_accuracy(w: Tensor) -> float:
        return accuracy(f.model, w, *case.test)

    constants = softmax_constants(1.0, config["l2"], norm=length)
    rules: dict[str, dict[str, Any]] = {"corrected": {"budget": config["budget"]}, "printed": {"constants": constants}}
    for epsilon in config["epsilons"]:
        for form, du in options.items():
            privacy = Privacy(epsilon=epsilon, delta=config["delta"], **rules[form])
            try:
                released = du_release(f, original, deletion, du, privacy, plain[form])
            except CertificateViolation as refused:
                context.log(epsilon=epsilon, form=form, released=False, reason=str(refused))
                continue
            assert released.certificate is not None
            noise = (released.models - released.noiseless).mean(dim=0)
            context.log(
                epsilon=epsilon,
                form=form,
                released=True,
                sigma=released.sigma,
                claimed_radius=released.certificate.radius,
                test=test_accuracy(released.models.mean(dim=0)),
                retrained=test_accuracy(retrained.mean(dim=0) + noise),  # world B, errata D7
            )
    return {
        "length": length,
        "d": f.model.d,
        "constants": constants._asdict(),
        "radius": radius(x),
        "radius_printed": radius(x_printed),
        "radius_original": radius(original.mean(dim=0)),
        "radius_retrained": radius(retrained.mean(dim=0)),
        "test": test_accuracy(x),
        "test_printed": test_accuracy(x_printed),
        "test_retrained": test_accuracy(retrained.mean(dim=0)),
        "budget": config["budget"],
        "delta": config["delta"],
    }, None
