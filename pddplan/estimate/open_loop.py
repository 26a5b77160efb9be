"""Points at a given rate: Poisson arrivals, the queue of ``serve.queueing``, decode as a fixed point of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pddplan.errors import Excuse
from pddplan.estimate import pools
from pddplan.estimate.records import OperatingPoint
from pddplan.estimate.transfer import kv_transfer_s
from pddplan.perf.service import RooflineAggregated, RooflinePrefill
from pddplan.serve.queueing import mean_wait_s, queue_moments

ROUNDS = 200
TOLERANCE = 1e-6


@dataclass(frozen=True)
class OpenResult:
    """Means at a rate [s]; None where the mode has no such stage."""

    queue_s: float
    prefill_s: float | None
    transfer_s: float
    tpot_s: float | None
    running: float  # requests in decode of the whole deployment (in mode prefill: in prefill)


def run_open(point: OperatingPoint, services: tuple[pools.Service, ...]) -> OpenResult | Excuse:
    """Steady state of a point with ``request_rate_per_s``, or which stage can't keep up and by how much."""
    rate = point.request_rate_per_s
    assert rate is not None
    if isinstance(services[0], RooflineAggregated):
        return _aggregated(point, services[0], rate)
    queue, prefill, busy = 0.0, None, 0.0
    if isinstance(services[0], RooflinePrefill):
        stage = _prefill(point, services[0], rate)
        if isinstance(stage, Excuse):
            return stage
        queue, prefill = stage
        busy = rate * prefill
    if point.mode == "prefill":
        return OpenResult(queue, prefill, 0.0, None, busy)
    decode = _decode(point, services[-1], rate)
    if isinstance(decode, Excuse):
        return decode
    tpot, running = decode
    transfer = kv_transfer_s(point, prefill, tpot) if prefill is not None else 0.0
    return OpenResult(queue, prefill, transfer, tpot, running)


def _prefill(point: OperatingPoint, service: RooflinePrefill, rate: float) -> tuple[float, float] | Excuse:
    """(mean wait, mean time) of prefill workers with one queue: M/G/c over their scheduling units."""
    shares = pools.uniform_quantiles(point.lengths.shortest)
    prompt = point.lengths.input_tokens * shares
    new = np.maximum(prompt * (1.0 - point.lengths.prefix_hit), 1.0)
    times = service.request_time_s(new, np.maximum(prompt - new, 0.0), 0.0)
    units = point.pools[0].count * service.servers_per_instance
    return _wait(times, rate, units, "prefill_utilization")


def _wait(times: np.ndarray, rate: float, units: int, name: str) -> tuple[float, float] | Excuse:
    mean = float(np.mean(times))
    wait = mean_wait_s(rate, units, queue_moments(times, np.ones_like(times)))
    if isinstance(wait, Excuse):
        return Excuse(name, rate * mean / units, 1.0, "", "prefill")
    return wait, mean


def _batch(following: Callable[[float], float], limit: float) -> tuple[float, bool]:
    """(x, True) for the smallest x = following(x), or (what would follow, False) where that is above ``limit``.

    From 0 by secants: ``following`` rises and is convex (steps get longer with their batch), so they stay below.
    """
    before, at_before = 0.0, following(0.0)
    x = at_before
    for _ in range(ROUNDS):
        if x > limit:
            return x, False
        y = following(x)
        if y > limit or abs(y - x) <= TOLERANCE * max(x, 1.0):
            return y, y <= limit
        slope = (y - at_before) / (x - before)
        before, at_before = x, y
        x = min(x + (y - x) / (1.0 - slope), max(limit, y)) if slope < 1.0 else y
    return x, True


def _decode(point: OperatingPoint, service: pools.Service, rate: float) -> tuple[float, float] | Excuse:
    """(TPOT, running requests of the pool): B = rate E[n] TPOT(B / workers); an excuse where it has no end or needs
    more slots than there are."""
    workers = point.pools[-1].count
    most, bound = pools.most_requests(point, service)
    tokens = pools.mean_output(point.lengths)
    limit = most * workers
    running, fits = _batch(lambda b: rate * tokens * pools.decode_step_s(point, service, b / workers), limit)
    if not fits:
        return Excuse(bound, running / workers, most, "running per worker", "decode")
    return running / (rate * tokens), running


def _aggregated(point: OperatingPoint, service: RooflineAggregated, rate: float) -> OpenResult | Excuse:
    """Prompts take turns with decodes: share u of the time has a chunk, steps of both kinds give one token each."""
    workers, dp = point.pools[0].count, service.parallelism.dp
    lengths, accepted = point.lengths, point.engine.mtp_accepted_tokens
    context, new = pools.running_context(lengths), pools.mean_new(lengths)
    chunk, before = pools.mean_chunk(point), pools.before_chunk(point)
    most, bound = pools.most_requests(point, service)

    def steps(running: float) -> tuple[float, float, float]:
        """(step with a chunk [s], without [s], share of the time that has one)."""
        mixed, plain = service.step_time_s(running / workers, context, [chunk, 0.0], before).tolist()
        return mixed, plain, rate * new / chunk * mixed / (workers * dp)

    overload: list[float] = []

    def following(running: float) -> float:
        mixed, plain, share = steps(running)
        if share >= 1.0:
            overload.append(share)
            return math.inf
        tpot = 1.0 / ((share / mixed + (1.0 - share) / plain) * accepted)
        return rate * pools.mean_output(lengths) * tpot

    running, fits = _batch(following, most * workers)
    if overload:
        return Excuse("prefill_utilization", overload[0], 1.0, "", "aggregated")
    if not fits:
        return Excuse(bound, running / workers, most, "running per worker", "aggregated")
    mixed, _, _ = steps(running)
    tpot = running / (rate * pools.mean_output(lengths))
    times = mixed * np.maximum(new / chunk * pools.uniform_quantiles(lengths.shortest) / lengths.mean_share, 1e-9)
    stage = _wait(times, rate, workers * dp, "prefill_utilization")
    if isinstance(stage, Excuse):
        return stage
    return OpenResult(stage[0], stage[1], 0.0, tpot, running)
