"""Relay decode and main decode under load, and the equilibrium of the hit rate that couples them to the line.

Axes as in ``line_stage``: (2 kinds: held, cold; atoms; spread points). The hit share q = P(main decode still holds
the session's prefix) sets the bytes on the line, these set the exposed transfer, it sets what the relay emits, the
rest loads main decode, whose idle memory sets q again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.perf.service import DecodeService
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Pool
from pddplan.serve.handover import ExtendCost, HandoverResult, extend_rounds, one_shot_pause_s
from pddplan.serve.line_stage import LineState, Transfer
from pddplan.serve.main_decode import (
    AdmissionWait,
    Occupancy,
    admission_wait,
    occupancy_tail,
)
from pddplan.serve.relay import eager_tokens

Array = NDArray[np.float64]

ADMISSION_EPSILON = 0.01  # design default: share of requests that may wait for a decode slot
BATCH_GRID_POINTS = 96
LOG_SPAN = float(np.log(1.1 / 0.9))  # over which the bend of the step time is taken
MAX_BATCH = 1e6  # where a service states no limit of its own


@dataclass(frozen=True)
class StepTable:
    """Step time of one decode service at one context, tabulated over the batch: cheap to ask often."""

    batch: Array
    seconds: Array

    def __call__(self, batch: Array) -> Array:
        return np.asarray(np.interp(batch, self.batch, self.seconds), dtype=float)

    def largest_batch(self, limit_s: float) -> float:
        """Largest batch whose step stays within the limit, 0 if none does."""
        if self.seconds[0] > limit_s:
            return 0.0
        if self.seconds[-1] <= limit_s:
            return float(self.batch[-1])
        return float(np.interp(limit_s, self.seconds, self.batch))


def settle(table: StepTable, tokens_per_s: float, instances: int) -> Occupancy | Excuse:
    """Smallest batch B of an instance with B = (tokens/s per instance) tau(B); the same fixed point as
    ``main_decode.occupancy``, solved in the table's own segment: tau = a + b B gives B = d a / (1 - d b).

    Excuse where no batch of the table keeps up.
    """
    demand = tokens_per_s / instances
    speed = table.batch / table.seconds
    enough = np.flatnonzero(speed >= demand)
    if demand <= 0:
        return Occupancy(0.0, 0.0, float(table.seconds[0]), 1.0)
    if enough.size == 0:
        return Excuse("main decode throughput", demand, float(speed.max()), "tokens/s per instance")
    k = max(int(enough[0]), 1)
    slope = float((table.seconds[k] - table.seconds[k - 1]) / (table.batch[k] - table.batch[k - 1]))
    start = float(table.seconds[k - 1] - slope * table.batch[k - 1])
    room = 1.0 - demand * slope
    batch = float(np.clip(demand * start / room if room > 0 else table.batch[k], table.batch[k - 1], table.batch[k]))
    low, high = table(np.array([batch * 0.9, batch * 1.1]))
    bend = min(max(float(np.log(high / low)) / LOG_SPAN, 0.0), 0.98)
    return Occupancy(batch, batch * instances, start + slope * batch, 1.0 / (1.0 - bend))


@dataclass(frozen=True)
class StepSurface:
    """Step times of one decode service on a grid batch x context, made once: a table at any context is a blend."""

    batch: Array
    context: Array
    seconds: Array  # (contexts, batches)

    def table(self, context: float, stretch: float = 1.0) -> StepTable:
        """Table at a mean context, linear between the grid's; ``stretch`` >= 1 lengthens every step (extend passes)."""
        at = float(np.clip(context, self.context[0], self.context[-1]))
        k = min(int(np.searchsorted(self.context, at, side="right")) - 1, self.context.size - 2)
        share = (at - self.context[k]) / (self.context[k + 1] - self.context[k])
        seconds = (1.0 - share) * self.seconds[k] + share * self.seconds[k + 1]
        return StepTable(self.batch, seconds * stretch)


def step_surface(service: DecodeService, contexts: Array) -> StepSurface:
    """Surface over ``contexts`` (ascending, two or more); never falls with the batch."""
    top = max(min(service.max_batch, MAX_BATCH), 2.0)
    batch = np.concatenate([[1e-6], np.geomspace(0.5, top, BATCH_GRID_POINTS)])
    seconds = np.asarray(service.step_time_s(batch[None, :], contexts[:, None]), dtype=float)
    return StepSurface(batch, contexts, np.maximum.accumulate(seconds, axis=1))


