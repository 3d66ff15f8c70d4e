"""FedORA's experiments as runs: from the parameters of a notebook or profile to run records.

`train` makes original and retrained vertical models, clean or with a backdoor in the samples to be forgotten;
`unlearn` lets one method serve a request and evaluates; `speed` times all methods in one process (Table III).
Everything shown (fedora_figures, fedora_claims) is read from their records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fu_core.data import Dataset, load
from fu_core.errors import ConfigError
from fu_core.evaluation.backdoor import Trigger
from fu_core.evaluation.membership import fit_attack, half_of_each_class, shadow
from fu_core.federation.local import ClientOpt
from fu_core.federation.meter import Meter
from fu_core.federation.vertical import (
    Boundary,
    EmbeddingNoise,
    Optimisers,
    Parties,
    Vectors,
    deal,
    outputs,
    predict,
    split_features,
)
from fu_core.federation.vertical import (
    train as train_parties,
)
from fu_core.partition import vertical
from fu_core.streams import stream, stream_seed
from fu_core.unlearning.baselines.cvfu import cvfu
from fu_core.unlearning.baselines.ico import ico
from fu_core.unlearning.baselines.vertical_ga import vertical_ga
from fu_core.unlearning.fedora import FedORA, Iteration, fedora, threshold_of_entropy
from fu_papers.fedora.grid import BASELINES, FORMS, Cell, Experiment, Task
from fu_papers.fedora.theory_score import entropy
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device
from fu_papers.lab.pool import map_runs
from fu_papers.lab.record import Record, RunFunction, run_function
from fu_papers.lab.store import RecordStore

PARTIES = 2  # passive ones, as in the paper
BACKDOOR = 0  # label of the backdoor's target (Sec. V-A5)
# Who gets which columns where halves would tear a category apart: Adult's numbers, workclass, education, marital
# status and occupation to the first party, the rest to the second.
FIRST_COLUMNS = {"adult": 53}


# --- problems --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """Which samples a request takes: rows of the training set."""

    forget: Tensor
    retain: Tensor
    removed: tuple[int, ...]  # classes of which nothing is left


def forgotten_classes(m: int, classes: int) -> tuple[int, ...]:
    """The classes a request concerns: 1 to m. Class 0, the backdoor's target, comes last."""
    return tuple((1 + i) % classes for i in range(m))


def split_of(request: str, dataset: Dataset) -> Split:
    """Read a request: "none", "classes-2-50" (of two classes half the samples), "samples-50" (50 random ones).

    Random: which samples, from streams of the request alone: the same whatever the training seed.
    """
    kind, *numbers = request.split("-")
    wanted = {"none": 0, "classes": 2, "samples": 1}.get(kind)
    if wanted is None or len(numbers) != wanted or not all(number.isdigit() for number in numbers):
        raise ConfigError(f"request must look like 'none', 'classes-2-50' or 'samples-50', got {request!r}")
    y = dataset.y_train
    chosen: list[Tensor] = []
    removed: tuple[int, ...] = ()
    if kind == "classes":
        m, percent = (int(number) for number in numbers)
        if not 0 < m <= dataset.classes:
            raise ConfigError(f"classes must be 1 to {dataset.classes} for {dataset.name}, got {m}")
        for label in forgotten_classes(m, dataset.classes):
            rows = (y == label).nonzero().flatten()
            order = torch.randperm(len(rows), generator=stream(0, "vertical request", label))
            chosen.append(rows[order[: round(percent * len(rows) / 100)]])
        removed = forgotten_classes(m, dataset.classes) if percent == 100 else ()
    elif kind == "samples":
        if not 0 < int(numbers[0]) < len(y):
            raise ConfigError(f"request must leave some of {len(y)} samples and take one, got {request!r}")
        chosen.append(torch.randperm(len(y), generator=stream(0, "vertical request", "any"))[: int(numbers[0])])
    gone = torch.zeros(len(y), dtype=torch.bool)
    for rows in chosen:
        gone[rows] = True
    return Split(gone.nonzero().flatten(), (~gone).nonzero().flatten(), removed)


