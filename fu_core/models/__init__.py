"""Models as flat vectors. `build(name, dataset)` makes the net of a profile for a data set."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fu_core.data import Dataset
from fu_core.errors import UnsupportedModel, check_choice
from fu_core.models.cnn import lenet, simple_cnn, strided_cnn, tiny_cnn
from fu_core.models.flat import FlatModel, Standardize
from fu_core.models.linear import mlp, softmax_regression, unit_softmax
from fu_core.models.mit import mit_b0, mit_b0_224
from fu_core.models.residual import residual
from fu_core.models.vit import ViTLite, vit_tiny

__all__ = ["MODELS", "FlatModel", "Standardize", "build"]


# name -> module for (channels or features, side of the image or 1, classes)
MODELS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "softmax_regression": lambda c, side, k: softmax_regression(c * side**2, k),
    "unit_softmax": lambda c, side, k: unit_softmax(c * side**2, k),
    "mlp": lambda c, side, k: mlp(c * side**2, k, (128,)),
    "tiny_cnn": tiny_cnn,
    "lenet": lenet,
    "simple_cnn": simple_cnn,
    "strided_cnn": strided_cnn,
    "small_resnet": lambda c, side, k: residual("resnet", "SmallResNet")(c, k),
    "resnet18": lambda c, side, k: residual("resnet", "ResNet18")(c, k),
    "vit_lite": ViTLite,
    "vit_tiny": vit_tiny,
    "mit_b0": mit_b0,
    "mit_b0_224": mit_b0_224,
    "res_unet": residual("res_unet", "ResUNet"),
    "small_res_unet": residual("res_unet", "small_res_unet"),
}
TABULAR = ("softmax_regression", "unit_softmax", "mlp")
SEGMENTING = ("res_unet", "small_res_unet")
ANY_SIDES = ("small_resnet", "resnet18", "mit_b0_224")  # others are built for square images


def build(name: str, dataset: Dataset, *, l2: float = 0.0) -> FlatModel:
    """The net `name` for the shape and classes of `dataset`, with its normalisation built in; `l2` as in FlatModel.

    Raises ValueError for an unknown name, `UnsupportedModel` for a net on a table, on images that are not square or on
    a task that it is not for.
    """
    check_choice("model", name, MODELS)
    if not isinstance(dataset, Dataset):
        raise ValueError(f"dataset must be a Dataset, load('digits') say, got {type(dataset).__name__}")
    images = dataset.x_train.dim() == 4
    if not images and name not in TABULAR:
        raise UnsupportedModel(f"model {name!r} needs images; {dataset.name} is a table: use one of {TABULAR}")
    if (name in SEGMENTING) != (dataset.task == "segmentation"):
        raise UnsupportedModel(f"model {name!r} is not for {dataset.task}, the task of {dataset.name}")
    if images and dataset.x_train.shape[2] != dataset.x_train.shape[3] and name not in ANY_SIDES:
        given = " x ".join(map(str, dataset.x_train.shape[2:]))
        raise UnsupportedModel(
            f"model {name!r} needs square images; {dataset.name}'s are {given}: use one of {ANY_SIDES}"
        )
    side = dataset.x_train.shape[-1] if images else 1
    net = MODELS[name](dataset.x_train.shape[1], side, dataset.classes)
    scale = 255.0 if dataset.x_train.dtype == torch.uint8 else 1.0  # whose mean and std are in units of 0 to 1
    return FlatModel(nn.Sequential(Standardize(dataset.mean, dataset.std, scale), net), dataset.task, l2)
