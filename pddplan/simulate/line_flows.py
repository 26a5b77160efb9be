"""Flows that share a line max-min, each below its own ceiling, and the time at which each is through."""

from __future__ import annotations

from heapq import heappush

import numpy as np

from pddplan.simulate.compiled import jit
from pddplan.simulate.world import FLOW, FLOW_BYTES, LINE, LINE_BYTES, Events, World

NEARLY = 1.0 + 1e-9


@jit
def _settle(w: World, line: int, now: float) -> None:
    """Bytes that left since the line was last looked at; only a shared line is looked at as a whole."""
    passed = now - w.lines[line].clock
    if passed > 0.0:
        for n in range(w.lines[line].flow_count):
            r = w.flows[line, n]
            gone = min(w.requests[r].speed * passed, w.requests[r].bytes)
            w.requests[r].bytes -= gone
            w.total[LINE_BYTES] += gone
    w.lines[line].clock = now


@jit
def _fill(w: World, line: int) -> None:
    """Max-min speeds: whoever's ceiling lies below an equal share of what is left gets it; then again."""
    count, left, open_flows = w.lines[line].flow_count, w.lines[line].capacity, w.lines[line].flow_count
    for n in range(count):
        w.requests[w.flows[line, n]].speed = -1.0
    while open_flows > 0:
        share, fixed = left / open_flows, 0
        for n in range(count):
            r = w.flows[line, n]
            if w.requests[r].speed < 0.0 and w.requests[r].cap <= share:
                w.requests[r].speed = w.requests[r].cap
                left -= w.requests[r].cap
                fixed += 1
        open_flows -= fixed
        if fixed == 0:
            for n in range(count):
                r = w.flows[line, n]
                if w.requests[r].speed < 0.0:
                    w.requests[r].speed = max(share, 0.0)
            break


@jit
def _next_of_shared(w: World, events: Events, line: int, now: float) -> None:
    """The next flow of a shared line to be through, as one event of the line."""
    w.lines[line].version += 1
    soonest = np.inf
    for n in range(w.lines[line].flow_count):
        r = w.flows[line, n]
        if w.requests[r].speed > 0.0:
            soonest = min(soonest, w.requests[r].bytes / w.requests[r].speed)
    if soonest < np.inf:
        heappush(events, (now + soonest, LINE, line, w.lines[line].version))


@jit
def _alone(w: World, events: Events, r: int, now: float) -> None:
    """The end of a flow at its ceiling, as an event of its own."""
    w.requests[r].version += 1
    w.requests[r].speed = w.requests[r].cap
    w.requests[r].sent = now
    if w.requests[r].cap > 0.0:
        heappush(events, (now + w.requests[r].bytes / w.requests[r].cap, FLOW, r, w.requests[r].version))


@jit
def _own(w: World, r: int, now: float) -> None:
    """Bytes that left of a flow at its ceiling."""
    gone = min(w.requests[r].speed * (now - w.requests[r].sent), w.requests[r].bytes)
    w.requests[r].bytes -= gone
    w.total[LINE_BYTES] += gone
    w.requests[r].sent = now


@jit
def rebalance(w: World, events: Events, line: int, now: float) -> None:
    """After a flow, a ceiling or the capacity has changed: between a line with room for all and one that is shared."""
    crowded = w.lines[line].flow_cap > w.lines[line].capacity * NEARLY
    if crowded and w.lines[line].full == 0:
        for n in range(w.lines[line].flow_count):
            r = w.flows[line, n]
            _own(w, r, now)
            w.requests[r].version += 1
        w.lines[line].clock = now
    if crowded:
        _fill(w, line)
        _next_of_shared(w, events, line, now)
    elif w.lines[line].full == 1:
        w.lines[line].version += 1
        for n in range(w.lines[line].flow_count):
            _alone(w, events, w.flows[line, n], now)
    w.lines[line].full = 1 if crowded else 0


@jit
def settle(w: World, line: int, now: float) -> None:
    """To be called before a shared line changes."""
    if w.lines[line].full == 1:
        _settle(w, line, now)


@jit
def begin(w: World, events: Events, line: int, r: int, now: float) -> None:
    """Request r starts to send ``bytes`` at most ``cap`` fast."""
    settle(w, line, now)
    n = w.lines[line].flow_count
    w.flows[line, n] = r
    w.requests[r].slot = n
    w.lines[line].flow_count = n + 1
    w.lines[line].flow_cap += w.requests[r].cap
    w.total[FLOW_BYTES] += w.requests[r].bytes
    w.requests[r].sent, w.requests[r].speed = now, w.requests[r].cap
    if w.lines[line].full == 0 and w.lines[line].flow_cap <= w.lines[line].capacity * NEARLY:
        _alone(w, events, r, now)
    else:
        rebalance(w, events, line, now)


@jit
def _settle_one(w: World, line: int, r: int, now: float) -> None:
    """What request r has sent until now: with all of a full line, else by itself."""
    if w.lines[line].full == 1:
        _settle(w, line, now)
    else:
        _own(w, r, now)


@jit
def end(w: World, events: Events, line: int, r: int, now: float) -> None:
    """Request r leaves the line, all sent."""
    _settle_one(w, line, r, now)
    w.total[LINE_BYTES] += w.requests[r].bytes  # what rounding left
    _off(w, events, line, r, now)


@jit
def drop(w: World, events: Events, line: int, r: int, now: float) -> None:
    """Request r breaks off: what it hasn't sent was never on the line."""
    _settle_one(w, line, r, now)
    w.total[FLOW_BYTES] -= w.requests[r].bytes
    _off(w, events, line, r, now)


@jit
def _off(w: World, events: Events, line: int, r: int, now: float) -> None:
    """After its bytes are settled."""
    w.requests[r].bytes = 0.0
    last = w.lines[line].flow_count - 1
    moved = w.flows[line, last]
    w.flows[line, w.requests[r].slot] = moved
    w.requests[moved].slot = w.requests[r].slot
    w.requests[r].slot = -1
    w.requests[r].version += 1
    w.lines[line].flow_count = last
    w.lines[line].flow_cap = w.lines[line].flow_cap - w.requests[r].cap if last > 0 else 0.0
    if w.lines[line].full == 1:
        rebalance(w, events, line, now)


@jit
def new_ceiling(w: World, events: Events, line: int, r: int, cap: float, now: float) -> None:
    """Request r may send faster from now on: its prefill is over."""
    settle(w, line, now)
    if w.lines[line].full == 0:
        _own(w, r, now)
    w.lines[line].flow_cap += cap - w.requests[r].cap
    w.requests[r].cap = cap
    if w.lines[line].full == 0 and w.lines[line].flow_cap <= w.lines[line].capacity * NEARLY:
        _alone(w, events, r, now)
    else:
        rebalance(w, events, line, now)


@jit
def due(w: World, line: int, now: float) -> int:
    """The flow of a shared line that is through by now (after ``settle``), -1 if none."""
    best, least = -1, 1e-6  # seconds
    for n in range(w.lines[line].flow_count):
        r = w.flows[line, n]
        if w.requests[r].speed > 0.0 and w.requests[r].bytes / w.requests[r].speed < least:
            best, least = r, w.requests[r].bytes / w.requests[r].speed
    return best
