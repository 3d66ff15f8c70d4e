"""PUF's grid: which runs its tables and figures ask for.

An `Experiment` holds all parameters of notebook 01_puf. It turns them into scenarios, one per block of the
paper's tables, and into the flat configs of the runs in fu_papers.puf.runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from pydantic import model_validator

from fu_core.errors import ConfigError, check_choice, check_count
from fu_core.federation.local import ClientOpt
from fu_core.request import Request
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.method import methods as registered_methods
from fu_core.unlearning.tuning import trials
from fu_papers.controls import AGAIN, CONTROLS, other_seed
from fu_papers.controls import DESTROYED as DESTROYED
from fu_papers.controls import REFERENCES as REFERENCES
from fu_papers.problems import PROBLEM_KEYS, TRAINING_FIELDS, Setting, client_opt, plain_fields
from fu_papers.puf.parameters import PufParameters
from fu_papers.study import Cell

OFFICIAL = "FedAU official"  # as its authors have it: who will leave must be known when training begins
AS_THEY_ARE = CONTROLS  # evaluated without recovery
PUFS = ("PUF-Special", "PUF-Regular")
METHODS = ("Natural", "Fine-tune", "Random labels", "FedEraser", "PGA", "MoDe", "FedAU", "NoT", *PUFS)
RIVALS = ("PGA", "MoDe", "FedAU", "NoT")  # the recovering methods of the paper's tables
HOSPITALS = 6  # of ProstateMRI and of the phantom
SWEPT_AGAINST = ("Natural", "NoT", "PGA")  # Fig. 5
FIG_5 = ("clients", "transformer")  # the scenarios of its panels; Fig. 6 has hospitals
NOTHING = "Original"  # doing nothing
PUBLISHED = "as published"  # the label of runs with a method's own settings, where others are tuned
OPTIONS = {  # method -> its hyper-parameters that parameters of ours set; the others are what the method registers
    "PUF-Special": {"eta_u": "eta_u_special", "epochs_u": "epochs_u"},
    "PUF-Regular": {"eta_u": "eta_u_regular", "epochs_u": "epochs_u"},
    "FedEraser": {"calibration": "calibration"},
    "PGA": {
        "lr": "pga_lr",
        "epochs": "pga_epochs",
        "batch_size": "pga_batch_size",
        "stop_distance": "pga_stop",
    },
    "MoDe": {
        "momentum": "mode_lambda",
        "rounds_d": "mode_rounds_d",
        "rounds_m": "mode_rounds_m",
        "lr_guidance": "mode_lr_guidance",
        "lr_target": "mode_lr_target",
        "guidance_momentum": "mode_guidance_momentum",
    },
    "FedAU": {"epochs": "fed_au_epochs"},
}


TRAINING_KEYS = (
    *PROBLEM_KEYS, "rounds", *TRAINING_FIELDS, "participation", "poisoned", "seed", "request", "history", "weights"
)  # fmt: skip


def trials_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configs of the trials that a tuned run chooses among: of each choice one per request that they are made on.

    None for a run with settings of its own.
    """
    if not config["trials"]:
        return []
    plain = {key: config[key] for key in (*TRAINING_KEYS, "method", "cap", "read")}
    on = dict(config["tuned_on"])
    requests = on.pop("requests")
    return [
        {**plain, **on, "request": request, "options": {**config["options"], **one}}
        for one, request in itertools.product(config["trials"], requests)
    ]


@dataclass(frozen=True)
class Scenario:
    """One block of the paper's results: where, who asks, with which seeds and methods."""

    name: str
    heading: str
    settings: Sequence[str]
    requests: Sequence[str]
    seeds: Sequence[int]
    methods: Sequence[str] = (*CONTROLS, *METHODS)
    training: Mapping[str, Any] = field(default_factory=dict)  # what differs from the main scenario's training
    tuned: bool = False  # are methods tuned, on clients and a seed that are not judged?

    @property
    def runs_each(self) -> int:
        """How many runs of a method a number of its tables is the mean of."""
        return len(self.requests) * len(self.seeds)


