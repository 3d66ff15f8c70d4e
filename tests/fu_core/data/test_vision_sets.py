"""Archives in the real formats, made tiny by the test, served over HTTP and parsed by torchvision and medmnist."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import sys
import tarfile
from pathlib import Path

import medmnist
import numpy as np
import pytest
import torch
import torchvision.datasets

from fu_core.data import load
from fu_core.errors import CorruptData, DataUnavailable

RNG = np.random.default_rng(0)


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def _idx(array: np.ndarray) -> bytes:
    """The IDX format of MNIST: two zeros, type 8 (uint8), number of axes, big-endian sizes, bytes."""
    return gzip.compress(
        struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )


@pytest.fixture
def idx_arrays() -> dict[str, np.ndarray]:
    return {
        "train-images-idx3-ubyte.gz": RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte.gz": np.arange(12, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte.gz": RNG.integers(0, 256, (5, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte.gz": np.arange(5, dtype=np.uint8),
    }


@pytest.fixture(params=["mnist", "fashion_mnist"])
def mnist_like(request, server, monkeypatch, idx_arrays) -> str:
    """The name of a set whose files this machine serves."""
    kind = {"mnist": torchvision.datasets.MNIST, "fashion_mnist": torchvision.datasets.FashionMNIST}[request.param]
    server.files |= {f"/{name}": _idx(array) for name, array in idx_arrays.items()}
    monkeypatch.setattr(kind, "mirrors", [server.url])
    monkeypatch.setattr(kind, "resources", [(name, _md5(server.files[f"/{name}"])) for name in idx_arrays])
    return request.param


def test_mnist_files_become_a_cache_with_the_same_pixels(server, mnist_like, idx_arrays, tmp_path):
    data = load(mnist_like, tmp_path)
    assert torch.equal(data.x_train[:, 0], torch.from_numpy(idx_arrays["train-images-idx3-ubyte.gz"]))
    assert data.y_train.tolist() == idx_arrays["train-labels-idx1-ubyte.gz"].tolist()
    assert data.y_test.tolist() == [0, 1, 2, 3, 4]
    assert "original IDX files" in data.source
    asked = len(server.asked)
    assert load(mnist_like, tmp_path).sha256 == data.sha256
    assert len(server.asked) == asked == 4


def test_only_verified_archives_stay_beside_the_cache(mnist_like, tmp_path):
    """Unpacked copies are gone; the archives serve a later rebuild."""
    load(mnist_like, tmp_path)
    left = sorted(path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock")
    assert left == sorted(
        [
            f"{mnist_like}.npz",
            *(f"{split}-{part}-ubyte.gz" for split in ("train", "t10k") for part in ("images-idx3", "labels-idx1")),
        ]
    )


def test_a_changed_archive_is_refused_and_no_cache_is_written(server, mnist_like, tmp_path):
    server.files["/t10k-images-idx3-ubyte.gz"] += b"tampered"
    with pytest.raises(CorruptData, match=r"t10k-images-idx3-ubyte\.gz.*md5"):
        load(mnist_like, tmp_path)
    assert not (tmp_path / f"{mnist_like}.npz").exists()


def _tar(folder: str, files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _batch(n: int, label_key: str) -> tuple[bytes, np.ndarray, list[int]]:
    """A pickled CIFAR batch: `(n, 3072)` bytes, red plane first, and a list of labels."""
    pixels, labels = RNG.integers(0, 256, (n, 3072), dtype=np.uint8), [int(label) for label in np.arange(n) % 7]
    return pickle.dumps({"data": pixels, label_key: labels}), pixels, labels


@pytest.mark.parametrize(
    ("name", "kind", "batches", "label_key"),
    [
        ("cifar10", torchvision.datasets.CIFAR10, ["data_batch_1", "data_batch_2"], "labels"),
        ("cifar100", torchvision.datasets.CIFAR100, ["train"], "fine_labels"),
    ],
)
def test_cifar_archives_become_a_cache_with_the_same_pixels(
    server, monkeypatch, tmp_path, name, kind, batches, label_key
):
    """Row i of a batch, read as (3, 32, 32), is image i; batches follow each other in order."""
    made = {batch: _batch(8, label_key) for batch in [*batches, "test_batch"]}
    meta = pickle.dumps({kind.meta["key"]: list("abcdefg")})
    files = {batch: content for batch, (content, _, _) in made.items()} | {kind.meta["filename"]: meta}
    archive = _tar(kind.base_folder, files)
    server.files[f"/{kind.filename}"] = archive
    monkeypatch.setattr(kind, "url", server.url + kind.filename)
    monkeypatch.setattr(kind, "tgz_md5", _md5(archive))
    monkeypatch.setattr(kind, "train_list", [[batch, _md5(files[batch])] for batch in batches])
    monkeypatch.setattr(kind, "test_list", [["test_batch", _md5(files["test_batch"])]])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": _md5(meta)})

    data = load(name, tmp_path)
    pixels = np.concatenate([made[batch][1] for batch in batches]).reshape(-1, 3, 32, 32)
    assert torch.equal(data.x_train, torch.from_numpy(pixels))
    assert data.y_train.tolist() == [label for batch in batches for label in made[batch][2]]
    assert torch.equal(data.x_test, torch.from_numpy(made["test_batch"][1].reshape(-1, 3, 32, 32)))


@pytest.fixture
def pathmnist_arrays(server, monkeypatch) -> dict[str, np.ndarray]:
    """A PathMNIST file of 9 + 3 + 4 images in the published layout, served by this machine."""
    arrays = {}
    for split, n in (("train", 9), ("val", 3), ("test", 4)):
        arrays[f"{split}_images"] = RNG.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(n, dtype=np.uint8)[:, None]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    server.files["/pathmnist.npz"] = buffer.getvalue()
    monkeypatch.setitem(medmnist.INFO["pathmnist"], "url", server.url + "pathmnist.npz")
    monkeypatch.setitem(medmnist.INFO["pathmnist"], "MD5", _md5(buffer.getvalue()))
    # medmnist itself refuses a set of another size than the published one
    monkeypatch.setitem(medmnist.INFO["pathmnist"], "n_samples", {"train": 9, "val": 3, "test": 4})
    return arrays


def test_pathmnist_uses_the_official_training_and_test_splits(pathmnist_arrays, tmp_path):
    data = load("pathmnist", tmp_path)
    expected = torch.from_numpy(pathmnist_arrays["train_images"]).permute(0, 3, 1, 2)
    assert torch.equal(data.x_train, expected)
    assert data.y_train.tolist() == list(range(9))
    assert data.y_test.tolist() == [0, 1, 2, 3]


def test_pathmnist_without_medmnist_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(DataUnavailable, match=r'pip install "fu_core\[vision\]"'):
        load("pathmnist", tmp_path)


def test_an_interrupted_preparation_goes_on_with_what_is_there(server, mnist_like, tmp_path: Path):
    """The third file is missing at first; the second call asks for what it lacks only."""
    name = "/t10k-images-idx3-ubyte.gz"
    content = server.files.pop(name)
    with pytest.raises(DataUnavailable, match="404"):
        load(mnist_like, tmp_path)
    server.files[name] = content
    server.asked.clear()
    assert len(load(mnist_like, tmp_path).x_test) == 5
    assert [path for path, _ in server.asked] == [name, "/t10k-labels-idx1-ubyte.gz"]
