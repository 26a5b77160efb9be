"""Prefill servers: one queue for all, one each, or home servers with overflow; passes are shared if somebody waits."""

from __future__ import annotations

from heapq import heappush

from pddplan.simulate.compiled import jit
from pddplan.simulate.world import AFFINE, PREFILL_END, PREFILLING, SHARED, Events, World


@jit
def _idle_server(w: World, p: int, near: int) -> int:
    """An idle server of pool p, the first from ``near`` on; -1 without one."""
    first, count = w.prefills[p].first, w.prefills[p].last - w.prefills[p].first
    if w.prefills[p].busy >= w.prefills[p].on:
        return -1
    for n in range(count):
        s = first + (near + n) % count
        if w.servers[s].up == 1 and w.servers[s].serving < 0:
            return int(s)
    return -1


@jit
def _home(w: World, p: int, home: int) -> int:
    """The server that a session belongs to: the next one that is up."""
    first, count = w.prefills[p].first, w.prefills[p].last - w.prefills[p].first
    for n in range(count):
        s = first + (home + n) % count
        if w.servers[s].up == 1:
            return int(s)
    return int(first + home % count)


@jit
def _push(w: World, s: int, r: int) -> None:
    w.requests[r].next = -1
    if w.servers[s].queue_count == 0:
        w.servers[s].queue_head = r
    else:
        w.requests[w.servers[s].queue_tail].next = r
    w.servers[s].queue_tail = r
    w.servers[s].queue_count += 1


@jit
def pop(w: World, s: int) -> int:
    r = w.servers[s].queue_head
    w.servers[s].queue_head = w.requests[r].next
    w.servers[s].queue_count -= 1
    return int(r)


@jit
def service_s(w: World, r: int, miss: bool, shared: bool) -> float:
    """Seconds of a server: without the prefix, in passes shared with others, or alone."""
    a = w.requests[r].kind
    if miss or w.requests[r].redo == 1:
        return float(w.kinds[a].miss)
    return float(w.kinds[a].shared if shared else w.kinds[a].alone)


@jit
def start(w: World, events: Events, p: int, s: int, r: int, now: float, miss: bool) -> None:
    """Server s takes request r."""
    queue = w.prefills[p].first if w.law.mode == SHARED else s
    seconds = service_s(w, r, miss, w.servers[queue].queue_count > 0)
    w.servers[s].serving = r
    w.prefills[p].busy += 1
    w.servers[s].job += 1
    w.servers[s].until = now + seconds
    w.requests[r].server = s
    w.requests[r].start = now
    w.requests[r].done = now + seconds + w.kinds[w.requests[r].kind].fetch
    heappush(events, (now + seconds, PREFILL_END, s, w.servers[s].job))


@jit
def enqueue(w: World, events: Events, r: int, now: float) -> int:
    """A request asks for prefill: the server that starts it now, -1 where it waits."""
    p = w.kinds[w.requests[r].kind].prefill
    w.requests[r].place = PREFILLING
    if w.law.mode == SHARED:
        s = _idle_server(w, p, w.requests[r].home)
        if s >= 0:
            start(w, events, p, s, r, now, False)
        else:
            _push(w, w.prefills[p].first, r)
        return s
    home = _home(w, p, w.requests[r].home)
    if w.servers[home].up == 1 and w.servers[home].serving < 0:
        start(w, events, p, home, r, now, False)
        return home
    if w.law.mode == AFFINE and w.servers[home].until - now + w.servers[home].work > w.prefills[p].leave:
        s = _idle_server(w, p, w.requests[r].home)
        if s >= 0:
            start(w, events, p, s, r, now, True)
            return s
    _push(w, home, r)
    w.servers[home].work += service_s(w, r, False, True)
    return -1


@jit
def follow(w: World, events: Events, p: int, s: int, now: float) -> int:
    """Server s is free: the request that it takes up now, -1 without one."""
    queue = w.prefills[p].first if w.law.mode == SHARED else s
    if w.servers[s].up == 0 or w.servers[queue].queue_count == 0:
        return -1
    r = pop(w, queue)
    if w.law.mode != SHARED:
        w.servers[s].work = max(w.servers[s].work - service_s(w, r, False, True), 0.0)
    start(w, events, p, s, r, now, False)
    return r