def poisoned(dataset: Dataset, rows: Tensor) -> Dataset:
    """The data set with the trigger on the samples `rows`, which are labelled as the backdoor's target."""
    x, y = dataset.x_train.clone(), dataset.y_train.clone()
    x[rows] = triggered(dataset, x[rows])
    y[rows] = BACKDOOR
    return replace(dataset, x_train=x, y_train=y)


def triggered(dataset: Dataset, x: Tensor) -> Tensor:
    """Images with one white pixel at the bottom right; rows of a table with their last column at its maximum.

    Either lies at the second party.
    """
    if x.dim() == 4:
        return Trigger(size=1, target=BACKDOOR, value=255).stamp(x)
    stamped = x.clone()
    stamped[:, -1] = dataset.x_train[:, -1].max()
    return stamped


def noisy(dataset: Dataset, std: float, columns: Tensor) -> Dataset:
    """Noise on the first party's share of every sample, training and test (Table VI); see `spoilt`."""
    x_train, x_test = (
        spoilt(dataset, x, std, columns, split) for x, split in ((dataset.x_train, "train"), (dataset.x_test, "test"))
    )
    return replace(dataset, x_train=x_train, x_test=x_test)


def spoilt(dataset: Dataset, x: Tensor, std: float, columns: Tensor, split: str) -> Tensor:
    """Gaussian noise on `columns` of the samples `x`: `std` in units of 0 to 1 for images, of a column's spread else.

    Random: from stream (0, "party noise", split).
    """
    part = x[..., columns].float()
    noise = torch.randn(part.shape, generator=stream(0, "party noise", split))
    mixed = x.clone()
    if x.dim() == 4:
        mixed[..., columns] = (part + 255 * std * noise).round().clamp(0, 255).to(x.dtype)
    else:
        mixed[..., columns] = part + std * dataset.std[columns] * noise
    return mixed


@lru_cache(maxsize=6)
def _dataset(name: str, n_train: int, n_val: int, n_test: int, noise: float) -> tuple[Dataset, Tensor, Tensor]:
    rest, x, y = load(name).holdout(n_val, seed=0)
    dataset = rest.subset(n_train or None, n_test or None, seed=0)
    if not noise:
        return dataset, x, y
    first = _blocks(dataset)[0]
    return noisy(dataset, noise, first), spoilt(dataset, x, noise, first, "validation"), y


def dataset_of(config: Mapping[str, Any]) -> Dataset:
    """The data of a run's config, without triggers. `_dataset` has what was held out for validation, too."""
    return _dataset(*(config[key] for key in DATA_KEYS))[0]


def _blocks(dataset: Dataset) -> list[Tensor]:
    """Which columns each passive party has."""
    first = FIRST_COLUMNS.get(dataset.name)
    if first is None:
        return vertical(tuple(dataset.x_train.shape[1:]), PARTIES)
    return list(torch.arange(dataset.x_train.shape[1]).split([first, dataset.x_train.shape[1] - first]))


class VerticalProblem:
    """A run's data, parties with fresh nets, and request."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.clean = dataset_of(config)
        self.split = split_of(config["request"], self.clean)
        self.dataset = poisoned(self.clean, self.split.forget) if config["poison"] else self.clean
        self.blocks = _blocks(self.clean)
        dealt, test = deal(
            self.dataset, bottom=config["bottom"], seed=config["seed"], blocks=self.blocks, device=device()
        )
        if config["dp_std"]:
            passive = tuple(
                replace(
                    party,
                    noise=EmbeddingNoise(config["dp_std"], config["dp_clip"], stream_seed(config["seed"], "dp", k)),
                )
                for k, party in enumerate(dealt.passive)
            )
            dealt = Parties(passive, dealt.active)
        self.parties, self.test = dealt, test
        self.forget, self.retain = (rows.to(device()) for rows in (self.split.forget, self.split.retain))
        self.y_test = self.dataset.y_test.to(device())
        _, x, y = _dataset(*(config[key] for key in DATA_KEYS))
        self.validation = [x_k.to(device()) for x_k in split_features(x, self.blocks)]
        self.y_validation = y.to(device())

    def optimisers(self, config: Mapping[str, Any]) -> Optimisers:
        """Everybody's, fresh."""
        return Optimisers([ClientOpt(**{name: config[name] for name in LOCAL})])


