"""Optimistic figures of a level tuple: what the integer program may assume without ever missing a cheaper plan.

A tuple fixes the prefill option and its count (so its utilisation), the line, and an interval [q_low, q_high] of the
share of prefixes that main decode still holds. Inside it, the bytes, the exposed transfers and P(TTFT <= limit) are
taken at q_high (best), the memory that buys q at q_low (least): every plan in the tuple obeys these rows, so
the program's optimum is a lower bound. Intervals are split until plans and bounds meet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.plan.options import PoolOption, admitted
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON, StepTable, settle
from pddplan.serve.deployment import Deployment, LineChoice
from pddplan.serve.equilibrium import tier_bytes
from pddplan.serve.line_stage import line_state, transfer
from pddplan.serve.main_decode import Occupancy
from pddplan.serve.prefill_stage import PrefillStage

Array = NDArray[np.float64]

MAX_ROUNDS = 8  # of extend-decode
MAX_CLASSES = 160  # routing classes of the program; kinds x atoms beyond it are merged, optimistically


@dataclass(frozen=True)
class DecodeChoice:
    """One (option, count) of a decode role and what it can at best do."""

    option: PoolOption
    instances: int
    slots: float  # mean requests that the admission row lets run
    tokens_per_s: float  # at that occupancy
    room_bytes: float  # KV pool and cache tiers
    running_bytes: float  # at most, when the admission row is full
    tau_floor_s: float
    extend_tokens_per_s: float  # v of an extend pass on main decode, 0 unknown
    resting: tuple[float, float]  # running requests >= resting[0] + resting[1] x tokens/s (tangent, main decode)


@dataclass(frozen=True)
class Classes:
    """Routing classes at q_high: shape (classes,), and P(TTFT <= limit) per limit (limits, classes) by route."""

    weight: Array
    output: Array
    exposed_s: Array  # shortest time on the relay, at q_high
    longest_s: Array  # longest, at q_low, hand-over rounds included: bounds the relay's tokens; inf if unknown
    direct_ok: Array
    relay_ok: Array


@dataclass(frozen=True)
class Bounds:
    """The tuple's figures for the program."""

    classes: Classes
    bytes_per_s: float  # on the line at q_high
    under_way_bytes: float
    under_way_worst: float  # at q_low, inf where the line would be overloaded
    idle_needed_bytes: float  # that buys q_low
    kv_running: float
    tokens_per_s: float  # all output


def decode_choices(context: Context, options: tuple[PoolOption, ...], pooled: bool, tangent: bool) -> list[DecodeChoice]:
    """All counts of all options of a decode role at best: contexts without eager tokens, all memory for running."""
    atoms = context.demand.atoms
    work = atoms.weight * atoms.output
    held = float((work * (atoms.prompt + atoms.output / 2)).sum() / work.sum()) if tangent else atoms.mean(atoms.prompt)
    kv = float(context.demand.kv_at(np.asarray(held)))
    kv_most = float(context.demand.kv_at(np.asarray(held + atoms.output.max()))) - kv  # eager tokens lengthen contexts
    limit = context.tpot_limit_s()
    demand = context.rate * atoms.mean(atoms.output)
    found: list[DecodeChoice] = []
    for option in options:
        service = option.pool(1).decode
        cap = context.cap(option.role)
        table = context.step_surface(option.pool(1)).table(held)
        rate_only = not math.isfinite(float(table.seconds[0]))
        per = 0.0 if rate_only else min(service.max_batch, table.largest_batch(limit), service.kv_pool_bytes / kv)
        speed = 0.0
        if tangent and not rate_only:
            speed = float(np.max(context.extend_cost(option.pool(1))[1].tokens_per_s))
        counts = np.arange(option.min_instances, option.max_instances + 1)
        admits = np.zeros(counts.size) if rate_only else admitted(table, per, counts, pooled, ADMISSION_EPSILON)
        for count, most in zip(counts.tolist(), admits.tolist(), strict=True):
            pool = option.pool(count)
            room = service.kv_pool_bytes * count + tier_bytes(pool)
            if rate_only:
                tokens = getattr(service, "max_tokens_per_s") * count * cap
                found.append(DecodeChoice(option, count, math.inf, tokens, math.inf, 0.0, 0.0, 0.0, (0.0, 0.0)))
                continue
            running = min(most, cap * per * count)
            if running <= 0:
                continue
            tau = float(table(np.asarray(max(running / count, 1e-6))))
            resting = (0.0, 0.0)
            if tangent:
                resting = _tangent(demand, running / tau, count, table)
            busy = running * (kv_most + kv)
            floor = float(table.seconds[0])
            found.append(DecodeChoice(option, count, running, running / tau, room, busy, floor, speed, resting))
    return found


def _tangent(demand: float, most: float, count: int, table: StepTable) -> tuple[float, float]:
    """Line below the convex a(tokens/s) of ``occupancy``: its tangent at 95 % of min(demand, capacity)."""
    at = 0.95 * min(demand, most)
    low, high = (settle(table, at * f, count) for f in (0.98, 1.0))
    if not (isinstance(low, Occupancy) and isinstance(high, Occupancy)):
        return (0.0, 0.0)
    slope = (high.requests - low.requests) / (0.02 * at)
    return (high.requests - slope * at, slope)


