"""The way of a request: prefill, line or relay, hand-over, main decode."""

from __future__ import annotations

import math
from heapq import heappush

import numpy as np

from pddplan.simulate import line_flows
from pddplan.simulate.arriving import answered, at_stage, batch_of, gone
from pddplan.simulate.caching import make_room
from pddplan.simulate.compiled import jit
from pddplan.simulate.decoding import hold, join, least_loaded, leave, near, next_waiting, queue_of, slot_of, wait
from pddplan.simulate.prefilling import enqueue, follow
from pddplan.simulate.world import (
    ANSWERED,
    AT_LINE,
    AT_MAIN,
    AT_RELAY,
    BATCH_LINE_BYTES,
    BATCH_OWED,
    BATCH_SLOT_ASKED,
    BATCH_SLOT_WAITED,
    CEILING,
    ERROR,
    LEAVE,
    LINE_TIME,
    MOVING,
    NO_FLOW,
    ON_MAIN,
    ON_RELAY,
    RDMA,
    READY,
    RESUME,
    WAITING,
    Events,
    Indices,
    Rng,
    World,
)

HIGH, LOW = 0.8, 0.6  # of the relay's slots: where hand-overs turn to one shot, and back
THRESHOLD_TOKENS, MOST_ROUNDS = 64.0, 8


@jit
def ask_prefill(w: World, events: Events, rng: Rng, r: int, now: float) -> None:
    """Into the queue of prefill."""
    if enqueue(w, events, r, now) >= 0:
        begun(w, events, rng, r, now)


@jit
def prefill_ended(w: World, events: Events, rng: Rng, s: int, now: float) -> None:
    """A server is through: the next of its queue."""
    r = w.servers[s].serving
    p = w.kinds[w.requests[r].kind].prefill
    w.servers[s].serving = -1
    w.prefills[p].busy -= 1
    taken = follow(w, events, p, s, now)
    if taken >= 0:
        begun(w, events, rng, taken, now)


@jit
def begun(w: World, events: Events, rng: Rng, r: int, now: float) -> None:
    """Prefill has begun: the way on is chosen, KV starts to leave."""
    a, c = w.requests[r].kind, w.requests[r].cold
    w.requests[r].route = 0
    if w.kinds[a].relay >= 0 and _relays(w, r):
        stays = w.law.relay_only or (w.ways[c, a].filtered > 0.0 and rng.random() < w.ways[c, a].filtered)
        w.requests[r].route = 2 if stays else 1
        heappush(events, (w.requests[r].done + w.kinds[a].rdma, RDMA, r, w.requests[r].life))
    if w.requests[r].route == 2:
        _keep_here(w, r)
        return
    if w.kinds[a].line < 0:
        w.requests[r].ready = w.requests[r].done + w.ways[c, a].exposed
        heappush(events, (w.requests[r].ready, READY, r, w.requests[r].life))
        return
    _send(w, events, r, now)


@jit
def _relays(w: World, r: int) -> bool:
    """Whether the router sends a request to the relay: by its way, or by the bytes to send, what is owed included."""
    a, c, z = w.requests[r].kind, w.requests[r].cold, w.requests[r].session
    if math.isnan(w.law.relay_above):
        return bool(w.ways[c, a].relays == 1.0)
    owed = w.sessions[z].owed if z >= 0 else 0.0
    return bool(min(w.ways[c, a].sends + owed, max(w.kinds[a].kv_prompt, w.ways[c, a].sends)) > w.law.relay_above)


@jit
def _keep_here(w: World, r: int) -> None:
    """The filter: nothing is sent, the session owes it."""
    z = w.requests[r].session
    a, c = w.requests[r].kind, w.requests[r].cold
    w.decodes[w.kinds[a].main].under_way = max(w.decodes[w.kinds[a].main].under_way - w.requests[r].reserved, 0.0)
    w.requests[r].reserved = 0.0
    if z >= 0:
        sums = w.batch_sums[batch_of(w)]
        answer = w.kinds[a].kv_session - w.kinds[a].kv_prompt
        owed = min(w.sessions[z].owed + w.ways[c, a].sends + answer, w.kinds[a].kv_session)
        sums[BATCH_OWED] += max(owed - w.sessions[z].owed, 0.0)
        w.sessions[z].owed = owed


