"""HF-KCU's hyper-parameters: what Algorithm 1 prints, and what a corrected step needs on which model."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

from fu_core.errors import check_choice, check_count, check_positive, check_share
from fu_core.federation.local import Client
from fu_core.models.flat import FlatModel
from fu_core.unlearning.certificate import is_convex
from fu_core.unlearning.curvature import MATRICES

FORMS = ("corrected", "printed")
CURVATURES = ("retained", "global", "local")
INFLUENCES = ("causal", "broadcast", "uniform")
GRADIENTS = ("retained", "centred", "forgotten")
DEFAULTS: dict[str, dict[str, Any]] = {  # of fields that are None: as printed, and what a corrected step needs
    "printed": {"iters": 10, "damping": 0.01, "tol": 0.0, "matrix": "hessian", "curvature": "local",
                "gradient": "forgotten", "steps": 1, "sign": -1, "scaling": True},
    "convex": {"iters": 200, "damping": 0.0, "tol": 1e-3, "matrix": "hessian", "curvature": "retained",
               "gradient": "retained", "steps": 20, "sign": 1, "scaling": False},
    "net": {"iters": 10, "tol": 0.4, "matrix": "ggn", "curvature": "retained",
            "gradient": "centred", "steps": 1, "sign": 1, "scaling": False},
}  # fmt: skip


@dataclass(frozen=True)
class HFKCU:
    """Hyper-parameters. None means: what the chosen `form` does on such a model, see DEFAULTS and `settled`.

    gradient: what a corrected step solves for. "retained", -grad L_r, needs nothing of how w came about, and takes a
    net past the end of its training; "centred", grad L - grad L_r, is what deleting changes about the gradient;
    "forgotten" is that at a minimiser of L, where the leaving can tell it by themselves, and wrong elsewhere.
    steps: of Newton at most; each takes the gradient anew and is halved where it would not shorten it, but for the last
    that held-out samples measure. They end once the gradient is `until` times as long as at first.
    damping: of every step. None: 0 where the loss has a minimiser, elsewhere chosen, see `gain` and `held_out`.
    held_out: samples (x, y) that nobody has trained on, of every class that is forgotten; the server has them.
    """

    iters: int | None = None  # k; the paper: 10
    damping: float | None = None  # lambda; the paper: 0.01
    beta: float = 0.01  # adaptive scaling; the paper's
    form: str = "corrected"
    curvature: str | None = None  # whose loss: "local" as printed, "retained" corrected, "global" as in Eq. (3)
    matrix: str | None = None  # "hessian" as printed, "ggn" on nets, or "fisher"
    sign: int | None = None  # -1 printed, +1 corrected
    scaling: bool | None = None  # line 17: clip to beta |w|; on as printed, off in the corrected form
    influence: str = "causal"  # printed form; the other two are the ablations of Table 4, see `_printed_step`
    decay: float = 1.0  # gamma: the t-th CG increment counts gamma^t. Not in Algorithm 1, see errata H5
    gradient: str | None = None  # corrected form, one of GRADIENTS
    client_weights: str = "sizes"  # corrected; "fixed" keeps w_f when part of a client leaves, as Eq. (2) does
    preconditioner: str = "none"  # or "jacobi": the diagonal of the empirical Fisher; "kfac": its factors
    tol: float | None = None  # stop CG at this relative residual; choose damping that reaches it
    curvature_samples: int | None = None  # products over a random sample of so many; None: all, exact
    batch_size: int = 128  # of the products; changes speed and memory, not the result
    steps: int | None = None
    until: float | None = None  # None: the root of what the numbers' format can tell apart from 1
    gain: float = 0.9  # of what the curvature promises, the least that the loss must keep where damping is chosen
    held_out: Client | None = field(default=None, compare=False, repr=False)
    recovery: int = 0  # ordinary rounds of those who stay afterwards, as PUF has them

    def __post_init__(self) -> None:
        for name in ("iters", "curvature_samples", "steps"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_count("recovery", self.recovery, least=0)
        for name in ("damping", "tol"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        check_positive("beta", self.beta)
        check_choice("form", self.form, FORMS)
        check_choice("influence", self.influence, INFLUENCES)
        check_choice("client_weights", self.client_weights, ("sizes", "fixed"))
        check_choice("preconditioner", self.preconditioner, ("none", "jacobi", "kfac"))
        for name, known in (("matrix", MATRICES), ("curvature", CURVATURES), ("gradient", GRADIENTS)):
            if getattr(self, name) is not None:
                check_choice(name, getattr(self, name), known)
        if self.sign not in (None, 1, -1):
            raise ValueError(f"sign must be 1, -1 or None, got {self.sign}")
        for name in ("decay", "gain"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")
        if self.until is not None:
            check_share("until", self.until)
        check_count("batch_size", self.batch_size)
        self._fits_the_form()

    def _fits_the_form(self) -> None:
        printed_only = {"influence": self.influence != "causal"}
        corrected_only = {
            "gradient": self.gradient is not None,
            "client_weights": self.client_weights != "sizes",
            "steps": self.steps is not None,
            "until": self.until is not None,
            "held_out": self.held_out is not None,
        }
        for name, changed in (printed_only if self.form == "corrected" else corrected_only).items():
            if changed:
                given = "samples" if name == "held_out" else repr(getattr(self, name))
                raise ValueError(f"{name}={given} has no meaning in the {self.form} form")
        if self.curvature == "local" and self.form == "corrected" and self.gradient not in (None, "forgotten"):
            raise ValueError("gradient must be 'forgotten' with curvature='local': the others' parts solve nothing")
        if self.once and (self.steps or 1) > 1:
            raise ValueError(f"steps must be 1 with curvature='local' or sign=-1, got {self.steps}")
        if self.held_out is not None and self.curvature == "local":
            raise ValueError("held_out must be None with curvature='local', whose damping they do not choose")
        if self.held_out is not None and self.damping is not None:
            raise ValueError(f"damping must be None with held_out, which choose it, got {self.damping}")

    @property
    def once(self) -> bool:
        """Is it a form of step that leads nowhere when it is repeated?"""
        return self.form == "corrected" and (self.curvature == "local" or self.sign == -1)

    def settled(self, model: FlatModel) -> HFKCU:
        """The same with everything decided that `model` decides; damping stays None where it is to be chosen.

        Raises ValueError for what chosen damping cannot do: a Krylov space knows no decay and no preconditioner, and
        no damping that is finite solves its system to the last digit.
        """
        kind = "printed" if self.form == "printed" else "convex" if has_minimiser(model) else "net"
        values = dict(DEFAULTS[kind])
        if self.held_out is not None:
            values["damping"] = None
        if self.once:
            values["steps"] = 1
        if self.curvature == "local":  # whose system is solved at one damping, the paper's where there is no minimiser
            values |= {"gradient": "forgotten", "damping": values.get("damping", DEFAULTS["printed"]["damping"])}
        found = copy.copy(self)  # `replace` would refuse what only the other form may be told
        for name, value in values.items():
            if getattr(self, name) is None:
                object.__setattr__(found, name, value)
        if found.damping is None and (found.decay != 1 or found.preconditioner != "none"):
            raise ValueError("damping must be given with decay or a preconditioner, got None, which chooses it")
        if found.damping is None and found.tol == 0:
            raise ValueError(f"tol must be > 0 where damping is None, which chooses what reaches it, got {found.tol}")
        return found


def has_minimiser(model: FlatModel) -> bool:
    """Whether undamped steps come to a minimiser: a convex loss with l2, or least squares, which bring their own."""
    return is_convex(model) and (model.l2 > 0 or model.task == "regression")


def decided(value: float | None) -> float:
    """A field that `settled` has decided."""
    assert value is not None
    return value
