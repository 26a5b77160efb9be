"""Closed-loop points as arrays for ``closed_loop``: step times on grids, users, slots and workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.estimate import pools
from pddplan.estimate.closed_loop import MOST_USERS, Loop, LoopResult, StepTimes, representatives, run_loop
from pddplan.estimate.records import OperatingPoint
from pddplan.estimate.transfer import kv_transfer_s
from pddplan.perf.service import RooflineAggregated, RooflineDecode, RooflinePrefill

Array = NDArray[np.float64]
TOKEN_POINTS = 12  # of the table of passes by their prompt tokens
SATURATED = 2.0  # users per slot
TURNAROUND_S = 0.010  # a client's time between an answer and its next request; on one machine, a few milliseconds


@dataclass(frozen=True)
class ClosedPoint:
    """A point with its services: (aggregated,) or (prefill, decode) or one of these two alone."""

    point: OperatingPoint
    services: tuple[pools.Service, ...]

    @property
    def users(self) -> float:
        assert self.point.concurrency is not None
        return self.point.concurrency

    @property
    def prefill(self) -> RooflinePrefill | None:
        first = self.services[0]
        return first if isinstance(first, RooflinePrefill) else None

    @property
    def decode(self) -> RooflineDecode | RooflineAggregated | None:
        last = self.services[-1]
        return None if isinstance(last, RooflinePrefill) else last

    @property
    def decode_workers(self) -> int:
        return self.point.pools[-1].count if self.decode is not None else 1

    @cached_property
    def ranks(self) -> float:
        """Attention ranks of an aggregated worker that have a user at all; they keep step and are run as one."""
        users = self.users / self.decode_workers
        return float(min(self.services[0].parallelism.dp, max(users, 1.0)))

    @property
    def unit_users(self) -> float:
        """Users of what is run as one: an attention rank of aggregated serving, else the whole deployment."""
        aggregated = isinstance(self.decode, RooflineAggregated)
        return self.users / self.decode_workers / self.ranks if aggregated else self.users

    @cached_property
    def slots(self) -> float:
        """Requests that may decode at once in what is run as one."""
        service = self.decode
        if service is None:
            return np.inf
        most, _ = pools.most_requests(self.point, service)
        if isinstance(service, RooflineAggregated):
            return pools.usable(most) / service.parallelism.dp
        return pools.usable(most) * self.decode_workers

    @property
    def unseen_steps(self) -> float:
        """Of ``pools.unseen_steps``: each user asks once an answer."""
        engine, lengths = self.point.engine, self.point.lengths
        return pools.unseen_steps(engine, self.unit_users * engine.mtp_accepted_tokens / pools.mean_output(lengths))

    @cached_property
    def run_users(self) -> float:
        """Users that are run: with twice as many as there are slots the loop is saturated, and one more only waits."""
        return min(self.unit_users, max(SATURATED * self.slots, 1.0))

    @property
    def parallel(self) -> float:
        """Prefill workers that one representative user's prompts are spread over, see ``servers``."""
        return self.point.pools[0].count / self.servers if self.prefill is not None else 1.0

    @cached_property
    def servers(self) -> int:
        """Prefill workers as run: where a representative user stands for w others, w of them work as one."""
        if self.prefill is None:
            return 0
        _, weight = representatives(np.array(self.run_users), np.array(self.slots))
        return max(round(self.point.pools[0].count / max(float(weight), 1.0)), 1)

    @property
    def chunk(self) -> float:
        """Prompt tokens of a pass of what is run as one: of each microbatch on its way through an aggregated pipeline,
        of each attention rank and each of the workers that ``parallel`` counts."""
        budget = float(self.point.engine.chunk_tokens)
        if self.prefill is None:
            return budget * self.services[0].parallelism.pp
        return budget * self.prefill.parallelism.dp * self.parallel


def run_closed(points: Sequence[ClosedPoint]) -> LoopResult:
    """Runs all points side by side; arrays in their order."""
    loop = _loop(points)
    _, weight = representatives(loop.users, loop.slots)
    running = weight[:, None] * np.arange(MOST_USERS + 1)
    most = np.array([min(p.chunk, max(pools.mean_new(p.point.lengths) * max(p.run_users, 1.0), 64.0)) for p in points])
    tokens = token_grid(most)
    passes = np.zeros((*running.shape, tokens.shape[1]))
    decode = np.zeros(running.shape)
    for rows in _by_service(points):
        chosen = np.array(rows)
        sample = [points[r] for r in rows]
        if isinstance(sample[0].decode, RooflineAggregated):
            passes[chosen] = both = _aggregated_seconds(sample, running[chosen], tokens[chosen])
            decode[chosen] = both[:, :, 0] / sample[0].point.engine.mtp_accepted_tokens
        else:
            decode[chosen] = _decode_seconds(sample, running[chosen])
            passes[chosen, :1] = _prefill_seconds(sample, tokens[chosen])
    found = run_loop(loop, StepTimes(decode, tokens, passes))
    return _with_all_users(points, loop, found)


