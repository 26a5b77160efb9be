"""Closed loop: a fixed number of users, each sends its next request when the last one is answered; all start at once.

No formula covers what the loop does to the first token: users that share lengths stay in step and queue for prefill
together, users with varied lengths drift apart, and the common start never quite leaves the mean. So the loop is run:
up to ``MOST_USERS`` representative users, each standing for ``weight`` alike ones, over the rounds of the benchmark,
for all operating points side by side in arrays (points, users). Steps between events are counted, not simulated, so a
run costs a few hundred array operations however many tokens it makes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from pddplan.estimate.step_grid import StepGrid

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = NDArray[np.intp]

MOST_USERS = 16  # representative users of a point
MOST_EVENTS = 50_000
NEVER = np.inf
GOLDEN = 0.6180339887498949
SLACK = 1.0 + 1e-12  # times that differ by rounding are the same


@dataclass(frozen=True)
class Loop:
    """Operating points side by side; all arrays of shape (points,). One scheduling unit (an attention rank, whose
    fellows keep step with it) or one pool of decode workers with the prefill workers before it.

    ``servers`` 0: passes with prompts take the place of decode steps, and running requests make ``mixed`` tokens in
    each; else so many prefill workers beside the decode.
    """

    users: Array
    new_tokens: Array  # nominal, to prefill
    output_tokens: Array  # nominal
    shortest: Array  # lengths are uniform on [shortest, 1] x nominal
    rounds: Array
    slots: Array  # requests that may run at once
    chunk: Array  # prompt tokens of a pass
    servers: Array
    mixed: Array
    poll_steps: Array  # steps from the arrival of a request to its being seen by a running scheduler
    output_steps: Array  # steps from the end of a request's prefill to its first output at the client
    transfer_s: Array  # KV on its way from prefill to decode
    turnaround_s: (
        Array  # mean time from the last token of an answer to the arrival of the next request; uniform to twice
    )

    def at(self, rows: Index) -> Loop:
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self)})


@dataclass(frozen=True)
class LoopResult:
    """Means over all requests of a point; shapes (points,)."""

    queue_s: Array  # from arrival to the start of the pass
    prefill_s: Array  # the pass
    transfer_s: Array  # KV on its way, and the wait for a slot
    first_step_s: Array  # until the client sees a token
    tpot_s: Array
    request_rate_per_s: Array
    running: Array  # requests decoding, mean over the run


def run_loop(loop: Loop, decode: StepGrid, passes: StepGrid) -> LoopResult:
    """Runs all points to the end of their last request; ``decode`` and ``passes`` give seconds of a step without and
    with prompt tokens at so many running requests (none in ``passes`` of separate workers)."""
    points = loop.users.size
    result = LoopResult(*(np.zeros(points) for _ in fields(LoopResult)))
    rows = np.arange(points)
    state = _State(loop)
    for event in range(MOST_EVENTS):
        alive = state.step(decode, passes)
        if alive.all():
            continue
        # ended points are dropped at once where all have ended, else now and then: a copy costs as much as an event
        if alive.any() and event % 32:
            continue
        state.write(result, rows, ~alive)
        if not alive.any():
            break
        kept = np.flatnonzero(alive)
        rows, state = rows[kept], state.at(kept)
        decode, passes = decode.points(kept), passes.points(kept)
    return result


def spread_lengths(users: int, rounds: int, phase: float) -> Array:
    """Uniform shares of the spread (users, rounds): a golden-ratio sequence, so that few representative requests cover
    the range evenly. A user's shares are the same however many users and rounds there are: a point's answer doesn't
    depend on its neighbours."""
    index = np.arange(users)[:, None] + MOST_USERS * np.arange(rounds)[None, :]
    return np.asarray(np.mod(phase + index * GOLDEN, 1.0))


_SUMS = ("start", "queue", "prefill", "work", "transfer", "first", "tpot", "done", "paced", "busy")


class _State:
    """The loop between events; arrays (points, users) unless said otherwise."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.count = np.clip(np.round(loop.users), 1, MOST_USERS)  # (points,)
        users, points = int(self.count.max()), loop.users.size
        self.weight = loop.users / self.count
        self.rounds = np.maximum(np.round(loop.rounds), 1)
        most = int(self.rounds.max())
        self.spread_in, self.spread_out = spread_lengths(users, most, 0.5), spread_lengths(users, most, 0.1)
        self.spread_turn = 2.0 * spread_lengths(users, most, 0.3)
        exists = np.arange(users)[None, :] < self.count[:, None]
        start = loop.turnaround_s[:, None] * self.spread_turn[None, :, 0]
        self.arrival = np.where(exists, start, NEVER)  # of a request that waits or is on its way to do so
        self.seen = np.full((points, users), NEVER)  # step at which the scheduler sees it
        self.ready = np.full((points, users), NEVER)  # when decode may take it up
        self.left = np.full((points, users), NEVER)  # tokens still to make
        self.first = np.zeros((points, users))  # end of prefill
        self.due = np.full((points, users), NEVER)  # step at which the client sees the first token
        self.turn = np.zeros((points, users), dtype=np.intp)
        self.now = np.zeros(points)
        self.steps = np.zeros(points)
        servers = np.arange(max(int(loop.servers.max()), 1))[None, :]
        self.free = np.where(servers < np.maximum(loop.servers, 1)[:, None], 0.0, NEVER)
        self.separate = loop.servers > 0
        self.sums = {name: np.zeros(points) for name in _SUMS}

    def at(self, rows: Index) -> _State:
        """The state of the points ``rows`` alone."""
        part = object.__new__(_State)
        for name, value in vars(self).items():
            if name == "loop":
                part.loop = self.loop.at(rows)
            elif name == "sums":
                part.sums = {key: one[rows] for key, one in self.sums.items()}
            else:
                setattr(part, name, value if name.startswith("spread") else value[rows])
        return part

    # ------------------------------------------------------------------ events

    def step(self, decode: StepGrid, passes: StepGrid) -> Mask:
        """One event of every point; which points have something left to do."""
        now = self.now[:, None] * SLACK
        self._join(now)
        running = np.isfinite(self.left)
        on_the_way = np.isfinite(self.arrival) | np.isfinite(self.ready)
        alive = (on_the_way | running).any(axis=1)
        active = running.sum(axis=1) * self.weight
        arrived = self.arrival <= now
        unseen = arrived & ~np.isfinite(self.seen)
        self.seen = np.where(unseen, (self.steps + self.loop.poll_steps)[:, None], self.seen)
        idle = ~running.any(axis=1) & ~self.separate
        waiting = arrived & ((self.seen <= self.steps[:, None] + 1e-9) | (idle | self.separate)[:, None])
        begins = self._prefill(waiting, active, passes)
        self._decode(alive & ~begins, running, active, arrived & ~waiting, waiting, decode)
        self._finish()
        return np.asarray(alive)

    def _join(self, now: Array) -> None:
        """Requests whose KV is there begin to decode, as far as there are slots, first come first served."""
        waiting = self.ready <= now
        rows = np.flatnonzero(waiting.any(axis=1))
        if not rows.size:
            return
        ready, here = self.ready[rows], waiting[rows]
        room = self._slots(rows) - np.isfinite(self.left[rows]).sum(axis=1)
        place = np.argsort(np.argsort(np.where(here, ready, NEVER), axis=1, kind="stable"), axis=1, kind="stable")
        enter = here & (place < np.where(self.separate[rows], room, NEVER)[:, None])
        moment = self.now[rows, None]
        self.sums["transfer"][rows] += np.where(enter, moment - ready, 0.0).sum(axis=1)
        self.first[rows] = np.where(enter, moment, self.first[rows])
        self.due[rows] = np.where(enter, (self.steps + self.loop.output_steps)[rows, None], self.due[rows])
        self.left[rows] = np.where(enter, self._output(rows) - 1.0, self.left[rows])
        self.ready[rows] = np.where(enter, NEVER, ready)

    def _slots(self, rows: Index) -> Array:
        return np.asarray(np.maximum(np.floor(self.loop.slots[rows] / self.weight[rows] + 1e-9), 1.0))

    def _prefill(self, waiting: Mask, active: Array, passes: StepGrid) -> Mask:
        """Starts a pass where prompts wait and a worker is free; the points whose decode stands still for it."""
        begins = waiting.any(axis=1) & (self.free.min(axis=1) <= self.now * SLACK)
        held = (np.isfinite(self.left) | np.isfinite(self.ready)).sum(axis=1)
        begins &= self.separate | (held < self._slots(np.arange(held.size)))
        rows = np.flatnonzero(begins)
        if not rows.size:
            return np.asarray(begins)
        taken, volume = self._take(rows, waiting[rows], held[rows])
        beside = np.where(self.separate[rows], 0.0, active[rows])
        seconds, count = self._passes_s(rows, beside, volume, passes)
        end = self.now[rows] + seconds
        waited = np.where(taken, self.now[rows, None] - self.arrival[rows], 0.0)
        common = self.turn[rows] == 0
        self.sums["start"][rows] += np.where(common, waited, 0.0).sum(axis=1)
        self.sums["queue"][rows] += np.where(common, 0.0, waited).sum(axis=1)
        self.sums["prefill"][rows] += self._own_passes(rows, taken, beside, seconds, count, passes)
        self.sums["work"][rows] += seconds
        self.sums["transfer"][rows] += taken.sum(axis=1) * self.loop.transfer_s[rows]
        self.arrival[rows] = np.where(taken, NEVER, self.arrival[rows])
        self.seen[rows] = np.where(taken, NEVER, self.seen[rows])
        self.ready[rows] = np.where(taken, (end + self.loop.transfer_s[rows])[:, None], self.ready[rows])
        self.free[rows, np.argmin(self.free[rows], axis=1)] = end
        shared = rows[~self.separate[rows]]
        if shared.size:
            here = ~self.separate[rows]
            self._advance(shared, count[here], seconds[here] / np.maximum(count[here], 1.0), self.loop.mixed[shared])
        return np.asarray(begins)

    def _passes_s(self, rows: Index, beside: Array, volume: Array, passes: StepGrid) -> tuple[Array, Array]:
        """(time, number) of the passes that ``volume`` prompt tokens take: full chunks and the rest."""
        chunk = self.loop.chunk[rows]
        full = np.floor(volume / chunk + 1e-9)
        rest = volume - full * chunk
        rest = np.where(rest > 1e-6, rest, 0.0)
        seconds = full * passes.at(beside, chunk, rows) + np.where(rest > 0, passes.at(beside, rest, rows), 0.0)
        return seconds, full + (rest > 0)

    def _own_passes(
        self, rows: Index, taken: Mask, beside: Array, seconds: Array, count: Array, passes: StepGrid
    ) -> Array:
        """Time that those in a pass see of it, summed over them [s].

        A representative user stands for ``weight`` others. At the common start they come together, and each is through
        after half of their passes on average; later they come one by one, and each has a pass of its own.
        """
        several = self.weight[rows] > 1
        common = (taken & (self.turn[rows] == 0)).sum(axis=1)
        users = taken.sum(axis=1)
        together = np.where(several, 0.5 + 0.5 / np.maximum(count, 1.0), 1.0) * seconds
        new, chunk = self.loop.new_tokens[rows], self.loop.chunk[rows]
        volume = np.maximum(new, np.minimum(new * np.maximum(users, 1), chunk))
        own = self._passes_s(rows, beside, volume, passes)[0]
        alone = np.where(several, np.minimum(own, seconds), seconds)
        return np.asarray(common * together + (users - common) * alone)

    def _take(self, rows: Index, waiting: Mask, held: Array) -> tuple[Mask, Array]:
        """(who, prompt tokens) of the pass: first come first served up to a chunk, one at least; idle workers share."""
        share = self.spread_in[np.arange(waiting.shape[1]), np.minimum(self.turn[rows], self.spread_in.shape[1] - 1)]
        nominal = self.loop.new_tokens[rows] * self.weight[rows]
        low = self.loop.shortest[rows]
        tokens = nominal[:, None] * (low[:, None] + (1.0 - low)[:, None] * share)
        order = np.argsort(np.where(waiting, self.arrival[rows], NEVER), axis=1, kind="stable")
        queued = np.take_along_axis(np.where(waiting, tokens, NEVER), order, axis=1)
        place = np.arange(queued.shape[1])[None, :]
        separate = self.separate[rows]
        free = np.maximum((self.free[rows] <= self.now[rows, None] * SLACK).sum(axis=1), 1)
        fair = np.where(separate, np.ceil(waiting.sum(axis=1) / free), NEVER)
        room = np.where(separate, NEVER, self._slots(rows) - held)
        fits = (np.cumsum(queued, axis=1) <= self.loop.chunk[rows, None]) & (place < fair[:, None])
        fits = (fits | (place == 0)) & (place < room[:, None]) & np.isfinite(queued)
        taken = np.zeros_like(waiting)
        np.put_along_axis(taken, order, fits, axis=1)
        return taken, np.where(taken, tokens, 0.0).sum(axis=1)

    def _decode(self, acts: Mask, running: Mask, active: Array, unseen: Mask, waiting: Mask, decode: StepGrid) -> None:
        """Steps until the next request ends, arrives, is seen, is ready or finds a free prefill worker."""
        rows = np.flatnonzero(acts)
        if not rows.size:
            return
        now = self.now[rows, None] * SLACK
        arrives = np.where(self.arrival[rows] > now, self.arrival[rows], NEVER).min(axis=1)
        ready = np.where(self.ready[rows] > now, self.ready[rows], NEVER).min(axis=1)
        freed = np.where(self.free[rows] > now, self.free[rows], NEVER).min(axis=1)
        freed = np.where(waiting[rows].any(axis=1) & self.separate[rows], freed, NEVER)
        event = np.minimum(np.minimum(arrives, ready), freed) - self.now[rows]
        seconds = decode.at(active[rows], np.zeros(rows.size), rows)
        until = event / np.maximum(seconds, 1e-12)
        until = np.where(self.separate[rows] | ~np.isfinite(until), until, np.ceil(until))
        seen = np.where(unseen[rows], self.seen[rows] - self.steps[rows, None], NEVER).min(axis=1)
        end = np.where(running[rows], self.left[rows], NEVER).min(axis=1)
        made = np.minimum(np.minimum(end, until), np.maximum(seen, 0.0))
        works = running[rows].any(axis=1)
        busy = rows[works]
        if busy.size:
            self._advance(busy, made[works], seconds[works], np.ones(busy.size))
        rest = rows[~works]
        self.now[rest] += np.where(np.isfinite(event), event, 0.0)[~works]

    def _advance(self, rows: Index, steps: Array, seconds: Array, tokens: Array) -> None:
        """``steps`` steps of ``seconds``, each giving ``tokens`` to every running request of these points."""
        start, before = self.now[rows, None], self.steps[rows, None]
        after = self.steps[rows] + steps
        shown = self.due[rows] <= after[:, None] + 1e-9
        moment = start + np.where(shown, np.maximum(self.due[rows] - before, 0.0), 0.0) * seconds[:, None]
        self.sums["first"][rows] += np.where(shown, moment - self.first[rows], 0.0).sum(axis=1)
        self.due[rows] = np.where(shown, NEVER, self.due[rows])
        left = self.left[rows]
        running = np.isfinite(left)
        self.left[rows] = np.where(running, np.maximum(left - (steps * tokens)[:, None], 0.0), left)
        self.sums["busy"][rows] += running.sum(axis=1) * self.weight[rows] * steps * seconds
        self.steps[rows] = after
        self.now[rows] += steps * seconds

    def _finish(self) -> None:
        """Counts the requests that have ended and sends the next of their users."""
        ended = self.left <= 1e-9
        rows = np.flatnonzero(ended.any(axis=1))
        if not rows.size:
            return
        here, moment = ended[rows], self.now[rows, None]
        tokens = self._output(rows) - 1.0
        paced = here & (tokens > 0)
        pace = (moment - self.first[rows]) / np.maximum(tokens, 1.0)
        late = here & np.isfinite(self.due[rows])  # the answer is out before its first token was due
        self.sums["first"][rows] += np.where(late, moment - self.first[rows], 0.0).sum(axis=1)
        self.due[rows] = np.where(here, NEVER, self.due[rows])
        self.sums["tpot"][rows] += np.where(paced, pace, 0.0).sum(axis=1)
        self.sums["paced"][rows] += paced.sum(axis=1)
        self.sums["done"][rows] += here.sum(axis=1)
        self.left[rows] = np.where(here, NEVER, self.left[rows])
        self.turn[rows] += here
        again = here & (self.turn[rows] < self.rounds[rows, None])
        turn = np.minimum(self.turn[rows], self.spread_turn.shape[1] - 1)
        pause = self.loop.turnaround_s[rows, None] * self.spread_turn[np.arange(turn.shape[1]), turn]
        self.arrival[rows] = np.where(again, moment + pause, self.arrival[rows])

    def _output(self, rows: Index) -> Array:
        turn = np.minimum(self.turn[rows], self.spread_out.shape[1] - 1)
        share = self.spread_out[np.arange(turn.shape[1]), turn]
        low = self.loop.shortest[rows, None]
        return np.asarray(np.maximum(self.loop.output_tokens[rows, None] * (low + (1.0 - low) * share), 1.0))

    # ------------------------------------------------------------------ answer

    def write(self, result: LoopResult, rows: Index, ended: Mask) -> None:
        """Puts the means of the points that have ended into ``result``."""
        sums = {name: value[ended] for name, value in self.sums.items()}
        target = rows[ended]
        done, span = np.maximum(sums["done"], 1.0), np.maximum(self.now[ended], 1e-12)
        result.prefill_s[target] = sums["prefill"] / done
        result.transfer_s[target] = sums["transfer"] / done
        result.first_step_s[target] = sums["first"] / done
        result.tpot_s[target] = sums["tpot"] / np.maximum(sums["paced"], 1.0)
        result.queue_s[target] = self._queue(sums, ended, result, target)
        result.request_rate_per_s[target] = sums["done"] * self.weight[ended] / span
        result.running[target] = sums["busy"] / span

    def _queue(self, sums: dict[str, Array], ended: Mask, result: LoopResult, target: Index) -> Array:
        """Mean wait for prefill [s]: that of the common start as it was run, later ones without their batches.

        A representative user's requests come as a batch of ``weight``, those of real users one by one. A loop of
        separate prefill workers keeps its waves: what the batches add is ``(weight - 1) rho s / (2 (1 - rho))`` (M/D/1
        with and without batches, s the work per prompt). Where prompts take the place of decode steps, passes pull
        users apart, and what is waited beyond a saturated loop, ``users x s - the rest of the cycle``, or for a
        slot, ``(users - slots) / rate``, falls by ``weight``.
        Source: the served rows of equal lengths, whose first tokens don't wait in waves.
        """
        loop = self.loop
        weight, users = self.weight[ended], loop.users[ended]
        done = np.maximum(sums["done"], 1.0)
        later = np.maximum(done - self.count[ended], 1.0)
        work = sums["work"] / (done * weight) / np.maximum(loop.servers[ended], 1.0)
        share = 0.5 * (1.0 + loop.shortest[ended])
        answer = result.tpot_s[target] * np.maximum(loop.output_tokens[ended] * share - 1.0, 0.0)
        rest = answer + result.prefill_s[target] + result.transfer_s[target] + loop.turnaround_s[ended]
        turns = done * weight / np.maximum(self.now[ended], 1e-12)
        for_slots = np.maximum(users - loop.slots[ended], 0.0) / turns
        saturated = np.maximum(users * work - rest, np.where(self.separate[ended], 0.0, for_slots))
        saturated = np.maximum(saturated, 0.0)
        mean = sums["queue"] / later
        load = np.minimum(users * work / np.maximum(rest + mean, 1e-12), 0.95)
        batches = 0.5 * (weight - 1.0) * load * work / (1.0 - load)
        waves = np.maximum(mean - batches, np.minimum(mean, saturated))
        single = np.where(
            self.separate[ended], waves, np.minimum(mean, saturated) + np.maximum(mean - saturated, 0.0) / weight
        )
        return np.asarray((sums["start"] + single * np.where(done > self.count[ended], later, 0.0)) / done)
