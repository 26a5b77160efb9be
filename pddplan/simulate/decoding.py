"""Decode instances: all that run on one advance together, a token per step of the batch they make."""

from __future__ import annotations

from heapq import heappush

import numpy as np

from pddplan.simulate.compiled import jit
from pddplan.simulate.heaps import insert, remove
from pddplan.simulate.world import FINISH, Events, World


@jit
def step_s(w: World, d: int, batch: int, context: float) -> float:
    """Seconds a token at a batch and its mean context, linear between the table's contexts."""
    grid = w.contexts[d]
    n = grid.shape[0]
    j = 0
    while j < n - 2 and grid[j + 1] <= context:
        j += 1
    way = min(max((context - grid[j]) / (grid[j + 1] - grid[j]), 0.0), 1.0)
    low, high = w.step[d, j, batch], w.step[d, j + 1, batch]
    return float(low + way * (high - low))


@jit
def advance(w: World, i: int, now: float) -> None:
    """Tokens made since the instance was last looked at."""
    passed = now - w.instances[i].clock
    if passed > 0.0:
        if w.instances[i].batch > 0:
            made = passed / w.instances[i].tau
            w.instances[i].progress += made
            w.instances[i].context += made * w.instances[i].batch
        w.instances[i].clock = now


@jit
def reschedule(w: World, events: Events, d: int, i: int) -> None:
    """Step time of the batch as it is now, and when its next request ends."""
    w.instances[i].version += 1
    batch = w.instances[i].batch
    if batch == 0:
        return
    first = w.heap[i, 0]
    left = max(w.requests[first].target - w.instances[i].progress, 0.0)
    w.instances[i].tau = step_s(w, d, batch, w.instances[i].context / batch + 0.5 * left)
    heappush(events, (w.instances[i].clock + left * w.instances[i].tau, FINISH, i, w.instances[i].version))


@jit
def _delay(w: World, i: int, stall: float) -> None:
    """The next tokens of all that run on instance i come so much later."""
    w.instances[i].clock += stall
    pause = w.instances[i].tau + stall
    for n in range(w.instances[i].batch):
        other = w.heap[i, n]
        w.requests[other].pause = max(w.requests[other].pause, pause)


@jit
def hold(w: World, events: Events, d: int, i: int, stall: float, now: float) -> None:
    """A pass over known tokens runs beside the batch of instance i; who sends them waits for it elsewhere."""
    if stall > 0.0 and w.instances[i].batch > 0:
        advance(w, i, now)
        _delay(w, i, stall)
        reschedule(w, events, d, i)


@jit
def join(w: World, events: Events, d: int, i: int, r: int, context: float, now: float) -> None:
    """Request r, whose ``left`` tokens are to be made, into the batch; ``stall``: what that costs the others [s]."""
    advance(w, i, now)
    if w.requests[r].stall > 0.0:
        _delay(w, i, w.requests[r].stall)
    w.requests[r].target = w.instances[i].progress + w.requests[r].left
    w.requests[r].instance = i
    w.instances[i].context += context
    insert(w, i, r)
    w.decodes[d].held += 1
    reschedule(w, events, d, i)


@jit
def leave(w: World, events: Events, d: int, r: int, context: float, now: float) -> None:
    """Request r, which joined with so much ``context``, out of the batch; ``left`` says what is still to be made."""
    i = w.requests[r].instance
    advance(w, i, now)
    before = w.requests[r].left
    w.requests[r].left = max(w.requests[r].target - w.instances[i].progress, 0.0)
    remove(w, i, r)
    w.instances[i].context = max(w.instances[i].context - context - (before - w.requests[r].left), 0.0)
    if w.instances[i].batch == 0:
        w.instances[i].context = 0.0
    w.requests[r].instance = -1
    w.decodes[d].held -= 1
    reschedule(w, events, d, i)


@jit
def least_loaded(w: World, d: int) -> int:
    """The instance with the smallest batch below its slots, -1 without one."""
    best, least = -1, np.int64(w.decodes[d].slots)
    for i in range(w.decodes[d].first, w.decodes[d].last):
        if w.instances[i].alive == 1 and w.instances[i].batch < least:
            best, least = i, w.instances[i].batch
    return best


@jit
def queue_of(w: World, d: int, r: int) -> int:
    """Instance at which r waits: the pool's first, or its home or else the next one that is up."""
    first, count = w.decodes[d].first, w.decodes[d].last - w.decodes[d].first
    if w.decodes[d].pooled == 1:
        return int(first)
    for n in range(count):
        i = first + (w.requests[r].home + n) % count
        if w.instances[i].alive == 1:
            return int(i)
    return int(first + w.requests[r].home % count)


@jit
def near(w: World, d: int, r: int) -> int:
    """The instance that r would join now, or wait at."""
    i = least_loaded(w, d) if w.decodes[d].pooled == 1 else -1
    return i if i >= 0 else queue_of(w, d, r)


@jit
def slot_of(w: World, d: int, r: int) -> int:
    """An instance with a slot and memory for r, -1 without one."""
    if (
        w.decodes[d].running + w.kinds[w.requests[r].kind].kv_running > w.decodes[d].memory
        and w.decodes[d].running > 0.0
    ):
        return -1
    if w.decodes[d].pooled == 1:
        return least_loaded(w, d)
    i = queue_of(w, d, r)
    return i if w.instances[i].alive == 1 and w.instances[i].batch < w.decodes[d].slots else -1


@jit
def wait(w: World, queue: int, r: int) -> None:
    """Request r waits for a slot."""
    w.requests[r].next = -1
    if w.instances[queue].wait_count == 0:
        w.instances[queue].wait_head = r
    else:
        w.requests[w.instances[queue].wait_tail].next = r
    w.instances[queue].wait_tail = r
    w.instances[queue].wait_count += 1


@jit
def next_waiting(w: World, queue: int) -> int:
    r = w.instances[queue].wait_head
    w.instances[queue].wait_head = w.requests[r].next
    w.instances[queue].wait_count -= 1
    return int(r)
