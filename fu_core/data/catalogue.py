"""Every data set by name: who builds its arrays, and what a user without them should know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fu_core import lazy
from fu_core.data.cache import Arrays


def _maker(module: str, name: str) -> Callable[..., Arrays]:
    """What one set needs, be it an image filter or a network client, is imported when that set is made."""
    return lazy.function(f"fu_core.data.{module}", name)


BUNDLED: dict[str, Callable[[], Arrays]] = {
    "digits": _maker("bundled", "digits"),
    "breast_cancer": _maker("bundled", "breast_cancer"),
    "phantom": _maker("phantom", "phantom"),
}
"""Made on the spot, from scikit-learn or by a generator: no network, no cache."""


@dataclass(frozen=True)
class Entry:
    """`build` takes the folder for archives, `<data folder>/raw`, and returns what the cache will hold."""

    build: Callable[[Path], Arrays]
    needs: str = "download"


CACHED: dict[str, Entry] = {
    "mnist": Entry(_maker("vision", "mnist")),
    "fashion_mnist": Entry(_maker("vision", "fashion_mnist")),
    "cifar10": Entry(_maker("vision", "cifar10")),
    "cifar100": Entry(_maker("vision", "cifar100")),
    "pathmnist": Entry(_maker("vision", "pathmnist")),
    "adult": Entry(_maker("adult", "adult")),
    "tiny_imagenet": Entry(_maker("tiny_imagenet", "tiny_imagenet")),
    "tiny_imagenet_100": Entry(_maker("tiny_imagenet", "tiny_imagenet_100")),
    "prostate_mri": Entry(_maker("prostate", "prostate_mri"), needs="files you must request from their authors"),
}

NAMES = (*BUNDLED, *CACHED)