@dataclass(frozen=True)
class Slots:
    """How many requests a pool may run: per instance, and as the admission row counts them."""

    per_instance: float
    pooled: bool
    instances: int
    bound: str  # engine | tpot | kv_memory

    @property
    def total(self) -> float:
        return self.per_instance * self.instances

    def overflow(self, requests: float, dispersion: float) -> float:
        """P(N > K): the pool's total if requests go to the least loaded, else one instance's."""
        if self.pooled:
            return float(occupancy_tail(requests, np.floor(self.total), dispersion))
        return float(occupancy_tail(requests / self.instances, np.floor(self.per_instance), dispersion))


def slots(pool: Pool, table: StepTable, kv_running: float, room_bytes: float, tpot_limit_s: float, pooled: bool) -> Slots:
    """K per instance = min(engine limit, batch at the TPOT limit, KV memory); ``room_bytes`` is the pool's."""
    limits = {
        "engine": pool.decode.max_batch,
        "tpot": table.largest_batch(tpot_limit_s),
        "kv_memory": max(room_bytes, 0.0) / pool.instances / max(kv_running, 1.0),
    }
    bound = min(limits, key=lambda name: limits[name])
    return Slots(limits[bound], pooled, pool.instances, bound)


@dataclass(frozen=True)
class HandOver:
    """Hand-over of the relayed requests, arrays (2, atoms, points)."""

    pause_s: Array
    worst_pause_s: Array  # a whole running step instead of half of one
    extra_relay_s: Array
    limit_tokens: float
    passes_s: Array  # time of the extend passes on main decode
    one_shot: float


@dataclass(frozen=True)
class RelayState:
    tau_s: float
    requests: float
    slots: Slots
    p_wait: float
    context: float
    load: float
    eager: Array
    hold_s: Array


@dataclass(frozen=True)
class MainState:
    occupancy: Occupancy
    slots: Slots
    admission: AdmissionWait
    p_overflow: float
    context: float
    kv_running: float
    running_bytes: float
    under_way_bytes: float
    idle_bytes: float
    residence_s: float
    stretch: float
    table: StepTable
    extend_s: float  # one request's extend passes, what they add to the running step
    handover_rate: float
    busy_share: float = 0.0  # of a measured rate


def hand_over(
    eager: Array,
    transfer: Transfer,
    cost: ExtendCost,
    added: ExtendCost,
    tau_relay_s: float,
    step_main_s: float,
    one_shot: float,
) -> HandOver:
    """Mixture of one-shot and extend-decode by the share of time in one-shot mode [s].

    ``cost`` is the pass that the hand-over waits for, ``added`` what a pass adds to the steps of the others:
    rounds x t0 + e/v with the tokens of all rounds.
    """
    rounds = extend_rounds(eager, transfer.rtt_s, cost, tau_relay_s, step_s=step_main_s)
    single = one_shot_pause_s(eager, transfer.rtt_s, cost, step_main_s)
    rest = 1.0 - one_shot
    worst = single if one_shot > 0.5 else rounds.pause_s
    return HandOver(
        pause_s=one_shot * single + rest * rounds.pause_s,
        worst_pause_s=worst + 0.5 * step_main_s,
        extra_relay_s=rest * rounds.extra_relay_s,
        limit_tokens=float(np.max(rounds.limit_tokens)),
        passes_s=one_shot * added.time_s(eager) + rest * _added(rounds, cost, added),
        one_shot=one_shot,
    )


def _added(rounds: HandoverResult, cost: ExtendCost, added: ExtendCost) -> Array:
    """Time the passes of all rounds add to running steps: their whole time less the steps that run anyway [s]."""
    saved = np.asarray(cost.t0_s, dtype=float) - np.asarray(added.t0_s, dtype=float)
    return np.maximum(rounds.extend_passes_s - (rounds.rounds + 1.0) * saved, 0.0)


def relay_state(
    demand: Demand,
    pool: Pool,
    surface: StepSurface,
    line: LineState,
    relayed: Array,
    rate: float,
    extra_s: Array,
    tpot_limit_s: float,
) -> RelayState:
    """Relay at the rate: eager tokens, holding times, slots. ``relayed`` (2, atoms) are weights of relayed requests.

    tau depends on the batch, the batch on tau only where outputs end before their transfer: three rounds settle it.
    """
    n = demand.atoms.output[None, :, None]
    mass = relayed[..., None] * line.probability
    context = _mean(relayed, demand.atoms.prompt + 0.5 * demand.atoms.output)
    kv = _mean(relayed, demand.kv_session)
    table = surface.table(context)
    pooled_slots = slots(pool, table, kv, pool.decode.kv_pool_bytes * pool.instances, tpot_limit_s, pooled=True)
    tau = float(table.seconds[0])
    requests = 0.0
    hold = np.minimum(n * tau, line.exposed + extra_s)
    for _ in range(4):
        hold = np.minimum(n * tau, line.exposed + extra_s)
        requests = rate * float((mass * hold).sum())
        tau = float(table(np.asarray(max(requests / pool.instances, 1.0))))
    eager = eager_tokens(n, line.exposed, extra_s, tau)
    return RelayState(
        tau_s=tau,
        requests=requests,
        slots=pooled_slots,
        p_wait=pooled_slots.overflow(requests, 1.0),
        context=context,
        load=requests / max(pooled_slots.total, 1e-9),
        eager=eager,
        hold_s=hold,
    )


