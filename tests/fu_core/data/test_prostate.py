"""ProstateMRI from NIfTI folders in the layout of the MS-Net release, written by the test."""

from __future__ import annotations

import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch

from fu_core.data import load, prostate
from fu_core.errors import CorruptData, DataUnavailable

SITES = ["BIDMC", "BMC", "HK", "I2CVB", "RUNMC", "UCL"]


def write_volume(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array.astype(np.float32), np.eye(4)), path)


def write_case(folder: Path, case: str, level: float, side: int = 12) -> None:
    """Four slices; the mask is empty in the first and in the last, zones 1 and 2 in the others.

    The image is dark (0) outside and `level` inside the square of the mask.
    """
    mask = np.zeros((side, side, 4))
    mask[2:6, 2:6, 1:3], mask[6:8, 2:6, 1:3] = 1, 2
    write_volume(folder / f"{case}.nii.gz", level * (mask > 0))
    write_volume(folder / f"{case}_segmentation.nii.gz", mask)


@pytest.fixture
def release(tmp_path) -> Path:
    """Six sites with five patients each; two of the file names are spelt differently, as in the wild."""
    for site in reversed(SITES):
        for number in range(5):
            write_case(tmp_path / "prostate_mri" / site, f"Case{number:02}", level=100 + number)
    hk = tmp_path / "prostate_mri" / "HK"
    (hk / "Case00_segmentation.nii.gz").rename(hk / "Case00_Segmentation.nii.gz")
    return tmp_path


def test_slices_with_prostate_of_six_sorted_sites(release, no_network):
    """5 patients: 4 train, 1 tests; 2 of 4 slices show prostate: 8 and 2 slices per site."""
    data = load("prostate_mri", release)
    assert data.task == "segmentation"
    assert data.x_train.shape == (48, 1, 384, 384)
    assert torch.bincount(data.site_train).tolist() == [8] * 6
    assert torch.bincount(data.site_test).tolist() == [2] * 6
    assert "BIDMC, BMC, HK, I2CVB, RUNMC, UCL" in data.source


def test_masks_merge_zones_and_stay_aligned_with_the_image(release):
    """Rows 2..8 and columns 2..6 of 12 become rows 64..256 and columns 64..192 of 384; inside, the image is white."""
    data = load("prostate_mri", release)
    expected = torch.zeros(384, 384, dtype=torch.uint8)
    expected[64:256, 64:192] = 1
    assert (data.y_train == expected).all()
    assert (data.x_train[:, 0, 80:240, 80:176] == 255).all()
    assert (data.x_train[:, 0, 300:, 300:] == 0).all()


def test_no_patient_is_on_both_sides(tmp_path):
    for number in range(5):
        write_case(tmp_path / "site", f"Case{number:02}", level=1)
    split = prostate._split_patients(tmp_path / "site")
    assert (len(split["train"]), len(split["test"])) == (4, 1)
    assert not set(split["train"]) & set(split["test"])
    assert split == prostate._split_patients(tmp_path / "site")


def test_without_the_folders_the_error_says_where_they_belong(tmp_path):
    with pytest.raises(DataUnavailable, match=r"needs 6 site folders in .*prostate_mri \(found: none\).*request"):
        load("prostate_mri", tmp_path)


def test_without_nibabel_the_error_names_the_extra(release, monkeypatch):
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(DataUnavailable, match=r'pip install "fu_core\[medical\]"'):
        load("prostate_mri", release)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda site: (site / "Case03.nii.gz").unlink(), r"Case03_segmentation\.nii\.gz has no volume"),
        (lambda site: (site / "Case03_segmentation.nii.gz").unlink(), r"Case03\.nii\.gz has no mask beside it"),
        (
            lambda site: write_volume(site / "Case03.nii.gz", np.full((12, 12, 4), np.nan)),  # was black
            r"Case03\.nii\.gz or Case03_segmentation\.nii\.gz holds numbers that are NaN",
        ),
        (lambda site: (site / "Case03.nii.gz").write_bytes(b"not NIfTI"), r"Case03\.nii\.gz is not a readable NIfTI"),
        (lambda site: write_volume(site / "Case03.nii.gz", np.ones((3, 3, 2))), "must be the same volume"),
        (
            lambda site: write_volume(site / "Case03_segmentation.nii.gz", np.zeros((12, 12, 4))),
            "marks no prostate",
        ),
    ],
)
def test_damaged_cases_are_named(release, damage, message):
    damage(release / "prostate_mri" / "HK")
    with pytest.raises(CorruptData, match=message):
        load("prostate_mri", release)
    assert not (release / "prostate_mri.npz").exists()


def test_a_truncated_volume_is_named(release):
    path = release / "prostate_mri" / "UCL" / "Case01.nii.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptData, match=r"Case01\.nii\.gz is not a readable NIfTI"):
        load("prostate_mri", release)


def test_a_site_needs_two_patients(release):
    for path in (release / "prostate_mri" / "UCL").glob("Case0[1-4]*"):
        path.unlink()
    with pytest.raises(DataUnavailable, match="UCL holds 1 complete cases"):
        load("prostate_mri", release)


def test_intensities_are_scaled_per_volume(tmp_path):
    """Of a ramp 0..999, 0.5 and 99.5 % are near 5 and 994: the ends are clipped, the middle 499.5 falls on 127.5."""
    ramp = np.zeros((384, 384, 1))
    ramp.flat[:] = np.arange(384 * 384) % 1000
    write_volume(tmp_path / "a.nii.gz", ramp)
    write_volume(tmp_path / "a_segmentation.nii.gz", np.ones_like(ramp))
    images, masks = prostate.read_case(tmp_path / "a.nii.gz", tmp_path / "a_segmentation.nii.gz")
    assert images.shape == masks.shape == (1, 384, 384)
    assert images.flat[0] == 0
    assert images.flat[999] == 255
    assert images.flat[500] == 128
