"""Small event simulations, written without the package, that the stage formulas are checked against."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def agent_uncached_share(u: Floats) -> Floats:
    """Quantile function of the uncached share of an agent mix: 75 % in 0.5-5 %, 21 % in 5-35 %, 4 % in 50-100 %."""
    return np.where(
        u < 0.75,
        0.005 + 0.045 * u / 0.75,
        np.where(u < 0.96, 0.05 + 0.30 * (u - 0.75) / 0.21, 0.5 + 0.5 * (u - 0.96) / 0.04),
    )


def shared_line(arrivals: Floats, sizes: Floats, capacity: float, ceiling: float) -> Floats:
    """Transfer times on a line shared equally under one ceiling, by attained service (all flows run at one rate)."""
    done = np.zeros(len(sizes))
    targets: list[tuple[float, int]] = []
    now, attained, arrived = 0.0, 0.0, 0
    total = len(sizes)
    while arrived < total or targets:
        rate = min(ceiling, capacity / len(targets)) if targets else 0.0
        leaves = now + (targets[0][0] - attained) / rate if targets else np.inf
        if arrived < total and arrivals[arrived] <= leaves:
            attained += rate * (arrivals[arrived] - now)
            now = arrivals[arrived]
            heapq.heappush(targets, (attained + sizes[arrived], arrived))
            arrived += 1
        else:
            attained, now = targets[0][0], leaves
            done[heapq.heappop(targets)[1]] = now
    return done - arrivals


def max_min_rates(ceilings: Floats, capacity: float) -> Floats:
    """Max-min fair rates by water filling."""
    order = np.argsort(ceilings)
    rates, left = np.zeros(len(ceilings)), capacity
    for position, flow in enumerate(order):
        rates[flow] = min(ceilings[flow], left / (len(ceilings) - position))
        left -= rates[flow]
    return rates


def shared_line_unequal(arrivals: Floats, sizes: Floats, ceilings: Floats, capacity: float) -> Floats:
    """Transfer times with a ceiling per flow, max-min shared; all rates anew at each event."""
    done = np.zeros(len(sizes))
    flows: list[int] = []
    left = sizes.astype(float).copy()
    now, arrived, total = 0.0, 0, len(sizes)
    while arrived < total or flows:
        rates = max_min_rates(ceilings[flows], capacity) if flows else np.zeros(0)
        times = left[flows] / rates if flows else np.array([np.inf])
        leaves = now + float(times.min())
        upcoming = arrivals[arrived] if arrived < total else np.inf
        until = min(leaves, upcoming)
        if flows:
            left[flows] -= rates * (until - now)
        now = until
        if upcoming <= leaves:
            flows.append(arrived)
            arrived += 1
        else:
            flow = flows.pop(int(times.argmin()))
            done[flow] = now
    return done - arrivals


def decode_pool(arrivals: Floats, tokens: Floats, step_time: Callable[[int], float]) -> tuple[Floats, dict[int, float]]:
    """Finish times and time spent at each occupancy, all requests advancing at 1/step_time(running)."""
    done = np.zeros(len(tokens))
    targets: list[tuple[float, int]] = []
    spent: dict[int, float] = {}
    now, attained, arrived, total = 0.0, 0.0, 0, len(tokens)
    while arrived < total:  # stops with the last arrival: the tail would bias the occupancy
        running = len(targets)
        step = step_time(running) if running else np.inf
        leaves = now + (targets[0][0] - attained) * step if running else np.inf
        until = min(leaves, arrivals[arrived])
        spent[running] = spent.get(running, 0.0) + until - now
        if arrivals[arrived] <= leaves:
            attained += (until - now) / step if running else 0.0
            heapq.heappush(targets, (attained + tokens[arrived], arrived))
            arrived += 1
        else:
            attained = targets[0][0]
            done[heapq.heappop(targets)[1]] = until
        now = until
    return done, spent


def waits_for_slots(arrivals: Floats, lives: Floats, slots: int) -> Floats:
    """First come first served on ``slots`` servers."""
    free = [0.0] * slots
    waits = np.zeros(len(arrivals))
    for i, at in enumerate(arrivals):
        start = max(at, heapq.heappop(free))
        waits[i] = start - at
        heapq.heappush(free, start + lives[i])
    return waits


Stream = tuple[int, float, float, Callable[[int], Floats]]  # turns, turns/s, share of last turns, gaps of a session


def lru_sessions(
    rng: np.random.Generator, turns: int, turn_rate: float, end: float, gaps: Callable[[int], Floats], room: int
) -> float:
    """Share of returning turns that still find their session in an LRU of ``room`` sessions."""
    return lru_streams(rng, [(turns, turn_rate, end, gaps)], room)[0]


def lru_streams(rng: np.random.Generator, streams: list[Stream], room: int) -> list[float]:
    """The same for several streams of sessions in one LRU, by stream."""
    events: list[tuple[float, int, int]] = []
    for stream, (turns, turn_rate, end, gaps) in enumerate(streams):
        starts = np.cumsum(rng.exponential(1.0 / (turn_rate * end), max(int(turns * end), 1)))
        for name, start in enumerate(starts):
            at = float(start)
            events.append((at, name, stream))
            for gap in gaps(int(rng.geometric(end)) - 1):
                at += float(gap)
                events.append((at, name, stream))
    events.sort()
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    seen: set[tuple[int, int]] = set()
    hits, returns = [0] * len(streams), [0] * len(streams)
    first, last = len(events) // 3, int(len(events) * 0.8)
    for i, (_, name, stream) in enumerate(events[:last]):
        session = (stream, name)
        if i >= first and session in seen:
            returns[stream] += 1
            hits[stream] += session in cache
        seen.add(session)
        cache.pop(session, None)
        cache[session] = None
        if len(cache) > room:
            cache.popitem(last=False)
    return [hit / back for hit, back in zip(hits, returns, strict=True)]


def stream_completion_s(ready: Floats, sizes: Floats, rate: float) -> float:
    """When the last of the pieces, each ready at a time, is through a link that sends them in order."""
    at = 0.0
    for time, size in zip(ready, sizes, strict=True):
        at = max(at, time) + size / rate
    return at
