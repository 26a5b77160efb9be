"""Optimistic figures of a level tuple: what the integer program may assume without ever missing a cheaper plan.

A tuple fixes the prefill option and its count (so its utilisation), the line, and an interval [q_low, q_high] of the
share of prefixes that main decode still holds. Inside it, the bytes, the exposed transfers and P(TTFT <= limit) are
taken at q_high (best), the memory that buys q at q_low (least): every plan in the tuple obeys these rows, so
the program's optimum is a lower bound. Intervals are split until plans and bounds meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pddplan.errors import Excuse
from pddplan.plan.choices import Pace
from pddplan.plan.kv_formats import ConversionRates
from pddplan.plan.options import PoolOption
from pddplan.serve.context import Context
from pddplan.serve.demand import Demand
from pddplan.serve.deployment import Deployment, LineChoice
from pddplan.serve.equilibrium import HELD_TOLERANCE
from pddplan.serve.line_stage import LineState, Transfer, kinds, line_state, transfer
from pddplan.serve.prefill_stage import PrefillStage
from pddplan.spec.types import Role

Array = NDArray[np.float64]

MAX_CLASSES = 40  # routing classes of the program; kinds x atoms beyond it are merged, optimistically
LEAST_CLASSES = 16  # of one workload among several
HALVINGS = 40  # for the hit share at which the line carries the bytes


@dataclass(frozen=True)
class Classes:
    """Routing classes at q_high: shape (classes,), and P(TTFT <= limit) per limit (limits, classes) by route."""

    weight: Array
    own: Array  # (limits, classes) weights within the limit's workload, 0 for classes of others
    least: Array  # fewest tokens of a relayed request: transfers at q_high, the relay's steps at their longest
    most: Array  # most: its whole output, for it may stay on the relay; 0 where it can't be relayed
    hold_s: Array  # shortest time on the relay
    direct_ok: Array
    relay_ok: Array
    keep: Array  # most tokens of a relayed request that the filter keeps from being handed over; 0 without it
    may_relay: Array  # 1 where the transfer outlasts a token at q_low, else 0


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
    kv_format: str  # that main decode holds
    shift_keep_per_s: float  # tokens/s that requests cold between q_low and q_high may add to ``keep``
    lag_share: float  # of hits that come before their transfer is through, at most


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
    worth: Callable[[float], bool] | None = None,
) -> Bounds | Excuse | None:
    """Optimistic figures of a tuple; ``main`` and ``relay`` only lend their NICs (the fastest of their role) and their
    KV formats, which all of a node share. What converting takes off their steps isn't counted: it only costs.

    The filter may keep back what last turns would send, 1/turns of the bytes at most. ``worth``, asked with the most
    tokens/s that relays can take, may stop the work half way: then None.
    """
    rate, demand = context.rate, context.demand_on(main.offer)
    key = (id(prefill), instances, id(line))
    known = pace.moves.get(key)
    if known is None or known[0] is not stage:
        lent = relay.pool(1) if relay is not None else None
        cache = context.scenario.engine.decode_prefix_sharing
        pools = Deployment(prefill.pool(instances), lent, main.pool(1), line=line, decode_cache=cache)
        known = pace.moves[key] = (stage, *_transfers(context, pools, stage, pace.converts))
    _, move, slow = known
    sent = least_sent(context) if use_filter else 1.0
    state = line_state(demand, move, stage, rate, q[1], sent)
    worst = line_state(demand, slow, stage, rate, q[0]) if q[0] < q[1] or use_filter or slow is not move else state
    if state.rho > context.cap_line * (1 + 1e-9):
        return Excuse("line_utilization", state.rho, context.cap_line, "", "line")
    weight, low_weight = kinds(demand, q[1]), kinds(demand, q[0])
    least, hold = _relay_figures(demand, state, pace)
    longest = worst.predicted if worst.rho < 1.0 else np.full(weight.shape, math.inf)
    may = np.where(longest > context.token_time_s, 1.0, 0.0)
    if q[0] < q[1]:
        may = np.broadcast_to(may.max(axis=0), may.shape)  # held at q_high, a request may be cold at its own q
    most = may * demand.atoms.output
    if worth is not None and not worth(rate * float((weight * most).sum())):
        return None
    keep = _kept(context, longest, pace) if use_filter else np.zeros(weight.shape)
    direct, relayed = _prompt_shares(context, stage, state, move, relay is not None)
    worst_way, lag = math.inf, 1.0
    if worst.rho < 1.0:
        waits = min(rate * float((low_weight * demand.atoms.output).sum()) * pace.relay_top_s, pace.relay_slots)
        worst_way = rate * float((low_weight * worst.line_time * demand.kv_prompt).sum())
        worst_way += waits * float(demand.kv_prompt.max())
        after = np.maximum(worst.exposed - demand.atoms.output[None, :, None] * pace.relay_floor_s, 0.0)
        lag = _most_lag(demand, low_weight[..., None] * worst.probability, after)
    return Bounds(
        classes=_classes(context, (weight, least, most, hold, direct, relayed, keep, may)),
        bytes_per_s=rate * state.bytes_per_request,
        under_way_bytes=rate * float((weight * state.line_time * demand.kv_prompt).sum()),
        under_way_worst=worst_way,
        idle_needed_bytes=context.idle_for_share(q[0] - HELD_TOLERANCE, demand.kv_format),
        kv_running=float(demand.kv_at(np.asarray(demand.token_context))),
        tokens_per_s=context.output_tokens_per_s,
        kv_format=demand.kv_format,
        shift_keep_per_s=rate * float((weight[0] - low_weight[0]) @ np.maximum(keep[1] - keep[0], 0.0)),
        lag_share=lag if relay is not None else 0.0,
    )


def _transfers(
    context: Context, deployment: Deployment, stage: PrefillStage, rates: ConversionRates
) -> tuple[Transfer, Transfer]:
    """The transfer with receivers that convert as quickly, and as slowly, as any; the same where none converts."""

    def made(by_role: Mapping[Role, float]) -> Transfer:
        return transfer(context.demand, deployment, stage, context.nic_goodput, lambda pool: by_role[pool.role])

    quick = made(rates.quickest)
    converts = quick.main_converts_s is not None or quick.relay_converts_s is not None
    return quick, made(rates.slowest) if converts else quick


def _prompt_shares(
    context: Context, stage: PrefillStage, state: LineState, move: Transfer, relays: bool
) -> tuple[Array, Array]:
    """P(TTFT <= limit) by limit and kind of request, (limits, 2, atoms): sent directly, and relayed (0 without)."""
    first = stage.time_s + context.router_s(split=True)
    on_prefill = context.scenario.traffic.first_token == "on_prefill"
    limits = context.limits("ttft")
    shape = state.exposed.shape[:2]
    direct = np.empty((len(limits), *shape))
    relayed = np.zeros((len(limits), *shape))
    for i, limit in enumerate(limits):
        room = limit.limit_s * (1 + 1e-9) - first
        gap = np.broadcast_to(room[None, :, None], state.exposed.shape)
        if not on_prefill:
            gap = gap - state.exposed
        direct[i] = (in_time(stage, gap) * state.probability).sum(axis=2)
        if relays:
            relayed[i] = np.broadcast_to(in_time(stage, room if on_prefill else room - move.rdma_s), shape)
    return direct, relayed


def _relay_figures(demand: Demand, state: LineState, pace: Pace) -> tuple[Array, Array]:
    """Fewest tokens of a relayed request and its shortest stay, averaged over the line's spread.

    Averaged after min(n, ...), never before: most of the mean transfer may come from few long ones. Shapes (2, atoms).
    """
    shape = state.exposed.shape[:2]
    n = np.broadcast_to(demand.atoms.output, shape)
    if pace.relay_floor_s <= 0:
        return np.zeros(shape), np.zeros(shape)
    steps = np.ceil(state.exposed / pace.relay_top_s * (1 - 1e-12))
    least = (np.minimum(n[..., None], steps) * state.probability).sum(axis=2)
    hold = (np.minimum(n[..., None] * pace.relay_floor_s, state.exposed) * state.probability).sum(axis=2)
    return least, hold


def _kept(context: Context, longest_s: Array, pace: Pace) -> Array:
    """Most tokens that the filter keeps on the relay for each relayed request that may end before its transfer: its
    own, and those of the (1 - precision)/precision others that are mistaken for such. Shape (2, atoms)."""
    output = context.demand.atoms.output
    precision = (context.scenario.traffic.output_forecast or (1.0, 1.0))[0]
    ends = output * pace.shortest_step_s <= longest_s
    return np.where(ends, output + (1.0 - precision) / precision * float(output.max()), 0.0)


def in_time(stage: PrefillStage, room: Array) -> Array:
    """P(W <= room) of the prefill wait, 0 where there is no room; any shape [s]."""
    ok = np.zeros(room.shape)
    fits = room >= 0
    ok[fits] = 1.0 - stage.law.survival(room[fits])
    return ok


def _most_lag(demand: Demand, mass: Array, after_s: Array) -> float:
    """Largest share of any workload's requests whose next turn comes within ``after_s``; both (2, atoms, points)."""
    atoms = demand.atoms
    late = mass * demand.sessions.late(after_s.transpose(1, 0, 2), atoms.workload).transpose(1, 0, 2)
    if atoms.workloads == 1:
        return float(late.sum())
    lag = np.bincount(atoms.workload, late.sum(axis=(0, 2)), atoms.workloads) / atoms.parts
    return float(lag.max())


