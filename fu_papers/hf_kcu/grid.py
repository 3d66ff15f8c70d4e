"""HF-KCU's experiments as parameters: what a notebook or profile says, checked.

An `Experiment` holds all parameters of notebook 02_hf_kcu and turns them into the flat configs of the
runs in fu_papers.hf_kcu.runs. The first setting is the paper's main one (its CIFAR-10): all tables but
the second are made there. `nets` are further models on a shorter schedule.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from fu_core.errors import ConfigError, check_choice, check_count, check_positive
from fu_core.federation.local import ClientOpt
from fu_core.unlearning.baselines.sisa import shard_clients
from fu_core.unlearning.hf_kcu import HFKCU
from fu_papers.lab.record import config_key
from fu_papers.problems import Setting, plain_fields

TARGET = 0  # "Remove all data from Client 0"
REFERENCES = ("Original", "Retrain")
METHODS = ("NaiveGA", "FedEraser", "SISA", "HF-KCU printed", "HF-KCU")

# Table 4: the change each row makes to Algorithm 1. "Influence decay" and "uniform influence" are not defined in the
# paper; both rows are our reading, and Algorithm 1 itself has no decay (errata H5).
ABLATIONS: dict[str, dict[str, Any]] = {
    "full, with decay 0.9 (our reading)": {"decay": 0.9},
    "w/o influence decay (= Algorithm 1)": {},
    "w/o causal weighting": {"influence": "broadcast"},
    "w/o adaptive scaling": {"scaling": False},
    "uniform influence (our reading)": {"influence": "uniform"},
}
# The corrected form, one choice changed at a time. Sampled curvature and Gauss-Newton are what `corrected` says.
CHOICES: dict[str, dict[str, Any]] = {
    "corrected": {},
    "w/o adaptive scaling": {"scaling": False},
    "minus sign": {"sign": -1},
    "curvature from all retained samples": {"curvature_samples": None},
    "Hessian instead of Gauss-Newton": {"matrix": "hessian"},
    "empirical Fisher instead of Gauss-Newton": {"matrix": "fisher"},
    "client's own curvature": {"curvature": "local", "curvature_samples": None},
    "everybody's curvature": {"curvature": "global"},
    "gradient of the retained loss": {"gradient": "retained"},
    "Jacobi preconditioner": {"preconditioner": "jacobi"},
}

_TRAINING = ("n_train", "n_test", "clients", "rounds", *(f.name for f in fields(ClientOpt)))


@dataclass(frozen=True)
class Experiment:
    """All parameters of notebook 02_hf_kcu, with the same names. Checked when made."""

    profile: str
    settings: Sequence[str]  # the first is the main one
    nets: Sequence[str]  # further models, on the schedule of nets_*
    seeds: Sequence[int]
    sweep_seeds: Sequence[int]  # for what needs trainings of its own: alpha, clients, nets
    clients: int = 10
    n_train: int = 0
    n_test: int = 0
    n_attacker: int = 5000  # held out of the training set: the attacker's own data
    rounds: int = 20
    epochs: float = 5.0
    batch_size: int = 64
    optimiser: str = "sgd"
    lr: float = 0.01
    lr_decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    augmentation: str = "none"
    iters: int = 10  # k
    damping: float = 0.01  # lambda
    beta: float = 0.01
    matrix: str = "ggn"  # of the corrected form
    curvature_samples: int = 0  # in the corrected form's products; 0: all
    iters_sweep: Sequence[int] = (1, 2, 5, 10, 20)
    dampings: Sequence[float] = (0.1, 0.01, 0.001)
    betas: Sequence[float] = (0.003, 0.01, 0.03)
    alphas: Sequence[float] = (0.1, 0.5, 1.0)
    client_counts: Sequence[int] = (10, 100, 200)
    shadows: int = 4
    shards: int = 3
    history_interval: int = 2  # FedEraser
    calibration: float = 0.5  # FedEraser
    ga_epochs: int = 10  # NaiveGA
    poison_fraction: float = 0.5
    trigger_size: int = 3
    trigger_target: int = 7
    nets_n_train: int = 300
    nets_n_test: int = 300  # 0: all
    nets_rounds: int = 2
    nets_epochs: float = 1.0
    nets_curvature_samples: int = 0

    def __post_init__(self) -> None:
        for text in (*self.settings, *self.nets):
            Setting.parse(text)
        for name in ("settings", "seeds", "sweep_seeds", "iters_sweep", "dampings", "betas", "alphas", "client_counts"):
            values = list(getattr(self, name))
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} must list at least one value, each once, got {values}")
        if not set(self.sweep_seeds) <= set(self.seeds):
            raise ConfigError(f"sweep_seeds must be among seeds {list(self.seeds)}, got {list(self.sweep_seeds)}")
        check_count("clients", self.clients, least=3, error=ConfigError)  # the CG figure looks at clients 1 and 2
        for name in ("rounds", "n_attacker", "shadows", "shards", "ga_epochs", "trigger_size", "history_interval"):
            check_count(name, getattr(self, name), error=ConfigError)
        for name in ("nets_n_train", "nets_rounds"):
            check_count(name, getattr(self, name), error=ConfigError)
        counts = ("n_train", "n_test", "nets_n_test", "trigger_target", "curvature_samples", "nets_curvature_samples")
        for name in counts:
            check_count(name, getattr(self, name), least=0, error=ConfigError)
        for name in ("calibration", "poison_fraction"):
            check_positive(name, getattr(self, name), ConfigError)
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} must be at most 1, got {getattr(self, name)}")
        for alpha in self.alphas:
            check_positive("alphas", alpha, ConfigError)
        for count in self.client_counts:
            check_count("client_counts", count, least=2, error=ConfigError)
        if self.shards > self.clients:
            raise ConfigError(f"shards must be at most clients ({self.clients}), got {self.shards}")
        self.local()
        self.hf_kcu()
        for k in self.iters_sweep:
            self.hf_kcu(iters=k)
        for damping in self.dampings:
            self.hf_kcu(damping=damping)
        for beta in self.betas:
            self.hf_kcu(beta=beta)

    @property
    def main(self) -> str:
        """The paper's CIFAR-10 setting, or what stands for it."""
        return self.settings[0]

    def local(self) -> ClientOpt:
        """The clients' local training."""
        return ClientOpt(**{f.name: getattr(self, f.name) for f in fields(ClientOpt)})

    def for_nets(self) -> Experiment:
        """The same on the short schedule of `nets`."""
        return replace(
            self,
            n_train=self.nets_n_train,
            n_test=self.nets_n_test,
            rounds=self.nets_rounds,
            epochs=self.nets_epochs,
            curvature_samples=self.nets_curvature_samples,
        )

    def training(self, setting: str, seed: int, exclude: Sequence[int] = (), **change: Any) -> dict[str, Any]:
        """The config of one `train` run. `change`: other values, e.g. `clients=100` or `**e.poisoned()`."""
        values = plain_fields(self)
        shared = {name: values[name] for name in _TRAINING}
        # FedEraser is run where the main tables are made, and needs the original training's updates there
        history = self.history_interval if setting == self.main and not exclude and not change else 0
        extra = {"n_val": self.n_attacker, "poison": 0.0, "trigger": [], "history": history, "seed": seed}
        return {**asdict(Setting.parse(setting)), **shared, **extra, "exclude": list(exclude), **change}

    def poisoned(self) -> dict[str, Any]:
        """The change that makes a training the backdoor's: client 0 poisons part of its data."""
        return {"poison": float(self.poison_fraction), "trigger": [self.trigger_size, self.trigger_target]}

    def hf_kcu(self, form: str = "corrected", **change: Any) -> HFKCU:
        """The paper's hyper-parameters, and for the corrected form our choice of curvature."""
        options: dict[str, Any] = {"iters": self.iters, "damping": self.damping, "beta": self.beta, "form": form}
        if form == "corrected":
            options |= {"matrix": self.matrix, "curvature_samples": self.curvature_samples or None}
        return HFKCU(**{**options, **change})

    def unlearning(
        self, setting: str, seed: int, method: str, hf: Mapping[str, Any] | None = None, **change: Any
    ) -> dict[str, Any]:
        """The config of one `unlearn` run. `hf` overrides fields of HFKCU, `change` those of the training."""
        check_choice("method", method, (*REFERENCES, *METHODS), ConfigError)
        config = {**self.training(setting, seed, **change), "method": method, "attack": 0}
        if setting == self.main and not change:  # the attack needs trainings of its own
            config["attack"] = self.shadows
        if method.startswith("HF-KCU"):
            form = "printed" if method.endswith("printed") else "corrected"
            config["hf_kcu"] = plain_fields(self.hf_kcu(form, **(hf or {})))
        elif method == "NaiveGA":
            config["ga_epochs"] = self.ga_epochs
        elif method == "FedEraser":
            config["calibration"] = float(self.calibration)
        elif method == "SISA":
            config["shards"] = self.shards
        return config

    def cells(self) -> dict[Cell, dict[str, Any]]:
        """Every `unlearn` run with the place of its result. A cell of two tables names the same run twice."""
        runs: dict[Cell, dict[str, Any]] = {}
        both = ("HF-KCU printed", "HF-KCU")
        for setting in self.settings:
            methods = METHODS if setting == self.main else ("NaiveGA", *both)
            for seed, method in itertools.product(self.seeds, (*REFERENCES, *methods)):
                runs[Cell("methods", method, setting, seed, method)] = self.unlearning(setting, seed, method)
        for seed in self.seeds:
            runs |= self._variants_of_main(seed)
            for method in (*REFERENCES, *both):
                config = self.unlearning(self.main, seed, method, **self.poisoned())
                runs[Cell("backdoor", method, self.main, seed, method)] = config
        for seed, method in itertools.product(self.sweep_seeds, (*REFERENCES, *both)):
            for alpha in self.alphas:
                setting = self.with_alpha(alpha)
                config = self.unlearning(setting, seed, method)
                runs[Cell("alpha", f"{alpha:g}", setting, seed, method)] = config
            for count in self.client_counts:
                config = self.unlearning(self.main, seed, method, **self._with_clients(count))
                runs[Cell("clients", str(count), self.main, seed, method)] = config
            for setting in self.nets:
                config = self.for_nets().unlearning(setting, seed, method)
                runs[Cell("nets", Setting.parse(setting).model, setting, seed, method)] = config
        return runs

    def _variants_of_main(self, seed: int) -> dict[Cell, dict[str, Any]]:
        runs: dict[Cell, dict[str, Any]] = {}

        def add(group: str, label: str, method: str, change: Mapping[str, Any]) -> None:
            runs[Cell(group, label, self.main, seed, method)] = self.unlearning(self.main, seed, method, change)

        for label, change in ABLATIONS.items():
            add("ablation", label, "HF-KCU printed", change)
        for label, change in CHOICES.items():
            add("choice", label, "HF-KCU", change)
        for method in ("HF-KCU printed", "HF-KCU"):
            for damping in self.dampings:
                add("damping", f"{damping:g}", method, {"damping": damping})
            for k in self.iters_sweep:
                add("iters", str(k), method, {"iters": k})
            for beta in self.betas:
                add("beta", f"{beta:g}", method, {"beta": beta})
        return runs

    def with_alpha(self, alpha: float) -> str:
        """The main setting with another Dirichlet concentration."""
        main = Setting.parse(self.main)
        return f"{main.dataset}/dirichlet-{alpha:g}/{main.model}"

    def _with_clients(self, count: int) -> dict[str, Any]:
        return {} if count == self.clients else {"clients": count}

    def trainings(self) -> list[dict[str, Any]]:
        """The configs of all `train` runs that `cells` need, SISA's shards included."""
        configs: dict[str, dict[str, Any]] = {}
        for config in self.cells().values():
            without = {"exclude": [TARGET], "poison": 0.0, "trigger": [], "history": 0}
            training = {key: config[key] for key in self.training(self.main, 0)}
            wanted = [training, training | without]
            if "shards" in config:
                for staying in shards_without_target(config["clients"], config["shards"], config["seed"]):
                    gone = [i for i in range(config["clients"]) if i not in staying]
                    wanted.append(training | {"exclude": gone, "history": 0})
            configs |= {config_key(one): one for one in wanted}
        return list(configs.values())

    def speeds(self) -> dict[str, dict[str, Any]]:
        """The configs of all `speed` runs by what they are about; the main one times a whole retraining."""
        seed = self.sweep_seeds[0]
        hf = {"HF-KCU": self.hf_kcu(), "HF-KCU printed": self.hf_kcu("printed")}

        def one(
            e: Experiment,
            setting: str,
            timed_rounds: int,
            variants: Mapping[str, HFKCU],
            *baselines: str,
            **change: Any,
        ) -> dict[str, Any]:
            return {
                **e.training(setting, seed, **change),
                "timed_rounds": timed_rounds,
                "schedule_rounds": self.rounds,
                "schedule_epochs": float(self.epochs),
                "variants": {name: plain_fields(variant) for name, variant in variants.items()},
                "baselines": list(baselines),
                "ga_epochs": self.ga_epochs,
                "calibration": float(self.calibration),
                "shards": self.shards,
            }

        damped = {
            f"{name}, damping {damping:g}": self.hf_kcu(form, damping=damping)
            for name, form in (("HF-KCU", "corrected"), ("HF-KCU printed", "printed"))
            for damping in self.dampings
        }
        few = min(2, self.rounds)
        runs = {"main": one(self, self.main, self.rounds, hf | damped, "NaiveGA", "FedEraser", "SISA")}
        runs |= {setting: one(self, setting, few, hf) for setting in self.settings[1:]}
        runs |= {f"alpha {a:g}": one(self, self.with_alpha(a), few, hf) for a in self.alphas}
        for count in self.client_counts:
            runs[f"clients {count}"] = one(self, self.main, few, hf, **self._with_clients(count))
        nets = self.for_nets()
        hf_nets = {"HF-KCU": nets.hf_kcu(), "HF-KCU printed": nets.hf_kcu("printed")}
        return runs | {setting: one(nets, setting, 1, hf_nets) for setting in self.nets}


class Cell(NamedTuple):
    """Where a run's result belongs: which table, which row of it, and the setting, seed and method."""

    group: str
    label: str
    setting: str
    seed: int
    method: str


def shards_without_target(clients: int, shards: int, seed: int) -> list[list[int]]:
    """SISA's client groups after client 0 has left; a group of its own would vanish."""
    groups = [[i for i in group if i != TARGET] for group in shard_clients(clients, shards, seed=seed)]
    return [group for group in groups if group]
