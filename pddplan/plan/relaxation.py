"""Optimistic figures of a level tuple: what the integer program may assume without ever missing a cheaper plan.

A tuple fixes the prefill option and its count (so its utilisation), the line, and an interval [q_low, q_high] of the
share of prefixes that main decode still holds. Inside it, the bytes, the exposed transfers and P(TTFT <= limit) are
taken at q_high (best), the memory that buys q at q_low (least): every plan in the tuple obeys these rows, so
the program's optimum is a lower bound. Intervals are split until plans and bounds meet.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.plan.options import PoolOption, admitted
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON, StepTable, settle
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Deployment, LineChoice
from pddplan.serve.equilibrium import HELD_TOLERANCE, tier_bytes
from pddplan.serve.line_stage import LineState, kinds, line_state, transfer
from pddplan.serve.main_decode import Occupancy
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.residency import gap_cdf

Array = NDArray[np.float64]

DRAG_GRID = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 0.95)  # share of time in extend passes
TANGENT_POINTS = 400
RELIEF_POINTS = 8  # contexts at which main decode is tried
RELIEF_MARGIN = 1.1  # for what lies between them
MAX_ROUNDS = 8  # of extend-decode, and the tokens from which it hands over at once: defaults of serve.handover
EXTEND_THRESHOLD = 64.0
USEFUL_FACTOR, USEFUL_EXTRA = 2.0, 4  # of what a pool could ever use, generously
LONGEST_WAY_S = 60.0  # a transfer that takes longer is no plan
MAX_CLASSES = 40  # routing classes of the program; kinds x atoms beyond it are merged, optimistically


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
    tau_top_s: float
    extend_tokens_per_s: float  # v of an extend pass on main decode, 0 unknown
    drag: tuple[tuple[float, float], ...]  # tokens/s of an instance <= a - b u, u its share of time in extend passes
    resting: tuple[float, float]  # running requests >= resting[0] + resting[1] x tokens/s (tangent, main decode)
    relief: float = 1.0  # main decode's tokens that one of the relay's can spare


@dataclass(frozen=True)
class Classes:
    """Routing classes at q_high: shape (classes,), and P(TTFT <= limit) per limit (limits, classes) by route."""

    weight: Array
    least: Array  # fewest tokens of a relayed request: transfers at q_high, the relay's steps at their longest
    most: Array  # most: transfers at q_low, hand-over rounds included, the relay's steps at their shortest
    hold_s: Array  # shortest time on the relay
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
    shift_tokens_per_s: float  # what requests cold between q_low and q_high may add to ``most``
    lag_share: float  # of hits that come before their transfer is through, at most


@dataclass(frozen=True)
class Pace:
    """Extremes over a site pair's decode choices, for the relay's tokens."""

    relay_floor_s: float  # shortest step of any relay, 0 unknown
    relay_top_s: float  # longest
    fixed_s: float  # most that a hand-over takes whatever its size, RTT + t0; inf unknown
    slowest_tokens_per_s: float  # slowest extend pass v
    main_usd_per_token_s: float  # least price of a token/s, main decode; inf without any
    relay_usd_per_token_s: float  # relay decode
    main_usd_per_hour: float  # cheapest main decode there is
    relief: float  # most tokens of main decode that a token of the relay spares
    fastest: tuple[PoolOption, PoolOption | None]  # NICs of main decode and relay: transfers can't be quicker


def pace_of(context: Context, mains: tuple[DecodeChoice, ...], relays: tuple[DecodeChoice, ...]) -> Pace:
    """Bounds on the relay's steps and on the hand-over rounds: at most MAX_ROUNDS x (RTT + t0 + n/v)."""
    floor = min((c.tau_floor_s for c in relays), default=0.0)
    top = max((c.tau_top_s for c in relays), default=0.0)
    rtt = max((link.rtt_s for link in context.scenario.links), default=0.0)
    fixed, slowest = rtt, math.inf
    for option in dict.fromkeys(c.option for c in mains):
        if relays and math.isfinite(float(context.step_surface(option.pool(1)).seconds[0, 0])):
            cost = context.extend_cost(option.pool(1))[0]
            fixed = max(fixed, rtt + float(np.max(cost.t0_s)))
            slowest = min(slowest, float(np.min(cost.tokens_per_s)))
        elif relays:
            fixed = math.inf
    relief = max((c.relief for c in mains), default=1.0)
    usd = [c.option.usd_per_hour * c.instances for c in mains]
    main = min((u / c.tokens_per_s for u, c in zip(usd, mains, strict=True)), default=math.inf)
    relay = min((c.option.usd_per_hour * c.instances * c.tau_floor_s / c.slots for c in relays), default=math.inf)
    fastest = (
        max((c.option for c in mains), key=nic_of),
        max((c.option for c in relays), key=nic_of) if relays else None,
    )
    return Pace(floor, top, fixed, slowest, main, relay, min(usd, default=math.inf), relief, fastest)


