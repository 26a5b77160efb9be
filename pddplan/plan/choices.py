"""Decode choices: every (option, count) of a role and what it can at best do, for bounds that never miss a plan."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pddplan.plan.kv_formats import ConversionRates, conversion_rates, longest_stretch
from pddplan.plan.options import PoolOption, admitted
from pddplan.serve.context import Context
from pddplan.serve.decode_stage import ADMISSION_EPSILON
from pddplan.serve.equilibrium import HELD_TOLERANCE, tier_bytes
from pddplan.serve.line_stage import Transfer
from pddplan.serve.main_decode import Occupancy
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.serve.steps import StepTable, settle
from pddplan.spec.types import ChipOffer

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

DRAG_GRID = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75, 0.9)  # of the time that extend passes may take
TANGENT_POINTS = 400
RELIEF_POINTS = 8  # contexts at which main decode is tried
RELIEF_MARGIN = 1.1  # for what lies between them
USEFUL_FACTOR, USEFUL_EXTRA = 2.0, 4  # of what a pool could ever use, generously
LONGEST_WAY_S = 60.0  # a transfer that takes longer is no plan


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
    extend_s: float  # t0 and v of an extend pass on main decode, what it adds to the others' steps; v 0 unknown
    extend_tokens_per_s: float
    drag: tuple[tuple[float, float], ...]  # share of its tokens/s left at shares of time in extend passes, ``_drag``
    resting: tuple[float, float]  # running requests >= resting[0] + resting[1] x tokens/s (tangent, main decode)
    relief: float = 1.0  # main decode's tokens that one of the relay's can spare

    @cached_property
    def least_usd_per_hour(self) -> float:
        """Least that the choice adds to the bill: nothing for owned chips [USD/h]."""
        return self.option.rent_usd_per_hour(self.instances)


class Choices(tuple[DecodeChoice, ...]):
    """Decode choices with their figures as arrays (choices,), made once."""

    def those(self, mask: Mask) -> Choices:
        """The choices of a mask, self where that is all."""
        return self if bool(mask.all()) else Choices(c for c, stays in zip(self, mask.tolist(), strict=True) if stays)

    def _of(self, name: str) -> Array:
        return np.array([getattr(c, name) for c in self], dtype=float)

    @cached_property
    def options(self) -> NDArray[np.intp]:
        """Identity of the option."""
        return np.array([id(c.option) for c in self], dtype=np.intp)

    @cached_property
    def offers(self) -> tuple[ChipOffer, ...]:
        """Their offers, each once."""
        return tuple({c.option.offer.key: c.option.offer for c in self}.values())

    @cached_property
    def counts(self) -> Array:
        return self._of("instances")

    @cached_property
    def slots(self) -> Array:
        return self._of("slots")

    @cached_property
    def tokens(self) -> Array:
        """Tokens/s at best."""
        return self._of("tokens_per_s")

    @cached_property
    def relief(self) -> Array:
        return self._of("relief")

    @cached_property
    def room_bytes(self) -> Array:
        return self._of("room_bytes")

    @cached_property
    def running_bytes(self) -> Array:
        return self._of("running_bytes")

    @cached_property
    def tau_floor_s(self) -> Array:
        return self._of("tau_floor_s")

    @property
    def shortest_step_s(self) -> float:
        """Of all, 0 without any."""
        return float(self.tau_floor_s.min()) if self else 0.0

    @cached_property
    def least_usd(self) -> Array:
        """Least that each adds to the bill [USD/h]."""
        return self._of("least_usd_per_hour")

    @cached_property
    def nics(self) -> Array:
        """Network rate of the chips that hold one request [B/s]."""
        return np.array([nic_of(c.option) for c in self], dtype=float)

    @cached_property
    def extend_s(self) -> Array:
        return self._of("extend_s")

    @cached_property
    def extend_s_per_token(self) -> Array:
        """1/v of an extend pass, 0 where it isn't known [s]."""
        speed = self._of("extend_tokens_per_s")
        return np.where(speed > 0, 1.0 / np.maximum(speed, 1e-12), 0.0)

    @cached_property
    def drag(self) -> tuple[Array, Array]:
        """Points (u, r) of each choice, (choices, points), see ``_drag``; r = 1 where it isn't known."""
        width = max((len(c.drag) for c in self), default=0) or 1
        points = [c.drag or [(0.0, 1.0)] * width for c in self]
        u, r = np.moveaxis(np.array(points, dtype=float).reshape(len(self), width, 2), 2, 0)
        return u, r

    @cached_property
    def lines(self) -> list[list[tuple[float, float]]]:
        """Lines (a, b) above the points of each choice."""
        known = {c.drag: _lines_above(c.drag) for c in self if c.drag}
        return [known.get(c.drag, [(1.0, 0.0)]) for c in self]

    def left_at(self, share: Array) -> Array:
        """r at shares u of time in extend passes, (choices, ...), linear between the points."""
        u, r = self.drag
        left = np.empty(share.shape)
        for option in set(self.options.tolist()):
            mine = self.options == option
            first = int(np.argmax(mine))
            left[mine] = np.interp(share[mine], u[first], r[first])
        return left

    def resting_at(self, tokens_per_s: float) -> tuple[Array, float]:
        """Running requests at least, at a rate without a relay, and by how much a token/s of it lowers them."""
        resting = np.array([c.resting for c in self], dtype=float).reshape(len(self), 2)
        return np.maximum(resting @ np.array([1.0, tokens_per_s]), 0.0), float(resting[:, 1].max(initial=0.0))


