"""What `load` returns: the tensors of a data set, where they come from, and the two ways to take fewer of them."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fu_core.errors import check_choice, check_count
from fu_core.streams import stream

Task = Literal["classification", "segmentation"]

# As printed in most papers that use these sets, ours included; our JPEG copy of CIFAR-10 is normalised by them as well.
PUBLISHED_STATISTICS = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
# Per float64 copy while statistics are computed: so many rows, of images larger than ALL_ROWS numbers so many numbers.
# What is summed together decides the last bits, and those of images up to 64 x 64 x 3 are in committed records.
CHUNK, ALL_ROWS, NUMBERS = 4096, 64 * 64 * 3, 2**22
ROUNDING = torch.finfo(torch.float32).eps  # what the features are held in, and the model computes with


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images are uint8 `(n, C, H, W)`, tables float32 `(n, p)`, both contiguous; nothing is normalised.

    Labels are int64 `(n,)`; the `y` of a segmentation set are uint8 masks `(n, H, W)`. `site_*` says which hospital
    an image comes from, int64 `(n,)`, or is None. `source` belongs under every table and figure made from the data.

    Raises `ValueError` for tensors that do not fit together, no training samples, an unknown `task`, labels that are
    negative or no whole numbers, and `known_classes` that a label exceeds. There may be no test samples.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    source: str
    task: Task = "classification"
    site_train: Tensor | None = None
    site_test: Tensor | None = None
    known_classes: int | None = None  # set by `subset` and `holdout`, whose labels may miss a class

    def __post_init__(self) -> None:
        check_choice("task", self.task, get_args(Task))
        largest = []
        for split in ("train", "test"):
            x, y, site = (getattr(self, f"{field}_{split}") for field in ("x", "y", "site"))
            if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() in (2, 4) and y.dim()):
                wanted = f"x_{split} must be a tensor (n, C, H, W) or (n, p), y_{split} one (n,) or (n, H, W)"
                raise ValueError(f"{wanted}, got {_what(x)} and {_what(y)}")
            if len(x) != len(y) or (site is not None and len(site) != len(x)):
                given = f"{len(x)}, {len(y)}" + ("" if site is None else f" and {len(site)}")
                raise ValueError(f"x_{split}, y_{split} and site_{split} must be of one length, got {given}")
            if y.is_floating_point() or y.is_complex():
                raise ValueError(f"y_{split} must be whole numbers >= 0, got {_what(y)}")
            low, high = (int(extreme) for extreme in y.aminmax()) if y.numel() else (0, -1)
            if low < 0:
                raise ValueError(f"y_{split} must be whole numbers >= 0, got {low}")
            largest.append(high)
        check_count("samples of x_train", len(self.x_train))
        if self.known_classes is not None:
            check_count("known_classes", self.known_classes, least=1 + max(largest))
        if self.x_train.shape[1:] != self.x_test.shape[1:]:
            given = f"{_what(self.x_train)} and {_what(self.x_test)}"
            raise ValueError(f"x_train and x_test must hold samples of one shape, got {given}")

    @cached_property
    def classes(self) -> int:
        """How many classes the full data set has; 2 for masks of one organ."""
        if self.known_classes is not None:
            return self.known_classes
        found = 1 + max((int(y.max()) for y in (self.y_train, self.y_test) if y.numel()), default=0)
        return max(2, found) if self.task == "segmentation" else found  # no mask need hold the organ

    @cached_property
    def sha256(self) -> str:
        """Of the content: dtype, shape and bytes of every tensor, whatever file it was read from."""
        digest = hashlib.sha256()
        for field in ("x_train", "y_train", "x_test", "y_test", "site_train", "site_test"):
            tensor = getattr(self, field)
            if tensor is not None:
                digest.update(f"{field} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.contiguous().numpy())
        return digest.hexdigest()

    @cached_property
    def mean(self) -> Tensor:
        """float32 `(C,)` in units of 0..1 for uint8 images, `(p,)` in a float table's own; see `channel_statistics`."""
        return self._statistics[0]

    @cached_property
    def std(self) -> Tensor:
        """Like `mean`; 1 for a constant feature."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        return channel_statistics(self)

    def subset(self, n_train: int | None = None, n_test: int | None = None, *, seed: int) -> Dataset:
        """A uniform sample without replacement, in the original order; None keeps all. `source` says so.

        The samples of one seed are nested: 100 images are among the 200 of a larger subset.
        Raises `ValueError` if more are asked for than there are.
        """
        train = self._sample("n_train", n_train, len(self.x_train), seed)
        test = self._sample("n_test", n_test, len(self.x_test), seed)
        notes = [
            f"{len(index)} of {total} {split} {self._noun}"
            for split, index, total in (("training", train, len(self.x_train)), ("test", test, len(self.x_test)))
            if len(index) < total
        ]
        return self._take(train, test, ", ".join(notes))

    def holdout(self, n_val: int, *, seed: int) -> tuple[Dataset, Tensor, Tensor]:
        """Take `n_val` random samples out of the training set for validation: `(data set without them, x, y)`.

        Uniform over samples: slices of one patient may fall on both sides.
        """
        total = len(self.x_train)
        check_count("n_val", n_val)
        if n_val >= total:
            raise ValueError(f"n_val must leave something to train on: got {n_val} of {total} training samples")
        order = torch.randperm(total, generator=stream(seed, "holdout", self.name))
        val, train = order[:n_val].sort().values, order[n_val:].sort().values
        rest = self._take(
            train, torch.arange(len(self.x_test)), f"{n_val} of {total} training {self._noun} held out for validation"
        )
        return rest, self.x_train[val], self.y_train[val]

    @property
    def _noun(self) -> str:
        return "images" if self.x_train.ndim == 4 else "rows"

    def _sample(self, parameter: str, n: int | None, available: int, seed: int) -> Tensor:
        """Sorted indices of `n` samples."""
        if n is None:
            return torch.arange(available)
        check_count(parameter, n)
        if n > available:
            raise ValueError(f"{parameter} must be at most {available} for {self.name!r}, got {n}")
        order = torch.randperm(available, generator=stream(seed, "subset", self.name, parameter))
        return order[:n].sort().values

    def _take(self, train: Tensor, test: Tensor, note: str) -> Dataset:
        return dataclasses.replace(
            self,
            x_train=self.x_train[train],
            y_train=self.y_train[train],
            x_test=self.x_test[test],
            y_test=self.y_test[test],
            site_train=None if self.site_train is None else self.site_train[train],
            site_test=None if self.site_test is None else self.site_test[test],
            source=f"{self.source} ({note})" if note else self.source,
            known_classes=self.classes,
        )


def _what(given: Any) -> str:
    return f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__


def channel_statistics(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, float32: `(C,)` for images, `(p,)` for a table; of x / 255 where x is uint8.

    The published constants for the colours of CIFAR-10 and CIFAR-100, else computed from the training set, in float64
    and in two passes. The deviation of a constant feature is 1: it carries nothing, and dividing by almost 0 would
    blow up a test row that differs. Constant is one whose values are all equal, or apart by no more than rounding.
    """
    x = dataset.x_train
    colour = x.dim() == 4 and x.shape[1] == 3 and x.dtype == torch.uint8  # a grey copy has others
    if dataset.name in PUBLISHED_STATISTICS and colour:
        mean, std = PUBLISHED_STATISTICS[dataset.name]
        return torch.tensor(mean), torch.tensor(std)
    scale = 255 if dataset.x_train.dtype == torch.uint8 else 1
    average = _average(dataset.x_train, scale)
    deviation = _average(dataset.x_train, scale, average).sqrt()
    return average.float(), torch.where(_constant(dataset.x_train, scale, deviation), 1.0, deviation).float()


def _constant(x: Tensor, scale: int, deviation: Tensor) -> Tensor:
    """Which features `(p,)` of `x / scale` carry nothing, whatever unit they are in."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    low, high = x.amin(axes).double() / scale, x.amax(axes).double() / scale
    # Rounding of values beyond 10^7 is larger than 1: to divide by it then makes it smaller, not larger.
    rounding = (ROUNDING * torch.maximum(low.abs(), high.abs())).clamp(torch.finfo(torch.float32).tiny, 1.0)
    return (low == high) | (deviation <= rounding)


def _average(x: Tensor, scale: int, centre: Tensor | None = None) -> Tensor:
    """Float64 mean over all but axis 1 of `x / scale`, or of its squared distance from `centre`."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    total = torch.zeros(x.shape[1], dtype=torch.float64)
    each = x[0].numel() if len(x) else 1
    for chunk in x.split(CHUNK if each <= ALL_ROWS else max(1, NUMBERS // each)):
        values = chunk.double() / scale
        if centre is not None:
            values = values.sub_(centre.view(-1, *[1] * (x.ndim - 2))).square_()
        total += values.sum(axes)
    return total / (x.numel() / x.shape[1])