def nic_of(option: PoolOption) -> float:
    """Network rate of the chips that hold one request, up to the common goodput [B/s]."""
    parallelism = option.pool(1).decode.parallelism
    return option.offer.chip.scale_out_bytes_per_s * parallelism.tp * parallelism.pp


def longest_rounds_s(exposed_s: Array, output: Array, pace: Pace) -> Array:
    """Most time that the rounds of extend-decode keep the relay beyond the transfer [s]; broadcasts.

    A hand-over of e tokens takes at most s = RTT + t0 + e/v, in which the relay makes at most s/tau + 1 more; so on until
    the threshold, counted with the most tokens, the slowest pass and the shortest step. Two passes, as the model's.
    """
    floor = pace.relay_floor_s
    extra: Array = np.zeros(np.broadcast(exposed_s, output).shape)
    for _ in range(2):
        tokens = np.minimum((exposed_s + extra) / floor + 1.0, output)
        extra = np.zeros_like(tokens)
        for _round in range(MAX_ROUNDS):
            goes_on = tokens > EXTEND_THRESHOLD
            if not goes_on.any():
                break
            span = pace.fixed_s + tokens / pace.slowest_tokens_per_s
            extra = extra + np.where(goes_on, span, 0.0)
            tokens = np.where(goes_on, np.minimum(span / floor + 1.0, tokens), 0.0)
    return extra


def decode_choices(
    context: Context, options: tuple[PoolOption, ...], pooled: bool, tangent: bool, relayed: bool = False
) -> list[DecodeChoice]:
    """All counts of all options of a decode role at best: all memory for running, and contexts at their shortest.

    Main decode (``tangent``) without a relay holds the mean context of all tokens; what a relay takes off it may be
    the longest contexts, for which each of its tokens counts ``relief`` times. The relay may get the shortest.
    """
    atoms = context.demand.atoms
    work = atoms.weight * atoms.output
    middle = atoms.prompt + atoms.output / 2
    held = float((work * middle).sum() / work.sum()) if tangent else float(middle.min())
    kv = float(context.demand.kv_at(np.asarray(held if tangent else (atoms.prompt + atoms.output).min())))
    kv_most = float(context.demand.kv_at(np.asarray(held + atoms.output.max()))) - kv  # eager tokens lengthen contexts
    mixed = tangent and relayed and float(middle.min()) < held * (1 - 1e-9)
    limit = context.tpot_limit_s()
    demand = context.rate * atoms.mean(atoms.output)
    found: list[DecodeChoice] = []
    for option in options:
        service = option.pool(1).decode
        cap = context.cap(option.role)
        surface = context.step_surface(option.pool(1))
        table = surface.table(held)
        rate_only = not math.isfinite(float(table.seconds[0]))
        per = 0.0 if rate_only else min(service.max_batch, table.largest_batch(limit), service.kv_pool_bytes / kv)
        speed = 0.0
        if tangent and not rate_only:
            speed = float(np.max(context.extend_cost(option.pool(1))[1].tokens_per_s))
        counts = np.arange(option.min_instances, most_useful(context, option, kv) + 1, dtype=float)
        running = np.zeros(counts.size)
        if not rate_only:
            admits = admitted(table, per, counts, pooled, ADMISSION_EPSILON, poisson=not tangent)
            running = np.minimum(admits, cap * per * counts)
        relief = _relief(context, option, counts, pooled, cap, demand, running, held) if mixed and not rate_only else 1.0
        drag = _drag(context, option, table, service.kv_pool_bytes / kv, pooled) if speed > 0 else ()
        for count, most in zip(counts.astype(int).tolist(), running.tolist(), strict=True):
            pool = option.pool(count)
            room = service.kv_pool_bytes * count + tier_bytes(pool)
            if rate_only:
                tokens = getattr(service, "max_tokens_per_s") * count * cap
                found.append(DecodeChoice(option, count, math.inf, tokens, math.inf, 0.0, 0.0, 0.0, 0.0, (), (0.0, 0.0)))
                continue
            if most <= 0:
                continue
            tokens = best_tokens_per_s(table, most, count)
            resting = _tangent(demand, tokens, count, table) if tangent and not mixed else (0.0, 0.0)
            # with mixed contexts nothing is known of the memory that runs beside a relay
            busy = math.inf if mixed else most * (kv_most + kv)
            floor = float(table.seconds[0])
            top = float(surface.table(float(middle.max()))(np.asarray(max(per, 1.0))))
            found.append(
                DecodeChoice(option, count, most, tokens, room, busy, floor, top, speed, drag, resting, relief)
            )
    return found


