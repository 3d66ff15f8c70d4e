"""PUF's experiments: from the parameters of a notebook or profile to run records.

Two kinds of runs. `train` is the original training, or with `exclude` a retraining. `unlearn` starts
from the original model, lets one method forget one target, and recovers. Everything shown in tables
and figures (puf_figures, puf_claims) is read from their records.
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
from fu_core.compute import map_runs
from fu_core.data import Dataset, load
from fu_core.errors import ConfigError, check_choice, check_count, check_positive
from fu_core.evaluation.accuracy import accuracy
from fu_core.evaluation.equivalence import kl_divergence, parameter_gap, relative_step_difference
from fu_core.evaluation.membership import confidences, song, yeom
from fu_core.federation.horizontal import fedavg, recovery_path
from fu_core.federation.local import Client, ClientOpt
from fu_core.federation.meter import Meter
from fu_core.models import MODELS, FlatModel, build
from fu_core.records import Record, RecordStore, RunContext
from fu_core.streams import stream_seed
from fu_core.unlearning.baselines.natural import natural
from fu_core.unlearning.baselines.weight_negation import negate_weights
from fu_core.unlearning.puf import PUF, puf_round

REFERENCES = ("Original", "Retrain")
METHODS = ("Natural", "NoT", "PUF-Special", "PUF-Regular")
EVALUATE_EVERY = 5  # rounds of training between two evaluations
STOP_RULES = ("validation", "test")  # ours, and the paper's, which looks at the test set
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
        if kind == "dirichlet":
            check_positive(f"alpha of {text!r}", alpha, ConfigError)
        return cls(dataset, kind, alpha, model)

    @property
    def title(self) -> str:
        """For headings: "CIFAR-10, Dirichlet 0.3"."""
        return f"{DATASET_TITLES.get(self.dataset, self.dataset)}, " + (
            f"Dirichlet {self.alpha:g}" if self.alpha else "IID"
        )


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
    recovery_cap: int = 30

    def __post_init__(self) -> None:
        for text in self.settings:
            Setting.parse(text)
        for name in ("settings", "targets", "seeds"):
            values = list(getattr(self, name))
            if not values or len(set(values)) != len(values):
                raise ConfigError(f"{name} must list at least one value, each once, got {values}")
        for name in ("clients", "rounds", "recovery_cap", "n_val"):
            check_count(name, getattr(self, name), error=ConfigError)
        for name in ("n_train", "n_test"):
            check_count(name, getattr(self, name), least=0, error=ConfigError)
        for name in ("eta_u_special", "eta_u_regular"):
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
        # 2 and 2.0 must name the same run
        shared = {
            f.name: float(getattr(self, f.name)) if f.type == "float" else getattr(self, f.name) for f in fields(self)
        }
        for name in ("profile", "settings", "targets", "seeds", "eta_u_special", "eta_u_regular", "recovery_cap"):
            del shared[name]
        return {**asdict(s), **shared, "seed": seed, "exclude": list(exclude)}

    def unlearning(self, setting: str, seed: int, target: int, method: str, **change: Any) -> dict[str, Any]:
        """The config of one `unlearn` run; `change` overrides fields of PUF, e.g. `form="printed"`."""
        check_choice("method", method, (*REFERENCES, *METHODS), ConfigError)
        config = {**self.training(setting, seed), "target": target, "method": method, "cap": self.recovery_cap}
        if method.startswith("PUF"):
            mode = method.removeprefix("PUF-").lower()
            eta_u = self.eta_u_special if mode == "special" else self.eta_u_regular
            config["puf"] = asdict(PUF(**{"mode": mode, "eta_u": eta_u, "epochs_u": self.epochs, **change}))
        return config

    def cells(self) -> Iterator[tuple[str, int, int]]:
        """Every (setting, seed, target)."""
        return ((s, seed, t) for s in self.settings for seed in self.seeds for t in self.targets)


@dataclass(frozen=True)
class Problem:
    """A data set dealt out to clients, with the net that is to learn it."""

    dataset: Dataset
    parts: tuple[Tensor, ...]
    clients: list[Client]
    validation: Client
    model: FlatModel

    @property
    def test(self) -> Client:
        """Test inputs and labels."""
        return self.dataset.x_test, self.dataset.y_test

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
    keys = ("dataset", "split", "alpha", "model", "clients", "n_train", "n_val", "n_test")
    return _problem(*(config[key] for key in keys))


@lru_cache(maxsize=4)
def _problem(
    name: str, split: str, alpha: float, model: str, clients: int, n_train: int, n_val: int, n_test: int
) -> Problem:
    rest, x_val, y_val = load(name).holdout(n_val, seed=0)
    dataset = rest.subset(n_train or None, n_test or None, seed=0)
    if split == "iid":
        parts = partition.iid(len(dataset.y_train), clients, seed=0)
    else:
        parts = partition.dirichlet(dataset.y_train, clients, alpha=alpha, seed=0, min_size=10)
    holdings = [(dataset.x_train[p], dataset.y_train[p]) for p in parts]
    return Problem(dataset, tuple(parts), holdings, (x_val, y_val), build(model, dataset))


def client_opt(config: Mapping[str, Any]) -> ClientOpt:
    """The local training that a run's config describes."""
    return ClientOpt(**{f.name: config[f.name] for f in fields(ClientOpt)})


