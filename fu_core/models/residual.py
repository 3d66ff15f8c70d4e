"""Nets on torchvision's blocks: imported when one is built, since they take as long as torch itself, and an extra."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fu_core import lazy
from fu_core.errors import UnsupportedModel


def residual(module: str, name: str) -> Callable[..., nn.Module]:
    """The net `name` of `fu_core.models.<module>`. Calling it without torchvision raises UnsupportedModel."""

    def build(*shape: int) -> nn.Module:
        try:
            return lazy.function(f"fu_core.models.{module}", name)(*shape)
        except ImportError as error:
            raise UnsupportedModel(f'{name} needs torchvision: run `pip install "fu_core[vision]"`') from error

    return build
