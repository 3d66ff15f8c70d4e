"""Tiny-ImageNet: 64x64 colour images of 200 classes (or of the first 100), read straight from the Stanford archive.

The images of the official test set have no public labels, so the validation set is the test set, as everywhere.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fu_core.data.cache import Arrays, pack
from fu_core.data.download import Archive
from fu_core.errors import CorruptData, DataUnavailable

# Stanford publishes no checksum. The md5 is the one that many public loaders of this archive agree on (Avalanche among
# them), together with the size; the counts below are checked as well.
ARCHIVE = Archive(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    size=248_100_043,
    md5="90528d7ca1a48142e341f4ef8d21d0de",
)


@dataclass(frozen=True)
class Layout:
    """How much the archive must hold."""

    classes: int = 200
    train_per_class: int = 500
    test_per_class: int = 50


LAYOUT = Layout()
ORDER_SEED = 0


def tiny_imagenet(raw: Path) -> Arrays:
    """100,000 + 10,000 images of 200 classes."""
    return _build(raw, LAYOUT.classes)


def tiny_imagenet_100(raw: Path) -> Arrays:
    """50,000 + 5,000 images of the first 100 classes in sorted wnid order."""
    return _build(raw, LAYOUT.classes // 2)


def _build(raw: Path, classes: int) -> Arrays:
    if find_spec("PIL") is None:
        raise DataUnavailable('tiny_imagenet needs pillow: run `pip install "fu_core[vision]"`')
    path = ARCHIVE.fetch(raw / "tiny_imagenet")
    try:
        with zipfile.ZipFile(path) as archive:
            files = _files(archive, classes)
            train, test = (_decode(archive, files[split]) for split in ("train", "test"))
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        raise CorruptData(f"{path} cannot be read ({error}); delete it and try again") from error
    kept = f"{classes} of {LAYOUT.classes} classes, " if classes != LAYOUT.classes else ""
    source = f"Tiny-ImageNet (Stanford CS231n), {kept}official validation split as test set, fixed shuffle"
    return pack(train, test, source)


def _files(archive: zipfile.ZipFile, classes: int) -> dict[str, list[tuple[str, int]]]:
    """`(file, label)` of both splits, class by class and by number within a class; labels follow the sorted wnids."""
    root = "tiny-imagenet-200"
    wnids = sorted(archive.read(f"{root}/wnids.txt").decode().split())
    if len(wnids) != LAYOUT.classes:
        raise CorruptData(f"{archive.filename} lists {len(wnids)} classes, expected {LAYOUT.classes}")
    label_of = {wnid: label for label, wnid in enumerate(wnids[:classes])}
    names = [name for name in archive.namelist() if name.startswith(f"{root}/train/") and name.endswith(".JPEG")]
    train = [(name, label_of[name.split("/")[2]]) for name in names if name.split("/")[2] in label_of]
    rows = [line.split("\t") for line in archive.read(f"{root}/val/val_annotations.txt").decode().splitlines()]
    test = [(f"{root}/val/images/{row[0]}", label_of[row[1]]) for row in rows if row[1] in label_of]
    for split, found, each in (("training", train, LAYOUT.train_per_class), ("test", test, LAYOUT.test_per_class)):
        counts = np.bincount([label for _, label in found], minlength=classes)
        if (counts != each).any():
            raise CorruptData(f"{archive.filename} should hold {each} {split} images per class, found {counts}")
    return {"train": sorted(train, key=_class_then_number), "test": sorted(test, key=_class_then_number)}


def _class_then_number(entry: tuple[str, int]) -> tuple[int, int]:
    name, label = entry
    return label, int(re.findall(r"\d+", Path(name).stem)[-1])


def _decode(archive: zipfile.ZipFile, files: list[tuple[str, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Images `(n, 64, 64, 3)` and labels `(n,)`, shuffled once and for all so that no leading slice is one class."""
    from PIL import Image

    # The legacy generator, because its order is the one of the caches that go round ready-made.
    order = np.random.RandomState(ORDER_SEED).permutation(len(files))
    images = np.empty((len(files), 64, 64, 3), np.uint8)
    for row, index in enumerate(order):
        images[row] = np.asarray(Image.open(io.BytesIO(archive.read(files[index][0]))).convert("RGB"))
    return images, np.array([files[index][1] for index in order], dtype=np.int64)