# --- runs ------------------------------------------------------------------------------------------------------------


def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One training from scratch without the clients in `exclude`; keeps the final model as "w".

    Resumes after the last finished round. Original and Retrain of one seed start from the same weights.
    """
    p, seed = problem(config), config["seed"]
    w, done, meter = p.model.init(stream_seed(seed, "init")), 0, Meter()
    if (saved := context.resume()) is not None:
        w, done, meter = saved[0]["w"], saved[1]["round"], Meter(**saved[1]["meter"])

    def after_round(t: int, w_t: Tensor, _: object) -> None:
        if t % EVALUATE_EVERY == 0 or t in (1, config["rounds"]):
            context.log(round=t, test=accuracy(p.model, w_t, *p.test), validation=accuracy(p.model, w_t, *p.validation))
        context.checkpoint({"w": w_t}, {"round": t, "meter": asdict(meter)})

    w = fedavg(
        p.model,
        w,
        p.clients,
        rounds=config["rounds"] - done,
        local=client_opt(config),
        seed=seed,
        exclude=config["exclude"],
        first_round=done + 1,
        meter=meter,
        after_round=after_round,
    )
    last = context.rounds[-1]
    counted = {"bytes": meter.bytes, "images": meter.images}
    return {"test": last["test"], "validation": last["validation"], **counted}, {"w": w}


def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method forgets one target; then recovery until both stop rules are met or `cap` rounds are over.

    Metrics: "unlearned" (right after the unlearning step) and, per stop rule, the state in which recovery
    stopped: rounds, reached, test and forget accuracy, both attacks, distances to the retrained model,
    and the costs counted up to there. "Original" and "Retrain" are evaluated as they are.
    """
    p, target, method = problem(config), config["target"], config["method"]
    original, retrained = reference_models(config, context.store)
    if method in REFERENCES:
        w = original if method == "Original" else retrained
        return {"final": evaluate(p, w, target, config["seed"], retrained)}, None

    reference = {rule: accuracy(p.model, retrained, *getattr(p, rule)) for rule in STOP_RULES}
    if (saved := context.resume()) is None:
        with context.phase("unlearn"):
            state = _Recovering.begin(config, p, original)
    else:
        state = _Recovering(saved[0]["w"], **{**saved[1], "recovery": Meter(**saved[1]["recovery"])})
    with context.phase("recover"):
        for k, w_k in state.path(config, p):
            if k < len(context.rounds):
                continue  # this state was evaluated before the interruption
            scores = {rule: accuracy(p.model, w_k, *getattr(p, rule)) for rule in STOP_RULES}
            context.log(round=k, **scores, forget=accuracy(p.model, w_k, *p.clients[target]))
            for rule in STOP_RULES:
                reached = scores[rule] >= reference[rule]
                if rule not in state.metrics and (reached or k == config["cap"]):
                    final = evaluate(p, w_k, target, config["seed"], retrained)
                    state.metrics[rule] = {"rounds": k, "reached": reached, **final, **state.costs()}
            context.checkpoint({"w": w_k}, state.meta(k))
            if all(rule in state.metrics for rule in STOP_RULES):
                break
    return state.metrics, None


