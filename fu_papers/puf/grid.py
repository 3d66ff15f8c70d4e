"""PUF's grid: which runs its tables and figures ask for.

An `Experiment` holds all parameters of notebook 01_puf. It turns them into scenarios, one per block of the
paper's tables, and into the flat configs of the runs in fu_papers.puf.runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import model_validator

from fu_core.errors import ConfigError, check_choice, check_count
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import methods as registered_methods
from fu_papers.problems import Setting, client_opt, plain_fields
from fu_papers.puf.parameters import PufParameters
from fu_papers.study import Cell

REFERENCES = ("Original", "Retrain")
PUFS = ("PUF-Special", "PUF-Regular")
METHODS = ("Natural", "FedEraser", "PGA", "MoDe", "FedAU", "NoT", *PUFS)
SHOWN = (*REFERENCES, *METHODS)
HOSPITALS = 6  # of ProstateMRI and of the phantom
SWEPT_AGAINST = ("Natural", "NoT", "PGA")  # Fig. 5
OPTIONS = {  # method -> its hyper-parameters that parameters of ours set; the others are what the method registers
    "PUF-Special": {"eta_u": "eta_u_special", "epochs_u": "epochs_u"},
    "PUF-Regular": {"eta_u": "eta_u_regular", "epochs_u": "epochs_u"},
    "FedEraser": {"calibration": "calibration"},
    "PGA": {"stop_distance": "pga_stop"},
    "MoDe": {"momentum": "mode_lambda", "rounds_d": "mode_rounds_d", "rounds_m": "mode_rounds_m"},
    "FedAU": {"epochs": "fed_au_epochs"},
}


@dataclass(frozen=True)
class Scenario:
    """One block of the paper's results: where, who asks, with which seeds and methods."""

    name: str
    heading: str
    settings: Sequence[str]
    requests: Sequence[str]
    seeds: Sequence[int]
    methods: Sequence[str] = SHOWN
    training: Mapping[str, Any] = field(default_factory=dict)  # what differs from the main scenario's training


