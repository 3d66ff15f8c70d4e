"""The generated prostate set: six kinds of image, one kind of anatomy, never mistaken for real data."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fu_core.data import load
from fu_core.data.phantom import SLICES, TEST_PATIENTS, TRAIN_PATIENTS, phantom


def test_each_site_has_its_slices_split_by_patient():
    """8 patients x 5 slices train, 2 x 5 test; no patient, hence no mask series, is on both sides."""
    data = load("phantom")
    assert torch.bincount(data.site_train).tolist() == [TRAIN_PATIENTS * SLICES] * 6 == [40] * 6
    assert torch.bincount(data.site_test).tolist() == [TEST_PATIENTS * SLICES] * 6 == [10] * 6
    train = {mask.numpy().tobytes() for mask in data.y_train}
    assert not train & {mask.numpy().tobytes() for mask in data.y_test}


def test_its_source_shouts_synthetic():
    assert load("phantom").source.startswith("SYNTHETIC")


def test_masks_are_binary_and_of_plausible_size():
    data = load("phantom")
    assert data.y_train.unique().tolist() == [0, 1]
    share = data.y_train.float().mean((1, 2))
    assert share.min() > 0.005
    assert share.max() < 0.25


def test_the_gland_is_smallest_at_both_ends():
    area = load("phantom").y_train.sum((1, 2)).reshape(-1, SLICES)
    assert (area[:, 2] > area[:, 0]).all()
    assert (area[:, 2] > area[:, -1]).all()


def test_the_gland_is_brighter_than_its_surroundings_on_every_site():
    """So that there is something to segment."""
    data = load("phantom")
    for site in range(6):
        images, masks = (tensor[data.site_train == site] for tensor in (data.x_train[:, 0].float(), data.y_train == 1))
        assert images[masks].mean() > 1.2 * images[~masks].mean()


def test_sites_differ_in_brightness_by_more_than_patients_do():
    """Feature skew: the spread between sites exceeds the mean spread of the slices within a site."""
    data = load("phantom")
    brightness = data.x_train.float().mean((1, 2, 3)).reshape(6, -1)
    assert brightness.mean(1).std() > 2 * brightness.std(1).mean()


def test_other_sizes_are_possible():
    arrays = phantom(size=32)
    assert arrays["x_train"].shape == (240, 32, 32)
    assert arrays["y_test"].dtype == np.uint8


@pytest.mark.parametrize("split", ["train", "test"])
def test_sites_come_as_int64(split):
    assert getattr(load("phantom"), f"site_{split}").dtype == torch.int64


@pytest.mark.parametrize("size", [0, 7, 8.0, "8", True])
def test_a_size_that_shows_no_gland_is_refused(size):
    with pytest.raises(ValueError, match=f"size must be a whole number >= 8, got {size!r}"):
        phantom(size)
