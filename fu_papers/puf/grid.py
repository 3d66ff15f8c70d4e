"""PUF's experiments as parameters: what a notebook or profile says, checked.

An `Experiment` holds all parameters of notebook 01_puf. It turns them into scenarios, one per block of the
paper's tables, and into the flat configs of the runs in fu_papers.puf.runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from fu_core.errors import ConfigError, check_choice, check_count, check_positive, check_share
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.baselines.fed_au import FedAU
from fu_core.unlearning.baselines.mode import MoDe
from fu_core.unlearning.baselines.pga import PGA
from fu_core.unlearning.puf import PUF
from fu_papers.problems import Setting, plain_fields

REFERENCES = ("Original", "Retrain")
PUFS = ("PUF-Special", "PUF-Regular")
METHODS = ("Natural", "FedEraser", "PGA", "MoDe", "FedAU", "NoT", *PUFS)
HOSPITALS = 6  # of ProstateMRI and of the phantom
SETTINGS_OF_SCENARIOS = (
    "long_settings", "sample_settings", "pair_settings", "transformer_settings", "segmentation_settings",
    "segmentation_targets", "sweep_settings",
)  # fmt: skip
COUNTS = {  # parameters by the least they may be
    0: ("n_train", "n_test", "history_interval", "mode_rounds_d", "mode_rounds_m", "segmentation_n_train"),
    1: (
        "rounds", "recovery_cap", "n_val", "fed_au_epochs", "long_rounds", "transformer_rounds", "segmentation_rounds",
        "segmentation_n_val", "segmentation_batch_size",
    ),
}  # fmt: skip
POSITIVE = (  # numbers, or lists of them
    "eta_u_special", "eta_u_regular", "epochs_u", "calibration", "pga_stop", "long_epochs", "transformer_lr",
    "segmentation_epochs", "segmentation_lr", "segmentation_special", "segmentation_regular", "sweep_special",
    "sweep_regular", "sweep_epochs_u",
)  # fmt: skip
SWEPT_AGAINST = ("Natural", "NoT", "PGA")  # Fig. 5


class Cell(NamedTuple):
    """Where the result of an `unlearn` run belongs."""

    scenario: str
    setting: str
    seed: int
    request: str
    method: str
    variant: str = ""  # of PUF: "printed", or "eta_u=5, E_u=1"


@dataclass(frozen=True)
class Scenario:
    """One block of the paper's results: where, who asks, with which seeds and methods."""

    name: str
    heading: str
    settings: Sequence[str]
    requests: Sequence[str]
    seeds: Sequence[int]
    methods: Sequence[str] = (*REFERENCES, *METHODS)
    training: Mapping[str, Any] = field(default_factory=dict)  # what differs from the main scenario's training


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
    history_interval: int = 1  # FedEraser stores the updates of every so-many-th round; 0: no FedEraser
    calibration: float = 0.5  # FedEraser's E_cal / E
    pga_stop: float = 6.5  # PGA ends at this distance from the target's last model
    mode_lambda: float = 0.95
    mode_rounds_d: int = 6
    mode_rounds_m: int = 10
    fed_au_epochs: int = 10
    few_seeds: Sequence[int] = (0,)  # of every scenario but the main one
    long_settings: Sequence[str] = ()  # many local epochs
    long_epochs: float = 10.0
    long_rounds: int = 200
    sample_settings: Sequence[str] = ()  # a part of each target's samples
    sample_fraction: float = 0.5
    pair_settings: Sequence[str] = ()  # two clients at once
    pairs: Sequence[Sequence[int]] = ((0, 1),)
    transformer_settings: Sequence[str] = ()  # MiT-B0
    transformer_rounds: int = 50
    transformer_optimiser: str = "adamw"
    transformer_lr: float = 3e-4
    transformer_weights: str = ""  # a folder with a checkpoint among the data; "": from scratch
    segmentation_settings: Sequence[str] = ()  # one client per hospital
    segmentation_targets: Sequence[int] = (0,)
    segmentation_n_train: int = 0
    segmentation_n_val: int = 30
    segmentation_rounds: int = 500
    segmentation_epochs: float = 1.0
    segmentation_batch_size: int = 16
    segmentation_optimiser: str = "adam"
    segmentation_lr: float = 1e-4
    segmentation_weight_decay: float = 1e-4
    segmentation_special: Sequence[float] = (2.0,)  # Fig. 6
    segmentation_regular: Sequence[float] = (20.0,)
    sweep_settings: Sequence[str] = ()  # Fig. 5
    sweep_special: Sequence[float] = (1.0, 2.0, 4.0)
    sweep_regular: Sequence[float] = (10.0, 20.0, 40.0)
    sweep_epochs_u: Sequence[float] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("settings", "targets", "seeds", "few_seeds"):
            values = list(getattr(self, name))
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} must list at least one value, each once, got {values}")
        check_count("clients", self.clients, least=2, error=ConfigError)  # one leaves, and somebody must stay
        for least, counts in COUNTS.items():
            for name in counts:
                check_count(name, getattr(self, name), least=least, error=ConfigError)
        for name in POSITIVE:
            value = getattr(self, name)
            for one in value if isinstance(value, (list, tuple)) else [value]:
                check_positive(name, one, ConfigError)
        check_share("mode_lambda", self.mode_lambda, ConfigError)
        if self.segmentation_weight_decay < 0:
            raise ConfigError(f"segmentation_weight_decay must be >= 0, got {self.segmentation_weight_decay}")
        for name in SETTINGS_OF_SCENARIOS:
            values = list(getattr(self, name))
            if len(set(values)) != len(values):
                raise ConfigError(f"{name} must list each value once, got {values}")
        for pair in self.pairs:
            if len(pair) != 2 or len(set(pair)) != 2:
                raise ConfigError(f"pairs must each name two different clients, got {list(pair)}")
        if self.pair_settings and (not self.pairs or self.clients < 3):
            raise ConfigError(
                f"pairs must list at least one, of at least 3 clients, got {list(self.pairs)} of {self.clients}"
            )
        if self.segmentation_settings and not self.segmentation_targets:
            raise ConfigError("segmentation_targets must name at least one hospital, got none")
        outside = [t for t in self.segmentation_targets if t >= HOSPITALS]
        if outside:
            raise ConfigError(f"segmentation_targets names hospital {outside[0]}, but they are 0 to {HOSPITALS - 1}")
        if not 0 < self.sample_fraction < 1:
            raise ConfigError(f"sample_fraction must lie between 0 and 1, got {self.sample_fraction}")
        asked = self.pairs if self.pair_settings else ()  # who has no use for pairs need not change the default
        for name, wanted in (("targets", self.targets), *(("pairs", pair) for pair in asked)):
            outside = [t for t in wanted if not 0 <= t < self.clients]
            if outside:
                raise ConfigError(f"{name} names client {outside[0]}, but clients are 0 to {self.clients - 1}")
        for name in ("targets", "segmentation_targets"):
            for target in getattr(self, name):
                check_count(name, target, least=0, error=ConfigError)
        if not set(self.few_seeds) <= set(self.seeds):
            raise ConfigError(f"few_seeds must be some of seeds {list(self.seeds)}, got {list(self.few_seeds)}")
        if not set(self.sweep_settings) <= set(self.settings):
            raise ConfigError(
                f"sweep_settings must be some of settings {list(self.settings)}, got {self.sweep_settings}"
            )
        for _ in (*self.runs(), *self.sweep()):
            pass  # whatever is out of range raises

    # --- scenarios ---

    def scenarios(self) -> list[Scenario]:
        """All that have a setting, in the order of the paper's tables. The first is the main one."""
        alone = [f"client-{t}" for t in self.targets]
        with_history = [m for m in (*REFERENCES, *METHODS) if m != "FedEraser" or self.history_interval]
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
        values = {**vars(self), **scenario.training}
        return ClientOpt(**{f.name: values[f.name] for f in fields(ClientOpt)})

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
        self, scenario: Scenario, setting: str, seed: int, request: str, method: str, **change: Any
    ) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides fields of PUF, e.g. `form="printed"`."""
        check_choice("method", method, (*REFERENCES, *METHODS), ConfigError)
        # FedEraser repeats the whole training: there is nothing to recover from
        cap = 0 if method in ("FedEraser", *REFERENCES) else self.recovery_cap
        own = {"method": method, "cap": cap, "options": self._options(method, change)}
        # the history is the original training's, which the request refers to
        return {**self.training(scenario, setting, seed, request), "history": self.history_interval, **own}

    def _options(self, method: str, change: Mapping[str, Any]) -> dict[str, Any]:
        if method in PUFS:
            mode = method.removeprefix("PUF-").lower()
            eta_u = self.eta_u_special if mode == "special" else self.eta_u_regular
            return plain_fields(PUF(**{"mode": mode, "eta_u": eta_u, "epochs_u": self.epochs_u, **change}))
        if method == "PGA":
            return plain_fields(PGA(stop_distance=float(self.pga_stop)))
        if method == "MoDe":
            rounds = {"rounds_d": self.mode_rounds_d, "rounds_m": self.mode_rounds_m}
            return plain_fields(MoDe(momentum=float(self.mode_lambda), **rounds))
        if method == "FedAU":
            return plain_fields(FedAU(epochs=self.fed_au_epochs))
        return {"calibration": float(self.calibration)} if method == "FedEraser" else {}

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

    def trainings(self) -> Iterator[tuple[tuple[str, str, int, str], dict[str, Any]]]:
        """Every `train` run that `runs` need: (scenario, setting, seed, request) and config. Some are shared."""
        for s in self.scenarios():
            for setting, seed, request in itertools.product(s.settings, s.seeds, ("none", *s.requests)):
                yield (s.name, setting, seed, request), self.training(s, setting, seed, request)


TRAINING_KEYS = tuple(
    (_example := Experiment("", ["digits/iid/mlp"], [0], [0])).training(_example.scenarios()[0], "digits/iid/mlp", 0)
)
