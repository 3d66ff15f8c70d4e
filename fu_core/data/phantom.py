"""A generated stand-in for multi-site prostate MRI, so that segmentation runs anywhere and at once.

Each patient has a pelvis (fat, muscle, hip bones, bladder, rectum) and a prostate with an irregular smooth outline that
shrinks towards both ends of the gland. Each of six sites images its own patients with another scanner: other gain,
contrast, noise, bias field, sharpness and field of view. That is feature skew as between real hospitals: the anatomy
has one distribution, the images have six.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter

from fu_core.data.cache import Arrays, pack
from fu_core.errors import check_count
from fu_core.streams import numpy_stream

SEED = 0
TRAIN_PATIENTS, TEST_PATIENTS = 8, 2  # per site
SLICES = 5  # per patient, from base to apex


@dataclass(frozen=True)
class Scanner:
    """What a site does to the same anatomy; intensities lie in 0..1."""

    gain: float
    gamma: float  # contrast: below 1 lifts dark tissue, above 1 buries it
    noise: float  # standard deviation
    bias: float  # relative drop of the coil's sensitivity across the image
    angle: float  # direction of that drop, in degrees
    blur: float  # in pixels of a 64-pixel image
    zoom: float  # above 1: smaller field of view, larger organs


SCANNERS = (
    Scanner(gain=1.00, gamma=1.0, noise=0.02, bias=0.0, angle=0, blur=0.4, zoom=1.00),
    Scanner(gain=0.55, gamma=1.3, noise=0.03, bias=0.3, angle=90, blur=0.6, zoom=1.25),
    Scanner(gain=1.15, gamma=0.6, noise=0.05, bias=0.5, angle=270, blur=0.3, zoom=0.85),
    Scanner(gain=0.75, gamma=1.0, noise=0.10, bias=0.2, angle=45, blur=0.9, zoom=1.10),
    Scanner(gain=0.40, gamma=0.8, noise=0.04, bias=0.6, angle=180, blur=0.5, zoom=0.95),
    Scanner(gain=0.90, gamma=1.7, noise=0.06, bias=0.4, angle=225, blur=1.2, zoom=1.40),
)


@dataclass(frozen=True)
class Patient:
    """Lengths are relative to half the field of view at zoom 1."""

    body: np.ndarray  # (2,) semi-axes
    centre: np.ndarray  # (2,) of the prostate
    prostate: np.ndarray  # (2,) semi-axes
    waves: np.ndarray  # (4,) amplitudes of the outline's harmonics 2..5
    phases: np.ndarray  # (4,)


def phantom(size: int = 64) -> Arrays:
    """uint8 images and masks `(n, size, size)`, 6 sites x (40 training + 10 test) slices. The seed is fixed.

    Raises ValueError for a `size` below 8 pixels, which would show no gland.
    """
    check_count("size", size, least=8)
    train, test = ([*range(TRAIN_PATIENTS)], [*range(TRAIN_PATIENTS, TRAIN_PATIENTS + TEST_PATIENTS)])
    x_train, y_train, site_train = _slices(train, size)
    x_test, y_test, site_test = _slices(test, size)
    source = (
        f"SYNTHETIC multi-site prostate MRI phantom (generated, {len(SCANNERS)} scanners, {size}x{size}; no real data)"
    )
    return pack((x_train, y_train), (x_test, y_test), source, site_train=site_train, site_test=site_test)


def _slices(patients: list[int], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, masks and sites of these patients of every site, site by site."""
    images, masks, sites = [], [], []
    for site, scanner in enumerate(SCANNERS):
        for number in patients:
            rng = numpy_stream(SEED, "phantom", site, number)
            patient = _patient(rng)
            for level in np.linspace(-0.8, 0.8, SLICES):
                tissue, mask = _anatomy(patient, level, scanner.zoom, size, rng)
                images.append(_scan(tissue, scanner, rng))
                masks.append(mask)
                sites.append(site)
    return np.stack(images), np.stack(masks).astype(np.uint8), np.array(sites)


