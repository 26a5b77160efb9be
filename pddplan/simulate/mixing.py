"""Aggregated serving: prompts in chunks and decodes in the same steps of an instance, step by step where prompts wait.

All units (attention ranks) of an instance step together; the longest chunk sets the pace. Decodes alone are jumped over
to the next event.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

import numpy as np

from pddplan.simulate.arriving import bin_of
from pddplan.simulate.compiled import jit, thinned
from pddplan.simulate.mixed_world import NEVER, WHOLE_FIT, Mix
from pddplan.simulate.world import (
    AFFINE,
    AREA,
    ARRIVAL,
    AT,
    AT_PREFILL,
    BATCH_COUNT,
    BATCH_INSIDE,
    BATCH_PACED,
    BATCH_QUEUED,
    BATCH_SIZE,
    BATCH_TOKENS,
    BATCH_TPOT,
    BATCH_TTFT,
    BATCH_WAIT,
    COUNT,
    DONE_SO_FAR,
    E2E,
    ERROR,
    FINISH,
    IN_SYSTEM,
    LATE_SO_FAR,
    NO_REQUEST,
    NUMBER,
    ON_MAIN_NOW,
    PAUSE,
    PREFILL_BUSY,
    PREFILL_WAITING,
    SAMPLE,
    SEEN_AT,
    SHARED,
    SPENT,
    STICKY,
    TPOT,
    TTFT,
    TTFT_SO_FAR,
    Events,
    Indices,
    Rng,
)


@jit
def _cell(grid: np.ndarray, x: float) -> tuple[int, float]:
    """(cell, way through it) of x on an ascending grid."""
    low, high = 0, grid.shape[0] - 2
    while low < high:
        middle = (low + high + 1) // 2
        if grid[middle] <= x:
            low = middle
        else:
            high = middle - 1
    return low, min(max((x - grid[low]) / (grid[low + 1] - grid[low]), 0.0), 1.0)


@jit
def _step_s(m: Mix, batch: float, chunk: float, before: float) -> float:
    """Seconds of a step, linear between the table's points."""
    i, u = _cell(m.batches, batch)
    j, v = _cell(m.chunks, chunk)
    k, x = _cell(m.befores, before)
    total = 0.0
    for a in range(2):
        for b in range(2):
            for c in range(2):
                weight = (u if a else 1.0 - u) * (v if b else 1.0 - v) * (x if c else 1.0 - x)
                total += weight * m.step[i + a, j + b, k + c]
    return total


@jit
def _swap(m: Mix, i: int, a: int, b: int) -> None:
    x, y = m.heap[i, a], m.heap[i, b]
    m.heap[i, a], m.heap[i, b] = y, x


@jit
def _insert(m: Mix, i: int, r: int) -> None:
    at = m.instances[i].batch
    m.heap[i, at] = r
    m.instances[i].batch = at + 1
    while at > 0:
        above = (at - 1) // 2
        if m.requests[m.heap[i, at]].target >= m.requests[m.heap[i, above]].target:
            break
        _swap(m, i, at, above)
        at = above


@jit
def _pop(m: Mix, i: int) -> int:
    """The request whose answer ends first, out of the batch."""
    first = m.heap[i, 0]
    size = m.instances[i].batch - 1
    m.instances[i].batch = size
    m.heap[i, 0] = m.heap[i, size]
    at = 0
    while True:
        least = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < size and m.requests[m.heap[i, child]].target < m.requests[m.heap[i, least]].target:
                least = child
        if least == at:
            return int(first)
        _swap(m, i, at, least)
        at = least


# ---------------------------------------------------------------- arrivals


@jit
def _unit(m: Mix, rng: Rng) -> int:
    """The unit of a new request: with a shared store the one with the least work, else its home; affine: another that
    has nothing to do, if more waits at home than a miss is worth."""
    home = rng.integers(0, m.units.shape[0])
    if m.mode == STICKY or (m.mode == AFFINE and m.units[home].work <= m.leave):
        return int(home)
    best, least = home, m.units[home].work
    for n in range(m.units.shape[0]):
        u = (home + n) % m.units.shape[0]
        if m.units[u].work < least and (m.mode == SHARED or m.units[u].count == 0):
            best, least = u, m.units[u].work
    return int(best) if best == home or m.mode == SHARED else int(-1 - best)


