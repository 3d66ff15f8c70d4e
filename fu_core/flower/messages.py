"""What Flower's messages hold: models as named arrays, where ours are one vector, and the names of all the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fu_core.errors import UnsupportedModel
from fu_core.models.flat import FlatModel
from fu_core.unlearning.baselines.fed_osd import UnlearningLoss

ARRAYS, CONFIG, ROUND, SAMPLES = "arrays", "config", "server-round", "num-examples"  # the names FedAvg uses
LOCAL, LOSS = "local.", "loss"  # in the config of a round that is not an ordinary one: ClientOpt's fields, and the loss
LOSSES: dict[str, type[UnlearningLoss]] = {
    "unlearning cross-entropy": UnlearningLoss
}  # what clients can be asked to descend


def to_arrays(model: FlatModel, w: Tensor) -> ArrayRecord:
    """The vector `w` (d,) as Flower sends models: one array per named parameter."""
    return ArrayRecord(model.views(w))


def to_vector(arrays: ArrayRecord, names: Sequence[str]) -> Tensor:
    """The arrays `names` as one vector (d,), in that order; for a model of ours `names` is `model.names`.

    Raises `UnsupportedModel` unless `arrays` has exactly these names.
    """
    if set(arrays) != set(names):
        raise UnsupportedModel(f"arrays must be those of the model, {sorted(names)}, got {sorted(arrays)}")
    return torch.cat([torch.from_numpy(arrays[name].numpy()).flatten() for name in names])


def like(arrays: ArrayRecord, w: Tensor, names: Sequence[str]) -> ArrayRecord:
    """`w` (d,), whose parts are `names` in that order, in the shapes and types of `arrays`, and in their order."""
    sizes = [math.prod(arrays[name].shape) for name in names]
    pieces = dict(zip(names, w.split(sizes), strict=True))
    return ArrayRecord(
        {
            name: Array(pieces[name].reshape(tuple(array.shape)).numpy().astype(array.dtype))
            for name, array in arrays.items()
        }
    )


def the_only(records: Mapping[str, Any]) -> Any:
    """The one record of its kind in a reply."""
    return next(iter(records.values()))