def _patient(rng: np.random.Generator) -> Patient:
    return Patient(
        body=np.array([rng.uniform(0.84, 0.95), rng.uniform(0.68, 0.80)]),
        centre=np.array([rng.uniform(-0.05, 0.05), rng.uniform(-0.02, 0.10)]),
        prostate=np.array([rng.uniform(0.25, 0.36), rng.uniform(0.19, 0.27)]),
        waves=rng.normal(0, 1, 4) * np.array([0.05, 0.05, 0.03, 0.02]),
        phases=rng.uniform(0, 2 * np.pi, 4),
    )


def _anatomy(
    patient: Patient, level: float, zoom: float, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Tissue brightness as in a T2-weighted image, and the prostate mask, both `(size, size)`.

    `level` runs from -1 (base) to 1 (apex); later tissues cover earlier ones.
    """
    down, right = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j] / zoom
    prostate = _prostate(patient, level, right, down)
    tissues = (
        (_ellipse(right, down, (0, 0), patient.body), 0.85),  # fat
        (_ellipse(right, down, (0, 0), patient.body - 0.12), 0.30),  # muscle
        (_ellipse(right, down, (-0.58, -0.05), np.array([0.14, 0.24])), 0.12),  # hip bones, then their marrow
        (_ellipse(right, down, (0.58, -0.05), np.array([0.14, 0.24])), 0.12),
        (_ellipse(right, down, (-0.58, -0.05), np.array([0.09, 0.19])), 0.55),
        (_ellipse(right, down, (0.58, -0.05), np.array([0.09, 0.19])), 0.55),
        (_ellipse(right, down, (0, -0.38), np.array([0.26, 0.16]) * (1 - 0.5 * level)), 0.95),  # bladder
        (_ellipse(right, down, (0, 0.46), np.array([0.15, 0.12])), 0.42),  # rectum, wall and content
        (_ellipse(right, down, (0, 0.46), np.array([0.10, 0.07])), 0.05),
        (prostate < 1, 0.72),  # peripheral zone
        (_prostate(patient, level, right, down + 0.05) < 0.62, 0.48),  # central gland
    )
    brightness = np.full((size, size), 0.02)
    for where, value in tissues:
        brightness[where] = value
    texture = gaussian_filter(rng.normal(0, 1, (size, size)), size / 32, mode="wrap")
    return brightness * (1 + 0.15 * texture / texture.std()), prostate < 1


def _ellipse(right: np.ndarray, down: np.ndarray, centre: tuple[float, float], axes: np.ndarray) -> np.ndarray:
    return ((right - centre[0]) / axes[0]) ** 2 + ((down - centre[1]) / axes[1]) ** 2 < 1


def _prostate(patient: Patient, level: float, right: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Distance from the gland's centre relative to its irregular outline: the gland is where it is below 1."""
    width = patient.prostate * np.sqrt(1 - (0.9 * level) ** 2)
    u, v = (right - patient.centre[0]) / width[0], (down - patient.centre[1]) / width[1]
    harmonics = np.arange(2, 6)[:, None, None] * np.arctan2(v, u) + patient.phases[:, None, None]
    outline = 1 + np.tensordot(patient.waves, np.cos(harmonics), axes=1)
    return np.hypot(u, v) / outline


def _scan(tissue: np.ndarray, scanner: Scanner, rng: np.random.Generator) -> np.ndarray:
    """The uint8 image that a scanner makes of a slice."""
    size = len(tissue)
    down, right = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    angle = np.deg2rad(scanner.angle)
    sensitivity = 1 - scanner.bias * (1 + np.cos(angle) * right + np.sin(angle) * down) / 2
    sharp = gaussian_filter(tissue.clip(0, 1) ** scanner.gamma, scanner.blur * size / 64)
    noisy = scanner.gain * sharp * sensitivity + rng.normal(0, scanner.noise, (size, size))
    return np.rint(noisy.clip(0, 1) * 255).astype(np.uint8)