@dataclass(frozen=True)
class Pace:
    """Extremes over a site pair's decode choices, for the relay's tokens."""

    relay_floor_s: float  # shortest step of any relay, 0 unknown
    relay_top_s: float  # longest
    relay_slots: float  # most requests that a relay runs
    shortest_step_s: float  # of any relay at any context, what the filter may go by
    main_usd_per_token_s: float  # least price of a token/s, main decode; inf without any
    relay_usd_per_token_s: float  # relay decode
    main_usd_per_hour: float  # cheapest main decode there is
    relief: float  # most tokens of main decode that a token of the relay spares
    fastest: tuple[PoolOption, PoolOption | None]  # NICs of main decode and relay: transfers can't be quicker
    converts: ConversionRates
    # quickest and slowest transfer by prefill option, count and line, with the stage that they hold for
    moves: dict[tuple[int, int, int], tuple[PrefillStage, Transfer, Transfer]] = field(default_factory=dict)


def pace_of(context: Context, mains: Choices, relays: Choices) -> Pace:
    """Bounds on the relay's steps, slots and prices."""
    floor = min((c.tau_floor_s for c in relays), default=0.0)
    top = max((c.tau_top_s for c in relays), default=0.0)
    slots = max((c.slots for c in relays), default=0.0)
    surfaces = [context.step_surface(o.pool(1)) for o in dict.fromkeys(c.option for c in relays)]
    least = min((float(surface.seconds[0, 0]) for surface in surfaces), default=0.0)
    relief = max((c.relief for c in mains), default=1.0)
    usd = [c.option.usd_per_hour * c.instances for c in mains]
    main = min((u / c.tokens_per_s for u, c in zip(usd, mains, strict=True)), default=math.inf)
    relay = min((c.option.usd_per_hour * c.instances * c.tau_floor_s / c.slots for c in relays), default=math.inf)
    fastest = (
        max((c.option for c in mains), key=nic_of),
        max((c.option for c in relays), key=nic_of) if relays else None,
    )
    converts = conversion_rates(c.option for c in (*mains, *relays))
    return Pace(floor, top, slots, least, main, relay, min(usd, default=math.inf), relief, fastest, converts)


