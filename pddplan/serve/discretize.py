"""Laws as a few points: quantile bins with fixed probabilities, so results move smoothly with every input.

The bins are cut in probability, not in value, and a point is the mean of its bin: the mean is kept exactly and each
point rises with the law. All functions are pure; shapes are ``(…)`` for operating points and ``(points,)`` for bins.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

TAIL_POWER = 2.5  # with 12 points the last five bins end at 89, 94, 97, 99 and 100 %: the tail that SLOs ask for


def as_floats(value: ArrayLike) -> Floats:
    """Any number, list or array as an array of doubles."""
    return np.asarray(value, dtype=np.float64)


def tail_edges(points: int) -> Floats:
    """Edges of ``points`` probability bins, ``u_j = 1 - (1 - j/points)^2.5``, finer towards 1. Shape (points + 1,).

    Raises ValueError for fewer than one point.
    """
    if points < 1:
        raise ValueError(f"a law needs at least one point, got {points}")
    return np.asarray(1.0 - (1.0 - np.arange(points + 1) / points) ** TAIL_POWER, dtype=np.float64)


def bin_means(values: ArrayLike, pmf: ArrayLike, edges: ArrayLike) -> Floats:
    """Mean of a discrete law within each bin of probability, an atom on an edge being split.

    With the quantile function Q, ``x_j = 1/(u_{j+1} - u_j) ∫_{u_j}^{u_{j+1}} Q(u) du``; the integral is piecewise
    linear in u, hence exact. ``values`` ascending and ``pmf`` (normalised here) have shape (n,), ``edges`` are
    (points + 1,).
    """
    mass = np.asarray(pmf, dtype=np.float64)
    mass = mass / mass.sum()
    cumulative = np.concatenate([[0.0], np.cumsum(mass)])
    cumulative /= cumulative[-1]
    integral = np.concatenate([[0.0], np.cumsum(mass * np.asarray(values, dtype=np.float64))])
    cuts = np.asarray(edges, dtype=np.float64)
    return np.asarray(np.diff(np.interp(cuts, cumulative, integral)) / np.diff(cuts), dtype=np.float64)


def weighted_quantile(values: ArrayLike, weights: ArrayLike, quantile: float) -> float:
    """Quantile of weighted points, linear between the middles of their weights; any shape, weights > 0 count.

    Raises ValueError when no weight is positive.
    """
    flat, mass = (np.ravel(np.asarray(x, dtype=np.float64)) for x in np.broadcast_arrays(values, weights))
    flat, mass = flat[mass > 0], mass[mass > 0]
    if flat.size == 0:
        raise ValueError("a quantile needs at least one point of positive weight")
    order = np.argsort(flat, kind="stable")
    flat, mass = flat[order], mass[order]
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    return float(np.interp(quantile, middle, flat))