class Experiment(PufParameters):
    """All parameters of notebook 01_puf, and the runs that they ask for."""

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        """What one value says about another. Raises ConfigError naming them."""
        check_count("clients", self.clients, least=2, error=ConfigError)  # one leaves, and somebody must stay
        known = [m for m, about in registered_methods().items() if "server" in about.exchanges and m not in SHOWN]
        for name in self.further_methods:
            check_choice("further_methods", name, known, ConfigError)
        for pair in self.pairs:
            if len(pair) != 2:
                raise ConfigError(f"pairs must each name two different clients, got {pair}")
        if self.pair_settings and (not self.pairs or self.clients < 3):
            raise ConfigError(
                f"pairs must list at least one, of at least 3 clients, got {self.pairs} of {self.clients}"
            )
        if self.segmentation_settings and not self.segmentation_targets:
            raise ConfigError("segmentation_targets must name at least one hospital, got none")
        asked = self.pairs if self.pair_settings else ()  # who has no use for pairs need not change the default
        of = [("targets", self.targets, self.clients), ("segmentation_targets", self.segmentation_targets, HOSPITALS)]
        for name, wanted, there in [*of, *(("pairs", pair, self.clients) for pair in asked)]:
            if outside := [t for t in wanted if t >= there]:
                raise ConfigError(f"{name} names client {outside[0]}, but clients are 0 to {there - 1}")
        if not set(self.few_seeds) <= set(self.seeds):
            raise ConfigError(f"few_seeds must be some of seeds {self.seeds}, got {self.few_seeds}")
        if not set(self.sweep_settings) <= set(self.settings):
            raise ConfigError(f"sweep_settings must be some of settings {self.settings}, got {self.sweep_settings}")
        for _ in (*self.runs(), *self.sweep()):
            pass  # whatever is out of range raises
        return self

    # --- scenarios ---

    @property
    def methods(self) -> tuple[str, ...]:
        """Who unlearns: the paper's methods, and whom the reader adds."""
        return (*METHODS, *self.further_methods)

    def scenarios(self) -> list[Scenario]:
        """All that have a setting, in the order of the paper's tables. The first is the main one."""
        alone = [f"client-{t}" for t in self.targets]
        methods = (*REFERENCES, *self.methods)
        with_history = [m for m in methods if self.history_interval or not registered(m).needs.history]
        found = [
            Scenario("clients", "one client leaves", self.settings, alone, self.seeds, with_history),
            Scenario(
                "long",
                f"one client leaves, E = {self.long_epochs:g}",
                self.long_settings,
                alone,
                self.few_seeds,
                with_history,
                {"epochs": float(self.long_epochs), "rounds": self.long_rounds},
            ),
            Scenario(
                "samples",
                f"{100 * self.sample_fraction:g} % of a client's samples",
                self.sample_settings,
                [f"sample-{t}-{self.sample_fraction:g}" for t in self.targets],
                self.few_seeds,
                with_history,
            ),
            Scenario(
                "pairs",
                "two clients leave at once",
                self.pair_settings,
                [f"client-{a}-{b}" for a, b in self.pairs],
                self.few_seeds,
                with_history,
            ),
            Scenario(
                "transformer",
                "one client leaves, transformer",
                self.transformer_settings,
                alone,
                self.few_seeds,
                with_history,
                {name: getattr(self, f"transformer_{name}") for name in ("rounds", "optimiser", "lr", "weights")},
            ),
            Scenario(
                "segmentation",
                "one hospital leaves",
                self.segmentation_settings,
                [f"client-{t}" for t in self.segmentation_targets],
                self.few_seeds,
                with_history,
                self._segmentation_training(),
            ),
        ]
        return [scenario for scenario in found if scenario.settings]

    def scenario(self, name: str) -> Scenario:
        """The scenario of that name; ConfigError if the experiment has no setting for it."""
        known = {scenario.name: scenario for scenario in self.scenarios()}
        check_choice("scenario", name, known, ConfigError)
        return known[name]

    def _segmentation_training(self) -> dict[str, Any]:
        """Every hospital with all its slices, and a constant learning rate."""
        names = ("n_train", "n_val", "rounds", "epochs", "batch_size", "optimiser", "lr", "weight_decay")
        whole = {"clients": HOSPITALS, "n_test": 0, "lr_decay": 1.0, "momentum": 0.0, "augmentation": "none"}
        return {name: getattr(self, f"segmentation_{name}") for name in names} | whole

    # --- configs of runs ---

    def local(self, scenario: Scenario) -> ClientOpt:
        """The clients' local training."""
        return client_opt({**dict(self), **scenario.training})

    def training(self, scenario: Scenario, setting: str, seed: int, request: str = "none") -> dict[str, Any]:
        """The config of one `train` run: everybody, or what `request` leaves."""
        shared = {name: getattr(self, name) for name in ("clients", "n_train", "n_val", "n_test", "rounds")}
        shared |= {name: value for name, value in scenario.training.items() if name in shared}
        return {
            **asdict(Setting.parse(setting)),
            **shared,
            **plain_fields(self.local(scenario)),
            "seed": seed,
            "request": request,
            "history": self.history_interval if request == "none" else 0,
            "weights": scenario.training.get("weights", ""),
        }

    def unlearning(
        self, scenario: Scenario, setting: str, seed: int, request: str, name: str, **change: Any
    ) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides the method's hyper-parameters, e.g. `form="printed"`."""
        check_choice("method", name, scenario.methods, ConfigError)
        # FedEraser repeats the whole training: there is nothing to recover from
        cap = self.recovery_cap if registered(name).recovers else 0
        set_here = {field: getattr(self, parameter) for field, parameter in OPTIONS.get(name, {}).items()}
        options = plain_fields(registered(name).configured(**{**set_here, **change}))
        # the history is the original training's, which the request refers to
        training = {**self.training(scenario, setting, seed, request), "history": self.history_interval}
        return {**training, "method": name, "cap": cap, "options": options}

    def runs(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Every `unlearn` run of the tables, with the place of its result."""
        for s in self.scenarios():
            for setting, seed, request, method in itertools.product(s.settings, s.seeds, s.requests, s.methods):
                yield Cell(s.name, setting, seed, request, method), self.unlearning(s, setting, seed, request, method)

    def sweep(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Fig. 5 and 6: PUF with other eta_u and E_u, the first seed of the others."""
        plans: list[tuple[str, Sequence[str], dict[str, Sequence[float]], Sequence[float]]] = [
            ("clients", self.sweep_settings, {PUFS[0]: self.sweep_special, PUFS[1]: self.sweep_regular},
             self.sweep_epochs_u),
            ("segmentation", self.segmentation_settings,
             {PUFS[0]: self.segmentation_special, PUFS[1]: self.segmentation_regular}, [1.0]),
        ]  # fmt: skip
        for name, settings, rates, all_epochs_u in plans:
            for setting, (method, etas), epochs_u in itertools.product(settings, rates.items(), all_epochs_u):
                s = self.scenario(name)
                for eta_u, seed, request in itertools.product(etas, self.few_seeds, s.requests):
                    change = {"eta_u": float(eta_u), "epochs_u": float(epochs_u)}
                    variant = f"eta_u={eta_u:g}, E_u={epochs_u:g}"
                    config = self.unlearning(s, setting, seed, request, method, **change)
                    yield Cell(name, setting, seed, request, method, variant), config

    def norms(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """PUF-Special for samples, divided by the target's full size, as the released code does."""
        for s in self.scenarios():
            if s.name == "samples":
                for setting, seed, request in itertools.product(s.settings, s.seeds, s.requests):
                    config = self.unlearning(s, setting, seed, request, PUFS[0], special_sample_norm="full")
                    yield Cell(s.name, setting, seed, request, PUFS[0], "full"), config

    def printed(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Algorithm 1 without sample counts, on the first setting."""
        s = self.scenarios()[0]
        for seed, request, method in itertools.product(s.seeds, s.requests, PUFS):
            config = self.unlearning(s, self.settings[0], seed, request, method, form="printed")
            yield Cell(s.name, self.settings[0], seed, request, method, "printed"), config
