"""New requests: of sessions or by themselves, of which kind, and what is counted when they are answered."""

from __future__ import annotations

import math
from heapq import heappush

import numpy as np

from pddplan.simulate.caching import forget, keep, make_room
from pddplan.simulate.compiled import jit
from pddplan.simulate.world import (
    ANSWERED,
    ARRIVAL,
    AT_LINE,
    AT_MAIN,
    AT_PREFILL,
    AT_RELAY,
    BATCH_COUNT,
    BATCH_FILTERED,
    BATCH_HELD,
    BATCH_HIT,
    BATCH_INSIDE,
    BATCH_PACED,
    BATCH_QUEUED,
    BATCH_RELAY_TOKENS,
    BATCH_RELAYED,
    BATCH_SIZE,
    BATCH_TOKENS,
    BATCH_TPOT,
    BATCH_TTFT,
    BATCH_WAIT,
    CHAIN,
    COUNT,
    E2E,
    ERROR,
    FACTOR,
    FREE,
    IN_SYSTEM,
    NEXT,
    NO_REQUEST,
    NO_SESSION,
    PAUSE,
    SPENT,
    TPOT,
    TTFT,
    TURN,
    Events,
    Indices,
    Rng,
    World,
)

LEAST_S, PER_FOLD = 1e-6, 200.0  # of the histograms: bins of half a per cent from a microsecond on
BINS = 5600


@jit
def bin_of(seconds: float) -> int:
    """Bin of a time; 0 holds all below ``LEAST_S``."""
    if seconds <= LEAST_S:
        return 0
    return min(1 + int(math.log(seconds / LEAST_S) * PER_FOLD), BINS - 1)


@jit
def _workload(w: World, u: float, by_requests: bool) -> int:
    """Workload of a request, or of a new session."""
    k = 0
    while k < w.workloads.shape[0] - 1:
        if (w.workloads[k].request_share if by_requests else w.workloads[k].session_share) > u:
            break
        k += 1
    return k


@jit
def _pick(w: World, first: int, last: int, u: float) -> int:
    """The first of the kinds ``first:last`` whose cumulative weight is above u."""
    low, high = first, last - 1
    while low < high:
        middle = (low + high) // 2
        if w.kinds[middle].cumulative > u:
            high = middle
        else:
            low = middle + 1
    return low


@jit
def _gap_s(w: World, rng: Rng, rate: float) -> float:
    """Time to the next arrival: gamma with squared CV ``burstiness``."""
    b = w.law.burstiness
    if b == 1.0:
        return rng.standard_exponential() / rate
    return rng.standard_gamma(1.0 / b) * b / rate


@jit
def next_arrival(w: World, events: Events, rng: Rng, now: float) -> None:
    """Schedules the next request that is no session's later turn."""
    law, factor = w.law, w.now[FACTOR]
    if w.starts.shape[0] > 0:
        n = int(w.now[NEXT])
        if n < w.starts.shape[0]:
            w.now[NEXT] += 1.0
            heappush(events, (max(w.starts[n], now), ARRIVAL, n, int(w.now[CHAIN])))
        return
    rate = law.rate * factor
    if law.sessions:  # more than usual: single requests beside the sessions
        rate = law.session_rate * min(factor, 1.0) + law.rate * max(factor - 1.0, 0.0)
    if rate > 0.0:
        heappush(events, (now + _gap_s(w, rng, rate), ARRIVAL, 0, int(w.now[CHAIN])))


@jit
def new_session(w: World, free_z: Indices, rng: Rng, n: int) -> int:
    """A session that begins, or a single request as one that ends at once; the n-th of those that begin by the clock.
    -1: no room for it."""
    if len(free_z) == 0:
        w.now[ERROR] = NO_SESSION
        return -1
    law, z = w.law, free_z.pop()
    extra = law.rate * max(w.now[FACTOR] - 1.0, 0.0)
    single = extra > 0.0 and rng.random() * (law.session_rate + extra) < extra
    w.sessions[z].workload = _workload(w, rng.random(), single)
    w.sessions[z].turn, w.sessions[z].idle, w.sessions[z].asking, w.sessions[z].owed = 0, 0, 0, 0.0
    w.sessions[z].script, w.sessions[z].bytes = -1, 0.0
    if w.scripts.shape[0] > 1:
        w.sessions[z].script = n if w.starts.shape[0] > 0 else rng.integers(0, w.scripts.shape[0] - 1)
        w.sessions[z].lives = 1 if _turns(w, z) > 1 else 0
    else:
        w.sessions[z].lives = 0 if single or rng.random() < w.workloads[w.sessions[z].workload].ends else 1
    w.sessions[z].home = rng.integers(0, 1 << 40)
    return z


