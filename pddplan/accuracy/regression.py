"""Robust least squares with a prior: few coordinates, residuals that are dear to compute, rows that may be wrong.

Minimises ``sum_i 2 (sqrt(1 + (r_i/s_i)^2) - 1) + |u|^2``: soft-L1 over the residuals ``r = ln(predicted/measured)`` in
units of their noise s, a standard normal prior on every coordinate. The noise of a metric is taken from its own
residuals, within what repeated measurements and the best of models leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LEAST_NOISE, MOST_NOISE = 0.03, 0.4  # of ln measured: repeated runs differ by 2 %, engines by 6 %
_NORMAL = 1.4826  # standard deviation over median absolute deviation
_SWEEPS = 12
_LARGEST_STEP = 3.0  # prior deviations
_MOST_STEPS = 8
_STILL = 0.5  # of the loss, which is a chi-square: a step that gains less ends the search
IDENTIFIED = 0.5  # of the prior's deviation: the rows must at least halve what isn't known


@dataclass(frozen=True)
class Anchor:
    """Residuals and slopes at ``u``: a straight model of the rows around it."""

    u: Array  # (factors,)
    residuals: Array  # (n,)
    slopes: Array  # (n, factors)

    def at(self, u: Array) -> Array:
        return np.asarray(self.residuals + self.slopes @ (u - self.u))


@dataclass(frozen=True)
class Fit:
    """Where the search ended: its anchor, and the noise of each row there."""

    anchor: Anchor
    noise: Array


def noise_of(residuals: Array, kinds: Array) -> Array:
    """Noise of each row from the median absolute residual of its kind, bounded."""
    noise = np.full(len(residuals), LEAST_NOISE)
    for kind in np.unique(kinds):
        own = np.abs(residuals[kinds == kind])
        noise[kinds == kind] = np.clip(_NORMAL * np.nanmedian(own), LEAST_NOISE, MOST_NOISE)
    return noise


def weights_of(residuals: Array, noise: Array) -> Array:
    """Weights of soft-L1 as of weighted least squares, ``1/(s^2 sqrt(1 + (r/s)^2))``; 0 for rows without residual."""
    scaled = residuals / noise
    weights = 1.0 / (noise**2 * np.sqrt(1.0 + scaled**2))
    return np.where(np.isfinite(residuals), weights, 0.0)


def solve_straight(anchor: Anchor, kinds: Array, low: Array, high: Array, rows: Array | None = None) -> Array:
    """Minimum over the straight model within the bounds, by repeated weighting; ``rows``: those that count."""
    from scipy.optimize import lsq_linear

    use = np.isfinite(anchor.residuals) if rows is None else rows & np.isfinite(anchor.residuals)
    size = len(anchor.u)
    u = anchor.u
    if not use.any() or size == 0:
        return np.zeros(size)
    near = Anchor(anchor.u, anchor.residuals[use], anchor.slopes[use])
    for _ in range(_SWEEPS):
        current = near.at(u)
        root = np.sqrt(weights_of(current, noise_of(current, kinds[use])))
        matrix = np.vstack([near.slopes * root[:, None], np.eye(size)])
        target = np.concatenate([-root * (near.residuals - near.slopes @ near.u), np.zeros(size)])
        new = lsq_linear(matrix, target, bounds=(low, high)).x
        still = float(np.max(np.abs(new - u))) < 1e-4
        u = np.asarray(new)
        if still:
            break
    return u


def loss(residuals: Array, noise: Array, u: Array) -> float:
    """What is minimised, at given noise; a row that has lost its prediction counts as a large error."""
    scaled = np.where(np.isfinite(residuals), residuals, 1.0) / noise
    return float(np.sum(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0)) + u @ u)


def search(
    slopes: Callable[[Array], tuple[Array, Array]],
    residuals: Callable[[Array], Array],
    kinds: Array,
    bounds: tuple[Array, Array],
    start: Array,
    fresh: int,
    exact: bool,
    tell: Callable[[int], None] = lambda _: None,
) -> Fit:
    """Gauss-Newton from ``start``: straight model, its minimum within reach, halved until it is none the worse.

    Slopes are asked ``fresh`` times, later ones follow from what each step has shown (Broyden): they are dear, and in
    these coordinates the model bends little. ``exact``: those at the end are asked as well, for ``knowledge``.
    """
    low, high = bounds
    anchor, asked = Anchor(start, *slopes(start)), True
    for step in range(_MOST_STEPS):
        tell(step)
        reach_low, reach_high = np.maximum(low, anchor.u - _LARGEST_STEP), np.minimum(high, anchor.u + _LARGEST_STEP)
        aim = solve_straight(anchor, kinds, reach_low, reach_high)
        noise = noise_of(anchor.at(aim), kinds)
        found = _improved(anchor, aim, noise, residuals)
        if found is None:
            break
        u, new = found
        before, after = loss(anchor.residuals, noise, anchor.u), loss(new, noise, u)
        asked = step + 1 < fresh
        anchor = Anchor(u, *slopes(u)) if asked else _updated(anchor, u, new)
        if before - after < _STILL:
            break
    if exact and not asked:
        anchor = Anchor(anchor.u, *slopes(anchor.u))
    return Fit(anchor, noise_of(anchor.residuals, kinds))


def _updated(anchor: Anchor, u: Array, residuals: Array) -> Anchor:
    """The straight model through the new residuals: slopes changed along the step alone (Broyden's rank-one update)."""
    step = u - anchor.u
    missed = np.where(np.isfinite(residuals - anchor.residuals), residuals - anchor.at(u), 0.0)
    change = np.outer(missed, step) / max(float(step @ step), 1e-12)
    return Anchor(u, residuals, anchor.slopes + change)


def _improved(
    anchor: Anchor, aim: Array, noise: Array, residuals: Callable[[Array], Array]
) -> tuple[Array, Array] | None:
    before = loss(anchor.residuals, noise, anchor.u)
    for part in (1.0, 0.5, 0.25):
        u = anchor.u + part * (aim - anchor.u)
        found = residuals(u)
        if loss(found, noise, u) < before:
            return u, found
    return None


# ---------------------------------------------------------------- what the rows know


@dataclass(frozen=True)
class Knowledge:
    """Deviation of each coordinate after the rows, in prior deviations (1: nothing learned), and for one that isn't
    identified the other that explains the same rows (its position), if one does."""

    deviation: Array
    identified: tuple[bool, ...]
    like: tuple[int | None, ...]


ALIKE = 0.8  # correlation from which two factors are one to the rows


def knowledge(fit: Fit) -> Knowledge:
    """Which coordinates the rows determine: the least known one is given up, until all that stay are halved.

    Only the slopes and the noise decide, so that rows may be held out afterwards without asking again.
    """
    size = len(fit.anchor.u)
    weights = weights_of(fit.anchor.residuals, fit.noise)
    information = fit.anchor.slopes.T @ (fit.anchor.slopes * weights[:, None])
    kept = list(range(size))
    deviation = np.ones(size)
    like: list[int | None] = [None] * size
    while kept:
        covariance = _covariance(information, kept)
        spread = np.sqrt(np.diag(covariance))
        worst = int(np.argmax(spread))
        if spread[worst] < IDENTIFIED:
            deviation[kept] = spread
            break
        gone = kept[worst]
        deviation[gone], like[gone] = spread[worst], _like(covariance, worst, kept)
        kept.remove(gone)
    return Knowledge(deviation, tuple(i in kept for i in range(size)), tuple(like))


def _covariance(information: Array, kept: Sequence[int]) -> Array:
    return np.asarray(np.linalg.inv(information[np.ix_(kept, kept)] + np.eye(len(kept))))


def _like(covariance: Array, worst: int, kept: Sequence[int]) -> int | None:
    spread = np.sqrt(np.diag(covariance))
    shared = np.abs(covariance[worst]) / (spread[worst] * spread)
    shared[worst] = 0.0
    other = int(np.argmax(shared))
    return kept[other] if shared[other] >= ALIKE else None
