"""What every horizontal experiment is about: a data set, a way to split it, a net, and what is trained on.

`Setting` reads the short text that notebooks and profiles use, `problem` turns the flat config of a run
into data, clients and a model, `train_resumably` trains on it inside a run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fu_core import partition
from fu_core.data import Dataset, load
from fu_core.data.datasets import data_dir
from fu_core.errors import ConfigError, check_choice, check_positive
from fu_core.federation import Client, ClientOpt, Federation, fedavg
from fu_core.models import MODELS, FlatModel, build
from fu_core.streams import stream_seed
from fu_core.unlearning.memory import Memory
from fu_papers.lab.context import RunContext
from fu_papers.lab.device import device

EVALUATE_EVERY = 5  # rounds of training between two evaluations
SMALLEST_CLIENT = 10
DATASET_TITLES = {"digits": "Digits", "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10",
                  "cifar100": "CIFAR-100", "tiny_imagenet_100": "Tiny-ImageNet-100", "pathmnist": "PathMNIST",
                  "breast_cancer": "Breast cancer", "adult": "Income (Adult)",
                  "phantom": "Phantom (synthetic)", "prostate_mri": "ProstateMRI"}  # fmt: skip
NET_TITLES = {"unit_softmax": "softmax regression", "softmax_regression": "softmax regression", "mlp": "MLP",
              "tiny_cnn": "tiny CNN", "lenet": "LeNet", "simple_cnn": "CNN", "small_resnet": "small ResNet",
              "resnet18": "ResNet-18", "cnn": "CNN", "pooled_cnn": "pooled CNN",
              "strided_cnn": "strided CNN"}  # fmt: skip
SPLITS = ("iid", "dirichlet", "released", "file", "site")
RELEASED_SIZES = (2968, 2238, 4541, 2278, 7305, 13500, 4951, 4453, 2715, 5048)  # of PUF's ten CIFAR-10 clients


def dataset_name(dataset: str) -> str:
    """The heading of a data set, which may be followed by its nets: "Digits" for "digits/mlp"."""
    name = dataset.split("/")[0]
    return DATASET_TITLES.get(name, name)


def dataset_title(dataset: str) -> str:
    """The heading of a data set with its net, or with its parties' bottom nets: "Digits, MLP"."""
    net = dataset.split("/")[1]
    return f"{dataset_name(dataset)}, {NET_TITLES.get(net, net)}"


