"""Closed loops run event by event in plain Python, one user for each user: an independent check of ``closed_loop``.

It shares the step times and nothing else: no representatives, no arrays, no counted steps; lengths and pauses are
drawn at random.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

Seconds = Callable[[float, float], float]  # (requests running, new prompt tokens) -> time of a step


@dataclass(frozen=True)
class Load:
    """Nominal tokens; each length is uniform on [shortest, 1] x nominal."""

    users: int
    new_tokens: float
    output_tokens: float
    shortest: float = 1.0
    rounds: int = 10
    turnaround_s: float = 0.010


@dataclass
class Sums:
    """Over the requests that have ended."""

    done: int = 0
    ttft_s: float = 0.0
    tpot_s: float = 0.0
    busy_s: float = 0.0  # requests decoding x time
    end_s: float = 0.0
    most_running: int = 0

    def mean(self) -> tuple[float, float, float, float]:
        """(TTFT, TPOT, requests/s, requests decoding)."""
        return self.ttft_s / self.done, self.tpot_s / self.done, self.done / self.end_s, self.busy_s / self.end_s


@dataclass
class Request:
    arrival: float
    tokens: float
    outputs: float
    user: int
    first: float = 0.0
    left: float = 0.0


@dataclass
class Users:
    """Who asks next, and what."""

    load: Load
    draw: random.Random
    turns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = [0] * self.load.users

    def length(self, nominal: float) -> float:
        return nominal * self.draw.uniform(self.load.shortest, 1.0)

    def next(self, user: int, now: float) -> Request | None:
        if self.turns[user] == self.load.rounds:
            return None
        self.turns[user] += 1
        arrival = now + self.draw.uniform(0.0, 2.0 * self.load.turnaround_s)
        outputs = max(self.length(self.load.output_tokens), 1.0)
        return Request(arrival, self.length(self.load.new_tokens), outputs, user)


def ended(request: Request, now: float, sums: Sums) -> None:
    sums.done += 1
    sums.ttft_s += request.first - request.arrival
    sums.tpot_s += (now - request.first) / max(request.outputs - 1.0, 1.0)
    sums.end_s = now


def aggregated(load: Load, seconds: Seconds, chunk: float, slots: int, seed: int) -> Sums:
    """One scheduling unit: prompts first, each step up to ``chunk`` of their tokens beside the running requests."""
    users, sums = Users(load, random.Random(seed)), Sums()
    arrivals: list[tuple[float, int, Request]] = []
    waiting: deque[Request] = deque()
    running: list[Request] = []
    now = 0.0

    def ask(user: int) -> None:
        request = users.next(user, now)
        if request is not None:
            heapq.heappush(arrivals, (request.arrival, user, request))

    def step(duration: float) -> None:
        """Time passes; each running request makes a token."""
        nonlocal now, running
        sums.busy_s += len(running) * duration
        now += duration
        for request in running:
            request.left -= 1.0
        for request in [r for r in running if r.left <= 1e-9]:
            ended(request, now, sums)
            ask(request.user)
        running = [r for r in running if r.left > 1e-9]

    for user in range(load.users):
        ask(user)
    while arrivals or waiting or running:
        if not waiting and not running:
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            waiting.append(heapq.heappop(arrivals)[2])
        taken: list[Request] = []
        while waiting and len(running) + len(taken) < slots:
            if taken and sum(r.tokens for r in taken) + waiting[0].tokens > chunk:
                break
            taken.append(waiting.popleft())
        left = sum(r.tokens for r in taken)
        while left > 1e-6:
            here = min(left, chunk)
            step(seconds(len(running), here))
            left -= here
        if not taken and running:
            step(seconds(len(running), 0.0))
        for request in taken:
            request.first, request.left = now, request.outputs - 1.0
        running += taken
        sums.most_running = max(sums.most_running, len(running))
    return sums


def disaggregated(
    load: Load,
    prefill: Seconds,
    decode: Seconds,
    *,
    chunk: float,
    servers: int,
    slots: int,
    transfer_s: float,
    seed: int,
) -> Sums:
    """``servers`` prefill workers with one queue; decode workers as one batch, which is joined between its steps."""
    users, sums = Users(load, random.Random(seed)), Sums()
    events: list[tuple[float, int, str, list[Request]]] = []
    queue: deque[Request] = deque()
    ready: deque[Request] = deque()
    running: list[Request] = []
    free, count, stepping = servers, 0, False

    def put(moment: float, kind: str, requests: list[Request]) -> None:
        nonlocal count
        count += 1
        heapq.heappush(events, (moment, count, kind, requests))

    def ask(user: int, now: float) -> None:
        request = users.next(user, now)
        if request is not None:
            put(request.arrival, "arrival", [request])

    def serve(now: float) -> None:
        nonlocal free
        while free and queue:
            fair = -(-len(queue) // free)
            taken = [queue.popleft()]
            while queue and len(taken) < fair and sum(r.tokens for r in taken) + queue[0].tokens <= chunk:
                taken.append(queue.popleft())
            left, duration = sum(r.tokens for r in taken), 0.0
            while left > 1e-6:
                duration += prefill(0, min(left, chunk))
                left -= chunk
            free -= 1
            put(now + duration, "prefilled", taken)

    def advance(now: float) -> None:
        nonlocal stepping
        while ready and len(running) < slots:
            request = ready.popleft()
            request.first, request.left = now, request.outputs - 1.0
            running.append(request)
        sums.most_running = max(sums.most_running, len(running))
        if running and not stepping:
            stepping = True
            duration = decode(len(running), 0.0)
            sums.busy_s += len(running) * duration
            put(now + duration, "step", list(running))

    for user in range(load.users):
        ask(user, 0.0)
    while events:
        now, _, kind, requests = heapq.heappop(events)
        if kind == "arrival":
            queue += requests
        elif kind == "prefilled":
            free += 1
            put(now + transfer_s, "ready", requests)
        elif kind == "ready":
            ready += requests
        else:
            stepping = False
            for request in requests:
                request.left -= 1.0
                if request.left <= 1e-9:
                    running.remove(request)
                    ended(request, now, sums)
                    ask(request.user, now)
        serve(now)
        if not stepping:
            advance(now)
    return sums
