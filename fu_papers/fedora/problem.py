"""What a vertical run is about: a data set dealt out to parties, triggers and noise on it, and what is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fu_core.data import Dataset, load
from fu_core.errors import ConfigError, InvalidRequest
from fu_core.evaluation.backdoor import Trigger
from fu_core.federation.local import ClientOpt
from fu_core.federation.vertical import Boundary, EmbeddingNoise, Parties, VerticalFederation, deal, split_features
from fu_core.partition import vertical
from fu_core.request import Deletion, Request, Rows
from fu_core.streams import stream, stream_seed
from fu_papers.lab.device import device

HALVES = "2"  # as many passive parties as in the paper
# Who gets which columns where halves would tear a category apart: Adult's numbers, workclass, education, marital
# status and occupation to the first party, the rest to the second.
FIRST_COLUMNS = {"adult": 53}
LOCAL = tuple(f.name for f in fields(ClientOpt) if f.name != "epochs")  # which are those of the whole training
DATA_KEYS = ("dataset", "n_train", "n_val", "n_test", "noise", "split")
PROBLEM_KEYS = (*DATA_KEYS, "bottom", "dp_std", "dp_clip", "seed", "request", "poison")


# --- triggers and noise ----------------------------------------------------------------------------------------------


def backdoor_target(dataset: Dataset) -> int:
    """The label of the backdoor's target (Sec. V-A5): 0, or the rarest class where most samples are of class 0.

    Where a model answers with the target anyway, as with Adult's majority, success is no backdoor's.
    """
    counts = dataset.y_train.bincount(minlength=dataset.classes)
    return int(counts.argmin()) if 2 * int(counts[0]) > len(dataset.y_train) else 0


def poisoned(dataset: Dataset, rows: Tensor) -> Dataset:
    """The data set with the trigger on the samples `rows`, which are labelled as the backdoor's target."""
    x, y = dataset.x_train.clone(), dataset.y_train.clone()
    x[rows] = triggered(dataset, x[rows])
    y[rows] = backdoor_target(dataset)
    return replace(dataset, x_train=x, y_train=y)


def triggered(dataset: Dataset, x: Tensor) -> Tensor:
    """Images with one white pixel at the bottom right; rows of a table with their last column at its maximum.

    Either lies at the second party.
    """
    if x.dim() == 4:
        return Trigger(size=1, target=backdoor_target(dataset), value=255).stamp(x)
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


# --- data ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=6)
def _dataset(
    name: str, n_train: int, n_val: int, n_test: int, noise: float, split: str
) -> tuple[Dataset, Tensor, Tensor]:
    rest, x, y = load(name).holdout(n_val, seed=0)
    dataset = rest.subset(n_train or None, n_test or None, seed=0)
    if not noise:
        return dataset, x, y
    first = column_blocks(dataset, split)[0]
    return noisy(dataset, noise, first), spoilt(dataset, x, noise, first, "validation"), y


def dataset_of(config: Mapping[str, Any]) -> Dataset:
    """The data of a run's config, without triggers. `_dataset` has what was held out for validation, too."""
    return _dataset(*(config[key] for key in DATA_KEYS))[0]


def data_hash(config: Mapping[str, Any]) -> str:
    """Of the data a config is about; requests, triggers and noise follow from the config."""
    return dataset_of(config).sha256[:16]


def column_blocks(dataset: Dataset, split: str = HALVES) -> list[Tensor]:
    """Which columns each passive party has.

    split: how many parties share them evenly, "4", or how many columns each gets, "1+7". Raises ConfigError for a split
    that the columns do not allow.
    """
    shape = tuple(dataset.x_train.shape[1:])
    width = shape[-1]
    if split == HALVES and dataset.name in FIRST_COLUMNS:
        split = f"{FIRST_COLUMNS[dataset.name]}+{width - FIRST_COLUMNS[dataset.name]}"
    sizes = [int(size) for size in split.split("+")]
    if len(sizes) > 1 and sum(sizes) == width:
        return list(torch.arange(width).split(sizes))
    if len(sizes) > 1 or sizes[0] > width:
        raise ConfigError(f"splits must share the {width} columns of {dataset.name} among the parties, got {split!r}")
    return vertical(shape, sizes[0])


def rows_of_request(request: str, dataset: Dataset) -> Rows:
    """What of a data set a request takes, by its own labels; {} for "none".

    Raises ConfigError that names the parameters if that would be nothing, or everything.
    """
    try:
        return Request.parse(request).rows({0: dataset.y_train}, dataset.classes)
    except InvalidRequest as error:
        counts = f"{len(dataset.y_train)} training samples of {dataset.name}"
        raise ConfigError(f"n_train, classes, percents and few must fit together: of {counts}, {error}") from error