@jit
def _arrive(m: Mix, events: Events, free: Indices, rng: Rng, now: float) -> None:
    """A request into its unit's queue; an instance that only decodes takes it up after its running step."""
    if len(free) == 0:
        m.now[ERROR] = NO_REQUEST
        return
    r = free.pop()
    low, high, p = 0, m.kinds.shape[0] - 1, rng.random()
    while low < high:
        middle = (low + high) // 2
        if m.kinds[middle].cumulative > p:
            high = middle
        else:
            low = middle + 1
    u = _unit(m, rng)
    kind = m.kinds[low]
    cached = kind.prompt - kind.uncached
    if u < 0:  # away from home: without its prefix
        u, cached = -1 - u, 0.0
    m.requests[r].kind, m.requests[r].unit, m.requests[r].next = low, u, -1
    m.requests[r].arrival, m.requests[r].start, m.requests[r].pause = now, -1.0, 0.0
    m.requests[r].new, m.requests[r].before = kind.prompt - cached, cached
    m.requests[r].left = max(kind.output - 1.0, 0.0)
    if m.units[u].count == 0:
        m.units[u].head = r
    else:
        m.requests[m.units[u].tail].next = r
    m.units[u].tail = r
    m.units[u].count += 1
    m.units[u].work += kind.prompt - cached
    m.now[IN_SYSTEM] += 1.0
    i = u // (m.units.shape[0] // m.instances.shape[0])
    m.instances[i].prompts += 1
    if m.instances[i].steps == 0.0:
        _begin(m, events, i, now)
    elif m.instances[i].mixed == 0:
        tau = m.instances[i].seconds / m.instances[i].steps
        steps = max(math.ceil((now - m.instances[i].began) / tau - 1e-9), 1.0)
        if steps < m.instances[i].steps:
            m.instances[i].steps, m.instances[i].seconds = steps, steps * tau
            m.instances[i].version += 1
            heappush(events, (m.instances[i].began + steps * tau, FINISH, i, m.instances[i].version))


# ---------------------------------------------------------------- steps


@jit
def _plan(m: Mix, u: int, room: int, now: float) -> tuple[float, float, int]:
    """(prompt tokens of the unit's next step, tokens before them, new requests), ``room`` new ones at most."""
    used, before, taken, r = 0.0, 0.0, 0, m.units[u].head
    for n in range(m.units[u].count):
        fresh = m.requests[r].start < 0.0
        left = m.requests[r].new
        if (fresh and taken >= room) or (
            n > 0 and (m.merge == NEVER or (m.merge == WHOLE_FIT and used + left > m.chunk))
        ):
            break
        if fresh:
            m.requests[r].start = now
            taken += 1
        part = min(left, m.chunk - used)
        before = max(before, m.requests[r].before)
        used += part
        if used >= m.chunk - 1e-9:
            break
        r = m.requests[r].next
    return used, before, taken


@jit
def _begin(m: Mix, events: Events, i: int, now: float) -> None:
    """The next step of an instance, or the next steps where only decodes run."""
    per = m.units.shape[0] // m.instances.shape[0]
    longest, before = 0.0, 0.0
    room = m.slots - m.instances[i].batch - _under_way(m, i, per)
    for u in range(i * per, (i + 1) * per):
        used, held, taken = _plan(m, u, room, now)
        room -= taken
        m.units[u].planned = used
        if used > longest:
            longest, before = used, held
    m.instances[i].version += 1
    m.instances[i].began = now
    batch = m.instances[i].batch
    m.instances[i].mixed = 1 if longest > 0.0 else 0
    if longest > 0.0:
        m.instances[i].steps = 1.0
        m.instances[i].seconds = _step_s(m, float(batch), longest, before)
        for n in range(batch):
            r = m.heap[i, n]
            m.requests[r].pause = max(m.requests[r].pause, m.instances[i].seconds)
    elif batch > 0:
        left = m.requests[m.heap[i, 0]].target - m.instances[i].progress
        m.instances[i].steps = max(math.ceil(left / m.accepted - 1e-9), 1.0)
        m.instances[i].seconds = m.instances[i].steps * _step_s(m, float(batch), 0.0, 0.0)
    else:
        m.instances[i].steps = m.instances[i].seconds = 0.0
        return
    heappush(events, (now + m.instances[i].seconds, FINISH, i, m.instances[i].version))


@jit
def _under_way(m: Mix, i: int, per: int) -> int:
    """Prompts of an instance that have been begun."""
    count = 0
    for u in range(i * per, (i + 1) * per):
        r = m.units[u].head
        for _ in range(m.units[u].count):
            if m.requests[r].start < 0.0:
                break
            count += 1
            r = m.requests[r].next
    return count


@jit
def _end(m: Mix, events: Events, free: Indices, i: int, now: float) -> None:
    """The end of a step: tokens are out, prompts have got on."""
    per = m.units.shape[0] // m.instances.shape[0]
    m.instances[i].progress += m.instances[i].steps * m.accepted
    while m.instances[i].batch > 0 and m.requests[m.heap[i, 0]].target <= m.instances[i].progress + 1e-9:
        _answered(m, free, _pop(m, i), now)
    for u in range(i * per, (i + 1) * per):
        planned = m.units[u].planned
        m.units[u].planned = 0.0
        while planned > 1e-9 and m.units[u].count > 0:
            r = m.units[u].head
            part = min(m.requests[r].new, planned)
            planned -= part
            m.requests[r].new -= part
            m.requests[r].before += part
            m.units[u].work = max(m.units[u].work - part, 0.0)
            if m.requests[r].new > 1e-9:
                break
            m.units[u].head = m.requests[r].next
            m.units[u].count -= 1
            m.instances[i].prompts -= 1
            m.requests[r].first_token = now
            if m.requests[r].left <= 0.0:
                _answered(m, free, r, now)
            else:
                m.requests[r].target = m.instances[i].progress + m.requests[r].left
                _insert(m, i, r)
    _begin(m, events, i, now)


