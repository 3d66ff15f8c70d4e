"""ProstateMRI: T2-weighted slices with prostate masks from six hospitals, read from folders you must request.

The MS-Net release (Liu et al., IEEE TMI 2020; https://liuquande.github.io/SAML/) goes, unpacked, to

    <data folder>/prostate_mri/<site>/<case>.nii.gz
    <data folder>/prostate_mri/<site>/<case>_segmentation.nii.gz

with one folder per site (BIDMC, BMC, HK, I2CVB, RUNMC, UCL). Axial slices lie along the third axis.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from fu_core.data.cache import SPLITS, UNREADABLE, Arrays, pack
from fu_core.errors import CorruptData, DataUnavailable
from fu_core.streams import numpy_stream

SITES = 6
SIDE = 384
TEST_SHARE = 0.2
SPLIT_SEED = 0
PERCENTILES = (0.5, 99.5)
VOLUME_NAME = re.compile(r"^[^.].*\.nii(\.gz)?$", re.IGNORECASE)
MASK_NAME = re.compile(r"^(.+)_segmentation\.nii(\.gz)?$", re.IGNORECASE)

Case = tuple[Path, Path]  # volume, mask


def prostate_mri(raw: Path) -> Arrays:
    """Slices that show prostate, uint8 `(n, 384, 384)`, masks, sites 0..5 in sorted order of the folder names.

    80 % of each site's patients train, 20 % test: no patient is on both sides. The split is random but fixed.
    """
    root = raw.parent / "prostate_mri"
    folders = sorted(folder for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []
    if len(folders) != SITES:
        found = ", ".join(folder.name for folder in folders) or "none"
        raise DataUnavailable(
            f"prostate_mri needs {SITES} site folders in {root} (found: {found}), each with <case>.nii.gz and "
            "<case>_segmentation.nii.gz; request the MS-Net release from its authors"
        )
    parts: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {"train": [], "test": []}
    for site, folder in enumerate(folders):
        for split, cases in _split_patients(folder).items():
            for images, masks in (read_case(*case) for case in cases):
                parts[split].append((images, masks, np.full(len(images), site)))
    train, test = ([np.concatenate(column) for column in zip(*parts[split], strict=True)] for split in SPLITS)
    names = ", ".join(folder.name for folder in folders)
    source = f"ProstateMRI (MS-Net release, Liu et al., 2020), sites {names}, slices with prostate, split by patient"
    return pack((train[0], train[1]), (test[0], test[1]), source, site_train=train[2], site_test=test[2])


def read_case(volume: Path, mask: Path) -> tuple[np.ndarray, np.ndarray]:
    """One patient: images and masks, both uint8 `(slices, 384, 384)`, for the slices whose mask is not empty.

    Intensities are scaled per volume between its 0.5 and 99.5 percentiles; the zones of a mask are merged.
    """
    image, zones = _read(volume), _read(mask)
    if image.ndim != 3 or image.shape != zones.shape:
        raise CorruptData(f"{volume} is {image.shape} but {mask.name} {zones.shape}; both must be the same volume")
    if not (np.isfinite(image).all() and np.isfinite(zones).all()):
        raise CorruptData(f"{volume} or {mask.name} holds numbers that are NaN or infinite")
    shown = np.flatnonzero((zones > 0).any(axis=(0, 1)))
    if len(shown) == 0:
        raise CorruptData(f"{mask} marks no prostate at all")
    low, high = np.percentile(image, PERCENTILES)
    scaled = np.clip((image - low) / max(high - low, 1e-6), 0, 1) * 255
    return _resize(scaled[:, :, shown], "bilinear"), _resize((zones > 0)[:, :, shown], "nearest-exact")


def _split_patients(folder: Path) -> dict[str, list[Case]]:
    """The cases of a site, in sorted order, dealt into train and test."""
    cases = _cases(folder)
    if len(cases) < 2:
        raise DataUnavailable(f"{folder} holds {len(cases)} complete cases, needs at least 2 (train and test)")
    n_test = max(1, round(TEST_SHARE * len(cases)))
    shuffled = numpy_stream(SPLIT_SEED, "prostate_mri split", folder.name).permutation(len(cases))
    test = set(shuffled[:n_test].tolist())
    return {
        "train": [case for index, case in enumerate(cases) if index not in test],
        "test": [case for index, case in enumerate(cases) if index in test],
    }


def _cases(folder: Path) -> list[Case]:
    files = {path.name: path for path in sorted(folder.iterdir())}
    cases = []
    for name, mask in files.items():
        match = MASK_NAME.match(name)
        if match:
            volume = next(
                (files[f"{match[1]}{end}"] for end in (".nii.gz", ".nii") if f"{match[1]}{end}" in files), None
            )
            if volume is None:
                raise CorruptData(f"{mask} has no volume {match[1]}.nii.gz beside it")
            cases.append((volume, mask))
    known = {path for case in cases for path in case}
    alone = [path for name, path in files.items() if VOLUME_NAME.match(name) and path not in known]
    if alone:  # a folder copied by half would quietly have fewer patients
        raise CorruptData(f"{alone[0]} has no mask beside it; copy it there, or take the volume away")
    return cases


def _read(path: Path) -> np.ndarray:
    try:
        import nibabel
    except ImportError as error:
        raise DataUnavailable('prostate_mri needs nibabel: run `pip install "fu_core[medical]"`') from error
    try:
        return np.asarray(nibabel.Nifti1Image.from_filename(path).dataobj, dtype=np.float32)
    except (*UNREADABLE, nibabel.filebasedimages.ImageFileError) as error:
        raise CorruptData(f"{path} is not a readable NIfTI file ({error})") from error


def _resize(slices: np.ndarray, mode: str) -> np.ndarray:
    """`(H, W, slices)` to uint8 `(slices, 384, 384)`."""
    stack = torch.from_numpy(np.ascontiguousarray(slices.transpose(2, 0, 1), dtype=np.float32))
    if stack.shape[1:] != (SIDE, SIDE):
        stack = F.interpolate(stack[:, None], (SIDE, SIDE), mode=mode)[:, 0]
    return stack.round().to(torch.uint8).numpy()
