"""A file of measurements against the model: what ``validate`` answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pddplan.accuracy.predict import Predicted, predict
from pddplan.accuracy.ranks import Order, orders
from pddplan.accuracy.records import Measurements
from pddplan.accuracy.score import GroupErrors, group_errors


@dataclass(frozen=True)
class Validation:
    """``reasons``: why rows have no prediction and how many, most frequent first."""

    measurements: Measurements
    rows: tuple[Predicted, ...]
    groups: tuple[GroupErrors, ...]
    orders: tuple[Order, ...]
    reasons: tuple[tuple[str, int], ...]

    @property
    def predicted(self) -> int:
        return sum(row.figures is not None for row in self.rows)


def validate(measurements: Measurements) -> Validation:
    """Predict every row that has a point, then score."""
    rows = predict(measurements.rows)
    reasons = Counter(row.reason for row in rows if row.figures is None)
    ordered = tuple(sorted(reasons.items(), key=lambda x: (-x[1], x[0])))
    return Validation(measurements, rows, group_errors(rows), orders(rows), ordered)
