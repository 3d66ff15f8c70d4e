"""MiT-B0, SegFormer's smallest mix transformer (Xie et al., 2021), from the library transformers.

An extra: `pip install "fu_core[transformers]"`. With the head for 100 classes it has 3,345,092 parameters. PUF's cost
tables charge 1.33e7 bytes, 3.33 M parameters of four bytes: the encoder alone, which has 3,319,392, without the head
that is trained and sent like the rest. The "approximately 3.6M" of its text is the encoder with ImageNet's 1000-class
head, 3,576,392 (errata P4).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fu_core.errors import CorruptData, DataUnavailable, UnsupportedModel
from fu_core.models.flat import FlatModel

STRIDE = 32  # of the last stage's tokens, and of the keys and values of every stage


class MiT(nn.Module):
    """A SegformerForImageClassification as a function of its parameters.

    Training and evaluation are the same: the probabilities of dropout and stochastic depth have to be zero, rather
    than switched off by evaluation mode, so that nothing random hides in the module whatever mode it is in.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, C, H, W) to logits (n, classes)."""
        # the fused kernels have no second derivative and no forward mode; plain products have both
        with sdpa_kernel(SDPBackend.MATH):
            return self.net(x).logits

    def reset_parameters(self) -> None:
        """As the authors' code: linear layers N(0, 0.02^2), He-normal convolutions, unit norms, no biases."""
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.reset_parameters()
            elif isinstance(part, (nn.Linear, nn.Conv2d)):
                nn.init.normal_(part.weight, std=0.02 if isinstance(part, nn.Linear) else _he_std(part))
                nn.init.zeros_(cast(Tensor, part.bias))


def _he_std(layer: nn.Conv2d) -> float:
    """He et al.'s with fan-out, which in a depthwise convolution is that of one channel."""
    return math.sqrt(2.0 * layer.groups / (layer.out_channels * math.prod(layer.kernel_size)))


def mit_b0(channels: int, side: int, classes: int) -> nn.Module:
    """MiT-B0 with a linear head on the mean of its last tokens. `side`: a multiple of 32, in PUF 224.

    Images of 32x32 come down to a single token. The library's default stochastic depth of 0.1 is off.
    """
    if side % STRIDE:
        raise UnsupportedModel(f"mit_b0 needs a side that is a multiple of {STRIDE}, got {side}")
    try:
        from transformers import SegformerConfig, SegformerForImageClassification
    except ImportError as error:
        raise UnsupportedModel('mit_b0 needs transformers: run `pip install "fu_core[transformers]"`') from error
    config = SegformerConfig(
        num_channels=channels,
        num_labels=classes,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        drop_path_rate=0.0,
    )
    return MiT(SegformerForImageClassification(config))


def mit_b0_224(channels: int, side: int, classes: int) -> nn.Module:
    """`mit_b0` for smaller images, enlarged to the 224x224 of its pre-training inside the net. `side`: any."""
    return nn.Sequential(nn.Upsample(size=(224, 224), mode="bilinear"), mit_b0(channels, 224, classes))


def load_pretrained(model: FlatModel, folder: str | Path, seed: int = 0) -> Tensor:
    """Parameters (d,) of `model`, which holds a `mit_b0`: the encoder of a checkpoint, and a new head from `seed`.

    `folder`: a copy of nvidia/mit-b0 (its model.safetensors or pytorch_model.bin), or what the library's
    `save_pretrained` wrote for any net with this encoder; a head in it is ignored. Nothing is downloaded. Raises
    `DataUnavailable` if the files are missing, `CorruptData` if they cannot be read or do not fit.
    """
    holders = [(name, part) for name, part in model.module.named_modules() if isinstance(part, MiT)]
    if not holders:
        raise UnsupportedModel(f"load_pretrained fills a mit_b0; this model is a {type(model.module).__name__}")
    [(name, mit)] = holders
    within = f"{name}.net.segformer.".removeprefix(".")
    w = model.init(seed)
    views = model.views(w)
    with torch.no_grad():
        for key, parameter in _read_encoder(mit.net, Path(folder)).named_parameters():
            views[within + key].copy_(parameter)
    return w


def _read_encoder(net: Any, folder: Path) -> nn.Module:
    """The checkpoint's encoder, in the shape of `net`'s. The library knows the names that older versions gave."""
    wanted = f"{folder} must hold a checkpoint of nvidia/mit-b0"
    if not folder.is_dir():  # the library would take it for the name of something to look up
        raise DataUnavailable(f"{wanted}, but there is no such folder")
    try:
        encoder, report = type(net.segformer).from_pretrained(
            folder, config=net.config, local_files_only=True, ignore_mismatched_sizes=True, output_loading_info=True
        )
    except OSError as error:
        raise DataUnavailable(f"{wanted}: {error}") from error
    except Exception as error:  # two file formats, each with errors of its own readers
        raise CorruptData(f"{wanted}, but its weights cannot be read: {error}") from error
    unfit = {*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}
    if unfit:
        raise CorruptData(
            f"{wanted} for {net.config.num_channels} channels, but {len(unfit)} weights are missing or of another "
            f"shape, the first {min(unfit)!r}"
        )
    return encoder
