"""The event loop."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from pddplan.simulate import line_flows
from pddplan.simulate.arriving import new_request, new_session, next_arrival
from pddplan.simulate.caching import keep
from pddplan.simulate.changing import apply
from pddplan.simulate.compiled import jit, thinned
from pddplan.simulate.decoding import advance
from pddplan.simulate.stages import (
    ask_main,
    ask_prefill,
    at_relay,
    ceiling_lifted,
    finished,
    flow_ended,
    hand_over,
    prefill_ended,
    ready,
)
from pddplan.simulate.world import (
    ANSWERED,
    AREA,
    ARRIVAL,
    AT,
    CEILING,
    CHAIN,
    CHANGE,
    COUNT,
    DONE_SO_FAR,
    ERROR,
    FINISH,
    FLOW,
    FREE,
    IDLE_BYTES,
    IN_SYSTEM,
    LATE_SO_FAR,
    LEAVE,
    LINE,
    LINE_FLOWS,
    LINE_LOAD,
    MAIN_WAITING,
    NUMBER,
    ON_MAIN_NOW,
    ON_RELAY_NOW,
    PREFILL_BUSY,
    PREFILL_END,
    PREFILL_WAITING,
    RDMA,
    READY,
    RELAY_WAITING,
    RESUME,
    SAMPLE,
    SEEN_AT,
    SPENT,
    TTFT_SO_FAR,
    TURN,
    Events,
    Indices,
    Rng,
    World,
)


@jit
def run(
    w: World,
    rng: Rng,
    changes: np.ndarray,
    starting: np.ndarray,
    sample_s: float,
    requests: float,
    end_s: float,
) -> None:
    """Runs until so many requests are answered or the time is over.

    ``changes`` (n, 4): time, what, place, value. ``starting`` (n, 5): idle sessions at the start, the longest idle
    first: workload, time until its next turn (inf: none), KV [bytes], pool, turn.
    """
    events = [(0.0, 0, 0, 0)]
    events.pop()
    free_r = list(range(w.requests.shape[0] - 1, -1, -1))
    free_z = list(range(w.sessions.shape[0] - 1, -1, -1))
    _begin(w, events, free_z, starting)
    for n in range(changes.shape[0]):
        heappush(events, (changes[n, 0], CHANGE, n, 0))
    heappush(events, (sample_s, SAMPLE, 0, 0))
    next_arrival(w, events, rng, 0.0)
    now = 0.0
    while len(events) > 0 and w.total[COUNT] < requests and w.now[ERROR] == 0.0:
        event = heappop(events)
        if event[0] > end_s:
            now = end_s
            _pass(w, now)
            break
        now = event[0]
        _pass(w, now)
        _happen(w, events, free_r, free_z, rng, changes, sample_s, now, event[1], event[2], event[3])
    for r in range(w.requests.shape[0]):
        if w.requests[r].place != FREE and w.requests[r].place != ANSWERED:
            w.total[SPENT] += now - w.requests[r].arrival
    for line in range(w.lines.shape[0]):
        line_flows.settle(w, line, now)


@jit
def _begin(w: World, events: Events, free_z: Indices, starting: np.ndarray) -> None:
    """Idle sessions from before the start."""
    for n in range(starting.shape[0]):
        if len(free_z) == 0:
            return
        z = free_z.pop()
        w.sessions[z].workload, w.sessions[z].turn = int(starting[n, 0]), 1
        w.sessions[z].idle, w.sessions[z].asking, w.sessions[z].owed = 0, 0, 0.0
        w.sessions[z].script = -1
        w.sessions[z].lives = 1 if starting[n, 1] < np.inf else 0
        w.sessions[z].home = n * 7919
        if w.sessions[z].lives == 1:
            heappush(events, (starting[n, 1], TURN, z, 1))
        keep(w, free_z, int(starting[n, 3]), z, starting[n, 2])


@jit
def _pass(w: World, now: float) -> None:
    """Integrals up to now."""
    passed = now - w.now[SEEN_AT]
    if passed <= 0.0:
        return
    w.now[SEEN_AT] = now
    w.total[AREA] += w.now[IN_SYSTEM] * passed
    at = 0
    for p in range(w.prefills.shape[0]):
        w.busy[at] += w.prefills[p].busy * passed
        at += 1
    for d in range(w.decodes.shape[0]):
        w.busy[at] += w.decodes[d].held * passed
        at += 1
    for line in range(w.lines.shape[0]):
        w.busy[at] += min(w.lines[line].flow_cap, w.lines[line].capacity) * passed
        at += 1


@jit
def _happen(
    w: World,
    events: Events,
    free_r: Indices,
    free_z: Indices,
    rng: Rng,
    changes: np.ndarray,
    sample_s: float,
    now: float,
    what: int,
    x: int,
    version: int,
) -> None:
    """One event."""
    if what == FINISH:
        if w.instances[x].version == version and w.instances[x].batch > 0:
            advance(w, x, now)
            finished(w, events, free_r, free_z, rng, _pool_of(w, x), x, now)
    elif what == PREFILL_END:
        if w.servers[x].job == version:
            prefill_ended(w, events, rng, x, now)
    elif what == FLOW:
        if w.requests[x].version == version and w.requests[x].slot >= 0:
            flow_ended(w, events, x, now)
    elif what == LINE:
        if w.lines[x].version == version:
            line_flows.settle(w, x, now)
            r = line_flows.due(w, x, now)
            if r >= 0:
                flow_ended(w, events, r, now)
            else:
                line_flows.rebalance(w, events, x, now)
    elif what == TURN:
        if w.sessions[x].turn == version and w.sessions[x].asking == 0:
            r = new_request(w, free_r, free_z, rng, x, now)
            if r >= 0:
                ask_prefill(w, events, rng, r, now)
    elif what == ARRIVAL:
        if version != int(w.now[CHAIN]):  # drawn at an earlier rate
            return
        z = -1
        if w.law.sessions:
            z = new_session(w, free_z, rng, x)
        if z >= 0 or not w.law.sessions:
            r = new_request(w, free_r, free_z, rng, z, now)
            if r >= 0:
                ask_prefill(w, events, rng, r, now)
        next_arrival(w, events, rng, now)
    elif what == SAMPLE:
        if x == w.series.shape[0]:
            x, version = thinned(w.series), version + 1
        _sample(w, x, now)
        heappush(events, (now + sample_s * 2.0**version, SAMPLE, x + 1, version))
    elif what == CHANGE:
        apply(w, events, free_r, free_z, rng, changes[x], now)
    else:
        _of_request(w, events, free_r, free_z, rng, now, what, x, version)


@jit
def _of_request(
    w: World,
    events: Events,
    free_r: Indices,
    free_z: Indices,
    rng: Rng,
    now: float,
    what: int,
    x: int,
    version: int,
) -> None:
    """An event of one request, unless it is of an earlier life."""
    r = x if x >= 0 else -1 - x
    if w.requests[r].life != version:
        return
    if what == CEILING:
        ceiling_lifted(w, events, r, now)
    elif what == READY:
        ready(w, events, free_r, free_z, rng, r, now)
    elif what == RDMA:
        at_relay(w, events, r, now)
    elif what == LEAVE:
        hand_over(w, events, free_r, free_z, rng, r, now, x < 0)
    elif what == RESUME:
        ask_main(w, events, free_r, free_z, rng, r, now)


@jit
def _pool_of(w: World, i: int) -> int:
    d = 0
    while w.decodes[d].last <= i:
        d += 1
    return d


@jit
def _sample(w: World, at: int, now: float) -> None:
    """A point of the time series."""
    row, sums = w.series[at], w.batch_sums
    row[AT], row[NUMBER] = now, w.now[IN_SYSTEM]
    for s in range(w.servers.shape[0]):
        row[PREFILL_WAITING] += w.servers[s].queue_count
    for p in range(w.prefills.shape[0]):
        row[PREFILL_BUSY] += w.prefills[p].busy
    for line in range(w.lines.shape[0]):
        row[LINE_FLOWS] += w.lines[line].flow_count
        row[LINE_LOAD] += min(w.lines[line].flow_cap, w.lines[line].capacity)
    for d in range(w.decodes.shape[0]):
        relay = w.decodes[d].relay == 1
        row[ON_RELAY_NOW if relay else ON_MAIN_NOW] += w.decodes[d].held
        row[IDLE_BYTES] += w.decodes[d].idle
        for i in range(w.decodes[d].first, w.decodes[d].last):
            row[RELAY_WAITING if relay else MAIN_WAITING] += w.instances[i].wait_count
    for batch in range(sums.shape[0]):
        row[DONE_SO_FAR] += sums[batch, 0]
        row[TTFT_SO_FAR] += sums[batch, 1]
        row[LATE_SO_FAR] += sums[batch, 0] - sums[batch, 4]
