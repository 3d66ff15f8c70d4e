"""Adult and Tiny-ImageNet from their archives, made small by the test."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from fu_core.data import adult, load, tiny_imagenet
from fu_core.data.cache import read_cache
from fu_core.errors import CorruptData

ADULT_TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, Cuba, <=50K
50, Private, 83311, Bachelors, 13, Divorced, Sales, Husband, White, Male, 0, 0, 13, ?, >50K

"""
ADULT_TEST = """\
|1x3 Cross validator
25, Never-worked, 226802, 11th, 7, Divorced, Sales, Husband, Black, Female, 0, 0, 40, Cuba, >50K.

"""


@pytest.fixture
def adult_server(server, monkeypatch):
    """Serves the two texts above in place of UCI, whose sizes and checksums are replaced by theirs."""
    for split, text in (("train", ADULT_TRAIN), ("test", ADULT_TEST)):
        archive, content = adult.ARCHIVES[split], text.encode()
        server.files[f"/{archive.filename}"] = content
        small = dataclasses.replace(
            archive,
            urls=(server.url + archive.filename,),
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        monkeypatch.setitem(adult.ARCHIVES, split, small)
    monkeypatch.setattr(adult, "ROWS", {"train": 2, "test": 1})
    return server


def test_adult_is_cached_raw_and_encoded_on_loading(adult_server, tmp_path):
    """Six numbers as they are; then one column per training category, in sorted order within each raw column.

    Training categories per raw column: workclass {Private, State-gov}, education {Bachelors}, marital-status {Divorced,
    Never-married}, occupation {Adm-clerical, Sales}, relationship {Husband, Not-in-family}, race {White}, sex {Male},
    native-country {?, Cuba}: 2+1+2+2+2+1+1+2 = 13. The test row shares Divorced, Sales, Husband and Cuba with them;
    Never-worked, 11th, Black and Female are unknown and become zeros.
    """
    data = load("adult", tmp_path)
    assert data.x_train.dtype == torch.float32
    assert data.x_train.tolist() == [
        [39, 77516, 13, 2174, 0, 40, *(0, 1), 1, *(0, 1), *(1, 0), *(0, 1), 1, 1, *(0, 1)],
        [50, 83311, 13, 0, 0, 13, *(1, 0), 1, *(1, 0), *(0, 1), *(1, 0), 1, 1, *(1, 0)],
    ]
    assert data.x_test.tolist() == [
        [25, 226802, 7, 0, 0, 40, *(0, 0), 0, *(1, 0), *(0, 1), *(1, 0), 0, 0, *(0, 1)],
    ]
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0, 1], [1])
    raw = read_cache(tmp_path / "adult.npz")
    assert raw["x_train"][0, 1] == "State-gov"
    assert raw["columns"].tolist() == list(adult.COLUMNS)


def test_adult_with_lost_rows_is_refused(adult_server, monkeypatch, tmp_path):
    monkeypatch.setattr(adult, "ROWS", {"train": 3, "test": 1})
    with pytest.raises(CorruptData, match=r"adult\.data should hold 3 rows of 15 values, found 2 rows"):
        load("adult", tmp_path)


def test_an_adult_cache_with_text_in_a_numeric_column_is_refused(tmp_path):
    x = np.array([["x"] * 14])
    arrays = {"x_train": x, "y_train": np.array([0]), "x_test": x, "y_test": np.array([1])}
    np.savez(tmp_path / "adult.npz", **arrays, source=np.array("made by a test"), columns=np.array(adult.COLUMNS))
    with pytest.raises(CorruptData, match="numeric column"):
        load("adult", tmp_path)


ROW = ADULT_TRAIN.splitlines()[0].split(", ")[:-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": [["nan", *ROW[1:]]]}, "numeric column of the adult table holds something else: NaN"),
        ({"x_test": [["1e99", *ROW[1:]]]}, "numeric column of the adult table holds something else: NaN, or beyond"),
        ({"columns": list("abcdefghijklmn")}, r"columns of the adult table must be age, .* got \['a', "),
        ({"columns": list(range(14))}, "x_train is .* neither"),
        ({"x_test": [[1.0] * 14]}, r"x_train is .* but x_test float64 \(1, 14\)"),
    ],
)
def test_an_adult_cache_of_other_numbers_or_columns_is_refused(tmp_path, change, message):
    """Numbers that are none came out as NaN, and columns of unknown names as one column per value."""
    arrays = {"x_train": [ROW], "y_train": [0], "x_test": [ROW], "y_test": [1], "columns": adult.COLUMNS}
    np.savez(tmp_path / "adult.npz", **arrays | change, source=np.array("made by a test"))
    with pytest.raises(CorruptData, match=message):
        load("adult", tmp_path)


