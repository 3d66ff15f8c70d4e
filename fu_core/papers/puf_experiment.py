"""PUF's experiments as parameters: what a notebook or profile says, checked.

An `Experiment` holds all parameters of notebook 01_puf. It turns them into the flat configs of the runs
in fu_core.papers.puf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from fu_core.errors import ConfigError, check_choice, check_count, check_positive
from fu_core.federation.local import ClientOpt
from fu_core.papers.problems import Setting, plain_fields
from fu_core.unlearning.puf import PUF

REFERENCES = ("Original", "Retrain")
METHODS = ("Natural", "NoT", "PUF-Special", "PUF-Regular")

_NOT_FOR_TRAINING = (
    "profile", "settings", "targets", "seeds", "eta_u_special", "eta_u_regular", "epochs_u", "recovery_cap"
)  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """All parameters of notebook 01_puf, with the same names. Checked when made."""

    profile: str
    settings: Sequence[str]
    targets: Sequence[int]  # which clients ask to be forgotten, one per run
    seeds: Sequence[int]  # training seeds: initial weights and batches
    clients: int = 10
    n_train: int = 0  # training images in all; 0 = all there are
    n_val: int = 300  # held out of the training set, for the stop rule
    n_test: int = 0
    rounds: int = 200
    epochs: float = 1.0  # E
    batch_size: int = 32  # B
    optimiser: str = "sgd"
    lr: float = 0.1
    lr_decay: float = 0.998
    momentum: float = 0.0
    weight_decay: float = 1e-3
    augmentation: str = "none"
    eta_u_special: float = 2.0
    eta_u_regular: float = 20.0
    epochs_u: float = 1.0  # E_u, the target's epochs in the unlearning round
    recovery_cap: int = 30

    def __post_init__(self) -> None:
        for text in self.settings:
            Setting.parse(text)
        for name in ("settings", "targets", "seeds"):
            values = list(getattr(self, name))
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} must list at least one value, each once, got {values}")
        check_count("clients", self.clients, least=2, error=ConfigError)  # one leaves, and somebody must stay
        for name in ("rounds", "recovery_cap", "n_val"):
            check_count(name, getattr(self, name), error=ConfigError)
        for name in ("n_train", "n_test"):
            check_count(name, getattr(self, name), least=0, error=ConfigError)
        for name in ("eta_u_special", "eta_u_regular", "epochs_u"):
            check_positive(name, getattr(self, name), ConfigError)
        outside = [t for t in self.targets if not 0 <= t < self.clients]
        if outside:
            raise ConfigError(f"targets names client {outside[0]}, but clients are 0 to {self.clients - 1}")
        self.local()

    def local(self) -> ClientOpt:
        """The clients' local training."""
        names = {f.name for f in fields(ClientOpt)}
        return ClientOpt(**{k: v for k, v in asdict(self).items() if k in names})

    def training(self, setting: str, seed: int, exclude: Sequence[int] = ()) -> dict[str, Any]:
        """The config of one `train` run."""
        s = Setting.parse(setting)
        shared = plain_fields(self)
        for name in _NOT_FOR_TRAINING:
            del shared[name]
        return {**asdict(s), **shared, "seed": seed, "exclude": list(exclude)}

    def unlearning(self, setting: str, seed: int, target: int, method: str, **change: Any) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides fields of PUF, e.g. `form="printed"`."""
        check_choice("method", method, (*REFERENCES, *METHODS), ConfigError)
        config = {**self.training(setting, seed), "target": target, "method": method, "cap": self.recovery_cap}
        if method.startswith("PUF"):
            mode = method.removeprefix("PUF-").lower()
            eta_u = self.eta_u_special if mode == "special" else self.eta_u_regular
            config["puf"] = plain_fields(PUF(**{"mode": mode, "eta_u": eta_u, "epochs_u": self.epochs_u, **change}))
        return config

    def cells(self) -> Iterator[tuple[str, int, int]]:
        """Every (setting, seed, target)."""
        return ((s, seed, t) for s in self.settings for seed in self.seeds for t in self.targets)


TRAINING_KEYS = tuple(Experiment("", ["digits/iid/mlp"], [0], [0]).training("digits/iid/mlp", 0))