def tuple_bounds(
    context: Context,
    prefill: PoolOption,
    stage: PrefillStage,
    instances: int,
    line: LineChoice | None,
    main: PoolOption,
    relay: PoolOption | None,
    q: tuple[float, float],
) -> Bounds | Excuse:
    """Optimistic figures of a tuple; ``main`` and ``relay`` only lend their NICs (the fastest of their role)."""
    demand, rate = context.demand, context.rate
    deployment = Deployment(
        prefill=prefill.pool(instances),
        relay=relay.pool(1) if relay is not None else None,
        main=main.pool(1),
        line=line,
        decode_cache=context.scenario.engine.decode_prefix_sharing,
    )
    move = transfer(demand, deployment, stage, context.nic_goodput)
    state = line_state(demand, move, stage, rate, q[1])
    worst = line_state(demand, move, stage, rate, q[0]) if q[0] < q[1] else state
    if state.rho > context.cap_line:
        return Excuse("line_utilization", state.rho, context.cap_line, "", "line")
    weight = np.stack([q[1] * demand.atoms.weight, (1 - q[1]) * demand.atoms.weight])
    first = stage.time_s + context.scenario.engine.router_delay_s
    on_prefill = context.scenario.workload.first_token == "on_prefill"
    limits = context.limits("ttft")
    shape = weight.shape
    direct = np.empty((len(limits), *shape))
    relayed = np.zeros((len(limits), *shape))
    for i, limit in enumerate(limits):
        room = limit.limit_s * (1 + 1e-9) - first
        gap = np.broadcast_to(room[None, :, None], state.exposed.shape)
        if not on_prefill:
            gap = gap - state.exposed
        direct[i] = (_in_time(stage, gap) * state.probability).sum(axis=2)
        if relay is not None:
            rest = room if on_prefill else room - move.rdma_s
            relayed[i] = np.broadcast_to(_in_time(stage, rest), shape)
    under_way = rate * float((weight * state.line_time * demand.kv_prompt).sum())
    low_weight = np.stack([q[0] * demand.atoms.weight, (1 - q[0]) * demand.atoms.weight])
    worst_way = math.inf
    if worst.rho < 1.0:
        worst_way = rate * float((low_weight * worst.line_time * demand.kv_prompt).sum())
    output = np.broadcast_to(demand.atoms.output, shape)
    exposed = (state.exposed * state.probability).sum(axis=2)
    longest = np.full(shape, np.inf)
    if worst.rho < 1.0:
        rounds = MAX_ROUNDS * (move.rtt_s + float(np.max(context.extend_cost(main.pool(1))[0].t0_s)))
        longest = (worst.exposed * worst.probability).sum(axis=2) + rounds
    work = demand.atoms.weight * demand.atoms.output
    held = float((work * (demand.atoms.prompt + demand.atoms.output / 2)).sum() / work.sum())
    return Bounds(
        classes=_merge(weight, output, exposed, longest, direct, relayed),
        bytes_per_s=rate * state.bytes_per_request,
        under_way_bytes=under_way,
        under_way_worst=worst_way,
        idle_needed_bytes=context.idle_for_share(q[0]),
        kv_running=float(demand.kv_at(np.asarray(held))),
        tokens_per_s=rate * demand.atoms.mean(demand.atoms.output),
    )


def _in_time(stage: PrefillStage, room: Array) -> Array:
    ok = np.zeros(room.shape)
    fits = room >= 0
    ok[fits] = 1.0 - stage.law.survival(room[fits])
    return ok


def _merge(weight: Array, output: Array, exposed: Array, longest: Array, direct: Array, relayed: Array) -> Classes:
    """Flatten (2, atoms) and merge neighbours in exposed time beyond MAX_CLASSES, each figure at its best."""
    flat = weight.ravel() > 0
    order = np.argsort(exposed.ravel()[flat], kind="stable")

    def pick(values: Array) -> Array:
        return np.asarray(values.reshape(*values.shape[:-2], flat.size)[..., flat][..., order])

    w, n, e, d, r = pick(weight), pick(output), pick(exposed), pick(direct), pick(relayed)
    most = pick(longest)
    if w.size > MAX_CLASSES:
        starts = np.unique(np.linspace(0, w.size, MAX_CLASSES, endpoint=False).astype(int))
        mass = np.add.reduceat(w, starts)
        n = np.add.reduceat(w * n, starts) / mass
        e = np.minimum.reduceat(e, starts)
        most = np.maximum.reduceat(most, starts)
        d = np.maximum.reduceat(d, starts, axis=1)
        r = np.maximum.reduceat(r, starts, axis=1)
        w = mass
    return Classes(w, n, e, most, d, r)


def least_share(context: Context, line: LineChoice | None, top: float) -> float | None:
    """Least hit share at which the line carries the bytes; None if it doesn't even at ``top``."""
    if line is None:
        return 0.0
    demand = context.demand
    room = line.capacity_bytes_per_s * context.cap_line / context.rate
    held = demand.atoms.mean(demand.delta_held if context.scenario.engine.decode_prefix_sharing else demand.delta_cold)
    cold = demand.atoms.mean(demand.delta_cold)
    if context.scenario.workload.output_forecast is not None:
        room *= 1.0 / max(1.0 - 1.0 / context.scenario.workload.sessions.turns, 0.5)  # what a filter could save at most
    if top * held + (1.0 - top) * cold > room:
        return None
    return max((cold - room) / max(cold - held, 1e-9), 0.0) if cold > room else 0.0
