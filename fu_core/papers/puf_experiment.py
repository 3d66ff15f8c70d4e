"""PUF's experiments as parameters: what a notebook or profile says, checked, and the problem it describes.

An `Experiment` holds all parameters of notebook 01_puf. It turns them into the flat configs of the runs
in fu_core.papers.puf; `problem` turns a config into data, clients and a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fu_core import partition
from fu_core.compute import device
from fu_core.data import Dataset, load
from fu_core.errors import ConfigError, check_choice, check_count, check_positive
from fu_core.federation.local import Client, ClientOpt
from fu_core.models import MODELS, FlatModel, build
from fu_core.unlearning.puf import PUF

REFERENCES = ("Original", "Retrain")
METHODS = ("Natural", "NoT", "PUF-Special", "PUF-Regular")
SMALLEST_CLIENT = 10
DATASET_TITLES = {"digits": "Digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10",
                  "cifar100": "CIFAR-100", "tiny_imagenet_100": "Tiny-ImageNet-100"}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One data set, one way to split it, one net, written as `dataset/split/model`.

    The split is `iid` or `dirichlet-<alpha>`: "fashion_mnist/dirichlet-0.3/tiny_cnn".
    """

    dataset: str
    split: str
    alpha: float  # 0 for iid
    model: str

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Read `dataset/split/model`; raises ConfigError naming the part that is wrong."""
        parts = text.split("/")
        if len(parts) != 3:
            raise ConfigError(f"settings must look like 'digits/dirichlet-0.3/tiny_cnn', got {text!r}")
        dataset, split, model = parts
        kind, _, number = split.partition("-")
        check_choice(f"split of {text!r}", kind, ("iid", "dirichlet"), ConfigError)
        check_choice(f"model of {text!r}", model, MODELS, ConfigError)
        try:
            alpha = float(number) if kind == "dirichlet" else 0.0
        except ValueError:
            raise ConfigError(f"alpha of {text!r} must be a number, got {number!r}") from None
        if split.startswith("iid-"):
            raise ConfigError(f"split of {text!r} must be 'iid' alone, which takes no alpha, got {split!r}")
        if kind == "dirichlet":
            check_positive(f"alpha of {text!r}", alpha, ConfigError)
        return cls(dataset, kind, alpha, model)

    @property
    def title(self) -> str:
        """For headings: "CIFAR-10, Dirichlet 0.3"."""
        return f"{DATASET_TITLES.get(self.dataset, self.dataset)}, " + (
            f"Dirichlet {self.alpha:g}" if self.alpha else "IID"
        )


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
        shared = _plain(self)
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
            config["puf"] = _plain(PUF(**{"mode": mode, "eta_u": eta_u, "epochs_u": self.epochs_u, **change}))
        return config

    def cells(self) -> Iterator[tuple[str, int, int]]:
        """Every (setting, seed, target)."""
        return ((s, seed, t) for s in self.settings for seed in self.seeds for t in self.targets)


def _plain(values: Experiment | PUF) -> dict[str, Any]:
    """The fields by name, for a config: 2 and 2.0 must name the same run."""
    return {
        f.name: float(getattr(values, f.name)) if f.type == "float" else getattr(values, f.name) for f in fields(values)
    }


@dataclass(frozen=True)
class Problem:
    """A data set dealt out to clients, with the net that is to learn it.

    What is trained and evaluated on lies on the computing device; `dataset` and `parts` stay on the CPU.
    """

    dataset: Dataset
    parts: tuple[Tensor, ...]
    clients: list[Client]
    validation: Client
    test: Client
    model: FlatModel

    @property
    def data_hash(self) -> str:
        """Of the data and who holds what."""
        return hashlib.sha256(f"{self.dataset.sha256}/{partition.partition_hash(self.parts)}".encode()).hexdigest()[:16]

    def retained(self, target: int) -> Client:
        """All samples of the other clients, in client order."""
        others = [c for i, c in enumerate(self.clients) if i != target]
        return torch.cat([x for x, _ in others]), torch.cat([y for _, y in others])


def problem(config: Mapping[str, Any]) -> Problem:
    """The problem of a run's config. The split does not depend on the training seed."""
    return _problem(*(config[key] for key in PROBLEM_KEYS))


@lru_cache(maxsize=4)
def _problem(
    name: str, split: str, alpha: float, model: str, clients: int, n_train: int, n_val: int, n_test: int
) -> Problem:
    rest, *held_out = load(name).holdout(n_val, seed=0)
    dataset = rest.subset(n_train or None, n_test or None, seed=0)
    if split == "iid":
        parts = partition.iid(len(dataset.y_train), clients, seed=0)
    else:
        # a client with a handful of samples would have nothing to forget that could be measured
        parts = partition.dirichlet(dataset.y_train, clients, alpha=alpha, seed=0, min_size=SMALLEST_CLIENT)

    def resident(x: Tensor, y: Tensor) -> Client:
        return x.to(device()), y.to(device())

    return Problem(
        dataset,
        tuple(parts),
        [resident(dataset.x_train[p], dataset.y_train[p]) for p in parts],
        resident(*held_out),
        resident(dataset.x_test, dataset.y_test),
        build(model, dataset),
    )


def client_opt(config: Mapping[str, Any]) -> ClientOpt:
    """The local training that a run's config describes."""
    return ClientOpt(**{f.name: config[f.name] for f in fields(ClientOpt)})


PROBLEM_KEYS = ("dataset", "split", "alpha", "model", "clients", "n_train", "n_val", "n_test")
TRAINING_KEYS = tuple(Experiment("", ["digits/iid/mlp"], [0], [0]).training("digits/iid/mlp", 0))
