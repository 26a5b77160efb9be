"""The events of one closed loop: prompts wait, are prefilled, cross to decode, are answered, and their users ask again.

Steps between events are counted, not simulated: a run costs some thousand operations however many tokens it makes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

NEVER = math.inf
MOST_EVENTS = 100_000
SLACK = 1.0 + 1e-12  # times that differ by rounding are the same
STEP_SLACK = 1e-9
TOKEN_SLACK = 1e-7

# start, queue, prefill, work, transfer, first, tpot, done, paced, busy, end
Sums = tuple[float, float, float, float, float, float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class OneLoop:
    """One loop of ``count`` representative users; the other fields as in ``closed_loop.Loop``.

    ``slots``: representatives that may run at once; ``decode_s`` (count + 1): seconds of a step with so many running;
    ``tokens`` (t) ascending from 0 and ``passes_s`` (count + 1, t): seconds of a pass with so many running and so many
    prompt tokens, linear between and beyond; ``spread_*`` (count x rounds, flat): shares of the spread.
    """

    count: int
    weight: float
    rounds: int
    slots: float
    servers: int
    parallel: float
    new_tokens: float
    output_tokens: float
    shortest: float
    chunk: float
    mixed: float
    poll_steps: float
    output_steps: float
    transfer_s: float
    handoff_steps: float
    longest_pause_s: float
    decode_s: Sequence[float]
    tokens: Sequence[float]
    passes_s: Sequence[Sequence[float]]
    spread_in: Sequence[float]
    spread_out: Sequence[float]
    spread_pause: Sequence[float]


def run_events(loop: OneLoop) -> Sums:
    """A loop to the end of its last request: sums over the requests [s], numbers of requests ``done`` and of those with
    a pace, request-seconds ``busy``, and the time of the end."""
    run = _Run(loop)
    for _ in range(MOST_EVENTS):
        if not run.event():
            break
    return run.sums()


class _Run:
    """The loop between events."""

    def __init__(self, loop: OneLoop) -> None:
        count = loop.count
        self.loop, self.separate = loop, loop.servers > 0
        self.nominal, self.spread = loop.new_tokens * loop.weight, 1.0 - loop.shortest
        self.clock = self.steps = self.made = 0.0  # time, decode steps, and tokens that each running request has made
        self.arrivals = [(loop.longest_pause_s * loop.spread_pause[u * loop.rounds], u) for u in range(count)]
        heapify(self.arrivals)
        self.arrived = [0.0] * count
        self.seen = [0.0] * count  # step at which the scheduler sees the request
        self.first = [0.0] * count  # end of prefill
        self.outputs = [0.0] * count
        self.due = [NEVER] * count  # step at which the client sees the first token
        self.turn = [0] * count
        self.queue: list[int] = []  # users whose prompts wait, first come first
        self.head = self.behind = self.active = 0  # ``behind``: end of those in the queue that the scheduler has seen
        self.ready: list[tuple[float, int]] = []  # (when decode may take it up, user)
        self.running: list[tuple[float, int]] = []  # (``made`` at its end, user)
        self.shown: list[tuple[float, int]] = []  # (step at which the first token is due, user), ascending
        self.next_shown = 0
        self.free = [0.0] * max(loop.servers, 1)  # when each prefill worker is free
        self.start_sum = self.queue_sum = self.prefill_sum = self.work_sum = self.transfer_sum = 0.0
        self.first_sum = self.tpot_sum = self.done = self.paced = self.busy = 0.0

    def sums(self) -> Sums:
        return (
            self.start_sum, self.queue_sum, self.prefill_sum, self.work_sum, self.transfer_sum, self.first_sum,
            self.tpot_sum, self.done, self.paced, self.busy, self.clock,
        )  # fmt: skip

    def event(self) -> bool:
        """One event; whether anything was left to do."""
        now = self.clock * SLACK
        if self.ready and self.ready[0][0] <= now:
            self._join(now)
        queue, arrivals = self.queue, self.arrivals
        while arrivals and arrivals[0][0] <= now:
            at, user = heappop(arrivals)
            self.arrived[user] = at
            self.seen[user] = self.steps + self.loop.poll_steps
            queue.append(user)
        self.active = len(self.running)
        if not (self.active or self.ready or arrivals or self.head < len(queue)):
            return False
        behind = self.head
        if self.separate or not self.active:
            behind = len(queue)
        else:
            while behind < len(queue) and self.seen[queue[behind]] <= self.steps + STEP_SLACK:
                behind += 1
        self.behind = behind
        held = self.active + len(self.ready)
        if behind > self.head and self.free[0] <= now and (self.separate or held < self.loop.slots):
            self._pass(now, held)
        else:
            self._decode(now)
        if self.running and self.running[0][0] - self.made <= TOKEN_SLACK:
            self._finish()
        return True

    def _join(self, now: float) -> None:
        """Requests whose KV is there begin to decode, as far as there are slots."""
        loop, ready = self.loop, self.ready
        while ready and ready[0][0] <= now and (not self.separate or len(self.running) < loop.slots):
            at, user = heappop(ready)
            self.transfer_sum += self.clock - at
            self.first[user] = self.clock
            self.due[user] = self.steps + loop.output_steps
            self.shown.append((self.due[user], user))
            share = loop.spread_out[user * loop.rounds + self.turn[user]]
            answer = loop.output_tokens * (loop.shortest + self.spread * share)
            self.outputs[user] = answer - 1.0 if answer > 1.0 else 0.0
            heappush(self.running, (self.made + self.outputs[user], user))

    def _pass(self, now: float, held: int) -> None:
        """A pass with prompts: first come first served up to a chunk, one request at least; idle workers share."""
        loop, queue, row, most = self.loop, self.queue, self.active, self.loop.slots - held
        if self.separate:
            idle = sum(at <= now for at in self.free) if loop.servers > 1 else 1
            row, most = 0, math.ceil((self.behind - self.head) / idle)
        volume, taken, common = 0.0, 0, 0
        while self.head < self.behind and taken < most:
            user = queue[self.head]
            share = loop.spread_in[user * loop.rounds + self.turn[user]]
            prompt = self.nominal * (loop.shortest + self.spread * share)
            if taken and volume + prompt > loop.chunk:
                break
            volume += prompt
            if self.turn[user] == 0:
                common += 1
                self.start_sum += self.clock - self.arrived[user]
            else:
                self.queue_sum += self.clock - self.arrived[user]
            self.head += 1
            taken += 1
        pass_s, passes = _passes(volume, loop.chunk, loop.tokens, loop.passes_s[row])
        alone_s = pass_s
        if loop.weight > 1.0 and common < taken:  # one that comes by itself has a pass of its own
            prompts = loop.new_tokens * loop.parallel  # one on each of the workers that work as one
            several = max(prompts, min(prompts * taken, loop.chunk))
            alone_s = min(pass_s, _passes(several, loop.chunk, loop.tokens, loop.passes_s[row])[0])
        # at the common start users come together, and each is through after half of their passes on average
        together = 0.5 + 0.5 / passes if loop.weight > 1.0 else 1.0
        self.prefill_sum += common * together * pass_s + (taken - common) * alone_s
        self.work_sum += pass_s
        over_s = loop.transfer_s + loop.handoff_steps * loop.decode_s[max(self.active, 1)]
        self.transfer_sum += taken * over_s
        end = self.clock + pass_s
        for place in range(self.head - taken, self.head):
            heappush(self.ready, (end + over_s, queue[place]))
        heapreplace(self.free, end)
        if not self.separate:
            self._advance(passes, pass_s / passes, loop.mixed)

    def _decode(self, now: float) -> None:
        """Decode until the next request ends, arrives, is seen, is ready or finds a free prefill worker."""
        queue, behind = self.queue, self.behind
        event = self.arrivals[0][0] if self.arrivals else NEVER
        if self.ready and self.ready[0][0] > now:
            event = min(event, self.ready[0][0])
        if self.separate and behind > self.head:
            event = min(event, self.free[0])
        if not self.active:
            if event < NEVER:
                self.clock = event
            return
        seconds, steps = self.loop.decode_s[self.active], self.running[0][0] - self.made
        if behind < len(queue) and self.seen[queue[behind]] - self.steps < steps:
            steps = self.seen[queue[behind]] - self.steps
        if event - self.clock < steps * seconds:
            until = (event - self.clock) / seconds
            steps = until if self.separate else min(steps, math.ceil(until))
        self._advance(steps, seconds, 1.0)

    def _advance(self, steps: float, seconds: float, tokens: float) -> None:
        """``steps`` steps of ``seconds``, each giving ``tokens`` to every running request."""
        if steps <= 0.0:
            return
        after, shown, due = self.steps + steps, self.shown, self.due
        while self.next_shown < len(shown):
            at, user = shown[self.next_shown]
            if due[user] == at:
                if at > after + STEP_SLACK:
                    break
                self.first_sum += self.clock + max(at - self.steps, 0.0) * seconds - self.first[user]
                due[user] = NEVER
            self.next_shown += 1
        self.busy += self.active * self.loop.weight * steps * seconds
        self.made += steps * tokens
        self.steps = after
        self.clock += steps * seconds

    def _finish(self) -> None:
        """Those that have ended are counted; their users ask again."""
        loop, running, outputs = self.loop, self.running, self.outputs
        while running and running[0][0] - self.made <= TOKEN_SLACK:
            _, user = heappop(running)
            if outputs[user] > 0.0:
                self.tpot_sum += (self.clock - self.first[user]) / outputs[user]
                self.paced += 1.0
            if self.due[user] < NEVER:  # the answer is out before its first token was due
                self.first_sum += self.clock - self.first[user]
                self.due[user] = NEVER
            self.done += 1.0
            self.turn[user] += 1
            if self.turn[user] < loop.rounds:
                pause = loop.longest_pause_s * loop.spread_pause[user * loop.rounds + self.turn[user]]
                heappush(self.arrivals, (self.clock + pause, user))


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