class Experiment(PufParameters):
    """All parameters of notebook 01_puf, and the runs that they ask for."""

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        """What one value says about another. Raises ConfigError naming them."""
        check_count("clients", self.clients, least=2, error=ConfigError)  # one leaves, and somebody must stay
        shown = (*CONTROLS, *METHODS)
        known = [m for m, about in registered_methods().items() if "server" in about.exchanges and m not in shown]
        for name in self.further_methods:
            check_choice("further_methods", name, known, ConfigError)
        ruled = [m for m in self.methods if registered(m).recovers and m != "Natural"]  # which no rule stops
        if self.history_interval_of and not self.history_interval:
            raise ConfigError(
                "history_interval must be at least 1 where history_interval_of is given, for FedEraser is run in all "
                f"settings or in none, got 0 and {self.history_interval_of}"
            )
        for name in self.patience:
            check_choice("patience", name, ruled, ConfigError)
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
        tuned_on = self.tuning_targets if self.tuning_trials > 1 else ()  # nor the default of a trial
        judged = sorted({*self.targets, *itertools.chain(*asked)})
        if set(tuned_on) & set(judged) or (tuned_on and self.tuning_seed in self.seeds):
            raise ConfigError(
                f"tuning_targets and tuning_seed must not be among those that are judged, targets {judged} and "
                f"seeds {self.seeds}, got {self.tuning_targets} and {self.tuning_seed}"
            )
        of = [
            ("targets", self.targets, self.clients),
            ("tuning_targets", tuned_on, self.clients),
            ("segmentation_targets", self.segmentation_targets, HOSPITALS),
        ]
        for name, wanted, there in [*of, *(("pairs", pair, self.clients) for pair in asked)]:
            if outside := [t for t in wanted if t >= there]:
                raise ConfigError(f"{name} names client {outside[0]}, but clients are 0 to {there - 1}")
        for name, whole in (("few_seeds", "seeds"), ("sweep_seeds", "seeds"), ("official_settings", "settings")):
            if not set(some := getattr(self, name)) <= set(there := getattr(self, whole)):
                raise ConfigError(f"{name} must be some of {whole} {there}, got {some}")
        if not set(self.sweep_settings) <= {*self.settings, *self.transformer_settings}:
            may_be = f"settings {self.settings} and transformer_settings {self.transformer_settings}"
            raise ConfigError(f"sweep_settings must be some of {may_be}, got {self.sweep_settings}")
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
        methods = tuple(
            m
            for m in (*CONTROLS, *self.methods)
            if self.history_interval or m == AGAIN or not registered(m).needs.history
        )
        long = {"epochs": float(self.long_epochs), "rounds": self.long_rounds}
        transformer = {name: getattr(self, f"transformer_{name}") for name in ("rounds", "optimiser", "lr", "weights")}
        partial = {"participation": self.partial_share}
        few, part = self.few_seeds, f"{100 * self.sample_fraction:g} % of a client's samples"
        halves = [f"sample-{t}-{self.sample_fraction:g}" for t in self.targets]
        pairs = [f"client-{a}-{b}" for a, b in self.pairs]
        hospitals = [f"client-{t}" for t in self.segmentation_targets]
        found = [
            Scenario("clients", "one client leaves", self.settings, alone, self.seeds, methods, tuned=True),
            Scenario("long", f"one client leaves, E = {self.long_epochs:g}",
                     self.long_settings, alone, few, methods, long),
            Scenario("samples", part, self.sample_settings, halves, few, methods, tuned=True),
            Scenario("pairs", "two clients leave at once", self.pair_settings, pairs, few, methods, tuned=True),
            Scenario("partial", f"one client leaves, {100 * self.partial_share:g} % take part in a round",
                     self.partial_settings, alone, few, methods, partial),
            Scenario("backdoor", "one client leaves, with a backdoor in half of its images",
                     self.backdoor_settings, alone, few, methods),
            Scenario("transformer", "one client leaves, transformer",
                     self.transformer_settings, alone, few, methods, transformer),
            Scenario("segmentation", "one hospital leaves", self.segmentation_settings, hospitals, few, methods,
                     self._segmentation_training()),
        ]  # fmt: skip
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

    def local(self, scenario: Scenario, setting: str) -> ClientOpt:
        """The clients' local training."""
        plain = {} if Setting.parse(setting).dataset in self.augmented else {"augmentation": "none"}
        return client_opt({**dict(self), **plain, **scenario.training})

    def training(self, scenario: Scenario, setting: str, seed: int, request: str = "none") -> dict[str, Any]:
        """The config of one `train` run: everybody, or what `request` leaves."""
        if (known := self._trainings.get((scenario.name, setting))) is None:
            known = self._trainings[scenario.name, setting] = self._training(scenario, setting)
        own = {"seed": seed, "request": request, "history": self.history_of(setting) if request == "none" else 0}
        return {**known, **own}

    @cached_property
    def _trainings(self) -> dict[tuple[str, str], dict[str, Any]]:
        """(scenario, setting) -> what its trainings have in common: more than a thousand runs ask."""
        return {}

    def _training(self, scenario: Scenario, setting: str) -> dict[str, Any]:
        place = Setting.parse(setting)
        shared = {name: getattr(self, name) for name in ("clients", "n_train", "n_val", "n_test", "rounds")}
        shared |= {"n_train": self.n_train_of.get(place.dataset, self.n_train)}
        shared |= {name: value for name, value in scenario.training.items() if name in shared}
        return {
            **asdict(place),
            **shared,
            **plain_fields(self.local(scenario, setting)),
            "participation": float(scenario.training.get("participation", 1.0)),
            "poisoned": -1,
            **{"seed": 0, "request": "none", "history": 0},  # each training's own
            "weights": scenario.training.get("weights", ""),
        }

    def unlearning(
        self, scenario: Scenario, setting: str, seed: int, request: str, name: str, **change: Any
    ) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides the method's hyper-parameters, e.g. `form="printed"`."""
        check_choice("method", name, (*scenario.methods, OFFICIAL), ConfigError)
        # FedEraser repeats the whole training: there is nothing to recover from
        most = self.cap_of(scenario.name)
        cap = most if name == OFFICIAL or (name != AGAIN and registered(name).recovers) else 0
        if name == "Natural":  # as many rounds as PUF, which has one of its own, can take within the cap
            watched = self.natural_watched.get(Setting.parse(setting).dataset, most + 1)
            cap = max(watched, *self.natural_rounds)
        options: dict[str, Any] = {"alpha": self.fed_au_alpha} if name == OFFICIAL else {}
        if name not in (AGAIN, OFFICIAL):
            set_here = {field: getattr(self, parameter) for field, parameter in OPTIONS.get(name, {}).items()}
            options = plain_fields(registered(name).configured(**{**set_here, **change}))
        training = self.training(scenario, setting, seed, request)
        if scenario.name == "backdoor":
            training["poisoned"] = Request.parse(request).clients[0]
        segmenting = Setting.parse(setting).split == "site"
        return {
            **training,
            "history": self.history_of(setting),  # the original training's, which the request refers to
            "method": name,
            "cap": cap,
            "read": list(self.natural_rounds) if name == "Natural" else [],
            "options": options,
            "other_seed": self.other_seed(scenario, seed),
            "attacked": not segmenting,
            "relearn_cap": 0 if segmenting else self.relearn_cap,
            "trials": [],
            "tuned_on": {},
        }

    def history_of(self, setting: str) -> int:
        """Every so-many-th round of the original training is stored there; 0: none."""
        of, dataset = self.history_interval_of, Setting.parse(setting).dataset
        return of.get(setting, of.get(dataset, self.history_interval))

    def cap_of(self, scenario: str) -> int:
        """After how many rounds a recovery is given up: `recovery_cap`, in segmentation its own number if less."""
        return min(self.recovery_cap, self.segmentation_cap) if scenario == "segmentation" else self.recovery_cap

    def other_seed(self, scenario: Scenario, seed: int) -> int:
        """Of the second retraining and of the attacker's model: the next of the scenario's seeds, or one more."""
        return other_seed(seed, scenario.seeds)

    def tuned(self, scenario: Scenario, setting: str, seed: int, request: str, name: str) -> dict[str, Any]:
        """The config of one `unlearn` run whose hyper-parameters are the best of the method's trials."""
        config = self.unlearning(scenario, setting, seed, request, name)
        tried = self.trials(name)
        if len(tried) < 2:
            return config
        cap = min(self.recovery_cap, self.tuning_cap) if config["cap"] else 0  # the main block's, whose trials they are
        requests = [f"client-{target}" for target in self.tuning_targets]
        return {**config, "trials": tried, "tuned_on": {"requests": requests, "seed": self.tuning_seed, "cap": cap}}

    def best(self, scenario: Scenario, setting: str, seed: int, request: str, name: str) -> dict[str, Any]:
        """The config of the run that is judged: tuned where the scenario is, elsewhere as published."""
        chosen = self.tuned if self.tunes(scenario, setting) else self.unlearning
        return chosen(scenario, setting, seed, request, name)

    def trials(self, name: str) -> list[dict[str, Any]]:
        """What is tried of a method: equally many choices for each, the first as published."""
        if name in (*CONTROLS, OFFICIAL) or not registered(name).ranges:
            return []
        published = {field: getattr(self, parameter) for field, parameter in OPTIONS.get(name, {}).items()}
        first, *others = trials(name, self.tuning_trials, seed=self.tuning_seed)
        return [{field: published.get(field, value) for field, value in first.items()}, *others]

    def runs(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Every `unlearn` run of the tables, with the place of its result.

        In a scenario that tunes, what has been tuned is labelled "", and what was published, of one seed, PUBLISHED.
        """
        for s in self.scenarios():
            for setting, seed, request, method in self._cells(s):
                cell = Cell(s.name, setting, seed, request, method)
                published = self.unlearning(s, setting, seed, request, method)
                best = self.best(s, setting, seed, request, method)
                yield cell, best
                if best != published and seed == self.seeds[0]:
                    yield cell._replace(label=PUBLISHED), published

    def _cells(self, s: Scenario) -> Iterator[tuple[str, int, str, str]]:
        for setting, seed, request in itertools.product(s.settings, s.seeds, s.requests):
            official = [OFFICIAL] if s.name == "clients" and setting in self.official_settings else []
            yield from ((setting, seed, request, method) for method in (*s.methods, *official))

    def tunes(self, scenario: Scenario, setting: str) -> bool:
        """Are methods tuned there? Trials are those of the main block, one client's leaving, on the same setting."""
        return scenario.tuned and setting in self.settings and self.tuning_trials > 1

    def tuning(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Every trial, with the place of its result: the label is the number of the choice that is tried."""
        main = self.scenarios()[0]
        for setting, method in itertools.product(main.settings if self.tuning_trials > 1 else (), main.methods):
            config = self.tuned(main, setting, self.seeds[0], f"client-{self.targets[0]}", method)
            for k, one in enumerate(trials_of(config)):
                choice = str(k // len(self.tuning_targets))
                yield Cell("tuning", setting, self.tuning_seed, one["request"], method, choice), one

    def swept_settings(self, scenario: str) -> list[str]:
        """What is swept there: `sweep_settings` in the main scenario or with the transformer, or all of Fig. 6."""
        if scenario == "segmentation":
            return list(self.segmentation_settings)
        main = [setting for setting in self.sweep_settings if setting in self.settings]
        return main if scenario == "clients" else [setting for setting in self.sweep_settings if setting not in main]

    def swept_seeds(self, scenario: str) -> Sequence[int]:
        """The seeds of Fig. 5's main scenario, or of its transformer and of Fig. 6."""
        return self.sweep_seeds if scenario == "clients" else self.few_seeds

    def sweep(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """Fig. 5 and 6: PUF with other eta_u and E_u."""
        for name in (*FIG_5, "segmentation"):
            of = "segmentation" if name == "segmentation" else "sweep"
            rates = [(mode, getattr(self, f"{of}_{mode.removeprefix('PUF-').lower()}")) for mode in PUFS]
            epochs = self.sweep_epochs_u if of == "sweep" else [1.0]
            for setting, (method, etas), epochs_u in itertools.product(self.swept_settings(name), rates, epochs):
                s = self.scenario(name)
                for eta_u, seed, request in itertools.product(etas, self.swept_seeds(name), s.requests):
                    change = {"eta_u": float(eta_u), "epochs_u": float(epochs_u)}
                    variant = f"eta_u={eta_u:g}, E_u={epochs_u:g}"
                    config = self.unlearning(s, setting, seed, request, method, **change)
                    yield Cell(name, setting, seed, request, method, variant), config

    def longer(self) -> list[tuple[str, str, int]]:
        """(setting, method, cap) of `patience`, where the setting is there and the cap more than everybody's."""
        settings = [setting for setting in self.settings if setting in self.patience_settings]
        caps = [(method, cap) for method, cap in self.patience.items() if cap > self.recovery_cap]
        return [(setting, method, cap) for setting in settings for method, cap in caps]

    def patient(self) -> Iterator[tuple[Cell, dict[str, Any]]]:
        """The main block's first seed once more, of who is given longer (`patience`) until it counts as given up."""
        s, seed = self.scenarios()[0], self.seeds[0]
        for (setting, method, cap), request in itertools.product(self.longer(), s.requests):
            config = self.best(s, setting, seed, request, method)
            yield Cell(s.name, setting, seed, request, method, f"{cap} rounds"), {**config, "cap": cap}

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
