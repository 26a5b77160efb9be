"""A tenth of the plans, drawn at random, simulated anew: they agree with the formulas within bars or as recorded."""

from __future__ import annotations

import math
import random

import pytest

from tests.agreement.grid import BUSY_LINE, FEW_FLOWS, LEAST_WAIT, Cell, cells
from tests.agreement.grid import PART as COUNTED
from tests.agreement.measure import measure
from tests.agreement.page import recorded
from tests.compiled import needs_numba

PART, SEED, REQUESTS = 10, 20, 100_000
ALL = cells()
CHOSEN = sorted(random.Random(SEED).sample(range(len(ALL)), len(ALL) // PART))
ROUNDING = 0.01  # of the recorded figures


def test_the_grid_is_as_large_as_asked() -> None:
    """200 plans and more, all recorded; in 100 a tenth of the requests wait; 40 lines at 0.7 with 8 flows at most."""
    known = recorded()
    assert len(ALL) >= 200 and [cell.name for cell in ALL] == list(known)
    assert sum(float(row["p_wait"]) >= LEAST_WAIT for row in known.values()) >= 100
    busy = [r for r in known.values() if float(r["line load"]) >= BUSY_LINE and 0 < float(r["m"]) <= FEW_FLOWS]
    assert len(busy) >= 40


@needs_numba
@pytest.mark.parametrize("cell", [ALL[n] for n in CHOSEN], ids=lambda cell: cell.name)
def test_agrees(cell: Cell) -> None:
    """Every figure that counts in the record: |error| within the bar and this run's interval; where the record says
    that the bar is missed, within what is recorded and both intervals.

    A short run's own interval knows little of rare long requests: it is at least the recorded one, widened by the
    square root of the requests that are missing.
    """
    row = recorded()[cell.name]
    answer = measure(cell, REQUESTS, seed=SEED)
    if not answer.figures:  # a short run may look like one that grows
        answer = measure(cell, 5 * REQUESTS, seed=SEED)
    assert bool(answer.figures) == bool(row["mean wait"])
    for name, figure in answer.figures.items():
        bar = answer.bar(name)
        if bar is None or not row[name] or float(row[f"{name} ±"]) > bar[0] / COUNTED:
            continue
        error, half = abs(float(row[name])), float(row[f"{name} ±"])
        now = max(figure.half, half * math.sqrt(max(float(row["requests"]) / REQUESTS, 1.0)))
        room = max(bar[1], error + half) + now + ROUNDING
        print(f"{name}: {figure.error:+.1f} ± {now:.1f}, recorded {error:.1f} ± {half:.1f}, bar {bar[1]:g}")
        assert abs(figure.error) <= room, f"{name} is off by {figure.error:+.1f}, room {room:.1f}"