def main_state(
    demand: Demand,
    pool: Pool,
    surface: StepSurface,
    line: LineState,
    weights: Array,
    eager: Array,
    rate: float,
    passes_s: float,
    handover_rate: float,
    tier_bytes: float,
    tpot_limit_s: float,
    pooled: bool,
    gap_residence: Callable[[float], float],
) -> MainState | Excuse:
    """Main decode at the rate; ``weights`` (2, atoms, points) of the requests that reach it, ``eager`` likewise.

    Fixed point of the batch, admission, KV memory: running + under way + idle = pool. Excuse where no batch keeps up.
    """
    atoms = demand.atoms
    left = np.maximum(atoms.output[None, :, None] - eager, 0.0)
    work = weights * left
    tokens = float(work.sum())
    middle = atoms.prompt[None, :, None] + 0.5 * (atoms.output[None, :, None] + eager)
    context = float((work * middle).sum() / max(tokens, 1e-12)) if tokens > 0 else float(atoms.mean(atoms.prompt))
    kv_running = float(demand.kv_at(np.asarray(context)))
    if not np.isfinite(surface.seconds[0, 0]):
        return _rate_only(pool, rate * tokens, context, handover_rate)
    stretch = 1.0 / max(1.0 - min(handover_rate * passes_s / pool.instances, 0.95), 0.05)
    table = surface.table(context, stretch)
    settled = settle(table, rate * tokens, pool.instances)
    if isinstance(settled, Excuse):
        return Excuse("main_decode_throughput", settled.value, settled.limit, settled.unit, "main_decode")
    under_way = rate * float((weights.sum(axis=2) * line.line_time * demand.kv_prompt).sum())
    pool_bytes = pool.decode.kv_pool_bytes * pool.instances
    room = pool_bytes - under_way
    allowed = slots(pool, table, kv_running, room, tpot_limit_s, pooled)
    running = settled.requests * kv_running
    idle = max(room - running, 0.0) + tier_bytes
    life = tokens * settled.tpot_s / max(float((weights * (left > 0)).sum()), 1e-12)
    k = allowed.total if pooled else allowed.per_instance
    offered = settled.requests if pooled else settled.batch
    wait = admission_wait(offered, max(k, 1.0), max(life, 1e-9), 1.0, min(settled.dispersion, 1e3))
    return MainState(
        occupancy=settled,
        slots=allowed,
        admission=wait,
        p_overflow=allowed.overflow(settled.requests, min(settled.dispersion, 1e3)) if allowed.per_instance >= 1 else 1.0,
        context=context,
        kv_running=kv_running,
        running_bytes=running,
        under_way_bytes=under_way,
        idle_bytes=idle,
        residence_s=gap_residence(idle),
        stretch=stretch,
        table=table,
        extend_s=passes_s,
        handover_rate=handover_rate,
    )


def _rate_only(pool: Pool, tokens_per_s: float, context: float, handover_rate: float) -> MainState | Excuse:
    """Main decode from a measured rate alone: the rate is its one row; batch, TPOT and memory stay unknown (nan)."""
    limit = float(getattr(pool.decode, "max_tokens_per_s", math.nan)) * pool.instances
    if not tokens_per_s <= limit * (1 + 1e-9):
        return Excuse("main_decode_throughput", tokens_per_s, limit, "tokens/s", "main_decode")
    idle = math.inf
    table = StepTable(np.array([1e-6, 1.0]), np.zeros(2))
    return MainState(
        occupancy=Occupancy(0.0, 0.0, math.nan, 1.0),
        slots=Slots(math.inf, True, pool.instances, "engine"),
        admission=admission_wait(0.0, 1.0, 1.0),
        p_overflow=0.0,
        context=context,
        kv_running=0.0,
        running_bytes=0.0,
        under_way_bytes=0.0,
        idle_bytes=idle,
        residence_s=idle,
        stretch=1.0,
        table=table,
        extend_s=0.0,
        handover_rate=handover_rate,
        busy_share=tokens_per_s / limit,
    )


def _mean(weights: Array, values: Array) -> float:
    total = float(weights.sum())
    if total <= 0:
        return float(np.mean(values))
    return float((weights * values).sum() / total)

