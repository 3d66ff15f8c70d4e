"""Certified DFL's grid: which runs its tables and figures ask for.

An `Experiment` holds all parameters of notebook 04_certified_dfl and turns them into the flat configs of the runs in
fu_papers.certified_dfl.runs. Data sets are combined with every split and every topology, as in Tables I to IV, but for
those of `main_only`; Figures 1 and 2 take the first split and the last topology (the paper: IID, Erdős-Rényi).
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
from fu_core.unlearning.du import DU, GRADIENTS
from fu_core.unlearning.method import method as registered
from fu_papers.certified_dfl.parameters import CertifiedDflParameters
from fu_papers.controls import AGAIN, CONTROLS, other_seed
from fu_papers.problems import Setting, plain_fields
from fu_papers.study import Cell

DU_FORMS = ("DU printed", "DU")
METHODS = ("Fine-tune", *DU_FORMS)
WHOLE_CLIENTS = "PDUDT"  # the baseline that forgets nothing else
CONVEX = ("unit_softmax", "softmax_regression")
DRAWS = 5  # of noise in either world, behind every accuracy with noise
OPTIONS = {"Fine-tune": {"rounds": 0}}  # what follows every method, a round on retained data (Remark 1), is all of it
PER_DATASET = (
    "n_train", "n_test", "rounds", "lr", "lr_decay", "momentum", "batch_size", "epochs", "l2",
    "curvature", "printed_curvature", "damping", "curvature_samples", "printed_samples", "pdudt_rounds",
)  # fmt: skip

# DU, one choice changed at a time; "corrected" as the tables use it comes first.
ONE_STEP = {"until": None, "gradient": "retained"}
CHOICES: dict[str, dict[str, Any]] = {
    "corrected": {},
    "one Newton step": ONE_STEP,
    "one step, centred gradient": {**ONE_STEP, "gradient": "centred"},
    "one step, gradient of the forgotten alone": {**ONE_STEP, "gradient": "forgotten"},
    "curvature from all retained samples": {"curvature_samples": None},
    "objective: mean of clients": {"objective": "clients"},
    "one step, client's own curvature": {**ONE_STEP, "gradient": "forgotten", "whose": "local"},
    "one step, damped Fisher": {**ONE_STEP, "curvature": "fisher", "damping": 0.01, "curvature_samples": 500},
    "one step, damped diagonal Fisher": {**ONE_STEP, "curvature": "diagonal_fisher", "damping": 0.01},
}
AS_FEW = "as printed, curvature from as few samples as corrected"
# On nets: which curvature, and how long a step. What is not said is as in the tables.
NET_CHOICES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name}, {gradient} gradient": ("DU", {"curvature": curvature, "gradient": gradient, "curvature_samples": n})
        for name, curvature, n in (
            ("Gauss-Newton", "ggn", 500),
            ("full Fisher", "fisher", 200),
            ("diagonal Fisher", "diagonal_fisher", 500),
        )
        for gradient in ("retained", "centred", "forgotten")
    },
    **{f"as printed, step at most {cap:g} of the model": ("DU printed", {"cap": cap}) for cap in (1.0, 0.3, 0.1, 0.03)},
}
WHOLE = "as printed, full Fisher"  # not its diagonal: what of the printed step is our stand-in's doing
CHOICES_OF: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "sample": NET_CHOICES,  # where "full Fisher, forgotten gradient" is nearly that
    "class": {WHOLE: ("DU printed", {"curvature": "fisher"}), **NET_CHOICES},
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
        for name in self.main_only:
            check_choice("main_only", name, self.datasets, ConfigError)
        check_choice("order", self.order, ORDERS, ConfigError)
        check_choice("net_gradient", self.net_gradient, GRADIENTS, ConfigError)
        for kind in self.net_choices:
            check_choice("net_choices", kind, CHOICES_OF, ConfigError)
        for topology in self.topologies:
            check_choice("topologies", topology, TOPOLOGIES, ConfigError)
        if self.leaving >= self.clients:
            raise ConfigError(f"leaving must be a client, 0 to {self.clients - 1}, got {self.leaving}")
        if self.leaving >= min(self.scale_clients):
            raise ConfigError(
                f"scale_clients must be more than leaving, client {self.leaving}, got {self.scale_clients}"
            )
        for request in itertools.chain(*self.certified().values()):
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
        every = [Place(*parts) for parts in itertools.product(self.datasets, self.splits, self.topologies)]
        return [p for p in every if p.dataset not in self.main_only or p == self.main(p.dataset)]

    def on_last_graph(self, *datasets: str) -> list[Place]:
        """The places of data sets on the last topology, one for every split that they have."""
        return [p for p in self.places() if p.dataset in datasets and p.topology == self.topologies[-1]]

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

    def certified(self) -> dict[str, list[str]]:
        """Kind -> requests whose releases are certified; several come one after the other, each with what was before.

        Beside those of Tables I to IV: half of one client's samples, two clients at once, and sequences of samples, of
        classes and of clients.
        """
        first, more = self.requests(), range(2, self.sequence + 1)
        who = [str((self.leaving + k) % self.clients) for k in range(self.clients - 2)]  # two stay, to be a network
        found = {
            **{kind: [request] for kind, request in first.items()},
            "own": [f"sample-{self.leaving}-0.5"],
            "clients": ["client-" + "-".join(who[:2])],
            "sequence": [self.sequence_request(j) for j in (1, *more)],
            "classes": [first["class"], *(f"classes-{j}-100-from-{self.forget_class}" for j in more)],
            "leavers": ["client-" + "-".join(who[:j]) for j in (1, *more) if j <= len(who)],
        }
        return {kind: requests for kind, requests in found.items() if kind != "clients" or len(who) > 1}

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
            "dense_up_to": 0,
            "tol": 0.1 if corrected and convex else 1e-2,  # steps are repeated; several rough ones take fewest sums
            "iters": 100 if convex else 30,
        }
        samples = self.of_dataset("curvature_samples" if corrected else "printed_samples", dataset)
        options["curvature_samples"] = (samples if corrected else self.at_each(samples)) or None
        if corrected and convex:
            options["until"] = float(self.budget)
        if corrected and not convex:
            options["gradient"] = self.net_gradient
        return options

    def at_each(self, samples: int) -> int:
        """Of so many in all how many a client takes for a curvature of its own, as the printed form has it."""
        return -(-samples // self.clients)

    def sampled(self, dataset: str, name: str) -> str:
        """What a form's curvature is made from, for readers; a dash for methods that have none."""
        if name not in DU_FORMS:
            return "–"
        found = self.options(dataset, name)["curvature_samples"]
        if found is None:
            return "all samples"
        return f"{found:,} samples" + (" a client" if name == "DU printed" else "")

    def unlearning(self, place: Place, seed: int, request: str, name: str, **change: Any) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides the method's hyper-parameters."""
        check_choice("method", name, (*CONTROLS, *METHODS, WHOLE_CLIENTS), ConfigError)
        config = {**self.training(place, seed, request), "method": name, "exact": self.convex(place.dataset)}
        if name == WHOLE_CLIENTS:
            config["pdudt_rounds"] = self.of_dataset("pdudt_rounds", place.dataset)
        if name == AGAIN:
            return {**config, "other_seed": other_seed(seed, self.seeds), "options": {}}
        return {**config, "options": self.options(place.dataset, name, **change)}

    # --- all of them ---

    def cells(self) -> dict[Cell, dict[str, Any]]:
        """Every `unlearn` run with the place of its result."""
        runs: dict[Cell, dict[str, Any]] = {}
        for place, seed, (kind, request) in itertools.product(self.places(), self.seeds, self.requests().items()):
            if kind == "client" and place != self.main(place.dataset):
                continue  # the paper has no table of it: Fig. 1 alone
            for name in (*CONTROLS, *METHODS, *self._others(kind)):
                cell = Cell("tables", place.setting, seed, request, name, condition=place.topology)
                runs[cell] = self.unlearning(place, seed, request, name)
        convex, request = self.main(self.datasets[0]), self.requests()["sample"]
        for seed, (label, change) in itertools.product(self.seeds, CHOICES.items()):
            cell = Cell("choices", convex.setting, seed, request, "DU", label, convex.topology)
            runs[cell] = self.unlearning(convex, seed, request, "DU", **change)
        few = self.of_dataset("curvature_samples", convex.dataset)
        for seed in self.seeds if few != self.of_dataset("printed_samples", convex.dataset) else ():
            cell = Cell("choices", convex.setting, seed, request, "DU printed", AS_FEW, convex.topology)
            runs[cell] = self.unlearning(convex, seed, request, "DU printed", curvature_samples=self.at_each(few))
        seed = self.seeds[0]  # a look, no claim
        for kind, place in itertools.product(self.net_choices, self.on_last_graph(*self.datasets[1:])):
            for label, (name, change) in CHOICES_OF[kind].items():
                cell = Cell("nets", place.setting, seed, self.requests()[kind], name, label, place.topology)
                runs[cell] = self.unlearning(place, seed, self.requests()[kind], name, **change)
        return runs

    @staticmethod
    def _others(kind: str) -> tuple[str, ...]:
        """Methods that serve this granularity alone."""
        return (WHOLE_CLIENTS,) if kind == "client" else ()

    def curves(self) -> dict[tuple[str, str, str, int], dict[str, Any]]:
        """Fig. 1: (data set, "sample" | "client", method, seed) -> config of a `curve` run, at the main place.

        Beside the paper's methods the rounds alone, which follow each of them.
        """
        asked = {
            "sample": [self.sequence_request(j) for j in range(1, self.sequence + 1)],
            "client": [self.requests()["client"]],
        }
        return {
            (dataset, kind, name, seed): {
                **self.training(self.main(dataset), seed),
                "method": name,
                "requests": requests,
                "pdudt_rounds": self.of_dataset("pdudt_rounds", dataset),
                "options": self.options(dataset, name),
                "test_images": 0,  # all
            }
            for dataset, (kind, requests) in itertools.product(self.datasets, asked.items())
            for name, seed in itertools.product(("Retrain", *METHODS, *self._others(kind)), self.seeds)
        }

    def speeds(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Fig. 2: (data set, granularity) -> config of a `speed` run."""
        return {
            (dataset, kind): {
                **self.training(self.main(dataset), self.seeds[0], request),
                "timed_rounds": min(self.timed_rounds, self.of_dataset("rounds", dataset)),
                "variants": {name: self.options(dataset, name) for name in DU_FORMS},
                "pdudt_rounds": self.of_dataset("pdudt_rounds", dataset) if kind == "client" else 0,
            }
            for dataset, (kind, request) in itertools.product(self.datasets, self.requests().items())
        }

    def certificates(self) -> dict[tuple[Place, str, int], dict[str, Any]]:
        """(place, kind of request, seed) -> config of a `certify` run, wherever the loss is convex.

        The printed calibration is shown once, at the main place, for samples.
        """
        places = [place for place in self.places() if self.convex(place.dataset)]
        return {
            (place, kind, seed): {
                **self.training(place, seed, requests[-1]),
                "requests": requests,
                "epsilons": [float(e) for e in self.epsilons],
                "delta": float(self.delta),
                "budget": float(self.budget),
                "draws": DRAWS,
                "du": self.options(place.dataset, "DU"),
                "printed": self.options(place.dataset, "DU printed")
                if (place, kind) == (self.main(self.datasets[0]), "sample")
                else {},
            }
            for place, (kind, requests), seed in itertools.product(places, self.certified().items(), self.seeds)
        }
