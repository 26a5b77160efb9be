"""The largest of several standard normals: how far the busiest of n ranks lies above the mean."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


@lru_cache(maxsize=512)
def normal_maximum(ranks: int) -> tuple[float, float]:
    """(mean, variance) of the largest of ``ranks`` standard normals.

    ``E z = integral z n phi(z) Phi(z)^(n-1) dz`` on a grid of 4,001 points in [-8, 8]; error below 1e-6.
    """
    if ranks <= 1:
        return 0.0, 1.0
    z = np.linspace(-8.0, 8.0, 4001)
    step = z[1] - z[0]
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    below = np.clip(np.cumsum(density) * step - 0.5 * step * density, 0.0, 1.0)
    weight = ranks * density * below ** (ranks - 1) * step
    weight /= weight.sum()
    mean = float((weight * z).sum())
    return mean, float((weight * z * z).sum()) - mean * mean
