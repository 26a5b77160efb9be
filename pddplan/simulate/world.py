"""What the event loop works on: tables that don't change during a run, and the state that does, all as arrays.

Rows of NumPy tables, so that one code runs compiled and not. Indices: a a kind of request (route and atom), c 0 where
main decode holds its prefix, p prefill pool, s prefill server, d decode pool (relay or main), i decode instance, r
request, z session.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Events = list[tuple[float, int, int, int]]  # (time, what, of whom, version)
Indices = list[int]
Rng = np.random.Generator

# events, in the order in which those of one moment happen
CHANGE, PREFILL_END, LINE, FLOW, CEILING, READY, LEAVE, RESUME, RDMA, FINISH, TURN, ARRIVAL, SAMPLE = range(13)
# where a request is
FREE, PREFILLING, WAITING, ON_RELAY, MOVING, ON_MAIN, ANSWERED = range(7)
# prefix_cache
SHARED, STICKY, AFFINE = range(3)
# changes: (time, what, place, value)
SERVERS, INSTANCES, LINE_SHARE, RATE, COLD = range(5)
# metrics of the histograms
TTFT, TPOT, PAUSE, E2E, AT_PREFILL, AT_LINE, AT_RELAY, AT_MAIN, LINE_TIME = range(9)
METRICS = 9


def table_of(whole: str, real: str) -> np.dtype[np.void]:
    """A row of whole numbers and of reals, by names."""
    return np.dtype([(name, np.int64) for name in whole.split()] + [(name, np.float64) for name in real.split()])


# A kind of request, a route's atom: (kinds,).
KIND = table_of(
    "prefill line relay main",  # pools, line; -1: none
    "cumulative "  # weight within its workload, summed up
    "alone shared miss fetch "  # prefill [s]: alone, in shared passes, without the prefix; what is fetched beside it
    "output prompt uncached "  # tokens
    "kv_prompt kv_running kv_session "  # bytes at main decode: prompt, mean while it runs, with the answer
    "rdma relay_stall rtt "  # the whole KV to the relay after prefill, its conversion there; round trip [s]
    "extend_s extend_rate added_s",  # a pass over known tokens: t0 [s], tokens/s, t0 of what others feel of it [s]
)
# Its way to main decode where that holds the prefix, and where it doesn't: (2, kinds).
WAY = table_of(
    "",
    "sends ceiling ramp last "  # bytes, B/s of a flow, slow start [s], bytes of the last layer of the last chunk
    "delay exposed "  # one way and the last conversion [s]; all after prefill where nobody shares the way [s]
    "relays filtered "  # 1: the router sends it to the relay; chance that it stays there
    "main_stall",  # conversion at main decode [s]
)
# (workloads,): its kinds are first:last.
WORKLOAD = table_of(
    "first last",
    "session_share request_share "  # of new sessions and of requests, summed up
    "ends gap_mu gap_sigma held "  # chance that a turn is the last; ln of the gap [s]; chance of a held prefix if given
    "ttft_limit tpot_limit",  # of the SLO [s]
)
# (prefill pools,): its servers are first:last; how many are busy, how many up; affine: work at home above which a
# request goes elsewhere [s].
PREFILL = table_of("first last busy on", "leave")
# (servers,): queue, running request (-1: idle), version of the job, up; end of the job [s], work behind it [s].
SERVER = table_of("queue_head queue_tail queue_count serving job up", "until work")
# (decode pools,), relays first: its instances are first:last.
DECODE = table_of(
    "first last slots "  # slots of an instance
    "pooled cached relay "  # 1: to the least loaded instance, keeps idle sessions, is a relay
    "held oldest newest single",  # requests in it; ends of the LRU list of sessions; 1: hand-overs in one shot
    "whole memory tier running under_way idle",  # bytes; whole: memory with all instances up
)
# (instances,): those that wait for a slot (of a pooled pool at the first one), batch, up, version; sum of contexts,
# tokens that each running request has made since ever, time of that [s], seconds a token.
INSTANCE = table_of("wait_head wait_tail wait_count batch alive version", "context progress clock tau")
# (lines,): flows, 1: shared, version; sum of ceilings and capacity [B/s], when last looked at [s].
LINES = table_of("flow_count full version", "flow_cap capacity clock")
# (requests at once,).
REQUEST = table_of(
    "place kind cold session turn home route "  # 1: main decode lacks the prefix; 0 direct, 1 relayed, 2 filtered
    "version life redo "  # of its flow's end, of its other events; 1: all is computed anew
    "next server slot instance position",  # in a queue; among the line's flows; in the instance's heap
    "arrival start done ready first_token pause "  # of prefill: start, done; of the transfer: ready, inf before [s]
    "left made target "  # tokens after the first: to make, made on the relay, of the instance's progress at the end
    "bytes cap speed sent "  # flow: to send, ceiling, speed, when last looked at
    "broke "  # when its KV was lost after its first token, 0: never [s]
    "stall reserved",  # what joining adds to others' steps [s]; bytes at main decode
)
# (sessions,): turn -1: free; idle 1: its KV lies in the cache of ``pool``; lives 1: another turn will come; asking 1:
# one is being answered; its script, -1: none; LRU neighbours; bytes in the cache, bytes that the filter owes.
SESSION = table_of("workload turn idle lives asking pool home script older newer", "bytes owed")
# (turns of all scripts,): what is asked; how long after the answer before it, and when, if scripts have a clock [s].
SCRIPT_TURN = table_of("kind", "gap at")


class Law(NamedTuple):
    """Who comes when, and rules for all. ``sessions`` False: every request by itself."""

    sessions: bool
    mode: int
    rate: float  # requests/s of all
    session_rate: float  # new sessions/s
    burstiness: float
    stay: float  # least stay on the relay [s]
    router: float  # added to the first token [s]
    on_prefill: bool  # the first token is sent by prefill
    relay_above: float  # bytes to send above which a request goes to the relay; nan: as the kind's way says
    relay_only: bool  # what goes there by that rule stays there, nothing is sent


class World(NamedTuple):
    """All of it: tables of rows (see above), and plain arrays."""

    law: Law
    kinds: Any
    ways: Any
    workloads: Any
    prefills: Any
    servers: Any
    decodes: Any
    instances: Any
    lines: Any
    requests: Any
    sessions: Any
    scripts: Ints  # (scripts + 1,) first of the turns of each and the end; (1,): sessions draw their turns
    turns: Any
    starts: Floats  # (scripts,) when each begins, ascending, once; (0,): they begin at random, any number of times
    contexts: Floats  # (decode pools, contexts)
    step: Floats  # (decode pools, contexts, batch) seconds a token
    heap: Ints  # (instances, slots) requests by target
    flows: Ints  # (lines, flows)
    now: Floats  # see IN_SYSTEM
    histogram: Ints  # (workloads, metrics, batches, bins) of answered requests
    total: Floats  # see COUNT
    batch_sums: Floats  # (batches, BATCH_SUMS)
    series: Floats  # (points, SERIES)
    busy: Floats  # (prefill pools + decode pools + lines,) integrals of servers, requests and load


# of World.now
# CHAIN: of arrivals, one a rate; NEXT: of ``starts``
IN_SYSTEM, SEEN_AT, FACTOR, BATCH_SIZE, ERROR, SECONDS, CHAIN, NEXT = range(8)
NOWS = 8
# errors
NO_REQUEST, NO_SESSION, NO_FLOW, STOPPED = 1.0, 2.0, 3.0, 4.0
# of World.total
(COUNT, INSIDE, AREA, SPENT, LINE_BYTES, FLOW_BYTES, RELAYED, FILTERED, RELAY_TOKENS, TOKENS, HELD_TOKENS, HIT_TOKENS,
 OWED_BYTES, LOST) = range(14)  # fmt: skip
SUMS = 14
(BATCH_COUNT, BATCH_TTFT, BATCH_TPOT, BATCH_PACED, BATCH_INSIDE, BATCH_RELAYED, BATCH_FILTERED, BATCH_TOKENS,
 BATCH_RELAY_TOKENS, BATCH_HIT, BATCH_HELD, BATCH_SLOT_ASKED, BATCH_SLOT_WAITED, BATCH_WAIT, BATCH_LINE_BYTES,
 BATCH_OWED, BATCH_QUEUED) = range(17)  # fmt: skip
BATCH_SUMS = 17
(AT, PREFILL_WAITING, PREFILL_BUSY, LINE_FLOWS, LINE_LOAD, ON_RELAY_NOW, ON_MAIN_NOW, MAIN_WAITING, IDLE_BYTES,
 DONE_SO_FAR, TTFT_SO_FAR, LATE_SO_FAR, NUMBER, RELAY_WAITING) = range(14)  # fmt: skip
SERIES = 14
