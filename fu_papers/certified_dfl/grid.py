"""Certified DFL's experiments as parameters: what a notebook or profile says, checked.

An `Experiment` holds all parameters of notebook 04_certified_dfl and turns them into the flat configs of the
runs in fu_papers.certified_dfl.runs. Every data set is combined with every split and every topology, as in
Tables I to IV; Figures 1 and 2 take the first split and the last topology (the paper: IID, Erdős-Rényi).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from fu_core.errors import ConfigError, check_choice, check_count, check_positive
from fu_core.federation.decentralised import TOPOLOGIES
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.certified import DU
from fu_papers.problems import Setting, plain_fields

REFERENCES = ("Original", "Retrain")
DU_FORMS = ("DU printed", "DU")
METHODS = ("Fine-tune", *DU_FORMS)
WHOLE_CLIENTS = "PDUDT"  # the baseline that forgets nothing else
CONVEX = ("unit_softmax", "softmax_regression")

# DU, one choice changed at a time; "corrected" and "printed" as the tables use them come first.
CHOICES: dict[str, dict[str, Any]] = {
    "corrected": {},
    "curvature from all retained samples": {"curvature_samples": None},
    "gradient of the retained loss": {"gradient": "retained"},
    "objective: mean of clients": {"objective": "clients"},
    "client's own curvature": {"whose": "local"},
    "damped Fisher": {"curvature": "fisher", "damping": 0.01, "curvature_samples": 500},
    "damped diagonal Fisher": {"curvature": "diagonal_fisher", "damping": 0.01},
}


class Place(NamedTuple):
    """One cell of Tables I to IV: a data set with its net, a split, a topology."""

    dataset: str  # dataset/model
    split: str
    topology: str

    @property
    def setting(self) -> str:
        """As `Setting.parse` reads it."""
        name, model = self.dataset.split("/")
        return f"{name}/{self.split}/{model}"


class Cell(NamedTuple):
    """Where a run's result belongs."""

    group: str  # "tables", "choices"
    request: str
    place: Place
    seed: int
    method: str