@jit
def _turns(w: World, z: int) -> int:
    """Turns of the script of session z."""
    script = w.sessions[z].script
    return int(w.scripts[script + 1] - w.scripts[script])


@jit
def _gap_after(w: World, rng: Rng, z: int, now: float) -> float:
    """Time from the answer, now, to the next turn of session z [s]."""
    if w.sessions[z].script >= 0:
        turn = w.scripts[w.sessions[z].script] + w.sessions[z].turn
        return max(w.turns[turn].at - now, 0.0) if w.starts.shape[0] > 0 else float(w.turns[turn].gap)
    own = w.workloads[w.sessions[z].workload]
    return math.exp(own.gap_mu + own.gap_sigma * rng.standard_normal())


@jit
def new_request(w: World, free_r: Indices, free_z: Indices, rng: Rng, z: int, now: float) -> int:
    """A request of session z, or by itself (-1)."""
    if len(free_r) == 0:
        w.now[ERROR] = NO_REQUEST
        return -1
    r = free_r.pop()
    u = rng.random()
    workload = w.sessions[z].workload if z >= 0 else _workload(w, u, True)
    scripted = z >= 0 and w.sessions[z].script >= 0
    if scripted:
        a = w.turns[w.scripts[w.sessions[z].script] + w.sessions[z].turn].kind
    else:
        a = _pick(w, w.workloads[workload].first, w.workloads[workload].last, rng.random())
    d = w.kinds[a].main
    if z < 0:
        cold = 0 if rng.random() < w.workloads[workload].held else 1
        w.requests[r].home = rng.integers(0, 1 << 40)
        w.requests[r].turn = 0
    else:
        # a session's first prefix is one that others share: it is in the cache as long as there is one
        cold = 1 if w.sessions[z].turn > 0 and w.sessions[z].idle == 0 else 0
        if w.decodes[d].cached == 0:
            share = w.workloads[workload].held
            cold = 0 if share > 0.0 and rng.random() < share else 1
        w.requests[r].home, w.requests[r].turn, w.sessions[z].asking = w.sessions[z].home, w.sessions[z].turn, 1
        if w.sessions[z].idle == 1:
            w.sessions[z].lives = 1  # it is being used, not gone
            forget(w, free_z, w.sessions[z].pool, z)
        if scripted:
            w.sessions[z].lives = 1 if w.sessions[z].turn + 1 < _turns(w, z) else 0
        elif w.sessions[z].turn > 0:
            w.sessions[z].lives = 0 if rng.random() < w.workloads[workload].ends else 1
    w.requests[r].kind, w.requests[r].cold, w.requests[r].session, w.requests[r].redo = a, cold, z, 0
    w.requests[r].arrival = now
    w.requests[r].first_token = w.requests[r].ready = np.inf
    w.requests[r].pause = w.requests[r].made = w.requests[r].stall = w.requests[r].broke = 0.0
    w.requests[r].route = 0
    w.requests[r].left = max(w.kinds[a].output - 1.0, 0.0)
    w.requests[r].reserved = w.kinds[a].kv_prompt
    w.decodes[d].under_way += w.kinds[a].kv_prompt
    make_room(w, free_z, d)
    w.now[IN_SYSTEM] += 1.0
    return r


@jit
def batch_of(w: World) -> int:
    """Batch of the request that is answered next."""
    last = w.batch_sums.shape[0] - 1
    return int(min(int(w.total[COUNT] / w.now[BATCH_SIZE]), last))


@jit
def answered(w: World, events: Events, free_r: Indices, free_z: Indices, rng: Rng, r: int, now: float) -> None:
    """The last token is out: the request is counted, its session thinks about the next turn. The request's place is
    free once its KV has arrived."""
    _count(w, r, now)
    w.now[IN_SYSTEM] -= 1.0
    w.total[SPENT] += now - w.requests[r].arrival
    z = w.requests[r].session
    if z >= 0:
        w.sessions[z].turn += 1
        w.sessions[z].asking = 0
        if w.sessions[z].lives == 1:
            heappush(events, (now + _gap_after(w, rng, z, now), TURN, z, w.sessions[z].turn))
    w.requests[r].place = ANSWERED
    if w.requests[r].ready <= now:
        gone(w, free_r, free_z, r)


