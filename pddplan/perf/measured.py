"""Services from measured rates: what a scenario's ``measured:`` gives replaces the roofline.

A measurement knows nothing of memory, parallelism or the four dimensions; memory comes in as an argument where the
caller knows it (else it doesn't bind) and ``utilization`` is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from pddplan.errors import Excuse
from pddplan.perf.instance import Array, Parallelism
from pddplan.spec.types import Measured


def monotone_line(x: ArrayLike, points: tuple[tuple[float, float], ...]) -> Array:
    """Piecewise linear through ``points`` (ascending x), never falling, end slopes outside; at least the ray through
    the origin below the first point, so that it stays positive.

    A table that falls is flattened (running maximum). One point: proportional.
    """
    at = np.asarray(x, dtype=float)
    px = np.array([p[0] for p in points], dtype=float)
    py = np.maximum.accumulate(np.array([p[1] for p in points], dtype=float))
    ray = py[0] * at / px[0]
    if px.size == 1:
        return np.asarray(ray)
    inner = np.interp(at, px, py)
    first = py[0] + (at - px[0]) * (py[1] - py[0]) / (px[1] - px[0])
    last = py[-1] + (at - px[-1]) * (py[-1] - py[-2]) / (px[-1] - px[-2])
    low = np.where(at < px[0], np.maximum(first, ray), inner)
    return np.asarray(np.where(at > px[-1], last, low))


def smooth_line(x: ArrayLike, points: tuple[tuple[float, float], ...]) -> Array:
    """A monotone cubic through three points or more (Fritsch and Carlson 1980), ``monotone_line`` outside them and
    through fewer.

    A prompt takes a + b x + c x² seconds, attention being the square: the chord between two measured lengths lies above
    that by up to c (distance/2)², 5 % between 32K and 128K of a published profile.
    """
    straight = monotone_line(x, points)
    if len(points) < 3:
        return straight
    from scipy.interpolate import PchipInterpolator

    at = np.asarray(x, dtype=float)
    px = np.array([p[0] for p in points], dtype=float)
    py = np.maximum.accumulate(np.array([p[1] for p in points], dtype=float))
    inside = (at >= px[0]) & (at <= px[-1])
    return np.where(inside, PchipInterpolator(px, py)(np.clip(at, px[0], px[-1])), straight)


@dataclass(frozen=True)
class MeasuredPrefill:
    """Prefill from a rate, a table of times by uncached tokens, or both (rate: capacity; table: latency)."""

    measured: Measured
    parallelism: Parallelism
    kv_pool_bytes: float

    @property
    def chips_per_instance(self) -> int:
        return self.measured.chips_per_instance

    @property
    def servers_per_instance(self) -> int:
        return 1

    @property
    def max_tokens_per_s(self) -> float:
        """Measured rate of the instance, counted as the measurement counts [tokens/s]; nan where only a table is
        given."""
        return math.nan if self.measured.tokens_per_s is None else self.measured.tokens_per_s

    def request_time_s(self, uncached: ArrayLike, cached: ArrayLike, merged: ArrayLike = 0.0) -> Array:
        """Table at the uncached tokens, else counted tokens / rate [s]; ``merged`` has no say."""
        u, c = np.broadcast_arrays(np.maximum(np.asarray(uncached, dtype=float), 1.0), np.asarray(cached, dtype=float))
        if self.measured.ttft_s:
            return smooth_line(u, self.measured.ttft_s)
        return self._at_rate_s(u, c)

    def _at_rate_s(self, uncached: Array, cached: Array) -> Array:
        counted = uncached + cached if self.measured.cached_counted else uncached
        return np.asarray(counted / self.max_tokens_per_s)

    def saturated_time_s(self, uncached: ArrayLike, cached: ArrayLike, weights: ArrayLike | None = None) -> Array:
        """Counted tokens / rate, else the table [s]. A rate that counts cached tokens charges them like others."""
        if self.measured.tokens_per_s is None:
            return self.request_time_s(uncached, cached)
        u, c = np.broadcast_arrays(np.maximum(np.asarray(uncached, dtype=float), 1.0), np.asarray(cached, dtype=float))
        return self._at_rate_s(u, c)

    def last_pass_s(self, uncached: ArrayLike, cached: ArrayLike) -> Array:
        """The whole request [s]: how it was cut into passes is not known."""
        return self.request_time_s(uncached, cached)

    def utilization(self, uncached: ArrayLike, cached: ArrayLike, load: float) -> None:
        """Not known from a rate."""
        return None


@dataclass(frozen=True)
class MeasuredDecode:
    """Decode from a rate R, a time per output token and a batch: ``step(B) = max(tpot, B/R)``.

    Two of the three give the third (``B = R tpot``); where all three are given and disagree, rate and tpot count. Flat
    below the measured batch (a measurement says nothing of smaller ones: conservative), and beyond it the rate doesn't
    grow. A rate alone leaves the time per token unknown (nan).
    """

    chips_per_instance: int
    max_tokens_per_s: float
    tpot_s: float
    max_batch: float
    parallelism: Parallelism
    kv_pool_bytes: float

    def step_time_s(self, batch: ArrayLike, context: ArrayLike) -> Array:
        """max(tpot, batch / rate) [s]; nan where the time per token was not measured; contexts don't count."""
        b, _ = np.broadcast_arrays(np.asarray(batch, dtype=float), np.asarray(context, dtype=float))
        return np.asarray(np.maximum(self.tpot_s, b / self.max_tokens_per_s))

    def extend_cost(self, context: ArrayLike, batch: ArrayLike = 0.0) -> tuple[Array, Array]:
        """(one step, the decode rate): known tokens pass at least as fast as new ones; t0 is 0 where tpot is
        unknown."""
        shape = np.broadcast(np.asarray(context), np.asarray(batch)).shape
        t0 = 0.0 if math.isnan(self.tpot_s) else self.tpot_s
        return np.full(shape, t0), np.full(shape, self.max_tokens_per_s)

    def utilization(self, batch: ArrayLike, context: ArrayLike, load: float = 1.0) -> None:
        """Not known from a rate."""
        return None


def measured_prefill(
    measured: Measured, *, kv_pool_bytes: float = math.inf, parallelism: Parallelism | None = None
) -> MeasuredPrefill | Excuse:
    """Prefill service from a measurement with a rate or a table of times."""
    if measured.tokens_per_s is None and not measured.ttft_s:
        return Excuse("measured", 0.0, 1.0, "prefill rate or ttft_s table", "measured prefill")
    par = parallelism or Parallelism(tp=measured.chips_per_instance)
    return MeasuredPrefill(measured, par, kv_pool_bytes)


def measured_decode(
    measured: Measured, *, kv_pool_bytes: float = math.inf, parallelism: Parallelism | None = None
) -> MeasuredDecode | Excuse:
    """Decode service from a measurement with a rate, or a batch and a time per output token."""
    rate, batch, tpot = measured.tokens_per_s, measured.batch, measured.tpot_s
    if tpot is None and batch is not None and rate is not None:
        tpot = batch / rate
    if rate is None:
        if tpot is None or batch is None:
            return Excuse("measured", 0.0, 1.0, "decode rate, or batch and tpot_ms", "measured decode")
        rate = batch / tpot
    known = math.nan if tpot is None else tpot
    most = math.inf if tpot is None else rate * tpot
    par = parallelism or Parallelism(tp=measured.chips_per_instance)
    return MeasuredDecode(measured.chips_per_instance, rate, known, most, par, kv_pool_bytes)
