"""Certified DFL's grid: which runs its tables and figures ask for.

An `Experiment` holds all parameters of notebook 04_certified_dfl and turns them into the flat configs of the runs in
fu_papers.certified_dfl.runs. Every data set is combined with every split and every topology, as in Tables I to IV;
Figures 1 and 2 take the first split and the last topology (the paper: IID, Erdős-Rényi).
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from functools import cache
from typing import Any, NamedTuple

from pydantic import model_validator

from fu_core.errors import ConfigError, check_choice, check_positive
from fu_core.federation.graphs import ORDERS, TOPOLOGIES
from fu_core.federation.local import ClientOpt
from fu_core.request import Request
from fu_core.unlearning.du import DU
from fu_core.unlearning.method import method as registered
from fu_papers.certified_dfl.parameters import CertifiedDflParameters
from fu_papers.problems import Setting, plain_fields
from fu_papers.study import Cell

REFERENCES = ("Original", "Retrain")
DU_FORMS = ("DU printed", "DU")
METHODS = ("Fine-tune", *DU_FORMS)
WHOLE_CLIENTS = "PDUDT"  # the baseline that forgets nothing else
CONVEX = ("unit_softmax", "softmax_regression")
OPTIONS = {"Fine-tune": {"rounds": 0}}  # what follows every method, a round on retained data (Remark 1), is all of it
PER_DATASET = (
    "n_train", "n_test", "rounds", "lr", "lr_decay", "momentum", "batch_size", "epochs", "l2",
    "curvature", "printed_curvature", "damping", "curvature_samples",
)  # fmt: skip

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

    @classmethod
    def of(cls, cell: Cell) -> Place:
        """Where a run's result belongs; the topology is the cell's condition."""
        name, split, model = cell.setting.split("/")
        return cls(f"{name}/{model}", split, cell.condition)


@cache
def granularity(request: str) -> str:
    """What a request takes: "sample", "class" or "client"."""
    return Request.parse(request).kind


class Experiment(CertifiedDflParameters):
    """All parameters of notebook 04_certified_dfl, and the runs that they ask for."""

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        """What one value says about another. Raises ConfigError naming them."""
        for name in PER_DATASET:
            if len(getattr(self, name)) != len(self.datasets):
                raise ConfigError(
                    f"{name} must have one value per data set ({len(self.datasets)}), got {getattr(self, name)}"
                )
        for text in self.datasets:
            if text.count("/") != 1:
                raise ConfigError(f"datasets must look like 'mnist/unit_softmax', got {text!r}")
        if self.datasets[0].split("/")[1] not in CONVEX:
            raise ConfigError(f"datasets must begin with a convex net, one of {CONVEX}, got {self.datasets[0]!r}")
        check_positive("l2 of the first data set", self.l2[0], ConfigError)  # strong convexity, for the certificates
        check_choice("order", self.order, ORDERS, ConfigError)
        for topology in self.topologies:
            check_choice("topologies", topology, TOPOLOGIES, ConfigError)
        if self.leaving >= self.clients:
            raise ConfigError(f"leaving must be a client, 0 to {self.clients - 1}, got {self.leaving}")
        for request in (*self.requests().values(), self.sequence_request(self.sequence)):
            Request.parse(request)
        for place in self.places():
            Setting.parse(place.setting)
            self.training(place, self.seeds[0])  # whatever is out of range raises
            for name in DU_FORMS:
                self.options(place.dataset, name)
        return self

    # --- places and requests ---

    def places(self) -> list[Place]:
        """Every combination of data set, split and topology, in the order of Tables I to IV."""
        return [Place(*parts) for parts in itertools.product(self.datasets, self.splits, self.topologies)]

    def main(self, dataset: str) -> Place:
        """Where Figures 1 and 2 are made: the first split, the last topology."""
        return Place(dataset, self.splits[0], self.topologies[-1])

    def of_dataset(self, name: str, dataset: str) -> Any:
        """The value of a per-data-set parameter."""
        return getattr(self, name)[self.datasets.index(dataset)]

    def convex(self, dataset: str) -> bool:
        """Does a certificate make sense there?"""
        return dataset.split("/")[1] in CONVEX and self.of_dataset("l2", dataset) > 0

    def requests(self) -> dict[str, str]:
        """Granularity -> request."""
        return {
            "sample": f"sample-{self.fraction:g}",
            "class": f"class-{self.forget_class}",
            "client": f"client-{self.leaving}",
        }

    def sequence_request(self, j: int) -> str:
        """The first j of the sequential requests together."""
        return f"sequence-{j}-{self.sequence}-{self.sequence_fraction:g}"

    # --- configs of runs ---

    def local(self, dataset: str) -> ClientOpt:
        """The clients' local training."""
        return ClientOpt(
            lr=float(self.of_dataset("lr", dataset)),
            lr_decay=float(self.of_dataset("lr_decay", dataset)),
            momentum=float(self.of_dataset("momentum", dataset)),
            epochs=float(self.of_dataset("epochs", dataset)),
            batch_size=self.of_dataset("batch_size", dataset),
        )

    def training(self, place: Place, seed: int, request: str = "none") -> dict[str, Any]:
        """The config of one `train` run: K rounds on what `request` leaves."""
        return {
            **asdict(Setting.parse(place.setting)),
            "clients": self.clients,
            "n_train": self.of_dataset("n_train", place.dataset),
            "n_val": 0,
            "n_test": self.of_dataset("n_test", place.dataset),
            "l2": float(self.of_dataset("l2", place.dataset)),
            "topology": place.topology,
            "edge_probability": float(self.edge_probability),
            "order": self.order,
            "rounds": self.of_dataset("rounds", place.dataset),
            **plain_fields(self.local(place.dataset)),
            "seed": seed,
            "request": request,
        }

    def options(self, dataset: str, name: str, **change: Any) -> dict[str, Any]:
        """A method's hyper-parameters on a data set; `change` overrides them."""
        chosen, set_here = registered(name), OPTIONS.get(name, {})
        if chosen.parameters is DU:
            set_here = self._du(dataset, corrected=chosen.preset.get("form") != "printed")
        return plain_fields(chosen.configured(**{**set_here, **change}))

    def _du(self, dataset: str, corrected: bool) -> dict[str, Any]:
        """What our parameters say of DU. On nets the printed form is the paper's diagonal Fisher, damped."""
        convex = self.convex(dataset)
        options: dict[str, Any] = {
            "curvature": self.of_dataset("curvature" if corrected else "printed_curvature", dataset),
            "objective": "samples",  # rounds of one epoch weigh clients by their samples
            "damping": float(self.of_dataset("damping", dataset)),
            "cap": None if convex else float(self.cap),
            "tol": 1e-3,
            "iters": 100 if convex else 20,
        }
        samples = self.of_dataset("curvature_samples", dataset)
        if corrected:
            options["curvature_samples"] = samples or None
        elif "fisher" in options["curvature"]:  # "even with relatively small sample sizes" (Sec. IV-D), at each client
            options["curvature_samples"] = -(-samples // self.clients) or None
        return options

    def unlearning(self, place: Place, seed: int, request: str, name: str, **change: Any) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides the method's hyper-parameters."""
        check_choice("method", name, (*REFERENCES, *METHODS, WHOLE_CLIENTS), ConfigError)
        config = {**self.training(place, seed, request), "method": name}
        if name == WHOLE_CLIENTS:
            config["pdudt_rounds"] = self.pdudt_rounds
        return {**config, "options": self.options(place.dataset, name, **change)}

    # --- all of them ---

    def cells(self) -> dict[Cell, dict[str, Any]]:
        """Every `unlearn` run with the place of its result."""
        runs: dict[Cell, dict[str, Any]] = {}
        for place, seed, (kind, request) in itertools.product(self.places(), self.seeds, self.requests().items()):
            if kind == "client" and place != self.main(place.dataset):
                continue  # the paper has no table of it: Fig. 1 alone
            for name in (*REFERENCES, *METHODS, *self._others(kind)):
                cell = Cell("tables", place.setting, seed, request, name, condition=place.topology)
                runs[cell] = self.unlearning(place, seed, request, name)
        convex, request = self.main(self.datasets[0]), self.requests()["sample"]
        for seed, (label, change) in itertools.product(self.seeds, CHOICES.items()):
            cell = Cell("choices", convex.setting, seed, request, "DU", label, convex.topology)
            runs[cell] = self.unlearning(convex, seed, request, "DU", **change)
        return runs

    @staticmethod
    def _others(kind: str) -> tuple[str, ...]:
        """Methods that serve this granularity alone."""
        return (WHOLE_CLIENTS,) if kind == "client" else ()

    def curves(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """Fig. 1: (data set, "sample" | "client", method) -> config of a `curve` run, first seed."""
        asked = {
            "sample": [self.sequence_request(j) for j in range(1, self.sequence + 1)],
            "client": [self.requests()["client"]],
        }
        return {
            (dataset, kind, name): {
                **self.training(self.main(dataset), self.seeds[0]),
                "method": name,
                "requests": requests,
                "pdudt_rounds": self.pdudt_rounds,
                "options": self.options(dataset, name),
            }
            for dataset, (kind, requests) in itertools.product(self.datasets, asked.items())
            for name in ("Retrain", *DU_FORMS, *self._others(kind))
        }

    def speeds(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Fig. 2: (data set, granularity) -> config of a `speed` run."""
        return {
            (dataset, kind): {
                **self.training(self.main(dataset), self.seeds[0], request),
                "timed_rounds": min(self.timed_rounds, self.of_dataset("rounds", dataset)),
                "variants": {name: self.options(dataset, name) for name in DU_FORMS},
                "pdudt_rounds": self.pdudt_rounds if kind == "client" else 0,
            }
            for dataset, (kind, request) in itertools.product(self.datasets, self.requests().items())
        }

    def certificates(self) -> dict[int, dict[str, Any]]:
        """Seed -> config of a `certify` run: the convex data set, sample-wise; nothing sampled."""
        exactly = {"gradient": "retained", "curvature_samples": None, "tol": 1e-6, "iters": 200}
        convex = self.main(self.datasets[0])
        return {
            seed: {
                **self.training(convex, seed, self.requests()["sample"]),
                "epsilons": [float(e) for e in self.epsilons],
                "delta": float(self.delta),
                "budget": float(self.budget),
                "du": self.options(convex.dataset, "DU", **exactly),
                "printed": self.options(convex.dataset, "DU printed"),
            }
            for seed in self.seeds
        }