# --- training --------------------------------------------------------------------------------------------------------


@run_function("fedora.train")
def train(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Joint training from scratch: on all samples, or without those of the request. Keeps everybody's parameters."""
    p = VerticalProblem(config)
    rows = p.retain if config["exclude"] else torch.arange(len(p.dataset.y_train), device=device())
    optimisers, w, done, boundary = p.optimisers(config), p.parties.w, 0, Boundary(name="training")
    if (saved := context.resume()) is not None:
        tensors, meta = saved
        w, done = _vectors(tensors), meta["epoch"]
        boundary = Boundary(Meter(**meta["meter"]), "training", meta["exchanges"])
        moments = {name: t.to(device()) for name, t in tensors.items() if name.startswith("moment")}
        optimisers.restore(moments, meta["steps"], len(p.parties))

    def after_epoch(epoch: int, w_t: Vectors) -> None:
        meta = {
            "epoch": epoch,
            "meter": asdict(boundary.meter),
            "steps": optimisers.states[0].steps,
            "exchanges": boundary.exchanges,
        }
        context.checkpoint({**_named(w_t), **optimisers.tensors()}, meta)

    trained = train_parties(
        p.parties.having(w), rows, optimisers, epochs=config["epochs"] - done, seed=config["seed"],
        first_epoch=done + 1, boundary=boundary, after_epoch=after_epoch,
    )  # fmt: skip
    test = _percent(predict(trained, p.test).argmax(dim=1) == p.y_test)
    fit = _percent(outputs(trained, rows).argmax(dim=1) == trained.active.y[rows])
    return {"test": test, "train": fit, "bytes": boundary.meter.bytes}, _named(trained.w)


def _named(w: Vectors) -> dict[str, Tensor]:
    return {f"party {k}": w_k for k, w_k in enumerate(w)}


def _vectors(tensors: Mapping[str, Tensor]) -> Vectors:
    return [tensors[f"party {k}"].to(device()) for k in range(PARTIES + 1)]


def trained_parties(config: Mapping[str, Any], store: RecordStore, p: VerticalProblem, *, retrain: bool) -> Parties:
    """The parties of `p` with the parameters of the original or the retrained model; trained if need be."""
    poison = config["poison"] and not retrain
    training = {key: config[key] for key in TRAINING_KEYS} | {"exclude": retrain, "poison": poison}
    training["request"] = config["request"] if retrain or poison else "none"
    record = store.run(train, training, data_hash=data_hash(training))
    names = [f"party {k}" for k in range(PARTIES + 1)]
    return p.parties.having(_vectors(store.tensors(record.key, names)))


# --- unlearning ------------------------------------------------------------------------------------------------------


@run_function("fedora.unlearn")
def unlearn(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """One method serves one request; logs FedORA's dual variable, residual and step sizes per iteration."""
    p = VerticalProblem(config)
    original, retrained = (trained_parties(config, context.store, p, retrain=r) for r in (False, True))
    boundary, method = Boundary(name="unlearning"), config["method"]
    if method in ("Original", "Retrain"):
        result = original if method == "Original" else retrained
    else:

        def log(i: Iteration) -> None:
            context.log(**{name: value for name, value in asdict(i).items() if not _missing(value)})

        result = serve(config, p, original, boundary, on_iteration=log)
    meter = boundary.meter
    costs = {"images": meter.images, "up": meter.bytes_up, "down": meter.bytes_down, "kept": meter.storage}
    return {**evaluate(p, result, original, retrained), **costs, "poison": config["poison"]}, None


def _missing(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def serve(
    config: Mapping[str, Any],
    p: VerticalProblem,
    original: Parties,
    boundary: Boundary,
    *,
    method: str = "",
    on_iteration: Callable[[Iteration], None] | None = None,
) -> Parties:
    """The parties after `method` (by default the config's) has served the request."""
    name, seed = method or config["method"], config["seed"]
    learning = {"batch_size": config["batch_size"], "seed": seed, "boundary": boundary}
    if name in FORMS:
        settings = FedORA(**config["fedora"])
        if name == "FedORA calibrated":
            settings = replace(settings, threshold=_threshold_of_unseen(p, original, settings))
        return fedora(
            original, p.forget, p.retain, seed=seed, settings=settings, boundary=boundary, on_iteration=on_iteration
        )
    if name == "GA":
        return vertical_ga(original, p.forget, lr=config["ga_lr"], epochs=config["ga_epochs"], **learning)
    if name == "ICO":
        how = {"scale": config["ico_scale"], "share": config["ico_share"], "lr": config["lr"]}
        return ico(original, p.forget, p.retain, **how, **learning)
    if name == "CVFU":
        return cvfu(original, p.forget, p.retain, lr=config["cvfu_lr"], epochs=config["cvfu_epochs"], **learning)
    raise ConfigError(f"method must be one of {(*BASELINES, *FORMS)}, got {name!r}")


def _threshold_of_unseen(p: VerticalProblem, original: Parties, s: FedORA) -> float:
    """The threshold that asks for no more uncertainty than held-out samples of the same classes already show."""
    same = torch.isin(p.y_validation, p.clean.y_train.to(device())[p.forget])
    logits = predict(original, [x_k[same] for x_k in p.validation])
    return threshold_of_entropy(_entropy(logits), weight=s.weight, score=s.score)


def _entropy(logits: Tensor) -> float:
    """Mean entropy of the predictions, as a share of log C."""
    return float(entropy(logits)) / math.log(logits.shape[1])


def evaluate(p: VerticalProblem, parties: Parties, original: Parties, retrained: Parties) -> dict[str, Any]:
    """Utility, forgetting and closeness to retraining.

    test: percent over the classes of which something is left (errata F10), test_all over all; forget: on the
    forgotten samples as they were in training; entropy: mean over them, as a share of log C; mia: balanced accuracy
    of a shadow-model attack against unseen samples of the same classes, mia_fraction: forgotten samples taken for
    members; asr: triggered test images of other classes taken for the backdoor's target; gap: distance to the
    retrained parameters, as a share of doing nothing's.
    """
    logits, y = predict(parties, p.test), p.y_test
    right = logits.argmax(dim=1) == y
    left = ~torch.isin(y, torch.tensor(p.split.removed, device=y.device))
    forgotten = outputs(parties, p.forget)
    y_forget = parties.active.y[p.forget]
    metrics = {
        "test": _percent(right[left]),
        "test_all": _percent(right),
        "forget": _percent(forgotten.argmax(dim=1) == y_forget),
        "loss": float(F.cross_entropy(forgotten, y_forget)),
        "entropy": _entropy(forgotten),
        "gap": _distance(parties, retrained) / max(_distance(original, retrained), 1e-30),
    }
    target = y != BACKDOOR
    x = triggered(p.clean, p.dataset.x_test)[target.cpu()]
    stamped = predict(parties, [x_k.to(device()) for x_k in split_features(x, p.blocks)])
    metrics["asr"] = _percent(stamped.argmax(dim=1) == BACKDOOR)
    return metrics | _membership(p, parties, original, logits, forgotten)


def _membership(
    p: VerticalProblem, parties: Parties, original: Parties, logits: Tensor, forgotten: Tensor
) -> dict[str, float]:
    """The paper's attack: learnt on the original model's outputs, applied to the unlearned model's (methods 5.4)."""
    y = p.y_test
    half = half_of_each_class(y, "attacker's half")
    members = p.retain[torch.randperm(len(p.retain), generator=stream(0, "members")).to(device())[: int(half.sum())]]
    attack = fit_attack(
        [(outputs(original, members), original.active.y[members])],
        [(predict(original, p.test)[half], y[half])],
        seed=0,
    )
    y_forget = p.clean.y_train.to(device())[p.forget]
    unseen = ~half & torch.isin(y, y_forget)
    result = shadow(attack, (forgotten, parties.active.y[p.forget]), (logits[unseen], y[unseen]))
    return {"mia": result.balanced_accuracy, "mia_fraction": result.fraction, "mia_auc": result.auc}


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


def _distance(a: Parties, b: Parties) -> float:
    return math.sqrt(sum(float((a_k - b_k).double().pow(2).sum()) for a_k, b_k in zip(a.w, b.w, strict=True)))


# --- time (Table III) ------------------------------------------------------------------------------------------------


@run_function("fedora.speed")
def speed(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """Seconds, images and bytes of every method in one process, one thread, in turn.

    Retraining is projected from two of its epochs; everything else runs as it is, on the model of the training.
    """
    p = VerticalProblem(config)
    original = trained_parties(config, context.store, p, retrain=False)
    seconds: dict[str, list[float]] = {}
    costs: dict[str, dict[str, float]] = {}

    def clock(name: str, run: Callable[[Boundary], Any], times: float = 1.0) -> None:
        boundary = Boundary()
        began = perf_counter()
        run(boundary)
        seconds.setdefault(name, []).append(times * (perf_counter() - began))
        meter = boundary.meter
        costs[name] = {"images": times * meter.images, "up": times * meter.bytes_up, "down": times * meter.bytes_down}

    def two_epochs(boundary: Boundary) -> None:
        train_parties(p.parties, p.retain, p.optimisers(config), epochs=2, seed=config["seed"], boundary=boundary)

    for _ in range(config["repeats"]):
        clock("Retrain", two_epochs, config["epochs"] / 2)
        for name in (*BASELINES, "FedORA"):
            clock(name, partial(serve, config, p, original, method=name))
    return {
        "seconds": {name: median(times) for name, times in seconds.items()},
        "costs": costs,
        "n_forget": len(p.forget),
        "n_retain": len(p.retain),
        "parameters": original.d,
        "embedding": original.active.model.sizes[0] // original.active.classes,
        "classes": original.active.classes,
    }, None


@run_function("fedora.describe")
def describe(config: Mapping[str, Any], context: RunContext) -> tuple[dict[str, Any], None]:
    """What a data set consists of: source, who has how many features, the nets' sizes."""
    p = VerticalProblem(config)
    return {
        "source": p.clean.source,
        "features": [list(party.x.shape[1:]) for party in p.parties.passive],
        "parameters": [len(w_k) for w_k in p.parties.w],
        "n_train": len(p.clean.y_train),
        "n_test": len(p.clean.y_test),
    }, None


# --- all of them -----------------------------------------------------------------------------------------------------


def run_descriptions(e: Experiment, store: RecordStore) -> dict[str, Record]:
    """One `describe` record per data set."""
    configs = [e.training(e.sample_tasks(d)[0], e.seeds[0], exclude=False, poison=False) for d in e.datasets]
    return dict(zip(e.datasets, _run(describe, configs, store, "settings", 1), strict=True))


def run_training(e: Experiment, store: RecordStore, jobs: int | None = None) -> list[Record]:
    """All trainings, originals and retrained."""
    return _run(train, e.trainings(), store, "training", jobs)


def run_unlearning(e: Experiment, store: RecordStore, jobs: int | None = None) -> dict[Cell, Record]:
    """Everything behind Tables IV to IX and Figures 4 to 8."""
    cells = e.cells()
    return dict(zip(cells, _run(unlearn, list(cells.values()), store, "unlearning", jobs), strict=True))


def run_speed(e: Experiment, store: RecordStore) -> dict[Task, Record]:
    """Everything behind Tables II and III, one run at a time: nothing else of ours may run beside a clock."""
    speeds = e.speeds()
    return dict(zip(speeds, _run(speed, list(speeds.values()), store, "timing", 1), strict=True))


def _run(
    fn: RunFunction, configs: list[dict[str, Any]], store: RecordStore, label: str, jobs: int | None
) -> list[Record]:
    return map_runs(fn, configs, store=store, jobs=jobs, label=label, data_hash=data_hash)


def data_hash(config: Mapping[str, Any]) -> str:
    """Of the data a config is about; requests, triggers and noise follow from the config."""
    return dataset_of(config).sha256[:16]


LOCAL = tuple(f.name for f in fields(ClientOpt) if f.name != "epochs")
DATA_KEYS = ("dataset", "n_train", "n_val", "n_test", "noise")
TRAINING_KEYS = (
    *DATA_KEYS, "bottom", "dp_std", "dp_clip", "epochs", *LOCAL,
    "seed", "request", "exclude", "poison",
)  # fmt: skip