@dataclass
class _Recovering:
    """What an interrupted recovery needs in order to go on: the model, its round, and what was found so far."""

    w: Tensor
    round: int
    metrics: dict[str, Any]
    spent: dict[str, int]  # by the unlearning step: bytes, images, storage, rounds
    recovery: Meter

    @classmethod
    def begin(cls, config: Mapping[str, Any], p: Problem, original: Tensor) -> _Recovering:
        """Apply the method to the original model."""
        meter = Meter()
        w = apply_method(config, p, original, meter)
        unlearned = {
            "test": accuracy(p.model, w, *p.test),
            "forget": accuracy(p.model, w, *p.clients[config["target"]]),
            "step": parameter_gap(w, original),
            "sha256": hashlib.sha256(w.numpy().tobytes()).hexdigest(),
        }
        spent = {name: getattr(meter, name) for name in ("bytes", "images", "storage", "rounds")}
        return cls(w, 0, {"unlearned": unlearned}, spent, Meter())

    def path(self, config: Mapping[str, Any], p: Problem) -> Iterator[tuple[int, Tensor]]:
        """The recovery rounds still to come, the present state first. They continue the training's count."""
        return recovery_path(
            p.model,
            self.w,
            p.clients,
            local=client_opt(config),
            seed=config["seed"],
            first_round=config["rounds"] + 1 + self.spent["rounds"],
            exclude=[config["target"]],
            cap=config["cap"],
            start=self.round,
            meter=self.recovery,
        )

    def costs(self) -> dict[str, int]:
        """Counted so far, both phases together; storage is what the method must keep."""
        return {
            "bytes": self.spent["bytes"] + self.recovery.bytes,
            "images": self.spent["images"] + self.recovery.images,
            "storage": self.spent["storage"],
        }

    def meta(self, k: int) -> dict[str, Any]:
        """For the checkpoint after round k."""
        return {"round": k, "metrics": self.metrics, "spent": self.spent, "recovery": asdict(self.recovery)}


