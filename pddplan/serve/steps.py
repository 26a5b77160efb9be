"""Step times of a decode service tabulated, the batch at which it keeps up, and how many requests it may run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.perf.protocols import DecodeService
from pddplan.serve.deployment import Pool
from pddplan.serve.main_decode import Occupancy, max_offered, occupancy_tail

Array = NDArray[np.float64]

BATCH_GRID_POINTS = 96
LOG_SPAN = math.log(1.1 / 0.9)  # over which the bend of the step time is taken
MAX_BATCH = 1e6  # where a service states no limit of its own


@dataclass(frozen=True)
class StepTable:
    """Step time of one decode service at one context, tabulated over the batch: cheap to ask often."""

    batch: Array
    seconds: Array

    def __call__(self, batch: Array) -> Array:
        return np.asarray(np.interp(batch, self.batch, self.seconds), dtype=float)

    def at(self, batch: float) -> float:
        """Step time at one batch [s]."""
        return float(np.interp(batch, self.batch, self.seconds))

    def largest_batch(self, limit_s: float) -> float:
        """Largest batch whose step stays within the limit, 0 if none does."""
        if self.seconds[0] > limit_s:
            return 0.0
        if self.seconds[-1] <= limit_s:
            return float(self.batch[-1])
        return float(np.interp(limit_s, self.seconds, self.batch))


def settle(table: StepTable, tokens_per_s: float, instances: int) -> Occupancy | Excuse:
    """Smallest batch B of an instance with B = (tokens/s per instance) tau(B); the same fixed point as
    ``main_decode.occupancy``, solved in the table's own segment: tau = a + b B gives B = d a / (1 - d b).

    Excuse where no batch of the table keeps up.
    """
    demand = tokens_per_s / instances
    if demand <= 0:
        return Occupancy(0.0, 0.0, float(table.seconds[0]), 1.0)
    speed = table.batch / table.seconds
    first = int((speed >= demand).argmax())
    if speed[first] < demand:
        return Excuse("main decode throughput", demand, float(speed.max()), "tokens/s per instance")
    k = max(first, 1)
    slope = float((table.seconds[k] - table.seconds[k - 1]) / (table.batch[k] - table.batch[k - 1]))
    start = float(table.seconds[k - 1] - slope * table.batch[k - 1])
    room = 1.0 - demand * slope
    low, high = float(table.batch[k - 1]), float(table.batch[k])
    batch = min(max(demand * start / room if room > 0 else high, low), high)
    bend = min(max(math.log(table.at(batch * 1.1) / table.at(batch * 0.9)) / LOG_SPAN, 0.0), 0.98)
    return Occupancy(batch, batch * instances, start + slope * batch, 1.0 / (1.0 - bend))


@dataclass(frozen=True)
class StepSurface:
    """Step times of one decode service on a grid batch x context, made once: a table at any context is a blend."""

    batch: Array
    context: Array
    seconds: Array  # (contexts, batches)

    def table(self, context: float, stretch: float = 1.0) -> StepTable:
        """Table at a mean context, linear between the grid's; ``stretch`` >= 1 lengthens every step (extend passes)."""
        at = min(max(context, float(self.context[0])), float(self.context[-1]))
        k = min(int(self.context.searchsorted(at, side="right")) - 1, self.context.size - 2)
        share = float((at - self.context[k]) / (self.context[k + 1] - self.context[k]))
        seconds = (1.0 - share) * stretch * self.seconds[k] + share * stretch * self.seconds[k + 1]
        return StepTable(self.batch, seconds)

    def at(self, batch: Array, context: Array) -> Array:
        """Steps (points,) of ``batch`` (points,) at mean contexts (points,) [s], linear on the grid."""
        at = np.clip(context, self.context[0], self.context[-1])
        k = np.minimum(self.context.searchsorted(at, side="right") - 1, self.context.size - 2)
        share = (at - self.context[k]) / (self.context[k + 1] - self.context[k])
        low, high = (
            np.array([np.interp(b, self.batch, self.seconds[row]) for b, row in zip(batch, rows, strict=True)])
            for rows in (k, k + 1)
        )
        return np.asarray((1.0 - share) * low + share * high)


def step_surface(service: DecodeService, contexts: Array) -> StepSurface:
    """Surface over ``contexts`` (ascending, two or more); never falls with the batch."""
    top = max(min(service.max_batch, MAX_BATCH), 2.0)
    batch = np.concatenate([[1e-6], np.geomspace(0.5, top, BATCH_GRID_POINTS)])
    seconds = np.asarray(service.step_time_s(batch[None, :], contexts[:, None]), dtype=float)
    return StepSurface(batch, contexts, np.maximum.accumulate(seconds, axis=1))


@dataclass(frozen=True)
class Slots:
    """How many requests a pool may run: per instance, and as the admission row counts them."""

    per_instance: float
    pooled: bool
    instances: int
    bound: str  # engine | tpot | kv_memory

    @property
    def total(self) -> float:
        return self.per_instance * self.instances

    def overflow(self, requests: float, dispersion: float) -> float:
        """P(N > K): the pool's total if requests go to the least loaded, else one instance's."""
        if self.pooled:
            return float(occupancy_tail(requests, np.floor(self.total), dispersion))
        return float(occupancy_tail(requests / self.instances, np.floor(self.per_instance), dispersion))

    def room(self, requests: float, dispersion: float, epsilon: float) -> float:
        """``1 - a/a_max``, a_max the most requests with ``P(N > K) <= epsilon`` at this dispersion: how far the load is
        from where the admission row breaks, relative to it; 0 there, below 0 beyond."""
        counted = np.floor(self.total if self.pooled else self.per_instance)
        if counted < 1 or math.isinf(counted):
            return 0.0 if counted < 1 else 1.0
        share = 1 if self.pooled else self.instances
        return 1.0 - requests / (share * float(max_offered(counted, epsilon, dispersion)))


def slots(
    pool: Pool, table: StepTable, kv_running: float, room_bytes: float, tpot_limit_s: float, pooled: bool
) -> Slots:
    """K per instance = min(engine limit, batch at the TPOT limit, KV memory); ``room_bytes`` is the pool's."""
    limits = {
        "engine": pool.decode.max_batch,
        "tpot": table.largest_batch(tpot_limit_s),
        "kv_memory": max(room_bytes, 0.0) / pool.instances / max(kv_running, 1.0),
    }
    bound = min(limits, key=lambda name: limits[name])
    return Slots(limits[bound], pooled, pool.instances, bound)
