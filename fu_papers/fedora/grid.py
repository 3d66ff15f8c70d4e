"""FedORA's experiments as parameters: which trainings, requests and methods its tables and figures need."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fu_core.errors import ConfigError, check_choice, check_count, check_positive
from fu_core.federation.local import ClientOpt
from fu_core.models.bottoms import BOTTOMS
from fu_core.unlearning.fedora import FedORA
from fu_papers.problems import plain_fields

REFERENCES = ("Original", "Retrain")
# The default; the paper's element-wise dual; and a threshold that retraining could meet: what samples of the same
# classes that were held out already show (errata F1). The last has no meaning where whole classes go.
FORMS = ("FedORA", "FedORA vector", "FedORA calibrated")
BASELINES = ("GA", "ICO", "CVFU")
METHODS = (*BASELINES, *FORMS)
BINARY = ("breast_cancer", "adult")  # label unlearning would leave one class

# FedORA, one choice changed at a time (Table VII, and the readings of a lost formula).
ABLATIONS: dict[str, dict[str, Any]] = {
    "FedORA": {},
    "w/o UL": {"unlearn": False},
    "w/o AB": {"ratio": 1.0},
    "w/o AS": {"adaptive": False},
}
READINGS: dict[str, dict[str, Any]] = {
    "scalar dual (default)": {},
    "score beta (H - KL)": {"score": "scaled"},
    "score H - beta KL(U||p)": {"score": "reverse"},
    "gradient of the score anew in each substep": {"refresh": True},
    "proximal weight 0": {"mu": 0.0},
    "steps large enough to meet the constraint": {"tau": 0.05, "sigma": 1.0},
}


class Task(NamedTuple):
    """What is learnt, and what of it is to be forgotten."""

    dataset: str  # dataset/bottom
    request: str  # "classes-2-50": of classes 1 and 2 half the samples; "samples-50": 50 random ones
    noise: float = 0.0  # on the first party's images: standard deviation in units of 0 to 1
    dp_std: float = 0.0  # on the embeddings
    dp_clip: float = 0.0

    @property
    def labels(self) -> bool:
        """Do whole classes go?"""
        return self.request.startswith("classes-") and self.request.endswith("-100")


class Cell(NamedTuple):
    """Where a run's result belongs."""

    group: str  # "main", "noisy", "ablation", "readings", "weights", "ratios", "small", "private"
    task: Task
    seed: int
    method: str
    label: str  # the choice within the group, or the method
    poison: bool