def most_useful(context: Context, option: PoolOption, kv_running: float) -> int:
    """Count of a decode option beyond which another instance changes nothing: each runs less than one request at the
    shortest step, and all idle sessions fit. At most what may be bought, at least the pinned count."""
    pool = option.pool(1)
    service, demand = pool.decode, context.rate * context.demand.atoms.mean(context.demand.atoms.output)
    step = float(context.step_surface(pool).seconds.max(axis=0)[0])
    if not math.isfinite(step):
        tokens = float(getattr(service, "max_tokens_per_s", math.inf)) * min(context.cap(option.role), 1.0)
        useful = demand / tokens if tokens > 0 else math.inf
    else:
        # steps lengthen with the batch, so the requests of a loaded pool are more than those at the shortest step
        top = float(context.step_surface(pool).seconds[-1, -1])
        limit = min(context.tpot_limit_s(), top)
        useful = USEFUL_FACTOR * demand * max(step, limit if math.isfinite(limit) else step) + USEFUL_EXTRA
        useful += math.sqrt(useful) * USEFUL_EXTRA
    sessions = context.idle_for_share(1.0 - HELD_TOLERANCE) if option.role == "main_decode" else 0.0
    room = service.kv_pool_bytes
    if math.isfinite(sessions) and room > 0 and math.isfinite(room):
        useful += USEFUL_FACTOR * sessions / room
    # never below what keeps every request's KV under way in memory
    under_way = context.rate * float(context.demand.kv_prompt.max()) * LONGEST_WAY_S
    if math.isfinite(room) and room > 0:
        useful += under_way / room
    return int(max(min(useful + 1, option.max_instances), option.min_instances))


def best_tokens_per_s(table: StepTable, running: float, count: int) -> float:
    """Most tokens/s of ``count`` instances with no more than ``running`` requests: where steps lengthen faster than
    the batch, fewer requests make more."""
    each = running / count
    speed = each / float(table(np.asarray(max(each, 1e-6))))
    inside = table.batch <= each
    return count * max(speed, float((table.batch[inside] / table.seconds[inside]).max(initial=0.0)))


def _relief(
    context: Context,
    option: PoolOption,
    counts: Array,
    pooled: bool,
    cap: float,
    demand: float,
    running: Array,
    held: float,
) -> float:
    """By how much a token taken off main decode can count there, where contexts differ: >= 1.

    To bring the mean context from h down to c, the relay must take Y >= D (h - c)/(c_max - c) of the D tokens/s, and
    it must take Y >= D - T(c), T being what the pool makes at c. So T(h) + k Y >= D holds with k the largest
    (D - T(h))/Y over all c and counts.
    """
    atoms = context.demand.atoms
    middle = atoms.prompt + atoms.output / 2
    surface, service = context.step_surface(option.pool(1)), option.pool(1).decode
    plain = surface.table(held)
    lacking = np.array([demand - best_tokens_per_s(plain, r, n) for r, n in zip(running, counts.astype(int).tolist(), strict=True)])
    worst = 1.0
    for low in np.linspace(float(middle.min()), held, RELIEF_POINTS, endpoint=False):
        table = surface.table(float(low))
        kv = float(context.demand.kv_at(np.asarray(low)))
        per = min(service.max_batch, table.largest_batch(context.tpot_limit_s()), service.kv_pool_bytes / kv)
        most = np.minimum(admitted(table, per, counts, pooled, ADMISSION_EPSILON), cap * per * counts)
        makes = np.array([best_tokens_per_s(table, r, n) for r, n in zip(most, counts.astype(int).tolist(), strict=True)])
        taken = np.maximum(demand * (held - low) / (float(middle.max()) - low), demand - makes)
        worst = max(worst, float((lacking / taken).max()))
    return 1.0 + RELIEF_MARGIN * (worst - 1.0)