def test_texts_under_another_name_than_adults_are_refused(tmp_path):
    arrays = {"x_train": [ROW], "y_train": [0], "x_test": [ROW], "y_test": [1], "columns": adult.COLUMNS}
    np.savez(tmp_path / "mnist.npz", **arrays, source=np.array("made by a test"))
    with pytest.raises(CorruptData, match="the cache of mnist holds texts, as that of adult does alone"):
        load("mnist", tmp_path)


def _jpeg(level: int, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (64, 64), level if mode == "L" else (level, level, level)).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def _tiny_zip(train_per_class: int = 3) -> bytes:
    """Four classes, listed out of order. Image i of class c (in sorted order) has grey level 60 c + 10 i."""
    wnids = ["n03", "n01", "n04", "n02"]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "\n".join(wnids) + "\n")
        for wnid in wnids:
            c = sorted(wnids).index(wnid)
            for i in range(train_per_class):
                name = f"tiny-imagenet-200/train/{wnid}/images/{wnid}_{i}.JPEG"
                archive.writestr(name, _jpeg(60 * c + 10 * i, mode="L" if i == 0 else "RGB"))
        lines = [f"val_{i}.JPEG\t{wnid}\t0\t0\t62\t62" for i, wnid in enumerate(wnids)]
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", "\n".join(lines) + "\n")
        for i, wnid in enumerate(wnids):
            archive.writestr(f"tiny-imagenet-200/val/images/val_{i}.JPEG", _jpeg(60 * sorted(wnids).index(wnid)))
    return buffer.getvalue()


@pytest.fixture
def tiny_server(server, monkeypatch):
    def serve(content: bytes) -> None:
        server.files["/tiny.zip"] = content
        archive = dataclasses.replace(
            tiny_imagenet.ARCHIVE,
            urls=(server.url + "tiny.zip",),
            size=len(content),
            md5=hashlib.md5(content).hexdigest(),
        )
        monkeypatch.setattr(tiny_imagenet, "ARCHIVE", archive)

    monkeypatch.setattr(tiny_imagenet, "LAYOUT", tiny_imagenet.Layout(classes=4, train_per_class=3, test_per_class=1))
    return serve


@pytest.mark.parametrize(("name", "classes"), [("tiny_imagenet", 4), ("tiny_imagenet_100", 2)])
def test_tiny_imagenet_labels_follow_sorted_wnids(tiny_server, tmp_path, name, classes):
    """The grey level of every image tells its class and number: 60 c + 10 i, up to the JPEG's rounding."""
    tiny_server(_tiny_zip())
    data = load(name, tmp_path)
    assert (data.x_train.shape, data.x_test.shape) == ((3 * classes, 3, 64, 64), (classes, 3, 64, 64))
    level = data.x_train.float().mean((1, 2, 3))
    assert ((level - 60 * data.y_train) / 10).round().sort().values.tolist() == sorted([0, 1, 2] * classes)
    assert (data.x_test.float().mean((1, 2, 3)) / 60).round().tolist() == data.y_test.tolist()
    assert data.y_train.tolist() != sorted(data.y_train.tolist())  # shuffled


def test_a_class_with_missing_images_is_refused(tiny_server, tmp_path):
    tiny_server(_tiny_zip(train_per_class=2))
    with pytest.raises(CorruptData, match="3 training images per class"):
        load("tiny_imagenet", tmp_path)


def test_something_other_than_a_zip_is_refused(tiny_server, tmp_path):
    tiny_server(b"<html>moved</html>")
    with pytest.raises(CorruptData, match=r"tiny-imagenet-200\.zip cannot be read"):
        load("tiny_imagenet", tmp_path)