@jit
def _send(w: World, events: Events, r: int, now: float) -> None:
    """A flow over the line, no faster than prefill makes the KV; what the session owes goes with it."""
    a, c, z = w.requests[r].kind, w.requests[r].cold, w.requests[r].session
    line = w.kinds[a].line
    size = w.ways[c, a].sends
    if z >= 0 and w.sessions[z].owed > 0.0:
        size = min(size + w.sessions[z].owed, max(w.kinds[a].kv_session, size))
        w.sessions[z].owed = 0.0
    if w.lines[line].flow_count >= w.flows.shape[1]:
        w.now[ERROR] = NO_FLOW
        return
    takes = w.requests[r].done - now
    full = w.ways[c, a].ceiling
    w.requests[r].bytes = size
    w.requests[r].cap = min(full, size / takes) if takes > 0.0 else full
    w.batch_sums[batch_of(w), BATCH_LINE_BYTES] += size
    if size <= 0.0:
        w.requests[r].slot = -1
        w.requests[r].ready = w.requests[r].done + w.ways[c, a].delay
        heappush(events, (w.requests[r].ready, READY, r, w.requests[r].life))
        return
    line_flows.begin(w, events, line, r, now)
    if w.requests[r].cap < full:
        heappush(events, (w.requests[r].done, CEILING, r, w.requests[r].life))


@jit
def ceiling_lifted(w: World, events: Events, r: int, now: float) -> None:
    """Prefill is over: what is left goes at the flow's own ceiling."""
    if w.requests[r].slot >= 0 and w.requests[r].ready == np.inf:
        a, c = w.requests[r].kind, w.requests[r].cold
        line_flows.new_ceiling(w, events, w.kinds[a].line, r, w.ways[c, a].ceiling, now)


@jit
def flow_ended(w: World, events: Events, r: int, now: float) -> None:
    """All bytes have left: they are there after the slow start, the last layer and the way. Where prefill sets the
    pace, a slow start is made up for: as much of it is hidden as the line had nothing to send."""
    a, c = w.requests[r].kind, w.requests[r].cold
    line, size = w.kinds[a].line, w.ways[c, a].sends
    fair = w.ways[c, a].ceiling
    if w.lines[line].full == 1:
        fair = min(fair, w.lines[line].capacity / max(w.lines[line].flow_count, 1))
    fair = max(fair, 1.0)
    line_flows.end(w, events, line, r, now)
    idle = max(w.requests[r].done - w.requests[r].start - size / fair, 0.0)
    sent = now + max(w.ways[c, a].ramp - idle, 0.0)
    exposed = max(sent - w.requests[r].done, w.ways[c, a].last / fair) + w.ways[c, a].delay
    at_stage(w, r, LINE_TIME, max(sent - w.requests[r].start, 0.0))
    w.requests[r].ready = max(w.requests[r].done + exposed, now)
    heappush(events, (w.requests[r].ready, READY, r, w.requests[r].life))


@jit
def ready(w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, r: int, now: float) -> None:
    """KV is at main decode."""
    if w.requests[r].place == ANSWERED:  # all on the relay, before that
        gone(w, free_r, free_z, r)
        return
    exposed = now - w.requests[r].done
    if w.requests[r].route == 0:
        at_stage(w, r, AT_LINE, exposed)
        ask_main(w, events, free_r, free_z, rng, r, now)
        return
    heappush(events, (max(now, w.requests[r].done + w.law.stay), LEAVE, r, w.requests[r].life))


# ---------------------------------------------------------------- relay


@jit
def at_relay(w: World, events: Events, r: int, now: float) -> None:
    """The whole KV is at the relay: a slot, or a place in its queue."""
    d = w.kinds[w.requests[r].kind].relay
    i = least_loaded(w, d)
    if i < 0:
        w.requests[r].place = WAITING
        wait(w, w.decodes[d].first, r)
        return
    start_relay(w, events, d, i, r, now)


@jit
def start_relay(w: World, events: Events, d: int, i: int, r: int, now: float) -> None:
    a = w.requests[r].kind
    w.requests[r].place = ON_RELAY
    w.requests[r].stall = w.kinds[a].relay_stall
    _first_token(w, r, now)
    at_stage(w, r, AT_RELAY, now - w.requests[r].done)
    join(w, events, d, i, r, w.kinds[a].prompt + w.kinds[a].output - 1.0 - w.requests[r].left, now)
    w.requests[r].stall = 0.0
    if w.requests[r].ready <= now:
        heappush(events, (max(now, w.requests[r].done + w.law.stay), LEAVE, r, w.requests[r].life))