@dataclass(frozen=True)
class Setting:
    """One data set, one way to split it, one net, written as `dataset/split/model`.

    The split is `iid`, `dirichlet-<alpha>`, `released-<alpha>` (the same with the client sizes of PUF's CIFAR-10
    split, whose index lists mean nothing in data of another order), `file-<name>` (the lists of indices of the whole
    training set in <name>.json of the data folder) or, for data that comes from several hospitals, `site`:
    "fashion_mnist/dirichlet-0.3/tiny_cnn".
    """

    dataset: str
    split: str  # the kind, or "file-<name>"
    alpha: float  # 0 unless drawn from a Dirichlet distribution
    model: str

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Read `dataset/split/model`; raises ConfigError naming the part that is wrong."""
        parts = text.split("/")
        if len(parts) != 3:
            raise ConfigError(f"settings must look like 'digits/dirichlet-0.3/tiny_cnn', got {text!r}")
        dataset, split, model = parts
        kind, _, number = split.partition("-")
        check_choice(f"split of {text!r}", kind, SPLITS, ConfigError)
        check_choice(f"model of {text!r}", model, MODELS, ConfigError)
        if kind == "file":
            if not re.fullmatch(r"[\w.-]+", number):
                raise ConfigError(f"split of {text!r} must name a file of the data folder, file-<name>, got {split!r}")
            return cls(dataset, split, 0.0, model)
        drawn = kind in ("dirichlet", "released")
        try:
            alpha = float(number) if drawn else 0.0
        except ValueError:
            raise ConfigError(f"alpha of {text!r} must be a number, got {number!r}") from None
        if not drawn and split != kind:
            raise ConfigError(f"split of {text!r} must be {kind!r} alone, which takes no alpha, got {split!r}")
        if drawn:
            check_positive(f"alpha of {text!r}", alpha, ConfigError)
        return cls(dataset, kind, alpha, model)

    @property
    def skewed(self) -> bool:
        """Do clients differ in their classes by the split?"""
        return self.split not in ("iid", "site")

    @property
    def title(self) -> str:
        """For headings: "CIFAR-10, Dirichlet 0.3"."""
        return f"{dataset_name(self.dataset)}, {self.split_title}"

    @property
    def split_title(self) -> str:
        """How the data is dealt out, for headings."""
        drawn = f"Dirichlet {self.alpha:g}"
        told = {"iid": "IID", "site": "by site", "dirichlet": drawn, "released": f"{drawn}, released sizes"}
        return told.get(self.split, self.split.replace("-", " ", 1))


@dataclass(frozen=True)
class Problem:
    """A data set dealt out to clients, with the net that is to learn it.

    What is trained and evaluated on lies on the computing device; `dataset` and `parts` stay on the CPU.
    """

    dataset: Dataset
    parts: tuple[Tensor, ...]
    clients: list[Client]
    validation: Client
    test: Client
    model: FlatModel

    @property
    def data_hash(self) -> str:
        """Of the data and who holds what."""
        return hashlib.sha256(f"{self.dataset.sha256}/{partition.partition_hash(self.parts)}".encode()).hexdigest()[:16]

    @property
    def description(self) -> dict[str, Any]:
        """Who holds how many samples of each class, where the data comes from, how large the net is.

        Images with masks have no classes: the counts are then one number per client.
        """
        if self.dataset.task == "segmentation":
            counts = [[len(part)] for part in self.parts]
        else:
            counts = partition.label_counts(self.parts, self.dataset.y_train, self.dataset.classes).tolist()
        return {"label_counts": counts, "source": self.dataset.source, "parameters": self.model.d}

    def federation(self, config: Mapping[str, Any]) -> Federation:
        """Everybody, with the local training, the seed and, if it has any, the participation of a run's config."""
        f = Federation(self.model, dict(enumerate(self.clients)), client_opt(config), config["seed"])
        return f.having(participation=config["participation"]) if config.get("participation", 1.0) < 1 else f


def problem(config: Mapping[str, Any]) -> Problem:
    """The problem of a run's config. The split does not depend on the training seed."""
    return _problem(*(config[key] for key in PROBLEM_KEYS))