# --- a problem -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class VerticalProblem:
    """A run's data, parties with fresh nets, and what they are to forget. Runs about the same share one.

    clean: without triggers; test, validation: features (n, ...), one tensor per passive party; deletion: None if
    nothing is to be forgotten; removed: the classes of which nothing is left.
    """

    clean: Dataset
    blocks: list[Tensor]
    parties: Parties
    test: list[Tensor]
    y_test: Tensor
    validation: list[Tensor]
    y_validation: Tensor
    deletion: Deletion | None
    removed: tuple[int, ...]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> VerticalProblem:
        """The problem of a run's config. Random: the nets' parameters, from the config's seed."""
        return _problem(tuple((key, config[key]) for key in PROBLEM_KEYS), str(device()))

    @property
    def forget(self) -> Tensor:
        """Which rows of the training set are to be forgotten."""
        return self.asked.forget[0]

    @property
    def retain(self) -> Tensor:
        """Which rows stay: all, if nothing is to be forgotten."""
        if self.deletion is None:
            return torch.arange(len(self.clean.y_train), device=device())
        return self.deletion.retain[0]

    @property
    def asked(self) -> Deletion:
        """The deletion of a run that is about one."""
        if self.deletion is None:
            raise ConfigError("request must take some samples to be forgotten, got 'none'")
        return self.deletion

    @property
    def target(self) -> int:
        """The label of the backdoor's target."""
        return backdoor_target(self.clean)

    @property
    def labels_to_forget(self) -> Tensor:
        """The labels (m,) of what is to be forgotten, before a trigger changed them."""
        return self.clean.y_train.to(device())[self.forget]

    @property
    def unseen(self) -> list[Tensor]:
        """Samples held out from training, of the classes to be forgotten: features, one tensor per passive party."""
        same = torch.isin(self.y_validation, self.labels_to_forget)
        return [x_k[same] for x_k in self.validation]

    def federation(self, config: Mapping[str, Any], name: str, parties: Parties | None = None) -> VerticalFederation:
        """The parties, by default with fresh nets, with the local training and seed of a config.

        name: of what goes on between them, so that noise drawn for one thing is not drawn again for another.
        """
        local = ClientOpt(**{key: config[key] for key in LOCAL})
        return VerticalFederation(parties or self.parties, local, config["seed"], Boundary(name=name))


@lru_cache(maxsize=4)  # dealing out images takes as long as a short run
def _problem(values: tuple[tuple[str, Any], ...], place: str) -> VerticalProblem:
    config = dict(values)
    clean, x, y = _dataset(*(config[key] for key in DATA_KEYS))
    blocks = column_blocks(clean, config["split"])
    parties, test = deal(clean, bottom=config["bottom"], seed=config["seed"], blocks=blocks, device=place)
    if config["poison"]:
        parties = holding(parties, poisoned(clean, rows_of_request(config["poison"], clean)[0]), blocks)
    if config["dp_std"]:
        parties = with_noise(parties, config)
    request = Request.parse(config["request"])
    forget = rows_of_request(config["request"], clean)  # by their own labels, whatever a trigger made of them
    return VerticalProblem(
        clean=clean,
        blocks=blocks,
        parties=parties,
        test=test,
        y_test=clean.y_test.to(place),
        validation=[x_k.to(place) for x_k in split_features(x, blocks)],
        y_validation=y.to(place),
        deletion=Deletion.of(VerticalFederation(parties, ClientOpt()).clients, forget) if forget else None,
        removed=request.labels(clean.classes) if request.percent == 100 else (),
    )


def holding(parties: Parties, dataset: Dataset, blocks: list[Tensor]) -> Parties:
    """The same parties and nets with another training set.

    Their nets go on standardising with what they were built from, so that a model means the same in both worlds.
    """
    passive = tuple(
        replace(party, x=x_k.to(party.x.device))
        for party, x_k in zip(parties.passive, split_features(dataset.x_train, blocks), strict=True)
    )
    return Parties(passive, replace(parties.active, y=dataset.y_train.to(parties.active.y.device)))


def with_noise(parties: Parties, config: Mapping[str, Any]) -> Parties:
    """The same parties, who put noise on every embedding they send (Table IX); each has a stream of its own."""
    passive = tuple(
        replace(party, noise=EmbeddingNoise(config["dp_std"], config["dp_clip"], stream_seed(config["seed"], "dp", k)))
        for k, party in enumerate(parties.passive)
    )
    return Parties(passive, parties.active)