@jit
def _answered(m: Mix, free: Indices, r: int, now: float) -> None:
    """Counts a request."""
    kind = m.kinds[m.requests[r].kind]
    batch = min(int(m.total[COUNT] / m.now[BATCH_SIZE]), m.batch_sums.shape[0] - 1)
    hist, sums = m.histogram[kind.workload], m.batch_sums[batch]
    ttft = m.requests[r].first_token - m.requests[r].arrival + m.router
    hist[TTFT, batch, bin_of(ttft)] += 1
    hist[AT_PREFILL, batch, bin_of(ttft - m.router)] += 1
    hist[E2E, batch, bin_of(now - m.requests[r].arrival + m.router)] += 1
    inside = ttft <= kind.ttft_limit
    if kind.output > 1.0:
        tpot = (now - m.requests[r].first_token) / (kind.output - 1.0)
        hist[TPOT, batch, bin_of(tpot)] += 1
        hist[PAUSE, batch, bin_of(max(m.requests[r].pause, tpot))] += 1
        inside = inside and tpot <= kind.tpot_limit
        sums[BATCH_TPOT] += tpot
        sums[BATCH_PACED] += 1.0
    wait = m.requests[r].start - m.requests[r].arrival
    sums[BATCH_COUNT] += 1.0
    sums[BATCH_TTFT] += ttft
    sums[BATCH_WAIT] += wait
    sums[BATCH_TOKENS] += kind.output
    if wait > 1e-9:
        sums[BATCH_QUEUED] += 1.0
    if inside:
        sums[BATCH_INSIDE] += 1.0
    m.total[COUNT] += 1.0
    m.total[SPENT] += now - m.requests[r].arrival
    m.now[IN_SYSTEM] -= 1.0
    m.requests[r].kind = -1
    free.append(r)


# ---------------------------------------------------------------- the loop


@jit
def run_mixed(m: Mix, rng: Rng, sample_s: float, requests: float) -> None:
    """Runs until so many requests are answered."""
    events = [(0.0, 0, 0, 0)]
    events.pop()
    free = list(range(m.requests.shape[0] - 1, -1, -1))
    heappush(events, (_gap_s(m, rng), ARRIVAL, 0, 0))
    heappush(events, (sample_s, SAMPLE, 0, 0))
    now = 0.0
    while len(events) > 0 and m.total[COUNT] < requests and m.now[ERROR] == 0.0:
        event = heappop(events)
        now = event[0]
        m.total[AREA] += m.now[IN_SYSTEM] * (now - m.now[SEEN_AT])
        m.now[SEEN_AT] = now
        what, x = event[1], event[2]
        if what == FINISH:
            if m.instances[x].version == event[3]:
                _end(m, events, free, x, now)
        elif what == ARRIVAL:
            _arrive(m, events, free, rng, now)
            heappush(events, (now + _gap_s(m, rng), ARRIVAL, 0, 0))
        else:
            thin = event[3]
            if x == m.series.shape[0]:
                x, thin = thinned(m.series), thin + 1
            _sample(m, x, now)
            heappush(events, (now + sample_s * 2.0**thin, SAMPLE, x + 1, thin))
    for r in range(m.requests.shape[0]):
        if m.requests[r].kind >= 0:
            m.total[SPENT] += now - m.requests[r].arrival


@jit
def _gap_s(m: Mix, rng: Rng) -> float:
    if m.burstiness == 1.0:
        return float(rng.standard_exponential() / m.rate)
    return float(rng.standard_gamma(1.0 / m.burstiness) * m.burstiness / m.rate)


@jit
def _sample(m: Mix, at: int, now: float) -> None:
    """A point of the time series."""
    row = m.series[at]
    row[AT], row[NUMBER] = now, m.now[IN_SYSTEM]
    for i in range(m.instances.shape[0]):
        row[PREFILL_WAITING] += m.instances[i].prompts
        row[PREFILL_BUSY] += m.instances[i].mixed
        row[ON_MAIN_NOW] += m.instances[i].batch
    for batch in range(m.batch_sums.shape[0]):
        row[DONE_SO_FAR] += m.batch_sums[batch, BATCH_COUNT]
        row[TTFT_SO_FAR] += m.batch_sums[batch, BATCH_TTFT]
        row[LATE_SO_FAR] += m.batch_sums[batch, BATCH_COUNT] - m.batch_sums[batch, BATCH_INSIDE]
