"""`load` for the bundled sets, subsets, validation samples, statistics and names."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fu_core.data import NAMES, Dataset, channel_statistics, load
from fu_core.data import dataset as dataset_module
from fu_core.errors import DataUnavailable


def table(x: list[list[float]], name: str = "made up") -> Dataset:
    features = torch.tensor(x, dtype=torch.float32)
    labels = torch.arange(len(features)) % 2
    return Dataset(name, features, labels, features.clone(), labels.clone(), "made by a test")


@pytest.mark.parametrize(
    ("name", "train", "test", "dtype", "classes"),
    [
        ("digits", (1437, 1, 8, 8), (360, 1, 8, 8), torch.uint8, 10),
        ("breast_cancer", (455, 30), (114, 30), torch.float32, 2),
        ("phantom", (240, 1, 64, 64), (60, 1, 64, 64), torch.uint8, 2),
    ],
)
def test_bundled_sets_need_neither_network_nor_cache(no_network, tmp_path, name, train, test, dtype, classes):
    data = load(name, tmp_path)
    assert (data.x_train.shape, data.x_test.shape) == (train, test)
    assert data.x_train.dtype == dtype
    assert data.x_train.is_contiguous()
    assert data.classes == classes
    assert list(tmp_path.iterdir()) == []
    assert load(name, tmp_path).sha256 == data.sha256


def test_digits_are_all_there_and_rescaled_to_255():
    """Intensity v of 0..16 becomes round(v * 255 / 16): 1 -> 16, 8 -> 128 (127.5, half to even), 16 -> 255."""
    data = load("digits")
    original = load_digits()
    together = torch.cat([data.x_train, data.x_test]).flatten(1).numpy()
    expected = np.rint(original.images.reshape(1797, -1) * 255 / 16)
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, expected.astype(int).tolist()))
    assert set(np.unique(together)) >= {16, 128, 255}


def test_the_digits_split_keeps_class_shares():
    data = load("digits")
    shares = torch.bincount(data.y_test) / len(data.y_test) - torch.bincount(data.y_train) / len(data.y_train)
    assert shares.abs().max() < 0.005


def test_an_unknown_name_gets_the_nearest_known_one():
    with pytest.raises(ValueError, match=r"name must be one of .*did you mean 'cifar10'"):
        load("cifar-10")


def test_without_network_and_cache_the_error_says_what_to_do(no_network, tmp_path):
    with pytest.raises(DataUnavailable) as caught:
        load("mnist", tmp_path)
    message = str(caught.value)
    assert "make data SETS=mnist" in message
    assert "python -m fu_core.data mnist" in message
    assert f"copy a ready mnist.npz from another machine into {tmp_path}" in message
    assert "train-images-idx3-ubyte.gz" in message


def test_all_promised_names_are_known():
    promised = "digits breast_cancer phantom mnist fashion_mnist cifar10 cifar100 pathmnist adult tiny_imagenet"
    assert {*promised.split(), "tiny_imagenet_100", "prostate_mri"} == set(NAMES)


def test_a_subset_is_seeded_sorted_nested_and_labelled():
    data = load("digits")
    small, same, other = data.subset(100, seed=1), data.subset(100, seed=1), data.subset(100, seed=2)
    assert small.sha256 == same.sha256
    assert small.sha256 not in (other.sha256, data.sha256)
    assert small.source == f"{data.source} (100 of 1437 training images)"
    assert torch.equal(small.x_test, data.x_test)
    rows = [tuple(x.flatten().tolist()) for x in data.x_train]
    picked = [rows.index(tuple(x.flatten().tolist())) for x in small.x_train]
    assert picked == sorted(picked)
    larger = {tuple(x.flatten().tolist()) for x in data.subset(200, seed=1).x_train}
    assert {rows[index] for index in picked} <= larger


def test_a_subset_of_both_splits_says_so_and_keeps_the_number_of_classes():
    small = load("digits").subset(3, 2, seed=0)
    assert small.source.endswith("(3 of 1437 training images, 2 of 360 test images)")
    assert (len(small.y_train), len(small.y_test), small.classes) == (3, 2, 10)


def test_a_subset_of_everything_is_the_data_set():
    data = load("breast_cancer")
    assert data.subset(455, 114, seed=3).sha256 == data.sha256
    assert data.subset(seed=3).source == data.source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((456,), "n_train must be at most 455"), ((None, 115), "n_test must be at most 114"), ((0,), "n_train must be")],
)
def test_an_impossible_subset_names_the_parameter(arguments, message):
    with pytest.raises(ValueError, match=message):
        load("breast_cancer").subset(*arguments, seed=0)


def test_a_subset_keeps_images_masks_and_sites_together():
    data = load("phantom")
    small = data.subset(10, 5, seed=0)
    for image, mask, site in zip(small.x_train, small.y_train, small.site_train, strict=True):
        (index,) = (data.x_train == image).flatten(1).all(1).nonzero().flatten().tolist()
        assert torch.equal(data.y_train[index], mask)
        assert data.site_train[index] == site


def test_held_out_samples_leave_the_training_set():
    """455 = 405 + 50, and each row of the original is in exactly one of the two."""
    data = load("breast_cancer")
    rest, x_val, y_val = data.holdout(50, seed=0)
    assert (len(rest.x_train), len(x_val), len(y_val)) == (405, 50, 50)
    together = torch.cat([rest.x_train, x_val])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, data.x_train.tolist()))
    assert torch.equal(rest.x_test, data.x_test)
    assert rest.source.endswith("(50 of 455 training rows held out for validation)")
    assert torch.equal(data.holdout(50, seed=0)[1], x_val)


@pytest.mark.parametrize("n_val", [0, 455])
def test_holdout_must_leave_something_on_both_sides(n_val):
    with pytest.raises(ValueError, match="n_val must"):
        load("breast_cancer").holdout(n_val, seed=0)


def test_statistics_of_a_table_are_those_of_each_column():
    """Column 0: 1, 3 -> mean 2, std 1. Column 1 is constant -> std 1: it normalises to 0, not to infinity."""
    data = table([[1, 5], [3, 5]])
    assert data.mean.tolist() == [2, 5]
    assert data.std.tolist() == [1, 1]


@pytest.mark.parametrize("scale", [1e-30, 1e-7, 1.0, 1e7, 1e30])
def test_what_is_constant_does_not_hang_on_the_unit(scale):
    """Lengths in nanometres counted as constant when they were given in metres."""
    data = table([[scale * 1, scale * 5], [scale * 3, scale * 5]])
    assert data.std.tolist() == pytest.approx([scale, 1])


@pytest.mark.parametrize("value", [0.0, 1e-30, 0.1, 1e6, 7.7e15])
def test_what_only_rounding_tells_apart_is_constant(value):
    """One value, or neighbouring numbers in one row of ten."""
    one = torch.full((10_001, 2), value)
    one[::10, 1] = torch.nextafter(one[::10, 1], torch.tensor(math.inf))
    labels = torch.zeros(len(one), dtype=torch.int64)
    data = Dataset("made up", one, labels, one, labels, "made by a test")
    spread = float(one[:, 1].double().std(correction=0))
    assert data.std.tolist() == [1, pytest.approx(max(1.0, spread))]


def test_statistics_of_images_are_per_channel_in_units_of_255():
    """Channel 0 holds 0 and 255: mean 0.5, std 0.5. Channel 1 holds 51 throughout: mean 0.2."""
    x = torch.tensor([[[[0, 255]], [[51, 51]]]], dtype=torch.uint8)
    data = Dataset("made up", x, torch.tensor([0]), x, torch.tensor([1]), "made by a test")
    torch.testing.assert_close(data.mean, torch.tensor([0.5, 0.2]))
    torch.testing.assert_close(data.std, torch.tensor([0.5, 1.0]))


def test_statistics_are_exact_where_float32_sums_are_not():
    """10,000 rows around 1e6 with deviation 1: E[x²] - E[x]² in float32 would return noise."""
    x = 1e6 + torch.tensor([-1.0, 1.0]).repeat(5000)[:, None]
    data = Dataset("made up", x, torch.zeros(10_000, dtype=torch.int64), x, torch.ones(10_000).long(), "made by a test")
    mean, std = channel_statistics(data)
    assert (mean.item(), std.item()) == (1e6, 1.0)


class Counted:
    """Counts the numbers of each part that is turned into float64."""

    def __init__(self, monkeypatch):
        self.rows, split = [], torch.Tensor.split

        def counting(x, size):
            parts = split(x, size)
            self.rows.append([len(part) for part in parts])
            return parts

        monkeypatch.setattr(torch.Tensor, "split", counting)


@pytest.mark.parametrize(
    ("shape", "rows"), [((1, 28, 28), [4096, 904]), ((3, 32, 32), [4096, 904]), ((64,), [4096, 904])]
)
def test_small_samples_are_summed_up_as_they_always_were(monkeypatch, shape, rows):
    """By 4096 rows each: the last bits, which committed records have, depend on what is summed together."""
    x = torch.randint(0, 256, (5000, *shape), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    axes, total = [axis for axis in range(x.ndim) if axis != 1], 0.0
    for part in (x[:4096], x[4096:]):
        total = total + (part.double() / 255).sum(axes)
    centre, squares = total / (x.numel() / x.shape[1]), 0.0
    for part in (x[:4096], x[4096:]):
        squares = squares + ((part.double() / 255 - centre.view(-1, *[1] * (x.ndim - 2))) ** 2).sum(axes)
    seen = Counted(monkeypatch)
    mean, std = channel_statistics(Dataset("made up", x, x[:, 0], x, x[:, 0], "made by a test"))
    assert seen.rows == [rows, rows]
    assert torch.equal(mean, centre.float())
    assert torch.equal(std, (squares / (x.numel() / x.shape[1])).sqrt().float())


def test_large_images_are_summed_up_by_few_at_a_time(monkeypatch):
    """In float64, 4096 of 384 x 384 were 5 GB and several times: at most 2^22 numbers, one image at least."""
    x = torch.randint(0, 256, (60, 1, 384, 384), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    seen = Counted(monkeypatch)
    mean, std = channel_statistics(Dataset("made up", x, x[:, 0], x, x[:, 0], "made by a test"))
    assert seen.rows == [[28, 28, 4]] * 2
    assert mean.item() == pytest.approx(x.double().mean().item() / 255, rel=1e-6)
    assert std.item() == pytest.approx(x.double().std(correction=0).item() / 255, rel=1e-6)
    monkeypatch.setattr(dataset_module, "NUMBERS", 1000)
    again = channel_statistics(Dataset("made up", x, x[:, 0], x, x[:, 0], "made by a test"))
    assert seen.rows[2:] == [[1] * 60] * 2
    torch.testing.assert_close(torch.cat(again), torch.cat([mean, std]), rtol=1e-6, atol=0)


def test_cifar_uses_the_published_constants():
    x = torch.zeros((2, 3, 4, 4), dtype=torch.uint8)
    labels = torch.tensor([0, 1])
    for name, first in (("cifar10", 0.4914), ("cifar100", 0.5071)):
        data = Dataset(name, x, labels, x, labels, "made by a test")
        assert data.mean[0].item() == pytest.approx(first)


def test_grey_images_of_a_colour_set_have_their_own_constants():
    """Three published constants made three channels of one."""
    x = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    data = Dataset("cifar10", x, torch.tensor([0]), x, torch.tensor([1]), "made by a test")
    assert (data.mean.tolist(), data.std.tolist()) == ([0.5], [0.5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": torch.arange(19)}, "x_train, y_train and site_train must be of one length, got 20, 19"),
        ({"y_test": torch.arange(4)}, "x_test, y_test and site_test must be of one length, got 5, 4"),
        ({"site_train": torch.arange(3)}, "site_train must be of one length, got 20, 20 and 3"),
        ({"x_test": torch.zeros(5, 4)}, r"of one shape, got torch.float32 \(20, 3\) and torch.float32 \(5, 4\)"),
        ({"x_train": torch.zeros(20, 8, 8)}, r"x_train must be a tensor \(n, C, H, W\) or \(n, p\), .* \(20, 8, 8\)"),
        ({"x_train": torch.zeros(20)}, "x_train must be a tensor"),
        ({"x_train": torch.zeros(0, 3), "y_train": torch.arange(0)}, "samples of x_train must be a whole number >= 1"),
        ({"task": "regression"}, "task must be one of 'classification', 'segmentation', got 'regression'"),
        ({"y_train": torch.rand(20)}, r"y_train must be whole numbers >= 0, got torch.float32 \(20,\)"),
        ({"y_test": torch.arange(5) - 1}, "y_test must be whole numbers >= 0, got -1"),
        ({"known_classes": 19}, "known_classes must be a whole number >= 20, got 19"),
        ({"known_classes": 20.0}, "known_classes must be a whole number >= 20, got 20.0"),
        ({"y_test": [0] * 5}, r"y_test one \(n,\) or \(n, H, W\), got torch.float32 \(5, 3\) and list"),
    ],
)
def test_tensors_that_do_not_fit_together_are_named(change, message):
    whole = {"x_train": torch.zeros(20, 3), "y_train": torch.arange(20), "x_test": torch.zeros(5, 3)}
    with pytest.raises(ValueError, match=message):
        Dataset("made up", **{**whole, "y_test": torch.arange(5), "source": "made by a test"} | change)


def test_classes_are_counted_without_test_samples():
    x, y = torch.zeros(4, 3), torch.tensor([0, 2, 1, 0])
    assert Dataset("made up", x, y, x[:0], y[:0], "made by a test").classes == 3


def test_masks_without_any_organ_are_of_two_classes():
    x, y = torch.zeros((4, 1, 8, 8), dtype=torch.uint8), torch.zeros((4, 8, 8), dtype=torch.uint8)
    data = Dataset("made up", x, y, x, y, "made by a test", task="segmentation")
    assert (data.classes, data.subset(2, seed=0).classes) == (2, 2)