@jit
def _first_token(w: World, r: int, now: float) -> None:
    if w.requests[r].first_token == np.inf:
        w.requests[r].first_token = w.requests[r].done if w.law.on_prefill else now
        w.requests[r].pause = now - w.requests[r].done if w.law.on_prefill else 0.0
    elif w.requests[r].broke > 0.0:
        w.requests[r].pause = max(w.requests[r].pause, now - w.requests[r].broke)
    w.requests[r].broke = 0.0


@jit
def _off_relay(w: World, events: Events, r: int, now: float) -> None:
    """The request's slot on the relay goes to the next that waits for one."""
    a = w.requests[r].kind
    d = w.kinds[a].relay
    before = w.requests[r].left
    leave(w, events, d, r, w.kinds[a].prompt + w.kinds[a].output - 1.0 - before, now)
    w.requests[r].made += before - w.requests[r].left
    queue = w.decodes[d].first
    while w.instances[queue].wait_count > 0:
        i = least_loaded(w, d)
        if i < 0:
            break
        start_relay(w, events, d, i, next_waiting(w, queue), now)


@jit
def hand_over(
    w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, r: int, now: float, last: bool
) -> None:
    """The transfer is through: tokens made so far go to main decode, at once or after rounds; ``last``: after them."""
    if w.requests[r].place != ON_RELAY:  # it still waits for a slot, see ``start_relay``
        return
    a = w.requests[r].kind
    d = w.kinds[a].relay
    i = w.requests[r].instance
    slots = dc_slots(w, d)
    load = w.decodes[d].held / slots
    if w.decodes[d].single == 0 and load > HIGH:
        w.decodes[d].single = 1
    elif w.decodes[d].single == 1 and load < LOW:
        w.decodes[d].single = 0
    made = 1.0 + w.requests[r].made + _made_now(w, i, r, now)
    tokens, stall = made, w.kinds[a].added_s + made / w.kinds[a].extend_rate
    if w.decodes[d].single == 0 and not last:
        spent, rounds, tokens = _rounds(w, a, made, w.instances[i].tau)
        if rounds > 0.0:
            passes = spent - rounds * w.kinds[a].rtt - rounds * (w.kinds[a].extend_s - w.kinds[a].added_s)
            hold(w, events, w.kinds[a].main, near(w, w.kinds[a].main, r), passes, now)
            heappush(events, (now + spent, LEAVE, -1 - r, w.requests[r].life))
            w.requests[r].bytes = tokens  # what the last round leaves
            return
    if last:
        tokens = w.requests[r].bytes
        stall = w.kinds[a].added_s + tokens / w.kinds[a].extend_rate
        w.requests[r].bytes = 0.0
    _off_relay(w, events, r, now)
    if w.requests[r].left <= 1e-9:
        answered(w, events, free_r, free_z, rng, r, now)
        return
    w.requests[r].left = np.ceil(w.requests[r].left - 1e-9)
    main = w.kinds[a].main
    step = rng.random() * _step_of(w, main)
    pause = w.kinds[a].rtt + step + w.kinds[a].extend_s + tokens / w.kinds[a].extend_rate
    w.requests[r].place = MOVING
    hold(w, events, main, near(w, main, r), stall, now)
    w.requests[r].sent = now
    heappush(events, (now + pause, RESUME, r, w.requests[r].life))


@jit
def dc_slots(w: World, d: int) -> float:
    return max(float(w.decodes[d].slots * (w.decodes[d].last - w.decodes[d].first)), 1.0)


@jit
def _made_now(w: World, i: int, r: int, now: float) -> float:
    """Tokens after the first that the relay has made of a running request."""
    progress = w.instances[i].progress + max(now - w.instances[i].clock, 0.0) / w.instances[i].tau
    return float(w.requests[r].left - max(w.requests[r].target - progress, 0.0))


@jit
def _step_of(w: World, d: int) -> float:
    """A running step of main decode, of its busiest instance's first [s]."""
    first = w.decodes[d].first
    for i in range(first, w.decodes[d].last):
        if w.instances[i].batch > 0:
            return float(w.instances[i].tau)
    return 0.0


