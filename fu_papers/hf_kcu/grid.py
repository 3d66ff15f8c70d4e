"""HF-KCU's grid: which runs its tables and figures ask for.

An `Experiment` holds all parameters of notebook 02_hf_kcu and turns them into the flat configs of the runs in
fu_papers.hf_kcu.runs. The first setting is the paper's main one (its CIFAR-10): all tables but the second are made
there. `nets` are further models on a shorter schedule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import model_validator

from fu_core.errors import ConfigError, check_choice, check_count
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.baselines.sisa import shard_clients
from fu_core.unlearning.method import method as registered
from fu_core.unlearning.tuning import trials
from fu_papers.controls import AGAIN, DESTROYED, REFERENCES, other_seed
from fu_papers.hf_kcu.parameters import HfKcuParameters
from fu_papers.hf_kcu.variants import ABLATIONS, CHOICES, LENGTHS, UNWEIGHTED
from fu_papers.lab.record import config_key
from fu_papers.problems import Setting, client_opt, plain_fields
from fu_papers.study import Cell

TARGET = 0  # "Remove all data from Client 0"
REQUEST = f"client-{TARGET}"
FORMS = ("HF-KCU printed", "HF-KCU")  # both readings of the algorithm
MATCHED = "HF-KCU held-out"  # the corrected one, as far as held-out images say
ROUND = "Fine-tune"  # one ordinary round of those who stay: what the same price or more buys without a solve
ASCENT = "Ascent"  # uphill on the forgotten data, as far as the corrected step goes: what its direction is worth
BESIDE = (MATCHED, ROUND, ASCENT)  # of both forms, in every table
METHODS = ("NaiveGA", "FedEraser", "SISA", *FORMS, *BESIDE)
TUNED = ("NaiveGA", "FedEraser", *FORMS, *BESIDE)  # who has something to choose
LAST_LAYER, TRUST_REGION, STORED = "Last layer", "Trust-region Newton", "Stored vectors"
PEERS = (LAST_LAYER, TRUST_REGION, STORED)  # other ways to solve, or not to solve, for an absence
SAME_START = "Retrain, other batches"  # from the same weights: what a difference to Retrain is worth to a method
IN_TURN = (*FORMS, MATCHED, ROUND)  # whom one request after the other is shown of
ELSEWHERE = ("NaiveGA", *FORMS, *BESIDE)  # on the other data sets
OF_THE_CORRECTED = {name: name for name in ("iters", "beta", "matrix", "curvature_samples")}
OPTIONS = {  # method -> its hyper-parameters that parameters of ours set; the others are what the method registers
    "HF-KCU": OF_THE_CORRECTED,
    MATCHED: OF_THE_CORRECTED,
    ASCENT: OF_THE_CORRECTED,
    "HF-KCU printed": {name: name for name in ("iters", "damping", "beta")},
    "NaiveGA": {"epochs": "ga_epochs"},
    "FedEraser": {"calibration": "calibration"},
    "SISA": {"shards": "shards"},
    TRUST_REGION: {"curvature_samples": "curvature_samples"},
}
FIXED: dict[str, dict[str, Any]] = {  # what stands for a method in this paper
    "NaiveGA": {"until_explosion": True},  # a collapsed model is a row of Table 1
    "FedEraser": {"norm_scope": "layer"},  # as in its own paper
}


class Experiment(HfKcuParameters):
    """All parameters of notebook 02_hf_kcu, and the runs that they ask for."""

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        """What one value says about another. Raises ConfigError naming them."""
        for text in (*self.settings, *self.nets):
            Setting.parse(text)
        if not set(self.sweep_seeds) <= set(self.seeds):
            raise ConfigError(f"sweep_seeds must be among seeds {self.seeds}, got {self.sweep_seeds}")
        check_count("clients", self.clients, least=3, error=ConfigError)  # the CG figure looks at clients 1 and 2
        for count in self.client_counts:
            check_count("client_counts", count, least=2, error=ConfigError)
        apart = self.tuning_seed not in self.seeds and TARGET < self.tuning_client < self.clients
        if self.tuning_trials > 1 and not apart:
            raise ConfigError(
                f"tuning_seed must be none of the seeds {self.seeds} and tuning_client one of 1 to {self.clients - 1}, "
                f"got {self.tuning_seed} and {self.tuning_client}"
            )
        if self.longest_sequence > self.clients - 2:
            raise ConfigError(f"longest_sequence must leave two of {self.clients} clients, got {self.longest_sequence}")
        if self.tuning_trials > 1 and 2 * self.held_out > self.n_attacker:
            raise ConfigError(
                f"held_out must be at most half of n_attacker ({self.n_attacker}), whose rest judges trials, "
                f"got {self.held_out}"
            )
        for peer in self.peers:
            check_choice("peers", peer, PEERS, ConfigError)
        if self.shards > self.clients:
            raise ConfigError(f"shards must be at most clients ({self.clients}), got {self.shards}")
        self.local()
        for method in (*METHODS, *self.peers):
            self.options(method)  # whatever is out of range raises
        return self

    @property
    def main(self) -> str:
        """The paper's CIFAR-10 setting, or what stands for it."""
        return self.settings[0]

    @property
    def all_tuned(self) -> tuple[str, ...]:
        """Who has something to choose, peers among them."""
        return (*TUNED, *(peer for peer in self.peers if registered(peer).ranges))

    def local(self) -> ClientOpt:
        """The clients' local training."""
        return client_opt(dict(self))

    def for_nets(self) -> Experiment:
        """The same on the short schedule of `nets`."""
        names = ("n_train", "n_test", "rounds", "epochs", "curvature_samples")
        return self.changed(**{name: getattr(self, f"nets_{name}") for name in names})

    def with_alpha(self, alpha: float) -> str:
        """The main setting with another Dirichlet concentration."""
        main = Setting.parse(self.main)
        return f"{main.dataset}/dirichlet-{alpha:g}/{main.model}"

    def poisoned(self) -> dict[str, Any]:
        """The change that makes a training the backdoor's: client 0 poisons part of its data."""
        return {"poison": float(self.poison_fraction), "trigger": [self.trigger_size, self.trigger_target]}

    def _with_clients(self, count: int) -> dict[str, Any]:
        return {} if count == self.clients else {"clients": count}

    # --- configs of runs ---

    def training(self, setting: str, seed: int, request: str = "none", **change: Any) -> dict[str, Any]:
        """The config of one `train` run: everybody, or what `request` leaves.

        `change`: other values, e.g. `clients=100` or `**e.poisoned()`.
        """
        shared = {name: getattr(self, name) for name in ("n_train", "n_test", "clients", "rounds")}
        # FedEraser is run where the main tables are made, and needs the original training's updates there
        history = self.history_interval if setting == self.main and request == "none" and not change else 0
        extra = {"n_val": self.n_attacker, "poison": 0.0, "trigger": [], "history": history, "seed": seed}
        local = plain_fields(self.local())
        return {**asdict(Setting.parse(setting)), **shared, **local, **extra, "request": request, **change}

    def options(self, method: str, **change: Any) -> dict[str, Any]:
        """A method's hyper-parameters: what our parameters set, with `change`, and what it registers for the rest."""
        values = {**dict(self), "curvature_samples": self.curvature_samples or None}
        set_here = {field: values[parameter] for field, parameter in OPTIONS.get(method, {}).items()}
        if method == MATCHED:
            set_here["held_out"] = self.held_out  # how many; which they are knows the run
        of = registered("HF-KCU" if method == ASCENT else method)
        return plain_fields(of.configured(**{**FIXED.get(method, {}), **set_here, **change}))

    def unlearning(
        self,
        setting: str,
        seed: int,
        method: str,
        options: Mapping[str, Any] | None = None,
        *,
        request: str = REQUEST,
        in_turn: bool = False,
        **change: Any,
    ) -> dict[str, Any]:
        """The config of one `unlearn` run. `options` overrides the method's own, `change` values of the training.

        in_turn: of a request of several clients, one after the other, each from the model that the last one left.
        """
        check_choice("method", method, (*REFERENCES, DESTROYED, *METHODS, *PEERS), ConfigError)
        judged = setting == self.main and request == REQUEST and not change
        attack = self.shadows if judged else 0  # it needs trainings of its own
        asked = {"request": request, "in_turn": in_turn, "method": method, "attack": attack}
        own = {"options": self.options(method, **(options or {})), "trials": [], "tuned_on": {}}
        return {**self.training(setting, seed, **change), **asked, **own}

    def tuned(self, seed: int, method: str) -> dict[str, Any]:
        """The config of an `unlearn` run on the main setting with the best of the method's trials."""
        published = self.unlearning(self.main, seed, method)
        on = {**self.training(self.main, self.tuning_seed), "request": f"client-{self.tuning_client}"}
        return {**published, "trials": self.tried(method), "tuned_on": on}

    def tried(self, method: str) -> list[dict[str, Any]]:
        """The choices among which a method is tuned; the first is the method as it stands in the other tables."""
        first = self.options(method)
        if method == ROUND:
            return [{**first, "rounds": rounds} for rounds in sorted({1, *self.natural_rounds})]
        of = "HF-KCU" if method == ASCENT else method
        fixed = {name: value for name, value in first.items() if name not in registered(of).ranges}
        if method == ASCENT:  # of a length of its own, in place of the corrected step's
            _, *others = trials(ASCENT, self.tuning_trials, seed=self.tuning_seed)
            return [first, *others]
        _, *others = trials(method, self.tuning_trials, seed=self.tuning_seed)
        return [first, *({**fixed, **one} for one in others)]

    def tuning(self) -> dict[Cell, dict[str, Any]]:
        """Every trial: client `tuning_client` leaves a training of `tuning_seed`, and nothing of it is judged."""
        if self.tuning_trials == 1:
            return {}
        return {
            Cell("tuning", self.main, self.tuning_seed, one["request"], method, str(k)): one
            for method in self.all_tuned
            for k, one in enumerate(trials_of(self.tuned(self.seeds[0], method)))
        }

    def runs(self) -> dict[Cell, dict[str, Any]]:
        """Every `unlearn` run with the place of its result. A cell of two tables names the same run twice.

        The second retraining of a seed is the Retrain run of another one, where that is among them.
        """
        found: dict[Cell, dict[str, Any]] = {}

        def add(cell: Cell, options: Mapping[str, Any] | None = None, **change: Any) -> None:
            change = {"request": cell.request, "in_turn": cell.condition == "in turn", **change}
            found[cell] = self._schedule(cell).unlearning(cell.setting, cell.seed, cell.method, options, **change)

        for cell, _, change in self._trained():
            everybody = METHODS if cell.setting == self.main else ELSEWHERE
            for method in (*REFERENCES, *(everybody if cell.group == "methods" else (*FORMS, *BESIDE))):
                add(cell._replace(method=method), **change)
            for method in IN_TURN if cell.group == "sequence" else ():
                add(cell._replace(method=method, condition="in turn"))
        for seed in self.seeds:
            for method in self.all_tuned if self.tuning_trials > 1 else ():
                found[Cell("tuned", self.main, seed, REQUEST, method)] = self.tuned(seed, method)
            for peer in self.peers:
                if peer != STORED or seed in self.sweep_seeds:  # whose vectors cost several trainings
                    add(Cell("peers", self.main, seed, REQUEST, peer))
            for group, label, method, change in self._variants():
                add(Cell(group, self.main, seed, REQUEST, method, label), change)
        named = {config_key(config) for config in found.values()}
        return found | {cell: config for cell, config in self._second().items() if config_key(config) in named}

    def controls(self) -> dict[Cell, dict[str, Any]]:
        """The `unlearn` runs of random weights, and of second retrainings that are nobody's Retrain run.

        Of those the retraining alone is made and evaluated, without the original training of the other seed.
        """
        there = self.runs()
        found = {
            cell._replace(method=DESTROYED): self._schedule(cell).unlearning(
                cell.setting, cell.seed, DESTROYED, request=cell.request, **change
            )
            for cell, _, change in self._trained()
        }
        again = {cell: {**config, "method": AGAIN} for cell, config in self._second().items() if cell not in there}
        return found | again

    def same_start(self) -> dict[Cell, dict[str, Any]]:
        """The `unlearn` runs of the floor like for like, in every setting and net: a retraining from the weights of
        Retrain, and so of the original, with the batches of the next seed."""
        return {
            cell._replace(method=SAME_START): {
                **self._schedule(cell).unlearning(cell.setting, cell.seed, "Retrain"),
                "method": SAME_START,
                "batches": other_seed(cell.seed, seeds, self.seeds),
            }
            for cell, seeds, _ in self._trained()
            if cell.group in ("methods", "nets")
        }

    def _schedule(self, cell: Cell) -> Experiment:
        return self.for_nets() if cell.group == "nets" else self

    def _second(self) -> dict[Cell, dict[str, Any]]:
        """The Retrain run of another seed, by the place of the second retraining that it is."""
        return {
            cell._replace(method=AGAIN): self._schedule(cell).unlearning(
                cell.setting, other_seed(cell.seed, seeds, self.seeds), "Retrain", request=cell.request, **change
            )
            for cell, seeds, change in self._trained()
        }

    def _trained(self) -> list[tuple[Cell, list[int], dict[str, Any]]]:
        """Every block of results that has trainings, and so controls, of its own, but for the method: its place, the
        seeds it is made with, and what differs from the schedule."""
        found: list[tuple[Cell, list[int], dict[str, Any]]] = []
        for setting, seed in itertools.product(self.settings, self.seeds):
            found.append((Cell("methods", setting, seed, REQUEST, ""), self.seeds, {}))
        for seed in self.seeds:
            cell = Cell("backdoor", self.main, seed, REQUEST, "", condition="poisoned")
            found.append((cell, self.seeds, self.poisoned()))
        for seed, (group, setting, label, change) in itertools.product(self.sweep_seeds, self._sweeps()):
            found.append((Cell(group, setting, seed, REQUEST, "", label), self.sweep_seeds, change))
        for seed, count in itertools.product(self.sweep_seeds, range(2, self.longest_sequence + 1)):
            request = "-".join(["client", *map(str, range(count))])
            cell = Cell("sequence", self.main, seed, request, "", str(count), "at once")
            found.append((cell, self.sweep_seeds, {}))
        return found

    def _sweeps(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Trainings of their own: group, setting, label, and what differs from the main schedule."""
        found: list[tuple[str, str, str, dict[str, Any]]] = []
        found += [("alpha", self.with_alpha(alpha), f"{alpha:g}", {}) for alpha in self.alphas]
        found += [("clients", self.main, str(count), self._with_clients(count)) for count in self.client_counts]
        return found + [("nets", setting, Setting.parse(setting).model, {}) for setting in self.nets]

    def _variants(self) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Of the main setting: group, label, method, and the hyper-parameters that differ."""
        found = [("ablation", label, "HF-KCU printed", change) for label, change in ABLATIONS.items()]
        found += [("choice", label, "HF-KCU", change) for label, change in CHOICES.items()]
        found += [("choice", label, MATCHED, change) for label, change in LENGTHS.items()]
        found += [("price", str(rounds), ROUND, {"rounds": rounds}) for rounds in self.natural_rounds]
        for method in FORMS:
            found += [("damping", f"{damping:g}", method, {"damping": damping}) for damping in self.dampings]
            found += [("iters", str(k), method, {"iters": k}) for k in self.iters_sweep]
            clipped = {} if method == "HF-KCU printed" else {"scaling": True}
            found += [("beta", f"{beta:g}", method, {"beta": beta, **clipped}) for beta in self.betas]
        return found

    # --- timings ---

    def speeds(self) -> dict[str, dict[str, Any]]:
        """The configs of all `speed` runs by what they are about; the main one times a whole retraining."""
        few = min(2, self.rounds)
        baselines = [method for method in METHODS if method not in (*FORMS, *BESIDE)]
        unweighted = {UNWEIGHTED: self.timed("HF-KCU printed", **ABLATIONS[UNWEIGHTED])}
        found = {"main": self._speed(self.main, self.rounds, {**self._damped(), **unweighted}, baselines)}
        found |= {setting: self._speed(setting, few) for setting in self.settings[1:]}
        found |= {f"alpha {alpha:g}": self._speed(self.with_alpha(alpha), few) for alpha in self.alphas}
        for count in self.client_counts:
            found[f"clients {count}"] = self._speed(self.main, few, **self._with_clients(count))
        # the nets' own schedule is short; what is asked is how long retraining would take on the main one
        whole = {"schedule_rounds": self.rounds, "schedule_epochs": float(self.epochs)}
        return found | {setting: {**self.for_nets()._speed(setting, 1), **whole} for setting in self.nets}

    def _speed(
        self,
        setting: str,
        timed_rounds: int,
        more: Mapping[str, Mapping[str, Any]] | None = None,
        baselines: list[str] | None = None,
        **change: Any,
    ) -> dict[str, Any]:
        """Both forms, `more` variants of theirs, and `baselines`, against `timed_rounds` rounds of retraining."""
        forms = {method: self.timed(method) for method in (*reversed(FORMS), MATCHED, ROUND)}
        return {
            **self.training(setting, self.sweep_seeds[0], **change),
            "request": REQUEST,
            "timed_rounds": timed_rounds,
            "schedule_rounds": self.rounds,
            "schedule_epochs": float(self.epochs),
            "variants": {**forms, **(more or {})},
            "baselines": {method: self.timed(method) for method in baselines or []},
        }

    def prices(self) -> dict[str, dict[str, Any]]:
        """The configs of the `prices` runs by setting or net: what both forms pay, whichever client leaves, beside
        retraining on the main schedule. The printed form's price grows with what its client holds.

        Not of nets that train for less than the main setting, whose price no verdict rests on.
        """
        whole = {"schedule_rounds": self.rounds, "schedule_epochs": float(self.epochs)}
        asked = {"requests": [f"client-{i}" for i in range(self.clients)], **whole}
        found = {}
        for e, settings in ((self, self.settings), (self.for_nets(), [] if self.nets_shortened else self.nets)):
            variants = {method: e.timed(method) for method in FORMS}
            for setting in settings:
                found[setting] = {**e.training(setting, self.sweep_seeds[0]), **asked, "variants": variants}
        return found

    @property
    def nets_shortened(self) -> bool:
        """Whether the further nets train for less than the main setting does: what they know then says little."""
        whole = self.n_train or math.inf
        return self.nets_rounds * self.nets_epochs < self.rounds * self.epochs or self.nets_n_train < whole

    def timed(self, method: str, **change: Any) -> dict[str, Any]:
        """What a `speed` run is told of a method."""
        return {"method": method, "options": self.options(method, **change)}

    def _damped(self) -> dict[str, dict[str, Any]]:
        """Table 5's variants."""
        found = itertools.product(reversed(FORMS), self.dampings)
        return {f"{method}, damping {damping:g}": self.timed(method, damping=damping) for method, damping in found}


def trials_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configs of the trials that a tuned run chooses among; none for one with settings of its own."""
    plain = {**config, **config["tuned_on"], "trials": [], "tuned_on": {}, "attack": 0}
    return [{**plain, "options": one} for one in config["trials"]]


def shards_without_target(clients: int, shards: int, seed: int) -> list[list[int]]:
    """SISA's client groups after client 0 has left; a group of its own would vanish."""
    groups = [[i for i in group if i != TARGET] for group in shard_clients(clients, shards, seed=seed)]
    return [group for group in groups if group]
