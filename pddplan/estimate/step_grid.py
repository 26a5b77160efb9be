"""Seconds of a step over (requests running, new prompt tokens), tabulated per operating point and read by arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class StepGrid:
    """``seconds`` (points, running, tokens) on ``running`` (points, running) and ``tokens`` (points, tokens), both
    ascending from 0; linear between grid points and beyond the last."""

    running: Array
    tokens: Array
    seconds: Array

    def points(self, rows: NDArray[np.intp]) -> StepGrid:
        """The grids of the points ``rows`` alone."""
        return StepGrid(self.running[rows], self.tokens[rows], self.seconds[rows])

    def at(self, running: Array, tokens: Array, rows: NDArray[np.intp] | None = None) -> Array:
        """Seconds at one (running, tokens) of every point, or of the points ``rows``; shapes (points,)."""
        row = np.arange(self.running.shape[0]) if rows is None else rows
        i, u = _place(self.running[row], running)
        j, v = _place(self.tokens[row], tokens)
        s = self.seconds
        low, next_low = s[row, i, j], s[row, i + 1, j]
        high, next_high = s[row, i, j + 1], s[row, i + 1, j + 1]
        low = low + u * (next_low - low)
        return np.asarray(low + v * (high + u * (next_high - high) - low))


def _place(grid: Array, value: Array) -> tuple[NDArray[np.intp], Array]:
    """(cell, share of the way through it) of each point's value on its own grid."""
    cell = np.clip((grid <= value[:, None]).sum(axis=1) - 1, 0, grid.shape[1] - 2)
    row = np.arange(grid.shape[0])
    low, high = grid[row, cell], grid[row, cell + 1]
    return cell, np.maximum((value - low) / (high - low), 0.0)


def request_grid(most: Array, points: int = 14) -> Array:
    """0, then geometric from 1 to ``most`` requests, shape (points of the estimate, points)."""
    top = np.maximum(most, 2.0)[:, None]
    return np.concatenate([np.zeros_like(top), top ** np.linspace(0.0, 1.0, points - 1)[None, :]], axis=1)


def token_grid(most: Array, points: int = 12) -> Array:
    """0, then geometric from 1/64 of ``most`` tokens to ``most``."""
    top = np.maximum(most, 64.0)[:, None]
    return np.concatenate([np.zeros_like(top), top * 64.0 ** np.linspace(-1.0, 0.0, points - 1)[None, :]], axis=1)
