"""What happens to a plan: instances are lost and come back, a line shrinks, the rate rises, a cache is cold."""

from __future__ import annotations

import numpy as np

from pddplan.simulate import line_flows
from pddplan.simulate.arriving import next_arrival
from pddplan.simulate.caching import clear, make_room
from pddplan.simulate.compiled import jit
from pddplan.simulate.decoding import leave, next_waiting
from pddplan.simulate.prefilling import follow, pop
from pddplan.simulate.stages import admit, ask_main, ask_prefill, at_relay, begun
from pddplan.simulate.world import (
    CHAIN,
    COLD,
    FACTOR,
    INSTANCES,
    LINE_SHARE,
    LOST,
    ON_MAIN,
    RATE,
    SERVERS,
    Events,
    Indices,
    Rng,
    World,
)


@jit
def restart(w: World, events: Events, rng: Rng, r: int, now: float) -> None:
    """A request whose KV is lost begins anew with prefill, which computes all of it; tokens that are out stay out."""
    a = w.requests[r].kind
    w.requests[r].life += 1
    if w.requests[r].slot >= 0:
        line_flows.drop(w, events, w.kinds[a].line, r, now)
    w.requests[r].redo, w.requests[r].cold = 1, 1
    if w.requests[r].first_token < np.inf and w.requests[r].broke == 0.0:
        w.requests[r].broke = now
    w.requests[r].ready = np.inf
    if w.requests[r].reserved == 0.0:
        w.requests[r].reserved = w.kinds[a].kv_prompt
        w.decodes[w.kinds[a].main].under_way += w.kinds[a].kv_prompt
    w.total[LOST] += 1.0
    ask_prefill(w, events, rng, r, now)


@jit
def servers(w: World, events: Events, rng: Rng, p: int, up: int, now: float) -> None:
    """So many servers of prefill pool p are up."""
    first, last = w.prefills[p].first, w.prefills[p].last
    lost = [0 for _ in range(0)]
    for s in range(first, last):
        alive = 1 if s - first < up else 0
        if alive == 1 and w.servers[s].up == 0:
            w.servers[s].up = 1
            w.prefills[p].on += 1
        elif alive == 0 and w.servers[s].up == 1:
            w.servers[s].up = 0
            w.prefills[p].on -= 1
            if w.servers[s].serving >= 0:
                lost.append(w.servers[s].serving)
                w.servers[s].serving = -1
                w.prefills[p].busy -= 1
                w.servers[s].job += 1
            if s != first or w.law.mode != 0:
                while w.servers[s].queue_count > 0:
                    lost.append(pop(w, s))
            w.servers[s].work = 0.0
    for r in lost:
        restart(w, events, rng, r, now)
    for s in range(first, last):
        if w.servers[s].up == 1 and w.servers[s].serving < 0:
            taken = follow(w, events, p, s, now)
            if taken >= 0:
                begun(w, events, rng, taken, now)


@jit
def instances(
    w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, d: int, up: int, now: float
) -> None:
    """So many instances of decode pool d are up."""
    first, count = w.decodes[d].first, w.decodes[d].last - w.decodes[d].first
    w.decodes[d].memory = w.decodes[d].whole * up / count if up > 0 else 0.0
    again = [0 for _ in range(0)]
    for i in range(first, first + count):
        alive = 1 if i - first < up else 0
        if alive == 0 and w.instances[i].alive == 1:
            w.instances[i].alive = 0
            while w.instances[i].batch > 0:
                r = w.heap[i, 0]
                a = w.requests[r].kind
                leave(w, events, d, r, w.kinds[a].prompt + w.kinds[a].output - 1.0 - w.requests[r].left, now)
                w.requests[r].left = np.ceil(w.requests[r].left)
                if w.requests[r].place == ON_MAIN:
                    w.decodes[d].running = max(w.decodes[d].running - w.kinds[a].kv_running, 0.0)
                restart(w, events, rng, r, now)
        if alive == 0 and w.decodes[d].pooled == 0:  # also those that came while none was up
            while w.instances[i].wait_count > 0:
                again.append(next_waiting(w, i))
        w.instances[i].alive = alive
    make_room(w, free_z, d)
    for r in again:
        ask_main(w, events, free_r, free_z, rng, r, now)
    if w.decodes[d].relay == 1:
        queue = first
        waiting = w.instances[queue].wait_count
        for _ in range(waiting):
            at_relay(w, events, next_waiting(w, queue), now)
    else:
        for i in range(first, first + count):
            if w.decodes[d].pooled == 0 or i == first:
                admit(w, events, free_r, free_z, rng, d, i, now)


@jit
def apply(w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, change: np.ndarray, now: float) -> None:
    """One change: (time, what, place, value)."""
    what, place, value = int(change[1]), int(change[2]), change[3]
    if what == SERVERS:
        servers(w, events, rng, place, int(value), now)
    elif what == INSTANCES:
        instances(w, events, free_r, free_z, rng, place, int(value), now)
    elif what == LINE_SHARE:
        line_flows.settle(w, place, now)
        w.lines[place].capacity = value
        line_flows.rebalance(w, events, place, now)
    elif what == RATE:
        w.now[FACTOR] = value
        w.now[CHAIN] += 1.0
        next_arrival(w, events, rng, now)
    elif what == COLD:
        clear(w, free_z, place)
