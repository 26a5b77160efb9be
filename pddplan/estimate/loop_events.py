"""The events of one closed loop: prompts wait, are prefilled, cross to decode, are answered, and their users ask again.

Steps between events are counted, not simulated: a run costs some thousand operations however many tokens it makes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

NEVER = math.inf
MOST_EVENTS = 100_000
SLACK = 1.0 + 1e-12  # times that differ by rounding are the same
STEP_SLACK = 1e-9
TOKEN_SLACK = 1e-7

# start, queue, prefill, work, transfer, first, tpot, done, paced, busy, end
Sums = tuple[float, float, float, float, float, float, float, float, float, float, float]


def run_events(
    count: int,
    weight: float,
    rounds: int,
    slots: float,
    servers: int,
    new_tokens: float,
    output_tokens: float,
    shortest: float,
    chunk: float,
    mixed: float,
    poll_steps: float,
    output_steps: float,
    transfer_s: float,
    longest_pause_s: float,
    decode_s: Sequence[float],
    tokens: Sequence[float],
    passes_s: Sequence[Sequence[float]],
    spread_in: Sequence[float],
    spread_out: Sequence[float],
    spread_pause: Sequence[float],
) -> Sums:
    """One loop of ``count`` representative users to the end of their last request.

    Arguments as in ``closed_loop.Loop``; ``slots``: representatives that may run at once; ``decode_s`` (count + 1):
    seconds of a step with so many running; ``tokens`` (t) ascending from 0 and ``passes_s`` (count + 1, t):
    seconds of a pass with so many running and so many prompt tokens, linear between and beyond; ``spread_*``
    (count x rounds, flat): shares of the spread. Returned are sums over the requests [s], numbers of requests ``done``
    and of those with a pace, request-seconds ``busy``, and the time of the end.
    """
    separate = servers > 0
    nominal, spread = new_tokens * weight, 1.0 - shortest
    clock, steps, made = 0.0, 0.0, 0.0  # time, decode steps, and tokens that each running request has made
    arrivals = [(longest_pause_s * spread_pause[u * rounds], u) for u in range(count)]
    heapify(arrivals)
    arrived = [0.0] * count
    seen = [0.0] * count  # step at which the scheduler sees the request
    first = [0.0] * count  # end of prefill
    outputs = [0.0] * count
    due = [NEVER] * count  # step at which the client sees the first token
    turn = [0] * count
    queue: list[int] = []  # users whose prompts wait, first come first
    head = 0
    ready: list[tuple[float, int]] = []  # (when decode may take it up, user)
    running: list[tuple[float, int]] = []  # (``made`` at its end, user)
    shown: list[tuple[float, int]] = []  # (step at which the first token is due, user), ascending
    next_shown = 0
    free = [0.0] * max(servers, 1)  # when each prefill worker is free
    start_sum, queue_sum, prefill_sum, work_sum, transfer_sum = 0.0, 0.0, 0.0, 0.0, 0.0
    first_sum, tpot_sum, done, paced, busy = 0.0, 0.0, 0.0, 0.0, 0.0

    for _ in range(MOST_EVENTS):
        now = clock * SLACK
        # requests whose KV is there begin to decode, as far as there are slots
        while ready and ready[0][0] <= now and (not separate or len(running) < slots):
            at, user = heappop(ready)
            transfer_sum += clock - at
            first[user] = clock
            due[user] = steps + output_steps
            shown.append((due[user], user))
            answer = output_tokens * (shortest + spread * spread_out[user * rounds + turn[user]])
            outputs[user] = answer - 1.0 if answer > 1.0 else 0.0
            heappush(running, (made + outputs[user], user))
        while arrivals and arrivals[0][0] <= now:
            at, user = heappop(arrivals)
            arrived[user] = at
            seen[user] = steps + poll_steps
            queue.append(user)
        active = len(running)
        if not (active or ready or arrivals or head < len(queue)):
            break

        behind = head  # of the requests that the scheduler has seen
        if separate or active == 0:
            behind = len(queue)
        else:
            while behind < len(queue) and seen[queue[behind]] <= steps + STEP_SLACK:
                behind += 1
        held = active + len(ready)
        advance, seconds, each = 0.0, 0.0, 1.0  # steps to take now, their time, and the tokens that each gives
        if behind > head and free[0] <= now and (separate or held < slots):
            # a pass: first come first served up to a chunk, one request at least; idle workers share
            row, most = active, slots - held
            if separate:
                idle = sum(at <= now for at in free) if servers > 1 else 1
                row, most = 0, math.ceil((behind - head) / idle)
            volume, taken, common = 0.0, 0, 0
            while head < behind and taken < most:
                user = queue[head]
                prompt = nominal * (shortest + spread * spread_in[user * rounds + turn[user]])
                if taken and volume + prompt > chunk:
                    break
                volume += prompt
                if turn[user] == 0:
                    common += 1
                    start_sum += clock - arrived[user]
                else:
                    queue_sum += clock - arrived[user]
                head += 1
                taken += 1
            pass_s, passes = _passes(volume, chunk, tokens, passes_s[row])
            alone_s = pass_s
            if weight > 1.0 and common < taken:  # one that comes by itself has a pass of its own
                several = max(new_tokens, min(new_tokens * taken, chunk))
                alone_s = min(pass_s, _passes(several, chunk, tokens, passes_s[row])[0])
            # at the common start users come together, and each is through after half of their passes on average
            together = 0.5 + 0.5 / passes if weight > 1.0 else 1.0
            prefill_sum += common * together * pass_s + (taken - common) * alone_s
            work_sum += pass_s
            transfer_sum += taken * transfer_s
            end = clock + pass_s
            for place in range(head - taken, head):
                heappush(ready, (end + transfer_s, queue[place]))
            heapreplace(free, end)
            if not separate:
                advance, seconds, each = passes, pass_s / passes, mixed
        else:
            # decode until the next request ends, arrives, is seen, is ready or finds a free prefill worker
            event = NEVER
            if arrivals:
                event = arrivals[0][0]
            if ready and ready[0][0] > now:
                event = min(event, ready[0][0])
            if separate and behind > head:
                event = min(event, free[0])
            if active:
                seconds, advance = decode_s[active], running[0][0] - made
                if behind < len(queue) and seen[queue[behind]] - steps < advance:
                    advance = seen[queue[behind]] - steps
                if event - clock < advance * seconds:
                    until = (event - clock) / seconds
                    advance = until if separate else min(advance, math.ceil(until))
            elif event < NEVER:
                clock = event

        if advance > 0.0:
            after = steps + advance
            while next_shown < len(shown):
                at, user = shown[next_shown]
                if due[user] == at:
                    if at > after + STEP_SLACK:
                        break
                    first_sum += clock + max(at - steps, 0.0) * seconds - first[user]
                    due[user] = NEVER
                next_shown += 1
            busy += active * weight * advance * seconds
            made += advance * each
            steps = after
            clock += advance * seconds

        # those that have ended; their users ask again
        while running and running[0][0] - made <= TOKEN_SLACK:
            _, user = heappop(running)
            if outputs[user] > 0.0:
                tpot_sum += (clock - first[user]) / outputs[user]
                paced += 1.0
            if due[user] < NEVER:  # the answer is out before its first token was due
                first_sum += clock - first[user]
                due[user] = NEVER
            done += 1.0
            turn[user] += 1
            if turn[user] < rounds:
                heappush(arrivals, (clock + longest_pause_s * spread_pause[user * rounds + turn[user]], user))

    return (
        start_sum, queue_sum, prefill_sum, work_sum, transfer_sum, first_sum, tpot_sum, done, paced, busy, clock
    )  # fmt: skip


def _passes(volume: float, chunk: float, tokens: Sequence[float], passes_s: Sequence[float]) -> tuple[float, float]:
    """(time, number) of the passes that ``volume`` > 0 prompt tokens take: full chunks and the rest."""
    if volume <= chunk:
        return _at(volume, tokens, passes_s), 1.0
    full = math.floor(volume / chunk + 1e-9)
    rest = volume - full * chunk
    seconds = full * _at(chunk, tokens, passes_s)
    if rest <= 1e-6:
        return seconds, float(full)
    return seconds + _at(rest, tokens, passes_s), full + 1.0


def _at(value: float, tokens: Sequence[float], passes_s: Sequence[float]) -> float:
    """Linear between the points of a table, and beyond them."""
    cell = min(bisect_right(tokens, value, 1), len(tokens) - 1)
    low, high = passes_s[cell - 1], passes_s[cell]
    return low + (value - tokens[cell - 1]) / (tokens[cell] - tokens[cell - 1]) * (high - low)