def _with_all_users(points: Sequence[ClosedPoint], loop: Loop, found: LoopResult) -> LoopResult:
    """With the wait for the users that weren't run: each request lets them by, ``users left out / requests per s``, in
    the first round half of them. It is spent where the others wait most: for prefill, or for a slot of decode."""
    left_out = np.array([p.unit_users - p.run_users for p in points])
    wait = left_out / np.maximum(found.request_rate_per_s, 1e-300) * (1.0 - 0.5 / np.maximum(loop.rounds, 1.0))
    behind = found.transfer_s - loop.transfer_s > found.queue_s
    queue_s = found.queue_s + np.where(behind, 0.0, wait)
    return replace(found, queue_s=queue_s, transfer_s=found.transfer_s + np.where(behind, wait, 0.0))


def token_grid(most: Array, points: int = TOKEN_POINTS) -> Array:
    """0, then geometric from 1/64 of ``most`` tokens to ``most`` (points of the estimate, points)."""
    top = np.maximum(most, 64.0)[:, None]
    return np.concatenate([np.zeros_like(top), top * 64.0 ** np.linspace(-1.0, 0.0, points - 1)[None, :]], axis=1)


def _by_service(points: Sequence[ClosedPoint]) -> list[list[int]]:
    """Indices of points that share their services."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, point in enumerate(points):
        groups[tuple(id(s) for s in point.services)].append(index)
    return list(groups.values())


def _column(points: Sequence[ClosedPoint], of: str) -> Array:
    """A figure of the mean request of each point, shape (points, 1, 1)."""
    return np.array([getattr(pools, of)(p.point.lengths) for p in points])[:, None, None]


def _aggregated_seconds(points: Sequence[ClosedPoint], running: Array, tokens: Array) -> Array:
    """Steps of aggregated serving (points, running, tokens) [s]: requests on all ranks, new tokens on each."""
    service = points[0].decode
    assert isinstance(service, RooflineAggregated)
    ranks = np.array([p.ranks for p in points])[:, None, None]
    new = tokens[:, None, :] / service.parallelism.pp
    before = _column(points, "mean_cached") + 0.5 * np.maximum(_column(points, "mean_new") - new, 0.0)
    context = _column(points, "running_context")
    seconds = service.step_time_s(running[:, :, None] * ranks, context, new, before)
    return np.broadcast_to(seconds, (len(points), running.shape[1], tokens.shape[1]))


def _decode_seconds(points: Sequence[ClosedPoint], running: Array) -> Array:
    """Decode steps (points, running) [s]; 0 for prefill alone, whose answers are one token long."""
    service = points[0].decode
    if not isinstance(service, RooflineDecode):
        return np.zeros(running.shape)
    workers = np.array([p.decode_workers for p in points])[:, None]
    return np.asarray(service.step_time_s(running / workers, _column(points, "running_context")[:, :, 0]))


def _prefill_seconds(points: Sequence[ClosedPoint], tokens: Array) -> Array:
    """Passes of prefill workers (points, 1, tokens) [s]; 0 for decode alone, whose prompts are there already."""
    service = points[0].prefill
    if service is None:
        return np.zeros((len(points), 1, tokens.shape[1]))
    parallel = np.array([p.parallel for p in points])[:, None]
    new, cached = _column(points, "mean_new")[:, :, 0], _column(points, "mean_cached")[:, :, 0]
    return np.asarray(service.pool_pass_s(tokens / parallel, new, cached))[:, None, :]


def _loop(points: Sequence[ClosedPoint]) -> Loop:
    """The arrays of ``closed_loop.Loop``."""

    def of(figure: str, owner: str = "point") -> Array:
        return np.array([float(getattr(getattr(p, owner) if owner else p, figure)) for p in points])

    lengths = [p.point.lengths for p in points]
    engines = [p.point.engine for p in points]
    return Loop(
        users=np.array([p.run_users for p in points]),
        new_tokens=np.array([max(s.input_tokens * (1.0 - s.prefix_hit), 1.0) for s in lengths]),
        output_tokens=np.array(
            [s.output_tokens if p.decode is not None else 1.0 for s, p in zip(lengths, points, strict=True)]
        ),
        shortest=np.array([s.shortest for s in lengths]),
        rounds=of("requests_per_user"),
        slots=np.array([p.slots for p in points]),
        chunk=np.array([p.chunk for p in points]),
        servers=np.array([float(p.servers) for p in points]),
        parallel=np.array([p.parallel for p in points]),
        mixed=np.array([e.mtp_accepted_tokens for e in engines]),
        poll_steps=np.array([p.unseen_steps for p in points]),
        output_steps=np.array([e.first_output_steps for e in engines]),
        transfer_s=_transfer_s(points),
        handoff_steps=np.array(
            [e.handoff_steps if p.point.mode == "disaggregated" else 0.0 for e, p in zip(engines, points, strict=True)]
        ),
        turnaround_s=np.full(len(points), TURNAROUND_S),
    )


def _transfer_s(points: Sequence[ClosedPoint]) -> Array:
    """Exposed time of a mean request's KV (points,) [s]; 0 without a transfer."""
    found = np.zeros(len(points))
    for rows in _by_service(points):
        prefill = points[rows[0]].prefill
        if prefill is None or points[rows[0]].point.mode != "disaggregated":
            continue
        lengths = [points[r].point.lengths for r in rows]
        new, cached = [pools.mean_new(s) for s in lengths], [pools.mean_cached(s) for s in lengths]
        seconds = prefill.request_time_s(new, cached, 0.0)
        found[rows] = [kv_transfer_s(points[r].point, float(t)) for r, t in zip(rows, seconds, strict=True)]
    return found