@jit
def gone(w: World, free_r: Indices, free_z: Indices, r: int) -> None:
    """The request's KV lies at main decode: it becomes the session's cache, if nobody asked for it before. One that
    stayed on the relay leaves there what its session had."""
    a, z = w.requests[r].kind, w.requests[r].session
    d = w.kinds[a].main
    w.decodes[d].under_way = max(w.decodes[d].under_way - w.requests[r].reserved, 0.0)
    w.requests[r].reserved = 0.0
    same = z >= 0 and w.sessions[z].home == w.requests[r].home  # the row may be another session's by now
    if same and w.sessions[z].turn == w.requests[r].turn + 1 and w.sessions[z].asking == 0:
        if w.decodes[d].cached == 1 and w.requests[r].route != 2:
            keep(w, free_z, d, z, w.kinds[a].kv_session)
        elif w.decodes[d].cached == 1 and w.sessions[z].lives == 1 and w.requests[r].cold == 0:
            keep(w, free_z, d, z, w.sessions[z].bytes)
        elif w.sessions[z].lives == 0:
            w.sessions[z].turn = -1
            free_z.append(z)
    w.requests[r].place = FREE
    w.requests[r].life += 1
    w.requests[r].version += 1
    free_r.append(r)


@jit
def _count(w: World, r: int, now: float) -> None:
    """Adds a request to the histograms and sums of its batch."""
    a = w.requests[r].kind
    batch = batch_of(w)
    workload = w.sessions[w.requests[r].session].workload if w.requests[r].session >= 0 else _workload_of(w, a)
    hist, sums = w.histogram[workload], w.batch_sums[batch]
    law = w.law
    ttft = w.requests[r].first_token - w.requests[r].arrival + law.router
    later = max(w.kinds[a].output - 1.0, 0.0)
    hist[TTFT, batch, bin_of(ttft)] += 1
    hist[E2E, batch, bin_of(now - w.requests[r].arrival + law.router)] += 1
    inside = ttft <= w.workloads[workload].ttft_limit
    if later > 0.0:
        tpot = (now - w.requests[r].first_token) / later
        hist[TPOT, batch, bin_of(tpot)] += 1
        hist[PAUSE, batch, bin_of(w.requests[r].pause)] += 1
        inside = inside and tpot <= w.workloads[workload].tpot_limit
        sums[BATCH_TPOT] += tpot
        sums[BATCH_PACED] += 1.0
    hist[AT_PREFILL, batch, bin_of(w.requests[r].done - w.requests[r].arrival)] += 1
    sums[BATCH_COUNT] += 1.0
    sums[BATCH_TTFT] += ttft
    wait = w.requests[r].start - w.requests[r].arrival
    sums[BATCH_WAIT] += wait
    if wait > 1e-9:
        sums[BATCH_QUEUED] += 1.0
    if inside:
        sums[BATCH_INSIDE] += 1.0
    sums[BATCH_TOKENS] += w.kinds[a].output
    if w.requests[r].route == 1:
        sums[BATCH_RELAYED] += 1.0
        sums[BATCH_RELAY_TOKENS] += min(w.requests[r].made + 1.0, w.kinds[a].output)
    elif w.requests[r].route == 2:
        sums[BATCH_FILTERED] += 1.0
        sums[BATCH_RELAY_TOKENS] += w.kinds[a].output
    cached = w.kinds[a].prompt - w.kinds[a].uncached
    sums[BATCH_HIT] += cached
    if w.requests[r].cold == 0:
        sums[BATCH_HELD] += cached
    w.total[COUNT] += 1.0


@jit
def _workload_of(w: World, a: int) -> int:
    workload = 0
    while w.workloads[workload].last <= a:
        workload += 1
    return workload


@jit
def at_stage(w: World, r: int, metric: int, seconds: float) -> None:
    """A stage's time of a request that passes it; counted in the batch of the moment."""
    a = w.requests[r].kind
    z = w.requests[r].session
    workload = w.sessions[z].workload if z >= 0 else _workload_of(w, a)
    w.histogram[workload, metric, batch_of(w), bin_of(seconds)] += 1


STAGES = (AT_LINE, AT_RELAY, AT_MAIN)
