"""What the model predicts of measured rows under trial values of the factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pddplan.accuracy.factors import Changed, Factor, Values, values_at
from pddplan.accuracy.predict import figures_of
from pddplan.accuracy.records import Figures, MeasuredRow, Metric
from pddplan.errors import Excuse
from pddplan.estimate.records import OperatingPoint

Array = NDArray[Any]
# Beyond the roughness of closed loops, whose users are few: of ln factor, and of an overhead's coordinate.
STEP, OVERHEAD_STEP = 0.05, 0.3


@dataclass(frozen=True)
class Observation:
    """One measured value: of which row (position), of which metric, under which point."""

    row: int
    metric: Metric
    measured: float
    point: OperatingPoint


def observations(rows: Sequence[MeasuredRow]) -> tuple[Observation, ...]:
    """Every measured value of every row that has a point."""
    return tuple(
        Observation(i, metric, row.measured[metric], part.point)
        for i, row in enumerate(rows)
        for part in row.parts
        for metric in part.metrics
        if metric in row.measured
    )


class Trial:
    """Residuals ``ln(predicted/measured)`` of observations by coordinates of the factors.

    Keeps what it has predicted: a point is asked again only where a factor that concerns it has moved.
    """

    def __init__(self, factors: Sequence[Factor], observed: Sequence[Observation]) -> None:
        self.factors, self.observed = tuple(factors), tuple(observed)
        self._changed = Changed()
        self._known: dict[tuple[int, Values | tuple[float, ...]], Figures] = {}
        self._points: dict[int, OperatingPoint] = {id(o.point): o.point for o in observed}
        self._logs = np.log([o.measured for o in observed])

    def residuals(self, coordinates: Array) -> Array:
        """``(k, n)`` residuals at k coordinate vectors ``(k, factors)``; NaN where there is no prediction."""
        from pddplan.estimate.estimate import estimate_many

        vectors = [values_at(self.factors, u) for u in np.atleast_2d(coordinates)]
        wanted = {
            (key, self._concerned(point, values)): (point, values)
            for values in vectors
            for key, point in self._points.items()
        }
        new = {k: pair for k, pair in wanted.items() if k not in self._known}
        answers = estimate_many([self._changed.point(*pair) for pair in new.values()]) if new else []
        for k, answer in zip(new, answers, strict=True):
            self._known[k] = {} if isinstance(answer, Excuse) else figures_of(answer)
        return np.array([self._logs_at(values) for values in vectors]) - self._logs

    def _logs_at(self, values: Values) -> list[float]:
        found = (self._known[id(o.point), self._concerned(o.point, values)].get(o.metric) for o in self.observed)
        return [math.log(v) if v is not None and v > 0 else math.nan for v in found]

    def _concerned(self, point: OperatingPoint, values: Values) -> tuple[float, ...]:
        owners = {point.engine.name, *(pool.chip.id for pool in point.pools)}
        return tuple(value for (owner, _), value in values.items() if owner in owners)

    def slopes(self, u: Array) -> tuple[Array, Array]:
        """(residuals at u ``(n,)``, derivatives by the coordinates ``(n, factors)``), by one-sided differences away
        from the nearer bound; 0 where a prediction is missing."""
        steps = np.array([self._step(f, x) for f, x in zip(self.factors, u, strict=True)])
        found = self.residuals(np.vstack([u, u + np.diag(steps)]))
        with np.errstate(invalid="ignore"):
            jacobian = (found[1:] - found[0]).T / steps
        return found[0], np.where(np.isfinite(jacobian), jacobian, 0.0)

    @staticmethod
    def _step(factor: Factor, u: float) -> float:
        size = STEP / factor.sigma if factor.relative else OVERHEAD_STEP
        return size if factor.value(u + size) <= factor.high else -size
