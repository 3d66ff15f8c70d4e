"""Image sets that torchvision and medmnist know: they say where the files are and how to parse them, we download."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fu_core.data.cache import Arrays, pack, storage_errors
from fu_core.data.download import Archive
from fu_core.errors import DataUnavailable

# torchvision and medmnist take seconds to import and are needed once per data set, hence the imports inside functions.


def mnist(raw: Path) -> Arrays:
    """MNIST, 60,000 + 10,000 grey 28x28 images, parsed by torchvision from the IDX files."""
    return _idx_files(_parser("MNIST"), raw, "MNIST handwritten digits (LeCun, Cortes and Burges), original IDX files")


def fashion_mnist(raw: Path) -> Arrays:
    """Fashion-MNIST, 60,000 + 10,000 grey 28x28 images, parsed by torchvision from the IDX files."""
    return _idx_files(_parser("FashionMNIST"), raw, "Fashion-MNIST (Zalando Research, 2017), original IDX files")


def cifar10(raw: Path) -> Arrays:
    """CIFAR-10, 50,000 + 10,000 colour 32x32 images of 10 classes."""
    return _cifar(_parser("CIFAR10"), raw, "CIFAR-10 (Krizhevsky, 2009), original archive")


def cifar100(raw: Path) -> Arrays:
    """CIFAR-100, 50,000 + 10,000 colour 32x32 images of 100 classes (fine labels)."""
    return _cifar(_parser("CIFAR100"), raw, "CIFAR-100 (Krizhevsky, 2009), original archive, fine labels")


def pathmnist(raw: Path) -> Arrays:
    """PathMNIST, 89,996 + 7,180 colour 28x28 images of 9 tissues: the official training and test splits."""
    try:
        import medmnist
    except ImportError as error:
        raise DataUnavailable('pathmnist needs medmnist: run `pip install "fu_core[vision]"`') from error
    info = medmnist.INFO["pathmnist"]
    folder = Archive("pathmnist.npz", (info["url"],), md5=info["MD5"]).fetch(raw / "pathmnist").parent
    train, test = (medmnist.PathMNIST(split=split, root=str(folder)) for split in ("train", "test"))
    source = "PathMNIST (MedMNIST v2, Yang et al., 2023; CC BY 4.0), official training and test splits"
    return pack((train.imgs, _labels(train.labels)), (test.imgs, _labels(test.labels)), source)


def _parser(name: str) -> Any:
    """The class that torchvision has for this set."""
    try:
        from torchvision import datasets
    except ImportError as error:
        raise DataUnavailable(f'{name} needs torchvision: run `pip install "fu_core[vision]"`') from error
    return getattr(datasets, name)


def _idx_files(kind: Any, raw: Path, source: str) -> Arrays:
    archives = [
        Archive(filename, tuple(mirror + filename for mirror in kind.mirrors), md5=md5)
        for filename, md5 in kind.resources
    ]
    return _parse(kind, raw, archives, Path(kind.__name__) / "raw", source)


def _cifar(kind: Any, raw: Path, source: str) -> Arrays:
    return _parse(kind, raw, [Archive(kind.filename, (kind.url,), md5=kind.tgz_md5)], Path(), source)


def _parse(kind: Any, raw: Path, archives: list[Archive], expected_in: Path, source: str) -> Arrays:
    """Download to `raw`, then let torchvision unpack and parse copies in a folder that is thrown away."""
    files = [archive.fetch(raw / kind.__name__) for archive in archives]
    with storage_errors(raw), tempfile.TemporaryDirectory(dir=raw) as scratch:
        folder = Path(scratch) / expected_in
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(file, folder / file.name)
        # `download=True` finds verified archives in place and only unpacks them
        splits = [kind(scratch, train=train, download=True) for train in (True, False)]
    train, test = ((np.asarray(split.data), _labels(split.targets)) for split in splits)
    return pack(train, test, source)


def _labels(y: Any) -> np.ndarray:
    return np.asarray(y, dtype=np.int64).reshape(-1)