@jit
def _rounds(w: World, a: int, tokens: float, tau: float) -> tuple[float, float, float]:
    """(time, rounds, tokens left) of a hand-over in rounds, see ``serve.handover.extend_rounds``."""
    spent, rounds = 0.0, 0.0
    while tokens > THRESHOLD_TOKENS and rounds < MOST_ROUNDS:
        span = w.kinds[a].rtt + w.kinds[a].extend_s + tokens / w.kinds[a].extend_rate
        following = np.ceil(span / tau * (1.0 - 1e-12))
        if following >= tokens:
            break
        spent += span
        rounds += 1.0
        tokens = following
    return spent, rounds, tokens


# ---------------------------------------------------------------- main decode


@jit
def ask_main(w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, r: int, now: float) -> None:
    """A slot on main decode, or a place in its queue; one whose tokens are all out needs none."""
    a = w.requests[r].kind
    d = w.kinds[a].main
    sums = w.batch_sums[batch_of(w)]
    sums[BATCH_SLOT_ASKED] += 1.0
    if w.requests[r].route == 0:
        w.requests[r].sent = now
    i = slot_of(w, d, r)
    if i < 0:
        sums[BATCH_SLOT_WAITED] += 1.0
        w.requests[r].place = WAITING
        wait(w, queue_of(w, d, r), r)
        return
    start_main(w, events, free_r, free_z, rng, d, i, r, now)


@jit
def start_main(
    w: World,
    events: Events,
    free_r: Indices,
    free_z: Indices,
    rng: Rng,
    d: int,
    i: int,
    r: int,
    now: float,
) -> None:
    a, c = w.requests[r].kind, w.requests[r].cold
    at_stage(w, r, AT_MAIN, now - w.requests[r].sent)
    w.decodes[d].under_way = max(w.decodes[d].under_way - w.requests[r].reserved, 0.0)
    w.requests[r].reserved = 0.0
    if w.requests[r].route == 0:
        _first_token(w, r, now)
        w.requests[r].stall = w.ways[c, a].main_stall
    else:
        w.requests[r].pause = max(w.requests[r].pause, now - w.requests[r].sent)
    if w.requests[r].left <= 0.0:
        answered(w, events, free_r, free_z, rng, r, now)
        return
    w.requests[r].place = ON_MAIN
    w.decodes[d].running += w.kinds[a].kv_running
    make_room(w, free_z, d)
    join(w, events, d, i, r, w.kinds[a].prompt + w.kinds[a].output - 1.0 - w.requests[r].left, now)
    w.requests[r].stall = 0.0
    w.requests[r].pause = max(w.requests[r].pause, w.instances[i].tau)


@jit
def admit(w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, d: int, i: int, now: float) -> None:
    """Those that wait take the slots that are free, those of instance i first: memory is the pool's, so what i frees
    may be what the first of another queue waits for."""
    first, count = w.decodes[d].first, w.decodes[d].last - w.decodes[d].first
    for n in range(1 if w.decodes[d].pooled == 1 else count):
        queue = first if w.decodes[d].pooled == 1 else first + (i - first + n) % count
        while w.instances[queue].wait_count > 0:
            found = slot_of(w, d, w.instances[queue].wait_head)
            if found < 0:
                break
            start_main(w, events, free_r, free_z, rng, d, found, next_waiting(w, queue), now)


@jit
def finished(w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, d: int, i: int, now: float) -> None:
    """The first request of an instance has made its last token."""
    r = w.heap[i, 0]
    a = w.requests[r].kind
    if w.requests[r].place == ON_RELAY:
        _off_relay(w, events, r, now)
        if w.requests[r].route == 2:
            w.requests[r].ready = now
        answered(w, events, free_r, free_z, rng, r, now)
        return
    leave(w, events, d, r, w.kinds[a].prompt + w.kinds[a].output - 1.0 - w.requests[r].left, now)
    w.decodes[d].running = max(w.decodes[d].running - w.kinds[a].kv_running, 0.0) if w.decodes[d].held > 0 else 0.0
    w.requests[r].left = 0.0
    answered(w, events, free_r, free_z, rng, r, now)
    admit(w, events, free_r, free_z, rng, d, i, now)