def _classes(context: Context, figures: tuple[Array, ...]) -> Classes:
    """Routing classes of all workloads, none of them with requests of two: a row is about one workload's requests."""
    atoms, limits = context.demand.atoms, context.limits("ttft")
    at_most = max(MAX_CLASSES // atoms.workloads, LEAST_CLASSES)
    merged = [_merge(part, at_most) for part in _by_workload(figures, atoms.workload, atoms.workloads)]
    weight, *rest = (np.concatenate(parts, axis=-1) for parts in zip(*merged, strict=True))
    own = np.broadcast_to(weight, (len(limits), weight.size))
    if atoms.workloads > 1:
        of_class = np.repeat(np.arange(atoms.workloads), [part[0].size for part in merged])
        within = weight / np.asarray(atoms.parts)[of_class]
        asked = np.array([context.names.index(limit.workload or "") for limit in limits], dtype=int)
        own = np.where(of_class[None, :] == asked[:, None], within[None, :], 0.0)
    return Classes(weight, own, *rest)


def _by_workload(figures: tuple[Array, ...], workload: NDArray[np.intp], workloads: int) -> Iterator[tuple[Array, ...]]:
    """The figures (…, 2, atoms) of each workload's atoms."""
    if workloads == 1:
        yield figures
        return
    for k in range(workloads):
        yield tuple(values[..., workload == k] for values in figures)


def _merge(figures: tuple[Array, ...], at_most: int) -> tuple[Array, ...]:
    """Flatten weight, least, most, hold, direct, relayed, keep, may (…, 2, atoms) and merge neighbours in the relay's
    stay beyond ``at_most``, each figure at its best."""
    weight, hold = figures[0], figures[3]
    flat = weight.ravel() > 0
    order = np.argsort(hold.ravel()[flat], kind="stable")

    def pick(values: Array) -> Array:
        return np.asarray(values.reshape(*values.shape[:-2], flat.size)[..., flat][..., order])

    w, low, high, stay, d, r, k, m = (pick(values) for values in figures)
    if w.size > at_most:
        starts = np.unique(np.linspace(0, w.size, at_most, endpoint=False).astype(int))
        w = np.add.reduceat(w, starts)
        low, stay = np.minimum.reduceat(low, starts), np.minimum.reduceat(stay, starts)
        high, k, m = (np.maximum.reduceat(values, starts) for values in (high, k, m))
        d, r = np.maximum.reduceat(d, starts, axis=1), np.maximum.reduceat(r, starts, axis=1)
    return w, low, high, stay, d, r, k, m


def least_sent(context: Context) -> float:
    """Least share of the line's bytes that a filter leaves: it may keep back what last turns would send."""
    return 1.0 - max(gap.end_probability for gap in context.demand.sessions.gaps)


def least_share(context: Context, line: LineChoice | None, top: float, kv_format: str) -> float | None:
    """Least hit share at which the line carries the bytes of a format; None if it doesn't even at ``top``."""
    if line is None:
        return 0.0
    demand = context.demand.in_format(kv_format)
    room = line.capacity_bytes_per_s * context.cap_line / context.rate
    cold = demand.mean_delta(0.0)
    sharing = context.scenario.engine.decode_prefix_sharing
    held = demand.mean_delta(1.0) if sharing else cold
    if context.scenario.traffic.output_forecast is not None:
        room /= max(least_sent(context), 1e-3)
    if (demand.mean_delta(top) if sharing else cold) > room:
        return None
    if cold <= room:
        return 0.0
    if demand.sessions.several:
        return _least_root(demand, room)
    return max((cold - room) / max(cold - held, 1e-9), 0.0)


def _least_root(demand: Demand, room: float) -> float:
    """Share at which the mean bytes of several workloads fall to ``room``, from below: they fall as it rises."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if demand.mean_delta(middle) > room else (low, middle)
    return low