@lru_cache(maxsize=4)
def _problem(
    name: str, split: str, alpha: float, model: str, clients: int, n_train: int, n_val: int, n_test: int
) -> Problem:
    whole = load(name)
    rest, *held_out = whole.holdout(n_val, seed=0) if n_val else (whole, whole.x_train[:0], whole.y_train[:0])
    dataset = rest.subset(n_train or None, n_test or None, seed=0)
    if split == "iid":
        parts = partition.iid(len(dataset.y_train), clients, seed=0)
    elif split == "site":
        parts = _by_site(dataset, clients)
    elif split == "released":
        if clients != len(RELEASED_SIZES):
            raise ConfigError(f"clients must be {len(RELEASED_SIZES)} for a split 'released', got {clients}")
        n = len(dataset.y_train)
        sizes = [n * size // sum(RELEASED_SIZES) for size in RELEASED_SIZES]
        parts = partition.dirichlet(dataset.y_train, clients, alpha=alpha, seed=0, sizes=sizes)
    elif split.startswith("file-"):
        parts = _of_file(split, clients, len(whole.y_train), _kept(whole, n_val, n_train))
    else:
        # a client with a handful of samples would have nothing to forget that could be measured
        least = min(SMALLEST_CLIENT, max(1, len(dataset.y_train) // (10 * clients)))
        parts = partition.dirichlet(dataset.y_train, clients, alpha=alpha, seed=0, min_size=least)

    def resident(x: Tensor, y: Tensor) -> Client:
        return x.to(device()), y.to(device())

    return Problem(
        dataset,
        tuple(parts),
        [resident(dataset.x_train[p], dataset.y_train[p]) for p in parts],
        resident(*held_out),
        resident(dataset.x_test, dataset.y_test),
        build(model, dataset),
    )


def _kept(whole: Dataset, n_val: int, n_train: int) -> Tensor:
    """Which samples of a data set are trained on, in order, when some are held out and `n_train` of the rest taken."""
    numbered = replace(whole, site_train=torch.arange(len(whole.y_train)))  # its number goes wherever a sample goes
    rest = numbered.holdout(n_val, seed=0)[0] if n_val else numbered
    numbers = rest.subset(n_train or None, seed=0).site_train
    assert numbers is not None
    return numbers


def _of_file(split: str, clients: int, n: int, kept: Tensor) -> list[Tensor]:
    """The partition in a file, whose indices are of all n training samples, as positions among those `kept` of them.

    A sample that is held out, or not among those that are taken, leaves its client. ConfigError where none is left.
    """
    published = partition.read(data_dir() / f"{split.removeprefix('file-')}.json", n)
    if len(published) != clients:
        raise ConfigError(f"clients must be {len(published)}, as in the file of split {split!r}, got {clients}")
    position = torch.full((n,), -1).index_copy(0, kept, torch.arange(len(kept)))
    parts = [at[at >= 0] for at in (position[part] for part in published)]
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        raise ConfigError(
            f"n_train and n_val must leave every client of split {split!r} a sample, got none for client {empty[0]}"
        )
    return parts


def data_hash(config: Mapping[str, Any]) -> str:
    """Of the data behind a run's config, and who holds what."""
    return problem(config).data_hash


def _by_site(dataset: Dataset, clients: int) -> list[Tensor]:
    if dataset.site_train is None:
        raise ConfigError(f"split 'site' needs data from several hospitals; {dataset.name} names none")
    parts = partition.natural(dataset.site_train)
    if len(parts) != clients:
        raise ConfigError(f"clients must be {len(parts)}, the sites of {dataset.name}, got {clients}")
    return parts


def client_opt(config: Mapping[str, Any]) -> ClientOpt:
    """The local training that a run's config describes, or a paper's parameters."""
    return ClientOpt(**{f.name: config[f.name] for f in fields(ClientOpt)})


def initial_model(config: Mapping[str, Any], model: FlatModel) -> Tensor:
    """Where every training of the config's seed starts (d,)."""
    return model.init(stream_seed(config["seed"], "init")).to(device())


def train_resumably(
    f: Federation,
    w_0: Tensor,
    rounds: int,
    context: RunContext,
    scores: Callable[[Tensor], Mapping[str, float]],
    memory: Memory | None = None,
) -> Tensor:
    """FedAvg from `w_0` inside a run: the final model (d,). What it costs is counted by the federation's meter.

    Resumes after the last finished round. Logs `scores(w)` every few rounds. `memory` gets the clients' updates, and
    survives an interruption.
    """
    w, done = w_0, 0
    if (saved := context.resume()) is not None:
        tensors, meta = saved
        w, done = tensors.pop("w").to(device()), meta["round"]
        f.meter.restore(meta["meter"])
        if memory is not None:
            memory.restore(tensors, device())

    def after_round(t: int, w_t: Tensor, _: object) -> None:
        if t % EVALUATE_EVERY == 0 or t in (1, rounds):
            context.log(round=t, **scores(w_t))
        kept = memory.tensors() if memory is not None else {}
        context.checkpoint({"w": w_t, **kept}, {"round": t, "meter": asdict(f.meter)})

    return fedavg(
        f,
        w,
        rounds - done,
        first_round=done + 1,
        after_round=after_round,
        on_updates=None if memory is None else memory.record,
    )


PROBLEM_KEYS = ("dataset", "split", "alpha", "model", "clients", "n_train", "n_val", "n_test")
TRAINING_FIELDS = tuple(f.name for f in fields(ClientOpt))  # of a config, beside those of its problem


def plain_fields(values: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, for a config: 2 and 2.0 must name the same run."""
    return {
        f.name: float(getattr(values, f.name)) if f.type == "float" else getattr(values, f.name) for f in fields(values)
    }
