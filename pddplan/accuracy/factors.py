"""The factors that a calibration may move: what they are, how far, and how much is known of them beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pddplan.estimate.records import OperatingPoint, Workers
from pddplan.perf.curves import EfficiencyCurves, load_curves, scaled_curves
from pddplan.spec.calibration import CHIP_FACTORS, FITTED_NUMBERS, with_numbers
from pddplan.spec.profiles import ENGINE_NUMBERS
from pddplan.spec.types import Calibration, Chip, Engine

# Bounds of a factor on a chip's shares. The upper one lies above what is possible: a fit that wants more than the
# chip can do must be able to say so.
CHIP_RANGE = (0.2, 5.0)
LEAST_CHIP_SIGMA = 0.10  # of ln factor: no curve is known better
COMMUNICATION_SIGMA = 0.25  # links are measured on fewer machines than kernels
PROMPT_SIGMA = 0.05  # of ln prompt_factor: tighter than a chip's, which explains the same times by physics
PROMPT_RANGE = (0.5, 3.0)
OVERHEAD_SIGMA = 0.75  # of an overhead over its scale
OVERHEAD_MOST = 10.0  # times its scale
# Overheads that a profile has as 0 are searched on these scales, in the unit of their key.
LEAST_SCALE = {"step_overhead_ms": 1.0, "request_overhead_us": 20.0, "first_output_ms": 20.0, "handoff_ms": 50.0}


@dataclass(frozen=True)
class Factor:
    """One factor: of a chip (``owner`` its id) on its curves, or of an engine, in the unit of its key.

    The fit moves a coordinate u with prior N(0, 1): ``shipped exp(sigma u)``, or ``shipped + sigma u`` for an overhead.
    """

    kind: Literal["chip", "engine"]
    owner: str
    name: str
    shipped: float
    low: float
    high: float
    sigma: float
    relative: bool

    def value(self, u: float) -> float:
        return self.shipped * math.exp(self.sigma * u) if self.relative else self.shipped + self.sigma * u

    def coordinate(self, value: float) -> float:
        return math.log(value / self.shipped) / self.sigma if self.relative else (value - self.shipped) / self.sigma

    def spread(self, u: float, deviation: float) -> tuple[float, float]:
        """Values at one ``deviation`` of u below and above, within the bounds."""
        return max(self.value(u - deviation), self.low), min(self.value(u + deviation), self.high)

    @property
    def label(self) -> str:
        return f"{self.owner} {self.name}"


def factors_of(points: Sequence[OperatingPoint]) -> tuple[Factor, ...]:
    """Factors that could change a prediction of these points: chips in order of their ids, then engines."""
    chips = {pool.chip.id: pool.chip for point in points for pool in point.pools}
    linked = {pool.chip.id for point in points for pool in point.pools if pool.parallelism.chips > 1}
    engines = {point.engine.name: point.engine for point in points}
    handed = {point.engine.name for point in points if point.mode == "disaggregated"}
    found: list[Factor] = []
    for _, chip in sorted(chips.items()):
        found += _of_chip(chip, CHIP_FACTORS if chip.id in linked else CHIP_FACTORS[:2])
    for name, engine in sorted(engines.items()):
        keys = [k for k in FITTED_NUMBERS if k != "handoff_ms" or name in handed]
        found += [_of_engine(engine, key) for key in keys]
    return tuple(found)


def _of_chip(chip: Chip, names: Sequence[str]) -> list[Factor]:
    band = max(load_curves(chip).band, LEAST_CHIP_SIGMA)
    sigma = {"communication": max(band, COMMUNICATION_SIGMA)}
    return [Factor("chip", chip.id, n, 1.0, *CHIP_RANGE, sigma.get(n, band), True) for n in names]


def _of_engine(engine: Engine, key: str) -> Factor:
    field, si = ENGINE_NUMBERS[key]
    shipped = getattr(engine, field) / si
    if key == "prompt_factor":
        return Factor("engine", engine.name, key, shipped, *PROMPT_RANGE, PROMPT_SIGMA, True)
    scale = max(shipped, LEAST_SCALE[key])
    return Factor("engine", engine.name, key, shipped, 0.0, OVERHEAD_MOST * scale, OVERHEAD_SIGMA * scale, False)


Values = Mapping[tuple[str, str], float]
"""Value of each factor by (owner, name)."""


def values_at(factors: Sequence[Factor], u: Sequence[float]) -> dict[tuple[str, str], float]:
    return {(f.owner, f.name): f.value(x) for f, x in zip(factors, u, strict=True)}


def calibration_of(values: Values, chip_id: str) -> Calibration:
    compute, memory, communication = (values.get((chip_id, name), 1.0) for name in CHIP_FACTORS)
    return Calibration(compute, memory, communication)


class Changed:
    """Points with factors applied; a chip's curves are made once for each of its calibrations."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, Calibration], EfficiencyCurves] = {}

    def point(self, point: OperatingPoint, values: Values) -> OperatingPoint:
        """The point under these factors. Shares may exceed 1 here: whether that is possible is judged at the end."""
        name = point.engine.name
        engine = with_numbers(point.engine, {k: values[name, k] for k in FITTED_NUMBERS if (name, k) in values})
        pools = tuple(self._workers(pool, calibration_of(values, pool.chip.id)) for pool in point.pools)
        return replace(point, engine=engine, pools=pools)

    def _workers(self, workers: Workers, calibration: Calibration) -> Workers:
        key = workers.chip.id, calibration
        if key not in self._curves:
            self._curves[key] = scaled_curves(load_curves(workers.chip), calibration)
        return replace(workers, curves=self._curves[key])