@dataclass(frozen=True)
class Experiment:
    """All parameters of notebook 03_fedora, with the same names. Lists marked * have one value per data set."""

    profile: str
    datasets: Sequence[str]  # data set / bottom net; sweeps are made on the last
    seeds: Sequence[int]
    classes: Sequence[Sequence[int]]  # * how many classes lose samples: m, per setting
    percents: Sequence[Sequence[int]]  # * and how many percent of them: n, per setting
    n_train: Sequence[int]  # * 0: all
    n_val: Sequence[int]  # * held out of the training set for the calibrated threshold
    n_test: Sequence[int]  # *
    epochs: Sequence[int]  # *
    lr: Sequence[float]  # *
    batch_size: Sequence[int]  # *
    lr_decay: float = 0.99
    momentum: float = 0.9
    weight_decay: float = 0.0005
    threshold: float = 0.95
    weight: float = 1.0
    tau: float = 0.02
    sigma: float = 0.1
    sigma_vector: float = 10.0  # of the element-wise dual, which multiplies two gradients
    mu: float = 0.001
    iterations: int = 20
    ratio: float = 0.05
    ga_lr: float = 0.001
    ga_epochs: int = 5
    ico_scale: float = 1.0  # kappa
    ico_share: float = 0.5  # gamma
    cvfu_epochs: int = 5
    cvfu_lr: float = 0.005  # its confidences are an epoch old: steps of training's size diverge
    weights: Sequence[float] = (0.5, 1.0, 5.0, 10.0, 20.0)  # Fig. 8a
    ratios: Sequence[float] = (0.0, 0.01, 0.05, 0.1, 0.5, 1.0)  # Fig. 8b
    few: Sequence[int] = (50, 1)  # Table VIII
    few_ratios: Sequence[float] = (0.0, 0.01)
    party_noise: float = 0.2  # Table VI, once chosen so that Retrain loses about 8 points
    embedding_noise: Sequence[float] = (5.0, 1.0, 0.5, 0.1)  # Table IX
    clip: float = 1.0  # Table IX, the rows with an (epsilon, delta)
    delta: float = 1e-5
    repeats: int = 3  # timings

    def __post_init__(self) -> None:
        for name in ("datasets", "seeds", "weights", "ratios", "few", "few_ratios", "embedding_noise"):
            values = list(getattr(self, name))
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} must list at least one value, each once, got {values}")
        for name in PER_DATASET:
            if len(getattr(self, name)) != len(self.datasets):
                given = list(getattr(self, name))
                raise ConfigError(f"{name} must have one value per data set ({len(self.datasets)}), got {given}")
        for text, m, n in zip(self.datasets, self.classes, self.percents, strict=True):
            if text.count("/") != 1:
                raise ConfigError(f"datasets must look like 'mnist/cnn', got {text!r}")
            check_choice(f"bottom of {text!r}", text.split("/")[1], BOTTOMS, ConfigError)
            if len(m) != len(n) or not m:
                raise ConfigError(f"classes and percents of {text!r} must be equally many, got {m} and {n}")
            for count, percent in zip(m, n, strict=True):
                check_count("classes", count, error=ConfigError)
                if not 0 < percent < 100:
                    raise ConfigError(f"percents must lie between 0 and 100, got {percent}")
        for name, counts in (("epochs", self.epochs), ("n_val", self.n_val), ("few", self.few)):
            for count in counts:
                check_count(name, count, error=ConfigError)
        for name, counts in (("n_train", self.n_train), ("n_test", self.n_test)):
            for count in counts:
                check_count(name, count, least=0, error=ConfigError)
        for name in ("ga_epochs", "cvfu_epochs", "repeats"):
            check_count(name, getattr(self, name), error=ConfigError)
        for name in ("ga_lr", "ico_scale", "clip", "delta", "party_noise", "sigma_vector", "cvfu_lr"):
            check_positive(name, getattr(self, name), ConfigError)
        for std in self.embedding_noise:
            check_positive("embedding_noise", std, ConfigError)
        for name in ("delta", "threshold"):
            if not getattr(self, name) <= 1:
                raise ConfigError(f"{name} must be at most 1, got {getattr(self, name)}")
        if not 0 < self.ico_share <= 1:
            raise ConfigError(f"ico_share must lie in (0, 1], got {self.ico_share}")
        for ratio in (*self.ratios, *self.few_ratios):
            FedORA(ratio=ratio)
        for dataset in self.datasets:
            self.local(dataset)
            for weight in (self.weight, *self.weights):
                self.settings(dataset, weight=weight)

    def of(self, name: str, dataset: str) -> Any:
        """The value of a per-data-set parameter."""
        return getattr(self, name)[list(self.datasets).index(dataset)]

    def local(self, dataset: str) -> ClientOpt:
        """Every party's training; `lr_decay` per epoch."""
        return ClientOpt(
            lr=float(self.of("lr", dataset)),
            lr_decay=float(self.lr_decay),
            momentum=float(self.momentum),
            weight_decay=float(self.weight_decay),
            batch_size=self.of("batch_size", dataset),
        )

    def settings(self, dataset: str, **change: Any) -> FedORA:
        """FedORA's options on a data set."""
        options = {
            "threshold": float(self.threshold),
            "weight": float(self.weight),
            "tau": float(self.tau),
            "sigma": float(self.sigma),
            "mu": float(self.mu),
            "iterations": self.iterations,
            "ratio": float(self.ratio),
            "batch_size": self.of("batch_size", dataset),
        }
        return FedORA(**{**options, **change})

    # --- tasks -------------------------------------------------------------------------------------------------------

    def sample_tasks(self, dataset: str) -> list[Task]:
        """The paper's settings (m, n) of sample unlearning."""
        m, n = self.of("classes", dataset), self.of("percents", dataset)
        return [Task(dataset, f"classes-{count}-{percent}") for count, percent in zip(m, n, strict=True)]

    def label_tasks(self, dataset: str) -> list[Task]:
        """The same classes with all their samples; none where only one class would be left."""
        if dataset.split("/")[0] in BINARY:
            return []
        return [Task(dataset, f"classes-{count}-100") for count in dict.fromkeys(self.of("classes", dataset))]

    @property
    def main(self) -> Task:
        """Where ablations and sweeps are made: the last data set's first setting (the paper's: CIFAR-10, m=2, n=50)."""
        return self.sample_tasks(self.datasets[-1])[0]

    def backdoored(self, task: Task) -> bool:
        """Is there a poisoned twin? Of each data set's first settings, and of all variations of the main one."""
        first = [tasks[0] for d in self.datasets for tasks in (self.sample_tasks(d), self.label_tasks(d)) if tasks]
        return task in first or (task.dataset, task.request) == (self.main.dataset, self.main.request)

    # --- configs of runs ---------------------------------------------------------------------------------------------

    def training(self, task: Task, seed: int, *, exclude: bool, poison: bool) -> dict[str, Any]:
        """The config of one `train` run: all samples, or what the request leaves. Only what it depends on."""
        name, bottom = task.dataset.split("/")
        depends = exclude or poison
        return {
            "dataset": name,
            "bottom": bottom,
            "n_train": self.of("n_train", task.dataset),
            "n_val": self.of("n_val", task.dataset),
            "n_test": self.of("n_test", task.dataset),
            "noise": float(task.noise),
            "dp_std": float(task.dp_std),
            "dp_clip": float(task.dp_clip),
            **plain_fields(self.local(task.dataset)),
            "epochs": self.of("epochs", task.dataset),  # of the whole training
            "seed": seed,
            "request": task.request if depends else "none",
            "exclude": exclude,
            "poison": poison,
        }

    def unlearning(self, task: Task, seed: int, method: str, *, poison: bool, **change: Any) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides fields of FedORA."""
        check_choice("method", method, (*REFERENCES, *METHODS), ConfigError)
        config = {**self.training(task, seed, exclude=False, poison=poison), "request": task.request, "method": method}
        if method in FORMS:
            dual = self.vector if method == "FedORA vector" else {}
            config["fedora"] = plain_fields(self.settings(task.dataset, **{**dual, **change}))
        return config | self.baseline(method)

    @property
    def vector(self) -> dict[str, Any]:
        """What differs for the element-wise dual."""
        return {"dual": "vector", "sigma": float(self.sigma_vector)}

    def baseline(self, method: str) -> dict[str, Any]:
        """A baseline's own parameters."""
        if method == "GA":
            return {"ga_lr": float(self.ga_lr), "ga_epochs": self.ga_epochs}
        if method == "ICO":
            return {"ico_scale": float(self.ico_scale), "ico_share": float(self.ico_share)}
        return {"cvfu_epochs": self.cvfu_epochs, "cvfu_lr": float(self.cvfu_lr)} if method == "CVFU" else {}

    def cells(self) -> dict[Cell, dict[str, Any]]:
        """Every `unlearn` run with the place of its result."""
        runs: dict[Cell, dict[str, Any]] = {}

        def add(group: str, task: Task, method: str, label: str = "", **change: Any) -> None:
            for seed, poison in itertools.product(self.seeds, (False, True)):
                if poison and not self.backdoored(task):
                    continue
                config = self.unlearning(task, seed, method, poison=poison, **change)
                runs[Cell(group, task, seed, method, label or method, poison)] = config

        for dataset in self.datasets:
            for task in (*self.sample_tasks(dataset), *self.label_tasks(dataset)):
                for method in (*REFERENCES, *METHODS):
                    if not (task.labels and method == "FedORA calibrated"):
                        add("main", task, method)
        main = self.main
        for method in (*REFERENCES, *METHODS):
            add("noisy", main._replace(noise=float(self.party_noise)), method)
        for group, choices in (("ablation", ABLATIONS), ("readings", READINGS | {"element-wise dual": self.vector})):
            for label, change in choices.items():
                add(group, main, "FedORA", label, **change)
        for weight in self.weights:
            add("weights", main, "FedORA", f"{weight:g}", weight=float(weight))
        for ratio in self.ratios:
            add("ratios", main, "FedORA", f"{ratio:g}", ratio=float(ratio))
        for count, ratio in itertools.product(self.few, self.few_ratios):
            task = main._replace(request=f"samples-{count}")
            add("small", task, "FedORA", f"{ratio:g}", ratio=float(ratio))
        for count, method in itertools.product(self.few, REFERENCES):
            add("small", main._replace(request=f"samples-{count}"), method)
        for std, clip in [*((std, 0.0) for std in self.embedding_noise), (min(self.embedding_noise), self.clip)]:
            for method in (*REFERENCES, "FedORA"):
                add("private", main._replace(dp_std=float(std), dp_clip=float(clip)), method)
        return runs

    def trainings(self) -> list[dict[str, Any]]:
        """The configs of all `train` runs that `cells` need."""
        found: dict[str, dict[str, Any]] = {}
        for cell in self.cells():
            for exclude, poison in ((False, cell.poison), (True, False)):
                one = self.training(cell.task, cell.seed, exclude=exclude, poison=poison)
                found[repr(sorted(one.items()))] = one
        return list(found.values())

    def speeds(self) -> dict[Task, dict[str, Any]]:
        """Table III: each data set's first setting -> config of a `speed` run."""
        runs = {}
        for dataset in self.datasets:
            task = self.sample_tasks(dataset)[0]
            config = self.unlearning(task, self.seeds[0], "FedORA", poison=False)
            for method in BASELINES:
                config |= self.baseline(method)
            runs[task] = {**config, "method": "all", "repeats": self.repeats}
        return runs


PER_DATASET = ("classes", "percents", "n_train", "n_val", "n_test", "epochs", "lr", "batch_size")