def mode_equivalence(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Claim P14 on the trained net: Regular(eta_r, eta_u) against Special((eta_r + eta_u) p_u), same updates."""
    p, target = problem(config), config["target"]
    original, _ = reference_models(config, context.store)
    sizes = [len(y) for _, y in p.clients]
    p_u = sizes[target] / sum(sizes)
    regular = PUF(**config["puf"])
    special = PUF("special", eta_u=(regular.eta_r + regular.eta_u) * p_u, epochs_u=regular.epochs_u)
    w_regular, w_special = (_puf(config, p, original, mode) for mode in (regular, special))
    return {"relative_difference": relative_step_difference(original, w_special, w_regular), "p_u": p_u}, None


def apply_method(config: Mapping[str, Any], p: Problem, w: Tensor, meter: Meter) -> Tensor:
    """The unlearning step alone: the original model `w` (d,) to the unlearned one."""
    method = config["method"]
    if method == "Natural":
        return natural(w, meter=meter)
    if method == "NoT":
        return negate_weights(p.model, w, example=p.dataset.x_test[:1], meter=meter)
    return _puf(config, p, w, PUF(**config["puf"]), meter)


def _puf(config: Mapping[str, Any], p: Problem, w: Tensor, puf: PUF, meter: Meter | None = None) -> Tensor:
    t = config["rounds"] + 1  # the unlearning round continues the count, and so the learning-rate schedule
    kwargs = {"local": client_opt(config), "seed": config["seed"], "round": t, "meter": meter}
    return puf_round(p.model, w, p.clients, [config["target"]], puf, **kwargs)


def reference_models(config: Mapping[str, Any], store: RecordStore) -> tuple[Tensor, Tensor]:
    """The original model and the one retrained without the config's target, from their records."""
    training = {key: config[key] for key in _TRAINING_KEYS}
    data_hash = problem(config).data_hash
    models = []
    for exclude in ([], [config["target"]]):
        record = store.run(train, {**training, "exclude": exclude}, data_hash=data_hash)
        models.append(store.tensors(record.key)["w"])
    return models[0], models[1]


_TRAINING_KEYS = tuple(Experiment("", ["digits/iid/mlp"], [0], [0]).training("digits/iid/mlp", 0))


def evaluate(p: Problem, w: Tensor, target: int, seed: int, retrained: Tensor) -> dict[str, float]:
    """Utility, forgetting, both attacks, and the distance to the retrained model."""
    forget, retain = p.clients[target], p.retained(target)
    conf = {side: confidences(p.model, w, *xy) for side, xy in (("f", forget), ("r", retain), ("t", p.test))}
    return {
        "test": accuracy(p.model, w, *p.test),
        "forget": accuracy(p.model, w, *forget),
        "song": song(conf["f"], conf["r"], conf["t"], seed=seed),
        "yeom": yeom(p.model.predict_losses(w, *forget), p.model.predict_losses(w, *retain)),
        "kl": kl_divergence(p.model, w, retrained, p.dataset.x_test),
        "gap": parameter_gap(w, retrained),
    }


# --- everything ------------------------------------------------------------------------------------------------------


def run_training(
    e: Experiment, store: RecordStore, jobs: int | None = None
) -> dict[tuple[str, int, int | None], Record]:
    """All trainings, by (setting, seed, left-out client); None is the original model."""
    keys: list[tuple[str, int, int | None]] = [
        (s, seed, left_out) for s in e.settings for seed in e.seeds for left_out in (None, *e.targets)
    ]
    configs = [e.training(s, seed, [] if out is None else [out]) for s, seed, out in keys]
    return dict(zip(keys, _map(train, configs, store, jobs, "training"), strict=True))


def run_unlearning(
    e: Experiment, store: RecordStore, jobs: int | None = None, methods: Sequence[str] = (*REFERENCES, *METHODS)
) -> dict[tuple[str, int, int, str], Record]:
    """Every method on every (setting, seed, target). Missing trainings are made on the way."""
    keys = [(*cell, method) for cell in e.cells() for method in methods]
    configs = [e.unlearning(*key) for key in keys]
    return dict(zip(keys, _map(unlearn, configs, store, jobs, "unlearning and recovery"), strict=True))


def run_printed(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[tuple[str, int, int, str], Record]:
    """PUF-Special and Regular as Algorithm 1 prints them, without sample counts, on the first setting."""
    keys = [(*cell, m) for cell in e.cells() if cell[0] == e.settings[0] for m in ("PUF-Special", "PUF-Regular")]
    configs = [e.unlearning(*key, form="printed") for key in keys]
    return dict(zip(keys, _map(unlearn, configs, store, jobs, "formula as printed"), strict=True))


def run_equivalence(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[tuple[str, int, int], Record]:
    """Claim P14, measured after training, on every cell."""
    keys = list(e.cells())
    configs = [e.unlearning(*key, "PUF-Regular") for key in keys]
    return dict(zip(keys, _map(mode_equivalence, configs, store, jobs, "Regular against Special"), strict=True))


def _map(fn: Any, configs: list[dict[str, Any]], store: RecordStore, jobs: int | None, label: str) -> list[Record]:
    return map_runs(fn, configs, store=store, jobs=jobs, label=label, data_hash=lambda c: problem(c).data_hash)


def live_recovery(
    e: Experiment, store: RecordStore, setting: str, seed: int, target: int, mode: str, eta_u: float, rounds: int = 8
) -> list[dict[str, float]]:
    """PUF and `rounds` recovery rounds right now, without a record: for the notebook's sliders."""
    config = e.unlearning(setting, seed, target, f"PUF-{mode.capitalize()}", eta_u=eta_u)
    p = problem(config)
    original, _ = reference_models(config, store)
    w = _puf(config, p, original, PUF(**config["puf"]))
    path = recovery_path(
        p.model,
        w,
        p.clients,
        local=client_opt(config),
        seed=seed,
        first_round=e.rounds + 2,
        exclude=[target],
        cap=rounds,
    )
    return [
        {"round": k, "test": accuracy(p.model, v, *p.test), "forget": accuracy(p.model, v, *p.clients[target])}
        for k, v in path
    ]
