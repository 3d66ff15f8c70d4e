"""Every data set by name: who builds its arrays, and what a user without them should know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fu_core.data import vision
from fu_core.data.adult import adult
from fu_core.data.bundled import breast_cancer, digits
from fu_core.data.cache import Arrays
from fu_core.data.phantom import phantom
from fu_core.data.prostate import prostate_mri
from fu_core.data.tiny_imagenet import tiny_imagenet, tiny_imagenet_100

BUNDLED: dict[str, Callable[[], Arrays]] = {"digits": digits, "breast_cancer": breast_cancer, "phantom": phantom}
"""Made on the spot, from scikit-learn or by a generator: no network, no cache."""


@dataclass(frozen=True)
class Entry:
    """`build` takes the folder for archives, `<data folder>/raw`, and returns what the cache will hold."""

    build: Callable[[Path], Arrays]
    needs: str = "download"


CACHED: dict[str, Entry] = {
    "mnist": Entry(vision.mnist),
    "fashion_mnist": Entry(vision.fashion_mnist),
    "cifar10": Entry(vision.cifar10),
    "cifar100": Entry(vision.cifar100),
    "pathmnist": Entry(vision.pathmnist),
    "adult": Entry(adult),
    "tiny_imagenet": Entry(tiny_imagenet),
    "tiny_imagenet_100": Entry(tiny_imagenet_100),
    "prostate_mri": Entry(prostate_mri, needs="files you must request from their authors"),
}

NAMES = (*BUNDLED, *CACHED)
