"""How far apart two colours are, for those who see all of them and for deuteranopes.

Colours in OKLab (Ottosson 2020), where equal distances look equally large: 0 to 1 from black to white. Deuteranopia
after Viénot, Brettel & Mollon (1999).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from matplotlib import colors
from numpy.typing import NDArray

APART = 0.07  # two colours that are farther apart can be told by themselves, in thin lines and small dots, too

DEUTERANOPE = np.array([[0.293, 0.707, 0.0], [0.293, 0.707, 0.0], [-0.022, 0.022, 1.0]])  # of linear RGB
TO_LMS = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.63]])
TO_LAB = np.array([[0.2105, 0.7936, -0.0041], [1.978, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])


def oklab(colour: str, deuteranope: bool = False) -> NDArray[np.float64]:
    """OKLab coordinates (3,) of a colour, as a deuteranope sees it if asked."""
    srgb = np.array(colors.to_rgb(colour))
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    if deuteranope:
        linear = DEUTERANOPE @ linear
    coordinates: NDArray[np.float64] = TO_LAB @ np.cbrt(np.clip(TO_LMS @ linear, 0, None))
    return coordinates


@cache
def distance(one: str, other: str) -> float:
    """How far apart two colours are for whoever sees them as nearer to each other."""
    return min(float(np.linalg.norm(oklab(one, eyes) - oklab(other, eyes))) for eyes in (False, True))
