"""Runs without a steady state: whether the number in the system keeps growing, where, and what capacity is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pddplan.simulate import world as wd
from pddplan.simulate.build import SERIES_POINTS
from pddplan.simulate.records import Growth

Array = NDArray[np.float64]

GROWS = 1.4  # number in the system, last quarter over second quarter: from here on it is no steady state
GROWS_BY = 0.01  # of the request rate
LEAST_POINTS = 8
FILLED = 0.9  # of the points of a run that takes as long as its requests at their rate
PILES = {
    "prefill": wd.PREFILL_WAITING,
    "line": wd.LINE_FLOWS,
    "main_decode": wd.MAIN_WAITING,
    "relay_decode": wd.RELAY_WAITING,
}


def sample_s(seconds: float) -> float:
    """Time between the points of a run that takes about so long."""
    return seconds / (FILLED * SERIES_POINTS)


def grows(series: Array, rate: float) -> bool:
    """Whether the number in the system grows, its mean over the last quarter of a run against the second quarter."""
    ends = _quarters(series)
    if ends is None:
        return False
    early, late = (_held(quarter) for quarter in ends)
    return bool(late > GROWS * early and _slope(*ends) > GROWS_BY * rate)


def growth_of(series: Array, rate: float, crowded: bool, loads: Mapping[str, float]) -> Growth | None:
    """What an overloaded run says, None of one that is not; ``crowded``: it ran out of room.

    The capacity missing where requests pile up is its load by the formulas less 1; where ``loads`` hasn't that or finds
    room, the asked ``rate`` over the rate of answers in the second half, less 1 (a pile has its own cost: sessions that
    wait lose their cache).
    """
    ends = _quarters(series)
    if ends is None or not (crowded or grows(series, rate)):
        return None
    early, late = ends
    rises = {name: late[:, column].mean() - early[:, column].mean() for name, column in PILES.items()}
    stage = max(rises, key=lambda name: rises[name])
    missing = loads.get(stage, 0.0) - 1.0
    if missing <= 0.0:
        rows = _filled(series)
        half = rows[len(rows) // 2 :]
        answered = (half[-1, wd.DONE_SO_FAR] - half[0, wd.DONE_SO_FAR]) / (half[-1, wd.AT] - half[0, wd.AT])
        missing = max(rate / answered - 1.0, 0.0) if answered > 0 else math.inf
    return Growth(max(_slope(early, late), 0.0), stage, float(missing))


def _filled(series: Array) -> Array:
    return series[series[:, wd.AT] > 0]


def _quarters(series: Array) -> tuple[Array, Array] | None:
    """The second and the last quarter of a run's points; None of a run with few."""
    rows = _filled(series)
    if len(rows) < LEAST_POINTS:
        return None
    quarter = len(rows) // 4
    return rows[quarter : 2 * quarter], rows[-quarter:]


def _slope(early: Array, late: Array) -> float:
    """Requests per second by which the number in the system grows."""
    rise = _held(late) - _held(early)
    return float(rise / (late[:, wd.AT].mean() - early[:, wd.AT].mean()))


def _held(rows: Array) -> float:
    """Requests in the system, or transfers where those are more: some of answered requests are still under way."""
    return float(np.maximum(rows[:, wd.NUMBER], rows[:, wd.LINE_FLOWS]).mean())