@dataclass(frozen=True)
class Experiment:
    """All parameters of notebook 04_certified_dfl, with the same names. Lists marked * have one value per data set."""

    profile: str
    datasets: Sequence[str]  # data set / net; the first is the convex one
    splits: Sequence[str]
    topologies: Sequence[str]
    seeds: Sequence[int]
    n_train: Sequence[int]  # *
    n_test: Sequence[int]  # *
    rounds: Sequence[int]  # * K
    lr: Sequence[float]  # *
    lr_decay: Sequence[float]  # *
    momentum: Sequence[float]  # *
    batch_size: Sequence[int]  # *
    epochs: Sequence[float]  # * per round
    l2: Sequence[float]  # * lambda
    curvature: Sequence[str]  # * of the corrected form
    printed_curvature: Sequence[str]  # * of the printed form
    damping: Sequence[float]  # *
    curvature_samples: Sequence[int]  # * of the corrected form; 0: all
    clients: int = 10
    edge_probability: float = 0.4
    order: str = "cta"
    fraction: float = 0.1  # sample-wise: of every client's samples
    forget_class: int = 0  # class-wise
    leaving: int = 0  # client-wise
    sequence: int = 3  # Fig. 1: requests one after the other,
    sequence_fraction: float = 0.2  # in all
    cap: float = 0.1  # nets: the correction is at most so long, as a share of the model
    pdudt_rounds: int = 5  # Fig. 1, 2: rounds after PDUDT's replay (paper: 200)
    epsilons: Sequence[float] = (0.5, 1.0, 5.0, 10.0)
    delta: float = 1e-5
    budget: float = 0.01  # the distance to retraining the noise is to cover
    timed_rounds: int = 3

    def __post_init__(self) -> None:
        for name in ("datasets", "splits", "topologies", "seeds", "epsilons"):
            values = list(getattr(self, name))
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} must list at least one value, each once, got {values}")
        for name in PER_DATASET:
            if len(getattr(self, name)) != len(self.datasets):
                raise ConfigError(
                    f"{name} must have one value per data set ({len(self.datasets)}), got {list(getattr(self, name))}"
                )
        for text in self.datasets:
            if text.count("/") != 1:
                raise ConfigError(f"datasets must look like 'mnist/unit_softmax', got {text!r}")
        if self.datasets[0].split("/")[1] not in CONVEX:
            raise ConfigError(f"datasets must begin with a convex net, one of {CONVEX}, got {self.datasets[0]!r}")
        check_positive("l2 of the first data set", self.l2[0], ConfigError)  # strong convexity, for the certificates
        for topology in self.topologies:
            check_choice("topologies", topology, TOPOLOGIES, ConfigError)
        check_count("clients", self.clients, least=3, error=ConfigError)
        for name in ("sequence", "pdudt_rounds", "timed_rounds"):
            check_count(name, getattr(self, name), error=ConfigError)
        for rounds in self.rounds:
            check_count("rounds", rounds, error=ConfigError)
        for name in ("fraction", "sequence_fraction", "edge_probability"):
            check_positive(name, getattr(self, name), ConfigError)
        for name in ("fraction", "sequence_fraction", "delta"):
            if not getattr(self, name) < 1:
                raise ConfigError(f"{name} must be < 1, got {getattr(self, name)}")
        for value in (*self.epsilons, self.budget, self.cap, self.delta):
            check_positive("epsilons, budget, cap and delta", value, ConfigError)
        if not 0 <= self.leaving < self.clients:
            raise ConfigError(f"leaving must be a client, 0 to {self.clients - 1}, got {self.leaving}")
        check_count("forget_class", self.forget_class, least=0, error=ConfigError)
        for samples in self.curvature_samples:
            check_count("curvature_samples", samples, least=0, error=ConfigError)
        for place in self.places():
            Setting.parse(place.setting)
            for seed in self.seeds:
                self.training(place, seed)
                for method in DU_FORMS:
                    self.du(place.dataset, method)

    def places(self) -> list[Place]:
        """Every combination of data set, split and topology, in the order of Tables I to IV."""
        return [Place(*parts) for parts in itertools.product(self.datasets, self.splits, self.topologies)]

    def main(self, dataset: str) -> Place:
        """Where Figures 1 and 2 are made: the first split, the last topology."""
        return Place(dataset, self.splits[0], self.topologies[-1])

    def of(self, name: str, dataset: str) -> Any:
        """The value of a per-data-set parameter."""
        return getattr(self, name)[list(self.datasets).index(dataset)]

    def convex(self, dataset: str) -> bool:
        """Does a certificate make sense there?"""
        return dataset.split("/")[1] in CONVEX and self.of("l2", dataset) > 0

    def local(self, dataset: str) -> ClientOpt:
        """The clients' local training."""
        return ClientOpt(
            lr=float(self.of("lr", dataset)),
            lr_decay=float(self.of("lr_decay", dataset)),
            momentum=float(self.of("momentum", dataset)),
            epochs=float(self.of("epochs", dataset)),
            batch_size=self.of("batch_size", dataset),
        )

    def training(self, place: Place, seed: int, request: str = "none") -> dict[str, Any]:
        """The config of one `train` run: K rounds on what `request` leaves."""
        name, model = place.dataset.split("/")
        setting = Setting.parse(f"{name}/{place.split}/{model}")
        return {
            **{f.name: getattr(setting, f.name) for f in fields(Setting)},
            "clients": self.clients,
            "n_train": self.of("n_train", place.dataset),
            "n_val": 0,
            "n_test": self.of("n_test", place.dataset),
            "l2": float(self.of("l2", place.dataset)),
            "topology": place.topology,
            "edge_probability": float(self.edge_probability),
            "order": self.order,
            "rounds": self.of("rounds", place.dataset),
            **plain_fields(self.local(place.dataset)),
            "seed": seed,
            "request": request,
        }

    def requests(self) -> dict[str, str]:
        """Granularity -> request, as `fu_papers.certified_dfl.runs.forget_of` reads it."""
        return {
            "sample": f"sample-{self.fraction:g}",
            "class": f"class-{self.forget_class}",
            "client": f"client-{self.leaving}",
        }

    def sequence_request(self, j: int) -> str:
        """The first j of the sequential requests together."""
        return f"sequence-{j}-{self.sequence}-{self.sequence_fraction:g}"

    def du(self, dataset: str, method: str, **change: Any) -> DU:
        """The method's options on a data set. On nets the printed form is the paper's diagonal Fisher, damped."""
        convex = self.convex(dataset)
        corrected = method == "DU"
        options: dict[str, Any] = {
            "form": "corrected" if corrected else "printed",
            "curvature": self.of("curvature" if corrected else "printed_curvature", dataset),
            "objective": "samples",  # rounds of one epoch weigh clients by their samples
            "damping": float(self.of("damping", dataset)),
            "cap": None if convex else float(self.cap),
            "tol": 1e-3,
            "iters": 100 if convex else 20,
        }
        samples = self.of("curvature_samples", dataset)
        if corrected:
            options["curvature_samples"] = samples or None
        elif "fisher" in options["curvature"]:  # "even with relatively small sample sizes" (Sec. IV-D), at each client
            options["curvature_samples"] = -(-samples // self.clients) or None
        return DU(**{**options, **change})

    def unlearning(self, place: Place, seed: int, request: str, method: str, **change: Any) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides fields of DU."""
        check_choice("method", method, (*REFERENCES, *METHODS, WHOLE_CLIENTS), ConfigError)
        config = {**self.training(place, seed, request), "method": method}
        if method == WHOLE_CLIENTS:
            config["pdudt_rounds"] = self.pdudt_rounds
        if method in DU_FORMS:
            config["du"] = plain_fields(self.du(place.dataset, method, **change))
        return config

    def cells(self) -> dict[Cell, dict[str, Any]]:
        """Every `unlearn` run with the place of its result."""
        runs: dict[Cell, dict[str, Any]] = {}
        for place, seed, (granularity, request) in itertools.product(
            self.places(), self.seeds, self.requests().items()
        ):
            if granularity == "client" and place != self.main(place.dataset):
                continue  # the paper has no table of it: Fig. 1 alone
            methods = (*REFERENCES, *METHODS) + ((WHOLE_CLIENTS,) if granularity == "client" else ())
            for method in methods:
                runs[Cell("tables", granularity, place, seed, method)] = self.unlearning(place, seed, request, method)
        convex = self.main(self.datasets[0])
        for seed, (label, change) in itertools.product(self.seeds, CHOICES.items()):
            config = self.unlearning(convex, seed, self.requests()["sample"], "DU", **change)
            runs[Cell("choices", label, convex, seed, "DU")] = config
        return runs

    def trainings(self) -> list[dict[str, Any]]:
        """The configs of all `train` runs that `cells` need."""
        found: dict[str, dict[str, Any]] = {}
        for config in self.cells().values():
            training = {key: config[key] for key in self.training(self.places()[0], 0)}
            for one in (training | {"request": "none"}, training):
                found[repr(sorted(one.items()))] = one
        return list(found.values())

    def curves(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """Fig. 1: (data set, "sample" | "client", method) -> config of a `curve` run, first seed."""
        runs = {}
        for dataset in self.datasets:
            for granularity in ("sample", "client"):
                methods = ("Retrain", *DU_FORMS) + ((WHOLE_CLIENTS,) if granularity == "client" else ())
                for method in methods:
                    requests = (
                        [self.sequence_request(j) for j in range(1, self.sequence + 1)]
                        if granularity == "sample"
                        else [self.requests()["client"]]
                    )
                    config = {**self.training(self.main(dataset), self.seeds[0]), "method": method}
                    config |= {"requests": requests, "pdudt_rounds": self.pdudt_rounds}
                    if method in DU_FORMS:
                        config["du"] = plain_fields(self.du(dataset, method))
                    runs[dataset, granularity, method] = config
        return runs

    def speeds(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Fig. 2: (data set, granularity) -> config of a `speed` run."""
        runs = {}
        for dataset, (granularity, request) in itertools.product(self.datasets, self.requests().items()):
            runs[dataset, granularity] = {
                **self.training(self.main(dataset), self.seeds[0], request),
                "timed_rounds": min(self.timed_rounds, self.of("rounds", dataset)),
                "variants": {method: plain_fields(self.du(dataset, method)) for method in DU_FORMS},
                "pdudt_rounds": self.pdudt_rounds if granularity == "client" else 0,
            }
        return runs

    def certificates(self) -> list[dict[str, Any]]:
        """The configs of the `certify` runs: the convex data set, sample-wise, every seed; nothing sampled."""
        exactly = {"gradient": "retained", "curvature_samples": None, "tol": 1e-6, "iters": 200}
        convex = self.main(self.datasets[0])
        return [
            {
                **self.training(convex, seed, self.requests()["sample"]),
                "epsilons": [float(e) for e in self.epsilons],
                "delta": float(self.delta),
                "budget": float(self.budget),
                "du": plain_fields(self.du(convex.dataset, "DU", **exactly)),
                "printed": plain_fields(self.du(convex.dataset, "DU printed")),
            }
            for seed in self.seeds
        ]


PER_DATASET = (
    "n_train", "n_test", "rounds", "lr", "lr_decay", "momentum", "batch_size", "epochs", "l2",
    "curvature", "printed_curvature", "damping", "curvature_samples",
)  # fmt: skip