def nic_of(option: PoolOption) -> float:
    """Network rate of the chips that hold one request, up to the common goodput [B/s]."""
    parallelism = option.pool(1).decode.parallelism
    return option.offer.chip.scale_out_bytes_per_s * parallelism.tp * parallelism.pp


def decode_choices(
    context: Context, options: tuple[PoolOption, ...], pooled: bool, tangent: bool, relayed: bool = False
) -> Choices:
    """All counts of all options of a decode role at best: all memory for running, and contexts at their shortest.

    Main decode (``tangent``) without a relay holds the mean context of all tokens; what a relay takes off it may be
    the longest contexts, for which each of its tokens counts ``relief`` times. The relay may get the shortest.
    """
    atoms, middle = context.demand.atoms, context.demand.middle_context
    held = context.demand.token_context if tangent else float(middle.min())
    mixed = tangent and relayed and float(middle.min()) < held * (1 - 1e-9)
    limit, demand = context.tpot_limit_s(), context.output_tokens_per_s
    found: list[DecodeChoice] = []
    for option in options:
        service, own = option.pool(1).decode, context.demand_on(option.offer)
        kv = float(own.kv_at(np.asarray(held if tangent else (atoms.prompt + atoms.output).min())))
        kv_most = float(own.kv_at(np.asarray(held + atoms.output.max()))) - kv  # eager tokens lengthen contexts
        cap = context.cap(option.role)
        surface = context.step_surface(option.pool(1))
        table = surface.table(held)
        rate_only = not math.isfinite(float(table.seconds[0]))
        per = 0.0 if rate_only else min(service.max_batch, table.largest_batch(limit), service.kv_pool_bytes / kv)
        start = speed = 0.0
        if tangent and not rate_only:
            added = context.extend_cost(option.pool(1))[1]
            start, speed = float(np.min(added.t0_s)), float(np.max(added.tokens_per_s))
        counts = np.arange(option.min_instances, most_useful(context, option, kv) + 1, dtype=float)
        running = np.zeros(counts.size)
        if not rate_only:
            admits = admitted(table, per, counts, pooled, ADMISSION_EPSILON, poisson=not tangent)
            running = np.minimum(admits, cap * per * counts)
        relief = (
            _relief(context, option, counts, pooled, cap, demand, running, held) if mixed and not rate_only else 1.0
        )
        drag: tuple[tuple[float, float], ...] = ()
        if speed > 0:
            shortest = surface.table(float(middle.min())) if mixed else table
            drag = _drag(context, option, shortest, service.kv_pool_bytes / kv, pooled, cap)
        for count, most in zip(counts.astype(int).tolist(), running.tolist(), strict=True):
            pool = option.pool(count)
            room = service.kv_pool_bytes * count + tier_bytes(pool)
            if rate_only:
                tokens = float(getattr(service, "max_tokens_per_s", 0.0)) * count * cap
                found.append(
                    DecodeChoice(option, count, math.inf, tokens, math.inf, 0.0, 0.0, 0.0, 0.0, 0.0, (), (0.0, 0.0))
                )
                continue
            if most <= 0:
                continue
            tokens = best_tokens_per_s(table, most, count)
            resting = _tangent(demand, tokens, count, table) if tangent and not mixed else (0.0, 0.0)
            # with mixed contexts nothing is known of the memory that runs beside a relay
            busy = math.inf if mixed else most * (kv_most + kv)
            floor = float(table.seconds[0])
            top = float(surface.table(float(middle.max()))(np.asarray(max(per, 1.0)))) * longest_stretch(context, pool)
            found.append(
                DecodeChoice(option, count, most, tokens, room, busy, floor, top, start, speed, drag, resting, relief)
            )
    return Choices(found)