def _drag(
    context: Context, option: PoolOption, table: StepTable, kv_slots: float, pooled: bool
) -> tuple[tuple[float, float], ...]:
    """Lines (a, b) above g(u), the tokens/s of an instance that spends a share u of its time in extend passes.

    Steps are 1/(1 - u) longer, so the batch at the TPOT limit shrinks too and g falls faster than 1 - u. With pooled
    slots g is that of the largest pool, which admits most. The lines are the upper concave hull of g on a grid of u.
    """
    limit = context.tpot_limit_s()
    service = option.pool(1).decode
    points = []
    for u in DRAG_GRID:
        slower = StepTable(table.batch, table.seconds / (1.0 - u))
        per = min(service.max_batch, slower.largest_batch(limit), kv_slots)
        running = float(admitted(slower, per, np.array([option.max_instances]), pooled, ADMISSION_EPSILON)[0])
        each = running / option.max_instances
        points.append((u, each / float(slower(np.asarray(max(each, 1e-6))))))
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) >= 2 and _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    lines = []
    for (u0, g0), (u1, g1) in itertools.pairwise(hull):
        slope = (g0 - g1) / (u1 - u0)
        lines.append((g0 + slope * u0, max(slope, 0.0)))
    # each line costs a row of the program: the flattest, the middle and the steepest say most
    return tuple(lines if len(lines) <= 3 else (lines[0], lines[len(lines) // 2], lines[-1]))


def _turns_up(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether b lies on or below the chord from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])


def _tangent(demand: float, most: float, count: int, table: StepTable) -> tuple[float, float]:
    """Line below a(tokens/s) of ``settle``: of the slope at 95 % of min(demand, capacity), moved down to the lowest
    point of a - slope x tokens/s, since a isn't convex where the step time has bends."""
    at = 0.95 * min(demand, most)
    low, high = (settle(table, at * f, count) for f in (0.98, 1.0))
    if not (isinstance(low, Occupancy) and isinstance(high, Occupancy)):
        return (0.0, 0.0)
    slope = (high.requests - low.requests) / (0.02 * at)
    batch = np.concatenate([[0.0], np.geomspace(1e-3, float(table.batch[-1]), TANGENT_POINTS)])
    speed = np.maximum.accumulate(np.where(batch > 0, batch / table(np.maximum(batch, 1e-6)), 0.0))
    start = float((count * (batch - slope * speed)).min())
    return (min(start, high.requests - slope * at), slope)


def tuple_bounds(
    context: Context,
    prefill: PoolOption,
    stage: PrefillStage,
    instances: int,
    line: LineChoice | None,
    main: PoolOption,
    relay: PoolOption | None,
    q: tuple[float, float],
    pace: Pace,
    use_filter: bool = False,
) -> Bounds | Excuse:
    """Optimistic figures of a tuple; ``main`` and ``relay`` only lend their NICs (the fastest of their role).

    The filter may keep back what last turns would send, 1/turns of the bytes at most.
    """
    demand, rate = context.demand, context.rate
    deployment = Deployment(
        prefill=prefill.pool(instances),
        relay=relay.pool(1) if relay is not None else None,
        main=main.pool(1),
        line=line,
        decode_cache=context.scenario.engine.decode_prefix_sharing,
    )
    move = transfer(demand, deployment, stage, context.nic_goodput)
    sent = 1.0 - 1.0 / max(context.scenario.workload.sessions.turns, 1.0) if use_filter else 1.0
    state = line_state(demand, move, stage, rate, q[1], sent)
    worst = line_state(demand, move, stage, rate, q[0]) if q[0] < q[1] or use_filter else state
    if state.rho > context.cap_line * (1 + 1e-9):
        return Excuse("line_utilization", state.rho, context.cap_line, "", "line")
    weight, low_weight = kinds(demand, q[1]), kinds(demand, q[0])
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
        direct[i] = (in_time(stage, gap) * state.probability).sum(axis=2)
        if relay is not None:
            rest = room if on_prefill else room - move.rdma_s
            relayed[i] = np.broadcast_to(in_time(stage, rest), shape)
    least, most, hold = _relay_figures(demand, state, worst, pace, use_filter)
    worst_way, lag = math.inf, 1.0
    if worst.rho < 1.0:
        worst_way = rate * float((low_weight * worst.line_time * demand.kv_prompt).sum())
        after = np.maximum(worst.exposed - demand.atoms.output[None, :, None] * pace.relay_floor_s, 0.0)
        lag = float((low_weight[..., None] * worst.probability * gap_cdf(after, context.gap)).sum())
    work = demand.atoms.weight * demand.atoms.output
    held = float((work * (demand.atoms.prompt + demand.atoms.output / 2)).sum() / work.sum())
    longer = np.maximum(most[1] - most[0], 0.0)
    return Bounds(
        classes=_merge(weight, least, most, hold, direct, relayed),
        bytes_per_s=rate * state.bytes_per_request,
        under_way_bytes=rate * float((weight * state.line_time * demand.kv_prompt).sum()),
        under_way_worst=worst_way,
        idle_needed_bytes=context.idle_for_share(q[0] - HELD_TOLERANCE),
        kv_running=float(demand.kv_at(np.asarray(held))),
        tokens_per_s=rate * demand.atoms.mean(demand.atoms.output),
        shift_tokens_per_s=rate * (q[1] - q[0]) * float(demand.atoms.weight @ longer),
        lag_share=lag if relay is not None else 0.0,
    )


def _relay_figures(
    demand: Demand, state: LineState, worst: LineState, pace: Pace, use_filter: bool
) -> tuple[Array, Array, Array]:
    """Fewest and most tokens of a relayed request and its shortest stay, each averaged over the line's spread.

    Averaged after min(n, ...), never before: most of the mean transfer may come from few long ones. Shapes (2, atoms).
    """
    shape = state.exposed.shape[:2]
    n = np.broadcast_to(demand.atoms.output, shape)
    if pace.relay_floor_s <= 0:
        return np.zeros(shape), n, np.zeros(shape)
    steps = np.ceil(state.exposed / pace.relay_top_s * (1 - 1e-12))
    least = (np.minimum(n[..., None], steps) * state.probability).sum(axis=2)
    hold = (np.minimum(n[..., None] * pace.relay_floor_s, state.exposed) * state.probability).sum(axis=2)
    if use_filter or worst.rho >= 1.0 or not math.isfinite(pace.fixed_s):
        return least, n, hold
    rounds = longest_rounds_s(worst.exposed, n[..., None], pace)
    steps = (worst.exposed + rounds) / pace.relay_floor_s + 1.0
    most = (np.minimum(n[..., None], steps) * worst.probability).sum(axis=2)
    return least, np.maximum(most, least), hold


def in_time(stage: PrefillStage, room: Array) -> Array:
    """P(W <= room) of the prefill wait, 0 where there is no room; any shape [s]."""
    ok = np.zeros(room.shape)
    fits = room >= 0
    ok[fits] = 1.0 - stage.law.survival(room[fits])
    return ok


def _merge(weight: Array, least: Array, most: Array, hold: Array, direct: Array, relayed: Array) -> Classes:
    """Flatten (2, atoms) and merge neighbours in the relay's stay beyond MAX_CLASSES, each figure at its best."""
    flat = weight.ravel() > 0
    order = np.argsort(hold.ravel()[flat], kind="stable")

    def pick(values: Array) -> Array:
        return np.asarray(values.reshape(*values.shape[:-2], flat.size)[..., flat][..., order])

    w, low, high, stay, d, r = (pick(values) for values in (weight, least, most, hold, direct, relayed))
    if w.size > MAX_CLASSES:
        starts = np.unique(np.linspace(0, w.size, MAX_CLASSES, endpoint=False).astype(int))
        w = np.add.reduceat(w, starts)
        low, stay = np.minimum.reduceat(low, starts), np.minimum.reduceat(stay, starts)
        high = np.maximum.reduceat(high, starts)
        d, r = np.maximum.reduceat(d, starts, axis=1), np.maximum.reduceat(r, starts, axis=1)
    return Classes(w, low, high, stay, d, r)


def least_share(context: Context, line: LineChoice | None, top: float) -> float | None:
    """Least hit share at which the line carries the bytes; None if it doesn't even at ``top``."""
    if line is None:
        return 0.0
    demand = context.demand
    room = line.capacity_bytes_per_s * context.cap_line / context.rate
    held = demand.atoms.mean(demand.delta_held if context.scenario.engine.decode_prefix_sharing else demand.delta_cold)
    cold = demand.atoms.mean(demand.delta_cold)
    if context.scenario.workload.output_forecast is not None:
        room *= 1.0 / max(1.0 - 1.0 / context.scenario.workload.sessions.turns, 1e-3)  # what a filter could save at most
    if top * held + (1.0 - top) * cold > room:
        return None
    return max((cold - room) / max(cold - held, 1e-9), 0.0) if cold > room else 0.0
