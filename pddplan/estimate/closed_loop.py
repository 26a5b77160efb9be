"""Closed loop: a fixed number of users, each sends its next request when the last one is answered; all start at once.

No formula covers what the loop does to the first token: users that share lengths stay in step and queue for prefill
together, users with varied lengths drift apart, and the common start never quite leaves the mean. So the loop is run
(``loop_events``): up to ``MOST_USERS`` representative users, each standing for ``weight`` alike ones, over the rounds
of the benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pddplan.estimate.loop_events import OneLoop, run_events

Array = NDArray[np.float64]

MOST_USERS = 16  # representative users of a point
FEWEST_USERS = 8  # of those that are more than the slots
GOLDEN = 0.6180339887498949


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
    parallel: Array  # prefill workers that work as one
    mixed: Array
    poll_steps: Array  # steps from the arrival of a request to its being seen by a running scheduler
    output_steps: Array  # steps from the end of a request's prefill to its first output at the client
    transfer_s: Array  # KV on its way from prefill to decode
    handoff_steps: Array  # decode steps that it takes beside
    turnaround_s: Array  # mean time from the last token of an answer to the next request; uniform to twice


@dataclass(frozen=True)
class StepTimes:
    """Seconds of steps at 0, 1, ... ``MOST_USERS`` representatives running.

    ``decode`` (points, running) without prompt tokens; ``passes`` (points, running, tokens) with ``tokens`` (points,
    tokens) of them, ascending from 0. Of separate prefill workers only the passes at 0 running are read.
    """

    decode: Array
    tokens: Array
    passes: Array


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


def representatives(users: Array, slots: Array) -> tuple[Array, Array]:
    """(users that are run, real users that each stands for) where there are so many, shape by shape.

    Of more users than slots so many that both come in whole representatives as nearly as can be: what is waited goes by
    ``users / slots``.
    """
    count = np.clip(np.round(users), 1, MOST_USERS)
    tries = np.arange(MOST_USERS, FEWEST_USERS - 1.0, -1.0)  # of equally good ones the most
    scarce = np.isfinite(slots) & (users > slots) & (users > MOST_USERS)
    ratio = np.where(scarce, users / np.maximum(np.where(scarce, slots, 1.0), 1e-9), 1.0)
    whole = np.maximum(np.round(tries / ratio[..., None]), 1.0)
    off = np.abs(np.log(tries / whole / ratio[..., None]))
    count = np.where(scarce, tries[np.argmin(off, axis=-1)], count)
    return count, users / count


def run_loop(loop: Loop, times: StepTimes) -> LoopResult:
    """Runs every point to the end of its last request."""
    count, weight = representatives(loop.users, loop.slots)

    @lru_cache(None)
    def spread(users: int, rounds: int) -> tuple[Sequence[float], ...]:
        """Shares of input lengths, of output lengths, and of pauses."""
        shares = (spread_lengths(users, rounds, phase) for phase in (0.5, 0.1, 0.3))
        return tuple(share.ravel().tolist() for share in shares)

    sums = []
    for row in range(count.size):
        users, rounds = int(count[row]), max(round(float(loop.rounds[row])), 1)
        one = OneLoop(
            count=users,
            weight=float(weight[row]),
            rounds=rounds,
            slots=float(_whole_slots(loop.slots[row] / weight[row], users)),
            servers=int(loop.servers[row]),
            parallel=float(loop.parallel[row]),
            new_tokens=float(loop.new_tokens[row]),
            output_tokens=float(loop.output_tokens[row]),
            shortest=float(loop.shortest[row]),
            chunk=float(loop.chunk[row]),
            mixed=float(loop.mixed[row]),
            poll_steps=float(loop.poll_steps[row]),
            output_steps=float(loop.output_steps[row]),
            transfer_s=float(loop.transfer_s[row]),
            handoff_steps=float(loop.handoff_steps[row]),
            longest_pause_s=2.0 * float(loop.turnaround_s[row]),
            decode_s=times.decode[row].tolist(),
            tokens=times.tokens[row].tolist(),
            passes_s=times.passes[row].tolist(),
            **dict(zip(("spread_in", "spread_out", "spread_pause"), spread(users, rounds), strict=True)),
        )
        sums.append(run_events(one))
    return _means(loop, count, weight, np.array(sums).reshape(count.size, -1).T)


def _whole_slots(slots: float, users: int) -> float:
    """Slots in representatives: whole ones, one at least; of fewer than users the nearest."""
    return max(float(np.round(slots)) if slots < users else float(np.floor(slots + 1e-9)), 1.0)


def spread_lengths(users: int, rounds: int, phase: float) -> Array:
    """Uniform shares of the spread (users, rounds): a golden-ratio sequence, so that few representative requests cover
    the range evenly. A user's shares are the same however many users and rounds there are."""
    index = np.arange(users)[:, None] + MOST_USERS * np.arange(rounds)[None, :]
    return np.asarray(np.mod(phase + index * GOLDEN, 1.0))


def _means(loop: Loop, count: Array, weight: Array, sums: Array) -> LoopResult:
    """Means of the requests from ``sums`` (``loop_events.Sums`` x points)."""
    start, queued, prefill, work, transfer, first, tpot, done, paced, busy, end = sums
    done, span = np.maximum(done, 1.0), np.maximum(end, 1e-12)
    found = LoopResult(
        queue_s=np.zeros_like(done),
        prefill_s=prefill / done,
        transfer_s=transfer / done,
        first_step_s=first / done,
        tpot_s=tpot / np.maximum(paced, 1.0),
        request_rate_per_s=done * weight / span,
        running=busy / span,
    )
    later = done - count
    mean = queued / np.maximum(later, 1.0)
    work_s = work / (done * weight) / np.maximum(loop.servers, 1.0)
    single = _single_wait(loop, found, weight, mean, work_s)
    return replace(found, queue_s=np.asarray((start + single * later) / done))


def _single_wait(loop: Loop, found: LoopResult, weight: Array, mean: Array, work_s: Array) -> Array:
    """Mean wait for prefill after the first round [s], from that of the representatives' batches.

    A representative user's requests come as a batch of ``weight``, those of real users one by one. A loop of
    separate prefill workers keeps its waves: what the batches add is ``(weight - 1) rho s / (2 (1 - rho))`` (M/D/1
    with and without batches, s the work per prompt). Where prompts take the place of decode steps, passes pull
    users apart, and what is waited beyond a saturated loop, ``users x s - the rest of the cycle``, or for a
    slot, ``(users - slots) / rate``, falls by ``weight``.
    Source: the served rows of equal lengths, whose first tokens don't wait in waves.
    """
    separate = loop.servers > 0
    share = 0.5 * (1.0 + loop.shortest)
    answer = found.tpot_s * np.maximum(loop.output_tokens * share - 1.0, 0.0)
    rest = answer + found.prefill_s + found.transfer_s + loop.turnaround_s
    for_slots = np.maximum(loop.users - loop.slots, 0.0) / np.maximum(found.request_rate_per_s, 1e-12)
    saturated = np.maximum(loop.users * work_s - rest, np.where(separate, 0.0, for_slots))
    saturated = np.maximum(saturated, 0.0)
    load = np.minimum(loop.users * work_s / np.maximum(rest + mean, 1e-12), 0.95)
    batches = 0.5 * (weight - 1.0) * load * work_s / (1.0 - load)
    waves = np.maximum(mean - batches, np.minimum(mean, saturated))
    apart = np.minimum(mean, saturated) + np.maximum(mean - saturated, 0.0) / weight
    return np.where(separate, waves, apart)