def most_useful(context: Context, option: PoolOption, kv_running: float) -> int:
    """Count of a decode option beyond which another instance changes nothing: each runs less than one request at the
    shortest step, and all idle sessions fit. At most what may be bought, at least the pinned count."""
    pool = option.pool(1)
    service, demand = pool.decode, context.output_tokens_per_s
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
    own, main = context.demand_on(option.offer), option.role == "main_decode"
    sessions = context.idle_for_share(1.0 - HELD_TOLERANCE, own.kv_format) if main else 0.0
    room = service.kv_pool_bytes
    if math.isfinite(sessions) and room > 0 and math.isfinite(room):
        useful += USEFUL_FACTOR * sessions / room
    # never below what keeps every request's KV under way in memory
    under_way = context.rate * float(own.kv_prompt.max()) * LONGEST_WAY_S
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
    middle = context.demand.middle_context
    surface, service = context.step_surface(option.pool(1)), option.pool(1).decode
    plain = surface.table(held)
    lacking = np.array(
        [demand - best_tokens_per_s(plain, r, n) for r, n in zip(running, counts.astype(int).tolist(), strict=True)]
    )
    worst = 1.0
    for low in np.linspace(float(middle.min()), held, RELIEF_POINTS, endpoint=False):
        table = surface.table(float(low))
        kv = float(context.demand_on(option.offer).kv_at(np.asarray(low)))
        per = min(service.max_batch, table.largest_batch(context.tpot_limit_s()), service.kv_pool_bytes / kv)
        most = np.minimum(admitted(table, per, counts, pooled, ADMISSION_EPSILON), cap * per * counts)
        makes = np.array(
            [best_tokens_per_s(table, r, n) for r, n in zip(most, counts.astype(int).tolist(), strict=True)]
        )
        taken = np.maximum(demand * (held - low) / (float(middle.max()) - low), demand - makes)
        worst = max(worst, float((lacking / taken).max()))
    return 1.0 + RELIEF_MARGIN * (worst - 1.0)


def _drag(
    context: Context, option: PoolOption, table: StepTable, kv_slots: float, pooled: bool, cap: float
) -> tuple[tuple[float, float], ...]:
    """Points (u, r) of r(u) = g(u)/g(0), g the tokens/s of a pool that spends a share u of its time in extend passes.

    Steps are 1/(1 - u) longer, so the batch at the TPOT limit shrinks too: g falls faster than 1 - u and ends where the
    shortest step meets the limit. ``table`` at the shortest context that main decode may come to hold: there g falls
    least. So it does in the largest pool, and by the cap on utilisation rather than by the admission row; the larger of
    both counts.
    """
    limit, counts = context.tpot_limit_s(), np.array([option.max_instances])
    service = option.pool(1).decode
    end = min(1.0 - float(table.seconds[0]) / limit, 1.0)

    def made(u: float) -> Array:
        slower = StepTable(table.batch, table.seconds / (1.0 - u))
        per = min(service.max_batch, slower.largest_batch(limit), kv_slots)
        if per < 1.0:
            return np.zeros(2)
        admits = float(admitted(slower, per, counts, pooled, ADMISSION_EPSILON)[0])
        running = (admits, min(cap, 1.0) * per * option.max_instances)
        return np.array([best_tokens_per_s(slower, r, option.max_instances) for r in running])

    whole = made(0.0)
    if end <= 0.0 or whole.min() <= 0.0:
        return ()
    points = [(share * end, float((made(share * end) / whole).max())) for share in DRAG_GRID]
    return (*points, (end, 0.0))


def _lines_above(points: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
    """Lines (a, b), value <= a - b u, of the upper concave hull of points with ascending u."""
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) >= 2 and _turns_up(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    lines = []
    for (u0, r0), (u1, r1) in itertools.pairwise(hull):
        slope = max((r0 - r1) / (u1 - u0), 0.0)
        lines.append((r0 + slope * u0, slope))
    # each line costs a row of the program: the flattest, the middle and the steepest say most
    return lines if len(lines) <= 3 else [lines[0], lines[len(lines) // 2], lines[-1]]


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
